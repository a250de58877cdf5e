//! What the administrator knows of an array with labels, and so what the next start must find.

use std::collections::BTreeSet;

use braid_array_admin::lifecycle::CreateRequest;
use braid_format::{MemberId, Name, StartPolicy, Uuid};
use braid_geometry::{Level, Spec};

use braid_engine::io::LeafId;

use crate::disk::Image;
use crate::rng::Rng;
use crate::world::World;

/// What the next start may find of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expectation {
    /// Its creation was not acknowledged: it exists, or it does not, or its labels say that the creation was
    /// interrupted.
    Creating,
    /// It exists: it must be found and started, with all its data.
    Exists,
    /// Its labels said that its creation was interrupted: it is never served.
    CreateInterrupted,
    /// Its deletion was begun and not acknowledged: it exists, or it does not.
    Deleting,
    /// Its deletion was not acknowledged, but a later scan did not find it. The erasure that the scan saw may be only
    /// in a disk's cache: after a power cut a scan may find the remains again, and the administrator clears them. The
    /// array is never served.
    SeenGone,
    /// It was deleted, or its creation was undone: it must never be found again.
    Deleted,
}

/// The old copy of a disk of an array without redundancy.
#[derive(Default)]
pub enum OldCopy {
    /// There is no copy.
    #[default]
    None,
    /// A copy of this disk was made when the array had been served this many times.
    Made(usize, u64, Image),
    /// The content of this disk was replaced by the copy; the image is the newer content, to be put back.
    Stands(usize, Image),
}

/// An array with labels.
pub struct Labelled {
    /// Its UUID.
    pub uuid: Uuid,
    /// The names that it may have.
    pub names: BTreeSet<String>,
    /// What the next start may find of it.
    pub expected: Expectation,
    /// Its disks, by slot.
    pub disks: Vec<usize>,
    /// A growth was begun and not acknowledged. The array may have grown, and then has these disks.
    pub growing: Option<Vec<usize>>,
    /// Its level and chunk size.
    pub spec: Spec,
    /// The oracle's number, from the first time that it was served.
    pub number: Option<u64>,
    /// Both copies of every label are valid, because the array was stopped cleanly: the simulator may rot one of them.
    pub sound: bool,
    /// A disk failed during a change of the labels. A label write may still be in flight: the simulator rots no label
    /// of this array.
    pub tainted: bool,
    /// How many times it was served.
    pub serves: u64,
    /// The old copy of one of its disks.
    pub old: OldCopy,
    /// Some of its labels were erased while others could not be read. A later scan may find the latter.
    pub scattered: bool,
}

impl Labelled {
    /// Returns whether an old copy has taken the place of one of its disks: then the array is never served.
    pub fn has_old_copy(&self) -> bool {
        matches!(self.old, OldCopy::Stands(..))
    }

    /// Advances one step between two lives: copies a disk; once the array was served after that, replaces the disk's
    /// content by the copy; a life later, restores the newer content.
    pub fn copy_or_restore(&mut self, world: &mut World, chance: &mut Rng) {
        let is_calm = self.expected == Expectation::Exists && self.growing.is_none() && self.disks.len() > 1;
        let all_present = self.disks.iter().all(|disk| !world.disks[*disk].gone);
        self.old = match std::mem::take(&mut self.old) {
            standing @ OldCopy::Stands(..) => {
                self.old = standing;
                return self.put_back(world, chance);
            }
            OldCopy::None if is_calm && all_present && self.serves > 0 && chance.below(3) == 0 => {
                let disk = *chance.pick(&self.disks);
                OldCopy::Made(disk, self.serves, world.disks[disk].image(chance))
            }
            // Only an array that was served since the copy was made has a disk that is newer than the copy.
            OldCopy::Made(disk, serves, copy) if is_calm && all_present && serves < self.serves => {
                let own = world.disks[disk].image(chance);
                if copy.has_size_of(&own) {
                    world.counters.add("fault", "old copy where all are needed");
                    world.note(format_args!("disk {disk} is replaced by an older copy of it"));
                    world.disks[disk].restore(copy, chance);
                    OldCopy::Stands(disk, own)
                } else {
                    OldCopy::None
                }
            }
            OldCopy::Made(..) if self.expected != Expectation::Exists => OldCopy::None,
            other => other,
        };
    }

    /// Puts the disk itself back in its place.
    pub fn put_back(&mut self, world: &mut World, chance: &mut Rng) {
        if let OldCopy::Stands(disk, own) = std::mem::take(&mut self.old) {
            world.note(format_args!("disk {disk} is itself again"));
            world.disks[disk].restore(own, chance);
        }
    }
}

/// Draws the level and chunk size of an array.
pub fn draw_spec(levels: &[Level], rng: &mut Rng) -> Spec {
    let level = *rng.pick(levels);
    let chunk_bytes = 4096 * rng.between(1, 16).next_power_of_two() + if rng.below(4) == 0 { 4096 } else { 0 };
    Spec { chunk_bytes, ..Spec::new(level) }
}

/// Builds a create request, with identities that follow from `serial`.
pub fn request(serial: u64, spec: Spec, leaves: Vec<LeafId>, force: bool, rng: &mut Rng) -> CreateRequest {
    let bits = u128::from(rng.bits()) << 64 | u128::from(serial);
    CreateRequest {
        name: name(serial),
        spec,
        member_ids: leaves.iter().map(|_| MemberId::from_random(rng.bits())).collect(),
        leaves,
        spares: Vec::new(),
        journal: None,
        write_mostly: Vec::new(),
        start_policy: StartPolicy::ByLevel,
        uuid: Uuid::from_bytes(bits.to_be_bytes()),
        lineage: rng.bits(),
        session: rng.bits(),
        created_unix_s: 1_700_000_000 + serial,
        force,
    }
}

/// Returns a name that no other array has.
pub fn name(serial: u64) -> Name {
    Name::new(&format!("a{serial}")).expect("a letter and digits")
}
