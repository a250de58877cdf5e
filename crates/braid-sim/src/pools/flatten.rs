//! Flattening: volumes become independent of their parents while everything else continues.

use braid_engine::pool::{AdminError, FlattenStep, PoolOp, RecordId};
use braid_format::pool::{OwnerKind, RecordKind};

use super::parameters::Moment;
use super::world::{Check, Io, Lifecycle, PendingIo, World};

impl World {
    /// Draws and performs one step that concerns flattening.
    pub(super) fn random_flatten(&mut self) {
        match self.rng.below(16) {
            0 | 1 => self.flatten_one(),
            2 if self.rng.chance(100_000) => self.cancel_flattening(),
            // There must be something to flatten.
            3 if self.models.len() < 12 && self.calls.is_empty() => self.clone_one(),
            _ => {
                let records = 1 + self.rng.below(40) as u32;
                self.flatten_step(records);
            }
        }
    }

    fn some_volume(&mut self) -> Option<u32> {
        let there =
            self.models.values().filter(|model| model.snapshot_of.is_none() && model.lifecycle == Lifecycle::Exists);
        let all: Vec<_> = there.filter_map(|model| self.owner_of(model.uuid)).collect();
        // Most volumes have only their own snapshots as ancestors.
        let owners = &self.pool().state().owners;
        let others = |id: &u32| {
            let of = |other: u32| owners.get(other).map(|o| if o.volume.is_nil() { o.uuid } else { o.volume });
            owners.chain(*id).into_iter().any(|other| of(other) != of(*id))
        };
        let dependent: Vec<_> = all.iter().copied().filter(others).collect();
        let mut some = if dependent.is_empty() { all } else { dependent };
        if self.parameters.interrupts_flattening > 0 && some.iter().any(|id| self.has_part_of_an_extent(*id)) {
            some.retain(|id| self.has_part_of_an_extent(*id));
        }
        (!some.is_empty()).then(|| *self.rng.pick(&some))
    }

    /// Returns whether flattening would copy blocks into an extent of which the volume has a part already.
    fn has_part_of_an_extent(&self, id: u32) -> bool {
        let state = self.pool.as_ref().expect("open").state();
        let mut all = state.members().flat_map(|(member, extents)| (0..extents).map(move |index| (member, index)));
        all.any(|(member, index)| {
            let record = state.record(RecordId { member, index });
            (record.kind, record.owner) == (RecordKind::Whole, id) && record.present | record.zero != u64::MAX
        })
    }

    fn clone_one(&mut self) {
        let of =
            self.models.values().filter(|model| model.snapshot_of.is_some() && model.lifecycle == Lifecycle::Exists);
        let all: Vec<_> = of.map(|model| model.uuid).collect();
        let volumes = self.models.len() - all.len();
        if !all.is_empty() && volumes < 5 {
            let of = *self.rng.pick(&all);
            self.create(Some(of));
        }
    }

    fn flatten_one(&mut self) {
        let Some(owner) = self.some_volume() else { return };
        // A volume that no request uses may be deleted at any time.
        if self.parameters.interrupts_flattening > 0
            && let Some(model) = self.models.values().find(|model| self.owner_of(model.uuid) == Some(owner))
            && let (uuid, Some(served)) = (model.uuid, model.served)
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

    fn cancel_flattening(&mut self) {
        let Some(owner) = self.some_volume() else { return };
        if !self.pool().flattened_for(owner).is_empty() && self.pool().cancel_flatten(owner) {
            self.counters.add("flatten", "called off", 1);
        }
    }

    fn copies_in_flight(&self) -> bool {
        let copies = |in_flight: &PendingIo| match &in_flight.io {
            Io::Pool { io, .. } => matches!(io.op, PoolOp::Copy { .. }),
            Io::Copied { .. } => true,
            _ => false,
        };
        self.ios.iter().any(copies)
    }

    /// Deletes or rolls back the volume that is being flattened while copies to it are in flight.
    pub(super) fn interrupt_flattening(&mut self) {
        if !self.copies_in_flight() || !self.rng.chance(self.parameters.interrupts_flattening) {
            return;
        }
        let Some((owner, ..)) = self.pool().flattening() else { return };
        let Some(uuid) = self.pool().state().owners.get(owner).map(|owner| owner.uuid) else { return };
        let Some(model) = self.models.get(&uuid) else { return };
        if model.lifecycle != Lifecycle::Exists
            || model.blocks_before.is_some()
            || self.is_busy(uuid)
            || self.calls.len() > 2
        {
            return;
        }
        let (is_volume, served) = (model.snapshot_of.is_none(), model.served);
        match served {
            Some(served) if self.is_used(served) => return,
            Some(served) => self.leave(uuid, served),
            None => {}
        }
        let snapshots =
            self.models.values().filter(|model| model.snapshot_of.is_some() && model.lifecycle == Lifecycle::Exists);
        let snapshots: Vec<_> = snapshots.map(|model| model.uuid).filter(|uuid| !self.is_busy(*uuid)).collect();
        let what = if is_volume && !snapshots.is_empty() && self.rng.coin() {
            let to = *self.rng.pick(&snapshots);
            self.roll_back(uuid, to);
            "rolled back under it"
        } else {
            self.delete(uuid);
            "deleted under it"
        };
        if self.models[&uuid].lifecycle != Lifecycle::Exists {
            self.counters.add("flatten", what, 1);
        }
    }

    pub(super) fn flatten_step(&mut self, records: u32) -> FlattenStep {
        let step = self.count_changes("flatten", |pool| pool.flatten_step(records));
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
                self.violation = Some(format!("owner {owner} has been flattened, and has parent {parent:?}"));
            }
            self.note_moment(Moment::Merged);
        }
        step
    }

    /// Verifies at rest that a volume becomes independent, if there is space for it.
    pub(super) fn verify_flattened(&mut self) -> Check {
        self.flatten_one();
        self.flatten_all()?;
        let owners = &self.pool().state().owners;
        if let Some(owner) = owners.iter().find(|owner| owner.flattening) {
            return Err(format!("the flattening of owner {} does not come to an end", owner.id));
        }
        // Every remaining owner is complete without the flattened one's ancestors.
        if let Some(lost) = owners.iter().find(|owner| owner.parent != 0 && owners.get(owner.parent).is_none()) {
            return Err(format!("owner {} has a parent that is not there", lost.id));
        }
        let volumes = owners.iter().filter(|owner| owner.kind == OwnerKind::Volume).count() as u64;
        self.counters.add("flatten", "volumes at rest", volumes);
        self.verify_at_rest()
    }

    /// Flattens until nothing is left to flatten.
    pub(super) fn flatten_all(&mut self) -> Check {
        for _ in 0..300 {
            if !self.flattens || self.flatten_step(1_000_000) == FlattenStep::Nothing {
                break;
            }
            self.quiesce()?;
        }
        Ok(())
    }
}
