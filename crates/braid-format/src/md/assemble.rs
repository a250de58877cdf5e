//! Assembles an array from the superblocks of its devices.

use std::collections::BTreeMap;

use braid_geometry::{CHUNK_BYTES_MAX, Geometry, Layout, Level, MEMBERS_MAX, Spec, ZonePolicy};
use uuid::Uuid;

use super::superblock::feature;
use super::{AssembleProblem, Role, Superblock};

/// Maximum number of events by which a current member's superblock may be behind the newest, as in md: md writes the
/// superblocks one after another, and a crash may come between them.
const EVENTS_BEHIND_MAX: u64 = 1;

/// How to assemble an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AssembleOptions {
    /// Use stale members where they are needed, and reconstruct from parity that may be wrong.
    pub force: bool,
    /// The layout of a raid0 whose superblocks do not record one.
    pub layout: Option<Layout>,
}

/// State of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotState {
    /// The member is present and current.
    Current,
    /// No device of the member is present.
    Missing,
    /// The member is stale: its superblock is behind the newest by more than one event, differs from it in level,
    /// layout, chunk, size or number of members, or claims a role that the newest does not give it (because md has
    /// marked it as failed, for example).
    Stale {
        /// The number of events by which it is behind the newest superblock.
        behind: u64,
    },
    /// The member was being rebuilt.
    Rebuilding {
        /// How much of its data is rebuilt, in bytes.
        done_bytes: u64,
    },
}

/// A slot of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberSlot {
    /// Index of the device, if there is one.
    pub device: Option<usize>,
    /// State of the slot.
    pub state: SlotState,
    /// Whether data are read from it.
    pub used: bool,
}

/// An array of md, as its superblocks describe it.
#[derive(Clone, Debug)]
pub struct MdArray {
    /// Its identity.
    pub uuid: Uuid,
    /// Its name; mdadm writes `host:name`.
    pub name: String,
    /// Its level, as md calls it.
    pub level: String,
    /// Its layout, as mdadm calls it; empty where the level has one only.
    pub layout: String,
    /// Its chunk in bytes; 0: none.
    pub chunk_bytes: u64,
    /// The minor version of its superblocks.
    pub minor: u8,
    /// Events of the newest superblock.
    pub events: u64,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// When it was last changed, in seconds since 1970.
    pub updated_unix_s: u64,
    /// The array was stopped cleanly, or has no redundancy that could be inconsistent.
    pub clean: bool,
    /// The slots, by role.
    pub slots: Vec<MemberSlot>,
    /// Devices of the array that are not members: spares and failed devices.
    pub non_members: Vec<usize>,
    /// Why the array is not readable; empty: it is readable.
    pub problems: Vec<AssembleProblem>,
    /// What a reader of the data has to know, one sentence each, without its full stop.
    pub warnings: Vec<String>,
    /// The geometry, if known.
    pub geometry: Option<Geometry>,
}

impl MdArray {
    /// Returns whether any slot has no member in use.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.slots.iter().any(|slot| !slot.used)
    }
}

/// Groups devices by array, as indices in their order.
#[must_use]
pub fn groups(devices: &[Superblock]) -> BTreeMap<Uuid, Vec<usize>> {
    let mut groups: BTreeMap<Uuid, Vec<usize>> = BTreeMap::new();
    for (index, device) in devices.iter().enumerate() {
        groups.entry(device.array).or_default().push(index);
    }
    groups
}

/// Assembles the devices of one array: at least one, all of the same array.
///
/// # Panics
/// Without a device.
#[must_use]
pub fn assemble(devices: &[Superblock], options: AssembleOptions) -> MdArray {
    let newest = devices.iter().rev().max_by_key(|device| device.events).expect("an array has a device");
    let mut array = MdArray {
        uuid: newest.array,
        name: newest.name.clone(),
        level: level_name(newest.level),
        layout: layout_name(newest),
        chunk_bytes: newest.chunk_bytes,
        minor: newest.minor,
        events: newest.events,
        created_unix_s: newest.created_unix_s,
        updated_unix_s: newest.updated_unix_s,
        clean: newest.resync_bytes.is_none() || matches!(newest.level, -1 | 0),
        slots: Vec::new(),
        non_members: Vec::new(),
        problems: refused_features(newest),
        warnings: Vec::new(),
        geometry: None,
    };
    if newest.members == 0 || newest.members as usize > MEMBERS_MAX {
        let what = format!("it has {} members, and 1 to {MEMBERS_MAX} can be read", newest.members);
        array.problems.push(AssembleProblem::Numbers(what));
        return array;
    }
    assign_slots(&mut array, devices, newest);
    let spec = match spec_of(newest) {
        Ok(spec) => spec,
        Err(problem) => {
            array.problems.push(problem);
            return array;
        }
    };
    choose(&mut array, devices, &spec, options);
    lay_out(&mut array, devices, newest, spec, options);
    warn(&mut array, newest, &spec);
    array
}

fn refused_features(newest: &Superblock) -> Vec<AssembleProblem> {
    let mut problems = Vec::new();
    if newest.features & !feature::KNOWN != 0 {
        problems.push(AssembleProblem::Features(newest.features & !feature::KNOWN));
    }
    if newest.has(feature::RESHAPE | feature::RESHAPE_BACKWARDS | feature::NEW_OFFSET) {
        problems.push(AssembleProblem::Reshape);
    }
    if newest.has(feature::JOURNAL) {
        problems.push(AssembleProblem::Journal);
    }
    if newest.has(feature::CLUSTERED) {
        problems.push(AssembleProblem::Clustered);
    }
    problems
}

/// Assigns each device to the slot of its role, if the newest superblock agrees.
fn assign_slots(array: &mut MdArray, devices: &[Superblock], newest: &Superblock) {
    array.slots = vec![MemberSlot { device: None, state: SlotState::Missing, used: false }; newest.members as usize];
    for (index, device) in devices.iter().enumerate() {
        let role = match device.role() {
            Role::Member(role) if u32::from(role) < newest.members => role,
            _ => {
                array.non_members.push(index);
                continue;
            }
        };
        let behind = newest.events - device.events;
        let agrees = newest.role_of(device.device_number) == Role::Member(role);
        let same = |of: &Superblock| (of.level, of.layout, of.chunk_bytes, of.members, of.used_bytes);
        let state = match device.recovered_bytes {
            _ if behind > EVENTS_BEHIND_MAX || !agrees || same(device) != same(newest) => SlotState::Stale { behind },
            Some(done_bytes) => SlotState::Rebuilding { done_bytes },
            None if device.has(feature::RECOVERY_BITMAP) => SlotState::Rebuilding { done_bytes: 0 },
            None => SlotState::Current,
        };
        // Two devices that are equally new have each marked the other as failed.
        let left = newest.role_of(device.device_number) == Role::Faulty;
        if left && behind == 0 && device.role_of(newest.device_number) == Role::Faulty {
            let one = devices.iter().position(|other| std::ptr::eq(other, newest)).unwrap_or(0);
            array.problems.push(AssembleProblem::Diverged { one, other: index });
        }
        let taken = array.slots[usize::from(role)];
        let this = MemberSlot { device: Some(index), state, used: false };
        let Some(other) = taken.device else {
            array.slots[usize::from(role)] = this;
            continue;
        };
        // A slot may have a second device, a replacement that md was filling from the first. A current device is
        // preferred. Of two current ones the original is used; of two that are not, the one with more events.
        let replaces = |of: usize| devices[of].has(feature::REPLACEMENT);
        let both = taken.state == SlotState::Current && state == SlotState::Current;
        if both && replaces(index) == replaces(other) {
            array.problems.push(AssembleProblem::DuplicateRole { role, one: other, other: index });
        }
        let better = match (taken.state, state) {
            (SlotState::Current, SlotState::Current) => replaces(other) && !replaces(index),
            (SlotState::Current, _) => false,
            (_, SlotState::Current) => true,
            _ => device.events > devices[other].events,
        };
        if better {
            array.slots[usize::from(role)] = this;
        }
        array.non_members.push(if better { other } else { index });
    }
}

/// Chooses the members to read from.
fn choose(array: &mut MdArray, devices: &[Superblock], spec: &Spec, options: AssembleOptions) {
    for slot in &mut array.slots {
        slot.used = slot.state == SlotState::Current;
    }
    if covers(spec, &array.slots) {
        return;
    }
    // The least stale first.
    let mut old: Vec<(u64, usize)> = array
        .slots
        .iter()
        .enumerate()
        .filter_map(|(role, slot)| match slot.state {
            SlotState::Stale { behind } if fits(devices, slot, array.slots.len()) => Some((behind, role)),
            _ => None,
        })
        .collect();
    old.sort_unstable();
    let mut with = array.slots.clone();
    let mut taken = Vec::new();
    for (behind, role) in old {
        with[role].used = true;
        taken.extend(with[role].device.map(|device| (device, behind)));
        if covers(spec, &with) {
            break;
        }
    }
    if !covers(spec, &with) {
        let lacking = array.slots.iter().zip(0..).filter(|(slot, _)| !slot.used).map(|(_, role)| role);
        array.problems.push(AssembleProblem::TooFew { missing: lacking.collect() });
    } else if options.force {
        array.warnings.push("members are read that are old: what was written since they were left out is mixed with what stood there before".into());
        array.slots = with;
    } else {
        array.problems.push(AssembleProblem::Stale { devices: taken });
    }
}

/// Returns whether a stale device records the array's number of members.
fn fits(devices: &[Superblock], slot: &MemberSlot, members: usize) -> bool {
    slot.device.is_some_and(|device| devices[device].members as usize == members)
}

/// Returns whether all data are readable from the members in use.
fn covers(spec: &Spec, slots: &[MemberSlot]) -> bool {
    let width = slots.len();
    let lost = slots.iter().filter(|slot| !slot.used).count();
    let copies = usize::from(spec.copies);
    match spec.level {
        Level::Concat | Level::Raid0 => lost == 0,
        Level::Raid1 => lost < width,
        Level::Raid5 => lost <= 1,
        Level::Raid6 => lost <= 2,
        // The layout repeats after as many chunks as there are members.
        Level::Raid10 => (0..width).all(|chunk| {
            let first = if spec.layout == Layout::Near { chunk * copies } else { chunk };
            (first..first + copies).any(|cell| slots[cell % width].used)
        }),
    }
}

/// Returns the spec that md's numbers stand for.
fn spec_of(newest: &Superblock) -> Result<Spec, AssembleProblem> {
    let layout = newest.layout;
    let level = match newest.level {
        -1 => Level::Concat,
        0 => Level::Raid0,
        1 => Level::Raid1,
        4 | 5 => Level::Raid5,
        6 => Level::Raid6,
        10 => Level::Raid10,
        other => return Err(AssembleProblem::Level(other)),
    };
    let mut spec = Spec { zones: ZonePolicy::Single, chunk_bytes: newest.chunk_bytes, ..Spec::new(level) };
    let unknown = AssembleProblem::Layout { level: level.name(), layout };
    match newest.level {
        -1 | 1 => spec.chunk_bytes = 4096,
        0 => spec.zones = ZonePolicy::All,
        4 => spec.layout = Layout::ParityLast,
        5 | 6 => {
            let known = PARITY_LAYOUTS.iter().find(|(number, _)| *number == layout).ok_or(unknown)?;
            spec.layout = known.1;
            if !level.layouts().contains(&known.1) && !level.md_only_layouts().contains(&known.1) {
                return Err(AssembleProblem::Layout { level: level.name(), layout });
            }
        }
        _ => {
            let (near, far, offset) = (layout & 0xff, layout >> 8 & 0xff, layout & 1 << 16 != 0);
            (spec.layout, spec.copies) = match (near, far, offset, layout >> 17) {
                (2.., 1, false, 0) => (Layout::Near, near as u16),
                (1, 2.., false, 0) => (Layout::Far, far as u16),
                (1, 2.., true, 0) => (Layout::Offset, far as u16),
                _ => return Err(unknown),
            };
        }
    }
    if level == Level::Raid1 && newest.members == 1 {
        spec.copies = 1;
    }
    let chunk = spec.chunk_bytes;
    let even = level == Level::Raid0 || chunk.is_power_of_two();
    if chunk == 0 || !chunk.is_multiple_of(4096) || chunk > CHUNK_BYTES_MAX || !even {
        let what = format!("its chunk of {chunk} bytes is none that can be read (4 KiB to 64 MiB, in blocks of 4 KiB)");
        return Err(AssembleProblem::Numbers(what));
    }
    Ok(spec)
}

/// `ALGORITHM_*` in drivers/md/raid5.h, without those that only other formats of metadata have.
const PARITY_LAYOUTS: [(u32, Layout); 11] = [
    (0, Layout::LeftAsymmetric),
    (1, Layout::RightAsymmetric),
    (2, Layout::LeftSymmetric),
    (3, Layout::RightSymmetric),
    (4, Layout::ParityFirst),
    (5, Layout::ParityLast),
    (16, Layout::LeftAsymmetric6),
    (17, Layout::RightAsymmetric6),
    (18, Layout::LeftSymmetric6),
    (19, Layout::RightSymmetric6),
    (20, Layout::ParityFirst6),
];

fn level_name(level: i32) -> String {
    if level == -1 { "linear".to_owned() } else { format!("raid{level}") }
}

/// Returns the layout's name as mdadm writes it.
fn layout_name(newest: &Superblock) -> String {
    let layout = newest.layout;
    match (newest.level, spec_of(newest)) {
        (0, _) if newest.has(feature::RAID0_LAYOUT) => match layout {
            1 => "original".to_owned(),
            2 => "alternate".to_owned(),
            other => format!("{other:#x}"),
        },
        (-1..=1 | 4, _) => String::new(),
        (10, Ok(spec)) => format!("{}={}", spec.layout, spec.copies),
        (_, Ok(spec)) => spec.layout.to_string(),
        (_, Err(_)) => format!("{layout:#x}"),
    }
}

/// Determines the geometry, or the problems that prevent it.
fn lay_out(array: &mut MdArray, devices: &[Superblock], newest: &Superblock, mut spec: Spec, options: AssembleOptions) {
    let shared = !matches!(spec.level, Level::Concat | Level::Raid0);
    let data_bytes_of = |slot: &MemberSlot| {
        let device = slot.device.map(|device| &devices[device]);
        match shared {
            true => Some(newest.used_bytes),
            false => device.map(|device| device.data_bytes),
        }
    };
    for (role, slot) in array.slots.iter().enumerate().filter(|(_, slot)| shared && slot.used) {
        if slot.device.is_some_and(|device| devices[device].data_bytes < newest.used_bytes) {
            let what = format!("member {role} has less room for data than the array uses of each");
            array.problems.push(AssembleProblem::Numbers(what));
            return;
        }
    }
    let Some(mut sizes) = array.slots.iter().map(data_bytes_of).collect::<Option<Vec<u64>>>() else { return };
    if spec.level == Level::Concat && newest.chunk_bytes > 0 {
        sizes.iter_mut().for_each(|bytes| *bytes -= *bytes % newest.chunk_bytes);
    }
    let plan = |spec: Spec| {
        Geometry::imported(spec, &sizes)
            .map_err(|error| AssembleProblem::Numbers(format!("its members cannot be laid out: {error}")))
    };
    if spec.level == Level::Raid0 {
        let recorded = newest.has(feature::RAID0_LAYOUT);
        let layouts = [(1, Layout::Original), (2, Layout::Alternate)];
        let written =
            layouts.iter().find(|(number, _)| recorded && *number == newest.layout).map(|(_, layout)| *layout);
        let zones = plan(Spec { layout: Layout::Alternate, ..spec }).map_or(1, |geometry| geometry.zones().len());
        match (written, options.layout) {
            (Some(written), None) => spec.layout = written,
            (Some(written), Some(requested)) if written == requested => spec.layout = written,
            (None, Some(requested @ (Layout::Original | Layout::Alternate))) => spec.layout = requested,
            (_, Some(requested)) => array.problems.push(AssembleProblem::RequestedLayout(requested)),
            // With one zone both layouts are the same.
            (None, None) if zones == 1 => spec.layout = Layout::Alternate,
            (None, None) => array.problems.push(AssembleProblem::Raid0Layout),
        }
    } else if let Some(requested) = options.layout.filter(|requested| *requested != spec.layout) {
        array.problems.push(AssembleProblem::RequestedLayout(requested));
    }
    match plan(spec) {
        Ok(geometry) => array.geometry = Some(geometry),
        Err(problem) => array.problems.push(problem),
    }
    let lacks = array.slots.iter().any(|slot| !slot.used);
    if spec.level.parity() > 0 && lacks && !array.clean {
        match options.force {
            false => array.problems.push(AssembleProblem::DirtyDegraded),
            true => array.warnings.push("it was not stopped in order and lacks a member: what is computed from parity may be wrong where it was being written".into()),
        }
    }
}

/// Adds what a reader of the data has to know.
fn warn(array: &mut MdArray, newest: &Superblock, spec: &Spec) {
    let computed = spec.level.parity() > 0 && array.is_degraded();
    if !array.clean && !computed {
        let done = newest.resync_bytes.filter(|done| *done > 0);
        let from = done.map_or_else(String::new, |done| format!(" from byte {done} of each member on"));
        array.warnings.push(match spec.level.parity() {
            0 => format!("it was not stopped in order: its copies may differ{from}, and one of them is read, always the same while nothing fails"),
            _ => format!("it was not stopped in order: its parity may be wrong{from}; nothing is computed from it while all members can be read"),
        });
    }
    if newest.has(feature::PPL | feature::MULTIPLE_PPLS) && !array.clean {
        array.warnings.push("its partial parity log is not replayed".to_owned());
    }
    for (role, slot) in array.slots.iter().enumerate() {
        let what = match slot.state {
            SlotState::Current => continue,
            _ if slot.used => continue,
            SlotState::Missing => "missing".to_owned(),
            SlotState::Stale { behind: 0 | 1 } => "left out by the others, and not read".to_owned(),
            SlotState::Stale { behind } => format!("{behind} events behind the others, and not read"),
            SlotState::Rebuilding { .. } => "not yet filled, and not read".to_owned(),
        };
        array.warnings.push(format!("member {role} is {what}"));
    }
}
