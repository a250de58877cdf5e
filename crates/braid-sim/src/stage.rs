//! What the administrator's tasks and the loop of a life both look at.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use braid_engine::io::{DeviceId, LeafId};
use braid_geometry::Level;

use crate::copies::Copies;
use crate::counters::Counters;
use crate::joblist::JobList;
use crate::labelled::Labelled;
use crate::meta::Task;
use crate::oracle::{Oracle, Violation};
use crate::plot::ArrayState;
use crate::plot::journal::Refused;
use crate::plot::liken::Alike;
use crate::plot::mirrors::Mirror;
use crate::plot::script::Spoil;
use crate::rng::Rng;
use crate::rot::{Rot, Wish};
use crate::workload::Workload;

/// What the tasks and the loop both look at. Borrowed for a moment at a time, never across a wait.
pub struct Stage {
    /// Who judges.
    pub oracle: Oracle,
    /// Who asks.
    pub workload: Workload,
    /// Arrays without labels, as the administrator knows them.
    pub arrays: Vec<ArrayState>,
    /// Arrays with labels, all that there ever were.
    pub labelled: Vec<Labelled>,
    /// Redundant arrays.
    pub mirrors: Vec<Mirror>,
    /// Their jobs, as their keepers tell of them.
    pub jobs: JobList,
    /// Copies of blocks that have rotted.
    pub rot: Rot,
    /// Redundant arrays that serve and have lost a member since they were started.
    pub lost: BTreeSet<DeviceId>,
    /// Tasks that a task has started.
    pub spawned: Vec<Task>,
    /// Disks that a task wants opened anew, as soon as nothing is under way on them: the number of the wish, and the leaf.
    pub reopening: Vec<(u64, LeafId)>,
    /// Disks on which arrays with labels are made.
    pub label_disks: Vec<usize>,
    /// Levels of arrays with labels.
    pub levels: Vec<Level>,
    /// Numbers names.
    pub serial: u64,
    /// Whether any disk made an error in this life.
    pub had_faults: bool,
    /// What is going on, for the count of crashes.
    pub phase: &'static str,
    /// How many things the administrator began to do.
    pub begun: u64,
    /// What a task found wrong.
    pub violation: Option<Violation>,
    /// What tasks exercised.
    pub counters: Counters,
    /// Check that what has drained has no user.
    pub check_drained: bool,
    /// What tasks want in the trace.
    pub notes: Vec<String>,
    /// Disks that may have lost what they had answered since they were let in last.
    pub lossy: BTreeSet<usize>,
    /// Disks that a task wants pulled.
    pub pull: Vec<usize>,
    /// Disks of which the file system below is about to be full.
    pub fill_up: Vec<usize>,
    /// Half a redundant array, while it serves apart from the other.
    pub half: Option<DeviceId>,
    /// Chance for old copies of disks of arrays that need all of them: of its own, too.
    pub old_copies: Rng,
    /// Chance for what grows, where something does: of its own, so that seeds in which nothing grows stay as they are.
    pub growth: Option<Rng>,
    /// Chance for mirrors that become wider and narrower, where they do: of its own, too.
    pub widths: Option<Rng>,
    /// Chance for journals on disks of their own, where there are such disks: of its own, too.
    pub journals: Option<Rng>,
    /// Arrays that were not started for want of their journals.
    pub refused: Vec<Refused>,
    /// Disks that a task wants to be larger: the leaf, and the size in bytes.
    pub enlarge: Vec<(LeafId, u64)>,
    /// Devices that have grown, and their sizes in bytes, as long as some shard does not know.
    pub spreading: Vec<(DeviceId, u64)>,
    /// Disks that have become larger, and whose labels do not say so.
    pub enlarged: BTreeSet<usize>,
    /// Disks that were to become further members when the growth was interrupted, and that may bear a label of it.
    pub half_taken: BTreeSet<usize>,
    /// Redundant arrays that nobody uses, all copies of which must be equal.
    pub compare: Vec<Copies>,
    /// Two disks in which somebody wants to know what differs.
    pub alike: Option<Alike>,
    /// What was found of that: places from the start of both.
    pub unlike: Option<Vec<Range<u64>>>,
    /// Moments that a task has come to.
    pub moments: Vec<&'static str>,
    /// How many of each kind there were in this life.
    pub(crate) seen: BTreeMap<&'static str, u64>,
    /// Members that were promoted in this life, by role, and are in sync since.
    pub promoted: BTreeSet<u16>,
    /// What a drill wants of disks.
    pub spoil: Vec<(usize, Spoil)>,
    /// The same, from the next freeze on.
    pub at_freeze: Vec<(usize, Spoil)>,
    /// Blocks that are to be readable nowhere.
    pub unreadable: Vec<Wish>,
}

impl Stage {
    /// Nothing has happened, and nobody is there but these clients.
    pub fn new(workload: Workload) -> Stage {
        Stage {
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
            refused: Vec::new(),
            enlarge: Vec::new(),
            spreading: Vec::new(),
            enlarged: BTreeSet::new(),
            half_taken: BTreeSet::new(),
            compare: Vec::new(),
            alike: None,
            unlike: None,
            moments: Vec::new(),
            seen: BTreeMap::new(),
            promoted: BTreeSet::new(),
            spoil: Vec::new(),
            at_freeze: Vec::new(),
            unreadable: Vec::new(),
        }
    }

    /// How many moments of this kind there were in this life.
    pub fn seen(&self, moment: &str) -> u64 {
        self.seen.get(moment).copied().unwrap_or(0)
    }
}
