//! A pool with one member, and one volume of nearly all its space.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use braid_engine::pool::on_disk::{Checkpoint, Owner, OwnerName, PoolMemberLayout};
use braid_engine::pool::{EXTENT_BYTES, LogMemory, OpenPool, PoolDevice, open};
use braid_engine::{
    DeviceId, DeviceIo, Node, PoolKey, PoolMemberLocation, PoolMembers, PoolNext, ShardId, Uuid, VolumeNode,
};

use super::{TestBed, block_on};

const OWNER_SLOTS: u32 = 1024;

struct Heap(Box<[AtomicU64]>);

impl LogMemory for Heap {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// Creates a pool on a device that stores its data, serves it on shard 0, and serves one volume. Returns the volume's
/// device and size in bytes.
pub fn thin(bed: &mut TestBed, key: PoolKey, member: DeviceId, size_bytes: u64) -> (DeviceId, u64) {
    let io = bed.handle.devices();
    let places = PoolMemberLayout::new(size_bytes, OWNER_SLOTS).unwrap();
    let of = PoolDevice::new(0, member, &places);
    let uuid = Uuid::from_u128(0x51);
    let start = Checkpoint::first(&uuid, 1);
    let what =
        OpenPool { uuid, members: &[of], owner_slots: OWNER_SLOTS, missing: 0, overwrites_unreadable: false, run: 3 };
    let new_log = |_session, bytes: u64| {
        Ok(Arc::new(Heap((0..bytes / 8).map(|_| AtomicU64::new(0)).collect())) as Arc<dyn LogMemory>)
    };
    let pool = block_on(async {
        for at in (0..of.layout.data).step_by(1 << 20) {
            let len = (of.layout.data - at).min(1 << 20) as usize;
            io.write(member, at, vec![0; len], false).await.unwrap();
        }
        io.write(member, of.layout.starts, start.encode().to_vec(), true).await.unwrap();
        open(&io, &what, |_| None, new_log).await.unwrap()
    });
    let home = ShardId(0);
    let members: Arc<PoolMembers> =
        Arc::new(PoolMembers::new([(0, PoolMemberLocation { device: member, data: of.layout.data })]));
    block_on(bed.handle.serve_pool(key, home, Box::new(pool), Arc::clone(&members)));
    let bytes = (u64::from(places.extents) - 8) * EXTENT_BYTES;
    let owner = Owner::volume(Uuid::from_u128(2), OwnerName::new("v").unwrap(), bytes);
    let create =
        move |pool: &mut braid_engine::pool::Pool| (PoolNext::Commit, pool.create_volume(None, owner.clone()).unwrap());
    let owner = block_on(bed.handle.pool_call(key, home, create)).unwrap();
    let serve = move |pool: &mut braid_engine::pool::Pool| {
        let id = pool.serve(owner).unwrap();
        (PoolNext::Done, (id, Arc::clone(pool.shared()), Arc::clone(pool.volume(id).unwrap())))
    };
    let (id, pool, volume) = block_on(bed.handle.pool_call(key, home, serve)).unwrap();
    let node = VolumeNode { key, home, pool, volume, id, members, size_bytes: bytes, read_only: false };
    (bed.publish_blocks(&Node::Volume(Box::new(node)), 4096), bytes)
}
