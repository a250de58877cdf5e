//! Drills: stories of redundant arrays that chance alone would hardly tell, as each needs several things in one order: a
//! member promoted, the power cut, and then the others lost.
//!
//! A drill says what the administrator does in each life, how the life ends, and what happens to disks between two lives.
//! How much of everything, and when exactly, is drawn. One of the members is the *victim*.

use super::script::Spoil;
use crate::rng::Rng;
use crate::sim::Doom;
use crate::workload::Work;
use crate::world::Crash;

/// One thing that the administrator does.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Clients work, anywhere or on these blocks; the next step comes when they have ended, or at once.
    Work(Work, Option<(u64, u64)>, Wait),
    /// Nothing is done for so many nanoseconds.
    Rest(u64),
    /// Until no bit is dirty, or so long that none will be cleared any more.
    AwaitClean,
    /// Until the victim is in sync again, or so long that it will not be.
    AwaitWhole,
    /// Until the next moment of this kind, or a while.
    Await(&'static str),
    /// The victim is left out.
    Fail,
    /// It is pulled.
    Pull,
    /// The file system of its members is full, until the life ends.
    FillUp,
    /// One more than may be lost of an array with parity are pulled, together or one after the other.
    PullMany,
    /// It returns, if it may.
    Return,
    /// It returns; where that is refused a new disk takes its place.
    Back,
    /// A new disk takes its place.
    Renew,
    /// From now on so many of a million I/Os of the victim hang.
    Hang(u32),
    /// And so many writes fail.
    WriteErrors(u32),
    /// A disk that is no member is to replace the victim, or the member that is always well.
    Replace(Whom),
    /// Until the successor has taken the place, or so long that it will not.
    AwaitReplaced,
    /// From the next freeze on the successor cannot flush: it is about to take the place.
    SpoilSuccessor,
    /// It can again.
    HealSuccessor,
    /// Disks become larger, and the array takes that up.
    Grow,
    /// It takes up further disks.
    GrowByDisks,
    /// So many blocks can no longer be read on any member that is in sync.
    Unreadable(u64),
    /// These are written.
    Overwrite,
    /// Somebody writes parts of what cannot be read.
    WriteParts,
    /// Everything is written, row by row, and flushed.
    WriteAll,
    /// Somebody reads everything.
    ReadAll,
    /// So many do, beside the next steps.
    ReadBeside(u32),
    /// Copies are compared, and mended.
    Check,
    /// The journal is put on a disk that does not hold it, if there is one and it may.
    JournalOn,
    /// It is put back on the members.
    JournalToMembers,
    /// The disk that holds it is pulled.
    PullJournal,
    /// From now on that disk does this.
    SpoilJournal(Spoil),
}

/// Who is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whom {
    /// The victim.
    Victim,
    /// The member that is always well.
    Well,
}

/// Whether a step is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// It is.
    Ended,
    /// It is not.
    No,
}

/// What happens between two lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Between {
    /// If the victim was promoted in the last life: all others are lost.
    LoseOthers,
    /// If all are in sync: all but one are lost, whichever.
    LoseAllButOne,
    /// If all are in sync: all but the victim are lost.
    LoseOthersOfAll,
    /// If the successor's label calls it in sync: all others are lost.
    LoseOthersOfSuccessor,
    /// The victim is used apart from the others, when the next life begins.
    Apart,
    /// The victim is copied.
    Copy,
    /// The copy takes its place.
    Restore,
    /// So many blocks can no longer be read on any member.
    Unreadable(u64),
    /// Of an array with parity members are lost, as many as may be at most; those that were lost before are back.
    LoseSome,
    /// The same, but one more than may be.
    LoseMany,
    /// The disk that holds the journal is lost.
    LoseJournal,
    /// It is copied.
    CopyJournal,
    /// The copy takes its place.
    RestoreJournal,
    /// All that were lost are back.
    FindAll,
}

/// One life of a drill.
#[derive(Clone, Debug)]
pub struct Act {
    /// What is done in it.
    pub steps: Vec<Step>,
    /// How it ends.
    pub doom: Doom,
    /// What happens afterwards.
    pub after: Vec<Between>,
}

pub(super) fn act(steps: Vec<Step>, doom: Doom, after: &[Between]) -> Act {
    Act { steps, doom, after: after.to_vec() }
}

/// Requests that are done when the next step comes.
pub(super) fn work(rng: &mut Rng, requests: u64) -> Step {
    Step::Work(draw_work(rng, requests), None, Wait::Ended)
}

/// Requests that go on beside the next steps.
fn load(rng: &mut Rng, requests: u64) -> Step {
    let work = Work { clients: 3, reads: true, hot: 1_000_000, ..draw_work(rng, requests) };
    Step::Work(work, None, Wait::No)
}

pub(super) fn draw_work(rng: &mut Rng, requests: u64) -> Work {
    Work {
        clients: rng.between(1, 2),
        requests,
        flushes: rng.coin(),
        reads: rng.coin(),
        think_ns_max: *rng.pick(&[1_000, 50_000, 400_000]),
        blocks_max: *rng.pick(&[1, 4, 16, 40]),
        hot: 200_000,
        rows: 0,
        fua: None,
    }
}

/// Everything that there will be is there, and mostly nothing of it is dirty.
fn settled(rng: &mut Rng) -> Vec<Step> {
    let mut steps = vec![work(rng, 40)];
    if rng.below(4) > 0 {
        steps.push(Step::AwaitClean);
    }
    steps
}

/// Soon after a moment of this kind: by a power cut in so many of four cases.
pub(super) fn soon(rng: &mut Rng, moment: &'static str, nth: u64, most_ns: &[u64], power: u64) -> Doom {
    let how = if rng.below(4) < power { Crash::Power } else { Crash::Kill };
    let most_ns = *rng.pick(most_ns);
    Doom::Within(moment, rng.between(1, nth), rng.below(most_ns), how)
}

/// The life ends when everything is done, or by a crash then.
pub(super) fn afterwards(rng: &mut Rng, steps: &mut Vec<Step>) -> Doom {
    match rng.below(3) {
        0 => Doom::Clean,
        _ => {
            // Time enough for that crash.
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
        steps.push(Step::Work(Work { flushes: true, ..of }, None, Wait::Ended));
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
    let then = act(vec![Step::ReadAll, work(rng, 20)], Doom::Clean, &[]);
    vec![act(steps, doom, &[Between::LoseOthers]), then]
}

pub(super) fn clearing(rng: &mut Rng) -> Vec<Act> {
    let mut lives = Vec::new();
    for _ in 0..rng.between(1, 3) {
        let mut steps = Vec::new();
        for _ in 0..rng.between(2, 6) {
            let of = Work { flushes: rng.below(4) == 0, ..draw_work(rng, 20) };
            steps.push(Step::Work(of, None, Wait::Ended));
            steps.push(if rng.coin() { Step::AwaitClean } else { Step::Rest(rng.below(3_000_000)) });
        }
        let of = Work { flushes: false, ..draw_work(rng, 60) };
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
    let after: &[Between] = if rng.below(3) > 0 { &[Between::LoseOthersOfAll] } else { &[] };
    let then = act(vec![Step::ReadAll, Step::Back, Step::AwaitWhole], Doom::Clean, &[]);
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
        act(again, Doom::Clean, &[Between::LoseOthers]),
        act(vec![Step::ReadAll], Doom::Clean, &[]),
    ]
}

pub(super) fn filling_under_load(rng: &mut Rng) -> Vec<Act> {
    // What is written long after hides what was missed.
    let requests = *rng.pick(&[60, 200, 1200]);
    let of = Work { think_ns_max: *rng.pick(&[50_000, 400_000]), clients: 3, ..draw_work(rng, requests) };
    let load = Step::Work(of, None, Wait::No);
    let mut steps = vec![work(rng, 60), Step::Fail, work(rng, 20), load, back(rng), Step::AwaitWhole];
    let doom = if rng.coin() { Doom::Clean } else { afterwards(rng, &mut steps) };
    vec![act(steps, doom, &[Between::LoseOthers]), act(vec![Step::ReadAll], Doom::Clean, &[])]
}

pub(super) fn cut_promotion(rng: &mut Rng) -> Vec<Act> {
    let mut steps = settled(rng);
    steps.extend([Step::Fail, work(rng, 10), back(rng), Step::AwaitWhole]);
    let doom = soon(rng, "promoting", 1, &[100_000, 300_000, 800_000], 2);
    let apart = act(vec![work(rng, 10)], Doom::Clean, &[]);
    let again = act(vec![Step::Back, Step::AwaitWhole, Step::ReadAll], Doom::Clean, &[]);
    vec![act(steps, doom, &[Between::Apart]), apart, again]
}

pub(super) fn apart(rng: &mut Rng) -> Vec<Act> {
    let mut apart = Vec::new();
    if rng.coin() {
        apart.push(work(rng, 4));
    }
    let doom = afterwards(rng, &mut apart);
    let again = vec![Step::Back, Step::AwaitWhole, Step::ReadAll];
    vec![act(settled(rng), Doom::Clean, &[Between::Apart]), act(apart, doom, &[]), act(again, Doom::Clean, &[])]
}

pub(super) fn old_copy(rng: &mut Rng) -> Vec<Act> {
    let mut steps = settled(rng);
    let doom = afterwards(rng, &mut steps);
    let first = act(steps, doom, &[Between::Copy]);
    let mut steps = settled(rng);
    if rng.coin() {
        steps.push(Step::Fail);
        steps.push(work(rng, 5));
    }
    let doom = afterwards(rng, &mut steps);
    let again = vec![Step::Back, Step::AwaitWhole, Step::ReadAll];
    vec![first, act(steps, doom, &[Between::Restore]), act(again, Doom::Clean, &[])]
}

pub(super) fn early_return(rng: &mut Rng) -> Vec<Act> {
    let hangs = rng.between(10_000, 60_000) as u32;
    let think_ns_max = *rng.pick(&[1_000_000, 20_000_000, 200_000_000]);
    let of = Work { clients: 2, think_ns_max, hot: 1_000_000, blocks_max: 8, ..draw_work(rng, 300) };
    let mut steps = vec![work(rng, 20), Step::Hang(hangs), Step::Work(of, Some((0, 16)), Wait::No)];
    for round in 0..rng.between(3, 10) {
        steps.push(Step::Await("dropped"));
        if round > 0 {
            steps.push(Step::Hang(if rng.coin() { 0 } else { hangs }));
        }
        steps.push(Step::Rest(rng.below(2_000_000_000)));
        steps.push(Step::Return);
        steps.push(Step::Work(Work { requests: 60, ..of }, Some((0, 16)), Wait::No));
    }
    steps.extend([Step::Hang(0), Step::Rest(70_000_000_000), Step::ReadAll]);
    vec![act(steps, Doom::Clean, &[])]
}

pub(super) fn merging(rng: &mut Rng) -> Vec<Act> {
    // One region, so that no other bits are written that would bring these along.
    let here = Some((0, 16));
    let of = Work { clients: 1, blocks_max: 4, ..draw_work(rng, 3) };
    let steps = vec![Step::Work(of, here, Wait::No), Step::Rest(rng.between(200_000, 2_000_000))];
    let first = act(steps, soon(rng, "writing bits", 4, &[1, 60_000, 200_000], 2), &[]);
    let of = Work { flushes: true, ..draw_work(rng, 20) };
    let second = act(vec![Step::Work(of, here, Wait::Ended)], Doom::Clean, &[Between::LoseAllButOne]);
    vec![first, second, act(vec![Step::ReadAll, work(rng, 5)], Doom::Clean, &[])]
}

pub(super) fn settling(rng: &mut Rng) -> Vec<Act> {
    let of = Work { think_ns_max: 20_000, ..draw_work(rng, 60) };
    let of = Work { clients: 3, ..of };
    let steps =
        vec![Step::Work(of, None, Wait::No), Step::Rest(rng.between(1_000_000, 6_000_000)), Step::Rest(u64::MAX)];
    let first = act(steps, soon(rng, "nothing more to do", 1, &[1, 300_000], 3), &[]);
    let moment = *rng.pick(&["regions called", "resynced"]);
    let doom = soon(rng, moment, 1, &[500_000, 2_000_000, 6_000_000], 4);
    let second = act(vec![Step::ReadAll, Step::Rest(10_000_000)], doom, &[Between::LoseAllButOne]);
    vec![first, second, act(vec![Step::ReadAll, work(rng, 5)], Doom::Clean, &[])]
}

pub(super) fn half_cleared(rng: &mut Rng) -> Vec<Act> {
    let of = Work { flushes: false, ..draw_work(rng, 20) };
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
    vec![act(steps, doom, &[]), act(then, Doom::Clean, &[])]
}

pub(super) fn checking(rng: &mut Rng) -> Vec<Act> {
    let mut steps = settled(rng);
    for _ in 0..rng.between(1, 3) {
        let of = Work { clients: 3, think_ns_max: *rng.pick(&[50_000, 400_000]), ..draw_work(rng, 200) };
        steps.extend([Step::Work(of, None, Wait::No), Step::Check]);
    }
    steps.push(Step::ReadAll);
    vec![act(steps, Doom::Clean, &[])]
}

pub(super) fn unreadable(rng: &mut Rng) -> Vec<Act> {
    let blocks = rng.between(1, 4);
    if rng.coin() {
        // What a crash left unequal is made equal, but for that.
        let doom = soon(rng, "writing bits", 10, &[60_000, 1_000_000], 2);
        let mut steps = vec![Step::ReadAll, work(rng, 20)];
        if rng.coin() {
            steps.extend([Step::Overwrite, Step::ReadAll]);
        }
        let first = act(vec![work(rng, 60)], doom, &[Between::Unreadable(blocks)]);
        return vec![first, act(steps, Doom::Clean, &[]), act(vec![work(rng, 20)], Doom::Clean, &[])];
    }
    let mut steps = settled(rng);
    steps.extend([Step::Fail, work(rng, 10), Step::Unreadable(blocks), Step::ReadAll, back(rng), Step::AwaitWhole]);
    if rng.coin() {
        steps.push(load(rng, 40));
    }
    steps.extend([Step::ReadAll, Step::ReadAll, Step::Overwrite]);
    let doom = afterwards(rng, &mut steps);
    let then = act(vec![Step::Return, Step::AwaitWhole, Step::ReadAll], Doom::Clean, &[]);
    vec![act(steps, doom, &[]), then]
}

pub(super) fn replacing(rng: &mut Rng) -> Vec<Act> {
    let mut steps = settled(rng);
    // What a client flushes the successor flushes: nothing of it is to be flushed but by its promotion.
    let of_successor = rng.coin();
    let Step::Work(of, ..) = load(rng, 300) else { unreachable!() };
    let load = Step::Work(Work { flushes: !of_successor, ..of }, None, Wait::No);
    if !of_successor || rng.coin() {
        steps.push(load);
    }
    steps.extend([Step::Rest(rng.below(500_000)), Step::Replace(Whom::Victim)]);
    if rng.below(6) == 0 {
        steps.extend([Step::Rest(rng.below(3_000_000)), Step::Fail]);
    }
    steps.push(Step::AwaitReplaced);
    let doom = match of_successor {
        true if rng.coin() => soon(rng, "replaced", 1, &[1, 100_000, 1_000_000], 4),
        true => soon(rng, "freezing", 1, &[200_000, 700_000, 2_000_000], 4),
        false => soon(rng, "freezing", 1, &[200_000, 700_000, 2_000_000], 2),
    };
    let after: &[Between] = match rng.below(6) {
        0 => &[],
        _ if of_successor => &[Between::LoseOthersOfSuccessor],
        _ => &[Between::LoseOthersOfAll],
    };
    vec![act(steps, doom, after), act(vec![Step::ReadAll, work(rng, 20)], Doom::Clean, &[])]
}

pub(super) fn taking_over(rng: &mut Rng) -> Vec<Act> {
    let mut steps = settled(rng);
    steps.push(Step::Fail);
    if rng.coin() {
        steps.push(work(rng, 10));
    }
    steps.extend([Step::SpoilSuccessor, Step::Replace(Whom::Well), Step::Await("dropped"), Step::HealSuccessor]);
    steps.extend([work(rng, 20), Step::ReadAll]);
    let doom = afterwards(rng, &mut steps);
    let then = act(vec![Step::Back, Step::AwaitWhole, Step::ReadAll], Doom::Clean, &[]);
    vec![act(steps, doom, &[]), then]
}

pub(super) fn growing(rng: &mut Rng) -> Vec<Act> {
    let mut steps = Vec::new();
    if rng.coin() {
        steps.push(work(rng, 5));
    }
    // So slowly that there are such places all the time.
    let think_ns_max = *rng.pick(&[400_000, 1_000_000, 3_000_000]);
    let of = Work { clients: 3, reads: false, think_ns_max, blocks_max: 1, hot: 0, ..draw_work(rng, 60) };
    for _ in 0..rng.between(2, 4) {
        steps.extend([Step::Work(of, None, Wait::No), Step::Rest(rng.below(2_000_000)), Step::Grow]);
    }
    steps.push(Step::ReadAll);
    let doom = match rng.below(3) {
        0 => soon(rng, "grown", 1, &[1, 300_000, 2_000_000], 2),
        1 => soon(rng, "writing a label", 6, &[1, 300_000], 2),
        _ => afterwards(rng, &mut steps),
    };
    vec![act(steps, doom, &[]), act(vec![Step::ReadAll, work(rng, 20)], Doom::Clean, &[])]
}
