//! Lineage: whenever a member is dropped, the remaining members write a new random id along with its ancestors. From
//! these ids a later start tells which members went on, which fell behind, and which diverged.

use std::cmp::Reverse;

use braid_format::{ANCESTORS_MAX, Ancestor, ArrayPart, Lineage, MemberId, MemberState};

use super::disk::MemberDisk;
use super::member_table::{joins, rebuild_of};

/// Generates lineage ids from a random seed.
#[derive(Clone, Debug)]
pub(super) struct LineageIds(u64);

impl LineageIds {
    pub fn new(random: u64) -> LineageIds {
        LineageIds(random)
    }

    /// Returns the next id; never 0. (SplitMix64: Steele, Lea, Flood 2014.)
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31).max(1)
    }
}

/// Returns a lineage with this `id` that branches from `old`. A member that bears a label of `old` may return by a
/// delta resync if the label's sequence number is at least `believed_from`. The ids in `refused` become known ancestors
/// from which no member may return.
pub(super) fn branch(old: &Lineage, believed_from: u64, id: u64, refused: &[u64]) -> Lineage {
    let mut ancestors = vec![Ancestor { id: old.id, accepted_from: believed_from.min(Ancestor::NONE_ACCEPTED - 1) }];
    for known in refused.iter().copied().map(Ancestor::none_accepted).chain(old.ancestors.iter().copied()) {
        if ancestors.iter().all(|other| other.id != known.id) && known.id != id {
            ancestors.push(known);
        }
    }
    ancestors.truncate(ANCESTORS_MAX);
    Lineage { id, ancestors }
}

/// Lets no member of an ancestor return any more: dirty bits may be cleared from now on, so that a disk with a label of
/// an earlier lineage is an old copy.
pub(super) fn close_ancestors(lineage: &mut Lineage) {
    lineage.ancestors.iter_mut().for_each(|ancestor| ancestor.accepted_from = Ancestor::NONE_ACCEPTED);
}

/// How a member is rebuilt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RebuildKind {
    /// Delta resync of a member that was in sync before: copies the regions that are dirty in the write-intent bitmap.
    FromBitmap,
    /// Full rebuild: copies everything from the position in the label's job on.
    Full,
}

/// What a present disk is to its array.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemberStanding {
    /// In sync, with the newest label.
    Current,
    /// In sync, with the label before: a crash interrupted the write of the newest.
    Behind,
    /// Failed by the newest label, with a label of its lineage or an ancestor. It can be rebuilt by a delta resync, or
    /// resume its rebuild.
    Returning,
    /// Being rebuilt.
    Rebuilding,
    /// A spare, or the disk of the journal.
    Spare,
    /// Of the array's lineage, but further behind than a crash leaves a disk: an old copy of a member. Never used as it
    /// is.
    Stale,
    /// Of a lineage unknown to the newest label: it was used apart from the others. Never used as it is.
    Diverged,
}

impl MemberStanding {
    /// Whether it takes part in a start as a member.
    pub fn takes_part(self) -> bool {
        matches!(
            self,
            MemberStanding::Current | MemberStanding::Behind | MemberStanding::Rebuilding | MemberStanding::Spare
        )
    }
}

/// Bit of a session id: set by the second label of a start, before the array may serve. The first label of a start has
/// the id without it.
pub(super) const SERVES: u64 = 1;

/// Returns the id of a session that is starting.
pub(super) fn starting(session: u64) -> u64 {
    (session | 2) & !SERVES
}

/// Whether a crash may have left `label` beside `newest`: it is one step older, and of the same session or of the one
/// that a start was about to end.
///
/// An array serves only once every member that takes part bears its session with [`SERVES`], which the second label of
/// its start sets. So a label of another session belongs to a member that did not take part: an old copy, whatever its
/// sequence number.
pub(super) fn is_one_step_before(label: &ArrayPart, newest: &ArrayPart) -> bool {
    let same_lineage = label.lineage.id == newest.lineage.id;
    let parent = newest.lineage.parent() == Some(label.lineage.id);
    // Labels of two sessions coexist only during a start, and the label of that start names both.
    let begins = newest.session & SERVES == 0 && label.session == newest.previous_session;
    let one_session = begins || label.session | SERVES == newest.session | SERVES;
    (same_lineage || parent) && one_session && label.epoch == newest.epoch && label.sequence + 1 == newest.sequence
}

pub(super) fn is_ancestor(older: &Lineage, newer: &Lineage) -> bool {
    older.id != newer.id && newer.knows(older.id) && !older.knows(newer.id)
}

/// The present members and their labels.
pub(super) type PresentLabels<'a> = Vec<(MemberId, &'a ArrayPart)>;

pub(super) fn present_labels<'a>(disks: &[&'a MemberDisk]) -> PresentLabels<'a> {
    disks.iter().map(|disk| (disk.label.member.id, &disk.label.array)).collect()
}

/// Whether a lineage was ever used, as far as the present labels tell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LineageUse {
    /// Never used: a member that the label calls in sync bears a label of an unrelated lineage, in which it went on.
    Abandoned,
    /// Never used: a member that the label calls in sync still bears the previous label, of the parent lineage.
    Begun,
    /// It may have been used.
    Unknown,
}

/// Returns whether a label's lineage was used. A label takes effect only once all members that it calls in sync bear
/// it. If one of these is present and never bore the lineage, the lineage was begun and interrupted before it was used.
fn lineage_use(label: &ArrayPart, present_labels: &PresentLabels<'_>) -> LineageUse {
    let lineage = &label.lineage;
    let says = |other: &ArrayPart| {
        if other.lineage.knows(lineage.id) {
            LineageUse::Unknown
        } else if !lineage.knows(other.lineage.id) {
            LineageUse::Abandoned
        } else if lineage.parent() == Some(other.lineage.id) && (other.epoch, other.sequence + 1) == label.order() {
            LineageUse::Begun
        } else {
            LineageUse::Unknown
        }
    };
    let called = present_labels.iter().filter(|(id, _)| is_in_sync(label, *id));
    called.map(|(_, other)| says(other)).min().unwrap_or(LineageUse::Unknown)
}

fn is_in_sync(label: &ArrayPart, id: MemberId) -> bool {
    label.members.iter().any(|m| m.id == Some(id) && m.state == MemberState::InSync)
}

/// Returns the authoritative label: of a lineage that was used and is no ancestor of another present one; among
/// several, the highest by epoch and sequence number. If disks have diverged, the choice hardly matters: the array is
/// refused.
pub(super) fn newest<'a>(disks: &[&'a MemberDisk]) -> Option<&'a ArrayPart> {
    let present_labels = present_labels(disks);
    let lineage = |disk: &MemberDisk| disk.label.array.lineage.clone();
    let last = |disk: &MemberDisk| !disks.iter().any(|other| is_ancestor(&lineage(disk), &lineage(other)));
    // Lineages that are ancestors of each other are not written by Braid; then no disk is last.
    let rank = |disk: &&&MemberDisk| {
        let array = &disk.label.array;
        (
            last(disk).then(|| lineage_use(array, &present_labels)),
            array.order(),
            array.lineage.id,
            Reverse(disk.label.member.slot),
        )
    };
    disks.iter().max_by_key(rank).map(|disk| &disk.label.array)
}

/// Classifies a disk, given the newest label, its slot there, and the other present labels.
pub(super) fn standing(
    newest: &ArrayPart,
    role: u16,
    disk: &MemberDisk,
    present_labels: &PresentLabels<'_>,
) -> MemberStanding {
    let label = &disk.label.array;
    let entry = newest.members[usize::from(role)].state;
    let own = label.members[usize::from(disk.label.member.slot)].state;
    let returning = match rejoin_from(newest, role, disk) {
        Some(_) => MemberStanding::Returning,
        None => MemberStanding::Stale,
    };
    if entry == MemberState::Journal {
        // The heads of the journal decide whether the content of this disk is current, however old its label is.
        return MemberStanding::Spare;
    }
    if label == newest {
        return match entry {
            MemberState::InSync => MemberStanding::Current,
            MemberState::Rebuilding => MemberStanding::Rebuilding,
            MemberState::Spare | MemberState::Journal => MemberStanding::Spare,
            MemberState::Failed | MemberState::Empty => returning,
        };
    }
    let same_lineage = label.lineage.id == newest.lineage.id;
    if same_lineage && label.order() == newest.order() {
        return MemberStanding::Diverged;
    }
    if entry == MemberState::Spare && own == MemberState::Spare {
        return MemberStanding::Spare;
    }
    if !newest.lineage.knows(label.lineage.id) {
        // The lineage of this disk was begun and never used: the disk holds what it held in the previous lineage.
        if entry == MemberState::Failed
            && lineage_use(label, present_labels) != LineageUse::Unknown
            && label.lineage.ancestors.iter().any(|known| newest.lineage.knows(known.id))
        {
            return returning;
        }
        return if own != MemberState::InSync || left_behind(newest, label) {
            MemberStanding::Stale
        } else {
            MemberStanding::Diverged
        };
    }
    // A crash leaves labels at most one step apart; in that step the lineage may have branched.
    let one_step = is_one_step_before(label, newest);
    match (entry, own) {
        (MemberState::InSync, MemberState::InSync | MemberState::Rebuilding) if one_step => MemberStanding::Behind,
        // A growth was about to add this disk.
        (MemberState::InSync, MemberState::Spare) if one_step && joins(label, disk.label.member.slot) => {
            MemberStanding::Behind
        }
        (MemberState::InSync, _) => MemberStanding::Stale,
        (MemberState::Rebuilding, MemberState::Rebuilding) if one_step => MemberStanding::Rebuilding,
        (MemberState::Rebuilding, MemberState::Rebuilding) => MemberStanding::Stale,
        // Failed; or its rebuild was recorded, and a crash came before this disk bore that label.
        (MemberState::Rebuilding | MemberState::Failed, _) => returning,
        (MemberState::Spare | MemberState::Empty | MemberState::Journal, _) => MemberStanding::Stale,
    }
}

/// Returns how a failed member can be rebuilt, and, for a full rebuild, the byte of the array from which everything is
/// copied. `None`: the disk is an old copy and must not return.
///
/// A region that a failed member lacks stays dirty until its bit is cleared, and bits are cleared only while the array
/// is whole: no member is failed or rebuilding. Within a lineage an array never goes from whole to degraded, because a
/// drop begins a new lineage. So for a disk with a label of an ancestor lineage:
///
/// - if the array was whole when that lineage ended, only a member that was present at the end may return;
/// - if the array was never whole in that lineage, every member of it may return;
/// - if the array was whole in a later lineage, no member may return.
///
/// A disk that was truncated lacks content that no bit covers, whatever its label says.
pub(super) fn rejoin_from(newest: &ArrayPart, role: u16, disk: &MemberDisk) -> Option<(RebuildKind, u64)> {
    if disk.truncated {
        return None;
    }
    let (label, own_role) = (&disk.label.array, disk.label.member.slot);
    let same_lineage = label.lineage.id == newest.lineage.id;
    let known = |id: u64| match newest.lineage.ancestor(id) {
        Some(ancestor) => Some(ancestor.accepts(label.sequence)),
        None => (id == newest.lineage.id).then_some(true),
    };
    // If the newest label does not know the disk's lineage, that lineage was never used: the disk is as it was in the
    // previous one.
    let mut lineages = std::iter::once(label.lineage.id).chain(label.lineage.ancestors.iter().map(|a| a.id));
    if !lineages.find_map(known)? {
        return None;
    }
    let (own_job, job) = (rebuild_of(label, own_role), rebuild_of(newest, role));
    let again = job.is_some().then_some((RebuildKind::Full, 0));
    match (label.members[usize::from(own_role)].state, own_job) {
        // Dropping a member in sync always begins a new lineage.
        (MemberState::InSync, _) if same_lineage => None,
        (MemberState::InSync, _) | (MemberState::Rebuilding, None) => again.or(Some((RebuildKind::FromBitmap, 0))),
        // This member never held everything. Its own label limits how far it was copied: if the newest label says more,
        // this disk is an earlier copy of the member.
        (_, Some(own_job)) => match job {
            Some(job) if job.number == own_job.number => {
                Some((RebuildKind::Full, own_job.position_bytes.min(job.position_bytes)))
            }
            _ => again,
        },
        (_, None) => again,
    }
}

/// Whether a label is merely old although the newest label does not know its lineage (the list of ancestors is
/// bounded). It is if this label calls all members in sync that the newest label calls in sync: then its disk never
/// went on without them.
fn left_behind(newest: &ArrayPart, label: &ArrayPart) -> bool {
    let mut now = newest.members.iter().filter(|m| m.state == MemberState::InSync).filter_map(|m| m.id);
    label.order() < newest.order() && now.all(|id| is_in_sync(label, id))
}
