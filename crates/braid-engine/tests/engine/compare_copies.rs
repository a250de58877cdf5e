//! Parts of jobs that compare the copies of a mirror, and repair them.

use crate::support::*;
use braid_engine::*;

const BUF: Buf = Buf { addr: 1 << 20, region: Buf::UNREGISTERED };

fn part(offset: u64, len: u64, kind: SyncKind) -> SyncRequest {
    SyncRequest { device: DeviceId(0), offset, len, kind, buf: BUF, tag: 3 }
}

fn rig(members: usize) -> Rig {
    let mut rig = Rig::new(1, &vec![2 << 20; members]);
    let roles = vec![MemberRole::InSync; members];
    rig.publish(0, Some(DeviceLayout::new(1, 512, &mirror(&roles, &regions(0, u64::MAX, u64::MAX, true)))));
    for disk in &mut rig.disks {
        disk[..1 << 20].fill(9);
    }
    rig
}

fn begin(rig: &mut Rig, part: &SyncRequest) -> Result<(), IoError> {
    let (shard, sink) = &mut rig.shards[0];
    shard.submit_sync(part, sink)
}

/// Runs one part to its end. Returns which blocks differed.
fn run(rig: &mut Rig, part: &SyncRequest) -> Result<u64, IoError> {
    begin(rig, part)?;
    rig.settle(&mut Random(4));
    let done = rig.shards[0].0.pop_sync_done().unwrap();
    assert_eq!((done.tag, rig.shards[0].0.slots_in_use()), (3, 0));
    done.result.map(|()| done.compared.differing)
}

fn block(rig: &mut Rig, disk: usize, block: usize) -> &mut [u8] {
    &mut rig.disks[disk][block * 4096..][..4096]
}

#[test]
fn one_byte_of_any_copy_is_noticed_and_nothing_is_written() {
    for copy in 0..3 {
        let mut rig = rig(3);
        block(&mut rig, copy, 5)[17] ^= 1;
        block(&mut rig, copy, 20)[4095] ^= 128;
        assert_eq!(run(&mut rig, &part(0, 65536, SyncKind::Compare(3))).unwrap(), 1 << 5);
        assert_eq!(run(&mut rig, &part(65536, 65536, SyncKind::Compare(3))).unwrap(), 1 << 4);
        assert_eq!(run(&mut rig, &part(131072, 65536, SyncKind::Compare(3))).unwrap(), 0);
        assert!(rig.log.borrow().iter().all(|e| e.op == Op::Read));
    }
}

#[test]
fn a_repair_writes_the_majority_or_else_the_first_copy() {
    let mut rig = rig(3);
    block(&mut rig, 0, 1).fill(1);
    block(&mut rig, 2, 2).fill(2);
    for disk in 0..3 {
        block(&mut rig, disk, 3).fill(disk as u8);
    }
    assert_eq!(run(&mut rig, &part(0, 65536, SyncKind::Repair(3))).unwrap(), 0b1110);
    for disk in 0..3 {
        assert_eq!(block(&mut rig, disk, 1)[7], 9, "the first was alone");
        assert_eq!(block(&mut rig, disk, 2)[7], 9);
        assert_eq!(block(&mut rig, disk, 3)[7], 0, "all differ: the first counts");
    }
    let writes = rig.log.borrow().iter().filter(|e| e.op == Op::Write).map(|e| e.len).sum::<u64>();
    assert_eq!(writes, 4 * 4096, "only what differs is written");
    assert_eq!(run(&mut rig, &part(0, 65536, SyncKind::Compare(3))).unwrap(), 0);
}

#[test]
fn a_repair_of_more_than_one_step_completes() {
    let mut rig = rig(5);
    for disk in 1..5 {
        for at in 0..64 {
            block(&mut rig, disk, at).fill((disk + at) as u8);
        }
    }
    // The longest piece for five copies.
    let len = (LEAF_BYTES_MAX / 5) & !4095;
    let all = (1u64 << (len / 4096)) - 1;
    assert_eq!(run(&mut rig, &part(0, len, SyncKind::Repair(5))).unwrap(), all);
    assert_eq!(run(&mut rig, &part(0, len, SyncKind::Compare(5))).unwrap(), 0);
    assert_eq!(rig.disks[4][..len as usize], vec![9; len as usize]);
    // The last block of a piece may be shorter.
    block(&mut rig, 1, 63)[1000] = 0;
    assert_eq!(run(&mut rig, &part(63 * 4096 - 4096, 4096 + 1024, SyncKind::Repair(5))).unwrap() & 2, 2);
}

#[test]
fn a_write_waits_for_the_end_of_a_repair() {
    let mut rig = rig(2);
    block(&mut rig, 1, 0).fill(1);
    begin(&mut rig, &part(0, 8192, SyncKind::Repair(2))).unwrap();
    rig.memory[..4096].fill(5);
    rig.submit(0, request(Op::Write, 0, 4096, 0)).unwrap();
    for _ in 0..2 {
        assert!(rig.shards[0].1.queue.iter().all(|io| io.op == Op::Read));
        rig.answer(0, 0);
    }
    assert_eq!(rig.shards[0].1.queue.len(), 1, "the block that is repaired");
    rig.settle(&mut Random(1));
    assert!(rig.done(0)[0].result.is_ok());
    assert_eq!((block(&mut rig, 0, 0)[0], block(&mut rig, 1, 0)[0]), (5, 5));
}

#[test]
fn a_copy_that_cannot_be_read_is_a_fault() {
    let mut rig = rig(2);
    rig.failing = Some(1);
    assert_eq!(run(&mut rig, &part(4096, 8192, SyncKind::Compare(2))).unwrap_err().kind, ErrorKind::Io);
    let faults = rig.faults();
    assert_eq!((faults.len(), faults[0].role, faults[0].offset, faults[0].len), (1, 1, 4096, 8192));
    assert!(!faults[0].freezes_device());
}

#[test]
fn memory_for_fewer_copies_than_there_are_is_refused() {
    let mut rig = rig(3);
    assert_eq!(run(&mut rig, &part(0, 8192, SyncKind::Compare(2))).unwrap_err().kind, ErrorKind::Busy);
    let too_long = part(0, COMPARE_BYTES_MAX + 4096, SyncKind::Compare(3));
    assert_eq!(begin(&mut rig, &too_long).unwrap_err().kind, ErrorKind::Invalid);
    assert!(rig.log.borrow().is_empty());
}
