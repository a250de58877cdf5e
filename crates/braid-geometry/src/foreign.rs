//! Layouts that Linux md creates and Braid only reads: other rotations of parity, and raid10 far and offset.
//!
//! The kernel's code defines them (`raid5_compute_sector` in `raid5.c`, `__raid10_find_phys` in `raid10.c`).
//! `tests/geometry/layouts_of_md_only.rs` compares with a transcript of that code, and `tests/golden/md-layouts` with what md wrote.

use crate::cell::Cell;
use crate::{Layout, Spec};

/// A layout that Braid reads but does not create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    /// Raid10 far and offset: copy *f* of a chunk is *f* · `copy_step_rows` rows below the first copy and *f* slots to its right,
    /// wrapping around. The first copies of consecutive rows of chunks are `chunk_step_rows` rows apart.
    Copies { copy_step_rows: u64, chunk_step_rows: u64, copies: u64 },
    /// Raid5 and raid6: the layout defines the slots of the parity and the order of the data.
    Parity(Layout),
}

impl Foreign {
    /// Returns the foreign layout of a zone with `rows` rows; `None` for layouts that Braid creates.
    pub fn of(spec: &Spec, rows: u64) -> Option<Foreign> {
        let copies = u64::from(spec.copies);
        match spec.layout {
            Layout::Linear | Layout::Alternate | Layout::Original | Layout::Mirror | Layout::Near => None,
            Layout::LeftSymmetric => None,
            Layout::Far => Some(Foreign::Copies { copy_step_rows: rows / copies, chunk_step_rows: 1, copies }),
            Layout::Offset => Some(Foreign::Copies { copy_step_rows: 1, chunk_step_rows: copies, copies }),
            layout => Some(Foreign::Parity(layout)),
        }
    }

    /// Returns the row and the slot of copy `copy` of a raid10 chunk, over `width` slots.
    pub fn copy_at(self, chunk: u64, copy: u64, width: u64) -> (u64, u64) {
        let Foreign::Copies { copy_step_rows, chunk_step_rows, .. } = self else {
            unreachable!("only raid10 has copies")
        };
        let (row, slot) = (chunk / width, chunk % width);
        (row * chunk_step_rows + copy * copy_step_rows, (slot + copy) % width)
    }

    /// Returns the content of a cell of a raid10 zone with `chunks` chunks of `cell_bytes` each.
    pub fn cell_of_copies(self, slot: u64, row: u64, width: u64, chunks: u64, cell_bytes: u64) -> Cell {
        let Foreign::Copies { copy_step_rows, chunk_step_rows, copies } = self else {
            unreachable!("only raid10 has copies")
        };
        let (copy, chunk_row) = match chunk_step_rows {
            1 => (row / copy_step_rows, row % copy_step_rows),
            _ => (row % chunk_step_rows, row / chunk_step_rows),
        };
        let chunk = chunk_row * width + (slot + width - copy % width) % width;
        match copy < copies && chunk < chunks {
            true => Cell::Data { chunk, copy: copy as u16, data_bytes: cell_bytes },
            false => Cell::Unused,
        }
    }
}

/// The roles of the slots of one row, at a level with parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowOrder {
    p: u16,
    q: Option<u16>,
    data: DataOrder,
    width: u16,
}

/// The slots that hold data chunk 0, 1, 2 and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DataOrder {
    /// From slot `first` to the right, wrapping around within the first `rotation` slots.
    Wrapping { first: u16, rotation: u16 },
    /// From left to right, in the slots without parity.
    Ascending,
}

impl RowOrder {
    /// Returns the roles of the slots of row `row`.
    pub fn of(layout: Layout, parity: u32, width: u64, row: u64) -> RowOrder {
        // The layouts with the suffix "6" are a raid5 layout over all slots but the last, which always holds Q.
        let (layout, separate_q) = match layout {
            Layout::LeftAsymmetric6 => (Layout::LeftAsymmetric, true),
            Layout::RightAsymmetric6 => (Layout::RightAsymmetric, true),
            Layout::LeftSymmetric6 => (Layout::LeftSymmetric, true),
            Layout::RightSymmetric6 => (Layout::RightSymmetric, true),
            Layout::ParityFirst6 => (Layout::ParityFirst, true),
            layout => (layout, false),
        };
        let rotation = if separate_q { width - 1 } else { width };
        let rotating_parities = u64::from(parity) - u64::from(separate_q);
        let p = match layout {
            Layout::LeftAsymmetric | Layout::LeftSymmetric => rotation - 1 - row % rotation,
            Layout::RightAsymmetric | Layout::RightSymmetric => row % rotation,
            Layout::ParityFirst => 0,
            _ => rotation - rotating_parities,
        };
        let q = match (parity, separate_q) {
            (1, _) => None,
            (_, true) => Some((width - 1) as u16),
            _ => Some(((p + 1) % width) as u16),
        };
        let data = match layout {
            Layout::LeftSymmetric | Layout::RightSymmetric => {
                DataOrder::Wrapping { first: ((p + rotating_parities) % rotation) as u16, rotation: rotation as u16 }
            }
            _ => DataOrder::Ascending,
        };
        RowOrder { p: p as u16, q, data, width: width as u16 }
    }

    pub fn p(&self) -> u16 {
        self.p
    }

    pub fn q(&self) -> Option<u16> {
        self.q
    }

    /// Returns the slot of the data chunk with this index.
    pub fn data(&self, index: u16) -> u16 {
        match self.data {
            DataOrder::Wrapping { first, rotation } => (first + index) % rotation,
            DataOrder::Ascending => {
                let q = self.q.unwrap_or(self.width);
                let (first_parity, second_parity) = (self.p.min(q), self.p.max(q));
                let slot = if index >= first_parity { index + 1 } else { index };
                if slot >= second_parity { slot + 1 } else { slot }
            }
        }
    }

    /// Returns the index of the data chunk in a slot; `None` for a slot with parity.
    pub fn index(&self, slot: u16) -> Option<u16> {
        if slot == self.p || Some(slot) == self.q {
            return None;
        }
        Some(match self.data {
            DataOrder::Wrapping { first, rotation } => (slot + rotation - first) % rotation,
            DataOrder::Ascending => slot - u16::from(slot > self.p) - u16::from(self.q.is_some_and(|q| slot > q)),
        })
    }

    /// Returns the exponent of the Q coefficient of the first data chunk; 0 without Q. Each following chunk has the
    /// next exponent, and after the highest one 0. md assigns exponents to the data slots from the slot after Q to the
    /// right, wrapping around (`raid6_d0`, `raid6_idx_to_slot`).
    pub fn first_coefficient(&self) -> u16 {
        let Some(q) = self.q else { return 0 };
        let steps = (self.data(0) + self.width - q - 1) % self.width;
        let p_steps = (self.p + self.width - q - 1) % self.width;
        steps - u16::from(p_steps < steps)
    }
}
