//! Volumes with blocks of 512 bytes: what a write of part of a block costs against one of a whole block, and that whole blocks cost no more than
//! on another volume.

use super::child::{CLIENT_CORE, bench, time};
use super::daemons::Daemon;
use super::{Effort, Row, Target};
use crate::statistics::median;

const SIZE: &str = "256M";

/// All rows: random writes by NBD to volumes of a pool in memory, which were written before.
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
    let daemon = Daemon::start()?;
    daemon.cli(&["pool", "create", "tank", "mem:2G"])?;
    let mut uris = Vec::new();
    for (name, block) in [("small", "512"), ("usual", "4096")] {
        let volume = format!("tank/{name}");
        daemon.cli(&["volume", "create", &volume, SIZE, "--block-size", block])?;
        let socket = daemon.join(&format!("{name}.nbd"));
        daemon.cli(&["export", "add", &volume, "--nbd", &format!("unix:{socket}"), "--name", name])?;
        let uri = format!("nbd+unix:///{name}?socket={socket}");
        // What is written first is given a place first.
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
        let of = |name: &str| format!("{name}, depth {depth}, writes a second");
        let detail = |a: &[f64], b: &[f64]| format!("{:.0} against {:.0}", median(a), median(b));
        let measure = of("512 bytes / 4 KiB on a volume with blocks of 512 bytes");
        found(Row::of_pairs(measure, Target::Shown, &part, &whole, detail(&part, &whole)));
        let measure = of("4 KiB on a volume with blocks of 512 bytes / with blocks of 4096");
        found(Row::of_pairs(measure, Target::AtLeast(0.95), &whole, &usual, detail(&whole, &usual)));
    }
    Ok(())
}
