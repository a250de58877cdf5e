//! Volumes with blocks of 512 bytes: writes of 512 bytes against writes of 4 KiB, and writes of 4 KiB against those on a volume with blocks of
//! 4096 bytes.

use braid_bench::daemon::Daemon;
use braid_bench::process::CLIENT_CORE;
use braid_bench::statistics::median;

use super::child::{bench, time};
use super::{Effort, Measurement, Target};

const SIZE: &str = "256M";

/// Measures all lines: random writes over NBD to fully allocated volumes of a pool in memory.
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let daemon = Daemon::start()?;
    daemon.cli(&["pool", "create", "tank", "mem:2G"])?;
    let mut uris = Vec::new();
    for (name, block) in [("small", "512"), ("usual", "4096")] {
        let volume = format!("tank/{name}");
        daemon.cli(&["volume", "create", &volume, SIZE, "--block-size", block])?;
        let socket = daemon.join(&format!("{name}.nbd"));
        daemon.cli(&["export", "add", &volume, "--nbd", &format!("unix:{socket}"), "--name", name])?;
        let uri = format!("nbd+unix:///{name}?socket={socket}");
        // The first write of a block allocates it, which is not to be measured.
        let fill =
            ["--pattern", "sequential", "--op", "write", "--block", "1M", "--depth", "16", "--count", "256", &uri];
        bench(CLIENT_CORE, &fill)?;
        uris.push(uri);
    }
    let slice = time(effort.slice);
    let rate = |uri: &str, block: &str, depth: &str| {
        let load = ["--op", "write", "--block", block, "--depth", depth, "--time", &slice, uri];
        bench(CLIENT_CORE, &load).map(|report| report.iops)
    };
    for depth in ["1", "32"] {
        let (mut part, mut whole, mut usual) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..effort.pairs {
            part.push(rate(&uris[0], "512", depth)?);
            whole.push(rate(&uris[0], "4K", depth)?);
            usual.push(rate(&uris[1], "4K", depth)?);
        }
        let of = |name: &str| format!("{name}, depth {depth}, writes per second");
        let detail = |a: &[f64], b: &[f64]| format!("{:.0} against {:.0}", median(a), median(b));
        let measure = of("512 bytes / 4 KiB on a volume with blocks of 512 bytes");
        found(Measurement::of_pairs(measure, Target::Shown, &part, &whole, detail(&part, &whole)));
        let measure = of("4 KiB on a volume with blocks of 512 bytes / with blocks of 4096");
        found(Measurement::of_pairs(measure, Target::AtLeast(0.95), &whole, &usual, detail(&whole, &usual)));
    }
    Ok(())
}
