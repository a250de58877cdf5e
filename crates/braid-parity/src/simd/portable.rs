//! Implementation for any processor, with four 64-bit words at a time, which compilers can vectorize.

use super::kernels::{self, table};
use super::vector::Vector;
use crate::field::POLYNOMIAL;

const LANES: usize = 4;
const LOW_BITS: u64 = 0x0101_0101_0101_0101;

#[derive(Clone, Copy)]
pub(super) struct Words([u64; LANES]);

/// Multiplies each of the eight bytes by g: shifts it, and subtracts the polynomial if a bit overflows.
#[inline(always)]
fn double(word: u64) -> u64 {
    let overflow = word >> 7 & LOW_BITS;
    (word & !(LOW_BITS << 7)) << 1 ^ ((overflow << 8).wrapping_sub(overflow) & (LOW_BITS * POLYNOMIAL as u64))
}

impl Vector for Words {
    const BYTES: usize = 8 * LANES;
    type Factor = u8;

    #[inline(always)]
    unsafe fn zero() -> Words {
        Words([0; LANES])
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Words {
        // SAFETY: guaranteed by the caller; any bytes are words.
        Words(unsafe { from.cast::<[u64; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: guaranteed by the caller.
        unsafe { to.cast::<[u64; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Words) -> Words {
        Words(std::array::from_fn(|i| self.0[i] ^ other.0[i]))
    }

    #[inline(always)]
    unsafe fn or(self, other: Words) -> Words {
        Words(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        self.0 == [0; LANES]
    }

    #[inline(always)]
    unsafe fn double(self) -> Words {
        Words(self.0.map(double))
    }

    #[inline(always)]
    unsafe fn factor(value: u8) -> u8 {
        value
    }

    #[inline(always)]
    unsafe fn multiply(self, factor: u8) -> Words {
        // The sum of the doublings whose bits are set in the factor.
        let (mut sum, mut doubled) = ([0; LANES], self.0);
        for bit in 0..8 {
            let mask = 0u64.wrapping_sub(u64::from(factor >> bit & 1));
            for lane in 0..LANES {
                sum[lane] ^= doubled[lane] & mask;
            }
            doubled = doubled.map(double);
        }
        Words(sum)
    }
}

table!(Words, "portable");
