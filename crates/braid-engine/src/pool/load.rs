//! Reading the tables: records, addresses, owners.

use braid_format::pool::{
    ADDRESS_SECTOR_BYTES, Change, Entry, OWNER_BYTES, Owner, RECORD_BYTES, Record, RecordKind, decode_address,
};

use super::checkpoint::Checkpoint;
use super::open::{OpenError, OpenPool, PoolDevice, failed};
use super::starts::{Found, Standing};
use super::state::{NO_BLOCK, RecordId, State};
use super::tail::TAIL_UNITS_MAX;
use super::units::EXTENT_BLOCKS;
use crate::io::DeviceIo;

const BLOCK: u64 = 4096;
/// Bytes of one read of a table.
const READ_BYTES: u64 = 8 << 20;

/// Reads the tables.
pub(super) async fn load<I: DeviceIo>(io: &I, what: &OpenPool<'_>, found: &[Found]) -> Result<State, OpenError> {
    let mut state = State::new(what.owner_slots, TAIL_UNITS_MAX);
    // Who was away has not heard of all owners.
    let stayed = found.iter().enumerate().filter(|(_, found)| !matches!(found.standing, Standing::Returns(_)));
    let newest = stayed.max_by_key(|(seat, found)| (found.start.session, found.start.generation, usize::MAX - seat));
    let first = newest.map_or(0, |(seat, _)| seat);
    load_owners(io, what, found, &mut state, first).await?;
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
    found: &[Found],
    state: &mut State,
    first: usize,
) -> Result<(), OpenError> {
    let bytes = (u64::from(what.owner_slots) * OWNER_BYTES as u64).next_multiple_of(BLOCK);
    let mut problem = None;
    // All members have them: one that is damaged is read from another.
    let (before, from) = what.members.split_at(first);
    let away =
        |number: u8| found.iter().any(|found| found.number == number && matches!(found.standing, Standing::Returns(_)));
    for member in from.iter().chain(before).filter(|member| !away(member.number)) {
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
pub(super) fn fits(what: &OpenPool<'_>, entry: &Entry) -> bool {
    match &entry.change {
        Change::Padding => true,
        Change::Owner { .. } => entry.index < what.owner_slots,
        Change::Record { record } | Change::Slot { record, .. } => what.member(entry.member).is_some_and(|member| {
            u64::from(entry.index) < u64::from(member.extents) + u64::from(member.zero_slots)
                && of_its_kind(member, entry.index, record)
        }),
    }
}

pub(super) fn apply(state: &mut State, checkpoint: &mut Checkpoint, entry: &Entry) {
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
pub(super) fn verify(state: &State) -> Result<(), OpenError> {
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
