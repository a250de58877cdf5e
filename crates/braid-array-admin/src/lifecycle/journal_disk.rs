//! The disk of the journal in the labels: named, added, failed, and removed.
//!
//! A label only names the disk. Whether the log ring is on it is recorded in the heads of the journal. So a label names
//! the disk before the first head does, and no label removes it before a head has put the ring elsewhere.

use braid_engine::{LeafId, MetaIo};
use braid_format::{DiskLayout, MemberEntry, MemberId, MemberPart, MemberState, RetiredMarks};

use super::array::{Array, ArrayMember};
use super::create::{clear, inspect};
use super::error::LifecycleError;
use super::journal;
use super::losses::Losses;
use super::members::{enter, vacate};
use super::write::{LabelCopy, Target};

impl Array {
    /// Returns the disk of the journal, if there is one, it is present and it has not failed.
    pub fn journal_disk(&self) -> Option<ArrayMember<'_>> {
        let target = self.journal.as_ref()?;
        let (role, leaf, part) = (target.part.slot, target.leaf, &target.part);
        Some(ArrayMember { number: role, leaf, state: MemberState::Journal, part })
    }

    /// Returns its number in the member table, present or missing; `None`: the journal is on the members.
    pub fn journal_number(&self) -> Option<u16> {
        let at = self.label.members.iter().position(|entry| entry.state == MemberState::Journal);
        at.map(|at| at as u16)
    }

    /// Gives up the disk of the journal, which has failed or is to be removed: it gets no further labels. The labels
    /// name it until [`Array::forget_journal`]. Returns the disk.
    pub fn give_up_journal(&mut self) -> Option<LeafId> {
        self.journal.take().map(|target| target.leaf)
    }

    /// If the error is of the disk of the journal, gives that disk up and returns true.
    pub(super) fn journal_failed(&mut self, error: &LifecycleError) -> bool {
        let LifecycleError::Io { leaf, .. } = error else { return false };
        self.journal.take_if(|target| target.leaf == *leaf).is_some()
    }

    /// Names a disk as that of the journal. The next [`move_ring`](super::move_ring) puts the ring on it.
    ///
    /// # Errors
    /// A refusal before anything was written, the disk's error, or [`LifecycleError::BeyondTolerance`].
    pub async fn add_journal<M: MetaIo>(
        &mut self,
        io: &M,
        leaf: LeafId,
        id: MemberId,
        force: bool,
    ) -> Result<(), LifecycleError> {
        let role = self.free_number()?;
        let wrong = |reason: &str| LifecycleError::Slot { slot: role, reason: reason.to_owned() };
        if self.label.spec.level.parity() == 0 {
            return Err(wrong("only raid5 and raid6 have a journal"));
        }
        if self.journal_number().is_some() {
            return Err(wrong("the journal has a disk already; take that one away first"));
        }
        if self.targets.iter().any(|target| target.leaf == leaf) {
            return Err(LifecycleError::Twice { leaf });
        }
        if self.label.members.iter().any(|entry| entry.id == Some(id)) {
            return Err(LifecycleError::Identities { given: 1, disks: 1 });
        }
        let places =
            DiskLayout::for_journal(io.size_bytes(leaf)).map_err(|source| LifecycleError::Size { leaf, source })?;
        // Requests sized for the members' log ring must fit into that of the disk.
        journal::check_room(leaf, &places, &self.label, &self.targets)?;
        let force = force || self.candidates.iter().any(|(candidate, _)| candidate.leaf == leaf);
        let found = inspect(io, leaf, force).await?;
        if force {
            clear(io, leaf, found.as_ref()).await?;
        }
        let part = MemberPart { id, slot: role, layout: places, retired: RetiredMarks::default(), reserved: [0; 4] };
        let target = Target { leaf, part, doubtful: LabelCopy::Start };
        journal::erase_heads(io, &self.label, &target).await?;
        self.complete(io).await?;
        let mut next = self.next();
        let data_bytes = target.part.layout.data.bytes;
        let entry = MemberEntry { id: Some(id), data_bytes, state: MemberState::Journal, write_mostly: false };
        enter(&mut next.members, role, entry);
        self.journal = Some(target);
        self.record(io, next, Losses::default()).await.map(drop)
    }

    /// Removes the disk of the journal from the member table if it was given up or is missing. The ring must be
    /// elsewhere.
    ///
    /// # Errors
    /// [`LifecycleError::BeyondTolerance`].
    pub async fn forget_journal<M: MetaIo>(&mut self, io: &M) -> Result<(), LifecycleError> {
        let Some(role) = self.journal_number().filter(|_| self.journal.is_none()) else { return Ok(()) };
        self.complete(io).await?;
        let mut next = self.next();
        vacate(&mut next.members, role, self.slots());
        self.record(io, next, Losses::default()).await.map(drop)
    }
}
