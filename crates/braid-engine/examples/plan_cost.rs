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
}

impl LeafSink for Null {
    #[inline]
    fn submit(&mut self, io: &LeafIo) {
        self.cookies.push(io.cookie);
    }
    fn meta_block(&mut self, _: u32) -> (Buf, &mut [u8; 4096]) {
        (Buf::NONE, &mut self.meta)
    }
}

fn measure(name: &str, node: &Node, op: Op) {
    let limits = Limits::default();
    let mut shard = Shard::new(ShardId(0), &limits, Arc::new(Shared::new(1, &limits)));
    shard.publish(DeviceId(0), Some(Arc::new(DeviceLayout::new(1, 512, node))));
    let mut sink = Null { cookies: Vec::with_capacity(1024), meta: [0; 4096] };
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
    println!("{name:24} {op:?} {best:6.1} ns");
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
    measure("mirror of 2", &Node::Mirror { members: members[1..].to_vec() }, Op::Read);
    measure("mirror of 2", &Node::Mirror { members: members[1..].to_vec() }, Op::Write);
}
