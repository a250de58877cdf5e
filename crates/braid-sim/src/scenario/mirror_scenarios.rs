//! Scenarios of redundant arrays that random actions would hardly produce, because each needs several events in one
//! order: a member is promoted, the power is cut, and then the others are lost.
//!
//! A scenario says what the administrator does in each life, how the life ends, and what happens to disks between two
//! lives. Amounts and exact times are drawn. One of the members is the *victim*.

use crate::acts::{Act, BetweenLives, PlannedEnd, ReplaceTarget, Step, Wait};
use crate::rng::Rng;
use crate::workload::ClientLoad;
use crate::world::Crash;

pub(super) fn act(steps: Vec<Step>, doom: PlannedEnd, after: &[BetweenLives]) -> Act {
    Act { steps, doom, after: after.to_vec() }
}

/// Requests that end before the next step.
pub(super) fn work(rng: &mut Rng, requests: u64) -> Step {
    Step::Work(draw_load(rng, requests), None, Wait::Ended)
}

/// Requests that go on during the next steps.
fn load(rng: &mut Rng, requests: u64) -> Step {
    let work = ClientLoad { clients: 3, reads: true, hot: 1_000_000, ..draw_load(rng, requests) };
    Step::Work(work, None, Wait::No)
}

pub(super) fn draw_load(rng: &mut Rng, requests: u64) -> ClientLoad {
    ClientLoad {
        clients: rng.between(1, 2),
        requests,
        flushes: rng.coin(),
        reads: rng.coin(),
        think_ns_max: *rng.pick(&[1_000, 50_000, 400_000]),
        blocks_max: *rng.pick(&[1, 4, 16, 40]),
        hot: 200_000,
        stripes: 0,
        fua: None,
    }
}

/// Writes some data and mostly waits until no bit is dirty.
fn settled(rng: &mut Rng) -> Vec<Step> {
    let mut steps = vec![work(rng, 40)];
    if rng.below(4) > 0 {
        steps.push(Step::AwaitClean);
    }
    steps
}

/// Draws a crash soon after a moment has come for the n-th time, n from 1 to `nth`: less than one of `most_ns`
/// nanoseconds later. It is a power cut in `power` of four cases, otherwise a kill.
pub(super) fn soon(rng: &mut Rng, moment: &'static str, nth: u64, most_ns: &[u64], power: u64) -> PlannedEnd {
    let how = if rng.below(4) < power { Crash::Power } else { Crash::Kill };
    let most_ns = *rng.pick(most_ns);
    PlannedEnd::Within(moment, rng.between(1, nth), rng.below(most_ns), how)
}

/// Ends the life when all steps are done, cleanly or by a crash.
pub(super) fn afterwards(rng: &mut Rng, steps: &mut Vec<Step>) -> PlannedEnd {
    match rng.below(3) {
        0 => PlannedEnd::Clean,
        _ => {
            // Leaves time for that crash.
            steps.push(Step::Rest(u64::MAX));
            soon(rng, "nothing more to do", 1, &[300_000], 2)
        }
    }
}

fn back(rng: &mut Rng) -> Step {
    if rng.below(3) == 0 { Step::Renew } else { Step::Return }
}

pub(super) fn succession(rng: &mut Rng) -> Vec<Act> {
    let mut steps = settled(rng);
    steps.push(Step::Fail);
    if rng.below(3) > 0 {
        let Step::Work(of, ..) = work(rng, 30) else { unreachable!() };
        steps.push(Step::Work(ClientLoad { flushes: true, ..of }, None, Wait::Ended));
    }
    steps.extend([back(rng), Step::AwaitWhole]);
    let doom = if rng.below(5) > 0 {
        soon(rng, "in sync", 1, &[1, 100_000, 1_000_000], 3)
    } else {
        if rng.below(3) == 0 {
            steps.push(work(rng, 4));
        }
        afterwards(rng, &mut steps)
    };
    let then = act(vec![Step::ReadAll, work(rng, 20)], PlannedEnd::Clean, &[]);
    vec![act(steps, doom, &[BetweenLives::LoseOthers]), then]
}

pub(super) fn clearing(rng: &mut Rng) -> Vec<Act> {
    let mut lives = Vec::new();
    for _ in 0..rng.between(1, 3) {
        let mut steps = Vec::new();
        for _ in 0..rng.between(2, 6) {
            let of = ClientLoad { flushes: rng.below(4) == 0, ..draw_load(rng, 20) };
            steps.push(Step::Work(of, None, Wait::Ended));
            steps.push(if rng.coin() { Step::AwaitClean } else { Step::Rest(rng.below(3_000_000)) });
        }
        let of = ClientLoad { flushes: false, ..draw_load(rng, 60) };
        steps.push(Step::Work(of, None, Wait::Ended));
        let doom = match rng.below(3) {
            0 => soon(rng, "clearing", 4, &[50_000, 1_000_000], 3),
            1 => soon(rng, "regions called", 10, &[1, 300_000], 3),
            _ => soon(rng, "writing bits", 40, &[1, 60_000, 200_000], 2),
        };
        lives.push(act(steps, doom, &[]));
    }
    lives
}

pub(super) fn dropping(rng: &mut Rng) -> Vec<Act> {
    let mut steps = vec![work(rng, 20)];
    if rng.below(4) == 0 {
        let errors = rng.between(5_000, 100_000) as u32;
        steps.extend([Step::WriteErrors(errors), load(rng, 60)]);
    } else {
        steps.extend([load(rng, 60), Step::Rest(rng.below(500_000)), Step::Fail]);
    }
    steps.push(work(rng, 20));
    let doom = soon(rng, "freezing", 1, &[200_000, 700_000, 2_000_000], 1);
    let after: &[BetweenLives] = if rng.below(3) > 0 { &[BetweenLives::LoseOthersOfAll] } else { &[] };
    let then = act(vec![Step::ReadAll, Step::Back, Step::AwaitWhole], PlannedEnd::Clean, &[]);
    vec![act(steps, doom, after), then]
}

pub(super) fn refilling(rng: &mut Rng) -> Vec<Act> {
    let mut steps = vec![work(rng, 60), work(rng, 60), Step::AwaitClean, Step::Fail];
    if rng.coin() {
        steps.push(work(rng, 10));
    }
    steps.extend([if rng.below(4) > 0 { Step::Renew } else { Step::Return }, Step::AwaitWhole]);
    let moment = *rng.pick(&["copying", "copying", "writing a label"]);
    let nth = if moment == "copying" { 40 } else { 12 };
    let doom = soon(rng, moment, nth, &[1, 200_000, 1_000_000], 2);
    let mut again = vec![Step::Return, Step::AwaitWhole];
    if rng.coin() {
        again.push(work(rng, 10));
    }
    vec![
        act(steps, doom, &[]),
        act(again, PlannedEnd::Clean, &[BetweenLives::LoseOthers]),
        act(vec![Step::ReadAll], PlannedEnd::Clean, &[]),
    ]
}

pub(super) fn rebuilding_under_load(rng: &mut Rng) -> Vec<Act> {
    // Data written much later hides writes that the member missed.
    let requests = *rng.pick(&[60, 200, 1200]);
    let of = ClientLoad { think_ns_max: *rng.pick(&[50_000, 400_000]), clients: 3, ..draw_load(rng, requests) };
    let load = Step::Work(of, None, Wait::No);
    let mut steps = vec![work(rng, 60), Step::Fail, work(rng, 20), load, back(rng), Step::AwaitWhole];
    let doom = if rng.coin() { PlannedEnd::Clean } else { afterwards(rng, &mut steps) };
    vec![act(steps, doom, &[BetweenLives::LoseOthers]), act(vec![Step::ReadAll], PlannedEnd::Clean, &[])]
}

pub(super) fn cut_promotion(rng: &mut Rng) -> Vec<Act> {
    let mut steps = settled(rng);
    steps.extend([Step::Fail, work(rng, 10), back(rng), Step::AwaitWhole]);
    let doom = soon(rng, "promoting", 1, &[100_000, 300_000, 800_000], 2);
    let diverged = act(vec![work(rng, 10)], PlannedEnd::Clean, &[]);
    let again = act(vec![Step::Back, Step::AwaitWhole, Step::ReadAll], PlannedEnd::Clean, &[]);
    vec![act(steps, doom, &[BetweenLives::SplitBrain]), diverged, again]
}

pub(super) fn split_brain(rng: &mut Rng) -> Vec<Act> {
    let mut diverged = Vec::new();
    if rng.coin() {
        diverged.push(work(rng, 4));
    }
    let doom = afterwards(rng, &mut diverged);
    let again = vec![Step::Back, Step::AwaitWhole, Step::ReadAll];
    vec![
        act(settled(rng), PlannedEnd::Clean, &[BetweenLives::SplitBrain]),
        act(diverged, doom, &[]),
        act(again, PlannedEnd::Clean, &[]),
    ]
}

pub(super) fn old_copy(rng: &mut Rng) -> Vec<Act> {
    let mut steps = settled(rng);
    let doom = afterwards(rng, &mut steps);
    let first = act(steps, doom, &[BetweenLives::Copy]);
    let mut steps = settled(rng);
    if rng.coin() {
        steps.push(Step::Fail);
        steps.push(work(rng, 5));
    }
    let doom = afterwards(rng, &mut steps);
    let again = vec![Step::Back, Step::AwaitWhole, Step::ReadAll];
    vec![first, act(steps, doom, &[BetweenLives::Restore]), act(again, PlannedEnd::Clean, &[])]
}

pub(super) fn early_return(rng: &mut Rng) -> Vec<Act> {
    let hangs = rng.between(10_000, 60_000) as u32;
    let think_ns_max = *rng.pick(&[1_000_000, 20_000_000, 200_000_000]);
    let of = ClientLoad { clients: 2, think_ns_max, hot: 1_000_000, blocks_max: 8, ..draw_load(rng, 300) };
    let mut steps = vec![work(rng, 20), Step::Hang(hangs), Step::Work(of, Some((0, 16)), Wait::No)];
    for round in 0..rng.between(3, 10) {
        steps.push(Step::Await("dropped"));
        if round > 0 {
            steps.push(Step::Hang(if rng.coin() { 0 } else { hangs }));
        }
        steps.push(Step::Rest(rng.below(2_000_000_000)));
        steps.push(Step::Return);
        steps.push(Step::Work(ClientLoad { requests: 60, ..of }, Some((0, 16)), Wait::No));
    }
    steps.extend([Step::Hang(0), Step::Rest(70_000_000_000), Step::ReadAll]);
    vec![act(steps, PlannedEnd::Clean, &[])]
}

pub(super) fn merging(rng: &mut Rng) -> Vec<Act> {
    // All writes are in one region: writing the bits of other regions would write these bits, too.
    let area = Some((0, 16));
    let of = ClientLoad { clients: 1, blocks_max: 4, ..draw_load(rng, 3) };
    let steps = vec![Step::Work(of, area, Wait::No), Step::Rest(rng.between(200_000, 2_000_000))];
    let first = act(steps, soon(rng, "writing bits", 4, &[1, 60_000, 200_000], 2), &[]);
    let of = ClientLoad { flushes: true, ..draw_load(rng, 20) };
    let second = act(vec![Step::Work(of, area, Wait::Ended)], PlannedEnd::Clean, &[BetweenLives::LoseAllButOne]);
    vec![first, second, act(vec![Step::ReadAll, work(rng, 5)], PlannedEnd::Clean, &[])]
}

pub(super) fn settling(rng: &mut Rng) -> Vec<Act> {
    let of = ClientLoad { think_ns_max: 20_000, ..draw_load(rng, 60) };
    let of = ClientLoad { clients: 3, ..of };
    let steps =
        vec![Step::Work(of, None, Wait::No), Step::Rest(rng.between(1_000_000, 6_000_000)), Step::Rest(u64::MAX)];
    let first = act(steps, soon(rng, "nothing more to do", 1, &[1, 300_000], 3), &[]);
    let moment = *rng.pick(&["regions called", "resynced"]);
    let doom = soon(rng, moment, 1, &[500_000, 2_000_000, 6_000_000], 4);
    let second = act(vec![Step::ReadAll, Step::Rest(10_000_000)], doom, &[BetweenLives::LoseAllButOne]);
    vec![first, second, act(vec![Step::ReadAll, work(rng, 5)], PlannedEnd::Clean, &[])]
}

pub(super) fn half_cleared(rng: &mut Rng) -> Vec<Act> {
    let of = ClientLoad { flushes: false, ..draw_load(rng, 20) };
    let steps = vec![
        work(rng, 10),
        Step::Await("clearing"),
        Step::Await("writing bits"),
        Step::Rest(rng.below(250_000)),
        if rng.below(4) > 0 { Step::Pull } else { Step::Fail },
        Step::Work(of, None, Wait::Ended),
        Step::Rest(u64::MAX),
    ];
    let doom = soon(rng, "nothing more to do", 1, &[1, 300_000], 2);
    let then = vec![Step::Back, Step::AwaitWhole, Step::ReadAll];
    vec![act(steps, doom, &[]), act(then, PlannedEnd::Clean, &[])]
}

pub(super) fn checking(rng: &mut Rng) -> Vec<Act> {
    let mut steps = settled(rng);
    for _ in 0..rng.between(1, 3) {
        let of = ClientLoad { clients: 3, think_ns_max: *rng.pick(&[50_000, 400_000]), ..draw_load(rng, 200) };
        steps.extend([Step::Work(of, None, Wait::No), Step::Check]);
    }
    steps.push(Step::ReadAll);
    vec![act(steps, PlannedEnd::Clean, &[])]
}

pub(super) fn unreadable(rng: &mut Rng) -> Vec<Act> {
    let blocks = rng.between(1, 4);
    if rng.coin() {
        // What a crash left unequal is resynced, except for those blocks.
        let doom = soon(rng, "writing bits", 10, &[60_000, 1_000_000], 2);
        let mut steps = vec![Step::ReadAll, work(rng, 20)];
        if rng.coin() {
            steps.extend([Step::Overwrite, Step::ReadAll]);
        }
        let first = act(vec![work(rng, 60)], doom, &[BetweenLives::Unreadable(blocks)]);
        return vec![first, act(steps, PlannedEnd::Clean, &[]), act(vec![work(rng, 20)], PlannedEnd::Clean, &[])];
    }
    let mut steps = settled(rng);
    steps.extend([Step::Fail, work(rng, 10), Step::Unreadable(blocks), Step::ReadAll, back(rng), Step::AwaitWhole]);
    if rng.coin() {
        steps.push(load(rng, 40));
    }
    steps.extend([Step::ReadAll, Step::ReadAll, Step::Overwrite]);
    let doom = afterwards(rng, &mut steps);
    let then = act(vec![Step::Return, Step::AwaitWhole, Step::ReadAll], PlannedEnd::Clean, &[]);
    vec![act(steps, doom, &[]), then]
}

pub(super) fn replacing(rng: &mut Rng) -> Vec<Act> {
    let mut steps = settled(rng);
    // A flush of a client also flushes the successor: without it only the promotion flushes its data.
    let of_successor = rng.coin();
    let Step::Work(of, ..) = load(rng, 300) else { unreachable!() };
    let load = Step::Work(ClientLoad { flushes: !of_successor, ..of }, None, Wait::No);
    if !of_successor || rng.coin() {
        steps.push(load);
    }
    steps.extend([Step::Rest(rng.below(500_000)), Step::Replace(ReplaceTarget::Victim)]);
    if rng.below(6) == 0 {
        steps.extend([Step::Rest(rng.below(3_000_000)), Step::Fail]);
    }
    steps.push(Step::AwaitReplaced);
    let doom = match of_successor {
        true if rng.coin() => soon(rng, "replaced", 1, &[1, 100_000, 1_000_000], 4),
        true => soon(rng, "freezing", 1, &[200_000, 700_000, 2_000_000], 4),
        false => soon(rng, "freezing", 1, &[200_000, 700_000, 2_000_000], 2),
    };
    let after: &[BetweenLives] = match rng.below(6) {
        0 => &[],
        _ if of_successor => &[BetweenLives::LoseOthersOfSuccessor],
        _ => &[BetweenLives::LoseOthersOfAll],
    };
    vec![act(steps, doom, after), act(vec![Step::ReadAll, work(rng, 20)], PlannedEnd::Clean, &[])]
}

pub(super) fn taking_over(rng: &mut Rng) -> Vec<Act> {
    let mut steps = settled(rng);
    steps.push(Step::Fail);
    if rng.coin() {
        steps.push(work(rng, 10));
    }
    steps.extend([
        Step::FaultSuccessor,
        Step::Replace(ReplaceTarget::Healthy),
        Step::Await("dropped"),
        Step::HealSuccessor,
    ]);
    steps.extend([work(rng, 20), Step::ReadAll]);
    let doom = afterwards(rng, &mut steps);
    let then = act(vec![Step::Back, Step::AwaitWhole, Step::ReadAll], PlannedEnd::Clean, &[]);
    vec![act(steps, doom, &[]), then]
}

pub(super) fn growing(rng: &mut Rng) -> Vec<Act> {
    let mut steps = Vec::new();
    if rng.coin() {
        steps.push(work(rng, 5));
    }
    // The clients write so slowly that there are places without data all the time.
    let think_ns_max = *rng.pick(&[400_000, 1_000_000, 3_000_000]);
    let of = ClientLoad { clients: 3, reads: false, think_ns_max, blocks_max: 1, hot: 0, ..draw_load(rng, 60) };
    for _ in 0..rng.between(2, 4) {
        steps.extend([Step::Work(of, None, Wait::No), Step::Rest(rng.below(2_000_000)), Step::Grow]);
    }
    steps.push(Step::ReadAll);
    let doom = match rng.below(3) {
        0 => soon(rng, "grown", 1, &[1, 300_000, 2_000_000], 2),
        1 => soon(rng, "writing a label", 6, &[1, 300_000], 2),
        _ => afterwards(rng, &mut steps),
    };
    vec![act(steps, doom, &[]), act(vec![Step::ReadAll, work(rng, 20)], PlannedEnd::Clean, &[])]
}
