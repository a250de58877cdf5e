//! The life of a device: made or recovered, handed to the shards, started, and in the end removed.

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
use crate::control::{Control, Served};
use crate::error::{UblkError, UblkErrorKind};

/// Longest request with data, in bytes: as much of a shard's arena as one request may take.
pub const IO_BYTES_MAX: u32 = 1 << 20;
/// Longest discard and longest write of zeroes, in sectors.
const DISCARD_SECTORS_MAX: u32 = 1 << 22;
const ZEROES_SECTORS_MAX: u32 = 1 << 17;
/// The kernel ends with a server that was killed in well under a second; it may be busy.
const RECOVERY_MAX: Duration = Duration::from_secs(20);
/// Nodes appear at once with devtmpfs, and udev sets their owner a little later.
const NODE_MAX: Duration = Duration::from_secs(5);
/// Longest that shards may take to take their queues.
const SHARDS_MAX: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);
/// Between two looks whether the kernel has ended with it: its users wait for that.
const RECOVERY_PAUSE: Duration = Duration::from_millis(2);

/// How a device is to look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Queues, each served by one shard.
    pub queues: u16,
    /// Requests of each at a time.
    pub depth: u16,
}

/// What a device is made of.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSetup {
    /// By which it is found again: a number of this export's own, not 0.
    pub mark: u64,
    /// Its queues.
    pub shape: Shape,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// Its logical block, in bytes.
    pub block_bytes: u32,
    /// Writes are refused.
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

/// Descriptors of one queue, which the driver writes.
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
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
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

/// What a shard is asked for, and says once it knows.
#[derive(Clone, Default, Debug)]
pub struct Asked(Arc<AtomicU8>);

/// What a shard has said: nothing yet, yes, and no.
const ASKED: u8 = 0;
const TAKEN: u8 = 1;
const REFUSED: u8 = 2;

impl Asked {
    pub(crate) fn answer(&self, has: bool) {
        self.set(if has { TAKEN } else { REFUSED });
    }

    fn set(&self, what: u8) {
        self.0.store(what, Ordering::Release);
    }

    fn is(&self, what: u8) -> bool {
        self.0.load(Ordering::Acquire) == what
    }

    /// Waits until all of them have said yes.
    ///
    /// # Errors
    /// How many have not: one has said no, or it took too long.
    fn wait(all: &[&Asked], most: Duration) -> Result<(), usize> {
        let until = Instant::now() + most;
        loop {
            if all.iter().all(|asked| asked.is(TAKEN)) {
                return Ok(());
            }
            if all.iter().any(|asked| asked.is(REFUSED)) || Instant::now() >= until {
                return Err(all.iter().filter(|asked| !asked.is(TAKEN)).count());
            }
            thread::sleep(RECOVERY_PAUSE);
        }
    }

    /// Waits until all shards have said that they have room for a device's queues, before anything is begun with that device.
    ///
    /// # Errors
    /// [`UblkErrorKind::Limit`]: one has none, or does not answer.
    pub fn wait_for_room(all: &[Asked]) -> Result<(), UblkError> {
        Asked::wait(&all.iter().collect::<Vec<_>>(), SHARDS_MAX).map_err(|count| {
            let context =
                format!("{count} of the {} shards have no room for another queue, or do not answer", all.len());
            UblkError::new(UblkErrorKind::Limit, context, "remove other exports; it is tried again")
        })
    }
}

/// What the control plane and a shard have of one queue in common.
#[derive(Default, Debug)]
struct Common {
    taken: Asked,
    /// There before the first request is: see [`Opening::map`].
    descriptors: OnceLock<Descriptors>,
}

/// What a shard needs of a device to serve one of its queues.
pub struct QueueShare {
    file: Arc<File>,
    common: Arc<Common>,
    /// The device's number, for messages.
    pub id: u32,
    /// Which queue.
    pub queue: u16,
    /// Its requests.
    pub depth: u16,
    /// How commands are numbered.
    pub encoded: bool,
}

impl QueueShare {
    /// To be told once it is known whether the driver has a shard's commands for it.
    pub(crate) fn receipt(&self) -> Asked {
        self.common.taken.clone()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// A request, as the driver wrote it before it told of it.
    pub(crate) fn descriptor(&self, tag: u16) -> IoDescriptor {
        assert!(tag < self.depth, "a tag is below its queue's depth");
        // SAFETY: within the mapping, which has `depth` descriptors, is readable and aligned to a page. The driver writes one
        // only while the server does not have its request.
        unsafe { self.base().add(usize::from(tag)).read_volatile() }
    }

    fn base(&self) -> *const IoDescriptor {
        self.common.descriptors.get().expect("queues are mapped before users are let in").base.as_ptr()
    }
}

impl std::fmt::Debug for QueueShare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueShare").field("id", &self.id).field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// A device of ours.
#[derive(Debug)]
pub struct Device {
    /// Its number: `/dev/ublkb` and this.
    pub id: u32,
    /// What was agreed on.
    pub info: DeviceInfo,
    /// It was there, and its users wait.
    pub is_recovered: bool,
    /// A daemon has ended when it had taken over some of its queues: this one takes the others, so that the driver lets the next one have all.
    pub is_torn: bool,
}

impl Device {
    /// Finds the device of this mark and begins to take it over, or makes one. The shards then serve what
    /// [`Opening::shares`] gives, and [`Opening::begin`] lets users in.
    ///
    /// # Errors
    /// The driver cannot do it, or another process serves the device.
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
            // It is in nobody's hands yet.
            let _ = control.delete(info.dev_id);
            return Err(error);
        }
        Ok(device)
    }

    /// Devices are few: each is asked for its mark.
    ///
    /// # Errors
    /// The driver refuses to say.
    pub fn find(control: &Control, mark: u64) -> Result<Option<DeviceInfo>, UblkError> {
        Device::find_among(control, mark, &numbers())
    }

    /// Every device of the driver, whoever serves it.
    ///
    /// # Errors
    /// The driver refuses to say.
    pub fn all(control: &Control) -> Result<Vec<Device>, UblkError> {
        let infos = numbers().into_iter().map(|id| control.info(id)).collect::<Result<Vec<_>, _>>()?;
        Ok(infos
            .into_iter()
            .flatten()
            .map(|info| Device { id: info.dev_id, info, is_recovered: false, is_torn: false })
            .collect())
    }

    /// The process that serves it, as the driver numbers it: 0 and less where that says nothing here.
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

    /// Takes over a device that was found; none: it was never started, and is gone now.
    fn take_over(control: &Control, found: DeviceInfo, most: Duration) -> Result<Option<Device>, UblkError> {
        let id = found.dev_id;
        if found.state == abi::STATE_DEAD {
            // Its daemon was killed between adding and starting it, or while it removed it.
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
        // One that was served until just now was served whole.
        if found.state == abi::STATE_QUIESCED {
            match patiently(until, || control.served(&found))?.ok_or_else(busy)? {
                Served::All => {}
                Served::Nothing => return recovered(false),
                Served::Some => return recovered(true),
            }
        }
        match patiently(until, || control.start_recovery(id).map(|begun| begun.then_some(()))) {
            Ok(Some(())) => recovered(false),
            Ok(None) => Err(busy()),
            Err(error) if error.os_number() == Some(libc::EINVAL) => Device::begun_before(control, found, error),
            Err(error) => Err(error),
        }
    }

    /// A takeover that the driver calls invalid may have been begun by a daemon that ended in the midst of it: from Linux 6.10 to 6.15 (and in
    /// older ones that were mended) drivers refuse to begin it again as long as no queue is served. They need not be asked: it is begun.
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

    /// The block device.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.id))
    }

    /// The kernel gives a device with one queue a scheduler that sorts requests as a disk wants them. This is none: the disks below have
    /// theirs, and sorting twice only costs. What somebody else has chosen since stays: this is for a device that is new.
    pub fn leave_order_to_disks(&self) {
        if !self.is_recovered {
            let path = format!("/sys/block/ublkb{}/queue/scheduler", self.id);
            // The kernel waits for what is in flight, and that may wait for the export's limits: nobody is to wait for this.
            // A kernel without schedulers, or a sysfs that must not be written to, is as fast as it is.
            let _ = thread::Builder::new().name("scheduler".to_owned()).spawn(move || fs::write(path, "none"));
        }
    }

    /// The size that users see; none: they see no device.
    pub fn size_bytes(&self) -> Option<u64> {
        let sectors: u64 = fs::read_to_string(format!("/sys/block/ublkb{}/size", self.id)).ok()?.trim().parse().ok()?;
        Some(sectors * abi::SECTOR_BYTES)
    }

    /// Takes it from its users and removes it, unless one of them has it for itself (mounted, swapped on, part of another device). `fail`
    /// tells the shards to fail what waits, once it is sure that it ends.
    ///
    /// # Errors
    /// [`UblkErrorKind::Busy`], and nothing has changed; or the driver refuses.
    pub fn end(&self, control: &Control, fail: impl FnOnce()) -> Result<(), UblkError> {
        let claim = self.claim()?;
        self.end_claimed(control, claim, fail)
    }

    /// The same with one that is ours alone already ([`Device::claim`]): nobody can mount it in between.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn end_claimed(&self, control: &Control, claim: Option<File>, fail: impl FnOnce()) -> Result<(), UblkError> {
        fail();
        control.stop(self.id)?;
        drop(claim);
        control.delete(self.id)
    }

    /// The device for ourselves alone: none of its users has it so.
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
            // It was never started, or is stopped: nobody can use it.
            Err(_) => Ok(None),
        }
    }
}

/// A device on its way to its users. Where that ends half-way, it goes on from there: what the driver and the shards have done is not done
/// again, as they would refuse it.
#[derive(Debug)]
pub struct Opening {
    /// The device.
    pub device: Device,
    /// Its own file, which can be opened once.
    file: Option<Arc<File>>,
    queues: Vec<Arc<Common>>,
    is_begun: bool,
}

impl Opening {
    /// One that has just been found or made.
    pub fn of(device: Device) -> Opening {
        let queues = (0..device.info.nr_hw_queues).map(|_| Arc::default()).collect();
        Opening { device, file: None, queues, is_begun: false }
    }

    /// The device, whose users are in.
    pub fn into_device(self) -> Device {
        self.device
    }

    /// What each queue's shard needs, of those that no shard has yet, in order of the queues.
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
        let missing = self.queues.iter().enumerate().filter(|(_, common)| !common.taken.is(TAKEN));
        let share = |(queue, common): (usize, &Arc<Common>)| {
            common.taken.set(ASKED);
            QueueShare { file: Arc::clone(&file), common: Arc::clone(common), id, queue: queue as u16, depth, encoded }
        };
        Ok(missing.map(share).collect())
    }

    /// Lets users in, once the shards have the queues; those of a recovered device go on.
    ///
    /// # Errors
    /// A shard has no room for a queue; the queues cannot be mapped; the driver refuses.
    pub fn begin(&mut self, control: &Control) -> Result<(), UblkError> {
        if self.is_begun {
            return Ok(());
        }
        self.wait_for_shards(SHARDS_MAX)?;
        if self.device.is_torn {
            return Err(self.left_by_another());
        }
        self.map()?;
        let id = self.device.id;
        let begun = if self.device.is_recovered { control.end_recovery(id) } else { control.start(id) };
        if let Err(error) = begun {
            // An earlier try may have come to its end meanwhile.
            let own = std::process::id().cast_signed();
            match control.info(id) {
                Ok(Some(info)) if info.state == abi::STATE_LIVE && info.ublksrv_pid == own => {}
                _ => return Err(error),
            }
        }
        self.is_begun = true;
        Ok(())
    }

    /// Maps the queues, which is the last thing before users are let in. Drivers before Linux 6.16 let only that process map which has done so
    /// first since a takeover was begun, and begin another one only when all queues were served meanwhile: a daemon that ended between the two
    /// would leave a device that nobody can map.
    fn map(&self) -> Result<(), UblkError> {
        let Some(file) = &self.file else { return Ok(()) };
        for (queue, common) in self.queues.iter().enumerate() {
            if common.descriptors.get().is_none() {
                let mapped = Descriptors::map(file, queue as u16, self.device.info.queue_depth);
                let descriptors = mapped.map_err(|error| self.not_mapped(error, queue))?;
                // Nobody else sets it.
                let _ = common.descriptors.set(descriptors);
            }
        }
        Ok(())
    }

    fn not_mapped(&self, error: io::Error, queue: usize) -> UblkError {
        if self.device.is_recovered && error.raw_os_error() == Some(libc::EINVAL) {
            return self.left_by_another();
        }
        UblkError::os(error, &format!("mapping queue {queue} of /dev/ublkc{}", self.device.id))
    }

    /// All queues are served now, so that the driver lets the next daemon take over the whole.
    fn left_by_another(&self) -> UblkError {
        let context = format!("/dev/ublkb{} was left half taken over by a daemon that has ended", self.device.id);
        let remedy = "restart the daemon: drivers before Linux 6.16 give such a device to the next one only";
        UblkError::new(UblkErrorKind::Busy, context, remedy)
    }

    /// The driver waits for all queues, and does not stop waiting: that all are there is made sure of before.
    fn wait_for_shards(&self, most: Duration) -> Result<(), UblkError> {
        let all: Vec<_> = self.queues.iter().map(|common| &common.taken).collect();
        Asked::wait(&all, most).map_err(|count| {
            let context = format!("{count} of the {} queues of /dev/ublkb{} have no shard", all.len(), self.device.id);
            // To restart the daemon would be wrong: a driver before Linux 6.16 cannot take over what some queues of are served.
            UblkError::new(
                UblkErrorKind::Limit,
                context,
                "it is tried again; remove other exports, if that does not help",
            )
        })
    }
}

/// Calls until there is an answer; none: there was none in time.
fn patiently<T>(
    until: Instant,
    mut call: impl FnMut() -> Result<Option<T>, UblkError>,
) -> Result<Option<T>, UblkError> {
    loop {
        match call()? {
            None if Instant::now() < until => thread::sleep(RECOVERY_PAUSE),
            answer => return Ok(answer),
        }
    }
}

/// Numbers of the devices that there are.
fn numbers() -> Vec<u32> {
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
            // Busy: a daemon that has just ended has it open still.
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
