//! The tables of a pool's member, read one after the other: what can be believed of them, and what not.

use crate::probe::Probe;
use std::future::Future;
use std::time::{Duration, Instant};

use braid_format::pool::{
    ADDRESS_SECTOR_BYTES, CHECKPOINT_BYTES, Checkpoint, OWNER_BYTES, Owner, PoolLabel, RECORD_BYTES, Record,
    RecordKind, decode_address, pool_tag,
};

const BLOCK: usize = 4096;
/// A read that fails only after so long is not tried again in smaller pieces.
const HANGS: Duration = Duration::from_secs(10);
/// Bytes that are read at a time.
const READ_BYTES: u64 = 1 << 20;

/// For [`is_bad`]: any block may be in use.
pub const ANY_BLOCK: u64 = u64::MAX;

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
    pub starts: [Option<Checkpoint>; 2],
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
    let places = &label.layout;
    let mut tables = Tables::default();
    let starts = pages(member, places.checkpoints.start, 2 * CHECKPOINT_BYTES as u64).await?;
    for (k, block) in (0u32..).zip(starts.as_chunks::<CHECKPOINT_BYTES>().0) {
        match start_of(label, block) {
            Ok(start) => tables.starts[k as usize] = start,
            Err(()) => tables.bad.push(Bad::Start(k)),
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
            match record_of(label, index, image) {
                Some(record) => {
                    if record.kind != RecordKind::Free {
                        tell(index, &record);
                    }
                    match record.kind {
                        RecordKind::Free => tables.records[0] += u64::from(index < places.extents),
                        RecordKind::Whole => tables.records[1] += 1,
                        RecordKind::Packed => {
                            tables.records[2] += 1;
                            packed.push((index, record));
                        }
                        RecordKind::Zeros => tables.records[3] += 1,
                    }
                }
                None => tables.bad.push(Bad::Record(index)),
            }
            index += 1;
        }
        bad_addresses(member, label, &packed, ANY_BLOCK, &mut tables.bad).await?;
    }
    Ok(tables)
}

/// Whether one of these, which could not be believed, still cannot. Addresses count as bad also where they name a block from `blocks` on.
///
/// # Errors
/// It cannot be read.
pub async fn is_bad(member: &(impl Member + Sync), label: &PoolLabel, what: Bad, blocks: u64) -> Result<bool, String> {
    let places = &label.layout;
    let record = async |index: u32| {
        let at = u64::from(index) * RECORD_BYTES as u64;
        let page = pages(member, places.table.start + at / BLOCK as u64 * BLOCK as u64, BLOCK as u64).await?;
        let image = &page.as_chunks::<RECORD_BYTES>().0[at as usize % BLOCK / RECORD_BYTES];
        Ok::<_, String>(record_of(label, index, image))
    };
    match what {
        Bad::Start(k) => {
            let block = pages(member, places.checkpoints.start + u64::from(k) * BLOCK as u64, BLOCK as u64).await?;
            Ok(start_of(label, &block.as_chunks::<CHECKPOINT_BYTES>().0[0]).is_err())
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
            let packed: Vec<(u32, Record)> = packed.map(|record| (index, record)).into_iter().collect();
            let mut bad = Vec::new();
            bad_addresses(member, label, &packed, blocks, &mut bad).await?;
            Ok(!bad.is_empty())
        }
    }
}

/// The ring start in a block of this member; `None`: none was written there yet.
fn start_of(label: &PoolLabel, block: &[u8; CHECKPOINT_BYTES]) -> Result<Option<Checkpoint>, ()> {
    match Checkpoint::decode(block) {
        Ok(start) if start.pool_tag == pool_tag(&label.uuid) => Ok(Some(start)),
        // The second one is written for the first time by a checkpoint.
        _ if block.iter().all(|byte| *byte == 0) => Ok(None),
        _ => Err(()),
    }
}

/// A record of this member, where it can be believed.
fn record_of(label: &PoolLabel, index: u32, image: &[u8; RECORD_BYTES]) -> Option<Record> {
    let record = Record::decode(image, label.member, index).ok();
    record.filter(|record| belongs(record, index < label.layout.extents))
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
    blocks: u64,
    bad: &mut Vec<Bad>,
) -> Result<(), String> {
    let each = (BLOCK / ADDRESS_SECTOR_BYTES) as u32;
    for of_page in packed.chunk_by(|a, b| a.0 / each == b.0 / each) {
        let first = of_page[0].0 / each;
        let page = pages(member, label.layout.addresses.start + u64::from(first) * BLOCK as u64, BLOCK as u64).await?;
        for (index, record) in of_page {
            let sector = &page[(index % each) as usize * ADDRESS_SECTOR_BYTES..][..ADDRESS_SECTOR_BYTES];
            let words = (0u8..).zip(sector.as_chunks::<8>().0);
            let is_bad = |(slot, word): (u8, &[u8; 8])| {
                let address = decode_address(u64::from_le_bytes(*word), label.member, *index, slot, record.life);
                record.present >> slot & 1 == 1 && !matches!(address, Ok(Some(block)) if block < blocks)
            };
            if words.into_iter().any(is_bad) {
                bad.push(Bad::Addresses(*index));
            }
        }
    }
    Ok(())
}

impl Member for Probe {
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        let bytes = Probe::read(self, offset, len).map_err(|error| error.to_string())?;
        if bytes.len() == len { Ok(bytes) } else { Err("the disk ends before".to_owned()) }
    }
}

/// Cuts a range of bytes into reads, as offset and length, which together cover whole blocks.
pub fn steps(bytes: u64) -> impl Iterator<Item = (u64, u64)> {
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
pub async fn pages_and_gaps(
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

#[cfg(test)]
mod tests {
    use super::*;
    use braid_format::Uuid;
    use braid_format::pool::{PoolMember, PoolMemberLayout, PoolMemberState, PoolState, Reserved, encode_address};
    use std::collections::BTreeMap;

    const BYTES: u64 = 96 << 20;

    /// Pages by where they begin; all others are zeros.
    struct Pages(BTreeMap<u64, Vec<u8>>);

    impl Member for Pages {
        async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
            let pages = (offset..offset + len as u64).step_by(BLOCK);
            Ok(pages.flat_map(|at| self.0.get(&at).cloned().unwrap_or_else(|| vec![0; BLOCK])).collect())
        }
    }

    fn label() -> PoolLabel {
        PoolLabel {
            features: braid_format::Features::default(),
            uuid: Uuid::from_u128(7 << 96),
            sequence: 1,
            name: braid_format::Name::new("tank").expect("a good name"),
            state: PoolState::Active,
            clean: false,
            created_unix_s: 0,
            session: 1,
            members: vec![Some(PoolMember {
                uuid: Uuid::from_u128(8),
                size_bytes: BYTES,
                state: PoolMemberState::InUse,
            })],
            member: 0,
            layout: PoolMemberLayout::new(BYTES, 1024).expect("there is room"),
            reserved: Reserved::NONE,
        }
    }

    async fn found(label: &PoolLabel, pages: &[(u64, &[u8])]) -> Vec<Bad> {
        let member = Pages(pages.iter().map(|(at, page)| (*at, page.to_vec())).collect());
        let bad = look(&member, label, |_, _| {}).await.expect("it reads").bad;
        for k in [0, 1] {
            let again = is_bad(&member, label, Bad::Start(k), ANY_BLOCK).await.expect("it reads");
            assert_eq!(again, bad.contains(&Bad::Start(k)), "start {k} of {bad:?}");
        }
        bad
    }

    #[tokio::test]
    async fn a_ring_start_of_another_pool_is_bad_at_every_look() {
        let label = label();
        let [first, second] = [0, BLOCK as u64].map(|at| label.layout.checkpoints.start + at);
        let own = Checkpoint::first(&label.uuid, 5).encode();
        let foreign = Checkpoint::first(&Uuid::from_u128(9 << 96), 5).encode();
        let nothing = [Bad::Start(0); 0];
        assert_eq!(found(&label, &[(first, &own)]).await, nothing, "the second one is not written yet");
        assert_eq!(found(&label, &[(first, &own), (second, &own)]).await, nothing);
        assert_eq!(found(&label, &[(first, &own), (second, &foreign)]).await, [Bad::Start(1)]);
        assert_eq!(found(&label, &[(first, &foreign)]).await, [Bad::Start(0)]);
        assert_eq!(found(&label, &[(first, &own), (second, &[7; BLOCK])]).await, [Bad::Start(1)]);
    }

    #[tokio::test]
    async fn an_address_that_no_volume_can_have_is_bad_where_that_is_asked_for() {
        let label = label();
        let record = Record { kind: RecordKind::Packed, owner: 1, logical: u32::MAX, present: 1, ..Record::free(3) };
        let (mut table, mut addresses) = (vec![0; BLOCK], vec![0; BLOCK]);
        table[..RECORD_BYTES].copy_from_slice(&record.encode(0, 0));
        addresses[..8].copy_from_slice(&encode_address(0, 0, 0, 1000, 3).to_le_bytes());
        let pages = [(label.layout.table.start, table), (label.layout.addresses.start, addresses)];
        let member = Pages(pages.into_iter().collect());
        let tables = look(&member, &label, |_, _| {}).await.expect("it reads");
        assert_eq!((tables.records[2], tables.bad.len()), (1, 0));
        for (blocks, bad) in [(ANY_BLOCK, false), (1001, false), (1000, true)] {
            assert_eq!(is_bad(&member, &label, Bad::Addresses(0), blocks).await, Ok(bad), "{blocks} blocks");
        }
    }
}
