//! The layout of a member of a pool. Every offset is a field of the label; the defaults are chosen here.
//!
//! ```text
//! 0       4 KiB         12 KiB                                       multiple of 256 KiB    last whole block
//! | label | checkpoints | ring | owners | table | addresses | free | data: extents | free | copy of the label |
//! ```

use super::{
    ADDRESS_SECTOR_BYTES, CHECKPOINT_BYTES, EXTENT_BYTES, OWNER_BYTES, RECORD_BYTES, RING_BLOCKS_MAX, RING_BLOCKS_MIN,
};
use crate::layout::check_parts;
use crate::{BLOCK_BYTES, ByteRange, copy_offset};

/// Maximum size of a member, in bytes (512 TiB): record numbers have 32 bits.
pub const MEMBER_BYTES_MAX: u64 = 1 << 49;
/// Minimum number of owner slots.
pub const OWNER_SLOTS_MIN: u32 = 1 << 10;
/// Maximum number of owner slots.
pub const OWNER_SLOTS_MAX: u32 = 1 << 20;
/// A ring is a multiple of the largest batch.
const RING_STEP_BYTES: u64 = super::BATCH_BYTES_MAX as u64;
/// A ring takes one in this many bytes of its member.
const RING_SHARE: u64 = 512;
/// Number of records in a block of the table.
const RECORDS_PER_BLOCK: u32 = BLOCK_BYTES as u32 / RECORD_BYTES as u32;

/// The layout of one member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PoolMemberLayout {
    /// The member's size when the layout was chosen, in bytes.
    pub device_bytes: u64,
    /// First byte of the label.
    pub label_start: u64,
    /// First byte of the label's copy.
    pub copy_start: u64,
    /// The two checkpoint slots.
    pub checkpoints: ByteRange,
    /// The log ring.
    pub ring: ByteRange,
    /// The owner table.
    pub owners: ByteRange,
    /// The table of records: first one for each extent, then `zero_slots` ones for ranges that read as zeros.
    pub table: ByteRange,
    /// The address sectors, one for each extent.
    pub addresses: ByteRange,
    /// The extents.
    pub data: ByteRange,
    /// Number of extents.
    pub extents: u32,
    /// Number of records without an extent, for ranges that read as zeros.
    pub zero_slots: u32,
    /// Number of owner slots.
    pub owner_slots: u32,
}

/// Why a device cannot be a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PoolLayoutError {
    /// No room for a single extent.
    #[error("the device has {device_bytes} bytes; the smallest that this pool can use has {needed_bytes}")]
    TooSmall {
        /// Its size.
        device_bytes: u64,
        /// The smallest usable size.
        needed_bytes: u64,
    },
    /// More extents than can be numbered.
    #[error("the device has {device_bytes} bytes; a pool uses at most {limit_bytes} of each")]
    TooLarge {
        /// Its size.
        device_bytes: u64,
        /// The largest usable size.
        limit_bytes: u64,
    },
    /// Too few or too many owner slots.
    #[error("a pool has {OWNER_SLOTS_MIN} to {OWNER_SLOTS_MAX} slots for volumes and snapshots, not {owner_slots}")]
    OwnerSlots {
        /// The requested number.
        owner_slots: u32,
    },
}

/// Returns the number of owner slots of a pool whose smallest member has this size: one for each MiB, within limits.
pub fn owner_slots_for(smallest_bytes: u64) -> u32 {
    (smallest_bytes >> 20).clamp(u64::from(OWNER_SLOTS_MIN), u64::from(OWNER_SLOTS_MAX)) as u32
}

/// Returns the size of the ring on a device of this size, in bytes.
fn ring_bytes_for(device_bytes: u64) -> u64 {
    let wanted = device_bytes / RING_SHARE / RING_STEP_BYTES * RING_STEP_BYTES;
    wanted.clamp(ring_bytes(RING_BLOCKS_MIN), ring_bytes(RING_BLOCKS_MAX))
}

const fn ring_bytes(blocks: u32) -> u64 {
    blocks as u64 * BLOCK_BYTES
}

/// Returns the number of records for ranges of zeros on a member with this many extents: at least 128 and one for each
/// 64 extents, and as many more as fill the table's last block.
fn zero_slots_for(extents: u32) -> u32 {
    (extents + extents / 64 + 128).next_multiple_of(RECORDS_PER_BLOCK) - extents
}

fn owners_bytes(owner_slots: u32) -> u64 {
    (u64::from(owner_slots) * OWNER_BYTES as u64).next_multiple_of(BLOCK_BYTES)
}

fn addresses_bytes(extents: u32) -> u64 {
    (u64::from(extents) * ADDRESS_SECTOR_BYTES as u64).next_multiple_of(BLOCK_BYTES)
}

impl PoolMemberLayout {
    /// Returns the layout of a member of this size, with as many extents as fit.
    ///
    /// # Errors
    /// [`PoolLayoutError`].
    pub fn new(device_bytes: u64, owner_slots: u32) -> Result<PoolMemberLayout, PoolLayoutError> {
        if !(OWNER_SLOTS_MIN..=OWNER_SLOTS_MAX).contains(&owner_slots) {
            return Err(PoolLayoutError::OwnerSlots { owner_slots });
        }
        if device_bytes > MEMBER_BYTES_MAX {
            return Err(PoolLayoutError::TooLarge { device_bytes, limit_bytes: MEMBER_BYTES_MAX });
        }
        let copy_start = copy_offset(device_bytes).unwrap_or(0);
        let with = |extents| PoolMemberLayout::with_extents(device_bytes, copy_start, owner_slots, extents);
        let fits = |extents| with(extents).data_end() <= copy_start;
        if !fits(1) {
            return Err(PoolLayoutError::TooSmall { device_bytes, needed_bytes: needed_bytes(owner_slots) });
        }
        // Binary search: `fewest` extents fit, `most` do not.
        let (mut fewest, mut most) = (1, (device_bytes / EXTENT_BYTES) as u32 + 1);
        while most - fewest > 1 {
            let middle = fewest + (most - fewest) / 2;
            if fits(middle) { fewest = middle } else { most = middle }
        }
        Ok(with(fewest))
    }

    /// Returns the layout of a member with this many extents, whether or not they fit.
    fn with_extents(device_bytes: u64, copy_start: u64, owner_slots: u32, extents: u32) -> PoolMemberLayout {
        let zero_slots = zero_slots_for(extents);
        let mut end = BLOCK_BYTES;
        let mut part = |bytes: u64| {
            let start = end;
            end += bytes;
            ByteRange::new(start, bytes)
        };
        let starts = part(2 * CHECKPOINT_BYTES as u64);
        let ring = part(ring_bytes_for(device_bytes));
        let owners = part(owners_bytes(owner_slots));
        let table = part(u64::from(extents + zero_slots) * RECORD_BYTES as u64);
        let addresses = part(addresses_bytes(extents));
        let data = ByteRange::new(end.next_multiple_of(EXTENT_BYTES), u64::from(extents) * EXTENT_BYTES);
        PoolMemberLayout {
            device_bytes,
            label_start: 0,
            copy_start,
            checkpoints: starts,
            ring,
            owners,
            table,
            addresses,
            data,
            extents,
            zero_slots,
            owner_slots,
        }
    }

    fn data_end(&self) -> u64 {
        self.data.end().unwrap_or(u64::MAX)
    }

    /// Returns the number of records in the table.
    pub fn records(&self) -> u32 {
        self.extents + self.zero_slots
    }

    /// Returns the size of the ring, in blocks.
    pub fn ring_blocks(&self) -> u32 {
        (self.ring.bytes / BLOCK_BYTES) as u32
    }

    /// Returns the offset of extent `extent`, in bytes.
    pub fn extent_start(&self, extent: u32) -> u64 {
        self.data.start + u64::from(extent) * EXTENT_BYTES
    }

    /// Returns the offset of record `index`, in bytes.
    pub fn record_start(&self, index: u32) -> u64 {
        self.table.start + u64::from(index) * RECORD_BYTES as u64
    }

    /// Returns the offset of the address sector of extent `extent`, in bytes.
    pub fn addresses_start(&self, extent: u32) -> u64 {
        self.addresses.start + u64::from(extent) * ADDRESS_SECTOR_BYTES as u64
    }

    /// Returns the offset of owner slot `slot`, in bytes.
    pub fn owner_start(&self, slot: u32) -> u64 {
        self.owners.start + u64::from(slot) * OWNER_BYTES as u64
    }

    /// Returns whether the label or its copy belongs at this byte.
    pub fn has_label_at(&self, offset: u64) -> bool {
        offset == self.label_start || offset == self.copy_start
    }

    /// Reports what is wrong with this layout, as field and reason.
    pub(crate) fn problems(&self, found: &mut dyn FnMut(&'static str, String)) {
        if self.device_bytes > MEMBER_BYTES_MAX {
            found("device_bytes", format!("a pool uses at most {MEMBER_BYTES_MAX} of each member"));
        }
        let parts = [
            ("label_start", ByteRange::new(self.label_start, BLOCK_BYTES)),
            ("copy_start", ByteRange::new(self.copy_start, BLOCK_BYTES)),
            ("starts_start", self.checkpoints),
            ("ring_start", self.ring),
            ("owners_start", self.owners),
            ("table_start", self.table),
            ("addresses_start", self.addresses),
            ("data_start", self.data),
        ];
        check_parts(&parts, self.device_bytes, found);
        if !self.data.start.is_multiple_of(EXTENT_BYTES) {
            found("data_start", format!("{} is not a multiple of {EXTENT_BYTES}", self.data.start));
        }
        if self.extents == 0 {
            found("extents", "there is no room for data".into());
        }
        if !(OWNER_SLOTS_MIN..=OWNER_SLOTS_MAX).contains(&self.owner_slots) {
            found(
                "owner_slots",
                format!("{} is not between {OWNER_SLOTS_MIN} and {OWNER_SLOTS_MAX}", self.owner_slots),
            );
        }
        let records = u64::from(self.extents) + u64::from(self.zero_slots);
        if records > u64::from(u32::MAX) {
            found("zero_slots", format!("{records} records are more than have a number"));
        }
        let ring = ring_bytes(RING_BLOCKS_MIN)..=ring_bytes(RING_BLOCKS_MAX);
        if !ring.contains(&self.ring.bytes) || !self.ring.bytes.is_multiple_of(RING_STEP_BYTES) {
            found("ring_bytes", format!("{} is not a multiple of 64 KiB from 256 KiB to 64 MiB", self.ring.bytes));
        }
        for (field, bytes, expected) in [
            ("starts_bytes", self.checkpoints.bytes, 2 * CHECKPOINT_BYTES as u64),
            ("owners_bytes", self.owners.bytes, owners_bytes(self.owner_slots)),
            ("table_bytes", self.table.bytes, records * RECORD_BYTES as u64),
            ("addresses_bytes", self.addresses.bytes, addresses_bytes(self.extents)),
            ("data_bytes", self.data.bytes, u64::from(self.extents) * EXTENT_BYTES),
        ] {
            if bytes != expected {
                found(field, format!("it is {bytes}; what is in it makes {expected}"));
            }
        }
    }
}

/// Returns the size of the smallest device with room for one extent. The ring grows with the device, so this iterates.
fn needed_bytes(owner_slots: u32) -> u64 {
    let mut device_bytes = 0;
    loop {
        let needed = PoolMemberLayout::with_extents(device_bytes, 0, owner_slots, 1).data_end() + BLOCK_BYTES;
        if needed <= device_bytes {
            return needed;
        }
        device_bytes = needed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound(places: &PoolMemberLayout) -> bool {
        let mut sound = true;
        places.problems(&mut |_, _| sound = false);
        sound
    }

    #[test]
    fn the_layout_of_a_member() {
        // 1 TiB: 64 MiB of ring, and the maximum number of owner slots.
        let places = PoolMemberLayout::new(1 << 40, owner_slots_for(1 << 40)).unwrap();
        assert_eq!((places.label_start, places.checkpoints), (0, ByteRange::new(4096, 8192)));
        assert_eq!(places.ring, ByteRange::new(12288, 64 << 20));
        assert_eq!(places.owners, ByteRange::new(12288 + (64 << 20), 256 << 20));
        assert_eq!(places.table.start, places.owners.end().unwrap());
        assert_eq!(places.table.bytes, u64::from(places.records()) * 32);
        assert_eq!(places.addresses.start, places.table.end().unwrap());
        assert_eq!(places.copy_start, (1 << 40) - 4096);
        assert!(places.data.start - places.addresses.end().unwrap() < 256 << 10);
        // The pool's own share: two thousandths, and ring and owners.
        let own = (1 << 40) - places.data.bytes;
        assert!(own < (1 << 40) / 470 + (320 << 20) + (512 << 10), "{own}");
        let last = places.extents - 1;
        assert_eq!(places.extent_start(last) + (256 << 10), places.data.end().unwrap());
        assert_eq!(places.addresses_start(last) + 512, places.addresses.start + u64::from(places.extents) * 512);
        assert_eq!(places.record_start(places.records()), places.table.end().unwrap());
        assert_eq!(places.owner_start(places.owner_slots), places.owners.end().unwrap());
    }

    #[test]
    fn layouts_are_valid_for_every_size_and_use_all_space() {
        let smallest = match PoolMemberLayout::new(0, OWNER_SLOTS_MIN) {
            Err(PoolLayoutError::TooSmall { device_bytes: 0, needed_bytes }) => needed_bytes,
            other => panic!("{other:?}"),
        };
        assert_eq!(smallest, (1 << 20) + 4096);
        let sizes = [smallest, smallest + 4095, 2 << 20, (64 << 20) + 512, 1 << 30, 50 << 30, (100 << 40) + 512];
        for device_bytes in sizes.into_iter().chain([MEMBER_BYTES_MAX - 1, MEMBER_BYTES_MAX]) {
            for owner_slots in [OWNER_SLOTS_MIN, OWNER_SLOTS_MIN + 1, owner_slots_for(device_bytes)] {
                let places = match PoolMemberLayout::new(device_bytes, owner_slots) {
                    Ok(places) => places,
                    Err(PoolLayoutError::TooSmall { .. }) if device_bytes < 2 << 20 => continue,
                    Err(error) => panic!("{device_bytes}: {error}"),
                };
                places.problems(&mut |field, reason| panic!("{device_bytes}: {field}: {reason}"));
                assert_eq!(Some(places.copy_start), copy_offset(device_bytes));
                let more =
                    PoolMemberLayout::with_extents(device_bytes, places.copy_start, owner_slots, places.extents + 1);
                assert!(more.data_end() > places.copy_start, "{device_bytes}: one more would fit");
                assert!(places.zero_slots >= places.extents / 64 + 128);
                assert!(places.zero_slots < places.extents / 64 + 256 && places.records() % 128 == 0);
            }
        }
    }

    #[test]
    fn the_smallest_member() {
        for owner_slots in [OWNER_SLOTS_MIN, 5000, OWNER_SLOTS_MAX] {
            let needed = needed_bytes(owner_slots);
            assert_eq!(PoolMemberLayout::new(needed, owner_slots).unwrap().extents, 1, "{owner_slots}");
            let refused = Err(PoolLayoutError::TooSmall { device_bytes: needed - 1, needed_bytes: needed });
            assert_eq!(PoolMemberLayout::new(needed - 1, owner_slots), refused, "{owner_slots}");
        }
    }

    #[test]
    fn sizes_beyond_the_limits_are_refused() {
        let too_large = PoolLayoutError::TooLarge { device_bytes: u64::MAX, limit_bytes: MEMBER_BYTES_MAX };
        assert_eq!(PoolMemberLayout::new(u64::MAX, 1024), Err(too_large));
        for owner_slots in [0, 1023, OWNER_SLOTS_MAX + 1, u32::MAX] {
            assert_eq!(PoolMemberLayout::new(1 << 30, owner_slots), Err(PoolLayoutError::OwnerSlots { owner_slots }));
        }
        let slots = [0, 1 << 20, 5 << 30, 1 << 40, u64::MAX].map(owner_slots_for);
        assert_eq!(slots, [1024, 1024, 5 << 10, 1 << 20, 1 << 20]);
        let rings = [0, 160 << 20, 200 << 20, 32 << 30, 33 << 30].map(ring_bytes_for);
        assert_eq!(rings, [256 << 10, 320 << 10, 384 << 10, 64 << 20, 64 << 20]);
    }

    #[test]
    fn invalid_layouts_are_reported() {
        let good = PoolMemberLayout::new(1 << 30, 1024).unwrap();
        assert!(sound(&good));
        let cases: [(&str, PoolMemberLayout); 17] = [
            ("device_bytes", PoolMemberLayout { device_bytes: u64::MAX, ..good }),
            ("label_start", PoolMemberLayout { label_start: 1, ..good }),
            ("copy_start", PoolMemberLayout { copy_start: 1 << 30, ..good }),
            ("starts_start", PoolMemberLayout { checkpoints: ByteRange::new(0, 8192), ..good }),
            ("starts_bytes", PoolMemberLayout { checkpoints: ByteRange::new(4096, 4096), ..good }),
            ("ring_start", PoolMemberLayout { ring: ByteRange::new(u64::MAX - 4095, 256 << 10), ..good }),
            ("ring_bytes", PoolMemberLayout { ring: ByteRange::new(good.ring.start, 64 << 10), ..good }),
            ("ring_bytes", PoolMemberLayout { ring: ByteRange::new(good.ring.start, (256 << 10) + 4096), ..good }),
            ("owners_start", PoolMemberLayout { owners: good.ring, ..good }),
            ("owners_bytes", PoolMemberLayout { owners: ByteRange::new(good.owners.start, 4096), ..good }),
            ("owner_slots", PoolMemberLayout { owner_slots: 0, ..good }),
            ("table_bytes", PoolMemberLayout { zero_slots: good.zero_slots + 1, ..good }),
            ("zero_slots", PoolMemberLayout { zero_slots: u32::MAX, ..good }),
            ("addresses_bytes", PoolMemberLayout { addresses: ByteRange::new(good.addresses.start, 0), ..good }),
            ("data_start", PoolMemberLayout { data: ByteRange::new(good.data.start - 4096, good.data.bytes), ..good }),
            ("data_bytes", PoolMemberLayout { data: ByteRange::new(good.data.start, good.data.bytes - 4096), ..good }),
            ("extents", PoolMemberLayout { extents: 0, ..good }),
        ];
        for (field, places) in cases {
            let mut found = Vec::new();
            places.problems(&mut |field, _| found.push(field));
            assert!(found.contains(&field), "{field} is not among {found:?}");
        }
    }
}
