//! Unreadable parts of an array: parts of an array with parity that cannot be read until they are written again.

use crate::reconciler::ReconcilerHandle;
use braid_api::ByteRange;
use braid_format::ArrayPart;
use braid_geometry::units::format_size;

/// Maximum number of ranges in a sentence.
const NAMED_MAX: usize = 3;

/// The unreadable parts of an array, as ranges that do not touch one another.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Unreadable(Vec<(u64, u64)>);

impl Unreadable {
    /// Merges ranges given in any order, as first byte and length in bytes.
    pub fn new(mut ranges: Vec<(u64, u64)>) -> Unreadable {
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

    /// Returns the sum of the ranges in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Returns the first ranges, in the order of their offsets, at most `most` of them.
    pub fn first(&self, most: usize) -> Vec<ByteRange> {
        self.0
            .iter()
            .take(most)
            .map(|(offset_bytes, bytes)| ByteRange { offset_bytes: *offset_bytes, bytes: *bytes })
            .collect()
    }

    /// Describes the ranges in a sentence; `None` if there are none.
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

impl ReconcilerHandle {
    /// Returns the unreadable parts of the array with this label.
    pub fn unreadable(&self, label: &ArrayPart) -> Unreadable {
        let lines = self.unreadable.as_ref().filter(|lines| !lines.is_empty());
        let ranges = lines.and_then(|lines| Some(lines.ranges(&label.geometry().ok()?)));
        ranges.map_or_else(Unreadable::default, Unreadable::new)
    }
}
