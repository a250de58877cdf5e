//! One move, or copy: blocks that go to one extent. See [`super::moves`].

use super::owners::OwnerId;
use super::units::ExtentId;

/// One block of a move.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// The extent that the block is in.
    pub from: ExtentId,
    /// Its slot or position there.
    pub slot: u8,
    /// Its slot or position in the target.
    pub to_slot: u8,
    /// The block of the volume.
    pub block: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The sources are held.
    Held,
    /// Requests that had begun before are ending.
    Draining,
    /// Copies are made, from this part on.
    Copying(usize),
}

/// Blocks of one owner that go to one extent.
pub(super) struct Move {
    pub target: ExtentId,
    pub packed: bool,
    /// The logical extent that a whole target holds; `u32::MAX` for a packed target.
    pub logical: u32,
    /// With the lives that they have.
    pub sources: Vec<(ExtentId, u16)>,
    /// Set for a copy: its sources stay as they are, and this owner gets the blocks, too.
    pub recipient: Option<OwnerId>,
    /// The life of the target if the owner had that extent before the copy; `None`: the target was newly allocated.
    pub own_life: Option<u16>,
    /// By source and slot.
    pub parts: Vec<Part>,
    pub stage: Stage,
    /// Copies in flight.
    pub in_flight: u32,
    pub failed: bool,
}

impl Move {
    /// Returns a move to a newly allocated extent: of a logical extent, or packed.
    pub fn new(target: ExtentId, logical: Option<u32>, sources: Vec<(ExtentId, u16)>, parts: Vec<Part>) -> Move {
        let (packed, logical) = (logical.is_none(), logical.unwrap_or(u32::MAX));
        let stage = Stage::Held;
        Move {
            target,
            packed,
            logical,
            sources,
            recipient: None,
            own_life: None,
            parts,
            stage,
            in_flight: 0,
            failed: false,
        }
    }

    /// Returns a copy of others' blocks for an owner: to a newly allocated extent, or into one of its own in this life.
    pub fn copy(
        target: ExtentId,
        logical: Option<u32>,
        sources: Vec<(ExtentId, u16)>,
        parts: Vec<Part>,
        recipient: OwnerId,
        own_life: Option<u16>,
    ) -> Move {
        Move { recipient: Some(recipient), own_life, ..Move::new(target, logical, sources, parts) }
    }

    pub fn logical(&self) -> Option<u32> {
        (!self.packed).then_some(self.logical)
    }

    /// Returns the owner and logical extent of a copy to a newly allocated whole extent.
    pub fn opened_extent(&self) -> Option<(OwnerId, u32)> {
        self.recipient.filter(|_| self.own_life.is_none()).zip(self.logical())
    }

    pub fn has_source(&self, extent: ExtentId) -> bool {
        self.sources.iter().any(|(source, _)| *source == extent)
    }
}
