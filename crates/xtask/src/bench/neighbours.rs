//! One client against others: the latency of a reader beside clients that request large reads and never receive the replies. And the duration
//! of discards of unallocated space.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use braid_bench::daemon::Daemon;
use braid_bench::process::CLIENT_CORE;
use braid_bench::statistics::median;

use super::child::{bench, time};
use super::{Effort, Measurement, Target};

/// Bytes of one read request of a greedy client.
const READ_BYTES: u32 = 2 << 20;
/// Read requests of a greedy client.
const READS: u64 = 32;
/// The longest range of one TRIM: the length has 32 bits.
const TRIM_BYTES: u64 = (1 << 32) - (1 << 20);
/// TRIM requests in flight on one connection.
const TRIMS: usize = 64;
/// Size of the unallocated volume.
const EMPTY_BYTES: u64 = 16 << 40;

const CMD_READ: u16 = 0;
const CMD_TRIM: u16 = 4;

/// A minimal NBD client: "newstyle negotiation" of the protocol, with `NBD_OPT_EXPORT_NAME`.
struct Client(UnixStream);

impl Client {
    fn connect(socket: &str, export: &str) -> anyhow::Result<Client> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        // Fixed newstyle, no zeros after the reply; then the option's magic, number and length.
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT");
        hello.extend(1u32.to_be_bytes());
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend(export.as_bytes());
        stream.write_all(&hello)?;
        let mut reply = [0; 10];
        stream.read_exact(&mut reply).with_context(|| format!("the server's reply to the export name {export}"))?;
        Ok(Client(stream))
    }

    fn send(&mut self, command: u16, cookie: u64, offset: u64, len: u32) -> anyhow::Result<()> {
        let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
        request.extend(0u16.to_be_bytes());
        request.extend(command.to_be_bytes());
        request.extend(cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(len.to_be_bytes());
        Ok(self.0.write_all(&request)?)
    }

    /// Receives the reply to a request without data.
    fn receive(&mut self) -> anyhow::Result<()> {
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply)?;
        let error = u32::from_be_bytes(reply[4..8].try_into().expect("four bytes"));
        if error == 0 { Ok(()) } else { bail!("the server replied with error {error}") }
    }
}

/// Measures all lines.
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    beside_greedy_clients(effort, found)?;
    discards(effort, found)
}

/// Measures the 99th percentile of a reader at depth 1 beside clients of another export on the same shard that receive no replies.
fn beside_greedy_clients(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let daemon = Daemon::start()?;
    for name in ["calm", "greedy"] {
        daemon.cli(&["array", "create", name, "--level", "concat", "mem:256M"])?;
    }
    let (calm, greedy) = (daemon.export("calm")?, daemon.export("greedy")?);
    // Every block is written once first: page faults on untouched memory are not to be measured.
    let uri = format!("nbd+unix:///calm?socket={calm}");
    let fill = ["--pattern", "sequential", "--op", "write", "--block", "1M", "--depth", "16", "--count", "240", &uri];
    bench(CLIENT_CORE, &fill)?;
    let slice = time(effort.slice);
    let p99 = || {
        bench(CLIENT_CORE, &["--op", "read", "--depth", "1", "--time", &slice, &uri]).map(|r| r.latency.p99_ns as f64)
    };
    for clients in [1, 8, 64] {
        let (mut beside, mut alone) = (Vec::new(), Vec::new());
        for _ in 0..effort.pairs {
            alone.push(p99()?);
            let mut all = Vec::new();
            for _ in 0..clients {
                let mut client = Client::connect(&greedy, "greedy")?;
                for read in 0..READS {
                    client.send(CMD_READ, read, 0, READ_BYTES)?;
                }
                all.push(client);
            }
            beside.push(p99()?);
        }
        let detail = format!("{:.1} against {:.1} µs", median(&beside) / 1e3, median(&alone) / 1e3);
        let measure = format!("p99 of a reader at depth 1 beside {clients} clients that receive nothing / alone");
        found(Measurement::of_pairs(measure, Target::AtMost(3.0), &beside, &alone, detail));
    }
    Ok(())
}

/// Measures the time to discard 16 TiB of a volume that was never written.
fn discards(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let daemon = Daemon::start_anywhere(2, None)?;
    let disk = daemon.join("disk.img");
    std::fs::File::create(&disk)?.set_len(4 << 30)?;
    daemon.cli(&["pool", "create", "tank", &disk])?;
    daemon.cli(&["volume", "create", "tank/empty", "16T"])?;
    let socket = daemon.join("empty.nbd");
    daemon.cli(&["export", "add", "tank/empty", "--nbd", &format!("unix:{socket}"), "--name", "empty"])?;
    // Connections are assigned to the shards in turn; one of the two shards is the pool's home.
    let mut clients = [Client::connect(&socket, "empty")?, Client::connect(&socket, "empty")?];
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..effort.pairs {
        for (client, seconds) in clients.iter_mut().zip(&mut seconds) {
            seconds.push(trim_all(client)?);
        }
    }
    for (number, seconds) in (1..).zip(&seconds) {
        let measure = format!("discard of 16 TiB unallocated, NBD, connection {number} of two shards, s");
        let detail = format!("{} requests", EMPTY_BYTES.div_ceil(TRIM_BYTES));
        found(Measurement::of_one(measure, Target::AtMost(1.0), seconds, detail));
    }
    let file = daemon.join("empty.file");
    let added = daemon.cli(&["export", "add", "tank/empty", "--fuse", &file, "--name", "file"]);
    added.context("files need root, /dev/fuse, and io_uring")?;
    let punched = (0..effort.pairs).map(|_| punch_all(&file)).collect::<anyhow::Result<Vec<f64>>>();
    daemon.cli(&["export", "remove", "file"])?;
    let detail = "fallocate --punch-hole".to_owned();
    found(Measurement::of_one("discard of 16 TiB unallocated, file (FUSE), s", Target::AtMost(1.0), &punched?, detail));
    Ok(())
}

fn trim_all(client: &mut Client) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let mut in_flight = 0;
    for offset in (0..EMPTY_BYTES).step_by(TRIM_BYTES as usize) {
        if in_flight == TRIMS {
            client.receive()?;
            in_flight -= 1;
        }
        client.send(CMD_TRIM, offset, offset, TRIM_BYTES.min(EMPTY_BYTES - offset) as u32)?;
        in_flight += 1;
    }
    for _ in 0..in_flight {
        client.receive()?;
    }
    Ok(begun.elapsed().as_secs_f64())
}

fn punch_all(file: &str) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let mut fallocate = Command::new("fallocate");
    fallocate.args(["--punch-hole", "--offset", "0", "--length", &EMPTY_BYTES.to_string(), file]);
    let out = fallocate.stdin(Stdio::null()).output().context("fallocate")?;
    if !out.status.success() {
        bail!("fallocate: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(begun.elapsed().as_secs_f64())
}
