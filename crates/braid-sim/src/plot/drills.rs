//! Drills: stories of redundant arrays that chance alone would hardly tell, as each needs several things in one order: a
//! member promoted, the power cut, and then the others lost.
//!
//! A drill says what the administrator does in each life, how the life ends, and what happens to disks between two lives.
//! How much of everything, and when exactly, is drawn. One of the members is the *victim*.

use super::row_drills;
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
    /// So many blocks can no longer be read on any member that is in sync.
    Unreadable(u64),
    /// These are written.
    Overwrite,
    /// Somebody reads everything.
    ReadAll,
    /// Copies are compared, and mended.
    Check,
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

/// What a drill is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// Who was promoted last is the only one left.
    Succession,
    /// Bits are cleared, and set again, while clients write.
    Clearing,
    /// A member is left out while clients write.
    Dropping,
    /// A crash comes while a member is filled, and the filling goes on.
    Refilling,
    /// A member is filled while clients write.
    FillingUnderLoad,
    /// Both halves run apart after a promotion that was cut.
    CutPromotion,
    /// Both halves run apart.
    Apart,
    /// An old copy of a member turns up.
    OldCopy,
    /// A member returns while its disk still has I/O from before.
    EarlyReturn,
    /// Bits that a crash left on one member, a write there, and that member lost.
    Merging,
    /// What a crash left unequal is made equal and read; another crash, and one member lost.
    Settling,
    /// A member fails while bits are being cleared.
    HalfCleared,
    /// Copies are compared and mended while clients write.
    Checking,
    /// What no member that is in sync can read.
    Unreadable,
    /// A member is replaced while clients write; then its successor is the only one left, or it is.
    Replacing,
    /// The only member in sync is replaced, and its successor fails when it is to take the place.
    TakingOver,
    /// The array becomes larger while clients write where nobody has written.
    Growing,
    /// Of an array with parity: rows are on their way when power and members are lost.
    RowsTorn,
    /// The same rows are written over and over, one request after the other.
    RowsInTurn,
    /// As the first, and another crash while that is being dealt with.
    RowsTornTwice,
    /// A member is filled anew while the journal is in use, and then others are lost.
    RowsOfNewcomers,
    /// Rows are written while members are out, and a crash comes.
    RowsDegraded,
}

impl Subject {
    /// Those that [`Subject::any`] draws from.
    const FIRST: [Subject; 14] = [
        Subject::Succession,
        Subject::Clearing,
        Subject::Dropping,
        Subject::Refilling,
        Subject::FillingUnderLoad,
        Subject::CutPromotion,
        Subject::Apart,
        Subject::OldCopy,
        Subject::EarlyReturn,
        Subject::Merging,
        Subject::Settling,
        Subject::HalfCleared,
        Subject::Checking,
        Subject::Unreadable,
    ];

    /// Any of them: those more often that show what they are about seldom.
    pub fn any(rng: &mut Rng) -> Subject {
        const SELDOM: [Subject; 7] = [
            Subject::FillingUnderLoad,
            Subject::Succession,
            Subject::Clearing,
            Subject::Dropping,
            Subject::Merging,
            Subject::Settling,
            Subject::HalfCleared,
        ];
        if rng.below(3) == 0 { *rng.pick(&SELDOM) } else { *rng.pick(&Subject::FIRST) }
    }

    /// The same, or now and then one of those that came later, by a chance of their own: what else a seed draws stays.
    /// One of so many is one of those.
    pub fn or_later(self, of: u64, chance: &mut Rng) -> Subject {
        const LATER: [Subject; 3] = [Subject::Replacing, Subject::TakingOver, Subject::Growing];
        if chance.below(of) == 0 { *chance.pick(&LATER) } else { self }
    }

    /// Whether one of the shards is much busier than the others.
    pub fn has_busy_shard(self) -> bool {
        matches!(self, Subject::FillingUnderLoad | Subject::Growing)
    }

    /// Whether it needs a disk that is no member.
    pub fn replaces(self) -> bool {
        matches!(self, Subject::Replacing | Subject::TakingOver)
    }

    /// Its name, for the count.
    pub fn name(self) -> &'static str {
        match self {
            Subject::Succession => "succession",
            Subject::Clearing => "clearing",
            Subject::Dropping => "dropping",
            Subject::Refilling => "refilling",
            Subject::FillingUnderLoad => "filling under load",
            Subject::CutPromotion => "a promotion that is cut",
            Subject::Apart => "halves apart",
            Subject::OldCopy => "an old copy",
            Subject::EarlyReturn => "an early return",
            Subject::Merging => "merging bits",
            Subject::Settling => "settling",
            Subject::HalfCleared => "bits half cleared",
            Subject::Checking => "checking",
            Subject::Unreadable => "unreadable blocks",
            Subject::Replacing => "replacing",
            Subject::TakingOver => "taking over",
            Subject::Growing => "growing",
            Subject::RowsTorn => "rows torn",
            Subject::RowsInTurn => "rows in turn",
            Subject::RowsTornTwice => "rows torn twice",
            Subject::RowsOfNewcomers => "rows of newcomers",
            Subject::RowsDegraded => "rows degraded",
        }
    }

    /// Blocks of each member beside the least, at most: where bits are what it is about, few regions are best.
    pub fn blocks_max(self) -> u64 {
        match self {
            Subject::Merging | Subject::HalfCleared | Subject::TakingOver => 30,
            Subject::Clearing | Subject::Dropping | Subject::EarlyReturn | Subject::Settling | Subject::Checking => 60,
            Subject::Apart | Subject::OldCopy | Subject::CutPromotion | Subject::Replacing => 200,
            Subject::Succession | Subject::Refilling | Subject::FillingUnderLoad | Subject::Unreadable => 600,
            Subject::Growing => 600,
            Subject::RowsTorn
            | Subject::RowsInTurn
            | Subject::RowsTornTwice
            | Subject::RowsOfNewcomers
            | Subject::RowsDegraded => 40,
        }
    }

    /// Longest time for which bits that nobody needs are kept.
    pub fn clear_ns_max(self, rng: &mut Rng) -> u64 {
        match self {
            Subject::Clearing => *rng.pick(&[20_000, 100_000, 400_000, 2_000_000]),
            Subject::HalfCleared => *rng.pick(&[400_000, 2_000_000]),
            Subject::Merging | Subject::Settling | Subject::FillingUnderLoad | Subject::Growing => 500_000_000,
            // Lives of minutes.
            Subject::EarlyReturn => 4_000_000_000,
            _ => *rng.pick(&[200_000, 2_000_000]),
        }
    }

    /// Draws what happens.
    pub fn draw(self, rng: &mut Rng) -> Vec<Act> {
        match self {
            Subject::Succession => succession(rng),
            Subject::Clearing => clearing(rng),
            Subject::Dropping => dropping(rng),
            Subject::Refilling => refilling(rng),
            Subject::FillingUnderLoad => filling_under_load(rng),
            Subject::CutPromotion => cut_promotion(rng),
            Subject::Apart => apart(rng),
            Subject::OldCopy => old_copy(rng),
            Subject::EarlyReturn => early_return(rng),
            Subject::Merging => merging(rng),
            Subject::Settling => settling(rng),
            Subject::HalfCleared => half_cleared(rng),
            Subject::Checking => checking(rng),
            Subject::Unreadable => unreadable(rng),
            Subject::Replacing => replacing(rng),
            Subject::TakingOver => taking_over(rng),
            Subject::Growing => growing(rng),
            Subject::RowsTorn => row_drills::torn(rng),
            Subject::RowsInTurn => row_drills::in_turn(rng),
            Subject::RowsTornTwice => row_drills::torn_twice(rng),
            Subject::RowsOfNewcomers => row_drills::of_newcomers(rng),
            Subject::RowsDegraded => row_drills::degraded(rng),
        }
    }
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

fn succession(rng: &mut Rng) -> Vec<Act> {
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

fn clearing(rng: &mut Rng) -> Vec<Act> {
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

fn dropping(rng: &mut Rng) -> Vec<Act> {
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

fn refilling(rng: &mut Rng) -> Vec<Act> {
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

fn filling_under_load(rng: &mut Rng) -> Vec<Act> {
    // What is written long after hides what was missed.
    let requests = *rng.pick(&[60, 200, 1200]);
    let of = Work { think_ns_max: *rng.pick(&[50_000, 400_000]), clients: 3, ..draw_work(rng, requests) };
    let load = Step::Work(of, None, Wait::No);
    let mut steps = vec![work(rng, 60), Step::Fail, work(rng, 20), load, back(rng), Step::AwaitWhole];
    let doom = if rng.coin() { Doom::Clean } else { afterwards(rng, &mut steps) };
    vec![act(steps, doom, &[Between::LoseOthers]), act(vec![Step::ReadAll], Doom::Clean, &[])]
}

fn cut_promotion(rng: &mut Rng) -> Vec<Act> {
    let mut steps = settled(rng);
    steps.extend([Step::Fail, work(rng, 10), back(rng), Step::AwaitWhole]);
    let doom = soon(rng, "promoting", 1, &[100_000, 300_000, 800_000], 2);
    let apart = act(vec![work(rng, 10)], Doom::Clean, &[]);
    let again = act(vec![Step::Back, Step::AwaitWhole, Step::ReadAll], Doom::Clean, &[]);
    vec![act(steps, doom, &[Between::Apart]), apart, again]
}

fn apart(rng: &mut Rng) -> Vec<Act> {
    let mut apart = Vec::new();
    if rng.coin() {
        apart.push(work(rng, 4));
    }
    let doom = afterwards(rng, &mut apart);
    let again = vec![Step::Back, Step::AwaitWhole, Step::ReadAll];
    vec![act(settled(rng), Doom::Clean, &[Between::Apart]), act(apart, doom, &[]), act(again, Doom::Clean, &[])]
}

fn old_copy(rng: &mut Rng) -> Vec<Act> {
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

fn early_return(rng: &mut Rng) -> Vec<Act> {
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

fn merging(rng: &mut Rng) -> Vec<Act> {
    // One region, so that no other bits are written that would bring these along.
    let here = Some((0, 16));
    let of = Work { clients: 1, blocks_max: 4, ..draw_work(rng, 3) };
    let steps = vec![Step::Work(of, here, Wait::No), Step::Rest(rng.between(200_000, 2_000_000))];
    let first = act(steps, soon(rng, "writing bits", 4, &[1, 60_000, 200_000], 2), &[]);
    let of = Work { flushes: true, ..draw_work(rng, 20) };
    let second = act(vec![Step::Work(of, here, Wait::Ended)], Doom::Clean, &[Between::LoseAllButOne]);
    vec![first, second, act(vec![Step::ReadAll, work(rng, 5)], Doom::Clean, &[])]
}

fn settling(rng: &mut Rng) -> Vec<Act> {
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

fn half_cleared(rng: &mut Rng) -> Vec<Act> {
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

fn checking(rng: &mut Rng) -> Vec<Act> {
    let mut steps = settled(rng);
    for _ in 0..rng.between(1, 3) {
        let of = Work { clients: 3, think_ns_max: *rng.pick(&[50_000, 400_000]), ..draw_work(rng, 200) };
        steps.extend([Step::Work(of, None, Wait::No), Step::Check]);
    }
    steps.push(Step::ReadAll);
    vec![act(steps, Doom::Clean, &[])]
}

fn unreadable(rng: &mut Rng) -> Vec<Act> {
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

fn replacing(rng: &mut Rng) -> Vec<Act> {
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

fn taking_over(rng: &mut Rng) -> Vec<Act> {
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

fn growing(rng: &mut Rng) -> Vec<Act> {
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
