//! Requests to volumes, from all shards: what clients ask, what they may be told, and what their reads find.

use braid_engine::Uuid;
use braid_engine::io::{Buf, Completion, DeviceId, ErrorKind, Flags, IoError, Op, Request};

use super::oracle::{Rule, fill, word_of, words_in};
use super::scene::{BLOCK, Life, Scene, Served};
use crate::content::{BLOCK_BYTES, SECTOR_BYTES};
use crate::edges::Edges;
use crate::host::Host;
use crate::world::World;

/// Most blocks of a request.
const BLOCKS_MAX: u64 = 300;
/// Requests that read everything, at a time.
const READS_MAX: usize = 12;
/// Who could not ask tries again after so many nanoseconds.
const AGAIN_NS: u64 = 200_000;

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    Client(u64),
    /// Somebody who reads all of it.
    Reader(u64),
}

/// A request that is under way.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub by: By,
    pub volume: Uuid,
    pub device: DeviceId,
    op: Op,
    flags: Flags,
    block: u64,
    blocks: u64,
    edges: Edges,
    start: u64,
    buf: Buf,
}

impl Asked {
    /// Bytes of memory.
    fn bytes(&self) -> usize {
        if matches!(self.op, Op::Read | Op::Write) { self.len() as usize } else { 0 }
    }

    /// Bytes of the volume.
    fn len(&self) -> u64 {
        self.blocks * BLOCK - (self.edges.skip + self.edges.cut) * SECTOR_BYTES as u64
    }

    /// Which sectors of its block number `k` it is about.
    fn sectors_of(&self, k: u64) -> u8 {
        self.edges.sectors_of(k, (self.block, self.blocks))
    }

    /// Its blocks, which sectors of each it is about, and where in its memory these are.
    fn parts(&self) -> impl Iterator<Item = (u64, u8, std::ops::Range<usize>)> + use<> {
        let asked = self.clone();
        let mut at = 0;
        (asked.block..asked.block + asked.blocks).map(move |k| {
            let sectors = asked.sectors_of(k);
            let from = at;
            at += sectors.count_ones() as usize * SECTOR_BYTES;
            (k, sectors, from..at)
        })
    }
}

impl Scene {
    /// Clients may ask for some more.
    pub fn refill(&mut self) {
        self.budget = self.rng.between(1, self.nature.requests);
        for client in std::mem::take(&mut self.sleeping) {
            let at = 1 + self.rng.below(AGAIN_NS);
            self.to_wake.push((client, at));
        }
    }

    /// A client asks for something, if there is anything that it may ask.
    pub fn wake(&mut self, client: u64, world: &mut World, host: &mut Host) {
        if self.quit {
            return;
        }
        let Some(left) = self.budget.checked_sub(1) else { return self.sleeping.push(client) };
        let open = |served: &Served| served.open;
        let all: Vec<Uuid> =
            self.known.values().filter(|k| k.served.as_ref().is_some_and(open)).map(|k| k.uuid).collect();
        if all.is_empty() {
            return self.sleeping.push(client);
        }
        self.budget = left;
        let uuid = *self.rng.pick(&all);
        let size = self.known[&uuid].served.as_ref().expect("just seen").blocks;
        let is_snapshot = self.known[&uuid].of.is_some();
        let crowd = self.rng.chance(self.nature.crowd);
        let blocks = match self.rng.below(10) {
            // Whole extents, so that some come free in a row, and runs of them.
            0..4 if self.nature.long => 64,
            4..6 if self.nature.long => 64 + self.rng.below(BLOCKS_MAX),
            0..7 => 1 + self.rng.below(4),
            _ if crowd => 1 + self.rng.below(20),
            7..9 => 1 + self.rng.below(70),
            _ => 1 + self.rng.below(BLOCKS_MAX),
        };
        let block = if crowd { self.rng.below(size.min(8)) } else { self.rng.below(size) };
        let aligned = self.rng.below(8) == 0 || self.nature.long && self.rng.coin();
        let block = if aligned { block / 64 * 64 } else { block };
        let blocks = blocks.min(size - block);
        let fua = if self.rng.chance(self.nature.fua) { Flags::FUA } else { Flags::NONE };
        let (flushes, zeroes) = (25 + self.nature.flushes, 25 + self.nature.flushes + self.nature.zeroes);
        let (op, flags) = match self.rng.below(100) {
            0..25 => (Op::Read, Flags::NONE),
            draw if draw < flushes => (Op::Flush, Flags::NONE),
            // Now and then somebody tries what is not allowed.
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
        if !self.ask(By::Client(client), uuid, shard, (op, flags), (block, blocks), world, host) {
            self.to_wake.push((client, AGAIN_NS));
        }
    }

    /// Asks for more of what is to be read as a whole.
    pub fn read_on(&mut self, world: &mut World, host: &mut Host) {
        let is_reader = |asked: &&Asked| matches!(asked.by, By::Reader(_));
        let mut left = READS_MAX.saturating_sub(self.asked.values().filter(is_reader).count());
        while left > 0
            && let Some((by, uuid, block, blocks)) = self.reads.pop_front()
        {
            left -= 1;
            let shard = self.rng.below(u64::from(self.shards)) as u16;
            if !self.ask(By::Reader(by), uuid, shard, (Op::Read, Flags::NONE), (block, blocks), world, host) {
                self.reads.push_front((by, uuid, block, blocks));
                return;
            }
        }
    }

    /// False: there was no room for it.
    #[allow(clippy::too_many_arguments)]
    fn ask(
        &mut self,
        by: By,
        uuid: Uuid,
        shard: u16,
        (op, flags): (Op, Flags),
        (block, blocks): (u64, u64),
        world: &mut World,
        host: &mut Host,
    ) -> bool {
        let Some(served) = self.known.get(&uuid).and_then(|known| known.served) else {
            self.wrong(|| format!("{uuid} is to be read, and is not served"));
            return false;
        };
        let start = self.tick();
        let edges = match &mut self.sectors {
            Some(rng) if op != Op::Flush && matches!(by, By::Client(_)) => Edges::draw(rng, blocks),
            _ => Edges::default(),
        };
        let mut asked =
            Asked { by, volume: uuid, device: served.device, op, flags, block, blocks, edges, start, buf: Buf::NONE };
        let bytes = asked.bytes();
        if bytes > 0 {
            let Some(buf) = world.memory.alloc(bytes) else { return false };
            asked.buf = buf;
        }
        self.requests += 1;
        let tag = self.requests;
        if op == Op::Write {
            let memory = world.memory.slice_mut(asked.buf, bytes);
            for (k, sectors, range) in asked.parts() {
                let mut whole = [0; BLOCK_BYTES];
                fill(word_of(tag, k), &mut whole);
                let from = sectors.trailing_zeros() as usize * SECTOR_BYTES;
                let len = range.len();
                memory[range].copy_from_slice(&whole[from..from + len]);
            }
        }
        let first = block * BLOCK + edges.skip * SECTOR_BYTES as u64;
        let (offset, len) = if op == Op::Flush { (0, 0) } else { (first, asked.len()) };
        let request = Request { device: served.device, op, flags, offset, len, buf: asked.buf, tag };
        if let Err(error) = host.submit(world, shard, &request) {
            self.count("refused", &format!("{:?}", error.kind));
            if bytes > 0 {
                world.memory.free(asked.buf, bytes);
            }
            if error.kind != ErrorKind::Busy && !self.may_fail(&asked, error) {
                self.wrong(|| format!("request {tag}, {op:?} {block}+{blocks} of {uuid}, was refused: {error}"));
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
        let known = self.known.get_mut(&uuid).expect("just seen");
        if !matches!(op, Op::Read | Op::Flush) && known.of.is_none() {
            for k in block..block + blocks {
                let word = if op == Op::Write { word_of(tag, k) } else { 0 };
                known.blocks[k as usize].begin(word, asked.sectors_of(k), start, op == Op::Discard);
            }
        }
        self.asked.insert(tag, asked);
        true
    }

    /// A request was answered.
    pub fn answered(&mut self, completion: &Completion, world: &mut World) {
        let tag = completion.tag;
        let Some(asked) = self.asked.remove(&tag) else {
            return self.wrong(|| format!("{completion:?} was not asked, or is answered twice"));
        };
        world.note(format_args!("request {tag} was answered: {:?}", completion.result));
        let end = self.tick();
        match completion.result {
            Err(error) => {
                self.count("errors", &format!("{:?}", error.kind));
                if !self.may_fail(&asked, error) {
                    let Asked { op, block, blocks, volume, .. } = asked;
                    self.wrong(|| format!("request {tag}, {op:?} {block}+{blocks} of {volume}, failed: {error}"));
                }
            }
            Ok(()) => self.succeeded(tag, &asked, end, completion.buffer_busy, world),
        }
        match asked.by {
            By::Client(client) => {
                let pause = self.rng.below(self.nature.think_ns) + 1;
                self.to_wake.push((client, pause));
            }
            // What can be read at another time is; a place that cannot be read at all stays unknown.
            By::Reader(by) if completion.result.is_err() && !self.nature.data_faults => {
                self.reads.push_back((by, asked.volume, asked.block, asked.blocks));
            }
            By::Reader(by) => *self.readings.entry(by).or_insert(1) -= 1,
        }
        if completion.buffer_busy {
            self.lent.insert(tag, asked);
        } else if asked.bytes() > 0 {
            world.memory.free(asked.buf, asked.bytes());
        }
    }

    /// No disk can use the memory of this one any more.
    pub fn released(&mut self, tag: u64, world: &mut World) {
        match self.lent.remove(&tag) {
            Some(asked) if asked.bytes() > 0 => world.memory.free(asked.buf, asked.bytes()),
            Some(_) => {}
            None => self.wrong(|| format!("memory of request {tag} is given back, which nobody has")),
        }
    }

    fn succeeded(&mut self, tag: u64, asked: &Asked, end: u64, is_busy: bool, world: &World) {
        let Asked { op, flags, block, blocks, start, volume, .. } = *asked;
        if op == Op::Flush || flags.has(Flags::FUA) {
            self.moments.push("what lasts is answered");
        }
        let oldest = self.asked.values().map(|asked| asked.start).min().unwrap_or(end);
        let Some(known) = self.known.get_mut(&volume) else {
            return self.wrong(|| format!("request {tag} was carried out on {volume}, which is gone"));
        };
        match op {
            Op::Read if is_busy => self.wrong(|| format!("request {tag} has read what a disk may yet change")),
            Op::Read => self.check_read(tag, asked, world),
            // Nothing of it was its to make durable.
            Op::Flush if known.of.is_some() => {}
            Op::Flush => known.blocks.iter_mut().for_each(|block| block.flushed(start)),
            _ if known.of.is_some() => self.wrong(|| format!("request {tag} has changed a snapshot")),
            _ => {
                let durable = flags.has(Flags::FUA);
                for block in &mut known.blocks[block as usize..(block + blocks) as usize] {
                    block.end(start, end, durable);
                    block.prune(oldest);
                }
            }
        }
    }

    fn check_read(&mut self, tag: u64, asked: &Asked, world: &World) {
        let known = self.known.get_mut(&asked.volume).expect("known");
        let bytes = world.memory.slice(asked.buf, asked.bytes());
        let until = known.until;
        let rule = Rule::Read(asked.start.min(until));
        for (k, sectors, range) in asked.parts() {
            let block = &mut known.blocks[k as usize];
            // What it has not read are zeros here, which nobody looks at.
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
                format!("request {tag}: block {k} of {} ({}) reads {why}: {block:x?}", known.names[0], known.uuid);
            return self.wrong(|| why);
        }
    }

    /// Whether this may have come of it.
    fn may_fail(&self, asked: &Asked, error: IoError) -> bool {
        let known = self.known.get(&asked.volume);
        let served = known.and_then(|known| known.served);
        let changes = !matches!(asked.op, Op::Read | Op::Flush);
        match error.kind {
            ErrorKind::NoSpace => {
                matches!(asked.op, Op::Write | Op::WriteZeroes) || self.nature.starves && asked.op != Op::Read
            }
            ErrorKind::NoDevice => served.is_none_or(|served| served.going || served.device != asked.device),
            ErrorKind::ReadOnly => known.is_some_and(|known| known.of.is_some()) && changes,
            ErrorKind::Unsupported => asked.flags.has(Flags::FAST_ZERO),
            // A disk of an array may keep the memory of a read; nobody else may fill it then.
            // So may a write in sectors, which reads first.
            ErrorKind::TimedOut
                if self.nature.faults
                    && (asked.op == Op::Read || asked.op != Op::Discard && !asked.edges.is_whole()) =>
            {
                true
            }
            ErrorKind::Io if self.nature.own_faults => true,
            // Nothing can be committed any more, nor can what needs that.
            ErrorKind::Failed => self.nature.own_faults && asked.op != Op::Read,
            ErrorKind::Io | ErrorKind::TimedOut => self.nature.data_faults && asked.op != Op::Flush,
            _ => false,
        }
    }

    /// Whether a request to this device is under way.
    pub fn is_asked(&self, device: DeviceId) -> bool {
        self.asked.values().any(|asked| asked.device == device)
    }

    /// Whether somebody reads all of it.
    pub fn is_being_read(&self, uuid: Uuid) -> bool {
        let reads = |asked: &Asked| asked.volume == uuid && matches!(asked.by, By::Reader(_));
        self.reads.iter().any(|(_, of, ..)| *of == uuid) || self.asked.values().any(reads)
    }

    /// Has all of it read, from all shards. Returns by which number it is known when that is done.
    pub fn read_all(&mut self, uuid: Uuid) -> u64 {
        let number = self.new_number();
        let size = self.known[&uuid].served.as_ref().map_or(0, |served| served.blocks);
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

    /// Volumes and snapshots that are there, and at which nobody else is.
    pub fn ready(&self, snapshots: bool) -> Vec<Uuid> {
        let all = self.known.values().filter(|k| k.of.is_some() == snapshots && k.life == Life::There && !k.busy);
        all.map(|known| known.uuid).collect()
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
