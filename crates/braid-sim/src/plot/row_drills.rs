//! Drills of arrays with parity: a crash and losses together, while rows are on their way through the journal.

use braid_format::{Label, MemberEntry, MemberState};

use super::drills::{Act, Between, Step, Wait, act, afterwards, draw_work, soon, work};
use super::journal_drills;
use super::mirrors::Mirror;
use super::subject::Subject;
use crate::copies::label_on;
use crate::disk::Survival;
use crate::rng::Rng;
use crate::sim::Doom;
use crate::workload::Work;
use crate::world::{Crash, World};

/// What they are about.
pub const SUBJECTS: [Subject; 8] = [
    Subject::RowsTorn,
    Subject::RowsInTurn,
    Subject::RowsTornTwice,
    Subject::RowsOfNewcomers,
    Subject::RowsDegraded,
    Subject::RowsMended,
    Subject::RowsBeyond,
    Subject::RowsReadOn,
];

/// Those of mirrors that are as good for rows: where no member is all that is left.
pub const OF_MIRRORS: [Subject; 8] = [
    Subject::Apart,
    Subject::Checking,
    Subject::Clearing,
    Subject::CutPromotion,
    Subject::EarlyReturn,
    Subject::Growing,
    Subject::HalfCleared,
    Subject::OldCopy,
];

/// All that arrays with parity may be about.
pub fn all() -> impl Iterator<Item = Subject> {
    SUBJECTS
        .into_iter()
        .chain(OF_MIRRORS)
        .chain(journal_drills::SUBJECTS)
        .chain([Subject::RowsWidened, Subject::RowsFull])
}

/// Any of them: those more often that show what they are about seldom.
pub fn any(rng: &mut Rng) -> Subject {
    const OFTEN: [Subject; 3] = [Subject::RowsTorn, Subject::RowsInTurn, Subject::RowsTornTwice];
    match rng.below(8) {
        0 | 1 => *rng.pick(&OF_MIRRORS),
        2..=4 => *rng.pick(&OFTEN),
        _ => *rng.pick(&SUBJECTS),
    }
}

/// Writes of parts of rows and of whole ones, on a few rows or on many.
pub(super) fn writers(rng: &mut Rng, requests: u64) -> (Work, Option<(u64, u64)>) {
    let of = Work {
        clients: rng.between(1, 3),
        requests,
        flushes: rng.coin(),
        reads: rng.below(4) == 0,
        think_ns_max: *rng.pick(&[1_000, 20_000, 100_000, 400_000]),
        blocks_max: *rng.pick(&[1, 4, 16, 40]),
        rows: *rng.pick(&[0, 300_000, 800_000]),
        fua: *rng.pick(&[None, Some(0), Some(400_000), Some(1_000_000)]),
        ..draw_work(rng, requests)
    };
    let area = if rng.below(3) > 0 { Some((0, *rng.pick(&[4, 12, 32]))) } else { None };
    (of, area)
}

/// While rows are being logged or put in place.
pub(super) fn among_rows(rng: &mut Rng, nth: u64) -> Doom {
    let moment = *rng.pick(&["logging", "logging", "placing"]);
    let nth = *rng.pick(&[nth, 4 * nth]);
    soon(rng, moment, nth, &[1, 30_000, 200_000], 3)
}

/// Rows are on their way when the power goes, and members with it.
pub fn torn(rng: &mut Rng) -> Vec<Act> {
    let requests = *rng.pick(&[20, 40, 80]);
    let (of, area) = writers(rng, requests);
    let mut steps = vec![Step::Work(of, area, Wait::Ended)];
    let doom = if rng.below(4) == 0 {
        // All has been written, and its bits are gone: the journal alone knows of it.
        steps.extend([Step::AwaitClean, Step::Rest(u64::MAX)]);
        soon(rng, "nothing more to do", 1, &[1, 300_000], 3)
    } else {
        steps.push(Step::Rest(1_000_000));
        among_rows(rng, 30)
    };
    let after: &[Between] = if rng.below(4) > 0 { &[Between::LoseSome] } else { &[] };
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
        0 => acts.push(act(then, Doom::Clean, &[])),
        1 => {
            // Whoever was lost comes back, and catches up.
            let back = vec![Step::Back, Step::AwaitWhole, Step::ReadAll];
            acts.extend([act(then, Doom::Clean, &[Between::FindAll]), act(back, Doom::Clean, &[])]);
        }
        _ => {
            let doom = afterwards(rng, &mut then);
            let last = vec![Step::ReadAll];
            acts.extend([act(then, doom, &[Between::LoseSome]), act(last, Doom::Clean, &[])]);
        }
    }
    acts
}

/// The same rows over and over, one request after the other, so that everybody can tell what should stand there: wholly or in
/// parts, durable at once or not. What is marked and what is logged meet there.
pub fn in_turn(rng: &mut Rng) -> Vec<Act> {
    let (of, _) = writers(rng, 40);
    let of = Work { clients: 1, reads: false, think_ns_max: *rng.pick(&[400_000, 2_000_000]), ..of };
    let (of, doom, loses) = match rng.below(3) {
        // Whole rows, marked over logged ones: what was durable is lost where that is overlooked.
        0 => {
            let doom = soon(rng, "placing", 100, &[1, 30_000], 4);
            (Work { rows: 900_000, fua: Some(500_000), flushes: false, ..of }, doom, rng.coin())
        }
        // Parts of rows that are only marked.
        1 => {
            let doom = soon(rng, "placing", 60, &[1, 200_000], 3);
            (Work { rows: 500_000, fua: Some(0), flushes: false, blocks_max: 1, ..of }, doom, true)
        }
        // Whole rows, and flushes.
        _ => {
            let moment = *rng.pick(&["logging", "placing"]);
            let doom = soon(rng, moment, 60, &[1, 30_000, 400_000], 4);
            (Work { rows: 900_000, fua: Some(0), flushes: true, ..of }, doom, rng.coin())
        }
    };
    let after: &[Between] = if loses { &[Between::LoseSome] } else { &[] };
    let steps = vec![Step::Work(of, Some((0, 12)), Wait::Ended)];
    let mut then = vec![Step::ReadAll];
    if rng.below(3) > 0 {
        // Parts of rows that cannot be read are refused.
        let parts = Work { rows: 0, blocks_max: 1, ..writers(rng, 10).0 };
        then.extend([Step::Work(parts, Some((0, 12)), Wait::Ended), Step::ReadAll]);
    }
    if rng.coin() {
        then.push(Step::Overwrite);
    }
    let doom_then = afterwards(rng, &mut then);
    vec![act(steps, doom, after), act(then, doom_then, &[]), act(vec![Step::ReadAll], Doom::Clean, &[])]
}

/// Rows are on their way when the power goes, and another crash comes while that is being dealt with, and others are lost then.
pub fn torn_twice(rng: &mut Rng) -> Vec<Act> {
    // Few batches, so that the second crash meets the last ones.
    let requests = *rng.pick(&[2, 4, 4, 10, 30]);
    let (of, area) = writers(rng, requests);
    let steps = vec![Step::Work(of, area, Wait::Ended), Step::Rest(1_000_000)];
    let doom = match rng.coin() {
        true => soon(rng, "logging", requests, &[1, 30_000], 3),
        false => among_rows(rng, requests),
    };
    let after: &[Between] = if rng.below(4) == 0 { &[Between::LoseSome] } else { &[] };
    let mut acts = vec![act(steps, doom, after)];
    let again = |rng: &mut Rng| match rng.below(8) {
        0 => Doom::AtStep(rng.between(1, 100), if rng.coin() { Crash::Power } else { Crash::Kill }),
        1 | 2 => soon(rng, "writing a head", 5, &[1, 100_000, 1_000_000], 3),
        _ => {
            let nth = *rng.pick(&[10, 20, 60]);
            soon(rng, "recovering", nth, &[1, 30_000, 200_000], 3)
        }
    };
    if rng.below(4) == 0 {
        acts.push(act(vec![Step::ReadAll], again(rng), &[]));
    }
    acts.push(act(vec![Step::ReadAll], again(rng), &[Between::LoseSome]));
    if rng.coin() {
        acts.push(act(vec![Step::ReadAll], Doom::Clean, &[Between::FindAll]));
        acts.push(act(vec![Step::Back, Step::AwaitWhole], Doom::Clean, &[]));
    }
    acts.push(act(vec![Step::ReadAll, work(rng, 5)], Doom::Clean, &[]));
    acts
}

/// A member is lost and filled anew while the journal is in use, and then others are lost.
pub fn of_newcomers(rng: &mut Rng) -> Vec<Act> {
    let some = *rng.pick(&[1, 5, 20]);
    let (before, area) = writers(rng, some);
    let before = Work { fua: *rng.pick(&[None, Some(1_000_000), Some(1_000_000)]), ..before };
    let unflushed = |of: Work| Step::Work(Work { flushes: false, ..of }, area, Wait::Ended);
    let mut steps = vec![unflushed(before), Step::Fail];
    if rng.coin() {
        steps.push(unflushed(Work { requests: *rng.pick(&[2, 10]), ..before }));
    }
    if rng.below(3) == 0 {
        let (load, area) = writers(rng, 60);
        steps.push(Step::Work(Work { clients: 2, ..load }, area, Wait::No));
    }
    steps.push(if rng.below(4) > 0 { Step::Renew } else { Step::Return });
    steps.push(Step::AwaitWhole);
    if rng.below(4) > 0 {
        steps.push(unflushed(Work { requests: *rng.pick(&[1, 4, 20]), ..before }));
    }
    let doom = match rng.below(4) {
        0 => among_rows(rng, 40),
        1 => soon(rng, "in sync", 1, &[1, 100_000, 1_000_000], 3),
        _ => {
            steps.push(Step::Rest(u64::MAX));
            soon(rng, "nothing more to do", 1, &[1, 300_000], 3)
        }
    };
    vec![act(steps, doom, &[Between::LoseSome]), act(vec![Step::ReadAll, work(rng, 10)], Doom::Clean, &[])]
}

/// Rows are written while members are out, and a crash comes; of two parities another member may be lost with it.
pub fn degraded(rng: &mut Rng) -> Vec<Act> {
    let mut steps = Vec::new();
    if rng.coin() {
        let (of, area) = writers(rng, 10);
        steps.push(Step::Work(of, area, Wait::Ended));
    }
    let requests = *rng.pick(&[10, 40]);
    let (of, area) = writers(rng, requests);
    let of = if rng.coin() { Work { rows: 800_000, fua: Some(0), flushes: false, ..of } } else { of };
    match rng.below(3) {
        // It is lost in the middle of that.
        0 => steps.extend([Step::Work(of, area, Wait::No), Step::Rest(rng.below(500_000)), Step::Fail]),
        1 => steps.extend([Step::Work(of, area, Wait::No), Step::Rest(rng.below(500_000)), Step::Pull]),
        _ => steps.extend([Step::Fail, Step::Work(of, area, Wait::No)]),
    }
    steps.push(Step::Work(Work { requests: 10, ..of }, area, Wait::Ended));
    steps.push(Step::Rest(u64::MAX));
    let doom = match rng.below(3) {
        0 => soon(rng, "dropped", 1, &[1, 100_000, 400_000], 2),
        1 => soon(rng, "nothing more to do", 1, &[1, 300_000], 2),
        _ => among_rows(rng, 40),
    };
    let after: &[Between] = if rng.coin() { &[Between::LoseSome] } else { &[] };
    let mut then = vec![Step::ReadAll, work(rng, 5)];
    if rng.coin() {
        then.extend([Step::Back, Step::AwaitWhole, Step::ReadAll]);
    }
    vec![act(steps, doom, after), act(then, Doom::Clean, &[])]
}

/// Rows of which everything was durable are written wholly when the power goes, and members with it: what they hold nobody knows
/// until they are written wholly again.
pub fn mended(rng: &mut Rng) -> Vec<Act> {
    let requests = *rng.pick(&[10, 40]);
    let (of, area) = writers(rng, requests);
    let of = Work { rows: 1_000_000, fua: Some(0), flushes: false, reads: false, ..of };
    let steps = vec![Step::WriteAll, Step::Work(of, area, Wait::Ended), Step::Rest(1_000_000)];
    let doom = soon(rng, "placing", 100, &[1, 30_000], 4);
    let mut then = vec![Step::ReadAll, Step::WriteParts, Step::ReadAll];
    if rng.coin() {
        then.extend([Step::Overwrite, Step::WriteParts, Step::ReadAll]);
    }
    let doom_then = afterwards(rng, &mut then);
    let again = vec![Step::WriteParts, Step::ReadAll, Step::Overwrite, Step::ReadAll];
    let after: &[Between] = if rng.below(4) == 0 { &[Between::FindAll] } else { &[] };
    vec![act(steps, doom, &[Between::LoseSome]), act(then, doom_then, after), act(again, Doom::Clean, &[])]
}

/// More members are lost than may be, while rows are written or with a crash: nothing is answered that is not so, and when they are
/// back everything is there that was promised.
pub fn beyond(rng: &mut Rng) -> Vec<Act> {
    let requests = *rng.pick(&[10, 40, 80]);
    let (of, area) = writers(rng, requests);
    let mut steps = vec![Step::Work(of, area, Wait::No), Step::Rest(rng.below(3_000_000))];
    let mut acts = Vec::new();
    if rng.below(3) > 0 {
        steps.extend([Step::PullMany, Step::Work(Work { requests: 10, flushes: true, ..of }, area, Wait::Ended)]);
        steps.push(Step::ReadAll);
        let doom = afterwards(rng, &mut steps);
        acts.push(act(steps, doom, &[]));
    } else {
        steps.push(Step::Rest(1_000_000));
        let doom = among_rows(rng, 30);
        acts.extend([
            act(steps, doom, &[Between::LoseMany]),
            act(vec![Step::ReadAll], Doom::Clean, &[Between::FindAll]),
        ]);
    }
    let mut again = vec![Step::ReadAll];
    if rng.coin() {
        again.push(Step::Work(of, area, Wait::Ended));
    }
    let doom = afterwards(rng, &mut again);
    acts.extend([act(again, doom, &[]), act(vec![Step::ReadAll], Doom::Clean, &[])]);
    acts
}

/// A member is left out under long reads, and what is written then it misses.
pub fn read_on(rng: &mut Rng) -> Vec<Act> {
    let mut steps = Vec::new();
    if rng.coin() {
        steps.push(if rng.coin() { Step::WriteAll } else { work(rng, 10) });
    }
    let of = Work { clients: 3, think_ns_max: 20_000, blocks_max: 4, hot: 0, flushes: false, ..draw_work(rng, 60) };
    for _ in 0..rng.between(1, 3) {
        steps.extend([Step::ReadBeside(rng.between(2, 6) as u32), Step::Rest(rng.below(300_000)), Step::Fail]);
        steps.extend([Step::Work(of, None, Wait::Ended), Step::ReadAll, Step::Back, Step::AwaitWhole]);
    }
    let doom = afterwards(rng, &mut steps);
    vec![act(steps, doom, &[]), act(vec![Step::ReadAll], Doom::Clean, &[])]
}

/// The array takes up further disks, cut at its labels; then its journal is put on a disk of its own, and it takes up more.
pub fn widened(rng: &mut Rng) -> Vec<Act> {
    let (of, area) = writers(rng, 40);
    let load = Step::Work(Work { clients: 2, ..of }, area, Wait::No);
    let cut = |rng: &mut Rng, steps: &mut Vec<Step>| match rng.below(4) {
        0 => afterwards(rng, steps),
        _ => soon(rng, "writing a label", 20, &[1, 100_000, 300_000], 2),
    };
    let mut first = vec![work(rng, 10), load, Step::GrowByDisks, work(rng, 10)];
    let doom_first = cut(rng, &mut first);
    let mut then = vec![Step::ReadAll, Step::JournalOn, load, work(rng, 10)];
    let doom_then = if rng.coin() { among_rows(rng, 30) } else { afterwards(rng, &mut then) };
    let after: &[Between] = if rng.coin() { &[Between::LoseSome] } else { &[] };
    let mut again = vec![Step::ReadAll, load, Step::GrowByDisks, work(rng, 10)];
    let doom_again = cut(rng, &mut again);
    let after_again: &[Between] = if rng.coin() { &[Between::FindAll, Between::LoseSome] } else { &[Between::FindAll] };
    vec![
        act(first, doom_first, &[]),
        act(then, doom_then, after),
        act(again, doom_again, after_again),
        act(vec![Step::ReadAll, work(rng, 10)], Doom::Clean, &[Between::FindAll]),
        act(vec![Step::Back, Step::AwaitWhole, Step::ReadAll], Doom::Clean, &[]),
    ]
}

/// The file system that has the members as files becomes full while whole rows are written that nobody flushes, and there is room again
/// when the next life begins: what was acknowledged can be read.
pub fn full(rng: &mut Rng) -> Vec<Act> {
    let requests = *rng.pick(&[10, 40, 80]);
    let (of, area) = writers(rng, requests);
    let of = Work { rows: *rng.pick(&[500_000, 900_000, 1_000_000]), fua: Some(0), flushes: false, ..of };
    let mut steps = Vec::new();
    match rng.below(3) {
        0 => steps.extend([Step::Work(of, area, Wait::No), Step::Rest(rng.below(2_000_000))]),
        _ => steps.push(Step::Work(of, area, Wait::Ended)),
    }
    steps.extend([Step::FillUp, Step::Work(Work { requests: 20, clients: 2, ..of }, None, Wait::Ended)]);
    steps.push(Step::Rest(u64::MAX));
    let doom = match rng.below(4) {
        0 => soon(rng, "dropped", 1, &[1, 100_000, 400_000], 1),
        1 => soon(rng, "retiring marks", 1, &[1, 100_000, 400_000], 1),
        2 => among_rows(rng, 40),
        _ => soon(rng, "nothing more to do", 1, &[1, 300_000], 1),
    };
    let mut then = vec![Step::ReadAll, work(rng, 10)];
    if rng.coin() {
        then.extend([Step::Back, Step::AwaitWhole, Step::ReadAll]);
    }
    let doom_then = afterwards(rng, &mut then);
    vec![act(steps, doom, &[]), act(then, doom_then, &[]), act(vec![Step::ReadAll], Doom::Clean, &[])]
}

impl Mirror {
    /// More members are lost than may be.
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
        self.well = None;
    }

    /// Members are lost, as many as may be at most. Who has lost what is judged as those would that are left.
    pub(super) fn lose_some(&mut self, world: &mut World, rng: &mut Rng) {
        let labels = self.disks.iter().filter_map(|disk| Some((*disk, label_on(world, *disk)?)));
        let own: Vec<_> = labels.filter(|(_, label)| Some(label.array.uuid) == self.uuid).collect();
        if self.number.is_none() || own.len() < self.disks.len() {
            return;
        }
        // Whom the newest label of these calls in sync, among them.
        let called = |left: &[&(usize, Label)]| {
            let newest = left.iter().max_by_key(|(_, label)| label.array.order());
            let members = newest.map_or(&[][..], |(_, label)| &label.array.members);
            let is = |members: &[MemberEntry], id| {
                members.iter().any(|m| m.id == Some(id) && m.state == MemberState::InSync)
            };
            // A promotion that was cut has not reached the member itself.
            let both = |label: &Label| is(members, label.member.id) && is(&label.array.members, label.member.id);
            left.iter().filter(|(_, label)| both(label)).map(|(disk, _)| *disk).collect::<Vec<usize>>()
        };
        // And the newest of all, too: whoever has been left out would believe itself alone.
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
        // Nobody else makes errors.
        self.well = in_sync(&order[lost..]).first().copied();
    }
}
