//! `braid mount NAME DIR` and `braid umount DIR`: the file system of an array, a volume or a snapshot, at a folder of this machine.
//!
//! What it is: the daemon is asked for an export, which becomes a block device here (`device`); what is on it is looked at, and a file
//! system is made where there is nothing and somebody asked for one (`content`); the system's own programs mount it (`mounts` knows what
//! they did), that of a snapshot with the options that it needs (`options`). Mounting is this command's, and never the daemon's: it must not stand among the users of its own devices.
//! What it promises: what was said twice is done once. What fails leaves nothing behind that it has made. No byte is written to what
//! holds anything.

mod content;
pub(super) mod device;
mod options;

use super::{Ask, output};
use braid_api::limits::VOLUME_BLOCK_BYTES;
use braid_api::{ErrorDetail, Export, ExportList, Kind, names};
use braid_host::mounts::{self, Mount};
use clap::Args;
use content::FileSystem;
use device::Way;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::time::Duration;

/// Arguments of `braid mount`.
#[derive(Args)]
pub struct MountArgs {
    /// The array, POOL/VOLUME or POOL/VOLUME@SNAPSHOT (read-only)
    #[arg(value_parser = exported_name, value_name = "NAME")]
    name: String,
    /// The folder to mount it at
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// The file system: what is there has to be this one, and --mkfs makes this one [default: what is there; with --mkfs: ext4]
    #[arg(long, value_enum, value_name = "FS")]
    fs: Option<FileSystem>,
    /// Make a file system if it is empty; one that is there already is mounted as it is
    #[arg(long)]
    mkfs: bool,
    /// Mount it read-only
    #[arg(long)]
    read_only: bool,
    /// Options for mount(8), such as noatime,discard. What the file system of a snapshot needs (noload; norecovery,nouuid;
    /// rescue=nologreplay) is added by itself
    #[arg(short = 'o', long, value_name = "OPTIONS")]
    options: Option<String>,
    /// What makes it a block device: ublk, the kernel's NBD client, or a FUSE file and a loop device [default: the first of them that the
    /// kernel has]
    #[arg(long, value_enum, value_name = "WAY")]
    via: Option<Way>,
    /// The sectors of its device: 512, 1024, 2048 or 4096. Smaller ones than it has take a FUSE file and a loop device; writes that are smaller
    /// than its blocks are slower [default: those it has; for a file system with smaller blocks: 512]
    #[arg(long, value_name = "BYTES", value_parser = sectors)]
    sector_size: Option<u32>,
    #[command(flatten)]
    ask: Ask,
}

/// Arguments of `braid umount`.
#[derive(Args)]
pub struct UmountArgs {
    /// The folder that it is mounted at
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    #[command(flatten)]
    ask: Ask,
}

/// What `braid mount --json` prints.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub struct Mounted {
    /// What is mounted.
    name: String,
    /// Where.
    folder: String,
    /// Its block device.
    device: String,
    /// What makes it one: `ublk`, `nbd` or `fuse`.
    via: String,
    /// The logical blocks of that device, in bytes.
    sector_bytes: u32,
    /// The export that was made for that.
    export: String,
    /// The file system.
    fs: String,
    /// The options that mount(8) was given, with commas between them; absent where it was mounted before.
    options: Option<String>,
    /// Whether the file system was made now.
    made_fs: bool,
    /// Whether it was mounted there before.
    was_mounted: bool,
}

/// What `braid umount --json` prints.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub struct Unmounted {
    /// Where nothing of Braid is mounted now.
    folder: String,
    /// What was; absent where nothing was.
    name: Option<String>,
    /// The export that was removed; absent where it is still mounted elsewhere, or is not one that `braid mount` made.
    removed_export: Option<String>,
}

/// Reads the name of what may be exported, for clap.
fn exported_name(text: &str) -> Result<String, names::NameError> {
    names::check_export_name(text).map(|()| text.to_owned())
}

/// Reads the size of sectors, for clap.
fn sectors(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes @ (512 | 1024 | 2048 | 4096)) => Ok(bytes),
        _ => Err("write 512, 1024, 2048 or 4096".to_owned()),
    }
}

/// Runs `braid mount`.
///
/// # Errors
/// It holds something else, or nothing; it is in use; a program that is needed is missing; the daemon's.
pub async fn mount(args: MountArgs) -> anyhow::Result<ExitCode> {
    refuse_elsewhere(&args.ask, "mount")?;
    let folder = folder(&args.folder)?;
    let client = args.ask.client()?;
    let read_only = args.read_only || args.name.contains('@');
    let over = mounts::at(&folder)?;
    let of = device::Named::find(&client, &args.name).await?;
    // Devices of every kind have sectors as large as its blocks.
    let other = args.sector_size.filter(|bytes| *bytes != of.block_bytes);
    let via = match (other, args.via) {
        (None, via) => via,
        (Some(_), None | Some(Way::Fuse)) => Some(Way::Fuse),
        (Some(_), Some(_)) => {
            let message = "a device with sectors of another size takes a file and a loop device";
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .remedy("leave --via out, or say --via fuse; or leave --sector-size out")
                .into());
        }
    };
    let asked = device::Asked { of: &of, read_only, via, sector_bytes: args.sector_size };
    if let Some(over) = over {
        let exports: ExportList = client.get("/v1/exports").await?;
        let export = exports.exports.iter().find(|export| device::is_of(export, &over.source));
        return match export {
            Some(export) if device::is_ours(export, &of) => {
                let mounting = Mounting::before(&over.kind);
                done(&args, &folder, (export, &over.source), mounting, (content::sector_bytes(&over.source)?, &of));
                Ok(ExitCode::SUCCESS)
            }
            other => Err(taken(&folder, &over, other).into()),
        };
    }
    let mut made = device::provide(&client, &asked).await?;
    match small(&made, &asked) {
        Ok(None) => {}
        Ok(Some(too_small)) => {
            made.undo(&client).await;
            made = with_small_sectors(&client, &asked, too_small).await?;
        }
        Err(error) => {
            made.undo(&client).await;
            return Err(error.into());
        }
    }
    let mounted = match mount_device(&client, &args, &made, &folder, read_only).await {
        Ok(mounting) => content::sector_bytes(&made.device).map(|sector_bytes| (mounting, sector_bytes)),
        Err(error) => Err(error),
    };
    match mounted {
        Ok((mounting, sector_bytes)) => {
            done(&args, &folder, (&made.export, &made.device), mounting, (sector_bytes, &of));
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            made.undo(&client).await;
            Err(error.into())
        }
    }
}

/// Smallest sectors of a device.
const SMALL_SECTOR_BYTES: u32 = 512;

/// Why a file system cannot be mounted from a device whose sectors are larger than its blocks.
fn small(made: &device::Made, asked: &device::Asked<'_>) -> Result<Option<ErrorDetail>, ErrorDetail> {
    let sector_bytes = content::sector_bytes(&made.device)?;
    if let Some(wanted) = asked.sector_bytes.filter(|wanted| *wanted != sector_bytes) {
        let device = made.device.display();
        let message = format!("{device} has sectors of {sector_bytes} bytes and not {wanted}");
        return Err(ErrorDetail::new(Kind::Unsupported, message)
            .with("device", device)
            .remedy("leave --sector-size out to mount it with those that it has"));
    }
    let content::Content::FileSystem(kind, Some(block_bytes)) = content::look(&made.device)? else { return Ok(None) };
    if block_bytes >= sector_bytes {
        return Ok(None);
    }
    let name = &asked.of.name;
    let message = format!(
        "{name} holds a file system {kind} with blocks of {block_bytes} bytes, which cannot be mounted from a device with sectors of {sector_bytes} bytes"
    );
    let error = ErrorDetail::new(Kind::Unsupported, message)
        .with("device", made.device.display())
        .remedy("leave --via and --sector-size out, or say --via fuse --sector-size 512: a file and a loop device have smaller sectors");
    let is_free = asked.sector_bytes.is_none() && asked.via.is_none_or(|via| via == Way::Fuse);
    if is_free { Ok(Some(error)) } else { Err(error) }
}

/// Makes a device with small sectors.
async fn with_small_sectors(
    client: &braid_client::Client,
    asked: &device::Asked<'_>,
    too_small: ErrorDetail,
) -> Result<device::Made, ErrorDetail> {
    let device::Asked { of, read_only, .. } = *asked;
    let asked = device::Asked { of, read_only, via: Some(Way::Fuse), sector_bytes: Some(SMALL_SECTOR_BYTES) };
    device::provide(client, &asked).await.map_err(|error| {
        let message = format!("{}; and there is none with smaller ones: {}", too_small.message, error.message);
        ErrorDetail { message, ..error }
    })
}

/// What came of mounting.
struct Mounting {
    /// The file system.
    kind: String,
    made_fs: bool,
    /// The options that mount(8) was given, where it was run.
    options: Option<String>,
    /// Whether some of them were added as the file system of a snapshot needs them.
    options_added: bool,
}

impl Mounting {
    /// It was mounted already.
    fn before(kind: &str) -> Mounting {
        Mounting { kind: kind.to_owned(), made_fs: false, options: None, options_added: false }
    }
}

/// What is on the device is mounted, and made before if that was asked for.
async fn mount_device(
    client: &braid_client::Client,
    args: &MountArgs,
    made: &device::Made,
    folder: &Path,
    read_only: bool,
) -> Result<Mounting, ErrorDetail> {
    let found = content::look(&made.device)?;
    let (kind, made_fs) = match content::judge(&args.name, found, args.fs, args.mkfs && !read_only)? {
        content::Verdict::Mount(kind) => (kind, false),
        content::Verdict::Make(kind) => {
            content::refuse_used(client, &args.name, &made.device).await?;
            content::make(kind, &made.device, args.sector_size.is_none())?;
            (kind.name().to_owned(), true)
        }
    };
    let needed = if args.name.contains('@') { options::of_snapshot(&kind, &made.device)? } else { Vec::new() };
    // The user's come later, and count where they say something else.
    let mut options = options::lacking(needed, args.options.as_deref());
    let options_added = !options.is_empty();
    options.extend(args.options.as_deref());
    if read_only {
        options.push("ro");
    }
    let mut arguments = vec!["-t", &kind];
    let options = options.join(",");
    if !options.is_empty() {
        arguments.extend(["-o", &options]);
    }
    let paths = [made.device.as_os_str(), folder.as_os_str()];
    let out = run("mount", &arguments, &paths)?;
    if !out.status.success() {
        let message = format!("{} cannot be mounted at {}: {}", args.name, folder.display(), said(&out));
        return Err(ErrorDetail::new(Kind::DiskError, message)
            .with("device", made.device.display())
            .remedy("the kernel's log (dmesg) says more; options for mount are given with -o"));
    }
    Ok(Mounting { kind, made_fs, options: Some(options), options_added })
}

fn done(
    args: &MountArgs,
    folder: &Path,
    (export, device): (&Export, &Path),
    mounting: Mounting,
    (sector_bytes, of): (u32, &device::Named),
) {
    let was_mounted = mounting.options.is_none();
    let added = mounting.options.clone().filter(|_| mounting.options_added);
    let added = added.map_or_else(String::new, |options| format!("; options {options}"));
    let mounted = Mounted {
        name: args.name.clone(),
        folder: folder.display().to_string(),
        device: device.display().to_string(),
        via: device::way_of(export).to_owned(),
        sector_bytes,
        export: export.name.clone(),
        fs: mounting.kind,
        options: mounting.options,
        made_fs: mounting.made_fs,
        was_mounted,
    };
    output::show(args.ask.json, &mounted, |mounted| {
        let Mounted { name, folder, device, fs, .. } = mounted;
        let before = if mounted.was_mounted { " already" } else { "" };
        let new = if mounted.made_fs { ", made now" } else { "" };
        let small = if is_small(of, mounted.sector_bytes) {
            format!(
                "its device has sectors of {} bytes, and the data of {name} stand in blocks of 4096: a write that is smaller than those reads first\n",
                mounted.sector_bytes
            )
        } else {
            String::new()
        };
        format!("{name} is mounted at {folder}{before} ({fs}{new}{added}; {device})\n{small}")
    });
}

/// Whether sectors are smaller than the blocks in which the data of a volume stand. Those of an array are its disks'.
fn is_small(of: &device::Named, sector_bytes: u32) -> bool {
    of.name.contains('/') && sector_bytes < VOLUME_BLOCK_BYTES
}

/// How often, and after which time each, a file system is unmounted again that is in use: programs look at all mounts for a moment, and one
/// that is being started has the open files of its parent until it executes.
const UMOUNT_TRIES: u32 = 10;
const UMOUNT_AGAIN: Duration = Duration::from_millis(100);

/// Runs `braid umount`.
///
/// # Errors
/// It is in use, or no file system of Braid; the daemon's.
pub async fn umount(args: UmountArgs) -> anyhow::Result<ExitCode> {
    refuse_elsewhere(&args.ask, "umount")?;
    let folder = folder(&args.folder)?;
    let Some(over) = mounts::at(&folder)? else {
        let unmounted = Unmounted { folder: folder.display().to_string(), name: None, removed_export: None };
        output::show(args.ask.json, &unmounted, |_| format!("nothing is mounted at {}\n", folder.display()));
        return Ok(ExitCode::SUCCESS);
    };
    let client = args.ask.client()?;
    let exports: ExportList = client.get("/v1/exports").await?;
    let Some(export) = exports.exports.into_iter().find(|export| device::is_of(export, &over.source)) else {
        let message =
            format!("what is mounted at {} ({}) is nothing of this daemon", folder.display(), over.source.display());
        return Err(ErrorDetail::new(Kind::InvalidArgument, message)
            .with("path", folder.display())
            .remedy(format!("umount '{}'", folder.display()))
            .into());
    };
    let mut out = run("umount", &[], &[folder.as_os_str()])?;
    for _ in 0..UMOUNT_TRIES {
        if out.status.success() || !said(&out).contains("busy") {
            break;
        }
        tokio::time::sleep(UMOUNT_AGAIN).await;
        out = run("umount", &[], &[folder.as_os_str()])?;
    }
    if !out.status.success() {
        let message = format!("{} cannot be unmounted: {}", folder.display(), said(&out));
        return Err(ErrorDetail::new(Kind::InUse, message)
            .with("path", folder.display())
            .remedy(format!("end who uses it (fuser -vm '{}')", folder.display()))
            .into());
    }
    let is_last = device::is_made(&export) && !mounts::is_mounted(&over.source)?;
    if is_last {
        device::take_away(&client, &export, &over.source).await?;
    }
    let unmounted = Unmounted {
        folder: folder.display().to_string(),
        name: Some(export.array.clone()),
        removed_export: is_last.then(|| export.name.clone()),
    };
    output::show(args.ask.json, &unmounted, |_| {
        format!("{} is mounted at {} no more\n", export.array, folder.display())
    });
    Ok(ExitCode::SUCCESS)
}

/// Mounting is of this machine, and of root.
fn refuse_elsewhere(ask: &Ask, what: &str) -> Result<(), ErrorDetail> {
    if ask.reach.is_remote()? {
        return Err(ErrorDetail::new(Kind::InvalidArgument, format!("braid {what} is for the daemon of this machine"))
            .remedy("run it on that machine, or export it over NBD and connect to that"));
    }
    if !rustix::process::geteuid().is_root() {
        return Err(ErrorDetail::new(Kind::PermissionDenied, format!("braid {what} takes root"))
            .remedy("run it as root, for example with sudo"));
    }
    Ok(())
}

pub(super) fn folder(path: &Path) -> Result<PathBuf, ErrorDetail> {
    let refused = |kind: Kind, why: String| {
        ErrorDetail::new(kind, format!("{} {why}", path.display()))
            .with("path", path.display())
            .remedy(format!("mkdir -p '{}', or name another folder", path.display()))
    };
    let found = std::fs::canonicalize(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => refused(Kind::NotFound, "is not there".to_owned()),
        _ => refused(Kind::InvalidArgument, format!("cannot be looked at: {error}")),
    })?;
    if !found.is_dir() {
        return Err(refused(Kind::InvalidArgument, "is no folder".to_owned()));
    }
    Ok(found)
}

fn taken(folder: &Path, over: &Mount, export: Option<&Export>) -> ErrorDetail {
    let what = match export {
        Some(export) => export.array.clone(),
        None => format!("{} ({})", over.source.display(), over.kind),
    };
    ErrorDetail::new(Kind::InUse, format!("{what} is mounted at {} already", folder.display()))
        .with("path", folder.display())
        .remedy(format!("choose another folder, or unmount that first (braid umount '{}')", folder.display()))
}

/// Runs one of the system's programs to its end.
fn run(program: &str, arguments: &[&str], paths: &[&std::ffi::OsStr]) -> Result<Output, ErrorDetail> {
    let mut command = Command::new(program);
    // Administrators' programs are not on everybody's path.
    let path = std::env::var("PATH").unwrap_or_default();
    command.args(arguments).args(paths).env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C");
    command.stdin(std::process::Stdio::null()).output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            ErrorDetail::new(Kind::Unsupported, format!("the program {program} is not here, and is needed for this"))
                .remedy("install what has it: util-linux, and e2fsprogs, xfsprogs or btrfs-progs for the file system")
        }
        _ => ErrorDetail::new(Kind::Internal, format!("{program} cannot be run: {error}")),
    })
}

/// What a program complained of, in one line.
fn said(out: &Output) -> String {
    let text = String::from_utf8_lossy(&out.stderr);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() { out.status.to_string() } else { lines.join("; ") }
}
