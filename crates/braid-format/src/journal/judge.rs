//! What a recovery makes of the batches that it finds: which of them count.

use std::collections::BTreeMap;
use std::ops::Range;

use super::BatchHeader;

/// All that was found of one batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copies {
    /// What its header says.
    pub header: BatchHeader,
    /// The checksum of its header, which is over that of its payload too.
    pub check: u32,
    /// Bit *i*: member *i* has it, whole.
    pub members: u128,
}

/// Two batches of one run have the same number and are not the same: no writer of Braid's does that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("two batches of the journal have the number {sequence} and are not the same")]
pub struct Conflict {
    /// Their number.
    pub sequence: u64,
}

/// The whole batches of one run that were found on some members, in any order.
///
/// Every copy of a batch that is whole may be believed, whoever else has it. The largest tail says what is not needed any more:
/// what came before it was in place, durably, before any batch said so. From there on batches count as long as none is missing: one
/// that was acknowledged has all before it on as many members as can be lost and one more, and after a gap nothing was acknowledged.
#[derive(Clone, Debug)]
pub struct Findings {
    run: u64,
    tail: u64,
    batches: BTreeMap<u64, Copies>,
}

impl Findings {
    /// Nothing found yet, of this run.
    pub fn new(run: u64) -> Findings {
        Findings { run, tail: 1, batches: BTreeMap::new() }
    }

    /// Notes a batch that is whole on a member; one of another run does not count.
    ///
    /// # Errors
    /// [`Conflict`].
    pub fn add(&mut self, header: &BatchHeader, check: u32, member: u16) -> Result<(), Conflict> {
        let bit = 1u128.checked_shl(member.into()).unwrap_or(0);
        if header.run != self.run {
            return Ok(());
        }
        if header.tail > self.tail {
            self.tail = header.tail;
            // So that no more is kept than the ring holds.
            self.batches = self.batches.split_off(&self.tail);
        }
        if header.sequence < self.tail {
            return Ok(());
        }
        let found = Copies { header: *header, check, members: bit };
        let known = self.batches.entry(header.sequence).or_insert(found);
        if (known.header, known.check) != (*header, check) {
            return Err(Conflict { sequence: header.sequence });
        }
        known.members |= bit;
        Ok(())
    }

    /// The numbers of the batches that count: from the tail on, without a gap.
    pub fn accepted(&self) -> Range<u64> {
        let gap = (self.tail..).zip(self.batches.keys()).find(|(expected, found)| expected != *found);
        let end = gap.map_or(self.tail + self.batches.len() as u64, |(expected, _)| expected);
        self.tail..end
    }

    /// A batch that was found.
    pub fn batch(&self, sequence: u64) -> Option<&Copies> {
        self.batches.get(&sequence)
    }

    /// How many batches were found from the tail on, those included that do not count.
    pub fn len(&self) -> usize {
        self.batches.len()
    }

    /// Whether nothing was found from the tail on.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::position_for;
    use super::*;

    fn header(sequence: u64, tail: u64) -> BatchHeader {
        BatchHeader { run: 7, sequence, tail, position: sequence * 2, blocks: 1, entries: 0, payload_crc: 0 }
    }

    fn accepted(found: &[(u64, u64)]) -> Range<u64> {
        let mut findings = Findings::new(7);
        for (sequence, tail) in found {
            findings.add(&header(*sequence, *tail), 0, 0).unwrap();
        }
        findings.accepted()
    }

    #[test]
    fn the_longest_unbroken_sequence_counts() {
        assert_eq!(accepted(&[]), 1..1);
        assert_eq!(accepted(&[(1, 1), (2, 1), (3, 1)]), 1..4);
        assert_eq!(accepted(&[(3, 1), (1, 1)]), 1..2);
        assert_eq!(accepted(&[(2, 1), (3, 1)]), 1..1);
        assert_eq!(accepted(&[(2, 1), (5, 3), (4, 3), (3, 2)]), 3..6);
        assert_eq!(accepted(&[(2, 1), (5, 5)]), 5..6);
        assert_eq!(accepted(&[(3, 2), (4, 3), (6, 5)]), 5..5);
    }

    #[test]
    fn other_runs_do_not_count_and_two_of_one_number_are_refused() {
        let mut findings = Findings::new(7);
        findings.add(&BatchHeader { run: 8, ..header(1, 1) }, 0, 0).unwrap();
        assert_eq!((findings.accepted(), findings.len()), (1..1, 0));
        findings.add(&header(1, 1), 5, 3).unwrap();
        findings.add(&header(1, 1), 5, 127).unwrap();
        assert_eq!(findings.batch(1).unwrap().members, 1 << 3 | 1 << 127);
        assert_eq!(findings.add(&header(1, 1), 6, 4), Err(Conflict { sequence: 1 }));
    }

    /// What the writer of the model does wrong.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Wrong {
        Nothing,
        /// As many copies as losses are tolerated, not one more.
        OneCopyFewer,
        /// Space is used again before a batch that says so is durable.
        SpaceBeforeTail,
        /// A batch is acknowledged before those ahead of it.
        OutOfOrder,
        /// A tail that says in place of what was not flushed.
        TailBeforeFlush,
    }

    struct Batch {
        header: BatchHeader,
        /// Members that take it, and whether it is durable there.
        copies: Vec<(usize, bool)>,
        placed: bool,
    }

    /// The writer, and what stands on each member: for each block of the ring a batch and which of its blocks.
    struct Model {
        wrong: Wrong,
        members: usize,
        losses: usize,
        ring: Vec<Vec<(u64, u32)>>,
        batches: Vec<Batch>,
        next_position: u64,
        /// Everything before is in place and flushed.
        flushed: u64,
        random: u64,
    }

    const RING: u64 = 9;

    impl Model {
        fn new(seed: u64, members: usize, losses: usize, wrong: Wrong) -> Model {
            let ring = vec![vec![(0, 0); RING as usize]; members];
            Model { wrong, members, losses, ring, batches: vec![], next_position: 0, flushed: 1, random: seed }
        }

        fn below(&mut self, bound: u64) -> u64 {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.random >> 33) % bound
        }

        fn is_durable(&self, index: usize) -> bool {
            self.batches[index].copies.iter().all(|copy| copy.1)
        }

        /// The number after the last one that was acknowledged.
        fn acknowledged(&self) -> u64 {
            let done = (0..self.batches.len()).filter(|index| self.is_durable(*index)).map(|index| index as u64 + 1);
            match self.wrong {
                Wrong::OutOfOrder => done.max().unwrap_or(0) + 1,
                _ => (1..).zip(done).take_while(|(a, b)| a == b).count() as u64 + 1,
            }
        }

        /// Of what comes before it the space is free, and no recovery may take it up again.
        fn durable_tail(&self) -> u64 {
            if self.wrong == Wrong::SpaceBeforeTail {
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
                    let overlaps = |b: &BatchHeader| {
                        position < b.position + u64::from(b.blocks) && b.position < position + u64::from(blocks)
                    };
                    if live.any(overlaps) {
                        return;
                    }
                    self.next_position = position + u64::from(blocks);
                    let sequence = self.batches.len() as u64 + 1;
                    let tail = match self.wrong {
                        Wrong::TailBeforeFlush => acknowledged,
                        _ => self.flushed,
                    };
                    let header = BatchHeader { run: 7, sequence, tail, position, blocks, entries: 0, payload_crc: 0 };
                    let copies = self.losses + usize::from(self.wrong != Wrong::OneCopyFewer);
                    let copies = (0..copies).map(|k| ((sequence as usize + k) % self.members, false)).collect();
                    self.batches.push(Batch { header, copies, placed: false });
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
                        (0..acknowledged as usize - 1).filter(|index| !self.batches[*index].placed).collect();
                    if !waiting.is_empty() {
                        let index = waiting[self.below(waiting.len() as u64) as usize];
                        self.batches[index].placed = true;
                    }
                }
                _ => {
                    let placed = self.batches[..acknowledged as usize - 1].iter().take_while(|b| b.placed).count();
                    self.flushed = placed as u64 + 1;
                }
            }
        }

        /// Every outcome of the writes in flight, with every loss of members that is tolerated.
        fn check(&self) -> Result<u64, String> {
            let mut open = Vec::new();
            for batch in &self.batches {
                open.extend(batch.copies.iter().filter(|copy| !copy.1).map(|copy| (copy.0, batch.header)));
            }
            let mut cases = 0;
            for outcome in 0..3u32.pow(open.len() as u32) {
                let mut ring = self.ring.clone();
                for (k, (member, header)) in open.iter().enumerate() {
                    // Nothing arrived; its first blocks did; all of it.
                    let blocks = [0, header.blocks / 2, header.blocks][(outcome / 3u32.pow(k as u32) % 3) as usize];
                    write(&mut ring[*member], header, blocks);
                }
                for lost in (0..1u32 << self.members).filter(|lost| lost.count_ones() as usize <= self.losses) {
                    self.judge(&ring, lost).map_err(|why| format!("{why} (outcome {outcome}, lost {lost:b})"))?;
                    cases += 1;
                }
            }
            Ok(cases)
        }

        fn judge(&self, ring: &[Vec<(u64, u32)>], lost: u32) -> Result<(), String> {
            let mut findings = Findings::new(7);
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
                let found = findings.batch(sequence).ok_or(format!("{sequence} counts and was not found"))?;
                if found.members == 0 || found.members & u128::from(lost) != 0 {
                    return Err(format!("{sequence} is on {:b}", found.members));
                }
            }
            if accepted.start > self.flushed || accepted.end < self.acknowledged() {
                let needed = self.flushed..self.acknowledged();
                return Err(format!("{accepted:?} counts, and {needed:?} is needed"));
            }
            match accepted.start < self.durable_tail() {
                true => Err(format!("{accepted:?} counts, retired up to {}", self.durable_tail())),
                false => Ok(()),
            }
        }
    }

    /// The first `blocks` blocks of a batch arrive.
    fn write(ring: &mut [(u64, u32)], header: &BatchHeader, blocks: u32) {
        for k in 0..blocks {
            ring[header.position as usize + k as usize] = (header.sequence, k);
        }
    }

    fn run(wrong: Wrong, seeds: u64, steps: u32) -> Result<u64, String> {
        let mut cases = 0;
        for seed in 0..seeds {
            for (members, losses) in [(2, 1), (3, 1), (4, 2), (5, 2)] {
                let mut model = Model::new(seed, members, losses, wrong);
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
    fn whatever_arrived_and_whoever_is_lost_what_was_acknowledged_counts() {
        let cases = run(Wrong::Nothing, 12, 120).unwrap();
        assert!(cases > 100_000, "{cases} cases");
    }

    #[test]
    fn a_writer_that_breaks_a_rule_is_found_out() {
        for wrong in [Wrong::OneCopyFewer, Wrong::SpaceBeforeTail, Wrong::OutOfOrder, Wrong::TailBeforeFlush] {
            assert!(run(wrong, 20, 150).is_err(), "{wrong:?}");
        }
    }
}
