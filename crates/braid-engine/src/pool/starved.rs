//! A pool whose own writes find no space below: the file system of a member's file is full, say.
//!
//! Nothing has failed by that. What was acknowledged is in the tail, what is committed is in the rings and tables, and the write can be made
//! once there is space. So the commit or checkpoint under way stays where it is and is tried again: with the next commit that is asked for,
//! and by [`Pool::try_again`]. What waits for a commit meanwhile is told that there is no space, and the pool goes on with all that needs
//! none.
//!
//! A commit is written again as it was: up to the same mark, under the same number, each batch in the same place with the same bytes. Some
//! of its batches may be durable. With another mark one member could have an older batch of that number and another one a newer, and a
//! start would take both together for a commit that is whole.

use super::home::Pool;
use super::one_move::Move;
use crate::io::ErrorKind;

/// How a series of writes goes that belong together.
#[derive(Clone, Copy, Default)]
pub(super) struct Tries {
    /// Members on which a write of the try under way found no space, by their bits.
    found: u128,
    /// The same of the last try that has ended.
    lacks: u128,
    /// It has ended so, and is to be made again.
    waits: bool,
}

impl Tries {
    pub fn found_none(&mut self, member: u8) {
        self.found |= 1 << member;
    }

    /// Whether the try under way comes to nothing.
    pub fn is_short(&self) -> bool {
        self.found != 0
    }

    /// All that was out of a try has ended.
    pub fn end(&mut self) {
        self.lacks = std::mem::take(&mut self.found);
        self.waits = self.lacks != 0;
    }

    pub fn waits(&self) -> bool {
        self.waits
    }

    pub fn lacks(&self) -> u128 {
        self.lacks
    }

    pub fn again(&mut self) {
        self.waits = false;
    }

    /// A member is not written to any more: it is not waited for.
    pub fn forget(&mut self, member: u8) {
        self.lacks &= !(1 << member);
        self.waits &= self.lacks != 0;
    }
}

impl Pool {
    /// Writes again what found no space, if something did.
    pub fn try_again(&mut self) {
        self.commit_again();
        self.commits.checkpoint.tries.again();
    }

    /// Members, by their bits, on which the pool's own writes found no space when they were tried last: batches of a commit, tables, or
    /// starts of rings. What it has to say of others has room.
    pub fn lacks_space(&self) -> u128 {
        let commits = &self.commits;
        if commits.is_failed() { 0 } else { commits.tries.lacks() | commits.checkpoint.tries.lacks() }
    }

    /// Whether a commit or checkpoint waits for space: the last try has ended without any, and none is under way. A request for a commit or
    /// a checkpoint ends this until its own try has ended.
    pub fn waits_for_space(&self) -> bool {
        let commits = &self.commits;
        !commits.is_failed() && (commits.is_starved() || commits.checkpoint.tries.waits())
    }

    /// Whether a commit waits for space: until it is tried again, what asks for one or needs room in the tail is told that there is none.
    pub fn is_starved(&self) -> bool {
        self.commits.is_starved()
    }

    /// The same, also while it is tried again: nothing is begun that would keep others waiting until it is committed.
    pub fn is_starving(&self) -> bool {
        self.commits.is_starving()
    }

    /// Whether an order has room for so many units. While a commit lacks space none is carried out: it would be answered as one that failed.
    pub(super) fn has_room_for_order(&self, units: u64) -> bool {
        self.tail.has_room(units) && !self.is_starving()
    }

    /// The tail has no room to say that a move has ended: it is to be ended later. Where no commit comes, it comes to nothing, and keeps no
    /// request waiting.
    pub(super) fn end_later(&mut self, one: Move) -> Option<Move> {
        if self.is_starving() {
            self.drop_move(&one);
            return None;
        }
        self.commit_soon();
        Some(one)
    }
}

/// Why a commit has not come. See [`Pool::is_committed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommitFailed {
    /// A member has failed a write or a flush: nothing is committed any more.
    Member,
    /// There is no space below for the pool's own writes. It is tried again.
    NoSpace,
}

impl CommitFailed {
    /// What a request that waits for it fails with.
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
    use braid_format::pool::{BATCH_BYTES_MAX, Owner, OwnerName, PoolPlaces};

    use super::*;
    use crate::io::DeviceId;
    use crate::pool::checkpoint::Checkpoint;
    use crate::pool::commit::{Commits, PoolIo, PoolMemory, PoolOp, Ring};
    use crate::pool::open::PoolDevice;
    use crate::pool::seats::Seats;
    use crate::pool::state::State;
    use crate::pool::tail::{TAIL_UNITS_MIN, Tail, tail_bytes};
    use crate::pool::tail_memory::TailMemory;

    const OWNER_SLOTS: u32 = 1024;

    struct Words(Box<[AtomicU64]>);

    impl TailMemory for Words {
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
        let places = PoolPlaces::new(64 << 20, OWNER_SLOTS).expect("it is large enough");
        PoolDevice::new(number, DeviceId(number.into()), &places)
    }

    /// A pool of one member.
    fn pool() -> Pool {
        let one = member(0);
        let mut state = State::new(OWNER_SLOTS);
        state.add_member(0, one.extents, one.zero_slots);
        let records = [(one.extents, one.zero_slots)];
        let checkpoint = Checkpoint::new(Seats::new([0]), vec![one.places], &records, OWNER_SLOTS, vec![5]);
        let (offset, blocks) = one.ring;
        let ring = Ring { offset, blocks, head: 0, sequence: 1, committed: (0, 1), start: 0 };
        let words = (0..tail_bytes(TAIL_UNITS_MIN) / 8).map(|_| AtomicU64::new(0)).collect();
        let tail = Tail::begin(Arc::new(Words(words)), Uuid::nil(), 1, 0);
        Pool::new(Uuid::nil(), state, tail, Commits::new(1, 1, 7, vec![ring], (0, 0), checkpoint))
    }

    /// Says of all members that there is one more volume.
    fn add_volume(pool: &mut Pool, name: &str) {
        let name = OwnerName::new(name).expect("a name");
        let uuid = Uuid::from_u128(1 + pool.state().owners.iter().count() as u128);
        pool.create_volume(None, Owner::volume(uuid, name, 1 << 20)).expect("there is room");
    }

    /// Does what the pool wants done, as much at a time as it can; returns the members that this was on. `has_space` is asked for each write.
    fn drive(pool: &mut Pool, mut has_space: impl FnMut(u8) -> bool) -> Vec<u8> {
        let (mut memory, mut on) = (memory(), Vec::new());
        loop {
            let out: Vec<PoolIo> = std::iter::from_fn(|| pool.next_io(&mut memory)).collect();
            if out.is_empty() {
                return on;
            }
            for io in out {
                on.push(io.member);
                let finds = !matches!(io.op, PoolOp::Write { .. }) || has_space(io.member);
                pool.io_done(io.token, if finds { Ok(()) } else { Err(ErrorKind::NoSpace) });
            }
        }
    }

    #[test]
    fn a_member_without_space_is_withdrawn_and_what_is_under_way_ends_without_it() {
        let (mut refused, mut taken) = (0, false);
        // So many writes to the new member find space: its batch, its tables, and its start come to find none.
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
            if pool.lacks_space() == 0 {
                assert!(pool.is_checkpointed(checkpoint) && pool.is_committed(commit) == Ok(true));
                taken = true;
                break;
            }
            refused += 1;
            assert_eq!((pool.lacks_space(), pool.waits_for_space()), (0b10, true), "after {spare} writes");
            assert!(pool.withdraw_member(1));
            assert_eq!((pool.lacks_space(), pool.waits_for_space()), (0, false));
            let on = drive(&mut pool, |_| true);
            assert!(on.iter().all(|member| *member == 0), "after {spare} writes: {on:?}");
            assert!(pool.is_checkpointed(checkpoint) && pool.is_committed(commit) == Ok(true));
            // The pool goes on as one that never had it.
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
    fn a_member_is_not_withdrawn_while_a_write_is_out_and_others_without_space_are_waited_for() {
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
        assert_eq!(pool.lacks_space(), 0b101);
        assert!(pool.withdraw_member(2));
        assert_eq!((pool.lacks_space(), pool.waits_for_space()), (0b1, true));
        assert_eq!((drive(&mut pool, |_| true), pool.is_committed(commit)), (vec![], Err(CommitFailed::NoSpace)));
        pool.try_again();
        drive(&mut pool, |_| true);
        assert_eq!((pool.is_committed(commit), pool.lacks_space()), (Ok(true), 0));
    }

    #[test]
    fn an_earlier_try_says_nothing_of_one_that_was_just_requested() {
        let mut pool = pool();
        add_volume(&mut pool, "db");
        let commit = pool.request_commit();
        drive(&mut pool, |_| true);
        assert_eq!(pool.is_committed(commit), Ok(true));
        let checkpoint = pool.request_checkpoint();
        drive(&mut pool, |_| false);
        assert_eq!((pool.lacks_space(), pool.waits_for_space(), pool.is_checkpointed(checkpoint)), (1, true, false));
        let checkpoint = pool.request_checkpoint();
        assert_eq!((pool.lacks_space(), pool.waits_for_space()), (1, false));
        drive(&mut pool, |_| true);
        assert_eq!((pool.lacks_space(), pool.waits_for_space(), pool.is_checkpointed(checkpoint)), (0, false, true));
    }
}
