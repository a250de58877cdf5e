//! `braid job …`.

use super::{Ask, AskList, output, redundant};
use braid_api::{Job, JobList, SetJob};
use braid_geometry::units::{format_size, parse_size};
use braid_terminal::listing::ListStyle;
use clap::{Args, Subcommand};
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum Verb {
    /// List the jobs with how far each has come, and how those have ended that did lately
    List(AskList),
    /// Watch a job, or all there are, to the end; 7 if it has found damage
    Watch(WatchArgs),
    /// Let a job wait; what clients wait for is done all the same
    Pause(JobArgs),
    /// Let a job go on
    Resume(JobArgs),
    /// Limit how fast a job reads or writes on one disk; 0: it gives way to clients by itself
    Limit(LimitArgs),
    /// Give a job up; the member that a rebuild was filling is left out again
    Cancel(JobArgs),
}

#[derive(Args)]
pub struct JobArgs {
    /// The job, as ARRAY:NUMBER or POOL:NUMBER
    job: String,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct WatchArgs {
    /// The job, as ARRAY:NUMBER or POOL:NUMBER [default: all that go on]
    job: Vec<String>,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct LimitArgs {
    /// The job, as ARRAY:NUMBER or POOL:NUMBER
    job: String,
    /// Bytes a second at most
    #[arg(value_name = "RATE", value_parser = rate)]
    rate: u64,
    #[command(flatten)]
    ask: Ask,
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
        Verb::List(ask) => {
            let list: JobList = ask.client()?.get("/v1/jobs").await?;
            let names = list.jobs.iter().map(|job| job.name.as_str());
            ask.print(&list, names, &[], |style| table(&list, style));
        }
        Verb::Watch(args) => return watch(args).await,
        Verb::Pause(args) => set(&args, SetJob { paused: Some(true), ..SetJob::default() }).await?,
        Verb::Resume(args) => set(&args, SetJob { paused: Some(false), ..SetJob::default() }).await?,
        Verb::Limit(args) => {
            let limit = SetJob { limit_bytes_per_s: Some(args.rate), ..SetJob::default() };
            set(&JobArgs { job: args.job, ask: args.ask }, limit).await?;
        }
        Verb::Cancel(args) => {
            let job: Job = args.ask.client()?.delete(&format!("/v1/jobs/{}", args.job)).await?;
            output::show(args.ask.json, &job, |job| format!("job {} was given up\n", job.name));
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn watch(args: WatchArgs) -> anyhow::Result<ExitCode> {
    let client = args.ask.client()?;
    let mut names = args.job;
    if names.is_empty() {
        let going = client.get::<JobList>("/v1/jobs").await?.jobs.into_iter().filter(|job| !job.state.is_over());
        names = going.map(|job| job.name).collect();
    }
    let Some(jobs) = super::watch::follow(&client, &names, args.ask.json).await? else {
        return Ok(ExitCode::FAILURE);
    };
    let status = super::watch::status(&jobs);
    output::show(args.ask.json, &JobList { jobs }, |list| {
        if list.jobs.is_empty() {
            return "no job goes on\n".to_owned();
        }
        list.jobs.iter().map(super::watch::ended).collect()
    });
    Ok(status)
}

async fn set(args: &JobArgs, body: SetJob) -> anyhow::Result<()> {
    let job: Job = args.ask.client()?.patch(&format!("/v1/jobs/{}", args.job), &body).await?;
    output::show(args.ask.json, &job, line);
    Ok(())
}

fn line(job: &Job) -> String {
    format!("job {}\n", super::watch::going(job))
}

/// What came of a job that has ended.
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
            if job.state.is_over() { outcome(job) } else { redundant::progress(&job.progress) },
            match job.limit_bytes_per_s {
                0 => "none".to_owned(),
                limit => format!("{}/s", format_size(limit)),
            },
        ];
        table.row(cells, []);
    }
    table.render()
}
