//! The steps of a read-modify-write, the write or zeroing of a range that begins or ends within a block: the first and
//! the last block are read, changed and written back. No other write of the file runs meanwhile ([`crate::order`]).

use braid_engine::Op;

/// The next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Nothing has begun.
    Begin,
    /// Holds the claim to run alone; other writes have to end first.
    Claimed,
    /// One request: the range begins and ends with a block.
    Whole,
    /// Reads the block that the range begins in.
    ReadHead,
    /// Writes that block back.
    WriteHead,
    /// Reads the block that the range ends in.
    ReadTail,
    /// Writes that block back.
    WriteTail,
    /// Writes everything from the first block to the last.
    WriteAll,
    /// Zeroes the blocks between.
    ZeroMiddle,
    /// Nothing is left to do.
    Done,
}

/// A range of bytes that may begin and end within a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Patch {
    /// Its first byte.
    pub offset: u64,
    /// The byte after its last.
    pub end: u64,
    /// Bytes of a block.
    pub block: u64,
    /// Whether it is zeroed, not written.
    pub zero: bool,
}

impl Patch {
    /// Returns where its first block begins.
    pub fn low(&self) -> u64 {
        self.offset - self.offset % self.block
    }

    /// Returns where its last block ends.
    pub fn high(&self) -> u64 {
        self.end.next_multiple_of(self.block)
    }

    /// Whether it begins and ends with a block.
    pub fn is_whole(&self) -> bool {
        self.offset.is_multiple_of(self.block) && self.end.is_multiple_of(self.block)
    }

    fn is_one_block(&self) -> bool {
        self.high() - self.low() == self.block
    }

    fn has_head(&self) -> bool {
        !self.offset.is_multiple_of(self.block) || self.is_one_block()
    }

    fn has_tail(&self) -> bool {
        !self.end.is_multiple_of(self.block) && !self.is_one_block()
    }

    /// Returns the range of the blocks that it covers wholly.
    pub fn middle(&self) -> (u64, u64) {
        let from = self.offset.next_multiple_of(self.block);
        (from, (self.end - self.end % self.block).max(from))
    }

    /// Returns the bytes of memory that it needs: all of its blocks, or, to zero it, a block for each end.
    pub fn memory_bytes(&self) -> usize {
        if self.zero { 2 * self.block as usize } else { (self.high() - self.low()) as usize }
    }

    /// Returns the step after a step.
    pub fn after(&self, step: Step) -> Step {
        let order: &[(Step, bool)] = match self.zero {
            true => &[
                (Step::ReadHead, self.has_head()),
                (Step::WriteHead, self.has_head()),
                (Step::ReadTail, self.has_tail()),
                (Step::WriteTail, self.has_tail()),
                (Step::ZeroMiddle, self.middle().0 < self.middle().1),
            ],
            false => &[(Step::ReadHead, self.has_head()), (Step::ReadTail, self.has_tail()), (Step::WriteAll, true)],
        };
        let from = order.iter().position(|(it, _)| *it == step).map_or(0, |at| at + 1);
        order[from..].iter().find(|(_, needed)| *needed).map_or(Step::Done, |(it, _)| *it)
    }

    /// Returns the request of a step: operation, offset and length in bytes, and the offset of its data in the slot's
    /// memory.
    pub fn request(&self, step: Step) -> (Op, u64, u64, u64) {
        let (low, tail) = (self.low(), self.high() - self.block);
        let tail_at = if self.zero { self.block } else { tail - low };
        match step {
            Step::ReadHead => (Op::Read, low, self.block, 0),
            Step::WriteHead => (Op::Write, low, self.block, 0),
            Step::ReadTail => (Op::Read, tail, self.block, tail_at),
            Step::WriteTail => (Op::Write, tail, self.block, tail_at),
            Step::WriteAll => (Op::Write, low, self.high() - low, 0),
            _ => {
                let (from, to) = self.middle();
                (Op::WriteZeroes, from, to - from, 0)
            }
        }
    }

    /// Returns the range of the slot's memory, as start and end, that must be zeroed after this step has read it;
    /// `None` if there is none.
    pub fn cleared(&self, step: Step) -> Option<(usize, usize)> {
        if !self.zero {
            return None;
        }
        let within = |from: u64, to: u64| Some((from as usize, to as usize));
        match step {
            Step::ReadHead => within(self.offset - self.low(), self.block.min(self.end - self.low())),
            Step::ReadTail => within(self.block, self.block + self.end - (self.high() - self.block)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries patches out on an array of bytes, and checks every byte.
    #[test]
    fn every_range_changes_its_bytes_and_no_others() {
        const BLOCK: u64 = 8;
        for zero in [false, true] {
            for offset in 0..32u64 {
                for end in offset + 1..=32 {
                    let patch = Patch { offset, end, block: BLOCK, zero };
                    if patch.is_whole() {
                        continue;
                    }
                    let mut disk = [7u8; 32];
                    let mut memory = vec![1u8; patch.memory_bytes()];
                    let mut step = patch.after(Step::Begin);
                    while step != Step::Done {
                        let (op, at, len, from) = patch.request(step);
                        assert!(at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK) && len > 0);
                        let (at, len, from) = (at as usize, len as usize, from as usize);
                        if step == Step::WriteAll {
                            let from = (offset - patch.low()) as usize;
                            memory[from..from + (end - offset) as usize].fill(0);
                        }
                        match op {
                            Op::Read => memory[from..from + len].copy_from_slice(&disk[at..at + len]),
                            Op::Write => disk[at..at + len].copy_from_slice(&memory[from..from + len]),
                            _ => disk[at..at + len].fill(0),
                        }
                        if let Some((from, to)) = patch.cleared(step) {
                            memory[from..to].fill(0);
                        }
                        step = patch.after(step);
                    }
                    for (at, byte) in disk.iter().enumerate() {
                        let inside = (offset..end).contains(&(at as u64));
                        assert_eq!(*byte, if inside { 0 } else { 7 }, "{patch:?} at {at}");
                    }
                }
            }
        }
    }
}
