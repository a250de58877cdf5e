//! The commit: what the tail says goes into the rings of the members.
//!
//! One at a time: the end of the tail is marked; all members flush, so that what is said is true; the entries up to the mark are written to
//! the rings of the members that they are about (of owners: to all); those flush. Only then it counts, and what waited for it is
//! answered. A batch says which members take part in its commit and how many batches each has: a start counts a commit only where all are there.
//!
//! A batch that finds no space below (the file system of a file is full) is written again later, and all others of its commit with it: see
//! [`super::starved`]. Whatever else fails is the end of all commits.

use braid_format::pool::{
    Absences, BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BATCH_UNITS_MAX, BatchHeader, Change, RecordKind, UNIT_BYTES, seal,
};

use super::checkpoint::{Checkpoint, PageRun};
use super::home::Pool;
use super::starved::{CommitFailed, Tries};
use super::state::RecordId;
use super::units::{ExtentId, MEMBERS_MAX};
use crate::io::ErrorKind;
use crate::planted::{Planted, planted};

/// Pieces of memory for a pool's own writes, of [`BATCH_BYTES_MAX`] bytes each.
pub const BUFFERS: u32 = 16;
const BLOCK: u64 = 4096;
/// Blocks of the longest batch.
pub(super) const BATCH_BLOCKS_MAX: u64 = BATCH_BYTES_MAX as u64 / BLOCK;
/// Of these, discards: nobody waits for them as others wait for the rest.
const DISCARDS_MAX: usize = 16;
/// I/Os of a pool's own that are out at a time.
pub const POOL_IOS_MAX: usize = 64;

/// Memory for a pool's own writes.
pub trait PoolMemory {
    /// The bytes of one piece, [`BATCH_BYTES_MAX`] long. What is written from it stays until that has ended.
    fn buffer(&mut self, index: u32) -> &mut [u8];
}

/// What a pool wants done on one of its members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolOp {
    /// What was written before is to survive loss of power.
    Flush,
    /// The first bytes of this piece of memory are to be written.
    Write {
        /// Which piece.
        buffer: u32,
    },
    /// What stands there is not needed any more.
    Discard,
    /// What stands elsewhere is to be written there.
    Copy {
        /// The member.
        from_member: u8,
        /// First byte there.
        from_offset: u64,
    },
}

/// One I/O of a pool's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolIo {
    /// To be returned with the result.
    pub token: u32,
    /// The member.
    pub member: u8,
    /// What is to be done.
    pub op: PoolOp,
    /// First byte on the member; 0 for a flush.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub len: u64,
}

/// Whose I/O it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum For {
    /// A flush of the commit.
    Commit,
    /// One of its batches, of this member.
    Batch {
        member: u8,
    },
    /// A flush of the checkpoint.
    Checkpoint,
    /// Blocks of a member's tables.
    Page {
        member: u8,
        run: PageRun,
    },
    /// The start of a member's ring.
    Start {
        member: u8,
    },
    Discard {
        member: u8,
        index: u32,
    },
    /// For the move of this number.
    Copy {
        number: u8,
    },
}

/// The ring of one member. Positions count blocks from the ring's first use on and never go back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    /// First byte on the member.
    pub offset: u64,
    pub blocks: u64,
    /// Where the next batch is written, and its number.
    pub head: u64,
    pub sequence: u64,
    /// The same of the first batch after the last commit that counts.
    pub committed: (u64, u64),
    /// The first block that may be needed.
    pub start: u64,
}

impl Ring {
    /// Where a batch is written that comes next: none begins so near the end that the longest one would not fit.
    pub fn next_place(position: u64, blocks: u64) -> u64 {
        let at = position % blocks;
        if at + BATCH_BLOCKS_MAX > blocks { position + blocks - at } else { position }
    }

    fn has_room(&self, needed: u64) -> bool {
        self.head - self.start + needed + BATCH_BLOCKS_MAX <= self.blocks
    }
}

/// Where a commit is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Idle,
    /// Members are flushed, from this one on.
    Data {
        next: usize,
    },
    /// The rings have to be emptied first.
    Room,
    /// Batches are written: of this member next, from this unit on.
    Write {
        member: usize,
        from: u64,
        index: u16,
    },
    /// Those members are flushed that have got some.
    Rings {
        next: usize,
    },
    /// Batches found no space: all are to be written again, as they were.
    Starved,
    /// A member has failed: nothing is committed any more.
    Failed,
}

/// All that a pool's commits and checkpoints need.
pub(super) struct Commits {
    pub tag: u32,
    pub session: u64,
    pub run: u64,
    /// By seat ([`Checkpoint::seats`]), as all that counts members here.
    pub rings: Vec<Ring>,
    /// The run before this one, until all members have a start of this one.
    pub before: u64,
    /// Who has what was decided when this run began; 0 when all have a start of it.
    pub settled: u128,
    /// By member, the last commit that has batches on it.
    pub parts: [u64; MEMBERS_MAX],
    /// Members that the pool goes on without.
    pub absent: Absences,
    /// The last commit that counts, and the last unit that it covers.
    pub commit: u64,
    pub committed: u64,
    stage: Stage,
    mark: u64,
    /// How writing the batches of the commit under way goes.
    pub tries: Tries,
    /// Units and batches of the commit under way, by member.
    units: Vec<(u32, u16, u64)>,
    /// I/Os of the commit that are out.
    out: u32,
    begun: u64,
    done: u64,
    wanted: u64,
    pub checkpoint: Checkpoint,
    pub ios: [Option<(For, Option<u32>)>; POOL_IOS_MAX],
    pub buffers: u32,
    /// Extents discarded, and so free again.
    pub discarded: u64,
    /// A member that is about to go, and the checkpoint after which nothing of it is needed.
    pub leaving: Option<(u8, u64)>,
    /// A barrier that is under way, and how many were.
    barrier: Option<u64>,
    barriers: u64,
}

impl Commits {
    pub fn new(
        tag: u32,
        session: u64,
        run: u64,
        rings: Vec<Ring>,
        start: (u64, u64),
        checkpoint: Checkpoint,
    ) -> Commits {
        let (commit, committed) = start;
        Commits {
            tag,
            session,
            run,
            units: vec![(0, 0, 0); rings.len()],
            rings,
            before: 0,
            settled: 0,
            parts: [0; MEMBERS_MAX],
            absent: Absences::NONE,
            commit,
            committed,
            stage: Stage::Idle,
            mark: 0,
            tries: Tries::default(),
            out: 0,
            begun: 0,
            done: 0,
            wanted: 0,
            checkpoint,
            ios: [None; POOL_IOS_MAX],
            buffers: if BUFFERS == 32 { u32::MAX } else { (1 << BUFFERS) - 1 },
            discarded: 0,
            leaving: None,
            barrier: None,
            barriers: 0,
        }
    }

    /// Whether no commit is under way.
    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    /// A member is not here any more. No commit and no checkpoint is under way.
    pub fn remove_member(&mut self, member: u8) {
        let Some(seat) = self.checkpoint.remove_member(member) else { return };
        self.rings.remove(seat);
        self.units.remove(seat);
    }

    /// A member that is in no label is not written to any more, also in the middle of a commit or of a checkpoint. No I/O of either is out.
    /// What was being written is written again, but for that member's part: a commit that had begun to write its batches is as one that
    /// found no space.
    pub fn withdraw_member(&mut self, member: u8) {
        debug_assert!(!self.is_writing() && !self.is_failed());
        self.checkpoint.begin_stage_again();
        self.remove_member(member);
        self.tries.forget(member);
        self.checkpoint.tries.forget(member);
        self.stage = match self.stage {
            Stage::Data { .. } => Stage::Data { next: 0 },
            Stage::Write { .. } => Stage::Starved,
            Stage::Rings { .. } => Stage::Rings { next: 0 },
            stage @ (Stage::Idle | Stage::Room | Stage::Starved | Stage::Failed) => stage,
        };
    }

    pub fn is_failed(&self) -> bool {
        self.stage == Stage::Failed
    }

    pub fn fail(&mut self) {
        self.stage = Stage::Failed;
    }

    /// Whether anything is under way.
    pub fn is_busy(&self) -> bool {
        self.stage != Stage::Idle || self.is_wanted() || self.ios.iter().any(Option::is_some)
    }

    /// Whether neither a commit nor a checkpoint is under way.
    pub fn is_between(&self) -> bool {
        self.stage == Stage::Idle && self.checkpoint.is_idle() && !self.is_writing()
    }

    /// Whether an I/O of a commit or of a checkpoint is out.
    pub fn is_writing(&self) -> bool {
        let others = |whose: &For| matches!(whose, For::Discard { .. } | For::Copy { .. });
        self.ios.iter().flatten().any(|(whose, _)| !others(whose))
    }

    /// One more member has a ring.
    pub fn add_ring(&mut self, ring: Ring) {
        self.rings.push(ring);
        self.units.push((0, 0, 0));
    }

    /// The extents of a member that are being discarded.
    pub fn discarding(&self, of: u8) -> impl Iterator<Item = u32> + '_ {
        self.ios.iter().flatten().filter_map(move |(whose, _)| match whose {
            For::Discard { member, index } if *member == of => Some(*index),
            _ => None,
        })
    }

    fn discards(&self) -> usize {
        self.ios.iter().flatten().filter(|(whose, _)| matches!(whose, For::Discard { .. })).count()
    }

    /// Takes a place among the I/Os that are out.
    pub fn take_io(&mut self, whose: For, buffer: Option<u32>) -> Option<u32> {
        let token = self.ios.iter().position(Option::is_none)?;
        self.ios[token] = Some((whose, buffer));
        Some(token as u32)
    }

    pub fn has_io(&self) -> bool {
        self.ios.iter().any(Option::is_none)
    }

    pub fn take_buffer(&mut self) -> Option<u32> {
        let buffer = self.buffers.trailing_zeros();
        if buffer >= BUFFERS {
            return None;
        }
        self.buffers &= !(1 << buffer);
        Some(buffer)
    }

    fn give_buffer(&mut self, buffer: u32) {
        self.buffers |= 1 << buffer;
    }

    /// Whether one that was asked for is to begin.
    fn is_wanted(&self) -> bool {
        self.wanted > self.begun
    }

    /// Whether the commit under way waits for space, its own batches' or that of a checkpoint which has to end first.
    pub fn is_starved(&self) -> bool {
        match self.stage {
            Stage::Starved => true,
            Stage::Room => self.checkpoint.tries.waits(),
            _ => false,
        }
    }

    /// Whether it found none when it was tried last, also while it is tried again.
    pub fn is_starving(&self) -> bool {
        self.tries.lacks() != 0 || self.stage == Stage::Room && self.checkpoint.tries.lacks() != 0
    }
}

impl Pool {
    /// Asks for a commit that begins after now, and covers everything that was acknowledged before. Returns its number. One that waits for
    /// space is tried again.
    pub fn request_commit(&mut self) -> u64 {
        let number = self.commits.begun + 1;
        self.commits.wanted = self.commits.wanted.max(number);
        if self.commits.stage == Stage::Room {
            self.commits.checkpoint.tries.again();
        }
        self.commit_again();
        number
    }

    /// The batches of a commit that found no space are written again, and all others of it: the same ones in the same places, up to the same
    /// mark.
    pub(super) fn commit_again(&mut self) {
        if self.commits.stage != Stage::Starved {
            return;
        }
        if planted(Planted::MarkChosenAnew) {
            self.commits.mark = self.tail.published();
            self.count_units();
        }
        let commits = &mut self.commits;
        commits.tries.again();
        for ring in &mut commits.rings {
            (ring.head, ring.sequence) = ring.committed;
        }
        commits.stage = Stage::Write { member: 0, from: commits.committed + 1, index: 0 };
    }

    /// Asks for a commit where none is wanted that has not begun, and something is in the tail. One that waits for space is not hurried.
    pub fn commit_soon(&mut self) {
        if !self.tail.is_empty() && !self.commits.is_wanted() && !self.commits.is_starved() {
            self.request_commit();
        }
    }

    /// Whether the commit of this number has ended, or why it has not.
    ///
    /// # Errors
    /// See [`CommitFailed`]: what is not committed stays in the tail.
    pub fn is_committed(&self, number: u64) -> Result<bool, CommitFailed> {
        match self.commits.done >= number {
            true => Ok(true),
            false if self.commits.is_failed() => Err(CommitFailed::Member),
            false if self.commits.is_starved() => Err(CommitFailed::NoSpace),
            false => Ok(false),
        }
    }

    /// Whether a member has failed a write or a flush: nothing is committed any more.
    pub fn has_failed(&self) -> bool {
        self.commits.is_failed()
    }

    /// How many commits have ended.
    pub fn commits_done(&self) -> u64 {
        self.commits.done
    }

    /// Asks for a commit where so much is waiting that one should begin by itself.
    pub fn commit_if_due(&mut self) {
        if self.tail.is_quarter_full() && self.commits.stage == Stage::Idle && !self.commits.is_wanted() {
            self.request_commit();
        }
    }

    /// The next I/O that the pool wants done now. Ask until there is none.
    pub fn next_io(&mut self, memory: &mut impl PoolMemory) -> Option<PoolIo> {
        if !self.commits.has_io() {
            return None;
        }
        self.free_empties();
        self.end_moves();
        let own = self.commit_io(memory).or_else(|| self.checkpoint_io(memory));
        own.or_else(|| self.discard_io()).or_else(|| self.copy_io())
    }

    /// An I/O has ended.
    pub fn io_done(&mut self, token: u32, result: Result<(), ErrorKind>) {
        let Some((whose, buffer)) = self.commits.ios[token as usize].take() else { return };
        if let Some(buffer) = buffer {
            self.commits.give_buffer(buffer);
        }
        // A write that finds no space has not come, and can come yet. A flush that finds none may have lost what it was to make durable.
        let no_space = result == Err(ErrorKind::NoSpace);
        match whose {
            For::Discard { member, index } => {
                self.progress += 1;
                self.commits.discarded += 1;
                if !self.state.damage.withholds(ExtentId { member, index }) {
                    self.rooms[usize::from(member)].free.give(index);
                }
            }
            For::Copy { number } => self.copied(number, result.is_ok()),
            For::Batch { member } if no_space => {
                self.commits.tries.found_none(member);
                self.commit_answered();
            }
            For::Page { member, run } if no_space => self.page_found_no_space(member, run),
            For::Start { member } if no_space => {
                self.commits.checkpoint.tries.found_none(member);
                self.checkpoint_answered();
            }
            _ if result.is_err() => self.commits.fail(),
            For::Commit | For::Batch { .. } => self.commit_answered(),
            For::Checkpoint | For::Page { .. } | For::Start { .. } => self.checkpoint_answered(),
        }
    }

    fn commit_answered(&mut self) {
        self.commits.out -= 1;
        if self.commits.out > 0 {
            return;
        }
        if self.commits.tries.is_short() && !self.commits.is_failed() {
            self.commits.tries.end();
            self.commits.stage = Stage::Starved;
        } else {
            self.commit_step();
        }
    }

    /// A barrier that is wanted: to be answered by [`Pool::barrier_done`] when everything that had begun before on any shard has ended.
    pub fn next_barrier(&mut self) -> Option<u64> {
        if self.commits.barrier.is_some() {
            return None;
        }
        let mut any = false;
        for room in &mut self.rooms {
            any |= room.freed.begin_drain();
        }
        any |= self.moves.begin_drain();
        if !any {
            return None;
        }
        self.commits.barriers += 1;
        self.commits.barrier = Some(self.commits.barriers);
        self.commits.barrier
    }

    /// See [`Pool::next_barrier`].
    pub fn barrier_done(&mut self, number: u64) {
        if self.commits.barrier == Some(number) {
            self.commits.barrier = None;
            self.rooms.iter_mut().for_each(|room| room.freed.drained());
            self.moves.drained();
        }
    }

    fn discard_io(&mut self) -> Option<PoolIo> {
        // In this order: mostly there is none.
        let member = self.rooms.iter().position(|room| room.freed.awaits_discard())?;
        if self.commits.discards() >= DISCARDS_MAX {
            return None;
        }
        let extent = self.rooms[member].freed.pop_discard()?;
        let (member, index) = (member as u8, extent.index);
        let token = self.commits.take_io(For::Discard { member, index }, None).expect("seen to be free");
        let (offset, len) = (self.extent_offset(extent), super::units::EXTENT_BYTES);
        Some(PoolIo { token, member, op: PoolOp::Discard, offset, len })
    }

    /// Frees what could not be freed when it became empty.
    fn free_empties(&mut self) {
        while self.tail.has_room(1)
            && let Some(extent) = self.empties.pop()
        {
            // A fold may have freed it since.
            if self.state.record(extent.into()).kind != RecordKind::Free {
                self.free_if_empty(extent);
            }
        }
    }

    /// All I/Os of a step of the commit have ended.
    fn commit_step(&mut self) {
        let members = self.commits.rings.len();
        match self.commits.stage {
            Stage::Data { next } if next == members => self.data_flushed(),
            Stage::Write { member, .. } if member == members => {
                self.commits.tries.end();
                self.commits.stage = Stage::Rings { next: 0 };
            }
            Stage::Rings { next } if next == members => self.committed(),
            _ => {}
        }
    }

    /// Everything that the entries speak of is durable: they may be written.
    fn data_flushed(&mut self) {
        if planted(Planted::MarkAfterFlush) {
            self.commits.mark = self.tail.published();
        }
        if self.commits.mark == self.commits.committed {
            // Nothing has changed: the flush was all that was asked for.
            self.commits.stage = Stage::Idle;
            self.commits.done = self.commits.begun;
            return;
        }
        self.count_units();
        self.commits.stage = Stage::Room;
        self.write_if_room();
    }

    /// Begins to write where every ring has room; else a checkpoint has to end first.
    pub(super) fn write_if_room(&mut self) {
        if self.commits.stage != Stage::Room {
            return;
        }
        let commits = &mut self.commits;
        let fits = commits.rings.iter().zip(&commits.units).all(|(ring, units)| ring.has_room(units.2));
        if fits {
            commits.stage = Stage::Write { member: 0, from: commits.committed + 1, index: 0 };
        } else {
            commits.checkpoint.want();
        }
    }

    /// How many units, batches and blocks each member gets.
    fn count_units(&mut self) {
        let mut units = std::mem::take(&mut self.commits.units);
        units.fill((0, 0, 0));
        let mut add = |member: usize, count: u32| {
            let (in_batch, batches, blocks) = &mut units[member];
            if *batches == 0 || *in_batch + count > BATCH_UNITS_MAX as u32 {
                *blocks += if *batches == 0 { 0 } else { blocks_for(*in_batch) };
                (*in_batch, *batches) = (0, *batches + 1);
            }
            *in_batch += count;
        };
        let mut at = self.commits.committed + 1;
        while at <= self.commits.mark {
            let (member, next) = self.tail.member_of(at);
            let count = (next - at) as u32;
            match member {
                None => (0..self.commits.rings.len()).for_each(|member| add(member, count)),
                Some(member) => add(self.commits.checkpoint.seats.of(member), count),
            }
            at = next;
        }
        for (in_batch, batches, blocks) in &mut units {
            *blocks += if *batches == 0 { 0 } else { blocks_for(*in_batch) };
        }
        self.commits.units = units;
    }

    fn commit_io(&mut self, memory: &mut impl PoolMemory) -> Option<PoolIo> {
        loop {
            let members = self.commits.rings.len();
            match self.commits.stage {
                Stage::Idle if self.commits.is_wanted() => {
                    self.commits.begun += 1;
                    self.commits.mark = self.tail.published();
                    self.commits.stage = Stage::Data { next: 0 };
                    if planted(Planted::BatchBeforeDataFlush) {
                        self.commits.stage = Stage::Data { next: members };
                        self.data_flushed();
                    }
                }
                Stage::Data { next } if next < members => {
                    self.commits.stage = Stage::Data { next: next + 1 };
                    return Some(self.flush_io(next, For::Commit));
                }
                // What is out comes to its end, and then all is written again.
                Stage::Write { .. } if self.commits.tries.is_short() => return None,
                Stage::Write { member, from, index } if member < members => {
                    if self.commits.units[member].1 == 0 {
                        self.commits.stage =
                            Stage::Write { member: member + 1, from: self.commits.committed + 1, index: 0 };
                        if member + 1 == members && self.commits.out == 0 {
                            self.commit_step();
                        }
                        continue;
                    }
                    let buffer = self.commits.take_buffer()?;
                    return Some(self.batch_io(member, from, index, buffer, memory));
                }
                Stage::Rings { next } if next < members => {
                    self.commits.stage = Stage::Rings { next: next + 1 };
                    if self.commits.units[next].1 == 0 {
                        if next + 1 == members && self.commits.out == 0 {
                            self.commit_step();
                        }
                        continue;
                    }
                    return Some(self.flush_io(next, For::Commit));
                }
                _ => return None,
            }
        }
    }

    pub(super) fn flush_io(&mut self, seat: usize, whose: For) -> PoolIo {
        let member = self.commits.checkpoint.seats.member(seat);
        if whose == For::Commit {
            self.commits.out += 1;
        }
        let token = self.commits.take_io(whose, None).expect("seen to be free");
        PoolIo { token, member, op: PoolOp::Flush, offset: 0, len: 0 }
    }

    /// The next batch of a member.
    fn batch_io(&mut self, member: usize, from: u64, index: u16, buffer: u32, memory: &mut impl PoolMemory) -> PoolIo {
        let bytes = memory.buffer(buffer);
        let number = self.commits.checkpoint.seats.member(member);
        let (mut at, mut units) = (from, 0usize);
        let mark = self.commits.mark;
        while at <= mark {
            let (of, next) = self.tail.member_of(at);
            let count = (next - at) as usize;
            if of.is_none_or(|of| of == number) {
                if units + count > BATCH_UNITS_MAX {
                    break;
                }
                for sequence in at..next {
                    let place = BATCH_HEADER_BYTES + units * UNIT_BYTES;
                    for (k, word) in self.tail.unit(sequence).iter().enumerate() {
                        bytes[place + k * 8..place + k * 8 + 8].copy_from_slice(&word.to_le_bytes());
                    }
                    units += 1;
                }
            }
            at = next;
        }
        let commits = &mut self.commits;
        let blocks = blocks_for(units as u32);
        let len = (blocks * BLOCK) as usize;
        bytes[BATCH_HEADER_BYTES + units * UNIT_BYTES..len].fill(0);
        let takes_part = commits.units.iter().enumerate().filter(|(_, units)| units.1 > 0);
        let members = takes_part.fold(0u128, |all, (seat, _)| all | 1 << commits.checkpoint.seats.member(seat));
        let ring = &mut commits.rings[member];
        let header = BatchHeader {
            pool_tag: commits.tag,
            run: commits.run,
            sequence: ring.sequence,
            commit: commits.commit + 1,
            members,
            index,
            batches: commits.units[member].1,
            mark,
            units: units as u16,
            blocks: blocks as u16,
        };
        seal(&mut bytes[..len], &header);
        let place = Ring::next_place(ring.head, ring.blocks);
        let offset = ring.offset + place % ring.blocks * BLOCK;
        ring.head = place + blocks;
        ring.sequence += 1;
        let last = index + 1 == commits.units[member].1;
        commits.stage = match last {
            true => Stage::Write { member: member + 1, from: commits.committed + 1, index: 0 },
            false => Stage::Write { member, from: at, index: index + 1 },
        };
        commits.out += 1;
        let token = commits.take_io(For::Batch { member: number }, Some(buffer)).expect("seen to be free");
        PoolIo { token, member: number, op: PoolOp::Write { buffer }, offset, len: len as u64 }
    }

    /// The commit counts.
    fn committed(&mut self) {
        let (from, mark) = (self.commits.committed + 1, self.commits.mark);
        let mut at = from;
        while at <= mark {
            let (entry, next) = self.tail.entry(at);
            let id = RecordId { member: entry.member, index: entry.index };
            let sequence = next - 1;
            match entry.change {
                Change::Record { record } => self.entry_committed(id, sequence, &record, false),
                Change::Slot { record, .. } => self.entry_committed(id, sequence, &record, true),
                Change::Owner { owner } => {
                    self.commits.checkpoint.note_owner(entry.index);
                    self.state.owner_committed(entry.index, sequence, owner);
                }
                Change::Padding => {}
            }
            at = next;
        }
        let commits = &mut self.commits;
        commits.commit += 1;
        commits.committed = mark;
        for (seat, ring) in commits.rings.iter_mut().enumerate() {
            if commits.units[seat].1 > 0 {
                commits.parts[usize::from(commits.checkpoint.seats.member(seat))] = commits.commit;
            }
            ring.committed = (ring.head, ring.sequence);
        }
        commits.done = commits.begun;
        commits.stage = Stage::Idle;
        if commits.rings.iter().any(|ring| (ring.head - ring.start) * 2 > ring.blocks) {
            commits.checkpoint.want();
        }
        self.note_committed(mark);
    }

    fn entry_committed(&mut self, id: RecordId, sequence: u64, record: &braid_format::pool::Record, slot: bool) {
        self.commits.checkpoint.note_record(id, slot && self.state.is_extent(id));
        self.state.record_committed(id, sequence, record);
    }
}

/// Blocks of a batch of so many units.
fn blocks_for(units: u32) -> u64 {
    (BATCH_HEADER_BYTES as u64 + u64::from(units) * UNIT_BYTES as u64).div_ceil(BLOCK)
}
