//! The parts of jobs: one contiguous piece of a redundant array, copied from one member to others under the range lock.

use super::slots;
use super::{Shard, ranges};
use crate::io::{Buf, DeviceId, ErrorKind, Flags, IoError, LEAF_BYTES_MAX, LeafIo, LeafSink, META_BLOCKS, Op};
use crate::limits::SYNCS_MAX;
use crate::mirror::{Role, Roles};
use crate::planted::{Planted, planted};

/// A part of a job.
#[derive(Clone, Copy, Debug)]
pub struct SyncRequest {
    /// The array, which must be redundant.
    pub device: DeviceId,
    /// First byte on the array, a multiple of its block.
    pub offset: u64,
    /// Bytes, at most [`LEAF_BYTES_MAX`], not beyond the piece of the geometry that holds `offset`.
    pub len: u64,
    /// The member to read from, in sync.
    pub from: u16,
    /// The members to write to; those that are left out or have no copy of this piece are passed over.
    pub to: Roles,
    /// Memory of `len` bytes.
    pub buf: Buf,
    /// Returned with the result.
    pub tag: u64,
}

/// How a part of a job ended.
#[derive(Clone, Copy, Debug)]
pub struct SyncDone {
    /// The request's own tag.
    pub tag: u64,
    /// Success; or the first error. `Busy`: the device is frozen, nothing is wrong with this part.
    pub result: Result<(), IoError>,
    /// The kernel may still touch the buffer, and always may: it must never be used again.
    pub buffer_lost: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Read,
    Write,
    Done,
}

#[derive(Clone, Copy)]
struct Part {
    request: SyncRequest,
    stage: Stage,
}

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
        self.parts[at] = Some(Part { request, stage: Stage::Read });
        Some(at as u32)
    }

    fn at(&mut self, sync: u32) -> &mut Part {
        self.parts[sync as usize].as_mut().expect("a part that is under way")
    }

    /// The part's place is free for another.
    pub fn give(&mut self, sync: u32) {
        self.parts[sync as usize] = None;
    }

    /// What is out of a part right now.
    pub fn op_out(&self, sync: u32) -> Op {
        match self.parts[sync as usize].as_ref().map(|part| part.stage) {
            Some(Stage::Read) | None => Op::Read,
            // The stage is that of what comes next.
            Some(Stage::Write) => Op::Read,
            Some(Stage::Done) => Op::Write,
        }
    }
}

impl Shard {
    /// Takes a part of a job in. `Err`: refused at once, and nothing follows.
    ///
    /// # Errors
    /// `NoDevice` where there is no such redundant array; `Invalid`; `Busy` where the device is frozen or too much is under way.
    pub fn sync(&mut self, request: &SyncRequest, sink: &mut impl LeafSink) -> Result<(), IoError> {
        let device = self.devices.get(request.device).ok_or(IoError::of(ErrorKind::NoDevice))?;
        let layout = device.current.as_deref().ok_or(IoError::of(ErrorKind::NoDevice))?;
        let mirror = layout.mirror().ok_or(IoError::of(ErrorKind::NoDevice))?;
        let end = request.offset.checked_add(request.len).ok_or(IoError::of(ErrorKind::Invalid))?;
        let source = mirror.members.get(usize::from(request.from)).is_some_and(|m| m.role == Role::InSync);
        let mask = u64::from(layout.block_bytes()) - 1;
        if end > layout.size_bytes() || !(1..=LEAF_BYTES_MAX).contains(&request.len) || !source {
            return Err(IoError::of(ErrorKind::Invalid));
        }
        if (request.offset | request.len) & mask != 0 || mirror.geometry.locate(request.offset).len < request.len {
            return Err(IoError::of(ErrorKind::Invalid));
        }
        if device.frozen || mirror.failed {
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
        if slot.held.0 == slot.held.1 && !planted(Planted::SyncUnlocked) {
            if let Err(bucket) = ranges::hold(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot) {
                self.waiting.park(&mut self.slots, index, super::range_key(bucket));
                return true;
            }
            debug_assert_eq!(slot.held, (slot.start, slot.end), "a part is shorter than what is held at a time");
        }
        let layout = self.devices.at(slot.device).layout(slot.version);
        let mirror = layout.mirror().expect("parts of jobs are of redundant arrays");
        let part = self.syncs.at(slot.sync);
        let (generation, request) = (slot.generation, part.request);
        let writing = match part.stage {
            Stage::Read => false,
            Stage::Write => true,
            Stage::Done => return false,
        };
        part.stage = if writing { Stage::Done } else { Stage::Write };
        let mut out = 0;
        mirror.geometry.copies(request.offset, &mut |piece| {
            let (role, member) = (usize::from(piece.member), &mirror.members[usize::from(piece.member)]);
            let chosen = match writing {
                false => piece.member == request.from && member.role == Role::InSync,
                true => piece.member != request.from && request.to.has(role) && member.role != Role::Out,
            };
            if chosen {
                let op = if writing { Op::Write } else { Op::Read };
                let cookie = slots::cookie(index, generation, member.leaf);
                let at = member.start + piece.member_offset;
                sink.submit(&LeafIo::simple(member.leaf, op, Flags::NONE, at, request.len, request.buf, cookie));
                out += 1;
            }
        });
        self.slots[index].out = out;
        if out > 0 {
            return true;
        }
        if !writing {
            // The source is in sync no longer.
            self.slots[index].error = Some(IoError::of(ErrorKind::Busy));
        }
        false
    }

    /// A part has ended: tells of it.
    pub(super) fn sync_finish(&mut self, index: u32, result: Result<(), IoError>, late: bool) {
        let slot = &self.slots[index];
        self.sync_done.push_back(SyncDone { tag: slot.tag, result, buffer_lost: late });
    }
}
