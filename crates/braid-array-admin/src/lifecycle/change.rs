//! Changes of a started array's label: the plain ones, and what all of them are made of at any level.

use braid_engine::MetaIo;
use braid_format::{ArrayPart, ArrayState, Name};

use super::array::Array;
use super::erase::{erase_targets, wipe};
use super::error::LifecycleError;
use super::join::{join_all, try_join_all};
use super::losses::{Failure, Losses};
use super::write::{Target, flush, write_labels};

impl Array {
    /// Renames the array. The caller ensures that no other array has the name.
    ///
    /// # Errors
    /// A disk's error: the old name stays until a later change succeeds; after a restart it may be either.
    pub async fn rename<M: MetaIo>(&mut self, io: &M, name: Name) -> Result<(), LifecycleError> {
        self.change(io, |label| label.name = name).await
    }

    /// Records that the array stopped cleanly, after a flush of all that was written. No I/O may be in flight.
    ///
    /// # Errors
    /// A disk's error: the clean mark is not set, which does no harm. A redundant array drops a member that fails
    /// meanwhile.
    pub async fn stop<M: MetaIo>(&mut self, io: &M) -> Result<(), LifecycleError> {
        if self.is_redundant() {
            self.complete(io).await?;
            let mut losses = Losses::default();
            self.flush_survivors(io, &mut losses).await?;
            // The journal may still hold marks of the last writes. The label of the stop retires them: the next start
            // must not need a mark, whichever member is missing then.
            self.retire_ended();
            let mut next = self.next();
            next.clean = true;
            self.mark_failed(&mut next, &losses.roles, &[]);
            return self.record(io, next, losses).await.map(drop);
        }
        try_join_all(self.targets.iter().map(|target| flush(io, target.leaf))).await?;
        self.change(io, |label| label.clean = true).await
    }

    /// Removes the labels from all present members, and nothing else. It can be repeated after an error; a deletion
    /// that has begun is finished by the next start. Returns the members whose labels remain: their disks are missing,
    /// or are former members or the disk of the journal and could not be written. The caller has them wiped later.
    ///
    /// # Errors
    /// A disk's error.
    pub async fn delete<M: MetaIo>(&mut self, io: &M) -> Result<Vec<u16>, LifecycleError> {
        if self.label.state != ArrayState::Deleting {
            self.change(io, |label| label.state = ArrayState::Deleting).await?;
        }
        erase_targets(io, &self.targets).await?;
        // The deletion does not fail with the disk of the journal: if its label cannot be erased, it is returned as one
        // to be wiped.
        let journal = self.journal.take();
        if let Some(target) = &journal
            && erase_targets(io, std::slice::from_ref(target)).await.is_ok()
        {
            self.journal = journal;
        }
        let wiped = join_all(self.candidates.iter().map(|(candidate, _)| wipe(io, candidate.leaf))).await;
        let left = self.candidates.iter().zip(wiped).filter(|(_, wiped)| wiped.is_err()).map(|((c, _), _)| c.slot);
        let left: Vec<u16> = left.collect();
        let erased = |role: u16| {
            self.targets.iter().chain(&self.journal).any(|t| t.part.slot == role)
                || self.candidates.iter().any(|(c, _)| c.slot == role && c.is_same_member) && !left.contains(&role)
        };
        let named = self.label.members.iter().zip(0..).filter(|(entry, _)| entry.id.is_some());
        Ok(named.map(|(_, role)| role).filter(|role| !erased(*role)).collect())
    }

    /// Does what [`Array::change`] does at a redundant level. Returns the members that failed meanwhile and were
    /// dropped.
    pub(super) async fn change_dropping<M: MetaIo>(
        &mut self,
        io: &M,
        edit: impl FnOnce(&mut ArrayPart),
    ) -> Result<Vec<Failure>, LifecycleError> {
        self.complete(io).await?;
        let mut next = self.next();
        edit(&mut next);
        self.record(io, next, Losses::default()).await
    }

    /// Writes a new label to all members.
    ///
    /// Before: all have label n. Between: some have n + 1. After: all have n + 1. A failed change leaves n + 1 on some
    /// members. The next change first writes that same label to all, and then n + 2. At a redundant level n + 1 takes
    /// effect then; at a level without redundancy n + 2 undoes what n + 1 said.
    pub(super) async fn change<M: MetaIo>(
        &mut self,
        io: &M,
        edit: impl FnOnce(&mut ArrayPart),
    ) -> Result<(), LifecycleError> {
        if self.is_redundant() {
            return self.change_dropping(io, edit).await.map(drop);
        }
        self.catch_up(io).await?;
        let mut next = self.label.clone();
        next.sequence += 1;
        edit(&mut next);
        // Set before the first await: even if the write fails or this future is dropped, the sequence number is used
        // up.
        self.written = next.clone();
        write_labels(io, &mut self.targets, &next).await?;
        self.label = next;
        Ok(())
    }

    /// At a level without redundancy: writes a label that a failed change has begun to all members. Only its sequence
    /// number is taken over, so that the next label undoes what it said.
    pub(super) async fn catch_up<M: MetaIo>(&mut self, io: &M) -> Result<(), LifecycleError> {
        if self.written.sequence != self.label.sequence {
            let written = self.written.clone();
            fit_data_areas(&mut self.targets, &written);
            write_labels(io, &mut self.targets, &written).await?;
            self.label.sequence = written.sequence;
            fit_data_areas(&mut self.targets, &self.label);
        }
        Ok(())
    }
}

/// Sets the sizes of the targets' data areas to those in a label: a failed growth may have left the larger sizes.
fn fit_data_areas(targets: &mut [Target], label: &ArrayPart) {
    for target in targets {
        let Some(entry) = label.members.get(usize::from(target.part.slot)) else { continue };
        let places = &mut target.part.layout;
        *places = places.with_data(entry.data_bytes).unwrap_or(*places);
    }
}
