//! Conformance of extended headers, with bytes written by hand from the protocol's document.

use crate::common::*;

const ASK: &str = "'IHAVEOPT' 0000000b 00000000";
const ACK: &str = "0003e889045565a9 0000000b 00000001 00000000";

/// Returns a client after the handshake: extended headers, `base:allocation`, GO.
fn extended(export: &str) -> Client {
    let mut client = Client::connect();
    client.say("00000003");
    client.ask("EXTENDED_HEADERS", ASK, ACK);
    let name = format!("{:08x} '{export}'", export.len());
    let len = 4 + export.len() + 4 + 4 + 15;
    client.say(&format!("'IHAVEOPT' 0000000a {len:08x} {name} 00000001 0000000f 'base:allocation'"));
    client.say(&format!("'IHAVEOPT' 00000007 {:08x} {name} 0000", 6 + export.len()));
    assert!(!client.is_closed());
    client
}

/// Returns a request: flags and type, offset, length; with a fixed cookie.
fn request(flags_and_kind: &str, offset: u64, len: u64) -> String {
    format!("21e41c71 {flags_and_kind} 'a cookie' {offset:016x} {len:016x}")
}

/// Returns the header of a final chunk: its type, the request's offset, the payload length.
fn chunk(kind: &str, offset: u64, len: u64) -> String {
    format!("6e8a278c 0001 {kind} 'a cookie' {offset:016x} {len:016x}")
}

fn error(offset: u64, errno: u32) -> String {
    format!("6e8a278c 0001 8001 'a cookie' {offset:016x} ????????????????  {errno:08x} ~2")
}

#[test]
fn negotiated_once_and_for_all() {
    let mut client = Client::connect();
    client.say("00000003");
    let refused = |kind: &str, option: &str| format!("0003e889045565a9 {option} {kind} ~4");
    client.ask("with data", "'IHAVEOPT' 0000000b 00000001 00", &refused("80000003", "0000000b"));
    client.ask(
        "structured replies may come first",
        "'IHAVEOPT' 00000008 00000000",
        "0003e889045565a9 00000008 00000001 00000000",
    );
    client.ask("it stands", ASK, ACK);
    client.ask("once is enough", ASK, &refused("80000003", "0000000b"));
    client.ask("there is no way back", "'IHAVEOPT' 00000008 00000000", &refused("8000000a", "00000008"));
    // EXPORT_NAME is forbidden, and can only be refused by closing.
    assert_eq!(client.say("'IHAVEOPT' 00000001 00000001 'a'"), b"");
    assert!(client.is_closed());
}

#[test]
fn contexts_need_no_structured_replies_besides() {
    let mut client = Client::connect();
    client.say("00000003");
    client.ask("it stands", ASK, ACK);
    client.ask(
        "LIST_META_CONTEXT",
        "'IHAVEOPT' 00000009 00000009 00000001 'a' 00000000",
        "0003e889045565a9 00000009 00000004 00000013 00000000 'base:allocation' 0003e889045565a9 00000009 00000001 00000000",
    );
    client.ask(
        "GO",
        "'IHAVEOPT' 00000007 00000007 00000001 'a' 0000",
        "0003e889045565a9 00000007 00000003 0000000c 0000 0000000000100000 0ded 0003e889045565a9 00000007 00000001 00000000",
    );
}

#[test]
fn reads_and_writes() {
    let mut client = extended("a");
    let data = "5a".repeat(512);
    client.ask("WRITE", &format!("{} {data}", request("0020 0001", 1024, 512)), &chunk("0000", 1024, 0));
    client.ask(
        "READ",
        &request("0000 0000", 1024, 512),
        &format!("{} 0000000000000400 {data}", chunk("0001", 1024, 520)),
    );
    client.ask(
        "READ with DF",
        &request("0004 0000", 1024, 512),
        &format!("{} 0000000000000400 {data}", chunk("0001", 1024, 520)),
    );
    client.ask("WRITE with FUA", &format!("{} {data}", request("0021 0001", 0, 512)), &chunk("0000", 0, 0));
    client.ask("FLUSH", &request("0000 0003", 0, 0), &chunk("0000", 0, 0));
    client.ask("CACHE", &request("0000 0005", 512, 512), &chunk("0000", 512, 0));
    client.ask("TRIM", &request("0000 0004", 512, 512), &chunk("0000", 512, 0));
    client.ask("WRITE_ZEROES", &request("0002 0006", 512, 512), &chunk("0000", 512, 0));
    assert_eq!(client.say(&request("0000 0002", 0, 0)), b"", "DISC");
    assert!(client.is_closed());
}

#[test]
fn refused_requests() {
    let mut client = extended("a");
    // A WRITE must have PAYLOAD_LEN; without it no payload follows.
    client.ask("WRITE without PAYLOAD_LEN", &request("0000 0001", 0, 512), &error(0, 22));
    // On other commands the payload is received, discarded and refused.
    for kind in ["0000", "0003", "0004", "0005", "0006", "0007", "0063"] {
        let requested = format!("{} {}", request(&format!("0020 {kind}"), 512, 16), "77".repeat(16));
        client.ask("a payload on a command without one", &requested, &error(512, 22));
    }
    client.ask("beyond the end", &request("0000 0000", 1 << 20, 512), &error(1 << 20, 22));
    client.ask("far beyond", &request("0000 0004", 512, u64::MAX - 511), &error(512, 22));
    client.ask("lengths are not cut to 32 bits", &request("0000 0000", 0, (1 << 32) + 512), &error(0, 22));
    client.ask("nothing", &request("0000 0000", 0, 0), &error(0, 22));
    client.ask("not aligned", &request("0000 0000", 0, 100), &error(0, 22));
    client.ask(
        "a write beyond the end",
        &format!("{} {}", request("0020 0001", 1 << 20, 512), "00".repeat(512)),
        &error(1 << 20, 28),
    );
    client.ask("it goes on", &request("0000 0003", 0, 0), &chunk("0000", 0, 0));
    // A compact header has the wrong magic number here. A payload that is too long also closes the connection.
    assert_eq!(client.say("25609513 0000 0003 'a cookie' 0000000000000000 00000000 00000000"), b"");
    assert!(client.is_closed());
    let mut client = extended("a");
    assert_eq!(client.say(&request("0020 0001", 0, (64 << 20) + 1)), b"");
    assert!(client.is_closed());
    let mut client = extended("a");
    assert_eq!(client.say(&request("0020 0007", 0, 1 << 40)), b"");
    assert!(client.is_closed());
}

#[test]
fn extended_requests_are_nothing_without_the_option() {
    let mut client = Client::structured("a");
    assert_eq!(client.say(&request("0000 0003", 0, 0)), b"");
    assert!(client.is_closed());
    let mut client = Client::structured("a");
    client.ask(
        "PAYLOAD_LEN",
        "25609513 0020 0003 'a cookie' 0000000000000000 00000000",
        "668e33ef 0001 8001 'a cookie' ???????? 00000016 ~2",
    );
}

#[test]
fn ranges_of_more_than_32_bits() {
    let mut client = extended("big");
    let five_tib = 5 << 40;
    client.ask(
        "BLOCK_STATUS",
        &request("0000 0007", 4096, 8192),
        &format!("{} 00000001 00000001 {:016x} 0000000000000000", chunk("0006", 4096, 24), (8u64 << 40) - 4096),
    );
    client.ask(
        "BLOCK_STATUS of one",
        &request("0008 0007", 0, five_tib),
        &format!("{} 00000001 00000001 {five_tib:016x} 0000000000000000", chunk("0006", 0, 24)),
    );
    // The in-memory disk is smaller and fails the requests; the test checks what was submitted.
    client.host.log.clear();
    client.say(&request("0000 0004", 4096, five_tib));
    client.say(&request("0002 0006", 8192, five_tib));
    client.say(&request("0000 0005", 8192, five_tib));
    let requested: Vec<_> = client.host.log.iter().map(|entry| (entry.2, entry.3)).collect();
    assert_eq!(requested, [(4096, five_tib), (8192, five_tib)]);
}

/// The maximum number of errors at once, each with offset and text: they exceed one send.
#[test]
fn many_errors_at_once() {
    let mut client = extended("a");
    client.host.behaviour = braid_nbd::memory::DiskBehaviour::Held;
    let requested: String = (0..256).map(|k| request("0000 0000", k * 512, 512)).collect();
    assert_eq!(client.say(&requested), b"");
    while client.host.held_io() > 0 {
        client.host.finish_io(Err(braid_engine::ErrorKind::FlushFailed), false);
    }
    let mut got = client.say_raw(b"");
    for k in 0..256u64 {
        let len = 32 + u64::from_be_bytes(got[24..32].try_into().unwrap()) as usize;
        let rest = got.split_off(len);
        let offset = k * 512;
        expect(
            "an error",
            &got,
            &format!("6e8a278c 0001 8002 'a cookie' {offset:016x} ???????????????? 00000005 ~2 {offset:016x}"),
        );
        got = rest;
    }
    assert!(got.is_empty());
}
