//! Recovers the lost blocks of a stripe from the remaining ones.

use std::fmt;

use crate::Parity;
use crate::field::{inverse, multiply, negative_power, power};
use crate::parity::check_lengths;
use crate::simd::Rule;

/// The role of a block in its stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockRole {
    /// The data block with the coefficient g^i.
    Data(usize),
    /// The XOR of the data.
    P,
    /// The sum of the data blocks, each multiplied by its coefficient.
    Q,
}

/// The error of a recovery: more data blocks are lost than parity blocks remain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unrecoverable {
    /// The number of lost data blocks.
    pub data_lost: usize,
    /// The number of remaining parity blocks.
    pub parity_remaining: usize,
}

impl fmt::Display for Unrecoverable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unrecoverable { data_lost, parity_remaining: parity_left } = self;
        write!(f, "{data_lost} data blocks are lost, and {parity_left} parity blocks remain")
    }
}

impl std::error::Error for Unrecoverable {}

impl Parity {
    /// Computes lost blocks of a stripe from the remaining ones.
    ///
    /// `data` holds the data blocks of the stripe in the order of the coefficients; a lost block is empty. `p` and `q` are empty if
    /// they are lost or do not exist (raid5 has no Q). `wanted` lists, in any order, the lost blocks to compute and their outputs:
    /// data blocks, and P and Q if they are empty. A lost block that is not wanted need not be listed.
    ///
    /// # Errors
    /// More data blocks are lost than parity blocks remain. No output is written in this case.
    ///
    /// # Panics
    /// If blocks differ in length, if there are more than [`crate::DATA_MAX`] data blocks, or if a role in `wanted` is repeated, does
    /// not exist, or is not lost.
    pub fn recover(
        self,
        data: &[&[u8]],
        p: &[u8],
        q: &[u8],
        wanted: &mut [(BlockRole, &mut [u8])],
    ) -> Result<(), Unrecoverable> {
        if check_blocks(data, p, q, wanted) == 0 {
            return Ok(());
        }
        let (mut lost, mut data_lost) = ([0; 2], 0);
        for (i, _) in data.iter().enumerate().filter(|(_, block)| block.is_empty()) {
            if data_lost < lost.len() {
                lost[data_lost] = i;
            }
            data_lost += 1;
        }
        let parity_left = usize::from(!p.is_empty()) + usize::from(!q.is_empty());
        if data_lost > parity_left {
            return Err(Unrecoverable { data_lost, parity_remaining: parity_left });
        }
        let [x, y] = lost;
        let (mut out_x, mut out_y, mut out_p, mut out_q): Outputs = Default::default();
        for (role, out) in wanted {
            match role {
                BlockRole::P => out_p = out,
                BlockRole::Q => out_q = out,
                BlockRole::Data(i) if *i == x => out_x = out,
                BlockRole::Data(_) => out_y = out,
            }
        }
        let (xor, combine) = (self.kernels.xor, self.kernels.combine);
        match data_lost {
            0 if out_q.is_empty() => xor(out_p, false, &[], data),
            0 => combine(Rule::Encode, out_p, out_q, &[], &[], data),
            1 if p.is_empty() => {
                combine(Rule::DataAndP { factor: negative_power(x) }, out_x, out_p, &[], q, data);
            }
            1 if out_q.is_empty() => xor(out_x, false, p, data),
            1 => combine(Rule::DataAndQ { factor: power(x) }, out_x, out_q, p, &[], data),
            _ => {
                // P and Q without the remaining data are Dx + Dy and g^x Dx + g^y Dy: two equations with two unknowns.
                let determinant = inverse(power(x) ^ power(y));
                let rule = Rule::TwoData { of_p: multiply(power(y), determinant), of_q: determinant };
                combine(rule, out_x, out_y, p, q, data);
            }
        }
        Ok(())
    }
}

/// The outputs of two data blocks, P and Q. An output is empty if it is not wanted.
type Outputs<'a> = (&'a mut [u8], &'a mut [u8], &'a mut [u8], &'a mut [u8]);

/// Panics if the blocks are invalid for a recovery, else returns the length of the blocks, in bytes.
#[track_caller]
fn check_blocks(data: &[&[u8]], p: &[u8], q: &[u8], wanted: &[(BlockRole, &mut [u8])]) -> usize {
    let input_lens = data.iter().chain([&p, &q]).map(|block| block.len());
    let len = input_lens.chain(wanted.iter().map(|(_, out)| out.len())).max().unwrap_or(0);
    check_lengths(len, data);
    check_lengths(len, &[p, q]);
    for (index, (role, out)) in wanted.iter().enumerate() {
        let given = match role {
            BlockRole::Data(i) => data[*i],
            BlockRole::P => p,
            BlockRole::Q => q,
        };
        assert!(given.is_empty(), "{role:?} is wanted and given");
        assert!(out.len() == len, "the output for {role:?} has {} bytes, the stripe {len}", out.len());
        assert!(wanted[..index].iter().all(|(before, _)| before != role), "{role:?} is named twice");
    }
    len
}
