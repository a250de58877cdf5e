//! Space that is kept for thick volumes.
//!
//! A thick volume has a right to an extent for each of its logical extents of which nothing stands whole anywhere, neither in its own
//! extents nor in those that show through it. As long as there are as many free extents as such rights, a write to an extent of
//! which no snapshot has anything is never refused for want of space: where something of the logical extent stands whole, the block goes in there.
//!
//! A volume may be bound to some members. Rights can all be used together exactly if for each set of members there are as many free
//! extents on these as rights that can be used on these only (Hall 1935, "On representatives of subsets"). It is enough to look at the
//! sets that volumes have, and at the unions of those that overlap.

use std::collections::BTreeMap;

use braid_format::pool::{Owner, OwnerKind};

use super::admin::extents_for;
use super::owners::{OwnerId, Owners};
use crate::planted::{Planted, planted};

/// Most sets of members that are looked at: more come only of dozens of volumes that are bound to sets that overlap.
const SETS_MAX: usize = 64;

/// A thick volume.
#[derive(Clone)]
struct Thick {
    owner: OwnerId,
    /// Members that it may use.
    uses: u128,
    extents: u32,
    /// For each logical extent, also beyond the end, how many stand whole for it.
    stand: Vec<u16>,
    /// Logical extents below the end for which none does.
    missing: u32,
}

impl Thick {
    fn count_again(&mut self) {
        let standing = self.stand.iter().take(self.extents as usize).filter(|count| **count > 0).count();
        self.missing = self.extents - standing as u32;
    }
}

/// The rights of all thick volumes of a pool. Two bytes for each of their logical extents.
#[derive(Clone, Default)]
pub struct Reserves {
    thick: Vec<Thick>,
    /// Which of them see what an owner has, by their index.
    seen_by: BTreeMap<OwnerId, Vec<usize>>,
    /// Sets of members for which it is counted.
    sets: Vec<u128>,
}

impl Reserves {
    /// Those of these owners, of whom these extents stand whole, each with its owner and logical extent.
    pub fn of(owners: &Owners, wholes: impl Iterator<Item = (OwnerId, u32)>) -> Reserves {
        let mut reserves = Reserves::default();
        for owner in owners.iter().filter(|owner| owner.thick && owner.kind == OwnerKind::Volume) {
            reserves.add(owner, &owners.chain(owner.id));
        }
        if !reserves.is_empty() {
            wholes.for_each(|(owner, logical)| reserves.came(owner, logical));
        }
        reserves
    }

    /// Takes in a volume of which nothing stands, that sees what these owners have.
    pub fn add(&mut self, owner: &Owner, chain: &[OwnerId]) {
        let extents = extents_for(owner.size_bytes);
        let uses = owner.uses();
        self.thick.push(Thick { owner: owner.id, uses, extents, stand: Vec::new(), missing: extents });
        for seen in chain {
            self.seen_by.entry(*seen).or_default().push(self.thick.len() - 1);
        }
        self.find_sets();
    }

    /// Those of both.
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

    /// Whether some volume sees what this owner has.
    pub fn see(&self, owner: OwnerId) -> bool {
        self.seen_by.contains_key(&owner)
    }

    /// An extent stands whole for this owner's logical extent.
    pub fn came(&mut self, owner: OwnerId, logical: u32) {
        for k in self.seen_by.get(&owner).map_or(&[][..], |seen| seen) {
            let thick = &mut self.thick[*k];
            let at = logical as usize;
            if thick.stand.len() <= at {
                thick.stand.resize(at + 1, 0);
            }
            // A chain is never so long that this many come.
            thick.stand[at] = thick.stand[at].saturating_add(1);
            if thick.stand[at] == 1 && logical < thick.extents {
                thick.missing -= 1;
            }
        }
    }

    /// One does no more.
    pub fn left(&mut self, owner: OwnerId, logical: u32) {
        for k in self.seen_by.get(&owner).map_or(&[][..], |seen| seen) {
            let thick = &mut self.thick[*k];
            let Some(count) = thick.stand.get_mut(logical as usize).filter(|count| **count > 0) else {
                debug_assert!(false, "nothing stands there that could leave");
                continue;
            };
            if *count == u16::MAX {
                continue;
            }
            *count -= 1;
            if *count == 0 && logical < thick.extents {
                thick.missing += 1;
            }
        }
    }

    /// A volume goes on under another owner, and sees what the one before had: a snapshot was taken.
    pub fn follow(&mut self, from: OwnerId, to: OwnerId) {
        if let Some(k) = self.thick.iter().position(|thick| thick.owner == from) {
            self.thick[k].owner = to;
            self.seen_by.entry(to).or_default().push(k);
        }
    }

    /// A volume has this size and place now.
    pub fn alter(&mut self, owner: &Owner) {
        if let Some(thick) = self.thick.iter_mut().find(|thick| thick.owner == owner.id) {
            thick.extents = extents_for(owner.size_bytes);
            thick.uses = owner.uses();
            thick.count_again();
            self.find_sets();
        }
    }

    /// A volume is no more, or thick no more.
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

    /// Extents that are kept, for all together.
    pub fn extents(&self) -> u64 {
        self.thick.iter().map(|thick| u64::from(thick.missing)).sum()
    }

    /// Extents that are kept for this volume.
    pub fn extents_of(&self, owner: OwnerId) -> u64 {
        self.thick.iter().filter(|thick| thick.owner == owner).map(|thick| u64::from(thick.missing)).sum()
    }

    /// The members on which this logical extent has a right to an extent, for a volume that sees what the owner has; none where it has no
    /// right. Several may see it: what stands there then stands for all of them.
    pub fn right(&self, owner: OwnerId, logical: u32) -> Option<u128> {
        let stands = |thick: &Thick| thick.stand.get(logical as usize).is_some_and(|count| *count > 0);
        let mut seen_by = self.seen_by.get(&owner)?.iter().map(|k| &self.thick[*k]);
        seen_by.find(|thick| logical < thick.extents && !stands(thick)).map(|thick| thick.uses)
    }

    /// Whether all rights can be used, with so many free extents on each set of members.
    pub fn fit(&self, free: impl Fn(u128) -> u64) -> bool {
        self.sets.iter().all(|set| self.need(*set) <= free(*set)) && self.sets.len() <= SETS_MAX
    }

    /// Members from which nothing may be taken, by their bits: all that is free there others have a right to. `own`: the right that is
    /// used up by it.
    pub fn kept(&self, own: Option<u128>, free: impl Fn(u128) -> u64) -> u128 {
        if planted(Planted::ReserveForgotten) {
            return 0;
        }
        let tight = |set: &&u128| own.is_none_or(|own| own & !**set != 0) && free(**set) <= self.need(**set);
        self.sets.iter().filter(tight).fold(0, |all, set| all | set)
    }

    fn need(&self, set: u128) -> u64 {
        self.thick.iter().filter(|thick| thick.uses & !set == 0).map(|thick| u64::from(thick.missing)).sum()
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

    /// Whether all rights can be used at once, by trying: each in turn on each member that it may use.
    fn can(rights: &mut [(u128, u64)], free: &mut [u64]) -> bool {
        let Some(k) = rights.iter().position(|(_, count)| *count > 0) else { return true };
        rights[k].1 -= 1;
        let uses = rights[k].0;
        let found = (0..free.len()).any(|member| {
            if uses >> member & 1 == 0 || free[member] == 0 {
                return false;
            }
            free[member] -= 1;
            let fits = can(rights, free);
            free[member] += 1;
            fits
        });
        rights[k].1 += 1;
        found
    }

    #[test]
    fn rights_fit_exactly_where_all_can_be_used_at_once() {
        let mut seed = 1u64;
        let mut below = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        let (mut fitting, mut not) = (0, 0);
        for _ in 0..4000 {
            let mut free: Vec<u64> = (0..3).map(|_| below(4)).collect();
            let mut rights: Vec<(u128, u64)> =
                (0..1 + below(3)).map(|_| (u128::from(1 + below(7)), below(4))).collect();
            let mut reserves = Reserves::default();
            for (k, (uses, missing)) in rights.iter().enumerate() {
                let (uses, missing) = (*uses, *missing as u32);
                let stand = Vec::new();
                reserves.thick.push(Thick { owner: k as u32 + 1, uses, extents: missing, stand, missing });
            }
            reserves.find_sets();
            let on = |set: u128| (0..3).filter(|member| set >> member & 1 == 1).map(|member| free[member]).sum();
            let fits = reserves.fit(on);
            // What may be taken leaves the rest able to be used, and what may not does not.
            for own in [None, Some(0)] {
                let right = own.filter(|_| rights[0].1 > 0).map(|_| rights[0].0);
                let kept = reserves.kept(right, on);
                for member in (0..3).filter(|member| fits && free[*member] > 0) {
                    if right.is_some_and(|uses| uses >> member & 1 == 0) {
                        continue;
                    }
                    let (mut free, mut rights) = (free.clone(), rights.clone());
                    free[member] -= 1;
                    rights[0].1 -= u64::from(right.is_some());
                    assert_eq!(can(&mut rights, &mut free), kept >> member & 1 == 0, "{rights:?} {free:?} {member}");
                }
            }
            assert_eq!(fits, can(&mut rights, &mut free), "{rights:?} {free:?}");
            if fits { fitting += 1 } else { not += 1 }
        }
        assert!(fitting > 500 && not > 500, "{fitting} {not}");
    }
}
