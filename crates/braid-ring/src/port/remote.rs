//! Leaf I/Os on disks on the other side of a network: they wait in a list until a carrier takes them, in parts, and end when all
//! their parts have.

use braid_engine::{ErrorKind, LeafError, LeafId, LeafResult, Op};

use super::entry::{NONE, State};
use super::{Port, errno, memory, vouches};
use crate::remote::{Cut, RemotePart};

/// The I/Os that wait for one carrier, first come first served. Only of the first one parts may have been taken.
#[derive(Clone, Copy)]
struct Line {
    head: u32,
    tail: u32,
    /// In the list of those whose carrier has something to do.
    due: bool,
}

/// All of them, by the carrier's place.
#[derive(Default)]
pub(super) struct Lines {
    all: Vec<Line>,
    due: Vec<u16>,
}

impl Port {
    /// Makes the carrier at this place the one of a leaf.
    pub(crate) fn set_remote(&mut self, id: LeafId, place: u16) {
        let line = Line { head: NONE, tail: NONE, due: false };
        let lines = &mut self.lines;
        if lines.all.len() <= usize::from(place) {
            lines.all.resize(usize::from(place) + 1, line);
        }
        lines.all[usize::from(place)] = line;
        lines.due.retain(|due| *due != place);
        lines.due.reserve(lines.all.len());
        self.leaves[id.0 as usize].place = place;
    }

    /// The place of a leaf's carrier, if it has one here.
    pub(crate) fn remote_of(&self, id: LeafId) -> Option<u16> {
        let leaf = &self.leaves[id.0 as usize];
        let remote = leaf.disk.as_ref().is_some_and(|disk| disk.is_remote()) && leaf.host.is_none();
        remote.then_some(leaf.place)
    }

    /// Whether nothing of a leaf is under way.
    pub(crate) fn is_quiet(&self, id: LeafId) -> bool {
        self.leaves[id.0 as usize].in_flight == 0
    }

    pub(crate) fn remote_is_due(&mut self, place: u16) {
        let line = &mut self.lines.all[usize::from(place)];
        if !std::mem::replace(&mut line.due, true) {
            self.lines.due.push(place);
        }
    }

    pub(crate) fn next_due_remote(&mut self) -> Option<u16> {
        let place = self.lines.due.pop()?;
        self.lines.all[usize::from(place)].due = false;
        Some(place)
    }

    /// Begins an entry.
    pub(super) fn begin_remote(&mut self, index: u32) {
        let entry = &mut self.entries[index];
        if entry.io.len == 0 && entry.io.op != Op::Flush {
            return self.finish(index, Ok(()));
        }
        (entry.state, entry.out, entry.done, entry.result, entry.link) = (State::Remote, 0, 0, Ok(()), NONE);
        let leaf = &self.leaves[entry.io.leaf.0 as usize];
        if let Some(host) = leaf.host {
            return self.send_errand(index, host);
        }
        let place = leaf.place;
        let line = &mut self.lines.all[usize::from(place)];
        let tail = std::mem::replace(&mut line.tail, index);
        match tail {
            NONE => line.head = index,
            tail => self.entries[tail].link = index,
        }
        self.remote_is_due(place);
    }

    fn pop_line(&mut self, place: u16) {
        let line = &mut self.lines.all[usize::from(place)];
        line.head = self.entries[line.head].link;
        if line.head == NONE {
            line.tail = NONE;
        }
    }

    /// Since when the first that waits does.
    pub(crate) fn waiting_since_ns(&self, place: u16) -> Option<u64> {
        let head = self.lines.all[usize::from(place)].head;
        (head != NONE).then(|| self.entries[head].start_ns)
    }

    /// The next part of what waits.
    pub(crate) fn take_part(&mut self, place: u16, cut: &Cut) -> Option<RemotePart> {
        let index = self.lines.all[usize::from(place)].head;
        if index == NONE {
            return None;
        }
        let entry = &mut self.entries[index];
        let io = &entry.io;
        let (at, rest) = (entry.done, io.len - entry.done);
        let len = match io.op {
            Op::Read | Op::Write => pieces_end(io, at, cut.pieces).min(at + cut.data_bytes.min(rest)) - at,
            Op::WriteZeroes | Op::Discard => rest.min(cut.range_bytes),
            Op::Flush => 0,
        };
        let (op, flags, offset, start_ns) = (io.op, io.flags, io.offset + at, entry.start_ns);
        let part = RemotePart { io: index, op, flags, offset, len, at, start_ns };
        entry.done += len;
        entry.out += 1;
        if entry.done == entry.io.len {
            self.pop_line(place);
        }
        Some(part)
    }

    /// A part of an entry has ended.
    pub(crate) fn part_done(&mut self, index: u32, result: Result<(), i32>) {
        let entry = &mut self.entries[index];
        debug_assert!(entry.state == State::Remote && entry.out > 0, "a part is answered once");
        entry.out -= 1;
        if let (Err(errno), Ok(())) = (result, entry.result) {
            entry.result = Err(errno::leaf_error(errno));
            let place = self.leaves[entry.io.leaf.0 as usize].place;
            if entry.done < entry.io.len {
                // No more of it needs to be tried.
                entry.done = entry.io.len;
                self.pop_line(place);
            }
        }
        self.end_remote(index);
    }

    /// Ends the first that waits; parts of it that were taken go on before it is answered.
    pub(crate) fn fail_waiting(&mut self, place: u16, errno: i32) {
        let index = self.lines.all[usize::from(place)].head;
        if index == NONE {
            return;
        }
        self.pop_line(place);
        let entry = &mut self.entries[index];
        entry.done = entry.io.len;
        if entry.result.is_ok() {
            entry.result = Err(errno::leaf_error(errno));
        }
        self.end_remote(index);
    }

    /// Ends, as slow, the reads that have waited for too long and that others may answer; parts that were taken go on. Since when the first
    /// of them has waited.
    pub(crate) fn give_up_reads(&mut self, place: u16, now_ns: u64, limit_ns: u64) -> Option<u64> {
        let (mut before, mut since) = (NONE, None);
        let mut index = self.lines.all[usize::from(place)].head;
        while index != NONE {
            let entry = &mut self.entries[index];
            let (this, next) = (index, entry.link);
            index = next;
            if !entry.io.flags.gives_up(now_ns.saturating_sub(entry.start_ns), limit_ns) {
                before = this;
                continue;
            }
            since = since.or(Some(entry.start_ns));
            entry.done = entry.io.len;
            if entry.result.is_ok() {
                entry.result = Err(LeafError::of(ErrorKind::Slow));
            }
            let line = &mut self.lines.all[usize::from(place)];
            if line.tail == this {
                line.tail = before;
            }
            match before {
                NONE => line.head = next,
                before => self.entries[before].link = next,
            }
            self.end_remote(this);
        }
        since
    }

    /// Answers an entry if nothing of it is left.
    fn end_remote(&mut self, index: u32) {
        let entry = &self.entries[index];
        if entry.out > 0 || entry.done < entry.io.len {
            return;
        }
        let mut result: LeafResult = entry.result;
        self.doubt_flushes_of(index, result);
        let disk = self.leaves[self.entries[index].io.leaf.0 as usize].disk.as_ref();
        if result.is_ok() && vouches(&self.entries[index].io) && disk.is_some_and(|disk| disk.has_failed_flush()) {
            // Another shard was told meanwhile that something may be lost.
            result = Err(braid_engine::LeafError::of(braid_engine::ErrorKind::FlushFailed));
        }
        self.finish(index, result);
    }

    /// Where byte `at` of a part is, and how many bytes of the I/O follow in the same piece, itself included.
    ///
    /// # Panics
    /// When the part has no such byte, or is none of this port's.
    pub(crate) fn memory_of(&self, part: &RemotePart, at: u64) -> (u64, u64) {
        let entry = &self.entries[part.io];
        assert!(at < part.len && part.at + part.len <= entry.io.len && entry.state == State::Remote, "a part's byte");
        if !matches!(entry.io.op, Op::Read | Op::Write) {
            // Zeros, from anywhere.
            let bytes = self.zeros.len() as u64;
            return (self.zeros.addr(), bytes);
        }
        let mut skip = part.at + at;
        for k in 0..entry.io.pieces() {
            let (buf, len) = entry.io.piece(k);
            if skip < u64::from(len) {
                return (buf.addr + skip, u64::from(len) - skip);
            }
            skip -= u64::from(len);
        }
        unreachable!("the pieces of an I/O are as long as itself")
    }

    /// Copies received bytes to the memory of a part, from its byte `at` on. They are `len` bytes at `from`.
    pub(crate) fn copy_data(&mut self, part: &RemotePart, mut at: u64, mut from: *const u8, mut len: u64) {
        assert!(part.op == Op::Read, "only what is read has memory to be changed");
        while len > 0 {
            let (addr, piece) = self.memory_of(part, at);
            let step = piece.min(len);
            // SAFETY: memory of an I/O that is not answered, inside one of its pieces; the engine vouches for it. The source is the
            // carrier's, as it has checked, and no part of any I/O.
            unsafe { memory::copy_from(from, addr, step) };
            (at, from, len) = (at + step, from.wrapping_add(step as usize), len - step);
        }
    }

    /// Copies data of a part, from its byte `at` on, to `len` bytes at `to`, which are the carrier's and no part of any I/O.
    pub(crate) fn data_to(&self, part: &RemotePart, mut at: u64, mut to: *mut u8, mut len: u64) {
        while len > 0 {
            let (addr, piece) = self.memory_of(part, at);
            let step = piece.min(len);
            // SAFETY: memory of an I/O that is not answered, inside one of its pieces, or this port's zeros; the engine vouches for it.
            // The carrier has checked what it is copied to.
            unsafe { memory::copy_to(addr, to, step) };
            (at, to, len) = (at + step, to.wrapping_add(step as usize), len - step);
        }
    }
}

/// Where the piece ends that is the `pieces`th from byte `at` on.
fn pieces_end(io: &braid_engine::LeafIo, at: u64, pieces: usize) -> u64 {
    let (mut end, mut left) = (0, pieces.max(1));
    for k in 0..io.pieces() {
        end += u64::from(io.piece(k).1);
        if end > at {
            left -= 1;
            if left == 0 {
                break;
            }
        }
    }
    end
}
