//! A table from numbers to small values: open addressing, of a fixed size or one that it has grown to, so that nothing is allocated in the
//! steady state; and the same calls in the same order do the same.

/// No key: marks a free place.
const NOBODY: u64 = u64::MAX;

/// See the module's page. Keys are below `u64::MAX`.
pub struct Keyed<V> {
    places: Box<[(u64, V)]>,
    len: usize,
    room: usize,
    grows: bool,
}

/// Keys that a table has room for which grows.
const FIRST_ROOM: usize = 64;

impl<V: Copy + Default> Keyed<V> {
    /// A table for at most `room` keys at a time.
    pub fn new(room: usize) -> Keyed<V> {
        let places = (room * 2).next_power_of_two().max(8);
        Keyed { places: vec![(NOBODY, V::default()); places].into(), len: 0, room, grows: false }
    }

    /// A table that becomes twice as large where it is full: for what has a bound that is rarely come near.
    pub fn growing() -> Keyed<V> {
        Keyed { grows: true, ..Keyed::new(FIRST_ROOM) }
    }

    #[cold]
    fn grow(&mut self) {
        let mut larger = Keyed { grows: true, ..Keyed::new(self.room * 2) };
        for (key, value) in self.places.iter().filter(|(key, _)| *key != NOBODY) {
            larger.insert(*key, *value);
        }
        *self = larger;
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether something stands under the key.
    pub fn has(&self, key: u64) -> bool {
        self.find(key).is_ok()
    }

    /// All values.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.places.iter().filter(|(key, _)| *key != NOBODY).map(|(_, value)| value)
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = u64> {
        self.places.iter().map(|(key, _)| *key).filter(|key| *key != NOBODY)
    }

    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - self.places.len().trailing_zeros())) as usize
    }

    fn find(&self, key: u64) -> Result<usize, usize> {
        let mask = self.places.len() - 1;
        let mut at = self.home(key);
        loop {
            match self.places[at].0 {
                NOBODY => return Err(at),
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

    /// What stands under the key.
    pub fn get(&self, key: u64) -> Option<&V> {
        self.find(key).ok().map(|at| &self.places[at].1)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, key: u64) -> Option<&mut V> {
        self.find(key).ok().map(|at| &mut self.places[at].1)
    }

    /// Puts a value under a key.
    ///
    /// # Panics
    /// With more keys than there is room for: whoever uses it knows their bound.
    pub fn insert(&mut self, key: u64, value: V) {
        match self.find(key) {
            Ok(at) => self.places[at].1 = value,
            Err(_) if self.grows && self.len == self.room => {
                self.grow();
                self.insert(key, value);
            }
            Err(at) => {
                assert!(self.len < self.room, "more keys than the table was made for");
                self.places[at] = (key, value);
                self.len += 1;
            }
        }
    }

    /// Takes a key away, and gives its value.
    pub fn remove(&mut self, key: u64) -> Option<V> {
        let at = self.find(key).ok()?;
        let value = self.places[at].1;
        let mask = self.places.len() - 1;
        // Those that stand further on because this place was taken move up, so that no search ends too early.
        let (mut hole, mut next) = (at, (at + 1) & mask);
        while self.places[next].0 != NOBODY {
            let home = self.home(self.places[next].0);
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.places[hole] = self.places[next];
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.places[hole].0 = NOBODY;
        self.len -= 1;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::Keyed;

    #[test]
    fn it_does_what_an_ordinary_map_does() {
        does_the_same(Keyed::new(40), 40, 64);
    }

    #[test]
    fn so_does_one_that_grows() {
        does_the_same(Keyed::growing(), 900, 1000);
    }

    fn does_the_same(mut table: Keyed<u64>, most: usize, keys: u64) {
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
