//! The other direction: what stands at a place of a member, and the whole map as a list of runs.

use crate::compiled::{Cell, CompiledZone};
use crate::{BLOCK_BYTES, Geometry};

/// What a place of a member holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A copy of the array's data.
    Data,
    /// The parity of a stripe.
    P,
    /// The second parity of a stripe.
    Q,
    /// Nothing.
    Unused,
}

impl Kind {
    /// `data`, `P`, `Q` or `unused`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Data => "data",
            Kind::P => "P",
            Kind::Q => "Q",
            Kind::Unused => "unused",
        }
    }
}

/// What stands at an offset of a member's data area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A copy of a byte of the array.
    Data {
        /// Which byte.
        array_offset: u64,
        /// Which copy, counted from 0.
        copy: u16,
        /// Bytes from here on that are contiguous on this member and in the array.
        len: u64,
    },
    /// Parity.
    Parity {
        /// The stripe that it belongs to.
        stripe: u64,
        /// False: P. True: Q.
        q: bool,
        /// Bytes from here to the end of the chunk.
        len: u64,
    },
    /// Nothing.
    Unused {
        /// Bytes from here on that hold nothing. Beyond the data area 0.
        len: u64,
    },
}

impl Geometry {
    /// What stands at `member_offset` (in bytes) of the data area of a member: the inverse of [`Geometry::locate`] and
    /// [`Geometry::copies`]. Not meant for the path of an I/O.
    #[must_use]
    pub fn place(&self, member: u16, member_offset: u64) -> Place {
        let data_bytes = self.members().get(usize::from(member)).copied().unwrap_or(0);
        let mut unused_end = data_bytes.max(member_offset);
        for (zone, compiled) in self.zones().iter().zip(&self.compiled) {
            let Some(slot) = self.slot_of(compiled, member) else { continue };
            if member_offset >= zone.member_end() {
                continue;
            }
            if member_offset >= zone.member_start {
                return place_in_zone(compiled, slot, member_offset - zone.member_start);
            }
            unused_end = unused_end.min(zone.member_start);
        }
        Place::Unused { len: unused_end - member_offset }
    }

    /// The slot of a member in a zone, in the order in which the chunks go over the members.
    pub(crate) fn slot_of(&self, zone: &CompiledZone, member: u16) -> Option<u64> {
        let slots = &self.slots[zone.slots_start..zone.slots_start + zone.width() as usize];
        slots.iter().position(|&m| m == member).map(|slot| slot as u64)
    }

    /// The whole map: for each member in turn, its data area from begin to end as runs.
    ///
    /// There can be very many: [`Geometry::runs_strided`] says the same in few words.
    #[must_use]
    pub fn runs(&self) -> Runs<'_> {
        Runs { geometry: self, member: 0, member_offset: 0 }
    }
}

fn place_in_zone(zone: &CompiledZone, slot: u64, zone_member_offset: u64) -> Place {
    let row = zone_member_offset / zone.cell_bytes;
    let within = zone_member_offset % zone.cell_bytes;
    let len = zone.cell_bytes - within;
    match zone.cell(slot, row) {
        Cell::Data { chunk, copy, data_bytes } if within < data_bytes => Place::Data {
            array_offset: zone.array_start + chunk * zone.cell_bytes + within,
            copy,
            len: data_bytes - within,
        },
        Cell::P => Place::Parity { stripe: zone.first_stripe + row, q: false, len },
        Cell::Q => Place::Parity { stripe: zone.first_stripe + row, q: true, len },
        Cell::Data { .. } | Cell::Unused => Place::Unused { len },
    }
}

/// A contiguous run of blocks of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// The member, counted from 0.
    pub member: u16,
    /// Its first block in the member's data area.
    pub member_start_block: u64,
    /// Data: the first block of the array that it holds. P and Q: the number of the stripe. Unused: 0.
    pub array_start_block: u64,
    /// How many blocks it has.
    pub length_blocks: u64,
    /// What it holds.
    pub kind: Kind,
}

impl Run {
    /// Appends `next` if it continues this run, and says whether it did.
    pub(crate) fn merge(&mut self, next: &Run) -> bool {
        let continues = self.member == next.member
            && self.kind == next.kind
            && self.member_start_block + self.length_blocks == next.member_start_block
            && match self.kind {
                Kind::Data => self.array_start_block + self.length_blocks == next.array_start_block,
                Kind::P | Kind::Q => false,
                Kind::Unused => true,
            };
        if continues {
            self.length_blocks += next.length_blocks;
        }
        continues
    }
}

/// The iterator of [`Geometry::runs`]: members in order, each from its first to its last block, runs as long as they
/// can be.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    geometry: &'a Geometry,
    member: usize,
    member_offset: u64,
}

impl Runs<'_> {
    fn run_here(&self, data_bytes: u64) -> Run {
        let (kind, array_start_block, len) = match self.geometry.place(self.member as u16, self.member_offset) {
            Place::Data { array_offset, len, .. } => (Kind::Data, array_offset / BLOCK_BYTES, len),
            Place::Parity { stripe, q, len } => (if q { Kind::Q } else { Kind::P }, stripe, len),
            Place::Unused { len } => (Kind::Unused, 0, len.min(data_bytes - self.member_offset)),
        };
        Run {
            member: self.member as u16,
            member_start_block: self.member_offset / BLOCK_BYTES,
            array_start_block,
            length_blocks: len / BLOCK_BYTES,
            kind,
        }
    }
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        // Only whole blocks are on the map.
        let mut data_bytes = *self.geometry.members().get(self.member)? & !(BLOCK_BYTES - 1);
        while self.member_offset >= data_bytes {
            self.member += 1;
            self.member_offset = 0;
            data_bytes = *self.geometry.members().get(self.member)? & !(BLOCK_BYTES - 1);
        }
        let mut run = self.run_here(data_bytes);
        self.member_offset += run.length_blocks * BLOCK_BYTES;
        while self.member_offset < data_bytes {
            let next = self.run_here(data_bytes);
            if !run.merge(&next) {
                break;
            }
            self.member_offset += next.length_blocks * BLOCK_BYTES;
        }
        Some(run)
    }
}
