//! A pool is withdrawn while requests and its own I/Os are in flight, and another one is served under its key when none
//! of them is.

use std::collections::BTreeMap;

use super::*;
use crate::volumes::rig::{Faults, Random};
use crate::volumes::{add, admin_step, seeds, setup, tell, user_step};

impl World {
    /// Withdraws the pool: nothing of it is published any more; I/O in flight continues.
    fn leave_pool(&mut self) {
        let all: Vec<Uuid> = self.known.keys().copied().filter(|uuid| self.is_served(*uuid)).collect();
        all.into_iter().for_each(|uuid| self.withdraw(uuid));
        self.gone = true;
        let (shard, sink) = &mut self.rig.shards[usize::from(self.home.0)];
        assert!(shard.withdraw_pool(KEY, sink).is_some());
        self.rig.after();
    }

    fn has_ended(&mut self) -> bool {
        let ended = self.rig.shards[usize::from(self.home.0)].0.pop_pool_drained();
        assert!(ended.is_none_or(|key| key == KEY));
        ended.is_some()
    }

    /// Serves another pool under the same key, on any shard.
    fn serve_another_pool(&mut self) {
        self.take_all();
        assert!(self.pending.is_empty(), "requests to a pool that has ended are not answered, {}", self.run);
        assert!(self.calls.is_empty(), "calls to a pool that has left do not end, {}", self.run);
        assert!(!self.rig.bare_changes_hang(), "a disk has something of a pool that has ended, {}", self.run);
        self.known.clear();
        (self.closed, self.moved, self.gone) = (None, 0, false);
        (self.rig.own_failed, self.rig.failed_on_bare, self.rig.late_on_bare) = (false, 0, 0);
        self.home = ShardId(self.rig.random.below(self.rig.shards.len() as u64) as u16);
        self.format();
        self.open();
    }
}

fn use_for(world: &mut World, steps: u64) {
    for _ in 0..1 + world.rig.random.below(3) {
        world.create(None);
    }
    world.settle();
    for uuid in world.ready(false) {
        world.serve(uuid);
    }
    for _ in 0..steps {
        match world.rig.random.below(100) {
            0..20 => user_step(world),
            20..24 => admin_step(world),
            24 if world.rig.hangs() && world.rig.random.one_in(4) => world.rig.give_back(),
            _ => drop(world.step()),
        }
    }
}

/// The next pool under its key has nothing of it.
#[test]
fn a_pool_is_withdrawn_while_disks_hang() {
    let mut all = BTreeMap::new();
    for seed in seeds(40) {
        let mut random = Random(seed ^ 0x1ea5e);
        let mut world = World::new(setup(&mut random, &[Kind::Bare, Kind::Bare, Kind::Mirror]), seed);
        for _ in 0..2 {
            world.rig.faults = Faults::default();
            world.settle();
            let rate = [0, 8, 40][random.below(3) as usize];
            world.rig.faults = Faults { late: rate, own: random.one_in(2), ..Faults::default() };
            let steps = 200 + random.below(900);
            use_for(&mut world, steps);
            world.rig.stalled = 0;
            let (hung, mut given) = (world.rig.bare_changes_hang(), false);
            world.leave_pool();
            world.rig.faults = Faults::default();
            let mut steps = 0;
            while !world.has_ended() {
                if world.rig.random.one_in(200) && world.rig.hangs() || !world.step() {
                    assert!(world.rig.hangs(), "a pool without I/O in flight does not end, {}", world.run);
                    world.rig.give_back();
                    given = true;
                }
                steps += 1;
                assert!(steps < 1_000_000, "a pool does not end, {}", world.run);
            }
            world.count(if given { "ended when disks had answered" } else { "ended by itself" });
            assert!(given || !hung, "{}", world.run);
            world.serve_another_pool();
        }
        use_for(&mut world, 300);
        world.end();
        add(&mut all, &world);
    }
    tell(&all, &["ended when disks had answered", "ended by itself", "answered late", "NoDevice"]);
}

/// Withdraws a pool while a copy has been requested, and not been read. The copy is not written: the target may have
/// another owner by then.
#[test]
fn a_withdrawn_pool_copies_no_more() {
    let (few, mut met) = (16_u64, 0);
    for seed in 0..few {
        let limits = Limits { slots: 24, devices: 0, range_table_bits: 6 };
        let members = vec![(Kind::Bare, 12), (Kind::Bare, 12)];
        let shards = 1 + (seed % 2) as u16;
        let setup = Setup { shards, members, ring_blocks: 80, zero_slots: 100, limits, volume_blocks: 256 };
        let mut world = World::new(setup, seed);
        world.create(None);
        world.settle();
        let volume = world.ready(false)[0];
        world.serve(volume);
        for block in (0..256).step_by(64) {
            world.ask(0, volume, Op::Write, Flags::NONE, block, 64);
            world.settle();
        }
        world.withdraw(volume);
        world.close_or_open();
        world.move_on(1000);
        let mut steps = 0;
        while !world.rig.is_read() && steps < 500 {
            world.step();
            steps += 1;
        }
        if !world.rig.is_read() {
            // All extents are on the other member.
            continue;
        }
        met += 1;
        world.leave_pool();
        let before = world.rig.writes_begun();
        world.settle();
        assert_eq!(world.rig.writes_begun(), before, "a pool that has left goes on to copy, {}", world.run);
        assert!(world.has_ended());
        world.serve_another_pool();
        world.end();
    }
    assert!(met > few / 4, "{met} of {few} copied something");
}
