//! Disks and mounts of this machine: which exist, what is on them, who uses them, and how they are opened.
//!
//! What it promises: a file system or a device that hangs does not hold up the caller: [`aside`] looks at such things in a process of its own.
//! What it never does: it writes to no disk but through [`probe::Probe::for_writing`].

pub mod aside;
pub mod host;
pub mod kernel_nbd;
pub mod mounts;
pub mod open;
pub mod pool_tables;
pub mod probe;
