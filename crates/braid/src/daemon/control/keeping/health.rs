//! How a redundant array stands, and what its user may do about it.

use super::super::tables::Active;
use super::{Unreadable, findings, journal};
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

/// What is amiss, a sentence each.
pub fn sentences(active: &Active, health: Health) -> Vec<String> {
    if health == Health::Failed {
        return vec![
            "more members are lost than it tolerates: nothing more is written, and every request fails".to_owned(),
        ];
    }
    let roles = super::members::roles_of(&active.label);
    let members = active.label.members.iter().take(roles).zip(0u16..);
    let mut sentences: Vec<String> = members
        .filter_map(|(entry, role)| match (entry.state, active.away.get(&role)) {
            (MemberState::Out, Some(away)) if !away.disk.is_empty() => {
                Some(format!("member {role} (disk {}) is out: {}", away.disk, away.why))
            }
            (MemberState::Out, _) => Some(format!("member {role} is out")),
            (MemberState::Absent, _) => Some(format!("slot {role} has no member")),
            (MemberState::Filling, _) => {
                let job = active.keeping().and_then(|keeping| keeping.going(JobKind::Rebuild, Some(role)));
                let progress = job.as_ref().map(super::board::progress);
                let share = progress.map_or(0, |p| 100 * p.done_bytes / p.total_bytes.max(1));
                let lacks =
                    job.as_ref().and_then(findings::unreadable).map_or(String::new(), |lacks| format!("; {lacks}"));
                Some(format!("member {role} is brought up to date: {share} % done{lacks}"))
            }
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
    let damage = checked.and_then(|job| findings::attention(name, &job, active.label.spec.level));
    let unreadable = active.keeping().and_then(|keeping| of_unreadable(name, &keeping.unreadable(&active.label)));
    let health = of(active).and_then(|health| of_health(name, active, health));
    let journal = journal::attention(name, active);
    health.into_iter().chain(unreadable).chain(journal).chain(damage).collect()
}

fn of_unreadable(name: &str, unreadable: &Unreadable) -> Option<Attention> {
    Some(Attention {
        subject: format!("array {name}"),
        message: unreadable.sentence()?,
        meaning: "These rows were being written when the daemon or the machine died, and a member that had some of it is lost: \
                  what they held cannot be known, and nothing is invented. All else serves as usual."
            .to_owned(),
        remedy: "write these ranges again, in any order and in pieces of 4096 bytes or more: restore what was there from a backup, or zero them".to_owned(),
        commands: vec![format!("braid array show {name}")],
    })
}

/// Whether a member that is being filled cannot be completed.
fn lacks(active: &Active) -> bool {
    let jobs = active.keeping().map(|keeping| keeping.jobs()).unwrap_or_default();
    let rebuilds =
        jobs.iter().filter(|job| matches!(job.kind, JobKind::Rebuild | JobKind::Replace) && !job.stage.is_over());
    rebuilds.filter_map(findings::unreadable).next().is_some()
}

fn of_health(name: &str, active: &Active, health: Health) -> Option<Attention> {
    let show = format!("braid array show {name}");
    let (meaning, remedy, commands) = match health {
        Health::Failed => (
            "Its clients get errors. What was flushed before is on its disks, which are left alone.",
            "attach its disks again, then start it anew",
            vec![show, format!("braid array assemble {name}")],
        ),
        Health::Rebuilding if lacks(active) => (
            "It serves as usual. A member cannot be completed, as no other has all that it needs: another failure may be one too many.",
            "write those places again, for example by restoring the file that is there: it goes on by itself within seconds",
            vec![show, "braid job list".to_owned()],
        ),
        Health::Rebuilding => (
            "It serves as usual. Until this is done another failure may be one too many.",
            "wait until it is done",
            vec![show],
        ),
        Health::Degraded => (
            "It serves as usual. Another failure may be one too many.",
            "attach the disk again if it is well, or add another one",
            vec![show, format!("braid array add {name} DISK")],
        ),
        _ => return None,
    };
    Some(Attention {
        subject: format!("array {name}"),
        message: format!("{}: {}", health.word(), sentences(active, health).join("; ")),
        meaning: meaning.to_owned(),
        remedy: remedy.to_owned(),
        commands,
    })
}
