//! The state after a power cut: the pool is opened from copies of what is durable, without an in-memory log, and all of
//! it is read.

use std::cell::RefCell;

use braid_engine::pool::{BLOCK_BYTES, BlockLocation, OpenPool, Pool, PoolDevice, open};
use braid_engine::{DeviceId, DeviceIo, IoError};

use braid_format::Uuid;

use super::oracle::Rule;
use super::rig::{BLOCK, Kind};
use super::world::{Heap, OWNER_SLOTS, POOL, World, now};

/// Copies of the members.
struct Copies(RefCell<Vec<Vec<u8>>>);

impl DeviceIo for Copies {
    fn size_bytes(&self, device: DeviceId) -> u64 {
        self.0.borrow()[device.0 as usize].len() as u64
    }
    fn block_bytes(&self, _device: DeviceId) -> u32 {
        4096
    }
    async fn read(&self, device: DeviceId, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
        Ok(self.0.borrow()[device.0 as usize][offset as usize..][..len].to_vec())
    }
    async fn write(&self, device: DeviceId, offset: u64, data: Vec<u8>, _fua: bool) -> Result<(), IoError> {
        self.0.borrow_mut()[device.0 as usize][offset as usize..][..data.len()].copy_from_slice(&data);
        Ok(())
    }
    async fn flush(&self, _device: DeviceId) -> Result<(), IoError> {
        Ok(())
    }
    async fn discard(&self, _device: DeviceId, _offset: u64, _len: u64) -> Result<(), IoError> {
        Ok(())
    }
}

impl World {
    /// Cuts the power, and checks that everything acknowledged as durable is there.
    pub fn check_durable(&mut self) {
        // Entries in the journal of an array with parity are not in place.
        if self.rig.members.iter().any(|member| matches!(member.kind, Kind::Parity | Kind::TwoParities)) {
            return;
        }
        self.count("power cuts");
        let mut images = Vec::new();
        for at in 0..self.rig.members.len() {
            let disk = self.rig.members[at].good();
            let image = self.rig.disks[disk].after_power_cut(&mut self.rig.random);
            images.push(image);
        }
        self.check_images(images, Rule::Power, None);
    }

    /// Opens the pool as another controller would, with the members as they are, and nothing of what is in memory:
    /// everything that was acknowledged is there, and what was read last.
    pub fn check_taken_over(&mut self, now: u64, read: Option<(Uuid, u64, Vec<u64>)>) {
        self.count("taken over");
        let disk = |at: usize| self.rig.disks[self.rig.members[at].good()].bytes.clone();
        let images = (0..self.rig.members.len()).map(disk).collect();
        self.check_images(images, Rule::Read(now), read);
    }

    fn check_images(&mut self, images: Vec<Vec<u8>>, rule: Rule, read: Option<(Uuid, u64, Vec<u64>)>) {
        let copies = Copies(RefCell::new(images));
        let what = OpenPool {
            uuid: POOL,
            members: &self.devices,
            owner_slots: OWNER_SLOTS,
            missing: 0,
            overwrites_unreadable: false,
            run: 99,
        };
        let opened = now(open(&copies, &what, |_| None, |_, bytes| Ok(Heap::of(bytes))));
        let mut pool = opened.unwrap_or_else(|why| panic!("the pool does not open: {why}, {}", self.run));
        let images = copies.0.into_inner();
        for known in self.known.values().filter(|known| known.is_there() && known.key == self.key) {
            let owner = pool.state().owners.iter().find(|owner| owner.uuid == known.uuid).map(|owner| owner.id);
            let owner = owner.unwrap_or_else(|| panic!("{} is gone, {}", known.uuid, self.run));
            let words = read_all(&mut pool, owner, &self.devices, &images, known.blocks.len() as u64);
            for (k, word) in words.iter().enumerate() {
                let rule = if known.read_only { Rule::Read(known.until) } else { rule };
                let allowed = known.blocks[k].admissible(known.until, rule);
                assert!(
                    allowed.contains(word),
                    "after {rule:?} block {k} of {} reads as {word:x}, not as one of {allowed:x?}: {:x?}, {}",
                    known.uuid,
                    known.blocks[k],
                    self.run
                );
            }
            if let Some((_, first, seen)) = read.as_ref().filter(|(uuid, ..)| *uuid == known.uuid) {
                let there = &words[*first as usize..][..seen.len()];
                assert_eq!(there, seen, "what was read of {} is not there, {}", known.uuid, self.run);
            }
        }
    }
}

fn read_all(pool: &mut Pool, owner: u32, devices: &[PoolDevice], images: &[Vec<u8>], blocks: u64) -> Vec<u64> {
    let served = pool.serve(owner).expect("it is there");
    let map = &pool.volume(served).expect("served").map;
    let records = &pool.shared().records;
    let mut words = Vec::with_capacity(blocks as usize);
    while (words.len() as u64) < blocks {
        match map.find(records, words.len() as u64, (blocks - words.len() as u64).min(64) as u32) {
            BlockLocation::Nothing { blocks } => words.extend((0..blocks).map(|_| 0)),
            BlockLocation::At { extent, position, blocks } => {
                let at = pool.extent_offset(extent) + u64::from(position) * BLOCK_BYTES;
                let image = &images[devices[usize::from(extent.member)].device.0 as usize];
                let word = |at: u64| u64::from_le_bytes(image[at as usize..][..8].try_into().expect("eight bytes"));
                words.extend((0..u64::from(blocks)).map(|k| word(at + k * BLOCK)));
            }
        }
    }
    pool.stop_serving(served);
    words
}
