//! The end of a copy that flattening has begun ([`super::flatten`]): of what was copied, that counts which is still wanted.

use braid_format::pool::{Change, Record, RecordKind};

use super::home::Pool;
use super::one_move::{Move, Part};
use super::owners::OwnerId;
use crate::planted::{Planted, planted};

impl Pool {
    /// Everything has been copied that a copy was to. Gives it back where it has to wait.
    pub(super) fn end_copy(&mut self, one: Move) -> Option<Move> {
        let taker = one.taker.expect("a copy is for somebody");
        if one.failed {
            if let Some(job) = self.flatten.as_mut().filter(|job| job.wants(taker)) {
                job.stop_unreadable();
            }
            self.note_unreadable(&one);
            self.drop_move(&one);
            return None;
        }
        let folds = self.fold.as_ref().is_some_and(|fold| fold.owner() == taker || fold.child() == Some(taker));
        let wanted = self.flatten.as_ref().is_some_and(|job| job.wants(taker));
        if folds || !wanted {
            // It will be looked at again.
            self.drop_move(&one);
            return None;
        }
        if self.is_looked_at(taker) {
            return Some(one);
        }
        let changes = self.copy_changes(&one, taker);
        if changes.is_empty() {
            self.drop_move(&one);
            return None;
        }
        if !self.tail.has_room(changes.len() as u64) {
            return self.end_later(one);
        }
        self.change(&changes);
        let owners: Vec<OwnerId> = self.volumes.values().map(|volume| volume.owner).collect();
        let below = |id: OwnerId| match planted(Planted::FlattenForgetsMaps) {
            true => id == taker,
            false => self.state.owners.chain(id).contains(&taker),
        };
        let shown: Vec<OwnerId> = owners.into_iter().filter(|id| below(*id)).collect();
        self.tell_maps(&one, |id| shown.contains(&id));
        self.copied += self.state.record(one.target.into()).present.count_ones() as u64;
        self.end_scan_for(taker, one.target);
        self.let_go(&one);
        None
    }

    /// What has to be said of the target: it has those blocks which the sources have as they did, and which the owner does not state by now.
    fn copy_changes(&self, one: &Move, taker: OwnerId) -> Vec<(u8, u32, Change)> {
        let job = self.flatten.as_ref().expect("seen to be there");
        let target = one.target;
        let (member, index) = (target.member, target.index);
        let mut record = self.state.record(target.into());
        match one.own_life {
            // Into one that it has already.
            Some(life) => {
                let same = (record.kind, record.owner, record.life) == (RecordKind::Whole, taker, life);
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
                record = Record { kind, life, owner: taker, logical, present: 0, zero: 0 };
            }
        }
        let before = record.present;
        let mut changes = Vec::new();
        for part in &one.parts {
            let stated = job.states(part.block) && !planted(Planted::FlattenOverNewer);
            if stated || !self.has_still(one, part) {
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

    /// Whether a source has a block as it did when the copy began: nobody writes over what is an ancestor's.
    fn has_still(&self, one: &Move, part: &Part) -> bool {
        let record = self.state.record(part.from.into());
        let life = one.sources.iter().find(|(source, _)| *source == part.from).map(|(_, life)| *life);
        record.kind != RecordKind::Free && Some(record.life) == life && record.present >> part.slot & 1 == 1
    }
}
