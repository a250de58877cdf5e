//! `braid array fail|remove|add|replace|spare|check|repair`, and what `show` says of redundant arrays.

use super::array::{AddArgs, CheckArgs, JournalArgs, MemberArgs, Overwrite, RemoveArgs, ReplaceArgs, SpareArgs};
use super::confirm::confirm;
use super::disk_names::absolute_for;
use super::watch::Wait;
use super::{Ask, output, watch};
use braid_api::{
    AddDisk, Array, CheckArray, Health, Job, Journal, Member, MemberState, MoveJournal, NameMember, Progress,
    Redundancy, RemoveArrayMember, ReplaceMember,
};
use braid_geometry::units::format_size;
use serde::Serialize;
use std::process::ExitCode;

/// Asks for a change of an array, and says how it stands then.
async fn ask(array: &str, what: &str, body: &impl Serialize, ask: &Ask) -> anyhow::Result<ExitCode> {
    let array: Array = ask.client()?.post(&format!("/v1/arrays/{array}/{what}"), body).await?;
    output::show(ask.json, &array, stands);
    Ok(ExitCode::SUCCESS)
}

fn stands(array: &Array) -> String {
    let health = array.redundancy.as_ref().map_or(array.state.word(), |redundancy| match redundancy.health {
        Health::Whole => array.state.word(),
        health => health.word(),
    });
    let mut text = format!("array {} is {health}\n", array.name);
    array.attention.iter().for_each(|sentence| text.push_str(&format!("  {sentence}\n")));
    text
}

/// A member as the daemon knows it: a number or an identity as it is, a disk with its absolute path.
fn member(args: &Ask, member: &str) -> String {
    let is_number = member.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_number {
        return member.to_owned();
    }
    absolute_for(&args.reach, member).map_or_else(|_| member.to_owned(), |disk| disk.to_string())
}

pub async fn fail(args: MemberArgs) -> anyhow::Result<ExitCode> {
    let body = NameMember { member: member(&args.ask, &args.member) };
    ask(&args.array, "fail", &body, &args.ask).await
}

pub async fn remove(args: RemoveArgs) -> anyhow::Result<ExitCode> {
    let RemoveArgs { what, copy } = args;
    let body = RemoveArrayMember { member: member(&what.ask, &what.member), copy };
    ask(&what.array, "remove", &body, &what.ask).await
}

pub async fn add(args: AddArgs) -> anyhow::Result<ExitCode> {
    let (array, disk, copy) = (&args.array, &args.disk, args.copy);
    let give = Give { array, disk, spare: false, copy, what: args.what, ask: &args.ask };
    let array = give.now().await?;
    let disk = absolute_for(&args.ask.reach, &args.disk)?.to_string();
    let job = array.members.iter().find(|member| same_disk(member, &disk)).and_then(|member| member.job.clone());
    filled(&array, job, args.wait, &args.ask).await
}

pub async fn replace(args: ReplaceArgs) -> anyhow::Result<ExitCode> {
    let Overwrite { force, yes } = args.what;
    let disk = args.disk.as_deref().map(|disk| member(&args.ask, disk));
    if let Some(disk) = disk.as_ref().filter(|_| force && std::io::IsTerminal::is_terminal(&std::io::stdin())) {
        confirm(&format!("Whatever is on {disk} will be lost"), yes)?;
    }
    let body = ReplaceMember { member: member(&args.ask, &args.member), disk, force };
    let array: Array = args.ask.client()?.post(&format!("/v1/arrays/{}/replace", args.array), &body).await?;
    // Of several that are replaced the one that was begun last has the highest number.
    let number = |job: &String| job.rsplit_once(':').and_then(|(_, number)| number.parse::<u64>().ok());
    let jobs = array.members.iter().filter(|member| member.replaces.is_some()).filter_map(|m| m.job.clone());
    let job = jobs.max_by_key(number);
    filled(&array, job, args.wait, &args.ask).await
}

/// Says how an array stands of which a member is being filled, and follows that where it is wanted.
async fn filled(array: &Array, job: Option<String>, wait: Wait, ask: &Ask) -> anyhow::Result<ExitCode> {
    let Some(job) = job.filter(|_| wait.is_wanted()) else {
        output::show(ask.json, array, stands);
        return Ok(ExitCode::SUCCESS);
    };
    let client = ask.client()?;
    if !ask.json {
        output::text(&stands(array));
    }
    let Some(jobs) = watch::follow(&client, &[job], ask.json).await? else { return Ok(ExitCode::FAILURE) };
    if ask.json {
        output::json(&client.get::<Array>(&format!("/v1/arrays/{}", array.uuid)).await?);
    } else {
        jobs.iter().for_each(|job| output::text(&watch::ended(job)));
    }
    Ok(watch::status(&jobs))
}

/// Whether a member is on the disk of that name, with or without what it was to be made of.
fn same_disk(member: &Member, disk: &str) -> bool {
    let path = |name: &str| braid_ring::DiskSpec::parse(name).ok().and_then(|spec| spec.path().map(ToOwned::to_owned));
    let known = member.disk.as_deref().unwrap_or_default();
    known == disk || path(known).is_some() && path(known) == path(disk)
}

pub async fn check(args: CheckArgs, how: CheckArray) -> anyhow::Result<ExitCode> {
    let client = args.ask.client()?;
    let job: Job = client.post(&format!("/v1/arrays/{}/check", args.array), &how).await?;
    if !args.wait.is_wanted() {
        output::show(args.ask.json, &job, |job| {
            format!("{} of array {} begins; watch it with: braid job watch {}\n", job.kind, job.array, job.name)
        });
        return Ok(ExitCode::SUCCESS);
    }
    let Some(jobs) = watch::follow(&client, &[job.name], args.ask.json).await? else { return Ok(ExitCode::FAILURE) };
    for job in &jobs {
        output::show(args.ask.json, job, watch::ended);
    }
    Ok(watch::status(&jobs))
}

pub async fn spare(args: SpareArgs) -> anyhow::Result<ExitCode> {
    if args.remove {
        let body = RemoveArrayMember { member: member(&args.ask, &args.disk), copy: false };
        return ask(&args.array, "remove", &body, &args.ask).await;
    }
    let (array, disk) = (&args.array, &args.disk);
    let give = Give { array, disk, spare: true, copy: false, what: args.what, ask: &args.ask };
    let array = give.now().await?;
    output::show(args.ask.json, &array, stands);
    Ok(ExitCode::SUCCESS)
}

pub async fn journal(args: JournalArgs) -> anyhow::Result<ExitCode> {
    let disk = args.disk.as_ref().map(|disk| absolute_for(&args.ask.reach, disk)).transpose()?;
    let disk = disk.map(|disk| disk.to_string());
    if let Some(disk) = disk.as_ref().filter(|_| args.force && std::io::IsTerminal::is_terminal(&std::io::stdin())) {
        confirm(&format!("Whatever is on {disk} will be lost"), args.yes)?;
    }
    let body = MoveJournal { disk, members: args.members, force: args.force };
    let array: Array = args.ask.client()?.post(&format!("/v1/arrays/{}/journal", args.array), &body).await?;
    output::show(args.ask.json, &array, |array| {
        let journal = array.redundancy.as_ref().and_then(|redundancy| redundancy.journal.as_ref());
        format!("the journal of array {} is {}\n", array.name, journal.map_or_else(String::new, journal_place))
    });
    Ok(ExitCode::SUCCESS)
}

/// Where a journal is, in words.
fn journal_place(journal: &Journal) -> String {
    let (Some(member), state) = (journal.member, journal.state) else { return "on the members".to_owned() };
    let disk = journal.disk.as_deref().unwrap_or("a disk that is not here");
    match state {
        Some(state) if state != MemberState::Journal => {
            format!("on {disk} (member {member}), which is {}", state.word())
        }
        _ => format!("on {disk} (member {member})"),
    }
}

/// A disk that an array is to be given.
struct Give<'a> {
    array: &'a str,
    disk: &'a str,
    spare: bool,
    copy: bool,
    what: Overwrite,
    ask: &'a Ask,
}

impl Give<'_> {
    async fn now(self) -> anyhow::Result<Array> {
        let Overwrite { force, yes } = self.what;
        let disk = absolute_for(&self.ask.reach, self.disk)?.to_string();
        if force && std::io::IsTerminal::is_terminal(&std::io::stdin()) {
            confirm(&format!("Whatever is on {disk} will be lost"), yes)?;
        }
        let body = AddDisk { disk, spare: self.spare, copy: self.copy, force };
        Ok(self.ask.client()?.post(&format!("/v1/arrays/{}/disks", self.array), &body).await?)
    }
}

/// How a member does, in words.
pub fn member_state(member: &Member) -> String {
    let mut text = match (member.state, &member.progress) {
        (MemberState::Filling, Some(progress)) => format!("filling {}", share(progress)),
        (state, _) => state.word().to_owned(),
    };
    if let Some(replaced) = member.replaces {
        text.push_str(&format!(" (for {replaced})"));
    }
    if member.write_mostly {
        text.push_str(" (read last)");
    }
    if member.unfenced {
        text.push_str(" (unfenced)");
    }
    text
}

/// How far some work has come, in percent.
pub fn percent(progress: &Progress) -> u64 {
    (100 * u128::from(progress.done_bytes) / u128::from(progress.total_bytes.max(1))) as u64
}

fn share(progress: &Progress) -> String {
    format!("{} %", percent(progress))
}

/// The lines of `show` about redundancy.
pub fn show(array: &Array, redundancy: &Redundancy, line: &mut impl FnMut(&str, String)) {
    match redundancy.parities {
        0 => line("copies", redundancy.copies.to_string()),
        parities => line("parity", format!("{parities} of each row")),
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
    for (role, filled) in array.members.iter().filter_map(|m| Some((m.role, m.progress.as_ref()?))) {
        line("filling", format!("member {role}: {}", progress(filled)));
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

/// Which failures an array tolerates now, and what it tolerates with all members in sync where that is more.
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

/// How far some work has come, in words.
pub fn progress(progress: &Progress) -> String {
    let left =
        progress.remaining_s.map_or(String::new(), |seconds| format!(", {} left", output::duration(seconds * 1000)));
    format!(
        "{} of {} ({}), {}/s{left}",
        format_size(progress.done_bytes),
        format_size(progress.total_bytes),
        share(progress),
        format_size(progress.rate_bytes_per_s)
    )
}
