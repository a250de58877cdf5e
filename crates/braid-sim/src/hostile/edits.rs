//! Edits that an input makes in an image, 16 bytes each.

use crate::rng::Rng;

/// Size in bytes of an edit.
pub const EDIT_BYTES: usize = 16;
/// Maximum number of edits of an input; the rest is ignored.
const EDITS_MAX: usize = 12;
/// In [`Edit::which`]: the edit applies to all members, and to all copies of the structure.
const ALL: u8 = 0x80;

/// One change of a field of a structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edit {
    /// The kind of structure.
    pub kind: u8,
    /// The member, and the copy of the structure on it.
    pub which: u8,
    /// The number of the structure.
    pub index: u16,
    /// Offset of the field in the structure, in bytes.
    pub offset: u16,
    /// Size of the field in bytes: 1, 2, 4 or 8.
    pub width: u8,
    /// Whether the value is added to the present one, instead of replacing it.
    pub adds: bool,
    /// The value.
    pub value: u64,
}

impl Edit {
    /// Decodes the edits of an input; a remainder is ignored.
    pub fn all(data: &[u8]) -> impl Iterator<Item = Edit> {
        data.as_chunks::<EDIT_BYTES>().0.iter().take(EDITS_MAX).map(|bytes| {
            let [kind, which, i0, i1, o0, o1, width, adds, value @ ..] = *bytes;
            Edit {
                kind,
                which,
                index: u16::from_le_bytes([i0, i1]),
                offset: u16::from_le_bytes([o0, o1]),
                width: 1 << (width % 4),
                adds: adds & 1 == 1,
                value: u64::from_le_bytes(value),
            }
        })
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> [u8; EDIT_BYTES] {
        let mut bytes = [0; EDIT_BYTES];
        (bytes[0], bytes[1]) = (self.kind, self.which);
        bytes[2..4].copy_from_slice(&self.index.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.offset.to_le_bytes());
        (bytes[6], bytes[7]) = (self.width.trailing_zeros() as u8, self.adds.into());
        bytes[8..].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }

    /// Returns whether it applies to this member and this copy of the structure.
    pub fn is_for(&self, member: usize, members: usize, copy: usize, copies: usize) -> bool {
        let which = usize::from(self.which & !ALL);
        self.which & ALL != 0 || (which % members, which / members % copies) == (member, copy)
    }

    /// Applies it to the bytes of a structure. Beyond their end it changes nothing.
    pub fn apply(&self, bytes: &mut [u8]) {
        let (at, width) = (usize::from(self.offset), usize::from(self.width));
        let Some(field) = bytes.get_mut(at..at + width) else { return };
        let mut word = [0; 8];
        if self.adds {
            word[..width].copy_from_slice(field);
        }
        let value = u64::from_le_bytes(word).wrapping_add(self.value);
        field.copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

/// A field that a random input may change: the kind of structure, the number of such structures, and the place of the
/// field.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// See [`Edit::kind`].
    pub kind: u8,
    /// Indices are below this number.
    pub count: u16,
    /// Offset of the field, in bytes.
    pub offset: u16,
    /// Its size in bytes.
    pub width: u8,
}

/// Builds a random input: values that break arithmetic, in fields that hold numbers.
pub fn random_edits(rng: &mut Rng, targets: &[Target]) -> Vec<u8> {
    let mut data = Vec::new();
    for _ in 0..1 + rng.below(4) {
        let target = rng.pick(targets);
        let near = [0, 1, 2, 0x7f, 0xff, 0xffff, 1 << 20, 1 << 31, u64::from(u32::MAX), 1 << 32, 1 << 40, 1 << 48];
        let high = [1 << 52, 1 << 60, 1 << 61, 1 << 62, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX - 4096, u64::MAX];
        let value = match rng.below(8) {
            0 => rng.bits(),
            1 => 1 << rng.below(64),
            2 => rng.below(200),
            3 | 4 => *rng.pick(&near),
            _ => *rng.pick(&high),
        };
        let value = value.wrapping_add(rng.below(3)).wrapping_sub(1);
        let edit = Edit {
            kind: target.kind,
            which: if rng.below(3) == 0 { rng.below(4) as u8 } else { ALL },
            index: rng.below(u64::from(target.count.max(1))) as u16,
            offset: target.offset,
            width: target.width,
            adds: rng.below(4) == 0,
            value,
        };
        data.extend(edit.bytes());
    }
    data
}
