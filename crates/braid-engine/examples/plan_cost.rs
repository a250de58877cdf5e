//! Prints what a 4 KiB request costs in the engine alone: planned, submitted to a sink that only
//! remembers the cookie, and answered. `cargo run --release -p braid-engine --example plan_cost [ROUNDS]`
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::sync::Arc;
use std::time::Instant;

use braid_engine::*;
use braid_geometry::{Geometry, Layout, Level, Spec, ZonePolicy};

struct Null {
    cookies: Vec<Cookie>,
    meta: [u8; 4096],
    /// Answers within the call, as a disk in memory does.
    at_once: bool,
}

impl LeafSink for Null {
    #[inline]
    fn submit(&mut self, io: &LeafIo) {
        self.cookies.push(io.cookie);
    }
    #[inline]
    fn at_once(&mut self, _: LeafId, _: Op, _: u64, _: u64, _: Buf) -> Option<LeafResult> {
        self.at_once.then_some(Ok(()))
    }
    fn zero(&mut self, _: Buf, _: u64) {}
    fn is_equal(&mut self, _: Buf, _: Buf, _: u64) -> bool {
        true
    }
    fn scratch(&mut self) -> (Buf, u64) {
        unreachable!("nothing here has parity")
    }
    fn compute(&mut self, _: &[Buf], _: &[Buf], _: u64, _: &mut RowWork<'_>) {
        unreachable!("nothing here has parity")
    }
    fn meta_block(&mut self, _: u32) -> (Buf, &mut [u8; 4096]) {
        (Buf::NONE, &mut self.meta)
    }
}

fn measure(name: &str, node: &Node, op: Op) {
    let (slot, at_once) = (cost(node, op, false), cost(node, op, true));
    println!("{name:24} {op:?} {slot:6.1} ns by a slot {at_once:6.1} ns at once");
}

fn cost(node: &Node, op: Op, at_once: bool) -> f64 {
    let limits = Limits::default();
    let mut shard = Shard::new(ShardId(0), &limits, Arc::new(Shared::new(1, &limits)));
    let mut sink = Null { cookies: Vec::with_capacity(1024), meta: [0; 4096], at_once };
    shard.publish(DeviceId(0), Some(Arc::new(DeviceLayout::new(1, 512, node))), &mut sink);
    let mut done = Vec::new();
    let blocks = node.size_bytes() / 4096;
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
                let request = Request { device: DeviceId(0), op, flags: Flags::NONE, offset, len: 4096, buf, tag };
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

/// A mirror of disks of 100 GiB in which everything was written before.
fn mirrored(level: Level, members: u32) -> Node {
    let geometry = Geometry::plan(Spec::new(level), &vec![100 << 30; members as usize]).unwrap();
    let all = vec![u64::MAX; 1 << 12];
    let map = RegionMap::new(ShardId(0), Uuid::nil(), geometry.size_bytes(), 4 << 20, (&all, &all), true);
    let member = |leaf| MirrorMember {
        leaf: LeafId(leaf),
        start: 16 << 20,
        len: 100 << 30,
        bitmap_start: 1 << 20,
        role: Role::InSync,
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
    for (level, members) in [(Level::Raid1, 2), (Level::Raid1, 3), (Level::Raid10, 4)] {
        let name = format!("{level} of {members}");
        measure(&name, &mirrored(level, members), Op::Read);
        measure(&name, &mirrored(level, members), Op::Write);
    }
}
