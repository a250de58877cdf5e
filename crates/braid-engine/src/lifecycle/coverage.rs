//! Which members an array can lose: whether every byte of it has a copy on those that are left.

use braid_geometry::Geometry;

/// Whether every byte of the array has at least one copy on a member for which `holds` is true, or can be computed from such
/// members.
///
/// Exact for all levels. With *k* copies over *w* members, chunk *c* of a zone stands on the *k* members from slot *c · k mod w*
/// on: so at most *w* chunks are different, and the short zone has fewer. With parity, each zone can lack as many of its
/// members as it has parities, any of them.
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

#[cfg(test)]
mod tests {
    use braid_geometry::{Geometry, Level, Spec};

    use super::covers;

    /// Against every byte's copies as the geometry gives them, for every set of members that may be left.
    #[test]
    fn the_short_answer_is_the_long_one() {
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
                            // Or its row has as many cells left as it has data.
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
