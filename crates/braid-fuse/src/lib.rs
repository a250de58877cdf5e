//! FUSE for Braid: an export as one plain file, without a helper process.
//!
//! The protocol is sans-I/O: [`wire`] holds what is on it, [`ask`] turns bytes into what is asked. [`server`] serves a file
//! from the shards: each has a channel of its own to the kernel's connection, reads requests in its own ring, and writes
//! answers there; what is written comes straight into memory that the engine can use, what is read goes out of it.
//! [`mount`] makes the connection and the mount.
//!
//! Promises: the kernel keeps no page of the file, so that several who have it open see one content. Any offset and any
//! length: what begins or ends within a block is written alone ([`order`]). Nothing is allocated on the heap for an I/O. A
//! request that a killed daemon had taken in and not answered is given to the next one by kernels from 6.9 on.

pub mod ask;
mod file;
pub mod mount;
pub mod order;
pub mod server;
pub mod wire;

pub use file::{FuseFile, Look};
pub use server::{Attach, Detach, FuseFrontend};
