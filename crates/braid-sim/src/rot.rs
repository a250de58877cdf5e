//! One copy of a block rots, and no disk notices: what a check must find and a repair must mend.
//!
//! Until it is mended whoever reads the block may see it, which the oracle is told. What is not mended by the end of a life,
//! or where the array's members changed meanwhile, is undone, as if it had never been: that copies rot all the time is not
//! what a mirror of two can answer for.

use crate::content::{BLOCK_BYTES, BLOCK_SECTORS, SECTOR_BYTES};
use crate::oracle::{Oracle, Violation};
use crate::world::World;

/// A block one of whose copies is to rot.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The oracle's number of the array.
    pub device: u64,
    /// The block.
    pub block: u64,
    /// Where its copies are: disk and offset, in the order in which a repair looks at them.
    pub places: Vec<(usize, u64)>,
}

/// A block of which a copy has rotted.
struct Rotten {
    device: u64,
    block: u64,
    sector: usize,
    right: Vec<u8>,
    wrong: Vec<u8>,
}

/// All that has rotted in this life.
#[derive(Default)]
pub struct Rot {
    /// What is to rot.
    pub wishes: Vec<Wish>,
    /// What has rotted of this array has been repaired.
    pub mended: Option<u64>,
    /// It has not, and no more is expected of it.
    pub given_up: bool,
    rotten: Vec<Rotten>,
}

impl Rot {
    /// Whether everything that was asked for has happened.
    pub fn is_idle(&self) -> bool {
        self.wishes.is_empty() && self.mended.is_none() && !self.given_up
    }

    /// Does what is asked for.
    ///
    /// # Errors
    /// What was to be mended is not.
    pub fn serve(&mut self, world: &mut World, oracle: &mut Oracle) -> Result<(), Violation> {
        if !self.wishes.is_empty() {
            self.spoil(world, oracle);
        }
        if let Some(device) = self.mended.take()
            && let Some(block) = self.repaired(device, world, oracle)
        {
            return Err(Violation(format!("block {block} of device {device} is as rotten as before its repair")));
        }
        if std::mem::take(&mut self.given_up) {
            self.undo(world, oracle);
        }
        Ok(())
    }

    /// Spoils what is wished, where all copies are the same, durable and at rest.
    fn spoil(&mut self, world: &mut World, oracle: &mut Oracle) {
        for wish in std::mem::take(&mut self.wishes) {
            let read = |(disk, offset): &(usize, u64)| {
                let of = &world.disks[*disk];
                let mut bytes = vec![0; BLOCK_BYTES];
                let calm = !of.gone && !of.flush_failed && !world.is_under_way(*disk, *offset);
                (calm && of.read(*offset, &mut bytes)).then_some(bytes)
            };
            let copies: Option<Vec<Vec<u8>>> = wish.places.iter().map(read).collect();
            let Some(copies) = copies.filter(|copies| copies.len() > 1) else { continue };
            let known = self.rotten.iter().any(|r| (r.device, r.block) == (wish.device, wish.block));
            if known || copies.iter().any(|copy| *copy != copies[0]) {
                continue;
            }
            // Of two the first counts; of more, most do.
            let first = usize::from(copies.len() == 2);
            let (disk, offset) = wish.places[first + world.rng.index(copies.len() - first)];
            let World { disks, rng, .. } = world;
            disks[disk].rot(offset, BLOCK_BYTES as u64, rng);
            let mut now = vec![0; BLOCK_BYTES];
            world.disks[disk].read(offset, &mut now);
            let sector_of = |bytes: &[u8], s: usize| bytes[s * SECTOR_BYTES..(s + 1) * SECTOR_BYTES].to_vec();
            let differs = |s: &usize| sector_of(&now, *s) != sector_of(&copies[0], *s);
            let sector = (0..BLOCK_SECTORS).find(differs).expect("a bit has turned");
            let (right, wrong) = (sector_of(&copies[0], sector), sector_of(&now, sector));
            self.rotten.push(Rotten { device: wish.device, block: wish.block, sector, right, wrong });
            oracle.doubt(wish.device, wish.block);
            world.counters.add("fault", "a copy rots");
            world.note(format_args!("block {} of device {} rots on disk {disk} at {offset}", wish.block, wish.device));
        }
    }

    /// Blocks of an array of which a copy has rotted.
    pub fn count(&self, device: u64) -> u64 {
        self.rotten.iter().filter(|rotten| rotten.device == device).count() as u64
    }

    /// An array was repaired: the oracle judges its blocks again. Returns a block that is still rotten somewhere.
    fn repaired(&mut self, device: u64, world: &World, oracle: &mut Oracle) -> Option<u64> {
        let (of, others) = std::mem::take(&mut self.rotten).into_iter().partition(|rotten| rotten.device == device);
        self.rotten = others;
        let of: Vec<Rotten> = of;
        of.iter().for_each(|rotten| oracle.trust(rotten.device, rotten.block));
        let left = |r: &&Rotten| world.disks.iter().any(|disk| disk.holds(r.sector, &r.wrong));
        of.iter().find(left).map(|rotten| rotten.block)
    }

    /// What has rotted is as it was, wherever it was carried.
    pub fn undo(&mut self, world: &mut World, oracle: &mut Oracle) {
        for rotten in std::mem::take(&mut self.rotten) {
            for disk in &mut world.disks {
                disk.replace(rotten.sector, &rotten.wrong, &rotten.right);
            }
            // Where it is just being copied.
            world.memory.replace(rotten.sector, &rotten.wrong, &rotten.right);
            oracle.trust(rotten.device, rotten.block);
        }
        self.wishes.clear();
        (self.mended, self.given_up) = (None, false);
    }
}
