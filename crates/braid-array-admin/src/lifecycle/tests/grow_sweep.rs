//! Cuts the power, or kills the process, at every step of a growth, and again during the recovery.
//!
//! The oracle checks guarantees only. With all disks present the array starts, with the old or the new size, and with
//! the new one once that was acknowledged; its content is where it was; new space of a redundant array reads as zeros;
//! no label is left where a copy was. With some disks present, a mirror starts as it would at any other time.

use std::ops::Range;

use braid_engine::{LeafId, MetaIo};
use braid_format::{Label, MAGIC, MemberId, MemberState, copy_offset};
use braid_geometry::{Level, Spec};

use super::disks::{Chance, Crash, Disks};
use super::mirrors::{raid1, raid10, redundant};
use super::{leaves, request, run};
use crate::lifecycle::{
    Array, ArrayStatus, CreateRequest, DiskOutcome, GrowRequest, LifecycleError, StartOptions, create, load_regions,
    recover_journal, scan, start,
};

const MIB: u64 = 1 << 20;
/// The number of old members, and of disks in all.
const OLD: u32 = 3;
const DISKS: u32 = 6;

/// What grows, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    /// Two further disks.
    ConcatByDisks,
    Raid0ByDisks,
    /// A member has become larger.
    ConcatByMember,
    /// All members have become larger, and there is a further disk.
    Raid0ByBoth,
    Raid1,
    /// To a size that one block of the bitmap does not cover; a spare has become larger too.
    Raid1Far,
    /// Two of three members.
    Raid10,
    /// All three members: the last zone becomes higher.
    Raid5,
    /// Two of three: a further zone, of these two.
    Raid5Zone,
    /// All three, by different amounts: the zone becomes higher, and a further one would be too narrow.
    Raid6,
    /// Two further disks, besides a spare.
    Raid1ByDisks,
    Raid10ByDisks,
    Raid5ByDisks,
    /// Two further disks, and all members have become larger: one zone of the new disks, one of all.
    Raid5ByBoth,
    /// Three further disks.
    Raid6ByDisks,
}

const ACTS: [Act; 15] = [
    Act::ConcatByDisks,
    Act::Raid0ByDisks,
    Act::ConcatByMember,
    Act::Raid0ByBoth,
    Act::Raid1,
    Act::Raid1Far,
    Act::Raid10,
    Act::Raid5,
    Act::Raid5Zone,
    Act::Raid6,
    Act::Raid1ByDisks,
    Act::Raid10ByDisks,
    Act::Raid5ByDisks,
    Act::Raid5ByBoth,
    Act::Raid6ByDisks,
];

impl Act {
    fn is_redundant(self) -> bool {
        matches!(self, Act::Raid1 | Act::Raid1Far | Act::Raid10 | Act::Raid1ByDisks | Act::Raid10ByDisks)
            || self.parity()
    }

    fn parity(self) -> bool {
        matches!(self, Act::Raid5 | Act::Raid5Zone | Act::Raid6 | Act::Raid6ByDisks)
            || matches!(self, Act::Raid5ByDisks | Act::Raid5ByBoth)
    }

    /// The number of its spares, before and after.
    fn spares(self) -> usize {
        usize::from(matches!(self, Act::Raid1Far | Act::Raid1ByDisks | Act::Raid5ByDisks))
    }

    fn create(self) -> CreateRequest {
        let with_spare = |request: CreateRequest| CreateRequest {
            spares: vec![(LeafId(3), MemberId::from_random(0x5a))],
            ..request
        };
        let plain = |level: Level| request("g", Spec { chunk_bytes: 65_536, ..Spec::new(level) }, 1, leaves(OLD));
        match self {
            Act::ConcatByDisks | Act::ConcatByMember => plain(Level::Concat),
            Act::Raid0ByDisks | Act::Raid0ByBoth => plain(Level::Raid0),
            Act::Raid1 => raid1("g", 1, leaves(OLD)),
            Act::Raid1Far | Act::Raid1ByDisks => with_spare(raid1("g", 1, leaves(OLD))),
            Act::Raid10 | Act::Raid10ByDisks => raid10("g", 1, leaves(OLD)),
            Act::Raid5 | Act::Raid5Zone | Act::Raid5ByBoth => redundant(Level::Raid5, "g", 1, leaves(OLD)),
            Act::Raid5ByDisks => with_spare(redundant(Level::Raid5, "g", 1, leaves(OLD))),
            Act::Raid6 | Act::Raid6ByDisks => redundant(Level::Raid6, "g", 1, leaves(OLD)),
        }
    }

    /// The disks that have become larger when it begins, and their sizes.
    fn larger(self) -> Vec<(LeafId, u64)> {
        let all = |size: u64, count: u32| leaves(count).into_iter().map(|leaf| (leaf, size)).collect::<Vec<_>>();
        match self {
            Act::ConcatByDisks | Act::Raid0ByDisks => Vec::new(),
            Act::Raid1ByDisks | Act::Raid10ByDisks | Act::Raid5ByDisks | Act::Raid6ByDisks => Vec::new(),
            Act::ConcatByMember => vec![(LeafId(1), 5 * MIB)],
            Act::Raid0ByBoth => all(4 * MIB, OLD),
            Act::Raid1 => vec![(LeafId(0), 5 * MIB), (LeafId(1), 6 * MIB), (LeafId(2), 6 * MIB + 512)],
            Act::Raid1Far => all(1100 * MIB, 4),
            Act::Raid10 | Act::Raid5Zone => vec![(LeafId(0), 7 * MIB), (LeafId(2), 5 * MIB)],
            Act::Raid5 | Act::Raid5ByBoth => all(6 * MIB, OLD),
            Act::Raid6 => vec![(LeafId(0), 5 * MIB), (LeafId(1), 6 * MIB), (LeafId(2), 7 * MIB)],
        }
    }

    fn request(self) -> GrowRequest {
        let new: &[u32] = match self {
            Act::ConcatByDisks | Act::Raid0ByDisks => &[3, 4],
            Act::Raid0ByBoth => &[3],
            Act::Raid1ByDisks | Act::Raid10ByDisks | Act::Raid5ByDisks => &[4, 5],
            Act::Raid5ByBoth => &[3, 4],
            Act::Raid6ByDisks => &[3, 4, 5],
            _ => &[],
        };
        let id = |leaf: &u32| (LeafId(*leaf), MemberId::from_random(0xf00 + u64::from(*leaf)));
        // Two of the three gain more than the third; two further disks have two copies.
        let fewer = matches!(self, Act::Raid1 | Act::Raid1ByDisks);
        GrowRequest { new_disks: new.iter().map(id).collect(), force: fewer }
    }
}

/// Writes its offset into a block of the array, on every copy.
fn stamp(disks: &Disks, array: &Array, at: u64) {
    for (leaf, offset) in copies(array, at) {
        let mut bytes = vec![0; 512];
        bytes[..8].copy_from_slice(&at.to_le_bytes());
        bytes[8..16].copy_from_slice(b"stamped!");
        disks.poke(leaf, offset, &bytes);
    }
}

fn copies(array: &Array, at: u64) -> Vec<(LeafId, u64)> {
    let mut found = Vec::new();
    array.geometry().copies(at, &mut |piece| {
        let member = array.members().find(|m| m.number == piece.member && m.state == MemberState::InSync);
        found.extend(member.map(|m| (m.leaf, m.part.layout.data.start + piece.member_offset)));
    });
    found
}

/// Returns offsets all over the smaller array, including both ends.
fn sample_offsets(size: u64) -> Vec<u64> {
    (0..16).map(|k| size / 16 * k / 4096 * 4096).chain([size - 4096]).collect()
}

/// Creates the array before the growth, with some content; then its disks become larger.
fn before(act: Act, disks: &Disks) -> Array {
    let array = run(create(disks, &act.create())).unwrap();
    sample_offsets(array.geometry().size_bytes()).into_iter().for_each(|at| stamp(disks, &array, at));
    act.larger().into_iter().for_each(|(leaf, size)| disks.resize(leaf, size));
    array
}

fn new_disks() -> Disks {
    Disks::new(&[3 * MIB, 4 * MIB, 3 * MIB + 512, 4 * MIB, 3 * MIB, 5 * MIB])
}

fn start_of(disks: &Disks, present: &[LeafId], random: u64) -> Result<Option<Array>, String> {
    let found = run(scan(disks, present));
    let Some(array) = found.arrays.iter().find(|a| a.uuid.as_bytes()[0] == 1) else { return Ok(None) };
    if let ArrayStatus::Refused { .. } = array.status {
        return Err(format!("refused: {}", array.status));
    }
    if !array.status.starts_by_itself() {
        return Ok(None);
    }
    let started = run(start(disks, array, StartOptions::new(random, random)));
    started.map(Some).map_err(|error| format!("{} and not started: {error}", array.status))
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    crashes: u64,
    second_crashes: u64,
    smaller: u64,
    larger: u64,
    waited: u64,
    pulled: u64,
}

struct Sizes {
    before: u64,
    after: u64,
}

/// Checks the guarantees of a started array. Returns whether it is the larger one.
fn holds(disks: &Disks, array: &Array, act: Act, sizes: &Sizes) -> Result<bool, String> {
    let size = array.geometry().size_bytes();
    if size != array.label().array_bytes || size != sizes.before && size != sizes.after {
        return Err(format!("it has {size} bytes, neither {} nor {}", sizes.before, sizes.after));
    }
    for at in sample_offsets(sizes.before) {
        for (leaf, offset) in copies(array, at) {
            let bytes = disks.peek(leaf, offset, 512);
            if bytes[..8] != at.to_le_bytes() || &bytes[8..16] != b"stamped!" {
                return Err(format!("byte {at} of the array is not on disk {} at {offset}", leaf.0));
            }
        }
    }
    let larger = size == sizes.after;
    if act.is_redundant() && array.label().members.len() > usize::from(array.slots()) + act.spares() {
        return Err("a disk that was to be a member is named, and is none".into());
    }
    if act.parity() {
        let (disks, mut array) = (disks.clone(), array.clone());
        run(recover_journal(&disks, &mut array, 9, false)).map_err(|error| error.to_string())?;
    }
    if act.is_redundant() {
        let bits = run(load_regions(disks, array, false)).map_err(|error| error.to_string())?;
        if bits.damaged_blocks > 0 || bits.written.iter().chain(&bits.dirty).any(|word| *word != 0) {
            return Err(format!("bits that nobody set: {} blocks damaged", bits.damaged_blocks));
        }
        let region = u64::from(array.label().region_bytes);
        let end = sizes.before.next_multiple_of(region).min(size);
        let stripes = (sizes.before..end).step_by(4096).filter_map(|at| array.geometry().stripe_of(at));
        for stripe in stripes.filter(|_| larger) {
            for member in
                array.members().filter(|m| m.state == MemberState::InSync && stripe.members.contains(&m.number))
            {
                let at = member.part.layout.data.start + stripe.member_offset;
                if disks.peek(member.leaf, at, stripe.chunk_bytes as usize).iter().any(|byte| *byte != 0) {
                    return Err(format!(
                        "stripe {}, which is new, is not zero on disk {}",
                        stripe.number, member.leaf.0
                    ));
                }
            }
        }
        for at in (sizes.before..end).step_by(4096).filter(|_| larger) {
            for (leaf, offset) in copies(array, at) {
                if disks.peek(leaf, offset, 4096).iter().any(|byte| *byte != 0) {
                    return Err(format!("byte {at}, which is new, is not zero on disk {}", leaf.0));
                }
            }
        }
    }
    for member in array.members().chain(array.spares()) {
        let places = &member.part.layout;
        if !disks.peek(member.leaf, places.copy_start, 4096).starts_with(&MAGIC) {
            return Err(format!("disk {} has no copy where its label says", member.leaf.0));
        }
        let sizes = [3 * MIB, 4 * MIB, 3 * MIB + 512, disks.size_bytes(member.leaf)];
        for at in sizes.into_iter().filter_map(copy_offset).filter(|at| *at != places.copy_start) {
            if Label::decode(&disks.peek(member.leaf, at, 4096)).is_ok() {
                return Err(format!("disk {} has a second copy at {at}", member.leaf.0));
            }
        }
    }
    Ok(larger)
}

fn one(act: Act, step: Option<u64>, how: Crash, seed: u64, counts: &mut Counts) -> Result<(), String> {
    let mut chance = Chance(seed);
    let disks = new_disks();
    let mut array = before(act, &disks);
    let sizes = sizes_of(act);
    disks.cut_at(step, seed);
    let acknowledged = run(array.grow(&disks, &act.request())).is_ok();
    disks.crash(how, &mut chance);
    counts.crashes += 1;
    pulled(&disks.clone(), act, &sizes, acknowledged, &mut chance, counts)?;
    // Again during the recovery. While the label of an enlarged disk is not updated, its copy is found only by the
    // first sector, so that sector must not be spoiled.
    disks.be_gentle();
    let mut all_disks = leaves(DISKS);
    chance.shuffle(&mut all_disks);
    disks.cut_at(Some(chance.below(25)), chance.next());
    let cut_off = !matches!(start_of(&disks, &all_disks, chance.next()), Ok(Some(_)));
    disks.crash(if chance.below(2) == 0 { Crash::Power } else { Crash::Kill }, &mut chance);
    counts.second_crashes += u64::from(cut_off);
    let mut array = start_of(&disks, &all_disks, chance.next())?.ok_or("does not start with all disks here")?;
    let larger = holds(&disks, &array, act, &sizes)?;
    if acknowledged && !larger {
        return Err("acknowledged, and the array is the smaller one".into());
    }
    *(if larger { &mut counts.larger } else { &mut counts.smaller }) += 1;
    // If it is the smaller one, it grows now.
    if !larger {
        let again = GrowRequest { force: true, ..act.request() };
        run(array.grow(&disks, &again)).map_err(|error| format!("a second attempt: {error}"))?;
        if !holds(&disks, &array, act, &sizes)? {
            return Err("a second attempt gave nothing".into());
        }
    }
    disks.crash(Crash::Power, &mut chance);
    let array = start_of(&disks, &all_disks, chance.next())?.ok_or("does not start at last")?;
    if !holds(&disks, &array, act, &sizes)? {
        return Err("it is the smaller one again".into());
    }
    shrunk(&disks, act)
}

/// Starts with some of the disks first, where a mirror starts or waits; then with all of them.
fn pulled(
    disks: &Disks,
    act: Act,
    sizes: &Sizes,
    acknowledged: bool,
    chance: &mut Chance,
    counts: &mut Counts,
) -> Result<(), String> {
    let mask = if act.is_redundant() { 1 + chance.below(62) } else { 0b111 };
    let present: Vec<LeafId> = leaves(DISKS).into_iter().filter(|leaf| mask >> leaf.0 & 1 == 1).collect();
    counts.pulled += 1;
    match start_of(disks, &present, chance.next()).map_err(|why| format!("with {present:?} only: {why}"))? {
        None => counts.waited += 1,
        Some(array) => {
            let larger = holds(disks, &array, act, sizes).map_err(|why| format!("with {present:?} only: {why}"))?;
            if acknowledged && !larger {
                return Err(format!("with {present:?} only it is the smaller one, though acknowledged"));
            }
        }
    }
    disks.crash(Crash::Power, chance);
    let all = start_of(disks, &leaves(DISKS), chance.next()).map_err(|why| format!("after {present:?} only: {why}"))?;
    let array = all.ok_or(format!("after {present:?} only it does not start with all disks here"))?;
    holds(disks, &array, act, sizes).map_err(|why| format!("after {present:?} only: {why}")).map(drop)
}

/// A disk that has shrunk again, and whose first block is damaged, must not be accepted as the former member.
fn shrunk(disks: &Disks, act: Act) -> Result<(), String> {
    for (leaf, _) in act.larger() {
        let disks = disks.clone();
        let was = [3 * MIB, 4 * MIB, 3 * MIB + 512, 4 * MIB, 3 * MIB, 5 * MIB][leaf.0 as usize];
        if was == disks.size_bytes(leaf) {
            continue;
        }
        disks.resize(leaf, was);
        disks.poke(leaf, 0, &[0xee; 4096]);
        if let DiskOutcome::Member(disk) = &run(scan(&disks, &[leaf])).disks[0].outcome {
            return Err(format!("disk {} passes for what it was: {disk:?}", leaf.0));
        }
    }
    Ok(())
}

fn sizes_of(act: Act) -> Sizes {
    let disks = new_disks();
    let mut array = before(act, &disks);
    let before = array.geometry().size_bytes();
    let growth = run(array.grow(&disks, &act.request())).unwrap();
    assert!(growth.before_bytes == before && growth.after_bytes() > before);
    assert_eq!(array.geometry().size_bytes(), growth.after_bytes());
    Sizes { before, after: growth.after_bytes() }
}

fn sweep(act: Act, seeds: Range<u64>, counts: &mut Counts) -> Result<(), String> {
    let disks = new_disks();
    let mut array = before(act, &disks);
    disks.cut_at(None, 0);
    run(array.grow(&disks, &act.request())).map_err(|error| error.to_string())?;
    for step in (0..disks.steps()).map(Some).chain([None]) {
        for seed in seeds.clone() {
            for how in [Crash::Power, Crash::Kill] {
                one(act, step, how, seed, counts)
                    .map_err(|why| format!("{act:?} cut at step {step:?}, {how:?}, seed {seed}: {why}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn every_step_of_a_growth_may_be_the_last() {
    let mut counts = Counts::default();
    for act in ACTS {
        sweep(act, 0..7, &mut counts).unwrap();
    }
    println!("{counts:?}");
    assert!(counts.crashes > 2000 && counts.second_crashes > 1000 && counts.waited > 200, "{counts:?}");
    assert!(counts.smaller > 500 && counts.larger > 500, "{counts:?}");
}

/// Any disk fails once, at any step: the array goes on, and records no more than it can keep.
#[test]
fn a_disk_that_fails_during_a_growth_leaves_the_old_or_the_new_size() {
    let (mut refused, mut grown) = (0, 0);
    for act in ACTS {
        let sizes = sizes_of(act);
        for leaf in leaves(DISKS) {
            for (at, count) in (0..30).flat_map(|at| [(at, 1), (at, u64::MAX)]) {
                let disks = new_disks();
                let mut array = before(act, &disks);
                disks.fail(leaf, at, count);
                let result = run(array.grow(&disks, &act.request()));
                *(if result.is_ok() { &mut grown } else { &mut refused }) += 1;
                let here = (act, leaf, at, count, result.as_ref().err().map(LifecycleError::to_string));
                let expected = if result.is_ok() { sizes.after } else { sizes.before };
                assert_eq!(array.geometry().size_bytes(), expected, "{here:?}");
                disks.heal();
                // It goes on with its labels, and starts again.
                run(array.rename(&disks, super::name("h"))).unwrap_or_else(|error| panic!("{here:?}: {error}"));
                disks.crash(Crash::Power, &mut Chance(at));
                let back = start_of(&disks, &leaves(DISKS), 4).unwrap_or_else(|why| panic!("{here:?}: {why}"));
                let back = back.unwrap_or_else(|| panic!("{here:?}: does not start"));
                let larger = holds(&disks, &back, act, &sizes).unwrap_or_else(|why| panic!("{here:?}: {why}"));
                assert_eq!(larger, result.is_ok(), "{here:?}");
            }
        }
    }
    println!("{refused} refused, {grown} grown");
    assert!(refused > 300 && grown > 300, "{refused} refused, {grown} grown");
}

#[test]
fn what_cannot_grow_is_refused_before_anything_is_written() {
    let refused = |array: &mut Array, disks: &Disks, request: GrowRequest| {
        let sequence = array.label().sequence;
        disks.take_transfers();
        let error = run(array.grow(disks, &request)).unwrap_err();
        assert_eq!((disks.take_transfers().writes, array.label().sequence), (0, sequence), "{error}");
        error.to_string()
    };
    let new = |leaf: u32| GrowRequest { new_disks: vec![(LeafId(leaf), MemberId::from_random(0xf0))], force: false };
    let disks = Disks::new(&[3 * MIB; 5]);
    let mut mirror = run(create(&disks, &Act::Raid1.create())).unwrap();
    let nothing = "the array cannot grow: no capacity would be gained: a further zone needs 2 members with new free space at the same offset, after everything that they hold";
    assert_eq!(refused(&mut mirror, &disks, GrowRequest::default()), nothing);
    disks.resize(LeafId(0), 9 * MIB);
    assert_eq!(refused(&mut mirror, &disks, GrowRequest::default()), nothing);
    assert_eq!(refused(&mut mirror, &disks, new(3)), nothing);
    leaves(3).into_iter().for_each(|leaf| disks.resize(leaf, 60 << 30));
    let text = refused(&mut mirror, &disks, GrowRequest::default());
    assert!(text.contains("regions of 64.00 KiB"), "{text}");
    disks.resize(LeafId(0), 9 * MIB);
    disks.resize(LeafId(1), 9 * MIB);
    disks.resize(LeafId(2), 3 * MIB);
    let text = refused(&mut mirror, &disks, GrowRequest::default());
    assert!(
        text.contains("would have 2 copies, where everything has 3") && text.contains("loss of any 1 members"),
        "{text}"
    );
    run(mirror.drop_members(&disks, &[2])).unwrap();
    let text = refused(&mut mirror, &disks, GrowRequest::default());
    assert!(text.contains("not all of its members are in sync"), "{text}");

    for (act, needed) in [(Act::Raid5, 2), (Act::Raid6, 3)] {
        let disks = Disks::new(&[3 * MIB, 3 * MIB, 3 * MIB, 3 * MIB, 9 * MIB]);
        let mut array = run(create(&disks, &act.create())).unwrap();
        let text = refused(&mut array, &disks, new(3));
        assert!(text.contains(&format!("a further zone needs {needed} members")), "{text}");
        let error = run(array.grow(&disks, &new(3))).unwrap_err();
        let LifecycleError::NoGrowth { remedy, .. } = error else { panic!("{error}") };
        assert!(remedy.contains(&format!("name {needed} or more")) && remedy.contains("array replace"), "{remedy}");
        // All disks but the smallest have space above the end of the smallest.
        leaves(3).into_iter().for_each(|leaf| disks.resize(leaf, 9 * MIB));
        let text = refused(&mut array, &disks, new(3));
        assert!(text.contains("would hold nothing"), "{text}");
        assert!(refused(&mut array, &disks, new(1)).contains("given twice"));
    }

    let disks = Disks::new(&[3 * MIB; 5]);
    let mut plain = run(create(&disks, &Act::Raid0ByDisks.create())).unwrap();
    assert!(refused(&mut plain, &disks, GrowRequest::default()).ends_with("no member has new free space"));
    assert!(refused(&mut plain, &disks, new(1)).contains("given twice"));
    let twice = GrowRequest { new_disks: [new(3), new(3)].map(|new| new.new_disks[0]).to_vec(), force: false };
    assert!(refused(&mut plain, &disks, twice).contains("given twice"));
    disks.resize(LeafId(4), MIB);
    assert!(refused(&mut plain, &disks, new(4)).contains("the smallest that Braid can use"));
    disks.resize(LeafId(4), MIB + 8192);
    assert!(refused(&mut plain, &disks, new(4)).contains("one chunk needs 64.00 KiB"));
    drop(run(create(&disks, &request("other", Spec::new(Level::Concat), 7, vec![LeafId(3)]))).unwrap());
    assert!(refused(&mut plain, &disks, new(3)).contains("use --force"));
}
