//! Mirrors that gain a slot, or give one up.

use braid_engine::LeafId;
use braid_format::{MEMBERS_MAX, MemberId, MemberState};
use braid_geometry::{Level, Spec};

use super::disks::Disks;
use super::mirrors::{begin, mirror_of, new, raid1, raid10, states};
use super::{leaves, request, run};
use crate::lifecycle::{Array, CreateRequest, LifecycleError, RebuildKind, RebuildTarget, Replacement, create};
use MemberState::{Empty, InSync, Rebuilding as BeingFilled, Spare};

/// Returns the reason of a refusal.
fn why<T: std::fmt::Debug>(result: Result<T, LifecycleError>) -> String {
    match result {
        Err(LifecycleError::WidthUnchangeable { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

fn taken_by(array: &mut Array, disks: &Disks, role: u16, leaf: u32, id: u64) {
    let newcomer = RebuildTarget::New { leaf: LeafId(leaf), id: MemberId::from_random(id), force: false };
    run(array.begin_rebuild(disks, role, newcomer, RebuildKind::Full)).unwrap();
    run(array.promote(disks, role)).unwrap();
}

#[test]
fn a_mirror_gains_a_slot_that_a_disk_takes() {
    let (disks, mut array) = mirror_of(2);
    let (size, lineage) = (array.geometry().size_bytes(), array.label().lineage.id);
    assert_eq!(run(array.widen(&disks)).unwrap(), 2);
    assert_eq!(states(&array), [InSync, InSync, Empty]);
    assert_eq!(array.geometry().zones()[0].members, [0, 1, 2]);
    assert_eq!((array.geometry().size_bytes(), array.label().lineage.id), (size, lineage));
    assert_eq!((array.is_whole(), array.may_clear_bits()), (false, true));
    assert_eq!(array.vacant().collect::<Vec<_>>(), [2]);
    // A start finds it so, and it starts automatically.
    let mut array = begin(&disks, &[0, 1], 5);
    assert_eq!(states(&array), [InSync, InSync, Empty]);
    run(array.begin_rebuild(&disks, 2, new(2), RebuildKind::Full)).unwrap();
    assert_eq!(states(&array), [InSync, InSync, BeingFilled]);
    // Bits are kept from here on: before, they were cleared.
    assert!(array.label().lineage.id != lineage && !array.may_clear_bits());
    run(array.promote(&disks, 2)).unwrap();
    assert!(array.is_whole());
    // Each of the three members is enough.
    for leaf in 0..3 {
        let lost: Vec<u16> = (0..3).filter(|role| *role != leaf).collect();
        assert!(array.tolerates(&lost));
    }
    assert!(run(array.drop_members(&disks, &[0, 1])).is_ok());
    drop(array);
    assert_eq!(begin(&disks, &[2], 6).geometry().size_bytes(), size);
}

#[test]
fn a_slot_is_removed_once_it_is_vacant() {
    let (disks, mut array) = mirror_of(3);
    assert!(why(run(array.narrow(&disks, 2))).contains("somebody's"));
    run(array.drop_members(&disks, &[2])).unwrap();
    assert!(why(run(array.narrow(&disks, 2))).contains("somebody's"));
    run(array.remove(&disks, 2)).unwrap();
    assert!(why(run(array.narrow(&disks, 3))).contains("none that it has"));
    run(array.narrow(&disks, 2)).unwrap();
    assert_eq!((states(&array), array.is_whole()), (vec![InSync; 2], true));
    assert_eq!(array.geometry().zones()[0].members, [0, 1]);
    drop(array);
    assert_eq!(states(&begin(&disks, &[0, 1], 5)), [InSync; 2]);
}

#[test]
fn spares_keep_being_spares_under_other_numbers() {
    let disks = Disks::new(&[3 << 20; 6]);
    let spares = vec![(LeafId(2), MemberId::from_random(7)), (LeafId(3), MemberId::from_random(8))];
    let mut array = run(create(&disks, &CreateRequest { spares, ..raid1("m", 1, leaves(2)) })).unwrap();
    run(array.remove_spare(&disks, 2)).unwrap();
    assert_eq!(states(&array), [InSync, InSync, Empty, Spare]);
    // The free number between them is not kept.
    run(array.widen(&disks)).unwrap();
    assert_eq!(states(&array), [InSync, InSync, Empty, Spare]);
    assert_eq!((array.slots(), array.leaf(3)), (3, Some(LeafId(3))));
    run(array.widen(&disks)).unwrap();
    assert_eq!((states(&array), array.leaf(4)), (vec![InSync, InSync, Empty, Empty, Spare], Some(LeafId(3))));
    drop(array);
    let mut array = begin(&disks, &[0, 1, 3], 5);
    run(array.take_spare(&disks, 3, 4)).unwrap();
    assert_eq!(states(&array), [InSync, InSync, Empty, BeingFilled]);
    run(array.promote(&disks, 3)).unwrap();
    assert!(array.may_clear_bits() && !array.is_whole());
    // The slot in the middle.
    run(array.narrow(&disks, 2)).unwrap();
    assert_eq!((states(&array), array.leaf(2)), (vec![InSync; 3], Some(LeafId(3))));
    drop(array);
    assert_eq!(states(&begin(&disks, &[3, 1, 0], 6)), [InSync; 3]);
}

#[test]
fn the_first_slot_is_removed_and_the_others_are_renumbered() {
    let (disks, mut array) = mirror_of(4);
    run(array.drop_members(&disks, &[0])).unwrap();
    run(array.remove(&disks, 0)).unwrap();
    run(array.drop_members(&disks, &[2])).unwrap();
    assert!(why(run(array.narrow(&disks, 0))).contains("member 2, behind it"));
    run(array.remove(&disks, 2)).unwrap();
    run(array.narrow(&disks, 0)).unwrap();
    assert_eq!((states(&array), array.leaf(0)), (vec![InSync, Empty, InSync], Some(LeafId(1))));
    drop(array);
    let mut array = begin(&disks, &[1, 3], 5);
    run(array.narrow(&disks, 1)).unwrap();
    assert_eq!((states(&array), array.leaf(1)), (vec![InSync; 2], Some(LeafId(3))));
}

#[test]
fn a_spare_that_fails_while_it_is_renumbered_is_removed() {
    let disks = Disks::new(&[3 << 20; 6]);
    let spares = vec![(LeafId(2), MemberId::from_random(7))];
    let mut array = run(create(&disks, &CreateRequest { spares, ..raid1("m", 1, leaves(2)) })).unwrap();
    run(array.widen(&disks)).unwrap();
    assert_eq!(states(&array), [InSync, InSync, Empty, Spare]);
    disks.cut_at(None, 0);
    disks.fail(LeafId(2), 0, u64::MAX);
    run(array.narrow(&disks, 2)).unwrap();
    assert_eq!((states(&array), array.spares().count()), (vec![InSync, InSync, Empty], 0));
    assert_eq!((array.slots(), array.is_whole()), (2, true));
}

#[test]
fn a_mirror_of_one_is_one_of_two_and_of_one_again() {
    let disks = Disks::new(&[3 << 20; 3]);
    let spec = Spec { copies: 1, ..Spec::new(Level::Raid1) };
    let mut array = run(create(&disks, &request("m", spec, 1, leaves(1)))).unwrap();
    run(array.widen(&disks)).unwrap();
    assert_eq!((array.label().spec.copies, states(&array)), (2, vec![InSync, Empty]));
    taken_by(&mut array, &disks, 1, 1, 9);
    assert!(array.is_whole() && array.tolerates(&[0]));
    drop(array);
    let mut array = begin(&disks, &[0, 1], 5);
    run(array.drop_members(&disks, &[1])).unwrap();
    run(array.remove(&disks, 1)).unwrap();
    run(array.narrow(&disks, 1)).unwrap();
    assert_eq!((array.label().spec.copies, states(&array)), (1, vec![InSync]));
    assert!(why(run(array.narrow(&disks, 0))).contains("somebody's"));
    drop(array);
    assert_eq!(states(&begin(&disks, &[0], 6)), [InSync]);
}

#[test]
fn every_zone_gets_the_copy() {
    let disks = Disks::new(&[3 << 20, 5 << 20, 5 << 20, 5 << 20, 4 << 20]);
    let mut array = run(create(&disks, &raid1("m", 1, leaves(3)))).unwrap();
    assert_eq!(array.geometry().zones().len(), 2);
    run(array.widen(&disks)).unwrap();
    assert!(array.geometry().zones().iter().all(|zone| zone.members.contains(&3)));
    let newcomer = RebuildTarget::New { leaf: LeafId(4), id: MemberId::from_random(9), force: false };
    let small = run(array.begin_rebuild(&disks, 3, newcomer, RebuildKind::Full));
    assert!(matches!(small, Err(LifecycleError::TooSmall { .. })), "{small:?}");
    taken_by(&mut array, &disks, 3, 3, 9);
    assert!(array.is_whole() && array.tolerates(&[0, 1, 2]));
    // Without two of the three members the higher zone would have one copy.
    run(array.drop_members(&disks, &[3])).unwrap();
    run(array.remove(&disks, 3)).unwrap();
    run(array.narrow(&disks, 3)).unwrap();
    run(array.drop_members(&disks, &[2])).unwrap();
    run(array.remove(&disks, 2)).unwrap();
    assert!(why(run(array.narrow(&disks, 2))).contains("one copy only"));
}

#[test]
fn what_cannot_be_wider_is_refused_and_nothing_is_written() {
    let disks = Disks::new(&[3 << 20; 5]);
    let mut array = run(create(&disks, &raid10("m", 1, leaves(3)))).unwrap();
    assert!(why(run(array.widen(&disks))).contains("raid10"));
    let (disks, mut array) = mirror_of(2);
    let sequence = array.label().sequence;
    let by = Replacement::New { leaf: LeafId(2), id: MemberId::from_random(5), force: false };
    run(array.begin_replacing(&disks, 0, by)).unwrap();
    assert!(why(run(array.widen(&disks))).contains("being replaced"));
    assert_eq!(array.label().sequence, sequence + 1);
    let (disks, mut array) = mirror_of(2);
    for _ in 2..MEMBERS_MAX {
        run(array.widen(&disks)).unwrap();
    }
    assert!(why(run(array.widen(&disks))).contains("at most 128"));
    assert_eq!(usize::from(array.slots()), MEMBERS_MAX);
}

/// A copy of a member from before bits were cleared must not return after that member fails, while a disk that took a
/// slot is being rebuilt.
fn old_copy_is_refused() -> Result<(), String> {
    let (disks, mut array) = mirror_of(2);
    let copy = disks.clone_disk(LeafId(1), 3 << 20);
    // Writes happen here, and bits are cleared.
    run(array.widen(&disks)).unwrap();
    run(array.begin_rebuild(&disks, 2, new(2), RebuildKind::Full)).unwrap();
    run(array.drop_members(&disks, &[1])).unwrap();
    match run(array.probe_returning(&disks, copy)) {
        Err(LifecycleError::NoReturn { .. }) => Ok(()),
        Ok(candidate) => Err(format!("{candidate:?}")),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn taking_a_vacant_slot_begins_a_lineage() {
    old_copy_is_refused().unwrap();
}

#[test]
fn a_disk_that_is_no_copy_leaves_the_mirror_as_wide_as_it_was() {
    let disks = Disks::new(&[3 << 20, 3 << 20, 2 << 20, 3 << 20]);
    let mut array = run(create(&disks, &raid1("m", 1, leaves(2)))).unwrap();
    let id = MemberId::from_random(9);
    let sequence = array.label().sequence;
    let small = run(array.widen_by(&disks, LeafId(2), id, false));
    assert!(matches!(small, Err(LifecycleError::TooSmall { .. })), "{small:?}");
    assert_eq!((array.label().sequence, array.slots()), (sequence, 2));
    // The new disk fails while one of its labels is written.
    for step in 0..6 {
        disks.cut_at(None, 0);
        disks.fail(LeafId(3), step, u64::MAX);
        let failed = run(array.widen_by(&disks, LeafId(3), id, true));
        disks.heal();
        if failed.is_ok() {
            break;
        }
        assert_eq!((array.slots(), array.is_whole()), (2, true), "{failed:?} at {step}");
    }
    if array.slots() == 2 {
        assert_eq!(run(array.widen_by(&disks, LeafId(3), id, true)).unwrap(), 2);
    }
    assert_eq!(states(&array)[..2], [InSync, InSync]);
}
