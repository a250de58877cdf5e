//! Copies of blocks from one replica to others: when a volume is opened, and when a replica is filled that was out.
//!
//! What may differ is what some of them have as dirty: a replica's bit is durable before its data are begun, and is cleared once all
//! replicas have the same and have flushed it. So the union of the dirty blocks of all that take part is enough.
//!
//! Who was in sync in this opening, and comes back under the same boot, lacks what was written since, and no more: the controller
//! remembers that.

use std::collections::BTreeSet;

use braid_engine::replica::{Planted, VoterId, Voters, planted};

use super::controller::{For, Phase, Run};
use super::net::Io;
use super::world::World;

/// One such copy.
pub struct Copying {
    /// Its number.
    pub number: u64,
    source: VoterId,
    targets: Voters,
    /// Those whose dirty blocks are not known yet.
    unknown: Voters,
    /// They were asked.
    asked: bool,
    blocks: BTreeSet<u16>,
    /// The block that is being copied: what stands there, and who is still to have it.
    at: Option<(u16, Option<u64>, Voters)>,
    /// Who is still to be flushed, once all is copied.
    flushing: Option<Voters>,
    /// What it was copied from is gone, or a target that was to be filled.
    failed: bool,
    fills: bool,
    of_all: bool,
}

/// What is to be done next.
enum Step {
    Wait,
    Ask(Vec<(VoterId, Io)>),
    Done,
    Failed,
}

impl Copying {
    /// All of these are made equal.
    pub fn equal(number: u64, chosen: Voters) -> Copying {
        let source = chosen.iter().next().unwrap_or(VoterId(0));
        let targets = chosen.without([source].into_iter().collect());
        Copying {
            number,
            source,
            targets,
            unknown: chosen,
            asked: false,
            blocks: BTreeSet::new(),
            at: None,
            flushing: None,
            failed: false,
            fills: false,
            of_all: false,
        }
    }

    /// One that was out is filled. Blocks that somebody is writing are copied as well.
    pub fn fill(number: u64, source: VoterId, target: VoterId, written: BTreeSet<u16>) -> Copying {
        let both = [source, target].into_iter().collect();
        let copying = Copying::equal(number, both);
        let targets = [target].into_iter().collect();
        Copying { source, targets, blocks: written, fills: true, ..copying }
    }

    /// One that was out, and lacks no more than these blocks.
    pub fn catch_up(number: u64, source: VoterId, target: VoterId, missed: BTreeSet<u16>) -> Copying {
        Copying { unknown: Voters::NONE, asked: true, ..Copying::fill(number, source, target, missed) }
    }

    /// All blocks are copied, whatever is dirty.
    pub fn wholly(self, blocks: u16) -> Copying {
        Copying { unknown: Voters::NONE, asked: true, blocks: (0..blocks).collect(), of_all: true, ..self }
    }

    /// Whether it is such a copy.
    pub fn is_of_all(&self) -> bool {
        self.of_all
    }

    /// Whether this one takes part.
    pub fn has(&self, voter: VoterId) -> bool {
        voter == self.source || self.targets.has(voter)
    }

    /// Who is being written to.
    pub fn targets(&self) -> Voters {
        self.targets
    }

    /// One that takes part has failed.
    pub fn fail(&mut self, voter: VoterId) {
        if !self.has(voter) {
            return;
        }
        self.failed |= self.fills || voter == self.source;
        self.targets.remove(voter);
        self.unknown.remove(voter);
        if let Some((_, _, left)) = &mut self.at {
            left.remove(voter);
        }
        if let Some(left) = &mut self.flushing {
            left.remove(voter);
        }
    }

    /// An I/O of it is done.
    pub fn done(&mut self, voter: VoterId, io: &Io, value: u64, dirty: &[u16]) -> Vec<(VoterId, Io)> {
        match io {
            Io::Dirty => {
                self.unknown.remove(voter);
                let forgotten = planted(Planted::OwnDirtyForgotten) && self.fills && self.targets.has(voter);
                if !forgotten {
                    self.blocks.extend(dirty);
                }
            }
            Io::Read(block) => {
                self.at = Some((*block, Some(value), self.targets));
                return self.targets.iter().map(|target| (target, Io::Write(*block, value))).collect();
            }
            Io::Write(..) => {
                if let Some((_, _, left)) = &mut self.at {
                    left.remove(voter);
                }
            }
            Io::Flush => {
                if let Some(left) = &mut self.flushing {
                    left.remove(voter);
                }
            }
            Io::Clean(_) | Io::Snapshot(_) => {}
        }
        Vec::new()
    }

    /// `take` takes the range of a block, or says that somebody else has it; `give` gives it back.
    fn next(&mut self, take: &mut dyn FnMut(u16) -> bool, give: &mut dyn FnMut(u16)) -> Step {
        if let Some((block, Some(_), left)) = self.at
            && left.is_empty()
        {
            give(block);
            self.blocks.remove(&block);
            self.at = None;
        }
        if self.failed {
            if let Some((block, _, _)) = self.at.take() {
                give(block);
            }
            return Step::Failed;
        }
        if !self.asked {
            self.asked = true;
            return Step::Ask(self.unknown.iter().map(|voter| (voter, Io::Dirty)).collect());
        }
        if self.at.is_some() || !self.unknown.is_empty() {
            return Step::Wait;
        }
        let skipped = self.targets.is_empty() || !self.fills && planted(Planted::UnequalServed);
        if !skipped && let Some(block) = self.blocks.first().copied() {
            if !take(block) {
                return Step::Wait;
            }
            self.at = Some((block, None, self.targets));
            return Step::Ask(vec![(self.source, Io::Read(block))]);
        }
        match self.flushing {
            None => {
                let source: Voters = [self.source].into_iter().collect();
                let all = self.targets.or(source);
                self.flushing = Some(all);
                Step::Ask(all.iter().map(|voter| (voter, Io::Flush)).collect())
            }
            Some(left) if left.is_empty() => Step::Done,
            Some(_) => Step::Wait,
        }
    }
}

impl World {
    fn ask_all(&mut self, c: usize, asks: Vec<(VoterId, Io)>, number: u64) {
        asks.into_iter().for_each(|(voter, io)| self.ask_io(c, voter, io, For::Copy(number)));
    }

    /// Goes on making replicas equal: who is, at its end; nobody, where it has failed.
    pub fn advance_equal(&mut self, c: usize) -> Option<Voters> {
        loop {
            let Some(Run { phase: Phase::Opening(_, Some(copying)), .. }) = &mut self.controllers[c].run else {
                return None;
            };
            let number = copying.number;
            match copying.next(&mut |_| true, &mut |_| ()) {
                Step::Wait => return None,
                Step::Ask(asks) => self.ask_all(c, asks, number),
                Step::Failed => return Some(Voters::NONE),
                Step::Done => return Some(copying.targets.or([copying.source].into_iter().collect())),
            }
        }
    }

    /// Goes on filling a replica, and has it promoted at the end.
    pub fn advance_fill(&mut self, c: usize) {
        loop {
            let Some(serving) = self.controllers[c].serving() else { return };
            let Some(fill) = &mut serving.fill else { return };
            let (number, locks) = (fill.number, std::cell::RefCell::new(&mut serving.locks));
            let mut take = |block| locks.borrow_mut().insert(block);
            let step = fill.next(&mut take, &mut |block| locks.borrow_mut().retain(|at| *at != block));
            match step {
                Step::Wait => return,
                Step::Ask(asks) => self.ask_all(c, asks, number),
                Step::Failed => {
                    let targets = fill.targets;
                    serving.fill = None;
                    self.counters.add("fill", "failed", 1);
                    self.event(format_args!("{c} gives up filling {targets:?}"));
                    return;
                }
                Step::Done => {
                    let target = fill.targets.iter().next().unwrap_or(VoterId(0));
                    let fill_source = fill.source;
                    // Until it counts it goes on getting every write.
                    if serving.membership.in_sync().has(target) {
                        serving.fill = None;
                        serving.absent.remove(&target.0);
                    } else if serving.membership.promote(target) {
                        // Its label says so before any vote does.
                        self.is_filled(c, fill_source, target);
                        self.counters.add("fill", "done", 1);
                        self.event(format_args!("{c} promotes {target:?}"));
                        self.ask_voters(c);
                        continue;
                    }
                    return;
                }
            }
        }
    }

    /// One is gone that may take part in a copy.
    pub fn failed_while_copied(&mut self, c: usize, voter: VoterId) {
        let Some(run) = &mut self.controllers[c].run else { return };
        match &mut run.phase {
            Phase::Opening(_, Some(copying)) => copying.fail(voter),
            Phase::Opening(_, None) => {}
            Phase::Serving(serving) => {
                if let Some(fill) = &mut serving.fill {
                    fill.fail(voter);
                }
                if let Some(bringing) = &mut serving.bringing {
                    bringing.fail(voter);
                }
            }
        }
    }

    /// A connection is lost: whoever is being filled is filled anew.
    pub fn lost_while_copied(&mut self, c: usize, voter: VoterId) {
        let Some(run) = &mut self.controllers[c].run else { return };
        let Phase::Serving(serving) = &mut run.phase else { return };
        if let Some(bringing) = serving.bringing.as_mut().filter(|bringing| bringing.target == voter) {
            bringing.fail(voter);
            run.peers[usize::from(voter.0)].forget();
        }
        if let Some(fill) = &mut serving.fill
            && fill.targets.has(voter)
            && !serving.membership.in_sync().has(voter)
        {
            fill.fail(voter);
            run.peers[usize::from(voter.0)].forget();
        }
    }
}
