//! Parts of jobs on arrays with parity: cells of a stripe are recomputed for members that lack them, and stripes are
//! compared with their parity. Each part is one piece of one stripe, from its reads to its writes under the stripe's
//! lock.

use braid_geometry::{BLOCK_BYTES, Stripe};
use braid_parity::{DATA_MAX, Parity, StripeDamage};

use super::compute::{self, CELLS_MAX, DegradedStripe};
use super::ranges::notify_released;
use super::slots::Slot;
use super::sync_parts::{Compared, SyncKind, SyncRequest, SyncStage};
use super::waiting::range_key;
use super::{Shard, slots};
use crate::io::{Buf, DeviceId, ErrorKind, Flags, IoError, LEAF_BYTES_MAX, LeafIo, LeafSink, Op};
use crate::mirror::{MemberRole, MemberSet, Mirrored};
use crate::parity::{Parity as ArrayParity, stripe_range};

/// The piece of a stripe that a part is about.
struct Part<'a> {
    mirror: &'a Mirrored,
    parity: &'a ArrayParity,
    stripe: Stripe<'a>,
    /// Its offset in each chunk, and its height, in bytes.
    column: u64,
    height: u64,
    buf: Buf,
}

impl<'a> Part<'a> {
    /// Returns `None` if the request is not within one stripe.
    fn new(mirror: &'a Mirrored, request: &SyncRequest) -> Option<Part<'a>> {
        let parity = mirror.parity.as_deref()?;
        let stripe = mirror.geometry.stripe_of(request.offset)?;
        let data = stripe.data_chunks() as u64;
        let within = request.offset - stripe.array_start;
        let (column, height) = (within / data, request.len / data);
        let whole = within.is_multiple_of(data) && request.len.is_multiple_of(data);
        let aligned = whole && (column | height).is_multiple_of(BLOCK_BYTES);
        let in_stripe = height > 0 && column % parity.row_bytes + height <= parity.row_bytes;
        (aligned && in_stripe).then_some(Part { mirror, parity, stripe, column, height, buf: request.buf })
    }

    fn row(&self) -> u64 {
        self.stripe.number * self.parity.per_stripe + self.column / self.parity.row_bytes
    }

    fn data(&self) -> usize {
        self.stripe.data_chunks()
    }

    fn cells(&self) -> usize {
        self.data() + self.parity.count
    }

    fn member(&self, cell: usize) -> usize {
        usize::from(match cell.checked_sub(self.data()) {
            None => self.stripe.data(cell),
            Some(0) => self.stripe.p(),
            Some(_) => self.stripe.q().expect("a second parity"),
        })
    }

    /// Returns the buffer of a cell in the part's memory.
    fn cell(&self, cell: usize) -> Buf {
        self.buf.add(cell as u64 * self.height)
    }

    /// Returns the offset of a member's cell on its disk.
    fn place(&self, member: usize) -> u64 {
        self.mirror.members[member].start + self.stripe.member_offset + self.column
    }

    /// Returns the cell that is wrong, if that is known: two parities identify it, one does not.
    fn wrong_cell(&self, damage: StripeDamage) -> Option<usize> {
        let tells = self.parity.count == 2;
        match damage {
            StripeDamage::Data(cell) => Some(cell),
            StripeDamage::P if tells => Some(self.data()),
            StripeDamage::Q => Some(self.data() + 1),
            StripeDamage::P | StripeDamage::None | StripeDamage::Multiple => None,
        }
    }

    /// Returns the member to read for a cell. `None`: it is lost, or to be avoided.
    fn reader(&self, cell: usize, avoid: MemberSet) -> Option<usize> {
        self.mirror.reader(self.member(cell), avoid)
    }

    fn is_readable(&self, cell: usize, avoid: MemberSet) -> bool {
        self.reader(cell, avoid).is_some()
    }

    /// Calls `each` with every cell, and every member that holds it and is in `to`.
    fn targets(&self, to: MemberSet, each: &mut impl FnMut(usize, usize)) {
        for cell in 0..self.cells() {
            let holder = self.member(cell);
            let successors = self.mirror.successors.iter().filter(|s| usize::from(s.role) == holder);
            for member in std::iter::once(holder).chain(successors.map(|s| usize::from(s.member))) {
                if to.has(member) && self.mirror.members[member].role != MemberRole::Failed {
                    each(cell, member);
                }
            }
        }
    }
}

/// Returns whether the request for a part of a job on an array with parity is valid.
pub(super) fn is_sound(mirror: &Mirrored, request: &SyncRequest) -> bool {
    let Some(part) = Part::new(mirror, request) else { return false };
    let (data, cells) = match request.kind {
        SyncKind::Rebuild { data, cells, .. }
        | SyncKind::VerifyStripe { data, cells }
        | SyncKind::RepairStripe { data, cells, .. } => (data, cells),
        SyncKind::Copy { .. } | SyncKind::CopyDifferences { .. } | SyncKind::Compare(_) | SyncKind::Repair(_) => {
            return false;
        }
    };
    (usize::from(data), usize::from(cells)) == (part.data(), part.cells())
        && request.kind.memory_bytes(request.len) <= LEAF_BYTES_MAX
}

impl Shard {
    /// Begins the next stage of a part. Returns false if there is none: the part has ended.
    pub(super) fn stripe_sync_step(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version).clone();
        let mirror = layout.mirror().expect("parts of jobs are of redundant arrays");
        let (request, stage) = self.syncs.part(slot.sync);
        let Some(part) = Part::new(mirror, &request) else {
            // The array has grown by other zones since: the caller plans its work again.
            self.slots[index].error = Some(IoError::of(ErrorKind::Busy));
            return false;
        };
        if slot.held.0 == slot.held.1 {
            let want = stripe_range(part.row());
            let mut tell = |bucket| notify_released(&self.shared, &mut self.woken, &mut self.outbox, self.id, bucket);
            match self.shared.ranges.acquire_fair(DeviceId(slot.device), want.0, want.1, &mut tell) {
                Ok(()) => self.slots[index].held = want,
                Err(bucket) => {
                    self.waiting.park(&mut self.slots, index, range_key(bucket));
                    return true;
                }
            }
        }
        match (request.kind, stage) {
            (SyncKind::Rebuild { avoid, to, .. }, SyncStage::Read) => {
                let avoid = MemberSet(avoid.0 | self.lacking(&part, to).0);
                self.read_cells(index, &part, avoid, sink)
            }
            (SyncKind::Rebuild { avoid, to, .. }, SyncStage::Write) => {
                let avoid = MemberSet(avoid.0 | self.lacking(&part, to).0);
                self.syncs.set_stage(slot.sync, SyncStage::Done);
                self.restore(index, &part, avoid, to, sink)
            }
            (SyncKind::VerifyStripe { .. } | SyncKind::RepairStripe { .. }, SyncStage::Read) => {
                self.read_cells(index, &part, MemberSet::NONE, sink)
            }
            (SyncKind::VerifyStripe { .. } | SyncKind::RepairStripe { .. }, SyncStage::Write) => {
                let amends = match request.kind {
                    SyncKind::RepairStripe { from_data, .. } => {
                        Some(if from_data { Trusted::Data } else { Trusted::Most })
                    }
                    _ => None,
                };
                self.syncs.set_stage(slot.sync, SyncStage::Done);
                self.verify(index, &part, amends, sink)
            }
            _ => false,
        }
    }

    /// Returns those members in `to` that hold a cell of their own: their content is not trusted.
    fn lacking(&self, part: &Part<'_>, to: MemberSet) -> MemberSet {
        (0..part.cells()).map(|cell| part.member(cell)).filter(|m| to.has(*m)).fold(MemberSet::NONE, MemberSet::with)
    }

    /// Reads all cells that can be read.
    fn read_cells(&mut self, index: u32, part: &Part<'_>, avoid: MemberSet, sink: &mut impl LeafSink) -> bool {
        let Slot { generation, sync, .. } = self.slots[index];
        self.syncs.set_stage(sync, SyncStage::Write);
        let mut out = 0;
        for (cell, member) in (0..part.cells()).filter_map(|cell| Some((cell, part.reader(cell, avoid)?))) {
            let leaf = part.mirror.members[member].leaf;
            let cookie = slots::cookie(index, generation, leaf);
            let (at, buf) = (part.place(member), part.cell(cell));
            sink.submit(&LeafIo::simple(leaf, Op::Read, Flags::NONE, at, part.height, buf, cookie));
            out += 1;
        }
        self.slots[index].out = out;
        if out == 0 {
            self.slots[index].error = Some(IoError::of(ErrorKind::Failed));
        }
        out > 0
    }

    /// Computes the cells that are lacking, and writes them.
    fn restore(
        &mut self,
        index: u32,
        part: &Part<'_>,
        avoid: MemberSet,
        to: MemberSet,
        sink: &mut impl LeafSink,
    ) -> bool {
        let mut cells = [None; CELLS_MAX];
        let (mut wanted, mut count) = ([(0, Buf::NONE); 2], 0);
        for (cell, place) in cells.iter_mut().enumerate().take(part.cells()) {
            if part.is_readable(cell, avoid) {
                *place = Some(part.cell(cell));
            } else if cell < part.data() {
                let Some(lost) = wanted.get_mut(count) else { return self.too_many_cells_lost(index) };
                *lost = (cell, part.cell(cell));
                count += 1;
            }
        }
        let broken = DegradedStripe {
            data: part.data(),
            first_coefficient: 0,
            cells: &cells[..part.cells()],
            wanted: &wanted[..count],
        };
        if count > 0 && !compute::recover(sink, &broken, part.height) {
            return self.too_many_cells_lost(index);
        }
        if (part.data()..part.cells()).any(|cell| cells[cell].is_none()) {
            let mut data = [Buf::NONE; CELLS_MAX];
            (0..part.data()).for_each(|cell| data[cell] = part.cell(cell));
            let parities = [part.cell(part.data()), part.cell(part.data() + 1)];
            compute::encode(sink, &data[..part.data()], &parities[..part.parity.count], part.height);
        }
        let generation = self.slots[index].generation;
        let mut out = 0;
        part.targets(to, &mut |cell, member| {
            let leaf = part.mirror.members[member].leaf;
            let cookie = slots::cookie(index, generation, leaf);
            let (at, buf) = (part.place(member), part.cell(cell));
            sink.submit(&LeafIo::simple(leaf, Op::Write, Flags::NONE, at, part.height, buf, cookie));
            out += 1;
        });
        self.slots[index].out = out;
        out > 0
    }

    fn too_many_cells_lost(&mut self, index: u32) -> bool {
        self.slots[index].error = Some(IoError::of(ErrorKind::Failed));
        false
    }

    /// Compares a piece of a stripe with its parity, and, with `amends`, repairs it: the wrong cell if two parities
    /// identify it, else the parity; or, if the data is trusted, the parities.
    fn verify(&mut self, index: u32, part: &Part<'_>, amends: Option<Trusted>, sink: &mut impl LeafSink) -> bool {
        let Slot { generation, sync, .. } = self.slots[index];
        if (0..part.cells()).any(|cell| !part.is_readable(cell, MemberSet::NONE)) {
            // Without all cells there is nothing to compare with.
            return false;
        }
        let best = Parity::best();
        let (mut compared, mut out) = (Compared::EQUAL, 0);
        for block in 0..part.height / BLOCK_BYTES {
            let skip = block * BLOCK_BYTES;
            let mut cells = [Buf::NONE; CELLS_MAX];
            (0..part.cells()).for_each(|cell| cells[cell] = part.cell(cell).add(skip));
            let mut damage = StripeDamage::None;
            sink.compute(&cells[..part.cells()], &[], BLOCK_BYTES, &mut |read, _| {
                let (data, parity) = read.split_at(part.data());
                damage = match parity {
                    [p] if best.agrees(p, data) => StripeDamage::None,
                    [_] => StripeDamage::P,
                    [p, q] => best.check(p, q, data),
                    _ => unreachable!("one parity or two"),
                };
            });
            if damage == StripeDamage::None {
                continue;
            }
            compared.differing |= 1 << block;
            if let Some(cell) = part.wrong_cell(damage) {
                compared.wrong[block as usize] = part.member(cell) as u8;
            }
            let Some(trusted) = amends else { continue };
            let first = match damage {
                _ if trusted == Trusted::Data => part.data()..part.cells(),
                StripeDamage::Data(cell) => {
                    recover_data(sink, part, &cells, cell);
                    cell..cell + 1
                }
                StripeDamage::P => part.data()..part.data() + 1,
                StripeDamage::Q => part.data() + 1..part.data() + 2,
                StripeDamage::None | StripeDamage::Multiple => part.data()..part.cells(),
            };
            if first.start >= part.data() {
                compute::encode(sink, &cells[..part.data()], &cells[part.data()..part.cells()], BLOCK_BYTES);
            }
            for cell in first {
                let holder = part.member(cell);
                let successors = part.mirror.successors.iter().filter(|s| usize::from(s.role) == holder);
                let all = std::iter::once(holder).chain(successors.map(|s| usize::from(s.member)));
                for member in all.filter(|member| part.mirror.members[*member].role != MemberRole::Failed) {
                    let leaf = part.mirror.members[member].leaf;
                    let cookie = slots::cookie(index, generation, leaf);
                    let at = part.place(member) + skip;
                    sink.submit(&LeafIo::simple(leaf, Op::Write, Flags::NONE, at, BLOCK_BYTES, cells[cell], cookie));
                    out += 1;
                }
            }
        }
        self.syncs.set_compared(sync, compared);
        self.slots[index].out = out;
        out > 0
    }
}

/// What is trusted if a stripe does not agree with its parities.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trusted {
    /// What agrees with most of the stripe; the data, if that cannot be determined.
    Most,
    /// The data.
    Data,
}

/// Recomputes a data cell from the others and P.
fn recover_data(sink: &mut impl LeafSink, part: &Part<'_>, cells: &[Buf; CELLS_MAX], wrong: usize) {
    const _: () = assert!(DATA_MAX >= CELLS_MAX);
    let mut known = [None; CELLS_MAX];
    (0..part.cells()).filter(|cell| *cell != wrong).for_each(|cell| known[cell] = Some(cells[cell]));
    let broken = DegradedStripe {
        data: part.data(),
        first_coefficient: 0,
        cells: &known[..part.cells()],
        wanted: &[(wrong, cells[wrong])],
    };
    let done = compute::recover(sink, &broken, BLOCK_BYTES);
    debug_assert!(done, "one cell is lost and both parities are there");
}
