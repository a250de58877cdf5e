//! What each block of a volume may read as, sector by sector: which requests changed it, when, and which of the changes
//! are certain to last.

use crate::content::{BLOCK_SECTORS, SECTOR_BYTES};

/// Bytes of a block.
pub(super) const BLOCK: u64 = 4096;

/// One write of one block. A discard or a zeroing writes zeros.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Change {
    /// The word that a read finds; see [`word_of`].
    pub word: u64,
    /// The sectors that the change covers, as a bit mask.
    pub sectors: u8,
    /// When the request began.
    pub start: u64,
    /// When the request was acknowledged. It stays `None` if the request failed: what of it happened, or still will, is
    /// unknown.
    pub end: Option<u64>,
    /// The change survives a power cut.
    pub durable: bool,
    /// The change is a hint (a discard): the pool may leave the block as it is.
    pub hint: bool,
}

/// The condition under which a change certainly hides those before it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// The change was acknowledged before the read that began at this time.
    Read(u64),
    /// The process was killed, or a snapshot was taken meanwhile: the change was acknowledged.
    Kill,
    /// The power was cut: the change is durable.
    Power,
}

/// The word that a read finds in each sector of a block.
pub(super) type Words = [u64; BLOCK_SECTORS];

/// The history of one block, as far as it still matters.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Block(Vec<Change>);

impl Default for Block {
    fn default() -> Block {
        Block::of(&[0; BLOCK_SECTORS])
    }
}

impl Block {
    /// Creates a block that has read as these words since before the run.
    pub fn of(words: &Words) -> Block {
        let mut all: Vec<Change> = Vec::with_capacity(1);
        for (sector, word) in words.iter().enumerate() {
            match all.iter_mut().find(|change| change.word == *word) {
                Some(change) => change.sectors |= 1 << sector,
                None => all.push(Change::settled(*word, 1 << sector)),
            }
        }
        Block(all)
    }

    /// Begins a request that changes these sectors of the block.
    pub fn begin(&mut self, word: u64, sectors: u8, start: u64, hint: bool) {
        self.0.push(Change { word, sectors, start, end: None, durable: false, hint });
    }

    /// Ends the request that began at `start`.
    pub fn end(&mut self, start: u64, end: u64, durable: bool) {
        for change in self.0.iter_mut().filter(|change| change.start == start) {
            (change.end, change.durable) = (Some(end), durable);
        }
    }

    /// Makes durable what was acknowledged before this time.
    pub fn flushed(&mut self, before: u64) {
        for change in &mut self.0 {
            change.durable |= change.end.is_some_and(|end| end < before);
        }
    }

    /// Returns the visible changes that began before `until`: each with the sectors in which no certain change hides
    /// it.
    fn visible(&self, until: u64, rule: Rule) -> impl Iterator<Item = (&Change, u8)> {
        let certain = move |change: &Change| match rule {
            _ if change.hint => false,
            Rule::Read(start) => change.end.is_some_and(|end| end < start),
            Rule::Kill => change.end.is_some(),
            Rule::Power => change.durable,
        };
        let began = move |change: &&Change| change.start < until;
        self.0.iter().filter(began).filter_map(move |change| {
            // Overlapping writes execute in arrival order, even while the older one is still in flight.
            let later = self.0.iter().filter(began).filter(|later| later.start > change.start && certain(later));
            let hidden = later.fold(0, |hidden, later| hidden | later.sectors);
            let seen = change.sectors & !hidden;
            (seen != 0).then_some((change, seen))
        })
    }

    /// Returns the first of these sectors whose word is not admissible.
    pub fn wrong_sector(&self, sectors: u8, until: u64, rule: Rule, words: &Words) -> Option<usize> {
        let mut good = !sectors;
        for (change, seen) in self.visible(until, rule) {
            let same = |sector: &usize| seen >> sector & 1 == 1 && words[*sector] == change.word;
            good |= (0..BLOCK_SECTORS).filter(same).fold(0, |mask, sector| mask | 1 << sector);
        }
        (0..BLOCK_SECTORS).find(|sector| good >> sector & 1 == 0)
    }

    /// Returns the block once nothing is in flight any more: any of the visible changes, until a read or a write
    /// decides.
    pub fn left(&self, until: u64, rule: Rule) -> Block {
        Block(self.visible(until, rule).map(|(change, seen)| Change::settled(change.word, seen)).collect())
    }

    /// Admits the contents of another block, too.
    pub fn add(&mut self, other: &Block) {
        self.0.extend_from_slice(&other.0);
    }

    /// Notes a read. It settles what a crash left open, unless the block has changed since.
    pub fn was_read(&mut self, words: &Words) {
        if self.0.iter().all(|change| change.start == 0) {
            *self = Block::of(words);
        }
    }

    /// Forgets changes that no read can see any more: every read in flight began after `oldest`.
    pub fn prune(&mut self, oldest: u64) {
        if self.0.len() < 8 {
            return;
        }
        let all = self.0.clone();
        self.0.retain(|change| {
            let hides = |later: &&Change| !later.hint && later.durable && later.end.is_some_and(|end| end < oldest);
            let whole = |later: &&Change| later.sectors & change.sectors == change.sectors;
            !change.end.is_some_and(|end| all.iter().filter(hides).filter(whole).any(|later| later.start > end))
        });
    }
}

impl Change {
    fn settled(word: u64, sectors: u8) -> Change {
        Change { word, sectors, start: 0, end: Some(0), durable: true, hint: false }
    }
}

/// Returns the word that a request writes to a block; no other request writes the same. Zero is a block that was never
/// written.
pub(super) fn word_of(request: u64, block: u64) -> u64 {
    request << 24 | (block & 0xf_ffff) << 4 | 8
}

/// Fills a block with a word: at the beginning and at the end of each sector, with the sector's number.
pub(super) fn fill(word: u64, bytes: &mut [u8]) {
    for (number, sector) in (0..).zip(bytes.chunks_exact_mut(SECTOR_BYTES)) {
        let word = (word | number).to_le_bytes();
        sector[..8].copy_from_slice(&word);
        sector[SECTOR_BYTES - 8..].copy_from_slice(&word);
    }
}

/// Returns the words of a block, sector by sector; or the first sector that no request can have written, and its first
/// word.
pub(super) fn words_in(bytes: &[u8]) -> Result<Words, (usize, u64)> {
    let mut words = [0; BLOCK_SECTORS];
    for (number, sector) in bytes.chunks_exact(SECTOR_BYTES).enumerate() {
        let at = |at: usize| u64::from_le_bytes(sector[at..at + 8].try_into().expect("eight bytes"));
        let (first, last) = (at(0), at(SECTOR_BYTES - 8));
        let good = if first == 0 { sector.iter().all(|byte| *byte == 0) } else { first & 15 == 8 | number as u64 };
        if !good || first != last {
            return Err((number, first));
        }
        words[number] = first & !7;
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(word: u64) -> Words {
        [word; BLOCK_SECTORS]
    }

    #[test]
    fn a_certain_change_hides_earlier_ones() {
        let mut block = Block::default();
        block.begin(24, u8::MAX, 5, false);
        for words in [all(0), all(24)] {
            assert_eq!(block.wrong_sector(u8::MAX, u64::MAX, Rule::Read(6), &words), None);
        }
        block.end(5, 7, false);
        assert_eq!(block.wrong_sector(u8::MAX, u64::MAX, Rule::Read(8), &all(0)), Some(0));
        assert_eq!(block.wrong_sector(u8::MAX, u64::MAX, Rule::Kill, &all(0)), Some(0));
        assert_eq!(block.wrong_sector(u8::MAX, u64::MAX, Rule::Power, &all(0)), None);
        block.flushed(8);
        assert_eq!(block.wrong_sector(u8::MAX, u64::MAX, Rule::Power, &all(0)), Some(0));
        // A snapshot that was taken before does not see the write.
        assert_eq!(block.wrong_sector(u8::MAX, 5, Rule::Power, &all(24)), Some(0));
    }

    #[test]
    fn a_read_settles_what_a_crash_left() {
        let mut block = Block::default();
        block.begin(24, u8::MAX, 5, false);
        let mut left = block.left(u64::MAX, Rule::Power);
        let mut torn = all(0);
        torn[3] = 24;
        assert_eq!(left.wrong_sector(u8::MAX, u64::MAX, Rule::Read(9), &torn), None);
        left.was_read(&torn);
        assert_eq!(left.wrong_sector(u8::MAX, u64::MAX, Rule::Read(9), &all(0)), Some(3));
        assert_eq!(left.wrong_sector(u8::MAX, u64::MAX, Rule::Read(9), &all(24)), Some(0));
    }

    #[test]
    fn filled_blocks_are_recognized() {
        let mut bytes = [0x17; 4096];
        assert_eq!(words_in(&bytes), Err((0, 0x1717_1717_1717_1717)));
        fill(word_of(3, 9), &mut bytes);
        assert_eq!(words_in(&bytes), Ok(all(word_of(3, 9))));
        bytes[512..1024].fill(0);
        assert_eq!(words_in(&bytes).map(|words| words[1]), Ok(0));
        bytes[600] = 1;
        assert_eq!(words_in(&bytes), Err((1, 0)));
    }
}
