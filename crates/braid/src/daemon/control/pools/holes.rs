//! Where a volume holds nothing, for clients that ask (NBD's `base:allocation`).

use braid_engine::{DeviceLayout, allocation};
use braid_nbd::codec::state;
use braid_nbd::export::Allocation;
use std::sync::Arc;

/// The holes of one volume or snapshot: what was never written reads as zeros. Its map knows, and no disk is asked.
pub struct VolumeHoles(pub Arc<DeviceLayout>);

impl Allocation for VolumeHoles {
    fn extents(&self, offset: u64, len: u64, extent: &mut dyn FnMut(u64, u32) -> bool) {
        // A client may have connected when the volume was larger.
        let inside = self.0.size_bytes().saturating_sub(offset).min(len);
        if inside == 0 {
            extent(len, 0);
            return;
        }
        let mut probe = |_, _, len| allocation::Extent { len, hole: false };
        allocation::extents(&self.0, offset, inside, &mut probe, &mut |run| {
            extent(run.len, if run.hole { state::HOLE | state::ZERO } else { 0 })
        });
    }
}
