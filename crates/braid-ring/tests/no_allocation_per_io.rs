//! A million I/Os on null and memory disks, and thousands on files, allocate nothing after start.
#![allow(clippy::unwrap_used)]
#![allow(unsafe_code)] // A global allocator is unsafe by its nature.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use braid_engine::PoolKey;
use braid_ring::RingConfig;
use common::load::{self, Order};
use common::{Folder, TestBed, volume};

struct Counting;

/// Set while a shard is under load: every allocation on its thread then counts.
static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IS_SHARD: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    if COUNTING.load(Ordering::Relaxed) && IS_SHARD.try_with(Cell::get).unwrap_or(false) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: all calls go to the system allocator; counting accesses an atomic and a constant-initialised thread-local.
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

/// Called on the shard's thread before the first request and after the last: toggles counting.
fn probe() {
    IS_SHARD.with(|is| is.set(true));
    COUNTING.fetch_xor(true, Ordering::SeqCst);
}

/// Makes the tests run one after another.
static SERIAL: Mutex<()> = Mutex::new(());

#[test]
fn a_million_ios_allocate_nothing() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Folder::new("alloc");
    let file = |n: &str| format!("file:{},size=16M", folder.path(n));
    let mut bed = TestBed::new(&RingConfig::default());
    let disks = ["null:16M".into(), "mem:16M".into(), file("a"), "throttled(mem:16M,iops=1000000000)".into()];
    for (name, total) in disks.iter().zip([1_000_000, 1_000_000, 10_000, 100_000]) {
        let (device, _) = bed.bare(name);
        run(&bed, name, device, 16 << 20, total);
    }
    for (chunk, total) in [(4096, 100_000), (64 << 10, 200_000)] {
        let device = bed.striped(&["null:16M", "mem:16M", "null:24M"], chunk);
        run(&bed, "raid0 of memory", device, 48 << 20, total);
    }
    let device = bed.striped(&[&file("b"), &file("c"), &file("d")], 4096);
    run(&bed, "raid0 of files", device, 40 << 20, 4000);
    bed.ring.stop();
}

/// On a volume of a pool, from the pool's home shard and from another shard: reads, overwrites, first writes, and the
/// commits that flushes cause.
#[test]
fn a_volume_allocates_nothing() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bed = TestBed::new(&RingConfig { shards: 2, ..RingConfig::default() });
    // A disk that completes at once, and one that does not.
    let disks = ["mem:256M", "throttled(mem:256M,iops=1000000000)"];
    for (key, (disk, shard)) in (0..).zip(disks.iter().flat_map(|disk| [(*disk, 0), (*disk, 1)])) {
        let (member, _) = bed.bare(disk);
        let (device, bytes) = volume::thin(&mut bed, PoolKey(key), member, 256 << 20);
        let order = |size: u64, total: u64, writes: u64| Order {
            device,
            size: size & !4095,
            len: 4096,
            depth: 64,
            total,
            writes,
            probe,
        };
        let name = |what: &str| format!("{what}, {disk}, from shard {shard}");
        // Buffers that grow to their size and then keep it.
        begin(&bed, &name("begin"), shard, &order(bytes, 4000, 10));
        let first = begin(&bed, &name("first writes"), shard, &order(bytes, 10_000, 10));
        assert_eq!(first, 0, "{}: allocations", name("first writes"));
        begin(&bed, &name("fill"), shard, &order(8 << 20, 40_000, 10));
        let over = begin(&bed, &name("overwrites"), shard, &order(8 << 20, 20_000, 3));
        assert_eq!(over, 0, "{}: allocations", name("overwrites"));
    }
    bed.ring.stop();
}

fn run(bed: &TestBed, name: &str, device: braid_engine::DeviceId, size: u64, total: u64) {
    let order = Order { device, size, len: 16 << 10, depth: 64, total, writes: 3, probe };
    assert_eq!(begin(bed, name, 0, &order), 0, "{name}: allocations in {total} I/Os");
}

/// Returns the number of allocations on that shard.
fn begin(bed: &TestBed, name: &str, shard: u16, order: &Order) -> u64 {
    let total = order.total;
    ALLOCATIONS.store(0, Ordering::SeqCst);
    let outcome = load::begin(&bed.handle, shard, 1, order).recv().expect("an outcome");
    assert_eq!((outcome.errors, outcome.ended), (0, total), "{name}");
    let allocations = ALLOCATIONS.load(Ordering::SeqCst);
    ALLOCATIONS.store(0, Ordering::SeqCst);
    // The counter itself works: this thread counts as a shard for a moment.
    probe();
    let boxed = std::hint::black_box(Box::new(total));
    probe();
    drop(boxed);
    IS_SHARD.with(|is| is.set(false));
    assert_eq!(ALLOCATIONS.load(Ordering::SeqCst), 1);
    allocations
}
