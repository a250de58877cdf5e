//! The members of the pool: bare disks, and redundant arrays with their labels and reconcilers. One disk of each may
//! fail.

use std::cell::RefCell;
use std::rc::Rc;

use braid_array_admin::reconciler::StoppedArray;
use braid_engine::Uuid;
use braid_engine::io::DeviceId;
use braid_engine::pool::{EXTENT_BYTES, MemberLayout, PoolDevice};
use braid_format::DiskLayout;
use braid_geometry::{Level, Spec};

use super::oracle::BLOCK;
use super::parameters::{Kind, Parameters};
use crate::disk::{Profile, SimDisk};
use crate::labelled;
use crate::rng::Rng;
use crate::world::World;

/// Devices from this number on are volumes.
pub(super) const MEMBERS_MAX: u32 = 8;
/// Bytes that labels take at the beginning and at the end of a small disk.
const LABELS_BYTES: u64 = (1 << 20) + 8192;

/// One member, over all lives.
pub(super) struct Member {
    pub kind: Kind,
    pub disks: Vec<usize>,
    /// The disk that may fail; on a bare disk perhaps only its extents.
    pub faulty_disk: Option<usize>,
    /// The profile of the faulty disk once the pool has been created.
    pub faulty: Profile,
    pub spec: Spec,
    pub uuid: Option<Uuid>,
    pub exists: bool,
    pub of_pool: PoolDevice,
    /// Where the reconciler of the running array leaves the stopped array.
    pub stopped_array: Option<Rc<RefCell<Option<StoppedArray>>>>,
}

impl Member {
    /// Draws the member of this number, with its disks.
    pub fn draw(number: u32, owner_slots: u32, parameters: &Parameters, world: &mut World, rng: &mut Rng) -> Member {
        let kind = *rng.pick(parameters.kinds);
        let extents = if parameters.is_small { rng.between(5, 12) } else { rng.between(12, 40) } as u32;
        let ring_blocks = *rng.pick(&[38u64, 48, 80, 160]);
        let starts = BLOCK;
        let ring = starts + 2 * BLOCK;
        let owners = ring + ring_blocks * BLOCK;
        let table = owners + u64::from(owner_slots) * 256;
        let records = (extents + *rng.pick(&[1u32, 16, 100])).next_multiple_of(128);
        let addresses = table + u64::from(records) * 32;
        let data = (addresses + u64::from(extents) * 512).next_multiple_of(EXTENT_BYTES);
        let of_pool = PoolDevice {
            number: number as u8,
            device: DeviceId(number),
            layout: MemberLayout { starts, owners, table, addresses, data },
            ring: (ring, ring_blocks),
            extents,
            zero_slots: records - extents,
        };
        let bytes = data + u64::from(extents) * EXTENT_BYTES;
        let (level, count, data_disks) = match kind {
            Kind::Bare => (Level::Concat, 1, 1),
            Kind::Mirror => {
                let count = rng.between(2, 3);
                (Level::Raid1, count, 1)
            }
            Kind::Parity => {
                let count = rng.between(3, 4);
                (Level::Raid5, count, count - 1)
            }
        };
        let spec = labelled::draw_spec(&[level], rng);
        let each = match kind {
            Kind::Bare => bytes,
            // Space for whole stripes.
            _ => LABELS_BYTES + (bytes.div_ceil(data_disks) + 2 * spec.chunk_bytes).next_multiple_of(BLOCK),
        };
        let disks: Vec<usize> = (0..count)
            .map(|_| {
                let disk = world.disks.len();
                let mut profile = Profile::healthy(rng);
                profile.slow = parameters.slow.unwrap_or(profile.slow);
                let junk = kind == Kind::Bare || rng.coin();
                world.disks.push(SimDisk::new(disk as u64, each, junk, profile));
                disk
            })
            .collect();
        for disk in disks.iter().filter(|_| kind != Kind::Bare) {
            let layout = DiskLayout::for_device(each).expect("a disk that has room for labels");
            world.bitmaps.insert(*disk, (layout.bitmap.start, layout.bitmap.start + layout.bitmap.bytes));
            if kind == Kind::Parity {
                world.journals.insert(*disk, (layout.journal.start, layout.journal.start + layout.journal.bytes));
            }
        }
        let faulty_disk = (kind != Kind::Bare && parameters.faults).then(|| *rng.pick(&disks));
        let mut faulty = Profile::faulty(rng);
        let faulty_disk = if kind == Kind::Bare && parameters.own_faults {
            faulty = Profile {
                write_error: rng.between(500, 20_000) as u32,
                instant: false,
                ..world.disks[disks[0]].profile
            };
            Some(disks[0])
        } else if kind == Kind::Bare && parameters.data_faults {
            // The pool's own data have no second copy.
            world.spared.insert(disks[0], data);
            faulty.slow = parameters.slow.unwrap_or(faulty.slow);
            faulty.write_error = rng.between(2_000, 40_000) as u32;
            faulty.hang = rng.probability(parameters.hang).max(parameters.hang / 4);
            Some(disks[0])
        } else {
            faulty_disk
        };
        Member { kind, disks, faulty_disk, faulty, spec, uuid: None, exists: false, of_pool, stopped_array: None }
    }

    /// Lets the faulty disk fail from now on; or, without `faults`, repairs all disks.
    pub fn set_faults(&self, faults: bool, world: &mut World) {
        for disk in &self.disks {
            let of = &mut world.disks[*disk];
            if !faults {
                (of.profile, of.gone) = (of.profile.repaired(), false);
                of.heal();
            } else if self.faulty_disk == Some(*disk) {
                of.profile = self.faulty;
            }
        }
    }
}
