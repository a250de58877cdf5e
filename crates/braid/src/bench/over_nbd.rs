//! A run as the client of an NBD export: a connection for each thread, many requests in flight, few system calls. Lean,
//! so that what is seen is the server. Replies are simple ones: a server cannot answer a read with a hole.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use braid_api::{ErrorDetail, Kind};
use braid_nbd::client::{Client, ClientConfig, ClientError, Endpoint, Replies};
use hdrhistogram::Histogram;

use super::latency::latency_histogram;
use super::pattern::Pattern;
use super::report::{Counts, Report};
use super::verify::{self, Mismatch};
use super::{BenchArgs, cpu};

/// Whether a disk's name is that of an NBD export.
pub fn is_uri(name: &str) -> bool {
    ["nbd://", "nbd+unix://"].iter().any(|scheme| name.starts_with(scheme))
}

/// Connects to an export and stays silent.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub fn connect(uri: &str) -> anyhow::Result<Client> {
    client(uri, &ClientConfig { structured: false, ..ClientConfig::default() })
}

fn client(uri: &str, config: &ClientConfig) -> anyhow::Result<Client> {
    let wrong = |error: ClientError| {
        let kind = match &error {
            ClientError::Address(..) => Kind::InvalidArgument,
            ClientError::Refused { .. } => Kind::NotFound,
            ClientError::Socket(_) => Kind::Unreachable,
            _ => Kind::Internal,
        };
        ErrorDetail::new(kind, format!("{uri}: {error}"))
    };
    let endpoint: Endpoint = uri.parse().map_err(wrong)?;
    Ok(Client::connect(&endpoint, *config).map_err(wrong)?)
}

/// What one connection counts.
struct Connection {
    pattern: Pattern,
    verify: bool,
    seed: u64,
    /// Time at which the requests of a batch were sent, for each slot, in nanoseconds since the start.
    sent_ns: Vec<u64>,
    block: Vec<u64>,
    now_ns: u64,
    latency: Histogram<u64>,
    ios: u64,
    errors: u64,
    first_error: Option<u32>,
    verified_bytes: u64,
    mismatches: Vec<Mismatch>,
    /// Data of a read that came in parts, when verifying: one place for each slot.
    data: Vec<Vec<u8>>,
    reading: Vec<bool>,
}

impl Replies for Connection {
    fn data(&mut self, slot: u16, at: u32, data: &[u8]) {
        if self.verify {
            self.data[usize::from(slot)][at as usize..][..data.len()].copy_from_slice(data);
        }
    }

    fn done(&mut self, slot: u16, result: Result<(), u32>) {
        let slot = usize::from(slot);
        self.latency.saturating_record(self.now_ns.saturating_sub(self.sent_ns[slot]));
        self.ios += 1;
        match result {
            Err(errno) => {
                self.errors += 1;
                self.first_error.get_or_insert(errno);
            }
            Ok(()) if self.verify && self.reading[slot] => {
                let data = &self.data[slot];
                self.mismatches.extend(verify::check(data, self.pattern.offset(self.block[slot]), self.seed));
                self.verified_bytes += data.len() as u64;
            }
            Ok(()) => {}
        }
    }
}

/// How long a pass goes on.
#[derive(Clone, Copy)]
struct Stop {
    ios: u64,
    time_ns: u64,
}

/// Measures one export.
///
/// # Errors
/// It cannot be reached, the connection breaks, or several are named.
pub fn run(args: &BenchArgs) -> anyhow::Result<Report> {
    let [uri] = &args.disks[..] else {
        return Err(ErrorDetail::new(Kind::InvalidArgument, "one NBD export at a time can be measured")
            .remedy("for example: braid bench 'nbd+unix:///data?socket=/run/data.sock'")
            .into());
    };
    let depth = (args.depth as usize).min(braid_nbd::client::pipeline::SLOTS_MAX);
    let config = ClientConfig { depth, structured: false, ..ClientConfig::default() };
    let mut clients = (0..args.shards).map(|_| client(uri, &config)).collect::<anyhow::Result<Vec<_>>>()?;
    let (first_byte, span_bytes) = args.part(clients[0].size_bytes())?;
    let seed = if args.verify { u64::from(std::process::id()) << 32 | 0x5eed } else { 0x5eed };

    let (begun, cpu_before) = (Instant::now(), cpu::own());
    let connections = std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter_mut()
            .enumerate()
            .map(|(shard, client)| {
                let own = Part::of(args, shard as u64, first_byte, span_bytes);
                scope.spawn(move || drive(client, args, own, seed, depth))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a load thread does not panic")).collect::<Vec<_>>()
    });
    let elapsed_ns = begun.elapsed().as_nanos() as u64;
    let cpu_ns = (cpu::own() - cpu_before).as_nanos() as u64;

    let mut counts = Counts { ios: 0, errors: 0, first_error: None, latency: latency_histogram(), elapsed_ns, cpu_ns };
    let (mut verified, mut mismatches) = (0, Vec::new());
    for connection in connections {
        let connection = connection?;
        counts.ios += connection.ios;
        counts.errors += connection.errors;
        counts.latency.add(&connection.latency).context("all histograms have the same bounds")?;
        if counts.first_error.is_none() {
            counts.first_error = connection.first_error.map(|errno| format!("the server answered with error {errno}"));
        }
        verified += connection.verified_bytes;
        mismatches.extend(connection.mismatches);
    }
    let mut report = Report::new(uri.clone(), "nbd".to_owned(), args, &counts);
    report.verified_bytes = verified;
    report.mismatch_count = mismatches.len() as u64;
    report.mismatches = mismatches.iter().take(8).map(ToString::to_string).collect();
    Ok(report)
}

/// The part of the export that one connection uses.
#[derive(Clone, Copy)]
struct Part {
    first_byte: u64,
    span_bytes: u64,
    seed: u64,
}

impl Part {
    /// Verified or sequential blocks belong to one connection each; random ones to all.
    fn of(args: &BenchArgs, shard: u64, first_byte: u64, span_bytes: u64) -> Part {
        let split = args.verify || args.pattern == super::pattern::Order::Sequential;
        let share = (span_bytes / args.block / u64::from(args.shards)).max(1) * args.block;
        if split && args.shards > 1 {
            let first_byte = (first_byte + shard * share).min(first_byte + span_bytes - share);
            Part { first_byte, span_bytes: share, seed: shard }
        } else {
            Part { first_byte, span_bytes, seed: shard }
        }
    }
}

/// All passes over one connection's part.
fn drive(client: &mut Client, args: &BenchArgs, part: Part, seed: u64, depth: usize) -> anyhow::Result<Connection> {
    let order = args.pattern;
    let pattern = |order, reads| Pattern::new(part.seed, order, reads, part.first_byte, part.span_bytes, args.block);
    let mut connection = Connection {
        pattern: pattern(order, args.reads_percent()),
        verify: args.verify,
        seed,
        sent_ns: vec![0; depth],
        block: vec![0; depth],
        now_ns: 0,
        latency: latency_histogram(),
        ios: 0,
        errors: 0,
        first_error: None,
        verified_bytes: 0,
        mismatches: Vec::new(),
        data: vec![vec![0; if args.verify { args.block as usize } else { 0 }]; depth],
        reading: vec![false; depth],
    };
    let once = Stop { ios: connection.pattern.blocks(), time_ns: u64::MAX };
    let sequential = super::pattern::Order::Sequential;
    if args.verify {
        // All of it is written first, so that everything read later ought to be there.
        connection.pattern = pattern(sequential, 0);
        pass(client, &mut connection, args, once)?;
        connection.pattern = pattern(order, args.reads_percent());
        connection.latency.reset();
        connection.ios = 0;
    }
    let time_ns = if args.count.is_some() { u64::MAX } else { args.time.as_nanos() as u64 };
    let ios = args.count.map_or(u64::MAX, |count| count.div_ceil(u64::from(args.shards)));
    pass(client, &mut connection, args, Stop { ios, time_ns })?;
    if args.verify && args.reads_percent() < 100 {
        let (ios, latency) = (connection.ios, connection.latency.clone());
        connection.pattern = pattern(sequential, 100);
        pass(client, &mut connection, args, once)?;
        (connection.ios, connection.latency) = (ios, latency);
    }
    Ok(connection)
}

/// One pass: as many requests as fit are queued, sent together, and the replies taken as they come.
fn pass(client: &mut Client, connection: &mut Connection, args: &BenchArgs, stop: Stop) -> anyhow::Result<()> {
    let begun = Instant::now();
    let payload: Arc<[u8]> = vec![0x5a; args.block as usize].into();
    let (mut left, mut content) = (stop.ios, vec![0; args.block as usize]);
    loop {
        connection.now_ns = begun.elapsed().as_nanos() as u64;
        if connection.now_ns >= stop.time_ns {
            left = 0;
        }
        while left > 0 && client.free() > 0 {
            let (block, read) = connection.pattern.next();
            let (offset, len) = (connection.pattern.offset(block), args.block as u32);
            let slot = if read {
                client.queue_read(offset, len)
            } else if connection.verify {
                verify::fill(&mut content, offset, connection.seed);
                client.queue_write(offset, &content, 0)
            } else {
                client.queue_write_shared(offset, &payload, 0, len, 0)
            };
            let slot = usize::from(slot.context("a slot was free")?);
            connection.sent_ns[slot] = connection.now_ns;
            connection.block[slot] = block;
            connection.reading[slot] = read;
            left -= 1;
        }
        if client.in_flight() == 0 {
            return Ok(());
        }
        // Nothing arrives before this turn of the loop has looked at the clock again.
        client.exchange(true, connection)?;
    }
}
