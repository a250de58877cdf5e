//! An array that grows while it serves.
//!
//! Labels and bitmaps first: see [`crate::lifecycle`]. Then every shard is frozen for the moment that it takes to make a
//! longer map of the regions, as only their home may change them and nobody does meanwhile. Requests under way go on with
//! the layout and the map that they were planned with, and what is on its way to the home is begun anew with the longer map.

use std::sync::Arc;

use super::{Keeper, KeeperIo, Note, Ordered};
use crate::lifecycle::{GrowRequest, LifecycleError};
use crate::planted::{Planted, planted};
use crate::shard::RegionCall;

impl Keeper {
    /// Takes up what members have gained, and further disks.
    pub(super) async fn grow<I: KeeperIo>(&mut self, io: &I, request: GrowRequest) -> Ordered {
        if self.regions.unsettled.count() > 0 {
            return Err(LifecycleError::NoGrowth {
                leaf: None,
                reason: "what a crash left unequal is still being made equal".to_owned(),
                remedy: "wait until that is done".to_owned(),
            });
        }
        for (leaf, _) in &request.newcomers {
            self.is_calm(io, *leaf).await?;
        }
        let growth = match self.array.grow(io, &request).await {
            Ok(growth) => growth,
            Err(error) => {
                // Refused, or a member was lost on the way.
                if self.has_changed() || self.is_frozen() || matches!(error, LifecycleError::Beyond { .. }) {
                    self.after_labels(io, Err(error.clone())).await;
                }
                return Err(error);
            }
        };
        let device = self.options.device;
        if !planted(Planted::GrownUnfrozen) {
            io.freeze(device).await;
        }
        self.regions = Arc::new(self.regions.grown(growth.after_bytes()));
        io.grown(device, &self.regions);
        // They are of the shorter one: who comes back gets whole regions.
        self.forget_absences();
        self.spread_bits |= !request.newcomers.is_empty();
        self.publish_now(io);
        io.note(device, Note::Grown(growth.before_bytes, growth.after_bytes()));
        self.use_spares(io).await;
        Ok(())
    }

    /// Gives members with which the array has grown the bits that were set before: whatever the old members know is not lost
    /// without these meanwhile, as no zone is without one of those that hold it.
    pub(super) async fn spread_bits<I: KeeperIo>(&mut self, io: &I) {
        let layout = self.layout(io);
        io.publish(self.options.device, Some(layout)).await;
        self.posted = 0;
        io.call(self.options.device, self.options.home, RegionCall::Rewrite).await;
        self.spread_bits = false;
    }
}
