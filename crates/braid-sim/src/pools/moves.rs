//! Moving: members are emptied and used again, and volumes get other allocation policies, while everything else
//! continues.

use braid_engine::pool::{MemberRemoval, MoveStep, Pool};
use braid_format::pool::AllocationPolicy;

use super::world::{Check, World};

impl World {
    /// Draws and performs one step that concerns moving blocks.
    pub(super) fn random_move(&mut self) {
        match self.rng.below(10) {
            0 => self.close_or_open(),
            1 => self.change_policy(),
            2 => self.remove_member(),
            3 => self.compact(),
            _ => {
                let records = 1 + self.rng.below(60) as u32;
                self.move_step(records);
            }
        }
    }

    pub(super) fn move_step(&mut self, records: u32) -> MoveStep {
        let moving = self.count_changes("move", |pool| pool.move_step(records));
        match moving {
            MoveStep::Done => self.counters.add("move", "all is where it should be", 1),
            MoveStep::Some | MoveStep::Paused => {}
            MoveStep::Full => self.counters.add("move", "no space", 1),
            MoveStep::Unreadable => {
                self.counters.add("move", "could not be copied", 1);
                self.pool().retry_moves();
            }
        }
        moving
    }

    /// Closes a member for allocation, or opens it again. At least one member stays open.
    fn close_or_open(&mut self) {
        let present = self.present_members();
        let member = usize::from(*self.rng.pick(&present));
        if self.closed.remove(&member) {
            self.closed_by_force.remove(&member);
            self.pool().close_member(member as u8, false);
        } else if self.closed.len() + 1 < present.len() {
            if self.rng.coin() && self.parameters.thick == 0 {
                self.pool().close_member(member as u8, true);
                self.closed_by_force.insert(member);
            } else if self.pool().empty_member(member as u8).is_err() {
                return;
            }
            self.closed.insert(member);
            self.counters.add("move", "members closed", 1);
        }
        self.note(|| format!("close or open member {member}"), member as u64);
    }

    /// Counts the extents that were consolidated since the last call.
    pub(super) fn count_consolidated(&mut self) {
        let now = self.pool().extents_consolidated();
        let (gathered, merged) = std::mem::replace(&mut self.consolidated, now);
        self.counters.add("compact", "into whole ones", now.0.saturating_sub(gathered));
        self.counters.add("compact", "into packed ones", now.1.saturating_sub(merged));
    }

    /// Begins to compact scattered owners, or continues.
    fn compact(&mut self) {
        if self.pool().is_compacting() {
            let records = 1 + self.rng.below(2000) as u32;
            let moving = self.count_changes("compact", |pool| pool.compact_step(records));
            let what = if moving == MoveStep::Full { "no space" } else { "steps" };
            return self.counters.add("compact", what, 1);
        }
        let owners: Vec<_> = self.pool().state().owners.iter().map(|owner| owner.id).collect();
        if !owners.is_empty() {
            self.note(|| format!("compact {owners:?}"), owners.len() as u64);
            // Compacts in several passes, as a pool does that has more than fits its memory limit.
            match self.now % 3 {
                0 => self.pool().compact(owners),
                one => self.pool().compact_with_limit(owners, one * 40),
            }
        }
    }

    /// Removes an empty member from the pool for good.
    fn remove_member(&mut self) {
        // The member must not be the one that is being added: the component that serves the pool does one after the
        // other.
        let added = self.adding.as_ref().map(|adding| adding.device.number);
        let mut closed = self.closed.iter().map(|member| *member as u8);
        let closed = closed.find(|member| Some(*member) != added);
        // The component that serves the pool may ask for a member that was never closed, or was opened again: such a
        // member must stay.
        let Some(member) = closed.or_else(|| self.any_empty_member()) else { return };
        if self.removed.contains(&member) {
            if self.pool().drop_member(member) {
                self.closed.remove(&usize::from(member));
                self.counters.add("move", "members gone", 1);
            }
            return;
        }
        if self.devices.len() > 1 && self.pool().remove_member_step(member) == MemberRemoval::Ready && self.rng.coin() {
            // All labels are written at once; the component that serves the pool does that.
            let (removed_devices, stay) = self.devices.drain(..).partition(|device| device.number == member);
            self.devices = stay;
            self.removed_devices.extend::<Vec<_>>(removed_devices);
            self.removed.insert(member);
            self.closed.insert(usize::from(member));
            self.note(|| format!("the labels lack member {member}"), u64::from(member));
        }
    }

    /// Returns a member that is in use and empty.
    fn any_empty_member(&mut self) -> Option<u8> {
        let present = self.present_members();
        let pool = self.pool();
        present.into_iter().find(|member| pool.is_member_empty(*member))
    }

    /// Gives a volume or snapshot another allocation policy.
    fn change_policy(&mut self) {
        let owners: Vec<_> = self.pool().state().owners.iter().filter(|o| !o.name.is_empty()).map(|o| o.id).collect();
        if owners.is_empty() {
            return;
        }
        let id = *self.rng.pick(&owners);
        let (policy, on) = self.draw_policy();
        let mut image = self.pool().state().owners.get(id).expect("just seen").clone();
        (image.allocation, image.on) = (policy, on);
        if self.pool().alter(id, image).is_ok() {
            self.policy_changed = true;
            self.counters.add(
                "move",
                if policy == AllocationPolicy::Spread { "placed anywhere" } else { "placed otherwise" },
                1,
            );
            self.note(|| format!("place owner {id} on {on:x}"), u64::from(id));
        }
    }

    /// Verifies at rest that every block is where its policy allows it, if there is space for that.
    pub(super) fn verify_moved(&mut self) -> Check {
        // Once a volume is independent, its deleted ancestors can be merged, and their blocks have to move.
        self.flatten_all()?;
        let mut moving = self.move_step(1_000_000);
        for _ in 0..200 {
            if !matches!(moving, MoveStep::Some | MoveStep::Unreadable) {
                break;
            }
            self.quiesce()?;
            moving = self.move_step(1_000_000);
        }
        self.quiesce()?;
        match moving {
            MoveStep::Done => {}
            // The volumes fill the pool.
            MoveStep::Full => return Ok(()),
            other => return Err(format!("what should move does not come to an end: {other:?}")),
        }
        let pool: &Pool = self.pool.as_ref().expect("open");
        let state = pool.state();
        for (member, extents) in state.members() {
            for index in 0..extents {
                let record = state.record(braid_engine::pool::RecordId { member, index });
                let Some(owner) = state.owners.get(record.owner) else { continue };
                if owner.allocation_members() >> member & 1 == 0 {
                    return Err(format!("extent {index} of member {member} is still of owner {}", owner.id));
                }
            }
        }
        for member in &self.closed {
            if !pool.is_member_empty(*member as u8) {
                let used =
                    |index: &u32| state.record(braid_engine::pool::RecordId { member: *member as u8, index: *index });
                let records = state.records.extents(*member as u8) + state.zero_slots(*member as u8);
                let left: Vec<_> =
                    (0..records).map(|index| (index, used(&index))).filter(|(_, r)| r.owner != 0).collect();
                return Err(format!("member {member} is closed, and not empty: {left:?}"));
            }
        }
        match state.owners.iter().find(|owner| owner.also_on != 0) {
            Some(owner) => Err(format!("owner {} says still that it has blocks on {:x}", owner.id, owner.also_on)),
            None => Ok(()),
        }
    }
}
