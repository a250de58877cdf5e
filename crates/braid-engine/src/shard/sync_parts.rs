//! The parts of jobs: requests, stages and results. `sync` carries them out.

use crate::io::{Buf, DeviceId, IoError, LEAF_BYTES_MAX, Op};
use crate::limits::SYNCS_MAX;
use crate::mirror::MemberSet;

/// Granularity in bytes in which copies are compared and repaired.
pub const COMPARE_BLOCK_BYTES: u64 = 4096;
/// Maximum bytes of a piece that is compared: the result has a bit for each block, and other requests of the shard must
/// not wait for long.
pub const COMPARE_BYTES_MAX: u64 = 64 * COMPARE_BLOCK_BYTES;

/// What a part of a job does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncKind {
    /// Reads the piece from one member and writes it to others. On a replicated device zeros are written without data:
    /// only data goes over the network, and nothing is allocated for zeros.
    Copy {
        /// The member to read from, in sync.
        from: u16,
        /// The members to write to. Those that are dropped, or have no copy of this piece, are skipped.
        to: MemberSet,
    },
    /// Reads the piece from one member and from another one that is being rebuilt, and writes the differences to the
    /// latter. Only for a replicated device, where writing costs more than reading.
    CopyDifferences {
        /// The member to read from, in sync.
        from: u16,
        /// The member that is being rebuilt.
        to: u16,
    },
    /// Reads all copies on members in sync, and compares them. The number is that of the copies that the memory has
    /// room for: if there are more, the part ends with `Busy`.
    Compare(u16),
    /// Compares copies as [`SyncKind::Compare`] does, and repairs differences: writes what most of them hold, or what
    /// the first holds, to the others.
    Repair(u16),
    /// With parity: computes the cells of a stripe that these members lack from all other cells, and writes them.
    Rebuild {
        /// The members to write to; their content is not trusted.
        to: MemberSet,
        /// Further members not to read from.
        avoid: MemberSet,
        /// Data cells of the stripe.
        data: u16,
        /// All cells of the stripe.
        cells: u16,
    },
    /// With parity: reads all cells of a stripe, and compares them with its parity. Skipped if a cell cannot be read.
    VerifyStripe {
        /// Data cells of the stripe.
        data: u16,
        /// All cells of the stripe.
        cells: u16,
    },
    /// Compares a stripe as [`SyncKind::VerifyStripe`] does, and repairs it: rewrites the cell that two parities
    /// identify as wrong, else the parity.
    RepairStripe {
        /// Data cells of the stripe.
        data: u16,
        /// All cells of the stripe.
        cells: u16,
        /// The data is trusted: the parities are recomputed.
        from_data: bool,
    },
}

impl SyncKind {
    /// Returns the bytes of memory that a piece of `len` bytes needs.
    pub fn memory_bytes(self, len: u64) -> u64 {
        match self {
            SyncKind::Copy { .. } => len,
            SyncKind::CopyDifferences { .. } => 2 * len,
            SyncKind::Compare(copies) | SyncKind::Repair(copies) => len * u64::from(copies),
            SyncKind::Rebuild { data, cells, .. }
            | SyncKind::VerifyStripe { data, cells }
            | SyncKind::RepairStripe { data, cells, .. } => len / u64::from(data.max(1)) * u64::from(cells),
        }
    }
}

/// A request for a part of a job.
#[derive(Clone, Copy, Debug)]
pub struct SyncRequest {
    /// The array, which must be redundant.
    pub device: DeviceId,
    /// First byte on the array, a multiple of its block. With parity: the start of the geometry's stripe, plus the
    /// bytes above the piece in each chunk times the number of data cells.
    pub offset: u64,
    /// Length in bytes. With parity: the height of the piece, within one stripe of the journal, times the number of
    /// data cells. Else at most [`LEAF_BYTES_MAX`] to be copied or [`COMPARE_BYTES_MAX`] to be compared, and not beyond
    /// the piece of the geometry that holds `offset`.
    pub len: u64,
    /// What is done.
    pub kind: SyncKind,
    /// Memory of [`SyncKind::memory_bytes`].
    pub buf: Buf,
    /// Returned with the result.
    pub tag: u64,
}

/// The findings of a part of a job that compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compared {
    /// A bit for each block of [`COMPARE_BLOCK_BYTES`], from the first on: its copies differed, or it did not agree
    /// with its parity.
    pub differing: u64,
    /// For each of the first blocks of the piece: the member whose content is wrong, if two parities identify it; else
    /// [`Compared::UNKNOWN`].
    pub wrong: [u8; Compared::NAMED_MAX],
}

impl Compared {
    /// Maximum number of blocks whose wrong member can be identified: the height of a stripe.
    pub const NAMED_MAX: usize = 16;
    /// No member is known to be wrong.
    pub const UNKNOWN: u8 = u8::MAX;
    /// Everything agreed, or nothing was compared.
    pub const EQUAL: Compared = Compared { differing: 0, wrong: [Compared::UNKNOWN; Compared::NAMED_MAX] };

    /// Returns the member that has a block wrong, if that is known.
    pub fn wrong_at(&self, block: usize) -> Option<u16> {
        self.wrong.get(block).copied().filter(|member| *member != Compared::UNKNOWN).map(u16::from)
    }
}

const _: () = assert!(braid_geometry::MEMBERS_MAX <= Compared::UNKNOWN as usize);

/// The result of a part of a job.
#[derive(Clone, Copy, Debug)]
pub struct SyncDone {
    /// The request's tag.
    pub tag: u64,
    /// Success, or the first error. `Busy`: the device is frozen, or its members have changed; the part did not fail.
    pub result: Result<(), IoError>,
    /// The findings, if something was compared.
    pub compared: Compared,
    /// The kernel may still use the buffer, and may do so for ever: it must never be used again.
    pub buffer_lost: bool,
}

/// The stage of a part.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SyncStage {
    Read,
    Write,
    /// Blocks are being written, and all before this one have been: differing blocks, or runs of a copy.
    Repair(u32),
    Done,
}

/// A part in progress.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub request: SyncRequest,
    pub stage: SyncStage,
    pub compared: Compared,
    /// Blocks of a copy that are zeros, if zeros are written without data.
    pub zeros: Blocks,
    /// Blocks that the target has already.
    pub equal: Blocks,
}

/// A bit for each block of a piece that is copied.
pub(super) type Blocks = [u64; (LEAF_BYTES_MAX / COMPARE_BLOCK_BYTES / 64) as usize];

/// The parts in progress.
pub(crate) struct Syncs {
    parts: Vec<Option<Part>>,
}

impl Syncs {
    pub fn new() -> Syncs {
        Syncs { parts: vec![None; SYNCS_MAX as usize] }
    }

    /// Adds a part. `None` if too many are in progress.
    pub(super) fn take(&mut self, request: SyncRequest) -> Option<u32> {
        let at = self.parts.iter().position(Option::is_none)?;
        self.parts[at] = Some(Part {
            request,
            stage: SyncStage::Read,
            compared: Compared::EQUAL,
            zeros: Blocks::default(),
            equal: Blocks::default(),
        });
        Some(at as u32)
    }

    /// Returns a part.
    pub(super) fn at(&mut self, sync: u32) -> &mut Part {
        self.parts[sync as usize].as_mut().expect("a part in progress")
    }

    /// Frees the entry of a part.
    pub fn give(&mut self, sync: u32) {
        self.parts[sync as usize] = None;
    }

    /// Returns a part's request and stage.
    pub(super) fn part(&self, sync: u32) -> (SyncRequest, SyncStage) {
        let part = self.parts[sync as usize].as_ref().expect("a part in progress");
        (part.request, part.stage)
    }

    pub(super) fn set_stage(&mut self, sync: u32, stage: SyncStage) {
        self.at(sync).stage = stage;
    }

    pub(super) fn set_compared(&mut self, sync: u32, compared: Compared) {
        self.at(sync).compared = compared;
    }

    /// Returns whether a part copies or computes content for other members.
    pub fn copies(&self, sync: u32) -> bool {
        self.parts[sync as usize].as_ref().is_some_and(|part| {
            matches!(
                part.request.kind,
                SyncKind::Copy { .. } | SyncKind::CopyDifferences { .. } | SyncKind::Rebuild { .. }
            )
        })
    }

    /// Returns the operation of a part's I/Os in flight.
    pub fn op_out(&self, sync: u32) -> Op {
        match self.parts[sync as usize].as_ref().map(|part| part.stage) {
            Some(SyncStage::Read) | None => Op::Read,
            // The stage is that of the next step.
            Some(SyncStage::Write) => Op::Read,
            Some(SyncStage::Repair(_) | SyncStage::Done) => Op::Write,
        }
    }
}
