//! The state that the administrator's tasks and the event loop of a life share.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use braid_engine::io::{DeviceId, LeafId};
use braid_geometry::Level;

use crate::acts::DiskFault;
use crate::arrays::ArrayState;
use crate::copies::Copies;
use crate::counters::Counters;
use crate::disk_pair::DiskPair;
use crate::joblist::JobList;
use crate::journal_refusal::JournalRefusal;
use crate::labelled::Labelled;
use crate::meta::Task;
use crate::mirrors::Mirror;
use crate::oracle::{Oracle, Violation};
use crate::rng::Rng;
use crate::rot::{Rot, RotRequest};
use crate::workload::Workload;

/// The state that tasks and the event loop share. It is borrowed only briefly, never across an await.
pub struct RunState {
    /// Checks the results.
    pub oracle: Oracle,
    /// The clients.
    pub workload: Workload,
    /// Arrays without labels, as the administrator knows them.
    pub arrays: Vec<ArrayState>,
    /// Arrays with labels: all that were ever created.
    pub labelled: Vec<Labelled>,
    /// Redundant arrays.
    pub mirrors: Vec<Mirror>,
    /// The jobs of redundant arrays, as their reconcilers report them.
    pub jobs: JobList,
    /// Copies of blocks that have rotted.
    pub rot: Rot,
    /// Served redundant arrays that have dropped or replaced a member since they were started.
    pub lost: BTreeSet<DeviceId>,
    /// Tasks that a task has started.
    pub spawned: Vec<Task>,
    /// Disks that a task wants reopened, as soon as no I/O is in flight on them: the number of the request, and the
    /// leaf.
    pub reopening: Vec<(u64, LeafId)>,
    /// Disks on which arrays with labels are created.
    pub label_disks: Vec<usize>,
    /// Levels of arrays with labels.
    pub levels: Vec<Level>,
    /// The last number used for a name.
    pub serial: u64,
    /// Whether any disk failed in this life.
    pub had_faults: bool,
    /// The name of the administrator's current action. A planned crash may aim at it, and crashes are counted by it.
    pub phase: &'static str,
    /// Number of actions that the administrator has begun.
    pub begun: u64,
    /// A violation that a task found.
    pub violation: Option<Violation>,
    /// What tasks exercised.
    pub counters: Counters,
    /// Check that a drained layout has no request in flight.
    pub check_drained: bool,
    /// Notes of tasks for the trace.
    pub notes: Vec<String>,
    /// Disks that may have lost acknowledged writes since they last joined the array.
    pub lossy: BTreeSet<usize>,
    /// Disks that a task wants pulled.
    pub pull: Vec<usize>,
    /// Disks whose file system is to become full.
    pub fill_up: Vec<usize>,
    /// The half of a redundant array that serves separately from the other half.
    pub half: Option<DeviceId>,
    /// Randomness for old copies of disks of arrays without redundancy: a stream of its own.
    pub old_copies: Rng,
    /// Randomness for growth, if anything grows: a stream of its own, so that other seeds stay the same.
    pub growth: Option<Rng>,
    /// Randomness for mirrors that get wider and narrower, if they do: a stream of its own.
    pub widths: Option<Rng>,
    /// Randomness for journals on disks of their own, if there are such disks: a stream of its own.
    pub journals: Option<Rng>,
    /// Arrays whose start was refused because their journal was missing.
    pub journal_refusals: Vec<JournalRefusal>,
    /// Disks that a task wants enlarged: the leaf, and the size in bytes.
    pub enlarge: Vec<(LeafId, u64)>,
    /// Devices that have grown, with their new sizes in bytes. An entry is removed once every shard has the new layout.
    pub spreading: Vec<(DeviceId, u64)>,
    /// Disks that have grown while their labels still state the old size.
    pub enlarged: BTreeSet<usize>,
    /// Disks that a growth interrupted by a crash was adding as members: they may bear a label of the array.
    pub half_taken: BTreeSet<usize>,
    /// Redundant arrays that are not in use: all their copies must be equal.
    pub compare: Vec<Copies>,
    /// Two disks that a task wants compared. The result is in `differing_ranges`.
    pub disk_pair: Option<DiskPair>,
    /// The ranges found to differ, in bytes from the start of both data areas.
    pub differing_ranges: Option<Vec<Range<u64>>>,
    /// Names of the moments that tasks have reached since the event loop last took this list; see
    /// [`World::moments`](crate::world::World::moments).
    pub moments: Vec<&'static str>,
    /// Number of moments of each kind in this life.
    pub(crate) seen: BTreeMap<&'static str, u64>,
    /// Slots of the members that were promoted in this life, and have been in sync since.
    pub promoted: BTreeSet<u16>,
    /// Faults that a scenario injects into disks.
    pub disk_faults: Vec<(usize, DiskFault)>,
    /// Faults that a scenario injects when a device is frozen the next time.
    pub at_freeze: Vec<(usize, DiskFault)>,
    /// Blocks that are to become unreadable on all members.
    pub unreadable: Vec<RotRequest>,
}

impl RunState {
    /// Creates the state of a run that has not begun, with these clients.
    pub fn new(workload: Workload) -> RunState {
        RunState {
            oracle: Oracle::default(),
            workload,
            arrays: Vec::new(),
            labelled: Vec::new(),
            mirrors: Vec::new(),
            jobs: JobList::default(),
            rot: Rot::default(),
            lost: BTreeSet::new(),
            spawned: Vec::new(),
            reopening: Vec::new(),
            label_disks: Vec::new(),
            levels: vec![Level::Concat, Level::Raid0],
            serial: 0,
            had_faults: false,
            phase: "",
            begun: 0,
            violation: None,
            counters: Counters::default(),
            check_drained: true,
            notes: Vec::new(),
            lossy: BTreeSet::new(),
            pull: Vec::new(),
            fill_up: Vec::new(),
            half: None,
            old_copies: Rng::new(0),
            growth: None,
            widths: None,
            journals: None,
            journal_refusals: Vec::new(),
            enlarge: Vec::new(),
            spreading: Vec::new(),
            enlarged: BTreeSet::new(),
            half_taken: BTreeSet::new(),
            compare: Vec::new(),
            disk_pair: None,
            differing_ranges: None,
            moments: Vec::new(),
            seen: BTreeMap::new(),
            promoted: BTreeSet::new(),
            disk_faults: Vec::new(),
            at_freeze: Vec::new(),
            unreadable: Vec::new(),
        }
    }

    /// Returns the number of moments of this kind in this life.
    pub fn seen(&self, moment: &str) -> u64 {
        self.seen.get(moment).copied().unwrap_or(0)
    }

    /// Records that these members of an array with parity were dropped.
    pub fn record_dropped_members(&mut self, device: DeviceId, slots: &[u16], in_time: bool) {
        let RunState { mirrors, oracle, .. } = self;
        let of = mirrors.iter().filter(|mirror| mirror.serves_as == Some(device));
        of.filter_map(|mirror| mirror.number)
            .for_each(|number| oracle.stripe_writes(number).drop_members(slots, in_time));
    }

    /// Records that a member of an array with parity is in sync.
    pub fn record_promotion(&mut self, device: DeviceId) {
        let RunState { mirrors, oracle, .. } = self;
        let of = mirrors.iter().filter(|mirror| mirror.serves_as == Some(device));
        of.filter_map(|mirror| mirror.number).for_each(|number| oracle.stripe_writes(number).promote());
    }
}
