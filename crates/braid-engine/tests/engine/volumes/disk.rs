//! An in-memory disk with a volatile cache: its content, and what of it is durable.

use super::rig::Random;

/// See the module's documentation.
pub struct Disk {
    pub bytes: Vec<u8>,
    durable: Vec<u8>,
    /// Writes that may be lost, in order: when, where, content; and durable writes in between.
    cache: Vec<(u64, usize, Vec<u8>, bool)>,
}

impl Disk {
    /// Creates a disk filled with this byte.
    pub fn new(bytes: u64, full_of: u8) -> Disk {
        let bytes = vec![full_of; bytes as usize];
        Disk { durable: bytes.clone(), bytes, cache: Vec::new() }
    }

    pub fn write(&mut self, now: u64, at: usize, data: &[u8], durable: bool) {
        self.bytes[at..at + data.len()].copy_from_slice(data);
        if durable {
            self.durable[at..at + data.len()].copy_from_slice(data);
        }
        // Durable writes are included: earlier writes of the cache must not be written over them.
        self.cache.push((now, at, data.to_vec(), durable));
    }

    /// Records that a flush has ended that began at `mark`.
    pub fn flushed(&mut self, mark: u64) {
        let old = self.cache.iter().take_while(|(when, ..)| *when < mark).count();
        for (_, at, data, _) in self.cache.drain(..old) {
            self.durable[at..at + data.len()].copy_from_slice(&data);
        }
    }

    /// Returns the content after a power cut: of what was not flushed nothing, or some.
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
