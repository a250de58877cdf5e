//! The loops over blocks, for each instruction set.
//!
//! [`kernels`] defines the computations once, over any vector type, and [`vector`] defines the operations of a vector type. One
//! file for each instruction set implements these operations and compiles the loops for it. All `unsafe` code of this crate is
//! in this module, for two reasons: vector instructions that a processor may lack, and access through raw pointers. For the
//! first reason, [`available`] returns a [`Kernels`] table only if the processor has its instructions. For the second, each loop
//! stays below the common length of the blocks, which the safe functions of this crate check and `kernels.rs` checks again.

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

/// How the outputs `first` and `second` of [`Kernels::combine`] are computed.
///
/// P' is the XOR of the nonempty data blocks, plus `p` unless that is empty; Q' is the weighted sum of the same blocks,
/// plus `q` unless that is empty. In GF(2^8), addition is XOR.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// Computes P and Q: `first` = P', `second` = Q'.
    Encode,
    /// Recovers two lost data blocks: `first` = of_p · P' + of_q · Q', `second` = P' + `first`.
    TwoData { of_p: u8, of_q: u8 },
    /// Recovers a lost data block with coefficient 1 / factor, and P: `first` = factor · Q', `second` = P' + `first`.
    DataAndP { factor: u8 },
    /// Recovers a lost data block with coefficient factor, and Q: `first` = P', `second` = Q' + factor · `first`.
    DataAndQ { factor: u8 },
}

/// Properties of the syndromes over all bytes of a stripe. Here P' and Q' are the sums over the data blocks alone, and
/// P and Q the stored parity blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Syndromes {
    /// P + P' is nonzero at some byte.
    pub of_p: bool,
    /// Q + Q' is nonzero at some byte.
    pub of_q: bool,
    /// Q + Q' differs from factor · (P + P') at some byte.
    pub ratio_differs: bool,
}

/// `(out, accumulate, extra, sources)`: sets `out` to the sum of `sources`, of `extra` and, if `accumulate`, of its old content.
pub(crate) type XorFn = fn(&mut [u8], bool, &[u8], &[&[u8]]);
/// `(rule, first, second, p, q, data)`: computes `first` and `second` by the [`Rule`].
pub(crate) type CombineFn = fn(Rule, &mut [u8], &mut [u8], &[u8], &[u8], &[&[u8]]);
/// `(p, q, factor, old, new)`: updates `p` and `q` after the data block with the coefficient `factor` has changed from
/// `old` to `new`.
pub(crate) type UpdateFn = fn(&mut [u8], &mut [u8], u8, &[u8], &[u8]);
/// `(factor, p, q, data)`: returns the properties of the syndromes. `factor` is only for [`Syndromes::ratio_differs`].
pub(crate) type SyndromesFn = fn(u8, &[u8], &[u8], &[&[u8]]) -> Syndromes;

/// The loops of one implementation. All slices of a call have the same length or are empty.
pub(crate) struct Kernels {
    pub name: &'static str,
    pub xor: XorFn,
    pub combine: CombineFn,
    pub update: UpdateFn,
    pub syndromes: SyndromesFn,
}

/// The implementation that every processor can run.
pub(crate) const PORTABLE: &Kernels = &portable::KERNELS;

/// Returns the implementations that this processor can run, the fastest first.
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
