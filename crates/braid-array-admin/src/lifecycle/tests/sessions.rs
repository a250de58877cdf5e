//! Old copies of members of arrays that need all of their members: each start is a session of its own. And copies that
//! are present beside the member.

use braid_engine::LeafId;
use braid_format::Label;
use braid_geometry::{Level, Spec};

use super::disks::{Chance, Crash, Disks};
use super::mirrors::{mirror_of, only, redundant};
use super::{leaves, name, request, run, three_disks};
use crate::lifecycle::{
    ArrayStatus, GrowRequest, LifecycleError, MemberStanding, Refusal, Scan, StartOptions, assemble, create, scan,
    start,
};

const LEVELS: [Level; 2] = [Level::Raid0, Level::Concat];

/// Creates an array of three disks whose run ended in a crash.
fn crashed(level: Level) -> Disks {
    let disks = three_disks();
    drop(run(create(&disks, &request("fast", Spec::new(level), 1, leaves(3)))).unwrap());
    disks.crash(Crash::Kill, &mut Chance(1));
    disks
}

fn copy_of(disks: &Disks, leaf: u32) -> LeafId {
    disks.clone_disk(LeafId(leaf), 4 << 20)
}

/// The three disks, with this one in the place of one of them.
fn with(copy: LeafId, member: u32) -> Vec<LeafId> {
    leaves(3).into_iter().map(|leaf| if leaf.0 == member { copy } else { leaf }).collect()
}

/// Runs a start that crashes at this step, or serves. Returns true if it serves, and was killed then.
fn begin(disks: &Disks, of: &[LeafId], session: u64, step: Option<u64>, how: Crash) -> bool {
    let mut chance = Chance(session);
    disks.cut_at(step, session);
    let serves = run(assemble(disks, of, || session << 8)).started.len() == 1;
    disks.crash(how, &mut chance);
    disks.cut_at(None, 0);
    serves
}

/// Returns the number of steps of such a start.
fn steps_of(disks: &Disks) -> u64 {
    let disks = disks.clone();
    disks.cut_at(None, 0);
    assert_eq!(run(assemble(&disks, &leaves(3), || 0x900)).started.len(), 1);
    disks.steps()
}

/// Checks that a disk from before the session is refused, with its slot and a remedy.
fn is_refused(disks: &Disks, copy: LeafId, member: u32) -> Result<(), String> {
    let found = run(scan(disks, &with(copy, member)));
    match &found.arrays[0].status {
        ArrayStatus::Refused { reasons } => match &reasons[..] {
            [reason @ Refusal::Stale { role, leaf, .. }]
                if *leaf == copy && u32::from(*role) == member && reason.to_string().contains("--force") =>
            {
                Ok(())
            }
            reasons => Err(format!("the old copy is refused otherwise: {reasons:?}")),
        },
        status => Err(format!("an old copy of member {member} is taken: {status}")),
    }
}

/// A start serves and is killed; the next one is interrupted at each of its steps. A copy of a member from before the
/// first is refused each time, the member itself never.
fn copies_from_before_a_session(level: Level) -> Result<u64, String> {
    let mut tried = 0;
    for member in 0..3 {
        let disks = crashed(level);
        let copy = copy_of(&disks, member);
        if !begin(&disks, &leaves(3), 2, None, Crash::Kill) {
            return Err("it does not start".into());
        }
        let steps = steps_of(&disks);
        for step in (0..=steps).map(Some).chain([None]) {
            for how in [Crash::Power, Crash::Kill] {
                let disks = disks.clone();
                is_refused(&disks, copy, member)?;
                begin(&disks, &leaves(3), 3, step, how);
                is_refused(&disks, copy, member).map_err(|why| format!("step {step:?}, {how:?}: {why}"))?;
                if !begin(&disks, &leaves(3), 4, None, how) {
                    return Err(format!("step {step:?}, {how:?}: the members themselves do not start"));
                }
                is_refused(&disks, copy, member)?;
                tried += 1;
            }
        }
    }
    Ok(tried)
}

/// Two histories of one array, all of whose disks were restored and used again, with labels that end one step apart.
fn a_member_of_another_session_one_step_behind(level: Level) -> Result<(), String> {
    let disks = crashed(level);
    let before: Vec<LeafId> = (0..3).map(|leaf| copy_of(&disks, leaf)).collect();
    begin(&disks, &leaves(3), 2, None, Crash::Kill);
    // The same labels again, in another session; and then one more.
    let found = run(scan(&disks, &before));
    let mut array = run(start(&disks, &found.arrays[0], StartOptions::new(0x300, 3))).unwrap();
    run(array.rename(&disks, name("slow"))).unwrap();
    let sequence = |leaf: LeafId| Label::decode(&disks.peek(leaf, 0, 4096)).unwrap().array.sequence;
    assert_eq!(sequence(LeafId(1)) + 1, sequence(before[0]));
    let mixed = [before[0], LeafId(1), before[2]];
    match &run(scan(&disks, &mixed)).arrays[0].status {
        ArrayStatus::Refused { reasons } if matches!(reasons[..], [Refusal::Stale { role: 1, .. }]) => Ok(()),
        status => Err(format!("a member of another session is taken: {status}")),
    }
}

#[test]
fn an_old_copy_is_never_a_member_of_an_array_without_redundancy() {
    let mut tried = 0;
    for level in LEVELS {
        tried += copies_from_before_a_session(level).unwrap();
        a_member_of_another_session_one_step_behind(level).unwrap();
    }
    assert!(tried > 150, "{tried}");
}

/// A start that was interrupted before it served wrote no content: a copy from before it is as good as the member.
#[test]
fn an_interrupted_start_begins_no_session() {
    for level in LEVELS {
        let disks = crashed(level);
        let (copy, steps) = (copy_of(&disks, 1), steps_of(&disks));
        let (mut cut, mut taken) = (0, 0);
        for step in 0..steps {
            let disks = disks.clone();
            if begin(&disks, &leaves(3), 2, Some(step), Crash::Power) {
                continue;
            }
            cut += 1;
            let status = run(scan(&disks, &leaves(3))).arrays[0].status.clone();
            assert_eq!(status, ArrayStatus::Ready, "{level}: cut at step {step}");
            taken += u64::from(run(scan(&disks, &with(copy, 1))).arrays[0].status == ArrayStatus::Ready);
        }
        assert!(cut >= 15 && taken > 5, "{level}: {cut} {taken}");
    }
}

/// The last resort of an administrator: the copy is used as it is, and belongs to the array from then on.
#[test]
fn force_uses_an_old_copy_as_it_is() {
    for level in LEVELS {
        let disks = crashed(level);
        let copy = copy_of(&disks, 1);
        begin(&disks, &leaves(3), 2, None, Crash::Kill);
        let found = run(scan(&disks, &with(copy, 1)));
        assert!(found.arrays[0].may_start(true, false) && !found.arrays[0].may_start(false, true));
        let forced = StartOptions { force: true, ..StartOptions::new(0x500, 5) };
        drop(run(start(&disks, &found.arrays[0], forced)).unwrap());
        assert_eq!(run(scan(&disks, &with(copy, 1))).arrays[0].status, ArrayStatus::Ready);
        // The member that it replaced is the old copy now.
        is_refused(&disks, LeafId(1), 1).unwrap();
    }
}

fn beside(disks: &Disks, all: &[LeafId], copy: LeafId) -> Result<Scan, String> {
    let mut order = all.to_vec();
    for turn in 0..order.len() {
        order.rotate_left(1);
        let found = run(scan(disks, &order));
        let array = &found.arrays[0];
        let reported = array.outsiders.iter().any(|(leaf, why)| *leaf == copy && why.contains("old copy"));
        if array.status != ArrayStatus::Ready || !reported || array.disks().any(|disk| disk.leaf == copy) {
            return Err(format!("turn {turn}: {}, outsiders {:?}", array.status, array.outsiders));
        }
    }
    Ok(run(scan(disks, all)))
}

/// The right disk is used, whatever other copies are present.
fn a_copy_beside_its_member(level: Level) -> Result<(), String> {
    let disks = crashed(level);
    let copy = copy_of(&disks, 1);
    let all = [LeafId(0), copy, LeafId(2), LeafId(1)];
    // The two are indistinguishable until one is used.
    let twins = run(scan(&disks, &all)).arrays[0].status.clone();
    assert!(
        matches!(&twins, ArrayStatus::Refused { reasons } if matches!(reasons[..], [Refusal::Twins { .. }])),
        "{twins}"
    );
    begin(&disks, &leaves(3), 2, None, Crash::Kill);
    let found = beside(&disks, &all, copy)?;
    let array = run(start(&disks, &found.arrays[0], StartOptions::new(3, 3))).map_err(|error| error.to_string())?;
    assert_eq!(array.members().map(|m| m.leaf).collect::<Vec<_>>(), leaves(3));
    beside(&disks, &all, copy).map(drop)
}

#[test]
fn an_old_copy_beside_its_member_does_not_prevent_a_start() {
    for level in [Level::Raid0, Level::Concat, Level::Raid1, Level::Raid10, Level::Raid5] {
        a_copy_beside_its_member(level).unwrap();
    }
}

/// A copy that was used elsewhere, and has the higher number, is not a later state of the member.
#[test]
fn a_copy_that_no_other_member_confirms_is_not_later() {
    for level in [Level::Raid0, Level::Raid1] {
        let disks = crashed(level);
        let apart: Vec<LeafId> = (0..3).map(|leaf| copy_of(&disks, leaf)).collect();
        begin(&disks, &leaves(3), 2, None, Crash::Kill);
        begin(&disks, &apart, 3, None, Crash::Kill);
        begin(&disks, &apart, 4, None, Crash::Kill);
        let status = run(scan(&disks, &[LeafId(0), LeafId(1), LeafId(2), apart[1]])).arrays[0].status.clone();
        let ArrayStatus::Refused { reasons } = &status else { panic!("{level}: {status}") };
        assert!(reasons.iter().any(|reason| matches!(reason, Refusal::Twins { .. })), "{level}: {status}");
    }
}

/// A failed member is not used as it is: whichever disks claim to be it, the others start.
#[test]
fn copies_of_a_failed_member_do_not_prevent_a_start() {
    let (disks, mut array) = mirror_of(2);
    assert_eq!(run(array.drop_members(&disks, &[1])).unwrap(), [1]);
    let copy = disks.clone_disk(LeafId(1), 3 << 20).0;
    // Equal copies: neither is used.
    let found = only(&disks, &[0, 1, copy]);
    assert!(found.status.starts_by_itself() && found.outsiders.len() == 2, "{found:?}");
    assert_eq!(found.members[1].disk.as_ref().map(|disk| disk.leaf), None);
    assert_eq!(only(&disks, &[0, copy]).members[1].standing, Some(MemberStanding::Returning));
}

fn before_a_growth(level: Level, members: u32) -> (Disks, LeafId) {
    let disks = Disks::new(&vec![3 << 20; members as usize]);
    let mut array = run(create(&disks, &redundant(level, "m", 1, leaves(members)))).unwrap();
    run(array.stop(&disks)).unwrap();
    let copy = disks.clone_disk(LeafId(1), 3 << 20);
    let mut array = run(assemble(&disks, &leaves(members), || 7)).started.remove(0);
    leaves(members).into_iter().for_each(|leaf| disks.resize(leaf, 6 << 20));
    let before = array.geometry().size_bytes();
    let growth = run(array.grow(&disks, &GrowRequest::default())).unwrap();
    assert!(growth.after_bytes() > before);
    (disks, copy)
}

fn starts_without_it(level: Level, members: u32) -> Result<(), String> {
    let (disks, copy) = before_a_growth(level, members);
    let all: Vec<u32> = leaves(members).into_iter().map(|leaf| if leaf.0 == 1 { copy.0 } else { leaf.0 }).collect();
    let found = only(&disks, &all);
    let said = found.status.to_string();
    let ArrayStatus::Refused { reasons } = &found.status else { return Err(said) };
    if !matches!(reasons[..], [Refusal::OldCopy { role: 1, .. }]) || !said.contains("--force") {
        return Err(said);
    }
    let forced = StartOptions { force: true, ..StartOptions::new(9, 9) };
    let array = run(start(&disks, &found, forced)).map_err(|error: LifecycleError| error.to_string())?;
    assert!(array.members().all(|member| member.leaf != copy));
    assert!(array.candidates().all(|candidate| !candidate.is_same_member));
    Ok(())
}

#[test]
fn an_old_copy_from_before_a_growth_is_dropped_by_force() {
    for (level, members) in [(Level::Raid1, 2), (Level::Raid1, 3), (Level::Raid10, 3), (Level::Raid5, 3)] {
        starts_without_it(level, members).unwrap();
        // Beside the member it does not prevent a start.
        let (disks, copy) = before_a_growth(level, members);
        let all: Vec<LeafId> = leaves(members).into_iter().chain([copy]).collect();
        beside(&disks, &all, copy).unwrap();
    }
}

/// Without redundancy it cannot be used at all, and nothing claims that it could.
#[test]
fn an_old_copy_from_before_a_growth_is_too_small_to_be_used() {
    let disks = three_disks();
    let mut array = run(create(&disks, &request("fast", Spec::new(Level::Raid0), 1, leaves(3)))).unwrap();
    let copy = copy_of(&disks, 1);
    leaves(3).into_iter().for_each(|leaf| disks.resize(leaf, 8 << 20));
    run(array.grow(&disks, &GrowRequest::default())).unwrap();
    let found = run(scan(&disks, &with(copy, 1)));
    let ArrayStatus::Refused { reasons } = &found.arrays[0].status else { panic!("{found:?}") };
    assert!(matches!(reasons[..], [Refusal::WrongSize { role: 1, .. }]), "{reasons:?}");
    assert!(!found.arrays[0].status.to_string().contains("--force") && !found.arrays[0].may_start(true, true));
}
