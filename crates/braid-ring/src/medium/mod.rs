//! The part of an open [`crate::Disk`] that the shards use: its file, its memory, or the device below; its size, its
//! wrappers (throttles and fault rules), and whether it has become shorter or a flush of it has failed.

mod file;
pub(crate) mod holder;

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use braid_engine::DeviceId;

pub(crate) use file::FileDisk;

use crate::error::{RingError, RingErrorKind};
use crate::faults::Faults;
use crate::map::{Map, physical_memory_bytes};
use crate::spec::{DiskSpec, ExactSize, FaultRules};
use crate::throttle::Throttle;

/// The logical block size of a disk that is a volume, in bytes.
const DEVICE_BLOCK_BYTES: u32 = 4096;

/// How to open a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    /// Hold it exclusively: a block device by O_EXCL, against mounts, swap and all other users that do the same; a file
    /// by a lock (flock), against other Braid processes. If not set, the disk may be in use elsewhere.
    pub exclusive: bool,
    /// Open it for writing as well.
    pub write: bool,
}

impl Default for OpenOptions {
    /// Exclusive, for reading and writing.
    fn default() -> OpenOptions {
        OpenOptions { exclusive: true, write: true }
    }
}

/// The kind of a disk beneath its wrappers.
pub(crate) enum Base {
    File(FileDisk),
    Mem(Map),
    Null,
    /// A device of a stack level below.
    Device(DeviceId),
    /// A remote disk, whose carriers do the I/O. Its interface exists as long as any shard has the disk.
    Remote {
        _interface: Box<dyn Send + Sync>,
    },
}

/// See the module documentation. Dropping it closes it and releases its lock.
pub struct Medium {
    spec: DiskSpec,
    base: Base,
    size_bytes: AtomicU64,
    /// From the outermost `throttled(…)` to the innermost.
    pub(crate) throttles: Vec<Throttle>,
    /// From the outermost `faulty(…)` to the innermost.
    pub(crate) faults: Vec<Arc<Faults>>,
    write: bool,
    /// A flush has failed, so later flushes must not succeed. Sticks until the disk is opened again.
    flush_failed: AtomicBool,
    /// Describes how the file or block device became shorter while in use. Sticks until the disk is opened again.
    shortened: OnceLock<String>,
}

/// Returns the throttles and fault rules around a disk, outermost first, and the disk inside.
fn unwrapped(spec: &DiskSpec) -> (Vec<Throttle>, Vec<Arc<Faults>>, &DiskSpec) {
    let (mut throttles, mut faults, mut inner) = (Vec::new(), Vec::new(), spec);
    loop {
        match inner {
            DiskSpec::Throttled { disk, limits } => {
                throttles.push(Throttle::new(limits));
                inner = disk;
            }
            DiskSpec::Faulty { disk, rules } => {
                faults.push(Arc::new(Faults::new(rules)));
                inner = disk;
            }
            _ => return (throttles, faults, inner),
        }
    }
}

impl Medium {
    /// Opens what `spec` names. See [`crate::Disk::open`].
    pub(crate) fn open(spec: &DiskSpec, options: OpenOptions) -> Result<Medium, RingError> {
        let (throttles, faults, inner) = unwrapped(spec);
        let (base, size_bytes) = match inner {
            DiskSpec::Throttled { .. } | DiskSpec::Faulty { .. } => unreachable!("they were taken off"),
            DiskSpec::Mem { size_bytes } => {
                let bytes = usize::try_from(*size_bytes).unwrap_or(usize::MAX);
                let map = Map::new(bytes).map_err(|e| RingError::os(e, format!("making the memory disk {inner}")))?;
                if map.len() <= physical_memory_bytes() / 4 {
                    // Random access is a quarter faster, but each page touched takes 2 MiB, too much for a large sparse
                    // disk.
                    map.advise(libc::MADV_HUGEPAGE);
                }
                (Base::Mem(map), *size_bytes)
            }
            DiskSpec::Null { size_bytes } => (Base::Null, *size_bytes),
            DiskSpec::Volume { name } => {
                return Err(RingError::new(
                    RingErrorKind::Unsupported,
                    format!("{name} is a volume, which only the daemon that serves its pool can use"),
                    "name a disk",
                ));
            }
            DiskSpec::Remote { uri } => {
                return Err(RingError::new(
                    RingErrorKind::Unsupported,
                    format!("{uri} is on the other side of a network, which nothing here can reach"),
                    "name a disk of this machine",
                ));
            }
            DiskSpec::Path(path) => {
                let file = FileDisk::open(path, None, options)?;
                let size = file.size_bytes;
                (Base::File(file), size)
            }
            DiskSpec::File { path, size_bytes, alloc } => {
                let file = FileDisk::open(path, size_bytes.map(|s| (s, *alloc)), options)?;
                let size = file.size_bytes;
                (Base::File(file), size)
            }
        };
        Ok(Medium {
            spec: spec.clone(),
            base,
            size_bytes: AtomicU64::new(size_bytes),
            throttles,
            faults,
            write: options.write,
            flush_failed: AtomicBool::new(false),
            shortened: OnceLock::new(),
        })
    }

    /// Creates a medium for a base that was not opened here: a device of the shards, or a remote disk.
    pub(crate) fn of_base(spec: &DiskSpec, base: Base, size_bytes: u64, write: bool) -> Medium {
        let (throttles, faults, _) = unwrapped(spec);
        Medium {
            spec: spec.clone(),
            base,
            size_bytes: AtomicU64::new(size_bytes),
            throttles,
            faults,
            write,
            flush_failed: AtomicBool::new(false),
            shortened: OnceLock::new(),
        }
    }

    /// Returns the device, if the disk is a device.
    pub fn device(&self) -> Option<DeviceId> {
        match self.base {
            Base::Device(device) => Some(device),
            _ => None,
        }
    }

    /// Returns whether it is a remote disk.
    pub fn is_remote(&self) -> bool {
        matches!(self.base, Base::Remote { .. })
    }

    /// Returns whether it was found shorter than when it was opened. Data behind the new end is lost, and a write there
    /// would extend the file so that the lost data reads as zeros.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.shortened.get().is_some()
    }

    /// Returns how it was found shorter, if it was.
    pub(crate) fn short_reason(&self) -> Option<&str> {
        self.shortened.get().map(String::as_str)
    }

    /// Compares the current size with the size at open, and returns whether the disk is whole. A disk once found short
    /// stays so, even if the file is extended again. Never blocks.
    #[inline]
    pub(crate) fn is_whole_now(&self) -> bool {
        let Base::File(file) = &self.base else { return true };
        // An error does not count as short: a disk that cannot report its size also fails its I/O.
        match file.size_known() {
            Ok(found) if found < self.size_bytes() => {
                self.set_short(found);
                false
            }
            _ => !self.is_short(),
        }
    }

    /// Returns whether its file was deleted, or its name taken by another file, while in use. The disk works, but its
    /// data is lost when it is closed.
    pub fn is_deleted(&self) -> bool {
        matches!(&self.base, Base::File(file) if file.is_deleted())
    }

    #[cold]
    fn set_short(&self, found: u64) {
        let size = self.size_bytes();
        self.shortened.get_or_init(|| {
            let (found, size, missing) = (ExactSize(found), ExactSize(size), ExactSize(size.saturating_sub(found)));
            format!("it is shorter than its label says: {found} of {size} are left, {missing} are missing")
        });
    }

    /// Adopts a size in bytes, if it is larger than the present one, for a disk whose device below has grown. The
    /// shards adopt it by [`crate::RingHandle::resize_leaf`].
    pub fn set_grown_size(&self, size_bytes: u64) {
        self.size_bytes.fetch_max(size_bytes, Ordering::AcqRel);
    }

    /// The name by which it was opened.
    pub fn spec(&self) -> &DiskSpec {
        &self.spec
    }

    /// Size in bytes, a multiple of [`crate::Disk::logical_block_bytes`].
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Reads the size of the file or block device from the operating system, adopts it if it is larger than the present
    /// one, and returns the size in bytes. The shards adopt it by [`crate::RingHandle::resize_leaf`]. May block.
    ///
    /// # Errors
    /// The operating system's.
    pub fn refresh_size(&self) -> Result<u64, RingError> {
        if let Base::File(file) = &self.base {
            let found = file.size_now().map_err(|e| RingError::os(e, format!("asking the size of {}", self.spec)))?;
            self.size_bytes.fetch_max(found, Ordering::AcqRel);
        }
        Ok(self.size_bytes())
    }

    /// Returns the logical block size in bytes, unless the disk is remote.
    pub(crate) fn local_block_bytes(&self) -> Option<u32> {
        match &self.base {
            Base::File(file) => Some(file.logical_block_bytes),
            Base::Mem(_) | Base::Null => Some(512),
            Base::Device(_) => Some(DEVICE_BLOCK_BYTES),
            Base::Remote { .. } => None,
        }
    }

    /// Returns whether it was opened for writing.
    pub fn is_writable(&self) -> bool {
        self.write
    }

    /// Returns whether it is a block device.
    pub fn is_block_device(&self) -> bool {
        matches!(&self.base, Base::File(file) if file.block_device)
    }

    /// Returns whether I/O bypasses the page cache. True for `mem` and `null`, which have none.
    pub fn is_direct(&self) -> bool {
        !matches!(&self.base, Base::File(file) if file.buffered_because.is_some())
    }

    /// Returns why I/O goes through the page cache, if it does, for the status.
    pub fn buffered_reason(&self) -> Option<&str> {
        match &self.base {
            Base::File(file) => file.buffered_because.as_deref(),
            Base::Mem(_) | Base::Null | Base::Device(_) | Base::Remote { .. } => None,
        }
    }

    /// Returns whether a flush or a durable write has failed since it was opened, so that acknowledged data may be
    /// lost. All later flushes and durable writes then fail.
    pub fn has_failed_flush(&self) -> bool {
        self.flush_failed.load(Ordering::Acquire)
    }

    pub(crate) fn set_flush_failed(&self) {
        self.flush_failed.store(true, Ordering::Release);
    }

    /// Replaces the rules of the outermost `faulty(…)` in its name. I/Os that the previous rules hold start now.
    ///
    /// # Errors
    /// When the name has no `faulty(…)`.
    pub fn set_faults(&self, rules: &FaultRules) -> Result<(), RingError> {
        let Some(faults) = self.faults.first() else {
            return Err(RingError::new(
                RingErrorKind::Unsupported,
                format!("disk {} has no rules to change", self.spec),
                format!("open it as faulty({})", self.spec),
            ));
        };
        faults.set(rules);
        Ok(())
    }

    pub(crate) fn base(&self) -> &Base {
        &self.base
    }

    /// The descriptor of the file beneath, if any.
    pub(crate) fn raw_fd(&self) -> Option<RawFd> {
        match &self.base {
            Base::File(file) => Some(file.fd.as_raw_fd()),
            Base::Mem(_) | Base::Null | Base::Device(_) | Base::Remote { .. } => None,
        }
    }

    /// Returns whether I/Os may take the fast path: no throttle and no fault rules.
    pub(crate) fn is_plain(&self) -> bool {
        self.throttles.is_empty() && self.faults.is_empty()
    }
}

/// Describes the user of a block device. `None` if it has none, or none that is visible from here.
pub fn holder_of(path: &std::path::Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    holder::of_block_device(std::fs::metadata(path).ok()?.rdev())
}
