//! Overlapping writes execute in arrival order, on every level and over all shards: a delayed write of an ended connection never lands after
//! a later, acknowledged one.

use crate::support::*;
use braid_engine::*;

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

/// Writes blocks that all hold `value`, on a shard.
fn write(rig: &mut Rig, shard: usize, (block, blocks): (u64, u64), value: u8) {
    let addr = u64::from(value) * MIB / 8;
    rig.memory[addr as usize..][..(blocks * BLOCK) as usize].fill(value);
    let request = Request { tag: u64::from(value), ..request(Op::Write, block * BLOCK, blocks * BLOCK, addr) };
    rig.submit(shard, request).unwrap();
}

/// Enters a client's write on a shard, which does not begin it.
fn enter(rig: &mut Rig, shard: usize, (block, blocks): (u64, u64), value: u8) {
    let addr = u64::from(value) * MIB / 8;
    rig.memory[addr as usize..][..(blocks * BLOCK) as usize].fill(value);
    let request = Request { tag: u64::from(value), ..request(Op::Write, block * BLOCK, blocks * BLOCK, addr) };
    let (shard, sink) = &mut rig.shards[shard];
    shard.enter(&request, sink).unwrap();
}

fn go_on(rig: &mut Rig, shard: usize, is_there: bool) {
    let (shard, sink) = &mut rig.shards[shard];
    if is_there { shard.begin_entered(sink) } else { shard.cancel_entered(sink) }
}

fn answered(rig: &mut Rig) -> Vec<u64> {
    let mut tags: Vec<u64> = [0, 1].iter().flat_map(|shard| rig.done(*shard)).map(|done| done.tag).collect();
    tags.sort_unstable();
    tags
}

/// Returns what a read finds at the beginning of a block.
fn read(rig: &mut Rig, block: u64) -> u8 {
    rig.run(request(Op::Read, block * BLOCK, BLOCK, 63 * MIB)).unwrap();
    rig.memory[63 * MIB as usize]
}

/// Completes all I/O in flight on a shard.
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

/// A request that has entered has its position in the order of writes, and changes nothing before its frontend has
/// checked the client.
#[test]
fn a_write_that_has_entered_keeps_its_position_and_begins_when_its_client_is_connected() {
    for (name, node) in levels() {
        let mut rig = Rig::new(2, &[2 * MIB, 2 * MIB]);
        serve(&mut rig, &node);
        enter(&mut rig, 0, (3, 2), 1);
        enter(&mut rig, 0, (4, 2), 2);
        // A newer write, on another shard.
        write(&mut rig, 1, (3, 3), 3);
        rig.deliver();
        assert!(rig.shards.iter().all(|(_, sink)| sink.queue.is_empty()), "{name}: nothing has begun");
        go_on(&mut rig, 0, true);
        rig.settle(&mut Random(1));
        assert_eq!(answered(&mut rig), [1, 2, 3], "{name}");
        assert_eq!([3, 4, 5].map(|block| read(&mut rig, block)), [3, 3, 3], "{name}");
    }
}

#[test]
fn a_request_that_was_called_off_has_changed_nothing_and_others_continue() {
    for (name, node) in levels() {
        let mut rig = Rig::new(2, &[2 * MIB, 2 * MIB]);
        serve(&mut rig, &node);
        write(&mut rig, 0, (3, 1), 9);
        rig.settle(&mut Random(1));
        // The newer write is done when the older one enters, which the client has repeated there.
        write(&mut rig, 1, (3, 1), 8);
        rig.settle(&mut Random(1));
        assert_eq!(answered(&mut rig), [8, 9]);
        enter(&mut rig, 0, (3, 2), 1);
        // This one waits for the first one's range.
        enter(&mut rig, 0, (2, 2), 2);
        rig.submit(0, Request { tag: 4, ..request(Op::Flush, 0, 0, 0) }).unwrap();
        write(&mut rig, 1, (2, 1), 3);
        go_on(&mut rig, 0, false);
        let writes = |rig: &Rig| rig.shards[0].1.queue.iter().filter(|io| io.op == Op::Write).count();
        assert_eq!(writes(&rig), 0, "{name}");
        rig.settle(&mut Random(1));
        let done: Vec<Completion> = [0, 1].iter().flat_map(|shard| rig.done(*shard)).collect();
        for done in &done {
            let kind = done.result.err().map(|error| error.kind);
            assert_eq!(kind, (done.tag < 3).then_some(ErrorKind::Unsettled), "{name}, {}", done.tag);
        }
        assert_eq!(done.len(), 4, "{name}");
        assert_eq!([2, 3, 4].map(|block| read(&mut rig, block)), [3, 8, 0], "{name}");
        assert_eq!(rig.shards[0].0.in_flight() + rig.shards[1].0.in_flight(), 0);
    }
}

#[test]
fn the_last_write_in_arrival_order_stays() {
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
                    let shard = random.below(2) as usize;
                    if random.below(3) == 0 {
                        // Of a client that has disconnected.
                        enter(&mut rig, shard, (random.below(24), 1 + random.below(12)), 255);
                        go_on(&mut rig, shard, false);
                    }
                    enter(&mut rig, shard, (block, blocks), value);
                    go_on(&mut rig, shard, true);
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
            let answered = answered(&mut rig).into_iter().filter(|tag| *tag != 255);
            assert_eq!(answered.count(), 60, "{name}, seed {seed}: all others are answered");
            for block in 0..36 {
                assert_eq!(read(&mut rig, block), last[block as usize], "{name}, seed {seed}, block {block}");
            }
        }
    }
}

/// A waiting write keeps its position: a later one that overlaps only the waiting one does not overtake it.
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

/// A long zeroing takes several steps: it keeps its claim to the part that it has not reached, and releases the part
/// that it has done.
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

/// A request that enters a device which has failed ends once, when its frontend settles it; its slot is reused then.
#[test]
fn a_request_that_enters_a_failed_array_ends_once() {
    for is_there in [true, false] {
        let mut rig = Rig::new(2, &[2 * MIB, 2 * MIB]);
        let mut node = open_mirror();
        if let Node::Mirrored(mirror) = &mut node {
            mirror.failed = true;
        }
        serve(&mut rig, &node);
        for round in 0..3 {
            enter(&mut rig, 0, (3, 2), 1);
            enter(&mut rig, 0, (3, 2), 2);
            go_on(&mut rig, 0, is_there);
            let done = rig.done(0);
            assert_eq!(done.iter().map(|done| done.tag).collect::<Vec<_>>(), [1, 2], "{round}");
            assert!(done.iter().all(|done| done.result.is_err_and(|error| error.kind == ErrorKind::Failed)));
        }
        assert_eq!((rig.shards[0].0.in_flight(), rig.shards[0].0.slots_in_use()), (0, 0));
    }
}
