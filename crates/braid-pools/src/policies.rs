//! Scheduled snapshots: taken at regular intervals; the newest ones are kept.
//!
//! Times are wall-clock times, at multiples of the schedule's interval in UTC. A scheduled snapshot is identified by
//! its name, `auto-` and the time: no other snapshot can have such a name, and a renamed snapshot is not a scheduled
//! one any more. Nothing else is recorded, so that missed times are made up for by one snapshot, also after a restart.

use crate::PoolManager;
use crate::locate::Located;
use crate::names::{checked, find};
use crate::snapshots::AT_ONCE_MAX;
use crate::unix_time::unix_s;
use braid_api::names::{policy_name, policy_time};
use braid_api::{ErrorDetail, Kind, SnapshotPolicy, Volume};
use braid_engine::PoolNext;
use braid_engine::pool::{Pool, PoolTables};
use braid_format::pool::{Owner, OwnerKind, SnapshotSchedule};
use braid_inventory::{PoolEntry, PoolHandle, ScheduledSnapshot, ScheduledVolume, random_uuid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The shortest and the longest interval: 366 days.
const EVERY_S: std::ops::RangeInclusive<u32> = 10..=366 * 86_400;

/// The maximum number of snapshots that are kept.
const KEEP_MAX: u32 = 10_000;

/// The delay before a failed snapshot is tried again: initially, and at most.
const RETRY_MIN: Duration = Duration::from_secs(10);

const RETRY_MAX: Duration = Duration::from_secs(600);

/// Returns true if the next snapshot is due. `since_s`: the time since this daemon took the volume's last scheduled
/// snapshot, if it has taken one, by a monotonic clock.
fn is_due(policy: SnapshotSchedule, taken: &[ScheduledSnapshot], now_unix_s: u64, since_s: Option<u64>) -> bool {
    let every = u64::from(policy.every_s).max(1);
    let Some(last) = taken.last().map(|taken| taken.at_unix_s) else { return true };
    let due = if last > now_unix_s {
        // The clock was set back. If only by a little, it will catch up soon.
        last - now_unix_s >= every
    } else {
        last / every < now_unix_s / every
    };
    // A clock that is set back and forth does not cause more snapshots than a correct one.
    let odd = last > now_unix_s || now_unix_s - last >= 2 * every;
    let too_soon = odd && since_s.is_some_and(|since| since < every);
    // Names have a resolution of one second.
    due && !too_soon && taken.iter().all(|taken| taken.at_unix_s != now_unix_s)
}

/// Returns the snapshots in excess of the schedule, the oldest first.
fn excess(policy: SnapshotSchedule, taken: &[ScheduledSnapshot]) -> &[ScheduledSnapshot] {
    &taken[..taken.len().saturating_sub(policy.keep as usize)]
}

/// The state that is kept between two runs for a pool.
#[derive(Default)]
pub(crate) struct ScheduleState {
    /// When the last scheduled snapshot of a volume was taken.
    last: BTreeMap<Uuid, Instant>,
    /// Volumes of which no snapshot can be taken: when it is tried again, and the delay after that.
    failing: BTreeMap<Uuid, (Instant, Duration)>,
    /// Snapshots that cannot be deleted: when that is tried again.
    kept: BTreeMap<Uuid, Instant>,
}

/// A volume, by its identity and name.
type NamedVolume = (Uuid, String);

impl PoolManager {
    /// Sets or disables the snapshot schedule of a volume.
    ///
    /// # Errors
    /// There is no such volume; the schedule is out of range.
    pub async fn set_policy(&self, volume: &str, policy: Option<SnapshotPolicy>) -> Result<Volume, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
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
        let what = if policy.is_some() { "taken on schedule" } else { "not taken on schedule any more" };
        let message = format!("snapshots of volume {} are {what}", located.name);
        self.inventory.events().info("snapshot_policy_set", message, &[("volume", &located.name)]);
        self.volume_of(&located.pool, located.uuid).await
    }

    /// Takes the snapshots that are due in a pool, and deletes those in excess.
    pub(crate) async fn run_policies(self: &Arc<Self>, pool: Uuid, schedule_state: &mut ScheduleState) {
        if self.inventory.refuse_while_stopping_or_upgrading().is_err() {
            return;
        }
        let Ok(handle) = self.serving_pool(&pool.to_string()) else { return };
        let (now, name) = (unix_s(), policy_name(unix_s()));
        let is_due = |with: &ScheduledVolume, schedule_state: &ScheduleState| {
            let waits = schedule_state.failing.get(&with.volume).is_some_and(|(again, _)| *again > Instant::now());
            let since = schedule_state.last.get(&with.volume).map(|last| last.elapsed().as_secs());
            !waits && is_due(with.policy, &with.taken, now, since)
        };
        let due: Vec<NamedVolume> = self.of_policies(pool, |with| {
            is_due(with, schedule_state).then(|| (with.volume, with.name.clone())).into_iter().collect()
        });
        let mut parts: Vec<&[NamedVolume]> = due.chunks(AT_ONCE_MAX).collect();
        while let Some(some) = parts.pop() {
            let Err(error) = self.take_by_policy(&handle, some, &name, schedule_state).await else { continue };
            if some.len() == 1 || matches!(error.kind, Kind::TimedOut | Kind::DiskError) {
                some.iter().for_each(|one| self.on_policy_failed(&handle, one, &error, schedule_state));
            } else {
                // A call for several volumes takes none if one fails: it is repeated for each half, so that the
                // possible ones are taken.
                let (first, second) = some.split_at(some.len() / 2);
                parts.extend([first, second]);
            }
        }
        self.drop_unscheduled(pool, schedule_state);
        let wanted: Vec<(Uuid, NamedVolume)> = self.of_policies(pool, |with| {
            let name = |taken: &ScheduledSnapshot| format!("{}@{}", with.name, policy_name(taken.at_unix_s));
            excess(with.policy, &with.taken).iter().map(|taken| (with.volume, (taken.uuid, name(taken)))).collect()
        });
        schedule_state.kept.retain(|kept, _| wanted.iter().any(|(_, (uuid, _))| uuid == kept));
        for (volume, (uuid, name)) in wanted {
            if schedule_state.kept.get(&uuid).is_none_or(|again| *again <= Instant::now()) {
                let name = format!("{}/{name}", handle.name);
                self.delete_by_policy(volume, Located { pool: handle.clone(), uuid, name }, schedule_state).await;
            }
        }
    }

    /// Collects from the volumes with a schedule, as recorded last; nothing if the pool cannot make anything durable.
    fn of_policies<T>(&self, pool: Uuid, wanted: impl FnMut(&ScheduledVolume) -> Vec<T>) -> Vec<T> {
        let tables = self.inventory.read();
        match tables.pools.get(&pool).and_then(PoolEntry::served) {
            Some(served) if !served.failed.load(Ordering::Relaxed) => served.policies.iter().flat_map(wanted).collect(),
            _ => Vec::new(),
        }
    }

    async fn take_by_policy(
        &self,
        pool: &PoolHandle,
        of: &[NamedVolume],
        name: &str,
        schedule_state: &mut ScheduleState,
    ) -> Result<(), ErrorDetail> {
        let own = checked(name)?;
        let what = of.iter().map(|(volume, _)| Ok((*volume, random_uuid()?, own)));
        let what = what.collect::<Result<Vec<_>, ErrorDetail>>()?;
        let called: Vec<String> = of.iter().map(|(_, volume)| format!("{}/{volume}@{name}", pool.name)).collect();
        let taken = self.take_snapshots(pool, what, &called.join(", ")).await;
        if let Err(error) = taken {
            // A snapshot that waits for a hanging disk exists nevertheless.
            self.note_snapshots(pool.uuid).await;
            return Err(error);
        }
        for (volume, own) in of {
            schedule_state.last.insert(*volume, Instant::now());
            if schedule_state.failing.remove(volume).is_some() {
                let volume = format!("{}/{own}", pool.name);
                let message = format!("snapshots of volume {volume} can be taken on schedule again");
                self.inventory.events().info("snapshot_policy_works", message, &[("volume", &volume)]);
            }
        }
        Ok(())
    }

    /// Reports a failure once, and schedules the next attempt at growing intervals.
    fn on_policy_failed(
        &self,
        pool: &PoolHandle,
        (volume, own): &NamedVolume,
        error: &ErrorDetail,
        schedule_state: &mut ScheduleState,
    ) {
        // The daemon or the pool ends, or the volume was deleted.
        if self.inventory.refuse_while_stopping_or_upgrading().is_err()
            || error.kind == Kind::NotFound
            || error.kind == Kind::Inactive
        {
            return;
        }
        let reported = schedule_state.failing.get(volume).map(|(_, wait)| *wait);
        let wait = reported.map_or(RETRY_MIN, |wait| (wait * 2).min(RETRY_MAX));
        schedule_state.failing.insert(*volume, (Instant::now() + wait, wait));
        if reported.is_none() {
            let volume = format!("{}/{own}", pool.name);
            let message = format!(
                "no snapshot of volume {volume} could be taken on schedule; it is tried again: {}",
                error.message
            );
            self.inventory.events().error("snapshot_policy_failed", message, &[("volume", &volume)]);
        }
    }

    /// Drops the failures of volumes that have no schedule any more: they are no fault of the pool.
    fn drop_unscheduled(&self, pool: Uuid, schedule_state: &mut ScheduleState) {
        let wanted = self.of_policies(pool, |with| vec![(with.volume, with.name.clone())]);
        let wanted: BTreeMap<Uuid, String> = wanted.into_iter().collect();
        schedule_state.failing.retain(|volume, _| wanted.contains_key(volume));
        schedule_state.last.retain(|volume, _| wanted.contains_key(volume));
        let names: BTreeSet<String> =
            schedule_state.failing.keys().filter_map(|volume| wanted.get(volume).cloned()).collect();
        if let Some(served) = self.inventory.write().pools.get_mut(&pool).and_then(PoolEntry::served_mut) {
            served.policies_failing = names;
        }
    }

    /// Deletes a scheduled snapshot, unless it is in use: then it stays, and that is reported once.
    async fn delete_by_policy(self: &Arc<Self>, volume: Uuid, snapshot: Located, schedule_state: &mut ScheduleState) {
        let uuid = snapshot.uuid;
        let query = move |pool: &mut Pool| (PoolNext::Done, is_cloned(pool.state(), uuid, volume));
        let kept = match self.call(&snapshot.pool, query).await {
            Ok(true) => "a volume was cloned from it".to_owned(),
            Ok(false) => match self.delete_owner(&snapshot, OwnerKind::Snapshot, false, is_excess).await {
                // Another command has deleted it, or it is not in excess any more.
                Err(error) if error.kind == Kind::NotFound => return,
                Err(error) => error.message,
                Ok(()) => {
                    let message = format!("snapshot {} was deleted by its policy", snapshot.name);
                    return self.inventory.events().info("snapshot_deleted", message, &[("snapshot", &snapshot.name)]);
                }
            },
            // The pool is not served any more.
            Err(_) => return,
        };
        let reported = schedule_state.kept.insert(uuid, Instant::now() + RETRY_MIN);
        if reported.is_none() && self.inventory.refuse_while_stopping_or_upgrading().is_ok() {
            let message =
                format!("snapshot {} exceeds the number that its policy keeps, and stays: {kept}", snapshot.name);
            self.inventory.events().warning("snapshot_kept", message, &[("snapshot", &snapshot.name)]);
        }
    }
}

/// Returns true if a snapshot is in excess of its volume's schedule in their current state: the snapshot may have been
/// renamed since it was recorded, and the schedule may have been changed.
fn is_excess(state: &PoolTables, snapshot: &Owner) -> bool {
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
    // By their numbers, which are in the order in which they were taken: after the clock was set back, later snapshots
    // may have earlier names.
    let newer = state.owners.iter().filter(by_policy).filter(|other| other.id > snapshot.id).count();
    newer >= policy.keep as usize && !is_cloned(state, snapshot.uuid, snapshot.volume)
}

/// Returns true if another volume was cloned from a snapshot, directly or through deleted owners.
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

    /// A volume with a schedule, its clocks, and the snapshots taken of it.
    struct Scenario {
        policy: SnapshotSchedule,
        taken: Vec<ScheduledSnapshot>,
        now: u64,
        /// [`None`]: this daemon has taken none.
        since: Option<u64>,
        count: usize,
    }

    impl Scenario {
        fn new(keep: u32) -> Scenario {
            let policy = SnapshotSchedule { every_s: HOUR as u32, keep };
            Scenario { policy, taken: Vec::new(), now: 1_800_000_123, since: None, count: 0 }
        }

        /// Advances the time, with a look each second. Returns the number of snapshots taken.
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
                self.taken
                    .push(ScheduledSnapshot::of(Uuid::from_u128(self.count as u128), &name).expect("its own name"));
                self.since = Some(0);
                self.count += 1;
            }
            let many = excess(self.policy, &self.taken).to_vec();
            self.taken.retain(|taken| !many.contains(taken));
            assert!(self.taken.len() <= self.policy.keep as usize);
        }
    }

    #[test]
    fn one_snapshot_an_hour_is_taken_and_the_newest_are_kept() {
        let mut scenario = Scenario::new(3);
        // The first at once, then on the hour.
        assert_eq!(scenario.runs(10 * HOUR), 11);
        assert_eq!(scenario.taken.len(), 3);
        assert!(scenario.taken.iter().all(|taken| taken.at_unix_s % HOUR == 0), "{:?}", scenario.taken);
        // Further looks take no further snapshots.
        (0..100).for_each(|_| scenario.looks());
        assert_eq!(scenario.count, 11);
    }

    #[test]
    fn missed_times_are_made_up_for_by_one_snapshot() {
        let mut scenario = Scenario::new(24);
        scenario.runs(2 * HOUR);
        // The daemon was down for a week; then it is restarted each minute.
        (scenario.now, scenario.since) = (scenario.now + 7 * 24 * HOUR + 1234, None);
        let before = scenario.count;
        for _ in 0..5 {
            scenario.runs(60);
            scenario.since = None;
        }
        assert_eq!(scenario.count - before, 1);
        assert_eq!(scenario.runs(5 * HOUR), 5);
        // Suspended for a week, with all of its memory: one, too.
        scenario.now += 7 * 24 * HOUR;
        scenario.since = Some(7 * 24 * HOUR);
        assert_eq!(scenario.runs(60), 1);
    }

    #[test]
    fn setting_the_clock_neither_floods_nor_stops_snapshots() {
        let mut scenario = Scenario::new(1000);
        scenario.runs(3 * HOUR);
        // Back by a second at the moment at which one was taken, as a clock synchronisation may do: no further snapshot
        // is taken.
        scenario.runs(HOUR - scenario.now % HOUR);
        scenario.now -= 1;
        assert_eq!(scenario.runs(HOUR / 2), 0);
        assert_eq!(scenario.runs(HOUR), 1);
        // Back by a day: the interval stays the same.
        scenario.now -= 24 * HOUR;
        let taken = scenario.runs(10 * HOUR);
        assert!((9..=11).contains(&taken), "{taken}");
        // Back and forth each minute, for two hours.
        for far in [HOUR / 2, HOUR + HOUR / 2, 5 * HOUR, 500 * HOUR] {
            let before = scenario.count;
            for round in 0..120 {
                scenario.now = if round % 2 == 0 { scenario.now + far } else { scenario.now - far };
                scenario.runs(60);
            }
            assert!(scenario.count - before <= 4, "{} for {far} s", scenario.count - before);
            scenario.runs(2 * HOUR);
        }
        // The clock was years ahead when one was taken, and the daemon is restarted every ten minutes.
        scenario.taken.push(ScheduledSnapshot { uuid: Uuid::nil(), at_unix_s: scenario.now + 100_000 * HOUR });
        let before = scenario.count;
        for _ in 0..18 {
            scenario.since = None;
            scenario.runs(600);
        }
        let taken = scenario.count - before;
        assert!((3..=4).contains(&taken), "{taken} in three hours");
    }

    #[test]
    fn the_oldest_snapshots_are_in_excess_whatever_the_clock_said() {
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
        // Three were taken, then the clock was set back by a day, and two more were taken.
        let day = 24 * HOUR;
        let at = [10 * day, 10 * day + HOUR, 10 * day + 2 * HOUR, 9 * day, 9 * day + HOUR];
        for (at, slot) in at.iter().zip(0u32..) {
            state.owners.put(slot, Some(made(slot + 1, &policy_name(*at), true)));
        }
        state.owners.put(5, Some(made(6, "db", false)));
        let many = |slot: u32| is_excess(&state, state.owners.in_slot(slot).expect("it is there"));
        assert_eq!((0..5).map(many).collect::<Vec<_>>(), [true, true, false, false, false]);
    }

    #[test]
    fn a_lower_number_to_keep_takes_effect_at_once() {
        let mut scenario = Scenario::new(24);
        scenario.runs(30 * HOUR);
        assert_eq!(scenario.taken.len(), 24);
        scenario.policy.keep = 2;
        scenario.looks();
        assert_eq!(scenario.taken.len(), 2);
        assert_eq!(scenario.taken[1].at_unix_s, scenario.now / HOUR * HOUR);
    }
}
