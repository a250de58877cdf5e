//! `arrays`: arrays on their disks.

use std::ops::Range;

use braid_sim::arrays::ArrayKind;
use braid_sim::counters::Required;
#[cfg(feature = "mutations")]
use braid_sim::mutations::{Kind, Mutation, Target, arrays as mutations};
use braid_sim::required;
use braid_sim::runs::{self, Options};
use braid_sim::scenario::parity_scenarios;
use braid_sim::shrink::{self, Bounds};

use super::simulation::{Report, Shrunk, Simulation, Value};

/// The simulation of arrays.
#[derive(Clone, Default)]
pub struct Arrays {
    options: Options,
    /// `--levels` was given.
    levels: bool,
}

impl Arrays {
    fn traced(&self, trace: bool) -> Options {
        Options { print: trace, ..self.options.clone() }
    }
}

impl Simulation for Arrays {
    fn name(&self) -> &'static str {
        "arrays"
    }

    fn usage(&self) -> &'static str {
        "[--levels concat,raid0,raid1,raid10,raid5,raid6] [--scenarios | --scenario NAME | --replicated] [--sweep]
            [--shrink] (and then --seed N --bounds lives=2,requests=5 --trace)"
    }

    fn seeds(&self) -> Range<u64> {
        0..100
    }

    fn required(&self) -> Required {
        required::BY_SEEDS
    }

    fn knows(&self, flag: &str) -> bool {
        matches!(flag, "--sweep" | "--shrink")
    }

    fn option(&mut self, name: &str, value: &mut Value<'_>) -> Result<bool, String> {
        match name {
            "--levels" => {
                let of = |name: &str| ArrayKind::ALL.into_iter().find(|k| k.name() == name);
                let wrong =
                    |name| format!("--levels names no level {name:?}, for example --levels concat,raid0,raid1,raid5");
                let kinds = value("--levels raid1")?;
                let kinds: Result<_, _> = kinds.split(',').map(|name| of(name).ok_or_else(|| wrong(name))).collect();
                self.options.kinds = kinds?;
                self.levels = true;
            }
            "--bounds" => self.options.bounds = Bounds::parse(&value("--bounds lives=2,requests=5")?)?,
            "--scenarios" => self.options.scenarios_only = true,
            "--scenario" => {
                let name = value("--scenario \"stripes torn\"")?;
                let scenario = parity_scenarios::all().find(|scenario| scenario.name() == name);
                let wrong = || {
                    format!("--scenario knows no {name:?} of raid5 and raid6, for example --scenario \"stripes torn\"")
                };
                self.options.scenario = Some(scenario.ok_or_else(wrong)?);
                (self.options.scenarios_only, self.options.kinds) = (true, vec![ArrayKind::Raid5, ArrayKind::Raid6]);
            }
            "--replicated" => {
                self.options.replicated = true;
                if !self.levels {
                    self.options.kinds = vec![ArrayKind::Raid1, ArrayKind::Raid10];
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn options(&self) -> Vec<String> {
        let options = &self.options;
        let mut written = Vec::new();
        if let Some(scenario) = options.scenario {
            written.push(format!("--scenario {:?}", scenario.name()));
        } else if options.scenarios_only {
            written.push("--scenarios".to_owned());
        }
        if options.replicated {
            written.push("--replicated".to_owned());
        }
        // After the options that choose levels themselves.
        if self.levels || options.kinds != ArrayKind::ALL {
            let levels: Vec<&str> = options.kinds.iter().map(|kind| kind.name()).collect();
            written.push(format!("--levels {}", levels.join(",")));
        }
        if options.bounds != Bounds::NONE {
            written.push(format!("--bounds {}", options.bounds));
        }
        written
    }

    fn run(&self, seed: u64, trace: bool) -> Report {
        let outcome = runs::once(seed, &self.traced(trace));
        Report {
            counters: outcome.counters,
            violation: outcome.violation.map(|why| why.0),
            events: outcome.events,
            hash: Some(outcome.hash),
            runs: 0,
        }
    }

    fn sweep(&self, seed: u64, trace: bool) -> Report {
        let (runs, counters, violation) = runs::sweep(seed, &self.traced(trace));
        Report { counters, violation, runs, ..Report::default() }
    }

    fn shrink(&self, seed: u64) -> Option<Shrunk> {
        let found = shrink::shrink(&self.options, |options| shrink::failure(seed, options))?;
        let options = Options { bounds: found.bounds, ..self.options.clone() };
        let simulation = Box::new(Arrays { options, levels: self.levels });
        Some(Shrunk { simulation, why: found.why, events: found.events, tried: found.tried })
    }

    #[cfg(feature = "mutations")]
    fn targets(&self) -> Vec<Target> {
        mutations::targets()
    }

    #[cfg(feature = "mutations")]
    fn aimed_at(&self, mutation: Mutation, in_hunt: bool) -> Box<dyn Simulation> {
        let mut aimed = Arrays { options: Options { check_drained: false, ..self.options.clone() }, ..self.clone() };
        if let Some(way) = mutations::way(mutation) {
            let options = &mut aimed.options;
            if in_hunt || !self.levels {
                options.kinds = way.kinds();
            }
            if in_hunt {
                options.scenarios_only = way.kind() == Kind::Scenario;
            }
            options.replicated = way.is_of_leases() || options.replicated && !in_hunt;
            options.scenario = way.scenario().filter(|_| options.scenarios_only);
        }
        Box::new(aimed)
    }
}
