//! A simulated disk: its medium, its volatile cache, and what a crash leaves of them.
//!
//! A write *lands* in the cache at some time between its submission and its completion, in one or several parts. Reads
//! see landed data. It becomes durable by FUA, by a flush that began after the write had completed, or by luck: at a
//! power cut each torn unit (512 or 4096 bytes) keeps the durable content or that of any later write, independently of
//! its neighbours.
//!
//! A failed flush leaves the data in the cache readable and *doomed*: no later flush makes it durable, and reopening
//! the disk decides what remains. (Linux's page cache and many disks behave like this.)

mod profile;

use std::collections::{BTreeMap, BTreeSet};

pub use profile::Profile;

use crate::content::{self, BLOCK_BYTES, BLOCK_SECTORS, SECTOR_BYTES};
use crate::rng::Rng;

type Block = Box<[u8; BLOCK_BYTES]>;

/// A write to one block that is not durable yet.
#[derive(Clone)]
struct Pending {
    op: u64,
    /// The ordinal of the write's completion on this disk; `None` while the write is in flight.
    completed: Option<u64>,
    sectors: u8,
    doomed: bool,
    data: Block,
}

#[derive(Clone, Default)]
struct BlockState {
    /// The content on the medium; `None`: the factory content (zeros or junk).
    durable: Option<Block>,
    /// The writes that are only in the cache, in the order in which they landed.
    pending: Vec<Pending>,
}

/// What a power cut leaves of unflushed data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Survival {
    /// All of it is lost.
    None,
    /// All of it survives.
    All,
    /// Each torn unit is newer than the durable content with this chance in a million, independently.
    Some(u32),
}

/// A copy of the whole content of a disk.
pub struct Image(Vec<BlockState>);

impl Image {
    /// Returns whether both images are of disks of the same size.
    pub fn has_size_of(&self, other: &Image) -> bool {
        self.0.len() == other.0.len()
    }
}

/// A disk, independent of the process that uses it.
pub struct SimDisk {
    /// Number of the disk, for junk and traces.
    pub id: u64,
    /// Its timing and faults.
    pub profile: Profile,
    blocks: Vec<BlockState>,
    dirty: BTreeSet<usize>,
    unreadable: BTreeSet<u64>,
    /// Of the unreadable sectors, those that [`SimDisk::heal`] does not restore.
    dead: BTreeSet<u64>,
    completions: u64,
    junk: bool,
    /// The disk does not respond: it was pulled, and its cache has lost power.
    pub gone: bool,
    /// A flush failed since the disk was last opened.
    pub flush_failed: bool,
    /// The disk is a file and its file system is full: blocks that were never written cannot be written.
    pub full: bool,
}

impl SimDisk {
    /// Creates a disk of `size_bytes`, a multiple of 4096. With `junk` it is full of junk, otherwise of zeros.
    pub fn new(id: u64, size_bytes: u64, junk: bool, profile: Profile) -> SimDisk {
        assert_eq!(size_bytes % BLOCK_BYTES as u64, 0);
        let blocks = (0..size_bytes / BLOCK_BYTES as u64).map(|_| BlockState::default()).collect();
        SimDisk {
            id,
            profile,
            blocks,
            dirty: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            dead: BTreeSet::new(),
            completions: 0,
            junk,
            gone: false,
            flush_failed: false,
            full: false,
        }
    }

    /// Returns whether a write needs space that the file system below does not have.
    pub fn lacks_space(&self, offset: u64, len: u64) -> bool {
        let blocks = (offset / BLOCK_BYTES as u64) as usize..(offset + len).div_ceil(BLOCK_BYTES as u64) as usize;
        let is_new = |slot: &BlockState| slot.durable.is_none() && slot.pending.is_empty();
        self.full && self.blocks[blocks].iter().any(is_new)
    }

    /// Returns its size in bytes.
    pub fn size_bytes(&self) -> u64 {
        (self.blocks.len() * BLOCK_BYTES) as u64
    }

    /// Enlarges the disk to `size_bytes`, a multiple of 4096. Its content keeps its place.
    pub fn enlarge(&mut self, size_bytes: u64) {
        assert!(size_bytes >= self.size_bytes() && size_bytes.is_multiple_of(BLOCK_BYTES as u64));
        self.blocks.resize((size_bytes / BLOCK_BYTES as u64) as usize, BlockState::default());
    }

    /// Returns the number of sectors that are in the cache only.
    pub fn dirty_sectors(&self) -> u64 {
        self.dirty.iter().flat_map(|b| &self.blocks[*b].pending).map(|p| u64::from(p.sectors.count_ones())).sum()
    }

    /// Reads the current content at `offset`. Returns false if one of the sectors is unreadable.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        let mut readable = true;
        for_blocks(offset, out.len(), |block, from, to, at| {
            let piece = &mut out[at..at + (to - from)];
            let slot = &self.blocks[block];
            if let Some(durable) =
                slot.durable.as_ref().filter(|_| slot.pending.is_empty() && self.unreadable.is_empty())
            {
                return piece.copy_from_slice(&durable[from..to]);
            }
            for (i, bytes) in piece.chunks_exact_mut(SECTOR_BYTES).enumerate() {
                let sector = from / SECTOR_BYTES + i;
                self.read_sector(block, sector, bytes);
                readable &= !self.unreadable.contains(&((block * BLOCK_SECTORS + sector) as u64));
            }
        });
        readable
    }

    fn read_sector(&self, block: usize, sector: usize, out: &mut [u8]) {
        let slot = &self.blocks[block];
        let newest = slot.pending.iter().rev().find(|p| p.sectors & (1 << sector) != 0);
        match newest.map(|p| &p.data).or(slot.durable.as_ref()) {
            Some(data) => out.copy_from_slice(&data[sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES]),
            None => self.factory(block, sector, out),
        }
    }

    fn factory(&self, block: usize, sector: usize, out: &mut [u8]) {
        if self.junk {
            content::write_junk(self.id, (block * BLOCK_SECTORS + sector) as u64, out);
        } else {
            out.fill(0);
        }
    }

    /// Lands a part of a write in the cache: `data` at `offset`, both multiples of 512 bytes.
    pub fn land(&mut self, op: u64, offset: u64, data: &[u8]) {
        for_blocks(offset, data.len(), |block, from, to, at| {
            let mut bytes: Block = Box::new([0; BLOCK_BYTES]);
            bytes[from..to].copy_from_slice(&data[at..at + (to - from)]);
            let sectors = sector_mask(from / SECTOR_BYTES, to / SECTOR_BYTES);
            for sector in from / SECTOR_BYTES..to / SECTOR_BYTES {
                let sector = (block * BLOCK_SECTORS + sector) as u64;
                self.unreadable.remove(&sector);
                self.dead.remove(&sector);
            }
            self.blocks[block].pending.push(Pending { op, completed: None, sectors, doomed: false, data: bytes });
            self.dirty.insert(block);
        });
    }

    /// Completes a write successfully. With `durable` (FUA, or a disk without a cache) its data is on the medium.
    pub fn complete_write(&mut self, op: u64, offset: u64, len: usize, durable: bool) {
        self.completions += 1;
        let now = self.completions;
        let durable = durable || !self.profile.volatile;
        let mut touched = Vec::new();
        for_blocks(offset, len, |block, _, _, _| touched.push(block));
        for block in touched {
            for pending in self.blocks[block].pending.iter_mut().filter(|p| p.op == op) {
                pending.completed = Some(now);
            }
            if durable {
                self.settle(block, |p| p.op == op);
            }
        }
    }

    /// Returns the mark of a flush that is submitted now, for [`SimDisk::complete_flush`].
    pub fn flush_begins(&self) -> u64 {
        self.completions
    }

    /// Completes a flush successfully: every write completed before it was submitted is durable.
    pub fn complete_flush(&mut self, begun: u64) {
        for block in self.dirty.clone() {
            self.settle(block, |p| !p.doomed && p.completed.is_some_and(|c| c <= begun));
        }
    }

    /// Fails a flush: cached data does not become durable any more, except by luck.
    pub fn fail_flush(&mut self, rng: &mut Rng) {
        self.flush_failed = true;
        for block in self.dirty.clone() {
            for pending in &mut self.blocks[block].pending {
                pending.doomed |= pending.completed.is_some() && rng.coin();
            }
        }
    }

    /// Moves the writes of a block that `ready` selects to the medium, and drops those that they overwrite.
    fn settle(&mut self, block: usize, ready: impl Fn(&Pending) -> bool) {
        let Some(last) = self.blocks[block].pending.iter().rposition(&ready) else { return };
        if self.blocks[block].pending[last].sectors == u8::MAX {
            // A full-block write overwrites all earlier ones.
            let slot = &mut self.blocks[block];
            slot.durable = slot.pending.drain(..=last).next_back().map(|p| p.data);
            if slot.pending.is_empty() {
                self.dirty.remove(&block);
            }
            return;
        }
        let mut image = self.durable_image(block);
        let slot = &mut self.blocks[block];
        let mut settled = 0u8;
        for i in (0..=last).rev() {
            let pending = &mut slot.pending[i];
            // An older write that is not ready is overwritten where a newer one reached the medium.
            let sectors = pending.sectors & !settled;
            if ready(pending) {
                copy_sectors(&pending.data, &mut image, sectors);
                settled |= sectors;
                pending.sectors = 0;
            } else {
                pending.sectors = sectors;
            }
        }
        slot.pending.retain(|p| p.sectors != 0);
        slot.durable = Some(image);
        if slot.pending.is_empty() {
            self.dirty.remove(&block);
        }
    }

    fn durable_image(&self, block: usize) -> Block {
        match &self.blocks[block].durable {
            Some(data) => data.clone(),
            None => {
                let mut image: Block = Box::new([0; BLOCK_BYTES]);
                for (sector, bytes) in image.chunks_exact_mut(SECTOR_BYTES).enumerate() {
                    self.factory(block, sector, bytes);
                }
                image
            }
        }
    }

    /// Cuts the power. Returns how many torn units lost data.
    pub fn cut_power(&mut self, survival: Survival, rng: &mut Rng) -> u64 {
        let unit = self.profile.torn_bytes / SECTOR_BYTES;
        let mut lost = 0;
        for block in std::mem::take(&mut self.dirty) {
            let mut image = self.durable_image(block);
            let slot = &mut self.blocks[block];
            for first in (0..BLOCK_SECTORS).step_by(unit) {
                let mask = sector_mask(first, first + unit);
                let there = slot.pending.iter().filter(|p| p.sectors & mask != 0).count();
                let keep = match survival {
                    Survival::None => 0,
                    Survival::All => there,
                    Survival::Some(p) if there > 0 && rng.chance(p) => rng.between(1, there as u64) as usize,
                    Survival::Some(_) => 0,
                };
                lost += u64::from(keep < there);
                for pending in slot.pending.iter().filter(|p| p.sectors & mask != 0).take(keep) {
                    copy_sectors(&pending.data, &mut image, pending.sectors & mask);
                }
            }
            slot.pending.clear();
            slot.durable = Some(image);
        }
        self.flush_failed = false;
        lost
    }

    /// Reopens the disk without loss of power: the fate of doomed data is decided now. Returns how many writes to a
    /// block were dropped.
    pub fn reopen(&mut self, rng: &mut Rng) -> u64 {
        let mut dropped = 0;
        for block in self.dirty.clone() {
            let slot = &mut self.blocks[block];
            slot.pending.retain_mut(|p| {
                let keep = !p.doomed || rng.coin();
                p.doomed = false;
                p.completed = p.completed.or(Some(0));
                dropped += u64::from(!keep);
                keep
            });
            if slot.pending.is_empty() {
                self.dirty.remove(&block);
            }
        }
        self.flush_failed = false;
        dropped
    }

    /// Copies the whole content of a disk that is not in use.
    pub fn image(&mut self, rng: &mut Rng) -> Image {
        self.cut_power(Survival::All, rng);
        Image(self.blocks.clone())
    }

    /// Restores the content of an image.
    pub fn restore(&mut self, image: Image, rng: &mut Rng) {
        self.cut_power(Survival::All, rng);
        self.blocks = image.0;
        self.heal();
    }

    /// Restores the factory content.
    pub fn wipe(&mut self) {
        self.blocks.iter_mut().for_each(|slot| *slot = BlockState::default());
        self.dirty.clear();
        self.unreadable.clear();
        self.dead.clear();
    }

    /// Makes a sector unreadable until it is written.
    pub fn make_unreadable(&mut self, offset: u64) {
        self.unreadable.insert(offset / SECTOR_BYTES as u64);
    }

    /// As [`SimDisk::make_unreadable`], and no repair of the disk restores it.
    pub fn make_unreadable_for_good(&mut self, offset: u64) {
        self.make_unreadable(offset);
        self.dead.insert(offset / SECTOR_BYTES as u64);
    }

    /// Makes every sector readable again, except those that are lost for good.
    pub fn heal(&mut self) {
        self.unreadable = self.dead.clone();
    }

    /// Flips a bit on the medium within `[offset, offset + len)`, without the disk noticing.
    pub fn rot(&mut self, offset: u64, len: u64, rng: &mut Rng) {
        let at = offset + rng.below(len);
        let block = (at / BLOCK_BYTES as u64) as usize;
        let mut image = self.durable_image(block);
        image[at as usize % BLOCK_BYTES] ^= 1 << rng.below(8);
        self.blocks[block].durable = Some(image);
    }

    /// Returns whether the disk or its cache holds these bytes as this sector of a block.
    pub fn holds(&self, sector: usize, bytes: &[u8]) -> bool {
        let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
        self.blocks.iter().any(|slot| {
            let newest = slot.pending.iter().rev().find(|p| p.sectors & (1 << sector) != 0);
            newest.map(|p| &p.data).or(slot.durable.as_ref()).is_some_and(|data| data[range.clone()] == *bytes)
        })
    }

    /// Replaces `wrong` by `right` wherever the disk or its cache holds it as this sector of a block.
    pub fn replace(&mut self, sector: usize, wrong: &[u8], right: &[u8]) {
        let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
        for slot in &mut self.blocks {
            for data in slot.pending.iter_mut().map(|p| &mut p.data).chain(slot.durable.as_mut()) {
                if data[range.clone()] == *wrong {
                    data[range.clone()].copy_from_slice(right);
                }
            }
        }
    }

    /// Returns whether a write to the block at `offset` has landed and is not durable.
    pub fn is_under_way(&self, offset: u64) -> bool {
        self.dirty.contains(&((offset / BLOCK_BYTES as u64) as usize))
    }

    /// Returns the offset of the first block that differs from the factory content, among those that `owned` does not
    /// claim.
    pub fn first_stray(&self, owned: impl Fn(u64) -> bool) -> Option<u64> {
        let touched = |(_, slot): &(usize, &BlockState)| slot.durable.is_some() || !slot.pending.is_empty();
        let offset = |(block, _): (usize, &BlockState)| (block * BLOCK_BYTES) as u64;
        let others = self.blocks.iter().enumerate().filter(touched).map(offset).filter(|offset| !owned(*offset));
        let (mut is, mut was) = ([0; SECTOR_BYTES], [0; SECTOR_BYTES]);
        let mut differs = |offset: &u64| {
            let block = (*offset / BLOCK_BYTES as u64) as usize;
            (0..BLOCK_SECTORS).any(|sector| {
                self.read_sector(block, sector, &mut is);
                self.factory(block, sector, &mut was);
                is != was
            })
        };
        others.into_iter().find(|offset| differs(offset))
    }

    /// Returns every block that was written, by block number: for comparing disks.
    pub fn written(&self) -> BTreeMap<u64, Vec<u8>> {
        let mut all = BTreeMap::new();
        for (block, slot) in self.blocks.iter().enumerate() {
            if slot.durable.is_some() || !slot.pending.is_empty() {
                let mut bytes = vec![0; BLOCK_BYTES];
                self.read((block * BLOCK_BYTES) as u64, &mut bytes);
                all.insert(block as u64, bytes);
            }
        }
        all
    }
}

/// Returns the bits of sectors `first..end` of a block.
pub fn sector_mask(first: usize, end: usize) -> u8 {
    (((1u16 << end) - 1) & !((1u16 << first) - 1)) as u8
}

fn copy_sectors(from: &[u8; BLOCK_BYTES], to: &mut [u8; BLOCK_BYTES], sectors: u8) {
    for sector in (0..BLOCK_SECTORS).filter(|s| sectors & (1 << s) != 0) {
        let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
        to[range.clone()].copy_from_slice(&from[range]);
    }
}

/// Calls `each(block, from, to, at)` for every block of a range: bytes `from..to` of the block are bytes `at..` of the
/// range.
fn for_blocks(offset: u64, len: usize, mut each: impl FnMut(usize, usize, usize, usize)) {
    assert!(
        offset.is_multiple_of(SECTOR_BYTES as u64) && len.is_multiple_of(SECTOR_BYTES),
        "unaligned: {offset}+{len}"
    );
    let (mut at, offset) = (0, offset as usize);
    while at < len {
        let (block, from) = ((offset + at) / BLOCK_BYTES, (offset + at) % BLOCK_BYTES);
        let to = BLOCK_BYTES.min(from + len - at);
        each(block, from, to, at);
        at += to - from;
    }
}

#[cfg(test)]
mod tests;
