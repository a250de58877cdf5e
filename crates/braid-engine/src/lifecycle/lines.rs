//! Lines of members: each time members part ways, those that go on write a new random id with the ids before it. By
//! these everybody knows later who went on, who was left behind, and who went on apart.

use std::cmp::Reverse;

use braid_format::{ANCESTORS_MAX, Ancestor, ArrayPart, Lineage, MemberId, MemberState};

use super::array::{Filling, rebuild_of};
use super::disk::MemberDisk;
use super::grow::joins;
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

/// The line that parts from `old`, of which labels are believed from this sequence number on. Lines of which it was decided
/// that they do not count (`refused`) become known, too; nobody returns from them.
pub(super) fn part(old: &Lineage, believed_from: u64, id: u64, refused: &[u64]) -> Lineage {
    let mut ancestors = vec![Ancestor { id: old.id, believed_from: believed_from.min(Ancestor::NEVER - 1) }];
    for known in refused.iter().copied().map(Ancestor::closed).chain(old.ancestors.iter().copied()) {
        if ancestors.iter().all(|other| other.id != known.id) && known.id != id {
            ancestors.push(known);
        }
    }
    ancestors.truncate(ANCESTORS_MAX);
    Lineage { id, ancestors }
}

/// From now on bits of the bitmap may be cleared: whoever stands in a line before this one is an old copy.
pub(super) fn close(lineage: &mut Lineage) {
    lineage.ancestors.iter_mut().for_each(|ancestor| ancestor.believed_from = Ancestor::NEVER);
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
    /// A spare, or the disk of the journal.
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

/// Of the random id of a run: set by the second label that a start writes, before the array may serve. The first label of
/// a start bears the id without it.
pub(super) const SERVES: u64 = 1;

/// The id of a run that is starting.
pub(super) fn starting(session: u64) -> u64 {
    (session | 2) & !SERVES
}

/// Whether a label is the one that a crash may leave beside `newest`: one step before it, and of the same session or of the
/// one that a start was about to end.
///
/// An array serves only when every member that takes part bears its session with [`SERVES`], which is the second label of its
/// start. So a member of another session beside such a label did not take part: it is an old copy, whatever its number.
pub(super) fn is_one_step_before(label: &ArrayPart, newest: &ArrayPart) -> bool {
    let same_line = label.lineage.id == newest.lineage.id;
    let parent = newest.lineage.parent() == Some(label.lineage.id);
    // Only while a start is under way are labels of two sessions, and of which two the label of that start says.
    let begins = newest.session & SERVES == 0 && label.session == newest.session_before;
    let one_session = begins || label.session | SERVES == newest.session | SERVES || planted(Planted::SessionIgnored);
    (same_line || parent) && one_session && label.epoch == newest.epoch && label.sequence + 1 == newest.sequence
}

pub(super) fn is_before(older: &Lineage, newer: &Lineage) -> bool {
    older.id != newer.id && newer.knows(older.id) && !older.knows(newer.id)
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
        if other.lineage.knows(line.id) {
            Use::Unknown
        } else if !line.knows(other.lineage.id) {
            Use::Abandoned
        } else if line.parent() == Some(other.lineage.id) && (other.epoch, other.sequence + 1) == label.order() {
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
    let returning = match way_back(newest, role, disk) {
        Some(_) => Standing::Returning,
        None => Standing::Stale,
    };
    if entry == MemberState::Journal {
        // What stands on it counts by its heads, however old its label is.
        return Standing::Spare;
    }
    if label == newest {
        return match entry {
            MemberState::InSync => Standing::Current,
            MemberState::Filling => Standing::Filling,
            MemberState::Spare | MemberState::Journal => Standing::Spare,
            MemberState::Out | MemberState::Absent => returning,
        };
    }
    let same_line = label.lineage.id == newest.lineage.id;
    if same_line && label.order() == newest.order() {
        return Standing::Diverged;
    }
    if entry == MemberState::Spare && own == MemberState::Spare {
        return Standing::Spare;
    }
    if !newest.lineage.knows(label.lineage.id) {
        // Its line was never used: it stands where it stood in the one before.
        if entry == MemberState::Out
            && use_of(label, witnesses) != Use::Unknown
            && label.lineage.ancestors.iter().any(|known| newest.lineage.knows(known.id))
        {
            return returning;
        }
        return if own != MemberState::InSync || left_behind(newest, label) {
            Standing::Stale
        } else {
            Standing::Diverged
        };
    }
    // A crash leaves labels at most one step apart; in that step the members may have parted ways.
    let one_step = is_one_step_before(label, newest);
    match (entry, own) {
        (MemberState::InSync, MemberState::InSync | MemberState::Filling) if one_step => Standing::Behind,
        // The array was about to take it up.
        (MemberState::InSync, MemberState::Spare) if one_step && joins(label, disk.label.member.role) => {
            Standing::Behind
        }
        (MemberState::InSync, _) => Standing::Stale,
        (MemberState::Filling, MemberState::Filling) if one_step => Standing::Filling,
        (MemberState::Filling, MemberState::Filling) => Standing::Stale,
        // It was to be filled, and a crash came before its own label.
        (MemberState::Filling | MemberState::Out, _) => returning,
        (MemberState::Spare | MemberState::Absent | MemberState::Journal, _) => Standing::Stale,
    }
}

/// How a member that is out comes back, and from which byte on where all of it is copied. `None`: it is an old copy.
///
/// What a member lacks since it was left out is dirty, as long as no bit is cleared; bits are cleared only while everybody is in
/// sync. A line never goes from whole to not whole: members part ways then. So of a line that was whole at its end only those
/// are believed who were there at its end; of one that never was, everybody; and of one before a line that was whole, nobody.
///
/// A disk that was cut lacks what no bit tells of, whatever its label says.
pub(super) fn way_back(newest: &ArrayPart, role: u16, disk: &MemberDisk) -> Option<(Filling, u64)> {
    if disk.cut {
        return None;
    }
    let (label, own_role) = (&disk.label.array, disk.label.member.role);
    let same_line = label.lineage.id == newest.lineage.id;
    let known = |id: u64| match newest.lineage.ancestor(id) {
        Some(ancestor) => Some(ancestor.believes(label.sequence)),
        None => (id == newest.lineage.id).then_some(true),
    };
    // A line that was never used: its members stand where they stood in the one before.
    let mut lines = std::iter::once(label.lineage.id).chain(label.lineage.ancestors.iter().map(|a| a.id));
    if !lines.find_map(known)? && !planted(Planted::OldCopyReturns) {
        return None;
    }
    let (own_job, job) = (rebuild_of(label, own_role), rebuild_of(newest, role));
    let again = job.is_some().then_some((Filling::Full, 0));
    match (label.members[usize::from(own_role)].state, own_job) {
        // Whoever is left out while in sync is left out by a new line.
        (MemberState::InSync, _) if same_line => None,
        (MemberState::InSync, _) | (MemberState::Filling, None) => again.or(Some((Filling::FromBitmap, 0))),
        // It was never whole. As far as its own label says it was copied, also where a later one says more.
        (_, Some(own_job)) => match job {
            Some(job) if job.number == own_job.number => {
                Some((Filling::Full, own_job.position_bytes.min(job.position_bytes)))
            }
            _ => again,
        },
        (_, None) => again,
    }
}

/// Whether a label of an unknown line is just old, so that its line was forgotten: it calls everybody in sync whom the
/// newest calls so. Then its disk never went on without them.
fn left_behind(newest: &ArrayPart, label: &ArrayPart) -> bool {
    let mut now = newest.members.iter().filter(|m| m.state == MemberState::InSync).filter_map(|m| m.id);
    label.order() < newest.order() && now.all(|id| is_in_sync(label, id))
}
