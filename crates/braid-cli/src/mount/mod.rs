//! `braid mount NAME DIR` and `braid umount DIR`: the file system of an array, a volume or a snapshot, at a folder of this machine.
//!
//! What it is: the command requests an export from the daemon, which becomes a block device of this machine (`device`). It identifies the
//! content of the device, and creates a file system if the device is empty and `--mkfs` was given (`content`). The system's own programs
//! mount it (`mounts` reads the mount table), the file system of a snapshot with the options that it needs (`options`). The command mounts,
//! and never the daemon: the daemon must not be a user of its own devices.
//! What it promises: both commands are idempotent. A command that fails removes everything that it has created. No byte is written to a
//! device that is not empty.

mod content;
pub(super) mod device;
pub(super) mod grow;
mod options;

use super::{ApiArgs, output, segment};
use braid_api::limits::VOLUME_BLOCK_BYTES;
use braid_api::{ErrorDetail, Export, ExportList, Kind, Volume, names};
use braid_client::Client;
use braid_host::mounts::{self, Mount};
use braid_terminal::progress::Waiting;
use clap::Args;
pub use content::FileSystem;
use device::Attachment;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::time::Duration;

/// Arguments of `braid mount`.
#[derive(Args)]
pub struct MountArgs {
    /// The array, POOL/VOLUME or POOL/VOLUME@SNAPSHOT (read-only)
    #[arg(value_parser = exported_name, value_name = "NAME")]
    name: String,
    /// The folder at which to mount it
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// The type that the file system must have, and that --mkfs creates [default: the present type; with --mkfs: ext4]
    #[arg(long, value_enum, value_name = "FS")]
    fs: Option<FileSystem>,
    /// Create a file system if it is empty; an existing file system is mounted unchanged
    #[arg(long)]
    mkfs: bool,
    /// Mount it read-only
    #[arg(long)]
    read_only: bool,
    /// Options for mount(8), such as noatime,discard. The options that the file system of a snapshot needs (noload; norecovery,nouuid;
    /// rescue=nologreplay) are added automatically
    #[arg(short = 'o', long, value_name = "OPTIONS")]
    options: Option<String>,
    /// How it becomes a block device: ublk, the kernel's NBD client, or a FUSE file and a loop device [default: the first that the kernel
    /// supports]
    #[arg(long, value_enum, value_name = "WAY")]
    via: Option<Attachment>,
    /// The sector size of its device: 512, 1024, 2048 or 4096. A size other than its own takes a FUSE file and a loop device; writes smaller than
    /// its blocks are slower [default: its own; for a file system with smaller blocks: 512]
    #[arg(long, value_name = "BYTES", value_parser = sectors)]
    sector_size: Option<u32>,
    #[command(flatten)]
    api: ApiArgs,
}

/// Arguments of `braid umount`.
#[derive(Args)]
pub struct UmountArgs {
    /// The folder at which it is mounted
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    #[command(flatten)]
    api: ApiArgs,
}

/// The document of `braid mount --json`.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub struct Mounted {
    /// The mounted array, volume or snapshot.
    name: String,
    /// The folder.
    folder: String,
    /// Its block device.
    device: String,
    /// How it is attached: `ublk`, `nbd` or `fuse`.
    via: String,
    /// The logical blocks of that device, in bytes.
    sector_bytes: u32,
    /// The export that was created for the mount.
    export: String,
    /// The type of the file system.
    fs: String,
    /// The options that mount(8) was given, separated by commas; null if it was mounted already.
    options: Option<String>,
    /// Whether the file system was created now.
    made_fs: bool,
    /// Whether it was mounted there already.
    was_mounted: bool,
}

/// The document of `braid umount --json`.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub struct Unmounted {
    /// The folder.
    folder: String,
    /// The array, volume or snapshot that was mounted there; null if none was.
    name: Option<String>,
    /// The export that was removed; null if it is still mounted elsewhere, or was not created by `braid mount`.
    removed_export: Option<String>,
}

/// Parses the name of an object that can be exported, for clap.
fn exported_name(text: &str) -> Result<String, names::NameError> {
    names::check_export_name(text).map(|()| text.to_owned())
}

/// Parses a sector size, for clap.
fn sectors(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes @ (512 | 1024 | 2048 | 4096)) => Ok(bytes),
        _ => Err("write 512, 1024, 2048 or 4096".to_owned()),
    }
}

/// Runs `braid mount`.
///
/// # Errors
/// The device holds something else, or nothing; it is in use; a required program is missing; the daemon's error.
pub async fn mount(args: MountArgs) -> anyhow::Result<ExitCode> {
    require_local_root(&args.api, "mount")?;
    let client = args.api.client()?;
    let done = mount_source(&client, &args, &mut "").await?;
    output::show(args.api.json, &done.mounted, |_| done.text());
    Ok(ExitCode::SUCCESS)
}

/// What is checked before a volume is created that is to be mounted at once.
pub struct NewMount {
    folder: PathBuf,
    fs: FileSystem,
}

impl NewMount {
    /// Checks the folder and the program for the file system.
    ///
    /// # Errors
    /// The daemon is remote, or the user not root; the folder does not exist, or is in use; the program is missing.
    pub fn check(api: &ApiArgs, path: &Path, fs: Option<FileSystem>) -> Result<NewMount, ErrorDetail> {
        require_local_root(api, "volume create --mount")?;
        let (folder, fs) = (folder(path)?, fs.unwrap_or(FileSystem::Ext4));
        if let Some(over) = mounts::mount_at(&folder)? {
            return Err(folder_in_use(&folder, &over, None));
        }
        let program = format!("mkfs.{}", fs.name());
        if !find_program(&program) {
            let message = format!("the program {program} is needed and is not installed");
            return Err(ErrorDetail::new(Kind::Unsupported, message)
                .remedy("install its package (e2fsprogs, xfsprogs or btrfs-progs), or name another type with --mkfs"));
        }
        Ok(NewMount { folder, fs })
    }

    /// Creates the file system of a volume that was just created, and mounts it. Returns what was done, for people.
    /// After an error the volume is removed again.
    ///
    /// # Errors
    /// A step failed: the error names it.
    pub async fn mount(self, api: &ApiArgs, client: &Client, volume: &str) -> Result<String, ErrorDetail> {
        let args = MountArgs {
            name: volume.to_owned(),
            folder: self.folder,
            fs: Some(self.fs),
            mkfs: true,
            read_only: false,
            options: None,
            via: None,
            sector_size: None,
            api: api.clone(),
        };
        let mut step = "looking it up";
        let error = match mount_source(client, &args, &mut step).await {
            Ok(done) => return Ok(done.text()),
            Err(error) => error,
        };
        let removed = client.delete::<Volume>(&format!("/v1/volumes/{}?force=false", segment(volume))).await;
        let message = format!("volume {volume} was not created: {step} failed: {}", error.message);
        Err(match removed {
            Ok(_) => ErrorDetail { message, ..error },
            Err(left) => {
                let message = format!("{message}; and the volume could not be removed again: {}", left.message);
                let remedy = format!("{}; remove it with: braid volume delete {volume}", error.remedy);
                ErrorDetail { message, ..error }.remedy(remedy)
            }
        }
        .with("volume", volume))
    }
}

/// Mounts an array, a volume or a snapshot. `step` is what is being done, for errors.
async fn mount_source(client: &Client, args: &MountArgs, step: &mut &'static str) -> Result<MountDone, ErrorDetail> {
    let folder = folder(&args.folder)?;
    let read_only = args.read_only || args.name.contains('@');
    let over = mounts::mount_at(&folder)?;
    let of = device::MountSource::find(client, &args.name).await?;
    // Without this option, the sectors of the device are as large as the blocks of the object.
    let other = args.sector_size.filter(|bytes| *bytes != of.block_bytes);
    let via = match (other, args.via) {
        (None, via) => via,
        (Some(_), None | Some(Attachment::Fuse)) => Some(Attachment::Fuse),
        (Some(_), Some(_)) => {
            let message = "a device with another sector size takes a FUSE file and a loop device";
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .remedy("leave --via out, or use --via fuse; or leave --sector-size out"));
        }
    };
    let request = device::DeviceRequest { of: &of, read_only, via, sector_bytes: args.sector_size };
    if let Some(over) = over {
        let exports: ExportList = client.get("/v1/exports").await?;
        let export = exports.exports.iter().find(|export| device::is_of(export, &over.source));
        return match export {
            Some(export) if device::is_ours(export, &of) => {
                let mounting = Mounting::existing(&over.file_system);
                let sector_bytes = content::sector_bytes(&over.source)?;
                Ok(MountDone::new(args, &folder, (export, &over.source), mounting, (sector_bytes, &of)))
            }
            other => Err(folder_in_use(&folder, &over, other)),
        };
    }
    *step = "attaching it as a block device";
    let mut made = device::provide(client, &request).await?;
    match check_sectors(&made, &request) {
        Ok(None) => {}
        Ok(Some(too_small)) => {
            made.undo(client).await;
            made = with_small_sectors(client, &request, too_small).await?;
        }
        Err(error) => {
            made.undo(client).await;
            return Err(error);
        }
    }
    let mounted = match mount_device(client, args, &made, &folder, read_only, step).await {
        Ok(mounting) => content::sector_bytes(&made.device).map(|sector_bytes| (mounting, sector_bytes)),
        Err(error) => Err(error),
    };
    match mounted {
        Ok((mounting, sector_bytes)) => {
            Ok(MountDone::new(args, &folder, (&made.export, &made.device), mounting, (sector_bytes, &of)))
        }
        Err(error) => {
            made.undo(client).await;
            Err(error)
        }
    }
}

/// The smallest sector size of a device.
const SMALL_SECTOR_BYTES: u32 = 512;

/// Checks the sector size of a device. Returns the reason if its sectors are larger than the blocks of its file system and another
/// device may be created instead.
fn check_sectors(
    made: &device::MountDevice,
    request: &device::DeviceRequest<'_>,
) -> Result<Option<ErrorDetail>, ErrorDetail> {
    let sector_bytes = content::sector_bytes(&made.device)?;
    if let Some(wanted) = request.sector_bytes.filter(|wanted| *wanted != sector_bytes) {
        let device = made.device.display();
        let message = format!("{device} has sectors of {sector_bytes} bytes and not {wanted}");
        return Err(ErrorDetail::new(Kind::Unsupported, message)
            .with("device", device)
            .remedy("leave --sector-size out to mount it with the sectors that it has"));
    }
    let content::Content::FileSystem(kind, Some(block_bytes)) = content::look(&made.device)? else { return Ok(None) };
    if block_bytes >= sector_bytes {
        return Ok(None);
    }
    let name = &request.of.name;
    let message = format!(
        "{name} holds a file system {kind} with blocks of {block_bytes} bytes, which cannot be mounted from a device with sectors of {sector_bytes} bytes"
    );
    let error = ErrorDetail::new(Kind::Unsupported, message)
        .with("device", made.device.display())
        .remedy("leave --via and --sector-size out, or use --via fuse --sector-size 512: a FUSE file and a loop device have smaller sectors");
    let is_free = request.sector_bytes.is_none() && request.via.is_none_or(|via| via == Attachment::Fuse);
    if is_free { Ok(Some(error)) } else { Err(error) }
}

/// Creates a device with small sectors.
async fn with_small_sectors(
    client: &braid_client::Client,
    request: &device::DeviceRequest<'_>,
    too_small: ErrorDetail,
) -> Result<device::MountDevice, ErrorDetail> {
    let device::DeviceRequest { of, read_only, .. } = *request;
    let request =
        device::DeviceRequest { of, read_only, via: Some(Attachment::Fuse), sector_bytes: Some(SMALL_SECTOR_BYTES) };
    device::provide(client, &request).await.map_err(|error| {
        let message =
            format!("{}; and no device with smaller sectors can be created: {}", too_small.message, error.message);
        ErrorDetail { message, ..error }
    })
}

/// The result of mounting.
struct Mounting {
    /// The type of the file system.
    kind: String,
    /// Whether the file system was created now.
    made_fs: bool,
    /// The options that mount(8) was given; `None` if it was not run.
    options: Option<String>,
    /// Whether some of them were added because the file system of a snapshot needs them.
    options_added: bool,
}

impl Mounting {
    /// Returns the result for a file system that was mounted already.
    fn existing(kind: &str) -> Mounting {
        Mounting { kind: kind.to_owned(), made_fs: false, options: None, options_added: false }
    }
}

/// Mounts the file system of the device, after creating it if that was requested.
async fn mount_device(
    client: &braid_client::Client,
    args: &MountArgs,
    made: &device::MountDevice,
    folder: &Path,
    read_only: bool,
    step: &mut &'static str,
) -> Result<Mounting, ErrorDetail> {
    *step = "identifying its content";
    let found = content::look(&made.device)?;
    let (kind, made_fs) = match content::decide(&args.name, found, args.fs, args.mkfs && !read_only)? {
        content::MountDecision::Mount(kind) => (kind, false),
        content::MountDecision::Make(kind) => {
            content::refuse_used(client, &args.name, &made.device).await?;
            *step = "creating the file system";
            content::make(kind, &made.device, args.sector_size.is_none())?;
            (kind.name().to_owned(), true)
        }
    };
    *step = "mounting it";
    let needed = if args.name.contains('@') { options::of_snapshot(&kind, &made.device)? } else { Vec::new() };
    // The user's options come last, and take precedence.
    let mut options = options::missing(needed, args.options.as_deref());
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
        let message = format!("{} cannot be mounted at {}: {}", args.name, folder.display(), error_output(&out));
        return Err(ErrorDetail::new(Kind::DiskError, message)
            .with("device", made.device.display())
            .remedy("see the kernel's log (dmesg); pass options for mount with -o"));
    }
    Ok(Mounting { kind, made_fs, options: Some(options), options_added })
}

/// What was mounted.
struct MountDone {
    mounted: Mounted,
    /// The options, if some of them were added because the file system of a snapshot needs them.
    added: Option<String>,
    /// Whether the sectors are smaller than the blocks in which the data is stored.
    is_small: bool,
}

impl MountDone {
    fn new(
        args: &MountArgs,
        folder: &Path,
        (export, device): (&Export, &Path),
        mounting: Mounting,
        (sector_bytes, of): (u32, &device::MountSource),
    ) -> MountDone {
        let was_mounted = mounting.options.is_none();
        let added = mounting.options.clone().filter(|_| mounting.options_added);
        let mounted = Mounted {
            name: args.name.clone(),
            folder: folder.display().to_string(),
            device: device.display().to_string(),
            via: device::attachment_of(export).to_owned(),
            sector_bytes,
            export: export.name.clone(),
            fs: mounting.kind,
            options: mounting.options,
            made_fs: mounting.made_fs,
            was_mounted,
        };
        MountDone { mounted, added, is_small: is_small(of, sector_bytes) }
    }

    /// Returns what was done, for people.
    fn text(&self) -> String {
        let Mounted { name, folder, device, fs, .. } = &self.mounted;
        let already = if self.mounted.was_mounted { " already" } else { "" };
        let new = if self.mounted.made_fs { ", newly created" } else { "" };
        let added = self.added.as_ref().map_or_else(String::new, |options| format!("; options {options}"));
        let small = if self.is_small {
            format!(
                "its device has sectors of {} bytes, and the data of {name} is stored in blocks of 4096: a smaller write takes a read-modify-write\n",
                self.mounted.sector_bytes
            )
        } else {
            String::new()
        };
        format!("{name} is mounted at {folder}{already} ({fs}{new}{added}; {device})\n{small}")
    }
}

/// Whether the sectors are smaller than the blocks in which the data of a volume is stored. An array has the blocks of its disks.
fn is_small(of: &device::MountSource, sector_bytes: u32) -> bool {
    of.name.contains('/') && sector_bytes < VOLUME_BLOCK_BYTES
}

/// Number of retries of an unmount while the file system is busy, and the pause before each. Programs scan all mounts for a moment, and a process
/// that is being started holds the open files of its parent until it executes.
const UMOUNT_RETRIES: u32 = 10;
const UMOUNT_PAUSE: Duration = Duration::from_millis(100);

/// Runs `braid umount`.
///
/// # Errors
/// The file system is in use, or not one of Braid; the daemon's error.
pub async fn umount(args: UmountArgs) -> anyhow::Result<ExitCode> {
    require_local_root(&args.api, "umount")?;
    let folder = folder(&args.folder)?;
    let Some(over) = mounts::mount_at(&folder)? else {
        let unmounted = Unmounted { folder: folder.display().to_string(), name: None, removed_export: None };
        output::show(args.api.json, &unmounted, |_| format!("nothing is mounted at {}\n", folder.display()));
        return Ok(ExitCode::SUCCESS);
    };
    let client = args.api.client()?;
    let exports: ExportList = client.get("/v1/exports").await?;
    let Some(export) = exports.exports.into_iter().find(|export| device::is_of(export, &over.source)) else {
        let message = format!(
            "the file system at {} ({}) belongs to no export of this daemon",
            folder.display(),
            over.source.display()
        );
        return Err(ErrorDetail::new(Kind::InvalidArgument, message)
            .with("path", folder.display())
            .remedy(format!("umount '{}'", folder.display()))
            .into());
    };
    let mut out = run("umount", &[], &[folder.as_os_str()])?;
    for _ in 0..UMOUNT_RETRIES {
        if out.status.success() || !error_output(&out).contains("busy") {
            break;
        }
        tokio::time::sleep(UMOUNT_PAUSE).await;
        out = run("umount", &[], &[folder.as_os_str()])?;
    }
    if !out.status.success() {
        let message = format!("{} cannot be unmounted: {}", folder.display(), error_output(&out));
        return Err(ErrorDetail::new(Kind::InUse, message)
            .with("path", folder.display())
            .remedy(format!("end the processes that use it (fuser -vm '{}')", folder.display()))
            .into());
    }
    let is_last = device::is_of_mount(&export) && !mounts::is_mounted(&over.source)?;
    if is_last {
        device::remove_device(&client, &export, &over.source).await?;
    }
    let unmounted = Unmounted {
        folder: folder.display().to_string(),
        name: Some(export.array.clone()),
        removed_export: is_last.then(|| export.name.clone()),
    };
    output::show(args.api.json, &unmounted, |_| format!("unmounted {} from {}\n", export.array, folder.display()));
    Ok(ExitCode::SUCCESS)
}

/// Refuses a daemon on another machine, and users other than root.
fn require_local_root(api: &ApiArgs, what: &str) -> Result<(), ErrorDetail> {
    if api.endpoint.is_remote()? {
        return Err(ErrorDetail::new(
            Kind::InvalidArgument,
            format!("braid {what} works only with the daemon of this machine"),
        )
        .remedy("run it on that machine, or export over NBD and connect to the export"));
    }
    if !rustix::process::geteuid().is_root() {
        return Err(ErrorDetail::new(Kind::PermissionDenied, format!("braid {what} needs root"))
            .remedy(format!("run it as root. Example: sudo braid {what} …")));
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
        std::io::ErrorKind::NotFound => refused(Kind::NotFound, "does not exist".to_owned()),
        _ => refused(Kind::InvalidArgument, format!("cannot be accessed: {error}")),
    })?;
    if !found.is_dir() {
        return Err(refused(Kind::InvalidArgument, "is not a folder".to_owned()));
    }
    Ok(found)
}

fn folder_in_use(folder: &Path, over: &Mount, export: Option<&Export>) -> ErrorDetail {
    let what = match export {
        Some(export) => export.array.clone(),
        None => format!("{} ({})", over.source.display(), over.file_system),
    };
    ErrorDetail::new(Kind::InUse, format!("{what} is mounted at {} already", folder.display()))
        .with("path", folder.display())
        .remedy(format!("choose another folder, or unmount that first (braid umount '{}')", folder.display()))
}

/// The folders of administrative programs, which the path of a user may lack.
const PROGRAM_FOLDERS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Returns whether a program of the system is installed.
fn find_program(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(PROGRAM_FOLDERS.map(PathBuf::from));
    folders.map(|folder| folder.join(program)).any(|file| file.is_file())
}

/// Runs a program of the system until it ends.
fn run(program: &str, arguments: &[&str], paths: &[&std::ffi::OsStr]) -> Result<Output, ErrorDetail> {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{path}:{}", PROGRAM_FOLDERS.join(":"));
    command.args(arguments).args(paths).env("PATH", path).env("LC_ALL", "C");
    let name = program.to_owned();
    let _waiting = Waiting::begin(move || format!("the program {name}"));
    command.stdin(std::process::Stdio::null()).output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            ErrorDetail::new(Kind::Unsupported, format!("the program {program} is needed and is not installed"))
                .remedy("install its package: util-linux, or e2fsprogs, xfsprogs or btrfs-progs for the file system")
        }
        _ => ErrorDetail::new(Kind::Internal, format!("cannot run {program}: {error}")),
    })
}

/// Returns the error output of a program, in one line.
fn error_output(out: &Output) -> String {
    let text = String::from_utf8_lossy(&out.stderr);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() { out.status.to_string() } else { lines.join("; ") }
}
