//! Recovers every failure that raid5 and raid6 tolerate, each single block and each pair of blocks, with each implementation.

use crate::common::{Numbers, naive_pq};
use braid_parity::{BlockRole, DATA_MAX, Parity, Unrecoverable};

/// The intact blocks of a stripe.
struct Stripe {
    data: Vec<Vec<u8>>,
    p: Vec<u8>,
    q: Vec<u8>,
}

impl Stripe {
    fn new(numbers: &mut Numbers, width: usize, len: usize) -> Stripe {
        let data = numbers.blocks(width, len);
        let (p, q) = naive_pq(&data, len);
        Stripe { data, p, q }
    }

    fn block(&self, role: BlockRole) -> &[u8] {
        match role {
            BlockRole::Data(i) => &self.data[i],
            BlockRole::P => &self.p,
            BlockRole::Q => &self.q,
        }
    }

    /// Returns a block, or an empty one if it is lost.
    fn surviving(&self, role: BlockRole, lost: &[BlockRole]) -> &[u8] {
        if lost.contains(&role) { &[] } else { self.block(role) }
    }

    /// Recovers the blocks `lost`, each of them alone, and none, and checks the results. With `raid5` there is no Q.
    fn check_recovery(&self, parity: Parity, lost: &[BlockRole], raid5: bool) {
        let data: Vec<&[u8]> = (0..self.data.len()).map(|i| self.surviving(BlockRole::Data(i), lost)).collect();
        let (p, q) = (self.surviving(BlockRole::P, lost), if raid5 { &[] } else { self.surviving(BlockRole::Q, lost) });
        for wanted in [lost, &[]].into_iter().chain(lost.chunks(1)) {
            let mut outputs = vec![vec![0xee; self.p.len()]; wanted.len()];
            parity.recover(&data, p, q, &mut outputs_of(wanted, &mut outputs)).expect("it can be recovered");
            for (role, output) in wanted.iter().zip(&outputs) {
                assert!(output == self.block(*role), "{parity:?}: {role:?} of {lost:?}, {} data", self.data.len());
            }
        }
    }

    fn roles(&self) -> Vec<BlockRole> {
        (0..self.data.len()).map(BlockRole::Data).chain([BlockRole::P, BlockRole::Q]).collect()
    }
}

/// Returns each role with its output.
fn outputs_of<'a>(roles: &[BlockRole], outputs: &'a mut [Vec<u8>]) -> Vec<(BlockRole, &'a mut [u8])> {
    roles.iter().copied().zip(outputs.iter_mut().map(Vec::as_mut_slice)).collect()
}

#[test]
fn all_single_and_double_losses() {
    let mut numbers = Numbers(11);
    let mut lost = 0;
    for width in (1..=8).chain([9, 13, 16, 21, 31, 32]) {
        let stripe = Stripe::new(&mut numbers, width, 307);
        let roles = stripe.roles();
        for parity in Parity::available() {
            stripe.check_recovery(parity, &[], false);
            for a in &roles {
                stripe.check_recovery(parity, &[*a], false);
                if *a != BlockRole::Q {
                    stripe.check_recovery(parity, &[*a], true);
                }
                // In both orders: the caller need not sort the lost blocks.
                for b in roles.iter().filter(|b| *b != a) {
                    stripe.check_recovery(parity, &[*a, *b], false);
                    lost += 1;
                }
            }
        }
    }
    assert!(lost >= 2 * 1700, "{lost} pairs");
}

#[test]
fn losses_of_wide_stripes() {
    let mut numbers = Numbers(12);
    for width in [64, 126, DATA_MAX] {
        let stripe = Stripe::new(&mut numbers, width, 100);
        let roles = stripe.roles();
        for parity in Parity::available() {
            for _ in 0..200 {
                let (a, b) = (numbers.below(roles.len()), numbers.below(roles.len()));
                if a != b {
                    stripe.check_recovery(parity, &[roles[a], roles[b]], false);
                }
            }
            stripe.check_recovery(parity, &[BlockRole::Data(0), BlockRole::Data(width - 1)], false);
            stripe.check_recovery(parity, &[BlockRole::Data(width - 1), BlockRole::Q], false);
        }
    }
}

#[test]
fn unrecoverable_losses_are_rejected_and_nothing_is_written() {
    let stripe = Stripe::new(&mut Numbers(14), 5, 64);
    let none: &[u8] = &[];
    let (p, q) = (&stripe.p[..], &stripe.q[..]);
    let (d0, d1, d2) = (BlockRole::Data(0), BlockRole::Data(1), BlockRole::Data(2));
    struct Case<'a>(&'a [BlockRole], &'a [u8], &'a [u8], Unrecoverable);
    let cases = [
        Case(&[d0], none, none, Unrecoverable { data_lost: 1, parity_remaining: 0 }),
        Case(&[d0, d1], p, none, Unrecoverable { data_lost: 2, parity_remaining: 1 }),
        Case(&[d0, d1], none, q, Unrecoverable { data_lost: 2, parity_remaining: 1 }),
        Case(&[d0, d1, d2], p, q, Unrecoverable { data_lost: 3, parity_remaining: 2 }),
        Case(&[d0, BlockRole::P], none, none, Unrecoverable { data_lost: 1, parity_remaining: 0 }),
        Case(&[BlockRole::Q, d1], none, none, Unrecoverable { data_lost: 1, parity_remaining: 0 }),
        Case(&[d0, BlockRole::Q, d1], p, none, Unrecoverable { data_lost: 2, parity_remaining: 1 }),
    ];
    for parity in Parity::available() {
        for Case(lost, p, q, expected) in &cases {
            let data: Vec<&[u8]> = (0..5).map(|i| stripe.surviving(BlockRole::Data(i), lost)).collect();
            let mut outputs = vec![vec![0xee; 64]; lost.len()];
            assert_eq!(parity.recover(&data, p, q, &mut outputs_of(lost, &mut outputs)), Err(*expected), "{lost:?}");
            assert!(outputs.iter().flatten().all(|byte| *byte == 0xee));
        }
    }
    let message = Unrecoverable { data_lost: 2, parity_remaining: 1 }.to_string();
    assert_eq!(message, "2 data blocks are lost, and 1 parity blocks remain");
}

/// A lost block counts as lost even if it is not wanted: if it counted as zeros, the recovered blocks would be wrong.
#[test]
fn lost_blocks_count_even_if_not_wanted() {
    let stripe = Stripe::new(&mut Numbers(15), 4, 64);
    let data: [&[u8]; 4] = [&stripe.data[0], &[], &[], &stripe.data[3]];
    for parity in Parity::available() {
        for wanted in [&[BlockRole::Data(2)][..], &[BlockRole::Data(1), BlockRole::Q], &[BlockRole::P], &[]] {
            let mut outputs = vec![vec![0xee; 64]; wanted.len()];
            let found =
                parity.recover(&data, &[], &stripe.q, &mut outputs_of(&wanted[..wanted.len().min(1)], &mut outputs));
            assert_eq!(found, Err(Unrecoverable { data_lost: 2, parity_remaining: 1 }), "{wanted:?}");
            assert!(outputs.iter().flatten().all(|byte| *byte == 0xee));
        }
    }
}

#[test]
fn invalid_roles_and_outputs_panic() {
    let stripe = Stripe::new(&mut Numbers(16), 3, 64);
    let check_panics = |wanted: &[BlockRole], lost: &[BlockRole], bytes: usize| {
        let data: Vec<&[u8]> = (0..3).map(|i| stripe.surviving(BlockRole::Data(i), lost)).collect();
        let (p, q) = (stripe.surviving(BlockRole::P, lost), stripe.surviving(BlockRole::Q, lost));
        let mut outputs = vec![vec![0; bytes]; wanted.len()];
        let call = || Parity::best().recover(&data, p, q, &mut outputs_of(wanted, &mut outputs));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err(), "{wanted:?} of {lost:?}");
    };
    check_panics(&[BlockRole::Data(1)], &[], 64);
    check_panics(&[BlockRole::Data(3)], &[], 64);
    check_panics(&[BlockRole::P], &[BlockRole::Q], 64);
    check_panics(&[BlockRole::Q], &[BlockRole::P], 64);
    check_panics(&[BlockRole::P, BlockRole::P], &[BlockRole::P], 64);
    check_panics(&[BlockRole::Data(1)], &[BlockRole::Data(1)], 63);
    check_panics(&[BlockRole::Data(1)], &[BlockRole::Data(1)], 0);
}
