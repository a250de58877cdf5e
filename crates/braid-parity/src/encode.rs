//! P and Q of a row, and what a change of one block makes of them.

use crate::Parity;
use crate::field::power;
use crate::parity::{DATA_MAX, check_lengths};
use crate::simd::Rule;

impl Parity {
    /// `out` = the XOR of `sources`: P of a row, or what is lost at raid5, of all that is left.
    ///
    /// # Panics
    /// When a source is neither empty nor as long as `out`, or there are more than [`DATA_MAX`].
    pub fn xor(self, out: &mut [u8], sources: &[&[u8]]) {
        check_lengths(out.len(), sources);
        (self.kernels.xor)(out, false, &[], sources);
    }

    /// `out` ^= the XOR of `sources`: P after changes, of P before them and each block before and after.
    ///
    /// # Panics
    /// As [`Parity::xor`].
    pub fn xor_into(self, out: &mut [u8], sources: &[&[u8]]) {
        check_lengths(out.len(), sources);
        (self.kernels.xor)(out, true, &[], sources);
    }

    /// P and Q of a row. `data[i]` has the coefficient g^i; empty, it counts as zeros. Either output can be empty: then it is
    /// not computed.
    ///
    /// # Panics
    /// When blocks differ in length, or there are more than [`DATA_MAX`].
    pub fn pq(self, p: &mut [u8], q: &mut [u8], data: &[&[u8]]) {
        let len = p.len().max(q.len());
        check_lengths(len, data);
        (self.kernels.combine)(Rule::Encode, p, q, &[], &[], data);
    }

    /// P and Q after data block `index` changed from `old` to `new`: `p` ^= old ^ new, `q` ^= g^index · (old ^ new).
    ///
    /// Each of `p`, `q` can be empty: then it is not changed. `old` or `new` can be empty: then it counts as zeros.
    ///
    /// # Panics
    /// When blocks differ in length, or `index` is not below [`DATA_MAX`].
    pub fn update(self, p: &mut [u8], q: &mut [u8], index: usize, old: &[u8], new: &[u8]) {
        assert!(index < DATA_MAX, "data block {index} of a row");
        let len = p.len().max(q.len());
        check_lengths(len, &[p, q, old, new]);
        (self.kernels.update)(p, q, power(index), old, new);
    }
}
