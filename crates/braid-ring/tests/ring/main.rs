//! The tests of the ring that can share a process. Those that count allocations, threads, descriptors or memory of their
//! process, or change its limits, are programs of their own beside this folder.
#![allow(clippy::unwrap_used)]

mod block_devices;
mod control_plane_devices;
mod control_plane_disks;
mod driver_choice;
mod drivers_against_a_model;
mod fault_injection;
mod held_devices;
mod lease_holds_replies;
mod lent_memory;
mod mirrors_on_real_disks;
mod no_lost_wakeups;
mod opening_disks;
mod pools_on_real_disks;
mod shared_log_survives_kill;
mod sockets;
mod stack_levels;
mod stopping_and_idling;
mod truncated_files;

#[path = "../common/mod.rs"]
mod common;
