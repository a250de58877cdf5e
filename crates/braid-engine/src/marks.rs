//! Marks of the journal of an array with parity that are retired when a member is dropped.
//!
//! A stripe that is only marked is recovered from its data alone: its parity may not match. Once a label says that a
//! member has failed, stripes that were marked before could not be read any more, although they are in place on the
//! survivors. So the reconciler has the marks retired before it records a drop: it waits until no write to a marked
//! stripe is in flight, the survivors flush, and the label that records the drop also says up to which batch marks do
//! not count. A slot whose mark is retired before it has written its stripe logs that stripe.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use braid_format::RetiredMarks;

use crate::io::LeafId;

/// The retired marks of a journal, shared by all shards and the reconciler.
#[derive(Debug, Default)]
pub struct Marks {
    run: AtomicU64,
    batch: AtomicU64,
    /// The disks on which a stripe is not in place although its mark is retired. Disks and not indices: a member's
    /// index may change.
    failed: Mutex<Vec<LeafId>>,
}

impl Marks {
    /// Retires the marks of this run up to this batch. `failed`: the disks on which one of these stripes is not in
    /// place. Marks stay retired, and disks stay listed: only a layout without a disk removes it
    /// ([`Marks::retain_failed`]).
    pub fn retire(&self, run: u64, batch: u64, failed: &[LeafId]) {
        let mut disks = self.disks();
        for disk in failed {
            if !disks.contains(disk) {
                disks.push(*disk);
            }
        }
        drop(disks);
        self.run.store(run, Ordering::Release);
        self.batch.fetch_max(batch, Ordering::AcqRel);
    }

    /// Removes the disks that do not serve in a published layout. A failed disk gets the stripe when it is rebuilt.
    pub(crate) fn retain_failed(&self, serves: impl Fn(LeafId) -> bool) {
        self.disks().retain(|disk| serves(*disk));
    }

    /// Returns whether the mark of this batch counts. Sequence numbers of batches continue while the array serves, in
    /// any run.
    #[inline]
    pub(crate) fn counts(&self, batch: u64) -> bool {
        batch > self.batch.load(Ordering::Acquire)
    }

    /// Returns what is retired, as a label records it.
    pub fn retired(&self) -> RetiredMarks {
        RetiredMarks { run: self.run.load(Ordering::Acquire), batch: self.batch.load(Ordering::Acquire) }
    }

    /// Returns the disks on which a stripe is not in place although its mark is retired: the label that retires the
    /// mark drops them.
    pub fn failed(&self) -> Vec<LeafId> {
        self.disks().clone()
    }

    fn disks(&self) -> MutexGuard<'_, Vec<LeafId>> {
        // The list is whole after each of its operations.
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
