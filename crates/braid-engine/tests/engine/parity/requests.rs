//! The requests of a test, and their expected answers.

use braid_engine::*;

use super::rig::{BLOCK, PendingRequest, REQUESTS_BYTES, Random, Rig};
use super::unreadable::Expected;

impl Rig {
    /// Begins a FUA write to one of the arrays. The content does not matter.
    pub fn begin(&mut self, device: u32, offset: u64, len: u64) -> u64 {
        self.next += 1;
        self.pending.insert(self.next, PendingRequest { device, op: Op::Write, offset, len, buf: 0, expected: Ok(()) });
        let buf = Buf { addr: 0, region: Buf::UNREGISTERED };
        let device = DeviceId(device);
        let request = Request { device, op: Op::Write, flags: Flags::FUA, offset, len, buf, tag: self.next };
        let (shard, sink) = &mut self.shards[0];
        shard.submit(&request, sink).expect("room for a request");
        self.next
    }

    /// Runs until nothing moves. Returns whether this request was answered.
    pub fn ends(&mut self, tag: u64) -> bool {
        while self.step() {}
        !self.pending.contains_key(&tag)
    }

    /// Runs as far as possible.
    pub fn go_on(&mut self) {
        while self.step() {}
    }

    pub(super) fn take_done(&mut self) {
        for at in 0..self.shards.len() {
            let mut done = Vec::new();
            self.shards[at].0.swap_done(&mut done);
            for completion in done {
                let pending = self.pending.remove(&completion.tag).expect("answered once");
                let what = format!(
                    "{:?} of {}+{}, {}, roles {:?}",
                    pending.op, pending.offset, pending.len, self.run, self.roles
                );
                assert_eq!(completion.result.map_err(|error| error.kind), pending.expected, "{what}");
                if pending.expected.is_err() {
                    continue;
                }
                let range = pending.offset as usize..(pending.offset + pending.len) as usize;
                match pending.op {
                    Op::Read => {
                        let memory = self.memory.borrow();
                        let got = &memory[pending.buf as usize..][..pending.len as usize];
                        let wrong = got.iter().zip(&self.model[range]).position(|(a, b)| a != b);
                        assert_eq!(wrong, None, "{what}");
                    }
                    // After the answer the range may not be reported as a hole any more.
                    Op::Write if pending.device == 0 => {
                        self.check_no_hole(at, pending.offset, pending.len, &what);
                    }
                    Op::Write | Op::WriteZeroes | Op::Discard | Op::Flush => {}
                }
            }
        }
    }

    /// Begins a request. Returns its tag.
    pub fn submit(&mut self, shard: usize, op: Op, offset: u64, len: u64, flags: Flags) -> u64 {
        self.submit_expecting(shard, op, offset, len, flags, Ok(()));
        self.next
    }

    /// Returns whether a request has been answered.
    pub fn is_answered(&self, tag: u64) -> bool {
        !self.pending.contains_key(&tag)
    }

    pub(super) fn submit_expecting(
        &mut self,
        shard: usize,
        op: Op,
        offset: u64,
        len: u64,
        flags: Flags,
        expected: Result<(), ErrorKind>,
    ) {
        self.next += 1;
        let place = |slot: u64| slot * (REQUESTS_BYTES / 8);
        let is_free = |slot: &u64| self.pending.values().all(|pending| pending.buf != place(*slot));
        let buf = place((0..7).find(is_free).expect("memory for a request"));
        let tag = self.next;
        let range = offset as usize..(offset + len) as usize;
        match op {
            Op::Write => {
                let mut random = Random(tag);
                for byte in &mut self.memory.borrow_mut()[buf as usize..][..len as usize] {
                    *byte = random.below(256) as u8;
                }
                if expected.is_ok() {
                    self.model[range].copy_from_slice(&self.memory.borrow()[buf as usize..][..len as usize]);
                }
            }
            Op::WriteZeroes | Op::Discard if expected.is_ok() => {
                self.model[range].fill(0);
                if let Some(watch) = &mut self.watch {
                    watch.zeroed.extend(offset / BLOCK..(offset + len) / BLOCK);
                }
            }
            _ => {}
        }
        self.pending.insert(tag, PendingRequest { device: 0, op, offset, len, buf, expected });
        let buf = Buf { addr: buf, region: Buf::UNREGISTERED };
        let request = Request { device: DeviceId(0), op, flags, offset, len, buf, tag };
        let (shard, sink) = &mut self.shards[shard];
        shard.submit(&request, sink).expect("room for a request");
    }

    /// Runs a request to its end.
    pub fn run(&mut self, shard: usize, op: Op, offset: u64, len: u64, flags: Flags) -> Result<(), IoError> {
        let shard = shard % self.shards.len();
        self.submit(shard, op, offset, len, flags);
        self.settle();
        Ok(())
    }

    /// Writes every byte of the array once.
    pub fn write_all(&mut self) {
        let size = self.geometry.size_bytes();
        for at in (0..size).step_by(1 << 20) {
            self.submit(0, Op::Write, at, (size - at).min(1 << 20), Flags::NONE);
            self.settle();
        }
    }

    /// Makes random requests, some at a time; those in flight never overlap.
    pub fn requests(&mut self, count: u32) {
        let blocks = self.geometry.size_bytes() / BLOCK;
        for _ in 0..count {
            let (offset, len) = loop {
                let most = [1, 4, 20, 60][self.random.below(4) as usize];
                let len = 1 + self.random.below(most.min(blocks));
                let offset = match self.random.below(3) {
                    // Whole stripes are chosen more often than by chance.
                    0 => {
                        let stripe =
                            self.geometry.stripe(self.random.below(self.geometry.stripes())).expect("a stripe");
                        stripe.array_start / BLOCK
                    }
                    _ => self.random.below(blocks),
                };
                let len = match self.random.below(4) {
                    0 => self.stripe_bytes(0) / BLOCK,
                    _ => len,
                };
                let (offset, len) = (offset * BLOCK, len.min(blocks - offset) * BLOCK);
                let free = |a: &PendingRequest| a.offset + a.len <= offset || offset + len <= a.offset;
                if len > 0 && self.pending.values().all(free) {
                    break (offset, len);
                }
                self.step();
            };
            let op = match self.random.below(10) {
                0..5 => Op::Write,
                5..8 => Op::Read,
                8 => [Op::WriteZeroes, Op::Discard][self.random.below(2) as usize],
                _ => Op::Flush,
            };
            let flags = if op == Op::Write && self.random.below(5) == 0 { Flags::FUA } else { Flags::NONE };
            let (offset, len) = if op == Op::Flush { (0, 0) } else { (offset, len) };
            let shard = self.random.below(self.shards.len() as u64) as usize;
            match self.expected_of_lost(op, offset, len) {
                Expected::Nothing => drop(self.submit(shard, op, offset, len, flags)),
                // Some of a longer one may be written.
                Expected::Refusal if op == Op::Read || len == BLOCK => {
                    self.submit_expecting(shard, op, offset, len, flags, Err(ErrorKind::Unreadable));
                }
                Expected::Refusal => {}
            }
            while self.pending.len() > 6 || self.random.below(3) == 0 {
                if !self.step() {
                    assert!(self.pending.len() <= 6, "nothing moves");
                    break;
                }
            }
        }
    }

    /// Writes a part of the array in contiguous pieces, which are all submitted within one turn of the driver.
    pub fn stream(&mut self, shard: usize, offset: u64, pieces: &[u64]) {
        let pieces: Vec<_> = pieces.iter().map(|len| (*len, Ok(()))).collect();
        self.stream_expecting(shard, offset, &pieces);
    }

    /// Writes pieces as [`Rig::stream`] does, with the expected result of each.
    pub fn stream_expecting(&mut self, shard: usize, offset: u64, pieces: &[(u64, Result<(), ErrorKind>)]) {
        let mut at = offset;
        for (len, expected) in pieces {
            self.submit_expecting(shard, Op::Write, at, *len, Flags::NONE, *expected);
            at += len;
        }
        let (shard, sink) = &mut self.shards[shard];
        shard.end_turn(sink);
    }

    /// Writes a part of the array in pieces, each in a turn of the driver of its own.
    pub fn trickle(&mut self, shard: usize, offset: u64, pieces: &[u64]) {
        let mut at = offset;
        for len in pieces {
            self.submit(shard, Op::Write, at, *len, Flags::NONE);
            let (shard, sink) = &mut self.shards[shard];
            shard.end_turn(sink);
            at += len;
        }
    }

    /// Runs one completion of a disk. Returns whether something moved.
    pub fn settles_some(&mut self) -> bool {
        self.step()
    }

    /// Runs until nothing moves. Returns whether everything was answered.
    pub fn settles(&mut self) -> bool {
        while self.step() {}
        self.pending.is_empty()
    }

    /// Reads the whole array, piece by piece. Reported holes must be zeros.
    pub fn read_all(&mut self) {
        self.check_holes();
        let size = self.geometry.size_bytes();
        let pieces = [17 * BLOCK, 3 * BLOCK];
        let (mut at, mut turn) = (0, 0);
        while at < size {
            let len = pieces[turn % 2].min(size - at);
            self.submit(turn % self.shards.len(), Op::Read, at, len, Flags::NONE);
            self.settle();
            (at, turn) = (at + len, turn + 1);
        }
    }
}
