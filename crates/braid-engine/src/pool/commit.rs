//! The commit: writes the entries of the in-memory log into the log rings of the members.
//!
//! One at a time. The end of the log is marked. All members flush, so that the data that the entries describe are
//! durable. The entries up to the mark are written to the rings of the members that they are about (those about owners:
//! to all), and these members flush. Only then the commit is valid, and the requests that wait for it are answered. A
//! batch says which members take part in its commit, and how many batches this member has: recovery accepts a commit
//! only if all of them are present.
//!
//! If a batch finds no space below (the file system of a backing file is full), all batches of its commit are written
//! again later: see [`super::starved`]. Any other failure is the end of all commits.

use braid_format::pool::{
    BATCH_HEADER_BYTES, BATCH_UNITS_MAX, Change, LogBatchHeader, MissingMembers, RecordKind, UNIT_BYTES, seal_batch,
};

use super::Pool;
use super::checkpoint::CheckpointWriter;
use super::commit_ring::LogRing;
use super::pool_io::{BUFFERS, IoPurpose, PoolIo, PoolMemory, PoolOp};
use super::starved::{Attempts, CommitFailed};
use super::units::{ExtentId, MEMBERS_MAX, RecordId};
use crate::io::ErrorKind;

const BLOCK: u64 = 4096;
/// Maximum discards among the [`POOL_IOS_MAX`] I/Os: no request waits for a discard, but requests wait for other I/Os.
const DISCARDS_MAX: usize = 16;
/// Maximum I/Os of a pool's own in flight.
pub const POOL_IOS_MAX: usize = 64;

/// The stage of a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Idle,
    /// Members are flushed, so that their data are durable; `next` is the ordinal of the next one.
    Data {
        next: usize,
    },
    /// A checkpoint has to make room in the rings first.
    Room,
    /// Batches are written. Next is batch `index` of the member with this ordinal, with the log units from `from` on.
    Write {
        member: usize,
        from: u64,
        index: u16,
    },
    /// Members that have batches are flushed.
    Rings {
        next: usize,
    },
    /// Batches found no space: all have to be written again, unchanged.
    Starved,
    /// A member has failed: nothing is committed any longer.
    Failed,
}

/// All that a pool's commits and checkpoints need.
pub(super) struct Commits {
    pub tag: u32,
    pub session: u64,
    pub run: u64,
    /// The log rings, by ordinal ([`CheckpointWriter::present`]).
    pub rings: Vec<LogRing>,
    /// The previous run; 0 once all members have a ring start of this run.
    pub before: u64,
    /// Bit *i*: member *i* holds the outcome of the recovery that began this run. 0 once all members have a start of
    /// it.
    pub settled: u128,
    /// By member, the last commit that has batches on it.
    pub parts: [u64; MEMBERS_MAX],
    /// Missing members, and what they must have to return.
    pub absent: MissingMembers,
    /// The last valid commit.
    pub commit: u64,
    /// The last log unit that this commit covers.
    pub committed: u64,
    stage: Stage,
    /// The last log unit that the commit under way covers.
    mark: u64,
    /// Attempts to write the batches of the commit under way.
    pub attempts: Attempts,
    /// Of the commit under way, by ordinal: units in the member's last batch, number of batches, and blocks of all
    /// batches.
    units: Vec<(u32, u16, u64)>,
    /// I/Os of the commit in flight.
    in_flight: u32,
    /// The number of the last commit that began; `done` and `wanted`: that ended, and that was requested.
    begun: u64,
    done: u64,
    wanted: u64,
    pub checkpoint: CheckpointWriter,
    pub ios: [Option<(IoPurpose, Option<u32>)>; POOL_IOS_MAX],
    pub buffers: u32,
    /// How many extents were discarded, and so are free again.
    pub discarded: u64,
    /// A member that is being removed, and the checkpoint after which nothing of it is needed.
    pub leaving: Option<(u8, u64)>,
    /// The number of the barrier under way.
    barrier: Option<u64>,
    /// How many barriers have begun.
    barriers: u64,
}

impl Commits {
    pub fn new(
        tag: u32,
        session: u64,
        run: u64,
        rings: Vec<LogRing>,
        start: (u64, u64),
        checkpoint: CheckpointWriter,
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
            absent: MissingMembers::NONE,
            commit,
            committed,
            stage: Stage::Idle,
            mark: 0,
            attempts: Attempts::default(),
            in_flight: 0,
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

    /// Removes a member. No commit and no checkpoint is under way.
    pub fn remove_member(&mut self, member: u8) {
        let Some(ordinal) = self.checkpoint.remove_member(member) else { return };
        self.rings.remove(ordinal);
        self.units.remove(ordinal);
    }

    /// Stops writing to a member that is in no label, even in the middle of a commit or checkpoint. No I/O of either is
    /// in flight. The stage under way is repeated without that member: a commit that had begun to write its batches
    /// becomes one that found no space.
    pub fn withdraw_member(&mut self, member: u8) {
        debug_assert!(!self.is_writing() && !self.is_failed());
        self.checkpoint.restart_stage();
        self.remove_member(member);
        self.attempts.forget(member);
        self.checkpoint.attempts.forget(member);
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
    pub fn is_quiescent(&self) -> bool {
        self.stage == Stage::Idle && self.checkpoint.is_idle() && !self.is_writing()
    }

    /// Whether an I/O of a commit or checkpoint is in flight.
    pub fn is_writing(&self) -> bool {
        let others = |purpose: &IoPurpose| matches!(purpose, IoPurpose::Discard { .. } | IoPurpose::Copy { .. });
        self.ios.iter().flatten().any(|(purpose, _)| !others(purpose))
    }

    /// Adds the ring of a new member.
    pub fn add_ring(&mut self, ring: LogRing) {
        self.rings.push(ring);
        self.units.push((0, 0, 0));
    }

    /// The extents of a member that are being discarded.
    pub fn discarding(&self, of: u8) -> impl Iterator<Item = u32> + '_ {
        self.ios.iter().flatten().filter_map(move |(purpose, _)| match purpose {
            IoPurpose::Discard { member, index } if *member == of => Some(*index),
            _ => None,
        })
    }

    fn discards(&self) -> usize {
        self.ios.iter().flatten().filter(|(purpose, _)| matches!(purpose, IoPurpose::Discard { .. })).count()
    }

    /// Takes a free token for an I/O.
    pub fn take_io(&mut self, purpose: IoPurpose, buffer: Option<u32>) -> Option<u32> {
        let token = self.ios.iter().position(Option::is_none)?;
        self.ios[token] = Some((purpose, buffer));
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

    /// Whether a requested commit has not begun.
    fn is_wanted(&self) -> bool {
        self.wanted > self.begun
    }

    /// Whether the commit under way waits for space: for its own batches, or for those of a checkpoint that has to end
    /// first.
    pub fn is_starved(&self) -> bool {
        match self.stage {
            Stage::Starved => true,
            Stage::Room => self.checkpoint.attempts.waits(),
            _ => false,
        }
    }

    /// Whether the last attempt found no space, also while the next one is under way.
    pub fn is_starving(&self) -> bool {
        self.attempts.short_members() != 0 || self.stage == Stage::Room && self.checkpoint.attempts.short_members() != 0
    }
}

impl Pool {
    /// Requests a commit that begins after this call, and so covers everything that was acknowledged before. Returns
    /// its number. A commit that waits for space is retried.
    pub fn request_commit(&mut self) -> u64 {
        let number = self.commits.begun + 1;
        self.commits.wanted = self.commits.wanted.max(number);
        if self.commits.stage == Stage::Room {
            self.commits.checkpoint.attempts.retry();
        }
        self.retry_commit();
        number
    }

    /// Retries a commit that found no space: writes all of its batches again, the same ones at the same positions, up
    /// to the same mark.
    pub(super) fn retry_commit(&mut self) {
        if self.commits.stage != Stage::Starved {
            return;
        }
        let commits = &mut self.commits;
        commits.attempts.retry();
        for ring in &mut commits.rings {
            (ring.head, ring.sequence) = ring.committed;
        }
        commits.stage = Stage::Write { member: 0, from: commits.committed + 1, index: 0 };
    }

    /// Requests a commit if the log is not empty and no requested commit is still to begin. A commit that waits for
    /// space is not retried.
    pub fn commit_soon(&mut self) {
        if !self.log.is_empty() && !self.commits.is_wanted() && !self.commits.is_starved() {
            self.request_commit();
        }
    }

    /// Returns whether the commit with this number has ended.
    ///
    /// # Errors
    /// See [`CommitFailed`]: what is not committed stays in the in-memory log.
    pub fn is_committed(&self, number: u64) -> Result<bool, CommitFailed> {
        match self.commits.done >= number {
            true => Ok(true),
            false if self.commits.is_failed() => Err(CommitFailed::Member),
            false if self.commits.is_starved() => Err(CommitFailed::NoSpace),
            false => Ok(false),
        }
    }

    /// Returns whether a member has failed a write or a flush: nothing is committed any longer.
    pub fn has_failed(&self) -> bool {
        self.commits.is_failed()
    }

    /// How many commits have ended.
    pub fn commits_done(&self) -> u64 {
        self.commits.done
    }

    /// Requests a commit if the log is so full that one should begin by itself.
    pub fn commit_if_due(&mut self) {
        if self.log.is_quarter_full() && self.commits.stage == Stage::Idle && !self.commits.is_wanted() {
            self.request_commit();
        }
    }

    /// Returns the next I/O that the pool needs now. Call it until there is none.
    pub fn next_io(&mut self, memory: &mut impl PoolMemory) -> Option<PoolIo> {
        if !self.commits.has_io() {
            return None;
        }
        self.free_empties();
        self.end_moves();
        let own = self.commit_io(memory).or_else(|| self.checkpoint_io(memory));
        own.or_else(|| self.discard_io()).or_else(|| self.copy_io())
    }

    /// Reports the result of the I/O with this token. A write that found no space is repeated later. Any other error of
    /// a write or flush ends all commits. An error of a discard is ignored, and one of a copy ends its move.
    pub fn io_done(&mut self, token: u32, result: Result<(), ErrorKind>) {
        let Some((purpose, buffer)) = self.commits.ios[token as usize].take() else { return };
        if let Some(buffer) = buffer {
            self.commits.give_buffer(buffer);
        }
        // A write that finds no space was not made, and can be repeated. A flush that finds none may have lost what it
        // was to make durable.
        let no_space = result == Err(ErrorKind::NoSpace);
        match purpose {
            IoPurpose::Discard { member, index } => {
                self.progress += 1;
                self.commits.discarded += 1;
                if !self.state.damage.withholds(ExtentId { member, index }) {
                    self.rooms[usize::from(member)].free.give(index);
                }
            }
            IoPurpose::Copy { number } => self.copied(number, result.is_ok()),
            IoPurpose::Batch { member } if no_space => {
                self.commits.attempts.note_no_space(member);
                self.commit_io_done();
            }
            IoPurpose::Page { member, run } if no_space => self.page_found_no_space(member, run),
            IoPurpose::Start { member } if no_space => {
                self.commits.checkpoint.attempts.note_no_space(member);
                self.checkpoint_io_done();
            }
            _ if result.is_err() => self.commits.fail(),
            IoPurpose::Commit | IoPurpose::Batch { .. } => self.commit_io_done(),
            IoPurpose::Checkpoint | IoPurpose::Page { .. } | IoPurpose::Start { .. } => self.checkpoint_io_done(),
        }
    }

    fn commit_io_done(&mut self) {
        self.commits.in_flight -= 1;
        if self.commits.in_flight > 0 {
            return;
        }
        if self.commits.attempts.hit_no_space() && !self.commits.is_failed() {
            self.commits.attempts.end();
            self.commits.stage = Stage::Starved;
        } else {
            self.commit_step();
        }
    }

    /// Returns the number of a barrier to be made, if one is needed and none is under way. The caller passes it to
    /// [`Pool::barrier_done`] once every request that had begun before this call, on any shard, has ended.
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

    /// Ends the barrier with this number ([`Pool::next_barrier`]). Any other number is ignored.
    pub fn barrier_done(&mut self, number: u64) {
        if self.commits.barrier == Some(number) {
            self.commits.barrier = None;
            self.rooms.iter_mut().for_each(|room| room.freed.drained());
            self.moves.drained();
        }
    }

    fn discard_io(&mut self) -> Option<PoolIo> {
        // In this order: mostly no extent waits.
        let member = self.rooms.iter().position(|room| room.freed.awaits_discard())?;
        if self.commits.discards() >= DISCARDS_MAX {
            return None;
        }
        let extent = self.rooms[member].freed.pop_discard()?;
        let (member, index) = (member as u8, extent.index);
        let token = self.commits.take_io(IoPurpose::Discard { member, index }, None).expect("seen to be free");
        let (offset, len) = (self.extent_offset(extent), super::units::EXTENT_BYTES);
        Some(PoolIo { token, member, op: PoolOp::Discard, offset, len })
    }

    /// Frees empty extents for which the log had no room.
    fn free_empties(&mut self) {
        while self.log.has_room(1)
            && let Some(extent) = self.empties.pop()
        {
            // A merge may have freed it since.
            if self.state.record(extent.into()).kind != RecordKind::Free {
                self.free_if_empty(extent);
            }
        }
    }

    /// Continues the commit when all I/Os of a stage have ended.
    fn commit_step(&mut self) {
        let members = self.commits.rings.len();
        match self.commits.stage {
            Stage::Data { next } if next == members => self.data_flushed(),
            Stage::Write { member, .. } if member == members => {
                self.commits.attempts.end();
                self.commits.stage = Stage::Rings { next: 0 };
            }
            Stage::Rings { next } if next == members => self.committed(),
            _ => {}
        }
    }

    /// Begins to write the entries: the data that they describe are durable.
    fn data_flushed(&mut self) {
        if self.commits.mark == self.commits.committed {
            // Nothing has changed: only the flush was needed.
            self.commits.stage = Stage::Idle;
            self.commits.done = self.commits.begun;
            return;
        }
        self.count_units();
        self.commits.stage = Stage::Room;
        self.write_if_room();
    }

    /// Begins to write if every ring has room; otherwise a checkpoint has to end first.
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

    /// Counts the units, batches and blocks of each member.
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
            let (member, next) = self.log.member_of(at);
            let count = (next - at) as u32;
            match member {
                None => (0..self.commits.rings.len()).for_each(|member| add(member, count)),
                Some(member) => add(self.commits.checkpoint.present.of(member), count),
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
                    self.commits.mark = self.log.published();
                    self.commits.stage = Stage::Data { next: 0 };
                }
                Stage::Data { next } if next < members => {
                    self.commits.stage = Stage::Data { next: next + 1 };
                    return Some(self.flush_io(next, IoPurpose::Commit));
                }
                // I/Os in flight end first; then everything is written again.
                Stage::Write { .. } if self.commits.attempts.hit_no_space() => return None,
                Stage::Write { member, from, index } if member < members => {
                    if self.commits.units[member].1 == 0 {
                        self.commits.stage =
                            Stage::Write { member: member + 1, from: self.commits.committed + 1, index: 0 };
                        if member + 1 == members && self.commits.in_flight == 0 {
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
                        if next + 1 == members && self.commits.in_flight == 0 {
                            self.commit_step();
                        }
                        continue;
                    }
                    return Some(self.flush_io(next, IoPurpose::Commit));
                }
                _ => return None,
            }
        }
    }

    pub(super) fn flush_io(&mut self, ordinal: usize, purpose: IoPurpose) -> PoolIo {
        let member = self.commits.checkpoint.present.member(ordinal);
        if purpose == IoPurpose::Commit {
            self.commits.in_flight += 1;
        }
        let token = self.commits.take_io(purpose, None).expect("seen to be free");
        PoolIo { token, member, op: PoolOp::Flush, offset: 0, len: 0 }
    }

    /// Returns the write of a member's next batch.
    fn batch_io(&mut self, member: usize, from: u64, index: u16, buffer: u32, memory: &mut impl PoolMemory) -> PoolIo {
        let bytes = memory.buffer(buffer);
        let number = self.commits.checkpoint.present.member(member);
        let (mut at, mut units) = (from, 0usize);
        let mark = self.commits.mark;
        while at <= mark {
            let (of, next) = self.log.member_of(at);
            let count = (next - at) as usize;
            if of.is_none_or(|of| of == number) {
                if units + count > BATCH_UNITS_MAX {
                    break;
                }
                for sequence in at..next {
                    let to = BATCH_HEADER_BYTES + units * UNIT_BYTES;
                    for (k, word) in self.log.unit(sequence).iter().enumerate() {
                        bytes[to + k * 8..to + k * 8 + 8].copy_from_slice(&word.to_le_bytes());
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
        let members = takes_part.fold(0u128, |all, (ordinal, _)| all | 1 << commits.checkpoint.present.member(ordinal));
        let ring = &mut commits.rings[member];
        let header = LogBatchHeader {
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
        seal_batch(&mut bytes[..len], &header);
        let position = LogRing::next_position(ring.head, ring.blocks);
        let offset = ring.offset + position % ring.blocks * BLOCK;
        ring.head = position + blocks;
        ring.sequence += 1;
        let last = index + 1 == commits.units[member].1;
        commits.stage = match last {
            true => Stage::Write { member: member + 1, from: commits.committed + 1, index: 0 },
            false => Stage::Write { member, from: at, index: index + 1 },
        };
        commits.in_flight += 1;
        let token = commits.take_io(IoPurpose::Batch { member: number }, Some(buffer)).expect("seen to be free");
        PoolIo { token, member: number, op: PoolOp::Write { buffer }, offset, len: len as u64 }
    }

    /// Notes that the commit is complete, and so valid.
    fn committed(&mut self) {
        let (from, mark) = (self.commits.committed + 1, self.commits.mark);
        let mut at = from;
        while at <= mark {
            let (entry, next) = self.log.entry(at);
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
        for (ordinal, ring) in commits.rings.iter_mut().enumerate() {
            if commits.units[ordinal].1 > 0 {
                commits.parts[usize::from(commits.checkpoint.present.member(ordinal))] = commits.commit;
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

/// Returns the blocks of a batch of `units` units.
fn blocks_for(units: u32) -> u64 {
    (BATCH_HEADER_BYTES as u64 + u64::from(units) * UNIT_BYTES as u64).div_ceil(BLOCK)
}
