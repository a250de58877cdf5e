//! Who may have how much of the shard's memory: dynamic thresholds, as switches share their buffers by.
//!
//! A connection may hold a fixed share of what is *left*. Nothing has to be known of the others: the more of them hold
//! something, the less is left, and the less each may have; and something is always left for who holds nothing. So clients
//! that take none of their replies stop at their share, and the small requests of all others find memory at once.
//!
//! A request that is larger than its connection's share goes when it is its connection's only one and it is first in the
//! queue, or nobody waits: it gathers its memory step by step, down to a reserve, while others within their shares pass it.

use super::config::{EXPORT_SHARE, RESERVE_SHARE, SHARE, SMALL_SHARE};

/// In which way a request may have memory now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lane {
    /// It is within the connection's share.
    Fair,
    /// It is more, and its turn decides.
    Turn,
    /// Not before something is given back.
    Closed,
    /// The clients of its export hold too much already: those of others go first.
    Export,
}

/// What is asked for, and how things stand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    /// All memory, and what of it is free.
    pub memory: (u64, u64),
    /// Asked for.
    pub bytes: u64,
    /// Held by the connection, and by all of its export on this shard together.
    pub held: u64,
    pub held_by_export: u64,
    /// Nothing is held by another request of the connection.
    pub only: bool,
}

impl Wish {
    /// The way in which it may be fulfilled.
    #[inline]
    pub fn lane(&self) -> Lane {
        let (all, free) = self.memory;
        let Some(left) = free.checked_sub(self.bytes) else { return Lane::Closed };
        let spare = left.saturating_sub(all / RESERVE_SHARE);
        let (held, of_export) = (self.held + self.bytes, self.held_by_export + self.bytes);
        let others_of_export = self.held_by_export > self.held;
        let export_is_fair = of_export <= spare * EXPORT_SHARE || !others_of_export;
        if held * SMALL_SHARE <= left || held * SHARE <= spare && export_is_fair {
            return Lane::Fair;
        }
        if !self.only || spare == 0 {
            return Lane::Closed;
        }
        if export_is_fair { Lane::Turn } else { Lane::Export }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Greedy clients, of one export or of two, take as much as they get and give nothing back.
    fn left_by(hogs: u64, request: u64) -> (u64, u64) {
        let (mut free, mut of_export) = (64 * MIB, 0);
        for _ in 0..hogs {
            let mut held = 0;
            loop {
                let memory = (64 * MIB, free);
                let wish = Wish { memory, bytes: request, held, held_by_export: of_export, only: held == 0 };
                if !matches!(wish.lane(), Lane::Fair | Lane::Turn) {
                    break;
                }
                (free, held, of_export) = (free - request, held + request, of_export + request);
            }
        }
        (free, of_export)
    }

    #[test]
    fn whatever_others_keep_small_requests_find_memory() {
        for request in [4096, 64 << 10, MIB, 16 * MIB] {
            for hogs in [1, 2, 8, 64] {
                let (free, of_export) = left_by(hogs, request);
                for held_by_export in [0, of_export] {
                    let small = Wish { memory: (64 * MIB, free), bytes: 4096, held: 0, held_by_export, only: true };
                    assert_eq!(small.lane(), Lane::Fair, "{hogs} of {request}: {free} left");
                }
                // A client of another export gets a large part of what is left, in its turn.
                let large = Wish { memory: (64 * MIB, free), bytes: MIB, held: 0, held_by_export: 0, only: true };
                assert!(matches!(large.lane(), Lane::Fair | Lane::Turn), "{hogs} of {request}: {free} left");
            }
        }
    }

    #[test]
    fn one_client_alone_has_nearly_all_of_it_in_one_request() {
        let mut held = 0;
        for _ in 0..32 {
            let memory = (64 * MIB, 62 * MIB - held);
            let wish = Wish { memory, bytes: MIB, held, held_by_export: held, only: true };
            assert!(matches!(wish.lane(), Lane::Fair | Lane::Turn));
            held += MIB;
        }
    }
}
