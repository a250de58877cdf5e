//! Carries out the request of a message, and replies to it.

use braid_engine::{Buf, Completion, ErrorKind, Flags, IoError, Op, Request};
use braid_export::RequestClass;
use braid_ring::{Cx, SendPiece};
use std::cmp::Reverse;
use zerocopy::{Immutable, IntoBytes};

use super::Shared;
use super::patch::{Patch, Step};
use super::seek::{SeekOutcome, seek};
use super::session::{Session, Wait};
use crate::ask::Ask;
use crate::order::Claim;
use crate::wire::{
    AttrOut, DATA_BYTES_MAX, InitOut, LseekOut, MAJOR, MINOR, MINOR_MIN, OpenOut, OutHeader, StatfsOut, WriteOut,
    init_flags, open_flags,
};

/// Background requests that the kernel has in flight at a time, of one file.
const BACKGROUND_MAX: u16 = 256;
/// Background requests from which on the kernel considers the file congested.
const CONGESTED: u16 = 192;

const HEADER_BYTES: usize = size_of::<OutHeader>();

impl Session {
    /// Serves a message from its current step on.
    pub(super) fn serve(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, slot: u16) {
        self.slot(slot).wait = Wait::None;
        match self.slot(slot).ask {
            Ask::Read { .. } | Ask::Write { .. } | Ask::Zero { .. } | Ask::Fsync => self.serve_data(cx, shared, slot),
            _ => self.serve_other(cx, slot),
        }
    }

    /// Serves a request that neither reads nor changes data.
    fn serve_other(&mut self, cx: &mut Cx<'_>, slot: u16) {
        let ask = self.slot(slot).ask;
        match ask {
            Ask::Init { minor, flags } => self.init(cx, slot, minor, flags),
            Ask::GetAttr => self.attr(cx, slot),
            Ask::SetAttr { ownership: true, .. } => self.fail(cx, slot, libc::EPERM),
            // An open with O_TRUNC, which leaves a device as it is, looks the same as a `truncate` to 0.
            Ask::SetAttr { size: Some((0, false)), .. } => self.attr(cx, slot),
            Ask::SetAttr { size: Some((size, _)), .. } if size != self.file.export().size_bytes() => {
                self.fail(cx, slot, libc::EPERM);
            }
            Ask::SetAttr { .. } => self.attr(cx, slot),
            Ask::Open { write } => {
                if write && self.file.export().info().read_only {
                    return self.fail(cx, slot, libc::EROFS);
                }
                match self.file.open() {
                    Some(fh) => {
                        let open_flags = open_flags::DIRECT_IO | open_flags::PARALLEL_DIRECT_WRITES;
                        self.reply(cx, slot, &OpenOut { fh, open_flags, backing_id: 0 });
                    }
                    None => self.fail(cx, slot, libc::EBUSY),
                }
            }
            Ask::Release { fh } => {
                self.file.close(fh);
                self.done(cx, slot, 0, None);
            }
            Ask::Statfs => {
                let blocks = self.file.export().size_bytes() / 4096;
                let out =
                    StatfsOut { blocks, files: 1, bsize: 4096, frsize: 4096, namelen: 255, ..StatfsOut::default() };
                self.reply(cx, slot, &out);
            }
            Ask::Seek { offset, hole } => self.seek(cx, slot, offset, hole),
            Ask::Refuse(errno) => self.fail(cx, slot, errno),
            _ => debug_assert!(false, "a data request, or one without a reply"),
        }
    }

    fn init(&mut self, cx: &mut Cx<'_>, slot: u16, minor: u32, flags: u64) {
        use init_flags::{ASYNC_DIO, ASYNC_READ, BIG_WRITES, HAS_RESEND, INIT_EXT, MAX_PAGES};
        if minor < MINOR_MIN {
            return self.fail(cx, slot, libc::EPROTO);
        }
        let agreed = flags & (ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES | INIT_EXT | HAS_RESEND);
        self.file.set_resends(agreed & HAS_RESEND != 0);
        let out = InitOut {
            major: MAJOR,
            minor: MINOR.min(minor),
            flags: agreed as u32,
            flags2: (agreed >> 32) as u32,
            max_background: BACKGROUND_MAX,
            congestion_threshold: CONGESTED,
            max_write: DATA_BYTES_MAX,
            time_gran: 1,
            max_pages: (DATA_BYTES_MAX / 4096) as u16,
            ..InitOut::default()
        };
        self.reply(cx, slot, &out);
    }

    fn attr(&mut self, cx: &mut Cx<'_>, slot: u16) {
        // The attributes are valid for no time, so that a new size is seen at once.
        let out = AttrOut { attr: self.file.attr(), ..AttrOut::default() };
        self.reply(cx, slot, &out);
    }

    /// Continues the search for a hole or for data. The end of the file counts as a hole.
    fn seek(&mut self, cx: &mut Cx<'_>, slot: u16, offset: u64, hole: bool) {
        let from = offset.max(self.slot(slot).searched_to);
        let export = self.file.export();
        let size = export.size_bytes();
        let outcome = match from < size {
            true => seek(export.allocation(), from, (size, u64::from(export.info().block_bytes_min)), hole),
            // The offset was in the file when the search began, and the file has shrunk since.
            false if from > offset => SeekOutcome::End,
            false => return self.fail(cx, slot, libc::ENXIO),
        };
        match outcome {
            SeekOutcome::At(offset) => self.reply(cx, slot, &LseekOut { offset }),
            SeekOutcome::End if hole => self.reply(cx, slot, &LseekOut { offset: size }),
            SeekOutcome::End => self.fail(cx, slot, libc::ENXIO),
            SeekOutcome::NotBefore(at) => {
                self.slot(slot).searched_to = at;
                self.wait_for(slot, Wait::Resources);
            }
        }
    }

    fn serve_data(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, slot: u16) {
        if !self.slot(slot).admitted && self.is_throttled(cx, slot) {
            return;
        }
        let read_only = self.file.export().info().read_only;
        let (ask, size) = (self.slot(slot).ask, self.initial_size(slot));
        match ask {
            Ask::Fsync => self.submit(cx, shared, slot, Op::Flush, Flags::NONE, (0, 0), Buf::NONE),
            Ask::Read { offset, len } => {
                let end = (offset + u64::from(len)).min(size);
                if offset >= end {
                    return self.done(cx, slot, 0, None);
                }
                let patch = self.patch(offset, end, false);
                if let Some(own) = self.own(cx, slot, &patch) {
                    self.slot(slot).step = Step::Whole;
                    let range = (patch.low(), patch.high() - patch.low());
                    self.submit(cx, shared, slot, Op::Read, Flags::NONE, range, own);
                }
            }
            Ask::Write { .. } | Ask::Zero { .. } if read_only => self.fail(cx, slot, libc::EROFS),
            Ask::Write { offset, len, fua } => {
                let end = (offset + u64::from(len)).min(size);
                if offset >= end {
                    let errno = if len == 0 { 0 } else { libc::ENOSPC };
                    return self.fail(cx, slot, errno);
                }
                let flags = if fua { Flags::FUA } else { Flags::NONE };
                self.change(cx, shared, slot, self.patch(offset, end, false), flags);
            }
            Ask::Zero { offset, len, keep, keep_size } => {
                let end = offset + len;
                if end > size && !keep_size {
                    // The file would grow.
                    return self.fail(cx, slot, libc::EPERM);
                }
                if offset >= end.min(size) {
                    return self.done(cx, slot, 0, None);
                }
                let flags = if keep { Flags::NO_UNMAP } else { Flags::NONE };
                self.change(cx, shared, slot, self.patch(offset, end.min(size), true), flags);
            }
            _ => {}
        }
    }

    /// Returns the file's size in bytes at the time when this message was first served. All steps of the message use
    /// that size, even if the export is resized meanwhile.
    fn initial_size(&mut self, slot: u16) -> u64 {
        let now = self.file.export().size_bytes();
        *self.slot(slot).size_bytes.get_or_insert(now)
    }

    fn patch(&self, offset: u64, end: u64, zero: bool) -> Patch {
        Patch { offset, end, block: u64::from(self.file.export().info().block_bytes_min), zero }
    }

    /// Whether the limits of the export, or those shared by all exports of its volume, delay this message; it is then held until due.
    fn is_throttled(&mut self, cx: &mut Cx<'_>, slot: u16) -> bool {
        self.slot(slot).admitted = true;
        let (op, len) = match self.slot(slot).ask {
            Ask::Read { len, .. } => (Op::Read, len),
            Ask::Write { len, .. } => (Op::Write, len),
            _ => (Op::Flush, 0),
        };
        let now_ns = cx.now_ns();
        let export = self.file.export();
        let limits = [Some(export.throttle()), export.info().shared_throttle.as_deref()];
        let limits = limits.into_iter().flatten().filter(|throttle| throttle.is_limited());
        let due = limits.map(|throttle| throttle.admit(now_ns, op, u64::from(len)).0).max();
        let Some(due) = due.filter(|due| *due > now_ns) else { return false };
        self.wait_for(slot, Wait::Limits);
        self.held.push(Reverse((due, slot)));
        self.arm(cx, due);
        true
    }

    /// Returns the slot's memory, allocating it if needed; `None`: the slot waits for memory.
    fn own(&mut self, cx: &mut Cx<'_>, slot: u16, patch: &Patch) -> Option<Buf> {
        if self.slot(slot).own == Buf::NONE {
            let bytes = patch.memory_bytes();
            let Some(own) = cx.alloc(bytes) else {
                self.wait_for(slot, Wait::Resources);
                return None;
            };
            (self.slot(slot).own, self.slot(slot).own_bytes) = (own, bytes);
        }
        Some(self.slot(slot).own)
    }

    /// Serves a write or a zeroing from its current step on.
    fn change(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, slot: u16, patch: Patch, flags: Flags) {
        if patch.is_whole() {
            if !self.slot(slot).shares && !self.file.order.share() {
                return self.wait_for(slot, Wait::Order);
            }
            let data = self.slot(slot).data;
            (self.slot(slot).shares, self.slot(slot).step) = (true, Step::Whole);
            let (op, buf) = if patch.zero { (Op::WriteZeroes, Buf::NONE) } else { (Op::Write, data) };
            return self.submit(cx, shared, slot, op, flags, (patch.offset, patch.end - patch.offset), buf);
        }
        let step = self.slot(slot).step;
        let claim = match step {
            Step::Begin => self.file.order.claim(),
            Step::Claimed if !self.file.order.is_alone() => Claim::Waits,
            _ => Claim::Alone,
        };
        if claim != Claim::Refused {
            self.slot(slot).alone = true;
        }
        if claim != Claim::Alone {
            if claim == Claim::Waits {
                self.slot(slot).step = Step::Claimed;
            }
            return self.wait_for(slot, Wait::Order);
        }
        if matches!(step, Step::Begin | Step::Claimed) {
            // From here on no other write begins. Without memory the slot stays at this step.
            self.slot(slot).step = Step::Claimed;
            if self.own(cx, slot, &patch).is_none() {
                return;
            }
            self.slot(slot).step = patch.after(Step::Begin);
        }
        self.step(cx, shared, slot, patch, flags);
    }

    /// Begins the current step of a slot.
    fn step(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, slot: u16, patch: Patch, flags: Flags) {
        let step = self.slot(slot).step;
        if step == Step::Done {
            return self.finish_change(cx, slot, &patch);
        }
        let (op, at, len, from) = patch.request(step);
        // The memory may be gone: the previous step may have succeeded on some disks while a hanging one still uses it.
        if op != Op::WriteZeroes && self.own(cx, slot, &patch).is_none() {
            return;
        }
        let (own, data) = (self.slot(slot).own, self.slot(slot).data);
        if step == Step::WriteAll {
            cx.copy(data, own.add(patch.offset - patch.low()), (patch.end - patch.offset) as usize);
        }
        let buf = if op == Op::WriteZeroes { Buf::NONE } else { own.add(from) };
        let flags = match op {
            Op::Read => Flags::NONE,
            Op::Write => Flags(flags.0 & Flags::FUA.0),
            _ => flags,
        };
        self.submit(cx, shared, slot, op, flags, (at, len), buf);
    }

    #[allow(clippy::too_many_arguments)]
    fn submit(
        &mut self,
        cx: &mut Cx<'_>,
        shared: &mut Shared,
        slot: u16,
        op: Op,
        flags: Flags,
        (offset, len): (u64, u64),
        buf: Buf,
    ) {
        let tag = shared.next_tag(self.index, slot);
        let device = self.file.export().info().device;
        let request = Request { device, op, flags, offset, len, buf, tag };
        // Requests that change nothing begin at once, even if the kernel has ended the connection.
        let changes = !matches!(op, Op::Read | Op::Flush);
        let submitted = if changes { cx.enter(&request) } else { cx.submit(&request) };
        self.has_entered |= submitted.is_ok() && changes;
        (self.slot(slot).tag, self.slot(slot).running) = (tag, submitted.is_ok());
        match submitted {
            Ok(()) => {}
            Err(error) if error.kind == ErrorKind::Busy => self.wait_for(slot, Wait::Resources),
            Err(error) => self.failed(cx, shared, slot, error),
        }
    }

    /// Handles the completion of a slot's request by the engine.
    pub(super) fn io_done(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, slot: u16, completion: &Completion) {
        debug_assert_eq!(self.slot(slot).tag, completion.tag);
        self.slot(slot).running = false;
        if completion.buffer_busy {
            self.quarantine(shared, slot);
            let is_read = matches!(self.slot(slot).ask, Ask::Read { .. });
            if is_read && !self.slot(slot).retried && cx.is_redundant(self.file.export().info().device) {
                // Another disk may have the data: retry the read once, with other memory.
                self.slot(slot).retried = true;
                return self.serve(cx, shared, slot);
            }
        }
        if let Err(error) = completion.result {
            return self.failed(cx, shared, slot, error);
        }
        let (size, step) = (self.initial_size(slot), self.slot(slot).step);
        let ask = self.slot(slot).ask;
        match ask {
            Ask::Read { offset, len } => {
                // The memory bounds the reply: it was allocated for the part of the range within the file.
                let low = self.patch(offset, offset + 1, false).low();
                let skip = offset - low;
                let available = (self.slot(slot).own_bytes as u64).saturating_sub(skip);
                let len = u64::from(len).min(available) as u32;
                let data = SendPiece { buf: self.slot(slot).own.add(skip), len };
                self.done(cx, slot, 0, Some(data));
            }
            Ask::Write { offset, len, fua } => {
                let patch = self.patch(offset, (offset + u64::from(len)).min(size), false);
                let flags = if fua { Flags::FUA } else { Flags::NONE };
                self.finish_step(cx, shared, slot, patch, step, flags);
            }
            Ask::Zero { offset, len, keep, .. } => {
                let patch = self.patch(offset, (offset + len).min(size), true);
                let flags = if keep { Flags::NO_UNMAP } else { Flags::NONE };
                self.finish_step(cx, shared, slot, patch, step, flags);
            }
            _ => self.done(cx, slot, 0, None),
        }
    }

    fn finish_step(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, slot: u16, patch: Patch, step: Step, flags: Flags) {
        if step == Step::Whole {
            return self.finish_change(cx, slot, &patch);
        }
        if let Some((from, to)) = patch.cleared(step) {
            let own = self.slot(slot).own;
            cx.memory(own.add(from as u64), to - from).fill(0);
        }
        self.slot(slot).step = patch.after(step);
        self.step(cx, shared, slot, patch, flags);
    }

    /// Replies to a write or a zeroing that is complete.
    fn finish_change(&mut self, cx: &mut Cx<'_>, slot: u16, patch: &Patch) {
        match patch.zero {
            true => self.done(cx, slot, 0, None),
            false => {
                let size = (patch.end - patch.offset) as u32;
                self.reply(cx, slot, &WriteOut { size, padding: 0 });
            }
        }
    }

    fn failed(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, slot: u16, error: IoError) {
        let it = self.slot(slot);
        // The data of a write are lost if their memory was quarantined, because a hanging disk still uses it.
        let has_data = it.receive_buffer.is_some() || !matches!(it.ask, Ask::Write { .. });
        match outcome_of(error.kind, self.is_stopping(), has_data) {
            Outcome::Retry => self.wait_for(slot, Wait::Resources),
            Outcome::NoReply => self.drop_without_reply(cx, shared, slot),
            Outcome::Fail(errno) => self.fail(cx, slot, errno),
        }
    }

    /// Frees a message without a reply, so that the kernel resubmits it to the next server of the connection. If the
    /// kernel does not resubmit, the message fails with EIO.
    pub(super) fn drop_without_reply(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, slot: u16) {
        self.slot(slot).wait = Wait::None;
        if !self.file.resends() && !self.file.is_gone() {
            return self.fail(cx, slot, libc::EIO);
        }
        self.leave_write_order(slot);
        self.vacate(cx, shared, slot);
    }

    fn fail(&mut self, cx: &mut Cx<'_>, slot: u16, errno: i32) {
        self.done(cx, slot, -errno, None);
    }

    fn reply<T: IntoBytes + Immutable>(&mut self, cx: &mut Cx<'_>, slot: u16, body: &T) {
        let bytes = body.as_bytes();
        self.reply_head(cx, slot)[HEADER_BYTES..HEADER_BYTES + bytes.len()].copy_from_slice(bytes);
        self.finish(cx, slot, 0, bytes.len(), None);
    }

    /// Replies without a body, or with data.
    fn done(&mut self, cx: &mut Cx<'_>, slot: u16, error: i32, data: Option<SendPiece>) {
        self.finish(cx, slot, error, 0, data);
    }

    fn finish(&mut self, cx: &mut Cx<'_>, slot: u16, error: i32, body_bytes: usize, data: Option<SendPiece>) {
        self.leave_write_order(slot);
        self.count(cx, slot, error);
        let data = data.filter(|_| error == 0);
        let head_bytes = HEADER_BYTES + body_bytes;
        let len = head_bytes as u32 + data.map_or(0, |data| data.len);
        let header = OutHeader { len, error, unique: self.slot(slot).unique };
        self.reply_head(cx, slot)[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        self.send(cx, slot, head_bytes, data);
    }

    /// Removes the slot from the write order.
    fn leave_write_order(&mut self, slot: u16) {
        let it = self.slot(slot);
        let (shares, alone) = (std::mem::take(&mut it.shares), std::mem::take(&mut it.alone));
        if alone {
            self.file.order.release();
        }
        if alone || (shares && self.file.order.unshare()) {
            self.file.wake();
        }
    }

    fn count(&mut self, cx: &mut Cx<'_>, slot: u16, error: i32) {
        let it = *self.slot(slot);
        let class = match it.ask {
            Ask::Read { len, .. } => {
                self.stats.reads += 1;
                self.stats.read_bytes += if error == 0 { u64::from(len) } else { 0 };
                RequestClass::Read
            }
            Ask::Write { len, .. } => {
                self.stats.writes += 1;
                self.stats.written_bytes += if error == 0 { u64::from(len) } else { 0 };
                RequestClass::Write
            }
            Ask::Zero { .. } | Ask::Fsync => {
                self.stats.others += 1;
                RequestClass::Other
            }
            _ => return,
        };
        self.stats.errors += u64::from(error != 0);
        self.file.export().record_latency(class, cx.now_ns().saturating_sub(it.taken_ns));
    }
}

/// The outcome of a message whose request the engine did not carry out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// The request is retried, and dropped without a reply when the file is detached.
    Retry,
    /// No reply: the next server of the connection gets the message again.
    NoReply,
    /// A reply with this error number.
    Fail(i32),
}

/// Returns the outcome of an error. The mount outlives the exported device, so a request whose outcome is not settled
/// ([`ErrorKind::is_unsettled`]) gets no error: it is retried here, or, once this session ends or has lost the data,
/// resubmitted to a later one.
fn outcome_of(kind: ErrorKind, stopping: bool, has_data: bool) -> Outcome {
    match kind.is_unsettled() {
        true if !stopping && has_data => Outcome::Retry,
        true => Outcome::NoReply,
        false => Outcome::Fail(errno_of(kind)),
    }
}

/// Returns the error number that a user gets for an error of the engine.
fn errno_of(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::NoSpace => libc::ENOSPC,
        ErrorKind::ReadOnly => libc::EROFS,
        ErrorKind::Invalid => libc::EINVAL,
        ErrorKind::Unsupported => libc::EOPNOTSUPP,
        _ => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_a_later_session_settles_gets_no_reply() {
        for kind in [ErrorKind::NoDevice, ErrorKind::Unsettled] {
            assert_eq!(outcome_of(kind, false, true), Outcome::Retry);
            assert_eq!(outcome_of(kind, true, true), Outcome::NoReply);
            // A hanging disk still has its data: the kernel resubmits them.
            assert_eq!(outcome_of(kind, false, false), Outcome::NoReply);
        }
        assert_eq!(outcome_of(ErrorKind::Failed, false, true), Outcome::Fail(libc::EIO));
        assert_eq!(outcome_of(ErrorKind::NoSpace, true, true), Outcome::Fail(libc::ENOSPC));
    }
}
