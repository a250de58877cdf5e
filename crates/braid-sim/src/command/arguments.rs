//! The arguments of the command.

use std::ops::Range;
use std::str::FromStr;

#[cfg(feature = "mutations")]
use braid_sim::mutations::Target;

use super::simulation::Simulation;

/// The arguments.
pub struct Arguments {
    /// The simulation, with its own options.
    pub simulation: Box<dyn Simulation>,
    seeds: Option<Range<u64>>,
    /// Print every event.
    pub trace: bool,
    /// Sweep every seed: interrupt it by a crash at every step in turn.
    pub sweep: bool,
    /// Shrink the seeds that fail.
    pub shrink: bool,
    /// Look for every mutation.
    #[cfg(feature = "mutations")]
    pub hunt: bool,
    /// Only print which seeds find the mutations.
    #[cfg(feature = "mutations")]
    pub table: bool,
    /// The mutation to run with.
    #[cfg(feature = "mutations")]
    pub mutation: Option<Target>,
}

impl Arguments {
    /// Parses what follows the name of the simulation.
    ///
    /// # Errors
    /// A message that names the wrong argument, with a right example.
    pub fn parse(
        simulation: Box<dyn Simulation>,
        mut given: impl Iterator<Item = String>,
    ) -> Result<Arguments, String> {
        let mut parsed = Arguments {
            simulation,
            seeds: None,
            trace: false,
            sweep: false,
            shrink: false,
            #[cfg(feature = "mutations")]
            hunt: false,
            #[cfg(feature = "mutations")]
            table: false,
            #[cfg(feature = "mutations")]
            mutation: None,
        };
        while let Some(name) = given.next() {
            let mut value =
                |example: &str| given.next().ok_or_else(|| format!("{name} needs a value, for example {example}"));
            match name.as_str() {
                "--seeds" => parsed.seeds = Some(range(&value("--seeds 0..100")?)?),
                "--seed" => {
                    let text = value("--seed 907")?;
                    let seed = text.parse::<u64>().ok().filter(|seed| *seed < u64::MAX);
                    let seed = seed.ok_or_else(|| format!("--seed {text:?} is no seed, for example --seed 907"))?;
                    parsed.seeds = Some(seed..seed + 1);
                }
                "--trace" => parsed.trace = true,
                "--sweep" if parsed.simulation.knows(&name) => parsed.sweep = true,
                "--shrink" if parsed.simulation.knows(&name) => parsed.shrink = true,
                #[cfg(feature = "mutations")]
                "--mutation" => {
                    let wanted = value("--mutation NoRangeLock")?;
                    let mut targets = parsed.simulation.targets().into_iter();
                    parsed.mutation =
                        Some(targets.find(|target| target.mutation.name() == wanted).ok_or_else(|| {
                            let first = parsed.simulation.targets().first().map(|target| target.mutation.name());
                            format!(
                                "--mutation knows no {wanted:?}, for example --mutation {}",
                                first.unwrap_or_default()
                            )
                        })?);
                }
                #[cfg(feature = "mutations")]
                "--hunt" => parsed.hunt = true,
                #[cfg(feature = "mutations")]
                "--table" => parsed.table = true,
                #[cfg(not(feature = "mutations"))]
                "--mutation" | "--hunt" | "--table" => {
                    return Err(format!(
                        "{name} needs the mutations: scripts/mutations.sh build, for example target/mutations/verify/braid-sim {} --hunt",
                        parsed.simulation.name()
                    ));
                }
                _ if parsed.simulation.option(&name, &mut value)? => {}
                _ => return Err(format!("unknown argument {name:?}, for example --seeds 0..100")),
            }
        }
        Ok(parsed)
    }

    /// Returns the seeds to run.
    pub fn seeds(&self) -> Range<u64> {
        self.seeds.clone().unwrap_or_else(|| self.simulation.seeds())
    }

    /// Returns the seeds, if any were given.
    #[cfg(feature = "mutations")]
    pub fn given_seeds(&self) -> Option<Range<u64>> {
        self.seeds.clone()
    }
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let ends = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    let wrong = || format!("--seeds {text:?} is no range of seeds, for example --seeds 0..100");
    ends.filter(|(a, b)| a < b).map(|(a, b)| a..b).ok_or_else(wrong)
}

/// Returns the number that is the value of an option.
///
/// # Errors
/// A message that names the value.
pub fn number<T: FromStr>(option: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{option} {text:?} is no number, for example {option} 5"))
}

/// Returns that of the values in `all` whose name was given for an option.
///
/// # Errors
/// A message that names the value.
pub fn one_of<T: Copy>(option: &str, text: &str, all: &[(&'static str, T)]) -> Result<T, String> {
    let found = all.iter().find(|(name, _)| *name == text).map(|(_, one)| *one);
    found.ok_or_else(|| format!("{option} knows no {text:?}, for example {option} {}", all[0].0))
}

/// Returns an option and the name of its value as they are written on the command line, if a value is set.
pub fn written<T: Copy + PartialEq>(option: &str, value: Option<T>, all: &[(&'static str, T)]) -> Option<String> {
    let (name, _) = all.iter().find(|(_, one)| Some(*one) == value)?;
    Some(format!("{option} {name}"))
}
