//! Opening a pool: what its tables, rings and an old tail say, put together, written down, and served from then on.
//!
//! The order is what makes it safe to be cut off anywhere and begun again: everybody flushes, so that what was read is not lost later; the
//! commits that count are those of which every batch is there; the tables get what these say; all flush; the rings begin a new run, so that
//! what was dropped never counts again; all flush; what an old tail says is committed; the session is raised; only then the old tail is dropped,
//! by whoever called.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use braid_format::Uuid;
use braid_format::pool::{ABSENT_MAX, Absence, Absences, BATCH_BYTES_MAX, Change, Entry, PoolPlaces, pool_tag};

use super::checkpoint::{Checkpoint, MemberPlaces};
use super::commit::{BATCH_BLOCKS_MAX, BUFFERS, Commits, PoolMemory, PoolOp, Ring};
use super::home::Pool;
use super::load::{apply, fits, keep_unread, load, verify};
use super::seats::Seats;
use super::starts::{Judged, Standing, find, judge, settle};
use super::tail::{TAIL_UNITS_MAX, TAIL_UNITS_MIN, Tail, left_behind, tail_bytes};
use super::tail_memory::TailMemory;
use crate::io::{DeviceId, DeviceIo, IoError};
use crate::planted::{Planted, planted};

/// One member of a pool, as its label says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolDevice {
    /// Its number in the pool.
    pub number: u8,
    /// Where it is.
    pub device: DeviceId,
    /// Where its structures begin.
    pub places: MemberPlaces,
    /// First byte of the ring, and blocks in it.
    pub ring: (u64, u64),
    /// Its extents.
    pub extents: u32,
    /// Records without an extent.
    pub zero_slots: u32,
}

impl PoolDevice {
    /// A member of this number on a device, with everything at these places.
    pub fn new(number: u8, device: DeviceId, places: &PoolPlaces) -> PoolDevice {
        PoolDevice {
            number,
            device,
            places: MemberPlaces {
                starts: places.starts.start,
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

/// What is to be opened.
pub struct OpenPool<'a> {
    /// Its identity.
    pub uuid: Uuid,
    /// The members that are here, at least one, in the order of their numbers. Numbers that are neither here nor absent are
    /// nobody's any more.
    pub members: &'a [PoolDevice],
    /// Slots for owners.
    pub owner_slots: u32,
    /// Bit *i*: member *i* is not here, and the pool goes on without it. What it may have of a volume is in doubt; what was acknowledged
    /// and not flushed may be lost.
    pub absent: u128,
    /// What a crash left is written also into pages of tables that cannot be read: all else that stands in them is damaged from then on. Else
    /// the pool is not opened ([`OpenError::Unread`]).
    pub writes_over: bool,
    /// Random, of this start alone, not 0.
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
        /// Which.
        member: u8,
        /// "read", "written" or "flushed".
        doing: &'static str,
        /// Why.
        error: IoError,
    },
    /// What a crash left is to be written into a page of its tables that cannot be read.
    #[error(
        "the 4 KiB of tables at byte {offset} of member {member} of the pool cannot be read, and what a crash left in the rings is to be \
         written there: all else that stands in them would be lost"
    )]
    Unread {
        /// Which.
        member: u8,
        /// Where they begin on the member's device, in bytes.
        offset: u64,
    },
    /// Neither of its ring starts can be believed.
    #[error("member {0} of the pool has no valid start of its ring")]
    NoStart(u8),
    /// Something in its tables or rings is damaged.
    #[error("the metadata of member {member} of the pool are damaged: {what}")]
    Damaged {
        /// Which.
        member: u8,
        /// What, and where.
        what: String,
    },
    /// It returns, and lacks what was decided to count while it was away.
    #[error(
        "member {member} of the pool lacks part of commit {commit}, which counted when the pool went on without it: what it has does not fit \
         what the others have"
    )]
    Lacks {
        /// Which.
        member: u8,
        /// The commit.
        commit: u64,
    },
    /// It is a copy of a member from before, or has been used without the others.
    #[error("member {0} of the pool is an old copy, or was used without the others: its ring is of another run")]
    OtherRun(u8),
    /// The pool cannot go on without so many.
    #[error("the pool cannot go on without more than {ABSENT_MAX} of its members")]
    TooManyAbsent,
    /// The tail of the last session is there, and does not fit.
    #[error(
        "the pool's tail in shared memory cannot be used: {0}; without it, what was acknowledged and not flushed is lost"
    )]
    OldTail(&'static str),
    /// The shared memory for its tail could not be had.
    #[error("no shared memory for the pool's tail: {0}")]
    Tail(String),
}

/// A tail in memory of this process alone: for what a start has to commit before it serves.
struct OwnMemory(Box<[AtomicU64]>);

impl TailMemory for OwnMemory {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// The most units that the tail of a pool with such rings may hold: a commit of all of it fits into each ring, beside what may be in the way.
pub fn tail_units_for(members: &[PoolDevice]) -> u64 {
    tail_units_of_ring(members.iter().map(|member| member.ring.1).min().unwrap_or(0))
}

/// The same where the smallest ring has so many blocks.
pub fn tail_units_of_ring(blocks: u64) -> u64 {
    let batches = (blocks.saturating_sub(2 * BATCH_BLOCKS_MAX)) / BATCH_BLOCKS_MAX;
    // What does not fit into a batch may leave a few units of it empty.
    (batches.saturating_sub(1) * 1016).clamp(TAIL_UNITS_MIN, TAIL_UNITS_MAX)
}

/// Opens a pool. `old` is the tail that the last session left, where it is still there; `begin` makes the memory for the new session's,
/// of so many bytes.
///
/// When this returns, nothing depends on the old tail any more.
///
/// # Errors
/// See [`OpenError`]. Nothing is lost: it may be tried again.
pub async fn open<I: DeviceIo>(
    io: &I,
    what: &OpenPool<'_>,
    old: impl Fn(u64) -> Option<Arc<dyn TailMemory>>,
    begin: impl FnOnce(u64, u64) -> Result<Arc<dyn TailMemory>, String>,
) -> Result<Pool, OpenError> {
    flush(io, what).await?;
    let (newest, found) = find(io, what).await?;
    let judged = judge(what, &newest, &found)?;
    let (mut state, mend) = load(io, what, &found).await?;
    let generations = settle(io, what, &newest, &found, &judged).await?;
    let Judged { commit, mark, .. } = judged;
    let places = what.members.iter().map(|member| member.places).collect();
    let records: Vec<_> = what.members.iter().map(|member| (member.extents, member.zero_slots)).collect();
    let seats = Seats::new(what.numbered().map(|(number, _)| number));
    let mut checkpoint = Checkpoint::new(seats, places, &records, what.owner_slots, generations);
    keep_unread(what, &state, judged.replay.iter())?;
    for entry in &judged.replay {
        apply(&mut state, &mut checkpoint, entry);
    }
    for found in found.iter().filter(|found| matches!(found.standing, Standing::Returns(_))) {
        checkpoint.note_all_owners(found.number);
    }
    mend.into_iter().for_each(|member| checkpoint.note_all_owners(member));
    verify(&state, what.members[0].number)?;
    state.go_without(what.absent);

    let lacks = found.iter().any(|found| found.standing != Standing::Here) || what.absent != 0;
    let (mark, mut left) = match old(newest.session) {
        None => (mark, Vec::new()),
        Some(memory) => left_behind(&*memory, what.uuid, newest.session, mark, lacks).map_err(OpenError::OldTail)?,
    };
    // What comes after the first change that an absent member would need cannot be had without it.
    let of_record = |entry: &Entry| matches!(entry.change, Change::Record { .. } | Change::Slot { .. });
    let lost = |entry: &Entry| of_record(entry) && what.absent >> entry.member & 1 == 1;
    if let Some(at) = left.iter().position(lost) {
        let group = left[..at].iter().rposition(|entry| !entry.joined).map_or(0, |before| before + 1);
        left.truncate(group);
    }
    if let Some(entry) = left.iter().find(|entry| !fits(what, entry)) {
        let what = "the pool's tail speaks of what it does not have".to_owned();
        return Err(OpenError::Damaged { member: entry.member, what });
    }
    keep_unread(what, &state, left.iter())?;
    let units = tail_units_for(what.members);
    let rings = what.members.iter().map(|member| Ring {
        offset: member.ring.0,
        blocks: member.ring.1,
        head: 0,
        sequence: 1,
        committed: (0, 1),
        start: 0,
    });
    let mut rings: Vec<Ring> = rings.collect();
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
    (commits.before, commits.parts, commits.absent) = (newest.run, judged.parts, judged.absent);
    let settled = found.iter().filter(|found| !matches!(found.standing, Standing::Returns(_)));
    commits.settled = settled.fold(0, |all, found| all | 1 << found.number);
    let own = (0..tail_bytes(TAIL_UNITS_MAX) / 8).map(|_| AtomicU64::new(0)).collect();
    let tail = Tail::begin(Arc::new(OwnMemory(own)), what.uuid, session, mark);
    let mut pool = Pool::new(what.uuid, state, tail, commits);
    // The tables, and rings that begin anew. Where nothing is left to commit, the session is raised with it.
    let new_tail = || begin(newest.session + 1, tail_bytes(units)).map_err(OpenError::Tail);
    let memory = if left.is_empty() {
        let memory = new_tail()?;
        let number = pool.request_checkpoint();
        drive(io, what, &mut pool, |pool| pool.is_checkpointed(number)).await?;
        memory
    } else {
        let number = pool.request_checkpoint();
        drive(io, what, &mut pool, |pool| pool.is_checkpointed(number)).await?;
        append_again(&mut pool, &left);
        if !planted(Planted::OldTailNotCommitted) {
            let number = pool.request_commit();
            drive(io, what, &mut pool, |pool| pool.is_committed(number) != Ok(false)).await?;
        }
        let memory = new_tail()?;
        pool.commits.session = newest.session + 1;
        memory
    };
    // All have a start of this run: nobody who has an older one is believed any more, and who returned is back.
    let stays = |absence: &&Absence| what.absent >> absence.member & 1 == 1;
    let absent: Vec<Absence> = pool.commits.absent.list().iter().filter(stays).copied().collect();
    (pool.commits.before, pool.commits.settled) = (0, 0);
    pool.commits.absent = Absences::new(&absent).expect("no more than there were");
    let number = pool.request_checkpoint();
    drive(io, what, &mut pool, |pool| pool.is_checkpointed(number)).await?;
    if !left.is_empty() {
        pool.find_free();
    }
    let mark = pool.tail.published();
    pool.state.judge_damage();
    pool.use_tail(Tail::begin(memory, what.uuid, newest.session + 1, mark));
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

/// Appends what an old tail held, as it was: with the same numbers.
fn append_again(pool: &mut Pool, left: &[Entry]) {
    let mut group = Vec::new();
    for entry in left {
        group.push((entry.member, entry.index, entry.change.clone()));
        if !entry.joined {
            pool.change(&group);
            group.clear();
        }
    }
}

/// Memory for the writes of a start.
struct HeapMemory(Vec<Vec<u8>>);

impl PoolMemory for HeapMemory {
    fn buffer(&mut self, index: u32) -> &mut [u8] {
        &mut self.0[index as usize]
    }
}

/// Does what the pool wants done until `is_done`.
async fn drive<I: DeviceIo>(
    io: &I,
    what: &OpenPool<'_>,
    pool: &mut Pool,
    is_done: impl Fn(&Pool) -> bool,
) -> Result<(), OpenError> {
    let mut memory = HeapMemory((0..BUFFERS).map(|_| vec![0; BATCH_BYTES_MAX]).collect());
    while !is_done(pool) {
        let Some(next) = pool.next_io(&mut memory) else {
            // What it came to while it was asked may be the end.
            assert!(is_done(pool), "a start waits for nothing but its own I/O");
            break;
        };
        let device = what.member(next.member).expect("a member that is here").device;
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
