//! `braid job …`.

use super::confirm::YesArgs;
use super::{ApiArgs, ApiListArgs, job_progress, output};
use braid_api::{Job, JobList, SetJob};
use braid_geometry::units::{format_size, parse_size};
use braid_terminal::listing::ListStyle;
use clap::{Args, Subcommand};
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum Verb {
    /// List the current jobs with their progress, and recently ended jobs with their outcome
    List(ApiListArgs),
    /// Watch one job, several or all until they end; exit status 7 if a job found damage
    Watch(WatchArgs),
    /// Pause a job; work that client requests wait for continues
    Pause(JobArgs),
    /// Resume a paused job
    Resume(JobArgs),
    /// Limit the rate at which a job reads or writes on each disk; 0 removes the limit: the job yields to clients
    Limit(LimitArgs),
    /// Cancel a job; the member that was being rebuilt is dropped again
    Cancel(CancelArgs),
}

#[derive(Args)]
pub struct JobArgs {
    /// The job, as ARRAY:NUMBER or POOL:NUMBER
    job: String,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct CancelArgs {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    _yes: YesArgs,
}

#[derive(Args)]
pub struct WatchArgs {
    /// The job, as ARRAY:NUMBER or POOL:NUMBER [default: all current jobs]
    job: Vec<String>,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct LimitArgs {
    /// The job, as ARRAY:NUMBER or POOL:NUMBER
    job: String,
    /// Maximum bytes per second
    #[arg(value_name = "RATE", value_parser = rate)]
    rate: u64,
    #[command(flatten)]
    api: ApiArgs,
}

fn rate(text: &str) -> Result<u64, String> {
    if text == "0" {
        return Ok(0);
    }
    parse_size(text).map_err(|error| error.to_string())
}

/// Runs one of the commands.
pub async fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::List(api) => {
            let list: JobList = api.client()?.get("/v1/jobs").await?;
            let names = list.jobs.iter().map(|job| job.name.as_str());
            api.print(&list, names, &[], |style| table(&list, style));
        }
        Verb::Watch(args) => return watch(args).await,
        Verb::Pause(args) => set(&args, SetJob { paused: Some(true), ..SetJob::default() }).await?,
        Verb::Resume(args) => set(&args, SetJob { paused: Some(false), ..SetJob::default() }).await?,
        Verb::Limit(args) => {
            let limit = SetJob { limit_bytes_per_s: Some(args.rate), ..SetJob::default() };
            set(&JobArgs { job: args.job, api: args.api }, limit).await?;
        }
        Verb::Cancel(CancelArgs { job: args, .. }) => {
            let job: Job = args.api.client()?.delete(&format!("/v1/jobs/{}", args.job)).await?;
            output::show(args.api.json, &job, |job| format!("cancelled job {}\n", job.name));
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn watch(args: WatchArgs) -> anyhow::Result<ExitCode> {
    let client = args.api.client()?;
    let mut names = args.job;
    if names.is_empty() {
        let running = client.get::<JobList>("/v1/jobs").await?.jobs.into_iter().filter(|job| !job.state.is_over());
        names = running.map(|job| job.name).collect();
    }
    let Some(jobs) = super::watch::follow(&client, &names, args.api.json).await? else {
        return Ok(ExitCode::FAILURE);
    };
    let status = super::watch::status(&jobs);
    output::show(args.api.json, &JobList { jobs }, |list| {
        if list.jobs.is_empty() {
            return "no jobs are running\n".to_owned();
        }
        list.jobs.iter().map(super::watch::outcome_line).collect()
    });
    Ok(status)
}

async fn set(args: &JobArgs, body: SetJob) -> anyhow::Result<()> {
    let job: Job = args.api.client()?.patch(&format!("/v1/jobs/{}", args.job), &body).await?;
    output::show(args.api.json, &job, line);
    Ok(())
}

fn line(job: &Job) -> String {
    format!("job {}\n", super::watch::progress_line(job))
}

/// Returns the outcome of a job that has ended.
fn outcome(job: &Job) -> String {
    let share = format!("{} of {}", format_size(job.progress.done_bytes), format_size(job.progress.total_bytes));
    job.findings.as_ref().map_or(share, braid_advice::findings::sentence)
}

fn table(list: &JobList, style: ListStyle) -> String {
    if list.jobs.is_empty() {
        return "no jobs\n".to_owned();
    }
    let mut table = style.table(["JOB", "KIND", "MEMBER", "STATE", "DONE", "LIMIT"], []);
    for job in &list.jobs {
        let cells = [
            job.name.clone(),
            job.kind.clone(),
            job.replaces
                .or(job.member)
                .map_or_else(|| job.volume.clone().unwrap_or_else(|| "all".to_owned()), |member| member.to_string()),
            job.state.word().to_owned(),
            if job.state.is_over() { outcome(job) } else { job_progress::progress(&job.progress) },
            match job.limit_bytes_per_s {
                0 => "none".to_owned(),
                limit => format!("{}/s", format_size(limit)),
            },
        ];
        table.row(cells, []);
    }
    table.states([3]);
    table.render()
}
