//! `braid snapshot …`.

use super::volume::snapshot;
use super::{Ask, output, segment};
use braid_api::{CreateSnapshots, RenameVolume, Snapshot, SnapshotDiff, SnapshotList, names};
use braid_geometry::units::format_size;
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::process::ExitCode;

use super::confirm::confirm;

#[derive(Subcommand)]
pub enum Verb {
    /// Take snapshots of volumes of a pool, all at one instant
    Create(CreateArgs),
    /// List the snapshots
    List(ListArgs),
    /// Show everything about a snapshot
    Show(NameArgs),
    /// Give a snapshot another name
    Rename(RenameArgs),
    /// Delete a snapshot, in any order, whatever was cloned from it
    Delete(DeleteArgs),
    /// Show in what a volume or a later snapshot differs from a snapshot
    Diff(DiffArgs),
}

#[derive(Args)]
pub struct CreateArgs {
    /// Their names; all in one pool
    #[arg(required = true, value_name = "POOL/VOLUME@SNAPSHOT", value_parser = new_snapshot)]
    snapshots: Vec<String>,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct ListArgs {
    /// Only those of this pool or volume
    #[arg(value_name = "POOL[/VOLUME]", value_parser = pool_or_volume)]
    of: Option<String>,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct NameArgs {
    /// The snapshot, by name or UUID
    #[arg(value_name = "POOL/VOLUME@SNAPSHOT", value_parser = snapshot)]
    snapshot: String,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct RenameArgs {
    /// The snapshot, by name or UUID
    #[arg(value_name = "POOL/VOLUME@SNAPSHOT", value_parser = snapshot)]
    snapshot: String,
    /// Its new name, without that of the volume
    new_name: String,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct DeleteArgs {
    /// The snapshot, by name or UUID
    #[arg(value_name = "POOL/VOLUME@SNAPSHOT", value_parser = snapshot)]
    snapshot: String,
    /// Delete it although it is exported; its exports are removed
    #[arg(long)]
    force: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct DiffArgs {
    /// The snapshot that is compared with, by name or UUID
    #[arg(value_name = "POOL/VOLUME@SNAPSHOT", value_parser = snapshot)]
    from: String,
    /// What is compared with it: another snapshot (of this volume @SNAPSHOT is enough), a volume, a clone; the volume as it is now
    /// unless given
    #[arg(value_name = "SNAPSHOT-OR-VOLUME")]
    to: Option<String>,
    #[command(flatten)]
    ask: Ask,
}

fn new_snapshot(text: &str) -> Result<String, String> {
    if names::is_uuid(text) {
        Err("write POOL/VOLUME@SNAPSHOT, for example tank/db@monday".into())
    } else {
        snapshot(text)
    }
}

fn pool_or_volume(text: &str) -> Result<String, String> {
    if text.contains('/') {
        super::volume::volume(text)
    } else {
        super::array::name_or_uuid(text).map_err(|e| e.to_string())
    }
}

fn path(snapshot: &str) -> String {
    format!("/v1/snapshots/{}", segment(snapshot))
}

/// Runs one of the commands.
pub async fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Create(args) => {
            let body = CreateSnapshots { snapshots: args.snapshots };
            let list: SnapshotList = args.ask.client()?.post("/v1/snapshots", &body).await?;
            output::show(args.ask.json, &list, |list| {
                let names: Vec<&str> = list.snapshots.iter().map(|snapshot| snapshot.name.as_str()).collect();
                format!("taken, and durable: {}\n", names.join(", "))
            });
        }
        Verb::List(args) => {
            let query = args.of.map(|of| format!("?of={}", segment(&of))).unwrap_or_default();
            let list: SnapshotList = args.ask.client()?.get(&format!("/v1/snapshots{query}")).await?;
            output::show(args.ask.json, &list, table);
        }
        Verb::Show(args) => {
            let snapshot: Snapshot = args.ask.client()?.get(&path(&args.snapshot)).await?;
            output::show(args.ask.json, &snapshot, show);
        }
        Verb::Rename(args) => {
            let body = RenameVolume { name: args.new_name };
            let url = format!("{}/rename", path(&args.snapshot));
            let snapshot: Snapshot = args.ask.client()?.post(&url, &body).await?;
            output::show(args.ask.json, &snapshot, |snapshot| {
                format!("snapshot {} is now called {}; names of exports stay\n", args.snapshot, snapshot.name)
            });
        }
        Verb::Delete(args) => {
            confirm(&format!("Snapshot {} will be lost", args.snapshot), args.yes)?;
            let url = format!("{}?force={}", path(&args.snapshot), args.force);
            let snapshot: Snapshot = args.ask.client()?.delete(&url).await?;
            output::show(args.ask.json, &snapshot, |snapshot| {
                format!("snapshot {} is deleted; its space becomes free little by little\n", snapshot.name)
            });
        }
        Verb::Diff(args) => {
            let diff = all_of_diff(&args).await?;
            output::show(args.ask.json, &diff, changes);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks until there is no more.
async fn all_of_diff(args: &DiffArgs) -> anyhow::Result<SnapshotDiff> {
    let client = args.ask.client()?;
    let to = args.to.as_deref().map(|to| format!("&to={}", segment(to))).unwrap_or_default();
    let mut all: Option<SnapshotDiff> = None;
    loop {
        let offset = all.as_ref().and_then(|all| all.next_offset_bytes).unwrap_or(0);
        let part: SnapshotDiff = client.get(&format!("{}/diff?offset_bytes={offset}{to}", path(&args.from))).await?;
        let all = match &mut all {
            None => all.insert(part),
            Some(all) => {
                all.changed_bytes += part.changed_bytes;
                all.ranges.extend(part.ranges);
                // A volume that shrinks meanwhile cannot make it go backwards.
                all.next_offset_bytes = part.next_offset_bytes.filter(|next| *next > offset);
                all
            }
        };
        if all.next_offset_bytes.is_none() {
            return Ok(all.clone());
        }
    }
}

fn changes(diff: &SnapshotDiff) -> String {
    let bytes = format!("{} ({} bytes)", format_size(diff.changed_bytes), output::thousands(diff.changed_bytes));
    let mut text = format!("from {} to {}: {bytes} changed\n", diff.from, diff.to);
    if diff.ranges.is_empty() {
        return text;
    }
    let mut table = output::table(["OFFSET", "LENGTH", "SIZE", "NOW"]);
    for range in &diff.ranges {
        table.add_row([
            range.offset_bytes.to_string(),
            range.length_bytes.to_string(),
            format_size(range.length_bytes),
            if range.zeros { "zeros" } else { "data" }.to_owned(),
        ]);
    }
    output::right(&mut table, [0, 1, 2]);
    text.push('\n');
    text.push_str(&output::render(&table));
    text
}

fn table(list: &SnapshotList) -> String {
    if list.snapshots.is_empty() {
        return "no snapshots; take one with: braid snapshot create POOL/VOLUME@NAME\n".to_owned();
    }
    let mut table = output::table(["NAME", "TAKEN", "SIZE", "EXCLUSIVE", "SHARED", "EXPORTS"]);
    for snapshot in &list.snapshots {
        table.add_row([
            snapshot.name.clone(),
            output::moment(snapshot.created_unix_s * 1000),
            format_size(snapshot.size_bytes),
            output::counted(snapshot.space.as_ref().map(|space| space.exclusive_bytes)),
            output::counted(snapshot.space.as_ref().map(|space| space.shared_bytes)),
            snapshot.exports.len().to_string(),
        ]);
    }
    output::right(&mut table, [2, 3, 4, 5]);
    output::render(&table)
}

fn show(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{label:<12}{value}");
    };
    let bytes = |bytes: u64| format!("{} ({} bytes)", format_size(bytes), output::thousands(bytes));
    line("snapshot", snapshot.name.clone());
    line("uuid", snapshot.uuid.clone());
    line("volume", snapshot.volume.clone().unwrap_or_else(|| "deleted".to_owned()));
    line("size", bytes(snapshot.size_bytes));
    line("allocated", format!("{} under its name", bytes(snapshot.allocated_bytes)));
    output::space(snapshot.space.as_ref(), &mut line);
    line("taken", output::moment(snapshot.created_unix_s * 1000));
    line("exports", if snapshot.exports.is_empty() { "none".to_owned() } else { snapshot.exports.join(", ") });
    text
}
