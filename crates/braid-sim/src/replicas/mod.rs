//! Replicated volumes: the fences of their voters, and the openings, memberships and leases of two controllers, over
//! links that delay, lose and cut messages, driven by a seed.
//!
//! Fence, opening, membership and lease are the engine's (`braid_engine::replica`), and the registers are the bytes of
//! `braid_format`. What connects them in a daemon (connections, requests, copies) is modelled here as simply as
//! possible: blocks are words, and replica metadata are a set of dirty blocks. The oracle checks what clients saw: each
//! block's history must fit one order, and every write that had to last must be present.

mod bugs;
mod check;
mod controller;
mod controller_state;
mod copying;
mod events;
mod faults;
mod forced;
mod history;
mod messages;
#[cfg(feature = "mutations")]
pub mod mutations;
mod net;
mod node;
mod node_state;
mod older_copies;
mod parameters;
mod process;
mod replica_copy;
pub mod required;
mod rollback;
mod serving;
mod serving_state;
mod snapshot_state;
mod snapshots;
mod store;
mod voter_changes;
mod world;

pub use crate::pools::{Counters, Outcome};
pub use world::{Options, run};

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds that found a bug; the bug is beside each.
    const SEEDS: [(u64, &str); 4] = [
        (13_065, "a replica that was being promoted counted among those that held a write, before its promotion did"),
        (13_524, "a voter that was made anew was not raised again by whoever had raised the one before it"),
        (
            108_791,
            "a start that was killed had forgotten that the session before it ended in order, and an older copy was believed",
        ),
        (106_576, "an opening that somebody had overtaken went by older copies that had been voted for since"),
    ];

    #[test]
    fn seeds_that_failed_once_pass() {
        for (seed, was) in SEEDS {
            assert_eq!(run(seed, &Options::default()).violation, None, "{seed}: {was}");
        }
    }
}
