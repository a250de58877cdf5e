//! Bit rot: one copy of a block, or one cell of a stripe, rots, and no disk notices. A check must find it and a repair
//! must fix it.
//!
//! The oracle does not check reads of a rotten block until a repair, because they may return the rotten content. Rot
//! that is not repaired by the end of a life, or before its array changes its members, is undone on all disks and in
//! memory: a mirror of two members cannot survive rot that accumulates.
//!
//! A *cell* of a stripe is the part that one member holds. A *line* consists of one block of each cell, all at the same
//! offset within their cells.

use std::collections::BTreeMap;

use crate::content::{BLOCK_BYTES, BLOCK_SECTORS, SECTOR_BYTES};
use crate::oracle::{Oracle, Violation};
use crate::world::World;

/// A block, one of whose copies is to rot.
#[derive(Clone, Debug)]
pub struct RotRequest {
    /// The oracle's number of the array.
    pub device: u64,
    /// The block.
    pub block: u64,
    /// Disk and offset in bytes of each copy, in the order in which a repair reads them. For an array with parity: of
    /// each block of the line, the one that rots first.
    pub places: Vec<(usize, u64)>,
    /// For an array with parity: the block of the line that rots.
    pub cell: Option<StripeBlock>,
}

/// One block of a line of a stripe.
#[derive(Clone, Copy, Debug)]
pub struct StripeBlock {
    /// The slot of the member that holds the block.
    pub slot: u16,
    /// The block is data, not parity.
    pub is_data: bool,
    /// The byte offset in the array at which the block's line begins. A check reports that offset.
    pub line: u64,
}

/// A block of which a copy has rotted.
struct Rotten {
    device: u64,
    block: u64,
    cell: Option<StripeBlock>,
    sector: usize,
    right: Vec<u8>,
    wrong: Vec<u8>,
}

/// All rot of this life.
#[derive(Default)]
pub struct Rot {
    /// Copies that are to rot.
    pub requests: Vec<RotRequest>,
    /// The array whose repair has ended and is still to be verified, by the oracle's number.
    pub repaired_device: Option<u64>,
    /// The rot was not repaired, and is to be undone.
    pub given_up: bool,
    rotten: Vec<Rotten>,
}

impl Rot {
    /// Returns whether all requests have been served.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.repaired_device.is_none() && !self.given_up
    }

    /// Serves the requests.
    ///
    /// # Errors
    /// A repaired block is still rotten.
    pub fn serve(&mut self, world: &mut World, oracle: &mut Oracle) -> Result<(), Violation> {
        if !self.requests.is_empty() {
            self.rot_requested(world, oracle);
        }
        if let Some(device) = self.repaired_device.take()
            && let Some(block) = self.repaired(device, world, oracle)
        {
            return Err(Violation(format!("block {block} of device {device} is as rotten as before its repair")));
        }
        if std::mem::take(&mut self.given_up) {
            self.undo(world, oracle);
        }
        Ok(())
    }

    /// Rots the requested copies, if all copies of the block are equal, durable and at rest.
    fn rot_requested(&mut self, world: &mut World, oracle: &mut Oracle) {
        for request in std::mem::take(&mut self.requests) {
            let read = |(disk, offset): &(usize, u64)| {
                let of = &world.disks[*disk];
                let mut bytes = vec![0; BLOCK_BYTES];
                let calm = !of.gone && !of.flush_failed && !world.is_under_way(*disk, *offset);
                (calm && of.read(*offset, &mut bytes)).then_some(bytes)
            };
            let copies: Option<Vec<Vec<u8>>> = request.places.iter().map(read).collect();
            let Some(copies) = copies.filter(|copies| copies.len() > 1) else { continue };
            let known = self.rotten.iter().any(|r| (r.device, r.block) == (request.device, request.block));
            if known || request.cell.is_none() && copies.iter().any(|copy| *copy != copies[0]) {
                continue;
            }
            // Of two copies the repair trusts the first; of more, the majority.
            let first = usize::from(copies.len() == 2);
            let which = if request.cell.is_some() { 0 } else { first + world.rng.index(copies.len() - first) };
            let (disk, offset) = request.places[which];
            let World { disks, rng, .. } = world;
            disks[disk].rot(offset, BLOCK_BYTES as u64, rng);
            let mut now = vec![0; BLOCK_BYTES];
            world.disks[disk].read(offset, &mut now);
            let sector_of = |bytes: &[u8], s: usize| bytes[s * SECTOR_BYTES..(s + 1) * SECTOR_BYTES].to_vec();
            let differs = |s: &usize| sector_of(&now, *s) != sector_of(&copies[which], *s);
            let sector = (0..BLOCK_SECTORS).find(differs).expect("a bit has turned");
            let (right, wrong) = (sector_of(&copies[which], sector), sector_of(&now, sector));
            self.rotten.push(Rotten {
                device: request.device,
                block: request.block,
                cell: request.cell,
                sector,
                right,
                wrong,
            });
            if request.cell.is_none_or(|cell| cell.is_data) {
                oracle.mark_rotten(request.device, request.block);
            }
            let what =
                request.cell.map_or("a copy rots", |cell| if cell.is_data { "data rot" } else { "a parity rots" });
            world.counters.add("fault", what);
            world.note(format_args!(
                "block {} of device {} rots on disk {disk} at {offset}",
                request.block, request.device
            ));
        }
    }

    /// Returns the number of blocks of an array of which a copy has rotted.
    pub fn count(&self, device: u64) -> u64 {
        self.rotten.iter().filter(|rotten| rotten.device == device).count() as u64
    }

    /// For an array with parity: returns the byte offsets in the array of all lines with a rotten block, and by slot
    /// the number of rotten blocks.
    pub fn cells(&self, device: u64) -> (Vec<u64>, BTreeMap<u16, u64>) {
        let (mut lines, mut members) = (Vec::new(), BTreeMap::new());
        for cell in self.rotten.iter().filter(|rotten| rotten.device == device).filter_map(|rotten| rotten.cell) {
            lines.push(cell.line);
            *members.entry(cell.slot).or_default() += 1;
        }
        lines.sort_unstable();
        (lines, members)
    }

    /// Returns whether data has rotted: with one parity a check cannot tell whether data or parity is wrong.
    pub fn has_data_of(&self, device: u64) -> bool {
        let of = self.rotten.iter().filter(|rotten| rotten.device == device);
        of.filter_map(|rotten| rotten.cell).any(|cell| cell.is_data)
    }

    /// Handles the repair of an array: the oracle checks its blocks again. Returns a block that is still rotten on a
    /// disk.
    fn repaired(&mut self, device: u64, world: &World, oracle: &mut Oracle) -> Option<u64> {
        let (of, others) = std::mem::take(&mut self.rotten).into_iter().partition(|rotten| rotten.device == device);
        self.rotten = others;
        let of: Vec<Rotten> = of;
        of.iter().for_each(|rotten| oracle.mark_repaired(rotten.device, rotten.block));
        let left = |r: &&Rotten| world.disks.iter().any(|disk| disk.holds(r.sector, &r.wrong));
        of.iter().find(left).map(|rotten| rotten.block)
    }

    /// Undoes all rot, wherever it was copied.
    pub fn undo(&mut self, world: &mut World, oracle: &mut Oracle) {
        for rotten in std::mem::take(&mut self.rotten) {
            for disk in &mut world.disks {
                disk.replace(rotten.sector, &rotten.wrong, &rotten.right);
            }
            // The rotten content may be in memory, while it is copied.
            world.memory.replace(rotten.sector, &rotten.wrong, &rotten.right);
            oracle.mark_repaired(rotten.device, rotten.block);
        }
        self.requests.clear();
        (self.repaired_device, self.given_up) = (None, false);
    }
}
