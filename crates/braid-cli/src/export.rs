//! `braid export …`.

use super::export_limits::LimitArgs;
use super::{Ask, AskList, output, segment};
use braid_api::address::{Address, DEPTH_DEFAULT};
use braid_api::{
    AddExport, ErrorDetail, Export, ExportList, ExportState, ExportTls, Kind, Orphan, OrphanList, RemoveOrphans,
    RenameExport, SetExport, names,
};
use braid_geometry::units::format_size;
use braid_terminal::listing::ListStyle;
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum Verb {
    /// Let clients use an array, a volume, or a snapshot (read-only)
    Add(AddArgs),
    /// List the exports
    List(AskList),
    /// Show everything about an export
    Show(NameArgs),
    /// Change who may use an export, and how much of it; nobody who still may is disconnected
    Set(SetArgs),
    /// Give an export another name
    Rename(RenameArgs),
    /// Take an export away; its clients are disconnected
    Remove(NameArgs),
    /// Remove block devices of Braid's, and mounts of files, that no export claims and nobody serves
    Repair(RepairArgs),
}

#[derive(Args)]
pub struct AddArgs {
    /// The array, POOL/VOLUME, POOL/VOLUME@SNAPSHOT, or a volume of several nodes, prepared here while another node serves it; or its UUID
    #[arg(value_parser = export_name, value_name = "NAME")]
    array: String,
    /// Where to listen: unix:PATH or tcp:HOST:PORT (tcp:HOST is port 10809); several exports may share it
    #[arg(long, value_name = "ADDRESS", required_unless_present_any = ["fuse", "ublk"])]
    nbd: Option<String>,
    /// Show it as a plain file here, an empty one or one that is not there yet
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nbd", "insecure", "tls", "allow"])]
    fuse: Option<PathBuf>,
    /// As a block device of this machine, /dev/braid/EXPORT, by the kernel's ublk driver
    #[arg(long, conflicts_with_all = ["nbd", "fuse"])]
    ublk: bool,
    /// Queues of the block device [default: one for each shard of the daemon]
    #[arg(long, value_name = "NUMBER", requires = "ublk", value_parser = clap::value_parser!(u16).range(1..=4096))]
    queues: Option<u16>,
    /// Requests of each queue at a time, from 1 to 4096 [default: 128]
    #[arg(long, value_name = "NUMBER", requires = "ublk", value_parser = clap::value_parser!(u16).range(1..=4096))]
    depth: Option<u16>,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// Name that clients ask for [default: that of what is exported]
    #[arg(long, value_name = "EXPORT", value_parser = export_name)]
    name: Option<String>,
    /// Listen on a TCP address that others can reach, although everybody there could read and write
    #[arg(long)]
    insecure: bool,
    /// Let clients write to a volume although an array had it as a member when it was seen last
    #[arg(long)]
    force: bool,
    /// Whether it is to be had over TLS: off, optional or required [default: the daemon's for TCP, off for unix:]
    #[arg(long, value_name = "MODE", value_parser = braid_api::ExportTls::parse)]
    tls: Option<ExportTls>,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct SetArgs {
    /// The export, by name or UUID
    #[arg(value_parser = export_name)]
    export: String,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct NameArgs {
    /// The export, by name or UUID
    #[arg(value_parser = export_name)]
    export: String,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct RepairArgs {
    /// Only list them
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct RenameArgs {
    /// The export, by name or UUID
    #[arg(value_parser = export_name)]
    export: String,
    /// Its new name, which clients ask for from then on
    #[arg(value_parser = export_name)]
    new_name: String,
    /// Rename it although clients are connected; they are disconnected
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    ask: Ask,
}

/// Reads the name of an export, or a UUID, for clap.
fn export_name(text: &str) -> Result<String, names::NameError> {
    if names::is_uuid(text) { Ok(text.to_owned()) } else { names::check_export_name(text).map(|()| text.to_owned()) }
}

/// Runs one of the commands.
pub async fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Add(args) => {
            let address = match (args.fuse, args.nbd) {
                (Some(file), _) => Address::Fuse(file),
                (None, Some(nbd)) => Address::parse(&nbd)?,
                (None, None) => Address::Ublk {
                    path: PathBuf::new(),
                    queues: args.queues.unwrap_or(0),
                    depth: args.depth.unwrap_or(DEPTH_DEFAULT),
                },
            };
            if let Address::Unix(path) | Address::Fuse(path) = &address {
                args.ask.reach.refuse_relative(path)?;
            }
            let nbd = address.absolute()?.to_string();
            let body = AddExport {
                array: args.array,
                nbd,
                name: args.name,
                read_only: args.read_only,
                insecure: args.insecure,
                force: args.force,
                tls: args.tls,
                allow: args.limits.allow.map(|allow| allow.0).unwrap_or_default(),
                connections_max: args.limits.max_connections,
                iops_max: args.limits.limit.map(|limit| limit.iops),
                bandwidth_bytes_max: args.limits.limit.map(|limit| limit.bandwidth_bytes),
            };
            let export: Export = args.ask.client()?.post("/v1/exports", &body).await?;
            output::show(args.ask.json, &export, added);
        }
        Verb::List(ask) => {
            let list: ExportList = ask.client()?.get("/v1/exports").await?;
            let names = list.exports.iter().map(|export| export.name.as_str());
            ask.print(&list, names, &[], |style| table(&list, style));
        }
        Verb::Show(args) => {
            let export: Export = args.ask.client()?.get(&format!("/v1/exports/{}", segment(&args.export))).await?;
            output::show(args.ask.json, &export, show);
        }
        Verb::Set(args) => {
            let LimitArgs { allow, max_connections, limit } = args.limits;
            if allow.is_none() && max_connections.is_none() && limit.is_none() {
                return Err(ErrorDetail::new(Kind::InvalidArgument, "nothing is to be changed")
                    .remedy("say what: --allow NETWORKS, --max-connections NUMBER or --limit iops=3000,bw=125M")
                    .into());
            }
            let body = SetExport {
                allow: allow.map(|allow| allow.0),
                connections_max: max_connections,
                iops_max: limit.map(|limit| limit.iops),
                bandwidth_bytes_max: limit.map(|limit| limit.bandwidth_bytes),
            };
            let path = format!("/v1/exports/{}", segment(&args.export));
            let export: Export = args.ask.client()?.patch(&path, &body).await?;
            output::show(args.ask.json, &export, show);
        }
        Verb::Rename(args) => {
            let body = RenameExport { name: args.new_name, force: args.force };
            let path = format!("/v1/exports/{}/rename", segment(&args.export));
            let export: Export = args.ask.client()?.post(&path, &body).await?;
            output::show(args.ask.json, &export, |export| {
                format!("export {} is now called {}: {}\n", args.export, export.name, export.uri)
            });
        }
        Verb::Repair(args) => {
            let body = RemoveOrphans { dry_run: args.dry_run };
            let list: OrphanList = args.ask.client()?.post("/v1/orphans", &body).await?;
            output::show(args.ask.json, &list, orphans);
        }
        Verb::Remove(args) => {
            let export: Export = args.ask.client()?.delete(&format!("/v1/exports/{}", segment(&args.export))).await?;
            output::show(args.ask.json, &export, |export| format!("export {} is removed\n", export.name));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether it is one, and not listened on.
fn is_block_device(export: &Export) -> bool {
    export.nbd.starts_with("ublk:")
}

fn orphans(list: &OrphanList) -> String {
    if list.orphans.is_empty() {
        return "every block device and every file is an export's\n".to_owned();
    }
    let line = |orphan: &Orphan| {
        let what = match (&orphan.reason, orphan.removed) {
            (Some(why), _) => format!("stays: {why}"),
            (None, true) => "is removed".to_owned(),
            (None, false) => "is of no export".to_owned(),
        };
        let size = orphan.size_bytes.map(|bytes| format!(" ({})", format_size(bytes))).unwrap_or_default();
        format!("{}{size} {what}\n", orphan.device)
    };
    list.orphans.iter().map(line).collect()
}

fn added(export: &Export) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = match export.state {
        ExportState::Listening if is_block_device(export) => {
            writeln!(text, "export {} is the block device {}", export.name, export.uri)
        }
        ExportState::Listening => writeln!(text, "export {} is listening: {}", export.name, export.uri),
        _ => writeln!(
            text,
            "export {} is {}: {}",
            export.name,
            export.state.word(),
            export.reason.as_deref().unwrap_or("no reason known")
        ),
    };
    if export.state == ExportState::Standby {
        return text;
    }
    let _ = match export.nbd.strip_prefix("fuse:") {
        Some(file) => writeln!(text, "make a block device of it with: losetup --find --show --direct-io=on '{file}'"),
        None if is_block_device(export) => writeln!(text, "try it with: lsblk -t '{}'", export.uri),
        None => writeln!(text, "try it with: nbdinfo '{}'", export.uri),
    };
    text
}

fn table(list: &ExportList, style: ListStyle) -> String {
    if list.exports.is_empty() {
        return "no exports; add one with: braid export add NAME --nbd unix:PATH\n".to_owned();
    }
    let mut table = style.table(["NAME", "OF", "ADDRESS", "MODE", "STATE", "CLIENTS"], ["SIZE", "URI"]);
    for export in &list.exports {
        table.row(
            [
                output::cell(&export.name, 20),
                output::cell(&export.array, 20),
                export.nbd.clone(),
                if export.read_only { "ro" } else { "rw" }.to_owned(),
                export.state.word().to_owned(),
                export.connections.to_string(),
            ],
            [output::counted(export.size_bytes), export.uri.clone()],
        );
    }
    table.right([5, 6]);
    table.render()
}

fn show(export: &Export) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        let _ = writeln!(text, "{label:<12}{value}");
    };
    line("export", export.name.clone());
    line("uuid", export.uuid.clone());
    line("of", format!("{} ({})", export.array, export.array_uuid));
    line("address", export.nbd.clone());
    line("uri", export.uri.clone());
    line("mode", if export.read_only { "read-only" } else { "read-write" }.to_owned());
    line("state", export.state.word().to_owned());
    if let Some(reason) = &export.reason {
        line("reason", reason.clone());
    }
    if let Some(bytes) = export.size_bytes {
        line("size", format!("{} ({} bytes)", format_size(bytes), output::thousands(bytes)));
    }
    if !is_block_device(export) {
        line("tls", export.tls.word().to_owned());
        line("clients", format!("{} of {}", export.connections, export.connections_max));
    }
    if !export.allow.is_empty() {
        line("allowed", export.allow.join(", "));
    }
    if let Some(iops) = export.iops_max {
        line("requests", format!("at most {} a second", output::thousands(iops)));
    }
    if let Some(bytes) = export.bandwidth_bytes_max {
        line("bandwidth", format!("at most {} a second", format_size(bytes)));
    }
    text
}
