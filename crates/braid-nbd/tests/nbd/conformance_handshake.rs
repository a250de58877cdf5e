//! Conformance of all handshake options, with bytes written by hand from the protocol's document.

use crate::common::*;
use braid_nbd::{Cause, NbdEvent};

/// Magic number of option replies.
const R: &str = "0003e889045565a9";

/// Returns an option as a client sends it. The data length is computed here, not by the codec.
fn opt(option: u32, data: &str) -> String {
    format!("'IHAVEOPT' {option:08x} {:08x} {data}", bytes(data).len())
}

fn ack(option: u32) -> String {
    format!("{R} {option:08x} 00000001 00000000")
}

fn err(option: u32, kind: u32) -> String {
    format!("{R} {option:08x} {kind:08x} ~4")
}

const UNSUP: u32 = 0x8000_0001;
const POLICY: u32 = 0x8000_0002;
const INVALID: u32 = 0x8000_0003;
const UNKNOWN: u32 = 0x8000_0006;
const TOO_BIG: u32 = 0x8000_0009;

fn fixed() -> Client {
    let mut client = Client::connect();
    client.host.take_output(client.socket);
    client.ask("client flags need no answer", "00000003", "");
    client
}

#[track_caller]
fn cause(client: &mut Client) -> Cause {
    assert!(client.is_closed());
    match client.events().pop() {
        Some(NbdEvent::Disconnected { cause, .. }) => cause,
        other => panic!("{other:?}"),
    }
}

#[test]
fn greeting() {
    let mut client = Client::connect();
    let greeting = client.host.take_output(client.socket);
    expect("greeting", &greeting, "4e42444d41474943 49484156454f5054 0003");
}

#[test]
fn client_flags() {
    for (flags, open) in [("00000000", true), ("00000001", true), ("00000002", true), ("00000003", true)]
        .into_iter()
        .chain([("00000004", false), ("80000001", false), ("00010000", false)])
    {
        let mut client = Client::connect();
        client.say(flags);
        assert_eq!(!client.is_closed(), open, "{flags}");
    }
    // Without fixed newstyle, EXPORT_NAME is the only option.
    let mut client = Client::connect();
    client.say("00000002");
    client.ask("option of the fixed newstyle", &opt(3, ""), "");
    assert_eq!(cause(&mut client), Cause::ClientFlags(0));
}

#[test]
fn export_name() {
    let zeroes = "00".repeat(124);
    for (flags, name, expected) in [
        ("00000003", "'a'", "0000000000100000 0d6d".to_owned()),
        ("00000002", "'a'", "0000000000100000 0d6d".to_owned()),
        ("00000001", "'a'", format!("0000000000100000 0d6d {zeroes}")),
        ("00000000", "'ro'", format!("0000000000100000 050f {zeroes}")),
        ("00000003", "'big'", "0000080000000000 0d6d".to_owned()),
    ] {
        let mut client = Client::connect();
        client.say(flags);
        client.ask(name, &opt(1, name), &expected);
        assert!(!client.is_closed());
    }
    // With structured replies, DF is offered.
    let mut client = fixed();
    client.ask("structured", &opt(8, ""), &ack(8));
    client.ask("then the name", &opt(1, "'a'"), "0000000000100000 0ded");
    // Names that cannot be served end the session.
    for (name, why) in [
        ("'nosuch'", Cause::NoSuchExport("nosuch".into())),
        ("", Cause::NoSuchExport("".into())),
        ("ff", Cause::NoSuchExport("\u{fffd}".into())),
    ] {
        let mut client = fixed();
        client.ask(name, &opt(1, name), "");
        assert_eq!(cause(&mut client), why);
    }
    let mut client = fixed();
    client.ask("an absurd name", "'IHAVEOPT' 00000001 7fffffff", "");
    assert_eq!(cause(&mut client), Cause::OptionFlood);
}

#[test]
fn the_empty_name_is_the_only_export() {
    let mut client = fixed();
    client.ask("two exports: no default", &opt(7, "00000000 0000"), &err(7, UNKNOWN));
    client.table.remove("big").unwrap();
    client.table.remove("ro").unwrap();
    client.ask("one export", &opt(1, ""), "0000000000100000 0d6d");
}

#[test]
fn abort() {
    for data in ["", "'bye'"] {
        let mut client = fixed();
        client.ask("abort", &opt(2, data), &ack(2));
        assert_eq!(cause(&mut client), Cause::Disconnected);
    }
}

#[test]
fn list() {
    let mut client = fixed();
    let expected = format!(
        "{R} 00000003 00000002 00000005 00000001 'a'
         {R} 00000003 00000002 00000007 00000003 'big'
         {R} 00000003 00000002 0000000e 00000002 'ro' 'for show'
         {R} 00000003 00000001 00000000"
    );
    client.ask("list", &opt(3, ""), &expected);
    client.ask("list with data", &opt(3, "00"), &err(3, INVALID));
    client.ask("and again", &opt(3, ""), &expected);
    for name in ["a", "big", "ro"] {
        client.table.remove(name).unwrap();
    }
    client.ask("nothing to list", &opt(3, ""), &ack(3));
}

/// A long list is sent in parts, so that a client that reads nothing costs little memory.
#[test]
fn a_long_list() {
    for exports in [29, 30, 61, 4093] {
        let mut client = fixed();
        let long = "y".repeat(200);
        for k in 0..exports {
            let info = braid_export::ExportInfo::new(format!("x{k:05}"), braid_engine::DeviceId(0), 4096);
            client.table.add(braid_export::ExportInfo { description: long.clone(), ..info }).unwrap();
        }
        client.host.client_takes(client.socket, 0);
        client.say(&opt(3, ""));
        client.host.client_takes(client.socket, usize::MAX);
        let got = client.say(&opt(5, ""));
        let one = |k| format!("{R} 00000003 00000002 000000d2 00000006 'x{k:05}' '{long}'");
        let expected = format!(
            "{R} 00000003 00000002 00000005 00000001 'a'
             {R} 00000003 00000002 00000007 00000003 'big'
             {R} 00000003 00000002 0000000e 00000002 'ro' 'for show'"
        ) + &(0..exports).map(one).collect::<String>()
            + &ack(3)
            + &err(5, UNSUP);
        expect("list", &got, &expected);
    }
    // After LIST the client sends more than the server buffers.
    let mut client = fixed();
    for k in 0..100 {
        client.table.add(braid_export::ExportInfo::new(format!("x{k}"), braid_engine::DeviceId(0), 4096)).unwrap();
    }
    let one = client.say(&opt(3, ""));
    let before = client.host.used_bytes();
    client.host.client_takes(client.socket, 0);
    let long = opt(77, &"00".repeat(16_000));
    client.say(&(opt(3, "") + &long.repeat(5) + &opt(3, "").repeat(100)));
    assert_eq!(client.host.used_bytes(), before);
    client.host.client_takes(client.socket, usize::MAX);
    let got = client.say(&opt(8, ""));
    assert_eq!(&got[..one.len()], one);
    expect("the rest", &got[101 * one.len() + 5 * (20 + 27)..], &ack(8));
    let client = Client::connect();
    let mut out = Vec::new();
    for k in 0..4000 {
        let info = braid_export::ExportInfo::new(format!("{k:0255}"), braid_engine::DeviceId(0), 4096);
        client.table.add(braid_export::ExportInfo { description: "z".repeat(255), ..info }).unwrap();
    }
    let mut handshake = braid_nbd::handshake::Handshake::new(client.table.clone(), u64::MAX, &mut out);
    let said = bytes(&("00000003".to_owned() + &opt(3, "")));
    let (mut from, mut listed_bytes) = (0, 0);
    while from < said.len() {
        out.clear();
        from += handshake.feed(&said[from..], &mut out).0;
        assert!(out.len() <= 20 << 10, "one part");
        listed_bytes += out.len();
    }
    assert!(listed_bytes > 4000 * 530);
}

#[test]
fn starttls_and_unknown_options() {
    let mut client = fixed();
    client.ask("starttls", &opt(5, ""), &err(5, UNSUP));
    client.ask("peek", &opt(4, "'a'"), &err(4, UNSUP));
    client.ask("option 0", &opt(0, ""), &err(0, UNSUP));
    client.ask("something new", &opt(0xdead_beef, "0102030405"), &err(0xdead_beef, UNSUP));
    client.ask("still speaking", &opt(8, ""), &ack(8));
}

#[test]
fn info_and_go() {
    let export = |option: u32, flags: &str| format!("{R} {option:08x} 00000003 0000000c 0000 0000000000100000 {flags}");
    for option in [6, 7] {
        let o = format!("{option:08x}");
        for (what, data, expected) in [
            ("nothing wanted", "00000001 'a' 0000", export(option, "0d6d") + &ack(option)),
            (
                "name",
                "00000001 'a' 0001 0001",
                export(option, "0d6d") + &format!("{R} {o} 00000003 00000003 0001 'a'") + &ack(option),
            ),
            ("no description", "00000001 'a' 0001 0002", export(option, "0d6d") + &ack(option)),
            (
                "description",
                "00000002 'ro' 0001 0002",
                export(option, "050f") + &format!("{R} {o} 00000003 0000000a 0002 'for show'") + &ack(option),
            ),
            (
                "block size",
                "00000001 'a' 0001 0003",
                export(option, "0d6d")
                    + &format!("{R} {o} 00000003 0000000e 0003 00000200 00001000 02000000")
                    + &ack(option),
            ),
            (
                "other block sizes",
                "00000003 'big' 0001 0003",
                format!("{R} {o} 00000003 0000000c 0000 0000080000000000 0d6d")
                    + &format!("{R} {o} 00000003 0000000e 0003 00001000 00010000 02000000")
                    + &ack(option),
            ),
            (
                "all, in any order, twice, and unknown ones",
                "00000002 'ro' 0006 ffff 0003 0002 0001 0003 0000",
                export(option, "050f")
                    + &format!("{R} {o} 00000003 00000004 0001 'ro'")
                    + &format!("{R} {o} 00000003 0000000a 0002 'for show'")
                    + &format!("{R} {o} 00000003 0000000e 0003 00000200 00001000 02000000")
                    + &ack(option),
            ),
        ] {
            let mut client = fixed();
            client.ask(what, &opt(option, data), &expected);
            assert!(!client.is_closed());
            let entered = client.events().iter().any(|e| matches!(e, NbdEvent::Connected { .. }));
            assert_eq!(entered, option == 7, "only GO enters transmission");
        }
    }
    // After structured replies are negotiated, DF is offered.
    let mut client = fixed();
    client.ask("structured", &opt(8, ""), &ack(8));
    client.ask("info", &opt(6, "00000001 'a' 0000"), &(export(6, "0ded") + &ack(6)));
    client.ask("and go", &opt(7, "00000001 'a' 0000"), &(export(7, "0ded") + &ack(7)));
}

#[test]
fn info_and_go_refused() {
    let long = format!("00001001 '{}' 0000", "x".repeat(4097));
    for option in [6, 7] {
        let mut client = fixed();
        for (what, data, kind) in [
            ("no such export", "00000006 'nosuch' 0000", UNKNOWN),
            ("no data", "", INVALID),
            ("a short name", "00000005 'a' 0000", INVALID),
            ("a name of 4 GiB", "ffffffff 'a' 0000", INVALID),
            ("no count", "00000001 'a'", INVALID),
            ("too few infos", "00000001 'a' 0002 0000", INVALID),
            ("too many infos", "00000001 'a' 0000 0000", INVALID),
            ("half an info", "00000001 'a' 0001 00", INVALID),
            ("not UTF-8", "00000001 ff 0000", INVALID),
            ("NUL", "00000002 'a' 00 0000", INVALID),
            ("over 4096 bytes", &long, INVALID),
        ] {
            client.ask(what, &opt(option, data), &err(option, kind));
        }
        client.ask("still speaking", &opt(8, ""), &ack(8));
    }
}

#[test]
fn structured_reply() {
    let mut client = fixed();
    client.ask("with data", &opt(8, "00"), &err(8, INVALID));
    client.ask("without", &opt(8, ""), &ack(8));
    client.ask("twice", &opt(8, ""), &ack(8));
}

#[test]
fn list_meta_context() {
    let mut client = fixed();
    client.ask("before structured replies", &opt(9, "00000001 'a' 00000000"), &err(9, INVALID));
    client.ask("structured", &opt(8, ""), &ack(8));
    let all = format!("{R} 00000009 00000004 00000013 00000000 'base:allocation'") + &ack(9);
    for (what, queries, found) in [
        ("no query", "00000000", true),
        ("the empty one", "00000001 00000000", true),
        ("the namespace", "00000001 00000005 'base:'", true),
        ("the name", "00000001 0000000f 'base:allocation'", true),
        ("two that match", "00000002 00000005 'base:' 0000000f 'base:allocation'", true),
        ("another leaf", "00000001 00000009 'base:leaf'", false),
        ("another namespace", "00000001 00000011 'qemu:dirty-bitmap'", false),
        ("one that matches", "00000002 00000011 'qemu:dirty-bitmap' 0000000f 'base:allocation'", true),
        ("no namespace", "00000001 00000004 'base'", false),
    ] {
        client.ask(
            what,
            &opt(9, &format!("00000001 'a' {queries}")),
            if found { &all } else { &all[all.len() - ack(9).len()..] },
        );
    }
    for (what, data, kind) in [
        ("no such export", "00000001 'x' 00000000", UNKNOWN),
        ("no count", "00000001 'a'", INVALID),
        ("a query missing", "00000001 'a' 00000001", INVALID),
        ("4 G queries", "00000001 'a' ffffffff", INVALID),
        ("a query of 4 GiB", "00000001 'a' 00000001 ffffffff", INVALID),
        ("more than was said", "00000001 'a' 00000000 00", INVALID),
        ("not UTF-8", "00000001 'a' 00000001 00000001 ff", INVALID),
    ] {
        client.ask(what, &opt(9, data), &err(9, kind));
    }
}

#[test]
fn set_meta_context() {
    let mut client = fixed();
    client.ask("before structured replies", &opt(10, "00000001 'a' 00000000"), &err(10, INVALID));
    client.ask("structured", &opt(8, ""), &ack(8));
    let chosen = format!("{R} 0000000a 00000004 00000013 00000001 'base:allocation'") + &ack(10);
    for (what, queries, found) in [
        ("no query", "00000000", false),
        ("the empty one", "00000001 00000000", false),
        ("the namespace", "00000001 00000005 'base:'", false),
        ("the name", "00000001 0000000f 'base:allocation'", true),
        ("the name twice", "00000002 0000000f 'base:allocation' 0000000f 'base:allocation'", true),
        ("another", "00000001 00000003 'x:y'", false),
    ] {
        client.ask(
            what,
            &opt(10, &format!("00000001 'a' {queries}")),
            if found { &chosen } else { &chosen[chosen.len() - ack(10).len()..] },
        );
    }
    client.ask("no such export", &opt(10, "00000001 'x' 00000000"), &err(10, UNKNOWN));
    client.ask("malformed", &opt(10, "00000001 'a' 00000009"), &err(10, INVALID));
}

/// BLOCK_STATUS works if the last SET_META_CONTEXT succeeded for the export that is then chosen.
#[test]
fn set_meta_context_holds_for_its_export_only() {
    let set = |export: &str| opt(10, &format!("{:08x} '{export}' 00000001 0000000f 'base:allocation'", export.len()));
    for (what, options, works) in [
        ("chosen", vec![set("a")], true),
        ("never chosen", vec![], false),
        ("chosen for another", vec![set("ro")], false),
        ("chosen, then for another", vec![set("a"), set("ro")], false),
        ("chosen, then none", vec![set("a"), opt(10, "00000001 'a' 00000000")], false),
        ("chosen, then a failure", vec![set("a"), opt(10, "00")], false),
        (
            "chosen, then too long",
            vec![set("a"), format!("'IHAVEOPT' 0000000a 00005000 {}", "00".repeat(0x5000))],
            false,
        ),
        ("chosen, then listed", vec![set("a"), opt(9, "00000001 'a' 00000000")], true),
    ] {
        let mut client = fixed();
        client.ask("structured", &opt(8, ""), &ack(8));
        for option in options {
            client.say(&option);
        }
        client.say(&opt(1, "'a'"));
        let got = client.say("25609513 0000 0007 0000000000000001 0000000000000000 00001000");
        let is_status = got[4..8] == [0, 1, 0, 5];
        assert_eq!(is_status, works, "{what}: {}", show(&got));
    }
}

#[test]
fn an_option_too_long_is_skipped() {
    let mut client = fixed();
    for option in [3, 6, 7, 8, 9, 10, 77] {
        let sent = format!("'IHAVEOPT' {option:08x} 00004001 {}", "5a".repeat(0x4001));
        client.ask("too long", &sent, &err(option, TOO_BIG));
        client.ask("the next one is understood", &opt(5, ""), &err(5, UNSUP));
    }
    assert!(!client.is_closed());
}

#[test]
fn floods_end_the_session() {
    let mut client = fixed();
    client.ask("a megabyte", "'IHAVEOPT' 00000003 00100000", "");
    assert_eq!(cause(&mut client), Cause::OptionFlood);
    let mut client = fixed();
    for _ in 0..1024 {
        client.ask("one more", &opt(8, ""), &ack(8));
    }
    client.ask("one too many", &opt(8, ""), "");
    assert_eq!(cause(&mut client), Cause::OptionFlood);
}

#[test]
fn a_wrong_magic_number_ends_the_session() {
    let mut client = fixed();
    client.ask("magic", "'IHAVEOPX' 00000003 00000000", "");
    assert_eq!(cause(&mut client), Cause::OptionMagic(u64::from_be_bytes(*b"IHAVEOPX")));
}

#[test]
fn the_handshake_has_a_time_limit() {
    for (said, limit_s) in [("", 10), ("00000003", 10), ("00000003 'IHAVE", 10)] {
        let mut client = Client::connect();
        client.say(said.split('\'').next().unwrap());
        for second in 1..=limit_s {
            assert!(!client.is_closed(), "{second} s");
            client.host.now_ns += 1_000_000_000;
            client.run();
        }
        assert_eq!(cause(&mut client), Cause::HandshakeTimeout);
        assert_eq!((client.server.connections(), client.host.used_bytes()), (0, 0));
    }
    // After the handshake there is no time limit.
    let mut client = Client::simple("a");
    client.host.now_ns += 3_600_000_000_000;
    client.run();
    assert!(!client.is_closed());
}

#[test]
fn the_connection_limit_of_an_export() {
    let mut client = Client::simple("a");
    for _ in 1..64 {
        client.reconnect();
        client.choose("a", false);
    }
    client.reconnect();
    client.say("00000003");
    client.ask("info", &opt(6, "00000001 'a' 0000"), &err(6, POLICY));
    client.ask("go", &opt(7, "00000001 'a' 0000"), &err(7, POLICY));
    client.ask("name", &opt(1, "'a'"), "");
    assert_eq!(cause(&mut client), Cause::ConnectionLimit("a".into()));
    assert_eq!(client.table.find("a").unwrap().connections(), 64);
}
