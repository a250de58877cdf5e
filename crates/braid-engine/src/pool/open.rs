//! Opening a pool: what its tables, rings and an old tail say, put together, written down, and served from then on.
//!
//! The order is what makes it safe to be cut off anywhere and begun again: everybody flushes, so that what was read is not lost later; the
//! commits that count are those of which every batch is there; the tables get what these say; all flush; the rings begin a new run, so that
//! what was dropped never counts again; all flush; what an old tail says is committed; the session is raised; only then the old tail is dropped,
//! by whoever called.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use braid_format::Uuid;
use braid_format::pool::{
    ADDRESS_SECTOR_BYTES, BATCH_BYTES_MAX, BatchHeader, Change, Entry, OWNER_BYTES, Owner, RECORD_BYTES,
    RING_START_BYTES, Record, RecordKind, RingStart, decode_address, entries, open as open_batch, pool_tag,
};

use super::checkpoint::{Checkpoint, MemberPlaces};
use super::commit::{BATCH_BLOCKS_MAX, BUFFERS, Commits, PoolMemory, PoolOp, Ring};
use super::home::Pool;
use super::seats::Seats;
use super::state::{NO_BLOCK, RecordId, State};
use super::tail::{TAIL_UNITS_MAX, TAIL_UNITS_MIN, Tail, left_behind, tail_bytes};
use super::tail_memory::TailMemory;
use super::units::EXTENT_BLOCKS;
use crate::io::{DeviceId, DeviceIo, IoError};
use crate::planted::{Planted, planted};

const BLOCK: u64 = 4096;
/// Bytes of one read of a table.
const READ_BYTES: u64 = 8 << 20;

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

/// What is to be opened.
pub struct OpenPool<'a> {
    /// Its identity.
    pub uuid: Uuid,
    /// The members that are here, at least one, in the order of their numbers. Numbers that are missing are nobody's any more.
    pub members: &'a [PoolDevice],
    /// Slots for owners.
    pub owner_slots: u32,
    /// Random, of this start alone, not 0.
    pub run: u64,
}

impl OpenPool<'_> {
    fn numbered(&self) -> impl Iterator<Item = (u8, &PoolDevice)> {
        self.members.iter().map(|member| (member.number, member))
    }

    fn member(&self, number: u8) -> Option<&PoolDevice> {
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
    let least = members.iter().map(|member| member.ring.1).min().unwrap_or(0);
    let batches = (least.saturating_sub(2 * BATCH_BLOCKS_MAX)) / BATCH_BLOCKS_MAX;
    // What does not fit into a batch may leave a few units of it empty.
    (batches.saturating_sub(1) * 1016).clamp(TAIL_UNITS_MIN, TAIL_UNITS_MAX)
}

/// What was found in the ring of one member.
struct Found {
    number: u8,
    start: RingStart,
    batches: Vec<(BatchHeader, Vec<Entry>)>,
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
    let mut starts = Vec::with_capacity(what.members.len());
    for (number, member) in what.numbered() {
        starts.push(read_start(io, what, number, member).await?);
    }
    let newest = *starts.iter().max_by_key(|start| (start.session, start.generation)).expect("a pool has members");
    let mut found = Vec::with_capacity(starts.len());
    for ((number, member), start) in what.numbered().zip(&starts) {
        let of_run = start.run == newest.run && start.session == newest.session;
        let batches = if of_run { read_ring(io, what, number, member, start).await? } else { Vec::new() };
        found.push(Found { number, start: *start, batches });
    }
    let (commit, mark, replay) = judge(&newest, &found)?;
    let mut state = load(io, what, &found).await?;
    let generations = starts.iter().map(|start| start.generation).collect();
    let places = what.members.iter().map(|member| member.places).collect();
    let records: Vec<_> = what.members.iter().map(|member| (member.extents, member.zero_slots)).collect();
    let seats = Seats::new(what.numbered().map(|(number, _)| number));
    let mut checkpoint = Checkpoint::new(seats, places, &records, what.owner_slots, generations);
    for (_, entry) in &replay {
        apply(&mut state, &mut checkpoint, entry);
    }
    verify(&state)?;

    let left = match old(newest.session) {
        None => Vec::new(),
        Some(memory) => left_behind(&*memory, what.uuid, newest.session, mark).map_err(OpenError::OldTail)?,
    };
    if let Some(entry) = left.iter().find(|entry| !fits(what, entry)) {
        let what = "the pool's tail speaks of what it does not have".to_owned();
        return Err(OpenError::Damaged { member: entry.member, what });
    }
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
    let commits = Commits::new(pool_tag(&what.uuid), session, run, rings, (commit, mark), checkpoint);
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
        let number = pool.request_checkpoint();
        drive(io, what, &mut pool, |pool| pool.is_checkpointed(number)).await?;
        pool.find_free();
        memory
    };
    let mark = pool.tail.published();
    pool.use_tail(Tail::begin(memory, what.uuid, newest.session + 1, mark));
    pool.find_empties();
    Ok(pool)
}

fn failed(member: u8, doing: &'static str) -> impl FnOnce(IoError) -> OpenError {
    move |error| OpenError::Io { member, doing, error }
}

async fn flush<I: DeviceIo>(io: &I, what: &OpenPool<'_>) -> Result<(), OpenError> {
    for (number, member) in what.numbered() {
        io.flush(member.device).await.map_err(failed(number, "flushed"))?;
    }
    Ok(())
}

async fn read_start<I: DeviceIo>(
    io: &I,
    what: &OpenPool<'_>,
    number: u8,
    member: &PoolDevice,
) -> Result<RingStart, OpenError> {
    let bytes = io.read(member.device, member.places.starts, 2 * RING_START_BYTES).await;
    let bytes = bytes.map_err(failed(number, "read"))?;
    let valid = bytes.as_chunks::<RING_START_BYTES>().0.iter().filter_map(|block| RingStart::decode(block).ok());
    let of_pool = valid.filter(|start| {
        start.pool_tag == pool_tag(&what.uuid) && u64::from(start.position) + BATCH_BLOCKS_MAX <= member.ring.1
    });
    of_pool.max_by_key(|start| start.generation).ok_or(OpenError::NoStart(number))
}

/// The longest unbroken series of batches from the start on.
async fn read_ring<I: DeviceIo>(
    io: &I,
    what: &OpenPool<'_>,
    number: u8,
    member: &PoolDevice,
    start: &RingStart,
) -> Result<Vec<(BatchHeader, Vec<Entry>)>, OpenError> {
    let mut batches = Vec::new();
    let mut position = u64::from(start.position);
    let first = position;
    let mut sequence = start.sequence;
    loop {
        let place = Ring::next_place(position, member.ring.1);
        let offset = member.ring.0 + place % member.ring.1 * BLOCK;
        let bytes = io.read(member.device, offset, BATCH_BYTES_MAX).await.map_err(failed(number, "read"))?;
        let Ok(header) = open_batch(&bytes) else { break };
        let of_run = header.pool_tag == start.pool_tag && header.run == start.run && header.sequence == sequence;
        if planted(Planted::RingReadShort) && place + BATCH_BLOCKS_MAX > first + member.ring.1 {
            break;
        }
        // Whoever writes never comes as far as the start that counts.
        if !of_run || place + u64::from(header.blocks) > first + member.ring.1 {
            break;
        }
        let Ok(list) = entries(&bytes, &header).collect::<Result<Vec<_>, _>>() else {
            let what = format!("an entry of batch {sequence} of its ring makes no sense");
            return Err(OpenError::Damaged { member: number, what });
        };
        if let Some(entry) = list.iter().find(|entry| !fits(what, entry)) {
            let what =
                format!("batch {sequence} of its ring speaks of record {} of member {}", entry.index, entry.member);
            return Err(OpenError::Damaged { member: number, what });
        }
        position = place + u64::from(header.blocks);
        sequence += 1;
        batches.push((header, list));
    }
    Ok(batches)
}

/// The last commit that counts, its last unit, and what they say.
type Judged = (u64, u64, Vec<(u64, Entry)>);

/// Which commits count: those of which every batch is there, one after the other. Returns the last of them, its last unit, and what
/// they say, in order.
fn judge(newest: &RingStart, found: &[Found]) -> Result<Judged, OpenError> {
    let of_run = |found: &&Found| found.start.run == newest.run && found.start.session == newest.session;
    // What the start that is ahead covers was complete once, and is in the tables of its member; the others may lack it in theirs.
    let ahead = found.iter().filter(of_run).map(|found| found.start).max_by_key(|start| start.commit);
    let (mut commit, mut mark) = ahead.map_or((newest.commit, newest.mark), |start| (start.commit, start.mark));
    let mut replay: BTreeMap<u64, Entry> = BTreeMap::new();
    for (_, list) in found.iter().flat_map(|found| &found.batches).filter(|(header, _)| header.commit <= commit) {
        replay.extend(list.iter().map(|entry| (entry.sequence, entry.clone())));
    }
    loop {
        let next = commit + 1;
        let of_next = |found: &Found| -> Vec<BatchHeader> {
            found.batches.iter().map(|(header, _)| *header).filter(|header| header.commit == next).collect()
        };
        let Some(header) = found.iter().flat_map(of_next).next() else { break };
        let complete = found.iter().filter(|found| header.members >> found.number & 1 == 1).all(|found| {
            let batches = of_next(found);
            batches.first().is_some_and(|first| batches.len() == usize::from(first.batches))
        });
        if !complete && !planted(Planted::CommitWithoutAllMembers) {
            // Commits are made one at a time: where there is a later one this one was complete.
            let later = |found: &Found| found.batches.iter().any(|(header, _)| header.commit > next);
            if let Some(Found { number: member, .. }) = found.iter().find(|found| later(found)) {
                let what = format!("its ring has commits after number {next}, of which other members lack a part");
                return Err(OpenError::Damaged { member: *member, what });
            }
            break;
        }
        for (_, list) in found.iter().flat_map(|found| &found.batches).filter(|(header, _)| header.commit == next) {
            replay.extend(list.iter().map(|entry| (entry.sequence, entry.clone())));
        }
        mark = mark.max(header.mark);
        commit = next;
    }
    Ok((commit, mark, replay.into_iter().collect()))
}

/// Reads the tables.
async fn load<I: DeviceIo>(io: &I, what: &OpenPool<'_>, found: &[Found]) -> Result<State, OpenError> {
    let mut state = State::new(what.owner_slots, TAIL_UNITS_MAX);
    let newest = found
        .iter()
        .enumerate()
        .max_by_key(|(seat, found)| (found.start.session, found.start.generation, usize::MAX - seat));
    let first = newest.map_or(0, |(seat, _)| seat);
    load_owners(io, what, &mut state, first).await?;
    for (number, member) in what.numbered() {
        state.add_member(number, member.extents, member.zero_slots);
        let records = u64::from(member.extents) + u64::from(member.zero_slots);
        let bytes = (records * RECORD_BYTES as u64).next_multiple_of(BLOCK);
        let mut at = 0;
        while at < bytes {
            let len = READ_BYTES.min(bytes - at);
            let read = io.read(member.device, member.places.table + at, len as usize).await;
            let read = read.map_err(failed(number, "read"))?;
            for (k, image) in (at / RECORD_BYTES as u64..records).zip(read.as_chunks::<RECORD_BYTES>().0) {
                let record = Record::decode(image, number, k as u32).map_err(|error| OpenError::Damaged {
                    member: number,
                    what: format!("record {k} of its table: {error}"),
                })?;
                if !of_its_kind(member, k as u32, &record) {
                    let what = format!("record {k} of its table is of a kind that does not belong there");
                    return Err(OpenError::Damaged { member: number, what });
                }
                if record != Record::free(0) {
                    state.set(RecordId { member: number, index: k as u32 }, &record, 0);
                }
            }
            at += len;
        }
        load_addresses(io, &mut state, number, member).await?;
    }
    Ok(state)
}

async fn load_owners<I: DeviceIo>(
    io: &I,
    what: &OpenPool<'_>,
    state: &mut State,
    first: usize,
) -> Result<(), OpenError> {
    let bytes = (u64::from(what.owner_slots) * OWNER_BYTES as u64).next_multiple_of(BLOCK);
    let mut problem = None;
    // All members have them: one that is damaged is read from another.
    let (before, from) = what.members.split_at(first);
    for member in from.iter().chain(before) {
        let number = member.number;
        let read = io.read(member.device, member.places.owners, bytes as usize).await;
        let read = read.map_err(failed(number, "read"))?;
        let images = (0..what.owner_slots).zip(read.as_chunks::<OWNER_BYTES>().0);
        match images.map(|(slot, image)| Owner::decode(image, slot)).collect::<Result<Vec<_>, _>>() {
            Ok(owners) => {
                for (slot, owner) in (0u32..).zip(owners) {
                    if owner.is_some() {
                        state.set_owner(slot, owner, 0);
                    }
                }
                return Ok(());
            }
            Err(error) => problem = Some((number, error)),
        }
    }
    let (member, error) = problem.expect("a pool has members");
    Err(OpenError::Damaged { member, what: format!("its list of owners: {error}") })
}

/// Reads the addresses of packed extents. Those that are not there yet are in the ring.
async fn load_addresses<I: DeviceIo>(
    io: &I,
    state: &mut State,
    number: u8,
    member: &PoolDevice,
) -> Result<(), OpenError> {
    let mut page: Option<(u64, Vec<u8>)> = None;
    for index in 0..member.extents {
        let id = RecordId { member: number, index };
        let record = state.record(id);
        if record.kind != RecordKind::Packed {
            continue;
        }
        let at = u64::from(index) * ADDRESS_SECTOR_BYTES as u64;
        let block = at / BLOCK * BLOCK;
        if page.as_ref().is_none_or(|(of, _)| *of != block) {
            let read = io.read(member.device, member.places.addresses + block, BLOCK as usize).await;
            page = Some((block, read.map_err(failed(number, "read"))?));
        }
        let (_, bytes) = page.as_ref().expect("just read");
        let sector = &bytes[(at - block) as usize..][..ADDRESS_SECTOR_BYTES];
        for (slot, word) in (0..EXTENT_BLOCKS as u8).zip(sector.as_chunks::<8>().0) {
            let word = u64::from_le_bytes(*word);
            if let Ok(Some(block)) = decode_address(word, number, index, slot, record.life) {
                state.set_address(id, slot, block);
            }
        }
    }
    Ok(())
}

/// Whether a record may stand at this place of a member's table.
fn of_its_kind(member: &PoolDevice, index: u32, record: &Record) -> bool {
    match record.kind {
        RecordKind::Free => true,
        RecordKind::Whole | RecordKind::Packed => index < member.extents,
        RecordKind::Zeros => index >= member.extents,
    }
}

/// Whether an entry speaks of something that there is.
fn fits(what: &OpenPool<'_>, entry: &Entry) -> bool {
    match &entry.change {
        Change::Padding => true,
        Change::Owner { .. } => entry.index < what.owner_slots,
        Change::Record { record } | Change::Slot { record, .. } => what.member(entry.member).is_some_and(|member| {
            u64::from(entry.index) < u64::from(member.extents) + u64::from(member.zero_slots)
                && of_its_kind(member, entry.index, record)
        }),
    }
}

fn apply(state: &mut State, checkpoint: &mut Checkpoint, entry: &Entry) {
    let id = RecordId { member: entry.member, index: entry.index };
    match &entry.change {
        Change::Record { record } => {
            checkpoint.note_record(id, false);
            state.set(id, record, 0);
        }
        Change::Slot { slot, block, record } => {
            checkpoint.note_record(id, true);
            state.set(id, record, 0);
            state.set_address(id, *slot, *block);
        }
        Change::Owner { owner } => {
            checkpoint.note_owner(entry.index);
            state.set_owner(entry.index, owner.clone(), 0);
        }
        Change::Padding => {}
    }
}

/// What must be true of every pool that was opened.
fn verify(state: &State) -> Result<(), OpenError> {
    let most = state.owners.iter().count();
    let endless = |id: u32| {
        let mut at = id;
        let steps = std::iter::from_fn(|| {
            at = state.owners.get(at)?.parent;
            (at != 0).then_some(())
        });
        steps.take(most + 1).count() > most
    };
    if let Some(owner) = state.owners.iter().find(|owner| endless(owner.id)) {
        let what = format!("owner {} stands on itself", owner.id);
        return Err(OpenError::Damaged { member: 0, what });
    }
    for (member, extents) in state.members() {
        for index in 0..extents + state.zero_slots(member) {
            let id = RecordId { member, index };
            let record = state.record(id);
            if record.kind == RecordKind::Free {
                continue;
            }
            let damaged = |what: String| OpenError::Damaged { member, what };
            if state.owners.get(record.owner).is_none() {
                return Err(damaged(format!(
                    "record {index} of its table is of owner {}, who is nobody",
                    record.owner
                )));
            }
            if record.kind == RecordKind::Packed {
                let addresses = state.addresses(id);
                let missing = |slot: &u32| {
                    record.present >> slot & 1 == 1
                        && addresses.is_none_or(|addresses| addresses.0[*slot as usize] == NO_BLOCK)
                };
                if let Some(slot) = (0..EXTENT_BLOCKS).find(missing) {
                    return Err(damaged(format!("slot {slot} of its packed extent {index} has no address")));
                }
            }
        }
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
        pool.io_done(next.token, result.is_ok());
        result.map_err(failed(next.member, doing))?;
    }
    Ok(())
}
