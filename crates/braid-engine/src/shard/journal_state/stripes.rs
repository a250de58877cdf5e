//! The number of entries with data, and of marks, of each stripe in a journal. The size of the table is fixed when the
//! journal is created, so that the data path allocates nothing, and its order is the same in each run.
//!
//! Open addressing with linear probing, at most half full; when a stripe is removed, the following ones move up (Knuth,
//! The Art of Computer Programming 3, section 6.4, algorithms L and R).

use braid_format::journal::EntryKind;

#[derive(Clone, Copy)]
struct Entry {
    stripe: u64,
    data: u32,
    marks: u32,
}

const FREE: Entry = Entry { stripe: 0, data: 0, marks: 0 };

impl Entry {
    fn is_free(&self) -> bool {
        (self.data, self.marks) == (0, 0)
    }
}

/// The stripes of one journal.
pub(in crate::shard) struct StripeCounts {
    places: Box<[Entry]>,
    marks: u32,
}

impl StripeCounts {
    /// Creates a table for at most `most` stripes at a time.
    pub fn new(most: usize) -> StripeCounts {
        StripeCounts { places: vec![FREE; (2 * most.max(1)).next_power_of_two()].into(), marks: 0 }
    }

    /// Returns the number of marks of all stripes.
    pub fn marks(&self) -> u32 {
        self.marks
    }

    /// Returns the number of entries with data, and of marks, of a stripe.
    pub fn of(&self, stripe: u64) -> (u32, u32) {
        let place = &self.places[self.find(stripe)];
        (place.data, place.marks)
    }

    /// Counts one entry more, or one less.
    pub fn count(&mut self, stripe: u64, kind: EntryKind, more: bool) {
        let at = self.find(stripe);
        let place = &mut self.places[at];
        place.stripe = stripe;
        let count = if kind == EntryKind::Mark { &mut place.marks } else { &mut place.data };
        *count = if more { *count + 1 } else { *count - 1 };
        if kind == EntryKind::Mark {
            self.marks = if more { self.marks + 1 } else { self.marks - 1 };
        }
        if place.is_free() {
            self.close(at);
        }
    }

    fn mask(&self) -> usize {
        self.places.len() - 1
    }

    /// Returns the first index to probe for a stripe.
    fn home(&self, stripe: u64) -> usize {
        let scattered = stripe.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (scattered >> 32) as usize & self.mask()
    }

    /// Returns the index of a stripe, or where it would be inserted.
    fn find(&self, stripe: u64) -> usize {
        let mut at = self.home(stripe);
        while !self.places[at].is_free() && self.places[at].stripe != stripe {
            at = (at + 1) & self.mask();
        }
        at
    }

    /// Moves up the entries that a freed entry would make unreachable.
    fn close(&mut self, mut hole: usize) {
        let mask = self.mask();
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            if self.places[at].is_free() {
                break;
            }
            let from_home = at.wrapping_sub(self.home(self.places[at].stripe)) & mask;
            if from_home >= at.wrapping_sub(hole) & mask {
                self.places[hole] = self.places[at];
                hole = at;
            }
        }
        self.places[hole] = FREE;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Compared with a map, at maximum load, with stripes whose first indices collide.
    #[test]
    fn it_counts_as_a_map_does() {
        for spread in [1u64, 3, 1 << 20, 1 << 40] {
            let most = 60;
            let mut table = StripeCounts::new(most);
            let mut map: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
            let mut state: u64 = spread;
            for _ in 0..40_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let draw = state >> 33;
                let stripe = draw % 100 * spread;
                let kind = if draw & 1 << 20 == 0 { EntryKind::Data } else { EntryKind::Mark };
                let known = map.get(&stripe).copied().unwrap_or_default();
                let of_kind = if kind == EntryKind::Data { known.0 } else { known.1 };
                let more = of_kind == 0 || draw & 1 << 21 == 0;
                if more && map.len() == most && known == (0, 0) {
                    continue;
                }
                table.count(stripe, kind, more);
                let count = map.entry(stripe).or_default();
                let count = if kind == EntryKind::Data { &mut count.0 } else { &mut count.1 };
                *count = if more { *count + 1 } else { *count - 1 };
                map.retain(|_, counts| *counts != (0, 0));
                assert_eq!(table.marks(), map.values().map(|counts| counts.1).sum::<u32>());
                let same = |stripe: u64| table.of(stripe) == map.get(&stripe).copied().unwrap_or_default();
                assert!((0..100).all(|n| same(n * spread)), "spread {spread}");
            }
        }
    }
}
