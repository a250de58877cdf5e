//! What a step of a request to an array with parity needs besides its slot.

use super::scratch::PageRun;
use crate::limits::STRIPE_STEPS_MAX;
use crate::parity::{OPS_MAX, StripeOp};

/// The stage of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Read,
    Log,
    Write,
}

/// The state of a step besides its slot.
pub(crate) struct StripeWork {
    pub(super) ops: [StripeOp; OPS_MAX],
    pub(super) count: usize,
    pub(super) stage: Stage,
    /// The layout version that determines which members are read.
    pub(super) version: u32,
    /// Ops for which the journal's reply is pending.
    pub(super) unlogged: u32,
    /// The array offset at which the step ends.
    pub(super) to: u64,
    pub(super) memory: Option<PageRun>,
    /// Some of its I/O exceeded its time limit.
    pub(super) late: bool,
}

/// All stripe works of a shard.
pub(crate) struct StripeWorks {
    pub(super) list: Vec<StripeWork>,
    pub(super) free: Vec<u32>,
    /// A slot waits for a work, or for memory.
    pub(super) awaited: bool,
    /// Memory that the kernel may still have, by slot.
    pub(super) lent: Vec<(u32, PageRun)>,
}

impl StripeWorks {
    pub fn new() -> StripeWorks {
        StripeWorks { list: Vec::new(), free: Vec::new(), awaited: false, lent: Vec::new() }
    }

    /// Allocates all works, once.
    pub fn prepare(&mut self) {
        if self.list.is_empty() {
            let work = || StripeWork {
                ops: [StripeOp::NONE; OPS_MAX],
                count: 0,
                stage: Stage::Read,
                version: 0,
                unlogged: 0,
                to: 0,
                memory: None,
                late: false,
            };
            self.list = (0..STRIPE_STEPS_MAX).map(|_| work()).collect();
            self.free = (0..STRIPE_STEPS_MAX).rev().collect();
            self.lent = Vec::with_capacity(64);
        }
    }

    /// Notes that I/O of a step, if there is one, exceeded its time limit.
    pub fn note_late(&mut self, work: u32) {
        if let Some(work) = self.list.get_mut(work as usize) {
            work.late = true;
        }
    }
}
