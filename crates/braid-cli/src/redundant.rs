//! `braid array fail|remove|add|replace|spare|journal|check|repair`, and the lines of `show` about redundancy.

use super::confirm::{YesArgs, confirm};
use super::disk_names::absolute_for;
use super::job_progress::{progress, share};
use super::object_names::name_or_uuid;
use super::watch::Wait;
use super::{ApiArgs, color, output, watch};
use braid_api::{
    AddDisk, Array, CheckArray, Health, Job, Journal, Member, MemberState, MoveJournal, NameMember, Redundancy,
    RemoveArrayMember, ReplaceMember,
};
use braid_geometry::units::format_size;
use clap::Args;
use serde::Serialize;
use std::process::ExitCode;

#[derive(Args)]
pub struct MemberArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    array: String,
    /// The member: its number, or its disk
    member: String,
    #[command(flatten)]
    _yes: YesArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct RemoveArgs {
    #[command(flatten)]
    what: MemberArgs,
    /// Of raid1: remove its slot, too, so that the array has one copy less
    #[arg(long)]
    copy: bool,
}

/// Whether the content of a disk is destroyed.
#[derive(Args, Clone, Copy)]
pub struct Overwrite {
    /// Destroy the content of the disk; a former member is rebuilt from nothing
    #[arg(long)]
    force: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

#[derive(Args)]
pub struct AddArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    array: String,
    /// The disk
    disk: String,
    /// Of raid1: add one copy, on this disk
    #[arg(long)]
    copy: bool,
    #[command(flatten)]
    what: Overwrite,
    #[command(flatten)]
    wait: Wait,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct ReplaceArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    array: String,
    /// The member: its number, its disk or its identity
    member: String,
    /// The disk that replaces it, or a spare [default: the smallest spare that is large enough]
    disk: Option<String>,
    #[command(flatten)]
    what: Overwrite,
    #[command(flatten)]
    wait: Wait,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct SpareArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    array: String,
    /// The disk; with --remove also the number of the spare
    disk: String,
    /// Remove the spare
    #[arg(long, conflicts_with = "force")]
    remove: bool,
    #[command(flatten)]
    what: Overwrite,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct JournalArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    array: String,
    /// The disk to hold the journal; or --members
    #[arg(conflicts_with = "members")]
    disk: Option<String>,
    /// Keep the journal on the members, also for good after the loss of the journal's disk
    #[arg(long, conflicts_with = "force")]
    members: bool,
    /// Destroy the content of the disk
    #[arg(long)]
    force: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct CheckArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    array: String,
    #[command(flatten)]
    wait: Wait,
    #[command(flatten)]
    api: ApiArgs,
}

/// Requests a change of an array, and prints the array's resulting state.
async fn change(array: &str, what: &str, body: &impl Serialize, api: &ApiArgs) -> anyhow::Result<ExitCode> {
    let array: Array = api.client()?.post(&format!("/v1/arrays/{array}/{what}"), body).await?;
    output::show(api.json, &array, summary);
    Ok(ExitCode::SUCCESS)
}

fn summary(array: &Array) -> String {
    let health = array.redundancy.as_ref().map_or(array.state.word(), |redundancy| match redundancy.health {
        Health::Whole => array.state.word(),
        health => health.word(),
    });
    let mut text = format!("array {} is {}\n", array.name, color::state(health));
    array.attention.iter().for_each(|sentence| text.push_str(&format!("  {sentence}\n")));
    text
}

/// Returns a member as the daemon names it: a number or an identity unchanged, a disk with its absolute path.
fn member(args: &ApiArgs, member: &str) -> String {
    let is_number = member.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_number {
        return member.to_owned();
    }
    absolute_for(&args.endpoint, member).map_or_else(|_| member.to_owned(), |disk| disk.to_string())
}

pub async fn fail(args: MemberArgs) -> anyhow::Result<ExitCode> {
    let body = NameMember { member: member(&args.api, &args.member) };
    change(&args.array, "fail", &body, &args.api).await
}

pub async fn remove(args: RemoveArgs) -> anyhow::Result<ExitCode> {
    let RemoveArgs { what, copy } = args;
    let body = RemoveArrayMember { member: member(&what.api, &what.member), copy };
    change(&what.array, "remove", &body, &what.api).await
}

pub async fn add(args: AddArgs) -> anyhow::Result<ExitCode> {
    let (array, disk, copy) = (&args.array, &args.disk, args.copy);
    let addition = Addition { array, disk, spare: false, copy, what: args.what, api: &args.api };
    let array = addition.send().await?;
    let disk = absolute_for(&args.api.endpoint, &args.disk)?.to_string();
    let job = array.members.iter().find(|member| same_disk(member, &disk)).and_then(|member| member.job.clone());
    follow_rebuild(&array, job, args.wait, &args.api).await
}

pub async fn replace(args: ReplaceArgs) -> anyhow::Result<ExitCode> {
    let Overwrite { force, yes } = args.what;
    let disk = args.disk.as_deref().map(|disk| member(&args.api, disk));
    if let Some(disk) = disk.as_ref().filter(|_| force && std::io::IsTerminal::is_terminal(&std::io::stdin())) {
        confirm(&format!("All data on {disk} will be lost"), yes)?;
    }
    let body = ReplaceMember { member: member(&args.api, &args.member), disk, force };
    let array: Array = args.api.client()?.post(&format!("/v1/arrays/{}/replace", args.array), &body).await?;
    // If several members are being replaced, the latest job has the highest number.
    let number = |job: &String| job.rsplit_once(':').and_then(|(_, number)| number.parse::<u64>().ok());
    let jobs = array.members.iter().filter(|member| member.replaces.is_some()).filter_map(|m| m.job.clone());
    let job = jobs.max_by_key(number);
    follow_rebuild(&array, job, args.wait, &args.api).await
}

/// Prints the state of an array whose member is being rebuilt, and watches the rebuild if waiting is wanted.
async fn follow_rebuild(array: &Array, job: Option<String>, wait: Wait, api: &ApiArgs) -> anyhow::Result<ExitCode> {
    let Some(job) = job.filter(|_| wait.is_wanted()) else {
        output::show(api.json, array, summary);
        return Ok(ExitCode::SUCCESS);
    };
    let client = api.client()?;
    if !api.json {
        output::text(&summary(array));
    }
    let Some(jobs) = watch::follow(&client, &[job], api.json).await? else { return Ok(ExitCode::FAILURE) };
    if api.json {
        output::json(&client.get::<Array>(&format!("/v1/arrays/{}", array.uuid)).await?);
    } else {
        jobs.iter().for_each(|job| output::text(&watch::outcome_line(job)));
    }
    Ok(watch::status(&jobs))
}

/// Whether a member is on the disk of that name, with or without the options with which its file was created.
fn same_disk(member: &Member, disk: &str) -> bool {
    let path = |name: &str| braid_ring::DiskSpec::parse(name).ok().and_then(|spec| spec.path().map(ToOwned::to_owned));
    let known = member.disk.as_deref().unwrap_or_default();
    known == disk || path(known).is_some() && path(known) == path(disk)
}

pub async fn check(args: CheckArgs, how: CheckArray) -> anyhow::Result<ExitCode> {
    let client = args.api.client()?;
    let job: Job = client.post(&format!("/v1/arrays/{}/check", args.array), &how).await?;
    if !args.wait.is_wanted() {
        output::show(args.api.json, &job, |job| {
            format!("started {} of array {}; watch it with: braid job watch {}\n", job.kind, job.array, job.name)
        });
        return Ok(ExitCode::SUCCESS);
    }
    let Some(jobs) = watch::follow(&client, &[job.name], args.api.json).await? else { return Ok(ExitCode::FAILURE) };
    for job in &jobs {
        output::show(args.api.json, job, watch::outcome_line);
    }
    Ok(watch::status(&jobs))
}

pub async fn spare(args: SpareArgs) -> anyhow::Result<ExitCode> {
    if args.remove {
        let body = RemoveArrayMember { member: member(&args.api, &args.disk), copy: false };
        return change(&args.array, "remove", &body, &args.api).await;
    }
    let (array, disk) = (&args.array, &args.disk);
    let addition = Addition { array, disk, spare: true, copy: false, what: args.what, api: &args.api };
    let array = addition.send().await?;
    output::show(args.api.json, &array, summary);
    Ok(ExitCode::SUCCESS)
}

pub async fn journal(args: JournalArgs) -> anyhow::Result<ExitCode> {
    let disk = args.disk.as_ref().map(|disk| absolute_for(&args.api.endpoint, disk)).transpose()?;
    let disk = disk.map(|disk| disk.to_string());
    if let Some(disk) = disk.as_ref().filter(|_| args.force && std::io::IsTerminal::is_terminal(&std::io::stdin())) {
        confirm(&format!("All data on {disk} will be lost"), args.yes)?;
    }
    let body = MoveJournal { disk, members: args.members, force: args.force };
    let array: Array = args.api.client()?.post(&format!("/v1/arrays/{}/journal", args.array), &body).await?;
    output::show(args.api.json, &array, |array| {
        let journal = array.redundancy.as_ref().and_then(|redundancy| redundancy.journal.as_ref());
        format!("the journal of array {} is {}\n", array.name, journal.map_or_else(String::new, journal_place))
    });
    Ok(ExitCode::SUCCESS)
}

/// Returns where a journal is, in words.
fn journal_place(journal: &Journal) -> String {
    let (Some(member), state) = (journal.member, journal.state) else { return "on the members".to_owned() };
    let disk = journal.disk.as_deref().unwrap_or("a missing disk");
    match state {
        Some(state) if state != MemberState::Journal => {
            format!("on {disk} (member {member}), which is {}", state.word())
        }
        _ => format!("on {disk} (member {member})"),
    }
}

/// The request to add a disk to an array.
struct Addition<'a> {
    array: &'a str,
    disk: &'a str,
    spare: bool,
    copy: bool,
    what: Overwrite,
    api: &'a ApiArgs,
}

impl Addition<'_> {
    async fn send(self) -> anyhow::Result<Array> {
        let Overwrite { force, yes } = self.what;
        let disk = absolute_for(&self.api.endpoint, self.disk)?.to_string();
        if force && std::io::IsTerminal::is_terminal(&std::io::stdin()) {
            confirm(&format!("All data on {disk} will be lost"), yes)?;
        }
        let body = AddDisk { disk, spare: self.spare, copy: self.copy, force };
        Ok(self.api.client()?.post(&format!("/v1/arrays/{}/disks", self.array), &body).await?)
    }
}

/// Returns the state of a member, in words.
pub fn member_state(member: &Member) -> String {
    let mut text = match (member.state, &member.progress) {
        (MemberState::Rebuilding, Some(progress)) => format!("rebuilding {}", share(progress)),
        (state, _) => state.word().to_owned(),
    };
    if let Some(replaced) = member.replaces {
        text.push_str(&format!(" (for {replaced})"));
    }
    if member.write_mostly {
        text.push_str(" (write-mostly)");
    }
    if member.unfenced {
        text.push_str(" (unfenced)");
    }
    text
}

/// Adds the lines of `show` about redundancy.
pub fn show(array: &Array, redundancy: &Redundancy, line: &mut impl FnMut(&str, String)) {
    match redundancy.parities {
        0 => line("copies", redundancy.copies.to_string()),
        parities => line("parity", format!("{parities} per stripe")),
    }
    line("tolerates", tolerates(redundancy));
    if let Some(journal) = &redundancy.journal {
        line("journal", journal_place(journal));
    }
    let bytes = |regions: u64| format_size(regions * redundancy.region_bytes);
    line(
        "regions",
        format!(
            "{} of {}: {} written, {} dirty ({})",
            redundancy.regions,
            format_size(redundancy.region_bytes),
            redundancy.regions_written,
            redundancy.regions_dirty,
            bytes(redundancy.regions_dirty)
        ),
    );
    if let Some(resync) = &redundancy.resync {
        line("resync", progress(resync));
    }
    for (slot, rebuild) in array.members.iter().filter_map(|m| Some((m.slot, m.progress.as_ref()?))) {
        line("rebuild", format!("member {slot}: {}", progress(rebuild)));
    }
    for range in &redundancy.unreadable {
        let end = range.offset_bytes + range.bytes;
        line("unreadable", format!("bytes {} to {end} ({})", range.offset_bytes, format_size(range.bytes)));
    }
    let shown = redundancy.unreadable.iter().map(|range| range.bytes).sum::<u64>();
    if shown < redundancy.unreadable_bytes {
        line("unreadable", format!("and {} more", format_size(redundancy.unreadable_bytes - shown)));
    }
    line("degraded", format!("start: {}", redundancy.start_degraded));
}

/// Returns which failures an array tolerates now, and, if that is more, what it tolerates with all members in sync.
fn tolerates(redundancy: &Redundancy) -> String {
    let failures = |count: u16| match count {
        0 => "no failure of a member".to_owned(),
        1 => "the failure of any 1 member".to_owned(),
        count => format!("failures of any {count} members"),
    };
    let now = failures(redundancy.tolerates_now);
    if redundancy.tolerates_now == redundancy.tolerates {
        return now;
    }
    format!("{now} now; {} once all are in sync", failures(redundancy.tolerates))
}
