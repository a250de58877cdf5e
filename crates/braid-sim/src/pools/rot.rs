//! Metadata that rot: after a crash some sectors of a member hold something else. The story itself goes on as if nothing had been; what
//! rots does so in copies of its world.
//!
//! Nothing that was committed may be missing afterwards without a word: a start that does not notice serves what it would have served.

use braid_format::pool::{RING_START_BYTES, RingStart};

use super::disk::Disk;
use super::world::{BLOCK, Check, World};
use crate::rng::{Rng, mix};

const SECTOR: u64 = 512;

impl World {
    /// After a crash, in some seeds: what would a start do if some had rotted?
    pub(super) fn rot(&mut self) -> Check {
        let seed = mix(self.hash ^ 0x726f_7474);
        if !seed.is_multiple_of(3) || !self.away.is_empty() {
            return Ok(());
        }
        let mut world = self.fork();
        world.rng = Rng::new(seed);
        let checked = world.rot_ring();
        self.counters.merge(&world.counters);
        checked.map_err(|why| format!("with rot: {why}"))
    }

    /// A ring rots, or the starts of one.
    fn rot_ring(&mut self) -> Check {
        // What the tail says would come again.
        self.shm.clear();
        let mut whole = self.fork();
        whole.try_open(u64::MAX, None).map_err(|why| format!("the pool does not open as it was: {why}"))?;
        let committed = whole.newest_start();
        let device = *self.rng.pick(&self.devices.clone());
        let disk = &mut self.disks[usize::from(device.number)];
        let newest = start_of(disk, device.places.starts);
        let (ring, blocks) = device.ring;
        match self.rng.below(3) {
            0 => {
                // The newest start alone: what a start finds then is the one before.
                let at = device.places.starts + newest.generation % 2 * BLOCK;
                spoil(disk, at, RING_START_BYTES as u64 / SECTOR, &mut self.rng);
                self.counters.add("rot", "ring starts", 1);
            }
            draw => {
                // Near the start that counts there is most to find.
                let from = if draw == 1 { u64::from(newest.position) } else { 0 };
                let at = ring + (from + self.rng.below(if draw == 1 { 8 } else { blocks })) % blocks * BLOCK;
                spoil(disk, at, BLOCK / SECTOR, &mut self.rng);
                self.counters.add("rot", "rings", 1);
            }
        }
        match self.try_open(u64::MAX, None) {
            Ok(_) => {
                let found = self.newest_start();
                if found < committed {
                    self.counters.add("rot", "the last commit is torn", 1);
                }
                // A last commit of which something is damaged looks like one that a crash cut off.
                if found + 1 < committed {
                    return Err(format!("commits up to {committed} counted, and of {found} alone a start knows"));
                }
                Ok(())
            }
            Err(why) if why.contains("are damaged") || why.contains("no valid start") => {
                self.counters.add("rot", "rings refused", 1);
                Ok(())
            }
            Err(why) => Err(why),
        }
    }

    /// The last commit that any start of a ring speaks of.
    fn newest_start(&self) -> u64 {
        let of = |device: &braid_engine::pool::PoolDevice| {
            start_of(&self.disks[usize::from(device.number)], device.places.starts).commit
        };
        self.devices.iter().map(of).max().unwrap_or(0)
    }
}

fn start_of(disk: &Disk, starts: u64) -> RingStart {
    let bytes = disk.read(starts, 2 * RING_START_BYTES);
    let valid = bytes.as_chunks::<RING_START_BYTES>().0.iter().filter_map(|block| RingStart::decode(block).ok());
    valid.max_by_key(|start| start.generation).expect("a member has a start")
}

/// One of these sectors holds something else from now on: a bit of it, or all.
pub(super) fn spoil(disk: &mut Disk, first_byte: u64, sectors: u64, rng: &mut Rng) {
    let at = first_byte + rng.below(sectors) * SECTOR;
    let mut bytes = disk.read(at, SECTOR as usize);
    if rng.coin() {
        bytes[rng.index(SECTOR as usize)] ^= 1 << rng.below(8);
    } else {
        bytes.iter_mut().for_each(|byte| *byte = rng.bits() as u8);
    }
    disk.write(at, &bytes);
    let mark = disk.mark();
    disk.flushed(mark);
}
