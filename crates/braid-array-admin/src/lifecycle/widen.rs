//! Adds a vacant slot to a mirror, or removes one.
//!
//! | procedure | before | between | after, when it is acknowledged |
//! |---|---|---|---|
//! | widen | label n | n + 1 on some, in-sync members first | n + 1 on all: a vacant slot behind the others; spares have the next numbers |
//! | narrow | label n: the slot is vacant | the same | n + 1 on all, without that slot; the slots behind it are renumbered, each one lower |
//!
//! No data moves, no member changes its state, and the array keeps its size, its bitmap and its lineage. So after a
//! crash, members with label n and members with n + 1 hold the same content, although the widths differ. A disk takes
//! the new slot as it takes any vacant slot ([`Array::begin_rebuild`]).
//!
//! A mirror of one member is recorded with `copies` 1. If it gains a slot, `copies` becomes 2; if a mirror is left with
//! one slot, `copies` becomes 1.

use braid_engine::{LeafId, MetaIo};
use braid_format::{ArrayPart, JOBS_MAX, MEMBERS_MAX, MemberEntry, MemberId, MemberState, zone_table};
use braid_geometry::{Geometry, Level, Zone};

use super::array::Array;
use super::error::LifecycleError;
use super::lineage::RebuildKind;
use super::losses::Losses;
use super::members::RebuildTarget;
use super::write::Target;

/// Returns a refusal with its reason and remedy.
fn refuse(wider: bool, reason: impl Into<String>, remedy: &str) -> LifecycleError {
    LifecycleError::WidthUnchangeable { wider, reason: reason.into(), remedy: remedy.to_owned() }
}

impl Array {
    /// Adds a vacant slot to a mirror, behind the existing ones, for a disk to take ([`Array::begin_rebuild`]). Every
    /// zone has a copy there. Returns its number. The array may be served meanwhile.
    ///
    /// # Errors
    /// [`LifecycleError::WidthUnchangeable`] before anything was written, or [`LifecycleError::BeyondTolerance`]. A
    /// member that fails is dropped.
    pub async fn widen<M: MetaIo>(&mut self, io: &M) -> Result<u16, LifecycleError> {
        self.complete(io).await?;
        self.check_width(true)?;
        let mut next = self.next();
        let role = self.slots();
        let entry =
            MemberEntry { id: None, data_bytes: self.copy_bytes(), state: MemberState::Empty, write_mostly: false };
        let spares = next.members.split_off(usize::from(role));
        next.members.push(entry);
        // Free numbers between spares are not kept.
        next.members.extend(spares.into_iter().filter(|spare| spare.state != MemberState::Empty));
        if next.members.len() > MEMBERS_MAX {
            let reason = format!("an array has at most {MEMBERS_MAX} members, spares included");
            return Err(refuse(true, reason, "let disks take the roles that are nobody's, or remove a spare"));
        }
        let mut zones = self.geometry.zones().to_vec();
        zones.iter_mut().for_each(|zone| zone.members.push(role));
        self.set_zones(&mut next, zones, true)?;
        self.record(io, next, Losses::default()).await?;
        Ok(role)
    }

    /// Adds a slot to a mirror and lets a disk take it: when this returns, the disk takes every write, and content may
    /// be copied to it. Returns the slot's number.
    ///
    /// # Errors
    /// A refusal before anything was written, or the disk's error: then the array has its old width, if its members can
    /// be written. Or [`LifecycleError::BeyondTolerance`].
    pub async fn widen_by<M: MetaIo>(
        &mut self,
        io: &M,
        leaf: LeafId,
        id: MemberId,
        force: bool,
    ) -> Result<u16, LifecycleError> {
        self.check_width(true)?;
        if self.label.jobs.len() >= JOBS_MAX {
            return Err(LifecycleError::JobsFull);
        }
        // The disk is checked before anything is written, and again when it takes the slot.
        let what = "a copy of the array".to_owned();
        self.new_member(io, leaf, id, self.copy_bytes(), what, force).await?;
        let role = self.widen(io).await?;
        let taken = self.begin_rebuild(io, role, RebuildTarget::New { leaf, id, force }, RebuildKind::Full).await;
        if matches!(&taken, Err(error) if !matches!(error, LifecycleError::BeyondTolerance { .. })) {
            // If the members cannot be written, the slot remains, and is vacant or failed.
            if self.state(role) == MemberState::Failed {
                let _ = self.remove(io, role).await;
            }
            let _ = self.narrow(io, role).await;
        }
        taken.map(|()| role)
    }

    /// Returns the size of the data area, in bytes, that a member with a copy of the whole array needs.
    fn copy_bytes(&self) -> u64 {
        self.geometry.zones().iter().map(Zone::member_end).max().unwrap_or(0)
    }

    /// Removes a vacant slot of a mirror. The slots behind it are renumbered, each one lower, so it is refused while
    /// one of them is failed or rebuilding.
    ///
    /// # Errors
    /// As for [`Array::widen`].
    pub async fn narrow<M: MetaIo>(&mut self, io: &M, role: u16) -> Result<(), LifecycleError> {
        self.complete(io).await?;
        self.check_width(false)?;
        if role >= self.slots() || self.state(role) != MemberState::Empty {
            let reason = if role < self.slots() { "is somebody's" } else { "is none that it has" };
            let remedy = "fail and remove that member first (array fail, array remove)";
            return Err(refuse(false, format!("role {role} {reason}"), remedy));
        }
        let moves = |role: u16| !matches!(self.state(role), MemberState::InSync | MemberState::Empty);
        if let Some(other) = (role + 1..self.slots()).find(|role| moves(*role)) {
            let reason = format!("member {other}, behind it, would get another number, and is not in sync");
            return Err(refuse(false, reason, "wait until it is, or take it off the table"));
        }
        let mut next = self.next();
        next.members.remove(usize::from(role));
        let mut zones = self.geometry.zones().to_vec();
        for zone in &mut zones {
            zone.members.retain(|member| *member != role);
            zone.members.iter_mut().filter(|member| **member > role).for_each(|member| *member -= 1);
        }
        self.set_zones(&mut next, zones, false)?;
        self.record(io, next, Losses::default()).await?;
        // Former members of later slots can only come back as new members.
        self.candidates.retain(|(candidate, _)| candidate.slot < role);
        Ok(())
    }

    fn check_width(&self, wider: bool) -> Result<(), LifecycleError> {
        if self.label.spec.level != Level::Raid1 {
            let reason = format!("it is {}; only raid1 has a copy of everything on each member", self.label.spec.level);
            return Err(refuse(wider, reason, "copy its content to another array"));
        }
        if self.successors().next().is_some() {
            return Err(refuse(wider, "a member is being replaced", "wait until that job has ended, or cancel it"));
        }
        Ok(())
    }

    /// Sets the zones of a label, and what follows from the number of slots. Refuses what the label cannot hold before
    /// anything is written.
    fn set_zones(&self, next: &mut ArrayPart, zones: Vec<Zone>, wider: bool) -> Result<(), LifecycleError> {
        let roles = zones.iter().flat_map(|zone| zone.members.last()).max().map_or(0, |last| usize::from(*last) + 1);
        if wider && next.spec.copies == 1 {
            next.spec.copies = 2;
        } else if roles == 1 {
            next.spec.copies = 1;
        }
        let elsewhere = "copy its content to another array";
        let sizes: Vec<u64> = next.members.iter().take(roles).map(|member| member.data_bytes).collect();
        let geometry = Geometry::from_zones(next.spec, &sizes, zones).map_err(|_| {
            let reason = match wider {
                true => "parts of it lie at the same place of different disks, so that no disk can have a copy of all",
                false => "part of it would have one copy only",
            };
            refuse(wider, reason, elsewhere)
        })?;
        next.zones = zone_table(&geometry);
        let says = |target: &Target| target.label(next).encode().map(drop);
        self.targets.iter().try_for_each(says).map_err(|error| refuse(wider, error.to_string(), elsewhere))
    }
}
