//! Reads the metadata tables of a pool member, and separates valid from damaged entries.

use crate::probe::Probe;
use std::future::Future;
use std::time::{Duration, Instant};

use braid_format::pool::{
    ADDRESS_SECTOR_BYTES, CHECKPOINT_BYTES, Checkpoint, OWNER_BYTES, Owner, PoolLabel, RECORD_BYTES, Record,
    RecordKind, decode_address, pool_tag,
};

const BLOCK: usize = 4096;
/// A read that takes at least this time to fail is not retried page by page.
const HANG_THRESHOLD: Duration = Duration::from_secs(10);
/// Size of a read, in bytes.
const READ_BYTES: u64 = 1 << 20;

/// The `blocks` argument of [`is_damaged`] with which every block number is valid.
pub const ANY_BLOCK: u64 = u64::MAX;

/// A source of a member's bytes.
pub trait MemberReader {
    /// Reads exactly `len` bytes at `offset` of the member.
    ///
    /// # Errors
    /// A message for users, also if the member ends before the range does.
    fn read(&self, offset: u64, len: usize) -> impl Future<Output = Result<Vec<u8>, String>> + Send;
}

/// A damaged entry of the tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DamagedEntry {
    /// A checkpoint: the first (0) or the second (1).
    Checkpoint(u32),
    /// The owner table entry in this slot.
    Owner(u32),
    /// The extent record with this index.
    Record(u32),
    /// The block addresses of the packed extent with this index.
    Addresses(u32),
}

impl DamagedEntry {
    /// Returns the kind of the entry, as the API names it, and its index.
    pub fn api_name(self) -> (&'static str, u32) {
        match self {
            DamagedEntry::Checkpoint(index) => ("checkpoint", index),
            DamagedEntry::Owner(index) => ("owner", index),
            DamagedEntry::Record(index) => ("record", index),
            DamagedEntry::Addresses(index) => ("addresses", index),
        }
    }
}

/// The content of a member's tables.
#[derive(Clone, Debug, Default)]
pub struct PoolTables {
    /// The checkpoints of the two slots; `None` for a slot that is damaged or was never written.
    pub checkpoints: [Option<Checkpoint>; 2],
    /// The valid owners, with their slots.
    pub owners: Vec<(u32, Owner)>,
    /// The numbers of valid records, by kind: free, whole, packed, zeros. Free records without an extent are not
    /// counted.
    pub records: [u64; 4],
    /// The damaged entries.
    pub damaged: Vec<DamagedEntry>,
}

/// Reads all tables. Passes every valid record that is not free, with its index, to `on_record`.
///
/// # Errors
/// All pages of a read of several pages are unreadable, or the member hangs.
pub async fn read_tables(
    member: &(impl MemberReader + Sync),
    label: &PoolLabel,
    mut on_record: impl FnMut(u32, &Record) + Send,
) -> Result<PoolTables, String> {
    let layout = &label.layout;
    let mut tables = PoolTables::default();
    let starts = pages(member, layout.checkpoints.start, 2 * CHECKPOINT_BYTES as u64).await?;
    for (k, block) in (0u32..).zip(starts.as_chunks::<CHECKPOINT_BYTES>().0) {
        match decode_checkpoint(label, block) {
            Ok(start) => tables.checkpoints[k as usize] = start,
            Err(()) => tables.damaged.push(DamagedEntry::Checkpoint(k)),
        }
    }
    let mut slot = 0;
    for (at, len) in split_reads(u64::from(layout.owner_slots) * OWNER_BYTES as u64) {
        let bytes = pages(member, layout.owners.start + at, len).await?;
        for image in bytes.as_chunks::<OWNER_BYTES>().0.iter().take((layout.owner_slots - slot) as usize) {
            match Owner::decode(image, slot) {
                Ok(owner) => tables.owners.extend(owner.map(|owner| (slot, owner))),
                Err(_) => tables.damaged.push(DamagedEntry::Owner(slot)),
            }
            slot += 1;
        }
    }
    let all = layout.extents + layout.zero_slots;
    let mut index = 0;
    for (at, len) in split_reads(u64::from(all) * RECORD_BYTES as u64) {
        let bytes = pages(member, layout.table.start + at, len).await?;
        let mut packed = Vec::new();
        for image in bytes.as_chunks::<RECORD_BYTES>().0.iter().take((all - index) as usize) {
            match decode_record(label, index, image) {
                Some(record) => {
                    if record.kind != RecordKind::Free {
                        on_record(index, &record);
                    }
                    match record.kind {
                        RecordKind::Free => tables.records[0] += u64::from(index < layout.extents),
                        RecordKind::Whole => tables.records[1] += 1,
                        RecordKind::Packed => {
                            tables.records[2] += 1;
                            packed.push((index, record));
                        }
                        RecordKind::Zeros => tables.records[3] += 1,
                    }
                }
                None => tables.damaged.push(DamagedEntry::Record(index)),
            }
            index += 1;
        }
        find_damaged_addresses(member, label, &packed, ANY_BLOCK, &mut tables.damaged).await?;
    }
    Ok(tables)
}

/// Returns whether an entry that was damaged is still damaged. An entry that cannot be read is damaged. Addresses also
/// count as damaged if one of them is not below `blocks` ([`ANY_BLOCK`]: every address is valid), and as not damaged if
/// their record is not that of a packed extent.
///
/// # Errors
/// The member hangs.
pub async fn is_damaged(
    member: &(impl MemberReader + Sync),
    label: &PoolLabel,
    what: DamagedEntry,
    blocks: u64,
) -> Result<bool, String> {
    let layout = &label.layout;
    let record = async |index: u32| {
        let at = u64::from(index) * RECORD_BYTES as u64;
        let page = pages(member, layout.table.start + at / BLOCK as u64 * BLOCK as u64, BLOCK as u64).await?;
        let image = &page.as_chunks::<RECORD_BYTES>().0[at as usize % BLOCK / RECORD_BYTES];
        Ok::<_, String>(decode_record(label, index, image))
    };
    match what {
        DamagedEntry::Checkpoint(k) => {
            let block = pages(member, layout.checkpoints.start + u64::from(k) * BLOCK as u64, BLOCK as u64).await?;
            Ok(decode_checkpoint(label, &block.as_chunks::<CHECKPOINT_BYTES>().0[0]).is_err())
        }
        DamagedEntry::Owner(slot) => {
            let at = u64::from(slot) * OWNER_BYTES as u64;
            let page = pages(member, layout.owners.start + at / BLOCK as u64 * BLOCK as u64, BLOCK as u64).await?;
            let image = &page.as_chunks::<OWNER_BYTES>().0[at as usize % BLOCK / OWNER_BYTES];
            Ok(Owner::decode(image, slot).is_err())
        }
        DamagedEntry::Record(index) => Ok(record(index).await?.is_none()),
        DamagedEntry::Addresses(index) => {
            let packed = record(index).await?.filter(|record| record.kind == RecordKind::Packed);
            let packed: Vec<(u32, Record)> = packed.map(|record| (index, record)).into_iter().collect();
            let mut bad = Vec::new();
            find_damaged_addresses(member, label, &packed, blocks, &mut bad).await?;
            Ok(!bad.is_empty())
        }
    }
}

/// Decodes the checkpoint in a block of this member; `None` if none was written yet. Fails if the checkpoint is damaged or of another pool.
fn decode_checkpoint(label: &PoolLabel, block: &[u8; CHECKPOINT_BYTES]) -> Result<Option<Checkpoint>, ()> {
    match Checkpoint::decode(block) {
        Ok(start) if start.pool_tag == pool_tag(&label.uuid) => Ok(Some(start)),
        // The second checkpoint stays all zeros until the pool writes it for the first time.
        _ if block.iter().all(|byte| *byte == 0) => Ok(None),
        _ => Err(()),
    }
}

/// Decodes a record of this member; `None` if it is damaged or its kind is not valid at this index.
fn decode_record(label: &PoolLabel, index: u32, image: &[u8; RECORD_BYTES]) -> Option<Record> {
    let record = Record::decode(image, label.member, index).ok();
    record.filter(|record| kind_is_valid(record, index < label.layout.extents))
}

fn kind_is_valid(record: &Record, is_extent: bool) -> bool {
    match record.kind {
        RecordKind::Free => true,
        RecordKind::Whole | RecordKind::Packed => is_extent,
        RecordKind::Zeros => !is_extent,
    }
}

async fn find_damaged_addresses(
    member: &(impl MemberReader + Sync),
    label: &PoolLabel,
    packed: &[(u32, Record)],
    blocks: u64,
    bad: &mut Vec<DamagedEntry>,
) -> Result<(), String> {
    let sectors_per_page = (BLOCK / ADDRESS_SECTOR_BYTES) as u32;
    for page_records in packed.chunk_by(|a, b| a.0 / sectors_per_page == b.0 / sectors_per_page) {
        let first = page_records[0].0 / sectors_per_page;
        let page = pages(member, label.layout.addresses.start + u64::from(first) * BLOCK as u64, BLOCK as u64).await?;
        for (index, record) in page_records {
            let sector = &page[(index % sectors_per_page) as usize * ADDRESS_SECTOR_BYTES..][..ADDRESS_SECTOR_BYTES];
            let words = (0u8..).zip(sector.as_chunks::<8>().0);
            let is_bad = |(slot, word): (u8, &[u8; 8])| {
                let address = decode_address(u64::from_le_bytes(*word), label.member, *index, slot, record.life);
                record.present >> slot & 1 == 1 && !matches!(address, Ok(Some(block)) if block < blocks)
            };
            if words.into_iter().any(is_bad) {
                bad.push(DamagedEntry::Addresses(*index));
            }
        }
    }
    Ok(())
}

impl MemberReader for Probe {
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        let bytes = Probe::read(self, offset, len).map_err(|error| error.to_string())?;
        if bytes.len() == len { Ok(bytes) } else { Err("the disk ends before the range".to_owned()) }
    }
}

/// Splits the range from 0 to `bytes` into reads, as offset and length, which cover whole blocks.
pub fn split_reads(bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let bytes = bytes.next_multiple_of(BLOCK as u64);
    (0..bytes).step_by(READ_BYTES as usize).map(move |at| (at, READ_BYTES.min(bytes - at)))
}

/// Reads whole pages of 4096 bytes. Unreadable pages are filled with 0xff, which is no valid encoding of any structure.
/// Fails if none of several pages is readable.
async fn pages(member: &(impl MemberReader + Sync), offset: u64, len: u64) -> Result<Vec<u8>, String> {
    let (bytes, unread) = read_pages(member, offset, len).await?;
    // A single page is read to check an entry that is known to be damaged: there an unreadable page is not an error.
    match unread.first() {
        Some((_, error)) if len > BLOCK as u64 && unread.len() as u64 == len / BLOCK as u64 => Err(error.clone()),
        _ => Ok(bytes),
    }
}

/// Reads whole pages of 4096 bytes: `len` bytes at `offset`. Returns their bytes, and the unreadable pages, by their
/// number from `offset` on, with the error messages. Unreadable pages are filled with 0xff, which is no valid encoding
/// of any structure.
///
/// # Errors
/// The member hangs.
pub async fn read_pages(
    member: &(impl MemberReader + Sync),
    offset: u64,
    len: u64,
) -> Result<(Vec<u8>, Vec<(u32, String)>), String> {
    let begun = Instant::now();
    let error = match member.read(offset, len as usize).await {
        Ok(bytes) => return Ok((bytes, Vec::new())),
        Err(error) => error,
    };
    // A member that hangs would hang again for each page.
    if begun.elapsed() >= HANG_THRESHOLD {
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

    /// Pages by their offset. All other pages are zeros.
    struct Pages(BTreeMap<u64, Vec<u8>>);

    impl MemberReader for Pages {
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

    async fn found(label: &PoolLabel, pages: &[(u64, &[u8])]) -> Vec<DamagedEntry> {
        let member = Pages(pages.iter().map(|(at, page)| (*at, page.to_vec())).collect());
        let bad = read_tables(&member, label, |_, _| {}).await.expect("it reads").damaged;
        for k in [0, 1] {
            let again = is_damaged(&member, label, DamagedEntry::Checkpoint(k), ANY_BLOCK).await.expect("it reads");
            assert_eq!(again, bad.contains(&DamagedEntry::Checkpoint(k)), "start {k} of {bad:?}");
        }
        bad
    }

    #[tokio::test]
    async fn checkpoint_of_another_pool_is_damaged() {
        let label = label();
        let [first, second] = [0, BLOCK as u64].map(|at| label.layout.checkpoints.start + at);
        let own = Checkpoint::first(&label.uuid, 5).encode();
        let foreign = Checkpoint::first(&Uuid::from_u128(9 << 96), 5).encode();
        let nothing = [DamagedEntry::Checkpoint(0); 0];
        assert_eq!(found(&label, &[(first, &own)]).await, nothing, "the second one is not written yet");
        assert_eq!(found(&label, &[(first, &own), (second, &own)]).await, nothing);
        assert_eq!(found(&label, &[(first, &own), (second, &foreign)]).await, [DamagedEntry::Checkpoint(1)]);
        assert_eq!(found(&label, &[(first, &foreign)]).await, [DamagedEntry::Checkpoint(0)]);
        assert_eq!(found(&label, &[(first, &own), (second, &[7; BLOCK])]).await, [DamagedEntry::Checkpoint(1)]);
    }

    #[tokio::test]
    async fn address_beyond_the_block_limit_is_damaged() {
        let label = label();
        let record = Record { kind: RecordKind::Packed, owner: 1, logical: u32::MAX, present: 1, ..Record::free(3) };
        let (mut table, mut addresses) = (vec![0; BLOCK], vec![0; BLOCK]);
        table[..RECORD_BYTES].copy_from_slice(&record.encode(0, 0));
        addresses[..8].copy_from_slice(&encode_address(0, 0, 0, 1000, 3).to_le_bytes());
        let pages = [(label.layout.table.start, table), (label.layout.addresses.start, addresses)];
        let member = Pages(pages.into_iter().collect());
        let tables = read_tables(&member, &label, |_, _| {}).await.expect("it reads");
        assert_eq!((tables.records[2], tables.damaged.len()), (1, 0));
        for (blocks, bad) in [(ANY_BLOCK, false), (1001, false), (1000, true)] {
            assert_eq!(
                is_damaged(&member, &label, DamagedEntry::Addresses(0), blocks).await,
                Ok(bad),
                "{blocks} blocks"
            );
        }
    }
}
