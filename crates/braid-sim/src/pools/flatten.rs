//! Flattening: volumes become independent of what they began as, while everything else goes on.

use braid_engine::pool::{AdminError, FlattenStep, PoolOp, RecordId};
use braid_format::pool::{OwnerKind, RecordKind};

use super::nature::Moment;
use super::world::{Check, Io, Life, Out, World};

impl World {
    /// Something of it.
    pub(super) fn flatten_something(&mut self) {
        match self.rng.below(16) {
            0 | 1 => self.flatten_one(),
            2 if self.rng.chance(100_000) => self.keep_a_parent(),
            // There has to be something to flatten.
            3 if self.known.len() < 12 && self.asked.is_empty() => self.clone_one(),
            _ => {
                let records = 1 + self.rng.below(40) as u32;
                self.flatten_on(records);
            }
        }
    }

    fn some_volume(&mut self) -> Option<u32> {
        let there = self.known.values().filter(|known| known.of.is_none() && known.life == Life::There);
        let all: Vec<_> = there.filter_map(|known| self.owner_of(known.uuid)).collect();
        // Most have nothing but their own snapshots before them.
        let owners = &self.pool().state().owners;
        let others = |id: &u32| {
            let of = |other: u32| owners.get(other).map(|o| if o.volume.is_nil() { o.uuid } else { o.volume });
            owners.chain(*id).into_iter().any(|other| of(other) != of(*id))
        };
        let dependent: Vec<_> = all.iter().copied().filter(others).collect();
        let mut some = if dependent.is_empty() { all } else { dependent };
        if self.nature.ends_flattened > 0 && some.iter().any(|id| self.has_part_of_an_extent(*id)) {
            some.retain(|id| self.has_part_of_an_extent(*id));
        }
        (!some.is_empty()).then(|| *self.rng.pick(&some))
    }

    /// Whether something would be copied into what it has already.
    fn has_part_of_an_extent(&self, id: u32) -> bool {
        let state = self.pool.as_ref().expect("open").state();
        let mut all = state.members().flat_map(|(member, extents)| (0..extents).map(move |index| (member, index)));
        all.any(|(member, index)| {
            let record = state.record(RecordId { member, index });
            (record.kind, record.owner) == (RecordKind::Whole, id) && record.present | record.zero != u64::MAX
        })
    }

    fn clone_one(&mut self) {
        let of = self.known.values().filter(|known| known.of.is_some() && known.life == Life::There);
        let all: Vec<_> = of.map(|known| known.uuid).collect();
        let volumes = self.known.len() - all.len();
        if !all.is_empty() && volumes < 5 {
            let of = *self.rng.pick(&all);
            self.create(Some(of));
        }
    }

    fn flatten_one(&mut self) {
        let Some(owner) = self.some_volume() else { return };
        // What nobody uses may be deleted any time.
        if self.nature.ends_flattened > 0
            && let Some(known) = self.known.values().find(|known| self.owner_of(known.uuid) == Some(owner))
            && let (uuid, Some(served)) = (known.uuid, known.served)
            && !self.is_used(served)
        {
            self.leave(uuid, served);
        }
        let what = match self.pool().flatten(owner) {
            Ok(tops) if tops.is_empty() => "nothing to do",
            Ok(tops) => {
                self.note(|| format!("flatten {tops:?} for owner {owner}"), u64::from(owner));
                if tops == [owner] { "of the volume" } else { "of its snapshots" }
            }
            Err(AdminError::NoSpace) => "refused for want of space",
            Err(AdminError::LogFull) => return,
            Err(AdminError::InDoubt | AdminError::Damaged) => "refused in doubt",
            Err(error) => unreachable!("what is refused to be flattened: {error}"),
        };
        self.counters.add("flatten", what, 1);
    }

    fn keep_a_parent(&mut self) {
        let Some(owner) = self.some_volume() else { return };
        if !self.pool().flattened_for(owner).is_empty() && self.pool().cancel_flatten(owner) {
            self.counters.add("flatten", "called off", 1);
        }
    }

    fn copies_are_out(&self) -> bool {
        let copies = |out: &Out| match &out.io {
            Io::Pool { io, .. } => matches!(io.op, PoolOp::Copy { .. }),
            Io::Copied { .. } => true,
            _ => false,
        };
        self.ios.iter().any(copies)
    }

    /// Deletes what is being flattened, or rolls it back, as long as copies to it are on their way.
    pub(super) fn end_flattened(&mut self) {
        if !self.copies_are_out() || !self.rng.chance(self.nature.ends_flattened) {
            return;
        }
        let Some((owner, ..)) = self.pool().flattening() else { return };
        let Some(uuid) = self.pool().state().owners.get(owner).map(|owner| owner.uuid) else { return };
        let Some(known) = self.known.get(&uuid) else { return };
        if known.life != Life::There || known.had.is_some() || self.busy(uuid) || self.asked.len() > 2 {
            return;
        }
        let (is_volume, served) = (known.of.is_none(), known.served);
        match served {
            Some(served) if self.is_used(served) => return,
            Some(served) => self.leave(uuid, served),
            None => {}
        }
        let snapshots = self.known.values().filter(|known| known.of.is_some() && known.life == Life::There);
        let snapshots: Vec<_> = snapshots.map(|known| known.uuid).filter(|uuid| !self.busy(*uuid)).collect();
        let what = if is_volume && !snapshots.is_empty() && self.rng.coin() {
            let to = *self.rng.pick(&snapshots);
            self.roll_back(uuid, to);
            "rolled back under it"
        } else {
            self.delete(uuid);
            "deleted under it"
        };
        if self.known[&uuid].life != Life::There {
            self.counters.add("flatten", what, 1);
        }
    }

    pub(super) fn flatten_on(&mut self, records: u32) -> FlattenStep {
        let step = self.watched("flatten", |pool| pool.flatten_step(records));
        let blocks = self.pool().blocks_copied();
        let more = blocks.saturating_sub(std::mem::replace(&mut self.flattened, blocks));
        self.counters.add("flatten", "blocks", more);
        let what = match step {
            FlattenStep::Nothing => "nothing",
            FlattenStep::Some => "steps",
            FlattenStep::Later => "waits",
            FlattenStep::Done(_) => "done",
            FlattenStep::Full(_) => "no space",
            FlattenStep::Unreadable(_) => "could not be copied",
        };
        self.counters.add("flatten", what, 1);
        if let FlattenStep::Done(owner) = step {
            let parent = self.pool().state().owners.get(owner).map(|owner| owner.parent);
            self.note(|| format!("flattened owner {owner}"), u64::from(owner));
            if parent != Some(0) {
                self.wrong = Some(format!("owner {owner} has been flattened, and has parent {parent:?}"));
            }
            self.happens(Moment::Folded);
        }
        step
    }

    /// Where nothing else is under way: a volume becomes independent, if there is space for that.
    pub(super) fn verify_flattened(&mut self) -> Check {
        self.flatten_one();
        self.flatten_to_the_end()?;
        let owners = &self.pool().state().owners;
        if let Some(owner) = owners.iter().find(|owner| owner.flattening) {
            return Err(format!("the flattening of owner {} does not come to an end", owner.id));
        }
        // Whoever has it is whole without the rest.
        if let Some(lost) = owners.iter().find(|owner| owner.parent != 0 && owners.get(owner.parent).is_none()) {
            return Err(format!("owner {} has a parent that is not there", lost.id));
        }
        let volumes = owners.iter().filter(|owner| owner.kind == OwnerKind::Volume).count() as u64;
        self.counters.add("flatten", "volumes at rest", volumes);
        self.verify_at_rest()
    }

    /// Goes on until nothing is left to be flattened.
    pub(super) fn flatten_to_the_end(&mut self) -> Check {
        for _ in 0..300 {
            if !self.flattens || self.flatten_on(1_000_000) == FlattenStep::Nothing {
                break;
            }
            self.quiesce()?;
        }
        Ok(())
    }
}
