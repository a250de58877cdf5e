//! Retires the journal's marks before a label drops members: in a drop, or in any other change of the labels that
//! failed on a member (`docs/decisions/0006-marks-are-retired-with-the-drop.md`).
//!
//! A change of the labels has borrowed the reconciler's array, and with it the reconciler. So the task that retires
//! marks owns all that it needs, and is polled beside the reconciler ([`Retirement::beside`]).

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use braid_engine::{DeviceId, RegionCall, ShardId};

use super::race::{First, first};
use super::{Reconciler, ReconcilerIo};
use crate::lifecycle::Retirement;

/// How long I/O of marked stripes is waited for before a member is dropped, in nanoseconds.
const RETIRE_WAIT_NS: u64 = 1_000_000_000;

/// The task that retires marks, beside the reconciler of an array.
pub(super) struct MarkRetirer<'a, I> {
    io: &'a I,
    device: DeviceId,
    home: ShardId,
    retirement: Arc<Retirement>,
    frozen: Arc<AtomicBool>,
}

impl Reconciler {
    /// Returns the task that retires marks for this reconciler.
    pub(super) fn mark_retirer<'a, I: ReconcilerIo>(&self, io: &'a I) -> MarkRetirer<'a, I> {
        MarkRetirer {
            io,
            device: self.options.device,
            home: self.options.home,
            retirement: Arc::clone(&self.retirement),
            frozen: Arc::clone(&self.frozen),
        }
    }

    /// Whether a change of the labels has frozen the device: a layout has to be published even if it is unchanged.
    pub(super) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Acquire)
    }

    /// Records that a layout was published, which ends the freeze.
    pub(super) fn thaw(&self) {
        self.frozen.store(false, Ordering::Release);
    }
}

impl<I: ReconcilerIo> MarkRetirer<'_, I> {
    /// Runs the reconciler's work, and retires marks whenever a change of the labels requests it.
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
        // Until the layout without the failed members, no request completes and no stripe is marked.
        self.frozen.store(true, Ordering::Release);
        self.io.freeze(self.device).await;
        let call = |wait| self.io.call(self.device, self.home, RegionCall::RetireMarks { wait });
        // A disk that hangs keeps its I/O until the time limit, and requests wait meanwhile.
        let limit = self.io.sleep(RETIRE_WAIT_NS);
        if let First::B(()) = first(call(true), limit, std::future::pending::<()>()).await {
            call(false).await;
        }
    }
}
