//! The keeper retires the marks of the journal when a label is about to leave members out: of a drop, or of any other change of the
//! labels that failed on them (`docs/adr/0006-marks-are-retired-with-the-drop.md`).
//!
//! A change of the labels has borrowed the keeper's array, and the keeper with it. So what retires marks has all that it needs of its own,
//! and is polled beside the keeper ([`Retirement::beside`]).

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::race::{First, first};
use super::{Keeper, KeeperIo};
use crate::io::{DeviceId, ShardId};
use crate::lifecycle::Retirement;
use crate::planted::{Planted, planted};
use crate::shard::RegionCall;

/// So long what is under way of rows that are only marked is waited for before a member is left out, in nanoseconds.
const RETIRE_WAIT_NS: u64 = 1_000_000_000;

/// What retires marks, beside the keeper of an array.
pub(super) struct RetiresMarks<'a, I> {
    io: &'a I,
    device: DeviceId,
    home: ShardId,
    retirement: Arc<Retirement>,
    frozen: Arc<AtomicBool>,
}

impl Keeper {
    /// What retires marks for this keeper.
    pub(super) fn retires_marks<'a, I: KeeperIo>(&self, io: &'a I) -> RetiresMarks<'a, I> {
        RetiresMarks {
            io,
            device: self.options.device,
            home: self.options.home,
            retirement: Arc::clone(&self.retirement),
            frozen: Arc::clone(&self.frozen),
        }
    }

    /// Whether the change of a label has frozen the device: a layout is to be published, be it another one or not.
    pub(super) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Acquire)
    }

    /// A layout is published, which ends the freeze.
    pub(super) fn thaw(&self) {
        self.frozen.store(false, Ordering::Release);
    }
}

impl<I: KeeperIo> RetiresMarks<'_, I> {
    /// Runs the keeper's work, and retires marks whenever a change of the labels requests it.
    pub(super) async fn beside<T>(&self, work: impl Future<Output = T>) -> T {
        self.retirement.beside(work, self.carry_out()).await
    }

    async fn carry_out(&self) -> Infallible {
        loop {
            self.retirement.requested().await;
            self.retire().await;
            self.retirement.reply();
        }
    }

    async fn retire(&self) {
        // Until the layout without the members nothing is answered, and nothing is marked.
        self.frozen.store(true, Ordering::Release);
        self.io.freeze(self.device).await;
        if planted(Planted::MarksLeftAtDrop) {
            return;
        }
        let call = |wait| self.io.call(self.device, self.home, RegionCall::RetireMarks { wait });
        // A disk that hangs keeps what it has until its time limit, and requests wait meanwhile.
        let limit = self.io.sleep(RETIRE_WAIT_NS);
        if let First::B(()) = first(call(true), limit, std::future::pending::<()>()).await {
            call(false).await;
        }
    }
}
