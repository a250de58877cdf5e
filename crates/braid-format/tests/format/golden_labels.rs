//! Labels as golden files: what was written once stays readable, and is encoded to the same bytes.
//!
//! A file is created only by running this test with `BRAID_WRITE_GOLDEN=1`, and only if it does not exist. A format
//! that changes gets new files; old ones stay.

use crate::support;
use std::path::PathBuf;

use braid_format::{ArrayState, Label, MemberState};

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/labels").join(name)
}

/// Returns each file and the label in it.
fn golden() -> [(&'static str, Label); 3] {
    [
        ("raid0_50_100_100_member1.bin", support::raid0_of_three()),
        ("concat_128_member127.bin", support::concat_of_128()),
        ("raid10_everything_member3.bin", support::raid10_with_everything()),
    ]
}

#[test]
fn golden_labels_decode_and_encode_alike() {
    for (name, label) in golden() {
        let path = file(name);
        if !path.exists() && std::env::var_os("BRAID_WRITE_GOLDEN").is_some() {
            std::fs::write(&path, label.encode().unwrap()).unwrap();
        }
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(bytes.len(), 4096, "{name}");
        let decoded = Label::decode(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(decoded, label, "{name}");
        assert!(decoded.encode().unwrap().as_slice() == bytes, "{name} encodes to other bytes");
        assert_eq!(decoded.array.geometry().unwrap().size_bytes(), label.array.array_bytes, "{name}");
    }
}

/// The same files, decoded by hand at the offsets in `docs/internals/format/label.md`, independently of the decoder.
#[test]
fn golden_labels_hold_these_bytes() {
    let bytes = std::fs::read(file("raid0_50_100_100_member1.bin")).unwrap();
    let le = |at: usize, len: usize| bytes[at..at + len].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
    assert_eq!(&bytes[..8], b"BRAIDLB1");
    assert_eq!(le(12, 4), 1, "version");
    assert_eq!(&bytes[40..56], b"braid-test-array");
    assert_eq!(le(56, 8), 7, "sequence");
    assert_eq!(&bytes[64..69], b"fast\0");
    assert_eq!(bytes[128..132], [2, 2, 2, 1], "active, raid0, alternate, all zones");
    assert_eq!((le(134, 2), le(136, 2), bytes[138]), (3, 2, 1), "members, zones, form");
    assert_eq!(le(144, 4), 65536, "chunk");
    let (small, large) = ((50u64 << 30) - (16 << 20) - 4096, (100u64 << 30) - (16 << 20) - 4096);
    let whole = |bytes: u64| bytes / 65536 * 65536;
    assert_eq!(le(152, 8), whole(small) + 2 * whole(large), "the array's size");
    assert_eq!(le(400, 6), 0x1001, "this member's id");
    assert_eq!(le(406, 2), 1, "its slot");
    assert_eq!(le(424, 8), (100 << 30) - 4096, "the copy's offset");
    assert_eq!((le(432, 8), le(440, 8)), (16 << 20, large), "the data area");
    for (slot, data) in [small, large, large].into_iter().enumerate() {
        let at = 512 + 14 * slot;
        assert_eq!((le(at, 6), le(at + 6, 6), bytes[at + 12]), (0x1000 + slot as u64, data / 4096, 1));
    }
    assert_eq!((bytes[2304], le(2304 + 16, 6), le(2304 + 22, 6)), (0b111, 0, whole(small) / 4096));
    let second = 2304 + 28;
    let height = (whole(large) - whole(small)) / 4096;
    assert_eq!((bytes[second], le(second + 16, 6), le(second + 22, 6)), (0b110, whole(small) / 4096, height));

    let fullest = std::fs::read(file("raid10_everything_member3.bin")).unwrap();
    assert_eq!(fullest[176 + 8], 2, "the second ancestor");
    assert_eq!(fullest[352 + 6..352 + 12], [6, 5, 4, 3, 2, 1], "from where on it is accepted");
    assert_eq!(fullest[352 + 42..400], [255; 6], "the last one, which is never accepted");
    assert_eq!(fullest[500..508], [0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe], "the session before");

    let concat = std::fs::read(file("concat_128_member127.bin")).unwrap();
    assert_eq!((concat[138], concat[136]), (2, 128), "form of single members");
    assert_eq!(concat[4096 - 14], 127, "the last zone's member");
}

#[test]
fn the_fullest_label_keeps_every_field() {
    let label = Label::decode(&std::fs::read(file("raid10_everything_member3.bin")).unwrap()).unwrap();
    assert_eq!(label.array.state, ArrayState::Deleting);
    assert_eq!((label.array.lineage.ancestors.len(), label.array.jobs.len(), label.array.epoch), (8, 2, 12));
    let states: Vec<MemberState> = label.array.members.iter().map(|m| m.state).collect();
    use MemberState::{Empty, Failed, InSync, Rebuilding, Spare};
    assert_eq!(states, [Empty, Rebuilding, Failed, InSync, Spare]);
    assert!(label.array.members[4].write_mostly);
}
