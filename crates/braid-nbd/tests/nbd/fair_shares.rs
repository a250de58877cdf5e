//! Clients that request much and read no replies, beside others: checks the order of events, in virtual time.

use crate::common::bytes;
use braid_engine::DeviceId;
use braid_export::{ExportInfo, ExportLimits, ExportTable};
use braid_nbd::memory::MemoryHost;
use braid_nbd::server::{Arrival, Server, ServerConfig};
use braid_nbd::{Cause, EventQueue, NbdEvent};
use std::sync::Arc;

const MIB: u32 = 1 << 20;
const SECOND: u64 = 1_000_000_000;
/// Length of the header of a simple reply.
const HEAD: usize = 16;

struct Shard {
    host: MemoryHost,
    server: Server<usize>,
    table: Arc<ExportTable>,
    events: Arc<EventQueue>,
}

impl Shard {
    fn new(arena_bytes: usize) -> Shard {
        Shard::with(ServerConfig::default(), arena_bytes)
    }

    fn with(config: ServerConfig, arena_bytes: usize) -> Shard {
        let table = Arc::new(ExportTable::new());
        for name in ["a", "b", "c"] {
            let limits = ExportLimits { connections_max: 1000, ..ExportLimits::default() };
            table.add(ExportInfo { limits, ..ExportInfo::new(name, DeviceId(0), u64::from(40 * MIB)) }).unwrap();
        }
        let mut host = MemoryHost::new(arena_bytes, (40 * MIB) as usize);
        host.now_ns = SECOND;
        let events = Arc::new(EventQueue::new());
        Shard { host, server: Server::new(config, events.clone()), table, events }
    }

    /// Returns a client in transmission.
    fn client(&mut self, export: char) -> usize {
        let socket = self.host.socket();
        self.server.connect(&mut self.host, socket, Arrival::plain("", self.table.clone()));
        self.host.run(&mut self.server);
        self.host.client_sends(socket, &bytes(&format!("00000003 'IHAVEOPT' 00000001 00000001 '{export}'")));
        self.host.run(&mut self.server);
        assert_eq!(self.host.take_output(socket).len(), 18 + 10, "a new client is served");
        socket
    }

    /// Returns a client that sends `count` READs and takes no output from then on.
    fn hog(&mut self, export: char, count: usize, len: u32) -> usize {
        let socket = self.client(export);
        self.host.client_takes(socket, 0);
        self.ask(socket, count, len);
        self.host.run(&mut self.server);
        socket
    }

    fn ask(&mut self, socket: usize, count: usize, len: u32) {
        let request = bytes(&format!("25609513 0000 0000 'a cookie' 0000000000000000 {len:08x}"));
        self.host.client_sends(socket, &request.repeat(count));
    }

    /// Sends a READ. Returns whether it is answered without any action of other clients.
    fn is_served(&mut self, socket: usize, len: u32) -> bool {
        self.ask(socket, 1, len);
        self.host.run(&mut self.server);
        self.has_answer(socket, len)
    }

    fn has_answer(&mut self, socket: usize, len: u32) -> bool {
        match self.host.take_output(socket).len() {
            0 => false,
            bytes => {
                assert_eq!(bytes, HEAD + len as usize, "a whole reply, and no error");
                true
            }
        }
    }

    /// Returns the seconds until the reply arrives.
    fn seconds_until(&mut self, socket: usize, len: u32) -> u64 {
        for second in 0..400 {
            if self.has_answer(socket, len) {
                return second;
            }
            self.host.now_ns += SECOND;
            self.host.run(&mut self.server);
        }
        panic!("it is not served");
    }

    /// Sends a READ that gets no memory.
    fn begin(&mut self, socket: usize, len: u32) {
        self.ask(socket, 1, len);
        self.host.run(&mut self.server);
        assert!(self.host.take_output(socket).is_empty());
    }

    /// Advances the time; none of these clients gets a reply.
    #[track_caller]
    fn wait(&mut self, seconds: u64, sockets: &[usize]) {
        for second in 1..=seconds {
            self.host.now_ns += SECOND;
            self.host.run(&mut self.server);
            for &socket in sockets {
                let got = self.host.take_output(socket);
                assert!(got.is_empty(), "client {socket} gets {} bytes after {second} s", got.len());
            }
        }
    }

    /// Advances the time by a second, in which the READ of the first client fails for want of memory. The others get no
    /// reply.
    #[track_caller]
    fn fails_next(&mut self, socket: usize, others: &[usize]) {
        self.host.now_ns += SECOND;
        self.host.run(&mut self.server);
        assert_eq!(self.host.take_output(socket), bytes("67446698 0000000c 'a cookie'"), "ENOMEM");
        for &other in others {
            assert!(self.host.take_output(other).is_empty(), "client {other} waits on");
        }
    }

    fn cut_off(&self) -> usize {
        let events = std::iter::from_fn(|| self.events.pop());
        events.filter(|event| matches!(event, NbdEvent::Disconnected { cause: Cause::ReplyTimeout, .. })).count()
    }
}

/// Whatever the greedy clients request, and however many they are: reads of single blocks never wait for them.
#[test]
fn small_requests_pass_clients_that_read_no_replies() {
    for (count, len) in [(2, 32 * MIB), (40, MIB), (100, 256 << 10), (250, 16 << 10), (250, 4096)] {
        for hogs in [1, 2, 8, 64] {
            let mut shard = Shard::new(64 << 20);
            let early = shard.client('a');
            for _ in 0..hogs {
                shard.hog('a', count, len);
            }
            let late = shard.client('a');
            let other = shard.client('b');
            for round in 0..50 {
                for socket in [early, late, other] {
                    assert!(shard.is_served(socket, 4096), "round {round} beside {hogs} that ask for {count} x {len}");
                }
            }
            assert_eq!(shard.cut_off(), 0, "no client was disconnected");
        }
    }
}

/// Long requests of other clients progress too. Those of another export are served at once, since one export's clients
/// cannot hold all memory with many requests. Others are served once stalled clients have been disconnected.
#[test]
fn long_requests_are_served_beside_clients_that_read_no_replies() {
    for hogs in [1, 2, 8, 64] {
        let mut shard = Shard::new(64 << 20);
        for _ in 0..hogs {
            shard.hog('a', 40, MIB);
        }
        let (same, other) = (shard.client('a'), shard.client('b'));
        assert!(shard.is_served(other, MIB), "of another export, beside {hogs}");
        shard.ask(same, 1, MIB);
        shard.host.run(&mut shard.server);
        // A request of the same export waits for its turn.
        let seconds = shard.seconds_until(same, MIB);
        assert!(seconds <= 30 || hogs == 64, "{seconds} s beside {hogs}");
        shard.ask(other, 1, 16 * MIB);
        shard.host.run(&mut shard.server);
        let seconds = shard.seconds_until(other, 16 * MIB);
        assert!(seconds <= 60, "{seconds} s beside {hogs}");
    }
}

/// Progress counts: a client that takes its replies, however slowly, is not disconnected in favour of others. A client
/// that takes none is.
#[test]
fn a_client_that_reads_slowly_stays_connected() {
    let mut shard = Shard::new(16 << 20);
    let slow = shard.hog('a', 1, 8 * MIB);
    let stuck = shard.hog('b', 8, MIB);
    let waiting = shard.client('c');
    shard.ask(waiting, 1, 8 * MIB);
    shard.host.run(&mut shard.server);
    let mut got = 0;
    for _ in 0..40 {
        shard.host.client_takes(slow, (MIB / 2) as usize);
        shard.host.now_ns += SECOND;
        shard.host.run(&mut shard.server);
        got += shard.host.take_output(slow).len();
    }
    assert_eq!(got, HEAD + 8 * MIB as usize);
    assert!(!shard.host.is_closed(slow) && shard.host.is_closed(stuck));
    assert!(shard.has_answer(waiting, 8 * MIB), "the memory of what the slow one has taken was free");
}

/// Reads of the announced largest block succeed with any amount of memory; longer ones are refused at once.
#[test]
fn reads_of_the_announced_size_succeed() {
    for arena in [2u32 << 20, 5 << 20, 16 << 20, 32 << 20, 48 << 20, 64 << 20, 256 << 20] {
        let mut shard = Shard::new(arena as usize);
        let socket = shard.host.socket();
        shard.server.connect(&mut shard.host, socket, Arrival::plain("", shard.table.clone()));
        shard.host.run(&mut shard.server);
        // GO with a request for the block sizes.
        let go = "00000003 'IHAVEOPT' 00000007 00000009 00000001 'a' 0001 0003";
        shard.host.client_sends(socket, &bytes(go));
        shard.host.run(&mut shard.server);
        let answer = shard.host.take_output(socket);
        let info = bytes("0003e889045565a9 00000007 00000003 0000000e 0003");
        let at = answer.windows(info.len()).position(|window| window == info).unwrap() + info.len();
        let announced = u32::from_be_bytes(answer[at + 8..at + 12].try_into().unwrap());
        assert!(announced.is_power_of_two() && announced <= 32 * MIB && announced >= arena.min(64 << 20) / 4);
        for _ in 0..3 {
            assert!(shard.is_served(socket, announced), "{announced} of {arena}");
        }
        if announced < 32 * MIB {
            shard.ask(socket, 1, announced + 4096);
            shard.host.run(&mut shard.server);
            assert_eq!(shard.host.take_output(socket), bytes("67446698 00000016 'a cookie'"), "EINVAL");
        }
    }
}

/// A shard whose stalled clients stay connected, and a number of them that hold 4 MiB each.
fn held(exports: &[(char, usize)]) -> Shard {
    let config = ServerConfig { replies_ns: 10_000 * SECOND, ..ServerConfig::default() };
    let mut shard = Shard::with(config, 64 << 20);
    for &(export, hogs) in exports {
        for _ in 0..hogs {
            shard.hog(export, 1, 4 * MIB);
        }
    }
    shard
}

/// A connection that passes one whose export is over its share waits as long as any other before its request fails.
#[test]
fn a_connection_that_passes_another_one_has_a_time_limit_of_its_own() {
    let mut shard = held(&[('a', 6)]);
    let (over, late) = (shard.client('a'), shard.client('b'));
    shard.begin(over, 8 * MIB);
    shard.wait(29, &[over]);
    // It is the first from now on, and gathers all that is left.
    shard.begin(late, 32 * MIB);
    assert!(shard.host.used_bytes() > (54 * MIB) as usize, "it may exceed its share");
    shard.wait(29, &[over, late]);
    shard.fails_next(late, &[over]);
    // The other one is the first again.
    shard.wait(29, &[over]);
    shard.fails_next(over, &[]);
}

/// The time limit runs while a connection is the first, also where it was the second for long, before the export of the
/// first one came to be over its share.
#[test]
fn the_time_behind_a_connection_that_is_passed_later_does_not_count() {
    let mut shard = held(&[('b', 6)]);
    let yielding = shard.hog('b', 1, MIB);
    let (first, second) = (shard.client('a'), shard.client('c'));
    shard.begin(first, 32 * MIB);
    shard.begin(second, 32 * MIB);
    shard.wait(25, &[first, second]);
    assert!(shard.host.used_bytes() > (54 * MIB) as usize, "the first one gathers");
    // Now others of the first one's export hold memory, too, and some is free again.
    shard.hog('a', 1, 16 << 10);
    shard.host.client_takes(yielding, usize::MAX);
    shard.host.run(&mut shard.server);
    shard.wait(29, &[first, second]);
    shard.fails_next(second, &[first]);
}

/// Connections that pass each other in every turn, since the exports of both are over their shares, do not wait for
/// ever.
#[test]
fn connections_of_exports_over_their_shares_reach_their_time_limits() {
    let mut shard = held(&[('a', 4), ('b', 4)]);
    let waiting = [shard.client('a'), shard.client('b')];
    for socket in waiting {
        shard.begin(socket, 16 * MIB);
    }
    shard.wait(29, &waiting);
    shard.fails_next(waiting[0], &waiting[1..]);
    shard.wait(29, &waiting[1..]);
    shard.fails_next(waiting[1], &[]);
}

/// No client is disconnected for a connection that has only begun to wait, however long the one has waited that it
/// passes.
#[test]
fn stalled_clients_have_the_time_that_the_first_connection_waits() {
    let mut shard = Shard::new(64 << 20);
    for _ in 0..6 {
        shard.hog('a', 1, 4 * MIB);
    }
    let (over, late) = (shard.client('a'), shard.client('b'));
    shard.begin(over, 8 * MIB);
    shard.wait(4, &[over]);
    shard.begin(late, 32 * MIB);
    shard.wait(4, &[over, late]);
    assert_eq!(shard.cut_off(), 0);
    shard.wait(1, &[over]);
    assert_eq!(shard.cut_off(), 1);
}
