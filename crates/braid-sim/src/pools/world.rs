//! One run: a pool in use, crashes, and what is asked of it afterwards.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use braid_engine::Uuid;
use braid_engine::pool::{
    AdminError, BUFFERS, Discarded, EXTENT_BYTES, Folded, Found, Placement, Pool, PoolDevice, PoolIo, PoolMemory,
    PoolOp, Reservation, TailMemory, VolumeId,
};
use braid_format::pool::{Owner, OwnerKind, OwnerName, Placing};

use super::disk::Disk;
use super::oracle::{Block, Change, Rule};
use crate::rng::{Rng, mix};

const BLOCK: u64 = 4096;
/// The most blocks of a volume.
pub(super) const VOLUME_BLOCKS_MAX: u64 = 64 * 12;

/// How runs are made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Steps of a life, about.
    pub steps: u64,
    /// Lives.
    pub lives: u32,
    /// Print what happens.
    pub trace: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { steps: 400, lives: 5, trace: false }
    }
}

/// What happened, in numbers.
#[derive(Clone, Default, Debug)]
pub struct Counters(pub BTreeMap<&'static str, u64>);

impl Counters {
    /// One more of these.
    pub fn add(&mut self, what: &'static str, count: u64) {
        *self.0.entry(what).or_default() += count;
    }

    /// Adds another run's.
    pub fn merge(&mut self, other: &Counters) {
        other.0.iter().for_each(|(what, count)| self.add(what, *count));
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (what, count) in &self.0 {
            write!(f, "{}{what} {count}", if first { "" } else { ", " })?;
            first = false;
        }
        Ok(())
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What happened.
    pub counters: Counters,
    /// Of everything that happened: the same for the same seed.
    pub hash: u64,
    /// What must not be.
    pub violation: Option<String>,
}

/// Memory that survives a kill.
pub(super) struct Shm(Box<[AtomicU64]>);

impl Shm {
    pub fn new(bytes: u64) -> Arc<Shm> {
        Arc::new(Shm((0..bytes / 8).map(|_| AtomicU64::new(0)).collect()))
    }
}

impl TailMemory for Shm {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

pub(super) struct Memory(Vec<Vec<u8>>);

impl PoolMemory for Memory {
    fn buffer(&mut self, index: u32) -> &mut [u8] {
        &mut self.0[index as usize]
    }
}

/// A volume or snapshot as whoever uses it knows it.
pub(super) struct Known {
    pub name: String,
    pub uuid: Uuid,
    /// `None`: a volume. Else the volume that it was taken of.
    pub of: Option<Uuid>,
    pub blocks: Vec<Block>,
    /// Changes that began before this count: snapshots see nothing later.
    pub until: u64,
    pub life: Life,
    pub served: Option<VolumeId>,
}

/// Where it is in its life.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Life {
    /// Asked for; not acknowledged.
    Coming,
    There,
    /// To be deleted; not acknowledged.
    Going,
    /// To become what a snapshot is; not acknowledged. What it would be.
    Turning(Vec<Block>),
}

/// What an administrative call waits for.
struct Asked {
    /// Those concerned.
    what: Vec<Uuid>,
    wait: Wait,
}

enum Wait {
    /// Whoever had begun before has to end.
    Drain(Vec<u64>),
    Commit(u64),
}

/// A request of a user.
struct Job {
    id: u64,
    volume: Uuid,
    served: VolumeId,
    block: u64,
    count: u64,
    start: u64,
    kind: JobKind,
    /// Its range is held.
    locked: bool,
}

enum JobKind {
    /// I/Os of this step that are out, reservations to bind when all have ended, the next block.
    Write {
        out: u32,
        bind: Vec<Reservation>,
        cursor: u64,
        fua: bool,
        commit: Option<u64>,
        failed: bool,
    },
    Read {
        out: u32,
    },
    Flush {
        commit: u64,
    },
}

/// An I/O that is out.
enum Io {
    Pool { io: PoolIo, data: Vec<u8>, mark: u64 },
    Write { job: u64, member: usize, offset: u64, words: Vec<u64>, fails: bool },
    Read { job: u64, member: usize, offset: u64, block: u64, count: u64 },
}

/// See the module's page.
pub struct World {
    pub(super) rng: Rng,
    pub(super) disks: Vec<Disk>,
    pub(super) devices: Vec<PoolDevice>,
    pub(super) uuid: Uuid,
    pub(super) owner_slots: u32,
    pub(super) shm: BTreeMap<u64, Arc<Shm>>,
    pub(super) pool: Option<Pool>,
    memory: Memory,
    pub(super) known: BTreeMap<Uuid, Known>,
    asked: Vec<Asked>,
    jobs: Vec<Job>,
    ios: Vec<Io>,
    barrier: Option<(u64, Vec<u64>)>,
    pub(super) now: u64,
    names: u64,
    next_job: u64,
    pub(super) survives: u32,
    io_fails: u32,
    pub(super) counters: Counters,
    hash: u64,
    pub(super) trace: bool,
}

pub(super) type Check = Result<(), String>;

impl World {
    fn new(seed: u64, options: &Options) -> World {
        let mut rng = Rng::new(seed);
        let members = 1 + rng.index(3);
        let owner_slots = 32;
        let mut devices = Vec::new();
        let mut disks = Vec::new();
        for number in 0..members {
            let extents = rng.between(20, 90) as u32;
            let zero_slots = 128 - extents % 128;
            let ring_blocks = *rng.pick(&[80u64, 96, 160]);
            let starts = BLOCK;
            let ring = starts + 2 * BLOCK;
            let owners = ring + ring_blocks * BLOCK;
            let table = owners + u64::from(owner_slots) * 256;
            let records = u64::from(extents + zero_slots);
            let addresses = table + records * 32;
            let data = (addresses + u64::from(extents) * 512).next_multiple_of(EXTENT_BYTES);
            devices.push(PoolDevice {
                device: braid_engine::DeviceId(number as u32),
                places: braid_engine::pool::MemberPlaces { starts, owners, table, addresses, data },
                ring: (ring, ring_blocks),
                extents,
                zero_slots,
            });
            disks.push(Disk::new(data, u64::from(extents) * 64));
        }
        let survives = *rng.pick(&[0, 100_000, 500_000, 900_000]);
        let io_fails = if rng.chance(200_000) { 20_000 } else { 0 };
        World {
            rng,
            disks,
            devices,
            uuid: Uuid::from_u128(0x1234_5678_9abc),
            owner_slots,
            shm: BTreeMap::new(),
            pool: None,
            memory: Memory((0..BUFFERS).map(|_| vec![0; 65_536]).collect()),
            known: BTreeMap::new(),
            asked: Vec::new(),
            jobs: Vec::new(),
            ios: Vec::new(),
            barrier: None,
            now: 1,
            names: 0,
            next_job: 0,
            survives,
            io_fails,
            counters: Counters::default(),
            hash: seed,
            trace: options.trace,
        }
    }

    pub(super) fn note(&mut self, what: impl FnOnce() -> String, number: u64) {
        self.hash = mix(self.hash ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.now);
        if self.trace {
            println!("{:6} {}", self.now, what());
        }
    }

    pub(super) fn count(&mut self, what: &'static str) {
        self.counters.add(what, 1);
    }

    pub(super) fn pool(&mut self) -> &mut Pool {
        self.pool.as_mut().expect("the pool is open")
    }

    fn step(&mut self) -> Check {
        self.now += 1;
        self.pump();
        match self.rng.below(100) {
            0..38 if !self.ios.is_empty() => self.end_io()?,
            0..62 if self.jobs.len() < 12 => self.begin_job()?,
            62..66 => self.fold(),
            66..76 => self.administer(),
            76..80 => self.barrier_ends(),
            80..83 => {
                self.pool().commit_if_due();
                if self.rng.chance(200_000) {
                    self.pool().request_checkpoint();
                }
            }
            _ if !self.ios.is_empty() => self.end_io()?,
            _ => {}
        }
        self.go_on()
    }

    /// Takes what the pool wants done.
    fn pump(&mut self) {
        while let Some(io) = self.pool.as_mut().expect("open").next_io(&mut self.memory) {
            let data = match io.op {
                PoolOp::Write { buffer } => self.memory.buffer(buffer)[..io.len as usize].to_vec(),
                _ => Vec::new(),
            };
            let mark = self.disks[usize::from(io.member)].mark();
            self.note(|| format!("pool wants {io:?}"), u64::from(io.token) ^ io.offset);
            self.ios.push(Io::Pool { io, data, mark });
        }
        if self.barrier.is_none()
            && let Some(number) = self.pool().next_barrier()
        {
            let out = self.jobs.iter().map(|job| job.id).collect();
            self.barrier = Some((number, out));
        }
    }

    fn barrier_ends(&mut self) {
        if let Some((number, out)) = &self.barrier
            && !self.jobs.iter().any(|job| out.contains(&job.id))
        {
            let number = *number;
            self.barrier = None;
            self.pool().barrier_done(number);
            self.count("barriers");
        }
    }

    fn end_io(&mut self) -> Check {
        let at = self.rng.index(self.ios.len());
        let io = self.ios.swap_remove(at);
        match io {
            Io::Pool { io, data, mark } => {
                let disk = &mut self.disks[usize::from(io.member)];
                match io.op {
                    PoolOp::Flush => disk.flushed(mark),
                    PoolOp::Write { .. } => disk.write(io.offset, &data),
                    PoolOp::Discard => {
                        for k in 0..64 {
                            // Nobody may depend on what a discard leaves.
                            disk.set_block(io.offset + k * BLOCK, 0xdead);
                        }
                    }
                }
                self.note(|| format!("pool's {io:?} has ended"), u64::from(io.token));
                let before = self.pool().commits_done();
                self.pool().io_done(io.token, true);
                let commits = self.pool().commits_done() - before;
                self.counters.add("commits", commits);
            }
            Io::Write { job, member, offset, words, fails } => {
                for (k, word) in (0..).zip(&words) {
                    if !fails || self.rng.coin() {
                        self.disks[member].set_block(offset + k * BLOCK, *word);
                    }
                }
                self.note(|| format!("write of job {job} at {member}:{offset} has ended"), job);
                self.write_ended(job, fails);
            }
            Io::Read { job, member, offset, block, count } => {
                let words: Vec<u64> = (0..count).map(|k| self.disks[member].block(offset + k * BLOCK)).collect();
                self.note(|| format!("read of job {job} at {member}:{offset} has ended"), job);
                let job = self.jobs.iter_mut().find(|other| other.id == job).expect("a job whose I/O is out");
                if let JobKind::Read { out } = &mut job.kind {
                    *out -= 1;
                }
                let (volume, start) = (job.volume, job.start);
                self.check_read(volume, start, block, &words)?;
            }
        }
        Ok(())
    }

    fn check_read(&mut self, volume: Uuid, start: u64, block: u64, words: &[u64]) -> Check {
        let known = &self.known[&volume];
        for (k, word) in (block..).zip(words) {
            let allowed = known.blocks[k as usize].admissible(known.until.min(self.now), Rule::Read(start));
            if !allowed.contains(word) {
                return Err(format!("block {k} of {} reads as {word:x}, not one of {allowed:x?}", known.name));
            }
        }
        Ok(())
    }

    fn is_locked(&self, volume: Uuid, block: u64, count: u64) -> bool {
        let meets = |job: &Job| job.volume == volume && block < job.block + job.count && job.block < block + count;
        self.jobs.iter().any(|job| job.locked && meets(job))
    }

    fn begin_job(&mut self) -> Check {
        let served: Vec<Uuid> = self
            .known
            .values()
            .filter(|known| known.served.is_some() && matches!(known.life, Life::There))
            .map(|known| known.uuid)
            .collect();
        if served.is_empty() {
            return Ok(());
        }
        let volume = *self.rng.pick(&served);
        let known = &self.known[&volume];
        let (size, is_snapshot) = (known.blocks.len() as u64, known.of.is_some());
        let served = known.served.expect("just seen");
        let block = self.rng.below(size);
        let count = match self.rng.below(10) {
            0..6 => 1 + self.rng.below(4),
            6..9 => 1 + self.rng.below(70),
            _ => 1 + self.rng.below(300),
        };
        let (block, count) = match self.rng.below(8) {
            // Whole extents come, too.
            0 => (block / 64 * 64, count.next_multiple_of(64)),
            _ => (block, count),
        };
        let count = count.min(size - block);
        match self.rng.below(100) {
            0..30 => self.begin_read(volume, served, block, count),
            30..36 => {
                let commit = self.pool().request_commit();
                self.add_job(volume, served, 0, 0, JobKind::Flush { commit }, false);
                self.count("flushes");
                Ok(())
            }
            _ if is_snapshot => self.begin_read(volume, served, block, count),
            36..50 => self.discard(volume, served, block, count),
            _ => {
                self.begin_write(volume, served, block, count.min(90));
                Ok(())
            }
        }
    }

    fn add_job(&mut self, volume: Uuid, served: VolumeId, block: u64, count: u64, kind: JobKind, locked: bool) -> u64 {
        self.next_job += 1;
        let (id, start) = (self.next_job, self.now);
        self.jobs.push(Job { id, volume, served, block, count, start, kind, locked });
        id
    }

    fn begin_read(&mut self, volume: Uuid, served: VolumeId, block: u64, count: u64) -> Check {
        let job = self.add_job(volume, served, block, count, JobKind::Read { out: 0 }, false);
        let pool = self.pool.as_ref().expect("open");
        let shared = Arc::clone(pool.volume(served).expect("served"));
        let records = Arc::clone(&pool.shared().records);
        let mut at = block;
        let mut out = 0;
        while at < block + count {
            match shared.map.find(&records, at, (block + count - at).min(64) as u32) {
                Found::Nothing { blocks } => {
                    self.check_read(volume, self.now, at, &vec![0; blocks as usize])?;
                    at += u64::from(blocks);
                }
                Found::At { extent, position, blocks } => {
                    let pool = self.pool.as_ref().expect("open");
                    let offset = pool.extent_offset(extent) + u64::from(position) * BLOCK;
                    let member = usize::from(extent.member);
                    self.ios.push(Io::Read { job, member, offset, block: at, count: u64::from(blocks) });
                    out += 1;
                    at += u64::from(blocks);
                }
            }
        }
        self.count("reads");
        self.jobs.last_mut().expect("just added").kind = JobKind::Read { out };
        Ok(())
    }

    fn discard(&mut self, volume: Uuid, served: VolumeId, block: u64, count: u64) -> Check {
        if self.is_locked(volume, block, count) {
            return Ok(());
        }
        let mut at = block;
        while at < block + count {
            let done = match self.pool().discard(served, at, block + count - at) {
                Discarded::Done(blocks) => blocks,
                Discarded::Full(_) => {
                    self.count("discards refused");
                    break;
                }
                Discarded::TailFull | Discarded::Held => {
                    self.pool().request_commit();
                    break;
                }
            };
            let now = self.now;
            self.now += 1;
            let known = self.known.get_mut(&volume).expect("known");
            for k in at..at + done {
                let change = Change { word: 0, start: now, end: Some(now), durable: false };
                known.blocks[k as usize].0.push(change);
            }
            self.note(|| format!("discarded {at}+{done} of {volume}"), at ^ done);
            at += done;
        }
        self.count("discards");
        Ok(())
    }

    fn begin_write(&mut self, volume: Uuid, served: VolumeId, block: u64, count: u64) {
        // Whoever overwrites what is the volume's own asks nobody.
        let pool = self.pool.as_ref().expect("open");
        let shared = Arc::clone(pool.volume(served).expect("served"));
        let (view, records) = (Arc::clone(pool.shared()), Arc::clone(&pool.shared().records));
        let fua = self.rng.chance(100_000);
        let owner = shared.owner(&view);
        let mut pieces = Vec::new();
        let mut at = block;
        while at < block + count {
            match shared.map.find(&records, at, (block + count - at).min(64) as u32) {
                Found::At { extent, position, blocks } if records.owner(extent) == owner => {
                    pieces.push((extent, position, at, u64::from(blocks)));
                    at += u64::from(blocks);
                }
                _ => break,
            }
        }
        let own = at == block + count;
        if !own && self.is_locked(volume, block, count) {
            return;
        }
        let kind = JobKind::Write { out: 0, bind: Vec::new(), cursor: block, fua, commit: None, failed: false };
        let id = self.add_job(volume, served, block, count, kind, !own);
        let start = self.now;
        let known = self.known.get_mut(&volume).expect("known");
        for k in block..block + count {
            let change = Change { word: word_of(id, k), start, end: None, durable: false };
            known.blocks[k as usize].0.push(change);
        }
        self.note(|| format!("job {id} writes {block}+{count} of {volume}, own {own}, fua {fua}"), id ^ block);
        self.count(if own { "overwrites" } else { "first writes" });
        if own {
            let out = pieces.len() as u32;
            for (extent, position, at, blocks) in pieces {
                self.push_write(id, extent, position, at, blocks);
            }
            if let JobKind::Write { out: all, cursor, .. } = &mut self.jobs.last_mut().expect("just added").kind {
                (*all, *cursor) = (out, block + count);
            }
        }
    }

    fn push_write(&mut self, job: u64, extent: braid_engine::pool::ExtentId, position: u32, block: u64, count: u64) {
        let pool = self.pool.as_ref().expect("open");
        let offset = pool.extent_offset(extent) + u64::from(position) * BLOCK;
        let words = (block..block + count).map(|block| word_of(job, block)).collect();
        let fails = self.rng.chance(self.io_fails);
        self.ios.push(Io::Write { job, member: usize::from(extent.member), offset, words, fails });
    }

    fn write_ended(&mut self, id: u64, fails: bool) {
        let job = self.jobs.iter_mut().find(|job| job.id == id).expect("a job whose I/O is out");
        let JobKind::Write { out, bind, failed, .. } = &mut job.kind else { unreachable!("it writes") };
        *out -= 1;
        *failed |= fails;
        if *out > 0 {
            return;
        }
        let (bind, failed) = (std::mem::take(bind), *failed);
        for reservation in bind {
            let pool = self.pool.as_mut().expect("open");
            if failed {
                pool.unplace(&reservation);
                self.counters.add("places given back", 1);
            } else {
                pool.bind(&reservation);
            }
        }
    }

    /// Lets jobs and calls go on as far as they can.
    fn go_on(&mut self) -> Check {
        let mut k = 0;
        while k < self.jobs.len() {
            if self.job_goes_on(k) { self.end_job(k) } else { k += 1 }
        }
        let mut k = 0;
        while k < self.asked.len() {
            if self.call_goes_on(k) { self.end_call(k) } else { k += 1 }
        }
        Ok(())
    }

    /// Whether it has ended.
    fn job_goes_on(&mut self, k: usize) -> bool {
        let job = &mut self.jobs[k];
        let (id, served, end) = (job.id, job.served, job.block + job.count);
        match &mut job.kind {
            JobKind::Read { out } => *out == 0,
            JobKind::Flush { commit } => {
                let commit = *commit;
                self.pool().is_committed(commit) == Ok(true)
            }
            JobKind::Write { out, .. } if *out > 0 => false,
            JobKind::Write { failed: true, .. } => true,
            JobKind::Write { commit: Some(commit), .. } => {
                let commit = *commit;
                self.pool().is_committed(commit) == Ok(true)
            }
            JobKind::Write { cursor, fua, commit, .. } if *cursor == end => {
                if !*fua {
                    return true;
                }
                *commit = Some(self.pool.as_mut().expect("open").request_commit());
                false
            }
            JobKind::Write { cursor, .. } => {
                let at = *cursor;
                let placement = self.pool().place(served, at, (end - at).min(64) as u32);
                let (extent, position, blocks, reservation) = match placement {
                    Placement::New(r) => (r.extent, r.position, r.blocks, Some(r)),
                    Placement::Own { extent, position, blocks } => (extent, position, blocks, None),
                    Placement::TailFull => {
                        self.pool().request_commit();
                        self.count("waits for the tail");
                        return false;
                    }
                    Placement::Held => return false,
                    Placement::Full => {
                        self.count("full");
                        let JobKind::Write { failed, .. } = &mut self.jobs[k].kind else { unreachable!() };
                        *failed = true;
                        return true;
                    }
                };
                self.note(|| format!("job {id} puts {at}+{blocks} at {extent:?}+{position}"), at);
                self.push_write(id, extent, position, at, u64::from(blocks));
                let JobKind::Write { out, bind, cursor, .. } = &mut self.jobs[k].kind else { unreachable!() };
                *out += 1;
                *cursor += u64::from(blocks);
                bind.extend(reservation);
                false
            }
        }
    }

    fn end_job(&mut self, k: usize) {
        let job = self.jobs.swap_remove(k);
        let now = self.now;
        self.note(|| format!("job {} has ended", job.id), job.id);
        match job.kind {
            JobKind::Read { .. } => {}
            JobKind::Flush { .. } => {
                for known in self.known.values_mut() {
                    for change in known.blocks.iter_mut().flat_map(|block| &mut block.0) {
                        change.durable |= change.end.is_some_and(|end| end < job.start);
                    }
                }
            }
            // Nobody knows what of it was written: as one that is still under way.
            JobKind::Write { failed: true, .. } => self.count("writes failed"),
            JobKind::Write { fua, .. } => {
                let oldest = self.jobs.iter().map(|job| job.start).min().unwrap_or(now);
                let known = self.known.get_mut(&job.volume).expect("known");
                for block in &mut known.blocks[job.block as usize..(job.block + job.count) as usize] {
                    for change in block.0.iter_mut().filter(|change| change.start == job.start && change.end.is_none())
                    {
                        (change.end, change.durable) = (Some(now), fua);
                    }
                    block.prune(oldest);
                }
            }
        }
        self.now += 1;
    }

    fn fold(&mut self) {
        let records = 1 + self.rng.below(40) as u32;
        match self.pool().fold_step(records) {
            Folded::Nothing => {}
            Folded::Some => self.count("folds"),
            Folded::TailFull => {
                self.pool().request_commit();
            }
        }
    }

    fn busy(&self, uuid: Uuid) -> bool {
        self.asked.iter().any(|asked| asked.what.contains(&uuid))
    }

    pub(super) fn owner_of(&self, uuid: Uuid) -> Option<u32> {
        let owners = &self.pool.as_ref().expect("open").state().owners;
        owners.iter().find(|owner| owner.uuid == uuid && owner.kind != OwnerKind::Nameless).map(|owner| owner.id)
    }

    fn administer(&mut self) {
        if self.asked.len() > 2 {
            return;
        }
        let ready = |known: &&Known| matches!(known.life, Life::There) && !self.busy(known.uuid);
        let volumes: Vec<Uuid> = self.known.values().filter(|k| k.of.is_none()).filter(ready).map(|k| k.uuid).collect();
        let snapshots: Vec<Uuid> =
            self.known.values().filter(|k| k.of.is_some()).filter(ready).map(|k| k.uuid).collect();
        match self.rng.below(20) {
            0..2 if volumes.len() < 4 => self.create(None),
            2 if !snapshots.is_empty() && volumes.len() < 5 => {
                let of = *self.rng.pick(&snapshots);
                self.create(Some(of));
            }
            3..9 if !volumes.is_empty() && self.known.len() < 16 => self.take_snapshot(&volumes),
            9..13 if !snapshots.is_empty() => {
                let which = *self.rng.pick(&snapshots);
                self.delete(which);
            }
            13 if volumes.len() > 1 => {
                let which = *self.rng.pick(&volumes);
                self.delete(which);
            }
            14 if !volumes.is_empty() && !snapshots.is_empty() => {
                let (which, to) = (*self.rng.pick(&volumes), *self.rng.pick(&snapshots));
                self.roll_back(which, to);
            }
            15..18 => self.serve_or_leave(),
            _ => {}
        }
    }

    fn new_uuid(&mut self) -> Uuid {
        Uuid::from_u128(u128::from(self.rng.bits()) << 64 | u128::from(self.rng.bits()) | 1)
    }

    fn create(&mut self, of: Option<Uuid>) {
        self.names += 1;
        let (uuid, name) = (self.new_uuid(), format!("v{}", self.names));
        let (parent, blocks) = match of {
            None => {
                let count = 1 + self.rng.below(VOLUME_BLOCKS_MAX);
                (None, vec![Block::default(); count as usize])
            }
            Some(of) => {
                let from = &self.known[&of];
                let blocks = frozen(from);
                (self.owner_of(of), blocks)
            }
        };
        let owner = Owner {
            id: 1,
            kind: OwnerKind::Volume,
            place: Placing::Spread,
            on: 0,
            thick: false,
            parent: 0,
            uuid,
            volume: Uuid::nil(),
            size_bytes: blocks.len() as u64 * BLOCK,
            created_unix_s: 0,
            limit_iops: 0,
            limit_bytes_per_s: 0,
            name: OwnerName::new(&name).expect("a good name"),
            policy: None,
        };
        match self.pool().create_volume(parent, owner) {
            Err(AdminError::TailFull | AdminError::NoPlace) => {}
            Err(error) => unreachable!("a volume that is refused: {error}"),
            Ok(_) => {
                self.note(|| format!("create {name}, of {of:?}"), self.names);
                self.count(if of.is_some() { "clones" } else { "volumes" });
                let until = u64::MAX;
                let known = Known { name, uuid, of: None, blocks, until, life: Life::Coming, served: None };
                self.known.insert(uuid, known);
                self.ask(vec![uuid], false);
            }
        }
    }

    fn take_snapshot(&mut self, volumes: &[Uuid]) {
        let mut which = vec![*self.rng.pick(volumes)];
        let other = *self.rng.pick(volumes);
        if !which.contains(&other) && self.rng.coin() {
            which.push(other);
        }
        let mut what = Vec::new();
        let mut new = Vec::new();
        for volume in &which {
            self.names += 1;
            let (uuid, name) = (self.new_uuid(), format!("s{}", self.names));
            let owner = self.owner_of(*volume).expect("a volume that is there");
            what.push((owner, uuid, OwnerName::new(&name).expect("a good name")));
            let blocks = self.known[volume].blocks.clone();
            let of = Some(*volume);
            new.push(Known { name, uuid, of, blocks, until: self.now, life: Life::Coming, served: None });
        }
        match self.pool().snapshot(&what, 0) {
            Err(_) => {
                self.pool().request_commit();
            }
            Ok(_) => {
                self.count("snapshots");
                self.note(|| format!("snapshot {what:?}"), what.len() as u64);
                let uuids = new.iter().map(|known| known.uuid).collect();
                new.into_iter().for_each(|known| {
                    self.known.insert(known.uuid, known);
                });
                self.now += 1;
                self.ask(uuids, true);
            }
        }
    }

    fn delete(&mut self, uuid: Uuid) {
        if self.known[&uuid].served.is_some() {
            return;
        }
        let is_snapshot = self.known[&uuid].of.is_some();
        let owner = self.owner_of(uuid).expect("what is there has an owner");
        let result = match is_snapshot {
            true => self.pool().delete_snapshot(owner),
            false => self.pool().delete_volume(owner),
        };
        if result.is_ok() {
            self.count("deletions");
            self.note(|| format!("delete {uuid}, owner {owner}"), u64::from(owner));
            self.known.get_mut(&uuid).expect("known").life = Life::Going;
            self.ask(vec![uuid], false);
        }
    }

    fn roll_back(&mut self, volume: Uuid, to: Uuid) {
        if self.known[&volume].served.is_some() || self.known[&to].blocks.len() > VOLUME_BLOCKS_MAX as usize {
            return;
        }
        let (owner, snapshot) = (self.owner_of(volume).expect("there"), self.owner_of(to).expect("there"));
        if self.pool().rollback(owner, snapshot).is_ok() {
            self.count("rollbacks");
            self.note(|| format!("roll {volume} back to {to}"), u64::from(owner));
            let blocks = frozen(&self.known[&to]);
            self.known.get_mut(&volume).expect("known").life = Life::Turning(blocks);
            self.ask(vec![volume], false);
        }
    }

    fn serve_or_leave(&mut self) {
        let all: Vec<Uuid> =
            self.known.values().filter(|known| matches!(known.life, Life::There)).map(|k| k.uuid).collect();
        if all.is_empty() {
            return;
        }
        let uuid = *self.rng.pick(&all);
        if self.busy(uuid) {
            return;
        }
        match self.known[&uuid].served {
            None => {
                let owner = self.owner_of(uuid).expect("what is there has an owner");
                let served = self.pool().serve(owner).expect("it is not served");
                self.known.get_mut(&uuid).expect("known").served = Some(served);
                self.note(|| format!("serve {uuid} as {served:?}"), u64::from(served.0));
            }
            Some(served) => {
                if self.jobs.iter().any(|job| job.served == served) || self.rng.chance(600_000) {
                    return;
                }
                self.known.get_mut(&uuid).expect("known").served = None;
                self.pool().leave(served);
                self.note(|| format!("leave {uuid}"), u64::from(served.0));
            }
        }
    }

    fn ask(&mut self, what: Vec<Uuid>, drains: bool) {
        let wait = match drains {
            true => Wait::Drain(self.jobs.iter().map(|job| job.id).collect()),
            false => Wait::Commit(self.pool().request_commit()),
        };
        self.asked.push(Asked { what, wait });
    }

    fn call_goes_on(&mut self, k: usize) -> bool {
        match &self.asked[k].wait {
            Wait::Drain(out) => {
                if !self.jobs.iter().any(|job| out.contains(&job.id)) {
                    let commit = self.pool().request_commit();
                    self.asked[k].wait = Wait::Commit(commit);
                }
                false
            }
            Wait::Commit(commit) => {
                let commit = *commit;
                self.pool().is_committed(commit) == Ok(true)
            }
        }
    }

    fn end_call(&mut self, k: usize) {
        let asked = self.asked.swap_remove(k);
        for uuid in asked.what {
            let now = self.now;
            let known = self.known.get_mut(&uuid).expect("known");
            match std::mem::replace(&mut known.life, Life::There) {
                Life::Going => {
                    self.known.remove(&uuid);
                }
                Life::Turning(blocks) => known.blocks = blocks,
                Life::Coming | Life::There => {
                    if known.of.is_some() {
                        // It is complete: what had begun has ended, and all of it is durable.
                        settle_snapshot(known);
                    }
                }
            }
            self.note(|| format!("acknowledged: {uuid}"), now);
        }
    }

    /// Ends everything that is under way, and lets deletions be carried out.
    fn quiesce(&mut self) -> Check {
        self.io_fails = 0;
        for _ in 0..200_000 {
            self.now += 1;
            self.pump();
            if !self.ios.is_empty() {
                self.end_io()?;
            }
            self.barrier_ends();
            self.go_on()?;
            if self.ios.is_empty() && self.jobs.is_empty() && self.asked.is_empty() {
                match self.pool().fold_step(1000) {
                    Folded::Nothing if self.pool().is_settled() => return Ok(()),
                    Folded::Nothing => {
                        let commit = self.pool().request_commit();
                        self.add_job(Uuid::nil(), VolumeId(u32::MAX), 0, 0, JobKind::Flush { commit }, false);
                    }
                    Folded::Some => {}
                    Folded::TailFull => {
                        self.pool().request_commit();
                    }
                }
            }
        }
        Err(format!(
            "the pool does not come to rest: {} I/Os, {} jobs, {} calls",
            self.ios.len(),
            self.jobs.len(),
            self.asked.len()
        ))
    }

    /// The process dies: what the kernel has may still land.
    fn kill(&mut self) {
        for io in std::mem::take(&mut self.ios) {
            if self.rng.coin() {
                match io {
                    Io::Pool { io, data, .. } if matches!(io.op, PoolOp::Write { .. }) => {
                        self.disks[usize::from(io.member)].write(io.offset, &data);
                    }
                    Io::Write { member, offset, words, .. } => {
                        for (k, word) in (0..).zip(words) {
                            self.disks[member].set_block(offset + k * BLOCK, word);
                        }
                    }
                    _ => {}
                }
            }
        }
        self.forget();
    }

    fn power_cut(&mut self) {
        // What was under way is one more version of its sectors.
        self.kill();
        let survives = self.survives;
        for disk in &mut self.disks {
            disk.power_cut(&mut self.rng, survives);
        }
        self.shm.clear();
    }

    fn forget(&mut self) {
        self.pool = None;
        self.jobs.clear();
        self.asked.clear();
        self.barrier = None;
        self.known.values_mut().for_each(|known| known.served = None);
    }

    pub(super) fn crash(&mut self) -> Rule {
        let power = self.rng.coin();
        self.note(|| format!("crash, power {power}"), u64::from(power));
        if power {
            self.count("power cuts");
            self.power_cut();
            Rule::Power
        } else {
            self.count("kills");
            self.kill();
            Rule::Kill
        }
    }
}

/// The blocks of a snapshot, as those of a clone that begins with them.
fn frozen(known: &Known) -> Vec<Block> {
    known.blocks.clone()
}

/// A snapshot that was acknowledged: what it may show is settled and durable.
pub(super) fn settle_snapshot(known: &mut Known) {
    let until = known.until;
    for block in &mut known.blocks {
        let allowed = block.admissible(until, Rule::Kill);
        // Overlapping writes may have come in either order, and one that never ended may be there or not: it stays as it was read first.
        block.0 = allowed.iter().map(|word| Change { word: *word, start: 0, end: Some(0), durable: true }).collect();
    }
    known.until = u64::MAX;
}

fn word_of(job: u64, block: u64) -> u64 {
    job << 16 | (block & 0xfff) << 4 | 1
}

/// Runs a seed.
pub fn run(seed: u64, options: &Options) -> Outcome {
    let mut world = World::new(seed, options);
    let violation = story(&mut world, options).err();
    Outcome { counters: world.counters, hash: world.hash, violation }
}

fn story(world: &mut World, options: &Options) -> Check {
    world.make_disks();
    world.reopen(Rule::Kill)?;
    let lives = 1 + world.rng.below(u64::from(options.lives));
    for life in 0..lives {
        let steps = 1 + world.rng.below(options.steps * 2);
        for _ in 0..steps {
            world.step()?;
        }
        if life + 1 == lives || world.rng.chance(150_000) {
            world.quiesce()?;
            world.verify_all()?;
        }
        let rule = world.crash();
        world.reopen(rule)?;
    }
    world.quiesce()?;
    world.verify_all()
}
