//! The parts of jobs: one contiguous piece of a redundant array under the range lock, copied from one member to others, or
//! all copies of it compared and made equal.

use super::slots;
use super::{Shard, ranges};
use crate::io::{Buf, DeviceId, ErrorKind, Flags, IoError, LEAF_BYTES_MAX, LeafId, LeafIo, LeafSink, META_BLOCKS, Op};
use crate::limits::{STEP_IOS_MAX, SYNCS_MAX};
use crate::mirror::{MirrorMember, Mirrored, Role, Roles};
use crate::planted::{Planted, planted};

/// Bytes in which copies are compared, and made equal.
pub const COMPARE_BLOCK_BYTES: u64 = 4096;
/// Most bytes of a piece that is compared: a bit for each block is told, and the core is not kept from others for long.
pub const COMPARE_BYTES_MAX: u64 = 64 * COMPARE_BLOCK_BYTES;

/// What a part of a job does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncKind {
    /// Reads the piece from one member and writes it to others; of a replicated device, what is zeros as zeroes: no more than data go
    /// over the network, and nothing is allocated for the rest.
    Copy {
        /// The member to read from, in sync.
        from: u16,
        /// The members to write to; those that are left out or have no copy of this piece are passed over.
        to: Roles,
    },
    /// Reads the piece from one member and from another one that is being filled, and writes to that what differs. Only of a replicated
    /// device, where writing costs more than reading.
    Update {
        /// The member to read from, in sync.
        from: u16,
        /// The member that is being filled.
        to: u16,
    },
    /// Reads all copies on members that are in sync, at most so many, and compares them.
    Compare(u16),
    /// The same; and where they differ writes what most of them hold to the others, or what the first holds.
    Mend(u16),
    /// With parity: computes the cells of a row that these members lack from those of all others, and writes them.
    Restore {
        /// The members to write to; what they hold is not believed.
        to: Roles,
        /// Members not to read from besides.
        avoid: Roles,
        /// Data cells of the row.
        data: u16,
        /// All its cells.
        cells: u16,
    },
    /// With parity: reads all cells of a row, and compares them with its parity. Passed over where one cannot be read.
    Verify {
        /// Data cells of the row.
        data: u16,
        /// All its cells.
        cells: u16,
    },
    /// The same; and where they do not agree writes what is wrong anew: the cell that two parities name, else the parity.
    Amend {
        /// Data cells of the row.
        data: u16,
        /// All its cells.
        cells: u16,
        /// The data are right, whatever parities say.
        from_data: bool,
    },
}

impl SyncKind {
    /// Memory that a piece of `len` bytes needs.
    pub fn memory_bytes(self, len: u64) -> u64 {
        match self {
            SyncKind::Copy { .. } => len,
            SyncKind::Update { .. } => 2 * len,
            SyncKind::Compare(copies) | SyncKind::Mend(copies) => len * u64::from(copies),
            SyncKind::Restore { data, cells, .. }
            | SyncKind::Verify { data, cells }
            | SyncKind::Amend { data, cells, .. } => len / u64::from(data.max(1)) * u64::from(cells),
        }
    }
}

/// A part of a job.
#[derive(Clone, Copy, Debug)]
pub struct SyncRequest {
    /// The array, which must be redundant.
    pub device: DeviceId,
    /// First byte on the array, a multiple of its block. With parity: that of the stripe, and as many times the bytes above the
    /// piece in each chunk as the stripe has data cells.
    pub offset: u64,
    /// Bytes; with parity as many times the height of the piece, within one row, as there are data cells. Else at most [`LEAF_BYTES_MAX`] to be copied or [`COMPARE_BYTES_MAX`] to be compared, not beyond the piece of the
    /// geometry that holds `offset`.
    pub len: u64,
    /// What is done.
    pub kind: SyncKind,
    /// Memory of [`SyncKind::memory_bytes`].
    pub buf: Buf,
    /// Returned with the result.
    pub tag: u64,
}

/// What a part of a job found that compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compared {
    /// A bit for each block of [`COMPARE_BLOCK_BYTES`] whose copies differed, or that did not agree with its parity, from the
    /// first on.
    pub differing: u64,
    /// Of each of the first of these blocks the member that has it wrong, where two parities tell; else [`Compared::UNKNOWN`].
    pub wrong: [u8; Compared::NAMED_MAX],
}

impl Compared {
    /// Blocks whose wrong member can be told: as many as a row is high.
    pub const NAMED_MAX: usize = 16;
    /// No member is known to be wrong.
    pub const UNKNOWN: u8 = u8::MAX;
    /// Everything agreed, or nothing was compared.
    pub const EQUAL: Compared = Compared { differing: 0, wrong: [Compared::UNKNOWN; Compared::NAMED_MAX] };

    /// The member that has a block wrong, if that is known.
    pub fn wrong_at(&self, block: usize) -> Option<u16> {
        self.wrong.get(block).copied().filter(|member| *member != Compared::UNKNOWN).map(u16::from)
    }
}

const _: () = assert!(braid_geometry::MEMBERS_MAX <= Compared::UNKNOWN as usize);

/// How a part of a job ended.
#[derive(Clone, Copy, Debug)]
pub struct SyncDone {
    /// The request's own tag.
    pub tag: u64,
    /// Success; or the first error. `Busy`: the device is frozen, nothing is wrong with this part.
    pub result: Result<(), IoError>,
    /// What was found, where something was compared.
    pub compared: Compared,
    /// The kernel may still touch the buffer, and always may: it must never be used again.
    pub buffer_lost: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Read,
    Write,
    /// Blocks are being written, all before this one have been: those that differ, or what is copied in runs.
    Mend(u32),
    Done,
}

#[derive(Clone, Copy)]
struct Part {
    request: SyncRequest,
    stage: Stage,
    compared: Compared,
    /// Blocks of what is copied that are zeros, where these are written otherwise.
    zeros: Blocks,
    /// Blocks that are there already.
    equal: Blocks,
}

/// A bit for each block of a piece that is copied.
type Blocks = [u64; (LEAF_BYTES_MAX / COMPARE_BLOCK_BYTES / 64) as usize];

/// The parts that are under way.
pub(crate) struct Syncs {
    parts: Vec<Option<Part>>,
}

impl Syncs {
    pub fn new() -> Syncs {
        Syncs { parts: vec![None; SYNCS_MAX as usize] }
    }

    fn take(&mut self, request: SyncRequest) -> Option<u32> {
        let at = self.parts.iter().position(Option::is_none)?;
        self.parts[at] = Some(Part {
            request,
            stage: Stage::Read,
            compared: Compared::EQUAL,
            zeros: Blocks::default(),
            equal: Blocks::default(),
        });
        Some(at as u32)
    }

    fn at(&mut self, sync: u32) -> &mut Part {
        self.parts[sync as usize].as_mut().expect("a part that is under way")
    }

    /// The part's place is free for another.
    pub fn give(&mut self, sync: u32) {
        self.parts[sync as usize] = None;
    }

    /// What a part is, and where it stands.
    pub(super) fn part(&self, sync: u32) -> (SyncRequest, Stage) {
        let part = self.parts[sync as usize].as_ref().expect("a part that is under way");
        (part.request, part.stage)
    }

    pub(super) fn set_stage(&mut self, sync: u32, stage: Stage) {
        self.at(sync).stage = stage;
    }

    pub(super) fn set_compared(&mut self, sync: u32, compared: Compared) {
        self.at(sync).compared = compared;
    }

    /// Whether a part copies from one member to others.
    pub fn copies(&self, sync: u32) -> bool {
        self.parts[sync as usize].as_ref().is_some_and(|part| {
            matches!(part.request.kind, SyncKind::Copy { .. } | SyncKind::Update { .. } | SyncKind::Restore { .. })
        })
    }

    /// What is out of a part right now.
    pub fn op_out(&self, sync: u32) -> Op {
        match self.parts[sync as usize].as_ref().map(|part| part.stage) {
            Some(Stage::Read) | None => Op::Read,
            // The stage is that of what comes next.
            Some(Stage::Write) => Op::Read,
            Some(Stage::Mend(_) | Stage::Done) => Op::Write,
        }
    }
}

impl Shard {
    /// Takes a part of a job in. `Err`: refused at once, and nothing follows.
    ///
    /// # Errors
    /// `NoDevice` where there is no such redundant array; `Invalid`; `Busy` where the device is frozen or held, or too much is under way.
    pub fn sync(&mut self, request: &SyncRequest, sink: &mut impl LeafSink) -> Result<(), IoError> {
        let device = self.devices.get(request.device).ok_or(IoError::of(ErrorKind::NoDevice))?;
        let layout = device.current.as_deref().ok_or(IoError::of(ErrorKind::NoDevice))?;
        let mirror = layout.mirror().ok_or(IoError::of(ErrorKind::NoDevice))?;
        let end = request.offset.checked_add(request.len).ok_or(IoError::of(ErrorKind::Invalid))?;
        let most = match request.kind {
            SyncKind::Copy { from, .. } => {
                let source = mirror.members.get(usize::from(from)).is_some_and(|m| m.role == Role::InSync);
                if source { LEAF_BYTES_MAX } else { 0 }
            }
            SyncKind::Update { from, to } => {
                let is =
                    |member: u16, role: Role| mirror.members.get(usize::from(member)).is_some_and(|m| m.role == role);
                let sound = is(from, Role::InSync) && is(to, Role::Filling) && layout.lease.is_some();
                if sound { LEAF_BYTES_MAX / 2 } else { 0 }
            }
            SyncKind::Compare(_) | SyncKind::Mend(_) => COMPARE_BYTES_MAX,
            _ if super::row_sync::is_sound(mirror, request) => u64::MAX,
            _ => 0,
        };
        let mask = u64::from(layout.block_bytes()) - 1;
        if end > layout.size_bytes() || !(1..=most).contains(&request.len) {
            return Err(IoError::of(ErrorKind::Invalid));
        }
        let in_a_row = mirror.parity.is_some();
        let of_copies = matches!(
            request.kind,
            SyncKind::Copy { .. } | SyncKind::Update { .. } | SyncKind::Compare(_) | SyncKind::Mend(_)
        );
        if in_a_row == of_copies {
            return Err(IoError::of(ErrorKind::Invalid));
        }
        let in_a_piece = in_a_row || mirror.geometry.locate(request.offset).len >= request.len;
        if (request.offset | request.len) & mask != 0 || !in_a_piece {
            return Err(IoError::of(ErrorKind::Invalid));
        }
        if device.frozen || device.held || mirror.failed {
            return Err(IoError::of(ErrorKind::Busy));
        }
        let version = device.version;
        let sync = self.syncs.take(*request).ok_or(IoError::of(ErrorKind::Busy))?;
        let index = self.slots.take_reserved(META_BLOCKS + sync);
        self.devices.at_mut(request.device.0).users += 1;
        self.in_flight += 1;
        let slot = &mut self.slots[index];
        slot.prepare(Op::Write, Flags::NONE, request.offset, request.len, request.buf, request.tag);
        (slot.device, slot.version, slot.sync) = (request.device.0, version, sync);
        self.advance(index, sink);
        if !self.woken.is_empty() {
            self.work_off(sink);
        }
        Ok(())
    }

    /// The next part of a job that has ended.
    pub fn pop_sync_done(&mut self) -> Option<SyncDone> {
        self.sync_done.pop_front()
    }

    /// The next stage of a part. False: there is none, and the part has ended.
    pub(super) fn sync_step(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = &mut self.slots[index];
        let kind = self.syncs.at(slot.sync).request.kind;
        if matches!(kind, SyncKind::Restore { .. } | SyncKind::Verify { .. } | SyncKind::Amend { .. }) {
            return self.row_sync_step(index, sink);
        }
        let compares = !matches!(kind, SyncKind::Copy { .. } | SyncKind::Update { .. });
        let unlocked = planted(Planted::SyncUnlocked) || compares && planted(Planted::RepairUnlocked);
        if slot.held.0 == slot.held.1 && !unlocked {
            if let Err(bucket) = ranges::hold(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot) {
                self.waiting.park(&mut self.slots, index, super::waiting::range_key(bucket));
                return true;
            }
            debug_assert_eq!(slot.held, (slot.start, slot.end), "a part is shorter than what is held at a time");
        }
        match kind {
            SyncKind::Copy { from, to } => self.copy_step(index, from, to, None, sink),
            SyncKind::Update { from, to } => {
                self.copy_step(index, from, Roles::NONE.with(usize::from(to)), Some(to), sink)
            }
            SyncKind::Compare(_) => self.compare_step(index, false, sink),
            SyncKind::Mend(_) => self.compare_step(index, true, sink),
            SyncKind::Restore { .. } | SyncKind::Verify { .. } | SyncKind::Amend { .. } => false,
        }
    }

    /// Reads a piece, of whoever is compared, too; then writes it, as many runs of blocks as one step holds.
    fn copy_step(&mut self, index: u32, from: u16, to: Roles, alike: Option<u16>, sink: &mut impl LeafSink) -> bool {
        let slot = &self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version);
        let mirror = layout.mirror().expect("parts of jobs are of redundant arrays");
        let part = self.syncs.at(slot.sync);
        let (generation, request) = (slot.generation, part.request);
        let io = |member: &MirrorMember, op: Op, at: u64, len: u64, buf: Buf| {
            let cookie = slots::cookie(index, generation, member.leaf);
            // All of a region is copied, however little of it was ever written.
            let flags = if op == Op::Read { Flags::SPARSE } else { Flags::NONE };
            LeafIo::simple(member.leaf, op, flags, at, len, buf, cookie)
        };
        let other = request.buf.add(request.len);
        let first = match part.stage {
            Stage::Read => {
                part.stage = Stage::Write;
                let mut out = 0;
                mirror.copies(request.offset, &mut |piece| {
                    let member = &mirror.members[usize::from(piece.member)];
                    let buf = match member.role {
                        Role::InSync if piece.member == from => request.buf,
                        Role::Filling if Some(piece.member) == alike => other,
                        _ => return,
                    };
                    sink.submit(&io(member, Op::Read, member.start + piece.member_offset, request.len, buf));
                    out += 1;
                });
                self.slots[index].out = out;
                if out < 1 + u32::from(alike.is_some()) {
                    // The source is in sync no longer, or nobody is compared.
                    self.slots[index].error = Some(IoError::of(ErrorKind::Busy));
                }
                return out > 0;
            }
            Stage::Write => 0,
            Stage::Mend(next) => next,
            Stage::Done => return false,
        };
        if part.stage == Stage::Write && layout.lease.is_some() {
            part.zeros = zeros_of(request.buf, request.len, sink);
        }
        if part.stage == Stage::Write && alike.is_some() {
            part.equal = equal_of(request.buf, other, request.len, sink);
        }
        let (zeros, equal) = (part.zeros, part.equal);
        let has = |blocks: &Blocks, block: u32| blocks[block as usize / 64] & (1 << (block % 64)) != 0;
        let what = |block: u32| match (has(&equal, block), has(&zeros, block)) {
            (true, _) => None,
            (false, true) => Some(Op::WriteZeroes),
            (false, false) => Some(Op::Write),
        };
        let targets = |each: &mut dyn FnMut(&MirrorMember, u64)| {
            mirror.copies(request.offset, &mut |piece| {
                let (role, member) = (usize::from(piece.member), &mirror.members[usize::from(piece.member)]);
                if piece.member != from && to.has(role) && member.role != Role::Out {
                    each(member, member.start + piece.member_offset);
                }
            });
        };
        let mut count = 0;
        targets(&mut |_, _| count += 1);
        let blocks = request.len.div_ceil(COMPARE_BLOCK_BYTES) as u32;
        let (mut block, mut out) = (first, 0);
        while block < blocks && out + count <= STEP_IOS_MAX {
            let end = (block + 1..blocks).find(|next| what(*next) != what(block)).unwrap_or(blocks);
            let skip = u64::from(block) * COMPARE_BLOCK_BYTES;
            let len = (u64::from(end) * COMPARE_BLOCK_BYTES).min(request.len) - skip;
            if let Some(op) = what(block) {
                let buf = if op == Op::WriteZeroes { Buf::NONE } else { request.buf.add(skip) };
                targets(&mut |member, at| sink.submit(&io(member, op, at + skip, len, buf)));
                out += count;
            }
            block = end;
        }
        part.stage = if block < blocks { Stage::Mend(block) } else { Stage::Done };
        self.slots[index].out = out as u32;
        out > 0
    }

    /// Reads all copies; then compares them; then, if it is to, makes them equal, as many blocks as one step holds.
    fn compare_step(&mut self, index: u32, mends: bool, sink: &mut impl LeafSink) -> bool {
        let slot = &self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version);
        let mirror = layout.mirror().expect("parts of jobs are of redundant arrays");
        let part = self.syncs.at(slot.sync);
        let (generation, request) = (slot.generation, part.request);
        let copies = Copies { mirror, request, count: count_copies(mirror, request.offset) };
        let mut out = 0;
        let first = match part.stage {
            Stage::Read => {
                part.stage = Stage::Write;
                if request.kind.memory_bytes(request.len) < copies.count * request.len {
                    // A member has come since: the caller counts again.
                    self.slots[index].error = Some(IoError::of(ErrorKind::Busy));
                    return false;
                }
                copies.each(&mut |k, leaf, at| {
                    let cookie = slots::cookie(index, generation, leaf);
                    let buf = request.buf.add(k * request.len);
                    sink.submit(&LeafIo::simple(leaf, Op::Read, Flags::NONE, at, request.len, buf, cookie));
                    out += 1;
                });
                self.slots[index].out = out;
                return out > 0;
            }
            Stage::Write => {
                part.compared.differing = copies.differing(sink);
                0
            }
            Stage::Mend(next) => next,
            Stage::Done => return false,
        };
        if !mends {
            return false;
        }
        let (mut block, differing) = (first, part.compared.differing);
        while block < 64 && out as usize + copies.count as usize <= STEP_IOS_MAX {
            if differing & (1 << block) != 0 {
                let (skip, len) = copies.block(block);
                let best = copies.best(block, sink);
                let right = copies.buf(best, block);
                copies.each(&mut |k, leaf, at| {
                    if k == best || sink.is_equal(copies.buf(k, block), right, len) {
                        return;
                    }
                    let cookie = slots::cookie(index, generation, leaf);
                    sink.submit(&LeafIo::simple(leaf, Op::Write, Flags::NONE, at + skip, len, right, cookie));
                    out += 1;
                });
            }
            block += 1;
        }
        if out > 0 {
            // Whoever is out may have had what is written over.
            layout.missed.iter().for_each(|missed| missed.note(request.offset, request.offset + request.len));
        }
        part.stage = Stage::Mend(block);
        self.slots[index].out = out;
        out > 0
    }

    /// A part has ended: tells of it.
    pub(super) fn sync_finish(&mut self, index: u32, result: Result<(), IoError>, late: bool) {
        let slot = &self.slots[index];
        let compared = self.syncs.at(slot.sync).compared;
        self.sync_done.push_back(SyncDone { tag: slot.tag, result, compared, buffer_lost: late });
    }
}

/// Which blocks of memory are zeros.
fn zeros_of(buf: Buf, len: u64, sink: &mut impl LeafSink) -> Blocks {
    let mut zeros = Blocks::default();
    sink.compute(&[buf], &[], len, &mut |inputs, _| {
        for (block, bytes) in inputs[0].chunks(COMPARE_BLOCK_BYTES as usize).enumerate() {
            zeros[block / 64] |= u64::from(is_zeros(bytes)) << (block % 64);
        }
    });
    zeros
}

/// Which blocks of two places of memory are equal.
fn equal_of(one: Buf, other: Buf, len: u64, sink: &mut impl LeafSink) -> Blocks {
    let mut equal = Blocks::default();
    for block in 0..len.div_ceil(COMPARE_BLOCK_BYTES) {
        let skip = block * COMPARE_BLOCK_BYTES;
        let bytes = (len - skip).min(COMPARE_BLOCK_BYTES);
        let is = sink.is_equal(one.add(skip), other.add(skip), bytes)
            || planted(Planted::UpdateIgnoresLast) && skip + bytes == len;
        equal[block as usize / 64] |= u64::from(is) << (block % 64);
    }
    equal
}

fn is_zeros(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|word| *word == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}

/// All copies of a piece that are on members in sync, as they were read one after the other into the memory of a part.
struct Copies<'a> {
    mirror: &'a Mirrored,
    request: SyncRequest,
    count: u64,
}

fn count_copies(mirror: &Mirrored, offset: u64) -> u64 {
    let mut count = 0;
    let mut each = |piece: braid_geometry::Piece| {
        count += u64::from(mirror.members[usize::from(piece.member)].role == Role::InSync);
    };
    mirror.copies(offset, &mut each);
    count
}

impl Copies<'_> {
    /// Calls `each` with the number of each copy, its disk, and where it begins there.
    fn each(&self, each: &mut impl FnMut(u64, LeafId, u64)) {
        let mut k = 0;
        self.mirror.copies(self.request.offset, &mut |piece| {
            let member = &self.mirror.members[usize::from(piece.member)];
            if member.role == Role::InSync {
                each(k, member.leaf, member.start + piece.member_offset);
                k += 1;
            }
        });
    }

    /// Where a block begins within the piece, and its bytes: the last one may be shorter.
    fn block(&self, block: u32) -> (u64, u64) {
        let skip = u64::from(block) * COMPARE_BLOCK_BYTES;
        (skip, (self.request.len - skip).min(COMPARE_BLOCK_BYTES))
    }

    /// A block of a copy, in memory.
    fn buf(&self, copy: u64, block: u32) -> Buf {
        self.request.buf.add(copy * self.request.len + self.block(block).0)
    }

    /// A bit for each block whose copies differ.
    fn differing(&self, sink: &mut impl LeafSink) -> u64 {
        let blocks = self.request.len.div_ceil(COMPARE_BLOCK_BYTES) as u32;
        let last = if planted(Planted::CheckIgnoresLast) { self.count.saturating_sub(1) } else { self.count };
        let mut differing = 0;
        for copy in 1..last {
            let whole = self.request.buf.add(copy * self.request.len);
            if sink.is_equal(self.request.buf, whole, self.request.len) {
                continue;
            }
            for block in 0..blocks {
                let equal = sink.is_equal(self.buf(0, block), self.buf(copy, block), self.block(block).1);
                differing |= u64::from(!equal) << block;
            }
        }
        differing
    }

    /// The copy of a block that most others agree with; of several the first.
    fn best(&self, block: u32, sink: &mut impl LeafSink) -> u64 {
        let len = self.block(block).1;
        let mut agree =
            |a: u64| (0..self.count).filter(|b| sink.is_equal(self.buf(a, block), self.buf(*b, block), len)).count();
        (0..self.count).rev().max_by_key(|copy| agree(*copy)).unwrap_or(0)
    }
}
