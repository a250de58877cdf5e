//! The reconciler of a redundant array while it serves: drops members that fail, rebuilds members that come, resyncs
//! what a crash left unequal, and clears dirty bits that are no longer needed.
//!
//! One asynchronous task per array over [`ReconcilerIo`], the same in the daemon and in the simulator. It has no other
//! source of time or randomness, and needs no executor of its own.
//!
//! It does one thing at a time, in this order of priority: a fault reported by the shards, an order, a step of work. A
//! step of work is abandoned when a fault arrives and begun again later, so it must be repeatable. A change of the
//! labels is never abandoned.

mod check;
mod clear;
mod copy;
mod dirty_log;
mod external_delta;
mod findings;
mod flight;
mod governor;
mod grow;
mod hold;
mod io;
mod jobs;
mod marks;
mod members;
mod orders;
mod pace;
mod race;
mod rebuild;
mod replace;
mod reread;
mod resync;
mod ring;
mod stripes;
mod stuck;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use braid_engine::{
    DeviceId, DeviceLayout, DeviceLease, Fault, LeafId, LostStripes, Marks, MemberRole, MemberSet, MirrorMember,
    MirrorNode, Node, RegionMap, ShardId, mirror::copies_of,
};
use braid_format::{JobKind, MemberState};

use crate::lifecycle::{Array, ArrayBitmap, JournalStart, LifecycleError, Retirement, load_regions, recover_journal};
use check::Check;
use clear::Clearing;
use copy::PartialCopy;
use dirty_log::DirtyLog;
use jobs::Jobs;
use pace::Pace;
use race::{First, first, poll_once};
use rebuild::Rebuild;
use stuck::Stuck;

pub use findings::{CheckFrom, FINDING_OFFSETS_MAX, FINDINGS_BLOCK_BYTES, Findings};
pub use io::ReconcilerIo;
pub use jobs::{JobInfo, JobStage};
pub use orders::{Order, OrderResult};

/// Read errors of one member that are repaired; at the next one the member is dropped.
pub const REPAIRS_MAX: u32 = 64;

/// Maximum number of layouts published before one of them has drained.
const POSTED_MAX: u32 = 16;

/// Options of an array's reconciler.
#[derive(Clone, Debug)]
pub struct ReconcilerOptions {
    /// The number under which the array is served.
    pub device: DeviceId,
    /// Its logical block in bytes.
    pub block_bytes: u32,
    /// The home shard of its regions.
    pub home: ShardId,
    /// The array was stopped cleanly: dirty regions are equal on all members in sync.
    pub clean: bool,
    /// Start although the journal cannot be used (then every region ever written is marked dirty), or sectors of the
    /// bitmap are damaged on every member (then their regions count as written and dirty).
    pub force: bool,
    /// A dirty bit that was not needed for about this long is cleared, in nanoseconds.
    pub clear_after_ns: u64,
    /// Set if the array is replicated: the lease under which it serves.
    pub lease: Option<Arc<DeviceLease>>,
    /// The array takes requests of whole sectors ([`DeviceLayout::in_sectors`]): only without parity, and under a
    /// lease.
    pub in_sectors: bool,
    /// The nearest member: the others are read only if it cannot answer.
    pub nearest: Option<u16>,
}

/// An event that the reconciler reports.
#[derive(Clone, Debug)]
pub enum ReconcilerEvent {
    /// Members were dropped.
    Dropped(Vec<u16>),
    /// A member has begun to be rebuilt.
    RebuildStarted(u16),
    /// A member is in sync.
    InSync(u16),
    /// A member was replaced: its successor, on this disk, has its slot, and is in sync or still being rebuilt.
    Replaced(u16, LeafId),
    /// What a crash had left unequal is equal.
    Resynced,
    /// More members have failed than the array tolerates.
    ArrayFailed,
    /// An unreadable range was rewritten: the member, the first byte on the array, and bytes.
    Repaired(u16, u64, u64),
    /// The array has grown: its sizes in bytes, before and after.
    Grown(u64, u64),
    /// A range to be copied that no member in sync can read.
    Unreadable {
        /// Its first byte on the array.
        offset: u64,
        /// Unreadable bytes, there and further on in the same region.
        bytes: u64,
        /// The members that should hold it.
        sources: Vec<u16>,
        /// The rebuilding members that are not promoted before they have it.
        rebuilding: Vec<u16>,
    },
    /// The journal's log ring has moved: to this disk, or to the members.
    RingMoved {
        /// The disk.
        to: Option<LeafId>,
        /// The disk that held it before has failed.
        lost: bool,
    },
    /// A job has begun, progressed (a few reports a second at most), was paused or resumed, or has ended.
    Job(JobInfo),
    /// An operation failed.
    OperationFailed(LifecycleError),
}

/// The reconciler of one array.
pub struct Reconciler {
    options: ReconcilerOptions,
    array: Array,
    regions: Arc<RegionMap>,
    /// The slots as last published.
    published: Vec<(Option<LeafId>, MemberRole)>,
    failed: bool,
    jobs: Jobs,
    pace: Pace,
    rebuilds: BTreeMap<u16, Rebuild>,
    /// Of a replicated array: the dirty logs of members that failed or have returned.
    dirty_logs: BTreeMap<u16, DirtyLog>,
    /// Members about to be dropped because they are gone or do not respond, or by order. They may have kept every write
    /// that they acknowledged.
    unreached: BTreeSet<u16>,
    clearing: Clearing,
    check: Option<Check>,
    repairs: BTreeMap<u16, u32>,
    /// Failed attempts to copy a region because of read errors.
    tries: BTreeMap<u32, u32>,
    stuck: Stuck,
    /// Read errors of members during a copy from another member.
    reread: Vec<Fault>,
    /// Layouts published since the last one that is known to have drained.
    posted: u32,
    /// Regions copied in part, while the members stay the same.
    begun: BTreeMap<u32, PartialCopy>,
    /// Regions that were unequal and have been copied to all members, but not flushed.
    copied: BTreeSet<u32>,
    /// How many regions were unequal when the array was started.
    resync_total: u64,
    /// The member being retired because its successor is in sync.
    retiring: Option<u16>,
    /// Members that the array has grown by lack the earlier bitmap.
    spread_bitmap: bool,
    /// At levels with parity: the journal's state at its start.
    journal: Option<JournalStart>,
    /// The log ring is about to move.
    ring_moves: bool,
    /// Stripes with unreadable blocks.
    lost: Arc<LostStripes>,
    /// The journal marks that are retired.
    marks: Arc<Marks>,
    /// How a change of the labels has marks retired before it drops members.
    retirement: Arc<Retirement>,
    /// Such a change has frozen the device, and no layout was published since.
    frozen: Arc<AtomicBool>,
    /// Requests are held until then, or until they are released.
    held_until_ns: Option<u64>,
}

/// What a step of work requests.
enum Act {
    /// Nothing.
    Nothing,
    /// The log ring is on a disk that has failed.
    MoveRing,
    /// The time limit of a hold has expired.
    Release,
    /// This member failed an I/O of the reconciler itself.
    Drop(u16),
    /// A member failed to read what was then copied from another.
    Reread(Fault),
    /// This member holds everything.
    Promote(u16),
    /// This member holds everything before this byte of the array.
    Checkpoint(u16, u64),
}

/// An array whose reconciler has ended.
pub struct StoppedArray {
    /// The array, which no longer serves.
    pub array: Array,
    /// All members in sync hold the same content, some of it perhaps only in their caches. After a flush, the labels
    /// may record a clean stop: [`Array::stop`] does both.
    pub is_clean: bool,
}

impl Reconciler {
    /// Recovers the journal of a started array if it has parity, reads its bitmap, and publishes its layout to the
    /// shards, so that it serves. The caller calls [`Reconciler::run`] next: until then no fault is handled.
    ///
    /// # Errors
    /// A journal or a bitmap that cannot be used, or [`LifecycleError::BeyondTolerance`]. Nothing is published then.
    pub async fn start<I: ReconcilerIo>(
        io: &I,
        mut array: Array,
        options: ReconcilerOptions,
    ) -> Result<Reconciler, LifecycleError> {
        let mut journal = None;
        if array.geometry().spec().level.parity() > 0 {
            // The session id is random and unique to this start.
            let random = array.label().session;
            journal = Some(recover_journal(io, &mut array, random, options.force).await?);
        }
        let bits = load(io, &mut array, options.force).await?;
        let (size, region) = (array.geometry().size_bytes(), array.label().region_bytes);
        let bits = (&bits.written[..], &bits.dirty[..]);
        // With parity, the journal's recovery has already made equal what a crash left unequal.
        let equal = options.clean || journal.is_some();
        let regions = RegionMap::new(options.home, array.uuid(), size, region, bits, equal);
        let resync_total = regions.unequal.count();
        let marks = Arc::<Marks>::default();
        let retirement = Arc::new(Retirement::new(Arc::clone(&marks)));
        if journal.is_some() {
            array.retire_through(Some(Arc::clone(&retirement)));
        }
        let mut reconciler = Reconciler {
            options,
            array,
            regions: Arc::new(regions),
            published: Vec::new(),
            failed: false,
            jobs: Jobs::default(),
            pace: Pace::new(),
            rebuilds: BTreeMap::new(),
            dirty_logs: BTreeMap::new(),
            unreached: BTreeSet::new(),
            clearing: Clearing::default(),
            check: None,
            repairs: BTreeMap::new(),
            tries: BTreeMap::new(),
            stuck: Stuck::default(),
            reread: Vec::new(),
            posted: 0,
            begun: BTreeMap::new(),
            copied: BTreeSet::new(),
            resync_total,
            retiring: None,
            spread_bitmap: false,
            lost: Arc::new(LostStripes::new(journal.as_ref().map_or(&[], |journal| &journal.lost))),
            marks,
            retirement,
            frozen: Arc::default(),
            journal,
            ring_moves: false,
            held_until_ns: None,
        };
        if reconciler.journal.as_ref().is_some_and(|journal| journal.disk_lost) {
            io.report(reconciler.options.device, ReconcilerEvent::RingMoved { to: None, lost: true });
        }
        if resync_total > 0 {
            reconciler.begin_job(io, JobKind::Resync, None, JobStage::Running, 0);
        }
        reconciler.track_rebuilds(io);
        let layout = reconciler.layout(io);
        // Published on every shard before the first request, so that the home shard knows its regions.
        io.publish(reconciler.options.device, Some(layout)).await;
        Ok(reconciler)
    }

    /// Returns the array and its on-disk state.
    pub fn array(&self) -> &Array {
        &self.array
    }

    /// Returns its regions.
    pub fn regions(&self) -> &Arc<RegionMap> {
        &self.regions
    }

    /// Returns the device that it is served as.
    pub fn device(&self) -> DeviceId {
        self.options.device
    }

    /// Runs until the order to stop.
    pub async fn run<I: ReconcilerIo>(self, io: &I) -> StoppedArray {
        let mark_retirer = self.mark_retirer(io);
        mark_retirer.beside(self.serve(io)).await
    }

    async fn serve<I: ReconcilerIo>(mut self, io: &I) -> StoppedArray {
        let device = self.options.device;
        // Completes replacements that the previous run had begun.
        self.settle_successors(io).await;
        loop {
            // Old layouts pinned by a hanging disk are bounded: with too many of them, no order is accepted.
            let room = self.posted < POSTED_MAX;
            let order = async { if room { io.order(device).await } else { std::future::pending().await } };
            match first(io.next_fault(device), order, self.work(io)).await {
                First::A(trouble) => self.on_fault(io, trouble).await,
                First::B((id, Order::Stop)) => {
                    let kept = self.stop(io).await;
                    io.report_result(id, Ok(()));
                    return kept;
                }
                First::B((id, order)) => {
                    let result = self.execute(io, order).await;
                    io.report_result(id, result);
                }
                First::C(act) => self.act(io, act).await,
            }
        }
    }

    async fn act<I: ReconcilerIo>(&mut self, io: &I, act: Act) {
        match act {
            Act::Nothing => {}
            Act::MoveRing => self.move_ring(io, true, None).await,
            Act::Release => drop(self.release(io)),
            Act::Drop(role) => self.drop_and_settle(io, &[role], false).await,
            Act::Reread(trouble) => self.on_fault(io, trouble).await,
            Act::Promote(role) => self.promote(io, role).await,
            Act::Checkpoint(role, position) => {
                let result = self.array.checkpoint(io, role, position).await;
                self.after_labels(io, result).await;
            }
        }
    }

    /// Makes one step of work, or waits until there is one.
    async fn work<I: ReconcilerIo>(&mut self, io: &I) -> Act {
        if self.failed {
            return std::future::pending().await;
        }
        if let Some(until_ns) = self.held_until_ns {
            // Nothing may change on any member meanwhile.
            io.sleep(until_ns.saturating_sub(io.now_ns())).await;
            return Act::Release;
        }
        if self.needs_ring_move() {
            return Act::MoveRing;
        }
        // Wait until the layouts before this one have drained. Before that, a piece that was begun under one of them
        // may still copy from a member that was dropped since, while its region is to be settled from another source
        // now.
        let unsettled = self.posted > 0 && self.regions.unequal.count() > 0;
        if unsettled || self.posted > POSTED_MAX / 2 {
            let layout = self.layout(io);
            io.publish(self.options.device, Some(layout)).await;
            self.posted = 0;
            return Act::Nothing;
        }
        if let Some(trouble) = self.reread.pop() {
            return Act::Reread(trouble);
        }
        if self.spread_bitmap {
            self.spread_bitmap(io).await;
            return Act::Nothing;
        }
        if let Some(act) = self.resync(io).await {
            return act;
        }
        if let Some(act) = self.rebuild(io).await {
            return act;
        }
        let wait = self.clear_in_ns(io);
        if wait == 0 {
            return self.clear(io).await;
        }
        if let Some(act) = self.check(io).await {
            return act;
        }
        // Requests do not wake this task. While the resync is paused, look again soon whether one waits for an unequal
        // region, which is copied all the same.
        let poll_ns = if self.regions.unequal.count() > 0 { copy::PAUSE_NS } else { u64::MAX };
        io.sleep(wait.min(poll_ns).min(self.stuck.wait_ns(io))).await;
        Act::Nothing
    }

    /// Ends the service. Every acknowledged write is on all members in sync.
    async fn stop<I: ReconcilerIo>(mut self, io: &I) -> StoppedArray {
        self.settle_journal(io).await;
        io.publish(self.options.device, None).await;
        // No shard has its journal from now on.
        self.array.retire_through(None);
        // No layout without a member that failed last was published: that member may hold writes that the others lack,
        // or lack writes that they hold. It is dropped, so that the others are equal.
        let mut lost = Vec::new();
        while let Some(trouble) = poll_once(io.next_fault(self.options.device)).await {
            if let Some(role) = self.faulty_member(&trouble).filter(|_| trouble.freezes_device())
                && !lost.contains(&role)
            {
                lost.push(role);
            }
        }
        let mut equal = !self.failed && self.regions.unequal.count() == 0;
        if equal {
            // Each marked stripe is in place, or untouched, on all members except the failed ones.
            self.array.end_run();
        }
        if !lost.is_empty() && equal {
            equal = self.array.drop_members(io, &lost).await.is_ok();
        }
        StoppedArray { array: self.array, is_clean: equal }
    }

    /// Returns the current layout, with a new version.
    fn layout<I: ReconcilerIo>(&mut self, io: &I) -> Arc<DeviceLayout> {
        let members = self.members();
        self.published = members.iter().map(|m| ((m.role != MemberRole::Failed).then_some(m.leaf), m.role)).collect();
        let parity = self.parity_node(members.len());
        let node = MirrorNode {
            geometry: self.array.geometry().clone(),
            members,
            successors: self.array.successors().collect(),
            regions: Arc::clone(&self.regions),
            parity,
            failed: self.failed,
        };
        let node = Node::Mirrored(Box::new(node));
        let layout = DeviceLayout::new(io.next_version(self.options.device), self.options.block_bytes, &node);
        let layout = match &self.options.lease {
            Some(lease) => layout.replicated(Arc::clone(lease)).recording_missed(self.missed()),
            None => layout,
        };
        let layout = if self.options.in_sectors { layout.with_sector_requests() } else { layout };
        let layout =
            layout.vacant(self.array.vacant().fold(MemberSet::NONE, |roles, role| roles.with(usize::from(role))));
        Arc::new(if self.held_until_ns.is_some() { layout.held() } else { layout })
    }

    fn members(&self) -> Vec<MirrorMember> {
        let label = self.array.label();
        let vacant_member = MirrorMember {
            leaf: LeafId(u32::MAX),
            start: 0,
            len: 0,
            bitmap_start: 0,
            role: MemberRole::Failed,
            write_mostly: false,
        };
        let mut members = vec![vacant_member; usize::from(self.array.slots())];
        for member in self.array.members() {
            let at = usize::from(member.number);
            if members.len() <= at {
                members.resize(at + 1, vacant_member);
            }
            let role = if member.state == MemberState::InSync { MemberRole::InSync } else { MemberRole::Rebuilding };
            members[at] = MirrorMember {
                leaf: member.leaf,
                start: member.part.layout.data.start,
                len: member.part.layout.data.bytes,
                bitmap_start: member.part.layout.bitmap.start,
                role,
                write_mostly: label.members[at].write_mostly
                    || self.options.nearest.is_some_and(|near| near != member.number),
            };
        }
        members
    }

    /// Whether the current layout differs from the published one.
    fn has_changed(&self) -> bool {
        let now = self.members();
        let now = now.iter().map(|m| ((m.role != MemberRole::Failed).then_some(m.leaf), m.role));
        !now.eq(self.published.iter().copied())
    }

    /// Returns the members that take writes, and their disks.
    fn serving(&self) -> Vec<(u16, LeafId)> {
        let holds =
            |m: &crate::lifecycle::ArrayMember<'_>| matches!(m.state, MemberState::InSync | MemberState::Rebuilding);
        self.array.members().filter(holds).map(|m| (m.number, m.leaf)).collect()
    }

    /// Calls `out` for every copy of a byte of the array, including those on successors.
    fn copies(&self, offset: u64, out: &mut impl FnMut(braid_geometry::MemberRange)) {
        let successors: Vec<_> = self.array.successors().collect();
        copies_of(self.array.geometry(), &successors, offset, out);
    }

    /// Returns the kind of the job that rebuilds a member.
    fn rebuild_kind(&self, role: u16) -> JobKind {
        if role < self.array.slots() { JobKind::Rebuild } else { JobKind::Replace }
    }

    /// Returns the members in sync.
    fn in_sync(&self) -> MemberSet {
        let set = |roles: MemberSet, m: crate::lifecycle::ArrayMember<'_>| match m.state {
            MemberState::InSync => roles.with(usize::from(m.number)),
            _ => roles,
        };
        self.array.members().fold(MemberSet::NONE, set)
    }
}

/// Reads the bitmap. A member that fails to take the merged bitmap is dropped.
async fn load<I: ReconcilerIo>(io: &I, array: &mut Array, force: bool) -> Result<ArrayBitmap, LifecycleError> {
    loop {
        let error = match load_regions(io, array, force).await {
            Ok(bits) => return Ok(bits),
            Err(error) => error,
        };
        let failed = array.members().find(|m| Some(m.leaf) == error.leaf() && m.state == MemberState::InSync);
        let Some(role) = failed.map(|m| m.number) else { return Err(error) };
        array.drop_members(io, &[role]).await?;
    }
}
