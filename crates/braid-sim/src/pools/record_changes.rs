//! Counts which kinds of record changes happen, so that a range of seeds can be checked for having met them all.

use braid_engine::pool::{BlockAllocation, MergeStep, Pool, PoolTables, RecordId};
use braid_format::pool::{Record, RecordKind};

use super::world::World;

fn images(state: &PoolTables) -> Vec<Record> {
    let of = |(member, extents): (u8, u32)| (0..extents + state.zero_slots(member)).map(move |index| (member, index));
    state.members().flat_map(of).map(|(member, index)| state.record(RecordId { member, index })).collect()
}

/// Returns the kind of change between two images of a record.
fn change_kind(old: &Record, new: &Record) -> &'static str {
    use RecordKind::{Free, Packed, Whole, Zeros};
    let given = old.owner != new.owner;
    match (old.kind, new.kind) {
        (Free, Whole) => "whole: begun",
        (Free, Packed) => "packed: begun",
        (Free, Zeros) if new.present > 1 => "zeros: said of a range",
        (Free, Zeros) => "zeros: said",
        (Whole, Free) => "whole: freed",
        (Packed, Free) => "packed: freed",
        (Zeros, Free) => "zeros: freed",
        (Whole, Whole) if given && new.present == 0 && new.zero != 0 => "whole: given, zeros alone",
        (Whole, Whole) if given && (new.present, new.zero) == (old.present, old.zero) => "whole: given",
        (Whole, Whole) if given => "whole: given in part",
        (Whole, Whole) if new.zero & !old.zero != 0 => "whole: blocks become zeros",
        (Whole, Whole) if old.zero & !new.zero & new.present != 0 => "whole: zeros are written",
        (Whole, Whole) if new.present & !old.present != 0 => "whole: blocks come",
        (Whole, Whole) if new.present == 0 => "whole: emptied, kept",
        (Whole, Whole) => "whole: blocks go",
        (Packed, Packed) if given && new.present == old.present => "packed: given",
        (Packed, Packed) if given => "packed: given in part",
        (Packed, Packed) if new.present & !old.present != 0 => "packed: slots come",
        (Packed, Packed) if new.present == 0 => "packed: emptied, kept",
        (Packed, Packed) => "packed: slots go",
        (Zeros, Zeros) if given => "zeros: given",
        (Zeros, Zeros) => "zeros: added to",
        _ => "what must not be",
    }
}

impl World {
    /// Performs an operation on the pool, and counts the record changes that it causes.
    pub(super) fn count_changes<T>(&mut self, operation: &'static str, act: impl FnOnce(&mut Pool) -> T) -> T {
        let before = images(self.pool().state());
        let result = act(self.pool());
        let after = images(self.pool().state());
        for (old, new) in before.iter().zip(&after).filter(|(old, new)| old != new) {
            self.counters.add(operation, change_kind(old, new), 1);
        }
        result
    }

    /// Performs one step of merging deleted snapshots into their children.
    pub(super) fn merge_step(&mut self, records: u32) -> MergeStep {
        let owners = self.pool().state().owners.iter().count();
        let merged = self.count_changes("fold", |pool| pool.merge_step(records));
        let gone = owners - self.pool().state().owners.iter().count();
        self.counters.add("fold", "owners gone", gone as u64);
        if merged == MergeStep::LogFull {
            self.counters.add("fold", "waits for the tail", 1);
        }
        merged
    }

    /// Counts the outcome of an allocation request for this many blocks.
    pub(super) fn count_allocation(&mut self, allocation: &BlockAllocation, wanted: u32) {
        let state = self.pool.as_ref().expect("open").state();
        let kind = match allocation {
            BlockAllocation::Own { extent, .. } if state.record((*extent).into()).kind == RecordKind::Packed => {
                "own, packed"
            }
            BlockAllocation::Own { .. } => "own, whole",
            BlockAllocation::New(reservation) => {
                let record = state.record(reservation.extent.into());
                let opening = self.jobs.iter().any(|job| job.has_reservation_in(reservation.extent));
                match (reservation.is_packed(), record.kind) {
                    (true, _) if wanted >= 32 => "slots, as there is nothing else",
                    (true, RecordKind::Free) if !opening => "a new packed extent",
                    (true, _) => "slots",
                    (false, RecordKind::Free) if opening => "an extent that is opening",
                    (false, RecordKind::Free) => "a new extent",
                    (false, _) if record.zero >> reservation.position & 1 == 1 => "over its own zeros",
                    (false, _) => "its own extent",
                }
            }
            BlockAllocation::Full => "full",
            BlockAllocation::LogFull => "waits for the tail",
            BlockAllocation::Held => "held",
        };
        self.counters.add("place", kind, 1);
    }
}
