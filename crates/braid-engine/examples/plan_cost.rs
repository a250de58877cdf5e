//! Prints the cost of a 4 KiB request in the engine alone: planned, submitted to a sink that only records the cookie,
//! and answered; also to a volume of a pool on such a device.
//! `cargo run --release -p braid-engine --example plan_cost [ROUNDS]`
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use braid_engine::pool::on_disk::{Checkpoint, Owner, OwnerName, Record, RecordKind};
use braid_engine::pool::{EXTENT_BYTES, LogMemory, MemberLayout, OpenPool, PoolDevice, open};
use braid_engine::*;
use braid_geometry::{Geometry, Layout, Level, Spec, ZonePolicy};

struct Null {
    cookies: Vec<Cookie>,
    meta: [u8; 4096],
    /// Completes inline, as an in-memory disk does.
    at_once: bool,
}

impl LeafSink for Null {
    #[inline]
    fn submit(&mut self, io: &LeafIo) {
        self.cookies.push(io.cookie);
    }
    #[inline]
    fn complete_inline(&mut self, _: LeafId, _: Op, _: u64, _: u64, _: Buf) -> Option<LeafResult> {
        self.at_once.then_some(Ok(()))
    }
    fn zero(&mut self, _: Buf, _: u64) {}
    fn is_equal(&mut self, _: Buf, _: Buf, _: u64) -> bool {
        true
    }
    fn scratch(&mut self) -> (Buf, u64) {
        unreachable!("nothing here has parity")
    }
    fn compute(&mut self, _: &[Buf], _: &[Buf], _: u64, _: &mut ComputeFn<'_>) {
        unreachable!("nothing here has parity")
    }
    fn meta_block(&mut self, _: u32) -> (Buf, &mut [u8; 4096]) {
        (Buf::NONE, &mut self.meta)
    }
}

fn measure(name: &str, node: &Node, op: Op) {
    measure_last(name, std::slice::from_ref(node), op);
}

/// Measures the last of several devices.
fn measure_last(name: &str, nodes: &[Node], op: Op) {
    let (slot, at_once) = (cost(nodes, op, false), cost(nodes, op, true));
    println!("{name:24} {op:?} {slot:6.1} ns by a slot {at_once:6.1} ns at once");
}

fn cost(nodes: &[Node], op: Op, at_once: bool) -> f64 {
    let limits = Limits::default();
    let mut shard = Shard::new(ShardId(0), &limits, Arc::new(Shared::new(1, &limits)));
    let mut sink = Null { cookies: Vec::with_capacity(1024), meta: [0; 4096], at_once };
    for (id, node) in (0..).zip(nodes) {
        let block = if matches!(node, Node::Volume(_)) { 4096 } else { 512 };
        shard.publish(DeviceId(id), Some(Arc::new(DeviceLayout::new(1, block, node))), &mut sink);
    }
    let device = DeviceId(nodes.len() as u32 - 1);
    let mut done = Vec::new();
    let blocks = nodes[nodes.len() - 1].size_bytes() / 4096;
    let (mut x, mut best) = (1u64, f64::MAX);
    let rounds = std::env::args().nth(1).map_or(20_000, |a| a.parse().unwrap());
    let depth = 128;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..rounds {
            for tag in 0..depth {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let offset = ((u128::from(x) * u128::from(blocks)) >> 64) as u64 * 4096;
                let buf = Buf { addr: 4096 * tag, region: 0 };
                let request = Request { device, op, flags: Flags::NONE, offset, len: 4096, buf, tag };
                shard.submit(&request, &mut sink).unwrap();
            }
            let mut at = 0;
            while let Some(cookie) = sink.cookies.get(at).copied() {
                shard.leaf_done(cookie, Ok(()), &mut sink);
                at += 1;
            }
            sink.cookies.clear();
            shard.swap_done(&mut done);
        }
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(rounds) / depth as f64);
    }
    best
}

/// Returns a mirror of disks of 100 GiB in which everything was written before.
fn mirrored(level: Level, members: u32) -> Node {
    let geometry = Geometry::plan(Spec::new(level), &vec![100 << 30; members as usize]).unwrap();
    let all = vec![u64::MAX; 1 << 12];
    let map = RegionMap::new(ShardId(0), Uuid::nil(), geometry.size_bytes(), 4 << 20, (&all, &all), true);
    let member = |leaf| MirrorMember {
        leaf: LeafId(leaf),
        start: 16 << 20,
        len: 100 << 30,
        bitmap_start: 1 << 20,
        role: MemberRole::InSync,
        write_mostly: false,
    };
    let members = (0..members).map(member).collect();
    Node::Mirrored(Box::new(MirrorNode {
        geometry,
        members,
        successors: Vec::new(),
        regions: Arc::new(map),
        parity: None,
        failed: false,
    }))
}

/// The layout of the pool's structures, without overlaps.
const PLACES: MemberLayout =
    MemberLayout { starts: 4096, owners: 1 << 20, table: 1 << 30, addresses: 2 << 30, data: 4 << 30 };
const VOLUME: Uuid = Uuid::from_u128(7);

/// A pool of one member on which a volume has so many whole, contiguous extents. It stores no writes.
struct Filled(u64);

impl DeviceIo for Filled {
    fn size_bytes(&self, _: DeviceId) -> u64 {
        PLACES.data + self.0 * EXTENT_BYTES
    }
    fn block_bytes(&self, _: DeviceId) -> u32 {
        4096
    }
    async fn read(&self, _: DeviceId, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
        let mut bytes = vec![0; len];
        if (PLACES.starts..PLACES.starts + 8192).contains(&offset) {
            bytes[..4096].copy_from_slice(&Checkpoint::first(&Uuid::nil(), 1).encode());
        } else if offset == PLACES.owners {
            let owner = Owner::volume(VOLUME, OwnerName::new("volume").unwrap(), self.0 * EXTENT_BYTES);
            bytes[..256].copy_from_slice(&owner.encode(0));
        } else if (PLACES.table..PLACES.addresses).contains(&offset) {
            for (index, image) in ((offset - PLACES.table) / 32..self.0).zip(bytes.as_chunks_mut::<32>().0) {
                let logical = index as u32;
                let kind = RecordKind::Whole;
                *image = Record { kind, life: 1, owner: 1, logical, present: u64::MAX, zero: 0 }.encode(0, logical);
            }
        }
        Ok(bytes)
    }
    async fn write(&self, _: DeviceId, _: u64, _: Vec<u8>, _: bool) -> Result<(), IoError> {
        Ok(())
    }
    async fn flush(&self, _: DeviceId) -> Result<(), IoError> {
        Ok(())
    }
    async fn discard(&self, _: DeviceId, _: u64, _: u64) -> Result<(), IoError> {
        Ok(())
    }
}

struct Tail(Box<[AtomicU64]>);

impl LogMemory for Tail {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("everything answers at once"),
    }
}

/// Returns a volume of so many extents, on the first device.
fn volume(extents: u64) -> Node {
    let zero_slots = (128 - extents % 128) as u32;
    let (device, ring) = (DeviceId(0), (64 << 20, 128));
    let members = [PoolDevice { number: 0, device, layout: PLACES, ring, extents: extents as u32, zero_slots }];
    let what = OpenPool {
        uuid: Uuid::nil(),
        members: &members,
        owner_slots: 16,
        missing: 0,
        overwrites_unreadable: false,
        run: 5,
    };
    let tail = |_, bytes: u64| {
        let memory: Arc<dyn LogMemory> = Arc::new(Tail((0..bytes / 8).map(|_| AtomicU64::new(0)).collect()));
        Ok(memory)
    };
    let mut pool = now(open(&Filled(extents), &what, |_| None, tail)).unwrap();
    let id = pool.serve(1).unwrap();
    Node::Volume(Box::new(VolumeNode {
        key: PoolKey(0),
        home: ShardId(0),
        pool: Arc::clone(pool.shared()),
        volume: Arc::clone(pool.volume(id).unwrap()),
        id,
        members: Arc::new(PoolMembers::new([(0, PoolMemberLocation { device, data: PLACES.data })])),
        size_bytes: extents * EXTENT_BYTES,
        read_only: false,
    }))
}

fn main() {
    let leaf = |id: u32, gib: u64| Node::Leaf { leaf: LeafId(id), start: 16 << 20, len: gib << 30 };
    let sizes = [50u64, 100, 100];
    let members: Vec<Node> = sizes.iter().enumerate().map(|(k, s)| leaf(k as u32, *s)).collect();
    let bytes: Vec<u64> = sizes.iter().map(|s| s << 30).collect();
    let striped = |level, layout| {
        let spec = Spec { level, layout, chunk_bytes: 65536, copies: 1, zones: ZonePolicy::All };
        Node::Striped { geometry: Geometry::plan(spec, &bytes).unwrap(), members: members.clone() }
    };
    measure("leaf", &leaf(0, 100), Op::Read);
    measure("raid0 of 3", &striped(Level::Raid0, Layout::Alternate), Op::Read);
    measure("raid0 of 3", &striped(Level::Raid0, Layout::Alternate), Op::Write);
    measure("concat of 3", &striped(Level::Concat, Layout::Linear), Op::Read);
    for gib in [1, 240] {
        let name = format!("volume of {gib} GiB on it");
        let nodes = [striped(Level::Raid0, Layout::Alternate), volume(gib << 12)];
        measure_last(&name, &nodes, Op::Read);
        measure_last(&name, &nodes, Op::Write);
    }
    for (level, members) in [(Level::Raid1, 2), (Level::Raid1, 3), (Level::Raid10, 4)] {
        let name = format!("{level} of {members}");
        measure(&name, &mirrored(level, members), Op::Read);
        measure(&name, &mirrored(level, members), Op::Write);
    }
}
