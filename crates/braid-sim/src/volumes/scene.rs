//! What the administrators' tasks, the clients and the loop of a life all look at; and what is known of the pool over all lives.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use braid_engine::pool::{Pool, PoolDevice, VolumeId};
use braid_engine::{DeviceId, PoolCall, PoolMembers, Uuid};

use super::clients::Asked;
use super::members::Member;
use super::nature::Nature;
use super::oracle::{Block, Rule};
use crate::counters::Counters;
use crate::meta::Task;
use crate::pools::Shm;
use crate::rng::Rng;

pub(super) const BLOCK: u64 = 4096;

/// A volume or snapshot as whoever uses it knows it.
#[derive(Clone)]
pub(super) struct Known {
    pub uuid: Uuid,
    /// Its name; two while it is being given another.
    pub names: Vec<String>,
    /// `None`: a volume. Else the volume that it was taken of.
    pub of: Option<Uuid>,
    pub blocks: Vec<Block>,
    /// A snapshot: what began from then on it does not show.
    pub until: u64,
    pub life: Life,
    /// Of a volume that is to grow, which is not acknowledged: the blocks that it had.
    pub had: Option<usize>,
    pub served: Option<Served>,
    /// An administrator is at it.
    pub busy: bool,
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

/// How it is served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    pub id: VolumeId,
    pub device: DeviceId,
    /// Blocks that every shard offers.
    pub blocks: u64,
    /// Clients may ask for it.
    pub open: bool,
    /// It is being withdrawn: it may be gone for whoever asks.
    pub going: bool,
}

/// What tasks want of the shards.
pub(super) enum Wish {
    Serve(Box<Pool>, Arc<PoolMembers>),
    Call(u64, PoolCall, Then),
    Leave,
}

/// What is done as soon as a call was made, before anything else happens.
pub(super) type Then = Box<dyn FnOnce(&mut Scene)>;

/// See the module's page.
pub(super) struct Scene {
    pub nature: Nature,
    pub uuid: Uuid,
    pub owner_slots: u32,
    pub members: Vec<Member>,
    /// The members have been made ready for a pool.
    pub made: bool,
    /// Memory that survives a kill, by session.
    pub shm: BTreeMap<u64, Arc<Shm>>,
    pub known: BTreeMap<Uuid, Known>,
    pub names: u64,
    /// Volumes become smaller, too.
    pub shrinks: bool,
    /// Volumes are made independent of others.
    pub flattens: bool,
    /// Volumes take whole sectors; what decides about these has a course of its own, so that others' stories stay what they are.
    pub sectors: Option<Rng>,
    pub tick: u64,
    pub rng: Rng,
    pub counters: Counters,
    /// Requests so far.
    pub requests: u64,

    /// What is lost since the last start that came to its end.
    after: Option<Rule>,

    // Of one life.
    pub home: u16,
    pub shards: u16,
    pub asked: BTreeMap<u64, Asked>,
    /// Memory that was answered for, and that a disk may still use.
    pub lent: BTreeMap<u64, Asked>,
    /// What is to be read: for whom, of which volume, from where, how many blocks.
    pub reads: VecDeque<(u64, Uuid, u64, u64)>,
    /// How much of that is left, by whom it is for.
    pub readings: BTreeMap<u64, u64>,
    pub wishes: Vec<Wish>,
    pub left: Option<Box<Pool>>,
    /// The pool was taken from its shards in order: everything is committed.
    pub closed: bool,
    /// Durable steps until the pool was open, in the last life in which it was.
    pub steps_of_start: u64,
    /// It has failed to write its own.
    pub failed: bool,
    pub called: BTreeMap<u64, bool>,
    /// Clients that are to be woken, and in how many nanoseconds.
    pub to_wake: Vec<(u64, u64)>,
    /// So many requests clients may still ask; and those who have found that there are no more.
    pub budget: u64,
    pub sleeping: Vec<u64>,
    pub quit: bool,
    pub helping: u64,
    pub spawned: Vec<Task>,
    pub reopening: Vec<(u64, braid_engine::LeafId)>,
    pub pull: Vec<usize>,
    /// Disks that are to have no space: before which byte, for how many nanoseconds, with which chance.
    pub starve: Vec<(usize, u64, u64, u32)>,
    pub moments: Vec<&'static str>,
    pub phase: &'static str,
    pub notes: Vec<String>,
    pub violation: Option<String>,
    pub next: u64,
    pub devices: BTreeSet<u32>,
}

impl Scene {
    pub fn new(nature: Nature, rng: Rng) -> Scene {
        Scene {
            nature,
            uuid: Uuid::from_u128(0x5a17_0000_1234_5678_9abc),
            owner_slots: 32,
            members: Vec::new(),
            made: false,
            shm: BTreeMap::new(),
            known: BTreeMap::new(),
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
            asked: BTreeMap::new(),
            lent: BTreeMap::new(),
            reads: VecDeque::new(),
            readings: BTreeMap::new(),
            wishes: Vec::new(),
            left: None,
            closed: false,
            steps_of_start: 0,
            failed: false,
            called: BTreeMap::new(),
            to_wake: Vec::new(),
            budget: 0,
            sleeping: Vec::new(),
            quit: false,
            helping: 0,
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

    /// The time of the oracle: each look at it is another.
    pub fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    pub fn new_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn wrong(&mut self, why: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(why());
        }
    }

    pub fn count(&mut self, group: &str, kind: &str) {
        self.counters.add(group, kind);
    }

    /// A start has come to its end. What each block is from now on is what it may have been at the crashes before.
    pub fn opened(&mut self) {
        let Some(rule) = self.after.take() else { return };
        for known in self.known.values_mut() {
            let until = known.until;
            known.blocks.iter_mut().for_each(|block| *block = block.left(until, rule));
            known.until = u64::MAX;
        }
    }

    /// The members, for the pool.
    pub fn pool_devices(&self) -> Vec<PoolDevice> {
        self.members.iter().map(|member| member.of_pool).collect()
    }

    /// A device for a volume, that no other is.
    pub fn take_device(&mut self) -> DeviceId {
        let number = (super::members::MEMBERS_MAX..).find(|number| !self.devices.contains(number));
        let number = number.expect("numbers do not end");
        self.devices.insert(number);
        DeviceId(number)
    }

    /// The process is no more, and so is what was known of it alone. `power`: with it the memory that outlives a process.
    pub fn bury(&mut self, power: bool, rule: Rule) {
        if power {
            self.shm.clear();
        }
        // What was only acknowledged is safe from loss of power once a start has come to its end.
        if !matches!((self.after, rule), (Some(Rule::Power), _)) {
            self.after = Some(rule);
        }
        self.known.values_mut().for_each(|known| (known.served, known.busy) = (None, false));
        self.asked.clear();
        self.lent.clear();
        self.reads.clear();
        self.readings.clear();
        self.wishes.clear();
        self.left = None;
        (self.closed, self.failed) = (false, false);
        self.called.clear();
        self.to_wake.clear();
        self.sleeping.clear();
        (self.quit, self.helping) = (false, 0);
        self.spawned.clear();
        self.reopening.clear();
        self.pull.clear();
        self.moments.clear();
        self.devices.clear();
        self.members.iter_mut().for_each(|member| member.serves = None);
    }
}
