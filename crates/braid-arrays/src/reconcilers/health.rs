//! The health of a redundant array, and what its user may do about it.

use crate::reconcilers::members::slot_count;
use crate::reconcilers::{findings, journal};
use braid_advice::{self as advice, ArrayCase, Case, ObjectNames, Redundant};
use braid_api::{Attention, AttentionCode, Health, Redundancy};
use braid_array_admin::lifecycle::tolerated_failures;
use braid_array_admin::reconciler::JobStage;
use braid_format::{JobKind, MemberState, StartPolicy};
use braid_geometry::Level;
use braid_inventory::ActiveArray;
use braid_inventory::job_table::{is_check, name_of, progress};

/// Message about parity that was not verified since its array was started by force.
const IN_DOUBT: &str = "its parity may predate the last writes, as it was started by force";

/// Maximum number of unreadable ranges that are shown.
const UNREADABLE_SHOWN_MAX: usize = 256;

/// Returns the health of an array; [`None`] at levels without redundancy.
pub fn of(active: &ActiveArray) -> Option<Health> {
    let handle = active.reconciler()?;
    let slots = slot_count(&active.label);
    let has = |wanted: &[MemberState]| active.label.members.iter().take(slots).any(|m| wanted.contains(&m.state));
    Some(if handle.has_failed() {
        Health::Failed
    } else if has(&[MemberState::Failed, MemberState::Empty]) {
        Health::Degraded
    } else if has(&[MemberState::Rebuilding]) {
        Health::Rebuilding
    } else if handle.regions().unequal.count() > 0 {
        Health::Resyncing
    } else {
        Health::Whole
    })
}

/// Returns the part of an array's description that only redundant arrays have.
pub(crate) fn redundancy(active: &ActiveArray) -> Option<Redundancy> {
    let (handle, health) = (active.reconciler()?, of(active)?);
    let regions = handle.regions();
    let spec = active.label.spec;
    let copies = match spec.level {
        Level::Raid1 => slot_count(&active.label) as u16,
        Level::Raid10 => spec.copies,
        _ => 1,
    };
    let parities = spec.level.parity();
    let copies_least = active
        .label
        .geometry()
        .ok()
        .and_then(|geometry| geometry.zones().iter().map(|zone| spec.copies_over(zone.members.len())).min());
    let in_sync = |slot: u16| {
        active.label.members.get(usize::from(slot)).is_some_and(|member| member.state == MemberState::InSync)
    };
    let tolerates_now = match health {
        Health::Failed => 0,
        _ => active.label.geometry().ok().and_then(|geometry| tolerated_failures(&geometry, in_sync)).unwrap_or(0),
    };
    let unreadable = handle.unreadable(&active.label);
    Some(Redundancy {
        health,
        copies,
        parities,
        tolerates: parities + copies_least.unwrap_or(1).saturating_sub(1) as u16,
        tolerates_now,
        region_bytes: handle.region_bytes(),
        regions: active.size_bytes.div_ceil(handle.region_bytes().max(1)),
        regions_written: regions.written.count(),
        regions_dirty: regions.dirty.count(),
        resync: handle.progress(JobKind::Resync, None),
        damaged_blocks: findings::damaged_blocks(handle),
        unreadable_bytes: unreadable.bytes(),
        unreadable: unreadable.first(UNREADABLE_SHOWN_MAX),
        journal: journal::shown(active),
        start_degraded: if active.label.start_policy == StartPolicy::Auto { "auto" } else { "wait" }.to_owned(),
    })
}

/// A member that does not hold all of its data.
pub struct Lacking {
    /// Its slot.
    pub role: u16,
    /// Failed, empty or rebuilding.
    pub state: MemberState,
    /// Why it failed, or how much of it is rebuilt; empty if not known.
    pub why: String,
    /// The job that rebuilds it, if the job is paused.
    pub waits: Option<u64>,
}

/// Returns the members that do not hold all of their data, by slot.
pub fn incomplete_members(active: &ActiveArray) -> Vec<Lacking> {
    let slots = slot_count(&active.label);
    let members = active.label.members.iter().take(slots).zip(0u16..);
    let lacking = members.filter_map(|(entry, slot)| match entry.state {
        MemberState::Failed | MemberState::Empty => {
            let why = active.missing.get(&slot).map(|missing| missing.why.clone()).unwrap_or_default();
            Some(Lacking { role: slot, state: entry.state, why, waits: None })
        }
        MemberState::Rebuilding => {
            let job = active.reconciler().and_then(|handle| handle.running_job(JobKind::Rebuild, Some(slot)));
            let done = job.as_ref().map(progress);
            let share = done.map_or(0, |p| 100 * p.done_bytes / p.total_bytes.max(1));
            let lacks = job.as_ref().and_then(findings::unreadable).map_or(String::new(), |lacks| format!("; {lacks}"));
            let waits = job.filter(|job| job.stage == JobStage::Paused).map(|job| job.number);
            Some(Lacking { role: slot, state: entry.state, why: format!("{share} % done{lacks}"), waits })
        }
        _ => None,
    });
    lacking.collect()
}

/// Describes what is wrong, one sentence for each fault.
pub(crate) fn sentences(active: &ActiveArray, health: Health) -> Vec<String> {
    if health == Health::Failed {
        return vec![
            "more members have failed than it tolerates: nothing more is written, and every request fails".to_owned(),
        ];
    }
    let mut sentences: Vec<String> = incomplete_members(active)
        .into_iter()
        .filter_map(|Lacking { role: slot, state, why, .. }| match (state, active.missing.get(&slot)) {
            (MemberState::Failed, Some(missing)) if !missing.disk.is_empty() => {
                Some(format!("member {slot} (disk {}) has failed: {why}", missing.disk))
            }
            (MemberState::Failed, _) => Some(format!("member {slot} has failed")),
            (MemberState::Empty, _) => Some(format!("slot {slot} has no member")),
            (MemberState::Rebuilding, _) => Some(format!("member {slot} is being rebuilt: {why}")),
            _ => None,
        })
        .collect();
    let jobs = active.reconciler().map(|handle| handle.jobs()).unwrap_or_default();
    let waiting = jobs.iter().filter(|job| job.stage == JobStage::Paused);
    sentences.extend(waiting.map(|job| format!("job {} is paused", job.number)));
    sentences.extend(active.reconciler().and_then(|handle| handle.unreadable(&active.label).sentence()));
    sentences.extend(journal::sentence(active));
    sentences.extend(active.reconciler().filter(|handle| handle.is_in_doubt()).map(|_| IN_DOUBT.to_owned()));
    sentences
}

/// Returns what needs attention on an array; `pool` is the pool on it that serves.
pub(crate) fn attention(name: &str, active: &ActiveArray, pool: Option<&str>) -> Vec<Attention> {
    let health = of(active).and_then(|health| of_health(active, health));
    let said = health.into_iter().chain(of_unreadable(active)).chain(journal::lost(active)).chain(of_damage(active));
    let said = said.map(|(case, message)| {
        let advice = match (case, pool) {
            (Redundant::TooManyFailures, Some(pool)) => {
                advice::of(Case::Array(ArrayCase::FailedUnderPool), ObjectNames::with(name, pool))
            }
            _ => advice::of(Case::Redundant(case), ObjectNames::of(name)),
        };
        advice.attention(format!("array {name}"), message)
    });
    said.chain(of_doubt(name, active)).collect()
}

/// Returns what needs attention on the array above a replicated volume's replicas, apart from the replicas themselves.
pub fn attention_of_volume(name: &str, active: &ActiveArray) -> Vec<Attention> {
    let health = of(active).and_then(|health| of_health(active, health));
    // Failed and rebuilding members are reported for each replica.
    let health = health.filter(|(case, _)| matches!(case, Redundant::TooManyFailures | Redundant::RebuildIncomplete));
    let said = health.into_iter().chain(of_unreadable(active)).chain(journal::lost(active)).chain(of_damage(active));
    said.map(|(case, message)| {
        advice::of(Case::ServedVolume(case), ObjectNames::of(name)).attention(format!("volume {name}"), message)
    })
    .collect()
}

/// Returns the damage found by a check, repair or resync that no later one found intact.
fn of_damage(active: &ActiveArray) -> Option<(Redundant, String)> {
    let job = active.reconciler()?.alarm()?;
    if job.kind == JobKind::Resync {
        let found = findings::unreadable(&job)?;
        return Some((Redundant::DamageRemains, format!("its resync found damage: {found}")));
    }
    findings::damage(&job, active.label.spec.level)
}

/// Returns the attention item about parity in doubt, with the commands that end the doubt.
fn of_doubt(name: &str, active: &ActiveArray) -> Option<Attention> {
    let handle = active.reconciler().filter(|handle| handle.is_in_doubt())?;
    let look = if active.label.spec.level.parity() == 1 { "repair" } else { "check" };
    let going = handle.newest(|job| is_check(job.kind) && !job.stage.is_over());
    let (remedy, commands) = match going.map(|job| name_of(name, job.number)) {
        Some(job) => (format!("wait until job {job} is complete"), vec![format!("braid job watch {job}")]),
        None if of(active) == Some(Health::Whole) => (
            format!("run a complete {look}; a cancelled one begins again at the next start"),
            vec![format!("braid array {look} {name}")],
        ),
        None => (
            format!("a complete {look} begins automatically as soon as all members are in sync"),
            vec![format!("braid array show {name}")],
        ),
    };
    Some(Attention {
        code: AttentionCode::ArrayParityUnverified,
        subject: format!("array {name}"),
        message: IN_DOUBT.to_owned(),
        impact: "It serves as usual. Data computed for a member that fails before all parity is verified may be wrong."
            .to_owned(),
        remedy,
        commands,
    })
}

/// Returns the bytes that cannot be read from any member.
fn of_unreadable(active: &ActiveArray) -> Option<(Redundant, String)> {
    let unreadable = active.reconciler()?.unreadable(&active.label);
    Some((Redundant::Unreadable, unreadable.sentence()?))
}

/// Returns true if a rebuild cannot complete because some of its sources cannot be read.
fn lacks(active: &ActiveArray) -> bool {
    let jobs = active.reconciler().map(|handle| handle.jobs()).unwrap_or_default();
    let rebuilds =
        jobs.iter().filter(|job| matches!(job.kind, JobKind::Rebuild | JobKind::Replace) && !job.stage.is_over());
    rebuilds.filter_map(findings::unreadable).next().is_some()
}

/// Returns what is wrong with the members; none if they are whole, or only being resynced.
fn of_health(active: &ActiveArray, health: Health) -> Option<(Redundant, String)> {
    let case = match health {
        Health::Failed => Redundant::TooManyFailures,
        Health::Rebuilding if lacks(active) => Redundant::RebuildIncomplete,
        Health::Rebuilding => Redundant::Rebuilding,
        Health::Degraded => Redundant::Degraded,
        _ => return None,
    };
    Some((case, format!("{}: {}", health.word(), sentences(active, health).join("; "))))
}
