//! Opening a pool: puts together what its tables, rings and an old in-memory log say, writes that down, and serves it.
//!
//! The order makes it safe to interrupt this anywhere and begin again. All members flush, so that what was read is not
//! lost later. The valid commits are those of which every batch is present; the tables get their changes; all flush.
//! The rings begin a new run, so that dropped batches never become valid; all flush. The old log is committed; the
//! session is raised; only then the caller drops the old log.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use braid_format::pool::{BATCH_BYTES_MAX, Change, LogEntry, MissingMember, MissingMembers, pool_tag};

use super::Pool;
use super::checkpoint::CheckpointWriter;
use super::commit::Commits;
use super::commit_ring::{BATCH_BLOCKS_MAX, LogRing};
use super::device::PoolDevice;
use super::load::{apply, load, refuse_unread_pages, verify};
use super::log_memory::LogMemory;
use super::memory_log::{LOG_UNITS_MAX, LOG_UNITS_MIN, MemoryLog, log_bytes, read_old_log};
use super::open_pool::{OpenError, OpenPool, failed, fits};
use super::pool_io::{BUFFERS, PoolMemory, PoolOp};
use super::present_members::PresentMembers;
use super::recovery::{Recovered, Standing, decide_commits, read_logs, write_decisions};
use crate::io::DeviceIo;

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
    // A change of a record on a missing member cannot be replayed. Its group is dropped, and so is everything after it,
    // which may depend on it.
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
    let rings: Vec<LogRing> = rings.collect();
    let session = if left.is_empty() { newest.session + 1 } else { newest.session };
    let mut commits = Commits::new(pool_tag(&what.uuid), session, what.run, rings, (commit, mark), checkpoint);
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
        let number = pool.request_commit();
        drive(io, what, &mut pool, |pool| pool.is_committed(number) != Ok(false)).await?;
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
