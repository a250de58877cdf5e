//! Retired marks: marks in the journal of an array with parity that recovery ignores.
//!
//! The journal only marks the stripe of a full-stripe write. Recovery of a marked stripe recomputes its parity from its
//! data, because the parity may not match. Without one of its members a marked stripe could not be recovered, even if
//! it is in place on all survivors. So the reconciler has all marks retired before a label records the drop of a
//! member: the shards wait until no write to a marked stripe is in flight, the survivors flush, and the label that
//! records the drop also records up to which batch marks are ignored. A request whose mark is retired before it has
//! written its stripe logs the stripe with its data.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use braid_format::RetiredMarks;

use crate::io::LeafId;

/// The retired marks of a journal, shared by all shards and the reconciler.
#[derive(Debug, Default)]
pub struct Marks {
    run: AtomicU64,
    batch: AtomicU64,
    /// The disks that lack a stripe whose mark is retired, because they failed a write to it. Disks and not indices: a
    /// member's index may change.
    failed: Mutex<Vec<LeafId>>,
}

impl Marks {
    /// Retires the marks of run `run` up to batch `batch`, inclusive. `failed`: the disks that failed a write to one of
    /// these stripes. Nothing makes a retired mark count again. A disk stays listed until a layout in which it does not
    /// serve is published ([`Marks::retain_failed`]).
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

    /// Removes the disks that do not serve in a published layout. Such a disk gets the stripes that it lacks when it is
    /// rebuilt.
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

    /// Returns the disks that lack a stripe whose mark is retired. The label that records the retirement must drop
    /// them.
    pub fn failed(&self) -> Vec<LeafId> {
        self.disks().clone()
    }

    fn disks(&self) -> MutexGuard<'_, Vec<LeafId>> {
        // The list is whole after each of its operations.
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
