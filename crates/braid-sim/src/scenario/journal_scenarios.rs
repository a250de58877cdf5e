//! Scenarios of arrays with parity whose journal has a disk of its own: that disk is lost, the journal moves, the disk
//! fails, or an old copy replaces it.

use super::catalog::Scenario;
use super::mirror_scenarios::{act, afterwards, soon, work};
use super::parity_scenarios::{among_stripes, writers};
use crate::acts::{Act, BetweenLives, DiskFault, PlannedEnd, Step, Wait};
use crate::rng::Rng;
use crate::workload::ClientLoad;

/// Draws any of them, or one in which more members are lost than the array tolerates.
pub fn any(rng: &mut Rng) -> Scenario {
    if rng.below(5) == 0 { Scenario::StripesBeyondTolerance } else { *rng.pick(&Scenario::OF_JOURNAL) }
}

/// Crashes while the ring moves, or soon after.
fn among_moves(rng: &mut Rng, nth: u64) -> PlannedEnd {
    let moment = *rng.pick(&["ring nowhere", "ring quiet", "ring quiet", "journal moved"]);
    soon(rng, moment, nth, &[1, 100_000, 400_000], 3)
}

/// Clients that write during the next steps.
fn load(rng: &mut Rng) -> Step {
    let requests = *rng.pick(&[40, 100]);
    let (of, area) = writers(rng, requests);
    let think_ns_max = *rng.pick(&[20_000, 100_000]);
    Step::Work(ClientLoad { clients: 3, think_ns_max, ..of }, area, Wait::No)
}

/// The disk of the journal is lost with a crash, at times together with members.
pub fn lost(rng: &mut Rng) -> Vec<Act> {
    let requests = *rng.pick(&[5, 20, 60]);
    let (of, area) = writers(rng, requests);
    let mut steps =
        vec![Step::JournalOn, Step::Work(ClientLoad { flushes: rng.below(4) > 0, ..of }, area, Wait::Ended)];
    let doom = if rng.coin() {
        steps.push(Step::Rest(u64::MAX));
        soon(rng, "nothing more to do", 1, &[1, 300_000], 4)
    } else {
        steps.push(Step::Rest(1_000_000));
        among_stripes(rng, 30)
    };
    let after: &[BetweenLives] = if rng.below(3) == 0 {
        &[BetweenLives::LoseSome, BetweenLives::LoseJournal]
    } else {
        &[BetweenLives::LoseJournal]
    };
    let mut then = vec![Step::ReadAll, work(rng, 10), Step::JournalOn, load(rng)];
    let doom_then = afterwards(rng, &mut then);
    let after_then: &[BetweenLives] = match rng.below(3) {
        0 => &[BetweenLives::FindAll],
        1 => &[BetweenLives::FindAll, BetweenLives::LoseSome],
        _ => &[],
    };
    vec![
        act(steps, doom, after),
        act(then, doom_then, after_then),
        act(vec![Step::ReadAll, work(rng, 10)], PlannedEnd::Clean, &[BetweenLives::FindAll]),
        act(vec![Step::Back, Step::AwaitWhole, Step::ReadAll], PlannedEnd::Clean, &[]),
    ]
}

/// The ring moves to a disk and back, repeatedly, under writes; a crash follows, and members are lost with it.
pub fn moves(rng: &mut Rng) -> Vec<Act> {
    let rounds = rng.between(1, 3);
    let mut steps = Vec::new();
    for _ in 0..rounds {
        steps.extend([load(rng), Step::Rest(rng.below(1_000_000)), Step::JournalOn]);
        steps.extend([load(rng), Step::Rest(rng.below(1_000_000)), Step::JournalToMembers]);
    }
    steps.push(work(rng, 10));
    let doom = match rng.below(4) {
        // The heads are written on some members, and not on others.
        0 | 1 => soon(rng, "writing a head", 8 * rounds, &[1, 30_000, 100_000], 3),
        2 => among_stripes(rng, 30),
        _ => among_moves(rng, 2 * rounds),
    };
    let after: &[BetweenLives] = if rng.below(6) > 0 { &[BetweenLives::LoseSome] } else { &[] };
    let mut then = vec![Step::ReadAll, work(rng, 5)];
    if rng.coin() {
        then.extend([load(rng), if rng.coin() { Step::JournalOn } else { Step::JournalToMembers }]);
    }
    let doom_then = if rng.coin() { among_moves(rng, 1) } else { afterwards(rng, &mut then) };
    let after_then: &[BetweenLives] = if rng.coin() { &[BetweenLives::FindAll] } else { &[BetweenLives::LoseSome] };
    vec![
        act(steps, doom, after),
        act(then, doom_then, after_then),
        act(vec![Step::ReadAll, work(rng, 5)], PlannedEnd::Clean, &[BetweenLives::FindAll]),
        act(vec![Step::Back, Step::AwaitWhole, Step::ReadAll], PlannedEnd::Clean, &[]),
    ]
}

/// The disk of the journal fails under writes: the ring moves to the members, or the crash comes first.
pub fn fails(rng: &mut Rng) -> Vec<Act> {
    let mut steps = vec![Step::JournalOn, load(rng), Step::Rest(rng.below(2_000_000))];
    steps.push(match rng.below(4) {
        0 => Step::FaultJournal(DiskFault::Hang(rng.between(50_000, 1_000_000) as u32)),
        1 => Step::FaultJournal(DiskFault::WriteErrors(rng.between(50_000, 1_000_000) as u32)),
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
        0 => soon(rng, "fault of a member", 1, &[1, 100_000, 400_000], 3),
        1 => soon(rng, "writing a head", 3, &[1, 100_000, 400_000], 3),
        2 => afterwards(rng, &mut steps),
        _ => among_moves(rng, 1),
    };
    let after: &[BetweenLives] = match rng.below(4) {
        0 => &[],
        1 => &[BetweenLives::LoseJournal],
        2 => &[BetweenLives::LoseSome, BetweenLives::LoseJournal],
        _ => &[BetweenLives::LoseSome],
    };
    let then = vec![Step::ReadAll, work(rng, 10), Step::Back, Step::AwaitWhole];
    vec![
        act(steps, doom, after),
        act(then, PlannedEnd::Clean, &[BetweenLives::FindAll]),
        act(vec![Step::ReadAll, Step::Back, Step::AwaitWhole, Step::ReadAll], PlannedEnd::Clean, &[]),
    ]
}

/// An old copy replaces the disk of the journal.
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
            among_stripes(rng, 30)
        }
    };
    // A start that fails because the journal is missing must not change the state of members that come back later.
    let after: &[BetweenLives] = if rng.below(4) == 0 {
        &[BetweenLives::LoseSome, BetweenLives::RestoreJournal]
    } else {
        &[BetweenLives::RestoreJournal]
    };
    let mut then = vec![Step::ReadAll, work(rng, 10)];
    let doom_then = afterwards(rng, &mut then);
    vec![
        act(first, doom_first, &[BetweenLives::CopyJournal]),
        act(steps, doom, after),
        act(then, doom_then, &[BetweenLives::FindAll]),
        act(vec![Step::ReadAll, Step::Back, Step::AwaitWhole, Step::ReadAll], PlannedEnd::Clean, &[]),
    ]
}
