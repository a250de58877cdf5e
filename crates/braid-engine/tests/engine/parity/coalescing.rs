//! Small contiguous writes that arrive together are coalesced.

use braid_engine::*;
use braid_format::journal::LostStripe;
use braid_geometry::Level;

use super::rig::{BLOCK, Random, Rig, Shape};
use crate::parity::{SHAPES, seeds};

/// A stripe that arrives in pieces costs what it costs in one: nothing is read, and only marks are logged in the
/// journal.
#[test]
fn a_stripe_in_pieces_costs_what_a_stripe_costs() {
    for shape in [SHAPES[0], Shape { level: Level::Raid6, chunk_blocks: 16, blocks: &[64; 5] }] {
        let mut rig = Rig::new(shape, 1, 1);
        let stripe = rig.stripe_bytes(0);
        rig.write_all();
        assert_eq!(rig.run(0, Op::Flush, 0, 0, Flags::NONE), Ok(()));
        for pieces in [vec![stripe / 2; 2], vec![stripe - BLOCK, BLOCK], vec![BLOCK, 3 * BLOCK, stripe - 4 * BLOCK]] {
            rig.log.clear();
            rig.stream(0, stripe, &pieces);
            rig.settle();
            let in_place = rig.log.iter().filter(|e| e.op == Op::Write && !rig.is_journal(e.offset)).count();
            assert_eq!(in_place, shape.blocks.len(), "one write a cell");
            assert!(rig.log.iter().all(|e| e.op != Op::Read), "nothing is read");
            let journal: Vec<u64> = rig.log.iter().filter(|e| rig.is_journal(e.offset)).map(|e| e.len).collect();
            assert_eq!(journal, vec![BLOCK; 1 + rig.tolerance()], "a mark, in so many copies");
            rig.check_parity();
        }
        rig.read_all();
    }
}

/// Neighbours that meet at the edge of a stripe are not copied.
#[test]
fn full_stripe_writes_are_not_coalesced() {
    let mut rig = Rig::new(SHAPES[0], 1, 1);
    let stripe = rig.stripe_bytes(0);
    rig.stream(0, 0, &[stripe; 3]);
    rig.settle();
    assert_eq!(rig.shards[0].0.writes_gathered(), 0);
    rig.stream(0, 0, &[stripe / 2, stripe / 2, stripe, stripe / 2]);
    rig.settle();
    assert_eq!(rig.shards[0].0.writes_gathered(), 2);
    rig.check_parity();
    rig.read_all();
}

/// Streams of small writes among other requests, while members fail or hang: what was answered is kept.
#[test]
fn streams_of_small_writes() {
    let mut gathered = 0;
    for seed in seeds() {
        for (number, shape) in SHAPES.iter().enumerate() {
            let mut rig = Rig::new(*shape, 1 + (seed % 2) as u16, seed ^ 0x9a7);
            let mut random = Random(seed);
            let victim = random.below(shape.blocks.len() as u64) as u32;
            for turn in 0..12 {
                match (turn, seed % 3) {
                    (4, 0) => rig.fail(victim),
                    (4, 1) => rig.hang_in_place(victim),
                    _ => {}
                }
                rig.settle_but_hung();
                let size = rig.geometry.size_bytes() / BLOCK;
                let mut pieces: Vec<u64> = (0..2 + random.below(4)).map(|_| BLOCK * (1 + random.below(9))).collect();
                let first = random.below(size);
                while first + pieces.iter().sum::<u64>() / BLOCK > size {
                    pieces.pop();
                }
                let shard = random.below(rig.shards.len() as u64) as usize;
                if turn % 2 == 0 {
                    rig.stream(shard, first * BLOCK, &pieces);
                } else {
                    rig.trickle(shard, first * BLOCK, &pieces);
                }
                rig.requests(2);
            }
            rig.settle_but_hung();
            rig.give_back();
            gathered += rig.shards.iter().map(|(shard, _)| shard.writes_gathered()).sum::<u64>();
            assert!(number > 0 || gathered > 0, "nothing was gathered");
            rig.check_parity();
            rig.read_all();
        }
    }
    assert!(gathered > 200, "{gathered} writes were gathered");
}

/// A stream that submits its pieces one by one: a piece that continues a write in flight is held back until its stripe
/// is full or that write has ended. A piece that continues no write, or while little is in flight, is not held back.
#[test]
fn a_trickle_is_coalesced() {
    let mut rig = Rig::new(SHAPES[0], 1, 1);
    let stripe = rig.stripe_bytes(0);
    rig.write_all();
    for full in [true, false] {
        let gathered = rig.shards[0].0.writes_gathered();
        rig.log.clear();
        // Others are in flight, so that more is expected.
        [0, 2, 3].into_iter().for_each(|far| rig.trickle(0, far * stripe + BLOCK, &[BLOCK]));
        rig.trickle(0, stripe, &[BLOCK, 3 * BLOCK, 4 * BLOCK]);
        // The first one has gone, the others are held back.
        assert_eq!(rig.shards[0].0.writes_gathered(), gathered);
        assert!(!rig.shards[0].0.is_turn_open());
        if full {
            rig.trickle(0, stripe + 8 * BLOCK, &[stripe - 8 * BLOCK]);
            assert_eq!(rig.shards[0].0.writes_gathered(), gathered + 3);
        }
        rig.settle();
        assert_eq!(rig.shards[0].0.writes_gathered(), gathered + if full { 3 } else { 2 });
        rig.check_parity();
    }
    let gathered = rig.shards[0].0.writes_gathered();
    rig.trickle(0, stripe, &[BLOCK, 3 * BLOCK, 4 * BLOCK]);
    rig.settle();
    assert_eq!(rig.shards[0].0.writes_gathered(), gathered, "with few requests in flight none is held back");
    // No write that ends there is in flight.
    let reads = |rig: &Rig| rig.log.iter().filter(|e| e.op == Op::Read).count();
    rig.log.clear();
    for at in 0..4 {
        rig.trickle(0, at * BLOCK, &[BLOCK]);
        assert!(rig.settles(), "a write that continues no other one is not held back");
    }
    assert_eq!(reads(&rig), 4, "each by itself");
    rig.read_all();
}

/// Each of several coalesced writes makes readable what it writes of a stripe, and nothing else.
#[test]
fn coalesced_writes_make_their_own_blocks_readable() {
    let shape = SHAPES[0];
    let lost = [LostStripe::new(1, 0b1100, &[0]).expect("a stripe")];
    let mut rig = Rig::with_lost(shape, 1, 7, &lost);
    let stripe = rig.stripe_bytes(0);
    rig.stream(0, stripe, &[BLOCK, BLOCK, BLOCK]);
    rig.settle();
    assert_eq!(rig.unreadable(), [stripe / BLOCK + 3], "the third line was written, the fourth was not");
    rig.stream(0, stripe, &[stripe / 4; 4]);
    rig.settle();
    assert_eq!(rig.unreadable(), []);
    rig.check_parity();
    rig.read_all();
}

/// Three clients rewrite one block each of one line: none waits for ever behind two others whose blocks come first.
#[test]
fn every_client_gets_its_turn() {
    let shape = Shape { level: Level::Raid5, chunk_blocks: 16, blocks: &[64; 4] };
    let mut rig = Rig::new(shape, 1, 1);
    let stripe = rig.stripe_bytes(0);
    rig.write_all();
    let chunk = stripe / 3;
    // By block: the request in flight.
    let mut under_way = [None; 3];
    let mut answered = [0; 3];
    for _ in 0..3000 {
        for client in 0..3 {
            if under_way[client].is_none_or(|tag| rig.is_answered(tag)) {
                answered[client] += u32::from(under_way[client].is_some());
                under_way[client] = Some(rig.submit(0, Op::Write, stripe + client as u64 * chunk, BLOCK, Flags::NONE));
            }
        }
        assert!(rig.settles_some(), "a request is in flight");
    }
    let (least, most) = (answered.iter().min().unwrap(), answered.iter().max().unwrap());
    assert!(*least > 50 && *most <= 3 * least, "{answered:?} answers");
    rig.settle();
    rig.check_parity();
}

/// Clients continuously rewrite blocks of several lines of a stripe; a request for the whole stripe gets it
/// nevertheless. (Between shards the first to check wins, as with all ranges.)
#[test]
fn a_request_for_a_whole_stripe_gets_it() {
    for flags in [Flags::FUA, Flags::NONE] {
        let mut rig = Rig::new(SHAPES[0], 1, 1);
        rig.write_all();
        let stripe = rig.stripe_bytes(0);
        let mut under_way = [None; 6];
        let (mut steps, mut parts) = (0, 0);
        while parts < 5 {
            for (client, tag) in under_way.iter_mut().enumerate() {
                if tag.is_none_or(|tag| rig.is_answered(tag)) {
                    let at = stripe + client as u64 * 2 * BLOCK;
                    *tag = Some(rig.submit(0, Op::Write, at, BLOCK, flags));
                }
            }
            // The second stripe of the journal, which is the second one of the geometry, is compared with its parity.
            if steps == 100 * (parts + 1) {
                rig.begin_verify(1);
            }
            rig.settles_some();
            parts += u64::from(rig.verified());
            steps += 1;
            assert!(steps < 100 * (parts + 1) + 500, "a part of a job waits for ever, {flags:?}");
        }
        rig.settle();
        rig.check_parity();
    }
}
