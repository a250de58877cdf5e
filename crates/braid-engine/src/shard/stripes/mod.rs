//! Requests to arrays with parity. A write passes stripe by stripe through reading, computing, the journal, and the
//! write in place; what cannot be read is computed from the rest of its stripe.
//!
//! This module calls the journal's unit, a slice of a stripe of the geometry, a *stripe*. A step of a request is a few
//! ops, at most one for each stripe and height, with the lines of all of them held in the range table. The stages are
//! states of the slot (`plan` begins a step, then `read`, `log`, `write`); what they need besides the slot is in its
//! *work*.

mod log;
mod plan;
mod read;
mod rewritten;
mod stripe;
mod write;

use super::scratch::PageRun;
use super::stripe_work::Stage;
use super::waiting::memory_key;
use super::{Shard, slots};
use crate::io::{LeafSink, Op};

impl Shard {
    /// Advances a step that has no I/O in flight. Returns true if it has ended, and the slot continues with its next
    /// step.
    pub(super) fn stripe_advance(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let work = self.slots[index].work as usize;
        match self.works.list[work].stage {
            Stage::Read => {
                let moved = self.slots[index].version != self.works.list[work].version;
                if std::mem::take(&mut self.slots[index].again) || moved {
                    // The step is planned again: without the member that could not be read, or, if the layout has
                    // changed during a freeze, with the members that can be read now.
                    self.drop_work(index, sink);
                    return true;
                }
                if self.slots[index].op == Op::Read {
                    return self.recovered(index, sink);
                }
                if !self.compute_parities(index, sink) {
                    return true;
                }
                self.log_ops(index, |_| true, sink);
                false
            }
            Stage::Log => self.write_stripes(index, sink),
            Stage::Write => self.stripes_written(index, sink),
        }
    }

    /// Allocates a work with so many pages for the slot. `None`: none is available, and the slot waits.
    fn take_work(&mut self, index: u32, pages: u32) -> Option<u32> {
        let memory = match self.works.free.is_empty() {
            true => None,
            false => self.scratch.as_mut().and_then(|scratch| scratch.take(pages)),
        };
        let Some(memory) = memory else {
            self.works.awaited = true;
            self.waiting.park(&mut self.slots, index, memory_key());
            return None;
        };
        let work = self.works.free.pop().expect("one was free");
        let of = &mut self.works.list[work as usize];
        (of.memory, of.late, of.version) = (Some(memory), false, self.slots[index].version);
        self.slots[index].work = work;
        Some(work)
    }

    /// Ends a step: the journal is notified that its entries are in place, or never will be; memory is released.
    pub(super) fn drop_work(&mut self, index: u32, sink: &mut impl LeafSink) {
        let slot = &mut self.slots[index];
        let (work, late) = (std::mem::replace(&mut slot.work, slots::NONE), slot.late > 0);
        if work == slots::NONE {
            return;
        }
        let of = &mut self.works.list[work as usize];
        let (ops, count, memory, of_step) = (of.ops, of.count, of.memory.take(), of.late);
        self.works.free.push(work);
        if let Some(memory) = memory {
            // The kernel may only have memory of an earlier step of the slot.
            match late && of_step {
                true => self.lend_memory(index, memory),
                false => self.give_memory(memory),
            }
        }
        for op in ops[..count].iter().filter(|op| op.sequence > 0) {
            self.report_in_place(index, op.sequence, sink);
        }
    }

    #[cold]
    fn lend_memory(&mut self, index: u32, memory: PageRun) {
        self.works.lent.push((index, memory));
        if let Some(scratch) = self.scratch.as_mut() {
            scratch.lend(memory);
        }
        self.wake_for_memory();
    }

    fn give_memory(&mut self, memory: PageRun) {
        if let Some(scratch) = self.scratch.as_mut() {
            scratch.give(memory);
        }
        self.wake_for_memory();
    }

    fn wake_for_memory(&mut self) {
        if std::mem::take(&mut self.works.awaited) {
            self.woken.push_back((memory_key(), None));
        }
    }

    /// Frees memory that was lent for a slot: the kernel has no I/O of the slot any more.
    #[inline]
    pub(super) fn reclaim(&mut self, index: u32) {
        if !self.works.lent.is_empty() {
            self.reclaim_lent(index);
        }
    }

    #[cold]
    fn reclaim_lent(&mut self, index: u32) {
        while let Some(at) = self.works.lent.iter().position(|(slot, _)| *slot == index) {
            let (_, memory) = self.works.lent.swap_remove(at);
            if let Some(scratch) = self.scratch.as_mut() {
                scratch.regain(memory);
            }
            self.wake_for_memory();
        }
    }
}
