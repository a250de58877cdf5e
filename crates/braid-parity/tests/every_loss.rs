//! Everything that raid5 and raid6 promise to survive: each loss and each pair of losses, by each implementation.

mod common;

use braid_parity::{DATA_MAX, Parity, Role, Unrecoverable};
use common::{Numbers, naive_pq};

/// A row and what is to be lost of it.
struct Row {
    data: Vec<Vec<u8>>,
    p: Vec<u8>,
    q: Vec<u8>,
}

impl Row {
    fn new(numbers: &mut Numbers, width: usize, len: usize) -> Row {
        let data = numbers.blocks(width, len);
        let (p, q) = naive_pq(&data, len);
        Row { data, p, q }
    }

    fn block(&self, role: Role) -> &[u8] {
        match role {
            Role::Data(i) => &self.data[i],
            Role::P => &self.p,
            Role::Q => &self.q,
        }
    }

    /// A block, empty where it is lost.
    fn left(&self, role: Role, lost: &[Role]) -> &[u8] {
        if lost.contains(&role) { &[] } else { self.block(role) }
    }

    /// Loses `lost`, gets it back, and looks; `raid5` has no Q. Also with only one of the blocks wanted, and with none.
    fn lose(&self, parity: Parity, lost: &[Role], raid5: bool) {
        let data: Vec<&[u8]> = (0..self.data.len()).map(|i| self.left(Role::Data(i), lost)).collect();
        let (p, q) = (self.left(Role::P, lost), if raid5 { &[] } else { self.left(Role::Q, lost) });
        for wanted in [lost, &[]].into_iter().chain(lost.chunks(1)) {
            let mut places = vec![vec![0xee; self.p.len()]; wanted.len()];
            parity.recover(&data, p, q, &mut named(wanted, &mut places)).expect("it can be recovered");
            for (role, place) in wanted.iter().zip(&places) {
                assert!(place == self.block(*role), "{parity:?}: {role:?} of {lost:?}, {} data", self.data.len());
            }
        }
    }

    fn roles(&self) -> Vec<Role> {
        (0..self.data.len()).map(Role::Data).chain([Role::P, Role::Q]).collect()
    }
}

/// Each role with its place.
fn named<'a>(roles: &[Role], places: &'a mut [Vec<u8>]) -> Vec<(Role, &'a mut [u8])> {
    roles.iter().copied().zip(places.iter_mut().map(Vec::as_mut_slice)).collect()
}

#[test]
fn all_single_and_double_losses() {
    let mut numbers = Numbers(11);
    let mut lost = 0;
    for width in (1..=8).chain([9, 13, 16, 21, 31, 32]) {
        let row = Row::new(&mut numbers, width, 307);
        let roles = row.roles();
        for parity in Parity::available() {
            row.lose(parity, &[], false);
            for a in &roles {
                row.lose(parity, &[*a], false);
                if *a != Role::Q {
                    row.lose(parity, &[*a], true);
                }
                // In both orders: the caller need not sort what is lost.
                for b in roles.iter().filter(|b| *b != a) {
                    row.lose(parity, &[*a, *b], false);
                    lost += 1;
                }
            }
        }
    }
    assert!(lost >= 2 * 1700, "{lost} pairs");
}

#[test]
fn wide_rows_lose_blocks_at_both_ends_and_between() {
    let mut numbers = Numbers(12);
    for width in [64, 126, DATA_MAX] {
        let row = Row::new(&mut numbers, width, 100);
        let roles = row.roles();
        for parity in Parity::available() {
            for _ in 0..200 {
                let (a, b) = (numbers.below(roles.len()), numbers.below(roles.len()));
                if a != b {
                    row.lose(parity, &[roles[a], roles[b]], false);
                }
            }
            row.lose(parity, &[Role::Data(0), Role::Data(width - 1)], false);
            row.lose(parity, &[Role::Data(width - 1), Role::Q], false);
        }
    }
}

#[test]
fn more_than_the_parity_that_is_left_is_refused_and_nothing_is_written() {
    let row = Row::new(&mut Numbers(14), 5, 64);
    let none: &[u8] = &[];
    let (p, q) = (&row.p[..], &row.q[..]);
    let (d0, d1, d2) = (Role::Data(0), Role::Data(1), Role::Data(2));
    struct Case<'a>(&'a [Role], &'a [u8], &'a [u8], Unrecoverable);
    let cases = [
        Case(&[d0], none, none, Unrecoverable { data_lost: 1, parity_left: 0 }),
        Case(&[d0, d1], p, none, Unrecoverable { data_lost: 2, parity_left: 1 }),
        Case(&[d0, d1], none, q, Unrecoverable { data_lost: 2, parity_left: 1 }),
        Case(&[d0, d1, d2], p, q, Unrecoverable { data_lost: 3, parity_left: 2 }),
        Case(&[d0, Role::P], none, none, Unrecoverable { data_lost: 1, parity_left: 0 }),
        Case(&[Role::Q, d1], none, none, Unrecoverable { data_lost: 1, parity_left: 0 }),
        Case(&[d0, Role::Q, d1], p, none, Unrecoverable { data_lost: 2, parity_left: 1 }),
    ];
    for parity in Parity::available() {
        for Case(lost, p, q, expected) in &cases {
            let data: Vec<&[u8]> = (0..5).map(|i| row.left(Role::Data(i), lost)).collect();
            let mut places = vec![vec![0xee; 64]; lost.len()];
            assert_eq!(parity.recover(&data, p, q, &mut named(lost, &mut places)), Err(*expected), "{lost:?}");
            assert!(places.iter().flatten().all(|byte| *byte == 0xee));
        }
    }
    let said = Unrecoverable { data_lost: 2, parity_left: 1 }.to_string();
    assert_eq!(said, "2 blocks of data are lost, and 1 of parity are left");
}

/// What is lost counts whether it is wanted or not: as zeros it would make an invention of what is.
#[test]
fn what_is_lost_and_not_wanted_counts() {
    let row = Row::new(&mut Numbers(15), 4, 64);
    let data: [&[u8]; 4] = [&row.data[0], &[], &[], &row.data[3]];
    for parity in Parity::available() {
        for wanted in [&[Role::Data(2)][..], &[Role::Data(1), Role::Q], &[Role::P], &[]] {
            let mut places = vec![vec![0xee; 64]; wanted.len()];
            let found = parity.recover(&data, &[], &row.q, &mut named(&wanted[..wanted.len().min(1)], &mut places));
            assert_eq!(found, Err(Unrecoverable { data_lost: 2, parity_left: 1 }), "{wanted:?}");
            assert!(places.iter().flatten().all(|byte| *byte == 0xee));
        }
    }
}

#[test]
fn what_is_wanted_and_not_lost_is_a_mistake_of_the_caller() {
    let row = Row::new(&mut Numbers(16), 3, 64);
    let refused = |wanted: &[Role], lost: &[Role], bytes: usize| {
        let data: Vec<&[u8]> = (0..3).map(|i| row.left(Role::Data(i), lost)).collect();
        let (p, q) = (row.left(Role::P, lost), row.left(Role::Q, lost));
        let mut places = vec![vec![0; bytes]; wanted.len()];
        let call = || Parity::best().recover(&data, p, q, &mut named(wanted, &mut places));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err(), "{wanted:?} of {lost:?}");
    };
    refused(&[Role::Data(1)], &[], 64);
    refused(&[Role::Data(3)], &[], 64);
    refused(&[Role::P], &[Role::Q], 64);
    refused(&[Role::Q], &[Role::P], 64);
    refused(&[Role::P, Role::P], &[Role::P], 64);
    refused(&[Role::Data(1)], &[Role::Data(1)], 63);
    refused(&[Role::Data(1)], &[Role::Data(1)], 0);
}
