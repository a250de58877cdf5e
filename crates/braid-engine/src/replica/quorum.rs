//! Voters, voter sets, and the quorums of each step.

/// Maximum number of voters of a volume: replicas and witnesses.
pub const VOTERS_MAX: usize = 16;

/// A voter's number in its volume's table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VoterId(pub u8);

/// A set of voters.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Voters(u16);

impl Voters {
    /// The empty set.
    pub const NONE: Voters = Voters(0);

    /// Returns the first `count` voters, at most [`VOTERS_MAX`].
    pub fn first(count: usize) -> Voters {
        (0..count.min(VOTERS_MAX)).map(|number| VoterId(number as u8)).collect()
    }

    /// Adds a voter.
    pub fn insert(&mut self, voter: VoterId) {
        self.0 |= bit(voter);
    }

    /// Removes a voter.
    pub fn remove(&mut self, voter: VoterId) {
        self.0 &= !bit(voter);
    }

    /// Returns whether a voter is in the set.
    pub fn has(self, voter: VoterId) -> bool {
        self.0 & bit(voter) != 0
    }

    /// Returns the voters that are in both sets.
    pub fn and(self, other: Voters) -> Voters {
        Voters(self.0 & other.0)
    }

    /// Returns the voters that are in one of the two sets.
    pub fn or(self, other: Voters) -> Voters {
        Voters(self.0 | other.0)
    }

    /// Returns the voters of this set that are not in the other.
    pub fn without(self, other: Voters) -> Voters {
        Voters(self.0 & !other.0)
    }

    /// Returns a bit for each voter; the lowest is voter 0's.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// Returns the set with these bits.
    pub fn from_bits(bits: u16) -> Voters {
        Voters(bits)
    }

    /// Returns the number of voters.
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the voters, by number.
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

/// The number of voters that each step requires, of `n`.
///
/// An opening must meet every drop (`open + drop > n`), and every other opening (`open + open > n`). A controller that
/// serves must have a reply of a voter that every opening raises (`lease + open > n`). The quorums are as small as that
/// allows: so of two voters, one continues to serve alone, and no controller opens the volume without both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quorums {
    /// The number of voters.
    pub voters: usize,
    /// To open the volume.
    pub open: usize,
    /// To record which replicas are in sync: a drop, a promotion, the result of an opening.
    pub drop: usize,
    /// To continue to answer.
    pub lease: usize,
}

impl Quorums {
    /// Returns the quorums of so many voters; at least 1, at most [`VOTERS_MAX`].
    pub fn of(voters: usize) -> Quorums {
        let open = voters / 2 + 1;
        let least = voters + 1 - open;
        Quorums { voters, open, drop: least, lease: least }
    }
}

/// The voters of a volume, and during a change the previous voters.
///
/// Voters are changed one at a time. A change begins with a *joint* vote: it has the previous and the new voters, and
/// every step that needs voters needs a quorum of both ([`Quorums`]), from the moment in which that vote is cast for
/// the first time. Once it counts, a vote without the previous voters follows. So an opening meets either a voter that
/// knows of the change, or only voters for which the change does not count, whatever list of voters it begins with, as
/// long as that list counted once. (The joint consensus of Raft, with quorums of two sizes: Ongaro, "Consensus:
/// bridging theory and practice", 2014, section 4.3.)
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct VoterConfig {
    /// The version of the list of voters: higher with each change, and never used by two changes
    /// ([`VoterConfig::version_of`]); 0: the list that the volume was created with.
    pub version: u64,
    /// The voters.
    pub voters: Voters,
    /// The previous voters, during a change; else none.
    pub previous_voters: Voters,
    /// Which of all these are replicas.
    pub replicas: Voters,
    /// Number of replicas, besides one, that are needed to have everything ([`VoterConfig::replicas_needed`]): 0 for
    /// copies. It never changes.
    pub extra_replicas: u8,
}

impl VoterConfig {
    /// Returns the voters of a new volume: the first `replicas` of the first `voters` have data.
    pub fn of(voters: usize, replicas: usize) -> VoterConfig {
        VoterConfig { voters: Voters::first(voters), replicas: Voters::first(replicas), ..VoterConfig::default() }
    }

    /// Returns these voters for a volume of which `least` replicas, at least one, are needed to have everything: for an
    /// array with parity, its members less its parities.
    #[must_use]
    pub fn with_replicas_needed(self, least: usize) -> VoterConfig {
        VoterConfig { extra_replicas: least.saturating_sub(1) as u8, ..self }
    }

    /// Returns the number of replicas that are needed to have everything. With fewer replicas in sync nothing can be
    /// served: no replica is dropped below that number, and no opening begins below it.
    pub fn replicas_needed(&self) -> usize {
        1 + usize::from(self.extra_replicas)
    }

    /// Returns the version of change `number`, below 65536, that a controller begins in its epoch. `None`: the epoch is
    /// above all that are possible.
    pub fn version_of(epoch: u64, number: u16) -> Option<u64> {
        Some(epoch.checked_mul(1 << 16)? | u64::from(number))
            .filter(|version| *version <= braid_format::limits::COUNTER_MAX)
    }

    /// Returns all voters that may have to be asked.
    pub fn all(&self) -> Voters {
        self.voters.or(self.previous_voters)
    }

    /// Returns whether a change is in progress.
    pub fn is_joint(&self) -> bool {
        !self.previous_voters.is_empty()
    }

    /// Returns the voters after the change.
    #[must_use]
    pub fn final_config(&self) -> VoterConfig {
        VoterConfig { previous_voters: Voters::NONE, replicas: self.replicas.and(self.voters), ..*self }
    }

    /// Returns the joint configuration that adds this voter. `None`: it votes already, or a change is in progress.
    pub fn with(&self, voter: VoterId, is_replica: bool, version: u64) -> Option<VoterConfig> {
        if self.is_joint() || self.voters.has(voter) || usize::from(voter.0) >= VOTERS_MAX {
            return None;
        }
        let mut next = VoterConfig { version, previous_voters: self.voters, ..*self };
        next.voters.insert(voter);
        if is_replica {
            next.replicas.insert(voter);
        }
        Some(next)
    }

    /// Returns the joint configuration that removes this voter. `None`: it does not vote, it is the last one, or a
    /// change is in progress.
    pub fn without(&self, voter: VoterId, version: u64) -> Option<VoterConfig> {
        let mut next = VoterConfig { version, previous_voters: self.voters, ..*self };
        next.voters.remove(voter);
        let may = !self.is_joint() && self.voters.has(voter) && !next.voters.is_empty();
        may.then_some(next)
    }

    /// Returns the sets of which each needs its own quorum.
    pub fn sets(&self) -> impl Iterator<Item = Voters> {
        [self.voters, self.previous_voters].into_iter().filter(|set| !set.is_empty())
    }

    /// Returns whether these voters are enough to record which replicas are in sync.
    pub fn may_record(&self, cast: Voters) -> bool {
        self.sets().all(|set| set.and(cast).count() >= Quorums::of(set.count()).drop)
    }
}
