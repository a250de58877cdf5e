//! A pool in use: volumes, snapshots and clones, requests to them from all shards, and what each block of them may read
//! as.

mod admin;
mod withdrawal;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use braid_engine::pool::on_disk::{Checkpoint, Owner, OwnerName};
use braid_engine::pool::{
    AdminError, EXTENT_BYTES, LogMemory, MemberLayout, OpenPool, OwnerId, Pool, PoolDevice, VolumeId, VolumeShared,
    open,
};
use braid_engine::*;

use super::oracle::{Block, Rule};
use super::rig::{BLOCK, BUFFERS, Kind, REQUEST_BYTES, Rig};

pub const KEY: PoolKey = PoolKey(2);
pub const OWNER_SLOTS: u32 = 64;
pub const POOL: Uuid = Uuid::from_u128(0x1234_5678_9abc);
const REQUEST_BLOCKS: u64 = REQUEST_BYTES / BLOCK;
const DEVICES: u32 = 256;

pub struct Heap(Box<[AtomicU64]>);

impl Heap {
    pub fn of(bytes: u64) -> Arc<dyn LogMemory> {
        Arc::new(Heap((0..bytes / 8).map(|_| AtomicU64::new(0)).collect()))
    }
}

impl LogMemory for Heap {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// Polls a future that never waits.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("everything answers at once"),
    }
}

/// The configuration of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    pub shards: u16,
    pub members: Vec<(Kind, u32)>,
    pub ring_blocks: u64,
    pub zero_slots: u32,
    pub limits: Limits,
    pub volume_blocks: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    /// Not acknowledged yet.
    Coming,
    There,
    /// No new requests are made to it.
    Leaving,
    /// It is being deleted.
    Going,
}

/// How a volume or snapshot is served.
struct Served {
    id: VolumeId,
    volume: Arc<VolumeShared>,
    pool: Arc<braid_engine::pool::PoolShared>,
    device: DeviceId,
    /// The newest layout, and on how many shards it has not drained since it was withdrawn.
    version: u32,
    undrained: usize,
    published: bool,
    withdrawn: u64,
}

/// A volume or snapshot as its user knows it.
pub struct KnownVolume {
    pub uuid: Uuid,
    /// Its pool.
    pub key: PoolKey,
    pub owner: OwnerId,
    pub read_only: bool,
    of: Option<Uuid>,
    pub blocks: Vec<Block>,
    /// For a snapshot: the instant that it was taken at.
    pub until: u64,
    life: Life,
    served: Option<Served>,
    /// Its map is being built.
    serving: bool,
}

impl KnownVolume {
    pub fn is_there(&self) -> bool {
        matches!(self.life, Life::There | Life::Leaving)
    }

    /// Returns what a block may read as for a read that begins at `start`.
    pub fn admissible(&self, block: u64, start: u64) -> Vec<u64> {
        let start = start.min(self.until);
        self.blocks[block as usize].admissible(self.until, Rule::Read(start))
    }
}

struct PendingRequest {
    shard: usize,
    volume: Uuid,
    op: Op,
    flags: Flags,
    block: u64,
    blocks: u64,
    start: u64,
    buffer: Option<usize>,
}

/// What is done when a call has ended.
enum Continuation {
    Nothing,
    Come(Vec<Uuid>),
    Go(Uuid),
    Serve(Uuid, Arc<Mutex<Option<HomeState>>>),
}

/// A second pool that is served by the same shards.
struct Second {
    key: PoolKey,
    home: ShardId,
    devices: Vec<PoolDevice>,
    places: Arc<PoolMembers>,
}

/// The home's state of a volume or snapshot that is served.
type HomeState = (VolumeId, Arc<VolumeShared>, Arc<braid_engine::pool::PoolShared>);

pub struct World {
    pub rig: Rig,
    pub setup: Setup,
    /// The pool that volumes are created in, and calls go to; and another one, if there is one.
    pub key: PoolKey,
    pub devices: Vec<PoolDevice>,
    places: Arc<PoolMembers>,
    pub home: ShardId,
    second: Option<Second>,
    pub known: BTreeMap<Uuid, KnownVolume>,
    pending: BTreeMap<u64, PendingRequest>,
    buffers: Vec<usize>,
    /// Requests that were answered while a disk still had their memory.
    busy: BTreeMap<u64, Option<usize>>,
    calls: BTreeMap<u64, Continuation>,
    next: u64,
    next_device: u32,
    done: Vec<Completion>,
    pub counts: BTreeMap<String, u64>,
    /// No write is refused for lack of space.
    pub roomy: bool,
    /// Its first member is replicated, and so its volumes answer under a lease.
    pub leased: bool,
    /// That lease.
    pub lease: Arc<DeviceLease>,
    /// The member that is being emptied.
    closed: Option<u8>,
    moved: u64,
    /// The pool is withdrawn.
    gone: bool,
    /// Whether requests enter before they begin, as those of NBD clients do; `None`: every second one.
    pub enters: Option<bool>,
    pub run: String,
}

impl World {
    pub fn new(setup: Setup, seed: u64) -> World {
        let mut rig = Rig::new(setup.shards, &Limits { devices: DEVICES, ..setup.limits }, seed);
        let devices = add_members(&mut rig, &setup, &setup.members);
        let home = ShardId(rig.random.below(u64::from(setup.shards)) as u16);
        let mut world = World {
            key: KEY,
            places: places_of(&devices),
            rig,
            devices,
            home,
            second: None,
            known: BTreeMap::new(),
            pending: BTreeMap::new(),
            buffers: (0..BUFFERS).collect(),
            busy: BTreeMap::new(),
            calls: BTreeMap::new(),
            next: 1,
            next_device: 100,
            done: Vec::new(),
            counts: BTreeMap::new(),
            roomy: false,
            leased: false,
            lease: Arc::new(DeviceLease::new(u64::MAX)),
            closed: None,
            moved: 0,
            gone: false,
            enters: None,
            run: format!("seed {seed}, {setup:?}"),
            setup,
        };
        world.format();
        world.open();
        world
    }

    /// Serves a second pool on members of its own, while nothing is in flight. From now on calls go to that one.
    pub fn add_pool(&mut self, members: &[(Kind, u32)]) {
        let devices = add_members(&mut self.rig, &self.setup, members);
        let home = ShardId(self.rig.random.below(u64::from(self.setup.shards)) as u16);
        self.second = Some(Second { key: PoolKey(KEY.0 + 1), home, places: places_of(&devices), devices });
        self.change_pool();
        self.format();
        self.open();
    }

    /// From now on calls go to the other pool.
    pub fn change_pool(&mut self) {
        let second = self.second.as_mut().expect("there is another one");
        std::mem::swap(&mut self.key, &mut second.key);
        std::mem::swap(&mut self.home, &mut second.home);
        std::mem::swap(&mut self.devices, &mut second.devices);
        std::mem::swap(&mut self.places, &mut second.places);
    }

    pub fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_string()).or_default() += 1;
    }

    fn format(&mut self) {
        for member in self.devices.clone() {
            let start = Checkpoint::first(&POOL, 1);
            self.at_once(Op::WriteZeroes, member.device, 0, member.layout.data, &[]).expect("zeros");
            self.at_once(Op::Write, member.device, member.layout.starts, 4096, &start.encode()).expect("a start");
            self.at_once(Op::Flush, member.device, 0, 0, &[]).expect("a flush");
        }
    }

    fn open(&mut self) {
        let what = OpenPool {
            uuid: POOL,
            members: &self.devices.clone(),
            owner_slots: OWNER_SLOTS,
            missing: 0,
            overwrites_unreadable: false,
            run: 77,
        };
        let io = Through(RefCell::new(self));
        let pool = now(open(&io, &what, |_| None, |_, bytes| Ok(Heap::of(bytes)))).expect("a pool");
        let (home, places) = (self.home, Arc::clone(&self.places));
        for (shard, _) in &mut self.rig.shards {
            shard.set_pool_home(self.key, home);
        }
        let (shard, sink) = &mut self.rig.shards[usize::from(home.0)];
        shard.serve_pool(self.key, Box::new(pool), places, sink);
        self.rig.after();
    }

    /// Carries out a request while nothing else is in flight. Returns the bytes of a read.
    fn at_once(&mut self, op: Op, device: DeviceId, offset: u64, len: u64, data: &[u8]) -> Result<Vec<u8>, IoError> {
        let addr = 0;
        self.rig.memory.borrow_mut()[..data.len()].copy_from_slice(data);
        let buf = Buf { addr, region: Buf::UNREGISTERED };
        let request = Request { device, op, flags: Flags::NONE, offset, len, buf, tag: u64::MAX };
        let (shard, sink) = &mut self.rig.shards[0];
        shard.submit(&request, sink)?;
        self.rig.after();
        let mut done = Vec::new();
        for _ in 0..1_000_000 {
            self.rig.shards[0].0.swap_done(&mut done);
            if let Some(completion) = done.first() {
                completion.result?;
                let len = if op == Op::Read { len as usize } else { 0 };
                return Ok(self.rig.memory.borrow()[..len].to_vec());
            }
            assert!(self.rig.step(), "{request:?} is not answered");
        }
        panic!("{request:?} does not end")
    }

    // Calls to the pool.

    fn call<R: Send + 'static>(
        &mut self,
        then: Continuation,
        mut call: impl FnMut(&mut Pool) -> (PoolNext, R) + Send + 'static,
    ) -> R {
        self.next += 1;
        let id = self.next;
        self.calls.insert(id, then);
        let result = Arc::new(Mutex::new(None));
        let into = Arc::clone(&result);
        let call = Box::new(move |pool: &mut Pool| {
            let (next, result) = call(pool);
            *into.lock().expect("one thread") = Some(result);
            next
        });
        let (shard, sink) = &mut self.rig.shards[usize::from(self.home.0)];
        shard.pool_call(id, self.key, call, sink);
        self.rig.after();
        let result = result.lock().expect("one thread").take();
        result.expect("a call is made at once")
    }

    /// Submits a request to a published volume. Returns false if it was refused, or there is no memory for it.
    pub fn ask(&mut self, shard: usize, uuid: Uuid, op: Op, flags: Flags, block: u64, blocks: u64) -> bool {
        let carries = matches!(op, Op::Read | Op::Write);
        assert!(!carries || blocks <= REQUEST_BLOCKS);
        if carries && self.buffers.is_empty() {
            return false;
        }
        let buffer = if carries { self.buffers.pop() } else { None };
        let start = self.rig.tick();
        self.next += 1;
        let tag = self.next;
        let addr = buffer.map_or(0, |buffer| buffer as u64 * REQUEST_BYTES);
        if carries {
            let mut memory = self.rig.memory.borrow_mut();
            for k in 0..blocks {
                let word = if op == Op::Write { word_of(tag, block + k) } else { 0xdbdb_dbdb };
                let at = (addr + k * BLOCK) as usize;
                memory[at..at + 8].copy_from_slice(&word.to_le_bytes());
                memory[at + 4088..at + 4096].copy_from_slice(&word.to_le_bytes());
            }
        }
        let served = self.known[&uuid].served.as_ref().expect("served");
        let (offset, len) = if op == Op::Flush { (0, 0) } else { (block * BLOCK, blocks * BLOCK) };
        let buf = if carries { Buf { addr, region: Buf::UNREGISTERED } } else { Buf::NONE };
        let request = Request { device: served.device, op, flags, offset, len, buf, tag };
        // A request over a bare disk and another one stays late until both have returned their I/O.
        let late_before = self.rig.bare_hangs() || self.rig.late_on_bare > 0 && self.rig.hangs();
        let (of, sink) = &mut self.rig.shards[shard];
        // Prefetching may announce requests that come, and others, at any time: it must have no effect.
        let other = UpcomingRequest { offset: tag * 77 % 5000 * BLOCK, write: tag.is_multiple_of(3) };
        of.prefetch(served.device, &[other, UpcomingRequest { offset, write: op == Op::Write }], sink);
        let result = if self.enters.unwrap_or(tag.is_multiple_of(2)) {
            let entered = of.enter(&request, sink);
            of.begin_entered(sink);
            entered
        } else {
            of.submit(&request, sink)
        };
        if let Err(error) = result {
            self.buffers.extend(buffer);
            self.count(&format!("refused: {:?}", error.kind));
            match error.kind {
                ErrorKind::Busy => {}
                ErrorKind::TimedOut => assert!(late_before, "refused for a disk that it does not need: {}", self.run),
                _ => panic!("{request:?} was refused: {error}, {}", self.run),
            }
            self.rig.after();
            return false;
        }
        if !matches!(op, Op::Read | Op::Flush) && !self.known[&uuid].read_only {
            let known = self.known.get_mut(&uuid).expect("known");
            for k in block..block + blocks {
                let word = if op == Op::Write { word_of(tag, k) } else { 0 };
                known.blocks[k as usize].begin(word, start, op == Op::Discard);
            }
        }
        self.pending.insert(tag, PendingRequest { shard, volume: uuid, op, flags, block, blocks, start, buffer });
        self.count(&format!("{op:?}"));
        self.rig.after();
        self.take_all();
        true
    }

    /// Makes something happen. Returns false if nothing can.
    pub fn step(&mut self) -> bool {
        let moved = self.rig.step();
        self.take_all();
        if !self.gone {
            self.continue_deletions();
        }
        moved
    }

    fn take_all(&mut self) {
        for shard in 0..self.rig.shards.len() {
            let mut done = std::mem::take(&mut self.done);
            self.rig.shards[shard].0.swap_done(&mut done);
            for completion in &done {
                self.answered(shard, completion);
            }
            self.done = done;
            while let Some(tag) = self.rig.shards[shard].0.pop_released() {
                let buffer = self.busy.remove(&tag);
                let buffer = buffer.unwrap_or_else(|| panic!("memory that nobody has is given back, {}", self.run));
                self.free_buffer(buffer);
            }
            while let Some((device, version)) = self.rig.shards[shard].0.pop_drained() {
                for served in self.known.values_mut().filter_map(|known| known.served.as_mut()) {
                    if (served.device, served.version) == (device, version) && !served.published {
                        served.undrained -= 1;
                    }
                }
            }
            while let Some((id, good)) = self.rig.shards[shard].0.pop_pool_call() {
                self.call_ended(id, good);
            }
        }
    }

    fn free_buffer(&mut self, buffer: Option<usize>) {
        if let Some(buffer) = buffer {
            let addr = buffer as u64 * REQUEST_BYTES;
            assert!(
                !self.rig.touches(addr, REQUEST_BYTES),
                "a disk still has memory that was given back, {}",
                self.run
            );
            self.buffers.push(buffer);
        }
    }

    fn call_ended(&mut self, id: u64, good: bool) {
        let then = self.calls.remove(&id).unwrap_or_else(|| panic!("a call ended twice, {}", self.run));
        assert!(good || self.rig.own_failed || self.gone, "a call failed, {}", self.run);
        match then {
            Continuation::Nothing => {}
            Continuation::Go(uuid) => {
                if self.known[&uuid].life == Life::Going {
                    self.known.remove(&uuid);
                }
            }
            Continuation::Serve(uuid, served) => {
                self.known.get_mut(&uuid).expect("no request may remove it").serving = false;
                let served = served.lock().expect("one thread").take();
                if let Some(at_home) = served {
                    self.count("served in slices");
                    self.is_served_by(uuid, at_home);
                }
            }
            Continuation::Come(uuids) => {
                for uuid in uuids {
                    if let Some(known) = self.known.get_mut(&uuid) {
                        known.life = if good { Life::There } else { Life::Coming };
                    }
                }
                if good && self.rig.random.one_in(3) {
                    self.check_durable();
                }
            }
        }
    }

    fn answered(&mut self, shard: usize, completion: &Completion) {
        let pending = self.pending.remove(&completion.tag);
        let pending = pending.unwrap_or_else(|| panic!("{completion:?} was not asked, {}", self.run));
        assert_eq!(pending.shard, shard);
        let end = self.rig.tick();
        let oldest = self.pending.values().map(|pending| pending.start).min().unwrap_or(end);
        if completion.buffer_busy {
            assert!(self.rig.hangs(), "nobody has that memory, {}", self.run);
            self.count("answered late");
        }
        let mut read = Vec::new();
        match completion.result {
            Err(error) => self.check_error(&pending, error),
            Ok(()) => match pending.op {
                Op::Read => read = self.check_read(&pending),
                Op::Flush => {
                    let known = self.known.get_mut(&pending.volume).expect("known");
                    if !known.read_only {
                        known.blocks.iter_mut().for_each(|block| block.flushed(pending.start));
                    }
                }
                _ => {
                    let known = self.known.get_mut(&pending.volume).expect("known");
                    assert!(!known.read_only, "a snapshot was written to, {}", self.run);
                    let durable = pending.flags.has(Flags::FUA);
                    for block in &mut known.blocks[pending.block as usize..(pending.block + pending.blocks) as usize] {
                        block.end(pending.start, end, durable);
                        block.prune(oldest);
                    }
                }
            },
        }
        match completion.buffer_busy {
            true => {
                self.busy.insert(completion.tag, pending.buffer);
            }
            false => self.free_buffer(pending.buffer),
        }
        let durable = pending.op == Op::Flush || pending.flags.has(Flags::FUA) && pending.op != Op::Read;
        if durable && completion.result.is_ok() && self.rig.random.one_in(12) {
            self.check_durable();
        }
        if self.leased && completion.result.is_ok() && self.rig.random.one_in(8) {
            // With nothing in flight, the content is what was read, and nothing else.
            let alone = pending.op == Op::Read && self.pending.is_empty();
            self.check_taken_over(end, alone.then_some((pending.volume, pending.block, read)));
        }
    }

    /// Memory of a read that a disk still has must not be filled by another I/O.
    fn may_time_out(&self, pending: &PendingRequest) -> bool {
        if pending.op == Op::Read { self.rig.late > 0 } else { self.rig.late_on_bare > 0 }
    }

    fn check_error(&mut self, pending: &PendingRequest, error: IoError) {
        self.count(&format!("{:?}", error.kind));
        if error.kind == ErrorKind::NoSpace && self.rig.bare_hangs() {
            self.count("NoSpace beside a disk that hangs");
        }
        let known = &self.known[&pending.volume];
        let served = known.served.as_ref().expect("served");
        let good = match error.kind {
            ErrorKind::Io => self.rig.failed_on_bare > 0,
            ErrorKind::TimedOut => self.may_time_out(pending),
            ErrorKind::NoSpace => !self.roomy && matches!(pending.op, Op::Write | Op::WriteZeroes),
            ErrorKind::NoDevice => served.withdrawn > pending.start,
            ErrorKind::ReadOnly => known.read_only && !matches!(pending.op, Op::Read | Op::Flush),
            ErrorKind::Unsupported => pending.flags.has(Flags::FAST_ZERO),
            ErrorKind::Failed => self.rig.own_failed,
            _ => false,
        };
        assert!(good, "{:?} of block {} failed: {error}, {}", pending.op, pending.block, self.run);
    }

    fn check_read(&mut self, pending: &PendingRequest) -> Vec<u64> {
        let mut words = Vec::new();
        let at = pending.buffer.expect("a read has memory") as u64 * REQUEST_BYTES;
        let known = self.known.get_mut(&pending.volume).expect("known");
        for k in 0..pending.blocks {
            let at = (at + k * BLOCK) as usize;
            let memory = self.rig.memory.borrow();
            let word = |at: usize| u64::from_le_bytes(memory[at..at + 8].try_into().expect("eight bytes"));
            let (word, last) = (word(at), word(at + 4088));
            let block = pending.block + k;
            let allowed = known.admissible(block, pending.start);
            assert!(
                word == last && allowed.contains(&word),
                "block {block} of {} reads as {word:x} and {last:x}, not as one of {allowed:x?}: {:x?}, {}",
                known.uuid,
                known.blocks[block as usize],
                self.run
            );
            if known.read_only {
                // It stays so.
                known.blocks[block as usize] = Block::of(word);
            }
            words.push(word);
        }
        words
    }

    // The end.

    /// Returns the number of requests that are not answered.
    pub fn unanswered(&self) -> usize {
        self.pending.len()
    }

    /// Returns the number of requests to this volume that are not answered.
    pub fn unanswered_of(&self, uuid: Uuid) -> usize {
        self.pending.values().filter(|pending| pending.volume == uuid).count()
    }

    /// Renews the lease for ever, and notifies all shards.
    pub fn renew(&mut self) {
        assert!(self.lease.renew(u64::MAX), "a request waits for it");
        let of = self.devices[0].device;
        for (shard, sink) in &mut self.rig.shards {
            shard.lease_renewed(of, sink);
        }
        self.rig.after();
    }

    /// Runs until everything in flight has ended; disks may keep their late I/O.
    pub fn settle(&mut self) {
        let mut steps = 0u64;
        while self.step() {
            steps += 1;
            assert!(steps < 3_000_000, "it does not come to rest: {} requests, {}", self.pending.len(), self.run);
        }
        let left: Vec<_> = self.pending.values().map(|a| (a.op, a.block, a.blocks, a.shard)).collect();
        assert!(left.is_empty(), "{} requests are never answered: {left:?}, {}", left.len(), self.run);
    }

    /// Ends everything, and checks that no resources are in use.
    pub fn end(&mut self) {
        self.settle();
        while self.rig.hangs() {
            self.rig.give_back();
            self.step();
        }
        self.settle();
        assert!(self.busy.is_empty(), "memory was not given back, {}", self.run);
        self.end_pool();
        if self.second.is_some() {
            self.change_pool();
            self.end_pool();
            self.change_pool();
        }
        self.settle();
        for (shard, _) in &self.rig.shards {
            assert_eq!((shard.in_flight(), shard.slots_in_use()), (0, 0), "{}", self.run);
            assert_eq!(shard.pools_in_use(), 0, "{}", self.run);
        }
        assert!(self.rig.shared.ranges().is_empty() && self.rig.shared.volume_ranges().is_empty(), "{}", self.run);
        assert_eq!(self.buffers.len(), BUFFERS);
    }

    fn end_pool(&mut self) {
        if !self.rig.own_failed {
            self.merge_all();
            self.move_all();
            assert!(self.calls.is_empty(), "{} calls never end, {}", self.calls.len(), self.run);
            self.read_all();
            self.check_durable();
            let good = self.look(|pool| (pool.is_settled(), pool.recount()));
            assert_eq!(good, (true, Ok(())), "{}", self.run);
        }
    }

    fn merge_all(&mut self) {
        use braid_engine::pool::MergeStep;
        for _ in 0..10_000 {
            let merged = self.merge(64);
            self.drain();
            self.settle();
            let settled = self.look(|pool| pool.is_settled());
            self.settle();
            if merged == MergeStep::Nothing && settled {
                return;
            }
        }
        panic!("deletions do not end, {}", self.run);
    }

    /// Moves everything that is to be moved, unless there is no space for it.
    fn move_all(&mut self) {
        use braid_engine::pool::MoveStep;
        let mut full_at = None;
        let ended = (0..10_000).find_map(|_| {
            // Each step says that nothing is to wait, and no step sees all of the records.
            let (moving, moved) = self.look(|pool| {
                pool.pause_moves(0, BTreeSet::new());
                (pool.move_step(100), pool.blocks_moved())
            });
            self.drain();
            self.settle();
            match moving {
                MoveStep::Done => return Some(moving),
                // What was moved is free by now, and has room for the next.
                MoveStep::Full if full_at.replace(moved) == Some(moved) => return Some(moving),
                MoveStep::Full => self.merge_all(),
                MoveStep::Unreadable => self.look(Pool::retry_moves),
                MoveStep::Some | MoveStep::Paused => {}
            }
            None
        });
        assert!(ended.is_some(), "what moves never ends, {}", self.run);
        self.merge_all();
        if let Some(member) = self.closed {
            let empty = self.look(move |pool| pool.is_member_empty(member));
            assert!(empty || ended == Some(MoveStep::Full), "member {member} is not empty: {ended:?}, {}", self.run);
            self.count(if empty { "members emptied" } else { "no space to empty a member" });
        }
        self.settle();
    }

    fn read_all(&mut self) {
        let is_there = |known: &&KnownVolume| known.life == Life::There && known.key == self.key;
        let all: Vec<Uuid> = self.known.values().filter(is_there).map(|known| known.uuid).collect();
        for uuid in all {
            if !self.is_served(uuid) {
                self.serve(uuid);
            } else if !self.is_published(uuid) {
                self.publish(uuid);
            }
            let blocks = self.known[&uuid].blocks.len() as u64;
            for block in (0..blocks).step_by(REQUEST_BLOCKS as usize) {
                let shard = self.rig.random.below(self.rig.shards.len() as u64) as usize;
                assert!(self.ask(shard, uuid, Op::Read, Flags::NONE, block, (blocks - block).min(REQUEST_BLOCKS)));
                self.settle();
            }
        }
    }
}

/// Creates devices for the members of a pool, in the order of numbers.
fn add_members(rig: &mut Rig, setup: &Setup, members: &[(Kind, u32)]) -> Vec<PoolDevice> {
    let mut devices = Vec::new();
    for (kind, extents) in members {
        let extents = *extents;
        let starts = BLOCK;
        let ring = starts + 2 * BLOCK;
        let owners = ring + setup.ring_blocks * BLOCK;
        let table = owners + u64::from(OWNER_SLOTS) * 256;
        let records = (u64::from(extents) + u64::from(setup.zero_slots)).next_multiple_of(128);
        let zero_slots = records as u32 - extents;
        let addresses = table + records * 32;
        let data = (addresses + u64::from(extents) * 512).next_multiple_of(EXTENT_BYTES);
        let device = rig.add_member(*kind, data + u64::from(extents) * EXTENT_BYTES, data);
        let places = MemberLayout { starts, owners, table, addresses, data };
        let number = devices.len() as u8;
        devices.push(PoolDevice {
            number,
            device,
            layout: places,
            ring: (ring, setup.ring_blocks),
            extents,
            zero_slots,
        });
    }
    devices
}

fn places_of(devices: &[PoolDevice]) -> Arc<PoolMembers> {
    let place = |of: &PoolDevice| (of.number, PoolMemberLocation { device: of.device, data: of.layout.data });
    Arc::new(PoolMembers::new(devices.iter().map(place)))
}

/// Devices that are read and written while nothing else happens.
struct Through<'a>(RefCell<&'a mut World>);

impl DeviceIo for Through<'_> {
    fn size_bytes(&self, device: DeviceId) -> u64 {
        self.0.borrow().rig.members[device.0 as usize].size
    }
    fn block_bytes(&self, _device: DeviceId) -> u32 {
        4096
    }
    async fn read(&self, device: DeviceId, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
        let mut all = Vec::new();
        while all.len() < len {
            let some = (len - all.len()).min(REQUEST_BYTES as usize) as u64;
            let at = offset + all.len() as u64;
            all.extend(self.0.borrow_mut().at_once(Op::Read, device, at, some, &[])?);
        }
        Ok(all)
    }
    async fn write(&self, device: DeviceId, offset: u64, data: Vec<u8>, _fua: bool) -> Result<(), IoError> {
        self.0.borrow_mut().at_once(Op::Write, device, offset, data.len() as u64, &data).map(drop)
    }
    async fn flush(&self, device: DeviceId) -> Result<(), IoError> {
        self.0.borrow_mut().at_once(Op::Flush, device, 0, 0, &[]).map(drop)
    }
    async fn discard(&self, _device: DeviceId, _offset: u64, _len: u64) -> Result<(), IoError> {
        Ok(())
    }
}

fn word_of(tag: u64, block: u64) -> u64 {
    tag << 16 | (block & 0xfff) << 4 | 1
}
