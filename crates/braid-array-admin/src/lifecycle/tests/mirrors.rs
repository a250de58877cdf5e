//! The members of redundant arrays: they fail, return, are rebuilt, and diverge.

use braid_engine::{LEAF_BYTES_MAX, LeafId, MetaIo};
use braid_format::{JobState, MemberId, MemberState, StartPolicy, bitmap};
use braid_geometry::{Level, Spec};

use super::disks::{Chance, Crash, Disks, Transfers};
use super::{leaves, name, request, run};
use crate::lifecycle::{
    Array, ArrayStatus, Candidate, CreateRequest, LifecycleError, MemberStanding, RebuildKind, RebuildTarget, Refusal,
    Replacement, StartOptions, assemble, create, delete_found, load_regions, scan, start, store_regions,
};

pub(super) fn raid1(text: &str, uuid: u8, leaves: Vec<LeafId>) -> CreateRequest {
    request(text, Spec::new(Level::Raid1), uuid, leaves)
}

pub(super) fn raid10(text: &str, uuid: u8, leaves: Vec<LeafId>) -> CreateRequest {
    request(text, Spec { chunk_bytes: 4096, ..Spec::new(Level::Raid10) }, uuid, leaves)
}

/// Any redundant level, with the smallest chunk.
pub(super) fn redundant(level: Level, text: &str, uuid: u8, leaves: Vec<LeafId>) -> CreateRequest {
    request(text, Spec { chunk_bytes: 4096, ..Spec::new(level) }, uuid, leaves)
}

pub(super) fn mirror_of(count: u32) -> (Disks, Array) {
    let disks = Disks::new(&vec![3 << 20; count as usize + 2]);
    let array = run(create(&disks, &raid1("m", 1, leaves(count)))).unwrap();
    (disks, array)
}

pub(super) fn only(disks: &Disks, of: &[u32]) -> crate::lifecycle::FoundArray {
    let of: Vec<LeafId> = of.iter().copied().map(LeafId).collect();
    let mut found = run(scan(disks, &of));
    assert_eq!(found.arrays.len(), 1, "{found:?}");
    found.arrays.remove(0)
}

pub(super) fn standings(disks: &Disks, of: &[u32]) -> Vec<Option<MemberStanding>> {
    only(disks, of).members.iter().map(|m| m.standing).collect()
}

pub(super) fn begin(disks: &Disks, of: &[u32], random: u64) -> Array {
    run(start(disks, &only(disks, of), StartOptions::new(random, random))).unwrap()
}

pub(super) fn begin_degraded(disks: &Disks, of: &[u32], random: u64) -> Array {
    let options = StartOptions { degraded: true, ..StartOptions::new(random, random) };
    run(start(disks, &only(disks, of), options)).unwrap()
}

pub(super) fn states(array: &Array) -> Vec<MemberState> {
    (0..array.label().members.len() as u16).map(|role| array.state(role)).collect()
}

const NEW_ID: u64 = 0xabc;

pub(super) fn new(leaf: u32) -> RebuildTarget {
    RebuildTarget::New { leaf: LeafId(leaf), id: MemberId::from_random(NEW_ID), force: false }
}

use MemberState::{Empty, Failed, InSync, Rebuilding as BeingFilled, Spare};

#[test]
fn a_mirror_is_created_with_an_empty_bitmap_and_starts_in_any_order() {
    let (disks, array) = mirror_of(3);
    assert_eq!(array.label().region_bytes, bitmap::region_bytes_for(array.geometry().size_bytes()));
    for leaf in leaves(3) {
        let block = disks.peek(leaf, 64 << 10, 4096);
        let read = bitmap::decode(&array.uuid(), 0, block.as_slice().try_into().unwrap());
        assert_eq!((read.damaged, read.bits), (0, bitmap::BitmapBlock::EMPTY));
    }
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        assert_eq!(only(&disks, &order).status, ArrayStatus::Ready);
        let array = begin(&disks, &order, 5);
        assert_eq!(states(&array), [InSync; 3]);
        assert_eq!(array.members().map(|m| m.leaf).collect::<Vec<_>>(), leaves(3));
        assert!(array.is_whole());
    }
}

#[test]
fn half_a_mirror_waits_and_starts_when_told() {
    let (disks, array) = mirror_of(2);
    drop(array);
    let found = only(&disks, &[1]);
    let ArrayStatus::Waiting { missing } = &found.status else { panic!("{:?}", found.status) };
    assert_eq!((missing.len(), missing[0].number), (1, 0));
    assert!(found.status.to_string().contains("--degraded"), "{}", found.status);
    let refused = run(start(&disks, &found, StartOptions::new(1, 1)));
    assert!(matches!(refused, Err(LifecycleError::NotReady { .. })));
    let array = begin_degraded(&disks, &[1], 2);
    assert_eq!(states(&array), [Failed, InSync]);
    assert_eq!(array.label().lineage.parent(), Some(77));
    // From now on it starts automatically: its label records which member has failed.
    assert_eq!(only(&disks, &[1]).status, ArrayStatus::Degraded { missing: vec![] });
    // The other one returns; alone it would wait.
    assert_eq!(standings(&disks, &[0, 1]), [Some(MemberStanding::Returning), Some(MemberStanding::Current)]);
    assert!(matches!(only(&disks, &[0]).status, ArrayStatus::Waiting { .. }));
    let array = begin(&disks, &[0, 1], 3);
    assert_eq!(states(&array), [Failed, InSync]);
    let returning =
        Candidate { slot: 0, leaf: LeafId(0), kind: RebuildKind::FromBitmap, position_bytes: 0, is_same_member: true };
    assert_eq!(array.candidates().collect::<Vec<_>>(), [returning]);
}

#[test]
fn an_array_that_may_always_start_does() {
    let disks = Disks::new(&[3 << 20; 2]);
    let wanted = CreateRequest { start_policy: StartPolicy::Auto, ..raid1("m", 1, leaves(2)) };
    drop(run(create(&disks, &wanted)).unwrap());
    assert!(matches!(only(&disks, &[0]).status, ArrayStatus::Degraded { .. }));
    assert_eq!(run(assemble(&disks, &[LeafId(0)], || 3)).started.len(), 1);
}

#[test]
fn a_raid10_starts_by_itself_if_the_missing_could_not_have_gone_on() {
    let disks = Disks::new(&[3 << 20; 4]);
    drop(run(create(&disks, &raid10("m", 1, leaves(4)))).unwrap());
    // Chunks are on 0 and 1, or on 2 and 3.
    for (present, expected) in [
        (&[0, 1, 2, 3][..], "ready"),
        (&[0, 1, 2], "degraded"),
        (&[0, 2], "waiting"),
        (&[1, 3], "waiting"),
        (&[0, 1], "incomplete"),
        (&[2], "incomplete"),
    ] {
        let found = only(&disks, present);
        let word = match &found.status {
            ArrayStatus::Ready => "ready",
            ArrayStatus::Degraded { .. } => "degraded",
            ArrayStatus::Waiting { .. } => "waiting",
            ArrayStatus::Incomplete { .. } => "incomplete",
            other => panic!("{other:?}"),
        };
        assert_eq!(word, expected, "{present:?}: {}", found.status);
    }
    let array = begin(&disks, &[3, 0, 1], 2);
    assert_eq!(states(&array), [InSync, InSync, Failed, InSync]);
    assert!(array.tolerates(&[0]) && array.tolerates(&[1]));
    assert!(!array.tolerates(&[3]) && !array.tolerates(&[0, 1]));
}

#[test]
fn both_halves_that_were_started_apart_are_refused_and_force_keeps_the_newest() {
    let (disks, array) = mirror_of(2);
    drop(array);
    drop(begin_degraded(&disks, &[0], 10));
    drop(begin_degraded(&disks, &[1], 11));
    drop(begin(&disks, &[1], 12));
    for order in [[0, 1], [1, 0]] {
        let found = only(&disks, &order);
        let ArrayStatus::Refused { reasons } = &found.status else { panic!("{:?}", found.status) };
        assert!(matches!(reasons[..], [Refusal::MemberDiverged { role: 0, leaf: LeafId(0), .. }]), "{reasons:?}");
        assert!(run(start(&disks, &found, StartOptions::new(1, 1))).is_err());
    }
    // Each alone still starts: nothing was written.
    assert!(only(&disks, &[0]).status.starts_by_itself() && only(&disks, &[1]).status.starts_by_itself());
    let found = only(&disks, &[0, 1]);
    let options = StartOptions { force: true, ..StartOptions::new(13, 13) };
    let mut array = run(start(&disks, &found, options)).unwrap();
    assert_eq!(states(&array), [Empty, InSync]);
    let given_up =
        Candidate { slot: 0, leaf: LeafId(0), kind: RebuildKind::Full, position_bytes: 0, is_same_member: false };
    assert_eq!(array.candidates().collect::<Vec<_>>(), [given_up]);
    // That was decided once: the next start does not ask again, and does not treat it as in sync either.
    assert_eq!(only(&disks, &[0, 1]).status, ArrayStatus::Degraded { missing: vec![] });
    let returning = RebuildTarget::Returning { leaf: LeafId(0) };
    assert!(run(array.begin_rebuild(&disks, 0, returning, RebuildKind::FromBitmap)).is_err());
    run(array.begin_rebuild(&disks, 0, new(0), RebuildKind::Full)).unwrap();
    assert_eq!(states(&array), [BeingFilled, InSync]);
    assert_eq!(standings(&disks, &[0, 1]), [Some(MemberStanding::Rebuilding), Some(MemberStanding::Current)]);
}

#[test]
fn an_old_copy_of_a_member_is_never_used() {
    let (disks, mut array) = mirror_of(2);
    let copy = disks.clone_disk(LeafId(0), 3 << 20).0;
    run(array.rename(&disks, name("b"))).unwrap();
    run(array.rename(&disks, name("c"))).unwrap();
    let found = only(&disks, &[copy, 1]);
    let ArrayStatus::Refused { reasons } = &found.status else { panic!("{:?}", found.status) };
    assert!(matches!(reasons[..], [Refusal::OldCopy { role: 0, sequence: 2, newest: 4, .. }]), "{reasons:?}");
    let options = StartOptions { force: true, ..StartOptions::new(13, 13) };
    let array = run(start(&disks, &found, options)).unwrap();
    assert_eq!(states(&array), [Empty, InSync]);
}

#[test]
fn a_dropped_member_catches_up_and_is_promoted() {
    let (disks, mut array) = mirror_of(3);
    let lineage = array.label().lineage.id;
    assert_eq!(run(array.drop_members(&disks, &[1])).unwrap(), [1]);
    assert_ne!(array.label().lineage.id, lineage);
    assert_eq!(states(&array), [InSync, Failed, InSync]);
    assert_eq!(array.leaf(1), None);
    let returning = RebuildTarget::Returning { leaf: LeafId(1) };
    run(array.begin_rebuild(&disks, 1, returning, RebuildKind::FromBitmap)).unwrap();
    assert_eq!(states(&array), [InSync, BeingFilled, InSync]);
    assert!(array.label().jobs.is_empty() && array.candidates().next().is_none());
    // A rebuilding member is no copy.
    assert!(!array.tolerates(&[0, 2]) && array.tolerates(&[0, 1]));
    run(array.promote(&disks, 1)).unwrap();
    assert_eq!(states(&array), [InSync; 3]);
    assert!(array.tolerates(&[0, 2]));
    assert_eq!(only(&disks, &[0, 1, 2]).status, ArrayStatus::Ready);
}

#[test]
fn beyond_what_it_tolerates_nothing_is_written() {
    let (disks, mut array) = mirror_of(2);
    run(array.drop_members(&disks, &[0])).unwrap();
    disks.cut_at(None, 0);
    let refused = run(array.drop_members(&disks, &[1]));
    assert!(matches!(refused, Err(LifecycleError::BeyondTolerance { .. })), "{refused:?}");
    assert_eq!(disks.steps(), 0);
    assert_eq!(states(&array), [Failed, InSync]);
    assert!(only(&disks, &[1]).status.starts_by_itself());
}

#[test]
fn a_survivor_that_fails_meanwhile_is_dropped_too() {
    for step in 0..6 {
        let (disks, mut array) = mirror_of(3);
        disks.fail(LeafId(1), step, u64::MAX);
        let out = run(array.drop_members(&disks, &[0])).unwrap();
        disks.heal();
        assert!(out == [0, 1] || out == [0], "{out:?}");
        let found = only(&disks, &[0, 1, 2]);
        assert!(found.status.starts_by_itself(), "step {step}: {}", found.status);
        let back = begin(&disks, &[1, 2, 0], 6);
        assert_eq!(back.failed(), out, "step {step}");
        assert_eq!(back.state(2), InSync);
    }
}

/// The only other member in sync is the one being replaced, which still holds everything.
#[test]
fn a_successor_that_cannot_flush_when_it_takes_over_is_given_up_alone() {
    for count in [1, u64::MAX] {
        let (disks, mut array) = mirror_of(2);
        run(array.drop_members(&disks, &[1])).unwrap();
        let by = Replacement::New { leaf: LeafId(2), id: MemberId::from_random(NEW_ID), force: false };
        let successor = run(array.begin_replacing(&disks, 0, by)).unwrap();
        run(array.promote(&disks, successor)).unwrap();
        disks.fail(LeafId(2), 0, count);
        let error = run(array.retire(&disks, 0)).unwrap_err();
        assert_eq!(error.leaf(), Some(LeafId(2)), "{error}");
        disks.heal();
        assert_eq!((states(&array), array.label().jobs.len()), (vec![InSync, Failed, Empty], 0));
        // It goes on, and starts again, even if the other disk appears.
        run(array.rename(&disks, name("n"))).unwrap();
        let back = begin(&disks, &[2, 0], 5);
        assert_eq!((back.name().as_str(), back.leaf(0), back.tolerates(&[])), ("n", Some(LeafId(0)), true));
        assert!(!only(&disks, &[2]).status.starts_by_itself());
    }
}

#[test]
fn a_full_rebuild_resumes_where_it_was_also_after_another_loss() {
    let (disks, mut array) = mirror_of(2);
    run(array.drop_members(&disks, &[0])).unwrap();
    run(array.begin_rebuild(&disks, 0, new(2), RebuildKind::Full)).unwrap();
    let size = array.geometry().size_bytes();
    assert_eq!(array.rebuild(0).map(|job| (job.position_bytes, job.end_bytes)), Some((0, size)));
    run(array.checkpoint(&disks, 0, 65536)).unwrap();
    run(array.set_rebuild(&disks, 0, JobState::Paused, 1 << 20)).unwrap();
    drop(array);
    let mut array = begin(&disks, &[1, 2], 4);
    assert_eq!(states(&array), [BeingFilled, InSync]);
    let job = *array.rebuild(0).unwrap();
    assert_eq!((job.position_bytes, job.state, job.rate_bytes_per_s), (65536, JobState::Paused, 1 << 20));
    // The old holder of the slot is no longer part of the array.
    assert_eq!(only(&disks, &[0, 1, 2]).outsiders.len(), 1);
    // Dropped while it is being rebuilt, it does not count as a member that was in sync.
    assert_eq!(run(array.drop_members(&disks, &[0])).unwrap(), [0]);
    let mut array = begin(&disks, &[2, 1], 5);
    let again =
        Candidate { slot: 0, leaf: LeafId(2), kind: RebuildKind::Full, position_bytes: 65536, is_same_member: true };
    assert_eq!(array.candidates().collect::<Vec<_>>(), [again]);
    let returning = RebuildTarget::Returning { leaf: LeafId(2) };
    assert!(run(array.begin_rebuild(&disks, 0, returning, RebuildKind::FromBitmap)).is_err());
    run(array.begin_rebuild(&disks, 0, returning, RebuildKind::Full)).unwrap();
    assert_eq!(array.rebuild(0).unwrap().position_bytes, 65536);
    run(array.promote(&disks, 0)).unwrap();
    assert!(array.is_whole() && array.label().jobs.is_empty());
}

#[test]
fn a_spare_takes_over() {
    let disks = Disks::new(&[3 << 20; 4]);
    let spare_id = MemberId::from_random(0x51);
    let wanted =
        CreateRequest { spares: vec![(LeafId(2), spare_id)], write_mostly: vec![1], ..raid1("m", 1, leaves(2)) };
    let mut array = run(create(&disks, &wanted)).unwrap();
    assert_eq!(states(&array), [InSync, InSync, Spare]);
    assert_eq!((array.slots(), array.spares().count()), (2, 1));
    assert!(array.label().members[1].write_mostly);
    // A missing spare does not matter.
    assert_eq!(only(&disks, &[0, 1]).status, ArrayStatus::Ready);
    run(array.drop_members(&disks, &[1])).unwrap();
    run(array.take_spare(&disks, 1, 2)).unwrap();
    assert_eq!(states(&array), [InSync, BeingFilled]);
    assert_eq!((array.leaf(1), array.label().members[1].write_mostly), (Some(LeafId(2)), true));
    drop(array);
    let mut array = begin(&disks, &[0, 2], 5);
    assert_eq!(array.rebuild(1).unwrap().target, Some(1));
    run(array.promote(&disks, 1)).unwrap();
    // One more, which is removed again.
    let third = run(array.add_spare(&disks, LeafId(3), MemberId::from_random(0x52), false)).unwrap();
    assert_eq!((third, states(&array)), (2, vec![InSync, InSync, Spare]));
    assert!(run(array.remove_spare(&disks, third)).unwrap());
    assert_eq!(states(&array), [InSync, InSync]);
    assert!(run(scan(&disks, &[LeafId(3)])).arrays.is_empty());
    assert_eq!(only(&disks, &[2, 0]).status, ArrayStatus::Ready);
}

#[test]
fn what_cannot_be_done_to_a_member_is_refused_with_the_reason() {
    let (disks, mut array) = mirror_of(2);
    let text = |result: Result<(), LifecycleError>| result.unwrap_err().to_string();
    assert_eq!(text(run(array.remove(&disks, 0))), "member 0: only a failed member can be removed");
    assert_eq!(text(run(array.begin_rebuild(&disks, 0, new(2), RebuildKind::Full))), "member 0: it is in sync");
    assert_eq!(text(run(array.begin_rebuild(&disks, 7, new(2), RebuildKind::Full))), "member 7: there is no such role");
    assert_eq!(text(run(array.promote(&disks, 0))), "member 0: it is not being rebuilt");
    run(array.drop_members(&disks, &[0])).unwrap();
    let from_bitmap = run(array.begin_rebuild(&disks, 0, new(2), RebuildKind::FromBitmap));
    assert_eq!(text(from_bitmap), "member 0: a new member is filled in full, not from the bitmap");
    disks.resize(LeafId(2), 2 << 20);
    let small = text(run(array.begin_rebuild(&disks, 0, new(2), RebuildKind::Full)));
    assert!(small.contains("member 0 needs"), "{small}");
    let used = run(array.begin_rebuild(&disks, 0, new(1), RebuildKind::Full));
    assert!(matches!(used, Err(LifecycleError::Twice { leaf: LeafId(1) })));
    run(array.remove(&disks, 0)).unwrap();
    assert_eq!(states(&array), [Empty, InSync]);
    // A removed member does not come back automatically.
    assert_eq!(only(&disks, &[0, 1]).outsiders.len(), 1);
    let left = run(array.delete(&disks)).unwrap();
    assert!(left.is_empty());
}

#[test]
fn a_disk_that_appears_is_recognised_or_refused() {
    let (disks, mut array) = mirror_of(3);
    let old = disks.clone_disk(LeafId(1), 3 << 20);
    run(array.rename(&disks, name("b"))).unwrap();
    let twin = run(array.probe_returning(&disks, LeafId(1))).unwrap_err();
    assert!(twin.to_string().contains("here already"), "{twin}");
    run(array.drop_members(&disks, &[1])).unwrap();
    let moved = disks.clone_disk(LeafId(1), 3 << 20);
    let candidate = run(array.probe_returning(&disks, moved)).unwrap();
    assert_eq!((candidate.slot, candidate.leaf, candidate.kind), (1, moved, RebuildKind::FromBitmap));
    let _ = old;
    drop(run(create(&disks, &raid1("other", 2, vec![LeafId(3), LeafId(4)]))).unwrap());
    let foreign = run(array.probe_returning(&disks, LeafId(3))).unwrap_err();
    assert!(foreign.to_string().contains("no label of this array"), "{foreign}");
}

#[test]
fn an_array_beyond_its_bitmap_is_refused_with_the_largest_that_is_not() {
    let disks = Disks::new(&[200 << 40, 200 << 40]);
    let refused = run(create(&disks, &raid1("m", 1, leaves(2)))).unwrap_err();
    assert!(refused.to_string().contains("the largest redundant array with it has 108.50 TiB"), "{refused}");
    assert!(disks.changed(LeafId(0)).is_empty());
}

#[test]
fn bits_found_on_one_member_are_written_on_all() {
    let (disks, array) = mirror_of(3);
    let at = 64 << 10;
    let empty = run(load_regions(&disks, &array, false)).unwrap();
    assert!(empty.written.iter().chain(&empty.dirty).all(|word| *word == 0) && empty.damaged_blocks == 0);
    let (mut written, mut dirty) = (empty.written.clone(), empty.dirty.clone());
    (written[0], dirty[0]) = (0b101, 0b001);
    run(store_regions(&disks, &array, &[0], &written, &dirty)).unwrap();
    (written[0], dirty[0]) = (0b001, 0b011);
    run(store_regions(&disks, &array, &[2], &written, &dirty)).unwrap();
    disks.poke(LeafId(1), at, &[7; 512]);
    let merged = run(load_regions(&disks, &array, false)).unwrap();
    assert_eq!((merged.written[0], merged.dirty[0], merged.damaged_blocks), (0b101, 0b011, 1));
    disks.crash(Crash::Power, &mut Chance(3));
    assert!(leaves(3).into_iter().all(|leaf| disks.peek(leaf, at, 4096) == disks.peek(LeafId(0), at, 4096)));
    assert_eq!(run(load_regions(&disks, &array, false)).unwrap().written[0], 0b101);
    // Damaged on all: refused, unless forced; then all of its regions are dirty.
    leaves(3).into_iter().for_each(|leaf| disks.poke(leaf, at, &[7; 512]));
    let refused = run(load_regions(&disks, &array, false)).unwrap_err();
    assert!(matches!(refused, LifecycleError::BitmapDamaged { sectors: 1, .. }), "{refused}");
    let forced = run(load_regions(&disks, &array, true)).unwrap();
    let regions = array.geometry().size_bytes().div_ceil(u64::from(array.label().region_bytes));
    let bits: u32 = forced.dirty.iter().map(|word| word.count_ones()).sum();
    assert_eq!((u64::from(bits), &forced.written), (regions, &forced.dirty));
    assert_eq!(run(load_regions(&disks, &array, false)).unwrap().dirty, forced.dirty);
}

/// The cost of a start if the bitmap takes all of its space: 7 MiB on each of two disks of 109 TiB.
#[test]
fn a_start_reads_the_largest_bitmap_once_and_writes_what_differs() {
    let disks = Disks::new(&[(217 << 39) + (16 << 20) + 4096; 2]);
    let array = run(create(&disks, &raid1("m", 1, leaves(2)))).unwrap();
    assert_eq!(array.geometry().size_bytes(), 217 << 39, "108.5 TiB");
    disks.take_transfers();
    let mut bits = run(load_regions(&disks, &array, false)).unwrap();
    let (bitmap_bytes, piece_bytes) = (7 << 20, LEAF_BYTES_MAX);
    let reads = 2 * bitmap_bytes / piece_bytes;
    let equal = Transfers { reads, read_bytes: 2 * bitmap_bytes, writes: 0, written_bytes: 0 };
    assert_eq!(disks.take_transfers(), equal);
    // On one member, every hundredth block has a further bit: these blocks are written to the other, each by itself.
    let words_per_block = bits.written.len() / (bitmap_bytes / 4096) as usize;
    let blocks: Vec<usize> = (0..1792).step_by(100).collect();
    blocks.iter().for_each(|block| bits.dirty[block * words_per_block] = 1);
    run(store_regions(&disks, &array, &[1], &bits.written, &bits.dirty)).unwrap();
    disks.take_transfers();
    assert_eq!(run(load_regions(&disks, &array, false)).unwrap().dirty, bits.dirty);
    let moved = disks.take_transfers();
    println!("equal: {equal:?}; {} blocks differ: {moved:?}", blocks.len());
    let writes = blocks.len() as u64;
    assert_eq!(moved, Transfers { writes, written_bytes: writes * 4096, ..equal });
}

#[test]
fn a_degraded_array_is_renamed_stopped_and_deleted() {
    let (disks, mut array) = mirror_of(3);
    disks.fail(LeafId(2), 0, u64::MAX);
    // The failure has not been reported: the change discovers it.
    run(array.rename(&disks, name("b"))).unwrap();
    assert_eq!(states(&array), [InSync, InSync, Failed]);
    run(array.stop(&disks)).unwrap();
    assert!(array.label().clean);
    disks.heal();
    let found = only(&disks, &[0, 1]);
    assert_eq!((found.name.as_str(), found.status.clone()), ("b", ArrayStatus::Degraded { missing: vec![] }));
    let mut array = run(start(&disks, &found, StartOptions::new(8, 8))).unwrap();
    assert_eq!(run(array.delete(&disks)).unwrap(), [2], "whose label is still there");
    assert!(run(scan(&disks, &leaves(2))).arrays.is_empty());
    let left = only(&disks, &[2]);
    assert!(matches!(left.status, ArrayStatus::Waiting { .. }), "{}", left.status);
    run(delete_found(&disks, &left, true)).unwrap();
    assert_eq!(disks.size_bytes(LeafId(2)), 3 << 20);
    assert!(run(scan(&disks, &leaves(3))).arrays.is_empty());
}
