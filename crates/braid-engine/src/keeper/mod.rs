//! What keeps a redundant array well while it serves: members that fail are left out, those that come are filled, what a
//! crash left unequal is made equal, and bits that are no longer needed are taken away.
//!
//! One asynchronous procedure for each array, over [`KeeperIo`]: the same in the daemon and in the simulator. It reads no
//! clock and draws no chance but through that door, and needs no executor of its own.
//!
//! It does one thing at a time, and in this order: a trouble that the shards tell, an order, a step of work. Work is given
//! up in the middle when a trouble comes, and begun again: each step may be repeated. What changes labels never is.

mod absences;
mod check;
mod clear;
mod copy;
mod fill;
mod flight;
mod governor;
mod grow;
mod hold;
mod io;
mod jobs;
mod liken;
mod marks;
mod members;
mod orders;
mod pace;
mod race;
mod replace;
mod reread;
mod resync;
mod ring;
mod rows;
mod stuck;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use braid_format::{JobKind, MemberState};

use crate::device_lease::DeviceLease;
use crate::io::{DeviceId, LeafId, ShardId};
use crate::layout::{DeviceLayout, Node};
use crate::lifecycle::{Array, JournalStart, LifecycleError, Regions, Retirement, load_regions, recover_journal};
use crate::lost_rows::LostRows;
use crate::marks::Marks;
use crate::mirror::{MirrorMember, MirrorNode, Role, Roles, copies_of};
use crate::planted::{Planted, planted};
use crate::regions::RegionMap;
use crate::trouble::Trouble;
use absences::Absence;
use check::Check;
use clear::Clearing;
use copy::Begun;
use fill::Fill;
use jobs::Jobs;
use pace::Pace;
use race::{First, at_once, first};
use stuck::Stuck;

pub use check::{CheckFrom, FINDINGS_BLOCK_BYTES, Findings, PLACES_MAX};
pub use io::{EngineIo, KeeperIo, SyncPart};
pub use jobs::{JobInfo, JobStage};
pub use orders::{Order, Ordered};
pub use rows::UnreadableLines;

/// Read errors of one member that are mended; with one more it is left out.
pub const REPAIRS_MAX: u32 = 64;

/// Layouts that may be published before one of them has drained.
const POSTED_MAX: u32 = 16;

/// How the keeper of an array goes about it.
#[derive(Clone, Debug)]
pub struct KeeperOptions {
    /// The number under which the array is served.
    pub device: DeviceId,
    /// Its logical block in bytes.
    pub block_bytes: u32,
    /// The shard that is home to its regions.
    pub home: ShardId,
    /// It was stopped in order: what is dirty is equal on all members that are in sync.
    pub clean: bool,
    /// Where bits are damaged on every member: go on, with all that they stand for as written and dirty.
    pub force: bool,
    /// Dirty bits that nobody has needed for about so long are taken away, in nanoseconds.
    pub clear_after_ns: u64,
    /// It is replicated, and answers under this lease.
    pub lease: Option<Arc<DeviceLease>>,
    /// It takes requests of whole sectors ([`DeviceLayout::in_sectors`]): only of copies, and under a lease.
    pub in_sectors: bool,
    /// This member is nearer than the others: they are read when it cannot answer.
    pub near: Option<u16>,
}

/// What a keeper tells whoever watches.
#[derive(Clone, Debug)]
pub enum Note {
    /// Members are left out.
    Dropped(Vec<u16>),
    /// A member is being filled.
    Filling(u16),
    /// A member is in sync.
    InSync(u16),
    /// A member was replaced: its successor, on this disk, has its role, and is in sync or still being filled.
    Replaced(u16, LeafId),
    /// What a crash had left unequal is equal.
    Resynced,
    /// More members are lost than the array tolerates.
    Failed,
    /// A place that could not be read was mended: the member, the first byte on the array, and bytes.
    Repaired(u16, u64, u64),
    /// The array has grown: its sizes in bytes, before and now.
    Grown(u64, u64),
    /// A place that no member in sync can read, when it was to be copied.
    Unreadable {
        /// Its first byte on the array.
        offset: u64,
        /// Bytes that cannot be read, there and further on in the same region.
        bytes: u64,
        /// The members that should have it.
        sources: Vec<u16>,
        /// The members that are being filled, and are not promoted before they have it.
        lacking: Vec<u16>,
    },
    /// The ring of the journal has moved: to this disk, or to the members.
    RingMoved {
        /// The disk.
        to: Option<LeafId>,
        /// The disk that it was on before has failed.
        lost: bool,
    },
    /// A job has begun, has come further (told a few times a second at most), waits, goes on, or has ended.
    Job(JobInfo),
    /// Something did not succeed.
    Trouble(LifecycleError),
}

/// The keeper of one array.
pub struct Keeper {
    options: KeeperOptions,
    array: Array,
    regions: Arc<RegionMap>,
    /// The roles as they were published last.
    published: Vec<(Option<LeafId>, Role)>,
    failed: bool,
    jobs: Jobs,
    pace: Pace,
    fills: BTreeMap<u16, Fill>,
    /// Of a replicated array: members that are out, or come back, and what they miss.
    absences: BTreeMap<u16, Absence>,
    /// Members that are about to be left out as they do not answer, or by order: none of them has failed anything.
    unreached: BTreeSet<u16>,
    clearing: Clearing,
    check: Option<Check>,
    repairs: BTreeMap<u16, u32>,
    /// How often a region could not be copied as some of it could not be read.
    tries: BTreeMap<u32, u32>,
    stuck: Stuck,
    /// What some members could not read while it was copied from others.
    reread: Vec<Trouble>,
    /// Layouts published since the last one that has drained for certain.
    posted: u32,
    /// Regions of which something is copied, as long as the members stay the same.
    begun: BTreeMap<u32, Begun>,
    /// Regions that were unequal and are copied to all, but not flushed.
    copied: BTreeSet<u32>,
    /// How many were unequal when the array was started.
    resync_total: u64,
    /// The member that is being retired, as its successor is in sync.
    retiring: Option<u16>,
    /// The array has grown by members that lack the bits which were set before.
    spread_bits: bool,
    /// At levels with parity: with what its journal began.
    journal: Option<JournalStart>,
    /// The ring of the journal is about to move.
    ring_moves: bool,
    /// Rows of which something cannot be read.
    lost: Arc<LostRows>,
    /// Marks of the journal that are retired.
    marks: Arc<Marks>,
    /// How a change of the labels has marks retired before it leaves members out.
    retirement: Arc<Retirement>,
    /// Such a change has frozen the device, and no layout was published since.
    frozen: Arc<AtomicBool>,
    /// Requests wait until then, or until somebody ends that.
    held_until_ns: Option<u64>,
}

/// What a step of work came to.
enum Act {
    /// Go on.
    Nothing,
    /// The ring is on a disk that has failed.
    MoveRing,
    /// Requests have waited long enough.
    LetGo,
    /// This member failed the keeper itself.
    Lose(u16),
    /// A member could not read what was copied from another.
    Reread(Trouble),
    /// This member holds everything.
    Promote(u16),
    /// This member holds everything before this byte of the array.
    Checkpoint(u16, u64),
}

/// An array whose keeper has ended.
pub struct Kept {
    /// The array, which serves no more.
    pub array: Array,
    /// All members that are in sync are equal, but for what their caches may lose: it may be noted that the array was stopped
    /// in order.
    pub equal: bool,
}

impl Keeper {
    /// Reads the bits of a started array, and serves it. To be kept from now on by [`Keeper::run`].
    ///
    /// # Errors
    /// Bits that cannot be read, or [`LifecycleError::Beyond`].
    pub async fn start<I: KeeperIo>(
        io: &I,
        mut array: Array,
        options: KeeperOptions,
    ) -> Result<Keeper, LifecycleError> {
        let mut journal = None;
        if array.geometry().spec().level.parity() > 0 {
            // The session is random, and this start's alone.
            let random = array.label().session;
            journal = Some(recover_journal(io, &mut array, random, options.force).await?);
        }
        let bits = load(io, &mut array, options.force).await?;
        let (size, region) = (array.geometry().size_bytes(), array.label().region_bytes);
        let bits = (&bits.written[..], &bits.dirty[..]);
        // With parity, what a crash left unequal was made equal with the journal.
        let equal = options.clean || journal.is_some() || planted(Planted::DirtyServed);
        let regions = RegionMap::new(options.home, array.uuid(), size, region, bits, equal);
        let resync_total = regions.unsettled.count();
        let marks = Arc::<Marks>::default();
        let retirement = Arc::new(Retirement::new(Arc::clone(&marks)));
        if journal.is_some() {
            array.retire_through(Some(Arc::clone(&retirement)));
        }
        let mut keeper = Keeper {
            options,
            array,
            regions: Arc::new(regions),
            published: Vec::new(),
            failed: false,
            jobs: Jobs::default(),
            pace: Pace::new(),
            fills: BTreeMap::new(),
            absences: BTreeMap::new(),
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
            spread_bits: false,
            lost: Arc::new(LostRows::new(journal.as_ref().map_or(&[], |journal| &journal.lost))),
            marks,
            retirement,
            frozen: Arc::default(),
            journal,
            ring_moves: false,
            held_until_ns: None,
        };
        if keeper.journal.as_ref().is_some_and(|journal| journal.disk_lost) {
            io.note(keeper.options.device, Note::RingMoved { to: None, lost: true });
        }
        if resync_total > 0 {
            keeper.begin_job(io, JobKind::Resync, None, JobStage::Running, 0);
        }
        keeper.notice_filling(io);
        let layout = keeper.layout(io);
        // On every shard before the first request: the home of its regions knows it then.
        io.publish(keeper.options.device, Some(layout)).await;
        Ok(keeper)
    }

    /// The array as it is on its disks.
    pub fn array(&self) -> &Array {
        &self.array
    }

    /// Its regions.
    pub fn regions(&self) -> &Arc<RegionMap> {
        &self.regions
    }

    /// The device that it is served as.
    pub fn device(&self) -> DeviceId {
        self.options.device
    }

    /// Keeps the array until it is ordered to stop.
    pub async fn run<I: KeeperIo>(self, io: &I) -> Kept {
        let retires_marks = self.retires_marks(io);
        retires_marks.beside(self.serve(io)).await
    }

    async fn serve<I: KeeperIo>(mut self, io: &I) -> Kept {
        let device = self.options.device;
        // What the last run had begun.
        self.settle_successors(io).await;
        loop {
            // What a disk that hangs keeps of old layouts is bounded: with many of them no order is taken.
            let room = self.posted < POSTED_MAX;
            let order = async { if room { io.order(device).await } else { std::future::pending().await } };
            match first(io.trouble(device), order, self.work(io)).await {
                First::A(trouble) => self.on_trouble(io, trouble).await,
                First::B((id, Order::Stop)) => {
                    let kept = self.stop(io).await;
                    io.ordered(id, Ok(()));
                    return kept;
                }
                First::B((id, order)) => {
                    let result = self.obey(io, order).await;
                    io.ordered(id, result);
                }
                First::C(act) => self.act(io, act).await,
            }
        }
    }

    async fn act<I: KeeperIo>(&mut self, io: &I, act: Act) {
        match act {
            Act::Nothing => {}
            Act::MoveRing => self.move_ring(io, true, None).await,
            Act::LetGo => drop(self.let_go(io)),
            Act::Lose(role) => self.lose(io, &[role], false).await,
            Act::Reread(trouble) => self.on_trouble(io, trouble).await,
            Act::Promote(role) => self.promote(io, role).await,
            Act::Checkpoint(role, position) => {
                let result = self.array.checkpoint(io, role, position).await;
                self.after_labels(io, result).await;
            }
        }
    }

    /// One step of work, or a wait for there to be some.
    async fn work<I: KeeperIo>(&mut self, io: &I) -> Act {
        if self.failed {
            return std::future::pending().await;
        }
        if let Some(until_ns) = self.held_until_ns {
            // Nothing changes on any member meanwhile.
            io.sleep(until_ns.saturating_sub(io.now_ns())).await;
            return Act::LetGo;
        }
        if self.is_ring_astray() {
            return Act::MoveRing;
        }
        // A part that was begun with the layout before may still copy from a member that has been left out since, which is
        // another source than the one that its region is settled from now.
        let unsettled = self.posted > 0 && self.regions.unsettled.count() > 0;
        if unsettled || self.posted > POSTED_MAX / 2 {
            let layout = self.layout(io);
            io.publish(self.options.device, Some(layout)).await;
            self.posted = 0;
            return Act::Nothing;
        }
        if let Some(trouble) = self.reread.pop() {
            return Act::Reread(trouble);
        }
        if self.spread_bits {
            self.spread_bits(io).await;
            return Act::Nothing;
        }
        if let Some(act) = self.resync(io).await {
            return act;
        }
        if let Some(act) = self.fill(io).await {
            return act;
        }
        let wait = self.clear_in_ns(io);
        if wait == 0 {
            return self.clear(io).await;
        }
        if let Some(act) = self.check(io).await {
            return act;
        }
        // Somebody may come to wait for what is unequal, while the resync is paused.
        let looks = if self.regions.unsettled.count() > 0 { copy::PAUSE_NS } else { u64::MAX };
        io.sleep(wait.min(looks).min(self.stuck.wait_ns(io))).await;
        Act::Nothing
    }

    /// Ends the service. What was answered before is on every member that is in sync.
    async fn stop<I: KeeperIo>(mut self, io: &I) -> Kept {
        self.settle_journal(io).await;
        io.publish(self.options.device, None).await;
        // No shard has its journal any more.
        self.array.retire_through(None);
        // Who failed at last has something that the others have not, or lacks it.
        let mut lost = Vec::new();
        while let Some(trouble) = at_once(io.trouble(self.options.device)).await {
            if let Some(role) = self.troubled(&trouble).filter(|_| trouble.is_frozen())
                && !lost.contains(&role)
            {
                lost.push(role);
            }
        }
        let mut equal = !self.failed && self.regions.unsettled.count() == 0;
        if equal {
            // Each row that is marked is in place, or untouched, on all members but those that are lost.
            self.array.end_run();
        }
        if !lost.is_empty() && equal {
            equal = self.array.drop_members(io, &lost).await.is_ok();
        }
        Kept { array: self.array, equal }
    }

    /// The layout of now, of a version of its own.
    fn layout<I: KeeperIo>(&mut self, io: &I) -> Arc<DeviceLayout> {
        self.layout_without(io, &[])
    }

    /// The same without these members.
    fn layout_without<I: KeeperIo>(&mut self, io: &I, roles: &[u16]) -> Arc<DeviceLayout> {
        let mut members = self.members();
        for role in roles {
            if let Some(member) = members.get_mut(usize::from(*role)) {
                member.role = Role::Out;
            }
        }
        self.published = members.iter().map(|m| ((m.role != Role::Out).then_some(m.leaf), m.role)).collect();
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
            Some(lease) => layout.replicated(Arc::clone(lease)).noting(self.missed()),
            None => layout,
        };
        let layout = if self.options.in_sectors { layout.in_sectors() } else { layout };
        let layout = layout.vacant(self.array.vacant().fold(Roles::NONE, |roles, role| roles.with(usize::from(role))));
        Arc::new(if self.held_until_ns.is_some() { layout.held() } else { layout })
    }

    fn members(&self) -> Vec<MirrorMember> {
        let label = self.array.label();
        let nobody = MirrorMember {
            leaf: LeafId(u32::MAX),
            start: 0,
            len: 0,
            bitmap_start: 0,
            role: Role::Out,
            write_mostly: false,
        };
        let mut members = vec![nobody; usize::from(self.array.roles())];
        for member in self.array.members() {
            let at = usize::from(member.role);
            if members.len() <= at {
                members.resize(at + 1, nobody);
            }
            let role = if member.state == MemberState::InSync { Role::InSync } else { Role::Filling };
            members[at] = MirrorMember {
                leaf: member.leaf,
                start: member.part.places.data.start,
                len: member.part.places.data.bytes,
                bitmap_start: member.part.places.bitmap.start,
                role,
                write_mostly: label.members[at].write_mostly
                    || self.options.near.is_some_and(|near| near != member.role),
            };
        }
        members
    }

    /// Whether the layout of now is not what was published.
    fn has_changed(&self) -> bool {
        let now = self.members();
        let now = now.iter().map(|m| ((m.role != Role::Out).then_some(m.leaf), m.role));
        !now.eq(self.published.iter().copied())
    }

    /// The members that take writes, and their disks.
    fn serving(&self) -> Vec<(u16, LeafId)> {
        let holds =
            |m: &crate::lifecycle::ArrayMember<'_>| matches!(m.state, MemberState::InSync | MemberState::Filling);
        self.array.members().filter(holds).map(|m| (m.role, m.leaf)).collect()
    }

    /// Gives every copy of a byte of the array, successors' too.
    fn copies(&self, offset: u64, out: &mut impl FnMut(braid_geometry::Piece)) {
        let successors: Vec<_> = self.array.successors().collect();
        copies_of(self.array.geometry(), &successors, offset, out);
    }

    /// The kind of the job that fills a member.
    fn fill_kind(&self, role: u16) -> JobKind {
        if role < self.array.roles() { JobKind::Rebuild } else { JobKind::Replace }
    }

    /// The members that are in sync.
    fn in_sync(&self) -> Roles {
        let set = |roles: Roles, m: crate::lifecycle::ArrayMember<'_>| match m.state {
            MemberState::InSync => roles.with(usize::from(m.role)),
            _ => roles,
        };
        self.array.members().fold(Roles::NONE, set)
    }
}

/// Reads the bits. A member that does not take the merged ones is left out.
async fn load<I: KeeperIo>(io: &I, array: &mut Array, force: bool) -> Result<Regions, LifecycleError> {
    loop {
        let error = match load_regions(io, array, force).await {
            Ok(bits) => return Ok(bits),
            Err(error) => error,
        };
        let failed = array.members().find(|m| Some(m.leaf) == error.leaf() && m.state == MemberState::InSync);
        let Some(role) = failed.map(|m| m.role) else { return Err(error) };
        array.drop_members(io, &[role]).await?;
    }
}
