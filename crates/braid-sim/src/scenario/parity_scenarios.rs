//! Scenarios of arrays with parity: a crash together with losses, while stripes are written through the journal.

use braid_format::{Label, MemberEntry, MemberState};

use super::catalog::Scenario;
use super::mirror_scenarios::{act, afterwards, draw_load, soon, work};
use crate::acts::{Act, BetweenLives, PlannedEnd, Step, Wait};
use crate::copies::label_on;
use crate::disk::Survival;
use crate::mirrors::Mirror;
use crate::rng::Rng;
use crate::workload::ClientLoad;
use crate::world::{Crash, World};

/// The scenarios.
pub const SCENARIOS: [Scenario; 8] = [
    Scenario::StripesTorn,
    Scenario::StripesInTurn,
    Scenario::StripesTornTwice,
    Scenario::StripesOfNewMembers,
    Scenario::StripesDegraded,
    Scenario::StripesRepaired,
    Scenario::StripesBeyondTolerance,
    Scenario::StripesReadOn,
];

/// Scenarios of mirrors that also suit arrays with parity: they never leave a single member.
pub const OF_MIRRORS: [Scenario; 8] = [
    Scenario::SplitBrain,
    Scenario::Checking,
    Scenario::Clearing,
    Scenario::CutPromotion,
    Scenario::EarlyReturn,
    Scenario::Growing,
    Scenario::HalfCleared,
    Scenario::OldCopy,
];

/// Returns all scenarios of arrays with parity.
pub fn all() -> impl Iterator<Item = Scenario> {
    SCENARIOS
        .into_iter()
        .chain(OF_MIRRORS)
        .chain(Scenario::OF_JOURNAL)
        .chain([Scenario::StripesWidened, Scenario::StripesFullFileSystem])
}

/// Draws any of these, more often those that rarely show what they are about.
pub fn any(rng: &mut Rng) -> Scenario {
    const OFTEN: [Scenario; 3] = [Scenario::StripesTorn, Scenario::StripesInTurn, Scenario::StripesTornTwice];
    match rng.below(8) {
        0 | 1 => *rng.pick(&OF_MIRRORS),
        2..=4 => *rng.pick(&OFTEN),
        _ => *rng.pick(&SCENARIOS),
    }
}

/// Draws partial and full-stripe writes, on a few stripes or on many.
pub(super) fn writers(rng: &mut Rng, requests: u64) -> (ClientLoad, Option<(u64, u64)>) {
    let of = ClientLoad {
        clients: rng.between(1, 3),
        requests,
        flushes: rng.coin(),
        reads: rng.below(4) == 0,
        think_ns_max: *rng.pick(&[1_000, 20_000, 100_000, 400_000]),
        blocks_max: *rng.pick(&[1, 4, 16, 40]),
        stripes: *rng.pick(&[0, 300_000, 800_000]),
        fua: *rng.pick(&[None, Some(0), Some(400_000), Some(1_000_000)]),
        ..draw_load(rng, requests)
    };
    let area = if rng.below(3) > 0 { Some((0, *rng.pick(&[4, 12, 32]))) } else { None };
    (of, area)
}

/// Crashes while stripes are logged or written in place.
pub(super) fn among_stripes(rng: &mut Rng, nth: u64) -> PlannedEnd {
    let moment = *rng.pick(&["logging", "logging", "placing"]);
    let nth = *rng.pick(&[nth, 4 * nth]);
    soon(rng, moment, nth, &[1, 30_000, 200_000], 3)
}

/// Power and members are lost while stripes are written.
pub fn torn(rng: &mut Rng) -> Vec<Act> {
    let requests = *rng.pick(&[20, 40, 80]);
    let (of, area) = writers(rng, requests);
    let mut steps = vec![Step::Work(of, area, Wait::Ended)];
    let doom = if rng.below(4) == 0 {
        // All data is written in place and its regions are clean: only the journal still describes these stripes.
        steps.extend([Step::AwaitClean, Step::Rest(u64::MAX)]);
        soon(rng, "nothing more to do", 1, &[1, 300_000], 3)
    } else {
        steps.push(Step::Rest(1_000_000));
        among_stripes(rng, 30)
    };
    let after: &[BetweenLives] = if rng.below(4) > 0 { &[BetweenLives::LoseSome] } else { &[] };
    let (again, area) = writers(rng, 10);
    let mut then = vec![Step::ReadAll];
    if rng.below(3) == 0 {
        then.extend([Step::Overwrite, Step::ReadAll]);
    }
    if rng.coin() {
        then.push(Step::Work(again, area, Wait::Ended));
    }
    let mut acts = vec![act(steps, doom, after)];
    match rng.below(4) {
        0 => acts.push(act(then, PlannedEnd::Clean, &[])),
        1 => {
            // The lost members return, and are resynced.
            let back = vec![Step::Back, Step::AwaitWhole, Step::ReadAll];
            acts.extend([act(then, PlannedEnd::Clean, &[BetweenLives::FindAll]), act(back, PlannedEnd::Clean, &[])]);
        }
        _ => {
            let doom = afterwards(rng, &mut then);
            let last = vec![Step::ReadAll];
            acts.extend([act(then, doom, &[BetweenLives::LoseSome]), act(last, PlannedEnd::Clean, &[])]);
        }
    }
    acts
}

/// The same stripes are written over and over, one request after the other, so that the oracle expects exactly one
/// content. Writes are partial or full-stripe, with or without FUA: the journal has marks and logged data of the same
/// stripes.
pub fn in_turn(rng: &mut Rng) -> Vec<Act> {
    let (of, _) = writers(rng, 40);
    let of = ClientLoad { clients: 1, reads: false, think_ns_max: *rng.pick(&[400_000, 2_000_000]), ..of };
    let (of, doom, loses) = match rng.below(3) {
        // Full-stripe writes, marked over logged ones: ignoring the log would lose durable data.
        0 => {
            let doom = soon(rng, "placing", 100, &[1, 30_000], 4);
            (ClientLoad { stripes: 900_000, fua: Some(500_000), flushes: false, ..of }, doom, rng.coin())
        }
        // Partial writes of stripes that are only marked.
        1 => {
            let doom = soon(rng, "placing", 60, &[1, 200_000], 3);
            (ClientLoad { stripes: 500_000, fua: Some(0), flushes: false, blocks_max: 1, ..of }, doom, true)
        }
        // Full-stripe writes and flushes.
        _ => {
            let moment = *rng.pick(&["logging", "placing"]);
            let doom = soon(rng, moment, 60, &[1, 30_000, 400_000], 4);
            (ClientLoad { stripes: 900_000, fua: Some(0), flushes: true, ..of }, doom, rng.coin())
        }
    };
    let after: &[BetweenLives] = if loses { &[BetweenLives::LoseSome] } else { &[] };
    let steps = vec![Step::Work(of, Some((0, 12)), Wait::Ended)];
    let mut then = vec![Step::ReadAll];
    if rng.below(3) > 0 {
        // Partial writes of unreadable stripes are refused.
        let parts = ClientLoad { stripes: 0, blocks_max: 1, ..writers(rng, 10).0 };
        then.extend([Step::Work(parts, Some((0, 12)), Wait::Ended), Step::ReadAll]);
    }
    if rng.coin() {
        then.push(Step::Overwrite);
    }
    let doom_then = afterwards(rng, &mut then);
    vec![act(steps, doom, after), act(then, doom_then, &[]), act(vec![Step::ReadAll], PlannedEnd::Clean, &[])]
}

/// Power is lost while stripes are written, another crash interrupts the recovery, and members are lost then.
pub fn torn_twice(rng: &mut Rng) -> Vec<Act> {
    // Few batches, so that the second crash hits the last ones.
    let requests = *rng.pick(&[2, 4, 4, 10, 30]);
    let (of, area) = writers(rng, requests);
    let steps = vec![Step::Work(of, area, Wait::Ended), Step::Rest(1_000_000)];
    let doom = match rng.coin() {
        true => soon(rng, "logging", requests, &[1, 30_000], 3),
        false => among_stripes(rng, requests),
    };
    let after: &[BetweenLives] = if rng.below(4) == 0 { &[BetweenLives::LoseSome] } else { &[] };
    let mut acts = vec![act(steps, doom, after)];
    let again = |rng: &mut Rng| match rng.below(8) {
        0 => PlannedEnd::AtStep(rng.between(1, 100), if rng.coin() { Crash::Power } else { Crash::Kill }),
        1 | 2 => soon(rng, "writing a head", 5, &[1, 100_000, 1_000_000], 3),
        _ => {
            let nth = *rng.pick(&[10, 20, 60]);
            soon(rng, "recovering", nth, &[1, 30_000, 200_000], 3)
        }
    };
    if rng.below(4) == 0 {
        acts.push(act(vec![Step::ReadAll], again(rng), &[]));
    }
    acts.push(act(vec![Step::ReadAll], again(rng), &[BetweenLives::LoseSome]));
    if rng.coin() {
        acts.push(act(vec![Step::ReadAll], PlannedEnd::Clean, &[BetweenLives::FindAll]));
        acts.push(act(vec![Step::Back, Step::AwaitWhole], PlannedEnd::Clean, &[]));
    }
    acts.push(act(vec![Step::ReadAll, work(rng, 5)], PlannedEnd::Clean, &[]));
    acts
}

/// A member is lost and rebuilt while the journal is in use, and then others are lost.
pub fn of_new_members(rng: &mut Rng) -> Vec<Act> {
    let some = *rng.pick(&[1, 5, 20]);
    let (before, area) = writers(rng, some);
    let before = ClientLoad { fua: *rng.pick(&[None, Some(1_000_000), Some(1_000_000)]), ..before };
    let unflushed = |of: ClientLoad| Step::Work(ClientLoad { flushes: false, ..of }, area, Wait::Ended);
    let mut steps = vec![unflushed(before), Step::Fail];
    if rng.coin() {
        steps.push(unflushed(ClientLoad { requests: *rng.pick(&[2, 10]), ..before }));
    }
    if rng.below(3) == 0 {
        let (load, area) = writers(rng, 60);
        steps.push(Step::Work(ClientLoad { clients: 2, ..load }, area, Wait::No));
    }
    steps.push(if rng.below(4) > 0 { Step::Renew } else { Step::Return });
    steps.push(Step::AwaitWhole);
    if rng.below(4) > 0 {
        steps.push(unflushed(ClientLoad { requests: *rng.pick(&[1, 4, 20]), ..before }));
    }
    let doom = match rng.below(4) {
        0 => among_stripes(rng, 40),
        1 => soon(rng, "in sync", 1, &[1, 100_000, 1_000_000], 3),
        _ => {
            steps.push(Step::Rest(u64::MAX));
            soon(rng, "nothing more to do", 1, &[1, 300_000], 3)
        }
    };
    vec![act(steps, doom, &[BetweenLives::LoseSome]), act(vec![Step::ReadAll, work(rng, 10)], PlannedEnd::Clean, &[])]
}

/// Stripes are written while members are missing, and a crash comes; with two parities another member may be lost with
/// it.
pub fn degraded(rng: &mut Rng) -> Vec<Act> {
    let mut steps = Vec::new();
    if rng.coin() {
        let (of, area) = writers(rng, 10);
        steps.push(Step::Work(of, area, Wait::Ended));
    }
    let requests = *rng.pick(&[10, 40]);
    let (of, area) = writers(rng, requests);
    let of = if rng.coin() { ClientLoad { stripes: 800_000, fua: Some(0), flushes: false, ..of } } else { of };
    match rng.below(3) {
        // The member is lost during the writes.
        0 => steps.extend([Step::Work(of, area, Wait::No), Step::Rest(rng.below(500_000)), Step::Fail]),
        1 => steps.extend([Step::Work(of, area, Wait::No), Step::Rest(rng.below(500_000)), Step::Pull]),
        _ => steps.extend([Step::Fail, Step::Work(of, area, Wait::No)]),
    }
    steps.push(Step::Work(ClientLoad { requests: 10, ..of }, area, Wait::Ended));
    steps.push(Step::Rest(u64::MAX));
    let doom = match rng.below(3) {
        0 => soon(rng, "dropped", 1, &[1, 100_000, 400_000], 2),
        1 => soon(rng, "nothing more to do", 1, &[1, 300_000], 2),
        _ => among_stripes(rng, 40),
    };
    let after: &[BetweenLives] = if rng.coin() { &[BetweenLives::LoseSome] } else { &[] };
    let mut then = vec![Step::ReadAll, work(rng, 5)];
    if rng.coin() {
        then.extend([Step::Back, Step::AwaitWhole, Step::ReadAll]);
    }
    vec![act(steps, doom, after), act(then, PlannedEnd::Clean, &[])]
}

/// Full-stripe writes over durable data are in flight when power and members are lost: the stripes are unreadable
/// until they are written as a whole again.
pub fn repaired(rng: &mut Rng) -> Vec<Act> {
    let requests = *rng.pick(&[10, 40]);
    let (of, area) = writers(rng, requests);
    let of = ClientLoad { stripes: 1_000_000, fua: Some(0), flushes: false, reads: false, ..of };
    let steps = vec![Step::WriteAll, Step::Work(of, area, Wait::Ended), Step::Rest(1_000_000)];
    let doom = soon(rng, "placing", 100, &[1, 30_000], 4);
    let mut then = vec![Step::ReadAll, Step::WriteParts, Step::ReadAll];
    if rng.coin() {
        then.extend([Step::Overwrite, Step::WriteParts, Step::ReadAll]);
    }
    let doom_then = afterwards(rng, &mut then);
    let again = vec![Step::WriteParts, Step::ReadAll, Step::Overwrite, Step::ReadAll];
    let after: &[BetweenLives] = if rng.below(4) == 0 { &[BetweenLives::FindAll] } else { &[] };
    vec![act(steps, doom, &[BetweenLives::LoseSome]), act(then, doom_then, after), act(again, PlannedEnd::Clean, &[])]
}

/// More members are lost than the array tolerates, during writes or with a crash: no reply may be wrong, and when the
/// members are back all guaranteed data is readable.
pub fn beyond(rng: &mut Rng) -> Vec<Act> {
    let requests = *rng.pick(&[10, 40, 80]);
    let (of, area) = writers(rng, requests);
    let mut steps = vec![Step::Work(of, area, Wait::No), Step::Rest(rng.below(3_000_000))];
    let mut acts = Vec::new();
    if rng.below(3) > 0 {
        steps.extend([Step::PullMany, Step::Work(ClientLoad { requests: 10, flushes: true, ..of }, area, Wait::Ended)]);
        steps.push(Step::ReadAll);
        let doom = afterwards(rng, &mut steps);
        acts.push(act(steps, doom, &[]));
    } else {
        steps.push(Step::Rest(1_000_000));
        let doom = among_stripes(rng, 30);
        acts.extend([
            act(steps, doom, &[BetweenLives::LoseMany]),
            act(vec![Step::ReadAll], PlannedEnd::Clean, &[BetweenLives::FindAll]),
        ]);
    }
    let mut again = vec![Step::ReadAll];
    if rng.coin() {
        again.push(Step::Work(of, area, Wait::Ended));
    }
    let doom = afterwards(rng, &mut again);
    acts.extend([act(again, doom, &[]), act(vec![Step::ReadAll], PlannedEnd::Clean, &[])]);
    acts
}

/// A member is dropped during long reads, and misses the writes that follow.
pub fn read_on(rng: &mut Rng) -> Vec<Act> {
    let mut steps = Vec::new();
    if rng.coin() {
        steps.push(if rng.coin() { Step::WriteAll } else { work(rng, 10) });
    }
    let of =
        ClientLoad { clients: 3, think_ns_max: 20_000, blocks_max: 4, hot: 0, flushes: false, ..draw_load(rng, 60) };
    for _ in 0..rng.between(1, 3) {
        steps.extend([Step::ReadBeside(rng.between(2, 6) as u32), Step::Rest(rng.below(300_000)), Step::Fail]);
        steps.extend([Step::Work(of, None, Wait::Ended), Step::ReadAll, Step::Back, Step::AwaitWhole]);
    }
    let doom = afterwards(rng, &mut steps);
    vec![act(steps, doom, &[]), act(vec![Step::ReadAll], PlannedEnd::Clean, &[])]
}

/// The array takes new members, with crashes during its label writes; then its journal moves to a disk of its own, and
/// the array takes more members.
pub fn widened(rng: &mut Rng) -> Vec<Act> {
    let (of, area) = writers(rng, 40);
    let load = Step::Work(ClientLoad { clients: 2, ..of }, area, Wait::No);
    let cut = |rng: &mut Rng, steps: &mut Vec<Step>| match rng.below(4) {
        0 => afterwards(rng, steps),
        _ => soon(rng, "writing a label", 20, &[1, 100_000, 300_000], 2),
    };
    let mut first = vec![work(rng, 10), load, Step::GrowByDisks, work(rng, 10)];
    let doom_first = cut(rng, &mut first);
    let mut then = vec![Step::ReadAll, Step::JournalOn, load, work(rng, 10)];
    let doom_then = if rng.coin() { among_stripes(rng, 30) } else { afterwards(rng, &mut then) };
    let after: &[BetweenLives] = if rng.coin() { &[BetweenLives::LoseSome] } else { &[] };
    let mut again = vec![Step::ReadAll, load, Step::GrowByDisks, work(rng, 10)];
    let doom_again = cut(rng, &mut again);
    let after_again: &[BetweenLives] =
        if rng.coin() { &[BetweenLives::FindAll, BetweenLives::LoseSome] } else { &[BetweenLives::FindAll] };
    vec![
        act(first, doom_first, &[]),
        act(then, doom_then, after),
        act(again, doom_again, after_again),
        act(vec![Step::ReadAll, work(rng, 10)], PlannedEnd::Clean, &[BetweenLives::FindAll]),
        act(vec![Step::Back, Step::AwaitWhole, Step::ReadAll], PlannedEnd::Clean, &[]),
    ]
}

/// The file system that holds the members becomes full during unflushed full-stripe writes, and has space again in the
/// next life: acknowledged data is readable.
pub fn full(rng: &mut Rng) -> Vec<Act> {
    let requests = *rng.pick(&[10, 40, 80]);
    let (of, area) = writers(rng, requests);
    let of = ClientLoad { stripes: *rng.pick(&[500_000, 900_000, 1_000_000]), fua: Some(0), flushes: false, ..of };
    let mut steps = Vec::new();
    match rng.below(3) {
        0 => steps.extend([Step::Work(of, area, Wait::No), Step::Rest(rng.below(2_000_000))]),
        _ => steps.push(Step::Work(of, area, Wait::Ended)),
    }
    steps.extend([Step::FillUp, Step::Work(ClientLoad { requests: 20, clients: 2, ..of }, None, Wait::Ended)]);
    steps.push(Step::Rest(u64::MAX));
    let doom = match rng.below(4) {
        0 => soon(rng, "dropped", 1, &[1, 100_000, 400_000], 1),
        1 => soon(rng, "retiring marks", 1, &[1, 100_000, 400_000], 1),
        2 => among_stripes(rng, 40),
        _ => soon(rng, "nothing more to do", 1, &[1, 300_000], 1),
    };
    let mut then = vec![Step::ReadAll, work(rng, 10)];
    if rng.coin() {
        then.extend([Step::Back, Step::AwaitWhole, Step::ReadAll]);
    }
    let doom_then = afterwards(rng, &mut then);
    vec![act(steps, doom, &[]), act(then, doom_then, &[]), act(vec![Step::ReadAll], PlannedEnd::Clean, &[])]
}

impl Mirror {
    /// Loses one member more than the array tolerates.
    pub(super) fn lose_many(&mut self, world: &mut World, rng: &mut Rng) {
        if self.number.is_none() {
            return;
        }
        let mut lost = self.disks.clone();
        rng.shuffle(&mut lost);
        lost.truncate(usize::from(self.spec.level.parity()) + 1);
        for disk in lost {
            world.note(format_args!("disk {disk} is lost"));
            world.counters.add("fault", "more lost with a crash than may be");
            world.disks[disk].cut_power(Survival::All, rng);
            world.disks[disk].gone = true;
            self.missing.insert(disk);
        }
        self.healthy = None;
    }

    /// Loses at most as many members as the array tolerates, so that the remaining ones can start by their own labels.
    pub(super) fn lose_some(&mut self, world: &mut World, rng: &mut Rng) {
        let labels = self.disks.iter().filter_map(|disk| Some((*disk, label_on(world, *disk)?)));
        let own: Vec<_> = labels.filter(|(_, label)| Some(label.array.uuid) == self.uuid).collect();
        if self.number.is_none() || own.len() < self.disks.len() {
            return;
        }
        // Returns those of these disks that the newest of their labels calls in sync.
        let called = |left: &[&(usize, Label)]| {
            let newest = left.iter().max_by_key(|(_, label)| label.array.order());
            let members = newest.map_or(&[][..], |(_, label)| &label.array.members);
            let is = |members: &[MemberEntry], id| {
                members.iter().any(|m| m.id == Some(id) && m.state == MemberState::InSync)
            };
            // After an interrupted promotion the member's own label may not call it in sync yet.
            let both = |label: &Label| is(members, label.member.id) && is(&label.array.members, label.member.id);
            left.iter().filter(|(_, label)| both(label)).map(|(disk, _)| *disk).collect::<Vec<usize>>()
        };
        // The newest label of all must agree: a dropped member's own label calls it in sync.
        let by_all = called(&own.iter().collect::<Vec<_>>());
        let in_sync = |left: &[&(usize, Label)]| {
            called(left).into_iter().filter(|disk| by_all.contains(disk)).collect::<Vec<usize>>()
        };
        let most = usize::from(self.spec.level.parity());
        let needed = self.disks.len() - most;
        let mut order: Vec<&(usize, Label)> = own.iter().collect();
        rng.shuffle(&mut order);
        let wanted = rng.between(1, most as u64) as usize;
        let is_enough = |lost: &usize| in_sync(&order[*lost..]).len() >= needed;
        let Some(lost) = (1..=wanted).rev().find(is_enough) else { return };
        self.missing.clear();
        for (disk, _) in &order[..lost] {
            world.note(format_args!("disk {disk} is lost"));
            world.counters.add("fault", "lost with a crash");
            world.disks[*disk].cut_power(Survival::All, rng);
            world.disks[*disk].gone = true;
            self.missing.insert(*disk);
        }
        self.victims = vec![order[0].0];
        // No other disk fails in these runs.
        self.healthy = in_sync(&order[lost..]).first().copied();
    }
}
