//! `braid disk …`. None of these needs a daemon.

use super::confirm::confirm;
use super::disk_names::absolute;
use super::{AskList, output};
use crate::examine;
use braid_advice::errors::of_lifecycle;
use braid_advice::errors::os_error;
use braid_api::{DiskList, ErrorDetail, HostDiskList, Kind};
use braid_engine::{LeafId, lifecycle};
use braid_format::foreign::SignatureClass;
use braid_geometry::units::format_size;
use braid_host::host;
use braid_host::probe::Probe;
use braid_ring::{Disk, DiskSpec, OpenOptions};
use braid_terminal::listing::ListStyle;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum Verb {
    /// List the disks of this machine, what is on them, and whether Braid may use them
    List(AskList),
    /// Print the label of a disk in full, also when it is damaged
    Examine(examine::ExamineArgs),
    /// Remove Braid's labels from a disk, and nothing else
    Wipe(WipeArgs),
}

#[derive(Args)]
pub struct WipeArgs {
    /// The disk: a block device or a file
    disk: String,
    /// Do not ask
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
    /// Where labels were, in bytes from the start of the disk.
    label_offsets_bytes: Vec<u64>,
    /// Where labels stand that are not this disk's, and were left.
    left_offsets_bytes: Vec<u64>,
}

/// Runs one of the commands.
pub async fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::List(ask) => list(ask).await,
        Verb::Examine(args) => examine::run(args),
        Verb::Wipe(args) => wipe(&args).await,
    }
}

async fn list(ask: AskList) -> anyhow::Result<ExitCode> {
    // A daemon is not needed; where one answers, it knows whose the disks are.
    let ours: BTreeMap<PathBuf, String> = match ask.client()?.get::<DiskList>("/v1/disks").await {
        Ok(list) => list.disks.into_iter().filter_map(|disk| Some((device_of(&disk.name)?, disk.array))).collect(),
        Err(_) => BTreeMap::new(),
    };
    let find = |path: &Path| ours.get(&path.canonicalize().unwrap_or_else(|_| path.to_owned())).cloned();
    let list = HostDiskList { disks: host::Roots::default().list(&find) };
    let names = list.disks.iter().map(|disk| disk.path.as_str());
    ask.print(&list, names, &[], |style| table(&list, style));
    Ok(ExitCode::SUCCESS)
}

fn table(list: &HostDiskList, style: ListStyle) -> String {
    if list.disks.is_empty() {
        return "no block devices; files are all right, too: file:PATH,size=50G\n".to_owned();
    }
    let columns = ["DISK", "SIZE", "KIND", "MODEL", "ON IT", "BRAID MAY USE IT"];
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
    table.right([1, 7]);
    table.render()
}

/// The device file beneath a disk's name, links resolved.
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
            return Err(ErrorDetail::new(Kind::InvalidArgument, format!("{spec} has no label to remove"))
                .remedy("name a block device or a file, for example: braid disk wipe /dev/sdb")
                .into());
        }
    };
    // Held for the whole time: whoever uses it, a daemon or a mount, has it, and then we do not.
    let _held = Disk::open(&DiskSpec::Path(path.clone()), OpenOptions { exclusive: true, write: true })
        .map_err(|error| braid_advice::errors::of_ring(&error, &args.disk))?;
    let failed = |error: std::io::Error| os_error(&error, "the disk cannot be looked at", &path);
    let probe = Probe::for_writing(&path).map_err(failed)?;
    let found = probe.identify().map_err(failed)?;
    let label =
        found.iter().flat_map(|found| &found.signatures).find(|signature| signature.class == SignatureClass::Braid);
    let Some(label) = label else {
        let none = Wiped { disk: args.disk.clone(), label_offsets_bytes: Vec::new(), left_offsets_bytes: Vec::new() };
        output::show(args.json, &none, |_| format!("{} bears no label of Braid; nothing was done\n", args.disk));
        return Ok(ExitCode::SUCCESS);
    };
    let whose = if label.kind == "braid pool" { "pool" } else { "array" };
    confirm(&format!("{} bears a {label}; its {whose} will lose this member for good", args.disk), args.yes)?;
    let wiped = lifecycle::wipe(&probe, LeafId(0))
        .await
        .map_err(|error| of_lifecycle(&error, "", &|_| Some(args.disk.clone())))?;
    let wiped = Wiped { disk: args.disk.clone(), label_offsets_bytes: wiped.erased, left_offsets_bytes: wiped.left };
    output::show(args.json, &wiped, |wiped| {
        let count = wiped.label_offsets_bytes.len();
        let mut text = format!(
            "{count} label{} removed from {}; nothing else was touched\n",
            if count == 1 { "" } else { "s" },
            wiped.disk
        );
        if !wiped.left_offsets_bytes.is_empty() {
            text.push_str("a label that belongs to something else, such as a partition on this disk, was left\n");
        }
        text
    });
    Ok(ExitCode::SUCCESS)
}
