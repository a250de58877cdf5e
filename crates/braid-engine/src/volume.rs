//! A volume of a pool, in a layout: what every shard needs to locate its blocks.

use std::sync::{Arc, OnceLock};

use crate::io::{DeviceId, ShardId};
use crate::pool::{
    BLOCK_BYTES, BlockLocation, EXTENT_BLOCKS, EXTENT_BYTES, ExtentId, MEMBERS_MAX, PoolShared, VolumeId, VolumeShared,
    unmapped_blocks,
};

/// Identifies a pool that is served, the same on every shard: its index, below [`crate::limits::POOLS_MAX`], and above
/// [`PoolKey::INDEX_BITS`] a number that distinguishes it from pools of other engines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PoolKey(pub u16);

impl PoolKey {
    /// Number of bits of the index.
    pub const INDEX_BITS: u32 = 8;

    /// Returns its index in the table of pools.
    #[inline(always)]
    pub const fn index(self) -> usize {
        (self.0 & ((1 << PoolKey::INDEX_BITS) - 1)) as usize
    }
}

const _: () = assert!(crate::limits::POOLS_MAX <= 1 << PoolKey::INDEX_BITS);

/// A member of a pool that is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolMemberLocation {
    /// The device that it is.
    pub device: DeviceId,
    /// The first byte of its first extent.
    pub data: u64,
}

/// The members of a pool that is served, by number. All shards read them while members are added. A number is not
/// reused as long as the pool serves, because a request may still refer to it.
#[derive(Debug)]
pub struct PoolMembers([OnceLock<PoolMemberLocation>; MEMBERS_MAX]);

impl PoolMembers {
    /// Creates the table of these members, each with its number.
    ///
    /// # Panics
    /// See [`PoolMembers::add`].
    pub fn new(members: impl IntoIterator<Item = (u8, PoolMemberLocation)>) -> PoolMembers {
        let all = PoolMembers([const { OnceLock::new() }; MEMBERS_MAX]);
        members.into_iter().for_each(|(number, place)| all.add(number, place));
        all
    }

    /// Adds a member. Must be called before the pool writes anything there.
    ///
    /// # Panics
    /// If the number is invalid or in use.
    pub fn add(&self, number: u8, place: PoolMemberLocation) {
        assert!(self.0[usize::from(number)].set(place).is_ok(), "member {number} has a place already");
    }

    /// Returns the location of a member that the pool refers to.
    ///
    /// # Panics
    /// If the member was not added.
    #[inline(always)]
    pub(crate) fn of(&self, number: u8) -> PoolMemberLocation {
        *self.0[usize::from(number)].get().expect("a member is added before it is used")
    }
}

/// A volume or a snapshot.
#[derive(Clone, Debug)]
pub struct VolumeNode {
    /// Its pool.
    pub key: PoolKey,
    /// The shard that is the pool's home.
    pub home: ShardId,
    /// The state of the pool that all shards read.
    pub pool: Arc<PoolShared>,
    /// The state of the volume that all shards read.
    pub volume: Arc<VolumeShared>,
    /// The volume's id, by which the pool's home shard knows it.
    pub id: VolumeId,
    /// The pool's members, by number.
    pub members: Arc<PoolMembers>,
    /// Bytes, whole blocks of 4096.
    pub size_bytes: u64,
    /// It is a snapshot.
    pub read_only: bool,
}

impl VolumeNode {
    /// Returns the location of a block of an extent: device and offset.
    #[inline(always)]
    pub(crate) fn place(&self, extent: ExtentId, position: u32) -> (DeviceId, u64) {
        let member = self.members.of(extent.member);
        (member.device, member.data + u64::from(extent.index) * EXTENT_BYTES + u64::from(position) * BLOCK_BYTES)
    }

    /// Returns where the blocks from `block` on are: a run of at most `blocks_max` blocks, within one logical extent,
    /// that is contiguous in one extent or not mapped.
    #[inline(always)]
    pub(crate) fn find(&self, block: u64, blocks_max: u64) -> BlockLocation {
        let most = blocks_max.min(u64::from(EXTENT_BLOCKS)) as u32;
        self.volume.map.find(&self.pool.records, block, most)
    }

    /// Returns how many blocks from `block` on, below `end`, are in logical extents that are not mapped: they read as
    /// zeros, and have nothing to unmap. It may return fewer than there are, but 0 only if the first one is mapped.
    pub(crate) fn unmapped(&self, block: u64, end: u64) -> u64 {
        unmapped_blocks(&self.volume.map, block, end)
    }

    /// Returns the number of blocks from `block` on, at most `blocks_max`, that are contiguous on one member. `first`
    /// is the location of `block`, and the first `blocks` blocks are known to be contiguous there. The run goes on
    /// through further extents as long as each follows the one before it on the member and is `usable`: one I/O covers
    /// them all.
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
