//! Requests to arrays with parity: what is written goes row by row through reading, computing, the journal, and into its
//! place; what cannot be read is computed from the rest of its row.
//!
//! A step of a request is a few ops, at most one for each row and height, with all their rows held in the range table. The
//! stages are states of the slot (`plan` begins a step, then `read`, `log`, `write`); what they need beside the slot is in
//! its *work*.

mod log;
mod mend;
mod plan;
mod read;
mod row;
mod write;

use super::scratch::Run;
use super::waiting::memory_key;
use super::{Shard, slots};
use crate::io::{LeafSink, Op};
use crate::limits::ROW_STEPS_MAX;
use crate::parity::{OPS_MAX, RowOp};
use crate::planted::{Planted, planted};

/// Where a step is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Read,
    Log,
    Write,
}

/// What a step needs beside its slot.
pub(crate) struct Work {
    ops: [RowOp; OPS_MAX],
    count: usize,
    stage: Stage,
    /// The layout that says who is read.
    version: u32,
    /// Ops that the journal has not answered for.
    unlogged: u32,
    /// Up to which byte of the array the step goes.
    to: u64,
    memory: Option<Run>,
    /// Some of its I/O ran into the time limit.
    late: bool,
}

/// All that there are on a shard.
pub(crate) struct Works {
    list: Vec<Work>,
    free: Vec<u32>,
    /// Somebody waits for one, or for memory.
    awaited: bool,
    /// Memory that the kernel may have still, by slot.
    lent: Vec<(u32, Run)>,
}

impl Works {
    pub fn new() -> Works {
        Works { list: Vec::new(), free: Vec::new(), awaited: false, lent: Vec::new() }
    }

    /// Takes the memory for all of them, once.
    pub fn prepare(&mut self) {
        if self.list.is_empty() {
            let work = || Work {
                ops: [RowOp::NONE; OPS_MAX],
                count: 0,
                stage: Stage::Read,
                version: 0,
                unlogged: 0,
                to: 0,
                memory: None,
                late: false,
            };
            self.list = (0..ROW_STEPS_MAX).map(|_| work()).collect();
            self.free = (0..ROW_STEPS_MAX).rev().collect();
            self.lent = Vec::with_capacity(64);
        }
    }

    /// I/O of a step, if it is one, ran into its time limit.
    pub fn note_late(&mut self, work: u32) {
        if let Some(work) = self.list.get_mut(work as usize) {
            work.late = true;
        }
    }
}

impl Shard {
    /// Takes a step that has no I/O out further. True: it has ended, and the slot goes on with its next one.
    pub(super) fn row_go(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let work = self.slots[index].work as usize;
        match self.works.list[work].stage {
            Stage::Read => {
                let moved = self.slots[index].version != self.works.list[work].version;
                if std::mem::take(&mut self.slots[index].again) || moved && !planted(Planted::StepsWithOldLayout) {
                    // Planned anew, without whoever could not read. Or the layout has changed in a freeze: who may be read now was not.
                    self.drop_work(index, sink);
                    return true;
                }
                if self.slots[index].op == Op::Read {
                    return self.recovered(index, sink);
                }
                if !self.compute_rows(index, sink) {
                    return true;
                }
                self.log_rows(index, |_| true, sink);
                false
            }
            Stage::Log => self.write_rows(index, sink),
            Stage::Write => self.rows_written(index, sink),
        }
    }

    /// A work with so many pages for the slot. None: there is none now, and the slot waits.
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

    /// Ends a step: the journal is told that its entries are in place, or never will be; memory is given back.
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
            // The kernel may have that of an earlier step of the slot alone.
            match late && of_step {
                true => self.lend_memory(index, memory),
                false => self.give_memory(memory),
            }
        }
        for op in ops[..count].iter().filter(|op| op.sequence > 0) {
            self.tell_in_place(index, op.sequence, sink);
        }
    }

    #[cold]
    fn lend_memory(&mut self, index: u32, memory: Run) {
        self.works.lent.push((index, memory));
        if let Some(scratch) = self.scratch.as_mut() {
            scratch.lend(memory);
        }
        self.memory_is_news();
    }

    fn give_memory(&mut self, memory: Run) {
        if let Some(scratch) = self.scratch.as_mut() {
            scratch.give(memory);
        }
        self.memory_is_news();
    }

    fn memory_is_news(&mut self) {
        if std::mem::take(&mut self.works.awaited) {
            self.woken.push_back((memory_key(), None));
        }
    }

    /// The kernel has nothing of a slot any more: memory that it might have had is free.
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
            self.memory_is_news();
        }
    }
}
