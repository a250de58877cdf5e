//! Volumes that are kept on several nodes, on the side of whoever serves them: their controller.
//!
//! Such a volume is a mirror whose members are replicas: exports of other nodes (`reach`), and on each of these nodes a voter
//! (`council`, `ballot`, `words`) that says who is in sync. The mirror itself is an array like any other; what it asks the voters
//! goes by `meta`. Whether it is this node that is to open it again, `probe` finds out. `attach` has this node serve it, `forced` with too few of its voters, and `outside`
//! looks after those that were left out so. `serve` opens it, keeps it while it is served, and brings replicas back; `create` makes it, `half_made` removes what
//! was cut off, `deleted` forgets what other nodes have deleted, `view` shows it. `voters` lets others vote, and `places` keeps where they are.
//! `advised` says what is to be done about it, `cluster` asks all nodes which serves each volume,
//! and `unserved` says which none serves. `snapshots` has its snapshots taken on all replicas, and `rollback` makes it be as one of them.

mod above;
mod advised;
mod attach;
mod ballot;
mod bringing;
mod cluster;
pub mod council;
#[cfg(test)]
mod council_tests;
mod create;
mod decided;
mod deleted;
mod forced;
mod half_made;
mod meta;
mod outside;
mod places;
mod probe;
mod reach;
mod returning;
mod rollback;
pub mod saved;
mod serve;
mod snapshots;
mod sources;
mod unserved;
mod view;
mod voters;
mod words;

use super::Control;
use ballot::Ballots;
use council::Council;
pub use meta::{VotedMeta, agree};
use serve::Attached;
pub(super) use snapshots::is_replicated_name;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uuid::Uuid;

/// The voters of one volume.
pub type Voters = Council<Ballots>;

/// What this node serves, or is about to.
#[derive(Default)]
pub struct Replicated {
    served: Mutex<BTreeMap<Uuid, Arc<Attached>>>,
    /// One attachment, detachment or deletion at a time.
    changing: tokio::sync::Mutex<()>,
    /// Voters of volumes that are not served here of which their nodes have nothing, by number.
    gone: Mutex<BTreeMap<Uuid, Vec<u8>>>,
    /// What was found of volumes that others serve, or no node.
    found: Mutex<unserved::Found>,
}

impl Replicated {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Uuid, Arc<Attached>>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control {
    /// The voters of an array whose members are replicas, as long as it is served or about to be.
    pub(super) fn voters_of(&self, array: Uuid) -> Option<Arc<Voters>> {
        self.replicated.all().get(&array)?.voters()
    }

    /// The member of an array that is a replica on this very node.
    pub(super) fn near_replica(&self, array: Uuid) -> Option<u16> {
        let own = self.nodes().own()?;
        let tables = self.read();
        let volume = tables.replicated.get(&array)?;
        let (near, _) = volume.seated().find(|(_, voter)| voter.node == own && voter.pool.is_some())?;
        Some(u16::from(near))
    }

    /// What requests to a volume of several nodes are multiples of, in bytes; none: the array is no such volume.
    pub(super) fn request_bytes_of(&self, array: Uuid) -> Option<u32> {
        self.read().replicated.get(&array).map(|volume| volume.block_bytes)
    }

    /// The way to the labels of an array.
    pub(super) fn meta_of(&self, array: Uuid) -> VotedMeta {
        VotedMeta { meta: self.meta.clone(), voters: self.voters_of(array) }
    }
}
