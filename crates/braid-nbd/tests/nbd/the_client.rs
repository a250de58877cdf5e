//! The client side of the protocol, with the server's bytes written by hand from the protocol's document.

use crate::common::{bytes, expect};
use braid_nbd::client::negotiate::Negotiation;
use braid_nbd::client::{ClientError, Negotiated, NegotiationOptions, Pipeline, Replies};
use braid_nbd::codec::{self, command};
use proptest::prelude::*;

const R: &str = "0003e889045565a9";

fn wishes(structured: bool) -> NegotiationOptions {
    NegotiationOptions { export: "a".into(), tls: false, extended: false, structured, allocation: structured }
}

/// Runs one handshake: the server's messages and the client's expected replies, in turn.
#[track_caller]
fn negotiate(wishes: NegotiationOptions, turns: &[(&str, &str)]) -> Result<Option<Negotiated>, ClientError> {
    let mut negotiation = Negotiation::new(wishes);
    let mut done = None;
    for (said, answer) in turns {
        let (said, mut out) = (bytes(said), Vec::new());
        // Byte by byte: the client must never take an incomplete message.
        let (mut from, mut to) = (0, 0);
        while to <= said.len() {
            let (took, terms) = negotiation.feed(&said[from..to], &mut out)?;
            from += took;
            done = terms.or(done);
            to += usize::from(took == 0);
        }
        assert_eq!(from, said.len(), "all was understood");
        expect("answer", &out, answer);
    }
    Ok(done)
}

const GREETING: &str = "4e42444d41474943 49484156454f5054 0003";
const GO: &str = "'IHAVEOPT' 00000007 00000009 00000001 'a' 0001 0003";

#[test]
fn a_full_handshake() {
    let terms = negotiate(
        wishes(true),
        &[
            (GREETING, "00000003 'IHAVEOPT' 00000008 00000000"),
            (
                &format!("{R} 00000008 00000001 00000000"),
                "'IHAVEOPT' 0000000a 0000001c 00000001 'a' 00000001 0000000f 'base:allocation'",
            ),
            (&format!("{R} 0000000a 00000004 00000013 00000007 'base:allocation' {R} 0000000a 00000001 00000000"), GO),
            (
                &format!(
                    "{R} 00000007 00000003 0000000c 0000 0000000000100000 0ded
                     {R} 00000007 00000003 00000003 0001 'a'
                     {R} 00000007 00000003 0000000e 0003 00000200 00001000 02000000
                     {R} 00000007 00000001 00000000"
                ),
                "",
            ),
        ],
    );
    let expected = Negotiated {
        extended: false,
        size_bytes: 1 << 20,
        flags: 0xded,
        block_bytes: Some([512, 4096, 32 << 20]),
        structured: true,
        allocation: Some(7),
    };
    assert_eq!(terms.unwrap(), Some(expected));
}

#[test]
fn servers_that_know_less() {
    // No structured replies, no GO, and zeroes after EXPORT_NAME.
    let terms = negotiate(
        wishes(true),
        &[
            ("4e42444d41474943 49484156454f5054 0001", "00000001 'IHAVEOPT' 00000008 00000000"),
            (&format!("{R} 00000008 80000001 00000000"), GO),
            (&format!("{R} 00000007 80000001 00000000"), "'IHAVEOPT' 00000001 00000001 'a'"),
            (&format!("0000000000100000 0001 {}", "00".repeat(124)), ""),
        ],
    );
    let expected = Negotiated { size_bytes: 1 << 20, flags: 1, ..Negotiated::default() };
    assert_eq!(terms.unwrap(), Some(expected));
    // Structured replies without contexts.
    let terms = negotiate(
        wishes(true),
        &[
            (GREETING, "00000003 'IHAVEOPT' 00000008 00000000"),
            (
                &format!("{R} 00000008 00000001 00000000"),
                "'IHAVEOPT' 0000000a 0000001c 00000001 'a' 00000001 0000000f 'base:allocation'",
            ),
            (&format!("{R} 0000000a 80000001 00000003 'no!'"), GO),
            (&format!("{R} 00000007 00000003 0000000c 0000 0000000000100000 0001 {R} 00000007 00000001 00000000"), ""),
        ],
    );
    assert!(matches!(terms.unwrap(), Some(Negotiated { structured: true, allocation: None, .. })));
}

#[test]
fn servers_that_refuse_or_lie() {
    let go = |said: &str| negotiate(wishes(false), &[(GREETING, &format!("00000003 {GO}")), (said, "")]);
    match go(&format!("{R} 00000007 80000006 00000007 'no such'")) {
        Err(ClientError::Refused { code: 0x8000_0006, text }) => assert_eq!(text, "no such"),
        other => panic!("{other:?}"),
    }
    for said in [
        "0003e889045565aa 00000007 00000001 00000000",
        &format!("{R} 00000008 00000001 00000000"),
        &format!("{R} 00000007 00000001 00000000"),
        &format!("{R} 00000007 00000003 0000000b 0000 000000000010000000"),
        &format!("{R} 00000007 00000003 00000001 00"),
        &format!("{R} 00000007 00000003 7fffffff"),
        &format!("{R} 00000007 00000002 00000000"),
    ] {
        assert!(matches!(go(said), Err(ClientError::Protocol(_))), "{said}");
    }
    for greeting in [
        "4e42444d41474944 49484156454f5054 0003",
        "4e42444d41474943 0000420281861253 0003",
        "4e42444d41474943 49484156454f5054 0000",
    ] {
        assert!(matches!(negotiate(wishes(false), &[(greeting, "")]), Err(ClientError::Protocol(_))));
    }
}

/// Records the calls of the pipeline.
#[derive(Default, Debug, PartialEq, Eq)]
struct Seen(Vec<String>);

impl Replies for Seen {
    fn data(&mut self, slot: u16, at: u32, data: &[u8]) {
        for (i, byte) in data.iter().enumerate() {
            self.0.push(format!("{slot}: {}={byte:02x}", at as usize + i));
        }
    }

    fn hole(&mut self, slot: u16, at: u32, len: u32) {
        self.0.push(format!("{slot}: {at}+{len} hole"));
    }

    fn extent(&mut self, slot: u16, len: u64, state: u32) {
        self.0.push(format!("{slot}: {len} in state {state}"));
    }

    fn done(&mut self, slot: u16, result: Result<(), u32>) {
        self.0.push(format!("{slot}: {result:?}"));
    }
}

/// Returns a pipeline with a read of 4 bytes at 256 (slot 0), a write (1), a block status (2), a flush (3).
fn pipeline(structured: bool) -> Pipeline {
    let terms = Negotiated { size_bytes: 1 << 20, structured, allocation: Some(1), ..Negotiated::default() };
    let mut pipeline = Pipeline::new(5, &terms);
    for (kind, flags, offset, len, wire) in [
        (command::READ, 0, 256, 4, "25609513 0000 0000 0000000000000000 0000000000000100 00000004"),
        (command::WRITE, 1, 512, 512, "25609513 0001 0001 0000000000000001 0000000000000200 00000200"),
        (command::BLOCK_STATUS, 8, 0, 4096, "25609513 0008 0007 0000000000000002 0000000000000000 00001000"),
        (command::FLUSH, 0, 0, 0, "25609513 0000 0003 0000000000000003 0000000000000000 00000000"),
    ] {
        let (slot, header) = pipeline.begin(kind, flags, offset, len).unwrap();
        expect("request", &header, wire);
        assert_eq!(u64::from(slot), u64::from(header[15]));
    }
    pipeline
}

/// Feeds replies whole, then byte by byte. Both must have the same effect.
#[track_caller]
fn replies(structured: bool, said: &str) -> Result<Vec<String>, ClientError> {
    let said = bytes(said);
    let mut whole = Seen::default();
    let took = pipeline(structured).feed(&said, &mut whole);
    let (mut pipeline, mut seen, mut from) = (pipeline(structured), Seen::default(), 0);
    for to in 0..=said.len() {
        match pipeline.feed(&said[from..to], &mut seen) {
            Ok(took) => from += took,
            Err(_) => {
                assert!(took.is_err());
                return Err(took.unwrap_err());
            }
        }
    }
    assert_eq!(took?, said.len());
    assert_eq!((from, &whole), (said.len(), &seen));
    Ok(seen.0)
}

#[test]
fn simple_replies() {
    let seen = replies(
        false,
        "67446698 00000000 0000000000000003
         67446698 00000000 0000000000000000 a1a2a3a4
         67446698 0000001c 0000000000000001",
    );
    assert_eq!(seen.unwrap(), ["3: Ok(())", "0: 0=a1", "0: 1=a2", "0: 2=a3", "0: 3=a4", "0: Ok(())", "1: Err(28)"]);
    assert_eq!(replies(false, "67446698 00000005 0000000000000000").unwrap(), ["0: Err(5)"]);
}

#[test]
fn structured_replies() {
    // Data in two chunks, the second first; a hole between; other replies in between; a block status; an error with
    // text.
    let seen = replies(
        true,
        "668e33ef 0000 0001 0000000000000000 0000000a 0000000000000102 a3a4
         67446698 00000000 0000000000000001
         668e33ef 0000 0002 0000000000000000 0000000c 0000000000000101 00000001
         668e33ef 0001 0001 0000000000000000 00000009 0000000000000100 a1
         668e33ef 0001 0005 0000000000000002 00000014 00000001 00000800 00000000 00000800 00000003
         668e33ef 0001 8001 0000000000000003 00000009 00000005 0003 'bad'",
    );
    let expected = [
        "0: 2=a3",
        "0: 3=a4",
        "1: Ok(())",
        "0: 1+1 hole",
        "0: 0=a1",
        "0: Ok(())",
        "2: 2048 in state 0",
        "2: 2048 in state 3",
        "2: Ok(())",
        "3: Err(5)",
    ];
    assert_eq!(seen.unwrap(), expected);
    // An error with an offset, then the end; a context that was not selected; an error of an unknown type.
    let seen = replies(
        true,
        "668e33ef 0000 8002 0000000000000000 0000000e 00000005 0000 0000000000000101
         668e33ef 0001 0000 0000000000000000 00000000
         668e33ef 0000 0005 0000000000000002 0000000c 00000009 00001000 00000001
         668e33ef 0001 0000 0000000000000002 00000000
         668e33ef 0001 8077 0000000000000003 00000006 00000016 0000",
    );
    assert_eq!(seen.unwrap(), ["0: Err(5)", "2: Ok(())", "3: Err(22)"]);
}

#[test]
fn replies_that_break_the_protocol() {
    for (structured, said) in [
        (false, "67446699 00000000 0000000000000003"),
        (false, "67446698 00000000 0000000000000004"),
        (false, "67446698 00000000 0000000100000003"),
        (false, "67446698 00000000 0000000000000003 67446698 00000000 0000000000000003"),
        (false, "668e33ef 0001 0000 0000000000000003 00000000"),
        (true, "67446698 00000000 0000000000000000 a1a2a3a4"),
        (true, "668e33ef 0001 0000 0000000000000003 00000001 00"),
        (true, "668e33ef 0000 0000 0000000000000003 00000000"),
        (true, "668e33ef 0001 0000 0000000000000000 00000000"),
        (true, "668e33ef 0001 0001 0000000000000000 00000008 0000000000000100"),
        (true, "668e33ef 0001 0001 0000000000000000 00000009 00000000000000ff a1"),
        (true, "668e33ef 0001 0001 0000000000000000 0000000d 0000000000000100 a1a2a3a4a5"),
        (true, "668e33ef 0001 0001 0000000000000000 00000009 ffffffffffffffff a1"),
        (true, "668e33ef 0001 0001 0000000000000003 00000009 0000000000000000 a1"),
        (true, "668e33ef 0001 0002 0000000000000000 0000000b 0000000000000100 000000"),
        (true, "668e33ef 0001 0002 0000000000000000 0000000c 0000000000000100 00000000"),
        (true, "668e33ef 0001 0005 0000000000000002 00000004 00000001"),
        (true, "668e33ef 0001 0005 0000000000000002 0000000c 00000001 00000000 00000000"),
        (true, "668e33ef 0001 8001 0000000000000003 00000006 00000000 0000"),
        (true, "668e33ef 0001 8001 0000000000000003 00000006 00000005 0001"),
        (true, "668e33ef 0001 8001 0000000000000003 00000005 00000005 00"),
        (true, "668e33ef 0001 8001 0000000000000003 7fffffff"),
        (true, "668e33ef 0001 0009 0000000000000003 00000000"),
    ] {
        assert!(matches!(replies(structured, said), Err(ClientError::Protocol(_))), "{said}");
    }
}

/// As many bytes as requested, but some twice and others never: not a valid reply.
#[test]
fn chunks_that_overlap() {
    for said in [
        "668e33ef 0000 0001 0000000000000000 0000000a 0000000000000100 a1a2
         668e33ef 0001 0001 0000000000000000 0000000a 0000000000000100 a1a2",
        "668e33ef 0000 0001 0000000000000000 0000000a 0000000000000101 a1a2
         668e33ef 0001 0001 0000000000000000 0000000a 0000000000000100 a1a2",
        "668e33ef 0000 0001 0000000000000000 0000000a 0000000000000100 a1a2
         668e33ef 0001 0002 0000000000000000 0000000c 0000000000000101 00000002",
        "668e33ef 0000 0002 0000000000000000 0000000c 0000000000000100 00000002
         668e33ef 0001 0002 0000000000000000 0000000c 0000000000000100 00000002",
    ] {
        assert!(matches!(replies(true, said), Err(ClientError::Protocol(_))), "{said}");
    }
}

/// Near the maximum offset, where adding the length overflows into the range.
#[test]
fn offsets_that_overflow() {
    for said in [
        "668e33ef 0001 0001 0000000000000000 0000000c ffffffffffffffff a1a2a3a4",
        "668e33ef 0001 0001 0000000000000000 0000000b ffffffffffffffff a1a2a3",
        "668e33ef 0001 0002 0000000000000000 0000000c fffffffffffffffe 00000004",
        "668e33ef 0001 0002 0000000000000000 0000000c ffffffffffffffff ffffffff",
    ] {
        let mut pipeline = Pipeline::new(1, &Negotiated { structured: true, ..Negotiated::default() });
        pipeline.begin(command::READ, 0, 0, 4).unwrap();
        let mut seen = Seen::default();
        assert!(matches!(pipeline.feed(&bytes(said), &mut seen), Err(ClientError::Protocol(_))), "{said}");
        assert_eq!(seen, Seen::default(), "{said}");
    }
}

/// The only chunk type that the server does not send yet.
#[test]
fn offset_hole() {
    let mut out = [0; 64];
    let used = codec::encode_offset_hole(&mut out, 7, true, 0x1000, 0x200);
    expect("hole", &out[..used], "668e33ef 0001 0002 0000000000000007 0000000c 0000000000001000 00000200");
}

#[test]
fn a_full_pipeline_takes_no_more() {
    let mut pipeline = pipeline(false);
    assert_eq!((pipeline.free(), pipeline.in_flight()), (1, 4));
    assert!(pipeline.begin(command::READ, 0, 0, (32 << 20) + 1).is_none());
    assert!(pipeline.begin(command::READ, 0, 0, 512).is_some());
    assert!(pipeline.begin(command::READ, 0, 0, 512).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// No bytes from a server make the client panic or take more than the input.
    #[test]
    fn any_bytes(
        structured in any::<bool>(),
        picks in prop::collection::vec(0..8usize, 0..12),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
    ) {
        let parts = [
            "67446698 00000000 0000000000000003",
            "67446698 00000000 0000000000000000 a1a2a3a4",
            "668e33ef 0000 0001 0000000000000000 0000000a 0000000000000102 a3a4",
            "668e33ef 0000 0002 0000000000000000 0000000c 0000000000000101 00000001",
            "668e33ef 0001 0005 0000000000000002 00000014 00000001 00000800 00000000 00000800 00000003",
            "668e33ef 0001 8001 0000000000000003 00000009 00000005 0003 'bad'",
            "668e33ef 0000 8002 0000000000000000 0000000e 00000005 0000 0000000000000101",
            "4e42444d41474943 49484156454f5054 0003 0003e889045565a9 00000007 00000001 00000000",
        ];
        let mut said: Vec<u8> = picks.iter().flat_map(|&k| bytes(parts[k])).collect();
        for (at, value) in edits {
            if !said.is_empty() {
                let at = at.index(said.len());
                said[at] = value;
            }
        }
        if let Ok(took) = pipeline(structured).feed(&said, &mut Seen::default()) {
            prop_assert!(took <= said.len());
        }
        let mut negotiation = Negotiation::new(wishes(structured));
        let (mut from, mut out) = (0, Vec::new());
        while let Ok((took, None)) = negotiation.feed(&said[from..], &mut out) {
            if took == 0 {
                break;
            }
            from += took;
        }
    }
}
