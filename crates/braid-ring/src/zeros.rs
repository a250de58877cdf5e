//! Ranges of a device that are known to read as zeros, from the engine and from the disks at the bottom.
//!
//! The engine maps a range to disks by the device's current layout. A file has zeros where it has holes; a disk that is
//! a device of the stack level below is examined like any device; all other disks count as data. The holes are read
//! from the disk's open descriptor, so another file under the same path has no influence.

use std::sync::{Arc, Weak};

use braid_engine::allocation::{AllocationRun, extents};
use braid_engine::{DeviceId, LeafId};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::clock::lease_clock_ns;
use crate::disk::Disk;
use crate::medium::{Base, FileDisk};
use crate::ring::{Inner, RingHandle};

/// Reports which ranges of a device are known to read as zeros. Once the device or the ring has stopped, everything
/// counts as data. Does not keep the ring or a disk open.
#[derive(Clone)]
pub struct KnownZeros {
    ring: Weak<Inner>,
    device: DeviceId,
}

impl std::fmt::Debug for KnownZeros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KnownZeros").field("device", &self.device).finish_non_exhaustive()
    }
}

impl RingHandle {
    /// Returns the known zeros of a device, by whatever layout is current when they are queried.
    pub fn known_zeros(&self, device: DeviceId) -> KnownZeros {
        KnownZeros { ring: Arc::downgrade(&self.inner), device }
    }
}

impl KnownZeros {
    /// Calls `each` with the length in bytes of each run of `[offset, offset + len)`, in order, and whether the run
    /// reads as zeros, until `each` returns false. May end early, after at least one run; see [`extents`]. Makes system
    /// calls (`lseek`) on the disks' files, which block if a file system hangs.
    pub fn extents(&self, offset: u64, len: u64, each: &mut dyn FnMut(u64, bool) -> bool) {
        match self.ring.upgrade() {
            Some(ring) => of_device(&ring, self.device, offset, len, &mut |run| each(run.len, run.hole)),
            None => {
                each(len, false);
            }
        }
    }
}

impl Disk {
    /// Returns whether the disk may report holes: it is a regular file or a device below, without fault rules. Under
    /// fault rules the result of a read is not known in advance.
    pub fn reports_holes(&self) -> bool {
        let knows = match self.base() {
            Base::File(file) => !file.block_device,
            Base::Device(_) => true,
            Base::Mem(_) | Base::Null | Base::Remote { .. } => false,
        };
        knows && self.faults.is_empty()
    }

    /// Returns the extent at `offset`, of at most `len` bytes.
    fn extent(&self, ring: &Inner, offset: u64, len: u64) -> AllocationRun {
        let data = AllocationRun { len, hole: false };
        match self.base() {
            _ if !self.reports_holes() => data,
            Base::File(file) => file.extent(offset, len),
            Base::Device(device) => {
                let mut first = data;
                of_device(ring, *device, offset, len, &mut |run| {
                    first = run;
                    false
                });
                first
            }
            Base::Mem(_) | Base::Null | Base::Remote { .. } => data,
        }
    }
}

fn of_device(ring: &Inner, device: DeviceId, offset: u64, len: u64, each: &mut dyn FnMut(AllocationRun) -> bool) {
    let Some(layout) = ring.layouts.of(device) else {
        each(AllocationRun { len, hole: false });
        return;
    };
    let mut probe = |leaf: LeafId, offset, len| match ring.disk(leaf) {
        Some(disk) => disk.extent(ring, offset, len),
        None => AllocationRun { len, hole: false },
    };
    extents(&layout, offset, len, lease_clock_ns, &mut probe, &mut |run| each(run));
}

impl FileDisk {
    /// Returns the extent at `offset`. Moves the file offset, which nothing else uses.
    fn extent(&self, offset: u64, len: u64) -> AllocationRun {
        let data = AllocationRun { len, hole: false };
        match rustix::fs::seek(&self.fd, SeekFrom::Data(offset)) {
            Ok(next) if next > offset => AllocationRun { len: next - offset, hole: true },
            // A hole up to the end of the file. Data beyond it cannot be read: the file was truncated.
            Err(Errno::NXIO) => match rustix::fs::fstat(&self.fd) {
                Ok(found) if found.st_size as u64 > offset => {
                    AllocationRun { len: found.st_size as u64 - offset, hole: true }
                }
                _ => data,
            },
            Ok(_) => match rustix::fs::seek(&self.fd, SeekFrom::Hole(offset)) {
                Ok(next) if next > offset => AllocationRun { len: next - offset, hole: false },
                _ => data,
            },
            Err(_) => data,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::OpenOptions;

    /// A file reports its current holes, also after another file has taken its name, after truncation, and after
    /// further writes.
    #[test]
    fn the_open_file_reports_its_current_holes() {
        let path = std::env::temp_dir().join(format!("braid-ring-zeros-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let disk = Disk::open(&format!("file:{},size=1M", path.display()).parse().unwrap(), OpenOptions::default());
        let disk = disk.unwrap();
        let Base::File(file) = disk.base() else { unreachable!("a file") };
        let of = |offset: u64| {
            let extent = file.extent(offset, 4096);
            (extent.hole, extent.len)
        };
        assert!(disk.reports_holes());
        assert_eq!(of(0), (true, 1 << 20), "nothing was written");
        assert_eq!(of(4096), (true, (1 << 20) - 4096));
        let writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&writer, &[7; 65536], 131_072).unwrap();
        assert_eq!((of(0), of(131_072)), ((true, 131_072), (false, 65536)));
        // Another file with the same name, which is empty.
        std::fs::remove_file(&path).unwrap();
        std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        assert_eq!(of(131_072), (false, 65536));
        writer.set_len(65536).unwrap();
        assert_eq!((of(0), of(61440)), ((true, 65536), (true, 4096)));
        assert_eq!((of(65536), of(131_072)), ((false, 4096), (false, 4096)), "beyond the end there are errors");
        std::fs::remove_file(&path).unwrap();
    }
}
