//! Targets that are NBD exports: one connection per job, many requests in flight, few system calls. The client is lean, so that the server
//! dominates the figures. Simple replies are negotiated: a server cannot reply to a read with a hole.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use braid_api::{ErrorDetail, Kind};
use braid_nbd::client::pipeline::SLOTS_MAX;
use braid_nbd::client::{Client, ClientConfig, ClientError, Endpoint, Replies};

use super::cpu;
use super::frontend::{MISMATCHES_KEPT, Pass};
use super::in_process::share_out;
use super::interrupt;
use super::latency::Latencies;
use super::ledger::Ledger;
use super::live::LiveCell;
use super::pattern::{Order, Pattern};
use super::plan::{Plan, Point};
use super::schedule::Schedule;
use super::slice::Slice;
use super::verify::{self, Mismatch};

/// Most bytes in flight on one connection: the same limit as for a shard.
const IN_FLIGHT_BYTES_MAX: u64 = 1 << 30;
/// How often a block is drawn again because an I/O is in flight on it.
const DRAWS_MAX: usize = 64;

/// Connects to an export, and sends no request.
///
/// # Errors
/// The server cannot be reached, or refuses the export.
pub fn connect(uri: &str) -> anyhow::Result<Client> {
    client(uri, &ClientConfig { structured: false, ..ClientConfig::default() })
}

fn client(uri: &str, config: &ClientConfig) -> anyhow::Result<Client> {
    let wrong = |error: ClientError| {
        let kind = match &error {
            ClientError::Address(..) => Kind::InvalidArgument,
            ClientError::Refused { .. } => Kind::NotFound,
            ClientError::Socket(_) => Kind::Unreachable,
            ClientError::Tls(_) => Kind::PermissionDenied,
            _ => Kind::Internal,
        };
        let detail = ErrorDetail::new(kind, format!("{uri}: {error}"));
        match error {
            ClientError::Tls(_) => detail.remedy(
                "name the folder with the authority's certificate, for example: nbds+unix:///fast?socket=PATH&tls-certificates=FOLDER",
            ),
            _ => detail,
        }
    };
    let endpoint: Endpoint = uri.parse().map_err(wrong)?;
    let tls = endpoint.tls.as_ref().map(braid_tls::nbd_client).transpose()?;
    Ok(Client::connect_with(&endpoint, *config, tls).map_err(wrong)?)
}

/// An export, with a connection for each job of the plan.
pub struct Remote {
    connections: Vec<Connection>,
    size_bytes: u64,
    live: Vec<Arc<LiveCell>>,
    run: Option<u64>,
}

/// A connection, and the state of its job.
struct Connection {
    client: Client,
    state: JobState,
}

/// The counters and the state of one job.
struct JobState {
    epoch: u32,
    pattern: Pattern,
    ledger: Option<Ledger>,
    run: u64,
    payload: Arc<[u8]>,
    /// When the request of each slot was due or began, in nanoseconds since the start of the pass.
    begun_ns: Vec<u64>,
    block: Vec<u64>,
    reading: Vec<bool>,
    /// When verifying, the data of the read of each slot, which arrives in parts.
    data: Vec<Vec<u8>>,
    /// The start of the pass.
    clock: Instant,
    now_ns: u64,
    /// Whether `now_ns` was read before the last wait.
    stale: bool,
    in_time: bool,
    latency: Latencies,
    latency_sum: u64,
    /// I/Os completed in time.
    ios: u64,
    errors: u64,
    first_error: Option<u32>,
    behind: u64,
    elapsed_ns: u64,
    verified_bytes: u64,
    mismatches: Vec<Mismatch>,
    mismatch_count: u64,
}

impl Replies for JobState {
    fn data(&mut self, slot: u16, at: u32, data: &[u8]) {
        if self.ledger.is_some() {
            self.data[usize::from(slot)][at as usize..][..data.len()].copy_from_slice(data);
        }
    }

    fn done(&mut self, slot: u16, result: Result<(), u32>) {
        if self.stale {
            // Read once for all replies of a turn.
            self.now_ns = self.clock.elapsed().as_nanos() as u64;
            self.stale = false;
        }
        let slot = usize::from(slot);
        let (read, latency_ns) = (self.reading[slot], self.now_ns.saturating_sub(self.begun_ns[slot]));
        self.latency.side(read).saturating_record(latency_ns);
        self.latency_sum += latency_ns;
        self.ios += u64::from(self.in_time);
        if let Err(errno) = result {
            self.errors += 1;
            self.first_error.get_or_insert(errno);
        }
        if self.ledger.is_some() {
            self.settle(slot, read, result.is_ok());
        }
    }
}

impl JobState {
    #[cold]
    fn settle(&mut self, slot: usize, read: bool, ok: bool) {
        let Some(ledger) = &mut self.ledger else { return };
        let block = self.block[slot];
        if !ok && !read {
            ledger.end_failed_write(block);
            return;
        }
        let generation = ledger.end(block);
        if !ok || !read || generation == 0 {
            return;
        }
        let data = &self.data[slot];
        if let Some(mismatch) = verify::check(data, self.pattern.offset(block), verify::seed_of(self.run, generation)) {
            self.mismatch_count += 1;
            if self.mismatches.len() < MISMATCHES_KEPT {
                self.mismatches.push(mismatch);
            }
        }
        self.verified_bytes += data.len() as u64;
    }

    /// Resets the counters of the last pass.
    fn reset(&mut self) {
        self.latency.reads.reset();
        self.latency.writes.reset();
        (self.latency_sum, self.ios, self.errors, self.first_error) = (0, 0, 0, None);
        (self.behind, self.elapsed_ns, self.verified_bytes, self.mismatch_count) = (0, 0, 0, 0);
        self.mismatches.clear();
        self.in_time = true;
    }
}

impl Remote {
    /// Opens a connection for each job of the plan.
    ///
    /// # Errors
    /// The server cannot be reached or refuses the export, or the export or the connection is too small for a point.
    pub fn connect(plan: &Plan, uri: &str) -> anyhow::Result<Remote> {
        let depth = plan.points.iter().map(|point| point.depth).max().unwrap_or(1) as usize;
        if depth > SLOTS_MAX {
            let message = format!("{uri}: depth {depth} is more than the {SLOTS_MAX} requests of one connection");
            let remedy = "take a smaller --depth and more --jobs, each with a connection of its own";
            return Err(ErrorDetail::new(Kind::InvalidArgument, message).remedy(remedy).into());
        }
        let most = plan.points.iter().map(|point| point.block_bytes * u64::from(point.depth)).max().unwrap_or(0);
        if most > IN_FLIGHT_BYTES_MAX {
            let message = format!("{uri}: {} MiB in flight on one connection are more than 1024 MiB", most >> 20);
            let remedy = "take a smaller --depth, or smaller blocks";
            return Err(ErrorDetail::new(Kind::InvalidArgument, message).remedy(remedy).into());
        }
        let config = ClientConfig { depth, structured: false, ..ClientConfig::default() };
        let mut first = client(uri, &config)?;
        let size_bytes = first.size_bytes();
        if plan.writes() && first.terms().flags & braid_nbd::codec::transmission_flags::READ_ONLY != 0 {
            let message = format!("{uri} is read-only, and this would write");
            let remedy = "measure only reads (--op read, without --verify), or an export that can be written";
            return Err(ErrorDetail::new(Kind::PermissionDenied, message).with("export", uri).remedy(remedy).into());
        }
        if plan.writes() && !plan.force {
            refuse_foreign(uri, &mut first)?;
        }
        let mut clients = vec![first];
        for _ in 1..plan.jobs_max() {
            clients.push(client(uri, &config)?);
        }
        for point in &plan.points {
            parts(plan, size_bytes, point)?;
        }
        let live: Vec<Arc<LiveCell>> = clients.iter().map(|_| Arc::default()).collect();
        let connections = clients.into_iter().map(|client| Connection { client, state: initial_state() }).collect();
        let run = plan.verify.then(verify::new_run);
        Ok(Remote { connections, size_bytes, live, run })
    }

    /// Returns the size of the export in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the progress of each job.
    pub fn live(&self) -> &[Arc<LiveCell>] {
        &self.live
    }

    /// Runs one pass of a point. `epoch` is the number of the point.
    ///
    /// # Errors
    /// A connection breaks. Errors in replies are counted in the result instead.
    pub fn pass(&mut self, plan: &Plan, epoch: u32, point: &Point, pass: Pass) -> anyhow::Result<Slice> {
        let parts = parts(plan, self.size_bytes, point)?;
        let jobs = parts.len() as u64;
        for (connection, part) in self.connections.iter_mut().zip(&parts) {
            let slots = connection.client.free() + connection.client.in_flight();
            connection.state.switch_to(epoch, point, *part, self.run, slots);
        }
        let (begun, cpu_before) = (Instant::now(), cpu::own());
        std::thread::scope(|scope| -> anyhow::Result<()> {
            let threads: Vec<_> = self.connections[..parts.len()]
                .iter_mut()
                .zip(&self.live)
                .enumerate()
                .map(|(job, (connection, live))| {
                    let pass = share_out(pass, job as u64, jobs);
                    let schedule = matches!(pass, Pass::Run { .. }).then_some(point.rate_iops).flatten();
                    let schedule = schedule.map(|rate| Schedule::new(0, rate, job as u64, jobs));
                    scope.spawn(move || connection.run_pass(point, pass, schedule, live, begun))
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a load thread does not panic"))
        })?;
        let mut slice = Slice::new();
        slice.cpu_ns = (cpu::own() - cpu_before).as_nanos() as u64;
        for Connection { state, .. } in &self.connections[..parts.len()] {
            slice.ios += state.ios;
            slice.elapsed_ns = slice.elapsed_ns.max(state.elapsed_ns);
            slice.errors += state.errors;
            slice.first_error(state.first_error.map(|errno| format!("the server answered with error {errno}")));
            slice.latency.add(&state.latency);
            slice.behind += state.behind;
            slice.verified_bytes += state.verified_bytes;
            slice.mismatch_count += state.mismatch_count;
            slice.wrong(&state.mismatches.iter().map(ToString::to_string).collect::<Vec<_>>());
        }
        Ok(slice)
    }
}

/// Refuses an export that carries foreign data, as a disk is refused.
fn refuse_foreign(uri: &str, client: &mut Client) -> anyhow::Result<()> {
    struct Bytes(Vec<u8>, Result<(), u32>);
    impl Replies for Bytes {
        fn data(&mut self, _: u16, at: u32, data: &[u8]) {
            self.0[at as usize..][..data.len()].copy_from_slice(data);
        }
        fn done(&mut self, _: u16, result: Result<(), u32>) {
            self.1 = result;
        }
    }
    let size_bytes = client.size_bytes();
    let found = braid_format::foreign::identify(size_bytes, |offset, len| -> anyhow::Result<Vec<u8>> {
        // Whole blocks of 4 KiB, and nothing beyond the end.
        let end = (offset + len as u64).next_multiple_of(4096).min(size_bytes);
        let from = offset / 4096 * 4096;
        if end <= offset {
            return Ok(Vec::new());
        }
        let mut bytes = Bytes(vec![0; (end - from) as usize], Ok(()));
        client.queue_read(from, (end - from) as u32).context("a slot was free")?;
        while client.in_flight() > 0 {
            client.exchange(true, &mut bytes)?;
        }
        if let Err(errno) = bytes.1 {
            anyhow::bail!("{uri}: reading byte {from}: the server answered with error {errno}");
        }
        let inside = (offset - from) as usize;
        let until = bytes.0.len().min(inside + len);
        Ok(bytes.0[inside..until].to_vec())
    })?;
    let Some(found) = found else { return Ok(()) };
    Err(ErrorDetail::new(Kind::WouldDestroy, format!("the export {uri} carries {found}, which writing would destroy"))
        .with("export", uri)
        .with("found", found)
        .remedy("measure another export, or only read; --force writes over it")
        .into())
}

/// The part of the export that one job uses.
#[derive(Clone, Copy)]
struct JobPart {
    first_byte: u64,
    span_bytes: u64,
    seed: u64,
}

/// Returns the part of each job. Jobs that verify or are sequential use a share of the export each; jobs of random I/Os use all of it.
fn parts(plan: &Plan, size_bytes: u64, point: &Point) -> anyhow::Result<Vec<JobPart>> {
    let (first_byte, span_bytes) = plan.part(size_bytes, point.block_bytes)?;
    let jobs = u64::from(point.jobs);
    let split = jobs > 1 && (plan.verify || point.visit.order == Order::Sequential);
    let share = span_bytes / point.block_bytes / jobs * point.block_bytes;
    if split && share == 0 {
        let message =
            format!("{jobs} jobs are more than the {} blocks that they would share", span_bytes / point.block_bytes);
        let remedy = "take fewer --jobs, smaller blocks or a larger --span";
        return Err(ErrorDetail::new(Kind::InvalidArgument, message).remedy(remedy).into());
    }
    let part = |job: u64| {
        if split {
            JobPart { first_byte: first_byte + job * share, span_bytes: share, seed: job }
        } else {
            JobPart { first_byte, span_bytes, seed: job }
        }
    };
    Ok((0..jobs).map(part).collect())
}

/// Returns the state of a job before its first pass.
fn initial_state() -> JobState {
    let visit = super::pattern::Visit { order: Order::Sequential, theta: 1.0, reads_percent: 100 };
    JobState {
        epoch: u32::MAX,
        pattern: Pattern::new(0, &visit, 0, 4096, 4096),
        ledger: None,
        run: 0,
        payload: Arc::new([]),
        begun_ns: Vec::new(),
        block: Vec::new(),
        reading: Vec::new(),
        data: Vec::new(),
        clock: Instant::now(),
        now_ns: 0,
        stale: true,
        in_time: true,
        latency: Latencies::new(),
        latency_sum: 0,
        ios: 0,
        errors: 0,
        first_error: None,
        behind: 0,
        elapsed_ns: 0,
        verified_bytes: 0,
        mismatches: Vec::new(),
        mismatch_count: 0,
    }
}

impl JobState {
    /// Makes a point the current one, and resets the counters.
    fn switch_to(&mut self, epoch: u32, point: &Point, part: JobPart, run: Option<u64>, slots: usize) {
        self.reset();
        if self.epoch == epoch {
            return;
        }
        self.epoch = epoch;
        self.pattern = Pattern::new(part.seed, &point.visit, part.first_byte, part.span_bytes, point.block_bytes);
        self.ledger = run.map(|_| Ledger::new(self.pattern.blocks()));
        self.run = run.map_or(0, |run| verify::seed_of_load(run, epoch));
        let block = point.block_bytes as usize;
        self.payload = vec![0x5a; block].into();
        (self.begun_ns, self.block, self.reading) = (vec![0; slots], vec![0; slots], vec![false; slots]);
        self.data = if run.is_some() { vec![vec![0; block]; slots] } else { Vec::new() };
    }
}

/// Where a pass takes blocks from.
enum BlockSource {
    Pattern,
    /// Every block, from this one on.
    All(u64),
    /// Every block of known content, from this one on.
    Known(u64),
}

impl JobState {
    /// Draws the next block, and whether it is read. Returns none if there are no more blocks, or none that is free now.
    fn draw(&mut self, source: &mut BlockSource, left: &mut u64) -> Option<(u64, bool)> {
        if *left == 0 {
            return None;
        }
        for _ in 0..DRAWS_MAX {
            let (block, read) = match source {
                BlockSource::Pattern => self.pattern.next(),
                BlockSource::All(next) => {
                    *next += 1;
                    (*next - 1, false)
                }
                BlockSource::Known(next) => {
                    let Some(found) = self.ledger.as_ref().and_then(|ledger| ledger.next_known(*next)) else {
                        *left = 0;
                        return None;
                    };
                    *next = found + 1;
                    (found, true)
                }
            };
            if self.ledger.as_mut().is_none_or(|ledger| ledger.begin(block, read)) {
                *left -= 1;
                return Some((block, read));
            }
        }
        None
    }
}

impl Connection {
    /// Runs one pass: queues as many requests as fit or are due, sends them together, and takes replies as they arrive.
    fn run_pass(
        &mut self,
        point: &Point,
        pass: Pass,
        mut schedule: Option<Schedule>,
        live: &LiveCell,
        begun: Instant,
    ) -> anyhow::Result<()> {
        let Connection { client, state } = self;
        state.clock = begun;
        let (mut source, mut left, time_ns) = match pass {
            Pass::Run { ios, time_ns } => (BlockSource::Pattern, ios, time_ns),
            Pass::Fill => (BlockSource::All(0), state.pattern.blocks(), u64::MAX),
            Pass::ReadBack => (BlockSource::Known(0), u64::MAX, u64::MAX),
        };
        let mut content = vec![0; if state.ledger.is_some() { point.block_bytes as usize } else { 0 }];
        loop {
            let now_ns = begun.elapsed().as_nanos() as u64;
            live.show(state.ios, state.latency_sum);
            // A pass without a reply within its time lasts until the first one, unless a schedule defines its length.
            if now_ns >= time_ns && state.in_time && (state.ios > 0 || schedule.is_some()) {
                left = 0;
                state.end_time(now_ns, time_ns, schedule.as_ref());
            }
            if interrupt::requested() && left > 0 {
                left = 0;
                if state.in_time {
                    state.end_time(now_ns, now_ns, schedule.as_ref());
                }
            }
            while client.in_flight() < point.depth as usize && client.free() > 0 {
                let begun_ns = match &schedule {
                    None => now_ns,
                    Some(schedule) if schedule.due_ns() <= now_ns => schedule.due_ns(),
                    Some(_) => break,
                };
                let Some((block, read)) = state.draw(&mut source, &mut left) else { break };
                let (offset, len) = (state.pattern.offset(block), point.block_bytes as u32);
                let slot = if read {
                    client.queue_read(offset, len)
                } else if let Some(ledger) = &state.ledger {
                    verify::fill(&mut content, offset, verify::seed_of(state.run, ledger.generation(block)));
                    client.queue_write(offset, &content, 0)
                } else {
                    client.queue_write_shared(offset, &state.payload, 0, len, 0)
                };
                let slot = usize::from(slot.context("a slot was free")?);
                (state.begun_ns[slot], state.block[slot], state.reading[slot]) = (begun_ns, block, read);
                if let Some(schedule) = &mut schedule {
                    schedule.advance();
                }
            }
            // The latency of a reply ends when it arrives, not when this turn began.
            state.stale = true;
            let waiting = schedule.as_ref().filter(|_| left > 0 && client.in_flight() < point.depth as usize);
            if let Some(schedule) = waiting {
                client.exchange(false, state)?;
                let now_ns = begun.elapsed().as_nanos() as u64;
                let until = schedule.due_ns().min(time_ns).saturating_sub(now_ns);
                client.wait_within(Duration::from_nanos(until))?;
            } else if client.in_flight() > 0 {
                client.exchange(true, state)?;
            } else {
                break;
            }
        }
        if state.in_time {
            state.end_time(begun.elapsed().as_nanos() as u64, time_ns, schedule.as_ref());
        }
        Ok(())
    }
}

impl JobState {
    /// Ends the measured time, because the time is over or all requests are done: later replies are not part of the rate.
    fn end_time(&mut self, now_ns: u64, time_ns: u64, schedule: Option<&Schedule>) {
        self.in_time = false;
        // With a schedule, the pass is as long as its time limit, however few I/Os it had.
        (self.elapsed_ns, self.behind) = match schedule {
            Some(schedule) if now_ns >= time_ns => (time_ns, schedule.behind(time_ns)),
            _ => (now_ns, 0),
        };
    }
}
