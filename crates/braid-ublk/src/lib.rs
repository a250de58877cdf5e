//! Exports as block devices of the kernel: `/dev/ublkbN`, served from user space by Linux' ublk driver.
//!
//! What it is: [`Control`] adds, starts, recovers and removes devices through `/dev/ublk-control`; [`UblkFrontend`] runs on
//! each shard and serves queues of devices in the shard's io_uring, without a thread of its own. A queue belongs to one
//! shard for the daemon's lifetime, as the driver requires.
//!
//! What it guarantees: every request of the kernel gets exactly one reply, with the engine's result, from this daemon
//! or a later one. Data are in the shard's arena only while the engine works on them, and are a copy that the device's
//! user cannot change meanwhile. While the export has no device of the engine (its array is stopped, or the daemon ends
//! or was killed), requests wait; they do not fail. The driver stores a mark with each device, by which a daemon finds
//! its own devices at its start, and no others.
//!
//! What it never does: depend on what is exported, or store anything on a disk.
//!
//! Modules: `abi` has the kernel's structures, `control` the commands to `/dev/ublk-control`, `device` the life cycle of a
//! device, `queue` the requests of one queue, `frontend` the queues of one shard.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod abi;
mod control;
mod device;
mod error;
mod frontend;
mod queue;

pub use control::{Answer, Control, Features, Speak};
pub use device::{Asked, Device, DeviceSetup, Opening, QueueShare, Shape};
pub use error::{UblkError, UblkErrorKind};
pub use frontend::{Message, UblkFrontend};
