//! `braid volume …`.

use super::confirm::{YesArgs, confirm};
use super::disk_names::absolute_for;
use super::export_limits::{Limit, limit, words};
use super::mount::{FileSystem, NewMount, device};
use super::object_names::{name_or_uuid, snapshot, volume_or_name, volume_or_snapshot};
use super::replicated::{self, Replicas, is_replicated, replicas};
use super::resize::{ResizeArgs, resize};
use super::watch::{Wait, follow_newest};
use super::{ApiArgs, ApiListArgs, output, segment};
use braid_api::limits::{VOLUME_BLOCK_BYTES, VOLUME_LOGICAL_BLOCKS, VOLUME_SECTOR_BYTES};
use braid_api::{
    CloneSnapshot, CreateVolume, ErrorDetail, ExportList, FlattenVolume, Job, Kind, MoveVolume, Place, RenameVolume,
    RollbackVolume, SetVolume, Snapshot, SnapshotPolicy, Volume, VolumeList, names,
};
use braid_client::Client;
use braid_geometry::Level;
use braid_geometry::units::{format_size, parse_size};
use braid_terminal::levels;
use braid_terminal::listing::ListStyle;
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// The levels of replicated volumes.
const LEVELS: [Level; 3] = [Level::Raid1, Level::Raid5, Level::Raid6];

#[derive(Subcommand)]
pub enum Verb {
    /// Create a volume; space is allocated when it is written
    Create(CreateArgs),
    /// List the volumes
    List(ListArgs),
    /// Show everything about a volume
    Show(NameArgs),
    /// Change the limits that all exports of a volume share, online
    Set(SetArgs),
    /// Rename a volume
    Rename(RenameArgs),
    /// Resize a volume, online
    Resize(ResizeArgs),
    /// Move the blocks of a volume and its snapshots to other members of the pool, online
    Move(MoveArgs),
    /// Compact the scattered blocks of a volume and its snapshots, online: sequential reads become faster, and space is freed
    Compact(CompactArgs),
    /// Flatten a clone, online: copy what it and its snapshots share with its parent, so that they no longer depend on it
    Flatten(FlattenArgs),
    /// Create a volume with the content of a snapshot
    Clone(CloneArgs),
    /// Roll a volume back to a snapshot, online: later writes are lost, the snapshot remains
    ///
    /// Clients of its exports stay connected and wait: requests in flight are answered first, and later ones see the content of the snapshot. A
    /// file system does not survive that its content changes underneath: where one of this machine is mounted on the volume, the command
    /// refuses and names the command to unmount it. File systems that clients on other machines have mounted are not seen: unmount them there
    /// first.
    Rollback(RollbackArgs),
    /// Delete a volume that has no snapshots
    Delete(DeleteArgs),
    /// Serve a replicated volume on this node; the node that served it before is fenced
    ///
    /// More than half of its voters have to reply (quorum). If the others are lost for good, --force attaches it with the remaining voters:
    /// the possible loss is printed first, and the replicas of the others count as diverged from then on.
    Attach(AttachArgs),
    /// Stop serving a replicated volume on this node
    Detach(DetachArgs),
}

#[derive(Args)]
pub struct CreateArgs {
    /// The name of the volume with its pool; without a pool if it is replicated
    #[arg(value_name = "[POOL/]VOLUME", value_parser = volume_or_name)]
    name: String,
    /// The size of the volume; all volumes together may exceed the pool (overcommit). Also as --size SIZE
    #[arg(value_parser = size, required_unless_present = "size_option")]
    size: Option<u64>,
    /// The size of the volume, as an option
    #[arg(long = "size", id = "size_option", value_name = "SIZE", value_parser = size, conflicts_with = "size")]
    size_option: Option<u64>,
    /// Create a file system on it, and mount it at this folder of this machine, as braid mount does. If a step fails, the volume is removed again
    #[arg(long, value_name = "FOLDER", conflicts_with = "replicas")]
    mount: Option<PathBuf>,
    /// The type of the file system that --mount creates [default: ext4]
    #[arg(long, value_enum, value_name = "FS", requires = "mount")]
    mkfs: Option<FileSystem>,
    /// Reserve space for all of it: no write fails for lack of space, except over what a snapshot has
    #[arg(long)]
    thick: bool,
    /// The size of its logical blocks in bytes: 4096, or 512 for images of disks with such sectors; a write that is not aligned to 4096
    /// bytes takes a read-modify-write. A replicated volume with parity refuses 512
    #[arg(long, value_name = "BYTES", default_value_t = VOLUME_BLOCK_BYTES, value_parser = block)]
    block_size: u32,
    /// Where its blocks are allocated: on all members of the pool (spread), on the one with the most free space (single), or on these (on=MEMBER,…)
    #[arg(long, value_name = "PLACE", default_value = "spread")]
    place: Place,
    /// Maximum requests and bytes per second over all exports of the volume: iops=3000,bw=125M, one of them, or none
    #[arg(long, value_name = "LIMITS", value_parser = limit)]
    limit: Option<Limit>,
    /// Replicate it to these pools: NODE/POOL,NODE/POOL,…; or the number of replicas, on the nodes with the most free space
    #[arg(long, value_name = "PLACES", value_parser = replicas, conflicts_with_all = ["thick", "place", "limit"])]
    replicas: Option<Replicas>,
    /// A node that votes for the replicated volume and keeps no data of it (may be repeated)
    #[arg(long, value_name = "NODE", requires = "replicas")]
    witness: Vec<String>,
    /// What its replicas hold: copies (raid1), or stripes with one parity (raid5) or two (raid6); also as a number, or as mirror, raid-5
    #[arg(long, value_name = "LEVEL", requires = "replicas", ignore_case = true, value_parser = levels::parser(&LEVELS))]
    level: Option<Level>,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct AttachArgs {
    /// The volume, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    volume: String,
    /// Attach it without a quorum: the voters that do not reply are given up, with the data that only they have
    #[arg(long)]
    force: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct DetachArgs {
    /// The volume, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    volume: String,
    /// Detach it although it is exported; its clients are cut off
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    _yes: YesArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct SetArgs {
    /// The volume, by name or UUID
    #[arg(value_name = "POOL/VOLUME", value_parser = volume_or_name)]
    volume: String,
    /// Maximum requests and bytes per second over all exports of the volume: iops=3000,bw=125M, one of them, or none
    #[arg(long, value_name = "LIMITS", value_parser = limit)]
    limit: Limit,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct MoveArgs {
    /// The volume, by name or UUID
    #[arg(value_name = "POOL/VOLUME", value_parser = volume_or_name)]
    volume: String,
    /// Where its blocks are allocated: spread, single, or on=MEMBER,…
    #[arg(long, value_name = "PLACE")]
    place: Place,
    #[command(flatten)]
    wait: Wait,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct CompactArgs {
    /// The volume, by name or UUID
    #[arg(value_name = "POOL/VOLUME", value_parser = volume_or_name)]
    volume: String,
    #[command(flatten)]
    wait: Wait,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct ListArgs {
    /// Only the volumes of this pool, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pool: Option<String>,
    /// The replicated volumes of the whole cluster, with the node that serves each and the state of its replicas
    #[arg(long, conflicts_with = "pool")]
    all: bool,
    #[command(flatten)]
    api: ApiListArgs,
}

#[derive(Args)]
pub struct NameArgs {
    /// The volume, by name or UUID
    #[arg(value_name = "[POOL/]VOLUME", value_parser = volume_or_name)]
    volume: String,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct RenameArgs {
    /// The volume, by name or UUID
    #[arg(value_name = "POOL/VOLUME", value_parser = volume_or_name)]
    volume: String,
    /// The new name of the volume, without its pool
    new_name: String,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct FlattenArgs {
    /// The volume
    #[arg(value_name = "POOL/VOLUME", value_parser = volume_or_name)]
    volume: String,
    /// Cancel the flattening: the volume keeps what was copied, and still depends on its parent
    #[arg(long)]
    cancel: bool,
    #[command(flatten)]
    wait: Wait,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct CloneArgs {
    /// The snapshot, by name or UUID
    #[arg(value_name = "POOL/VOLUME@SNAPSHOT", value_parser = snapshot)]
    snapshot: String,
    /// The new volume, in the same pool; for a snapshot of a replicated volume without a pool, on the nodes that have the snapshot
    #[arg(value_name = "[POOL/]VOLUME")]
    name: String,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct RollbackArgs {
    /// The volume, by name or UUID; or only the snapshot, which names its volume
    #[arg(value_name = "[POOL/]VOLUME[@SNAPSHOT]", value_parser = volume_or_snapshot)]
    volume: String,
    /// The snapshot, if not named by the first argument; @SNAPSHOT is short for one of this volume
    #[arg(value_name = "POOL/VOLUME@SNAPSHOT")]
    snapshot: Option<String>,
    /// Roll it back although an array had it as a member when it was last seen, or a file system of this machine is mounted on it
    #[arg(long)]
    force: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct DeleteArgs {
    /// The volume, by name or UUID
    #[arg(value_name = "[POOL/]VOLUME", value_parser = volume_or_name)]
    volume: String,
    /// Delete it although it is exported; its exports are removed
    #[arg(long)]
    force: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    api: ApiArgs,
}

fn invalid_name(name: &str, why: &str) -> anyhow::Error {
    ErrorDetail::new(Kind::InvalidArgument, format!("{name}: {why}"))
        .with("volume", name)
        .remedy(
            "Examples: braid volume create tank/db 100G; braid volume create db 100G --replicas node1/tank,node2/tank",
        )
        .into()
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

fn path(volume: &str) -> String {
    format!("/v1/volumes/{}", segment(volume))
}

/// Returns the place with absolute paths, for a daemon with another working folder.
fn absolute(place: Place, api: &ApiArgs) -> anyhow::Result<Place> {
    let Place::On(members) = place else { return Ok(place) };
    let member = |text: String| match names::check_name(&text) {
        // An array, a number, or no member at all: the daemon tells them apart.
        Ok(()) => Ok(text),
        Err(_) => anyhow::Ok(absolute_for(&api.endpoint, &text)?.to_string()),
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

/// Parses the size of blocks, for clap.
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
            // One of them is required.
            let size_bytes = args.size.or(args.size_option).unwrap_or_default();
            match args.replicas {
                Some(replicas) if is_replicated(&args.name) => {
                    let (witnesses, level) = (args.witness, args.level.map(|level| level.name().to_owned()));
                    let CreateArgs { api, name, block_size, .. } = args;
                    replicated::create(&api, name, size_bytes, replicas, witnesses, level, block_size).await?;
                    return Ok(ExitCode::SUCCESS);
                }
                Some(_) => return Err(invalid_name(&args.name, "a replicated volume has a name without a pool")),
                None if is_replicated(&args.name) => {
                    return Err(invalid_name(
                        &args.name,
                        "write POOL/VOLUME, or add --replicas to create a replicated volume",
                    ));
                }
                None => {}
            }
            let place = absolute(args.place, &args.api)?;
            let (iops_max, bandwidth_bytes_max) = limits_of(args.limit);
            let body = CreateVolume {
                name: args.name,
                size_bytes,
                thick: args.thick,
                block_bytes: args.block_size,
                place,
                iops_max,
                bandwidth_bytes_max,
            };
            let new_mount = match &args.mount {
                Some(folder) => Some(NewMount::check(&args.api, folder, args.mkfs)?),
                None => None,
            };
            let client = args.api.client()?;
            let volume: Volume = client.post("/v1/volumes", &body).await?;
            match new_mount {
                Some(new_mount) => {
                    let text = new_mount.mount(&args.api, &client, &volume.name).await?;
                    let volume: Volume = client.get(&path(&volume.name)).await?;
                    output::show(args.api.json, &volume, |volume| {
                        format!("created volume {} ({})\n{text}", volume.name, format_size(volume.size_bytes))
                    });
                }
                None => output::show(args.api.json, &volume, created),
            }
        }
        Verb::List(args) if args.all => replicated::list_all(&args.api).await?,
        Verb::List(args) => {
            let query = args.pool.map(|pool| format!("?pool={pool}")).unwrap_or_default();
            let list: VolumeList = args.api.client()?.get(&format!("/v1/volumes{query}")).await?;
            let names = list.volumes.iter().map(|volume| &volume.name);
            let names = names.chain(list.replicated.iter().map(|volume| &volume.name)).map(String::as_str);
            args.api.print(&list, names, &list.incomplete, |style| table(&list, style));
        }
        Verb::Attach(args) => replicated::attach(&args.api, &args.volume, args.force, args.yes).await?,
        Verb::Detach(args) => replicated::detach(&args.api, &args.volume, args.force).await?,
        Verb::Show(args) if is_replicated(&args.volume) => replicated::print_volume(&args.api, &args.volume).await?,
        Verb::Show(args) => {
            let volume: Volume = args.api.client()?.get(&path(&args.volume)).await?;
            output::show(args.api.json, &volume, show);
        }
        Verb::Set(args) => {
            let (iops_max, bandwidth_bytes_max) = limits_of(Some(args.limit));
            let body = SetVolume { iops_max, bandwidth_bytes_max };
            let volume: Volume = args.api.client()?.patch(&path(&args.volume), &body).await?;
            output::show(args.api.json, &volume, |volume| {
                let limits = words(volume.iops_max, volume.bandwidth_bytes_max);
                format!("limits of volume {}, over all of its exports: {limits}\n", volume.name)
            });
        }
        Verb::Rename(args) => {
            let body = RenameVolume { name: args.new_name };
            let volume: Volume = args.api.client()?.post(&format!("{}/rename", path(&args.volume)), &body).await?;
            output::show(args.api.json, &volume, |volume| {
                format!("renamed volume {} to {}; the names of its exports are unchanged\n", args.volume, volume.name)
            });
        }
        Verb::Resize(args) => resize(args).await?,
        Verb::Move(args) => {
            let body = MoveVolume { place: absolute(args.place, &args.api)? };
            let client = args.api.client()?;
            let volume: Volume = client.post(&format!("{}/move", path(&args.volume)), &body).await?;
            output::show(args.api.json, &volume, |volume| match volume.moving {
                true => format!(
                    "moving volume {}: its blocks follow in the background; see: braid volume show {0}\n",
                    volume.name
                ),
                false => format!("volume {} has all its blocks there already\n", volume.name),
            });
            let of = |job: &Job| job.kind == "move" && job.volume.as_ref() == Some(&volume.name);
            return follow_newest(&client, args.wait, args.api.json, of).await;
        }
        Verb::Compact(args) => {
            let client = args.api.client()?;
            let volume: Volume = client.post(&format!("{}/compact", path(&args.volume)), &()).await?;
            output::show(args.api.json, &volume, |volume| {
                format!("volume {0} is being compacted; see: braid volume show {0}\n", volume.name)
            });
            let of = |job: &Job| job.kind == "compaction" && job.volume.as_ref() == Some(&volume.name);
            return follow_newest(&client, args.wait, args.api.json, of).await;
        }
        Verb::Flatten(args) => {
            let body = FlattenVolume { cancel: args.cancel };
            let client = args.api.client()?;
            let volume: Volume = client.post(&format!("{}/flatten", path(&args.volume)), &body).await?;
            output::show(args.api.json, &volume, |volume| match (args.cancel, volume.flattening) {
                (true, _) => format!("cancelled flattening volume {}; it keeps what was copied\n", volume.name),
                (false, true) => format!("volume {0} is being flattened; see: braid volume show {0}\n", volume.name),
                (false, false) => {
                    format!("volume {} shares nothing with other volumes: it is independent\n", volume.name)
                }
            });
            if !args.cancel && volume.flattening {
                let of = |job: &Job| job.kind == "flattening" && job.volume.as_ref() == Some(&volume.name);
                return follow_newest(&client, args.wait, args.api.json, of).await;
            }
        }
        Verb::Clone(args) if is_replicated(&args.snapshot) => {
            replicated::clone(&args.api, args.snapshot, args.name).await?;
        }
        Verb::Clone(args) => {
            let body = CloneSnapshot { name: args.name };
            let path = format!("/v1/snapshots/{}/clone", segment(&args.snapshot));
            let volume: Volume = args.api.client()?.post(&path, &body).await?;
            output::show(args.api.json, &volume, created);
        }
        Verb::Rollback(args) => rollback(args).await?,
        Verb::Delete(args) if is_replicated(&args.volume) => {
            replicated::delete(&args.api, &args.volume, args.force, args.yes).await?;
        }
        Verb::Delete(args) => {
            let client = args.api.client()?;
            let volume: Volume = client.get(&path(&args.volume)).await?;
            let what =
                format!("Volume {} with {} of content will be lost", volume.name, format_size(volume.allocated_bytes));
            confirm(&what, args.yes)?;
            let volume: Volume = client.delete(&format!("{}?force={}", path(&args.volume), args.force)).await?;
            output::show(args.api.json, &volume, |volume| {
                format!("deleted volume {}; its space is freed in the background\n", volume.name)
            });
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Rolls a volume back to a snapshot.
async fn rollback(args: RollbackArgs) -> anyhow::Result<()> {
    let client = args.api.client()?;
    let (of, snapshot) = match args.snapshot {
        None if names::is_uuid(&args.volume) => (volume_of(&client, &args.volume).await?, args.volume),
        snapshot => rollback_names(args.volume, snapshot)?,
    };
    confirm(&format!("Data written to {of} since {snapshot} will be lost"), args.yes)?;
    if is_replicated(&of) {
        return replicated::rollback(&args.api, &of, snapshot).await;
    }
    let body = RollbackVolume { snapshot, force: args.force };
    let before: Volume = client.get(&path(&of)).await?;
    let devices = local_devices(&args.api, &client, &before).await?;
    devices.iter().for_each(|device| device::drop_cache(device));
    let volume: Volume = client.post(&format!("{}/rollback", path(&of)), &body).await?;
    devices.iter().for_each(|device| device::drop_cache(device));
    output::show(args.api.json, &volume, |volume| rolled_back(volume, &body.snapshot, before.size_bytes));
    Ok(())
}

/// Returns the block devices of this machine on the exports of a volume, of which the kernel caches the content.
async fn local_devices(api: &ApiArgs, client: &Client, volume: &Volume) -> anyhow::Result<Vec<PathBuf>> {
    if volume.exports.is_empty() || api.endpoint.is_remote()? {
        return Ok(Vec::new());
    }
    let exports: ExportList = client.get("/v1/exports").await?;
    let of = exports.exports.iter().filter(|export| export.array_uuid == volume.uuid);
    Ok(of.filter_map(device::device_of).collect())
}

/// Returns the volume of a snapshot that is named by its UUID.
async fn volume_of(client: &Client, snapshot: &str) -> anyhow::Result<String> {
    let snapshot: Snapshot = client.get(&format!("/v1/snapshots/{}", segment(snapshot))).await?;
    let gone = || {
        ErrorDetail::new(Kind::NotFound, format!("the volume of snapshot {} is deleted", snapshot.name))
            .with("snapshot", &snapshot.name)
            .remedy(format!("create a volume from the snapshot: braid volume clone {} POOL/NAME", snapshot.name))
    };
    Ok(snapshot.volume.clone().ok_or_else(gone)?)
}

/// Returns the volume and the snapshot of the command line: two arguments, or one that names both.
fn rollback_names(typed: String, snapshot: Option<String>) -> Result<(String, String), ErrorDetail> {
    let wrong = |why: String| {
        ErrorDetail::new(Kind::InvalidArgument, why)
            .remedy("Examples: braid volume rollback tank/db@monday; braid volume rollback tank/db @monday")
    };
    let of = typed.split_once('@').map(|(volume, _)| volume.to_owned());
    match (of, snapshot) {
        (Some(of), None) => Ok((of, typed)),
        (None, Some(snapshot)) => Ok((typed, snapshot)),
        (None, None) => Err(wrong(format!("no snapshot of volume {typed} is named"))),
        (Some(_), Some(snapshot)) => Err(wrong(format!("two snapshots are named: {typed} and {snapshot}"))),
    }
}

/// Returns a volume's snapshot schedule, for people.
pub fn policy(policy: Option<SnapshotPolicy>) -> String {
    let Some(SnapshotPolicy { every_s, keep }) = policy else { return "no scheduled snapshots".to_owned() };
    let (number, unit) = match every_s {
        s if s.is_multiple_of(86_400) => (s / 86_400, "day"),
        s if s.is_multiple_of(3600) => (s / 3600, "hour"),
        s if s.is_multiple_of(60) => (s / 60, "minute"),
        s => (s, "second"),
    };
    let every = if number == 1 { format!("every {unit}") } else { format!("every {number} {unit}s") };
    format!("a snapshot {every}, of which the newest {keep} are kept")
}

fn limits_of(limit: Option<Limit>) -> (Option<u64>, Option<u64>) {
    (limit.map(|limit| limit.iops), limit.map(|limit| limit.bandwidth_bytes))
}

fn created(volume: &Volume) -> String {
    format!(
        "created volume {} ({})\nexport it with: braid export add {}\n",
        volume.name,
        format_size(volume.size_bytes),
        volume.name
    )
}

/// Returns the result of a rollback, which also restores the size of the snapshot.
fn rolled_back(volume: &Volume, snapshot: &str, size_bytes_before: u64) -> String {
    let size = match volume.size_bytes == size_bytes_before {
        true => String::new(),
        false => {
            format!("; its size is {}, was {}", format_size(volume.size_bytes), format_size(size_bytes_before))
        }
    };
    format!("rolled back volume {} to {snapshot}{size}\n", volume.name)
}

fn table(list: &VolumeList, style: ListStyle) -> String {
    let replicated = replicated::table(&list.replicated, style);
    if list.volumes.is_empty() && !replicated.is_empty() {
        return replicated;
    }
    if list.volumes.is_empty() && list.replicated.is_empty() {
        return output::empty_list("volumes", &list.incomplete, "braid volume create POOL/NAME SIZE");
    }
    let columns = ["NAME", "SIZE", "DATA", "EXCLUSIVE", "SNAPSHOTS", "PARENT", "EXPORTS"];
    let mut table = style.table(columns, ["BLOCK", "CREATED", "UUID"]);
    for volume in &list.volumes {
        table.row(
            [
                volume.name.clone(),
                format_size(volume.size_bytes),
                output::size_or_dash(volume.space.as_ref().map(|space| space.data_bytes)),
                output::size_or_dash(volume.space.as_ref().map(|space| space.exclusive_bytes)),
                volume.snapshots.to_string(),
                volume.parent.clone().unwrap_or_else(|| "-".to_owned()),
                volume.exports.len().to_string(),
            ],
            [volume.block_bytes.to_string(), output::utc_time(volume.created_unix_s * 1000), volume.uuid.clone()],
        );
    }
    table.align_right([1, 2, 3, 4, 6, 7]);
    let table = table.render();
    if replicated.is_empty() { table } else { format!("{table}{}{replicated}", style.table_separator()) }
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
        line("reserved", format!("{} are reserved for it", bytes(volume.reserved_bytes)));
    }
    output::space(volume.space.as_ref(), &mut line);
    line("parent", volume.parent.clone().unwrap_or_else(|| "none".to_owned()));
    line("snapshots", volume.snapshots.to_string());
    line("policy", policy(volume.policy));
    line("limits", words(volume.iops_max, volume.bandwidth_bytes_max));
    let moves = if volume.moving { "; moving: some blocks are still elsewhere" } else { "" };
    line("place", place(&volume.place) + moves);
    if volume.in_doubt {
        line(
            "in doubt",
            "some of it reads as errors: a member of the pool is missing, or its tables are damaged".to_owned(),
        );
    }
    if volume.compacting {
        line("compacting", "yes: the volume is being compacted".to_owned());
    }
    if volume.flattening {
        let percent = volume.flattened_percent.map_or_else(String::new, |percent| format!(", {percent} %"));
        line("flattening", format!("yes{percent}: what it shares with its parent is being copied"));
    }
    line("created", output::utc_time(volume.created_unix_s * 1000));
    line("exports", if volume.exports.is_empty() { "none".to_owned() } else { volume.exports.join(", ") });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollback_names_its_snapshot_in_one_argument_or_two() {
        let read = |typed: &str, snapshot: Option<&str>| {
            let typed = volume_or_snapshot(typed).expect("a valid name");
            rollback_names(typed, snapshot.map(str::to_owned)).map_err(|error| error.message)
        };
        let both = |volume: &str, snapshot: &str| Ok((volume.to_owned(), snapshot.to_owned()));
        assert_eq!(read("tank/db@monday", None), both("tank/db", "tank/db@monday"));
        assert_eq!(read("db@monday", None), both("db", "db@monday"));
        assert_eq!(read("tank/db", Some("@monday")), both("tank/db", "@monday"));
        assert_eq!(read("tank/db", Some("tank/db@monday")), both("tank/db", "tank/db@monday"));
        assert!(read("tank/db", None).expect_err("not exactly one snapshot").contains("no snapshot of volume tank/db"));
        assert!(
            read("tank/db@monday", Some("@tuesday")).expect_err("not exactly one snapshot").contains("two snapshots")
        );
        for wrong in ["tank/db@", "@monday", "tank/db@mon day", "a/b/c@d"] {
            assert!(volume_or_snapshot(wrong).is_err(), "{wrong}");
        }
    }
}
