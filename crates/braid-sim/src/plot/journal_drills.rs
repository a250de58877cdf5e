//! Drills of arrays with parity whose journal has a disk of its own: that disk is lost, moved from and to, fails, or is an old copy.

use super::drills::{Act, Between, Step, Wait, act, afterwards, soon, work};
use super::row_drills::{among_rows, writers};
use super::script::Spoil;
use super::subject::Subject;
use crate::rng::Rng;
use crate::sim::Doom;
use crate::workload::Work;

/// What they are about.
pub const SUBJECTS: [Subject; 4] =
    [Subject::JournalLost, Subject::JournalMoves, Subject::JournalFails, Subject::JournalOld];

/// Any of them, or one in which more is lost than may be.
pub fn any(rng: &mut Rng) -> Subject {
    if rng.below(5) == 0 { Subject::RowsBeyond } else { *rng.pick(&SUBJECTS) }
}

/// While the ring moves, or soon after it has.
fn among_moves(rng: &mut Rng, nth: u64) -> Doom {
    let moment = *rng.pick(&["ring nowhere", "ring quiet", "ring quiet", "journal moved"]);
    soon(rng, moment, nth, &[1, 100_000, 400_000], 3)
}

/// Clients that write beside the next steps.
fn load(rng: &mut Rng) -> Step {
    let requests = *rng.pick(&[40, 100]);
    let (of, area) = writers(rng, requests);
    let think_ns_max = *rng.pick(&[20_000, 100_000]);
    Step::Work(Work { clients: 3, think_ns_max, ..of }, area, Wait::No)
}

/// The disk of the journal is lost with a crash, and members with it now and then.
pub fn lost(rng: &mut Rng) -> Vec<Act> {
    let requests = *rng.pick(&[5, 20, 60]);
    let (of, area) = writers(rng, requests);
    let mut steps = vec![Step::JournalOn, Step::Work(Work { flushes: rng.below(4) > 0, ..of }, area, Wait::Ended)];
    let doom = if rng.coin() {
        steps.push(Step::Rest(u64::MAX));
        soon(rng, "nothing more to do", 1, &[1, 300_000], 4)
    } else {
        steps.push(Step::Rest(1_000_000));
        among_rows(rng, 30)
    };
    let after: &[Between] =
        if rng.below(3) == 0 { &[Between::LoseSome, Between::LoseJournal] } else { &[Between::LoseJournal] };
    let mut then = vec![Step::ReadAll, work(rng, 10), Step::JournalOn, load(rng)];
    let doom_then = afterwards(rng, &mut then);
    let after_then: &[Between] = match rng.below(3) {
        0 => &[Between::FindAll],
        1 => &[Between::FindAll, Between::LoseSome],
        _ => &[],
    };
    vec![
        act(steps, doom, after),
        act(then, doom_then, after_then),
        act(vec![Step::ReadAll, work(rng, 10)], Doom::Clean, &[Between::FindAll]),
        act(vec![Step::Back, Step::AwaitWhole, Step::ReadAll], Doom::Clean, &[]),
    ]
}

/// The ring moves to a disk and back, again and again, under writes; a crash comes, and members are lost with it.
pub fn moves(rng: &mut Rng) -> Vec<Act> {
    let rounds = rng.between(1, 3);
    let mut steps = Vec::new();
    for _ in 0..rounds {
        steps.extend([load(rng), Step::Rest(rng.below(1_000_000)), Step::JournalOn]);
        steps.extend([load(rng), Step::Rest(rng.below(1_000_000)), Step::JournalToMembers]);
    }
    steps.push(work(rng, 10));
    let doom = match rng.below(4) {
        // Heads on some, and on others not.
        0 | 1 => soon(rng, "writing a head", 8 * rounds, &[1, 30_000, 100_000], 3),
        2 => among_rows(rng, 30),
        _ => among_moves(rng, 2 * rounds),
    };
    let after: &[Between] = if rng.below(6) > 0 { &[Between::LoseSome] } else { &[] };
    let mut then = vec![Step::ReadAll, work(rng, 5)];
    if rng.coin() {
        then.extend([load(rng), if rng.coin() { Step::JournalOn } else { Step::JournalToMembers }]);
    }
    let doom_then = if rng.coin() { among_moves(rng, 1) } else { afterwards(rng, &mut then) };
    let after_then: &[Between] = if rng.coin() { &[Between::FindAll] } else { &[Between::LoseSome] };
    vec![
        act(steps, doom, after),
        act(then, doom_then, after_then),
        act(vec![Step::ReadAll, work(rng, 5)], Doom::Clean, &[Between::FindAll]),
        act(vec![Step::Back, Step::AwaitWhole, Step::ReadAll], Doom::Clean, &[]),
    ]
}

/// The disk of the journal fails under writes: the ring moves to the members, or the crash comes before that.
pub fn fails(rng: &mut Rng) -> Vec<Act> {
    let mut steps = vec![Step::JournalOn, load(rng), Step::Rest(rng.below(2_000_000))];
    steps.push(match rng.below(4) {
        0 => Step::SpoilJournal(Spoil::Hang(rng.between(50_000, 1_000_000) as u32)),
        1 => Step::SpoilJournal(Spoil::WriteErrors(rng.between(50_000, 1_000_000) as u32)),
        _ => Step::PullJournal,
    });
    if rng.below(3) == 0 {
        steps.push(Step::Pull);
    }
    steps.extend([load(rng), work(rng, 10)]);
    if rng.below(3) == 0 {
        steps.extend([Step::JournalOn, work(rng, 10)]);
    }
    let doom = match rng.below(5) {
        0 => soon(rng, "trouble of a member", 1, &[1, 100_000, 400_000], 3),
        1 => soon(rng, "writing a head", 3, &[1, 100_000, 400_000], 3),
        2 => afterwards(rng, &mut steps),
        _ => among_moves(rng, 1),
    };
    let after: &[Between] = match rng.below(4) {
        0 => &[],
        1 => &[Between::LoseJournal],
        2 => &[Between::LoseSome, Between::LoseJournal],
        _ => &[Between::LoseSome],
    };
    let then = vec![Step::ReadAll, work(rng, 10), Step::Back, Step::AwaitWhole];
    vec![
        act(steps, doom, after),
        act(then, Doom::Clean, &[Between::FindAll]),
        act(vec![Step::ReadAll, Step::Back, Step::AwaitWhole, Step::ReadAll], Doom::Clean, &[]),
    ]
}

/// An old copy of the disk of the journal takes its place.
pub fn old(rng: &mut Rng) -> Vec<Act> {
    let mut first = vec![Step::JournalOn, work(rng, 20)];
    let doom_first = afterwards(rng, &mut first);
    let requests = *rng.pick(&[10, 40]);
    let (of, area) = writers(rng, requests);
    let mut steps = vec![Step::Work(of, area, Wait::Ended)];
    if rng.below(3) == 0 {
        steps.extend([load(rng), Step::JournalToMembers, load(rng), Step::JournalOn, work(rng, 10)]);
    }
    let doom = match rng.below(4) {
        0 => afterwards(rng, &mut steps),
        1 => among_moves(rng, 2),
        _ => {
            steps.push(Step::Rest(1_000_000));
            among_rows(rng, 30)
        }
    };
    // A start that fails for want of the journal must leave the members that come later what they are.
    let after: &[Between] =
        if rng.below(4) == 0 { &[Between::LoseSome, Between::RestoreJournal] } else { &[Between::RestoreJournal] };
    let mut then = vec![Step::ReadAll, work(rng, 10)];
    let doom_then = afterwards(rng, &mut then);
    vec![
        act(first, doom_first, &[Between::CopyJournal]),
        act(steps, doom, after),
        act(then, doom_then, &[Between::FindAll]),
        act(vec![Step::ReadAll, Step::Back, Step::AwaitWhole, Step::ReadAll], Doom::Clean, &[]),
    ]
}
