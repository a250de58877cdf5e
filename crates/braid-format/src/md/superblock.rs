//! The superblock of md's version 1 (include/uapi/linux/raid/md_p.h, `struct mdp_superblock_1`), decoded and validated.
//!
//! All numbers are little-endian; sizes and offsets are in sectors of 512 bytes. Version 1.1 is at the start of the
//! disk, 1.2 at 4 KiB, 1.0 near the end.

use thiserror::Error;
use uuid::Uuid;

/// Maximum size of a superblock, its roles included, in bytes.
pub const SUPERBLOCK_BYTES: usize = 4096;

const MAGIC: u32 = 0xa92b_4efc;
const SECTOR_BYTES: u64 = 512;
/// Where the roles begin: two bytes for each device that the array has ever had.
const ROLES_AT: usize = 256;
/// `MaxSector` of md: the resync is complete.
const MAX_SECTOR: u64 = u64::MAX;

/// Features (`MD_FEATURE_*`).
pub(super) mod feature {
    pub const RECOVERY_OFFSET: u32 = 2;
    pub const RESHAPE: u32 = 4;
    pub const BAD_BLOCKS: u32 = 8;
    pub const REPLACEMENT: u32 = 16;
    pub const RESHAPE_BACKWARDS: u32 = 32;
    pub const NEW_OFFSET: u32 = 64;
    pub const RECOVERY_BITMAP: u32 = 128;
    pub const CLUSTERED: u32 = 256;
    pub const JOURNAL: u32 = 512;
    pub const PPL: u32 = 1024;
    pub const MULTIPLE_PPLS: u32 = 2048;
    pub const RAID0_LAYOUT: u32 = 4096;
    pub const KNOWN: u32 = 8191;
}

/// Why bytes are not a usable superblock.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum MdError {
    /// There is no superblock.
    #[error("there is no superblock of md's version 1")]
    Missing,
    /// The superblock has another major version.
    #[error("its superblock has version {major}, and only version 1 (1.0, 1.1, 1.2) can be read")]
    Version {
        /// The version.
        major: u32,
    },
    /// The superblock records another offset: for example that at the end of a partition, read from the whole disk.
    #[error(
        "the superblock at byte {found} says that it belongs to byte {said}: it is of another device, a partition of this one perhaps"
    )]
    Misplaced {
        /// The offset at which it was read.
        found: u64,
        /// The offset that it records.
        said: u64,
    },
    /// The checksum is wrong.
    #[error(
        "the checksum of its superblock is {found:#010x}, and that of its content {computed:#010x}: it is torn or damaged"
    )]
    Checksum {
        /// The stored checksum.
        found: u32,
        /// The computed checksum.
        computed: u32,
    },
    /// A field is invalid.
    #[error("its superblock says {what}, which cannot be")]
    Field {
        /// The field and its value.
        what: String,
    },
    /// The data extend beyond the end of the disk.
    #[error(
        "its superblock says that it has {said} bytes of data from byte {start} on, and the disk has {device_bytes} bytes: it was cut"
    )]
    BeyondDisk {
        /// Where the data begin.
        start: u64,
        /// How many bytes of data the superblock records.
        said: u64,
        /// The size of the disk.
        device_bytes: u64,
    },
}

/// The role of a device in its array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The member with this number.
    Member(u16),
    /// A spare.
    Spare,
    /// A failed device.
    Faulty,
    /// The journal device.
    Journal,
}

/// The location of a device's log of bad blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadBlockLog {
    /// Offset on the disk, in bytes.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
    shift: u8,
}

/// An unreadable range of a disk, in bytes from the start of the disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BadRange {
    /// The first byte.
    pub start: u64,
    /// The byte after it.
    pub end: u64,
}

impl BadBlockLog {
    /// Returns the ranges in the log: entries of 64 bits, sector and length, up to the first one that is all ones.
    #[must_use]
    pub fn read(&self, bytes: &[u8]) -> Vec<BadRange> {
        let mut ranges = Vec::new();
        for entry in bytes.chunks_exact(8).map(|entry| le64(entry, 0)).take_while(|entry| *entry != u64::MAX) {
            let unit = SECTOR_BYTES << self.shift;
            let (sector, count) = (entry >> 10, entry & 0x3ff);
            let start = sector.saturating_mul(unit);
            if count > 0 {
                ranges.push(BadRange { start, end: start.saturating_add(count * unit) });
            }
        }
        ranges.sort_unstable();
        ranges
    }
}

/// The superblock of one device, validated by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The minor version: 0, 1 or 2, which implies the location.
    pub minor: u8,
    /// Feature bits.
    pub features: u32,
    /// The array's identity.
    pub array: Uuid,
    /// The array's name; mdadm writes `host:name`.
    pub name: String,
    /// When the array was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// The level; -1: linear.
    pub level: i32,
    /// The layout, whose meaning depends on the level.
    pub layout: u32,
    /// Size used of each member at levels with redundancy, in bytes.
    pub used_bytes: u64,
    /// The chunk in bytes; 0: none.
    pub chunk_bytes: u64,
    /// How many members there are.
    pub members: u32,
    /// Where the data begin on this device, in bytes.
    pub data_start: u64,
    /// Size of the data on this device, in bytes.
    pub data_bytes: u64,
    /// For a member that is being rebuilt: how much of its data is done, in bytes.
    pub recovered_bytes: Option<u64>,
    /// The device's number among all that the array has ever had.
    pub device_number: u32,
    /// The device's identity.
    pub device: Uuid,
    /// Read only when no other member can serve the read.
    pub write_mostly: bool,
    /// The log of bad blocks.
    pub bad_blocks: Option<BadBlockLog>,
    /// When this was written, in seconds since 1970.
    pub updated_unix_s: u64,
    /// Increases with each change of the array: the device with the highest count is the newest.
    pub events: u64,
    /// For an array that was not stopped cleanly: how much of each member is resynced, in bytes. `None`: stopped
    /// cleanly.
    pub resync_bytes: Option<u64>,
    /// The roles of all devices that the array has ever had.
    pub roles: Vec<Role>,
}

/// Returns where a disk of this size may have a superblock: minor version and offset.
#[must_use]
pub fn superblock_offsets(device_bytes: u64) -> Vec<(u8, u64)> {
    // Eight KiB before the end, rounded down to four.
    let last = (device_bytes / SECTOR_BYTES).checked_sub(16).map(|sector| (0, sector / 8 * 8 * SECTOR_BYTES));
    [(2, 4096), (1, 0)].into_iter().chain(last).filter(|(_, at)| at + ROLES_AT as u64 <= device_bytes).collect()
}

impl Superblock {
    /// Decodes the superblock at byte `at` of a disk. `bytes` begin there; at most [`SUPERBLOCK_BYTES`] of them are
    /// used.
    ///
    /// # Errors
    /// When the superblock is missing, damaged, misplaced or invalid.
    pub fn decode(bytes: &[u8], minor: u8, at: u64, device_bytes: u64) -> Result<Superblock, MdError> {
        if bytes.len() < ROLES_AT || le32(bytes, 0) != MAGIC {
            return Err(MdError::Missing);
        }
        let field = |what: String| MdError::Field { what };
        let bytes = &bytes[..bytes.len().min(SUPERBLOCK_BYTES)];
        if le32(bytes, 4) != 1 {
            return Err(MdError::Version { major: le32(bytes, 4) });
        }
        let devices = le32(bytes, 220) as usize;
        let end = devices.checked_mul(2).and_then(|len| len.checked_add(ROLES_AT)).filter(|end| *end <= bytes.len());
        let end = end.ok_or_else(|| field(format!("{devices} devices")))?;
        let (found, computed) = (le32(bytes, 216), checksum(&bytes[..end]));
        if found != computed {
            return Err(MdError::Checksum { found, computed });
        }
        let sectors = |at: usize, what: &str| {
            let sectors = le64(bytes, at);
            sectors.checked_mul(SECTOR_BYTES).ok_or_else(|| field(format!("{what} of {sectors} sectors")))
        };
        let said = sectors(144, "a superblock at the end")?;
        if said != at {
            return Err(MdError::Misplaced { found: at, said });
        }
        let features = le32(bytes, 8);
        let (data_start, data_bytes) = (sectors(128, "a data offset")?, sectors(136, "data")?);
        let recovered = sectors(152, "a recovery offset");
        let recovered_bytes = match features & feature::RECOVERY_OFFSET {
            0 => None,
            _ => Some(recovered?),
        };
        let roles = bytes[ROLES_AT..end].chunks_exact(2).map(|role| match u16::from_le_bytes([role[0], role[1]]) {
            0xffff => Role::Spare,
            0xfffe => Role::Faulty,
            0xfffd => Role::Journal,
            member => Role::Member(member),
        });
        let resync = le64(bytes, 208);
        let superblock = Superblock {
            minor,
            features,
            array: uuid(bytes, 16),
            name: text(&bytes[32..64]),
            // The upper bytes are microseconds.
            created_unix_s: le64(bytes, 64) & 0xff_ffff_ffff,
            level: le32(bytes, 72).cast_signed(),
            layout: le32(bytes, 76),
            used_bytes: sectors(80, "a size")?,
            chunk_bytes: u64::from(le32(bytes, 88)) * SECTOR_BYTES,
            members: le32(bytes, 92),
            data_start,
            data_bytes,
            recovered_bytes,
            device_number: le32(bytes, 160),
            device: uuid(bytes, 168),
            write_mostly: bytes[184] & 1 != 0,
            bad_blocks: bad_block_log(bytes, features, at, device_bytes)?,
            updated_unix_s: le64(bytes, 192) & 0xff_ffff_ffff,
            events: le64(bytes, 200),
            resync_bytes: (resync != MAX_SECTOR).then(|| resync.saturating_mul(SECTOR_BYTES)),
            roles: roles.collect(),
        };
        let data_end = data_start.checked_add(data_bytes);
        if superblock.role() != Role::Journal && data_end.is_none_or(|end| end > device_bytes) {
            return Err(MdError::BeyondDisk { start: data_start, said: data_bytes, device_bytes });
        }
        Ok(superblock)
    }

    /// Returns the role of this device, as its own superblock records it.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role_of(self.device_number)
    }

    /// Returns the role of the device with this number, as this superblock records it; an unknown device is a spare.
    #[must_use]
    pub fn role_of(&self, device: u32) -> Role {
        usize::try_from(device).ok().and_then(|device| self.roles.get(device)).copied().unwrap_or(Role::Spare)
    }

    pub(super) fn has(&self, feature: u32) -> bool {
        self.features & feature != 0
    }
}

fn bad_block_log(bytes: &[u8], features: u32, at: u64, device_bytes: u64) -> Result<Option<BadBlockLog>, MdError> {
    let (shift, sectors) = (bytes[185], u64::from(u16::from_le_bytes([bytes[186], bytes[187]])));
    let offset = i64::from(le32(bytes, 188).cast_signed()) * 512;
    if features & feature::BAD_BLOCKS == 0 || sectors == 0 {
        return Ok(None);
    }
    // At most 512 entries. The limit on `shift` keeps a length of ten bits times the unit from overflowing.
    let log = BadBlockLog { start: at.wrapping_add_signed(offset), bytes: (sectors * SECTOR_BYTES).min(4096), shift };
    let inside = at.checked_add_signed(offset).and_then(|start| start.checked_add(log.bytes));
    match shift <= 32 && inside.is_some_and(|end| end <= device_bytes) {
        true => Ok(Some(log)),
        false => {
            Err(MdError::Field { what: format!("a log of bad blocks {offset} bytes from it, in units of 2^{shift}") })
        }
    }
}

/// Returns the sum of all 32-bit words, folded, with the stored sum as zero (`calc_sb_1_csum` in drivers/md/md.c).
fn checksum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(4).enumerate().map(|(word, bytes)| match (word, bytes) {
        (54, _) => 0,
        (_, &[a, b, c, d]) => u64::from(u32::from_le_bytes([a, b, c, d])),
        (_, &[a, b, ..]) => u64::from(u16::from_le_bytes([a, b])),
        _ => 0,
    });
    let sum: u64 = words.sum();
    ((sum & 0xffff_ffff) + (sum >> 32)) as u32
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |n, &byte| n << 8 | u32::from(byte))
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from(le32(bytes, at)) | u64::from(le32(bytes, at + 4)) << 32
}

fn uuid(bytes: &[u8], at: usize) -> Uuid {
    let mut id = [0; 16];
    id.copy_from_slice(&bytes[at..at + 16]);
    Uuid::from_bytes(id)
}

/// Returns the text up to the first zero, without control characters.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).chars().filter(|c| !c.is_control()).collect()
}
