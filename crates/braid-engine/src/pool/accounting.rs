//! Who has how much of a pool: what each owner holds, and what would be free without it.
//!
//! A block is exclusive to the volume or snapshot that alone sees it. It may stand in extents of an owner without a name, which waits for
//! all but one of its children to go.

use std::collections::BTreeMap;

use braid_format::pool::{OwnerKind, RecordKind};

use super::owners::OwnerId;
use super::state::State;
use super::units::ExtentId;

/// What one owner has.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Extents that are its own, whole and packed.
    pub extents: u64,
    /// Blocks that stand in these.
    pub blocks: u64,
    /// Blocks, its own or of those before it, that nobody else sees.
    pub exclusive_blocks: u64,
    /// Records that say of blocks that they read as zeros, without an extent.
    pub zero_records: u64,
}

/// Of what an owner states, which stands where it is, and which reads as zeros.
#[derive(Clone, Copy, Default)]
struct Word {
    present: u64,
    zero: u64,
}

struct Tree<'a> {
    state: &'a State,
    stated: BTreeMap<(OwnerId, u32), Word>,
    children: BTreeMap<OwnerId, Vec<OwnerId>>,
}

/// Who sees of some blocks what.
#[derive(Default)]
struct Seen {
    by: Vec<(OwnerId, u64)>,
    once: u64,
    twice: u64,
}

/// What each owner has, by its number. Looks at all records: for those who ask, not for those who write.
pub fn usage(state: &State) -> BTreeMap<OwnerId, Usage> {
    let mut all: BTreeMap<OwnerId, Usage> = state.owners.iter().map(|owner| (owner.id, Usage::default())).collect();
    let mut tree = Tree { state, stated: BTreeMap::new(), children: BTreeMap::new() };
    for owner in state.owners.iter() {
        tree.children.entry(owner.parent).or_default().push(owner.id);
        let zeros = state.zeros_of(owner.id).count() as u64;
        all.entry(owner.id).or_default().zero_records = zeros;
    }
    for (member, extents) in state.members() {
        for index in 0..extents {
            let id = ExtentId { member, index }.into();
            let record = state.record(id);
            if record.kind == RecordKind::Free {
                continue;
            }
            let usage = all.entry(record.owner).or_default();
            usage.extents += 1;
            usage.blocks += u64::from(record.present.count_ones());
            if record.kind == RecordKind::Packed {
                let addresses = state.addresses(id).expect("a packed extent has addresses");
                for slot in (0..64usize).filter(|slot| record.present >> slot & 1 == 1) {
                    let (logical, bit) = ((addresses.0[slot] / 64) as u32, addresses.0[slot] % 64);
                    tree.stated.entry((record.owner, logical)).or_default().present |= 1 << bit;
                }
            } else {
                let word = tree.stated.entry((record.owner, record.logical)).or_default();
                word.present |= record.present;
                word.zero |= record.zero;
            }
        }
    }
    for ((owner, logical), word) in &tree.stated {
        let mut seen = Seen::default();
        tree.look(*owner, *logical, word.present, &mut seen);
        for (by, mask) in seen.by {
            all.entry(by).or_default().exclusive_blocks += u64::from((mask & !seen.twice).count_ones());
        }
    }
    all
}

impl Tree<'_> {
    /// Notes who sees these blocks, which show through an owner, or are its own.
    fn look(&self, owner: OwnerId, logical: u32, blocks: u64, seen: &mut Seen) {
        let kind = self.state.owners.get(owner).map(|owner| owner.kind);
        if matches!(kind, Some(OwnerKind::Volume | OwnerKind::Snapshot)) {
            seen.twice |= seen.once & blocks;
            seen.once |= blocks;
            seen.by.push((owner, blocks));
        }
        for child in self.children.get(&owner).into_iter().flatten() {
            let word = self.stated.get(&(*child, logical)).copied().unwrap_or_default();
            let through = blocks & !(word.present | word.zero | self.state.zero_range_word(*child, logical));
            if through & !seen.twice != 0 {
                self.look(*child, logical, through, seen);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use braid_format::Uuid;
    use braid_format::pool::{Owner, OwnerKind, OwnerName, Placing, Record, RecordKind};

    use super::super::state::{RecordId, State};
    use super::super::units::EXTENT_BLOCKS;
    use super::usage;

    const LOGICALS: u64 = 3;

    fn owner(id: u32, kind: OwnerKind, parent: u32) -> Owner {
        let named = kind != OwnerKind::Nameless;
        let name = if named { OwnerName::new(&format!("o{id}")).unwrap() } else { OwnerName::NONE };
        let (place, on, thick, policy) = (Placing::Spread, 0, false, None);
        let (volume, uuid) = (Uuid::nil(), Uuid::from_u128(u128::from(id)));
        let (limit_iops, limit_bytes_per_s, created_unix_s, size_bytes) = (0, 0, 0, LOGICALS << 18);
        Owner {
            id,
            kind,
            place,
            on,
            also_on: 0,
            thick,
            parent,
            uuid,
            volume,
            size_bytes,
            created_unix_s,
            limit_iops,
            limit_bytes_per_s,
            name,
            policy,
        }
    }

    /// What an owner says of each block: that it stands there (true), or reads as zeros.
    type Said = BTreeMap<(u32, u64), bool>;

    /// A pool of eight owners who state what chance says.
    fn draw(mut random: impl FnMut(u64) -> u64) -> (State, Said) {
        let (mut state, mut said) = (State::new(16, 16), Said::new());
        state.add_member(0, 64, 64);
        let mut extent = 0;
        for id in 1..=8u32 {
            let kind = [OwnerKind::Volume, OwnerKind::Snapshot, OwnerKind::Nameless][random(3) as usize];
            let parent = random(u64::from(id)) as u32;
            state.set_owner(id, Some(owner(id, kind, parent)), 0);
            for logical in 0..LOGICALS as u32 {
                let (a, b, c) = (random(u64::MAX), random(u64::MAX), random(u64::MAX));
                let (present, zero, packed) = (a & b, c & !(a & b) & random(u64::MAX), random(3) == 0);
                let mut note = |bits: u64, stands: bool| {
                    for bit in (0..u64::from(EXTENT_BLOCKS)).filter(|bit| bits >> bit & 1 == 1) {
                        said.insert((id, u64::from(logical) * 64 + bit), stands);
                    }
                };
                note(zero, false);
                note(present, true);
                let whole = Record { kind: RecordKind::Whole, life: 1, owner: id, logical, present, zero };
                let at = RecordId { member: 0, index: extent };
                extent += 1;
                if !packed {
                    state.set(at, &whole, 0);
                    continue;
                }
                state.set(at, &Record { kind: RecordKind::Packed, logical: u32::MAX, zero: 0, ..whole }, 0);
                (0..64u8).for_each(|slot| state.set_address(at, slot, u64::from(logical) * 64 + u64::from(slot)));
                let zeros = state.free_zero_slot(id).unwrap();
                // It may say so of what stands there, too: that counts.
                let zeros_of = Record { kind: RecordKind::Zeros, present: 1, zero: zero | 1, ..whole };
                state.set(zeros, &zeros_of, 0);
                said.entry((id, u64::from(logical) * 64)).or_insert(false);
            }
        }
        (state, said)
    }

    #[test]
    fn blocks_are_exclusive_to_whoever_alone_sees_them() {
        let mut seed = 5u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed.rotate_left(31) % below
        };
        let mut exclusive = 0;
        for _ in 0..300 {
            let (state, said) = draw(&mut random);
            let mut seers: BTreeMap<(u32, u64), BTreeSet<u32>> = BTreeMap::new();
            for owner in state.owners.iter().filter(|owner| owner.kind != OwnerKind::Nameless) {
                for block in 0..LOGICALS * 64 {
                    let chain = state.owners.chain(owner.id);
                    let first = chain.into_iter().find_map(|id| Some((id, *said.get(&(id, block))?)));
                    if let Some((id, true)) = first {
                        seers.entry((id, block)).or_default().insert(owner.id);
                    }
                }
            }
            let usage = usage(&state);
            for owner in state.owners.iter() {
                let alone = seers.values().filter(|by| by.len() == 1 && by.contains(&owner.id)).count() as u64;
                let own = said.iter().filter(|((id, _), stands)| *id == owner.id && **stands).count() as u64;
                let found = usage[&owner.id];
                assert_eq!((found.exclusive_blocks, found.blocks, found.extents), (alone, own, LOGICALS), "{owner:?}");
                exclusive += alone;
            }
        }
        assert!(exclusive > 1000, "chance made some");
    }
}
