//! Computes P and Q of a stripe, and updates them after a change of one block.

use crate::Parity;
use crate::field::power;
use crate::parity::{DATA_MAX, check_lengths};
use crate::simd::Rule;

impl Parity {
    /// Sets `out` to the XOR of `sources`: to P of a stripe's data, or, with raid5, to the lost block of the remaining blocks.
    ///
    /// # Panics
    /// If a source is neither empty nor as long as `out`, or if there are more than [`DATA_MAX`] sources.
    pub fn xor(self, out: &mut [u8], sources: &[&[u8]]) {
        check_lengths(out.len(), sources);
        (self.kernels.xor)(out, false, &[], sources);
    }

    /// XORs `sources` into `out`. If `out` is P and `sources` are the old and the new content of changed blocks, `out` becomes the new
    /// P.
    ///
    /// # Panics
    /// As [`Parity::xor`].
    pub fn xor_into(self, out: &mut [u8], sources: &[&[u8]]) {
        check_lengths(out.len(), sources);
        (self.kernels.xor)(out, true, &[], sources);
    }

    /// Computes P and Q of a stripe. `data[i]` has the coefficient g^i. An empty data block counts as zeros. An empty output is not
    /// computed.
    ///
    /// # Panics
    /// If blocks differ in length, or if there are more than [`DATA_MAX`] data blocks.
    pub fn pq(self, p: &mut [u8], q: &mut [u8], data: &[&[u8]]) {
        let len = p.len().max(q.len());
        check_lengths(len, data);
        (self.kernels.combine)(Rule::Encode, p, q, &[], &[], data);
    }

    /// Updates P and Q after data block `index` has changed from `old` to `new`: `p` ^= old ^ new, `q` ^= g^index · (old ^ new).
    ///
    /// If `p` or `q` is empty, it is not updated. If `old` or `new` is empty, it counts as zeros.
    ///
    /// # Panics
    /// If nonempty blocks differ in length, or if `index` is not below [`DATA_MAX`].
    pub fn update(self, p: &mut [u8], q: &mut [u8], index: usize, old: &[u8], new: &[u8]) {
        assert!(index < DATA_MAX, "data block {index} of a stripe");
        let len = p.len().max(q.len());
        check_lengths(len, &[p, q, old, new]);
        (self.kernels.update)(p, q, power(index), old, new);
    }
}
