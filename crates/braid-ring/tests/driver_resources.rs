//! On each driver: no I/O on disks or sockets allocates memory; an idle ring sleeps with all of its threads; and a
//! stopped ring leaves no thread and no descriptor behind.

#![allow(clippy::unwrap_used)]
#![allow(unsafe_code)] // A global allocator is unsafe by its nature.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::any::Any;
use std::cell::Cell;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use braid_engine::{Buf, Completion, DeviceId, DeviceLayout, Node, ShardId};
use braid_ring::{Cx, DriverKind, Frontend, RecvMode, Ring, RingConfig, SendPiece, SocketId};
use common::load::{Load, Order, begin};
use common::{Folder, open};

/// Counts allocations while counting is on, of all threads except the tests' own. Threads of pools are included.
struct Counting;

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IS_TEST: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    if COUNTING.load(Ordering::Relaxed) && !IS_TEST.try_with(Cell::get).unwrap_or(true) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: all calls go to the system allocator; counting accesses atomics and a constant-initialised thread-local.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: guaranteed by the caller.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn switch_counting() {
    COUNTING.fetch_xor(true, Ordering::SeqCst);
}

fn allocations() -> u64 {
    ALLOCATIONS.swap(0, Ordering::SeqCst)
}

/// Makes these tests run one after another, because the counts cover the whole process.
fn serialize() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    IS_TEST.set(true);
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

const PART: u32 = 16 << 10;

/// Sends back what it receives, in parts.
#[derive(Default)]
struct Echo {
    socket: Option<SocketId>,
    buf: Option<Buf>,
}

impl Echo {
    fn listen(&mut self, cx: &mut Cx<'_>) {
        if let (Some(socket), Some(buf)) = (self.socket, self.buf) {
            cx.recv(socket, buf, PART, RecvMode::Some, 0);
        }
    }
}

impl Frontend for Echo {
    fn message(&mut self, cx: &mut Cx<'_>, message: Box<dyn Any + Send>) {
        self.socket = cx.add_socket(*message.downcast::<OwnedFd>().unwrap()).ok();
        self.buf = cx.alloc(PART as usize);
        self.listen(cx);
    }

    fn io_done(&mut self, _: &mut Cx<'_>, _: &Completion) {
        unreachable!("it submits nothing");
    }

    fn net_done(&mut self, cx: &mut Cx<'_>, token: u64, result: i32) {
        let (Some(socket), Some(buf)) = (self.socket, self.buf) else { return };
        match (token, u32::try_from(result)) {
            (0, Ok(bytes @ 1..)) => {
                // In two pieces, if there are enough bytes.
                let first = bytes.div_ceil(2);
                let pieces = [(buf, first), (buf.add(u64::from(first)), bytes - first)];
                let pieces = pieces.map(|(buf, len)| SendPiece { buf, len });
                cx.send(socket, &pieces, 1);
            }
            (1, Ok(_)) => self.listen(cx),
            _ => {
                cx.close(socket);
                self.socket = None;
            }
        }
    }
}

struct TestBed {
    ring: Ring,
    client: UnixStream,
    _folder: Folder,
    device: DeviceId,
}

const SIZE: u64 = 16 << 20;

/// Starts two shards with a disk on a file and a connected client.
fn bed(driver: DriverKind) -> TestBed {
    let folder = Folder::new(&format!("lean-{driver}"));
    let config = RingConfig { shards: 2, driver: Some(driver), ..RingConfig::default() };
    let ring = Ring::start(&config, |_| vec![Box::new(Load::default()), Box::new(Echo::default())]).unwrap();
    let handle = ring.handle();
    let leaf = handle.add_leaf(open(&format!("file:{},size=16M", folder.path("disk")))).unwrap();
    let device = DeviceId(0);
    let layout = DeviceLayout::new(1, 512, &Node::Leaf { leaf, start: 0, len: SIZE });
    handle.publish_and_drain(device, Some(Arc::new(layout))).wait().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    handle.post(ShardId(1), 1, Box::new(OwnedFd::from(theirs)));
    TestBed { ring, client: ours, _folder: folder, device }
}

impl TestBed {
    fn load(&self, total: u64, probe: fn()) {
        let order = Order { device: self.device, size: SIZE, len: 16 << 10, depth: 64, total, writes: 3, probe };
        let outcome = begin(&self.ring.handle(), 0, 0, &order).recv().unwrap();
        assert_eq!((outcome.ended, outcome.errors), (total, 0));
    }

    fn ping(&mut self, count: u8) {
        let mut reply = [0; 3000];
        for n in 0..count {
            self.client.write_all(&[n; 3000]).unwrap();
            self.client.read_exact(&mut reply).unwrap();
            assert_eq!(reply, [n; 3000]);
        }
    }

    /// Sends more than the socket buffers hold, in both directions at once.
    fn fill_both_directions(&mut self) {
        const BYTES: usize = 6 << 20;
        let mut sender = self.client.try_clone().unwrap();
        let sending = std::thread::spawn(move || {
            (0..BYTES / (1 << 16)).for_each(|n| sender.write_all(&[n as u8; 1 << 16]).unwrap());
        });
        std::thread::sleep(Duration::from_millis(50));
        let mut got = vec![0; BYTES];
        self.client.read_exact(&mut got).unwrap();
        sending.join().unwrap();
        assert!(got.chunks(1 << 16).enumerate().all(|(n, part)| part.iter().all(|b| *b == n as u8)));
    }
}

/// Waits until all other threads sleep. On a busy machine some threads may not have started yet, and allocations at the
/// start of a thread are not those of an I/O.
fn let_threads_begin() {
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let is_asleep = |task: &std::fs::DirEntry| {
        // A task that has ended meanwhile counts as asleep.
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_none_or(|state| state.is_empty() || state.starts_with(['S', 'D', 'Z']))
    };
    let all_asleep = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(Result::unwrap);
        let mut others = tasks.filter(|task| Some(&*task.file_name()) != own.file_name());
        others.all(|task| is_asleep(&task))
    };
    for _ in 0..10_000 {
        if all_asleep() && all_asleep() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("the threads never sleep");
}

fn allocates_nothing(driver: DriverKind) {
    let _serial = serialize();
    let mut bed = bed(driver);
    let_threads_begin();
    allocations();
    bed.load(20_000, switch_counting);
    assert_eq!(allocations(), 0, "{driver}, disk");
    bed.ping(1);
    switch_counting();
    bed.ping(200);
    switch_counting();
    assert_eq!(allocations(), 0, "{driver}, socket");
    // The counter itself works.
    let counted = std::thread::spawn(|| {
        switch_counting();
        drop(std::hint::black_box(Box::new(1)));
        switch_counting();
    });
    counted.join().unwrap();
    assert_eq!(allocations(), 1);
    bed.ring.stop();
}

/// Returns the name and the number of wake-ups of each thread of rings in this process.
fn threads() -> Vec<(String, u64)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    let field = |status: &str, name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        value.trim().to_string()
    };
    let threads = statuses.map(|s| (field(&s, "Name:"), field(&s, "voluntary_ctxt_switches:").parse().unwrap()));
    let mut ours: Vec<(String, u64)> =
        threads.filter(|(name, _)| name.starts_with("shard-") || name.starts_with("disk-io-")).collect();
    ours.sort();
    ours
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Waits until the threads of rings have ended, and the number of open descriptors is as before. A joined thread may
/// still be about to exit in the kernel.
fn nothing_is_left(descriptors_before: Option<usize>) {
    let begun = Instant::now();
    while !threads().is_empty() || descriptors_before.is_some_and(|before| before != descriptors()) {
        let late = begun.elapsed() > Duration::from_secs(20);
        assert!(!late, "left behind: {:?}, {} files instead of {descriptors_before:?}", threads(), descriptors());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn sleeps_and_leaves_nothing(driver: DriverKind) {
    let _serial = serialize();
    nothing_is_left(None);
    let before = descriptors();
    let mut bed = bed(driver);
    bed.load(2000, || {});
    bed.ping(20);
    bed.fill_both_directions();

    std::thread::sleep(Duration::from_millis(100));
    let asleep = threads();
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(threads(), asleep, "{driver}: a thread woke up without work");
    bed.ping(50);
    std::thread::sleep(Duration::from_millis(100));
    assert_ne!(threads(), asleep, "work wakes them");

    // Stopped under load, with a connected client.
    let order =
        Order { device: bed.device, size: SIZE, len: 4096, depth: 200, total: u64::MAX, writes: 3, probe: || {} };
    let load = begin(&bed.ring.handle(), 0, 0, &order);
    std::thread::sleep(Duration::from_millis(100));
    let TestBed { ring, mut client, .. } = bed;
    let begun = Instant::now();
    ring.stop();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(load.recv().unwrap().errors, 0);
    assert_eq!(client.read(&mut [0; 8]).unwrap(), 0, "the client sees the end");
    drop(client);
    nothing_is_left(Some(before));
}

#[test]
fn uring_allocates_nothing() {
    allocates_nothing(DriverKind::Uring);
}

#[test]
fn libaio_allocates_nothing() {
    allocates_nothing(DriverKind::Libaio);
}

#[test]
fn threads_allocate_nothing() {
    allocates_nothing(DriverKind::Threads);
}

#[test]
fn uring_sleeps_and_leaves_nothing() {
    sleeps_and_leaves_nothing(DriverKind::Uring);
}

#[test]
fn libaio_sleeps_and_leaves_nothing() {
    sleeps_and_leaves_nothing(DriverKind::Libaio);
}

#[test]
fn threads_sleep_and_leave_nothing() {
    sleeps_and_leaves_nothing(DriverKind::Threads);
}
