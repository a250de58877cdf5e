//! The word of a logical extent, and of one block in a node.

use super::super::units::ExtentId;

/// Sizes of nodes: 2, 4, 8, 16, 32 words for lists, 64 for tables.
pub(super) const CLASSES: u32 = 6;
/// The class of tables.
pub(super) const TABLE: u32 = CLASSES - 1;

/// Bits of a node's offset, in units of two words: 512 GiB of nodes.
pub(super) const OFFSET_BITS: u32 = 35;
const GENERATION_BITS: u32 = 24;

const EXTENT: u64 = (1 << ExtentId::BITS) - 1;
const KIND_SHIFT: u32 = 62;
const WHOLE: u64 = 1 << KIND_SHIFT;
const SINGLE: u64 = 2 << KIND_SHIFT;
const NODE: u64 = 3 << KIND_SHIFT;

// The word of a block in a node. The bit above the slot stays clear, so that counting up a slot never changes the
// extent.
const SLOT_SHIFT: u32 = ExtentId::BITS;
const OWN_POSITION: u64 = 1 << 62;
const PRESENT: u64 = 1 << 63;

/// What the word of a logical extent says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    Unmapped,
    Whole(ExtentId),
    Single(ExtentId),
    Node(NodeId),
}

/// A node, as a word names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NodeId {
    /// In units of two words.
    pub(super) offset: u64,
    pub(super) class: u32,
    /// Tells a node from earlier ones at the same offset: a reader that finds its word unchanged has read one node and
    /// no other.
    pub(super) generation: u32,
}

impl Word {
    #[inline(always)]
    pub(super) fn from_bits(bits: u64) -> Word {
        match bits >> KIND_SHIFT {
            0 => Word::Unmapped,
            1 => Word::Whole(ExtentId::from_bits(bits)),
            2 => Word::Single(ExtentId::from_bits(bits)),
            _ => Word::Node(NodeId {
                offset: (bits >> GENERATION_BITS) & ((1 << OFFSET_BITS) - 1),
                class: (bits >> (GENERATION_BITS + OFFSET_BITS)) as u32 & 7,
                generation: bits as u32 & ((1 << GENERATION_BITS) - 1),
            }),
        }
    }

    pub(super) fn bits(self) -> u64 {
        match self {
            Word::Unmapped => 0,
            Word::Whole(extent) => WHOLE | extent.bits(),
            Word::Single(extent) => SINGLE | extent.bits(),
            Word::Node(node) => {
                debug_assert!(node.offset >> OFFSET_BITS == 0 && node.class < CLASSES);
                let generation = u64::from(node.generation) & ((1 << GENERATION_BITS) - 1);
                NODE | u64::from(node.class) << (GENERATION_BITS + OFFSET_BITS)
                    | node.offset << GENERATION_BITS
                    | generation
            }
        }
    }
}

/// The step from the word of a block in a node to that of the next block in the same extent. Such a word has the
/// extent, and the slot or position there; 0: no block.
pub(super) const NEXT_SLOT: u64 = 1 << SLOT_SHIFT;

/// Returns the word of a block in a slot of a packed extent.
pub(super) fn packed_bits(extent: ExtentId, slot: u8) -> u64 {
    PRESENT | u64::from(slot) << SLOT_SHIFT | extent.bits()
}

/// Returns the word of a block at its own position.
pub(super) fn own_bits(extent: ExtentId, position: u32) -> u64 {
    PRESENT | OWN_POSITION | u64::from(position) << SLOT_SHIFT | extent.bits()
}

/// Returns the extent, and the slot or position there, of a block's word that is not 0.
#[inline]
pub(super) fn location_of(bits: u64) -> (ExtentId, u32) {
    (ExtentId::from_bits(bits & EXTENT), (bits >> SLOT_SHIFT) as u32 & 63)
}

/// Returns whether the block is at its own position.
#[inline]
pub(super) fn is_own(bits: u64) -> bool {
    bits & OWN_POSITION != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_their_bits() {
        let extents = [(0, 0), (127, u32::MAX), (128, 5)].map(|(member, index)| ExtentId { member, index });
        let node = |offset, class, generation| Word::Node(NodeId { offset, class, generation });
        let mut words = vec![
            Word::Unmapped,
            node(0, 0, 0),
            node((1 << OFFSET_BITS) - 1, TABLE, 0),
            node(0, TABLE, (1 << GENERATION_BITS) - 1),
            node(77, 3, 9),
        ];
        words.extend(extents.iter().flat_map(|&extent| [Word::Whole(extent), Word::Single(extent)]));
        for (k, word) in words.iter().enumerate() {
            assert_eq!(Word::from_bits(word.bits()), *word);
            assert!(words[..k].iter().all(|other| other.bits() != word.bits()), "{word:?}");
        }
        assert_eq!(node(1, 1, (1 << GENERATION_BITS) + 5).bits(), node(1, 1, 5).bits(), "generations come round");
    }

    #[test]
    fn slots_count_up_within_an_extent_only() {
        let extent = ExtentId { member: 127, index: u32::MAX };
        for slot in 0..63 {
            assert_eq!(packed_bits(extent, slot) + NEXT_SLOT, packed_bits(extent, slot + 1));
            assert_eq!(location_of(own_bits(extent, u32::from(slot))), (extent, u32::from(slot)));
        }
        let beyond = packed_bits(extent, 63) + NEXT_SLOT;
        assert!((0..64).all(|slot| packed_bits(extent, slot) != beyond && own_bits(extent, u32::from(slot)) != beyond));
        assert!(is_own(own_bits(extent, 0)) && !is_own(packed_bits(extent, 0)));
    }
}
