//! Where the log ring of an array's journal is: on the members, or on a disk of its own. When that disk fails, is
//! removed or is added, the ring moves while the array serves.
//!
//! 1. A layout without a ring is published: nothing is logged from then on.
//! 2. Everything acknowledged as logged is written in place, and all members flush.
//! 3. A head with a new run is durable on all members, and before that on the disk.
//! 4. A layout with the new ring is published: waiting requests are logged there.
//! 5. If the disk is gone, the label records that.

use std::pin::pin;

use braid_engine::{Fault, LeafId, RegionCall, RingDisk, RingState};
use braid_format::MemberId;
use braid_format::journal::{RING_OFFSET_BYTES, RingLocation};

use super::race::{First, first};
use super::{OrderResult, Reconciler, ReconcilerEvent, ReconcilerIo};
use crate::lifecycle::{LifecycleError, move_ring, wipe};

impl Reconciler {
    /// Whether this disk holds the ring, or is to hold it.
    pub(super) fn is_ring_disk(&self, leaf: LeafId) -> bool {
        self.array.journal_disk().is_some_and(|disk| disk.leaf == leaf)
    }

    /// Whether the ring is on a disk that has been given up.
    pub(super) fn needs_ring_move(&self) -> bool {
        matches!(self.ring_place(), Some(RingState::Moving)) && !self.failed
    }

    /// Returns where the ring is, for a layout.
    pub(super) fn ring_place(&self) -> Option<RingState> {
        let on = match self.journal.as_ref()?.ring_on {
            _ if self.ring_moves => RingState::Moving,
            RingLocation::Members => RingState::Members,
            RingLocation::Disk { id, member_blocks } => {
                let disk = self.array.journal_disk().filter(|disk| disk.part.id == id);
                disk.map_or(RingState::Moving, |disk| {
                    let ring = disk.part.layout.journal.start + RING_OFFSET_BYTES;
                    RingState::Disk(RingDisk { leaf: disk.leaf, role: disk.number, ring, id, member_blocks })
                })
            }
        };
        Some(on)
    }

    /// The disk of the ring has failed.
    pub(super) async fn fail_ring_disk<I: ReconcilerIo>(&mut self, io: &I) {
        self.array.give_up_journal();
        self.move_ring(io, true, None).await;
    }

    /// Moves the ring to the disk that the label names, if present, else to the members. `lost`: its previous disk has
    /// failed. `leaves`: its previous disk is removed, and its label erased.
    pub(super) async fn move_ring<I: ReconcilerIo>(&mut self, io: &I, lost: bool, leaves: Option<LeafId>) {
        let device = self.options.device;
        let had_disk = self.array.journal_disk().is_some();
        self.ring_moves = true;
        'again: while self.ring_moves && !self.failed {
            self.post_ring(io);
            let mut quiet = pin!(io.call(device, self.options.home, RegionCall::PrepareRingMove));
            // Faults may arrive without end, and each layout is kept until the last I/O planned with it has finished.
            while let First::A(trouble) =
                first(io.next_fault(device), quiet.as_mut(), std::future::pending::<()>()).await
            {
                if self.fault_while_moving(io, trouble).await {
                    continue 'again;
                }
            }
            self.write_heads(io).await;
        }
        if self.failed {
            return;
        }
        self.post_ring(io);
        let result = self.array.forget_journal(io).await;
        if let Some(leaf) = leaves.filter(|_| result.is_ok()) {
            // Erased before the disk is reported as free, since it is closed then. If that fails, the disk keeps a
            // label that no start trusts.
            drop(wipe(io, leaf).await);
        }
        self.after_labels(io, result).await;
        let to = self.array.journal_disk().map(|disk| disk.leaf);
        // A disk that fails while it takes the ring is lost too.
        io.report(device, ReconcilerEvent::RingMoved { to, lost: lost || had_disk && to.is_none() });
    }

    fn post_ring<I: ReconcilerIo>(&mut self, io: &I) {
        let layout = self.layout(io);
        self.posted += 1;
        io.post(self.options.device, Some(layout));
    }

    async fn write_heads<I: ReconcilerIo>(&mut self, io: &I) {
        let Some(journal) = &self.journal else { return };
        // Unique per attempt: the generation rises with each head that was begun.
        let random = journal.run.rotate_left(23) ^ journal.generation ^ io.now_ns();
        let lost: Vec<_> = self.lost.iter().collect();
        let written = move_ring(io, &self.array, random, &lost).await;
        let error = match written {
            Ok(start) => {
                self.array.record_run(&start);
                self.journal = Some(start);
                self.ring_moves = false;
                return;
            }
            Err(error) => error,
        };
        let role = self.array.members().find(|member| Some(member.leaf) == error.leaf()).map(|member| member.number);
        io.report(self.options.device, ReconcilerEvent::OperationFailed(error.clone()));
        match role {
            _ if error.leaf().is_some_and(|leaf| self.is_ring_disk(leaf)) => drop(self.array.give_up_journal()),
            Some(role) => self.drop_members(io, &[role], false).await,
            None => self.fail(io, error).await,
        }
    }

    /// Does what [`Reconciler::on_fault`] does, while the ring moves. Ignores read errors: the next read of the range
    /// reports them again. Returns true if a member was dropped or the disk of the journal was given up.
    async fn fault_while_moving<I: ReconcilerIo>(&mut self, io: &I, trouble: Fault) -> bool {
        if !trouble.is_fatal() {
            return false;
        }
        if self.is_ring_disk(trouble.leaf) {
            self.array.give_up_journal();
            return true;
        }
        let role = self.faulty_member(&trouble);
        if let Some(role) = role {
            self.drop_members(io, &[role], false).await;
        }
        role.is_some()
    }

    /// Puts the journal on a disk.
    pub(super) async fn add_ring_disk<I: ReconcilerIo>(
        &mut self,
        io: &I,
        leaf: LeafId,
        id: MemberId,
        force: bool,
    ) -> OrderResult {
        self.check_idle(io, leaf).await?;
        let added = self.array.add_journal(io, leaf, id, force).await;
        if let Err(error) = added {
            if self.is_frozen() || matches!(error, LifecycleError::BeyondTolerance { .. }) {
                self.after_labels(io, Err(error.clone())).await;
            }
            return Err(error);
        }
        // A member that failed while the label was written is already recorded as failed: published now, since the
        // layouts of the move contain it already.
        self.after_labels(io, Ok(())).await;
        if self.failed {
            return Err(LifecycleError::BeyondTolerance { lost: Vec::new(), source: None });
        }
        self.move_ring(io, false, None).await;
        if self.is_ring_disk(leaf) {
            return Ok(());
        }
        let reason = "it failed as it took up the journal, which is on the members".to_owned();
        Err(LifecycleError::NoReturn { leaf, reason })
    }

    /// Puts the journal back on the members.
    pub(super) async fn remove_ring_disk<I: ReconcilerIo>(&mut self, io: &I) -> OrderResult {
        if !self.has_parity() || self.array.journal_number().is_none() {
            let reason = "its journal is on the members".to_owned();
            return Err(LifecycleError::Slot { slot: self.array.slots(), reason });
        }
        let leaf = self.array.give_up_journal();
        self.move_ring(io, false, leaf).await;
        match self.array.journal_number() {
            _ if self.failed => Err(LifecycleError::BeyondTolerance { lost: Vec::new(), source: None }),
            None => Ok(()),
            Some(role) => {
                let reason = "its journal is on the members, but not all labels say so yet".to_owned();
                Err(LifecycleError::Slot { slot: role, reason })
            }
        }
    }
}
