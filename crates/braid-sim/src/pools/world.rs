//! One run: a pool in use, crashes, and what is asked of it afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_engine::pool::{
    BUFFERS, EXTENT_BYTES, LogMemory, MemberLayout, MergeStep, Pool, PoolDevice, PoolIo, PoolMemory, PoolOp, VolumeId,
};
use braid_engine::{ErrorKind, Uuid};

use super::absent::{Away, Copied};
use super::admin::Asked;
use super::disk::Disk;
use super::full::Full;
use super::given_up::Forsaken;
use super::grow::Growing;
use super::nature::{Focus, Moment, Nature};
use super::oracle::{Block, Rule};
use super::report::{Counters, Outcome};
use super::requests::{Job, JobKind};
use crate::rng::{Rng, mix};

pub(super) const BLOCK: u64 = 4096;
/// The most blocks of a volume.
pub(super) const VOLUME_BLOCKS_MAX: u64 = 64 * 12;

/// How runs are made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Steps of a life, about.
    pub steps: u64,
    /// Lives.
    pub lives: u32,
    /// What all are about.
    pub focus: Option<Focus>,
    /// Print what happens.
    pub trace: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { steps: 400, lives: 5, focus: None, trace: false }
    }
}

/// Memory that survives a kill.
pub(crate) struct Shm(Box<[AtomicU64]>);

impl Shm {
    pub fn new(bytes: u64) -> Arc<Shm> {
        Arc::new(Shm((0..bytes / 8).map(|_| AtomicU64::new(0)).collect()))
    }
}

impl Shm {
    /// The same words in memory of its own.
    pub fn copy(other: &Shm) -> Arc<Shm> {
        Arc::new(Shm(other.0.iter().map(|word| AtomicU64::new(word.load(Ordering::Relaxed))).collect()))
    }
}

impl LogMemory for Shm {
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

/// For a pool's own writes.
pub(super) fn memory() -> Memory {
    Memory((0..BUFFERS).map(|_| vec![0; 65_536]).collect())
}

/// A volume or snapshot as whoever uses it knows it.
#[derive(Clone)]
pub(super) struct Known {
    pub name: String,
    pub uuid: Uuid,
    /// `None`: a volume. Else the volume that it was taken of.
    pub of: Option<Uuid>,
    pub blocks: Vec<Block>,
    /// Whose words these may be: of a volume its own number comes last, before it those of what it began as.
    pub writers: Vec<u16>,
    /// Members on which it, and what shows through it, may have been put.
    pub home: u128,
    /// Changes that began before this count: snapshots see nothing later.
    pub until: u64,
    pub life: Life,
    /// Of a volume that is to grow, which is not acknowledged: the blocks that it had.
    pub had: Option<usize>,
    pub served: Option<VolumeId>,
}

/// Where it is in its life.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Life {
    /// Asked for, together with others of this number; not acknowledged.
    Coming(u64),
    There,
    /// To be deleted; not acknowledged.
    Going,
    /// To become what a snapshot is; not acknowledged. What it would be.
    Turning(Vec<Block>),
}

/// An I/O that is out.
pub(super) enum Io {
    Pool {
        io: PoolIo,
        data: Vec<u8>,
        mark: u64,
    },
    /// What a copy has read, to be written.
    Copied {
        io: PoolIo,
        words: Vec<u64>,
    },
    Write {
        job: u64,
        member: usize,
        offset: u64,
        words: Vec<u64>,
        fua: bool,
        fails: bool,
    },
    Read {
        job: u64,
        member: usize,
        offset: u64,
        block: u64,
        count: u64,
    },
}

/// An I/O that ends at this time or later.
pub(super) struct Out {
    pub due: u64,
    pub io: Io,
}

/// See the module's page.
pub struct World {
    pub(super) rng: Rng,
    pub(super) nature: Nature,
    pub(super) disks: Vec<Disk>,
    pub(super) devices: Vec<PoolDevice>,
    pub(super) uuid: Uuid,
    pub(super) owner_slots: u32,
    pub(super) shm: BTreeMap<u64, Arc<Shm>>,
    pub(super) pool: Option<Pool>,
    pub(super) memory: Memory,
    pub(super) known: BTreeMap<Uuid, Known>,
    pub(super) asked: Vec<Asked>,
    pub(super) jobs: Vec<Job>,
    pub(super) ios: Vec<Out>,
    pub(super) barrier: Option<(u64, Vec<u64>)>,
    pub(super) now: u64,
    pub(super) names: u64,
    pub(super) next_job: u64,
    /// Members from which everything is to move away.
    pub(super) closed: BTreeSet<usize>,
    /// Of these, and of those that left, the ones that were closed whatever is kept for thick volumes.
    pub(super) shut: BTreeSet<usize>,
    /// Thick volumes of which there never was a snapshot.
    pub(super) plain: BTreeSet<Uuid>,
    /// Something was placed otherwise than when it was made.
    pub(super) placed_otherwise: bool,
    /// Those that the labels do not have any more.
    pub(super) gone: BTreeSet<u8>,
    pub(super) parted: Vec<PoolDevice>,
    pub(super) put_together: (u64, u64),
    /// Volumes become independent; blocks that were copied for that since the pool was opened.
    pub(super) flattens: bool,
    pub(super) flattened: u64,
    /// A member that fails everything that changes it.
    pub(super) ill: Option<usize>,
    /// Those below which there is no space.
    pub(super) full: Full,
    /// Members that are away; of those that are here, who has come back since the pool was opened last.
    pub(super) away: BTreeMap<u8, Away>,
    pub(super) coming: Vec<u8>,
    /// A member that is being added; and how often something of that is done.
    pub(super) growing: Option<Growing>,
    pub(super) grows: u32,
    /// Volumes become smaller.
    pub(super) shrinks: bool,
    /// Copies that somebody made.
    pub(super) copied: Vec<Copied>,
    /// Members whose tables have rotted; and those of which what was there was given up, as long as somebody may find that it is lost.
    pub(super) rotten: u128,
    pub(super) given_up: u128,
    /// Members that are away may be given up for ever; and those that were.
    pub(super) gives_up: bool,
    pub(super) forsaken: Vec<Forsaken>,
    /// A page of a member's tables that cannot be read at a start.
    pub(super) unreadable: Option<(u32, u64)>,
    /// Starts write over it.
    pub(super) writes_over: bool,
    /// Who, by their bits, took part in the last start that was cut off and lacked somebody; 0: a whole one came since.
    pub(super) deciders: u128,
    /// Which life this is.
    pub(super) life: u32,
    /// By member, the last life that it was in.
    pub(super) lived: BTreeMap<u8, u32>,
    /// What must not be, and was seen where nobody could be told.
    pub(super) wrong: Option<String>,
    /// At what the next crash aims, and in how many steps it comes once that has happened.
    pub(super) aim: Option<Moment>,
    pub(super) fuse: Option<u64>,
    pub(super) counters: Counters,
    pub(super) hash: u64,
    pub(super) trace: bool,
}

pub(super) type Check = Result<(), String>;

impl World {
    pub(super) fn new(seed: u64, options: &Options) -> World {
        let mut rng = Rng::new(seed);
        let mut nature = Nature::draw(&mut rng, options.focus);
        // Nothing is drawn for it: the other runs stay what they were.
        if options.focus.is_none() && seed % 5 == 3 {
            nature.thick = 20;
        }
        let members = 1 + rng.index(3);
        let owner_slots = *rng.pick(&[16u32, 32, 32]);
        let mut devices = Vec::new();
        let mut disks = Vec::new();
        // Who was removed leaves his number behind.
        let holes = rng.chance(300_000);
        for _ in 0..members {
            while holes && rng.chance(400_000) {
                disks.push(Disk::new(0, 0));
            }
            let number = disks.len();
            let extents = if nature.is_small { rng.between(6, 24) } else { rng.between(20, 90) } as u32;
            let zero_slots = *rng.pick(&[1u32, 4, 16, 100]);
            // The shortest ring has room for one commit of the shortest tail.
            let drawn = *rng.pick(&[38u64, 38, 48, 80, 160]);
            let ring_blocks = nature.ring_blocks.unwrap_or(drawn);
            let starts = BLOCK;
            let ring = starts + 2 * BLOCK;
            let owners = ring + ring_blocks * BLOCK;
            let table = owners + u64::from(owner_slots) * 256;
            let addresses = table + (u64::from(extents + zero_slots) * 32).next_multiple_of(BLOCK);
            let data = (addresses + u64::from(extents) * 512).next_multiple_of(EXTENT_BYTES);
            devices.push(PoolDevice {
                number: number as u8,
                device: braid_engine::DeviceId(number as u32),
                layout: MemberLayout { starts, owners, table, addresses, data },
                ring: (ring, ring_blocks),
                extents,
                zero_slots,
            });
            disks.push(Disk::new(data, u64::from(extents) * 64));
        }
        World {
            rng,
            nature,
            disks,
            devices,
            uuid: Uuid::from_u128(0x1234_5678_9abc),
            owner_slots,
            shm: BTreeMap::new(),
            pool: None,
            memory: memory(),
            known: BTreeMap::new(),
            asked: Vec::new(),
            jobs: Vec::new(),
            ios: Vec::new(),
            barrier: None,
            now: 1,
            names: 0,
            next_job: 0,
            closed: BTreeSet::new(),
            shut: BTreeSet::new(),
            plain: BTreeSet::new(),
            placed_otherwise: false,
            gone: BTreeSet::new(),
            parted: Vec::new(),
            put_together: (0, 0),
            flattens: options.focus == Some(Focus::Flattening) || mix(seed ^ 0x666c_6174).is_multiple_of(3),
            flattened: 0,
            ill: None,
            full: Full::new(seed, options.focus),
            away: BTreeMap::new(),
            coming: Vec::new(),
            growing: None,
            // Not drawn: others stay as they were.
            shrinks: mix(seed ^ 0x7368_7269).is_multiple_of(4),
            grows: if mix(seed ^ 0x6772_6f77).is_multiple_of(8) { 60_000 } else { 0 },
            copied: Vec::new(),
            rotten: 0,
            given_up: 0,
            gives_up: mix(seed ^ 0x6c6f_7374).is_multiple_of(3),
            forsaken: Vec::new(),
            unreadable: None,
            writes_over: false,
            deciders: 0,
            life: 0,
            lived: BTreeMap::new(),
            wrong: None,
            aim: None,
            fuse: None,
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
        self.counters.add("", what, 1);
    }

    /// A member by its number.
    pub(super) fn device(&self, number: u8) -> &PoolDevice {
        let growing = self.growing.iter().map(|growing| &growing.device);
        let mut all = self.devices.iter().chain(&self.parted).chain(growing);
        all.find(|device| device.number == number).expect("a member that there is")
    }

    pub(super) fn pool(&mut self) -> &mut Pool {
        self.pool.as_mut().expect("the pool is open")
    }

    /// Whether nothing is committed any more.
    pub(super) fn has_failed(&self) -> bool {
        self.pool.as_ref().expect("open").has_failed()
    }

    pub(super) fn step(&mut self) -> Check {
        self.now += 1;
        self.fill_and_empty();
        self.pump();
        match self.rng.below(100) {
            0..38 if !self.ios.is_empty() => self.end_io(false)?,
            0..62 if self.jobs.len() < 14 => self.begin_job()?,
            62..66 => self.fold(),
            66..75 => self.administer(),
            75 => self.move_something(),
            76..80 => self.barrier_ends(),
            80..83 => {
                if !self.rng.chance(self.nature.forgets_commits) {
                    self.pool().commit_if_due();
                }
                if self.rng.chance(self.nature.checkpoints) {
                    self.pool().request_checkpoint();
                }
            }
            _ if !self.ios.is_empty() => self.end_io(false)?,
            _ => {}
        }
        if self.rng.chance(self.nature.moves) {
            self.move_something();
        }
        if self.flattens && self.rng.chance(120_000) {
            self.flatten_something();
        }
        if self.nature.ends_flattened > 0 {
            self.end_flattened();
        }
        if self.grows > 0 && self.rng.chance(self.grows) {
            self.grow_pool();
        }
        if self.rng.chance(self.nature.falls_ill) && self.ill.is_none() {
            let member = usize::from(*self.rng.pick(&self.here()));
            self.ill = Some(member);
            self.note(|| format!("member {member} falls ill"), member as u64);
            self.count("members fall ill");
        }
        self.go_on()
    }

    /// Takes what the pool wants done.
    pub(super) fn pump(&mut self) {
        while let Some(io) = self.pool.as_mut().expect("open").next_io(&mut self.memory) {
            let data = match io.op {
                PoolOp::Write { buffer } => self.memory.buffer(buffer)[..io.len as usize].to_vec(),
                _ => Vec::new(),
            };
            let mark = self.disks[usize::from(io.member)].mark();
            self.note(|| format!("pool wants {io:?}"), u64::from(io.token) ^ io.offset);
            let slow = match io.op {
                PoolOp::Flush => self.nature.slow_flushes,
                PoolOp::Copy { .. } => self.nature.slow_data,
                _ if io.offset >= self.device(io.member).layout.owners => self.nature.slow_tables,
                _ => self.nature.slow_rings,
            };
            self.push(Io::Pool { io, data, mark }, slow);
        }
        if self.barrier.is_none()
            && let Some(number) = self.pool().next_barrier()
        {
            let out = self.jobs.iter().map(|job| job.id).collect();
            self.barrier = Some((number, out));
        }
    }

    /// Sends an I/O, which is slow with this chance.
    pub(super) fn push(&mut self, io: Io, slow: u32) {
        let due = if self.rng.chance(slow) { self.now + self.rng.between(30, 500) } else { self.now };
        self.ios.push(Out { due, io });
    }

    pub(super) fn barrier_ends(&mut self) {
        if let Some((number, out)) = &self.barrier
            && !self.jobs.iter().any(|job| out.contains(&job.id))
        {
            let number = *number;
            self.barrier = None;
            self.pool().barrier_done(number);
            self.count("barriers");
        }
    }

    /// One of those that are due ends, or one of all.
    pub(super) fn end_io(&mut self, all: bool) -> Check {
        let due: Vec<usize> = (0..self.ios.len()).filter(|k| all || self.ios[*k].due <= self.now).collect();
        if due.is_empty() {
            return Ok(());
        }
        let at = *self.rng.pick(&due);
        match self.ios.swap_remove(at).io {
            Io::Pool { io, data, mark } => self.pool_io_ends(io, &data, mark),
            Io::Copied { io, words } => self.copy_ends(io, &words),
            Io::Write { job, member, offset, words, fua, fails } => {
                let fails = fails || self.ill == Some(member);
                for (k, word) in (0..).zip(&words) {
                    if !fails || self.rng.coin() {
                        self.disks[member].set_block(offset + k * BLOCK, *word);
                    }
                    if !fails && fua {
                        self.disks[member].settle_block(offset + k * BLOCK);
                    }
                }
                self.note(|| format!("write of job {job} at {member}:{offset} has ended, fails {fails}"), job);
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

    fn pool_io_ends(&mut self, io: PoolIo, data: &[u8], mark: u64) {
        let fails = self.ill == Some(usize::from(io.member));
        let full = !fails && self.finds_no_space(&io);
        let disk = &mut self.disks[usize::from(io.member)];
        match io.op {
            PoolOp::Flush if fails => {}
            PoolOp::Flush => disk.flushed(mark),
            PoolOp::Write { .. } if fails => {
                // Some of it may have arrived.
                disk.write_torn(io.offset, data, &mut self.rng);
            }
            PoolOp::Write { .. } if full => self.found_no_space(&io, data),
            PoolOp::Write { .. } => disk.write(io.offset, data),
            PoolOp::Discard if fails => {}
            PoolOp::Discard => disk.discard(io.offset),
            PoolOp::Copy { from_member, from_offset } => {
                let from = &self.disks[usize::from(from_member)];
                let words = (0..io.len / BLOCK).map(|k| from.block(from_offset + k * BLOCK)).collect();
                return self.push(Io::Copied { io, words }, self.nature.slow_data);
            }
        }
        self.note(|| format!("pool's {io:?} has ended, fails {fails}, full {full}"), u64::from(io.token));
        let before = self.pool().commits_done();
        let result = match (fails, full) {
            (true, _) => Err(ErrorKind::Io),
            (_, true) => Err(ErrorKind::NoSpace),
            _ => Ok(()),
        };
        self.pool().io_done(io.token, result);
        if full {
            return self.was_told_of_no_space();
        }
        let commits = self.pool().commits_done() - before;
        self.counters.add("", "commits", commits);
        let places = self.device(io.member).layout;
        self.happens(match io.op {
            _ if commits > 0 => Moment::Committed,
            PoolOp::Flush => Moment::Flushed,
            PoolOp::Discard => Moment::Discarded,
            PoolOp::Copy { .. } => Moment::Copied,
            PoolOp::Write { .. } if io.offset >= places.owners => Moment::Table,
            PoolOp::Write { .. } if io.offset >= places.starts + 2 * BLOCK => Moment::Batch,
            PoolOp::Write { .. } => Moment::Start,
        });
    }

    fn copy_ends(&mut self, io: PoolIo, words: &[u64]) {
        let fails = self.ill == Some(usize::from(io.member)) || self.rng.chance(self.nature.io_fails);
        for (k, word) in (0..).zip(words) {
            if !fails || self.rng.coin() {
                self.disks[usize::from(io.member)].set_block(io.offset + k * BLOCK, *word);
            }
        }
        self.note(|| format!("copy {io:?} has ended, fails {fails}"), u64::from(io.token));
        self.count(if fails { "copies failed" } else { "copies" });
        self.pool().io_done(io.token, if fails { Err(ErrorKind::Io) } else { Ok(()) });
        self.happens(Moment::Copied);
        self.count_put_together();
    }

    /// Ends everything that is under way, and lets deletions be carried out.
    pub(super) fn quiesce(&mut self) -> Check {
        self.nature.io_fails = 0;
        self.has_room_again();
        for _ in 0..200_000 {
            self.now += 1;
            self.try_again();
            self.pump();
            if !self.ios.is_empty() {
                self.end_io(true)?;
            }
            self.barrier_ends();
            self.go_on()?;
            if self.ios.is_empty() && self.jobs.is_empty() && self.asked.is_empty() {
                if self.flattens {
                    self.flatten_on(1000);
                }
                match self.fold_step(1000) {
                    MergeStep::Nothing if self.pool().is_settled() => return Ok(()),
                    MergeStep::Nothing => {
                        let commit = self.pool().request_commit();
                        self.add_job(Uuid::nil(), VolumeId(u32::MAX), 0, 0, JobKind::Flush { commit }, false);
                    }
                    MergeStep::Some | MergeStep::Later => {}
                    MergeStep::LogFull => {
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
        world.live(options)?;
        if world.ill.is_none() && (life + 1 == lives || world.rng.chance(150_000)) {
            world.quiesce()?;
            world.verify_at_rest()?;
            if world.away.is_empty() && world.rng.coin() {
                world.verify_moved()?;
            }
            if world.flattens && world.away.is_empty() {
                world.verify_flattened()?;
            }
        }
        let rule = world.crash();
        world.rot(rule)?;
        let rule = world.lose(rule);
        world.reopen(rule)?;
    }
    world.quiesce()?;
    world.verify_at_rest()
}

impl World {
    /// Some steps.
    pub(super) fn live(&mut self, options: &Options) -> Check {
        self.copy_one();
        let steps = 1 + self.rng.below(options.steps * 2);
        let any = *self.rng.pick(&Moment::ALL);
        self.aim = if self.rng.coin() { Some(self.nature.aim.unwrap_or(any)) } else { None };
        self.aim = self.aim_at_full().or(self.aim);
        self.fuse = None;
        for _ in 0..steps {
            self.step()?;
            match &mut self.fuse {
                Some(0) => {
                    self.count("crashes aimed at");
                    break;
                }
                Some(left) => *left -= 1,
                None => {}
            }
        }
        Ok(())
    }

    /// If a crash aims at that, it may come soon.
    pub(super) fn happens(&mut self, moment: Moment) {
        if self.aim == Some(moment) && self.fuse.is_none() && self.rng.chance(250_000) {
            self.fuse = Some(self.rng.below(if moment == Moment::Folded { 40 } else { 12 }));
        }
    }
}
