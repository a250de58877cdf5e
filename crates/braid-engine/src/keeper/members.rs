//! Members that fail, return, are filled and promoted; spares.

use braid_format::{JobKind, MemberState};

use super::{JobStage, Keeper, KeeperIo, Note, Order, Ordered, REPAIRS_MAX};
use crate::io::LeafId;
use crate::lifecycle::{LifecycleError, Newcomer};
use crate::planted::{Planted, planted};
use crate::trouble::Trouble;

impl Keeper {
    /// Whether the trouble is of a member that still serves on that disk.
    pub(super) fn is_current(&self, trouble: &Trouble) -> bool {
        self.array.members().any(|m| m.role == trouble.role && m.leaf == trouble.leaf)
    }

    pub(super) async fn on_trouble<I: KeeperIo>(&mut self, io: &I, trouble: Trouble) {
        if self.failed || !self.is_current(&trouble) {
            return;
        }
        if trouble.is_fatal() {
            return self.lose(io, &[trouble.role]).await;
        }
        let count = self.repairs.entry(trouble.role).or_default();
        *count += 1;
        if *count > REPAIRS_MAX {
            return self.lose(io, &[trouble.role]).await;
        }
        self.repair(io, &trouble).await;
    }

    /// Leaves members out. A spare takes over.
    pub(super) async fn lose<I: KeeperIo>(&mut self, io: &I, roles: &[u16]) {
        if self.failed {
            return;
        }
        io.freeze(self.options.device).await;
        if planted(Planted::DroppedBeforeRecorded) && self.array.tolerates(roles) {
            let layout = self.layout_without(io, roles);
            io.post(self.options.device, Some(layout));
        }
        let result = self.array.drop_members(io, roles).await;
        match result {
            Ok(_) => self.publish_now(io),
            Err(error) => self.fail(io, error),
        }
        self.use_spares(io).await;
    }

    /// After something that may have changed the labels: what has become of the members is published.
    pub(super) async fn after_labels<I: KeeperIo>(&mut self, io: &I, result: Result<(), LifecycleError>) {
        match result {
            Err(error @ LifecycleError::Beyond { .. }) => self.fail(io, error),
            Err(error) => {
                io.note(self.options.device, Note::Trouble(error));
                self.publish_changes(io);
            }
            Ok(()) => self.publish_changes(io),
        }
        self.use_spares(io).await;
    }

    /// Publishes the layout of now where it is another one.
    fn publish_changes<I: KeeperIo>(&mut self, io: &I) {
        if self.has_changed() {
            self.publish_now(io);
        } else {
            io.recorded(self.options.device, &self.array);
        }
    }

    /// Publishes the layout of now: it ends a freeze.
    pub(super) fn publish_now<I: KeeperIo>(&mut self, io: &I) {
        self.stuck.clear();
        let device = self.options.device;
        let out: Vec<u16> =
            self.fills.keys().copied().filter(|r| self.array.state(*r) != MemberState::Filling).collect();
        for role in out {
            self.end_job(io, JobKind::Rebuild, Some(role), JobStage::Failed);
            self.fills.remove(&role);
        }
        // Whatever was copied half is copied anew.
        self.begun.clear();
        self.copied.clear();
        if self.has_changed() {
            let serving = |role: u16| self.array.members().any(|m| m.role == role);
            let lost =
                (0..self.array.roles()).filter(|role| self.was_published(*role) && !serving(*role)).collect::<Vec<_>>();
            if !lost.is_empty() {
                io.note(device, Note::Dropped(lost));
            }
        }
        self.notice_filling(io);
        let layout = self.layout(io);
        self.posted += 1;
        io.post(device, Some(layout));
        io.recorded(device, &self.array);
    }

    fn was_published(&self, role: u16) -> bool {
        self.published.get(usize::from(role)).is_some_and(|(leaf, _)| leaf.is_some())
    }

    /// Nothing more is written, and every request fails: what remains stays as it is, to be assembled again.
    fn fail<I: KeeperIo>(&mut self, io: &I, error: LifecycleError) {
        let device = self.options.device;
        self.failed = true;
        self.fail_jobs(io);
        self.check = None;
        self.fills.clear();
        io.note(device, Note::Trouble(error));
        io.note(device, Note::Failed);
        let layout = self.layout(io);
        io.post(device, Some(layout));
    }

    /// Lets spares take the roles of members that are out.
    pub(super) async fn use_spares<I: KeeperIo>(&mut self, io: &I) {
        while !self.failed {
            let vacant = (0..self.array.roles())
                .find(|role| matches!(self.array.state(*role), MemberState::Out | MemberState::Absent));
            let Some(role) = vacant else { return };
            let needed = self.array.needed_bytes(role);
            let large = |m: &crate::lifecycle::ArrayMember<'_>| m.part.places.data.bytes >= needed;
            let Some(spare) = self.array.spares().filter(large).map(|m| m.role).min() else { return };
            let result = self.array.take_spare(io, role, spare).await;
            let taken = result.is_ok();
            match result {
                Err(error @ LifecycleError::Beyond { .. }) => return self.fail(io, error),
                Err(error) => io.note(self.options.device, Note::Trouble(error)),
                Ok(()) => io.note(self.options.device, Note::Filling(role)),
            }
            self.publish_changes(io);
            if !taken && self.array.spares().any(|m| m.role == spare) {
                return;
            }
        }
    }

    pub(super) async fn promote<I: KeeperIo>(&mut self, io: &I, role: u16) {
        let result = self.array.promote(io, role).await;
        if result.is_ok() {
            self.end_job(io, JobKind::Rebuild, Some(role), JobStage::Done);
            self.fills.remove(&role);
            io.note(self.options.device, Note::InSync(role));
        }
        self.after_labels(io, result).await;
    }

    pub(super) async fn obey<I: KeeperIo>(&mut self, io: &I, order: Order) -> Ordered {
        if self.failed {
            return Err(LifecycleError::Beyond { lost: Vec::new(), source: None });
        }
        let device = self.options.device;
        let result = match order {
            Order::Fail(roles) => {
                if !self.array.tolerates(&roles) {
                    return Err(LifecycleError::Beyond { lost: roles, source: None });
                }
                self.lose(io, &roles).await;
                return Ok(());
            }
            Order::Fill { role, newcomer, from } => {
                let (Newcomer::Returning { leaf } | Newcomer::New { leaf, .. }) = newcomer;
                self.is_calm(io, leaf).await?;
                let result = self.array.begin_filling(io, role, newcomer, from).await;
                if result.is_ok() {
                    io.note(device, Note::Filling(role));
                }
                result
            }
            Order::Return(leaf) => self.welcome(io, leaf).await,
            Order::Remove(role) => self.array.remove(io, role).await,
            Order::AddSpare { leaf, id, force } => {
                self.is_calm(io, leaf).await?;
                self.array.add_spare(io, leaf, id, force).await.map(drop)
            }
            Order::RemoveSpare(spare) => self.array.remove_spare(io, spare).await.map(drop),
            Order::Rename(name) => self.array.rename(io, name).await,
            Order::Pause(job) => self.pause(io, job, true).await,
            Order::Resume(job) => self.pause(io, job, false).await,
            Order::Limit { job, rate_bytes_per_s } => self.limit(io, job, rate_bytes_per_s).await,
            Order::Cancel(job) => return self.cancel(io, job).await,
            Order::Grow => return self.grow(io).await,
            Order::Check { repair } => return self.begin_check(io, repair),
            Order::Stop => Ok(()),
        };
        if !matches!(result, Err(LifecycleError::Job { .. })) {
            self.after_labels(io, result.clone()).await;
        }
        result
    }

    /// A disk has appeared: where it is a member that is out, it returns, and what it missed is copied.
    async fn welcome<I: KeeperIo>(&mut self, io: &I, leaf: LeafId) -> Result<(), LifecycleError> {
        let candidate = self.array.recognise(io, leaf).await?;
        self.is_calm(io, leaf).await?;
        let newcomer = Newcomer::Returning { leaf };
        self.array.begin_filling(io, candidate.role, newcomer, candidate.from).await?;
        io.note(self.options.device, Note::Filling(candidate.role));
        Ok(())
    }

    /// Refuses a disk on which a write may still land that was planned when it was a member before: it would overwrite what
    /// is copied to it now.
    async fn is_calm<I: KeeperIo>(&self, io: &I, leaf: LeafId) -> Result<(), LifecycleError> {
        if io.is_idle(leaf).await || planted(Planted::ReturnsTooEarly) {
            return Ok(());
        }
        let reason = "I/O from before is still under way on it; it can return when that has ended".to_owned();
        Err(LifecycleError::NoReturn { leaf, reason })
    }
}
