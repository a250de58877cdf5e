//! What checks and repairs have found, in words: events, and what needs attention.

use super::{Keeping, jobs};
use braid_advice::Redundant;
use braid_advice::findings::sentence;
use braid_api::{Findings, Severity};
use braid_engine::keeper::{JobInfo, JobStage};
use braid_format::JobKind;
use braid_geometry::Level;
use braid_geometry::units::format_size;

/// The event that a check or repair is, if it is one now: it begins, or has ended.
pub fn event(array: &str, job: &JobInfo, is_new: bool) -> Option<(Severity, &'static str, String)> {
    let found = of(job);
    let what = if job.kind == JobKind::Repair { "repair" } else { "check" };
    let name = jobs::name_of(array, job.number);
    Some(match job.stage {
        JobStage::Running | JobStage::Paused if is_new => {
            let over = format_size(job.total_bytes);
            (Severity::Info, "check_begun", format!("{what} of array {array} begins (job {name}), over {over}"))
        }
        JobStage::Running | JobStage::Paused => return None,
        JobStage::Done if found.left_blocks() > 0 => {
            (Severity::Error, "damage_found", format!("{what} of array {array}: {}", sentence(&found)))
        }
        JobStage::Done if found.differing_blocks > 0 => {
            (Severity::Warning, "damage_mended", format!("{what} of array {array}: {}", sentence(&found)))
        }
        JobStage::Done if !found.is_complete() => {
            (Severity::Warning, "check_partial", format!("{what} of array {array}: {}", sentence(&found)))
        }
        JobStage::Done => (Severity::Info, "check_done", format!("{what} of array {array}: {}", sentence(&found))),
        JobStage::Cancelled | JobStage::Failed => {
            let why = if job.stage == JobStage::Failed { "could not go on" } else { "was given up" };
            let rest = sentence(&found);
            (Severity::Warning, "check_ended", format!("{what} of array {array} {why}; until then: {rest}"))
        }
    })
}

fn of(job: &JobInfo) -> Findings {
    job.findings.as_ref().map(jobs::findings).unwrap_or_default()
}

/// What a job could not read, in words.
pub fn unreadable(job: &JobInfo) -> Option<String> {
    let found = of(job);
    (found.unreadable_blocks > 0).then(|| sentence(&found))
}

/// Blocks that are known not to be as they should be.
pub fn damaged_blocks(keeping: &Keeping) -> u64 {
    let rebuilds = keeping
        .jobs()
        .into_iter()
        .filter(|job| matches!(job.kind, JobKind::Rebuild | JobKind::Replace) && !job.stage.is_over());
    let known = rebuilds.chain(keeping.alarm()).map(|job| of(&job).left_blocks());
    known.max().unwrap_or(0)
}

/// What is amiss since a check that found damage, and that none has found right since.
pub fn damage(job: &JobInfo, level: Level) -> Option<(Redundant, String)> {
    let found = of(job);
    if found.left_blocks() == 0 {
        return None;
    }
    let case = match (job.kind, level.parity()) {
        (JobKind::Repair, _) => Redundant::DamagedStill,
        (_, 0) => Redundant::DamagedCopies,
        (_, 1) => Redundant::DamagedParity,
        _ => Redundant::DamagedParities,
    };
    Some((case, format!("its check found damage: {}", sentence(&found))))
}
