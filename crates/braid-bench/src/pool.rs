//! A pool for one run: its tail is in this process's memory, and on disks that keep nothing its metadata are, too, when it is made.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, bail};
use braid_engine::pool::on_disk::{AllocationPolicy, Checkpoint, Owner, OwnerName, PoolMemberLayout};
use braid_engine::pool::{
    BlockAllocation, EXTENT_BLOCKS, EXTENT_BYTES, LogMemory, OpenPool, OwnerId, Pool, PoolDevice, VolumeId, open,
};
use braid_engine::{
    DeviceId, DeviceIo, DeviceLayout, IoError, Node, PoolKey, PoolMembers, PoolNext, PoolPlace, ShardId, VolumeNode,
};
use braid_format::Uuid;
use braid_ring::RingHandle;

const BLOCK: u64 = 4096;
const OWNER_SLOTS: u32 = 1024;
const WRITE_BYTES: usize = 4 << 20;
/// Blocks that one call of a pool places.
const PLACED_AT_ONCE: usize = 4096;

/// Memory of this process.
struct Memory(Box<[AtomicU64]>);

impl LogMemory for Memory {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// A device of which only what was written takes memory.
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

/// A pool that a ring serves.
#[derive(Clone)]
pub struct BenchPool {
    handle: RingHandle,
    key: PoolKey,
    members: Arc<PoolMembers>,
    /// Extents of all members together.
    pub extents: u64,
}

/// A volume of one.
#[derive(Clone)]
pub struct BenchVolume {
    /// Its number while it is served.
    pub id: VolumeId,
    /// What is published.
    pub layout: Arc<DeviceLayout>,
    /// Its bytes.
    pub bytes: u64,
}

/// Where a pool has what on a device of this size.
///
/// # Errors
/// It is too small.
pub fn member(number: u8, device: DeviceId, size_bytes: u64) -> anyhow::Result<PoolDevice> {
    let places = PoolMemberLayout::new(size_bytes / BLOCK * BLOCK, OWNER_SLOTS)?;
    Ok(PoolDevice::new(number, device, &places))
}

/// Opens a pool that was begun on these.
///
/// # Errors
/// They cannot be read.
pub async fn open_members(io: &impl DeviceIo, members: &[PoolDevice], run: u64) -> anyhow::Result<Pool> {
    let what = OpenPool {
        uuid: Uuid::from_u128(1),
        members,
        owner_slots: OWNER_SLOTS,
        missing: 0,
        overwrites_unreadable: false,
        run,
    };
    let tail = |_session, bytes: u64| {
        let words = (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
        Ok(Arc::new(Memory(words)) as Arc<dyn LogMemory>)
    };
    Ok(open(io, &what, |_| None, tail).await?)
}

/// Writes what a new pool begins with, and opens it. `zeroes`: what is there may be anything.
///
/// # Errors
/// They cannot be written.
pub async fn begin(io: &impl DeviceIo, members: &[PoolDevice], zeroes: bool) -> anyhow::Result<Pool> {
    for member in members {
        let mut at = 0;
        while zeroes && at < member.layout.data {
            let len = WRITE_BYTES.min((member.layout.data - at) as usize);
            io.write(member.device, at, vec![0; len], false).await?;
            at += len as u64;
        }
        let start = Checkpoint::first(&Uuid::from_u128(1), 1);
        io.write(member.device, member.layout.starts, start.encode().to_vec(), true).await?;
    }
    open_members(io, members, 3).await
}

impl BenchPool {
    /// Makes a pool of these devices, and serves it on the first shard.
    ///
    /// # Errors
    /// One is too small, or fails.
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

    /// Serves one that is open.
    pub async fn serve(handle: &RingHandle, key: PoolKey, members: &[PoolDevice], pool: Pool) -> BenchPool {
        let extents = members.iter().map(|member| u64::from(member.extents)).sum();
        let places = members.iter().map(|m| (m.number, PoolPlace { device: m.device, data: m.layout.data }));
        let members = Arc::new(PoolMembers::new(places));
        handle.serve_pool(key, ShardId(0), Box::new(pool), Arc::clone(&members)).await;
        BenchPool { handle: handle.clone(), key, members, extents }
    }

    /// Calls it at its home.
    ///
    /// # Errors
    /// It failed.
    pub async fn call<R: Send + 'static>(
        &self,
        call: impl FnMut(&mut Pool) -> (PoolNext, R) + Send + 'static,
    ) -> anyhow::Result<R> {
        Ok(self.handle.pool_call(self.key, ShardId(0), call).await?)
    }

    /// Makes a volume of so many extents, on one member or on all, and serves it.
    ///
    /// # Errors
    /// The pool does not take it.
    pub async fn volume(&self, name: &'static str, extents: u64, on: Option<u8>) -> anyhow::Result<BenchVolume> {
        let bytes = extents * EXTENT_BYTES;
        let owner = self.call(move |pool| (PoolNext::Commit, pool.create_volume(None, owner(name, bytes, on)))).await?;
        let owner = owner.context("making the volume")?;
        let (id, pool, volume) = self
            .call(move |pool| {
                let id = pool.serve(owner).expect("it was just made");
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

    /// Gives each extent of a volume its place.
    ///
    /// # Errors
    /// The pool is full.
    pub async fn fill(&self, volume: &BenchVolume) -> anyhow::Result<()> {
        let extents = volume.bytes / EXTENT_BYTES;
        let each = u64::from(EXTENT_BLOCKS);
        self.write_nothing(volume.id, (0..extents).map(move |extent| (extent * each, EXTENT_BLOCKS))).await
    }

    /// Does to the pool what writes of these blocks would do, each from so many on, without writing anything to them.
    ///
    /// # Errors
    /// The pool is full.
    pub async fn write_nothing(&self, id: VolumeId, blocks: impl Iterator<Item = (u64, u32)>) -> anyhow::Result<()> {
        let mut blocks = blocks.peekable();
        while blocks.peek().is_some() {
            let some: Vec<(u64, u32)> = blocks.by_ref().take(PLACED_AT_ONCE).collect();
            let mut next = 0;
            let good = self.call(move |pool| {
                while let Some((block, count)) = some.get(next) {
                    match pool.allocate(id, *block, *count) {
                        BlockAllocation::New(place) => drop(pool.map_allocation(&place)),
                        BlockAllocation::Own { .. } => {}
                        BlockAllocation::LogFull => return (PoolNext::Again, false),
                        BlockAllocation::Full | BlockAllocation::Held => return (PoolNext::Done, false),
                    }
                    next += 1;
                }
                (PoolNext::Done, true)
            });
            if !good.await? {
                bail!("the pool is full");
            }
        }
        self.call(|_| (PoolNext::Commit, ())).await
    }

    /// Takes a snapshot of a volume, and gives its number.
    ///
    /// # Errors
    /// The pool failed, or has no place for it.
    pub async fn snapshot(&self, id: VolumeId, number: u32) -> anyhow::Result<OwnerId> {
        let name = OwnerName::new(&format!("s{number}")).context("a name")?;
        let uuid = Uuid::from_u128(0x1_0000 + u128::from(number));
        let taken = self.call(move |pool| {
            let owner = pool.owner_of(id).expect("it is served");
            (PoolNext::DrainAndCommit, pool.snapshot(&[(owner, uuid, name)], 0))
        });
        Ok(taken.await?.context("taking the snapshot")?[0])
    }
}

fn owner(name: &str, size_bytes: u64, on: Option<u8>) -> Owner {
    let (place, on) = on.map_or((AllocationPolicy::Spread, 0), |member| (AllocationPolicy::Single, 1 << member));
    let name = OwnerName::new(name).expect("a good name");
    Owner { allocation: place, on, ..Owner::volume(Uuid::from_u128(2), name, size_bytes) }
}
