//! One move, or copy: blocks that go to one extent. See [`super::moves`].

use super::owners::OwnerId;
use super::units::ExtentId;

/// One block of a move.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub from: ExtentId,
    pub slot: u8,
    pub to_slot: u8,
    pub block: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The sources are held.
    Held,
    /// Those who had begun before are ending.
    Draining,
    /// From this part on it is to be copied.
    Copying(usize),
}

/// Blocks of one owner that go to one extent.
pub(super) struct Move {
    pub target: ExtentId,
    pub packed: bool,
    /// Of whole ones.
    pub logical: u32,
    /// With the lives that they are in.
    pub sources: Vec<(ExtentId, u16)>,
    /// A copy: its sources stay as they are, and this owner has the blocks, too.
    pub taker: Option<OwnerId>,
    /// The life of the target, where that is an extent of the owner's own.
    pub own_life: Option<u16>,
    /// By source and slot.
    pub parts: Vec<Part>,
    pub stage: Stage,
    /// Copies that are out.
    pub out: u32,
    pub failed: bool,
}

impl Move {
    /// To a free extent that was taken for it: of a logical extent, or packed.
    pub fn new(target: ExtentId, logical: Option<u32>, sources: Vec<(ExtentId, u16)>, parts: Vec<Part>) -> Move {
        let (packed, logical) = (logical.is_none(), logical.unwrap_or(u32::MAX));
        let stage = Stage::Held;
        Move { target, packed, logical, sources, taker: None, own_life: None, parts, stage, out: 0, failed: false }
    }

    /// A copy for an owner of what others have: to a free extent, or into one of its own in this life.
    pub fn copy(
        target: ExtentId,
        logical: Option<u32>,
        sources: Vec<(ExtentId, u16)>,
        parts: Vec<Part>,
        taker: OwnerId,
        own_life: Option<u16>,
    ) -> Move {
        Move { taker: Some(taker), own_life, ..Move::new(target, logical, sources, parts) }
    }

    pub fn logical(&self) -> Option<u32> {
        (!self.packed).then_some(self.logical)
    }

    /// For whom it copies, and for which logical extent of his that stands whole nowhere yet.
    pub fn opens(&self) -> Option<(OwnerId, u32)> {
        self.taker.filter(|_| self.own_life.is_none()).zip(self.logical())
    }

    pub fn has_source(&self, extent: ExtentId) -> bool {
        self.sources.iter().any(|(source, _)| *source == extent)
    }
}
