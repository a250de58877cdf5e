//! Implementation for SSSE3, with vectors of 16 bytes.

use std::arch::x86_64::*;

use super::kernels::{self, table};
use super::vector::Vector;
use crate::field::{NIBBLES, POLYNOMIAL};

#[derive(Clone, Copy)]
pub(super) struct Ssse3(__m128i);

// SAFETY of all blocks below: the callers guarantee that the processor has SSSE3, and that 16 bytes at each address are valid.
impl Vector for Ssse3 {
    const BYTES: usize = 16;
    /// The products with the low and with the high four bits.
    type Factor = (__m128i, __m128i);

    #[inline(always)]
    unsafe fn zero() -> Ssse3 {
        // SAFETY: as above.
        Ssse3(unsafe { _mm_setzero_si128() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Ssse3 {
        // SAFETY: as above.
        Ssse3(unsafe { _mm_loadu_si128(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: as above.
        unsafe { _mm_storeu_si128(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Ssse3) -> Ssse3 {
        // SAFETY: as above.
        Ssse3(unsafe { _mm_xor_si128(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn or(self, other: Ssse3) -> Ssse3 {
        // SAFETY: as above.
        Ssse3(unsafe { _mm_or_si128(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: as above.
        unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(self.0, _mm_setzero_si128())) == 0xffff }
    }

    #[inline(always)]
    unsafe fn double(self) -> Ssse3 {
        // SAFETY: as above.
        unsafe {
            // Bytes that are negative as signed numbers overflow.
            let overflow = _mm_cmpgt_epi8(_mm_setzero_si128(), self.0);
            let reduction = _mm_and_si128(overflow, _mm_set1_epi8(POLYNOMIAL as i8));
            Ssse3(_mm_xor_si128(_mm_add_epi8(self.0, self.0), reduction))
        }
    }

    #[inline(always)]
    unsafe fn factor(value: u8) -> (__m128i, __m128i) {
        let table = NIBBLES[usize::from(value)].as_ptr();
        // SAFETY: as above; a table has 32 bytes.
        unsafe { (_mm_loadu_si128(table.cast()), _mm_loadu_si128(table.add(16).cast())) }
    }

    #[inline(always)]
    unsafe fn multiply(self, factor: (__m128i, __m128i)) -> Ssse3 {
        // SAFETY: as above.
        unsafe {
            let mask = _mm_set1_epi8(15);
            let low = _mm_shuffle_epi8(factor.0, _mm_and_si128(self.0, mask));
            let high = _mm_shuffle_epi8(factor.1, _mm_and_si128(_mm_srli_epi64(self.0, 4), mask));
            Ssse3(_mm_xor_si128(low, high))
        }
    }
}

table!(Ssse3, "ssse3", "ssse3");
