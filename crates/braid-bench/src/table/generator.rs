//! What the generator of `braid bench` costs by itself: its load on a disk that does nothing, against the least load that there can
//! be, on the same engine.

use super::child::{SERVER_CORE, bench, time};
use super::{Effort, Row, Target};
use crate::statistics::median;

/// Reads, writes, and what is drawn by Zipf's law (which pays for its logarithms, and has no target).
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
    let slice = time(effort.short_slice);
    for (pattern, op, target) in [
        ("random", "read", Target::AtMost(40.0)),
        ("random", "write", Target::AtMost(40.0)),
        ("sequential", "read", Target::AtMost(40.0)),
        ("zipf", "read", Target::Shown),
    ] {
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..effort.pairs {
            let load = ["--op", op, "--pattern", pattern, "--depth", "128", "--time", &slice, "null:1T"];
            ours.push(bench(SERVER_CORE, &load)?.cpu_ns_per_io);
            bare.push(bench(SERVER_CORE, &[&load[..], &["--bare"]].concat())?.cpu_ns_per_io);
        }
        let cost: Vec<f64> = ours.iter().zip(&bare).map(|(ours, bare)| ours - bare).collect();
        let detail =
            format!("{:.1} ns with it, {:.1} ns with the same block again and again", median(&ours), median(&bare));
        let measure = format!("CPU of the generator per 4 KiB {pattern} {op}, depth 128, ns");
        found(Row::of_one(measure, target, &cost, detail));
    }
    Ok(())
}
