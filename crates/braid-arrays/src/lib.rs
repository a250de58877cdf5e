//! The manager of the arrays and disks of the daemon.
//!
//! What it is: [`ArrayManager`] finds disks and arrays, creates, starts, stops, grows and deletes arrays, runs the
//! reconciler of each redundant one, imports arrays of Linux md, and watches disks.
//! What it guarantees: changes of one array are serialized by claims, and changes of different arrays do not wait for
//! each other. A disk that hangs affects only the array that it belongs to.
//! What it never does: know pools or replication beyond the inventory. What it needs of them it requests from
//! [`ArrayUsers`].

#![forbid(unsafe_code)]

mod assemble;
mod change;
mod claims;
mod create;
mod disk_names;
mod disks;
mod grow;
mod idle;
mod imported;
mod manager;
mod member_state;
pub mod reconcilers;
mod scan_results;
mod search;
mod server_probes;
mod unused_disks;
mod users;
mod view;
mod votes;
mod watch;

pub use assemble::StartMode;
pub use change::{DRAINING_MAX, DeactivatedArray, EndedArray, end_service, inactive};
pub use claims::{NameClaim, PathClaim, check_name};
pub use disk_names::read_disk;
pub use disks::remove_files;
pub use manager::ArrayManager;
pub use reconcilers::ReconcilerStart;
pub use reconcilers::health::Lacking;
pub use scan_results::ScanResults;
pub use users::ArrayUsers;
pub use view::attention;
pub use votes::{VotedMeta, Votes};
pub use watch::LOOK_INTERVAL;
