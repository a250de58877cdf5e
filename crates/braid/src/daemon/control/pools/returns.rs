//! Members that are there again while their pool goes on without them: said as soon as they are seen, and taken back by opening the pool anew.
//!
//! Only a start can tell whether such a member has all that counted, as it reads all rings. So the pool is closed in order and opened again,
//! which nobody may be in the middle of using: exports without clients are silent for as long as that takes, clients and arrays are in the
//! way. Where the member does not fit the pool goes on as before.

use super::super::tables::{Serving, Tables};
use super::super::{Control, counted};
use super::close::End;
use super::find::Here;
use super::lost::in_words;
use super::{ANEW, Base, Condition, Idle, Part, PoolEntry, Reach, Served};
use crate::daemon::state::SavedPoolDisk;
use braid_api::{ErrorDetail, Kind, Pool, PoolState, StartPool};
use braid_format::pool::{PoolMember, PoolMemberState};
use braid_host::host::Entry;
use braid_ring::DiskSpec;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use uuid::Uuid;

/// Longest that looking at paths may take; what does not answer by then is looked at again later.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Where a member that is away may appear, and what was there at the last look. Only the path of a disk is looked at.
pub type Appearances = BTreeMap<(Uuid, u8), Option<Entry>>;

impl Control {
    /// Closes a pool that goes on without members, and opens it again with those of them that are here. The caller has the lock of assembling.
    ///
    /// # Errors
    /// None of them is here; clients or arrays use its volumes, or a disk hangs; it does not fit: then the pool goes on without it as before.
    pub(super) async fn take_members_back(self: &Arc<Self>, uuid: Uuid) -> Result<Pool, ErrorDetail> {
        let _claim = self.claim_pool(&uuid.to_string(), ANEW).await?;
        let pool = self.reach(&uuid.to_string())?;
        let (here, _) = self.here_of(uuid).await;
        let away = self.read().pools.get(&uuid).map(away_of).unwrap_or_default();
        let back: Vec<u8> = away.iter().filter(|(_, one)| here.iter().any(|h| h.is(one))).map(|(n, _)| *n).collect();
        for one in here.iter().filter(|one| back.contains(&one.label.member)) {
            self.note_returned(uuid, one);
        }
        self.close_here(here).await;
        if back.is_empty() {
            let numbers: Vec<String> = away.iter().map(|(number, _)| format!("member {number}")).collect();
            let message =
                format!("pool {} is active without {}, and none of that is here", pool.name, in_words(&numbers));
            return Err(ErrorDetail::new(Kind::Incomplete, message)
                .with("pool", &pool.name)
                .remedy("attach it, or name the disk: braid array assemble --disk DISK"));
        }
        self.refuse_held_of(uuid, &pool.name, ANEW)?;
        self.refuse_trouble_of(&pool)?;
        self.silence_unused(&pool).await?;
        if let Err(error) = self.let_go_of_volumes(&pool).await {
            self.restore_pool_exports(uuid).await;
            return Err(error);
        }
        let closed = self.close_pool(uuid, End::Anew).await?;
        if let Err(error) = closed.written {
            // As after a kill: whoever opens it finds in shared memory what was not written.
            tracing::warn!("pool {} was not closed in order: {}", pool.name, error.message);
        }
        self.drop_parts(closed.parts).await;
        let (here, troubles) = self.here_of(uuid).await;
        self.judge_claimed(uuid, here, &troubles, &StartPool::default()).await;
        let Some(why) = self.why_idle(uuid) else { return self.pool(&uuid.to_string()).await };
        let (here, troubles) = self.here_of(uuid).await;
        let (back, here): (Vec<Here>, Vec<Here>) =
            here.into_iter().partition(|one| away.iter().any(|(_, member)| one.is(member)));
        let names: Vec<String> = back.iter().map(|one| self.name_of(&one.base)).collect();
        self.close_here(back).await;
        if !here.is_empty() {
            self.judge_claimed(uuid, here, &troubles, &StartPool::default()).await;
        }
        if self.why_idle(uuid).is_some() {
            return Err(why);
        }
        let message = format!(
            "pool {} does not open with {}, and goes on without as before: {}",
            pool.name,
            in_words(&names),
            why.message
        );
        Err(ErrorDetail::new(why.kind, message).with("pool", &pool.name).remedy(format!(
            "detach it; if what is on it is not needed: braid pool show {} says how to give that member up",
            pool.name
        )))
    }

    /// What has failed or hangs might not end, and what keeps nothing would be empty.
    fn refuse_trouble_of(&self, pool: &Reach) -> Result<(), ErrorDetail> {
        let tables = self.read();
        let served = tables.pools.get(&pool.uuid).and_then(PoolEntry::served);
        let failed = served.is_some_and(|served| served.failed.load(Ordering::Relaxed));
        let hangs = served.is_some_and(|served| !served.releasing.is_empty());
        // It could be closed, and not opened again before there is some.
        if !failed && served.is_some_and(|served| served.vitals.lacking.is_any()) {
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

    /// Silences the exports of a pool's volumes. Whoever begins one later sees the claim.
    ///
    /// # Errors
    /// One of them has clients; then none is silenced.
    async fn silence_unused(&self, pool: &Reach) -> Result<(), ErrorDetail> {
        let _one_at_a_time = self.listening.lock().await;
        let exports: Vec<(String, u64)> = {
            let tables = self.read();
            let of = tables.exports.values().filter(|export| export.saved.pool == Some(pool.uuid));
            let clients = |serving: &Serving| match serving {
                Serving::Listening(export) => u64::from(export.connections()),
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
                in_words(&used)
            );
            return Err(ErrorDetail::new(Kind::InUse, message).with("pool", &pool.name).with("export", &used[0]).remedy(
                "disconnect them and try again: exports stay, and are silent for a moment; or restart the daemon, to which clients come back",
            ));
        }
        exports.iter().for_each(|(name, _)| self.silence(name));
        Ok(())
    }

    /// Serves none of a pool's volumes any more.
    ///
    /// # Errors
    /// A disk hangs with requests to one.
    async fn let_go_of_volumes(self: &Arc<Self>, pool: &Reach) -> Result<(), ErrorDetail> {
        let _one_at_a_time = self.work_soon(pool).await?;
        let volumes = match self.write().pools.get_mut(&pool.uuid).map(|entry| &mut entry.condition) {
            Some(Condition::Serves(served)) => std::mem::take(&mut served.volumes),
            _ => BTreeMap::new(),
        };
        for (volume, known) in volumes {
            self.let_go_of_volume(pool, volume, known).await;
        }
        self.refuse_trouble_of(pool)
    }

    /// A member is there again that a pool goes on without: it is listed, told once, and looked for there from now on.
    pub(super) fn note_returned(&self, pool: Uuid, one: &Here) {
        let (what, number) = (self.name_of(&one.base), one.label.member);
        let name = {
            let mut tables = self.write();
            let Some(entry) = tables.pools.get_mut(&pool) else { return };
            let name = entry.name.clone();
            let Some(served) = entry.served_mut() else { return };
            if served.returned.insert(number, what.clone()).is_some_and(|before| before == what) {
                return;
            }
            if let Base::Disk(disk) = &one.base {
                tables.pool_disks.retain(|_, saved| saved.pool != pool || saved.member != number);
                let saved = SavedPoolDisk { disk: disk.name.clone(), pool, pool_name: name.clone(), member: number };
                tables.pool_disks.insert(disk.name.clone(), saved);
            }
            name
        };
        self.save_or_warn();
        let message = format!(
            "{what} is member {number} of pool {name}, which goes on without it: braid pool start {name} takes it back, and so does a restart of the \
             daemon, if what is on it fits"
        );
        self.events().warning("pool_member_returns", message, &[("pool", &name)]);
    }

    /// Looks once for members that pools go on without: who was not there at the look before and is now is looked at.
    pub(in super::super) async fn watch_returning(self: &Arc<Self>, before: &mut Appearances) {
        let mut away = self.read().away_of_pools();
        if away.is_empty() {
            return before.clear();
        }
        // A path may lie on a file system that does not answer.
        let looked = tokio::task::spawn_blocking(move || {
            away.drain(..).map(|(of, spec)| (of, spec.path().and_then(Entry::of))).collect::<Appearances>()
        });
        let Ok(Ok(now)) = tokio::time::timeout(LOOK_MAX, looked).await else { return };
        let mut appeared: Vec<Uuid> = Vec::new();
        for (of, entry) in &now {
            if entry.is_some() && before.get(of) != Some(entry) && !appeared.contains(&of.0) {
                appeared.push(of.0);
            } else if entry.is_none()
                && let Some(served) = self.write().pools.get_mut(&of.0).and_then(PoolEntry::served_mut)
            {
                served.returned.remove(&of.1);
            }
        }
        *before = now;
        for pool in appeared {
            let control = Arc::clone(self);
            tokio::spawn(async move {
                let _one_at_a_time = control.assembling.lock().await;
                let (here, troubles) = control.here_of(pool).await;
                if !here.is_empty() && control.is_open().is_ok() {
                    control.judge_pool(pool, here, &troubles, &StartPool::default()).await;
                }
            });
        }
    }
}

impl Tables {
    /// Members that pools which serve go on without, and the disks where they were seen last.
    fn away_of_pools(&self) -> Vec<((Uuid, u8), DiskSpec)> {
        let serving = self.pools.values().filter(|entry| entry.served().is_some());
        let away = serving.flat_map(|entry| away_of(entry).into_iter().map(|(number, _)| (entry.uuid, number)));
        let seen = |of: (Uuid, u8)| {
            let saved = self.pool_disks.values().find(|saved| (saved.pool, saved.member) == of)?;
            Some((of, DiskSpec::parse(&saved.disk).ok()?))
        };
        away.filter_map(seen).collect()
    }
}

/// Members that a pool goes on without, and that would be taken back.
pub(super) fn away_of(entry: &PoolEntry) -> Vec<(u8, PoolMember)> {
    let Some(label) = &entry.label else { return Vec::new() };
    let away = label
        .numbered()
        .filter(|(number, member)| label.missing() >> number & 1 == 1 && member.state != PoolMemberState::Abandoned);
    away.map(|(number, member)| (number, *member)).collect()
}

/// How a pool is listed between its end and its next start: its members are nobody else's.
pub(super) fn between(served: &Served) -> Idle {
    let disk = |part: &Part| match &part.base {
        Base::Disk(disk) => Some((part.label.member, format!("disk {}", disk.name))),
        Base::Array(_) => None,
    };
    let array = |part: &Part| match part.base {
        Base::Array(uuid) => Some((uuid, part.label.member)),
        Base::Disk(_) => None,
    };
    Idle {
        state: PoolState::Incomplete,
        attention: vec!["it is being opened anew, with a member that is back".to_owned()],
        remedy: "wait for a moment".to_owned(),
        present: served.parts.iter().filter_map(disk).collect(),
        arrays: served.parts.iter().filter_map(array).collect(),
        lacks_space: false,
    }
}
