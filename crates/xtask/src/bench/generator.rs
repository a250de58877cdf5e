//! The cost of the load generator of `braid bench`: its load on a null disk, against the cheapest possible load on the same engine.

use braid_bench::process::SERVER_CORE;
use braid_bench::statistics::median;

use super::child::{time, xtask_load};
use super::{Effort, Measurement, Target};

/// Measures reads, writes, and a Zipf distribution, which computes logarithms and has no target.
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
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
            ours.push(xtask_load(SERVER_CORE, &load)?.cpu_ns_per_io);
            bare.push(xtask_load(SERVER_CORE, &[&load[..], &["--bare"]].concat())?.cpu_ns_per_io);
        }
        let cost: Vec<f64> = ours.iter().zip(&bare).map(|(ours, bare)| ours - bare).collect();
        let detail = format!("{:.1} ns with it, {:.1} ns with the same block repeated", median(&ours), median(&bare));
        let measure = format!("CPU of the generator per 4 KiB {pattern} {op}, depth 128, ns");
        found(Measurement::of_one(measure, target, &cost, detail));
    }
    Ok(())
}
