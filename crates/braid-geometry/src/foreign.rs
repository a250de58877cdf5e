//! Layouts that Linux md makes and Braid only reads: parity that moves otherwise, copies far away.
//!
//! What they are is what the kernel does (`raid5_compute_sector` in `raid5.c`, `__raid10_find_phys` in `raid10.c`);
//! `tests/layouts_of_md_only.rs` compares with a transcript of those, and `tests/golden/md-layouts` with what md wrote.

use crate::compiled::Cell;
use crate::{Layout, Spec};

/// How a zone differs from the layouts that Braid makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    /// Raid10: copy *f* of everything is *f* times so many rows below the first one, and a slot further.
    Copies { below_rows: u64, group_rows: u64, copies: u64 },
    /// Raid5 and raid6: where parity is, and in which order the data.
    Rows(Layout),
}

impl Foreign {
    /// How a zone of so many rows differs; `None` where Braid makes it.
    pub fn of(spec: &Spec, rows: u64) -> Option<Foreign> {
        let copies = u64::from(spec.copies);
        match spec.layout {
            Layout::Linear | Layout::Alternate | Layout::Original | Layout::Mirror | Layout::Near => None,
            Layout::LeftSymmetric => None,
            Layout::Far => Some(Foreign::Copies { below_rows: rows / copies, group_rows: 1, copies }),
            Layout::Offset => Some(Foreign::Copies { below_rows: 1, group_rows: copies, copies }),
            layout => Some(Foreign::Rows(layout)),
        }
    }

    /// The row and slot of copy `copy` of a chunk of raid10, over `width` slots.
    pub fn copy_at(self, chunk: u64, copy: u64, width: u64) -> (u64, u64) {
        let Foreign::Copies { below_rows, group_rows, .. } = self else { unreachable!("only raid10 has copies") };
        let (row, slot) = (chunk / width, chunk % width);
        (row * group_rows + copy * below_rows, (slot + copy) % width)
    }

    /// What stands in a cell of raid10 whose array has so many chunks, each of `cell_bytes`.
    pub fn cell_of_copies(self, slot: u64, row: u64, width: u64, chunks: u64, cell_bytes: u64) -> Cell {
        let Foreign::Copies { below_rows, group_rows, copies } = self else { unreachable!("only raid10 has copies") };
        let (copy, first_row) = match group_rows {
            1 => (row / below_rows, row % below_rows),
            _ => (row % group_rows, row / group_rows),
        };
        let chunk = first_row * width + (slot + width - copy % width) % width;
        match copy < copies && chunk < chunks {
            true => Cell::Data { chunk, copy: copy as u16, data_bytes: cell_bytes },
            false => Cell::Unused,
        }
    }
}

/// What the slots of one row hold, at a level with parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    p: u16,
    q: Option<u16>,
    data: Data,
    width: u16,
}

/// Where the data of a row are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Data {
    /// From this slot on to the right, around the end of the first so many.
    Around { first: u16, ring: u16 },
    /// From left to right, where neither parity is.
    Ascending,
}

impl Order {
    /// That of a row.
    pub fn of(layout: Layout, parity: u32, width: u64, row: u64) -> Order {
        // With "6" a raid6 that is a raid5 with Q beside it, on the last slot.
        let (layout, apart) = match layout {
            Layout::LeftAsymmetric6 => (Layout::LeftAsymmetric, true),
            Layout::RightAsymmetric6 => (Layout::RightAsymmetric, true),
            Layout::LeftSymmetric6 => (Layout::LeftSymmetric, true),
            Layout::RightSymmetric6 => (Layout::RightSymmetric, true),
            Layout::ParityFirst6 => (Layout::ParityFirst, true),
            layout => (layout, false),
        };
        let ring = if apart { width - 1 } else { width };
        let beside = u64::from(parity) - u64::from(apart);
        let p = match layout {
            Layout::LeftAsymmetric | Layout::LeftSymmetric => ring - 1 - row % ring,
            Layout::RightAsymmetric | Layout::RightSymmetric => row % ring,
            Layout::ParityFirst => 0,
            _ => ring - beside,
        };
        let q = match (parity, apart) {
            (1, _) => None,
            (_, true) => Some((width - 1) as u16),
            _ => Some(((p + 1) % width) as u16),
        };
        let data = match layout {
            Layout::LeftSymmetric | Layout::RightSymmetric => {
                Data::Around { first: ((p + beside) % ring) as u16, ring: ring as u16 }
            }
            _ => Data::Ascending,
        };
        Order { p: p as u16, q, data, width: width as u16 }
    }

    pub fn p(&self) -> u16 {
        self.p
    }

    pub fn q(&self) -> Option<u16> {
        self.q
    }

    /// The slot of the data with this index.
    pub fn data(&self, index: u16) -> u16 {
        match self.data {
            Data::Around { first, ring } => (first + index) % ring,
            Data::Ascending => {
                let q = self.q.unwrap_or(self.width);
                let (low, high) = (self.p.min(q), self.p.max(q));
                let slot = if index >= low { index + 1 } else { index };
                if slot >= high { slot + 1 } else { slot }
            }
        }
    }

    /// The index of the data in a slot; `None` where a parity is.
    pub fn index(&self, slot: u16) -> Option<u16> {
        if slot == self.p || Some(slot) == self.q {
            return None;
        }
        Some(match self.data {
            Data::Around { first, ring } => (slot + ring - first) % ring,
            Data::Ascending => slot - u16::from(slot > self.p) - u16::from(self.q.is_some_and(|q| slot > q)),
        })
    }

    /// The coefficient of Q that the first data take; the next take the next ones, and after the last comes the first. They are given out
    /// to the right from the slot after Q on, around the end (`raid6_d0`, `raid6_idx_to_slot`).
    pub fn first_coefficient(&self) -> u16 {
        let Some(q) = self.q else { return 0 };
        let steps = (self.data(0) + self.width - q - 1) % self.width;
        let p_steps = (self.p + self.width - q - 1) % self.width;
        steps - u16::from(p_steps < steps)
    }
}
