//! One copy of a block rots, or one cell of a row, and no disk notices: what a check must find and a repair must mend.
//!
//! Until it is mended whoever reads the block may see it, which the oracle is told. What is not mended by the end of a life,
//! or where the array's members changed meanwhile, is undone, as if it had never been: that copies rot all the time is not
//! what a mirror of two can answer for.

use std::collections::BTreeMap;

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
    /// Where its copies are: disk and offset, in the order in which a repair looks at them. Of an array with parity the cells of
    /// its line, the one that rots first.
    pub places: Vec<(usize, u64)>,
    /// Of an array with parity: what rots.
    pub cell: Option<Cell>,
}

/// A block of one cell of a row.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// Who holds it.
    pub role: u16,
    /// It is data, not parity.
    pub is_data: bool,
    /// Where its line begins in the array, in bytes: what a check says.
    pub line: u64,
}

/// A block of which a copy has rotted.
struct Rotten {
    device: u64,
    block: u64,
    cell: Option<Cell>,
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
            if known || wish.cell.is_none() && copies.iter().any(|copy| *copy != copies[0]) {
                continue;
            }
            // Of two the first counts; of more, most do.
            let first = usize::from(copies.len() == 2);
            let which = if wish.cell.is_some() { 0 } else { first + world.rng.index(copies.len() - first) };
            let (disk, offset) = wish.places[which];
            let World { disks, rng, .. } = world;
            disks[disk].rot(offset, BLOCK_BYTES as u64, rng);
            let mut now = vec![0; BLOCK_BYTES];
            world.disks[disk].read(offset, &mut now);
            let sector_of = |bytes: &[u8], s: usize| bytes[s * SECTOR_BYTES..(s + 1) * SECTOR_BYTES].to_vec();
            let differs = |s: &usize| sector_of(&now, *s) != sector_of(&copies[which], *s);
            let sector = (0..BLOCK_SECTORS).find(differs).expect("a bit has turned");
            let (right, wrong) = (sector_of(&copies[which], sector), sector_of(&now, sector));
            self.rotten.push(Rotten { device: wish.device, block: wish.block, cell: wish.cell, sector, right, wrong });
            if wish.cell.is_none_or(|cell| cell.is_data) {
                oracle.doubt(wish.device, wish.block);
            }
            let what = wish.cell.map_or("a copy rots", |cell| if cell.is_data { "data rot" } else { "a parity rots" });
            world.counters.add("fault", what);
            world.note(format_args!("block {} of device {} rots on disk {disk} at {offset}", wish.block, wish.device));
        }
    }

    /// Blocks of an array of which a copy has rotted.
    pub fn count(&self, device: u64) -> u64 {
        self.rotten.iter().filter(|rotten| rotten.device == device).count() as u64
    }

    /// Of an array with parity: where the lines begin of which a cell has rotted, in bytes of the array, and how many each member has.
    pub fn cells(&self, device: u64) -> (Vec<u64>, BTreeMap<u16, u64>) {
        let (mut lines, mut members) = (Vec::new(), BTreeMap::new());
        for cell in self.rotten.iter().filter(|rotten| rotten.device == device).filter_map(|rotten| rotten.cell) {
            lines.push(cell.line);
            *members.entry(cell.role).or_default() += 1;
        }
        lines.sort_unstable();
        (lines, members)
    }

    /// Whether data have rotted of which nobody can tell that it was them.
    pub fn has_data_of(&self, device: u64) -> bool {
        let of = self.rotten.iter().filter(|rotten| rotten.device == device);
        of.filter_map(|rotten| rotten.cell).any(|cell| cell.is_data)
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
