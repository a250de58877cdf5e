//! What each block of a volume may read as, sector by sector: which requests changed it, when, and what of that is known to last.

use crate::content::{BLOCK_SECTORS, SECTOR_BYTES};

/// One write of one block. Taking it away, or zeroing it, writes zeros.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Change {
    /// What a read finds; see [`word_of`].
    pub word: u64,
    /// The sectors that it is about.
    pub sectors: u8,
    /// When it was asked for.
    pub start: u64,
    /// When it was answered; never where it failed, as nobody knows then what of it was done, or still will be.
    pub end: Option<u64>,
    /// It survives loss of power.
    pub durable: bool,
    /// A hint, which may be passed over.
    pub hint: bool,
}

/// What makes a change certain to hide those before it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// It was acknowledged before the read began.
    Read(u64),
    /// It was acknowledged: the process was killed, or a snapshot was taken meanwhile.
    Kill,
    /// It is durable: the power was cut.
    Power,
}

/// What a read finds in a block, for each of its sectors.
pub(super) type Words = [u64; BLOCK_SECTORS];

/// All that may matter of what happened to one block.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Block(Vec<Change>);

impl Default for Block {
    fn default() -> Block {
        Block::of(&[0; BLOCK_SECTORS])
    }
}

impl Block {
    /// It reads as this since ever.
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

    /// A request is asked for that changes these sectors of it.
    pub fn begin(&mut self, word: u64, sectors: u8, start: u64, hint: bool) {
        self.0.push(Change { word, sectors, start, end: None, durable: false, hint });
    }

    /// The request that began then has been answered.
    pub fn end(&mut self, start: u64, end: u64, durable: bool) {
        for change in self.0.iter_mut().filter(|change| change.start == start) {
            (change.end, change.durable) = (Some(end), durable);
        }
    }

    /// What had been answered before this is durable.
    pub fn flushed(&mut self, before: u64) {
        for change in &mut self.0 {
            change.durable |= change.end.is_some_and(|end| end < before);
        }
    }

    /// What may be seen of the changes that began before `until`: each, and the sectors in which nothing certain hides it.
    fn visible(&self, until: u64, rule: Rule) -> impl Iterator<Item = (&Change, u8)> {
        let certain = move |change: &Change| match rule {
            _ if change.hint => false,
            Rule::Read(start) => change.end.is_some_and(|end| end < start),
            Rule::Kill => change.end.is_some(),
            Rule::Power => change.durable,
        };
        let began = move |change: &&Change| change.start < until;
        self.0.iter().filter(began).filter_map(move |change| {
            // Overlapping writes execute in arrival order, also where the older one is still in flight.
            let later = self.0.iter().filter(began).filter(|later| later.start > change.start && certain(later));
            let hidden = later.fold(0, |hidden, later| hidden | later.sectors);
            let seen = change.sectors & !hidden;
            (seen != 0).then_some((change, seen))
        })
    }

    /// The first of these sectors that reads as it must not.
    pub fn wrong_sector(&self, sectors: u8, until: u64, rule: Rule, words: &Words) -> Option<usize> {
        let mut good = !sectors;
        for (change, seen) in self.visible(until, rule) {
            let same = |sector: &usize| seen >> sector & 1 == 1 && words[*sector] == change.word;
            good |= (0..BLOCK_SECTORS).filter(same).fold(0, |mask, sector| mask | 1 << sector);
        }
        (0..BLOCK_SECTORS).find(|sector| good >> sector & 1 == 0)
    }

    /// What it may be once nothing is under way any more: one or the other of these, until something is certain.
    pub fn left(&self, until: u64, rule: Rule) -> Block {
        Block(self.visible(until, rule).map(|(change, seen)| Change::settled(change.word, seen)).collect())
    }

    /// It may as well be this.
    pub fn add(&mut self, other: &Block) {
        self.0.extend_from_slice(&other.0);
    }

    /// Somebody has read this. What a crash left is settled by that, where nothing has happened to the block since.
    pub fn was_read(&mut self, words: &Words) {
        if self.0.iter().all(|change| change.start == 0) {
            *self = Block::of(words);
        }
    }

    /// Forgets what nobody can see any more, as everybody who looks began after `oldest`.
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

/// What a request writes to a block; no other writes the same. Zero is what nobody wrote.
pub(super) fn word_of(request: u64, block: u64) -> u64 {
    request << 24 | (block & 0xf_ffff) << 4 | 8
}

/// Puts that into the block's bytes: at the beginning and at the end of each sector, with the sector's number.
pub(super) fn fill(word: u64, bytes: &mut [u8]) {
    for (number, sector) in (0..).zip(bytes.chunks_exact_mut(SECTOR_BYTES)) {
        let word = (word | number).to_le_bytes();
        sector[..8].copy_from_slice(&word);
        sector[SECTOR_BYTES - 8..].copy_from_slice(&word);
    }
}

/// What a block's bytes say, sector by sector; or the first sector that says nothing that anybody wrote there, and its first word.
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
    fn what_is_certain_hides_what_was_before() {
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
        // A snapshot that was taken before knows nothing of it.
        assert_eq!(block.wrong_sector(u8::MAX, 5, Rule::Power, &all(24)), Some(0));
    }

    #[test]
    fn what_a_crash_left_is_settled_by_reading_it() {
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
    fn blocks_say_what_they_are() {
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
