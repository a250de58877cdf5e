//! Several clients with requests in flight, on a server with little memory: the engine is sometimes full, the disk
//! completes in any order and sometimes fails or is late, sockets pass a few bytes at a time, and clients vanish. Each
//! run follows from a seed. Every byte read is checked, and at the end all resources must be freed.

use std::collections::{HashMap, VecDeque};

use crate::bed::Random;
use crate::common::{Client as Harness, bytes};
use braid_engine::ErrorKind;
use braid_nbd::client::{Negotiated, Pipeline, Replies};
use braid_nbd::codec::command;
use braid_nbd::memory::DiskBehaviour;
use braid_nbd::server::ServerConfig;

/// Bytes of the disk that each client uses alone.
const SHARE: u64 = 128 << 10;
const BLOCK: u64 = 512;

/// What the end of a request in flight does to the model.
struct Flight {
    range: (u64, u64),
    /// Expected values of a read; `None`: unknown.
    reads: Option<Vec<Option<u8>>>,
    write: Option<u8>,
}

/// A client's knowledge of its part of the disk: one value per block, `None` where a write failed.
struct Model {
    blocks: Vec<Option<u8>>,
    flights: HashMap<u16, Flight>,
    ended: u64,
    errors: u64,
}

impl Replies for Model {
    fn data(&mut self, slot: u16, at: u32, data: &[u8]) {
        let wanted = self.flights[&slot].reads.as_ref().expect("data for a read only");
        for (i, byte) in data.iter().enumerate() {
            if let Some(value) = wanted[(at as usize + i) / BLOCK as usize] {
                assert_eq!(*byte, value, "byte {} of slot {slot}", at as usize + i);
            }
        }
    }

    fn done(&mut self, slot: u16, result: Result<(), u32>) {
        let flight = self.flights.remove(&slot).expect("one answer for each request");
        self.ended += 1;
        match (result, flight.write) {
            (Ok(()), Some(value)) => self.blocks[range(flight.range)].fill(Some(value)),
            (Err(error), write) => {
                self.errors += 1;
                assert!(matches!(error, 5 | 12 | 28), "error {error}");
                if write.is_some() {
                    self.blocks[range(flight.range)].fill(None);
                }
            }
            _ => {}
        }
    }
}

fn range((from, to): (u64, u64)) -> std::ops::Range<usize> {
    from as usize..to as usize
}

struct Life {
    socket: usize,
    pipeline: Pipeline,
    model: Model,
    out: VecDeque<u8>,
    input: Vec<u8>,
    greeted: bool,
    structured: bool,
}

impl Life {
    fn begin(harness: &mut Harness, structured: bool, blocks: Vec<Option<u8>>) -> Life {
        let socket = harness.reconnect();
        let terms = Negotiated { structured, ..Negotiated::default() };
        let mut out = bytes("00000003");
        if structured {
            out.extend(bytes("'IHAVEOPT' 00000008 00000000"));
        }
        out.extend(bytes("'IHAVEOPT' 00000001 00000001 'a'"));
        let model = Model { blocks, flights: HashMap::new(), ended: 0, errors: 0 };
        let pipeline = Pipeline::new(48, &terms);
        Life { socket, pipeline, model, out: out.into(), input: Vec::new(), greeted: false, structured }
    }

    /// Sends a request, unless it would overlap one in flight.
    fn ask(&mut self, random: &mut Random, base: u64) {
        let blocks = SHARE / BLOCK;
        let len = if random.below(8) == 0 { 1 + random.below(blocks / 2) } else { 1 + random.below(12) };
        let from = random.below(blocks - len);
        let range = (from, from + len);
        if self.model.flights.values().any(|f| f.range.0 < range.1 && range.0 < f.range.1) {
            return;
        }
        let (kind, value) = match random.below(12) {
            0 => (command::FLUSH, None),
            1 => (command::CACHE, None),
            2 => (command::WRITE_ZEROES, Some(0)),
            3..7 => (command::WRITE, Some(random.next() as u8)),
            _ => (command::READ, None),
        };
        let (offset, bytes) = if kind == command::FLUSH { (0, 0) } else { (base + from * BLOCK, (len * BLOCK) as u32) };
        let Some((slot, header)) = self.pipeline.begin(kind, 0, offset, bytes) else { return };
        self.out.extend(header.iter());
        if kind == command::WRITE {
            self.out.extend(std::iter::repeat_n(value.unwrap(), bytes as usize));
        }
        let reads = (kind == command::READ).then(|| self.model.blocks[self::range(range)].to_vec());
        let range = if kind == command::FLUSH { (0, 0) } else { range };
        self.model.flights.insert(slot, Flight { range, reads, write: value });
    }

    fn take(&mut self, harness: &mut Harness) {
        self.input.extend(harness.host.take_output(self.socket));
        if !self.greeted {
            let len = 18 + if self.structured { 20 } else { 0 } + 10;
            if self.input.len() < len {
                return;
            }
            self.input.drain(..len);
            self.greeted = true;
        }
        let took = self.pipeline.feed(&self.input, &mut self.model).expect("the server keeps to the protocol");
        self.input.drain(..took);
    }
}

#[derive(Default, Debug)]
struct Counts {
    ended: u64,
    errors: u64,
    late: u64,
    vanished: u64,
    loans: u64,
}

fn live(seed: u64, counts: &mut Counts) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let lives = 1 + random.below(6) as usize;
    // From plenty of memory to barely enough for the connections and one long request.
    let arena = (lives + 1) * (96 << 10) + (128 << 10) + random.below(2 << 20) as usize / 4096 * 4096;
    let mut harness = Harness::with(ServerConfig::default(), arena);
    // The harness's own client stays idle.
    let idle = harness.socket;
    harness.host.disk.fill(0);
    let fresh = || vec![Some(0u8); (SHARE / BLOCK) as usize];
    let mut all: Vec<Life> = (0..lives).map(|k| Life::begin(&mut harness, k % 2 == 0, fresh())).collect();
    let mut late: Vec<u64> = Vec::new();
    let faults = random.below(3) == 0;
    harness.host.lends = random.below(2) == 0;
    harness.host.behaviour = DiskBehaviour::Held;
    for _ in 0..2000 {
        let k = random.below(lives as u64) as usize;
        match random.below(16) {
            0..5 => all[k].ask(&mut random, k as u64 * SHARE),
            5..9 => {
                let n = (1 + random.below(9000) as usize).min(all[k].out.len());
                let part: Vec<u8> = all[k].out.drain(..n).collect();
                harness.host.client_sends(all[k].socket, &part);
            }
            9 => {
                let window = [0, 1, 700, 30_000, usize::MAX][random.below(5) as usize];
                harness.host.client_takes(all[k].socket, window);
            }
            10 => harness.host.defer_io(),
            11..14 => {
                let fails = faults && random.below(10) == 0;
                let busy = fails && random.below(2) == 0;
                let result = if fails { Err(if busy { ErrorKind::TimedOut } else { ErrorKind::Io }) } else { Ok(()) };
                let tag = harness.host.finish_io(result, busy);
                late.extend(tag.filter(|_| busy));
            }
            14 => match random.below(20) {
                0 => harness.host.behaviour = DiskBehaviour::Busy,
                1 if faults && !all[k].model.flights.is_empty() => {
                    // The client vanishes: the blocks that it was writing are unknown, also to its successor.
                    harness.host.client_ends(all[k].socket);
                    all[k].out.clear();
                    counts.vanished += 1;
                    settle(&mut harness, &mut all);
                    let mut blocks = std::mem::take(&mut all[k].model.blocks);
                    for flight in all[k].model.flights.values().filter(|f| f.write.is_some()) {
                        blocks[range(flight.range)].fill(None);
                    }
                    all[k] = Life::begin(&mut harness, random.below(2) == 0, blocks);
                    harness.host.behaviour = DiskBehaviour::Held;
                }
                2..5 => {
                    // The engine releases a late buffer after the completion, never before.
                    harness.host.turn(&mut harness.server);
                    if let Some(tag) = late.pop() {
                        harness.server.released(&mut harness.host, tag);
                        counts.late += 1;
                    }
                }
                5 => harness.host.now_ns += random.below(1_500_000_000),
                _ => harness.host.behaviour = DiskBehaviour::Held,
            },
            _ => drop(harness.host.turn(&mut harness.server)),
        }
        all[k].take(&mut harness);
    }
    harness.host.turn(&mut harness.server);
    for tag in late {
        harness.server.released(&mut harness.host, tag);
        counts.late += 1;
    }
    // Without faults, every request is answered.
    settle(&mut harness, &mut all);
    for life in &mut all {
        let left = life.model.flights.len();
        assert_eq!(left, 0, "seed {seed}: not answered, {} bytes not taken in", harness.host.untaken(life.socket));
        counts.ended += life.model.ended;
        counts.errors += life.model.errors;
        harness.host.client_ends(life.socket);
    }
    harness.host.client_ends(idle);
    harness.run();
    let left = (harness.server.connections(), harness.host.used_bytes(), harness.host.lent());
    assert_eq!(left, (0, 0, 0), "seed {seed}");
    counts.loans += harness.host.loans();
}

/// Lets all requests in flight end.
fn settle(harness: &mut Harness, all: &mut [Life]) {
    harness.host.behaviour = DiskBehaviour::Prompt;
    for life in all.iter_mut() {
        harness.host.client_takes(life.socket, usize::MAX);
        let rest: Vec<u8> = life.out.drain(..).collect();
        harness.host.client_sends(life.socket, &rest);
    }
    for _ in 0..40 {
        harness.run();
        // A tick, for connections that nothing else wakes.
        harness.host.now_ns += 1_000_000_000;
        for life in all.iter_mut() {
            life.take(harness);
        }
    }
}

#[test]
fn many_seeds() {
    let mut counts = Counts::default();
    for seed in 1..=300 {
        live(seed, &mut counts);
    }
    println!("{counts:?}");
    assert!(counts.ended > 30_000 && counts.errors > 100 && counts.late > 20 && counts.vanished > 20, "{counts:?}");
    assert!(counts.loans > 100, "{counts:?}");
}
