//! `--sweep`: a start is cut off at every one of its steps, by either kind of crash, and the next start again.

use super::oracle::Rule;
use super::report::Outcome;
use super::world::{Check, Options, Shm, World};
use crate::rng::{Rng, mix};

/// So often the start after one that was cut is cut as well, each time elsewhere.
const AGAIN: u64 = 3;

/// Tells the seed's story up to the last crash, and then starts from there, cut at each step.
pub fn sweep(seed: u64, options: &Options) -> Outcome {
    let mut world = World::new(seed, options);
    let violation = story(&mut world, seed, options).err();
    Outcome { counters: world.counters, hash: world.hash, violation }
}

fn story(world: &mut World, seed: u64, options: &Options) -> Check {
    world.make_disks();
    world.reopen(Rule::Kill)?;
    let lives = world.rng.below(u64::from(options.lives));
    for _ in 0..lives {
        world.live(options)?;
        let rule = world.crash();
        world.reopen(rule)?;
    }
    world.live(options)?;
    let rule = world.crash();
    let mut whole = world.fork();
    let steps = whole.open_cut(u64::MAX)?.expect("nothing cuts it");
    for step in 0..steps {
        for again in 0..AGAIN {
            let mut cut = world.fork();
            cut.rng = Rng::new(mix(mix(seed) ^ step << 8 ^ again));
            let result = cut_twice(&mut cut, step, steps, rule);
            world.counters.merge(&cut.counters);
            result.map_err(|why| format!("cut at step {step} of {steps}, {again}: {why}"))?;
        }
    }
    Ok(())
}

fn cut_twice(world: &mut World, step: u64, steps: u64, mut rule: Rule) -> Check {
    let second = world.rng.below(steps + 4);
    for left in [step, second] {
        if world.open_cut(left)?.is_some() {
            // The second one may need fewer steps.
            break;
        }
        world.counters.add("sweep", "starts cut", 1);
        if let Rule::Power = world.crash() {
            rule = Rule::Power;
        }
    }
    world.forget();
    world.open_cut(u64::MAX)?.expect("nothing cuts it");
    world.look_at_all(rule)
}

impl World {
    /// Opens the pool with so many steps. `None`: they were too few; else how many it took.
    fn open_cut(&mut self, left: u64) -> Result<Option<u64>, String> {
        match self.try_open(left, None) {
            Ok((pool, took)) => {
                self.pool = Some(pool);
                Ok(Some(took))
            }
            Err(_) if left < u64::MAX => Ok(None),
            Err(error) => Err(format!("the pool does not open: {error}")),
        }
    }

    /// The same world again, after a crash.
    pub(super) fn fork(&self) -> World {
        let shm = self.shm.iter().map(|(session, memory)| (*session, Shm::copy(memory))).collect();
        World {
            rng: self.rng.clone(),
            nature: self.nature.clone(),
            disks: self.disks.clone(),
            devices: self.devices.clone(),
            uuid: self.uuid,
            owner_slots: self.owner_slots,
            shm,
            pool: None,
            memory: super::world::memory(),
            known: self.known.clone(),
            asked: Vec::new(),
            jobs: Vec::new(),
            ios: Vec::new(),
            barrier: None,
            now: self.now,
            names: self.names,
            next_job: self.next_job,
            closed: self.closed.clone(),
            shut: self.shut.clone(),
            plain: self.plain.clone(),
            placed_otherwise: self.placed_otherwise,
            gone: self.gone.clone(),
            parted: self.parted.clone(),
            put_together: (0, 0),
            flattens: self.flattens,
            flattened: 0,
            ill: None,
            full: self.full.clone(),
            away: self.away.clone(),
            coming: self.coming.clone(),
            growing: None,
            grows: self.grows,
            shrinks: self.shrinks,
            copied: self.copied.clone(),
            rotten: self.rotten,
            given_up: self.given_up,
            gives_up: self.gives_up,
            forsaken: self.forsaken.clone(),
            unreadable: None,
            writes_over: false,
            deciders: self.deciders,
            life: self.life,
            lived: self.lived.clone(),
            wrong: None,
            aim: None,
            fuse: None,
            counters: super::report::Counters::default(),
            hash: self.hash,
            trace: self.trace,
        }
    }
}
