//! What a request may have to wait for: a range that is held, a region's first write, the kernel.

use crate::support::*;
use braid_engine::*;

const MIB: u64 = 1 << 20;

#[test]
fn overlapping_writes_leave_both_members_equal() {
    for seed in 0..200 {
        let mut rig = Rig::new(2, &[MIB, MIB]);
        rig.publish(0, Some(DeviceLayout::new(1, 512, &open_mirror())));
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
        assert_eq!([rig.done(0).len(), rig.done(1).len()], sent, "seed {seed}: every request is answered");
        assert!(rig.disks[0] == rig.disks[1], "seed {seed}: the members have diverged");
    }
}

#[test]
fn a_flood_of_waiting_writes_all_end() {
    let mut rig = Rig::new(2, &[MIB, MIB]);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &open_mirror())));
    for k in 0..200u64 {
        rig.submit((k % 2) as usize, request(Op::Write, 0, 4096, k * 4096)).unwrap();
    }
    rig.settle(&mut Random(9));
    assert_eq!(rig.done(0).len() + rig.done(1).len(), 200);
    assert_eq!(rig.shards[0].0.in_flight() + rig.shards[1].0.in_flight(), 0);
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

/// Without a mirror writes are not ordered; nevertheless nothing may be written to the range of a late write.
#[test]
fn a_late_write_to_a_bare_disk_bars_other_writes() {
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

/// A disk that hangs takes its own share of slots and memory, and no more, however often its clients retry.
#[test]
fn a_hung_device_is_refused_before_it_takes_all_resources() {
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

#[test]
fn a_stopped_device_answers_waiting_requests() {
    let mut rig = Rig::new(1, &[MIB, MIB]);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &open_mirror())));
    rig.submit(0, request(Op::Write, 0, 4096, 0)).unwrap();
    rig.submit(0, request(Op::Write, 0, 4096, 4096)).unwrap();
    rig.publish(0, None);
    rig.settle(&mut Random(1));
    let results: Vec<bool> = rig.done(0).iter().map(|d| d.result.is_ok()).collect();
    assert_eq!(results, [false, true], "the one that waited is answered at once");
    assert_eq!(rig.shards[0].0.pop_drained(), Some((DeviceId(0), 1)));
}
