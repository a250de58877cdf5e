//! Moving: members are emptied and used again, volumes are placed otherwise, while everything else goes on.

use braid_engine::pool::{MemberRemoval, MoveStep, Pool};
use braid_format::pool::AllocationPolicy;

use super::world::{Check, World};

impl World {
    /// Something of what moves blocks.
    pub(super) fn move_something(&mut self) {
        match self.rng.below(10) {
            0 => self.close_or_open(),
            1 => self.place_otherwise(),
            2 => self.let_one_go(),
            3 => self.compact(),
            _ => {
                let records = 1 + self.rng.below(60) as u32;
                self.move_on(records);
            }
        }
    }

    pub(super) fn move_on(&mut self, records: u32) -> MoveStep {
        let moving = self.watched("move", |pool| pool.move_step(records));
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

    /// A member is to be empty, or is used again. One is left for the rest.
    fn close_or_open(&mut self) {
        let here = self.here();
        let member = usize::from(*self.rng.pick(&here));
        if self.closed.remove(&member) {
            self.shut.remove(&member);
            self.pool().close_member(member as u8, false);
        } else if self.closed.len() + 1 < here.len() {
            if self.rng.coin() && self.nature.thick == 0 {
                self.pool().close_member(member as u8, true);
                self.shut.insert(member);
            } else if self.pool().empty_member(member as u8).is_err() {
                return;
            }
            self.closed.insert(member);
            self.counters.add("move", "members closed", 1);
        }
        self.note(|| format!("close or open member {member}"), member as u64);
    }

    /// Counts what was put together since this was asked last.
    pub(super) fn count_put_together(&mut self) {
        let now = self.pool().extents_consolidated();
        let (gathered, merged) = std::mem::replace(&mut self.put_together, now);
        self.counters.add("compact", "into whole ones", now.0.saturating_sub(gathered));
        self.counters.add("compact", "into packed ones", now.1.saturating_sub(merged));
    }

    /// What somebody has scattered is put together.
    fn compact(&mut self) {
        if self.pool().is_compacting() {
            let records = 1 + self.rng.below(2000) as u32;
            let moving = self.watched("compact", |pool| pool.compact_step(records));
            let what = if moving == MoveStep::Full { "no space" } else { "steps" };
            return self.counters.add("compact", what, 1);
        }
        let owners: Vec<_> = self.pool().state().owners.iter().map(|owner| owner.id).collect();
        if !owners.is_empty() {
            self.note(|| format!("compact {owners:?}"), owners.len() as u64);
            // Some at a time, as where there are more than is to be kept in mind.
            match self.now % 3 {
                0 => self.pool().compact(owners),
                one => self.pool().compact_with_limit(owners, one * 40),
            }
        }
    }

    /// A member on which nothing stands any more leaves the pool, for good.
    fn let_one_go(&mut self) {
        // Not one that is being added: whoever serves the pool does one after the other.
        let added = self.growing.as_ref().map(|growing| growing.device.number);
        let mut closed = self.closed.iter().map(|member| *member as u8);
        let closed = closed.find(|member| Some(*member) != added);
        // Whoever serves the pool may ask for one that was not closed, or was opened again: it has to stay.
        let Some(member) = closed.or_else(|| self.empty_by_chance()) else { return };
        if self.gone.contains(&member) {
            if self.pool().drop_member(member) {
                self.closed.remove(&usize::from(member));
                self.counters.add("move", "members gone", 1);
            }
            return;
        }
        if self.devices.len() > 1 && self.pool().remove_member_step(member) == MemberRemoval::Ready && self.rng.coin() {
            // All labels are written at once, which is whoever serves the pool's affair.
            let (parted, stay) = self.devices.drain(..).partition(|device| device.number == member);
            self.devices = stay;
            self.parted.extend::<Vec<_>>(parted);
            self.gone.insert(member);
            self.closed.insert(usize::from(member));
            self.note(|| format!("the labels lack member {member}"), u64::from(member));
        }
    }

    /// A member that is used, and has nothing.
    fn empty_by_chance(&mut self) -> Option<u8> {
        let here = self.here();
        let pool = self.pool();
        here.into_iter().find(|member| pool.is_member_empty(*member))
    }

    /// A volume or snapshot goes to other members.
    fn place_otherwise(&mut self) {
        let owners: Vec<_> = self.pool().state().owners.iter().filter(|o| !o.name.is_empty()).map(|o| o.id).collect();
        if owners.is_empty() {
            return;
        }
        let id = *self.rng.pick(&owners);
        let (place, on) = self.draw_placing();
        let mut image = self.pool().state().owners.get(id).expect("just seen").clone();
        (image.allocation, image.on) = (place, on);
        if self.pool().alter(id, image).is_ok() {
            self.placed_otherwise = true;
            self.counters.add(
                "move",
                if place == AllocationPolicy::Spread { "placed anywhere" } else { "placed otherwise" },
                1,
            );
            self.note(|| format!("place owner {id} on {on:x}"), u64::from(id));
        }
    }

    /// Where nothing else is under way: everything stands where it should, if there is space for that.
    pub(super) fn verify_moved(&mut self) -> Check {
        // When one is independent of others, what was deleted may be folded, and has to move.
        self.flatten_to_the_end()?;
        let mut moving = self.move_on(1_000_000);
        for _ in 0..200 {
            if !matches!(moving, MoveStep::Some | MoveStep::Unreadable) {
                break;
            }
            self.quiesce()?;
            moving = self.move_on(1_000_000);
        }
        self.quiesce()?;
        match moving {
            MoveStep::Done => {}
            // Everybody fills what there is.
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
