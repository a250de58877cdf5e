//! Space reserved for thick volumes.
//!
//! A thick volume has a reservation of one extent for each of its logical extents without a whole extent, neither of
//! its own nor of an ancestor that shows through. While there are as many free extents as reservations, a write to a
//! logical extent of which no snapshot has blocks is never refused for lack of space: where a whole extent exists for
//! the logical extent, the block goes into it.
//!
//! A volume may be restricted to some members. All reservations can be used together exactly if each set of members has
//! at least as many free extents as there are reservations that can be used on this set only (Hall 1935, "On
//! representatives of subsets"). It is enough to check the sets of the volumes, and the unions of those that overlap.

use std::collections::BTreeMap;

use braid_format::pool::{Owner, OwnerKind};

use super::admin::extents_for;
use super::owners::{OwnerId, Owners};

/// Maximum sets of members that are checked: more arise only from dozens of volumes restricted to overlapping sets.
const SETS_MAX: usize = 64;

/// A thick volume.
#[derive(Clone)]
struct Thick {
    owner: OwnerId,
    /// Members that it may use.
    uses: u128,
    extents: u32,
    /// For each logical extent, also beyond the end: how many whole extents exist for it.
    whole_extents: Vec<u16>,
    /// Logical extents below the end without a whole extent: each has a reservation.
    reserved: u32,
}

impl Thick {
    fn recount_reserved(&mut self) {
        let with_whole = self.whole_extents.iter().take(self.extents as usize).filter(|count| **count > 0).count();
        self.reserved = self.extents - with_whole as u32;
    }
}

/// The reservations of all thick volumes of a pool. Two bytes for each of their logical extents.
#[derive(Clone, Default)]
pub struct Reserves {
    thick: Vec<Thick>,
    /// By owner: the indices of the volumes that see its blocks.
    seen_by: BTreeMap<OwnerId, Vec<usize>>,
    /// Sets of members to check.
    sets: Vec<u128>,
}

impl Reserves {
    /// Returns the reservations of these owners. `wholes`: owner and logical extent of each whole extent.
    pub fn of(owners: &Owners, wholes: impl Iterator<Item = (OwnerId, u32)>) -> Reserves {
        let mut reserves = Reserves::default();
        for owner in owners.iter().filter(|owner| owner.thick && owner.kind == OwnerKind::Volume) {
            reserves.add(owner, &owners.chain(owner.id));
        }
        if !reserves.is_empty() {
            wholes.for_each(|(owner, logical)| reserves.add_whole(owner, logical));
        }
        reserves
    }

    /// Adds a volume that sees the blocks of the owners in `chain`. Their whole extents are added afterwards
    /// ([`Reserves::add_whole`]).
    pub fn add(&mut self, owner: &Owner, chain: &[OwnerId]) {
        let extents = extents_for(owner.size_bytes);
        let uses = owner.allocation_members();
        self.thick.push(Thick { owner: owner.id, uses, extents, whole_extents: Vec::new(), reserved: extents });
        for seen in chain {
            self.seen_by.entry(*seen).or_default().push(self.thick.len() - 1);
        }
        self.find_sets();
    }

    /// Adds the reservations of `other`.
    pub fn join(&mut self, other: Reserves) {
        let before = self.thick.len();
        self.thick.extend(other.thick);
        for (owner, seen) in other.seen_by {
            self.seen_by.entry(owner).or_default().extend(seen.into_iter().map(|k| before + k));
        }
        self.find_sets();
    }

    /// Whether no volume is thick.
    pub fn is_empty(&self) -> bool {
        self.thick.is_empty()
    }

    /// Returns whether a thick volume sees this owner's blocks.
    pub fn is_seen(&self, owner: OwnerId) -> bool {
        self.seen_by.contains_key(&owner)
    }

    /// Notes a new whole extent for this owner's logical extent.
    pub fn add_whole(&mut self, owner: OwnerId, logical: u32) {
        for k in self.seen_by.get(&owner).map_or(&[][..], |seen| seen) {
            let thick = &mut self.thick[*k];
            let at = logical as usize;
            if thick.whole_extents.len() <= at {
                thick.whole_extents.resize(at + 1, 0);
            }
            // No chain is long enough to reach the limit.
            thick.whole_extents[at] = thick.whole_extents[at].saturating_add(1);
            if thick.whole_extents[at] == 1 && logical < thick.extents {
                thick.reserved -= 1;
            }
        }
    }

    /// Notes that this owner's logical extent has lost a whole extent.
    pub fn remove_whole(&mut self, owner: OwnerId, logical: u32) {
        for k in self.seen_by.get(&owner).map_or(&[][..], |seen| seen) {
            let thick = &mut self.thick[*k];
            let Some(count) = thick.whole_extents.get_mut(logical as usize).filter(|count| **count > 0) else {
                debug_assert!(false, "it has no whole extent to lose");
                continue;
            };
            if *count == u16::MAX {
                continue;
            }
            *count -= 1;
            if *count == 0 && logical < thick.extents {
                thick.reserved += 1;
            }
        }
    }

    /// Notes that a volume goes on under another owner and sees the blocks of the one before: a snapshot was taken.
    pub fn follow(&mut self, from: OwnerId, to: OwnerId) {
        if let Some(k) = self.thick.iter().position(|thick| thick.owner == from) {
            self.thick[k].owner = to;
            self.seen_by.entry(to).or_default().push(k);
        }
    }

    /// Updates size and members of a volume.
    pub fn alter(&mut self, owner: &Owner) {
        if let Some(thick) = self.thick.iter_mut().find(|thick| thick.owner == owner.id) {
            thick.extents = extents_for(owner.size_bytes);
            thick.uses = owner.allocation_members();
            thick.recount_reserved();
            self.find_sets();
        }
    }

    /// Removes a volume that is deleted, or no longer thick.
    pub fn remove(&mut self, owner: OwnerId) {
        let Some(k) = self.thick.iter().position(|thick| thick.owner == owner) else { return };
        self.thick.remove(k);
        for seen in self.seen_by.values_mut() {
            seen.retain(|other| *other != k);
            seen.iter_mut().filter(|other| **other > k).for_each(|other| *other -= 1);
        }
        self.seen_by.retain(|_, seen| !seen.is_empty());
        self.find_sets();
    }

    /// Returns how many extents are reserved in total.
    pub fn extents(&self) -> u64 {
        self.thick.iter().map(|thick| u64::from(thick.reserved)).sum()
    }

    /// Returns how many extents are reserved for this volume.
    pub fn extents_of(&self, owner: OwnerId) -> u64 {
        self.thick.iter().filter(|thick| thick.owner == owner).map(|thick| u64::from(thick.reserved)).sum()
    }

    /// Returns the members on which this logical extent has a reservation, for a volume that sees the owner's blocks;
    /// `None` if it has none. If several volumes see them, one whole extent serves them all.
    pub fn reservation(&self, owner: OwnerId, logical: u32) -> Option<u128> {
        let has_whole = |thick: &Thick| thick.whole_extents.get(logical as usize).is_some_and(|count| *count > 0);
        let mut seen_by = self.seen_by.get(&owner)?.iter().map(|k| &self.thick[*k]);
        seen_by.find(|thick| logical < thick.extents && !has_whole(thick)).map(|thick| thick.uses)
    }

    /// Returns whether all reservations can be used at once; `free` returns the number of free extents on a set of
    /// members. False also if there are more than `SETS_MAX` sets to check.
    pub fn fit(&self, free: impl Fn(u128) -> u64) -> bool {
        self.sets.iter().all(|set| self.need(*set) <= free(*set)) && self.sets.len() <= SETS_MAX
    }

    /// Returns the members (a bit mask) from which nothing may be allocated: every free extent there is reserved for
    /// others. `own`: the reservation that the allocation uses up.
    pub fn unavailable(&self, own: Option<u128>, free: impl Fn(u128) -> u64) -> u128 {
        let tight = |set: &&u128| own.is_none_or(|own| own & !**set != 0) && free(**set) <= self.need(**set);
        self.sets.iter().filter(tight).fold(0, |all, set| all | set)
    }

    fn need(&self, set: u128) -> u64 {
        self.thick.iter().filter(|thick| thick.uses & !set == 0).map(|thick| u64::from(thick.reserved)).sum()
    }

    fn find_sets(&mut self) {
        let mut sets: Vec<u128> = Vec::new();
        let mut new: Vec<u128> = self.thick.iter().map(|thick| thick.uses).collect();
        while let Some(set) = new.pop() {
            if sets.contains(&set) || sets.len() > SETS_MAX {
                continue;
            }
            new.extend(sets.iter().filter(|other| *other & set != 0).map(|other| other | set));
            sets.push(set);
        }
        self.sets = sets;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether all reservations can be used at once, by trying each on each member that it may use.
    fn is_satisfiable(reservations: &mut [(u128, u64)], free: &mut [u64]) -> bool {
        let Some(k) = reservations.iter().position(|(_, count)| *count > 0) else { return true };
        reservations[k].1 -= 1;
        let uses = reservations[k].0;
        let found = (0..free.len()).any(|member| {
            if uses >> member & 1 == 0 || free[member] == 0 {
                return false;
            }
            free[member] -= 1;
            let fits = is_satisfiable(reservations, free);
            free[member] += 1;
            fits
        });
        reservations[k].1 += 1;
        found
    }

    #[test]
    fn reservations_fit_exactly_if_all_can_be_used_at_once() {
        let mut seed = 1u64;
        let mut below = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        let (mut fitting, mut not) = (0, 0);
        for _ in 0..4000 {
            let mut free: Vec<u64> = (0..3).map(|_| below(4)).collect();
            let mut reservations: Vec<(u128, u64)> =
                (0..1 + below(3)).map(|_| (u128::from(1 + below(7)), below(4))).collect();
            let mut reserves = Reserves::default();
            for (k, (uses, reserved)) in reservations.iter().enumerate() {
                let (uses, reserved) = (*uses, *reserved as u32);
                let whole_extents = Vec::new();
                reserves.thick.push(Thick { owner: k as u32 + 1, uses, extents: reserved, whole_extents, reserved });
            }
            reserves.find_sets();
            let on = |set: u128| (0..3).filter(|member| set >> member & 1 == 1).map(|member| free[member]).sum();
            let fits = reserves.fit(on);
            // An allocation that is allowed leaves the other reservations usable; one that is not allowed does not.
            for own in [None, Some(0)] {
                let reservation = own.filter(|_| reservations[0].1 > 0).map(|_| reservations[0].0);
                let unavailable = reserves.unavailable(reservation, on);
                for member in (0..3).filter(|member| fits && free[*member] > 0) {
                    if reservation.is_some_and(|uses| uses >> member & 1 == 0) {
                        continue;
                    }
                    let (mut free, mut reservations) = (free.clone(), reservations.clone());
                    free[member] -= 1;
                    reservations[0].1 -= u64::from(reservation.is_some());
                    assert_eq!(
                        is_satisfiable(&mut reservations, &mut free),
                        unavailable >> member & 1 == 0,
                        "{reservations:?} {free:?} {member}"
                    );
                }
            }
            assert_eq!(fits, is_satisfiable(&mut reservations, &mut free), "{reservations:?} {free:?}");
            if fits { fitting += 1 } else { not += 1 }
        }
        assert!(fitting > 500 && not > 500, "{fitting} {not}");
    }
}
