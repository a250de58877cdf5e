//! `braid status`.

use super::{Ask, failure, output};
use braid_api::{DiskList, Limits, Status};
use braid_geometry::units::format_size;
use clap::Args;
use std::fmt::Write;
use std::process::ExitCode;

/// Arguments of `braid status`.
#[derive(Args)]
pub struct StatusArgs {
    /// Say only what needs attention, and exit with 5 if anything does
    #[arg(long, conflicts_with = "limits")]
    check: bool,
    /// Print the limits of this build; needs no daemon
    #[arg(long)]
    limits: bool,
    #[command(flatten)]
    ask: Ask,
}

/// Runs the command.
pub async fn run(args: StatusArgs) -> anyhow::Result<ExitCode> {
    if args.limits {
        output::show(args.ask.json, &Limits::current(), limits);
        return Ok(ExitCode::SUCCESS);
    }
    let client = args.ask.client()?;
    let status: Status = client.get("/v1/status").await?;
    if args.check {
        output::show(args.ask.json, &status.attention, |_| attention(&status));
        let needed = if status.attention.is_empty() { 0 } else { failure::ATTENTION };
        return Ok(ExitCode::from(needed));
    }
    if args.ask.json {
        output::json(&status);
        return Ok(ExitCode::SUCCESS);
    }
    let disks: DiskList = client.get("/v1/disks").await?;
    output::text(&people(&status, &disks));
    Ok(ExitCode::SUCCESS)
}

fn people(status: &Status, disks: &DiskList) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{label:<12}{value}");
    };
    line(
        "daemon",
        format!("braid {}, process {}, up {}", status.version, status.pid, output::duration(status.uptime_ms)),
    );
    line(
        "started",
        match status.start_ms {
            Some(ms) => format!("everything that could be, in {ms} ms"),
            None => "still looking for disks".to_owned(),
        },
    );
    line("socket", status.socket.clone());
    line("state", status.state_directory.clone());
    for shard in &status.shards {
        line(&format!("shard {}", shard.shard), super::status::shard(shard));
    }
    line("arrays", format!("{} of {} active", status.arrays.serving, status.arrays.total));
    line(
        "exports",
        format!("{} of {} listening, {} clients", status.exports.serving, status.exports.total, status.connections),
    );
    line("disks", format!("{} of {} well", status.disks.serving, status.disks.total));
    text.push('\n');
    if !disks.disks.is_empty() {
        text.push_str(&disk_table(disks));
        text.push('\n');
    }
    text.push_str(&attention(status));
    text
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
            output::cut(&disk.array, 16),
            disk.state.word().to_owned(),
            format_size(disk.stats.read_bytes),
            format_size(disk.stats.written_bytes),
            output::nanoseconds(disk.stats.latency_ns_p99),
            disk.stats.errors.to_string(),
        ]);
    }
    output::right(&mut table, [3, 4, 5, 6]);
    output::render(&table)
}

fn attention(status: &Status) -> String {
    if status.attention.is_empty() {
        return "all is well\n".to_owned();
    }
    let mut text = String::from("needs attention:\n");
    for item in &status.attention {
        let _ = writeln!(text, "  {}: {}", item.subject, item.message);
        if !item.remedy.is_empty() {
            let _ = writeln!(text, "    {}", item.remedy);
        }
    }
    text
}

fn limits(limits: &Limits) -> String {
    let mut table = output::table(["LIMIT", "VALUE"]);
    for (what, value) in [
        ("members of one array", limits.array_members_max.to_string()),
        ("arrays of one daemon", limits.arrays_max.to_string()),
        ("exports of one daemon", limits.exports_max.to_string()),
        ("connections to one export", limits.export_connections_max.to_string()),
        ("requests in flight on one connection (more wait)", limits.connection_requests_max.to_string()),
        ("longest request", format_size(limits.request_bytes_max)),
        ("time limit of an I/O to a local disk", output::duration(limits.leaf_timeout_ms)),
        ("longest name, in characters", limits.name_bytes_max.to_string()),
        ("smallest chunk, and what chunks are multiples of", format_size(limits.chunk_bytes_min)),
        ("largest chunk", format_size(limits.chunk_bytes_max)),
        ("longest body of an API request", format_size(limits.api_body_bytes_max)),
        ("clients of the API at a time (more wait)", limits.api_clients_max.to_string()),
        ("the same over the network", limits.api_network_clients_max.to_string()),
        ("tokens in one file", limits.api_tokens_max.to_string()),
        ("time in which a request of the API has to arrive", output::duration(limits.api_request_timeout_ms)),
        ("events that are remembered", limits.events_max.to_string()),
        ("readers that may follow the events at once", limits.event_followers_max.to_string()),
    ] {
        table.add_row([what.to_owned(), value]);
    }
    output::right(&mut table, [1]);
    output::render(&table)
}
