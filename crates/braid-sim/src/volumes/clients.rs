//! Requests to volumes from all shards: what clients request, which replies are allowed, and what their reads find.

use braid_engine::Uuid;
use braid_engine::io::{Buf, Completion, DeviceId, ErrorKind, Flags, IoError, Op, Request};

use super::oracle::{BLOCK, Rule, fill, word_of, words_in};
use super::request::{Issuer, PendingRequest};
use super::shared_state::{Lifecycle, Served, SharedState};
use crate::content::{BLOCK_BYTES, SECTOR_BYTES};
use crate::edges::Edges;
use crate::host::Host;
use crate::world::World;

/// Maximum number of blocks of a request.
const BLOCKS_MAX: u64 = 300;
/// Maximum number of concurrent requests that read a whole volume.
const READS_MAX: usize = 12;
/// A client whose request could not be submitted retries after this many nanoseconds.
const AGAIN_NS: u64 = 200_000;

impl SharedState {
    /// Lets clients make some more requests.
    pub fn refill_budget(&mut self) {
        self.budget = self.rng.between(1, self.parameters.requests);
        for client in std::mem::take(&mut self.sleeping) {
            let at = 1 + self.rng.below(AGAIN_NS);
            self.to_wake.push((client, at));
        }
    }

    /// Has a client make a request, if there is a volume for it.
    pub fn wake(&mut self, client: u64, world: &mut World, host: &mut Host) {
        if self.quit {
            return;
        }
        let Some(left) = self.budget.checked_sub(1) else { return self.sleeping.push(client) };
        let open = |served: &Served| served.open;
        let all: Vec<Uuid> =
            self.models.values().filter(|k| k.served.as_ref().is_some_and(open)).map(|k| k.uuid).collect();
        if all.is_empty() {
            return self.sleeping.push(client);
        }
        self.budget = left;
        let uuid = *self.rng.pick(&all);
        let size = self.models[&uuid].served.as_ref().expect("just seen").blocks;
        let is_snapshot = self.models[&uuid].snapshot_of.is_some();
        let crowd = self.rng.chance(self.parameters.crowd);
        let blocks = match self.rng.below(10) {
            // Whole extents, so that several consecutive ones are freed at once, and runs of them.
            0..4 if self.parameters.long => 64,
            4..6 if self.parameters.long => 64 + self.rng.below(BLOCKS_MAX),
            0..7 => 1 + self.rng.below(4),
            _ if crowd => 1 + self.rng.below(20),
            7..9 => 1 + self.rng.below(70),
            _ => 1 + self.rng.below(BLOCKS_MAX),
        };
        let block = if crowd { self.rng.below(size.min(8)) } else { self.rng.below(size) };
        let aligned = self.rng.below(8) == 0 || self.parameters.long && self.rng.coin();
        let block = if aligned { block / 64 * 64 } else { block };
        let blocks = blocks.min(size - block);
        let fua = if self.rng.chance(self.parameters.fua) { Flags::FUA } else { Flags::NONE };
        let (flushes, zeroes) = (25 + self.parameters.flushes, 25 + self.parameters.flushes + self.parameters.zeroes);
        let (op, flags) = match self.rng.below(100) {
            0..25 => (Op::Read, Flags::NONE),
            draw if draw < flushes => (Op::Flush, Flags::NONE),
            // Now and then a client tries what is not allowed.
            _ if is_snapshot && self.rng.below(10) > 0 => (Op::Read, Flags::NONE),
            draw if draw < zeroes => match self.rng.below(12) {
                0..5 => (Op::Discard, fua),
                5..9 => (Op::WriteZeroes, fua),
                9 => (Op::WriteZeroes, fua.with(Flags::FAST_ZERO)),
                _ => (Op::WriteZeroes, fua.with(Flags::NO_UNMAP)),
            },
            _ => (Op::Write, fua),
        };
        let shard = self.rng.below(u64::from(self.shards)) as u16;
        if !self.submit(Issuer::Client(client), uuid, shard, (op, flags), (block, blocks), world, host) {
            self.to_wake.push((client, AGAIN_NS));
        }
    }

    /// Submits more reads of whole volumes.
    pub fn submit_reads(&mut self, world: &mut World, host: &mut Host) {
        let is_reader = |pending: &&PendingRequest| matches!(pending.by, Issuer::Reader(_));
        let mut left = READS_MAX.saturating_sub(self.pending.values().filter(is_reader).count());
        while left > 0
            && let Some((by, uuid, block, blocks)) = self.reads.pop_front()
        {
            left -= 1;
            let shard = self.rng.below(u64::from(self.shards)) as u16;
            if !self.submit(Issuer::Reader(by), uuid, shard, (Op::Read, Flags::NONE), (block, blocks), world, host) {
                self.reads.push_front((by, uuid, block, blocks));
                return;
            }
        }
    }

    /// Submits a request. Returns `false` if there was no room for it.
    #[allow(clippy::too_many_arguments)]
    fn submit(
        &mut self,
        by: Issuer,
        uuid: Uuid,
        shard: u16,
        (op, flags): (Op, Flags),
        (block, blocks): (u64, u64),
        world: &mut World,
        host: &mut Host,
    ) -> bool {
        let Some(served) = self.models.get(&uuid).and_then(|model| model.served) else {
            self.set_violation(|| format!("{uuid} is to be read, and is not served"));
            return false;
        };
        let start = self.tick();
        let edges = match &mut self.sectors {
            Some(rng) if op != Op::Flush && matches!(by, Issuer::Client(_)) => Edges::draw(rng, blocks),
            _ => Edges::default(),
        };
        let mut pending = PendingRequest {
            by,
            volume: uuid,
            device: served.device,
            op,
            flags,
            block,
            blocks,
            edges,
            start,
            buf: Buf::NONE,
        };
        let bytes = pending.bytes();
        if bytes > 0 {
            let Some(buf) = world.memory.alloc(bytes) else { return false };
            pending.buf = buf;
        }
        self.requests += 1;
        let tag = self.requests;
        if op == Op::Write {
            let memory = world.memory.slice_mut(pending.buf, bytes);
            for (k, sectors, range) in pending.parts() {
                let mut whole = [0; BLOCK_BYTES];
                fill(word_of(tag, k), &mut whole);
                let from = sectors.trailing_zeros() as usize * SECTOR_BYTES;
                let len = range.len();
                memory[range].copy_from_slice(&whole[from..from + len]);
            }
        }
        let first = block * BLOCK + edges.skip * SECTOR_BYTES as u64;
        let (offset, len) = if op == Op::Flush { (0, 0) } else { (first, pending.len()) };
        let request = Request { device: served.device, op, flags, offset, len, buf: pending.buf, tag };
        if let Err(error) = host.submit(world, shard, &request) {
            self.count("refused", &format!("{:?}", error.kind));
            if bytes > 0 {
                world.memory.free(pending.buf, bytes);
            }
            if error.kind != ErrorKind::Busy && !self.may_fail(&pending, error) {
                self.set_violation(|| {
                    format!("request {tag}, {op:?} {block}+{blocks} of {uuid}, was refused: {error}")
                });
            }
            return false;
        }
        world.note(format_args!(
            "request {tag} of {by:?} to {uuid}, shard {shard}: {op:?} {flags:?} {block}+{blocks} {edges:?}"
        ));
        self.count("ops", name_of(op, flags));
        if !edges.is_whole() {
            self.count("ops", &format!("{}, in sectors", name_of(op, flags)));
        }
        if op == Op::Flush || flags.has(Flags::FUA) {
            self.moments.push("asking for what lasts");
        }
        let model = self.models.get_mut(&uuid).expect("just seen");
        if !matches!(op, Op::Read | Op::Flush) && model.snapshot_of.is_none() {
            for k in block..block + blocks {
                let word = if op == Op::Write { word_of(tag, k) } else { 0 };
                model.blocks[k as usize].begin(word, pending.sectors_of(k), start, op == Op::Discard);
            }
        }
        self.pending.insert(tag, pending);
        true
    }

    /// Handles the reply to a request.
    pub fn answered(&mut self, completion: &Completion, world: &mut World) {
        let tag = completion.tag;
        let Some(pending) = self.pending.remove(&tag) else {
            return self.set_violation(|| format!("{completion:?} was not asked, or is answered twice"));
        };
        world.note(format_args!("request {tag} was answered: {:?}", completion.result));
        let end = self.tick();
        match completion.result {
            Err(error) => {
                self.count("errors", &format!("{:?}", error.kind));
                if !self.may_fail(&pending, error) {
                    let PendingRequest { op, block, blocks, volume, .. } = pending;
                    self.set_violation(|| {
                        format!("request {tag}, {op:?} {block}+{blocks} of {volume}, failed: {error}")
                    });
                }
            }
            Ok(()) => self.succeeded(tag, &pending, end, completion.buffer_busy, world),
        }
        match pending.by {
            Issuer::Client(client) => {
                let pause = self.rng.below(self.parameters.think_ns) + 1;
                self.to_wake.push((client, pause));
            }
            // A read that may succeed later is repeated. A place that cannot be read at all stays unknown.
            Issuer::Reader(by) if completion.result.is_err() && !self.parameters.data_faults => {
                self.reads.push_back((by, pending.volume, pending.block, pending.blocks));
            }
            Issuer::Reader(by) => *self.readings.entry(by).or_insert(1) -= 1,
        }
        if completion.buffer_busy {
            self.lent.insert(tag, pending);
        } else if pending.bytes() > 0 {
            world.memory.free(pending.buf, pending.bytes());
        }
    }

    /// Frees the memory of a request: no disk can use it any more.
    pub fn released(&mut self, tag: u64, world: &mut World) {
        match self.lent.remove(&tag) {
            Some(pending) if pending.bytes() > 0 => world.memory.free(pending.buf, pending.bytes()),
            Some(_) => {}
            None => self.set_violation(|| format!("memory of request {tag} is given back, which nobody has")),
        }
    }

    fn succeeded(&mut self, tag: u64, pending: &PendingRequest, end: u64, is_busy: bool, world: &World) {
        let PendingRequest { op, flags, block, blocks, start, volume, .. } = *pending;
        if op == Op::Flush || flags.has(Flags::FUA) {
            self.moments.push("what lasts is answered");
        }
        let oldest = self.pending.values().map(|pending| pending.start).min().unwrap_or(end);
        let Some(model) = self.models.get_mut(&volume) else {
            return self.set_violation(|| format!("request {tag} was carried out on {volume}, which is gone"));
        };
        match op {
            Op::Read if is_busy => self.set_violation(|| format!("request {tag} has read what a disk may yet change")),
            Op::Read => self.check_read(tag, pending, world),
            // A snapshot's flush has nothing to make durable.
            Op::Flush if model.snapshot_of.is_some() => {}
            Op::Flush => model.blocks.iter_mut().for_each(|block| block.flushed(start)),
            _ if model.snapshot_of.is_some() => self.set_violation(|| format!("request {tag} has changed a snapshot")),
            _ => {
                let durable = flags.has(Flags::FUA);
                for block in &mut model.blocks[block as usize..(block + blocks) as usize] {
                    block.end(start, end, durable);
                    block.prune(oldest);
                }
            }
        }
    }

    fn check_read(&mut self, tag: u64, pending: &PendingRequest, world: &World) {
        let model = self.models.get_mut(&pending.volume).expect("known");
        let bytes = world.memory.slice(pending.buf, pending.bytes());
        let until = model.until;
        let rule = Rule::Read(pending.start.min(until));
        for (k, sectors, range) in pending.parts() {
            let block = &mut model.blocks[k as usize];
            // The sectors outside the request are zeros here, and are not checked.
            let mut whole = [0; BLOCK_BYTES];
            let from = sectors.trailing_zeros() as usize * SECTOR_BYTES;
            whole[from..from + range.len()].copy_from_slice(&bytes[range]);
            let why = match words_in(&whole) {
                Err((sector, found)) => format!("in sector {sector} what nobody wrote there, {found:x}"),
                Ok(words) => match block.wrong_sector(sectors, until, rule, &words) {
                    Some(sector) => format!("in sector {sector} as {:x}", words[sector]),
                    None => {
                        if sectors == u8::MAX {
                            block.was_read(&words);
                        }
                        continue;
                    }
                },
            };
            let why =
                format!("request {tag}: block {k} of {} ({}) reads {why}: {block:x?}", model.names[0], model.uuid);
            return self.set_violation(|| why);
        }
    }

    /// Returns whether the request may have failed with this error.
    fn may_fail(&self, pending: &PendingRequest, error: IoError) -> bool {
        let model = self.models.get(&pending.volume);
        let served = model.and_then(|model| model.served);
        let changes = !matches!(pending.op, Op::Read | Op::Flush);
        match error.kind {
            ErrorKind::NoSpace => {
                matches!(pending.op, Op::Write | Op::WriteZeroes) || self.parameters.starves && pending.op != Op::Read
            }
            ErrorKind::NoDevice => served.is_none_or(|served| served.going || served.device != pending.device),
            ErrorKind::ReadOnly => model.is_some_and(|model| model.snapshot_of.is_some()) && changes,
            ErrorKind::Unsupported => pending.flags.has(Flags::FAST_ZERO),
            // A disk of an array may keep the memory of a read: no other disk may fill it then. The same holds for a
            // partial write, which reads first.
            ErrorKind::TimedOut
                if self.parameters.faults
                    && (pending.op == Op::Read || pending.op != Op::Discard && !pending.edges.is_whole()) =>
            {
                true
            }
            ErrorKind::Io if self.parameters.own_faults => true,
            // Nothing can be committed any more: requests that need a commit fail.
            ErrorKind::Failed => self.parameters.own_faults && pending.op != Op::Read,
            ErrorKind::Io | ErrorKind::TimedOut => self.parameters.data_faults && pending.op != Op::Flush,
            _ => false,
        }
    }

    /// Returns whether a request to this device is in flight.
    pub fn has_pending(&self, device: DeviceId) -> bool {
        self.pending.values().any(|pending| pending.device == device)
    }

    /// Returns whether a read of the whole volume is in flight.
    pub fn is_being_read(&self, uuid: Uuid) -> bool {
        let reads = |pending: &PendingRequest| pending.volume == uuid && matches!(pending.by, Issuer::Reader(_));
        self.reads.iter().any(|(_, of, ..)| *of == uuid) || self.pending.values().any(reads)
    }

    /// Starts a read of the whole volume from all shards. Returns the number of the read.
    pub fn read_all(&mut self, uuid: Uuid) -> u64 {
        let number = self.new_number();
        let size = self.models[&uuid].served.as_ref().map_or(0, |served| served.blocks);
        let mut at = 0;
        let mut parts = 0;
        while at < size {
            let blocks = (1 + self.rng.below(256)).min(size - at);
            self.reads.push_back((number, uuid, at, blocks));
            (at, parts) = (at + blocks, parts + 1);
        }
        self.readings.insert(number, parts);
        number
    }

    /// Returns the volumes or snapshots that exist and that no administrator is using.
    pub fn ready(&self, snapshots: bool) -> Vec<Uuid> {
        let all = self
            .models
            .values()
            .filter(|k| k.snapshot_of.is_some() == snapshots && k.lifecycle == Lifecycle::Exists && !k.busy);
        all.map(|model| model.uuid).collect()
    }
}

fn name_of(op: Op, flags: Flags) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write if flags.has(Flags::FUA) => "write with FUA",
        Op::Write => "write",
        Op::WriteZeroes if flags.has(Flags::NO_UNMAP) => "write zeroes, allocated",
        Op::WriteZeroes => "write zeroes",
        Op::Discard => "discard",
        Op::Flush => "flush",
    }
}
