//! Levels, their layouts, and zone policies: the names that a specification is made of.

use std::fmt;
use std::str::FromStr;

/// The RAID level of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// The members are concatenated.
    Concat,
    /// Chunks are striped over the members.
    Raid0,
    /// All members hold the same data.
    Raid1,
    /// Chunks are striped over the members, each in several copies on consecutive members.
    Raid10,
    /// Chunks are striped over the members, with one parity chunk (P) in each stripe.
    Raid5,
    /// Chunks are striped over the members, with two parity chunks (P and Q) in each stripe.
    Raid6,
}

/// The order of chunks within a zone, with the names of Linux md. *Read only* marks layouts that md creates: Braid
/// reads such arrays, and does not create them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layout {
    /// Concat: the members in order.
    Linear,
    /// Raid0: each zone starts with its first member. The layout that Braid creates.
    Alternate,
    /// Raid0: the number of the chunk in the whole array selects the member of the zone. For arrays that md created.
    Original,
    /// Raid1: all members hold the same data.
    Mirror,
    /// Raid10: the copies of a chunk are in consecutive cells.
    Near,
    /// Raid5 and raid6: parity rotates to the left from stripe to stripe, and the data starts after it.
    LeftSymmetric,
    /// Raid10: each member's data area is divided into one section per copy, and each further copy is in the next
    /// section, one member further. Read only.
    Far,
    /// Raid10: each further copy is in the next row, one member further. Read only.
    Offset,
    /// Raid5 and raid6: parity rotates to the left, and the data starts with the first member. Read only.
    LeftAsymmetric,
    /// Raid5 and raid6: parity rotates to the right, and the data starts after it. Read only.
    RightSymmetric,
    /// Raid5 and raid6: parity rotates to the right, and the data starts with the first member. Read only.
    RightAsymmetric,
    /// Raid5 and raid6: parity is always on the first members. Read only.
    ParityFirst,
    /// Raid5 (equivalent to raid4) and raid6: parity is always on the last members. Read only.
    ParityLast,
    /// Raid6: the raid5 layout left-symmetric, with Q on an additional last member. Read only.
    LeftSymmetric6,
    /// Raid6: the raid5 layout left-asymmetric, with Q on an additional last member. Read only.
    LeftAsymmetric6,
    /// Raid6: the raid5 layout right-symmetric, with Q on an additional last member. Read only.
    RightSymmetric6,
    /// Raid6: the raid5 layout right-asymmetric, with Q on an additional last member. Read only.
    RightAsymmetric6,
    /// Raid6: the raid5 layout parity-first, with Q on an additional last member. Read only.
    ParityFirst6,
}

/// Whether an array uses capacity that only some of its members have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ZonePolicy {
    /// The array uses all zones with enough members for the level: the full capacity.
    #[default]
    All,
    /// The array uses only the first zone, which all members share, as md does at redundant levels. (Concat has no shared
    /// zones: it always uses all zones.)
    Single,
}

impl Level {
    /// All levels, in display order.
    pub const ALL: [Level; 6] = [Level::Concat, Level::Raid0, Level::Raid1, Level::Raid10, Level::Raid5, Level::Raid6];

    /// Returns the layouts of this level that Braid creates. The first one is the default.
    #[must_use]
    pub const fn layouts(self) -> &'static [Layout] {
        match self {
            Level::Concat => &[Layout::Linear],
            Level::Raid0 => &[Layout::Alternate, Layout::Original],
            Level::Raid1 => &[Layout::Mirror],
            Level::Raid10 => &[Layout::Near],
            Level::Raid5 | Level::Raid6 => &[Layout::LeftSymmetric],
        }
    }

    /// Returns further layouts of this level, which Linux md creates. Braid reads them with [`crate::Geometry::imported`], and does not
    /// create them.
    #[must_use]
    pub const fn md_only_layouts(self) -> &'static [Layout] {
        match self {
            Level::Concat | Level::Raid0 | Level::Raid1 => &[],
            Level::Raid10 => &[Layout::Far, Layout::Offset],
            Level::Raid5 => &[
                Layout::LeftAsymmetric,
                Layout::RightSymmetric,
                Layout::RightAsymmetric,
                Layout::ParityFirst,
                Layout::ParityLast,
            ],
            Level::Raid6 => &[
                Layout::LeftAsymmetric,
                Layout::RightSymmetric,
                Layout::RightAsymmetric,
                Layout::ParityFirst,
                Layout::ParityLast,
                Layout::LeftSymmetric6,
                Layout::LeftAsymmetric6,
                Layout::RightSymmetric6,
                Layout::RightAsymmetric6,
                Layout::ParityFirst6,
            ],
        }
    }

    /// Returns the number of parity chunks of each stripe: 1 with raid5, 2 with raid6, else 0.
    #[must_use]
    pub const fn parity(self) -> u16 {
        match self {
            Level::Raid5 => 1,
            Level::Raid6 => 2,
            _ => 0,
        }
    }

    /// Returns the canonical name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Level::Concat => "concat",
            Level::Raid0 => "raid0",
            Level::Raid1 => "raid1",
            Level::Raid10 => "raid10",
            Level::Raid5 => "raid5",
            Level::Raid6 => "raid6",
        }
    }

    /// Returns the aliases of the level that [`Level::parse_name_or_alias`] accepts: its number, and names that other
    /// systems use. The API accepts the name only.
    #[must_use]
    pub const fn aliases(self) -> &'static [&'static str] {
        match self {
            Level::Concat => &["linear"],
            Level::Raid0 => &["0", "raid-0", "stripe"],
            Level::Raid1 => &["1", "raid-1", "mirror"],
            Level::Raid10 => &["10", "raid-10", "1+0"],
            Level::Raid5 => &["5", "raid-5"],
            Level::Raid6 => &["6", "raid-6"],
        }
    }

    /// Returns the level that a user typed: its name or an alias, regardless of case.
    ///
    /// # Errors
    /// The word is neither a name nor an alias. The error lists the names.
    pub fn parse_name_or_alias(word: &str) -> Result<Level, ParseNameError> {
        let matches = |known: &str| known.eq_ignore_ascii_case(word);
        let found = Level::ALL
            .into_iter()
            .find(|level| matches(level.name()) || level.aliases().iter().any(|alias| matches(alias)));
        found.map_or_else(|| word.parse(), Ok)
    }
}

impl Layout {
    /// All layouts that Braid creates, which are those that can be requested.
    pub const ALL: [Layout; 6] =
        [Layout::Linear, Layout::Alternate, Layout::Original, Layout::Mirror, Layout::Near, Layout::LeftSymmetric];

    /// Returns the canonical name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Layout::Linear => "linear",
            Layout::Alternate => "alternate",
            Layout::Original => "original",
            Layout::Mirror => "mirror",
            Layout::Near => "near",
            Layout::LeftSymmetric => "left-symmetric",
            Layout::Far => "far",
            Layout::Offset => "offset",
            Layout::LeftAsymmetric => "left-asymmetric",
            Layout::RightSymmetric => "right-symmetric",
            Layout::RightAsymmetric => "right-asymmetric",
            Layout::ParityFirst => "parity-first",
            Layout::ParityLast => "parity-last",
            Layout::LeftSymmetric6 => "left-symmetric-6",
            Layout::LeftAsymmetric6 => "left-asymmetric-6",
            Layout::RightSymmetric6 => "right-symmetric-6",
            Layout::RightAsymmetric6 => "right-asymmetric-6",
            Layout::ParityFirst6 => "parity-first-6",
        }
    }
}

impl ZonePolicy {
    /// Returns the canonical name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ZonePolicy::All => "all",
            ZonePolicy::Single => "single",
        }
    }
}

/// The error of parsing an unknown name. Its message lists the known names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseNameError {
    what: &'static str,
    given: String,
    known: Vec<&'static str>,
}

impl fmt::Display for ParseNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let excerpt: String = self.given.chars().take(40).collect();
        write!(f, "{excerpt:?} is not a {}; one of {}", self.what, self.known.join(", "))
    }
}

impl std::error::Error for ParseNameError {}

macro_rules! names {
    ($type:ty, $what:literal, $all:expr) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = ParseNameError;

            fn from_str(text: &str) -> Result<Self, ParseNameError> {
                $all.into_iter().find(|known| known.name() == text).ok_or_else(|| ParseNameError {
                    what: $what,
                    given: text.to_owned(),
                    known: $all.iter().map(|known| known.name()).collect(),
                })
            }
        }
    };
}

names!(Level, "level", Level::ALL);
names!(Layout, "layout", Layout::ALL);
names!(ZonePolicy, "zone policy", [ZonePolicy::All, ZonePolicy::Single]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_parse_names_and_aliases() {
        let check = |words: &[&str], level: Level| {
            for word in words {
                assert_eq!(Level::parse_name_or_alias(word), Ok(level), "{word}");
            }
        };
        check(&["concat", "linear", "Concat"], Level::Concat);
        check(&["raid0", "0", "raid-0", "stripe", "STRIPE"], Level::Raid0);
        check(&["raid1", "1", "raid-1", "mirror", "RAID1"], Level::Raid1);
        check(&["raid10", "10", "raid-10", "1+0"], Level::Raid10);
        check(&["raid5", "5", "raid-5", "RAID-5"], Level::Raid5);
        check(&["raid6", "6", "raid-6"], Level::Raid6);
        for wrong in ["", "2", "7", "raid", "raid 5", "raid7", "-5", "mirrors"] {
            let error = Level::parse_name_or_alias(wrong).expect_err(wrong).to_string();
            assert!(error.contains("concat, raid0, raid1, raid10, raid5, raid6"), "{wrong}: {error}");
        }
    }

    #[test]
    fn level_names_and_aliases_are_unique_and_only_names_are_canonical() {
        let words = |level: Level| level.aliases().iter().copied().chain([level.name()]);
        let mut all: Vec<&str> = Level::ALL.into_iter().flat_map(words).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "{all:?}");
        for alias in Level::ALL.into_iter().flat_map(|level| level.aliases()) {
            assert!(alias.parse::<Level>().is_err(), "{alias} is an alias, not a name");
        }
    }
}
