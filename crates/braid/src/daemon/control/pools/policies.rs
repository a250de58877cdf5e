//! Snapshots by themselves: one every so often, of which the newest are kept.
//!
//! Times are those of the wall clock, at multiples of the policy's time in UTC. What a policy has taken is told by its name, `auto-` and
//! the time: nobody else gets such a name, and a snapshot that is renamed is the policy's no more. Nothing else is remembered, so that
//! times that were missed are made up by one snapshot, after a restart as well.

use super::super::{Control, random_uuid};
use super::create::unix_s;
use super::snapshots::AT_ONCE_MAX;
use super::volumes::{Located, checked, find};
use super::{PoolEntry, Reach};
use braid_api::names::{policy_name, policy_time};
use braid_api::{ErrorDetail, Kind, SnapshotPolicy, Volume};
use braid_engine::PoolNext;
use braid_engine::pool::{Pool, PoolTables};
use braid_format::pool::{Owner, OwnerKind, SnapshotSchedule};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The shortest time between two, and the longest: 366 days.
const EVERY_S: std::ops::RangeInclusive<u32> = 10..=366 * 86_400;
/// The most that are kept.
const KEEP_MAX: u32 = 10_000;
/// Until a snapshot that could not be taken is tried again: at first, and at most.
const AGAIN: Duration = Duration::from_secs(10);
const AGAIN_MAX: Duration = Duration::from_secs(600);

/// A volume with a policy, as it was noted last.
pub struct WithPolicy {
    /// Its identity.
    pub volume: Uuid,
    /// Its name alone.
    pub name: String,
    /// What is wanted.
    pub policy: SnapshotSchedule,
    /// What its policy has taken, in that order.
    pub taken: Vec<Taken>,
}

/// A snapshot that a policy has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its identity.
    pub uuid: Uuid,
    /// When, by the clock of then.
    pub at_unix_s: u64,
}

impl Taken {
    /// None for what was not taken by a policy.
    pub fn of(uuid: Uuid, name: &str) -> Option<Taken> {
        Some(Taken { uuid, at_unix_s: policy_time(name)? })
    }
}

/// Whether it is time for the next one. `since_s`: how long ago this daemon has taken one of the volume, if it has, by a clock that only
/// goes on.
fn is_due(policy: SnapshotSchedule, taken: &[Taken], now_unix_s: u64, since_s: Option<u64>) -> bool {
    let every = u64::from(policy.every_s).max(1);
    let Some(last) = taken.last().map(|taken| taken.at_unix_s) else { return true };
    let due = if last > now_unix_s {
        // The clock was set back. By a little: it will soon be there again.
        last - now_unix_s >= every
    } else {
        last / every < now_unix_s / every
    };
    // A clock that was set to and fro takes no more than one that goes as it should.
    let odd = last > now_unix_s || now_unix_s - last >= 2 * every;
    let too_soon = odd && since_s.is_some_and(|since| since < every);
    // Names are of a second.
    due && !too_soon && taken.iter().all(|taken| taken.at_unix_s != now_unix_s)
}

/// Those that are too many, the oldest first.
fn too_many(policy: SnapshotSchedule, taken: &[Taken]) -> &[Taken] {
    &taken[..taken.len().saturating_sub(policy.keep as usize)]
}

/// What is remembered between two looks at a pool.
#[derive(Default)]
pub struct Looked {
    /// When the last snapshot of a volume was taken.
    last: BTreeMap<Uuid, Instant>,
    /// Volumes of which none can be taken: when it is tried again, and how long to wait after that.
    failing: BTreeMap<Uuid, (Instant, Duration)>,
    /// Snapshots that cannot be deleted: when that is tried again.
    kept: BTreeMap<Uuid, Instant>,
}

/// A volume, by its identity and name.
type Named = (Uuid, String);

impl Control {
    /// Lets snapshots of a volume be taken by themselves, or no more.
    ///
    /// # Errors
    /// There is no such volume; the policy makes no sense.
    pub async fn set_policy(&self, volume: &str, policy: Option<SnapshotPolicy>) -> Result<Volume, ErrorDetail> {
        self.is_open()?;
        if let Some(SnapshotPolicy { every_s, keep }) = policy
            && (!EVERY_S.contains(&every_s) || !(1..=KEEP_MAX).contains(&keep))
        {
            let message = format!("a snapshot every {every_s} s, of which {keep} are kept, is beyond the limits");
            return Err(ErrorDetail::new(Kind::InvalidArgument, message).remedy(format!(
                "every 10 seconds to every 366 days, and 1 to {KEEP_MAX} of them, for example --every 1h --keep 24"
            )));
        }
        let located = self.locate(volume, OwnerKind::Volume).await?;
        {
            let _one_at_a_time = located.pool.work.lock().await;
            let policy = policy.map(|policy| SnapshotSchedule { every_s: policy.every_s, keep: policy.keep });
            self.alter(&located, OwnerKind::Volume, move |owner| owner.schedule = policy).await?;
        }
        self.note_snapshots(located.pool.uuid).await;
        let what = if policy.is_some() { "taken by themselves" } else { "not taken by themselves any more" };
        let message = format!("snapshots of volume {} are {what}", located.name);
        self.events().info("snapshot_policy_set", message, &[("volume", &located.name)]);
        self.volume_of(&located.pool, located.uuid).await
    }

    /// Does what policies of a pool want now.
    pub(super) async fn run_policies(self: &Arc<Self>, pool: Uuid, looked: &mut Looked) {
        if self.is_open().is_err() {
            return;
        }
        let Ok(reach) = self.reach(&pool.to_string()) else { return };
        let (now, name) = (unix_s(), policy_name(unix_s()));
        let is_due = |with: &WithPolicy, looked: &Looked| {
            let waits = looked.failing.get(&with.volume).is_some_and(|(again, _)| *again > Instant::now());
            let since = looked.last.get(&with.volume).map(|last| last.elapsed().as_secs());
            !waits && is_due(with.policy, &with.taken, now, since)
        };
        let due: Vec<Named> = self.of_policies(pool, |with| {
            is_due(with, looked).then(|| (with.volume, with.name.clone())).into_iter().collect()
        });
        let mut parts: Vec<&[Named]> = due.chunks(AT_ONCE_MAX).collect();
        while let Some(some) = parts.pop() {
            let Err(error) = self.take_by_policy(&reach, some, &name, looked).await else { continue };
            if some.len() == 1 || matches!(error.kind, Kind::TimedOut | Kind::DiskError) {
                some.iter().for_each(|one| self.on_policy_failed(&reach, one, &error, looked));
            } else {
                // Of several none was taken: those that can be taken are.
                let (first, second) = some.split_at(some.len() / 2);
                parts.extend([first, second]);
            }
        }
        self.forget_failing(pool, looked);
        let wanted: Vec<(Uuid, Named)> = self.of_policies(pool, |with| {
            let name = |taken: &Taken| format!("{}@{}", with.name, policy_name(taken.at_unix_s));
            too_many(with.policy, &with.taken).iter().map(|taken| (with.volume, (taken.uuid, name(taken)))).collect()
        });
        looked.kept.retain(|kept, _| wanted.iter().any(|(_, (uuid, _))| uuid == kept));
        for (volume, (uuid, name)) in wanted {
            if looked.kept.get(&uuid).is_none_or(|again| *again <= Instant::now()) {
                let name = format!("{}/{name}", reach.name);
                self.delete_by_policy(volume, Located { pool: reach.clone(), uuid, name }, looked).await;
            }
        }
    }

    /// What is wanted of the volumes with a policy, as they were noted last. None where nothing can be made durable.
    fn of_policies<T>(&self, pool: Uuid, wanted: impl FnMut(&WithPolicy) -> Vec<T>) -> Vec<T> {
        let tables = self.read();
        match tables.pools.get(&pool).and_then(PoolEntry::served) {
            Some(served) if !served.failed.load(Ordering::Relaxed) => served.policies.iter().flat_map(wanted).collect(),
            _ => Vec::new(),
        }
    }

    async fn take_by_policy(
        &self,
        pool: &Reach,
        of: &[Named],
        name: &str,
        looked: &mut Looked,
    ) -> Result<(), ErrorDetail> {
        let own = checked(name)?;
        let what = of.iter().map(|(volume, _)| Ok((*volume, random_uuid()?, own)));
        let what = what.collect::<Result<Vec<_>, ErrorDetail>>()?;
        let called: Vec<String> = of.iter().map(|(_, volume)| format!("{}/{volume}@{name}", pool.name)).collect();
        let taken = self.take_snapshots(pool, what, &called.join(", ")).await;
        if let Err(error) = taken {
            // One whose disks hang is there nevertheless.
            self.note_snapshots(pool.uuid).await;
            return Err(error);
        }
        for (volume, own) in of {
            looked.last.insert(*volume, Instant::now());
            if looked.failing.remove(volume).is_some() {
                let volume = format!("{}/{own}", pool.name);
                let message = format!("snapshots of volume {volume} can be taken by themselves again");
                self.events().info("snapshot_policy_works", message, &[("volume", &volume)]);
            }
        }
        Ok(())
    }

    /// Said once; tried again less and less often.
    fn on_policy_failed(&self, pool: &Reach, (volume, own): &Named, error: &ErrorDetail, looked: &mut Looked) {
        // It ends, or the volume does.
        if self.is_open().is_err() || error.kind == Kind::NotFound || error.kind == Kind::Inactive {
            return;
        }
        let told = looked.failing.get(volume).map(|(_, wait)| *wait);
        let wait = told.map_or(AGAIN, |wait| (wait * 2).min(AGAIN_MAX));
        looked.failing.insert(*volume, (Instant::now() + wait, wait));
        if told.is_none() {
            let volume = format!("{}/{own}", pool.name);
            let message = format!(
                "no snapshot of volume {volume} could be taken by itself, which is tried again: {}",
                error.message
            );
            self.events().error("snapshot_policy_failed", message, &[("volume", &volume)]);
        }
    }

    /// What cannot be taken is a trouble of the pool as long as somebody wants it.
    fn forget_failing(&self, pool: Uuid, looked: &mut Looked) {
        let wanted = self.of_policies(pool, |with| vec![(with.volume, with.name.clone())]);
        let wanted: BTreeMap<Uuid, String> = wanted.into_iter().collect();
        looked.failing.retain(|volume, _| wanted.contains_key(volume));
        looked.last.retain(|volume, _| wanted.contains_key(volume));
        let names: BTreeSet<String> = looked.failing.keys().filter_map(|volume| wanted.get(volume).cloned()).collect();
        if let Some(served) = self.write().pools.get_mut(&pool).and_then(PoolEntry::served_mut) {
            served.policies_failing = names;
        }
    }

    /// Deletes a snapshot of a policy, unless somebody needs it: then it stays, and that is said once.
    async fn delete_by_policy(self: &Arc<Self>, volume: Uuid, snapshot: Located, looked: &mut Looked) {
        let uuid = snapshot.uuid;
        let asked = move |pool: &mut Pool| (PoolNext::Done, is_cloned(pool.state(), uuid, volume));
        let kept = match self.call(&snapshot.pool, asked).await {
            Ok(true) => "a volume goes on from it".to_owned(),
            Ok(false) => match self.delete_owner(&snapshot, OwnerKind::Snapshot, false, is_too_many).await {
                // Somebody else has deleted it, or it is not one too many any more.
                Err(error) if error.kind == Kind::NotFound => return,
                Err(error) => error.message,
                Ok(()) => {
                    let message = format!("snapshot {} was deleted by its policy", snapshot.name);
                    return self.events().info("snapshot_deleted", message, &[("snapshot", &snapshot.name)]);
                }
            },
            // The pool is served no more.
            Err(_) => return,
        };
        let told = looked.kept.insert(uuid, Instant::now() + AGAIN);
        if told.is_none() && self.is_open().is_ok() {
            let message = format!("snapshot {} is one more than its policy keeps, and stays: {kept}", snapshot.name);
            self.events().warning("snapshot_kept", message, &[("snapshot", &snapshot.name)]);
        }
    }
}

/// Whether a snapshot is one that the policy of its volume does not keep, as both are now: it may have got another name since it was noted, and
/// the volume another policy.
fn is_too_many(state: &PoolTables, snapshot: &Owner) -> bool {
    let by_policy = |owner: &&Owner| {
        owner.kind == OwnerKind::Snapshot
            && owner.volume == snapshot.volume
            && policy_time(owner.name.as_str()).is_some()
    };
    let Some(policy) = find(state, snapshot.volume, OwnerKind::Volume).and_then(|volume| volume.schedule) else {
        return false;
    };
    if !by_policy(&snapshot) {
        return false;
    }
    // By their numbers, which are in the order in which they were taken: a clock that was set may have given later ones earlier names.
    let newer = state.owners.iter().filter(by_policy).filter(|other| other.id > snapshot.id).count();
    newer >= policy.keep as usize && !is_cloned(state, snapshot.uuid, snapshot.volume)
}

/// Whether something of another volume goes on from a snapshot, at once or by way of what was deleted.
fn is_cloned(state: &PoolTables, snapshot: Uuid, volume: Uuid) -> bool {
    let owners = &state.owners;
    let Some(snapshot) = owners.iter().find(|owner| owner.uuid == snapshot && owner.kind == OwnerKind::Snapshot) else {
        return false;
    };
    let of_others = |owner: &&Owner| !owner.name.is_empty() && owner.uuid != volume && owner.volume != volume;
    owners.iter().filter(of_others).any(|owner| {
        let mut parent = owner.parent;
        while let Some(nameless) = owners.get(parent).filter(|parent| parent.name.is_empty()) {
            parent = nameless.parent;
        }
        parent == snapshot.id
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;

    /// A volume under a policy, its clocks, and what was taken of it.
    struct Story {
        policy: SnapshotSchedule,
        taken: Vec<Taken>,
        now: u64,
        /// None: this daemon has taken none.
        since: Option<u64>,
        count: usize,
    }

    impl Story {
        fn new(keep: u32) -> Story {
            let policy = SnapshotSchedule { every_s: HOUR as u32, keep };
            Story { policy, taken: Vec::new(), now: 1_800_000_123, since: None, count: 0 }
        }

        /// So much time goes by, with a look each second. Returns how many were taken.
        fn runs(&mut self, seconds: u64) -> usize {
            let before = self.count;
            for _ in 0..seconds {
                self.now += 1;
                self.since = self.since.map(|since| since + 1);
                self.looks();
            }
            self.count - before
        }

        fn looks(&mut self) {
            if is_due(self.policy, &self.taken, self.now, self.since) {
                let name = policy_name(self.now);
                assert!(self.taken.iter().all(|taken| policy_name(taken.at_unix_s) != name), "{name} twice");
                self.taken.push(Taken::of(Uuid::from_u128(self.count as u128), &name).expect("its own name"));
                self.since = Some(0);
                self.count += 1;
            }
            let many = too_many(self.policy, &self.taken).to_vec();
            self.taken.retain(|taken| !many.contains(taken));
            assert!(self.taken.len() <= self.policy.keep as usize);
        }
    }

    #[test]
    fn one_an_hour_and_the_newest_are_kept() {
        let mut story = Story::new(3);
        // The first at once, then on the hour.
        assert_eq!(story.runs(10 * HOUR), 11);
        assert_eq!(story.taken.len(), 3);
        assert!(story.taken.iter().all(|taken| taken.at_unix_s % HOUR == 0), "{:?}", story.taken);
        // However often one looks, nothing more comes of it.
        (0..100).for_each(|_| story.looks());
        assert_eq!(story.count, 11);
    }

    #[test]
    fn missed_times_are_made_up_by_one() {
        let mut story = Story::new(24);
        story.runs(2 * HOUR);
        // The daemon was off for a week; then it is restarted each minute.
        (story.now, story.since) = (story.now + 7 * 24 * HOUR + 1234, None);
        let before = story.count;
        for _ in 0..5 {
            story.runs(60);
            story.since = None;
        }
        assert_eq!(story.count - before, 1);
        assert_eq!(story.runs(5 * HOUR), 5);
        // Suspended for a week, with all of its memory: one, too.
        story.now += 7 * 24 * HOUR;
        story.since = Some(7 * 24 * HOUR);
        assert_eq!(story.runs(60), 1);
    }

    #[test]
    fn a_clock_that_is_set_makes_no_storm_and_no_standstill() {
        let mut story = Story::new(1000);
        story.runs(3 * HOUR);
        // Back by a second in the moment in which one was taken, as clocks are that are kept right: nothing comes of it.
        story.runs(HOUR - story.now % HOUR);
        story.now -= 1;
        assert_eq!(story.runs(HOUR / 2), 0);
        assert_eq!(story.runs(HOUR), 1);
        // Back by a day: it goes on as often as before.
        story.now -= 24 * HOUR;
        let taken = story.runs(10 * HOUR);
        assert!((9..=11).contains(&taken), "{taken}");
        // To and fro each minute, for two hours.
        for far in [HOUR / 2, HOUR + HOUR / 2, 5 * HOUR, 500 * HOUR] {
            let before = story.count;
            for round in 0..120 {
                story.now = if round % 2 == 0 { story.now + far } else { story.now - far };
                story.runs(60);
            }
            assert!(story.count - before <= 4, "{} for {far} s", story.count - before);
            story.runs(2 * HOUR);
        }
        // It was years ahead when one was taken, and the daemon is restarted each ten minutes.
        story.taken.push(Taken { uuid: Uuid::nil(), at_unix_s: story.now + 100_000 * HOUR });
        let before = story.count;
        for _ in 0..18 {
            story.since = None;
            story.runs(600);
        }
        let taken = story.count - before;
        assert!((3..=4).contains(&taken), "{taken} in three hours");
    }

    #[test]
    fn the_oldest_is_too_many_whatever_the_clock_said() {
        let mut state = PoolTables::new(8);
        let policy = Some(SnapshotSchedule { every_s: HOUR as u32, keep: 3 });
        let volume = Uuid::from_u128(1);
        let made = |id: u32, name: &str, snapshot: bool| {
            let mut made = Owner::volume(Uuid::nil(), checked(name).expect("a name"), 1 << 20);
            (made.id, made.schedule) = (id, policy.filter(|_| !snapshot));
            if snapshot {
                (made.kind, made.volume, made.uuid) = (OwnerKind::Snapshot, volume, Uuid::from_u128(id.into()));
            } else {
                made.uuid = volume;
            }
            made
        };
        // Three were taken, then the clock was set back by a day, and two more were.
        let day = 24 * HOUR;
        let at = [10 * day, 10 * day + HOUR, 10 * day + 2 * HOUR, 9 * day, 9 * day + HOUR];
        for (at, slot) in at.iter().zip(0u32..) {
            state.owners.put(slot, Some(made(slot + 1, &policy_name(*at), true)));
        }
        state.owners.put(5, Some(made(6, "db", false)));
        let many = |slot: u32| is_too_many(&state, state.owners.in_slot(slot).expect("it is there"));
        assert_eq!((0..5).map(many).collect::<Vec<_>>(), [true, true, false, false, false]);
    }

    #[test]
    fn fewer_are_kept_from_the_moment_that_is_wanted() {
        let mut story = Story::new(24);
        story.runs(30 * HOUR);
        assert_eq!(story.taken.len(), 24);
        story.policy.keep = 2;
        story.looks();
        assert_eq!(story.taken.len(), 2);
        assert_eq!(story.taken[1].at_unix_s, story.now / HOUR * HOUR);
    }
}
