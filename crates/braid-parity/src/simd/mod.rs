//! The loops over bytes, for each kind of processor.
//!
//! [`kernels`] says once what is computed, over vectors of any kind; [`vector`] what such a vector can do. A file for each
//! kind says how, and compiles the loops for it. Everything that is `unsafe` in this crate is here, for two reasons: vector
//! instructions that a processor may lack, and reading and writing at addresses. The first is why a table of [`Kernels`] is
//! given out only where the processor has what it needs; the second why each loop stays below the common length of the blocks,
//! which the safe functions of this crate have checked and `kernels.rs` checks again.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
mod kernels;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod ssse3;
mod vector;

/// What is computed from the sums over the data that is there, P' and Q', with given `p` and `q` added (where they are not
/// empty).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// `first` = P', `second` = Q'.
    Encode,
    /// `first` = of_p · P' + of_q · Q', `second` = P' + `first`.
    TwoData { of_p: u8, of_q: u8 },
    /// `first` = factor · Q', `second` = P' + `first`.
    DataAndP { factor: u8 },
    /// `first` = P', `second` = Q' + factor · `first`.
    DataAndQ { factor: u8 },
}

/// What P + P' and Q + Q' are like, all bytes together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Syndromes {
    /// P + P' is not zero everywhere.
    pub of_p: bool,
    /// Q + Q' is not zero everywhere.
    pub of_q: bool,
    /// They differ somewhere by more than the factor.
    pub apart: bool,
}

/// `(out, keep, extra, sources)`: the sum of `sources`, `extra`, and what was in `out` if `keep`.
pub(crate) type Xor = fn(&mut [u8], bool, &[u8], &[&[u8]]);
/// `(rule, first, second, p, q, data)`.
pub(crate) type Combine = fn(Rule, &mut [u8], &mut [u8], &[u8], &[u8], &[&[u8]]);
/// `(p, q, factor, old, new)`.
pub(crate) type Update = fn(&mut [u8], &mut [u8], u8, &[u8], &[u8]);
/// `(factor, p, q, data)`.
pub(crate) type Check = fn(u8, &[u8], &[u8], &[&[u8]]) -> Syndromes;

/// The loops of one implementation. A slice is as long as the others of its call, or empty.
pub(crate) struct Kernels {
    pub name: &'static str,
    pub xor: Xor,
    pub combine: Combine,
    pub update: Update,
    pub syndromes: Check,
}

/// What every processor can run.
pub(crate) const PORTABLE: &Kernels = &portable::KERNELS;

/// What this processor can run, the fastest first.
pub(crate) fn available() -> impl Iterator<Item = &'static Kernels> {
    #[cfg(target_arch = "x86_64")]
    let native = [
        std::is_x86_feature_detected!("avx2").then_some(&avx2::KERNELS),
        std::is_x86_feature_detected!("ssse3").then_some(&ssse3::KERNELS),
    ];
    #[cfg(target_arch = "aarch64")]
    let native = [std::arch::is_aarch64_feature_detected!("neon").then_some(&neon::KERNELS)];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let native: [Option<&'static Kernels>; 0] = [];
    native.into_iter().flatten().chain([PORTABLE])
}
