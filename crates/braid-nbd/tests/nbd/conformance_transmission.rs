//! Conformance of all commands in both reply styles, with bytes written by hand from the protocol's document.

use std::sync::Arc;

use crate::common::*;
use braid_engine::{DeviceId, ErrorKind, Flags, Op, UpcomingRequest};
use braid_export::{Allocation, ExportInfo};
use braid_nbd::memory::DiskBehaviour;
use braid_nbd::server::PREFETCH_REQUESTS_MAX;
use braid_nbd::{Cause, NbdEvent};

/// Returns a request: magic, flags, type, cookie, offset, length.
fn req(flags: u16, kind: u16, cookie: u64, offset: u64, len: u32) -> String {
    format!("25609513 {flags:04x} {kind:04x} {cookie:016x} {offset:016x} {len:08x}")
}

/// Returns a simple reply.
fn simple(error: u32, cookie: u64) -> String {
    format!("67446698 {error:08x} {cookie:016x}")
}

/// Returns a final chunk of type ERROR.
fn chunk_error(error: u32, cookie: u64) -> String {
    format!("668e33ef 0001 8001 {cookie:016x} ???????? {error:08x} ~2")
}

/// Returns a final chunk of type ERROR_OFFSET.
fn chunk_error_at(error: u32, cookie: u64, offset: u64) -> String {
    format!("668e33ef 0001 8002 {cookie:016x} ???????? {error:08x} ~2 {offset:016x}")
}

/// Returns a final chunk with data.
fn chunk_data(cookie: u64, offset: u64, data: &[u8]) -> String {
    format!("668e33ef 0001 0001 {cookie:016x} {:08x} {offset:016x} {}", data.len() + 8, hex(data))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const DF: u16 = 4;
const REQ_ONE: u16 = 8;
const FAST_ZERO: u16 = 16;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const CACHE: u16 = 5;
const WRITE_ZEROES: u16 = 6;
const BLOCK_STATUS: u16 = 7;

const EPERM: u32 = 1;
const EIO: u32 = 5;
const ENOMEM: u32 = 12;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const ENOTSUP: u32 = 95;

/// Returns clients of both reply styles.
fn both(export: &str) -> [(bool, Client); 2] {
    [(false, Client::simple(export)), (true, Client::structured(export))]
}

/// Returns an error in either style.
fn error(structured: bool, error: u32, cookie: u64) -> String {
    if structured { chunk_error(error, cookie) } else { simple(error, cookie) }
}

#[test]
fn buffered_requests_are_prefetched_before_submission() {
    for (structured, mut client) in both("a") {
        client.host.benefits_from_prefetch = true;
        let data = "'d'".repeat(512);
        let prefetches = |client: &mut Client| std::mem::take(&mut client.host.prefetches);
        let soon = |offset, write| UpcomingRequest { offset, write };

        client.say(&req(0, READ, 1, 4096, 512));
        assert_eq!(prefetches(&mut client), [], "one alone");

        // Requests without a range, and refused ones, are skipped together with their payload. The last request is
        // incomplete.
        let sent = [
            req(0, WRITE, 2, 512, 512) + &data,
            req(0, FLUSH, 3, 0, 0),
            req(0, WRITE, 4, SIZE as u64, 512) + &data,
            req(0, TRIM, 5, 0, 512),
            req(0, READ, 6, 1024, 512),
            req(FUA, WRITE, 7, 2048, 512) + &data,
        ];
        let last = bytes(&req(0, READ, 8, 3072, 512));
        let before = client.host.log.len();
        let mut stream = bytes(&sent.concat());
        stream.extend(&last[..20]);
        client.say_raw(&stream);
        let expected = [soon(512, true), soon(1024, false), soon(2048, true)].map(|soon| (before, soon));
        assert_eq!(prefetches(&mut client), expected, "structured: {structured}");
        client.say_raw(&last[20..]);
        assert_eq!(prefetches(&mut client), []);

        // No further ahead than the maximum, and each request only once.
        let before = client.host.log.len();
        client.say(&(0..PREFETCH_REQUESTS_MAX as u64 + 3).map(|k| req(0, READ, k, k * 512, 512)).collect::<String>());
        let all = prefetches(&mut client);
        assert!(all.iter().enumerate().all(|(k, of)| of.1 == soon(k as u64 * 512, false)), "{all:?}");
        assert_eq!(all.len(), PREFETCH_REQUESTS_MAX + 3);
        assert_eq!(
            (all[PREFETCH_REQUESTS_MAX - 1].0, all[PREFETCH_REQUESTS_MAX].0),
            (before, before + PREFETCH_REQUESTS_MAX)
        );

        client.host.benefits_from_prefetch = false;
        client.say(&(0..3).map(|k| req(0, READ, k, k * 512, 512)).collect::<String>());
        assert_eq!(prefetches(&mut client), [], "no prefetch for a device that does not benefit");
    }
}

#[test]
fn read() {
    for (structured, mut client) in both("a") {
        for (flags, offset, len) in
            [(0, 0, 512), (0, 4096, 4096), (FUA, 512, 1024), (0, (SIZE - 512) as u64, 512), (0, 0, SIZE as u32)]
        {
            let data = client.host.disk[offset as usize..offset as usize + len as usize].to_vec();
            let cookie = 0x1122_3344_5566_7788;
            let expected = if structured { chunk_data(cookie, offset, &data) } else { simple(0, cookie) + &hex(&data) };
            client.ask("read", &req(flags, READ, cookie, offset, len), &expected);
        }
    }
    let mut client = Client::structured("a");
    let data = client.host.disk[..65536].to_vec();
    client.ask("unfragmented", &req(DF, READ, 9, 0, 65536), &chunk_data(9, 0, &data));
}

#[test]
fn read_refused() {
    for (structured, mut client) in both("a") {
        for (what, flags, offset, len) in [
            ("empty", 0, 0, 0),
            ("beyond the end", 0, SIZE as u64, 512),
            ("across the end", 0, (SIZE - 512) as u64, 1024),
            ("offset overflows", 0, u64::MAX - 511, 512),
            ("unaligned offset", 0, 1, 512),
            ("unaligned length", 0, 0, 100),
            ("a flag of others", NO_HOLE, 0, 512),
            ("another", REQ_ONE, 0, 512),
            ("an unknown one", 0x8000, 0, 512),
        ] {
            client.ask(what, &req(flags, READ, 5, offset, len), &error(structured, EINVAL, 5));
        }
        let df = if structured { chunk_data(6, 0, &client.host.disk[..512]) } else { simple(EINVAL, 6) };
        client.ask("DF belongs to structured replies", &req(DF, READ, 6, 0, 512), &df);
        assert_eq!(client.host.log.len(), usize::from(structured), "nothing of it reached the engine");
    }
    for (structured, mut client) in both("big") {
        client.ask("longer than 32 MiB", &req(0, READ, 5, 0, (32 << 20) + 4096), &error(structured, EINVAL, 5));
        client.ask("as long as it can be said", &req(0, READ, 5, 0, 0xffff_f000), &error(structured, EINVAL, 5));
        client.ask("not of 4 KiB", &req(0, READ, 5, 512, 512), &error(structured, EINVAL, 5));
    }
}

/// An error chunk, to the last byte.
#[test]
fn error_chunk_in_full() {
    let mut client = Client::structured("a");
    client.ask(
        "error",
        &req(0, READ, 5, 0, 0),
        "668e33ef 0001 8001 0000000000000005 00000018 00000016 0012 'the range is empty'",
    );
    client.host.behaviour = DiskBehaviour::Failing(ErrorKind::Gone);
    client.ask(
        "error with a place",
        &req(0, READ, 5, 0x1000, 0x1000),
        "668e33ef 0001 8002 0000000000000005 0000001e 00000005 0010 'the disk is gone' 0000000000001000",
    );
}

#[test]
fn write() {
    for (_, mut client) in both("a") {
        let data: Vec<u8> = (0..1024u32).map(|i| (i * 7) as u8).collect();
        client.ask("write", &(req(0, WRITE, 77, 512, 1024) + &hex(&data)), &simple(0, 77));
        client.ask("durable", &(req(FUA, WRITE, 78, 8192, 1024) + &hex(&data)), &simple(0, 78));
        assert_eq!(client.host.disk[512..1536], data);
        assert_eq!(client.host.disk[8192..9216], data);
        let log = [(Op::Write, Flags::NONE, 512, 1024), (Op::Write, Flags::FUA, 8192, 1024)];
        assert_eq!(client.host.log, log);
    }
}

#[test]
fn write_refused() {
    for (structured, mut client) in both("a") {
        for (what, flags, offset, len, errno) in [
            ("empty", 0, 0, 0, EINVAL),
            ("beyond the end", 0, SIZE as u64, 512, ENOSPC),
            ("across the end", 0, (SIZE - 512) as u64, 1024, ENOSPC),
            ("offset overflows", 0, u64::MAX, 512, ENOSPC),
            ("unaligned offset", 0, 256, 512, EINVAL),
            ("unaligned length", 0, 0, 513, EINVAL),
            ("DF", DF, 0, 512, EINVAL),
            ("NO_HOLE", NO_HOLE, 0, 512, EINVAL),
            ("FAST_ZERO", FAST_ZERO, 0, 512, EINVAL),
        ] {
            let sent = req(flags, WRITE, 5, offset, len) + &"ee".repeat(len as usize);
            client.ask(what, &sent, &error(structured, errno, 5));
            client.ask("in step with the stream", &req(0, FLUSH, 6, 0, 0), &simple(0, 6));
        }
        assert!(client.host.log.iter().all(|l| l.0 == Op::Flush), "nothing was written");
    }
    // A payload between 32 and 64 MiB is discarded; a longer one closes the connection.
    let mut client = Client::simple("big");
    let mut sent = bytes(&req(0, WRITE, 5, 0, (32 << 20) + 4096));
    sent.resize(sent.len() + (32 << 20) + 4096, 0xee);
    let got = client.say_raw(&sent);
    expect("too long", &got, &simple(EINVAL, 5));
    client.ask("absurd", &req(0, WRITE, 5, 0, (64 << 20) + 4096), "");
    assert!(client.is_closed());
    let last = client.events().pop().unwrap();
    let cause = Cause::PayloadTooLong((64 << 20) + 4096);
    assert_eq!(last, NbdEvent::Disconnected { peer: "peer".into(), export: Some("big".into()), cause });
}

#[test]
fn read_only() {
    for (structured, mut client) in both("ro") {
        for (kind, data) in [(WRITE, "ee".repeat(512)), (TRIM, String::new()), (WRITE_ZEROES, String::new())] {
            client.ask("refused", &(req(0, kind, 5, 0, 512) + &data), &error(structured, EPERM, 5));
        }
        client.ask("flush", &req(0, FLUSH, 6, 0, 0), &simple(0, 6));
        let data = client.host.disk[..512].to_vec();
        let expected = if structured { chunk_data(7, 0, &data) } else { simple(0, 7) + &hex(&data) };
        client.ask("read", &req(0, READ, 7, 0, 512), &expected);
        assert!(client.host.log.iter().all(|l| matches!(l.0, Op::Flush | Op::Read)));
    }
}

#[test]
fn flush() {
    for (structured, mut client) in both("a") {
        client.ask("flush", &req(0, FLUSH, 1, 0, 0), &simple(0, 1));
        client.ask("flush with FUA", &req(FUA, FLUSH, 2, 0, 0), &simple(0, 2));
        assert_eq!(client.host.log, [(Op::Flush, Flags::NONE, 0, 0); 2]);
        client.ask("with an offset", &req(0, FLUSH, 3, 512, 0), &error(structured, EINVAL, 3));
        client.ask("with a length", &req(0, FLUSH, 4, 0, 512), &error(structured, EINVAL, 4));
        client.ask("with a flag", &req(DF, FLUSH, 5, 0, 0), &error(structured, EINVAL, 5));
        client.host.behaviour = DiskBehaviour::Failing(ErrorKind::FlushFailed);
        client.ask("that failed", &req(0, FLUSH, 6, 0, 0), &error(structured, EIO, 6));
    }
}

#[test]
fn trim() {
    for (structured, mut client) in both("a") {
        client.ask("trim", &req(0, TRIM, 1, 4096, 8192), &simple(0, 1));
        client.ask("trim with FUA", &req(FUA, TRIM, 2, 0, 512), &simple(0, 2));
        assert_eq!(client.host.log, [(Op::Discard, Flags::NONE, 4096, 8192), (Op::Discard, Flags::FUA, 0, 512)]);
        for (what, flags, offset, len) in [
            ("beyond the end", 0, SIZE as u64, 512),
            ("empty", 0, 0, 0),
            ("unaligned", 0, 3, 512),
            ("flag", NO_HOLE, 0, 512),
        ] {
            client.ask(what, &req(flags, TRIM, 3, offset, len), &error(structured, EINVAL, 3));
        }
    }
    let mut client = Client::simple("big");
    client.host.behaviour = DiskBehaviour::Held;
    client.ask("4 GiB less a block at once", &req(0, TRIM, 1, 4096, 0xffff_f000), "");
    assert_eq!(client.host.log, [(Op::Discard, Flags::NONE, 4096, 0xffff_f000)]);
}

#[test]
fn cache() {
    for (structured, mut client) in both("a") {
        client.ask("a hint", &req(0, CACHE, 1, 4096, 8192), &simple(0, 1));
        client.ask("beyond the end", &req(0, CACHE, 2, SIZE as u64, 512), &error(structured, EINVAL, 2));
        client.ask("flag", &req(NO_HOLE, CACHE, 3, 0, 512), &error(structured, EINVAL, 3));
        assert!(client.host.log.is_empty());
    }
}

#[test]
fn write_zeroes() {
    for (structured, mut client) in both("a") {
        client.ask("zeroes", &req(0, WRITE_ZEROES, 1, 4096, 8192), &simple(0, 1));
        assert!(client.host.disk[4096..12288].iter().all(|b| *b == 0));
        for flags in [FUA, NO_HOLE, FAST_ZERO, FUA | NO_HOLE | FAST_ZERO] {
            client.ask("with flags", &req(flags, WRITE_ZEROES, 2, 0, 512), &simple(0, 2));
        }
        let flags = |bits: u8| (Op::WriteZeroes, Flags(bits), 0, 512);
        assert_eq!(client.host.log[1..], [flags(1), flags(2), flags(4), flags(7)]);
        client.ask("beyond the end", &req(0, WRITE_ZEROES, 3, SIZE as u64, 512), &error(structured, ENOSPC, 3));
        client.ask("unaligned", &req(0, WRITE_ZEROES, 3, 512, 7), &error(structured, EINVAL, 3));
        client.ask("flag", &req(DF, WRITE_ZEROES, 3, 0, 512), &error(structured, EINVAL, 3));
        client.host.behaviour = DiskBehaviour::Failing(ErrorKind::Unsupported);
        let failed = |errno| if structured { chunk_error_at(errno, 4, 512) } else { simple(errno, 4) };
        client.ask("not fast", &req(FAST_ZERO, WRITE_ZEROES, 4, 512, 512), &failed(ENOTSUP));
        client.ask("never ENOTSUP unasked", &req(0, WRITE_ZEROES, 4, 512, 512), &failed(EINVAL));
    }
}

#[test]
fn block_status() {
    let status = |extents: &str| {
        let len = 4 + bytes(extents).len();
        format!("668e33ef 0001 0005 0000000000000001 {len:08x} 00000001 {extents}")
    };
    let mut client = Client::structured("a");
    client.ask("all that follows", &req(0, BLOCK_STATUS, 1, 4096, 512), &status("000ff000 00000000"));
    client.ask("one extent", &req(REQ_ONE, BLOCK_STATUS, 1, 4096, 1024), &status("00000400 00000000"));
    client.ask("FUA", &req(FUA | REQ_ONE, BLOCK_STATUS, 1, 0, 512), &status("00000200 00000000"));
    for (what, flags, offset, len) in
        [("beyond the end", 0, SIZE as u64, 512), ("empty", 0, 0, 0), ("unaligned", 0, 1, 512), ("flag", DF, 0, 512)]
    {
        client.ask(what, &req(flags, BLOCK_STATUS, 3, offset, len), &chunk_error(EINVAL, 3));
    }
    assert!(client.host.log.is_empty());
    let mut client = Client::structured("big");
    client.ask("as long as its field allows", &req(0, BLOCK_STATUS, 1, 0, 4096), &status("ffff0000 00000000"));
    let mut client = Client::simple("a");
    client.ask("not negotiated", &req(0, BLOCK_STATUS, 3, 0, 512), &simple(EINVAL, 3));
}

/// Alternating data and holes, 64 KiB each, reported in pieces of 4 KiB.
struct Stripes;

impl Allocation for Stripes {
    fn extents(&self, offset: u64, len: u64, extent: &mut dyn FnMut(u64, u32) -> bool) {
        let mut at = offset;
        while at < offset + len {
            let next = (at / 4096 + 1) * 4096;
            if !extent(next - at, if (at / 65536).is_multiple_of(2) { 0 } else { 3 }) {
                return;
            }
            at = next;
        }
    }
}

#[test]
fn block_status_with_holes() {
    let mut client = Client::connect();
    let info = ExportInfo::new("holes", DeviceId(0), 1 << 40);
    client.table.add(ExportInfo { allocation: Some(Arc::new(Stripes)), ..info }).unwrap();
    client.choose("holes", true);
    client.ask(
        "joined, and cut to the request",
        &req(0, BLOCK_STATUS, 1, 4096, 0x20000),
        "668e33ef 0001 0005 0000000000000001 0000001c 00000001 0000f000 00000000 00010000 00000003 00001000 00000000",
    );
    client.ask(
        "one",
        &req(REQ_ONE, BLOCK_STATUS, 1, 0x10000, 0x20000),
        "668e33ef 0001 0005 0000000000000001 0000000c 00000001 00010000 00000003",
    );
    let got = client.say(&req(0, BLOCK_STATUS, 1, 0, 0x8000_0000));
    let many = (0..512).map(|i| format!("00010000 {:08x}", if i % 2 == 0 { 0 } else { 3 })).collect::<String>();
    let expected = format!("668e33ef 0001 0005 0000000000000001 00001004 00000001 {many}");
    expect("at most 512 extents", &got, &expected);
}

#[test]
fn unknown_commands() {
    for (structured, mut client) in both("a") {
        for kind in [8, 9, 255, 0xffff] {
            client.ask("unknown", &req(0, kind, 5, 0, 512), &error(structured, EINVAL, 5));
        }
        client.ask("in step", &req(0, FLUSH, 6, 0, 0), &simple(0, 6));
    }
}

#[test]
fn disconnect() {
    for (_, mut client) in both("a") {
        client.host.behaviour = DiskBehaviour::Held;
        let sent = req(0, WRITE, 1, 0, 512) + &"aa".repeat(512) + &req(0, DISC, 2, 0, 0) + "ffff";
        client.ask("nothing yet", &sent, "");
        assert!(!client.is_closed(), "what is in flight is finished first");
        client.host.finish_io(Ok(()), false).unwrap();
        client.run();
        expect("answered", &client.host.take_output(client.socket), &simple(0, 1));
        assert!(client.is_closed());
        assert_eq!(client.host.disk[..512], [0xaa; 512]);
        let left = NbdEvent::Disconnected { peer: "peer".into(), export: Some("a".into()), cause: Cause::Disconnected };
        assert_eq!(client.events().pop(), Some(left));
        assert_eq!((client.server.connections(), client.host.used_bytes()), (0, 0));
    }
}

#[test]
fn a_wrong_magic_number_ends_the_session() {
    let mut client = Client::simple("a");
    let sent = req(0, FLUSH, 1, 0, 0) + "25609514 0000 0003 0000000000000002 0000000000000000 00000000";
    client.ask("what came before is answered", &sent, &simple(0, 1));
    assert!(client.is_closed());
    let cause = Cause::RequestMagic(0x2560_9514);
    let ended = NbdEvent::Disconnected { peer: "peer".into(), export: Some("a".into()), cause };
    assert_eq!(client.events().pop(), Some(ended));
}

#[test]
fn errors_of_the_engine() {
    use ErrorKind::*;
    for (kind, errno) in [
        (Io, EIO),
        (Gone, EIO),
        (TimedOut, EIO),
        (NoSpace, ENOSPC),
        (Invalid, EINVAL),
        (Unsupported, EINVAL),
        (ReadOnly, EPERM),
        (FlushFailed, EIO),
    ] {
        for (structured, mut client) in both("a") {
            client.host.behaviour = DiskBehaviour::Failing(kind);
            let failed = |cookie| if structured { chunk_error_at(errno, cookie, 512) } else { simple(errno, cookie) };
            client.ask("read", &req(0, READ, 1, 512, 512), &failed(1));
            client.ask("write", &(req(0, WRITE, 2, 512, 512) + &"aa".repeat(512)), &failed(2));
            client.ask("trim", &req(0, TRIM, 3, 512, 512), &failed(3));
            client.ask("flush", &req(0, FLUSH, 4, 0, 0), &error(structured, errno, 4));
            client.host.behaviour = DiskBehaviour::Prompt;
            client.ask("goes on", &req(0, FLUSH, 5, 0, 0), &simple(0, 5));
        }
    }
}

/// Memory that never becomes available: ENOMEM after the time limit, for each kind of request that needs memory.
#[test]
fn no_memory() {
    let mut client = Client::with(Default::default(), 64 << 10);
    client.choose("a", true);
    let sent = req(0, READ, 1, 0, 65536) + &req(0, WRITE, 2, 0, 65536) + &"aa".repeat(65536) + &req(0, FLUSH, 3, 0, 0);
    let mut got = client.say(&sent);
    for _ in 0..90 {
        client.host.now_ns += 1_000_000_000;
        client.run();
        got.extend(client.host.take_output(client.socket));
    }
    expect("refused", &got, &(chunk_error(ENOMEM, 1) + &chunk_error(ENOMEM, 2) + &simple(0, 3)));
}

/// Each reply has the cookie of its own request; replies are sent in order of completion.
#[test]
fn replies_in_any_order() {
    let mut client = Client::simple("a");
    client.host.behaviour = DiskBehaviour::Held;
    let sent = req(0, FLUSH, 1, 0, 0) + &req(0, READ, 2, 0, 512) + &req(0, CACHE, 3, 0, 512);
    client.ask("what needs no disk comes first", &sent, &simple(0, 3));
    client.host.finish_io(Ok(()), false).unwrap();
    client.host.finish_io(Err(ErrorKind::Io), false).unwrap();
    client.run();
    expect("the rest", &client.host.take_output(client.socket), &(simple(0, 1) + &simple(EIO, 2)));
}

/// A request that a later session settles gets no reply, nor do requests after it. Replies of completed requests are
/// sent, then the connection closes.
#[test]
fn unsettled_requests_are_not_answered() {
    for kind in [ErrorKind::NoDevice, ErrorKind::Unsettled] {
        for (structured, mut client) in both("a") {
            client.host.behaviour = DiskBehaviour::Held;
            let data = "aa".repeat(512);
            let sent = req(0, WRITE, 1, 0, 512) + &data + &req(0, READ, 2, 0, 512) + &req(0, FLUSH, 3, 0, 0);
            client.ask("all wait", &sent, "");
            client.host.finish_io(Ok(()), false).unwrap();
            client.host.finish_io(Err(kind), false).unwrap();
            client.run();
            expect("earned before", &client.host.take_output(client.socket), &simple(0, 1));
            client.ask("not taken in", &req(0, FLUSH, 4, 0, 0), "");
            assert!(!client.is_closed(), "a request may still earn its reply");
            client.host.finish_io(Ok(()), false).unwrap();
            client.run();
            expect("earned by now", &client.host.take_output(client.socket), &simple(0, 3));
            assert!(client.is_closed(), "structured: {structured}");
            let ended =
                NbdEvent::Disconnected { peer: "peer".into(), export: Some("a".into()), cause: Cause::Unsettled };
            assert_eq!(client.events().pop(), Some(ended));

            // The engine refuses the next request at submission, or fails it at once.
            let (_, mut client) = both("a").into_iter().find(|(of, _)| *of == structured).unwrap();
            client.host.behaviour = DiskBehaviour::Failing(kind);
            client.ask("a write of some length", &(req(0, WRITE, 1, 0, 4096) + &"aa".repeat(4096)), "");
            assert!(client.is_closed());
        }
    }
}
