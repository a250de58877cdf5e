//! `braid array fail|remove|add|spare`, and what `show` says of redundant arrays.

use super::array::{AddArgs, MemberArgs, SpareArgs};
use super::confirm::confirm;
use super::disk_names::absolute_for;
use super::{Ask, output};
use braid_api::{AddDisk, Array, Health, Member, MemberState, NameMember, Progress, Redundancy};
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

pub async fn remove(args: MemberArgs) -> anyhow::Result<ExitCode> {
    let body = NameMember { member: member(&args.ask, &args.member) };
    ask(&args.array, "remove", &body, &args.ask).await
}

pub async fn add(args: AddArgs) -> anyhow::Result<ExitCode> {
    give(&args.array, &args.disk, false, (args.force, args.yes), &args.ask).await
}

pub async fn spare(args: SpareArgs) -> anyhow::Result<ExitCode> {
    if args.remove {
        let body = NameMember { member: member(&args.ask, &args.disk) };
        return ask(&args.array, "remove", &body, &args.ask).await;
    }
    give(&args.array, &args.disk, true, (args.force, args.yes), &args.ask).await
}

async fn give(array: &str, disk: &str, spare: bool, (force, yes): (bool, bool), to: &Ask) -> anyhow::Result<ExitCode> {
    let disk = absolute_for(&to.reach, disk)?.to_string();
    if force && std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        confirm(&format!("Whatever is on {disk} will be lost"), yes)?;
    }
    ask(array, "disks", &AddDisk { disk, spare, force }, to).await
}

/// How a member does, in words.
pub fn member_state(member: &Member) -> String {
    let mut text = match (member.state, &member.progress) {
        (MemberState::Filling, Some(progress)) => format!("filling {}", share(progress)),
        (state, _) => state.word().to_owned(),
    };
    if member.write_mostly {
        text.push_str(" (read last)");
    }
    text
}

fn share(progress: &Progress) -> String {
    format!("{} %", 100 * progress.done_bytes / progress.total_bytes.max(1))
}

/// The lines of `show` about redundancy.
pub fn show(array: &Array, redundancy: &Redundancy, line: &mut impl FnMut(&str, String)) {
    line("copies", redundancy.copies.to_string());
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
    line("degraded", format!("start: {}", redundancy.start_degraded));
}

/// How far some work has come, in words.
pub fn progress(progress: &Progress) -> String {
    let left = progress.remaining_s.map_or(String::new(), |seconds| format!(", {seconds} s left"));
    format!(
        "{} of {} ({}), {}/s{left}",
        format_size(progress.done_bytes),
        format_size(progress.total_bytes),
        share(progress),
        format_size(progress.rate_bytes_per_s)
    )
}
