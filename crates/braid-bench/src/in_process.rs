//! Targets of disks, measured on a ring in this process.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::bail;
use braid_api::{ErrorDetail, Kind};
use braid_engine::limits::SLOTS_MAX;
use braid_engine::{DeviceId, ShardId};
use braid_ring::{DriverKind, Frontend, Ring, RingConfig, RingHandle};

use super::cpu;
use super::device::{Disks, Members, Shape};
use super::frontend::{Load, LoadFrontend, Pass, Phase, PhaseDone, Stop, in_words};
use super::interrupt;
use super::live::LiveCell;
use super::pattern::Order;
use super::plan::{Plan, Point};
use super::slice::Slice;
use super::target::Target;
use super::variant::MakeDevice;
use super::verify;

/// Most memory for data in flight on one shard: the limit of a ring.
const ARENA_BYTES_MAX: usize = 1 << 30;
/// Interval at which a run checks whether its end was requested.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The seed of the order in which blocks are visited. It is constant, so that runs are repeatable.
const SEED: u64 = 0x5eed;

/// All targets of disks of a plan.
pub struct Local {
    ring: Option<Ring>,
    handle: RingHandle,
    done: Receiver<PhaseDone>,
    shards: u16,
    driver: String,
    /// The devices of each target, by its number in the plan.
    devices: Vec<Vec<Device>>,
    live: Vec<Arc<LiveCell>>,
    /// The number of the run in the blocks' content, when verifying.
    run: Option<u64>,
}

#[derive(Clone, Copy)]
struct Device {
    id: DeviceId,
    size_bytes: u64,
}

/// The number of a device that the variant puts on a target's device: above all numbers of targets' devices.
const VARIANT_DEVICE: DeviceId = DeviceId(2048);

/// Puts the variant's device on a target's device, and returns it: it is measured instead.
fn on_top(handle: &RingHandle, below: Device, keeps_data: bool, make: MakeDevice) -> anyhow::Result<Device> {
    if below.id.0 > 0 {
        return Err(wrong("a volume on the target takes one target of one device".to_owned(), "measure one at a time"));
    }
    let (layout, size_bytes) = make(handle, below.id, below.size_bytes, keeps_data)?;
    handle.publish(VARIANT_DEVICE, Some(layout), Box::new(|| {}));
    Ok(Device { id: VARIANT_DEVICE, size_bytes })
}

fn wrong(message: String, remedy: &str) -> anyhow::Error {
    ErrorDetail::new(Kind::InvalidArgument, message).remedy(remedy).into()
}

impl Local {
    /// Opens the disks and starts the ring. Returns none if no target of the plan is of disks.
    ///
    /// # Errors
    /// A disk cannot be used, sizes do not fit, or more I/Os would be in flight than a ring can hold.
    pub fn start(plan: &Plan) -> anyhow::Result<Option<Local>> {
        let mut disks = Disks::default();
        let mut opened: Vec<Option<(Members, Shape)>> = Vec::new();
        for named in &plan.targets {
            let Target::Local(combination) = &named.target else {
                opened.push(None);
                continue;
            };
            let members = disks.open(combination, plan.writes() || plan.variant.device.is_some(), plan.force)?;
            let shape = Shape::plan(combination.how, &members, plan.variant.journal_last)?;
            check_blocks(plan, &members)?;
            opened.push(Some((members, shape)));
        }
        if opened.iter().all(Option::is_none) {
            return Ok(None);
        }
        if plan.verify {
            refuse_shared(plan, &opened)?;
        }

        let jobs = plan.jobs_max();
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u16);
        let shards = plan.shards.unwrap_or_else(|| jobs.min(cores));
        let (sender, done) = sync_channel(usize::from(jobs));
        let live: Vec<Arc<LiveCell>> = (0..jobs).map(|_| Arc::default()).collect();
        let config = RingConfig {
            shards,
            driver: plan.driver.as_deref().map(str::parse::<DriverKind>).transpose().map_err(anyhow::Error::msg)?,
            arena_bytes: arena_bytes(plan, jobs.div_ceil(shards))?,
            ..RingConfig::default()
        };
        let ring = Ring::start(&config, |shard: ShardId| {
            let own = (0..jobs).filter(|job| job % shards == shard.0);
            own.map(|job| -> Box<dyn Frontend> {
                match plan.variant.frontend {
                    Some(make) => make(sender.clone()),
                    None => Box::new(LoadFrontend::new(sender.clone(), Arc::clone(&live[usize::from(job)]))),
                }
            })
            .collect()
        })?;
        let handle = ring.handle();
        let mut devices = Vec::new();
        let mut next = 0;
        for one in opened {
            let Some((members, shape)) = one else {
                devices.push(Vec::new());
                continue;
            };
            let sizes = shape.sizes_bytes(&members);
            let layouts = shape.build(&handle, &mut disks, &members, plan.variant.missing)?;
            devices.push(
                sizes
                    .into_iter()
                    .zip(layouts)
                    .map(|(size_bytes, layout)| {
                        let id = DeviceId(next);
                        next += 1;
                        handle.publish(id, Some(layout), Box::new(|| {}));
                        let device = Device { id, size_bytes };
                        match plan.variant.device {
                            None => Ok(device),
                            Some(make) => on_top(&handle, device, members.keeps_data(), make),
                        }
                    })
                    .collect::<anyhow::Result<Vec<Device>>>()?,
            );
        }
        let driver = handle.driver(ShardId(0)).kind.to_string();
        let run = plan.verify.then(verify::new_run);
        let local = Local { ring: Some(ring), handle, done, shards, driver, devices, live, run };
        local.check_parts(plan)?;
        Ok(Some(local))
    }

    /// Returns the name of the I/O driver.
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// Returns the sum of the sizes of a target's devices, in bytes.
    pub fn size_bytes(&self, target: usize) -> u64 {
        self.devices[target].iter().map(|device| device.size_bytes).sum()
    }

    /// Returns the progress of each job.
    pub fn live(&self) -> &[Arc<LiveCell>] {
        &self.live
    }

    /// Checks that every point fits on every device.
    fn check_parts(&self, plan: &Plan) -> anyhow::Result<()> {
        for target in 0..self.devices.len() {
            for point in &plan.points {
                if !self.devices[target].is_empty() {
                    self.loads(plan, target, 0, point)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the load of each job. Jobs that draw random blocks use all of a device. Jobs that are sequential or verify use a share of it each, so
    /// that a block is written by one job only.
    fn loads(&self, plan: &Plan, target: usize, epoch: u32, point: &Point) -> anyhow::Result<Vec<Load>> {
        let devices = &self.devices[target];
        let jobs = u64::from(point.jobs);
        (0..jobs)
            .map(|job| {
                let device = devices[job as usize % devices.len()];
                // The number of jobs on this device, and the number of this job among them.
                let (sharing, own) = (jobs / devices.len() as u64, job / devices.len() as u64);
                let (first, span) = plan.part(device.size_bytes, point.block_bytes)?;
                let split = sharing > 1 && (plan.verify || point.visit.order == Order::Sequential);
                let share = if split { span / point.block_bytes / sharing * point.block_bytes } else { span };
                if share == 0 {
                    let blocks = span / point.block_bytes;
                    return Err(wrong(
                        format!("{sharing} jobs are more than the {blocks} blocks that they would share"),
                        "take fewer --jobs, smaller blocks or a larger --span",
                    ));
                }
                Ok(Load {
                    epoch,
                    slot: target,
                    device: device.id,
                    depth: point.depth,
                    block_bytes: point.block_bytes,
                    buffers: buffers(plan, point),
                    first_byte: if split { first + own * share } else { first },
                    span_bytes: share,
                    visit: point.visit,
                    seed: SEED.wrapping_add(job),
                    verify: self.run.map(|run| verify::seed_of_load(run, epoch)),
                    rate: point.rate_iops.map(|rate| (rate, job, jobs)),
                    only: None,
                    flush_every: None,
                })
            })
            .collect()
    }

    /// Runs one pass of a point on a target. `epoch` is the number of the point.
    ///
    /// # Errors
    /// A shard has ended. I/O errors are counted in the result instead.
    pub fn pass(&self, plan: &Plan, target: usize, epoch: u32, point: &Point, pass: Pass) -> anyhow::Result<Slice> {
        let loads = self.loads(plan, target, epoch, point)?;
        let jobs = loads.len();
        let (wall, cpu_before) = (Instant::now(), cpu::own());
        for (job, load) in loads.into_iter().enumerate() {
            let job = job as u16;
            let pass = share_out(pass, u64::from(job), jobs as u64);
            let phase = Phase { load: Arc::new(load), pass };
            self.handle.post(ShardId(job % self.shards), usize::from(job / self.shards), Box::new(phase));
        }
        let mut stopped = false;
        let done = (0..jobs).map(|_| self.next_done(jobs, &mut stopped)).collect::<anyhow::Result<Vec<PhaseDone>>>()?;
        let mut slice = Slice::new();
        slice.cpu_ns = (cpu::own() - cpu_before).as_nanos() as u64;
        let begun = done.iter().map(|done| done.begun_ns).min().unwrap_or(0);
        let ended = done.iter().map(|done| done.ended_ns).max().unwrap_or(0);
        // All I/Os may complete within one turn of the loop, which reads its clock once: then the wall time is the upper bound.
        slice.elapsed_ns = match ended - begun {
            0 => wall.elapsed().as_nanos() as u64,
            elapsed_ns => elapsed_ns,
        };
        for done in &done {
            slice.ios += done.ios;
            slice.errors += done.errors;
            slice.first_error(done.first_error.map(in_words));
            slice.latency.add(&done.latency);
            slice.behind += done.behind;
            slice.verified_bytes += done.verified_bytes;
            slice.mismatch_count += done.mismatch_count;
            slice.wrong(&done.mismatches.iter().map(ToString::to_string).collect::<Vec<_>>());
        }
        Ok(slice)
    }

    /// Returns the result of the next job that ends its phase. When the end of the run is requested, stops all jobs once, and sets `stopped`.
    fn next_done(&self, jobs: usize, stopped: &mut bool) -> anyhow::Result<PhaseDone> {
        loop {
            match self.done.recv_timeout(POLL_INTERVAL) {
                Ok(done) => return Ok(done),
                Err(RecvTimeoutError::Disconnected) => bail!("a shard ended in the middle of the run"),
                Err(RecvTimeoutError::Timeout) if interrupt::requested() && !*stopped => {
                    *stopped = true;
                    for job in 0..jobs as u16 {
                        self.handle.post(ShardId(job % self.shards), usize::from(job / self.shards), Box::new(Stop));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if let Some(ring) = self.ring.take() {
            ring.stop();
        }
    }
}

/// Returns the share of a job of a pass. The first jobs take the remainder of a number of I/Os.
pub fn share_out(pass: Pass, job: u64, jobs: u64) -> Pass {
    match pass {
        Pass::Run { ios, time_ns } if ios != u64::MAX => {
            Pass::Run { ios: ios / jobs + u64::from(job < ios % jobs), time_ns }
        }
        other => other,
    }
}

fn check_blocks(plan: &Plan, members: &Members) -> anyhow::Result<()> {
    let unit = u64::from(members.block_bytes());
    match plan.points.iter().find(|point| !point.block_bytes.is_multiple_of(unit)) {
        Some(point) => Err(wrong(
            format!("--block-size {} is not a multiple of the disks' own {unit} bytes", point.block_bytes),
            &format!("for example: --block-size {}", unit.max(4096)),
        )),
        None => Ok(()),
    }
}

/// Refuses targets that share a disk: when verifying, each would find what the other wrote.
fn refuse_shared(plan: &Plan, opened: &[Option<(Members, Shape)>]) -> anyhow::Result<()> {
    for (at, one) in opened.iter().enumerate() {
        for (before, other) in opened[..at].iter().enumerate() {
            if let (Some((one, _)), Some((other, _))) = (one, other)
                && let Some(name) = one.shared_with(other)
            {
                let (first, second) = (&plan.targets[before].label, &plan.targets[at].label);
                return Err(wrong(
                    format!(
                        "{first} and {second} both use the disk {name}, and with --verify each would find what the other wrote"
                    ),
                    "verify one target at a time, or give each disks of its own",
                ));
            }
        }
    }
    Ok(())
}

/// Returns the buffers per I/O in flight, so that the buffers of one job have the size that the plan requires.
fn buffers(plan: &Plan, point: &Point) -> u32 {
    (plan.variant.memory_bytes / (point.block_bytes * u64::from(point.depth))).max(1) as u32
}

/// Returns the size of the arena: room for every I/O in flight on a shard, in the powers of two that the arena allocates.
fn arena_bytes(plan: &Plan, jobs: u16) -> anyhow::Result<usize> {
    let mut most = 0;
    for point in &plan.points {
        let jobs = usize::from(jobs.min(point.jobs));
        let slots = jobs * point.depth as usize;
        if slots > SLOTS_MAX as usize {
            return Err(wrong(
                format!(
                    "{jobs} jobs of depth {} on one shard are more than the {SLOTS_MAX} I/Os that it can have in flight",
                    point.depth
                ),
                "take a smaller --depth, fewer --jobs or more --shards",
            ));
        }
        let each = (point.block_bytes as usize * buffers(plan, point) as usize).next_power_of_two().max(4096);
        most = most.max(each * slots);
    }
    if most > ARENA_BYTES_MAX {
        return Err(wrong(
            format!("{} MiB in flight on one shard are more than 1024 MiB", most >> 20),
            "take a smaller --depth, smaller blocks or more --shards",
        ));
    }
    // The arena is also used for other data: without spare memory, buffers as large as a part of the arena would not all fit.
    let spare = if plan.variant.memory_bytes > 0 { most } else { 0 };
    Ok((most + spare).max(32 << 20).next_multiple_of(32 << 20))
}

/// Measures the kernel's no-operations at this depth.
///
/// # Errors
/// The kernel has no io_uring.
pub fn nop(depth: u32, count: Option<u64>, time: Duration) -> anyhow::Result<Slice> {
    // A bounded number per step, so that a time limit is exceeded by milliseconds at most.
    const STEP: u64 = 1 << 16;
    if depth == 0 {
        bail!("a depth of 0");
    }
    let mut slice = Slice::new();
    let (begun, cpu_before) = (Instant::now(), cpu::own());
    loop {
        let step = count.map_or(STEP, |count| STEP.min(count - slice.ios));
        braid_ring::nop_bench(depth, step)?;
        slice.ios += step;
        let over = count.map_or(begun.elapsed() >= time, |count| slice.ios >= count);
        if over {
            break;
        }
    }
    slice.elapsed_ns = begun.elapsed().as_nanos() as u64;
    slice.cpu_ns = (cpu::own() - cpu_before).as_nanos() as u64;
    Ok(slice)
}
