//! A queue against a driver and an engine that this file plays.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use braid_nbd::{ExportInfo, ExportTable};

use super::*;

const DEPTH: u16 = 4;
const FIRST: DeviceId = DeviceId(1);
const SECOND: DeviceId = DeviceId(2);

/// The descriptors, which the driver writes and the queue reads.
#[derive(Clone, Default)]
struct Paper(Rc<RefCell<BTreeMap<u16, IoDescriptor>>>);

impl Lane for Paper {
    fn descriptor(&self, tag: u16) -> IoDescriptor {
        self.0.borrow()[&tag]
    }

    fn shape(&self) -> (u16, u16, bool) {
        (0, DEPTH, true)
    }
}

/// The shard: what was asked of the driver and of the engine, in order.
#[derive(Default)]
struct Bench {
    now_ns: u64,
    memory_max: usize,
    memory: BTreeMap<u64, usize>,
    next_addr: u64,
    commands: Vec<(u32, IoCommand)>,
    looked_at: u64,
    requests: Vec<Request>,
    refusal: Option<ErrorKind>,
    is_redundant: bool,
    timers: Vec<u64>,
}

impl Host<Paper> for Bench {
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

    fn command(&mut self, _lane: &Paper, code: u32, command: IoCommand, tag: u16) -> bool {
        assert_eq!((command.q_id, command.tag), (0, tag));
        self.commands.push((code, command));
        true
    }

    fn commands(&mut self) -> (u64, u64) {
        (self.commands.len() as u64, self.looked_at)
    }
}

struct Rig {
    bench: Bench,
    paper: Paper,
    queue: Queue<Paper>,
}

fn export(device: DeviceId, read_only: bool) -> Arc<Export> {
    let info = ExportInfo { read_only, ..ExportInfo::new("fast", device, 1 << 30) };
    ExportTable::new().add(info).unwrap()
}

fn rig_of(export: Arc<Export>) -> Rig {
    let (mut bench, paper) = (Bench { now_ns: 1, memory_max: 64 << 10, ..Bench::default() }, Paper::default());
    let queue = Queue::begin(&mut bench, paper.clone(), export).unwrap();
    assert_eq!(bench.commands.len(), usize::from(DEPTH));
    assert!(bench.commands.iter().all(|(code, _)| *code == IoOp::Fetch.code(true)));
    Rig { bench, paper, queue }
}

fn rig() -> Rig {
    rig_of(export(FIRST, false))
}

impl Rig {
    /// The driver has a request: what it writes, and what it returns.
    fn ask(&mut self, tag: u16, op: u8, flags: u32, offset: u64, len: u64) {
        let descriptor = IoDescriptor {
            op_flags: u32::from(op) | flags,
            nr_sectors: (len / 512) as u32,
            start_sector: if op == abi::OP_FLUSH { u64::MAX } else { offset / 512 },
            addr: 0,
        };
        self.paper.0.borrow_mut().insert(tag, descriptor);
        let result = if op == abi::OP_WRITE { abi::RES_NEED_GET_DATA } else { abi::RES_OK };
        self.queue.command_done(&mut self.bench, tag, result);
    }

    fn last(&self) -> (u32, IoCommand) {
        *self.bench.commands.last().unwrap()
    }

    /// The engine's answer to the last request.
    fn answer(&mut self, result: Result<(), ErrorKind>, buffer_busy: bool) -> u64 {
        let tag = self.bench.requests.last().unwrap().tag;
        let result = result.map_err(IoError::of);
        self.queue.io_done(&mut self.bench, &Completion { tag, result, buffer_busy });
        tag
    }

    /// What was committed last: of which request, and with which result.
    fn committed(&self) -> (u16, i32) {
        let (code, command) = self.last();
        assert_eq!(code, IoOp::CommitAndFetch.code(true));
        (command.tag, command.result)
    }

    fn turn(&mut self) {
        self.bench.now_ns += 1_000_000;
        self.bench.looked_at = self.bench.commands.len() as u64;
        self.queue.end_of_batch(&mut self.bench);
    }
}

#[test]
fn a_read_is_answered_from_memory_that_stays_until_the_driver_has_copied() {
    let mut rig = rig();
    rig.ask(2, abi::OP_READ, 0, 4096, 8192);
    let request = rig.bench.requests[0];
    assert_eq!((request.device, request.op, request.offset, request.len), (FIRST, Op::Read, 4096, 8192));
    rig.answer(Ok(()), false);
    assert_eq!(rig.committed(), (2, 8192));
    assert_eq!(rig.last().1.addr, request.buf.addr);
    rig.queue.end_of_batch(&mut rig.bench);
    assert_eq!(rig.bench.memory.len(), 1, "the driver has not looked at the commit");
    assert!(!rig.queue.is_quiet() && !rig.bench.timers.is_empty());
    rig.turn();
    assert!(rig.bench.memory.is_empty() && rig.queue.is_quiet());
}

#[test]
fn a_write_is_asked_for_its_data_first() {
    let mut rig = rig();
    rig.ask(0, abi::OP_WRITE, abi::IO_F_FUA, 0, 4096);
    let (code, command) = rig.last();
    assert_eq!(code, IoOp::GetData.code(true));
    assert!(rig.bench.requests.is_empty() && rig.bench.memory.contains_key(&command.addr));
    assert!(!rig.queue.is_quiet(), "the driver may be copying");
    rig.queue.command_done(&mut rig.bench, 0, abi::RES_OK);
    let request = rig.bench.requests[0];
    assert_eq!((request.op, request.buf.addr, request.flags.has(Flags::FUA)), (Op::Write, command.addr, true));
    rig.answer(Ok(()), false);
    assert_eq!(rig.committed(), (0, 4096));
}

#[test]
fn the_engine_has_a_long_write_before_the_data_of_the_next_one_are_asked_for() {
    let mut rig = rig();
    rig.bench.memory_max = 4 << 20;
    let asked_for = |rig: &Rig| rig.bench.commands.iter().filter(|(code, _)| *code == IoOp::GetData.code(true)).count();
    for tag in 0..3 {
        rig.ask(tag, abi::OP_WRITE, 0, 0, COPIED_AT_ONCE);
    }
    assert_eq!(asked_for(&rig), 1);
    for copied in 1..=3 {
        rig.queue.command_done(&mut rig.bench, copied - 1, abi::RES_OK);
        assert_eq!((rig.bench.requests.len(), asked_for(&rig)), (usize::from(copied), usize::from(copied + 1).min(3)));
    }
    // Short ones are asked for together.
    rig.ask(3, abi::OP_WRITE, 0, 0, 4096);
    rig.answer(Ok(()), false);
    rig.ask(2, abi::OP_WRITE, 0, 0, 4096);
    assert_eq!(asked_for(&rig), 5);
}

#[test]
fn what_the_driver_copied_in_part_is_answered_in_part() {
    let mut rig = rig();
    rig.ask(0, abi::OP_WRITE, 0, 0, 8192);
    rig.paper.0.borrow_mut().get_mut(&0).unwrap().nr_sectors = 8;
    rig.queue.command_done(&mut rig.bench, 0, abi::RES_OK);
    assert_eq!(rig.bench.requests[0].len, 4096);
    rig.answer(Ok(()), false);
    assert_eq!(rig.committed(), (0, 4096));
    rig.turn();
    assert!(rig.bench.memory.is_empty());
}

#[test]
fn requests_without_data_take_no_memory() {
    let mut rig = rig();
    for (op, flags, wanted, len) in [
        (abi::OP_FLUSH, 0, Op::Flush, 0),
        (abi::OP_DISCARD, 0, Op::Discard, 1 << 30),
        (abi::OP_WRITE_ZEROES, abi::IO_F_NOUNMAP, Op::WriteZeroes, 1 << 26),
    ] {
        rig.ask(1, op, flags, 0, len);
        let request = *rig.bench.requests.last().unwrap();
        assert_eq!((request.op, request.offset, request.len, request.buf), (wanted, 0, len, Buf::NONE));
        assert_eq!(request.flags.has(Flags::NO_UNMAP), flags != 0);
        rig.answer(Ok(()), false);
        assert_eq!(rig.committed(), (1, 0));
    }
    rig.ask(1, 13, 0, 0, 4096);
    assert_eq!(rig.committed(), (1, -EOPNOTSUPP));
}

#[test]
fn requests_wait_while_their_device_is_away() {
    let mut rig = rig();
    rig.queue.serve(&mut rig.bench, None);
    rig.ask(0, abi::OP_READ, 0, 0, 4096);
    rig.ask(1, abi::OP_FLUSH, 0, 0, 0);
    rig.turn();
    assert!(rig.bench.requests.is_empty());
    rig.queue.serve(&mut rig.bench, Some(export(SECOND, false)));
    assert_eq!(rig.bench.requests.iter().map(|r| r.device).collect::<Vec<_>>(), [SECOND; 2]);
    // A request that was on its way when its device went asks the next one.
    rig.answer(Err(ErrorKind::NoDevice), false);
    rig.turn();
    assert_eq!(rig.bench.requests.len(), 2);
    rig.queue.serve(&mut rig.bench, Some(export(FIRST, false)));
    assert_eq!(rig.bench.requests.len(), 3);
    rig.answer(Ok(()), false);
    assert_eq!(rig.committed(), (1, 0));
}

#[test]
fn what_waits_fails_when_the_device_is_removed() {
    let mut rig = rig();
    rig.queue.serve(&mut rig.bench, None);
    rig.ask(3, abi::OP_READ, 0, 0, 4096);
    rig.queue.fail_all(&mut rig.bench);
    assert_eq!(rig.committed(), (3, -EIO));
    assert_ne!(rig.last().1.addr, 0, "the driver refuses an answer to a read without one");
}

#[test]
fn errors_of_the_engine_are_told() {
    for (kind, errno) in [(ErrorKind::NoSpace, ENOSPC), (ErrorKind::Failed, EIO), (ErrorKind::Unreadable, EIO)] {
        let mut rig = rig();
        rig.ask(0, abi::OP_READ, 0, 0, 4096);
        rig.answer(Err(kind), false);
        assert_eq!(rig.committed(), (0, -errno));
    }
    let mut rig = rig_of(export(FIRST, true));
    rig.ask(0, abi::OP_WRITE, 0, 0, 4096);
    assert_eq!(rig.committed(), (0, -EPERM));
}

#[test]
fn a_late_buffer_is_kept_and_the_read_tried_with_another() {
    let mut rig = rig();
    rig.bench.is_redundant = true;
    rig.ask(0, abi::OP_READ, 0, 0, 4096);
    let late = rig.answer(Err(ErrorKind::TimedOut), true);
    assert_eq!(rig.bench.requests.len(), 2);
    assert_ne!(rig.bench.requests[0].buf, rig.bench.requests[1].buf);
    rig.answer(Err(ErrorKind::TimedOut), false);
    assert_eq!(rig.committed(), (0, -EIO), "once is enough");
    rig.turn();
    assert_eq!(rig.bench.memory.len(), 1);
    rig.queue.released(&mut rig.bench, late);
    assert!(rig.bench.memory.is_empty());
}

/// A disk hangs below a write, its array is stopped, and starts again: the driver gives the data once, so that the write is asked anew
/// from the memory that the disk still reads, and that memory is kept until both have done with it.
#[test]
fn a_write_whose_memory_a_disk_still_has_is_written_anew_from_that_memory() {
    for released_first in [false, true] {
        for kind in [ErrorKind::NoDevice, ErrorKind::Unsettled] {
            let mut rig = rig();
            rig.ask(0, abi::OP_WRITE, 0, 4096, 4096);
            rig.queue.command_done(&mut rig.bench, 0, abi::RES_OK);
            let tag = rig.answer(Err(kind), true);
            assert_eq!(rig.last().0, IoOp::GetData.code(true), "it is not answered");
            if released_first {
                rig.queue.released(&mut rig.bench, tag);
            }
            rig.queue.serve(&mut rig.bench, Some(export(SECOND, false)));
            let (first, again) = (rig.bench.requests[0], *rig.bench.requests.last().unwrap());
            assert_eq!((rig.bench.requests.len(), again.device, again.buf), (2, SECOND, first.buf));
            rig.answer(Ok(()), false);
            let (code, commit) = rig.last();
            assert_eq!((code, commit.result), (IoOp::CommitAndFetch.code(true), 4096));
            assert_eq!(rig.bench.memory.is_empty(), released_first, "the disk may still read it");
            if !released_first {
                rig.queue.released(&mut rig.bench, tag);
            }
            assert!(rig.bench.memory.is_empty());
        }
    }
}

/// Replicas are lost, or the volume is served elsewhere, while requests are under way: none is answered until somebody serves them.
#[test]
fn an_unsettled_request_waits_and_is_not_answered() {
    let mut rig = rig();
    let before = rig.bench.commands.len();
    rig.ask(0, abi::OP_READ, 0, 0, 4096);
    rig.answer(Err(ErrorKind::Unsettled), false);
    rig.bench.refusal = Some(ErrorKind::Unsettled);
    rig.turn();
    rig.ask(1, abi::OP_FLUSH, 0, 0, 0);
    rig.turn();
    rig.queue.serve(&mut rig.bench, None);
    rig.turn();
    assert_eq!(rig.bench.commands.len(), before, "nothing was answered");
    rig.bench.refusal = None;
    rig.queue.serve(&mut rig.bench, Some(export(SECOND, false)));
    let asked = rig.bench.requests.iter().filter(|request| request.device == SECOND).count();
    assert_eq!(asked, 2, "both are asked of what serves now");
}

#[test]
fn an_answer_of_a_device_that_ended_does_not_end_the_next_one() {
    let mut rig = rig();
    rig.ask(0, abi::OP_READ, 0, 0, 4096);
    rig.queue.serve(&mut rig.bench, None);
    rig.queue.serve(&mut rig.bench, Some(export(SECOND, false)));
    rig.answer(Err(ErrorKind::NoDevice), false);
    rig.queue.end_of_batch(&mut rig.bench);
    assert_eq!(rig.bench.requests.last().map(|request| request.device), Some(SECOND));
    rig.answer(Ok(()), false);
    assert_eq!(rig.last().1.result, 4096);
}

#[test]
fn requests_wait_for_memory_and_for_the_engine() {
    let mut rig = rig();
    rig.bench.memory_max = 4096;
    rig.ask(0, abi::OP_READ, 0, 0, 4096);
    rig.ask(1, abi::OP_READ, 0, 4096, 4096);
    assert_eq!((rig.bench.requests.len(), rig.bench.timers.len()), (1, 1));
    rig.answer(Ok(()), false);
    rig.turn();
    assert_eq!(rig.bench.requests.len(), 2);
    rig.answer(Ok(()), false);
    rig.turn();
    rig.bench.refusal = Some(ErrorKind::Busy);
    rig.ask(0, abi::OP_READ, 0, 0, 4096);
    rig.turn();
    rig.bench.refusal = None;
    rig.turn();
    assert_eq!(rig.bench.requests.len(), 3);
}

#[test]
fn limits_of_the_export_hold_requests_back() {
    let export = export(FIRST, false);
    let rates = braid_ring::Rates { iops: Some(100), bandwidth_bytes: None };
    export.set_limits(braid_nbd::ExportLimits { rates, ..braid_nbd::ExportLimits::default() });
    let mut rig = rig_of(export);
    rig.bench.now_ns = 1_000_000_000;
    for tag in 0..4 {
        rig.ask(tag, abi::OP_FLUSH, 0, 0, 0);
    }
    let first = rig.bench.requests.len();
    assert!(first < 4, "{first} of four at once at 100 a second");
    for _ in 0..40 {
        rig.turn();
    }
    assert_eq!(rig.bench.requests.len(), 4);
}

#[test]
fn a_queue_is_over_when_the_driver_took_everything_back() {
    let mut rig = rig();
    rig.ask(0, abi::OP_WRITE, 0, 0, 4096);
    rig.queue.command_done(&mut rig.bench, 0, -19);
    for tag in 1..DEPTH {
        assert!(!rig.queue.is_over());
        rig.queue.command_done(&mut rig.bench, tag, -19);
    }
    assert!(rig.queue.is_over() && rig.bench.memory.is_empty());
}

#[test]
fn after_a_stop_what_is_under_way_is_answered_and_nothing_is_begun() {
    let mut rig = rig();
    rig.ask(0, abi::OP_READ, 0, 0, 4096);
    rig.queue.stop();
    rig.ask(1, abi::OP_READ, 0, 0, 4096);
    assert_eq!(rig.bench.requests.len(), 1);
    rig.answer(Ok(()), false);
    assert_eq!(rig.committed(), (0, 4096));
    rig.turn();
    assert!(rig.queue.is_quiet() && rig.bench.memory.is_empty());
}

#[test]
fn what_waits_for_its_time_does_not_hold_up_a_removal() {
    let export = export(FIRST, false);
    let rates = braid_ring::Rates { iops: Some(1), bandwidth_bytes: None };
    export.set_limits(braid_nbd::ExportLimits { rates, ..braid_nbd::ExportLimits::default() });
    let mut rig = rig_of(export);
    rig.bench.now_ns = 1_000_000_000;
    for tag in 0..DEPTH {
        rig.ask(tag, abi::OP_FLUSH, 0, 0, 0);
    }
    assert!(rig.bench.requests.len() < usize::from(DEPTH), "some wait");
    rig.queue.fail_all(&mut rig.bench);
    rig.turn();
    assert_eq!(rig.bench.requests.len(), usize::from(DEPTH));
}

#[test]
fn short_writes_do_not_pass_a_long_one_for_ever() {
    let mut rig = rig();
    rig.bench.memory_max = 4 << 20;
    rig.ask(0, abi::OP_WRITE, 0, 0, 4096);
    rig.ask(1, abi::OP_WRITE, 0, 0, 2 * COPIED_AT_ONCE);
    // There is always a short one whose data are being copied; the long one comes all the same.
    rig.ask(2, abi::OP_WRITE, 0, 0, 4096);
    assert_eq!((rig.last().0, rig.last().1.tag), (IoOp::GetData.code(true), 0));
    rig.queue.command_done(&mut rig.bench, 0, abi::RES_OK);
    assert_eq!((rig.last().0, rig.last().1.tag), (IoOp::GetData.code(true), 1));
    rig.queue.command_done(&mut rig.bench, 1, abi::RES_OK);
    assert_eq!((rig.last().0, rig.last().1.tag), (IoOp::GetData.code(true), 2));
}

#[test]
fn data_that_the_driver_had_no_memory_to_copy_are_asked_for_again() {
    let mut rig = rig();
    rig.ask(0, abi::OP_WRITE, 0, 0, 4096);
    let before = rig.bench.commands.len();
    rig.queue.command_done(&mut rig.bench, 0, abi::RES_NEED_GET_DATA);
    assert!(rig.bench.requests.is_empty(), "nothing of it is written");
    rig.turn();
    assert_eq!((rig.bench.commands.len(), rig.last().0), (before + 1, IoOp::GetData.code(true)));
    rig.queue.command_done(&mut rig.bench, 0, abi::RES_OK);
    assert_eq!(rig.bench.requests.len(), 1);
}

/// Everything at random: each request is answered once, and all memory comes back.
#[test]
fn random_lives_answer_every_request_once() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    for life in 0..50 {
        let mut rig = rig();
        // In every second one, requests that are copied one by one.
        let unit = if life % 2 == 0 { 4096 } else { 256 << 10 };
        rig.bench.memory_max = 3 * unit as usize;
        let (mut open, mut asked, mut away) = ([false; DEPTH as usize], 0, false);
        let mut seen = usize::from(DEPTH);
        let (mut answered, mut copying, mut engine) = (0, Vec::new(), Vec::new());
        // Requests whose buffers a disk has still, and what was copied for writes: where it is.
        let mut late: Vec<u64> = Vec::new();
        let mut copied = BTreeMap::new();
        for step in 0..2000 {
            match random(8) {
                0..=2 if step < 1500 => {
                    let tag = random(u64::from(DEPTH)) as u16;
                    if !open[usize::from(tag)] {
                        let op = [abi::OP_READ, abi::OP_WRITE, abi::OP_FLUSH, abi::OP_DISCARD][random(4) as usize];
                        (open[usize::from(tag)], asked) = (true, asked + 1);
                        rig.ask(tag, op, 0, unit * random(9), unit * (1 + random(2)));
                    }
                }
                3 if !copying.is_empty() => {
                    let tag = copying.swap_remove(random(copying.len() as u64) as usize);
                    let result = if random(8) == 0 { abi::RES_NEED_GET_DATA } else { abi::RES_OK };
                    if result == abi::RES_OK {
                        let of_tag = |(_, command): &&(u32, IoCommand)| command.tag == tag;
                        copied.insert(tag, rig.bench.commands.iter().rev().find(of_tag).map(|(_, asked)| asked.addr));
                    }
                    rig.queue.command_done(&mut rig.bench, tag, result);
                }
                4 | 5 if !engine.is_empty() => {
                    let request: Request = engine.swap_remove(random(engine.len() as u64) as usize);
                    let result = match random(6) {
                        0 => Err(IoError::of(ErrorKind::Io)),
                        1 if away => Err(IoError::of(ErrorKind::NoDevice)),
                        _ => Ok(()),
                    };
                    let buffer_busy = result.is_err() && request.buf != Buf::NONE && random(3) == 0;
                    late.extend(buffer_busy.then_some(request.tag));
                    rig.queue.io_done(&mut rig.bench, &Completion { tag: request.tag, result, buffer_busy });
                }
                6 if step < 1500 => {
                    away = !away;
                    let export = (!away).then(|| export(SECOND, false));
                    rig.queue.serve(&mut rig.bench, export);
                }
                7 if !late.is_empty() => {
                    let tag = late.swap_remove(random(late.len() as u64) as usize);
                    rig.queue.released(&mut rig.bench, tag);
                }
                _ => rig.turn(),
            }
            if step == 1500 {
                away = false;
                rig.queue.serve(&mut rig.bench, Some(export(FIRST, false)));
            }
            for request in rig.bench.requests.iter().filter(|request| request.op == Op::Write) {
                let tag = request.tag as u16;
                assert_eq!(copied.get(&tag), Some(&Some(request.buf.addr)), "written from where nothing was copied to");
            }
            engine.append(&mut rig.bench.requests);
            for (code, command) in &rig.bench.commands[seen..] {
                if *code == IoOp::GetData.code(true) {
                    copying.push(command.tag);
                } else {
                    assert!(std::mem::take(&mut open[usize::from(command.tag)]), "answered, and not asked");
                    answered += 1;
                }
            }
            seen = rig.bench.commands.len();
        }
        late.into_iter().for_each(|tag| rig.queue.released(&mut rig.bench, tag));
        rig.turn();
        assert_eq!((asked, rig.bench.memory.len()), (answered, 0));
    }
}
