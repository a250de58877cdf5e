//! The history of client requests, and which of the writes must last.
//!
//! An acknowledged write may be lost in one way only: each replica that was in sync then has rebooted since, before
//! anything made the write durable. A write becomes durable by a flush, by a drop (the surviving replicas are flushed
//! before it) or by an opening (it makes everything that it finds durable). From the reboot on the block may hold any
//! value that was there and is not certainly overwritten. The first read decides. Everything else is one order.
//!
//! A replica that is being promoted receives every write that is answered, and is in sync once the vote is in effect.
//! Before that it may lack the vote: the next opening then takes it for rebooted, and the rebooted holders for equally
//! good. From then on the replica is one of the holders of what it received.

use std::collections::BTreeMap;

use super::check::{Access, disorder};
use super::snapshot_state::SnapshotModel;

/// A client request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The block; `None`: a flush.
    pub block: Option<u16>,
    /// The value that is written, or that was read.
    pub value: Option<u64>,
    /// Whether the request is a write.
    pub write: bool,
    /// The opening of the volume during which it was made, from 1.
    pub opened: u64,
    /// When it began, in nanoseconds.
    pub begun: u64,
    /// When it was answered, in nanoseconds; `None`: never.
    pub ended: Option<u64>,
    /// The in-sync replicas that held it when it was answered, and the boots of their nodes.
    pub holders: Vec<(usize, u64)>,
    /// The same for replicas that were being promoted.
    pub promoting_holders: Vec<(usize, u64)>,
}

/// Everything that clients could know, and when nodes lost power.
#[derive(Default)]
pub struct History {
    /// Several replicas together hold everything (parity). A write is then durable in a journal before it is
    /// acknowledged: none is ever lost.
    pub logs: bool,
    /// All requests, by number.
    pub requests: Vec<Request>,
    /// Each opening of the volume: when it was complete, and its epoch. A controller that was paused may complete an
    /// opening after one of a higher epoch: it answers nothing, and what it has made durable it found before.
    pub opened: Vec<(u64, u64)>,
    /// When a drop came into effect, and in which opening.
    pub drops: Vec<(u64, u64)>,
    /// By node, when each of its boots ended.
    pub cuts: Vec<Vec<u64>>,
    /// When older copies of every in-sync replica came into effect: earlier writes may be lost, or visible again.
    pub older_copies_at: Vec<u64>,
    /// Snapshots that were requested, by number.
    pub snapshots: BTreeMap<u64, SnapshotModel>,
}

/// A write and what became of it.
struct Fate<'a> {
    request: &'a Request,
    /// When the last in-sync replica that held the write rebooted, if nothing had made the write durable before: from
    /// then on it may be lost. `None`: it must last.
    doubted: Option<u64>,
}

/// A value that a block may have after a crash, as far as its write tells.
struct PossibleValue {
    value: u64,
    ended: u64,
    /// The opening in which it was written; 0: with the volume.
    opened: u64,
}

impl History {
    /// Notes that older copies of disks are in effect from now on, and nothing else is left.
    pub fn note_older_copies(&mut self, now_ns: u64) {
        self.older_copies_at.push(now_ns);
        self.snapshots.clear();
    }

    /// Notes that the vote that promotes this replica is in effect in this opening: the replica is a holder of every
    /// write that it held when the write was answered.
    pub fn promoted(&mut self, opened: u64, node: usize) {
        for request in self.requests.iter_mut().filter(|request| request.opened == opened) {
            let (counts, rest) = request.promoting_holders.drain(..).partition(|(of, _)| *of == node);
            request.promoting_holders = rest;
            request.holders.extend::<Vec<(usize, u64)>>(counts);
        }
    }

    /// Returns a violation, if there is one.
    pub fn violation(&self, blocks: u16) -> Option<String> {
        (0..blocks).find_map(|block| self.of_block(block).map(|why| format!("block {block}: {why}")))
    }

    /// Returns how many times a block could have lost a write.
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
        let mut crashes: Vec<u64> = doubted.chain(self.older_copies_at.iter().copied()).collect();
        crashes.sort_unstable();
        crashes.dedup();
        crashes.push(u64::MAX);
        // The values that the block may hold.
        let (mut possible, mut from) = (vec![PossibleValue { value: 0, ended: 0, opened: 0 }], 0);
        // Requests that ended before this time do not matter any more.
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
                if let Some(candidate) = possible.iter().find(|candidate| candidate.value == value) {
                    if first.replace(value).is_some_and(|first| first != value) {
                        return Some(format!("after a crash at {from} it was {value}, and something else, too"));
                    }
                    // This opening has found the value and made it durable: the other earlier values are gone for good.
                    found = if candidate.opened < read.opened { read.opened.max(found) } else { found };
                }
            }
            // Without a read of an earlier value nothing tells which value it was.
            accesses.extend(first.map(|value| Access { value, write: true, begun: -2, ended: -1 }));
            if let Some(why) = disorder(&accesses) {
                return Some(why);
            }
            possible.retain(|candidate| candidate.opened >= found || first == Some(candidate.value));
            let ended = part.iter().filter(|fate| fate.request.ended.is_some_and(|ended| ended <= until));
            possible.extend(ended.filter_map(|fate| {
                let &Request { value, ended, opened, .. } = fate.request;
                Some(PossibleValue { value: value?, ended: ended?, opened })
            }));
            // A later loss uncovers what the lost value had overwritten.
            let lasts =
                |fate: &&&Fate<'_>| fate.request.ended.is_some_and(|ended| ended <= until) && fate.doubted.is_none();
            let newest = part.iter().filter(lasts).map(|fate| fate.request.begun).max().unwrap_or(0);
            possible.retain(|candidate| candidate.ended >= newest);
            from = until;
            if self.older_copies_at.contains(&until) {
                since = until;
                let ever = fates.iter().filter(|fate| fate.request.begun < until);
                let ever = ever.filter_map(|fate| Some((fate.request.value?, fate.request.opened)));
                let values = ever.chain([(0, 0)]);
                possible = values.map(|(value, opened)| PossibleValue { value, ended: until, opened }).collect();
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
        let (value, promoting_holders) = (write.or(read), Vec::new());
        Request { block, value, write: write.is_some(), opened, begun, ended, holders, promoting_holders }
    }

    /// Checks this history: write 5 at 10, flush at 20 if `flushed`, cuts of the two nodes, an opening at 100, and
    /// reads after it.
    fn is_accepted(flushed: bool, cuts: [Option<u64>; 2], reads: &[u64]) -> bool {
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
    fn an_acknowledged_write_is_lost_only_with_all_its_holders() {
        assert!(is_accepted(false, [Some(50), Some(60)], &[5, 5]) && is_accepted(false, [Some(50), Some(60)], &[0, 0]));
        assert!(!is_accepted(false, [Some(50), None], &[0]) && !is_accepted(false, [None, None], &[0]));
        assert!(is_accepted(false, [Some(50), None], &[5]));
        // Once a read has shown the value, the value stays.
        assert!(
            !is_accepted(false, [Some(50), Some(60)], &[0, 5]) && !is_accepted(false, [Some(50), Some(60)], &[5, 0])
        );
    }

    /// Checks this history: write 5 at 10 by node 0 while node 1 is being promoted; the promotion comes into effect or
    /// not. Then nodes lose power, and 0 is read.
    fn promotion_is_accepted(counts: bool, cuts: [Option<u64>; 2]) -> bool {
        let write = Request { holders: vec![(0, 0)], promoting_holders: vec![(1, 0)], ..request(Some(5), None, 1, 10) };
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
    fn a_replica_holds_nothing_before_its_promotion_is_in_effect() {
        assert!(promotion_is_accepted(false, [Some(50), None]) && !promotion_is_accepted(false, [None, Some(50)]));
        assert!(!promotion_is_accepted(true, [Some(50), None]) && promotion_is_accepted(true, [Some(50), Some(60)]));
    }

    #[test]
    fn a_late_opening_of_a_lower_epoch_makes_nothing_durable() {
        let requests = vec![request(Some(5), None, 1, 10), request(None, Some(0), 3, 110)];
        let is_accepted = |late: u64| {
            let opened = vec![(1, 2), (20, late), (100, 4)];
            let requests = requests.clone();
            History { requests, opened, cuts: vec![vec![50], vec![60]], ..History::default() }.violation(1).is_none()
        };
        assert!(is_accepted(1) && !is_accepted(3));
    }

    /// Checks this history: write 5 at 10 and 6 at 20, flushed; older copies in effect from 50; write 7 at 60 if
    /// `again`; reads from 110 on.
    fn copies_are_accepted(again: bool, reads: &[u64]) -> bool {
        let mut requests =
            vec![request(Some(5), None, 1, 10), request(Some(6), None, 1, 20), request(None, None, 1, 30)];
        requests.extend(again.then(|| Request { holders: vec![(0, 1), (1, 1)], ..request(Some(7), None, 2, 60) }));
        requests.extend(reads.iter().zip(0..).map(|(value, k)| request(None, Some(*value), 2, 110 + 10 * k)));
        let (opened, cuts) = (vec![(1, 1), (55, 2)], vec![vec![40], vec![45]]);
        History { requests, opened, cuts, older_copies_at: vec![50], ..History::default() }.violation(1).is_none()
    }

    #[test]
    fn older_copies_may_restore_any_earlier_value_which_then_stays() {
        assert!([0, 5, 6].into_iter().all(|value| copies_are_accepted(false, &[value, value])));
        assert!(!copies_are_accepted(false, &[8]) && !copies_are_accepted(false, &[5, 6]));
        assert!(copies_are_accepted(true, &[7]) && !copies_are_accepted(true, &[6]));
    }

    #[test]
    fn a_write_that_was_flushed_or_found_by_an_opening_lasts() {
        assert!(!is_accepted(true, [Some(50), Some(60)], &[0]) && is_accepted(true, [Some(50), Some(60)], &[5]));
        assert!(!is_accepted(false, [Some(50), Some(105)], &[0]));
        assert!(!is_accepted(false, [Some(50), Some(60)], &[7]));
    }
}
