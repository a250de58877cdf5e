//! What a pool does in the background, as jobs: members that are emptied, volumes that move or become independent, what is put together.
//!
//! What is to be done stands elsewhere: in the labels, in the owners, at the pool's home. A job is what is seen of it and said to it. So a
//! start finds all kinds but the last again, by looking; whether they waited, and with what limit, is forgotten then.

use super::super::Control;
use super::super::keeping::name_of;
use super::remove::state_of;
use super::volumes::find;
use super::{Condition, PoolEntry, Reach, Served};
use braid_api::{ErrorDetail, FlattenVolume, Job, JobState, Kind, Progress, RemoveMember, SetJob};
use braid_engine::PoolNext;
use braid_engine::pool::{EXTENT_BYTES, ExtentId, OWNER_HELD, OwnerId, Pool};
use braid_format::pool::{Owner, OwnerKind, PoolMemberState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Jobs that are remembered after their end.
const ENDED_MAX: usize = 16;

/// What a job does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Empties a member, which is being removed.
    Evacuation(u8),
    /// Moves a volume, with its snapshots, to where it is to be.
    Move(Uuid),
    /// Puts together what a volume and its snapshots have scattered.
    Compaction(Uuid),
    /// Copies what a volume and its snapshots see of others.
    Flattening(Uuid),
}

impl Work {
    fn word(self) -> &'static str {
        match self {
            Work::Evacuation(_) => "evacuation",
            Work::Move(_) => "move",
            Work::Compaction(_) => "compaction",
            Work::Flattening(_) => "flattening",
        }
    }
}

/// One job.
#[derive(Clone)]
struct One {
    work: Work,
    /// The volume, as it was called when the job began.
    volume: Option<String>,
    state: JobState,
    limit_bytes_per_s: u64,
    total_bytes: u64,
    left_bytes: u64,
    /// When it began, or went on after it had waited, and what was left then.
    since: Instant,
    left_then: u64,
}

#[derive(Default)]
struct Board {
    jobs: BTreeMap<u64, One>,
    newest: u64,
    /// What was moved so far when a limit was looked at last, and when more may be.
    moved_blocks: u64,
    not_before: Option<Instant>,
}

impl Board {
    /// So much is left of this work. False: it is no job that goes on.
    fn see_left(&mut self, work: Work, left_bytes: u64) -> bool {
        let Some(one) = self.jobs.values_mut().find(|one| one.work == work && !one.state.is_over()) else {
            return false;
        };
        one.left_bytes = left_bytes;
        one.total_bytes = one.total_bytes.max(left_bytes);
        true
    }
}

/// The jobs of a pool that serves.
#[derive(Default)]
pub struct PoolJobs(Mutex<Board>);

impl PoolJobs {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Such work has begun, or goes on, with so much to do.
    pub(super) fn note(&self, work: Work, volume: Option<&str>, left_bytes: u64) {
        let mut board = self.board();
        if board.see_left(work, left_bytes) {
            return;
        }
        board.newest += 1;
        let number = board.newest;
        let one = One {
            work,
            volume: volume.map(str::to_owned),
            state: JobState::Running,
            limit_bytes_per_s: 0,
            total_bytes: left_bytes,
            left_bytes,
            since: Instant::now(),
            left_then: left_bytes,
        };
        board.jobs.insert(number, one);
    }

    /// Jobs of which this is true have ended so.
    pub(super) fn end(&self, state: JobState, is: impl Fn(Work) -> bool) {
        let mut board = self.board();
        for one in board.jobs.values_mut().filter(|one| !one.state.is_over() && is(one.work)) {
            one.state = state;
            if state == JobState::Done {
                one.left_bytes = 0;
            }
        }
        let ended: Vec<u64> = board.jobs.iter().filter(|(_, one)| one.state.is_over()).map(|(n, _)| *n).collect();
        for number in ended.iter().take(ended.len().saturating_sub(ENDED_MAX)) {
            board.jobs.remove(number);
        }
    }

    fn going(&self) -> Vec<(Work, JobState)> {
        let board = self.board();
        board.jobs.values().filter(|one| !one.state.is_over()).map(|one| (one.work, one.state)).collect()
    }

    /// Whether some of what is put together waits: what comes after it does, too.
    pub(super) fn compaction_waits(&self) -> bool {
        self.going().iter().any(|(work, state)| matches!(work, Work::Compaction(_)) && *state == JobState::Paused)
    }

    /// Whether more may be moved now, if so many blocks were moved so far. The least limit of all holds for all of the pool.
    pub(super) fn may_move(&self, moved_blocks: u64) -> bool {
        let mut board = self.board();
        let limits = board.jobs.values().filter(|one| !one.state.is_over()).map(|one| one.limit_bytes_per_s);
        let Some(limit) = limits.filter(|limit| *limit > 0).min() else {
            (board.moved_blocks, board.not_before) = (moved_blocks, None);
            return true;
        };
        let now = Instant::now();
        let new = moved_blocks.saturating_sub(board.moved_blocks);
        if new > 0 {
            let ns = u128::from(new) * 4096 * 1_000_000_000 / u128::from(limit);
            let takes = Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
            board.not_before = board.not_before.unwrap_or(now).max(now).checked_add(takes);
            board.moved_blocks = moved_blocks;
        }
        board.not_before.is_none_or(|at| at <= now)
    }

    /// All of them, as the API shows them.
    pub fn show(&self, pool: &str) -> Vec<Job> {
        self.board().jobs.iter().map(|(number, one)| one.show(pool, *number)).collect()
    }
}

impl One {
    fn show(&self, pool: &str, number: u64) -> Job {
        let done_bytes = self.total_bytes - self.left_bytes.min(self.total_bytes);
        let seconds = self.since.elapsed().as_secs_f64().max(0.001);
        let rate = match self.state {
            JobState::Running => (self.left_then.saturating_sub(self.left_bytes) as f64 / seconds) as u64,
            _ => 0,
        };
        Job {
            name: name_of(pool, number),
            array: String::new(),
            pool: Some(pool.to_owned()),
            volume: self.volume.clone(),
            number,
            kind: self.work.word().to_owned(),
            member: match self.work {
                Work::Evacuation(member) => Some(member.into()),
                _ => None,
            },
            replaces: None,
            state: self.state,
            paused: self.state == JobState::Paused,
            limit_bytes_per_s: self.limit_bytes_per_s,
            progress: Progress {
                done_bytes,
                total_bytes: self.total_bytes,
                rate_bytes_per_s: rate,
                remaining_s: (rate > 0).then(|| self.left_bytes.div_ceil(rate)),
            },
            findings: None,
        }
    }
}

/// An owner that has blocks where it is to have none.
struct Elsewhere {
    id: OwnerId,
    volume: Uuid,
    /// Members where it is to have none, by their bits.
    on: u128,
}

/// What the home says of its work.
struct AtWork {
    elsewhere: Vec<Elsewhere>,
    names: BTreeMap<Uuid, String>,
    /// Bytes on members that are emptied.
    on_members: Vec<(u8, u64)>,
    /// Bytes that are to be looked at yet, by volume.
    compactions: Vec<(Uuid, u64)>,
    flattenings: BTreeMap<Uuid, u64>,
    /// Volumes that see nothing of others, of those which were to become so.
    independent: BTreeSet<Uuid>,
    /// Volumes that there are of those which jobs are about.
    volumes: BTreeSet<Uuid>,
}

impl Control {
    /// The jobs of all pools that serve.
    pub(in super::super) fn pool_jobs(&self) -> Vec<Job> {
        let tables = self.read();
        let served = tables.pools.values().filter_map(|entry| Some((&entry.name, entry.served()?)));
        served.flat_map(|(name, served)| served.jobs.show(name)).collect()
    }

    /// Looks how far the jobs of a pool have come, and whether there are others. Where nothing has `moved` only those that are known go on.
    /// `all_told`: what has ended by itself was told before.
    pub(super) async fn look_at_jobs(&self, pool: &Reach, moved: bool, all_told: bool) {
        let Some(jobs) = self.jobs_of(pool) else { return };
        let leaving: Vec<u8> = {
            let parts = self.parts_of(pool);
            let removing = parts.iter().filter(|part| state_of(part) == Some(PoolMemberState::Removing));
            removing.map(|part| part.label.member).collect()
        };
        let going = jobs.going();
        if !moved && going.is_empty() && leaving.is_empty() {
            // All owners would be looked at, and clients wait for the home meanwhile.
            return;
        }
        let (works, members) = (going.clone(), leaving.clone());
        let asked = move |pool: &mut Pool| (PoolNext::Done, at_work(pool, &members, &works));
        let Ok(at_work) = self.call(pool, asked).await else { return };
        let full = |volume: &Uuid| at_work.names.get(volume).map(|name| format!("{}/{name}", pool.name));
        for (member, bytes) in &at_work.on_members {
            jobs.note(Work::Evacuation(*member), None, *bytes);
        }
        let left = tokio::task::block_in_place(|| left_elsewhere(pool, &at_work.elsewhere));
        for (volume, bytes) in &left {
            jobs.note(Work::Move(*volume), full(volume).as_deref(), *bytes);
        }
        for (volume, bytes) in at_work.compactions.iter().filter(|(_, bytes)| *bytes > 0) {
            // One that was given up meanwhile is no job again.
            jobs.board().see_left(Work::Compaction(*volume), *bytes);
        }
        for (volume, bytes) in &at_work.flattenings {
            jobs.note(Work::Flattening(*volume), full(volume).as_deref(), *bytes);
        }
        let was_paused = going.iter().any(|(_, state)| *state == JobState::Paused);
        for (work, _) in going {
            let (there, state) = match work {
                // Nothing stands there: the labels are told next, unless it was to stay after all.
                Work::Evacuation(member) => {
                    let stays = self.parts_of(pool).iter().any(|part| part.label.member == member);
                    let ended = if stays { JobState::Cancelled } else { JobState::Done };
                    (leaving.contains(&member), ended)
                }
                Work::Move(volume) if at_work.volumes.contains(&volume) => (left.contains_key(&volume), JobState::Done),
                // That it has ended is told by the task.
                Work::Compaction(volume) if at_work.volumes.contains(&volume) => (true, JobState::Done),
                // So is this; one that is rolled back has nothing to be copied.
                Work::Flattening(volume) if at_work.volumes.contains(&volume) => {
                    let is_done = at_work.independent.contains(&volume);
                    let ended = if is_done { JobState::Done } else { JobState::Cancelled };
                    (!all_told || at_work.flattenings.contains_key(&volume), ended)
                }
                Work::Move(_) | Work::Compaction(_) | Work::Flattening(_) => (false, JobState::Cancelled),
            };
            if !there {
                jobs.end(state, |other| other == work);
            }
        }
        // Also where the last one that waited has ended just now.
        if was_paused || jobs.going().iter().any(|(_, state)| *state == JobState::Paused) {
            self.hold_jobs(pool, &jobs).await;
        }
    }

    fn jobs_of(&self, pool: &Reach) -> Option<Arc<PoolJobs>> {
        self.read().pools.get(&pool.uuid).and_then(PoolEntry::served).map(|served: &Served| Arc::clone(&served.jobs))
    }

    /// A command has begun such work: it is a job from now on.
    pub(super) async fn begin_job(&self, pool: &Reach, work: Work, volume: Option<&str>) {
        let Some(jobs) = self.jobs_of(pool) else { return };
        jobs.note(work, volume, 0);
        self.look_at_jobs(pool, true, false).await;
    }

    /// Tells the home what is to wait.
    async fn hold_jobs(&self, pool: &Reach, jobs: &PoolJobs) {
        let paused: Vec<Work> =
            jobs.going().into_iter().filter(|(_, state)| *state == JobState::Paused).map(|(work, _)| work).collect();
        let held = move |pool: &mut Pool| {
            let members = paused.iter().fold(0u128, |members, work| match work {
                Work::Evacuation(member) => members | 1 << member,
                _ => members,
            });
            let of = |volume: Uuid, kind: &Uuid, uuid: &Uuid| *kind == volume || *uuid == volume;
            let waits = |owner: &&Owner| {
                paused.iter().any(|work| matches!(work, Work::Move(volume) if of(*volume, &owner.volume, &owner.uuid)))
            };
            let any_move = paused.iter().any(|work| matches!(work, Work::Move(_)));
            let all = any_move.then(|| pool.state().owners.iter());
            let owners = all.into_iter().flatten().filter(waits).map(|owner| owner.id).collect();
            pool.pause_moves(members, owners);
            let flattened = paused.iter().filter_map(|work| match work {
                Work::Flattening(volume) => Some(flattened_of(pool, *volume)),
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

    /// The pool and the number that a job's name means; none where it is none of a pool's.
    fn find_pool_job(&self, name: &str) -> Option<(Reach, u64)> {
        let (pool, number) = name.rsplit_once(':')?;
        Some((self.reach(pool).ok()?, number.parse().ok()?))
    }

    /// One job of a pool.
    pub(in super::super) fn pool_job(&self, name: &str) -> Option<Job> {
        let (pool, number) = self.find_pool_job(name)?;
        self.jobs_of(&pool)?.show(&pool.name).into_iter().find(|job| job.number == number)
    }

    /// Lets a job of a pool wait or go on, or gives it another limit. None where it is none of a pool's, or has ended.
    pub(in super::super) async fn set_pool_job(&self, name: &str, ask: &SetJob) -> Option<Job> {
        let (pool, number) = self.find_pool_job(name)?;
        let jobs = self.jobs_of(&pool)?;
        {
            let mut board = jobs.board();
            let one = board.jobs.get_mut(&number).filter(|one| !one.state.is_over())?;
            one.limit_bytes_per_s = ask.limit_bytes_per_s.unwrap_or(one.limit_bytes_per_s);
            match ask.paused {
                Some(true) => one.state = JobState::Paused,
                Some(false) => {
                    one.state = JobState::Running;
                    (one.since, one.left_then) = (Instant::now(), one.left_bytes);
                }
                None => {}
            }
            board.not_before = None;
        }
        self.go_on_with(&pool, &jobs).await;
        self.pool_job(name)
    }

    /// What waits and what does not is otherwise from now on.
    async fn go_on_with(&self, pool: &Reach, jobs: &PoolJobs) {
        self.hold_jobs(pool, jobs).await;
        self.move_soon(pool);
        if let Some(Condition::Serves(served)) = self.read().pools.get(&pool.uuid).map(|entry| &entry.condition) {
            served.tending.compacts();
            served.tending.flattens();
        }
    }

    /// Gives a job of a pool up. None where it is none of a pool's, or has ended.
    pub(in super::super) async fn cancel_pool_job(self: &Arc<Self>, name: &str) -> Option<Result<Job, ErrorDetail>> {
        let (pool, number) = self.find_pool_job(name)?;
        let jobs = self.jobs_of(&pool)?;
        let before = self.pool_job(name).filter(|job| !job.state.is_over())?;
        let work = jobs.board().jobs.get(&number)?.work;
        let done = match work {
            Work::Evacuation(member) => {
                let ask = RemoveMember { member: member.to_string(), cancel: true, force: false };
                self.remove_pool_member(&pool.name, ask).await.map(drop)
            }
            Work::Move(_) => {
                let volume = before.volume.clone().unwrap_or_default();
                let message = format!("volume {volume} has its place there already, and what it has elsewhere follows");
                Err(ErrorDetail::new(Kind::InvalidArgument, message).with("job", name).remedy(format!(
                    "let it wait (braid job pause {name}), or give it another place (braid volume move {volume} --place PLACE)"
                )))
            }
            Work::Compaction(volume) => {
                let stopped = move |pool: &mut Pool| {
                    let ids = owners_of(pool, volume);
                    (PoolNext::Done, pool.stop_compacting(&ids))
                };
                self.call(&pool, stopped).await
            }
            Work::Flattening(volume) => {
                let ask = FlattenVolume { cancel: true };
                self.flatten_volume(&volume.to_string(), ask).await.map(drop)
            }
        };
        if let Err(error) = done {
            return Some(Err(error));
        }
        jobs.end(JobState::Cancelled, |other| other == work);
        // What was queued behind it waits no more.
        self.go_on_with(&pool, &jobs).await;
        Some(Ok(self.pool_job(name).unwrap_or(before)))
    }
}

/// Owners that are flattened so that a volume becomes independent.
fn flattened_of(pool: &Pool, volume: Uuid) -> Vec<OwnerId> {
    let id = find(pool.state(), volume, OwnerKind::Volume).map(|owner| owner.id);
    id.map(|id| pool.flattened_for(id)).unwrap_or_default()
}

/// A volume's owner, and those of its snapshots.
fn owners_of(pool: &Pool, volume: Uuid) -> Vec<OwnerId> {
    let of = pool.state().owners.iter().filter(|owner| owner.uuid == volume || owner.volume == volume);
    of.map(|owner| owner.id).collect()
}

fn at_work(pool: &mut Pool, leaving: &[u8], going: &[(Work, JobState)]) -> AtWork {
    let (mut elsewhere, mut names, mut volumes) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
    let compactions = going.iter().filter_map(|(work, _)| match work {
        Work::Compaction(volume) => Some(*volume),
        _ => None,
    });
    let compactions: Vec<Uuid> = compactions.collect();
    let moves = going.iter().filter_map(|(work, _)| match work {
        Work::Move(volume) | Work::Flattening(volume) => Some(*volume),
        Work::Evacuation(_) | Work::Compaction(_) => None,
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
            // What was looked at of what shows through the parent; of one that is to come all of it.
            let parent = pool.state().owners.get(owner.parent).map_or(0, |parent| parent.size_bytes);
            let left = match under_way {
                Some((id, at, all)) if id == owner.id => u64::from(all - at) * EXTENT_BYTES,
                _ => parent.next_multiple_of(EXTENT_BYTES),
            };
            // What it was before a rollback is nobody's.
            let volume = if owner.volume.is_nil() { owner.uuid } else { owner.volume };
            *flattenings.entry(volume).or_default() += left;
        }
        if owner.also_on != 0 && matches!(owner.kind, OwnerKind::Volume | OwnerKind::Snapshot) {
            elsewhere.push(Elsewhere { id: owner.id, volume, on: owner.also_on & !owner.allocation_members() });
        }
    }
    // What is on a member that is emptied moves for its sake.
    let emptied = leaving.iter().fold(0u128, |bits, member| bits | 1 << member);
    for one in &mut elsewhere {
        one.on &= !emptied;
    }
    elsewhere.retain(|one| one.on != 0);
    let moving: BTreeSet<Uuid> = elsewhere.iter().map(|one| one.volume).collect();
    let named = |owner: &&Owner| moving.contains(&owner.uuid) || flattenings.contains_key(&owner.uuid);
    for owner in pool.state().owners.iter().filter(named) {
        names.insert(owner.uuid, owner.name.to_string());
    }
    let on_member = |member: &u8| (*member, pool.used_and_free_elsewhere(*member).0 * EXTENT_BYTES);
    let on_members = leaving.iter().map(on_member).collect();
    let left = |volume: &Uuid| (*volume, pool.compaction_left(&owners_of(pool, *volume)).0 * EXTENT_BYTES);
    // Of one that was deleted nobody is to become independent.
    flattenings.retain(|volume, _| names.contains_key(volume));
    let flattened = going.iter().filter_map(|(work, _)| match work {
        Work::Flattening(volume) => Some(*volume),
        _ => None,
    });
    let is_independent = |volume: &Uuid| {
        let id = find(pool.state(), *volume, OwnerKind::Volume).map(|owner| owner.id);
        id.is_some_and(|id| pool.to_flatten(id).is_ok_and(|tops| tops.is_empty()))
    };
    let independent = flattened.filter(is_independent).collect();
    let compactions = compactions.iter().map(left).collect();
    AtWork { elsewhere, names, on_members, compactions, flattenings, independent, volumes }
}

/// Bytes of extents that stand where their owners are to have none, by volume. Looks at all records of those members.
fn left_elsewhere(pool: &Reach, owners: &[Elsewhere]) -> BTreeMap<Uuid, u64> {
    let by_id: BTreeMap<OwnerId, &Elsewhere> = owners.iter().map(|one| (one.id, one)).collect();
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
