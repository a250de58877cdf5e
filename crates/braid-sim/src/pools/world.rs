//! One run: a pool in use, crashes, and the checks after them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_engine::pool::{
    BUFFERS, EXTENT_BYTES, LogMemory, MemberLayout, MergeStep, Pool, PoolDevice, PoolIo, PoolMemory, PoolOp, VolumeId,
};
use braid_engine::{ErrorKind, Uuid};

use super::disk::Disk;
use super::in_progress::{Job, JobKind, PendingCall};
use super::member_states::{AddingMember, DiskCopy, FullFileSystems, LostMember, MissingMember};
use super::oracle::{Block, Rule};
use super::parameters::{Focus, Moment, Parameters};
use super::report::{Counters, Outcome};
use crate::rng::{Rng, mix};

pub(super) const BLOCK: u64 = 4096;
/// Maximum number of blocks of a volume.
pub(super) const VOLUME_BLOCKS_MAX: u64 = 64 * 12;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Mean number of steps of a life.
    pub steps_mean: u64,
    /// Maximum number of lives.
    pub lives_max: u32,
    /// The focus of all runs.
    pub focus: Option<Focus>,
    /// Print what happens.
    pub trace: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { steps_mean: 400, lives_max: 5, focus: None, trace: false }
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
    /// Copies the words into separate memory.
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

/// Returns buffers for a pool's own writes.
pub(super) fn memory() -> Memory {
    Memory((0..BUFFERS).map(|_| vec![0; 65_536]).collect())
}

/// A volume or snapshot as its clients and administrators know it.
#[derive(Clone)]
pub(super) struct VolumeModel {
    pub name: String,
    pub uuid: Uuid,
    /// The volume that a snapshot was taken of; `None`: a volume.
    pub snapshot_of: Option<Uuid>,
    pub blocks: Vec<Block>,
    /// The writers whose words the blocks may hold. A volume's own number comes last, after those of its ancestors.
    pub writers: Vec<u16>,
    /// Members that may hold its blocks, including those visible from its ancestors.
    pub member_mask: u128,
    /// Only changes that began before this time are visible: a snapshot sees nothing later.
    pub until: u64,
    pub lifecycle: Lifecycle,
    /// The number of blocks before a growth that is not acknowledged yet.
    pub blocks_before: Option<usize>,
    pub served: Option<VolumeId>,
}

/// The state of a volume or snapshot.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Lifecycle {
    /// Its creation was requested, together with others of this group, and is not acknowledged.
    Creating(u64),
    Exists,
    /// Its deletion was requested and is not acknowledged.
    Deleting,
    /// A change to these blocks (a rollback or a smaller size) was requested and is not acknowledged.
    Changing(Vec<Block>),
}

/// An I/O in flight.
pub(super) enum Io {
    Pool {
        io: PoolIo,
        data: Vec<u8>,
        mark: u64,
    },
    /// A copy that has read its source and is to write it.
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
pub(super) struct PendingIo {
    pub due: u64,
    pub io: Io,
}

/// The state of one run; see the module documentation.
pub struct World {
    pub(super) rng: Rng,
    pub(super) parameters: Parameters,
    pub(super) disks: Vec<Disk>,
    pub(super) devices: Vec<PoolDevice>,
    pub(super) uuid: Uuid,
    pub(super) owner_slots: u32,
    pub(super) shm: BTreeMap<u64, Arc<Shm>>,
    pub(super) pool: Option<Pool>,
    pub(super) memory: Memory,
    pub(super) models: BTreeMap<Uuid, VolumeModel>,
    pub(super) calls: Vec<PendingCall>,
    pub(super) jobs: Vec<Job>,
    pub(super) ios: Vec<PendingIo>,
    pub(super) barrier: Option<(u64, Vec<u64>)>,
    pub(super) now: u64,
    pub(super) names: u64,
    pub(super) next_job: u64,
    /// Members that are closed: every block is to move away from them.
    pub(super) closed: BTreeSet<usize>,
    /// The closed or removed members that were closed regardless of what is reserved for thick volumes.
    pub(super) closed_by_force: BTreeSet<usize>,
    /// Thick volumes that never had a snapshot.
    pub(super) never_snapshotted: BTreeSet<Uuid>,
    /// An allocation policy was changed after creation.
    pub(super) policy_changed: bool,
    /// Members that the labels no longer name.
    pub(super) removed: BTreeSet<u8>,
    pub(super) removed_devices: Vec<PoolDevice>,
    pub(super) consolidated: (u64, u64),
    /// Whether volumes are flattened, and the blocks copied for it since the pool was opened.
    pub(super) flattens: bool,
    pub(super) flattened: u64,
    /// A member on which every write and flush fails.
    pub(super) failing: Option<usize>,
    /// Members below which there is no space.
    pub(super) full: FullFileSystems,
    /// Members that are missing, and the present members that have returned since the pool was opened last.
    pub(super) missing: BTreeMap<u8, MissingMember>,
    pub(super) returned: Vec<u8>,
    /// The member that is being added.
    pub(super) adding: Option<AddingMember>,
    /// Chance per million, at each step, of a step of adding a member.
    pub(super) add_chance: u32,
    /// Volumes are shrunk.
    pub(super) shrinks: bool,
    /// Copies of members' disks.
    pub(super) disk_copies: Vec<DiskCopy>,
    /// Members whose tables have rotted, and members whose loss or damage was accepted as long as some block may turn
    /// out to be lost.
    pub(super) rotten: u128,
    pub(super) accepted_losses: u128,
    /// Whether the loss of missing members may be accepted, and the members for which it was.
    pub(super) accepts_losses: bool,
    pub(super) lost_members: Vec<LostMember>,
    /// A page of a member's tables that cannot be read at a start.
    pub(super) unreadable: Option<(u32, u64)>,
    /// Starts overwrite the unreadable page.
    pub(super) overwrites_unreadable: bool,
    /// The members, as a bit mask, that took part in the last interrupted start that lacked a member; 0: a complete
    /// start has happened since.
    pub(super) start_participants: u128,
    /// Number of the current life.
    pub(super) life: u32,
    /// For each member, the last life in which it took part.
    pub(super) last_life: BTreeMap<u8, u32>,
    /// A violation seen where no error could be returned.
    pub(super) violation: Option<String>,
    /// The moment at which the next crash aims.
    pub(super) aim: Option<Moment>,
    /// The number of steps until the crash, once the aimed moment has come.
    pub(super) fuse: Option<u64>,
    pub(super) counters: Counters,
    pub(super) hash: u64,
    pub(super) trace: bool,
}

pub(super) type Check = Result<(), String>;

impl World {
    pub(super) fn new(seed: u64, options: &Options) -> World {
        let mut rng = Rng::new(seed);
        let mut parameters = Parameters::draw(&mut rng, options.focus);
        // Nothing is drawn for it: the other runs stay unchanged.
        if options.focus.is_none() && seed % 5 == 3 {
            parameters.thick = 20;
        }
        let members = 1 + rng.index(3);
        let owner_slots = *rng.pick(&[16u32, 32, 32]);
        let mut devices = Vec::new();
        let mut disks = Vec::new();
        // A removed member leaves its number unused.
        let holes = rng.chance(300_000);
        for _ in 0..members {
            while holes && rng.chance(400_000) {
                disks.push(Disk::new(0, 0));
            }
            let number = disks.len();
            let extents = if parameters.is_small { rng.between(6, 24) } else { rng.between(20, 90) } as u32;
            let zero_slots = *rng.pick(&[1u32, 4, 16, 100]);
            // The shortest ring has space for one commit of the shortest in-memory log.
            let drawn = *rng.pick(&[38u64, 38, 48, 80, 160]);
            let ring_blocks = parameters.ring_blocks.unwrap_or(drawn);
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
            parameters,
            disks,
            devices,
            uuid: Uuid::from_u128(0x1234_5678_9abc),
            owner_slots,
            shm: BTreeMap::new(),
            pool: None,
            memory: memory(),
            models: BTreeMap::new(),
            calls: Vec::new(),
            jobs: Vec::new(),
            ios: Vec::new(),
            barrier: None,
            now: 1,
            names: 0,
            next_job: 0,
            closed: BTreeSet::new(),
            closed_by_force: BTreeSet::new(),
            never_snapshotted: BTreeSet::new(),
            policy_changed: false,
            removed: BTreeSet::new(),
            removed_devices: Vec::new(),
            consolidated: (0, 0),
            flattens: options.focus == Some(Focus::Flattening) || mix(seed ^ 0x666c_6174).is_multiple_of(3),
            flattened: 0,
            failing: None,
            full: FullFileSystems::new(seed, options.focus),
            missing: BTreeMap::new(),
            returned: Vec::new(),
            adding: None,
            // These are not drawn: the other runs stay unchanged.
            shrinks: mix(seed ^ 0x7368_7269).is_multiple_of(4),
            add_chance: if mix(seed ^ 0x6772_6f77).is_multiple_of(8) { 60_000 } else { 0 },
            disk_copies: Vec::new(),
            rotten: 0,
            accepted_losses: 0,
            accepts_losses: mix(seed ^ 0x6c6f_7374).is_multiple_of(3),
            lost_members: Vec::new(),
            unreadable: None,
            overwrites_unreadable: false,
            start_participants: 0,
            life: 0,
            last_life: BTreeMap::new(),
            violation: None,
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

    /// Returns a member by its number.
    pub(super) fn device(&self, number: u8) -> &PoolDevice {
        let adding = self.adding.iter().map(|adding| &adding.device);
        let mut all = self.devices.iter().chain(&self.removed_devices).chain(adding);
        all.find(|device| device.number == number).expect("a member that there is")
    }

    pub(super) fn pool(&mut self) -> &mut Pool {
        self.pool.as_mut().expect("the pool is open")
    }

    /// Returns whether the pool commits nothing any more.
    pub(super) fn has_failed(&self) -> bool {
        self.pool.as_ref().expect("open").has_failed()
    }

    pub(super) fn step(&mut self) -> Check {
        self.now += 1;
        self.step_full_file_systems();
        self.pump();
        match self.rng.below(100) {
            0..38 if !self.ios.is_empty() => self.end_io(false)?,
            0..62 if self.jobs.len() < 14 => self.begin_job()?,
            62..66 => self.merge_some(),
            66..75 => self.administer(),
            75 => self.random_move(),
            76..80 => self.end_barrier(),
            80..83 => {
                if !self.rng.chance(self.parameters.forgets_commits) {
                    self.pool().commit_if_due();
                }
                if self.rng.chance(self.parameters.checkpoints) {
                    self.pool().request_checkpoint();
                }
            }
            _ if !self.ios.is_empty() => self.end_io(false)?,
            _ => {}
        }
        if self.rng.chance(self.parameters.moves) {
            self.random_move();
        }
        if self.flattens && self.rng.chance(120_000) {
            self.random_flatten();
        }
        if self.parameters.interrupts_flattening > 0 {
            self.interrupt_flattening();
        }
        if self.add_chance > 0 && self.rng.chance(self.add_chance) {
            self.add_member_step();
        }
        if self.rng.chance(self.parameters.member_fails) && self.failing.is_none() {
            let member = usize::from(*self.rng.pick(&self.present_members()));
            self.failing = Some(member);
            self.note(|| format!("member {member} falls ill"), member as u64);
            self.count("members fall ill");
        }
        self.advance()
    }

    /// Takes the I/Os and barriers that the pool wants.
    pub(super) fn pump(&mut self) {
        while let Some(io) = self.pool.as_mut().expect("open").next_io(&mut self.memory) {
            let data = match io.op {
                PoolOp::Write { buffer } => self.memory.buffer(buffer)[..io.len as usize].to_vec(),
                _ => Vec::new(),
            };
            let mark = self.disks[usize::from(io.member)].mark();
            self.note(|| format!("pool wants {io:?}"), u64::from(io.token) ^ io.offset);
            let slow = match io.op {
                PoolOp::Flush => self.parameters.slow_flushes,
                PoolOp::Copy { .. } => self.parameters.slow_data,
                _ if io.offset >= self.device(io.member).layout.owners => self.parameters.slow_tables,
                _ => self.parameters.slow_rings,
            };
            self.push(Io::Pool { io, data, mark }, slow);
        }
        if self.barrier.is_none()
            && let Some(number) = self.pool().next_barrier()
        {
            let in_flight = self.jobs.iter().map(|job| job.id).collect();
            self.barrier = Some((number, in_flight));
        }
    }

    /// Submits an I/O. `slow` is the chance per million that it takes long.
    pub(super) fn push(&mut self, io: Io, slow: u32) {
        let due = if self.rng.chance(slow) { self.now + self.rng.between(30, 500) } else { self.now };
        self.ios.push(PendingIo { due, io });
    }

    pub(super) fn end_barrier(&mut self) {
        if let Some((number, in_flight)) = &self.barrier
            && !self.jobs.iter().any(|job| in_flight.contains(&job.id))
        {
            let number = *number;
            self.barrier = None;
            self.pool().barrier_done(number);
            self.count("barriers");
        }
    }

    /// Ends one random I/O of those that are due; with `all`, of all.
    pub(super) fn end_io(&mut self, all: bool) -> Check {
        let due: Vec<usize> = (0..self.ios.len()).filter(|k| all || self.ios[*k].due <= self.now).collect();
        if due.is_empty() {
            return Ok(());
        }
        let at = *self.rng.pick(&due);
        match self.ios.swap_remove(at).io {
            Io::Pool { io, data, mark } => self.end_pool_io(io, &data, mark),
            Io::Copied { io, words } => self.end_copy(io, &words),
            Io::Write { job, member, offset, words, fua, fails } => {
                let fails = fails || self.failing == Some(member);
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
                if let JobKind::Read { in_flight } = &mut job.kind {
                    *in_flight -= 1;
                }
                let (volume, start) = (job.volume, job.start);
                self.check_read(volume, start, block, &words)?;
            }
        }
        Ok(())
    }

    fn end_pool_io(&mut self, io: PoolIo, data: &[u8], mark: u64) {
        let fails = self.failing == Some(usize::from(io.member));
        let full = !fails && self.finds_no_space(&io);
        let disk = &mut self.disks[usize::from(io.member)];
        match io.op {
            PoolOp::Flush if fails => {}
            PoolOp::Flush => disk.flushed(mark),
            PoolOp::Write { .. } if fails => {
                // Some of the write may have arrived.
                disk.write_torn(io.offset, data, &mut self.rng);
            }
            PoolOp::Write { .. } if full => self.write_without_space(&io, data),
            PoolOp::Write { .. } => disk.write(io.offset, data),
            PoolOp::Discard if fails => {}
            PoolOp::Discard => disk.discard(io.offset),
            PoolOp::Copy { from_member, from_offset } => {
                let from = &self.disks[usize::from(from_member)];
                let words = (0..io.len / BLOCK).map(|k| from.block(from_offset + k * BLOCK)).collect();
                return self.push(Io::Copied { io, words }, self.parameters.slow_data);
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
            return self.check_no_space_error();
        }
        let commits = self.pool().commits_done() - before;
        self.counters.add("", "commits", commits);
        let layout = self.device(io.member).layout;
        self.note_moment(match io.op {
            _ if commits > 0 => Moment::Committed,
            PoolOp::Flush => Moment::Flushed,
            PoolOp::Discard => Moment::Discarded,
            PoolOp::Copy { .. } => Moment::Copied,
            PoolOp::Write { .. } if io.offset >= layout.owners => Moment::Table,
            PoolOp::Write { .. } if io.offset >= layout.starts + 2 * BLOCK => Moment::Batch,
            PoolOp::Write { .. } => Moment::Start,
        });
    }

    fn end_copy(&mut self, io: PoolIo, words: &[u64]) {
        let fails = self.failing == Some(usize::from(io.member)) || self.rng.chance(self.parameters.io_fails);
        for (k, word) in (0..).zip(words) {
            if !fails || self.rng.coin() {
                self.disks[usize::from(io.member)].set_block(io.offset + k * BLOCK, *word);
            }
        }
        self.note(|| format!("copy {io:?} has ended, fails {fails}"), u64::from(io.token));
        self.count(if fails { "copies failed" } else { "copies" });
        self.pool().io_done(io.token, if fails { Err(ErrorKind::Io) } else { Ok(()) });
        self.note_moment(Moment::Copied);
        self.count_consolidated();
    }

    /// Lets everything in flight end, and merges all deleted snapshots.
    pub(super) fn quiesce(&mut self) -> Check {
        self.parameters.io_fails = 0;
        self.restore_space();
        for _ in 0..200_000 {
            self.now += 1;
            self.retry_writes();
            self.pump();
            if !self.ios.is_empty() {
                self.end_io(true)?;
            }
            self.end_barrier();
            self.advance()?;
            if self.ios.is_empty() && self.jobs.is_empty() && self.calls.is_empty() {
                if self.flattens {
                    self.flatten_step(1000);
                }
                match self.merge_step(1000) {
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
            self.calls.len()
        ))
    }
}

/// Runs a seed.
pub fn run(seed: u64, options: &Options) -> Outcome {
    let mut world = World::new(seed, options);
    let violation = run_lives(&mut world, options).err();
    Outcome { counters: world.counters, hash: world.hash, violation }
}

fn run_lives(world: &mut World, options: &Options) -> Check {
    world.make_disks();
    world.reopen(Rule::Kill)?;
    let lives = 1 + world.rng.below(u64::from(options.lives_max));
    for life in 0..lives {
        world.run_life(options)?;
        if world.failing.is_none() && (life + 1 == lives || world.rng.chance(150_000)) {
            world.quiesce()?;
            world.verify_at_rest()?;
            if world.missing.is_empty() && world.rng.coin() {
                world.verify_moved()?;
            }
            if world.flattens && world.missing.is_empty() {
                world.verify_flattened()?;
            }
        }
        let rule = world.crash();
        world.rot(rule)?;
        let rule = world.lose_member(rule);
        world.reopen(rule)?;
    }
    world.quiesce()?;
    world.verify_at_rest()
}

impl World {
    /// Runs one life: a random number of steps, or fewer if a crash aims at a moment in it.
    pub(super) fn run_life(&mut self, options: &Options) -> Check {
        self.begin_life();
        let steps = 1 + self.rng.below(options.steps_mean * 2);
        let any = *self.rng.pick(&Moment::ALL);
        self.aim = if self.rng.coin() { Some(self.parameters.aim.unwrap_or(any)) } else { None };
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

    /// Notes that a moment has come. If the crash aims at it, it may follow soon.
    pub(super) fn note_moment(&mut self, moment: Moment) {
        if self.aim == Some(moment) && self.fuse.is_none() && self.rng.chance(250_000) {
            self.fuse = Some(self.rng.below(if moment == Moment::Merged { 40 } else { 12 }));
        }
    }
}
