//! Sessions against a scripted server, in memory.
#![allow(clippy::unwrap_used)]

mod fenced;
mod secure;
mod sparse;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64};

use braid_engine::{Flags, Op};
use braid_ring::{OUTPUT_BYTES, PartLimits, RemotePart};

use super::connections::RemoteConnection;
use super::dial::Target;
use super::fenced::Fenced;
use super::session::libc_errno::{NODEV, TIMEDOUT};
use super::shared::{FLAGS, Shared};
use super::wire::Wire;
use crate::codec::transmission_flags;

const SIZE: u64 = 1 << 30;
const ALL: u16 = transmission_flags::HAS_FLAGS | FLAGS & !transmission_flags::READ_ONLY;
const SECOND: u64 = 1_000_000_000;
const CONNECTION: u32 = 6;

enum Receiving {
    Input(usize),
    Data(u32, u64, u64),
}

/// The shard of a session.
#[derive(Default)]
struct Shard {
    now_ns: u64,
    refuses: bool,
    dialled: usize,
    waiting: VecDeque<RemotePart>,
    /// The memory of each I/O.
    memory: BTreeMap<u32, Vec<u8>>,
    ended: Vec<(u32, Result<(), i32>)>,
    open: bool,
    input: Vec<u8>,
    output: Vec<u8>,
    gathered: Vec<u8>,
    receiving: Option<Receiving>,
    /// Bytes that the session has sent and the scripted server has not read. The last `sending` of them are in a send
    /// in flight.
    sent: Vec<u8>,
    sending: usize,
    timers: Vec<u64>,
}

/// A request: type, flags, cookie, offset, length.
type Said = (u16, u16, u64, u64, u32);

impl Wire for Shard {
    fn now_ns(&self) -> u64 {
        self.now_ns
    }
    fn take(&mut self, _limits: &PartLimits) -> Option<RemotePart> {
        self.waiting.pop_front()
    }
    fn waiting_since_ns(&self) -> Option<u64> {
        self.waiting.front().map(|part| part.start_ns)
    }
    fn done(&mut self, part: &RemotePart, result: Result<(), i32>) {
        assert!(self.sending == 0 || part.op != Op::Write, "its memory may still be sent from");
        self.ended.push((part.io, result));
    }
    fn fail_waiting(&mut self, errno: i32) {
        let part = self.waiting.pop_front().unwrap();
        self.ended.push((part.io, Err(errno)));
    }
    fn give_up_reads(&mut self, now_ns: u64, limit_ns: u64) -> Option<u64> {
        let slow = |part: &RemotePart| part.is_slow(now_ns, limit_ns);
        let since = self.waiting.iter().filter(|part| slow(part)).map(|part| part.start_ns).min();
        self.ended
            .extend(self.waiting.iter().filter(|part| slow(part)).map(|part| (part.io, Err(braid_ring::SLOW_ERRNO))));
        self.waiting.retain(|part| !slow(part));
        since
    }
    fn dial(&mut self, _target: &Target) -> bool {
        assert!(!self.open && self.receiving.is_none() && self.sending == 0, "one connection at a time");
        self.dialled += 1;
        self.open = !self.refuses;
        self.open
    }
    fn close(&mut self) {
        self.open = false;
    }
    fn input(&self, from: usize, to: usize) -> &[u8] {
        &self.input[from..to]
    }
    fn input_mut(&mut self, from: usize, to: usize) -> &mut [u8] {
        assert!(self.receiving.is_none(), "the input is in use");
        &mut self.input[from..to]
    }
    fn move_input(&mut self, from: usize, to: usize) {
        self.input.copy_within(from..to, 0);
    }
    fn receive(&mut self, at: usize) -> bool {
        assert!(self.receiving.is_none());
        self.receiving = self.open.then_some(Receiving::Input(at));
        self.open
    }
    fn receive_data(&mut self, part: &RemotePart, at: u64, len: u64) -> u64 {
        assert!(self.receiving.is_none());
        self.receiving = self.open.then_some(Receiving::Data(part.io, part.at + at, len));
        if self.open { len } else { 0 }
    }
    fn copy_data(&mut self, part: &RemotePart, at: u64, from: usize, to: usize) {
        let start = (part.at + at) as usize;
        let data = self.input[from..to].to_vec();
        self.memory.get_mut(&part.io).unwrap()[start..start + data.len()].copy_from_slice(&data);
    }
    fn put_data(&mut self, part: &RemotePart, at: u64, data: &[u8]) {
        let start = (part.at + at) as usize;
        self.memory.get_mut(&part.io).unwrap()[start..start + data.len()].copy_from_slice(data);
    }
    fn output_data(&mut self, part: &RemotePart, at: u64, len: usize, to: usize) {
        let zeros = vec![0; part.len as usize];
        let data = self.memory.get(&part.io).filter(|_| part.op == Op::Write).unwrap_or(&zeros);
        let start = (part.at + at) as usize;
        self.output[to..to + len].copy_from_slice(&data[start..start + len]);
    }
    fn output(&mut self) -> &mut [u8] {
        assert_eq!(self.sending, 0, "the output is in use");
        &mut self.output
    }
    fn room(&self) -> usize {
        braid_ring::SEND_PIECES_MAX
    }
    fn gather(&mut self, from: usize, to: usize) {
        self.gathered.extend_from_slice(&self.output[from..to]);
    }
    fn gather_data(&mut self, part: &RemotePart) {
        let zeros = vec![0; part.len as usize];
        let data = self.memory.get(&part.io).filter(|_| part.op == Op::Write).unwrap_or(&zeros);
        self.gathered.extend_from_slice(&data[part.at as usize..(part.at + part.len) as usize]);
    }
    fn send(&mut self) -> bool {
        assert_eq!(self.sending, 0, "one send at a time");
        self.sending = self.gathered.len();
        self.sent.append(&mut self.gathered);
        self.open
    }
    fn timer_at(&mut self, at_ns: u64) -> bool {
        self.timers.push(at_ns);
        true
    }
}

struct Bed {
    session: RemoteConnection,
    shard: Shard,
    shared: Arc<Shared>,
    flags: u16,
    ios: u32,
}

fn shared_of(flags: u16, replaceable: bool, fenced: Option<Fenced>) -> Shared {
    Shared {
        export: "disk".into(),
        targets: vec![Target::Unix("/nowhere".into())],
        tls_peer: None,
        connections: 1,
        fenced,
        limit_ns: None,
        export_bytes: SIZE,
        block_bytes: 512,
        payload_bytes: 32 << 20,
        flags: flags & FLAGS,
        allocation: false,
        replaceable: AtomicBool::new(replaceable),
        lost: OnceLock::new(),
        unsettled: AtomicBool::new(false),
        written: AtomicU64::new(0),
        flushed: AtomicU64::new(0),
        last_reply_ns: AtomicU64::new(0),
    }
}

impl Bed {
    fn new(flags: u16, replaceable: bool) -> Bed {
        Bed::with(flags, replaceable, None)
    }

    fn with(flags: u16, replaceable: bool, fenced: Option<Fenced>) -> Bed {
        Bed::of(shared_of(flags, replaceable, fenced), flags)
    }

    fn of(shared: Shared, flags: u16) -> Bed {
        let shared = Arc::new(shared);
        let shard = Shard {
            now_ns: 1000 * SECOND,
            input: vec![0; 64 << 10],
            output: vec![0; OUTPUT_BYTES],
            ..Shard::default()
        };
        Bed { session: RemoteConnection::new(&shared, CONNECTION), shard, shared, flags, ios: 0 }
    }

    /// Submits an I/O. The data of a write is its number.
    fn ask(&mut self, op: Op, flags: Flags, offset: u64, len: u64) -> u32 {
        self.ios += 1;
        let io = self.ios;
        self.shard.memory.insert(io, vec![if op == Op::Write { io as u8 } else { 0xee }; len as usize]);
        self.shard.waiting.push_back(RemotePart { io, op, flags, offset, len, at: 0, start_ns: self.shard.now_ns });
        self.session.work(&mut self.shard);
        io
    }

    fn work(&mut self) {
        self.session.work(&mut self.shard);
    }

    /// Completes the send in flight.
    fn sent(&mut self) {
        if self.shard.sending > 0 {
            let len = std::mem::take(&mut self.shard.sending);
            self.session.sent(&mut self.shard, len as i32);
            self.work();
        }
    }

    /// Sends bytes from the server.
    fn says(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let took = match self.shard.receiving.take().expect("the session listens") {
                Receiving::Input(at) => {
                    let took = bytes.len().min(self.shard.input.len() - at);
                    self.shard.input[at..at + took].copy_from_slice(&bytes[..took]);
                    took
                }
                Receiving::Data(io, at, len) => {
                    let (at, took) = (at as usize, len as usize);
                    self.shard.memory.get_mut(&io).unwrap()[at..at + took].copy_from_slice(&bytes[..took]);
                    took
                }
            };
            bytes = &bytes[took..];
            self.session.received(&mut self.shard, took as i32);
        }
        self.work();
    }

    /// Exchanges the greeting and the client's first message.
    fn begins(&mut self) {
        self.says(&[&b"NBDMAGICIHAVEOPT"[..], &3u16.to_be_bytes()].concat());
        self.sent();
    }

    fn option_reply(kind: u32, data: &[u8]) -> Vec<u8> {
        let len = (data.len() as u32).to_be_bytes();
        [&0x3e889045565a9u64.to_be_bytes()[..], &[0, 0, 0, 7], &kind.to_be_bytes(), &len, data].concat()
    }

    fn greets(&mut self) {
        self.begins();
        let info = [&[0, 0][..], &SIZE.to_be_bytes(), &self.flags.to_be_bytes()].concat();
        self.shard.sent.clear();
        let all = [Bed::option_reply(3, &info), Bed::option_reply(1, &[])].concat();
        // In two parts, as on a real socket.
        self.says(&all[..30]);
        self.says(&all[30..]);
    }

    /// Returns the requests that the server has received, without the data of writes.
    fn requests(&mut self) -> Vec<Said> {
        let (mut all, bytes) = (Vec::new(), std::mem::take(&mut self.shard.sent));
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let n = |from: usize, to: usize| rest[from..to].iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
            assert_eq!(n(0, 4), 0x25609513);
            let one = (n(6, 8) as u16, n(4, 6) as u16, n(8, 16), n(16, 24), n(24, 28) as u32);
            let data = if one.0 == 1 { one.4 as usize } else { 0 };
            rest = &rest[28 + data..];
            all.push(one);
        }
        all
    }

    fn reply(cookie: u64, error: u32, data: &[u8]) -> Vec<u8> {
        [&0x67446698u32.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes(), data].concat()
    }

    /// Breaks the connection: all operations in flight complete.
    fn breaks(&mut self) {
        if std::mem::take(&mut self.shard.sending) > 0 {
            self.session.sent(&mut self.shard, -32);
        }
        if self.shard.receiving.take().is_some() {
            self.session.received(&mut self.shard, 0);
        }
        self.work();
    }

    /// Advances the time in steps, as the timer does.
    fn passes(&mut self, ns: u64) {
        let until = self.shard.now_ns + ns;
        while self.shard.now_ns < until {
            self.shard.now_ns += SECOND / 4;
            self.session.timer(&mut self.shard);
            self.work();
            if !self.shard.open {
                // Operations in flight on a closed connection complete.
                self.breaks();
            }
        }
    }

    /// Returns a bed with an established connection.
    fn up(flags: u16, replaceable: bool) -> Bed {
        Bed::new(flags, replaceable).connected()
    }

    fn connected(self) -> Bed {
        let mut bed = self;
        let io = bed.ask(Op::Read, Flags::NONE, 0, 512);
        assert_eq!(bed.shard.dialled, 1);
        bed.greets();
        bed.sent();
        let [(0, 0, cookie, 0, 512)] = bed.requests()[..] else { panic!("one read") };
        bed.says(&Bed::reply(cookie, 0, &[7; 512]));
        assert_eq!(std::mem::take(&mut bed.shard.ended), [(io, Ok(()))]);
        assert_eq!(bed.shard.memory[&io], [7; 512]);
        bed
    }
}

#[test]
fn requests_of_a_batch_go_out_together_and_replies_come_in_any_order() {
    let mut bed = Bed::up(ALL, false);
    let ops = [(Op::Write, 1u16), (Op::Read, 0), (Op::Flush, 3), (Op::Discard, 4), (Op::WriteZeroes, 6)];
    for (op, _) in ops {
        bed.ios += 1;
        let len = if op == Op::Flush { 0 } else { 4096 };
        bed.shard.memory.insert(bed.ios, vec![1; 4096]);
        let (flags, start_ns) = (Flags::NONE, bed.shard.now_ns);
        bed.shard.waiting.push_back(RemotePart { io: bed.ios, op, flags, offset: 4096, len, at: 0, start_ns });
    }
    bed.work();
    let requests = bed.requests();
    assert_eq!(requests.iter().map(|r| r.0).collect::<Vec<_>>(), ops.map(|op| op.1));
    bed.sent();
    // In reverse order, and in small pieces.
    let replies = requests.iter().rev().map(|r| Bed::reply(r.2, 0, if r.0 == 0 { &[9; 4096] } else { &[] }));
    for crumb in replies.collect::<Vec<_>>().concat().chunks(13) {
        bed.says(crumb);
    }
    assert_eq!(bed.shard.ended, [(6, Ok(())), (5, Ok(())), (4, Ok(())), (3, Ok(())), (2, Ok(()))]);
    assert_eq!(bed.shard.memory[&3], [9; 4096]);
}

#[test]
fn a_long_read_is_received_into_its_destination() {
    let mut bed = Bed::up(ALL, false);
    let io = bed.ask(Op::Read, Flags::NONE, 0, 1 << 20);
    let cookie = bed.requests()[0].2;
    bed.sent();
    let data: Vec<u8> = (0..1 << 20).map(|n: u32| (n * 7 + n / 251) as u8).collect();
    bed.says(&Bed::reply(cookie, 0, &data));
    assert_eq!(bed.shard.ended, [(io, Ok(()))]);
    assert!(bed.shard.memory[&io] == data);
}

#[test]
fn a_write_answered_early_keeps_its_memory_until_its_send_ends() {
    let mut bed = Bed::up(ALL, false);
    let io = bed.ask(Op::Write, Flags::NONE, 0, 4096);
    let cookie = bed.requests()[0].2;
    bed.says(&Bed::reply(cookie, 0, &[]));
    assert_eq!(bed.shard.ended, []);
    bed.sent();
    assert_eq!(bed.shard.ended, [(io, Ok(()))]);
}

#[test]
fn server_errors_become_disk_errors() {
    let mut bed = Bed::up(ALL, false);
    let io = bed.ask(Op::Write, Flags::NONE, 0, 4096);
    let cookie = bed.requests()[0].2;
    bed.sent();
    bed.says(&Bed::reply(cookie, 28, &[]));
    assert_eq!(bed.shard.ended, [(io, Err(28))]);
}

#[test]
fn unanswered_requests_are_resent_after_a_reconnect() {
    let mut bed = Bed::up(ALL, false);
    let [write, read] = [bed.ask(Op::Write, Flags::NONE, 8192, 4096), bed.ask(Op::Read, Flags::NONE, 0, 512)];
    bed.sent();
    assert_eq!(bed.requests().len(), 2);
    bed.breaks();
    assert_eq!(bed.shard.ended, []);
    bed.passes(SECOND / 4);
    assert_eq!(bed.shard.dialled, 2);
    bed.greets();
    let [(1, 0, first, 8192, 4096), (0, 0, second, 0, 512)] = bed.requests()[..] else { panic!("both again") };
    bed.sent();
    bed.says(&[Bed::reply(first, 0, &[]), Bed::reply(second, 0, &[3; 512])].concat());
    assert_eq!(bed.shard.ended, [(write, Ok(())), (read, Ok(()))]);
}

#[test]
fn a_member_with_unanswered_writes_is_lost_with_its_connection() {
    for (op, lost) in [(Op::Write, true), (Op::WriteZeroes, true), (Op::Read, false), (Op::Flush, false)] {
        let mut bed = Bed::up(ALL, true);
        let io = bed.ask(op, Flags::NONE, 0, if op == Op::Flush { 0 } else { 4096 });
        bed.sent();
        bed.breaks();
        assert_eq!(bed.shared.is_lost(), lost, "{op:?}");
        assert_eq!(bed.shard.ended, if lost { vec![(io, Err(NODEV))] } else { vec![] }, "{op:?}");
        if lost {
            let next = bed.ask(Op::Read, Flags::NONE, 0, 512);
            assert_eq!(bed.shard.ended.last(), Some(&(next, Err(NODEV))));
            assert_eq!(bed.shard.dialled, 1);
        }
    }
}

#[test]
fn a_member_with_unflushed_writes_is_lost_with_its_connection() {
    for flushed in [false, true] {
        let mut bed = Bed::up(ALL, true);
        for op in [Op::Write, Op::Flush].into_iter().take(1 + usize::from(flushed)) {
            bed.ask(op, Flags::NONE, 0, if op == Op::Write { 4096 } else { 0 });
            let cookie = bed.requests()[0].2;
            bed.sent();
            bed.says(&Bed::reply(cookie, 0, &[]));
        }
        bed.breaks();
        assert_eq!(bed.shared.is_lost(), !flushed);
    }
}

#[test]
fn a_silent_server_times_out_and_its_disk_is_lost_if_it_had_writes() {
    for op in [Op::Write, Op::Read] {
        let mut bed = Bed::up(ALL, false);
        let io = bed.ask(op, Flags::NONE, 0, 4096);
        bed.sent();
        bed.passes(29 * SECOND);
        assert_eq!(bed.shard.ended, [], "{op:?}");
        bed.passes(2 * SECOND);
        assert_eq!(bed.shard.ended, [(io, Err(TIMEDOUT))], "{op:?}");
        assert_eq!(bed.shared.is_lost(), op == Op::Write);
        let next = bed.ask(Op::Read, Flags::NONE, 0, 512);
        bed.passes(SECOND);
        if op == Op::Write {
            assert_eq!(bed.shard.ended.last(), Some(&(next, Err(NODEV))));
        } else {
            assert!(bed.shard.dialled > 1, "another connection is tried");
        }
    }
}

#[test]
fn each_request_without_a_server_has_its_own_timeout() {
    for (replaceable, seconds) in [(false, 30), (true, 5)] {
        let mut bed = Bed::new(ALL, replaceable);
        bed.shard.refuses = true;
        let first = bed.ask(Op::Read, Flags::NONE, 0, 512);
        bed.passes(SECOND);
        let second = bed.ask(Op::Write, Flags::NONE, 0, 512);
        bed.passes((seconds - 2) * SECOND);
        assert_eq!(bed.shard.ended, []);
        bed.passes(SECOND);
        assert_eq!(bed.shard.ended, [(first, Err(TIMEDOUT))]);
        bed.passes(SECOND);
        assert_eq!(bed.shard.ended, [(first, Err(TIMEDOUT)), (second, Err(TIMEDOUT))]);
        // The retry interval grows, up to a second.
        assert!(bed.shard.dialled as u64 >= seconds - 1, "{} tries", bed.shard.dialled);
        assert!((bed.shard.dialled as u64) < seconds + 10, "{} tries", bed.shard.dialled);
        assert!(!bed.shared.is_lost(), "no request reached a server");
    }
}

#[test]
fn a_closed_connection_does_not_fail_requests_that_another_takes() {
    for replaceable in [false, true] {
        for fenced in [None, Some(fenced::ME)] {
            let mut bed = Bed::with(ALL, replaceable, fenced);
            bed.shard.refuses = true;
            bed.session.session.other_connected = true;
            bed.ask(Op::Discard, Flags::NONE, 0, SIZE);
            bed.passes(40 * SECOND);
            assert_eq!(bed.shard.ended, []);
            bed.session.session.other_connected = false;
            bed.passes(SECOND);
            assert_eq!(bed.shard.ended.len(), 1);
        }
    }
}

#[test]
fn a_server_without_fua_is_flushed() {
    let mut bed = Bed::up(ALL & !transmission_flags::SEND_FUA, false);
    let io = bed.ask(Op::Write, Flags::FUA, 0, 4096);
    let [(1, 0, cookie, 0, 4096)] = bed.requests()[..] else { panic!("a write without FUA") };
    bed.sent();
    bed.says(&Bed::reply(cookie, 0, &[]));
    assert_eq!(bed.shard.ended, []);
    let [(3, 0, cookie, 0, 0)] = bed.requests()[..] else { panic!("a flush") };
    bed.sent();
    bed.says(&Bed::reply(cookie, 0, &[]));
    assert_eq!(bed.shard.ended, [(io, Ok(()))]);
    // If the connection ends in between, the write may be lost: it is repeated.
    for reported in [false, true] {
        let mut bed = Bed::up(ALL & !transmission_flags::SEND_FUA, false);
        let io = bed.ask(Op::Write, Flags::FUA, 0, 4096);
        let cookie = bed.requests()[0].2;
        bed.sent();
        bed.says(&Bed::reply(cookie, 0, &[]));
        if reported {
            bed.sent();
        }
        bed.breaks();
        bed.requests();
        bed.passes(SECOND / 2);
        bed.greets();
        for kind in [1, 3] {
            assert_eq!(bed.shard.ended, []);
            let requests = bed.requests();
            assert_eq!(requests.iter().map(|request| request.0).collect::<Vec<_>>(), [kind]);
            bed.sent();
            bed.says(&Bed::reply(requests[0].2, 0, &[]));
        }
        assert_eq!(bed.shard.ended, [(io, Ok(()))]);
    }
    let mut bed = Bed::up(ALL, false);
    bed.ask(Op::Write, Flags::FUA, 0, 4096);
    assert_eq!(bed.requests()[0].1, 1, "FUA is passed to a server that supports it");
}

#[test]
fn missing_server_features_are_emulated() {
    let flags = ALL & !(transmission_flags::SEND_WRITE_ZEROES | transmission_flags::SEND_TRIM);
    let mut bed = Bed::up(flags & !transmission_flags::SEND_FLUSH, false);
    let none = [bed.ask(Op::Discard, Flags::NONE, 0, 4096), bed.ask(Op::Flush, Flags::NONE, 0, 0)];
    assert_eq!(bed.shard.ended, none.map(|io| (io, Ok(()))));
    bed.ask(Op::WriteZeroes, Flags::NONE, 0, 4096);
    assert!(bed.shard.sent[28..].iter().all(|&byte| byte == 0));
    assert_eq!(bed.requests()[0].0, 1, "zeros are written");
}

#[test]
fn a_reply_with_a_stale_cookie_ends_the_connection() {
    let mut bed = Bed::up(ALL, false);
    let io = bed.ask(Op::Read, Flags::NONE, 0, 512);
    let cookie = bed.requests()[0].2;
    bed.sent();
    // The cookie of the slot's previous use.
    bed.says(&Bed::reply(cookie - (1 << 16), 0, &[1; 512])[..16]);
    bed.breaks();
    assert_eq!(bed.shard.ended, [(io, Err(TIMEDOUT))]);
}

#[test]
fn a_server_that_returns_with_different_terms_is_not_used() {
    let mut bed = Bed::up(ALL, false);
    bed.ask(Op::Read, Flags::NONE, 0, 512);
    bed.breaks();
    bed.passes(SECOND / 4);
    bed.flags &= !transmission_flags::SEND_FLUSH;
    bed.shard.sent.clear();
    bed.greets();
    bed.breaks();
    assert_eq!(bed.requests(), []);
    assert!(!bed.shard.open);
}
