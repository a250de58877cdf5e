//! Members that fail, return, are rebuilt and promoted; spares.

use std::collections::VecDeque;
use std::pin::pin;

use braid_engine::{Fault, LeafId};
use braid_format::MemberState;

use super::{
    CheckFrom, First, JobStage, Order, OrderResult, REPAIRS_MAX, Reconciler, ReconcilerEvent, ReconcilerIo, first,
};
use crate::lifecycle::{GrowRequest, LifecycleError, RebuildTarget};

/// Maximum number of faults waiting for repair.
const FAULTS_MAX: usize = 64;

impl Reconciler {
    /// Returns the current number of the member that a fault is about, if it still serves on that disk.
    pub(super) fn faulty_member(&self, trouble: &Fault) -> Option<u16> {
        self.array.members().find(|m| m.leaf == trouble.leaf).map(|m| m.number)
    }

    pub(super) async fn on_fault<I: ReconcilerIo>(&mut self, io: &I, trouble: Fault) {
        let mut waiting = VecDeque::from([trouble]);
        while let Some(trouble) = waiting.pop_front() {
            if self.is_ring_disk(trouble.leaf) && trouble.is_fatal() && !self.failed {
                self.fail_ring_disk(io).await;
                continue;
            }
            let Some(role) = self.faulty_member(&trouble).filter(|_| !self.failed) else { continue };
            if trouble.is_fatal() || self.has_worn_out(role) {
                self.note_failure(role, trouble.kind);
                self.drop_and_settle(io, &[role], false).await;
                continue;
            }
            if self.held_until_ns.is_some() {
                // Nothing is repaired while requests are held; the next read reports the fault again.
                continue;
            }
            // The repair waits for its range, whose holder may wait for a member to be dropped: fatal faults come
            // first.
            let mut repair = pin!(self.repair(io, &trouble));
            while let First::A(other) =
                first(io.next_fault(self.options.device), std::future::pending::<()>(), repair.as_mut()).await
            {
                if other.is_fatal() {
                    waiting.push_front(other);
                    break;
                }
                // A fault that is discarded here is reported again by the next read.
                if waiting.len() < FAULTS_MAX {
                    waiting.push_back(other);
                }
            }
        }
    }

    /// Counts a read error of a member. Returns true if there were too many and other members hold all of its content.
    fn has_worn_out(&mut self, role: u16) -> bool {
        let count = self.repairs.entry(role).or_default();
        *count = count.saturating_add(1);
        // The last copy is kept, however many errors it has.
        *count > REPAIRS_MAX && self.array.tolerates(&[role])
    }

    /// Drops members and lets spares take over. A successor that is given up loses its label as well.
    pub(super) async fn drop_and_settle<I: ReconcilerIo>(&mut self, io: &I, roles: &[u16], given_up: bool) {
        self.drop_members(io, roles, given_up).await;
        self.settle_slots(io).await;
    }

    pub(super) async fn drop_members<I: ReconcilerIo>(&mut self, io: &I, roles: &[u16], given_up: bool) {
        if self.failed {
            return;
        }
        io.freeze(self.options.device).await;
        let result = match (roles, given_up) {
            ([successor], true) => self.array.cancel_replacement(io, *successor).await,
            ([role], false) if self.retiring == Some(*role) => self.array.retire(io, *role).await,
            _ => self.array.drop_members(io, roles).await.map(drop),
        };
        match result {
            Ok(()) => self.publish_now(io),
            Err(error @ LifecycleError::BeyondTolerance { .. }) => self.fail(io, error).await,
            Err(error) => {
                io.report(self.options.device, ReconcilerEvent::OperationFailed(error));
                self.publish_now(io);
            }
        }
    }

    /// Publishes the members' new states after an operation that may have changed the labels.
    pub(super) async fn after_labels<I: ReconcilerIo>(&mut self, io: &I, result: Result<(), LifecycleError>) {
        if self.has_new_failures() {
            // The dirty regions of this moment bound what the failed members may have lost: nothing completes before
            // the layout without them.
            io.freeze(self.options.device).await;
        }
        match result {
            Err(error @ LifecycleError::BeyondTolerance { .. }) => self.fail(io, error).await,
            Err(error) => {
                io.report(self.options.device, ReconcilerEvent::OperationFailed(error));
                self.publish_changes(io);
            }
            Ok(()) => self.publish_changes(io),
        }
        self.settle_slots(io).await;
    }

    /// Publishes the current layout if it has changed, or if a change of the labels has frozen the device.
    pub(super) fn publish_changes<I: ReconcilerIo>(&mut self, io: &I) {
        if self.has_changed() || self.is_frozen() {
            self.publish_now(io);
        } else {
            io.labels_recorded(self.options.device, &self.array);
        }
    }

    /// Publishes the current layout, which ends a freeze.
    pub(super) fn publish_now<I: ReconcilerIo>(&mut self, io: &I) {
        self.stuck.clear();
        let device = self.options.device;
        let out: Vec<u16> =
            self.rebuilds.keys().copied().filter(|r| self.array.state(*r) != MemberState::Rebuilding).collect();
        for role in out {
            self.end_job(io, self.rebuild_kind(role), Some(role), JobStage::Failed);
            self.rebuilds.remove(&role);
        }
        // Regions copied in part are copied again.
        self.begun.clear();
        self.copied.clear();
        if self.has_changed() {
            let serving = |role: u16| self.array.members().any(|m| m.number == role);
            let lost = |role: &u16| {
                self.was_published(*role) && !serving(*role) && self.retiring != Some(*role) && !self.has_moved(*role)
            };
            let lost: Vec<u16> = (0..self.published.len() as u16).filter(lost).collect();
            if !lost.is_empty() {
                io.report(device, ReconcilerEvent::Dropped(lost));
            }
        }
        self.update_dirty_logs();
        self.track_rebuilds(io);
        let layout = self.layout(io);
        self.posted += 1;
        io.post(device, Some(layout));
        self.thaw();
        io.labels_recorded(device, &self.array);
    }

    fn was_published(&self, role: u16) -> bool {
        self.published.get(usize::from(role)).is_some_and(|(leaf, _)| leaf.is_some())
    }

    /// Whether the disk that had this number has another number now.
    fn has_moved(&self, role: u16) -> bool {
        let leaf = self.published.get(usize::from(role)).and_then(|(leaf, _)| *leaf);
        self.array.members().any(|m| Some(m.leaf) == leaf && m.number != role)
    }

    /// Stops all writes and fails every request: what remains stays as it is and can be assembled again. A replicated
    /// device does not report the failure to its clients: their requests wait until the controller that opens it next
    /// has cut them off.
    pub(super) async fn fail<I: ReconcilerIo>(&mut self, io: &I, error: LifecycleError) {
        let device = self.options.device;
        self.failed = true;
        self.fail_jobs(io);
        self.check = None;
        self.rebuilds.clear();
        io.report(device, ReconcilerEvent::OperationFailed(error));
        io.report(device, ReconcilerEvent::ArrayFailed);
        if self.options.lease.is_some() {
            return io.freeze(device).await;
        }
        let layout = self.layout(io);
        io.post(device, Some(layout));
    }

    /// Lets spares take the slots of failed members.
    pub(super) async fn use_spares<I: ReconcilerIo>(&mut self, io: &I) {
        while !self.failed {
            let vacant = (0..self.array.slots())
                .find(|role| matches!(self.array.state(*role), MemberState::Failed | MemberState::Empty));
            let Some(role) = vacant else { return };
            let needed = self.array.needed_bytes(role);
            let large = |m: &crate::lifecycle::ArrayMember<'_>| m.part.layout.data.bytes >= needed;
            let Some(spare) = self.array.spares().filter(large).map(|m| m.number).min() else { return };
            let result = self.array.take_spare(io, role, spare).await;
            let taken = result.is_ok();
            match result {
                Err(error @ LifecycleError::BeyondTolerance { .. }) => return self.fail(io, error).await,
                Err(error) => io.report(self.options.device, ReconcilerEvent::OperationFailed(error)),
                Ok(()) => io.report(self.options.device, ReconcilerEvent::RebuildStarted(role)),
            }
            self.publish_changes(io);
            if !taken && self.array.spares().any(|m| m.number == spare) {
                return;
            }
        }
    }

    pub(super) async fn promote<I: ReconcilerIo>(&mut self, io: &I, role: u16) {
        let result = self.array.promote(io, role).await;
        if result.is_ok() {
            self.end_job(io, self.rebuild_kind(role), Some(role), JobStage::Done);
            self.rebuilds.remove(&role);
            self.dirty_logs.remove(&role);
            if role < self.array.slots() {
                io.report(self.options.device, ReconcilerEvent::InSync(role));
            }
        }
        self.after_labels(io, result).await;
    }

    pub(super) async fn execute<I: ReconcilerIo>(&mut self, io: &I, order: Order) -> OrderResult {
        if self.failed {
            return Err(LifecycleError::BeyondTolerance { lost: Vec::new(), source: None });
        }
        let device = self.options.device;
        let result = match order {
            Order::Fail(roles) if self.array.journal_number().is_some_and(|journal| roles == [journal]) => {
                self.fail_ring_disk(io).await;
                return Ok(());
            }
            Order::Fail(roles) => {
                if !self.array.tolerates(&roles) {
                    return Err(LifecycleError::BeyondTolerance { lost: roles, source: None });
                }
                self.unreached.extend(roles.iter().copied());
                self.drop_and_settle(io, &roles, false).await;
                return Ok(());
            }
            Order::Rebuild { slot: role, target: newcomer, kind: from } => {
                let (RebuildTarget::Returning { leaf } | RebuildTarget::New { leaf, .. }) = newcomer;
                self.check_idle(io, leaf).await?;
                let result = self.array.begin_rebuild(io, role, newcomer, from).await;
                if result.is_ok() {
                    io.report(device, ReconcilerEvent::RebuildStarted(role));
                }
                result
            }
            Order::Replace { slot: role, successor: by } => self.begin_replacing(io, role, by).await,
            Order::Return { leaf, kept_writes: kept } => self.rejoin(io, leaf, kept).await,
            Order::CompareBeforeCopy(role) => {
                return self.compare_rebuild(role);
            }
            Order::BeginDelta { slot: role, base: with } => return self.begin_delta(role, with),
            Order::ApplyDelta { slot: role, base: with, ranges } => return self.apply_delta(role, with, &ranges),
            Order::Remove(role) => self.array.remove(io, role).await,
            Order::AddSpare { leaf, id, force } => {
                self.check_idle(io, leaf).await?;
                self.array.add_spare(io, leaf, id, force).await.map(drop)
            }
            Order::RemoveSpare(spare) => self.array.remove_spare(io, spare).await.map(drop),
            Order::Widen => self.array.widen(io).await.map(drop),
            Order::AddCopy { leaf, id, force } => {
                self.check_idle(io, leaf).await?;
                let taken = self.array.widen_by(io, leaf, id, force).await;
                if let Ok(role) = &taken {
                    io.report(device, ReconcilerEvent::RebuildStarted(*role));
                }
                taken.map(drop)
            }
            Order::Narrow(role) => {
                let result = self.array.narrow(io, role).await;
                if result.is_ok() {
                    // The numbers have changed.
                    self.repairs.clear();
                }
                result
            }
            Order::Rename(name) => self.array.rename(io, name).await,
            Order::Pause(job) => self.pause(io, job, true).await,
            Order::Resume(job) => self.pause(io, job, false).await,
            Order::Limit { job, rate_bytes_per_s } => self.limit(io, job, rate_bytes_per_s).await,
            Order::Cancel(job) => return self.cancel(io, job).await,
            Order::JournalOn { leaf, id, force } => return self.add_ring_disk(io, leaf, id, force).await,
            Order::JournalToMembers => return self.remove_ring_disk(io).await,
            Order::Grow { newcomers, force } => {
                return self.grow(io, GrowRequest { new_disks: newcomers, force }).await;
            }
            Order::Check { .. } | Order::RepairFromData if self.jobs.check().is_none() => {
                self.refuse_blind_check()?;
                let (repair, from_data) = match order {
                    Order::Check { repair } => (repair, false),
                    _ => (true, true),
                };
                return self.begin_check(io, CheckFrom { repair, from_data, ..CheckFrom::default() });
            }
            Order::Check { repair } => return self.begin_check(io, CheckFrom { repair, ..CheckFrom::default() }),
            Order::RepairFromData => {
                let from = CheckFrom { repair: true, from_data: true, ..CheckFrom::default() };
                return self.begin_check(io, from);
            }
            Order::ResumeCheck(from) => return self.begin_check(io, from),
            Order::Hold { limit_ns } => return self.hold(io, limit_ns).await,
            Order::Release => return self.release(io),
            Order::Stop => Ok(()),
        };
        if !matches!(result, Err(LifecycleError::Job { .. })) {
            self.after_labels(io, result.clone()).await;
        }
        result
    }

    /// Lets a disk that has appeared rejoin as the failed member that it was, and copies what it missed.
    async fn rejoin<I: ReconcilerIo>(&mut self, io: &I, leaf: LeafId, kept: bool) -> Result<(), LifecycleError> {
        let candidate = self.array.probe_returning(io, leaf).await?;
        self.check_idle(io, leaf).await?;
        let newcomer = RebuildTarget::Returning { leaf };
        self.array.begin_rebuild(io, candidate.slot, newcomer, candidate.kind).await?;
        self.note_return(candidate.slot, kept);
        io.report(self.options.device, ReconcilerEvent::RebuildStarted(candidate.slot));
        Ok(())
    }

    /// Refuses a disk with a write in flight from its time as a member: that write could overwrite what is copied to
    /// the disk now.
    pub(super) async fn check_idle<I: ReconcilerIo>(&self, io: &I, leaf: LeafId) -> Result<(), LifecycleError> {
        if io.is_idle(leaf).await {
            return Ok(());
        }
        let reason = "I/O from before is still under way on it; it can return when that has ended".to_owned();
        Err(LifecycleError::NoReturn { leaf, reason })
    }
}
