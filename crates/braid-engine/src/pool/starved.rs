//! No space below: a pool's own writes fail because, for example, the file system of a member's backing file is full.
//!
//! Nothing is lost by that. What was acknowledged is in the in-memory log, what is committed is in the rings and
//! tables, and the write can be made once there is space. So the commit or checkpoint under way stays at its stage and
//! is retried: with the next commit that is requested, and by [`Pool::retry_writes`]. Requests that wait for a commit
//! meanwhile fail for lack of space, and the pool goes on with everything that needs none.
//!
//! A commit is written again unchanged: up to the same mark, under the same number, each batch at the same position
//! with the same bytes. Some of its batches may be durable. With another mark, one member could have an older batch of
//! that number and another member a newer one, and recovery would take both together for a complete commit.

use super::Pool;
use super::one_move::Move;
use crate::io::ErrorKind;

/// Attempts to make a series of writes that belong together.
#[derive(Clone, Copy, Default)]
pub(super) struct Attempts {
    /// Members on which a write of the attempt under way found no space, a bit mask.
    no_space: u128,
    /// The same of the last attempt that has ended.
    short_members: u128,
    /// The last attempt found no space, and is to be repeated.
    waits: bool,
}

impl Attempts {
    pub fn note_no_space(&mut self, member: u8) {
        self.no_space |= 1 << member;
    }

    /// Whether a write of the attempt under way found no space.
    pub fn hit_no_space(&self) -> bool {
        self.no_space != 0
    }

    /// Ends an attempt: all of its I/Os have ended.
    pub fn end(&mut self) {
        self.short_members = std::mem::take(&mut self.no_space);
        self.waits = self.short_members != 0;
    }

    pub fn waits(&self) -> bool {
        self.waits
    }

    pub fn short_members(&self) -> u128 {
        self.short_members
    }

    pub fn retry(&mut self) {
        self.waits = false;
    }

    /// Stops waiting for a member, which is no longer written to.
    pub fn forget(&mut self, member: u8) {
        self.short_members &= !(1 << member);
        self.waits &= self.short_members != 0;
    }
}

impl Pool {
    /// Retries writes that found no space, if there are any.
    pub fn retry_writes(&mut self) {
        self.retry_commit();
        self.commits.checkpoint.attempts.retry();
    }

    /// Returns the members (a bit mask) on which the pool's own writes found no space in the last attempt: batches of a
    /// commit, tables, or ring starts. Writes to the other members have room.
    pub fn members_without_space(&self) -> u128 {
        let commits = &self.commits;
        if commits.is_failed() {
            0
        } else {
            commits.attempts.short_members() | commits.checkpoint.attempts.short_members()
        }
    }

    /// Returns whether a commit or checkpoint waits for space: the last attempt found none, and no attempt is under
    /// way. A request for a commit or checkpoint ends this until its own attempt has ended.
    pub fn waits_for_space(&self) -> bool {
        let commits = &self.commits;
        !commits.is_failed() && (commits.is_starved() || commits.checkpoint.attempts.waits())
    }

    /// Returns whether a commit waits for space: until it is retried, requests that need a commit, or room in the log,
    /// fail for lack of space.
    pub fn is_starved(&self) -> bool {
        self.commits.is_starved()
    }

    /// Returns whether the last attempt of the commit under way found no space, even if the commit is being retried
    /// now. Then nothing may begin that would keep requests waiting for that commit.
    pub fn is_starving(&self) -> bool {
        self.commits.is_starving()
    }

    /// Returns whether the log has room for an administrative request of `units` units. While a commit lacks space,
    /// none is carried out: it would be answered as failed.
    pub(super) fn has_room_for_request(&self, units: u64) -> bool {
        self.log.has_room(units) && !self.is_starving()
    }

    /// Defers the end of a move for which the log has no room. If no commit can make room, the move is cancelled, and
    /// keeps no request waiting.
    pub(super) fn defer_end(&mut self, one: Move) -> Option<Move> {
        if self.is_starving() {
            self.cancel_move(&one);
            return None;
        }
        self.commit_soon();
        Some(one)
    }
}

/// Why a commit has not ended. See [`Pool::is_committed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommitFailed {
    /// A member has failed a write or a flush: nothing is committed any longer.
    Member,
    /// There is no space below for the pool's own writes. They are retried.
    NoSpace,
}

impl CommitFailed {
    /// Returns the error of a request that waits for the commit.
    pub const fn kind(self) -> ErrorKind {
        match self {
            CommitFailed::Member => ErrorKind::Failed,
            CommitFailed::NoSpace => ErrorKind::NoSpace,
        }
    }
}

impl std::fmt::Display for CommitFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CommitFailed::Member => "a member has failed, and nothing can be committed",
            CommitFailed::NoSpace => "there is no space below, and nothing can be committed before there is some",
        })
    }
}

impl std::error::Error for CommitFailed {}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use braid_format::Uuid;
    use braid_format::pool::{BATCH_BYTES_MAX, Owner, OwnerName, PoolMemberLayout};

    use super::*;
    use crate::io::DeviceId;
    use crate::pool::checkpoint::CheckpointWriter;
    use crate::pool::commit::Commits;
    use crate::pool::commit_ring::LogRing;
    use crate::pool::device::PoolDevice;
    use crate::pool::log_memory::LogMemory;
    use crate::pool::memory_log::{LOG_UNITS_MIN, MemoryLog, log_bytes};
    use crate::pool::pool_io::{PoolIo, PoolMemory, PoolOp};
    use crate::pool::present_members::PresentMembers;
    use crate::pool::state::PoolTables;

    const OWNER_SLOTS: u32 = 1024;

    struct Words(Box<[AtomicU64]>);

    impl LogMemory for Words {
        fn words(&self) -> &[AtomicU64] {
            &self.0
        }
    }

    struct Memory(Vec<u8>);

    impl PoolMemory for Memory {
        fn buffer(&mut self, _index: u32) -> &mut [u8] {
            &mut self.0
        }
    }

    fn memory() -> Memory {
        Memory(vec![0; BATCH_BYTES_MAX])
    }

    fn member(number: u8) -> PoolDevice {
        let places = PoolMemberLayout::new(64 << 20, OWNER_SLOTS).expect("it is large enough");
        PoolDevice::new(number, DeviceId(number.into()), &places)
    }

    /// A pool of one member.
    fn pool() -> Pool {
        let one = member(0);
        let mut state = PoolTables::new(OWNER_SLOTS);
        state.add_member(0, one.extents, one.zero_slots);
        let records = [(one.extents, one.zero_slots)];
        let checkpoint =
            CheckpointWriter::new(PresentMembers::new([0]), vec![one.layout], &records, OWNER_SLOTS, vec![5]);
        let (offset, blocks) = one.ring;
        let ring = LogRing { offset, blocks, head: 0, sequence: 1, committed: (0, 1), start: 0 };
        let words = (0..log_bytes(LOG_UNITS_MIN) / 8).map(|_| AtomicU64::new(0)).collect();
        let log = MemoryLog::begin(Arc::new(Words(words)), Uuid::nil(), 1, 0);
        Pool::new(Uuid::nil(), state, log, Commits::new(1, 1, 7, vec![ring], (0, 0), checkpoint))
    }

    /// Adds a volume, which is written to all members.
    fn add_volume(pool: &mut Pool, name: &str) {
        let name = OwnerName::new(name).expect("a name");
        let uuid = Uuid::from_u128(1 + pool.state().owners.iter().count() as u128);
        pool.create_volume(None, Owner::volume(uuid, name, 1 << 20)).expect("there is room");
    }

    /// Performs the I/Os of the pool, as many at a time as it can; returns the members that they were on. `has_space`
    /// is called for each write.
    fn drive(pool: &mut Pool, mut has_space: impl FnMut(u8) -> bool) -> Vec<u8> {
        let (mut memory, mut on) = (memory(), Vec::new());
        loop {
            let in_flight: Vec<PoolIo> = std::iter::from_fn(|| pool.next_io(&mut memory)).collect();
            if in_flight.is_empty() {
                return on;
            }
            for io in in_flight {
                on.push(io.member);
                let finds = !matches!(io.op, PoolOp::Write { .. }) || has_space(io.member);
                pool.io_done(io.token, if finds { Ok(()) } else { Err(ErrorKind::NoSpace) });
            }
        }
    }

    #[test]
    fn a_member_without_space_is_withdrawn_and_what_is_under_way_ends_without_it() {
        let (mut refused, mut taken) = (0, false);
        // This many writes to the new member find space: then its batch, its tables, or its start find none.
        for spare in 0..100 {
            let mut pool = pool();
            pool.add_member(&member(1)).expect("nothing is under way");
            add_volume(&mut pool, "db");
            let (commit, checkpoint) = (pool.request_commit(), pool.request_checkpoint());
            let mut left = spare;
            drive(&mut pool, |member| {
                let finds = member == 0 || left > 0;
                left -= i32::from(member == 1 && finds);
                finds
            });
            if pool.members_without_space() == 0 {
                assert!(pool.is_checkpointed(checkpoint) && pool.is_committed(commit) == Ok(true));
                taken = true;
                break;
            }
            refused += 1;
            assert_eq!((pool.members_without_space(), pool.waits_for_space()), (0b10, true), "after {spare} writes");
            assert!(pool.withdraw_member(1));
            assert_eq!((pool.members_without_space(), pool.waits_for_space()), (0, false));
            let on = drive(&mut pool, |_| true);
            assert!(on.iter().all(|member| *member == 0), "after {spare} writes: {on:?}");
            assert!(pool.is_checkpointed(checkpoint) && pool.is_committed(commit) == Ok(true));
            // The pool goes on as if it had never had the member.
            add_volume(&mut pool, "log");
            let (commit, checkpoint) = (pool.request_commit(), pool.request_checkpoint());
            let on = drive(&mut pool, |_| true);
            assert!(on.iter().all(|member| *member == 0), "after {spare} writes: {on:?}");
            assert!(pool.is_checkpointed(checkpoint) && pool.is_committed(commit) == Ok(true));
            // The next member gets the next number.
            pool.add_member(&member(2)).expect("nothing is under way");
            let checkpoint = pool.request_checkpoint();
            assert!(drive(&mut pool, |_| true).contains(&2));
            assert!(pool.is_checkpointed(checkpoint));
        }
        assert!(taken && refused > 2, "{refused}");
    }

    #[test]
    fn a_member_is_not_withdrawn_while_a_write_is_in_flight_and_others_without_space_are_waited_for() {
        let mut pool = pool();
        pool.add_member(&member(1)).expect("nothing is under way");
        let checkpoint = pool.request_checkpoint();
        let io = pool.next_io(&mut memory()).expect("it gets all owners");
        assert_eq!((io.member, pool.withdraw_member(1)), (1, false));
        pool.io_done(io.token, Ok(()));
        assert!(pool.withdraw_member(1));
        drive(&mut pool, |_| true);
        assert!(pool.is_checkpointed(checkpoint));

        pool.add_member(&member(2)).expect("nothing is under way");
        add_volume(&mut pool, "db");
        let commit = pool.request_commit();
        drive(&mut pool, |_| false);
        assert_eq!(pool.members_without_space(), 0b101);
        assert!(pool.withdraw_member(2));
        assert_eq!((pool.members_without_space(), pool.waits_for_space()), (0b1, true));
        assert_eq!((drive(&mut pool, |_| true), pool.is_committed(commit)), (vec![], Err(CommitFailed::NoSpace)));
        pool.retry_writes();
        drive(&mut pool, |_| true);
        assert_eq!((pool.is_committed(commit), pool.members_without_space()), (Ok(true), 0));
    }

    #[test]
    fn an_earlier_attempt_does_not_answer_a_new_request() {
        let mut pool = pool();
        add_volume(&mut pool, "db");
        let commit = pool.request_commit();
        drive(&mut pool, |_| true);
        assert_eq!(pool.is_committed(commit), Ok(true));
        let checkpoint = pool.request_checkpoint();
        drive(&mut pool, |_| false);
        assert_eq!(
            (pool.members_without_space(), pool.waits_for_space(), pool.is_checkpointed(checkpoint)),
            (1, true, false)
        );
        let checkpoint = pool.request_checkpoint();
        assert_eq!((pool.members_without_space(), pool.waits_for_space()), (1, false));
        drive(&mut pool, |_| true);
        assert_eq!(
            (pool.members_without_space(), pool.waits_for_space(), pool.is_checkpointed(checkpoint)),
            (0, false, true)
        );
    }
}
