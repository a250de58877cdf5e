//! How a redundant array stands, and what its user may do about it.

use super::super::tables::Active;
use super::board::is_check;
use super::{findings, journal, name_of};
use braid_advice::{self as advice, Case, Names, Redundant};
use braid_api::{Attention, Health, Redundancy};
use braid_engine::keeper::JobStage;
use braid_engine::lifecycle::tolerated_failures;
use braid_format::{JobKind, MemberState, StartPolicy};
use braid_geometry::Level;

/// What is said of parity that was not looked at since its array was started by force.
const IN_DOUBT: &str = "its parity may be of before the last writes, as it was started by force";
/// Unreadable ranges that are shown.
const UNREADABLE_SHOWN_MAX: usize = 256;

/// How it stands; none at levels without redundancy.
pub fn of(active: &Active) -> Option<Health> {
    let keeping = active.keeping()?;
    let roles = super::members::roles_of(&active.label);
    let has = |wanted: &[MemberState]| active.label.members.iter().take(roles).any(|m| wanted.contains(&m.state));
    Some(if keeping.has_failed() {
        Health::Failed
    } else if has(&[MemberState::Failed, MemberState::Empty]) {
        Health::Degraded
    } else if has(&[MemberState::Rebuilding]) {
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
    /// The job that fills it, where that waits by command.
    pub waits: Option<u64>,
}

/// The members that do not hold everything, by role.
pub fn lacking(active: &Active) -> Vec<Lacking> {
    let roles = super::members::roles_of(&active.label);
    let members = active.label.members.iter().take(roles).zip(0u16..);
    let lacking = members.filter_map(|(entry, role)| match entry.state {
        MemberState::Failed | MemberState::Empty => {
            let why = active.away.get(&role).map(|away| away.why.clone()).unwrap_or_default();
            Some(Lacking { role, state: entry.state, why, waits: None })
        }
        MemberState::Rebuilding => {
            let job = active.keeping().and_then(|keeping| keeping.going(JobKind::Rebuild, Some(role)));
            let progress = job.as_ref().map(super::board::progress);
            let share = progress.map_or(0, |p| 100 * p.done_bytes / p.total_bytes.max(1));
            let lacks = job.as_ref().and_then(findings::unreadable).map_or(String::new(), |lacks| format!("; {lacks}"));
            let waits = job.filter(|job| job.stage == JobStage::Paused).map(|job| job.number);
            Some(Lacking { role, state: entry.state, why: format!("{share} % done{lacks}"), waits })
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
        .filter_map(|Lacking { role, state, why, .. }| match (state, active.away.get(&role)) {
            (MemberState::Failed, Some(away)) if !away.disk.is_empty() => {
                Some(format!("member {role} (disk {}) is out: {why}", away.disk))
            }
            (MemberState::Failed, _) => Some(format!("member {role} is out")),
            (MemberState::Empty, _) => Some(format!("slot {role} has no member")),
            (MemberState::Rebuilding, _) => Some(format!("member {role} is brought up to date: {why}")),
            _ => None,
        })
        .collect();
    let jobs = active.keeping().map(|keeping| keeping.jobs()).unwrap_or_default();
    let waiting = jobs.iter().filter(|job| job.stage == JobStage::Paused);
    sentences.extend(waiting.map(|job| format!("job {} waits, by command", job.number)));
    sentences.extend(active.keeping().and_then(|keeping| keeping.unreadable(&active.label).sentence()));
    sentences.extend(journal::sentence(active));
    sentences.extend(active.keeping().filter(|keeping| keeping.is_in_doubt()).map(|_| IN_DOUBT.to_owned()));
    sentences
}

/// What needs attention.
pub fn attention(name: &str, active: &Active) -> Vec<Attention> {
    let health = of(active).and_then(|health| of_health(active, health));
    let said = health.into_iter().chain(of_unreadable(active)).chain(journal::lost(active)).chain(of_damage(active));
    let said = said.map(|(case, message)| {
        advice::of(Case::Redundant(case), Names::of(name)).attention(format!("array {name}"), message)
    });
    said.chain(of_doubt(name, active)).collect()
}

/// What of the array above the replicas of a volume needs attention, besides its replicas.
pub fn attention_of_volume(name: &str, active: &Active) -> Vec<Attention> {
    let health = of(active).and_then(|health| of_health(active, health));
    // What is out or being filled is said of each replica.
    let health = health.filter(|(case, _)| matches!(case, Redundant::Lost | Redundant::RebuildLacks));
    let said = health.into_iter().chain(of_unreadable(active)).chain(journal::lost(active)).chain(of_damage(active));
    said.map(|(case, message)| {
        advice::of(Case::ServedVolume(case), Names::of(name)).attention(format!("volume {name}"), message)
    })
    .collect()
}

/// What is amiss since a check, a repair or a resync that has found damage.
fn of_damage(active: &Active) -> Option<(Redundant, String)> {
    let job = active.keeping()?.alarm()?;
    if job.kind == JobKind::Resync {
        let found = findings::unreadable(&job)?;
        return Some((Redundant::DamagedStill, format!("its resync found damage: {found}")));
    }
    findings::damage(&job, active.label.spec.level)
}

/// That the parity is in doubt, and what ends that.
fn of_doubt(name: &str, active: &Active) -> Option<Attention> {
    let keeping = active.keeping().filter(|keeping| keeping.is_in_doubt())?;
    let look = if active.label.spec.level.parity() == 1 { "repair" } else { "check" };
    let going = keeping.newest(|job| is_check(job.kind) && !job.stage.is_over());
    let (remedy, commands) = match going.map(|job| name_of(name, job.number)) {
        Some(job) => (format!("wait until job {job} has gone over all of it"), vec![format!("braid job watch {job}")]),
        None if of(active) == Some(Health::Whole) => (
            format!("let a {look} go over all of it; one that was given up begins again with the next start"),
            vec![format!("braid array {look} {name}")],
        ),
        None => (
            format!("a {look} of all of it begins by itself as soon as all members are in sync"),
            vec![format!("braid array show {name}")],
        ),
    };
    Some(Attention {
        subject: format!("array {name}"),
        message: IN_DOUBT.to_owned(),
        meaning: "It serves as usual. What is computed for a member that is lost before all parity was looked at may be wrong."
            .to_owned(),
        remedy,
        commands,
    })
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
