//! A started array whose labels agree: the handle through which it is changed.

use std::sync::Arc;

use braid_engine::LeafId;
use braid_format::journal::{JournalHead, LostStripe};
use braid_format::{ArrayPart, Job, MemberPart, MemberState, Name, RetiredMarks, Uuid};
use braid_geometry::Geometry;

use super::lineage::{LineageIds, RebuildKind};
use super::member_table::{is_redundant, joins, may_clear_bits, rebuild_of};
use super::retirement::Retirement;
use super::write::Target;

/// A started array. It knows its members by slot; the caller builds the layout from it and serves it.
#[derive(Clone, Debug)]
pub struct Array {
    /// The last completed label: it has been durable on all targets.
    pub(super) label: ArrayPart,
    /// The label that was written last, perhaps on some members only. Differs from `label` after a failed change.
    pub(super) written: ArrayPart,
    pub(super) geometry: Geometry,
    /// The disks that take labels: all present members except failed ones.
    pub(super) targets: Vec<Target>,
    /// The disk of the journal, if the label names one, it is present and it has not failed. It takes labels too.
    pub(super) journal: Option<Target>,
    /// The array is new or had been stopped cleanly when it was found: nothing in the journal is needed.
    pub(super) was_clean: bool,
    /// With parity: the head that began the journal's run, and its list of lost stripes.
    pub(super) run_head: Option<(JournalHead, Vec<LostStripe>)>,
    /// The journal marks that a recovery ignores; every further label records them.
    pub(super) retired: RetiredMarks,
    /// With parity, once it has a reconciler: how marks are retired before a label drops members.
    pub(super) retirement: Option<Arc<Retirement>>,
    /// The reconciler has ended in order and no I/O is in flight: see [`Array::end_run`].
    pub(super) has_ended: bool,
    /// Disks of failed members that could be rebuilt.
    pub(super) candidates: Vec<(Candidate, Target)>,
    pub(super) lineage_ids: LineageIds,
    /// The sequence number of the newest label that the start of a redundant array found. Members that were missing
    /// then may bear only the label before it. 0 for an array that was just created, and without redundancy.
    pub(super) found_sequence: u64,
    /// Members that the newest label found calls in sync and that do not bear that label yet. They do not count as
    /// copies until the start has written it to them.
    pub(super) unproven: Vec<u16>,
    /// The members in sync by the last agreement with the voters ([`MetaIo::record_in_sync`]); `None`: not
    /// requested yet.
    pub(super) agreed: Option<Vec<u16>>,
    /// While the array grows: its future geometry. No member is dropped that this geometry could not do without.
    pub(super) growing: Option<Geometry>,
}

/// A present disk that is no member now and could be one again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The slot that it had.
    pub slot: u16,
    /// The disk.
    pub leaf: LeafId,
    /// How it would be rebuilt.
    pub kind: RebuildKind,
    /// The disk holds everything before this byte of the array, except for dirty regions. A full rebuild resumes here;
    /// a delta resync does not use it (0).
    pub position_bytes: u64,
    /// Whether the disk returns as the member that it was ([`RebuildTarget::Returning`](super::RebuildTarget)). If not,
    /// it is an old or diverged copy that a forced start has given up: it can be used only as a new member
    /// ([`RebuildTarget::New`](super::RebuildTarget)).
    pub is_same_member: bool,
}

/// A member of a started array.
#[derive(Clone, Copy, Debug)]
pub struct ArrayMember<'a> {
    /// Its slot: its number in the geometry.
    pub number: u16,
    /// Its disk.
    pub leaf: LeafId,
    /// Its state.
    pub state: MemberState,
    /// Its own part of the label. Its data area begins at byte `part.layout.data.start` of the disk.
    pub part: &'a MemberPart,
}

impl Array {
    /// Creates the handle. `random` seeds the ids of further lineages.
    pub(super) fn new(label: ArrayPart, geometry: Geometry, mut targets: Vec<Target>, random: u64) -> Array {
        targets.sort_by_key(|target| target.part.slot);
        let holds_journal = |target: &Target| {
            label.members.get(usize::from(target.part.slot)).is_some_and(|entry| entry.state == MemberState::Journal)
        };
        let at = targets.iter().position(holds_journal);
        let journal = at.map(|at| targets.remove(at));
        let was_clean = label.clean;
        let (candidates, lineage_ids, unproven) = (Vec::new(), LineageIds::new(random), Vec::new());
        let (written, found_sequence) = (label.clone(), 0);
        let growing = None;
        Array {
            written,
            label,
            geometry,
            targets,
            journal,
            was_clean,
            run_head: None,
            retired: RetiredMarks::default(),
            retirement: None,
            has_ended: false,
            candidates,
            lineage_ids,
            found_sequence,
            unproven,
            agreed: None,
            growing,
        }
    }

    /// Whether the array tolerates failed members.
    pub fn is_redundant(&self) -> bool {
        is_redundant(self.label.spec.level)
    }

    /// Returns its identity.
    pub fn uuid(&self) -> Uuid {
        self.label.uuid
    }

    /// Returns its name.
    pub fn name(&self) -> &Name {
        &self.label.name
    }

    /// Returns the last completed label. After a failed change, some members bear the next one already.
    pub fn label(&self) -> &ArrayPart {
        &self.label
    }

    /// Returns the geometry: where each byte of the array is on the members.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the present members that hold content, by slot: in sync or rebuilding.
    pub fn members(&self) -> impl Iterator<Item = ArrayMember<'_>> {
        self.disks().filter(|m| matches!(m.state, MemberState::InSync | MemberState::Rebuilding))
    }

    /// Returns the present spares, by their numbers in the member table.
    pub fn spares(&self) -> impl Iterator<Item = ArrayMember<'_>> {
        self.disks().filter(|m| m.state == MemberState::Spare && !joins(&self.label, m.number))
    }

    /// Returns the disks of failed members that could be rebuilt.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate> {
        self.candidates.iter().map(|(candidate, _)| *candidate)
    }

    /// Forgets candidates whose disk is no longer present under its [`LeafId`], since ids are reused for other disks.
    pub fn retain_candidates(&mut self, mut is_here: impl FnMut(LeafId) -> bool) {
        self.candidates.retain(|(candidate, _)| is_here(candidate.leaf));
    }

    fn disks(&self) -> impl Iterator<Item = ArrayMember<'_>> {
        self.targets.iter().map(|t| {
            let state = self.state(t.part.slot);
            ArrayMember { number: t.part.slot, leaf: t.leaf, state, part: &t.part }
        })
    }

    /// Returns the number of slots. Higher numbers in the member table are spares, successors and the disk of the
    /// journal.
    pub fn slots(&self) -> u16 {
        self.geometry.member_data_bytes().len() as u16
    }

    /// Returns the state that the label records for a number of the member table; [`MemberState::Empty`] beyond its
    /// end.
    pub fn state(&self, role: u16) -> MemberState {
        self.label.members.get(usize::from(role)).map_or(MemberState::Empty, |m| m.state)
    }

    /// Returns the disk of a member that is in sync, rebuilding, or a spare.
    pub fn leaf(&self, role: u16) -> Option<LeafId> {
        self.targets.iter().find(|t| t.part.slot == role).map(|t| t.leaf)
    }

    /// Whether every slot is in sync.
    pub fn is_whole(&self) -> bool {
        (0..self.slots()).all(|role| self.state(role) == MemberState::InSync)
    }

    /// Whether dirty bits may be cleared: no member is failed or rebuilding, so that no delta resync depends on them.
    /// Vacant slots of a mirror do not matter, because a disk that takes one is rebuilt in full. With parity a vacant
    /// slot forbids it.
    pub fn may_clear_bits(&self) -> bool {
        may_clear_bits(&self.label)
    }

    /// Returns the vacant slots of a mirror.
    pub fn vacant(&self) -> impl Iterator<Item = u16> {
        let of_copies = self.label.spec.level.parity() == 0;
        (0..self.slots()).filter(move |role| of_copies && self.state(*role) == MemberState::Empty)
    }

    /// Returns the job in the label that rebuilds this member in full, if there is one.
    pub fn rebuild(&self, role: u16) -> Option<&Job> {
        rebuild_of(&self.label, role)
    }

    /// Remembers the disk of a member that was just dropped as a candidate. Spares and successors, which leave no
    /// failed slot, are not remembered.
    pub(super) fn keep_candidate(&mut self, target: Target) {
        let role = target.part.slot;
        if self.state(role) != MemberState::Failed {
            return;
        }
        let job = self.rebuild(role).map(|job| (RebuildKind::Full, job.position_bytes));
        let (from, position_bytes) = job.unwrap_or((RebuildKind::FromBitmap, 0));
        self.note_candidate(
            Candidate { slot: role, leaf: target.leaf, kind: from, position_bytes, is_same_member: true },
            target,
        );
    }

    /// Remembers a disk that could be rebuilt.
    pub(super) fn note_candidate(&mut self, candidate: Candidate, target: Target) {
        self.candidates.retain(|(other, _)| other.leaf != target.leaf);
        self.candidates.push((candidate, target));
    }
}
