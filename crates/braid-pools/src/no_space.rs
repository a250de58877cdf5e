//! Pools whose own writes find no space, as the file system of a member's file is full. This is reported, and a pool
//! that could not be opened for this reason is opened again later.

use crate::PoolManager;
use braid_api::{ErrorDetail, Kind, StartPool};
use braid_engine::pool::{OpenError, Pool};
use braid_engine::{ErrorKind, PoolNext};
use braid_inventory::{MemberBacking, MemberPart, PoolCondition, PoolEntry, PoolHandle, ServedPool, SpaceShortage};
use braid_tasks as tasks;
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// Interval between two attempts to open a pool, in ticks of the monitor: the first one, and the maximum. It doubles
/// with each attempt.
const LOOKS_FIRST: u32 = 5;

const LOOKS_MAX: u32 = 40;

/// A member below which there is no space.
pub(crate) struct FullMember {
    /// What to examine: the path of the member's file; empty if it is not a file of this machine.
    pub(crate) path: String,
    /// One sentence.
    pub(crate) message: String,
}

/// Pools that could not be opened for lack of space: ticks since the last attempt, and the interval in ticks.
pub type OpenRetries = BTreeMap<Uuid, (u32, u32)>;

/// Returns the members below which there is no space.
pub(crate) fn full_members(served: &ServedPool, shortage: SpaceShortage) -> Vec<FullMember> {
    let lacks = |part: &&MemberPart| shortage.members >> part.label.member & 1 == 1;
    let means = match shortage.commits {
        true => "what is flushed gets errors (ENOSPC) until there is some",
        false => {
            "its tables cannot be brought up to date until there is some, and it goes on without as long as it can"
        }
    };
    let full = |part: &MemberPart| {
        let (path, what) = match &part.backing {
            MemberBacking::Disk(disk) => match file_of(part) {
                Some(path) => (path.clone(), format!("on the file system of {path}")),
                None => (String::new(), format!("below {}", disk.name)),
            },
            MemberBacking::Array(_) => (String::new(), "below its array".to_owned()),
        };
        let message = format!("member {}: there is no space {what}: {means}", part.label.member);
        FullMember { path, message }
    };
    served.parts.iter().filter(lacks).map(full).collect()
}

/// Returns the path of a member that is a file.
fn file_of(part: &MemberPart) -> Option<String> {
    let MemberBacking::Disk(disk) = &part.backing else { return None };
    let path = disk.disk.spec().path().filter(|_| !disk.disk.is_block_device())?;
    Some(path.display().to_string())
}

/// Returns the remedy for a lack of space. `path`: see [`FullMember::path`].
fn remedy(path: &str) -> String {
    let look = if path.is_empty() { "df -h".to_owned() } else { format!("df -h {path}") };
    format!("make room there ({look})")
}

/// Returns the error for a pool that cannot be opened for lack of space; [`None`] for any other reason.
pub(crate) fn of_open(pool: &str, error: &OpenError, parts: &[MemberPart]) -> Option<ErrorDetail> {
    let OpenError::Io { member, error, .. } = error else { return None };
    if error.kind != ErrorKind::NoSpace {
        return None;
    }
    let part = parts.iter().find(|part| part.label.member == *member);
    let path = part.and_then(file_of).unwrap_or_default();
    let place = if path.is_empty() { "below it".to_owned() } else { format!("on the file system of {path}") };
    let message =
        format!("pool {pool} cannot be opened: there is no space {place} for what a start writes to member {member}");
    let remedy = format!("{}; nothing is lost, and it is retried automatically", remedy(&path));
    Some(ErrorDetail::new(Kind::NoSpace, message).with("pool", pool).remedy(remedy))
}

impl PoolManager {
    /// Returns the reason why a call to a pool could not be made durable.
    pub(crate) async fn why_not_committed(&self, pool: &PoolHandle) -> ErrorDetail {
        let look = |pool: &mut Pool| (PoolNext::Done, pool.has_failed());
        if matches!(self.ring.pool_call(pool.key, pool.home, look).await, Ok(false)) {
            let message = format!(
                "there is no space below pool {} for what it writes itself, and so nothing can be made durable in it now",
                pool.name
            );
            return ErrorDetail::new(Kind::NoSpace, message).with("pool", &pool.name).remedy(format!(
                "make room on the file system that `braid pool show {}` names, then look whether it was done: what was done is durable then by itself",
                pool.name
            ));
        }
        ErrorDetail::new(
            Kind::DiskError,
            format!("a member of pool {} has failed, and nothing can be made durable in it", pool.name),
        )
        .with("pool", &pool.name)
        .remedy("look at its disks and at the kernel's log (dmesg); then restart the daemon, which opens the pool anew")
    }

    /// Reports, once each, that the own writes of a pool that serves find no space, and that they find space again.
    pub(crate) fn report_shortage(
        &self,
        pool: &str,
        (before, now): (SpaceShortage, SpaceShortage),
        full: &[FullMember],
    ) {
        let context = [("pool", pool)];
        match full {
            [] if before.is_any() && !now.is_any() && !now.failed => {
                let message = format!("what pool {pool} writes itself finds space again");
                self.inventory.events().info("pool_finds_space", message, &context);
            }
            [first, ..] if !before.is_any() => {
                let message = format!("pool {pool}: {}", first.message);
                self.inventory.events().error("pool_lacks_space", message, &context);
            }
            _ => {}
        }
    }

    /// Returns true if a pool could not be opened for lack of space.
    pub(crate) fn is_starved(&self, uuid: Uuid) -> bool {
        self.inventory.read().pools.get(&uuid).is_some_and(lacks_space)
    }

    /// Tries to open pools that could not be opened for lack of space, at growing intervals.
    pub fn retry_full_pools(self: &Arc<Self>, retries: &mut OpenRetries) {
        let waiting: Vec<Uuid> =
            self.inventory.read().pools.values().filter(|entry| lacks_space(entry)).map(|e| e.uuid).collect();
        retries.retain(|uuid, _| waiting.contains(uuid));
        for uuid in waiting {
            let (looks, wait) = retries.entry(uuid).or_insert((0, LOOKS_FIRST));
            *looks += 1;
            if looks < wait {
                continue;
            }
            (*looks, *wait) = (0, LOOKS_MAX.min(*wait * 2));
            let manager = Arc::clone(self);
            tasks::spawn(async move {
                let _one_at_a_time = manager.arrays.scan_lock.lock().await;
                // It may have been started or deleted meanwhile.
                if !manager.is_starved(uuid) || manager.inventory.refuse_while_stopping_or_upgrading().is_err() {
                    return;
                }
                let (present, disk_errors) = manager.find_members(uuid).await;
                if !present.is_empty() {
                    manager.evaluate_pool(uuid, present, &disk_errors, &StartPool::default()).await;
                }
            });
        }
    }
}

fn lacks_space(entry: &PoolEntry) -> bool {
    matches!(&entry.condition, PoolCondition::Idle(idle) if idle.lacks_space)
}
