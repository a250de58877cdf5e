//! Two disks that are compared from outside.

use std::ops::Range;

use crate::content::BLOCK_BYTES;
use crate::world::World;

/// Two disks, and the data areas of a mirror's members on them.
pub struct DiskPair {
    pub(crate) disks: [usize; 2],
    pub(crate) data: [Range<u64>; 2],
}

impl DiskPair {
    /// Returns the ranges in which they differ now. Data beyond the smaller area is not compared.
    pub fn differing(&self, world: &World) -> Vec<Range<u64>> {
        let [one, other] = &self.data;
        let size_bytes = (one.end - one.start).min(other.end - other.start);
        let block = |at: u64, of: usize| {
            let mut bytes = vec![0; BLOCK_BYTES];
            let disk = &world.disks[self.disks[of]];
            (!disk.gone && disk.read(self.data[of].start + at, &mut bytes)).then_some(bytes)
        };
        let blocks = (0..size_bytes / BLOCK_BYTES as u64).map(|block| block * BLOCK_BYTES as u64);
        let differing_blocks = blocks.filter(|at| block(*at, 0).is_none_or(|bytes| Some(bytes) != block(*at, 1)));
        differing_blocks.map(|at| at..at + BLOCK_BYTES as u64).collect()
    }
}
