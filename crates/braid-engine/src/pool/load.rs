//! Reading the tables: records, addresses, owners.

use braid_format::pool::{
    ADDRESS_SECTOR_BYTES, Change, LogEntry, OWNER_BYTES, Owner, RECORD_BYTES, Record, RecordKind,
};

use super::checkpoint::CheckpointWriter;
use super::damage::UNREAD;
use super::damaged::{Page, Words};
use super::device::PoolDevice;
use super::open_pool::{OpenError, OpenPool, failed, is_valid_at};
use super::read_ahead::ReadAhead;
use super::recovery::{MemberLog, Standing};
use super::state::PoolTables;
use super::units::{EXTENT_BLOCKS, ExtentId, RECORDS_EACH, RecordId, SECTORS_EACH};
use crate::io::{DeviceIo, ErrorKind, IoError};

const BLOCK: u64 = 4096;
/// Bytes of one read of a table: the I/O ring uses huge pages for it, and it fits a CPU cache.
const READ_BYTES: u64 = 2 << 20;
/// Reads of a table in flight.
const READS_AHEAD: usize = 4;
/// Maximum bytes of one read of addresses, and of the gap between two packed extents that share a read.
const ADDRESSES_BYTES: u64 = 256 << 10;
const GAP_BYTES: u64 = 16 << 10;
/// Maximum unreadable pages in one read: a disk with more is failing, and none of its data are used.
const UNREAD_PAGES_MAX: usize = 64;

/// Reads the tables. Returns also the members whose owner lists are damaged and have to be written again.
pub(super) async fn load<I: DeviceIo>(
    io: &I,
    what: &OpenPool<'_>,
    found: &[MemberLog],
) -> Result<(PoolTables, Vec<u8>), OpenError> {
    let mut state = PoolTables::new(what.owner_slots);
    // The owner list of a returning member may lack owners, so it is not read.
    let stayed = found.iter().enumerate().filter(|(_, found)| !matches!(found.standing, Standing::Returning(_)));
    let newest =
        stayed.max_by_key(|(ordinal, found)| (found.start.session, found.start.generation, usize::MAX - ordinal));
    let first = newest.map_or(0, |(ordinal, _)| ordinal);
    let rewrite = load_owners(io, what, found, &mut state, first).await?;
    for (number, member) in what.numbered() {
        state.add_member(number, member.extents, member.zero_slots);
        let records = u64::from(member.extents) + u64::from(member.zero_slots);
        let bytes = (records * RECORD_BYTES as u64).next_multiple_of(BLOCK);
        let parts = (0..bytes).step_by(READ_BYTES as usize);
        let read = |at: u64| read_pages(io, member, member.layout.table + at, READ_BYTES.min(bytes - at));
        let mut reads = ReadAhead::new(READS_AHEAD, parts.clone().map(read));
        for at in parts {
            let (read, unread) = reads.next().await.expect("one for each part")?;
            for offset in unread {
                let page = Page::Records(((offset - member.layout.table) / BLOCK) as u32);
                state.damage.note_unread(number, page, offset);
            }
            for (k, image) in (at / RECORD_BYTES as u64..records).zip(read.as_chunks::<RECORD_BYTES>().0) {
                let id = RecordId { member: number, index: k as u32 };
                match Record::decode(image, number, id.index) {
                    Ok(record) if record == Record::free(0) => {}
                    Ok(record) if is_valid_at(member, id.index, &record) => state.load(id, &record),
                    _ => state.damage.note_record(id, *image),
                }
            }
        }
        load_addresses(io, &mut state, number, member).await?;
    }
    Ok((state, rewrite))
}

/// Reads all owners. All members have them: where one copy is damaged, another one is used.
async fn load_owners<I: DeviceIo>(
    io: &I,
    what: &OpenPool<'_>,
    found: &[MemberLog],
    state: &mut PoolTables,
    first: usize,
) -> Result<Vec<u8>, OpenError> {
    let bytes = (u64::from(what.owner_slots) * OWNER_BYTES as u64).next_multiple_of(BLOCK);
    let (before, from) = what.members.split_at(first);
    let returning = |number: u8| {
        found.iter().any(|found| found.number == number && matches!(found.standing, Standing::Returning(_)))
    };
    let (mut unread, mut rewrite): (Vec<u32>, _) = ((0..what.owner_slots).collect(), Vec::new());
    for member in from.iter().chain(before).filter(|member| !returning(member.number)) {
        let (read, _) = read_pages(io, member, member.layout.owners, bytes).await?;
        let images = read.as_chunks::<OWNER_BYTES>().0;
        unread.retain(|slot| match Owner::decode(&images[*slot as usize], *slot) {
            Ok(owner) => {
                if owner.is_some() {
                    state.set_owner(*slot, owner, 0);
                }
                false
            }
            Err(_) => true,
        });
        if unread.is_empty() {
            break;
        }
        rewrite.push(member.number);
    }
    // A ring may hold them.
    state.unread_owners = unread.into_iter().collect();
    Ok(rewrite)
}

/// Reads whole pages of a member's tables; returns also the offsets of the unreadable ones. Unreadable pages are filled
/// with [`UNREAD`]: no structure is decoded from them.
async fn read_pages<I: DeviceIo>(
    io: &I,
    member: &PoolDevice,
    offset: u64,
    len: u64,
) -> Result<(Vec<u8>, Vec<u64>), OpenError> {
    let is_bad = |error: &IoError| matches!(error.kind, ErrorKind::Io | ErrorKind::Unreadable);
    let error = match io.read(member.device, offset, len as usize).await {
        Ok(bytes) => return Ok((bytes, Vec::new())),
        Err(error) => error,
    };
    let mut bytes = Vec::with_capacity(len as usize);
    let mut unread = Vec::new();
    for at in (offset..offset + len).step_by(BLOCK as usize) {
        match io.read(member.device, at, BLOCK as usize).await {
            Ok(page) => bytes.extend(page),
            Err(one) if is_bad(&one) && unread.len() < UNREAD_PAGES_MAX => {
                unread.push(at);
                bytes.resize(bytes.len() + BLOCK as usize, UNREAD);
            }
            Err(_) => return Err(failed(member.number, "read")(error)),
        }
    }
    Ok((bytes, unread))
}

/// Fails if changes that a crash left, in rings or log, would be written into pages that could not be read: the other
/// content of such a page would be lost, and may be readable the next time. Never fails if
/// [`OpenPool::overwrites_unreadable`] is set.
pub(super) fn refuse_unread_pages<'a>(
    what: &OpenPool<'_>,
    state: &PoolTables,
    entries: impl Iterator<Item = &'a LogEntry>,
) -> Result<(), OpenError> {
    for entry in entries.filter(|_| !what.overwrites_unreadable) {
        let pages = match entry.change {
            Change::Padding | Change::Owner { .. } => continue,
            Change::Record { .. } => [Some(Page::Records(entry.index / RECORDS_EACH)), None],
            Change::Slot { .. } => {
                [Page::Records(entry.index / RECORDS_EACH), Page::Addresses(entry.index / SECTORS_EACH)].map(Some)
            }
        };
        for page in pages.into_iter().flatten() {
            if let Some(offset) = state.damage.unread(entry.member, page) {
                return Err(OpenError::Unread { member: entry.member, offset });
            }
        }
    }
    Ok(())
}

/// Reads the addresses of packed extents. Those that are not on the disk yet are in the ring.
async fn load_addresses<I: DeviceIo>(
    io: &I,
    state: &mut PoolTables,
    number: u8,
    member: &PoolDevice,
) -> Result<(), OpenError> {
    let spans = spans_of_addresses(state, number, member);
    let read = |(at, len): &(u64, u64)| read_pages(io, member, member.layout.addresses + at, *len);
    let mut reads = ReadAhead::new(READS_AHEAD, spans.iter().map(read));
    for (at, len) in &spans {
        let (bytes, unread) = reads.next().await.expect("one for each span")?;
        for offset in unread {
            let page = Page::Addresses(((offset - member.layout.addresses) / BLOCK) as u32);
            state.damage.note_unread(number, page, offset);
        }
        let sector = ADDRESS_SECTOR_BYTES as u64;
        let indices = (at / sector) as u32..((at + len) / sector).min(member.extents.into()) as u32;
        for (index, image) in indices.zip(bytes.as_chunks::<ADDRESS_SECTOR_BYTES>().0) {
            load_sector(state, RecordId { member: number, index }, image);
        }
    }
    Ok(())
}

/// Returns the parts of a member's address table to read, in whole pages: the first byte, and how many bytes.
fn spans_of_addresses(state: &PoolTables, number: u8, member: &PoolDevice) -> Vec<(u64, u64)> {
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for index in 0..member.extents {
        if !has_addresses(state, RecordId { member: number, index }) {
            continue;
        }
        let at = u64::from(index) * ADDRESS_SECTOR_BYTES as u64 / BLOCK * BLOCK;
        match spans.last_mut() {
            Some((from, len)) if at + BLOCK - *from <= ADDRESSES_BYTES && at <= *from + *len + GAP_BYTES => {
                *len = at + BLOCK - *from;
            }
            _ => spans.push((at, BLOCK)),
        }
    }
    spans
}

/// Returns whether to read the addresses of a record. Of a damaged one the kind is unknown.
fn has_addresses(state: &PoolTables, id: RecordId) -> bool {
    state.record(id).kind == RecordKind::Packed || state.damage.has(id)
}

fn load_sector(state: &mut PoolTables, id: RecordId, image: &[u8; ADDRESS_SECTOR_BYTES]) {
    if !has_addresses(state, id) {
        return;
    }
    let (record, damaged) = (state.record(id), state.damage.has(id));
    let (words, _) = image.as_chunks::<8>();
    let words: Words = std::array::from_fn(|slot| u64::from_le_bytes(words[slot]));
    // The addresses of a damaged record cannot be checked, because its life is unknown: the sector stays as it is.
    let mut all = !damaged;
    for (slot, word) in (0..EXTENT_BLOCKS as u8).zip(words) {
        match state.read_address(word, id, slot, record.life) {
            _ if damaged => break,
            Some(block) => state.set_address(id, slot, block),
            None => all &= record.present >> slot & 1 == 0,
        }
    }
    if !all {
        state.damage.note_sector(id, words);
    }
}

pub(super) fn apply(state: &mut PoolTables, checkpoint: &mut CheckpointWriter, entry: &LogEntry) {
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
            state.unread_owners.remove(&entry.index);
            state.set_owner(entry.index, owner.clone(), 0);
        }
        Change::Padding => {}
    }
}

/// Checks what must be true of every open pool.
pub(super) fn verify(state: &PoolTables, first: u8) -> Result<(), OpenError> {
    if let Some(slot) = state.unread_owners.first() {
        let what = format!("slot {slot} of its list of owners cannot be believed, here and on all other members");
        return Err(OpenError::Damaged { member: first, what });
    }
    let most = state.owners.iter().count();
    let is_cyclic = |id: u32| {
        let mut at = id;
        let steps = std::iter::from_fn(|| {
            at = state.owners.get(at)?.parent;
            (at != 0).then_some(())
        });
        steps.take(most + 1).count() > most
    };
    if let Some(owner) = state.owners.iter().find(|owner| is_cyclic(owner.id)) {
        let what = format!("owner {} stands on itself", owner.id);
        return Err(OpenError::Damaged { member: first, what });
    }
    let mut last = 0;
    for (member, extents) in state.members() {
        for index in 0..extents + state.zero_slots(member) {
            let owner = match index < extents {
                true => state.records.owner(ExtentId { member, index }),
                false => state.record(RecordId { member, index }).owner,
            };
            // Mostly it is the owner of the record before.
            if owner == 0 || owner == last {
                continue;
            }
            if state.owners.get(owner).is_none() {
                let what = format!("record {index} of its table is of owner {owner}, who is nobody");
                return Err(OpenError::Damaged { member, what });
            }
            last = owner;
        }
    }
    Ok(())
}
