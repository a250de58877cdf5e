//! A volume of a pool, in a layout: what every shard needs to find its blocks.

use std::sync::{Arc, OnceLock};

use crate::io::{DeviceId, ShardId};
use crate::pool::{
    BLOCK_BYTES, BlockLocation, EXTENT_BLOCKS, EXTENT_BYTES, ExtentId, MEMBERS_MAX, PoolShared, VolumeId, VolumeShared,
    unmapped_blocks,
};

/// Names a pool that is served, the same on every shard: its index, below [`crate::limits::POOLS_MAX`], and above
/// [`PoolKey::INDEX_BITS`] what tells it from pools of other engines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PoolKey(pub u16);

impl PoolKey {
    /// So many bits are the index.
    pub const INDEX_BITS: u32 = 8;

    /// Where it is in the table of pools.
    #[inline(always)]
    pub const fn index(self) -> usize {
        (self.0 & ((1 << PoolKey::INDEX_BITS) - 1)) as usize
    }
}

const _: () = assert!(crate::limits::POOLS_MAX <= 1 << PoolKey::INDEX_BITS);

/// A member of a pool that is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolPlace {
    /// The device that it is.
    pub device: DeviceId,
    /// The first byte of its first extent.
    pub data: u64,
}

/// The members of a pool that is served, by number. All shards read them while members are added. A number stands for one member only
/// as long as the pool serves, as somebody may still have it in mind.
#[derive(Debug)]
pub struct PoolMembers([OnceLock<PoolPlace>; MEMBERS_MAX]);

impl PoolMembers {
    /// Of these members, each with its number.
    ///
    /// # Panics
    /// See [`PoolMembers::add`].
    pub fn new(members: impl IntoIterator<Item = (u8, PoolPlace)>) -> PoolMembers {
        let all = PoolMembers([const { OnceLock::new() }; MEMBERS_MAX]);
        members.into_iter().for_each(|(number, place)| all.add(number, place));
        all
    }

    /// One more. To be called before the pool puts anything there.
    ///
    /// # Panics
    /// When the number is none, or is taken.
    pub fn add(&self, number: u8, place: PoolPlace) {
        assert!(self.0[usize::from(number)].set(place).is_ok(), "member {number} has a place already");
    }

    /// Where a member is that the pool has spoken of.
    ///
    /// # Panics
    /// When it is nowhere.
    #[inline(always)]
    pub(crate) fn of(&self, number: u8) -> PoolPlace {
        *self.0[usize::from(number)].get().expect("a member has a place before anything is there")
    }
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
    pub members: Arc<PoolMembers>,
    /// Bytes, whole blocks of 4096.
    pub size_bytes: u64,
    /// A snapshot.
    pub read_only: bool,
}

impl VolumeNode {
    /// Where a block of an extent is: device and byte.
    #[inline(always)]
    pub(crate) fn place(&self, extent: ExtentId, position: u32) -> (DeviceId, u64) {
        let member = self.members.of(extent.member);
        (member.device, member.data + u64::from(extent.index) * EXTENT_BYTES + u64::from(position) * BLOCK_BYTES)
    }

    /// Where a run of at most so many blocks is, within one logical extent.
    #[inline(always)]
    pub(crate) fn find(&self, block: u64, blocks_max: u64) -> BlockLocation {
        let most = blocks_max.min(u64::from(EXTENT_BLOCKS)) as u32;
        self.volume.map.find(&self.pool.records, block, most)
    }

    /// How many blocks from `block` on, below `end`, are in logical extents that are not mapped: they read as zeros, and nothing is there that
    /// could be taken away. It may say fewer than there are, but none only where the first one is mapped.
    pub(crate) fn unmapped(&self, block: u64, end: u64) -> u64 {
        unmapped_blocks(&self.volume.map, block, end)
    }

    /// How far the blocks from `block` on, at most `blocks_max`, stand one after the other from `first` on, of which the first `blocks`
    /// are known to. Extents that stand in a row on a member are so gone through as one, if all of them are `usable`.
    pub(crate) fn run(
        &self,
        block: u64,
        blocks_max: u64,
        first: (DeviceId, u64),
        mut blocks: u64,
        usable: impl Fn(ExtentId) -> bool,
    ) -> u64 {
        while blocks < blocks_max
            && let BlockLocation::At { extent, position, blocks: further } =
                self.find(block + blocks, blocks_max - blocks)
            && extent != ExtentId::IN_DOUBT
            && self.place(extent, position) == (first.0, first.1 + blocks * BLOCK_BYTES)
            && usable(extent)
        {
            blocks += u64::from(further);
        }
        blocks
    }
}
