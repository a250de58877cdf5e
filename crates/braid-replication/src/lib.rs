//! The manager of replication.
//!
//! What it is: [`ReplicationManager`] has both sides of replicated volumes on one node: `replicas`, what the node
//! stores of them, and `replicated`, the controller of each volume that the node serves.
//! What it guarantees: a replica answers to one controller at a time, and a later epoch fences an earlier one; a volume
//! is opened with the votes of a majority only.
//! What it never does: touch labels of arrays or tables of pools except through their managers.

#![forbid(unsafe_code)]

mod attached;
mod manager;
mod offered;
mod replicas;
mod replicated;
mod volumes;
mod voters;

pub use manager::ReplicationManager;
pub use replicas::REQUEST_MAX;
pub use replicas::view::attention;
