//! A member's disk. Its metadata is stored as bytes; a data block is one word that names its writer.
//!
//! Written data stay in a cache until a flush that began after the write has ended. A power cut decides for each cached
//! sector separately whether it is lost.

use std::collections::BTreeMap;

use crate::rng::Rng;

const SECTOR: usize = 512;
const BLOCK: u64 = 4096;

/// A member's disk; see the module documentation.
#[derive(Clone)]
pub struct Disk {
    meta: Vec<u8>,
    /// The versions of each sector that are not durable yet: time of the write, and content.
    meta_cache: BTreeMap<u64, Vec<(u64, [u8; SECTOR])>>,
    data: Vec<u64>,
    data_cache: BTreeMap<u64, Vec<(u64, u64)>>,
    /// The disk's clock, which counts completed writes.
    now: u64,
}

impl Disk {
    /// Creates a disk of `meta_bytes` bytes of metadata followed by `blocks` blocks of data, all zeros.
    pub fn new(meta_bytes: u64, blocks: u64) -> Disk {
        Disk {
            meta: vec![0; meta_bytes as usize],
            meta_cache: BTreeMap::new(),
            data: vec![0; blocks as usize],
            data_cache: BTreeMap::new(),
            now: 0,
        }
    }

    /// Returns the offset of the first data byte.
    pub fn data_start(&self) -> u64 {
        self.meta.len() as u64
    }

    /// Reads metadata, including what is still cached.
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

    /// Writes metadata into the cache.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        assert!(offset as usize + data.len() <= self.meta.len(), "metadata stay before the data");
        self.now += 1;
        for (k, sector) in (offset / SECTOR as u64..).zip(data.as_chunks::<SECTOR>().0) {
            self.meta_cache.entry(k).or_default().push((self.now, *sector));
        }
    }

    /// Returns the data block at this byte offset of the disk.
    pub fn block(&self, offset: u64) -> u64 {
        let index = (offset - self.data_start()) / BLOCK;
        self.data_cache
            .get(&index)
            .map_or(self.data[index as usize], |versions| versions.last().expect("never empty").1)
    }

    /// Writes the data block at this byte offset into the cache.
    pub fn set_block(&mut self, offset: u64, word: u64) {
        self.now += 1;
        let index = (offset - self.data_start()) / BLOCK;
        self.data_cache.entry(index).or_default().push((self.now, word));
    }

    /// Tears a write of metadata: only some of its sectors or blocks arrive.
    pub fn write_torn(&mut self, offset: u64, data: &[u8], rng: &mut Rng) {
        let unit = if rng.coin() { SECTOR } else { BLOCK as usize };
        let some = *rng.pick(&[100_000, 500_000, 900_000]);
        for (at, part) in (offset..).step_by(unit).zip(data.chunks(unit)) {
            if rng.chance(some) {
                self.write(at, part);
            }
        }
    }

    /// Discards an extent. Its content is undefined afterwards, so a recognizable word is written.
    pub fn discard(&mut self, offset: u64) {
        for k in 0..64 {
            self.set_block(offset + k * BLOCK, 0xdead);
        }
    }

    /// Makes the current content of a data block durable, as a write with FUA does.
    pub fn settle_block(&mut self, offset: u64) {
        let index = (offset - self.data_start()) / BLOCK;
        if let Some(versions) = self.data_cache.remove(&index) {
            self.data[index as usize] = versions.last().expect("never empty").1;
        }
    }

    /// Returns the disk's clock, to be passed to [`Disk::flushed`]: a flush that begins now covers every write
    /// completed up to now.
    pub fn mark(&self) -> u64 {
        self.now
    }

    /// Ends a flush that began at this mark.
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

    /// Cuts the power: each cached sector is lost or keeps one of its versions. `survives` is the chance per million
    /// that it keeps one.
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
