//! Missing members that return while their pool serves without them: reported as soon as they are found, and taken back
//! by reopening the pool.
//!
//! Only a start, which reads all rings, can tell whether such a member is current. So the pool is closed cleanly and
//! reopened, which is not possible while it is in use: exports without clients are silent meanwhile, but clients and
//! arrays prevent it. If the member does not fit, the pool goes on as before.

use crate::PoolManager;
use crate::abandoned::name_list;
use crate::close::CloseReason;
use crate::find::FoundMember;
use braid_api::{ErrorDetail, Kind, Pool, StartPool};
use braid_host::host::FileSystemEntry;
use braid_inventory::state::SavedPoolDisk;
use braid_inventory::{
    ExportCondition, MemberBacking, PoolCondition, PoolEntry, PoolHandle, REOPENED, counted, missing_of,
};
use braid_tasks as tasks;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use uuid::Uuid;

/// Maximum duration of one look at paths; a look that takes longer is repeated later.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Where a missing member may reappear, and what was there at the last look. Only the path of a disk is checked.
pub type ReappearanceWatch = BTreeMap<(Uuid, u8), Option<FileSystemEntry>>;

impl PoolManager {
    /// Closes a pool that serves without some members, and reopens it with those of them that are present. The caller
    /// has the `assembling` lock.
    ///
    /// # Errors
    /// None of them is present; clients or arrays use the pool's volumes, or a disk hangs; a member does not fit: then
    /// the pool goes on without it as before.
    pub(crate) async fn take_members_back(self: &Arc<Self>, uuid: Uuid) -> Result<Pool, ErrorDetail> {
        let _claim = self.claim_pool(&uuid.to_string(), REOPENED).await?;
        let pool = self.serving_pool(&uuid.to_string())?;
        let (present, _) = self.find_members(uuid).await;
        let missing = self.inventory.read().pools.get(&uuid).map(missing_of).unwrap_or_default();
        let back: Vec<u8> =
            missing.iter().filter(|(_, one)| present.iter().any(|h| h.is(one))).map(|(n, _)| *n).collect();
        for one in present.iter().filter(|one| back.contains(&one.label.member)) {
            self.note_returned(uuid, one);
        }
        self.close_found(present).await;
        if back.is_empty() {
            let numbers: Vec<String> = missing.iter().map(|(number, _)| format!("member {number}")).collect();
            let message =
                format!("pool {} is active without {}, and none of that is here", pool.name, name_list(&numbers));
            return Err(ErrorDetail::new(Kind::Incomplete, message)
                .with("pool", &pool.name)
                .remedy("attach it, or name the disk: braid array assemble --disk DISK"));
        }
        self.refuse_held_of(uuid, &pool.name, REOPENED)?;
        self.refuse_unhealthy(&pool)?;
        self.silence_unused(&pool).await?;
        if let Err(error) = self.stop_serving_volumes(&pool).await {
            self.restore_pool_exports(uuid).await;
            return Err(error);
        }
        let closed = self.close_pool(uuid, CloseReason::Reopened).await?;
        if let Err(error) = closed.written {
            // As after a kill: the next start finds in shared memory what was not written.
            tracing::warn!("pool {} was not closed cleanly: {}", pool.name, error.message);
        }
        self.drop_parts(closed.parts).await;
        let (present, disk_errors) = self.find_members(uuid).await;
        self.evaluate_claimed(uuid, present, &disk_errors, &StartPool::default()).await;
        let Some(why) = self.why_idle(uuid) else { return self.pool(&uuid.to_string()).await };
        let (present, disk_errors) = self.find_members(uuid).await;
        let (back, present): (Vec<FoundMember>, Vec<FoundMember>) =
            present.into_iter().partition(|one| missing.iter().any(|(_, member)| one.is(member)));
        let names: Vec<String> = back.iter().map(|one| self.job_name(&one.backing)).collect();
        self.close_found(back).await;
        if !present.is_empty() {
            self.evaluate_claimed(uuid, present, &disk_errors, &StartPool::default()).await;
        }
        if self.why_idle(uuid).is_some() {
            return Err(why);
        }
        let message = format!(
            "pool {} does not open with {}, and goes on without as before: {}",
            pool.name,
            name_list(&names),
            why.message
        );
        Err(ErrorDetail::new(why.kind, message).with("pool", &pool.name).remedy(format!(
            "detach it; if what is on it is not needed: braid pool show {} says how to give that member up",
            pool.name
        )))
    }

    /// Refuses to reopen a pool with a failed or hanging disk, which might not close, or with a volatile one, which
    /// would be empty.
    fn refuse_unhealthy(&self, pool: &PoolHandle) -> Result<(), ErrorDetail> {
        let tables = self.inventory.read();
        let served = tables.pools.get(&pool.uuid).and_then(PoolEntry::served);
        let failed = served.is_some_and(|served| served.failed.load(Ordering::Relaxed));
        let hangs = served.is_some_and(|served| !served.releasing.is_empty());
        // The pool could be closed, but not reopened before there is space.
        if !failed && served.is_some_and(|served| served.vitals.shortage.is_any()) {
            let message =
                format!("pool {} cannot be opened anew: there is no space below for what it writes", pool.name);
            return Err(ErrorDetail::new(Kind::NoSpace, message).with("pool", &pool.name).remedy(format!(
                "make room on the file system that `braid pool show {}` names, then try again",
                pool.name
            )));
        }
        let kept = tables.pools.get(&pool.uuid).is_none_or(|entry| tables.is_pool_kept(entry));
        let what = match (failed, hangs) {
            (true, _) => "a member of it has failed a write or a flush",
            (_, true) => "a disk of it hangs with requests to what was exported before",
            _ if kept => return Ok(()),
            _ => {
                let message =
                    format!("pool {} cannot be opened anew: a member of it is memory, which would be empty", pool.name);
                return Err(ErrorDetail::new(Kind::InUse, message)
                    .with("pool", &pool.name)
                    .remedy("remove that member first (braid pool remove)"));
            }
        };
        let message = format!("pool {} cannot be opened anew: {what}", pool.name);
        Err(ErrorDetail::new(Kind::InUse, message).with("pool", &pool.name).remedy(
            "look at its disks and at the kernel's log (dmesg), then restart the daemon, which opens the pool anew",
        ))
    }

    /// Silences the exports of a pool's volumes. Exports that begin later see the claim.
    ///
    /// # Errors
    /// An export has clients; then none is silenced.
    async fn silence_unused(&self, pool: &PoolHandle) -> Result<(), ErrorDetail> {
        let _one_at_a_time = self.exports.listening_lock.lock().await;
        let exports: Vec<(String, u64)> = {
            let tables = self.inventory.read();
            let of = tables.exports.values().filter(|export| export.saved.pool == Some(pool.uuid));
            let clients = |serving: &ExportCondition| match serving {
                ExportCondition::Listening(export) => u64::from(export.connections()),
                _ => 0,
            };
            of.map(|export| (export.saved.name.clone(), clients(&export.serving))).collect()
        };
        let used: Vec<String> =
            exports.iter().filter(|(_, clients)| *clients > 0).map(|(name, _)| name.clone()).collect();
        if !used.is_empty() {
            let clients = exports.iter().map(|(_, clients)| clients).sum::<u64>();
            let message = format!(
                "volumes of pool {} are used by {}, of {}",
                pool.name,
                counted(clients as usize, "client", "clients"),
                name_list(&used)
            );
            return Err(ErrorDetail::new(Kind::InUse, message).with("pool", &pool.name).with("export", &used[0]).remedy(
                "disconnect them and try again: exports stay, and are silent for a moment; or restart the daemon, to which clients come back",
            ));
        }
        exports.iter().for_each(|(name, _)| self.exports.stop_export(name));
        Ok(())
    }

    /// Stops serving all volumes of a pool.
    ///
    /// # Errors
    /// A disk hangs with requests to a volume.
    async fn stop_serving_volumes(self: &Arc<Self>, pool: &PoolHandle) -> Result<(), ErrorDetail> {
        let _one_at_a_time = self.work_soon(pool).await?;
        let volumes = match self.inventory.write().pools.get_mut(&pool.uuid).map(|entry| &mut entry.condition) {
            Some(PoolCondition::Serves(served)) => std::mem::take(&mut served.volumes),
            _ => BTreeMap::new(),
        };
        for (volume, known) in volumes {
            self.stop_serving_volume(pool, volume, known).await;
        }
        self.refuse_unhealthy(pool)
    }

    /// Records that a missing member was found again: it is listed, reported once, and looked for there from now on.
    pub(crate) fn note_returned(&self, pool: Uuid, one: &FoundMember) {
        let (what, number) = (self.job_name(&one.backing), one.label.member);
        let name = {
            let mut tables = self.inventory.write();
            let Some(entry) = tables.pools.get_mut(&pool) else { return };
            let name = entry.name.clone();
            let Some(served) = entry.served_mut() else { return };
            if served.returned.insert(number, what.clone()).is_some_and(|before| before == what) {
                return;
            }
            if let MemberBacking::Disk(disk) = &one.backing {
                tables.pool_disks.retain(|_, saved| saved.pool != pool || saved.member != number);
                let saved = SavedPoolDisk { disk: disk.name.clone(), pool, pool_name: name.clone(), member: number };
                tables.pool_disks.insert(disk.name.clone(), saved);
            }
            name
        };
        self.inventory.save_or_warn();
        let message = format!(
            "{what} is member {number} of pool {name}, which goes on without it: braid pool start {name} takes it back, and so does a restart of the \
             daemon, if what is on it fits"
        );
        self.inventory.events().warning("pool_member_returned", message, &[("pool", &name)]);
    }

    /// Looks once for the disks of missing members. If one has appeared since the previous look, its pool is evaluated.
    pub async fn watch_returning(self: &Arc<Self>, before: &mut ReappearanceWatch) {
        let mut missing = self.inventory.read().missing_of_pools();
        if missing.is_empty() {
            return before.clear();
        }
        // A path may be on a file system that does not respond.
        let looked = tasks::blocking(move || {
            missing
                .drain(..)
                .map(|(of, spec)| (of, spec.path().and_then(FileSystemEntry::of)))
                .collect::<ReappearanceWatch>()
        });
        let Ok(Ok(now)) = tokio::time::timeout(LOOK_MAX, looked).await else { return };
        let mut appeared: Vec<Uuid> = Vec::new();
        for (of, entry) in &now {
            if entry.is_some() && before.get(of) != Some(entry) && !appeared.contains(&of.0) {
                appeared.push(of.0);
            } else if entry.is_none()
                && let Some(served) = self.inventory.write().pools.get_mut(&of.0).and_then(PoolEntry::served_mut)
            {
                served.returned.remove(&of.1);
            }
        }
        *before = now;
        for pool in appeared {
            let manager = Arc::clone(self);
            tasks::spawn(async move {
                let _one_at_a_time = manager.arrays.scan_lock.lock().await;
                let (present, disk_errors) = manager.find_members(pool).await;
                if !present.is_empty() && manager.inventory.refuse_while_stopping_or_upgrading().is_ok() {
                    manager.evaluate_pool(pool, present, &disk_errors, &StartPool::default()).await;
                }
            });
        }
    }
}
