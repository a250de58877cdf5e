//! Pools in the whole stack: shards, volumes and their clients, administrators and arrays, over disks that lose what was not flushed; the
//! process is killed and the power cut at any moment, also while the pool is opened.
//!
//! The pool stands on devices that are devices of the engine: bare disks, mirrors and arrays with parity, which have labels, keepers and a
//! disk that fails. It is opened through the shards, as the daemon opens it, once the arrays below have been started. What is simulated
//! by itself in [`crate::pools`] is the home of a pool; here it is what shards make of it.

mod admin;
mod clients;
mod flatten;
mod judge;
mod life;
mod manage;
mod members;
mod moves;
mod nature;
mod oracle;
#[cfg(feature = "planted")]
pub mod plant;
pub mod required;
mod scene;

use std::cell::RefCell;
use std::rc::Rc;

use life::{End, Life};
use members::Member;
pub use nature::Focus;
use nature::Nature;
use oracle::Rule;
use scene::Scene;

use crate::counters::Counters;
use crate::rng::Rng;
use crate::sim::Doom;
use crate::trace::Trace;
use crate::world::{Crash, World};

/// Bytes of simulated memory.
const MEMORY_BYTES: usize = 40 << 20;

/// At so many steps of a start a sweep cuts it at most.
const CUTS_MAX: u64 = 40;

/// Moments at which a crash is worth more than at others.
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

/// Of a start.
const OF_STARTS: [&str; 5] =
    ["starting an array", "making the pool", "opening the pool", "opening the pool", "looking at the pool"];

/// How runs are made.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What all are about.
    pub focus: Option<Focus>,
    /// Print every event as it happens.
    pub trace: bool,
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What happened.
    pub counters: Counters,
    /// Of everything that happened, and how much that was.
    pub hash: (u64, u64),
    /// What must not be.
    pub violation: Option<String>,
    /// Durable steps of the last start.
    steps_of_start: u64,
}

/// Runs a seed.
pub fn run(seed: u64, options: &Options) -> Outcome {
    tell(seed, options, &[])
}

/// Runs a seed again and again: each time the start after its last crash is cut at another one of its steps (of many steps, as arrays with
/// a journal take, at some, other ones for each seed), and then the next start at some step. Returns how often, too.
pub fn sweep(seed: u64, options: &Options) -> (u64, Outcome) {
    let mut whole = tell(seed, options, &[]);
    let (mut runs, steps) = (1, whole.steps_of_start);
    let ways = [(Crash::Power, Crash::Power), (Crash::Kill, Crash::Power), (Crash::Kill, Crash::Kill)];
    let stride = steps.div_ceil(CUTS_MAX).max(1);
    let cuts = (1 + seed % stride..=steps).step_by(stride as usize);
    for (step, (first, second)) in cuts.flat_map(|step| ways.map(|way| (step, way))) {
        if whole.violation.is_some() {
            break;
        }
        let again = 1 + crate::rng::mix(seed ^ step << 8) % (steps + 4);
        let cut = tell(seed, options, &[Doom::AtStep(step, first), Doom::AtStep(again, second)]);
        runs += 1;
        whole.counters.merge(&cut.counters);
        whole.hash = (crate::rng::mix(whole.hash.0 ^ cut.hash.0), whole.hash.1 + cut.hash.1);
        whole.violation = cut
            .violation
            .map(|why| format!("cut at step {step} of {steps}, {first:?}, and at {again}, {second:?}: {why}"));
    }
    (runs, whole)
}

/// Tells the story of a seed, with these ends of further lives before the last.
fn tell(seed: u64, options: &Options, cuts: &[Doom]) -> Outcome {
    let mut rng = Rng::new(seed);
    let nature = Nature::draw(&mut rng, options.focus);
    let sectors = crate::rng::mix(seed ^ 0x7365_6374);
    let in_sectors = match options.focus {
        None => sectors.is_multiple_of(3),
        focus => focus == Some(Focus::Sectors),
    };
    // Each shard takes some for what is not of whole blocks.
    let memory_bytes = if in_sectors { 2 * MEMORY_BYTES } else { MEMORY_BYTES };
    let mut world = World::new(rng.fork(), Trace::new(options.trace), memory_bytes);
    let mut scene = Scene::new(nature.clone(), rng.fork());
    scene.flattens = crate::rng::mix(seed ^ 0x666c_6174).is_multiple_of(3);
    scene.sectors = in_sectors.then(|| Rng::new(sectors));
    scene.shrinks = crate::rng::mix(seed ^ 0x7368_7269).is_multiple_of(4);
    world.note(format_args!("{nature:?}"));
    let members = rng.between(1, 3) as u32;
    for number in 0..members {
        let member = Member::draw(number, scene.owner_slots, &nature, &mut world, &mut rng);
        world.counters.add("members", &format!("{:?}", member.kind));
        scene.members.push(member);
    }
    let scene = Rc::new(RefCell::new(scene));
    let lives = rng.between(1, nature.lives) as usize;
    let mut violation = None;
    for life in 0..=lives + cuts.len() {
        let last = life == lives + cuts.len();
        let doom = match life.checked_sub(lives) {
            None => draw_doom(&nature, &mut rng),
            Some(cut) => cuts.get(cut).copied().unwrap_or(Doom::Clean),
        };
        if let Err(why) = live(&mut world, &scene, doom, last, &mut rng) {
            violation = Some(why);
            break;
        }
    }
    if let Some(why) = &violation {
        world.note(format_args!("VIOLATION: {why}"));
    }
    world.counters.merge(&scene.borrow().counters);
    let counters = std::mem::take(&mut world.counters);
    let steps_of_start = scene.borrow().steps_of_start;
    Outcome { counters, hash: (world.trace.hash(), world.trace.events()), violation, steps_of_start }
}

fn draw_doom(nature: &Nature, rng: &mut Rng) -> Doom {
    let crash = if rng.chance(nature.power) { Crash::Power } else { Crash::Kill };
    if rng.chance(nature.cut_starts) {
        return match rng.below(3) {
            0 => Doom::AtStep(rng.between(1, 120), crash),
            _ => {
                let ns = *rng.pick(&[300_000, 3_000_000, 30_000_000]);
                Doom::Within(any_of(&OF_STARTS, rng), 1, rng.below(ns), crash)
            }
        };
    }
    if rng.chance(nature.cut_answers) {
        let ns = *rng.pick(&[1, 20_000, 200_000]);
        return Doom::Within("what lasts is answered", rng.between(1, 20), rng.below(ns), crash);
    }
    match rng.below(10) {
        0 => Doom::Clean,
        1..3 => Doom::After(rng.between(1, 100_000_000), crash),
        3..5 => Doom::AtStep(rng.between(1, 6000), crash),
        _ => {
            let ns = *rng.pick(&[1, 20_000, 200_000, 2_000_000]);
            Doom::Within(any_of(&MOMENTS, rng), rng.between(1, 6), rng.below(ns), crash)
        }
    }
}

fn any_of(moments: &[&'static str], rng: &mut Rng) -> &'static str {
    moments[rng.index(moments.len())]
}

/// One life, and what its end leaves.
fn live(world: &mut World, scene: &Rc<RefCell<Scene>>, doom: Doom, last: bool, rng: &mut Rng) -> Result<(), String> {
    {
        let scene = scene.borrow();
        let faults = scene.made && !last;
        scene.members.iter().for_each(|member| member.behave(faults, world));
    }
    let end = Life::new(world, scene, rng).run(doom, last, rng);
    let mut scene = scene.borrow_mut();
    match end {
        End::Wrong(why) => return Err(why),
        End::Clean => {
            world.counters.add("ends", "clean");
            world.leave();
            // The machine is shut down, perhaps. What was acknowledged has been committed.
            let (power, closed) = (rng.coin(), scene.closed);
            if power {
                world.crash(Crash::Power);
            }
            scene.bury(power, if power && !closed { Rule::Power } else { Rule::Kill });
        }
        End::Crash(how) => {
            let kind = if how == Crash::Power { "power" } else { "kill" };
            world.counters.add("crashes", &format!("{kind} while {}", scene.phase));
            world.crash(how);
            match how {
                Crash::Power => scene.bury(true, Rule::Power),
                Crash::Kill => scene.bury(false, Rule::Kill),
            }
        }
    }
    // Some of the disks that were pulled are back.
    for disk in &mut world.disks {
        disk.gone &= rng.coin();
    }
    Ok(())
}
