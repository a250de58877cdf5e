//! What a request may have to wait for: a range that is held, a region's first touch, the kernel.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod support;

use std::sync::Arc;

use braid_engine::*;
use support::*;

const MIB: u64 = 1 << 20;

fn mirror(bytes: u64) -> Node {
    Node::Mirror { members: vec![leaf(0, bytes), leaf(1, bytes)] }
}

#[test]
fn overlapping_writes_leave_both_members_equal() {
    for seed in 0..200 {
        let mut rig = Rig::new(2, &[MIB, MIB]);
        rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(MIB))));
        let mut random = Random(seed);
        let mut sent = [0; 2];
        for k in 0..40u64 {
            let shard = random.below(2) as usize;
            let len = 512 * (1 + random.below(40));
            let offset = 512 * random.below(100);
            let addr = k * MIB;
            rig.memory[addr as usize..][..len as usize].fill(k as u8 + 1);
            rig.submit(shard, request(Op::Write, offset, len, addr)).unwrap();
            sent[shard] += 1;
            if random.below(3) == 0 && !rig.shards[shard].1.queue.is_empty() {
                let at = random.below(rig.shards[shard].1.queue.len() as u64) as usize;
                rig.answer(shard, at);
            }
            if random.below(4) == 0 {
                rig.deliver();
            }
        }
        rig.settle(&mut random);
        assert_eq!([rig.done(0).len(), rig.done(1).len()], sent, "seed {seed}: everybody is answered");
        assert!(rig.disks[0] == rig.disks[1], "seed {seed}: the members have diverged");
    }
}

#[test]
fn a_flood_of_waiting_writes_all_end() {
    let mut rig = Rig::new(2, &[MIB, MIB]);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(MIB))));
    for k in 0..200u64 {
        rig.submit((k % 2) as usize, request(Op::Write, 0, 4096, k * 4096)).unwrap();
    }
    rig.settle(&mut Random(9));
    assert_eq!(rig.done(0).len() + rig.done(1).len(), 200);
    assert_eq!(rig.shards[0].0.in_flight() + rig.shards[1].0.in_flight(), 0);
}

fn touched(home: u16) -> (Node, Arc<TouchMap>) {
    let places = vec![(LeafId(0), MIB), (LeafId(1), MIB)];
    let map = Arc::new(TouchMap::new(ShardId(home), MIB, 65536, places));
    (Node::Touched { child: Box::new(mirror(MIB)), map: Arc::clone(&map) }, map)
}

#[test]
fn a_bit_is_durable_everywhere_before_the_first_write() {
    for (seed, home) in [(1, 0), (2, 1), (3, 0), (4, 1)] {
        let mut rig = Rig::new(2, &[2 * MIB, 2 * MIB]);
        let (node, map) = touched(home);
        rig.publish(0, Some(DeviceLayout::new(1, 512, &node)));
        for k in 0..60u64 {
            rig.submit((k % 2) as usize, request(Op::Write, k * 16384, 4096, 0)).unwrap();
        }
        rig.settle(&mut Random(seed));
        assert_eq!(rig.done(0).len() + rig.done(1).len(), 60);
        for region in 0..15 {
            assert!(map.is_durable(region));
            let log = rig.log.borrow();
            let in_region = |e: &&Event| e.op == Op::Write && e.offset / 65536 == region.into();
            let first = log.iter().position(|e| in_region(&e)).expect("it was written");
            let bits: Vec<u32> = log[..first].iter().filter(|e| e.offset >= MIB && e.fua).map(|e| e.leaf).collect();
            assert!(bits.contains(&0) && bits.contains(&1), "region {region}: {bits:?}");
        }
        let metadata = rig.log.borrow().iter().filter(|e| e.offset >= MIB).count();
        assert!(metadata <= 2 * 4, "bits asked for together are written together: {metadata}");
        assert_eq!(rig.disks[0][MIB as usize..][..4096], rig.disks[1][MIB as usize..][..4096]);
    }
}

#[test]
fn a_bit_that_cannot_be_written_fails_the_write() {
    let mut rig = Rig::new(2, &[2 * MIB, 2 * MIB]);
    let (node, map) = touched(1);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &node)));
    rig.failing = Some(1);
    assert!(rig.run(request(Op::Write, 0, 4096, 0)).is_err());
    assert!(!map.is_durable(0));
    assert!(rig.log.borrow().iter().all(|e| e.offset >= MIB), "no data was written");
    assert!(rig.run(request(Op::Read, 0, 4096, 0)).is_ok(), "a read touches nothing");
    rig.failing = None;
    assert!(rig.run(request(Op::Write, 0, 4096, 0)).is_ok(), "the next write asks again");
}

#[test]
fn an_old_layout_drains_when_its_last_request_ends() {
    let disks = [MIB, MIB];
    let mut rig = Rig::new(1, &disks);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &leaf(0, MIB))));
    rig.submit(0, request(Op::Write, 0, 4096, 0)).unwrap();
    rig.submit(0, request(Op::Write, 4096, 4096, 0)).unwrap();
    rig.publish(0, Some(DeviceLayout::new(2, 512, &leaf(1, MIB))));
    rig.submit(0, request(Op::Write, 8192, 4096, 0)).unwrap();
    assert_eq!(rig.shards[0].0.pop_drained(), None);
    rig.answer(0, 2);
    rig.answer(0, 0);
    assert_eq!(rig.shards[0].0.pop_drained(), None);
    rig.answer(0, 0);
    assert_eq!(rig.shards[0].0.pop_drained(), Some((DeviceId(0), 1)));
    assert_eq!(rig.shards[0].0.pop_drained(), None);
    assert_eq!(rig.log.borrow().iter().map(|e| e.leaf).collect::<Vec<_>>(), [1, 0, 0]);
    rig.publish(0, None);
    assert_eq!(rig.shards[0].0.pop_drained(), Some((DeviceId(0), 2)));
    assert_eq!(rig.submit(0, request(Op::Read, 0, 512, 0)).unwrap_err().kind, ErrorKind::NoDevice);
}

#[test]
fn a_late_write_holds_its_buffer_and_its_range() {
    let mut rig = Rig::new(1, &[MIB, MIB]);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(MIB))));
    rig.submit(0, request(Op::Write, 0, 4096, 0)).unwrap();
    let late = rig.shards[0].1.queue.remove(1).unwrap();
    rig.answer(0, 0);
    let (shard, sink) = &mut rig.shards[0];
    shard.leaf_late(late.cookie, sink);
    let mut done = Vec::new();
    shard.swap_done(&mut done);
    let done = done[0];
    assert!(done.buffer_busy);
    assert_eq!(done.result.unwrap_err().kind, ErrorKind::TimedOut);
    let refused = rig.submit(0, request(Op::Write, 0, 4096, 8192)).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::TimedOut, "what is written now the late write might overwrite");
    rig.submit(0, request(Op::Write, 4096, 4096, 8192)).unwrap();
    assert_eq!(rig.shards[0].0.pop_released(), None);
    let (shard, sink) = &mut rig.shards[0];
    shard.leaf_returned(late.cookie, sink);
    assert_eq!(shard.pop_released(), Some(done.tag));
    rig.submit(0, request(Op::Write, 0, 4096, 8192)).unwrap();
    rig.settle(&mut Random(1));
    assert!(rig.done(0).iter().all(|d| d.result.is_ok()));
    assert_eq!(rig.shards[0].0.slots_in_use(), 0);
}

/// Who waits for a range is not made to wait for a disk that hangs.
#[test]
fn those_who_wait_for_a_late_write_are_told() {
    let mut rig = Rig::new(2, &[MIB, MIB]);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(MIB))));
    rig.submit(0, request(Op::Write, 0, 4096, 0)).unwrap();
    rig.submit(1, request(Op::Write, 0, 8192, 4096)).unwrap();
    let late = rig.shards[0].1.queue.remove(1).unwrap();
    rig.answer(0, 0);
    let (shard, sink) = &mut rig.shards[0];
    shard.leaf_late(late.cookie, sink);
    rig.settle(&mut Random(1));
    assert_eq!(rig.done(1)[0].result.unwrap_err().kind, ErrorKind::TimedOut);
    let (shard, sink) = &mut rig.shards[0];
    shard.leaf_returned(late.cookie, sink);
    assert_eq!((rig.shards[0].0.slots_in_use(), rig.shards[1].0.slots_in_use()), (0, 0));
}

/// No mirror, so no order of writes; and yet nothing may be written where a late write may still land.
#[test]
fn a_late_write_to_a_bare_disk_keeps_others_away() {
    let mut rig = Rig::new(2, &[MIB]);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &leaf(0, MIB))));
    rig.submit(0, request(Op::Write, 8192, 4096, 0)).unwrap();
    let late = rig.shards[0].1.queue.remove(0).unwrap();
    let (shard, sink) = &mut rig.shards[0];
    shard.leaf_late(late.cookie, sink);
    for shard in 0..2 {
        let refused = rig.submit(shard, request(Op::WriteZeroes, 0, 1 << 16, 0)).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::TimedOut);
        rig.submit(shard, request(Op::Read, 8192, 4096, 8192)).unwrap();
        rig.submit(shard, request(Op::Write, 12288, 4096, 8192)).unwrap();
    }
    let (shard, sink) = &mut rig.shards[0];
    shard.leaf_returned(late.cookie, sink);
    rig.submit(1, request(Op::WriteZeroes, 0, 1 << 16, 0)).unwrap();
    rig.settle(&mut Random(1));
}

/// A word of the range table may stand for several ranges: who wants another one of them does not wait for a disk that
/// hangs. With a table of two words that is every other one.
#[test]
fn nobody_waits_for_a_late_write_elsewhere() {
    let mut rig = Rig::with_table(2, &[MIB, MIB], 1);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(MIB))));
    rig.submit(0, request(Op::Write, 0, 4096, 0)).unwrap();
    for k in 1..16 {
        rig.submit(1, request(Op::Write, k * 65536, 4096, 4096)).unwrap();
    }
    let late = rig.shards[0].1.queue.remove(1).unwrap();
    rig.answer(0, 0);
    let (shard, sink) = &mut rig.shards[0];
    shard.leaf_late(late.cookie, sink);
    rig.settle(&mut Random(1));
    for k in 1..16 {
        rig.submit(1, request(Op::Write, k * 65536 + 8192, 4096, 4096)).unwrap();
    }
    rig.settle(&mut Random(1));
    let results: Vec<bool> = rig.done(1).iter().map(|done| done.result.is_ok()).collect();
    assert_eq!(results, [true; 30]);
    let (shard, sink) = &mut rig.shards[0];
    shard.leaf_returned(late.cookie, sink);
    assert_eq!((rig.shards[0].0.slots_in_use(), rig.shards[1].0.slots_in_use()), (0, 0));
}

/// A disk that hangs takes its own share of slots and memory, and no more, however often its clients try again.
#[test]
fn a_hung_device_is_refused_before_it_takes_what_others_need() {
    let mut rig = Rig::new(1, &[MIB, MIB]);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &leaf(0, MIB))));
    rig.publish(1, Some(DeviceLayout::new(1, 512, &leaf(1, MIB))));
    let mut late = Vec::new();
    let refused = loop {
        match rig.submit(0, request(Op::Read, 0, 4096, 0)) {
            Ok(()) => late.push(rig.shards[0].1.queue.pop_front().unwrap().cookie),
            Err(refused) => break refused,
        }
        let (shard, sink) = &mut rig.shards[0];
        shard.leaf_late(*late.last().unwrap(), sink);
    };
    assert_eq!((refused.kind, late.len()), (ErrorKind::TimedOut, 64));
    let other = Request { device: DeviceId(1), ..request(Op::Read, 0, 4096, 0) };
    rig.submit(0, other).unwrap();
    rig.answer(0, 0);
    let (shard, sink) = &mut rig.shards[0];
    shard.leaf_returned(late.pop().unwrap(), sink);
    rig.submit(0, request(Op::Read, 0, 4096, 0)).unwrap();
    rig.answer(0, 0);
    for cookie in late {
        let (shard, sink) = &mut rig.shards[0];
        shard.leaf_returned(cookie, sink);
    }
    assert_eq!(rig.shards[0].0.slots_in_use(), 0);
}

/// The kernel holds a block of bits beyond its time limit: who wants one of its bits then is told so, on every
/// shard, and the next one after the block is back is served.
#[test]
fn nobody_waits_for_a_late_block_of_bits() {
    let mut rig = Rig::new(2, &[2 * MIB, 2 * MIB]);
    let (node, map) = touched(0);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &node)));
    rig.submit(0, request(Op::Write, 0, 4096, 0)).unwrap();
    let late = rig.shards[0].1.queue.remove(1).unwrap();
    rig.answer(0, 0);
    let (shard, sink) = &mut rig.shards[0];
    shard.leaf_late(late.cookie, sink);
    assert_eq!(rig.done(0)[0].result.unwrap_err().kind, ErrorKind::TimedOut);
    for (shard, offset) in [(0, 0), (1, 4096), (0, 65536), (1, 131072)] {
        rig.submit(shard, request(Op::Write, offset, 4096, 0)).unwrap();
        rig.settle(&mut Random(offset));
        assert_eq!(rig.done(shard)[0].result.unwrap_err().kind, ErrorKind::TimedOut, "shard {shard}, {offset}");
    }
    let (shard, sink) = &mut rig.shards[0];
    shard.leaf_returned(late.cookie, sink);
    assert_eq!(rig.shards[0].0.slots_in_use(), 0);
    assert!(!map.is_durable(0));
    rig.submit(1, request(Op::Write, 0, 4096, 0)).unwrap();
    rig.settle(&mut Random(1));
    assert!(rig.done(1)[0].result.is_ok());
    assert!(map.is_durable(0));
}

#[test]
fn a_stopped_device_answers_those_who_wait() {
    let mut rig = Rig::new(1, &[MIB, MIB]);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(MIB))));
    rig.submit(0, request(Op::Write, 0, 4096, 0)).unwrap();
    rig.submit(0, request(Op::Write, 0, 4096, 4096)).unwrap();
    rig.publish(0, None);
    rig.settle(&mut Random(1));
    let results: Vec<bool> = rig.done(0).iter().map(|d| d.result.is_ok()).collect();
    assert_eq!(results, [true, false]);
    assert_eq!(rig.shards[0].0.pop_drained(), Some((DeviceId(0), 1)));
}
