//! Computes the maximum speed of an array as a multiple of one disk, if all disks are equally fast and nothing else limits it.
//!
//! The busiest disk determines the speed. Within a zone all disks are equally busy. Over the whole array, the busiest disks
//! are those in the most zones. Reads of mirrors are balanced between the copies as well as possible.

use braid_geometry::{Geometry, Level, Zone};

/// The speed of an array, as multiples of one disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Reads of any size, many in flight.
    pub reads: f64,
    /// Writes; with parity, full-stripe writes.
    pub writes: f64,
}

/// Returns the speed of I/O within one zone.
pub fn of_zone(geometry: &Geometry, zone: &Zone) -> Speed {
    let width = zone.members.len();
    let spec = geometry.spec();
    let writes = match spec.level {
        Level::Raid5 | Level::Raid6 => (width - usize::from(spec.level.parity())) as f64,
        _ => width as f64 / spec.copies_over(width) as f64,
    };
    Speed { reads: width as f64, writes }
}

/// Returns the speed of I/O that is spread evenly over the array.
pub fn uniform(geometry: &Geometry) -> Speed {
    let count = geometry.member_data_bytes().len();
    let mut write_load = vec![0.0; count];
    for zone in geometry.zones() {
        let share = share(geometry, zone);
        let writes = of_zone(geometry, zone).writes;
        zone.members.iter().for_each(|&member| write_load[usize::from(member)] += share / writes);
    }
    let read_load = balance(&choices(geometry), count);
    Speed { reads: 1.0 / busiest(&read_load), writes: 1.0 / busiest(&write_load) }
}

/// Returns the fraction of the array that a zone holds.
fn share(geometry: &Geometry, zone: &Zone) -> f64 {
    zone.array_bytes as f64 / geometry.size_bytes() as f64
}

fn busiest(load: &[f64]) -> f64 {
    load.iter().copied().fold(0.0, f64::max)
}

/// A share of the reads, and the disks that can serve it.
struct Choice {
    share: f64,
    members: Vec<usize>,
}

fn choices(geometry: &Geometry) -> Vec<Choice> {
    let mut choices = Vec::new();
    for zone in geometry.zones() {
        let share = share(geometry, zone);
        let width = zone.members.len();
        let copies = geometry.spec().copies_over(width);
        // Each chunk uses the next `copies` slots, until the pattern repeats.
        let patterns = width / gcd(width, copies);
        for pattern in 0..patterns {
            let slots = (0..copies).map(|copy| (pattern * copies + copy) % width);
            let members = slots.map(|slot| usize::from(zone.members[slot])).collect();
            choices.push(Choice { share: share / patterns as f64, members });
        }
    }
    choices
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Distributes each share over the disks that can serve it, so that the load of the busiest disk is minimal. Returns the load
/// of each disk.
///
/// Levels one share after the other over its disks while the other shares stay, repeatedly. Each step lowers the sum of the
/// squares of the loads; when no step lowers it, the load of the busiest disk is minimal.
fn balance(choices: &[Choice], count: usize) -> Vec<f64> {
    const WORK_MAX: usize = 20_000_000;
    let work: usize = choices.iter().map(|choice| choice.members.len()).sum();
    let rounds = if choices.iter().all(|choice| choice.members.len() == 1) { 1 } else { WORK_MAX / work.max(1) };
    let mut load = vec![0.0; count];
    let mut parts: Vec<Vec<f64>> = choices.iter().map(|choice| vec![0.0; choice.members.len()]).collect();
    for _ in 0..rounds.clamp(1, 2000) {
        let mut moved = 0.0f64;
        for (choice, parts) in choices.iter().zip(&mut parts) {
            for (part, &member) in parts.iter().zip(&choice.members) {
                load[member] -= part;
            }
            let level = water_level(choice, &load);
            for (part, &member) in parts.iter_mut().zip(&choice.members) {
                let new = (level - load[member]).max(0.0);
                moved = moved.max((new - *part).abs());
                *part = new;
                load[member] += new;
            }
        }
        if moved < 1e-9 {
            break;
        }
    }
    load
}

/// Returns the load to which the disks of a choice rise when its share is distributed on top of their present loads.
fn water_level(choice: &Choice, load: &[f64]) -> f64 {
    let mut floors: Vec<f64> = choice.members.iter().map(|&member| load[member]).collect();
    floors.sort_by(f64::total_cmp);
    let mut below = 0.0;
    for (index, floor) in floors.iter().enumerate() {
        below += floor;
        let level = (choice.share + below) / (index + 1) as f64;
        if floors.get(index + 1).is_none_or(|next| level <= *next) {
            return level;
        }
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_geometry::Spec;

    const G: u64 = 1 << 30;

    fn check(spec: Spec, sizes: &[u64], reads: f64, writes: f64) {
        let sizes: Vec<u64> = sizes.iter().map(|size| size * G).collect();
        let geometry = Geometry::plan(spec, &sizes).expect("it can be laid out");
        let found = uniform(&geometry);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-4;
        assert!(near(found.reads, reads) && near(found.writes, writes), "{found:?} for {spec:?} over {sizes:?}");
    }

    #[test]
    fn the_busiest_disk_decides() {
        // The disks of 100 hold 40 of 100 parts of the array each.
        check(Spec::new(Level::Concat), &[50, 100, 100], 2.5, 2.5);
        check(Spec::new(Level::Raid0), &[50, 100, 100], 2.5, 2.5);
        check(Spec::new(Level::Raid0), &[100, 100, 100], 3.0, 3.0);
        // 100 and 50 parts: a third of 100 and a half of 50, or a half of 100 and 50 of 50 parts, of 150.
        check(Spec::new(Level::Raid5), &[50, 100, 100], 150.0 / (100.0 / 3.0 + 25.0), 1.5);
        check(Spec::new(Level::Raid6), &[50, 100, 100], 3.0, 1.0);
    }

    #[test]
    fn reads_of_mirrors_are_levelled() {
        // The small disk takes as much of the first half as makes all three equal.
        check(Spec::new(Level::Raid1), &[50, 100, 100], 3.0, 1.0);
        // 10 parts on all, 90 on two: those two take the 90, and the rest goes to the small one.
        check(Spec::new(Level::Raid1), &[10, 100, 100], 100.0 / 45.0, 1.0);
        check(Spec::new(Level::Raid10), &[100, 100, 100], 3.0, 1.5);
        // 75 parts over three, 50 over two; the large ones write 50 + 50 of 125.
        check(Spec::new(Level::Raid10), &[50, 100, 100], 3.0, 1.25);
    }

    #[test]
    fn only_disks_that_hold_a_copy_serve_reads() {
        // Pairs (0, 1) and (2, 3) share 100 parts, (2, 3) hold 50 more: 50 parts over two, 100 over two.
        check(Spec::new(Level::Raid10), &[50, 50, 100, 100], 1.5 * 2.0, 1.5);
        check(Spec::new(Level::Raid10), &[10, 10, 100, 100], 110.0 / 50.0, 1.1);
        // The pairs are the same; 1 and 3 hold 90 more, 45 each, and leave the pairs to 0 and 2.
        check(Spec::new(Level::Raid10), &[10, 100, 10, 100], 110.0 / 45.0, 1.1);
    }
}
