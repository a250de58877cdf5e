//! A table that grows while others read it: entries never move.
//!
//! It begins with room for the expected entries; a further part, allocated when it is first needed, is as large as all
//! before it together. Nothing is ever copied or removed, so a reader needs no lock, and two loads for an expected
//! entry.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Parts beyond the first; with that, the smallest first part grows to 2^28 entries.
const FURTHER: usize = 24;
const FIRST_MIN: u64 = 16;

/// Entries that are added one by one, by one writer.
#[derive(Debug)]
pub(super) struct Directory<T> {
    /// A power of two.
    first: Box<[OnceLock<T>]>,
    /// The one at `k` has room for `first.len() << k`.
    further: [OnceLock<Box<[OnceLock<T>]>>; FURTHER],
    bytes: AtomicU64,
}

fn room<T>(count: usize) -> Box<[OnceLock<T>]> {
    (0..count).map(|_| OnceLock::new()).collect()
}

impl<T> Directory<T> {
    /// Returns a table for `expected` entries, with room for more.
    pub(super) fn new(expected: u64) -> Directory<T> {
        let first = room(expected.max(FIRST_MIN).next_power_of_two() as usize);
        let bytes = AtomicU64::new(size_of_val(&*first) as u64);
        Directory { first, further: [const { OnceLock::new() }; FURTHER], bytes }
    }

    /// Returns the entry, if it was added.
    #[inline(always)]
    pub(super) fn get(&self, index: u64) -> Option<&T> {
        match self.first.get(index as usize) {
            Some(entry) => entry.get(),
            None => self.get_further(index),
        }
    }

    #[inline(never)]
    fn get_further(&self, index: u64) -> Option<&T> {
        let (part, at) = self.part(index);
        self.further.get(part)?.get()?[at].get()
    }

    /// Returns the entry, which is added now if it was not before. For the writer.
    ///
    /// # Panics
    /// When the index is beyond 2^28 entries.
    pub(super) fn get_or_add(&self, index: u64, add: impl FnOnce() -> T) -> &T {
        let entry = match self.first.get(index as usize) {
            Some(entry) => entry,
            None => {
                let (part, at) = self.part(index);
                &self.further[part].get_or_init(|| self.counted(room(self.first.len() << part)))[at]
            }
        };
        entry.get_or_init(add)
    }

    /// Bytes of the table, without what the entries point to.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn counted(&self, part: Box<[OnceLock<T>]>) -> Box<[OnceLock<T>]> {
        self.bytes.fetch_add(size_of_val(&*part) as u64, Ordering::Relaxed);
        part
    }

    /// Returns where an entry beyond the first part is: the further part, and the index in it.
    fn part(&self, index: u64) -> (usize, usize) {
        let shift = self.first.len().trailing_zeros();
        let part = (index >> shift).ilog2();
        (part as usize, (index - (1 << (part + shift))) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_an_entry_of_its_own_that_stays() {
        for expected in [0, 1, 16, 17, 64] {
            let directory = Directory::new(expected);
            let indices = || (0..300u64).chain([1 << 20, (1 << 20) + 1]);
            assert!(indices().all(|index| directory.get(index).is_none()));
            let empty = directory.memory_bytes();
            let entries: Vec<*const u64> =
                indices().map(|index| std::ptr::from_ref(directory.get_or_add(index, || index))).collect();
            for (index, entry) in indices().zip(entries) {
                assert_eq!(directory.get(index), Some(&index));
                assert_eq!(std::ptr::from_ref(directory.get_or_add(index, || unreachable!())), entry);
            }
            assert!(directory.memory_bytes() > empty);
            assert_eq!(directory.get(u64::MAX), None);
        }
    }
}
