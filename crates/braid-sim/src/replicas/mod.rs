//! Volumes that are kept on several nodes: the fences of their voters and the openings, memberships and leases of two controllers, over
//! links that delay, lose and cut, from a seed.
//!
//! Fence, opening, membership and lease are the engine's (`braid_engine::replica`), and the registers are the bytes of `braid_format`. What
//! will stand between them in a daemon (connections, requests, copies) stands here, as small as it can be: blocks are words, a companion
//! is a set of dirty blocks. Judged is what clients saw: each block's history must fit into one order, and what had to last must be there.

mod check;
mod controller;
mod copying;
mod faults;
mod forced;
mod history;
mod nature;
mod net;
mod node;
mod older;
#[cfg(feature = "planted")]
pub mod plant;
pub mod required;
mod rollback;
mod seats;
mod serving;
mod snapshots;
mod world;

pub use crate::pools::{Counters, Outcome};
pub use world::{Options, run};

#[cfg(test)]
mod tests {
    use super::*;

    /// What was wrong when they were met is said beside each.
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
    fn seeds_that_have_failed_once_do_not_again() {
        for (seed, was) in SEEDS {
            assert_eq!(run(seed, &Options::default()).violation, None, "{seed}: {was}");
        }
    }
}
