//! Disks and mounts of this machine: which exist, what is on them, who uses them, and how they are opened.
//!
//! What it promises: [`aside`] answers within its limits, also where a device or a file system hangs, as a process of its own looks at it. All else
//! waits for as long as the kernel does.
//! What it never does: it writes to no disk but through [`probe::Probe::for_writing`].

#![forbid(unsafe_code)]

pub mod aside;
pub mod host;
pub mod kernel_nbd;
pub mod mounts;
pub mod open;
pub mod pool_tables;
pub mod probe;
