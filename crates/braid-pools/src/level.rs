//! Arrays of a pool that are on different stack levels.
//!
//! An array is started on the stack level that its disks require. An array whose volumes were all replaced by disks is
//! on the lowest level at its next start, while other members of its pool may still stand on volumes. That pool has
//! served before and has to serve again: such an array is restarted on the higher level.

use crate::PoolManager;
use crate::find::FoundMember;
use braid_api::{ErrorDetail, Kind};
use braid_array_admin::lifecycle;
use braid_arrays::StartMode;
use braid_engine::DeviceId;
use braid_inventory::MemberBacking;
use braid_ring::stack_level_of;
use std::sync::Arc;
use uuid::Uuid;

impl PoolManager {
    /// Restarts those arrays among the members of a pool that are on a lower stack level than others, as all members of
    /// a pool are on one level. The arrays are not in use yet, and the caller has claimed them.
    ///
    /// # Errors
    /// One of them cannot be restarted.
    pub(crate) async fn raise_to_highest_level(
        self: &Arc<Self>,
        present: &mut [FoundMember],
    ) -> Result<(), ErrorDetail> {
        let highest = present.iter().filter_map(|member| member.device).map(stack_level_of).max().unwrap_or(0);
        for member in present {
            if let (MemberBacking::Array(uuid), Some(device)) = (&member.backing, member.device)
                && stack_level_of(device) < highest
            {
                self.inventory.write().stack_levels_min.insert(*uuid, highest);
                member.device = Some(self.restart_array(*uuid).await?);
            }
        }
        Ok(())
    }

    /// Stops an array cleanly and starts it with the same disks. Returns its new device.
    async fn restart_array(self: &Arc<Self>, uuid: Uuid) -> Result<DeviceId, ErrorDetail> {
        let name = self.job_name(&MemberBacking::Array(uuid));
        let lost = |why: String| {
            let message =
                format!("{name} could not be restarted on the stack level of the pool's other members: {why}");
            ErrorDetail::new(Kind::Inactive, message)
                .with("array", uuid)
                .remedy(format!("braid array assemble {uuid}, then: braid array assemble"))
        };
        let Some(stopped) = self.arrays.deactivate(uuid, true).await else {
            return Err(lost("it is not active".to_owned()));
        };
        drop(stopped.entry);
        let leaves: Vec<_> = stopped.disks.iter().map(|disk| disk.leaf).collect();
        let scan = lifecycle::scan(&self.meta, &leaves).await;
        let Some(found) = scan.arrays.into_iter().find(|array| array.uuid == uuid) else {
            self.arrays.close_disks(stopped.disks).await;
            return Err(lost("a disk of it hangs, or has failed".to_owned()));
        };
        // The array goes on without the members that it was running without before.
        let how = StartMode { force: false, degraded: true };
        if let Err((error, disks)) = self.arrays.start_found(&found, stopped.disks, how).await {
            self.arrays.close_disks(disks).await;
            return Err(lost(error.message));
        }
        let device = self.inventory.read().arrays.get(&uuid).and_then(|entry| Some(entry.active()?.device));
        device.ok_or_else(|| lost("it was stopped meanwhile".to_owned()))
    }
}
