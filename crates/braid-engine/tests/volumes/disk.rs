//! A disk in memory with a cache that loses power: what it holds, and what of that is durable.

use super::rig::Random;

/// See the module's page.
pub struct Disk {
    pub bytes: Vec<u8>,
    durable: Vec<u8>,
    /// What may be lost, in the order in which it came: when, where, what; and what came between that is durable.
    cache: Vec<(u64, usize, Vec<u8>, bool)>,
}

impl Disk {
    /// A disk full of this.
    pub fn new(bytes: u64, full_of: u8) -> Disk {
        let bytes = vec![full_of; bytes as usize];
        Disk { durable: bytes.clone(), bytes, cache: Vec::new() }
    }

    pub fn write(&mut self, now: u64, at: usize, data: &[u8], durable: bool) {
        self.bytes[at..at + data.len()].copy_from_slice(data);
        if durable {
            self.durable[at..at + data.len()].copy_from_slice(data);
        }
        // Also what is durable: what came before it in the cache must not be written back over it.
        self.cache.push((now, at, data.to_vec(), durable));
    }

    /// A flush has ended that began at `mark`.
    pub fn flushed(&mut self, mark: u64) {
        let old = self.cache.iter().take_while(|(when, ..)| *when < mark).count();
        for (_, at, data, _) in self.cache.drain(..old) {
            self.durable[at..at + data.len()].copy_from_slice(&data);
        }
    }

    /// What is there after the power was cut: of what was not flushed nothing, or some.
    pub fn after_power_cut(&self, random: &mut Random) -> Vec<u8> {
        let mut image = self.durable.clone();
        let some = random.below(2) == 0;
        for (_, at, data, durable) in &self.cache {
            if *durable || some && random.below(2) == 0 {
                image[*at..*at + data.len()].copy_from_slice(data);
            }
        }
        image
    }
}
