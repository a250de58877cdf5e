//! Parts of jobs on arrays with parity: cells of a row computed anew for members that lack them, and rows compared with their
//! parity. Each part is one piece of one row, from its reads to its writes under the row's lock.

use braid_geometry::{BLOCK_BYTES, Stripe};
use braid_parity::{DATA_MAX, Damage, Parity};

use super::compute::{self, Broken, CELLS_MAX};
use super::ranges::tell_released;
use super::slots::Slot;
use super::sync::{Compared, Stage, SyncKind, SyncRequest};
use super::waiting::range_key;
use super::{Shard, slots};
use crate::io::{Buf, DeviceId, ErrorKind, Flags, IoError, LEAF_BYTES_MAX, LeafIo, LeafSink, Op};
use crate::mirror::{Mirrored, Role, Roles};
use crate::parity::{Parity as Rows, row_locked};
use crate::planted::{Planted, planted};

/// The piece of a row that a part is about.
struct Part<'a> {
    mirror: &'a Mirrored,
    rows: &'a Rows,
    stripe: Stripe<'a>,
    /// Where it begins in each chunk, and its height, in bytes.
    column: u64,
    height: u64,
    buf: Buf,
}

impl<'a> Part<'a> {
    /// None: the request is not within one row.
    fn new(mirror: &'a Mirrored, request: &SyncRequest) -> Option<Part<'a>> {
        let rows = mirror.parity.as_deref()?;
        let stripe = mirror.geometry.stripe_of(request.offset)?;
        let data = stripe.data_chunks() as u64;
        let within = request.offset - stripe.array_start;
        let (column, height) = (within / data, request.len / data);
        let whole = within.is_multiple_of(data) && request.len.is_multiple_of(data);
        let aligned = whole && (column | height).is_multiple_of(BLOCK_BYTES);
        let in_row = height > 0 && column % rows.row_bytes + height <= rows.row_bytes;
        (aligned && in_row).then_some(Part { mirror, rows, stripe, column, height, buf: request.buf })
    }

    fn row(&self) -> u64 {
        self.stripe.number * self.rows.per_stripe + self.column / self.rows.row_bytes
    }

    fn data(&self) -> usize {
        self.stripe.data_chunks()
    }

    fn cells(&self) -> usize {
        self.data() + self.rows.count
    }

    fn member(&self, cell: usize) -> usize {
        usize::from(match cell.checked_sub(self.data()) {
            None => self.stripe.data(cell),
            Some(0) => self.stripe.p(),
            Some(_) => self.stripe.q().expect("a second parity"),
        })
    }

    /// Where a cell is in the part's memory.
    fn cell(&self, cell: usize) -> Buf {
        self.buf.add(cell as u64 * self.height)
    }

    /// Where a member has its cell.
    fn place(&self, member: usize) -> u64 {
        self.mirror.members[member].start + self.stripe.member_offset + self.column
    }

    /// The cell that is wrong, where that is known: two parities tell, one does not.
    fn wrong_cell(&self, damage: Damage) -> Option<usize> {
        let tells = self.rows.count == 2;
        match damage {
            Damage::Data(cell) => Some(cell),
            Damage::P if tells => Some(self.data()),
            Damage::Q => Some(self.data() + 1),
            Damage::P | Damage::None | Damage::Several => None,
        }
    }

    /// Who is read for a cell. None: it is lost, or to be avoided.
    fn reader(&self, cell: usize, avoid: Roles) -> Option<usize> {
        self.mirror.reader(self.member(cell), avoid)
    }

    fn is_readable(&self, cell: usize, avoid: Roles) -> bool {
        self.reader(cell, avoid).is_some()
    }

    /// Calls `each` with every member that lacks a cell and is among `to`.
    fn targets(&self, to: Roles, each: &mut impl FnMut(usize, usize)) {
        for cell in 0..self.cells() {
            let holder = self.member(cell);
            let successors = self.mirror.successors.iter().filter(|s| usize::from(s.role) == holder);
            for member in std::iter::once(holder).chain(successors.map(|s| usize::from(s.member))) {
                if to.has(member) && self.mirror.members[member].role != Role::Out {
                    each(cell, member);
                }
            }
        }
    }
}

/// Whether a part of a job on an array with parity is sound.
pub(super) fn is_sound(mirror: &Mirrored, request: &SyncRequest) -> bool {
    let Some(part) = Part::new(mirror, request) else { return false };
    let (data, cells) = match request.kind {
        SyncKind::Restore { data, cells, .. }
        | SyncKind::Verify { data, cells }
        | SyncKind::Amend { data, cells, .. } => (data, cells),
        SyncKind::Copy { .. } | SyncKind::Update { .. } | SyncKind::Compare(_) | SyncKind::Mend(_) => return false,
    };
    (usize::from(data), usize::from(cells)) == (part.data(), part.cells())
        && request.kind.memory_bytes(request.len) <= LEAF_BYTES_MAX
}

impl Shard {
    /// The next stage of a part. False: there is none, and the part has ended.
    pub(super) fn row_sync_step(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version).clone();
        let mirror = layout.mirror().expect("parts of jobs are of redundant arrays");
        let (request, stage) = self.syncs.part(slot.sync);
        let Some(part) = Part::new(mirror, &request) else {
            // The array has grown by other zones since: the caller cuts its work anew.
            self.slots[index].error = Some(IoError::of(ErrorKind::Busy));
            return false;
        };
        if slot.held.0 == slot.held.1 && !planted(Planted::SyncUnlocked) {
            let want = row_locked(part.row());
            let mut tell = |bucket| tell_released(&self.shared, &mut self.woken, &mut self.outbox, self.id, bucket);
            match self.shared.ranges.acquire_in_turn(DeviceId(slot.device), want.0, want.1, &mut tell) {
                Ok(()) => self.slots[index].held = want,
                Err(bucket) => {
                    self.waiting.park(&mut self.slots, index, range_key(bucket));
                    return true;
                }
            }
        }
        match (request.kind, stage) {
            (SyncKind::Restore { avoid, to, .. }, Stage::Read) => {
                let avoid = Roles(avoid.0 | self.lacking(&part, to).0);
                self.read_cells(index, &part, avoid, sink)
            }
            (SyncKind::Restore { avoid, to, .. }, Stage::Write) => {
                let avoid = Roles(avoid.0 | self.lacking(&part, to).0);
                self.syncs.set_stage(slot.sync, Stage::Done);
                self.restore(index, &part, avoid, to, sink)
            }
            (SyncKind::Verify { .. } | SyncKind::Amend { .. }, Stage::Read) => {
                self.read_cells(index, &part, Roles::NONE, sink)
            }
            (SyncKind::Verify { .. } | SyncKind::Amend { .. }, Stage::Write) => {
                let amends = match request.kind {
                    SyncKind::Amend { from_data, .. } => Some(if from_data { Believed::Data } else { Believed::Most }),
                    _ => None,
                };
                self.syncs.set_stage(slot.sync, Stage::Done);
                self.verify(index, &part, amends, sink)
            }
            _ => false,
        }
    }

    /// Of those that are to get a cell, the ones whose own it is: it is not to be believed.
    fn lacking(&self, part: &Part<'_>, to: Roles) -> Roles {
        (0..part.cells()).map(|cell| part.member(cell)).filter(|m| to.has(*m)).fold(Roles::NONE, Roles::with)
    }

    /// Reads all cells that can be read.
    fn read_cells(&mut self, index: u32, part: &Part<'_>, avoid: Roles, sink: &mut impl LeafSink) -> bool {
        let Slot { generation, sync, .. } = self.slots[index];
        self.syncs.set_stage(sync, Stage::Write);
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

    /// Computes what is lacking, and writes it.
    fn restore(&mut self, index: u32, part: &Part<'_>, avoid: Roles, to: Roles, sink: &mut impl LeafSink) -> bool {
        let mut cells = [None; CELLS_MAX];
        let (mut wanted, mut count) = ([(0, Buf::NONE); 2], 0);
        for (cell, place) in cells.iter_mut().enumerate().take(part.cells()) {
            if part.is_readable(cell, avoid) {
                *place = Some(part.cell(cell));
            } else if cell < part.data() {
                let Some(lost) = wanted.get_mut(count) else { return self.too_much_is_lost(index) };
                *lost = (cell, part.cell(cell));
                count += 1;
            }
        }
        let broken =
            Broken { data: part.data(), first_coefficient: 0, cells: &cells[..part.cells()], wanted: &wanted[..count] };
        if count > 0 && !compute::recover(sink, &broken, part.height) {
            return self.too_much_is_lost(index);
        }
        if (part.data()..part.cells()).any(|cell| cells[cell].is_none()) {
            let mut data = [Buf::NONE; CELLS_MAX];
            (0..part.data()).for_each(|cell| data[cell] = part.cell(cell));
            let parities = [part.cell(part.data()), part.cell(part.data() + 1)];
            compute::encode(sink, &data[..part.data()], &parities[..part.rows.count], part.height);
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

    fn too_much_is_lost(&mut self, index: u32) -> bool {
        self.slots[index].error = Some(IoError::of(ErrorKind::Failed));
        false
    }

    /// Compares a piece of a row with its parity, and, if it is to, makes it agree: whatever is wrong where two parities tell,
    /// else the parity; or, where the data are believed, the parities.
    fn verify(&mut self, index: u32, part: &Part<'_>, amends: Option<Believed>, sink: &mut impl LeafSink) -> bool {
        let Slot { generation, sync, .. } = self.slots[index];
        if (0..part.cells()).any(|cell| !part.is_readable(cell, Roles::NONE)) {
            // Nothing is left to compare with.
            return false;
        }
        let best = Parity::best();
        let (mut compared, mut out) = (Compared::EQUAL, 0);
        for block in 0..part.height / BLOCK_BYTES {
            let skip = block * BLOCK_BYTES;
            let mut cells = [Buf::NONE; CELLS_MAX];
            (0..part.cells()).for_each(|cell| cells[cell] = part.cell(cell).add(skip));
            let mut damage = Damage::None;
            sink.compute(&cells[..part.cells()], &[], BLOCK_BYTES, &mut |read, _| {
                let (data, parity) = read.split_at(part.data());
                damage = match parity {
                    [p] if best.agrees(p, data) => Damage::None,
                    [_] => Damage::P,
                    [p, q] => best.check(p, q, data),
                    _ => unreachable!("one parity or two"),
                };
            });
            if damage == Damage::None {
                continue;
            }
            compared.differing |= 1 << block;
            if let Some(cell) = part.wrong_cell(damage) {
                compared.wrong[block as usize] = part.member(cell) as u8;
            }
            let Some(believed) = amends else { continue };
            let first = match damage {
                _ if believed == Believed::Data => part.data()..part.cells(),
                Damage::Data(cell) => {
                    mend_data(sink, part, &cells, cell);
                    cell..cell + 1
                }
                Damage::P => part.data()..part.data() + 1,
                Damage::Q => part.data() + 1..part.data() + 2,
                Damage::None | Damage::Several => part.data()..part.cells(),
            };
            if first.start >= part.data() {
                compute::encode(sink, &cells[..part.data()], &cells[part.data()..part.cells()], BLOCK_BYTES);
            }
            for cell in first {
                let holder = part.member(cell);
                let successors = part.mirror.successors.iter().filter(|s| usize::from(s.role) == holder);
                let all = std::iter::once(holder).chain(successors.map(|s| usize::from(s.member)));
                for member in all.filter(|member| part.mirror.members[*member].role != Role::Out) {
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

/// What is right where a row does not agree with its parities.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Believed {
    /// Whatever agrees with most of the row; the data, where that cannot be told.
    Most,
    /// The data.
    Data,
}

/// Computes a data cell from the others and P.
fn mend_data(sink: &mut impl LeafSink, part: &Part<'_>, cells: &[Buf; CELLS_MAX], wrong: usize) {
    const _: () = assert!(DATA_MAX >= CELLS_MAX);
    let mut known = [None; CELLS_MAX];
    (0..part.cells()).filter(|cell| *cell != wrong).for_each(|cell| known[cell] = Some(cells[cell]));
    let broken = Broken {
        data: part.data(),
        first_coefficient: 0,
        cells: &known[..part.cells()],
        wanted: &[(wrong, cells[wrong])],
    };
    let done = compute::recover(sink, &broken, BLOCK_BYTES);
    debug_assert!(done, "one cell is lost and both parities are there");
}
