//! Growing an array into capacity that its members have gained, without moving data.

use crate::zones::{Zone, check_total};
use crate::{Geometry, GeometryError, Level, Spec, ZonePolicy};

impl Geometry {
    /// Returns the geometry of the array after members have grown or were added. `member_data_bytes` are the new sizes of all
    /// data areas, in bytes, with the new members after the existing ones.
    ///
    /// Every existing byte of the array keeps its location, and the new capacity is added at the end of the array. The
    /// last zone is extended if exactly its members have free space directly after it. If another member, a new one for
    /// example, has free space at that height, too, a further zone over all of them begins there instead. The remaining
    /// free space is divided into further zones: between one height and the next, the members with free space above
    /// every zone that they hold form a zone. With [`ZonePolicy::Single`] the only zone is extended, or the array does
    /// not grow.
    ///
    /// Free space of a member below one of its zones stays unused. It exists where too few members had free space at
    /// that height for a zone, and a higher zone was later laid out on the member.
    ///
    /// # Errors
    /// [`GeometryError::NoGrowth`] if no capacity would be gained; a member that is smaller than what it holds; and as
    /// [`Geometry::plan`].
    pub fn grown(&self, member_data_bytes: &[u64]) -> Result<Geometry, GeometryError> {
        let zones = grown_zones(self.spec(), self.zones(), member_data_bytes)?;
        Geometry::from_zones(*self.spec(), member_data_bytes, zones)
    }
}

/// Free space of some members at the same heights, from `start` to `end`, in bytes from the start of their data areas.
struct Span {
    start: u64,
    end: u64,
    members: Vec<u16>,
}

fn grown_zones(spec: &Spec, old: &[Zone], sizes: &[u64]) -> Result<Vec<Zone>, GeometryError> {
    spec.check(sizes.len())?;
    check_total(sizes)?;
    let unit = spec.unit_bytes();
    // For each member, the start and the end of its usable free space: from the end of its highest zone, in whole
    // units.
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
    let mut spans = if spec.level == Level::Concat { spans_per_member(&free) } else { shared_spans(&free) };
    spans.iter_mut().for_each(|span| span.end -= (span.end - span.start) % unit);
    spans.retain(|span| span.end > span.start && span.members.len() >= spec.min_members());

    let mut zones = old.to_vec();
    let directly_after = |last: &Zone| {
        let follows = |span: &Span| span.start == last.member_end() && span.members == last.members;
        spans.iter().position(follows)
    };
    let extension = zones.last().and_then(directly_after).map(|at| spans.remove(at));
    if is_single(spec) {
        spans.clear();
    }
    if extension.is_none() && spans.is_empty() {
        return Err(GeometryError::NoGrowth { needed: spec.min_members(), single_zone: is_single(spec) });
    }
    if let Some(last) = zones.last_mut() {
        last.member_bytes += extension.map_or(0, |span| span.end - span.start);
        // The last zone of a raid0 array may have been truncated (`Spec::raid0_end_bytes`). It gets its full size: the
        // next zone starts at its end, and only the last zone may be truncated.
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

/// Returns one span for each member, in the order of the members.
fn spans_per_member(free: &[(u64, u64)]) -> Vec<Span> {
    (0u16..).zip(free).map(|(member, &(start, end))| Span { start, end, members: vec![member] }).collect()
}

/// Returns the spans in ascending order: between one height and the next, all members that are free there.
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

    /// Returns the zones as (first chunk on the members, number of chunks on the members, members).
    fn zones(geometry: &Geometry) -> Vec<(u64, u64, &[u16])> {
        geometry.zones().iter().map(|z| (z.member_start / C, z.member_bytes / C, &z.members[..])).collect()
    }

    #[test]
    fn equal_growth_of_all_members_extends_the_last_zone() {
        for level in Level::ALL.into_iter().filter(|level| *level != Level::Concat) {
            let before = plan(Spec::new(level), &[10, 10, 10]);
            let after = grow(&before, &[25, 25, 25]).expect("they have grown");
            assert_eq!(after.zones(), plan(Spec::new(level), &[25, 25, 25]).zones(), "{level}");
        }
    }

    #[test]
    fn mirror_grows_to_the_second_largest_member() {
        let before = plan(Spec::new(Level::Raid1), &[5, 10, 10]);
        let none = grow(&before, &[10, 10, 10]).expect_err("only one has free space there");
        assert_eq!(none, GeometryError::NoGrowth { needed: 2, single_zone: false });
        // Between 5 and 10 only the first member has free space.
        let after = grow(&before, &[20, 15, 20]).expect("they have grown");
        assert_eq!(zones(&after), [(0, 5, &[0, 1, 2][..]), (5, 5, &[1, 2]), (10, 5, &[0, 1, 2]), (15, 5, &[0, 2])]);
    }

    #[test]
    fn concat_appends_free_space_in_member_order() {
        let before = plan(Spec::new(Level::Concat), &[4, 4]);
        let after = grow(&before, &[6, 7, 5]).expect("they have grown");
        assert_eq!(zones(&after), [(0, 4, &[0][..]), (0, 7, &[1]), (4, 2, &[0]), (0, 5, &[2])]);
    }

    #[test]
    fn new_members_of_raid0_form_a_separate_zone() {
        let before = plan(Spec::new(Level::Raid0), &[4, 4]);
        let after = grow(&before, &[4, 4, 6, 9]).expect("two are new");
        assert_eq!(zones(&after), [(0, 4, &[0, 1][..]), (0, 6, &[2, 3]), (6, 3, &[3])]);
        // Existing members that have grown as well share the new zones at the heights where they have free space.
        let after = grow(&before, &[8, 4, 6]).expect("one is new");
        assert_eq!(zones(&after), [(0, 4, &[0, 1][..]), (0, 4, &[2]), (4, 2, &[0, 2]), (6, 2, &[0])]);
    }

    #[test]
    fn single_zone_policy_only_extends_the_zone() {
        let single = Spec { zones: ZonePolicy::Single, ..Spec::new(Level::Raid0) };
        let before = plan(single, &[4, 6]);
        assert_eq!(zones(&before), [(0, 4, &[0, 1][..])]);
        assert_eq!(zones(&grow(&before, &[7, 6]).expect("it can be higher")), [(0, 6, &[0, 1][..])]);
        let none = GeometryError::NoGrowth { needed: 1, single_zone: true };
        assert_eq!(grow(&before, &[4, 9]).expect_err("one is full"), none);
        assert_eq!(grow(&before, &[4, 6, 9]).expect_err("one is new"), none);
    }

    /// A raid0 array whose chunk size is not a power of two ends before its last zone does, as with md.
    #[test]
    fn truncated_last_zone_gets_its_full_size_before_a_new_zone() {
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
