//! Redundant arrays on the data path: regions, members that fail, parts of jobs.

use crate::support::*;
use braid_engine::*;
use braid_format::Uuid;
use braid_format::bitmap::{self, BitmapBlock};

const KIB: u64 = 1024;
const SIZES: [u64; 3] = [2 << 20; 3];
const BOTH: [MemberRole; 2] = [MemberRole::InSync; 2];

fn rig(shards: u16) -> Rig {
    Rig::new(shards, &SIZES)
}

/// Returns the bitmap block on a disk.
fn bits_on(rig: &Rig, disk: usize) -> BitmapBlock {
    let bytes: [u8; 4096] = rig.disks[disk][BITMAP as usize..][..4096].try_into().unwrap();
    let read = bitmap::decode(&Uuid::from_u128(9), 0, &bytes);
    assert_eq!(read.damaged, 0);
    read.bits
}

#[test]
fn what_was_never_written_reads_as_zeros_without_a_disk() {
    let mut rig = rig(1);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(&BOTH, &regions(0, 0b10, 0b10, true)))));
    rig.disks[0].fill(7);
    // Unwritten, written, unwritten.
    rig.run(request(Op::Read, 32 * KIB, 128 * KIB, 4096)).unwrap();
    assert_eq!(rig.shards[0].1.zeroed, [(4096, 32 * KIB), (4096 + 96 * KIB, 32 * KIB)]);
    assert_eq!(rig.log.borrow().len(), 1);
    rig.run(request(Op::WriteZeroes, 512 * KIB, 64 * KIB, 0)).unwrap();
    rig.run(request(Op::Discard, 512 * KIB, 64 * KIB, 0)).unwrap();
    assert_eq!(rig.log.borrow().len(), 1, "what is zero need not be zeroed");
}

#[test]
fn a_first_write_is_prepared_in_the_right_order() {
    for (seed, home) in [(1, 0), (2, 1), (3, 0), (4, 1)] {
        let mut rig = rig(2);
        let map = regions(home, 0, 0, true);
        rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(&BOTH, &map))));
        for disk in &mut rig.disks {
            disk.fill(0xee);
        }
        for k in 0..60u64 {
            rig.submit((k % 2) as usize, request(Op::Write, k * 16 * KIB, 4096, 0)).unwrap();
        }
        rig.settle(&mut Random(seed));
        let done: Vec<_> = rig.done(0).into_iter().chain(rig.done(1)).collect();
        assert!(done.len() == 60 && done.iter().all(|d| d.result.is_ok()));
        let log = rig.log.borrow().clone();
        for region in 0..15u32 {
            assert!(map.writable.has(region) && map.readable.has(region));
            let covers = |e: &Event| {
                e.offset <= u64::from(region) * 64 * KIB && e.offset + e.len >= u64::from(region + 1) * 64 * KIB
            };
            let data = |e: &&Event| e.op == Op::Write && e.offset / (64 * KIB) == region.into();
            let first = log.iter().position(|e| data(&e)).expect("it was written");
            for leaf in 0..2 {
                let zeroed = log.iter().position(|e| e.leaf == leaf && e.op == Op::WriteZeroes && covers(e)).unwrap();
                let marked = log[..zeroed].iter().any(|e| e.leaf == leaf && e.offset >= BITMAP && e.fua);
                let flushed = zeroed + log[zeroed..].iter().position(|e| e.leaf == leaf && e.op == Op::Flush).unwrap();
                let noted = log[flushed..first].iter().any(|e| e.leaf == leaf && e.offset >= BITMAP && e.fua);
                assert!(marked && noted, "region {region}, member {leaf}");
            }
        }
        let metadata = log.iter().filter(|e| e.offset >= BITMAP && e.op == Op::Write).count();
        assert!(metadata <= 2 * 2 * 4, "bits that are requested together are written together: {metadata}");
        assert!(rig.disks[0][..960 << 10] == rig.disks[1][..960 << 10]);
        assert_eq!(rig.disks[0][4096..16384], [0; 12288], "around what was written there are zeros");
        let bits = bits_on(&rig, 0);
        assert_eq!((bits.written[0], bits.dirty[0]), (0x7fff, 0x7fff));
        assert_eq!(bits_on(&rig, 1), bits);
    }
}

#[test]
fn a_clean_region_needs_its_bit_only() {
    let mut rig = rig(1);
    let map = regions(0, 0b11, 0, true);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(&BOTH, &map))));
    rig.run(request(Op::Write, 0, 4096, 0)).unwrap();
    let log = rig.log.borrow().clone();
    assert!(
        log.iter().all(|e| e.op == Op::Write) && log.len() == 4 && log[..2].iter().all(|e| e.offset == BITMAP && e.fua)
    );
    assert_eq!((bits_on(&rig, 0).written[0], bits_on(&rig, 1).dirty[0]), (0b11, 0b01));
}

/// A member fails a write: no request is answered, on any shard, until a layout without the member is published.
#[test]
fn a_failed_write_is_answered_when_the_member_is_dropped() {
    let mut rig = rig(2);
    let map = regions(0, u64::MAX, u64::MAX, true);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(&BOTH, &map))));
    rig.failing = Some(1);
    rig.memory[..4096].fill(3);
    rig.submit(0, request(Op::Write, 0, 4096, 0)).unwrap();
    rig.settle(&mut Random(1));
    let faults = rig.faults();
    assert_eq!((faults.len(), faults[0].role, faults[0].op), (1, 1, Op::Write));
    assert!(faults[0].freezes_device() && faults[0].is_fatal());
    rig.freeze(0);
    // A later request waits, too.
    rig.submit(0, request(Op::Read, 0, 4096, 8192)).unwrap();
    rig.submit(1, request(Op::Write, 0, 8192, 16384)).unwrap();
    rig.submit(1, request(Op::Flush, 0, 0, 0)).unwrap();
    rig.settle(&mut Random(1));
    assert_eq!((rig.done(0).len(), rig.done(1).len()), (0, 0));
    let out = [MemberRole::InSync, MemberRole::Failed];
    rig.publish(0, Some(DeviceLayout::new(2, 512, &mirror(&out, &map))));
    rig.settle(&mut Random(1));
    let (first, second) = (rig.done(0), rig.done(1));
    assert_eq!((first.len(), second.len()), (2, 2));
    assert!(first.iter().chain(&second).all(|d| d.result.is_ok()), "{first:?} {second:?}");
    assert!(rig.faults().is_empty());
    assert_eq!((rig.shards[0].0.slots_in_use(), rig.shards[1].0.slots_in_use()), (0, 0));
}

/// A first write zeroes the rest of its region on the remaining members only: a member that was dropped while a read
/// was in flight must not supply the rest of that read.
#[test]
fn a_read_continues_without_a_member_that_was_dropped_meanwhile() {
    for out in 0..2 {
        let mut rig = rig(1);
        let map = regions(0, 0b01, 0, true);
        rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(&BOTH, &map))));
        rig.disks.iter_mut().for_each(|disk| disk.fill(0xee));
        rig.submit(0, request(Op::Read, 0, 128 * KIB, 128 * KIB)).unwrap();
        let reads = rig.shards[0].1.queue.len();
        assert!(reads > 0, "the first region is read");
        rig.freeze(0);
        let mut roles = BOTH;
        roles[out] = MemberRole::Failed;
        rig.publish(0, Some(DeviceLayout::new(2, 512, &mirror(&roles, &map))));
        rig.memory[..4096].fill(3);
        rig.submit(0, request(Op::Write, 64 * KIB, 4096, 0)).unwrap();
        while rig.shards[0].1.queue.len() > reads {
            rig.answer(0, reads);
        }
        assert_eq!(rig.done(0).len(), 1, "the write ends first");
        rig.settle(&mut Random(1));
        assert!(rig.done(0)[0].result.is_ok());
        let second = &rig.memory[192 << 10..256 << 10];
        assert!(second[..4096].iter().all(|b| *b == 3) && second[4096..].iter().all(|b| *b == 0), "without {out}");
    }
}

/// A layout that drops another member does not clear the failure.
#[test]
fn a_second_failure_is_reported_again() {
    let mut rig = rig(1);
    let map = regions(0, u64::MAX, u64::MAX, true);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(&[MemberRole::InSync; 3], &map))));
    rig.failing = Some(1);
    rig.submit(0, request(Op::Write, 0, 4096, 0)).unwrap();
    rig.settle(&mut Random(1));
    rig.faults();
    rig.publish(
        0,
        Some(DeviceLayout::new(2, 512, &mirror(&[MemberRole::Failed, MemberRole::InSync, MemberRole::InSync], &map))),
    );
    rig.settle(&mut Random(1));
    assert_eq!(rig.faults().iter().map(|t| t.role).collect::<Vec<_>>(), [1]);
    assert!(rig.done(0).is_empty());
    rig.publish(
        0,
        Some(DeviceLayout::new(3, 512, &mirror(&[MemberRole::Failed, MemberRole::Failed, MemberRole::InSync], &map))),
    );
    rig.settle(&mut Random(1));
    assert!(rig.done(0)[0].result.is_ok());
}

#[test]
fn a_failed_array_answers_with_errors_and_writes_nothing() {
    let mut rig = rig(1);
    let map = regions(0, u64::MAX, u64::MAX, true);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(&BOTH, &map))));
    rig.failing = Some(0);
    rig.submit(0, request(Op::Write, 0, 4096, 0)).unwrap();
    rig.settle(&mut Random(1));
    let Node::Mirrored(mut node) = mirror(&BOTH, &map) else { unreachable!() };
    node.failed = true;
    rig.publish(0, Some(DeviceLayout::new(2, 512, &Node::Mirrored(node))));
    rig.settle(&mut Random(1));
    assert!(rig.done(0)[0].result.is_err());
    let before = rig.log.borrow().len();
    for op in [Op::Read, Op::Write, Op::WriteZeroes, Op::Flush] {
        let (offset, len) = if op == Op::Flush { (0, 0) } else { (0, 4096) };
        assert_eq!(rig.run(request(op, offset, len, 0)).unwrap_err().kind, ErrorKind::Failed, "{op:?}");
    }
    assert_eq!(rig.log.borrow().len(), before);
}

#[test]
fn a_read_goes_to_another_member_and_the_fault_is_reported() {
    for failing in 0..2 {
        let mut rig = rig(1);
        rig.publish(0, Some(DeviceLayout::new(1, 512, &open_mirror())));
        rig.failing = Some(failing);
        rig.disks[0][..8192].fill(5);
        rig.disks[1][..8192].fill(5);
        // Whichever is read first.
        for k in 0..4 {
            rig.run(request(Op::Read, 4096 * (k % 2), 4096, 4096 * k)).unwrap();
        }
        assert_eq!(rig.memory[..16384], [5; 16384]);
        let faults = rig.faults();
        assert!(faults.iter().all(|t| t.role == failing as u16 && !t.is_fatal()), "{faults:?}");
        assert_eq!(rig.shards[0].0.slots_in_use(), 0);
    }
    let mut rig = rig(1);
    rig.publish(
        0,
        Some(DeviceLayout::new(1, 512, &mirror(&[MemberRole::InSync, MemberRole::Failed], &regions(0, 1, 1, true)))),
    );
    rig.failing = Some(0);
    assert_eq!(rig.run(request(Op::Read, 0, 4096, 0)).unwrap_err().kind, ErrorKind::Io, "there is no other");
}

/// A server that does not respond has its I/O ended when no reply can arrive any more: the memory is free for another
/// member. Memory of I/O that the kernel holds of a disk that hangs may yet be filled: no other I/O may use it.
#[test]
fn a_read_that_timed_out_goes_to_another_member_when_its_memory_is_free() {
    for is_free in [true, false] {
        let mut rig = rig(1);
        rig.publish(0, Some(DeviceLayout::new(1, 512, &open_mirror())));
        rig.disks.iter_mut().for_each(|disk| disk[..4096].fill(5));
        rig.submit(0, request(Op::Read, 0, 4096, 0)).unwrap();
        let (shard, sink) = &mut rig.shards[0];
        let silent = sink.queue.pop_front().unwrap();
        if is_free {
            shard.leaf_done(silent.cookie, Err(LeafError::of(ErrorKind::TimedOut)), sink);
        } else {
            shard.leaf_late(silent.cookie, sink);
        }
        rig.settle(&mut Random(1));
        let done = rig.done(0).remove(0);
        assert_eq!((done.result.is_ok(), done.buffer_busy), (is_free, !is_free), "{done:?}");
        let faults = rig.faults();
        assert!(faults.len() == 1 && faults[0].is_fatal() && !faults[0].freezes_device(), "{faults:?}");
        let other: Vec<u32> = rig.log.borrow().iter().map(|event| event.leaf).collect();
        assert_eq!(other, if is_free { vec![1 - silent.leaf.0] } else { vec![] });
        assert_eq!(rig.memory[0], if is_free { 5 } else { 0 });
        let (shard, sink) = &mut rig.shards[0];
        if !is_free {
            shard.leaf_returned(silent.cookie, sink);
        }
        assert_eq!(rig.shards[0].0.slots_in_use(), 0);
    }
}

/// A bitmap write fails: the region is prepared again without the member, and waiting requests continue.
#[test]
fn a_failed_bitmap_write_is_repeated_with_the_next_layout() {
    for fails_after in 0..8 {
        let mut rig = rig(2);
        let map = regions(1, 0b100, 0, true);
        rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(&BOTH, &map))));
        rig.submit(0, request(Op::Write, 0, 4096, 0)).unwrap();
        rig.submit(1, request(Op::Write, 128 * KIB, 4096, 4096)).unwrap();
        rig.deliver();
        for _ in 0..fails_after {
            if !rig.shards[1].1.queue.is_empty() {
                rig.answer(1, 0);
            }
            rig.deliver();
        }
        rig.failing = Some(1);
        rig.settle(&mut Random(3));
        assert!(!rig.faults().is_empty(), "after {fails_after}");
        rig.freeze(0);
        rig.settle(&mut Random(3));
        rig.publish(0, Some(DeviceLayout::new(2, 512, &mirror(&[MemberRole::InSync, MemberRole::Failed], &map))));
        rig.settle(&mut Random(3));
        let done: Vec<_> = rig.done(0).into_iter().chain(rig.done(1)).collect();
        assert!(done.len() == 2 && done.iter().all(|d| d.result.is_ok()), "after {fails_after}: {done:?}");
        let bits = bits_on(&rig, 0);
        assert_eq!((bits.written[0], bits.dirty[0]), (0b101, 0b101), "after {fails_after}");
        assert_eq!((rig.shards[0].0.slots_in_use(), rig.shards[1].0.slots_in_use()), (0, 0));
    }
}

#[test]
fn what_a_crash_left_unequal_is_read_when_it_has_been_copied() {
    let mut rig = rig(2);
    let map = regions(1, 0b11, 0b10, false);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(&BOTH, &map))));
    rig.disks[0].fill(1);
    rig.disks[1].fill(2);
    rig.submit(0, request(Op::Read, 64 * KIB, 4096, 0)).unwrap();
    rig.submit(0, request(Op::Write, 64 * KIB + 8192, 4096, 4096)).unwrap();
    rig.submit(0, request(Op::Read, 0, 4096, 8192)).unwrap();
    rig.settle(&mut Random(1));
    assert_eq!(rig.done(0).len(), 1, "the clean one");
    assert!(map.wanted.has(1) && !map.wanted.has(0));
    let part = SyncRequest {
        device: DeviceId(0),
        offset: 64 * KIB,
        len: 64 * KIB,
        kind: SyncKind::Copy { from: 1, to: MemberSet(u128::MAX) },
        buf: Buf { addr: 1 << 20, region: Buf::UNREGISTERED },
        tag: 5,
    };
    let (shard, sink) = &mut rig.shards[0];
    shard.submit_sync(&part, sink).unwrap();
    rig.settle(&mut Random(1));
    let done = rig.shards[0].0.pop_sync_done().unwrap();
    assert!(done.tag == 5 && done.result.is_ok() && !done.buffer_lost);
    assert_eq!(rig.disks[0][64 << 10..128 << 10], rig.disks[1][64 << 10..128 << 10]);
    rig.call(1, RegionCall::MarkEqual(vec![1]));
    rig.settle(&mut Random(1));
    assert_eq!(rig.done(0).len(), 2);
    assert_eq!(rig.memory[..4096], [2; 4096]);
    assert!(!map.wanted.has(1) && map.writable.has(1));
}

#[test]
fn a_part_of_a_job_holds_its_range_and_never_waits_in_a_freeze() {
    let mut rig = rig(1);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &open_mirror())));
    let part = |tag| SyncRequest {
        device: DeviceId(0),
        offset: 0,
        len: 8192,
        kind: SyncKind::Copy { from: 0, to: MemberSet(2) },
        buf: Buf { addr: 1 << 20, region: Buf::UNREGISTERED },
        tag,
    };
    let sync = |rig: &mut Rig, tag| {
        let (shard, sink) = &mut rig.shards[0];
        shard.submit_sync(&part(tag), sink)
    };
    sync(&mut rig, 1).unwrap();
    rig.submit(0, request(Op::Write, 4096, 4096, 0)).unwrap();
    assert_eq!(rig.shards[0].1.queue.len(), 1, "the write waits for the copy");
    rig.answer(0, 0);
    rig.answer(0, 0);
    assert_eq!(rig.shards[0].1.queue.len(), 2, "and goes on after it");
    sync(&mut rig, 2).unwrap();
    rig.failing = Some(1);
    assert_eq!(rig.shards[0].0.pop_sync_done().unwrap().tag, 1);
    rig.freeze(0);
    assert_eq!(rig.shards[0].0.pop_sync_done().unwrap().result.unwrap_err().kind, ErrorKind::Busy);
    assert_eq!(sync(&mut rig, 3).unwrap_err().kind, ErrorKind::Busy);
    rig.settle(&mut Random(1));
    rig.publish(
        0,
        Some(DeviceLayout::new(2, 512, &mirror(&[MemberRole::InSync, MemberRole::Failed], &regions(0, 1, 1, true)))),
    );
    rig.settle(&mut Random(1));
    assert!(rig.done(0)[0].result.is_ok());
    assert_eq!(rig.shards[0].0.slots_in_use(), 0);
}

#[test]
fn a_failed_write_of_a_job_freezes_as_well() {
    let mut rig = rig(1);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &open_mirror())));
    let buf = Buf { addr: 1 << 20, region: Buf::UNREGISTERED };
    let kind = SyncKind::Copy { from: 0, to: MemberSet(2) };
    let part = SyncRequest { device: DeviceId(0), offset: 0, len: 8192, kind, buf, tag: 1 };
    rig.failing = Some(1);
    let (shard, sink) = &mut rig.shards[0];
    shard.submit_sync(&part, sink).unwrap();
    rig.settle(&mut Random(1));
    assert!(rig.shards[0].0.pop_sync_done().unwrap().result.is_err());
    let faults = rig.faults();
    assert!(faults.len() == 1 && faults[0].freezes_device());
    rig.submit(0, request(Op::Read, 0, 4096, 0)).unwrap();
    rig.settle(&mut Random(1));
    assert!(rig.done(0).is_empty());
}

#[test]
fn a_source_that_cannot_be_read_fails_the_copy_without_a_fault_report() {
    let mut rig = rig(1);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &open_mirror())));
    let buf = Buf { addr: 1 << 20, region: Buf::UNREGISTERED };
    let kind = SyncKind::Copy { from: 0, to: MemberSet(2) };
    let part = SyncRequest { device: DeviceId(0), offset: 0, len: 8192, kind, buf, tag: 1 };
    rig.failing = Some(0);
    let (shard, sink) = &mut rig.shards[0];
    shard.submit_sync(&part, sink).unwrap();
    rig.settle(&mut Random(1));
    assert_eq!(rig.shards[0].0.pop_sync_done().unwrap().result.unwrap_err().kind, ErrorKind::Io);
    assert!(rig.faults().is_empty(), "the caller of the copy knows, and uses another source");
    rig.submit(0, request(Op::Read, 0, 4096, 0)).unwrap();
    rig.settle(&mut Random(1));
    assert_eq!(rig.done(0).len(), 1, "nothing is frozen");
}

#[test]
fn bits_are_cleared_only_if_no_request_came_back() {
    let mut rig = rig(1);
    let map = regions(0, 0b111, 0b111, true);
    let layout = |version| Some(DeviceLayout::new(version, 512, &mirror(&BOTH, &map)));
    rig.publish(0, layout(1));
    rig.call(0, RegionCall::Close(vec![0, 1]));
    rig.publish(0, layout(2));
    rig.run(request(Op::Write, 64 * KIB, 4096, 0)).unwrap();
    let bits: Vec<_> = rig.log.borrow().iter().filter(|e| e.offset == BITMAP).copied().collect();
    assert!(bits.is_empty(), "its bit was still there: {bits:?}");
    rig.call(0, RegionCall::Clear(vec![0, 1, 2]));
    assert_eq!(bits_on(&rig, 0).dirty[0], 0b110);
    assert!(!map.dirty.has(0) && map.dirty.has(1) && map.readable.has(0));
    rig.run(request(Op::Write, 0, 4096, 0)).unwrap();
    assert_eq!(bits_on(&rig, 1).dirty[0], 0b111);
}

/// A member fails while a bit is being cleared: the survivor may have cleared the bit already, so that it is written
/// again before a write to the region begins.
#[test]
fn a_bit_that_was_cleared_on_some_members_is_set_again_first() {
    for answered in [0, 1] {
        let mut rig = rig(1);
        let map = regions(0, 0b1, 0b1, true);
        rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(&BOTH, &map))));
        rig.call(0, RegionCall::Close(vec![0]));
        let (shard, sink) = &mut rig.shards[0];
        shard.begin_call(5, DeviceId(0), RegionCall::Clear(vec![0]), sink);
        // The survivor has the block without the bit, the other member fails.
        rig.answer(0, answered);
        rig.failing = Some(1 - rig.log.borrow().last().unwrap().leaf);
        let survivor = rig.log.borrow().last().unwrap().leaf as usize;
        rig.answer(0, 0);
        let mut roles = [MemberRole::Failed; 2];
        roles[survivor] = MemberRole::InSync;
        rig.publish(0, Some(DeviceLayout::new(2, 512, &mirror(&roles, &map))));
        rig.settle(&mut Random(1));
        rig.run(request(Op::Write, 0, 4096, 0)).unwrap();
        assert_eq!(bits_on(&rig, survivor).dirty[0], 0b1, "the returning member would not be brought up to date");
        assert_eq!(rig.shards[0].0.slots_in_use(), 0);
    }
}

#[test]
fn bits_stay_while_a_member_is_missing_and_a_new_member_gets_them_all() {
    let mut rig = rig(1);
    let map = regions(0, 0b111, 0b111, true);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(&[MemberRole::InSync, MemberRole::Failed], &map))));
    rig.call(0, RegionCall::Close(vec![0]));
    rig.call(0, RegionCall::Clear(vec![0]));
    assert!(map.dirty.has(0) && rig.log.borrow().is_empty());
    rig.publish(0, Some(DeviceLayout::new(2, 512, &mirror(&[MemberRole::InSync, MemberRole::Rebuilding], &map))));
    rig.call(0, RegionCall::Rewrite);
    assert_eq!(bits_on(&rig, 1).dirty[0], 0b111);
    rig.run(request(Op::Write, 64 * KIB, 4096, 0)).unwrap();
    rig.run(request(Op::Flush, 0, 0, 0)).unwrap();
    let log = rig.log.borrow().clone();
    for (last, op) in [(&log[log.len() - 4..log.len() - 2], Op::Write), (&log[log.len() - 2..], Op::Flush)] {
        let both = last[0].leaf + last[1].leaf == 1;
        assert!(last.iter().all(|e| e.op == op) && both, "{last:?}");
    }
    rig.run(request(Op::Read, 64 * KIB, 4096, 0)).unwrap();
    assert_eq!(rig.log.borrow().last().unwrap().leaf, 0, "a rebuilding member is not read");
}

/// A member hangs: its write is answered at the time limit, the member is dropped, and the request succeeds. Its memory
/// is free when the kernel returns the I/O, and others write there meanwhile.
#[test]
fn a_late_write_succeeds_when_the_member_is_dropped() {
    let mut rig = rig(1);
    let map = regions(0, u64::MAX, u64::MAX, true);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(&BOTH, &map))));
    rig.submit(0, request(Op::Write, 0, 4096, 0)).unwrap();
    let late = rig.shards[0].1.queue.remove(1).unwrap();
    rig.answer(0, 0);
    let (shard, sink) = &mut rig.shards[0];
    shard.leaf_late(late.cookie, sink);
    assert!(rig.done(0).is_empty());
    assert_eq!(rig.faults()[0].kind, ErrorKind::TimedOut);
    rig.publish(0, Some(DeviceLayout::new(2, 512, &mirror(&[MemberRole::InSync, MemberRole::Failed], &map))));
    let done = rig.done(0);
    assert!(done[0].result.is_ok() && done[0].buffer_busy);
    rig.run(request(Op::Write, 0, 8192, 8192)).unwrap();
    assert_eq!(rig.shards[0].0.pop_released(), None);
    let (shard, sink) = &mut rig.shards[0];
    shard.leaf_returned(late.cookie, sink);
    assert_eq!(shard.pop_released(), Some(done[0].tag));
    assert_eq!(rig.shards[0].0.slots_in_use(), 0);
}

/// A member is dropped while I/Os to it are in flight: their failures are ignored.
#[test]
fn a_failure_of_a_dropped_member_freezes_nothing() {
    let mut rig = rig(1);
    let map = regions(0, u64::MAX, u64::MAX, true);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(&BOTH, &map))));
    rig.submit(0, request(Op::Write, 0, 4096, 0)).unwrap();
    rig.publish(0, Some(DeviceLayout::new(2, 512, &mirror(&[MemberRole::InSync, MemberRole::Failed], &map))));
    rig.failing = Some(1);
    rig.settle(&mut Random(1));
    assert!(rig.done(0)[0].result.is_ok() && rig.faults().is_empty());
    rig.run(request(Op::Write, 0, 4096, 0)).unwrap();
}

#[test]
fn a_mirror_zeroes_discarded_ranges_and_has_no_fast_zero() {
    let mut rig = rig(1);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &open_mirror())));
    rig.disks[0][..8192].fill(1);
    rig.disks[1][..8192].fill(1);
    rig.run(request(Op::Discard, 0, 4096, 0)).unwrap();
    assert!(rig.log.borrow().iter().all(|e| e.op == Op::WriteZeroes));
    let fast = Request { flags: Flags::FAST_ZERO, ..request(Op::WriteZeroes, 0, 4096, 0) };
    assert_eq!(rig.run(fast).unwrap_err().kind, ErrorKind::Unsupported);
}

/// Two members and a third of which only some bytes are used: raid10 with an odd number, by zones.
#[test]
fn raid10_writes_each_byte_to_its_two_members() {
    use braid_geometry::{Geometry, Level, Spec};
    let spec = Spec { chunk_bytes: 4096, ..Spec::new(Level::Raid10) };
    let sizes = [1 << 20, 1 << 20, 512 << 10];
    let geometry = Geometry::plan(spec, &sizes).unwrap();
    let size = geometry.size_bytes();
    let bits = (&[u64::MAX][..], &[u64::MAX][..]);
    let map = std::sync::Arc::new(RegionMap::new(ShardId(0), Uuid::from_u128(9), size, 1 << 16, bits, true));
    let member = |(k, len): (usize, &u64)| MirrorMember {
        leaf: LeafId(k as u32),
        start: 0,
        len: *len,
        bitmap_start: BITMAP,
        role: MemberRole::InSync,
        write_mostly: k == 0,
    };
    let members = sizes.iter().enumerate().map(member).collect();
    let node = MirrorNode {
        geometry: geometry.clone(),
        members,
        successors: Vec::new(),
        regions: map,
        parity: None,
        failed: false,
    };
    let mut rig = rig(1);
    rig.publish(0, Some(DeviceLayout::new(1, 512, &Node::Mirrored(Box::new(node)))));
    let mut random = Random(4);
    let mut shadow = vec![0; size as usize];
    for k in 0..200u64 {
        let len = 512 * (1 + random.below(60));
        let at = 512 * random.below((size - len) / 512);
        rig.memory[..len as usize].fill(k as u8);
        rig.run(request(Op::Write, at, len, 0)).unwrap();
        shadow[at as usize..][..len as usize].fill(k as u8);
    }
    for block in 0..size / 4096 {
        geometry.copies(block * 4096, &mut |piece| {
            let there = &rig.disks[usize::from(piece.member)][piece.member_offset as usize..][..4096];
            assert!(there == &shadow[(block * 4096) as usize..][..4096], "block {block}, member {}", piece.member);
        });
    }
    rig.log.borrow_mut().clear();
    rig.run(request(Op::Read, 0, size, 1 << 21)).unwrap();
    assert!(rig.memory[1 << 21..][..size as usize] == shadow[..]);
    let mostly: u64 = rig.log.borrow().iter().filter(|e| e.leaf == 0).map(|e| e.len).sum();
    assert_eq!(mostly, 0, "there is always another member to read from");
}
