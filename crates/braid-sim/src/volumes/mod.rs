//! Pools in the whole stack: shards, volumes and their clients, administrators and arrays, over disks that lose what
//! was not flushed. The process is killed and the power cut at any moment, also while the pool is opened.
//!
//! The pool is on devices of the engine: bare disks, mirrors and arrays with parity, which have labels, reconcilers and
//! one faulty disk. It is opened through the shards, as the daemon opens it, once the arrays below it run.
//! [`crate::pools`] simulates the home of a pool alone; this module simulates what shards make of it.

mod admin;
mod clients;
mod flatten;
mod life;
mod manage;
mod member_starts;
mod members;
mod moves;
#[cfg(feature = "mutations")]
pub mod mutations;
mod oracle;
mod parameters;
mod pool_check;
mod request;
pub mod required;
mod shared_state;

use std::cell::RefCell;
use std::rc::Rc;

use life::{LifeEnd, ProcessLife};
use members::Member;
use oracle::Rule;
pub use parameters::Focus;
use parameters::Parameters;
use shared_state::SharedState;

use crate::acts::PlannedEnd;
use crate::counters::Counters;
use crate::rng::Rng;
use crate::trace::Trace;
use crate::world::{Crash, World};

/// Bytes of simulated memory.
const MEMORY_BYTES: usize = 40 << 20;

/// Maximum number of steps of a start at which a sweep interrupts it. Of a start with more steps, each seed tries other
/// ones.
const CUTS_MAX: u64 = 40;

/// Moments at which crashes aim, because they reveal more bugs there than elsewhere. A name that is listed several
/// times is drawn more often.
const MOMENTS: [&str; 24] = [
    "asking for what lasts",
    "asking for what lasts",
    "asking for what lasts",
    "taking a snapshot",
    "taking a snapshot",
    "taking a snapshot",
    "deleting",
    "deleting",
    "folding",
    "folding",
    "rolling back",
    "growing",
    "renaming",
    "cloning",
    "creating a volume",
    "writing the tables",
    "draining",
    "settling",
    "stopping",
    "reading everything",
    "writing bits",
    "logging",
    "dropped",
    "in sync",
];

/// Moments during a start at which crashes aim.
const OF_STARTS: [&str; 5] =
    ["starting an array", "making the pool", "opening the pool", "opening the pool", "looking at the pool"];

/// Options of a run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The focus of all runs.
    pub focus: Option<Focus>,
    /// Print every event as it happens.
    pub trace: bool,
}

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What happened.
    pub counters: Counters,
    /// Hash of everything that happened, and the number of events.
    pub hash: (u64, u64),
    /// The violated invariant, if any.
    pub violation: Option<String>,
    /// Durable steps of the last start.
    steps_of_start: u64,
}

/// Runs a seed.
pub fn run(seed: u64, options: &Options) -> Outcome {
    run_with_cuts(seed, options, &[])
}

/// Runs a seed again and again: each time the start after its last crash is interrupted at another of its steps, and
/// then the next start at some step. Of a start with many steps (arrays with a journal) only some are tried, other ones
/// for each seed. Returns the number of runs, too.
pub fn sweep(seed: u64, options: &Options) -> (u64, Outcome) {
    let mut whole = run_with_cuts(seed, options, &[]);
    let (mut runs, steps) = (1, whole.steps_of_start);
    let ways = [(Crash::Power, Crash::Power), (Crash::Kill, Crash::Power), (Crash::Kill, Crash::Kill)];
    let stride = steps.div_ceil(CUTS_MAX).max(1);
    let cuts = (1 + seed % stride..=steps).step_by(stride as usize);
    for (step, (first, second)) in cuts.flat_map(|step| ways.map(|way| (step, way))) {
        if whole.violation.is_some() {
            break;
        }
        let again = 1 + crate::rng::mix(seed ^ step << 8) % (steps + 4);
        let cut = run_with_cuts(seed, options, &[PlannedEnd::AtStep(step, first), PlannedEnd::AtStep(again, second)]);
        runs += 1;
        whole.counters.merge(&cut.counters);
        whole.hash = (crate::rng::mix(whole.hash.0 ^ cut.hash.0), whole.hash.1 + cut.hash.1);
        whole.violation = cut
            .violation
            .map(|why| format!("cut at step {step} of {steps}, {first:?}, and at {again}, {second:?}: {why}"));
    }
    (runs, whole)
}

/// Runs a seed, with these ends of further lives before the last life.
fn run_with_cuts(seed: u64, options: &Options, cuts: &[PlannedEnd]) -> Outcome {
    let mut rng = Rng::new(seed);
    let parameters = Parameters::draw(&mut rng, options.focus);
    let sectors = crate::rng::mix(seed ^ 0x7365_6374);
    let in_sectors = match options.focus {
        None => sectors.is_multiple_of(3),
        focus => focus == Some(Focus::PartialBlocks),
    };
    // Each shard needs additional memory for partial blocks.
    let memory_bytes = if in_sectors { 2 * MEMORY_BYTES } else { MEMORY_BYTES };
    let mut world = World::new(rng.fork(), Trace::new(options.trace), memory_bytes);
    let mut shared = SharedState::new(parameters.clone(), rng.fork());
    shared.flattens = crate::rng::mix(seed ^ 0x666c_6174).is_multiple_of(3);
    shared.sectors = in_sectors.then(|| Rng::new(sectors));
    shared.shrinks = crate::rng::mix(seed ^ 0x7368_7269).is_multiple_of(4);
    world.note(format_args!("{parameters:?}"));
    let members = rng.between(1, 3) as u32;
    for number in 0..members {
        let member = Member::draw(number, shared.owner_slots, &parameters, &mut world, &mut rng);
        world.counters.add("members", &format!("{:?}", member.kind));
        shared.members.push(member);
    }
    let shared = Rc::new(RefCell::new(shared));
    let lives = rng.between(1, parameters.lives) as usize;
    let mut violation = None;
    for life in 0..=lives + cuts.len() {
        let last = life == lives + cuts.len();
        let doom = match life.checked_sub(lives) {
            None => draw_end(&parameters, &mut rng),
            Some(cut) => cuts.get(cut).copied().unwrap_or(PlannedEnd::Clean),
        };
        if let Err(why) = run_life(&mut world, &shared, doom, last, &mut rng) {
            violation = Some(why);
            break;
        }
    }
    if let Some(why) = &violation {
        world.note(format_args!("VIOLATION: {why}"));
    }
    world.counters.merge(&shared.borrow().counters);
    let counters = std::mem::take(&mut world.counters);
    let steps_of_start = shared.borrow().steps_of_start;
    Outcome { counters, hash: (world.trace.hash(), world.trace.events()), violation, steps_of_start }
}

fn draw_end(parameters: &Parameters, rng: &mut Rng) -> PlannedEnd {
    let crash = if rng.chance(parameters.power) { Crash::Power } else { Crash::Kill };
    if rng.chance(parameters.cut_starts) {
        return match rng.below(3) {
            0 => PlannedEnd::AtStep(rng.between(1, 120), crash),
            _ => {
                let ns = *rng.pick(&[300_000, 3_000_000, 30_000_000]);
                PlannedEnd::Within(any_of(&OF_STARTS, rng), 1, rng.below(ns), crash)
            }
        };
    }
    if rng.chance(parameters.cut_answers) {
        let ns = *rng.pick(&[1, 20_000, 200_000]);
        return PlannedEnd::Within("what lasts is answered", rng.between(1, 20), rng.below(ns), crash);
    }
    match rng.below(10) {
        0 => PlannedEnd::Clean,
        1..3 => PlannedEnd::After(rng.between(1, 100_000_000), crash),
        3..5 => PlannedEnd::AtStep(rng.between(1, 6000), crash),
        _ => {
            let ns = *rng.pick(&[1, 20_000, 200_000, 2_000_000]);
            PlannedEnd::Within(any_of(&MOMENTS, rng), rng.between(1, 6), rng.below(ns), crash)
        }
    }
}

fn any_of(moments: &[&'static str], rng: &mut Rng) -> &'static str {
    moments[rng.index(moments.len())]
}

/// Runs one life, and applies the consequences of its end.
fn run_life(
    world: &mut World,
    shared: &Rc<RefCell<SharedState>>,
    doom: PlannedEnd,
    last: bool,
    rng: &mut Rng,
) -> Result<(), String> {
    {
        let shared = shared.borrow();
        let faults = shared.made && !last;
        shared.members.iter().for_each(|member| member.set_faults(faults, world));
    }
    let end = ProcessLife::new(world, shared, rng).run(doom, last, rng);
    let mut shared = shared.borrow_mut();
    match end {
        LifeEnd::Wrong(why) => return Err(why),
        LifeEnd::Clean => {
            world.counters.add("ends", "clean");
            world.leave();
            // The machine may be shut down, too. Everything that was acknowledged has been committed.
            let (power, closed) = (rng.coin(), shared.closed);
            if power {
                world.crash(Crash::Power);
            }
            shared.end_process(power, if power && !closed { Rule::Power } else { Rule::Kill });
        }
        LifeEnd::Crash(how) => {
            let kind = if how == Crash::Power { "power" } else { "kill" };
            world.counters.add("crashes", &format!("{kind} while {}", shared.phase));
            world.crash(how);
            match how {
                Crash::Power => shared.end_process(true, Rule::Power),
                Crash::Kill => shared.end_process(false, Rule::Kill),
            }
        }
    }
    // Some of the pulled disks return.
    for disk in &mut world.disks {
        disk.gone &= rng.coin();
    }
    Ok(())
}
