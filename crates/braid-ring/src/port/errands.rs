//! Leaf I/Os on disks that take one connection at a time: one shard has it, the others send it what they are asked for.
//!
//! An I/O that is sent keeps its entry, and its memory is in use until it comes back: the host sends from it and receives into it as if it
//! were its own. On the host it has an entry, too, and waits for the carrier among the host's own.

use braid_engine::{ErrorKind, LeafError, LeafId, LeafIo, LeafResult, ShardId};

use super::Port;

/// What one shard tells another of an I/O.
#[derive(Clone, Copy)]
pub(crate) enum Errand {
    /// It is to be carried out: of which shard, its entry there, and what it is.
    Do(ShardId, u32, LeafIo),
    /// It has been: the entry, and how it ended.
    Done(u32, LeafResult),
}

#[derive(Default)]
pub(super) struct Errands {
    /// On their way to other shards.
    out: Vec<(ShardId, Errand)>,
    /// Sent, and not come back.
    away: u32,
}

impl Port {
    /// Lets another shard carry the I/O of a leaf.
    pub(crate) fn set_host(&mut self, id: LeafId, host: ShardId) {
        self.leaves[id.0 as usize].host = Some(host);
    }

    pub(super) fn send_errand(&mut self, index: u32, host: ShardId) {
        self.errands.away += 1;
        self.errands.out.push((host, Errand::Do(self.shard, index, self.entries[index].io)));
    }

    pub(super) fn errand_is_done(&mut self, index: u32, (shard, entry): (ShardId, u32), result: LeafResult) {
        self.entries.give(index);
        self.errands.out.push((shard, Errand::Done(entry, result)));
    }

    /// What is to be told to other shards, in exchange for an empty vector.
    pub(crate) fn swap_errands(&mut self, empty: &mut Vec<(ShardId, Errand)>) {
        std::mem::swap(&mut self.errands.out, empty);
    }

    /// Whether another shard still works on memory of this one.
    pub(crate) fn has_errands_away(&self) -> bool {
        self.errands.away > 0
    }

    /// Another shard has told something.
    pub(crate) fn on_errand(&mut self, errand: Errand) {
        match errand {
            Errand::Done(index, result) => {
                self.errands.away -= 1;
                self.finish(index, result);
            }
            Errand::Do(shard, entry, io) => {
                let Some(leaf) = self.leaves.get_mut(io.leaf.0 as usize).filter(|leaf| leaf.disk.is_some()) else {
                    let gone = Err(LeafError::of(ErrorKind::NoDevice));
                    return self.errands.out.push((shard, Errand::Done(entry, gone)));
                };
                leaf.in_flight += 1;
                let index = self.entries.take_guest(&io, self.now_ns, (shard, entry));
                self.begin_remote(index);
            }
        }
    }

    /// A shard that was to be told something has ended.
    #[cold]
    pub(crate) fn errand_fails(&mut self, errand: Errand) {
        if let Errand::Do(_, index, _) = errand {
            self.errands.away -= 1;
            self.finish(index, Err(LeafError::of(ErrorKind::Gone)));
        }
    }
}
