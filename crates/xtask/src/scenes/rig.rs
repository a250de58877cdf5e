//! One shard with load generators, and the devices of a scene.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, bail};
use braid_bench::cpu;
use braid_bench::device::{Disks, Members, Shape};
use braid_bench::frontend::{Load, LoadFrontend, Pass, Phase, PhaseDone, in_words};
use braid_bench::latency::Latencies;
use braid_bench::live::LiveCell;
use braid_bench::target::Target;
use braid_bench::{Order, Visit};
use braid_engine::{DeviceId, DeviceLayout, ShardId};
use braid_ring::{Frontend, Ring, RingConfig, RingHandle};

/// The number of load generators; each uses one device at a time.
const JOBS: usize = 4;

/// A ring with one shard, and the devices on it.
pub struct Rig {
    ring: Option<Ring>,
    /// The handle of the ring.
    pub handle: RingHandle,
    done: Receiver<PhaseDone>,
    opened: Vec<(Disks, Members)>,
    published: u32,
    epoch: u32,
    runtime: tokio::runtime::Runtime,
}

/// A device and its size.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// The number of the device.
    pub id: DeviceId,
    /// The size in bytes, or the length of the part that a job uses.
    pub bytes: u64,
}

/// The load of one job.
#[derive(Clone)]
pub struct Job {
    /// The device.
    pub device: Device,
    /// The first byte of the part that is used.
    pub first_byte: u64,
    /// Share of reads, in percent.
    pub reads_percent: u8,
    /// The order in which blocks are visited.
    pub order: Order,
    /// The block size in bytes.
    pub block_bytes: u64,
    /// I/Os in flight.
    pub depth: u32,
    /// Draws only from these blocks.
    pub only: Option<Arc<[u32]>>,
    /// A FLUSH follows this many I/Os.
    pub flush_every: Option<u64>,
}

impl Job {
    /// Returns a job of random 4 KiB I/Os on the whole device.
    pub fn random(device: Device, reads_percent: u8, depth: u32) -> Job {
        let (order, only, flush_every) = (Order::Random, None, None);
        Job { device, first_byte: 0, reads_percent, order, block_bytes: 4096, depth, only, flush_every }
    }
}

/// The result of jobs that ran together.
pub struct Ran {
    /// I/Os per second.
    pub iops: f64,
    /// I/Os completed.
    pub ios: u64,
    /// CPU time per I/O, in nanoseconds.
    pub cpu_ns_per_io: f64,
    /// Latencies of all I/Os.
    pub latency: Latencies,
}

impl Rig {
    /// Starts the ring.
    ///
    /// # Errors
    /// The ring cannot be started on this machine.
    pub fn start() -> anyhow::Result<Rig> {
        let (sender, done) = sync_channel(JOBS);
        let ring = Ring::start(&RingConfig::default(), |_| {
            let one =
                |_| -> Box<dyn Frontend> { Box::new(LoadFrontend::new(sender.clone(), Arc::new(LiveCell::default()))) };
            (0..JOBS).map(one).collect()
        })?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let opened = Vec::new();
        Ok(Rig { handle: ring.handle(), ring: Some(ring), done, opened, published: 0, epoch: 0, runtime })
    }

    /// Blocks until the future is ready, and returns its output.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Opens a target of one device.
    ///
    /// # Errors
    /// The target is malformed, or a disk cannot be opened.
    pub fn device(&mut self, target: &str) -> anyhow::Result<Device> {
        Ok(self.devices(target)?[0])
    }

    /// Opens a target of several devices. A disk with the name of one that was opened before is another disk.
    ///
    /// # Errors
    /// As [`Rig::device`].
    pub fn devices(&mut self, target: &str) -> anyhow::Result<Vec<Device>> {
        let Target::Local(combination) = Target::parse(target)? else { bail!("{target} is not a target of disks") };
        let mut disks = Disks::default();
        let members = disks.open(&combination, true, true)?;
        let shape = Shape::plan(combination.how, &members, false)?;
        let sizes = shape.sizes_bytes(&members);
        let layouts = shape.build(&self.handle, &mut disks, &members, None)?;
        self.opened.push((disks, members));
        Ok(layouts.into_iter().zip(sizes).map(|(layout, bytes)| self.publish(layout, bytes)).collect())
    }

    /// Publishes a layout under the next device number.
    pub fn publish(&mut self, layout: Arc<DeviceLayout>, bytes: u64) -> Device {
        let id = DeviceId(self.published);
        self.published += 1;
        self.handle.publish(id, Some(layout), Box::new(|| {}));
        Device { id, bytes }
    }

    /// Returns the bytes written to all disks so far.
    pub fn written_bytes(&self) -> u64 {
        let all = self.opened.iter().map(|(disks, members)| disks.written_bytes(&self.handle, members));
        all.sum()
    }

    /// Starts jobs, one on each load generator. Returns the CPU time of this process, for [`Rig::end`].
    pub fn begin(&mut self, jobs: &[Job], time: Duration) -> u64 {
        assert!(jobs.len() <= JOBS, "there are at most as many jobs as load generators");
        self.epoch += 1;
        for (number, job) in jobs.iter().enumerate() {
            let visit = Visit { order: job.order, theta: 1.0, reads_percent: job.reads_percent };
            let load = Load {
                epoch: self.epoch,
                slot: 0,
                device: job.device.id,
                depth: job.depth,
                block_bytes: job.block_bytes,
                buffers: 1,
                first_byte: job.first_byte,
                span_bytes: job.device.bytes / job.block_bytes * job.block_bytes,
                visit,
                seed: u64::from(self.epoch) << 8 | number as u64,
                verify: None,
                rate: None,
                only: job.only.clone(),
                flush_every: job.flush_every,
            };
            let pass = Pass::Run { ios: u64::MAX, time_ns: time.as_nanos() as u64 };
            self.handle.post(ShardId(0), number, Box::new(Phase { load: Arc::new(load), pass }));
        }
        cpu::own().as_nanos() as u64
    }

    /// Waits for the jobs that [`Rig::begin`] started, given its return value.
    ///
    /// # Errors
    /// An I/O failed, or the shard has ended.
    pub fn end(&self, jobs: usize, cpu_ns: u64) -> anyhow::Result<Ran> {
        let (mut ran, mut iops) = (Ran { iops: 0.0, ios: 0, cpu_ns_per_io: 0.0, latency: Latencies::new() }, 0.0);
        for _ in 0..jobs {
            let done = self.done.recv().context("the shard has ended")?;
            if let Some(error) = done.first_error {
                bail!("{} I/Os failed: {}", done.errors, in_words(error));
            }
            iops += done.ios as f64 * 1e9 / (done.ended_ns - done.begun_ns).max(1) as f64;
            ran.ios += done.ios;
            ran.latency.add(&done.latency);
        }
        ran.iops = iops;
        ran.cpu_ns_per_io = (cpu::own().as_nanos() as u64 - cpu_ns) as f64 / ran.ios.max(1) as f64;
        Ok(ran)
    }

    /// Runs jobs at the same time.
    ///
    /// # Errors
    /// As [`Rig::end`].
    pub fn run(&mut self, jobs: &[Job], time: Duration) -> anyhow::Result<Ran> {
        let begun = self.begin(jobs, time);
        self.end(jobs.len(), begun)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(ring) = self.ring.take() {
            ring.stop();
        }
    }
}

/// Returns the resident memory of this process, in bytes.
pub fn resident_bytes() -> anyhow::Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").context("reading /proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).and_then(|word| word.parse().ok()).context("/proc/self/statm")?;
    Ok(pages * rustix::param::page_size() as u64)
}
