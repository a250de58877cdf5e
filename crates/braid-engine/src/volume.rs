//! A volume of a pool, in a layout: what every shard needs to find its blocks.

use std::sync::Arc;

use crate::io::{DeviceId, ShardId};
use crate::pool::{BLOCK_BYTES, EXTENT_BYTES, ExtentId, PoolShared, VolumeId, VolumeShared};

/// Names a pool that is served, the same on every shard. Below [`crate::limits::POOLS_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PoolKey(pub u16);

/// A member of a pool that is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolPlace {
    /// The device that it is.
    pub device: DeviceId,
    /// The first byte of its first extent.
    pub data: u64,
}

/// A volume or a snapshot.
#[derive(Clone, Debug)]
pub struct VolumeNode {
    /// Its pool.
    pub key: PoolKey,
    /// The shard that is the pool's home.
    pub home: ShardId,
    /// What all shards read of the pool, and of the volume.
    pub pool: Arc<PoolShared>,
    /// See `pool`.
    pub volume: Arc<VolumeShared>,
    /// Its name at home.
    pub id: VolumeId,
    /// The pool's members, by number.
    pub members: Arc<[PoolPlace]>,
    /// Bytes, whole blocks of 4096.
    pub size_bytes: u64,
    /// A snapshot.
    pub read_only: bool,
}

impl VolumeNode {
    /// Where a block of an extent is: device and byte.
    #[inline(always)]
    pub(crate) fn place(&self, extent: ExtentId, position: u32) -> (DeviceId, u64) {
        let member = &self.members[usize::from(extent.member)];
        (member.device, member.data + u64::from(extent.index) * EXTENT_BYTES + u64::from(position) * BLOCK_BYTES)
    }
}
