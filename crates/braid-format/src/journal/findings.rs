//! Determines which of the batches that recovery found are accepted.

use std::collections::BTreeMap;
use std::ops::Range;

use super::JournalBatchHeader;

/// All copies that were found of one batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchCopies {
    /// The batch's header.
    pub header: JournalBatchHeader,
    /// The checksum of the header, which covers that of the payload.
    pub check: u32,
    /// Bit *i*: member *i* has a valid copy.
    pub members: u128,
}

/// Two different batches of one run have the same sequence number. Braid never writes such batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("two batches of the journal have the number {sequence} and are not the same")]
pub struct BatchConflict {
    /// Their sequence number.
    pub sequence: u64,
}

/// The valid batches of one run that were found on some members, in any order.
///
/// A single valid copy of a batch suffices, whichever member has it. Batches before the largest tail are no longer
/// needed: they were durable in place before any batch recorded that tail. From the tail on, batches are accepted up to
/// the first gap: an acknowledged batch and all before it are durable on one member more than may be lost, so no batch
/// after a gap was acknowledged.
#[derive(Clone, Debug)]
pub struct RecoveredBatches {
    run: u64,
    tail: u64,
    batches: BTreeMap<u64, BatchCopies>,
}

impl RecoveredBatches {
    /// Creates an empty set for this run.
    pub fn new(run: u64) -> RecoveredBatches {
        RecoveredBatches { run, tail: 1, batches: BTreeMap::new() }
    }

    /// Records that a member (numbered from 0) has a valid copy of a batch. `check` is the
    /// [`batch_crc`](super::batch_crc) of its header. A batch of another run is ignored. Header and payload must have
    /// been validated.
    ///
    /// # Errors
    /// [`BatchConflict`] if a different batch with the same sequence number was recorded before.
    pub fn add(&mut self, header: &JournalBatchHeader, check: u32, member: u16) -> Result<(), BatchConflict> {
        let bit = 1u128.checked_shl(member.into()).unwrap_or(0);
        if header.run != self.run {
            return Ok(());
        }
        if header.tail > self.tail {
            self.tail = header.tail;
            // Batches before the tail are dropped, so that the set never has more batches than a ring.
            self.batches = self.batches.split_off(&self.tail);
        }
        if header.sequence < self.tail {
            return Ok(());
        }
        let found = BatchCopies { header: *header, check, members: bit };
        let known = self.batches.entry(header.sequence).or_insert(found);
        if (known.header, known.check) != (*header, check) {
            return Err(BatchConflict { sequence: header.sequence });
        }
        known.members |= bit;
        Ok(())
    }

    /// Returns the sequence numbers of the accepted batches: from the tail on, without a gap.
    pub fn accepted(&self) -> Range<u64> {
        let gap = (self.tail..).zip(self.batches.keys()).find(|(expected, found)| expected != *found);
        let end = gap.map_or(self.tail + self.batches.len() as u64, |(expected, _)| expected);
        self.tail..end
    }

    /// Returns a batch that was found.
    pub fn batch(&self, sequence: u64) -> Option<&BatchCopies> {
        self.batches.get(&sequence)
    }

    /// Returns the number of batches that were found from the tail on, including those that are not accepted.
    pub fn len(&self) -> usize {
        self.batches.len()
    }

    /// Returns whether no batch was found from the tail on.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::position_for;
    use super::*;

    fn header(sequence: u64, tail: u64) -> JournalBatchHeader {
        JournalBatchHeader { run: 7, sequence, tail, position: sequence * 2, blocks: 1, entries: 0, payload_crc: 0 }
    }

    fn accepted(found: &[(u64, u64)]) -> Range<u64> {
        let mut findings = RecoveredBatches::new(7);
        for (sequence, tail) in found {
            findings.add(&header(*sequence, *tail), 0, 0).unwrap();
        }
        findings.accepted()
    }

    #[test]
    fn batches_are_accepted_up_to_the_first_gap() {
        assert_eq!(accepted(&[]), 1..1);
        assert_eq!(accepted(&[(1, 1), (2, 1), (3, 1)]), 1..4);
        assert_eq!(accepted(&[(3, 1), (1, 1)]), 1..2);
        assert_eq!(accepted(&[(2, 1), (3, 1)]), 1..1);
        assert_eq!(accepted(&[(2, 1), (5, 3), (4, 3), (3, 2)]), 3..6);
        assert_eq!(accepted(&[(2, 1), (5, 5)]), 5..6);
        assert_eq!(accepted(&[(3, 2), (4, 3), (6, 5)]), 5..5);
    }

    #[test]
    fn other_runs_are_ignored_and_conflicts_are_refused() {
        let mut findings = RecoveredBatches::new(7);
        findings.add(&JournalBatchHeader { run: 8, ..header(1, 1) }, 0, 0).unwrap();
        assert_eq!((findings.accepted(), findings.len()), (1..1, 0));
        findings.add(&header(1, 1), 5, 3).unwrap();
        findings.add(&header(1, 1), 5, 127).unwrap();
        assert_eq!(findings.batch(1).unwrap().members, 1 << 3 | 1 << 127);
        assert_eq!(findings.add(&header(1, 1), 6, 4), Err(BatchConflict { sequence: 1 }));
    }

    /// A bug seeded in the model's writer.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum SeededBug {
        Nothing,
        /// One copy fewer than needed: as many as losses are tolerated.
        OneCopyFewer,
        /// Ring space is reused before a batch with the new tail is durable.
        SpaceBeforeTail,
        /// A batch is acknowledged before an earlier one.
        OutOfOrder,
        /// The tail passes batches whose data are in place but not flushed.
        TailBeforeFlush,
    }

    struct Batch {
        header: JournalBatchHeader,
        /// The members that it is written to, and whether it is durable there.
        copies: Vec<(usize, bool)>,
        in_place: bool,
    }

    /// The writer, and the content of each member: for each block of the ring, which batch and which of its blocks.
    struct Model {
        bug: SeededBug,
        members: usize,
        losses: usize,
        ring: Vec<Vec<(u64, u32)>>,
        batches: Vec<Batch>,
        next_position: u64,
        /// Every batch before this one is in place and flushed.
        flushed: u64,
        random: u64,
    }

    const RING: u64 = 9;

    impl Model {
        fn new(seed: u64, members: usize, losses: usize, bug: SeededBug) -> Model {
            let ring = vec![vec![(0, 0); RING as usize]; members];
            Model { bug, members, losses, ring, batches: vec![], next_position: 0, flushed: 1, random: seed }
        }

        fn below(&mut self, bound: u64) -> u64 {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.random >> 33) % bound
        }

        fn is_durable(&self, index: usize) -> bool {
            self.batches[index].copies.iter().all(|copy| copy.1)
        }

        /// The number after the last acknowledged batch.
        fn acknowledged(&self) -> u64 {
            let done = (0..self.batches.len()).filter(|index| self.is_durable(*index)).map(|index| index as u64 + 1);
            match self.bug {
                SeededBug::OutOfOrder => done.max().unwrap_or(0) + 1,
                _ => (1..).zip(done).take_while(|(a, b)| a == b).count() as u64 + 1,
            }
        }

        /// The tail that is durable: space before it is free, and recovery must not accept batches before it.
        fn durable_tail(&self) -> u64 {
            if self.bug == SeededBug::SpaceBeforeTail {
                return self.flushed;
            }
            let acknowledged = self.acknowledged();
            self.batches[..acknowledged as usize - 1].iter().map(|b| b.header.tail).max().unwrap_or(1)
        }

        fn step(&mut self) {
            let acknowledged = self.acknowledged();
            match self.below(6) {
                0 | 1 if self.batches.len() as u64 + 1 - acknowledged < 2 => {
                    let blocks = 1 + self.below(3) as u32;
                    let position = position_for(self.next_position, blocks, RING);
                    let mut live = self.batches[self.durable_tail() as usize - 1..].iter().map(|b| &b.header);
                    let overlaps = |b: &JournalBatchHeader| {
                        position < b.position + u64::from(b.blocks) && b.position < position + u64::from(blocks)
                    };
                    if live.any(overlaps) {
                        return;
                    }
                    self.next_position = position + u64::from(blocks);
                    let sequence = self.batches.len() as u64 + 1;
                    let tail = match self.bug {
                        SeededBug::TailBeforeFlush => acknowledged,
                        _ => self.flushed,
                    };
                    let header =
                        JournalBatchHeader { run: 7, sequence, tail, position, blocks, entries: 0, payload_crc: 0 };
                    let copies = self.losses + usize::from(self.bug != SeededBug::OneCopyFewer);
                    let copies = (0..copies).map(|k| ((sequence as usize + k) % self.members, false)).collect();
                    self.batches.push(Batch { header, copies, in_place: false });
                }
                0..=3 => {
                    let mut open = Vec::new();
                    for (index, batch) in self.batches.iter().enumerate() {
                        open.extend((0..batch.copies.len()).filter(|k| !batch.copies[*k].1).map(|k| (index, k)));
                    }
                    if open.is_empty() {
                        return;
                    }
                    let (index, k) = open[self.below(open.len() as u64) as usize];
                    let (member, durable) = &mut self.batches[index].copies[k];
                    *durable = true;
                    let (member, header) = (*member, self.batches[index].header);
                    write(&mut self.ring[member], &header, header.blocks);
                }
                4 => {
                    let waiting: Vec<usize> =
                        (0..acknowledged as usize - 1).filter(|index| !self.batches[*index].in_place).collect();
                    if !waiting.is_empty() {
                        let index = waiting[self.below(waiting.len() as u64) as usize];
                        self.batches[index].in_place = true;
                    }
                }
                _ => {
                    let in_place = self.batches[..acknowledged as usize - 1].iter().take_while(|b| b.in_place).count();
                    self.flushed = in_place as u64 + 1;
                }
            }
        }

        /// Checks every outcome of the writes in flight, with every tolerated loss of members.
        fn check(&self) -> Result<u64, String> {
            let mut open = Vec::new();
            for batch in &self.batches {
                open.extend(batch.copies.iter().filter(|copy| !copy.1).map(|copy| (copy.0, batch.header)));
            }
            let mut cases = 0;
            for outcome in 0..3u32.pow(open.len() as u32) {
                let mut ring = self.ring.clone();
                for (k, (member, header)) in open.iter().enumerate() {
                    // Nothing was written; its first blocks were; all of it.
                    let blocks = [0, header.blocks / 2, header.blocks][(outcome / 3u32.pow(k as u32) % 3) as usize];
                    write(&mut ring[*member], header, blocks);
                }
                for lost in (0..1u32 << self.members).filter(|lost| lost.count_ones() as usize <= self.losses) {
                    self.validate(&ring, lost).map_err(|why| format!("{why} (outcome {outcome}, lost {lost:b})"))?;
                    cases += 1;
                }
            }
            Ok(cases)
        }

        fn validate(&self, ring: &[Vec<(u64, u32)>], lost: u32) -> Result<(), String> {
            let mut findings = RecoveredBatches::new(7);
            for member in (0..self.members).filter(|member| lost & 1 << member == 0) {
                for batch in &self.batches {
                    let header = &batch.header;
                    let whole = (0..header.blocks)
                        .all(|k| ring[member][header.position as usize + k as usize] == (header.sequence, k));
                    if whole {
                        findings.add(header, header.sequence as u32, member as u16).unwrap();
                    }
                }
            }
            let accepted = findings.accepted();
            for sequence in accepted.clone() {
                let found = findings.batch(sequence).ok_or(format!("{sequence} is accepted and was not found"))?;
                if found.members == 0 || found.members & u128::from(lost) != 0 {
                    return Err(format!("{sequence} is on {:b}", found.members));
                }
            }
            if accepted.start > self.flushed || accepted.end < self.acknowledged() {
                let needed = self.flushed..self.acknowledged();
                return Err(format!("{accepted:?} is accepted, and {needed:?} is needed"));
            }
            match accepted.start < self.durable_tail() {
                true => Err(format!("{accepted:?} is accepted, retired up to {}", self.durable_tail())),
                false => Ok(()),
            }
        }
    }

    /// Writes the first `blocks` blocks of a batch.
    fn write(ring: &mut [(u64, u32)], header: &JournalBatchHeader, blocks: u32) {
        for k in 0..blocks {
            ring[header.position as usize + k as usize] = (header.sequence, k);
        }
    }

    fn run(bug: SeededBug, seeds: u64, steps: u32) -> Result<u64, String> {
        let mut cases = 0;
        for seed in 0..seeds {
            for (members, losses) in [(2, 1), (3, 1), (4, 2), (5, 2)] {
                let mut model = Model::new(seed, members, losses, bug);
                for step in 0..steps {
                    model.step();
                    let checked = model.check();
                    cases += checked.map_err(|why| format!("{why} ({members} members, seed {seed}, step {step})"))?;
                }
            }
        }
        Ok(cases)
    }

    #[test]
    fn acknowledged_batches_are_accepted_after_every_crash_and_loss() {
        let cases = run(SeededBug::Nothing, 12, 120).unwrap();
        assert!(cases > 100_000, "{cases} cases");
    }

    #[test]
    fn seeded_bugs_are_detected() {
        for bug in
            [SeededBug::OneCopyFewer, SeededBug::SpaceBeforeTail, SeededBug::OutOfOrder, SeededBug::TailBeforeFlush]
        {
            assert!(run(bug, 20, 150).is_err(), "{bug:?}");
        }
    }
}
