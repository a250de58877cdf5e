//! Marks of the journal of an array with parity that are retired when a member is left out.
//!
//! A row that is only marked is recovered from its data alone: its parity may not fit them. Once a label says that a member is out, the
//! rows that were marked before could not be read any more, although all of them are in place on the survivors. So the keeper asks
//! for the marks to be retired before it records a drop: it waits until nothing of a marked row is under way, the survivors flush, and
//! the same label that records the drop says up to which batch marks do not count. A slot whose mark is retired before it has written
//! its row logs that row.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use braid_format::RetiredMarks;

use crate::io::LeafId;

/// What the home of a journal has retired, shared by all shards and the keeper.
#[derive(Debug, Default)]
pub struct Marks {
    run: AtomicU64,
    batch: AtomicU64,
    /// The disks on which a row is not in place although its mark is retired. A disk and not a number: members get other numbers.
    failed: Mutex<Vec<LeafId>>,
}

impl Marks {
    /// Marks of this run up to this batch do not count any more. `failed`: the disks on which one of these rows is not in place. What is
    /// retired stays so, and so do they: only a layout without a disk takes it away ([`Marks::keep_failed`]).
    pub(crate) fn retire(&self, run: u64, batch: u64, failed: &[LeafId]) {
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

    /// A layout was published in which these disks serve. A disk that is out gets the row when it is filled.
    pub(crate) fn keep_failed(&self, serves: impl Fn(LeafId) -> bool) {
        self.disks().retain(|disk| serves(*disk));
    }

    /// Whether the mark of this batch counts. Numbers of batches go on while the array serves, in whatever run.
    #[inline]
    pub(crate) fn counts(&self, batch: u64) -> bool {
        batch > self.batch.load(Ordering::Acquire)
    }

    /// What is retired, as a label says it.
    pub fn retired(&self) -> RetiredMarks {
        RetiredMarks { run: self.run.load(Ordering::Acquire), batch: self.batch.load(Ordering::Acquire) }
    }

    /// The disks on which a row is not in place although its mark is retired: the label that retires the mark leaves them out.
    pub fn failed(&self) -> Vec<LeafId> {
        self.disks().clone()
    }

    fn disks(&self) -> MutexGuard<'_, Vec<LeafId>> {
        // The list is whole after each of its operations.
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
