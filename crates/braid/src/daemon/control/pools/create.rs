//! Making a pool of disks and arrays.

use super::super::change::DRAINING_MAX;
use super::super::create::{check_name, read_disk};
use super::super::disks::remove_files;
use super::super::tables::OpenDisk;
use super::super::{Claim, Control, counted, random, random_uuid};
use super::{Base, Part, labels};
use crate::daemon::errors::of_lifecycle;
use crate::daemon::state::{SavedPoolArray, SavedPoolDisk};
use braid_api::limits::{ARRAY_MEMBERS_MAX, POOLS_MAX};
use braid_api::{CreatePool, ErrorDetail, Kind, Pool, names};
use braid_engine::{DeviceId, DeviceIo, DeviceLayout, Flags, IoError, Node, Op, lifecycle};
use braid_format::pool::{
    PoolLabel, PoolMember, PoolMemberState, PoolPlaces, PoolState, RING_START_BYTES, Reserved, RingStart,
    owner_slots_for,
};
use braid_format::{BLOCK_BYTES, Features, Name, foreign};
use braid_ring::{DiskSpec, RingDevices};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;
use uuid::Uuid;

/// Bytes that are zeroed at a time.
const ZERO_BYTES: u64 = 32 << 20;

/// A member as it was asked for.
enum Asked {
    Disk(DiskSpec),
    Array(String),
}

/// An array that is to be a member: nobody stops or exports it as long as this lives.
struct TakenArray<'a> {
    uuid: Uuid,
    device: DeviceId,
    _claim: Claim<'a>,
}

impl Control {
    /// Makes a pool and serves it.
    ///
    /// Order: everything that can be refused is, before anything is written; the state file remembers the disks; what a pool begins with
    /// is written, and is durable; then the labels say that the pool is being made, everywhere; then that it is there.
    ///
    /// # Errors
    /// The reason, with nothing left behind that could be taken for a pool, or what is left named.
    pub async fn create_pool(self: &Arc<Self>, ask: CreatePool) -> Result<Pool, ErrorDetail> {
        self.is_open()?;
        let asked = understand(&ask)?;
        let name = Name::new(&ask.name).map_err(|error| invalid(&ask.name, error.to_string()))?;
        let _name = self.claim_pool_name(&ask.name)?;
        let specs: Vec<DiskSpec> = asked.iter().filter_map(Asked::disk).cloned().collect();
        let (control, wanted) = (Arc::clone(self), specs.clone());
        let checked = tokio::task::spawn_blocking(move || control.check_paths(&wanted)).await;
        let (_paths, absent) = checked.map_err(|error| {
            ErrorDetail::new(Kind::Internal, format!("looking at the disks ended unexpectedly: {error}"))
        })??;
        let arrays = self.take_arrays(&asked).await?;
        let disks = self.open_disks(&specs, &absent).await?;
        let seats = match self.seat_members(&asked, &disks, &arrays).await {
            Ok(seats) => seats,
            Err(error) => {
                remove_files(&absent);
                self.close_disks(disks).await;
                return Err(error);
            }
        };
        match self.create_pool_on(&name, &seats, ask.force).await {
            Ok(uuid) => self.pool(&uuid.to_string()).await,
            Err(error) => {
                self.let_go(&seats).await;
                remove_files(&absent);
                self.close_disks(disks).await;
                Err(error)
            }
        }
    }

    /// Takes a name for a pool that is about to be.
    fn claim_pool_name(&self, name: &str) -> Result<super::super::create::NameClaim<'_>, ErrorDetail> {
        if self.read().pools.len() >= POOLS_MAX {
            return Err(ErrorDetail::new(Kind::LimitReached, format!("there are {POOLS_MAX} pools already"))
                .remedy("delete one first"));
        }
        self.claim_name(name)
    }

    /// The arrays that are to be members, which nobody stops or exports meanwhile.
    async fn take_arrays(&self, asked: &[Asked]) -> Result<Vec<TakenArray<'_>>, ErrorDetail> {
        let mut arrays = Vec::new();
        let mut claims = Vec::new();
        for name in asked.iter().filter_map(Asked::array) {
            claims.push((name, self.claim(name, "made a member of a pool")?));
        }
        // An export that began before is in the tables by then; what begins later sees the claim.
        drop(self.listening.lock().await);
        for (name, claim) in claims {
            let tables = self.read();
            let entry = tables.array(name)?;
            let active = entry.active().ok_or_else(|| super::super::change::inactive(entry, "a member of a pool"))?;
            tables.refuse_under_pool(entry.uuid, &entry.name, "a member of another pool")?;
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
    ) -> Result<Vec<(Base, DeviceId)>, ErrorDetail> {
        let (mut disks, mut arrays) = (disks.iter(), arrays.iter());
        let mut seats = Vec::with_capacity(asked.len());
        for member in asked {
            let seat = match member {
                Asked::Disk(_) => {
                    let disk = disks.next().expect("each disk that was asked for is open");
                    self.device_of(disk).await.map(|device| (Base::Disk(Arc::clone(disk)), device))
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

    /// A device that is a disk as a whole.
    pub(super) async fn device_of(&self, disk: &OpenDisk) -> Result<DeviceId, ErrorDetail> {
        let (device, version) = {
            let mut tables = self.write();
            (tables.take_device()?, tables.next_version())
        };
        let len = disk.disk.size_bytes() / BLOCK_BYTES * BLOCK_BYTES;
        let block_bytes = disk.disk.logical_block_bytes().max(512);
        let layout = DeviceLayout::new(version, block_bytes, &Node::Leaf { leaf: disk.leaf, start: 0, len });
        if let Err(error) = self.ring.publish_and_drain(device, Some(Arc::new(layout))).await {
            self.write().give_device(device);
            return Err(crate::daemon::errors::of_ring(&error, &disk.name));
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

    async fn create_pool_on(
        self: &Arc<Self>,
        name: &Name,
        seats: &[(Base, DeviceId)],
        force: bool,
    ) -> Result<Uuid, ErrorDetail> {
        let io = self.ring.devices();
        let mut sizes = Vec::with_capacity(seats.len());
        let mut contents = Vec::with_capacity(seats.len());
        for (base, device) in seats {
            contents.push(self.look_at_content(&io, base, *device, force).await?);
            sizes.push(io.size_bytes(*device));
        }
        let mut parts = self.plan_pool(&io, name, seats, &sizes)?;
        // Nothing is refused any more.
        for ((base, device), found) in seats.iter().zip(contents) {
            self.clear_content(&io, base, *device, found).await?;
        }
        let uuid = parts[0].label.uuid;
        for part in &parts {
            begin(&io, part).await.map_err(|e| labels::failed(name.as_str(), "writing", part.label.member, e))?;
        }
        let kept = parts.iter().all(|part| match &part.base {
            Base::Disk(disk) => !disk.disk.spec().keeps_nothing(),
            Base::Array(_) => true,
        });
        if kept {
            self.remember_pool(&parts);
            self.save().inspect_err(|_| self.forget_pool(uuid))?;
        }
        let failed = |(member, error)| labels::failed(name.as_str(), "writing the label of", member, error);
        let made = match labels::write(&io, &mut parts, |label| label.state = PoolState::Forming).await {
            Ok(()) => labels::write(&io, &mut parts, |label| label.state = PoolState::Active).await,
            Err(error) => Err(error),
        };
        let opened = match made.map_err(failed) {
            Ok(()) => self.open_pool(parts.clone()).await,
            Err(error) => Err(error),
        };
        if let Err(error) = opened {
            // What is half done is finished by the next start.
            labels::doom(&io, &mut parts).await;
            let error = match labels::erase(&io, &parts).await {
                Ok(()) => error,
                Err(left) => {
                    let named = self.left_labels(&parts, &left);
                    let remedy =
                        format!("{}; then: braid disk wipe of {named}, which may bear labels of it", error.remedy);
                    error.remedy(remedy)
                }
            };
            self.remove_tails(uuid);
            self.forget_pool(uuid);
            self.save_or_warn();
            return Err(error);
        }
        let note = if kept { "" } else { "; memory and null disks keep nothing, so it ends with the daemon" };
        self.events().info(
            "pool_created",
            format!("pool {name} was created on {}{note}", counted(parts.len(), "member", "members")),
            &[("pool", name.as_str())],
        );
        Ok(uuid)
    }

    /// What a member bears; with something on it, it is refused unless `force` is set. Writes nothing.
    async fn look_at_content(
        &self,
        io: &RingDevices,
        base: &Base,
        device: DeviceId,
        force: bool,
    ) -> Result<Option<foreign::Found>, ErrorDetail> {
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
    async fn clear_content(
        &self,
        io: &RingDevices,
        base: &Base,
        device: DeviceId,
        found: Option<foreign::Found>,
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

    /// The labels that all members are to have.
    fn plan_pool(
        &self,
        io: &RingDevices,
        name: &Name,
        seats: &[(Base, DeviceId)],
        sizes: &[u64],
    ) -> Result<Vec<Part>, ErrorDetail> {
        let smallest = sizes.iter().copied().min().unwrap_or(0);
        let owner_slots = owner_slots_for(smallest);
        let mut places = Vec::with_capacity(sizes.len());
        for ((base, device), size) in seats.iter().zip(sizes) {
            let member = self.name_of(base);
            if io.block_bytes(*device) > BLOCK_BYTES as u32 {
                let message = format!("{member} has blocks of {} bytes; a pool's are of 4096", io.block_bytes(*device));
                return Err(ErrorDetail::new(Kind::InvalidArgument, message).remedy("use another disk"));
            }
            places.push(PoolPlaces::new(*size, owner_slots).map_err(|error| {
                ErrorDetail::new(Kind::InvalidArgument, format!("{member} cannot be a member of a pool: {error}"))
                    .remedy("use a disk of another size")
            })?);
        }
        let (uuid, session) = (random_uuid()?, random()?);
        let mut members = Vec::with_capacity(sizes.len());
        for size in sizes {
            let member = PoolMember { uuid: random_uuid()?, size_bytes: *size, state: PoolMemberState::InUse };
            members.push(Some(member));
        }
        let label = |member: u8, places: PoolPlaces| PoolLabel {
            features: Features::default(),
            uuid,
            sequence: 1,
            name: name.clone(),
            state: PoolState::Forming,
            clean: true,
            created_unix_s: unix_s(),
            session,
            members: members.clone(),
            member,
            places,
            reserved: Reserved::NONE,
        };
        let part = |(number, ((base, device), places)): (u8, (&(Base, DeviceId), PoolPlaces))| Part {
            base: base.clone(),
            device: *device,
            label: label(number, places),
            behind: false,
            copy_first: false,
        };
        let parts: Vec<Part> = (0u8..).zip(seats.iter().zip(places)).map(part).collect();
        // Refused before the first write what a label cannot hold.
        for part in &parts {
            part.label.encode().map_err(|error| invalid(name.as_str(), error.to_string()))?;
        }
        Ok(parts)
    }

    /// Notes where a pool's members are.
    pub(super) fn remember_pool(&self, parts: &[Part]) {
        let mut tables = self.write();
        for part in parts {
            let (uuid, name, member) = (part.label.uuid, part.label.name.to_string(), part.label.member);
            tables.pool_disks.retain(|_, saved| saved.pool != uuid || saved.member != member);
            tables.pool_arrays.retain(|saved| saved.pool != uuid || saved.member != member);
            match &part.base {
                Base::Disk(disk) => {
                    let saved = SavedPoolDisk { disk: disk.name.clone(), pool: uuid, pool_name: name, member };
                    tables.pool_disks.insert(disk.name.clone(), saved);
                }
                Base::Array(array) => {
                    let array_name = tables.arrays.get(array).map(|entry| entry.name.clone()).unwrap_or_default();
                    let saved = SavedPoolArray { array: *array, array_name, pool: uuid, pool_name: name, member };
                    tables.pool_arrays.push(saved);
                }
            }
        }
    }

    /// Forgets where they were.
    pub(super) fn forget_pool(&self, uuid: Uuid) {
        let mut tables = self.write();
        tables.pool_disks.retain(|_, saved| saved.pool != uuid);
        tables.pool_arrays.retain(|saved| saved.pool != uuid);
        tables.pool_boots.remove(&uuid);
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

fn invalid(pool: &str, what: String) -> ErrorDetail {
    ErrorDetail::new(Kind::InvalidArgument, what).with("pool", pool)
}

fn understand(ask: &CreatePool) -> Result<Vec<Asked>, ErrorDetail> {
    check_name(&ask.name)?;
    if ask.members.is_empty() || ask.members.len() > ARRAY_MEMBERS_MAX {
        let message = format!("a pool has 1 to {ARRAY_MEMBERS_MAX} members, not {}", ask.members.len());
        return Err(invalid(&ask.name, message));
    }
    let mut asked: Vec<Asked> = Vec::with_capacity(ask.members.len());
    for (at, text) in ask.members.iter().enumerate() {
        // Each of these is another one, however it is written.
        let anew = ["mem:", "null:"].iter().any(|kind| text.starts_with(kind));
        if !anew && ask.members[..at].contains(text) {
            return Err(invalid(&ask.name, format!("{text} is named twice")).remedy("name each member once"));
        }
        if names::VolumeName::parse(text).is_some() {
            let message = format!("{text} is a volume of a pool, which cannot be a member of another pool");
            return Err(invalid(&ask.name, message).remedy("use disks and arrays"));
        }
        // Paths begin with a slash here, and all other disks have a colon or a parenthesis.
        asked.push(match names::is_uuid(text) || names::check_name(text).is_ok() {
            true => Asked::Array(text.clone()),
            false => Asked::Disk(read_disk(text)?),
        });
    }
    Ok(asked)
}

/// Writes what a pool begins with, all but the label, and makes it durable.
async fn begin(io: &RingDevices, part: &Part) -> Result<(), IoError> {
    let (label, device) = (&part.label, part.device);
    let places = &label.places;
    for area in [places.owners, places.table, places.addresses] {
        zero(io, device, area.start, area.bytes).await?;
    }
    // Whatever stands in the ring from before is of no run that counts.
    let start = RingStart::first(&label.uuid, label.session | 1);
    io.write(device, places.starts.start, start.encode().to_vec(), false).await?;
    io.write(device, places.starts.start + RING_START_BYTES as u64, vec![0; RING_START_BYTES], false).await?;
    io.flush(device).await
}

async fn zero(io: &RingDevices, device: DeviceId, start: u64, bytes: u64) -> Result<(), IoError> {
    let mut at = start;
    while at < start + bytes {
        let len = ZERO_BYTES.min(start + bytes - at);
        io.request(device, Op::WriteZeroes, Flags::NONE, at, len, &[]).await?;
        at += len;
    }
    Ok(())
}

/// Now, in seconds of Unix time.
pub(super) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}
