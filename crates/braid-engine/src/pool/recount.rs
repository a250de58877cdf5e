//! Free extents: found by a scan of all records when a pool is opened, and recounted as a check.

use super::Pool;
use super::space::{Free, Freed};
use super::state::PoolTables;
use super::units::ExtentId;

impl Pool {
    /// Finds the free extents. Only before anything is served.
    pub(super) fn find_free(&mut self) {
        let PoolTables { records, damage, .. } = &mut self.state;
        damage.clear_withheld();
        for (member, room) in (0..).zip(&mut self.rooms) {
            let extents = records.extents(member);
            room.free = Free::none(extents);
            room.freed = Freed::default();
            let all = (0..extents).map(|index| ExtentId { member, index });
            for extent in all.filter(|extent| records.owner(*extent) == 0) {
                let damaged = damage.has(extent.into());
                if !damaged && !damage.withholds(extent) {
                    room.free.give(extent.index);
                }
            }
        }
        self.find_reserves();
    }

    /// Lists extents that are empty and still have an owner: the last session did not free them. Only before anything
    /// is served.
    pub(super) fn find_empties(&mut self) {
        let records = &self.state.records;
        for (member, extents) in self.state.members() {
            let all = (0..extents).map(|index| ExtentId { member, index });
            let idle = |extent: &ExtentId| records.owner(*extent) != 0 && records.present(*extent) == 0;
            let nothing = |extent: &ExtentId| self.state.record((*extent).into()).zero == 0;
            self.empties.extend(all.filter(idle).filter(nothing));
        }
    }

    /// Recounts used and free extents.
    ///
    /// # Errors
    /// What does not match.
    pub fn recount(&self) -> Result<(), String> {
        self.state.members().try_for_each(|(member, extents)| self.recount_some(member, 0..extents))
    }

    /// Recounts some extents of a member.
    ///
    /// # Errors
    /// What does not match.
    pub fn recount_some(&self, member: u8, range: std::ops::Range<u32>) -> Result<(), String> {
        let Some(room) = self.rooms.get(usize::from(member)).filter(|_| !range.is_empty()) else { return Ok(()) };
        let freed = room.freed.iter().map(|extent| extent.index).chain(self.commits.discarding(member));
        let mut being_freed: Vec<u32> = freed.filter(|index| range.contains(index)).collect();
        being_freed.sort_unstable();
        for index in range {
            let extent = ExtentId { member, index };
            let used = self.state.records.owner(extent) != 0;
            let waits = being_freed.binary_search(&index).is_ok();
            let opened = || {
                self.opening.values().any(|other| *other == extent.bits())
                    || self.open_packed.values().any(|open| open.extent == extent)
                    || self.is_pending(extent)
                    || self.moves.is_target(extent)
                    || self.state.damage.has(extent.into())
                    || self.state.damage.is_withheld(extent)
            };
            let free = room.free.has(index);
            let good = match (used, free, waits) {
                (true, false, false) | (false, true, false) | (false, false, true) => true,
                (false, false, false) => opened(),
                _ => false,
            };
            if !good {
                return Err(format!("extent {index} of member {member}: used {used}, free {free}, on its way {waits}"));
            }
        }
        Ok(())
    }
}
