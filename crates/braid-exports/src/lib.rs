//! The manager of the exports of the daemon.
//!
//! What it is: [`ExportManager`] adds, changes, renames and removes exports, and keeps them served: over NBD, as files
//! over FUSE, as block devices over ublk or the kernel's NBD client. It listens at their addresses, reports what their
//! clients do, and removes what an earlier daemon has left of them.
//! What it guarantees: an export listens only while what it exports serves; a file or device of an export outlives the
//! daemon where the kernel can keep it, and its users wait meanwhile.
//! What it never does: know arrays or pools beyond the inventory. What it needs of volumes it requests from the
//! [`VolumeProvider`].

#![forbid(unsafe_code)]

mod block_environment;
mod block_table;
mod blocks;
mod client_errors;
mod client_events;
mod dead_files;
mod encryption;
mod exports;
mod file_table;
mod files;
mod kernel_clients;
mod latencies;
pub mod listen;
mod manager;
pub mod notify;
mod orphans;
mod provider;
mod standby;
mod view;

pub use encryption::{Encryption, NbdArgs};
pub use file_table::split_inherited;
pub use files::exported_file;
pub use latencies::{all_latencies, buckets};
pub use manager::ExportManager;
pub use provider::{BoxFuture, ExportSource, ListeningGuard, VolumeProvider};
pub use view::{attention_of_export, export_latency, show_export};
