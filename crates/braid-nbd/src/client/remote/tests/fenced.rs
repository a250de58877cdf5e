//! Sessions of fenced disks.

use super::*;
use braid_engine::Uuid;

pub(super) const ME: Fenced =
    Fenced { epoch: 7, controller: Uuid::from_u128(0xc0), boot: Uuid::from_u128(0xb0), session: 3 };

/// The parameters of the export's name, without the attempt.
const NAME_QUERY: &str = "?epoch=7&controller=00000000-0000-0000-0000-0000000000c0&boot=00000000-0000-0000-0000-0000000000b0&session=3&connection=6";

impl Bed {
    fn fenced() -> Bed {
        Bed::with(ALL, true, Some(ME))
    }

    /// Returns the name that the client requested in its last handshake.
    fn name(&mut self) -> String {
        // Its flags, then the option: magic, number, length, length of the name, name.
        let said = &std::mem::take(&mut self.shard.sent)[4..];
        assert_eq!(said[..12], [&b"IHAVEOPT"[..], &[0, 0, 0, 7]].concat());
        let len = u32::from_be_bytes(said[16..20].try_into().unwrap()) as usize;
        String::from_utf8(said[20..20 + len].to_vec()).unwrap()
    }

    fn why(&self) -> &str {
        self.shared.lost.get().map_or("", |why| why)
    }
}

#[test]
fn each_connection_attempt_has_a_higher_number() {
    let mut bed = Bed::fenced();
    bed.ask(Op::Read, Flags::NONE, 0, 512);
    for attempt in 2..6 {
        assert_eq!(bed.shard.dialled as u64, attempt - 1);
        bed.begins();
        assert_eq!(bed.name(), format!("disk{NAME_QUERY}&attempt={attempt}"));
        bed.breaks();
        bed.passes(SECOND / 4);
    }
    assert_eq!(bed.shard.ended, []);
}

#[test]
fn a_fenced_disk_resends_unanswered_requests() {
    for op in [Op::Write, Op::WriteZeroes, Op::Read] {
        let mut bed = Bed::fenced().connected();
        let unflushed = bed.ask(Op::Write, Flags::NONE, 8192, 512);
        let cookie = bed.requests()[0].2;
        bed.sent();
        bed.says(&Bed::reply(cookie, 0, &[]));
        assert_eq!(std::mem::take(&mut bed.shard.ended), [(unflushed, Ok(()))]);
        let io = bed.ask(op, Flags::NONE, 0, 4096);
        let kind = bed.requests()[0].0;
        bed.sent();
        bed.breaks();
        assert_eq!((bed.why(), bed.shard.ended.len()), ("", 0), "{op:?}");
        bed.passes(SECOND / 4);
        bed.greets();
        let [(again, 0, cookie, 0, 4096)] = bed.requests()[..] else { panic!("the request is resent") };
        assert_eq!(again, kind);
        bed.sent();
        let data: &[u8] = if op == Op::Read { &[5; 4096] } else { &[] };
        bed.says(&Bed::reply(cookie, 0, data));
        assert_eq!(bed.shard.ended, [(io, Ok(()))]);
    }
}

#[test]
fn a_policy_refusal_is_final_and_reported() {
    let mut bed = Bed::fenced();
    let first = bed.ask(Op::Write, Flags::NONE, 0, 512);
    bed.begins();
    bed.says(&Bed::option_reply(0x8000_0002, b"epoch 9 is answered"));
    bed.breaks();
    assert_eq!(bed.why(), "its server refuses it: epoch 9 is answered");
    let second = bed.ask(Op::Read, Flags::NONE, 0, 512);
    bed.passes(2 * SECOND);
    assert_eq!(bed.shard.ended, [(first, Err(NODEV)), (second, Err(NODEV))]);
    assert_eq!(bed.shard.dialled, 1, "no further connection is opened");
    // Other refusals may be temporary.
    let mut bed = Bed::fenced();
    bed.ask(Op::Write, Flags::NONE, 0, 512);
    bed.begins();
    bed.says(&Bed::option_reply(0x8000_0006, b"not yet"));
    bed.breaks();
    bed.passes(SECOND / 4);
    assert_eq!((bed.why(), bed.shard.dialled), ("", 2));
}

#[test]
fn a_different_export_under_the_same_name_is_not_used() {
    let mut bed = Bed::fenced().connected();
    let io = bed.ask(Op::Read, Flags::NONE, 0, 512);
    bed.breaks();
    bed.passes(SECOND / 4);
    bed.flags &= !transmission_flags::SEND_FLUSH;
    bed.greets();
    bed.breaks();
    assert_eq!(bed.why(), "its server has another export under its name");
    assert_eq!(bed.shard.ended, [(io, Err(NODEV))]);
}

#[test]
fn a_replica_without_progress_is_lost() {
    // The server does not reply, cannot be reached, or does not finish the handshake.
    for how in 0..3 {
        let mut bed = if how == 0 { Bed::fenced().connected() } else { Bed::fenced() };
        bed.shard.refuses = how == 1;
        bed.passes(60 * SECOND);
        let io = bed.ask(Op::Write, Flags::NONE, 0, 512);
        bed.sent();
        bed.passes(4 * SECOND + SECOND / 2);
        assert_eq!((bed.why(), bed.shard.ended.len()), ("", 0), "{how}");
        bed.passes(SECOND);
        bed.breaks();
        assert_eq!(bed.why(), "its server made no progress for too long", "{how}");
        assert_eq!(bed.shard.ended, [(io, Err(NODEV))], "{how}");
    }
}

const MS: u64 = SECOND / 1000;

impl Bed {
    /// Advances the time and runs the timer, without completions.
    fn ticks(&mut self, ns: u64) {
        self.shard.now_ns += ns;
        self.session.timer(&mut self.shard);
        self.work();
    }
}

#[test]
fn a_slow_read_of_redundant_data_is_abandoned_and_its_data_discarded() {
    let mut bed = Bed::fenced().connected();
    // The average latency is near 0 so far: the first read took no time.
    let (read, other) =
        (bed.ask(Op::Read, Flags::HAS_ALTERNATIVE, 0, 40 << 10), bed.ask(Op::Read, Flags::NONE, 0, 512));
    bed.sent();
    bed.sent();
    let cookies: Vec<u64> = bed.requests().iter().map(|request| request.2).collect();
    bed.ticks(19 * MS);
    assert_eq!(bed.shard.ended, []);
    bed.ticks(10 * MS);
    assert_eq!(std::mem::take(&mut bed.shard.ended), [(read, Err(braid_ring::SLOW_ERRNO))]);
    // Its memory is reused.
    bed.shard.memory.remove(&read);
    bed.says(&Bed::reply(cookies[0], 0, &[9; 40 << 10]));
    assert_eq!(bed.shard.ended, []);
    bed.says(&Bed::reply(cookies[1], 0, &[3; 512]));
    assert_eq!(std::mem::take(&mut bed.shard.ended), [(other, Ok(()))]);
    // A read that was abandoned before, on another disk, gets more time.
    let read = bed.ask(Op::Read, Flags::alternative_try(2), 0, 512);
    bed.sent();
    let cookie = bed.requests()[0].2;
    bed.ticks(75 * MS);
    assert_eq!(bed.shard.ended, []);
    bed.ticks(500 * MS);
    assert_eq!(std::mem::take(&mut bed.shard.ended), [(read, Err(braid_ring::SLOW_ERRNO))]);
    bed.says(&Bed::reply(cookie, 0, &[3; 512]));
    // A read whose data is arriving is waited for.
    let read = bed.ask(Op::Read, Flags::HAS_ALTERNATIVE, 0, 8192);
    bed.sent();
    let cookie = bed.requests()[0].2;
    let all = Bed::reply(cookie, 0, &[4; 8192]);
    bed.says(&all[..1000]);
    bed.ticks(4 * SECOND);
    assert_eq!(bed.shard.ended, []);
    bed.says(&all[1000..]);
    assert_eq!(std::mem::take(&mut bed.shard.ended), [(read, Ok(()))]);
    // The average latency is high now.
    let read = bed.ask(Op::Read, Flags::HAS_ALTERNATIVE, 0, 512);
    bed.sent();
    bed.ticks(SECOND);
    assert_eq!(bed.shard.ended, []);
    let cookie = bed.requests()[0].2;
    bed.says(&Bed::reply(cookie, 5, &[]));
    assert_eq!((bed.shard.ended[0].0, bed.shard.ended[0].1.is_err(), bed.why()), (read, true, ""));
    bed.shard.ended.clear();
    // But a slow read does not make the next one wait until its server is lost.
    let read = bed.ask(Op::Read, Flags::HAS_ALTERNATIVE, 0, 512);
    bed.sent();
    bed.ticks(SECOND + SECOND / 2);
    assert_eq!(bed.shard.ended, [(read, Err(braid_ring::SLOW_ERRNO))]);
}

#[test]
fn an_abandoned_read_is_not_resent_and_a_server_that_never_replies_is_lost() {
    // The connection breaks; the server is silent; the server cannot be reached.
    for how in 0..3 {
        let mut bed = if how == 2 { Bed::fenced() } else { Bed::fenced().connected() };
        bed.shard.refuses = how == 2;
        let read = bed.ask(Op::Read, Flags::HAS_ALTERNATIVE, 0, 512);
        bed.sent();
        bed.ticks(SECOND / 4);
        assert_eq!(std::mem::take(&mut bed.shard.ended), [(read, Err(braid_ring::SLOW_ERRNO))], "{how}");
        bed.requests();
        if how == 0 {
            bed.breaks();
            // A read that is waited for reopens the connection.
            let other = bed.ask(Op::Read, Flags::NONE, 4096, 512);
            bed.passes(SECOND / 4);
            bed.greets();
            let [(0, 0, cookie, 4096, 512)] = bed.requests()[..] else { panic!("one read") };
            bed.sent();
            bed.says(&Bed::reply(cookie, 0, &[1; 512]));
            assert_eq!((bed.why(), bed.shard.ended.as_slice()), ("", &[(other, Ok(()))][..]));
            continue;
        }
        bed.passes(4 * SECOND + SECOND / 2);
        assert_eq!(bed.why(), "", "{how}");
        bed.passes(SECOND);
        assert_eq!(bed.why(), "its server made no progress for too long", "{how}");
        assert_eq!(bed.shard.ended, [], "{how}");
    }
}

#[test]
fn a_slow_replica_is_not_lost() {
    let mut bed = Bed::fenced().connected();
    let ios: Vec<u32> = (0..6).map(|at| bed.ask(Op::Write, Flags::NONE, at * 4096, 512)).collect();
    bed.sent();
    bed.work();
    bed.sent();
    let requests = bed.requests();
    assert_eq!(requests.len(), ios.len());
    for (at, request) in requests.iter().enumerate() {
        bed.passes(4 * SECOND);
        bed.says(&Bed::reply(request.2, 0, &[]));
        assert_eq!(bed.shard.ended.len(), at + 1);
    }
    assert_eq!((bed.why(), bed.shard.dialled), ("", 1));
    // One of two requests never gets a reply: the wait for it is limited.
    let (stuck, second) = (bed.ask(Op::Read, Flags::NONE, 0, 512), bed.ask(Op::Write, Flags::NONE, 0, 512));
    bed.sent();
    bed.work();
    bed.sent();
    let mut cookie = bed.requests()[1].2;
    bed.shard.ended.clear();
    for _ in 0..7 {
        bed.passes(4 * SECOND);
        bed.says(&Bed::reply(cookie, 0, &[]));
        bed.ask(Op::Write, Flags::NONE, 0, 512);
        cookie = bed.requests()[0].2;
        bed.sent();
    }
    assert_eq!((bed.why(), bed.shard.ended[0]), ("", (second, Ok(()))));
    bed.passes(3 * SECOND);
    bed.breaks();
    assert_eq!(bed.why(), "its server left a request without an answer for too long");
    assert!(bed.shard.ended.contains(&(stuck, Err(NODEV))));
}

#[test]
fn a_silent_connection_is_replaced_while_others_receive_replies() {
    let mut bed = Bed::fenced().connected();
    let io = bed.ask(Op::Write, Flags::NONE, 0, 512);
    bed.sent();
    for _ in 0..6 {
        bed.passes(SECOND);
        // A reply on another shard.
        bed.shared.record_reply(bed.shard.now_ns);
        if bed.shard.dialled == 2 && bed.shard.receiving.is_some() && bed.shard.sent.is_empty() {
            bed.breaks();
        }
    }
    assert_eq!((bed.why(), bed.shard.ended.len()), ("", 0));
    assert_eq!(bed.shard.dialled, 2, "it has tried another connection");
    bed.requests();
    bed.greets();
    let [(1, 0, cookie, 0, 512)] = bed.requests()[..] else { panic!("the request is resent") };
    bed.sent();
    bed.says(&Bed::reply(cookie, 0, &[]));
    assert_eq!(bed.shard.ended, [(io, Ok(()))]);
}

#[test]
fn the_configured_limit_replaces_the_default_timeouts() {
    for fenced in [None, Some(ME)] {
        let mut bed = Bed::of(Shared { limit_ns: Some(12 * SECOND), ..shared_of(ALL, false, fenced) }, ALL);
        bed.shard.refuses = true;
        let io = bed.ask(Op::Read, Flags::NONE, 0, 512);
        bed.passes(11 * SECOND + SECOND / 2);
        assert_eq!(bed.shard.ended, []);
        bed.passes(SECOND);
        assert_eq!(bed.shard.ended, [(io, Err(if fenced.is_some() { NODEV } else { TIMEDOUT }))]);
    }
}
