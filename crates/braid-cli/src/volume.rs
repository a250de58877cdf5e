//! `braid volume …`.

use super::array::name_or_uuid;
use super::confirm::confirm;
use super::disk_names::absolute_for;
use super::export_limits::{Limit, limit, words};
use super::replicated::{self, Replicas, is_replicated, replicas};
use super::resize::{ResizeArgs, resize};
use super::watch::{Wait, follow_newest};
use super::{Ask, AskList, output, segment};
use braid_api::limits::{VOLUME_BLOCK_BYTES, VOLUME_LOGICAL_BLOCKS, VOLUME_SECTOR_BYTES};
use braid_api::{
    CloneSnapshot, CreateVolume, ErrorDetail, FlattenVolume, Job, Kind, MoveVolume, Place, RenameVolume,
    RollbackVolume, SetVolume, Snapshot, SnapshotPolicy, Volume, VolumeList, names,
};
use braid_client::Client;
use braid_geometry::Level;
use braid_geometry::units::{format_size, parse_size};
use braid_terminal::levels;
use braid_terminal::listing::ListStyle;
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::process::ExitCode;

/// Levels of volumes of several nodes.
const LEVELS: [Level; 3] = [Level::Raid1, Level::Raid5, Level::Raid6];

#[derive(Subcommand)]
pub enum Verb {
    /// Make a volume; it takes no space until it is written
    Create(CreateArgs),
    /// List the volumes
    List(ListArgs),
    /// Show everything about a volume
    Show(NameArgs),
    /// Change what the exports of a volume may take together, while they are used
    Set(SetArgs),
    /// Give a volume another name
    Rename(RenameArgs),
    /// Give a volume another size, while it is used
    Resize(ResizeArgs),
    /// Let a volume and its snapshots have their blocks on other members of the pool, while they are used
    Move(MoveArgs),
    /// Put together what a volume and its snapshots have scattered, while they are used: faster to read in a row, and in less space
    Compact(CompactArgs),
    /// Make a clone and its snapshots independent of what it began as, while they are used: what they see of that is copied
    Flatten(FlattenArgs),
    /// Make a volume that begins as a snapshot is
    Clone(CloneArgs),
    /// Make a volume be as a snapshot is; what was written since is lost, and the snapshot stays
    Rollback(RollbackArgs),
    /// Delete a volume that has no snapshots
    Delete(DeleteArgs),
    /// Serve a volume of several nodes on this one; the node that has served it so far is cut off
    ///
    /// More than half of its voters have to answer. Where the others are lost for ever, --force opens it with those that are left: what may be
    /// lost is said before, and the others' replicas count as diverged from then on.
    Attach(AttachArgs),
    /// End serving a volume of several nodes on this one
    Detach(DetachArgs),
}

#[derive(Args)]
pub struct CreateArgs {
    /// Its name, with that of its pool; without one where it has replicas
    #[arg(value_name = "[POOL/]VOLUME", value_parser = volume_or_name)]
    name: String,
    /// Its size; all volumes together may be larger than the pool
    #[arg(value_parser = size)]
    size: u64,
    /// Keep space for all of it from the beginning: no write to it is refused for want of space, except over what a snapshot has
    #[arg(long)]
    thick: bool,
    /// Bytes of its blocks: 4096, or 512 for images of disks with such sectors; what begins or ends within 4096 bytes is read before it is
    /// written. A replicated volume with parity refuses 512
    #[arg(long, value_name = "BYTES", default_value_t = VOLUME_BLOCK_BYTES, value_parser = block)]
    block_size: u32,
    /// Where its blocks go: on all members of the pool (spread), on the one with most free space (single), or on these (on=MEMBER,…)
    #[arg(long, value_name = "PLACE", default_value = "spread")]
    place: Place,
    /// Most requests and bytes a second, over all of its exports together: iops=3000,bw=125M, one of them, or none
    #[arg(long, value_name = "LIMITS", value_parser = limit)]
    limit: Option<Limit>,
    /// Keep it on several nodes: NODE/POOL,NODE/POOL,… or how many, on the nodes with the most free space
    #[arg(long, value_name = "PLACES", value_parser = replicas, conflicts_with_all = ["thick", "place", "limit"])]
    replicas: Option<Replicas>,
    /// A node that votes for a volume of several nodes and keeps no data of it; may be given several times
    #[arg(long, value_name = "NODE", requires = "replicas")]
    witness: Vec<String>,
    /// How its replicas keep it: copies (raid1), or parts with one parity (raid5) or two (raid6); also as a number, or as mirror, raid-5
    #[arg(long, value_name = "LEVEL", requires = "replicas", ignore_case = true, value_parser = levels::parser(&LEVELS))]
    level: Option<Level>,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct AttachArgs {
    /// The volume, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    volume: String,
    /// Open it although too few of its voters answer: the others are given up, with what only they have
    #[arg(long)]
    force: bool,
    /// Do not ask
    #[arg(long, requires = "force")]
    yes: bool,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct DetachArgs {
    /// The volume, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    volume: String,
    /// End it although it is exported; its clients are cut off
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct SetArgs {
    /// The volume, by name or UUID
    #[arg(value_name = "POOL/VOLUME", value_parser = volume_or_name)]
    volume: String,
    /// Most requests and bytes a second, over all of its exports together: iops=3000,bw=125M, one of them, or none
    #[arg(long, value_name = "LIMITS", value_parser = limit)]
    limit: Limit,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct MoveArgs {
    /// The volume, by name or UUID
    #[arg(value_name = "POOL/VOLUME", value_parser = volume_or_name)]
    volume: String,
    /// Where its blocks go: spread, single, or on=MEMBER,…
    #[arg(long, value_name = "PLACE")]
    place: Place,
    #[command(flatten)]
    wait: Wait,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct CompactArgs {
    /// The volume, by name or UUID
    #[arg(value_name = "POOL/VOLUME", value_parser = volume_or_name)]
    volume: String,
    #[command(flatten)]
    wait: Wait,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct ListArgs {
    /// Only those of this pool, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pool: Option<String>,
    /// The volumes of several nodes of the whole cluster: which node serves each, and how its replicas stand
    #[arg(long, conflicts_with = "pool")]
    all: bool,
    #[command(flatten)]
    ask: AskList,
}

#[derive(Args)]
pub struct NameArgs {
    /// The volume, by name or UUID
    #[arg(value_name = "[POOL/]VOLUME", value_parser = volume_or_name)]
    volume: String,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct RenameArgs {
    /// The volume, by name or UUID
    #[arg(value_name = "POOL/VOLUME", value_parser = volume_or_name)]
    volume: String,
    /// Its new name, without that of the pool
    new_name: String,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct FlattenArgs {
    /// The volume
    #[arg(value_name = "POOL/VOLUME", value_parser = volume_or_name)]
    volume: String,
    /// Let it be: what was copied is its own, and it stays dependent
    #[arg(long)]
    cancel: bool,
    #[command(flatten)]
    wait: Wait,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct CloneArgs {
    /// The snapshot, by name or UUID
    #[arg(value_name = "POOL/VOLUME@SNAPSHOT", value_parser = snapshot)]
    snapshot: String,
    /// The new volume, in the same pool; of a snapshot of a volume of several nodes one on the nodes that have it, without a pool
    #[arg(value_name = "[POOL/]VOLUME")]
    name: String,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct RollbackArgs {
    /// The volume, by name or UUID; or the snapshot alone, which names its volume
    #[arg(value_name = "[POOL/]VOLUME[@SNAPSHOT]", value_parser = volume_or_snapshot)]
    volume: String,
    /// The snapshot, unless it stands above; of this volume @SNAPSHOT is enough
    #[arg(value_name = "POOL/VOLUME@SNAPSHOT")]
    snapshot: Option<String>,
    /// Roll it back although an array had it as a member when it was seen last
    #[arg(long)]
    force: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct DeleteArgs {
    /// The volume, by name or UUID
    #[arg(value_name = "[POOL/]VOLUME", value_parser = volume_or_name)]
    volume: String,
    /// Delete it although it is exported; its exports are removed
    #[arg(long)]
    force: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    ask: Ask,
}

/// Reads the name of a volume, or a UUID, for clap.
pub fn volume(text: &str) -> Result<String, String> {
    let named = names::VolumeName::parse(text).is_some_and(|name| name.snapshot.is_none());
    if named || names::is_uuid(text) {
        Ok(text.to_owned())
    } else {
        Err("write POOL/VOLUME, for example tank/db".into())
    }
}

/// The same, or the name of a volume of several nodes: where something cannot be done with that, the daemon says so.
pub fn volume_or_name(text: &str) -> Result<String, String> {
    if names::check_name(text).is_ok() { Ok(text.to_owned()) } else { volume(text) }
}

/// Reads the name of a volume or of a snapshot.
fn volume_or_snapshot(text: &str) -> Result<String, String> {
    if text.contains('@') { snapshot(text) } else { volume_or_name(text) }
}

/// The same of a snapshot.
pub fn snapshot(text: &str) -> Result<String, String> {
    let of_all = text.split_once('@').is_some_and(|(volume, own)| {
        names::check_name(volume).is_ok() && (names::is_uuid(own) || names::check_name(own).is_ok())
    });
    let named = of_all || names::VolumeName::parse(text).is_some_and(|name| name.snapshot.is_some());
    let right =
        || "write POOL/VOLUME@SNAPSHOT, for example tank/db@monday; of a volume of several nodes db@monday".to_owned();
    if named || names::is_uuid(text) { Ok(text.to_owned()) } else { Err(right()) }
}

fn wrong(name: &str, why: &str) -> anyhow::Error {
    ErrorDetail::new(Kind::InvalidArgument, format!("{name}: {why}"))
        .with("volume", name)
        .remedy("for example braid volume create tank/db 100G, or braid volume create db 100G --replicas node1/tank,node2/tank")
        .into()
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

fn path(volume: &str) -> String {
    format!("/v1/volumes/{}", segment(volume))
}

/// The same place, for a daemon that runs in another folder.
fn absolute(place: Place, ask: &Ask) -> anyhow::Result<Place> {
    let Place::On(members) = place else { return Ok(place) };
    let member = |text: String| match names::check_name(&text) {
        // An array, a number, or what cannot be a member: the daemon says which.
        Ok(()) => Ok(text),
        Err(_) => anyhow::Ok(absolute_for(&ask.reach, &text)?.to_string()),
    };
    Ok(Place::On(members.into_iter().map(member).collect::<anyhow::Result<_>>()?))
}

fn place(place: &Place) -> String {
    match place {
        Place::Spread => "spread over all members".to_owned(),
        Place::Single => "on one member".to_owned(),
        Place::On(members) => format!("on {}", members.join(", ")),
    }
}

/// Reads the size of blocks, for clap.
fn block(text: &str) -> Result<u32, String> {
    match text {
        "4K" | "4k" => Ok(VOLUME_BLOCK_BYTES),
        _ => VOLUME_LOGICAL_BLOCKS
            .into_iter()
            .find(|bytes| bytes.to_string() == text)
            .ok_or_else(|| format!("write {VOLUME_SECTOR_BYTES} or {VOLUME_BLOCK_BYTES}")),
    }
}

/// Runs one of the commands.
pub async fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Create(args) => {
            match args.replicas {
                Some(replicas) if is_replicated(&args.name) => {
                    let (witnesses, level) = (args.witness, args.level.map(|level| level.name().to_owned()));
                    let CreateArgs { ask, name, size, block_size, .. } = args;
                    replicated::create(&ask, name, size, replicas, witnesses, level, block_size).await?;
                    return Ok(ExitCode::SUCCESS);
                }
                Some(_) => return Err(wrong(&args.name, "a volume of several nodes has a name without a pool")),
                None if is_replicated(&args.name) => {
                    return Err(wrong(&args.name, "write POOL/VOLUME; with --replicas it is one of several nodes"));
                }
                None => {}
            }
            let place = absolute(args.place, &args.ask)?;
            let (iops_max, bandwidth_bytes_max) = asked(args.limit);
            let body = CreateVolume {
                name: args.name,
                size_bytes: args.size,
                thick: args.thick,
                block_bytes: args.block_size,
                place,
                iops_max,
                bandwidth_bytes_max,
            };
            let volume: Volume = args.ask.client()?.post("/v1/volumes", &body).await?;
            output::show(args.ask.json, &volume, made);
        }
        Verb::List(args) if args.all => replicated::list_all(&args.ask).await?,
        Verb::List(args) => {
            let query = args.pool.map(|pool| format!("?pool={pool}")).unwrap_or_default();
            let list: VolumeList = args.ask.client()?.get(&format!("/v1/volumes{query}")).await?;
            let names = list.volumes.iter().map(|volume| &volume.name);
            let names = names.chain(list.replicated.iter().map(|volume| &volume.name)).map(String::as_str);
            args.ask.print(&list, names, &list.incomplete, |style| table(&list, style));
        }
        Verb::Attach(args) => replicated::attach(&args.ask, &args.volume, args.force, args.yes).await?,
        Verb::Detach(args) => replicated::detach(&args.ask, &args.volume, args.force).await?,
        Verb::Show(args) if is_replicated(&args.volume) => replicated::shown(&args.ask, &args.volume).await?,
        Verb::Show(args) => {
            let volume: Volume = args.ask.client()?.get(&path(&args.volume)).await?;
            output::show(args.ask.json, &volume, show);
        }
        Verb::Set(args) => {
            let (iops_max, bandwidth_bytes_max) = asked(Some(args.limit));
            let body = SetVolume { iops_max, bandwidth_bytes_max };
            let volume: Volume = args.ask.client()?.patch(&path(&args.volume), &body).await?;
            output::show(args.ask.json, &volume, |volume| {
                let limits = words(volume.iops_max, volume.bandwidth_bytes_max);
                format!("limits of volume {}, over all of its exports: {limits}\n", volume.name)
            });
        }
        Verb::Rename(args) => {
            let body = RenameVolume { name: args.new_name };
            let volume: Volume = args.ask.client()?.post(&format!("{}/rename", path(&args.volume)), &body).await?;
            output::show(args.ask.json, &volume, |volume| {
                format!("volume {} is now called {}; names of exports stay\n", args.volume, volume.name)
            });
        }
        Verb::Resize(args) => resize(args).await?,
        Verb::Move(args) => {
            let body = MoveVolume { place: absolute(args.place, &args.ask)? };
            let client = args.ask.client()?;
            let volume: Volume = client.post(&format!("{}/move", path(&args.volume)), &body).await?;
            output::show(args.ask.json, &volume, |volume| match volume.moves {
                true => format!(
                    "volume {} moves: what it has elsewhere follows little by little (braid volume show {0})\n",
                    volume.name
                ),
                false => format!("volume {} has its blocks there\n", volume.name),
            });
            let of = |job: &Job| job.kind == "move" && job.volume.as_ref() == Some(&volume.name);
            return follow_newest(&client, args.wait, args.ask.json, of).await;
        }
        Verb::Compact(args) => {
            let client = args.ask.client()?;
            let volume: Volume = client.post(&format!("{}/compact", path(&args.volume)), &()).await?;
            output::show(args.ask.json, &volume, |volume| {
                format!(
                    "what volume {0} has scattered is being put together (braid volume show {0} says until when)\n",
                    volume.name
                )
            });
            let of = |job: &Job| job.kind == "compaction" && job.volume.as_ref() == Some(&volume.name);
            return follow_newest(&client, args.wait, args.ask.json, of).await;
        }
        Verb::Flatten(args) => {
            let body = FlattenVolume { cancel: args.cancel };
            let client = args.ask.client()?;
            let volume: Volume = client.post(&format!("{}/flatten", path(&args.volume)), &body).await?;
            output::show(args.ask.json, &volume, |volume| match (args.cancel, volume.flattens) {
                (true, _) => format!("volume {} stays as it is; what was copied is its own\n", volume.name),
                (false, true) => format!(
                    "volume {0} is being made independent of what it began as (braid volume show {0} says until when)\n",
                    volume.name
                ),
                (false, false) => format!("volume {} has nothing of other volumes: it is independent\n", volume.name),
            });
            if !args.cancel && volume.flattens {
                let of = |job: &Job| job.kind == "flattening" && job.volume.as_ref() == Some(&volume.name);
                return follow_newest(&client, args.wait, args.ask.json, of).await;
            }
        }
        Verb::Clone(args) if is_replicated(&args.snapshot) => {
            replicated::clone(&args.ask, args.snapshot, args.name).await?;
        }
        Verb::Clone(args) => {
            let body = CloneSnapshot { name: args.name };
            let path = format!("/v1/snapshots/{}/clone", segment(&args.snapshot));
            let volume: Volume = args.ask.client()?.post(&path, &body).await?;
            output::show(args.ask.json, &volume, made);
        }
        Verb::Rollback(args) => rollback(args).await?,
        Verb::Delete(args) if is_replicated(&args.volume) => {
            replicated::delete(&args.ask, &args.volume, args.force, args.yes).await?;
        }
        Verb::Delete(args) => {
            let client = args.ask.client()?;
            let volume: Volume = client.get(&path(&args.volume)).await?;
            let what =
                format!("Volume {} with {} of content will be lost", volume.name, format_size(volume.allocated_bytes));
            confirm(&what, args.yes)?;
            let volume: Volume = client.delete(&format!("{}?force={}", path(&args.volume), args.force)).await?;
            output::show(args.ask.json, &volume, |volume| {
                format!("volume {} is deleted; its space becomes free little by little\n", volume.name)
            });
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a volume be as a snapshot is.
async fn rollback(args: RollbackArgs) -> anyhow::Result<()> {
    let client = args.ask.client()?;
    let (of, snapshot) = match args.snapshot {
        None if names::is_uuid(&args.volume) => (volume_of(&client, &args.volume).await?, args.volume),
        snapshot => rolled_back_to(args.volume, snapshot)?,
    };
    confirm(&format!("What was written to {of} since {snapshot} will be lost"), args.yes)?;
    if is_replicated(&of) {
        return replicated::rollback(&args.ask, &of, snapshot).await;
    }
    let body = RollbackVolume { snapshot, force: args.force };
    let before: Volume = client.get(&path(&of)).await?;
    let volume: Volume = client.post(&format!("{}/rollback", path(&of)), &body).await?;
    output::show(args.ask.json, &volume, |volume| rolled_back(volume, &body.snapshot, before.size_bytes));
    Ok(())
}

/// The volume that a snapshot is of, which is named by its UUID.
async fn volume_of(client: &Client, snapshot: &str) -> anyhow::Result<String> {
    let snapshot: Snapshot = client.get(&format!("/v1/snapshots/{}", segment(snapshot))).await?;
    let gone = || {
        ErrorDetail::new(Kind::NotFound, format!("the volume of snapshot {} is deleted", snapshot.name))
            .with("snapshot", &snapshot.name)
            .remedy(format!("make a volume of the snapshot: braid volume clone {} POOL/NAME", snapshot.name))
    };
    Ok(snapshot.volume.clone().ok_or_else(gone)?)
}

/// The volume and the snapshot that were typed: as two words, or as one that names both.
fn rolled_back_to(typed: String, snapshot: Option<String>) -> Result<(String, String), ErrorDetail> {
    let wrong = |why: String| {
        ErrorDetail::new(Kind::InvalidArgument, why)
            .remedy("for example braid volume rollback tank/db@monday, or braid volume rollback tank/db @monday")
    };
    let of = typed.split_once('@').map(|(volume, _)| volume.to_owned());
    match (of, snapshot) {
        (Some(of), None) => Ok((of, typed)),
        (None, Some(snapshot)) => Ok((typed, snapshot)),
        (None, None) => Err(wrong(format!("no snapshot of volume {typed} is named"))),
        (Some(_), Some(snapshot)) => Err(wrong(format!("two snapshots are named: {typed} and {snapshot}"))),
    }
}

/// How snapshots are taken by themselves, for people.
pub fn policy(policy: Option<SnapshotPolicy>) -> String {
    let Some(SnapshotPolicy { every_s, keep }) = policy else { return "no snapshots by themselves".to_owned() };
    let (number, unit) = match every_s {
        s if s.is_multiple_of(86_400) => (s / 86_400, "day"),
        s if s.is_multiple_of(3600) => (s / 3600, "hour"),
        s if s.is_multiple_of(60) => (s / 60, "minute"),
        s => (s, "second"),
    };
    let every = if number == 1 { format!("every {unit}") } else { format!("every {number} {unit}s") };
    format!("a snapshot {every}, of which the newest {keep} are kept")
}

fn asked(limit: Option<Limit>) -> (Option<u64>, Option<u64>) {
    (limit.map(|limit| limit.iops), limit.map(|limit| limit.bandwidth_bytes))
}

fn made(volume: &Volume) -> String {
    format!(
        "volume {} is there: {}\nexport it with: braid export add {} --nbd unix:PATH\n",
        volume.name,
        format_size(volume.size_bytes),
        volume.name
    )
}

/// What a rollback did; a volume gets the size of its snapshot, too.
fn rolled_back(volume: &Volume, snapshot: &str, size_bytes_before: u64) -> String {
    let size = match volume.size_bytes == size_bytes_before {
        true => String::new(),
        false => {
            format!("; its size is {} again, after {}", format_size(volume.size_bytes), format_size(size_bytes_before))
        }
    };
    format!("volume {} is as {snapshot} again{size}\n", volume.name)
}

fn table(list: &VolumeList, style: ListStyle) -> String {
    let replicated = replicated::table(&list.replicated, style);
    if list.volumes.is_empty() && !replicated.is_empty() {
        return replicated;
    }
    if list.volumes.is_empty() && list.replicated.is_empty() {
        return output::none("volumes", &list.incomplete, "braid volume create POOL/NAME SIZE");
    }
    let columns = ["NAME", "SIZE", "DATA", "EXCLUSIVE", "SNAPSHOTS", "PARENT", "EXPORTS"];
    let mut table = style.table(columns, ["BLOCK", "CREATED", "UUID"]);
    for volume in &list.volumes {
        table.row(
            [
                volume.name.clone(),
                format_size(volume.size_bytes),
                output::counted(volume.space.as_ref().map(|space| space.data_bytes)),
                output::counted(volume.space.as_ref().map(|space| space.exclusive_bytes)),
                volume.snapshots.to_string(),
                volume.parent.clone().unwrap_or_else(|| "-".to_owned()),
                volume.exports.len().to_string(),
            ],
            [volume.block_bytes.to_string(), output::moment(volume.created_unix_s * 1000), volume.uuid.clone()],
        );
    }
    table.right([1, 2, 3, 4, 6, 7]);
    let table = table.render();
    if replicated.is_empty() { table } else { format!("{table}{}{replicated}", style.between_tables()) }
}

fn show(volume: &Volume) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{label:<12}{value}");
    };
    let bytes = |bytes: u64| format!("{} ({} bytes)", format_size(bytes), output::thousands(bytes));
    line("volume", volume.name.clone());
    line("uuid", volume.uuid.clone());
    line("size", bytes(volume.size_bytes));
    line("blocks", format!("of {} bytes", volume.block_bytes));
    line("allocated", format!("{} of its own", bytes(volume.allocated_bytes)));
    if volume.thick {
        line("reserved", format!("{} are kept for it", bytes(volume.reserved_bytes)));
    }
    output::space(volume.space.as_ref(), &mut line);
    line("parent", volume.parent.clone().unwrap_or_else(|| "none".to_owned()));
    line("snapshots", volume.snapshots.to_string());
    line("policy", policy(volume.policy));
    line("limits", words(volume.iops_max, volume.bandwidth_bytes_max));
    let moves = if volume.moves { "; it moves there: some blocks are elsewhere still" } else { "" };
    line("place", place(&volume.place) + moves);
    if volume.in_doubt {
        line(
            "in doubt",
            "some of it reads as errors: a member of the pool is absent, or its tables are damaged".to_owned(),
        );
    }
    if volume.compacts {
        line("compacts", "yes: what it has scattered is being put together".to_owned());
    }
    if volume.flattens {
        let percent = volume.flattened_percent.map_or_else(String::new, |percent| format!(", {percent} %"));
        line("flattens", format!("yes{percent}: what it sees of what it began as is being copied"));
    }
    line("created", output::moment(volume.created_unix_s * 1000));
    line("exports", if volume.exports.is_empty() { "none".to_owned() } else { volume.exports.join(", ") });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollback_names_its_snapshot_in_one_word_or_two() {
        let read = |typed: &str, snapshot: Option<&str>| {
            let typed = volume_or_snapshot(typed).expect("a right name");
            rolled_back_to(typed, snapshot.map(str::to_owned)).map_err(|error| error.message)
        };
        let both = |volume: &str, snapshot: &str| Ok((volume.to_owned(), snapshot.to_owned()));
        assert_eq!(read("tank/db@monday", None), both("tank/db", "tank/db@monday"));
        assert_eq!(read("db@monday", None), both("db", "db@monday"));
        assert_eq!(read("tank/db", Some("@monday")), both("tank/db", "@monday"));
        assert_eq!(read("tank/db", Some("tank/db@monday")), both("tank/db", "tank/db@monday"));
        assert!(read("tank/db", None).expect_err("which?").contains("no snapshot of volume tank/db"));
        assert!(read("tank/db@monday", Some("@tuesday")).expect_err("which?").contains("two snapshots"));
        for wrong in ["tank/db@", "@monday", "tank/db@mon day", "a/b/c@d"] {
            assert!(volume_or_snapshot(wrong).is_err(), "{wrong}");
        }
    }
}
