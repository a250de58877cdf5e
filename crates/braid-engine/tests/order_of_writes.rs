//! Overlapping writes execute in arrival order, on every level and over all shards: a delayed write of an ended connection never lands after
//! a later, acknowledged one.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod support;

use braid_engine::*;
use support::*;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

fn levels() -> Vec<(&'static str, Node)> {
    vec![
        ("a bare disk", leaf(0, MIB)),
        ("concat", concat(65536, &[MIB / 2, MIB / 2])),
        ("raid0", raid0(4096, &[MIB / 2, MIB / 2])),
        ("raid1", open_mirror()),
    ]
}

fn serve(rig: &mut Rig, node: &Node) {
    rig.publish(0, Some(DeviceLayout::new(1, 512, node)));
}

/// A write of blocks that all hold `value`, on a shard.
fn write(rig: &mut Rig, shard: usize, (block, blocks): (u64, u64), value: u8) {
    let addr = u64::from(value) * MIB / 8;
    rig.memory[addr as usize..][..(blocks * BLOCK) as usize].fill(value);
    let request = Request { tag: u64::from(value), ..request(Op::Write, block * BLOCK, blocks * BLOCK, addr) };
    rig.submit(shard, request).unwrap();
}

fn answered(rig: &mut Rig) -> Vec<u64> {
    let mut tags: Vec<u64> = [0, 1].iter().flat_map(|shard| rig.done(*shard)).map(|done| done.tag).collect();
    tags.sort_unstable();
    tags
}

/// What a read finds at the beginning of a block.
fn read(rig: &mut Rig, block: u64) -> u8 {
    rig.run(request(Op::Read, block * BLOCK, BLOCK, 63 * MIB)).unwrap();
    rig.memory[63 * MIB as usize]
}

/// All that is under way on a shard ends.
fn answer_all(rig: &mut Rig, shard: usize) {
    while !rig.shards[shard].1.queue.is_empty() {
        rig.answer(shard, 0);
    }
}

#[test]
fn a_write_that_is_repeated_waits_for_the_first_one_and_a_newer_one_for_both() {
    for (name, node) in levels() {
        let mut rig = Rig::new(2, &[2 * MIB, 2 * MIB]);
        serve(&mut rig, &node);
        // The disk delays it; its client has lost the connection.
        write(&mut rig, 0, (3, 2), 1);
        // The client repeats it on a new connection, on another shard.
        write(&mut rig, 1, (3, 2), 2);
        rig.deliver();
        assert!(rig.shards[1].1.queue.is_empty(), "{name}: the second begins while the first is under way");
        // A write that does not overlap, and a flush, do not wait.
        write(&mut rig, 1, (5, 1), 3);
        rig.submit(1, Request { tag: 4, ..request(Op::Flush, 0, 0, 0) }).unwrap();
        answer_all(&mut rig, 1);
        assert_eq!(answered(&mut rig), [3, 4], "{name}");
        answer_all(&mut rig, 0);
        assert_eq!(answered(&mut rig), [1], "{name}");
        rig.deliver();
        answer_all(&mut rig, 1);
        assert_eq!(answered(&mut rig), [2], "{name}");
        write(&mut rig, 0, (4, 1), 5);
        rig.settle(&mut Random(1));
        assert_eq!(answered(&mut rig), [5], "{name}");
        assert_eq!([3, 4, 5].map(|block| read(&mut rig, block)), [2, 5, 3], "{name}");
        assert_eq!(rig.shards[0].0.in_flight() + rig.shards[1].0.in_flight(), 0);
    }
}

#[test]
fn the_last_that_came_is_what_stays() {
    for (name, node) in levels() {
        for seed in 0..60 {
            let mut rig = Rig::with_table(2, &[2 * MIB, 2 * MIB], 1 + (seed % 9) as u32);
            serve(&mut rig, &node);
            let (mut random, mut last) = (Random(seed), vec![0; 256]);
            for value in 1..=60 {
                let block = random.below(24);
                let blocks = 1 + random.below(12);
                if random.below(4) == 0 {
                    let zeros = Request { tag: 77, ..request(Op::WriteZeroes, block * BLOCK, blocks * BLOCK, 0) };
                    rig.submit(random.below(2) as usize, zeros).unwrap();
                    last[block as usize..][..blocks as usize].fill(0);
                } else {
                    write(&mut rig, random.below(2) as usize, (block, blocks), value);
                    last[block as usize..][..blocks as usize].fill(value);
                }
                for _ in 0..random.below(3) {
                    let shard = random.below(2) as usize;
                    let out = rig.shards[shard].1.queue.len() as u64;
                    if out > 0 {
                        rig.answer(shard, random.below(out) as usize);
                    }
                }
                if random.below(3) == 0 {
                    rig.deliver();
                }
            }
            rig.settle(&mut random);
            assert_eq!(answered(&mut rig).len(), 60, "{name}, seed {seed}: everybody is answered");
            for block in 0..36 {
                assert_eq!(read(&mut rig, block), last[block as usize], "{name}, seed {seed}, block {block}");
            }
        }
    }
}

/// A write that waits keeps its place: a later one that overlaps only the waiting one does not overtake it.
#[test]
fn a_waiting_write_is_not_overtaken() {
    for (name, node) in levels() {
        let mut rig = Rig::new(2, &[2 * MIB, 2 * MIB]);
        serve(&mut rig, &node);
        write(&mut rig, 0, (0, 1), 1);
        write(&mut rig, 1, (0, 2), 2);
        write(&mut rig, 0, (1, 1), 3);
        rig.settle(&mut Random(7));
        assert_eq!(answered(&mut rig), [1, 2, 3]);
        assert_eq!([0, 1].map(|block| read(&mut rig, block)), [2, 3], "{name}");
    }
}

/// A disk hangs: its write fails at the time limit, and so does the write that waited for it.
#[test]
fn a_write_behind_one_that_hangs_fails_with_it() {
    for (name, node) in &levels()[..3] {
        let mut rig = Rig::new(2, &[2 * MIB, 2 * MIB]);
        serve(&mut rig, node);
        write(&mut rig, 0, (3, 1), 1);
        write(&mut rig, 1, (3, 1), 2);
        let late = rig.shards[0].1.queue.remove(0).unwrap();
        let (shard, sink) = &mut rig.shards[0];
        shard.leaf_late(late.cookie, sink);
        rig.deliver();
        for shard in 0..2 {
            let done = rig.done(shard);
            let [done] = &done[..] else { panic!("{name}: {done:?}") };
            assert_eq!(done.result.unwrap_err().kind, ErrorKind::TimedOut, "{name}");
        }
        let (shard, sink) = &mut rig.shards[0];
        shard.leaf_returned(late.cookie, sink);
        write(&mut rig, 1, (3, 1), 3);
        rig.settle(&mut Random(1));
        assert_eq!(read(&mut rig, 3), 3, "{name}");
        assert_eq!(rig.shards[0].0.slots_in_use() + rig.shards[1].0.slots_in_use(), 0);
    }
}

/// A long zeroing takes several steps: it keeps its claim to the part that it has not reached, and releases the part that it has done.
#[test]
fn a_long_request_keeps_its_claim_to_the_rest_of_its_range() {
    let mut rig = Rig::new(2, &[32 * MIB, 32 * MIB]);
    serve(&mut rig, &raid0(4096, &[32 * MIB, 32 * MIB]));
    let end = 64 * MIB / BLOCK;
    rig.submit(0, request(Op::WriteZeroes, 0, 64 * MIB, 0)).unwrap();
    write(&mut rig, 1, (end - 1, 1), 1);
    write(&mut rig, 1, (0, 1), 2);
    assert!(rig.shards[1].1.queue.is_empty());
    answer_all_but_the_next_step(&mut rig);
    rig.deliver();
    answer_all(&mut rig, 1);
    assert_eq!(rig.done(1).iter().map(|done| done.tag).collect::<Vec<_>>(), [2], "it is done with the beginning");
    rig.settle(&mut Random(3));
    assert_eq!([0, 1, end - 1].map(|block| read_late(&mut rig, block)), [2, 0, 1]);
}

fn answer_all_but_the_next_step(rig: &mut Rig) {
    for _ in 0..rig.shards[0].1.queue.len() {
        rig.answer(0, 0);
    }
    assert!(!rig.shards[0].1.queue.is_empty(), "there is a next step");
}

fn read_late(rig: &mut Rig, block: u64) -> u8 {
    rig.done(0);
    rig.done(1);
    read(rig, block)
}
