//! `braid export …`.

use super::confirm::YesArgs;
use super::export_limits::LimitArgs;
use super::{ApiArgs, ApiListArgs, color, output, segment};
use braid_api::address::{Address, DEPTH_DEFAULT, escaped};
use braid_api::{
    AddExport, ErrorDetail, Export, ExportList, ExportState, ExportTls, Kind, Orphan, OrphanList, RemoveOrphans,
    RenameExport, SetExport, Status, names,
};
use braid_client::Client;
use braid_geometry::units::format_size;
use braid_terminal::listing::ListStyle;
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum Verb {
    /// Export an array, a volume, or a snapshot (read-only)
    ///
    /// The way is one of --ublk (a block device of this machine), --nbd (a network block device) and --fuse (a file of this machine). Without one
    /// of them it is ublk where the kernel has its driver, and otherwise NBD at the default address; the message says which. Write the name before
    /// an option whose address or file is left out.
    Add(AddArgs),
    /// List the exports
    List(ApiListArgs),
    /// Show everything about an export
    Show(NameArgs),
    /// Change the allowed clients and the limits of an export; clients that remain allowed stay connected
    Set(SetArgs),
    /// Rename an export
    Rename(RenameArgs),
    /// Remove an export; its clients are disconnected
    Remove(RemoveArgs),
    /// Remove orphaned block devices and file mounts of Braid, which belong to no export and to no running daemon
    Repair(RepairArgs),
}

#[derive(Args)]
pub struct AddArgs {
    /// The array, POOL/VOLUME, POOL/VOLUME@SNAPSHOT or replicated volume, by name or UUID; on standby while another node serves the volume
    #[arg(value_parser = export_name, value_name = "NAME")]
    array: String,
    /// Export it over NBD at this address: unix:PATH or tcp:HOST:PORT (default port 10809); several exports may share it [default: the socket
    /// nbd.sock beside that of the daemon]
    #[arg(long, value_name = "ADDRESS")]
    nbd: Option<Option<String>>,
    /// Export it as a plain file of this machine, at an empty or new file [default: EXPORT in the folder of the daemon's socket, with the suffix
    /// -files]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nbd", "insecure", "tls", "allow"])]
    fuse: Option<Option<PathBuf>>,
    /// Export it as a block device of this machine, /dev/braid/EXPORT, with the kernel's ublk driver
    #[arg(long, conflicts_with_all = ["nbd", "fuse"])]
    ublk: bool,
    /// The number of queues of the block device [default: one for each shard of the daemon]
    #[arg(long, value_name = "NUMBER", requires = "ublk", value_parser = clap::value_parser!(u16).range(1..=4096))]
    queues: Option<u16>,
    /// The maximum number of requests in flight in each queue, from 1 to 4096 [default: 128]
    #[arg(long, value_name = "NUMBER", requires = "ublk", value_parser = clap::value_parser!(u16).range(1..=4096))]
    depth: Option<u16>,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// The name that clients request [default: the name of the exported object]
    #[arg(long, value_name = "EXPORT", value_parser = export_name)]
    name: Option<String>,
    /// Listen on a TCP address that others can reach, although every host there could read and write
    #[arg(long)]
    insecure: bool,
    /// Let clients write to a volume although an array had it as a member when it was last seen
    #[arg(long)]
    force: bool,
    /// Whether clients use TLS: off, optional or required [default: the daemon's setting for TCP, off for unix:]
    #[arg(long, value_name = "MODE", value_parser = braid_api::ExportTls::parse)]
    tls: Option<ExportTls>,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct SetArgs {
    /// The export, by name or UUID
    #[arg(value_parser = export_name)]
    export: String,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct NameArgs {
    /// The export, by name or UUID
    #[arg(value_parser = export_name)]
    export: String,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct RemoveArgs {
    #[command(flatten)]
    export: NameArgs,
    #[command(flatten)]
    _yes: YesArgs,
}

#[derive(Args)]
pub struct RepairArgs {
    /// List them and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    _yes: YesArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct RenameArgs {
    /// The export, by name or UUID
    #[arg(value_parser = export_name)]
    export: String,
    /// The new name, which clients request from then on
    #[arg(value_parser = export_name)]
    new_name: String,
    /// Rename it although clients are connected; they are disconnected
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    _yes: YesArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Parses the name of an export or a UUID, for clap.
fn export_name(text: &str) -> Result<String, names::NameError> {
    if names::is_uuid(text) { Ok(text.to_owned()) } else { names::check_export_name(text).map(|()| text.to_owned()) }
}

/// How an object is exported.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    /// Over NBD; `None`: at the default address.
    Nbd(Option<String>),
    /// As a file; `None`: at the default path.
    Fuse(Option<PathBuf>),
    /// As a block device.
    Ublk { queues: u16, depth: u16 },
    /// As a block device if the kernel can do that, otherwise over NBD.
    First,
}

/// Returns the requested way. Options for network clients ask for NBD.
fn way_of(args: &AddArgs) -> Way {
    let for_network = args.insecure
        || args.tls.is_some_and(|tls| tls != ExportTls::Off)
        || args.limits.allow.is_some()
        || args.limits.max_connections.is_some();
    match (&args.nbd, &args.fuse) {
        (Some(address), _) => Way::Nbd(address.clone()),
        (None, Some(file)) => Way::Fuse(file.clone()),
        (None, None) if args.ublk => {
            Way::Ublk { queues: args.queues.unwrap_or(0), depth: args.depth.unwrap_or(DEPTH_DEFAULT) }
        }
        (None, None) if for_network => Way::Nbd(None),
        (None, None) => Way::First,
    }
}

/// Adds an export. Returns it, and why its way was chosen, for people, if none was requested.
async fn add(
    client: &Client,
    api: &ApiArgs,
    mut body: AddExport,
    way: Way,
) -> anyhow::Result<(Export, Option<String>)> {
    let is_first = way == Way::First;
    if is_first && api.endpoint.is_remote()? {
        return Err(ErrorDetail::new(
            Kind::InvalidArgument,
            "the daemon is on another machine, and no address is named",
        )
        .remedy("name one that this machine can reach: --nbd tcp:HOST:PORT; or --ublk for a block device over there")
        .into());
    }
    let mut chosen = None;
    let address = match way {
        Way::Ublk { queues, depth } => Address::Ublk { path: PathBuf::new(), queues, depth },
        Way::Nbd(Some(address)) => Address::parse(&address)?,
        Way::Fuse(Some(file)) => Address::Fuse(file),
        Way::Nbd(None) => default_nbd(client).await?,
        Way::Fuse(None) => default_file(client, api, body.name.as_ref().unwrap_or(&body.array)).await?,
        Way::First => {
            let ublk = Address::Ublk { path: PathBuf::new(), queues: 0, depth: DEPTH_DEFAULT };
            body.nbd = ublk.to_string();
            match client.post::<Export>("/v1/exports", &body).await {
                Ok(export) => {
                    let chosen = "no way was named: the kernel has ublk, the fastest one\n".to_owned();
                    return Ok((export, Some(chosen)));
                }
                Err(error) if matches!(error.kind, Kind::Unsupported | Kind::PermissionDenied) => {
                    chosen = Some(format!("no way was named: NBD, as ublk cannot be used ({})\n", error.message));
                }
                Err(error) => return Err(error.into()),
            }
            default_nbd(client).await?
        }
    };
    if let Address::Unix(path) | Address::Fuse(path) = &address {
        api.endpoint.refuse_relative(path)?;
    }
    body.nbd = address.absolute()?.to_string();
    Ok((client.post("/v1/exports", &body).await?, chosen))
}

/// Returns the default address of NBD: a socket beside that of the daemon, which only its users can open.
async fn default_nbd(client: &Client) -> anyhow::Result<Address> {
    let status: Status = client.get("/v1/status").await?;
    Ok(Address::Unix(Path::new(&status.socket).with_file_name("nbd.sock")))
}

/// Returns the default path of a file, in a folder beside that of the daemon's socket, which is created.
async fn default_file(client: &Client, api: &ApiArgs, export: &str) -> anyhow::Result<Address> {
    if api.endpoint.is_remote()? {
        return Err(ErrorDetail::new(Kind::InvalidArgument, "the daemon is on another machine, and no file is named")
            .remedy("name a file of that machine: --fuse /PATH")
            .into());
    }
    let status: Status = client.get("/v1/status").await?;
    let mut folder = Path::new(&status.socket).parent().unwrap_or(Path::new("/run/braid")).as_os_str().to_owned();
    // Not in the folder of the socket: service managers empty it when the daemon ends.
    folder.push("-files");
    let folder = PathBuf::from(folder);
    std::fs::create_dir_all(&folder).map_err(|error| {
        ErrorDetail::new(Kind::PermissionDenied, format!("cannot create the folder {}: {error}", folder.display()))
            .with("path", folder.display())
            .remedy("name the file: --fuse FILE")
    })?;
    Ok(Address::Fuse(folder.join(escaped(export))))
}

/// Runs one of the commands.
pub async fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Add(args) => {
            let way = way_of(&args);
            let client = args.api.client()?;
            let body = AddExport {
                array: args.array,
                nbd: String::new(),
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
            let (export, chosen) = add(&client, &args.api, body, way).await?;
            output::show(args.api.json, &export, |export| {
                let mut text = added(export);
                if let Some(chosen) = &chosen {
                    text.push_str(chosen);
                }
                text
            });
        }
        Verb::List(api) => {
            let list: ExportList = api.client()?.get("/v1/exports").await?;
            let names = list.exports.iter().map(|export| export.name.as_str());
            api.print(&list, names, &[], |style| table(&list, style));
        }
        Verb::Show(args) => {
            let export: Export = args.api.client()?.get(&format!("/v1/exports/{}", segment(&args.export))).await?;
            output::show(args.api.json, &export, show);
        }
        Verb::Set(args) => {
            let LimitArgs { allow, max_connections, limit } = args.limits;
            if allow.is_none() && max_connections.is_none() && limit.is_none() {
                return Err(ErrorDetail::new(Kind::InvalidArgument, "no change is requested")
                    .remedy("add --allow NETWORKS, --max-connections NUMBER or --limit iops=3000,bw=125M")
                    .into());
            }
            let body = SetExport {
                allow: allow.map(|allow| allow.0),
                connections_max: max_connections,
                iops_max: limit.map(|limit| limit.iops),
                bandwidth_bytes_max: limit.map(|limit| limit.bandwidth_bytes),
            };
            let path = format!("/v1/exports/{}", segment(&args.export));
            let export: Export = args.api.client()?.patch(&path, &body).await?;
            output::show(args.api.json, &export, show);
        }
        Verb::Rename(args) => {
            let body = RenameExport { name: args.new_name, force: args.force };
            let path = format!("/v1/exports/{}/rename", segment(&args.export));
            let export: Export = args.api.client()?.post(&path, &body).await?;
            output::show(args.api.json, &export, |export| {
                format!("renamed export {} to {}: {}\n", args.export, export.name, export.uri)
            });
        }
        Verb::Repair(args) => {
            let body = RemoveOrphans { dry_run: args.dry_run };
            let list: OrphanList = args.api.client()?.post("/v1/orphans", &body).await?;
            output::show(args.api.json, &list, orphans);
        }
        Verb::Remove(RemoveArgs { export: args, .. }) => {
            let export: Export = args.api.client()?.delete(&format!("/v1/exports/{}", segment(&args.export))).await?;
            output::show(args.api.json, &export, |export| format!("removed export {}\n", export.name));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the export is a block device (ublk) and has no NBD address.
fn is_block_device(export: &Export) -> bool {
    export.nbd.starts_with("ublk:")
}

fn orphans(list: &OrphanList) -> String {
    if list.orphans.is_empty() {
        return "no orphans: every block device and every file belongs to an export\n".to_owned();
    }
    let line = |orphan: &Orphan| {
        let what = match (&orphan.reason, orphan.removed) {
            (Some(why), _) => format!("was not removed: {why}"),
            (None, true) => "was removed".to_owned(),
            (None, false) => "belongs to no export".to_owned(),
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
            color::state(export.state.word()),
            export.reason.as_deref().unwrap_or("no reason known")
        ),
    };
    if export.state == ExportState::Standby {
        return text;
    }
    let _ = match export.nbd.strip_prefix("fuse:") {
        Some(file) => writeln!(text, "create a block device on it with: losetup --find --show --direct-io=on '{file}'"),
        None if is_block_device(export) => writeln!(text, "try it with: lsblk -t '{}'", export.uri),
        None => writeln!(text, "try it with: nbdinfo '{}'", export.uri),
    };
    text
}

fn table(list: &ExportList, style: ListStyle) -> String {
    if list.exports.is_empty() {
        return "no exports; add one with: braid export add NAME\n".to_owned();
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
            [output::size_or_dash(export.size_bytes), export.uri.clone()],
        );
    }
    table.align_right([5, 6]);
    table.states([4]);
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
    line("state", color::state(export.state.word()));
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Add {
        #[command(flatten)]
        args: AddArgs,
    }

    fn way(line: &str) -> Result<Way, String> {
        let words = std::iter::once("add").chain(line.split(' '));
        Add::try_parse_from(words).map(|add| way_of(&add.args)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_way_is_one_question() {
        let nbd = |address: Option<&str>| Ok(Way::Nbd(address.map(str::to_owned)));
        assert_eq!(way("tank/db"), Ok(Way::First));
        assert_eq!(way("tank/db --read-only --name db"), Ok(Way::First));
        assert_eq!(way("tank/db --nbd"), nbd(None));
        assert_eq!(way("tank/db --nbd unix:/a"), nbd(Some("unix:/a")));
        assert_eq!(way("--nbd unix:/a tank/db"), nbd(Some("unix:/a")));
        assert_eq!(way("tank/db --nbd --read-only"), nbd(None));
        assert_eq!(way("tank/db --fuse"), Ok(Way::Fuse(None)));
        assert_eq!(way("tank/db --fuse /srv/a"), Ok(Way::Fuse(Some("/srv/a".into()))));
        assert_eq!(way("tank/db --ublk"), Ok(Way::Ublk { queues: 0, depth: DEPTH_DEFAULT }));
        assert_eq!(way("tank/db --ublk --queues 2 --depth 9"), Ok(Way::Ublk { queues: 2, depth: 9 }));
        // Options that only clients of a network have.
        assert_eq!(way("tank/db --max-connections 2"), nbd(None));
        assert_eq!(way("tank/db --tls required"), nbd(None));
        assert_eq!(way("tank/db --tls off"), Ok(Way::First));
        for wrong in ["--nbd unix:/a --ublk", "--nbd --fuse", "--fuse --ublk", "--queues 2", "--fuse --tls required"] {
            assert!(way(&format!("tank/db {wrong}")).is_err(), "{wrong}");
        }
    }
}
