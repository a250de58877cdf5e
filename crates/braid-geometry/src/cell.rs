//! The cells of the grid that a zone is.

/// The content of a cell of the grid.
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
