//! Arrays with parity: requests at random over disks in memory, answered in any order, against a plain copy of the array's bytes.

mod rows {
    pub mod rig;
}

use braid_engine::*;
use braid_geometry::Level;
use rows::rig::{Random, Rig, Shape};

const SHAPES: &[Shape] = &[
    Shape { level: Level::Raid5, chunk_blocks: 16, blocks: &[64, 64, 64] },
    Shape { level: Level::Raid5, chunk_blocks: 4, blocks: &[32, 48, 48, 60] },
    Shape { level: Level::Raid5, chunk_blocks: 32, blocks: &[96, 96] },
    Shape { level: Level::Raid6, chunk_blocks: 2, blocks: &[24, 24, 24, 30, 40] },
    Shape { level: Level::Raid6, chunk_blocks: 16, blocks: &[48, 48, 48] },
    Shape { level: Level::Raid6, chunk_blocks: 24, blocks: &[48, 72, 72, 72, 72, 72] },
];

fn seeds() -> std::ops::Range<u64> {
    let of = |name: &str, or: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(or);
    let first = of("ROWS_FIRST", 0);
    first..first + of("ROWS_SEEDS", 8)
}

/// What was written is read back, healthy and with every set of members lost that the level tolerates; every row agrees with its parity.
#[test]
fn what_is_written_is_read_whoever_is_lost() {
    for seed in seeds() {
        for shape in SHAPES {
            let mut rig = Rig::new(*shape, 1 + (seed % 2) as u16, seed);
            rig.requests(120);
            rig.settle();
            rig.check_parity();
            for lost in rig.tolerated() {
                rig.lose(&lost);
                rig.read_all();
            }
        }
    }
}

/// Members fail in the middle of it all: what was answered is there, and what goes on goes on.
#[test]
fn members_fail_under_writes() {
    for seed in seeds() {
        for shape in SHAPES {
            let mut rig = Rig::new(*shape, 1 + (seed % 2) as u16, seed ^ 0x5eed);
            let mut random = Random(seed);
            rig.requests(40);
            let tolerance = rig.tolerance();
            for _ in 0..tolerance {
                let member = random.below(shape.blocks.len() as u64) as u32;
                rig.fail(member);
                rig.requests(40);
            }
            rig.settle();
            rig.check_parity();
            rig.read_all();
        }
    }
}

/// A member that was away is filled from the others under requests, and holds what it should afterwards.
#[test]
fn a_member_is_filled_under_requests() {
    for seed in seeds() {
        for shape in SHAPES {
            let mut rig = Rig::new(*shape, 1 + (seed % 2) as u16, seed ^ 0xf111);
            rig.requests(60);
            rig.settle();
            let member = (seed % shape.blocks.len() as u64) as usize;
            rig.lose(&[member]);
            rig.requests(20);
            rig.settle();
            rig.refill(member);
            rig.check_parity();
            for lost in rig.tolerated() {
                rig.lose(&lost);
                rig.read_all();
            }
        }
    }
}

/// What does not agree is found, and mended: where two parities tell, the cell that is wrong, whichever it is.
#[test]
fn rot_is_found_and_mended() {
    for shape in SHAPES {
        let mut rig = Rig::new(*shape, 1, 8);
        rig.write_all();
        for row in 0..rig.rows() {
            let (data, cells) = rig.cells_of_row(row);
            assert_eq!(rig.sync(row, SyncKind::Verify { data, cells }), 0);
            let named = if cells - data == 2 { 0..cells } else { data..cells };
            for cell in named {
                rig.rot(row, cell, 0);
                assert_eq!(rig.sync(row, SyncKind::Verify { data, cells }), 1, "row {row}, cell {cell} of {shape:?}");
                assert_eq!(rig.sync(row, SyncKind::Amend { data, cells }), 1);
                assert_eq!(rig.sync(row, SyncKind::Verify { data, cells }), 0);
            }
        }
        rig.check_parity();
        rig.read_all();
    }
}

/// One flush follows the other, also where nothing was written.
#[test]
fn a_flush_ends() {
    for shape in SHAPES {
        let mut rig = Rig::new(*shape, 2, 3);
        for _ in 0..3 {
            assert_eq!(rig.run(0, Op::Flush, 0, 0, Flags::NONE), Ok(()));
            let stripe = rig.stripe_bytes(0);
            assert_eq!(rig.run(1, Op::Write, 0, stripe, Flags::NONE), Ok(()));
        }
        assert_eq!(rig.run(1, Op::Flush, 0, 0, Flags::NONE), Ok(()));
        rig.check_parity();
    }
}

/// What a small write costs: a read and a write of data and of each parity at most, and one write of the journal on each member
/// that takes a copy.
#[test]
fn a_small_write_costs_what_it_should() {
    let mut rig = Rig::new(SHAPES[0], 1, 1);
    assert_eq!(rig.run(0, Op::Write, 0, 4096, Flags::NONE), Ok(()));
    rig.log.clear();
    assert_eq!(rig.run(0, Op::Write, 8192, 4096, Flags::NONE), Ok(()));
    let count =
        |op, journal: bool| rig.log.iter().filter(|e| e.op == op && rig.is_journal(e.offset) == journal).count();
    assert_eq!((count(Op::Read, false), count(Op::Write, false), count(Op::Flush, false)), (1, 2, 0));
    assert_eq!(count(Op::Write, true), 2);
    rig.log.clear();
    let stripe = rig.stripe_bytes(0);
    assert_eq!(rig.run(0, Op::Write, stripe, stripe, Flags::NONE), Ok(()));
    let marks: Vec<_> = rig.log.iter().filter(|e| rig.is_journal(e.offset)).collect();
    assert!(marks.len() == 2 && marks.iter().all(|e| e.len == 4096 && e.fua), "a mark, in two copies: {marks:?}");
    assert_eq!(rig.log.iter().filter(|e| e.op == Op::Read).count(), 0);
}
