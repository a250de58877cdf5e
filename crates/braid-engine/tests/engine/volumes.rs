//! Volumes of a pool, on several shards, over simulated disks: requests, snapshots, clones, deletions, disks that fail,
//! hang or are dropped, all from a seed; compared with what each block may read as, and with no resources in use at the
//! end.

pub mod disk;
pub mod durable;
pub mod oracle;
pub mod rig;
pub mod world;

use braid_engine::limits::PARTS_MAX;
use braid_engine::pool::{ExtentId, Pool};
use braid_engine::{DeviceLease, Flags, Limits, Op, Uuid};
use rig::{Faults, Kind, Random};
use world::{Setup, World};

fn seeds(few: u64) -> std::ops::Range<u64> {
    let of = |name: &str, or: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(or);
    let first = of("VOLUMES_FIRST", 0);
    first..first + of("VOLUMES_SEEDS", few)
}

fn setup(random: &mut Random, kinds: &[Kind]) -> Setup {
    let members = 1 + random.below(3);
    let pick = |random: &mut Random, from: &[u64]| from[random.below(from.len() as u64) as usize];
    Setup {
        shards: 1 + random.below(3) as u16,
        members: (0..members)
            .map(|_| (kinds[random.below(kinds.len() as u64) as usize], 14 + random.below(30) as u32))
            .collect(),
        ring_blocks: pick(random, &[64, 80, 128]),
        zero_slots: pick(random, &[1, 100]) as u32,
        limits: Limits {
            slots: pick(random, &[6, 24, 60]) as u32,
            devices: 0,
            range_table_bits: pick(random, &[2, 4, 10]) as u32,
        },
        volume_blocks: pick(random, &[100, 513, 1000]),
    }
}

/// Makes the next request of a user.
fn user_step(world: &mut World) {
    let random = &mut world.rig.random;
    let shard = random.below(u64::from(world.setup.shards)) as usize;
    let draw = random.below(100);
    let snapshots = world.ready(true);
    let all: Vec<_> = world.ready(false).into_iter().chain(snapshots.iter().copied()).collect();
    let all: Vec<_> = all.into_iter().filter(|uuid| world.is_published(*uuid)).collect();
    if all.is_empty() {
        return;
    }
    let random = &mut world.rig.random;
    let uuid = all[random.below(all.len() as u64) as usize];
    let size = world.known[&uuid].blocks.len() as u64;
    let most = match random.below(20) {
        0..10 => 3,
        10..17 => 70,
        _ => 512,
    };
    let count = 1 + random.below(most.min(size));
    let block = match random.below(3) {
        // Whole extents are among them.
        0 => random.below(size) / 64 * 64,
        _ => random.below(size),
    };
    let count = count.min(size - block);
    let fua = if random.one_in(6) { Flags::FUA } else { Flags::NONE };
    let (op, flags) = match draw {
        0..25 => (Op::Read, Flags::NONE),
        25..31 => (Op::Flush, Flags::NONE),
        31..38 => (Op::Discard, fua),
        38..44 => (Op::WriteZeroes, fua),
        44..49 => (Op::WriteZeroes, fua.with(Flags::NO_UNMAP)),
        49 => (Op::WriteZeroes, fua.with(Flags::FAST_ZERO)),
        50 => (Op::WriteZeroes, fua.with(Flags::FAST_ZERO).with(Flags::NO_UNMAP)),
        _ => (Op::Write, fua),
    };
    let asked = world.ask(shard, uuid, op, flags, block, count);
    // Another write begins after the first was answered.
    if asked && count < 4 && world.rig.random.one_in(4) {
        for _ in 0..12 {
            world.step();
        }
    }
}

/// Takes the next step of an administrator.
fn admin_step(world: &mut World) {
    if world.calls() > 12 {
        return;
    }
    let (volumes, snapshots) = (world.ready(false), world.ready(true));
    let random = &mut world.rig.random;
    let draw = random.below(100);
    let one = |random: &mut Random, of: &[braid_engine::Uuid]| of[random.below(of.len() as u64) as usize];
    match draw {
        0..10 if volumes.len() < 3 => world.create(None),
        10..24 if !volumes.is_empty() && snapshots.len() < 6 => {
            let mut which: Vec<_> = volumes.iter().copied().filter(|_| random.one_in(2)).collect();
            if which.is_empty() {
                which.push(one(random, &volumes));
            }
            world.snapshot(&which);
        }
        24..30 if !snapshots.is_empty() && volumes.len() < 4 => {
            let of = one(random, &snapshots);
            world.create(Some(of));
        }
        30..40 if !snapshots.is_empty() => {
            let which = one(random, &snapshots);
            world.leave(which);
        }
        40..43 if volumes.len() > 2 => {
            let which = one(random, &volumes);
            if !world.has_snapshots(which) {
                world.leave(which);
            }
        }
        43..60 => {
            let records = 1 + random.below(40) as u32;
            world.merge(records);
        }
        60..63 => world.checkpoint(),
        63..66 => world.drain(),
        66..84 => {
            let all: Vec<_> = volumes.into_iter().chain(snapshots).collect();
            if all.is_empty() {
                return;
            }
            let which = one(random, &all);
            let again = random.one_in(2);
            if world.is_serving(which) {
                world.count("requests while it is being built");
            } else if !world.is_served(which) && world.rig.random.one_in(2) {
                world.serve_slowly(which);
            } else if !world.is_served(which) {
                world.serve(which);
            } else if !world.is_published(which) || again {
                world.publish(which);
            } else if world.rig.random.one_in(3) {
                world.withdraw(which);
            }
        }
        84..88 => world.rig.stalled = random.below(300),
        88..92 => {
            let which = random.below(world.rig.members.len() as u64) as usize;
            world.rig.publish_member(which);
        }
        92 => world.close_or_open(),
        93..99 => {
            let records = 1 + random.below(60) as u32;
            world.move_on(records);
        }
        _ => {}
    }
}

/// Reads a whole snapshot that is served now and then, so that its content is known, and clones can begin with it.
fn read_snapshot(world: &mut World) {
    let there: Vec<_> = world.ready(true).into_iter().filter(|uuid| world.is_published(*uuid)).collect();
    if there.is_empty() {
        return;
    }
    let which = there[world.rig.random.below(there.len() as u64) as usize];
    let size = world.known[&which].blocks.len() as u64;
    for block in (0..size).step_by(256) {
        let shard = world.rig.random.below(u64::from(world.setup.shards)) as usize;
        world.ask(shard, which, Op::Read, Flags::NONE, block, (size - block).min(256));
    }
}

fn run(seed: u64, setup: Setup, faults: Faults, steps: u64) -> World {
    run_in(World::new(setup, seed), seed, faults, steps)
}

fn run_in(mut world: World, seed: u64, faults: Faults, steps: u64) -> World {
    for _ in 0..1 + seed % 3 {
        world.create(None);
    }
    world.settle();
    for uuid in world.ready(false) {
        world.serve(uuid);
    }
    world.rig.faults = faults;
    for _ in 0..steps {
        match world.rig.random.below(100) {
            0..14 => user_step(&mut world),
            14..17 => admin_step(&mut world),
            17 if world.rig.random.one_in(8) => read_snapshot(&mut world),
            18 if world.rig.hangs() && world.rig.random.one_in(4) => world.rig.give_back(),
            _ => {
                world.step();
            }
        }
    }
    world.rig.faults = Faults::default();
    world.end();
    world
}

/// A pool that is nearly always full: its users allocate and discard whole extents, and parts.
fn fill(seed: u64, snapshots: bool, late: u64) -> World {
    let mut random = Random(seed ^ 0xf111);
    let extents = 5 + random.below(6) as u32;
    let limits = Limits { slots: 24, devices: 0, range_table_bits: 6 };
    let members = match random.below(2) {
        0 => vec![(Kind::Bare, extents)],
        _ => vec![(Kind::Bare, extents / 2), (Kind::Bare, extents - extents / 2)],
    };
    let blocks = u64::from(extents) * 64;
    let setup = Setup {
        shards: 1 + random.below(3) as u16,
        members,
        ring_blocks: 80,
        zero_slots: 100,
        limits,
        volume_blocks: blocks,
    };
    let mut world = World::new(setup, seed);
    // Only whole extents are discarded, and no snapshot keeps older ones: each extent of the volume has one of its own,
    // or one becomes free for it.
    world.roomy = !snapshots && late == 0;
    world.create(None);
    world.settle();
    let volume = world.ready(false)[0];
    world.serve(volume);
    world.rig.faults = Faults { late, ..Faults::default() };
    for _ in 0..3000 {
        let random = &mut world.rig.random;
        let shard = random.below(u64::from(world.setup.shards)) as usize;
        let extent = random.below(blocks / 64) * 64;
        let flags = if random.one_in(6) { Flags::FUA } else { Flags::NONE };
        match random.below(60) {
            0..4 => drop(world.ask(shard, volume, Op::Discard, Flags::NONE, extent, 64)),
            4..9 => {
                let count = (1 + random.below(90)).min(blocks - extent);
                world.ask(shard, volume, Op::Write, flags, extent, count);
            }
            9 => drop(world.ask(shard, volume, Op::WriteZeroes, flags.with(Flags::NO_UNMAP), extent, 64)),
            10 => drop(world.ask(shard, volume, Op::Read, Flags::NONE, extent, 64)),
            11 if random.one_in(4) => drop(world.ask(shard, volume, Op::Flush, Flags::NONE, 0, 0)),
            12 if random.one_in(8) => {
                let (free, freeing) = world.look(|pool| (pool.free_extents(), pool.is_freeing()));
                if free == 0 && freeing {
                    world.count("full while space is on its way");
                }
            }
            13 if snapshots && world.calls() == 0 => match world.ready(true).pop() {
                None => world.snapshot(&[volume]),
                Some(snapshot) => world.leave(snapshot),
            },
            14 | 15 if snapshots => drop(world.merge(20)),
            16 if world.rig.hangs() && world.rig.random.one_in(16) => world.rig.give_back(),
            _ => drop(world.step()),
        }
    }
    world.rig.faults = Faults::default();
    world.settle();
    // So that reads that had failed succeed.
    while world.rig.hangs() {
        world.rig.give_back();
        world.settle();
    }
    world.end();
    world
}

/// Snapshots that depend on others are served in slices, while those are deleted and merged, and their volume is
/// written to.
fn build_and_merge(seed: u64) -> World {
    let mut random = Random(seed ^ 0xb11d);
    let limits = Limits { slots: 24, devices: 0, range_table_bits: 6 };
    let members = vec![(Kind::Bare, 30), (Kind::Bare, 30)];
    let shards = 1 + random.below(3) as u16;
    let setup = Setup { shards, members, ring_blocks: 128, zero_slots: 100, limits, volume_blocks: 640 };
    let mut world = World::new(setup, seed);
    world.create(None);
    world.settle();
    let volume = world.ready(false)[0];
    world.serve(volume);
    for _ in 0..24 {
        let snapshots = world.ready(true);
        if snapshots.len() < 5 {
            world.snapshot(&[volume]);
        } else if snapshots.len() > 2 {
            let at = world.rig.random.below(snapshots.len() as u64) as usize;
            if !world.is_served(snapshots[at]) && !world.is_serving(snapshots[at]) {
                world.serve_slowly(snapshots[at]);
            }
        }
        for step in 0..150 {
            let random = &mut world.rig.random;
            let shard = random.below(u64::from(world.setup.shards)) as usize;
            let (block, extent) = (random.below(630), random.below(10) * 64);
            match random.below(20) {
                0..2 => drop(world.ask(shard, volume, Op::Write, Flags::NONE, block, 1 + block % 10)),
                2 => drop(world.ask(shard, volume, Op::Write, Flags::NONE, extent, 64)),
                3 => drop(world.ask(shard, volume, Op::Discard, Flags::NONE, extent, 64)),
                4..7 => {
                    let merged = world.merge(1 + step % 4);
                    world.count(&format!("merge: {merged:?}"));
                }
                7 if step % 8 == 0 && snapshots.len() > 3 => {
                    let which = snapshots[world.rig.random.below(snapshots.len() as u64) as usize];
                    if world.ready(true).contains(&which) && !world.is_serving(which) {
                        world.leave(which);
                    }
                }
                8 if step % 8 == 0 => world.checkpoint(),
                _ => drop(world.step()),
            }
        }
    }
    world.end();
    world
}

fn add(all: &mut std::collections::BTreeMap<String, u64>, world: &World) {
    for (what, count) in &world.counts {
        *all.entry(what.clone()).or_default() += count;
    }
}

fn tell(all: &std::collections::BTreeMap<String, u64>, needed: &[&str]) {
    println!("{all:?}");
    for what in needed {
        assert!(std::env::var("VOLUMES_SEEDS").is_ok() || all.contains_key(*what), "no run had {what:?}: {all:?}");
    }
}

/// Without faults.
#[test]
fn volumes_read_as_they_were_written() {
    let mut all = std::collections::BTreeMap::new();
    for seed in seeds(40) {
        let mut random = Random(seed ^ 0x70);
        let setup = setup(&mut random, &[Kind::Bare, Kind::Mirror]);
        add(&mut all, &run(seed, setup, Faults::default(), 3000));
    }
    let needed = ["refused: Busy", "NoDevice", "ReadOnly", "clones", "deletions", "snapshots of several", "power cuts"];
    tell(&all, &needed);
    tell(&all, &["blocks moved", "members emptied", "no space to empty a member"]);
    tell(&all, &["served in slices", "requests while it is being built"]);
}

/// Bare disks fail reads and writes and hang; disks of mirrors fail, hang and are dropped.
#[test]
fn disks_fail_and_hang() {
    let mut all = std::collections::BTreeMap::new();
    for seed in seeds(24) {
        let mut random = Random(seed ^ 0xfa11);
        let setup = setup(&mut random, &[Kind::Bare, Kind::Mirror]);
        let rate = |random: &mut Random| [0, 30, 200][random.below(3) as usize];
        let faults = Faults { fails: rate(&mut random), late: rate(&mut random), leaves: 300, own: false };
        add(&mut all, &run(seed, setup, faults, 3000));
    }
    tell(&all, &["Io", "TimedOut", "refused: TimedOut", "answered late", "snapshots of several", "power cuts"]);
}

/// A controller that is cut off answers nothing: neither what it would read from its members, nor what the pool knows
/// by itself.
#[test]
fn without_a_lease_a_volume_answers_nothing_until_it_is_renewed() {
    for (seed, op) in (0..).zip([Op::Read, Op::Write, Op::WriteZeroes, Op::Discard, Op::Flush]) {
        let mut random = Random(seed);
        let setup = Setup { members: vec![(Kind::Mirror, 20)], ..setup(&mut random, &[Kind::Mirror]) };
        let mut world = World::new(setup, seed);
        (world.leased, world.lease) = (true, std::sync::Arc::new(DeviceLease::new(0)));
        world.create(None);
        world.settle();
        let volume = world.ready(false)[0];
        world.serve(volume);
        // Nothing was ever written there: no disk is needed to know that.
        let blocks = if op == Op::Flush { 0 } else { 8 };
        assert!(world.ask(0, volume, op, Flags::NONE, 0, blocks));
        while world.step() {}
        assert_eq!(world.unanswered(), 1, "{op:?} was answered without a lease");
        world.renew();
        world.settle();
        world.end();
    }
}

/// A pool on a replicated device: another controller that opens it has nothing of the previous one's memory.
#[test]
fn what_is_answered_under_a_lease_survives_a_takeover() {
    let mut all = std::collections::BTreeMap::new();
    for seed in seeds(16) {
        let mut random = Random(seed ^ 0x1ea5);
        let setup = Setup { members: vec![(Kind::Mirror, 20)], ..setup(&mut random, &[Kind::Mirror]) };
        let mut world = World::new(setup, seed);
        world.leased = true;
        add(&mut all, &run_in(world, seed, Faults::default(), 2000));
    }
    tell(&all, &["taken over", "clones", "deletions"]);
}

/// Members with parity, whose stripes are read, logged and coalesced; a disk of them fails.
#[test]
fn members_have_parity() {
    let mut all = std::collections::BTreeMap::new();
    for seed in seeds(10) {
        let mut random = Random(seed ^ 0xa57);
        let setup = setup(&mut random, &[Kind::Parity, Kind::Parity, Kind::Bare]);
        let faults = Faults { leaves: [0, 1000][random.below(2) as usize], ..Faults::default() };
        add(&mut all, &run(seed, setup, faults, 4000));
    }
    tell(&all, &["snapshots of several", "clones"]);
}

/// Empties a member whose stripes are read without one failed disk and one late disk: what is copied meanwhile has been
/// copied, or stays where it is.
#[test]
fn a_late_copy_completes_or_has_no_effect() {
    let mut all = std::collections::BTreeMap::new();
    for seed in seeds(32) {
        let mut random = Random(seed ^ 0x6a7e);
        let members = vec![(Kind::TwoParities, 30), (Kind::Bare, 60)];
        let mut world = World::new(Setup { members, volume_blocks: 1000, ..setup(&mut random, &[Kind::Bare]) }, seed);
        world.create(None);
        world.settle();
        let uuid = world.ready(false)[0];
        world.serve(uuid);
        world.publish(uuid);
        for block in (0..1000).step_by(100) {
            world.ask(0, uuid, Op::Write, Flags::NONE, block, 100);
            world.settle();
        }
        world.rig.faults = Faults { late: 4, ..Faults::default() };
        for step in 0..1500 {
            match world.rig.random.below(20) {
                0 if step % 500 < 20 => world.close_or_open(),
                1 => world.move_on(60),
                2 => user_step(&mut world),
                3 if world.rig.hangs() => world.rig.give_back(),
                _ => drop(world.step()),
            }
        }
        world.rig.faults = Faults::default();
        world.end();
        add(&mut all, &world);
    }
    tell(&all, &["answered late", "blocks moved"]);
}

/// The pool's own writes fail, too: nothing is committed any more, and requests fail.
#[test]
fn pools_fail() {
    let mut all = std::collections::BTreeMap::new();
    for seed in seeds(12) {
        let mut random = Random(seed ^ 0xdead);
        let setup = setup(&mut random, &[Kind::Bare]);
        let faults = Faults { fails: 400, late: [0, 400][random.below(2) as usize], leaves: 0, own: true };
        add(&mut all, &run(seed, setup, faults, 2500));
    }
    tell(&all, &["Failed"]);
}

/// A full pool does not refuse requests that only have to wait until discarded space is free.
#[test]
fn a_full_pool_waits_for_discarded_space() {
    let mut all = std::collections::BTreeMap::new();
    for seed in seeds(12) {
        add(&mut all, &fill(seed, false, 0));
    }
    tell(&all, &["full while space is on its way"]);
}

/// The same while snapshots are taken and deleted: waiting requests delay none of them, and freed space goes to the
/// volume.
#[test]
fn a_full_pool_waits_while_snapshots_are_taken() {
    let mut all = std::collections::BTreeMap::new();
    for seed in seeds(12) {
        add(&mut all, &fill(seed, true, 0));
    }
    tell(&all, &["full while space is on its way", "NoSpace", "snapshots", "deletions"]);
}

/// A disk that hangs may keep freed space for ever: no request waits for that.
#[test]
fn a_full_pool_does_not_wait_for_a_disk_that_hangs() {
    let mut all = std::collections::BTreeMap::new();
    for seed in seeds(12) {
        add(&mut all, &fill(seed, seed % 2 == 0, 200));
    }
    tell(&all, &["full while space is on its way", "NoSpace beside a disk that hangs", "TimedOut"]);
}

/// A failed pool does nothing any more by itself: calls that want a commit end all the same.
#[test]
fn calls_of_a_pool_that_has_failed_end() {
    let limits = Limits { slots: 24, devices: 0, range_table_bits: 4 };
    let members = vec![(Kind::Bare, 20)];
    let mut world =
        World::new(Setup { shards: 1, members, ring_blocks: 64, zero_slots: 100, limits, volume_blocks: 100 }, 1);
    world.rig.faults = Faults { fails: 1, own: true, ..Faults::default() };
    world.create(None);
    world.settle();
    assert!(world.look(|pool| pool.has_failed()));
    for _ in 0..2 {
        world.checkpoint();
        world.settle();
        assert_eq!(world.calls(), 0);
        world.drain();
        world.settle();
        assert_eq!(world.calls(), 0);
    }
}

/// Maps are built in slices while the maps that they are built from change.
#[test]
fn maps_are_built_while_others_change() {
    let mut all = std::collections::BTreeMap::new();
    for seed in seeds(12) {
        add(&mut all, &build_and_merge(seed));
    }
    tell(&all, &["served in slices", "deletions", "merge: Some", "merge: Later", "merge: Nothing"]);
}

/// A volume whose first extent, which is its own, is followed by a snapshot's on the member: both are written in one
/// request.
#[test]
fn a_run_ends_where_a_snapshot_begins() {
    let limits = Limits { slots: 24, devices: 0, range_table_bits: 6 };
    let members = vec![(Kind::Bare, 8)];
    let mut world =
        World::new(Setup { shards: 1, members, ring_blocks: 80, zero_slots: 100, limits, volume_blocks: 128 }, 1);
    world.create(None);
    world.create(None);
    world.settle();
    let [other, volume] = world.ready(false)[..] else { unreachable!("two were made") };
    let ask = |world: &mut World, of, op, block, blocks| {
        assert!(world.ask(0, of, op, Flags::NONE, block, blocks));
        world.settle();
    };
    [other, volume].into_iter().for_each(|uuid| world.serve(uuid));
    ask(&mut world, other, Op::Write, 0, 64);
    ask(&mut world, volume, Op::Write, 64, 64);
    world.snapshot(&[volume]);
    world.settle();
    ask(&mut world, other, Op::Discard, 0, 64);
    world.drain();
    world.settle();
    ask(&mut world, volume, Op::Write, 0, 64);
    let owner = |pool: &mut Pool, index| pool.shared().records.owner(ExtentId { member: 0, index });
    let owners = world.look(move |pool| (owner(pool, 0), owner(pool, 1)));
    assert!(owners.0 > owners.1 && owners.1 > 0, "they are contiguous, and the first is newer: {owners:?}");
    ask(&mut world, volume, Op::Write, 0, 128);
    world.end();
}

/// Returns a volume of so many blocks on two shards, and the shard that is not the pool's home.
fn large(seed: u64, range_table_bits: u32, volume_blocks: u64) -> (World, Uuid, usize) {
    let limits = Limits { slots: 24, devices: 0, range_table_bits };
    let members = vec![(Kind::Bare, 40)];
    let setup = Setup { shards: 2, members, ring_blocks: 128, zero_slots: 100, limits, volume_blocks };
    let mut world = World::new(setup, seed);
    world.create(None);
    world.settle();
    let volume = world.ready(false)[0];
    world.serve(volume);
    let other = 1 - usize::from(world.home.0);
    (world, volume, other)
}

/// With two messages for each extent it would take 8192 for these.
#[test]
fn discarding_unmapped_blocks_sends_no_message() {
    for (seed, op) in (0..).zip([Op::Discard, Op::WriteZeroes]) {
        let (mut world, volume, other) = large(seed, 12, 1 << 18);
        let steps_of = |world: &mut World, op, block, blocks| {
            assert!(world.ask(other, volume, op, Flags::NONE, block, blocks));
            let mut steps = 0;
            while world.unanswered() > 0 {
                assert!(world.step(), "nothing can happen, and it is not answered");
                steps += 1;
            }
            steps
        };
        assert_eq!(steps_of(&mut world, op, 0, 1 << 18), 0, "{op:?} of nothing");
        // Also short ranges, which are held, and ranges that begin within an extent.
        assert_eq!(steps_of(&mut world, op, 5, 200), 0, "{op:?} of nothing");
        for block in [0, 700, 701, 100_000, 262_143] {
            assert!(world.ask(other, volume, Op::Write, Flags::NONE, block, 1));
            world.settle();
        }
        for kept in [false, true] {
            if kept {
                world.snapshot(&[volume]);
                world.settle();
            }
            let steps = steps_of(&mut world, op, 0, 1 << 18);
            assert!(steps < 100, "{op:?} of four extents takes {steps} steps");
            assert!(world.ask(other, volume, Op::Write, Flags::NONE, 70_000, 3));
            world.settle();
        }
        world.end();
    }
}

/// Contiguous extents are unmapped by few messages, instead of two for each extent.
#[test]
fn discarding_many_extents_takes_few_messages() {
    const EXTENTS: u64 = 16;
    let (mut world, volume, other) = large(5, 12, 1 << 18);
    let steps_of = |world: &mut World, extents: u64| {
        for extent in 0..extents {
            assert!(world.ask(other, volume, Op::Write, Flags::NONE, extent * 64, 1));
            world.settle();
        }
        assert!(world.ask(other, volume, Op::Discard, Flags::NONE, 0, extents * 64));
        let mut steps = 0;
        while world.unanswered() > 0 {
            assert!(world.step(), "nothing can happen, and it is not answered");
            steps += 1;
        }
        world.settle();
        steps
    };
    let (one, many) = (steps_of(&mut world, 1), steps_of(&mut world, EXTENTS));
    assert!(many < one + EXTENTS, "{many} steps for {EXTENTS} extents, {one} for one");
    world.end();
}

/// Long ranges are looked up as a whole while other requests write there: later reads are consistent with an order of
/// the requests.
#[test]
fn long_discards_beside_writes_are_in_one_order() {
    // Twice as long as what is held at a time.
    const BLOCKS: u64 = 1 << 14;
    for seed in seeds(12) {
        // In a small table a word may represent another granule.
        let (mut world, volume, _) = large(seed, [4, 12][seed as usize % 2], BLOCKS);
        for _ in 0..120 {
            let (shard, op) = (world.rig.random.below(2) as usize, world.rig.random.below(12));
            let block = world.rig.random.below(20) * 801;
            match op {
                0 | 1 => {
                    let op = if op == 0 { Op::Discard } else { Op::WriteZeroes };
                    let flags = if world.rig.random.one_in(3) { Flags::FUA } else { Flags::NONE };
                    world.ask(shard, volume, op, flags, block / 2, BLOCKS - block / 2);
                }
                2 => drop(world.ask(shard, volume, Op::Flush, Flags::NONE, 0, 0)),
                3 if world.rig.random.one_in(4) => world.snapshot(&[volume]),
                4..7 => drop(world.ask(shard, volume, Op::Read, Flags::NONE, block, 70)),
                _ => drop(world.ask(shard, volume, Op::Write, Flags::NONE, block, 1 + block % 90)),
            }
            for _ in 0..world.rig.random.below(12) {
                world.step();
            }
        }
        world.end();
    }
}

/// Requests need more parts than there are, also requests that begin with a hole: all of them wait, and continue.
#[test]
fn parts_run_out() {
    for seed in seeds(4) {
        let limits = Limits { slots: 60, devices: 0, range_table_bits: 10 };
        let members = vec![(Kind::Bare, 60), (Kind::Mirror, 60)];
        let mut world = World::new(
            Setup { shards: 1, members, ring_blocks: 128, zero_slots: 100, limits, volume_blocks: 1000 },
            seed,
        );
        world.create(None);
        world.settle();
        let volume = world.ready(false)[0];
        world.serve(volume);
        for _ in 0..3 {
            for block in [10, 400, 700] {
                world.ask(0, volume, Op::Write, Flags::NONE, block, 290);
            }
            world.settle();
            world.rig.stalled = 2000;
            for _ in 0..60 {
                let block = world.rig.random.below(488);
                let op = if world.rig.random.one_in(4) { Op::Write } else { Op::Read };
                world.ask(0, volume, op, Flags::NONE, if op == Op::Read { block / 64 * 64 } else { block }, 512);
            }
            assert!(world.rig.shards[0].0.pools_in_use() >= 256, "{}", world.run);
            world.settle();
            world.ask(0, volume, Op::Discard, Flags::NONE, 0, 64 + seed % 64);
            world.settle();
        }
        world.end();
    }
}

/// A small overwrite has its own slot and no part, even if it has entered before: a disk that hangs takes no parts from
/// other pools.
#[test]
fn an_overwrite_at_one_location_takes_no_part() {
    for enters in [false, true] {
        let limits = Limits { slots: 60, devices: 0, range_table_bits: 10 };
        let members = vec![(Kind::Bare, 60)];
        let setup = Setup { shards: 1, members, ring_blocks: 128, zero_slots: 100, limits, volume_blocks: 1000 };
        let mut world = World::new(setup, 1);
        world.enters = Some(enters);
        world.create(None);
        world.settle();
        let volume = world.ready(false)[0];
        world.serve(volume);
        assert!(world.ask(0, volume, Op::Write, Flags::NONE, 0, 64));
        world.settle();
        let before = world.rig.shards[0].0.pools_in_use();
        world.rig.stalled = 2000;
        for block in 0..5 {
            assert!(world.ask(0, volume, Op::Write, Flags::NONE, 2 * block, 1));
        }
        // The pool counts the requests themselves.
        assert_eq!(world.rig.shards[0].0.pools_in_use() - before, 5, "enters: {enters}");
        world.settle();
        assert!(world.ask(0, volume, Op::Read, Flags::NONE, 0, 64));
        world.end();
    }
}

/// Returns two pools, the first on a member of this kind, and a volume of each. Nothing that is written is contiguous,
/// so that each extent is a part of its own; the second volume has room for new blocks from block 640 on. Calls go to
/// the second pool.
fn two_pools(seed: u64, kind: Kind, shards: u16) -> (World, [Uuid; 2]) {
    let limits = Limits { slots: 1000, devices: 0, range_table_bits: 12 };
    let members = vec![(kind, 60)];
    let setup = Setup { shards, members, ring_blocks: 128, zero_slots: 100, limits, volume_blocks: 1000 };
    let mut world = World::new(setup, seed);
    let make = |world: &mut World, extents: u64| {
        world.create(None);
        world.settle();
        let volume = world.ready(false).into_iter().find(|uuid| !world.is_served(*uuid)).expect("it was just made");
        world.serve(volume);
        for block in (0..extents).rev().map(|extent| extent * 64) {
            assert!(world.ask(0, volume, Op::Write, Flags::NONE, block, (1000 - block).min(64)));
            world.settle();
        }
        volume
    };
    let first = make(&mut world, 16);
    world.add_pool(&[(Kind::Bare, 80)]);
    let second = make(&mut world, 10);
    (world, [first, second])
}

/// A disk that hangs keeps the parts of its pool, and none of those that another pool needs: for large requests, new
/// blocks, commits and snapshots.
#[test]
fn a_disk_that_hangs_does_not_stop_other_pools() {
    let zeroes = u64::from(PARTS_MAX) + 100;
    for (seed, kind) in (0..).zip([Kind::Bare, Kind::Mirror]) {
        let (mut world, [hung, other]) = two_pools(seed, kind, 1);
        world.rig.hold(0);
        for k in 0..20 {
            assert!(world.ask(0, hung, Op::Read, Flags::NONE, k * 20, 512));
        }
        for block in 0..zeroes {
            assert!(world.ask(0, hung, Op::WriteZeroes, Flags::NO_UNMAP, block, 1));
        }
        for round in 0..3 {
            let requests = [
                (Op::Read, Flags::NONE, 0, 512),
                (Op::Read, Flags::NONE, 100, 512),
                (Op::Write, Flags::NONE, 40, 500),
                (Op::Write, Flags::NONE, 640 + round * 120, 120),
                (Op::Write, Flags::FUA, 3, 1),
                (Op::WriteZeroes, Flags::NO_UNMAP, 0, 1000),
                (Op::Discard, Flags::NONE, 128, 70),
                (Op::Flush, Flags::NONE, 0, 0),
            ];
            for (op, flags, block, blocks) in requests {
                assert!(world.ask(0, other, op, flags, block, blocks));
            }
            // What comes next is written elsewhere.
            world.snapshot(&[other]);
            while world.unanswered_of(other) > 0 || world.calls() > 0 {
                let left = world.unanswered_of(other);
                assert!(world.step(), "{left} requests wait for a disk of another pool, {}", world.run);
            }
        }
        let left = world.unanswered_of(hung) as u64;
        assert!(left >= zeroes, "{left} requests wait for the disk, {}", world.run);
        world.rig.release();
        world.end();
    }
}

/// Many more requests than parts, to two pools, whose parts end in any order, while a disk hangs for some time, and
/// volumes are withdrawn and served again: each waiting request succeeds or fails, and none is forgotten.
#[test]
fn all_requests_that_wait_for_parts_end() {
    let mut all = std::collections::BTreeMap::new();
    for seed in seeds(8) {
        println!("seed {seed}");
        let mut random = Random(seed ^ 0x9a57);
        let shards = 1 + random.below(2) as u16;
        let kind = [Kind::Bare, Kind::Mirror][random.below(2) as usize];
        let (mut world, volumes) = two_pools(seed, kind, shards);
        for _ in 0..2 {
            world.rig.stalled = random.below(300);
            if random.one_in(2) {
                world.rig.hold(random.below(2) as usize);
            }
            for _ in 0..900 {
                let shard = random.below(u64::from(shards)) as usize;
                let volume = volumes[usize::from(random.one_in(3))];
                let (block, blocks) = (random.below(488), 1 + random.below(300));
                let (place, most) = (2 * block, 1000 - 2 * block);
                match random.below(40) {
                    0..3 => drop(world.ask(shard, volume, Op::Read, Flags::NONE, block, 512)),
                    3 | 4 => drop(world.ask(shard, volume, Op::Write, Flags::NONE, place, blocks.min(most))),
                    5 => drop(world.ask(shard, volume, Op::Discard, Flags::NONE, block, blocks)),
                    6 => drop(world.ask(shard, volume, Op::Flush, Flags::NONE, 0, 0)),
                    7 if random.one_in(4) => {
                        if world.known[&volume].key != world.key {
                            world.change_pool();
                        }
                        world.withdraw(volume);
                        world.publish(volume);
                    }
                    8..14 => drop(world.step()),
                    _ => drop(world.ask(shard, volume, Op::WriteZeroes, Flags::NO_UNMAP, place, 1)),
                }
            }
            world.rig.stalled = 0;
            world.rig.release();
            world.settle();
        }
        world.end();
        add(&mut all, &world);
    }
    tell(&all, &["NoDevice", "Read", "WriteZeroes"]);
}
