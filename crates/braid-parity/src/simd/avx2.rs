//! Implementation for AVX2, with vectors of 32 bytes.

use std::arch::x86_64::*;

use super::kernels::{self, table};
use super::vector::Vector;
use crate::field::{NIBBLES, POLYNOMIAL};

#[derive(Clone, Copy)]
pub(super) struct Avx2(__m256i);

// SAFETY of all blocks below: the callers guarantee that the processor has AVX2, and that 32 bytes at each address are valid.
impl Vector for Avx2 {
    const BYTES: usize = 32;
    /// The products with the low and with the high four bits, in both halves.
    type Factor = (__m256i, __m256i);

    #[inline(always)]
    unsafe fn zero() -> Avx2 {
        // SAFETY: as above.
        Avx2(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Avx2 {
        // SAFETY: as above.
        Avx2(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Avx2) -> Avx2 {
        // SAFETY: as above.
        Avx2(unsafe { _mm256_xor_si256(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn or(self, other: Avx2) -> Avx2 {
        // SAFETY: as above.
        Avx2(unsafe { _mm256_or_si256(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: as above.
        unsafe { _mm256_testz_si256(self.0, self.0) == 1 }
    }

    #[inline(always)]
    unsafe fn double(self) -> Avx2 {
        // SAFETY: as above.
        unsafe {
            // Bytes that are negative as signed numbers overflow.
            let overflow = _mm256_cmpgt_epi8(_mm256_setzero_si256(), self.0);
            let reduction = _mm256_and_si256(overflow, _mm256_set1_epi8(POLYNOMIAL as i8));
            Avx2(_mm256_xor_si256(_mm256_add_epi8(self.0, self.0), reduction))
        }
    }

    #[inline(always)]
    unsafe fn factor(value: u8) -> (__m256i, __m256i) {
        let table = NIBBLES[usize::from(value)].as_ptr();
        // SAFETY: as above; a table has 32 bytes.
        unsafe {
            let (low, high) = (_mm_loadu_si128(table.cast()), _mm_loadu_si128(table.add(16).cast()));
            (_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high))
        }
    }

    #[inline(always)]
    unsafe fn multiply(self, factor: (__m256i, __m256i)) -> Avx2 {
        // SAFETY: as above.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            let low = _mm256_shuffle_epi8(factor.0, _mm256_and_si256(self.0, mask));
            let high = _mm256_shuffle_epi8(factor.1, _mm256_and_si256(_mm256_srli_epi64(self.0, 4), mask));
            Avx2(_mm256_xor_si256(low, high))
        }
    }
}

table!(Avx2, "avx2", "avx2");
