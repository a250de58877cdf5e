//! Members of a RAID, a volume group, a pool or an encryption layer, and Braid's own labels.

use super::{SignatureClass, Sink, View, signature};
use crate::examine::recorded_copy_offset;
use crate::pool::{POOL_MAGIC, PoolHeader, PoolLabel};
use crate::{BLOCK_BYTES, ByteRange, Header, LABEL_BYTES, Label, MAGIC, copy_offset};

/// The fields of one of Braid's labels that its signature needs.
struct BraidLabel {
    name: String,
    uuid: uuid::Uuid,
    /// The offsets where the label and its copy belong.
    offsets: [u64; 2],
}

/// Braid's labels where they belong, valid or damaged. A label that belongs at other offsets is not this disk's: for
/// example the copy at the end of the last partition.
pub(super) fn braid(view: &View<'_>, found: Sink<'_>) {
    let of_array = |block: &[u8]| {
        let header = Label::decode(block).map(|label| label.header()).ok().or_else(|| Header::decode(block))?;
        let offsets = [header.layout.label_start, header.layout.copy_start];
        Some(BraidLabel { name: header.name.to_string(), uuid: header.uuid, offsets })
    };
    let of_pool = |block: &[u8]| {
        let label = PoolLabel::decode(block).ok();
        let joining = label.as_ref().is_some_and(PoolLabel::is_joining);
        let header = label.map(|label| label.header()).or_else(|| PoolHeader::decode(block))?;
        let offsets = [header.layout.label_start, header.layout.copy_start];
        // This label alone does not show whether the addition has completed: only the labels of the pool's other
        // members do.
        let note = if joining { " (left from an addition that did not end)" } else { "" };
        Some(BraidLabel { name: format!("{}{note}", header.name), uuid: header.uuid, offsets })
    };
    labels(view, "braid", &MAGIC, &of_array, found);
    labels(view, "braid pool", &POOL_MAGIC, &of_pool, found);
}

fn labels(
    view: &View<'_>,
    kind: &'static str,
    magic: &[u8; 8],
    known: &dyn Fn(&[u8]) -> Option<BraidLabel>,
    found: Sink<'_>,
) {
    let block = |at: u64| view.slice(at, LABEL_BYTES);
    let recorded = block(0).and_then(|start| recorded_copy_offset(start, view.device_bytes));
    let mut offsets = vec![0];
    offsets.extend([recorded, copy_offset(view.device_bytes)].into_iter().flatten());
    offsets.sort_unstable();
    offsets.dedup();
    let known = |at: u64| known(block(at)?);
    let elsewhere = |at: u64| known(at).is_some_and(|label| !label.offsets.contains(&at));
    offsets.retain(|at| view.is(*at, magic) && !elsewhere(*at));
    let Some(first) = offsets.first() else { return };
    let mut this = signature(kind, SignatureClass::Braid, *first, magic.len());
    this.ranges = offsets.iter().map(|at| ByteRange::new(*at, magic.len() as u64)).collect();
    if let Some(label) = offsets.iter().find_map(|at| known(*at)) {
        this.label = Some(label.name);
        this.uuid = Some(label.uuid.to_string());
    }
    found(this);
}

/// include/uapi/linux/raid/md_p.h: the superblock's magic, little-endian in version 1, the host's order in 0.90.
const MD_MAGIC: u32 = 0xa92b_4efc;

/// Where md's version 0.90 has its superblock: in the last whole 64 KiB but one (MD_NEW_SIZE_SECTORS).
pub(super) fn md_090_offset(device_bytes: u64) -> Option<u64> {
    const RESERVED: u64 = 64 << 10;
    (device_bytes / RESERVED * RESERVED).checked_sub(RESERVED)
}

/// Where md's version 1.0 has its superblock: 8 KiB before the end, rounded down to 4 KiB.
fn md_10_offset(device_bytes: u64) -> Option<u64> {
    (device_bytes / 512).checked_sub(16).map(|sector| sector / 8 * 8 * 512)
}

/// md: version 0.90 near the end; 1.0 at the end, 1.1 at 0, 1.2 at 4096. In version 1 set_uuid is at 16, set_name at
/// 32, and super_offset (in sectors) at 144 says where the superblock itself is.
pub(super) fn md(view: &View<'_>, found: Sink<'_>) {
    let version_1 = [("md 1.1", Some(0)), ("md 1.2", Some(4096)), ("md 1.0", md_10_offset(view.device_bytes))];
    for (kind, offset) in version_1 {
        let Some(offset) = offset else { continue };
        let sound = view.le32(offset) == MD_MAGIC
            && view.le32(offset + 4) == 1
            && view.le64(offset + 144).checked_mul(512) == Some(offset);
        if sound {
            let mut this = signature(kind, SignatureClass::Member, offset, 4);
            this.uuid = view.uuid(offset + 16);
            this.label = view.text(offset + 32, 32);
            found(this);
        }
    }
    let Some(offset) = md_090_offset(view.device_bytes) else { return };
    let magic = |read: u32| read == MD_MAGIC || read.swap_bytes() == MD_MAGIC;
    // major_version, at 4, is 0 in both byte orders. minor_version, at 8, is not examined.
    if magic(view.le32(offset)) && view.le32(offset + 4) == 0 {
        found(signature("md 0.90", SignatureClass::Member, offset, 4));
    }
}

/// LVM2 (lib/format_text/layout.h, lib/label/label.h): a label in one of the first four sectors, "LABELONE", with
/// the type "LVM2 001" at 24; the PV header follows at the offset given at 20 and begins with 32 letters of id.
pub(super) fn lvm(view: &View<'_>, found: Sink<'_>) {
    for offset in (0..4u64).map(|sector| sector * 512) {
        if view.is(offset, b"LABELONE") && view.is(offset + 24, b"LVM2 001") {
            let mut this = signature("lvm2", SignatureClass::Member, offset, 8);
            let header = u64::from(view.le32(offset + 20)).min(512);
            this.uuid = view.text(offset + header, 32).map(|id| lvm_id(&id));
            found(this);
            return;
        }
    }
}

/// LVM writes its ids in groups of 6, 4, 4, 4, 4, 4 and 6 letters.
fn lvm_id(letters: &str) -> String {
    let breaks = [6, 10, 14, 18, 22, 26];
    let dash = |i: usize| if breaks.contains(&i) { "-" } else { "" };
    letters.chars().enumerate().map(|(i, c)| format!("{}{c}", dash(i))).collect()
}

/// LUKS On-Disk Format 1.2.3 and LUKS2 On-Disk Format 1.1: magic at 0 and version (big-endian) at 6; uuid as text at
/// 168, in version 2 a label at 24. Version 2 has a second header, with another magic, at one of these offsets.
pub(super) fn luks(view: &View<'_>, found: Sink<'_>) {
    let primary = view.is(0, b"LUKS\xba\xbe");
    let seconds: Vec<u64> =
        [16u64, 32, 64].map(|kib| kib << 10).into_iter().filter(|at| view.is(*at, b"SKUL\xba\xbe")).collect();
    if !primary && seconds.is_empty() {
        return;
    }
    let head = if primary { 0 } else { seconds[0] };
    let first = view.get::<2>(head + 6).is_some_and(|v| *v == [0, 1]);
    let mut this = signature(if first { "luks1" } else { "luks2" }, SignatureClass::Encrypted, head, 6);
    this.ranges = primary.then_some(0).into_iter().chain(seconds).map(|at| ByteRange::new(at, 6)).collect();
    this.uuid = view.text(head + 168, 40);
    this.label = if first { None } else { view.text(head + 24, 48) };
    found(this);
}

/// Returns the offsets of the name-value lists of a device's ZFS labels (ZFS On-Disk Specification, chapter 1): four
/// labels of 256 KiB, two at each end of the device, whose size is rounded down to whole labels. Each has its list at
/// 16 KiB.
pub(super) fn zfs_offsets(device_bytes: u64) -> impl Iterator<Item = u64> {
    const LABEL: u64 = 256 << 10;
    let whole = device_bytes / LABEL * LABEL;
    let starts = [Some(0), Some(LABEL), whole.checked_sub(2 * LABEL), whole.checked_sub(LABEL)];
    let fits = whole >= 4 * LABEL;
    starts.into_iter().flatten().filter(move |_| fits).map(|start| start + (16 << 10))
}

/// ZFS: a list begins with its encoding (XDR, 1) and a byte order (either), then, big-endian, version 0 and the flag
/// for unique names (1). Its first 4 KiB must contain the name `pool_guid`.
pub(super) fn zfs(view: &View<'_>, found: Sink<'_>) {
    let is_list = |at: &u64| {
        let head = view.get::<12>(*at);
        let sound =
            head.is_some_and(|h| h[0] == 1 && h[1] <= 1 && h[2..4] == [0, 0] && h[4..] == [0, 0, 0, 0, 0, 0, 0, 1]);
        let names = view.slice(*at, BLOCK_BYTES as usize).unwrap_or_default();
        sound && names.windows(9).any(|w| w == b"pool_guid")
    };
    let lists: Vec<u64> = zfs_offsets(view.device_bytes).filter(is_list).collect();
    let Some(first) = lists.first() else { return };
    let mut this = signature("zfs", SignatureClass::Member, *first, 12);
    this.ranges = lists.iter().map(|at| ByteRange::new(*at, 12)).collect();
    this.label = zfs_name(view, *first);
    found(this);
}

/// The value of "name": pairs of (encoded size, decoded size, length of name, name, type, count, value).
fn zfs_name(view: &View<'_>, list: u64) -> Option<String> {
    const STRING: u32 = 9;
    let mut at = list + 12;
    while at < list + BLOCK_BYTES {
        let (size, name_len) = (view.be32(at), view.be32(at + 8));
        if size < 16 || name_len > 64 {
            return None;
        }
        let value = at + 12 + u64::from(name_len.next_multiple_of(4));
        if view.slice(at + 12, name_len as usize) == Some(b"name") && view.be32(value) == STRING {
            return view.text(value + 12, view.be32(value + 8).min(256) as usize);
        }
        at += u64::from(size);
    }
    None
}

/// DRBD with internal metadata (drbd_meta_data.h): a block of 4 KiB at the end, magic (big-endian) at 60 in versions 8
/// and 9: 0x83740267 plus 4, 5 (version 8, not closed) or 6 (version 9). device_uuid is at 40 in version 8, at 48 in 9.
pub(super) fn drbd(view: &View<'_>, found: Sink<'_>) {
    let Some(offset) = copy_offset(view.device_bytes) else { return };
    let magic = view.be32(offset + 60);
    if matches!(magic, 0x8374_026b..=0x8374_026d) {
        let uuid_at = if magic == 0x8374_026d { 48 } else { 40 };
        let mut this = signature("drbd", SignatureClass::Member, offset + 60, 4);
        this.uuid = view.get::<8>(offset + uuid_at).map(|id| format!("{:016x}", u64::from_be_bytes(*id)));
        found(this);
    }
}
