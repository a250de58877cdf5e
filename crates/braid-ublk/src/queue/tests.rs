//! Tests of a queue against a simulated driver and engine.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use braid_export::{ExportInfo, ExportTable};

use super::*;

const DEPTH: u16 = 4;
const FIRST: DeviceId = DeviceId(1);
const SECOND: DeviceId = DeviceId(2);

/// The descriptors, which the simulated driver writes and the queue reads.
#[derive(Clone, Default)]
struct Descriptors(Rc<RefCell<BTreeMap<u16, IoDescriptor>>>);

impl DriverQueue for Descriptors {
    fn descriptor(&self, tag: u16) -> IoDescriptor {
        self.0.borrow()[&tag]
    }

    fn shape(&self) -> (u16, u16, bool) {
        (0, DEPTH, true)
    }
}

/// A simulated shard: the commands to the driver and the requests to the engine, in order.
#[derive(Default)]
struct FakeShard {
    now_ns: u64,
    memory_max: usize,
    memory: BTreeMap<u64, usize>,
    next_addr: u64,
    commands: Vec<(u32, IoCommand)>,
    seen: u64,
    requests: Vec<Request>,
    refusal: Option<ErrorKind>,
    is_redundant: bool,
    timers: Vec<u64>,
}

impl Host<Descriptors> for FakeShard {
    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn submit(&mut self, request: &Request) -> Result<(), IoError> {
        assert!(request.tag < QUEUE_TAG_LIMIT);
        if let Some(kind) = self.refusal {
            return Err(IoError::of(kind));
        }
        if request.buf != Buf::NONE {
            assert!(self.memory[&request.buf.addr] as u64 >= request.len, "memory that is in use");
        }
        self.requests.push(*request);
        Ok(())
    }

    fn alloc(&mut self, len: usize) -> Option<Buf> {
        if self.memory.values().sum::<usize>() + len > self.memory_max {
            return None;
        }
        self.next_addr += 1 << 20;
        self.memory.insert(self.next_addr, len);
        Some(Buf { addr: self.next_addr, region: 0 })
    }

    fn free(&mut self, buf: Buf, len: usize) {
        assert_eq!(self.memory.remove(&buf.addr), Some(len), "freed once, with its length");
    }

    fn is_redundant(&self, _device: DeviceId) -> bool {
        self.is_redundant
    }

    fn timer_at(&mut self, at_ns: u64) -> bool {
        self.timers.push(at_ns);
        true
    }

    fn command(&mut self, _queue: &Descriptors, code: u32, command: IoCommand, tag: u16) -> bool {
        assert_eq!((command.q_id, command.tag), (0, tag));
        self.commands.push((code, command));
        true
    }

    fn commands(&mut self) -> (u64, u64) {
        (self.commands.len() as u64, self.seen)
    }
}

struct Rig {
    shard: FakeShard,
    descriptors: Descriptors,
    queue: Queue<Descriptors>,
}

fn export(device: DeviceId, read_only: bool) -> Arc<Export> {
    let info = ExportInfo { read_only, ..ExportInfo::new("fast", device, 1 << 30) };
    ExportTable::new().add(info).unwrap()
}

fn rig_of(export: Arc<Export>) -> Rig {
    let mut shard = FakeShard { now_ns: 1, memory_max: 64 << 10, ..FakeShard::default() };
    let descriptors = Descriptors::default();
    let queue = Queue::begin(&mut shard, descriptors.clone(), export).unwrap();
    assert_eq!(shard.commands.len(), usize::from(DEPTH));
    assert!(shard.commands.iter().all(|(code, _)| *code == IoOp::Fetch.code(true)));
    Rig { shard, descriptors, queue }
}

fn rig() -> Rig {
    rig_of(export(FIRST, false))
}

impl Rig {
    /// Delivers a request: writes its descriptor and completes the fetch.
    fn deliver(&mut self, tag: u16, op: u8, flags: u32, offset: u64, len: u64) {
        let descriptor = IoDescriptor {
            op_flags: u32::from(op) | flags,
            nr_sectors: (len / 512) as u32,
            start_sector: if op == abi::OP_FLUSH { u64::MAX } else { offset / 512 },
            addr: 0,
        };
        self.descriptors.0.borrow_mut().insert(tag, descriptor);
        let result = if op == abi::OP_WRITE { abi::RES_NEED_GET_DATA } else { abi::RES_OK };
        self.queue.command_done(&mut self.shard, tag, result);
    }

    fn last(&self) -> (u32, IoCommand) {
        *self.shard.commands.last().unwrap()
    }

    /// Completes the last request to the engine.
    fn complete(&mut self, result: Result<(), ErrorKind>, buffer_busy: bool) -> u64 {
        let tag = self.shard.requests.last().unwrap().tag;
        let result = result.map_err(IoError::of);
        self.queue.io_done(&mut self.shard, &Completion { tag, result, buffer_busy });
        tag
    }

    /// Returns the last commit: the request's tag, and its result.
    fn committed(&self) -> (u16, i32) {
        let (code, command) = self.last();
        assert_eq!(code, IoOp::CommitAndFetch.code(true));
        (command.tag, command.result)
    }

    fn turn(&mut self) {
        self.shard.now_ns += 1_000_000;
        self.shard.seen = self.shard.commands.len() as u64;
        self.queue.end_of_batch(&mut self.shard);
    }
}

#[test]
fn the_memory_of_a_read_is_kept_until_the_driver_has_copied() {
    let mut rig = rig();
    rig.deliver(2, abi::OP_READ, 0, 4096, 8192);
    let request = rig.shard.requests[0];
    assert_eq!((request.device, request.op, request.offset, request.len), (FIRST, Op::Read, 4096, 8192));
    rig.complete(Ok(()), false);
    assert_eq!(rig.committed(), (2, 8192));
    assert_eq!(rig.last().1.addr, request.buf.addr);
    rig.queue.end_of_batch(&mut rig.shard);
    assert_eq!(rig.shard.memory.len(), 1, "the driver has not consumed the commit");
    assert!(!rig.queue.is_quiet() && !rig.shard.timers.is_empty());
    rig.turn();
    assert!(rig.shard.memory.is_empty() && rig.queue.is_quiet());
}

#[test]
fn the_data_of_a_write_are_requested_first() {
    let mut rig = rig();
    rig.deliver(0, abi::OP_WRITE, abi::IO_F_FUA, 0, 4096);
    let (code, command) = rig.last();
    assert_eq!(code, IoOp::GetData.code(true));
    assert!(rig.shard.requests.is_empty() && rig.shard.memory.contains_key(&command.addr));
    assert!(!rig.queue.is_quiet(), "the driver may be copying");
    rig.queue.command_done(&mut rig.shard, 0, abi::RES_OK);
    let request = rig.shard.requests[0];
    assert_eq!((request.op, request.buf.addr, request.flags.has(Flags::FUA)), (Op::Write, command.addr, true));
    rig.complete(Ok(()), false);
    assert_eq!(rig.committed(), (0, 4096));
}

#[test]
fn the_engine_has_a_long_write_before_the_data_of_the_next_one_are_requested() {
    let mut rig = rig();
    rig.shard.memory_max = 4 << 20;
    let requested = |rig: &Rig| rig.shard.commands.iter().filter(|(code, _)| *code == IoOp::GetData.code(true)).count();
    for tag in 0..3 {
        rig.deliver(tag, abi::OP_WRITE, 0, 0, COPY_BYTES_MAX);
    }
    assert_eq!(requested(&rig), 1);
    for copied in 1..=3 {
        rig.queue.command_done(&mut rig.shard, copied - 1, abi::RES_OK);
        assert_eq!((rig.shard.requests.len(), requested(&rig)), (usize::from(copied), usize::from(copied + 1).min(3)));
    }
    // Data of short writes are requested together.
    rig.deliver(3, abi::OP_WRITE, 0, 0, 4096);
    rig.complete(Ok(()), false);
    rig.deliver(2, abi::OP_WRITE, 0, 0, 4096);
    assert_eq!(requested(&rig), 5);
}

#[test]
fn a_partly_copied_write_is_committed_in_part() {
    let mut rig = rig();
    rig.deliver(0, abi::OP_WRITE, 0, 0, 8192);
    rig.descriptors.0.borrow_mut().get_mut(&0).unwrap().nr_sectors = 8;
    rig.queue.command_done(&mut rig.shard, 0, abi::RES_OK);
    assert_eq!(rig.shard.requests[0].len, 4096);
    rig.complete(Ok(()), false);
    assert_eq!(rig.committed(), (0, 4096));
    rig.turn();
    assert!(rig.shard.memory.is_empty());
}

#[test]
fn requests_without_data_take_no_memory() {
    let mut rig = rig();
    for (op, flags, wanted, len) in [
        (abi::OP_FLUSH, 0, Op::Flush, 0),
        (abi::OP_DISCARD, 0, Op::Discard, 1 << 30),
        (abi::OP_WRITE_ZEROES, abi::IO_F_NOUNMAP, Op::WriteZeroes, 1 << 26),
    ] {
        rig.deliver(1, op, flags, 0, len);
        let request = *rig.shard.requests.last().unwrap();
        assert_eq!((request.op, request.offset, request.len, request.buf), (wanted, 0, len, Buf::NONE));
        assert_eq!(request.flags.has(Flags::NO_UNMAP), flags != 0);
        rig.complete(Ok(()), false);
        assert_eq!(rig.committed(), (1, 0));
    }
    rig.deliver(1, 13, 0, 0, 4096);
    assert_eq!(rig.committed(), (1, -EOPNOTSUPP));
}

#[test]
fn requests_wait_while_the_export_does_not_serve() {
    let mut rig = rig();
    rig.queue.serve(&mut rig.shard, None);
    rig.deliver(0, abi::OP_READ, 0, 0, 4096);
    rig.deliver(1, abi::OP_FLUSH, 0, 0, 0);
    rig.turn();
    assert!(rig.shard.requests.is_empty());
    rig.queue.serve(&mut rig.shard, Some(export(SECOND, false)));
    assert_eq!(rig.shard.requests.iter().map(|r| r.device).collect::<Vec<_>>(), [SECOND; 2]);
    // A request that was in flight when its device stopped goes to the next one.
    rig.complete(Err(ErrorKind::NoDevice), false);
    rig.turn();
    assert_eq!(rig.shard.requests.len(), 2);
    rig.queue.serve(&mut rig.shard, Some(export(FIRST, false)));
    assert_eq!(rig.shard.requests.len(), 3);
    rig.complete(Ok(()), false);
    assert_eq!(rig.committed(), (1, 0));
}

#[test]
fn requests_that_wait_fail_when_the_device_is_removed() {
    let mut rig = rig();
    rig.queue.serve(&mut rig.shard, None);
    rig.deliver(3, abi::OP_READ, 0, 0, 4096);
    rig.queue.fail_all(&mut rig.shard);
    assert_eq!(rig.committed(), (3, -EIO));
    assert_ne!(rig.last().1.addr, 0, "the driver refuses a commit of a read without one");
}

#[test]
fn errors_of_the_engine_are_committed() {
    for (kind, errno) in [(ErrorKind::NoSpace, ENOSPC), (ErrorKind::Failed, EIO), (ErrorKind::Unreadable, EIO)] {
        let mut rig = rig();
        rig.deliver(0, abi::OP_READ, 0, 0, 4096);
        rig.complete(Err(kind), false);
        assert_eq!(rig.committed(), (0, -errno));
    }
    let mut rig = rig_of(export(FIRST, true));
    rig.deliver(0, abi::OP_WRITE, 0, 0, 4096);
    assert_eq!(rig.committed(), (0, -EPERM));
}

#[test]
fn a_late_buffer_is_kept_and_the_read_is_retried_with_another() {
    let mut rig = rig();
    rig.shard.is_redundant = true;
    rig.deliver(0, abi::OP_READ, 0, 0, 4096);
    let late = rig.complete(Err(ErrorKind::TimedOut), true);
    assert_eq!(rig.shard.requests.len(), 2);
    assert_ne!(rig.shard.requests[0].buf, rig.shard.requests[1].buf);
    rig.complete(Err(ErrorKind::TimedOut), false);
    assert_eq!(rig.committed(), (0, -EIO), "there is one retry");
    rig.turn();
    assert_eq!(rig.shard.memory.len(), 1);
    rig.queue.released(&mut rig.shard, late);
    assert!(rig.shard.memory.is_empty());
}

/// A disk hangs below a write, and its array is stopped and starts again. The driver copies the data only once, so that the write is
/// resubmitted from the memory that the disk still reads, and that memory is kept until both I/Os have ended.
#[test]
fn a_write_whose_buffer_is_late_is_resubmitted_from_that_buffer() {
    for released_first in [false, true] {
        for kind in [ErrorKind::NoDevice, ErrorKind::Unsettled] {
            let mut rig = rig();
            rig.deliver(0, abi::OP_WRITE, 0, 4096, 4096);
            rig.queue.command_done(&mut rig.shard, 0, abi::RES_OK);
            let tag = rig.complete(Err(kind), true);
            assert_eq!(rig.last().0, IoOp::GetData.code(true), "there is no commit");
            if released_first {
                rig.queue.released(&mut rig.shard, tag);
            }
            rig.queue.serve(&mut rig.shard, Some(export(SECOND, false)));
            let (first, retry) = (rig.shard.requests[0], *rig.shard.requests.last().unwrap());
            assert_eq!((rig.shard.requests.len(), retry.device, retry.buf), (2, SECOND, first.buf));
            rig.complete(Ok(()), false);
            let (code, commit) = rig.last();
            assert_eq!((code, commit.result), (IoOp::CommitAndFetch.code(true), 4096));
            assert_eq!(rig.shard.memory.is_empty(), released_first, "the disk may still read it");
            if !released_first {
                rig.queue.released(&mut rig.shard, tag);
            }
            assert!(rig.shard.memory.is_empty());
        }
    }
}

/// Replicas are lost, or another node serves the volume, while requests are in flight: none is committed until the export serves again.
#[test]
fn an_unsettled_request_waits_and_is_not_committed() {
    let mut rig = rig();
    let before = rig.shard.commands.len();
    rig.deliver(0, abi::OP_READ, 0, 0, 4096);
    rig.complete(Err(ErrorKind::Unsettled), false);
    rig.shard.refusal = Some(ErrorKind::Unsettled);
    rig.turn();
    rig.deliver(1, abi::OP_FLUSH, 0, 0, 0);
    rig.turn();
    rig.queue.serve(&mut rig.shard, None);
    rig.turn();
    assert_eq!(rig.shard.commands.len(), before, "nothing is committed");
    rig.shard.refusal = None;
    rig.queue.serve(&mut rig.shard, Some(export(SECOND, false)));
    let submitted = rig.shard.requests.iter().filter(|request| request.device == SECOND).count();
    assert_eq!(submitted, 2, "both go to the device that serves now");
}

#[test]
fn an_error_of_an_ended_device_does_not_end_the_next_one() {
    let mut rig = rig();
    rig.deliver(0, abi::OP_READ, 0, 0, 4096);
    rig.queue.serve(&mut rig.shard, None);
    rig.queue.serve(&mut rig.shard, Some(export(SECOND, false)));
    rig.complete(Err(ErrorKind::NoDevice), false);
    rig.queue.end_of_batch(&mut rig.shard);
    assert_eq!(rig.shard.requests.last().map(|request| request.device), Some(SECOND));
    rig.complete(Ok(()), false);
    assert_eq!(rig.last().1.result, 4096);
}

#[test]
fn requests_wait_for_memory_and_for_the_engine() {
    let mut rig = rig();
    rig.shard.memory_max = 4096;
    rig.deliver(0, abi::OP_READ, 0, 0, 4096);
    rig.deliver(1, abi::OP_READ, 0, 4096, 4096);
    assert_eq!((rig.shard.requests.len(), rig.shard.timers.len()), (1, 1));
    rig.complete(Ok(()), false);
    rig.turn();
    assert_eq!(rig.shard.requests.len(), 2);
    rig.complete(Ok(()), false);
    rig.turn();
    rig.shard.refusal = Some(ErrorKind::Busy);
    rig.deliver(0, abi::OP_READ, 0, 0, 4096);
    rig.turn();
    rig.shard.refusal = None;
    rig.turn();
    assert_eq!(rig.shard.requests.len(), 3);
}

#[test]
fn limits_of_the_export_hold_requests_back() {
    let export = export(FIRST, false);
    let rates = braid_ring::Rates { iops: Some(100), bandwidth_bytes: None };
    export.set_limits(braid_export::ExportLimits { rates, ..braid_export::ExportLimits::default() });
    let mut rig = rig_of(export);
    rig.shard.now_ns = 1_000_000_000;
    for tag in 0..4 {
        rig.deliver(tag, abi::OP_FLUSH, 0, 0, 0);
    }
    let first = rig.shard.requests.len();
    assert!(first < 4, "{first} of four at once at 100 a second");
    for _ in 0..40 {
        rig.turn();
    }
    assert_eq!(rig.shard.requests.len(), 4);
}

#[test]
fn a_queue_is_over_when_the_driver_has_completed_all_commands() {
    let mut rig = rig();
    rig.deliver(0, abi::OP_WRITE, 0, 0, 4096);
    rig.queue.command_done(&mut rig.shard, 0, -19);
    for tag in 1..DEPTH {
        assert!(!rig.queue.is_over());
        rig.queue.command_done(&mut rig.shard, tag, -19);
    }
    assert!(rig.queue.is_over() && rig.shard.memory.is_empty());
}

#[test]
fn after_a_stop_requests_in_flight_are_committed_and_none_begins() {
    let mut rig = rig();
    rig.deliver(0, abi::OP_READ, 0, 0, 4096);
    rig.queue.stop();
    rig.deliver(1, abi::OP_READ, 0, 0, 4096);
    assert_eq!(rig.shard.requests.len(), 1);
    rig.complete(Ok(()), false);
    assert_eq!(rig.committed(), (0, 4096));
    rig.turn();
    assert!(rig.queue.is_quiet() && rig.shard.memory.is_empty());
}

#[test]
fn throttled_requests_do_not_delay_a_removal() {
    let export = export(FIRST, false);
    let rates = braid_ring::Rates { iops: Some(1), bandwidth_bytes: None };
    export.set_limits(braid_export::ExportLimits { rates, ..braid_export::ExportLimits::default() });
    let mut rig = rig_of(export);
    rig.shard.now_ns = 1_000_000_000;
    for tag in 0..DEPTH {
        rig.deliver(tag, abi::OP_FLUSH, 0, 0, 0);
    }
    assert!(rig.shard.requests.len() < usize::from(DEPTH), "some wait");
    rig.queue.fail_all(&mut rig.shard);
    rig.turn();
    assert_eq!(rig.shard.requests.len(), usize::from(DEPTH));
}

#[test]
fn short_writes_do_not_starve_a_long_one() {
    let mut rig = rig();
    rig.shard.memory_max = 4 << 20;
    rig.deliver(0, abi::OP_WRITE, 0, 0, 4096);
    rig.deliver(1, abi::OP_WRITE, 0, 0, 2 * COPY_BYTES_MAX);
    // The long write gets its turn although the data of short ones are always being copied.
    rig.deliver(2, abi::OP_WRITE, 0, 0, 4096);
    assert_eq!((rig.last().0, rig.last().1.tag), (IoOp::GetData.code(true), 0));
    rig.queue.command_done(&mut rig.shard, 0, abi::RES_OK);
    assert_eq!((rig.last().0, rig.last().1.tag), (IoOp::GetData.code(true), 1));
    rig.queue.command_done(&mut rig.shard, 1, abi::RES_OK);
    assert_eq!((rig.last().0, rig.last().1.tag), (IoOp::GetData.code(true), 2));
}

#[test]
fn data_that_the_driver_had_no_memory_to_copy_are_requested_again() {
    let mut rig = rig();
    rig.deliver(0, abi::OP_WRITE, 0, 0, 4096);
    let before = rig.shard.commands.len();
    rig.queue.command_done(&mut rig.shard, 0, abi::RES_NEED_GET_DATA);
    assert!(rig.shard.requests.is_empty(), "nothing of it is written");
    rig.turn();
    assert_eq!((rig.shard.commands.len(), rig.last().0), (before + 1, IoOp::GetData.code(true)));
    rig.queue.command_done(&mut rig.shard, 0, abi::RES_OK);
    assert_eq!(rig.shard.requests.len(), 1);
}

/// Random events: each request is committed once, and all memory is freed.
#[test]
fn random_runs_commit_every_request_once() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    for run in 0..50 {
        let mut rig = rig();
        // In every second run, requests that are copied one by one.
        let unit = if run % 2 == 0 { 4096 } else { 256 << 10 };
        rig.shard.memory_max = 3 * unit as usize;
        let (mut open, mut delivered, mut stopped) = ([false; DEPTH as usize], 0, false);
        let mut seen = usize::from(DEPTH);
        let (mut committed, mut copying, mut engine) = (0, Vec::new(), Vec::new());
        // Requests whose buffers are late, and where the data of writes were copied to.
        let mut late: Vec<u64> = Vec::new();
        let mut copied = BTreeMap::new();
        for step in 0..2000 {
            match random(8) {
                0..=2 if step < 1500 => {
                    let tag = random(u64::from(DEPTH)) as u16;
                    if !open[usize::from(tag)] {
                        let op = [abi::OP_READ, abi::OP_WRITE, abi::OP_FLUSH, abi::OP_DISCARD][random(4) as usize];
                        (open[usize::from(tag)], delivered) = (true, delivered + 1);
                        rig.deliver(tag, op, 0, unit * random(9), unit * (1 + random(2)));
                    }
                }
                3 if !copying.is_empty() => {
                    let tag = copying.swap_remove(random(copying.len() as u64) as usize);
                    let result = if random(8) == 0 { abi::RES_NEED_GET_DATA } else { abi::RES_OK };
                    if result == abi::RES_OK {
                        let of_tag = |(_, command): &&(u32, IoCommand)| command.tag == tag;
                        copied.insert(tag, rig.shard.commands.iter().rev().find(of_tag).map(|(_, last)| last.addr));
                    }
                    rig.queue.command_done(&mut rig.shard, tag, result);
                }
                4 | 5 if !engine.is_empty() => {
                    let request: Request = engine.swap_remove(random(engine.len() as u64) as usize);
                    let result = match random(6) {
                        0 => Err(IoError::of(ErrorKind::Io)),
                        1 if stopped => Err(IoError::of(ErrorKind::NoDevice)),
                        _ => Ok(()),
                    };
                    let buffer_busy = result.is_err() && request.buf != Buf::NONE && random(3) == 0;
                    late.extend(buffer_busy.then_some(request.tag));
                    rig.queue.io_done(&mut rig.shard, &Completion { tag: request.tag, result, buffer_busy });
                }
                6 if step < 1500 => {
                    stopped = !stopped;
                    let export = (!stopped).then(|| export(SECOND, false));
                    rig.queue.serve(&mut rig.shard, export);
                }
                7 if !late.is_empty() => {
                    let tag = late.swap_remove(random(late.len() as u64) as usize);
                    rig.queue.released(&mut rig.shard, tag);
                }
                _ => rig.turn(),
            }
            if step == 1500 {
                stopped = false;
                rig.queue.serve(&mut rig.shard, Some(export(FIRST, false)));
            }
            for request in rig.shard.requests.iter().filter(|request| request.op == Op::Write) {
                let tag = request.tag as u16;
                assert_eq!(copied.get(&tag), Some(&Some(request.buf.addr)), "the buffer has no copy of its data");
            }
            engine.append(&mut rig.shard.requests);
            for (code, command) in &rig.shard.commands[seen..] {
                if *code == IoOp::GetData.code(true) {
                    copying.push(command.tag);
                } else {
                    assert!(std::mem::take(&mut open[usize::from(command.tag)]), "committed, and not delivered");
                    committed += 1;
                }
            }
            seen = rig.shard.commands.len();
        }
        late.into_iter().for_each(|tag| rig.queue.released(&mut rig.shard, tag));
        rig.turn();
        assert_eq!((delivered, rig.shard.memory.len()), (committed, 0));
    }
}
