//! The command line. Every simulation has the same options, runs and reports; what differs is behind [`Simulation`].

mod arguments;
mod arrays;
#[cfg(feature = "mutations")]
mod hunt;
mod pools;
mod replicas;
mod run;
mod simulation;
mod volumes;

use std::process::ExitCode;

use arguments::Arguments;
use simulation::Simulation;

/// The options that every simulation has.
const USAGE: &str = "\
usage: braid-sim SIMULATION [--seeds A..B | --seed N] [--trace]
       braid-sim SIMULATION --mutation NAME [--seeds A..B | --seed N]     (after scripts/mutations.sh build)
       braid-sim SIMULATION --hunt [--seeds A..B | --table]               (after scripts/mutations.sh build)
simulations, and the options that only they have:";

/// Returns every simulation, with its default options.
fn simulations() -> [Box<dyn Simulation>; 4] {
    [
        Box::<arrays::Arrays>::default(),
        Box::<pools::Pools>::default(),
        Box::<volumes::Volumes>::default(),
        Box::<replicas::Replicas>::default(),
    ]
}

/// Runs the command with these arguments.
pub fn main(mut given: impl Iterator<Item = String>) -> ExitCode {
    let name = given.next();
    let simulation = simulations().into_iter().find(|simulation| Some(simulation.name()) == name.as_deref());
    let parsed = match (simulation, name) {
        (Some(simulation), _) => Arguments::parse(simulation, given),
        (None, Some(name)) => Err(format!("no simulation {name:?}, for example braid-sim arrays --seeds 0..100")),
        (None, None) => Err("no simulation is named, for example braid-sim arrays --seeds 0..100".to_owned()),
    };
    match parsed {
        Ok(arguments) => dispatch(&arguments),
        Err(why) => {
            eprintln!("braid-sim: {why}\n{USAGE}");
            for simulation in simulations() {
                eprintln!("  {:9} {}", simulation.name(), simulation.usage());
            }
            ExitCode::from(2)
        }
    }
}

fn dispatch(arguments: &Arguments) -> ExitCode {
    #[cfg(feature = "mutations")]
    if arguments.hunt {
        return hunt::hunt(arguments);
    }
    #[cfg(feature = "mutations")]
    if let Some(target) = &arguments.mutation {
        return hunt::run_mutation(arguments, target);
    }
    if arguments.shrink {
        return run::shrink(arguments.simulation.as_ref(), arguments.seeds());
    }
    run::run(arguments)
}
