//! Snapshots: taken on all replicas while requests wait, named on all, deleted on all, and copied to replicas that
//! return.
//!
//! The in-sync replicas decide what becomes of a snapshot: a snapshot that is named on any of them gets its name on
//! all; a snapshot that is named on none is removed. A controller compares them before it serves. The oracle checks
//! that each snapshot is one moment on every replica that has it by name, and that every acknowledged change holds on
//! all in-sync replicas: the snapshot is named, or gone.

use std::collections::BTreeMap;

use braid_engine::replica::{MembershipAction, VoterId, Voters};

use super::bugs::{Bug, is_active};
use super::controller_state::{IoPurpose, Phase};
use super::messages::{Io, SnapshotOp};
use super::parameters::SECOND;
use super::serving_state::{IoReply, Rollback, Serving};
use super::snapshot_state::{
    ChangeStage, SnapshotChange, SnapshotCopy, SnapshotCopyStep, SnapshotModel, SnapshotState,
};
use super::world::World;

impl World {
    /// Advances the snapshot change, or begins one.
    pub fn advance_snapshots(&mut self, c: usize) {
        while self.advance_change(c) {}
    }

    /// Advances the snapshot change by one step. Returns whether another step may follow.
    fn advance_change(&mut self, c: usize) -> bool {
        let now = self.clock(c);
        let (number, has_faults) = (self.number(), self.now_ns < self.parameters.faults_ns);
        let Some(run) = &mut self.controllers[c].run else { return false };
        let has_lease = |serving: &Serving| run.lease.holds(serving.membership.lease_sets(), now);
        let Phase::Serving(serving) = &mut run.phase else { return false };
        let rests = serving.membership.next_action() == MembershipAction::Nothing;
        let may_answer = rests && has_lease(serving) && serving.membership.may_answer();
        let in_sync = serving.membership.in_sync();
        let is_held = serving.is_held();
        let Some(change) = &mut serving.change else {
            if !rests || serving.sync.is_some() || serving.snapshot_copy.is_some() || serving.rollback.is_some() {
                return false;
            }
            if serving.unsettled {
                serving.change = Some(SnapshotChange::begin(number, 0, ChangeStage::List(BTreeMap::new()), in_sync));
                return true;
            }
            if !self.parameters.snapshots || !has_faults || serving.stopping || now < serving.snapshot_due_ns {
                return false;
            }
            serving.snapshot_due_ns = now + self.snapshot_rng.between(1, 20) * SECOND;
            return self.begin_change(c, number, in_sync);
        };
        let all_done = in_sync.without(change.done).is_empty();
        let first = is_active(Bug::SnapshotOnOne) && !change.done.is_empty();
        let ask = match &change.stage {
            ChangeStage::Hold if serving.stopping => {
                serving.change = None;
                return true;
            }
            ChangeStage::Hold if is_held || is_active(Bug::SnapshotUnheld) => {
                let (id, source) = (change.id, in_sync.iter().next().unwrap_or(VoterId(0)));
                change.of = in_sync;
                change.enter(ChangeStage::Take);
                let store = &self.nodes[usize::from(source.0)].store;
                let content = (0..self.parameters.blocks).map(|block| store.read(block)).collect();
                self.history.snapshots.insert(id, SnapshotModel { content, state: SnapshotState::Taking });
                return true;
            }
            ChangeStage::Hold => return false,
            ChangeStage::Take if all_done || first => {
                // A replica that has failed is in sync by the last vote, and may lack the snapshot.
                let all = change.of == in_sync;
                change.enter(if all { ChangeStage::Name } else { ChangeStage::Abandon });
                return true;
            }
            ChangeStage::Take => SnapshotOp::Take(change.id),
            ChangeStage::Abandon if all_done => return self.end_change(c, "given up", None),
            ChangeStage::Abandon | ChangeStage::Remove if !all_done => SnapshotOp::Remove(change.id),
            ChangeStage::Name if (all_done || first) && may_answer => {
                return self.end_change(c, "taken", Some(SnapshotState::Exists));
            }
            ChangeStage::Name => SnapshotOp::Name(change.id),
            ChangeStage::Hide if all_done && may_answer => {
                change.enter(ChangeStage::Remove);
                return true;
            }
            ChangeStage::Hide => SnapshotOp::Hide(change.id),
            ChangeStage::Remove if may_answer => return self.end_change(c, "deleted", Some(SnapshotState::Deleted)),
            ChangeStage::Abandon | ChangeStage::Remove => return false,
            ChangeStage::List(_) | ChangeStage::Settle(_) if in_sync != change.of => {
                // The snapshots are listed anew.
                serving.change = None;
                return true;
            }
            ChangeStage::List(has) if all_done => {
                let steps = settle(has);
                change.enter(ChangeStage::Settle(steps));
                return true;
            }
            ChangeStage::List(_) => SnapshotOp::List,
            ChangeStage::Settle(steps) => {
                let steps = steps.clone();
                let requested = !change.requested.is_empty();
                return self.settle_next(c, steps, requested);
            }
        };
        let number = change.number;
        let new = in_sync.without(change.requested);
        change.requested = change.requested.or(new);
        new.iter().for_each(|voter| self.request_io(c, voter, Io::Snapshot(ask), IoPurpose::Snapshot(number)));
        false
    }

    /// Requests the next step of settling the snapshots; each is requested when the one before is done.
    fn settle_next(&mut self, c: usize, mut steps: Vec<(VoterId, SnapshotOp)>, requested: bool) -> bool {
        let Some(serving) = self.controllers[c].serving() else { return false };
        let Some(change) = &mut serving.change else { return false };
        if requested {
            return false;
        }
        let Some((voter, what)) = steps.pop() else {
            (serving.change, serving.unsettled) = (None, false);
            self.counters.add("snapshots", "settled", 1);
            return true;
        };
        let number = change.number;
        change.requested = [voter].into_iter().collect();
        change.stage = ChangeStage::Settle(steps);
        self.counters.add("snapshots", "brought in order", 1);
        self.request_io(c, voter, Io::Snapshot(what), IoPurpose::Snapshot(number));
        false
    }

    fn begin_change(&mut self, c: usize, number: u64, in_sync: Voters) -> bool {
        let there: Vec<u64> = self
            .history
            .snapshots
            .iter()
            .filter(|(_, model)| model.state == SnapshotState::Exists)
            .map(|(id, _)| *id)
            .collect();
        if !there.is_empty() && in_sync.count() > 1 && self.snapshot_rng.below(3) == 0 {
            let id = *self.snapshot_rng.pick(&there);
            let keep = in_sync.iter().nth(self.snapshot_rng.index(in_sync.count())).unwrap_or(VoterId(0));
            let rollback = Rollback { id, keep, mark: number };
            self.event(format_args!("{c} is to roll back: {rollback:?}"));
            if let Some(serving) = self.controllers[c].serving() {
                serving.rollback = Some(rollback);
            }
            return false;
        }
        let deletes = !there.is_empty() && (there.len() > 2 || self.snapshot_rng.below(3) == 0);
        let (id, stage) =
            if deletes { (*self.snapshot_rng.pick(&there), ChangeStage::Hide) } else { (number, ChangeStage::Hold) };
        if deletes && let Some(model) = self.history.snapshots.get_mut(&id) {
            model.state = SnapshotState::Deleting;
        }
        self.event(format_args!("{c} begins snapshot {id}: {stage:?}"));
        if let Some(serving) = self.controllers[c].serving() {
            serving.change = Some(SnapshotChange::begin(number, id, stage, in_sync));
        }
        true
    }

    fn end_change(&mut self, c: usize, what: &'static str, state: Option<SnapshotState>) -> bool {
        let Some(serving) = self.controllers[c].serving() else { return false };
        let Some(change) = serving.change.take() else { return false };
        self.event(format_args!("{c} has {what} snapshot {}", change.id));
        self.counters.add("snapshots", what, 1);
        if let (Some(state), Some(model)) = (state, self.history.snapshots.get_mut(&change.id)) {
            model.state = state;
        }
        true
    }

    /// Handles a replica's reply to a snapshot operation.
    pub fn snapshot_done(&mut self, c: usize, voter: VoterId, number: u64, found: IoReply) {
        let Some(serving) = self.controllers[c].serving() else { return };
        let Some(change) = serving.change.as_mut().filter(|change| change.number == number) else { return };
        match (&mut change.stage, &found.io) {
            (ChangeStage::List(has), Io::Snapshot(SnapshotOp::List)) => drop(has.insert(voter.0, found.listed)),
            (ChangeStage::Settle(_), _) => change.requested = Voters::NONE,
            (ChangeStage::Take, Io::Snapshot(SnapshotOp::Take(_)))
            | (ChangeStage::Abandon | ChangeStage::Remove, Io::Snapshot(SnapshotOp::Remove(_)))
            | (ChangeStage::Name, Io::Snapshot(SnapshotOp::Name(_)))
            | (ChangeStage::Hide, Io::Snapshot(SnapshotOp::Hide(_))) => {}
            // The reply belongs to an earlier stage.
            _ => return,
        }
        change.done.insert(voter);
    }

    /// Copies the snapshots that a returned replica lacks, before its sync. Returns whether it has them all.
    pub fn copy_snapshots(&mut self, c: usize, source: VoterId, target: VoterId) -> bool {
        let number = self.number();
        let blocks = self.parameters.blocks;
        let Some(serving) = self.controllers[c].serving() else { return false };
        let Some(snapshot_copy) = &mut serving.snapshot_copy else {
            serving.snapshot_copy = Some(SnapshotCopy::new(number, source, target));
            self.event(format_args!("{c} brings {target:?} what it lacks of {source:?}"));
            for voter in [source, target] {
                self.request_io(c, voter, Io::Snapshot(SnapshotOp::List), IoPurpose::SnapshotCopy(number));
            }
            return false;
        };
        if snapshot_copy.failed
            || !serving.membership.in_sync().has(snapshot_copy.source)
            || snapshot_copy.target != target
        {
            serving.snapshot_copy = None;
            self.counters.add("snapshots", "bringing failed", 1);
            return false;
        }
        if snapshot_copy.done {
            serving.snapshot_copy = None;
            return true;
        }
        if snapshot_copy.has.len() < 2 || snapshot_copy.waits {
            return false;
        }
        if snapshot_copy.steps.is_none() {
            let steps = snapshot_copy.plan(blocks);
            let changes_data = steps.iter().any(|step| matches!(step, SnapshotCopyStep::Copy(..)));
            snapshot_copy.steps = Some(steps);
            if changes_data && !is_active(Bug::CaughtUpFromSnapshot) {
                // The replica may have held later writes than the snapshot, which are not among its missed writes.
                serving.dropped.remove(&target.0);
            }
        }
        let (source, target, number) = (snapshot_copy.source, snapshot_copy.target, snapshot_copy.number);
        let Some(step) = snapshot_copy.steps.as_ref().and_then(|steps| steps.last().copied()) else {
            snapshot_copy.done = true;
            return self.copy_snapshots(c, source, target);
        };
        snapshot_copy.waits = true;
        let (voter, io) = match (step, snapshot_copy.value.take()) {
            (SnapshotCopyStep::Copy(_, block), Some(value)) => (target, Io::Write(block, value)),
            (SnapshotCopyStep::Copy(id, block), None) => (source, Io::Snapshot(SnapshotOp::Read(id, block))),
            (SnapshotCopyStep::Flush, _) => (target, Io::Flush),
            (SnapshotCopyStep::Do(what), _) => {
                if matches!(what, SnapshotOp::Name(_)) {
                    self.counters.add("snapshots", "brought", 1);
                }
                (target, Io::Snapshot(what))
            }
        };
        self.request_io(c, voter, io, IoPurpose::SnapshotCopy(number));
        false
    }

    /// Handles the reply to a step of a snapshot copy.
    pub fn handle_snapshot_copied(&mut self, c: usize, voter: VoterId, number: u64, found: IoReply) {
        let Some(serving) = self.controllers[c].serving() else { return };
        let Some(snapshot_copy) = serving.snapshot_copy.as_mut().filter(|snapshot_copy| snapshot_copy.number == number)
        else {
            return;
        };
        match found.io {
            Io::Snapshot(SnapshotOp::List) => drop(snapshot_copy.has.insert(voter.0, found.listed)),
            Io::Snapshot(SnapshotOp::Read(..)) => {
                (snapshot_copy.value, snapshot_copy.waits) = (Some(found.value), false)
            }
            _ => {
                snapshot_copy.waits = false;
                if let Some(steps) = &mut snapshot_copy.steps {
                    steps.pop();
                }
            }
        }
    }

    /// Checks that each snapshot is one moment, and that every acknowledged change holds on all of these replicas.
    pub fn compare_snapshots(&mut self, in_sync: Voters) {
        for (id, model) in &self.history.snapshots {
            let mut there = Voters::NONE;
            for voter in in_sync.iter() {
                let Some(content) = self.nodes[usize::from(voter.0)].store.named(*id) else { continue };
                there.insert(voter);
                if content != model.content {
                    let why = format!("snapshot {id} on {voter:?} is {content:?}, and was {:?}", model.content);
                    self.violation.get_or_insert(why);
                }
            }
            let wrong = match model.state {
                SnapshotState::Exists => there != in_sync,
                SnapshotState::Deleted => !there.is_empty(),
                SnapshotState::Taking | SnapshotState::Deleting => there != in_sync && !there.is_empty(),
            };
            if wrong {
                let why = format!("snapshot {id} ({:?}) is on {there:?} of {in_sync:?}", model.state);
                self.violation.get_or_insert(why);
            }
        }
    }
}

/// Returns the operations that make the snapshots of the in-sync replicas the same; the last one is performed first.
fn settle(has: &BTreeMap<u8, Vec<(u64, bool)>>) -> Vec<(VoterId, SnapshotOp)> {
    if is_active(Bug::SnapshotsUnsettled) {
        return Vec::new();
    }
    let all = || has.iter().flat_map(|(voter, list)| list.iter().map(|(id, named)| (VoterId(*voter), *id, *named)));
    let is_named = |id: u64| all().any(|(_, other, named)| other == id && named);
    let pending = all().filter(|(_, _, named)| !named);
    pending
        .map(|(voter, id, _)| (voter, if is_named(id) { SnapshotOp::Name(id) } else { SnapshotOp::Remove(id) }))
        .collect()
}
