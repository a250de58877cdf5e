//! Prints the duration of `Geometry::locate` at random offsets: `cargo run --release -p braid-geometry --example locate_ns`.

use braid_geometry::{Geometry, Level, Spec, ZonePolicy};
use std::hint::black_box;
use std::time::Instant;

const OFFSETS: usize = 1 << 14;
const ROUNDS: usize = 2000;

fn offsets(size_bytes: u64) -> Vec<u64> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(state) * u128::from(size_bytes)) >> 64) as u64 & !4095
    };
    (0..OFFSETS).map(|_| next()).collect()
}

/// Returns the nanoseconds per call of the fastest round: other load on the machine only adds time.
fn measure(offsets: &[u64], mut each: impl FnMut(u64) -> u64) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut sum = 0u64;
        for &offset in offsets {
            sum = sum.wrapping_add(each(black_box(offset)));
        }
        black_box(sum);
        best = best.min(start.elapsed().as_nanos() as f64 / offsets.len() as f64);
    }
    best
}

fn main() {
    let disks = [50u64 << 30, 100 << 30, 100 << 30];
    for level in Level::ALL {
        for (chunk_bytes, zones) in
            [(64 << 10, ZonePolicy::All), (96 << 10, ZonePolicy::All), (64 << 10, ZonePolicy::Single)]
        {
            let geometry =
                Geometry::plan(Spec { chunk_bytes, zones, ..Spec::new(level) }, &disks).expect("three disks");
            let offsets = offsets(geometry.size_bytes());
            let ns = measure(&offsets, |offset| {
                let range = geometry.locate(offset);
                range.member_offset ^ range.len ^ u64::from(range.member)
            });
            println!("{level:7} chunk {:3}K, {} zones: {ns:.2} ns", chunk_bytes >> 10, geometry.zones().len());
        }
    }
}
