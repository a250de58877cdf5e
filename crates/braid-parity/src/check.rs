//! Whether a row agrees with its parity, and which block is wrong where it does not.

use crate::Parity;
use crate::field::{inverse, logarithm, multiply, power};
use crate::parity::check_lengths;

/// What is wrong with a row that has P and Q, if its damage is in a single block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Nothing: data, P and Q agree.
    None,
    /// P alone: the data agrees with Q.
    P,
    /// Q alone: the data agrees with P.
    Q,
    /// The block of data with this index: with any other content of it, the row cannot agree with both P and Q.
    Data(usize),
    /// More than one block.
    Several,
}

impl Parity {
    /// Whether P is the XOR of the data.
    ///
    /// # Panics
    /// When blocks differ in length, or there are more than [`crate::DATA_MAX`].
    #[must_use]
    pub fn agrees(self, p: &[u8], data: &[&[u8]]) -> bool {
        check_lengths(p.len(), data);
        !(self.kernels.syndromes)(0, p, &[], data).of_p
    }

    /// Which block of a row is wrong.
    ///
    /// Where one block is, however many of its bytes, it is named for sure. Where several are, one that is right can be named
    /// instead of [`Damage::Several`]: of damage at one byte, with a chance of about one in 255 / blocks of data; each further
    /// byte that is damaged makes it as much less likely again. So give blocks as long as what is written at once (4 KiB), not
    /// longer: two wrong blocks in different places of a chunk are two rows with one wrong block each.
    ///
    /// # Panics
    /// When `p`, `q` and the blocks of data differ in length (data can be empty: it counts as zeros), or there are more than
    /// [`crate::DATA_MAX`].
    #[must_use]
    pub fn check(self, p: &[u8], q: &[u8], data: &[&[u8]]) -> Damage {
        assert_eq!(p.len(), q.len(), "the lengths of P and Q");
        check_lengths(p.len(), data);
        let found = (self.kernels.syndromes)(0, p, q, data);
        match (found.of_p, found.of_q) {
            (false, false) => Damage::None,
            (true, false) => Damage::P,
            (false, true) => Damage::Q,
            (true, true) => self.wrong_data(p, q, data),
        }
    }

    /// A wrong byte e in D*i* leaves e in P and g^i · e in Q: the first such byte suggests i, all others have to agree.
    fn wrong_data(self, p: &[u8], q: &[u8], data: &[&[u8]]) -> Damage {
        let suggested = (0..p.len()).find_map(|at| {
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
        match suggested {
            // One that is not there is zeros, and cannot be wrong.
            Some(i) if data.get(i).is_none_or(|block| block.is_empty()) => Damage::Several,
            Some(i) if !(self.kernels.syndromes)(power(i), p, q, data).apart => Damage::Data(i),
            _ => Damage::Several,
        }
    }
}
