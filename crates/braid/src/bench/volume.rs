//! A volume of a pool on what a target's disks become, for one run: what of it is measured is the way through the pool.
//!
//! The pool's tail is in this process's memory. On disks that keep nothing its metadata are, too, when it is made.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, bail};
use braid_engine::pool::on_disk::{Owner, OwnerKind, OwnerName, Placing, PoolPlaces, RingStart};
use braid_engine::pool::{
    EXTENT_BLOCKS, EXTENT_BYTES, MemberPlaces, OpenPool, Placement, Pool, PoolDevice, TailMemory, open,
};
use braid_engine::{
    DeviceId, DeviceIo, DeviceLayout, IoError, Node, PoolKey, PoolMembers, PoolNext, PoolPlace, ShardId, VolumeNode,
};
use braid_format::Uuid;
use braid_ring::RingHandle;

const KEY: PoolKey = PoolKey(0);
const BLOCK: u64 = 4096;
const OWNER_SLOTS: u32 = 1024;
const WRITE_BYTES: usize = 4 << 20;

/// What a volume has when it is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Volume {
    /// Nothing: every block is written for the first time.
    Thin,
    /// All of its blocks.
    Full,
}

/// Memory of this process.
struct Memory(Box<[AtomicU64]>);

impl TailMemory for Memory {
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

/// Makes a pool of this device, and in it one volume of nearly all its space. Returns the volume's layout and its bytes.
///
/// # Errors
/// The device is too small, or fails.
pub async fn make(
    handle: &RingHandle,
    device: DeviceId,
    size_bytes: u64,
    keeps_data: bool,
    volume: Volume,
) -> anyhow::Result<(Arc<DeviceLayout>, u64)> {
    let places = PoolPlaces::new(size_bytes / BLOCK * BLOCK, OWNER_SLOTS)?;
    let member = PoolDevice {
        number: 0,
        device,
        places: MemberPlaces {
            starts: places.starts.start,
            owners: places.owners.start,
            table: places.table.start,
            addresses: places.addresses.start,
            data: places.data.start,
        },
        ring: (places.ring.start, u64::from(places.ring_blocks())),
        extents: places.extents,
        zero_slots: places.zero_slots,
    };
    let pool = match keeps_data {
        true => begin(&handle.devices(), &member, true).await?,
        false => {
            let heap = Heap { size_bytes, blocks: Mutex::new(BTreeMap::new()) };
            begin(&heap, &member, false).await?
        }
    };
    let members = Arc::new(PoolMembers::new([(0, PoolPlace { device, data: member.places.data })]));
    handle.serve_pool(KEY, ShardId(0), Box::new(pool), Arc::clone(&members)).await;
    // A little is left, so that nothing is full.
    let extents = u64::from(places.extents) - u64::from(places.extents) / 64 - 1;
    let bytes = extents * EXTENT_BYTES;
    let owner = handle
        .pool_call(KEY, ShardId(0), move |pool| (PoolNext::Commit, pool.create_volume(None, owner(bytes))))
        .await?;
    let owner = owner.context("making the volume")?;
    let served = handle.pool_call(KEY, ShardId(0), move |pool| {
        let id = pool.serve(owner).expect("it was just made");
        let shared = (Arc::clone(pool.shared()), Arc::clone(pool.volume(id).expect("it is served")));
        (PoolNext::Done, (id, shared))
    });
    let (id, (pool, volume_shared)) = served.await?;
    if volume == Volume::Full {
        let mut next = 0;
        let fill = move |pool: &mut Pool| {
            while next < extents {
                match pool.place(id, next * u64::from(EXTENT_BLOCKS), EXTENT_BLOCKS) {
                    Placement::New(place) => pool.bind(&place),
                    Placement::TailFull => return (PoolNext::Again, false),
                    _ => return (PoolNext::Done, false),
                };
                next += 1;
            }
            (PoolNext::Commit, true)
        };
        if !handle.pool_call(KEY, ShardId(0), fill).await? {
            bail!("the volume cannot be filled");
        }
    }
    let node = Node::Volume(Box::new(VolumeNode {
        key: KEY,
        home: ShardId(0),
        pool,
        volume: volume_shared,
        id,
        members,
        size_bytes: bytes,
        read_only: false,
    }));
    Ok((Arc::new(DeviceLayout::new(1, BLOCK as u32, &node)), bytes))
}

/// Writes what a new pool begins with, and opens it.
async fn begin(io: &impl DeviceIo, member: &PoolDevice, zeroes: bool) -> anyhow::Result<Pool> {
    let uuid = Uuid::from_u128(1);
    let mut at = 0;
    while zeroes && at < member.places.data {
        let len = WRITE_BYTES.min((member.places.data - at) as usize);
        io.write(member.device, at, vec![0; len], false).await?;
        at += len as u64;
    }
    let start = RingStart::first(&uuid, 1);
    io.write(member.device, member.places.starts, start.encode().to_vec(), true).await?;
    let what = OpenPool { uuid, members: &[*member], owner_slots: OWNER_SLOTS, absent: 0, run: 3 };
    let tail = |_session, bytes: u64| {
        let words = (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
        Ok(Arc::new(Memory(words)) as Arc<dyn TailMemory>)
    };
    Ok(open(io, &what, |_| None, tail).await?)
}

fn owner(size_bytes: u64) -> Owner {
    Owner {
        id: 1,
        kind: OwnerKind::Volume,
        place: Placing::Spread,
        on: 0,
        also_on: 0,
        thick: false,
        flattens: false,
        parent: 0,
        uuid: Uuid::from_u128(2),
        volume: Uuid::nil(),
        size_bytes,
        created_unix_s: 0,
        limit_iops: 0,
        limit_bytes_per_s: 0,
        name: OwnerName::new("bench").expect("a good name"),
        policy: None,
    }
}
