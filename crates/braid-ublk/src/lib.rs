//! Exports as block devices of the kernel: `/dev/ublkbN`, served from user space (Linux' ublk driver).
//!
//! What it is: [`Control`] makes, starts, recovers and removes devices through `/dev/ublk-control`;
//! [`UblkFrontend`] lives on each shard and serves the devices' queues there, in the shard's own io_uring, without a
//! thread of its own. A queue belongs to one shard as long as the daemon lives, as the driver wants it.
//!
//! What it promises: every request of the kernel is answered once, with what the engine said. Data lie in the shard's
//! arena only while the engine works on them, and are a copy that the device's user cannot change meanwhile. While the
//! export's device is away (its array is stopped, the daemon ends or was killed) requests wait; they are not failed. A device is known by
//! a mark, so that a daemon that starts finds its own again, and no other's.
//!
//! What it never does: know what an export is of, or remember anything on a disk.
//!
//! Where to find what: `abi` holds the kernel's structures, `control` what is said to `/dev/ublk-control`, `device` the steps
//! of a device's life, `queue` the requests of one queue, `frontend` what binds queues to a shard.

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
