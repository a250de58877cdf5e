//! Numbers of the frontends on each shard: the same on all shards, so that a message to a frontend can name it.

/// Index of the NBD server among the frontends of a shard.
pub const NBD_FRONTEND: usize = 0;

/// Index of the FUSE server among the frontends of a shard.
pub const FUSE_FRONTEND: usize = 1;

/// Index of the ublk server among the frontends of a shard.
pub const UBLK_FRONTEND: usize = 2;
