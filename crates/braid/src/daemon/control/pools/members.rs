//! What is to be a member of a pool: disks and arrays, taken so that nobody else has them, looked at, and emptied.

use super::super::change::{DRAINING_MAX, inactive};
use super::super::create::{PathClaim, read_disk};
use super::super::disks::remove_files;
use super::super::tables::OpenDisk;
use super::super::{Claim, Control};
use super::create::invalid;
use super::{Base, Reach};
use braid_advice::errors::of_lifecycle;
use braid_api::{ErrorDetail, Kind, names};
use braid_engine::{DeviceId, DeviceIo, DeviceLayout, Flags, IoError, Node, Op, lifecycle};
use braid_format::pool::{CHECKPOINT_BYTES, Checkpoint, PoolMemberLayout};
use braid_format::{BLOCK_BYTES, foreign};
use braid_ring::{DiskSpec, RingDevices};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use tokio::task::JoinSet;
use uuid::Uuid;

/// Bytes that are zeroed at a time, and where the zeros may have to be written.
const ZERO_BYTES: u64 = 32 << 20;
const WRITE_BYTES: u64 = 4 << 20;

/// So much of the ring and of each table gets space in a file when its pool is made: all of the ring, and of a table what the first 512 GiB
/// of whole extents need, or 32 GiB of packed ones, or 262,144 volumes and snapshots. The rest stays sparse.
const RESERVED_BYTES_MAX: u64 = 64 << 20;

/// A member as it was asked for.
pub(super) enum Asked {
    Disk(DiskSpec),
    Array(String),
}

/// An array that is to be a member: nobody stops or exports it as long as this lives.
pub(super) struct TakenArray<'a> {
    uuid: Uuid,
    device: DeviceId,
    _claim: Claim<'a>,
}

/// Disks and arrays that are about to be members, as devices. They are nobody else's as long as this lives.
pub(super) struct Taken<'a> {
    /// In the order in which they were asked for.
    pub seats: Vec<(Base, DeviceId)>,
    disks: Vec<Arc<OpenDisk>>,
    /// Files that this has made.
    absent: Vec<PathBuf>,
    _paths: PathClaim,
    _arrays: Vec<TakenArray<'a>>,
}

impl Taken<'_> {
    /// One is not to be given back: it is a member now.
    pub fn keep(&mut self, device: DeviceId) {
        let Some(at) = self.seats.iter().position(|(_, other)| *other == device) else { return };
        if let (Base::Disk(disk), _) = self.seats.remove(at) {
            self.disks.retain(|other| !Arc::ptr_eq(other, &disk));
            self.absent.retain(|path| disk.disk.spec().path() != Some(path.as_path()));
        }
    }
}

impl Control {
    /// Takes what was asked for, or nothing of it. `done` is what cannot be made of an array that is a member of a pool already.
    ///
    /// # Errors
    /// Somebody uses it, it is not there, or cannot be opened. Nothing was written.
    pub(super) async fn take_members(
        self: &Arc<Self>,
        pool: Option<&Reach>,
        asked: &[Asked],
        done: &str,
    ) -> Result<Taken<'_>, ErrorDetail> {
        let specs: Vec<DiskSpec> = asked.iter().filter_map(Asked::disk).cloned().collect();
        let (control, wanted) = (Arc::clone(self), specs.clone());
        let checked = tokio::task::spawn_blocking(move || control.check_paths(&wanted)).await;
        let (paths, absent) = checked.map_err(|error| {
            ErrorDetail::new(Kind::Internal, format!("looking at the disks ended unexpectedly: {error}"))
        })??;
        let arrays = self.take_arrays(asked, done).await?;
        let uuids: Vec<Uuid> = arrays.iter().map(|array| array.uuid).collect();
        self.refuse_beside_carrier(&uuids, asked.len() + usize::from(pool.is_some()))?;
        let tier = self.read().refuse_other_tier(pool, &uuids)?;
        let disks = self.open_disks(&specs, &absent).await?;
        match self.seat_members(asked, &disks, &arrays, tier).await {
            Ok(seats) => Ok(Taken { seats, disks, absent, _paths: paths, _arrays: arrays }),
            Err(error) => {
                remove_files(&absent);
                self.close_disks(disks).await;
                Err(error)
            }
        }
    }

    /// Gives it back; files that were made for it are gone again.
    pub(super) async fn give_members_back(self: &Arc<Self>, taken: Taken<'_>) {
        self.let_go(&taken.seats).await;
        remove_files(&taken.absent);
        self.close_disks(taken.disks).await;
    }

    /// The arrays that are to be members, which nobody stops or exports meanwhile.
    async fn take_arrays(&self, asked: &[Asked], done: &str) -> Result<Vec<TakenArray<'_>>, ErrorDetail> {
        let mut arrays = Vec::new();
        let mut claims = Vec::new();
        for name in asked.iter().filter_map(Asked::array) {
            let claimed = if self.is_carrier(name) {
                self.claim_carrier(name)?
            } else {
                self.claim(name, "made a member of a pool")?
            };
            claims.push((name, claimed));
        }
        // An export that began before is in the tables by then; what begins later sees the claim.
        drop(self.listening.lock().await);
        for (name, claim) in claims {
            let tables = self.read();
            let entry = tables.array(name)?;
            let active = entry.active().ok_or_else(|| inactive(entry, "a member of a pool"))?;
            tables.refuse_under_pool(entry.uuid, &entry.name, done)?;
            if let Some(export) = tables.exports_of(entry.uuid).first() {
                return Err(ErrorDetail::new(
                    Kind::InUse,
                    format!("array {} is exported as {export}, and its clients would write over the pool", entry.name),
                )
                .with("array", &entry.name)
                .with("export", export)
                .remedy(format!("braid export remove {export} first")));
            }
            arrays.push(TakenArray { uuid: entry.uuid, device: active.device, _claim: claim });
        }
        Ok(arrays)
    }

    /// Makes a device of each disk. On an error none is left.
    async fn seat_members(
        self: &Arc<Self>,
        asked: &[Asked],
        disks: &[Arc<OpenDisk>],
        arrays: &[TakenArray<'_>],
        tier: usize,
    ) -> Result<Vec<(Base, DeviceId)>, ErrorDetail> {
        let (mut disks, mut arrays) = (disks.iter(), arrays.iter());
        let mut seats = Vec::with_capacity(asked.len());
        for member in asked {
            let seat = match member {
                Asked::Disk(_) => {
                    let disk = disks.next().expect("each disk that was asked for is open");
                    self.device_of(disk, tier).await.map(|device| (Base::Disk(Arc::clone(disk)), device))
                }
                Asked::Array(_) => {
                    let array = arrays.next().expect("each array that was asked for was found");
                    Ok((Base::Array(array.uuid), array.device))
                }
            };
            match seat {
                Ok(seat) => seats.push(seat),
                Err(error) => {
                    self.let_go(&seats).await;
                    return Err(error);
                }
            }
        }
        Ok(seats)
    }

    /// A device of a tier that is a disk as a whole.
    pub(super) async fn device_of(&self, disk: &OpenDisk, tier: usize) -> Result<DeviceId, ErrorDetail> {
        self.ring.ensure_stack_level(tier).map_err(|error| braid_advice::errors::of_ring(&error, &disk.name))?;
        let (device, version) = {
            let mut tables = self.write();
            (tables.take_device(tier)?, tables.next_version())
        };
        let len = disk.disk.size_bytes() / BLOCK_BYTES * BLOCK_BYTES;
        let block_bytes = disk.disk.logical_block_bytes().max(512);
        let layout = DeviceLayout::new(version, block_bytes, &Node::Leaf { leaf: disk.leaf, start: 0, len });
        if let Err(error) = self.ring.publish_and_drain(device, Some(Arc::new(layout))).await {
            self.write().give_device(device);
            return Err(braid_advice::errors::of_ring(&error, &disk.name));
        }
        Ok(device)
    }

    /// Takes the devices of disks from the shards. Nothing is in flight on them when this returns, unless a disk hangs: then, after the time
    /// limit of an I/O, that disk is left to the shards, and closed when it answers.
    pub(super) async fn let_go(self: &Arc<Self>, seats: &[(Base, DeviceId)]) {
        let mut all = JoinSet::new();
        for (base, device) in seats {
            let Base::Disk(disk) = base else { continue };
            let (control, disk, device) = (Arc::clone(self), Arc::clone(disk), *device);
            all.spawn(async move { control.let_go_of(disk, device).await });
        }
        while all.join_next().await.is_some() {}
    }

    async fn let_go_of(self: Arc<Self>, disk: Arc<OpenDisk>, device: DeviceId) {
        let ring = self.ring.clone();
        // An error says that the shards have ended: then nothing is in flight either.
        let mut drained = Box::pin(async move { drop(ring.publish_and_drain(device, None).await) });
        if tokio::time::timeout(DRAINING_MAX, &mut drained).await.is_ok() {
            return self.write().give_device(device);
        }
        let message =
            format!("disk {} of a pool hangs; it becomes free when it answers, or when the daemon ends", disk.name);
        self.events().warning("disk_hangs", message, &[("disk", &disk.name)]);
        self.note_leaving(std::slice::from_ref(&disk));
        self.draining.lock().unwrap_or_else(PoisonError::into_inner).insert(disk.leaf);
        tokio::spawn(async move {
            drained.await;
            self.write().give_device(device);
            self.draining.lock().unwrap_or_else(PoisonError::into_inner).remove(&disk.leaf);
            self.close_disks(vec![disk]).await;
        });
    }

    /// What a member bears; with something on it, it is refused unless `force` is set. Writes nothing.
    pub(super) async fn look_at_content(
        &self,
        io: &RingDevices,
        base: &Base,
        device: DeviceId,
        force: bool,
    ) -> Result<Option<foreign::Signatures>, ErrorDetail> {
        let name = self.name_of(base);
        let size = io.size_bytes(device);
        let broken = |error: IoError| not_looked_at(&name, error);
        let mut pieces = Vec::new();
        for range in foreign::ranges(size) {
            pieces.push((range.start, io.read(device, range.start, range.bytes as usize).await.map_err(broken)?));
        }
        let found = foreign::identify_pieces(size, &pieces);
        if let Some(found) = found.as_ref().filter(|_| !force) {
            return Err(ErrorDetail::new(Kind::WouldDestroy, format!("{name} is not empty: {found}"))
                .with("found", found)
                .remedy("look at it; add --force if what is on it may be destroyed"));
        }
        Ok(found)
    }

    /// Removes what a member would be known by.
    pub(super) async fn clear_content(
        &self,
        io: &RingDevices,
        base: &Base,
        device: DeviceId,
        found: Option<foreign::Signatures>,
    ) -> Result<(), ErrorDetail> {
        let name = self.name_of(base);
        let broken = |error: IoError| not_looked_at(&name, error);
        if let Base::Disk(disk) = base {
            let wiped = lifecycle::wipe(&self.meta, disk.leaf).await;
            wiped.map_err(|error| of_lifecycle(&error, &name, &|_| Some(disk.name.clone())))?;
        }
        for range in found.iter().flat_map(|found| &found.signatures).flat_map(|signature| &signature.ranges) {
            let (from, to) =
                (range.start / BLOCK_BYTES * BLOCK_BYTES, (range.start + range.bytes).next_multiple_of(BLOCK_BYTES));
            let mut block = io.read(device, from, (to - from) as usize).await.map_err(broken)?;
            let at = (range.start - from) as usize;
            block[at..at + range.bytes as usize].fill(0);
            io.write(device, from, block, true).await.map_err(broken)?;
        }
        Ok(())
    }

    /// How a member is called.
    pub(super) fn name_of(&self, base: &Base) -> String {
        match base {
            Base::Disk(disk) => format!("disk {}", disk.name),
            Base::Array(uuid) => {
                let tables = self.read();
                let name = tables.arrays.get(uuid).map(|entry| entry.name.clone());
                format!("array {}", name.unwrap_or_else(|| uuid.to_string()))
            }
        }
    }
}

impl Asked {
    fn disk(&self) -> Option<&DiskSpec> {
        match self {
            Asked::Disk(spec) => Some(spec),
            Asked::Array(_) => None,
        }
    }

    fn array(&self) -> Option<&str> {
        match self {
            Asked::Array(name) => Some(name),
            Asked::Disk(_) => None,
        }
    }
}

fn not_looked_at(member: &str, error: IoError) -> ErrorDetail {
    ErrorDetail::new(Kind::DiskError, format!("{member}: looking at what is on it failed: {error}"))
        .remedy("look at the disk and at the kernel's log (dmesg)")
}

/// Members as they were asked for.
///
/// # Errors
/// One is named twice, or is a volume.
pub(super) fn understand_members(pool: &str, texts: &[String]) -> Result<Vec<Asked>, ErrorDetail> {
    let mut asked: Vec<Asked> = Vec::with_capacity(texts.len());
    for (at, text) in texts.iter().enumerate() {
        // Each of these is another one, however it is written.
        let anew = ["mem:", "null:"].iter().any(|kind| text.starts_with(kind));
        if !anew && texts[..at].contains(text) {
            return Err(invalid(pool, format!("{text} is named twice")).remedy("name each member once"));
        }
        let is_volume = DiskSpec::parse(text).is_ok_and(|spec| spec.volume().is_some());
        if is_volume || names::VolumeName::parse(text).is_some() {
            let message = format!("{text} is a volume of a pool, which cannot be a member of another pool");
            return Err(invalid(pool, message).remedy("use disks and arrays; an array of volumes can be a member (braid array create --level concat POOL/VOLUME)"));
        }
        // Paths begin with a slash here, and all other disks have a colon or a parenthesis.
        asked.push(match names::is_uuid(text) || names::check_name(text).is_ok() {
            true => Asked::Array(text.clone()),
            false => Asked::Disk(read_disk(text)?),
        });
    }
    Ok(asked)
}

/// Where everything of a pool is on such a member.
///
/// # Errors
/// Its blocks are too large; it is too small or too large.
pub(super) fn places_on(
    io: &RingDevices,
    member: &str,
    device: DeviceId,
    size: u64,
    owner_slots: u32,
) -> Result<PoolMemberLayout, ErrorDetail> {
    if io.block_bytes(device) > BLOCK_BYTES as u32 {
        let message = format!("{member} has blocks of {} bytes; a pool's are of 4096", io.block_bytes(device));
        return Err(ErrorDetail::new(Kind::InvalidArgument, message).remedy("use another disk"));
    }
    PoolMemberLayout::new(size, owner_slots).map_err(|error| {
        ErrorDetail::new(Kind::InvalidArgument, format!("{member} cannot be a member of a pool: {error}"))
            .remedy("use a disk of another size")
    })
}

/// Writes what a member begins with, all but the label, and makes it durable.
pub(super) async fn begin(
    io: &RingDevices,
    base: &Base,
    device: DeviceId,
    places: &PoolMemberLayout,
    start: &Checkpoint,
) -> Result<(), IoError> {
    // What the pool writes itself is not to meet a file system that is full by then.
    let reserved = if is_file(base) { RESERVED_BYTES_MAX } else { 0 };
    // The ring as well: a disk that comes again may have batches of the very run of a pool that serves.
    for area in [places.ring, places.owners, places.table, places.addresses] {
        let first = area.bytes.min(reserved);
        zero(io, device, Flags::NO_UNMAP, (area.start, first)).await?;
        zero(io, device, Flags::NONE, (area.start + first, area.bytes - first)).await?;
    }
    let [first, second] = [0, CHECKPOINT_BYTES as u64].map(|at| places.checkpoints.start + at);
    io.write(device, second, vec![0; CHECKPOINT_BYTES], false).await?;
    io.write(device, first, start.encode().to_vec(), false).await?;
    io.flush(device).await
}

/// Whether a member is a file, which is sparse where nothing was written.
fn is_file(base: &Base) -> bool {
    let of = |disk: &OpenDisk| disk.disk.spec().path().is_some() && !disk.disk.is_block_device();
    matches!(base, Base::Disk(disk) if of(disk))
}

async fn zero(io: &RingDevices, device: DeviceId, flags: Flags, (start, bytes): (u64, u64)) -> Result<(), IoError> {
    let mut at = start;
    while at < start + bytes {
        let most = if flags.has(Flags::NO_UNMAP) { WRITE_BYTES } else { ZERO_BYTES };
        let len = most.min(start + bytes - at);
        io.request(device, Op::WriteZeroes, flags, at, len, &[]).await?;
        at += len;
    }
    Ok(())
}
