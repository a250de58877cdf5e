//! Tests of each driver in isolation: jobs in, events out.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::thread_pool::{THREADS, ThreadPool};
use super::*;
use crate::map::Map;

/// A driver with its surroundings.
struct TestBed {
    driver: Driver,
    wake: Arc<Wake>,
    events: Vec<Event>,
    /// Results by token that the test has not read yet.
    ended: HashMap<u64, i32>,
    memory: Map,
}

const MEMORY: usize = 16 << 20;

impl TestBed {
    fn new(kind: DriverKind) -> TestBed {
        let wake = Arc::new(Wake::new().unwrap());
        let memory = Map::new(MEMORY).unwrap();
        let config =
            DriverConfig { depth: 1024, files: 64, buffers: (memory.addr(), memory.len()), wake: Arc::clone(&wake) };
        let (driver, info) = Driver::start(Some(kind), &config).unwrap();
        assert_eq!((info.kind, info.skipped), (kind, vec![]));
        TestBed { driver, wake, events: Vec::new(), ended: HashMap::new(), memory }
    }

    fn push(&mut self, token: u64, job: Job) {
        // SAFETY: tests keep the bed's memory, their iovecs and files until they have seen the event.
        unsafe { self.driver.push(token, &job) };
    }

    fn turn(&mut self, wait: Wait) {
        self.driver.turn(wait, &mut self.events);
        for event in self.events.drain(..) {
            assert_eq!(self.ended.insert(event.token, event.result), None, "one event for each job");
        }
    }

    /// Waits for a job's event.
    fn result(&mut self, token: u64) -> i32 {
        let begin = Instant::now();
        loop {
            if let Some(result) = self.ended.remove(&token) {
                return result;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "job {token} does not end");
            self.turn(Wait::For(1_000_000_000));
        }
    }

    fn call(&mut self, job: Job) -> i32 {
        self.push(1 << 40, job);
        self.result(1 << 40)
    }

    fn bytes(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at + len <= MEMORY);
        // SAFETY: inside the mapping; tests access only memory that no job uses.
        unsafe { std::slice::from_raw_parts_mut(self.memory.ptr().add(at), len) }
    }

    fn one(&self, at: usize, len: usize) -> Memory {
        Memory::One { addr: self.memory.addr() + at as u64, len: len as u32, region: 0 }
    }

    /// Returns a connected socket, watched under `index`, its `FileRef`, and its peer.
    fn socket(&mut self, index: u32) -> (UnixStream, FileRef, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(!self.driver.waits_for_sockets()).unwrap();
        theirs.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert!(self.driver.watch_socket(index, ours.as_raw_fd()));
        let file = FileRef { fd: ours.as_raw_fd(), slot: FileRef::UNREGISTERED, direct: false };
        (ours, file, theirs)
    }
}

fn on_each(test: impl Fn(&mut TestBed)) {
    for kind in DriverKind::ALL {
        test(&mut TestBed::new(kind));
    }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Creates a private file beside the test program, which is more likely on a disk than /tmp, and unlinks it at once.
fn file(name: &str, direct: bool) -> std::fs::File {
    // Tests that run in parallel may use the same name.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (program, next) = (std::env::current_exe().unwrap(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = program.with_file_name(format!("driver-{name}-{}-{next}", std::process::id()));
    let flags = if direct { libc::O_DIRECT } else { 0 };
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).custom_flags(flags).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}

/// Makes random reads and writes of one or several pieces, many at a time, and compares them with a copy in memory.
fn keeps_a_file(bed: &mut TestBed, direct: bool, registered: bool) {
    const BLOCK: usize = 4096;
    const BLOCKS: usize = 256;
    const BATCH: usize = 64;
    let disk = file("keeps", direct);
    disk.set_len((BLOCKS * BLOCK) as u64).unwrap();
    let slot = if registered && bed.driver.register_file(7, disk.as_raw_fd()) { 7 } else { FileRef::UNREGISTERED };
    let file = FileRef { fd: disk.as_raw_fd(), slot, direct };
    let mut model = vec![0u8; BLOCKS * BLOCK];
    let mut seed = 0x5eed + u64::from(direct);
    for round in 0..40u64 {
        // Each job of a batch has up to four blocks of its own in the file and in memory, in reverse order in memory.
        let mut iovecs = vec![[libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 4]; BATCH];
        let mut jobs = Vec::new();
        for (n, iovecs) in iovecs.iter_mut().enumerate() {
            let pieces = 1 + random(&mut seed) as usize % 4;
            let first = n * 4 + random(&mut seed) as usize % (5 - pieces);
            let write = round % 2 == 0;
            for (piece, iovec) in iovecs.iter_mut().enumerate().take(pieces) {
                let at = (n * 4 + 3 - piece) * BLOCK;
                bed.bytes(at, BLOCK).fill(if write { random(&mut seed) as u8 } else { 0xee });
                *iovec = libc::iovec { iov_base: bed.bytes(at, BLOCK).as_mut_ptr().cast(), iov_len: BLOCK };
            }
            let memory = match pieces {
                1 => bed.one((n * 4 + 3) * BLOCK, BLOCK),
                _ => Memory::Many { iov: iovecs.as_ptr(), count: pieces as u32 },
            };
            let offset = (first * BLOCK) as u64;
            let dsync = random(&mut seed).is_multiple_of(4);
            let job =
                if write { Job::Write { file, offset, memory, dsync } } else { Job::Read { file, offset, memory } };
            bed.push(n as u64, job);
            jobs.push((pieces, first, write));
        }
        if round % 5 == 0 {
            assert_eq!(bed.call(Job::Sync { file }), 0);
        }
        for (n, (pieces, first, write)) in jobs.into_iter().enumerate() {
            assert_eq!(bed.result(n as u64), (pieces * BLOCK) as i32);
            for piece in 0..pieces {
                let in_model = (first + piece) * BLOCK..(first + piece + 1) * BLOCK;
                let in_memory = bed.bytes((n * 4 + 3 - piece) * BLOCK, BLOCK);
                if write {
                    model[in_model].copy_from_slice(in_memory);
                } else {
                    assert!(*in_memory == model[in_model], "round {round}: block {} differs", first + piece);
                }
            }
        }
    }
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let (offset, len) = ((8 * BLOCK) as u64, (16 * BLOCK) as u64);
    assert_eq!(bed.call(Job::Allocate { file, mode, offset, len }), 0);
    let memory = bed.one(0, 16 * BLOCK);
    assert_eq!(bed.call(Job::Read { file, offset, memory }), len as i32);
    assert!(bed.bytes(0, len as usize).iter().all(|b| *b == 0));
}

#[test]
fn files_keep_what_was_written() {
    for direct in [false, true] {
        for registered in [false, true] {
            on_each(|bed| keeps_a_file(bed, direct, registered));
        }
    }
}

/// Returns whether this file system supports RWF_NOWAIT reads of an allocated block.
fn knows_nowait() -> bool {
    let disk = file("nowait", true);
    let block = Map::new(4096).unwrap();
    let iov = libc::iovec { iov_base: block.ptr().cast(), iov_len: 4096 };
    // SAFETY: the block stays mapped during both calls.
    unsafe {
        assert_eq!(libc::pwritev(disk.as_raw_fd(), &raw const iov, 1, 0), 4096);
        libc::preadv2(disk.as_raw_fd(), &raw const iov, 1, 0, libc::RWF_NOWAIT) == 4096
    }
}

#[test]
fn libaio_is_used_where_it_does_not_block() {
    let mut bed = TestBed::new(DriverKind::Libaio);
    keeps_a_file(&mut bed, true, true);
    let Driver::Libaio(libaio) = &bed.driver else { unreachable!("as requested") };
    let (by_kernel, passed_on) = libaio.counts;
    if knows_nowait() {
        // The first writes allocate blocks and block; the reads and later writes need not.
        assert!(by_kernel > 1000, "{by_kernel} by the kernel, {passed_on} passed on");
    } else {
        assert!(passed_on > 0, "found out by trying");
    }
}

#[test]
fn errors_match_those_of_the_system_calls() {
    on_each(|bed| {
        let disk = file("errors", true);
        disk.set_len(8192).unwrap();
        let registered = bed.driver.register_file(3, disk.as_raw_fd());
        let slot = if registered { 3 } else { FileRef::UNREGISTERED };
        let file = FileRef { fd: disk.as_raw_fd(), slot, direct: true };
        let bad = FileRef { fd: -1, slot: FileRef::UNREGISTERED, direct: true };
        let memory = bed.one(0, 4096);
        assert_eq!(bed.call(Job::Read { file, offset: 8192, memory }), 0, "at the end there is nothing");
        // SAFETY: the memory belongs to the bed.
        let odd = unsafe { libc::pread(file.fd, bed.memory.ptr().cast(), 4096, 1) };
        let odd = if odd < 0 { -std::io::Error::last_os_error().raw_os_error().unwrap() } else { odd as i32 };
        assert_eq!(bed.call(Job::Read { file, offset: 1, memory }), odd, "EINVAL on most file systems");
        assert_eq!(bed.call(Job::Read { file: bad, offset: 0, memory }), -libc::EBADF);
        assert_eq!(bed.call(Job::Write { file: bad, offset: 0, memory, dsync: true }), -libc::EBADF);
        assert_eq!(bed.call(Job::Sync { file: bad }), -libc::EBADF);
        assert_eq!(bed.call(Job::Allocate { file, mode: 0, offset: 0, len: 0 }), -libc::EINVAL);
        assert_eq!(bed.call(Job::Write { file, offset: 0, memory, dsync: true }), 4096, "and it goes on");
    });
}

#[test]
fn more_jobs_than_the_kernel_takes_all_complete() {
    on_each(|bed| {
        let disk = file("many", true);
        disk.set_len(1 << 20).unwrap();
        let registered = bed.driver.register_file(0, disk.as_raw_fd());
        let file =
            FileRef { fd: disk.as_raw_fd(), slot: if registered { 0 } else { FileRef::UNREGISTERED }, direct: true };
        for token in 0..5000u64 {
            let (at, memory) = (token % 256 * 4096, bed.one((token % 1024) as usize * 4096, 4096));
            bed.push(token, Job::Read { file, offset: at, memory });
        }
        for token in 0..5000 {
            assert_eq!(bed.result(token), 4096);
        }
    });
}

/// Returns iovecs of various sizes over the start of the bed's memory.
fn uneven(bed: &mut TestBed, count: usize) -> (Vec<libc::iovec>, usize) {
    let (mut at, mut seed) = (0, 3);
    let iovecs = (0..count).map(|_| {
        let len = random(&mut seed) as usize % 60_000;
        at += len;
        libc::iovec { iov_base: bed.bytes(at - len, len).as_mut_ptr().cast(), iov_len: len }
    });
    (iovecs.collect(), at)
}

#[test]
fn a_send_is_complete_with_a_slow_reader() {
    on_each(|bed| {
        let (_ours, file, mut theirs) = bed.socket(5);
        let (mut iovecs, total) = uneven(bed, 200);
        let mut seed = 11;
        bed.bytes(0, total).iter_mut().for_each(|b| *b = random(&mut seed) as u8);
        let reader = std::thread::spawn(move || {
            let (mut got, mut part) = (Vec::new(), [0; 7001]);
            while got.len() < total {
                let count = theirs.read(&mut part).unwrap();
                got.extend_from_slice(&part[..count]);
            }
            got
        });
        let mut rest = &mut iovecs[..];
        while !rest.is_empty() {
            // SAFETY: a message header of zeros is an empty one.
            let mut message = unsafe { std::mem::zeroed::<libc::msghdr>() };
            (message.msg_iov, message.msg_iovlen) = (rest.as_mut_ptr(), rest.len() as _);
            bed.push(9 << 32 | 5, Job::Send { file, message: &raw const message });
            let mut sent = usize::try_from(bed.result(9 << 32 | 5)).expect("it succeeds");
            // Only io_uring of older kernels ends a send after a part. The shard's sockets then continue, as this loop
            // does.
            assert!(sent == rest.iter().map(|iov| iov.iov_len).sum() || bed.driver.waits_for_sockets());
            while !rest.is_empty() && sent >= rest[0].iov_len {
                sent -= rest[0].iov_len;
                rest = &mut rest[1..];
            }
            if sent > 0 {
                rest[0].iov_base = rest[0].iov_base.wrapping_byte_add(sent);
                rest[0].iov_len -= sent;
            }
        }
        assert!(reader.join().unwrap() == bed.bytes(0, total));
        bed.driver.unwatch_socket(5);
    });
}

#[test]
fn a_receive_returns_some_or_all_bytes() {
    on_each(|bed| {
        let (_ours, file, mut theirs) = bed.socket(0);
        let addr = bed.memory.addr();
        let recv = |len, whole| Job::Recv { file, addr, len, whole };
        bed.push(2 << 32, recv(1 << 20, false));
        bed.turn(Wait::No);
        assert!(bed.ended.is_empty(), "nothing has arrived");
        theirs.write_all(b"some").unwrap();
        assert_eq!(bed.result(2 << 32), 4);
        assert_eq!(bed.bytes(0, 4), b"some");

        bed.push(2 << 32, recv(1 << 20, true));
        let writer = std::thread::spawn(move || {
            for part in 0..64u8 {
                theirs.write_all(&[part; 16 << 10]).unwrap();
                std::thread::sleep(Duration::from_micros(200));
            }
            theirs
        });
        assert_eq!(bed.result(2 << 32), 1 << 20);
        let parts: Vec<u8> = bed.bytes(0, 1 << 20).iter().step_by(16 << 10).copied().collect();
        assert_eq!(parts, (0..64).collect::<Vec<u8>>());

        // The end of the stream ends the receive early, with the bytes received.
        let mut theirs = writer.join().unwrap();
        bed.push(2 << 32, recv(1 << 20, true));
        theirs.write_all(b"last").unwrap();
        bed.turn(Wait::For(1_000_000));
        drop(theirs);
        assert_eq!(bed.result(2 << 32), 4);
        bed.push(2 << 32, recv(1 << 20, false));
        assert_eq!(bed.result(2 << 32), 0);
        bed.driver.unwatch_socket(0);
    });
}

#[test]
fn both_directions_work_at_once_and_end_by_a_shutdown() {
    on_each(|bed| {
        let (ours, file, _theirs) = bed.socket(1);
        let mut iov = libc::iovec { iov_base: bed.memory.ptr().cast(), iov_len: 8 << 20 };
        // SAFETY: a message header of zeros is an empty one.
        let mut message = unsafe { std::mem::zeroed::<libc::msghdr>() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut iov, 1);
        bed.push(2 << 32 | 1, Job::Recv { file, addr: bed.memory.addr() + (9 << 20), len: 64, whole: true });
        bed.push(3 << 32 | 1, Job::Send { file, message: &raw const message });
        bed.turn(Wait::No);
        bed.turn(Wait::For(20_000_000));
        assert!(bed.ended.is_empty(), "the peer neither reads nor writes");
        ours.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(bed.result(2 << 32 | 1), 0);
        let sent = bed.result(3 << 32 | 1);
        assert!(sent == -libc::EPIPE || (0..8 << 20).contains(&sent), "{sent}");
        bed.driver.unwatch_socket(1);
    });
}

#[test]
fn a_send_to_a_closed_peer_fails() {
    on_each(|bed| {
        let (_ours, file, theirs) = bed.socket(2);
        drop(theirs);
        let mut iov = libc::iovec { iov_base: bed.memory.ptr().cast(), iov_len: 100 };
        // SAFETY: a message header of zeros is an empty one.
        let mut message = unsafe { std::mem::zeroed::<libc::msghdr>() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut iov, 1);
        bed.push(2, Job::Send { file, message: &raw const message });
        assert_eq!(bed.result(2), -libc::EPIPE);
        bed.driver.unwatch_socket(2);
    });
}

/// An index can be used again for another socket, even while the previous one is still open elsewhere.
#[test]
fn socket_indices_are_reusable() {
    on_each(|bed| {
        for round in 0..50u8 {
            let (ours, file, mut theirs) = bed.socket(4);
            let other = ours.try_clone().unwrap();
            theirs.write_all(&[round; 32]).unwrap();
            let addr = bed.memory.addr();
            bed.push(4, Job::Recv { file, addr, len: 32, whole: true });
            assert_eq!(bed.result(4), 32);
            assert_eq!(bed.bytes(0, 32), [round; 32]);
            bed.driver.unwatch_socket(4);
            drop(ours);
            // The driver must ignore what the other descriptor receives.
            theirs.write_all(&[round; 32]).unwrap();
            bed.turn(Wait::No);
            drop(other);
        }
        assert!(bed.ended.is_empty());
    });
}

#[test]
fn a_sleeping_driver_wakes_by_timeout_or_wake_up() {
    on_each(|bed| {
        bed.turn(Wait::No);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(30) {
            // An edge of earlier work may end one wait early, but not many.
            bed.turn(Wait::For(30_000_000));
        }
        let wake = Arc::clone(&bed.wake);
        for _ in 0..3 {
            let wake = Arc::clone(&wake);
            bed.wake.fall_asleep();
            let begin = Instant::now();
            let caller = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                wake.wake();
            });
            bed.turn(Wait::Forever);
            assert!(begin.elapsed() >= Duration::from_millis(19), "nothing else wakes it");
            bed.wake.awake();
            caller.join().unwrap();
        }
        assert!(bed.ended.is_empty());
    });
}

#[test]
fn waits_end_in_time() {
    on_each(|bed| {
        for ns in [1, 200_000, 1_500_000, 12_000_000] {
            let begin = Instant::now();
            bed.turn(Wait::For(ns));
            let took = begin.elapsed();
            assert!(took >= Duration::from_nanos(ns), "{took:?} instead of {ns} ns");
            assert!(took < Duration::from_secs(5), "{took:?} instead of {ns} ns");
        }
    });
}

/// Returns the number of pool threads in this process.
fn pool_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("disk-io-")).count()
}

/// Jobs of slot 1 hang until the gate opens, and are counted while they hang.
static GATE: AtomicBool = AtomicBool::new(false);
static HANGING: AtomicU32 = AtomicU32::new(0);

fn hang(job: &Job) -> i32 {
    let Job::Sync { file } = job else { return -libc::EINVAL };
    if file.slot == 1 {
        HANGING.fetch_add(1, Ordering::SeqCst);
        while !GATE.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        HANGING.fetch_sub(1, Ordering::SeqCst);
    }
    0
}

#[test]
fn a_hung_file_leaves_threads_to_other_files_and_does_not_block_the_drop() {
    let mut pool = ThreadPool::start_with(1024, 8, hang).unwrap();
    let mut events = Vec::new();
    let sync = |slot| Job::Sync { file: FileRef { fd: -1, slot, direct: false } };
    // SAFETY: these jobs name no memory.
    (0..500).for_each(|token| unsafe { pool.push(token, &sync(1)) });
    pool.exchange(&mut events);
    let begin = Instant::now();
    while HANGING.load(Ordering::SeqCst) < THREADS as u32 / 2 {
        assert!(begin.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
    // Jobs of other files, registered or not, complete.
    for (n, slot) in [0, 2, FileRef::UNREGISTERED, 7].into_iter().cycle().take(400).enumerate() {
        // SAFETY: as above.
        unsafe { pool.push(1000 + n as u64, &sync(slot)) };
    }
    let begin = Instant::now();
    while events.len() < 400 {
        pool.exchange(&mut events);
        assert!(begin.elapsed() < Duration::from_secs(20), "{} of 400", events.len());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(events.iter().all(|e| e.token >= 1000 && e.result == 0));
    assert_eq!(HANGING.load(Ordering::SeqCst), THREADS as u32 / 2);
    // Dropping the pool does not wait for hung jobs, and jobs that have not started never do.
    let begin = Instant::now();
    drop(pool);
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert_eq!(HANGING.load(Ordering::SeqCst), THREADS as u32 / 2);
    assert!(pool_threads() >= THREADS / 2, "they cannot be ended");
    GATE.store(true, Ordering::SeqCst);
    let begin = Instant::now();
    while HANGING.load(Ordering::SeqCst) > 0 {
        assert!(begin.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn busy_files_share_the_threads() {
    // Slow jobs on three files: no file is served much less than another.
    fn slow(_: &Job) -> i32 {
        std::thread::sleep(Duration::from_micros(500));
        0
    }
    let mut pool = ThreadPool::start_with(3000, 4, slow).unwrap();
    for token in 0..3000u64 {
        let file = FileRef { fd: -1, slot: (token / 1000) as u32, direct: false };
        // SAFETY: these jobs name no memory.
        unsafe { pool.push(token, &Job::Sync { file }) };
    }
    let mut events = Vec::new();
    while events.len() < 900 {
        pool.exchange(&mut events);
        std::thread::sleep(Duration::from_micros(100));
    }
    for file in 0..3 {
        let served = events[..900].iter().filter(|e| e.token / 1000 == file).count();
        assert!((150..=450).contains(&served), "file {file}: {served} of the first 900");
    }
    while events.len() < 3000 {
        pool.exchange(&mut events);
        std::thread::sleep(Duration::from_micros(100));
    }
}
