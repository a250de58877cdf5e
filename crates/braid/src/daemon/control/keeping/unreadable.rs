//! Rows of an array with parity that a crash and a loss together have left without content: an error to read, until they are
//! written again.

use super::super::Control;
use super::Keeping;
use braid_api::ByteRange;
use braid_format::ArrayPart;
use braid_geometry::units::format_size;
use std::sync::atomic::Ordering;

/// Ranges that a sentence names.
const NAMED_MAX: usize = 3;

/// What cannot be read, in ranges of the array that do not touch one another.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Unreadable(Vec<(u64, u64)>);

impl Unreadable {
    /// Of ranges in any order: where each begins, and its bytes.
    pub(super) fn new(mut ranges: Vec<(u64, u64)>) -> Unreadable {
        ranges.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (offset, bytes) in ranges {
            match merged.last_mut() {
                Some((start, len)) if *start + *len >= offset => *len = (*len).max(offset + bytes - *start),
                _ => merged.push((offset, bytes)),
            }
        }
        Unreadable(merged)
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The first of the ranges.
    pub fn first(&self, most: usize) -> Vec<ByteRange> {
        self.0
            .iter()
            .take(most)
            .map(|(offset_bytes, bytes)| ByteRange { offset_bytes: *offset_bytes, bytes: *bytes })
            .collect()
    }

    /// What that is, in a sentence; none where there is nothing.
    pub fn sentence(&self) -> Option<String> {
        let named = |(offset, bytes): &(u64, u64)| format!("{bytes} from byte {offset}");
        let places: Vec<String> = self.0.iter().take(NAMED_MAX).map(named).collect();
        let more = if self.0.len() > NAMED_MAX { ", …" } else { "" };
        (!self.0.is_empty()).then(|| {
            format!(
                "{} cannot be read until written again: bytes {}{more}",
                format_size(self.bytes()),
                places.join(", ")
            )
        })
    }
}

impl Keeping {
    /// What cannot be read of its array, whose label this is.
    pub fn unreadable(&self, label: &ArrayPart) -> Unreadable {
        let lines = self.unreadable.as_ref().filter(|lines| !lines.is_empty());
        let ranges = lines.and_then(|lines| Some(lines.ranges(&label.geometry().ok()?)));
        ranges.map_or_else(Unreadable::default, Unreadable::new)
    }
}

impl Control {
    /// Tells of an array that is about to serve what cannot be read of it, if there is something.
    pub(super) fn tell_unreadable(&self, name: &str, keeping: &Keeping, label: &ArrayPart) {
        let Some(what) = keeping.unreadable(label).sentence() else { return };
        keeping.unreadable_told.store(true, Ordering::Relaxed);
        let message = format!(
            "array {name}: {what}. They were being written when it stopped, and a member that had some of it is lost"
        );
        self.events().error("unreadable", message, &[("array", name)]);
    }

    /// Tells of arrays all of which can be read again.
    pub(in super::super) fn watch_unreadable(&self) {
        let mended: Vec<String> = {
            let tables = self.read();
            let is_mended = |keeping: &Keeping| {
                keeping.unreadable.as_ref().is_some_and(|lines| lines.is_empty())
                    && keeping.unreadable_told.swap(false, Ordering::Relaxed)
            };
            let kept = tables.arrays.values().filter_map(|entry| Some((&entry.name, entry.active()?.keeping()?)));
            kept.filter(|(_, keeping)| is_mended(keeping)).map(|(name, _)| name.clone()).collect()
        };
        for name in mended {
            let message = format!("array {name}: everything that could not be read has been written again");
            self.events().info("unreadable_mended", message, &[("array", &name)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one() {
        let some = Unreadable::new(vec![(131_072, 65_536), (0, 65_536), (65_536, 65_536), (1 << 20, 4096)]);
        let range = |offset_bytes, bytes| ByteRange { offset_bytes, bytes };
        assert_eq!(some.first(9), [range(0, 196_608), range(1 << 20, 4096)]);
        assert_eq!((some.first(1).len(), some.bytes()), (1, 200_704));
        assert_eq!(
            some.sentence().expect("there is something"),
            "196.00 KiB cannot be read until written again: bytes 196608 from byte 0, 4096 from byte 1048576"
        );
        assert_eq!(Unreadable::new(Vec::new()).sentence(), None);
    }
}
