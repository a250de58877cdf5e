//! Starting arrays that were found.

use braid_format::{Name, Uuid};

use super::array::Array;
use super::disk::{FoundDisk, MemberDisk};
use super::erase::finish_delete;
use super::error::LifecycleError;
use super::join::{join_all, try_join_all};
use super::planted::{Planted, planted};
use super::scan::{FoundArray, Refusal, Status, scan};
use super::write::{Target, flush, write_labels};
use crate::{LeafId, MetaIo};

/// How to start an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StartOptions {
    /// A random number that names this run.
    pub session: u64,
    /// Use stale members as they are.
    pub force: bool,
}

/// What `assemble` did.
#[derive(Debug)]
pub struct Assembled {
    /// Arrays that are now started.
    pub started: Vec<Array>,
    /// Deletions that had been interrupted and are now done.
    pub deleted: Vec<(Uuid, Name)>,
    /// Arrays that were not started; their status says why.
    pub waiting: Vec<FoundArray>,
    /// Arrays where starting, or finishing the deletion, failed.
    pub failed: Vec<(FoundArray, LifecycleError)>,
    /// Every disk and what its labels mean.
    pub disks: Vec<FoundDisk>,
}

/// Finds the arrays of these disks, finishes interrupted deletions and starts what is ready. Arrays that are
/// ready and share a name are left waiting: [`start`] takes them one by one. `session` gives random numbers.
pub async fn assemble<M: MetaIo>(io: &M, leaves: &[LeafId], mut session: impl FnMut() -> u64) -> Assembled {
    enum Outcome {
        Started(Box<Array>),
        Deleted(Uuid, Name),
        Waiting(Box<FoundArray>),
        Failed(Box<FoundArray>, LifecycleError),
    }
    let found = scan(io, leaves).await;
    let ready: Vec<Uuid> = found.arrays.iter().filter(|a| a.status == Status::Ready).map(|a| a.uuid).collect();
    let work = found.arrays.into_iter().map(|array| {
        let options = StartOptions { session: session(), force: false };
        let alone = !array.same_name.iter().any(|uuid| ready.contains(uuid));
        async move {
            let done = match array.status {
                Status::Ready if alone => {
                    start(io, &array, options).await.map(|started| Outcome::Started(Box::new(started)))
                }
                Status::InterruptedDelete => {
                    finish_delete(io, &array).await.map(|()| Outcome::Deleted(array.uuid, array.name.clone()))
                }
                Status::Ready => {
                    let status = Status::Refused { reasons: vec![Refusal::SameName] };
                    return Outcome::Waiting(Box::new(FoundArray { status, ..array }));
                }
                _ => return Outcome::Waiting(Box::new(array)),
            };
            done.unwrap_or_else(|error| Outcome::Failed(Box::new(array), error))
        }
    });
    let mut result =
        Assembled { started: vec![], deleted: vec![], waiting: vec![], failed: vec![], disks: found.disks };
    for outcome in join_all(work).await {
        match outcome {
            Outcome::Started(array) => result.started.push(*array),
            Outcome::Deleted(uuid, name) => result.deleted.push((uuid, name)),
            Outcome::Waiting(array) => result.waiting.push(*array),
            Outcome::Failed(array, error) => result.failed.push((*array, error)),
        }
    }
    result
}

/// Starts one array that [`scan`] found.
///
/// 1. Flush all members: what was read of their labels may still have been in a cache.
/// 2. Where members are a step behind, or a copy is damaged, write the newest label on them, as it is.
/// 3. Write the next label, with the new session and without the clean mark, on all.
///
/// Only then may the array be served.
///
/// # Errors
/// [`LifecycleError::NotReady`] where the status forbids it, or a disk's error.
pub async fn start<M: MetaIo>(io: &M, found: &FoundArray, options: StartOptions) -> Result<Array, LifecycleError> {
    let forced = options.force && only_forcible(found) && found.missing().next().is_none();
    let not_ready = || LifecycleError::NotReady { status: Box::new(found.status.clone()) };
    let Some(newest) = found.newest.clone().filter(|_| found.status == Status::Ready || forced) else {
        return Err(not_ready());
    };
    let geometry = newest.geometry()?;
    let mut targets = targets_of(found);
    if !planted(Planted::StartWithoutFlush) {
        try_join_all(targets.iter().map(|target| flush(io, target.leaf))).await?;
    }
    // A damaged copy may be the remains of the very number that comes next, of a start that was cut. A write over it
    // that is torn could make that one whole again, beside others of its number: so it is replaced by the newest first.
    let damaged = |disk: &MemberDisk| disk.damaged && !planted(Planted::RemainsLeft);
    let is_behind = |disk: &MemberDisk| disk.label.array.sequence != newest.sequence || damaged(disk);
    let behind = |leaf: LeafId| found.disks().any(|disk| disk.leaf == leaf && is_behind(disk));
    let mut laggards: Vec<Target> = targets.iter().filter(|t| behind(t.leaf)).cloned().collect();
    if !laggards.is_empty() && !planted(Planted::RaisedWhileBehind) && !planted(Planted::NewestNotWritten) {
        write_labels(io, &mut laggards, &newest).await?;
        for laggard in laggards {
            targets.iter_mut().filter(|t| t.leaf == laggard.leaf).for_each(|t| *t = laggard.clone());
        }
    }
    let mut array = Array::new(newest, geometry, targets);
    if planted(Planted::NewestNotWritten) {
        return Ok(array);
    }
    let change = array.change(io, |label| {
        label.session = options.session;
        label.clean = false;
    });
    change.await?;
    Ok(array)
}

fn only_forcible(found: &FoundArray) -> bool {
    matches!(&found.status, Status::Refused { reasons } if reasons.iter().all(Refusal::can_be_forced))
}

/// The members that are here, as targets for labels.
pub(super) fn targets_of(found: &FoundArray) -> Vec<Target> {
    let target = |role: u16, disk: &super::MemberDisk| {
        let mut part = disk.label.member.clone();
        part.role = role;
        Target { leaf: disk.leaf, part, doubtful: disk.doubtful }
    };
    found.members.iter().filter_map(|m| m.disk.as_ref().map(|disk| target(m.role, disk))).collect()
}
