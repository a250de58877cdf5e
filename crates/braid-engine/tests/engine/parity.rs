//! Arrays with parity: random requests to in-memory disks, completed in any order, compared with a plain copy of the
//! array's bytes.

pub mod coalescing;
mod holes;
mod jobs;
mod requests;
pub mod rig;
pub mod ring_moves;
pub mod unreadable;

use braid_engine::*;
use braid_geometry::Level;
use rig::{BLOCK, Random, Rig, Shape};
use ring_moves::{JOURNAL, Ring};
use unreadable::{Expected, some_lost_stripes};

const SHAPES: &[Shape] = &[
    Shape { level: Level::Raid5, chunk_blocks: 16, blocks: &[64, 64, 64] },
    Shape { level: Level::Raid5, chunk_blocks: 4, blocks: &[32, 48, 48, 60] },
    Shape { level: Level::Raid5, chunk_blocks: 32, blocks: &[96, 96] },
    Shape { level: Level::Raid6, chunk_blocks: 2, blocks: &[24, 24, 24, 30, 40] },
    Shape { level: Level::Raid6, chunk_blocks: 16, blocks: &[48, 48, 48] },
    Shape { level: Level::Raid6, chunk_blocks: 24, blocks: &[48, 72, 72, 72, 72, 72] },
];

/// A stripe has more blocks than a batch of the journal.
const WIDE: Shape = Shape { level: Level::Raid6, chunk_blocks: 16, blocks: &[64; 18] };

fn seeds() -> std::ops::Range<u64> {
    let of = |name: &str, or: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(or);
    let first = of("ROWS_FIRST", 0);
    first..first + of("ROWS_SEEDS", 8)
}

/// What was written is read back, with all members and with every tolerated loss; every stripe agrees with its parity.
#[test]
fn what_is_written_is_read_after_every_tolerated_loss() {
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

/// Regions of every size, smaller and larger than stripes: a reported hole reads as zeros, whichever members are lost.
#[test]
fn holes_read_as_zeros_after_every_tolerated_loss() {
    let (mut holes, mut seed) = (0, 0);
    for region_bytes in [4096, 1 << 14, 1 << 16, 1 << 18] {
        for shape in SHAPES {
            seed += 1;
            let mut rig = Rig::with_regions(*shape, 1 + (seed % 2) as u16, seed, region_bytes);
            for requests in [1, 3, 8] {
                rig.requests(requests);
                rig.settle();
                holes += rig.check_holes();
                rig.read_all();
            }
            let lost = rig.tolerated().swap_remove(0);
            rig.lose(&lost);
            rig.requests(5);
            rig.settle();
            rig.read_all();
        }
    }
    assert!(holes > 1 << 20, "{holes} bytes of holes");
}

/// Members fail during requests: what was answered is kept, and requests in flight succeed.
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

/// A returning member is rebuilt from the others under requests, and holds what it should afterwards.
#[test]
fn a_member_is_rebuilt_under_requests() {
    for seed in seeds() {
        for shape in SHAPES {
            let mut rig = Rig::new(*shape, 1 + (seed % 2) as u16, seed ^ 0xf111);
            rig.requests(60);
            rig.settle();
            let member = (seed % shape.blocks.len() as u64) as usize;
            rig.lose(&[member]);
            rig.requests(20);
            rig.settle();
            rig.rebuild(member);
            rig.check_parity();
            for lost in rig.tolerated() {
                rig.lose(&lost);
                rig.read_all();
            }
        }
    }
}

/// Between the layout in which a member has failed while its successor has everything, and the one in which the
/// successor has its slot, redundancy is not reduced: as many other members may be lost as before, and be rebuilt.
#[test]
fn a_successor_serves_before_it_has_its_slot() {
    for seed in seeds() {
        for shape in SHAPES {
            let mut rig = Rig::new(*shape, 1 + (seed % 2) as u16, seed ^ 0x5eed5);
            rig.requests(60);
            rig.settle();
            let replaced = (seed % shape.blocks.len() as u64) as usize;
            rig.replace(replaced);
            for lost in rig.tolerated().into_iter().filter(|lost| !lost.contains(&replaced)) {
                lost.iter().for_each(|member| rig.drop_member(*member));
                rig.settle();
                rig.read_all();
                rig.requests(20);
                rig.settle();
                lost.iter().for_each(|member| rig.rebuild(*member));
                rig.check_parity();
                for row in 0..rig.rows() {
                    let (data, cells) = rig.cells_of_stripe(row);
                    assert_eq!(rig.sync(row, SyncKind::VerifyStripe { data, cells }), 0, "row {row} of {shape:?}");
                }
            }
            rig.read_all();
        }
    }
}

/// Data read for a stripe depends on the layout that determined which members are read: a member that is in sync after
/// a freeze may not have been.
#[test]
fn a_member_that_was_not_read_is_not_used_for_recovery() {
    for shape in SHAPES {
        let mut rig = Rig::new(*shape, 1, 6);
        rig.write_all();
        let filled = 1;
        let lost: Vec<usize> = [filled, 0][..rig.tolerance()].to_vec();
        rig.lose(&lost);
        rig.fill(filled);
        for (op, len) in [(Op::Read, rig.stripe_bytes(0)), (Op::Write, BLOCK), (Op::Write, 3 * BLOCK)] {
            for at in 0..3 {
                rig.submit(0, op, at * 5 * BLOCK, len.min(rig.stripe_bytes(0) / 2), Flags::NONE);
            }
            rig.freeze();
            rig.go_on();
            rig.promote(filled);
            rig.settle();
            rig.read_all();
            rig.fill(filled);
        }
        rig.promote(filled);
        rig.settle();
        for other in (2..shape.blocks.len()).take(usize::from(rig.tolerance() == 1)) {
            rig.lose(&[other]);
            rig.read_all();
        }
    }
}

/// The ring moves to a disk and back under writes, and the disk fails in between: all requests are answered, and
/// nothing is lost.
#[test]
fn the_ring_moves_under_requests() {
    for seed in seeds() {
        for shape in SHAPES {
            let mut rig = Rig::new(*shape, 1 + (seed % 3) as u16, seed ^ 0x4106);
            let mut random = Random(seed);
            for turn in 0..6 {
                rig.requests(20);
                match (rig.ring_on, random.below(3)) {
                    (Ring::Members, _) => rig.begin_move(Ring::Disk),
                    (Ring::Disk, 0) => rig.fail(JOURNAL.0),
                    (Ring::Disk, _) => rig.begin_move(Ring::Members),
                    (Ring::Nowhere, _) => {}
                }
                if turn == 3 && rig.tolerance() == 2 {
                    rig.settle();
                    rig.drop_member(seed as usize % shape.blocks.len());
                }
                rig.requests(20);
                if rig.ring_on == Ring::Members {
                    rig.heal();
                }
            }
            rig.heal();
            rig.settle();
            rig.check_parity();
            rig.read_all();
        }
    }
}

/// Ops that wait while the ring is nowhere are cut for the smaller of the two rings.
#[test]
fn large_writes_follow_the_ring_to_a_smaller_one() {
    for shape in SHAPES.iter().filter(|shape| shape.level == Level::Raid5) {
        let mut rig = Rig::new(*shape, 1, 5);
        rig.write_all();
        rig.begin_move(Ring::Disk);
        rig.settle();
        assert_eq!(rig.ring_on, Ring::Disk);
        rig.drop_member(0);
        rig.settle();
        let len = rig.geometry.size_bytes().min(4 << 20);
        rig.begin_move(Ring::Members);
        rig.submit(0, Op::Write, 0, len, Flags::FUA);
        rig.settle();
        assert_eq!(rig.ring_on, Ring::Members);
        rig.read_all();
    }
}

/// A stripe with a mark on the disk counts as unreadable after a crash with a loss until something on the disk says
/// that it is in place: no flush is answered before.
#[test]
fn a_flush_waits_until_no_mark_stands_on_the_disk() {
    let mut rig = Rig::new(SHAPES[0], 1, 5);
    rig.write_all();
    rig.begin_move(Ring::Disk);
    rig.settle();
    let row = rig.stripe_bytes(0);
    rig.submit(0, Op::Write, 0, row, Flags::NONE);
    rig.settle();
    rig.stall();
    let first = rig.submit(0, Op::Flush, 0, 0, Flags::NONE);
    assert!(!rig.ends(first), "what says so is under way");
    let second = rig.submit(0, Op::Flush, 0, 0, Flags::NONE);
    assert!(!rig.ends(second), "what says so is still under way");
    rig.stop_stalling();
    rig.settle();
    assert_eq!(rig.ring_on, Ring::Disk);
}

/// A batch in flight to a member when the ring leaves would be written there after the ring has come back.
#[test]
fn the_ring_moves_when_no_batch_is_in_flight() {
    let mut rig = Rig::new(SHAPES[0], 1, 5);
    rig.write_all();
    rig.stall();
    let tag = rig.submit(0, Op::Write, 0, BLOCK, Flags::NONE);
    assert!(!rig.ends(tag), "its batch is under way");
    rig.begin_move(Ring::Disk);
    rig.go_on();
    assert_eq!(rig.ring_on, Ring::Nowhere);
    rig.stop_stalling();
    rig.settle();
    assert_eq!(rig.ring_on, Ring::Disk);
    rig.read_all();
}

/// What does not agree is found and repaired: with two parities the wrong cell, whichever it is.
#[test]
fn rot_is_found_and_repaired() {
    for shape in SHAPES {
        let mut rig = Rig::new(*shape, 1, 8);
        rig.write_all();
        for row in 0..rig.rows() {
            let (data, cells) = rig.cells_of_stripe(row);
            assert_eq!(rig.sync(row, SyncKind::VerifyStripe { data, cells }), 0);
            let named = if cells - data == 2 { 0..cells } else { data..cells };
            for cell in named {
                rig.rot(row, cell, 0);
                assert_eq!(
                    rig.sync(row, SyncKind::VerifyStripe { data, cells }),
                    1,
                    "row {row}, cell {cell} of {shape:?}"
                );
                assert_eq!(rig.sync(row, SyncKind::RepairStripe { data, cells, from_data: false }), 1);
                assert_eq!(rig.sync(row, SyncKind::VerifyStripe { data, cells }), 0);
            }
        }
        rig.check_parity();
        rig.read_all();
    }
}

/// If the data is trusted, both parities are recomputed, even if they agree with one another.
#[test]
fn data_wins_over_its_parities() {
    for shape in SHAPES {
        let mut rig = Rig::new(*shape, 1, 8);
        rig.write_all();
        for row in 0..rig.rows() {
            let (data, cells) = rig.cells_of_stripe(row);
            for cell in 0..cells {
                rig.rot(row, cell, 0);
                let rotten = rig.block_of(row, cell, 0);
                assert_eq!(rig.sync(row, SyncKind::RepairStripe { data, cells, from_data: true }), 1);
                assert_eq!(rig.block_of(row, cell, 0) == rotten, cell < data, "row {row}, cell {cell} of {shape:?}");
                assert_eq!(rig.sync(row, SyncKind::VerifyStripe { data, cells }), 0);
            }
        }
        rig.check_parity();
    }
}

/// One flush after another ends, even if nothing was written.
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

/// The cost of a small write: a read and a write of data and of each parity at most, and one write of the journal on
/// each member that takes a copy.
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

/// Zeros are written only to regions that hold something: the others read as zeros already.
#[test]
fn unwritten_regions_are_skipped() {
    for op in [Op::Discard, Op::WriteZeroes] {
        for shape in SHAPES {
            let region_bytes = 1 << 14;
            let mut rig = Rig::with_regions(*shape, 1, 7, region_bytes);
            let size = rig.geometry.size_bytes();
            assert_eq!(rig.run(0, op, 0, size, Flags::NONE), Ok(()));
            assert!(rig.log.is_empty(), "{op:?} of nothing, {shape:?}: {:?}", rig.log);
            let written = |rig: &Rig| -> u64 {
                rig.log.iter().filter(|e| e.op != Op::Read && !rig.is_journal(e.offset)).map(|e| e.len).sum()
            };
            rig.write_all();
            rig.log.clear();
            assert_eq!(rig.run(0, op, 0, size, Flags::NONE), Ok(()));
            let all = written(&rig);
            let mut rig = Rig::with_regions(*shape, 1, 7, region_bytes);
            assert_eq!(rig.run(0, Op::Write, size / 2 / BLOCK * BLOCK, BLOCK, Flags::NONE), Ok(()));
            rig.log.clear();
            assert_eq!(rig.run(0, op, 0, size, Flags::NONE), Ok(()));
            let one = written(&rig);
            assert!(0 < one && one <= all / 2, "{op:?} with one block written, {shape:?}: {one} bytes, of all {all}");
            rig.read_all();
        }
    }
}

/// A stripe that a crash and a loss made unreadable can be read once all of it was rewritten, in whatever order the
/// disks complete; and the list on the disks follows.
#[test]
fn an_unreadable_stripe_is_rewritten() {
    for seed in seeds().filter(|seed| seed % 8 < 4) {
        for shape in SHAPES {
            let lost = some_lost_stripes(*shape, seed);
            let mut rig = Rig::with_lost(*shape, 1 + (seed % 2) as u16, seed ^ 0x1057, &lost);
            if lost.is_empty() {
                continue;
            }
            if seed % 3 == 1 {
                rig.lose(&[seed as usize % shape.blocks.len()]);
            }
            rig.requests(60);
            if seed % 3 == 2 {
                rig.fail(seed as u32 % shape.blocks.len() as u32);
                rig.requests(60);
            }
            rig.settle();
            for row in 0..rig.rows() {
                let (at, bytes) = rig.whole_stripe(row);
                assert_eq!(rig.attempt(row as usize, Op::Write, at, bytes), Expected::Nothing);
            }
            assert_eq!(rig.unreadable(), []);
            // The ring wraps around, so that the tail must pass.
            rig.requests(40);
            rig.settle();
            rig.write_all();
            rig.write_all();
            let (heads, tail) = rig.watched();
            assert!(heads > 0 && tail > 1, "{heads} heads, tail {tail}, seed {seed}, {shape:?}");
            let in_sync = rig.in_sync();
            assert!(in_sync.iter().all(|member| rig.list_on(*member).1.is_empty()), "seed {seed}, {shape:?}");
            rig.check_parity();
            rig.read_all();
        }
    }
}

/// In what order and in which pieces the reported ranges are rewritten.
#[derive(Clone, Copy, Debug)]
enum Split {
    InOrder,
    Backwards,
    Shuffled,
    BlockByBlock,
    AcrossRanges,
}

/// A block that is reported as unreadable can be read as soon as it is written, in every split of the ranges; zeroes
/// are as good as data. Everything else of those stripes is read and written meanwhile.
#[test]
fn unreadable_ranges_are_rewritten_in_any_split() {
    let splits = [Split::InOrder, Split::Backwards, Split::Shuffled, Split::BlockByBlock, Split::AcrossRanges];
    let mut refused = 0;
    for shape in SHAPES {
        for (turn, split) in splits.into_iter().enumerate() {
            let (op, seed) = [(Op::Write, 1), (Op::WriteZeroes, 2), (Op::Discard, 3)][turn % 3];
            let lost = some_lost_stripes(*shape, seed + turn as u64);
            if lost.is_empty() {
                continue;
            }
            let mut rig = Rig::with_lost(*shape, 2, seed, &lost);
            let mut random = Random(seed);
            if turn % 2 == 1 {
                rig.lose(&[turn % shape.blocks.len()]);
            }
            let before = rig.unreadable();
            let named: u64 = rig.named().iter().map(|(_, bytes)| bytes / BLOCK).sum();
            assert_eq!(named, before.len() as u64, "what cannot be read is named, and nothing else");
            for block in &before {
                assert_eq!(rig.attempt(0, Op::Read, block * BLOCK, BLOCK), Expected::Refusal);
                refused += 1;
            }
            // Readable neighbours are written; that makes nothing else readable.
            for row in &lost {
                let (start, bytes) = rig.whole_stripe(row.stripe);
                let other = (start..start + bytes).step_by(BLOCK as usize).find(|at| !before.contains(&(at / BLOCK)));
                if let Some(at) = other {
                    assert_eq!(rig.attempt(1, Op::Write, at, BLOCK), Expected::Nothing);
                }
            }
            assert_eq!(rig.unreadable(), before);
            let mut pieces = rig.named();
            match split {
                Split::InOrder => {}
                Split::Backwards => pieces.reverse(),
                Split::BlockByBlock => {
                    let blocks = |(at, len): &(u64, u64)| (*at..at + len).step_by(BLOCK as usize).collect::<Vec<_>>();
                    pieces = pieces.iter().flat_map(blocks).map(|at| (at, BLOCK)).collect();
                }
                Split::Shuffled => {
                    (1..pieces.len()).for_each(|at| pieces.swap(at, random.below(at as u64 + 1) as usize));
                }
                Split::AcrossRanges => {
                    let end = pieces.last().map_or(0, |(at, len)| at + len);
                    let start = pieces[0].0;
                    pieces = vec![(start, (end - start).min(1 << 20))];
                    pieces.extend(rig.named().into_iter().filter(|(at, _)| *at >= start + (1 << 20)));
                }
            }
            for (at, len) in pieces {
                assert_eq!(rig.attempt(1, op, at, len), Expected::Nothing, "{split:?} of {shape:?}");
                assert_eq!(rig.attempt(0, Op::Read, at, len), Expected::Nothing, "at once, not after a flush");
            }
            assert_eq!(rig.unreadable(), [], "{split:?} of {shape:?}");
            assert_eq!(rig.named(), []);
            rig.check_parity();
            rig.read_all();
        }
    }
    assert!(refused > 50, "{refused} were refused");
}

/// Once the marks of a journal are retired, because a member is about to be dropped, every stripe agrees with its
/// parity: no write to a marked stripe is in flight, and none comes later.
#[test]
fn marks_are_retired_when_their_stripes_are_in_place() {
    let mut under_way = 0;
    for seed in seeds() {
        for shape in SHAPES.iter().chain([&WIDE]) {
            let mut rig = Rig::new(*shape, 1 + (seed % 2) as u16, seed ^ 0x6d61_726b);
            let mut random = Random(seed);
            rig.write_all();
            for turn in 0..6 {
                let stripes = rig.rows() / rig.rows_of_stripe();
                for at in 0..stripes.min(5) {
                    let (start, bytes) = rig.whole_stripe((turn + at) % stripes * rig.rows_of_stripe());
                    rig.submit((at % (1 + seed % 2)) as usize, Op::Write, start, bytes, Flags::NONE);
                }
                for _ in 0..random.below(60) {
                    rig.step();
                }
                rig.freeze();
                under_way += u32::from(rig.retire_marks());
                rig.check_parity();
                while rig.step() {}
                rig.check_parity();
                // The drop follows: requests in flight continue without the member, and without the marks.
                let member = random.below(shape.blocks.len() as u64) as usize;
                rig.drop_member(member);
                rig.settle();
                rig.read_all();
                if rig.tolerance() < 2 || shape.blocks.len() < 10 {
                    rig.rebuild(member);
                    continue;
                }
                // Its stripes are too wide for the memory of a job.
                break;
            }
        }
    }
    assert!(under_way > 20, "{under_way} times something was waited for");
}

/// A member that failed a stripe whose mark is retired stays recorded until a layout drops it: even if the time to wait
/// is over in the moment in which all marks are retired, and those of stripes that are known to be in place are retired
/// after that.
#[test]
fn a_member_that_failed_a_marked_stripe_stays_recorded_until_it_is_dropped() {
    for shards in [1, 2] {
        let mut rig = Rig::new(SHAPES[4], shards, 7);
        rig.write_all();
        rig.empty_journal();
        rig.leave_unattended();
        rig.hang_in_place(2);
        let (start, bytes) = rig.whole_stripe(0);
        let tag = rig.submit(0, Op::Write, start, bytes, Flags::NONE);
        assert!(!rig.ends(tag), "it waits for a layout without the member");
        rig.freeze();
        rig.retire_marks();
        assert_eq!(rig.disks_failed(), [LeafId(2)]);
        rig.retire_marks_at_once();
        assert_eq!(rig.disks_failed(), [LeafId(2)]);
        rig.drop_member(2);
        assert!(rig.disks_failed().is_empty());
        rig.settle_but_hung();
        rig.give_back();
        rig.read_all();
    }
}

/// A stripe is written with a layout in which a successor is beside its member, and the successor fails it when it has
/// the member's slot: it is recorded by its disk, because it had another index then.
#[test]
fn a_successor_that_failed_a_marked_stripe_is_recorded_after_it_took_its_slot() {
    let mut rig = Rig::new(SHAPES[4], 1, 7);
    rig.write_all();
    let successor = rig.begin_replacing(1);
    rig.empty_journal();
    let (start, bytes) = rig.whole_stripe(0);
    let tag = rig.submit(0, Op::Write, start, bytes, Flags::NONE);
    rig.run_until_in_place();
    rig.drop_member(1);
    rig.give_slot();
    rig.leave_unattended();
    rig.hang_in_place(successor as u32);
    assert!(!rig.ends(tag), "it waits for a layout without the successor");
    rig.freeze();
    rig.retire_marks();
    assert_eq!(rig.disks_failed(), [LeafId(successor as u32)]);
    rig.drop_member(successor);
    assert!(rig.disks_failed().is_empty());
    rig.settle_but_hung();
    rig.give_back();
    rig.read_all();
}

/// A step requests marks of more stripes than one batch of the journal holds as data, and a member is dropped before
/// the batch is written: the write is answered all the same, because its stripes are logged one by one.
#[test]
fn stripes_that_no_batch_holds_together_are_logged_one_by_one() {
    let shape = Shape { level: Level::Raid5, chunk_blocks: 8, blocks: &[128; 5] };
    for seed in 0..40 {
        let mut rig = Rig::new(shape, 2, seed);
        let mut random = Random(seed);
        let (_, stripe) = rig.whole_stripe(0);
        for turn in 0..4 {
            // Regions that are writable already delay no request.
            rig.write_all();
            for shard in 0..2 {
                rig.submit(shard, Op::Write, shard as u64 * 8 * stripe, 8 * stripe, Flags::NONE);
            }
            for _ in 0..random.below(8) {
                rig.step();
            }
            rig.freeze();
            rig.retire_marks();
            while rig.step() {}
            let member = (turn + seed as usize) % 5;
            rig.drop_member(member);
            let moves = (0..100_000).take_while(|_| rig.step()).count();
            assert!(moves < 100_000, "it goes on for ever");
            rig.settle();
            rig.read_all();
            rig.rebuild(member);
        }
    }
}

/// A rebuilding member gets every head as well: it may be in sync a moment later, and the only one left.
#[test]
fn a_rebuilding_member_gets_the_head() {
    for shape in SHAPES {
        let lost = some_lost_stripes(*shape, 1);
        let mut rig = Rig::with_lost(*shape, 2, 5, &lost);
        rig.begin_rebuild(0);
        for row in &lost {
            let (at, bytes) = rig.whole_stripe(row.stripe);
            assert_eq!(rig.attempt(1, Op::Write, at, bytes), Expected::Nothing);
        }
        rig.write_all();
        rig.write_all();
        let lists: Vec<_> = (0..shape.blocks.len()).map(|member| rig.list_on(member)).collect();
        assert!(lists[0].0 > 1 && lists.iter().all(|list| *list == lists[0]), "{lists:?}");
    }
}

/// The reserve replaces journal memory that a disk that hangs keeps, repeatedly, up to its size.
#[test]
fn the_reserve_replaces_memory_that_a_disk_keeps() {
    for shape in SHAPES {
        let mut rig = Rig::new(*shape, 1, 9);
        rig.write_all();
        // So much of the journal's memory, without the reserve, that another such write would have no room.
        let (most, mut turns) = (SCRATCH_BYTES_MIN / 12 * 3 / 4, 0);
        while rig.hung_bytes() <= most {
            let member = turns % shape.blocks.len();
            rig.hang(member as u32);
            let bytes = rig.stripe_bytes(0) * 2;
            assert_eq!(rig.run(0, Op::Write, 0, bytes, Flags::FUA), Ok(()));
            assert_eq!(rig.run(0, Op::Write, 0, bytes, Flags::FUA), Ok(()));
            rig.rebuild(member);
            turns += 1;
        }
        rig.requests(60);
        rig.settle();
        rig.check_parity();
        rig.give_back();
        rig.requests(60);
        rig.settle();
        rig.read_all();
    }
}

/// A long write loses only the memory of the step that a disk keeps, and not of the following ones.
#[test]
fn one_step_is_lost_to_a_disk_that_hangs() {
    let mut rig = Rig::new(Shape { level: Level::Raid6, chunk_blocks: 16, blocks: &[1024; 3] }, 1, 6);
    rig.hang_in_place(1);
    rig.write_all();
    assert!(rig.hung_bytes() > 0);
    let all = rig.stripe_bytes(0) * rig.rows();
    assert_eq!(rig.run(0, Op::Write, 0, all, Flags::NONE), Ok(()));
    rig.give_back();
    rig.hang_in_place(2);
    assert_eq!(rig.run(0, Op::Write, 0, all, Flags::NONE), Ok(()));
    assert!(rig.hung_bytes() > 0);
    rig.give_back();
    rig.read_all();
}

/// A disk that keeps a bitmap write does not delay other regions of the same bitmap block, once it is dropped.
#[test]
fn a_bitmap_write_that_a_disk_keeps_delays_no_request() {
    for shape in SHAPES {
        for shards in [1, 2] {
            let mut rig = Rig::new(*shape, shards, 5);
            rig.hang_in_bits(1);
            assert_eq!(rig.run(0, Op::Write, 0, 4096, Flags::NONE), Ok(()));
            assert!(rig.hung_bytes() > 0, "nothing hangs");
            rig.write_all();
            rig.requests(60);
            rig.settle();
            rig.give_back();
            rig.requests(60);
            rig.settle();
            rig.check_parity();
            rig.read_all();
        }
    }
}

/// While the disks of one array do not complete its journal's writes, other arrays of the shard log.
#[test]
fn an_array_that_waits_for_disks_leaves_memory_to_others() {
    let mut rig = Rig::new(Shape { level: Level::Raid5, chunk_blocks: 16, blocks: &[128, 128, 128] }, 1, 4);
    rig.publish_twin();
    let stripe = rig.stripe_bytes(0);
    rig.write_all();
    // No stripe is marked any more.
    assert_eq!(rig.run(0, Op::Flush, 0, 0, Flags::NONE), Ok(()));
    rig.stall();
    let mut at = 0;
    let first: Vec<u64> = [2, 2, 1, 1]
        .map(|stripes| {
            let tag = rig.begin(0, at, stripes * stripe);
            assert!(!rig.ends(tag));
            at += stripes * stripe;
            tag
        })
        .to_vec();
    let other = rig.begin(1, 0, stripe);
    assert!(rig.ends(other), "the other array waits for the first one's disks");
    assert!(first.iter().all(|tag| !rig.ends(*tag)));
}

/// A long read that began before a member was dropped does not recover lost data from what that member has since
/// missed.
#[test]
fn a_long_read_does_not_use_a_dropped_member() {
    let shape = Shape { level: Level::Raid6, chunk_blocks: 4, blocks: &[64; 5] };
    let geometry = Rig::new(shape, 2, 3).geometry;
    let (chunk, mut runs) = (4 * 4096, 0);
    for number in 1..geometry.stripes() {
        let stripe = geometry.stripe(number).expect("a stripe");
        let (at, lost) = (stripe.array_start, usize::from(stripe.data(0)));
        let before = usize::from(geometry.locate(at - 4096).member);
        for other in [stripe.p(), stripe.q().expect("two")].map(usize::from) {
            if [lost, other].contains(&before) {
                continue;
            }
            runs += 1;
            let mut rig = Rig::new(shape, 2, number);
            rig.write_all();
            rig.lose(&[lost]);
            // The end of the previous stripe, whose disk delays the read, and the lost cell.
            rig.pause(Some(0));
            rig.submit(0, Op::Read, at - 4096, 4096 + chunk, Flags::NONE);
            rig.drop_member(other);
            rig.submit(1, Op::Write, at + chunk, 4096, Flags::NONE);
            rig.go_on();
            rig.pause(None);
            rig.settle();
        }
    }
    assert!(runs > 5, "{runs} runs");
}

/// Stripes that are too large for a batch of the journal are only marked, too, by full-stripe writes.
#[test]
fn a_wide_stripe_is_marked_as_well() {
    let mut rig = Rig::new(WIDE, 1, 1);
    let stripe = rig.stripe_bytes(0);
    let journal = |rig: &Rig| -> Vec<(u64, bool)> {
        rig.log.iter().filter(|e| e.op == Op::Write && rig.is_journal(e.offset)).map(|e| (e.len, e.fua)).collect()
    };
    assert_eq!(rig.run(0, Op::Write, 0, stripe, Flags::NONE), Ok(()));
    rig.log.clear();
    assert_eq!(rig.run(0, Op::Write, stripe, stripe, Flags::NONE), Ok(()));
    assert_eq!(journal(&rig), [(4096, true); 3], "a mark, in three copies");
    let place = rig.log.iter().filter(|e| e.op == Op::Write && e.len > 4096).map(|e| e.len);
    assert_eq!(place.collect::<Vec<_>>(), [16 * 4096; 18]);
    // A FUA write is logged, in parts.
    rig.log.clear();
    assert_eq!(rig.run(0, Op::Write, stripe, stripe, Flags::FUA), Ok(()));
    let logged: u64 = journal(&rig).iter().map(|(len, _)| len - 4096).sum();
    assert!(logged >= 3 * 18 * 16 * 4096, "data and parities, in three copies: {logged}");
    // So the journal has some of it when it is written once more, and must retire that first.
    rig.log.clear();
    assert_eq!(rig.run(0, Op::Write, stripe, stripe, Flags::NONE), Ok(()));
    assert_eq!(journal(&rig).iter().map(|(len, _)| len).max(), Some(&4096));
    rig.check_parity();
    rig.read_all();
}

/// A member is lost between the mark of a wide stripe and its writes: then it is logged in parts.
#[test]
fn a_wide_stripe_that_has_lost_its_member_is_logged() {
    let mut lost = 0;
    for member in 0..WIDE.blocks.len() {
        let mut rig = Rig::new(WIDE, 1 + (member % 2) as u16, member as u64);
        let stripe = rig.stripe_bytes(0);
        rig.write_all();
        rig.settle();
        rig.log.clear();
        // A mark that was to be on that disk: the disk is dropped meanwhile.
        rig.hang(member as u32);
        for row in [1, 2, 3, 1, 2, 3] {
            assert_eq!(rig.run(0, Op::Write, row * stripe, stripe, Flags::NONE), Ok(()));
        }
        let logged = rig.log.iter().filter(|e| e.op == Op::Write && rig.is_journal(e.offset)).map(|e| e.len).max();
        assert_eq!(logged > Some(4096), rig.hung_bytes() > 0, "member {member}: {logged:?}");
        lost += u32::from(rig.hung_bytes() > 0);
        rig.give_back();
        rig.settle();
        rig.check_parity();
        rig.read_all();
    }
    assert!(lost > 4, "{lost}");
}

#[test]
fn members_of_wide_stripes_fail_under_writes() {
    for seed in seeds().take(3) {
        let mut rig = Rig::new(WIDE, 1 + (seed % 2) as u16, seed ^ 0x51de);
        rig.requests(40);
        for member in [seed as u32, 17 - seed as u32] {
            rig.fail(member);
            rig.requests(40);
        }
        rig.settle();
        rig.check_parity();
        rig.read_all();
    }
}
