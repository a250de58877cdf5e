//! The combined speed of several throttled disks, and the cost of the chunk size of a concat.

use braid_bench::process::SERVER_CORE;
use braid_bench::statistics::median;

use super::child::{bench, time};
use super::{Effort, Measurement, Target};

/// Returns a disk throttled like the cloud disks of the published comparison.
fn disk(size: &str) -> String {
    format!("throttled(null:{size},iops=3000,bw=125M)")
}

/// Measures a raid0 of 50, 100 and 100 GiB against one such disk over a span of the same length: random 4 KiB at a depth at which a disk is
/// rarely idle by chance (about once in 256 I/Os).
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let disks = [disk("50G"), disk("100G"), disk("100G")];
    let single = disk("1T");
    let spans = [
        ("in the first zone", "0", "150G", 2.97),
        ("in the second", "150G", "100G", 1.98),
        ("uniform over all", "0", "250G", 2.47),
    ];
    let slice = time(effort.throttled_slice);
    for (name, from, span, bound) in spans {
        for op in ["read", "write"] {
            let (mut three, mut one) = (Vec::new(), Vec::new());
            for _ in 0..effort.pairs.div_ceil(2) {
                let load = ["--op", op, "--block", "4K", "--depth", "256", "--time", &slice, "--span", span];
                let array = ["--from", from, "--level", "raid0", &disks[0], &disks[1], &disks[2]];
                three.push(bench(SERVER_CORE, &[&load[..], &array].concat())?.iops);
                one.push(bench(SERVER_CORE, &[&load[..], &[&single]].concat())?.iops);
            }
            let detail = format!("{:.0} against {:.0} IOPS", median(&three), median(&one));
            let measure = format!("raid0 of three throttled disks 50/100/100 {name}, random {op} / one");
            found(Measurement::of_pairs(measure, Target::AtLeast(bound), &three, &one, detail));
        }
    }
    Ok(())
}

/// Measures a concat with a chunk of 4 KiB against one of 64 KiB, with sequential I/Os of 128 KiB: on disks with limited IOPS, where split I/Os
/// would cost most, and on null disks, where the cost of planning dominates.
pub fn concat(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let throttled = [disk("50G"), disk("100G"), disk("100G")];
    let null = ["null:50G", "null:100G", "null:100G"].map(str::to_owned);
    for (name, disks, length) in [("throttled", throttled, effort.throttled_slice), ("null", null, effort.short_slice)]
    {
        let slice = time(length);
        for op in ["read", "write"] {
            let rate = |chunk: &str| {
                let load =
                    ["--pattern", "sequential", "--op", op, "--block", "128K", "--depth", "16", "--time", &slice];
                let device = ["--level", "concat", "--chunk", chunk, &disks[0], &disks[1], &disks[2]];
                bench(SERVER_CORE, &[&load[..], &device].concat()).map(|report| report.bytes_per_second)
            };
            let (mut small, mut usual) = (Vec::new(), Vec::new());
            for _ in 0..effort.pairs {
                small.push(rate("4K")?);
                usual.push(rate("64K")?);
            }
            let detail = format!("{:.0} against {:.0} MiB/s", median(&small) / 1048576.0, median(&usual) / 1048576.0);
            let measure = format!("concat of 3 {name} disks, 128 KiB sequential {op}: chunk 4K / 64K");
            found(Measurement::of_pairs(measure, Target::AtLeast(0.99), &small, &usual, detail));
        }
    }
    Ok(())
}
