//! File systems and others that are identified by a magic number at a fixed offset.

use super::{SignatureClass, Sink, View, signature};

struct Magic {
    kind: &'static str,
    class: SignatureClass,
    offset: u64,
    bytes: &'static [u8],
    /// Offset and length of its name.
    label: Option<(u64, usize)>,
    /// Offset of its UUID.
    uuid: Option<u64>,
}

const fn fs(kind: &'static str, offset: u64, bytes: &'static [u8]) -> Magic {
    Magic { kind, class: SignatureClass::FileSystem, offset, bytes, label: None, uuid: None }
}

const BTRFS: u64 = 64 << 10;
const F2FS: u64 = 1024;
const BCACHE: u64 = 4096;

const MAGICS: &[Magic] = &[
    // XFS Filesystem Structure, "Superblocks": sb_magicnum at 0, sb_uuid at 32, sb_fname at 108.
    Magic { label: Some((108, 12)), uuid: Some(32), ..fs("xfs", 0, b"XFSB") },
    // btrfs on-disk format: superblock at 64 KiB; fsid at 0x20, magic at 0x40, label at 0x12b.
    Magic { label: Some((BTRFS + 0x12b, 256)), uuid: Some(BTRFS + 0x20), ..fs("btrfs", BTRFS + 0x40, b"_BHRfS_M") },
    // include/linux/f2fs_fs.h: superblock at 1024 (second at 4096 + 1024), magic 0xF2F52010, uuid at 108.
    Magic { uuid: Some(F2FS + 108), ..fs("f2fs", F2FS, &[0x10, 0x20, 0xf5, 0xf2]) },
    fs("f2fs", 4096 + F2FS, &[0x10, 0x20, 0xf5, 0xf2]),
    // ECMA-119, volume descriptors from sector 16 of 2048 bytes: "CD001" at 1, volume identifier at 40.
    Magic { label: Some((32768 + 40, 32)), ..fs("iso9660", 32769, b"CD001") },
    // ECMA-167, volume structure descriptors from 32 KiB on.
    fs("udf", 32769, b"BEA01"),
    // Documentation/filesystems/squashfs.rst and squashfs_fs.h: magic 0x73717368, little-endian.
    fs("squashfs", 0, b"hsqs"),
    // fs/erofs/erofs_fs.h: superblock at 1024, magic 0xE0F5E1E2, uuid at 48.
    Magic { uuid: Some(1024 + 48), ..fs("erofs", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]) },
    // fs/reiserfs/reiserfs.h: superblock at 64 KiB, magic at 52; versions 3.5, 3.6 and with moved journal.
    fs("reiserfs", BTRFS + 52, b"ReIsErFs"),
    fs("reiserfs", BTRFS + 52, b"ReIsEr2Fs"),
    fs("reiserfs", BTRFS + 52, b"ReIsEr3Fs"),
    // fs/jfs/jfs_superblock.h: superblock at 32 KiB.
    fs("jfs", 32768, b"JFS1"),
    // include/uapi/linux/nilfs2_ondisk.h: superblock at 1024, s_magic 0x3434 at 6, preceded by revision level 2.
    fs("nilfs2", 1024, &[2, 0, 0, 0, 0, 0, 0x34, 0x34]),
    // Apple File System Reference: nx_magic "NXSB" after an object header of 32 bytes.
    fs("apfs", 32, b"NXSB"),
    // Apple Technical Note 1150: volume header at 1024, signature "H+" version 4, or "HX" version 5.
    fs("hfsplus", 1024, &[b'H', b'+', 0, 4]),
    fs("hfsplus", 1024, &[b'H', b'X', 0, 5]),
    // bcache and bcachefs: superblock at 4096, magic (a UUID) at 24. The UUID of a bcache device is at 40; the UUID of
    // a bcachefs file system for users is at 56, and its label at 72.
    Magic {
        class: SignatureClass::Member,
        uuid: Some(BCACHE + 40),
        ..fs(
            "bcache",
            BCACHE + 24,
            &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81],
        )
    },
    Magic {
        uuid: Some(BCACHE + 56),
        label: Some((BCACHE + 72, 32)),
        ..fs(
            "bcachefs",
            BCACHE + 24,
            &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef],
        )
    },
    // Ceph, BlueStore.cc and bluestore_types: the label begins with this line, then the OSD's UUID as text.
    Magic { class: SignatureClass::Member, ..fs("ceph bluestore", 0, b"bluestore block device\n") },
    // Stratis Software Design, "Static header": two copies, in sectors 1 and 9, magic at 4.
    Magic { class: SignatureClass::Member, ..fs("stratis", 512 + 4, b"!Stra0tis\x86\xff\x02^\x41rh") },
    Magic { class: SignatureClass::Member, ..fs("stratis", 9 * 512 + 4, b"!Stra0tis\x86\xff\x02^\x41rh") },
    // drivers/md/dm-vdo/encodings.c: geometry block.
    Magic { class: SignatureClass::Member, ..fs("vdo", 0, b"dmvdo001") },
];

pub(super) fn simple(view: &View<'_>, found: Sink<'_>) {
    let mut last: Option<super::Signature> = None;
    for magic in MAGICS.iter().filter(|m| view.is(m.offset, m.bytes)) {
        let mut this = signature(magic.kind, magic.class, magic.offset, magic.bytes.len());
        this.label = magic.label.and_then(|(offset, len)| view.text(offset, len));
        this.uuid = magic.uuid.and_then(|offset| view.uuid(offset));
        // A second superblock of the same kind adds its bytes to the first signature.
        match &mut last {
            Some(first) if first.kind == this.kind => first.ranges.append(&mut this.ranges),
            _ => last.replace(this).into_iter().for_each(&mut *found),
        }
    }
    last.into_iter().for_each(found);
}

/// ext2, ext3, ext4 (Documentation/filesystems/ext4/super.rst): superblock at 1024; s_magic at 0x38, feature words at
/// 0x5c (compatible), 0x60 (incompatible) and 0x64 (read-only), s_uuid at 0x68, s_volume_name at 0x78.
pub(super) fn ext(view: &View<'_>, found: Sink<'_>) {
    const SUPER: u64 = 1024;
    if view.le16(SUPER + 0x38) != 0xef53 {
        return;
    }
    const HAS_JOURNAL: u32 = 0x4;
    // Features that ext3 knows: filetype, recover, journal device and meta_bg; sparse_super, large_file and btree_dir.
    // Any other makes it ext4.
    const INCOMPATIBLE_EXT3: u32 = 0x2 | 0x4 | 0x8 | 0x10;
    const READ_ONLY_EXT3: u32 = 0x1 | 0x2 | 0x4;
    let (compatible, incompatible) = (view.le32(SUPER + 0x5c), view.le32(SUPER + 0x60));
    let newer = incompatible & !INCOMPATIBLE_EXT3 != 0 || view.le32(SUPER + 0x64) & !READ_ONLY_EXT3 != 0;
    let kind = match (newer, compatible & HAS_JOURNAL != 0) {
        (true, _) => "ext4",
        (false, true) => "ext3",
        (false, false) => "ext2",
    };
    let mut this = signature(kind, SignatureClass::FileSystem, SUPER + 0x38, 2);
    this.label = view.text(SUPER + 0x78, 16);
    this.uuid = view.uuid(SUPER + 0x68);
    found(this);
}

/// Swap (include/linux/swap.h, union swap_header): ten bytes of magic at the end of the first page, whatever the
/// host's page size; uuid at 1024 + 12, name at 1024 + 28. Suspended systems write another magic in its place.
pub(super) fn swap(view: &View<'_>, found: Sink<'_>) {
    for page in [4096u64, 8192, 16384, 32768, 65536] {
        for magic in [b"SWAPSPACE2".as_slice(), b"SWAP-SPACE", b"S1SUSPEND", b"S2SUSPEND", b"ULSUSPEND"] {
            if view.is(page - 10, magic) {
                let mut this = signature("swap", SignatureClass::Swap, page - 10, magic.len());
                this.label = view.text(1024 + 28, 16);
                this.uuid = view.uuid(1024 + 12);
                found(this);
                return;
            }
        }
    }
}
