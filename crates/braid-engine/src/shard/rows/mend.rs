//! Rows of which something cannot be read: what is written there can be read again.
//!
//! Of such a row the parity fits zeros in the cells that are lost, and all else can be read: so it is written as any other, but never
//! only marked, as a recovery must find all that has made something readable. What has a block of a lost cell in place makes that block
//! readable; whatever is beside it stays as it was.

use super::super::Shard;
use super::row::Row;
use crate::parity::RowOp;
use crate::planted::{Planted, planted};

impl Shard {
    /// An op is in place: lines of its data cells can be read from now on, whatever they were before.
    pub(super) fn note_mended(&mut self, index: u32, op: &RowOp) {
        let slot = &self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version);
        let Some(mirror) = layout.mirror() else { return };
        let Some(parity) = mirror.parity.as_deref().filter(|parity| !parity.node.lost.is_empty()) else { return };
        let cells = match planted(Planted::PartMakesReadable) {
            true => 0..Row::new(mirror, op.row).data() as u8,
            false => op.cell as u8..(op.cell + op.cells) as u8,
        };
        if op.logged {
            parity.node.lost.rewritten(op.row, cells, op.lines());
        }
    }
}
