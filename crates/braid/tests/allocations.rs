//! After the start, the thread of a shard allocates nothing: neither at any level, nor for an NBD server.
//!
//! A counting allocator counts by thread; a wrapper around each frontend reports the count of its thread. The
//! measurement covers the second to the last I/O: starting a phase and reporting on it may allocate, I/Os may not.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::any::Any;
use std::cell::Cell;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use braid_engine::{
    Completion, DeviceId, DeviceLayout, DeviceLease, MemberRole, MirrorMember, MirrorNode, Node, ParityNode, RegionMap,
    RingDisk, RingState, ShardId, Uuid,
};
use braid_export::{ExportInfo, ExportTable};
use braid_format::MemberId;
use braid_format::journal::RING_OFFSET_BYTES;
use braid_geometry::{Geometry, Level, Spec};
use braid_nbd::EventQueue;
use braid_nbd::client::{Client, ClientConfig, Replies};
use braid_nbd::server::{NbdFrontend, NewConnection, ServerConfig};
use braid_ring::{Cx, Disk, DiskSpec, DriverKind, Frontend, OpenOptions, Ring, RingConfig, RingHandle};

/// The load generator of `braid bench`, unchanged.
#[path = "../../braid-bench/src"]
#[allow(dead_code)]
mod bench {
    mod ahead;
    pub mod frontend;
    mod latency;
    mod ledger;
    pub mod live;
    pub mod pattern;
    mod schedule;
    mod verify;
    mod zipf;
}
use bench::frontend::{Load, LoadFrontend, Pass, Phase};
use bench::live::LiveCell;
use bench::pattern::{Order, Random, Visit};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no counter any more, and no test reads it.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: every call is passed on unchanged to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's guarantee, passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's guarantee, passed on.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's guarantee, passed on.
        unsafe { System.realloc(at, layout, bytes) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's guarantee, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DEVICE: DeviceId = DeviceId(0);
const IOS: u64 = 1_000_000;

/// Requests the count of a [`Counted`] frontend's thread.
struct Probe(SyncSender<u64>);

/// A frontend that records how many allocations its thread had made before the latest call.
struct Counted<F> {
    inner: F,
    seen: Arc<AtomicU64>,
}

impl<F> Counted<F> {
    fn note(&self) {
        self.seen.store(ALLOCATIONS.get(), Ordering::Relaxed);
    }
}

impl<F: Frontend> Frontend for Counted<F> {
    fn start(&mut self, cx: &mut Cx<'_>) {
        self.inner.start(cx);
    }
    fn io_done(&mut self, cx: &mut Cx<'_>, completion: &Completion) {
        self.note();
        self.inner.io_done(cx, completion);
    }
    fn released(&mut self, cx: &mut Cx<'_>, tag: u64) {
        self.inner.released(cx, tag);
    }
    fn net_done(&mut self, cx: &mut Cx<'_>, token: u64, result: i32) {
        self.note();
        self.inner.net_done(cx, token, result);
    }
    fn timer(&mut self, cx: &mut Cx<'_>, token: u64) {
        self.inner.timer(cx, token);
    }
    fn message(&mut self, cx: &mut Cx<'_>, message: Box<dyn Any + Send>) {
        match message.downcast::<Probe>() {
            Ok(probe) => drop(probe.0.try_send(ALLOCATIONS.get())),
            Err(message) => self.inner.message(cx, message),
        }
    }
    fn end_of_batch(&mut self, cx: &mut Cx<'_>) {
        self.inner.end_of_batch(cx);
    }
    fn stop(&mut self, cx: &mut Cx<'_>) {
        self.inner.stop(cx);
    }
}

/// Returns the current count of the shard's thread.
fn probe(handle: &RingHandle) -> u64 {
    let (sender, answer) = sync_channel(1);
    handle.post(ShardId(0), 0, Box::new(Probe(sender)));
    answer.recv().expect("the shard answers")
}

/// The array that is built on the disks.
#[derive(Clone, Copy, Default)]
struct ArrayKind {
    level: Option<Level>,
    /// The last disk holds only the journal.
    journal_last: bool,
    /// It serves under a lease, and reads wait for writes.
    replicated: bool,
}

/// Publishes a device on these disks. Returns its size in bytes.
fn publish(handle: &RingHandle, kind: ArrayKind, names: &[String]) -> u64 {
    let ArrayKind { level, journal_last, replicated } = kind;
    let parity = level.is_some_and(|level| level.parity() > 0);
    let mut members = Vec::new();
    for name in names {
        let spec = DiskSpec::parse(name).expect("these names are right");
        let disk = Arc::new(Disk::open(&spec, OpenOptions::default()).expect("these disks can be opened"));
        let len = disk.size_bytes() - if parity { JOURNAL_BYTES } else { 0 };
        members.push(Node::Leaf { leaf: handle.add_leaf(disk).expect("there is room"), start: 0, len });
    }
    let journal = if journal_last { members.pop() } else { None };
    let root = match level {
        None => members.remove(0),
        Some(level) => {
            let sizes: Vec<u64> = members.iter().map(Node::size_bytes).collect();
            let geometry = Geometry::plan(Spec::new(level), &sizes).expect("a plan");
            match level {
                Level::Raid1 | Level::Raid10 | Level::Raid5 | Level::Raid6 => {
                    mirrored(geometry, &members, journal.as_ref())
                }
                _ => Node::Striped { geometry, members },
            }
        }
    };
    let layout = DeviceLayout::new(1, 512, &root);
    let lease = || Arc::new(DeviceLease::new(u64::MAX));
    let layout = Arc::new(if replicated { layout.replicated(lease()) } else { layout });
    let size_bytes = layout.size_bytes();
    handle.publish(DEVICE, Some(layout), Box::new(|| {}));
    size_bytes
}

/// Bytes behind the data of each member of an array with parity (8 MiB).
const JOURNAL_BYTES: u64 = 8 << 20;

/// Returns a redundant array in which every region was written, with its journal on the members or on a disk of its
/// own.
fn mirrored(geometry: Geometry, members: &[Node], journal: Option<&Node>) -> Node {
    let all = [u64::MAX; 16];
    let map = RegionMap::new(ShardId(0), Uuid::nil(), geometry.size_bytes(), 64 << 10, (&all, &all), true);
    let member = |node: &Node| match *node {
        Node::Leaf { leaf, start, len } => {
            MirrorMember { leaf, start, len, bitmap_start: 0, role: MemberRole::InSync, write_mostly: false }
        }
        _ => unreachable!("the members are disks"),
    };
    let members: Vec<MirrorMember> = members.iter().map(member).collect();
    let ring_blocks = (JOURNAL_BYTES - RING_OFFSET_BYTES) / 4096;
    let ring_on = match journal {
        Some(Node::Leaf { leaf, .. }) => RingState::Disk(RingDisk {
            leaf: *leaf,
            role: members.len() as u16,
            ring: RING_OFFSET_BYTES,
            id: MemberId::from_random(1),
            member_blocks: ring_blocks as u16,
        }),
        _ => RingState::Members,
    };
    let parity = (geometry.spec().level.parity() > 0).then(|| ParityNode {
        array: Uuid::nil(),
        run: 1,
        rings: members.iter().map(|member| member.start + member.len + RING_OFFSET_BYTES).collect(),
        ring_blocks,
        ring_blocks_min: ring_blocks,
        generation: 1,
        lost_stripes: Arc::default(),
        marks: Arc::default(),
        ring_location: ring_on,
    });
    Node::Mirrored(Box::new(MirrorNode {
        geometry,
        members,
        successors: Vec::new(),
        regions: Arc::new(map),
        parity,
        failed: false,
    }))
}

/// Files of 16 MiB that are removed on drop.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Files {
        let folder = std::env::temp_dir().join(format!("braid-allocations-{}-{name}", std::process::id()));
        std::fs::create_dir(&folder).expect("temporary files can be written");
        Files(folder)
    }
    fn names(&self) -> Vec<String> {
        (0..3).map(|i| format!("file:{}/{i},size=16M", self.0.display())).collect()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the load of `braid bench` on a device, and asserts that it allocates nothing.
fn bench_allocates_nothing(
    what: &str,
    driver: DriverKind,
    level: Option<Level>,
    names: &[String],
    (order, ios): (Order, u64),
) {
    allocates_nothing(what, driver, ArrayKind { level, ..ArrayKind::default() }, names, (order, ios));
}

/// Does the same for an array of any kind.
fn allocates_nothing(what: &str, driver: DriverKind, kind: ArrayKind, names: &[String], (order, ios): (Order, u64)) {
    let level = kind.level;
    let (sender, done) = sync_channel(1);
    let seen = Arc::new(AtomicU64::new(0));
    let config = RingConfig { driver: Some(driver), ..RingConfig::default() };
    let load = Load {
        epoch: 0,
        slot: 0,
        device: DEVICE,
        depth: 128,
        block_bytes: 4096,
        buffers: 1,
        first_byte: 0,
        span_bytes: 40 << 20,
        visit: Visit { order, theta: 1.0, reads_percent: 50 },
        seed: 1,
        verify: None,
        rate: None,
        only: None,
        flush_every: None,
    };
    let load = Load {
        span_bytes: match level {
            Some(Level::Raid1 | Level::Raid10 | Level::Raid5) => 16 << 20,
            Some(Level::Raid6) => 8 << 20,
            _ => load.span_bytes,
        },
        ..load
    };
    let load = Load { span_bytes: if names.len() == 1 { 16 << 20 } else { load.span_bytes }, ..load };
    let ring = Ring::start(&config, |_| {
        let inner = LoadFrontend::new(sender.clone(), Arc::new(LiveCell::default()));
        vec![Box::new(Counted { inner, seen: Arc::clone(&seen) }) as Box<dyn Frontend>]
    })
    .expect("the ring starts");
    let handle = ring.handle();
    assert!(publish(&handle, kind, names) >= load.span_bytes);
    let phase = |ios| {
        let phase = Phase { load: Arc::new(load.clone()), pass: Pass::Run { ios, time_ns: u64::MAX } };
        handle.post(ShardId(0), 0, Box::new(phase));
        let found = done.recv().expect("the shard answers");
        assert_eq!((found.ios, found.errors), (ios, 0), "{what}");
    };
    // Allocations at the first use of something belong to the start.
    phase(ios.min(100_000));
    let before = probe(&handle);
    phase(ios);
    let allocations = seen.load(Ordering::Relaxed) - before;
    println!("allocations: {what}: {allocations} in {ios} I/Os");
    assert_eq!(allocations, 0, "{what}");
    ring.stop();
}

#[test]
fn no_level_allocates_for_an_io() {
    let (null, mem) = (vec!["null:16M".to_owned(); 3], vec!["mem:16M".to_owned(); 3]);
    for (kind, names) in [("null", &null), ("memory", &mem)] {
        bench_allocates_nothing(
            &format!("one {kind} disk"),
            DriverKind::Uring,
            None,
            &names[..1],
            (Order::Random, IOS),
        );
        for level in [Level::Concat, Level::Raid0, Level::Raid1, Level::Raid10] {
            let what = format!("{level} of 3 {kind} disks");
            bench_allocates_nothing(&what, DriverKind::Uring, Some(level), names, (Order::Random, IOS));
        }
        for level in [Level::Raid5, Level::Raid6] {
            for order in [Order::Random, Order::Sequential] {
                let what = format!("{level} of 3 {kind} disks, {order:?}");
                bench_allocates_nothing(&what, DriverKind::Uring, Some(level), names, (order, IOS / 4));
                let (what, names) = (format!("{what}, journal on a fourth"), [&names[..], &names[..1]].concat());
                let kind = ArrayKind { level: Some(level), journal_last: true, ..ArrayKind::default() };
                allocates_nothing(&what, DriverKind::Uring, kind, &names, (order, IOS / 4));
            }
        }
    }
}

/// Many of these reads wait for writes, as they hit few blocks.
#[test]
fn a_replicated_array_allocates_nothing_for_an_io() {
    let kind = ArrayKind { level: Some(Level::Raid1), replicated: true, ..ArrayKind::default() };
    for disk in ["null", "mem"] {
        let names = vec![format!("{disk}:16M"); 3];
        let what = format!("a replicated raid1 of 3 {disk} disks");
        allocates_nothing(&what, DriverKind::Uring, kind, &names, (Order::Random, IOS));
    }
}

#[test]
fn no_driver_allocates_for_an_io() {
    for driver in DriverKind::ALL {
        let files = Files::new(driver.name());
        // Real I/O: fewer requests, but enough that any growing structure would have to grow.
        for level in [Level::Raid0, Level::Raid1] {
            let what = format!("{level} of 3 files by {driver}");
            bench_allocates_nothing(&what, driver, Some(level), &files.names(), (Order::Random, 20_000));
        }
    }
}

/// Counts completed requests.
struct Completions(u64);

impl Replies for Completions {
    fn done(&mut self, _: u16, result: Result<(), u32>) {
        assert_eq!(result, Ok(()));
        self.0 += 1;
    }
}

/// Sends this many mixed reads and writes from one client.
fn drive(client: &mut Client, ios: u64) {
    let mut random = Random::new(7);
    let payload: Arc<[u8]> = vec![0x5a; 4096].into();
    let (mut sent, mut completions) = (0, Completions(0));
    while completions.0 < ios {
        while sent < ios && client.free() > 0 {
            let offset = random.below(client.size_bytes() / 4096) * 4096;
            let slot = match random.below(20) {
                // Now and then a request that is neither a read nor a write.
                0 => client.queue(braid_nbd::codec::command::FLUSH, 0, 0, 0),
                1..10 => client.queue_read(offset, 4096),
                _ => client.queue_write_shared(offset, &payload, 0, 4096, 0),
            };
            slot.expect("a slot was free");
            sent += 1;
        }
        client.exchange(true, &mut completions).expect("the connection holds");
    }
}

#[test]
fn the_nbd_server_allocates_nothing_for_an_io() {
    let exports = Arc::new(ExportTable::new());
    let seen = Arc::new(AtomicU64::new(0));
    let ring = Ring::start(&RingConfig::default(), |_| {
        let inner = NbdFrontend::new(Arc::clone(&exports), Arc::new(EventQueue::new()), ServerConfig::default());
        vec![Box::new(Counted { inner, seen: Arc::clone(&seen) }) as Box<dyn Frontend>]
    })
    .expect("the ring starts");
    let handle = ring.handle();
    let kind = ArrayKind { level: Some(Level::Raid0), ..ArrayKind::default() };
    let size_bytes = publish(&handle, kind, &vec!["mem:16M".to_owned(); 3]);
    exports.add(ExportInfo::new("data", DEVICE, size_bytes)).expect("there is room");
    for structured in [false, true] {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        handle.post(
            ShardId(0),
            0,
            Box::new(NewConnection { fd: theirs.into(), peer: String::new(), exports: None, address: None, tls: None }),
        );
        let config = ClientConfig { depth: 128, structured, ..ClientConfig::default() };
        let mut client = Client::over_unix(ours, "data", config).expect("the handshake succeeds");
        drive(&mut client, 10_000);
        let before = probe(&handle);
        drive(&mut client, IOS);
        let allocations = seen.load(Ordering::Relaxed) - before;
        let style = if structured { "structured" } else { "simple" };
        println!("allocations: NBD with {style} replies, raid0 of 3 memory disks: {allocations} in {IOS} I/Os");
        assert_eq!(allocations, 0, "{style} replies");
        client.disconnect().expect("a goodbye");
    }
    ring.stop();
}

#[test]
fn the_count_sees_an_allocation() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(Box::new([0u8; 100])));
    assert_eq!(ALLOCATIONS.get() - before, 1);
    let mut grows = Vec::with_capacity(1);
    grows.extend(std::hint::black_box([1u64, 2, 3]));
    assert!(ALLOCATIONS.get() - before >= 3);
}
