//! A disk that fails in the middle of a procedure: a refused change must not come back, and a retry must work.

use braid_engine::LeafId;

use super::disks::{Chance, Crash, Disks};
use super::{create_raid0, leaves, name, run, three_disks};
use crate::lifecycle::{ArrayStatus, LifecycleError, assemble, delete_found, scan};

fn whole_start(disks: &Disks) -> crate::lifecycle::Array {
    let mut found = run(assemble(disks, &leaves(3), || 3));
    assert_eq!(found.started.len(), 1, "{:?} {:?}", found.waiting, found.failed);
    found.started.remove(0)
}

#[test]
fn a_create_that_a_disk_stops_is_never_served() {
    for failing in leaves(3) {
        for step in 0..14 {
            for count in [1, u64::MAX] {
                let disks = three_disks();
                disks.fail(failing, step, count);
                let result = create_raid0(&disks, "a", 1, leaves(3));
                disks.heal();
                let Err(error) = result else { continue };
                assert!(matches!(error, LifecycleError::CreateFailed { .. }), "{error}");
                assert_eq!(error.leaf(), Some(failing));
                let LifecycleError::CreateFailed { undone, .. } = error else { continue };
                let found = run(assemble(&disks, &leaves(3), || 3));
                assert!(found.started.is_empty(), "step {step}: served: {found:?}");
                assert!(found.failed.is_empty(), "step {step}: {found:?}");
                assert!(
                    !undone || (found.waiting.is_empty() && found.deleted.is_empty()),
                    "said to be undone: {found:?}"
                );
                for array in &found.waiting {
                    assert_eq!(array.status, ArrayStatus::InterruptedCreate, "step {step}");
                    run(delete_found(&disks, array, false)).unwrap();
                }
                let left = run(scan(&disks, &leaves(3)));
                assert!(left.arrays.is_empty(), "step {step}: {left:?}");
                create_raid0(&disks, "b", 2, leaves(3)).expect("the disks are free again");
            }
        }
    }
}

#[test]
fn a_rename_that_a_disk_stops_can_be_tried_again_and_cut_off_again() {
    let mut failures = 0;
    for step in 0..6 {
        for cut in 0..12 {
            let disks = three_disks();
            let mut array = create_raid0(&disks, "a", 1, leaves(3)).unwrap();
            disks.fail(LeafId(1), step, 1);
            if run(array.rename(&disks, name("b"))).is_ok() {
                continue;
            }
            failures += 1;
            assert_eq!(array.name().as_str(), "a", "what was refused is not shown");
            disks.heal();
            disks.cut_at(Some(cut), 7);
            let renamed = run(array.rename(&disks, name("c"))).is_ok();
            disks.crash(Crash::Power, &mut Chance(step * 100 + cut));
            let back = whole_start(&disks);
            let names: &[&str] = if renamed { &["c"] } else { &["a", "b", "c"] };
            assert!(names.contains(&back.name().as_str()), "step {step}, cut {cut}: {}", back.name());
        }
    }
    assert!(failures > 20, "only {failures} renames failed");
}

#[test]
fn a_start_that_a_disk_stops_says_so_and_works_later() {
    for step in 0..9 {
        let disks = three_disks();
        drop(create_raid0(&disks, "a", 1, leaves(3)).unwrap());
        disks.fail(LeafId(2), step, 1);
        let found = run(assemble(&disks, &leaves(3), || 3));
        disks.heal();
        if let Some((array, error)) = found.failed.first() {
            assert_eq!(error.leaf(), Some(LeafId(2)));
            assert_eq!(array.name.as_str(), "a");
        }
        assert_eq!(whole_start(&disks).name().as_str(), "a");
    }
}

#[test]
fn a_delete_that_a_disk_stops_can_be_repeated_or_is_finished_later() {
    for step in 0..12 {
        for repeat in [true, false] {
            let disks = three_disks();
            let mut array = create_raid0(&disks, "a", 1, leaves(3)).unwrap();
            disks.fail(LeafId(0), step, 1);
            let result = run(array.delete(&disks));
            disks.heal();
            if result.is_err() && repeat {
                run(array.delete(&disks)).unwrap();
            }
            let found = run(assemble(&disks, &leaves(3), || 3));
            assert!(found.waiting.is_empty() && found.failed.is_empty(), "step {step}: {found:?}");
            assert!(found.started.len() + found.deleted.len() <= 1);
            // Only a delete that failed before any disk recorded it may leave the array.
            if repeat || result.is_ok() {
                assert!(found.started.is_empty(), "step {step}");
            }
        }
    }
}
