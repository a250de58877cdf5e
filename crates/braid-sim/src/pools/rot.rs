//! Metadata that rot: after a crash some sectors of a member hold something else. The run itself continues as if
//! nothing had happened; the rot affects copies of its world only.
//!
//! No committed change may be missing afterwards without a report: a start that does not notice the rot must serve what
//! it would have served without it.

use braid_format::pool::{CHECKPOINT_BYTES, Checkpoint, RECORD_BYTES, Record, RecordKind};

use braid_engine::pool::{Pool, PoolDevice};

use super::disk::Disk;
use super::oracle::Rule;
use super::world::{BLOCK, Check, Options, World};
use crate::rng::{Rng, mix};

const SECTOR: u64 = 512;

impl World {
    /// After a crash of this kind, in some seeds, checks what a start does if some metadata have rotted.
    pub(super) fn rot(&mut self, rule: Rule) -> Check {
        let seed = mix(self.hash ^ 0x726f_7474);
        if !seed.is_multiple_of(2) || !self.missing.is_empty() {
            return Ok(());
        }
        let mut world = self.fork();
        (world.rng, world.add_chance) = (Rng::new(seed), 0);
        world.parameters.loses = 0;
        let checked = if world.rng.chance(300_000) { world.rot_ring() } else { world.rot_tables(rule) };
        self.counters.merge(&world.counters);
        checked.map_err(|why| format!("with rot: {why}"))
    }

    /// Rots tables: the pool continues without the records that cannot be trusted.
    fn rot_tables(&mut self, rule: Rule) -> Check {
        let device = *self.rng.pick(&self.devices.clone());
        let layout = device.layout;
        let packed = self.packed_on(&device);
        let disk = &mut self.disks[usize::from(device.number)];
        let (what, start, bytes, piece) = match self.rng.below(5) {
            0 => ("owners", layout.owners, u64::from(self.owner_slots) * 256, 256),
            1 if !packed.is_empty() => {
                ("addresses", layout.addresses + u64::from(*self.rng.pick(&packed)) * SECTOR, SECTOR, 8)
            }
            1 => ("addresses", layout.addresses, u64::from(device.extents) * 512, 8),
            _ => ("records", layout.table, u64::from(device.extents + device.zero_slots) * 32, 32),
        };
        let mut rotten = Vec::new();
        // Alternatively a page cannot be read until it is written again.
        let unread = self.rng.chance(200_000);
        if unread {
            let at = (start + self.rng.below(bytes)) / BLOCK * BLOCK;
            self.unreadable = Some((u32::from(device.number), at));
            self.counters.add("rot", "unreadable", 1);
        }
        for _ in 0..if unread { 0 } else { 1 + self.rng.below(3) } {
            rotten.push(spoil(disk, start, bytes.div_ceil(SECTOR), &mut self.rng));
        }
        self.counters.add("rot", what, 1);
        let mut opened = self.try_open(u64::MAX, None);
        let refused = |why: &String| unread && why.contains("all else that stands in them");
        // The administrator declares that the page will never be readable: everything else in it is damaged from then
        // on.
        let written_over = opened.as_ref().is_err_and(refused) && self.rng.coin();
        if written_over {
            self.counters.add("rot", "unreadable, and written over", 1);
            self.overwrites_unreadable = true;
            opened = self.try_open(u64::MAX, None);
            self.overwrites_unreadable = false;
        }
        self.unreadable = None;
        let mut pool = match opened {
            Ok((pool, _)) => pool,
            // No other member has a copy of the owners.
            Err(why) if what == "owners" && self.devices.len() == 1 && why.contains("list of owners") => {
                self.counters.add("rot", "owners refused", 1);
                return Ok(());
            }
            // Nothing is written over what may be readable the next time. The page is readable at the next start.
            Err(why) if refused(&why) => {
                self.counters.add("rot", "unreadable, and to be written", 1);
                return self.reopen(rule);
            }
            Err(why) => return Err(format!("of {what}, the pool does not open: {why}")),
        };
        let damaged = pool.damaged();
        if damaged.iter().any(|damaged| damaged.id.member != device.number) {
            return Err("something is damaged that is not".to_owned());
        }
        let number = if what == "records" { "records in doubt" } else { "extents with addresses in doubt" };
        self.counters.add("rot", number, damaged.len() as u64);
        self.rotten = if damaged.is_empty() { 0 } else { 1 << device.number };
        let accepts = !damaged.is_empty() && self.rng.coin();
        if accepts {
            self.counters.add("rot", "given up", 1);
            pool.accept_damage().map_err(|error| error.to_string())?;
        }
        self.pool = Some(pool);
        if accepts {
            (self.accepted_losses, self.rotten) = (1 << device.number, 0);
            if !is_undamaged(self.pool()) {
                return Err("what was given up is still damaged".to_owned());
            }
        }
        self.check_all(rule)?;
        let durable = accepts && self.rng.coin();
        if durable {
            self.quiesce()?;
        }
        let rule = self.run_on()?;
        if accepts {
            // An acceptance of damage that was not committed does not hold yet: the data may be in doubt again or,
            // after a single unreadable page, be intact.
            if !durable {
                self.rotten = 1 << device.number;
                self.accepted_losses |= if unread { self.rotten } else { 0 };
            }
        } else if written_over {
            self.rotten = 1 << device.number;
        } else {
            // The fault was transient: the old content is back.
            self.restore(&device, &rotten, piece);
            self.rotten = 0;
        }
        self.reopen(rule)
    }

    /// Runs for a while, up to a crash.
    fn run_on(&mut self) -> Result<Rule, String> {
        let options = Options { steps_mean: 80, ..Options::default() };
        self.run_life(&options)?;
        Ok(self.crash())
    }

    /// Returns the extents that a member's table calls packed.
    fn packed_on(&self, device: &PoolDevice) -> Vec<u32> {
        let bytes = (device.extents as usize * RECORD_BYTES).next_multiple_of(BLOCK as usize);
        let table = self.disks[usize::from(device.number)].read(device.layout.table, bytes);
        let records = (0..device.extents).zip(table.as_chunks::<RECORD_BYTES>().0);
        let packed = |(index, bytes): (u32, &[u8; RECORD_BYTES])| {
            let record = Record::decode(bytes, device.number, index).ok()?;
            (record.kind == RecordKind::Packed && record.present != 0).then_some(index)
        };
        records.filter_map(packed).collect()
    }

    /// Restores the rotten pieces that were not written since.
    fn restore(&mut self, device: &PoolDevice, rotten: &[Rotten], piece: usize) {
        let disk = &mut self.disks[usize::from(device.number)];
        for Rotten { at, was, is } in rotten.iter().rev() {
            let mut bytes = disk.read(*at, SECTOR as usize);
            for k in (0..SECTOR as usize).step_by(piece) {
                if bytes[k..k + piece] == is[k..k + piece] {
                    bytes[k..k + piece].copy_from_slice(&was[k..k + piece]);
                }
            }
            disk.write(*at, &bytes);
        }
        let mark = disk.mark();
        disk.flushed(mark);
    }

    /// Rots a ring, or its checkpoints.
    fn rot_ring(&mut self) -> Check {
        // The in-memory log would be replayed.
        self.shm.clear();
        let mut whole = self.fork();
        whole.try_open(u64::MAX, None).map_err(|why| format!("the pool does not open as it was: {why}"))?;
        let committed = whole.newest_commit();
        let device = *self.rng.pick(&self.devices.clone());
        let disk = &mut self.disks[usize::from(device.number)];
        let newest = newest_checkpoint(disk, device.layout.starts);
        let (ring, blocks) = device.ring;
        match self.rng.below(3) {
            0 => {
                // Only the newest checkpoint rots: a start finds the one before.
                let at = device.layout.starts + newest.generation % 2 * BLOCK;
                spoil(disk, at, CHECKPOINT_BYTES as u64 / SECTOR, &mut self.rng);
                self.counters.add("rot", "ring starts", 1);
            }
            draw => {
                // Most of the live log is near the checkpoint in effect.
                let from = if draw == 1 { u64::from(newest.position) } else { 0 };
                let at = ring + (from + self.rng.below(if draw == 1 { 8 } else { blocks })) % blocks * BLOCK;
                spoil(disk, at, BLOCK / SECTOR, &mut self.rng);
                self.counters.add("rot", "rings", 1);
            }
        }
        match self.try_open(u64::MAX, None) {
            Ok(_) => {
                let found = self.newest_commit();
                if found < committed {
                    self.counters.add("rot", "the last commit is torn", 1);
                }
                // A last commit with a damaged part looks like one that a crash tore.
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

    /// Returns the last commit that any ring's checkpoint names.
    fn newest_commit(&self) -> u64 {
        let of = |device: &PoolDevice| {
            newest_checkpoint(&self.disks[usize::from(device.number)], device.layout.starts).commit
        };
        self.devices.iter().map(of).max().unwrap_or(0)
    }
}

fn newest_checkpoint(disk: &Disk, starts: u64) -> Checkpoint {
    let bytes = disk.read(starts, 2 * CHECKPOINT_BYTES);
    let valid = bytes.as_chunks::<CHECKPOINT_BYTES>().0.iter().filter_map(|block| Checkpoint::decode(block).ok());
    valid.max_by_key(|start| start.generation).expect("a member has a start")
}

/// A sector that rotted.
struct Rotten {
    at: u64,
    was: Vec<u8>,
    is: Vec<u8>,
}

fn is_undamaged(pool: &Pool) -> bool {
    pool.damaged().is_empty() && pool.owners_in_doubt().next().is_none()
}

/// Spoils one of these sectors: one bit of it, or all.
fn spoil(disk: &mut Disk, first_byte: u64, sectors: u64, rng: &mut Rng) -> Rotten {
    let at = first_byte + rng.below(sectors) * SECTOR;
    let was = disk.read(at, SECTOR as usize);
    let mut bytes = was.clone();
    if rng.coin() {
        bytes[rng.index(SECTOR as usize)] ^= 1 << rng.below(8);
    } else {
        bytes.iter_mut().for_each(|byte| *byte = rng.bits() as u8);
    }
    disk.write(at, &bytes);
    let mark = disk.mark();
    disk.flushed(mark);
    Rotten { at, was, is: bytes }
}
