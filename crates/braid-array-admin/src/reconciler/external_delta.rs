//! Delta resync of a rebuilding member from a base outside of the engine: the member was made equal to another member
//! at an earlier time, and the caller knows what has been written to that member since.
//!
//! The delta may be determined as soon as every write goes to both members ([`Reconciler::begin_delta`]): earlier writes
//! are part of the delta, and later ones reach both. Regions that are not known to be equal are copied as a whole: in a
//! region that a crash left unequal, any member may be the one that is right.

use std::ops::Range;
use std::sync::Arc;

use braid_engine::{LeafId, MissedWrites};
use braid_format::MemberState;
use braid_geometry::Level;

use super::Reconciler;
use super::dirty_log::Delta;
use crate::lifecycle::LifecycleError;

/// The member that a delta is being determined against.
pub(super) struct DeltaBase {
    with: LeafId,
    /// The regions that were unequal when the delta was begun.
    unsettled: Vec<u64>,
}

fn refused(role: u16, reason: &str) -> LifecycleError {
    LifecycleError::Slot { slot: role, reason: reason.to_owned() }
}

impl Reconciler {
    /// Begins to determine what a rebuilding member lacks compared with a member in sync.
    pub(super) fn begin_delta(&mut self, role: u16, with: LeafId) -> Result<(), LifecycleError> {
        if self.options.lease.is_none() || self.array.geometry().spec().level != Level::Raid1 {
            return Err(refused(role, "only replicas that have everything are like each other"));
        }
        self.base_slot(role, with)?;
        let map = Arc::clone(&self.regions);
        let rebuild = self.rebuilds.get_mut(&role).ok_or_else(|| refused(role, "it is not being rebuilt"))?;
        if rebuild.is_delta_known() {
            return Err(refused(role, "it is known what it lacks"));
        }
        if !rebuild.takes_writes() {
            return Err(refused(role, "it does not take every write yet"));
        }
        let words = (map.regions() as usize).div_ceil(64);
        let unsettled = (0..words).map(|word| map.unequal.word(word)).collect();
        rebuild.delta_base = Some(DeltaBase { with, unsettled });
        Ok(())
    }

    /// Reduces the rebuild to these bytes of the array, the unsettled regions, and what lies beyond the end of the base
    /// member.
    pub(super) fn apply_delta(&mut self, role: u16, with: LeafId, ranges: &[Range<u64>]) -> Result<(), LifecycleError> {
        let of = self.base_slot(role, with)?;
        let rebuild = self.rebuilds.get_mut(&role).ok_or_else(|| refused(role, "it is not being rebuilt"))?;
        let is_ready = rebuild.takes_writes();
        let delta_base = rebuild.delta_base.take_if(|delta_base| delta_base.with == with && is_ready);
        let delta_base = delta_base.ok_or_else(|| refused(role, "it was not likened with that member"))?;
        let missed = MissedWrites::new(self.array.geometry().size_bytes());
        ranges.iter().for_each(|range| missed.record(range.start, range.end));
        // In a mirror each byte has the same member offset on all members, up to their sizes.
        missed.record(self.array.geometry().member_data_bytes()[usize::from(of)], u64::MAX);
        let delta = Delta::new(missed.blocks(), delta_base.unsettled);
        rebuild.set_delta(delta, &self.regions);
        // Regions copied in part are skipped now, or begun again.
        self.begun.retain(|_, begun| !begun.to.has(usize::from(role)));
        Ok(())
    }

    /// Drops the bases that are no longer in sync: such a member may return with an older content.
    pub(super) fn forget_delta_bases(&mut self) {
        let in_sync: Vec<LeafId> =
            self.array.members().filter(|m| m.state == MemberState::InSync).map(|m| m.leaf).collect();
        for rebuild in self.rebuilds.values_mut() {
            rebuild.delta_base.take_if(|delta_base| !in_sync.contains(&delta_base.with));
        }
    }

    /// Returns the slot of the member in sync that a rebuilding member is compared with.
    fn base_slot(&self, role: u16, with: LeafId) -> Result<u16, LifecycleError> {
        let mut members = self.array.members().filter(|member| member.state == MemberState::InSync);
        let base = members.find(|member| member.leaf == with && member.number != role);
        let base = base.ok_or_else(|| refused(role, "the member that it is to be like is not in sync"))?;
        Ok(base.number)
    }
}
