//! The end of a copy for flattening ([`super::flatten`]): which of the copied blocks are still wanted.

use braid_format::pool::{Change, Record, RecordKind};

use super::Pool;
use super::one_move::{Move, Part};
use super::owners::OwnerId;

impl Pool {
    /// Ends a copy, all of which was copied. Returns it if it has to wait.
    pub(super) fn end_copy(&mut self, one: Move) -> Option<Move> {
        let recipient = one.recipient.expect("a copy has a recipient");
        if one.failed {
            if let Some(job) = self.flatten.as_mut().filter(|job| job.wants(recipient)) {
                job.stop_unreadable();
            }
            self.note_unreadable(&one);
            self.cancel_move(&one);
            return None;
        }
        let merging =
            self.merge.as_ref().is_some_and(|merge| merge.owner() == recipient || merge.child() == Some(recipient));
        let wanted = self.flatten.as_ref().is_some_and(|job| job.wants(recipient));
        if merging || !wanted {
            // The blocks will be looked at again.
            self.cancel_move(&one);
            return None;
        }
        if self.is_being_mapped(recipient) {
            return Some(one);
        }
        let changes = self.copy_changes(&one, recipient);
        if changes.is_empty() {
            self.cancel_move(&one);
            return None;
        }
        if !self.log.has_room(changes.len() as u64) {
            return self.defer_end(one);
        }
        self.change(&changes);
        let owners: Vec<OwnerId> = self.volumes.values().map(|volume| volume.owner).collect();
        let below = |id: OwnerId| self.state.owners.chain(id).contains(&recipient);
        let shown: Vec<OwnerId> = owners.into_iter().filter(|id| below(*id)).collect();
        self.update_maps(&one, |id| shown.contains(&id));
        self.copied += self.state.record(one.target.into()).present.count_ones() as u64;
        self.note_arrival(recipient, one.target);
        self.release_move(&one);
        None
    }

    /// Returns the changes for the target: it gets the blocks that the sources have unchanged, and that the owner does
    /// not define by now.
    fn copy_changes(&self, one: &Move, recipient: OwnerId) -> Vec<(u8, u32, Change)> {
        let job = self.flatten.as_ref().expect("checked before");
        let target = one.target;
        let (member, index) = (target.member, target.index);
        let mut record = self.state.record(target.into());
        match one.own_life {
            // Into an extent that the owner has already.
            Some(life) => {
                let same = (record.kind, record.owner, record.life) == (RecordKind::Whole, recipient, life);
                if !same || Some(record.logical) != one.logical() {
                    return Vec::new();
                }
            }
            None => {
                let life = record.life.wrapping_add(1);
                let (kind, logical) = match one.logical() {
                    Some(logical) => (RecordKind::Whole, logical),
                    None => (RecordKind::Packed, u32::MAX),
                };
                record = Record { kind, life, owner: recipient, logical, present: 0, zero: 0 };
            }
        }
        let before = record.present;
        let mut changes = Vec::new();
        for part in &one.parts {
            if job.defines(part.block) || !self.is_source_unchanged(one, part) {
                continue;
            }
            record.present |= 1 << part.to_slot;
            record.zero &= !record.present;
            if record.kind == RecordKind::Packed {
                changes.push((member, index, Change::Slot { slot: part.to_slot, block: part.block, record }));
            }
        }
        if record.kind == RecordKind::Whole && record.present != before {
            changes.push((member, index, Change::Record { record }));
        }
        changes
    }

    /// Returns whether a source has a block unchanged since the copy began: the blocks of an ancestor are never
    /// overwritten.
    fn is_source_unchanged(&self, one: &Move, part: &Part) -> bool {
        let record = self.state.record(part.from.into());
        let life = one.sources.iter().find(|(source, _)| *source == part.from).map(|(_, life)| *life);
        record.kind != RecordKind::Free && Some(record.life) == life && record.present >> part.slot & 1 == 1
    }
}
