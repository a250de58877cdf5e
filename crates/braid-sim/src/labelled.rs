//! What the administrator knows of an array with labels, and so what must be found again.

use std::collections::BTreeSet;

use braid_engine::lifecycle::CreateRequest;
use braid_format::{MemberId, Name, StartPolicy, Uuid};
use braid_geometry::{Level, Spec};

use braid_engine::io::LeafId;

use crate::rng::Rng;

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

/// One array with labels.
#[derive(Clone, Debug)]
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
    /// Some of its labels were erased while others could not be read: those may turn up again.
    pub scattered: bool,
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
