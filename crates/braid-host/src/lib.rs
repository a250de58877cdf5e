//! Disks and mounts of this machine: lists them with their content and their users, and opens disks.
//!
//! What it guarantees: the functions of [`probe_process`] return within their time limits even if a device or a file
//! system hangs, because a separate process probes it. All other functions block for as long as the kernel does.
//!
//! What it never does: write to a disk other than through [`probe::Probe::for_writing`].

#![forbid(unsafe_code)]

pub mod host;
mod identity;
pub mod kernel_nbd;
pub mod loops;
pub mod mounts;
pub mod open;
pub mod pool_tables;
pub mod probe;
pub mod probe_process;
