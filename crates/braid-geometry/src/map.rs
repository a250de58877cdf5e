//! The inverse map: from a location on a member to its content, and the whole map as a list of runs.

use crate::cell::Cell;
use crate::compiled::CompiledZone;
use crate::{BLOCK_BYTES, Geometry};

/// The kind of content of a location on a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContentKind {
    /// A copy of the array's data.
    Data,
    /// The first parity of a stripe.
    P,
    /// The second parity of a stripe.
    Q,
    /// Neither data nor parity.
    Unused,
}

impl ContentKind {
    /// Returns `data`, `P`, `Q` or `unused`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ContentKind::Data => "data",
            ContentKind::P => "P",
            ContentKind::Q => "Q",
            ContentKind::Unused => "unused",
        }
    }
}

/// The content of a member's data area at an offset. Offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberContent {
    /// A copy of a byte of the array.
    Data {
        /// The offset of the byte in the array.
        array_offset: u64,
        /// The number of the copy, counted from 0.
        copy: u16,
        /// The number of bytes that are contiguous on this member and in the array.
        len: u64,
    },
    /// Parity.
    Parity {
        /// The number of its stripe (see [`crate::Stripe::number`]).
        stripe: u64,
        /// False: P. True: Q.
        q: bool,
        /// The number of bytes to the end of the chunk.
        len: u64,
    },
    /// Neither data nor parity.
    Unused {
        /// The number of unused bytes from the offset on. 0 beyond the data area.
        len: u64,
    },
}

impl Geometry {
    /// Returns the content at `member_offset` (in bytes) of the data area of a member: the inverse of [`Geometry::locate`] and
    /// [`Geometry::copies`]. Not intended for the I/O path.
    #[must_use]
    pub fn content_at(&self, member: u16, member_offset: u64) -> MemberContent {
        let data_bytes = self.member_data_bytes().get(usize::from(member)).copied().unwrap_or(0);
        let mut unused_end = data_bytes.max(member_offset);
        for (zone, compiled) in self.zones().iter().zip(&self.compiled) {
            let Some(slot) = self.slot_of(compiled, member) else { continue };
            if member_offset >= zone.member_end() {
                continue;
            }
            if member_offset >= zone.member_start {
                return content_in_zone(compiled, slot, member_offset - zone.member_start);
            }
            unused_end = unused_end.min(zone.member_start);
        }
        MemberContent::Unused { len: unused_end - member_offset }
    }

    /// Returns the slot of a member in a zone, in the order in which the layout distributes chunks over the members.
    pub(crate) fn slot_of(&self, zone: &CompiledZone, member: u16) -> Option<u64> {
        let slots = &self.slots[zone.slots_start..zone.slots_start + zone.width() as usize];
        slots.iter().position(|&m| m == member).map(|slot| slot as u64)
    }

    /// Returns the whole map: for each member in order, the runs of its data area from start to end.
    ///
    /// The number of runs grows with the size of the members. [`Geometry::runs_strided`] returns the same map in compact form.
    #[must_use]
    pub fn runs(&self) -> Runs<'_> {
        Runs { geometry: self, member: 0, member_offset: 0 }
    }
}

fn content_in_zone(zone: &CompiledZone, slot: u64, zone_member_offset: u64) -> MemberContent {
    let row = zone_member_offset / zone.cell_bytes;
    let within = zone_member_offset % zone.cell_bytes;
    let len = zone.cell_bytes - within;
    match zone.cell(slot, row) {
        Cell::Data { chunk, copy, data_bytes } if within < data_bytes => MemberContent::Data {
            array_offset: zone.array_start + chunk * zone.cell_bytes + within,
            copy,
            len: data_bytes - within,
        },
        Cell::P => MemberContent::Parity { stripe: zone.first_stripe + row, q: false, len },
        Cell::Q => MemberContent::Parity { stripe: zone.first_stripe + row, q: true, len },
        Cell::Data { .. } | Cell::Unused => MemberContent::Unused { len },
    }
}

/// A contiguous run of blocks of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// The member, counted from 0.
    pub member: u16,
    /// The first block of the run in the member's data area.
    pub member_start_block: u64,
    /// Data: the first block of the array that the run holds. P and Q: the number of the stripe. Unused: 0.
    pub array_start_block: u64,
    /// The number of blocks in the run.
    pub length_blocks: u64,
    /// The kind of content.
    pub kind: ContentKind,
}

impl Run {
    /// Merges `next` into this run if it continues the run, and returns whether it did.
    pub(crate) fn merge(&mut self, next: &Run) -> bool {
        let continues = self.member == next.member
            && self.kind == next.kind
            && self.member_start_block + self.length_blocks == next.member_start_block
            && match self.kind {
                ContentKind::Data => self.array_start_block + self.length_blocks == next.array_start_block,
                ContentKind::P | ContentKind::Q => false,
                ContentKind::Unused => true,
            };
        if continues {
            self.length_blocks += next.length_blocks;
        }
        continues
    }
}

/// The iterator of [`Geometry::runs`]: members in order, each from its first to its last block, in runs of maximum
/// length.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    geometry: &'a Geometry,
    member: usize,
    member_offset: u64,
}

impl Runs<'_> {
    fn next_run(&self, data_bytes: u64) -> Run {
        let (kind, array_start_block, len) = match self.geometry.content_at(self.member as u16, self.member_offset) {
            MemberContent::Data { array_offset, len, .. } => (ContentKind::Data, array_offset / BLOCK_BYTES, len),
            MemberContent::Parity { stripe, q, len } => (if q { ContentKind::Q } else { ContentKind::P }, stripe, len),
            MemberContent::Unused { len } => (ContentKind::Unused, 0, len.min(data_bytes - self.member_offset)),
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
        // The map contains whole blocks only.
        let mut data_bytes = *self.geometry.member_data_bytes().get(self.member)? & !(BLOCK_BYTES - 1);
        while self.member_offset >= data_bytes {
            self.member += 1;
            self.member_offset = 0;
            data_bytes = *self.geometry.member_data_bytes().get(self.member)? & !(BLOCK_BYTES - 1);
        }
        let mut run = self.next_run(data_bytes);
        self.member_offset += run.length_blocks * BLOCK_BYTES;
        while self.member_offset < data_bytes {
            let next = self.next_run(data_bytes);
            if !run.merge(&next) {
                break;
            }
            self.member_offset += next.length_blocks * BLOCK_BYTES;
        }
        Some(run)
    }
}
