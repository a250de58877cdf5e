//! Taking blocks away: what they held is given back, and where something older would show through, it is said that they read
//! as zeros. Both count together: nothing older is ever seen again.

use braid_format::pool::{Change, Record, RecordKind};

use super::home::{Pool, VolumeId, mask};
use super::map::{Piece, VolumeMap};
use super::owners::OwnerId;
use super::records::OWNER_HELD;
use super::state::RecordId;
use super::units::{EXTENT_BLOCKS, ExtentId};
use crate::planted::{Planted, planted};

/// Most logical extents that one call works on.
const EXTENTS_MAX: u64 = 64;
/// So many units of the tail are enough for one logical extent: one for each extent that may stand there, and for what is zero.
const UNITS_EACH: u64 = 2 * EXTENT_BLOCKS as u64 + 4;

/// What came of taking blocks away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Discarded {
    /// These read as zeros now, from the first on: so many blocks, at least one.
    Done(u64),
    /// These cannot be: no record is free that could say so. So many blocks.
    Full(u64),
    /// Changes have to be committed first.
    TailFull,
    /// A job holds an extent.
    Held,
}

/// How many blocks from `block` on, below `end`, are in logical extents of which the map shows nothing: neither the owner nor anything older has
/// something there, and there is nothing to be taken away or to be said.
pub(crate) fn unmapped_blocks(map: &VolumeMap, block: u64, end: u64) -> u64 {
    let each = u64::from(EXTENT_BLOCKS);
    match map.unmapped(block / each, end.div_ceil(each)) {
        0 => 0,
        extents => ((block / each + extents) * each).min(end) - block,
    }
}

/// What came of taking blocks away from an owner.
struct Gone {
    /// For these zeros have to be stated besides, as something older might show.
    zero: u64,
    /// These are stated as zeros by the extents that they stood in.
    swapped: u64,
}

impl Pool {
    /// Makes blocks of a volume read as zeros and gives their space back. Call again for what is not covered. The caller holds
    /// the range of the volume.
    pub fn discard(&mut self, volume: VolumeId, block: u64, blocks: u64) -> Discarded {
        let each = u64::from(EXTENT_BLOCKS);
        let nothing = unmapped_blocks(self.volumes[&volume].writer.map(), block, block + blocks);
        if nothing > 0 {
            return Discarded::Done(nothing);
        }
        let (logical, first) = ((block / each) as u32, (block % each) as u32);
        if first == 0 && blocks >= 2 * each && self.is_range(volume) {
            return self.discard_range(volume, logical, (blocks / each).min(EXTENTS_MAX) as u32);
        }
        let count = blocks.min(each - u64::from(first)) as u32;
        if !self.tail.has_room(UNITS_EACH) {
            return Discarded::TailFull;
        }
        let mut changes = Vec::new();
        let mut freed = Vec::new();
        let Ok(gone) = self.take_away(volume, logical, mask(first, count), &mut changes, &mut freed) else {
            return Discarded::Held;
        };
        let owner = self.volumes[&volume].owner;
        let (mut zero, stated) = (gone.zero, gone.zero | gone.swapped);
        zero &= !self.state.zero_range_word(owner, logical);
        if planted(Planted::ZeroRangeForgotten) {
            zero = 0;
        }
        if zero != 0 && !self.say_zero(owner, logical, zero, &mut changes) {
            return Discarded::Full(u64::from(count));
        }
        self.carry_out(&changes, &freed);
        // Only what is stated: of what reads as zeros already the owner says nothing, and an older one's word is needed on.
        self.note_stated(owner, logical, stated);
        self.volumes.get_mut(&volume).expect("served").writer.clear_blocks(
            &self.state.records,
            logical,
            mask(first, count),
        );
        Discarded::Done(u64::from(count))
    }

    /// Whether something older may show through the blocks of a volume: then whole extents are worth one record for many.
    fn is_range(&self, volume: VolumeId) -> bool {
        self.has_parent(self.volumes[&volume].owner)
    }

    fn has_parent(&self, owner: OwnerId) -> bool {
        self.state.owners.get(owner).is_some_and(|owner| owner.parent != 0)
    }

    /// Whole logical extents, told by one record of zeros.
    fn discard_range(&mut self, volume: VolumeId, logical: u32, count: u32) -> Discarded {
        let owner = self.volumes[&volume].owner;
        let mut changes = Vec::new();
        let mut freed = Vec::new();
        let mut done = 0;
        let mut any = false;
        for at in logical..logical + count {
            if !self.tail.has_room(changes.len() as u64 + UNITS_EACH) {
                break;
            }
            let before = (changes.len(), freed.len());
            match self.take_away(volume, at, u64::MAX, &mut changes, &mut freed) {
                Ok(gone) => any |= gone.zero & !self.state.zero_range_word(owner, at) != 0,
                Err(()) => {
                    // What was found before that which is held stays as it is, too: the maps are told of whole ones only.
                    if !planted(Planted::DiscardHalf) {
                        changes.truncate(before.0);
                        freed.truncate(before.1);
                    }
                    break;
                }
            }
            done += 1;
        }
        if done == 0 {
            return if self.tail.has_room(UNITS_EACH) { Discarded::Held } else { Discarded::TailFull };
        }
        if any {
            let within = |record: &Record| {
                record.logical >= logical && u64::from(record.logical) + record.present <= u64::from(logical + done)
            };
            let old: Vec<_> = self.state.zeros_of(owner).filter(|(_, record)| within(record)).collect();
            let Some(id) = self.state.free_zero_slot(owner) else {
                return Discarded::Full(u64::from(done * EXTENT_BLOCKS));
            };
            let present = u64::from(done);
            let life = self.state.record(id).life;
            let record = Record { kind: RecordKind::Zeros, life, owner, logical, present, zero: u64::MAX };
            changes.push((id.member, id.index, Change::Record { record }));
            let room = self.tail.capacity() / 4;
            for (id, _) in old {
                if self.tail.has_room(changes.len() as u64 + 1) && (changes.len() as u64) < room {
                    changes.push((id.member, id.index, Change::Record { record: Record::free(0) }));
                }
            }
        }
        self.carry_out(&changes, &freed);
        if any {
            self.note_stated_extents(owner, logical, done);
        }
        let volume = self.volumes.get_mut(&volume).expect("served");
        for at in logical..logical + done {
            volume.writer.clear_blocks(&self.state.records, at, u64::MAX);
        }
        Discarded::Done(u64::from(done) * u64::from(EXTENT_BLOCKS))
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

    /// What has to change so that the volume's owner states these blocks no more. `Err`: a job holds one of them.
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
        // Blocks that the owner states, and among these the record that can say zero in their place.
        for Piece { extent, mask: seen } in self.view.pieces() {
            let stands = self.state.records.owner(*extent);
            if stands & !OWNER_HELD != owner {
                zero |= seen & bits;
                continue;
            }
            if stands & OWNER_HELD != 0 && seen & bits != 0 {
                return Err(());
            }
            let mut record = self.state.record((*extent).into());
            let gone = record.present & bits;
            if gone == 0 {
                continue;
            }
            record.present &= !bits;
            if below && record.present != 0 {
                // One image swaps them: they are stated once, now as zeros.
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
            let stands = self.state.records.owner(packed.extent);
            if stands & !OWNER_HELD != owner {
                zero |= bit;
                continue;
            }
            if stands & OWNER_HELD != 0 {
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
            // Other logical extents in the same call may take more out of it.
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

    /// Adds what says that these blocks of an owner read as zeros. False: no record is free.
    fn say_zero(&mut self, owner: OwnerId, logical: u32, zero: u64, changes: &mut Vec<(u8, u32, Change)>) -> bool {
        // One that says so of others of the same extent takes these in.
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
