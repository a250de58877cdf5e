//! The findings of checks and repairs as text: for events, and for the list of what needs attention.

use braid_advice::Redundant;
use braid_advice::findings::sentence;
use braid_api::{Findings, Severity};
use braid_array_admin::reconciler::{JobInfo, JobStage};
use braid_format::JobKind;
use braid_geometry::Level;
use braid_geometry::units::format_size;
use braid_inventory::ReconcilerHandle;

/// Returns the event of a check or repair that begins or has ended: severity, kind and message. [`None`] for progress.
pub(crate) fn event(array: &str, job: &JobInfo, is_new: bool) -> Option<(Severity, &'static str, String)> {
    let found = of(job);
    let what = if job.kind == JobKind::Repair { "repair" } else { "check" };
    let name = braid_inventory::job_table::name_of(array, job.number);
    Some(match job.stage {
        JobStage::Running | JobStage::Paused if is_new => {
            let over = format_size(job.total_bytes);
            (Severity::Info, "check_begun", format!("{what} of array {array} started (job {name}): {over}"))
        }
        JobStage::Running | JobStage::Paused => return None,
        JobStage::Done if found.left_blocks() > 0 => {
            (Severity::Error, "damage_found", format!("{what} of array {array}: {}", sentence(&found)))
        }
        JobStage::Done if found.differing_blocks > 0 => {
            (Severity::Warning, "damage_repaired", format!("{what} of array {array}: {}", sentence(&found)))
        }
        JobStage::Done if !found.is_complete() => {
            (Severity::Warning, "check_partial", format!("{what} of array {array}: {}", sentence(&found)))
        }
        JobStage::Done => (Severity::Info, "check_done", format!("{what} of array {array}: {}", sentence(&found))),
        JobStage::Cancelled | JobStage::Failed => {
            let why = if job.stage == JobStage::Failed { "failed" } else { "was cancelled" };
            let rest = sentence(&found);
            (Severity::Warning, "check_ended", format!("{what} of array {array} {why}; until then: {rest}"))
        }
    })
}

/// Returns the findings of a job so far.
fn of(job: &JobInfo) -> Findings {
    job.findings.as_ref().map(braid_inventory::job_table::findings).unwrap_or_default()
}

/// Describes what a job could not read; none if it could read everything.
pub(crate) fn unreadable(job: &JobInfo) -> Option<String> {
    let found = of(job);
    (found.unreadable_blocks > 0).then(|| sentence(&found))
}

/// Returns the number of blocks that are known to be damaged.
pub(crate) fn damaged_blocks(handle: &ReconcilerHandle) -> u64 {
    let rebuilds = handle
        .jobs()
        .into_iter()
        .filter(|job| matches!(job.kind, JobKind::Rebuild | JobKind::Replace) && !job.stage.is_over());
    let known = rebuilds.chain(handle.alarm()).map(|job| of(&job).left_blocks());
    known.max().unwrap_or(0)
}

/// Describes the damage that a check found and that no later check found intact.
pub(crate) fn damage(job: &JobInfo, level: Level) -> Option<(Redundant, String)> {
    let found = of(job);
    if found.left_blocks() == 0 {
        return None;
    }
    let case = match (job.kind, level.parity()) {
        (JobKind::Repair, _) => Redundant::DamageRemains,
        (_, 0) => Redundant::DamagedCopies,
        (_, 1) => Redundant::DamagedParity,
        _ => Redundant::DamagedParities,
    };
    Some((case, format!("its check found damage: {}", sentence(&found))))
}
