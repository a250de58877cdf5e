//! The blocks in which one volume or snapshot differs from another.
//!
//! Both descend from a common ancestor. Only blocks that an owner on the path from that ancestor to either of them
//! defines can differ, and only these are compared. A block counts as changed if one of these owners defines it, even
//! if the same data were written again, or zeros where nothing was.

use std::ops::Range;

use super::Pool;
use super::owners::{OwnerId, Owners};
use super::units::EXTENT_BLOCKS;
use super::walk::{Ranges, Walk};
use super::walked::{ExtentDefinition, Watch};

/// The two owners have no common ancestor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the two have no common ancestor")]
pub struct NotRelated;

/// The paths from a common ancestor to two owners.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The owners on the path to the base of the comparison, without the ancestor.
    from: Vec<OwnerId>,
    /// The owners on the path to the other one, the nearest to it first.
    to: Vec<OwnerId>,
}

impl Difference {
    /// Returns the difference between two owners.
    ///
    /// # Errors
    /// They have no common ancestor.
    pub fn between(owners: &Owners, from: OwnerId, to: OwnerId) -> Result<Difference, NotRelated> {
        let (mut from, mut to) = (owners.chain(from), owners.chain(to));
        // Chains end at the same root if they meet at all.
        if from.last().is_none() || from.last() != to.last() {
            return Err(NotRelated);
        }
        while from.last().is_some() && from.last() == to.last() {
            from.pop();
            to.pop();
        }
        Ok(Difference { from, to })
    }

    /// Returns the owners whose definitions are needed; empty: nothing differs.
    pub fn owners(&self) -> Vec<OwnerId> {
        self.from.iter().chain(&self.to).copied().collect()
    }

    /// Returns what differs, out of what a walk found of these owners in its window, sorted.
    pub fn changed(&self, walk: &Walk) -> Changed {
        let ranges_of = |owner: &OwnerId| {
            let first = walk.ranges.partition_point(|range| range.owner < *owner);
            let count = walk.ranges[first..].partition_point(|range| range.owner == *owner);
            Ranges { upcoming: &walk.ranges[first..first + count], ..Ranges::default() }
        };
        let (mut from, mut to): (Vec<_>, Vec<_>) =
            (self.from.iter().map(ranges_of).collect(), self.to.iter().map(ranges_of).collect());
        let mut changed = Changed::default();
        let mut definitions = walk.definitions.chunk_by(|a, b| a.logical == b.logical).peekable();
        // No range begins or ends between these.
        let mut marks: Vec<u64> = vec![walk.window.start, walk.window.end];
        for range in &walk.ranges {
            let first = u64::from(range.first);
            marks.extend([first, first + range.count]);
            // A range that covers parts of logical extents may do so for several.
            if range.zero != u64::MAX {
                marks.extend(first..first + range.count);
            }
        }
        marks.retain(|mark| walk.window.start <= *mark && *mark <= walk.window.end);
        marks.sort_unstable();
        marks.dedup();
        let inside = marks.windows(2).map(|pair| pair[0]..pair[1]);
        for Range { mut start, end } in inside {
            while start < end {
                let next = definitions.peek().map(|of_one| u64::from(of_one[0].logical));
                let (of_one, until): (&[ExtentDefinition], u64) = match next {
                    Some(logical) if logical == start => (definitions.next().unwrap_or_default(), start + 1),
                    Some(logical) if logical < end => (&[], logical),
                    _ => (&[], end),
                };
                let (data, zeros) = self.words(of_one, start as u32, &mut from, &mut to);
                changed.push(start as u32, until - start, data, zeros);
                start = until;
            }
        }
        changed
    }

    /// Returns which blocks of one logical extent may have other data, and which are known to read as zeros in the
    /// second owner.
    fn words(&self, of_one: &[ExtentDefinition], logical: u32, from: &mut [Ranges], to: &mut [Ranges]) -> (u64, u64) {
        let defined = |owner: &OwnerId| {
            of_one.iter().find(|definition| definition.owner == *owner).map_or((0, 0), |s| (s.present, s.zero))
        };
        let (mut data, mut zeros) = (0, 0);
        for (owner, ranges) in self.to.iter().zip(to) {
            let (present, zero) = defined(owner);
            data |= present & !zeros;
            zeros |= (zero | ranges.at(logical)) & !data;
        }
        for (owner, ranges) in self.from.iter().zip(from) {
            let (present, zero) = defined(owner);
            data |= (present | zero | ranges.at(logical)) & !zeros;
        }
        (data, zeros)
    }
}

/// Consecutive logical extents with the same blocks changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Words {
    first: u32,
    count: u32,
    data: u64,
    zeros: u64,
}

/// Neighbouring blocks that have changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangedRun {
    /// The first.
    pub block: u64,
    /// How many.
    pub blocks: u64,
    /// Whether the blocks are known to read as zeros in the second owner.
    pub zeros: bool,
}

/// What has changed, in order.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Changed {
    words: Vec<Words>,
}

impl Changed {
    fn push(&mut self, first: u32, count: u64, data: u64, zeros: u64) {
        debug_assert!(
            count == 1 || [data, zeros].iter().all(|word| [0, u64::MAX].contains(word)),
            "parts only of a single logical extent"
        );
        if data | zeros != 0 {
            self.words.push(Words { first, count: count as u32, data, zeros });
        }
    }

    /// Appends changes that lie beyond all the others.
    pub fn append(&mut self, mut later: Changed) {
        self.words.append(&mut later.words);
    }

    /// Returns whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        self.words.capacity() * size_of::<Words>()
    }

    /// Calls `run` for what has changed from a block on, in order, until it returns false.
    pub fn runs(&self, from_block: u64, run: &mut dyn FnMut(ChangedRun) -> bool) {
        const BLOCKS: u64 = EXTENT_BLOCKS as u64;
        let begin = self
            .words
            .partition_point(|words| (u64::from(words.first) + u64::from(words.count)) * BLOCKS <= from_block);
        let mut open: Option<ChangedRun> = None;
        let mut add = |block: u64, blocks: u64, zeros: bool| {
            let cut = from_block.saturating_sub(block).min(blocks);
            let (block, blocks) = (block + cut, blocks - cut);
            if blocks == 0 {
                return true;
            }
            match &mut open {
                Some(last) if last.zeros == zeros && last.block + last.blocks == block => last.blocks += blocks,
                last => {
                    if let Some(done) = last.replace(ChangedRun { block, blocks, zeros })
                        && !run(done)
                    {
                        *last = None;
                        return false;
                    }
                }
            }
            true
        };
        for words in &self.words[begin..] {
            let first = u64::from(words.first) * BLOCKS;
            if words.zeros == u64::MAX || words.data == u64::MAX {
                if !add(first, u64::from(words.count) * BLOCKS, words.zeros == u64::MAX) {
                    return;
                }
                continue;
            }
            let mut at = 0;
            while at < EXTENT_BLOCKS {
                let all = (words.data | words.zeros) >> at;
                if all == 0 {
                    break;
                }
                at += all.trailing_zeros();
                let zeros = words.zeros >> at & 1 == 1;
                let same = if zeros { words.zeros >> at } else { words.data >> at };
                let len = (!same).trailing_zeros();
                if !add(first + u64::from(at), u64::from(len), zeros) {
                    return;
                }
                at += len;
            }
        }
        if let Some(last) = open {
            run(last);
        }
    }
}

impl Pool {
    /// Begins to watch these owners' records for a walk. A watch that was begun before and not ended is void.
    pub fn watch(&mut self, owners: Vec<OwnerId>) {
        self.state.watch = Some(Watch::new(owners));
    }

    /// Ends the watch.
    pub fn end_watch(&mut self) -> Option<Watch> {
        self.state.watch.take()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::accounting::tests::{LOGICALS, draw};
    use super::*;

    /// Returns the owner whose data another owner sees in a block; `None` for zeros.
    fn sees(owners: &Owners, model: &super::super::accounting::tests::Model, id: u32, block: u64) -> Option<u32> {
        let first = owners.chain(id).into_iter().find_map(|id| Some((id, *model.get(&(id, block))?)));
        first.and_then(|(id, has_data)| has_data.then_some(id))
    }

    #[test]
    fn what_differs_is_what_two_maps_would_show() {
        let mut seed = 11u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed.rotate_left(31) % below
        };
        let (mut differing, mut unrelated, mut exact) = (0, 0, 0);
        for _ in 0..400 {
            let (mut state, model) = draw(&mut random);
            let (from, to) = (1 + random(8) as u32, 1 + random(8) as u32);
            let Ok(difference) = Difference::between(&state.owners, from, to) else {
                let roots = [from, to].map(|id| state.owners.chain(id).last().copied());
                assert_ne!(roots[0], roots[1]);
                unrelated += 1;
                continue;
            };
            let mut changed = Changed::default();
            let cut = 1 + random(LOGICALS);
            for window in [0..cut, cut..LOGICALS] {
                let mut walk = Walk::new(window, difference.owners());
                state.watch = Some(Watch::new(difference.owners()));
                if !difference.owners().is_empty() {
                    let mut moves = random(3);
                    while !walk.step(&state, random(20) as u32) {
                        // A record moves during the walk.
                        let whole = |index: &u32| state.record((*index).into_id()).owner != 0;
                        let some: Vec<u32> = (0..64).filter(whole).collect();
                        if moves > 0 {
                            moves -= 1;
                            move_one(&mut state, some[random(some.len() as u64) as usize]);
                        }
                    }
                }
                assert!(state.watch.take().unwrap().add_to(&mut walk));
                walk.sort();
                changed.append(difference.changed(&walk));
            }
            let (mut reported, mut zeros) = (BTreeSet::new(), BTreeSet::new());
            let mut last = None;
            changed.runs(0, &mut |run| {
                assert!(last.is_none_or(|end| end <= run.block), "in order");
                last = Some(run.block + run.blocks);
                reported.extend(run.block..run.block + run.blocks);
                zeros.extend((run.block..run.block + run.blocks).filter(|_| run.zeros));
                true
            });
            for block in 0..LOGICALS * 64 {
                let (a, b) = (sees(&state.owners, &model, from, block), sees(&state.owners, &model, to, block));
                let on_the_way = difference.owners().iter().any(|id| model.contains_key(&(*id, block)));
                assert_eq!(reported.contains(&block), on_the_way, "block {block} from {from} to {to}: {a:?}, {b:?}");
                assert!(a == b || on_the_way, "what differs was defined on the way");
                assert!(!zeros.contains(&block) || b.is_none(), "block {block} has content");
                differing += u32::from(a != b);
                exact += u32::from(on_the_way && a == b);
            }
            // From the middle on, ended early.
            let from_block = random(LOGICALS * 64);
            let mut first = None;
            changed.runs(from_block, &mut |run| {
                first = Some(run.block);
                false
            });
            assert_eq!(first, reported.range(from_block..).next().copied());
        }
        assert!(differing > 10_000 && unrelated > 20 && exact > 100, "{differing} {unrelated} {exact}");
    }

    trait IntoId {
        fn into_id(self) -> super::super::units::RecordId;
    }

    impl IntoId for u32 {
        fn into_id(self) -> super::super::units::RecordId {
            super::super::units::RecordId { member: 0, index: self }
        }
    }

    /// Moves what a record says to a free one, before or after it.
    fn move_one(state: &mut super::super::state::PoolTables, index: u32) {
        let (from, record) = (index.into_id(), state.record(index.into_id()));
        let free = |to: &u32| state.record(to.into_id()).owner == 0;
        let Some(to) = (0..64).rev().find(free).map(IntoId::into_id) else { return };
        let addresses = state.addresses(from).cloned();
        // In the order of a move: the new record first.
        state.set(to, &record, 0);
        if let Some(addresses) = addresses {
            (0..64u8).for_each(|slot| state.set_address(to, slot, addresses.0[usize::from(slot)]));
        }
        state.set(from, &braid_format::pool::Record::free(record.life), 0);
    }

    #[test]
    fn long_ranges_of_zeros_stay_one_run() {
        let difference = Difference { from: vec![], to: vec![3] };
        let mut walk = Walk::new(0..1 << 28, vec![3]);
        let zero_range = |first, count| super::super::walked::ZeroRange { owner: 3, first, count, zero: u64::MAX };
        walk.ranges = vec![zero_range(10, 1 << 20), zero_range(1 << 21, 5)];
        walk.definitions = vec![ExtentDefinition { logical: 100, owner: 3, present: 0xf0, zero: 0 }];
        let changed = difference.changed(&walk);
        let mut runs = Vec::new();
        changed.runs(0, &mut |run| {
            runs.push((run.block, run.blocks, run.zeros));
            true
        });
        let end = (10 + (1u64 << 20)) * 64;
        let expected = [
            (640, 100 * 64 + 4 - 640, true),
            (6404, 4, false),
            (6408, end - 6408, true),
            ((1 << 21) * 64, 5 * 64, true),
        ];
        assert_eq!(runs, expected);
        // In the other direction it is unknown what is there now.
        let difference = Difference { from: vec![3], to: vec![] };
        let mut runs = Vec::new();
        difference.changed(&walk).runs(0, &mut |run| {
            runs.push((run.block, run.blocks, run.zeros));
            true
        });
        assert_eq!(runs, [(640, end - 640, false), ((1 << 21) * 64, 5 * 64, false)]);
    }
}
