//! Simulated memory: what a [`Buf`] points into.
//!
//! Bytes move when a simulated disk moves them, not when an I/O is submitted. Freed memory is poisoned at once, and is
//! reused only after all other memory. An engine or driver that frees a buffer too early writes poison or destroys
//! other data, and the oracle notices it.
//!
//! Most of an arena is never touched. A thread runs one run after the other: it keeps the arena for the next run and
//! poisons only what was touched. Filling all of it took half of the time of a run.

use std::cell::RefCell;

use braid_engine::io::{Buf, LeafIo};

use crate::content::{BLOCK_BYTES, POISON};

/// Size in bytes of an allocation unit.
const UNIT_BYTES: usize = BLOCK_BYTES;

thread_local! {
    /// The arena of the previous run, all poison.
    static SPARE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A memory arena.
pub struct Memory {
    bytes: Vec<u8>,
    used: Vec<bool>,
    /// Units that may hold something other than poison.
    touched: Vec<bool>,
    next: usize,
    /// Units allocated since the last `clear` lie below this one.
    reached: usize,
}

impl Memory {
    /// Creates an arena of `len` bytes, a multiple of 4096.
    pub fn new(len: usize) -> Memory {
        assert_eq!(len % UNIT_BYTES, 0);
        let spare = SPARE.take();
        let bytes = if spare.len() == len { spare } else { vec![POISON; len] };
        let none = vec![false; len / UNIT_BYTES];
        Memory { bytes, used: none.clone(), touched: none, next: 0, reached: 0 }
    }

    /// Allocates `len` bytes of poison; `None` if no run of units is free.
    pub fn alloc(&mut self, len: usize) -> Option<Buf> {
        let want = len.div_ceil(UNIT_BYTES).max(1);
        let total = self.used.len();
        // First fit from where the last search ended, once around.
        let mut run = 0;
        for step in 0..total + want {
            let at = (self.next + step) % total;
            if at == 0 {
                run = 0;
            }
            run = if self.used[at] { 0 } else { run + 1 };
            if run == want {
                let first = at + 1 - want;
                self.used[first..first + want].fill(true);
                self.next = (at + 1) % total;
                self.reached = self.reached.max(at + 1);
                return Some(Buf { addr: (first * UNIT_BYTES) as u64, region: 0 });
            }
        }
        None
    }

    /// Frees `len` bytes.
    pub fn free(&mut self, buf: Buf, len: usize) {
        let first = buf.addr as usize / UNIT_BYTES;
        let want = len.div_ceil(UNIT_BYTES).max(1);
        assert!(self.used[first..first + want].iter().all(|u| *u), "freed twice");
        self.used[first..first + want].fill(false);
        self.poison(first, first + want);
    }

    /// Poisons these units.
    fn poison(&mut self, first: usize, end: usize) {
        for unit in first..end {
            if std::mem::take(&mut self.touched[unit]) {
                self.bytes[unit * UNIT_BYTES..(unit + 1) * UNIT_BYTES].fill(POISON);
            }
        }
    }

    /// Forgets all allocations: the process has ended.
    pub fn clear(&mut self) {
        self.used.fill(false);
        self.poison(0, self.used.len());
        (self.next, self.reached) = (0, 0);
    }

    /// Returns the number of free units.
    pub fn free_units(&self) -> usize {
        self.used.iter().filter(|u| !**u).count()
    }

    /// Returns the bytes at an address.
    pub fn slice(&self, buf: Buf, len: usize) -> &[u8] {
        &self.bytes[buf.addr as usize..buf.addr as usize + len]
    }

    /// Returns the bytes at an address for writing.
    pub fn slice_mut(&mut self, buf: Buf, len: usize) -> &mut [u8] {
        let first = buf.addr as usize / UNIT_BYTES;
        self.touched[first..(buf.addr as usize + len).div_ceil(UNIT_BYTES)].fill(true);
        &mut self.bytes[buf.addr as usize..buf.addr as usize + len]
    }

    /// Replaces `wrong` by `right` wherever it is in memory as this sector of a block.
    pub fn replace(&mut self, sector: usize, wrong: &[u8], right: &[u8]) {
        let first = sector * wrong.len();
        // The replaced content is never poison: it is in memory that was written.
        for block in self.bytes[..self.reached * UNIT_BYTES].chunks_exact_mut(UNIT_BYTES) {
            let bytes = &mut block[first..first + wrong.len()];
            if *bytes == *wrong {
                bytes.copy_from_slice(right);
            }
        }
    }

    /// Calls `each` with every stretch of memory behind `len` bytes of a leaf I/O from `skip` on, in the leaf's order.
    pub fn stretches(io: &LeafIo, skip: u64, len: u64, mut each: impl FnMut(Buf, usize)) {
        let (mut at, end) = (0u64, skip + len);
        for k in 0..io.pieces() {
            let (buf, piece_len) = io.piece(k);
            let (from, to) = (at.max(skip), (at + u64::from(piece_len)).min(end));
            if from < to {
                each(buf.add(from - at), (to - from) as usize);
            }
            at += u64::from(piece_len);
        }
        assert!(at >= end, "the pieces of a leaf I/O cover less than its length");
    }

    /// Copies from memory what a leaf write gathers.
    pub fn gather(&self, io: &LeafIo, skip: u64, out: &mut [u8]) {
        let mut done = 0;
        Memory::stretches(io, skip, out.len() as u64, |buf, len| {
            out[done..done + len].copy_from_slice(self.slice(buf, len));
            done += len;
        });
    }

    /// Copies to memory what a leaf read scatters.
    pub fn scatter(&mut self, io: &LeafIo, skip: u64, data: &[u8]) {
        let mut done = 0;
        Memory::stretches(io, skip, data.len() as u64, |buf, len| {
            self.slice_mut(buf, len).copy_from_slice(&data[done..done + len]);
            done += len;
        });
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.clear();
        SPARE.set(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_engine::io::{Cookie, Flags, LeafId, Op};

    #[test]
    fn allocations_do_not_overlap() {
        let mut m = Memory::new(8 * UNIT_BYTES);
        let a = m.alloc(3 * UNIT_BYTES).unwrap();
        let b = m.alloc(3 * UNIT_BYTES).unwrap();
        assert_eq!((a.addr, b.addr), (0, 3 * UNIT_BYTES as u64));
        assert!(m.alloc(3 * UNIT_BYTES).is_none());
        m.slice_mut(a, 10).fill(1);
        m.free(a, 3 * UNIT_BYTES);
        assert_eq!(m.slice(a, 10), [POISON; 10]);
        // No run wraps around the end: two units at one end and three at the other are not five.
        assert!(m.alloc(5 * UNIT_BYTES).is_none());
        assert!(m.alloc(3 * UNIT_BYTES).is_some());
    }

    #[test]
    fn a_reused_arena_is_all_poison() {
        let mut m = Memory::new(4 * UNIT_BYTES);
        let buf = m.alloc(3 * UNIT_BYTES).unwrap();
        m.slice_mut(buf.add(UNIT_BYTES as u64 + 8), UNIT_BYTES).fill(1);
        m.clear();
        assert_eq!(m.slice(buf, 4 * UNIT_BYTES), [POISON; 4 * UNIT_BYTES]);
        let buf = m.alloc(UNIT_BYTES).unwrap();
        m.slice_mut(buf, 1).fill(1);
        drop(m);
        let m = Memory::new(4 * UNIT_BYTES);
        assert_eq!(m.slice(buf, UNIT_BYTES), [POISON; UNIT_BYTES]);
    }

    #[test]
    fn strided_pieces_gather_in_the_order_of_the_leaf() {
        let mut m = Memory::new(8 * UNIT_BYTES);
        let whole = m.alloc(6 * UNIT_BYTES).unwrap();
        for (i, b) in m.slice_mut(whole, 6 * UNIT_BYTES).chunks_mut(UNIT_BYTES).enumerate() {
            b.fill(i as u8);
        }
        // Units 0, 2, 4 of a stripe over two members.
        let io = LeafIo {
            leaf: LeafId(0),
            op: Op::Write,
            flags: Flags::NONE,
            offset: 0,
            len: 3 * UNIT_BYTES as u64,
            buf: whole,
            first_len: UNIT_BYTES as u32,
            piece_len: UNIT_BYTES as u32,
            first_gap: 2 * UNIT_BYTES as u32,
            stride: 2 * UNIT_BYTES as u32,
            cookie: Cookie(0),
        };
        let mut out = vec![9; 2 * UNIT_BYTES];
        m.gather(&io, 512, &mut out);
        let (zeros, twos) = (UNIT_BYTES - 512, UNIT_BYTES);
        assert!(out[..zeros].iter().all(|b| *b == 0));
        assert!(out[zeros..zeros + twos].iter().all(|b| *b == 2));
        assert!(out[zeros + twos..].iter().all(|b| *b == 4));
        m.scatter(&io, UNIT_BYTES as u64, &vec![7; UNIT_BYTES]);
        assert_eq!(m.slice(whole.add(2 * UNIT_BYTES as u64), 1), [7]);
        assert_eq!(m.slice(whole.add(3 * UNIT_BYTES as u64), 1), [3]);
    }
}
