//! Cuts the power, or kills the process, at every step of every procedure, and again during the recovery.
//!
//! The oracle checks guarantees only: it reads the disks' bytes and the result of `assemble`, and does not know how the
//! procedures work.

use std::ops::Range;

use braid_engine::{LeafId, MetaIo};
use braid_format::{ArrayState, BLOCK_BYTES, Label, MAGIC, copy_offset};

use super::disks::{Chance, Crash, Disks};
use super::{create_raid0, leaves, name, raid0, run, three_disks};
use crate::lifecycle::{Array, ArrayStatus, Assembled, LifecycleError, assemble, create, delete_found, scan};

/// Where the data area of these small disks begins.
const DATA_START: u64 = 1 << 20;

/// A procedure under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Create,
    /// Over the labels of an older array and a foreign signature.
    ForcedCreate,
    Rename,
    Stop,
    Start,
    Delete,
    /// Of an array whose creation was interrupted at this step.
    DeleteInterrupted(u64),
    /// Of an array that is not started.
    DeleteFound,
}

/// What `assemble` finds.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Seen {
    Absent,
    Interrupted,
    Started(String),
}

/// Counts of what was tried.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    crashes: u64,
    second_crashes: u64,
    recoveries: u64,
}

const OLD: u8 = 0xa1;
const NEW: u8 = 0xb2;

/// Sets up the disks before the procedure.
fn before(act: Act) -> Disks {
    let disks = three_disks();
    match act {
        Act::Create => {}
        Act::ForcedCreate => {
            create_raid0(&disks, "older", OLD, leaves(2)).unwrap();
            disks.poke(LeafId(2), 65536, &btrfs());
        }
        Act::DeleteInterrupted(step) => {
            disks.cut_at(Some(step), step);
            assert!(create_raid0(&disks, "old", NEW, leaves(3)).is_err());
            disks.crash(Crash::Power, &mut Chance(step));
        }
        _ => {
            create_raid0(&disks, "old", NEW, leaves(3)).unwrap();
        }
    }
    disks
}

fn btrfs() -> Vec<u8> {
    let mut block = vec![0; 512];
    block[0x40..0x48].copy_from_slice(b"_BHRfS_M");
    block
}

/// Runs the procedure. `Ok` is the acknowledgement.
fn perform(act: Act, disks: &Disks) -> Result<(), LifecycleError> {
    let handle = || -> Result<Array, LifecycleError> {
        let mut found = run(assemble(disks, &leaves(3), || 5));
        assert!(found.failed.len() + found.started.len() == 1, "{found:?}");
        match found.started.pop() {
            Some(array) => Ok(array),
            None => Err(found.failed.pop().unwrap().1),
        }
    };
    match act {
        Act::Create => create_raid0(disks, "new", NEW, leaves(3)).map(drop),
        Act::ForcedCreate => {
            let mut request = raid0("new", NEW, leaves(3));
            request.force = true;
            run(create(disks, &request)).map(drop)
        }
        Act::Start => handle().map(drop),
        Act::Rename => run(handle()?.rename(disks, name("new"))),
        Act::Stop => run(handle()?.stop(disks)),
        Act::Delete => run(handle()?.delete(disks)).map(drop),
        Act::DeleteInterrupted(_) | Act::DeleteFound => {
            let found = run(scan(disks, &leaves(3)));
            found.arrays.iter().try_for_each(|array| run(delete_found(disks, array, false)))
        }
    }
}

/// Starts the array of the disks, given in any order.
fn recover(disks: &Disks, chance: &mut Chance) -> Result<Seen, String> {
    let mut order = leaves(3);
    chance.shuffle(&mut order);
    let session = chance.next();
    let found = run(assemble(disks, &order, || session));
    seen(disks, &found, session)
}

fn seen(disks: &Disks, found: &Assembled, session: u64) -> Result<Seen, String> {
    if let Some((_, error)) = found.failed.first() {
        return Err(format!("the start failed: {error}"));
    }
    // An older array under a forced create may come back incomplete; the new one may not.
    let waiting = found.waiting.iter().find(|array| array.uuid.as_bytes()[0] == NEW);
    let started = found.started.iter().find(|array| array.uuid().as_bytes()[0] == NEW);
    match (started, waiting) {
        (None, None) => {
            let deleted = !found.deleted.is_empty();
            let labels = (0..3).map(LeafId).filter(|leaf| copies(disks, *leaf).iter().any(|c| is_new(c))).count();
            if labels > 0 {
                Err(format!("{labels} disks still bear a label (deleted: {deleted})"))
            } else {
                Ok(Seen::Absent)
            }
        }
        (None, Some(array)) if array.status == ArrayStatus::InterruptedCreate => Ok(Seen::Interrupted),
        (None, Some(array)) => Err(format!("not started: {}", array.status)),
        (Some(array), _) => {
            let right = array.members().map(|m| (u32::from(m.number), m.leaf.0)).eq((0..3).map(|i| (i, i)));
            if !right {
                return Err(format!("roles are mixed up: {array:?}"));
            }
            // Served only once every copy on every member records it.
            for leaf in leaves(3) {
                for copy in copies(disks, leaf) {
                    match Label::decode(&copy) {
                        // Its lowest bit: the session serves.
                        Ok(l)
                            if l.array.session == session | 3
                                && l.array.state == ArrayState::Active
                                && !l.array.clean => {}
                        other => return Err(format!("started, and disk {} says {other:?}", leaf.0)),
                    }
                }
            }
            Ok(Seen::Started(array.name().to_string()))
        }
    }
}

/// Returns both blocks where labels belong.
fn copies(disks: &Disks, leaf: LeafId) -> [Vec<u8>; 2] {
    let end = copy_offset(disks.size_bytes(leaf)).unwrap();
    [disks.peek(leaf, 0, 4096), disks.peek(leaf, end, 4096)]
}

fn is_new(block: &[u8]) -> bool {
    block.starts_with(&MAGIC) && block[40] == NEW
}

/// Checks that only labels were written (and what a forced create may clear, and the test's own data).
fn untouched(disks: &Disks, act: Act) -> Result<(), String> {
    for leaf in leaves(3) {
        let end = copy_offset(disks.size_bytes(leaf)).unwrap();
        let own = |at: u64| at < BLOCK_BYTES || (end..end + BLOCK_BYTES).contains(&at) || at == DATA_START;
        let cleared = |at: u64| act == Act::ForcedCreate && at / BLOCK_BYTES == 16;
        if let Some(at) = disks.changed(leaf).into_iter().find(|at| !own(*at) && !cleared(*at)) {
            return Err(format!("byte {at} of disk {} was touched", leaf.0));
        }
    }
    Ok(())
}

/// Checks that every member has a valid label while an array is in use.
fn always_a_label(disks: &Disks, act: Act) -> Result<(), String> {
    if !matches!(act, Act::Rename | Act::Stop | Act::Start) {
        return Ok(());
    }
    match leaves(3).into_iter().find(|leaf| copies(disks, *leaf).iter().all(|copy| Label::decode(copy).is_err())) {
        Some(leaf) => Err(format!("disk {} has no whole copy", leaf.0)),
        None => Ok(()),
    }
}

/// Whether the guarantees allow this state.
fn allowed(act: Act, acknowledged: bool, seen: &Seen, all_active: bool) -> bool {
    let started = |text: &str| *seen == Seen::Started(text.into());
    match (act, acknowledged) {
        (Act::Create | Act::ForcedCreate, true) => started("new"),
        // Between the last write and the acknowledgement the two are indistinguishable.
        (Act::Create | Act::ForcedCreate, false) => {
            matches!(seen, Seen::Absent | Seen::Interrupted) || (all_active && started("new"))
        }
        (Act::Rename, true) => started("new"),
        (Act::Rename, false) => started("new") || started("old"),
        (Act::Stop | Act::Start, _) => started("old"),
        (Act::Delete | Act::DeleteFound | Act::DeleteInterrupted(_), true) => *seen == Seen::Absent,
        (Act::Delete | Act::DeleteFound, false) => *seen == Seen::Absent || started("old"),
        (Act::DeleteInterrupted(_), false) => matches!(seen, Seen::Absent | Seen::Interrupted),
    }
}

fn all_active(disks: &Disks) -> bool {
    let active = |copy: &Vec<u8>| Label::decode(copy).is_ok_and(|label| label.array.state == ArrayState::Active);
    leaves(3).into_iter().all(|leaf| copies(disks, leaf).iter().any(active))
}

/// One procedure, interrupted at one step, in one way.
fn one(act: Act, step: Option<u64>, how: Crash, seed: u64, counts: &mut Counts) -> Result<(), String> {
    let mut chance = Chance(seed);
    let disks = before(act);
    let content = [0x5a; 512];
    disks.cut_at(step, seed);
    // Data that was written before the crash and never flushed.
    if act == Act::Start {
        leaves(3).into_iter().for_each(|leaf| disks.poke_cached(leaf, DATA_START, &content));
    }
    let acknowledged = perform(act, &disks).is_ok();
    disks.crash(how, &mut chance);
    counts.crashes += 1;
    always_a_label(&disks, act)?;
    if act == Act::Stop && acknowledged {
        let clean = |copy: &Vec<u8>| Label::decode(copy).is_ok_and(|label| label.array.clean);
        if !leaves(3).into_iter().all(|leaf| copies(&disks, leaf).iter().all(clean)) {
            return Err("stopped, and not marked clean".into());
        }
    }
    let complete = all_active(&disks);
    let verify = |disks: &Disks, seen: &Seen| {
        untouched(disks, act)?;
        if allowed(act, acknowledged, seen, complete) {
            Ok(())
        } else {
            Err(format!("acknowledged {acknowledged}, seen {seen:?}"))
        }
    };
    // Again during the recovery, at some of its steps; then to the end.
    let crashed = disks.clone();
    let first = recover(&disks, &mut chance.clone())?;
    counts.recoveries += 1;
    verify(&disks, &first)?;
    let steps = disks.steps();
    for _ in 0..3 {
        let again = crashed.clone();
        again.cut_at(Some(chance.below(steps + 1)), chance.next());
        let _ = run(assemble(&again, &leaves(3), || 9));
        again.crash(Crash::Power, &mut chance);
        counts.second_crashes += 1;
        always_a_label(&again, act)?;
        let second = recover(&again, &mut chance).map_err(|e| format!("after a second crash: {e}"))?;
        counts.recoveries += 1;
        verify(&again, &second).map_err(|e| format!("after a second crash: {e}"))?;
    }
    no_regress(&disks, act, &first, &mut chance)?;
    if first == Seen::Interrupted {
        let found = run(scan(&disks, &leaves(3)));
        let array = found.arrays.iter().find(|a| a.uuid.as_bytes()[0] == NEW).ok_or("it vanished")?;
        run(delete_found(&disks, array, false)).map_err(|e| e.to_string())?;
        if recover(&disks, &mut chance)? != Seen::Absent {
            return Err("an interrupted create could not be deleted".into());
        }
        untouched(&disks, act)?;
    }
    Ok(())
}

/// Checks that what was visible after a recovery is not lost in a power cut.
fn no_regress(disks: &Disks, act: Act, first: &Seen, chance: &mut Chance) -> Result<(), String> {
    let read = |disks: &Disks| leaves(3).into_iter().map(|leaf| disks.peek(leaf, DATA_START, 512)).collect::<Vec<_>>();
    let was = read(disks);
    let later = disks.clone();
    later.crash(Crash::Power, chance);
    if matches!(first, Seen::Started(_)) && read(&later) != was {
        return Err("what was read after a recovery was gone after a power cut".into());
    }
    let seen = recover(&later, chance)?;
    // An interrupted create guarantees nothing, and nothing was written to keep it.
    let unborn = [first, &seen].iter().all(|s| matches!(s, Seen::Interrupted | Seen::Absent));
    let promised = matches!(act, Act::Delete | Act::DeleteFound);
    if seen == *first || (unborn && !promised) {
        Ok(())
    } else {
        Err(format!("{act:?}: {first:?} was seen, later {seen:?}"))
    }
}

fn sweep(act: Act, seeds: Range<u64>, counts: &mut Counts) -> Result<(), String> {
    let disks = before(act);
    disks.cut_at(None, 0);
    perform(act, &disks).unwrap();
    let steps = disks.steps();
    for step in (0..steps).map(Some).chain([None]) {
        for seed in seeds.clone() {
            for how in [Crash::Power, Crash::Kill] {
                one(act, step, how, seed, counts)
                    .map_err(|e| format!("{act:?} at step {step:?}, {how:?}, seed {seed}: {e}"))?;
            }
        }
    }
    Ok(())
}

fn every_act() -> Vec<Act> {
    let mut acts =
        vec![Act::Create, Act::ForcedCreate, Act::Rename, Act::Stop, Act::Start, Act::Delete, Act::DeleteFound];
    // A create of three disks has 12 steps: six while forming, six while becoming active. Once all are active it is no
    // longer interrupted.
    let interrupted = |act: &Act| {
        let found = run(scan(&before(*act), &leaves(3)));
        found.arrays.iter().any(|array| array.status == ArrayStatus::InterruptedCreate)
    };
    acts.extend((0..12).map(Act::DeleteInterrupted).filter(interrupted));
    acts
}

#[test]
fn every_step_may_be_the_last() {
    let mut counts = Counts::default();
    for act in every_act() {
        sweep(act, 0..12, &mut counts).unwrap();
    }
    println!("{counts:?}");
    assert!(counts.crashes > 3000 && counts.second_crashes > 9000, "{counts:?}");
}
