//! Watches jobs: one live line with a bar for each at a terminal, a line for each 10 % elsewhere, and the outcome of each job.

use super::{failure, job_progress, output};
use braid_advice::findings::sentence;
use braid_api::{Job, JobList, JobState, Progress};
use braid_client::Client;
use braid_geometry::units::format_size;
use braid_terminal::progress::{self, LiveLines};
use clap::Args;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Without a terminal, a line is printed each time a job has progressed by this many percent.
const LINE_EVERY_PERCENT: u64 = 10;

/// Whether a command that starts a job waits until the job ends.
#[derive(Args, Clone, Copy)]
pub struct Wait {
    /// Wait until the job ends [default at a terminal]
    #[arg(long, conflicts_with = "no_wait")]
    wait: bool,
    /// Do not wait, not even at a terminal; the job continues in the background
    #[arg(long)]
    no_wait: bool,
}

impl Wait {
    /// Whether the command waits.
    pub fn is_wanted(self) -> bool {
        self.wait || !self.no_wait && std::io::stdout().is_terminal() && std::io::stderr().is_terminal()
    }
}

/// Watches jobs until all have ended and returns them; `None` if interrupted. With `quiet`, no progress is shown.
///
/// # Errors
/// The daemon's error, also if it no longer knows a job.
pub async fn follow(client: &Client, names: &[String], quiet: bool) -> anyhow::Result<Option<Vec<Job>>> {
    let mut line = Line::new(quiet);
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        let mut jobs: Vec<Job> = Vec::with_capacity(names.len());
        for name in names {
            jobs.push(client.get(&format!("/v1/jobs/{name}")).await?);
        }
        line.show(&jobs);
        if jobs.iter().all(|job| job.state.is_over()) {
            line.clear();
            return Ok(Some(jobs));
        }
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            _ = &mut interrupted => {
                line.clear();
                let running = jobs.iter().filter(|job| !job.state.is_over());
                let names = running.map(|job| job.name.clone()).collect::<Vec<_>>().join(" ");
                output::error_text(&format!("stopped waiting; the job continues: braid job watch {names}\n"));
                return Ok(None);
            }
        }
    }
}

/// Watches the newest job for which `is` holds, if waiting is wanted and there is such a job.
///
/// # Errors
/// See [`follow`].
pub async fn follow_newest(
    client: &Client,
    wait: Wait,
    json: bool,
    is: impl Fn(&Job) -> bool,
) -> anyhow::Result<ExitCode> {
    if !wait.is_wanted() {
        return Ok(ExitCode::SUCCESS);
    }
    let list: JobList = client.get("/v1/jobs").await?;
    let Some(job) = list.jobs.into_iter().filter(|job| is(job)).max_by_key(|job| job.number) else {
        return Ok(ExitCode::SUCCESS);
    };
    let Some(jobs) = follow(client, &[job.name], json).await? else { return Ok(ExitCode::FAILURE) };
    if !json {
        jobs.iter().for_each(|job| output::text(&outcome_line(job)));
    }
    Ok(status(&jobs))
}

/// Where the progress of jobs is shown.
enum Line {
    Live(LiveLines),
    /// The state of each job, and its progress in units of [`LINE_EVERY_PERCENT`], when its last line was printed.
    Lines(BTreeMap<String, (JobState, u64)>),
    Hidden,
}

impl Line {
    fn new(quiet: bool) -> Line {
        if quiet {
            return Line::Hidden;
        }
        LiveLines::begin().map_or_else(|| Line::Lines(BTreeMap::new()), Line::Live)
    }

    fn show(&mut self, jobs: &[Job]) {
        match self {
            Line::Live(live) => live.show(&jobs.iter().map(live_line).collect::<Vec<_>>()),
            Line::Lines(printed) => {
                for job in jobs.iter().filter(|job| !job.state.is_over()) {
                    let now = (job.state, job_progress::percent(&job.progress) / LINE_EVERY_PERCENT);
                    if printed.insert(job.name.clone(), now) != Some(now) {
                        output::text(&(progress_line(job) + "\n"));
                    }
                }
            }
            Line::Hidden => {}
        }
    }

    /// Erases the live lines. Nothing is shown after that.
    fn clear(&mut self) {
        *self = Line::Hidden;
    }
}

/// Returns the progress of a job in one line, with a bar.
fn live_line(job: &Job) -> String {
    let Progress { done_bytes, total_bytes, rate_bytes_per_s, remaining_s, .. } = job.progress;
    let left = remaining_s.map_or_else(String::new, |seconds| format!(", {} left", output::duration(seconds * 1000)));
    format!(
        "{} {}: {} {} %, {}/s{left}{}",
        job.name,
        title(job),
        progress::bar(done_bytes, total_bytes),
        job_progress::percent(&job.progress),
        format_size(rate_bytes_per_s),
        additions(job)
    )
}

/// Returns the progress of a job, in one line.
pub fn progress_line(job: &Job) -> String {
    format!("{} {}: {}{}", job.name, title(job), job_progress::progress(&job.progress), additions(job))
}

/// Returns the damage that a job has found so far, and whether it is paused.
fn additions(job: &Job) -> String {
    let paused = if job.state == JobState::Paused { ", paused" } else { "" };
    let found = match &job.findings {
        Some(found) if found.left_blocks() > 0 => format!(", {}", sentence(found)),
        _ => String::new(),
    };
    found + paused
}

/// Returns the outcome of a job that has ended, in a sentence.
pub fn outcome_line(job: &Job) -> String {
    let end = match job.state {
        JobState::Failed => "failed",
        JobState::Cancelled => "was cancelled",
        _ => "is done",
    };
    let found = job.findings.as_ref().map(|found| format!(": {}", sentence(found))).unwrap_or_default();
    format!("{} (job {}) {end}{found}\n", title(job), job.name)
}

fn title(job: &Job) -> String {
    if let Some(replaced) = job.replaces {
        return format!("{} of member {replaced}", job.kind);
    }
    match (job.member, &job.volume) {
        (Some(member), _) => format!("{} of member {member}", job.kind),
        (None, Some(volume)) => format!("{} of {volume}", job.kind),
        (None, None) => job.kind.clone(),
    }
}

/// Returns the exit status after watching these jobs until they ended.
pub fn status(jobs: &[Job]) -> ExitCode {
    if jobs.iter().any(|job| job.state != JobState::Done) {
        return ExitCode::FAILURE;
    }
    let found = || jobs.iter().filter_map(|job| job.findings.as_ref());
    match () {
        () if found().any(|found| found.left_blocks() > 0) => ExitCode::from(failure::DAMAGE),
        // Ranges that were not compared may differ.
        () if !found().all(braid_api::Findings::is_complete) => ExitCode::from(failure::ATTENTION),
        () => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_live_line_has_bar_share_rate_and_time_left() {
        let job: Job = serde_json::from_value(serde_json::json!({
            "name": "data:3", "number": 3, "array": "data", "kind": "rebuild", "member": 2, "state": "running",
            "paused": false, "limit_bytes_per_s": 0,
            "progress": {
                "done_bytes": 1_u64 << 30, "total_bytes": 4_u64 << 30, "rate_bytes_per_s": 100 << 20, "remaining_s": 31
            },
        }))
        .expect("it is one");
        let text = live_line(&job);
        assert_eq!(text, "data:3 rebuild of member 2: [====>...........] 25 %, 100.00 MiB/s, 31s left");
        assert!(text.len() < 80, "it fits the usual terminal");
    }
}
