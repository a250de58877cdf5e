//! Heads of the journal: read on all members, written on all members.

use braid_format::journal::{
    DISK_RING_BLOCKS_MAX, HEAD_BYTES, Head, LostRow, RING_START_BYTES, RingOn, decode_head, encode_head, head_slot,
    ring_blocks, ring_blocks_min, row_bytes,
};
use braid_format::{ArrayPart, BLOCK_BYTES, Places, SMALL_DEVICE_BYTES, Uuid};

use super::super::array::Array;
use super::super::error::LifecycleError;
use super::super::join::{join_all, try_join_all};
use super::super::planted::{Planted, planted};
use super::super::write::Target;
use super::{Recovery, failed, wrong};
use crate::{ErrorKind, LeafId, MetaIo};

const HEAD: u64 = HEAD_BYTES as u64;

/// Whether the members of such an array have a journal.
fn has_journal(label: &ArrayPart) -> bool {
    label.spec.level.parity() > 0
}

/// The ring that all of these disks have room for, in blocks.
fn common_ring<'a>(places: impl Iterator<Item = &'a Places>) -> u64 {
    places.map(|places| ring_blocks(places.journal.bytes)).min().unwrap_or(0)
}

/// Refuses a disk whose journal area has no room for a ring of so many blocks.
fn check_ring(leaf: LeafId, places: &Places, blocks: u64) -> Result<(), LifecycleError> {
    let (room_bytes, needed_bytes) = (places.journal.bytes, RING_START_BYTES + blocks * BLOCK_BYTES);
    if ring_blocks(room_bytes) >= blocks {
        return Ok(());
    }
    // The journal of a disk that holds nothing else takes whatever is there; that of members has one of two sizes.
    let holds_data = places.data.bytes > BLOCK_BYTES;
    let disk_bytes = if holds_data { SMALL_DEVICE_BYTES } else { places.device_bytes + (needed_bytes - room_bytes) };
    Err(LifecycleError::JournalRoom { leaf, room_bytes, needed_bytes, disk_bytes })
}

/// Refuses a disk that is to be a member of such an array and has no room for its journal: as large as those of the members
/// that are here, where there are some.
pub(in crate::lifecycle) fn check_room(
    leaf: LeafId,
    places: &Places,
    label: &ArrayPart,
    members: &[Target],
) -> Result<(), LifecycleError> {
    if !has_journal(label) {
        return Ok(());
    }
    let least = ring_blocks_min(label.members.len() as u64);
    check_ring(leaf, places, common_ring(members.iter().map(|t| &t.part.places)).max(least))
}

/// The ring on a disk of its own, in blocks, and what its head says of that; `member_blocks`: what all members have room for.
fn disk_ring(disk: &Target, member_blocks: u64) -> (u64, RingOn) {
    let blocks = ring_blocks(disk.part.places.journal.bytes).min(DISK_RING_BLOCKS_MAX);
    let member_blocks = u16::try_from(member_blocks).unwrap_or(u16::MAX);
    (blocks, RingOn::Disk { id: disk.part.id, member_blocks })
}

/// The ring that the members have room for, in blocks, wherever it is.
fn member_ring(head: &Head) -> u64 {
    match head.ring_on {
        RingOn::Members => head.ring_blocks,
        RingOn::Disk { member_blocks, .. } => member_blocks.into(),
    }
}

/// Writes the first head of a new array on its members, and on the disk of its journal where there is one, durably; nothing at
/// levels without parity.
pub(in crate::lifecycle) async fn write_first<M: MetaIo>(
    io: &M,
    label: &ArrayPart,
    members: &[&Target],
    disk: Option<&Target>,
    run: u64,
) -> Result<(), LifecycleError> {
    if !has_journal(label) {
        return Ok(());
    }
    let ring_blocks = common_ring(members.iter().map(|t| &t.part.places));
    let row_bytes = row_bytes(label.spec.chunk_bytes as u32);
    let (ring_blocks, ring_on) = disk.map_or((ring_blocks, RingOn::Members), |disk| disk_ring(disk, ring_blocks));
    let head = Head { generation: 1, run: run.max(1), ring_blocks, row_bytes, ring_on };
    write_head(io, label, &disk.into_iter().collect::<Vec<_>>(), &head, &[]).await?;
    write_head(io, label, members, &head, &[]).await
}

async fn write_head<M: MetaIo>(
    io: &M,
    label: &ArrayPart,
    members: &[&Target],
    head: &Head,
    lost: &[LostRow],
) -> Result<(), LifecycleError> {
    let mut bytes = Box::new([0; HEAD_BYTES]);
    let used = encode_head(&label.uuid, head, lost, &mut bytes);
    let bytes = &bytes[..used];
    try_join_all(members.iter().map(|target| async move {
        let offset = target.part.places.journal.start + head_slot(head.generation) * HEAD;
        let written = io.write(target.leaf, offset, bytes.to_vec(), true).await;
        written.map_err(|source| failed(target.leaf, "write the head of the journal", offset, source))
    }))
    .await
    .map(drop)
}

/// Takes the heads off a disk that is to be filled, durably: it may have been a member before, and bear a newer one than those
/// that went on. Nothing at levels without parity.
pub(in crate::lifecycle) async fn erase_heads<M: MetaIo>(
    io: &M,
    label: &ArrayPart,
    target: &Target,
) -> Result<(), LifecycleError> {
    if !has_journal(label) || planted(Planted::NewcomerKeepsHead) {
        return Ok(());
    }
    for slot in [0, 1] {
        let offset = target.part.places.journal.start + slot * HEAD;
        // A head without its first block is none.
        let written = io.write(target.leaf, offset, vec![0; BLOCK_BYTES as usize], true).await;
        written.map_err(|source| failed(target.leaf, "erase the head of the journal", offset, source))?;
    }
    Ok(())
}

/// Gives a member that is about to be in sync a head, where it has none yet: that of the others. Nothing at levels without parity.
pub(in crate::lifecycle) async fn give_head<M: MetaIo>(io: &M, array: &Array, role: u16) -> Result<(), LifecycleError> {
    let recovery = Recovery::new(io, array, false);
    let Some(target) = recovery.sinks.iter().copied().find(|t| t.part.role == role) else { return Ok(()) };
    if !has_journal(&array.label) || !recovery.heads_on(target).await?.whole.is_empty() {
        return Ok(());
    }
    give_newest(io, array, target).await
}

/// Gives a disk that bears none the newest head of the members in sync. Nothing at levels without parity.
pub(in crate::lifecycle) async fn give_newest<M: MetaIo>(
    io: &M,
    array: &Array,
    target: &Target,
) -> Result<(), LifecycleError> {
    if !has_journal(&array.label) {
        return Ok(());
    }
    let recovery = Recovery::new(io, array, false);
    // Where the array serves, the next one may be on its way meanwhile, to this member as well: until none is newer than what was
    // written.
    let mut given = 0;
    while let Ok(Some(Newest { head, lost, doubt: false })) = recovery.newest_head().await
        && head.generation > given
    {
        write_head(io, &array.label, &[target], &head, &lost).await?;
        given = head.generation;
    }
    match &array.run_head {
        // A member in sync that cannot read its own is for others to notice; this one may be the only one that is left then.
        Some((head, lost)) if given == 0 => write_head(io, &array.label, &[target], head, lost).await,
        _ => Ok(()),
    }
}

/// The head that counts.
pub(super) struct Newest {
    pub head: Head,
    pub lost: Vec<LostRow>,
    /// There may be one that is newer, in a place that cannot be read, on every member.
    pub doubt: bool,
}

impl Newest {
    /// The head as one that comes after it sees it: the next has a number that none has which cannot be read, and is in its place.
    pub fn passed(&self) -> Head {
        Head { generation: self.head.generation + 2 * u64::from(self.doubt), ..self.head }
    }
}

/// The heads on one disk.
#[derive(Default)]
pub(super) struct Heads {
    pub whole: Vec<(Head, Vec<LostRow>)>,
    /// One of their places could not be read.
    unread: bool,
}

impl Heads {
    fn newest(&self) -> Option<u64> {
        self.whole.iter().map(|(head, _)| head.generation).max()
    }

    /// Whether a head that is newer than this one would be seen here, were it on all members. Heads take turns between two places.
    fn would_tell_of_one_behind(&self, generation: u64) -> bool {
        self.newest().is_some_and(|newest| !self.unread || newest < generation)
    }
}

/// The whole heads of an array on a disk with a journal area that begins here.
pub(super) async fn heads_at<M: MetaIo>(
    io: &M,
    array: &Uuid,
    leaf: LeafId,
    start: u64,
) -> Result<Heads, LifecycleError> {
    let read = join_all([0, 1].map(|slot| io.read(leaf, start + slot * HEAD, HEAD_BYTES))).await;
    let mut heads = Heads::default();
    for (slot, bytes) in (0..).zip(read) {
        match bytes {
            Ok(bytes) => heads.whole.extend(bytes.first_chunk().and_then(|bytes| decode_head(array, bytes))),
            Err(source) if source.kind == ErrorKind::Io => heads.unread = true,
            Err(source) => return Err(failed(leaf, "read the head of the journal", start + slot * HEAD, source)),
        }
    }
    Ok(heads)
}

impl<M: MetaIo> Recovery<'_, M> {
    /// The head that counts, of all members in sync; that on the disk of the journal only where no member bears one: it may have been
    /// with others, and one that is to come it bears before any member does.
    pub(super) async fn newest_head(&self) -> Result<Option<Newest>, LifecycleError> {
        let found = try_join_all(self.sources.iter().map(|target| self.heads_on(target))).await?;
        let on_disk = match self.disk {
            Some(disk) => self.heads_on(disk).await?,
            None => Heads::default(),
        };
        let on_members = || found.iter().flat_map(|heads| &heads.whole);
        let newest = on_members().max_by_key(|(head, _)| head.generation);
        let newest = newest.or_else(|| on_disk.whole.iter().max_by_key(|(head, _)| head.generation));
        let Some(newest) = newest else { return Ok(None) };
        if on_members().any(|other| other.0.generation == newest.0.generation && other != newest) {
            return Err(wrong(format!("its members bear different heads of the generation {}", newest.0.generation)));
        }
        let head = &newest.0;
        let room = common_ring(self.sources.iter().map(|t| &t.part.places));
        if u64::from(head.row_bytes) != self.row_bytes || member_ring(head) > room {
            return Err(wrong(format!(
                "its head says rows of {} bytes and a ring of {} blocks; rows have {}, and there is room for {room}",
                head.row_bytes,
                member_ring(head),
                self.row_bytes
            )));
        }
        let unread = found.iter().any(|heads| heads.unread);
        let doubt = unread && !found.iter().any(|heads| heads.would_tell_of_one_behind(head.generation));
        Ok(Some(Newest { head: *head, lost: newest.1.clone(), doubt }))
    }

    /// The whole heads on one member. A place that it cannot read holds none.
    pub(super) async fn heads_on(&self, target: &Target) -> Result<Heads, LifecycleError> {
        heads_at(self.io, self.uuid(), target.leaf, target.part.places.journal.start).await
    }

    /// Where no head is left: as if one were there.
    pub(super) fn first_head(&self) -> Head {
        let ring_blocks = self.ring_from_now_on(u64::MAX);
        Head { generation: 0, run: 1, ring_blocks, row_bytes: self.row_bytes as u32, ring_on: RingOn::Members }
    }

    /// Who is not here may have less room, and return: the ring becomes larger only when everybody is here.
    fn ring_from_now_on(&self, before: u64) -> u64 {
        let array: &Array = self.array;
        let here = common_ring(array.targets.iter().map(|t| &t.part.places));
        if array.is_whole() { here } else { here.min(before) }
    }

    /// Writes the head that begins a new run, on all that are in sync or being filled, durably: with the ring on the disk of the
    /// journal where that is here. It bears the head first: without one of the run it is not taken for the ring's disk.
    pub(super) async fn begin(&self, head: &Head, run: u64, lost: &[LostRow]) -> Result<Head, LifecycleError> {
        let member_blocks = self.ring_from_now_on(member_ring(head));
        let (ring_blocks, ring_on) =
            self.disk.map_or((member_blocks, RingOn::Members), |disk| disk_ring(disk, member_blocks));
        let ahead = match self.disk {
            Some(disk) => self.heads_on(disk).await?.newest().unwrap_or(0),
            None => 0,
        };
        let mut generation = head.generation + 1;
        while generation <= ahead {
            // Never in the place of the one that members have now.
            generation += 2;
        }
        let next = Head { generation, run, ring_blocks, row_bytes: head.row_bytes, ring_on };
        // Each cell may come to need an entry of its own.
        let cells: usize = lost.iter().map(|row| row.cells().len()).sum();
        if cells > braid_format::journal::LOST_ROWS_MAX {
            return Err(wrong(format!("{cells} cells of its rows cannot be read, more than it can list")));
        }
        let on = if planted(Planted::HeadOnOneMember) { &self.sinks[..1] } else { &self.sinks[..] };
        if let Some(disk) = self.disk.filter(|_| !planted(Planted::DiskHeadLast)) {
            write_head(self.io, &self.array.label, &[disk], &next, lost).await?;
        }
        write_head(self.io, &self.array.label, on, &next, lost).await?;
        if let Some(disk) = self.disk.filter(|_| planted(Planted::DiskHeadLast)) {
            write_head(self.io, &self.array.label, &[disk], &next, lost).await?;
        }
        Ok(next)
    }
}
