//! Old copies of members that come back in their place: what they lack may no longer be dirty.

use braid_engine::{LeafId, MetaIo};
use braid_format::{LABEL_BYTES, MemberId, MemberState, copy_offset};

use super::disks::Disks;
use super::mirrors::{begin, begin_degraded, mirror_of, new, only, standings, states};
use super::{name, run};
use crate::lifecycle::{
    Array, ArrayStatus, Candidate, MemberStanding, RebuildKind, RebuildTarget, Refusal, StartOptions, start,
};

fn copy_of(disks: &Disks, leaf: u32) -> u32 {
    disks.clone_disk(LeafId(leaf), 3 << 20).0
}

fn drop_one(disks: &Disks, array: &mut Array, role: u16) {
    assert!(run(array.drop_members(disks, &[role])).unwrap().contains(&role));
}

/// Lets the member return and become in sync again.
fn rebuild(disks: &Disks, array: &mut Array, role: u16, leaf: u32) {
    let returning = RebuildTarget::Returning { leaf: LeafId(leaf) };
    run(array.begin_rebuild(disks, role, returning, RebuildKind::FromBitmap)).unwrap();
    run(array.promote(disks, role)).unwrap();
}

/// Returns how a disk that has failed by all labels may return: both while the array serves and after a start.
pub(super) fn returns(disks: &Disks, array: &mut Array, leaf: u32) -> Option<Candidate> {
    let serving = run(array.probe_returning(disks, LeafId(leaf)));
    if let Err(error) = &serving {
        let text = error.to_string();
        assert!(text.contains("as a new member it is rebuilt in full"), "{text}");
    }
    let present: Vec<u32> = array.members().map(|m| m.leaf.0).chain([leaf]).collect();
    let again = disks.clone();
    let found = begin(&again, &present, 99).candidates().find(|c| c.leaf == LeafId(leaf));
    let found = found.filter(|candidate| candidate.is_same_member);
    assert_eq!(serving.ok(), found, "while it serves, and at a start");
    found
}

pub(super) fn from_bitmap(role: u16, leaf: u32) -> Option<Candidate> {
    Some(Candidate {
        slot: role,
        leaf: LeafId(leaf),
        kind: RebuildKind::FromBitmap,
        position_bytes: 0,
        is_same_member: true,
    })
}

/// The copy of a member is made while the array is stopped. Then the array serves, clears its bits, and drops the
/// member.
fn a_copy_from_before_the_bits_were_cleared() -> Result<(), String> {
    let (disks, mut array) = mirror_of(2);
    run(array.stop(&disks)).unwrap();
    let copy = copy_of(&disks, 1);
    let mut array = begin(&disks, &[0, 1], 2);
    drop_one(&disks, &mut array, 1);
    assert_eq!(returns(&disks, &mut array, 1), from_bitmap(1, 1));
    match returns(&disks, &mut array, copy) {
        None => Ok(()),
        Some(candidate) => Err(format!("{candidate:?} lacks what was cleared")),
    }
}

/// The copy of a member is made while the member has failed. Then the member returns, and fails again.
fn a_copy_from_an_earlier_failure() -> Result<(), String> {
    let (disks, mut array) = mirror_of(2);
    drop_one(&disks, &mut array, 1);
    let copy = copy_of(&disks, 1);
    assert_eq!(returns(&disks, &mut array, copy), from_bitmap(1, copy), "all that it lacks is dirty");
    rebuild(&disks, &mut array, 1, 1);
    drop_one(&disks, &mut array, 1);
    assert_eq!(returns(&disks, &mut array, 1), from_bitmap(1, 1));
    match returns(&disks, &mut array, copy) {
        None => Ok(()),
        Some(candidate) => Err(format!("{candidate:?} lacks what was cleared")),
    }
}

/// The copy of a member is made while the array is stopped. Then the array serves, crashes, and starts without the
/// member.
fn a_copy_from_before_a_degraded_start() -> Result<(), String> {
    let (disks, mut array) = mirror_of(2);
    run(array.stop(&disks)).unwrap();
    let copy = copy_of(&disks, 1);
    drop(begin(&disks, &[0, 1], 2));
    let mut array = begin_degraded(&disks, &[0], 3);
    assert_eq!(returns(&disks, &mut array, 1), from_bitmap(1, 1));
    match returns(&disks, &mut array, copy) {
        None => Ok(()),
        Some(candidate) => Err(format!("{candidate:?} lacks what was cleared")),
    }
}

/// In sync by the labels, but restored from before the last run, which ended in a crash. It and one other of this many
/// members are present.
fn a_restored_disk_is_not_in_sync(members: u32) -> Result<(), String> {
    let (disks, mut array) = mirror_of(members);
    run(array.stop(&disks)).unwrap();
    let copy = copy_of(&disks, 1);
    let all: Vec<u32> = (0..members).collect();
    drop(begin(&disks, &all, 2));
    let found = only(&disks, &[copy, 0]);
    let sequences = match &found.status {
        ArrayStatus::Refused { reasons } => match reasons[..] {
            [Refusal::OldCopy { role: 1, sequence, newest, .. }] => (sequence, newest),
            _ => return Err(format!("{reasons:?}")),
        },
        other => return Err(format!("the restored disk is taken: {other}")),
    };
    assert_eq!(sequences, (3, 5), "two labels of the start");
    // By force it starts without that disk, which comes back only as a new member.
    let options = StartOptions { force: true, degraded: true, ..StartOptions::new(4, 4) };
    let mut array = run(start(&disks, &found, options)).unwrap();
    assert_eq!(array.members().map(|m| m.leaf).collect::<Vec<_>>(), [LeafId(0)]);
    assert!(array.candidates().all(|candidate| !candidate.is_same_member));
    let newcomer = RebuildTarget::New { leaf: LeafId(copy), id: MemberId::from_random(0xabc), force: false };
    assert!(run(array.begin_rebuild(&disks, 1, newcomer, RebuildKind::FromBitmap)).is_err());
    run(array.begin_rebuild(&disks, 1, newcomer, RebuildKind::Full)).unwrap();
    Ok(())
}

/// Dropped, truncated and extended again: its label at the start is valid, and no bit covers what was lost.
#[test]
fn a_disk_that_was_cut_returns_as_a_new_member_only() {
    let (disks, mut array) = mirror_of(2);
    drop_one(&disks, &mut array, 1);
    assert_eq!(returns(&disks, &mut array, 1), from_bitmap(1, 1));
    let end = copy_offset(disks.size_bytes(LeafId(1))).unwrap();
    run(disks.write(LeafId(1), end, vec![0; LABEL_BYTES], true)).unwrap();
    assert_eq!(returns(&disks, &mut array, 1), None, "it lacks what was cut off");
    let newcomer = RebuildTarget::New { leaf: LeafId(1), id: MemberId::from_random(0xabc), force: true };
    run(array.begin_rebuild(&disks, 1, newcomer, RebuildKind::Full)).unwrap();
}

fn all() -> Result<(), String> {
    a_copy_from_before_the_bits_were_cleared()?;
    a_copy_from_an_earlier_failure()?;
    a_copy_from_before_a_degraded_start()?;
    a_restored_disk_is_not_in_sync(2)?;
    a_restored_disk_is_not_in_sync(3)
}

#[test]
fn an_old_copy_of_a_member_never_comes_back_as_that_member() {
    all().unwrap();
}

/// Of three members one fails while it is being rebuilt, and then another. No bit was cleared since the first failure.
#[test]
fn a_member_that_failed_earlier_than_others_still_returns() {
    let (disks, mut array) = mirror_of(3);
    drop_one(&disks, &mut array, 1);
    let returning = RebuildTarget::Returning { leaf: LeafId(1) };
    run(array.begin_rebuild(&disks, 1, returning, RebuildKind::FromBitmap)).unwrap();
    drop_one(&disks, &mut array, 1);
    for text in ["b", "c", "d"] {
        run(array.rename(&disks, name(text))).unwrap();
    }
    drop_one(&disks, &mut array, 2);
    assert_eq!(states(&array), [MemberState::InSync, MemberState::Failed, MemberState::Failed]);
    assert_eq!(returns(&disks, &mut array, 1), from_bitmap(1, 1));
    assert_eq!(returns(&disks, &mut array, 2), from_bitmap(2, 2));
    // One of them is in sync again, and fails; the array was never whole meanwhile.
    let copy = copy_of(&disks, 2);
    rebuild(&disks, &mut array, 2, 2);
    drop_one(&disks, &mut array, 2);
    assert_eq!(returns(&disks, &mut array, copy), from_bitmap(2, copy));
    // Now it is whole: only members that were present then may return.
    let before = copy_of(&disks, 1);
    rebuild(&disks, &mut array, 2, 2);
    rebuild(&disks, &mut array, 1, 1);
    drop_one(&disks, &mut array, 1);
    drop_one(&disks, &mut array, 2);
    assert_eq!([copy, before].map(|leaf| returns(&disks, &mut array, leaf)), [None, None]);
    assert_eq!([1, 2].map(|leaf| returns(&disks, &mut array, leaf)), [from_bitmap(1, 1), from_bitmap(2, 2)]);
}

/// A copy made during a full rebuild resumes at its own position, not at the member's; and once the member was in sync
/// the copy is of no use, whether or not the array was whole then.
#[test]
fn a_copy_of_a_half_rebuilt_member_keeps_its_position() {
    let (disks, mut array) = mirror_of(3);
    drop_one(&disks, &mut array, 2);
    drop_one(&disks, &mut array, 1);
    run(array.begin_rebuild(&disks, 1, new(3), RebuildKind::Full)).unwrap();
    let empty = copy_of(&disks, 3);
    run(array.checkpoint(&disks, 1, 65536)).unwrap();
    let half = copy_of(&disks, 3);
    run(array.checkpoint(&disks, 1, 131072)).unwrap();
    drop_one(&disks, &mut array, 1);
    for (leaf, position_bytes) in [(3, 131072), (half, 65536), (empty, 0)] {
        let expected =
            Candidate { slot: 1, leaf: LeafId(leaf), kind: RebuildKind::Full, position_bytes, is_same_member: true };
        assert_eq!(returns(&disks, &mut array, leaf), Some(expected));
    }
    let newcomer = RebuildTarget::Returning { leaf: LeafId(half) };
    let mut other = begin(&disks.clone(), &[0, half], 8);
    run(other.begin_rebuild(&disks.clone(), 1, newcomer, RebuildKind::Full)).unwrap();
    assert_eq!(other.rebuild(1).unwrap().position_bytes, 65536);
    // The member itself is rebuilt, and in sync; another one has still failed.
    let mut array = begin(&disks, &[0, 3], 9);
    run(array.begin_rebuild(&disks, 1, RebuildTarget::Returning { leaf: LeafId(3) }, RebuildKind::Full)).unwrap();
    run(array.promote(&disks, 1)).unwrap();
    drop_one(&disks, &mut array, 1);
    assert_eq!(returns(&disks, &mut array, 3), from_bitmap(1, 3));
    assert_eq!([half, empty].map(|leaf| returns(&disks, &mut array, leaf)), [None, None]);
}

/// A copy of a spare that has since taken a slot.
#[test]
fn a_copy_of_a_spare_holds_nothing() {
    let (disks, mut array) = mirror_of(3);
    let id = MemberId::from_random(0x51);
    let spare = run(array.add_spare(&disks, LeafId(3), id, false)).unwrap();
    let copy = copy_of(&disks, 3);
    drop_one(&disks, &mut array, 2);
    drop_one(&disks, &mut array, 1);
    run(array.take_spare(&disks, 1, spare)).unwrap();
    run(array.checkpoint(&disks, 1, 65536)).unwrap();
    drop_one(&disks, &mut array, 1);
    let anew =
        Candidate { slot: 1, leaf: LeafId(copy), kind: RebuildKind::Full, position_bytes: 0, is_same_member: true };
    assert_eq!(returns(&disks, &mut array, copy), Some(anew));
    run(array.probe_returning(&disks, LeafId(3))).unwrap();
    run(array.begin_rebuild(&disks, 1, RebuildTarget::Returning { leaf: LeafId(3) }, RebuildKind::Full)).unwrap();
    run(array.promote(&disks, 1)).unwrap();
    drop_one(&disks, &mut array, 1);
    assert_eq!(returns(&disks, &mut array, 3), from_bitmap(1, 3));
    assert_eq!(returns(&disks, &mut array, copy), None);
}

/// Two of three diverged from the third, which `--force` decided for: neither gets a delta resync, not even the one
/// that was missing at that decision.
#[test]
fn a_diverged_member_never_returns() {
    let (disks, array) = mirror_of(3);
    drop(array);
    drop(begin_degraded(&disks, &[1, 2], 10));
    drop(begin_degraded(&disks, &[0], 11));
    drop(begin(&disks, &[0], 12));
    let found = only(&disks, &[0, 1]);
    let options = StartOptions { force: true, degraded: true, ..StartOptions::new(13, 13) };
    let mut array = run(start(&disks, &found, options)).unwrap();
    assert_eq!(states(&array), [MemberState::InSync, MemberState::Empty, MemberState::Failed]);
    assert_eq!(returns(&disks, &mut array, 2), None);
    assert_eq!(standings(&disks, &[0, 2])[2], Some(MemberStanding::Stale));
}
