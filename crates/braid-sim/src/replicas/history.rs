//! What clients asked and saw, and what of it had to last.
//!
//! A write that was acknowledged may be lost in one way: each replica that was in sync then has rebooted since, before anything made
//! it durable (a flush, a drop, before which those that are left are flushed, or an opening, which makes all that it finds durable). From that moment on the block may hold any value that was there
//! and is not certainly overwritten; what is read first then counts. Everything else is one order for ever.
//!
//! Who is being promoted has every write that is answered, and is in sync when the vote counts: not before, as it may not have the vote, and
//! whoever opens the volume then takes it for rebooted, and the others that have rebooted for as good. From then on it is among those that hold
//! what it had.

use std::collections::BTreeMap;

use super::check::{Access, disorder};
use super::snapshots::Known;

/// A request of a client.
#[derive(Clone, Debug)]
pub struct Request {
    /// Which block; none: a flush.
    pub block: Option<u16>,
    /// What is written; what was read.
    pub value: Option<u64>,
    /// It changes the block.
    pub write: bool,
    /// While which opening of the volume, from 1.
    pub opened: u64,
    /// When, in nanoseconds.
    pub begun: u64,
    /// When it was answered, if it was.
    pub ended: Option<u64>,
    /// The replicas in sync that had it then, and the boots of their nodes.
    pub holders: Vec<(usize, u64)>,
    /// The same of those that were being promoted.
    pub hopefuls: Vec<(usize, u64)>,
}

/// Everything that happened that clients could know of, and when nodes lost power.
#[derive(Default)]
pub struct History {
    /// As it takes several replicas to have everything, what is written is durable at once: nothing is ever lost.
    pub logs: bool,
    /// By number.
    pub requests: Vec<Request>,
    /// When each opening of the volume was complete, and of which epoch. One that stood still may be so after another one of a higher epoch: it
    /// answers nothing, and what it has made durable it found before.
    pub opened: Vec<(u64, u64)>,
    /// When a drop counted, and in which opening.
    pub drops: Vec<(u64, u64)>,
    /// By node, when each of its boots ended.
    pub cuts: Vec<Vec<u64>>,
    /// When older copies of all that had everything began to count: what was written before may be lost, or there again.
    pub anew: Vec<u64>,
    /// Snapshots that were to be taken, by number.
    pub snapshots: BTreeMap<u64, Known>,
}

/// A write, with what became of it.
struct Fate<'a> {
    request: &'a Request,
    /// When it could have been lost; none: never.
    doubted: Option<u64>,
}

/// A value that a block may have after a crash, as far as its write tells.
struct There {
    value: u64,
    ended: u64,
    /// In which opening it was written; 0: with the volume.
    opened: u64,
}

impl History {
    /// Older copies of disks count from now on, and nothing else is left.
    pub fn begins_anew(&mut self, now_ns: u64) {
        self.anew.push(now_ns);
        self.snapshots.clear();
    }

    /// The vote by which this one is in sync counts in this opening: what it had when that was answered it holds.
    pub fn promoted(&mut self, opened: u64, node: usize) {
        for request in self.requests.iter_mut().filter(|request| request.opened == opened) {
            let (counts, rest) = request.hopefuls.drain(..).partition(|(of, _)| *of == node);
            request.hopefuls = rest;
            request.holders.extend::<Vec<(usize, u64)>>(counts);
        }
    }

    /// What must not be, if anything.
    pub fn violation(&self, blocks: u16) -> Option<String> {
        (0..blocks).find_map(|block| self.of_block(block).map(|why| format!("block {block}: {why}")))
    }

    /// How many times a block could have lost something.
    pub fn doubts(&self, blocks: u16) -> u64 {
        (0..blocks).map(|block| self.fates(block).iter().filter(|fate| fate.doubted.is_some()).count() as u64).sum()
    }

    fn fates(&self, block: u16) -> Vec<Fate<'_>> {
        let (writes, reads): (Vec<&Request>, Vec<&Request>) =
            self.requests.iter().filter(|request| request.block == Some(block)).partition(|request| request.write);
        let flushes: Vec<&Request> = self.requests.iter().filter(|request| request.block.is_none()).collect();
        writes.into_iter().map(|write| self.fate(write, &reads, &flushes)).collect()
    }

    fn fate<'a>(&self, request: &'a Request, reads: &[&Request], flushes: &[&Request]) -> Fate<'a> {
        let ended = request.ended.unwrap_or(u64::MAX);
        let gone = |(node, boot): &(usize, u64)| self.cuts[*node].get(*boot as usize).copied();
        let lost = request.holders.iter().map(gone).try_fold(ended, |last, cut| Some(last.max(cut?)));
        let lost = lost.filter(|_| request.ended.is_some() && !self.logs);
        let after = flushes.iter().filter(|flush| flush.opened == request.opened && flush.begun > ended);
        let flushed = after.filter_map(|flush| flush.ended).min();
        let in_time = |at: &u64| *at > ended && lost.is_none_or(|lost| *at < lost);
        let epoch = (request.opened as usize).checked_sub(1).map_or(0, |at| self.opened[at].1);
        let later = self.opened.iter().filter(|(_, of)| *of > epoch).map(|(at, _)| *at);
        let opened = later.filter(in_time).min();
        let drops = self.drops.iter().filter(|(_, of)| *of == request.opened).map(|(at, _)| *at);
        let dropped = drops.filter(in_time).min();
        let seen = reads.iter().filter(|read| read.value == request.value && read.opened != request.opened);
        let seen = seen.filter_map(|read| read.ended).min();
        let lasts = [flushed, opened, dropped, seen].into_iter().flatten().min().unwrap_or(u64::MAX);
        Fate { request, doubted: lost.filter(|lost| *lost < lasts) }
    }

    fn of_block(&self, block: u16) -> Option<String> {
        let fates = self.fates(block);
        let doubted = fates.iter().filter_map(|fate| fate.doubted);
        let mut crashes: Vec<u64> = doubted.chain(self.anew.iter().copied()).collect();
        crashes.sort_unstable();
        crashes.dedup();
        crashes.push(u64::MAX);
        // What may be there.
        let (mut there, mut from) = (vec![There { value: 0, ended: 0, opened: 0 }], 0);
        // What was written before says nothing any more.
        let mut since = 0;
        for until in crashes {
            let after = |ended: Option<u64>| ended.is_none_or(|ended| ended > from);
            let counts = |request: &Request| request.begun < until && request.begun >= since && after(request.ended);
            let part: Vec<&Fate<'_>> = fates.iter().filter(|fate| counts(fate.request)).collect();
            let all = self.requests.iter().filter(|request| request.block == Some(block) && !request.write);
            let reads = all.filter(|read| read.begun >= from && read.ended.is_some_and(|ended| ended < until));
            let (mut accesses, mut first, mut found) = (Vec::new(), None, 0);
            for fate in &part {
                let (begun, ended) = (fate.request.begun as i64, fate.request.ended.map_or(i64::MAX, |at| at as i64));
                accesses.push(Access { value: fate.request.value?, write: true, begun, ended });
            }
            for read in reads {
                let (value, ended) = (read.value?, read.ended? as i64);
                accesses.push(Access { value, write: false, begun: read.begun as i64, ended });
                if let Some(here) = there.iter().find(|here| here.value == value) {
                    if first.replace(value).is_some_and(|first| first != value) {
                        return Some(format!("after a crash at {from} it was {value}, and something else, too"));
                    }
                    // This opening has found it, and made it durable: what else was there before is gone for good.
                    found = if here.opened < read.opened { read.opened.max(found) } else { found };
                }
            }
            // Without a read of what was there nothing tells which value it was.
            accesses.extend(first.map(|value| Access { value, write: true, begun: -2, ended: -1 }));
            if let Some(why) = disorder(&accesses) {
                return Some(why);
            }
            there.retain(|here| here.opened >= found || first == Some(here.value));
            let ended = part.iter().filter(|fate| fate.request.ended.is_some_and(|ended| ended <= until));
            there.extend(ended.filter_map(|fate| {
                let &Request { value, ended, opened, .. } = fate.request;
                Some(There { value: value?, ended: ended?, opened })
            }));
            // What is lost later uncovers what it had been written over.
            let lasts =
                |fate: &&&Fate<'_>| fate.request.ended.is_some_and(|ended| ended <= until) && fate.doubted.is_none();
            let newest = part.iter().filter(lasts).map(|fate| fate.request.begun).max().unwrap_or(0);
            there.retain(|here| here.ended >= newest);
            from = until;
            if self.anew.contains(&until) {
                since = until;
                let ever = fates.iter().filter(|fate| fate.request.begun < until);
                let ever = ever.filter_map(|fate| Some((fate.request.value?, fate.request.opened)));
                let values = ever.chain([(0, 0)]);
                there = values.map(|(value, opened)| There { value, ended: until, opened }).collect();
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(write: Option<u64>, read: Option<u64>, opened: u64, begun: u64) -> Request {
        let block = write.or(read).map(|_| 0);
        let holders = if write.is_some() { vec![(0, 0), (1, 0)] } else { Vec::new() };
        let ended = Some(begun + 1);
        let (value, hopefuls) = (write.or(read), Vec::new());
        Request { block, value, write: write.is_some(), opened, begun, ended, holders, hopefuls }
    }

    /// Write 5 at 10, flush at 20 where `flushed`, cuts of the two nodes, an opening at 100, and reads after it.
    fn judged(flushed: bool, cuts: [Option<u64>; 2], reads: &[u64]) -> bool {
        let mut requests = vec![request(Some(5), None, 1, 10)];
        if flushed {
            requests.push(request(None, None, 1, 20));
        }
        let later = reads.iter().zip(0..).map(|(value, k)| request(None, Some(*value), 2, 110 + 10 * k));
        requests.extend(later);
        let cuts = cuts.into_iter().map(|cut| cut.into_iter().collect()).collect();
        History { requests, opened: vec![(1, 1), (100, 2)], cuts, ..History::default() }.violation(1).is_none()
    }

    #[test]
    fn what_was_acknowledged_is_lost_only_with_all_that_held_it() {
        assert!(judged(false, [Some(50), Some(60)], &[5, 5]) && judged(false, [Some(50), Some(60)], &[0, 0]));
        assert!(!judged(false, [Some(50), None], &[0]) && !judged(false, [None, None], &[0]));
        assert!(judged(false, [Some(50), None], &[5]));
        // Once it is known what is there it stays so.
        assert!(!judged(false, [Some(50), Some(60)], &[0, 5]) && !judged(false, [Some(50), Some(60)], &[5, 0]));
    }

    /// Write 5 at 10, by node 0 while node 1 was being promoted; its vote counts, or does not. Then 0 loses power, and 0 is read.
    fn judged_of_promotion(counts: bool, cuts: [Option<u64>; 2]) -> bool {
        let write = Request { holders: vec![(0, 0)], hopefuls: vec![(1, 0)], ..request(Some(5), None, 1, 10) };
        let cuts = cuts.into_iter().map(|cut| cut.into_iter().collect()).collect();
        let requests = vec![write, request(None, Some(0), 2, 110)];
        let mut history = History { requests, opened: vec![(1, 1), (100, 2)], cuts, ..History::default() };
        history.promoted(2, 1);
        if counts {
            history.promoted(1, 1);
        }
        history.violation(1).is_none()
    }

    #[test]
    fn who_is_being_promoted_holds_nothing_before_that_counts() {
        assert!(judged_of_promotion(false, [Some(50), None]) && !judged_of_promotion(false, [None, Some(50)]));
        assert!(!judged_of_promotion(true, [Some(50), None]) && judged_of_promotion(true, [Some(50), Some(60)]));
    }

    #[test]
    fn an_opening_that_comes_late_makes_nothing_durable() {
        let requests = vec![request(Some(5), None, 1, 10), request(None, Some(0), 3, 110)];
        let judged = |late: u64| {
            let opened = vec![(1, 2), (20, late), (100, 4)];
            let requests = requests.clone();
            History { requests, opened, cuts: vec![vec![50], vec![60]], ..History::default() }.violation(1).is_none()
        };
        assert!(judged(1) && !judged(3));
    }

    /// Write 5 at 10 and 6 at 20, flushed; older copies count from 50 on; write 7 at 60 where `again`; and reads from 110 on.
    fn judged_of_copies(again: bool, reads: &[u64]) -> bool {
        let mut requests =
            vec![request(Some(5), None, 1, 10), request(Some(6), None, 1, 20), request(None, None, 1, 30)];
        requests.extend(again.then(|| Request { holders: vec![(0, 1), (1, 1)], ..request(Some(7), None, 2, 60) }));
        requests.extend(reads.iter().zip(0..).map(|(value, k)| request(None, Some(*value), 2, 110 + 10 * k)));
        let (opened, cuts) = (vec![(1, 1), (55, 2)], vec![vec![40], vec![45]]);
        History { requests, opened, cuts, anew: vec![50], ..History::default() }.violation(1).is_none()
    }

    #[test]
    fn of_older_copies_anything_may_come_that_was_there_and_then_stays() {
        assert!([0, 5, 6].into_iter().all(|value| judged_of_copies(false, &[value, value])));
        assert!(!judged_of_copies(false, &[8]) && !judged_of_copies(false, &[5, 6]));
        assert!(judged_of_copies(true, &[7]) && !judged_of_copies(true, &[6]));
    }

    #[test]
    fn what_was_flushed_or_found_by_an_opening_lasts() {
        assert!(!judged(true, [Some(50), Some(60)], &[0]) && judged(true, [Some(50), Some(60)], &[5]));
        assert!(!judged(false, [Some(50), Some(105)], &[0]));
        assert!(!judged(false, [Some(50), Some(60)], &[7]));
    }
}
