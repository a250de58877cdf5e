//! Replica copies: the resync when a volume is opened, and the sync of a replica that was missing.
//!
//! Replicas may differ only in dirty blocks. A replica's dirty bit is durable before the write to its data begins, and
//! is cleared once all replicas hold and have flushed the same data. So the union of the dirty blocks of all
//! participants covers every difference.
//!
//! A replica that was in sync in this opening and returns under the same boot lacks only what was written since. The
//! controller remembers these blocks.

use braid_engine::replica::{VoterId, Voters};

use super::controller_state::{IoPurpose, Phase, Run};
use super::messages::Io;
use super::replica_copy::CopyStep;
use super::world::World;

impl World {
    fn request_all(&mut self, c: usize, asks: Vec<(VoterId, Io)>, number: u64) {
        asks.into_iter().for_each(|(voter, io)| self.request_io(c, voter, io, IoPurpose::Copy(number)));
    }

    /// Advances the resync. Returns the equal replicas at its end, or none if it has failed.
    pub fn advance_resync(&mut self, c: usize) -> Option<Voters> {
        loop {
            let Some(Run { phase: Phase::Opening(_, Some(copying)), .. }) = &mut self.controllers[c].run else {
                return None;
            };
            let number = copying.number;
            match copying.next(&mut |_| true, &mut |_| ()) {
                CopyStep::Wait => return None,
                CopyStep::Ask(asks) => self.request_all(c, asks, number),
                CopyStep::Failed => return Some(Voters::NONE),
                CopyStep::Done => return Some(copying.targets.or([copying.source].into_iter().collect())),
            }
        }
    }

    /// Advances the sync of a replica, and has the replica promoted at the end.
    pub fn advance_sync(&mut self, c: usize) {
        loop {
            let Some(serving) = self.controllers[c].serving() else { return };
            let Some(sync) = &mut serving.sync else { return };
            let (number, locks) = (sync.number, std::cell::RefCell::new(&mut serving.locks));
            let mut lock = |block| locks.borrow_mut().insert(block);
            let step = sync.next(&mut lock, &mut |block| locks.borrow_mut().retain(|at| *at != block));
            match step {
                CopyStep::Wait => return,
                CopyStep::Ask(asks) => self.request_all(c, asks, number),
                CopyStep::Failed => {
                    let targets = sync.targets;
                    serving.sync = None;
                    self.counters.add("fill", "failed", 1);
                    self.event(format_args!("{c} gives up rebuilding {targets:?}"));
                    return;
                }
                CopyStep::Done => {
                    let target = sync.targets.iter().next().unwrap_or(VoterId(0));
                    let source = sync.source;
                    // Until its promotion is in effect, the target keeps receiving every write.
                    if serving.membership.in_sync().has(target) {
                        serving.sync = None;
                        serving.dropped.remove(&target.0);
                    } else if serving.membership.promote(target) {
                        // The replica's label records the promotion before any vote does.
                        self.note_synced(c, source, target);
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

    /// Notes the failure of a voter that may take part in a copy.
    pub fn fail_in_copy(&mut self, c: usize, voter: VoterId) {
        let Some(run) = &mut self.controllers[c].run else { return };
        match &mut run.phase {
            Phase::Opening(_, Some(copying)) => copying.fail(voter),
            Phase::Opening(_, None) => {}
            Phase::Serving(serving) => {
                if let Some(sync) = &mut serving.sync {
                    sync.fail(voter);
                }
                if let Some(snapshot_copy) = &mut serving.snapshot_copy {
                    snapshot_copy.fail(voter);
                }
            }
        }
    }

    /// Notes a lost connection: the sync of a replica on it is restarted.
    pub fn disconnect_in_copy(&mut self, c: usize, voter: VoterId) {
        let Some(run) = &mut self.controllers[c].run else { return };
        let Phase::Serving(serving) = &mut run.phase else { return };
        if let Some(snapshot_copy) =
            serving.snapshot_copy.as_mut().filter(|snapshot_copy| snapshot_copy.target == voter)
        {
            snapshot_copy.fail(voter);
            run.peers[usize::from(voter.0)].forget();
        }
        if let Some(sync) = &mut serving.sync
            && sync.targets.has(voter)
            && !serving.membership.in_sync().has(voter)
        {
            sync.fail(voter);
            run.peers[usize::from(voter.0)].forget();
        }
    }
}
