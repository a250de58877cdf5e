//! What the administrator knows of an array with labels, and so what must be found again.

use std::collections::BTreeSet;

use braid_engine::lifecycle::CreateRequest;
use braid_format::{MemberId, Name, StartPolicy, Uuid};
use braid_geometry::{Level, Spec};

use braid_engine::io::LeafId;

use crate::disk::Image;
use crate::rng::Rng;
use crate::world::World;

/// What may be expected of an array at the next start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// Its creation was never acknowledged: it is there, or it is not, or it says that it was interrupted.
    Unborn,
    /// It exists: it must be found, started, and whole.
    Alive,
    /// It said that its creation was interrupted: it is never served.
    Interrupted,
    /// Its deletion was begun and not acknowledged: it is there, or it is not.
    Dying,
    /// Nobody was told that it is gone, but it was seen that it is. What was seen may have been in a cache: after a
    /// power cut its remains may turn up once more, to be cleared away again. It is never served.
    Fading,
    /// It was deleted, or its creation was undone: it must never be seen again.
    Gone,
}

/// The old copy of a disk of an array that cannot do without it.
#[derive(Default)]
pub enum OldCopy {
    /// There is none.
    #[default]
    None,
    /// A copy was made of this disk, when the array had been served so often.
    Made(usize, u64, Image),
    /// The copy stands in the place of this disk, of which this is everything.
    Stands(usize, Image),
}

/// One array with labels.
pub struct Labelled {
    /// Its identity.
    pub uuid: Uuid,
    /// The names that it may have.
    pub names: BTreeSet<String>,
    /// What may be expected of it.
    pub promise: Promise,
    /// Its disks, by role.
    pub disks: Vec<usize>,
    /// A growth was begun and not answered: it may be larger, on these disks.
    pub growing: Option<Vec<usize>>,
    /// How it is put together.
    pub spec: Spec,
    /// The oracle's number, from the first time it was served.
    pub number: Option<u64>,
    /// Both copies of every label are whole: it was stopped in order.
    pub sound: bool,
    /// A disk made an error in the middle of a change, so that a write may still be on its way.
    pub tainted: bool,
    /// How often it was served.
    pub serves: u64,
    /// The old copy of one of its disks.
    pub old: OldCopy,
    /// Some of its labels were erased while others could not be read: those may turn up again.
    pub scattered: bool,
}

impl Labelled {
    /// Whether an old copy of one of its disks is in that disk's place: then it is never served.
    pub fn has_old_copy(&self) -> bool {
        matches!(self.old, OldCopy::Stands(..))
    }

    /// Between two lives somebody copies a disk, puts the copy in its place once the array was served again, and the disk
    /// itself a life later.
    pub fn copy_or_restore(&mut self, world: &mut World, chance: &mut Rng) {
        let is_calm = self.promise == Promise::Alive && self.growing.is_none() && self.disks.len() > 1;
        let all_here = self.disks.iter().all(|disk| !world.disks[*disk].gone);
        self.old = match std::mem::take(&mut self.old) {
            standing @ OldCopy::Stands(..) => {
                self.old = standing;
                return self.put_back(world, chance);
            }
            OldCopy::None if is_calm && all_here && self.serves > 0 && chance.below(3) == 0 => {
                let disk = *chance.pick(&self.disks);
                OldCopy::Made(disk, self.serves, world.disks[disk].image(chance))
            }
            // What was copied and was never served since is no older than the disk.
            OldCopy::Made(disk, serves, copy) if is_calm && all_here && serves < self.serves => {
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
            OldCopy::Made(..) if self.promise != Promise::Alive => OldCopy::None,
            other => other,
        };
    }

    /// The disk itself is in its place again.
    pub fn put_back(&mut self, world: &mut World, chance: &mut Rng) {
        if let OldCopy::Stands(disk, own) = std::mem::take(&mut self.old) {
            world.note(format_args!("disk {disk} is itself again"));
            world.disks[disk].restore(own, chance);
        }
    }
}

/// Level and chunk for an array.
pub fn draw_spec(levels: &[Level], rng: &mut Rng) -> Spec {
    let level = *rng.pick(levels);
    let chunk_bytes = 4096 * rng.between(1, 16).next_power_of_two() + if rng.below(4) == 0 { 4096 } else { 0 };
    Spec { chunk_bytes, ..Spec::new(level) }
}

/// A request for a new array, with identities that follow from `serial`.
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

/// A name that no other array has.
pub fn name(serial: u64) -> Name {
    Name::new(&format!("a{serial}")).expect("a letter and digits")
}
