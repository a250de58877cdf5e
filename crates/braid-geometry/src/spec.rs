//! What is asked for: level, layout, chunk, copies, zones.

use crate::{BLOCK_BYTES, CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MAX, GeometryError, MEMBERS_MAX};
use std::fmt;
use std::str::FromStr;

/// How the members of an array are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// One member after the other.
    Concat,
    /// Chunks in turn over the members.
    Raid0,
    /// The same on all members.
    Raid1,
    /// Chunks in turn over the members, each in several copies on neighbouring members.
    Raid10,
    /// Chunks in turn, one of each stripe is parity.
    Raid5,
    /// Chunks in turn, two of each stripe are parity (P and Q).
    Raid6,
}

/// The order of chunks within a zone, as Linux md names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layout {
    /// Concat: one member after the other.
    Linear,
    /// Raid0: each zone begins with its first member. What Braid creates.
    Alternate,
    /// Raid0: the turn goes by the number of the chunk in the whole array. For arrays that md made.
    Original,
    /// Raid1: the same on all members.
    Mirror,
    /// Raid10: the copies of a chunk stand beside each other.
    Near,
    /// Raid5 and raid6: parity moves to the left from stripe to stripe, data begins after it.
    LeftSymmetric,
    /// Raid10: further copies in the lower parts of the members, each a member further. Only read.
    Far,
    /// Raid10: further copies in the rows right below, each a member further. Only read.
    Offset,
    /// Raid5 and raid6: parity moves to the left, data begins with the first member. Only read.
    LeftAsymmetric,
    /// Raid5 and raid6: parity moves to the right, data begins after it. Only read.
    RightSymmetric,
    /// Raid5 and raid6: parity moves to the right, data begins with the first member. Only read.
    RightAsymmetric,
    /// Raid5 and raid6: parity is always on the first members. Only read.
    ParityFirst,
    /// Raid5 (then it is a raid4) and raid6: parity is always on the last members. Only read.
    ParityLast,
    /// Raid6: a raid5 with Q on one more member, the last. Only read.
    LeftSymmetric6,
    /// The same. Only read.
    LeftAsymmetric6,
    /// The same. Only read.
    RightSymmetric6,
    /// The same. Only read.
    RightAsymmetric6,
    /// The same. Only read.
    ParityFirst6,
}

/// Whether the room that only some members have is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ZonePolicy {
    /// All zones with enough members for the level are used: the full capacity.
    #[default]
    All,
    /// Only the first zone, which all members share, as md does at redundant levels. (Concat has no zone that members
    /// share: it always uses all.)
    Single,
}

impl Level {
    /// All levels, in the order in which they are shown.
    pub const ALL: [Level; 6] = [Level::Concat, Level::Raid0, Level::Raid1, Level::Raid10, Level::Raid5, Level::Raid6];

    /// The layouts of this level; the first one is the default.
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

    /// Further layouts of this level that Linux md makes: read with [`crate::Geometry::imported`], and made by nobody here.
    #[must_use]
    pub const fn layouts_of_md(self) -> &'static [Layout] {
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

    /// How many chunks of each stripe are parity: 1 at raid5, 2 at raid6, else 0.
    #[must_use]
    pub const fn parity(self) -> u16 {
        match self {
            Level::Raid5 => 1,
            Level::Raid6 => 2,
            _ => 0,
        }
    }

    /// The name, as it is written.
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

    /// Other words for the level that people type: its number, and what other systems call it. The API takes the name alone.
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

    /// Returns the level that a person means by a word: its name or an alias, in small or capital letters.
    ///
    /// # Errors
    /// The word is neither; the error lists the names.
    pub fn typed(word: &str) -> Result<Level, ParseNameError> {
        let is_meant = |known: &str| known.eq_ignore_ascii_case(word);
        let found = Level::ALL
            .into_iter()
            .find(|level| is_meant(level.name()) || level.aliases().iter().any(|alias| is_meant(alias)));
        found.map_or_else(|| word.parse(), Ok)
    }
}

impl Layout {
    /// All layouts that Braid makes: those that can be asked for.
    pub const ALL: [Layout; 6] =
        [Layout::Linear, Layout::Alternate, Layout::Original, Layout::Mirror, Layout::Near, Layout::LeftSymmetric];

    /// The name, as it is written.
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
    /// The name, as it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ZonePolicy::All => "all",
            ZonePolicy::Single => "single",
        }
    }
}

/// A name that is none of the known ones. Its text lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseNameError {
    what: &'static str,
    given: String,
    known: Vec<&'static str>,
}

impl fmt::Display for ParseNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: String = self.given.chars().take(40).collect();
        write!(f, "{shown:?} is not a {}; one of {}", self.what, self.known.join(", "))
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

/// What an array is asked to be, without its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// How the members are combined.
    pub level: Level,
    /// One of [`Level::layouts`].
    pub layout: Layout,
    /// Contiguous bytes on one member before the next one's turn: a multiple of 4 KiB up to 64 MiB. Concat rounds
    /// each member down to it, raid1 does not use it.
    pub chunk_bytes: u64,
    /// Raid10: copies of each chunk, from 2. Raid1 has one on each member; 1 says that one member is enough. The other levels do
    /// not use it.
    pub copies: u16,
    /// Whether the room that only some members have is used.
    pub zones: ZonePolicy,
}

impl Spec {
    /// A level with everything else as it is where nothing is asked for: first layout, 64 KiB, 2 copies, all zones.
    #[must_use]
    pub const fn new(level: Level) -> Spec {
        Spec { level, layout: level.layouts()[0], chunk_bytes: CHUNK_BYTES_DEFAULT, copies: 2, zones: ZonePolicy::All }
    }

    /// How many members a zone needs at least to keep what the level promises.
    #[must_use]
    pub const fn members_min(&self) -> usize {
        match self.level {
            Level::Concat | Level::Raid0 => 1,
            // A mirror of one is asked for by name: it promises no second copy, and may get one later.
            Level::Raid1 if self.copies == 1 => 1,
            Level::Raid1 | Level::Raid5 => 2,
            Level::Raid10 => self.copies as usize,
            Level::Raid6 => 3,
        }
    }

    /// To what each member is rounded down, in bytes.
    #[must_use]
    pub const fn unit_bytes(&self) -> u64 {
        match self.level {
            Level::Raid1 => BLOCK_BYTES,
            _ => self.chunk_bytes,
        }
    }

    /// How many copies of each byte a zone over `width` members holds.
    #[must_use]
    pub const fn copies_over(&self, width: usize) -> usize {
        match self.level {
            Level::Raid1 => width,
            Level::Raid10 => self.copies as usize,
            _ => 1,
        }
    }

    /// The array's bytes in a zone over `width` members of which each gives `height_bytes`.
    ///
    /// `None` where that overflows, or nothing is kept as there are no copies. Raid10 may leave a part of the last row unused, to hold whole chunks.
    #[must_use]
    pub fn zone_bytes(&self, width: usize, height_bytes: u64) -> Option<u64> {
        let width_count = width as u64;
        match self.level {
            Level::Concat | Level::Raid0 => height_bytes.checked_mul(width_count),
            Level::Raid1 => Some(height_bytes),
            // The rows are in as many equal parts as there are copies.
            Level::Raid10 if matches!(self.layout, Layout::Far | Layout::Offset) => {
                let rows = (height_bytes / self.chunk_bytes).checked_div(u64::from(self.copies))?;
                rows.checked_mul(width_count)?.checked_mul(self.chunk_bytes)
            }
            Level::Raid10 => {
                let cells = (height_bytes / self.chunk_bytes).checked_mul(width_count)?;
                cells.checked_div(u64::from(self.copies))?.checked_mul(self.chunk_bytes)
            }
            Level::Raid5 | Level::Raid6 => {
                height_bytes.checked_mul(width_count.checked_sub(u64::from(self.level.parity()))?)
            }
        }
    }

    /// How many bytes a member of raid0 with `rounded_bytes` of whole chunks adds to the end of the array.
    ///
    /// All of them where the chunk is a power of two. Else Linux md masks the member's size with the chunk's bits
    /// instead of dividing (`raid0_size` in the kernel's `raid0.c`, as the arrays with a chunk of 96 KiB in
    /// `tests/golden/md-layouts` show), and the array ends up to a chunk per member earlier. Braid does as md does,
    /// so that an array of either is the same block device with the other.
    #[must_use]
    pub const fn raid0_end_bytes(&self, rounded_bytes: u64) -> u64 {
        const SECTOR_BYTES: u64 = 512;
        rounded_bytes & !(self.chunk_bytes - SECTOR_BYTES)
    }

    /// By how many bytes the last zone may be shorter than [`Spec::zone_bytes`] says, in an array of so many members:
    /// 0, but for a raid0 whose chunk is no power of two (see [`Spec::raid0_end_bytes`]).
    #[must_use]
    pub const fn cut_bytes_max(&self, members: usize) -> u64 {
        match self.level {
            Level::Raid0 if !self.chunk_bytes.is_power_of_two() => self.chunk_bytes * members as u64 - 1,
            _ => 0,
        }
    }

    /// Checks everything that does not depend on the sizes of the members.
    ///
    /// # Errors
    /// Too few or too many members, a chunk, a number of copies or a layout that cannot be.
    pub fn check(&self, members: usize) -> Result<(), GeometryError> {
        if !self.level.layouts().contains(&self.layout) {
            return Err(GeometryError::LayoutNotOfLevel { level: self.level, layout: self.layout });
        }
        self.check_numbers(members)
    }

    /// The same, and the layouts that only md makes are right as well.
    pub(crate) fn check_imported(&self, members: usize) -> Result<(), GeometryError> {
        let known = [self.level.layouts(), self.level.layouts_of_md()].concat();
        if !known.contains(&self.layout) {
            return Err(GeometryError::LayoutNotOfLevel { level: self.level, layout: self.layout });
        }
        self.check_numbers(members)
    }

    fn check_numbers(&self, members: usize) -> Result<(), GeometryError> {
        if self.chunk_bytes == 0 || !self.chunk_bytes.is_multiple_of(BLOCK_BYTES) || self.chunk_bytes > CHUNK_BYTES_MAX
        {
            return Err(GeometryError::BadChunk { chunk_bytes: self.chunk_bytes });
        }
        if members > MEMBERS_MAX {
            return Err(GeometryError::TooManyMembers { given: members });
        }
        if self.level == Level::Raid10 && (self.copies < 2 || usize::from(self.copies) > members && members >= 2) {
            return Err(GeometryError::BadCopies { copies: self.copies, members });
        }
        if members < self.members_min() {
            return Err(GeometryError::TooFewMembers { level: self.level, given: members, needed: self.members_min() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_without_copies() {
        let spec = |copies| Spec { copies, ..Spec::new(Level::Raid10) };
        assert_eq!((spec(2).zone_bytes(4, 1 << 20), spec(0).zone_bytes(4, 1 << 20)), (Some(2 << 20), None));
    }

    #[test]
    fn levels_are_read_as_people_type_them() {
        let check = |words: &[&str], level: Level| {
            for word in words {
                assert_eq!(Level::typed(word), Ok(level), "{word}");
            }
        };
        check(&["concat", "linear", "Concat"], Level::Concat);
        check(&["raid0", "0", "raid-0", "stripe", "STRIPE"], Level::Raid0);
        check(&["raid1", "1", "raid-1", "mirror", "RAID1"], Level::Raid1);
        check(&["raid10", "10", "raid-10", "1+0"], Level::Raid10);
        check(&["raid5", "5", "raid-5", "RAID-5"], Level::Raid5);
        check(&["raid6", "6", "raid-6"], Level::Raid6);
        for wrong in ["", "2", "7", "raid", "raid 5", "raid7", "-5", "mirrors"] {
            let error = Level::typed(wrong).expect_err(wrong).to_string();
            assert!(error.contains("concat, raid0, raid1, raid10, raid5, raid6"), "{wrong}: {error}");
        }
    }

    #[test]
    fn no_word_means_two_levels_and_the_names_alone_are_canonical() {
        let words = |level: Level| level.aliases().iter().copied().chain([level.name()]);
        let mut all: Vec<&str> = Level::ALL.into_iter().flat_map(words).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "{all:?}");
        for alias in Level::ALL.into_iter().flat_map(|level| level.aliases()) {
            assert!(alias.parse::<Level>().is_err(), "{alias} is an alias, and no name");
        }
    }
}
