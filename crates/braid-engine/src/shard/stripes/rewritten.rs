//! Unreadable stripes: a block becomes readable again when it is written.
//!
//! The parity of such a stripe matches zeros in the lost cells, and all other cells can be read: so it is written as
//! any other, but never only marked, because recovery must find every write that has made a block readable. A write in
//! place of a block of a lost cell makes that block readable; the blocks beside it stay as they were.

use super::super::Shard;
use crate::parity::StripeOp;

impl Shard {
    /// Notes that an op is in place: from now on the lines of its data cells can be read.
    pub(super) fn note_rewritten(&mut self, index: u32, op: &StripeOp) {
        let slot = &self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version);
        let Some(mirror) = layout.mirror() else { return };
        let Some(parity) = mirror.parity.as_deref().filter(|parity| !parity.node.lost_stripes.is_empty()) else {
            return;
        };
        let cells = op.cell as u8..(op.cell + op.cells) as u8;
        if op.logged {
            parity.node.lost_stripes.remove(op.row, cells, op.lines());
        }
    }
}
