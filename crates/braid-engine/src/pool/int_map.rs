//! A hash map from integers to small values: open addressing, of a fixed or growing size, so that nothing is allocated
//! in the steady state. It is deterministic: the same calls in the same order do the same.

/// The key of an empty slot.
const EMPTY: u64 = u64::MAX;

/// A hash map with integer keys below `u64::MAX`.
pub struct IntMap<V> {
    slots: Box<[(u64, V)]>,
    len: usize,
    room: usize,
    grows: bool,
}

/// Keys that a growing map has room for at first.
const FIRST_ROOM: usize = 64;

impl<V: Copy + Default> IntMap<V> {
    /// Returns a map for at most `room` keys at a time.
    pub fn new(room: usize) -> IntMap<V> {
        let slots = (room * 2).next_power_of_two().max(8);
        IntMap { slots: vec![(EMPTY, V::default()); slots].into(), len: 0, room, grows: false }
    }

    /// Returns a map that doubles when it is full: for a bound that is rarely approached.
    pub fn growing() -> IntMap<V> {
        IntMap { grows: true, ..IntMap::new(FIRST_ROOM) }
    }

    #[cold]
    fn grow(&mut self) {
        let mut larger = IntMap { grows: true, ..IntMap::new(self.room * 2) };
        for (key, value) in self.slots.iter().filter(|(key, _)| *key != EMPTY) {
            larger.insert(*key, *value);
        }
        *self = larger;
    }

    /// Returns whether the map has no key.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether the key is present.
    pub fn has(&self, key: u64) -> bool {
        self.find(key).is_ok()
    }

    /// All values.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.slots.iter().filter(|(key, _)| *key != EMPTY).map(|(_, value)| value)
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = u64> {
        self.slots.iter().map(|(key, _)| *key).filter(|key| *key != EMPTY)
    }

    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - self.slots.len().trailing_zeros())) as usize
    }

    fn find(&self, key: u64) -> Result<usize, usize> {
        let mask = self.slots.len() - 1;
        let mut at = self.home(key);
        loop {
            match self.slots[at].0 {
                EMPTY => return Err(at),
                other if other == key => return Ok(at),
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// How many keys there are.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.len
    }

    /// Returns the value of a key.
    pub fn get(&self, key: u64) -> Option<&V> {
        self.find(key).ok().map(|at| &self.slots[at].1)
    }

    /// Returns the value of a key, to be changed.
    pub fn get_mut(&mut self, key: u64) -> Option<&mut V> {
        self.find(key).ok().map(|at| &mut self.slots[at].1)
    }

    /// Sets the value of a key.
    ///
    /// # Panics
    /// If a map of fixed size would have more keys than it has room for: its user knows their bound.
    pub fn insert(&mut self, key: u64, value: V) {
        match self.find(key) {
            Ok(at) => self.slots[at].1 = value,
            Err(_) if self.grows && self.len == self.room => {
                self.grow();
                self.insert(key, value);
            }
            Err(at) => {
                assert!(self.len < self.room, "more keys than the table was made for");
                self.slots[at] = (key, value);
                self.len += 1;
            }
        }
    }

    /// Removes a key, and returns its value.
    pub fn remove(&mut self, key: u64) -> Option<V> {
        let at = self.find(key).ok()?;
        let value = self.slots[at].1;
        let mask = self.slots.len() - 1;
        // Entries that were displaced by this one move up, so that no search ends too early.
        let (mut hole, mut next) = (at, (at + 1) & mask);
        while self.slots[next].0 != EMPTY {
            let home = self.home(self.slots[next].0);
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.slots[hole] = self.slots[next];
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.slots[hole].0 = EMPTY;
        self.len -= 1;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::IntMap;

    #[test]
    fn it_matches_an_ordinary_map() {
        check_against_model(IntMap::new(40), 40, 64);
    }

    #[test]
    fn a_growing_map_matches_an_ordinary_map() {
        check_against_model(IntMap::growing(), 900, 1000);
    }

    fn check_against_model(mut table: IntMap<u64>, most: usize, keys: u64) {
        let mut model = BTreeMap::new();
        let mut seed = 7u64;
        for step in 0..200_000u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = (seed >> 40) % keys;
            if seed >> 63 == 0 && (model.len() < most || model.contains_key(&key)) {
                table.insert(key, step);
                model.insert(key, step);
            } else {
                assert_eq!(table.remove(key), model.remove(&key));
            }
            let probe = (seed >> 20) % keys;
            assert_eq!(table.get(probe), model.get(&probe));
            assert_eq!((table.len(), table.is_empty()), (model.len(), model.is_empty()));
            assert_eq!(table.has(probe), model.contains_key(&probe));
            if step % 1000 == 0 {
                let mut values: Vec<u64> = table.values().copied().collect();
                values.sort_unstable();
                let mut expected: Vec<u64> = model.values().copied().collect();
                expected.sort_unstable();
                assert_eq!(values, expected);
            }
        }
    }
}
