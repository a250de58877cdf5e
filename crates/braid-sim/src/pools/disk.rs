//! A member of a pool: its metadata are bytes, each block of its data is one word that names who wrote it.
//!
//! What is written stays in a cache until a flush that began later has ended; at a power cut each sector of the cache is lost or not by itself.

use std::collections::BTreeMap;

use crate::rng::Rng;

const SECTOR: usize = 512;
const BLOCK: u64 = 4096;

/// See the module's page.
#[derive(Clone)]
pub struct Disk {
    meta: Vec<u8>,
    /// By sector, what was written and is not durable: when, and what.
    meta_cache: BTreeMap<u64, Vec<(u64, [u8; SECTOR])>>,
    data: Vec<u64>,
    data_cache: BTreeMap<u64, Vec<(u64, u64)>>,
    /// Rises with everything that ends.
    now: u64,
}

impl Disk {
    /// So many bytes of metadata, then so many blocks of data. All zeros.
    pub fn new(meta_bytes: u64, blocks: u64) -> Disk {
        Disk {
            meta: vec![0; meta_bytes as usize],
            meta_cache: BTreeMap::new(),
            data: vec![0; blocks as usize],
            data_cache: BTreeMap::new(),
            now: 0,
        }
    }

    /// First byte of the data.
    pub fn data_start(&self) -> u64 {
        self.meta.len() as u64
    }

    /// Reads metadata, as they are in the cache.
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let start = offset as usize;
        let mut bytes = self.meta[start..start + len].to_vec();
        let first = offset / SECTOR as u64;
        for (sector, versions) in self.meta_cache.range(first..(offset + len as u64).div_ceil(SECTOR as u64)) {
            let at = (*sector - first) as usize * SECTOR;
            bytes[at..at + SECTOR].copy_from_slice(&versions.last().expect("never empty").1);
        }
        bytes
    }

    /// Writes metadata.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        assert!(offset as usize + data.len() <= self.meta.len(), "metadata stay before the data");
        self.now += 1;
        for (k, sector) in (offset / SECTOR as u64..).zip(data.as_chunks::<SECTOR>().0) {
            self.meta_cache.entry(k).or_default().push((self.now, *sector));
        }
    }

    /// A block of the data, by its offset on the disk.
    pub fn block(&self, offset: u64) -> u64 {
        let index = (offset - self.data_start()) / BLOCK;
        self.data_cache
            .get(&index)
            .map_or(self.data[index as usize], |versions| versions.last().expect("never empty").1)
    }

    /// Writes a block of the data.
    pub fn set_block(&mut self, offset: u64, word: u64) {
        self.now += 1;
        let index = (offset - self.data_start()) / BLOCK;
        self.data_cache.entry(index).or_default().push((self.now, word));
    }

    /// A write of metadata of which only some sectors arrive, or some blocks.
    pub fn write_torn(&mut self, offset: u64, data: &[u8], rng: &mut Rng) {
        let unit = if rng.coin() { SECTOR } else { BLOCK as usize };
        let some = *rng.pick(&[100_000, 500_000, 900_000]);
        for (at, part) in (offset..).step_by(unit).zip(data.chunks(unit)) {
            if rng.chance(some) {
                self.write(at, part);
            }
        }
    }

    /// An extent is discarded: nobody may depend on what that leaves.
    pub fn discard(&mut self, offset: u64) {
        for k in 0..64 {
            self.set_block(offset + k * BLOCK, 0xdead);
        }
    }

    /// What a block holds now is durable, by a write that asked for it.
    pub fn settle_block(&mut self, offset: u64) {
        let index = (offset - self.data_start()) / BLOCK;
        if let Some(versions) = self.data_cache.remove(&index) {
            self.data[index as usize] = versions.last().expect("never empty").1;
        }
    }

    /// What a flush that begins now covers.
    pub fn mark(&self) -> u64 {
        self.now
    }

    /// A flush that began at this mark has ended.
    pub fn flushed(&mut self, mark: u64) {
        let Disk { meta, meta_cache, data, data_cache, .. } = self;
        settle(
            meta_cache,
            |when| when <= mark,
            |sector, bytes: [u8; SECTOR]| {
                meta[sector as usize * SECTOR..][..SECTOR].copy_from_slice(&bytes);
            },
        );
        settle(data_cache, |when| when <= mark, |index, word| data[index as usize] = word);
    }

    /// The power is cut: of each sector some version survives.
    pub fn power_cut(&mut self, rng: &mut Rng, survives: u32) {
        let Disk { meta, meta_cache, data, data_cache, .. } = self;
        for (sector, versions) in std::mem::take(meta_cache) {
            if rng.chance(survives) {
                let bytes = rng.pick(&versions).1;
                meta[sector as usize * SECTOR..][..SECTOR].copy_from_slice(&bytes);
            }
        }
        for (index, versions) in std::mem::take(data_cache) {
            if rng.chance(survives) {
                data[index as usize] = rng.pick(&versions).1;
            }
        }
    }
}

fn settle<V: Copy>(
    cache: &mut BTreeMap<u64, Vec<(u64, V)>>,
    is_old: impl Fn(u64) -> bool,
    mut put: impl FnMut(u64, V),
) {
    cache.retain(|key, versions| {
        let old = versions.iter().take_while(|(when, _)| is_old(*when)).count();
        if let Some((_, last)) = versions[..old].last() {
            put(*key, *last);
        }
        versions.drain(..old);
        !versions.is_empty()
    });
}
