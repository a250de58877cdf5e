//! The layout of a disk that Braid owns. Every offset is a field of the label; the defaults are chosen here.
//!
//! ```text
//! 0       4 KiB    1 MiB     8 MiB     16 MiB               last whole block
//! | label | free   | bitmap  | journal | data …             | copy of the label |
//! ```
//!
//! On a disk below 1 GiB the bitmap is at 64 KiB, the journal at 256 KiB and the data at 1 MiB. The metadata area is
//! the same at every level, so that an array can gain redundancy without moving data.

use crate::BLOCK_BYTES;

/// Where the data area begins on a disk of 1 GiB or more, in bytes.
pub const DATA_START_BYTES: u64 = 16 << 20;
/// Where the data area begins on a smaller disk, in bytes.
pub const DATA_START_SMALL_BYTES: u64 = 1 << 20;
/// Size below which a disk has the smaller metadata area, in bytes.
pub const SMALL_DEVICE_BYTES: u64 = 1 << 30;
/// Space for the write-intent bitmap on a disk of 1 GiB or more, in bytes.
pub const BITMAP_BYTES: u64 = 7 << 20;
/// Maximum size of a disk, in bytes: 2^48 blocks.
pub(crate) const DEVICE_BYTES_MAX: u64 = (1 << 48) * BLOCK_BYTES;

/// A range of bytes on a disk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// Length in bytes; 0: there is none.
    pub bytes: u64,
}

impl ByteRange {
    /// Returns the range of `bytes` from `start`.
    pub const fn new(start: u64, bytes: u64) -> ByteRange {
        ByteRange { start, bytes }
    }

    /// Returns the offset after the last byte; `None` on overflow.
    pub fn end(&self) -> Option<u64> {
        self.start.checked_add(self.bytes)
    }
}

/// The layout of one disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskLayout {
    /// The disk's size when the layout was chosen, in bytes.
    pub device_bytes: u64,
    /// First byte of the label.
    pub label_start: u64,
    /// First byte of the label's copy.
    pub copy_start: u64,
    /// The data area.
    pub data: ByteRange,
    /// Space for the write-intent bitmap.
    pub bitmap: ByteRange,
    /// Space for the journal.
    pub journal: ByteRange,
}

/// Why a disk cannot hold a label and data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// No room for data.
    #[error("the disk has {device_bytes} bytes; the smallest that Braid can use has {needed_bytes}")]
    TooSmall {
        /// The disk's size.
        device_bytes: u64,
        /// The smallest usable size.
        needed_bytes: u64,
    },
    /// Beyond what the label's fields can say.
    #[error("the disk has {device_bytes} bytes; Braid uses at most {limit_bytes}")]
    TooLarge {
        /// The disk's size.
        device_bytes: u64,
        /// The largest usable size.
        limit_bytes: u64,
    },
}

/// Returns where the copy of the label belongs on a disk of this size: its last whole block of 4 KiB. `None` when the
/// disk has no room for a copy beside the label.
pub fn copy_offset(device_bytes: u64) -> Option<u64> {
    let offset = (device_bytes / BLOCK_BYTES).checked_sub(1)? * BLOCK_BYTES;
    (offset >= BLOCK_BYTES).then_some(offset)
}

impl DiskLayout {
    /// Returns the default layout of a disk of this size.
    pub fn for_device(device_bytes: u64) -> Result<DiskLayout, LayoutError> {
        let data_start = if device_bytes < SMALL_DEVICE_BYTES { DATA_START_SMALL_BYTES } else { DATA_START_BYTES };
        let needed_bytes = data_start + 2 * BLOCK_BYTES;
        if device_bytes < needed_bytes {
            return Err(LayoutError::TooSmall { device_bytes, needed_bytes });
        }
        if device_bytes > DEVICE_BYTES_MAX {
            return Err(LayoutError::TooLarge { device_bytes, limit_bytes: DEVICE_BYTES_MAX });
        }
        let copy_start = device_bytes / BLOCK_BYTES * BLOCK_BYTES - BLOCK_BYTES;
        let (bitmap_start, journal_start) =
            if data_start == DATA_START_BYTES { (1 << 20, (1 << 20) + BITMAP_BYTES) } else { (64 << 10, 256 << 10) };
        Ok(DiskLayout {
            device_bytes,
            label_start: 0,
            copy_start,
            data: ByteRange::new(data_start, copy_start - data_start),
            bitmap: ByteRange::new(bitmap_start, journal_start - bitmap_start),
            journal: ByteRange::new(journal_start, data_start - journal_start),
        })
    }

    /// Returns the layout of a dedicated journal disk of this size. The journal area extends over the space that is the
    /// data area on other disks, except for the last block: a label's data area is never empty.
    pub fn for_journal(device_bytes: u64) -> Result<DiskLayout, LayoutError> {
        let places = DiskLayout::for_device(device_bytes)?;
        let data_start = places.copy_start - BLOCK_BYTES;
        Ok(DiskLayout {
            data: ByteRange::new(data_start, BLOCK_BYTES),
            journal: ByteRange::new(places.journal.start, data_start - places.journal.start),
            ..places
        })
    }

    /// Returns the layout after the disk has grown to `device_bytes`: the copy of the label is in the last whole block,
    /// everything else stays. [`DiskLayout::with_data`] can then enlarge the data area. `None` if the copy would not
    /// move towards the end, or if the data area is behind the copy.
    pub fn grown_to(&self, device_bytes: u64) -> Option<DiskLayout> {
        let copy_start = copy_offset(device_bytes.min(DEVICE_BYTES_MAX))?;
        let is_last = self.copy_start >= self.data.end()?;
        let larger = device_bytes > self.device_bytes && copy_start > self.copy_start;
        (is_last && larger).then_some(DiskLayout { device_bytes, copy_start, ..*self })
    }

    /// Returns the largest size that the data area can have, in bytes: from its start to the copy of the label.
    pub fn room_bytes(&self) -> u64 {
        self.copy_start.saturating_sub(self.data.start).max(self.data.bytes)
    }

    /// Returns this layout with a data area of another size; `None` where it does not fit.
    pub fn with_data(&self, data_bytes: u64) -> Option<DiskLayout> {
        let places = DiskLayout { data: ByteRange::new(self.data.start, data_bytes), ..*self };
        let mut sound = true;
        places.problems(&mut |_, _| sound = false);
        (data_bytes == self.data.bytes || sound).then_some(places)
    }

    /// Reports what is wrong with this layout, as field and reason; each field at most once.
    pub(crate) fn problems(&self, found: &mut dyn FnMut(&'static str, String)) {
        let parts = [
            ("label_start", ByteRange::new(self.label_start, BLOCK_BYTES)),
            ("copy_start", ByteRange::new(self.copy_start, BLOCK_BYTES)),
            ("data_start", self.data),
            ("bitmap_start", self.bitmap),
            ("journal_start", self.journal),
        ];
        if self.device_bytes > DEVICE_BYTES_MAX {
            found("device_bytes", format!("no disk has {} bytes", self.device_bytes));
        }
        if self.data.bytes == 0 {
            found("data_bytes", "there is no room for data".into());
        }
        check_parts(&parts, self.device_bytes, found);
    }
}

/// Reports each part that is not whole blocks, is not within the device, or overlaps an earlier part; each part at most
/// once.
pub(crate) fn check_parts(
    parts: &[(&'static str, ByteRange)],
    device_bytes: u64,
    found: &mut dyn FnMut(&'static str, String),
) {
    for (i, (field, part)) in parts.iter().enumerate() {
        if part.start % BLOCK_BYTES != 0 || part.bytes % BLOCK_BYTES != 0 {
            found(field, format!("{} bytes at {} are not whole blocks", part.bytes, part.start));
            continue;
        }
        let Some(end) = part.end().filter(|end| *end <= device_bytes) else {
            found(field, format!("{} bytes at {} lie beyond the disk's {device_bytes}", part.bytes, part.start));
            continue;
        };
        let overlapped = parts[..i].iter().find(|(_, other)| {
            part.bytes > 0 && other.bytes > 0 && part.start < other.end().unwrap_or(u64::MAX) && other.start < end
        });
        if let Some((other, _)) = overlapped {
            found(field, format!("it overlaps `{other}`"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_follows_the_end_of_a_disk_that_grows() {
        let places = DiskLayout::for_device((64 << 20) + 512).unwrap();
        assert_eq!(places.grown_to((64 << 20) + 1024), None, "no whole block more");
        assert_eq!(places.grown_to(32 << 20), None);
        let larger = places.grown_to(2 << 30).unwrap();
        assert_eq!((larger.data, larger.bitmap, larger.journal), (places.data, places.bitmap, places.journal));
        assert_eq!(larger.copy_start, (2 << 30) - 4096);
        assert_eq!(larger.room_bytes(), (2 << 30) - 4096 - (1 << 20));
        let taken = larger.with_data(larger.room_bytes()).unwrap();
        taken.problems(&mut |field, reason| panic!("{field}: {reason}"));
        assert_eq!(larger.with_data(larger.room_bytes() + 4096), None, "it would overlap the copy");
        assert_eq!(taken.with_data(places.data.bytes).unwrap(), larger);
        assert_eq!(places.with_data(places.data.bytes + 4096), None);
    }

    #[test]
    fn default_layouts_are_valid_for_every_size() {
        let sizes = [
            (1 << 20) + 8192,
            (1 << 20) + 8192 + 4095,
            (64 << 20) + 512,
            SMALL_DEVICE_BYTES - 1,
            SMALL_DEVICE_BYTES,
            50 << 30,
            (100u64 << 40) + 512,
            DEVICE_BYTES_MAX,
        ];
        for size in sizes {
            let places = DiskLayout::for_device(size).unwrap();
            places.problems(&mut |field, reason| panic!("{size}: {field}: {reason}"));
            assert_eq!(Some(places.copy_start), copy_offset(size));
            assert!(size - (places.copy_start + BLOCK_BYTES) < BLOCK_BYTES);
            let of_journal = DiskLayout::for_journal(size).unwrap();
            of_journal.problems(&mut |field, reason| panic!("{size}: {field}: {reason}"));
            assert!(of_journal.journal.bytes >= places.data.bytes.max(places.journal.bytes));
        }
        assert_eq!(DiskLayout::for_device(50 << 30).unwrap().data.start, 16 << 20);
        assert_eq!(DiskLayout::for_device(SMALL_DEVICE_BYTES - 1).unwrap().data.start, 1 << 20);
        assert!(DiskLayout::for_device((1 << 20) + 8191).is_err());
        assert!(DiskLayout::for_device(0).is_err());
        assert!(DiskLayout::for_device(u64::MAX).is_err());
        assert_eq!(copy_offset(4096), None);
        assert_eq!(copy_offset(8191), None);
        assert_eq!(copy_offset(8192), Some(4096));
    }
}
