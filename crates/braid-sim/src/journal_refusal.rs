//! A check of the starts that were refused because the journal was missing.

use std::collections::{BTreeMap, BTreeSet};

use braid_engine::io::LeafId;
use braid_format::{Label, MemberId, MemberState};

use crate::copies::label_on;
use crate::mirrors::Mirror;
use crate::oracle::Violation;
use crate::world::World;

/// A start that was refused because the journal was missing, to be checked: the refusal must have been right.
pub struct JournalRefusal {
    pub(crate) index: usize,
    /// The disks that were present.
    present: BTreeSet<usize>,
    /// The array is known to have been stopped cleanly.
    stopped: bool,
}

impl JournalRefusal {
    /// Records the refusal for this array, with these disks.
    pub fn new(index: usize, leaves: &BTreeMap<usize, LeafId>, present: &[LeafId], stopped: bool) -> JournalRefusal {
        let present = leaves.iter().filter(|(_, leaf)| present.contains(leaf)).map(|(disk, _)| *disk).collect();
        JournalRefusal { index, present, stopped }
    }

    /// Checks that the refusal was right.
    ///
    /// # Errors
    /// The array had to start.
    pub fn check(&self, world: &World, mirrors: &[Mirror]) -> Result<(), Violation> {
        let mirror = &mirrors[self.index];
        let journal = &mirror.journal;
        let why = if world.had_faults() || !mirror.diverged.is_empty() || !mirror.old.is_empty() {
            return Ok(());
        } else if self.stopped {
            "it was stopped in order"
        } else if journal.holders.is_empty() {
            "its journal is on its members"
        } else if !journal.lacks(&self.present, world) {
            "the disk of its journal is present"
        } else if mirror.has_all(&self.present, world) {
            "all its members are present and in sync"
        } else {
            return Ok(());
        };
        Err(Violation(format!("mirror {} waits for the disk of its journal, but {why}", self.index)))
    }
}

impl Mirror {
    /// Returns whether all members are among these disks, and in sync by the newest label and by their own.
    pub fn has_all(&self, present: &BTreeSet<usize>, world: &World) -> bool {
        let own = |disk: &usize| label_on(world, *disk).filter(|label| Some(label.array.uuid) == self.uuid);
        let disks =
            self.disks.iter().chain(&self.others).filter(|disk| present.contains(disk) && !world.disks[**disk].gone);
        let labels: Vec<Label> = disks.filter_map(own).collect();
        let Some(newest) = labels.iter().max_by_key(|label| label.array.order()) else { return false };
        let calls = |label: &Label, id: MemberId| {
            label.array.members.iter().any(|m| m.id == Some(id) && m.state == MemberState::InSync)
        };
        let is_present =
            |id: MemberId| labels.iter().any(|label| label.member.id == id && calls(label, id) && calls(newest, id));
        let slots = &newest.array.members[..self.disks.len().min(newest.array.members.len())];
        slots.iter().all(|slot| slot.id.is_some_and(is_present))
    }
}
