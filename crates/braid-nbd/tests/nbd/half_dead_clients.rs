//! Clients that stop midway, and servers whose memory or engine is full.

use crate::common::*;
use braid_engine::{ErrorKind, Op};
use braid_nbd::memory::DiskBehaviour;
use braid_nbd::server::{BYTES_MAX, Host, REQUESTS_MAX, ServerConfig};
use braid_nbd::{Cause, NbdEvent};

const SECOND: u64 = 1_000_000_000;

fn req(kind: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    bytes(&format!("25609513 0000 {kind:04x} {cookie:016x} {offset:016x} {len:08x}"))
}

fn reads(n: u64, len: u32) -> Vec<u8> {
    (0..n).flat_map(|cookie| req(0, cookie, 0, len)).collect()
}

fn wait(client: &mut Client, seconds: u64) {
    for _ in 0..seconds {
        client.host.now_ns += SECOND;
        client.run();
    }
}

#[track_caller]
fn ended(client: &mut Client, why: Cause) {
    assert!(client.is_closed());
    match client.events().pop() {
        Some(NbdEvent::Disconnected { cause, .. }) => assert_eq!(cause, why),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn all_given_back(client: &Client) {
    assert_eq!((client.server.connections(), client.host.used_bytes(), client.host.lent()), (0, 0, 0));
    assert_eq!(client.table.list().iter().map(|e| e.connections()).sum::<u32>(), 0);
}

#[test]
fn a_client_that_reads_no_replies_is_not_read_from() {
    for len in [512, 4096, 1 << 20] {
        let mut client = Client::simple("a");
        let before = client.host.used_bytes();
        client.host.client_takes(client.socket, 0);
        client.say_raw(&reads(2000, len));
        let in_flight = client.host.log.len();
        assert!(in_flight <= REQUESTS_MAX, "{in_flight} requests were taken in");
        let room = (BYTES_MAX as usize).min(REQUESTS_MAX * (len as usize).max(4096)) + (256 << 10);
        assert!(client.host.used_bytes() - before <= room, "bounded memory");
        assert!(client.host.untaken(client.socket) > 0, "the rest waits in the socket");
        // No other client needs the memory: this one may be arbitrarily slow.
        wait(&mut client, 120);
        assert!(!client.is_closed());
        client.host.client_takes(client.socket, usize::MAX);
        client.run();
        let replies = client.host.take_output(client.socket).len();
        assert_eq!(replies, 2000 * (16 + len as usize), "and gets everything in the end");
    }
}

#[test]
fn a_stalled_payload_ends_the_connection_after_30_seconds() {
    for (len, sent) in [(4096, 100), (1 << 20, 100), (1 << 20, 300_000), (1 << 20, 1 << 19)] {
        let mut client = Client::simple("a");
        client.say_raw(&req(1, 1, 0, len));
        client.say_raw(&vec![1; sent]);
        wait(&mut client, 29);
        assert!(!client.is_closed(), "{len} {sent}");
        wait(&mut client, 2);
        ended(&mut client, Cause::PayloadTimeout);
        all_given_back(&client);
    }
    // The same while the payload is discarded.
    let mut client = Client::simple("a");
    client.say_raw(&req(1, 1, SIZE as u64, 4096));
    wait(&mut client, 31);
    ended(&mut client, Cause::PayloadTimeout);
    // A slow client that makes progress is served.
    let mut client = Client::simple("a");
    client.say_raw(&req(1, 1, 0, 1 << 20));
    for _ in 0..4 {
        wait(&mut client, 25);
        client.say_raw(&[7; 256 << 10]);
    }
    assert!(client.host.disk.iter().all(|byte| *byte == 7));
    // So is one whose payload is discarded, even more slowly.
    client.say_raw(&req(1, 2, SIZE as u64, 1 << 20));
    for _ in 0..32 {
        wait(&mut client, 25);
        client.say_raw(&[8; 32 << 10]);
    }
    client.ask(
        "in step again",
        "25609513 0000 0003 0000000000000003 0000000000000000 00000000",
        "67446698 00000000 0000000000000003",
    );
    // An idle client may stay connected.
    wait(&mut client, 3600);
    assert!(!client.is_closed());
}

/// Single bytes are no progress: they would keep a segment of 1 MiB for ever.
#[test]
fn a_trickling_payload_ends_the_connection_after_30_seconds() {
    let (own, refused) = (0, SIZE as u64);
    for (offset, len, sent) in [
        (own, 4096, 0),
        (own, 1 << 20, 0),
        (own, 1 << 20, 300_000),
        (own, 1 << 20, (1 << 20) - 20_000),
        (refused, 4096, 0),
        (refused, 1 << 20, 300_000),
    ] {
        let mut client = Client::simple("a");
        client.say_raw(&req(1, 1, offset, len));
        client.say_raw(&vec![1; sent]);
        wait(&mut client, 25);
        client.say_raw(&[1]);
        assert!(!client.is_closed(), "{offset} {len} {sent}");
        wait(&mut client, 4);
        client.say_raw(&[1]);
        wait(&mut client, 3);
        ended(&mut client, Cause::PayloadTimeout);
        all_given_back(&client);
    }
}

#[test]
fn closing_mid_stream_frees_everything() {
    let write = [req(1, 1, 0, 1 << 20), vec![3; 1 << 20]].concat();
    for cut in [1, 27, 28, 29, 5000, 40_000, 300_000, (1 << 20) + 27, (1 << 20) + 28] {
        let mut client = Client::simple("a");
        client.say_raw(&write[..cut]);
        client.host.client_ends(client.socket);
        client.run();
        let in_flight = if cut < 28 || cut == write.len() { 0 } else { 1 };
        ended(&mut client, Cause::ConnectionClosed { in_flight });
        all_given_back(&client);
        let written = client.host.log.iter().any(|l| l.0 == Op::Write);
        assert_eq!(written, cut == write.len(), "only what came in full is written");
    }
}

#[test]
fn requests_in_flight_outlive_their_client() {
    let mut client = Client::simple("a");
    client.host.behaviour = DiskBehaviour::Held;
    client.say_raw(&[reads(10, 4096), req(1, 1, 0, 4096), vec![9; 4096]].concat());
    client.host.client_ends(client.socket);
    client.run();
    assert_eq!(client.server.connections(), 1, "the engine still has its buffers");
    for _ in 0..10 {
        client.host.finish_io(Ok(()), false).unwrap();
        client.run();
    }
    assert_eq!(client.server.connections(), 1);
    client.host.finish_io(Ok(()), false).unwrap();
    client.run();
    assert_eq!(client.host.disk[..4096], [9; 4096], "the write was carried out");
    all_given_back(&client);
}

#[test]
fn a_late_io_keeps_its_buffer_until_it_ends() {
    for kind in [0, 1] {
        let mut client = Client::simple("a");
        client.host.behaviour = DiskBehaviour::Held;
        client.say_raw(&[req(kind, 5, 0, 4096), if kind == 1 { vec![9; 4096] } else { vec![] }].concat());
        let before = client.host.used_bytes();
        let tag = client.host.finish_io(Err(ErrorKind::TimedOut), true).unwrap();
        client.run();
        expect("EIO", &client.host.take_output(client.socket), "67446698 00000005 0000000000000005");
        assert_eq!(client.host.used_bytes(), before, "not given back");
        client.host.client_ends(client.socket);
        client.run();
        assert_eq!((client.server.connections(), client.host.used_bytes()), (0, 4096), "it outlives the connection");
        client.server.released(&mut client.host, tag);
        all_given_back(&client);
    }
}

/// A read that times out on one disk of a mirror is retried once, with another buffer, and not a second time.
#[test]
fn a_timed_out_read_of_a_mirror_is_retried_once() {
    for second in [Ok(()), Err(ErrorKind::TimedOut)] {
        let mut client = Client::simple("a");
        client.host.behaviour = DiskBehaviour::Held;
        client.host.is_redundant = true;
        client.host.disk[..4096].fill(6);
        client.say_raw(&req(0, 5, 0, 4096));
        let before = client.host.used_bytes();
        let mut tags = vec![client.host.finish_io(Err(ErrorKind::TimedOut), true).unwrap()];
        client.run();
        assert!(client.host.take_output(client.socket).is_empty(), "not answered yet");
        assert_eq!(client.host.log.len(), 2);
        assert_eq!(client.host.used_bytes(), before + 4096, "the first buffer is still the kernel's");
        let busy = second.is_err();
        let tag = client.host.finish_io(second, busy).unwrap();
        assert_ne!(tag, tags[0]);
        tags.extend(busy.then_some(tag));
        client.run();
        let reply = client.host.take_output(client.socket);
        if busy {
            expect("EIO", &reply, "67446698 00000005 0000000000000005");
        } else {
            expect("the data", &reply[..16], "67446698 00000000 0000000000000005");
            assert_eq!(reply[16..], [6; 4096]);
        }
        assert_eq!(client.host.log.len(), 2, "no third time");
        client.host.client_ends(client.socket);
        client.run();
        assert_eq!((client.server.connections(), client.host.used_bytes()), (0, 4096 * tags.len()));
        tags.into_iter().for_each(|tag| client.server.released(&mut client.host, tag));
        all_given_back(&client);
    }
    // If the engine is busy, the retry fails the request.
    let mut client = Client::simple("a");
    client.host.behaviour = DiskBehaviour::Held;
    client.host.is_redundant = true;
    client.say_raw(&req(0, 5, 0, 4096));
    client.host.behaviour = DiskBehaviour::Busy;
    let tag = client.host.finish_io(Err(ErrorKind::TimedOut), true).unwrap();
    client.run();
    expect("EIO", &client.host.take_output(client.socket), "67446698 00000005 0000000000000005");
    client.host.client_ends(client.socket);
    client.run();
    client.server.released(&mut client.host, tag);
    all_given_back(&client);
}

/// A write that the remaining disks completed succeeds, while the kernel still holds its buffer for a hanging disk.
#[test]
fn a_write_may_be_done_while_its_buffer_is_busy() {
    let mut client = Client::simple("a");
    client.host.behaviour = DiskBehaviour::Held;
    client.say_raw(&[req(1, 5, 0, 4096), vec![9; 4096]].concat());
    let before = client.host.used_bytes();
    let tag = client.host.finish_io(Ok(()), true).unwrap();
    client.run();
    expect("done", &client.host.take_output(client.socket), "67446698 00000000 0000000000000005");
    assert_eq!(client.host.used_bytes(), before, "not given back");
    client.host.client_ends(client.socket);
    client.run();
    assert_eq!((client.server.connections(), client.host.used_bytes()), (0, 4096));
    client.server.released(&mut client.host, tag);
    all_given_back(&client);
}

#[test]
fn requests_are_retried_while_the_engine_is_busy() {
    let mut client = Client::simple("a");
    client.host.behaviour = DiskBehaviour::Busy;
    let mut sent = reads(3, 4096);
    sent.extend(req(1, 3, 4096, 2 << 19));
    sent.extend(vec![4; 2 << 19]);
    client.table.remove("big");
    assert!(client.say_raw(&sent).is_empty());
    wait(&mut client, 3);
    assert!(!client.is_closed());
    client.host.behaviour = DiskBehaviour::Prompt;
    wait(&mut client, 1);
    let got = client.host.take_output(client.socket);
    assert_eq!(got.len(), 3 * (16 + 4096) + 16);
    // The write exceeds the end of the export.
    expect("ENOSPC", &got[3 * (16 + 4096)..], "67446698 0000001c 0000000000000003");
}

#[test]
fn clients_share_scarce_memory_in_turn() {
    // Room for about ten reads of 64 KiB, and forty clients that each send four at a time.
    let mut client = Client::with(ServerConfig::default(), 40 * (52 << 10) + (640 << 10));
    let sockets: Vec<usize> = (0..40)
        .map(|_| {
            let socket = client.reconnect();
            client.choose("a", false);
            client.host.take_output(socket);
            socket
        })
        .collect();
    client.events();
    for round in 0..5 {
        for &socket in &sockets {
            client.host.client_sends(socket, &reads(4, 65536));
        }
        client.run();
        for &socket in &sockets {
            assert_eq!(client.host.take_output(socket).len(), 4 * (16 + 65536), "round {round}");
        }
    }
    // Ten clients that take nothing hold all memory. When others wait, they are disconnected after 30 seconds.
    for &socket in &sockets[..10] {
        client.host.client_takes(socket, 0);
        client.host.client_sends(socket, &reads(4, 65536));
    }
    client.run();
    client.host.client_sends(sockets[20], &reads(1, 65536));
    wait(&mut client, 29);
    assert!(client.host.take_output(sockets[20]).is_empty());
    // Those of the ten that also wait come first, two or three at a time.
    wait(&mut client, 4 * 31);
    assert_eq!(client.host.take_output(sockets[20]).len(), 16 + 65536);
    let cut = client
        .events()
        .iter()
        .filter(|e| matches!(e, NbdEvent::Disconnected { cause: Cause::ReplyTimeout, .. }))
        .count();
    assert!((1..=10).contains(&cut), "{cut} were cut");
}

/// For lack of memory only a request that has waited fails.
#[test]
fn only_requests_that_waited_fail_with_enomem() {
    let read = |cookie| req(0, cookie, 0, 1 << 20);
    let write = |cookie| [req(1, cookie, 0, 1 << 20), vec![7; 1 << 20]].concat();
    let status = |cookie| req(7, cookie, 0, 4096);
    for (what, ask, reply_bytes) in
        [("reads", &read as &dyn Fn(u64) -> Vec<u8>, 28 + (1 << 20)), ("writes", &write, 16), ("statuses", &status, 32)]
    {
        let limits = ServerConfig { replies_ns: 3600 * SECOND, ..ServerConfig::default() };
        let mut client = Client::with(limits, (3 << 20) - (160 << 10));
        let wanting = client.socket;
        client.choose("a", true);
        let hog = client.reconnect();
        client.choose("a", false);
        client.host.client_takes(hog, 0);
        client.say_raw(&reads(1, 1 << 20));
        // Allocate the rest in ever smaller pieces, except for the reserve, which is for small requests.
        let reserve = if what == "statuses" { 0 } else { 900 << 10 };
        for len in [256 << 10, 64 << 10, 16 << 10, 4096, 4096, 4096, 4096] {
            while client.host.memory_bytes().1 >= reserve + len as u64 && client.host.alloc(len).is_some() {}
        }
        client.socket = wanting;
        client.host.take_output(wanting);
        let got = client.say_raw(&[ask(1), ask(2), ask(3)].concat());
        assert!(got.is_empty(), "{what}");
        wait(&mut client, 29);
        assert!(client.host.take_output(wanting).is_empty(), "{what}");
        wait(&mut client, 2);
        let refusal = |n: u64| format!("668e33ef 0001 8001 {n:016x} ???????? 0000000c ~2");
        expect(what, &client.host.take_output(wanting), &refusal(1));
        wait(&mut client, 31);
        expect(what, &client.host.take_output(wanting), &refusal(2));
        client.host.client_takes(hog, usize::MAX);
        client.run();
        assert_eq!(client.host.take_output(wanting).len(), reply_bytes, "{what}: the third had time");
    }
}

#[test]
fn a_removed_export_finishes_and_closes() {
    let mut client = Client::simple("a");
    let idle = client.socket;
    client.reconnect();
    client.choose("a", false);
    client.host.behaviour = DiskBehaviour::Held;
    client.say_raw(&req(0, 1, 0, 512));
    let other = client.reconnect();
    client.choose("ro", false);
    let export = client.table.remove("a").unwrap();
    client.server.exports_changed(&mut client.host);
    client.run();
    assert!(client.host.is_closed(idle), "nothing in flight");
    assert!(!client.host.is_closed(1) && !client.host.is_closed(other));
    assert_eq!(export.connections(), 1);
    client.host.finish_io(Ok(()), false).unwrap();
    client.run();
    assert_eq!(client.host.take_output(1).len(), 16 + 512, "answered, then closed");
    assert!(client.host.is_closed(1) && export.connections() == 0);
    assert_eq!(client.server.connections(), 1, "the other export's client stays");
    let causes: Vec<_> = client.events().into_iter().filter(|e| matches!(e, NbdEvent::Disconnected { .. })).collect();
    assert_eq!(causes.len(), 2);
    assert!(causes.iter().all(|e| matches!(e, NbdEvent::Disconnected { cause: Cause::ExportRemoved, .. })));
}

/// Whatever ends a connection, loans are returned once no send uses them, and not before.
#[test]
fn loans_are_returned_after_their_last_send() {
    type End = fn(&mut Client);
    let ends: [(End, Cause); 4] = [
        (|client| client.host.client_ends(client.socket), Cause::ConnectionClosed { in_flight: 3 }),
        (|client| drop(client.say_raw(&[0xff; 28])), Cause::RequestMagic(u32::MAX)),
        (|client| client.server.stop(&mut client.host), Cause::Stopping),
        (
            |client| {
                client.table.remove("a").unwrap();
                client.server.exports_changed(&mut client.host);
            },
            Cause::ExportRemoved,
        ),
    ];
    for (end, why) in ends {
        for takes in [false, true] {
            let mut client = Client::simple("a");
            client.host.lends = true;
            client.host.client_takes(client.socket, 5000);
            client.host.client_sends(client.socket, &reads(3, 1 << 20));
            client.run();
            assert_eq!((client.host.lent(), client.host.log.len()), (3, 0), "lent, and nothing read");
            end(&mut client);
            client.run();
            assert!(!client.is_closed() && client.host.lent() == 3, "requests in flight are answered");
            if takes {
                client.host.client_takes(client.socket, usize::MAX);
                client.run();
                assert!(client.host.take_output(client.socket).ends_with(&client.host.disk));
            } else {
                wait(&mut client, 31);
            }
            ended(&mut client, why.clone());
            all_given_back(&client);
        }
    }
}

/// A client that takes its last replies one by one, each in time, keeps its loans of a removed disk for a minute at
/// most. The time that the engine needs is not counted.
#[test]
fn slow_clients_do_not_keep_a_removed_export() {
    let mut client = Client::simple("a");
    client.host.behaviour = DiskBehaviour::Held;
    client.host.client_takes(client.socket, 0);
    client.say_raw(&reads(20, 1 << 20));
    client.table.remove("a").unwrap();
    client.server.exports_changed(&mut client.host);
    client.run();
    wait(&mut client, 100);
    assert!(!client.is_closed(), "the engine has them still");
    client.host.behaviour = DiskBehaviour::Prompt;
    client.run();
    for _ in 0..2 {
        wait(&mut client, 28);
        assert!(!client.is_closed());
        client.host.client_takes(client.socket, (1 << 20) + 16);
        client.run();
    }
    wait(&mut client, 6);
    ended(&mut client, Cause::ExportRemoved);
    all_given_back(&client);
}

#[test]
fn stopping_answers_what_is_in_flight() {
    let mut client = Client::simple("a");
    client.host.behaviour = DiskBehaviour::Held;
    client.host.take_output(client.socket);
    client.say_raw(&req(3, 1, 0, 0));
    let idle = client.reconnect();
    client.server.stop(&mut client.host);
    client.run();
    assert!(client.host.is_closed(idle) && !client.host.is_closed(0));
    let late = client.reconnect();
    assert!(client.host.is_closed(late), "new clients are refused");
    client.host.finish_io(Ok(()), false).unwrap();
    client.run();
    expect("flushed", &client.host.take_output(0), "67446698 00000000 0000000000000001");
    all_given_back(&client);
}

#[test]
fn a_full_shard_refuses_new_clients() {
    let mut client = Client::with(ServerConfig { connections_max: 2, ..ServerConfig::default() }, 1 << 20);
    client.reconnect();
    client.reconnect();
    ended(&mut client, Cause::ShardFull);
    let mut client = Client::with(ServerConfig::default(), 64 << 10);
    client.reconnect();
    ended(&mut client, Cause::ShardFull);
    assert_eq!(client.server.connections(), 1);
}

/// Silent clients are displaced by newer ones, the oldest first; a served client stays connected.
#[test]
fn silent_clients_do_not_keep_others_out() {
    let config = ServerConfig { connections_max: 16, handshakes_max: 4, ..ServerConfig::default() };
    let mut client = Client::with(config, 16 << 20);
    client.choose("a", false);
    let served = client.socket;
    let silent: Vec<usize> = (0..40).map(|_| client.reconnect()).collect();
    let closed: Vec<bool> = silent.iter().map(|&socket| client.host.is_closed(socket)).collect();
    assert_eq!(closed, [vec![true; 36], vec![false; 4]].concat());
    assert!(
        client
            .events()
            .iter()
            .any(|event| { matches!(event, NbdEvent::Disconnected { cause: Cause::HandshakeDisplaced, .. }) })
    );
    client.reconnect();
    client.choose("a", false);
    assert!(client.say_raw(&req(0, 7, 0, 512)).len() > 512, "the new client is served");
    assert!(!client.host.is_closed(served), "the served client stays");
    // Silent clients also have a time limit.
    wait(&mut client, 11);
    assert_eq!(client.server.connections(), 2);
}

/// Long requests are submitted in segments of 1 MiB, and get one reply.
#[test]
fn long_requests() {
    for structured in [false, true] {
        let mut client = Client::connect();
        client.host.disk = (0..40u32 << 20).map(|i| (i >> 12) as u8 ^ i as u8).collect();
        let info = braid_export::ExportInfo::new("long", braid_engine::DeviceId(0), 40 << 20);
        client.table.add(info).unwrap();
        client.choose("long", structured);
        client.host.take_output(client.socket);
        let (offset, len) = (512u64, (32 << 20) - 512u32);
        let got = client.say_raw(&req(0, 7, offset, len));
        let head = if structured { 28 } else { 16 };
        assert!(got[head..] == client.host.disk[512..32 << 20], "read");
        assert_eq!(client.host.log.len(), 32);
        let data: Vec<u8> = got[head..].iter().map(|b| !b).collect();
        client.host.log.clear();
        let got = client.say_raw(&[req(1, 8, 4096, len), data.clone()].concat());
        expect("written", &got, "67446698 00000000 0000000000000008");
        assert!(client.host.disk[4096..4096 + len as usize] == data);
        assert_eq!(client.host.log.len(), 32);
    }
}

/// One failed segment fails the whole request; the error names its offset.
#[test]
fn one_bad_segment() {
    let mut client = Client::connect();
    client.host.disk = vec![1; 8 << 20];
    client.table.add(braid_export::ExportInfo::new("long", braid_engine::DeviceId(0), 8 << 20)).unwrap();
    client.choose("long", true);
    client.host.take_output(client.socket);
    client.host.behaviour = DiskBehaviour::Held;
    client.say_raw(&req(0, 7, 0, 4 << 20));
    for k in 0..4 {
        client.host.finish_io(if k == 2 { Err(ErrorKind::Io) } else { Ok(()) }, false).unwrap();
        client.run();
    }
    let got = client.host.take_output(client.socket);
    expect("error", &got, "668e33ef 0001 8002 0000000000000007 ???????? 00000005 ~2 0000000000200000");
}
