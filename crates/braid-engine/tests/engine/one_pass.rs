//! A request is planned through the whole stack in one pass, to the locations that the geometry gives, in few leaf
//! I/Os.

use crate::support::*;
use braid_engine::*;

const MIB: u64 = 1 << 20;

fn rig(node: &Node, disks: &[u64]) -> Rig {
    let mut rig = Rig::new(1, disks);
    rig.publish(0, Some(DeviceLayout::new(1, 512, node)));
    rig
}

/// Compares random requests with a plain array of bytes.
fn check_content(node: &Node, disks: &[u64], seed: u64) {
    let mut rig = rig(node, disks);
    let size = node.size_bytes();
    let mut model = vec![0u8; size as usize];
    let mut random = Random(seed);
    for round in 0..300u64 {
        let len = 512 * (1 + random.below(if round % 10 == 0 { 4096 } else { 300 })).min(size / 512);
        let offset = 512 * random.below((size - len) / 512 + 1);
        let (from, to) = (offset as usize, (offset + len) as usize);
        match random.below(5) {
            0 | 1 => {
                for (k, byte) in rig.memory[..len as usize].iter_mut().enumerate() {
                    *byte = (k as u64 * 7 + round * 13 + k as u64 / 512) as u8;
                }
                model[from..to].copy_from_slice(&rig.memory[..len as usize]);
                rig.run(request(Op::Write, offset, len, 0)).unwrap();
            }
            2 => {
                model[from..to].fill(0);
                rig.run(request(Op::WriteZeroes, offset, len, 0)).unwrap();
            }
            _ => {
                rig.memory[..len as usize].fill(0xee);
                rig.run(request(Op::Read, offset, len, 0)).unwrap();
                assert!(rig.memory[..len as usize] == model[from..to], "seed {seed} round {round}: {offset}+{len}");
            }
        }
    }
    assert_eq!(rig.shards[0].0.in_flight(), 0);
    assert_eq!(rig.shards[0].0.slots_in_use(), 0);
}

#[test]
fn content_is_what_was_written() {
    let disks = [5 * MIB, 10 * MIB, 10 * MIB];
    for (seed, chunk) in [4096, 12288, 65536, 524288].into_iter().enumerate() {
        check_content(&raid0(chunk, &disks), &disks, seed as u64);
        check_content(&concat(chunk, &disks), &disks, 100 + seed as u64);
    }
    check_content(&leaf(0, 3 * MIB), &[3 * MIB], 7);
}

#[test]
fn a_stack_of_arrays_is_one_pass() {
    let (a, b) = ([2 * MIB, 3 * MIB], [4 * MIB, MIB]);
    let lower = |first: u32, sizes: [u64; 2]| match raid0(8192, &sizes) {
        Node::Striped { geometry, .. } => {
            Node::Striped { geometry, members: vec![leaf(first, sizes[0]), leaf(first + 1, sizes[1])] }
        }
        _ => unreachable!(),
    };
    let upper = match concat(4096, &[5 * MIB, 5 * MIB]) {
        Node::Striped { geometry, .. } => Node::Striped { geometry, members: vec![lower(0, a), lower(2, b)] },
        _ => unreachable!(),
    };
    check_content(&upper, &[a[0], a[1], b[0], b[1]], 42);
}

/// Returns the number of leaf I/Os of a read of the range.
fn leaf_ios(node: &Node, offset: u64, len: u64) -> usize {
    let mut rig = rig(node, &[]);
    rig.submit(0, request(Op::Read, offset, len, 0)).unwrap();
    rig.shards[0].1.queue.len()
}

#[test]
fn adjacent_pieces_are_one_io() {
    let disks = [50 * MIB, 100 * MIB, 100 * MIB];
    assert_eq!(leaf_ios(&concat(4096, &disks), 40960, 128 << 10), 1);
    assert_eq!(leaf_ios(&raid0(4096, &disks), 0, 128 << 10), 3);
    assert_eq!(leaf_ios(&raid0(65536, &disks), 4096, 4096), 1);
    assert_eq!(leaf_ios(&raid0(65536, &disks), 61440, 8192), 2);
    assert_eq!(leaf_ios(&raid0(65536, &disks), 0, 3 * MIB), 3, "one of 1 MiB on each member");
}

#[test]
fn a_request_longer_than_a_step_continues() {
    let disks = [40 * MIB; 3];
    let node = raid0(4096, &disks);
    let mut rig = rig(&node, &disks);
    let len = 32 * MIB;
    for (k, byte) in rig.memory[..len as usize].iter_mut().enumerate() {
        *byte = (k / 4096 + k) as u8;
    }
    let want = rig.memory[..len as usize].to_vec();
    rig.run(request(Op::Write, 8192, len, 0)).unwrap();
    rig.memory.fill(0);
    rig.run(request(Op::Read, 8192, len, 0)).unwrap();
    assert!(rig.memory[..len as usize] == want[..]);
    assert!(rig.run(request(Op::Discard, 0, node.size_bytes(), 0)).is_ok(), "a discard may be longer than any read");
}

#[test]
fn a_flush_goes_to_every_disk_once() {
    let disks = [MIB, 2 * MIB, 2 * MIB];
    let mut rig = rig(&raid0(65536, &disks), &disks);
    rig.run(request(Op::Flush, 0, 0, 0)).unwrap();
    let mut leaves: Vec<u32> = rig.log.borrow().iter().map(|e| e.leaf).collect();
    leaves.sort_unstable();
    assert_eq!(leaves, [0, 1, 2]);
}

#[test]
fn fua_reaches_the_leaves_or_becomes_a_flush() {
    let disks = [MIB, MIB];
    let mut rig = rig(&raid0(4096, &disks), &disks);
    let fua = |op| Request { flags: Flags::FUA, ..request(op, 0, 16384, 0) };
    rig.run(fua(Op::Write)).unwrap();
    assert!(rig.log.borrow().iter().all(|e| e.op == Op::Write && e.fua));
    rig.log.borrow_mut().clear();
    rig.run(fua(Op::WriteZeroes)).unwrap();
    let log = rig.log.borrow();
    assert!(log[..2].iter().all(|e| e.op == Op::WriteZeroes && !e.fua), "{log:?}");
    assert_eq!(log[2..].iter().filter(|e| e.op == Op::Flush).count(), 2, "{log:?}");
}

#[test]
fn bad_requests_are_refused_at_once() {
    let disks = [MIB, MIB];
    let node = raid0(4096, &disks);
    let mut rig = rig(&node, &disks);
    let size = node.size_bytes();
    for (offset, len) in [(size, 512), (size - 512, 1024), (u64::MAX - 511, 1024), (100, 512), (0, 100), (512, 1 << 40)]
    {
        let refused = rig.submit(0, request(Op::Read, offset, len, 0)).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Invalid, "{offset}+{len}");
    }
    let elsewhere = Request { device: DeviceId(5), ..request(Op::Read, 0, 512, 0) };
    assert_eq!(rig.submit(0, elsewhere).unwrap_err().kind, ErrorKind::NoDevice);
    let nowhere = Request { device: DeviceId(500), ..request(Op::Read, 0, 512, 0) };
    assert_eq!(rig.submit(0, nowhere).unwrap_err().kind, ErrorKind::NoDevice);
    assert!(rig.run(request(Op::Write, 512, 0, 0)).is_ok(), "nothing is done, and well");
    for k in 0..256 {
        rig.submit(0, request(Op::Read, 512 * k, 512, 0)).unwrap();
    }
    assert_eq!(rig.submit(0, request(Op::Read, 0, 512, 0)).unwrap_err().kind, ErrorKind::Busy);
    rig.settle(&mut Random(3));
    assert_eq!(rig.done(0).len(), 256);
}

#[test]
fn an_error_names_the_disk_and_harms_no_other() {
    let disks = [MIB, MIB];
    let mut rig = rig(&raid0(4096, &disks), &disks);
    rig.failing = Some(1);
    let error = rig.run(request(Op::Write, 0, 16384, 0)).unwrap_err();
    assert_eq!((error.kind, error.leaf, error.errno), (ErrorKind::Io, Some(LeafId(1)), 5));
    assert!(rig.run(request(Op::Write, 0, 4096, 0)).is_ok());
    assert!(rig.run(request(Op::Flush, 0, 0, 0)).is_err(), "a flush that one disk refuses is no flush");
}
