//! `--sweep`: interrupts a start at each of its steps with either kind of crash, and then the next start again.

use super::oracle::Rule;
use super::report::Outcome;
use super::world::{Check, Options, Shm, World};
use crate::rng::{Rng, mix};

/// How many times the start after an interrupted one is interrupted as well, each time at another step.
const SECOND_CUTS: u64 = 3;

/// Runs a seed up to its last crash, and then starts from there, interrupted at each step.
pub fn sweep(seed: u64, options: &Options) -> Outcome {
    let mut world = World::new(seed, options);
    let violation = sweep_cuts(&mut world, seed, options).err();
    Outcome { counters: world.counters, hash: world.hash, violation }
}

fn sweep_cuts(world: &mut World, seed: u64, options: &Options) -> Check {
    world.make_disks();
    world.reopen(Rule::Kill)?;
    let lives = world.rng.below(u64::from(options.lives_max));
    for _ in 0..lives {
        world.run_life(options)?;
        let rule = world.crash();
        world.reopen(rule)?;
    }
    world.run_life(options)?;
    let rule = world.crash();
    let mut whole = world.fork();
    let steps = whole.open_cut(u64::MAX)?.expect("nothing cuts it");
    for step in 0..steps {
        for again in 0..SECOND_CUTS {
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
            // The second start may need fewer steps.
            break;
        }
        world.counters.add("sweep", "starts cut", 1);
        if let Rule::Power = world.crash() {
            rule = Rule::Power;
        }
    }
    world.forget();
    world.open_cut(u64::MAX)?.expect("nothing cuts it");
    world.check_all(rule)
}

impl World {
    /// Opens the pool within this many steps. Returns `None` if they were too few, else how many it took.
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

    /// Copies the world, as it is after a crash.
    pub(super) fn fork(&self) -> World {
        let shm = self.shm.iter().map(|(session, memory)| (*session, Shm::copy(memory))).collect();
        World {
            rng: self.rng.clone(),
            parameters: self.parameters.clone(),
            disks: self.disks.clone(),
            devices: self.devices.clone(),
            uuid: self.uuid,
            owner_slots: self.owner_slots,
            shm,
            pool: None,
            memory: super::world::memory(),
            models: self.models.clone(),
            calls: Vec::new(),
            jobs: Vec::new(),
            ios: Vec::new(),
            barrier: None,
            now: self.now,
            names: self.names,
            next_job: self.next_job,
            closed: self.closed.clone(),
            closed_by_force: self.closed_by_force.clone(),
            never_snapshotted: self.never_snapshotted.clone(),
            policy_changed: self.policy_changed,
            removed: self.removed.clone(),
            removed_devices: self.removed_devices.clone(),
            consolidated: (0, 0),
            flattens: self.flattens,
            flattened: 0,
            failing: None,
            full: self.full.clone(),
            missing: self.missing.clone(),
            returned: self.returned.clone(),
            adding: None,
            add_chance: self.add_chance,
            shrinks: self.shrinks,
            disk_copies: self.disk_copies.clone(),
            rotten: self.rotten,
            accepted_losses: self.accepted_losses,
            accepts_losses: self.accepts_losses,
            lost_members: self.lost_members.clone(),
            unreadable: None,
            overwrites_unreadable: false,
            start_participants: self.start_participants,
            life: self.life,
            last_life: self.last_life.clone(),
            violation: None,
            aim: None,
            fuse: None,
            counters: super::report::Counters::default(),
            hash: self.hash,
            trace: self.trace,
        }
    }
}
