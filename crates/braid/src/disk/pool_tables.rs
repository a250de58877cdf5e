//! The tables of a pool's member, read one after the other: what can be believed of them, and what not.

use std::future::Future;
use std::time::{Duration, Instant};

use braid_format::pool::{
    ADDRESS_SECTOR_BYTES, OWNER_BYTES, Owner, PoolLabel, RECORD_BYTES, RING_START_BYTES, Record, RecordKind, RingStart,
    decode_address, pool_tag,
};

const BLOCK: usize = 4096;
/// A read that fails only after so long is not tried again in smaller pieces.
const HANGS: Duration = Duration::from_secs(10);
/// Bytes that are read at a time.
const READ_BYTES: u64 = 1 << 20;

/// Where bytes of a member come from.
pub trait Member {
    /// Bytes of it; what cannot be read is said in words.
    fn read(&self, offset: u64, len: usize) -> impl Future<Output = Result<Vec<u8>, String>> + Send;
}

/// What cannot be believed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Bad {
    /// A ring start: the first or the second.
    Start(u32),
    /// A slot of the list of owners.
    Owner(u32),
    /// A record.
    Record(u32),
    /// Addresses of a packed extent.
    Addresses(u32),
}

impl Bad {
    /// What it is, as the API calls it, and which.
    pub fn word(self) -> (&'static str, u32) {
        match self {
            Bad::Start(index) => ("ring_start", index),
            Bad::Owner(index) => ("owner", index),
            Bad::Record(index) => ("record", index),
            Bad::Addresses(index) => ("addresses", index),
        }
    }
}

/// What a member's tables hold.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// The ring starts, where they can be believed.
    pub starts: [Option<RingStart>; 2],
    /// Owners, with their slots.
    pub owners: Vec<(u32, Owner)>,
    /// Records: free ones of extents, whole, packed, zeros.
    pub records: [u64; 4],
    /// What cannot be believed.
    pub bad: Vec<Bad>,
}

/// Reads all of them. `tell` gets every record that is not free.
///
/// # Errors
/// Nothing of it can be read.
pub async fn look(
    member: &(impl Member + Sync),
    label: &PoolLabel,
    mut tell: impl FnMut(u32, &Record) + Send,
) -> Result<Tables, String> {
    let (places, number) = (&label.places, label.member);
    let mut tables = Tables::default();
    let starts = pages(member, places.starts.start, 2 * RING_START_BYTES as u64).await?;
    for (k, block) in (0u32..).zip(starts.as_chunks::<RING_START_BYTES>().0) {
        match RingStart::decode(block) {
            Ok(start) if start.pool_tag == pool_tag(&label.uuid) => tables.starts[k as usize] = Some(start),
            // The second one is written for the first time by a checkpoint.
            _ if block.iter().all(|byte| *byte == 0) => {}
            _ => tables.bad.push(Bad::Start(k)),
        }
    }
    let mut slot = 0;
    for (at, len) in steps(u64::from(places.owner_slots) * OWNER_BYTES as u64) {
        let bytes = pages(member, places.owners.start + at, len).await?;
        for image in bytes.as_chunks::<OWNER_BYTES>().0.iter().take((places.owner_slots - slot) as usize) {
            match Owner::decode(image, slot) {
                Ok(owner) => tables.owners.extend(owner.map(|owner| (slot, owner))),
                Err(_) => tables.bad.push(Bad::Owner(slot)),
            }
            slot += 1;
        }
    }
    let all = places.extents + places.zero_slots;
    let mut index = 0;
    for (at, len) in steps(u64::from(all) * RECORD_BYTES as u64) {
        let bytes = pages(member, places.table.start + at, len).await?;
        let mut packed = Vec::new();
        for image in bytes.as_chunks::<RECORD_BYTES>().0.iter().take((all - index) as usize) {
            let kind = match Record::decode(image, number, index) {
                Ok(record) if !belongs(&record, index < places.extents) => Err(()),
                Ok(record) => {
                    if record.kind != RecordKind::Free {
                        tell(index, &record);
                    }
                    if record.kind == RecordKind::Packed {
                        packed.push((index, record));
                    }
                    Ok(record.kind)
                }
                Err(_) => Err(()),
            };
            match kind {
                Ok(RecordKind::Free) => tables.records[0] += u64::from(index < places.extents),
                Ok(RecordKind::Whole) => tables.records[1] += 1,
                Ok(RecordKind::Packed) => tables.records[2] += 1,
                Ok(RecordKind::Zeros) => tables.records[3] += 1,
                Err(()) => tables.bad.push(Bad::Record(index)),
            }
            index += 1;
        }
        bad_addresses(member, label, &packed, &mut tables.bad).await?;
    }
    Ok(tables)
}

/// Whether one of these, which could not be believed, still cannot.
///
/// # Errors
/// It cannot be read.
pub async fn is_bad(member: &(impl Member + Sync), label: &PoolLabel, what: Bad) -> Result<bool, String> {
    let (places, number) = (&label.places, label.member);
    let record = async |index: u32| {
        let at = u64::from(index) * RECORD_BYTES as u64;
        let page = pages(member, places.table.start + at / BLOCK as u64 * BLOCK as u64, BLOCK as u64).await?;
        let image = &page.as_chunks::<RECORD_BYTES>().0[at as usize % BLOCK / RECORD_BYTES];
        let record = Record::decode(image, number, index).ok();
        Ok::<_, String>(record.filter(|record| belongs(record, index < places.extents)))
    };
    match what {
        Bad::Start(k) => {
            let block = pages(member, places.starts.start + u64::from(k) * BLOCK as u64, BLOCK as u64).await?;
            let start = RingStart::decode(&block.as_chunks::<RING_START_BYTES>().0[0]);
            Ok(start.is_err())
        }
        Bad::Owner(slot) => {
            let at = u64::from(slot) * OWNER_BYTES as u64;
            let page = pages(member, places.owners.start + at / BLOCK as u64 * BLOCK as u64, BLOCK as u64).await?;
            let image = &page.as_chunks::<OWNER_BYTES>().0[at as usize % BLOCK / OWNER_BYTES];
            Ok(Owner::decode(image, slot).is_err())
        }
        Bad::Record(index) => Ok(record(index).await?.is_none()),
        Bad::Addresses(index) => {
            let packed = record(index).await?.filter(|record| record.kind == RecordKind::Packed);
            let mut bad = Vec::new();
            bad_addresses(
                member,
                label,
                &packed.map(|record| (index, record)).into_iter().collect::<Vec<_>>(),
                &mut bad,
            )
            .await?;
            Ok(!bad.is_empty())
        }
    }
}

fn belongs(record: &Record, is_extent: bool) -> bool {
    match record.kind {
        RecordKind::Free => true,
        RecordKind::Whole | RecordKind::Packed => is_extent,
        RecordKind::Zeros => !is_extent,
    }
}

async fn bad_addresses(
    member: &(impl Member + Sync),
    label: &PoolLabel,
    packed: &[(u32, Record)],
    bad: &mut Vec<Bad>,
) -> Result<(), String> {
    let each = (BLOCK / ADDRESS_SECTOR_BYTES) as u32;
    for of_page in packed.chunk_by(|a, b| a.0 / each == b.0 / each) {
        let first = of_page[0].0 / each;
        let page = pages(member, label.places.addresses.start + u64::from(first) * BLOCK as u64, BLOCK as u64).await?;
        for (index, record) in of_page {
            let sector = &page[(index % each) as usize * ADDRESS_SECTOR_BYTES..][..ADDRESS_SECTOR_BYTES];
            let words = (0u8..).zip(sector.as_chunks::<8>().0);
            let is_bad = |(slot, word): (u8, &[u8; 8])| {
                let address = decode_address(u64::from_le_bytes(*word), label.member, *index, slot, record.life);
                record.present >> slot & 1 == 1 && !matches!(address, Ok(Some(_)))
            };
            if words.into_iter().any(is_bad) {
                bad.push(Bad::Addresses(*index));
            }
        }
    }
    Ok(())
}

pub(super) fn steps(bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let bytes = bytes.next_multiple_of(BLOCK as u64);
    (0..bytes).step_by(READ_BYTES as usize).map(move |at| (at, READ_BYTES.min(bytes - at)))
}

/// Reads whole pages. Those that cannot be read have bytes of which no structure is made; if none can, that is an error.
async fn pages(member: &(impl Member + Sync), offset: u64, len: u64) -> Result<Vec<u8>, String> {
    let (bytes, unread) = pages_and_gaps(member, offset, len).await?;
    // A single page is asked for by those who look at what is known to be bad.
    match unread.first() {
        Some((_, error)) if len > BLOCK as u64 && unread.len() as u64 == len / BLOCK as u64 => Err(error.clone()),
        _ => Ok(bytes),
    }
}

/// Reads whole pages, and tells which of them, by their number from `offset` on, could not be read, and why: of their bytes no structure is made.
///
/// # Errors
/// The member hangs.
pub(super) async fn pages_and_gaps(
    member: &(impl Member + Sync),
    offset: u64,
    len: u64,
) -> Result<(Vec<u8>, Vec<(u32, String)>), String> {
    let begun = Instant::now();
    let error = match member.read(offset, len as usize).await {
        Ok(bytes) => return Ok((bytes, Vec::new())),
        Err(error) => error,
    };
    // One that hangs would hang for each page.
    if begun.elapsed() >= HANGS {
        return Err(error);
    }
    let mut bytes = Vec::with_capacity(len as usize);
    let mut unread = Vec::new();
    for (number, at) in (0..).zip((0..len).step_by(BLOCK)) {
        match member.read(offset + at, BLOCK).await {
            Ok(page) => bytes.extend(page),
            Err(error) => {
                unread.push((number, error));
                bytes.resize(bytes.len() + BLOCK, 0xff);
            }
        }
    }
    Ok((bytes, unread))
}
