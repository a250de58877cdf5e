//! Pools that wait for members: looked for again, and started without those that are lost.

use super::super::Control;
use super::super::tables::Tables;
use super::returns::away_of;
use super::{Condition, PoolEntry};
use braid_api::{ErrorDetail, Kind, Pool, StartPool};
use std::sync::Arc;
use uuid::Uuid;

impl Control {
    /// Starts a pool that waits, where all of its members are there. By force it goes on without those that are not: the labels say so first, and
    /// what of its volumes may be on them reads as errors. One that goes on without members takes those back that are here again.
    /// It may be told to give up what stands in pages of tables that cannot be read, and that a crash left something for.
    ///
    /// # Errors
    /// It serves already, members are missing, or it cannot be opened.
    pub async fn start_pool(self: &Arc<Self>, name: &str, ask: StartPool) -> Result<Pool, ErrorDetail> {
        self.is_open()?;
        let _one_at_a_time = self.assembling.lock().await;
        let (uuid, serves) = {
            let tables = self.read();
            let entry = tables.pool(name)?;
            if entry.served().is_some() && away_of(entry).is_empty() {
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
        let (here, troubles) = self.here_of(uuid).await;
        if !here.is_empty() {
            self.judge_pool(uuid, here, &troubles, &ask).await;
        }
        if let Some(error) = self.why_idle(uuid) {
            return Err(error);
        }
        self.pool(&uuid.to_string()).await
    }

    /// Why a pool does not serve, if so.
    pub(super) fn why_idle(&self, uuid: Uuid) -> Option<ErrorDetail> {
        let tables = self.read();
        let PoolEntry { name, condition: Condition::Idle(idle), .. } = tables.pools.get(&uuid)? else { return None };
        let kind = if idle.state == braid_api::PoolState::Incomplete { Kind::Incomplete } else { Kind::Inactive };
        let why = idle.attention.join("; ");
        let message = format!("pool {name} is {}: {why}", idle.state.word());
        Some(ErrorDetail::new(kind, message).with("pool", name).remedy(idle.remedy.clone()))
    }

    /// Tells of members that a pool was opened without, and of those that are back.
    pub(super) fn tell_absent(&self, pool: &str, absent: u128, returned: &[u8]) {
        for number in (0..128u8).filter(|number| absent >> number & 1 == 1) {
            let message =
                format!("pool {pool} goes on without member {number}: what its volumes may have there reads as errors");
            self.events().warning("pool_member_absent", message, &[("pool", pool)]);
        }
        for number in returned {
            let message = format!("member {number} of pool {pool} is back");
            self.events().info("pool_member_back", message, &[("pool", pool)]);
        }
    }
}

impl Tables {
    /// An array that is there and being changed, and that was a member of a pool when that was seen last.
    fn changing_array_of(&self, pool: Uuid) -> Option<String> {
        let seen = self.last_seen_of(pool);
        let was = |name: &str| seen.values().any(|seen| seen.strip_prefix("array ") == Some(name));
        let busy = self.arrays.values().filter(|array| self.busy.contains_key(&array.uuid) && array.active().is_some());
        busy.map(|array| array.name.clone()).find(|name| was(name))
    }
}
