//! Members that fail, return and are rebuilt, and spares: the changes of a started redundant array.
//!
//! | procedure | before | between | after, when it is acknowledged |
//! |---|---|---|---|
//! | drop | label n | (a) marks retired ([`Array::prepare_losses`]), survivors flushed; (b) n + 1 on some survivors in sync: a new lineage, the dropped members failed; (c) n + 1 on all of these | n + 1 on all but the dropped |
//! | begin rebuild | n: the slot is failed or vacant | (a) in-sync members n + 1: rebuilding; (b) others; (c) the new member, last | n + 1 on all: it takes every write from here on |
//! | checkpoint | n | (a) the rebuilding member flushed; (b) some n + 1 | n + 1 |
//! | promote | n: rebuilding | (a) the new member flushed; (b) in-sync members n + 1: in sync; (c) others; (d) the new member, last | n + 1 on all |
//!
//! A crash between two steps leaves the state before the procedure or the one after it: a new member that does not bear
//! its own label yet counts as failed.

use braid_engine::{LeafId, MetaIo};
use braid_format::{
    DiskLayout, JOBS_MAX, Job, JobKind, JobState, MEMBERS_MAX, MemberEntry, MemberId, MemberPart, MemberState,
    RetiredMarks,
};

use super::array::{Array, Candidate};
use super::bitmap::check_room;
use super::create::{clear, inspect};
use super::disk::{DiskOutcome, probe};
use super::erase::wipe;
use super::error::LifecycleError;
use super::journal;
use super::lineage::{MemberStanding, RebuildKind, rejoin_from, standing};
use super::losses::{Failure, Losses};
use super::member_table::is_rebuild_of;
use super::write::{LabelCopy, Target, flush};

/// The disk to rebuild.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RebuildTarget {
    /// The slot's own member: a [`Candidate`] that returns.
    Returning {
        /// Its disk.
        leaf: LeafId,
    },
    /// A disk that is not a member.
    New {
        /// The disk.
        leaf: LeafId,
        /// Its new identity: random.
        id: MemberId,
        /// Overwrite what is on it.
        force: bool,
    },
}

impl Array {
    /// Drops members: the survivors flush, and then record the drop in a new lineage. Until this returns, no write may
    /// be acknowledged and no read answered. A survivor that fails meanwhile is dropped too. Returns all failed slots.
    ///
    /// # Errors
    /// [`LifecycleError::BeyondTolerance`] if some of the array would be lost: the caller must fail the array. No label
    /// records the last members as failed.
    pub async fn drop_members<M: MetaIo>(&mut self, io: &M, roles: &[u16]) -> Result<Vec<u16>, LifecycleError> {
        self.check_redundant()?;
        // The disk of the journal is given up, not dropped: the heads have to record the ring's new location first.
        let no_member = [MemberState::Failed, MemberState::Empty, MemberState::Journal];
        let member = |role: &&u16| !no_member.contains(&self.state(**role));
        let mut losses = Losses::of(roles.iter().filter(member).copied().collect());
        if !losses.roles.is_empty() {
            self.prepare_losses(io, &mut losses).await?;
            self.record_losses(io, losses).await?;
        }
        Ok(self.failed())
    }

    /// Records that these members are dropped, after a flush of all others.
    pub(super) async fn record_losses<M: MetaIo>(&mut self, io: &M, mut losses: Losses) -> Result<(), LifecycleError> {
        self.complete(io).await?;
        // Completing the label may have dropped some of them.
        losses.roles.retain(|role| !matches!(self.state(*role), MemberState::Failed | MemberState::Empty));
        let mut next = self.next();
        self.mark_failed(&mut next, &losses.roles, &[]);
        self.record(io, next, losses).await.map(drop)
    }

    /// Returns the failed slots.
    pub fn failed(&self) -> Vec<u16> {
        (0..self.slots()).filter(|role| self.state(*role) == MemberState::Failed).collect()
    }

    /// Probes a disk that has appeared while the array serves: whether it is a failed member that may return. Writes
    /// nothing to it.
    ///
    /// # Errors
    /// [`LifecycleError::NoReturn`] with the reason.
    pub async fn probe_returning<M: MetaIo>(&mut self, io: &M, leaf: LeafId) -> Result<Candidate, LifecycleError> {
        let no = |reason: &str| LifecycleError::NoReturn { leaf, reason: reason.to_owned() };
        let found = probe(io, leaf).await;
        let disk = match found.outcome {
            DiskOutcome::Member(disk) if disk.label.array.uuid == self.uuid() => disk,
            DiskOutcome::Unusable { problem, .. } => return Err(no(&problem.to_string())),
            _ => return Err(no("it bears no label of this array")),
        };
        let id = disk.label.member.id;
        let role = self.label.members.iter().position(|m| m.id == Some(id));
        let role = role.ok_or_else(|| no("it was replaced and is no longer part of the array"))? as u16;
        if self.targets.iter().chain(&self.journal).any(|t| t.part.id == id) {
            return Err(no("that member is here already: this is a copy of it, or the same disk by a second path"));
        }
        let own = &disk.label.member;
        let places = own.layout.with_data(self.label.members[usize::from(role)].data_bytes);
        let places = places.ok_or_else(|| {
            no("it is an old copy of the member, from before the array grew; as a new member it is rebuilt in full")
        })?;
        let present = self.members().filter(|m| m.state == MemberState::InSync);
        let present = present.map(|m| (m.part.id, &self.label)).collect();
        match standing(&self.label, role, &disk, &present) {
            MemberStanding::Returning => {}
            MemberStanding::Diverged => {
                return Err(no("it was used apart from the others; as a new member it is rebuilt in full"));
            }
            _ if disk.truncated => {
                return Err(no("it was cut and made longer again, so that some of it is lost; as a new member it is \
                               rebuilt in full"));
            }
            _ => return Err(no("it is an old copy of the member; as a new member it is rebuilt in full")),
        }
        if self.state(role) != MemberState::Failed {
            return Err(no("its role is not out"));
        }
        let (from, position_bytes) = rejoin_from(&self.label, role, &disk).unwrap_or((RebuildKind::FromBitmap, 0));
        let candidate = Candidate { slot: role, leaf, kind: from, position_bytes, is_same_member: true };
        let part = MemberPart { slot: role, layout: places, ..disk.label.member };
        let target = Target { leaf, part, doubtful: disk.doubtful };
        self.note_candidate(candidate, target);
        Ok(candidate)
    }

    /// Lets a disk take a failed or vacant slot. From when this returns, every write, bitmap update and flush must go
    /// to the disk too, and content may be copied to it. If another disk held the slot before, the member table no
    /// longer names that one. A full rebuild has a job in the label, which begins at byte 0, or at the last checkpoint
    /// of a returning member.
    ///
    /// # Errors
    /// A refusal before anything was written, the error of the new member (it is failed then), or
    /// [`LifecycleError::BeyondTolerance`].
    pub async fn begin_rebuild<M: MetaIo>(
        &mut self,
        io: &M,
        role: u16,
        newcomer: RebuildTarget,
        from: RebuildKind,
    ) -> Result<(), LifecycleError> {
        self.check_vacant(role)?;
        let wrong = |reason: &str| LifecycleError::Slot { slot: role, reason: reason.to_owned() };
        let mut position_bytes = 0;
        let mut target = match newcomer {
            RebuildTarget::Returning { leaf } => {
                let mine = |(c, _): &&(Candidate, Target)| c.slot == role && c.leaf == leaf && c.is_same_member;
                let (candidate, target) = self
                    .candidates
                    .iter()
                    .find(mine)
                    .ok_or_else(|| wrong("this disk is not the member that was left out"))?;
                if candidate.kind == RebuildKind::Full {
                    if from == RebuildKind::FromBitmap {
                        return Err(wrong("it was never whole: it is filled in full, not from the bitmap"));
                    }
                    position_bytes = candidate.position_bytes;
                }
                target.clone()
            }
            RebuildTarget::New { .. } if from == RebuildKind::FromBitmap => {
                return Err(wrong("a new member is filled in full, not from the bitmap"));
            }
            RebuildTarget::New { leaf, id, force } => {
                self.check_job_room(role)?;
                let what = format!("member {role}");
                let mut target = self.new_member(io, leaf, id, self.needed_bytes(role), what, force).await?;
                target.part.slot = role;
                target
            }
        };
        if from == RebuildKind::Full {
            self.check_job_room(role)?;
        }
        target.part.slot = role;
        journal::erase_heads(io, &self.label, &target).await?;
        self.record_rebuild(io, role, target, (from == RebuildKind::Full).then_some(position_bytes), None).await
    }

    /// Lets a spare take a failed or vacant slot, and rebuilds it in full: as [`Array::begin_rebuild`].
    ///
    /// # Errors
    /// As for [`Array::begin_rebuild`].
    pub async fn take_spare<M: MetaIo>(&mut self, io: &M, role: u16, spare: u16) -> Result<(), LifecycleError> {
        self.check_vacant(role)?;
        self.check_job_room(role)?;
        let wrong = |reason: &str| LifecycleError::Slot { slot: spare, reason: reason.to_owned() };
        if self.state(spare) != MemberState::Spare {
            return Err(wrong("it is not a spare"));
        }
        let target = self.targets.iter().find(|t| t.part.slot == spare).ok_or_else(|| wrong("its disk is not here"))?;
        let (data_bytes, needed_bytes) = (target.part.layout.data.bytes, self.needed_bytes(role));
        if data_bytes < needed_bytes {
            let what = format!("member {role}");
            return Err(LifecycleError::TooSmall { leaf: target.leaf, what, data_bytes, needed_bytes });
        }
        let mut target = target.clone();
        journal::check_room(target.leaf, &target.part.layout, &self.label, &self.in_sync())?;
        self.erase_spares_heads(io, &target).await?;
        self.complete(io).await?;
        self.targets.retain(|t| t.leaf != target.leaf);
        target.part.slot = role;
        self.record_rebuild(io, role, target, Some(0), Some(spare)).await
    }

    /// Records that `target` holds `role` and is being rebuilt.
    async fn record_rebuild<M: MetaIo>(
        &mut self,
        io: &M,
        role: u16,
        target: Target,
        full_from: Option<u64>,
        spare: Option<u16>,
    ) -> Result<(), LifecycleError> {
        self.complete(io).await?;
        let mut next = self.next();
        let (sequence, end_bytes) = (next.sequence, next.array_bytes);
        next.jobs.retain(|job| !(job.kind == JobKind::Rebuild && job.target == Some(role)));
        if let Some(spare) = spare {
            vacate(&mut next.members, spare, self.slots());
        }
        let entry = &mut next.members[usize::from(role)];
        entry.id = Some(target.part.id);
        entry.data_bytes = target.part.layout.data.bytes;
        entry.state = MemberState::Rebuilding;
        if let Some(position_bytes) = full_from {
            next.jobs.push(Job {
                kind: JobKind::Rebuild,
                state: JobState::Running,
                target: Some(role),
                source: None,
                number: sequence,
                position_bytes,
                end_bytes,
                rate_bytes_per_s: 0,
            });
        }
        self.targets.push(target);
        let failures = self.record(io, next, Losses::default()).await?;
        self.candidates
            .retain(|(c, _)| c.slot != role || self.label.members[usize::from(role)].state == MemberState::Failed);
        self.expect(role, MemberState::Rebuilding, failures)
    }

    /// Records how far the rebuild of a member has come: everything before this byte of the array has been copied. The
    /// member is flushed first, so that the checkpoint is never ahead of the data.
    ///
    /// # Errors
    /// The member's error (it is dropped then), or [`LifecycleError::BeyondTolerance`].
    pub async fn checkpoint<M: MetaIo>(
        &mut self,
        io: &M,
        role: u16,
        position_bytes: u64,
    ) -> Result<(), LifecycleError> {
        if self.rebuild(role).is_none() {
            return Err(LifecycleError::Slot { slot: role, reason: "no job fills it in full".into() });
        }
        self.flush_rebuilding(io, role).await?;
        self.edit_rebuild(io, role, |job| job.position_bytes = position_bytes.min(job.end_bytes)).await?;
        self.expect(role, MemberState::Rebuilding, Vec::new())
    }

    /// Records whether the job that rebuilds a member resumes after a start, and its limit in bytes a second (0: the
    /// default).
    ///
    /// # Errors
    /// There is no such job, or [`LifecycleError::BeyondTolerance`].
    pub async fn set_rebuild<M: MetaIo>(
        &mut self,
        io: &M,
        role: u16,
        state: JobState,
        rate_bytes_per_s: u64,
    ) -> Result<(), LifecycleError> {
        self.edit_rebuild(io, role, |job| (job.state, job.rate_bytes_per_s) = (state, rate_bytes_per_s)).await
    }

    async fn edit_rebuild<M: MetaIo>(
        &mut self,
        io: &M,
        role: u16,
        edit: impl FnOnce(&mut Job),
    ) -> Result<(), LifecycleError> {
        self.complete(io).await?;
        let mut next = self.next();
        let mut jobs = next.jobs.iter_mut();
        let job = jobs.find(|job| is_rebuild_of(job, role));
        edit(job.ok_or_else(|| LifecycleError::Slot { slot: role, reason: "no job fills it in full".into() })?);
        self.record(io, next, Losses::default()).await.map(drop)
    }

    /// Records that a rebuilding member is in sync: it holds everything, including the bitmap. It is flushed first.
    ///
    /// # Errors
    /// The member's error (it is dropped then), or [`LifecycleError::BeyondTolerance`] if the last other member in sync
    /// fails meanwhile: until its promotion is complete, the rebuilt member does not count.
    pub async fn promote<M: MetaIo>(&mut self, io: &M, role: u16) -> Result<(), LifecycleError> {
        if self.state(role) != MemberState::Rebuilding {
            return Err(LifecycleError::Slot { slot: role, reason: "it is not being rebuilt".into() });
        }
        self.complete(io).await?;
        if let Err(error) = journal::give_head(io, self, role).await {
            self.drop_members(io, &[role]).await?;
            return Err(error);
        }
        self.flush_rebuilding(io, role).await?;
        let mut next = self.next();
        next.members[usize::from(role)].state = MemberState::InSync;
        next.jobs.retain(|job| !(job.kind == JobKind::Rebuild && job.target == Some(role)));
        let failures = self.record(io, next, Losses::default()).await?;
        self.expect(role, MemberState::InSync, failures)
    }

    /// Removes a failed member: its slot becomes vacant, and its disk never returns automatically.
    ///
    /// # Errors
    /// It has not failed, or [`LifecycleError::BeyondTolerance`].
    pub async fn remove<M: MetaIo>(&mut self, io: &M, role: u16) -> Result<(), LifecycleError> {
        if role >= self.slots() || self.state(role) != MemberState::Failed {
            return Err(LifecycleError::Slot { slot: role, reason: "only a failed member can be removed".into() });
        }
        self.complete(io).await?;
        let mut next = self.next();
        let entry = &mut next.members[usize::from(role)];
        (entry.state, entry.id) = (MemberState::Empty, None);
        next.jobs.retain(|job| !(job.kind == JobKind::Rebuild && job.target == Some(role)));
        self.record(io, next, Losses::default()).await?;
        self.candidates.retain(|(candidate, _)| candidate.slot != role);
        Ok(())
    }

    /// Makes a disk a spare. Returns its number in the member table.
    ///
    /// # Errors
    /// A refusal before anything was written, the disk's error, or [`LifecycleError::BeyondTolerance`].
    pub async fn add_spare<M: MetaIo>(
        &mut self,
        io: &M,
        leaf: LeafId,
        id: MemberId,
        force: bool,
    ) -> Result<u16, LifecycleError> {
        self.check_redundant()?;
        let spare = self.free_number()?;
        let needed_bytes = (0..self.slots()).map(|role| self.needed_bytes(role)).min().unwrap_or(0);
        let mut target = self.new_member(io, leaf, id, needed_bytes, "the smallest member".into(), force).await?;
        self.complete(io).await?;
        let mut next = self.next();
        let data_bytes = target.part.layout.data.bytes;
        let entry = MemberEntry { id: Some(id), data_bytes, state: MemberState::Spare, write_mostly: false };
        enter(&mut next.members, spare, entry);
        target.part.slot = spare;
        self.targets.push(target);
        let failures = self.record(io, next, Losses::default()).await?;
        self.expect(spare, MemberState::Spare, failures).map(|()| spare)
    }

    /// Returns the first free number behind the slots.
    pub(super) fn free_number(&self) -> Result<u16, LifecycleError> {
        let free = |(_, entry): &(usize, &MemberEntry)| entry.state == MemberState::Empty;
        let free = self.label.members.iter().enumerate().skip(usize::from(self.slots())).find(free);
        let number = free.map_or(self.label.members.len(), |(number, _)| number) as u16;
        if usize::from(number) < MEMBERS_MAX {
            return Ok(number);
        }
        let reason = format!("an array has at most {MEMBERS_MAX} members, spares and successors included");
        Err(LifecycleError::Slot { slot: number, reason })
    }

    /// Removes a spare and then its label. Returns whether the label was erased: the disk may be missing, or fail.
    ///
    /// # Errors
    /// It is not a spare, or [`LifecycleError::BeyondTolerance`].
    pub async fn remove_spare<M: MetaIo>(&mut self, io: &M, spare: u16) -> Result<bool, LifecycleError> {
        if self.state(spare) != MemberState::Spare {
            return Err(LifecycleError::Slot { slot: spare, reason: "it is not a spare".into() });
        }
        self.complete(io).await?;
        let leaf = self.leaf(spare);
        self.targets.retain(|t| t.part.slot != spare);
        let mut next = self.next();
        vacate(&mut next.members, spare, self.slots());
        self.record(io, next, Losses::default()).await?;
        match leaf {
            Some(leaf) => Ok(wipe(io, leaf).await.is_ok()),
            None => Ok(false),
        }
    }

    /// Returns the data space that the holder of a slot needs, in bytes.
    pub fn needed_bytes(&self, role: u16) -> u64 {
        let zones = self.geometry.zones().iter().filter(|zone| zone.members.contains(&role));
        zones.map(|zone| zone.member_end()).max().unwrap_or(0)
    }

    /// Returns the disks of the members in sync.
    pub(super) fn in_sync(&self) -> Vec<Target> {
        self.targets.iter().filter(|t| self.state(t.part.slot) == MemberState::InSync).cloned().collect()
    }

    /// Checks that a disk can become a member, and clears it: with `force` its labels and foreign signatures are
    /// zeroed. Writes nothing else; the caller writes the label.
    pub(super) async fn new_member<M: MetaIo>(
        &self,
        io: &M,
        leaf: LeafId,
        id: MemberId,
        needed_bytes: u64,
        what: String,
        force: bool,
    ) -> Result<Target, LifecycleError> {
        if self.targets.iter().chain(&self.journal).any(|t| t.leaf == leaf) {
            return Err(LifecycleError::Twice { leaf });
        }
        if self.label.members.iter().any(|m| m.id == Some(id)) {
            return Err(LifecycleError::Identities { given: 1, disks: 1 });
        }
        let size_bytes = io.size_bytes(leaf);
        let places = DiskLayout::for_device(size_bytes).map_err(|source| LifecycleError::Size { leaf, source })?;
        let data_bytes = places.data.bytes;
        if data_bytes < needed_bytes {
            return Err(LifecycleError::TooSmall { leaf, what, data_bytes, needed_bytes });
        }
        check_room(leaf, &places, self.label.array_bytes, self.label.region_bytes)?;
        journal::check_room(leaf, &places, &self.label, &self.in_sync())?;
        // A candidate bears a label of this array, which may be overwritten without `force`.
        let force = force || self.candidates.iter().any(|(c, _)| c.leaf == leaf);
        let found = inspect(io, leaf, force).await?;
        if force {
            clear(io, leaf, found.as_ref()).await?;
        }
        let part = MemberPart { id, slot: 0, layout: places, retired: RetiredMarks::default(), reserved: [0; 4] };
        Ok(Target { leaf, part, doubtful: LabelCopy::Start })
    }

    /// Erases a spare's journal heads. A spare that cannot be written is dropped.
    pub(super) async fn erase_spares_heads<M: MetaIo>(&mut self, io: &M, spare: &Target) -> Result<(), LifecycleError> {
        if let Err(error) = journal::erase_heads(io, &self.label, spare).await {
            self.drop_members(io, &[spare.part.slot]).await?;
            return Err(error);
        }
        Ok(())
    }

    async fn flush_rebuilding<M: MetaIo>(&mut self, io: &M, role: u16) -> Result<(), LifecycleError> {
        let Some(leaf) = self.leaf(role).filter(|_| self.state(role) == MemberState::Rebuilding) else {
            return Err(LifecycleError::Slot { slot: role, reason: "it is not being rebuilt".into() });
        };
        if let Err(error) = flush(io, leaf).await {
            self.drop_members(io, &[role]).await?;
            return Err(error);
        }
        Ok(())
    }

    /// Returns an error if a change dropped the very member that it was about.
    pub(super) fn expect(&self, role: u16, state: MemberState, failures: Vec<Failure>) -> Result<(), LifecycleError> {
        if self.state(role) == state {
            return Ok(());
        }
        let own = failures.into_iter().find(|(failed, _)| *failed == role).map(|(_, error)| error);
        Err(own.unwrap_or_else(|| LifecycleError::Slot { slot: role, reason: "it was dropped meanwhile".into() }))
    }

    pub(super) fn check_redundant(&self) -> Result<(), LifecycleError> {
        if self.is_redundant() {
            return Ok(());
        }
        Err(LifecycleError::Slot { slot: 0, reason: format!("{} has no redundancy", self.label.spec.level) })
    }

    fn check_vacant(&self, role: u16) -> Result<(), LifecycleError> {
        self.check_redundant()?;
        let reason = match self.state(role) {
            _ if role >= self.slots() => "there is no such role",
            MemberState::Failed | MemberState::Empty => return Ok(()),
            MemberState::Rebuilding => "it is being rebuilt already",
            _ => "it is in sync",
        };
        Err(LifecycleError::Slot { slot: role, reason: reason.into() })
    }

    fn check_job_room(&self, role: u16) -> Result<(), LifecycleError> {
        let others = self.label.jobs.len() - usize::from(self.rebuild(role).is_some());
        if others < JOBS_MAX { Ok(()) } else { Err(LifecycleError::JobsFull) }
    }
}

/// Writes an entry behind the slots: at a free number, or at the next one.
pub(super) fn enter(members: &mut Vec<MemberEntry>, number: u16, entry: MemberEntry) {
    match members.get_mut(usize::from(number)) {
        Some(free) => *free = entry,
        None => members.push(entry),
    }
}

/// Frees a spare's number; free numbers at the end of the table are removed.
pub(super) fn vacate(members: &mut Vec<MemberEntry>, spare: u16, roles: u16) {
    members[usize::from(spare)] =
        MemberEntry { id: None, data_bytes: 0, state: MemberState::Empty, write_mostly: false };
    while members.len() > usize::from(roles) && members.last().is_some_and(|m| m.state == MemberState::Empty) {
        members.pop();
    }
}
