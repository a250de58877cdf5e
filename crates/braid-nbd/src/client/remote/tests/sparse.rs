//! Sparse reads from a server that reports holes.

use braid_export::extents::state;

use super::*;
use crate::codec::{chunk, command_flags};

const CONTEXT: u32 = 9;
const HOLE: u32 = state::HOLE | state::ZERO;
const K: u64 = 1 << 10;
const LONG: u64 = 1 << 20;

impl Bed {
    /// Returns a bed whose server replies in chunks.
    fn tells_holes() -> Bed {
        Bed::tells_holes_with(ALL, 0)
    }

    /// The same for a server with these flags; its reads have the flags `read`.
    fn tells_holes_with(server: u16, read: u16) -> Bed {
        let mut bed = Bed::of(Shared { allocation: true, ..shared_of(server, false, None) }, server);
        let io = bed.ask(Op::Read, Flags::NONE, 0, 512);
        bed.greets_with_chunks();
        let [(0, flags, cookie, 0, 512)] = bed.requests()[..] else { panic!("one read") };
        assert_eq!(flags, read);
        bed.says(&Bed::data(cookie, true, 0, &[7; 512]));
        assert_eq!(std::mem::take(&mut bed.shard.ended), [(io, Ok(()))]);
        bed
    }

    fn greets_with_chunks(&mut self) {
        let reply = |option: u32, kind: u32, data: &[u8]| {
            let mut bytes = Bed::option_reply(kind, data);
            bytes[8..12].copy_from_slice(&option.to_be_bytes());
            bytes
        };
        self.begins();
        self.says(&reply(8, 1, &[]));
        self.sent();
        self.says(
            &[reply(10, 4, &[&CONTEXT.to_be_bytes()[..], b"base:allocation"].concat()), reply(10, 1, &[])].concat(),
        );
        self.sent();
        let info = [&[0, 0][..], &SIZE.to_be_bytes(), &self.flags.to_be_bytes()].concat();
        self.shard.sent.clear();
        self.says(&[reply(7, 3, &info), reply(7, 1, &[])].concat());
        self.sent();
    }

    fn chunk(cookie: u64, last: bool, kind: u16, payload: &[u8]) -> Vec<u8> {
        let (flags, len) = (u16::from(last), payload.len() as u32);
        let head = [&0x668e33efu32.to_be_bytes()[..], &flags.to_be_bytes(), &kind.to_be_bytes()].concat();
        [&head, &cookie.to_be_bytes()[..], &len.to_be_bytes(), payload].concat()
    }

    fn data(cookie: u64, last: bool, offset: u64, data: &[u8]) -> Vec<u8> {
        Bed::chunk(cookie, last, chunk::OFFSET_DATA, &[&offset.to_be_bytes()[..], data].concat())
    }

    fn status(cookie: u64, extents: &[(u64, u32)]) -> Vec<u8> {
        let pairs = extents.iter().map(|(len, state)| [(*len as u32).to_be_bytes(), state.to_be_bytes()].concat());
        let payload = [&CONTEXT.to_be_bytes()[..], &pairs.collect::<Vec<_>>().concat()].concat();
        Bed::chunk(cookie, true, chunk::BLOCK_STATUS, &payload)
    }

    /// Returns the only request that the server has received.
    fn request(&mut self) -> Said {
        self.sent();
        let [one] = self.requests()[..] else { panic!("one request") };
        one
    }
}

#[test]
fn a_hole_is_not_read() {
    let mut bed = Bed::tells_holes();
    let io = bed.ask(Op::Read, Flags::SPARSE, 4 * LONG, LONG);
    let (7, 0, cookie, offset, len) = bed.request() else { panic!("the holes are queried first") };
    assert_eq!((offset, u64::from(len)), (4 * LONG, LONG));
    bed.says(&Bed::status(cookie, &[(2 * LONG, HOLE)]));
    assert_eq!(bed.shard.ended, [(io, Ok(()))]);
    assert!(bed.shard.memory[&io] == vec![0; LONG as usize], "what was there before is gone");
    assert_eq!(bed.requests(), []);
}

#[test]
fn data_between_holes_is_read() {
    let mut bed = Bed::tells_holes();
    let io = bed.ask(Op::Read, Flags::SPARSE, 0, LONG);
    let (7, _, cookie, ..) = bed.request() else { panic!("the holes are queried first") };
    // Part of the range, in small pieces. A hole without ZERO says nothing of its content.
    let extents = [(256 * K, HOLE), (64 * K, 0), (64 * K, state::HOLE), (256 * K, state::ZERO)];
    for crumb in Bed::status(cookie, &extents).chunks(7) {
        bed.says(crumb);
    }
    assert_eq!(bed.shard.ended, []);
    let (0, 0, cookie, offset, len) = bed.request() else { panic!("it is read") };
    assert_eq!((offset, u64::from(len)), (256 * K, 128 * K));
    // In three chunks, the last one first.
    bed.says(&Bed::data(cookie, false, 320 * K, &[3; 64 << 10]));
    let hole = [&(256 * K).to_be_bytes()[..], &(32u32 << 10).to_be_bytes()].concat();
    bed.says(&Bed::chunk(cookie, false, chunk::OFFSET_HOLE, &hole));
    bed.says(&Bed::data(cookie, true, 288 * K, &[2; 32 << 10]));
    // The rest is not described yet.
    let (7, 0, cookie, offset, len) = bed.request() else { panic!("the rest is queried") };
    assert_eq!((offset, u64::from(len)), (640 * K, 384 * K));
    bed.says(&Bed::status(cookie, &[(300 * K, HOLE), (84 * K, 0)]));
    let (0, 0, cookie, offset, len) = bed.request() else { panic!("it is read") };
    assert_eq!((offset, u64::from(len)), (940 * K, 84 * K));
    bed.says(&Bed::data(cookie, true, offset, &[4; 84 << 10]));
    assert_eq!(bed.shard.ended, [(io, Ok(()))]);
    let at = |kib: usize, byte: u8| assert_eq!(bed.shard.memory[&io][kib << 10], byte, "{kib}");
    for (kib, byte) in
        [(0, 0), (255, 0), (256, 0), (288, 2), (319, 2), (320, 3), (383, 3), (384, 0), (939, 0), (940, 4)]
    {
        at(kib, byte);
    }
    at(1023, 4);
}

#[test]
fn short_reads_and_client_reads_skip_the_extent_query() {
    // A server with DF is asked for a single chunk, where every server can send one.
    let mut bed = Bed::tells_holes_with(ALL | transmission_flags::SEND_DF, command_flags::DF);
    bed.ask(Op::Read, Flags::SPARSE, 0, 4096);
    assert_eq!(bed.request().1, command_flags::DF);
    bed.ask(Op::Read, Flags::NONE, 0, LONG);
    let (kind, flags, ..) = bed.request();
    assert_eq!((kind, flags), (0, 0));
}

#[test]
fn a_server_that_fails_the_query_is_read_in_full() {
    let mut bed = Bed::tells_holes();
    let io = bed.ask(Op::Read, Flags::SPARSE, 0, LONG);
    let cookie = bed.request().2;
    bed.says(&Bed::chunk(cookie, true, chunk::ERROR, &[0, 0, 0, 5, 0, 2, b'n', b'o']));
    let (0, 0, cookie, 0, len) = bed.request() else { panic!("it is read") };
    assert_eq!(u64::from(len), LONG);
    // A failed read fails the I/O.
    bed.says(&Bed::data(cookie, false, 0, &[1; 4096]));
    bed.says(&Bed::chunk(
        cookie,
        true,
        chunk::ERROR_OFFSET,
        &[&[0, 0, 0, 5, 0, 0][..], &4096u64.to_be_bytes()].concat(),
    ));
    assert_eq!(bed.shard.ended, [(io, Err(5))]);
}

#[test]
fn extents_from_a_broken_connection_are_queried_again() {
    let mut bed = Bed::tells_holes();
    let io = bed.ask(Op::Read, Flags::SPARSE, 0, LONG);
    let cookie = bed.request().2;
    let status = Bed::status(cookie, &[(LONG / 2, HOLE), (LONG / 2, HOLE)]);
    bed.says(&status[..32]);
    bed.breaks();
    bed.passes(SECOND / 4);
    bed.greets_with_chunks();
    let (7, 0, cookie, 0, len) = bed.request() else { panic!("the holes are queried again") };
    assert_eq!(u64::from(len), LONG);
    bed.says(&Bed::status(cookie, &[(LONG, 0)]));
    let cookie = bed.request().2;
    bed.says(&Bed::data(cookie, true, 0, &[6; LONG as usize]));
    assert_eq!(bed.shard.ended, [(io, Ok(()))]);
    assert!(bed.shard.memory[&io].iter().all(|byte| *byte == 6));
}

#[test]
fn a_mismatched_reply_ends_the_connection() {
    let zeros = |offset: u64, len: u32| [&offset.to_be_bytes()[..], &len.to_be_bytes()].concat();
    type Reply = Box<dyn Fn(u64) -> Vec<u8>>;
    let wrong: [Reply; 7] = [
        Box::new(|cookie| Bed::reply(cookie, 0, &[])),
        Box::new(|cookie| Bed::data(cookie, true, 4096, &[1; 8])),
        Box::new(|cookie| Bed::data(cookie, true, u64::MAX, &[1; 8])),
        Box::new(|cookie| Bed::data(cookie, true, 0, &[1; 2048])),
        Box::new(|cookie| [Bed::data(cookie, false, 0, &[1; 8]), Bed::data(cookie, true, 0, &[1; 8])].concat()),
        Box::new(move |cookie| Bed::chunk(cookie, true, chunk::OFFSET_HOLE, &zeros(4096, u32::MAX))),
        Box::new(|cookie| Bed::status(cookie, &[(4096, 0)])),
    ];
    for (k, wrong) in wrong.iter().enumerate() {
        let mut bed = Bed::tells_holes();
        let io = bed.ask(Op::Read, Flags::NONE, 0, 4096);
        let cookie = bed.request().2;
        bed.says_until_closed(&wrong(cookie));
        bed.breaks();
        assert_eq!(bed.shard.ended, [(io, Err(TIMEDOUT))], "{k}");
    }
}

impl Bed {
    /// Sends bytes from the server until the connection is closed.
    fn says_until_closed(&mut self, bytes: &[u8]) {
        for byte in bytes.chunks(1) {
            if !self.shard.open {
                return;
            }
            self.says(byte);
        }
    }
}
