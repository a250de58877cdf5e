//! Arrays of a pool of which some stand on volumes and others do not, or less deep.
//!
//! An array is started as deep as its disks are. One whose volumes were all replaced by disks is at the bottom at the next start, and
//! other members of its pool may stand on volumes still. That pool served before, and it serves again: such an array is started anew.

use super::super::Control;
use super::super::assemble::How;
use super::Base;
use super::find::Here;
use braid_api::{ErrorDetail, Kind};
use braid_engine::{DeviceId, lifecycle};
use braid_ring::stack_level_of;
use std::sync::Arc;
use uuid::Uuid;

impl Control {
    /// Starts arrays among the members of a pool anew that are of a lower tier than others, as a pool is of one tier. Nobody uses them
    /// yet, and the caller has claimed them.
    ///
    /// # Errors
    /// One of them cannot be started again.
    pub(super) async fn raise_to_highest(self: &Arc<Self>, here: &mut [Here]) -> Result<(), ErrorDetail> {
        let highest = here.iter().filter_map(|member| member.device).map(stack_level_of).max().unwrap_or(0);
        for member in here {
            if let (Base::Array(uuid), Some(device)) = (&member.base, member.device)
                && stack_level_of(device) < highest
            {
                self.write().least_tiers.insert(*uuid, highest);
                member.device = Some(self.start_anew(*uuid).await?);
            }
        }
        Ok(())
    }

    /// Stops an array in order and starts it with the same disks. Returns the device that it is then.
    async fn start_anew(self: &Arc<Self>, uuid: Uuid) -> Result<DeviceId, ErrorDetail> {
        let name = self.name_of(&Base::Array(uuid));
        let lost = |why: String| {
            let message = format!("{name} could not be started as deep as other members of the pool: {why}");
            ErrorDetail::new(Kind::Inactive, message)
                .with("array", uuid)
                .remedy(format!("braid array assemble {uuid}, then: braid array assemble"))
        };
        let Some(stopped) = self.deactivate(uuid, true).await else { return Err(lost("it is not active".to_owned())) };
        drop(stopped.entry);
        let leaves: Vec<_> = stopped.disks.iter().map(|disk| disk.leaf).collect();
        let scan = lifecycle::scan(&self.meta, &leaves).await;
        let Some(found) = scan.arrays.into_iter().find(|array| array.uuid == uuid) else {
            self.close_disks(stopped.disks).await;
            return Err(lost("a disk of it hangs, or has failed".to_owned()));
        };
        // Whom it went on without a moment ago it goes on without now.
        let how = How { force: false, degraded: true };
        if let Err((error, disks)) = self.start_found(&found, stopped.disks, how).await {
            self.close_disks(disks).await;
            return Err(lost(error.message));
        }
        let device = self.read().arrays.get(&uuid).and_then(|entry| Some(entry.active()?.device));
        device.ok_or_else(|| lost("it was stopped meanwhile".to_owned()))
    }
}
