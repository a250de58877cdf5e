//! The copy of blocks from one replica to others.

use std::collections::BTreeSet;

use braid_engine::replica::{VoterId, Voters};

use super::bugs::{Bug, is_active};
use super::messages::Io;

/// A replica copy in progress.
pub struct ReplicaCopy {
    /// Identifies the copy.
    pub number: u64,
    pub source: VoterId,
    pub targets: Voters,
    /// Participants whose dirty blocks are not known yet.
    pub unknown: Voters,
    /// The dirty blocks were requested.
    pub requested: bool,
    pub blocks: BTreeSet<u16>,
    /// The block in flight, its content once read, and the targets that have not written it yet.
    pub at: Option<(u16, Option<u64>, Voters)>,
    /// Participants that have not flushed yet; set once all blocks are copied.
    pub flushing: Option<Voters>,
    /// The source has failed, or the target of a sync.
    pub failed: bool,
    pub is_sync: bool,
    pub of_all: bool,
}

/// The next action of a replica copy.
pub enum CopyStep {
    Wait,
    Ask(Vec<(VoterId, Io)>),
    Done,
    Failed,
}

impl ReplicaCopy {
    /// Makes all of these replicas equal.
    pub fn equal(number: u64, chosen: Voters) -> ReplicaCopy {
        let source = chosen.iter().next().unwrap_or(VoterId(0));
        let targets = chosen.without([source].into_iter().collect());
        ReplicaCopy {
            number,
            source,
            targets,
            unknown: chosen,
            requested: false,
            blocks: BTreeSet::new(),
            at: None,
            flushing: None,
            failed: false,
            is_sync: false,
            of_all: false,
        }
    }

    /// Syncs a replica that was missing. Blocks with writes in flight are copied as well.
    pub fn sync(number: u64, source: VoterId, target: VoterId, written: BTreeSet<u16>) -> ReplicaCopy {
        let both = [source, target].into_iter().collect();
        let copying = ReplicaCopy::equal(number, both);
        let targets = [target].into_iter().collect();
        ReplicaCopy { source, targets, blocks: written, is_sync: true, ..copying }
    }

    /// Syncs a replica that lacks only these blocks (a delta resync).
    pub fn delta(number: u64, source: VoterId, target: VoterId, missed_writes: BTreeSet<u16>) -> ReplicaCopy {
        ReplicaCopy {
            unknown: Voters::NONE,
            requested: true,
            ..ReplicaCopy::sync(number, source, target, missed_writes)
        }
    }

    /// Copies all blocks instead of the dirty ones.
    pub fn with_all_blocks(self, blocks: u16) -> ReplicaCopy {
        ReplicaCopy { unknown: Voters::NONE, requested: true, blocks: (0..blocks).collect(), of_all: true, ..self }
    }

    /// Returns whether all blocks are copied.
    pub fn is_of_all(&self) -> bool {
        self.of_all
    }

    /// Returns whether the voter takes part.
    pub fn has(&self, voter: VoterId) -> bool {
        voter == self.source || self.targets.has(voter)
    }

    /// Returns the replicas that are being written to.
    pub fn targets(&self) -> Voters {
        self.targets
    }

    /// Notes the failure of a voter.
    pub fn fail(&mut self, voter: VoterId) {
        if !self.has(voter) {
            return;
        }
        self.failed |= self.is_sync || voter == self.source;
        self.targets.remove(voter);
        self.unknown.remove(voter);
        if let Some((_, _, left)) = &mut self.at {
            left.remove(voter);
        }
        if let Some(left) = &mut self.flushing {
            left.remove(voter);
        }
    }

    /// Handles a reply. Returns the I/Os that follow from it.
    pub fn done(&mut self, voter: VoterId, io: &Io, value: u64, dirty: &[u16]) -> Vec<(VoterId, Io)> {
        match io {
            Io::Dirty => {
                self.unknown.remove(voter);
                let forgotten = is_active(Bug::OwnDirtyForgotten) && self.is_sync && self.targets.has(voter);
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

    /// Returns the next action. `lock` locks a block, or returns `false` if it is locked already; `unlock` unlocks it.
    pub fn next(&mut self, lock: &mut dyn FnMut(u16) -> bool, unlock: &mut dyn FnMut(u16)) -> CopyStep {
        if let Some((block, Some(_), left)) = self.at
            && left.is_empty()
        {
            unlock(block);
            self.blocks.remove(&block);
            self.at = None;
        }
        if self.failed {
            if let Some((block, _, _)) = self.at.take() {
                unlock(block);
            }
            return CopyStep::Failed;
        }
        if !self.requested {
            self.requested = true;
            return CopyStep::Ask(self.unknown.iter().map(|voter| (voter, Io::Dirty)).collect());
        }
        if self.at.is_some() || !self.unknown.is_empty() {
            return CopyStep::Wait;
        }
        let skipped = self.targets.is_empty() || !self.is_sync && is_active(Bug::UnequalServed);
        if !skipped && let Some(block) = self.blocks.first().copied() {
            if !lock(block) {
                return CopyStep::Wait;
            }
            self.at = Some((block, None, self.targets));
            return CopyStep::Ask(vec![(self.source, Io::Read(block))]);
        }
        match self.flushing {
            None => {
                let source: Voters = [self.source].into_iter().collect();
                let all = self.targets.or(source);
                self.flushing = Some(all);
                CopyStep::Ask(all.iter().map(|voter| (voter, Io::Flush)).collect())
            }
            Some(left) if left.is_empty() => CopyStep::Done,
            Some(_) => CopyStep::Wait,
        }
    }
}
