//! `braid snapshot …`.

use super::volume::snapshot;
use super::{Ask, AskList, freeze, output, segment};
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
    /// Take snapshots of a volume by themselves, or no more; without options show whether that is so
    Policy(PolicyArgs),
    /// Show in what a volume or a later snapshot differs from a snapshot
    Diff(DiffArgs),
}

#[derive(Args)]
pub struct CreateArgs {
    /// Their names; all in one pool. Or one of a volume of several nodes, on all of its replicas: VOLUME@SNAPSHOT
    #[arg(required = true, value_name = "POOL/VOLUME@SNAPSHOT", value_parser = new_snapshot)]
    snapshots: Vec<String>,
    /// Freeze the file system at this folder while they are taken, for 10 s at most: one that `braid mount` has not mounted here, as on a
    /// client of an export, or on LVM or encryption. What `braid mount` has mounted is frozen without this
    #[arg(long, value_name = "FOLDER")]
    freeze: Vec<PathBuf>,
    /// Freeze nothing: the snapshots are crash-consistent
    #[arg(long, conflicts_with = "freeze")]
    no_freeze: bool,
    #[command(flatten)]
    ask: Ask,
}

/// What `braid snapshot create --json` prints.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub struct SnapshotsTaken {
    /// Those that were taken.
    snapshots: Vec<Snapshot>,
    /// File systems that were frozen meanwhile, by their folders.
    frozen: Vec<String>,
    /// File systems that were to be frozen, and were not until the snapshots were there.
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
    /// Only those of this pool or volume; of a volume of several nodes: its name
    #[arg(value_name = "POOL[/VOLUME]", value_parser = pool_or_volume)]
    of: Option<String>,
    #[command(flatten)]
    ask: AskList,
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
pub struct PolicyArgs {
    /// The volume, by name or UUID
    #[arg(value_name = "POOL/VOLUME", value_parser = super::volume::volume)]
    volume: String,
    /// One every so often, at round times of the clock in UTC: 30s, 15m, 1h, 1d, 1w; 10 seconds at least. They are called
    /// auto-20261122T140000Z; one that is renamed is the policy's no more
    #[arg(long, value_name = "TIME", value_parser = every, requires = "keep")]
    every: Option<u32>,
    /// Keep the newest so many of them. One that is exported, or from which a volume was cloned, stays beside them
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..), requires = "every")]
    keep: Option<u32>,
    /// Take none any more; those that there are stay
    #[arg(long, conflicts_with = "every")]
    none: bool,
    #[command(flatten)]
    ask: Ask,
}

/// Reads a length of time, in seconds.
pub(super) fn every(text: &str) -> Result<u32, String> {
    const RIGHT: &str = "write 30s, 15m, 1h, 1d or 1w, for example";
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or(RIGHT)?;
    let seconds: u32 = match &text[at..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 7 * 86_400,
        _ => return Err(RIGHT.into()),
    };
    let number: u32 = text[..at].parse().map_err(|_| RIGHT)?;
    number.checked_mul(seconds).filter(|every| *every > 0).ok_or_else(|| RIGHT.into())
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
        Verb::Create(args) => return create(args).await,
        Verb::List(args) => {
            let query = args.of.map(|of| format!("?of={}", segment(&of))).unwrap_or_default();
            let list: SnapshotList = args.ask.client()?.get(&format!("/v1/snapshots{query}")).await?;
            let names = list.snapshots.iter().map(|snapshot| snapshot.name.as_str());
            args.ask.print(&list, names, &list.incomplete, |style| table(&list, style));
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
        Verb::Policy(args) => {
            let url = format!("/v1/volumes/{}", segment(&args.volume));
            let client = args.ask.client()?;
            let volume: Volume = match (args.every, args.keep) {
                (Some(every_s), Some(keep)) => {
                    client.put(&format!("{url}/policy"), &SnapshotPolicy { every_s, keep }).await?
                }
                _ if args.none => client.delete(&format!("{url}/policy")).await?,
                _ => client.get(&url).await?,
            };
            output::show(args.ask.json, &volume, |volume| {
                format!("volume {}: {}\n", volume.name, super::volume::policy(volume.policy))
            });
        }
        Verb::Diff(args) => {
            let diff = all_of_diff(&args).await?;
            output::show(args.ask.json, &diff, changes);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Takes snapshots, with their file systems frozen meanwhile.
async fn create(args: CreateArgs) -> anyhow::Result<ExitCode> {
    let client = args.ask.client()?;
    let frozen = if args.no_freeze {
        None
    } else {
        let volume = |snapshot: &String| snapshot.split_once('@').map_or("", |(volume, _)| volume).to_owned();
        let volumes: Vec<String> = args.snapshots.iter().map(volume).collect();
        let volumes: Vec<&str> = volumes.iter().map(String::as_str).collect();
        Some(freeze::freeze(&client, args.ask.reach.is_remote()?, &volumes, &args.freeze).await?)
    };
    let body = CreateSnapshots { snapshots: args.snapshots };
    let taken = client.post::<SnapshotList>("/v1/snapshots", &body).await;
    // Before anything is written: where it goes to may be one of them.
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
                output::complain(&format!("braid: {}\n  {}\n", stuck.message, stuck.remedy));
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
        // Only now is it known.
        let body = ChangeSnapshot { consistency: SnapshotConsistency::Frozen };
        match client.patch::<Snapshot>(&path(&snapshot.name), &body).await {
            Ok(changed) => *snapshot = changed,
            Err(error) => {
                let message = format!("it was frozen, and that could not be noted: {}", error.message);
                of.iter_mut()
                    .for_each(|one| one.reason = Some(ErrorDetail { message: message.clone(), ..error.clone() }));
            }
        }
    }
    let text = taken_text(&snapshots, &outcomes);
    let lacks = outcomes.iter().any(|one| one.is_stuck || one.is_named && one.reason.is_some());
    let mut taken = SnapshotsTaken { snapshots, frozen: Vec::new(), not_frozen: Vec::new() };
    for outcome in outcomes {
        let folder = outcome.folder.display().to_string();
        match outcome.reason {
            None => taken.frozen.push(folder),
            Some(error) => taken.not_frozen.push(NotFrozen { folder, error }),
        }
    }
    output::show(args.ask.json, &taken, |_| text);
    Ok(ExitCode::from(if lacks { super::failure::ATTENTION } else { 0 }))
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
        let _ = writeln!(text, "took snapshot {name} ({how})");
    }
    text
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

fn table(list: &SnapshotList, style: ListStyle) -> String {
    if list.snapshots.is_empty() {
        return output::none("snapshots", &list.incomplete, "braid snapshot create POOL/VOLUME@NAME");
    }
    let columns = ["NAME", "TAKEN", "FROZEN", "SIZE", "EXCLUSIVE", "SHARED"];
    let mut table = style.table(columns, ["EXPORTS", "UUID"]);
    for snapshot in &list.snapshots {
        table.row(
            [
                snapshot.name.clone(),
                output::moment(snapshot.created_unix_s * 1000),
                if snapshot.consistency == SnapshotConsistency::Frozen { "yes" } else { "no" }.to_owned(),
                format_size(snapshot.size_bytes),
                output::counted(snapshot.space.as_ref().map(|space| space.exclusive_bytes)),
                output::counted(snapshot.space.as_ref().map(|space| space.shared_bytes)),
            ],
            [snapshot.exports.len().to_string(), snapshot.uuid.clone()],
        );
    }
    table.right([3, 4, 5, 6]);
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
    line("taken", output::moment(snapshot.created_unix_s * 1000));
    let consistency = match snapshot.consistency {
        SnapshotConsistency::Crash => "crash: what had not been flushed may be missing",
        SnapshotConsistency::Frozen => "frozen: its file system was frozen while it was taken",
    };
    line("consistency", consistency.to_owned());
    for replica in &snapshot.replicas {
        line(
            "replica",
            format!("{}/{} {}", replica.node, replica.pool, if replica.has { "has it" } else { "lacks it, or is out" }),
        );
    }
    line("exports", if snapshot.exports.is_empty() { "none".to_owned() } else { snapshot.exports.join(", ") });
    text
}
