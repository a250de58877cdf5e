//! Grows an array while it serves.
//!
//! Labels and bitmaps come first: see [`crate::lifecycle`]. Then every shard is frozen while the region map is replaced
//! by a longer one: only the home shard may change the map, and no shard does so while frozen. Requests in flight keep
//! the layout and the map that they were planned with; messages to the home shard are sent again with the longer map.

use std::sync::Arc;

use braid_engine::RegionCall;

use super::{OrderResult, Reconciler, ReconcilerEvent, ReconcilerIo};
use crate::lifecycle::{GrowRequest, LifecycleError};

impl Reconciler {
    /// Adds the space that members have gained, and further disks.
    pub(super) async fn grow<I: ReconcilerIo>(&mut self, io: &I, request: GrowRequest) -> OrderResult {
        if self.regions.unequal.count() > 0 {
            return Err(LifecycleError::NoGrowth {
                leaf: None,
                reason: "what a crash left unequal is still being made equal".to_owned(),
                remedy: "wait until that is done".to_owned(),
            });
        }
        for (leaf, _) in &request.new_disks {
            self.check_idle(io, *leaf).await?;
        }
        let growth = match self.array.grow(io, &request).await {
            Ok(growth) => growth,
            Err(error) => {
                // The growth was refused, or a member failed meanwhile.
                if self.has_changed() || self.is_frozen() || matches!(error, LifecycleError::BeyondTolerance { .. }) {
                    self.after_labels(io, Err(error.clone())).await;
                }
                return Err(error);
            }
        };
        let device = self.options.device;
        io.freeze(device).await;
        self.regions = Arc::new(self.regions.grown(growth.after_bytes()));
        io.grown(device, &self.regions);
        // The dirty logs belong to the shorter map: a returning member gets whole regions.
        self.forget_dirty_logs();
        self.spread_bitmap |= !request.new_disks.is_empty();
        self.publish_now(io);
        io.report(device, ReconcilerEvent::Grown(growth.before_bytes, growth.after_bytes()));
        self.use_spares(io).await;
        Ok(())
    }

    /// Writes the existing bitmap to the members that were added. Until then the bits are not at risk: every zone has
    /// an old member that holds them.
    pub(super) async fn spread_bitmap<I: ReconcilerIo>(&mut self, io: &I) {
        let layout = self.layout(io);
        io.publish(self.options.device, Some(layout)).await;
        self.posted = 0;
        io.call(self.options.device, self.options.home, RegionCall::Rewrite).await;
        self.spread_bitmap = false;
    }
}
