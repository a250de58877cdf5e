//! Lineages that were begun on one disk and interrupted before they were used: a disk with such a lineage has not
//! diverged.

use braid_engine::LeafId;

use super::disks::{Chance, Crash, Disks};
use super::mirrors::{begin, begin_degraded, mirror_of, only, standings};
use super::old_copies::{from_bitmap, returns};
use super::run;
use crate::lifecycle::{ArrayStatus, MemberStanding, StartOptions, start};

fn lineage_of(disks: &Disks, leaf: u32) -> u64 {
    only(disks, &[leaf]).newest.unwrap().lineage.id
}

/// Starts the array with some of its disks, and kills it when the first label of that start is on one of them only.
fn begun_on(disks: &Disks, present: &[u32], on: u32, random: u64) -> Disks {
    let before: Vec<u64> = present.iter().map(|leaf| lineage_of(disks, *leaf)).collect();
    for (seed, step) in (0..20).flat_map(|seed| (0..12).map(move |step| (seed, step))) {
        let cut = disks.clone();
        let found = only(&cut, present);
        cut.cut_at(Some(step), seed);
        let options = StartOptions { degraded: true, ..StartOptions::new(random, random) };
        let started = run(start(&cut, &found, options));
        cut.crash(Crash::Kill, &mut Chance(seed));
        let parted = |(leaf, before): (&u32, &u64)| (lineage_of(&cut, *leaf) != *before) == (*leaf == on);
        if started.is_err() && present.iter().zip(&before).all(parted) {
            return cut;
        }
    }
    panic!("no step of a start leaves its label on disk {on} alone")
}

/// Disk 0 began a lineage without disk 2, and was then missing; the others went on without it.
#[test]
fn a_member_with_an_unused_lineage_returns() {
    let (disks, array) = mirror_of(3);
    drop(array);
    let disks = begun_on(&disks, &[0, 1], 0, 10);
    let begun = lineage_of(&disks, 0);
    let mut array = begin_degraded(&disks, &[1, 2], 11);
    assert!(!array.label().lineage.knows(begun));
    assert_eq!(returns(&disks, &mut array, 0), from_bitmap(0, 0));
    assert_eq!(standings(&disks, &[2, 0, 1])[0], Some(MemberStanding::Returning));
    // Only disk 1 proves that this lineage was never used. Once it has, the others know without that disk.
    let array = begin(&disks, &[0, 1, 2], 12);
    assert!(array.label().lineage.knows(begun));
    assert_eq!(array.failed(), [0]);
    let mut array = begin_degraded(&disks, &[2], 13);
    assert_eq!(returns(&disks, &mut array, 0), from_bitmap(0, 0));
}

/// Disk 0 began a lineage without disk 1, and disk 1 one without disk 0, each with disk 2, which bears neither.
#[test]
fn of_two_unused_lineages_one_is_chosen_and_no_disk_is_refused() {
    for (first, second) in [(10, 20), (20, 10)] {
        let (disks, array) = mirror_of(3);
        drop(array);
        let disks = begun_on(&disks, &[0, 2], 0, first);
        let disks = begun_on(&disks, &[1, 2], 1, second);
        let lineages = [0, 1, 2].map(|leaf| lineage_of(&disks, leaf));
        assert!(lineages[0] != lineages[1] && lineages[0] != lineages[2] && lineages[1] != lineages[2]);
        let found = only(&disks, &[2, 1, 0]);
        assert!(found.status.starts_by_itself(), "{}", found.status);
        let mut array = begin(&disks, &[2, 1, 0], 30);
        let [out] = array.failed()[..] else { panic!("{:?} are out", array.failed()) };
        assert!(
            out < 2
                && lineages
                    .iter()
                    .all(|lineage| array.label().lineage.knows(*lineage) || array.label().lineage.id == *lineage)
        );
        assert_eq!(returns(&disks, &mut array, u32::from(out)), from_bitmap(out, u32::from(out)));
        // A disk that is alone with an unused lineage waits for disk 2, which may have gone on.
        for leaf in [0, 1] {
            let (alone, array) = mirror_of(3);
            drop(array);
            let alone = begun_on(&alone, &[leaf, 2], leaf, first);
            assert!(matches!(only(&alone, &[leaf]).status, ArrayStatus::Waiting { .. }));
        }
        assert_eq!(array.leaf(2), Some(LeafId(2)));
    }
}
