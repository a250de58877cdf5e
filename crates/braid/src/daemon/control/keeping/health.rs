//! How a redundant array stands, and what its user may do about it.

use super::super::tables::Active;
use super::{findings, journal};
use crate::daemon::advice::{self, Case, Names, Redundant};
use braid_api::{Attention, Health, Redundancy};
use braid_engine::keeper::JobStage;
use braid_engine::lifecycle::tolerated_failures;
use braid_format::{JobKind, MemberState, StartPolicy};
use braid_geometry::Level;

/// Unreadable ranges that are shown.
const UNREADABLE_SHOWN_MAX: usize = 256;

/// How it stands; none at levels without redundancy.
pub fn of(active: &Active) -> Option<Health> {
    let keeping = active.keeping()?;
    let roles = super::members::roles_of(&active.label);
    let has = |wanted: &[MemberState]| active.label.members.iter().take(roles).any(|m| wanted.contains(&m.state));
    Some(if keeping.has_failed() {
        Health::Failed
    } else if has(&[MemberState::Out, MemberState::Absent]) {
        Health::Degraded
    } else if has(&[MemberState::Filling]) {
        Health::Rebuilding
    } else if keeping.regions().unsettled.count() > 0 {
        Health::Resyncing
    } else {
        Health::Whole
    })
}

/// What only redundant arrays have.
pub fn redundancy(active: &Active) -> Option<Redundancy> {
    let (keeping, health) = (active.keeping()?, of(active)?);
    let regions = keeping.regions();
    let spec = active.label.spec;
    let copies = match spec.level {
        Level::Raid1 => super::members::roles_of(&active.label) as u16,
        Level::Raid10 => spec.copies,
        _ => 1,
    };
    let parities = spec.level.parity();
    let copies_least = active
        .label
        .geometry()
        .ok()
        .and_then(|geometry| geometry.zones().iter().map(|zone| spec.copies_over(zone.members.len())).min());
    let in_sync = |role: u16| {
        active.label.members.get(usize::from(role)).is_some_and(|member| member.state == MemberState::InSync)
    };
    let tolerates_now = match health {
        Health::Failed => 0,
        _ => active.label.geometry().ok().and_then(|geometry| tolerated_failures(&geometry, in_sync)).unwrap_or(0),
    };
    let unreadable = keeping.unreadable(&active.label);
    Some(Redundancy {
        health,
        copies,
        parities,
        tolerates: parities + copies_least.unwrap_or(1).saturating_sub(1) as u16,
        tolerates_now,
        region_bytes: keeping.region_bytes(),
        regions: active.size_bytes.div_ceil(keeping.region_bytes().max(1)),
        regions_written: regions.written.count(),
        regions_dirty: regions.dirty.count(),
        resync: keeping.progress(JobKind::Resync, None),
        damaged_blocks: findings::damaged_blocks(keeping),
        unreadable_bytes: unreadable.bytes(),
        unreadable: unreadable.first(UNREADABLE_SHOWN_MAX),
        journal: journal::shown(active),
        start_degraded: if active.label.start_policy == StartPolicy::Auto { "auto" } else { "wait" }.to_owned(),
    })
}

/// A member that does not hold everything.
pub struct Lacking {
    /// Its role.
    pub role: u16,
    /// Out, absent or filling.
    pub state: MemberState,
    /// Why it is out, or how far it is filled; empty where that is not known.
    pub why: String,
}

/// The members that do not hold everything, by role.
pub fn lacking(active: &Active) -> Vec<Lacking> {
    let roles = super::members::roles_of(&active.label);
    let members = active.label.members.iter().take(roles).zip(0u16..);
    let lacking = members.filter_map(|(entry, role)| match entry.state {
        MemberState::Out | MemberState::Absent => {
            let why = active.away.get(&role).map(|away| away.why.clone()).unwrap_or_default();
            Some(Lacking { role, state: entry.state, why })
        }
        MemberState::Filling => {
            let job = active.keeping().and_then(|keeping| keeping.going(JobKind::Rebuild, Some(role)));
            let progress = job.as_ref().map(super::board::progress);
            let share = progress.map_or(0, |p| 100 * p.done_bytes / p.total_bytes.max(1));
            let lacks = job.as_ref().and_then(findings::unreadable).map_or(String::new(), |lacks| format!("; {lacks}"));
            Some(Lacking { role, state: entry.state, why: format!("{share} % done{lacks}") })
        }
        _ => None,
    });
    lacking.collect()
}

/// What is amiss, a sentence each.
pub fn sentences(active: &Active, health: Health) -> Vec<String> {
    if health == Health::Failed {
        return vec![
            "more members are lost than it tolerates: nothing more is written, and every request fails".to_owned(),
        ];
    }
    let mut sentences: Vec<String> = lacking(active)
        .into_iter()
        .filter_map(|Lacking { role, state, why }| match (state, active.away.get(&role)) {
            (MemberState::Out, Some(away)) if !away.disk.is_empty() => {
                Some(format!("member {role} (disk {}) is out: {why}", away.disk))
            }
            (MemberState::Out, _) => Some(format!("member {role} is out")),
            (MemberState::Absent, _) => Some(format!("slot {role} has no member")),
            (MemberState::Filling, _) => Some(format!("member {role} is brought up to date: {why}")),
            _ => None,
        })
        .collect();
    let jobs = active.keeping().map(|keeping| keeping.jobs()).unwrap_or_default();
    let waiting = jobs.iter().filter(|job| job.stage == JobStage::Paused);
    sentences.extend(waiting.map(|job| format!("job {} waits, by command", job.number)));
    sentences.extend(active.keeping().and_then(|keeping| keeping.unreadable(&active.label).sentence()));
    sentences.extend(journal::sentence(active));
    sentences
}

/// What needs attention.
pub fn attention(name: &str, active: &Active) -> Vec<Attention> {
    let checked = active.keeping().and_then(|keeping| keeping.alarm());
    let damage = checked.and_then(|job| findings::damage(&job, active.label.spec.level));
    let health = of(active).and_then(|health| of_health(active, health));
    let said = health.into_iter().chain(of_unreadable(active)).chain(journal::lost(active)).chain(damage);
    said.map(|(case, message)| {
        advice::of(Case::Redundant(case), Names::of(name)).attention(format!("array {name}"), message)
    })
    .collect()
}

/// What of the array above the replicas of a volume needs attention, besides its replicas.
pub fn attention_of_volume(name: &str, active: &Active) -> Vec<Attention> {
    let checked = active.keeping().and_then(|keeping| keeping.alarm());
    let damage = checked.and_then(|job| findings::damage(&job, active.label.spec.level));
    let health = of(active).and_then(|health| of_health(active, health));
    // What is out or being filled is said of each replica.
    let health = health.filter(|(case, _)| matches!(case, Redundant::Lost | Redundant::RebuildLacks));
    let said = health.into_iter().chain(of_unreadable(active)).chain(journal::lost(active)).chain(damage);
    said.map(|(case, message)| {
        advice::of(Case::ServedVolume(case), Names::of(name)).attention(format!("volume {name}"), message)
    })
    .collect()
}

fn of_unreadable(active: &Active) -> Option<(Redundant, String)> {
    let unreadable = active.keeping()?.unreadable(&active.label);
    Some((Redundant::Unreadable, unreadable.sentence()?))
}

/// Whether a member that is being filled cannot be completed.
fn lacks(active: &Active) -> bool {
    let jobs = active.keeping().map(|keeping| keeping.jobs()).unwrap_or_default();
    let rebuilds =
        jobs.iter().filter(|job| matches!(job.kind, JobKind::Rebuild | JobKind::Replace) && !job.stage.is_over());
    rebuilds.filter_map(findings::unreadable).next().is_some()
}

fn of_health(active: &Active, health: Health) -> Option<(Redundant, String)> {
    let case = match health {
        Health::Failed => Redundant::Lost,
        Health::Rebuilding if lacks(active) => Redundant::RebuildLacks,
        Health::Rebuilding => Redundant::Rebuilding,
        Health::Degraded => Redundant::Degraded,
        _ => return None,
    };
    Some((case, format!("{}: {}", health.word(), sentences(active, health).join("; "))))
}
