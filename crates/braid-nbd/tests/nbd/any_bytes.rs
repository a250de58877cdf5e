//! No input makes the server panic or leak, or depends on how it is split.

use crate::common::bytes;
use braid_nbd::fuzz::{converse, fuzz_handshake, fuzz_transmission};
use proptest::prelude::*;

/// Valid parts of handshakes and requests, to be concatenated and damaged.
fn sensible() -> Vec<Vec<u8>> {
    [
        "00000003",
        "00000001",
        "'IHAVEOPT' 00000003 00000000",
        "'IHAVEOPT' 00000008 00000000",
        "'IHAVEOPT' 00000005 00000000",
        "'IHAVEOPT' 00000002 00000000",
        "'IHAVEOPT' 00000006 0000000d 00000001 'a' 0003 0003 0002 0001",
        "'IHAVEOPT' 00000006 00000006 00000000 0000",
        "'IHAVEOPT' 00000009 00000009 00000001 'a' 00000000",
        "'IHAVEOPT' 0000000a 0000001c 00000001 'a' 00000001 0000000f 'base:allocation'",
        "'IHAVEOPT' 00000007 00000007 00000001 'a' 0000",
        "'IHAVEOPT' 00000007 0000000c 00000006 'second' 0000",
        "'IHAVEOPT' 00000001 00000001 'a'",
        "'IHAVEOPT' 00000001 00000001 'a'",
        "25609513 0000 0000 0000000000000007 0000000000001000 00001000",
        "25609513 0004 0000 0000000000000008 0000000000001000 00004000",
        "25609513 0000 0000 0000000000000007 0000000000000000 00100000",
        "25609513 0001 0001 000000000000000a 0000000000000200 00000200",
        "25609513 0000 0003 000000000000000b 0000000000000000 00000000",
        "25609513 0000 0004 000000000000000c 0000000000000000 00001000",
        "25609513 0000 0005 000000000000000d 0000000000000000 00001000",
        "25609513 0012 0006 000000000000000e 0000000000000000 00001000",
        "25609513 0000 0007 000000000000000f 0000000000000000 00001000",
        "25609513 0008 0007 0000000000000010 0000000000000200 00001000",
        "25609513 0000 0001 0000000000000011 0000000000000000 ffffffff",
        "25609513 0000 0002 0000000000000012 0000000000000000 00000000",
    ]
    .iter()
    .map(|text| bytes(text))
    .chain([{
        let mut write = bytes("25609513 0000 0001 0000000000000013 0000000000002000 00020000");
        write.extend((0..0x20000).map(|i| i as u8));
        write
    }])
    .collect()
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let parts = sensible();
    prop::collection::vec(0..parts.len(), 0..24)
        .prop_map(move |picks| picks.iter().flat_map(|&k| parts[k].clone()).collect())
}

fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let edit = (any::<prop::sample::Index>(), any::<u8>(), 0..3u8);
    (stream(), prop::collection::vec(edit, 0..6)).prop_map(|(mut bytes, edits)| {
        for (at, value, how) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] ^= 1 << (value % 8),
                1 => bytes[at] = value,
                _ => drop(bytes.remove(at)),
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        fuzz_handshake(&bytes);
        fuzz_transmission(&bytes);
    }

    #[test]
    fn damaged_streams(bytes in mutated()) {
        fuzz_handshake(&bytes);
        for how in [0, 1, 4, 5, 0xff] {
            fuzz_transmission(&[&[how], &bytes[..]].concat());
        }
    }

    #[test]
    fn splitting_the_input_does_not_matter(bytes in mutated(), step in 1..97usize) {
        // The order of replies may differ: requests without disk I/O overtake those with it.
        let (whole, pieces) = (converse(&bytes, usize::MAX), converse(&bytes, step));
        prop_assert_eq!(histogram(&whole), histogram(&pieces), "in pieces of {}", step);
    }
}

fn histogram(bytes: &[u8]) -> Vec<usize> {
    let mut counts = vec![0; 256];
    bytes.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    counts
}

/// Returns the messages of a session with structured replies, sorted. Each contains its length.
fn messages(output: &[u8]) -> Vec<&[u8]> {
    let (mut rest, mut found) = (output, Vec::new());
    while !rest.is_empty() {
        let number = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().unwrap()) as usize;
        let len = match number(0) {
            0x4e42_444d => 18,
            0x0003_e889 => 20 + number(16),
            0x6744_6698 => 16,
            0x668e_33ef => 20 + number(16),
            // The reply to EXPORT_NAME, beginning with the size.
            0 => 10,
            other => panic!("{other:x}"),
        };
        let (message, after) = rest.split_at(len);
        found.push(message);
        rest = after;
    }
    found.sort();
    found
}

/// Splits the input into pieces of every length; the output is always the same.
#[test]
fn every_boundary() {
    let parts = sensible();
    // A complete session with structured replies, a refused write, a long write, and a DISC.
    let picks = [0, 2, 3, 6, 9, 10, 14, 17, 18, 23, 22, 21, 15, 20, 25];
    let mut session: Vec<u8> = Vec::new();
    for k in picks {
        session.extend(&parts[k]);
        if k == 17 {
            session.extend([0x55; 0x200]);
        }
    }
    let whole = converse(&session, usize::MAX);
    assert!(whole.len() > 20_000, "the session does something: {}", whole.len());
    assert_eq!(messages(&whole).len(), 1 + 9 + 11, "greeting, options, requests");
    // Each length splits the input at its multiples.
    for piece in 1..session.len() {
        assert!(messages(&converse(&session, piece)) == messages(&whole), "in pieces of {piece} bytes");
    }
}
