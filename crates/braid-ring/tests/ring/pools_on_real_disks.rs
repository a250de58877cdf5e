//! A pool over a bare disk and a mirror, on two shards: data written to volumes is read back, by every path and after
//! every kind of start.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use crate::common::{Folder, Random, TestBed, block_on};
use braid_engine::allocation;
use braid_engine::pool::on_disk::{Checkpoint, Owner, OwnerKind, OwnerName, PoolMemberLayout, owner_slots_for};
use braid_engine::pool::{LogMemory, OpenPool, PoolDevice, open};
use braid_engine::{
    DeviceId, DeviceIo, DeviceLayout, Flags, MemberRole, MirrorMember, MirrorNode, Node, Op, PoolKey,
    PoolMemberLocation, PoolMembers, PoolNext, RegionMap, ShardId, Uuid, VolumeNode,
};
use braid_geometry::{Geometry, Level, Spec};
use braid_ring::RingConfig;

const MEMBER: u64 = 48 << 20;
const VOLUME: u64 = 20 << 20;
const BLOCK: u64 = 4096;
const KEY: PoolKey = PoolKey(3);
const HOME: ShardId = ShardId(1);

struct Heap(Box<[AtomicU64]>);

impl LogMemory for Heap {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

type Logs = Mutex<BTreeMap<u64, Arc<dyn LogMemory>>>;

struct Pool {
    bed: TestBed,
    uuid: Uuid,
    devices: Vec<PoolDevice>,
    places: Arc<PoolMembers>,
    owner_slots: u32,
    logs: Logs,
    version: u32,
    run: u64,
    layouts: BTreeMap<u32, Arc<DeviceLayout>>,
}

impl Pool {
    fn new(folder: &Folder) -> Pool {
        let mut bed = TestBed::new(&RingConfig { shards: 2, ..RingConfig::default() });
        let leaf = |bed: &TestBed, name: &str| bed.leaf(&format!("file:{},size=50M", folder.path(name)));
        let bare = leaf(&bed, "bare");
        let bare = bed.publish(&Node::Leaf { leaf: bare, start: 0, len: MEMBER });
        let halves = [leaf(&bed, "left"), leaf(&bed, "right")];
        let member = |leaf| MirrorMember {
            leaf,
            start: 0,
            len: MEMBER,
            bitmap_start: MEMBER,
            role: MemberRole::InSync,
            write_mostly: false,
        };
        let mirror = Node::Mirrored(Box::new(MirrorNode {
            geometry: Geometry::plan(Spec::new(Level::Raid1), &[MEMBER, MEMBER]).unwrap(),
            members: halves.map(member).to_vec(),
            successors: Vec::new(),
            regions: Arc::new(RegionMap::new(ShardId(0), Uuid::from_u128(7), MEMBER, 1 << 20, (&[], &[]), true)),
            parity: None,
            failed: false,
        }));
        let mirror = bed.publish(&mirror);
        let owner_slots = owner_slots_for(MEMBER);
        let member = |(number, device)| {
            let places = PoolMemberLayout::new(MEMBER, owner_slots).unwrap();
            PoolDevice::new(number, device, &places)
        };
        let devices: Vec<PoolDevice> = [(0, bare), (1, mirror)].map(member).to_vec();
        let place = |of: &PoolDevice| (of.number, PoolMemberLocation { device: of.device, data: of.layout.data });
        let places = Arc::new(PoolMembers::new(devices.iter().map(place)));
        let uuid = Uuid::from_u128(0x55aa);
        let pool = Pool {
            bed,
            uuid,
            devices,
            places,
            owner_slots,
            logs: Logs::default(),
            version: 0,
            run: 10,
            layouts: BTreeMap::new(),
        };
        pool.create();
        pool
    }

    fn create(&self) {
        let io = self.bed.handle.devices();
        block_on(async {
            for member in &self.devices {
                io.write(member.device, 0, vec![0; member.layout.data as usize], false).await.unwrap();
                let start = Checkpoint::first(&self.uuid, 1);
                io.write(member.device, member.layout.starts, start.encode().to_vec(), false).await.unwrap();
                io.flush(member.device).await.unwrap();
            }
        });
    }

    fn open(&mut self) {
        self.run += 1;
        let io = self.bed.handle.devices();
        let what = OpenPool {
            uuid: self.uuid,
            members: &self.devices,
            owner_slots: self.owner_slots,
            missing: 0,
            overwrites_unreadable: false,
            run: self.run,
        };
        let logs = &self.logs;
        let old = |session: u64| logs.lock().unwrap().get(&session).map(Arc::clone);
        let begin = |session: u64, bytes: u64| {
            let memory: Arc<dyn LogMemory> = Arc::new(Heap((0..bytes / 8).map(|_| AtomicU64::new(0)).collect()));
            logs.lock().unwrap().insert(session, Arc::clone(&memory));
            Ok(memory)
        };
        let pool = block_on(open(&io, &what, old, begin)).unwrap();
        block_on(self.bed.handle.serve_pool(KEY, HOME, Box::new(pool), Arc::clone(&self.places)));
    }

    fn call<R: Send + 'static>(
        &self,
        call: impl FnMut(&mut braid_engine::pool::Pool) -> (PoolNext, R) + Send + 'static,
    ) -> R {
        block_on(self.bed.handle.pool_call(KEY, HOME, call)).unwrap()
    }

    /// Serves a volume or snapshot as this device.
    fn serve(&mut self, owner: u32, device: DeviceId) {
        let (pool, volume, id, size_bytes, kind) = self.call(move |pool| {
            let id = pool.serve(owner).unwrap();
            let what = pool.state().owners.get(owner).unwrap();
            let (size, kind) = (what.size_bytes, what.kind);
            (PoolNext::Done, (Arc::clone(pool.shared()), Arc::clone(pool.volume(id).unwrap()), id, size, kind))
        });
        self.version += 1;
        let node = Node::Volume(Box::new(VolumeNode {
            key: KEY,
            home: HOME,
            pool,
            volume,
            id,
            members: Arc::clone(&self.places),
            size_bytes,
            read_only: kind == OwnerKind::Snapshot,
        }));
        let layout = Arc::new(DeviceLayout::new(self.version, 4096, &node));
        self.layouts.insert(device.0, Arc::clone(&layout));
        self.bed.handle.publish_and_drain(device, Some(layout)).wait().unwrap();
    }

    fn layout(&self, device: DeviceId) -> Arc<DeviceLayout> {
        Arc::clone(&self.layouts[&device.0])
    }

    fn owner(&self, name: &'static str) -> u32 {
        self.call(move |pool| {
            let owner = pool.state().owners.iter().find(|owner| owner.name.as_str() == name).unwrap().id;
            (PoolNext::Done, owner)
        })
    }

    fn create_volume(&self, name: &str, of: Option<u32>) -> u32 {
        let owner = Owner::volume(
            Uuid::from_u128(name.bytes().fold(1, |all, byte| all << 8 | u128::from(byte))),
            OwnerName::new(name).unwrap(),
            VOLUME,
        );
        self.call(move |pool| (PoolNext::Commit, pool.create_volume(of, owner.clone()).unwrap()))
    }

    fn snapshot(&self, volume: u32, name: &'static str) {
        let uuid = Uuid::from_u128(name.bytes().fold(2, |all, byte| all << 8 | u128::from(byte)));
        self.call(move |pool| {
            let what = [(volume, uuid, OwnerName::new(name).unwrap())];
            (PoolNext::DrainAndCommit, pool.snapshot(&what, 0).unwrap())
        });
    }

    fn read_all(&self, device: DeviceId) -> Vec<u8> {
        block_on(self.bed.handle.devices().read(device, 0, VOLUME as usize)).unwrap()
    }

    /// Stops serving without notice, like a process that is killed.
    fn kill(&mut self, devices: &[DeviceId]) {
        for device in devices {
            self.bed.handle.publish_and_drain(*device, None).wait().unwrap();
        }
        let (_, ended) = block_on(self.bed.handle.stop_pool(KEY, HOME)).unwrap();
        ended.wait().unwrap();
    }
}

/// Writes and zeroes at random, many requests at a time on disjoint ranges, and updates the expected content.
fn use_volume(pool: &Pool, device: DeviceId, expected: &mut [u8], random: &mut Random, rounds: usize) {
    let io = pool.bed.handle.devices();
    let parts = 4;
    let each = VOLUME / parts;
    for _ in 0..rounds {
        let requests: Vec<_> = (0..parts)
            .map(|part| {
                let most = if random.below(4) == 0 { 300 } else { 6 };
                let len = (1 + random.below(most)) * BLOCK;
                let offset = part * each + random.below((each - len) / BLOCK + 1) * BLOCK;
                let (op, flags) = match random.below(10) {
                    0 => (Op::WriteZeroes, Flags::NONE),
                    1 => (Op::WriteZeroes, Flags::NO_UNMAP),
                    2 => (Op::WriteZeroes, Flags::FUA),
                    3 => (Op::Write, Flags::FUA),
                    _ => (Op::Write, Flags::NONE),
                };
                let data = if op == Op::Write { random.bytes(len) } else { Vec::new() };
                (op, flags, offset, len, data)
            })
            .collect();
        std::thread::scope(|scope| {
            for (op, flags, offset, len, data) in &requests {
                let io = io.clone();
                scope.spawn(move || block_on(io.request(device, *op, *flags, *offset, *len, data)).unwrap());
            }
        });
        for (op, _, offset, len, data) in &requests {
            let into = &mut expected[*offset as usize..(*offset + *len) as usize];
            if *op == Op::Write { into.copy_from_slice(data) } else { into.fill(0) }
        }
        if random.below(5) == 0 {
            block_on(io.flush(device)).unwrap();
        }
        if random.below(6) == 0 {
            pool.call(|pool| (PoolNext::Done, pool.merge_step(100)));
        }
    }
}

#[test]
fn volumes_and_snapshots_keep_their_data() {
    let folder = Folder::new("pools");
    let mut pool = Pool::new(&folder);
    let mut random = Random(11);
    pool.open();
    let (db, old, copy) = (DeviceId(200), DeviceId(201), DeviceId(202));
    let owner = pool.create_volume("db", None);
    pool.serve(owner, db);
    assert!(pool.read_all(db) == vec![0; VOLUME as usize], "a new volume reads as zeros");
    let mut expected = vec![0; VOLUME as usize];
    use_volume(&pool, db, &mut expected, &mut random, 60);
    assert!(pool.read_all(db) == expected);

    pool.snapshot(owner, "monday");
    let monday = expected.clone();
    use_volume(&pool, db, &mut expected, &mut random, 60);
    pool.serve(pool.owner("monday"), old);
    assert!(pool.read_all(db) == expected && pool.read_all(old) == monday, "a snapshot stays as it was");
    let refused = block_on(pool.bed.handle.devices().write(old, 0, vec![1; 4096], false));
    assert_eq!(refused.unwrap_err().kind, braid_engine::ErrorKind::ReadOnly);

    // What NBD's block status reports as stored or as a hole: everything that is not zeros must be stored.
    let mut stored = vec![false; (VOLUME / BLOCK) as usize];
    let mut at = 0;
    while at < VOLUME {
        let layout = pool.layout(db);
        let from = at;
        let mut each = |run: allocation::AllocationRun| {
            stored[(at / BLOCK) as usize..((at + run.len) / BLOCK) as usize].fill(!run.hole);
            at += run.len;
            true
        };
        let mut probe = |_, _, _| unreachable!("the map knows");
        allocation::extents(&layout, from, VOLUME - from, || 0, &mut probe, &mut each);
    }
    for (block, is_stored) in expected.chunks(BLOCK as usize).zip(&stored) {
        assert!(*is_stored || block.iter().all(|byte| *byte == 0), "a hole reads as zeros");
    }
    assert!(stored.iter().any(|is_stored| *is_stored) && stored.iter().any(|is_stored| !is_stored));

    // A clone is written independently; the process dies; all content is recovered.
    let clone = pool.create_volume("copy", Some(pool.owner("monday")));
    pool.serve(clone, copy);
    let mut copied = monday.clone();
    use_volume(&pool, copy, &mut copied, &mut random, 30);
    use_volume(&pool, db, &mut expected, &mut random, 30);
    pool.kill(&[db, old, copy]);
    pool.open();
    pool.serve(pool.owner("db"), db);
    pool.serve(pool.owner("monday"), old);
    pool.serve(pool.owner("copy"), copy);
    assert!(pool.read_all(db) == expected, "what was acknowledged survives the process");
    assert!(pool.read_all(old) == monday && pool.read_all(copy) == copied);

    // After the deletion of the snapshot the volumes are unchanged, and still work.
    pool.bed.handle.publish_and_drain(old, None).wait().unwrap();
    let monday_owner = pool.owner("monday");
    pool.call(move |pool| {
        let served = pool.served(monday_owner).unwrap();
        pool.stop_serving(served);
        (PoolNext::Commit, pool.delete_snapshot(monday_owner).unwrap())
    });
    use_volume(&pool, db, &mut expected, &mut random, 40);
    use_volume(&pool, copy, &mut copied, &mut random, 20);
    assert!(pool.read_all(db) == expected && pool.read_all(copy) == copied);
    pool.call(|pool| (PoolNext::Done, pool.recount())).unwrap();

    // Without the log in shared memory, flushed data is recovered.
    block_on(pool.bed.handle.devices().flush(db)).unwrap();
    pool.kill(&[db, copy]);
    pool.logs.lock().unwrap().clear();
    pool.open();
    pool.serve(pool.owner("db"), db);
    pool.serve(pool.owner("copy"), copy);
    assert!(pool.read_all(db) == expected && pool.read_all(copy) == copied);
}
