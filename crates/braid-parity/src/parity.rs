//! Selection of an implementation.

use std::fmt;
use std::sync::OnceLock;

use crate::simd::{self, Kernels};

/// The maximum number of data blocks in a stripe: the powers of g repeat after 255.
pub const DATA_MAX: usize = 255;

/// An implementation of this crate's arithmetic. Cheap to copy.
#[derive(Clone, Copy)]
pub struct Parity {
    pub(crate) kernels: &'static Kernels,
}

impl Parity {
    /// Returns the fastest implementation that this processor can run. The processor is examined once.
    #[must_use]
    pub fn best() -> Parity {
        static BEST: OnceLock<Parity> = OnceLock::new();
        *BEST.get_or_init(|| Parity { kernels: simd::available().next().unwrap_or(simd::PORTABLE) })
    }

    /// Returns all implementations that this processor can run, the fastest first, the portable one last.
    pub fn available() -> impl Iterator<Item = Parity> {
        simd::available().map(|kernels| Parity { kernels })
    }

    /// Returns the name of the implementation: `avx2`, `ssse3`, `neon` or `portable`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.kernels.name
    }
}

impl fmt::Debug for Parity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Parity").field(&self.name()).finish()
    }
}

/// Panics if a block has neither `len` bytes nor none, or if there are more than [`DATA_MAX`] blocks.
#[track_caller]
pub(crate) fn check_lengths(len: usize, blocks: &[&[u8]]) {
    assert!(blocks.len() <= DATA_MAX, "{} blocks in a stripe", blocks.len());
    for (index, block) in blocks.iter().enumerate() {
        assert!(block.is_empty() || block.len() == len, "block {index} has {} bytes, the stripe {len}", block.len());
    }
}
