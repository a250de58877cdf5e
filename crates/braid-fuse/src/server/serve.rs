//! Carries out what a message asks, and answers it.

use braid_engine::{Buf, Completion, ErrorKind, Flags, IoError, Op, Request};
use braid_nbd::RequestClass;
use braid_ring::{Cx, SendPiece};
use std::cmp::Reverse;
use zerocopy::{Immutable, IntoBytes};

use super::Shared;
use super::patch::{Patch, Step};
use super::seek::{Sought, seek};
use super::session::{Session, Wait};
use crate::ask::Ask;
use crate::order::Claim;
use crate::wire::{
    AttrOut, DATA_BYTES_MAX, InitOut, LseekOut, MAJOR, MINOR, MINOR_MIN, OpenOut, OutHeader, StatfsOut, WriteOut,
    init_flags, open_flags,
};

/// Requests of the kernel's own that it has under way at a time, of one file.
const BACKGROUND_MAX: u16 = 256;
/// From so many on it holds back.
const CONGESTED: u16 = 192;

const HEADER_BYTES: usize = size_of::<OutHeader>();

impl Session {
    /// Goes on with a message, from wherever it stands.
    pub(super) fn serve(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, slot: u16) {
        self.slot(slot).wait = Wait::Not;
        match self.slot(slot).ask {
            Ask::Read { .. } | Ask::Write { .. } | Ask::Zero { .. } | Ask::Fsync => self.data(cx, shared, slot),
            _ => self.about(cx, slot),
        }
    }

    /// What has nothing to do with data.
    fn about(&mut self, cx: &mut Cx<'_>, slot: u16) {
        let ask = self.slot(slot).ask;
        match ask {
            Ask::Init { minor, flags } => self.init(cx, slot, minor, flags),
            Ask::GetAttr => self.attr(cx, slot),
            Ask::SetAttr { ownership: true, .. } => self.fail(cx, slot, libc::EPERM),
            // Opening with O_TRUNC, which leaves a device as it is, cannot be told from `truncate` to nothing.
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
                        self.answer(cx, slot, &OpenOut { fh, open_flags, backing_id: 0 });
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
                self.answer(cx, slot, &out);
            }
            Ask::Seek { offset, hole } => self.seek(cx, slot, offset, hole),
            Ask::Refuse(errno) => self.fail(cx, slot, errno),
            _ => debug_assert!(false, "it has been served elsewhere"),
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
        self.answer(cx, slot, &out);
    }

    fn attr(&mut self, cx: &mut Cx<'_>, slot: u16) {
        // They are valid for no time, so that another size shows at once.
        let out = AttrOut { attr: self.file.attr(), ..AttrOut::default() };
        self.answer(cx, slot, &out);
    }

    /// Looks for a hole or for data from where it has not been looked yet. The end of the file counts as a hole.
    fn seek(&mut self, cx: &mut Cx<'_>, slot: u16, offset: u64, hole: bool) {
        let from = offset.max(self.slot(slot).sought);
        let export = self.file.export();
        let size = export.size_bytes();
        let sought = match from < size {
            true => seek(export.allocation(), from, (size, u64::from(export.info().block_bytes_min)), hole),
            // It was there when it was first looked at, and has become smaller.
            false if from > offset => Sought::End,
            false => return self.fail(cx, slot, libc::ENXIO),
        };
        match sought {
            Sought::At(offset) => self.answer(cx, slot, &LseekOut { offset }),
            Sought::End if hole => self.answer(cx, slot, &LseekOut { offset: size }),
            Sought::End => self.fail(cx, slot, libc::ENXIO),
            Sought::NotBefore(at) => {
                self.slot(slot).sought = at;
                self.wait_for(slot, Wait::Room);
            }
        }
    }

    fn data(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, slot: u16) {
        if !self.slot(slot).admitted && self.is_held_back(cx, slot) {
            return;
        }
        let read_only = self.file.export().info().read_only;
        let (ask, size) = (self.slot(slot).ask, self.size_at_first(slot));
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
                    // It would become longer.
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

    /// The file's size when this message was first looked at: what was begun by it is ended by it.
    fn size_at_first(&mut self, slot: u16) -> u64 {
        let now = self.file.export().size_bytes();
        *self.slot(slot).size_bytes.get_or_insert(now)
    }

    fn patch(&self, offset: u64, end: u64, zero: bool) -> Patch {
        Patch { offset, end, block: u64::from(self.file.export().info().block_bytes_min), zero }
    }

    /// Whether the limits of the export, or of what it is of, let this wait.
    fn is_held_back(&mut self, cx: &mut Cx<'_>, slot: u16) -> bool {
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

    /// Memory of a slot's own; none: it waits for some.
    fn own(&mut self, cx: &mut Cx<'_>, slot: u16, patch: &Patch) -> Option<Buf> {
        if self.slot(slot).own == Buf::NONE {
            let bytes = patch.memory_bytes();
            let Some(own) = cx.alloc(bytes) else {
                self.wait_for(slot, Wait::Room);
                return None;
            };
            (self.slot(slot).own, self.slot(slot).own_bytes) = (own, bytes);
        }
        Some(self.slot(slot).own)
    }

    /// Goes on with what changes data.
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
            // From here on nobody else begins; should there be no memory, it stays at this step.
            self.slot(slot).step = Step::Claimed;
            if self.own(cx, slot, &patch).is_none() {
                return;
            }
            self.slot(slot).step = patch.after(Step::Begin);
        }
        self.step(cx, shared, slot, patch, flags);
    }

    /// Begins the step that a slot stands at.
    fn step(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, slot: u16, patch: Patch, flags: Flags) {
        let step = self.slot(slot).step;
        if step == Step::Done {
            return self.changed(cx, slot, &patch);
        }
        let (op, at, len, from) = patch.request(step);
        // A disk that hangs may have kept the memory of the step before, which went well without it.
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
        // What changes nothing begins at once, wherever its client is.
        let changes = !matches!(op, Op::Read | Op::Flush);
        let submitted = if changes { cx.enter(&request) } else { cx.submit(&request) };
        self.has_entered |= submitted.is_ok() && changes;
        (self.slot(slot).tag, self.slot(slot).running) = (tag, submitted.is_ok());
        match submitted {
            Ok(()) => {}
            Err(error) if error.kind == ErrorKind::Busy => self.wait_for(slot, Wait::Room),
            Err(error) => self.failed(cx, shared, slot, error),
        }
    }

    /// The engine has answered.
    pub(super) fn io_done(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, slot: u16, completion: &Completion) {
        debug_assert_eq!(self.slot(slot).tag, completion.tag);
        self.slot(slot).running = false;
        if completion.buffer_busy {
            self.quarantine(shared, slot);
            let is_read = matches!(self.slot(slot).ask, Ask::Read { .. });
            if is_read && !self.slot(slot).again && cx.is_redundant(self.file.export().info().device) {
                // Another disk may have it: once more, with other memory.
                self.slot(slot).again = true;
                return self.serve(cx, shared, slot);
            }
        }
        if let Err(error) = completion.result {
            return self.failed(cx, shared, slot, error);
        }
        let (size, step) = (self.size_at_first(slot), self.slot(slot).step);
        let ask = self.slot(slot).ask;
        match ask {
            Ask::Read { offset, len } => {
                // What it was read by: the size may have changed since.
                let low = self.patch(offset, offset + 1, false).low();
                let skip = offset - low;
                let there = (self.slot(slot).own_bytes as u64).saturating_sub(skip);
                let len = u64::from(len).min(there) as u32;
                let data = SendPiece { buf: self.slot(slot).own.add(skip), len };
                self.done(cx, slot, 0, Some(data));
            }
            Ask::Write { offset, len, fua } => {
                let patch = self.patch(offset, (offset + u64::from(len)).min(size), false);
                let flags = if fua { Flags::FUA } else { Flags::NONE };
                self.go_on(cx, shared, slot, patch, step, flags);
            }
            Ask::Zero { offset, len, keep, .. } => {
                let patch = self.patch(offset, (offset + len).min(size), true);
                let flags = if keep { Flags::NO_UNMAP } else { Flags::NONE };
                self.go_on(cx, shared, slot, patch, step, flags);
            }
            _ => self.done(cx, slot, 0, None),
        }
    }

    fn go_on(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, slot: u16, patch: Patch, step: Step, flags: Flags) {
        if step == Step::Whole {
            return self.changed(cx, slot, &patch);
        }
        if let Some((from, to)) = patch.cleared(step) {
            let own = self.slot(slot).own;
            cx.memory(own.add(from as u64), to - from).fill(0);
        }
        self.slot(slot).step = patch.after(step);
        self.step(cx, shared, slot, patch, flags);
    }

    /// All of it has changed.
    fn changed(&mut self, cx: &mut Cx<'_>, slot: u16, patch: &Patch) {
        match patch.zero {
            true => self.done(cx, slot, 0, None),
            false => {
                let size = (patch.end - patch.offset) as u32;
                self.answer(cx, slot, &WriteOut { size, padding: 0 });
            }
        }
    }

    fn failed(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, slot: u16, error: IoError) {
        let it = self.slot(slot);
        // What is to be written may be in memory that a disk which hangs still has.
        let has_data = it.landing.is_some() || !matches!(it.ask, Ask::Write { .. });
        match ending_of(error.kind, self.is_stopping(), has_data) {
            Ending::Waits => self.wait_for(slot, Wait::Room),
            Ending::Unanswered => self.drop_unanswered(cx, shared, slot),
            Ending::Fails(errno) => self.fail(cx, slot, errno),
        }
    }

    /// Leaves a message to whoever serves the connection next; where the kernel does not give it again, it fails.
    pub(super) fn drop_unanswered(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, slot: u16) {
        self.slot(slot).wait = Wait::Not;
        if !self.file.resends() && !self.file.is_gone() {
            return self.fail(cx, slot, libc::EIO);
        }
        self.let_go(slot);
        self.vacate(cx, shared, slot);
    }

    fn fail(&mut self, cx: &mut Cx<'_>, slot: u16, errno: i32) {
        self.done(cx, slot, -errno, None);
    }

    fn answer<T: IntoBytes + Immutable>(&mut self, cx: &mut Cx<'_>, slot: u16, body: &T) {
        let bytes = body.as_bytes();
        self.answer_room(cx, slot)[HEADER_BYTES..HEADER_BYTES + bytes.len()].copy_from_slice(bytes);
        self.finish(cx, slot, 0, bytes.len(), None);
    }

    /// Answers without a body, or with data.
    fn done(&mut self, cx: &mut Cx<'_>, slot: u16, error: i32, data: Option<SendPiece>) {
        self.finish(cx, slot, error, 0, data);
    }

    fn finish(&mut self, cx: &mut Cx<'_>, slot: u16, error: i32, body_bytes: usize, data: Option<SendPiece>) {
        self.let_go(slot);
        self.count(cx, slot, error);
        let data = data.filter(|_| error == 0);
        let head_bytes = HEADER_BYTES + body_bytes;
        let len = head_bytes as u32 + data.map_or(0, |data| data.len);
        let header = OutHeader { len, error, unique: self.slot(slot).unique };
        self.answer_room(cx, slot)[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        self.send(cx, slot, head_bytes, data);
    }

    /// The slot takes part in the order of writes no more.
    fn let_go(&mut self, slot: u16) {
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
        self.file.export().took(class, cx.now_ns().saturating_sub(it.taken_ns));
    }
}

/// What becomes of a message whose request the engine did not carry out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    /// It is asked again, and given up unanswered when the file is detached.
    Waits,
    /// Whoever serves the connection next gets it again.
    Unanswered,
    /// It is answered with this error number.
    Fails(i32),
}

/// The mount outlives what it is of: what a later session settles is not answered, neither by this serving of the file nor at its end.
fn ending_of(kind: ErrorKind, stopping: bool, has_data: bool) -> Ending {
    match kind.is_unsettled() {
        true if !stopping && has_data => Ending::Waits,
        true => Ending::Unanswered,
        false => Ending::Fails(errno_of(kind)),
    }
}

/// What a user sees of an error of the engine.
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
    fn what_a_later_session_settles_is_never_answered() {
        for kind in [ErrorKind::NoDevice, ErrorKind::Unsettled] {
            assert_eq!(ending_of(kind, false, true), Ending::Waits);
            assert_eq!(ending_of(kind, true, true), Ending::Unanswered);
            // Its data are not this session's any more: the kernel gives them again.
            assert_eq!(ending_of(kind, false, false), Ending::Unanswered);
        }
        assert_eq!(ending_of(ErrorKind::Failed, false, true), Ending::Fails(libc::EIO));
        assert_eq!(ending_of(ErrorKind::NoSpace, true, true), Ending::Fails(libc::ENOSPC));
    }
}
