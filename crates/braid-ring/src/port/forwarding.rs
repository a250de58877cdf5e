//! Forwarding of leaf I/Os on disks that accept a single connection. One shard, the host, has the connection; the
//! others forward their I/O to it.
//!
//! A forwarded I/O keeps its entry and its memory on its own shard until the reply arrives: the host sends from that
//! memory and receives into it. The I/O has an entry on the host, too, and waits for the carrier there like the host's
//! own I/O.

use braid_engine::{ErrorKind, LeafError, LeafId, LeafIo, LeafResult, ShardId};

use super::Port;

/// A message between shards about a forwarded I/O.
#[derive(Clone, Copy)]
pub(crate) enum ForwardedIo {
    /// Execute this I/O: the shard that forwards it, its entry there, and the I/O.
    Request(ShardId, u32, LeafIo),
    /// The I/O has ended: its entry, and the result.
    Reply(u32, LeafResult),
}

#[derive(Default)]
pub(super) struct Forwarding {
    /// Messages to send to other shards.
    outgoing: Vec<(ShardId, ForwardedIo)>,
    /// I/Os that were forwarded and have no reply yet.
    outstanding: u32,
}

impl Port {
    /// Forwards the I/O of a leaf to another shard from now on.
    pub(crate) fn set_host(&mut self, id: LeafId, host: ShardId) {
        self.leaves[id.0 as usize].host = Some(host);
    }

    pub(super) fn forward(&mut self, index: u32, host: ShardId) {
        self.forwarding.outstanding += 1;
        self.forwarding.outgoing.push((host, ForwardedIo::Request(self.shard, index, self.entries[index].io)));
    }

    pub(super) fn reply_forwarded(&mut self, index: u32, (shard, entry): (ShardId, u32), result: LeafResult) {
        self.entries.give(index);
        self.forwarding.outgoing.push((shard, ForwardedIo::Reply(entry, result)));
    }

    /// Takes the messages to other shards in exchange for an empty vector.
    pub(crate) fn swap_forwarded(&mut self, empty: &mut Vec<(ShardId, ForwardedIo)>) {
        std::mem::swap(&mut self.forwarding.outgoing, empty);
    }

    /// Returns whether another shard still uses memory of this one.
    pub(crate) fn has_forwarded_outstanding(&self) -> bool {
        self.forwarding.outstanding > 0
    }

    /// Handles a message from another shard.
    pub(crate) fn on_forwarded(&mut self, message: ForwardedIo) {
        match message {
            ForwardedIo::Reply(index, result) => {
                self.forwarding.outstanding -= 1;
                self.finish(index, result);
            }
            ForwardedIo::Request(shard, entry, io) => {
                let Some(leaf) = self.leaves.get_mut(io.leaf.0 as usize).filter(|leaf| leaf.disk.is_some()) else {
                    let gone = Err(LeafError::of(ErrorKind::NoDevice));
                    return self.forwarding.outgoing.push((shard, ForwardedIo::Reply(entry, gone)));
                };
                leaf.in_flight += 1;
                let index = self.entries.take_forwarded(&io, self.now_ns, (shard, entry));
                self.begin_remote(index);
            }
        }
    }

    /// Handles a message whose target shard has ended.
    #[cold]
    pub(crate) fn forwarding_failed(&mut self, message: ForwardedIo) {
        if let ForwardedIo::Request(_, index, _) = message {
            self.forwarding.outstanding -= 1;
            self.finish(index, Err(LeafError::of(ErrorKind::Gone)));
        }
    }
}
