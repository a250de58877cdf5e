//! What checks and repairs have found, in words: events, and what needs attention.

use super::{Keeping, jobs};
use crate::findings::sentence;
use braid_api::{Attention, Findings, Severity};
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

/// What needs attention since a check that found damage, and that none has found right since.
pub fn attention(array: &str, job: &JobInfo, level: Level) -> Option<Attention> {
    let found = of(job);
    if found.left_blocks() == 0 {
        return None;
    }
    let (remedy, commands) = if job.kind == JobKind::Repair {
        (
            "what cannot be read is lost unless a backup has it: write those places again, then check once more",
            vec!["braid job list".to_owned(), format!("braid array check {array}")],
        )
    } else {
        let how = match level.parity() {
            0 => "make the copies equal: as most have it, else as the first member has it; then look at the disks",
            1 => {
                "one parity cannot tell which member is wrong: compare what is at those places with a backup, then make the \
                 parity agree with it; then look at the disks"
            }
            _ => {
                "compute what is wrong from the other members, as two parities tell which; after a start by force without the \
                 journal believe the data instead, as they may be newer than both parities (--from-data); then look at the disks"
            }
        };
        let mut commands = vec![format!("braid array repair {array}"), format!("braid array show {array}")];
        if level.parity() > 1 {
            commands.insert(1, format!("braid array repair {array} --from-data"));
        }
        (how, commands)
    };
    Some(Attention {
        subject: format!("array {array}"),
        message: format!("its check found damage: {}", sentence(&found)),
        meaning: match level.parity() {
            0 => "It serves as usual. Which copy of such a block a client reads is a matter of chance.",
            _ => "It serves as usual. Clients read such a block as its member has it, and a rebuild would compute others from it.",
        }
        .to_owned(),
        remedy: remedy.to_owned(),
        commands,
    })
}
