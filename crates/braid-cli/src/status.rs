//! `braid status`.

use super::color::{BAD, GOOD, STRONG, paint};
use super::{ApiArgs, failure, output};
use braid_api::{AttentionCode, DiskList, Limits, Status};
use braid_geometry::units::format_size;
use clap::Args;
use std::fmt::Write;
use std::process::ExitCode;

/// Arguments of `braid status`.
#[derive(Args)]
pub struct StatusArgs {
    /// Show only what needs attention; exit status 5 if anything does
    #[arg(long, conflicts_with = "limits")]
    check: bool,
    /// Show the limits of this build; needs no daemon
    #[arg(long)]
    limits: bool,
    #[command(flatten)]
    api: ApiArgs,
}

/// Runs the command.
pub async fn run(args: StatusArgs) -> anyhow::Result<ExitCode> {
    if args.limits {
        output::show(args.api.json, &Limits::current(), limits);
        return Ok(ExitCode::SUCCESS);
    }
    let client = args.api.client()?;
    let status: Status = client.get("/v1/status").await?;
    if args.check {
        output::show(args.api.json, &status.attention, |_| attention(&status));
        // While the daemon starts, the state is unknown, which does not count as well.
        let well = status.attention.is_empty() && !status.starting;
        let needed = if well { 0 } else { failure::ATTENTION };
        return Ok(ExitCode::from(needed));
    }
    if args.api.json {
        output::json(&status);
        return Ok(ExitCode::SUCCESS);
    }
    let disks: DiskList = client.get("/v1/disks").await?;
    output::text(&people(&status, &disks));
    Ok(ExitCode::SUCCESS)
}

fn people(status: &Status, disks: &DiskList) -> String {
    let mut text = attention(status);
    text.push('\n');
    let mut line = |label: &str, value: String| {
        let lines = output::wrap(&value, "            ");
        text.push_str(&format!("{label:<12}{}", lines.trim_start()));
    };
    line("arrays", format!("{} of {} active", status.arrays.serving, status.arrays.total));
    if status.pools.total > 0 {
        line("pools", format!("{} of {} active", status.pools.serving, status.pools.total));
    }
    line(
        "exports",
        format!(
            "{} of {} listening, {}",
            status.exports.serving,
            status.exports.total,
            counted(status.connections, "client", "clients")
        ),
    );
    line("disks", format!("{} of {} well", status.disks.serving, status.disks.total));
    line(
        "daemon",
        format!("braid {}, process {}, up {}", status.version, status.pid, output::duration(status.uptime_ms)),
    );
    line(
        "started",
        match status.start_ms {
            Some(ms) => format!("in {ms} ms, with everything available"),
            None => "still looking for disks".to_owned(),
        },
    );
    line("socket", status.socket.clone());
    if let Some(network) = &status.network {
        line("network", network.clone());
    }
    if let Some(node) = &status.node {
        line("node", node.clone());
    }
    line("state", status.state_directory.clone());
    if let Some(features) = &status.ublk {
        line("ublk", if features.is_empty() { "yes".to_owned() } else { features.join(", ") });
    }
    for (shards, what) in shards(status) {
        line(&shards, what);
    }
    if !disks.disks.is_empty() {
        text.push('\n');
        text.push_str(&disk_table(disks));
    }
    text
}

/// Returns a line for each run of neighbouring shards that are alike.
fn shards(status: &Status) -> Vec<(String, String)> {
    let mut groups: Vec<(u16, u16, String)> = Vec::new();
    for one in &status.shards {
        let what = shard(one);
        match groups.last_mut() {
            Some((_, last, same)) if *same == what => *last = one.shard,
            _ => groups.push((one.shard, one.shard, what)),
        }
    }
    let name =
        |first: u16, last: u16| if first == last { format!("shard {first}") } else { format!("shard {first}-{last}") };
    groups.into_iter().map(|(first, last, what)| (name(first, last), what)).collect()
}

fn shard(shard: &braid_api::ShardStatus) -> String {
    let yes = |yes: bool| if yes { "registered" } else { "not registered" };
    let mut text =
        format!("{}, buffers {}, files {}", shard.driver, yes(shard.registered_buffers), yes(shard.registered_files));
    if let Some(note) = &shard.note {
        let _ = write!(text, " ({note})");
    }
    text
}

fn disk_table(disks: &DiskList) -> String {
    let mut table = output::table(["DISK", "ARRAY", "STATE", "READ", "WRITTEN", "P99", "ERRORS"]);
    for disk in &disks.disks {
        table.add_row([
            disk.name.clone(),
            output::cell(&disk.array, 16),
            disk.state.word().to_owned(),
            format_size(disk.stats.read_bytes),
            format_size(disk.stats.written_bytes),
            output::nanoseconds(disk.stats.latency_ns_p99),
            disk.stats.errors.to_string(),
        ]);
    }
    output::align_right(&mut table, [3, 4, 5, 6]);
    output::states(&mut table, [2]);
    output::render(&table)
}

fn counted(count: u64, one: &str, more: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {more}") }
}

/// Returns the overall state, in one line.
pub fn headline(status: &Status) -> String {
    match status.attention.len() {
        0 if status.starting || status.start_ms.is_none() => "The daemon is still looking for disks.".to_owned(),
        0 if status.arrays.total == 0 && status.pools.total == 0 => {
            "All is well. No array exists yet. Create one with: braid array create --help".to_owned()
        }
        0 => "All is well.".to_owned(),
        1 => "1 thing needs attention.".to_owned(),
        count => format!("{count} things need attention."),
    }
}

/// Returns the overall state, then each item that needs attention: what happened, what it means, the commands to run, and its runbook.
fn attention(status: &Status) -> String {
    let style = if status.attention.is_empty() { GOOD } else { BAD };
    let mut text = paint(style, &headline(status)) + "\n";
    for (number, item) in status.attention.iter().enumerate() {
        let head = output::wrap(&format!("{}: {}", item.subject, item.message), "   ");
        text.push_str(&format!("\n{}. {}", number + 1, head.trim_start()));
        for sentence in [&item.impact, &item.remedy] {
            if !sentence.is_empty() {
                text.push_str(&output::wrap(sentence, "   "));
            }
        }
        for command in &item.commands {
            // Never wrapped: the command is to be copied.
            text.push_str(&format!("     {}\n", paint(STRONG, command)));
        }
        if item.code != AttentionCode::Unknown {
            text.push_str(&format!("   Runbook: {}\n", paint(STRONG, &format!("braid explain {}", item.code))));
        }
    }
    text
}

fn limits(limits: &Limits) -> String {
    let mut table = output::table(["LIMIT", "VALUE"]);
    for (what, value) in [
        ("members of one array", limits.array_members_max.to_string()),
        ("arrays of one daemon", limits.arrays_max.to_string()),
        ("pools of one daemon", limits.pools_max.to_string()),
        ("volumes of one pool", limits.volumes_max.to_string()),
        ("largest volume", format_size(limits.volume_bytes_max)),
        ("exports of one daemon", limits.exports_max.to_string()),
        ("connections to one export", limits.export_connections_max.to_string()),
        ("requests in flight on one connection (more wait)", limits.connection_requests_max.to_string()),
        ("longest request", format_size(limits.request_bytes_max)),
        ("time limit of an I/O to a local disk", output::duration(limits.disk_timeout_ms)),
        ("longest name, in characters", limits.name_bytes_max.to_string()),
        ("smallest chunk; chunks are multiples of it", format_size(limits.chunk_bytes_min)),
        ("largest chunk", format_size(limits.chunk_bytes_max)),
        ("longest body of an API request", format_size(limits.api_body_bytes_max)),
        ("clients of the API at a time (more wait)", limits.api_clients_max.to_string()),
        ("clients of the API over the network", limits.api_network_clients_max.to_string()),
        ("tokens in one file", limits.api_tokens_max.to_string()),
        ("time limit of an incoming API request", output::duration(limits.api_request_timeout_ms)),
        ("events that are kept", limits.events_max.to_string()),
        ("clients that may follow the events at a time", limits.event_followers_max.to_string()),
    ] {
        table.add_row([what.to_owned(), value]);
    }
    output::align_right(&mut table, [1]);
    output::render(&table)
}
