//! Pools whose own writes find no space below, as the file system of a member's file is full: what is said of them, and how those that could
//! not be opened for that reason are tried again.

use super::super::Control;
use super::{Base, Condition, Part, PoolEntry, Reach, Served};
use braid_api::{ErrorDetail, Kind, StartPool};
use braid_engine::pool::{OpenError, Pool};
use braid_engine::{ErrorKind, PoolNext};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// Between two tries to open a pool, in looks of the watch: the first time, and at most.
const LOOKS_FIRST: u32 = 5;
const LOOKS_MAX: u32 = 40;

/// Where a pool's own writes find no space: its members by their bits, and whether a commit waits for that. One that has failed writes
/// nothing any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lacking {
    members: u128,
    commits: bool,
    failed: bool,
}

/// A member below which there is no space.
pub struct Full {
    /// What to look at: the member's file; empty where there is none here.
    pub path: String,
    /// One sentence.
    pub message: String,
}

/// Pools that wait to be opened for want of space: looks since the last try, and how many there are to be.
pub type Retries = BTreeMap<Uuid, (u32, u32)>;

impl Lacking {
    /// To be called on the shard that is the pool's home.
    pub fn of(pool: &Pool) -> Lacking {
        Lacking { members: pool.members_without_space(), commits: pool.is_starving(), failed: pool.has_failed() }
    }

    /// Whether there is any such member.
    pub fn is_any(self) -> bool {
        self.members != 0
    }
}

/// The members below which there is no space.
pub(super) fn full_members(served: &Served, lacking: Lacking) -> Vec<Full> {
    let lacks = |part: &&Part| lacking.members >> part.label.member & 1 == 1;
    let means = match lacking.commits {
        true => "what is flushed gets errors (ENOSPC) until there is some",
        false => {
            "its tables cannot be brought up to date until there is some, and it goes on without as long as it can"
        }
    };
    let full = |part: &Part| {
        let (path, what) = match &part.base {
            Base::Disk(disk) => match file_of(part) {
                Some(path) => (path.clone(), format!("on the file system of {path}")),
                None => (String::new(), format!("below {}", disk.name)),
            },
            Base::Array(_) => (String::new(), "below its array".to_owned()),
        };
        let message = format!("member {}: there is no space {what}: {means}", part.label.member);
        Full { path, message }
    };
    served.parts.iter().filter(lacks).map(full).collect()
}

/// The file that a member is.
fn file_of(part: &Part) -> Option<String> {
    let Base::Disk(disk) = &part.base else { return None };
    let path = disk.disk.spec().path().filter(|_| !disk.disk.is_block_device())?;
    Some(path.display().to_string())
}

/// What to do about it.
fn remedy(path: &str) -> String {
    let look = if path.is_empty() { "df -h".to_owned() } else { format!("df -h {path}") };
    format!("make room there ({look})")
}

/// Why a pool cannot be opened, where that is for want of space.
pub(super) fn of_open(pool: &str, error: &OpenError, parts: &[Part]) -> Option<ErrorDetail> {
    let OpenError::Io { member, error, .. } = error else { return None };
    if error.kind != ErrorKind::NoSpace {
        return None;
    }
    let part = parts.iter().find(|part| part.label.member == *member);
    let path = part.and_then(file_of).unwrap_or_default();
    let place = if path.is_empty() { "below it".to_owned() } else { format!("on the file system of {path}") };
    let message =
        format!("pool {pool} cannot be opened: there is no space {place} for what a start writes to member {member}");
    let remedy = format!("{}; nothing is lost, and it is tried again by itself", remedy(&path));
    Some(ErrorDetail::new(Kind::NoSpace, message).with("pool", pool).remedy(remedy))
}

impl Control {
    /// Why a call to a pool could not be made durable.
    pub(super) async fn why_not_committed(&self, pool: &Reach) -> ErrorDetail {
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

    /// Says of a pool that serves, once, that its own writes find no space, and that they find some again.
    pub(super) fn tell_lacking(&self, pool: &str, (before, now): (Lacking, Lacking), full: &[Full]) {
        let context = [("pool", pool)];
        match full {
            [] if before.is_any() && !now.is_any() && !now.failed => {
                let message = format!("what pool {pool} writes itself finds space again");
                self.events().info("pool_finds_space", message, &context);
            }
            [first, ..] if !before.is_any() => {
                let message = format!("pool {pool}: {}", first.message);
                self.events().error("pool_lacks_space", message, &context);
            }
            _ => {}
        }
    }

    /// Whether a pool could not be opened for want of space.
    pub(super) fn is_starved(&self, uuid: Uuid) -> bool {
        self.read().pools.get(&uuid).is_some_and(lacks_space)
    }

    /// Tries to open those pools that could not be opened for want of space, less and less often.
    pub(in super::super) fn retry_starved(self: &Arc<Self>, retries: &mut Retries) {
        let lacking: Vec<Uuid> =
            self.read().pools.values().filter(|entry| lacks_space(entry)).map(|e| e.uuid).collect();
        retries.retain(|uuid, _| lacking.contains(uuid));
        for uuid in lacking {
            let (looks, wait) = retries.entry(uuid).or_insert((0, LOOKS_FIRST));
            *looks += 1;
            if looks < wait {
                continue;
            }
            (*looks, *wait) = (0, LOOKS_MAX.min(*wait * 2));
            let control = Arc::clone(self);
            tokio::spawn(async move {
                let _one_at_a_time = control.assembling.lock().await;
                // It may have been started or deleted meanwhile.
                if !control.is_starved(uuid) || control.is_open().is_err() {
                    return;
                }
                let (here, troubles) = control.here_of(uuid).await;
                if !here.is_empty() {
                    control.judge_pool(uuid, here, &troubles, &StartPool::default()).await;
                }
            });
        }
    }
}

fn lacks_space(entry: &PoolEntry) -> bool {
    matches!(&entry.condition, Condition::Idle(idle) if idle.lacks_space)
}
