//! Opened disks: what a [`DiskSpec`] names, held for exclusive use, ready to be given to the shards.

mod file;
pub mod freeze;
pub(crate) mod holder;

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use braid_engine::DeviceId;

pub(crate) use file::FileDisk;

use crate::error::{RingError, RingErrorKind};
use crate::faults::Faults;
use crate::map::{Map, physical_memory_bytes};
use crate::remote::RemoteDisk;
use crate::spec::{DiskSpec, ExactSize, FaultRules};
use crate::throttle::Throttle;
use crate::tier::{TIERS_MAX, tier_of};

/// The logical block of a disk that is a volume, in bytes.
const DEVICE_BLOCK_BYTES: u32 = 4096;

/// How to open a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    /// Hold it so that nobody else (another Braid, a mount) can use it at the same time. Without, it is only looked at.
    pub exclusive: bool,
    /// For writing, too.
    pub write: bool,
}

impl Default for OpenOptions {
    /// Exclusive, for reading and writing.
    fn default() -> OpenOptions {
        OpenOptions { exclusive: true, write: true }
    }
}

/// What is at the bottom of a disk.
pub(crate) enum Base {
    File(FileDisk),
    Mem(Map),
    Null,
    /// A device of a tier below.
    Device(DeviceId),
    /// On the other side of a network.
    Remote(Arc<dyn RemoteDisk>),
}

/// A disk that is open. Dropping it closes it and lets go of its lock.
pub struct Disk {
    spec: DiskSpec,
    base: Base,
    size_bytes: AtomicU64,
    /// From the outermost `throttled(…)` to the innermost.
    pub(crate) throttles: Vec<Throttle>,
    /// From the outermost `faulty(…)` to the innermost.
    pub(crate) faults: Vec<Arc<Faults>>,
    write: bool,
    /// A flush has failed: later ones must not claim what nobody knows. Sticks until the disk is opened again.
    flush_failed: AtomicBool,
    /// In words, that the file or block device became shorter while it was in use. Sticks until the disk is opened again.
    shortened: OnceLock<String>,
}

/// The limits and the rules that a disk is wrapped in, from the outside in, and what is inside of them.
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

impl Disk {
    /// Opens what `spec` names; creates a file that is absent when the name gives its size.
    ///
    /// # Errors
    /// Says which disk, which operation, why, who holds it where that can be found out, and what to do.
    pub fn open(spec: &DiskSpec, options: OpenOptions) -> Result<Disk, RingError> {
        let (throttles, faults, inner) = unwrapped(spec);
        let (base, size_bytes) = match inner {
            DiskSpec::Throttled { .. } | DiskSpec::Faulty { .. } => unreachable!("they were taken off"),
            DiskSpec::Mem { size_bytes } => {
                let bytes = usize::try_from(*size_bytes).unwrap_or(usize::MAX);
                let map = Map::new(bytes).map_err(|e| RingError::os(e, format!("making the memory disk {inner}")))?;
                if map.len() <= physical_memory_bytes() / 4 {
                    // A quarter faster at random; but each touch takes 2 MiB, which a large sparse disk must not.
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
        Ok(Disk {
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

    /// A disk that is a device which the shards serve: a volume, as a member of an array of the tier above. Whoever has it published sees
    /// to it that nobody else uses it, and that it stays as long as this disk is open.
    ///
    /// # Panics
    /// When the device is of the last tier.
    pub fn of_device(spec: &DiskSpec, device: DeviceId, size_bytes: u64) -> Disk {
        assert!(tier_of(device) + 1 < TIERS_MAX, "there is a tier above");
        Disk::of_base(spec, Base::Device(device), size_bytes, true)
    }

    /// A disk on the other side of a network, which was reached.
    pub fn of_remote(spec: &DiskSpec, remote: Arc<dyn RemoteDisk>, write: bool) -> Disk {
        let size_bytes = remote.size_bytes();
        Disk::of_base(spec, Base::Remote(remote), size_bytes, write)
    }

    fn of_base(spec: &DiskSpec, base: Base, size_bytes: u64, write: bool) -> Disk {
        let (throttles, faults, _) = unwrapped(spec);
        Disk {
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

    /// The device that it is, if it is one.
    pub fn device(&self) -> Option<DeviceId> {
        match self.base {
            Base::Device(device) => Some(device),
            _ => None,
        }
    }

    /// Whether it is on the other side of a network.
    pub fn is_remote(&self) -> bool {
        matches!(self.base, Base::Remote(_))
    }

    pub(crate) fn remote(&self) -> Option<&dyn RemoteDisk> {
        match &self.base {
            Base::Remote(remote) => Some(&**remote),
            _ => None,
        }
    }

    /// Whoever uses it can, or can no longer, go on without it. A disk on the other side of a network that cannot vouch for what it was
    /// told is then lost, where it would be waited for otherwise.
    pub fn set_replaceable(&self, replaceable: bool) {
        if let Base::Remote(remote) = &self.base {
            remote.set_replaceable(replaceable);
        }
    }

    /// Why nothing is asked of it any more until it is opened again, if it is so: a disk on the other side of a network is
    /// lost, or a file or block device has become shorter while it was in use.
    pub fn lost_because(&self) -> Option<&str> {
        self.remote().and_then(RemoteDisk::lost_because).or(self.shortened.get().map(String::as_str))
    }

    /// Whether it was found to be shorter than when it was opened. What lay behind its new end is lost, and a write there
    /// would bring zeros back in its place.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.shortened.get().is_some()
    }

    /// Compares the size that the operating system knows with the one it was opened with. A disk that is found short stays
    /// so, also when something makes it longer again. Never blocks. Says whether it is whole.
    #[inline]
    pub(crate) fn is_whole_now(&self) -> bool {
        let Base::File(file) = &self.base else { return true };
        // One that does not tell its size has other troubles, which I/O meets.
        match file.size_known() {
            Ok(found) if found < self.size_bytes() => {
                self.set_short(found);
                false
            }
            _ => !self.is_short(),
        }
    }

    /// As the shards do after I/O, for disks that are idle: looks whether the file or block device has become shorter.
    /// Returns what [`Disk::lost_because`] says then.
    pub fn check_size(&self) -> Option<&str> {
        self.is_whole_now();
        self.lost_because()
    }

    /// Whether its file was deleted, or another one took its name, while it was in use: it works, and is lost when it is
    /// closed.
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

    /// Whether nothing that it was asked for, and has not answered, may be done yet.
    pub fn is_settled(&self) -> bool {
        self.remote().is_none_or(RemoteDisk::is_settled)
    }

    /// The device that it is has become larger.
    pub fn has_grown_to(&self, size_bytes: u64) {
        self.size_bytes.fetch_max(size_bytes, Ordering::AcqRel);
    }

    /// The name it was opened by.
    pub fn spec(&self) -> &DiskSpec {
        &self.spec
    }

    /// Bytes that it holds, a multiple of [`Disk::logical_block_bytes`].
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Asks the operating system how large the file or block device is by now. Where it has become larger, that is its size
    /// from now on; the shards learn it by [`crate::RingHandle::resize_leaf`]. May block.
    ///
    /// # Errors
    /// The operating system's.
    pub fn look_again(&self) -> Result<u64, RingError> {
        if let Base::File(file) = &self.base {
            let found = file.size_now().map_err(|e| RingError::os(e, format!("asking the size of {}", self.spec)))?;
            self.size_bytes.fetch_max(found, Ordering::AcqRel);
        }
        Ok(self.size_bytes())
    }

    /// What offsets and lengths must be multiples of, in bytes: 512 or 4096 on most disks.
    pub fn logical_block_bytes(&self) -> u32 {
        match &self.base {
            Base::File(file) => file.logical_block_bytes,
            Base::Mem(_) | Base::Null => 512,
            Base::Device(_) => DEVICE_BLOCK_BYTES,
            Base::Remote(remote) => remote.logical_block_bytes(),
        }
    }

    /// Whether it was opened for writing.
    pub fn is_writable(&self) -> bool {
        self.write
    }

    /// Whether it is a block device.
    pub fn is_block_device(&self) -> bool {
        matches!(&self.base, Base::File(file) if file.block_device)
    }

    /// Whether I/O goes past the page cache. True for `mem` and `null`, which have none.
    pub fn is_direct(&self) -> bool {
        !matches!(&self.base, Base::File(file) if file.buffered_because.is_some())
    }

    /// Why I/O goes through the page cache, where it does: for the status.
    pub fn buffered_because(&self) -> Option<&str> {
        match &self.base {
            Base::File(file) => file.buffered_because.as_deref(),
            Base::Mem(_) | Base::Null | Base::Device(_) | Base::Remote(_) => None,
        }
    }

    /// Whether a flush has failed since it was opened.
    pub fn has_failed_flush(&self) -> bool {
        self.flush_failed.load(Ordering::Acquire)
    }

    pub(crate) fn set_flush_failed(&self) {
        self.flush_failed.store(true, Ordering::Release);
    }

    /// Replaces the rules of the outermost `faulty(…)` of its name. Hung I/Os go on.
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

    /// The file beneath, if there is one.
    pub(crate) fn raw_fd(&self) -> Option<RawFd> {
        match &self.base {
            Base::File(file) => Some(file.fd.as_raw_fd()),
            Base::Mem(_) | Base::Null | Base::Device(_) | Base::Remote(_) => None,
        }
    }

    /// Whether I/Os may take the short way: no shaping, no rules.
    pub(crate) fn is_plain(&self) -> bool {
        self.throttles.is_empty() && self.faults.is_empty()
    }
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk").field("spec", &self.spec.to_string()).field("size_bytes", &self.size_bytes()).finish()
    }
}

/// Who has a block device for itself, in words; none: nobody, or that is not to be seen from here.
pub fn holder_of(path: &std::path::Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    holder::of_block_device(std::fs::metadata(path).ok()?.rdev())
}
