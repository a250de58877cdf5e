//! Marks of the journal of an array with parity that are retired when a member is left out.
//!
//! A row that is only marked is recovered from its data alone: its parity may not fit them. Once a label says that a member is out, the
//! rows that were marked before could not be read any more, although all of them are in place on the survivors. So the keeper asks
//! for the marks to be retired before it records a drop: it waits until nothing of a marked row is under way, the survivors flush, and
//! the same label that records the drop says up to which batch marks do not count. A slot whose mark is retired before it has written
//! its row logs that row.

use std::sync::atomic::{AtomicU64, Ordering};

use braid_format::RetiredMarks;

use crate::mirror::Roles;

/// What the home of a journal has retired, shared by all shards and the keeper.
#[derive(Debug, Default)]
pub struct Marks {
    run: AtomicU64,
    batch: AtomicU64,
    failed: [AtomicU64; 2],
}

impl Marks {
    /// Marks of this run up to this batch do not count any more. `failed`: the members on which a marked row is not in place.
    pub(crate) fn retire(&self, run: u64, batch: u64, failed: Roles) {
        self.run.store(run, Ordering::Release);
        self.batch.fetch_max(batch, Ordering::AcqRel);
        self.failed[0].store(failed.0 as u64, Ordering::Release);
        self.failed[1].store((failed.0 >> 64) as u64, Ordering::Release);
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

    /// The members on which a marked row was not in place when marks were retired last.
    pub(crate) fn failed(&self) -> Roles {
        let half = |at: usize| u128::from(self.failed[at].load(Ordering::Acquire));
        Roles(half(0) | half(1) << 64)
    }
}
