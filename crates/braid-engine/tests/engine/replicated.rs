//! Replicated devices: answers under a lease, and reads of what all members have.

use std::sync::Arc;

use crate::support::*;
use braid_engine::*;

const KIB: u64 = 1024;
const BOTH: [MemberRole; 2] = [MemberRole::InSync; 2];

/// Returns a mirror with all regions open, replicated under this lease.
fn layout(version: u32, roles: &[MemberRole], lease: &Arc<DeviceLease>) -> DeviceLayout {
    let open = regions(0, u64::MAX, u64::MAX, true);
    DeviceLayout::new(version, 512, &mirror(roles, &open)).replicated(Arc::clone(lease))
}

fn rig(shards: u16, lease: &Arc<DeviceLease>) -> Rig {
    let mut rig = Rig::new(shards, &[2 << 20; 3]);
    rig.publish(0, Some(layout(1, &BOTH, lease)));
    rig
}

fn at(rig: &mut Rig, now_ns: u64) {
    rig.shards.iter_mut().for_each(|(_, sink)| sink.now_ns = now_ns);
}

fn renewed(rig: &mut Rig) {
    for (shard, sink) in &mut rig.shards {
        shard.lease_renewed(DeviceId(0), sink);
    }
}

fn kinds(done: &[Completion]) -> Vec<ErrorKind> {
    done.iter().map(|d| d.result.unwrap_err().kind).collect()
}

const EACH: [Op; 5] = [Op::Read, Op::Write, Op::WriteZeroes, Op::Discard, Op::Flush];

/// Submits one request of each kind, each to another range.
fn submit_each(rig: &mut Rig) {
    for (k, op) in EACH.into_iter().enumerate() {
        let (offset, len) = if op == Op::Flush { (0, 0) } else { (k as u64 * 8 * KIB, 8 * KIB) };
        rig.submit(0, request(op, offset, len, offset)).unwrap();
    }
}

#[test]
fn without_a_lease_nothing_is_answered_until_it_is_renewed() {
    let lease = Arc::new(DeviceLease::new(1000));
    let mut rig = rig(2, &lease);
    at(&mut rig, 999);
    submit_each(&mut rig);
    rig.settle(&mut Random(1));
    assert_eq!(rig.done(0).len(), EACH.len());
    at(&mut rig, 1000);
    submit_each(&mut rig);
    rig.settle(&mut Random(1));
    assert!(rig.done(0).is_empty());
    assert!(lease.renew(1000), "a request waits");
    renewed(&mut rig);
    assert!(rig.done(0).is_empty(), "it was not long enough");
    assert!(lease.renew(1001));
    renewed(&mut rig);
    let done = rig.done(0);
    assert!(done.len() == EACH.len() && done.iter().all(|d| d.result.is_ok()));
    assert!(!lease.renew(2000), "no request waits");
    assert!(rig.shards.iter().all(|(shard, _)| shard.slots_in_use() == 0));
}

#[test]
fn a_kept_answer_delays_no_other_request() {
    let lease = Arc::new(DeviceLease::new(0));
    let mut rig = rig(1, &lease);
    rig.publish(1, Some(DeviceLayout::new(1, 512, &open_mirror())));
    for addr in [0, 4096] {
        rig.submit(0, request(Op::Write, 0, 4096, addr)).unwrap();
    }
    rig.settle(&mut Random(1));
    assert_eq!(rig.log.borrow().len(), 4, "the second write had its turn");
    rig.submit(0, Request { device: DeviceId(1), ..request(Op::Write, 0, 4096, 0) }).unwrap();
    rig.settle(&mut Random(1));
    assert_eq!(rig.done(0).len(), 1, "another device has no lease");
}

#[test]
fn a_change_of_members_releases_no_kept_answer_and_a_stop_releases_all() {
    for stopped in [true, false] {
        let lease = Arc::new(DeviceLease::new(0));
        let mut rig = rig(1, &lease);
        submit_each(&mut rig);
        rig.settle(&mut Random(1));
        rig.freeze(0);
        rig.publish(0, Some(layout(2, &[MemberRole::InSync, MemberRole::Failed], &lease)));
        rig.settle(&mut Random(1));
        assert!(rig.done(0).is_empty());
        assert_eq!(rig.shards[0].0.pop_drained(), Some((DeviceId(0), 1)), "no request waits with the previous layout");
        if stopped {
            rig.publish(0, None);
        } else {
            rig.publish(0, Some(failed(3, &lease)));
        }
        let expected = if stopped { ErrorKind::NoDevice } else { ErrorKind::Unsettled };
        let told = kinds(&rig.done(0));
        assert_eq!(told, [expected; EACH.len()]);
        assert!(told.iter().all(|kind| kind.is_unsettled()));
    }
}

fn failed(version: u32, lease: &Arc<DeviceLease>) -> DeviceLayout {
    let Node::Mirrored(mut node) = mirror(&BOTH, &regions(0, u64::MAX, u64::MAX, true)) else { unreachable!() };
    node.failed = true;
    DeviceLayout::new(version, 512, &Node::Mirrored(node)).replicated(Arc::clone(lease))
}

/// A write may be on one member only when the device is stopped: a request that has seen it there must not be answered.
#[test]
fn a_request_in_flight_when_the_device_stops_is_unsettled() {
    for stopped in [true, false] {
        let lease = Arc::new(DeviceLease::new(u64::MAX));
        let mut rig = rig(1, &lease);
        rig.submit(0, request(Op::Read, 0, 4096, 0)).unwrap();
        rig.publish(0, (!stopped).then(|| failed(2, &lease)));
        rig.settle(&mut Random(1));
        let expected = if stopped { ErrorKind::NoDevice } else { ErrorKind::Unsettled };
        assert_eq!(kinds(&rig.done(0)), [expected]);
    }
}

/// Fails the first leaf I/O of the first shard with this error.
fn fail_first(rig: &mut Rig, kind: ErrorKind) {
    let (shard, sink) = &mut rig.shards[0];
    let io = sink.queue.pop_front().expect("a leaf I/O is there");
    shard.leaf_done(io.cookie, Err(LeafError::of(kind)), sink);
}

/// All replicas are lost: whatever error the disks return, the next serving decides the outcome. A block that cannot be
/// read although the device serves is an error of the request.
#[test]
fn without_replicas_a_request_is_unsettled_and_an_unreadable_block_is_an_error() {
    let expected = [
        (ErrorKind::Gone, ErrorKind::Unsettled),
        (ErrorKind::TimedOut, ErrorKind::Unsettled),
        (ErrorKind::FlushFailed, ErrorKind::Unsettled),
        (ErrorKind::Io, ErrorKind::Io),
    ];
    for (of_disks, told) in expected {
        let lease = Arc::new(DeviceLease::new(u64::MAX));
        let mut rig = rig(1, &lease);
        rig.submit(0, request(Op::Read, 0, 4096, 0)).unwrap();
        for _ in 0..2 {
            fail_first(&mut rig, of_disks);
        }
        assert_eq!(kinds(&rig.done(0)), [told], "{of_disks:?}");
        // Without a lease no other controller can serve the device.
        let mut plain = Rig::new(1, &[2 << 20; 3]);
        plain.publish(0, Some(DeviceLayout::new(1, 512, &open_mirror())));
        plain.submit(0, request(Op::Read, 0, 4096, 0)).unwrap();
        for _ in 0..2 {
            fail_first(&mut plain, of_disks);
        }
        assert_eq!(kinds(&plain.done(0)), [of_disks]);
    }
}

/// Completes the first matching leaf I/O of a shard, and returns its disk.
fn answer(rig: &mut Rig, shard: usize, is_it: impl Fn(&LeafIo) -> bool) -> u32 {
    let at = rig.shards[shard].1.queue.iter().position(is_it).expect("such an I/O is in flight");
    let disk = rig.shards[shard].1.queue[at].leaf.0;
    rig.answer(shard, at);
    disk
}

#[test]
fn a_read_is_answered_when_all_members_have_what_it_may_have_seen() {
    let lease = Arc::new(DeviceLease::new(u64::MAX));
    for (shards, sees) in [(1, true), (1, false), (2, true), (2, false)] {
        let mut rig = rig(shards, &lease);
        let reader = usize::from(shards) - 1;
        let (first, second) = (0, 4096);
        rig.memory[..4096].fill(7);
        rig.submit(0, request(Op::Write, 16 * KIB, 4096, first)).unwrap();
        rig.submit(reader, request(Op::Read, 0, 64 * KIB, 64 * KIB)).unwrap();
        let is_read = |io: &LeafIo| io.op == Op::Read;
        let disk = rig.shards[reader].1.queue.iter().find(|io| is_read(io)).unwrap().leaf;
        if sees {
            answer(&mut rig, 0, |io| io.op == Op::Write && io.leaf == disk);
        }
        answer(&mut rig, reader, is_read);
        // It begins afterwards and does not delay the read, although it is for the same block.
        rig.submit(0, request(Op::Write, 16 * KIB, 4096, second)).unwrap();
        let mut rest = if sees { 1 } else { 2 };
        while rest > 0 {
            assert!(rig.done(0).is_empty() && rig.done(reader).is_empty(), "a write is not on both");
            answer(&mut rig, 0, |io| io.op == Op::Write && io.buf.addr == first);
            rest -= 1;
        }
        rig.deliver();
        let done: Vec<_> =
            rig.done(0).into_iter().chain((shards > 1).then(|| rig.done(reader)).into_iter().flatten()).collect();
        assert_eq!(done.len(), 2, "{shards} shards: the write and the read");
        assert_eq!(rig.memory[80 << 10], if sees { 7 } else { 0 }, "it is answered with what it has read");
        rig.settle(&mut Random(1));
        assert_eq!(rig.done(0).len(), 1);
        assert!(rig.shards.iter().all(|(shard, _)| shard.slots_in_use() == 0));
    }
}

/// A lost member takes what it alone had with it, and a read of that returns only what all others have.
#[test]
fn a_read_waits_until_a_member_that_lacks_the_write_is_dropped() {
    let lease = Arc::new(DeviceLease::new(u64::MAX));
    let mut rig = rig(1, &lease);
    rig.submit(0, request(Op::Write, 0, 4096, 0)).unwrap();
    rig.submit(0, request(Op::Read, 0, 4096, 8192)).unwrap();
    let read_from = answer(&mut rig, 0, |io| io.op == Op::Read);
    answer(&mut rig, 0, |io| io.leaf.0 == read_from);
    rig.failing = Some(1 - read_from);
    answer(&mut rig, 0, |io| io.op == Op::Write);
    assert!(rig.done(0).is_empty() && rig.faults().len() == 1);
    rig.freeze(0);
    let roles = [0, 1].map(|disk| if disk == read_from { MemberRole::InSync } else { MemberRole::Failed });
    rig.publish(0, Some(layout(2, &roles, &lease)));
    assert_eq!(rig.done(0).len(), 2);
}

/// The others may have carried out what one member does not support: copies of a replicated device never differ,
/// whatever the client receives.
#[test]
fn a_member_that_cannot_do_what_others_have_done_is_dropped() {
    let lease = Arc::new(DeviceLease::new(u64::MAX));
    let mut rig = rig(1, &lease);
    rig.submit(0, request(Op::WriteZeroes, 0, 4096, 0)).unwrap();
    rig.answer(0, 0);
    let (shard, sink) = &mut rig.shards[0];
    let io = sink.queue.pop_front().unwrap();
    shard.leaf_done(io.cookie, Err(LeafError::of(ErrorKind::Unsupported)), sink);
    assert!(rig.done(0).is_empty());
    let faults = rig.faults();
    assert!(faults.len() == 1 && faults[0].leaf == io.leaf && faults[0].is_fatal());
}

/// Of two slow members one may be silent. They are read alternately, with twice the time at each try, and the last try
/// is waited for.
#[test]
fn none_of_two_slow_members_is_waited_for_at_once() {
    let lease = Arc::new(DeviceLease::new(u64::MAX));
    let mut rig = rig(1, &lease);
    rig.disks[1][..4096].fill(5);
    rig.submit(0, request(Op::Read, 0, 4096, 0)).unwrap();
    let mut asked = Vec::new();
    for tries in 0..Flags::TRIES_MAX {
        let (shard, sink) = &mut rig.shards[0];
        let io = sink.queue.pop_front().unwrap();
        assert_eq!(io.flags, Flags::alternative_try(tries));
        asked.push(io.leaf.0);
        shard.leaf_done(io.cookie, Err(LeafError::of(ErrorKind::Slow)), sink);
        assert!(rig.done(0).is_empty() && rig.faults().is_empty());
    }
    assert!(asked.chunks_exact(2).all(|pair| pair[0] != pair[1]), "{asked:?}");
    // The last one is waited for: it completes, or is dropped.
    let io = rig.shards[0].1.queue.front().unwrap();
    assert_eq!(io.flags, Flags::NONE);
    rig.disks.iter_mut().for_each(|disk| disk[..4096].fill(5));
    rig.answer(0, 0);
    assert!(rig.done(0)[0].result.is_ok() && rig.memory[0] == 5);
    // Another request has all its tries.
    rig.submit(0, request(Op::Read, 0, 4096, 0)).unwrap();
    assert_eq!(rig.shards[0].1.queue[0].flags, Flags::alternative_try(0));
    rig.settle(&mut Random(1));
}

/// A slow member has not failed: others are read before it, no fault is reported, and it is waited for if no other is
/// left.
#[test]
fn a_slow_member_is_read_last() {
    let lease = Arc::new(DeviceLease::new(u64::MAX));
    let mut rig = rig(1, &lease);
    rig.disks.iter_mut().for_each(|disk| disk[..4096].fill(5));
    let slow = |rig: &mut Rig, kind: ErrorKind| {
        let (shard, sink) = &mut rig.shards[0];
        let io = sink.queue.pop_front().unwrap();
        shard.leaf_done(io.cookie, Err(LeafError::of(kind)), sink);
        (io.leaf.0, io.flags)
    };
    rig.submit(0, request(Op::Read, 0, 4096, 0)).unwrap();
    let (first, flags) = slow(&mut rig, ErrorKind::Slow);
    assert_eq!(flags, Flags::HAS_ALTERNATIVE);
    // The other one fails: only the first is left.
    assert_eq!(slow(&mut rig, ErrorKind::Io), (1 - first, Flags::alternative_try(1)));
    assert_eq!(rig.shards[0].1.queue.front().map(|io| (io.leaf.0, io.flags)), Some((first, Flags::NONE)));
    rig.answer(0, 0);
    assert!(rig.done(0)[0].result.is_ok() && rig.memory[0] == 5);
    let faults = rig.faults();
    assert!(faults.len() == 1 && u32::from(faults[0].role) == 1 - first, "{faults:?}");
    // A write has no other member, and neither has a read of a mirror with one member.
    rig.submit(0, request(Op::Write, 0, 4096, 0)).unwrap();
    assert!(rig.shards[0].1.queue.iter().all(|io| io.flags == Flags::NONE));
    rig.settle(&mut Random(1));
    rig.publish(0, Some(layout(2, &[MemberRole::InSync, MemberRole::Rebuilding], &lease)));
    rig.submit(0, request(Op::Read, 0, 4096, 0)).unwrap();
    assert_eq!(rig.shards[0].1.queue[0].flags, Flags::NONE);
    rig.settle(&mut Random(1));
    assert_eq!(rig.shards[0].0.slots_in_use(), 0);
}

/// Returns the bytes that a member misses, of the first 64 KiB.
fn missed_bytes(missed: &Arc<MissedWrites>) -> u64 {
    missed.blocks().bytes(0, 64 * KIB)
}

#[test]
fn missed_writes_are_recorded_including_those_in_flight() {
    let lease = Arc::new(DeviceLease::new(u64::MAX));
    let mut rig = rig(2, &lease);
    let missed = Arc::new(MissedWrites::new(2 << 20));
    let without = |version| {
        layout(version, &[MemberRole::InSync, MemberRole::Failed], &lease)
            .recording_missed([Arc::clone(&missed)].into_iter())
    };
    rig.run(request(Op::Write, 60 * KIB, 4096, 0)).unwrap();
    // In flight when the member fails; the member's result does not count.
    rig.failing = Some(1);
    rig.submit(0, request(Op::Write, 0, 4096, 0)).unwrap();
    rig.settle(&mut Random(1));
    assert!(rig.done(0).is_empty() && missed_bytes(&missed) == 0);
    // Another one whose result arrives from the member when it is dropped already.
    rig.submit(1, request(Op::Write, 8 * KIB, 4096, 0)).unwrap();
    rig.freeze(0);
    rig.publish(0, Some(without(2)));
    rig.settle(&mut Random(2));
    assert_eq!((rig.done(0).len(), rig.done(1).len()), (1, 1));
    assert_eq!(missed_bytes(&missed), 2 * 4096);
    // And all later writes; reads do not count.
    rig.run(request(Op::WriteZeroes, 16 * KIB, 8192, 0)).unwrap();
    rig.run(request(Op::Discard, 32 * KIB, 512, 0)).unwrap();
    rig.run(request(Op::Read, 48 * KIB, 4096, 0)).unwrap();
    assert_eq!(missed_bytes(&missed), 5 * 4096);
    assert_eq!(missed.blocks().run(0, 64 * KIB), (0, 4096));
}

#[test]
fn an_update_writes_only_differences_and_zeros_as_zeroes() {
    let lease = Arc::new(DeviceLease::new(u64::MAX));
    let mut rig = Rig::new(1, &[2 << 20; 3]);
    rig.publish(0, Some(layout(1, &[MemberRole::InSync, MemberRole::Rebuilding], &lease)));
    rig.disks[0][..64 << 10].fill(1);
    rig.disks[1][..64 << 10].fill(1);
    // Of sixteen blocks the second and third differ, the last two are zeros on the source, one of them also on the
    // target.
    rig.disks[1][4096] = 2;
    rig.disks[1][3 * 4096 - 1] = 2;
    rig.disks[0][14 * 4096..16 * 4096].fill(0);
    rig.disks[1][15 * 4096..16 * 4096].fill(0);
    let sync = |rig: &mut Rig, kind: SyncKind| {
        let buf = Buf { addr: 1 << 20, region: Buf::UNREGISTERED };
        let part = SyncRequest { device: DeviceId(0), offset: 0, len: 64 * KIB, kind, buf, tag: 1 };
        let (shard, sink) = &mut rig.shards[0];
        shard.submit_sync(&part, sink)?;
        let reads = sink.queue.len();
        (0..reads).for_each(|_| rig.answer(0, 0));
        let writes = rig.shards[0].1.queue.iter().map(|io| (io.op, io.leaf.0, io.offset, io.len)).collect::<Vec<_>>();
        rig.settle(&mut Random(1));
        assert!(rig.shards[0].0.pop_sync_done().unwrap().result.is_ok());
        Ok::<_, IoError>((reads, writes))
    };
    assert!(sync(&mut rig, SyncKind::CopyDifferences { from: 0, to: 0 }).is_err(), "no member is compared with itself");
    let (reads, writes) = sync(&mut rig, SyncKind::CopyDifferences { from: 0, to: 1 }).unwrap();
    let start = writes[0].2 - 4096;
    let expected = [(Op::Write, 1, start + 4096, 8192), (Op::WriteZeroes, 1, start + 14 * 4096, 4096)];
    assert_eq!((reads, &writes[..]), (2, &expected[..]));
    assert!(rig.disks[0] == rig.disks[1]);
    let (_, writes) = sync(&mut rig, SyncKind::CopyDifferences { from: 0, to: 1 }).unwrap();
    assert!(writes.is_empty(), "nothing differs: {writes:?}");
    let (reads, writes) = sync(&mut rig, SyncKind::Copy { from: 0, to: MemberSet(2) }).unwrap();
    let expected = [(Op::Write, 1, start, 14 * 4096), (Op::WriteZeroes, 1, start + 14 * 4096, 8192)];
    assert_eq!((reads, &writes[..]), (1, &expected[..]));
}
