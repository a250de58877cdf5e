//! The vector operations that the loops use.

use crate::field::NIBBLES;

/// A vector of bytes, each an element of the field.
///
/// # Safety
/// For all functions, the processor must have the instructions of this vector type. For `load` and `store`, [`Vector::BYTES`]
/// bytes at the address must also be valid for reading or writing. The address need not be aligned.
pub(crate) trait Vector: Copy {
    /// Size of the vector, in bytes.
    const BYTES: usize;

    /// A factor, prepared for [`Vector::multiply`].
    type Factor: Copy;

    unsafe fn zero() -> Self;
    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn or(self, other: Self) -> Self;
    unsafe fn is_zero(self) -> bool;
    /// Multiplies each byte by g.
    unsafe fn double(self) -> Self;
    unsafe fn factor(value: u8) -> Self::Factor;
    /// Multiplies each byte by the factor.
    unsafe fn multiply(self, factor: Self::Factor) -> Self;
}

/// A single byte, for the remainder of a block.
#[derive(Clone, Copy)]
pub(crate) struct Byte(u8);

impl Vector for Byte {
    const BYTES: usize = 1;
    type Factor = &'static [u8; 32];

    #[inline(always)]
    unsafe fn zero() -> Byte {
        Byte(0)
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Byte {
        // SAFETY: guaranteed by the caller.
        Byte(unsafe { from.read() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: guaranteed by the caller.
        unsafe { to.write(self.0) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Byte) -> Byte {
        Byte(self.0 ^ other.0)
    }

    #[inline(always)]
    unsafe fn or(self, other: Byte) -> Byte {
        Byte(self.0 | other.0)
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        self.0 == 0
    }

    #[inline(always)]
    unsafe fn double(self) -> Byte {
        Byte((self.0 << 1) ^ ((self.0 >> 7) * crate::field::POLYNOMIAL))
    }

    #[inline(always)]
    unsafe fn factor(value: u8) -> &'static [u8; 32] {
        &NIBBLES[usize::from(value)]
    }

    #[inline(always)]
    unsafe fn multiply(self, factor: &'static [u8; 32]) -> Byte {
        Byte(factor[usize::from(self.0 & 15)] ^ factor[16 + usize::from(self.0 >> 4)])
    }
}
