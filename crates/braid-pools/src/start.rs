//! Starts pools that wait for members: looks for the members again, or starts without the missing ones.

use crate::PoolManager;
use braid_api::{ErrorDetail, Kind, Pool, StartPool};
use braid_inventory::{PoolCondition, PoolEntry, missing_of};
use std::sync::Arc;
use uuid::Uuid;

impl PoolManager {
    /// Starts a waiting pool if all of its members are present. With `force` the pool goes on without missing members:
    /// the labels say so first, and blocks of its volumes that may be on them read as errors. A pool that serves
    /// without some members takes back those that are present again. With `give_up`, the pool gives up the contents of
    /// table pages that cannot be read but for which a crash has left changes.
    ///
    /// # Errors
    /// The pool serves already, members are missing, or it cannot be opened.
    pub async fn start_pool(self: &Arc<Self>, name: &str, ask: StartPool) -> Result<Pool, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let _one_at_a_time = self.arrays.scan_lock.lock().await;
        let (uuid, serves) = {
            let tables = self.inventory.read();
            let entry = tables.pool(name)?;
            if entry.served().is_some() && missing_of(entry).is_empty() {
                let message = format!("pool {} is active already", entry.name);
                return Err(ErrorDetail::new(Kind::InUse, message)
                    .with("pool", &entry.name)
                    .remedy(format!("braid pool show {}", entry.name)));
            }
            let serves = entry.served().is_some();
            if ask.force
                && !serves
                && let Some(array) = tables.changing_array_of(entry.uuid)
            {
                let message = format!("array {array} may be a member of pool {}, and is being changed", entry.name);
                return Err(ErrorDetail::new(Kind::InUse, message)
                    .with("pool", &entry.name)
                    .with("array", &array)
                    .remedy(
                        "wait until that has ended (braid job list); without it what only it has could not be read",
                    ));
            }
            (entry.uuid, serves)
        };
        if serves {
            return self.take_members_back(uuid).await;
        }
        let (present, disk_errors) = self.find_members(uuid).await;
        if !present.is_empty() {
            self.evaluate_pool(uuid, present, &disk_errors, &ask).await;
        }
        if let Some(error) = self.why_idle(uuid) {
            return Err(error);
        }
        self.pool(&uuid.to_string()).await
    }

    /// Returns the reason why a pool does not serve; [`None`] if it serves.
    pub(crate) fn why_idle(&self, uuid: Uuid) -> Option<ErrorDetail> {
        let tables = self.inventory.read();
        let PoolEntry { name, condition: PoolCondition::Idle(idle), .. } = tables.pools.get(&uuid)? else {
            return None;
        };
        let kind = if idle.state == braid_api::PoolState::Incomplete { Kind::Incomplete } else { Kind::Inactive };
        let why = idle.attention.join("; ");
        let message = format!("pool {name} is {}: {why}", idle.state.word());
        Some(ErrorDetail::new(kind, message).with("pool", name).remedy(idle.remedy.clone()))
    }

    /// Reports the missing members that a pool was opened without, and those that have returned.
    pub(crate) fn report_missing(&self, pool: &str, absent: u128, returned: &[u8]) {
        for number in (0..128u8).filter(|number| absent >> number & 1 == 1) {
            let message =
                format!("pool {pool} goes on without member {number}: what its volumes may have there reads as errors");
            self.inventory.events().warning("pool_member_missing", message, &[("pool", pool)]);
        }
        for number in returned {
            let message = format!("member {number} of pool {pool} is back");
            self.inventory.events().info("pool_member_rejoined", message, &[("pool", pool)]);
        }
    }
}
