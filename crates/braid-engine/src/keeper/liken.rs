//! A member that is being filled and has most of what it gets already: somebody has made it what another member was a while ago, and
//! knows what that one was written since.
//!
//! That may be looked up as soon as every write goes to both ([`Keeper::liken`]): what was written before is part of what is found,
//! and of what is written later nobody lacks anything. Whatever is not known to be equal is copied whole: regions that a crash left
//! unequal, as any member may be the one that is right there.

use std::ops::Range;
use std::sync::Arc;

use braid_format::MemberState;
use braid_geometry::Level;

use super::Keeper;
use super::absences::Lacked;
use crate::io::LeafId;
use crate::lifecycle::LifecycleError;
use crate::missed::Missed;
use crate::planted::{Planted, planted};

/// With whom a member is compared by somebody.
pub(super) struct Likeness {
    with: LeafId,
    /// The regions that were not equal on all members.
    unsettled: Vec<u64>,
}

fn refused(role: u16, reason: &str) -> LifecycleError {
    LifecycleError::Role { role, reason: reason.to_owned() }
}

impl Keeper {
    /// From now on somebody looks for what a member that is being filled lacks of what another one has.
    pub(super) fn liken(&mut self, role: u16, with: LeafId) -> Result<(), LifecycleError> {
        if self.options.lease.is_none() || self.array.geometry().spec().level != Level::Raid1 {
            return Err(refused(role, "only replicas that have everything are like each other"));
        }
        self.sound_model(role, with)?;
        let map = Arc::clone(&self.regions);
        let fill = self.fills.get_mut(&role).ok_or_else(|| refused(role, "it is not being filled"))?;
        if fill.lacks_known() {
            return Err(refused(role, "it is known what it lacks"));
        }
        if !fill.takes_writes() && !planted(Planted::LikenedEarly) {
            return Err(refused(role, "it does not take every write yet"));
        }
        let words = (map.regions() as usize).div_ceil(64);
        let unsettled = (0..words).map(|word| map.unsettled.word(word)).collect();
        fill.likeness = Some(Likeness { with, unsettled });
        Ok(())
    }

    /// It lacks no more than these bytes of the array.
    pub(super) fn differs(&mut self, role: u16, with: LeafId, ranges: &[Range<u64>]) -> Result<(), LifecycleError> {
        let of = self.sound_model(role, with)?;
        let fill = self.fills.get_mut(&role).ok_or_else(|| refused(role, "it is not being filled"))?;
        let is_ready = fill.takes_writes();
        let likeness = fill.likeness.take_if(|likeness| likeness.with == with && is_ready);
        let likeness = likeness.ok_or_else(|| refused(role, "it was not likened with that member"))?;
        let missed = Missed::new(self.array.geometry().size_bytes());
        if !planted(Planted::LackedForgotten) {
            ranges.iter().for_each(|range| missed.note(range.start, range.end));
        }
        // On a mirror each byte has the same place on all members, as far as they reach.
        missed.note(self.array.geometry().members()[usize::from(of)], u64::MAX);
        let lacked = Lacked::new(missed.blocks(), likeness.unsettled);
        fill.lacks_only(lacked, &self.regions);
        // Regions that were half copied are passed over now, or begun again.
        self.begun.retain(|_, begun| !begun.to.has(usize::from(role)));
        Ok(())
    }

    /// A member that was left out may have come back as something older.
    pub(super) fn forget_likeness(&mut self) {
        let in_sync: Vec<LeafId> =
            self.array.members().filter(|m| m.state == MemberState::InSync).map(|m| m.leaf).collect();
        for fill in self.fills.values_mut() {
            fill.likeness.take_if(|likeness| !in_sync.contains(&likeness.with));
        }
    }

    /// The role of the member that another one is to be like.
    fn sound_model(&self, role: u16, with: LeafId) -> Result<u16, LifecycleError> {
        let mut members = self.array.members().filter(|member| member.state == MemberState::InSync);
        let model = members.find(|member| member.leaf == with && member.role != role);
        let model = model.ok_or_else(|| refused(role, "the member that it is to be like is not in sync"))?;
        Ok(model.role)
    }
}
