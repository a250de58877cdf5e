//! Taking up room that members have gained: behind what is there, so that nothing moves.

use crate::zones::{Zone, check_total};
use crate::{Geometry, GeometryError, Level, Spec, ZonePolicy};

impl Geometry {
    /// The array over members that have become larger, or more: `member_data_bytes` are the sizes of all data areas now,
    /// those of new members after those of the old ones.
    ///
    /// Every byte that the array has stays where it is. What is new comes at its end: the last zone becomes higher where
    /// all of its members have room right behind it; between one height and the next, the members that have room above all
    /// that they hold form further zones. With [`ZonePolicy::Single`] the one zone becomes higher, or nothing does.
    ///
    /// Room that lies lower on a member than what it holds already, as it had it alone when others took a zone above,
    /// stays unused.
    ///
    /// # Errors
    /// [`GeometryError::NoGrowth`] where that gives nothing; a member that is smaller than what it holds; and as
    /// [`Geometry::plan`].
    pub fn grown(&self, member_data_bytes: &[u64]) -> Result<Geometry, GeometryError> {
        let zones = further_zones(self.spec(), self.zones(), member_data_bytes)?;
        Geometry::from_zones(*self.spec(), member_data_bytes, zones)
    }
}

/// A span of new room, on some members.
struct Span {
    start: u64,
    end: u64,
    members: Vec<u16>,
}

fn further_zones(spec: &Spec, old: &[Zone], sizes: &[u64]) -> Result<Vec<Zone>, GeometryError> {
    spec.check(sizes.len())?;
    check_total(sizes)?;
    let unit = spec.unit_bytes();
    // From where on each member is free, and to where it can be used.
    let mut free = Vec::with_capacity(sizes.len());
    for (member, &data_bytes) in (0u16..).zip(sizes) {
        let used =
            old.iter().filter(|zone| zone.members.contains(&member)).map(Zone::member_end).max().unwrap_or_default();
        let needed_bytes = if used == 0 { unit } else { used };
        if data_bytes < needed_bytes {
            return Err(GeometryError::MemberTooSmall { member: usize::from(member), data_bytes, needed_bytes });
        }
        free.push((used, used + (data_bytes - used) / unit * unit));
    }
    let mut spans = if spec.level == Level::Concat { own_spans(&free) } else { shared_spans(&free) };
    spans.iter_mut().for_each(|span| span.end -= (span.end - span.start) % unit);
    spans.retain(|span| span.end > span.start && span.members.len() >= spec.members_min());

    let mut zones = old.to_vec();
    let behind_last = |last: &Zone| {
        let follows = |span: &Span| span.start == last.member_end() && span.members == last.members;
        spans.iter().position(follows)
    };
    let higher = zones.last().and_then(behind_last).map(|at| spans.remove(at));
    if is_single(spec) {
        spans.clear();
    }
    if higher.is_none() && spans.is_empty() {
        return Err(GeometryError::NoGrowth { needed: spec.members_min(), single_zone: is_single(spec) });
    }
    if let Some(last) = zones.last_mut() {
        last.member_bytes += higher.map_or(0, |span| span.end - span.start);
        // Whole again, where it ended early: what follows begins at its end.
        last.array_bytes = zone_bytes(spec, last.members.len(), last.member_bytes)?;
    }
    for Span { start, end, members } in spans {
        let array_start = zones.last().map_or(0, Zone::array_end);
        let array_bytes = zone_bytes(spec, members.len(), end - start)?;
        zones.push(Zone { array_start, array_bytes, member_start: start, member_bytes: end - start, members });
    }
    Ok(zones)
}

fn is_single(spec: &Spec) -> bool {
    spec.level != Level::Concat && spec.zones == ZonePolicy::Single
}

fn zone_bytes(spec: &Spec, width: usize, height_bytes: u64) -> Result<u64, GeometryError> {
    spec.zone_bytes(width, height_bytes).ok_or(GeometryError::TooLarge)
}

/// Each member by itself, in their order.
fn own_spans(free: &[(u64, u64)]) -> Vec<Span> {
    (0u16..).zip(free).map(|(member, &(start, end))| Span { start, end, members: vec![member] }).collect()
}

/// From the bottom to the top: between one height and the next, all members that are free there.
fn shared_spans(free: &[(u64, u64)]) -> Vec<Span> {
    let mut heights: Vec<u64> = free.iter().flat_map(|&(start, end)| [start, end]).collect();
    heights.sort_unstable();
    heights.dedup();
    let mut spans: Vec<Span> = Vec::new();
    for between in heights.windows(2) {
        let (start, end) = (between[0], between[1]);
        let is_free = |&(from, to): &(u64, u64)| from <= start && end <= to;
        let members: Vec<u16> = (0u16..).zip(free).filter(|(_, span)| is_free(span)).map(|(m, _)| m).collect();
        match spans.last_mut() {
            Some(below) if below.end == start && below.members == members => below.end = end,
            _ => spans.push(Span { start, end, members }),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: u64 = 65_536;

    fn plan(spec: Spec, chunks: &[u64]) -> Geometry {
        Geometry::plan(spec, &chunks.iter().map(|n| n * C).collect::<Vec<_>>()).expect("it can be planned")
    }

    fn grow(geometry: &Geometry, chunks: &[u64]) -> Result<Geometry, GeometryError> {
        geometry.grown(&chunks.iter().map(|n| n * C).collect::<Vec<_>>())
    }

    /// Zones as (first chunk and chunks on the members, members).
    fn zones(geometry: &Geometry) -> Vec<(u64, u64, &[u16])> {
        geometry.zones().iter().map(|z| (z.member_start / C, z.member_bytes / C, &z.members[..])).collect()
    }

    #[test]
    fn members_that_grow_together_make_the_last_zone_higher() {
        for level in Level::ALL.into_iter().filter(|level| *level != Level::Concat) {
            let before = plan(Spec::new(level), &[10, 10, 10]);
            let after = grow(&before, &[25, 25, 25]).expect("they have grown");
            assert_eq!(after.zones(), plan(Spec::new(level), &[25, 25, 25]).zones(), "{level}");
        }
    }

    #[test]
    fn a_mirror_grows_as_far_as_two_members_do() {
        let before = plan(Spec::new(Level::Raid1), &[5, 10, 10]);
        let none = grow(&before, &[10, 10, 10]).expect_err("only one has room there");
        assert_eq!(none, GeometryError::NoGrowth { needed: 2, single_zone: false });
        // From 5 to 10 the first has room alone.
        let after = grow(&before, &[20, 15, 20]).expect("they have grown");
        assert_eq!(zones(&after), [(0, 5, &[0, 1, 2][..]), (5, 5, &[1, 2]), (10, 5, &[0, 1, 2]), (15, 5, &[0, 2])]);
    }

    #[test]
    fn concat_takes_room_member_by_member_and_new_members_last() {
        let before = plan(Spec::new(Level::Concat), &[4, 4]);
        let after = grow(&before, &[6, 7, 5]).expect("they have grown");
        assert_eq!(zones(&after), [(0, 4, &[0][..]), (0, 7, &[1]), (4, 2, &[0]), (0, 5, &[2])]);
    }

    #[test]
    fn new_members_of_raid0_form_a_zone_of_their_own() {
        let before = plan(Spec::new(Level::Raid0), &[4, 4]);
        let after = grow(&before, &[4, 4, 6, 9]).expect("two are new");
        assert_eq!(zones(&after), [(0, 4, &[0, 1][..]), (0, 6, &[2, 3]), (6, 3, &[3])]);
        // Where old ones have grown as well, they share it as far as they have room at the same place.
        let after = grow(&before, &[8, 4, 6]).expect("one is new");
        assert_eq!(zones(&after), [(0, 4, &[0, 1][..]), (0, 4, &[2]), (4, 2, &[0, 2]), (6, 2, &[0])]);
    }

    #[test]
    fn a_single_zone_becomes_higher_or_nothing_does() {
        let single = Spec { zones: ZonePolicy::Single, ..Spec::new(Level::Raid0) };
        let before = plan(single, &[4, 6]);
        assert_eq!(zones(&before), [(0, 4, &[0, 1][..])]);
        assert_eq!(zones(&grow(&before, &[7, 6]).expect("it can be higher")), [(0, 6, &[0, 1][..])]);
        let none = GeometryError::NoGrowth { needed: 1, single_zone: true };
        assert_eq!(grow(&before, &[4, 9]).expect_err("one is full"), none);
        assert_eq!(grow(&before, &[4, 6, 9]).expect_err("one is new"), none);
    }

    /// A raid0 whose chunk is no power of two ends before its last zone does, as md has it.
    #[test]
    fn an_end_that_was_cut_is_whole_before_what_follows() {
        let spec = Spec { chunk_bytes: 96 << 10, ..Spec::new(Level::Raid0) };
        let sizes = [(96 << 10) * 5, (96 << 10) * 5];
        let before = Geometry::plan(spec, &sizes).expect("two members");
        let whole = sizes.iter().sum::<u64>();
        assert!(before.size_bytes() < whole, "{}", before.size_bytes());
        let after = before.grown(&[sizes[0], sizes[1], 96 << 10]).expect("one is new");
        assert_eq!((after.zones()[0].array_bytes, after.size_bytes()), (whole, whole + (96 << 10)));
        assert!(before.grown(&sizes).is_err());
    }

    #[test]
    fn members_do_not_shrink() {
        let before = plan(Spec::new(Level::Raid0), &[4, 4]);
        let error = grow(&before, &[4, 3, 9]).expect_err("one is smaller");
        assert_eq!(error, GeometryError::MemberTooSmall { member: 1, data_bytes: 3 * C, needed_bytes: 4 * C });
    }
}
