//! The life of a device: made or recovered, handed to the shards, started, and in the end removed.

#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::abi::{self, BasicParams, DeviceInfo, DiscardParams, IoDescriptor, Params};
use crate::control::Control;
use crate::error::{UblkError, UblkErrorKind};

/// Longest request with data, in bytes: as much of a shard's arena as one request may take.
pub const IO_BYTES_MAX: u32 = 1 << 20;
/// Longest discard and longest write of zeroes, in sectors.
const DISCARD_SECTORS_MAX: u32 = 1 << 21;
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
struct Descriptors {
    base: NonNull<IoDescriptor>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; it is only read, by one shard.
unsafe impl Send for Descriptors {}
// SAFETY: as above; reads are volatile copies.
unsafe impl Sync for Descriptors {}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and whole, and its address never leaves this type.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// What a shard needs of a device to serve one of its queues.
pub struct QueueShare {
    file: Arc<File>,
    descriptors: Descriptors,
    /// The device's number, for messages.
    pub id: u32,
    /// Which queue.
    pub queue: u16,
    /// Its requests.
    pub depth: u16,
    /// How commands are numbered.
    pub encoded: bool,
    taken: Arc<AtomicU8>,
}

/// Whether a shard has taken a queue: not known yet, yes, and no.
const ASKED: u8 = 0;
const TAKEN: u8 = 1;
const REFUSED: u8 = 2;

impl QueueShare {
    /// Something that says whether a shard has taken it, once it is out of hand.
    pub(crate) fn receipt(&self) -> impl FnOnce(bool) + use<> {
        let taken = Arc::clone(&self.taken);
        move |has| taken.store(if has { TAKEN } else { REFUSED }, Ordering::Release)
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
        self.descriptors.base.as_ptr()
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
        let device = Device { id: info.dev_id, info, is_recovered: false };
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
        Ok(infos.into_iter().flatten().map(|info| Device { id: info.dev_id, info, is_recovered: false }).collect())
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
        loop {
            match control.start_recovery(id) {
                Ok(true) => return Ok(Some(Device { id, info: found, is_recovered: true })),
                Ok(false) if Instant::now() < until => std::thread::sleep(RECOVERY_PAUSE),
                Ok(false) => {
                    let context = format!("/dev/ublkb{id} is served by process {} still", found.ublksrv_pid);
                    let remedy = "end that process: it is another daemon, or one that does not end";
                    return Err(UblkError::new(UblkErrorKind::Busy, context, remedy));
                }
                Err(error) => return Err(error),
            }
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
        // While it is ours alone, nobody can mount it in between.
        let claim = self.claim()?;
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
    taken: Vec<Arc<AtomicU8>>,
    is_begun: bool,
}

impl Opening {
    /// One that has just been found or made.
    pub fn of(device: Device) -> Opening {
        let taken = (0..device.info.nr_hw_queues).map(|_| Arc::default()).collect();
        Opening { device, file: None, taken, is_begun: false }
    }

    /// The device, whose users are in.
    pub fn into_device(self) -> Device {
        self.device
    }

    /// What each queue's shard needs, of those that no shard has yet, in order of the queues.
    ///
    /// # Errors
    /// The device's own file cannot be opened or mapped.
    pub fn shares(&mut self, control: &Control) -> Result<Vec<QueueShare>, UblkError> {
        let path = PathBuf::from(format!("/dev/ublkc{}", self.device.id));
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => {
                let opened = open_node(&path).map_err(|e| UblkError::os(e, &format!("opening {}", path.display())))?;
                Arc::clone(self.file.insert(Arc::new(opened)))
            }
        };
        let (id, depth, encoded) = (self.device.id, self.device.info.queue_depth, control.features().is_encoded());
        let missing = self.taken.iter().enumerate().filter(|(_, taken)| taken.load(Ordering::Acquire) != TAKEN);
        missing
            .map(|(queue, taken)| {
                let queue = queue as u16;
                let (offset, bytes) = abi::descriptors_place(queue, depth, rustix::param::page_size());
                // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
                let base = unsafe {
                    rustix::mm::mmap(
                        std::ptr::null_mut(),
                        bytes,
                        rustix::mm::ProtFlags::READ,
                        rustix::mm::MapFlags::SHARED | rustix::mm::MapFlags::POPULATE,
                        &*file,
                        offset,
                    )
                };
                let base =
                    base.map_err(|e| UblkError::os(e.into(), &format!("mapping queue {queue} of {}", path.display())))?;
                let base = NonNull::new(base.cast()).expect("mmap never returns page 0 without MAP_FIXED");
                let descriptors = Descriptors { base, bytes };
                taken.store(ASKED, Ordering::Release);
                Ok(QueueShare {
                    file: Arc::clone(&file),
                    descriptors,
                    id,
                    queue,
                    depth,
                    encoded,
                    taken: Arc::clone(taken),
                })
            })
            .collect()
    }

    /// Lets users in, once the shards have the queues; those of a recovered device go on.
    ///
    /// # Errors
    /// A shard has no room for a queue; the driver refuses.
    pub fn begin(&mut self, control: &Control) -> Result<(), UblkError> {
        if self.is_begun {
            return Ok(());
        }
        self.wait_for_shards(SHARDS_MAX)?;
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

    /// The driver waits for all queues, and does not stop waiting: that all are there is made sure of before.
    fn wait_for_shards(&self, most: Duration) -> Result<(), UblkError> {
        let until = Instant::now() + most;
        loop {
            let is = |what: u8| move |taken: &Arc<AtomicU8>| taken.load(Ordering::Acquire) == what;
            if self.taken.iter().all(is(TAKEN)) {
                return Ok(());
            }
            if self.taken.iter().any(is(REFUSED)) || Instant::now() >= until {
                let count = self.taken.iter().filter(|taken| !is(TAKEN)(taken)).count();
                let context =
                    format!("{count} of the {} queues of /dev/ublkb{} have no shard", self.taken.len(), self.device.id);
                let remedy = "it is tried again; remove exports, or restart the daemon with more --shards, if that does not help";
                return Err(UblkError::new(UblkErrorKind::Limit, context, remedy));
            }
            std::thread::sleep(RECOVERY_PAUSE);
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
            Err(error) if error.kind() == io::ErrorKind::NotFound && Instant::now() < until => {
                std::thread::sleep(PAUSE)
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests;
