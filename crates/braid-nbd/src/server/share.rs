//! Shares the shard's memory among connections by dynamic thresholds, as network switches share their buffers.
//!
//! A connection may hold a fixed share of the memory that is *left*. It needs no knowledge of other connections: the
//! more they hold, the less is left, and the less each may hold. Some memory always remains for a connection that holds
//! none. Clients that take no replies stop at their share, so small requests of all others find memory at once.
//!
//! A request larger than its connection's share proceeds if it is the connection's only one and is first in the queue,
//! or the queue is empty. It gathers its memory step by step, down to the reserve, while others within their shares
//! pass it.

use super::config::{EXPORT_SHARE, RESERVE_SHARE, SHARE, SMALL_SHARE};

/// How a request may get memory now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MemoryGrant {
    /// It is within the connection's share.
    WithinShare,
    /// It exceeds the share: it gets memory only if its connection is the first in the queue for memory.
    InTurn,
    /// It gets nothing until memory is freed: by other connections or, if the connection has further requests, by
    /// these.
    Exhausted,
    /// It exceeds the share, and the connections of its export together hold more than theirs: connections of other
    /// exports get memory first.
    ExportOverShare,
}

/// A request for memory and the current usage.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryRequest {
    /// Total and free memory in bytes.
    pub memory: (u64, u64),
    /// Requested bytes.
    pub bytes: u64,
    /// Bytes held by the connection, and by all connections of its export on this shard.
    pub held: u64,
    pub held_by_export: u64,
    /// No other request of the connection holds memory.
    pub only: bool,
}

impl MemoryRequest {
    /// Returns how the request may get memory.
    #[inline]
    pub fn grant(&self) -> MemoryGrant {
        let (all, free) = self.memory;
        let Some(left) = free.checked_sub(self.bytes) else { return MemoryGrant::Exhausted };
        let spare = left.saturating_sub(all / RESERVE_SHARE);
        let (held, of_export) = (self.held + self.bytes, self.held_by_export + self.bytes);
        let others_of_export = self.held_by_export > self.held;
        let export_is_fair = of_export <= spare * EXPORT_SHARE || !others_of_export;
        if held * SMALL_SHARE <= left || held * SHARE <= spare && export_is_fair {
            return MemoryGrant::WithinShare;
        }
        if !self.only || spare == 0 {
            return MemoryGrant::Exhausted;
        }
        if export_is_fair { MemoryGrant::InTurn } else { MemoryGrant::ExportOverShare }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Greedy clients of one export take all memory that they get and free none. Returns the free memory and what they
    /// hold.
    fn left_by(hogs: u64, request: u64) -> (u64, u64) {
        let (mut free, mut of_export) = (64 * MIB, 0);
        for _ in 0..hogs {
            let mut held = 0;
            loop {
                let memory = (64 * MIB, free);
                let wanted = MemoryRequest { memory, bytes: request, held, held_by_export: of_export, only: held == 0 };
                if !matches!(wanted.grant(), MemoryGrant::WithinShare | MemoryGrant::InTurn) {
                    break;
                }
                (free, held, of_export) = (free - request, held + request, of_export + request);
            }
        }
        (free, of_export)
    }

    #[test]
    fn small_requests_find_memory_whatever_other_clients_hold() {
        for request in [4096, 64 << 10, MIB, 16 * MIB] {
            for hogs in [1, 2, 8, 64] {
                let (free, of_export) = left_by(hogs, request);
                for held_by_export in [0, of_export] {
                    let small =
                        MemoryRequest { memory: (64 * MIB, free), bytes: 4096, held: 0, held_by_export, only: true };
                    assert_eq!(small.grant(), MemoryGrant::WithinShare, "{hogs} of {request}: {free} left");
                }
                // A client of another export gets a large part of the rest when it is first in the queue.
                let large =
                    MemoryRequest { memory: (64 * MIB, free), bytes: MIB, held: 0, held_by_export: 0, only: true };
                assert!(
                    matches!(large.grant(), MemoryGrant::WithinShare | MemoryGrant::InTurn),
                    "{hogs} of {request}: {free} left"
                );
            }
        }
    }

    #[test]
    fn one_request_of_a_sole_client_may_gather_32_mib() {
        let mut held = 0;
        for _ in 0..32 {
            let memory = (64 * MIB, 62 * MIB - held);
            let request = MemoryRequest { memory, bytes: MIB, held, held_by_export: held, only: true };
            assert!(matches!(request.grant(), MemoryGrant::WithinShare | MemoryGrant::InTurn));
            held += MIB;
        }
    }
}
