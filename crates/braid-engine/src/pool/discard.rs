//! Discarding blocks: their space is freed, and where content of an ancestor would show through, they are defined as
//! zeros. Both are one atomic group of log entries, so no read and no recovery finds older content.

use braid_format::pool::{Change, Record, RecordKind};

use super::Pool;
use super::map::{Piece, VolumeMap};
use super::owners::OwnerId;
use super::records::OWNER_HELD;
use super::shared::VolumeId;
use super::units::{EXTENT_BLOCKS, ExtentId, RecordId, mask};

/// Maximum logical extents that one call works on.
const EXTENTS_MAX: u64 = 64;
/// Log units that are enough for one logical extent: one for each extent that may hold its blocks, and for its zeros.
const UNITS_EACH: u64 = 2 * EXTENT_BLOCKS as u64 + 4;

/// The outcome of a discard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiscardOutcome {
    /// This many blocks from the first one on, at least one, read as zeros now.
    Done(u64),
    /// This many blocks cannot be discarded: no record is free to define them as zeros.
    Full(u64),
    /// Changes have to be committed first.
    LogFull,
    /// A job holds an extent.
    Held,
}

/// Returns how many blocks from `block` on, below `end`, are in logical extents of which the map shows nothing: neither
/// the owner nor an ancestor has blocks there, and there is nothing to discard.
pub(crate) fn unmapped_blocks(map: &VolumeMap, block: u64, end: u64) -> u64 {
    let each = u64::from(EXTENT_BLOCKS);
    match map.unmapped(block / each, end.div_ceil(each)) {
        0 => 0,
        extents => ((block / each + extents) * each).min(end) - block,
    }
}

/// What remains to be done once blocks were taken out of the extents of an owner.
struct Gone {
    /// Blocks that a zero range has to define as zeros, because content of an ancestor may show through.
    zero: u64,
    /// Blocks that now the extents that held them define as zeros.
    swapped: u64,
}

impl Pool {
    /// Makes blocks of a volume read as zeros and frees their space. Call again for blocks that are not covered. The
    /// caller holds these blocks in the range table of volumes.
    pub fn discard(&mut self, volume: VolumeId, block: u64, blocks: u64) -> DiscardOutcome {
        let each = u64::from(EXTENT_BLOCKS);
        let nothing = unmapped_blocks(self.volumes[&volume].writer.map(), block, block + blocks);
        if nothing > 0 {
            return DiscardOutcome::Done(nothing);
        }
        let (logical, first) = ((block / each) as u32, (block % each) as u32);
        if first == 0 && blocks >= 2 * each && self.is_range(volume) {
            return self.discard_range(volume, logical, (blocks / each).min(EXTENTS_MAX) as u32);
        }
        let count = blocks.min(each - u64::from(first)) as u32;
        if !self.log.has_room(UNITS_EACH) {
            return DiscardOutcome::LogFull;
        }
        let mut changes = Vec::new();
        let mut freed = Vec::new();
        let Ok(gone) = self.take_away(volume, logical, mask(first, count), &mut changes, &mut freed) else {
            return DiscardOutcome::Held;
        };
        let owner = self.volumes[&volume].owner;
        let (mut zero, defined) = (gone.zero, gone.zero | gone.swapped);
        zero &= !self.state.zero_range_word(owner, logical);
        if zero != 0 && !self.say_zero(owner, logical, zero, &mut changes) {
            return DiscardOutcome::Full(u64::from(count));
        }
        self.carry_out(&changes, &freed);
        // A merge must learn only of blocks that the owner defines now. Blocks that read as zeros before get no
        // definition: for these, the merge still needs the ancestor's zeros.
        self.note_defined(owner, logical, defined);
        self.volumes.get_mut(&volume).expect("served").writer.clear_blocks(
            &self.state.records,
            logical,
            mask(first, count),
        );
        DiscardOutcome::Done(u64::from(count))
    }

    /// Returns whether something older may show through the blocks of a volume: then one record of zeros covers many
    /// whole extents.
    fn is_range(&self, volume: VolumeId) -> bool {
        self.has_parent(self.volumes[&volume].owner)
    }

    fn has_parent(&self, owner: OwnerId) -> bool {
        self.state.owners.get(owner).is_some_and(|owner| owner.parent != 0)
    }

    /// Discards whole logical extents, and defines them as zeros by one record.
    fn discard_range(&mut self, volume: VolumeId, logical: u32, count: u32) -> DiscardOutcome {
        let owner = self.volumes[&volume].owner;
        let mut changes = Vec::new();
        let mut freed = Vec::new();
        let mut done = 0;
        let mut any = false;
        for at in logical..logical + count {
            if !self.log.has_room(changes.len() as u64 + UNITS_EACH) {
                break;
            }
            let before = (changes.len(), freed.len());
            match self.take_away(volume, at, u64::MAX, &mut changes, &mut freed) {
                Ok(gone) => any |= gone.zero & !self.state.zero_range_word(owner, at) != 0,
                Err(()) => {
                    // Changes found before the held extent are dropped, too: maps are updated for whole logical extents
                    // only.
                    changes.truncate(before.0);
                    freed.truncate(before.1);
                    break;
                }
            }
            done += 1;
        }
        if done == 0 {
            return if self.log.has_room(UNITS_EACH) { DiscardOutcome::Held } else { DiscardOutcome::LogFull };
        }
        if any {
            let within = |record: &Record| {
                record.logical >= logical && u64::from(record.logical) + record.present <= u64::from(logical + done)
            };
            let old: Vec<_> = self.state.zeros_of(owner).filter(|(_, record)| within(record)).collect();
            let Some(id) = self.state.free_zero_slot(owner) else {
                return DiscardOutcome::Full(u64::from(done * EXTENT_BLOCKS));
            };
            let present = u64::from(done);
            let life = self.state.record(id).life;
            let record = Record { kind: RecordKind::Zeros, life, owner, logical, present, zero: u64::MAX };
            changes.push((id.member, id.index, Change::Record { record }));
            let room = self.log.capacity() / 4;
            for (id, _) in old {
                if self.log.has_room(changes.len() as u64 + 1) && (changes.len() as u64) < room {
                    changes.push((id.member, id.index, Change::Record { record: Record::free(0) }));
                }
            }
        }
        self.carry_out(&changes, &freed);
        if any {
            self.note_defined_extents(owner, logical, done);
        }
        let volume = self.volumes.get_mut(&volume).expect("served");
        for at in logical..logical + done {
            volume.writer.clear_blocks(&self.state.records, at, u64::MAX);
        }
        DiscardOutcome::Done(u64::from(done) * u64::from(EXTENT_BLOCKS))
    }

    fn carry_out(&mut self, changes: &[(u8, u32, Change)], freed: &[ExtentId]) {
        if changes.is_empty() {
            return;
        }
        let sequence = self.change(changes);
        for extent in freed {
            self.rooms[usize::from(extent.member)].freed.add(sequence, *extent);
        }
    }

    /// Collects the changes after which the volume's owner no longer has data in these blocks, and the extents that
    /// become free. Returns the blocks that read as zeros by these changes, or need a zero range. `Err`: a job holds an
    /// extent with one of them.
    fn take_away(
        &mut self,
        volume: VolumeId,
        logical: u32,
        bits: u64,
        changes: &mut Vec<(u8, u32, Change)>,
        freed: &mut Vec<ExtentId>,
    ) -> Result<Gone, ()> {
        let Pool { volumes, state, view, .. } = self;
        let served = &volumes[&volume];
        let owner = served.owner;
        served.writer.map().visible(&state.records, logical, view);
        let below = state.owners.get(owner).is_some_and(|owner| owner.parent != 0);
        let (mut zero, mut swapped) = (0, 0);
        // Blocks that the owner has, and the records that can define zeros in their place.
        for Piece { extent, mask: seen } in self.view.pieces() {
            let holder = self.state.records.owner(*extent);
            if holder & !OWNER_HELD != owner {
                zero |= seen & bits;
                continue;
            }
            if holder & OWNER_HELD != 0 && seen & bits != 0 {
                return Err(());
            }
            let mut record = self.state.record((*extent).into());
            let gone = record.present & bits;
            if gone == 0 {
                continue;
            }
            record.present &= !bits;
            if below && record.present != 0 {
                // One image swaps them: they are defined once, now as zeros.
                record.zero |= gone;
                swapped |= gone;
            } else if below {
                zero |= gone | record.zero;
                record.zero = 0;
            }
            if record.present == 0 && record.zero == 0 && !self.is_pending(*extent) {
                record = Record::free(record.life);
                freed.push(*extent);
            }
            changes.push((extent.member, extent.index, Change::Record { record }));
        }
        let mut touched: Vec<(ExtentId, Record)> = Vec::new();
        for packed in self.view.packed() {
            let bit = 1u64 << packed.block;
            if bits & bit == 0 {
                continue;
            }
            let holder = self.state.records.owner(packed.extent);
            if holder & !OWNER_HELD != owner {
                zero |= bit;
                continue;
            }
            if holder & OWNER_HELD != 0 {
                return Err(());
            }
            if below {
                zero |= bit;
            }
            let at = touched.iter().position(|(extent, _)| *extent == packed.extent).unwrap_or_else(|| {
                touched.push((packed.extent, self.state.record(packed.extent.into())));
                touched.len() - 1
            });
            touched[at].1.present &= !(1u64 << packed.slot);
        }
        for (extent, mut record) in touched {
            let open = self.open_packed.get(&owner).is_some_and(|open| open.extent == extent);
            // An earlier logical extent of the same call may have discarded other blocks of this extent.
            if let Some((_, _, Change::Record { record: earlier })) =
                changes.iter().rev().find(|(member, index, _)| (*member, *index) == (extent.member, extent.index))
            {
                record.present &= earlier.present;
            }
            if record.present == 0 && !self.is_pending(extent) && !open {
                record = Record::free(record.life);
                freed.push(extent);
            }
            changes.push((extent.member, extent.index, Change::Record { record }));
        }
        Ok(Gone { zero, swapped })
    }

    /// Adds the change that defines these blocks of an owner as zeros. False: no record is free.
    fn say_zero(&mut self, owner: OwnerId, logical: u32, zero: u64, changes: &mut Vec<(u8, u32, Change)>) -> bool {
        // A record with zeros of the same logical extent takes these in.
        let partial = self.state.zeros_of(owner).find(|(_, record)| record.logical == logical && record.present == 1);
        let (id, record) = match partial {
            Some((id, record)) => (id, Record { zero: record.zero | zero, ..record }),
            None => {
                let Some(id) = self.state.free_zero_slot(owner) else { return false };
                let life = self.state.record(id).life;
                (id, Record { kind: RecordKind::Zeros, life, owner, logical, present: 1, zero })
            }
        };
        let RecordId { member, index } = id;
        changes.push((member, index, Change::Record { record }));
        true
    }
}
