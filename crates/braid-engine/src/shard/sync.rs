//! Parts of jobs: one contiguous piece of a redundant array, under the range lock, is copied from one member to others,
//! or all its copies are compared and repaired.

use super::slots;
use super::sync_parts::{Blocks, COMPARE_BLOCK_BYTES, COMPARE_BYTES_MAX, SyncDone, SyncKind, SyncRequest, SyncStage};
use super::{Shard, ranges};
use crate::io::{Buf, ErrorKind, Flags, IoError, LEAF_BYTES_MAX, LeafId, LeafIo, LeafSink, META_BLOCKS, Op};
use crate::limits::STEP_IOS_MAX;
use crate::mirror::{MemberRole, MemberSet, MirrorMember, Mirrored};

impl Shard {
    /// Submits a part of a job. `Err`: refused at once, and no result follows.
    ///
    /// # Errors
    /// `NoDevice` if there is no such redundant array; `Invalid`; `Busy` if the device is frozen or held, or too many
    /// parts are in progress.
    pub fn submit_sync(&mut self, request: &SyncRequest, sink: &mut impl LeafSink) -> Result<(), IoError> {
        let device = self.devices.get(request.device).ok_or(IoError::of(ErrorKind::NoDevice))?;
        let layout = device.current.as_deref().ok_or(IoError::of(ErrorKind::NoDevice))?;
        let mirror = layout.mirror().ok_or(IoError::of(ErrorKind::NoDevice))?;
        let end = request.offset.checked_add(request.len).ok_or(IoError::of(ErrorKind::Invalid))?;
        let most = match request.kind {
            SyncKind::Copy { from, .. } => {
                let source = mirror.members.get(usize::from(from)).is_some_and(|m| m.role == MemberRole::InSync);
                if source { LEAF_BYTES_MAX } else { 0 }
            }
            SyncKind::CopyDifferences { from, to } => {
                let is = |member: u16, role: MemberRole| {
                    mirror.members.get(usize::from(member)).is_some_and(|m| m.role == role)
                };
                let sound = is(from, MemberRole::InSync) && is(to, MemberRole::Rebuilding) && layout.lease.is_some();
                if sound { LEAF_BYTES_MAX / 2 } else { 0 }
            }
            SyncKind::Compare(_) | SyncKind::Repair(_) => COMPARE_BYTES_MAX,
            _ if super::stripe_sync::is_sound(mirror, request) => u64::MAX,
            _ => 0,
        };
        let mask = u64::from(layout.block_bytes()) - 1;
        if end > layout.size_bytes() || !(1..=most).contains(&request.len) {
            return Err(IoError::of(ErrorKind::Invalid));
        }
        let in_a_row = mirror.parity.is_some();
        let of_copies = matches!(
            request.kind,
            SyncKind::Copy { .. } | SyncKind::CopyDifferences { .. } | SyncKind::Compare(_) | SyncKind::Repair(_)
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
            self.process_woken(sink);
        }
        Ok(())
    }

    /// Returns the next result of a part of a job.
    pub fn pop_sync_done(&mut self) -> Option<SyncDone> {
        self.sync_done.pop_front()
    }

    /// Begins the next stage of a part. Returns false if there is none: the part has ended.
    pub(super) fn sync_step(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = &mut self.slots[index];
        let kind = self.syncs.at(slot.sync).request.kind;
        if matches!(kind, SyncKind::Rebuild { .. } | SyncKind::VerifyStripe { .. } | SyncKind::RepairStripe { .. }) {
            return self.stripe_sync_step(index, sink);
        }
        if slot.held.0 == slot.held.1 {
            if let Err(bucket) = ranges::hold(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot) {
                self.waiting.park(&mut self.slots, index, super::waiting::range_key(bucket));
                return true;
            }
            debug_assert_eq!(slot.held, (slot.start, slot.end), "a part is shorter than what is held at a time");
        }
        match kind {
            SyncKind::Copy { from, to } => self.copy_step(index, from, to, None, sink),
            SyncKind::CopyDifferences { from, to } => {
                self.copy_step(index, from, MemberSet::NONE.with(usize::from(to)), Some(to), sink)
            }
            SyncKind::Compare(_) => self.compare_step(index, false, sink),
            SyncKind::Repair(_) => self.compare_step(index, true, sink),
            SyncKind::Rebuild { .. } | SyncKind::VerifyStripe { .. } | SyncKind::RepairStripe { .. } => false,
        }
    }

    /// Copies a piece: reads it from one member, and from the member `alike`, if any; then writes it to the members in
    /// `to`, as many runs of blocks as one step allows. Blocks that `alike` has already are skipped. On a replicated
    /// device zeros are written without data.
    fn copy_step(
        &mut self,
        index: u32,
        from: u16,
        to: MemberSet,
        alike: Option<u16>,
        sink: &mut impl LeafSink,
    ) -> bool {
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
            SyncStage::Read => {
                part.stage = SyncStage::Write;
                let mut out = 0;
                mirror.copies(request.offset, &mut |piece| {
                    let member = &mirror.members[usize::from(piece.member)];
                    let buf = match member.role {
                        MemberRole::InSync if piece.member == from => request.buf,
                        MemberRole::Rebuilding if Some(piece.member) == alike => other,
                        _ => return,
                    };
                    sink.submit(&io(member, Op::Read, member.start + piece.member_offset, request.len, buf));
                    out += 1;
                });
                self.slots[index].out = out;
                if out < 1 + u32::from(alike.is_some()) {
                    // The source is no longer in sync, or the member to compare with is no longer being rebuilt.
                    self.slots[index].error = Some(IoError::of(ErrorKind::Busy));
                }
                return out > 0;
            }
            SyncStage::Write => 0,
            SyncStage::Repair(next) => next,
            SyncStage::Done => return false,
        };
        if part.stage == SyncStage::Write && layout.lease.is_some() {
            part.zeros = zeros_of(request.buf, request.len, sink);
        }
        if part.stage == SyncStage::Write && alike.is_some() {
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
                if piece.member != from && to.has(role) && member.role != MemberRole::Failed {
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
        part.stage = if block < blocks { SyncStage::Repair(block) } else { SyncStage::Done };
        self.slots[index].out = out as u32;
        out > 0
    }

    /// Reads all copies; then compares them; then, with `mends`, repairs them, as many blocks as one step allows.
    fn compare_step(&mut self, index: u32, mends: bool, sink: &mut impl LeafSink) -> bool {
        let slot = &self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version);
        let mirror = layout.mirror().expect("parts of jobs are of redundant arrays");
        let part = self.syncs.at(slot.sync);
        let (generation, request) = (slot.generation, part.request);
        let copies = Copies { mirror, request, count: count_copies(mirror, request.offset) };
        let mut out = 0;
        let first = match part.stage {
            SyncStage::Read => {
                part.stage = SyncStage::Write;
                if request.kind.memory_bytes(request.len) < copies.count * request.len {
                    // A member was added since: the caller counts the copies again.
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
            SyncStage::Write => {
                part.compared.differing = copies.differing(sink);
                0
            }
            SyncStage::Repair(next) => next,
            SyncStage::Done => return false,
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
            // A failed member misses what is written here.
            layout.missed.iter().for_each(|missed| missed.record(request.offset, request.offset + request.len));
        }
        part.stage = SyncStage::Repair(block);
        self.slots[index].out = out;
        out > 0
    }

    /// Reports that a part has ended.
    pub(super) fn sync_finish(&mut self, index: u32, result: Result<(), IoError>, late: bool) {
        let slot = &self.slots[index];
        let compared = self.syncs.at(slot.sync).compared;
        self.sync_done.push_back(SyncDone { tag: slot.tag, result, compared, buffer_lost: late });
    }
}

/// Returns which blocks of memory are zeros.
fn zeros_of(buf: Buf, len: u64, sink: &mut impl LeafSink) -> Blocks {
    let mut zeros = Blocks::default();
    sink.compute(&[buf], &[], len, &mut |inputs, _| {
        for (block, bytes) in inputs[0].chunks(COMPARE_BLOCK_BYTES as usize).enumerate() {
            zeros[block / 64] |= u64::from(is_zeros(bytes)) << (block % 64);
        }
    });
    zeros
}

/// Returns which blocks of two buffers are equal.
fn equal_of(one: Buf, other: Buf, len: u64, sink: &mut impl LeafSink) -> Blocks {
    let mut equal = Blocks::default();
    for block in 0..len.div_ceil(COMPARE_BLOCK_BYTES) {
        let skip = block * COMPARE_BLOCK_BYTES;
        let bytes = (len - skip).min(COMPARE_BLOCK_BYTES);
        let is = sink.is_equal(one.add(skip), other.add(skip), bytes);
        equal[block as usize / 64] |= u64::from(is) << (block % 64);
    }
    equal
}

fn is_zeros(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|word| *word == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}

/// All copies of a piece on members in sync, as they were read one after the other into the memory of a part.
struct Copies<'a> {
    mirror: &'a Mirrored,
    request: SyncRequest,
    count: u64,
}

fn count_copies(mirror: &Mirrored, offset: u64) -> u64 {
    let mut count = 0;
    let mut each = |piece: braid_geometry::MemberRange| {
        count += u64::from(mirror.members[usize::from(piece.member)].role == MemberRole::InSync);
    };
    mirror.copies(offset, &mut each);
    count
}

impl Copies<'_> {
    /// Calls `each` with the index of each copy, its disk, and its offset there.
    fn each(&self, each: &mut impl FnMut(u64, LeafId, u64)) {
        let mut k = 0;
        self.mirror.copies(self.request.offset, &mut |piece| {
            let member = &self.mirror.members[usize::from(piece.member)];
            if member.role == MemberRole::InSync {
                each(k, member.leaf, member.start + piece.member_offset);
                k += 1;
            }
        });
    }

    /// Returns the offset of a block within the piece, and its bytes: the last one may be shorter.
    fn block(&self, block: u32) -> (u64, u64) {
        let skip = u64::from(block) * COMPARE_BLOCK_BYTES;
        (skip, (self.request.len - skip).min(COMPARE_BLOCK_BYTES))
    }

    /// Returns the buffer of a block of a copy.
    fn buf(&self, copy: u64, block: u32) -> Buf {
        self.request.buf.add(copy * self.request.len + self.block(block).0)
    }

    /// Returns a bit for each block whose copies differ.
    fn differing(&self, sink: &mut impl LeafSink) -> u64 {
        let blocks = self.request.len.div_ceil(COMPARE_BLOCK_BYTES) as u32;
        let mut differing = 0;
        for copy in 1..self.count {
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

    /// Returns the copy of a block that agrees with most others; the first one of several.
    fn best(&self, block: u32, sink: &mut impl LeafSink) -> u64 {
        let len = self.block(block).1;
        let mut agree =
            |a: u64| (0..self.count).filter(|b| sink.is_equal(self.buf(a, block), self.buf(*b, block), len)).count();
        (0..self.count).rev().max_by_key(|copy| agree(*copy)).unwrap_or(0)
    }
}
