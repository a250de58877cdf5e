//! Which implementation computes.

use std::fmt;
use std::sync::OnceLock;

use crate::simd::{self, Kernels};

/// The most blocks of data in a row: the powers of g begin again after 255.
pub const DATA_MAX: usize = 255;

/// An implementation of this crate's arithmetic. To copy it costs nothing.
#[derive(Clone, Copy)]
pub struct Parity {
    pub(crate) kernels: &'static Kernels,
}

impl Parity {
    /// The fastest one that this processor can run. Found out once.
    #[must_use]
    pub fn best() -> Parity {
        static BEST: OnceLock<Parity> = OnceLock::new();
        *BEST.get_or_init(|| Parity { kernels: simd::available().next().unwrap_or(simd::PORTABLE) })
    }

    /// All that this processor can run, the fastest first, the portable one last.
    pub fn available() -> impl Iterator<Item = Parity> {
        simd::available().map(|kernels| Parity { kernels })
    }

    /// `avx2`, `ssse3`, `neon` or `portable`.
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

/// Every block has `len` bytes, or none.
#[track_caller]
pub(crate) fn check_lengths(len: usize, blocks: &[&[u8]]) {
    assert!(blocks.len() <= DATA_MAX, "{} blocks in a row", blocks.len());
    for (index, block) in blocks.iter().enumerate() {
        assert!(block.is_empty() || block.len() == len, "block {index} has {} bytes, the row {len}", block.len());
    }
}
