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
use crate::devices::Layouts;
use crate::disk::{Base, Disk};
use crate::driver::{Driver, DriverConfig, DriverInfo, DriverKind};
use crate::error::{RingError, RingErrorKind};
use crate::frontend::{FRONTENDS_MAX, Frontend};
use crate::link::{Control, Countdown, Link};
use crate::map::Map;
use crate::metas::META_MAX;
use crate::net::{Net, SOCKETS_MAX};
use crate::parts::Pool;
use crate::pending::{Pending, pending};
use crate::port::{DEPTH, LEAVES_MAX, Port, PortConfig};
use crate::remote::REMOTES_MAX;
use crate::shard::{Core, Peers, Runner, TierMessage, clock_ns, lease_clock_ns};
use crate::stats::{LeafCounters, LeafStats};
use crate::tier::{Raise, TIERS_MAX, tier_of};
use crate::timer::Timers;
use crate::troubles::Troubles;
use crate::wake::Wake;

/// Shards, at most.
pub const SHARDS_MAX: u16 = 256;
/// Messages that one shard's queue to another holds; more wait with the sender.
const MESSAGES_MAX: usize = 4096;
/// Copies of a block of metadata, at most: as many as an array has members.
const META_COPIES_MAX: usize = braid_engine::layout::COPIES_MAX;

/// How to start a ring. The default has one shard, the best driver that works, and 64 MiB of buffers.
#[derive(Clone, Debug)]
pub struct RingConfig {
    /// How many shards, from 1 to [`SHARDS_MAX`]; each is a thread.
    pub shards: u16,
    /// Which driver; `None`: the best that the kernel permits.
    pub driver: Option<DriverKind>,
    /// Memory for data on each shard, in bytes, from 1 MiB to 1 GiB.
    pub arena_bytes: usize,
    /// The processor for each shard's thread; empty: the scheduler decides.
    pub pin: Vec<usize>,
    /// After so many milliseconds an I/O counts as failed.
    pub leaf_timeout_ms: u64,
    /// Bounds of the engine.
    pub limits: Limits,
}

impl Default for RingConfig {
    fn default() -> RingConfig {
        RingConfig {
            shards: 1,
            driver: None,
            arena_bytes: 64 << 20,
            pin: Vec::new(),
            leaf_timeout_ms: 30_000,
            limits: Limits::default(),
        }
    }
}

struct LeafRecord {
    disk: Arc<Disk>,
    /// One block for each shard.
    counters: Vec<Arc<LeafCounters>>,
}

enum LeafPlace {
    Free,
    Used(LeafRecord),
    /// Some shard may still know it.
    Leaving,
}

pub(crate) struct Inner {
    pub(crate) links: Vec<Arc<Link>>,
    infos: Vec<DriverInfo>,
    leaves: Mutex<Vec<LeafPlace>>,
    pub(crate) layouts: Layouts,
    arena_bytes: u64,
    /// Failures of members that nobody has taken yet.
    pub(crate) troubles: Arc<Troubles>,
    /// Memory for parts of jobs, by tier.
    pub(crate) pools: [Arc<Pool>; TIERS_MAX],
    /// How many tiers all shards were told of.
    tiers: Mutex<usize>,
    limits: Limits,
    /// Which shard gets the next part of a job, or the next request of the control plane.
    pub(crate) next_shard: AtomicUsize,
}

impl Inner {
    fn leaves<R>(&self, work: impl FnOnce(&mut Vec<LeafPlace>) -> R) -> R {
        work(&mut self.leaves.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The disk that a number stands for.
    pub(crate) fn disk(&self, leaf: LeafId) -> Option<Arc<Disk>> {
        self.leaves(|leaves| match leaves.get(leaf.0 as usize) {
            Some(LeafPlace::Used(record)) => Some(Arc::clone(&record.disk)),
            _ => None,
        })
    }

    /// Sees to it that all shards have this tier, and those below it.
    fn raise_to(&self, tier: usize) -> Result<(), RingError> {
        let mut tiers = self.tiers.lock().unwrap_or_else(PoisonError::into_inner);
        while *tiers <= tier {
            let shared = Arc::new(Shared::new(self.links.len() as u16, &self.limits));
            let raise = |_: &Arc<Link>| Raise::new(*tiers, Arc::clone(&shared), self.limits);
            let all = self.links.iter().map(raise).collect::<Result<Vec<_>, _>>()?;
            for (link, raise) in self.links.iter().zip(all) {
                link.send(Control::Raise(Box::new(raise)));
            }
            *tiers += 1;
        }
        Ok(())
    }

    /// Tells every shard the same.
    fn tell_all(&self, mut control: impl FnMut() -> Control) -> Result<(), RingError> {
        let mut all = true;
        for link in &self.links {
            all &= link.send(control());
        }
        if all { Ok(()) } else { Err(RingError::stopped("the shards have stopped")) }
    }
}

/// The shards' threads. Stop them by [`Ring::stop`]; dropping it does the same.
pub struct Ring {
    inner: Arc<Inner>,
    threads: Vec<JoinHandle<()>>,
}

/// Reaches the shards from anywhere. Cheap to clone.
#[derive(Clone)]
pub struct RingHandle {
    pub(crate) inner: Arc<Inner>,
}

impl Ring {
    /// Starts the shards. `frontends` is called once for each, on this thread, for what shall live there.
    ///
    /// # Errors
    /// When the configuration is out of bounds, no driver works, or memory or threads cannot be had.
    pub fn start(
        config: &RingConfig,
        frontends: impl Fn(ShardId) -> Vec<Box<dyn Frontend>>,
    ) -> Result<Ring, RingError> {
        check(config)?;
        let shards = usize::from(config.shards);
        let shared = Arc::new(Shared::new(config.shards, &config.limits));
        let wake = || Wake::new().map_err(|e| RingError::os(e, "making an eventfd".to_string()));
        let links = (0..shards).map(|_| Ok(Arc::new(Link::new(wake()?)))).collect::<Result<Vec<_>, RingError>>()?;
        let restless = Arc::new(AtomicUsize::new(shards));
        let troubles = Arc::new(Troubles::default());
        let mut threads = Vec::with_capacity(shards);
        let mut building = Vec::with_capacity(shards);
        for (index, (to, from)) in queues(shards).into_iter().enumerate() {
            let id = ShardId(index as u16);
            let lived_on = frontends(id);
            assert!(lived_on.len() <= FRONTENDS_MAX, "at most {FRONTENDS_MAX} frontends on a shard");
            let (at_rest, troubles) = (Arc::clone(&restless), Arc::clone(&troubles));
            let peers = Peers { to, from, links: links.clone(), restless: at_rest, troubles };
            building.push(spawn(id, config, Arc::clone(&shared), peers, lived_on));
        }
        // All at once: the kernel takes its time for the memory of each.
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
                    restless.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
        let places = (0..LEAVES_MAX).map(|_| LeafPlace::Free).collect();
        let arena_bytes = config.arena_bytes as u64;
        let inner = Arc::new(Inner {
            links,
            infos,
            leaves: Mutex::new(places),
            layouts: Layouts::default(),
            arena_bytes,
            troubles,
            pools: std::array::from_fn(|_| Pool::new()),
            tiers: Mutex::new(1),
            limits: config.limits,
            next_shard: AtomicUsize::new(0),
        });
        let ring = Ring { inner, threads };
        // An error stops the shards that did start, as the ring is dropped.
        failed.map_or(Ok(ring), Err)
    }

    /// The way to reach the shards.
    pub fn handle(&self) -> RingHandle {
        RingHandle { inner: Arc::clone(&self.inner) }
    }

    /// Tells the frontends to stop, lets what is in flight finish, and ends the threads. A disk that does not answer
    /// delays this by the time limit of an I/O.
    pub fn stop(mut self) {
        self.stop_all();
    }

    fn stop_all(&mut self) {
        // Shards that have ended already need no message.
        let _ = self.inner.tell_all(|| Control::Stop);
        for thread in self.threads.drain(..) {
            if let Err(panic) = thread.join()
                && !std::thread::panicking()
            {
                std::panic::resume_unwind(panic);
            }
        }
        // Handles may live on; the disks are let go of.
        self.inner.leaves(|leaves| leaves.iter_mut().for_each(|place| *place = LeafPlace::Free));
        self.inner.layouts.clear();
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.stop_all();
    }
}

fn check(config: &RingConfig) -> Result<(), RingError> {
    let wrong = |what: String, remedy: &str| Err(RingError::new(RingErrorKind::Limit, what, remedy));
    if !(1..=SHARDS_MAX).contains(&config.shards) {
        return wrong(format!("{} shards", config.shards), "give 1 to 256, one for each core to be used");
    }
    if !(1 << 20..=1 << 30).contains(&config.arena_bytes) {
        return wrong(format!("an arena of {} bytes", config.arena_bytes), "give 1 MiB to 1 GiB to each shard");
    }
    if !config.pin.is_empty() && config.pin.len() != usize::from(config.shards) {
        return wrong(format!("{} processors for {} shards", config.pin.len(), config.shards), "name one for each");
    }
    if config.limits.slots > SLOTS_MAX || config.leaf_timeout_ms == 0 {
        return wrong("limits of the engine".into(), "keep slots within its maximum, and the time limit above 0");
    }
    Ok(())
}

type To = Vec<Option<rtrb::Producer<TierMessage>>>;
type From = Vec<Option<rtrb::Consumer<TierMessage>>>;

/// A queue from each shard to each other.
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

/// The thread of a shard, and what it says once it is built.
type Building = (JoinHandle<()>, Pending<Result<DriverInfo, RingError>>);

/// Starts a shard's thread, which builds the shard.
fn spawn(
    id: ShardId,
    config: &RingConfig,
    shared: Arc<Shared>,
    peers: Peers,
    frontends: Vec<Box<dyn Frontend>>,
) -> Result<Building, RingError> {
    let (promise, info) = pending();
    let config = config.clone();
    let body = move || {
        // Everything is built here: an io_uring belongs to the thread that will use it.
        match build(id, &config, shared, peers, frontends) {
            Ok((runner, info)) => {
                promise.keep(Ok(info));
                runner.run();
            }
            Err(e) => promise.keep(Err(e)),
        }
    };
    let spawned = std::thread::Builder::new().name(format!("shard-{}", id.0)).spawn(body);
    let thread = spawned.map_err(|e| RingError::os(e, "starting a shard's thread".to_string()))?;
    Ok((thread, info))
}

/// Builds a shard on its own thread.
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
    let time_limit_ns = config.leaf_timeout_ms.saturating_mul(1_000_000);
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
    /// How many shards there are.
    pub fn shards(&self) -> u16 {
        self.inner.links.len() as u16
    }

    /// What a shard's driver turned out to be.
    ///
    /// # Panics
    /// When there is no such shard.
    pub fn driver(&self, shard: ShardId) -> &DriverInfo {
        &self.inner.infos[usize::from(shard.0)]
    }

    /// Memory for data on each shard, in bytes.
    pub fn arena_bytes(&self) -> u64 {
        self.inner.arena_bytes
    }

    /// Turns of a shard's loop, and how many of them slept, since start.
    ///
    /// # Panics
    /// When there is no such shard.
    pub fn turns(&self, shard: ShardId) -> (u64, u64) {
        let link = &self.inner.links[usize::from(shard.0)];
        (link.turns.load(Ordering::Relaxed), link.sleeps.load(Ordering::Relaxed))
    }

    /// Gives a disk to all shards.
    ///
    /// # Errors
    /// When the table is full, or the shards have stopped.
    pub fn add_leaf(&self, disk: Arc<Disk>) -> Result<LeafId, RingError> {
        let counters: Vec<_> = self.inner.links.iter().map(|_| Arc::new(LeafCounters::new())).collect();
        let id = self.inner.leaves(|leaves| {
            let free = leaves.iter().position(|p| matches!(p, LeafPlace::Free))?;
            let is_remote = |p: &&LeafPlace| matches!(p, LeafPlace::Used(record) if record.disk.is_remote());
            if disk.is_remote() && leaves.iter().filter(is_remote).count() == REMOTES_MAX {
                return None;
            }
            leaves[free] = LeafPlace::Used(LeafRecord { disk: Arc::clone(&disk), counters: counters.clone() });
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
        self.inner.tell_all(|| Control::AddLeaf {
            id,
            disk: Arc::clone(&disk),
            counters: counters.next().expect("one block for each shard"),
        })?;
        Ok(id)
    }

    /// Takes a disk from all shards, once its last I/O has ended; the answer comes when it is closed (unless somebody
    /// else holds it). No device may stand on it any more.
    pub fn remove_leaf(&self, leaf: LeafId) -> Pending<()> {
        let (promise, answer) = pending();
        let inner = Arc::downgrade(&self.inner);
        let known = self.inner.leaves(|leaves| match leaves.get_mut(leaf.0 as usize) {
            Some(place @ LeafPlace::Used(_)) => {
                *place = LeafPlace::Leaving;
                true
            }
            _ => false,
        });
        if !known {
            promise.keep(());
            return answer;
        }
        let done = Box::new(move || {
            if let Some(inner) = inner.upgrade() {
                inner.leaves(|leaves| leaves[leaf.0 as usize] = LeafPlace::Free);
            }
            promise.keep(());
        });
        let gone = Countdown::new(self.inner.links.len(), done);
        for link in &self.inner.links {
            if !link.send(Control::RemoveLeaf { id: leaf, gone: Arc::clone(&gone) }) {
                gone.arrive();
            }
        }
        answer
    }

    /// Tells all shards how large a disk is by now ([`Disk::look_again`]); the answer comes when all know.
    pub fn resize_leaf(&self, leaf: LeafId) -> Pending<()> {
        let (promise, answer) = pending();
        let known = Countdown::new(self.inner.links.len(), Box::new(move || promise.keep(())));
        for link in &self.inner.links {
            if !link.send(Control::ResizeLeaf { id: leaf, known: Arc::clone(&known) }) {
                known.arrive();
            }
        }
        answer
    }

    /// Makes ready for devices and pools of a tier above the first: to be called before one of them is published, served or asked.
    ///
    /// # Errors
    /// There are no more than [`TIERS_MAX`]; or the operating system has no memory.
    pub fn raise_to(&self, tier: usize) -> Result<(), RingError> {
        if tier >= TIERS_MAX {
            return Err(RingError::new(
                RingErrorKind::Limit,
                format!("arrays on volumes stand on each other {tier} deep"),
                format!("at most {} are possible", TIERS_MAX - 1),
            ));
        }
        self.inner.raise_to(tier)
    }

    /// The tier to which a disk is a disk, and not a device of its own.
    pub(crate) fn tier_of_leaf(&self, leaf: LeafId) -> usize {
        self.disk(leaf).and_then(|disk| disk.device()).map_or(0, |device| tier_of(device) + 1)
    }

    /// The disk that a number stands for.
    pub fn disk(&self, leaf: LeafId) -> Option<Arc<Disk>> {
        self.inner.disk(leaf)
    }

    /// What has happened on a disk since it was added.
    pub fn leaf_stats(&self, leaf: LeafId) -> Option<LeafStats> {
        self.inner.leaves(|leaves| {
            let Some(LeafPlace::Used(record)) = leaves.get(leaf.0 as usize) else { return None };
            let mut stats = LeafStats::default();
            record.counters.iter().for_each(|c| stats.add(c));
            if record.disk.is_plain() && !matches!(record.disk.base(), Base::File(_) | Base::Remote(_)) {
                stats.add_untimed();
            }
            Some(stats)
        })
    }

    /// Makes `layout` the device's on every shard; none stops the device. `done` is called when the last request that
    /// was planned with the layout before has ended on all shards, or the shards have stopped. It runs on a
    /// shard's thread and must not block.
    pub fn publish(&self, device: DeviceId, layout: Option<Arc<DeviceLayout>>, done: Box<dyn FnOnce() + Send>) {
        // Before any shard has it: a write that it lets through is found by whoever looks here afterwards.
        self.inner.layouts.set(device, layout.as_ref());
        for (layout, leaf) in layout.iter().flat_map(|layout| layout.leaves().iter().map(move |leaf| (layout, leaf))) {
            if let Some(disk) = self.disk(*leaf).filter(|disk| disk.is_remote()) {
                // Others hold what it does, or nobody does.
                disk.set_replaceable(layout.ordered());
            }
        }
        let troubles = layout.is_none().then(|| Arc::clone(&self.inner.troubles));
        let done = Box::new(move || {
            troubles.into_iter().for_each(|troubles| troubles.forget(device));
            done();
        });
        let drained = Countdown::new(self.inner.links.len(), done);
        for link in &self.inner.links {
            if !link.send(Control::Publish { device, layout: layout.clone(), drained: Arc::clone(&drained) }) {
                drained.arrive();
            }
        }
    }

    /// Now, by the clock that all shards go by: nobody sets it, and it begins anew with the machine.
    pub fn now_ns(&self) -> u64 {
        clock_ns()
    }

    /// Now, by the clock that leases go by: the same, but it does not stand still while the machine sleeps.
    pub fn lease_ns(&self) -> u64 {
        lease_clock_ns()
    }

    /// Renews the lease under which a replicated device answers, until this moment of [`RingHandle::lease_ns`]: what was
    /// kept goes out.
    pub fn renew(&self, device: DeviceId, lease: &DeviceLease, until_ns: u64) {
        if lease.renew(until_ns) {
            for link in &self.inner.links {
                // A shard that has stopped keeps nothing.
                let _ = link.send(Control::Renewed { device });
            }
        }
    }

    /// As [`RingHandle::publish`], to be awaited.
    pub fn publish_and_drain(&self, device: DeviceId, layout: Option<Arc<DeviceLayout>>) -> Pending<()> {
        let (promise, answer) = pending();
        self.publish(device, layout, Box::new(move || promise.keep(())));
        answer
    }

    /// Sends a message to a frontend, by its place in what the closure given to [`Ring::start`] returned. Dropped when the
    /// shard has stopped or has no such frontend.
    pub fn post(&self, shard: ShardId, frontend: usize, message: Box<dyn Any + Send>) {
        if let Some(link) = self.inner.links.get(usize::from(shard.0)) {
            link.send(Control::Post { frontend, message });
        }
    }

    /// What a device did on one shard since start.
    pub fn device_counters(&self, shard: ShardId, device: DeviceId) -> Pending<DeviceCounters> {
        let (promise, answer) = pending();
        if let Some(link) = self.inner.links.get(usize::from(shard.0)) {
            link.send(Control::Counters { device, answer: promise });
        }
        answer
    }
}
