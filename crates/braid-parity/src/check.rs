//! Checks a stripe against its parity, and finds the damaged block.

use crate::Parity;
use crate::field::{inverse, logarithm, multiply, power};
use crate::parity::check_lengths;

/// The damage of a stripe with P and Q, as [`Parity::check`] finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StripeDamage {
    /// None: the data agrees with P and Q.
    None,
    /// P is damaged: the data agrees with Q.
    P,
    /// Q is damaged: the data agrees with P.
    Q,
    /// The data block with this index is damaged: only a change of this block makes the stripe agree with both P and Q.
    Data(usize),
    /// At least two blocks are damaged: no change of a single block makes the stripe agree with both P and Q.
    Multiple,
}

impl Parity {
    /// Returns whether P is the XOR of the data. An empty data block counts as zeros.
    ///
    /// # Panics
    /// If a data block is neither empty nor as long as `p`, or if there are more than [`crate::DATA_MAX`] data blocks.
    #[must_use]
    pub fn agrees(self, p: &[u8], data: &[&[u8]]) -> bool {
        check_lengths(p.len(), data);
        !(self.kernels.syndromes)(0, p, &[], data).of_p
    }

    /// Finds the damaged block of a stripe.
    ///
    /// If a single block is damaged, at any number of its bytes, the result is always that block. If two or more blocks are
    /// damaged, the result is usually [`StripeDamage::Multiple`], but it can be a single block, even an intact one. If two blocks of a
    /// stripe with *n* data blocks are damaged at random at the same single byte offset, the probability of this is about
    /// *n* / 255. Each further byte offset at which both are damaged at random multiplies it by about 1 / 255. Blocks should
    /// therefore be as long as the unit of damage (4 KiB), and not longer: two damaged blocks at different offsets of a chunk are
    /// then two stripes with one damaged block each.
    ///
    /// # Panics
    /// If `p`, `q` and the data blocks differ in length (a data block may be empty: it counts as zeros), or if there are more than
    /// [`crate::DATA_MAX`] data blocks.
    #[must_use]
    pub fn check(self, p: &[u8], q: &[u8], data: &[&[u8]]) -> StripeDamage {
        assert_eq!(p.len(), q.len(), "the lengths of P and Q");
        check_lengths(p.len(), data);
        let found = (self.kernels.syndromes)(0, p, q, data);
        match (found.of_p, found.of_q) {
            (false, false) => StripeDamage::None,
            (true, false) => StripeDamage::P,
            (false, true) => StripeDamage::Q,
            (true, true) => self.find_damaged_data(p, q, data),
        }
    }

    /// Finds the damaged data block of a stripe that agrees neither with P nor with Q. An error e in a byte of D*i* gives the P
    /// syndrome e and the Q syndrome g^i · e: the first byte with an error gives the candidate i, and all other bytes must agree.
    fn find_damaged_data(self, p: &[u8], q: &[u8], data: &[&[u8]]) -> StripeDamage {
        let candidate = (0..p.len()).find_map(|at| {
            let bytes = data.iter().enumerate().filter(|(_, block)| !block.is_empty());
            let (of_p, of_q) = bytes.fold((p[at], q[at]), |(of_p, of_q), (i, block)| {
                (of_p ^ block[at], of_q ^ multiply(power(i), block[at]))
            });
            match (of_p, of_q) {
                (0, 0) => None,
                (0, _) | (_, 0) => Some(usize::MAX),
                _ => Some(usize::from(logarithm(multiply(of_q, inverse(of_p))))),
            }
        });
        match candidate {
            // No data block has this index, or the block is empty: it counts as zeros, and cannot be damaged.
            Some(i) if data.get(i).is_none_or(|block| block.is_empty()) => StripeDamage::Multiple,
            Some(i) if !(self.kernels.syndromes)(power(i), p, q, data).ratio_differs => StripeDamage::Data(i),
            _ => StripeDamage::Multiple,
        }
    }
}
