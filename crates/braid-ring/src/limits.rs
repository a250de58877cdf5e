//! Sizes of tables that several parts of a shard share.

/// Maximum number of disks of a ring.
pub const LEAVES_MAX: u32 = 4096;

/// Maximum number of sockets of a shard. In the table of registered files they follow the disks.
pub const SOCKETS_MAX: u32 = 1024;

/// Maximum number of leaf I/Os of the control plane in progress on one shard and stack level. Further ones wait.
pub(crate) const META_MAX: usize = 64;
