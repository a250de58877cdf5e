//! Rows of an array with parity that a crash and a loss together have left without content: an error to read, until they are
//! written again.

use super::super::Control;
use braid_api::ByteRange;
use braid_geometry::units::format_size;
use uuid::Uuid;

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

impl Control {
    /// What cannot be read of an array has changed.
    pub(super) fn on_unreadable(&self, uuid: Uuid, rows: Vec<(u64, u64)>) {
        let name = self.read().arrays.get(&uuid).map(|entry| entry.name.clone()).unwrap_or_default();
        let now = Unreadable::new(rows);
        let before = self.with_keeping(uuid, |keeping| {
            let before = keeping.unreadable();
            keeping.set_unreadable(now.clone());
            before
        });
        self.tell_unreadable(&name, &before.unwrap_or_default(), &now);
    }

    pub(super) fn tell_unreadable(&self, name: &str, before: &Unreadable, now: &Unreadable) {
        if now == before {
            return;
        }
        match now.sentence() {
            Some(what) if now.bytes() > before.bytes() => {
                let message = format!(
                    "array {name}: {what}. They were being written when it stopped, and a member that had some of it is lost"
                );
                self.events().error("unreadable", message, &[("array", name)]);
            }
            Some(_) => {}
            None => {
                let message = format!("array {name}: everything that could not be read has been written again");
                self.events().info("unreadable_mended", message, &[("array", name)]);
            }
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
