//! How many entries with data, and how many marks, each row has in a journal: a table whose size is fixed when the journal begins, so that
//! a data core allocates nothing, with the same order in each run.
//!
//! Open addressing with linear probing, at most half full; what follows a row that leaves moves up (Knuth, The Art of Computer
//! Programming 3, section 6.4, algorithms L and R).

use braid_format::journal::EntryKind;

#[derive(Clone, Copy)]
struct Place {
    row: u64,
    data: u32,
    marks: u32,
}

const FREE: Place = Place { row: 0, data: 0, marks: 0 };

impl Place {
    fn is_free(&self) -> bool {
        (self.data, self.marks) == (0, 0)
    }
}

/// The rows of one journal.
pub(super) struct Rows {
    places: Box<[Place]>,
    marks: u32,
}

impl Rows {
    /// For at most so many rows at a time.
    pub fn new(most: usize) -> Rows {
        Rows { places: vec![FREE; (2 * most.max(1)).next_power_of_two()].into(), marks: 0 }
    }

    /// Marks of all rows together.
    pub fn marks(&self) -> u32 {
        self.marks
    }

    /// Entries with data, and marks, of a row.
    pub fn of(&self, row: u64) -> (u32, u32) {
        let place = &self.places[self.find(row)];
        (place.data, place.marks)
    }

    /// One more, or one less.
    pub fn count(&mut self, row: u64, kind: EntryKind, more: bool) {
        let at = self.find(row);
        let place = &mut self.places[at];
        place.row = row;
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

    /// Where a row is looked for first.
    fn home(&self, row: u64) -> usize {
        let scattered = row.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (scattered >> 32) as usize & self.mask()
    }

    /// Where a row is, or would be.
    fn find(&self, row: u64) -> usize {
        let mut at = self.home(row);
        while !self.places[at].is_free() && self.places[at].row != row {
            at = (at + 1) & self.mask();
        }
        at
    }

    /// A place has become free: whoever is not found any more moves up.
    fn close(&mut self, mut hole: usize) {
        let mask = self.mask();
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            if self.places[at].is_free() {
                break;
            }
            let from_home = at.wrapping_sub(self.home(self.places[at].row)) & mask;
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

    /// Against a map, as full as it gets, with rows whose homes are crowded.
    #[test]
    fn it_counts_as_a_map_does() {
        for spread in [1u64, 3, 1 << 20, 1 << 40] {
            let most = 60;
            let mut rows = Rows::new(most);
            let mut map: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
            let mut state: u64 = spread;
            for _ in 0..40_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let draw = state >> 33;
                let row = draw % 100 * spread;
                let kind = if draw & 1 << 20 == 0 { EntryKind::Data } else { EntryKind::Mark };
                let known = map.get(&row).copied().unwrap_or_default();
                let of_kind = if kind == EntryKind::Data { known.0 } else { known.1 };
                let more = of_kind == 0 || draw & 1 << 21 == 0;
                if more && map.len() == most && known == (0, 0) {
                    continue;
                }
                rows.count(row, kind, more);
                let count = map.entry(row).or_default();
                let count = if kind == EntryKind::Data { &mut count.0 } else { &mut count.1 };
                *count = if more { *count + 1 } else { *count - 1 };
                map.retain(|_, counts| *counts != (0, 0));
                assert_eq!(rows.marks(), map.values().map(|counts| counts.1).sum::<u32>());
                let same = |row: u64| rows.of(row) == map.get(&row).copied().unwrap_or_default();
                assert!((0..100).all(|n| same(n * spread)), "spread {spread}");
            }
        }
    }
}
