//! Space accounting: what each owner of a pool holds, and what would be free without it.
//!
//! A block is exclusive to the volume or snapshot that alone sees it. It may be in an extent of a nameless owner, which
//! stays until it has at most one child.

use std::collections::BTreeMap;

use braid_format::pool::{Owner, OwnerKind};

use super::owners::OwnerId;
use super::state::PoolTables;
use super::walk::{Ranges, Walk};
use super::walked::ExtentDefinition;

/// Space of one owner.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Its own extents, whole and packed.
    pub extents: u64,
    /// Blocks in these.
    pub blocks: u64,
    /// Number of blocks with data that are visible through the owner, in its own extents or in those of its ancestors.
    /// 0 for an owner that is neither a volume nor a snapshot.
    pub visible_blocks: u64,
    /// Number of visible blocks that no other volume or snapshot sees.
    pub exclusive_blocks: u64,
    /// Its zero ranges: records without an extent.
    pub zero_records: u64,
}

/// The space accounts of a pool: what its owners hold and share.
#[derive(Debug)]
pub struct Accounts {
    /// By number, so that each comes after its parent.
    nodes: Vec<Node>,
    usage: Vec<Usage>,
    /// Indices of all owners that descend from one root owner, by the index of that root.
    families: BTreeMap<usize, Vec<usize>>,
    /// Blocks that several volumes and snapshots see, each counted once.
    pub shared_blocks: u64,
    /// Blocks that no volume or snapshot sees: they were deleted, and are not free yet.
    pub unreferenced_blocks: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    id: OwnerId,
    parent: Option<usize>,
    named: bool,
    root: usize,
}

/// Returns the space of each owner, by number, counted in one step: for callers that block no other work.
pub fn usage(state: &PoolTables) -> BTreeMap<OwnerId, Usage> {
    let mut accounts = Accounts::new(state.owners.iter());
    let mut walk = Walk::new(0..u64::from(u32::MAX), Vec::new());
    while !walk.step(state, u32::MAX) {}
    walk.sort();
    accounts.add(&walk);
    accounts.nodes.iter().map(|node| node.id).zip(accounts.usage).collect()
}

/// Block masks of one owner and one logical extent.
#[derive(Clone, Copy, Default)]
struct Word {
    /// Blocks for which the owner has data.
    present: u64,
    /// Blocks that the owner defines, as data or as zeros: an ancestor's content of these is not visible through it.
    hidden: u64,
    /// Blocks with data that are visible through the owner.
    seen: u64,
    /// Of these, the blocks that at least one volume or snapshot sees: the owner itself or a descendant.
    once: u64,
    /// Of these, the blocks that at least two volumes and snapshots see.
    twice: u64,
    /// Visible blocks that another volume or snapshot sees, too.
    shared: u64,
}

impl Accounts {
    /// Returns the accounts of these owners, all that the pool has; nothing is counted yet.
    pub fn new<'a>(owners: impl IntoIterator<Item = &'a Owner>) -> Accounts {
        let mut owners: Vec<&Owner> = owners.into_iter().collect();
        owners.sort_unstable_by_key(|owner| owner.id);
        let mut nodes: Vec<Node> = Vec::with_capacity(owners.len());
        let mut families: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for owner in owners {
            let at = nodes.len();
            // A child has a higher number than its parent.
            let parent = nodes.binary_search_by_key(&owner.parent, |node| node.id).ok();
            let root = parent.map_or(at, |parent| nodes[parent].root);
            let named = matches!(owner.kind, OwnerKind::Volume | OwnerKind::Snapshot);
            nodes.push(Node { id: owner.id, parent, named, root });
            families.entry(root).or_default().push(at);
        }
        let usage = vec![Usage::default(); nodes.len()];
        Accounts { nodes, usage, families, shared_blocks: 0, unreferenced_blocks: 0 }
    }

    /// Adds what a walk has found in its window; the walk has ended and is sorted. Calls are for consecutive windows,
    /// the first of which begins at 0. The counts that do not depend on the window (extents, blocks, zero ranges) are
    /// taken from that first walk.
    pub fn add(&mut self, walk: &Walk) {
        if walk.window.start == 0 {
            for (owner, (extents, blocks)) in &walk.owned {
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
                ranges[at].upcoming = of_one;
            }
        }
        let mut words = vec![Word::default(); self.nodes.len()];
        for of_one in walk.definitions.chunk_by(|a, b| a.logical == b.logical) {
            self.add_logical(of_one, &mut words, &mut ranges);
        }
    }

    /// Adds the definitions of one logical extent.
    fn add_logical(&mut self, statements: &[ExtentDefinition], words: &mut [Word], ranges: &mut [Ranges<'_>]) {
        let mut roots = Vec::new();
        for definition in statements {
            let Some(at) = self.node(definition.owner) else { continue };
            words[at] =
                Word { present: definition.present, hidden: definition.present | definition.zero, ..Word::default() };
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
                self.unreferenced_blocks += u64::from((word.present & !word.once).count_ones());
                if self.nodes[at].named {
                    self.usage[at].visible_blocks += u64::from(word.seen.count_ones());
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

    /// Returns the space of one owner.
    pub fn of(&self, owner: OwnerId) -> Option<&Usage> {
        self.node(owner).map(|at| &self.usage[at])
    }

    /// Returns the sum over all owners.
    pub fn total(&self) -> Usage {
        self.usage.iter().fold(Usage::default(), |sum, one| Usage {
            extents: sum.extents + one.extents,
            blocks: sum.blocks + one.blocks,
            visible_blocks: sum.visible_blocks + one.visible_blocks,
            exclusive_blocks: sum.exclusive_blocks + one.exclusive_blocks,
            zero_records: sum.zero_records + one.zero_records,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use braid_format::Uuid;
    use braid_format::pool::{AllocationPolicy, Owner, OwnerKind, OwnerName, Record, RecordKind};

    use super::super::state::PoolTables;
    use super::super::units::EXTENT_BLOCKS;
    use super::super::units::RecordId;
    use super::super::walk::Walk;
    use super::Accounts;

    pub const LOGICALS: u64 = 3;

    fn owner(id: u32, kind: OwnerKind, parent: u32) -> Owner {
        let named = kind != OwnerKind::Nameless;
        let name = if named { OwnerName::new(&format!("o{id}")).unwrap() } else { OwnerName::NONE };
        let (place, on, thick, policy) = (AllocationPolicy::Spread, 0, false, None);
        let (volume, uuid) = (Uuid::nil(), Uuid::from_u128(u128::from(id)));
        let (limit_iops, limit_bytes_per_s, created_unix_s, size_bytes) = (0, 0, 0, LOGICALS << 18);
        Owner {
            id,
            kind,
            allocation: place,
            on,
            also_on: 0,
            thick,
            flattening: false,
            frozen: false,
            sectors_of_512: false,
            parent,
            uuid,
            volume,
            size_bytes,
            created_unix_s,
            limit_iops,
            limit_bytes_per_s,
            name,
            schedule: policy,
        }
    }

    /// By owner and block: whether the owner defines the block as data (true) or as zeros.
    pub type Model = BTreeMap<(u32, u64), bool>;

    /// Returns a pool of eight owners with random definitions.
    pub fn draw(mut random: impl FnMut(u64) -> u64) -> (PoolTables, Model) {
        let (mut state, mut model) = (PoolTables::new(16), Model::new());
        state.add_member(0, 64, 64);
        let mut extent = 0;
        for id in 1..=8u32 {
            let kind = [OwnerKind::Volume, OwnerKind::Snapshot, OwnerKind::Nameless][random(3) as usize];
            let parent = random(u64::from(id)) as u32;
            state.set_owner(id, Some(owner(id, kind, parent)), 0);
            for logical in 0..LOGICALS as u32 {
                let (a, b, c) = (random(u64::MAX), random(u64::MAX), random(u64::MAX));
                let (present, zero, packed) = (a & b, c & !(a & b) & random(u64::MAX), random(3) == 0);
                let mut note = |bits: u64, has_data: bool| {
                    for bit in (0..u64::from(EXTENT_BLOCKS)).filter(|bit| bits >> bit & 1 == 1) {
                        model.insert((id, u64::from(logical) * 64 + bit), has_data);
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
                // It may cover blocks with data, too: data take precedence.
                let zeros_of = Record { kind: RecordKind::Zeros, present: 1, zero: zero | 1, ..whole };
                state.set(zeros, &zeros_of, 0);
                model.entry((id, u64::from(logical) * 64)).or_insert(false);
            }
        }
        (state, model)
    }

    #[test]
    fn blocks_are_exclusive_to_the_only_owner_that_sees_them() {
        let mut seed = 5u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed.rotate_left(31) % below
        };
        let mut exclusive = 0;
        for _ in 0..300 {
            let (state, model) = draw(&mut random);
            let mut seers: BTreeMap<(u32, u64), BTreeSet<u32>> = BTreeMap::new();
            for owner in state.owners.iter().filter(|owner| owner.kind != OwnerKind::Nameless) {
                for block in 0..LOGICALS * 64 {
                    let chain = state.owners.chain(owner.id);
                    let first = chain.into_iter().find_map(|id| Some((id, *model.get(&(id, block))?)));
                    if let Some((id, true)) = first {
                        seers.entry((id, block)).or_default().insert(owner.id);
                    }
                }
            }
            let mut accounts = Accounts::new(state.owners.iter());
            // In two windows, with random budgets.
            let cut = 1 + random(LOGICALS);
            for window in [0..cut, cut..LOGICALS] {
                let mut walk = Walk::new(window, Vec::new());
                while !walk.step(&state, random(40) as u32) {}
                walk.sort();
                accounts.add(&walk);
            }
            let (mut shared, mut unseen) = (0, 0);
            for ((id, block), _) in model.iter().filter(|(_, has_data)| **has_data) {
                match seers.get(&(*id, *block)).map_or(0, BTreeSet::len) {
                    0 => unseen += 1,
                    1 => {}
                    _ => shared += 1,
                }
            }
            assert_eq!((accounts.shared_blocks, accounts.unreferenced_blocks), (shared, unseen));
            for owner in state.owners.iter() {
                let alone = seers.values().filter(|by| by.len() == 1 && by.contains(&owner.id)).count() as u64;
                let own = model.iter().filter(|((id, _), has_data)| *id == owner.id && **has_data).count() as u64;
                let found = accounts.of(owner.id).unwrap();
                let seen = seers.values().filter(|by| by.contains(&owner.id)).count() as u64;
                assert_eq!((found.visible_blocks, found.zero_records), (seen, state.zeros_of(owner.id).count() as u64));
                assert_eq!((found.exclusive_blocks, found.blocks, found.extents), (alone, own, LOGICALS), "{owner:?}");
                exclusive += alone;
            }
        }
        assert!(exclusive > 1000, "some blocks are exclusive");
    }
}
