//! The state that the administrators' tasks, the clients and the loop of a life share; and what is known of the pool
//! over all lives.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use braid_engine::pool::{Pool, PoolDevice, VolumeId};
use braid_engine::{DeviceId, PoolCall, PoolMembers, Uuid};

use super::members::{MEMBERS_MAX, Member};
use super::oracle::{Block, Rule};
use super::parameters::Parameters;
use super::request::PendingRequest;
use crate::counters::Counters;
use crate::meta::Task;
use crate::pools::Shm;
use crate::rng::Rng;

/// A volume or snapshot as its clients and administrators know it.
#[derive(Clone)]
pub(super) struct VolumeModel {
    pub uuid: Uuid,
    /// Its name; two while a rename is not acknowledged.
    pub names: Vec<String>,
    /// The volume that a snapshot was taken of; `None`: a volume.
    pub snapshot_of: Option<Uuid>,
    pub blocks: Vec<Block>,
    /// A snapshot does not show changes that began at this time or later.
    pub until: u64,
    pub lifecycle: Lifecycle,
    /// The number of blocks before a growth that is not acknowledged yet.
    pub blocks_before: Option<usize>,
    pub served: Option<Served>,
    /// An administrator is using it.
    pub busy: bool,
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

/// How a volume or snapshot is served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    pub id: VolumeId,
    pub device: DeviceId,
    /// The number of blocks that every shard offers.
    pub blocks: u64,
    /// Clients may make requests to it.
    pub open: bool,
    /// It is being withdrawn: requests may find no device.
    pub going: bool,
}

/// What tasks request of the shards.
pub(super) enum ShardRequest {
    Serve(Box<Pool>, Arc<PoolMembers>),
    Call(u64, PoolCall, AfterCall),
    Leave,
}

/// Runs right after a call was made on the pool, before any other event.
pub(super) type AfterCall = Box<dyn FnOnce(&mut SharedState)>;

/// The shared state; see the module documentation.
pub(super) struct SharedState {
    pub parameters: Parameters,
    pub uuid: Uuid,
    pub owner_slots: u32,
    pub members: Vec<Member>,
    /// The members have been prepared for a pool.
    pub made: bool,
    /// Memory that survives a kill, by session.
    pub shm: BTreeMap<u64, Arc<Shm>>,
    pub models: BTreeMap<Uuid, VolumeModel>,
    pub names: u64,
    /// Volumes are shrunk, too.
    pub shrinks: bool,
    /// Volumes are flattened.
    pub flattens: bool,
    /// Volumes take requests of whole sectors. The random stream of these is separate, so that the other runs stay
    /// unchanged.
    pub sectors: Option<Rng>,
    pub tick: u64,
    pub rng: Rng,
    pub counters: Counters,
    /// Number of requests so far.
    pub requests: u64,

    /// The rule of the crashes since the last start that completed.
    after: Option<Rule>,

    // State of one life.
    pub home: u16,
    pub shards: u16,
    pub pending: BTreeMap<u64, PendingRequest>,
    /// Requests that were answered and whose memory a disk may still use.
    pub lent: BTreeMap<u64, PendingRequest>,
    /// The parts of whole-volume reads that are to be submitted: number of the read, volume, first block, number of
    /// blocks.
    pub reads: VecDeque<(u64, Uuid, u64, u64)>,
    /// By number of the read, how many of its parts are left.
    pub readings: BTreeMap<u64, u64>,
    pub shard_requests: Vec<ShardRequest>,
    pub taken_pool: Option<Box<Pool>>,
    /// The pool was taken from its shards in order: everything is committed.
    pub closed: bool,
    /// Durable steps until the pool was open, in the last life in which it was opened.
    pub steps_of_start: u64,
    /// The pool has failed to write its own data.
    pub failed: bool,
    pub ended_calls: BTreeMap<u64, bool>,
    /// Clients that are to be woken, and in how many nanoseconds.
    pub to_wake: Vec<(u64, u64)>,
    /// How many more requests clients may make.
    pub budget: u64,
    /// The clients that found no budget left, to be woken when there is more.
    pub sleeping: Vec<u64>,
    pub quit: bool,
    pub active_admins: u64,
    pub spawned: Vec<Task>,
    pub reopening: Vec<(u64, braid_engine::LeafId)>,
    pub pull: Vec<usize>,
    /// Disks whose writes are to fail for lack of space: the disk, the byte below which they fail, for how many
    /// nanoseconds, and the chance per million.
    pub starve: Vec<(usize, u64, u64, u32)>,
    pub moments: Vec<&'static str>,
    pub phase: &'static str,
    pub notes: Vec<String>,
    pub violation: Option<String>,
    pub next: u64,
    pub devices: BTreeSet<u32>,
}

impl SharedState {
    pub fn new(parameters: Parameters, rng: Rng) -> SharedState {
        SharedState {
            parameters,
            uuid: Uuid::from_u128(0x5a17_0000_1234_5678_9abc),
            owner_slots: 32,
            members: Vec::new(),
            made: false,
            shm: BTreeMap::new(),
            models: BTreeMap::new(),
            names: 0,
            shrinks: false,
            flattens: false,
            sectors: None,
            tick: 1,
            rng,
            counters: Counters::default(),
            requests: 0,
            after: None,
            home: 0,
            shards: 1,
            pending: BTreeMap::new(),
            lent: BTreeMap::new(),
            reads: VecDeque::new(),
            readings: BTreeMap::new(),
            shard_requests: Vec::new(),
            taken_pool: None,
            closed: false,
            steps_of_start: 0,
            failed: false,
            ended_calls: BTreeMap::new(),
            to_wake: Vec::new(),
            budget: 0,
            sleeping: Vec::new(),
            quit: false,
            active_admins: 0,
            spawned: Vec::new(),
            reopening: Vec::new(),
            pull: Vec::new(),
            starve: Vec::new(),
            moments: Vec::new(),
            phase: "",
            notes: Vec::new(),
            violation: None,
            next: 0,
            devices: BTreeSet::new(),
        }
    }

    /// Returns the time of the oracle, which advances with each call.
    pub fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    pub fn new_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn set_violation(&mut self, why: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(why());
        }
    }

    pub fn count(&mut self, group: &str, kind: &str) {
        self.counters.add(group, kind);
    }

    /// Records that a start has completed. Each block now has any content that was possible at the crashes before,
    /// until a read or a write decides.
    pub fn opened(&mut self) {
        let Some(rule) = self.after.take() else { return };
        for model in self.models.values_mut() {
            let until = model.until;
            model.blocks.iter_mut().for_each(|block| *block = block.left(until, rule));
            model.until = u64::MAX;
        }
    }

    /// Returns the pool's members.
    pub fn pool_devices(&self) -> Vec<PoolDevice> {
        self.members.iter().map(|member| member.of_pool).collect()
    }

    /// Returns a device number for a volume that no other volume has.
    pub fn take_device(&mut self) -> DeviceId {
        let number = (MEMBERS_MAX..).find(|number| !self.devices.contains(number));
        let number = number.expect("numbers do not end");
        self.devices.insert(number);
        DeviceId(number)
    }

    /// Discards the state of a process that has ended. With `power` the memory that survives a process is lost, too.
    pub fn end_process(&mut self, power: bool, rule: Rule) {
        if power {
            self.shm.clear();
        }
        // What was only acknowledged is safe from a power cut once a start has completed.
        if !matches!((self.after, rule), (Some(Rule::Power), _)) {
            self.after = Some(rule);
        }
        self.models.values_mut().for_each(|model| (model.served, model.busy) = (None, false));
        self.pending.clear();
        self.lent.clear();
        self.reads.clear();
        self.readings.clear();
        self.shard_requests.clear();
        self.taken_pool = None;
        (self.closed, self.failed) = (false, false);
        self.ended_calls.clear();
        self.to_wake.clear();
        self.sleeping.clear();
        (self.quit, self.active_admins) = (false, 0);
        self.spawned.clear();
        self.reopening.clear();
        self.pull.clear();
        self.moments.clear();
        self.devices.clear();
        self.members.iter_mut().for_each(|member| member.stopped_array = None);
    }
}
