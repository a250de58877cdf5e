//! Implementation for NEON, with vectors of 16 bytes.

use std::arch::aarch64::*;

use super::kernels::{self, table};
use super::vector::Vector;
use crate::field::{NIBBLES, POLYNOMIAL};

#[derive(Clone, Copy)]
pub(super) struct Neon(uint8x16_t);

// SAFETY of all blocks below: the callers guarantee that the processor has NEON, and that 16 bytes at each address are valid.
impl Vector for Neon {
    const BYTES: usize = 16;
    /// The products with the low and with the high four bits.
    type Factor = (uint8x16_t, uint8x16_t);

    #[inline(always)]
    unsafe fn zero() -> Neon {
        // SAFETY: as above.
        Neon(unsafe { vdupq_n_u8(0) })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Neon {
        // SAFETY: as above.
        Neon(unsafe { vld1q_u8(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: as above.
        unsafe { vst1q_u8(to, self.0) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Neon) -> Neon {
        // SAFETY: as above.
        Neon(unsafe { veorq_u8(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn or(self, other: Neon) -> Neon {
        // SAFETY: as above.
        Neon(unsafe { vorrq_u8(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: as above.
        unsafe { vmaxvq_u8(self.0) == 0 }
    }

    #[inline(always)]
    unsafe fn double(self) -> Neon {
        // SAFETY: as above.
        unsafe {
            // Bytes that are negative as signed numbers overflow. The arithmetic shift copies their sign to all bits.
            let overflow = vreinterpretq_u8_s8(vshrq_n_s8::<7>(vreinterpretq_s8_u8(self.0)));
            let reduction = vandq_u8(overflow, vdupq_n_u8(POLYNOMIAL));
            Neon(veorq_u8(vshlq_n_u8::<1>(self.0), reduction))
        }
    }

    #[inline(always)]
    unsafe fn factor(value: u8) -> (uint8x16_t, uint8x16_t) {
        let table = NIBBLES[usize::from(value)].as_ptr();
        // SAFETY: as above; a table has 32 bytes.
        unsafe { (vld1q_u8(table), vld1q_u8(table.add(16))) }
    }

    #[inline(always)]
    unsafe fn multiply(self, factor: (uint8x16_t, uint8x16_t)) -> Neon {
        // SAFETY: as above.
        unsafe {
            let low = vqtbl1q_u8(factor.0, vandq_u8(self.0, vdupq_n_u8(15)));
            let high = vqtbl1q_u8(factor.1, vshrq_n_u8::<4>(self.0));
            Neon(veorq_u8(low, high))
        }
    }
}

table!(Neon, "neon", "neon");
