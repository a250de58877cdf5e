//! Time, randomness, disks and memory: everything outside the simulated process.
//!
//! The process submits I/Os here. [`World::next_event`] advances time to the next event that the process notices.

use std::collections::{BTreeMap, BTreeSet};

use braid_engine::io::{Buf, Cookie, ErrorKind, Flags, LeafError, LeafId, LeafIo, LeafResult, Op};
use braid_format::journal::RING_OFFSET_BYTES;

use crate::content::SECTOR_BYTES;
use crate::counters::Counters;
use crate::disk::{Profile, SimDisk, Survival};
use crate::memory::Memory;
use crate::meta::{Answer, TaskRequest};
use crate::queue::EventQueue;
use crate::rng::Rng;
use crate::trace::Trace;

/// The time limit of a leaf I/O, in nanoseconds.
pub const TIME_LIMIT_NS: u64 = 30_000_000_000;

/// How a crash ends a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// The machine loses power, and with it the caches of the disks.
    Power,
    /// The process is killed: its submitted I/Os land or not, and the disks continue.
    Kill,
}

/// An event that the process notices.
#[derive(Debug)]
pub enum WorldEvent {
    /// A leaf I/O of a shard completed.
    LeafDone(u16, Cookie, LeafResult),
    /// A leaf I/O of a shard exceeded its time limit.
    LeafLate(u16, Cookie),
    /// A late leaf I/O of a shard completed.
    LeafReturned(u16, Cookie),
    /// An I/O of a label procedure completed.
    MetaDone(u64, Answer),
    /// The oldest message from the first of these shards to the second is due for delivery.
    Deliver(u16, u16),
    /// The oldest message of the control plane in this shard's mailbox is due for delivery.
    Publish(u16),
    /// The driver of a shard has submitted everything it received.
    EndTurn(u16),
    /// The wake-up that was requested under this number is due.
    Wake(u64),
    /// The planned time of a crash has come.
    CrashPoint,
}

enum Event {
    Land(u64, usize),
    Answer(u64),
    Late(u64),
    Pass(WorldEvent),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    Shard(u16, Cookie),
    Meta(u64),
}

/// The memory of an I/O's data.
enum IoMemory {
    /// The arena of the process, behind the pieces of a leaf I/O.
    Arena,
    /// Memory of the kernel or of the label procedure.
    Own(Vec<u8>),
}

struct Running {
    disk: usize,
    io: LeafIo,
    owner: Owner,
    memory: IoMemory,
    /// Parts that have not landed: offset and length within the I/O.
    parts: Vec<Option<(u64, u64)>>,
    result: LeafResult,
    flush_begun: u64,
    late: bool,
}

/// Everything but the process.
pub struct World {
    /// Nanoseconds since the start of the run.
    pub now_ns: u64,
    /// Randomness of disks and delays.
    pub rng: Rng,
    /// The trace.
    pub trace: Trace,
    /// What was exercised.
    pub counters: Counters,
    /// All disks, plugged in or not.
    pub disks: Vec<SimDisk>,
    /// The disk of each leaf of the process.
    pub leaves: Vec<usize>,
    /// The memory of the process.
    pub memory: Memory,
    /// Number of durable steps since the start of the run. A durable step is an event that changes what a crash leaves
    /// on the disks.
    pub steps: u64,
    /// By disk that is or may become a member of a redundant array: the bytes of its bitmap, from the first byte to the
    /// end (exclusive).
    pub bitmaps: BTreeMap<usize, (u64, u64)>,
    /// By disk that is or may become a member of an array with parity: the bytes of its journal, likewise. The data
    /// area follows.
    pub journals: BTreeMap<usize, (u64, u64)>,
    /// Disks that may hold the journal of an array, and nothing else.
    pub journal_disks: BTreeSet<usize>,
    /// By disk, the first byte of its faulty part, which reaches to the end. I/Os that begin below that byte, and
    /// flushes, get no injected error and do not hang. Lack of space is injected regardless.
    pub spared: BTreeMap<usize, u64>,
    /// By disk: a byte, a virtual time in nanoseconds and a chance per million. Until that time, each write that begins
    /// below that byte fails with [`ErrorKind::NoSpace`] with that chance.
    pub starving: BTreeMap<usize, (u64, u64, u32)>,
    /// By disk, the offset in bytes of the journal batch written last.
    logged: BTreeMap<usize, u64>,
    /// The moments that have come since the event loop last took this list. A moment is a named point of execution,
    /// such as `writing bits`, at which a crash is likelier than elsewhere to reveal a bug. A planned crash may aim at
    /// a moment by its name.
    pub moments: Vec<&'static str>,
    /// The value of [`World::steps`] at which [`World::next_event`] reports [`WorldEvent::CrashPoint`]; `None`: it
    /// reports none by steps.
    pub crash_at_step: Option<u64>,
    queue: EventQueue<Event>,
    running: BTreeMap<u64, Running>,
    last_op: u64,
    crash_due: bool,
    faults: u64,
    /// An I/O has exceeded its time limit since the process started, or is about to.
    hung: bool,
}

impl World {
    /// Creates a world without disks.
    pub fn new(rng: Rng, trace: Trace, memory_bytes: usize) -> World {
        World {
            now_ns: 0,
            rng,
            trace,
            counters: Counters::default(),
            disks: Vec::new(),
            leaves: Vec::new(),
            memory: Memory::new(memory_bytes),
            steps: 0,
            bitmaps: BTreeMap::new(),
            journals: BTreeMap::new(),
            journal_disks: BTreeSet::new(),
            spared: BTreeMap::new(),
            starving: BTreeMap::new(),
            logged: BTreeMap::new(),
            moments: Vec::new(),
            crash_at_step: None,
            queue: EventQueue::default(),
            running: BTreeMap::new(),
            last_op: 0,
            crash_due: false,
            faults: 0,
            hung: false,
        }
    }

    /// Adds a disk. Returns its number.
    pub fn add_disk(&mut self, size_bytes: u64, junk: bool, profile: Profile) -> usize {
        let number = self.disks.len();
        self.disks.push(SimDisk::new(number as u64, size_bytes, junk, profile));
        number
    }

    /// Records an event in the trace.
    pub fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.event(self.now_ns, what);
    }

    /// Schedules an event `in_ns` nanoseconds from now.
    pub fn after(&mut self, in_ns: u64, what: WorldEvent) {
        self.queue.push(self.now_ns + in_ns, Event::Pass(what));
    }

    /// Schedules an event at a time that has not passed.
    pub fn at(&mut self, at_ns: u64, what: WorldEvent) {
        assert!(at_ns >= self.now_ns);
        self.queue.push(at_ns, Event::Pass(what));
    }

    /// Returns the number of I/Os in flight.
    pub fn in_flight(&self) -> usize {
        self.running.len()
    }

    /// Submits a leaf I/O of a shard.
    pub fn submit(&mut self, shard: u16, io: &LeafIo) {
        assert_eq!(io.cookie.0 >> 56, 0, "the top of a cookie is the driver's");
        self.start(Owner::Shard(shard, io.cookie), *io, IoMemory::Arena);
    }

    /// Executes a read or write of a shard within the call, if the disk supports that.
    pub fn at_once(&mut self, leaf: LeafId, op: Op, offset: u64, len: u64, buf: Buf) -> Option<LeafResult> {
        let index = self.leaves[leaf.0 as usize];
        let disk = &mut self.disks[index];
        if !disk.profile.instant || disk.gone {
            return None;
        }
        let io = LeafIo::simple(leaf, op, Flags::NONE, offset, len, buf, Cookie(0));
        let mut data = vec![0; len as usize];
        if op == Op::Read {
            if !disk.read(offset, &mut data) {
                return None;
            }
            self.memory.scatter(&io, 0, &data);
        } else {
            self.last_op += 1;
            self.memory.gather(&io, 0, &mut data);
            disk.land(self.last_op, offset, &data);
            disk.complete_write(self.last_op, offset, len as usize, true);
        }
        self.counters.add("at once", if op == Op::Read { "read" } else { "write" });
        self.note(format_args!("at once: disk {index} {op:?} {offset}+{len}"));
        if op == Op::Write {
            self.step();
        }
        Some(Ok(()))
    }

    /// Submits an I/O of a label procedure. Returns any other request.
    pub fn submit_meta(&mut self, id: u64, wanted: TaskRequest) -> Option<TaskRequest> {
        let (leaf, op, offset, data, fua) = match wanted {
            TaskRequest::Read(leaf, offset, len) => (leaf, Op::Read, offset, vec![0; len], false),
            TaskRequest::Write(leaf, offset, data, fua) => (leaf, Op::Write, offset, data, fua),
            TaskRequest::Flush(leaf) => (leaf, Op::Flush, 0, Vec::new(), false),
            other => return Some(other),
        };
        assert!(offset % 4096 == 0 && data.len() % 4096 == 0, "label I/O is in blocks of 4096 bytes");
        let io = LeafIo {
            leaf,
            op,
            flags: if fua { Flags::FUA } else { Flags::NONE },
            offset,
            len: data.len() as u64,
            buf: braid_engine::io::Buf::NONE,
            first_len: data.len() as u32,
            piece_len: 0,
            first_gap: 0,
            stride: 0,
            cookie: Cookie(0),
        };
        self.start(Owner::Meta(id), io, IoMemory::Own(data));
        None
    }

    fn start(&mut self, owner: Owner, io: LeafIo, memory: IoMemory) {
        self.last_op += 1;
        let op = self.last_op;
        let disk = self.leaves[io.leaf.0 as usize];
        self.note(format_args!("op {op} {owner:?} disk {disk} {:?} {:?} {}+{}", io.op, io.flags, io.offset, io.len));
        let size = self.disks[disk].size_bytes();
        assert!(io.offset + io.len <= size, "an I/O beyond the end of disk {disk}: {}+{} of {size}", io.offset, io.len);
        if let Some((first, end)) = self.bitmaps.get(&disk)
            && io.op == Op::Write
        {
            match owner {
                Owner::Shard(..) if (*first..*end).contains(&io.offset) => self.moments.push("writing bits"),
                Owner::Meta(_) if io.offset == 0 => self.moments.push("writing a label"),
                _ => {}
            }
        }
        if let Some((first, end)) = self.journals.get(&disk)
            && io.op == Op::Write
            && io.offset >= *first
        {
            let in_journal = io.offset < *end;
            match owner {
                Owner::Shard(..) if in_journal => {
                    self.moments.push("logging");
                    if self.journal_disks.contains(&disk) {
                        self.counters.add("journal", "logged on a disk of its own");
                    }
                    let before = self.logged.insert(disk, io.offset);
                    if io.offset == *first + RING_OFFSET_BYTES && before.is_some_and(|before| before > io.offset) {
                        self.counters.add("journal", "begins at the start of its ring again");
                    }
                }
                Owner::Shard(..) => self.moments.push("placing"),
                // A label copy is written there, too.
                Owner::Meta(_) if io.offset < *first + RING_OFFSET_BYTES => self.moments.push("writing a head"),
                Owner::Meta(_) => {
                    self.moments.push("recovering");
                    self.counters.add("journal", if in_journal { "logged again" } else { "replayed" });
                }
            }
        }
        let mut running = Running {
            disk,
            io,
            owner,
            memory,
            parts: Vec::new(),
            result: Ok(()),
            flush_begun: self.disks[disk].flush_begins(),
            late: false,
        };
        let mut takes = self.disks[disk].profile.latency_ns(&mut self.rng);
        if io.op == Op::Flush {
            takes *= self.disks[disk].profile.flush_factor;
        }
        if self.disks[disk].gone {
            running.result = Err(LeafError::of(ErrorKind::Gone));
            self.faults += 1;
            self.queue.push(self.now_ns + takes, Event::Answer(op));
            self.running.insert(op, running);
            return;
        }
        let mutates = matches!(io.op, Op::Write | Op::WriteZeroes | Op::Discard);
        let late = |r: &Running| r.late && r.disk == disk && matches!(r.owner, Owner::Meta(_)) && r.io.op == Op::Write;
        if matches!(owner, Owner::Meta(_)) && mutates && self.running.values().any(late) {
            // A label write that exceeded its time limit may still land. Until it completes, later label writes to this
            // disk fail: the late write could overwrite them.
            running.result = Err(LeafError::of(ErrorKind::TimedOut));
            self.queue.push(self.now_ns, Event::Answer(op));
            self.running.insert(op, running);
            return;
        }
        let wants_durable = io.op == Op::Flush || (io.op == Op::Write && io.flags.has(Flags::FUA));
        if wants_durable && self.disks[disk].flush_failed {
            // As the driver does: once a flush of a disk has failed, every flush and every write with FUA fails until
            // the disk is reopened.
            running.result = Err(LeafError::of(ErrorKind::FlushFailed));
            self.queue.push(self.now_ns, Event::Answer(op));
            self.running.insert(op, running);
            return;
        }
        let is_spared = |from: &u64| io.op == Op::Flush || io.offset < *from;
        let spared = self.spared.get(&disk).is_some_and(is_spared);
        let profile = self.disks[disk].profile;
        // Writes of shards hang three times as often as other I/Os: a late write may overwrite later data, a late read
        // changes nothing.
        let often = if mutates && matches!(owner, Owner::Shard(..)) { 3 } else { 1 };
        if mutates && self.disks[disk].lacks_space(io.offset, io.len) {
            running.result = Err(LeafError { kind: ErrorKind::NoSpace, errno: 28 });
            self.fault("no space");
        } else if io.op == Op::Write && self.starves(disk, io.offset) {
            running.result = Err(LeafError { kind: ErrorKind::NoSpace, errno: 28 });
            self.fault("no space for a pool's own");
        } else if spared {
            // No fault on this part of the disk.
        } else if io.flags.has(Flags::HAS_ALTERNATIVE) && self.rng.below(16) == 0 {
            running.result = Err(LeafError::of(ErrorKind::Slow));
            self.counters.add("fault", "slow read");
        } else if self.rng.chance(profile.hang.max((often * profile.hang).min(50_000))) {
            takes = TIME_LIMIT_NS + self.rng.below(TIME_LIMIT_NS);
            if io.op == Op::Read && matches!(owner, Owner::Shard(..)) && self.rng.coin() {
                // The connection to a server that does not reply was closed: the read fails at its time limit, and no
                // late reply can fill its buffer.
                takes = TIME_LIMIT_NS;
                self.hung = true;
                running.result = Err(LeafError::of(ErrorKind::TimedOut));
                self.fault("silence");
            } else {
                self.queue.push(self.now_ns + TIME_LIMIT_NS, Event::Late(op));
                self.hung = true;
                self.fault("hang");
            }
        } else {
            self.decide_result(&mut running);
        }
        self.cut_into_parts(&mut running);
        // Half of the I/Os that exceed their time limit also reach the disk only after it, and so after other I/Os.
        let least = if takes > TIME_LIMIT_NS && self.rng.coin() { TIME_LIMIT_NS } else { 0 };
        for part in 0..running.parts.len() {
            let at = self.now_ns + self.rng.between(least, takes);
            self.queue.push(at, Event::Land(op, part));
        }
        self.queue.push(self.now_ns + takes, Event::Answer(op));
        self.running.insert(op, running);
    }

    fn starves(&mut self, disk: usize, offset: u64) -> bool {
        let Some((before, until_ns, chance)) = self.starving.get(&disk).copied() else { return false };
        offset < before && self.now_ns < until_ns && self.rng.chance(chance)
    }

    fn decide_result(&mut self, running: &mut Running) {
        let profile = self.disks[running.disk].profile;
        let (chance, kind, name) = match running.io.op {
            Op::Read => (profile.read_error, ErrorKind::Io, "read error"),
            Op::Write | Op::WriteZeroes | Op::Discard => (profile.write_error, ErrorKind::Io, "write error"),
            Op::Flush => (profile.flush_error, ErrorKind::Io, "flush error"),
        };
        if self.rng.chance(chance) {
            running.result = Err(LeafError { kind, errno: 5 });
            self.fault(name);
        } else if running.io.op == Op::Read && self.rng.chance(profile.latent_error) {
            let sector = self.rng.below(running.io.len / SECTOR_BYTES as u64);
            self.disks[running.disk].make_unreadable(running.io.offset + sector * SECTOR_BYTES as u64);
            self.fault("latent error");
        }
    }

    /// Returns whether any disk failed since the process started.
    pub fn had_faults(&self) -> bool {
        self.faults > 0
    }

    /// Returns whether any I/O exceeded its time limit since the process started, or is about to.
    pub fn has_hung(&self) -> bool {
        self.hung
    }

    fn fault(&mut self, name: &str) {
        self.faults += 1;
        self.counters.add("fault", name);
        self.note(format_args!("fault: {name}"));
    }

    fn cut_into_parts(&mut self, running: &mut Running) {
        let (op, len) = (running.io.op, running.io.len);
        match op {
            Op::Flush => {}
            Op::Read => running.parts.push(Some((0, len))),
            Op::Write | Op::WriteZeroes | Op::Discard => {
                // A long write lands in several parts, in any order; each part lands atomically.
                let sectors = len / SECTOR_BYTES as u64;
                let mut at = 0;
                while at < sectors {
                    let rest = sectors - at;
                    let take =
                        if running.parts.len() < 3 && self.rng.coin() { self.rng.between(1, rest) } else { rest };
                    running.parts.push(Some((at * SECTOR_BYTES as u64, take * SECTOR_BYTES as u64)));
                    at += take;
                }
            }
        }
    }

    /// Advances time to the next event that the process notices; `None` if no event is left.
    pub fn next_event(&mut self) -> Option<WorldEvent> {
        loop {
            if std::mem::take(&mut self.crash_due) {
                return Some(WorldEvent::CrashPoint);
            }
            let (at_ns, event) = self.queue.pop()?;
            debug_assert!(at_ns >= self.now_ns);
            self.now_ns = at_ns;
            let noticed = match event {
                Event::Land(op, part) => {
                    self.land(op, part);
                    None
                }
                Event::Answer(op) => self.answer(op),
                Event::Late(op) => self.late(op),
                Event::Pass(happening) => Some(happening),
            };
            if noticed.is_some() {
                return noticed;
            }
        }
    }

    fn step(&mut self) {
        self.steps += 1;
        if self.crash_at_step == Some(self.steps) {
            self.crash_at_step = None;
            self.crash_due = true;
        }
    }

    fn land(&mut self, op: u64, part: usize) {
        let Some(running) = self.running.get_mut(&op) else { return };
        let Some((skip, len)) = running.parts[part].take() else { return };
        let disk = &mut self.disks[running.disk];
        let offset = running.io.offset + skip;
        if running.io.op == Op::Read {
            if running.result.is_ok() {
                let mut data = vec![0; len as usize];
                if !disk.read(offset, &mut data) {
                    running.result = Err(LeafError { kind: ErrorKind::Io, errno: 5 });
                    self.faults += 1;
                }
                match &mut running.memory {
                    IoMemory::Arena => self.memory.scatter(&running.io, skip, &data),
                    IoMemory::Own(own) => *own = data,
                }
            }
            return;
        }
        // A failed write may have landed in part.
        if running.result.is_err() && self.rng.coin() {
            return;
        }
        let mut data = vec![0; len as usize];
        match (running.io.op, &running.memory) {
            (Op::Write, IoMemory::Arena) => self.memory.gather(&running.io, skip, &mut data),
            (Op::Write, IoMemory::Own(own)) => data.copy_from_slice(&own[skip as usize..(skip + len) as usize]),
            // A disk may fill a discarded range with zeros, or leave it.
            (Op::Discard, _) if self.rng.coin() => return,
            _ => {}
        }
        disk.land(op, offset, &data);
        let disk = running.disk;
        self.note(format_args!("op {op} lands on disk {disk} {offset}+{len}"));
        self.step();
    }

    fn answer(&mut self, op: u64) -> Option<WorldEvent> {
        let mut running = self.running.remove(&op)?;
        let fua = running.io.flags.has(Flags::FUA);
        let disk = &mut self.disks[running.disk];
        match (running.io.op, running.result) {
            // The landed part of a failed write may still be flushed later.
            (Op::Write | Op::WriteZeroes | Op::Discard, result) => {
                disk.complete_write(op, running.io.offset, running.io.len as usize, fua && result.is_ok());
                if fua && result.is_ok() {
                    self.step();
                }
            }
            (Op::Flush, Ok(())) if disk.flush_failed => {
                // Another flush failed meanwhile: it is undefined which of the two reports the error.
                running.result = Err(LeafError::of(ErrorKind::FlushFailed));
            }
            (Op::Flush, Ok(())) => {
                disk.complete_flush(running.flush_begun);
                self.step();
            }
            (Op::Flush, Err(LeafError { kind: ErrorKind::Io, .. })) => disk.fail_flush(&mut self.rng),
            (Op::Flush, Err(_)) => {}
            (Op::Read, _) => {}
        }
        let result = running.result;
        self.note(format_args!("op {op} answered {result:?}"));
        match running.owner {
            Owner::Shard(shard, cookie) if running.late => Some(WorldEvent::LeafReturned(shard, cookie)),
            Owner::Shard(shard, cookie) => Some(WorldEvent::LeafDone(shard, cookie, result)),
            Owner::Meta(_) if running.late => None,
            Owner::Meta(id) => {
                let data = match &mut running.memory {
                    IoMemory::Own(data) if running.io.op == Op::Read => std::mem::take(data),
                    _ => Vec::new(),
                };
                Some(WorldEvent::MetaDone(id, result.map(|()| data)))
            }
        }
    }

    fn late(&mut self, op: u64) -> Option<WorldEvent> {
        let running = self.running.get_mut(&op)?;
        running.late = true;
        let owner = running.owner;
        if running.io.op == Op::Flush {
            // The result of a late flush is never reported.
            self.disks[running.disk].flush_failed = true;
        }
        self.note(format_args!("op {op} exceeds its time limit"));
        match owner {
            Owner::Shard(shard, cookie) => Some(WorldEvent::LeafLate(shard, cookie)),
            Owner::Meta(id) => Some(WorldEvent::MetaDone(id, Err(LeafError::of(ErrorKind::TimedOut)))),
        }
    }

    /// Returns whether the block at `offset` of a disk is being written, or was written and is not durable.
    pub fn is_under_way(&self, disk: usize, offset: u64) -> bool {
        let covers = |io: &LeafIo| io.op == Op::Write && (io.offset..io.offset + io.len).contains(&offset);
        self.disks[disk].is_under_way(offset) || self.running.values().any(|r| r.disk == disk && covers(&r.io))
    }

    /// Pulls a disk: its I/Os in flight fail, and its cache loses power.
    pub fn pull(&mut self, disk: usize) {
        self.fault("pull");
        self.note(format_args!("disk {disk} is pulled"));
        let ops: Vec<u64> = self.running.iter().filter(|(_, r)| r.disk == disk).map(|(op, _)| *op).collect();
        for op in ops {
            self.land_the_rest(op);
            let running = self.running.get_mut(&op).expect("listed just now");
            running.result = Err(LeafError::of(ErrorKind::Gone));
        }
        let survival = self.draw_survival();
        let lost = self.disks[disk].cut_power(survival, &mut self.rng);
        self.disks[disk].gone = true;
        self.note(format_args!("disk {disk} lost {lost} units"));
    }

    /// Returns whether an I/O is in flight on a leaf.
    pub fn is_busy(&self, leaf: LeafId) -> bool {
        let disk = self.leaves[leaf.0 as usize];
        self.running.values().any(|running| running.disk == disk)
    }

    /// Puts a pulled disk back, or reopens a present one, if no I/O is in flight on it. Returns whether it did.
    pub fn reopen(&mut self, leaf: LeafId) -> bool {
        let disk = self.leaves[leaf.0 as usize];
        if self.running.values().any(|running| running.disk == disk) {
            return false;
        }
        self.note(format_args!("disk {disk} is reopened"));
        self.disks[disk].gone = false;
        self.disks[disk].reopen(&mut self.rng);
        true
    }

    /// Lands each part of an I/O that will not complete normally, or drops it.
    fn land_the_rest(&mut self, op: u64) {
        for part in 0..self.running[&op].parts.len() {
            if self.running[&op].io.op != Op::Read && self.rng.coin() {
                self.land(op, part);
            } else if let Some(running) = self.running.get_mut(&op) {
                running.parts[part] = None;
            }
        }
    }

    fn draw_survival(&mut self) -> Survival {
        match self.rng.below(4) {
            0 => Survival::None,
            1 => Survival::All,
            _ => Survival::Some(self.rng.between(0, 1_000_000) as u32),
        }
    }

    /// Ends the process by a crash and drops its events.
    pub fn crash(&mut self, how: Crash) {
        self.note(format_args!("crash: {how:?}"));
        let ops: Vec<u64> = self.running.keys().copied().collect();
        for op in ops {
            self.land_the_rest(op);
        }
        let survival = self.draw_survival();
        let mut lost = 0;
        for disk in self.disks.iter_mut() {
            lost += match how {
                Crash::Power => disk.cut_power(survival, &mut self.rng),
                Crash::Kill => disk.reopen(&mut self.rng),
            };
        }
        self.note(format_args!("{lost} units lost, survival {survival:?}"));
        self.forget();
    }

    /// Ends the process by itself, which closes its files.
    pub fn leave(&mut self) {
        assert!(self.running.is_empty(), "the process ended with I/Os in flight");
        for disk in self.disks.iter_mut() {
            disk.reopen(&mut self.rng);
        }
        self.forget();
    }

    fn forget(&mut self) {
        self.running.clear();
        self.queue = EventQueue::default();
        self.memory.clear();
        self.leaves.clear();
        self.moments.clear();
        self.crash_due = false;
        (self.faults, self.hung) = (0, false);
    }

    /// Returns whether a failed flush or a pull made this leaf lose acknowledged writes.
    pub fn leaf_is_broken(&self, leaf: LeafId) -> bool {
        let disk = &self.disks[self.leaves[leaf.0 as usize]];
        disk.gone || disk.flush_failed
    }
}
