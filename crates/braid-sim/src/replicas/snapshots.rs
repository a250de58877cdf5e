//! Snapshots: taken on all replicas while requests wait, named on all, deleted on all; and brought to replicas that come back.
//!
//! What becomes of one follows from what the replicas in sync have: one that has its name on any gets it on all, one that has it nowhere
//! goes. Whoever begins to serve looks first. Judged is that each is one moment, on every replica that has it by name, and that what
//! was acknowledged is there on all in sync: named, or gone.

use std::collections::BTreeMap;

use braid_engine::replica::{Planted, VoterId, Voters, Wanted, planted};

use super::controller::{For, Phase};
use super::nature::SECOND;
use super::net::{Io, OfSnapshot};
use super::rollback::Rollback;
use super::serving::{Found, Serving};
use super::world::World;

/// What is known of one, whatever its replicas say.
#[derive(Clone, Debug)]
pub struct Known {
    /// What the volume was in its moment.
    content: Vec<u64>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It was to be taken; on all, or on none.
    Taking,
    /// It was acknowledged.
    There,
    /// It was to be deleted.
    Going,
    /// That was acknowledged.
    Gone,
}

/// What is done on all replicas that are in sync.
#[derive(Clone, Debug)]
enum Stage {
    /// What is under way ends.
    Hold,
    /// Each takes its own.
    Take,
    /// As one of them has failed meanwhile, the others remove theirs.
    GiveUp,
    Name,
    Hide,
    Remove,
    /// What is there.
    List(BTreeMap<u8, Vec<(u64, bool)>>),
    /// It is brought in order.
    Settle(Vec<(VoterId, OfSnapshot)>),
}

/// One such change.
pub struct Change {
    number: u64,
    id: u64,
    stage: Stage,
    /// Who was in sync when it began.
    of: Voters,
    asked: Voters,
    done: Voters,
}

/// Snapshots that a replica lacks are brought, oldest first, before it takes any write.
pub struct Bringing {
    pub number: u64,
    source: VoterId,
    pub target: VoterId,
    has: BTreeMap<u8, Vec<(u64, bool)>>,
    /// What is left to be asked, one after the other.
    steps: Option<Vec<Step>>,
    waits: bool,
    /// What was read and is to be written.
    value: Option<u64>,
    failed: bool,
    done: bool,
}

/// One step of bringing, the next one last in its list.
#[derive(Clone, Copy, Debug)]
enum Step {
    Copy(u64, u16),
    Flush,
    Do(OfSnapshot),
}

impl Change {
    fn begin(number: u64, id: u64, stage: Stage, of: Voters) -> Change {
        Change { number, id, stage, of, asked: Voters::NONE, done: Voters::NONE }
    }

    fn turn(&mut self, stage: Stage) {
        (self.stage, self.asked, self.done) = (stage, Voters::NONE, Voters::NONE);
    }

    /// Whether requests are not begun.
    pub fn holds(&self) -> bool {
        matches!(self.stage, Stage::Hold | Stage::Take) && !planted(Planted::SnapshotUnheld)
    }
}

impl Bringing {
    fn new(number: u64, source: VoterId, target: VoterId) -> Bringing {
        let has = BTreeMap::new();
        Bringing { number, source, target, has, steps: None, waits: false, value: None, failed: false, done: false }
    }

    /// Who gets writes too early.
    pub fn targets(&self) -> Voters {
        if planted(Planted::WrittenBeforeSnapshots) { [self.target].into_iter().collect() } else { Voters::NONE }
    }

    pub fn fail(&mut self, voter: VoterId) {
        self.failed |= voter == self.source || voter == self.target;
    }

    /// What is on the target and not on the source goes; what it lacks is brought.
    fn plan(&self, blocks: u16) -> Vec<Step> {
        let of = |voter: VoterId| self.has.get(&voter.0).cloned().unwrap_or_default();
        let (there, here) = (of(self.source), of(self.target));
        let mut steps = Vec::new();
        if !planted(Planted::DeletedSnapshotKept) {
            let stays = |(id, named): &&(u64, bool)| *named && there.contains(&(*id, true));
            steps.extend(here.iter().filter(|one| !stays(one)).map(|(id, _)| Step::Do(OfSnapshot::Remove(*id))));
        }
        let lacks = |(id, named): &&(u64, bool)| *named && !here.contains(&(*id, true));
        for (id, _) in there.iter().filter(lacks).filter(|_| !planted(Planted::SnapshotNotBrought)) {
            steps.extend((0..blocks).map(|block| Step::Copy(*id, block)));
            steps.extend([Step::Flush, Step::Do(OfSnapshot::Take(*id)), Step::Do(OfSnapshot::Name(*id))]);
        }
        steps.reverse();
        steps
    }
}

impl World {
    /// Goes on with what is done to snapshots, or begins something.
    pub fn advance_snapshots(&mut self, c: usize) {
        while self.advance_change(c) {}
    }

    /// Whether it has come further.
    fn advance_change(&mut self, c: usize) -> bool {
        let now = self.clock(c);
        let (number, is_calm) = (self.number(), self.now_ns < self.nature.faults_ns);
        let Some(run) = &mut self.controllers[c].run else { return false };
        let has_lease = |serving: &Serving| run.lease.holds(serving.membership.lease_sets(), now);
        let Phase::Serving(serving) = &mut run.phase else { return false };
        let rests = serving.membership.wanted() == Wanted::Nothing;
        let may_answer = rests && has_lease(serving) && serving.membership.may_answer();
        let in_sync = serving.membership.in_sync();
        let is_held = serving.is_held();
        let Some(change) = &mut serving.change else {
            if !rests || serving.fill.is_some() || serving.bringing.is_some() || serving.rollback.is_some() {
                return false;
            }
            if serving.unsettled {
                serving.change = Some(Change::begin(number, 0, Stage::List(BTreeMap::new()), in_sync));
                return true;
            }
            if !self.nature.snapshots || !is_calm || serving.stopping || now < serving.snapshot_due_ns {
                return false;
            }
            serving.snapshot_due_ns = now + self.of_snapshots.between(1, 20) * SECOND;
            return self.begin_change(c, number, in_sync);
        };
        let everybody = in_sync.without(change.done).is_empty();
        let first = planted(Planted::SnapshotOnOne) && !change.done.is_empty();
        let ask = match &change.stage {
            Stage::Hold if serving.stopping => {
                serving.change = None;
                return true;
            }
            Stage::Hold if is_held || planted(Planted::SnapshotUnheld) => {
                let (id, source) = (change.id, in_sync.iter().next().unwrap_or(VoterId(0)));
                change.of = in_sync;
                change.turn(Stage::Take);
                let store = &self.nodes[usize::from(source.0)].store;
                let content = (0..self.nature.blocks).map(|block| store.read(block)).collect();
                self.history.snapshots.insert(id, Known { content, state: State::Taking });
                return true;
            }
            Stage::Hold => return false,
            Stage::Take if everybody || first => {
                // Who has failed is in sync by the last vote, and may not have it.
                let all = change.of == in_sync;
                change.turn(if all { Stage::Name } else { Stage::GiveUp });
                return true;
            }
            Stage::Take => OfSnapshot::Take(change.id),
            Stage::GiveUp if everybody => return self.end_change(c, "given up", None),
            Stage::GiveUp | Stage::Remove if !everybody => OfSnapshot::Remove(change.id),
            Stage::Name if (everybody || first) && may_answer => {
                return self.end_change(c, "taken", Some(State::There));
            }
            Stage::Name => OfSnapshot::Name(change.id),
            Stage::Hide if everybody && may_answer => {
                change.turn(Stage::Remove);
                return true;
            }
            Stage::Hide => OfSnapshot::Hide(change.id),
            Stage::Remove if may_answer => return self.end_change(c, "deleted", Some(State::Gone)),
            Stage::GiveUp | Stage::Remove => return false,
            Stage::List(_) | Stage::Settle(_) if in_sync != change.of => {
                // It is looked at anew.
                serving.change = None;
                return true;
            }
            Stage::List(has) if everybody => {
                let steps = settle(has);
                change.turn(Stage::Settle(steps));
                return true;
            }
            Stage::List(_) => OfSnapshot::List,
            Stage::Settle(steps) => {
                let steps = steps.clone();
                let asked = !change.asked.is_empty();
                return self.settle_next(c, steps, asked);
            }
        };
        let number = change.number;
        let new = in_sync.without(change.asked);
        change.asked = change.asked.or(new);
        new.iter().for_each(|voter| self.ask_io(c, voter, Io::Snapshot(ask), For::Snapshot(number)));
        false
    }

    /// The next step of bringing snapshots in order; each is asked when the one before is done.
    fn settle_next(&mut self, c: usize, mut steps: Vec<(VoterId, OfSnapshot)>, asked: bool) -> bool {
        let Some(serving) = self.controllers[c].serving() else { return false };
        let Some(change) = &mut serving.change else { return false };
        if asked {
            return false;
        }
        let Some((voter, what)) = steps.pop() else {
            (serving.change, serving.unsettled) = (None, false);
            self.counters.add("snapshots", "settled", 1);
            return true;
        };
        let number = change.number;
        change.asked = [voter].into_iter().collect();
        change.stage = Stage::Settle(steps);
        self.counters.add("snapshots", "brought in order", 1);
        self.ask_io(c, voter, Io::Snapshot(what), For::Snapshot(number));
        false
    }

    fn begin_change(&mut self, c: usize, number: u64, in_sync: Voters) -> bool {
        let there: Vec<u64> =
            self.history.snapshots.iter().filter(|(_, known)| known.state == State::There).map(|(id, _)| *id).collect();
        if !there.is_empty() && in_sync.count() > 1 && self.of_snapshots.below(3) == 0 {
            let id = *self.of_snapshots.pick(&there);
            let keep = in_sync.iter().nth(self.of_snapshots.index(in_sync.count())).unwrap_or(VoterId(0));
            let rollback = Rollback { id, keep, mark: number };
            self.event(format_args!("{c} is to roll back: {rollback:?}"));
            if let Some(serving) = self.controllers[c].serving() {
                serving.rollback = Some(rollback);
            }
            return false;
        }
        let deletes = !there.is_empty() && (there.len() > 2 || self.of_snapshots.below(3) == 0);
        let (id, stage) = if deletes { (*self.of_snapshots.pick(&there), Stage::Hide) } else { (number, Stage::Hold) };
        if deletes && let Some(known) = self.history.snapshots.get_mut(&id) {
            known.state = State::Going;
        }
        self.event(format_args!("{c} begins snapshot {id}: {stage:?}"));
        if let Some(serving) = self.controllers[c].serving() {
            serving.change = Some(Change::begin(number, id, stage, in_sync));
        }
        true
    }

    fn end_change(&mut self, c: usize, what: &'static str, state: Option<State>) -> bool {
        let Some(serving) = self.controllers[c].serving() else { return false };
        let Some(change) = serving.change.take() else { return false };
        self.event(format_args!("{c} has {what} snapshot {}", change.id));
        self.counters.add("snapshots", what, 1);
        if let (Some(state), Some(known)) = (state, self.history.snapshots.get_mut(&change.id)) {
            known.state = state;
        }
        true
    }

    /// A replica has done what a change asked of it.
    pub fn snapshot_done(&mut self, c: usize, voter: VoterId, number: u64, found: Found) {
        let Some(serving) = self.controllers[c].serving() else { return };
        let Some(change) = serving.change.as_mut().filter(|change| change.number == number) else { return };
        match (&mut change.stage, &found.io) {
            (Stage::List(has), Io::Snapshot(OfSnapshot::List)) => drop(has.insert(voter.0, found.listed)),
            (Stage::Settle(_), _) => change.asked = Voters::NONE,
            (Stage::Take, Io::Snapshot(OfSnapshot::Take(_)))
            | (Stage::GiveUp | Stage::Remove, Io::Snapshot(OfSnapshot::Remove(_)))
            | (Stage::Name, Io::Snapshot(OfSnapshot::Name(_)))
            | (Stage::Hide, Io::Snapshot(OfSnapshot::Hide(_))) => {}
            // Of a stage before.
            _ => return,
        }
        change.done.insert(voter);
    }

    /// A replica that is back gets the snapshots that it lacks, before it is filled. True: it has them.
    pub fn bring(&mut self, c: usize, source: VoterId, target: VoterId) -> bool {
        let number = self.number();
        let blocks = self.nature.blocks;
        let Some(serving) = self.controllers[c].serving() else { return false };
        let Some(bringing) = &mut serving.bringing else {
            serving.bringing = Some(Bringing::new(number, source, target));
            self.event(format_args!("{c} brings {target:?} what it lacks of {source:?}"));
            for voter in [source, target] {
                self.ask_io(c, voter, Io::Snapshot(OfSnapshot::List), For::Bringing(number));
            }
            return false;
        };
        if bringing.failed || !serving.membership.in_sync().has(bringing.source) || bringing.target != target {
            serving.bringing = None;
            self.counters.add("snapshots", "bringing failed", 1);
            return false;
        }
        if bringing.done {
            serving.bringing = None;
            return true;
        }
        if bringing.has.len() < 2 || bringing.waits {
            return false;
        }
        if bringing.steps.is_none() {
            let steps = bringing.plan(blocks);
            let changes_data = steps.iter().any(|step| matches!(step, Step::Copy(..)));
            bringing.steps = Some(steps);
            if changes_data && !planted(Planted::CaughtUpFromSnapshot) {
                // It may have had later writes than the snapshot, which are not among what it missed.
                serving.absent.remove(&target.0);
            }
        }
        let (source, target, number) = (bringing.source, bringing.target, bringing.number);
        let Some(step) = bringing.steps.as_ref().and_then(|steps| steps.last().copied()) else {
            bringing.done = true;
            return self.bring(c, source, target);
        };
        bringing.waits = true;
        let (whom, io) = match (step, bringing.value.take()) {
            (Step::Copy(_, block), Some(value)) => (target, Io::Write(block, value)),
            (Step::Copy(id, block), None) => (source, Io::Snapshot(OfSnapshot::Read(id, block))),
            (Step::Flush, _) => (target, Io::Flush),
            (Step::Do(what), _) => {
                if matches!(what, OfSnapshot::Name(_)) {
                    self.counters.add("snapshots", "brought", 1);
                }
                (target, Io::Snapshot(what))
            }
        };
        self.ask_io(c, whom, io, For::Bringing(number));
        false
    }

    /// One of its steps is done.
    pub fn brought(&mut self, c: usize, voter: VoterId, number: u64, found: Found) {
        let Some(serving) = self.controllers[c].serving() else { return };
        let Some(bringing) = serving.bringing.as_mut().filter(|bringing| bringing.number == number) else { return };
        match found.io {
            Io::Snapshot(OfSnapshot::List) => drop(bringing.has.insert(voter.0, found.listed)),
            Io::Snapshot(OfSnapshot::Read(..)) => (bringing.value, bringing.waits) = (Some(found.value), false),
            _ => {
                bringing.waits = false;
                if let Some(steps) = &mut bringing.steps {
                    steps.pop();
                }
            }
        }
    }

    /// Each snapshot is one moment, and what was acknowledged of it is so on all of these.
    pub fn compare_snapshots(&mut self, in_sync: Voters) {
        for (id, known) in &self.history.snapshots {
            let mut there = Voters::NONE;
            for voter in in_sync.iter() {
                let Some(content) = self.nodes[usize::from(voter.0)].store.named(*id) else { continue };
                there.insert(voter);
                if content != known.content {
                    let why = format!("snapshot {id} on {voter:?} is {content:?}, and was {:?}", known.content);
                    self.violation.get_or_insert(why);
                }
            }
            let wrong = match known.state {
                State::There => there != in_sync,
                State::Gone => !there.is_empty(),
                State::Taking | State::Going => there != in_sync && !there.is_empty(),
            };
            if wrong {
                let why = format!("snapshot {id} ({:?}) is on {there:?} of {in_sync:?}", known.state);
                self.violation.get_or_insert(why);
            }
        }
    }
}

/// What is to be done, so that what the replicas in sync have is the same; the last one first.
fn settle(has: &BTreeMap<u8, Vec<(u64, bool)>>) -> Vec<(VoterId, OfSnapshot)> {
    if planted(Planted::SnapshotsUnsettled) {
        return Vec::new();
    }
    let all = || has.iter().flat_map(|(voter, list)| list.iter().map(|(id, named)| (VoterId(*voter), *id, *named)));
    let is_named = |id: u64| all().any(|(_, other, named)| other == id && named);
    let pending = all().filter(|(_, _, named)| !named);
    pending
        .map(|(voter, id, _)| (voter, if is_named(id) { OfSnapshot::Name(id) } else { OfSnapshot::Remove(id) }))
        .collect()
}
