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
