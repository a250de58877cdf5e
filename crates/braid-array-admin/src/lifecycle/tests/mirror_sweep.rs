//! Cuts the power, or kills the process, at every step of each change of a mirror's members, and again during the
//! recovery; then every choice of its disks is present, in any order.
//!
//! The oracle checks guarantees only: a member that starts automatically holds everything that was acknowledged,
//! whichever disks appear later; and without `--force` or `--degraded` members never diverge.

use std::ops::Range;

use braid_engine::LeafId;
use braid_format::{MemberId, MemberState};
use braid_geometry::Level;

use super::disks::{Chance, Crash, Disks};
use super::mirrors::{raid1, raid10, redundant};
use super::{leaves, run};
use crate::lifecycle::{
    Array, ArrayStatus, CreateRequest, LifecycleError, RebuildKind, RebuildTarget, Replacement, StartOptions, create,
    load_regions, scan, start,
};

/// Where the data area of these small disks begins: each holds the number of its last write here.
const STAMP: u64 = 1 << 20;
/// A copied block that a checkpoint covers.
const COPIED: u64 = (1 << 20) + 65536;
/// Three members, a spare, a new disk.
const SPARE: u32 = 3;
const FRESH: u32 = 4;
const DISKS: u32 = 5;

/// A procedure under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Create,
    /// Without member 0, which is missing.
    DegradedStart,
    Drop,
    /// Member 1 fails one label while member 0 is dropped.
    DropTwo,
    BeginFromBitmap,
    BeginFull,
    TakeSpare,
    Checkpoint,
    Promote,
    Remove,
    AddSpare,
    RemoveSpare,
    /// A disk becomes the successor of member 0, or the spare does.
    BeginReplacing,
    ReplaceBySpare,
    PromoteSuccessor,
    /// Member 0, whose successor is in sync, is dropped; the last write is acknowledged, and only in caches.
    Retire,
    /// Member 0 fails while its successor is in sync.
    GiveSlot,
    /// The same while the successor is still being rebuilt.
    GiveSlotRebuilding,
    Abandon,
    /// A mirror gains a slot, and gives it up again.
    Widen,
    Narrow,
    /// A disk takes that slot.
    FillVacant,
    PromoteVacant,
}

const ACTS: [Act; 23] = [
    Act::Create,
    Act::DegradedStart,
    Act::Drop,
    Act::DropTwo,
    Act::BeginFromBitmap,
    Act::BeginFull,
    Act::TakeSpare,
    Act::Checkpoint,
    Act::Promote,
    Act::Remove,
    Act::AddSpare,
    Act::RemoveSpare,
    Act::BeginReplacing,
    Act::ReplaceBySpare,
    Act::PromoteSuccessor,
    Act::Retire,
    Act::GiveSlot,
    Act::GiveSlotRebuilding,
    Act::Abandon,
    Act::Widen,
    Act::Narrow,
    Act::FillVacant,
    Act::PromoteVacant,
];

/// The slot that a mirror of three gains.
const WIDER: u16 = 3;
/// The number that a successor gets, behind the spare's.
const SUCCESSOR: u16 = 4;

impl Act {
    fn replaces(self) -> bool {
        let acts = [Act::BeginReplacing, Act::ReplaceBySpare, Act::PromoteSuccessor, Act::Retire, Act::GiveSlot];
        acts.contains(&self) || matches!(self, Act::GiveSlotRebuilding | Act::Abandon)
    }

    fn is_about_width(self) -> bool {
        matches!(self, Act::Widen | Act::Narrow | Act::FillVacant | Act::PromoteVacant)
    }

    /// Whether an array may have this many slots after it.
    fn leaves_roles(self, roles: u16, acknowledged: bool) -> bool {
        match self {
            Act::Widen => roles == 4 || roles == 3 && !acknowledged,
            Act::Narrow => roles == 3 || roles == 4 && !acknowledged,
            Act::FillVacant | Act::PromoteVacant => roles == 4,
            _ => roles == 3,
        }
    }
}

fn replacement() -> Replacement {
    Replacement::New { leaf: LeafId(FRESH), id: MemberId::from_random(0xf6), force: true }
}

fn stamp_of(disks: &Disks, leaf: LeafId) -> u64 {
    let bytes = disks.peek(leaf, STAMP, 512);
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

fn sector(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn stamp(disks: &Disks, leaf: LeafId, number: u64) {
    disks.poke(leaf, STAMP, &sector(number));
}

fn request(level: Level) -> CreateRequest {
    CreateRequest { spares: vec![(LeafId(SPARE), MemberId::from_random(0x5a))], ..redundant(level, "m", 1, leaves(3)) }
}

fn returning() -> RebuildTarget {
    RebuildTarget::Returning { leaf: LeafId(0) }
}

fn fresh() -> RebuildTarget {
    RebuildTarget::New { leaf: LeafId(FRESH), id: MemberId::from_random(0xf4), force: true }
}

/// Sets up the array before the procedure; `None` if it does not serve.
fn before(level: Level, act: Act, disks: &Disks) -> Option<Array> {
    if act == Act::Create {
        return None;
    }
    let mut array = run(create(disks, &request(level))).unwrap();
    leaves(3).into_iter().for_each(|leaf| stamp(disks, leaf, 1));
    let members = [LeafId(1), LeafId(2)];
    match act {
        Act::Create => {}
        Act::DegradedStart => return None,
        Act::Drop | Act::DropTwo => {
            // Written, acknowledged, and only in caches.
            members.into_iter().for_each(|leaf| disks.poke_cached(leaf, STAMP, &sector(2)));
        }
        Act::AddSpare => {
            run(array.remove_spare(disks, 3)).unwrap();
        }
        Act::RemoveSpare => {}
        Act::Widen => {}
        act if act.is_about_width() => assert_eq!(run(array.widen(disks)).unwrap(), WIDER),
        act if act.replaces() => members.into_iter().chain([LeafId(0)]).for_each(|leaf| stamp(disks, leaf, 2)),
        _ => {
            run(array.drop_members(disks, &[0])).unwrap();
            members.into_iter().for_each(|leaf| stamp(disks, leaf, 2));
        }
    }
    match act {
        Act::Checkpoint => {
            run(array.begin_rebuild(disks, 0, fresh(), RebuildKind::Full)).unwrap();
            disks.poke_cached(LeafId(FRESH), COPIED, &sector(77));
        }
        Act::Promote => {
            run(array.begin_rebuild(disks, 0, returning(), RebuildKind::FromBitmap)).unwrap();
            disks.poke_cached(LeafId(0), STAMP, &sector(2));
        }
        Act::PromoteVacant => {
            run(array.begin_rebuild(disks, WIDER, fresh(), RebuildKind::Full)).unwrap();
            disks.poke_cached(LeafId(FRESH), STAMP, &sector(1));
        }
        Act::PromoteSuccessor | Act::Retire | Act::GiveSlot | Act::GiveSlotRebuilding | Act::Abandon => {
            let successor = run(array.begin_replacing(disks, 0, replacement())).unwrap();
            assert_eq!(successor, SUCCESSOR);
            disks.poke_cached(LeafId(FRESH), STAMP, &sector(2));
            if matches!(act, Act::Retire | Act::GiveSlot) {
                run(array.promote(disks, SUCCESSOR)).unwrap();
            }
            if act == Act::Retire {
                // Acknowledged, and only in caches.
                array.members().for_each(|m| disks.poke_cached(m.leaf, STAMP, &sector(3)));
            }
            if matches!(act, Act::GiveSlot | Act::GiveSlotRebuilding) {
                run(array.drop_members(disks, &[0])).unwrap();
            }
        }
        _ => {}
    }
    Some(array)
}

/// Runs the procedure. `Ok` is the acknowledgement.
fn perform(level: Level, act: Act, disks: &Disks, array: &mut Option<Array>) -> Result<(), LifecycleError> {
    let Some(array) = array else {
        if act == Act::Create {
            return run(create(disks, &request(level))).map(drop);
        }
        let found = run(scan(disks, &[LeafId(2), LeafId(1), LeafId(SPARE)]));
        let options = StartOptions { degraded: true, ..StartOptions::new(5, 6) };
        return run(start(disks, &found.arrays[0], options)).map(drop);
    };
    match act {
        Act::Create | Act::DegradedStart => Ok(()),
        Act::Drop | Act::DropTwo => run(array.drop_members(disks, &[0])).map(drop),
        Act::BeginFromBitmap => run(array.begin_rebuild(disks, 0, returning(), RebuildKind::FromBitmap)),
        Act::BeginFull => run(array.begin_rebuild(disks, 0, fresh(), RebuildKind::Full)),
        Act::TakeSpare => run(array.take_spare(disks, 0, 3)),
        Act::Checkpoint => run(array.checkpoint(disks, 0, 1 << 20)),
        Act::Promote => run(array.promote(disks, 0)),
        Act::Remove => run(array.remove(disks, 0)),
        Act::AddSpare => run(array.add_spare(disks, LeafId(FRESH), MemberId::from_random(0xf5), true)).map(drop),
        Act::RemoveSpare => run(array.remove_spare(disks, 3)).map(drop),
        Act::BeginReplacing => run(array.begin_replacing(disks, 0, replacement())).map(drop),
        Act::ReplaceBySpare => run(array.begin_replacing(disks, 0, Replacement::Spare(3))).map(drop),
        Act::PromoteSuccessor => run(array.promote(disks, SUCCESSOR)),
        Act::Retire => run(array.retire(disks, 0)),
        Act::GiveSlot | Act::GiveSlotRebuilding => run(array.give_slot_to_successor(disks, 0)),
        Act::Abandon => run(array.cancel_replacement(disks, SUCCESSOR)),
        Act::Widen => run(array.widen(disks)).map(drop),
        Act::Narrow => run(array.narrow(disks, WIDER)),
        Act::FillVacant => run(array.begin_rebuild(disks, WIDER, fresh(), RebuildKind::Full)),
        Act::PromoteVacant => run(array.promote(disks, WIDER)),
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    crashes: u64,
    starts: u64,
    waited: u64,
    second_crashes: u64,
}

/// Starts the array of these disks if it starts automatically. `Ok(None)`: it does not.
fn start_of(disks: &Disks, present: &[LeafId], random: u64) -> Result<Option<Array>, String> {
    let found = run(scan(disks, present));
    let Some(array) = found.arrays.iter().find(|a| a.uuid.as_bytes()[0] == 1) else { return Ok(None) };
    if let ArrayStatus::Refused { .. } = array.status {
        return Err(format!("refused: {}", array.status));
    }
    if let ArrayStatus::Waiting { .. } = array.status {
        // An array that claims that it could start without some members must be right.
        let options = StartOptions { degraded: true, ..StartOptions::new(random, random) };
        let (disks, status) = (disks.clone(), &array.status);
        disks.cut_at(None, random);
        let started = run(start(&disks, array, options));
        return started.map(|_| None).map_err(|error| format!("{status}, and with --degraded: {error}"));
    }
    if !array.status.starts_by_itself() {
        return Ok(None);
    }
    let started = run(start(disks, array, StartOptions::new(random, random)));
    started.map(Some).map_err(|error| format!("{} and not started: {error}", array.status))
}

/// Checks that members that serve reads hold one of these writes; any, if `allowed` is empty.
fn holds(disks: &Disks, array: &Array, allowed: &[u64]) -> Result<(), String> {
    if !array.tolerates(&[]) {
        return Err(format!("started without a whole copy: {:?}", array.label().members));
    }
    for member in array.members().filter(|m| m.state == MemberState::InSync) {
        let found = stamp_of(disks, member.leaf);
        if !allowed.is_empty() && !allowed.contains(&found) {
            return Err(format!("member {} is in sync and holds write {found} of {allowed:?}", member.number));
        }
    }
    let job = array.rebuild(0).filter(|job| job.position_bytes > 0);
    if job.is_some() && disks.peek(LeafId(FRESH), COPIED, 512) != sector(77) {
        return Err("the checkpoint is ahead of the data".into());
    }
    Ok(())
}

/// Returns every choice of disks, or some.
fn choices(all: bool, chance: &mut Chance) -> Vec<Vec<LeafId>> {
    let masks: Vec<u64> = if all { (1..1 << DISKS).collect() } else { (0..6).map(|_| 1 + chance.below(31)).collect() };
    let of = |mask: u64| leaves(DISKS).into_iter().filter(|leaf| mask >> leaf.0 & 1 == 1).collect();
    masks.into_iter().map(of).collect()
}

/// One procedure, interrupted at one step, in one way.
fn one(level: Level, act: Act, step: Option<u64>, how: Crash, seed: u64, counts: &mut Counts) -> Result<(), String> {
    let mut chance = Chance(seed);
    let disks = Disks::new(&[3 << 20; DISKS as usize]);
    let mut array = before(level, act, &disks);
    disks.cut_at(step, seed);
    if act == Act::DropTwo {
        disks.fail(LeafId(1), 3 + seed % 4, 1);
        disks.cut_later(step);
    }
    let acknowledged = perform(level, act, &disks, &mut array).is_ok();
    disks.crash(how, &mut chance);
    disks.heal();
    counts.crashes += 1;
    let unwritten = matches!(act, Act::Create | Act::AddSpare | Act::RemoveSpare) || act.is_about_width();
    let last = if unwritten { 1 } else { 2 };
    if act == Act::Create {
        leaves(3).into_iter().for_each(|leaf| stamp(&disks, leaf, 1));
    }
    let allowed: &[u64] = match act {
        Act::DegradedStart if acknowledged => {
            [LeafId(1), LeafId(2)].into_iter().for_each(|leaf| stamp(&disks, leaf, 2));
            &[2]
        }
        Act::DegradedStart => &[1],
        // The write was in flight: its region is dirty, and anything may be there.
        Act::Drop | Act::DropTwo | Act::Retire if !acknowledged => &[],
        _ if last == 1 => &[1],
        Act::Retire => &[3],
        _ => &[2],
    };
    let mut all_disks = leaves(DISKS);
    for mut present in choices(seed == 0, &mut chance) {
        chance.shuffle(&mut present);
        chance.shuffle(&mut all_disks);
        let again = disks.clone();
        let verified = verify(&again, act, acknowledged, &present, &all_disks, allowed, &mut chance, counts);
        verified.map_err(|why| format!("acknowledged {acknowledged}, first {present:?}, then {all_disks:?}: {why}"))?;
    }
    Ok(())
}

#[allow(clippy::too_many_arguments)]
fn verify(
    disks: &Disks,
    act: Act,
    acknowledged: bool,
    present: &[LeafId],
    all_disks: &[LeafId],
    allowed: &[u64],
    chance: &mut Chance,
    counts: &mut Counts,
) -> Result<(), String> {
    // Again during the recovery.
    disks.cut_at(Some(chance.below(15)), chance.next());
    let cut = start_of(disks, present, chance.next());
    let cut_off = !matches!(cut, Ok(Some(_)));
    disks.crash(if chance.below(2) == 0 { Crash::Power } else { Crash::Kill }, chance);
    counts.second_crashes += u64::from(cut_off);
    let first = start_of(disks, present, chance.next())?;
    counts.starts += u64::from(first.is_some());
    counts.waited += u64::from(first.is_none());
    let mut allowed = allowed.to_vec();
    if let Some(array) = &first {
        holds(disks, array, &allowed)?;
        if act == Act::Create {
            let bits = run(load_regions(disks, array, false)).map_err(|error| error.to_string())?;
            if bits.damaged_blocks != 0 || bits.written.iter().chain(&bits.dirty).any(|word| *word != 0) {
                return Err("the new bitmap is not empty".into());
            }
        }
        // It serves: members that are in sync or rebuilding take the next write.
        array.members().for_each(|m| stamp(disks, m.leaf, 9));
        allowed = vec![9];
        // Including what the caches lose.
        disks.crash(Crash::Power, chance);
    }
    let unborn = act == Act::Create && !acknowledged;
    match start_of(disks, all_disks, chance.next()).map_err(|why| format!("then, with all disks, {why}"))? {
        Some(array) if !act.leaves_roles(array.slots(), acknowledged) => Err(format!("it has {} roles", array.slots())),
        Some(array) => holds(disks, &array, &allowed).map_err(|why| format!("then, with all disks: {why}")),
        None if unborn => Ok(()),
        None => {
            let found = run(scan(disks, all_disks));
            let of = |a: &crate::lifecycle::FoundArray| format!("{}", a.status);
            let all: Vec<String> = found.arrays.iter().map(of).collect();
            Err(format!("does not start although all disks are here: {}", all.join("; ")))
        }
    }
}

fn sweep(level: Level, act: Act, seeds: Range<u64>, counts: &mut Counts) -> Result<(), String> {
    let disks = Disks::new(&[3 << 20; DISKS as usize]);
    let mut array = before(level, act, &disks);
    disks.cut_at(None, 0);
    perform(level, act, &disks, &mut array).unwrap();
    let steps = disks.steps() + if act == Act::DropTwo { 8 } else { 0 };
    for step in (0..steps).map(Some).chain([None]) {
        for seed in seeds.clone() {
            for how in [Crash::Power, Crash::Kill] {
                one(level, act, step, how, seed, counts)
                    .map_err(|why| format!("{level:?}: {act:?} cut at step {step:?}, {how:?}, seed {seed}: {why}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn every_step_may_be_the_last() {
    let mut counts = Counts::default();
    for act in ACTS {
        sweep(Level::Raid1, act, 0..6, &mut counts).unwrap();
    }
    println!("{counts:?}");
    assert!(counts.crashes > 1500 && counts.starts > 3000 && counts.waited > 1000, "{counts:?}");
    assert!(counts.second_crashes > 3000, "{counts:?}");
}

/// Of three members raid5 can lose one, and raid6 two.
#[test]
fn every_step_may_be_the_last_with_parity() {
    for level in [Level::Raid5, Level::Raid6] {
        let mut counts = Counts::default();
        for act in ACTS.into_iter().filter(|act| !act.is_about_width()) {
            sweep(level, act, 0..4, &mut counts).unwrap();
        }
        println!("{level:?}: {counts:?}");
        assert!(counts.crashes > 1000 && counts.starts > 2000 && counts.waited > 1000, "{counts:?}");
        assert!(counts.second_crashes > 2000, "{counts:?}");
    }
}

/// A last survivor that fails a label once still serves what it holds.
fn last_survivor_fails() -> Result<(), String> {
    for step in 0..6 {
        let disks = Disks::new(&[3 << 20; 2]);
        let mut array = run(create(&disks, &raid1("m", 1, leaves(2)))).unwrap();
        leaves(2).into_iter().for_each(|leaf| stamp(&disks, leaf, 2));
        disks.fail(LeafId(1), step, 1);
        let dropped = run(array.drop_members(&disks, &[0]));
        disks.heal();
        let present: &[LeafId] = if dropped.is_ok() { &[LeafId(1)] } else { &[LeafId(1), LeafId(0)] };
        let back = start_of(&disks, present, 4)?.ok_or(format!("step {step}: nobody holds it any more"))?;
        holds(&disks, &back, &[2])?;
    }
    Ok(())
}

/// Two members that diverged, and an earlier copy of one: which start automatically?
fn diverged_members_are_refused() -> Result<(), String> {
    let disks = Disks::new(&[3 << 20; 2]);
    let mut array = run(create(&disks, &raid1("m", 1, leaves(2)))).unwrap();
    leaves(2).into_iter().for_each(|leaf| stamp(&disks, leaf, 1));
    let copy = disks.clone_disk(LeafId(0), 3 << 20);
    for text in ["b", "c"] {
        run(array.rename(&disks, super::name(text))).unwrap();
    }
    leaves(2).into_iter().for_each(|leaf| stamp(&disks, leaf, 2));
    if let Ok(Some(array)) = start_of(&disks.clone(), &[copy, LeafId(1)], 3) {
        holds(&disks, &array, &[2])?;
    }
    for leaf in leaves(2) {
        let found = run(scan(&disks, &[leaf]));
        let options = StartOptions { degraded: true, ..StartOptions::new(30, 30 + u64::from(leaf.0)) };
        run(start(&disks, &found.arrays[0], options)).map_err(|error| error.to_string())?;
    }
    match start_of(&disks, &leaves(2), 5) {
        Err(_) => Ok(()),
        Ok(_) => Err("two halves that were used apart are taken together".into()),
    }
}

/// A slot of four is failed and its neighbour missing: a member being rebuilt does not serve in its place.
fn rebuilding_member_is_no_copy() -> Result<(), String> {
    let disks = Disks::new(&[3 << 20; 4]);
    let mut array = run(create(&disks, &raid10("m", 1, leaves(4)))).unwrap();
    run(array.drop_members(&disks, &[1])).unwrap();
    run(array.begin_rebuild(&disks, 1, RebuildTarget::Returning { leaf: LeafId(1) }, RebuildKind::FromBitmap)).unwrap();
    for present in [&[1, 2, 3][..], &[1, 2], &[1, 3]] {
        let present: Vec<LeafId> = present.iter().copied().map(LeafId).collect();
        let found = run(scan(&disks, &present));
        let options = StartOptions { degraded: true, force: true, ..StartOptions::new(3, 4) };
        if run(start(&disks, &found.arrays[0], options)).is_ok() {
            return Err(format!("started with {present:?}"));
        }
    }
    Ok(())
}

#[test]
fn members_that_may_not_serve_do_not() {
    last_survivor_fails().unwrap();
    diverged_members_are_refused().unwrap();
    rebuilding_member_is_no_copy().unwrap();
}
