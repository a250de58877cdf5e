//! The control plane of one daemon: its managers, and what concerns all of them.
//!
//! What it is: [`Daemon`] holds the managers, from the lowest to the highest (`managers`), and implements the API over
//! them (`service`, `status`) and what the other nodes of the cluster call (`peers`). `shutdown` stops everything in
//! order and within time limits; `upgrade` checks a new build, and `order_upgrade` orders the change to it. `watch`,
//! `encryption`, `panics` and `stuck_threads` look for what must not stay unnoticed.
//!
//! What it guarantees: every change is counted from its begin to its end ([`shutdown::Change`]), so that neither a stop
//! nor an upgrade overtakes one.
//!
//! What it never does: decide anything about arrays, pools, volumes, replicas or exports; the managers do. It has no
//! command line and no signals: the crate `braid` has them, and the order of the daemon's start and end.

#![forbid(unsafe_code)]

pub mod encryption;
mod managers;
mod order_upgrade;
pub mod panics;
pub mod peers;
mod service;
pub mod shutdown;
mod status;
pub mod stuck_threads;
pub mod upgrade;
mod watch;

pub use managers::{Daemon, DaemonParts};
