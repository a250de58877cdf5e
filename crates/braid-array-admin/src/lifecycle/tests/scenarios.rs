//! What happens to disks between two starts, and what the next start reports.

use braid_engine::{LeafId, MetaIo};
use braid_format::{Label, MAGIC, copy_offset};
use braid_geometry::{Level, Spec};

use super::disks::Disks;
use super::{create_raid0, leaves, name, raid0, request, run, three_disks};
use crate::lifecycle::{
    Array, ArrayStatus, DiskOutcome, DiskProblem, LifecycleError, Refusal, StartOptions, assemble, create,
    delete_found, scan, start, wipe,
};

fn started(disks: &Disks, order: &[LeafId]) -> Array {
    let mut found = run(assemble(disks, order, || 3));
    assert_eq!(found.started.len(), 1, "{:?} {:?}", found.waiting, found.failed);
    found.started.remove(0)
}

fn status_of(disks: &Disks, order: &[LeafId]) -> ArrayStatus {
    let found = run(scan(disks, order));
    assert_eq!(found.arrays.len(), 1, "{found:?}");
    found.arrays[0].status.clone()
}

fn end_of(disks: &Disks, leaf: LeafId) -> u64 {
    copy_offset(disks.size_bytes(leaf)).unwrap()
}

#[test]
fn slots_come_from_the_labels_in_any_disk_order() {
    let disks = three_disks();
    let geometry = create_raid0(&disks, "fast", 1, leaves(3)).unwrap().geometry().clone();
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let order = order.map(LeafId);
        let array = started(&disks, &order);
        let roles: Vec<(u16, LeafId)> = array.members().map(|m| (m.number, m.leaf)).collect();
        assert_eq!(roles, [(0, LeafId(0)), (1, LeafId(1)), (2, LeafId(2))]);
        assert_eq!(array.geometry().zones(), geometry.zones());
        assert_eq!(array.name().as_str(), "fast");
        assert!(array.members().all(|m| m.part.layout.data.start == 1 << 20));
    }
}

#[test]
fn each_start_raises_the_sequence_and_names_its_session() {
    let disks = three_disks();
    drop(create_raid0(&disks, "fast", 1, leaves(3)).unwrap());
    let first = run(assemble(&disks, &leaves(3), || 11)).started.remove(0);
    let label = first.label();
    // The lowest bit: the session serves. The next bit: it is a session.
    assert_eq!((label.sequence, label.session, label.previous_session, label.clean), (4, 11, 1, false));
    let mut second = run(assemble(&disks, &leaves(3), || 12)).started.remove(0);
    let label = second.label();
    assert_eq!((label.sequence, label.session, label.previous_session), (6, 15, 11));
    run(second.stop(&disks)).unwrap();
    assert!(second.label().clean);
    assert_eq!(second.label().sequence, 7);
}

#[test]
fn a_missing_member_is_named() {
    let disks = three_disks();
    drop(create_raid0(&disks, "fast", 1, leaves(3)).unwrap());
    let found = run(assemble(&disks, &[LeafId(2), LeafId(0)], || 3));
    assert!(found.started.is_empty());
    let ArrayStatus::Incomplete { missing } = &found.waiting[0].status else { panic!("{:?}", found.waiting) };
    assert_eq!((missing.len(), missing[0].number), (1, 1));
    let text = found.waiting[0].status.to_string();
    assert_eq!(text, "waiting for member 1 (id 000000010001, 2.99 MiB of data)");
    assert!(run(start(&disks, &found.waiting[0], StartOptions { force: true, ..StartOptions::new(1, 9) })).is_err());
    // Nothing was written meanwhile, and the array starts again.
    assert_eq!(started(&disks, &leaves(3)).label().sequence, 4);
}

#[test]
fn one_damaged_copy_is_repaired_at_the_next_start() {
    for (leaf, at_end) in [(0, false), (1, true), (2, false)] {
        let disks = three_disks();
        drop(create_raid0(&disks, "fast", 1, leaves(3)).unwrap());
        let leaf = LeafId(leaf);
        let at = if at_end { end_of(&disks, leaf) } else { 0 };
        disks.poke(leaf, at + 1024, &[0xff; 512]);
        let found = run(scan(&disks, &leaves(3)));
        let DiskOutcome::Member(member) = &found.disks[leaf.0 as usize].outcome else { panic!("{found:?}") };
        assert!(member.other_copy.is_some());
        drop(started(&disks, &leaves(3)));
        assert!(Label::decode(&disks.peek(leaf, at, 4096)).is_ok());
    }
}

/// Found by the simulator: the power failed during a start, and left only a damaged copy of its label, number 3. The
/// next start writes another number 3; its write to that copy is torn, and completes the damaged label.
#[test]
fn remains_of_a_label_never_come_back_beside_another_of_its_number() {
    let disks = three_disks();
    drop(create_raid0(&disks, "fast", 1, leaves(3)).unwrap());
    let mut label = Label::decode(&disks.peek(LeafId(0), 0, 4096)).unwrap();
    (label.array.sequence, label.array.session, label.array.previous_session) = (3, 98, label.array.session);
    let whole = label.encode().unwrap();
    disks.poke(LeafId(0), 0, &whole);
    disks.poke(LeafId(0), 1024, &[0xff; 512]);
    // After the three flushes, every write to this disk fails.
    disks.fail(LeafId(0), 3, u64::MAX);
    let found = run(assemble(&disks, &leaves(3), || 7));
    assert_eq!(found.failed.len(), 1, "{found:?}");
    disks.heal();
    // One sector of the failed write had landed.
    disks.poke(LeafId(0), 1024, &whole[1024..1536]);
    assert_eq!(status_of(&disks, &leaves(3)), ArrayStatus::Ready);
}

#[test]
fn two_damaged_copies_make_a_missing_member_that_is_pointed_at() {
    let disks = three_disks();
    drop(create_raid0(&disks, "fast", 1, leaves(3)).unwrap());
    let end = end_of(&disks, LeafId(1));
    disks.poke(LeafId(1), 1024, &[0xff; 512]);
    disks.poke(LeafId(1), end + 1024, &[0xff; 512]);
    let ArrayStatus::Incomplete { missing } = status_of(&disks, &leaves(3)) else { panic!() };
    let Some((LeafId(1), DiskProblem::Damaged(_))) = missing[0].unusable_disk else { panic!("{missing:?}") };
}

#[test]
fn a_copy_of_a_disk_beside_the_original_is_refused() {
    let disks = three_disks();
    drop(create_raid0(&disks, "fast", 1, leaves(3)).unwrap());
    let twin = disks.clone_disk(LeafId(1), 4 << 20);
    let all = [LeafId(0), LeafId(1), LeafId(2), twin];
    let ArrayStatus::Refused { reasons } = status_of(&disks, &all) else { panic!() };
    let [Refusal::Twins { slot: 1, leaves: twins, .. }] = reasons.as_slice() else { panic!("{reasons:?}") };
    assert_eq!(twins, &[LeafId(1), twin]);
    let found = run(scan(&disks, &all));
    assert!(
        run(start(&disks, &found.arrays[0], StartOptions { force: true, ..StartOptions::new(1, 9) })).is_err(),
        "not even forced"
    );
    assert!(run(delete_found(&disks, &found.arrays[0], true)).is_err());
    // The same path twice is no twin.
    assert_eq!(status_of(&disks, &[LeafId(0), LeafId(1), LeafId(2), LeafId(1)]), ArrayStatus::Ready);
    // Wiping the copy is the remedy.
    run(wipe(&disks, twin)).unwrap();
    assert_eq!(status_of(&disks, &all), ArrayStatus::Ready);
}

#[test]
fn a_copy_on_a_larger_disk_is_found_by_its_own_layout() {
    let disks = three_disks();
    drop(create_raid0(&disks, "fast", 1, leaves(3)).unwrap());
    let moved = disks.clone_disk(LeafId(1), 9 << 20);
    let array = started(&disks, &[moved, LeafId(0), LeafId(2)]);
    let member = array.members().find(|m| m.number == 1).unwrap();
    assert_eq!((member.leaf, member.part.layout.copy_start), (moved, (4 << 20) - 4096));
}

#[test]
fn a_member_that_was_missing_for_a_session_is_stale() {
    let disks = three_disks();
    drop(create_raid0(&disks, "fast", 1, leaves(3)).unwrap());
    let backup = disks.clone_disk(LeafId(1), 4 << 20);
    drop(started(&disks, &leaves(3)));
    let with_backup = [LeafId(0), backup, LeafId(2)];
    let found = run(assemble(&disks, &with_backup, || 3));
    assert!(found.started.is_empty());
    let ArrayStatus::Refused { reasons } = &found.waiting[0].status else { panic!("{:?}", found.waiting) };
    let [Refusal::Stale { role: 1, sequence: 2, newest: 4, .. }] = reasons.as_slice() else { panic!("{reasons:?}") };
    assert!(found.waiting[0].status.to_string().contains("--force"));
    let refused = run(start(&disks, &found.waiting[0], StartOptions::new(1, 9)));
    assert!(matches!(refused, Err(LifecycleError::NotReady { .. })));
    let forced =
        run(start(&disks, &found.waiting[0], StartOptions { force: true, ..StartOptions::new(1, 9) })).unwrap();
    assert_eq!(forced.label().sequence, 6);
    assert_eq!(status_of(&disks, &with_backup), ArrayStatus::Ready);
}

#[test]
fn labels_of_one_sequence_that_differ_are_refused() {
    let disks = three_disks();
    drop(create_raid0(&disks, "fast", 1, leaves(3)).unwrap());
    let end = end_of(&disks, LeafId(1));
    let mut label = Label::decode(&disks.peek(LeafId(1), 0, 4096)).unwrap();
    label.array.name = name("other");
    let bytes = label.encode().unwrap();
    disks.poke(LeafId(1), 0, &bytes);
    disks.poke(LeafId(1), end, &bytes);
    let ArrayStatus::Refused { reasons } = status_of(&disks, &leaves(3)) else { panic!() };
    assert_eq!(reasons, [Refusal::Diverged { sequence: 2 }]);
    // On one disk, only one of the copies:
    disks.poke(
        LeafId(1),
        0,
        &Label { array: Label::decode(&disks.peek(LeafId(0), 0, 4096)).unwrap().array, ..label }.encode().unwrap(),
    );
    let found = run(scan(&disks, &leaves(3)));
    assert!(matches!(found.disks[1].outcome, DiskOutcome::Unusable { problem: DiskProblem::Contradiction, .. }));
}

#[test]
fn two_arrays_of_one_name_are_distinguished_and_started_one_by_one() {
    let disks = Disks::new(&[4 << 20; 4]);
    drop(create_raid0(&disks, "fast", 1, vec![LeafId(0), LeafId(1)]).unwrap());
    drop(create_raid0(&disks, "fast", 2, vec![LeafId(2), LeafId(3)]).unwrap());
    let found = run(assemble(&disks, &leaves(4), || 3));
    assert!(found.started.is_empty() && found.waiting.len() == 2);
    assert!(found.waiting.iter().all(|a| a.same_name.len() == 1));
    assert!(found.waiting[0].status.to_string().contains("another array of this name"));
    let found = run(scan(&disks, &leaves(4)));
    let mut second = run(start(&disks, &found.arrays[1], StartOptions::new(1, 9))).unwrap();
    run(second.rename(&disks, name("slow"))).unwrap();
    let found = run(assemble(&disks, &leaves(4), || 3));
    let mut names: Vec<&str> = found.started.iter().map(|a| a.name().as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["fast", "slow"]);
}

#[test]
fn a_namesake_that_cannot_be_served_does_not_prevent_a_start() {
    // Half of a foreign array, and the same name again in an interrupted create.
    let disks = Disks::new(&[4 << 20; 6]);
    drop(create_raid0(&disks, "fast", 1, vec![LeafId(0), LeafId(1)]).unwrap());
    disks.cut_at(Some(3), 0);
    assert!(create_raid0(&disks, "fast", 2, vec![LeafId(2), LeafId(3)]).is_err());
    disks.cut_at(None, 0);
    drop(create_raid0(&disks, "fast", 3, vec![LeafId(4), LeafId(5)]).unwrap());
    let present: Vec<LeafId> = (1..6).map(LeafId).collect();
    let found = run(assemble(&disks, &present, || 3));
    assert_eq!(found.started.len(), 1, "{:?}", found.waiting);
    assert_eq!(found.started[0].uuid().as_bytes(), &[3; 16]);
    let mut waiting: Vec<ArrayStatus> = found.waiting.into_iter().map(|a| a.status).collect();
    assert_eq!(waiting.pop(), Some(ArrayStatus::InterruptedCreate));
    assert!(matches!(waiting.pop(), Some(ArrayStatus::Incomplete { .. })));
}

#[test]
fn a_disk_that_shrank_is_refused_and_one_that_grew_is_not() {
    let disks = three_disks();
    drop(create_raid0(&disks, "fast", 1, leaves(3)).unwrap());
    disks.resize(LeafId(1), 8 << 20);
    assert_eq!(started(&disks, &leaves(3)).name().as_str(), "fast");
    disks.resize(LeafId(1), 3 << 20);
    let ArrayStatus::Incomplete { missing } = status_of(&disks, &leaves(3)) else { panic!() };
    let Some((LeafId(1), DiskProblem::TooSmall(text))) = &missing[0].unusable_disk else { panic!("{missing:?}") };
    assert!(text.contains("3145728") && text.contains("4194304"), "{text}");
    disks.resize(LeafId(1), 4096);
    assert!(matches!(status_of(&disks, &leaves(3)), ArrayStatus::Incomplete { .. }));
}

/// Found by the simulator: a growth was interrupted while it wrote a label's copy to the new end of a disk, and the
/// torn copy stayed there after the array was deleted.
#[test]
fn a_torn_copy_of_a_growth_is_cleared_by_the_next_start() {
    let disks = three_disks();
    drop(create_raid0(&disks, "fast", 1, leaves(3)).unwrap());
    let label = disks.peek(LeafId(1), 0, 4096);
    disks.resize(LeafId(1), 8 << 20);
    let end = end_of(&disks, LeafId(1));
    disks.poke(LeafId(1), end, &label[..3584]);
    assert!(Label::decode(&disks.peek(LeafId(1), end, 4096)).is_err(), "it is torn");
    let mut array = started(&disks, &leaves(3));
    assert_eq!(disks.peek(LeafId(1), end, 4096), [0; 4096]);
    run(array.delete(&disks)).unwrap();
    drop(create_raid0(&disks, "again", 2, leaves(3)).unwrap());
}

#[test]
fn a_disk_with_something_on_it_is_refused_unwritten() {
    let mut ext = vec![0; 512];
    ext[0x38..0x3a].copy_from_slice(&[0x53, 0xef]);
    let disks = three_disks();
    disks.poke(LeafId(1), 1024, &ext);
    let before = disks.changed(LeafId(1));
    let refused = create_raid0(&disks, "fast", 1, leaves(3)).unwrap_err();
    assert_eq!(refused.to_string(), "the disk holds ext2 file system; use --force to overwrite it");
    assert_eq!(refused.leaf(), Some(LeafId(1)));
    assert_eq!(disks.changed(LeafId(1)), before);
    assert!(disks.changed(LeafId(0)).is_empty() && disks.changed(LeafId(2)).is_empty());
    let mut forced = raid0("fast", 1, leaves(3));
    forced.force = true;
    drop(run(create(&disks, &forced)).unwrap());
    // A member of an array is refused too.
    let refused = create_raid0(&disks, "again", 2, leaves(3)).unwrap_err();
    assert_eq!(refused.to_string(), "the disk holds Braid label \"fast\"; use --force to overwrite it");
}

#[test]
fn what_cannot_be_created_is_refused_before_anything_is_written() {
    let disks = Disks::new(&[4 << 20, 4 << 20, (1 << 20) + 4096]);
    let raid6 = request("m", Spec::new(Level::Raid6), 1, leaves(2));
    assert!(matches!(run(create(&disks, &raid6)), Err(LifecycleError::Geometry(_))));
    let twice = raid0("a", 1, vec![LeafId(0), LeafId(0)]);
    assert!(matches!(run(create(&disks, &twice)), Err(LifecycleError::Twice { leaf: LeafId(0) })));
    let small = raid0("a", 1, leaves(3));
    assert!(matches!(run(create(&disks, &small)), Err(LifecycleError::Size { leaf: LeafId(2), .. })));
    let mut chunk = raid0("a", 1, leaves(2));
    chunk.spec.chunk_bytes = 1000;
    assert!(matches!(run(create(&disks, &chunk)), Err(LifecycleError::Geometry(_))));
    let mut ids = raid0("a", 1, leaves(2));
    ids.member_ids[1] = ids.member_ids[0];
    assert!(matches!(run(create(&disks, &ids)), Err(LifecycleError::Identities { .. })));
    assert!(leaves(3).into_iter().all(|leaf| disks.changed(leaf).is_empty()));
}

#[test]
fn a_concat_of_128_disks_starts() {
    let sizes: Vec<u64> = (0..128).map(|i| (2 << 20) + i * 65536).collect();
    let disks = Disks::new(&sizes);
    let array = run(create(&disks, &request("long", Spec::new(Level::Concat), 1, leaves(128)))).unwrap();
    assert_eq!(array.geometry().zones().len(), 128);
    let mut order = leaves(128);
    order.reverse();
    let back = started(&disks, &order);
    assert_eq!(back.geometry().zones(), array.geometry().zones());
    // 65 zones of several members do not fit, and nothing is written.
    let other = Disks::new(&sizes);
    let refused = run(create(&other, &raid0("wide", 1, leaves(128)))).unwrap_err();
    assert!(refused.to_string().contains("room for 64"), "{refused}");
    assert!(other.changed(LeafId(0)).is_empty());
}

#[test]
fn wipe_takes_labels_and_nothing_else() {
    let disks = three_disks();
    drop(create_raid0(&disks, "fast", 1, leaves(3)).unwrap());
    let end = end_of(&disks, LeafId(1));
    let wiped = run(wipe(&disks, LeafId(1))).unwrap();
    assert_eq!((wiped.erased, wiped.left), (vec![0, end], vec![]));
    let changed: Vec<u64> = disks.changed(LeafId(1)).iter().map(|at| at / 4096 * 4096).collect();
    assert!(changed.iter().all(|at| *at == 0 || *at == end));
    assert_eq!(disks.peek(LeafId(1), 0, 4096), [0; 4096]);
    // Again, and on a disk without a label: nothing to do.
    assert!(run(wipe(&disks, LeafId(1))).unwrap().erased.is_empty());
    // A damaged label is erased too; noise in its place is not.
    disks.poke(LeafId(0), 512, &[1; 512]);
    assert_eq!(run(wipe(&disks, LeafId(0))).unwrap().erased.len(), 2);
    let fresh = three_disks();
    assert!(run(wipe(&fresh, LeafId(0))).unwrap().erased.is_empty());
    assert!(fresh.changed(LeafId(0)).is_empty());
}

#[test]
fn a_label_of_the_last_partition_is_not_the_disks() {
    let disks = three_disks();
    drop(create_raid0(&disks, "fast", 1, leaves(3)).unwrap());
    // A whole disk whose last partition is member 1: its last block is that partition's copy.
    let whole = Disks::new(&[64 << 20]);
    let end = end_of(&disks, LeafId(1));
    whole.poke(LeafId(0), (64 << 20) - 4096, &disks.peek(LeafId(1), end, 4096));
    let found = run(scan(&whole, &leaves(1)));
    assert!(matches!(found.disks[0].outcome, DiskOutcome::Unlabelled), "{found:?}");
    let wiped = run(wipe(&whole, LeafId(0))).unwrap();
    assert_eq!((wiped.erased, wiped.left), (vec![], vec![(64 << 20) - 4096]));
}

#[test]
fn a_newer_label_is_refused_also_beside_an_older_copy() {
    let disks = three_disks();
    drop(create_raid0(&disks, "fast", 1, leaves(3)).unwrap());
    let mut newer = disks.peek(LeafId(1), 0, 4096);
    newer[12] = 2;
    let crc = |bytes: &[u8], skip: std::ops::Range<usize>| {
        let mut bytes = bytes.to_vec();
        bytes[skip].fill(0);
        // CRC-32C bit by bit: the engine does not need a fast one.
        !bytes
            .iter()
            .fold(!0u32, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ (0x82f6_3b78 * (crc & 1))))
    };
    let header = crc(&newer[..508], 8..12);
    newer[508..512].copy_from_slice(&header.to_le_bytes());
    let label = crc(&newer, 8..12);
    newer[8..12].copy_from_slice(&label.to_le_bytes());
    disks.poke(LeafId(1), 0, &newer);
    let found = run(scan(&disks, &leaves(3)));
    let DiskOutcome::Unusable { problem: DiskProblem::Unsupported(error), .. } = &found.disks[1].outcome else {
        panic!("{:?}", found.disks[1]);
    };
    assert!(error.to_string().contains("use a newer braid"));
    assert!(matches!(found.arrays[0].status, ArrayStatus::Incomplete { .. }));
}

#[test]
fn an_incomplete_array_is_deleted_only_by_force() {
    let disks = three_disks();
    drop(create_raid0(&disks, "fast", 1, leaves(3)).unwrap());
    let found = run(scan(&disks, &leaves(2)));
    assert!(matches!(run(delete_found(&disks, &found.arrays[0], false)), Err(LifecycleError::NotReady { .. })));
    run(delete_found(&disks, &found.arrays[0], true)).unwrap();
    assert!(leaves(2).into_iter().all(|leaf| !disks.peek(leaf, 0, 4096).starts_with(&MAGIC)));
    assert!(disks.peek(LeafId(2), 0, 4096).starts_with(&MAGIC));
}

#[test]
fn the_procedures_can_run_on_any_thread() {
    fn sendable<T: Send>(value: T) -> T {
        value
    }
    let disks = three_disks();
    let request = raid0("fast", 1, leaves(3));
    let mut array = run(sendable(create(&disks, &request))).unwrap();
    run(sendable(array.rename(&disks, name("b")))).unwrap();
    run(sendable(array.stop(&disks))).unwrap();
    let all = leaves(3);
    let mut again = run(sendable(assemble(&disks, &all, || 3))).started.remove(0);
    run(sendable(again.delete(&disks))).unwrap();
    run(sendable(wipe(&disks, LeafId(0)))).unwrap();
    let found = run(sendable(scan(&disks, &all)));
    assert!(found.arrays.is_empty());
}
