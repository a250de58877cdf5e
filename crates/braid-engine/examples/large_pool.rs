//! A pool of which so many GiB are allocated (4096 by default), as tables in a sparse file: how long it takes to open,
//! and how long other requests wait for a slice of work that goes through all of its records.
//!
//! `cargo run --release -p braid-engine --example large_pool -- 4096 FILE`; add `open` to only open it, or `holes` for
//! extents that lack a block each. The file has 32 bytes for each 256 KiB, and is removed. Processor time is this
//! process's; reads come from the page cache, so that the work is measured, not the disk.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use braid_engine::pool::{
    BUFFERS, LogMemory, MemberLayout, MergeStep, OpenPool, Pool, PoolDevice, PoolMemory, PoolOp, open,
};
use braid_engine::{DeviceId, DeviceIo, IoError, Uuid};
use braid_format::pool::{Checkpoint, Owner, OwnerName, Record, RecordKind};

const EXTENT: u64 = 256 << 10;
const RING_BLOCKS: u64 = 16 << 10;
const OWNER_SLOTS: u32 = 1024;
const ZERO_SLOTS: u32 = 1024;
/// The daemon's limit of each slice.
const SERVE_LOADS: u32 = 4096;
const MERGE_RECORDS: u32 = 500;
const SCAN_RECORDS: u32 = 2000;

struct Member(File);

impl DeviceIo for Member {
    fn size_bytes(&self, _: DeviceId) -> u64 {
        u64::MAX
    }
    fn block_bytes(&self, _: DeviceId) -> u32 {
        4096
    }
    async fn read(&self, _: DeviceId, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
        let mut bytes = vec![0; len];
        self.0.read_exact_at(&mut bytes, offset).expect("the file can be read");
        Ok(bytes)
    }
    async fn write(&self, _: DeviceId, offset: u64, data: Vec<u8>, _: bool) -> Result<(), IoError> {
        self.0.write_all_at(&data, offset).expect("the file can be written");
        Ok(())
    }
    async fn flush(&self, _: DeviceId) -> Result<(), IoError> {
        Ok(())
    }
    async fn discard(&self, _: DeviceId, _: u64, _: u64) -> Result<(), IoError> {
        Ok(())
    }
}

struct Tail(Box<[AtomicU64]>);

impl LogMemory for Tail {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

struct Memory(Vec<Vec<u8>>);

impl PoolMemory for Memory {
    fn buffer(&mut self, index: u32) -> &mut [u8] {
        &mut self.0[index as usize]
    }
}

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("everything answers at once"),
    }
}

fn owner(size_bytes: u64) -> Owner {
    Owner::volume(Uuid::from_u128(2), OwnerName::new("volume").expect("a good name"), size_bytes)
}

/// Returns the processor time of this process.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/schedstat").expect("Linux tells it");
    Duration::from_nanos(stat.split(' ').next().and_then(|word| word.parse().ok()).expect("nanoseconds"))
}

/// Returns the memory that this process has in use, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells it");
    statm.split(' ').nth(1).and_then(|word| word.parse::<u64>().ok()).expect("pages") * 4096
}

/// Measures the time of slices.
#[derive(Default)]
struct Slices(Vec<Duration>);

impl Slices {
    fn time<T>(&mut self, slice: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let value = slice();
        self.0.push(begun.elapsed());
        value
    }

    fn tell(mut self, what: &str) {
        self.0.sort_unstable();
        let (len, total) = (self.0.len(), self.0.iter().sum::<Duration>());
        let (median, high, most) = (self.0[len / 2], self.0[len * 999 / 1000], self.0[len - 1]);
        println!("{what:34} {len:8} slices: median {median:?}, 99.9% {high:?}, longest {most:?}, together {total:?}");
    }
}

/// Does the pool's pending I/O.
fn pump(io: &Member, pool: &mut Pool, memory: &mut Memory) {
    while let Some(next) = pool.next_io(memory) {
        if let PoolOp::Write { buffer } = next.op {
            let data = memory.buffer(buffer)[..next.len as usize].to_vec();
            now(io.write(DeviceId(0), next.offset, data, false)).expect("the file can be written");
        }
        pool.io_done(next.token, Ok(()));
        if let Some(number) = pool.next_barrier() {
            pool.barrier_done(number);
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let gib: u64 = arguments.next().and_then(|word| word.parse().ok()).unwrap_or(4096);
    let path = arguments.next().unwrap_or_else(|| "large-pool.img".to_owned());
    let extents = (gib << 30) / EXTENT;
    let (starts, ring) = (4096, 3 * 4096);
    let owners = ring + RING_BLOCKS * 4096;
    let table = owners + u64::from(OWNER_SLOTS) * 256;
    let table_bytes = ((extents + u64::from(ZERO_SLOTS)) * 32).next_multiple_of(4096);
    let addresses = table + table_bytes;
    let data = (addresses + extents * 512).next_multiple_of(EXTENT);
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).expect("a new file");
    file.set_len(data).expect("a sparse file");
    // The file has no name any more: however this ends, it is removed.
    std::fs::remove_file(&path).expect("it was just made");
    let io = Member(file);
    let uuid = Uuid::from_u128(1);
    let write = |at: u64, bytes: &[u8]| io.0.write_all_at(bytes, at).expect("the file can be written");
    write(starts, &Checkpoint::first(&uuid, 1).encode());
    write(owners, &owner(extents * EXTENT).encode(0));
    let what = arguments.next().unwrap_or_default();
    let only_open = what == "open";
    let present = if what == "holes" { u64::MAX >> 1 } else { u64::MAX };
    let mut chunk = Vec::with_capacity(1 << 20);
    for index in 0..extents as u32 {
        let kind = RecordKind::Whole;
        let record = Record { kind, life: 1, owner: 1, logical: index, present, zero: 0 };
        chunk.extend_from_slice(&record.encode(0, index));
        if chunk.len() == 1 << 20 || u64::from(index) + 1 == extents {
            write(table + u64::from(index + 1) * 32 - chunk.len() as u64, &chunk);
            chunk.clear();
        }
    }
    let begun = Instant::now();
    for at in (0..table_bytes).step_by(8 << 20) {
        let _ = now(io.read(DeviceId(0), table + at, (8 << 20).min(table_bytes - at) as usize));
    }
    let reading = begun.elapsed();

    let places = MemberLayout { starts, owners, table, addresses, data };
    let ring = (ring, RING_BLOCKS);
    let members = [PoolDevice {
        number: 0,
        device: DeviceId(0),
        layout: places,
        ring,
        extents: extents as u32,
        zero_slots: ZERO_SLOTS,
    }];
    let what = OpenPool {
        uuid,
        members: &members,
        owner_slots: OWNER_SLOTS,
        missing: 0,
        overwrites_unreadable: false,
        run: 5,
    };
    let tail = |_, bytes: u64| {
        let memory: Arc<dyn LogMemory> = Arc::new(Tail((0..bytes / 8).map(|_| AtomicU64::new(0)).collect()));
        Ok(memory)
    };
    let (before, begun, busy) = (resident(), Instant::now(), cpu());
    let mut pool = now(open(&io, &what, |_| None, tail)).expect("the pool opens");
    let (took, worked) = (begun.elapsed(), cpu() - busy);
    println!("{gib} GiB in {extents} extents, {} MiB of records", table_bytes >> 20);
    println!(
        "read alone {reading:?}; opened in {took:?}, {} ns of processor time a record",
        worked.as_nanos() as u64 / extents
    );
    println!("memory for records {} bytes an extent", (resident().saturating_sub(before)) / extents);

    if only_open {
        return;
    }

    let before = resident();
    let mut slices = Slices::default();
    let id = loop {
        if let Some(id) = slices.time(|| pool.serve_step(1, SERVE_LOADS)).expect("it is there") {
            break id;
        }
    };
    slices.tell("building the map");
    println!("memory for the map {} bytes an extent", (resident().saturating_sub(before)) / extents);

    // Nothing is compacted: only the scan is measured.
    pool.compact(vec![1]);
    let (before, mut most) = (resident(), 0);
    let mut slices = Slices::default();
    while pool.is_compacting() {
        slices.time(|| pool.compact_step(SCAN_RECORDS));
        most = most.max(resident());
    }
    slices.tell("looking for what to compact");
    println!("memory for that {} KiB", most.saturating_sub(before) >> 10);

    let mut memory = Memory((0..BUFFERS).map(|_| vec![0; 65_536]).collect());
    let snapshot = [(1, Uuid::from_u128(3), OwnerName::new("old").expect("a good name"))];
    pool.snapshot(&snapshot, 0).expect("it can be taken");
    let commit = pool.request_commit();
    pump(&io, &mut pool, &mut memory);
    assert_eq!(pool.is_committed(commit), Ok(true));
    pool.stop_serving(id);
    pool.delete_snapshot(1).expect("it can be deleted");
    let (mut slices, mut writing) = (Slices::default(), Duration::ZERO);
    let begun = Instant::now();
    loop {
        match slices.time(|| pool.merge_step(MERGE_RECORDS)) {
            MergeStep::Some | MergeStep::Later => pool.commit_if_due(),
            MergeStep::LogFull => drop(pool.request_commit()),
            MergeStep::Nothing if pool.state().owners.iter().count() == 1 => break,
            MergeStep::Nothing => drop(pool.request_commit()),
        }
        let at = Instant::now();
        pump(&io, &mut pool, &mut memory);
        writing += at.elapsed();
    }
    slices.tell("folding");
    println!("a deleted snapshot is folded in {:?}, {writing:?} of it commits and tables", begun.elapsed());
}
