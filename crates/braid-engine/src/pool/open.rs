//! Opening a pool: puts together what its tables, rings and an old in-memory log say, writes that down, and serves it.
//!
//! The order makes it safe to interrupt this anywhere and begin again. All members flush, so that what was read is not
//! lost later. The valid commits are those of which every batch is present; the tables get their changes; all flush.
//! The rings begin a new run, so that dropped batches never become valid; all flush. The old log is committed; the
//! session is raised; only then the caller drops the old log.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use braid_format::Uuid;
use braid_format::pool::{
    BATCH_BYTES_MAX, Change, LogEntry, MISSING_MAX, MissingMember, MissingMembers, PoolMemberLayout, pool_tag,
};

use super::checkpoint::{CheckpointWriter, MemberLayout};
use super::commit::{BATCH_BLOCKS_MAX, BUFFERS, Commits, LogRing, PoolMemory, PoolOp};
use super::home::Pool;
use super::load::{apply, fits, load, refuse_unread_pages, verify};
use super::log_memory::LogMemory;
use super::memory_log::{LOG_UNITS_MAX, LOG_UNITS_MIN, MemoryLog, log_bytes, read_old_log};
use super::present_members::PresentMembers;
use super::recovery::{Recovered, Standing, decide_commits, read_logs, write_decisions};
use crate::io::{DeviceId, DeviceIo, IoError};
use crate::planted::{Planted, planted};

/// One member of a pool, as its label says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolDevice {
    /// Its number in the pool.
    pub number: u8,
    /// Its device.
    pub device: DeviceId,
    /// Its layout.
    pub layout: MemberLayout,
    /// First byte of the ring, and blocks in it.
    pub ring: (u64, u64),
    /// Its extents.
    pub extents: u32,
    /// Records without an extent.
    pub zero_slots: u32,
}

impl PoolDevice {
    /// Returns the member with this number and layout on a device.
    pub fn new(number: u8, device: DeviceId, places: &PoolMemberLayout) -> PoolDevice {
        PoolDevice {
            number,
            device,
            layout: MemberLayout {
                starts: places.checkpoints.start,
                owners: places.owners.start,
                table: places.table.start,
                addresses: places.addresses.start,
                data: places.data.start,
            },
            ring: (places.ring.start, u64::from(places.ring_blocks())),
            extents: places.extents,
            zero_slots: places.zero_slots,
        }
    }
}

/// The pool to open.
pub struct OpenPool<'a> {
    /// Its identity.
    pub uuid: Uuid,
    /// The present members, at least one, in the order of their numbers. A number that is neither present nor missing
    /// is no longer a member's.
    pub members: &'a [PoolDevice],
    /// Slots for owners.
    pub owner_slots: u32,
    /// Bit *i*: member *i* is missing, and the pool goes on without it. Blocks that it may have of a volume are in
    /// doubt; changes that were acknowledged and not flushed may be lost.
    pub missing: u128,
    /// Writes changes that a crash left even into table pages that cannot be read: all other content of such a page is
    /// damaged from then on. If false, such a pool is not opened ([`OpenError::Unread`]).
    pub overwrites_unreadable: bool,
    /// A random number for this open alone, not 0.
    pub run: u64,
}

impl OpenPool<'_> {
    pub(super) fn numbered(&self) -> impl Iterator<Item = (u8, &PoolDevice)> {
        self.members.iter().map(|member| (member.number, member))
    }

    pub(super) fn member(&self, number: u8) -> Option<&PoolDevice> {
        self.members.iter().find(|member| member.number == number)
    }
}

/// Why a pool cannot be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// A member cannot be read or written.
    #[error("member {member} of the pool cannot be {doing}: {error}")]
    Io {
        /// The member.
        member: u8,
        /// "read", "written" or "flushed".
        doing: &'static str,
        /// The reason.
        error: IoError,
    },
    /// A change that a crash left has to be written into a page of its tables that cannot be read.
    #[error(
        "the 4 KiB of tables at byte {offset} of member {member} of the pool cannot be read, and what a crash left in the rings is to be \
         written there: all else that stands in them would be lost"
    )]
    Unread {
        /// The member.
        member: u8,
        /// Where the page begins on the member's device, in bytes.
        offset: u64,
    },
    /// Neither of its ring starts is valid.
    #[error("member {0} of the pool has no valid start of its ring")]
    NoStart(u8),
    /// Something in its tables or rings is damaged.
    #[error("the metadata of member {member} of the pool are damaged: {what}")]
    Damaged {
        /// The member.
        member: u8,
        /// What, and where.
        what: String,
    },
    /// It returns, and lacks part of a commit that was decided to be valid while it was missing.
    #[error(
        "member {member} of the pool lacks part of commit {commit}, which counted when the pool went on without it: what it has does not fit \
         what the others have"
    )]
    LacksCommit {
        /// The member.
        member: u8,
        /// The commit.
        commit: u64,
    },
    /// It is an old copy of a member, or was used without the others.
    #[error("member {0} of the pool is an old copy, or was used without the others: its ring is of another run")]
    OtherRun(u8),
    /// Too many members are missing.
    #[error("the pool cannot go on without more than {MISSING_MAX} of its members")]
    TooManyMissing,
    /// The log of the last session exists, and cannot be used.
    #[error(
        "the pool's tail in shared memory cannot be used: {0}; without it, what was acknowledged and not flushed is lost"
    )]
    OldLog(&'static str),
    /// No shared memory is available for its log.
    #[error("no shared memory for the pool's tail: {0}")]
    LogMemory(String),
}

/// A log in this process's memory: for what an open has to commit before the pool serves.
struct ProcessMemory(Box<[AtomicU64]>);

impl LogMemory for ProcessMemory {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// Returns the maximum units for the log of a pool with these rings: a commit of all of it fits into each ring, beside
/// space that may be unusable.
pub fn log_units_for(members: &[PoolDevice]) -> u64 {
    log_units_of_ring(members.iter().map(|member| member.ring.1).min().unwrap_or(0))
}

/// Returns the same for a smallest ring of `blocks` blocks.
pub fn log_units_of_ring(blocks: u64) -> u64 {
    let batches = (blocks.saturating_sub(2 * BATCH_BLOCKS_MAX)) / BATCH_BLOCKS_MAX;
    // An entry that does not fit into a batch may leave a few units of it empty.
    (batches.saturating_sub(1) * 1016).clamp(LOG_UNITS_MIN, LOG_UNITS_MAX)
}

/// Opens a pool. `old(session)` returns the log that this session left, if it still exists; `begin(session, bytes)`
/// makes the memory for the new session's log.
///
/// When this returns, nothing depends on the old log any longer.
///
/// # Errors
/// See [`OpenError`]. Nothing is lost: the call may be repeated.
pub async fn open<I: DeviceIo>(
    io: &I,
    what: &OpenPool<'_>,
    old: impl Fn(u64) -> Option<Arc<dyn LogMemory>>,
    begin: impl FnOnce(u64, u64) -> Result<Arc<dyn LogMemory>, String>,
) -> Result<Pool, OpenError> {
    flush(io, what).await?;
    let (newest, found) = read_logs(io, what).await?;
    let recovered = decide_commits(what, &newest, &found)?;
    let (mut state, rewrite) = load(io, what, &found).await?;
    let generations = write_decisions(io, what, &newest, &found, &recovered).await?;
    let Recovered { commit, mark, .. } = recovered;
    let places = what.members.iter().map(|member| member.layout).collect();
    let records: Vec<_> = what.members.iter().map(|member| (member.extents, member.zero_slots)).collect();
    let present = PresentMembers::new(what.numbered().map(|(number, _)| number));
    let mut checkpoint = CheckpointWriter::new(present, places, &records, what.owner_slots, generations);
    refuse_unread_pages(what, &state, recovered.replay.iter())?;
    for entry in &recovered.replay {
        apply(&mut state, &mut checkpoint, entry);
    }
    for found in found.iter().filter(|found| matches!(found.standing, Standing::Returning(_))) {
        checkpoint.note_all_owners(found.number);
    }
    rewrite.into_iter().for_each(|member| checkpoint.note_all_owners(member));
    verify(&state, what.members[0].number)?;
    state.set_missing(what.missing);

    let lacks = found.iter().any(|found| found.standing != Standing::Current) || what.missing != 0;
    let (mark, mut left) = match old(newest.session) {
        None => (mark, Vec::new()),
        Some(memory) => read_old_log(&*memory, what.uuid, newest.session, mark, lacks).map_err(OpenError::OldLog)?,
    };
    // Without a missing member, neither the first change that it would need nor anything after it can be kept.
    let of_record = |entry: &LogEntry| matches!(entry.change, Change::Record { .. } | Change::Slot { .. });
    let lost = |entry: &LogEntry| of_record(entry) && what.missing >> entry.member & 1 == 1;
    if let Some(at) = left.iter().position(lost) {
        let group = left[..at].iter().rposition(|entry| !entry.joined).map_or(0, |before| before + 1);
        left.truncate(group);
    }
    if let Some(entry) = left.iter().find(|entry| !fits(what, entry)) {
        let what = "the pool's tail speaks of what it does not have".to_owned();
        return Err(OpenError::Damaged { member: entry.member, what });
    }
    refuse_unread_pages(what, &state, left.iter())?;
    let units = log_units_for(what.members);
    let rings = what.members.iter().map(|member| LogRing {
        offset: member.ring.0,
        blocks: member.ring.1,
        head: 0,
        sequence: 1,
        committed: (0, 1),
        start: 0,
    });
    let mut rings: Vec<LogRing> = rings.collect();
    let mut run = what.run;
    if planted(Planted::OldRunGoesOn) {
        run = newest.run;
        for (ring, found) in rings.iter_mut().zip(&found) {
            let counted = found.batches.iter().take_while(|(header, _)| header.commit <= commit).count() as u64;
            let blocks: u64 =
                found.batches[..counted as usize].iter().map(|(header, _)| u64::from(header.blocks)).sum();
            ring.head = u64::from(found.start.position) + blocks;
            ring.sequence = found.start.sequence + counted;
            (ring.committed, ring.start) = ((ring.head, ring.sequence), ring.head);
        }
    }
    let session = if left.is_empty() { newest.session + 1 } else { newest.session };
    let mut commits = Commits::new(pool_tag(&what.uuid), session, run, rings, (commit, mark), checkpoint);
    (commits.before, commits.parts, commits.absent) = (newest.run, recovered.parts, recovered.absent);
    let settled = found.iter().filter(|found| !matches!(found.standing, Standing::Returning(_)));
    commits.settled = settled.fold(0, |all, found| all | 1 << found.number);
    let own = (0..log_bytes(LOG_UNITS_MAX) / 8).map(|_| AtomicU64::new(0)).collect();
    let log = MemoryLog::begin(Arc::new(ProcessMemory(own)), what.uuid, session, mark);
    let mut pool = Pool::new(what.uuid, state, log, commits);
    // Writes the tables, and begins the rings anew. If nothing is left to commit, this also raises the session.
    let new_log = || begin(newest.session + 1, log_bytes(units)).map_err(OpenError::LogMemory);
    let memory = if left.is_empty() {
        let memory = new_log()?;
        let number = pool.request_checkpoint();
        drive(io, what, &mut pool, |pool| pool.is_checkpointed(number)).await?;
        memory
    } else {
        let number = pool.request_checkpoint();
        drive(io, what, &mut pool, |pool| pool.is_checkpointed(number)).await?;
        append_old_entries(&mut pool, &left);
        if !planted(Planted::OldTailNotCommitted) {
            let number = pool.request_commit();
            drive(io, what, &mut pool, |pool| pool.is_committed(number) != Ok(false)).await?;
        }
        let memory = new_log()?;
        pool.commits.session = newest.session + 1;
        memory
    };
    // All members have a start of this run: a member with an older one is no longer accepted, and returning members are
    // back.
    let stays = |absence: &&MissingMember| what.missing >> absence.member & 1 == 1;
    let absent: Vec<MissingMember> = pool.commits.absent.list().iter().filter(stays).copied().collect();
    (pool.commits.before, pool.commits.settled) = (0, 0);
    pool.commits.absent = MissingMembers::new(&absent).expect("no more than there were");
    let number = pool.request_checkpoint();
    drive(io, what, &mut pool, |pool| pool.is_checkpointed(number)).await?;
    if !left.is_empty() {
        pool.find_free();
    }
    let mark = pool.log.published();
    pool.state.assess_damage();
    pool.use_log(MemoryLog::begin(memory, what.uuid, newest.session + 1, mark));
    pool.find_empties();
    Ok(pool)
}

pub(super) fn failed(member: u8, doing: &'static str) -> impl FnOnce(IoError) -> OpenError {
    move |error| OpenError::Io { member, doing, error }
}

async fn flush<I: DeviceIo>(io: &I, what: &OpenPool<'_>) -> Result<(), OpenError> {
    for (number, member) in what.numbered() {
        io.flush(member.device).await.map_err(failed(number, "flushed"))?;
    }
    Ok(())
}

/// Appends the entries of an old log unchanged, under the same sequence numbers.
fn append_old_entries(pool: &mut Pool, left: &[LogEntry]) {
    let mut group = Vec::new();
    for entry in left {
        group.push((entry.member, entry.index, entry.change.clone()));
        if !entry.joined {
            pool.change(&group);
            group.clear();
        }
    }
}

/// Memory for the writes of an open.
struct HeapMemory(Vec<Vec<u8>>);

impl PoolMemory for HeapMemory {
    fn buffer(&mut self, index: u32) -> &mut [u8] {
        &mut self.0[index as usize]
    }
}

/// Performs the I/Os of the pool until `is_done`.
async fn drive<I: DeviceIo>(
    io: &I,
    what: &OpenPool<'_>,
    pool: &mut Pool,
    is_done: impl Fn(&Pool) -> bool,
) -> Result<(), OpenError> {
    let mut memory = HeapMemory((0..BUFFERS).map(|_| vec![0; BATCH_BYTES_MAX]).collect());
    while !is_done(pool) {
        let Some(next) = pool.next_io(&mut memory) else {
            // The call itself may have reached the end.
            assert!(is_done(pool), "an open waits for nothing but its own I/O");
            break;
        };
        let device = what.member(next.member).expect("a present member").device;
        let (doing, result) = match next.op {
            PoolOp::Flush => ("flushed", io.flush(device).await),
            PoolOp::Discard => ("discarded", io.discard(device, next.offset, next.len).await),
            PoolOp::Copy { .. } => unreachable!("nothing moves before the pool serves"),
            PoolOp::Write { buffer } => {
                let data = memory.buffer(buffer)[..next.len as usize].to_vec();
                ("written", io.write(device, next.offset, data, false).await)
            }
        };
        pool.io_done(next.token, result.map_err(|error| error.kind));
        result.map_err(failed(next.member, doing))?;
    }
    Ok(())
}
