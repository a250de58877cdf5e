//! Every kind of signature, from the few bytes that define it, at the offsets in the formats' documents.

use crate::support;
use std::convert::Infallible;

use braid_format::foreign::{SignatureClass, Signatures, identify, identify_pieces, ranges};
use braid_format::{BLOCK_BYTES, copy_offset, fuzz};
use proptest::prelude::*;

const SIZE: u64 = 64 << 20;

/// A disk that is zero except for these bytes.
fn disk(size: u64, parts: &[(u64, &[u8])]) -> Option<Signatures> {
    let read = |offset: u64, len: usize| {
        let mut bytes = vec![0; len];
        for (at, part) in parts {
            for (i, byte) in part.iter().enumerate() {
                let place = at + i as u64;
                if (offset..offset + len as u64).contains(&place) {
                    bytes[(place - offset) as usize] = *byte;
                }
            }
        }
        Ok::<_, Infallible>(bytes)
    };
    identify(size, read).unwrap()
}

#[track_caller]
fn check(kind: &str, class: SignatureClass, shown: &str, parts: &[(u64, &[u8])]) {
    let found = disk(SIZE, parts).unwrap_or_else(|| panic!("{kind}: nothing found"));
    assert_eq!(found.signatures.len(), 1, "{kind}: {found:?}");
    let signature = &found.signatures[0];
    assert_eq!((signature.kind, signature.class, found.to_string().as_str()), (kind, class, shown));
    assert_eq!(found.is_foreign(), class != SignatureClass::Braid);
    // Zeros in its ranges remove it.
    let zeros: Vec<Vec<u8>> = signature.ranges.iter().map(|r| vec![0; r.bytes as usize]).collect();
    let mut wiped = parts.to_vec();
    wiped.extend(signature.ranges.iter().zip(&zeros).map(|(r, z)| (r.start, z.as_slice())));
    assert_eq!(disk(SIZE, &wiped), None, "{kind}: still there without {:?}", signature.ranges);
}

#[test]
fn file_systems() {
    use SignatureClass::FileSystem;
    let ext: &[u8] = &[0x53, 0xef];
    check("ext2", FileSystem, "ext2 file system", &[(1080, ext)]);
    check("ext3", FileSystem, "ext3 file system \"home\"", &[(1080, ext), (1116, &[4]), (1144, b"home")]);
    check("ext4", FileSystem, "ext4 file system", &[(1080, ext), (1116, &[0x3c]), (1120, &[0xc2, 2])]);
    check("xfs", FileSystem, "xfs file system \"data\"", &[(0, b"XFSB"), (108, b"data")]);
    check("btrfs", FileSystem, "btrfs file system \"b\"", &[(65600, b"_BHRfS_M"), (65536 + 299, b"b")]);
    check(
        "f2fs",
        FileSystem,
        "f2fs file system",
        &[(1024, &[0x10, 0x20, 0xf5, 0xf2]), (5120, &[0x10, 0x20, 0xf5, 0xf2])],
    );
    check("iso9660", FileSystem, "iso9660 file system \"CD\"", &[(32769, b"CD001"), (32808, b"CD    ")]);
    check("udf", FileSystem, "udf file system", &[(32769, b"BEA01")]);
    check("squashfs", FileSystem, "squashfs file system", &[(0, b"hsqs")]);
    check("erofs", FileSystem, "erofs file system", &[(1024, &[0xe2, 0xe1, 0xf5, 0xe0])]);
    check("reiserfs", FileSystem, "reiserfs file system", &[(65536 + 52, b"ReIsEr2Fs")]);
    check("jfs", FileSystem, "jfs file system", &[(32768, b"JFS1")]);
    check("nilfs2", FileSystem, "nilfs2 file system", &[(1024, &[2, 0, 0, 0, 0, 0, 0x34, 0x34])]);
    check("apfs", FileSystem, "apfs file system", &[(32, b"NXSB")]);
    check("hfsplus", FileSystem, "hfsplus file system", &[(1024, &[b'H', b'+', 0, 4])]);
    let bcachefs: &[u8] =
        &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef];
    check("bcachefs", FileSystem, "bcachefs file system", &[(4096 + 24, bcachefs)]);
}

#[test]
fn boot_sectors_are_told_apart() {
    use SignatureClass::{FileSystem, PartitionTable};
    let boot: (u64, &[u8]) = (510, &[0x55, 0xaa]);
    check("vfat", FileSystem, "vfat file system \"STICK\"", &[boot, (82, b"FAT32   "), (71, b"STICK      ")]);
    check("vfat", FileSystem, "vfat file system", &[boot, (54, b"FAT16   "), (43, b"NO NAME    ")]);
    // An old FAT without a type, and with code where an MBR has its entries.
    let parameters: &[u8] = &[0xeb, 0x3c, 0x90];
    let block: &[u8] = &[0, 2, 4, 1, 0, 2, 0, 2, 0, 0, 0xf8];
    let code: (u64, &[u8]) = (446, &[0x80, 1, 1, 0, 6, 9, 9, 9, 9, 0, 0, 0, 9, 0, 0, 0]);
    check("vfat", FileSystem, "vfat file system", &[boot, (0, parameters), (11, block), code]);
    check("exfat", FileSystem, "exfat file system", &[boot, (3, b"EXFAT   ")]);
    check("ntfs", FileSystem, "ntfs file system", &[boot, (3, b"NTFS    ")]);

    let entry: (u64, &[u8]) = (446, &[0x80, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1, 0]);
    check("mbr", PartitionTable, "mbr partition table", &[boot, entry]);
    check("mbr", PartitionTable, "mbr partition table", &[boot, (440, &[1, 2, 3, 4])]);
    // Neither an empty boot sector nor one with nonsense in its entries.
    assert_eq!(disk(SIZE, &[boot]), None);
    assert_eq!(disk(SIZE, &[boot, entry, (462, &[7])]), None);

    let protective: (u64, &[u8]) = (446, &[0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    for sector in [512, 4096] {
        check(
            "gpt",
            PartitionTable,
            "gpt partition table",
            &[boot, protective, (sector, b"EFI PART"), (SIZE - sector, b"EFI PART")],
        );
    }
    // Only the second copy is left.
    check("gpt", PartitionTable, "gpt partition table", &[(SIZE - 512, b"EFI PART")]);
}

#[test]
fn foreign_members() {
    use SignatureClass::{Encrypted, Member, Swap};
    check("swap", Swap, "swap space \"sw\"", &[(4086, b"SWAPSPACE2"), (1052, b"sw")]);
    check("swap", Swap, "swap space", &[(65526, b"SWAPSPACE2")]);
    check("luks1", Encrypted, "luks1 volume", &[(0, b"LUKS\xba\xbe"), (6, &[0, 1])]);
    check(
        "luks2",
        Encrypted,
        "luks2 volume \"safe\"",
        &[(0, b"LUKS\xba\xbe\0\x02"), (24, b"safe"), (16384, b"SKUL\xba\xbe")],
    );
    check("luks2", Encrypted, "luks2 volume", &[(16384, b"SKUL\xba\xbe\0\x02")]);
    check("lvm2", Member, "lvm2 member", &[(512, b"LABELONE"), (536, b"LVM2 001")]);
    let id: &[u8] = b"55NGoRA5n2ovjnUenX6nPsAfvXuajrE2";
    let lvm = disk(SIZE, &[(512, b"LABELONE"), (532, &[32]), (536, b"LVM2 001"), (544, id)]).unwrap();
    assert_eq!(lvm.signatures[0].uuid.as_deref(), Some("55NGoR-A5n2-ovjn-UenX-6nPs-AfvX-uajrE2"));
    let md: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0];
    check("md 1.1", Member, "md 1.1 member \"host:0\"", &[(0, md), (32, b"host:0")]);
    check("md 1.2", Member, "md 1.2 member", &[(4096, md), (4096 + 144, &[8])]);
    let end = SIZE - 8192;
    check("md 1.0", Member, "md 1.0 member", &[(end, md), (end + 144, &(end / 512).to_le_bytes())]);
    check("md 0.90", Member, "md 0.90 member", &[(SIZE - 65536, &[0xfc, 0x4e, 0x2b, 0xa9, 0, 0, 0, 0, 90])]);
    check("md 0.90", Member, "md 0.90 member", &[(SIZE - 65536, &[0xa9, 0x2b, 0x4e, 0xfc])]);
    // A superblock that records another offset: for example that of the array's first partition.
    assert_eq!(disk(SIZE, &[(4096, md), (4096 + 144, &[16])]), None);
    let bcache: &[u8] =
        &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81];
    check("bcache", Member, "bcache member", &[(4120, bcache)]);
    check("ceph bluestore", Member, "ceph bluestore member", &[(0, b"bluestore block device\n")]);
    check("stratis", Member, "stratis member", &[(516, b"!Stra0tis\x86\xff\x02^\x41rh")]);
    check("vdo", Member, "vdo member", &[(0, b"dmvdo001")]);
    for version in [0x6b, 0x6c, 0x6d] {
        check("drbd", Member, "drbd member", &[(SIZE - 4096 + 60, &[0x83, 0x74, 2, version])]);
        let ids: &[(u64, &[u8])] = &[(SIZE - 4096 + 40, &[8; 8]), (SIZE - 4096 + 48, &[9; 8])];
        let found = disk(SIZE, &[ids, &[(SIZE - 4096 + 60, &[0x83, 0x74, 2, version])]].concat()).unwrap();
        let expected = if version == 0x6d { "0909090909090909" } else { "0808080808080808" };
        assert_eq!(found.signatures[0].uuid.as_deref(), Some(expected), "version {version:x}");
    }
    // A list of names and values: "name" = "tank", then "pool_guid".
    let pair = |name: &[u8], kind: u32, value: &[u8]| {
        let mut rest = (name.len() as u32).to_be_bytes().to_vec();
        rest.extend(name);
        rest.resize(rest.len().next_multiple_of(4), 0);
        rest.extend(kind.to_be_bytes());
        rest.extend(1u32.to_be_bytes());
        rest.extend(value);
        let mut pair = (8 + rest.len() as u32).to_be_bytes().to_vec();
        pair.extend([0; 4]);
        pair.extend(rest);
        pair
    };
    let mut list = vec![1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    list.extend(pair(b"version", 8, &5000u64.to_be_bytes()));
    list.extend(pair(b"name", 9, &[&4u32.to_be_bytes()[..], b"tank"].concat()));
    list.extend(pair(b"pool_guid", 8, &7u64.to_be_bytes()));
    for label in [0, 256 << 10, SIZE - (512 << 10), SIZE - (256 << 10)] {
        check("zfs", Member, "zfs member \"tank\"", &[(label + (16 << 10), &list)]);
    }
}

#[test]
fn braids_own_label_at_either_end_and_only_where_it_belongs() {
    let label = support::fresh(braid_geometry::Spec::new(braid_geometry::Level::Raid0), &[SIZE, SIZE], 0);
    let bytes = label.encode().unwrap();
    let end = SIZE - 4096;
    check("braid", SignatureClass::Braid, "Braid label \"fast\"", &[(0, &bytes), (end, &bytes)]);
    check("braid", SignatureClass::Braid, "Braid label \"fast\"", &[(end, &bytes)]);
    check("braid", SignatureClass::Braid, "Braid label \"fast\"", &[(0, &bytes[..600])]);
    check("braid", SignatureClass::Braid, "Braid label", &[(0, b"BRAIDLB1")]);
    // The disk has grown: the copy is in its middle.
    let grown = disk(SIZE * 2, &[(0, &bytes), (end, &bytes)]).unwrap();
    assert_eq!(grown.signatures[0].ranges.iter().map(|r| r.start).collect::<Vec<_>>(), [0, end]);
    // The last partition's copy at the end of the whole disk is not the disk's.
    assert_eq!(disk(SIZE * 2, &[(SIZE * 2 - 4096, &bytes)]), None);
    // Other signatures are reported beside it.
    let both = disk(SIZE, &[(0, &bytes), (65600, b"_BHRfS_M")]).unwrap();
    assert!(both.is_foreign());
    assert_eq!(both.to_string(), "Braid label \"fast\", btrfs file system");
}

#[test]
fn the_label_of_a_pool_is_braids_own() {
    use braid_format::pool::{PoolLabel, PoolMemberLayout};
    let mut label = support::pool_of_three();
    label.layout = PoolMemberLayout::new(SIZE, 1024).unwrap();
    let own = label.members[usize::from(label.member)].as_mut().unwrap();
    own.size_bytes = SIZE;
    let bytes = PoolLabel::encode(&label).unwrap();
    let end = SIZE - 4096;
    check("braid pool", SignatureClass::Braid, "Braid pool label \"tank\"", &[(0, &bytes), (end, &bytes)]);
    check("braid pool", SignatureClass::Braid, "Braid pool label \"tank\"", &[(end, &bytes)]);
    check("braid pool", SignatureClass::Braid, "Braid pool label \"tank\"", &[(0, &bytes[..600])]);
    check("braid pool", SignatureClass::Braid, "Braid pool label", &[(0, b"BRAIDPL1")]);
    let uuid = disk(SIZE, &[(0, &bytes)]).unwrap().signatures[0].uuid.clone();
    assert_eq!(uuid, Some(label.uuid.to_string()));
    // A device whose addition to the pool did not complete.
    let mut joining = label.clone();
    joining.members[usize::from(label.member)].as_mut().unwrap().state = braid_format::pool::PoolMemberState::Joining;
    let left = "Braid pool label \"tank (left from an addition that did not end)\"";
    check("braid pool", SignatureClass::Braid, left, &[(0, &joining.encode().unwrap())]);
    // The disk has grown: the copy is in its middle, also where the label's last sectors are torn.
    for len in [4096, 512] {
        let grown = disk(SIZE * 2, &[(0, &bytes[..len]), (end, &bytes)]).unwrap();
        assert_eq!(grown.signatures[0].ranges.iter().map(|r| r.start).collect::<Vec<_>>(), [0, end]);
    }
    assert_eq!(disk(SIZE * 2, &[(SIZE * 2 - 4096, &bytes)]), None, "it is the last partition's");
    // A label of an array beside one of a pool: both are reported.
    let array = support::fresh(braid_geometry::Spec::new(braid_geometry::Level::Raid0), &[SIZE, SIZE], 0);
    let both = disk(SIZE, &[(0, &array.encode().unwrap()), (end, &bytes)]).unwrap();
    assert_eq!(both.to_string(), "Braid label \"fast\", Braid pool label \"tank\"");
    assert!(!both.is_foreign());
}

#[test]
fn ranges_are_whole_blocks_within_the_disk() {
    for size in
        [0, 1, 4095, 4096, 8192, 40_000, 65536, 131_072, (1 << 20) - 1, 1 << 20, (1 << 20) + 512, 1 << 40, u64::MAX]
    {
        let list = ranges(size);
        assert!(list.iter().all(|r| r.start % BLOCK_BYTES == 0 && r.bytes % BLOCK_BYTES == 0 && r.bytes > 0), "{size}");
        assert!(list.iter().all(|r| r.end().is_some_and(|end| end <= size)), "{size}: {list:?}");
        assert!(list.windows(2).all(|w| w[0].start + w[0].bytes < w[1].start), "{size}: {list:?}");
        assert!(list.iter().map(|r| r.bytes).sum::<u64>() < 256 << 10, "{size}: too much to read");
        if let Some(copy) = copy_offset(size) {
            assert!(list.iter().any(|r| (r.start..r.start + r.bytes).contains(&copy)), "{size}");
        }
    }
}

#[test]
fn a_read_error_is_returned() {
    assert_eq!(identify(SIZE, |_, _| Err("broken")), Err("broken"));
    assert_eq!(identify_pieces(SIZE, &[]), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Scattered magic numbers and noise: no panic, and no signature beyond the disk.
    #[test]
    fn any_disk_is_examined(
        len in 0usize..300_000,
        marks in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..12),
    ) {
        let magics: &[&[u8]] = &[
            b"BRAIDLB1", b"BRAIDPL1", b"EFI PART", b"\x55\xaa", b"LUKS\xba\xbe", b"LABELONE", b"LVM2 001", b"\xfc\x4e\x2b\xa9", b"XFSB",
            b"\x53\xef", b"_BHRfS_M", b"SWAPSPACE2", b"FAT32   ", b"\x01\x01\0\0\0\0\0\0\0\0\0\x01pool_guid", b"\xff\xff\xff\xff",
        ];
        let mut data = vec![0u8; len];
        for (magic, at) in marks {
            let magic = magics[magic.index(magics.len())];
            if len > magic.len() {
                let at = at.index(len - magic.len());
                // Mostly at sectors, where signatures are looked for.
                let at = if at % 3 == 0 { at } else { at / 512 * 512 };
                data[at..at + magic.len()].copy_from_slice(magic);
            }
        }
        fuzz::fuzz_label(&data);
    }

    #[test]
    fn mutated_labels_pass_the_fuzz_target(
        label in support::any_label(),
        changes in prop::collection::vec((0usize..4096, any::<u8>()), 0..8),
    ) {
        let mut bytes = label.encode().unwrap().to_vec();
        for (at, value) in changes {
            bytes[at] = value;
        }
        fuzz::fuzz_label(&bytes);
        bytes.extend(bytes.clone());
        fuzz::fuzz_label(&bytes);
    }
}
