//! Where an array's disks hold nothing, for clients that ask (NBD's `base:allocation`).
//!
//! Files know their holes; block devices and memory do not tell, and count as allocated. A redundant array knows its regions:
//! those that were never written read as zeros, whatever is on its disks.

use super::tables::OpenDisk;
use crate::disk::host::Identity;
use braid_engine::{DeviceLayout, LeafId, RegionMap, allocation};
use braid_nbd::codec::state;
use braid_nbd::export::Allocation;
use std::fs::File;
use std::sync::Arc;

/// The holes of one array.
pub struct Holes {
    layout: Arc<DeviceLayout>,
    files: Vec<(LeafId, File)>,
}

impl Holes {
    /// Those of an active array; none when no disk of it knows any. Opens files, which may block.
    pub fn of(layout: Arc<DeviceLayout>, disks: &[Arc<OpenDisk>]) -> Option<Holes> {
        let mut files = Vec::new();
        for disk in disks {
            let Some(path) = disk.disk.spec().path().filter(|_| !disk.disk.is_block_device()) else { continue };
            // A second description of the file: seeking in it disturbs nobody. Another file may bear its name by now,
            // and what are holes there is data here.
            if let Ok(file) = File::open(path)
                && disk.identity.is_some()
                && Identity::of_open(&file) == disk.identity
            {
                files.push((disk.leaf, file));
            }
        }
        (!files.is_empty()).then_some(Holes { layout, files })
    }

    /// Whether they are those of this layout, and not of one before.
    pub fn are_of(&self, layout: &Arc<DeviceLayout>) -> bool {
        Arc::ptr_eq(&self.layout, layout)
    }

    /// What the file says of the bytes from `offset` on.
    fn probe(&self, leaf: LeafId, offset: u64, len: u64) -> allocation::Extent {
        let data = allocation::Extent { len, hole: false };
        let Some((_, file)) = self.files.iter().find(|(other, _)| *other == leaf) else { return data };
        match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(next) if next > offset => allocation::Extent { len: next - offset, hole: true },
            // Nothing but a hole up to the end of the file.
            Err(rustix::io::Errno::NXIO) => allocation::Extent { len, hole: true },
            Ok(_) => match rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(offset)) {
                Ok(next) if next > offset => allocation::Extent { len: next - offset, hole: false },
                _ => data,
            },
            Err(_) => data,
        }
    }
}

impl Allocation for Holes {
    fn extents(&self, offset: u64, len: u64, extent: &mut dyn FnMut(u64, u32) -> bool) {
        let mut probe = |leaf, offset, len| self.probe(leaf, offset, len);
        allocation::extents(&self.layout, offset, len, &mut probe, &mut |run| {
            extent(run.len, if run.hole { state::HOLE | state::ZERO } else { 0 })
        });
    }
}

/// How the regions of an array are asked for: when it has grown they are others. None when it does not serve any more.
type Regions = dyn Fn() -> Option<Arc<RegionMap>> + Send + Sync;

/// The holes of a redundant array.
pub struct UnwrittenRegions(Box<Regions>);

impl UnwrittenRegions {
    /// Those of the array that these are the regions of.
    pub fn of(regions: impl Fn() -> Option<Arc<RegionMap>> + Send + Sync + 'static) -> UnwrittenRegions {
        UnwrittenRegions(Box::new(regions))
    }
}

impl Allocation for UnwrittenRegions {
    fn extents(&self, offset: u64, len: u64, extent: &mut dyn FnMut(u64, u32) -> bool) {
        let Some(map) = (self.0)() else {
            extent(len, 0);
            return;
        };
        let end = offset + len;
        let mut at = offset;
        while at < end {
            // Runs are put together here: a client asks for few of them.
            let (start, is_written) = (at, map.written.has(map.region_of(at)));
            while at < end && map.written.has(map.region_of(at)) == is_written {
                at = map.range(map.region_of(at)).1.min(end);
            }
            if !extent(at - start, if is_written { 0 } else { state::HOLE | state::ZERO }) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_engine::ShardId;

    #[test]
    fn regions_that_were_never_written_are_holes() {
        // Seven regions of 1 MiB, the last one cut short; the second, third and sixth are written.
        let size = (6 << 20) + 4096;
        let array = braid_format::Uuid::from_bytes([7; 16]);
        let map = RegionMap::new(ShardId(0), array, size, 1 << 20, (&[0b10_0110], &[0]), true);
        let map = Arc::new(map);
        let holes = UnwrittenRegions::of(move || Some(Arc::clone(&map)));
        let of = |offset: u64, len: u64| {
            let mut runs = Vec::new();
            holes.extents(offset, len, &mut |len, state| {
                runs.push((len, state != 0));
                true
            });
            runs
        };
        let mib = 1 << 20;
        assert_eq!(of(0, size), [(mib, true), (2 * mib, false), (2 * mib, true), (mib, false), (4096, true)]);
        assert_eq!(of(mib - 4096, 8192), [(4096, true), (4096, false)]);
        assert_eq!(of(2 * mib + 4096, 512), [(512, false)]);
        let mut first = 0;
        holes.extents(0, size, &mut |len, _| {
            first += len;
            false
        });
        assert_eq!(first, mib, "it ends when it is told to");
    }
}
