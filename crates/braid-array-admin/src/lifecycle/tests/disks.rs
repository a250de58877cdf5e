//! Disks in memory with a volatile cache, which a power cut or a kill can interrupt at any step.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard};
use std::task::Poll;

use braid_engine::{ErrorKind, LeafError, LeafId, MetaIo};

const SECTOR: u64 = 512;

/// A small random generator (SplitMix64, Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// How a run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// Any subset of what was not durable survives.
    Power,
    /// The process dies; the disks' caches survive.
    Kill,
}

#[derive(Clone, Default)]
struct Disk {
    size: u64,
    /// Sectors that would survive a power cut, if they differ from the disk's first content.
    durable: BTreeMap<u64, [u8; 512]>,
    /// Writes in the cache, oldest first.
    cached: Vec<(u64, [u8; 512])>,
}

/// What was transferred so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Transfers {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
}

#[derive(Clone, Default)]
struct State {
    disks: Vec<Disk>,
    /// Writes and flushes so far.
    steps: u64,
    transfers: Transfers,
    /// The power fails in the middle of this step.
    cut_at: Option<u64>,
    dead: bool,
    /// Writes to this disk fail from this step on, this many times.
    failing: Option<(LeafId, u64, u64)>,
    /// A power cut never spoils the sector that is being written.
    gentle: bool,
    /// How often each operation yields first; varies the interleaving.
    chance: Option<Chance>,
}

#[derive(Default)]
pub struct Disks(Mutex<State>);

impl Clone for Disks {
    fn clone(&self) -> Disks {
        Disks(Mutex::new(self.state().clone()))
    }
}

/// Returns what a disk holds before anything is written: noise without any signature.
fn first_content(leaf: usize, sector: u64) -> [u8; 512] {
    let mut chance = Chance(leaf as u64 * 1_000_003 + sector);
    let mut bytes = [0; 512];
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&chance.next().to_le_bytes()));
    bytes
}

impl Disk {
    fn get(&self, leaf: usize, sector: u64) -> [u8; 512] {
        let cached = self.cached.iter().rev().find(|(at, _)| *at == sector).map(|(_, bytes)| *bytes);
        cached.or_else(|| self.durable.get(&sector).copied()).unwrap_or_else(|| first_content(leaf, sector))
    }

    fn settle(&mut self) {
        self.durable.extend(self.cached.drain(..));
    }
}

impl Disks {
    pub fn new(sizes: &[u64]) -> Disks {
        let disk = |size: &u64| Disk { size: *size, ..Disk::default() };
        Disks(Mutex::new(State { disks: sizes.iter().map(disk).collect(), ..State::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn steps(&self) -> u64 {
        self.state().steps
    }

    /// Returns what was transferred since the last call.
    pub fn take_transfers(&self) -> Transfers {
        std::mem::take(&mut self.state().transfers)
    }

    /// Resets the step count; the power fails in the middle of step `at`.
    pub fn cut_at(&self, at: Option<u64>, seed: u64) {
        let mut state = self.state();
        (state.steps, state.cut_at, state.dead, state.chance) = (0, at, false, Some(Chance(seed)));
    }

    /// Resets the step count; from step `at` on, `count` writes and flushes to this disk fail.
    pub fn fail(&self, leaf: LeafId, at: u64, count: u64) {
        let mut state = self.state();
        (state.steps, state.cut_at, state.dead) = (0, None, false);
        state.failing = Some((leaf, at, count));
    }

    /// Lets the power fail in the middle of step `at`, without resetting the step count.
    pub fn cut_later(&self, at: Option<u64>) {
        self.state().cut_at = at;
    }

    /// From now on a power cut leaves each sector either old or new.
    pub fn be_gentle(&self) {
        self.state().gentle = true;
    }

    pub fn heal(&self) {
        self.state().failing = None;
    }

    /// Brings the disks back after a crash.
    pub fn crash(&self, how: Crash, chance: &mut Chance) {
        let mut state = self.state();
        (state.cut_at, state.dead, state.steps) = (None, false, 0);
        if how == Crash::Kill {
            return;
        }
        let gentle = state.gentle;
        for disk in &mut state.disks {
            // All lost, all kept, or each by chance; some disks tear at 512 bytes, some at 4096.
            let kept = [0, 50, 100][chance.below(3) as usize];
            let whole_blocks = chance.below(2) == 0;
            // Some disks spoil the sector that they were just writing.
            let spoiled = [0, 0, 40][chance.below(3) as usize];
            let mut last = (u64::MAX, false);
            for (sector, bytes) in std::mem::take(&mut disk.cached) {
                if !whole_blocks || last.0 != sector / 8 {
                    last = (sector / 8, chance.below(100) < kept);
                }
                if chance.below(100) < spoiled && !gentle {
                    disk.durable.insert(sector, first_content(99, chance.next()));
                } else if last.1 {
                    disk.durable.insert(sector, bytes);
                }
            }
        }
    }

    /// Returns the bytes that a read would return now.
    pub fn peek(&self, leaf: LeafId, offset: u64, len: usize) -> Vec<u8> {
        let state = self.state();
        let disk = &state.disks[leaf.0 as usize];
        let mut bytes = Vec::with_capacity(len);
        for sector in offset / SECTOR..(offset + len as u64) / SECTOR {
            bytes.extend_from_slice(&disk.get(leaf.0 as usize, sector));
        }
        bytes
    }

    /// Writes durably, bypassing the code under test.
    pub fn poke(&self, leaf: LeafId, offset: u64, bytes: &[u8]) {
        let mut state = self.state();
        let disk = &mut state.disks[leaf.0 as usize];
        for (i, sector) in bytes.chunks_exact(512).enumerate() {
            disk.durable.insert(offset / SECTOR + i as u64, sector.try_into().unwrap());
        }
    }

    /// Writes to the cache only.
    pub fn poke_cached(&self, leaf: LeafId, offset: u64, bytes: &[u8]) {
        let mut state = self.state();
        let disk = &mut state.disks[leaf.0 as usize];
        for (i, sector) in bytes.chunks_exact(512).enumerate() {
            disk.cached.push((offset / SECTOR + i as u64, sector.try_into().unwrap()));
        }
    }

    /// Changes a disk's size; its content stays.
    pub fn resize(&self, leaf: LeafId, size: u64) {
        self.state().disks[leaf.0 as usize].size = size;
    }

    /// Makes one disk equal to another, including the cache.
    pub fn copy_disk(&self, from: LeafId, to: LeafId) {
        let mut state = self.state();
        state.disks[to.0 as usize] = state.disks[from.0 as usize].clone();
    }

    /// Makes one disk an image of another: its content as read, cached or not, all of it durable.
    pub fn image_disk(&self, from: LeafId, to: LeafId) {
        let mut state = self.state();
        let mut image = state.disks[from.0 as usize].clone();
        for (sector, bytes) in std::mem::take(&mut image.cached) {
            image.durable.insert(sector, bytes);
        }
        state.disks[to.0 as usize] = image;
    }

    /// Adds a disk with the same content as this one and another size.
    pub fn clone_disk(&self, leaf: LeafId, size: u64) -> LeafId {
        let mut state = self.state();
        let mut copy = state.disks[leaf.0 as usize].clone();
        // Its first content is the noise of another disk, which no test compares.
        copy.size = size;
        state.disks.push(copy);
        LeafId(state.disks.len() as u32 - 1)
    }

    /// Returns the byte offsets of sectors that differ from the disk's first content, in the cache or on the disk.
    pub fn changed(&self, leaf: LeafId) -> Vec<u64> {
        let state = self.state();
        let index = leaf.0 as usize;
        let disk = &state.disks[index];
        let mut sectors: Vec<u64> = disk.durable.keys().copied().chain(disk.cached.iter().map(|(s, _)| *s)).collect();
        sectors.sort_unstable();
        sectors.dedup();
        sectors.retain(|sector| disk.get(index, *sector) != first_content(index, *sector));
        sectors.into_iter().map(|sector| sector * SECTOR).collect()
    }

    async fn pause(&self) {
        let mut turns = self.state().chance.as_mut().map_or(0, |chance| chance.below(3));
        poll_fn(|_| {
            turns = turns.saturating_sub(1);
            if turns == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl State {
    /// Counts one step. `Err` if it must fail; the flag says whether the power failed in this very step.
    fn step(&mut self, leaf: LeafId) -> Result<bool, LeafError> {
        if self.dead {
            return Err(LeafError::of(ErrorKind::Gone));
        }
        let step = self.steps;
        self.steps += 1;
        if let Some((failing, from, count)) = &mut self.failing
            && *failing == leaf
            && step >= *from
            && *count > 0
        {
            *count -= 1;
            return Err(LeafError::of(ErrorKind::Io));
        }
        self.dead = self.cut_at == Some(step);
        Ok(self.dead)
    }
}

impl MetaIo for Disks {
    fn size_bytes(&self, leaf: LeafId) -> u64 {
        self.state().disks[leaf.0 as usize].size
    }

    async fn read(&self, leaf: LeafId, offset: u64, len: usize) -> Result<Vec<u8>, LeafError> {
        self.pause().await;
        if self.state().dead {
            return Err(LeafError::of(ErrorKind::Gone));
        }
        assert!(offset.is_multiple_of(4096) && len.is_multiple_of(4096), "unaligned read of {len} at {offset}");
        if offset + len as u64 > self.size_bytes(leaf) {
            return Err(LeafError::of(ErrorKind::Invalid));
        }
        self.state().transfers.reads += 1;
        self.state().transfers.read_bytes += len as u64;
        Ok(self.peek(leaf, offset, len))
    }

    async fn write(&self, leaf: LeafId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), LeafError> {
        self.pause().await;
        assert!(
            offset.is_multiple_of(4096) && data.len().is_multiple_of(4096),
            "unaligned write of {} at {offset}",
            data.len()
        );
        if offset + data.len() as u64 > self.size_bytes(leaf) {
            return Err(LeafError::of(ErrorKind::Invalid));
        }
        let cut = {
            let mut state = self.state();
            let moved = &mut state.transfers;
            (moved.writes, moved.written_bytes) = (moved.writes + 1, moved.written_bytes + data.len() as u64);
            state.step(leaf)?
        };
        self.poke_cached(leaf, offset, &data);
        if cut {
            return Err(LeafError::of(ErrorKind::Gone));
        }
        if fua {
            let mut state = self.state();
            let disk = &mut state.disks[leaf.0 as usize];
            let range = offset / SECTOR..(offset + data.len() as u64) / SECTOR;
            disk.cached.retain(|(sector, _)| !range.contains(sector));
            drop(state);
            self.poke(leaf, offset, &data);
        }
        Ok(())
    }

    async fn flush(&self, leaf: LeafId) -> Result<(), LeafError> {
        self.pause().await;
        let mut state = self.state();
        if state.step(leaf)? {
            return Err(LeafError::of(ErrorKind::Gone));
        }
        state.disks[leaf.0 as usize].settle();
        Ok(())
    }
}
