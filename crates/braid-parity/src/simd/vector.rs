//! What the loops need of a vector of bytes.

use crate::field::NIBBLES;

/// Bytes that are computed with together, each an element of the field.
///
/// # Safety
/// All functions: the processor has the instructions of this kind of vector. `load` and `store` also: [`Vector::BYTES`] bytes
/// at the address, which need not be aligned, may be read or written.
pub(crate) trait Vector: Copy {
    /// How many bytes.
    const BYTES: usize;

    /// What [`Vector::multiply`] needs to know of a factor.
    type Factor: Copy;

    unsafe fn zero() -> Self;
    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn or(self, other: Self) -> Self;
    unsafe fn is_zero(self) -> bool;
    /// Each byte times g.
    unsafe fn double(self) -> Self;
    unsafe fn factor(value: u8) -> Self::Factor;
    /// Each byte times the factor.
    unsafe fn multiply(self, factor: Self::Factor) -> Self;
}

/// A single byte, for what is left at the end.
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
        // SAFETY: the caller's promise.
        Byte(unsafe { from.read() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise.
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
