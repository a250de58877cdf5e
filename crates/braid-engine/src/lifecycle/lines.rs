//! Lines of members: each time members part ways, those that go on write a new random id with the ids before it. By
//! these everybody knows later who went on, who was left behind, and who went on apart.

use std::cmp::Reverse;

use braid_format::{ANCESTORS_MAX, ArrayPart, Lineage, MemberId, MemberState};

use super::disk::MemberDisk;
use super::planted::{Planted, planted};

/// Gives ids for new lines, from a random number that the caller drew.
#[derive(Clone, Debug)]
pub(super) struct Lines(u64);

impl Lines {
    pub fn new(random: u64) -> Lines {
        Lines(random)
    }

    /// The next id; never 0. (SplitMix64: Steele, Lea, Flood 2014.)
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31).max(1)
    }
}

/// The line that parts from `old`. Lines of which it was decided that they do not count (`refused`) become known, too.
pub(super) fn part(old: &Lineage, id: u64, refused: &[u64]) -> Lineage {
    let mut ancestors = vec![old.id];
    for known in refused.iter().chain(&old.ancestors) {
        if !ancestors.contains(known) && *known != id {
            ancestors.push(*known);
        }
    }
    ancestors.truncate(ANCESTORS_MAX);
    Lineage { id, ancestors }
}

/// What a disk that is here is to its array.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Standing {
    /// In sync, with the newest label.
    Current,
    /// In sync, with the label before: a crash struck while the newest was being written.
    Behind,
    /// Left out by the newest label; its line is the newest one's, or one before it. It can catch up.
    Returning,
    /// Being filled.
    Filling,
    /// A spare.
    Spare,
    /// Of the array's line, and further behind than a crash leaves a disk: an old copy of a member. Never used as it is.
    Stale,
    /// Of a line that the newest label does not know: it was used apart from the others. Never used as it is.
    Diverged,
}

impl Standing {
    /// Whether it can be a member of what starts.
    pub fn takes_part(self) -> bool {
        matches!(self, Standing::Current | Standing::Behind | Standing::Filling | Standing::Spare)
    }
}

fn is_before(older: &Lineage, newer: &Lineage) -> bool {
    older.id != newer.id && newer.ancestors.contains(&older.id) && !older.ancestors.contains(&newer.id)
}

/// Members that are here, and their labels.
pub(super) type Witnesses<'a> = Vec<(MemberId, &'a ArrayPart)>;

pub(super) fn witnesses<'a>(disks: &[&'a MemberDisk]) -> Witnesses<'a> {
    disks.iter().map(|disk| (disk.label.member.id, &disk.label.array)).collect()
}

/// Whether a line was used, as far as those that are here can tell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    /// Never: a member that the label calls in sync went on in another line.
    Abandoned,
    /// Never: such a member still stands one step before.
    Begun,
    /// It may have been.
    Unknown,
}

/// A label counts only when all that it calls in sync bear it. Where one of these is here and never bore the label's
/// line, that line was begun, and cut off before it was used.
fn use_of(label: &ArrayPart, witnesses: &Witnesses<'_>) -> Use {
    let line = &label.lineage;
    let says = |other: &ArrayPart| {
        if other.lineage.id == line.id || other.lineage.ancestors.contains(&line.id) {
            Use::Unknown
        } else if !line.ancestors.contains(&other.lineage.id) {
            Use::Abandoned
        } else if line.ancestors.first() == Some(&other.lineage.id)
            && (other.epoch, other.sequence + 1) == label.order()
        {
            Use::Begun
        } else {
            Use::Unknown
        }
    };
    let called = witnesses.iter().filter(|(id, _)| is_in_sync(label, *id));
    called.map(|(_, other)| says(other)).min().unwrap_or(Use::Unknown)
}

fn is_in_sync(label: &ArrayPart, id: MemberId) -> bool {
    label.members.iter().any(|m| m.id == Some(id) && m.state == MemberState::InSync)
}

/// The label that counts: of a line that was used and that no other one here has among those before it; among several by
/// epoch and sequence number. Where disks went on apart, which of their lines it is means little: the array is refused.
pub(super) fn newest<'a>(disks: &[&'a MemberDisk]) -> Option<&'a ArrayPart> {
    let witnesses = witnesses(disks);
    let line = |disk: &MemberDisk| disk.label.array.lineage.clone();
    let last = |disk: &MemberDisk| !disks.iter().any(|other| is_before(&line(disk), &line(other)));
    // Lines that are each other's ancestors are no history that Braid writes; then nobody is last.
    let rank = |disk: &&&MemberDisk| {
        let array = &disk.label.array;
        (
            last(disk).then(|| use_of(array, &witnesses)),
            array.order(),
            array.lineage.id,
            Reverse(disk.label.member.role),
        )
    };
    disks.iter().max_by_key(rank).map(|disk| &disk.label.array)
}

/// What a disk is, given the newest label and its role there, and who else is here.
pub(super) fn standing(newest: &ArrayPart, role: u16, disk: &MemberDisk, witnesses: &Witnesses<'_>) -> Standing {
    let judged = judge(newest, role, disk, witnesses);
    match judged {
        Standing::Stale if planted(Planted::StaleAccepted) => Standing::Current,
        Standing::Diverged if planted(Planted::DivergedMerged) => Standing::Returning,
        judged => judged,
    }
}

fn judge(newest: &ArrayPart, role: u16, disk: &MemberDisk, witnesses: &Witnesses<'_>) -> Standing {
    let label = &disk.label.array;
    let entry = newest.members[usize::from(role)].state;
    let own = label.members[usize::from(disk.label.member.role)].state;
    if label == newest {
        return match entry {
            MemberState::InSync => Standing::Current,
            MemberState::Filling => Standing::Filling,
            MemberState::Spare => Standing::Spare,
            MemberState::Out | MemberState::Absent => Standing::Returning,
        };
    }
    let same_line = label.lineage.id == newest.lineage.id;
    if same_line && label.order() == newest.order() {
        return Standing::Diverged;
    }
    if entry == MemberState::Spare && own == MemberState::Spare {
        return Standing::Spare;
    }
    let known = |line: &u64| *line == newest.lineage.id || newest.lineage.ancestors.contains(line);
    if !known(&label.lineage.id) {
        // Its line was never used: it stands where it stood in the one before.
        if entry == MemberState::Out
            && use_of(label, witnesses) != Use::Unknown
            && label.lineage.ancestors.iter().any(known)
        {
            return Standing::Returning;
        }
        return if own != MemberState::InSync || left_behind(newest, label) {
            Standing::Stale
        } else {
            Standing::Diverged
        };
    }
    // A crash leaves labels at most one step apart; in that step the members may have parted ways.
    let parent = newest.lineage.ancestors.first() == Some(&label.lineage.id);
    let one_step = (same_line || parent) && label.epoch == newest.epoch && label.sequence + 1 == newest.sequence;
    match (entry, own) {
        (MemberState::InSync, MemberState::InSync | MemberState::Filling) if one_step => Standing::Behind,
        (MemberState::InSync, _) => Standing::Stale,
        (MemberState::Filling, MemberState::Filling) if one_step => Standing::Filling,
        (MemberState::Filling, MemberState::Filling) => Standing::Stale,
        // It was to be filled, and a crash came before its own label.
        (MemberState::Filling, _) => Standing::Returning,
        // Whoever is left out while in sync is left out by a new line.
        (_, MemberState::InSync) if same_line => Standing::Stale,
        (MemberState::Out, _) => Standing::Returning,
        (MemberState::Spare | MemberState::Absent, _) => Standing::Stale,
    }
}

/// Whether a label of an unknown line is just old, so that its line was forgotten: it calls everybody in sync whom the
/// newest calls so. Then its disk never went on without them.
fn left_behind(newest: &ArrayPart, label: &ArrayPart) -> bool {
    let mut now = newest.members.iter().filter(|m| m.state == MemberState::InSync).filter_map(|m| m.id);
    label.order() < newest.order() && now.all(|id| is_in_sync(label, id))
}
