//! A request of a client to a volume, while it is in flight.

use braid_engine::Uuid;
use braid_engine::io::{Buf, DeviceId, Flags, Op};

use super::oracle::BLOCK;
use crate::content::SECTOR_BYTES;
use crate::edges::Edges;

/// The issuer of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Issuer {
    Client(u64),
    /// The reader of a whole volume, by the number of its read.
    Reader(u64),
}

/// A request in flight.
#[derive(Clone, Debug)]
pub(super) struct PendingRequest {
    pub by: Issuer,
    pub volume: Uuid,
    pub device: DeviceId,
    pub op: Op,
    pub flags: Flags,
    pub block: u64,
    pub blocks: u64,
    pub edges: Edges,
    pub start: u64,
    pub buf: Buf,
}

impl PendingRequest {
    /// Returns the bytes of memory that the request uses.
    pub fn bytes(&self) -> usize {
        if matches!(self.op, Op::Read | Op::Write) { self.len() as usize } else { 0 }
    }

    /// Returns the bytes of the volume that the request covers.
    pub fn len(&self) -> u64 {
        self.blocks * BLOCK - (self.edges.skip + self.edges.cut) * SECTOR_BYTES as u64
    }

    /// Returns the sectors of block `k` that the request covers, as a bit mask.
    pub fn sectors_of(&self, k: u64) -> u8 {
        self.edges.sectors_of(k, (self.block, self.blocks))
    }

    /// Returns the request's blocks, the sectors that it covers of each, and where in its memory these are.
    pub fn parts(&self) -> impl Iterator<Item = (u64, u8, std::ops::Range<usize>)> + use<> {
        let pending = self.clone();
        let mut at = 0;
        (pending.block..pending.block + pending.blocks).map(move |k| {
            let sectors = pending.sectors_of(k);
            let from = at;
            at += sectors.count_ones() as usize * SECTOR_BYTES;
            (k, sectors, from..at)
        })
    }
}
