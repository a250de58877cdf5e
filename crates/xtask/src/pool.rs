//! A pool for one run. Its in-memory log is in this process's memory. On null disks, so is its metadata while it is created.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, bail};
use braid_engine::pool::on_disk::{AllocationPolicy, Checkpoint, Owner, OwnerName, PoolMemberLayout};
use braid_engine::pool::{
    BlockAllocation, EXTENT_BLOCKS, EXTENT_BYTES, LogMemory, OpenPool, OwnerId, Pool, PoolDevice, VolumeId, open,
};
use braid_engine::{
    DeviceId, DeviceIo, DeviceLayout, IoError, Node, PoolKey, PoolMemberLocation, PoolMembers, PoolNext, ShardId,
    VolumeNode,
};
use braid_format::Uuid;
use braid_ring::RingHandle;

const BLOCK: u64 = 4096;
const OWNER_SLOTS: u32 = 1024;
const WRITE_BYTES: usize = 4 << 20;
/// Allocations in one call of the pool.
const ALLOCATIONS_PER_CALL: usize = 4096;

/// The in-memory log, in memory of this process.
struct Memory(Box<[AtomicU64]>);

impl LogMemory for Memory {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// A sparse device in memory: only written blocks are stored.
struct Heap {
    size_bytes: u64,
    blocks: Mutex<BTreeMap<u64, Vec<u8>>>,
}

impl DeviceIo for Heap {
    fn size_bytes(&self, _device: DeviceId) -> u64 {
        self.size_bytes
    }

    fn block_bytes(&self, _device: DeviceId) -> u32 {
        BLOCK as u32
    }

    async fn read(&self, _device: DeviceId, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
        let blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut data = vec![0; len];
        for (at, block) in blocks.range(offset..offset + len as u64) {
            let at = (at - offset) as usize;
            data[at..at + block.len()].copy_from_slice(block);
        }
        Ok(data)
    }

    async fn write(&self, _device: DeviceId, offset: u64, data: Vec<u8>, _fua: bool) -> Result<(), IoError> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, block) in (offset..).step_by(BLOCK as usize).zip(data.chunks(BLOCK as usize)) {
            blocks.insert(at, block.to_vec());
        }
        Ok(())
    }

    async fn flush(&self, _device: DeviceId) -> Result<(), IoError> {
        Ok(())
    }

    async fn discard(&self, _device: DeviceId, _offset: u64, _len: u64) -> Result<(), IoError> {
        Ok(())
    }
}

/// A pool that is served by a ring.
#[derive(Clone)]
pub struct BenchPool {
    handle: RingHandle,
    key: PoolKey,
    members: Arc<PoolMembers>,
    /// Extents of all members.
    pub extents: u64,
}

/// A volume of such a pool.
#[derive(Clone)]
pub struct BenchVolume {
    /// The number of the volume while it is served.
    pub id: VolumeId,
    /// The layout to publish.
    pub layout: Arc<DeviceLayout>,
    /// The size in bytes.
    pub bytes: u64,
}

/// Returns the pool member with this number on a device of this size.
///
/// # Errors
/// The device is too small.
pub fn member(number: u8, device: DeviceId, size_bytes: u64) -> anyhow::Result<PoolDevice> {
    let layout = PoolMemberLayout::new(size_bytes / BLOCK * BLOCK, OWNER_SLOTS)?;
    Ok(PoolDevice::new(number, device, &layout))
}

/// Opens the pool of these members.
///
/// # Errors
/// A member cannot be read.
pub async fn open_members(io: &impl DeviceIo, members: &[PoolDevice], run: u64) -> anyhow::Result<Pool> {
    let what = OpenPool {
        uuid: Uuid::from_u128(1),
        members,
        owner_slots: OWNER_SLOTS,
        missing: 0,
        overwrites_unreadable: false,
        run,
    };
    let log = |_session, bytes: u64| {
        let words = (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
        Ok(Arc::new(Memory(words)) as Arc<dyn LogMemory>)
    };
    Ok(open(io, &what, |_| None, log).await?)
}

/// Creates a pool on these members, and opens it. `zeroes`: the devices may hold other data, so the metadata area is zeroed first.
///
/// # Errors
/// A member cannot be written.
pub async fn begin(io: &impl DeviceIo, members: &[PoolDevice], zeroes: bool) -> anyhow::Result<Pool> {
    for member in members {
        let mut at = 0;
        while zeroes && at < member.layout.data {
            let len = WRITE_BYTES.min((member.layout.data - at) as usize);
            io.write(member.device, at, vec![0; len], false).await?;
            at += len as u64;
        }
        let checkpoint = Checkpoint::first(&Uuid::from_u128(1), 1);
        io.write(member.device, member.layout.starts, checkpoint.encode().to_vec(), true).await?;
    }
    open_members(io, members, 3).await
}

impl BenchPool {
    /// Creates a pool on these devices, and serves it on the first shard. `keeps_data`: the devices are not null disks.
    ///
    /// # Errors
    /// A device is too small, or fails.
    pub async fn make(
        handle: &RingHandle,
        key: PoolKey,
        devices: &[(DeviceId, u64)],
        keeps_data: bool,
    ) -> anyhow::Result<BenchPool> {
        let numbered = (0..).zip(devices);
        let members: Vec<PoolDevice> =
            numbered.map(|(number, (device, bytes))| member(number, *device, *bytes)).collect::<anyhow::Result<_>>()?;
        let pool = if keeps_data {
            begin(&handle.devices(), &members, true).await?
        } else {
            let size_bytes = devices.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
            let heap = Heap { size_bytes, blocks: Mutex::new(BTreeMap::new()) };
            begin(&heap, &members, false).await?
        };
        Ok(BenchPool::serve(handle, key, &members, pool).await)
    }

    /// Serves an open pool on the first shard.
    pub async fn serve(handle: &RingHandle, key: PoolKey, members: &[PoolDevice], pool: Pool) -> BenchPool {
        let extents = members.iter().map(|member| u64::from(member.extents)).sum();
        let areas = members.iter().map(|m| (m.number, PoolMemberLocation { device: m.device, data: m.layout.data }));
        let members = Arc::new(PoolMembers::new(areas));
        handle.serve_pool(key, ShardId(0), Box::new(pool), Arc::clone(&members)).await;
        BenchPool { handle: handle.clone(), key, members, extents }
    }

    /// Runs a closure on the pool, on its home shard.
    ///
    /// # Errors
    /// The pool has failed.
    pub async fn call<R: Send + 'static>(
        &self,
        call: impl FnMut(&mut Pool) -> (PoolNext, R) + Send + 'static,
    ) -> anyhow::Result<R> {
        Ok(self.handle.pool_call(self.key, ShardId(0), call).await?)
    }

    /// Creates a volume of this many extents, allocated on one member or on all, and serves it.
    ///
    /// # Errors
    /// The pool refuses the volume.
    pub async fn volume(&self, name: &'static str, extents: u64, on: Option<u8>) -> anyhow::Result<BenchVolume> {
        let bytes = extents * EXTENT_BYTES;
        let owner = self.call(move |pool| (PoolNext::Commit, pool.create_volume(None, owner(name, bytes, on)))).await?;
        let owner = owner.context("creating the volume")?;
        let (id, pool, volume) = self
            .call(move |pool| {
                let id = pool.serve(owner).expect("it was just created");
                let shared = Arc::clone(pool.volume(id).expect("it is served"));
                (PoolNext::Done, (id, Arc::clone(pool.shared()), shared))
            })
            .await?;
        let node = Node::Volume(Box::new(VolumeNode {
            key: self.key,
            home: ShardId(0),
            pool,
            volume,
            id,
            members: Arc::clone(&self.members),
            size_bytes: bytes,
            read_only: false,
        }));
        Ok(BenchVolume { id, layout: Arc::new(DeviceLayout::new(1, BLOCK as u32, &node)), bytes })
    }

    /// Allocates every extent of a volume.
    ///
    /// # Errors
    /// The pool is full.
    pub async fn fill(&self, volume: &BenchVolume) -> anyhow::Result<()> {
        let extents = volume.bytes / EXTENT_BYTES;
        let each = u64::from(EXTENT_BLOCKS);
        self.allocate(volume.id, (0..extents).map(move |extent| (extent * each, EXTENT_BLOCKS))).await
    }

    /// Allocates ranges of blocks (first block, number of blocks) as writes would, without writing data, and commits.
    ///
    /// # Errors
    /// The pool is full.
    pub async fn allocate(&self, id: VolumeId, blocks: impl Iterator<Item = (u64, u32)>) -> anyhow::Result<()> {
        let mut blocks = blocks.peekable();
        while blocks.peek().is_some() {
            let batch: Vec<(u64, u32)> = blocks.by_ref().take(ALLOCATIONS_PER_CALL).collect();
            let mut next = 0;
            let allocated = self.call(move |pool| {
                while let Some((block, count)) = batch.get(next) {
                    match pool.allocate(id, *block, *count) {
                        BlockAllocation::New(allocation) => drop(pool.map_allocation(&allocation)),
                        BlockAllocation::Own { .. } => {}
                        BlockAllocation::LogFull => return (PoolNext::AfterCommit, false),
                        BlockAllocation::Full | BlockAllocation::Held => return (PoolNext::Done, false),
                    }
                    next += 1;
                }
                (PoolNext::Done, true)
            });
            if !allocated.await? {
                bail!("the pool is full");
            }
        }
        self.call(|_| (PoolNext::Commit, ())).await
    }

    /// Takes a snapshot of a volume, and returns its owner id.
    ///
    /// # Errors
    /// The pool has failed, or has no free owner slot.
    pub async fn snapshot(&self, id: VolumeId, number: u32) -> anyhow::Result<OwnerId> {
        let name = OwnerName::new(&format!("s{number}")).context("the name of the snapshot")?;
        let uuid = Uuid::from_u128(0x1_0000 + u128::from(number));
        let taken = self.call(move |pool| {
            let owner = pool.owner_of(id).expect("it is served");
            (PoolNext::DrainAndCommit, pool.snapshot(&[(owner, uuid, name)], 0))
        });
        Ok(taken.await?.context("taking the snapshot")?[0])
    }
}

fn owner(name: &str, size_bytes: u64, on: Option<u8>) -> Owner {
    let (allocation, on) = on.map_or((AllocationPolicy::Spread, 0), |member| (AllocationPolicy::Single, 1 << member));
    let name = OwnerName::new(name).expect("the name is valid");
    Owner { allocation, on, ..Owner::volume(Uuid::from_u128(2), name, size_bytes) }
}
