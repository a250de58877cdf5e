//! Disks and arrays that are to become members of a pool: claimed, opened, examined and cleared.

use crate::PoolManager;
use crate::errors::invalid;
use braid_advice::errors::lifecycle_error;
use braid_api::{ErrorDetail, Kind, names};
use braid_array_admin::lifecycle;
use braid_arrays::{DRAINING_MAX, PathClaim, inactive, read_disk, remove_files};
use braid_engine::{DeviceId, DeviceIo, DeviceLayout, Flags, IoError, Node, Op};
use braid_format::pool::{CHECKPOINT_BYTES, Checkpoint, PoolMemberLayout};
use braid_format::{BLOCK_BYTES, foreign};
use braid_inventory::{Claim, MemberBacking, OpenDisk, PoolHandle};
use braid_ring::{DiskSpec, RingDevices};
use braid_tasks as tasks;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use tokio::task::JoinSet;
use uuid::Uuid;

/// Maximum bytes that one request zeroes: with the permission to unmap, and without, when the device may have to write
/// the zeros.
const ZERO_BYTES: u64 = 32 << 20;

const WRITE_BYTES: u64 = 4 << 20;

/// Maximum number of bytes of the ring and of each table that get space in a file when its pool is created: all of the
/// ring, and of a table what the first 512 GiB of whole extents need, or 32 GiB of packed ones, or 262,144 volumes and
/// snapshots. The rest stays sparse.
const RESERVED_BYTES_MAX: u64 = 64 << 20;

/// A requested member.
pub(crate) enum RequestedMember {
    Disk(DiskSpec),
    Array(String),
}

/// An array that is to be a member: while this exists, no command stops or exports it.
pub(crate) struct ClaimedArray<'a> {
    uuid: Uuid,
    device: DeviceId,
    _claim: Claim<'a>,
}

/// Disks and arrays that are about to be members, as devices. While this exists, no other command can use them.
pub(crate) struct ClaimedMembers<'a> {
    /// In the order of the request.
    pub(crate) devices: Vec<(MemberBacking, DeviceId)>,
    disks: Vec<Arc<OpenDisk>>,
    /// Files that were created for this request.
    absent: Vec<PathBuf>,
    _paths: PathClaim,
    _arrays: Vec<ClaimedArray<'a>>,
}

impl ClaimedMembers<'_> {
    /// Excludes a device from [`PoolManager::give_back_members`]: the pool keeps it.
    pub(crate) fn keep(&mut self, device: DeviceId) {
        let Some(at) = self.devices.iter().position(|(_, other)| *other == device) else { return };
        if let (MemberBacking::Disk(disk), _) = self.devices.remove(at) {
            self.disks.retain(|other| !Arc::ptr_eq(other, &disk));
            self.absent.retain(|path| disk.disk.spec().path() != Some(path.as_path()));
        }
    }
}

impl PoolManager {
    /// Claims and opens the requested members, all or none. `done`: the operation that is refused on an array that is a
    /// member of a pool already.
    ///
    /// # Errors
    /// A member is in use, does not exist, or cannot be opened. Nothing was written.
    pub(crate) async fn claim_members(
        self: &Arc<Self>,
        pool: Option<&PoolHandle>,
        requested: &[RequestedMember],
        done: &str,
    ) -> Result<ClaimedMembers<'_>, ErrorDetail> {
        let specs: Vec<DiskSpec> = requested.iter().filter_map(RequestedMember::disk).cloned().collect();
        let (manager, wanted) = (Arc::clone(self), specs.clone());
        let checked = tasks::blocking(move || manager.arrays.check_paths(&wanted)).await;
        let (paths, absent) = checked.map_err(|error| {
            ErrorDetail::new(Kind::Internal, format!("examining the disks ended unexpectedly: {error}"))
        })??;
        let arrays = self.claim_arrays(requested, done).await?;
        let uuids: Vec<Uuid> = arrays.iter().map(|array| array.uuid).collect();
        self.refuse_beside_replicated(&uuids, requested.len() + usize::from(pool.is_some()))?;
        let stack_level = self.inventory.read().refuse_other_stack_level(pool, &uuids)?;
        let disks = self.arrays.open_disks(&specs, &absent).await?;
        match self.make_member_devices(requested, &disks, &arrays, stack_level).await {
            Ok(devices) => Ok(ClaimedMembers { devices, disks, absent, _paths: paths, _arrays: arrays }),
            Err(error) => {
                remove_files(&absent);
                self.arrays.close_disks(disks).await;
                Err(error)
            }
        }
    }

    /// Releases the members; files that were created for them are removed.
    pub(crate) async fn give_back_members(self: &Arc<Self>, taken: ClaimedMembers<'_>) {
        self.release_devices(&taken.devices).await;
        remove_files(&taken.absent);
        self.arrays.close_disks(taken.disks).await;
    }

    /// Claims the requested arrays: no command stops or exports them meanwhile.
    async fn claim_arrays(
        &self,
        requested: &[RequestedMember],
        done: &str,
    ) -> Result<Vec<ClaimedArray<'_>>, ErrorDetail> {
        let mut arrays = Vec::new();
        let mut claims = Vec::new();
        for name in requested.iter().filter_map(RequestedMember::array) {
            let claimed = if self.is_active_replicated(name) {
                self.inventory.claim_array_under_pool(name)?
            } else {
                self.inventory.claim(name, "made a member of a pool")?
            };
            claims.push((name, claimed));
        }
        // An export that began before is in the tables by then; an export that begins later sees the claim.
        drop(self.exports.listening_lock.lock().await);
        for (name, claim) in claims {
            let tables = self.inventory.read();
            let entry = tables.array(name)?;
            let active = entry.active().ok_or_else(|| inactive(entry, "a member of a pool"))?;
            tables.refuse_under_pool(entry.uuid, &entry.name, done)?;
            if let Some(export) = tables.exports_of(entry.uuid).first() {
                return Err(ErrorDetail::new(
                    Kind::InUse,
                    format!("array {} is exported as {export}, and its clients would overwrite the pool", entry.name),
                )
                .with("array", &entry.name)
                .with("export", export)
                .remedy(format!("braid export remove {export} first")));
            }
            arrays.push(ClaimedArray { uuid: entry.uuid, device: active.device, _claim: claim });
        }
        Ok(arrays)
    }

    /// Makes a device of each disk. On an error no device is left.
    async fn make_member_devices(
        self: &Arc<Self>,
        requested: &[RequestedMember],
        disks: &[Arc<OpenDisk>],
        arrays: &[ClaimedArray<'_>],
        stack_level: usize,
    ) -> Result<Vec<(MemberBacking, DeviceId)>, ErrorDetail> {
        let (mut disks, mut arrays) = (disks.iter(), arrays.iter());
        let mut devices = Vec::with_capacity(requested.len());
        for member in requested {
            let member_device = match member {
                RequestedMember::Disk(_) => {
                    let disk = disks.next().expect("each disk that was asked for is open");
                    self.device_of(disk, stack_level)
                        .await
                        .map(|device| (MemberBacking::Disk(Arc::clone(disk)), device))
                }
                RequestedMember::Array(_) => {
                    let array = arrays.next().expect("each array that was asked for was found");
                    Ok((MemberBacking::Array(array.uuid), array.device))
                }
            };
            match member_device {
                Ok(member_device) => devices.push(member_device),
                Err(error) => {
                    self.release_devices(&devices).await;
                    return Err(error);
                }
            }
        }
        Ok(devices)
    }

    /// Makes a device on a stack level that is a whole disk.
    pub(crate) async fn device_of(&self, disk: &OpenDisk, stack_level: usize) -> Result<DeviceId, ErrorDetail> {
        self.ring
            .ensure_stack_level(stack_level)
            .map_err(|error| braid_advice::errors::ring_error(&error, &disk.name))?;
        let (device, version) = {
            let mut tables = self.inventory.write();
            (tables.allocate_device(stack_level)?, tables.next_layout_version())
        };
        let len = disk.disk.size_bytes() / BLOCK_BYTES * BLOCK_BYTES;
        let block_bytes = disk.disk.logical_block_bytes().max(512);
        let layout = DeviceLayout::new(version, block_bytes, &Node::Leaf { leaf: disk.leaf, start: 0, len });
        if let Err(error) = self.ring.publish_and_drain(device, Some(Arc::new(layout))).await {
            self.inventory.write().release_device(device);
            return Err(braid_advice::errors::ring_error(&error, &disk.name));
        }
        Ok(device)
    }

    /// Takes the devices of disks from the shards. When this returns, nothing is in flight on them, unless a disk
    /// hangs: then, after the time limit of an I/O, the disk is left to the shards, and is closed when it responds.
    pub(crate) async fn release_devices(self: &Arc<Self>, devices: &[(MemberBacking, DeviceId)]) {
        let mut all = JoinSet::new();
        for (backing, device) in devices {
            let MemberBacking::Disk(disk) = backing else { continue };
            let (manager, disk, device) = (Arc::clone(self), Arc::clone(disk), *device);
            tasks::spawn_in(&mut all, async move { manager.release_device(disk, device).await });
        }
        while all.join_next().await.is_some() {}
    }

    async fn release_device(self: Arc<Self>, disk: Arc<OpenDisk>, device: DeviceId) {
        let ring = self.ring.clone();
        // An error says that the shards have ended: then nothing is in flight either.
        let mut drained = Box::pin(async move { drop(ring.publish_and_drain(device, None).await) });
        if tokio::time::timeout(DRAINING_MAX, &mut drained).await.is_ok() {
            return self.inventory.write().release_device(device);
        }
        let message =
            format!("disk {} of a pool hangs; it is released when it answers, or when the daemon ends", disk.name);
        self.inventory.events().warning("disk_hangs", message, &[("disk", &disk.name)]);
        self.arrays.record_closing_disks(std::slice::from_ref(&disk));
        self.arrays.hanging_disks.lock().unwrap_or_else(PoisonError::into_inner).insert(disk.leaf);
        tasks::spawn(async move {
            drained.await;
            self.inventory.write().release_device(device);
            self.arrays.hanging_disks.lock().unwrap_or_else(PoisonError::into_inner).remove(&disk.leaf);
            self.arrays.close_disks(vec![disk]).await;
        });
    }

    /// Returns the signatures found on a member; any signature is refused unless `force` is set. Writes nothing.
    pub(crate) async fn examine_content(
        &self,
        io: &RingDevices,
        backing: &MemberBacking,
        device: DeviceId,
        force: bool,
    ) -> Result<Option<foreign::Signatures>, ErrorDetail> {
        let name = self.job_name(backing);
        let size = io.size_bytes(device);
        let broken = |error: IoError| examine_failed(&name, error);
        let mut pieces = Vec::new();
        for range in foreign::ranges(size) {
            pieces.push((range.start, io.read(device, range.start, range.bytes as usize).await.map_err(broken)?));
        }
        let found = foreign::identify_pieces(size, &pieces);
        if let Some(found) = found.as_ref().filter(|_| !force) {
            return Err(ErrorDetail::new(Kind::WouldDestroy, format!("{name} is not empty: {found}"))
                .with("found", found)
                .remedy("look at it; add --force if its content may be destroyed"));
        }
        Ok(found)
    }

    /// Removes the signatures from a member.
    pub(crate) async fn clear_content(
        &self,
        io: &RingDevices,
        backing: &MemberBacking,
        device: DeviceId,
        found: Option<foreign::Signatures>,
    ) -> Result<(), ErrorDetail> {
        let name = self.job_name(backing);
        let broken = |error: IoError| examine_failed(&name, error);
        if let MemberBacking::Disk(disk) = backing {
            let wiped = lifecycle::wipe(&self.meta, disk.leaf).await;
            wiped.map_err(|error| lifecycle_error(&error, &name, &|_| Some(disk.name.clone())))?;
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

    /// Returns the name of a member for messages.
    pub(crate) fn job_name(&self, backing: &MemberBacking) -> String {
        match backing {
            MemberBacking::Disk(disk) => format!("disk {}", disk.name),
            MemberBacking::Array(uuid) => {
                let tables = self.inventory.read();
                let name = tables.arrays.get(uuid).map(|entry| entry.name.clone());
                format!("array {}", name.unwrap_or_else(|| uuid.to_string()))
            }
        }
    }
}

impl RequestedMember {
    fn disk(&self) -> Option<&DiskSpec> {
        match self {
            RequestedMember::Disk(spec) => Some(spec),
            RequestedMember::Array(_) => None,
        }
    }

    fn array(&self) -> Option<&str> {
        match self {
            RequestedMember::Array(name) => Some(name),
            RequestedMember::Disk(_) => None,
        }
    }
}

fn examine_failed(member: &str, error: IoError) -> ErrorDetail {
    ErrorDetail::new(Kind::DiskError, format!("{member}: examining its contents failed: {error}"))
        .remedy("look at the disk and at the kernel's log (dmesg)")
}

/// Parses the requested members.
///
/// # Errors
/// A member is named twice, or is a volume.
pub(crate) fn parse_members(pool: &str, texts: &[String]) -> Result<Vec<RequestedMember>, ErrorDetail> {
    let mut requested: Vec<RequestedMember> = Vec::with_capacity(texts.len());
    for (at, text) in texts.iter().enumerate() {
        // Each of these is a new disk, even if the text is the same.
        let anew = ["mem:", "null:"].iter().any(|kind| text.starts_with(kind));
        if !anew && texts[..at].contains(text) {
            return Err(invalid(pool, format!("{text} is named twice")).remedy("name each member once"));
        }
        let is_volume = DiskSpec::parse(text).is_ok_and(|spec| spec.volume().is_some());
        if is_volume || names::VolumeName::parse(text).is_some() {
            let message = format!("{text} is a volume of a pool, which cannot be a member of another pool");
            return Err(invalid(pool, message).remedy("use disks and arrays; an array of volumes can be a member (braid array create --level concat POOL/VOLUME)"));
        }
        // Paths have to begin with a slash, and all other disk names contain a colon or a parenthesis.
        requested.push(match names::is_uuid(text) || names::check_name(text).is_ok() {
            true => RequestedMember::Array(text.clone()),
            false => RequestedMember::Disk(read_disk(text)?),
        });
    }
    Ok(requested)
}

/// Returns the layout of a pool on a member of this size.
///
/// # Errors
/// The device's blocks are too large; it is too small or too large.
pub(crate) fn layout_on(
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

/// Writes the initial contents of a member, except the label, durably.
pub(crate) async fn write_initial(
    io: &RingDevices,
    backing: &MemberBacking,
    device: DeviceId,
    layout: &PoolMemberLayout,
    start: &Checkpoint,
) -> Result<(), IoError> {
    // Space in a file is allocated now: the pool's own writes must not find the file system full later.
    let reserved = if is_file(backing) { RESERVED_BYTES_MAX } else { 0 };
    // The ring is zeroed, too: the disk may have been a member of this pool since the pool was opened, and have batches
    // that a start would take for those of the current run.
    for area in [layout.ring, layout.owners, layout.table, layout.addresses] {
        let first = area.bytes.min(reserved);
        zero(io, device, Flags::NO_UNMAP, (area.start, first)).await?;
        zero(io, device, Flags::NONE, (area.start + first, area.bytes - first)).await?;
    }
    let [first, second] = [0, CHECKPOINT_BYTES as u64].map(|at| layout.checkpoints.start + at);
    io.write(device, second, vec![0; CHECKPOINT_BYTES], false).await?;
    io.write(device, first, start.encode().to_vec(), false).await?;
    io.flush(device).await
}

/// Returns true if a member is a file, which is sparse where nothing was written.
fn is_file(backing: &MemberBacking) -> bool {
    let of = |disk: &OpenDisk| disk.disk.spec().path().is_some() && !disk.disk.is_block_device();
    matches!(backing, MemberBacking::Disk(disk) if of(disk))
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
