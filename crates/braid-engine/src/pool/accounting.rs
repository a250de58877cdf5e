//! Who has how much of a pool: what each owner holds, and what would be free without it.
//!
//! A block is exclusive to the volume or snapshot that alone sees it. It may stand in extents of an owner without a name, which waits for
//! all but one of its children to go.

use std::collections::BTreeMap;

use braid_format::pool::{Owner, OwnerKind};

use super::owners::OwnerId;
use super::state::State;
use super::statements::{Ranges, Statement, Walk};

/// What one owner has.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Extents that are its own, whole and packed.
    pub extents: u64,
    /// Blocks that stand in these.
    pub blocks: u64,
    /// Blocks that show through it, its own or of those before it.
    pub seen_blocks: u64,
    /// Those of them that nobody else sees.
    pub exclusive_blocks: u64,
    /// Records that say of blocks that they read as zeros, without an extent.
    pub zero_records: u64,
}

/// The accounts of a pool: what its owners have, and have in common.
#[derive(Debug)]
pub struct Accounts {
    /// By number, so that each stands after its parent.
    nodes: Vec<Node>,
    usage: Vec<Usage>,
    /// Owners that have blocks in common, by the first of them.
    families: BTreeMap<usize, Vec<usize>>,
    /// Blocks that several volumes and snapshots see, each counted once.
    pub shared_blocks: u64,
    /// Blocks that nobody sees: what was deleted and is not free yet.
    pub unseen_blocks: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    id: OwnerId,
    parent: Option<usize>,
    named: bool,
    root: usize,
}

/// What each owner has, by its number, counted at once: for those who need not keep others waiting.
pub fn usage(state: &State) -> BTreeMap<OwnerId, Usage> {
    let mut accounts = Accounts::new(state.owners.iter());
    let mut walk = Walk::new(0..u64::from(u32::MAX), Vec::new());
    while !walk.step(state, u32::MAX) {}
    walk.sort();
    accounts.add(&walk);
    accounts.nodes.iter().map(|node| node.id).zip(accounts.usage).collect()
}

/// Of one owner and one logical extent.
#[derive(Clone, Copy, Default)]
struct Word {
    present: u64,
    /// What it says nothing of shows through: not this.
    hidden: u64,
    seen: u64,
    once: u64,
    twice: u64,
    shared: u64,
}

impl Accounts {
    /// Of these owners, all that there are; nothing is counted yet.
    pub fn new<'a>(owners: impl IntoIterator<Item = &'a Owner>) -> Accounts {
        let mut owners: Vec<&Owner> = owners.into_iter().collect();
        owners.sort_unstable_by_key(|owner| owner.id);
        let mut nodes: Vec<Node> = Vec::with_capacity(owners.len());
        let mut families: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for owner in owners {
            let at = nodes.len();
            // Whoever begins where another one is has a higher number.
            let parent = nodes.binary_search_by_key(&owner.parent, |node| node.id).ok();
            let root = parent.map_or(at, |parent| nodes[parent].root);
            let named = matches!(owner.kind, OwnerKind::Volume | OwnerKind::Snapshot);
            nodes.push(Node { id: owner.id, parent, named, root });
            families.entry(root).or_default().push(at);
        }
        let usage = vec![Usage::default(); nodes.len()];
        Accounts { nodes, usage, families, shared_blocks: 0, unseen_blocks: 0 }
    }

    /// Takes in what a walk through all records found in its window, in order. Windows follow one another, and the first begins at 0.
    pub fn add(&mut self, walk: &Walk) {
        if walk.window.start == 0 {
            for (owner, (extents, blocks)) in &walk.held {
                if let Some(usage) = self.usage_mut(*owner) {
                    (usage.extents, usage.blocks) = (*extents, *blocks);
                }
            }
            for range in &walk.ranges {
                if let Some(usage) = self.usage_mut(range.owner) {
                    usage.zero_records += 1;
                }
            }
        }
        let mut ranges = vec![Ranges::default(); self.nodes.len()];
        for of_one in walk.ranges.chunk_by(|a, b| a.owner == b.owner) {
            if let Some(at) = self.node(of_one[0].owner) {
                ranges[at].ahead = of_one;
            }
        }
        let mut words = vec![Word::default(); self.nodes.len()];
        for of_one in walk.statements.chunk_by(|a, b| a.logical == b.logical) {
            self.add_logical(of_one, &mut words, &mut ranges);
        }
    }

    /// What was said of one logical extent.
    fn add_logical(&mut self, statements: &[Statement], words: &mut [Word], ranges: &mut [Ranges<'_>]) {
        let mut roots = Vec::new();
        for said in statements {
            let Some(at) = self.node(said.owner) else { continue };
            words[at] = Word { present: said.present, hidden: said.present | said.zero, ..Word::default() };
            roots.push(self.nodes[at].root);
        }
        roots.sort_unstable();
        roots.dedup();
        for root in roots {
            let family = &self.families[&root];
            for &at in family {
                let Node { parent, named, .. } = self.nodes[at];
                let above = parent.map_or(0, |parent| words[parent].seen);
                let word = &mut words[at];
                word.hidden |= ranges[at].at(statements[0].logical);
                word.seen = word.present | above & !word.hidden;
                word.once = if named { word.seen } else { 0 };
            }
            for &at in family.iter().rev() {
                let Some(parent) = self.nodes[at].parent else { continue };
                let Word { hidden, once, twice, .. } = words[at];
                let above = &mut words[parent];
                let through = above.seen & !hidden;
                above.twice |= (above.once & once | twice) & through;
                above.once |= once & through;
            }
            for &at in family {
                let above = self.nodes[at].parent.map_or(0, |parent| words[parent].shared);
                let word = &mut words[at];
                word.shared = word.present & word.twice | above & word.seen & !word.hidden;
                self.shared_blocks += u64::from((word.present & word.twice).count_ones());
                self.unseen_blocks += u64::from((word.present & !word.once).count_ones());
                if self.nodes[at].named {
                    self.usage[at].seen_blocks += u64::from(word.seen.count_ones());
                    self.usage[at].exclusive_blocks += u64::from((word.seen & !word.shared).count_ones());
                }
            }
            family.iter().for_each(|at| words[*at] = Word::default());
        }
    }

    fn node(&self, owner: OwnerId) -> Option<usize> {
        self.nodes.binary_search_by_key(&owner, |node| node.id).ok()
    }

    fn usage_mut(&mut self, owner: OwnerId) -> Option<&mut Usage> {
        self.node(owner).map(|at| &mut self.usage[at])
    }

    /// What one owner has.
    pub fn of(&self, owner: OwnerId) -> Option<&Usage> {
        self.node(owner).map(|at| &self.usage[at])
    }

    /// Of all of them.
    pub fn total(&self) -> Usage {
        self.usage.iter().fold(Usage::default(), |sum, one| Usage {
            extents: sum.extents + one.extents,
            blocks: sum.blocks + one.blocks,
            seen_blocks: sum.seen_blocks + one.seen_blocks,
            exclusive_blocks: sum.exclusive_blocks + one.exclusive_blocks,
            zero_records: sum.zero_records + one.zero_records,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use braid_format::Uuid;
    use braid_format::pool::{Owner, OwnerKind, OwnerName, Placing, Record, RecordKind};

    use super::super::state::{RecordId, State};
    use super::super::statements::Walk;
    use super::super::units::EXTENT_BLOCKS;
    use super::Accounts;

    pub const LOGICALS: u64 = 3;

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
            flattens: false,
            frozen: false,
            in_sectors: false,
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
    pub type Said = BTreeMap<(u32, u64), bool>;

    /// A pool of eight owners who state what chance says.
    pub fn draw(mut random: impl FnMut(u64) -> u64) -> (State, Said) {
        let (mut state, mut said) = (State::new(16), Said::new());
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
            let mut accounts = Accounts::new(state.owners.iter());
            // In two windows, by steps of chance.
            let cut = 1 + random(LOGICALS);
            for window in [0..cut, cut..LOGICALS] {
                let mut walk = Walk::new(window, Vec::new());
                while !walk.step(&state, random(40) as u32) {}
                walk.sort();
                accounts.add(&walk);
            }
            let (mut shared, mut unseen) = (0, 0);
            for ((id, block), _) in said.iter().filter(|(_, stands)| **stands) {
                match seers.get(&(*id, *block)).map_or(0, BTreeSet::len) {
                    0 => unseen += 1,
                    1 => {}
                    _ => shared += 1,
                }
            }
            assert_eq!((accounts.shared_blocks, accounts.unseen_blocks), (shared, unseen));
            for owner in state.owners.iter() {
                let alone = seers.values().filter(|by| by.len() == 1 && by.contains(&owner.id)).count() as u64;
                let own = said.iter().filter(|((id, _), stands)| *id == owner.id && **stands).count() as u64;
                let found = accounts.of(owner.id).unwrap();
                let seen = seers.values().filter(|by| by.contains(&owner.id)).count() as u64;
                assert_eq!((found.seen_blocks, found.zero_records), (seen, state.zeros_of(owner.id).count() as u64));
                assert_eq!((found.exclusive_blocks, found.blocks, found.extents), (alone, own, LOGICALS), "{owner:?}");
                exclusive += alone;
            }
        }
        assert!(exclusive > 1000, "chance made some");
    }
}
