//! Members that leave, return and are filled, and spares: the changes of a started redundant array.
//!
//! | procedure | before | between | after, when it is acknowledged |
//! |---|---|---|---|
//! | drop | label n | (a) marks retired ([`Array::prepare_losses`]), survivors flushed; (b) some in-sync ones n + 1: a new line, the lost ones out; (c) all of those | n + 1 on all but the lost |
//! | begin filling | n: the role is out or nobody's | (a) in-sync members n + 1: filling; (b) others; (c) the newcomer, last | n + 1 on all: it takes every write from here on |
//! | checkpoint | n | (a) the filling member flushed; (b) some n + 1 | n + 1 |
//! | promote | n: filling | (a) the newcomer flushed; (b) in-sync members n + 1: in sync; (c) others; (d) the newcomer, last | n + 1 on all |
//!
//! A crash between two steps leaves the one or the other: a newcomer whose own label was not written counts as out.

use braid_format::{
    JOBS_MAX, Job, JobKind, JobState, MEMBERS_MAX, MemberEntry, MemberId, MemberPart, MemberState, Places, RetiredMarks,
};

use super::array::{Array, Candidate, Filling, fills};
use super::bitmap::check_room;
use super::create::{clear, inspect};
use super::disk::{DiskVerdict, look};
use super::erase::wipe;
use super::error::LifecycleError;
use super::journal;
use super::lines::{Standing, standing, way_back};
use super::planted::{Planted, planted};
use super::record::{Failure, Losses};
use super::write::{LabelCopy, Target, flush};
use crate::{LeafId, MetaIo};

/// Who is to be filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Newcomer {
    /// The role's own member: a [`Candidate`] that returns.
    Returning {
        /// Its disk.
        leaf: LeafId,
    },
    /// A disk that is no member.
    New {
        /// The disk.
        leaf: LeafId,
        /// The identity that it gets: random.
        id: MemberId,
        /// Overwrite what is on it.
        force: bool,
    },
}

impl Array {
    /// Leaves members out: the survivors flush, then record it, in a new line. Until this returns nothing may be
    /// acknowledged and no read answered. A survivor that fails meanwhile is left out, too. Returns the roles that are
    /// out now, all of them.
    ///
    /// # Errors
    /// [`LifecycleError::Beyond`] where some of the array would be lost: no label calls the last ones failed,
    /// and the array must freeze.
    pub async fn drop_members<M: MetaIo>(&mut self, io: &M, roles: &[u16]) -> Result<Vec<u16>, LifecycleError> {
        self.check_redundant()?;
        // The disk of the journal is given up, not left out: the heads say first where the ring is then.
        let nobody = [MemberState::Out, MemberState::Absent, MemberState::Journal];
        let member = |role: &&u16| !nobody.contains(&self.state(**role));
        let mut losses = Losses::of(roles.iter().filter(member).copied().collect());
        if !losses.roles.is_empty() {
            self.prepare_losses(io, &mut losses).await?;
            self.record_losses(io, losses).await?;
        }
        Ok(self.out())
    }

    /// Records that these members are left out, after the flush of all others.
    pub(super) async fn record_losses<M: MetaIo>(&mut self, io: &M, mut losses: Losses) -> Result<(), LifecycleError> {
        self.complete(io).await?;
        // Completing may have left some of them out.
        losses.roles.retain(|role| !matches!(self.state(*role), MemberState::Out | MemberState::Absent));
        let mut next = self.next();
        self.leave_out(&mut next, &losses.roles, &[]);
        self.record(io, next, losses).await.map(drop)
    }

    /// The roles that are out.
    pub fn out(&self) -> Vec<u16> {
        (0..self.roles()).filter(|role| self.state(*role) == MemberState::Out).collect()
    }

    /// Looks at a disk that has appeared while the array serves: whether it is a member that is out and may return.
    /// Changes nothing on it.
    ///
    /// # Errors
    /// [`LifecycleError::NoReturn`] says why it cannot.
    pub async fn recognise<M: MetaIo>(&mut self, io: &M, leaf: LeafId) -> Result<Candidate, LifecycleError> {
        let no = |reason: &str| LifecycleError::NoReturn { leaf, reason: reason.to_owned() };
        let found = look(io, leaf).await;
        let disk = match found.verdict {
            DiskVerdict::Member(disk) if disk.label.array.uuid == self.uuid() => disk,
            DiskVerdict::Unusable { problem, .. } => return Err(no(&problem.to_string())),
            _ => return Err(no("it bears no label of this array")),
        };
        let id = disk.label.member.id;
        let role = self.label.members.iter().position(|m| m.id == Some(id));
        let role = role.ok_or_else(|| no("it was replaced and is no longer part of the array"))? as u16;
        if self.targets.iter().chain(&self.journal).any(|t| t.part.id == id) {
            return Err(no("that member is here already: this is a copy of it, or the same disk by a second path"));
        }
        let own = &disk.label.member;
        let places = own.places.with_data(self.label.members[usize::from(role)].data_bytes);
        let places = places.ok_or_else(|| {
            no("it is an old copy of the member, from before the array grew; as a new member it is rebuilt in full")
        })?;
        let here = self.members().filter(|m| m.state == MemberState::InSync);
        let here = here.map(|m| (m.part.id, &self.label)).collect();
        match standing(&self.label, role, &disk, &here) {
            Standing::Returning => {}
            Standing::Diverged => {
                return Err(no("it was used apart from the others; as a new member it is rebuilt in full"));
            }
            _ if disk.cut => {
                return Err(no("it was cut and made longer again, so that some of it is lost; as a new member it is \
                               rebuilt in full"));
            }
            _ => return Err(no("it is an old copy of the member; as a new member it is rebuilt in full")),
        }
        if self.state(role) != MemberState::Out {
            return Err(no("its role is not out"));
        }
        let (from, position_bytes) = way_back(&self.label, role, &disk).unwrap_or((Filling::FromBitmap, 0));
        let candidate = Candidate { role, leaf, from, position_bytes, returns: true };
        let part = MemberPart { role, places, ..disk.label.member };
        let target = Target { leaf, part, doubtful: disk.doubtful };
        self.note_candidate(candidate, target);
        Ok(candidate)
    }

    /// Lets a disk take a role that is out or nobody's: from the moment that this returns it takes every write, every
    /// bit and every flush, and its content may be copied. A member that held the role before and is another disk leaves
    /// the table. What is to be filled in full has a job in the label, at position 0, or where it was when it returns.
    ///
    /// # Errors
    /// What was refused, before anything was written; a failing newcomer's error (it is out then); or
    /// [`LifecycleError::Beyond`].
    pub async fn begin_filling<M: MetaIo>(
        &mut self,
        io: &M,
        role: u16,
        newcomer: Newcomer,
        from: Filling,
    ) -> Result<(), LifecycleError> {
        self.check_vacant(role)?;
        let wrong = |reason: &str| LifecycleError::Role { role, reason: reason.to_owned() };
        let mut position_bytes = 0;
        let mut target = match newcomer {
            Newcomer::Returning { leaf } => {
                let mine = |(c, _): &&(Candidate, Target)| c.role == role && c.leaf == leaf && c.returns;
                let (candidate, target) = self
                    .candidates
                    .iter()
                    .find(mine)
                    .ok_or_else(|| wrong("this disk is not the member that was left out"))?;
                if candidate.from == Filling::Full {
                    if from == Filling::FromBitmap {
                        return Err(wrong("it was never whole: it is filled in full, not from the bitmap"));
                    }
                    position_bytes = candidate.position_bytes;
                }
                target.clone()
            }
            Newcomer::New { .. } if from == Filling::FromBitmap => {
                return Err(wrong("a new member is filled in full, not from the bitmap"));
            }
            Newcomer::New { leaf, id, force } => {
                self.check_job_room(role)?;
                let what = format!("member {role}");
                let mut target = self.new_member(io, leaf, id, self.needed_bytes(role), what, force).await?;
                target.part.role = role;
                target
            }
        };
        if from == Filling::Full {
            self.check_job_room(role)?;
        }
        target.part.role = role;
        journal::erase_heads(io, &self.label, &target).await?;
        self.fill(io, role, target, (from == Filling::Full).then_some(position_bytes), None).await
    }

    /// A spare takes a role that is out or nobody's, and is filled in full: as [`Array::begin_filling`].
    ///
    /// # Errors
    /// As there.
    pub async fn take_spare<M: MetaIo>(&mut self, io: &M, role: u16, spare: u16) -> Result<(), LifecycleError> {
        self.check_vacant(role)?;
        self.check_job_room(role)?;
        let wrong = |reason: &str| LifecycleError::Role { role: spare, reason: reason.to_owned() };
        if self.state(spare) != MemberState::Spare {
            return Err(wrong("it is not a spare"));
        }
        let target = self.targets.iter().find(|t| t.part.role == spare).ok_or_else(|| wrong("its disk is not here"))?;
        let (data_bytes, needed_bytes) = (target.part.places.data.bytes, self.needed_bytes(role));
        if data_bytes < needed_bytes {
            let what = format!("member {role}");
            return Err(LifecycleError::TooSmall { leaf: target.leaf, what, data_bytes, needed_bytes });
        }
        let mut target = target.clone();
        journal::check_room(target.leaf, &target.part.places, &self.label, &self.in_sync())?;
        self.erase_spares_heads(io, &target).await?;
        self.complete(io).await?;
        self.targets.retain(|t| t.leaf != target.leaf);
        target.part.role = role;
        self.fill(io, role, target, Some(0), Some(spare)).await
    }

    /// Records that `target` holds `role` and is being filled.
    async fn fill<M: MetaIo>(
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
            vacate(&mut next.members, spare, self.roles());
        }
        let entry = &mut next.members[usize::from(role)];
        entry.id = Some(target.part.id);
        entry.data_bytes = target.part.places.data.bytes;
        entry.state = MemberState::Filling;
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
            .retain(|(c, _)| c.role != role || self.label.members[usize::from(role)].state == MemberState::Out);
        self.expect(role, MemberState::Filling, failures)
    }

    /// Notes how far the filling of a member has come, in bytes of the array: all before is copied. The member is
    /// flushed first, so that the note is never ahead of the data.
    ///
    /// # Errors
    /// The member's (it is dropped then), or [`LifecycleError::Beyond`].
    pub async fn checkpoint<M: MetaIo>(
        &mut self,
        io: &M,
        role: u16,
        position_bytes: u64,
    ) -> Result<(), LifecycleError> {
        if self.rebuild(role).is_none() {
            return Err(LifecycleError::Role { role, reason: "no job fills it in full".into() });
        }
        self.flush_filling(io, role).await?;
        self.edit_rebuild(io, role, |job| job.position_bytes = position_bytes.min(job.end_bytes)).await?;
        self.expect(role, MemberState::Filling, Vec::new())
    }

    /// Notes whether the job that fills a member goes on after a start, and its limit in bytes a second (0: the default).
    ///
    /// # Errors
    /// There is no such job, or [`LifecycleError::Beyond`].
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
        let job = jobs.find(|job| fills(job, role));
        edit(job.ok_or_else(|| LifecycleError::Role { role, reason: "no job fills it in full".into() })?);
        self.record(io, next, Losses::default()).await.map(drop)
    }

    /// Records a member as in sync that was being filled and now holds everything, the bitmap too. It is flushed first.
    ///
    /// # Errors
    /// The member's (it is dropped then), or [`LifecycleError::Beyond`]: the last old member failed in that moment.
    pub async fn promote<M: MetaIo>(&mut self, io: &M, role: u16) -> Result<(), LifecycleError> {
        if self.state(role) != MemberState::Filling {
            return Err(LifecycleError::Role { role, reason: "it is not being filled".into() });
        }
        self.complete(io).await?;
        if let Err(error) = journal::give_head(io, self, role).await {
            self.drop_members(io, &[role]).await?;
            return Err(error);
        }
        if !planted(Planted::PromotionWithoutFlush) {
            self.flush_filling(io, role).await?;
        }
        let mut next = self.next();
        next.members[usize::from(role)].state = MemberState::InSync;
        next.jobs.retain(|job| !(job.kind == JobKind::Rebuild && job.target == Some(role)));
        let failures = self.record(io, next, Losses::default()).await?;
        self.expect(role, MemberState::InSync, failures)
    }

    /// Takes a member that is out off the table: its role is nobody's, and its disk never returns by itself.
    ///
    /// # Errors
    /// It is not out, or [`LifecycleError::Beyond`].
    pub async fn remove<M: MetaIo>(&mut self, io: &M, role: u16) -> Result<(), LifecycleError> {
        if role >= self.roles() || self.state(role) != MemberState::Out {
            return Err(LifecycleError::Role { role, reason: "only a member that is out can be removed".into() });
        }
        self.complete(io).await?;
        let mut next = self.next();
        let entry = &mut next.members[usize::from(role)];
        (entry.state, entry.id) = (MemberState::Absent, None);
        next.jobs.retain(|job| !(job.kind == JobKind::Rebuild && job.target == Some(role)));
        self.record(io, next, Losses::default()).await?;
        self.candidates.retain(|(candidate, _)| candidate.role != role);
        Ok(())
    }

    /// Makes a disk a spare. Returns its number in the table of members.
    ///
    /// # Errors
    /// What was refused, before anything was written; the disk's error; or [`LifecycleError::Beyond`].
    pub async fn add_spare<M: MetaIo>(
        &mut self,
        io: &M,
        leaf: LeafId,
        id: MemberId,
        force: bool,
    ) -> Result<u16, LifecycleError> {
        self.check_redundant()?;
        let spare = self.free_number()?;
        let needed_bytes = (0..self.roles()).map(|role| self.needed_bytes(role)).min().unwrap_or(0);
        let mut target = self.new_member(io, leaf, id, needed_bytes, "the smallest member".into(), force).await?;
        self.complete(io).await?;
        let mut next = self.next();
        let data_bytes = target.part.places.data.bytes;
        let entry = MemberEntry { id: Some(id), data_bytes, state: MemberState::Spare, write_mostly: false };
        enter(&mut next.members, spare, entry);
        target.part.role = spare;
        self.targets.push(target);
        let failures = self.record(io, next, Losses::default()).await?;
        self.expect(spare, MemberState::Spare, failures).map(|()| spare)
    }

    /// The first number beyond the roles that is nobody's.
    pub(super) fn free_number(&self) -> Result<u16, LifecycleError> {
        let free = |(_, entry): &(usize, &MemberEntry)| entry.state == MemberState::Absent;
        let free = self.label.members.iter().enumerate().skip(usize::from(self.roles())).find(free);
        let number = free.map_or(self.label.members.len(), |(number, _)| number) as u16;
        if usize::from(number) < MEMBERS_MAX {
            return Ok(number);
        }
        let reason = format!("an array has at most {MEMBERS_MAX} members, spares and successors included");
        Err(LifecycleError::Role { role: number, reason })
    }

    /// Takes a spare off the table and then the label off its disk. Returns whether that was possible: the disk may not
    /// be here, or fail.
    ///
    /// # Errors
    /// It is not a spare, or [`LifecycleError::Beyond`].
    pub async fn remove_spare<M: MetaIo>(&mut self, io: &M, spare: u16) -> Result<bool, LifecycleError> {
        if self.state(spare) != MemberState::Spare {
            return Err(LifecycleError::Role { role: spare, reason: "it is not a spare".into() });
        }
        self.complete(io).await?;
        let leaf = self.leaf(spare);
        self.targets.retain(|t| t.part.role != spare);
        let mut next = self.next();
        vacate(&mut next.members, spare, self.roles());
        self.record(io, next, Losses::default()).await?;
        match leaf {
            Some(leaf) => Ok(wipe(io, leaf).await.is_ok()),
            None => Ok(false),
        }
    }

    /// Room that a role's holder must have for data, in bytes.
    pub fn needed_bytes(&self, role: u16) -> u64 {
        let zones = self.geometry.zones().iter().filter(|zone| zone.members.contains(&role));
        zones.map(|zone| zone.member_end()).max().unwrap_or(0)
    }

    /// The disks of members in sync.
    pub(super) fn in_sync(&self) -> Vec<Target> {
        self.targets.iter().filter(|t| self.state(t.part.role) == MemberState::InSync).cloned().collect()
    }

    /// Checks a disk that is to be a new member and clears it. Only labels, and signatures that stand in the way, are
    /// written.
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
        let places = Places::for_device(size_bytes).map_err(|source| LifecycleError::Size { leaf, source })?;
        let data_bytes = places.data.bytes;
        if data_bytes < needed_bytes {
            return Err(LifecycleError::TooSmall { leaf, what, data_bytes, needed_bytes });
        }
        check_room(leaf, &places, self.label.array_bytes, self.label.region_bytes)?;
        journal::check_room(leaf, &places, &self.label, &self.in_sync())?;
        // A copy that a forced start has given up bears nothing else than this array's label.
        let force = force || self.candidates.iter().any(|(c, _)| c.leaf == leaf);
        let found = inspect(io, leaf, force).await?;
        if force {
            clear(io, leaf, found.as_ref()).await?;
        }
        let part = MemberPart { id, role: 0, places, retired: RetiredMarks::default(), reserved: [0; 4] };
        Ok(Target { leaf, part, doubtful: LabelCopy::Start })
    }

    /// A spare that cannot be written is one no longer.
    pub(super) async fn erase_spares_heads<M: MetaIo>(&mut self, io: &M, spare: &Target) -> Result<(), LifecycleError> {
        if let Err(error) = journal::erase_heads(io, &self.label, spare).await {
            self.drop_members(io, &[spare.part.role]).await?;
            return Err(error);
        }
        Ok(())
    }

    async fn flush_filling<M: MetaIo>(&mut self, io: &M, role: u16) -> Result<(), LifecycleError> {
        let Some(leaf) = self.leaf(role).filter(|_| self.state(role) == MemberState::Filling) else {
            return Err(LifecycleError::Role { role, reason: "it is not being filled".into() });
        };
        if planted(Planted::SuccessorNotFlushed) && role >= self.roles() {
            return Ok(());
        }
        if let Err(error) = flush(io, leaf).await {
            self.drop_members(io, &[role]).await?;
            return Err(error);
        }
        Ok(())
    }

    /// A change that left out the very member that it was about has failed.
    pub(super) fn expect(&self, role: u16, state: MemberState, failures: Vec<Failure>) -> Result<(), LifecycleError> {
        if self.state(role) == state {
            return Ok(());
        }
        let own = failures.into_iter().find(|(failed, _)| *failed == role).map(|(_, error)| error);
        Err(own.unwrap_or_else(|| LifecycleError::Role { role, reason: "it was dropped meanwhile".into() }))
    }

    pub(super) fn check_redundant(&self) -> Result<(), LifecycleError> {
        if self.is_redundant() {
            return Ok(());
        }
        Err(LifecycleError::Role { role: 0, reason: format!("{} has no redundancy", self.label.spec.level) })
    }

    fn check_vacant(&self, role: u16) -> Result<(), LifecycleError> {
        self.check_redundant()?;
        let reason = match self.state(role) {
            _ if role >= self.roles() => "there is no such role",
            MemberState::Out | MemberState::Absent => return Ok(()),
            MemberState::Filling => "it is being filled already",
            _ => "it is in sync",
        };
        Err(LifecycleError::Role { role, reason: reason.into() })
    }

    fn check_job_room(&self, role: u16) -> Result<(), LifecycleError> {
        let others = self.label.jobs.len() - usize::from(self.rebuild(role).is_some());
        if others < JOBS_MAX { Ok(()) } else { Err(LifecycleError::JobsFull) }
    }
}

/// Notes who has a number beyond the roles: a free one, or the next.
pub(super) fn enter(members: &mut Vec<MemberEntry>, number: u16, entry: MemberEntry) {
    match members.get_mut(usize::from(number)) {
        Some(free) => *free = entry,
        None => members.push(entry),
    }
}

/// Takes a spare off the table; numbers at its end that are nobody's go.
pub(super) fn vacate(members: &mut Vec<MemberEntry>, spare: u16, roles: u16) {
    members[usize::from(spare)] =
        MemberEntry { id: None, data_bytes: 0, state: MemberState::Absent, write_mostly: false };
    while members.len() > usize::from(roles) && members.last().is_some_and(|m| m.state == MemberState::Absent) {
        members.pop();
    }
}
