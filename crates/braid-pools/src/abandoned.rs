//! Missing members that do not return. One command abandons such a member in the labels. Another one accepts the loss
//! of its data, and removes it from the labels.
//!
//! An abandoned member is never taken back, and blocks that volumes may have had there still read as errors. The loss
//! is accepted by `pool check --give-up`. This removes the members from the labels first, and from the placement of the
//! volumes in the pool's tables after that. After a crash between the two, the next start completes the second step
//! (`remove_stale_placement`), and no volume is in doubt because of these members. After a crash before the first step,
//! they are still abandoned.

use crate::errors::of_admin;
use crate::names::name_in_pool;
use crate::{PoolManager, labels};
use braid_api::{ErrorDetail, Kind, Pool as ShownPool};
use braid_engine::PoolNext;
use braid_engine::pool::{AdminError, EXTENT_BYTES, Pool};
use braid_format::pool::{PoolLabel, PoolMember, PoolMemberLayout, PoolMemberState};
use braid_geometry::units::format_size;
use braid_inventory::{PoolEntry, PoolHandle, counted};
use std::sync::Arc;

/// Maximum number of volumes that a sentence names.
const NAMES_MAX: usize = 8;

impl PoolManager {
    /// Returns the missing member that a user names, by its number or by where it was last seen.
    pub(crate) fn missing_named(&self, pool: &PoolHandle, given: &str) -> Option<(u8, PoolMember)> {
        let tables = self.inventory.read();
        let label = tables.pools.get(&pool.uuid)?.label.as_ref()?;
        let seen = tables.last_seen_of(pool.uuid);
        let is_meant = |number: u8| {
            let last = seen.get(&number).map(|seen| seen.strip_prefix("array ").unwrap_or(seen));
            number.to_string() == given || last == Some(given)
        };
        let mut absent = label.numbered().filter(|(number, _)| label.missing() >> number & 1 == 1);
        absent.find(|(number, _)| is_meant(*number)).map(|(number, member)| (number, *member))
    }

    /// Abandons a missing member. The caller has claimed the pool.
    ///
    /// # Errors
    /// The member is present; `force` is not set; a label cannot be written.
    pub(crate) async fn abandon_member(
        self: &Arc<Self>,
        pool: &PoolHandle,
        (number, member): (u8, PoolMember),
        force: bool,
    ) -> Result<ShownPool, ErrorDetail> {
        if member.state == PoolMemberState::Abandoned {
            return self.pool(&pool.uuid.to_string()).await;
        }
        let most = self
            .inventory
            .read()
            .pools
            .get(&pool.uuid)
            .and_then(|entry| entry.label.as_ref())
            .map(|label| data_bytes_max(label, &member));
        let most = format_size(most.unwrap_or(member.size_bytes));
        if !force {
            let doubtful = self.in_doubt_without(pool, 1 << number).await?;
            let message = format!(
                "member {number} of pool {} is missing, and may return; without it up to {most} are lost, which may be of {}",
                pool.name,
                name_list(&doubtful)
            );
            return Err(ErrorDetail::new(Kind::NeedsConfirmation, message).with("pool", &pool.name).remedy(format!(
                "attach it, and braid pool start {} takes it back; if it is lost for good: braid pool remove {0} {number} --force",
                pool.name
            )));
        }
        if let Some(what) = self.find_missing_member(pool, &member).await {
            let message = format!("member {number} of pool {} is there, as {what}", pool.name);
            return Err(ErrorDetail::new(Kind::InUse, message).with("pool", &pool.name).remedy(format!(
                "braid pool start {} takes it back if what is on it fits; else detach it first, or wipe its label (braid disk wipe)",
                pool.name
            )));
        }
        let _one_at_a_time = pool.work.lock().await;
        self.write_member_state(pool, number, PoolMemberState::Abandoned).await?;
        self.inventory.save_or_warn();
        let message = format!(
            "member {number} of pool {} is given up, and is not taken back: up to {most} that may have been there read as errors",
            pool.name
        );
        self.inventory.events().warning("pool_member_given_up", message, &[("pool", &pool.name)]);
        self.pool(&pool.uuid.to_string()).await
    }

    /// Returns the name of the disk or array that has the label of a missing member; [`None`] if a scan finds none.
    async fn find_missing_member(self: &Arc<Self>, pool: &PoolHandle, member: &PoolMember) -> Option<String> {
        let _one_at_a_time = self.arrays.scan_lock.lock().await;
        let (present, _) = self.find_members(pool.uuid).await;
        let what = present.iter().find(|one| one.is(member)).map(|one| self.job_name(&one.backing));
        self.close_found(present).await;
        what
    }

    /// Returns a bit mask of the members that are abandoned and not forgotten yet.
    pub(crate) fn abandoned_members(&self, pool: &PoolHandle) -> u128 {
        let tables = self.inventory.read();
        tables.pools.get(&pool.uuid).and_then(|entry| entry.label.as_ref()).map_or(0, PoolLabel::abandoned)
    }

    /// Returns the volumes and snapshots that may have had blocks on the members in a bit mask.
    pub(crate) async fn in_doubt_without(&self, pool: &PoolHandle, members: u128) -> Result<Vec<String>, ErrorDetail> {
        let query = move |pool: &mut Pool| {
            let state = pool.state();
            let on = |id: &u32| state.owners.get(*id).is_some_and(|owner| owner.block_members() & members != 0);
            let named = state.owners.iter().filter(|owner| !owner.name.is_empty());
            let doubtful = named.filter(|owner| state.owners.chain(owner.id).iter().any(on));
            (PoolNext::Done, doubtful.map(|owner| name_in_pool(state, owner)).collect())
        };
        self.call(pool, query).await
    }

    /// Accepts the loss of the data of all abandoned members, and removes them from the labels: volumes and snapshots
    /// that were in doubt because of them are in doubt no longer. The caller has claimed the pool. Returns the members'
    /// numbers.
    ///
    /// # Errors
    /// A volume or snapshot in doubt is exported; a label cannot be written.
    pub(crate) async fn accept_member_loss(self: &Arc<Self>, pool: &PoolHandle) -> Result<Vec<u8>, ErrorDetail> {
        let members = self.abandoned_members(pool);
        if members == 0 {
            return Ok(Vec::new());
        }
        let numbers: Vec<u8> = (0..128u8).filter(|number| members >> number & 1 == 1).collect();
        let doubtful = self.in_doubt_without(pool, members).await?;
        let in_use = || {
            let message = format!("volumes or snapshots of pool {} are exported that are in doubt", pool.name);
            ErrorDetail::new(Kind::InUse, message).with("pool", &pool.name).remedy(format!(
                "remove the exports of those that are exported of {} first (braid export list)",
                name_list(&doubtful)
            ))
        };
        // While this lock is held, no volume begins to be served.
        let _one_at_a_time = pool.work.lock().await;
        if self.call(pool, |pool| (PoolNext::Done, pool.serves_in_doubt())).await? {
            return Err(in_use());
        }
        let mut parts = self.parts_of(pool);
        let io = self.ring.devices();
        let written = labels::write(&io, &mut parts, |label| {
            numbers.iter().for_each(|number| label.members[usize::from(*number)] = None);
        });
        let written = written.await;
        self.record_parts(pool.uuid, parts);
        written.map_err(|(member, error)| labels::failed(&pool.name, "writing the label of", member, error))?;
        let accepted = self.call(pool, move |pool| match pool.accept_loss(members) {
            Err(AdminError::LogFull) => (PoolNext::AfterCommit, Ok(())),
            result => (PoolNext::Commit, result),
        });
        accepted.await?.map_err(|error| match error {
            AdminError::InUse => in_use(),
            error => of_admin(error, pool, &pool.name),
        })?;
        numbers.iter().for_each(|number| self.forget_member(pool.uuid, *number));
        self.inventory.save_or_warn();
        let message = format!(
            "what {} of pool {} had is lost: it may have been of {}",
            member_list(&numbers),
            pool.name,
            name_list(&doubtful)
        );
        self.inventory.events().warning("pool_loss_accepted", message, &[("pool", &pool.name)]);
        self.move_soon(pool);
        Ok(numbers)
    }
}

/// Removes from the placement of all owners the members that no label lists any longer: the daemon ended between the
/// two steps of [`PoolManager::accept_member_loss`].
pub(crate) fn remove_stale_placement(pool: &mut Pool, label: &PoolLabel) {
    let known = label.numbered().fold(0u128, |all, (number, _)| all | 1 << number);
    let used = (1u128 << (label.members.len() - 1)) | ((1u128 << (label.members.len() - 1)) - 1);
    if let Err(error) = pool.remove_from_placement(used & !known) {
        tracing::warn!("pool {}: volumes are placed on members that are gone: {error}", label.name);
    }
}

/// Returns the maximum number of bytes of data on a member.
fn data_bytes_max(label: &PoolLabel, member: &PoolMember) -> u64 {
    let layout = PoolMemberLayout::new(member.size_bytes, label.layout.owner_slots);
    layout.map_or(member.size_bytes, |layout| u64::from(layout.extents) * EXTENT_BYTES)
}

/// Describes the missing members of a pool that serves: number, whether it is abandoned, and a sentence.
pub(crate) fn describe_missing(entry: &PoolEntry) -> Vec<(u8, bool, String)> {
    let Some(label) = &entry.label else { return Vec::new() };
    let absent = label.numbered().filter(|(number, _)| label.missing() >> number & 1 == 1);
    let say = |(number, member): (u8, &PoolMember)| {
        let given_up = member.state == PoolMemberState::Abandoned;
        let most = format_size(data_bytes_max(label, member));
        let message = match given_up {
            false => format!(
                "member {number} is missing, and the pool goes on without it: what volumes may have there, up to {most}, reads as errors"
            ),
            true => {
                format!("member {number} was given up: what volumes may have had there, up to {most}, reads as errors")
            }
        };
        (number, given_up, message)
    };
    absent.map(say).collect()
}

pub(crate) fn name_list(names: &[String]) -> String {
    match names {
        [] => "no volume".to_owned(),
        names if names.len() <= NAMES_MAX => names.join(", "),
        names => format!(
            "{} and {}",
            names[..NAMES_MAX].join(", "),
            counted(names.len() - NAMES_MAX, "other volume or snapshot", "other volumes and snapshots")
        ),
    }
}

fn member_list(numbers: &[u8]) -> String {
    let all: Vec<String> = numbers.iter().map(u8::to_string).collect();
    format!("member{} {}", if all.len() == 1 { "" } else { "s" }, all.join(", "))
}
