//! The findings of a check or repair, and where one starts: what orders and jobs know of it.

use std::collections::BTreeMap;

use braid_engine::COMPARE_BLOCK_BYTES;

/// The unit of the counts in [`Findings`], in bytes.
pub const FINDINGS_BLOCK_BYTES: u64 = COMPARE_BLOCK_BYTES;
/// Maximum number of offsets kept in [`Findings::offsets`].
pub const FINDING_OFFSETS_MAX: usize = 64;

/// What a check or repair has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// Blocks of 4 KiB of which at least two copies were compared.
    pub compared_blocks: u64,
    /// Blocks of 4 KiB that were written and could not be compared: fewer than two of their copies, or not all cells of
    /// their stripe, are in sync.
    pub uncompared_blocks: u64,
    /// Blocks of 4 KiB whose copies differed.
    pub differing_blocks: u64,
    /// Blocks of 4 KiB that a repair has made equal.
    pub repaired_blocks: u64,
    /// Blocks of 4 KiB with a copy that could neither be read nor be rewritten from another copy.
    pub unreadable_blocks: u64,
    /// Array offsets in bytes of the first differing and unreadable blocks; at most [`FINDING_OFFSETS_MAX`].
    pub offsets: Vec<u64>,
    /// At raid6, where the wrong cell can be identified: how many of the differing blocks each member had wrong.
    pub wrong_blocks: BTreeMap<u16, u64>,
}

/// Where a check starts, and with which options.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckFrom {
    /// Repair differences: by the majority of the copies, else by the first member in sync.
    pub repair: bool,
    /// With parity, for a repair: trust the data and recompute parity.
    pub from_data: bool,
    /// Everything before this byte of the array was checked before a restart.
    pub position_bytes: u64,
    /// What was found before that restart.
    pub findings: Findings,
    /// The job is paused.
    pub paused: bool,
    /// Maximum bytes a second read from any one member; 0: the default policy.
    pub limit_bytes_per_s: u64,
}

impl Findings {
    /// Adds an offset, if there is room for it.
    pub(super) fn remember(&mut self, place: u64) {
        if self.offsets.len() < FINDING_OFFSETS_MAX {
            self.offsets.push(place);
        }
    }
}
