//! Where a replica holds nothing, for its controller, which asks before it reads what may be holes (NBD's `base:allocation`).

use crate::daemon::control::pools::holes::VolumeHoles;
use braid_engine::DeviceLayout;
use braid_nbd::export::Allocation;
use std::sync::Arc;

/// The holes of a replica's device: those of its volume. What stands in front of that and behind is data.
pub struct ReplicaHoles {
    /// The volume with its data.
    pub data: Arc<DeviceLayout>,
    /// Bytes in front of it.
    pub head_bytes: u64,
}

impl Allocation for ReplicaHoles {
    fn extents(&self, offset: u64, len: u64, extent: &mut dyn FnMut(u64, u32) -> bool) {
        let (start, end, stop) = (self.head_bytes, self.head_bytes + self.data.size_bytes(), offset + len);
        let front = stop.min(start);
        if offset < front && !extent(front - offset, 0) {
            return;
        }
        let (mut at, to) = (offset.max(start), stop.min(end));
        if at < to {
            let (first, mut goes_on) = (at - start, true);
            VolumeHoles(Arc::clone(&self.data)).extents(first, to - at, &mut |len, state| {
                at += len;
                goes_on = extent(len, state);
                goes_on
            });
            // Of a long range the volume may tell no more than the beginning.
            if !goes_on || at < to {
                return;
            }
        }
        let behind = offset.max(end);
        if behind < stop {
            extent(stop - behind, 0);
        }
    }
}
