//! `braid disk …`. None of these needs a daemon.

use super::confirm::confirm;
use super::disk_names::absolute;
use super::{ApiListArgs, output};
use crate::examine;
use braid_advice::errors::lifecycle_error;
use braid_advice::errors::os_error;
use braid_api::{DiskList, ErrorDetail, HostDiskList, Kind};
use braid_array_admin::lifecycle;
use braid_engine::LeafId;
use braid_format::foreign::SignatureClass;
use braid_geometry::units::format_size;
use braid_host::host;
use braid_host::probe::Probe;
use braid_ring::{Disk, DiskSpec, OpenOptions};
use braid_terminal::listing::ListStyle;
use braid_terminal::progress::Waiting;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum Verb {
    /// List the disks of this machine, their content, and whether Braid may use them
    List(ApiListArgs),
    /// Print the label of a disk in full, even if it is damaged
    Examine(examine::ExamineArgs),
    /// Erase Braid's labels from a disk, and nothing else
    Wipe(WipeArgs),
}

#[derive(Args)]
pub struct WipeArgs {
    /// The disk: a block device or a file
    disk: String,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// What `disk wipe --json` prints.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Wiped {
    disk: String,
    /// Offsets of the erased labels, in bytes from the start of the disk.
    label_offsets_bytes: Vec<u64>,
    /// Offsets of labels that belong to something else on this disk, which were not erased.
    left_offsets_bytes: Vec<u64>,
}

/// Runs one of the commands.
pub async fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::List(api) => list(api).await,
        Verb::Examine(args) => examine::run(args),
        Verb::Wipe(args) => wipe(&args).await,
    }
}

async fn list(api: ApiListArgs) -> anyhow::Result<ExitCode> {
    // No daemon is needed; if one replies, it knows the arrays of the disks.
    let arrays: BTreeMap<PathBuf, String> = match api.client()?.get::<DiskList>("/v1/disks").await {
        Ok(list) => list.disks.into_iter().filter_map(|disk| Some((device_of(&disk.name)?, disk.array))).collect(),
        Err(_) => BTreeMap::new(),
    };
    let find = |path: &Path| arrays.get(&path.canonicalize().unwrap_or_else(|_| path.to_owned())).cloned();
    let waiting = Waiting::begin(|| "the disks of this machine".to_owned());
    let list = HostDiskList { disks: host::SystemRoots::default().list(&find) };
    drop(waiting);
    let names = list.disks.iter().map(|disk| disk.path.as_str());
    api.print(&list, names, &[], |style| table(&list, style));
    Ok(ExitCode::SUCCESS)
}

fn table(list: &HostDiskList, style: ListStyle) -> String {
    if list.disks.is_empty() {
        return "no block devices; a file can be used as a disk. Example: file:PATH,size=50G\n".to_owned();
    }
    let columns = ["DISK", "SIZE", "KIND", "MODEL", "CONTENT", "USABLE"];
    let mut table = style.table(columns, ["SERIAL", "BLOCK"]);
    for disk in &list.disks {
        let content = match disk.content.as_deref() {
            None => "?",
            Some("") => "nothing known",
            Some(content) => content,
        };
        table.row(
            [
                disk.path.clone(),
                format_size(disk.size_bytes),
                if disk.rotational { format!("{} (hdd)", disk.kind) } else { disk.kind.clone() },
                disk.model.clone().unwrap_or_else(|| "-".to_owned()),
                content.to_owned(),
                disk.reason.as_ref().map_or_else(|| "yes".to_owned(), |reason| format!("no: {reason}")),
            ],
            [disk.serial.clone().unwrap_or_else(|| "-".to_owned()), disk.logical_block_bytes.to_string()],
        );
    }
    table.align_right([1, 7]);
    table.render()
}

/// Returns the device file behind a disk's name, with links resolved.
fn device_of(name: &str) -> Option<PathBuf> {
    let spec = DiskSpec::parse(name).ok()?;
    let path = spec.path()?;
    Some(path.canonicalize().unwrap_or_else(|_| path.to_owned()))
}

async fn wipe(args: &WipeArgs) -> anyhow::Result<ExitCode> {
    let spec = absolute(&args.disk)?;
    let path = match &spec {
        DiskSpec::Path(path) | DiskSpec::File { path, .. } => path.clone(),
        _ => {
            return Err(ErrorDetail::new(Kind::InvalidArgument, format!("{spec} has no label to erase"))
                .remedy("name a block device or a file. Example: braid disk wipe /dev/sdb")
                .into());
        }
    };
    let waiting = Waiting::for_disk(&args.disk);
    // Held until the end. Opening fails while a daemon or a mount holds the disk.
    let _held = Disk::open(&DiskSpec::Path(path.clone()), OpenOptions { exclusive: true, write: true })
        .map_err(|error| braid_advice::errors::ring_error(&error, &args.disk))?;
    let failed = |error: std::io::Error| os_error(&error, "the disk cannot be examined", &path);
    let probe = Probe::for_writing(&path).map_err(failed)?;
    let found = probe.identify().map_err(failed)?;
    drop(waiting);
    let label =
        found.iter().flat_map(|found| &found.signatures).find(|signature| signature.class == SignatureClass::Braid);
    let Some(label) = label else {
        let none = Wiped { disk: args.disk.clone(), label_offsets_bytes: Vec::new(), left_offsets_bytes: Vec::new() };
        output::show(args.json, &none, |_| format!("{} has no Braid label; nothing was changed\n", args.disk));
        return Ok(ExitCode::SUCCESS);
    };
    let owner = if label.kind == "braid pool" { "pool" } else { "array" };
    confirm(&format!("{} has a {label}; its {owner} will lose this member permanently", args.disk), args.yes)?;
    let waiting = Waiting::for_disk(&args.disk);
    let wiped = lifecycle::wipe(&probe, LeafId(0))
        .await
        .map_err(|error| lifecycle_error(&error, "", &|_| Some(args.disk.clone())))?;
    drop(waiting);
    let wiped = Wiped { disk: args.disk.clone(), label_offsets_bytes: wiped.erased, left_offsets_bytes: wiped.left };
    output::show(args.json, &wiped, |wiped| {
        let count = wiped.label_offsets_bytes.len();
        let mut text = format!(
            "erased {count} label{} from {}; nothing else was changed\n",
            if count == 1 { "" } else { "s" },
            wiped.disk
        );
        if !wiped.left_offsets_bytes.is_empty() {
            text.push_str("a label that belongs to something else, such as a partition on this disk, was not erased\n");
        }
        text
    });
    Ok(ExitCode::SUCCESS)
}
