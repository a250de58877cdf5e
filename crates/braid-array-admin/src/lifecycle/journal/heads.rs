//! The heads of the journal: read from all members, written to all members.

use braid_engine::{ErrorKind, LeafId, MetaIo};
use braid_format::journal::{
    DISK_RING_BLOCKS_MAX, HEAD_BYTES, JournalHead, LostStripe, RING_OFFSET_BYTES, RingLocation, decode_head,
    encode_head, head_slot, ring_blocks, ring_blocks_min, stripe_bytes,
};
use braid_format::{ArrayPart, BLOCK_BYTES, DiskLayout, SMALL_DEVICE_BYTES, Uuid};

use super::super::array::Array;
use super::super::error::LifecycleError;
use super::super::join::{join_all, try_join_all};
use super::super::write::Target;
use super::{Recovery, failed, wrong};

const HEAD: u64 = HEAD_BYTES as u64;

/// Whether the members of such an array have a journal.
fn has_journal(label: &ArrayPart) -> bool {
    label.spec.level.parity() > 0
}

/// Returns the size of the ring that fits on all of these disks, in blocks.
fn common_ring<'a>(places: impl Iterator<Item = &'a DiskLayout>) -> u64 {
    places.map(|places| ring_blocks(places.journal.bytes)).min().unwrap_or(0)
}

/// Refuses a disk whose journal area has no room for a ring of this many blocks.
fn check_ring(leaf: LeafId, places: &DiskLayout, blocks: u64) -> Result<(), LifecycleError> {
    let (room_bytes, needed_bytes) = (places.journal.bytes, RING_OFFSET_BYTES + blocks * BLOCK_BYTES);
    if ring_blocks(room_bytes) >= blocks {
        return Ok(());
    }
    // The journal of a disk that holds nothing else takes all of its space; that of members has one of two sizes.
    let holds_data = places.data.bytes > BLOCK_BYTES;
    let disk_bytes = if holds_data { SMALL_DEVICE_BYTES } else { places.device_bytes + (needed_bytes - room_bytes) };
    Err(LifecycleError::JournalRoom { leaf, room_bytes, needed_bytes, disk_bytes })
}

/// Refuses a new member without room for the journal of such an array: a ring as large as those of the present members,
/// if any.
pub(in crate::lifecycle) fn check_room(
    leaf: LeafId,
    places: &DiskLayout,
    label: &ArrayPart,
    members: &[Target],
) -> Result<(), LifecycleError> {
    if !has_journal(label) {
        return Ok(());
    }
    let least = ring_blocks_min(label.members.len() as u64);
    check_ring(leaf, places, common_ring(members.iter().map(|t| &t.part.layout)).max(least))
}

/// Returns the size of the ring on a disk of its own, in blocks, and its location for a head; `member_blocks`: what
/// fits on all members.
fn disk_ring(disk: &Target, member_blocks: u64) -> (u64, RingLocation) {
    let blocks = ring_blocks(disk.part.layout.journal.bytes).min(DISK_RING_BLOCKS_MAX);
    let member_blocks = u16::try_from(member_blocks).unwrap_or(u16::MAX);
    (blocks, RingLocation::Disk { id: disk.part.id, member_blocks })
}

/// Returns the size of the ring that fits on the members, in blocks, wherever the ring is.
fn member_ring(head: &JournalHead) -> u64 {
    match head.ring_on {
        RingLocation::Members => head.ring_blocks,
        RingLocation::Disk { member_blocks, .. } => member_blocks.into(),
    }
}

/// Writes the first head of a new array to its members, and to the disk of its journal if there is one, durably.
/// Nothing at levels without parity.
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
    let ring_blocks = common_ring(members.iter().map(|t| &t.part.layout));
    let height = stripe_bytes(label.spec.chunk_bytes as u32);
    let (ring_blocks, ring_on) = disk.map_or((ring_blocks, RingLocation::Members), |disk| disk_ring(disk, ring_blocks));
    let head = JournalHead { generation: 1, run: run.max(1), ring_blocks, stripe_bytes: height, ring_on };
    write_head(io, label, &disk.into_iter().collect::<Vec<_>>(), &head, &[]).await?;
    write_head(io, label, members, &head, &[]).await
}

async fn write_head<M: MetaIo>(
    io: &M,
    label: &ArrayPart,
    members: &[&Target],
    head: &JournalHead,
    lost: &[LostStripe],
) -> Result<(), LifecycleError> {
    let mut bytes = Box::new([0; HEAD_BYTES]);
    let used = encode_head(&label.uuid, head, lost, &mut bytes);
    let bytes = &bytes[..used];
    try_join_all(members.iter().map(|target| async move {
        let offset = target.part.layout.journal.start + head_slot(head.generation) * HEAD;
        let written = io.write(target.leaf, offset, bytes.to_vec(), true).await;
        written.map_err(|source| failed(target.leaf, "write the head of the journal", offset, source))
    }))
    .await
    .map(drop)
}

/// Erases the heads on a disk that is to be rebuilt, durably: as a former member it may bear a head newer than those in
/// use. Nothing at levels without parity.
pub(in crate::lifecycle) async fn erase_heads<M: MetaIo>(
    io: &M,
    label: &ArrayPart,
    target: &Target,
) -> Result<(), LifecycleError> {
    if !has_journal(label) {
        return Ok(());
    }
    for slot in [0, 1] {
        let offset = target.part.layout.journal.start + slot * HEAD;
        // A head without its first block is invalid.
        let written = io.write(target.leaf, offset, vec![0; BLOCK_BYTES as usize], true).await;
        written.map_err(|source| failed(target.leaf, "erase the head of the journal", offset, source))?;
    }
    Ok(())
}

/// Gives a member that is about to be in sync the others' head, if it has none yet. Nothing at levels without parity.
pub(in crate::lifecycle) async fn give_head<M: MetaIo>(io: &M, array: &Array, role: u16) -> Result<(), LifecycleError> {
    let recovery = Recovery::new(io, array, false);
    let Some(target) = recovery.sinks.iter().copied().find(|t| t.part.slot == role) else { return Ok(()) };
    if !has_journal(&array.label) || !recovery.heads_on(target).await?.whole.is_empty() {
        return Ok(());
    }
    give_newest(io, array, target).await
}

/// Writes the newest head of the members in sync to a disk that has none. Nothing at levels without parity.
pub(in crate::lifecycle) async fn give_newest<M: MetaIo>(
    io: &M,
    array: &Array,
    target: &Target,
) -> Result<(), LifecycleError> {
    if !has_journal(&array.label) {
        return Ok(());
    }
    let recovery = Recovery::new(io, array, false);
    // While the array serves, the next head may be written at the same time, also to this member: repeat until none is
    // newer than what was written.
    let mut given = 0;
    while let Ok(Some(Newest { head, lost, doubt: false })) = recovery.newest_head().await
        && head.generation > given
    {
        write_head(io, &array.label, &[target], &head, &lost).await?;
        given = head.generation;
    }
    match &array.run_head {
        // No member in sync could read a head. The next recovery deals with that; it may find this member alone, so
        // this member gets the head that began the run.
        Some((head, lost)) if given == 0 => write_head(io, &array.label, &[target], head, lost).await,
        _ => Ok(()),
    }
}

/// The current head.
pub(super) struct Newest {
    pub head: JournalHead,
    pub lost: Vec<LostStripe>,
    /// A newer head may exist where no member can read it.
    pub doubt: bool,
}

impl Newest {
    /// Returns the head from which the next one is derived. If an unreadable location may hold a head with the
    /// generation after this one, the result's generation is two higher: the next head then supersedes the unreadable
    /// head and overwrites its location.
    pub fn as_predecessor(&self) -> JournalHead {
        JournalHead { generation: self.head.generation + 2 * u64::from(self.doubt), ..self.head }
    }
}

/// The heads on one disk.
#[derive(Default)]
pub(super) struct Heads {
    pub whole: Vec<(JournalHead, Vec<LostStripe>)>,
    /// One of the two locations could not be read.
    unread: bool,
}

impl Heads {
    fn newest(&self) -> Option<u64> {
        self.whole.iter().map(|(head, _)| head.generation).max()
    }

    /// Whether this disk shows that no head newer than `generation` is on all members: both locations were read, or the
    /// readable one has an older head, so that the unreadable one is where the head `generation` is. Heads alternate
    /// between two locations.
    fn would_reveal_newer(&self, generation: u64) -> bool {
        self.newest().is_some_and(|newest| !self.unread || newest < generation)
    }
}

/// Reads the valid heads of an array on a disk whose journal area begins at `start`.
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
    /// Returns the current head of all members in sync; that on the disk of the journal only if no member bears one:
    /// the disk may have been used by another copy of the array, and bears the next head before any member does.
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
        let room = common_ring(self.sources.iter().map(|t| &t.part.layout));
        if u64::from(head.stripe_bytes) != self.row_bytes || member_ring(head) > room {
            return Err(wrong(format!(
                "its head says rows of {} bytes and a ring of {} blocks; rows have {}, and there is room for {room}",
                head.stripe_bytes,
                member_ring(head),
                self.row_bytes
            )));
        }
        let unread = found.iter().any(|heads| heads.unread);
        let doubt = unread && !found.iter().any(|heads| heads.would_reveal_newer(head.generation));
        Ok(Some(Newest { head: *head, lost: newest.1.clone(), doubt }))
    }

    /// Reads the valid heads on one member. An unreadable location counts as empty.
    pub(super) async fn heads_on(&self, target: &Target) -> Result<Heads, LifecycleError> {
        heads_at(self.io, self.uuid(), target.leaf, target.part.layout.journal.start).await
    }

    /// Returns the predecessor of a first head, for an array without any.
    pub(super) fn first_head(&self) -> JournalHead {
        let ring_blocks = self.next_ring_blocks(u64::MAX);
        JournalHead {
            generation: 0,
            run: 1,
            ring_blocks,
            stripe_bytes: self.row_bytes as u32,
            ring_on: RingLocation::Members,
        }
    }

    /// Returns the size of the next ring on the members, in blocks. The ring grows only while all members are in sync:
    /// a missing member that returns may have less room.
    fn next_ring_blocks(&self, before: u64) -> u64 {
        let array: &Array = self.array;
        let common = common_ring(array.targets.iter().map(|t| &t.part.layout));
        if array.is_whole() { common } else { common.min(before) }
    }

    /// Writes the head that begins a new run to all members in sync or rebuilding, durably. If the disk of the journal
    /// is present, the ring is on it, and it gets the head first: a disk without a head of the run is not trusted as
    /// the ring's disk.
    pub(super) async fn begin(
        &self,
        head: &JournalHead,
        run: u64,
        lost: &[LostStripe],
    ) -> Result<JournalHead, LifecycleError> {
        let member_blocks = self.next_ring_blocks(member_ring(head));
        let (ring_blocks, ring_on) =
            self.disk.map_or((member_blocks, RingLocation::Members), |disk| disk_ring(disk, member_blocks));
        let ahead = match self.disk {
            Some(disk) => self.heads_on(disk).await?.newest().unwrap_or(0),
            None => 0,
        };
        let mut generation = head.generation + 1;
        while generation <= ahead {
            // Beyond the generation of the journal's disk. In steps of two, because the generation's parity selects the
            // location: the new head must not overwrite the current head of the members.
            generation += 2;
        }
        let next = JournalHead { generation, run, ring_blocks, stripe_bytes: head.stripe_bytes, ring_on };
        // Lost cells of a stripe share an entry only while the same lines are lost: a later write may give each its
        // own.
        let cells: usize = lost.iter().map(|row| row.cells().len()).sum();
        if cells > braid_format::journal::LOST_STRIPES_MAX {
            return Err(wrong(format!("{cells} cells of its rows cannot be read, more than it can list")));
        }
        if let Some(disk) = self.disk {
            write_head(self.io, &self.array.label, &[disk], &next, lost).await?;
        }
        write_head(self.io, &self.array.label, &self.sinks, &next, lost).await?;
        Ok(next)
    }
}
