//! Computes parities and lost cells of stripes, in memory of the shard and of the requests.

use braid_parity::{BlockRole, DATA_MAX, Parity};

use crate::io::{Buf, LeafSink};

/// Maximum number of cells of a stripe, parities included.
pub(super) const CELLS_MAX: usize = 128;

/// Computes P, and Q if there are two parities, of data in the order of the coefficients.
pub(super) fn encode(sink: &mut impl LeafSink, data: &[Buf], parities: &[Buf], len: u64) {
    let best = Parity::best();
    sink.compute(data, parities, len, &mut |data, out| match out {
        [p] => best.xor(p, data),
        [p, q] => best.pq(p, q, data),
        _ => unreachable!("one parity or two"),
    });
}

/// Updates the parities for a change of one data cell.
pub(super) fn update(sink: &mut impl LeafSink, cell: usize, old: Buf, new: Buf, parities: &[Buf], len: u64) {
    let best = Parity::best();
    sink.compute(&[old, new], parities, len, &mut |data, out| match out {
        [p] => best.update(p, &mut [], cell, data[0], data[1]),
        [p, q] => best.update(p, q, cell, data[0], data[1]),
        _ => unreachable!("one parity or two"),
    });
}

/// A stripe of which some cells could not be read. Cells are data first, then P, then Q.
pub(super) struct DegradedStripe<'a> {
    /// Number of data cells.
    pub data: usize,
    /// The coefficient of Q of the first data cell; the others follow, modulo the number of data cells.
    pub first_coefficient: usize,
    /// The buffer of each cell that was read.
    pub cells: &'a [Option<Buf>],
    /// The data cells to compute, and their buffers.
    pub wanted: &'a [(usize, Buf)],
}

/// Computes lost data cells. All lost data cells must be in `wanted`. Returns false if too many are lost.
pub(super) fn recover(sink: &mut impl LeafSink, broken: &DegradedStripe<'_>, len: u64) -> bool {
    let best = Parity::best();
    let mut inputs = [Buf::NONE; CELLS_MAX];
    let mut count = 0;
    for buf in broken.cells.iter().flatten() {
        inputs[count] = *buf;
        count += 1;
    }
    let mut outputs = [Buf::NONE; 2];
    if broken.wanted.len() > 2 {
        return false;
    }
    for (out, (_, buf)) in outputs.iter_mut().zip(broken.wanted) {
        *out = *buf;
    }
    let mut done = false;
    let coefficient = |cell: usize| (cell + broken.first_coefficient) % broken.data;
    sink.compute(&inputs[..count], &outputs[..broken.wanted.len()], len, &mut |read, out| {
        let mut data: [&[u8]; DATA_MAX] = [&[]; DATA_MAX];
        let (mut p, mut q): (&[u8], &[u8]) = (&[], &[]);
        let present = broken.cells.iter().enumerate().filter(|(_, cell)| cell.is_some());
        for ((cell, _), bytes) in present.zip(read) {
            match cell.checked_sub(broken.data) {
                None => data[coefficient(cell)] = bytes,
                Some(0) => p = bytes,
                Some(_) => q = bytes,
            }
        }
        let data = &data[..broken.data];
        done = match (broken.wanted, out) {
            ([(a, _)], [out]) => best.recover(data, p, q, &mut [(BlockRole::Data(coefficient(*a)), out)]).is_ok(),
            ([(a, _), (b, _)], [out_a, out_b]) => {
                let (a, b) = (coefficient(*a), coefficient(*b));
                best.recover(data, p, q, &mut [(BlockRole::Data(a), out_a), (BlockRole::Data(b), out_b)]).is_ok()
            }
            _ => false,
        };
    });
    done
}
