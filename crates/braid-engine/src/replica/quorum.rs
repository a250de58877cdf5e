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
