//! A mirror that gets one role more, or gives one up: nobody's before, nobody's after.
//!
//! | procedure | before | between | after, when it is acknowledged |
//! |---|---|---|---|
//! | widen | label n | n + 1 on some, in-sync members first | n + 1 on all: a role behind the others, which is nobody's; spares have the next numbers |
//! | narrow | label n: the role is nobody's | the same | n + 1 on all, without that role; who is behind it has the number before |
//!
//! No byte moves, no member becomes anything else, and the array has its size, its bitmap and its line: who bears label n, of the one
//! width, is what it is by label n + 1, of the other. A role that is nobody's is taken as any other is
//! ([`Array::begin_filling`]).
//!
//! A mirror of one member that was asked for as such (`copies` 1) is one of two from then on, and asked for as such; and the other way
//! back.

use braid_format::{ArrayPart, JOBS_MAX, MEMBERS_MAX, MemberEntry, MemberId, MemberState, zone_table};
use braid_geometry::{Geometry, Level, Zone};

use super::array::{Array, Filling};
use super::error::LifecycleError;
use super::members::Newcomer;
use super::planted::{Planted, planted};
use super::record::Losses;
use super::write::Target;
use crate::{LeafId, MetaIo};

/// What stands in the way, and what helps.
fn refuse(wider: bool, reason: impl Into<String>, remedy: &str) -> LifecycleError {
    LifecycleError::NoWidth { wider, reason: reason.into(), remedy: remedy.to_owned() }
}

impl Array {
    /// Gives a mirror one role more, behind those that it has: nobody's, until a disk takes it ([`Array::begin_filling`]). Every zone has
    /// a copy there. Returns its number. The array may be served meanwhile.
    ///
    /// # Errors
    /// [`LifecycleError::NoWidth`], before anything was written; or [`LifecycleError::Beyond`]. A member that fails is dropped.
    pub async fn widen<M: MetaIo>(&mut self, io: &M) -> Result<u16, LifecycleError> {
        self.complete(io).await?;
        self.check_width(true)?;
        let mut next = self.next();
        let role = self.roles();
        let entry =
            MemberEntry { id: None, data_bytes: self.copy_bytes(), state: MemberState::Absent, write_mostly: false };
        let spares = next.members.split_off(usize::from(role));
        next.members.push(entry);
        // Numbers between spares that are nobody's are not kept.
        next.members.extend(spares.into_iter().filter(|spare| spare.state != MemberState::Absent));
        if next.members.len() > MEMBERS_MAX {
            let reason = format!("an array has at most {MEMBERS_MAX} members, spares included");
            return Err(refuse(true, reason, "let disks take the roles that are nobody's, or remove a spare"));
        }
        let mut zones = self.geometry.zones().to_vec();
        zones.iter_mut().for_each(|zone| zone.members.push(role));
        self.set_zones(&mut next, zones, true)?;
        if planted(Planted::WidenedInMemory) {
            self.geometry = next.geometry()?;
            (self.label, self.written) = (next.clone(), next);
            return Ok(role);
        }
        self.record(io, next, Losses::default()).await?;
        Ok(role)
    }

    /// Gives a mirror one role more, which a disk takes: from the moment that this returns it takes every write, and its content may be
    /// copied. Returns its number.
    ///
    /// # Errors
    /// What was refused, before anything was written, or the disk's error: then the array is as wide as before, if its members can be
    /// written. Or [`LifecycleError::Beyond`].
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
        // It is looked at before anything is written, and once more when it takes the role.
        let what = "a copy of the array".to_owned();
        self.new_member(io, leaf, id, self.copy_bytes(), what, force).await?;
        let role = self.widen(io).await?;
        let taken = self.begin_filling(io, role, Newcomer::New { leaf, id, force }, Filling::Full).await;
        if matches!(&taken, Err(error) if !matches!(error, LifecycleError::Beyond { .. })) {
            // As far as the members can be written; else the role is there, and nobody's.
            if self.state(role) == MemberState::Out {
                let _ = self.remove(io, role).await;
            }
            let _ = self.narrow(io, role).await;
        }
        taken.map(|()| role)
    }

    /// Room that a copy of everything takes, in bytes.
    fn copy_bytes(&self) -> u64 {
        self.geometry.zones().iter().map(Zone::member_end).max().unwrap_or(0)
    }

    /// Takes a role of a mirror away that is nobody's. Those behind it have the numbers before theirs from then on, and so it is refused
    /// while one of them is out or being filled.
    ///
    /// # Errors
    /// As of [`Array::widen`].
    pub async fn narrow<M: MetaIo>(&mut self, io: &M, role: u16) -> Result<(), LifecycleError> {
        self.complete(io).await?;
        self.check_width(false)?;
        if role >= self.roles() || self.state(role) != MemberState::Absent {
            let reason = if role < self.roles() { "is somebody's" } else { "is none that it has" };
            let remedy = "let that member be left out and taken off the table first (array fail, array remove)";
            return Err(refuse(false, format!("role {role} {reason}"), remedy));
        }
        let moves = |role: u16| !matches!(self.state(role), MemberState::InSync | MemberState::Absent);
        if let Some(other) = (role + 1..self.roles()).find(|role| moves(*role)) {
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
        // What disks here could be again, they can be as new members.
        self.candidates.retain(|(candidate, _)| candidate.role < role);
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

    /// Gives a label these zones, and what follows from how many roles there are. What it cannot hold is refused before anything is
    /// written.
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
