//! The blocks that an owner defines, by logical extent: gathered from its records to build a map, to merge the owner,
//! or to flatten it.
//!
//! Memory follows what is defined, not the size of the volume, which may be 1 PiB of nothing: 16 KiB for each 512 MiB
//! of the volume in which a record defines blocks, a few words for each zero range, and 8 bytes for each 512 MiB up to
//! the last that is defined.

use std::collections::BTreeMap;

use super::units::{EXTENT_BLOCKS, ExtentId};

/// Words of a part, which is allocated when the first of them is needed.
const PART_WORDS: usize = 2048;

/// What an owner defines.
pub(super) enum Definition {
    /// Blocks of a whole extent, each at its own position: the extent, its logical extent, the blocks with data, and
    /// the blocks that read as zeros.
    Whole(ExtentId, u32, u64, u64),
    /// A block in a slot of a packed extent: the extent, the slot, and the block.
    Slot(ExtentId, u8, u64),
    /// A zero range: the first logical extent, how many there are, and which blocks of each read as zeros.
    Zeros(u32, u64, u64),
}

/// The blocks that an owner defines: a bit for each block, of each logical extent below an end.
pub(super) struct DefinedBlocks {
    extents: u32,
    parts: Vec<Option<Box<[u64; PART_WORDS]>>>,
    /// Ranges of logical extents that are defined as a whole, by their first one, with their end. No two overlap or
    /// touch.
    ranges: BTreeMap<u32, u32>,
}

impl DefinedBlocks {
    /// Returns a set for `extents` logical extents in which nothing is defined.
    pub fn new(extents: u32) -> DefinedBlocks {
        DefinedBlocks { extents, parts: Vec::new(), ranges: BTreeMap::new() }
    }

    /// How many logical extents there are.
    pub fn extents(&self) -> u32 {
        self.extents
    }

    /// Returns the defined blocks of a logical extent; `None` beyond the last one.
    #[inline]
    pub fn get(&self, logical: u32) -> Option<u64> {
        if logical >= self.extents {
            return None;
        }
        let part = self.parts.get(logical as usize / PART_WORDS).and_then(Option::as_ref);
        let word = part.map_or(0, |part| part[logical as usize % PART_WORDS]);
        if !self.ranges.is_empty() && self.is_in_range(logical) { Some(u64::MAX) } else { Some(word) }
    }

    /// Returns whether a block is defined; `None` beyond the last logical extent.
    #[inline]
    pub fn has(&self, block: u64) -> Option<bool> {
        let each = u64::from(EXTENT_BLOCKS);
        let logical = u32::try_from(block / each).ok()?;
        self.get(logical).map(|word| word >> (block % each) & 1 == 1)
    }

    /// Adds blocks of a logical extent, if it exists.
    #[inline]
    pub fn add_blocks(&mut self, logical: u32, blocks: u64) {
        if logical >= self.extents || blocks == 0 {
            return;
        }
        let part = logical as usize / PART_WORDS;
        if self.parts.len() <= part {
            self.parts.resize_with(part + 1, || None);
        }
        let part = self.parts[part].get_or_insert_with(|| Box::new([0; PART_WORDS]));
        part[logical as usize % PART_WORDS] |= blocks;
    }

    /// Adds a definition, as far as it lies below the end.
    pub fn add(&mut self, definition: &Definition) {
        match definition {
            Definition::Whole(_, logical, present, zero) => self.add_blocks(*logical, present | zero),
            Definition::Slot(_, _, block) => {
                let each = u64::from(EXTENT_BLOCKS);
                if let Ok(logical) = u32::try_from(block / each) {
                    self.add_blocks(logical, 1 << (block % each));
                }
            }
            Definition::Zeros(first, 1, zero) => self.add_blocks(*first, *zero),
            // A range of several logical extents covers all of their blocks: a record that says otherwise is not sound.
            Definition::Zeros(first, count, _) => {
                let end = u64::from(*first).saturating_add(*count).min(u64::from(self.extents));
                self.add_range(*first, end as u32);
            }
        }
    }

    fn is_in_range(&self, logical: u32) -> bool {
        self.ranges.range(..=logical).next_back().is_some_and(|(_, end)| logical < *end)
    }

    fn add_range(&mut self, mut first: u32, mut end: u32) {
        if first >= end {
            return;
        }
        while let Some((from, to)) = self.ranges.range(..=end).next_back().map(|(from, to)| (*from, *to)) {
            if to < first {
                break;
            }
            self.ranges.remove(&from);
            (first, end) = (first.min(from), end.max(to));
        }
        self.ranges.insert(first, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: ExtentId = ExtentId { member: 0, index: 0 };

    /// Compares with a list that has a word for every logical extent.
    #[test]
    fn it_matches_a_list_of_all_extents() {
        let extents = 5000u32;
        let (mut defined, mut list) = (DefinedBlocks::new(extents), vec![0u64; extents as usize]);
        let mut x = 1u64;
        let mut draw = |below: u64| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) % below
        };
        for _ in 0..2000 {
            let logical = draw(u64::from(extents) + 200) as u32;
            let bits = 1u64 << draw(64) | 1u64 << draw(64);
            let definition = match draw(4) {
                0 => Definition::Whole(NOWHERE, logical, bits, 1 << draw(64)),
                1 => Definition::Slot(NOWHERE, 0, u64::from(logical) * 64 + draw(64)),
                2 => Definition::Zeros(logical, 1, bits),
                _ => Definition::Zeros(logical, 2 + draw(40), u64::MAX),
            };
            let (first, count, mask) = match definition {
                Definition::Whole(_, logical, present, zero) => (logical, 1, present | zero),
                Definition::Slot(_, _, block) => (logical, 1, 1 << (block % 64)),
                Definition::Zeros(first, count, zero) => (first, count, zero),
            };
            defined.add(&definition);
            for word in list.iter_mut().skip(first as usize).take(count as usize) {
                *word |= mask;
            }
        }
        assert!((0..extents).all(|logical| defined.get(logical) == Some(list[logical as usize])));
        assert_eq!((defined.get(extents), defined.has(u64::from(extents) * 64)), (None, None));
        assert_eq!(defined.has(64 * 7 + 3), Some(list[7] >> 3 & 1 == 1));
    }

    #[test]
    fn the_largest_volume_takes_memory_only_for_what_is_defined() {
        let mut defined = DefinedBlocks::new(u32::MAX);
        defined.add(&Definition::Zeros(0, u64::from(u32::MAX), u64::MAX));
        defined.add(&Definition::Whole(NOWHERE, 3, 5, 0));
        assert_eq!((defined.get(u32::MAX - 1), defined.get(u32::MAX)), (Some(u64::MAX), None));
        assert_eq!((defined.parts.len(), defined.ranges.len()), (1, 1));
    }
}
