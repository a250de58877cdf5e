//! How many voters it takes.

/// Most voters of a volume: replicas and witnesses.
pub const VOTERS_MAX: usize = 16;

/// A voter's number in its volume's table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VoterId(pub u8);

/// A set of voters.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Voters(u16);

impl Voters {
    /// Nobody.
    pub const NONE: Voters = Voters(0);

    /// The first `count` of them, at most [`VOTERS_MAX`].
    pub fn first(count: usize) -> Voters {
        (0..count.min(VOTERS_MAX)).map(|number| VoterId(number as u8)).collect()
    }

    /// Takes one in.
    pub fn insert(&mut self, voter: VoterId) {
        self.0 |= bit(voter);
    }

    /// Leaves one out.
    pub fn remove(&mut self, voter: VoterId) {
        self.0 &= !bit(voter);
    }

    /// Whether it is one of them.
    pub fn has(self, voter: VoterId) -> bool {
        self.0 & bit(voter) != 0
    }

    /// Those that are in both.
    pub fn and(self, other: Voters) -> Voters {
        Voters(self.0 & other.0)
    }

    /// Those that are in one of the two.
    pub fn or(self, other: Voters) -> Voters {
        Voters(self.0 | other.0)
    }

    /// Those of this set that are not in the other.
    pub fn without(self, other: Voters) -> Voters {
        Voters(self.0 & !other.0)
    }

    /// A bit for each, the first one's the lowest.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// The set of these bits.
    pub fn from_bits(bits: u16) -> Voters {
        Voters(bits)
    }

    /// How many they are.
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is nobody.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Each, by number.
    pub fn iter(self) -> impl Iterator<Item = VoterId> {
        (0..VOTERS_MAX as u8).map(VoterId).filter(move |voter| self.has(*voter))
    }
}

impl FromIterator<VoterId> for Voters {
    fn from_iter<I: IntoIterator<Item = VoterId>>(voters: I) -> Voters {
        let mut set = Voters::NONE;
        voters.into_iter().for_each(|voter| set.insert(voter));
        set
    }
}

fn bit(voter: VoterId) -> u16 {
    1u16.checked_shl(u32::from(voter.0)).unwrap_or(0)
}

/// How many voters each step takes, of `n`.
///
/// Whoever opens must meet whoever dropped a replica (`open + drop > n`), and another one who opens (`open + open > n`).
/// Whoever serves must have heard of one that every opener raises (`lease + open > n`). As few as that allows: so of two,
/// one goes on alone, and nobody opens the volume without the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quorums {
    /// How many there are.
    pub voters: usize,
    /// To open the volume.
    pub open: usize,
    /// To record who is in sync: a drop, a promotion, what an opening found.
    pub drop: usize,
    /// To go on answering.
    pub lease: usize,
}

impl Quorums {
    /// Of so many voters; at least 1, at most [`VOTERS_MAX`].
    pub fn of(voters: usize) -> Quorums {
        let open = voters / 2 + 1;
        let least = voters + 1 - open;
        Quorums { voters, open, drop: least, lease: least }
    }
}

/// Who votes, and who did until a moment ago.
///
/// Voters are changed one at a time. A change begins with a vote that is *joint*: it has those of before and those that come, and whatever takes voters
/// takes enough of both ([`Quorums`]), from the moment in which that vote is cast for the first time. Once it counts, a vote without those of
/// before follows. So whoever opens the volume meets either a voter that knows of the change, or nobody for whom it counts; whatever
/// list of voters it begins with, as long as that one counted once. (The joint consensus of Raft, with quorums of two sizes:
/// Ongaro, "Consensus: bridging theory and practice", 2014, section 4.3.)
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Seating {
    /// Which list of places it goes by: higher with each change, and never used by two changes ([`Seating::version_of`]); 0: the one that the
    /// volume was made with.
    pub version: u64,
    /// Who votes.
    pub voters: Voters,
    /// Who voted before, as long as the change is under way; else nobody.
    pub before: Voters,
    /// Which of all these are replicas.
    pub replicas: Voters,
    /// So many replicas besides one it takes to have everything ([`Seating::least`]): 0 of copies. It never changes.
    pub further: u8,
}

impl Seating {
    /// That of a volume that is made: the first `replicas` of the first `voters` have data.
    pub fn of(voters: usize, replicas: usize) -> Seating {
        Seating { voters: Voters::first(voters), replicas: Voters::first(replicas), ..Seating::default() }
    }

    /// The same where it takes so many of the replicas to have everything, at least one: of an array with parity, its members less its
    /// parities.
    #[must_use]
    pub fn taking(self, least: usize) -> Seating {
        Seating { further: least.saturating_sub(1) as u8, ..self }
    }

    /// How many replicas it takes to have everything. With fewer of those in sync nothing can be served, so that none is dropped below
    /// that, and no opening begins below it.
    pub fn least(&self) -> usize {
        1 + usize::from(self.further)
    }

    /// The version of the change with this number, below 65536, that a controller begins in its epoch. None: the epoch is beyond all that can be.
    pub fn version_of(epoch: u64, number: u16) -> Option<u64> {
        Some(epoch.checked_mul(1 << 16)? | u64::from(number))
            .filter(|version| *version <= braid_format::limits::COUNTER_MAX)
    }

    /// Everybody who may have to be asked.
    pub fn all(&self) -> Voters {
        self.voters.or(self.before)
    }

    /// Whether a change is under way.
    pub fn is_joint(&self) -> bool {
        !self.before.is_empty()
    }

    /// What it is when the change is over.
    #[must_use]
    pub fn settled(&self) -> Seating {
        Seating { before: Voters::NONE, replicas: self.replicas.and(self.voters), ..*self }
    }

    /// The beginning of a change: this one votes from now on, too. None: it does already, or a change is under way.
    pub fn with(&self, voter: VoterId, is_replica: bool, version: u64) -> Option<Seating> {
        if self.is_joint() || self.voters.has(voter) || usize::from(voter.0) >= VOTERS_MAX {
            return None;
        }
        let mut next = Seating { version, before: self.voters, ..*self };
        next.voters.insert(voter);
        if is_replica {
            next.replicas.insert(voter);
        }
        Some(next)
    }

    /// The beginning of a change: this one votes no more. None: it does not vote, it is the last one, or a change is under way.
    pub fn without(&self, voter: VoterId, version: u64) -> Option<Seating> {
        let mut next = Seating { version, before: self.voters, ..*self };
        next.voters.remove(voter);
        let may = !self.is_joint() && self.voters.has(voter) && !next.voters.is_empty();
        may.then_some(next)
    }

    /// The sets of which each needs its own quorum.
    pub fn sets(&self) -> impl Iterator<Item = Voters> {
        [self.voters, self.before].into_iter().filter(|set| !set.is_empty())
    }

    /// Whether these are enough to record who is in sync.
    pub fn may_record(&self, cast: Voters) -> bool {
        self.sets().all(|set| set.and(cast).count() >= Quorums::of(set.count()).drop)
    }
}
