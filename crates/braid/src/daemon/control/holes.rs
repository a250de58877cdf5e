//! Where an array's disks hold nothing, for clients that ask (NBD's `base:allocation`).
//!
//! Files know their holes; block devices and memory do not tell, and count as allocated.

use super::tables::OpenDisk;
use crate::disk::host::Identity;
use braid_engine::{DeviceLayout, LeafId, allocation};
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
