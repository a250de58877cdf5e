//! CPU time per 4 KiB random I/O on one shard, against the kernel's no-operation at the same depth and batch.

use braid_bench::process::SERVER_CORE;
use braid_bench::statistics::median;

use super::child::{bench, time};
use super::{Effort, Measurement, Target};

const DISK: &str = "null:1T";

/// Measures reads and writes of all devices. Mirrors use their bitmap and range table; every region is dirty already.
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let three = [DISK, DISK, DISK];
    // The name, the bounds for reads and for writes, and the arguments of a device.
    let devices: [(&str, [f64; 2], Vec<&str>); 6] = [
        ("null", [0.25; 2], vec![DISK]),
        ("raid0 of 3 null, chunk 64K", [0.36; 2], [&["--level", "raid0"], &three[..]].concat()),
        ("concat of 3 null", [0.32; 2], [&["--level", "concat"], &three[..]].concat()),
        ("raid1 of 2 null", [0.4, 0.45], [&["--level", "raid1"], &three[..2]].concat()),
        ("raid1 of 3 null", [0.4, 0.6], [&["--level", "raid1"], &three[..]].concat()),
        ("raid10 of 4 null", [0.4, 0.5], [&["--level", "raid10", DISK], &three[..]].concat()),
    ];
    let slice = time(effort.short_slice);
    let mut all_nops = Vec::new();
    for (name, bounds, device) in devices {
        for (op, bound) in ["read", "write"].into_iter().zip(bounds) {
            let (mut ours, mut nops) = (Vec::new(), Vec::new());
            for _ in 0..effort.pairs {
                nops.push(bench(SERVER_CORE, &["--nop", "--depth", "128", "--time", &slice])?.cpu_ns_per_io);
                let load = ["--op", op, "--block", "4K", "--depth", "128", "--time", &slice];
                ours.push(bench(SERVER_CORE, &[&load[..], &device].concat())?.cpu_ns_per_io);
            }
            all_nops.extend(&nops);
            let detail = format!("{:.1} ns against {:.1} ns", median(&ours), median(&nops));
            let measure = format!("CPU per 4 KiB random {op}, depth 128, {name} / NOP");
            found(Measurement::of_pairs(measure, Target::AtMost(bound), &ours, &nops, detail));
        }
    }
    let detail = "128 submitted, one io_uring_enter, 128 completed".to_owned();
    found(Measurement::of_one(
        "one no-operation of io_uring at that depth and batch, ns",
        Target::Shown,
        &all_nops,
        detail,
    ));
    Ok(())
}
