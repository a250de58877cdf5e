//! The ring: all shards of an engine, their threads, and the handle by which the control plane reaches them.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use braid_engine::limits::{JOURNAL_IOS_MAX, SLOTS_MAX, STEP_IOS_MAX};
use braid_engine::{
    DeviceCounters, DeviceId, DeviceLayout, DeviceLease, LeafId, Limits, META_BLOCKS, Shard, ShardId, Shared,
};

use crate::arena::Arena;
use crate::channels::Channels;
use crate::clock::{clock_ns, lease_clock_ns};
use crate::core::{AddLevel, Core};
use crate::disk::Disk;
use crate::driver::{Driver, DriverConfig, DriverInfo, DriverKind};
use crate::error::{RingError, RingErrorKind};
use crate::frontend::Frontend;
use crate::layouts::Layouts;
use crate::limits::{LEAVES_MAX, META_MAX, SOCKETS_MAX};
use crate::link::{Control, Countdown, Link};
use crate::map::Map;
use crate::medium::Base;
use crate::member_faults::MemberFaults;
use crate::net::Net;
use crate::parts::BufferPool;
use crate::pending::{Pending, pending};
use crate::port::{DEPTH, Port, PortConfig};
use crate::remote::REMOTES_MAX;
use crate::shard::{LevelMessage, Peers, Runner};
use crate::stack_level::{STACK_LEVELS_MAX, stack_level_of};
use crate::stats::{LeafCounters, LeafStats};
use crate::timer::Timers;
use crate::tokens::FRONTENDS_MAX;
use crate::wake::Wake;

/// Maximum number of shards.
pub const SHARDS_MAX: u16 = 256;
/// Messages that the queue from one shard to another holds. Further messages wait at the sender.
const MESSAGES_MAX: usize = 4096;
/// Maximum number of copies of a metadata block: the maximum number of members of an array.
const META_COPIES_MAX: usize = braid_engine::layout::COPIES_MAX;

/// How to start a ring. The default has one shard, the best driver that works, and 64 MiB of buffers.
#[derive(Clone, Debug)]
pub struct RingConfig {
    /// Number of shards, from 1 to [`SHARDS_MAX`]. Each is a thread.
    pub shards: u16,
    /// Which driver to use. `None`: the best that the kernel permits.
    pub driver: Option<DriverKind>,
    /// Data memory of each shard in bytes, from 1 MiB to 1 GiB.
    pub arena_bytes: usize,
    /// The processor for each shard's thread. Empty: the scheduler decides.
    pub pin: Vec<usize>,
    /// Time limit of a leaf I/O in milliseconds. After it the I/O counts as failed.
    pub disk_timeout_ms: u64,
    /// Limits of the engine.
    pub limits: Limits,
}

impl Default for RingConfig {
    fn default() -> RingConfig {
        RingConfig {
            shards: 1,
            driver: None,
            arena_bytes: 64 << 20,
            pin: Vec::new(),
            disk_timeout_ms: 30_000,
            limits: Limits::default(),
        }
    }
}

struct LeafRecord {
    disk: Arc<Disk>,
    /// One set of counters for each shard.
    counters: Vec<Arc<LeafCounters>>,
}

enum LeafEntry {
    Free,
    Used(LeafRecord),
    /// Being removed: some shard may still use it.
    Removing,
}

pub(crate) struct Inner {
    pub(crate) links: Vec<Arc<Link>>,
    infos: Vec<DriverInfo>,
    leaves: Mutex<Vec<LeafEntry>>,
    pub(crate) layouts: Layouts,
    arena_bytes: u64,
    /// Faults of members that no monitor has received yet.
    pub(crate) member_faults: Arc<MemberFaults>,
    /// Memory for parts of jobs, by stack level.
    pub(crate) part_buffers: [Arc<BufferPool>; STACK_LEVELS_MAX],
    /// Number of stack levels. Every shard has a message to add each of them in its mailbox, or has handled it.
    levels: Mutex<usize>,
    limits: Limits,
    /// The shard for the next part of a job or the next request of the control plane, modulo the number of shards.
    pub(crate) next_shard: AtomicUsize,
}

impl Inner {
    fn leaves<R>(&self, work: impl FnOnce(&mut Vec<LeafEntry>) -> R) -> R {
        work(&mut self.leaves.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the disk of a leaf.
    pub(crate) fn disk(&self, leaf: LeafId) -> Option<Arc<Disk>> {
        self.leaves(|leaves| match leaves.get(leaf.0 as usize) {
            Some(LeafEntry::Used(record)) => Some(Arc::clone(&record.disk)),
            _ => None,
        })
    }

    /// Ensures that all shards have this stack level and those below it.
    fn ensure_level(&self, level: usize) -> Result<(), RingError> {
        let mut levels = self.levels.lock().unwrap_or_else(PoisonError::into_inner);
        while *levels <= level {
            let shared = Arc::new(Shared::new(self.links.len() as u16, &self.limits));
            let add_level = |_: &Arc<Link>| AddLevel::new(*levels, Arc::clone(&shared), self.limits);
            let all = self.links.iter().map(add_level).collect::<Result<Vec<_>, _>>()?;
            for (link, add_level) in self.links.iter().zip(all) {
                link.send(Control::AddLevel(Box::new(add_level)));
            }
            *levels += 1;
        }
        Ok(())
    }

    /// Sends the same message to every shard.
    fn send_to_all(&self, mut control: impl FnMut() -> Control) -> Result<(), RingError> {
        let mut all = true;
        for link in &self.links {
            all &= link.send(control());
        }
        if all { Ok(()) } else { Err(RingError::stopped("the shards have stopped")) }
    }
}

/// The shard threads. [`Ring::stop`] stops them, and so does dropping the ring.
pub struct Ring {
    inner: Arc<Inner>,
    threads: Vec<JoinHandle<()>>,
}

/// A handle to the shards, usable from any thread. Cheap to clone.
#[derive(Clone)]
pub struct RingHandle {
    pub(crate) inner: Arc<Inner>,
}

impl Ring {
    /// Starts the shards. `frontends` is called on this thread, once for each shard, and returns the frontends of that
    /// shard.
    ///
    /// # Errors
    /// When the configuration is out of bounds, no driver works, or memory or threads are not available. Shards that
    /// did start are stopped.
    ///
    /// # Panics
    /// When a shard gets more frontends than [`FRONTENDS_MAX`].
    pub fn start(
        config: &RingConfig,
        frontends: impl Fn(ShardId) -> Vec<Box<dyn Frontend>>,
    ) -> Result<Ring, RingError> {
        check(config)?;
        let shards = usize::from(config.shards);
        let shared = Arc::new(Shared::new(config.shards, &config.limits));
        let wake = || Wake::new().map_err(|e| RingError::os(e, "making an eventfd".to_string()));
        let links = (0..shards).map(|_| Ok(Arc::new(Link::new(wake()?)))).collect::<Result<Vec<_>, RingError>>()?;
        let active_shards = Arc::new(AtomicUsize::new(shards));
        let member_faults = Arc::new(MemberFaults::default());
        let mut threads = Vec::with_capacity(shards);
        let mut building = Vec::with_capacity(shards);
        for (index, (to, from)) in queues(shards).into_iter().enumerate() {
            let id = ShardId(index as u16);
            let residents = frontends(id);
            assert!(residents.len() <= FRONTENDS_MAX, "at most {FRONTENDS_MAX} frontends on a shard");
            let (counter, faults) = (Arc::clone(&active_shards), Arc::clone(&member_faults));
            let peers = Peers { to, from, links: links.clone(), active_shards: counter, member_faults: faults };
            building.push(spawn(id, config, Arc::clone(&shared), peers, residents));
        }
        // The shards are built in parallel, because the kernel takes a while to set up the memory of each.
        let mut infos = Vec::with_capacity(shards);
        let mut failed = None;
        for built in building {
            let info = built.and_then(|(thread, info)| {
                threads.push(thread);
                info.wait().and_then(|info| info)
            });
            match info {
                Ok(info) => infos.push(info),
                Err(e) => {
                    failed.get_or_insert(e);
                    active_shards.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
        let entries = (0..LEAVES_MAX).map(|_| LeafEntry::Free).collect();
        let arena_bytes = config.arena_bytes as u64;
        let inner = Arc::new(Inner {
            links,
            infos,
            leaves: Mutex::new(entries),
            layouts: Layouts::default(),
            arena_bytes,
            member_faults,
            part_buffers: std::array::from_fn(|_| BufferPool::new()),
            levels: Mutex::new(1),
            limits: config.limits,
            next_shard: AtomicUsize::new(0),
        });
        let ring = Ring { inner, threads };
        // On error, dropping the ring stops the shards that did start.
        failed.map_or(Ok(ring), Err)
    }

    /// Returns a handle to the shards.
    pub fn handle(&self) -> RingHandle {
        RingHandle { inner: Arc::clone(&self.inner) }
    }

    /// Stops the frontends, waits for I/O in flight, and ends the threads. A disk that does not respond delays this by
    /// at most the time limit of an I/O and two seconds; the memory of its I/Os is then leaked. Blocks.
    ///
    /// # Panics
    /// With the panic of a shard's thread, if one has panicked.
    pub fn stop(mut self) {
        self.stop_all();
    }

    fn stop_all(&mut self) {
        // A shard that has ended needs no message.
        let _ = self.inner.send_to_all(|| Control::Stop);
        for thread in self.threads.drain(..) {
            if let Err(panic) = thread.join()
                && !std::thread::panicking()
            {
                std::panic::resume_unwind(panic);
            }
        }
        // Handles may outlive the ring. The disks are released now.
        self.inner.leaves(|leaves| leaves.iter_mut().for_each(|entry| *entry = LeafEntry::Free));
        self.inner.layouts.clear();
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.stop_all();
    }
}

fn check(config: &RingConfig) -> Result<(), RingError> {
    let invalid = |what: String, remedy: &str| Err(RingError::new(RingErrorKind::Limit, what, remedy));
    if !(1..=SHARDS_MAX).contains(&config.shards) {
        return invalid(format!("{} shards", config.shards), "give 1 to 256, one for each core to be used");
    }
    if !(1 << 20..=1 << 30).contains(&config.arena_bytes) {
        return invalid(format!("an arena of {} bytes", config.arena_bytes), "give 1 MiB to 1 GiB to each shard");
    }
    if !config.pin.is_empty() && config.pin.len() != usize::from(config.shards) {
        return invalid(format!("{} processors for {} shards", config.pin.len(), config.shards), "name one for each");
    }
    if config.limits.slots > SLOTS_MAX || config.disk_timeout_ms == 0 {
        return invalid("limits of the engine".into(), "keep slots within its maximum, and the time limit above 0");
    }
    Ok(())
}

type To = Vec<Option<rtrb::Producer<LevelMessage>>>;
type From = Vec<Option<rtrb::Consumer<LevelMessage>>>;

/// Creates a queue from each shard to each other shard.
fn queues(shards: usize) -> Vec<(To, From)> {
    let mut ends: Vec<(To, From)> =
        (0..shards).map(|_| ((0..shards).map(|_| None).collect(), (0..shards).map(|_| None).collect())).collect();
    for source in 0..shards {
        for target in (0..shards).filter(|t| *t != source) {
            let (producer, consumer) = rtrb::RingBuffer::new(MESSAGES_MAX);
            ends[source].0[target] = Some(producer);
            ends[target].1[source] = Some(consumer);
        }
    }
    ends
}

/// The thread of a shard, and the result of building the shard.
type Building = (JoinHandle<()>, Pending<Result<DriverInfo, RingError>>);

/// Starts the thread of a shard. The thread builds the shard itself.
fn spawn(
    id: ShardId,
    config: &RingConfig,
    shared: Arc<Shared>,
    peers: Peers,
    frontends: Vec<Box<dyn Frontend>>,
) -> Result<Building, RingError> {
    let (sender, info) = pending();
    let config = config.clone();
    let body = move || {
        // The thread builds everything itself: an io_uring belongs to the thread that uses it.
        match build(id, &config, shared, peers, frontends) {
            Ok((runner, info)) => {
                sender.send(Ok(info));
                runner.run();
            }
            Err(e) => sender.send(Err(e)),
        }
    };
    let spawned = std::thread::Builder::new().name(format!("shard-{}", id.0)).spawn(body);
    let thread = spawned.map_err(|e| RingError::os(e, "starting a shard's thread".to_string()))?;
    Ok((thread, info))
}

/// Builds a shard. Runs on the shard's own thread.
fn build(
    id: ShardId,
    config: &RingConfig,
    shared: Arc<Shared>,
    peers: Peers,
    frontends: Vec<Box<dyn Frontend>>,
) -> Result<(Runner, DriverInfo), RingError> {
    if let Some(&processor) = config.pin.get(usize::from(id.0)) {
        let mut set = rustix::thread::CpuSet::new();
        set.set(processor);
        rustix::thread::sched_setaffinity(None, &set)
            .map_err(|e| RingError::os(e.into(), format!("pinning shard {} to processor {processor}", id.0)))?;
    }
    let no_memory =
        |e| RingError::os(e, format!("taking {} bytes for the arena of shard {}", config.arena_bytes, id.0));
    let map = Map::new(config.arena_bytes).map_err(no_memory)?;
    map.advise(libc::MADV_HUGEPAGE);
    let driver_config = DriverConfig {
        depth: DEPTH,
        files: LEAVES_MAX + SOCKETS_MAX,
        buffers: (map.addr(), map.len()),
        wake: Arc::clone(&peers.links[usize::from(id.0)].wake),
    };
    let (driver, info) = Driver::start(config.driver, &driver_config)?;
    let arena = Arena::new(map, info.registered_buffer_bytes as usize);
    let time_limit_ns = config.disk_timeout_ms.saturating_mul(1_000_000);
    let port_config = PortConfig {
        shard: id,
        ios_max: config.limits.slots as usize * STEP_IOS_MAX
            + (META_BLOCKS + JOURNAL_IOS_MAX) as usize * META_COPIES_MAX
            + META_MAX,
        time_limit_ns,
    };
    let port = Port::new(driver, arena, &port_config)?;
    let net = Net::new().map_err(no_memory)?;
    let engine = Shard::new(id, &config.limits, shared);
    let channels = Channels::new();
    let core = Core { id, engine, upper: Vec::new(), port, net, channels, timers: Timers::new() };
    Ok((Runner::new(core, frontends, peers, time_limit_ns.saturating_add(2_000_000_000)), info))
}

impl RingHandle {
    /// Returns the number of shards.
    pub fn shards(&self) -> u16 {
        self.inner.links.len() as u16
    }

    /// Returns which driver a shard uses, and how.
    ///
    /// # Panics
    /// When the shard does not exist.
    pub fn driver(&self, shard: ShardId) -> &DriverInfo {
        &self.inner.infos[usize::from(shard.0)]
    }

    /// Returns the data memory of each shard in bytes.
    pub fn arena_bytes(&self) -> u64 {
        self.inner.arena_bytes
    }

    /// Returns how many turns a shard's loop has made since start, and in how many of them it slept.
    ///
    /// # Panics
    /// When the shard does not exist.
    pub fn turns(&self, shard: ShardId) -> (u64, u64) {
        let link = &self.inner.links[usize::from(shard.0)];
        (link.turns.load(Ordering::Relaxed), link.sleeps.load(Ordering::Relaxed))
    }

    /// Adds a disk to all shards. Returns before the shards have it; calls of this handle that follow find it there.
    ///
    /// # Errors
    /// When the ring has [`LEAVES_MAX`] disks, or the maximum number of remote disks, or the shards have stopped.
    pub fn add_leaf(&self, disk: Arc<Disk>) -> Result<LeafId, RingError> {
        let counters: Vec<_> = self.inner.links.iter().map(|_| Arc::new(LeafCounters::new())).collect();
        let id = self.inner.leaves(|leaves| {
            let free = leaves.iter().position(|p| matches!(p, LeafEntry::Free))?;
            let is_remote = |p: &&LeafEntry| matches!(p, LeafEntry::Used(record) if record.disk.is_remote());
            if disk.is_remote() && leaves.iter().filter(is_remote).count() == REMOTES_MAX {
                return None;
            }
            leaves[free] = LeafEntry::Used(LeafRecord { disk: Arc::clone(&disk), counters: counters.clone() });
            Some(LeafId(free as u32))
        });
        let id = id.ok_or_else(|| {
            RingError::new(
                RingErrorKind::Limit,
                format!(
                    "adding {}: there are {LEAVES_MAX} disks already, or {REMOTES_MAX} on other machines",
                    disk.spec()
                ),
                "stop arrays that are not needed",
            )
        })?;
        let mut counters = counters.into_iter();
        self.inner.send_to_all(|| Control::AddLeaf {
            id,
            disk: Arc::clone(&disk),
            counters: counters.next().expect("one block for each shard"),
        })?;
        Ok(id)
    }

    /// Removes a disk from all shards. Resolves when the last I/O on the disk has ended and every shard has released
    /// it; at once if no such disk exists. The disk is then closed unless another reference to it exists. No published
    /// device may use the disk.
    pub fn remove_leaf(&self, leaf: LeafId) -> Pending<()> {
        let (sender, reply) = pending();
        let inner = Arc::downgrade(&self.inner);
        let known = self.inner.leaves(|leaves| match leaves.get_mut(leaf.0 as usize) {
            Some(entry @ LeafEntry::Used(_)) => {
                *entry = LeafEntry::Removing;
                true
            }
            _ => false,
        });
        if !known {
            sender.send(());
            return reply;
        }
        let done = Box::new(move || {
            if let Some(inner) = inner.upgrade() {
                inner.leaves(|leaves| leaves[leaf.0 as usize] = LeafEntry::Free);
            }
            sender.send(());
        });
        let gone = Countdown::new(self.inner.links.len(), done);
        for link in &self.inner.links {
            if !link.send(Control::RemoveLeaf { id: leaf, gone: Arc::clone(&gone) }) {
                gone.arrive();
            }
        }
        reply
    }

    /// Makes all shards adopt the current size of a disk (see [`crate::Medium::refresh_size`]). Resolves when every
    /// shard has adopted it.
    pub fn resize_leaf(&self, leaf: LeafId) -> Pending<()> {
        let (sender, reply) = pending();
        let known = Countdown::new(self.inner.links.len(), Box::new(move || sender.send(())));
        for link in &self.inner.links {
            if !link.send(Control::ResizeLeaf { id: leaf, known: Arc::clone(&known) }) {
                known.arrive();
            }
        }
        reply
    }

    /// Prepares all shards for devices and pools of a stack level above the first. Must be called before a device or
    /// pool of that level is published, served or accessed.
    ///
    /// # Errors
    /// When the level is not below [`STACK_LEVELS_MAX`], or memory is not available.
    pub fn ensure_stack_level(&self, level: usize) -> Result<(), RingError> {
        if level >= STACK_LEVELS_MAX {
            return Err(RingError::new(
                RingErrorKind::Limit,
                format!("arrays on volumes stand on each other {level} deep"),
                format!("at most {} are possible", STACK_LEVELS_MAX - 1),
            ));
        }
        self.inner.ensure_level(level)
    }

    /// Returns the stack level at which this disk is a leaf: one above its device's level if the disk is a device, else
    /// 0.
    pub(crate) fn level_of_leaf(&self, leaf: LeafId) -> usize {
        self.disk(leaf).and_then(|disk| disk.device()).map_or(0, |device| stack_level_of(device) + 1)
    }

    /// Returns the disk of a leaf.
    pub fn disk(&self, leaf: LeafId) -> Option<Arc<Disk>> {
        self.inner.disk(leaf)
    }

    /// Returns the statistics of a disk since it was added. `None` if there is no such disk, or it is being removed.
    pub fn leaf_stats(&self, leaf: LeafId) -> Option<LeafStats> {
        self.inner.leaves(|leaves| {
            let Some(LeafEntry::Used(record)) = leaves.get(leaf.0 as usize) else { return None };
            let mut stats = LeafStats::default();
            record.counters.iter().for_each(|c| stats.add(c));
            if record.disk.is_plain() && !matches!(record.disk.base(), Base::File(_) | Base::Remote { .. }) {
                stats.add_untimed();
            }
            Some(stats)
        })
    }

    /// Makes `layout` the layout of the device on every shard; `None` stops the device. Returns before the shards have
    /// it. `done` is called when the last request that was planned with the previous layout has ended on all shards, or
    /// the shards have stopped. It runs on a shard's thread, or inside this call if all shards have stopped, and must
    /// not block.
    pub fn publish(&self, device: DeviceId, layout: Option<Arc<DeviceLayout>>, done: Box<dyn FnOnce() + Send>) {
        // Entered before any shard has the layout: a reader that looks up the layout after a shard has admitted a write
        // finds the layout that admitted it, or a later one.
        self.inner.layouts.set(device, layout.as_ref());
        for (layout, leaf) in layout.iter().flat_map(|layout| layout.leaves().iter().map(move |leaf| (layout, leaf))) {
            if let Some(disk) = self.disk(*leaf).filter(|disk| disk.is_remote()) {
                // Exactly the layouts with redundancy order overlapping writes: other members have the data, too.
                disk.set_replaceable(layout.ordered());
            }
        }
        let member_faults = layout.is_none().then(|| Arc::clone(&self.inner.member_faults));
        let done = Box::new(move || {
            member_faults.into_iter().for_each(|member_faults| member_faults.forget(device));
            done();
        });
        let drained = Countdown::new(self.inner.links.len(), done);
        for link in &self.inner.links {
            if !link.send(Control::Publish { device, layout: layout.clone(), drained: Arc::clone(&drained) }) {
                drained.arrive();
            }
        }
    }

    /// Returns the time in nanoseconds by the shards' clock, CLOCK_MONOTONIC. It cannot be set, and restarts at boot.
    pub fn now_ns(&self) -> u64 {
        clock_ns()
    }

    /// Returns the time in nanoseconds by the clock for leases. Unlike [`RingHandle::now_ns`] it advances while the
    /// machine is suspended.
    pub fn lease_ns(&self) -> u64 {
        lease_clock_ns()
    }

    /// Renews the lease of a replicated device until this moment of [`RingHandle::lease_ns`]. Replies that were held
    /// back because the lease had expired are sent.
    pub fn renew_lease(&self, device: DeviceId, lease: &DeviceLease, until_ns: u64) {
        if lease.renew(until_ns) {
            for link in &self.inner.links {
                // A shard that has stopped holds back no replies.
                let _ = link.send(Control::LeaseRenewed { device });
            }
        }
    }

    /// Like [`RingHandle::publish`], but returns a future.
    pub fn publish_and_drain(&self, device: DeviceId, layout: Option<Arc<DeviceLayout>>) -> Pending<()> {
        let (sender, reply) = pending();
        self.publish(device, layout, Box::new(move || sender.send(())));
        reply
    }

    /// Sends a message to a frontend, given by its index in the vector that the closure given to [`Ring::start`]
    /// returned. The message is dropped if the shard has stopped or has no such frontend.
    pub fn post(&self, shard: ShardId, frontend: usize, message: Box<dyn Any + Send>) {
        if let Some(link) = self.inner.links.get(usize::from(shard.0)) {
            link.send(Control::Post { frontend, message });
        }
    }

    /// Returns the counters of a device on one shard since start.
    pub fn device_counters(&self, shard: ShardId, device: DeviceId) -> Pending<DeviceCounters> {
        let (sender, reply) = pending();
        if let Some(link) = self.inner.links.get(usize::from(shard.0)) {
            link.send(Control::Counters { device, reply: sender });
        }
        reply
    }
}
