//! `braid snapshot …`.

use super::object_names::{name_or_uuid, snapshot, volume};
use super::{ApiArgs, ApiListArgs, freeze, output, segment};
use braid_api::{
    ChangeSnapshot, CreateSnapshots, ErrorDetail, RenameVolume, Snapshot, SnapshotConsistency, SnapshotDiff,
    SnapshotList, SnapshotPolicy, Volume, names,
};
use braid_geometry::units::format_size;
use braid_terminal::listing::ListStyle;
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use super::confirm::confirm;

#[derive(Subcommand)]
pub enum Verb {
    /// Create snapshots of volumes of one pool, all at the same instant
    Create(CreateArgs),
    /// List the snapshots
    List(ListArgs),
    /// Show everything about a snapshot
    Show(NameArgs),
    /// Rename a snapshot
    Rename(RenameArgs),
    /// Delete a snapshot, in any order, even if it has clones
    Delete(DeleteArgs),
    /// Set, show or disable the snapshot schedule of a volume; without options shows it
    Policy(PolicyArgs),
    /// Show which ranges of a volume or a later snapshot differ from a snapshot
    Diff(DiffArgs),
}

#[derive(Args)]
pub struct CreateArgs {
    /// Their names, all in one pool; or one of a replicated volume, on all of its replicas: VOLUME@SNAPSHOT
    #[arg(required = true, value_name = "POOL/VOLUME@SNAPSHOT", value_parser = new_snapshot)]
    snapshots: Vec<String>,
    /// Freeze the file system at this folder while they are taken, for at most 10 s: for one that `braid mount` did not mount here, as on a
    /// client of an export, or on LVM or encryption. File systems mounted by `braid mount` are frozen without this option
    #[arg(long, value_name = "FOLDER")]
    freeze: Vec<PathBuf>,
    /// Freeze no file system: the snapshots are crash-consistent
    #[arg(long, conflicts_with = "freeze")]
    no_freeze: bool,
    #[command(flatten)]
    api: ApiArgs,
}

/// What `braid snapshot create --json` prints.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub struct SnapshotsTaken {
    /// The snapshots.
    snapshots: Vec<Snapshot>,
    /// The folders of the file systems that were frozen meanwhile.
    frozen: Vec<String>,
    /// The file systems that were to be frozen, and were not frozen until the snapshots existed.
    not_frozen: Vec<NotFrozen>,
}

/// A file system that was not frozen while a snapshot was taken.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub struct NotFrozen {
    /// Its folder.
    folder: String,
    /// Why, and what to do.
    error: ErrorDetail,
}

#[derive(Args)]
pub struct ListArgs {
    /// Only the snapshots of this pool or volume; a replicated volume is named without a pool
    #[arg(value_name = "POOL[/VOLUME]", value_parser = pool_or_volume)]
    of: Option<String>,
    #[command(flatten)]
    api: ApiListArgs,
}

#[derive(Args)]
pub struct NameArgs {
    /// The snapshot, by name or UUID
    #[arg(value_name = "POOL/VOLUME@SNAPSHOT", value_parser = snapshot)]
    snapshot: String,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct RenameArgs {
    /// The snapshot, by name or UUID
    #[arg(value_name = "POOL/VOLUME@SNAPSHOT", value_parser = snapshot)]
    snapshot: String,
    /// The new name of the snapshot, without its volume
    new_name: String,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct DeleteArgs {
    /// The snapshot, by name or UUID
    #[arg(value_name = "POOL/VOLUME@SNAPSHOT", value_parser = snapshot)]
    snapshot: String,
    /// Delete it although it is exported; its exports are removed
    #[arg(long)]
    force: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct PolicyArgs {
    /// The volume, by name or UUID
    #[arg(value_name = "POOL/VOLUME", value_parser = volume)]
    volume: String,
    /// The interval between snapshots, aligned to the clock in UTC: 30s, 15m, 1h, 1d, 1w; at least 10 seconds. They are called
    /// auto-20261122T140000Z; a renamed one no longer belongs to the schedule
    #[arg(long, value_name = "TIME", value_parser = every, requires = "keep")]
    every: Option<u32>,
    /// The number of newest snapshots to keep. One that is exported or has clones is kept, too
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..), requires = "every")]
    keep: Option<u32>,
    /// Disable the schedule; existing snapshots remain
    #[arg(long, conflicts_with = "every")]
    none: bool,
    #[command(flatten)]
    api: ApiArgs,
}

/// Parses a duration, in seconds.
pub(super) fn every(text: &str) -> Result<u32, String> {
    const EXPECTED: &str = "write a number and a unit. Examples: 30s, 15m, 1h, 1d, 1w";
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or(EXPECTED)?;
    let seconds: u32 = match &text[at..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 7 * 86_400,
        _ => return Err(EXPECTED.into()),
    };
    let number: u32 = text[..at].parse().map_err(|_| EXPECTED)?;
    number.checked_mul(seconds).filter(|every| *every > 0).ok_or_else(|| EXPECTED.into())
}

#[derive(Args)]
pub struct DiffArgs {
    /// The older snapshot, by name or UUID
    #[arg(value_name = "POOL/VOLUME@SNAPSHOT", value_parser = snapshot)]
    from: String,
    /// What is compared with it: a later snapshot (@SNAPSHOT is short for one of this volume), a volume or a clone [default: the
    /// volume as it is now]
    #[arg(value_name = "SNAPSHOT-OR-VOLUME")]
    to: Option<String>,
    #[command(flatten)]
    api: ApiArgs,
}

fn new_snapshot(text: &str) -> Result<String, String> {
    if names::is_uuid(text) {
        Err("write POOL/VOLUME@SNAPSHOT. Example: tank/db@monday".into())
    } else {
        snapshot(text)
    }
}

fn pool_or_volume(text: &str) -> Result<String, String> {
    if text.contains('/') { volume(text) } else { name_or_uuid(text).map_err(|e| e.to_string()) }
}

fn path(snapshot: &str) -> String {
    format!("/v1/snapshots/{}", segment(snapshot))
}

/// Runs one of the commands.
pub async fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Create(args) => return create(args).await,
        Verb::List(args) => {
            let query = args.of.map(|of| format!("?of={}", segment(&of))).unwrap_or_default();
            let list: SnapshotList = args.api.client()?.get(&format!("/v1/snapshots{query}")).await?;
            let names = list.snapshots.iter().map(|snapshot| snapshot.name.as_str());
            args.api.print(&list, names, &list.incomplete, |style| table(&list, style));
        }
        Verb::Show(args) => {
            let snapshot: Snapshot = args.api.client()?.get(&path(&args.snapshot)).await?;
            output::show(args.api.json, &snapshot, show);
        }
        Verb::Rename(args) => {
            let body = RenameVolume { name: args.new_name };
            let url = format!("{}/rename", path(&args.snapshot));
            let snapshot: Snapshot = args.api.client()?.post(&url, &body).await?;
            output::show(args.api.json, &snapshot, |snapshot| {
                format!(
                    "renamed snapshot {} to {}; the names of its exports are unchanged\n",
                    args.snapshot, snapshot.name
                )
            });
        }
        Verb::Delete(args) => {
            confirm(&format!("Snapshot {} will be lost", args.snapshot), args.yes)?;
            let url = format!("{}?force={}", path(&args.snapshot), args.force);
            let snapshot: Snapshot = args.api.client()?.delete(&url).await?;
            output::show(args.api.json, &snapshot, |snapshot| {
                format!("deleted snapshot {}; its space is freed in the background\n", snapshot.name)
            });
        }
        Verb::Policy(args) => {
            let url = format!("/v1/volumes/{}", segment(&args.volume));
            let client = args.api.client()?;
            let volume: Volume = match (args.every, args.keep) {
                (Some(every_s), Some(keep)) => {
                    client.put(&format!("{url}/policy"), &SnapshotPolicy { every_s, keep }).await?
                }
                _ if args.none => client.delete(&format!("{url}/policy")).await?,
                _ => client.get(&url).await?,
            };
            output::show(args.api.json, &volume, |volume| {
                format!("volume {}: {}\n", volume.name, super::volume::policy(volume.policy))
            });
        }
        Verb::Diff(args) => {
            let diff = all_of_diff(&args).await?;
            output::show(args.api.json, &diff, changes);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Takes snapshots while their file systems are frozen.
async fn create(args: CreateArgs) -> anyhow::Result<ExitCode> {
    // Without progress: the output of this process may go to a file system that is frozen.
    let client = args.api.endpoint.client()?;
    let frozen = if args.no_freeze {
        None
    } else {
        let volume = |snapshot: &String| snapshot.split_once('@').map_or("", |(volume, _)| volume).to_owned();
        let volumes: Vec<String> = args.snapshots.iter().map(volume).collect();
        let volumes: Vec<&str> = volumes.iter().map(String::as_str).collect();
        Some(freeze::freeze(&client, args.api.endpoint.is_remote()?, &volumes, &args.freeze).await?)
    };
    let body = CreateSnapshots { snapshots: args.snapshots };
    let taken = client.post::<SnapshotList>("/v1/snapshots", &body).await;
    // Before any output: it may go to a frozen file system.
    let mut outcomes = match frozen {
        Some(frozen) => frozen.thaw().await,
        None => Vec::new(),
    };
    let mut snapshots = match taken {
        Ok(list) => list.snapshots,
        Err(error) => {
            for stuck in
                outcomes.iter().filter(|outcome| outcome.is_stuck).filter_map(|outcome| outcome.reason.as_ref())
            {
                output::error_text(&format!("braid: {}\n  {}\n", stuck.message, stuck.remedy));
            }
            return Err(error.into());
        }
    };
    for snapshot in &mut snapshots {
        let volume = snapshot.volume.clone().unwrap_or_default();
        let mut of: Vec<&mut freeze::Outcome> = outcomes.iter_mut().filter(|one| one.is_of(&volume)).collect();
        if of.is_empty() || of.iter().any(|one| one.reason.is_some()) {
            continue;
        }
        // Only known after the thaw.
        let body = ChangeSnapshot { consistency: SnapshotConsistency::Frozen };
        match client.patch::<Snapshot>(&path(&snapshot.name), &body).await {
            Ok(changed) => *snapshot = changed,
            Err(error) => {
                let message = format!("it was frozen, and that could not be recorded: {}", error.message);
                of.iter_mut()
                    .for_each(|one| one.reason = Some(ErrorDetail { message: message.clone(), ..error.clone() }));
            }
        }
    }
    let text = taken_text(&snapshots, &outcomes);
    let is_incomplete = outcomes.iter().any(|one| one.is_stuck || one.is_named && one.reason.is_some());
    let mut taken = SnapshotsTaken { snapshots, frozen: Vec::new(), not_frozen: Vec::new() };
    for outcome in outcomes {
        let folder = outcome.folder.display().to_string();
        match outcome.reason {
            None => taken.frozen.push(folder),
            Some(error) => taken.not_frozen.push(NotFrozen { folder, error }),
        }
    }
    output::show(args.api.json, &taken, |_| text);
    Ok(ExitCode::from(if is_incomplete { super::failure::ATTENTION } else { 0 }))
}

fn taken_text(snapshots: &[Snapshot], outcomes: &[freeze::Outcome]) -> String {
    let mut text = String::new();
    for Snapshot { name, volume, consistency, .. } in snapshots {
        let of = outcomes.iter().filter(|one| volume.as_deref().is_some_and(|volume| one.is_of(volume)));
        let how = match consistency {
            SnapshotConsistency::Frozen => {
                let folders: Vec<String> = of.map(|one| one.folder.display().to_string()).collect();
                format!("the file system at {} was frozen", folders.join(" and at "))
            }
            SnapshotConsistency::Crash => {
                let reason = of.filter_map(|one| one.reason.as_ref()).next();
                match reason {
                    None => "crash-consistent".to_owned(),
                    Some(ErrorDetail { message, remedy, .. }) => format!("crash-consistent, as {message}; {remedy}"),
                }
            }
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "created snapshot {name} ({how})");
    }
    text
}

/// Requests the parts of the difference until it is complete.
async fn all_of_diff(args: &DiffArgs) -> anyhow::Result<SnapshotDiff> {
    let client = args.api.client()?;
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
                // The offset never decreases, even if the volume shrinks meanwhile.
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
    output::align_right(&mut table, [0, 1, 2]);
    text.push('\n');
    text.push_str(&output::render(&table));
    text
}

fn table(list: &SnapshotList, style: ListStyle) -> String {
    if list.snapshots.is_empty() {
        return output::empty_list("snapshots", &list.incomplete, "braid snapshot create POOL/VOLUME@NAME");
    }
    let columns = ["NAME", "TAKEN", "FROZEN", "SIZE", "EXCLUSIVE", "SHARED"];
    let mut table = style.table(columns, ["EXPORTS", "UUID"]);
    for snapshot in &list.snapshots {
        table.row(
            [
                snapshot.name.clone(),
                output::utc_time(snapshot.created_unix_s * 1000),
                if snapshot.consistency == SnapshotConsistency::Frozen { "yes" } else { "no" }.to_owned(),
                format_size(snapshot.size_bytes),
                output::size_or_dash(snapshot.space.as_ref().map(|space| space.exclusive_bytes)),
                output::size_or_dash(snapshot.space.as_ref().map(|space| space.shared_bytes)),
            ],
            [snapshot.exports.len().to_string(), snapshot.uuid.clone()],
        );
    }
    table.align_right([3, 4, 5, 6]);
    table.render()
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
    line("blocks", format!("of {} bytes", snapshot.block_bytes));
    line("allocated", format!("{} under its name", bytes(snapshot.allocated_bytes)));
    output::space(snapshot.space.as_ref(), &mut line);
    line("taken", output::utc_time(snapshot.created_unix_s * 1000));
    let consistency = match snapshot.consistency {
        SnapshotConsistency::Crash => "crash: what had not been flushed may be missing",
        SnapshotConsistency::Frozen => "frozen: its file system was frozen while it was taken",
    };
    line("consistency", consistency.to_owned());
    for replica in &snapshot.replicas {
        line(
            "replica",
            format!(
                "{}/{} {}",
                replica.node,
                replica.pool,
                if replica.has_snapshot { "has it" } else { "does not have it, or is not in sync" }
            ),
        );
    }
    line("exports", if snapshot.exports.is_empty() { "none".to_owned() } else { snapshot.exports.join(", ") });
    text
}
