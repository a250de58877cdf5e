//! The life cycle of a device: added or taken over, handed to the shards, started, and removed.

#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::abi::{self, BasicParams, DeviceInfo, DiscardParams, IoDescriptor, Params};
use crate::control::{Control, ServedQueues};
use crate::error::{UblkError, UblkErrorKind};

/// Longest request with data, in bytes: the most of a shard's arena that one request may take.
pub const IO_BYTES_MAX: u32 = 1 << 20;
/// Longest discard and longest write of zeroes, in sectors.
const DISCARD_SECTORS_MAX: u32 = 1 << 22;
const ZEROES_SECTORS_MAX: u32 = 1 << 17;
/// Longest wait for the kernel to clean up after a killed server. It takes well under a second, more on a busy machine.
const RECOVERY_MAX: Duration = Duration::from_secs(20);
/// Longest wait for a device node. devtmpfs creates it at once; udev sets its owner a little later.
const NODE_MAX: Duration = Duration::from_secs(5);
/// Longest wait for the shards to accept their queues.
const SHARDS_MAX: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);
/// Pause between two polls of the kernel or the shards in a takeover, for which the device's users wait.
const RECOVERY_PAUSE: Duration = Duration::from_millis(2);

/// The queues of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Number of queues, each served by one shard.
    pub queues: u16,
    /// Requests in flight on each queue.
    pub depth: u16,
}

/// The parameters of a new device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSetup {
    /// The mark by which it is found again: a number unique to this export, not 0.
    pub mark: u64,
    /// Its queues.
    pub shape: Shape,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// Its logical block, in bytes.
    pub block_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
}

impl DeviceSetup {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            nr_hw_queues: self.shape.queues,
            queue_depth: self.shape.depth,
            max_io_buf_bytes: IO_BYTES_MAX,
            dev_id: abi::ANY_DEVICE,
            flags: abi::F_NEED_GET_DATA | abi::F_USER_RECOVERY | abi::F_USER_RECOVERY_REISSUE,
            ublksrv_flags: self.mark,
            ..DeviceInfo::default()
        }
    }

    fn params(&self, agreed: &DeviceInfo) -> Params {
        let block_shift = self.block_bytes.trailing_zeros() as u8;
        let read_only = if self.read_only { abi::ATTR_READ_ONLY } else { 0 };
        Params {
            len: (size_of::<Params>() - size_of::<u32>()) as u32,
            types: abi::PARAMS_BASIC_AND_DISCARD,
            basic: BasicParams {
                attrs: abi::ATTR_VOLATILE_CACHE | abi::ATTR_FUA | read_only,
                logical_bs_shift: block_shift,
                physical_bs_shift: block_shift.max(12),
                io_opt_shift: 16,
                io_min_shift: 12,
                max_sectors: agreed.max_io_buf_bytes / abi::SECTOR_BYTES as u32,
                dev_sectors: self.size_bytes / abi::SECTOR_BYTES,
                ..BasicParams::default()
            },
            discard: DiscardParams {
                discard_granularity: self.block_bytes.max(4096),
                max_discard_sectors: DISCARD_SECTORS_MAX,
                max_write_zeroes_sectors: ZEROES_SECTORS_MAX,
                max_discard_segments: 1,
                ..DiscardParams::default()
            },
            pad: 0,
        }
    }
}

/// The mapped descriptors of one queue, which the driver writes.
#[derive(Debug)]
struct Descriptors {
    base: NonNull<IoDescriptor>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; it is only read, by one shard.
unsafe impl Send for Descriptors {}
// SAFETY: as above; reads are volatile copies.
unsafe impl Sync for Descriptors {}

impl Descriptors {
    fn map(file: &File, queue: u16, depth: u16) -> io::Result<Descriptors> {
        let (offset, bytes) = abi::descriptors_place(queue, depth, rustix::param::page_size());
        let (protection, flags) =
            (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED | rustix::mm::MapFlags::POPULATE);
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of this process.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, file, offset) }?;
        let base = NonNull::new(base.cast()).expect("mmap never returns page 0 without MAP_FIXED");
        Ok(Descriptors { base, bytes })
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and whole, and its address never leaves this type.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// A shard's reply to a request of the control plane, which polls it.
#[derive(Clone, Default, Debug)]
pub struct Asked(Arc<AtomicU8>);

/// The state of a reply.
const PENDING: u8 = 0;
const ACCEPTED: u8 = 1;
const REFUSED: u8 = 2;

impl Asked {
    pub(crate) fn reply(&self, accepts: bool) {
        self.set(if accepts { ACCEPTED } else { REFUSED });
    }

    fn set(&self, state: u8) {
        self.0.store(state, Ordering::Release);
    }

    fn is(&self, state: u8) -> bool {
        self.0.load(Ordering::Acquire) == state
    }

    /// Waits until all shards have accepted.
    ///
    /// # Errors
    /// The number that have not, once one has refused or `most` has passed.
    fn wait(all: &[&Asked], most: Duration) -> Result<(), usize> {
        let until = Instant::now() + most;
        loop {
            if all.iter().all(|reply| reply.is(ACCEPTED)) {
                return Ok(());
            }
            if all.iter().any(|reply| reply.is(REFUSED)) || Instant::now() >= until {
                return Err(all.iter().filter(|reply| !reply.is(ACCEPTED)).count());
            }
            thread::sleep(RECOVERY_PAUSE);
        }
    }

    /// Waits until all shards have confirmed room for a device's queues. Called before anything is done to that device.
    ///
    /// # Errors
    /// [`UblkErrorKind::Limit`]: a shard has no room, or does not reply.
    pub fn wait_for_room(all: &[Asked]) -> Result<(), UblkError> {
        Asked::wait(&all.iter().collect::<Vec<_>>(), SHARDS_MAX).map_err(|count| {
            let context =
                format!("{count} of the {} shards have no room for another queue, or do not answer", all.len());
            UblkError::new(UblkErrorKind::Limit, context, "remove other exports; it is tried again")
        })
    }
}

/// The state of one queue that the control plane and a shard share.
#[derive(Default, Debug)]
struct SharedQueue {
    accepted: Asked,
    /// Set before the first request arrives: see [`Opening::map`].
    descriptors: OnceLock<Descriptors>,
}

/// What a shard needs of a device to serve one of its queues.
pub struct QueueShare {
    file: Arc<File>,
    shared: Arc<SharedQueue>,
    /// The device's number, for messages.
    pub id: u32,
    /// Number of the queue.
    pub queue: u16,
    /// Requests in flight on the queue.
    pub depth: u16,
    /// Whether commands have ioctl-encoded numbers.
    pub encoded: bool,
}

impl QueueShare {
    /// Returns the reply to set once it is known whether the driver has the shard's commands for this queue.
    pub(crate) fn receipt(&self) -> Asked {
        self.shared.accepted.clone()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns a request's descriptor, which the driver wrote before it completed the fetch.
    pub(crate) fn descriptor(&self, tag: u16) -> IoDescriptor {
        assert!(tag < self.depth, "a tag is below its queue's depth");
        // SAFETY: within the mapping, which has `depth` descriptors, is readable and aligned to a page. The driver writes one
        // only while the server does not have its request.
        unsafe { self.base().add(usize::from(tag)).read_volatile() }
    }

    fn base(&self) -> *const IoDescriptor {
        self.shared.descriptors.get().expect("queues are mapped before users are let in").base.as_ptr()
    }
}

impl std::fmt::Debug for QueueShare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueShare").field("id", &self.id).field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// A ublk device.
#[derive(Debug)]
pub struct Device {
    /// Its number N, as in `/dev/ublkbN`.
    pub id: u32,
    /// Its description by the driver.
    pub info: DeviceInfo,
    /// Whether it is taken over from an earlier server, and its users wait.
    pub is_recovered: bool,
    /// Whether an earlier daemon ended in a takeover when it served only some of the queues. This daemon cannot
    /// complete that takeover. It serves the other queues only so that the driver lets the next daemon take over all.
    pub is_torn: bool,
}

impl Device {
    /// Finds the device with this mark and begins to take it over, or adds one. Next, [`Opening::shares`] returns the
    /// queues for the shards to serve, and [`Opening::begin`] makes the device available to users.
    ///
    /// # Errors
    /// The driver refuses, lacks a feature, or another process serves the device.
    pub fn find_or_make(control: &Control, setup: &DeviceSetup) -> Result<Device, UblkError> {
        if let Some(found) = Device::find(control, setup.mark)?
            && let Some(device) = Device::take_over(control, found, RECOVERY_MAX)?
        {
            return Ok(device);
        }
        let info = control.add(&setup.info())?;
        let device = Device { id: info.dev_id, info, is_recovered: false, is_torn: false };
        let refused = if info.flags & abi::F_NEED_GET_DATA == 0 {
            Err(UblkError::new(
                UblkErrorKind::Unsupported,
                "this kernel's ublk driver does not ask for the data of writes (UBLK_F_NEED_GET_DATA)",
                "use a kernel from Linux 6.0 on, or --nbd",
            ))
        } else {
            control.set_params(info.dev_id, &setup.params(&info))
        };
        if let Err(error) = refused {
            // It has no users yet.
            let _ = control.delete(info.dev_id);
            return Err(error);
        }
        Ok(device)
    }

    /// Returns the device with this mark, by reading the description of every device: they are few.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn find(control: &Control, mark: u64) -> Result<Option<DeviceInfo>, UblkError> {
        Device::find_among(control, mark, &device_numbers())
    }

    /// Returns every device of the driver, those of other servers included.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn all(control: &Control) -> Result<Vec<Device>, UblkError> {
        let infos = device_numbers().into_iter().map(|id| control.info(id)).collect::<Result<Vec<_>, _>>()?;
        Ok(infos
            .into_iter()
            .flatten()
            .map(|info| Device { id: info.dev_id, info, is_recovered: false, is_torn: false })
            .collect())
    }

    /// Returns the id of the process that serves the device, as the driver reports it; 0 or less if the process has no
    /// id in this pid namespace. `None` if no process serves it.
    pub fn server(&self) -> Option<i32> {
        (self.info.state == abi::STATE_LIVE).then_some(self.info.ublksrv_pid)
    }

    fn find_among(control: &Control, mark: u64, ids: &[u32]) -> Result<Option<DeviceInfo>, UblkError> {
        for &id in ids {
            if let Some(info) = control.info(id)?
                && info.ublksrv_flags == mark
            {
                return Ok(Some(info));
            }
        }
        Ok(None)
    }

    /// Takes over a device that was found; `None`: it was never started, or was stopped, and is removed now.
    fn take_over(control: &Control, found: DeviceInfo, most: Duration) -> Result<Option<Device>, UblkError> {
        let id = found.dev_id;
        if found.state == abi::STATE_DEAD {
            // Its daemon was killed between adding and starting it, or while removing it.
            control.delete(id)?;
            return Ok(None);
        }
        let until = Instant::now() + most;
        let busy = || {
            let context = format!("/dev/ublkb{id} is served by process {} still", found.ublksrv_pid);
            let remedy = "end that process: it is another daemon, or one that does not end";
            UblkError::new(UblkErrorKind::Busy, context, remedy)
        };
        let recovered = |is_torn: bool| Ok(Some(Device { id, info: found, is_recovered: true, is_torn }));
        // A live device has all of its queues served.
        if found.state == abi::STATE_QUIESCED {
            match retry_until(until, || control.served_queues(&found))?.ok_or_else(busy)? {
                ServedQueues::All => {}
                ServedQueues::None => return recovered(false),
                ServedQueues::Partial => return recovered(true),
            }
        }
        match retry_until(until, || control.start_recovery(id).map(|begun| begun.then_some(()))) {
            Ok(Some(())) => recovered(false),
            Ok(None) => Err(busy()),
            Err(error) if error.os_number() == Some(libc::EINVAL) => Device::begun_before(control, found, error),
            Err(error) => Err(error),
        }
    }

    /// Continues a takeover that an earlier daemon began before it ended. Drivers of Linux 6.10 to 6.15, and of older
    /// kernels with the fix, refuse (EINVAL) to begin a takeover again while no queue is served; it need not be begun
    /// again. Returns `refused` if the refusal had another reason; `None`: the device is gone by now.
    fn begun_before(control: &Control, found: DeviceInfo, refused: UblkError) -> Result<Option<Device>, UblkError> {
        let id = found.dev_id;
        let is_it = |info: &DeviceInfo| info.ublksrv_flags == found.ublksrv_flags;
        match control.info(id)?.filter(is_it) {
            None => Ok(None),
            Some(info) if info.state == abi::STATE_QUIESCED && info.flags & abi::F_USER_RECOVERY != 0 => {
                Ok(Some(Device { id, info, is_recovered: true, is_torn: false }))
            }
            Some(info) if info.state == abi::STATE_DEAD => control.delete(id).map(|()| None),
            Some(_) => Err(refused),
        }
    }

    /// Returns the path of the block device.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.id))
    }

    /// Disables the I/O scheduler that the kernel sets for a device with one queue: the disks below have their own, and sorting twice
    /// only costs. A recovered device keeps its scheduler, which a user may have chosen.
    pub fn leave_order_to_disks(&self) {
        if !self.is_recovered {
            let path = format!("/sys/block/ublkb{}/queue/scheduler", self.id);
            // In a thread, as the kernel waits for the requests in flight, which the export's limits may delay.
            // Errors do not matter: the kernel has no schedulers, or sysfs is read-only.
            let _ = thread::Builder::new().name("scheduler".to_owned()).spawn(move || fs::write(path, "none"));
        }
    }

    /// Returns the size that users see; `None`: the device is invisible to them.
    pub fn size_bytes(&self) -> Option<u64> {
        let sectors: u64 = fs::read_to_string(format!("/sys/block/ublkb{}/size", self.id)).ok()?.trim().parse().ok()?;
        Some(sectors * abi::SECTOR_BYTES)
    }

    /// Takes the device from its users and removes it, unless it is in exclusive use (mounted, swapped on, part of
    /// another device). Calls `fail` once it is certain that the device is not in exclusive use; `fail` must make the
    /// shards fail the requests that wait, because the driver's stop waits for them.
    ///
    /// # Errors
    /// [`UblkErrorKind::Busy`], and nothing has changed; or the driver refuses.
    pub fn end(&self, control: &Control, fail: impl FnOnce()) -> Result<(), UblkError> {
        let claim = self.claim()?;
        self.end_claimed(control, claim, fail)
    }

    /// Removes a device that the caller has open exclusively ([`Device::claim`]), so that no user can mount it in
    /// between. `fail` is as for [`Device::end`].
    ///
    /// # Errors
    /// The driver refuses.
    pub fn end_claimed(&self, control: &Control, claim: Option<File>, fail: impl FnOnce()) -> Result<(), UblkError> {
        fail();
        control.stop(self.id)?;
        drop(claim);
        control.delete(self.id)
    }

    /// Opens the device for exclusive use; `None`: no user can have it open, as it was never started or is stopped.
    ///
    /// # Errors
    /// [`UblkErrorKind::Busy`].
    pub fn claim(&self) -> Result<Option<File>, UblkError> {
        let exclusive = rustix::fs::OFlags::EXCL.bits() as i32;
        match File::options().read(true).custom_flags(exclusive).open(self.path()) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                let context = format!("{} is in use", self.path().display());
                Err(UblkError::new(UblkErrorKind::Busy, context, "unmount it first"))
            }
            // It was never started, or is stopped: it has no users.
            Err(_) => Ok(None),
        }
    }
}

/// A device that is being made available to its users. After an error, [`Opening::shares`] and [`Opening::begin`] may
/// be called again: they skip what the driver and the shards have already done, which these would refuse.
#[derive(Debug)]
pub struct Opening {
    /// The device.
    pub device: Device,
    /// The device's own file, which can be open only once.
    file: Option<Arc<File>>,
    queues: Vec<Arc<SharedQueue>>,
    is_begun: bool,
}

impl Opening {
    /// Begins the opening of a device that was found or added.
    pub fn of(device: Device) -> Opening {
        let queues = (0..device.info.nr_hw_queues).map(|_| Arc::default()).collect();
        Opening { device, file: None, queues, is_begun: false }
    }

    /// Returns the device after its opening.
    pub fn into_device(self) -> Device {
        self.device
    }

    /// Returns what the shards need of the queues that no shard has accepted yet, in the order of the queues.
    ///
    /// # Errors
    /// The device's own file cannot be opened.
    pub fn shares(&mut self, control: &Control) -> Result<Vec<QueueShare>, UblkError> {
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => {
                let path = PathBuf::from(format!("/dev/ublkc{}", self.device.id));
                let opened = open_node(&path).map_err(|e| UblkError::os(e, &format!("opening {}", path.display())))?;
                Arc::clone(self.file.insert(Arc::new(opened)))
            }
        };
        let (id, depth, encoded) = (self.device.id, self.device.info.queue_depth, control.features().is_encoded());
        let missing = self.queues.iter().enumerate().filter(|(_, shared)| !shared.accepted.is(ACCEPTED));
        let share = |(queue, shared): (usize, &Arc<SharedQueue>)| {
            shared.accepted.set(PENDING);
            QueueShare { file: Arc::clone(&file), shared: Arc::clone(shared), id, queue: queue as u16, depth, encoded }
        };
        Ok(missing.map(share).collect())
    }

    /// Makes the device available to users once the shards have accepted all queues; the waiting requests of a
    /// recovered device's users continue.
    ///
    /// # Errors
    /// A shard has no room for a queue; the queues cannot be mapped; an earlier daemon left the takeover incomplete
    /// ([`Device::is_torn`]); the driver refuses.
    pub fn begin(&mut self, control: &Control) -> Result<(), UblkError> {
        if self.is_begun {
            return Ok(());
        }
        self.wait_for_shards(SHARDS_MAX)?;
        if self.device.is_torn {
            return Err(self.partial_takeover());
        }
        self.map()?;
        let id = self.device.id;
        let begun = if self.device.is_recovered { control.end_recovery(id) } else { control.start(id) };
        if let Err(error) = begun {
            // An earlier attempt may have completed meanwhile.
            let own = std::process::id().cast_signed();
            match control.info(id) {
                Ok(Some(info)) if info.state == abi::STATE_LIVE && info.ublksrv_pid == own => {}
                _ => return Err(error),
            }
        }
        self.is_begun = true;
        Ok(())
    }

    /// Maps the descriptors of all queues, as the last step before the device is available. Drivers before Linux 6.16
    /// permit mapping only to the first process that maps after a takeover has begun, and permit another takeover only
    /// after all queues were served. A daemon that mapped earlier and ended before it served all queues would leave a
    /// device that no process can map.
    fn map(&self) -> Result<(), UblkError> {
        let Some(file) = &self.file else { return Ok(()) };
        for (queue, shared) in self.queues.iter().enumerate() {
            if shared.descriptors.get().is_none() {
                let mapped = Descriptors::map(file, queue as u16, self.device.info.queue_depth);
                let descriptors = mapped.map_err(|error| self.map_error(error, queue))?;
                // It is set only here.
                let _ = shared.descriptors.set(descriptors);
            }
        }
        Ok(())
    }

    fn map_error(&self, error: io::Error, queue: usize) -> UblkError {
        if self.device.is_recovered && error.raw_os_error() == Some(libc::EINVAL) {
            return self.partial_takeover();
        }
        UblkError::os(error, &format!("mapping queue {queue} of /dev/ublkc{}", self.device.id))
    }

    /// Returns the error for a takeover that an earlier daemon left incomplete. By now the shards serve all queues, so
    /// the driver lets the next daemon take over the device.
    fn partial_takeover(&self) -> UblkError {
        let context = format!("/dev/ublkb{} was left half taken over by a daemon that has ended", self.device.id);
        let remedy = "restart the daemon: drivers before Linux 6.16 give such a device to the next one only";
        UblkError::new(UblkErrorKind::Busy, context, remedy)
    }

    /// Waits until the shards have accepted all queues. The driver itself would wait for them without a limit.
    fn wait_for_shards(&self, most: Duration) -> Result<(), UblkError> {
        let all: Vec<_> = self.queues.iter().map(|shared| &shared.accepted).collect();
        Asked::wait(&all, most).map_err(|count| {
            let context = format!("{count} of the {} queues of /dev/ublkb{} have no shard", all.len(), self.device.id);
            // The remedy must not be a restart of the daemon: drivers before Linux 6.16 let no daemon take over a
            // device of which only some queues were served.
            UblkError::new(
                UblkErrorKind::Limit,
                context,
                "it is tried again; remove other exports, if that does not help",
            )
        })
    }
}

/// Calls until there is a result; `None`: there was none in time.
fn retry_until<T>(
    until: Instant,
    mut call: impl FnMut() -> Result<Option<T>, UblkError>,
) -> Result<Option<T>, UblkError> {
    loop {
        match call()? {
            None if Instant::now() < until => thread::sleep(RECOVERY_PAUSE),
            result => return Ok(result),
        }
    }
}

/// Returns the numbers of all existing devices.
fn device_numbers() -> Vec<u32> {
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok();
    let mut all: Vec<u32> = entries.filter_map(number).collect();
    all.sort_unstable();
    all
}

fn open_node(path: &PathBuf) -> io::Result<File> {
    let until = Instant::now() + NODE_MAX;
    loop {
        match File::options().read(true).write(true).open(path) {
            // Busy: a daemon that has just ended still has it open.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ResourceBusy)
                    && Instant::now() < until =>
            {
                thread::sleep(PAUSE);
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests;
