//! States of the extents that an export's maps report.
//!
//! NBD sends them as they are: [`state`] in the context `base:allocation`, [`difference`] in the contexts
//! `braid:diff:NAME`. Their values must not change.

/// States of an extent in an export's allocation map.
pub mod state {
    /// Not allocated.
    pub const HOLE: u32 = 1;
    /// Reads as zeros.
    pub const ZERO: u32 = 1 << 1;
}

/// States of an extent in a difference.
pub mod difference {
    /// The content has changed.
    pub const CHANGED: u32 = 1;
    /// The content reads as zeros now; set where that is known.
    pub const ZERO: u32 = 1 << 1;
}
