//! Watching jobs: a live line at a terminal, lines now and then elsewhere, and how each has ended.

use super::{failure, output, redundant};
use braid_advice::findings::sentence;
use braid_api::{Job, JobList, JobState};
use braid_client::Client;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(500);
/// Where there is no terminal a line is printed for each such part of a job, in percent.
const LINE_EVERY_PERCENT: u64 = 10;

/// Whether a command that begins a job waits for its end.
#[derive(Args, Clone, Copy)]
pub struct Wait {
    /// Wait for the end of the job, as at a terminal
    #[arg(long, conflicts_with = "no_wait")]
    wait: bool,
    /// Do not wait at a terminal either: the job goes on by itself
    #[arg(long)]
    no_wait: bool,
}

impl Wait {
    /// Whether it does.
    pub fn is_wanted(self) -> bool {
        self.wait || !self.no_wait && std::io::stdout().is_terminal() && std::io::stderr().is_terminal()
    }
}

/// Watches jobs until all have ended; none, if that was interrupted. With `quiet` nothing but the live line is shown.
///
/// # Errors
/// The daemon's: also where a job is not known any more.
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
            () = tokio::time::sleep(EVERY) => {}
            _ = &mut interrupted => {
                line.clear();
                let going = jobs.iter().filter(|job| !job.state.is_over());
                let names = going.map(|job| job.name.clone()).collect::<Vec<_>>().join(" ");
                output::complain(&format!("not waited for any longer; it goes on: braid job watch {names}\n"));
                return Ok(None);
            }
        }
    }
}

/// Follows the newest job of a pool of which this is true, where that is wanted and there is one that goes on.
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
        jobs.iter().for_each(|job| output::text(&ended(job)));
    }
    Ok(status(&jobs))
}

/// Where it is shown how jobs do.
enum Line {
    Live(ProgressBar),
    /// How far each was when a line was printed last, in percent.
    Lines(BTreeMap<String, (JobState, u64)>),
    Nowhere,
}

impl Line {
    fn new(quiet: bool) -> Line {
        if std::io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{msg}") {
                bar.set_style(style);
            }
            return Line::Live(bar);
        }
        if quiet { Line::Nowhere } else { Line::Lines(BTreeMap::new()) }
    }

    fn show(&mut self, jobs: &[Job]) {
        match self {
            Line::Live(bar) => {
                let width = output::columns_of(&std::io::stderr());
                let lines: Vec<String> = jobs.iter().map(|job| output::cut(&going(job), width)).collect();
                bar.set_message(lines.join("\n"));
            }
            Line::Lines(told) => {
                for job in jobs.iter().filter(|job| !job.state.is_over()) {
                    let now = (job.state, redundant::percent(&job.progress) / LINE_EVERY_PERCENT);
                    if told.insert(job.name.clone(), now) != Some(now) {
                        output::text(&(going(job) + "\n"));
                    }
                }
            }
            Line::Nowhere => {}
        }
    }

    fn clear(&self) {
        if let Line::Live(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// How a job does, in one line.
pub fn going(job: &Job) -> String {
    let waits = if job.state == JobState::Paused { ", waits" } else { "" };
    let found = match &job.findings {
        Some(found) if found.left_blocks() > 0 => format!(", {}", sentence(found)),
        _ => String::new(),
    };
    format!("{} {}: {}{found}{waits}", job.name, what(job), redundant::progress(&job.progress))
}

/// How a job has ended, in a sentence.
pub fn ended(job: &Job) -> String {
    let end = match job.state {
        JobState::Failed => "could not go on",
        JobState::Cancelled => "was given up",
        _ => "is done",
    };
    let found = job.findings.as_ref().map(|found| format!(": {}", sentence(found))).unwrap_or_default();
    format!("{} (job {}) {end}{found}\n", what(job), job.name)
}

fn what(job: &Job) -> String {
    if let Some(replaced) = job.replaces {
        return format!("{} of member {replaced}", job.kind);
    }
    match (job.member, &job.volume) {
        (Some(member), _) => format!("{} of member {member}", job.kind),
        (None, Some(volume)) => format!("{} of {volume}", job.kind),
        (None, None) => job.kind.clone(),
    }
}

/// The exit status of having watched this job to its end.
pub fn status(jobs: &[Job]) -> ExitCode {
    if jobs.iter().any(|job| job.state != JobState::Done) {
        return ExitCode::FAILURE;
    }
    let found = || jobs.iter().filter_map(|job| job.findings.as_ref());
    match () {
        () if found().any(|found| found.left_blocks() > 0) => ExitCode::from(failure::DAMAGE),
        // What was not compared may differ.
        () if !found().all(braid_api::Findings::is_complete) => ExitCode::from(failure::ATTENTION),
        () => ExitCode::SUCCESS,
    }
}
