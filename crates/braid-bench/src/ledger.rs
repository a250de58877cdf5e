//! The expected content of each block, when verifying: the number of its last write, and whether an I/O is in flight.
//!
//! While an I/O on a block is in flight, no other I/O on it is begun: the expected result of a read concurrent with a write is undefined.

/// Writes of a block are numbered from 1 to this, and then from 1 again.
const GENERATION_MAX: u8 = 0x3f;
/// Flag: a write failed, and the block may hold the old or the new content. The number of that write is used up: a
/// later write has another number, so that a read of it is not mistaken for either content.
const UNKNOWN: u8 = 0x40;
/// An I/O is in flight.
const BUSY: u8 = 0x80;

/// The state of each block, in one byte.
#[derive(Debug)]
pub struct Ledger(Vec<u8>);

impl Ledger {
    /// Returns a ledger of this many blocks of unknown content.
    pub fn new(blocks: u64) -> Ledger {
        Ledger(vec![0; usize::try_from(blocks).expect("usize has 64 bits")])
    }

    /// Begins a read, or a write, which takes the next number. Returns false if an I/O is in flight on the block.
    pub fn begin(&mut self, block: u64, read: bool) -> bool {
        let entry = &mut self.0[block as usize];
        if *entry & BUSY != 0 {
            return false;
        }
        let generation = if read { *entry } else { (*entry & GENERATION_MAX) % GENERATION_MAX + 1 };
        *entry = generation | BUSY;
        true
    }

    /// Returns the number of the last write that was begun, or 0 if there was none.
    pub fn generation(&self, block: u64) -> u8 {
        self.0[block as usize] & GENERATION_MAX
    }

    /// Ends the I/O in flight, and returns the number of the last write, or 0 if the content is unknown.
    pub fn end(&mut self, block: u64) -> u8 {
        let entry = &mut self.0[block as usize];
        *entry &= !BUSY;
        if *entry & UNKNOWN == 0 { *entry } else { 0 }
    }

    /// Ends a write that failed: the content is unknown from now on.
    pub fn end_failed_write(&mut self, block: u64) {
        let entry = &mut self.0[block as usize];
        *entry = *entry & GENERATION_MAX | UNKNOWN;
    }

    /// Returns the first block from `from` on whose content is known.
    pub fn next_known(&self, from: u64) -> Option<u64> {
        let rest = self.0.get(from as usize..)?;
        rest.iter().position(|&entry| entry != 0 && entry & UNKNOWN == 0).map(|at| from + at as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ios_on_a_block_exclude_each_other_and_every_write_has_another_number() {
        let mut ledger = Ledger::new(3);
        assert!(ledger.next_known(0).is_none() && ledger.begin(1, false));
        assert!(!ledger.begin(1, false) && !ledger.begin(1, true));
        assert_eq!((ledger.generation(1), ledger.end(1)), (1, 1));
        assert!(ledger.begin(1, true) && !ledger.begin(1, false));
        assert_eq!(ledger.end(1), 1);
        let mut last = 1;
        for _ in 0..300 {
            assert!(ledger.begin(1, false));
            let generation = ledger.generation(1);
            assert!(generation != last && generation != 0 && generation & BUSY == 0);
            assert_eq!(ledger.end(1), generation);
            last = generation;
        }
        assert_eq!((ledger.next_known(0), ledger.next_known(2), ledger.next_known(9)), (Some(1), None, None));
        assert!(ledger.begin(1, false));
        let failed = ledger.generation(1);
        ledger.end_failed_write(1);
        assert_eq!((ledger.next_known(0), ledger.begin(1, true), ledger.end(1)), (None, true, 0));
        // Neither the old content nor the failed write is mistaken for the next write.
        assert!(ledger.begin(1, false));
        let next = ledger.end(1);
        assert!(next != 0 && next != failed && next != last, "{last} {failed} {next}");
        assert_eq!(ledger.next_known(0), Some(1));
        // A first write, and a failed write after it: the block may hold either.
        let mut write = |fails: bool| {
            assert!(ledger.begin(2, false));
            let generation = ledger.generation(2);
            if fails {
                ledger.end_failed_write(2)
            } else {
                assert_eq!(ledger.end(2), generation)
            }
            generation
        };
        assert_eq!([write(false), write(true), write(false)], [1, 2, 3]);
    }
}
