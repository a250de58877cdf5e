//! An array whose members are all here and whose labels agree: the handle through which it is changed.

use braid_format::{ArrayPart, ArrayState, MemberPart, Name, Uuid};
use braid_geometry::Geometry;

use super::erase::erase_targets;
use super::error::LifecycleError;
use super::join::try_join_all;
use super::planted::{Planted, planted};
use super::write::{Target, flush, write_labels};
use crate::{LeafId, MetaIo};

/// A started array. It knows its members by role; the caller makes the layout of it and serves it.
#[derive(Clone, Debug)]
pub struct Array {
    /// What was acknowledged last.
    label: ArrayPart,
    /// What was written last, perhaps only on some members. Differs from `label` after a change that failed.
    written: ArrayPart,
    geometry: Geometry,
    targets: Vec<Target>,
}

/// One member of a started array.
#[derive(Clone, Copy, Debug)]
pub struct ArrayMember<'a> {
    /// Its role: its number in the geometry.
    pub role: u16,
    /// Its disk.
    pub leaf: LeafId,
    /// Where everything lies on that disk; data begin at `places.data.start`.
    pub part: &'a MemberPart,
}

impl Array {
    pub(super) fn new(label: ArrayPart, geometry: Geometry, mut targets: Vec<Target>) -> Array {
        targets.sort_by_key(|target| target.part.role);
        Array { written: label.clone(), label, geometry, targets }
    }

    /// Its identity.
    pub fn uuid(&self) -> Uuid {
        self.label.uuid
    }

    /// Its name.
    pub fn name(&self) -> &Name {
        &self.label.name
    }

    /// The label that all members bear.
    pub fn label(&self) -> &ArrayPart {
        &self.label
    }

    /// Where every byte lives.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The members, by role.
    pub fn members(&self) -> impl Iterator<Item = ArrayMember<'_>> {
        self.targets.iter().map(|t| ArrayMember { role: t.part.role, leaf: t.leaf, part: &t.part })
    }

    /// Gives the array another name. That no other array has it is for the caller to know.
    ///
    /// # Errors
    /// A disk's; then the name is the old one until a later change succeeds, and may be either after a restart.
    pub async fn rename<M: MetaIo>(&mut self, io: &M, name: Name) -> Result<(), LifecycleError> {
        self.change(io, |label| label.name = name).await
    }

    /// Notes that the array stopped in order. What was written to it becomes durable first; no I/O may be under way.
    ///
    /// # Errors
    /// A disk's; then the mark is not set, which does no harm.
    pub async fn stop<M: MetaIo>(&mut self, io: &M) -> Result<(), LifecycleError> {
        try_join_all(self.targets.iter().map(|target| flush(io, target.leaf))).await?;
        self.change(io, |label| label.clean = true).await
    }

    /// Removes the labels from all members, and nothing else. After an error it can be called again; a deletion that
    /// was begun is finished by the next start.
    ///
    /// # Errors
    /// A disk's.
    pub async fn delete<M: MetaIo>(&mut self, io: &M) -> Result<(), LifecycleError> {
        if self.label.state != ArrayState::Deleting && !planted(Planted::EraseUnannounced) {
            self.change(io, |label| label.state = ArrayState::Deleting).await?;
        }
        erase_targets(io, &self.targets).await
    }

    /// Writes a new label on all members.
    ///
    /// Before: all have label n. Between: some have n + 1. After: all have n + 1. A change that failed left some with
    /// n + 1: that very label is then completed on all before there can be n + 2, and what it said is undone in n + 2.
    pub(super) async fn change<M: MetaIo>(
        &mut self,
        io: &M,
        edit: impl FnOnce(&mut ArrayPart),
    ) -> Result<(), LifecycleError> {
        if self.written.sequence != self.label.sequence {
            let written = self.written.clone();
            write_labels(io, &mut self.targets, &written).await?;
            self.label.sequence = written.sequence;
        }
        let mut next = self.label.clone();
        next.sequence += 1;
        edit(&mut next);
        // Before the first await: whatever happens from here on, this number is used up.
        self.written = next.clone();
        write_labels(io, &mut self.targets, &next).await?;
        self.label = next;
        Ok(())
    }
}
