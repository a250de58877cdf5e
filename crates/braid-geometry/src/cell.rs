//! Cells: a zone is a grid of cells, one cell wide for each slot and one cell high for each chunk of its height.

/// The content of a cell. Usually a cell has the size of a chunk (see [`crate::compiled`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    /// Copy `copy` of chunk `chunk` of the zone, in the first `data_bytes` of the cell. The remainder is unused.
    Data { chunk: u64, copy: u16, data_bytes: u64 },
    /// The first parity of the stripe in this row.
    P,
    /// The second parity of the stripe in this row.
    Q,
    /// No data and no parity.
    Unused,
}
