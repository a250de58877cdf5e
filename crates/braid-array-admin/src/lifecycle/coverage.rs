//! Which member failures an array tolerates: whether the remaining members hold a copy of every byte.

use braid_geometry::Geometry;

/// Whether every byte of the array has a copy on a member for which `holds` is true, or can be computed from such
/// members.
///
/// Exact for all levels. With *k* copies over *w* members, the copies of chunk *c* of a zone are in *k* consecutive
/// columns, from *c · k mod w* on: so there are at most *w* different placements, and fewer in a short zone. With
/// parity, each zone tolerates the loss of as many of its members as it has parities.
pub(super) fn covers(geometry: &Geometry, holds: impl Fn(u16) -> bool) -> bool {
    let spec = geometry.spec();
    let parity = usize::from(spec.level.parity());
    geometry.zones().iter().all(|zone| {
        let width = zone.members.len();
        if parity > 0 {
            return zone.members.iter().filter(|member| !holds(**member)).count() <= parity;
        }
        let copies = spec.copies_over(width);
        let chunks = if copies == width { 1 } else { (zone.array_bytes.div_ceil(spec.chunk_bytes)).min(width as u64) };
        (0..chunks as usize).all(|chunk| (0..copies).any(|copy| holds(zone.members[(chunk * copies + copy) % width])))
    })
}

/// Returns how many more members may fail, whichever they are, while every byte of the array keeps a copy on, or can be
/// computed from, members for which `holds` is true. `None` if some byte has none already.
///
/// Exact, as [`covers`] is: losing all copies of the chunk with the fewest copies loses that chunk.
pub fn tolerated_failures(geometry: &Geometry, holds: impl Fn(u16) -> bool) -> Option<u16> {
    let spec = geometry.spec();
    let parity = usize::from(spec.level.parity());
    let of_zone = |zone: &braid_geometry::Zone| {
        let width = zone.members.len();
        if parity > 0 {
            return parity.checked_sub(zone.members.iter().filter(|member| !holds(**member)).count());
        }
        let copies = spec.copies_over(width);
        let chunks = if copies == width { 1 } else { (zone.array_bytes.div_ceil(spec.chunk_bytes)).min(width as u64) };
        let held =
            |chunk: usize| (0..copies).filter(|copy| holds(zone.members[(chunk * copies + copy) % width])).count();
        (0..chunks as usize).map(held).min().and_then(|held| held.checked_sub(1))
    };
    // Every zone has to survive: the weakest one decides.
    let mut least = usize::MAX;
    for zone in geometry.zones() {
        least = least.min(of_zone(zone)?);
    }
    u16::try_from(least).ok()
}

#[cfg(test)]
mod tests {
    use braid_geometry::{Geometry, Level, Spec};

    use super::{covers, tolerated_failures};

    /// Compared with every way to lose this many of the remaining members.
    #[test]
    fn failures_that_are_tolerated_are_those_that_any_choice_of_members_survives() {
        let block = 4096u64;
        let mut tally = [0u32; 4];
        for sizes in [&[3, 3][..], &[4, 4, 4], &[2, 3, 5, 5], &[1, 2, 3, 4, 5], &[7, 7, 7, 7, 7, 7], &[1, 9, 9, 9, 2]] {
            let sizes: Vec<u64> = sizes.iter().map(|blocks| blocks * 2 * block).collect();
            for (level, copies) in [
                (Level::Raid0, 1),
                (Level::Raid1, 2),
                (Level::Raid10, 2),
                (Level::Raid10, 3),
                (Level::Raid5, 2),
                (Level::Raid6, 2),
            ] {
                let spec = Spec { copies, chunk_bytes: block, ..Spec::new(level) };
                let Ok(geometry) = Geometry::plan(spec, &sizes) else { continue };
                let used = |role: u16| geometry.zones().iter().any(|zone| zone.members.contains(&role));
                for left in 0..1u32 << sizes.len() {
                    let any_loss_of = |count: u32| {
                        (0..1u32 << sizes.len())
                            .filter(|lost| lost & !left == 0 && lost.count_ones() == count)
                            .all(|lost| covers(&geometry, |role| (left & !lost) >> role & 1 == 1))
                    };
                    let tolerated = tolerated_failures(&geometry, |role| left >> role & 1 == 1);
                    assert_eq!(tolerated.is_some(), any_loss_of(0), "{spec:?} over {sizes:?}, {left:b} left");
                    let Some(count) = tolerated else { continue };
                    tally[usize::from(count).min(3)] += 1;
                    let lost = u32::from(count);
                    assert!(any_loss_of(lost), "{spec:?} over {sizes:?}, {left:b} left: {count} is too many");
                    // Among the members in use by a zone, losing one more loses data.
                    let in_use =
                        (0..sizes.len() as u16).filter(|role| used(*role) && left >> role & 1 == 1).count() as u32;
                    if in_use > lost {
                        assert!(!any_loss_of(lost + 1), "{spec:?} over {sizes:?}, {left:b} left: {count} is too few");
                    }
                }
            }
        }
        assert!(tally[0] > 50 && tally[1] > 50 && tally[2] > 10, "{tally:?}");
    }

    /// Compared with the geometry's copies of every byte, for every set of remaining members.
    #[test]
    fn covers_agrees_with_brute_force() {
        let (mut arrays, mut yes, mut no) = (0, 0, 0);
        let block = 4096u64;
        for sizes in [
            &[3, 3][..],
            &[2, 5],
            &[4, 4, 4],
            &[1, 1, 1, 1, 1],
            &[2, 3, 5, 5],
            &[1, 2, 3, 4, 5],
            &[7, 7, 7, 7, 7, 7],
            &[1, 9, 9, 9, 2],
        ] {
            let sizes: Vec<u64> = sizes.iter().map(|blocks| blocks * 2 * block).collect();
            for (level, copies) in [
                (Level::Raid1, 2),
                (Level::Raid10, 2),
                (Level::Raid10, 3),
                (Level::Raid10, 4),
                (Level::Raid0, 1),
                (Level::Raid5, 2),
                (Level::Raid6, 2),
            ] {
                for chunk_bytes in [block, 2 * block] {
                    let spec = Spec { copies, chunk_bytes, ..Spec::new(level) };
                    let Ok(geometry) = Geometry::plan(spec, &sizes) else { continue };
                    arrays += 1;
                    for left in 0..1u32 << sizes.len() {
                        let holds = |role: u16| left >> role & 1 == 1;
                        let whole = (0..geometry.size_bytes()).step_by(block as usize).all(|at| {
                            let mut any = false;
                            geometry.copies(at, &mut |piece| any |= holds(piece.member));
                            // Or its stripe has as many cells left as it has data cells.
                            any || geometry.stripe_of(at).is_some_and(|stripe| {
                                let cells = (0..stripe.data_chunks()).map(|index| stripe.data(index));
                                let cells = cells.chain([stripe.p()]).chain(stripe.q());
                                cells.filter(|member| holds(*member)).count() >= stripe.data_chunks()
                            })
                        });
                        assert_eq!(covers(&geometry, holds), whole, "{spec:?} over {sizes:?}, {left:b} left");
                        if whole { yes += 1 } else { no += 1 }
                    }
                }
            }
        }
        assert!(arrays > 40 && yes > 100 && no > 100, "{arrays} arrays, {yes} times whole, {no} times not");
    }
}
