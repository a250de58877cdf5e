//! The background work of a pool, as jobs: evacuations of members, moves, compactions and flattenings of volumes.
//!
//! The work itself is recorded elsewhere: in the labels, in the owners, at the pool's home. A job only reports and
//! controls it. So a start finds all kinds of jobs again, except compactions; whether they were paused, and their rate
//! limits, are lost then.

use crate::PoolManager;
use crate::names::find;
use crate::remove::state_of;
use braid_api::{ErrorDetail, FlattenVolume, Job, JobState, Kind, RemoveMember, SetJob};
use braid_engine::PoolNext;
use braid_engine::pool::{EXTENT_BYTES, ExtentId, OWNER_HELD, OwnerId, Pool};
use braid_format::pool::{Owner, OwnerKind, PoolMemberState};
use braid_inventory::{PoolCondition, PoolEntry, PoolHandle, PoolJobs, PoolWork, ServedPool};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// An owner that has blocks on members where it is not to have any.
struct MisplacedOwner {
    id: OwnerId,
    volume: Uuid,
    /// Bit mask of the members where it is not to have any blocks.
    on: u128,
}

/// The state of a pool's background work, as its home reports it.
struct WorkState {
    misplaced: Vec<MisplacedOwner>,
    names: BTreeMap<Uuid, String>,
    /// Bytes on members that are being evacuated.
    on_members: Vec<(u8, u64)>,
    /// Bytes that compaction still has to examine, by volume.
    compactions: Vec<(Uuid, u64)>,
    flattenings: BTreeMap<Uuid, u64>,
    /// Those of the volumes to be flattened that share no blocks with ancestors any more.
    independent: BTreeSet<Uuid>,
    /// Those of the jobs' volumes that exist.
    volumes: BTreeSet<Uuid>,
}

impl PoolManager {
    /// Returns the jobs of all pools that serve.
    pub fn pool_jobs(&self) -> Vec<Job> {
        let tables = self.inventory.read();
        let served = tables.pools.values().filter_map(|entry| Some((&entry.name, entry.served()?)));
        served.flat_map(|(name, served)| served.jobs.show(name)).collect()
    }

    /// Updates the progress of a pool's jobs, and finds new ones. Does nothing if `moved` is false (since the last call
    /// there was nothing to move or to flatten), no job is running, and no member is being removed. `ends_recorded`:
    /// the maintenance task has recorded the ends of compactions and flattenings before this call.
    pub(crate) async fn update_jobs(&self, pool: &PoolHandle, moved: bool, ends_recorded: bool) {
        let Some(jobs) = self.jobs_of(pool) else { return };
        let leaving: Vec<u8> = {
            let parts = self.parts_of(pool);
            let removing = parts.iter().filter(|part| state_of(part) == Some(PoolMemberState::Removing));
            removing.map(|part| part.label.member).collect()
        };
        let running = jobs.running();
        if !moved && running.is_empty() && leaving.is_empty() {
            // The lookup would go over all owners at the pool's home while clients wait for the home.
            return;
        }
        let (works, members) = (running.clone(), leaving.clone());
        let query = move |pool: &mut Pool| (PoolNext::Done, work_state(pool, &members, &works));
        let Ok(work_state) = self.call(pool, query).await else { return };
        let full = |volume: &Uuid| work_state.names.get(volume).map(|name| format!("{}/{name}", pool.name));
        for (member, bytes) in &work_state.on_members {
            jobs.note(PoolWork::Evacuation(*member), None, *bytes);
        }
        let left = tokio::task::block_in_place(|| misplaced_bytes(pool, &work_state.misplaced));
        for (volume, bytes) in &left {
            jobs.note(PoolWork::Move(*volume), full(volume).as_deref(), *bytes);
        }
        for (volume, bytes) in work_state.compactions.iter().filter(|(_, bytes)| *bytes > 0) {
            // A compaction that was cancelled meanwhile does not become a job again.
            jobs.update_left(PoolWork::Compaction(*volume), *bytes);
        }
        for (volume, bytes) in &work_state.flattenings {
            jobs.note(PoolWork::Flattening(*volume), full(volume).as_deref(), *bytes);
        }
        let was_paused = running.iter().any(|(_, state)| *state == JobState::Paused);
        for (work, _) in running {
            let (there, state) = match work {
                // Nothing is left on the member: the labels are written next, unless the removal was cancelled.
                PoolWork::Evacuation(member) => {
                    let stays = self.parts_of(pool).iter().any(|part| part.label.member == member);
                    let ended = if stays { JobState::Cancelled } else { JobState::Done };
                    (leaving.contains(&member), ended)
                }
                PoolWork::Move(volume) if work_state.volumes.contains(&volume) => {
                    (left.contains_key(&volume), JobState::Done)
                }
                // Only the maintenance task ends this job (`report_compacted`).
                PoolWork::Compaction(volume) if work_state.volumes.contains(&volume) => (true, JobState::Done),
                // The maintenance task ends this job, too (`report_flattened`). It does not if a rollback has left
                // nothing to flatten: such a job ends here.
                PoolWork::Flattening(volume) if work_state.volumes.contains(&volume) => {
                    let is_done = work_state.independent.contains(&volume);
                    let ended = if is_done { JobState::Done } else { JobState::Cancelled };
                    (!ends_recorded || work_state.flattenings.contains_key(&volume), ended)
                }
                PoolWork::Move(_) | PoolWork::Compaction(_) | PoolWork::Flattening(_) => (false, JobState::Cancelled),
            };
            if !there {
                jobs.end(state, |other| other == work);
            }
        }
        // If the last paused job has just ended, the home has to learn that nothing is paused any more.
        if was_paused || jobs.running().iter().any(|(_, state)| *state == JobState::Paused) {
            self.pause_jobs(pool, &jobs).await;
        }
    }

    fn jobs_of(&self, pool: &PoolHandle) -> Option<Arc<PoolJobs>> {
        self.inventory
            .read()
            .pools
            .get(&pool.uuid)
            .and_then(PoolEntry::served)
            .map(|served: &ServedPool| Arc::clone(&served.jobs))
    }

    /// Records a job that a command has begun.
    pub(crate) async fn begin_job(&self, pool: &PoolHandle, work: PoolWork, volume: Option<&str>) {
        let Some(jobs) = self.jobs_of(pool) else { return };
        jobs.note(work, volume, 0);
        self.update_jobs(pool, true, false).await;
    }

    /// Tells the pool's home which work is paused.
    async fn pause_jobs(&self, pool: &PoolHandle, jobs: &PoolJobs) {
        let paused: Vec<PoolWork> =
            jobs.running().into_iter().filter(|(_, state)| *state == JobState::Paused).map(|(work, _)| work).collect();
        let held = move |pool: &mut Pool| {
            let members = paused.iter().fold(0u128, |members, work| match work {
                PoolWork::Evacuation(member) => members | 1 << member,
                _ => members,
            });
            let of = |volume: Uuid, kind: &Uuid, uuid: &Uuid| *kind == volume || *uuid == volume;
            let waits = |owner: &&Owner| {
                paused
                    .iter()
                    .any(|work| matches!(work, PoolWork::Move(volume) if of(*volume, &owner.volume, &owner.uuid)))
            };
            let any_move = paused.iter().any(|work| matches!(work, PoolWork::Move(_)));
            let all = any_move.then(|| pool.state().owners.iter());
            let owners = all.into_iter().flatten().filter(waits).map(|owner| owner.id).collect();
            pool.pause_moves(members, owners);
            let flattened = paused.iter().filter_map(|work| match work {
                PoolWork::Flattening(volume) => Some(flattened_of(pool, *volume)),
                _ => None,
            });
            let flattened = flattened.flatten().collect();
            pool.pause_flattening(flattened);
            (PoolNext::Done, ())
        };
        if let Err(error) = self.call(pool, held).await {
            tracing::warn!("{}", error.message);
        }
    }

    /// Returns the pool and the number in a job's name; [`None`] if it is not a pool's job.
    fn find_pool_job(&self, name: &str) -> Option<(PoolHandle, u64)> {
        let (pool, number) = name.rsplit_once(':')?;
        Some((self.serving_pool(pool).ok()?, number.parse().ok()?))
    }

    /// Returns a job of a pool.
    pub fn pool_job(&self, name: &str) -> Option<Job> {
        let (pool, number) = self.find_pool_job(name)?;
        self.jobs_of(&pool)?.show(&pool.name).into_iter().find(|job| job.number == number)
    }

    /// Pauses or resumes a job of a pool, or changes its rate limit. [`None`] if it is not a pool's job, or has ended.
    pub async fn set_pool_job(&self, name: &str, ask: &SetJob) -> Option<Job> {
        let (pool, number) = self.find_pool_job(name)?;
        let jobs = self.jobs_of(&pool)?;
        if !jobs.set(number, ask) {
            return None;
        }
        self.apply_pauses(&pool, &jobs).await;
        self.pool_job(name)
    }

    /// Applies a change of what is paused, and wakes the maintenance task.
    async fn apply_pauses(&self, pool: &PoolHandle, jobs: &PoolJobs) {
        self.pause_jobs(pool, jobs).await;
        self.move_soon(pool);
        if let Some(PoolCondition::Serves(served)) =
            self.inventory.read().pools.get(&pool.uuid).map(|entry| &entry.condition)
        {
            served.maintenance.compacts();
            served.maintenance.flattens();
        }
    }

    /// Cancels a job of a pool. [`None`] if it is not a pool's job, or has ended.
    pub async fn cancel_pool_job(self: &Arc<Self>, name: &str) -> Option<Result<Job, ErrorDetail>> {
        let (pool, number) = self.find_pool_job(name)?;
        let jobs = self.jobs_of(&pool)?;
        let before = self.pool_job(name).filter(|job| !job.state.is_over())?;
        let work = jobs.work(number)?;
        let done = match work {
            PoolWork::Evacuation(member) => {
                let ask = RemoveMember { member: member.to_string(), cancel: true, force: false };
                self.remove_pool_member(&pool.name, ask).await.map(drop)
            }
            PoolWork::Move(_) => {
                let volume = before.volume.clone().unwrap_or_default();
                let message = format!("volume {volume} is allocated there already, and its remaining blocks follow");
                Err(ErrorDetail::new(Kind::InvalidArgument, message).with("job", name).remedy(format!(
                    "let it wait (braid job pause {name}), or give it another place (braid volume move {volume} --place PLACE)"
                )))
            }
            PoolWork::Compaction(volume) => {
                let stopped = move |pool: &mut Pool| {
                    let ids = owners_of(pool, volume);
                    (PoolNext::Done, pool.stop_compacting(&ids))
                };
                self.call(&pool, stopped).await
            }
            PoolWork::Flattening(volume) => {
                let ask = FlattenVolume { cancel: true };
                self.flatten_volume(&volume.to_string(), ask).await.map(drop)
            }
        };
        if let Err(error) = done {
            return Some(Err(error));
        }
        jobs.end(JobState::Cancelled, |other| other == work);
        // Work queued behind it does not wait any more.
        self.apply_pauses(&pool, &jobs).await;
        Some(Ok(self.pool_job(name).unwrap_or(before)))
    }
}

/// Returns the owners that are flattened to make a volume independent.
fn flattened_of(pool: &Pool, volume: Uuid) -> Vec<OwnerId> {
    let id = find(pool.state(), volume, OwnerKind::Volume).map(|owner| owner.id);
    id.map(|id| pool.flattened_for(id)).unwrap_or_default()
}

/// Returns a volume's owner and the owners of its snapshots.
fn owners_of(pool: &Pool, volume: Uuid) -> Vec<OwnerId> {
    let of = pool.state().owners.iter().filter(|owner| owner.uuid == volume || owner.volume == volume);
    of.map(|owner| owner.id).collect()
}

fn work_state(pool: &mut Pool, leaving: &[u8], running: &[(PoolWork, JobState)]) -> WorkState {
    let (mut misplaced, mut names, mut volumes) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
    let compactions = running.iter().filter_map(|(work, _)| match work {
        PoolWork::Compaction(volume) => Some(*volume),
        _ => None,
    });
    let compactions: Vec<Uuid> = compactions.collect();
    let moves = running.iter().filter_map(|(work, _)| match work {
        PoolWork::Move(volume) | PoolWork::Flattening(volume) => Some(*volume),
        PoolWork::Evacuation(_) | PoolWork::Compaction(_) => None,
    });
    let wanted: BTreeSet<Uuid> = moves.chain(compactions.iter().copied()).collect();
    let mut flattenings: BTreeMap<Uuid, u64> = BTreeMap::new();
    let under_way = pool.flattening();
    for owner in pool.state().owners.iter() {
        let volume = if owner.kind == OwnerKind::Volume { owner.uuid } else { owner.volume };
        if owner.kind == OwnerKind::Volume && wanted.contains(&volume) {
            volumes.insert(volume);
        }
        if owner.flattening {
            // The rest of the blocks that show through the parent; all of them for an owner whose turn has not come.
            let parent = pool.state().owners.get(owner.parent).map_or(0, |parent| parent.size_bytes);
            let left = match under_way {
                Some((id, at, all)) if id == owner.id => u64::from(all - at) * EXTENT_BYTES,
                _ => parent.next_multiple_of(EXTENT_BYTES),
            };
            // The state before a rollback belongs to no volume.
            let volume = if owner.volume.is_nil() { owner.uuid } else { owner.volume };
            *flattenings.entry(volume).or_default() += left;
        }
        if owner.also_on != 0 && matches!(owner.kind, OwnerKind::Volume | OwnerKind::Snapshot) {
            misplaced.push(MisplacedOwner { id: owner.id, volume, on: owner.also_on & !owner.allocation_members() });
        }
    }
    // Blocks on a member that is being evacuated move with the evacuation.
    let emptied = leaving.iter().fold(0u128, |bits, member| bits | 1 << member);
    for one in &mut misplaced {
        one.on &= !emptied;
    }
    misplaced.retain(|one| one.on != 0);
    let moving: BTreeSet<Uuid> = misplaced.iter().map(|one| one.volume).collect();
    let named = |owner: &&Owner| moving.contains(&owner.uuid) || flattenings.contains_key(&owner.uuid);
    for owner in pool.state().owners.iter().filter(named) {
        names.insert(owner.uuid, owner.name.to_string());
    }
    let on_member = |member: &u8| (*member, pool.used_and_free_elsewhere(*member).0 * EXTENT_BYTES);
    let on_members = leaving.iter().map(on_member).collect();
    let left = |volume: &Uuid| (*volume, pool.compaction_left(&owners_of(pool, *volume)).0 * EXTENT_BYTES);
    // The owners that a deleted volume left are not flattened.
    flattenings.retain(|volume, _| names.contains_key(volume));
    let flattened = running.iter().filter_map(|(work, _)| match work {
        PoolWork::Flattening(volume) => Some(*volume),
        _ => None,
    });
    let is_independent = |volume: &Uuid| {
        let id = find(pool.state(), *volume, OwnerKind::Volume).map(|owner| owner.id);
        id.is_some_and(|id| pool.to_flatten(id).is_ok_and(|tops| tops.is_empty()))
    };
    let independent = flattened.filter(is_independent).collect();
    let compactions = compactions.iter().map(left).collect();
    WorkState { misplaced, names, on_members, compactions, flattenings, independent, volumes }
}

/// Returns the bytes of extents on members where their owners are not to have any blocks, by volume. Reads all records
/// of those members.
fn misplaced_bytes(pool: &PoolHandle, owners: &[MisplacedOwner]) -> BTreeMap<Uuid, u64> {
    let by_id: BTreeMap<OwnerId, &MisplacedOwner> = owners.iter().map(|one| (one.id, one)).collect();
    let mut left: BTreeMap<Uuid, u64> = owners.iter().map(|one| (one.volume, 0)).collect();
    let members = owners.iter().fold(0u128, |bits, one| bits | one.on);
    let records = &pool.shared.records;
    for member in (0..128u8).filter(|member| members >> member & 1 == 1) {
        for index in 0..records.extents(member) {
            let owner = records.owner(ExtentId { member, index }) & !OWNER_HELD;
            if owner != 0
                && let Some(one) = by_id.get(&owner)
                && one.on >> member & 1 == 1
            {
                *left.entry(one.volume).or_default() += EXTENT_BYTES;
            }
        }
    }
    left
}
