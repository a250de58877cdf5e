//! One client against the others: how long a reader waits beside clients that ask for much and take nothing. And how long the discard of a
//! range takes that holds nothing.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::child::{CLIENT_CORE, bench, time};
use super::daemons::Daemon;
use super::{Effort, Row, Target};
use crate::statistics::median;

/// A client that asks for this many bytes at a time, so many times.
const READ_BYTES: u32 = 2 << 20;
const READS: u64 = 32;
/// Longest range of one TRIM: lengths have 32 bits.
const TRIM_BYTES: u64 = (1 << 32) - (1 << 20);
/// Requests under way on one connection.
const TRIMS: usize = 64;
const EMPTY_BYTES: u64 = 16 << 40;

const CMD_READ: u16 = 0;
const CMD_TRIM: u16 = 4;

/// A client that speaks as much of NBD as it needs: see the protocol's "newstyle negotiation", with `NBD_OPT_EXPORT_NAME`.
struct Client(UnixStream);

impl Client {
    fn connect(socket: &str, export: &str) -> anyhow::Result<Client> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        // Fixed newstyle, no zeros after the answer; then the option's magic, its number, its length.
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT");
        hello.extend(1u32.to_be_bytes());
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend(export.as_bytes());
        stream.write_all(&hello)?;
        let mut answer = [0; 10];
        stream.read_exact(&mut answer).with_context(|| format!("the server's answer about {export}"))?;
        Ok(Client(stream))
    }

    fn ask(&mut self, command: u16, cookie: u64, offset: u64, len: u32) -> anyhow::Result<()> {
        let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
        request.extend(0u16.to_be_bytes());
        request.extend(command.to_be_bytes());
        request.extend(cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(len.to_be_bytes());
        Ok(self.0.write_all(&request)?)
    }

    /// The answer to a request without data.
    fn answered(&mut self) -> anyhow::Result<()> {
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply)?;
        let error = u32::from_be_bytes(reply[4..8].try_into().expect("four bytes"));
        if error == 0 { Ok(()) } else { bail!("the server answered with error {error}") }
    }
}

/// All rows.
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
    stuck(effort, found)?;
    nothing(effort, found)
}

/// The 99th percentile of a reader at depth 1 beside clients that ask for large reads of another export and take none, on one shard.
fn stuck(effort: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
    let daemon = Daemon::start()?;
    for name in ["calm", "greedy"] {
        daemon.cli(&["array", "create", name, "--level", "concat", "mem:256M"])?;
    }
    let (calm, greedy) = (daemon.export("calm")?, daemon.export("greedy")?);
    // The first touch of memory is not what is measured.
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
                    client.ask(CMD_READ, read, 0, READ_BYTES)?;
                }
                all.push(client);
            }
            beside.push(p99()?);
        }
        let detail = format!("{:.1} against {:.1} µs", median(&beside) / 1e3, median(&alone) / 1e3);
        let measure = format!("p99 of a reader at depth 1 beside {clients} that take nothing / alone");
        found(Row::of_pairs(measure, Target::AtMost(3.0), &beside, &alone, detail));
    }
    Ok(())
}

/// Seconds that it takes to discard 16 TiB of a volume that was never written.
fn nothing(effort: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
    let daemon = Daemon::start_anywhere(2, None)?;
    let disk = daemon.join("disk.img");
    std::fs::File::create(&disk)?.set_len(4 << 30)?;
    daemon.cli(&["pool", "create", "tank", &disk])?;
    daemon.cli(&["volume", "create", "tank/empty", "16T"])?;
    let socket = daemon.join("empty.nbd");
    daemon.cli(&["export", "add", "tank/empty", "--nbd", &format!("unix:{socket}"), "--name", "empty"])?;
    // One after the other they come to both shards, of which one is the pool's home.
    let mut clients = [Client::connect(&socket, "empty")?, Client::connect(&socket, "empty")?];
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..effort.pairs {
        for (client, seconds) in clients.iter_mut().zip(&mut seconds) {
            seconds.push(trim_all(client)?);
        }
    }
    for (number, seconds) in (1..).zip(&seconds) {
        let measure = format!("discard of 16 TiB of nothing, NBD, connection {number} of two shards, s");
        let detail = format!("{} requests", EMPTY_BYTES.div_ceil(TRIM_BYTES));
        found(Row::of_one(measure, Target::AtMost(1.0), seconds, detail));
    }
    let file = daemon.join("empty.file");
    let added = daemon.cli(&["export", "add", "tank/empty", "--fuse", &file, "--name", "file"]);
    added.context("files need root, /dev/fuse, and io_uring")?;
    let punched = (0..effort.pairs).map(|_| punch_all(&file)).collect::<anyhow::Result<Vec<f64>>>();
    daemon.cli(&["export", "remove", "file"])?;
    let detail = "fallocate --punch-hole".to_owned();
    found(Row::of_one("discard of 16 TiB of nothing, file (FUSE), s", Target::AtMost(1.0), &punched?, detail));
    Ok(())
}

fn trim_all(client: &mut Client) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let mut out = 0;
    for offset in (0..EMPTY_BYTES).step_by(TRIM_BYTES as usize) {
        if out == TRIMS {
            client.answered()?;
            out -= 1;
        }
        client.ask(CMD_TRIM, offset, offset, TRIM_BYTES.min(EMPTY_BYTES - offset) as u32)?;
        out += 1;
    }
    for _ in 0..out {
        client.answered()?;
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
