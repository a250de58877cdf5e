//! Attaches an array, a volume or a snapshot as a block device of this machine, and detaches it: a ublk export, an NBD export with the kernel's
//! client, or a FUSE file with a loop device. The name of an export that `braid mount` creates has a suffix; it is removed with the last mount.

use super::content::sector_bytes;
use super::{error_output, run};
use crate::segment;
use braid_api::address::{Address, escaped};
use braid_api::{AddExport, Array, ErrorDetail, Export, ExportList, ExportState, Kind, Snapshot, Status, Volume};
use braid_client::Client;
use braid_host::{kernel_nbd, loops};
use clap::ValueEnum;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The suffix of the names of exports that `braid mount` creates.
const NAME_SUFFIX: &str = ".mount";
/// Number of attempts to remove an export whose device has just been released, and the pause between them.
const REMOVE_ATTEMPTS: u32 = 50;
const REMOVE_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of connections of the kernel's NBD client, and so of shards that serve it.
const CONNECTIONS_MAX: u16 = 4;

/// How an export becomes a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Attachment {
    /// The kernel's ublk driver
    Ublk,
    /// The kernel's NBD client
    Nbd,
    /// A FUSE file, and a loop device on it
    Fuse,
}

/// The request for a block device.
pub struct DeviceRequest<'a> {
    /// An array, a volume or a snapshot.
    pub of: &'a MountSource,
    /// Whether the device is read-only.
    pub read_only: bool,
    /// How to attach it; `None`: the first way that the kernel supports.
    pub via: Option<Attachment>,
    /// The sector size in bytes, which takes a FUSE file and a loop device; `None`: the block size of the object.
    pub sector_bytes: Option<u32>,
}

/// An array, a volume or a snapshot, given by names, or by UUIDs in place of some of them.
pub struct MountSource {
    /// Its name, as the daemon reports it.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// Its logical block, in bytes.
    pub block_bytes: u32,
}

impl MountSource {
    /// Returns the object with this name or UUID.
    ///
    /// # Errors
    /// There is no such object; the daemon's error.
    pub async fn find(client: &Client, name: &str) -> Result<MountSource, ErrorDetail> {
        let path = segment(name);
        if name.contains('@') {
            let Snapshot { name, uuid, block_bytes, .. } = client.get(&format!("/v1/snapshots/{path}")).await?;
            return Ok(MountSource { name, uuid, block_bytes });
        }
        if name.contains('/') {
            let Volume { name, uuid, block_bytes, .. } = client.get(&format!("/v1/volumes/{path}")).await?;
            return Ok(MountSource { name, uuid, block_bytes });
        }
        let Array { name, uuid, logical_block_bytes, .. } = client.get(&format!("/v1/arrays/{path}")).await?;
        Ok(MountSource { name, uuid, block_bytes: logical_block_bytes.max(512) })
    }
}

/// A block device that is attached, and what was created to attach it.
pub struct MountDevice {
    /// The export.
    pub export: Export,
    /// The block device.
    pub device: PathBuf,
    export_is_new: bool,
    /// Whether this call attached the device to the export's file or socket.
    is_attached: bool,
}

impl MountDevice {
    /// Undoes [`provide`], after a later error: detaches the device and removes the export, if that call attached or
    /// created them. Errors are ignored.
    pub async fn undo(&self, client: &Client) {
        if self.is_attached {
            let _ = detach(&self.export, &self.device);
        }
        if self.export_is_new {
            // The error that led here is the one to report.
            let _ = remove(client, &self.export).await;
        }
    }
}

/// Whether an export was created by `braid mount`, for any object.
pub fn is_of_mount(export: &Export) -> bool {
    export.name.ends_with(NAME_SUFFIX)
}

/// Whether an export was created by `braid mount` for this object.
pub fn is_ours(export: &Export, of: &MountSource) -> bool {
    export.array_uuid == of.uuid && is_of_mount(export)
}

/// Whether a block device belongs to an export.
pub fn is_of(export: &Export, device: &Path) -> bool {
    device_of(export).is_some_and(|own| own == device)
}

/// Returns how an export becomes a block device, in a word.
pub fn attachment_of(export: &Export) -> &'static str {
    match Address::parse(&export.nbd) {
        Ok(Address::Ublk { .. }) => "ublk",
        Ok(Address::Fuse(_)) => "fuse",
        _ => "nbd",
    }
}

/// Returns the block device that an export is, or that is attached to its file or socket.
pub fn device_of(export: &Export) -> Option<PathBuf> {
    match Address::parse(&export.nbd).ok()? {
        Address::Ublk { path, .. } => std::fs::canonicalize(path).ok(),
        Address::Fuse(path) => loops::on(&path),
        Address::Unix(_) => Some(kernel_nbd::device_of_export(export.uuid.parse().ok()?)?.path()),
        Address::Tcp { .. } => None,
    }
}

/// Writes what the kernel has cached of a block device, and drops it, so that the next read is of the device itself.
/// Without the permission to open the device nothing happens.
pub fn drop_cache(device: &Path) {
    let Ok(file) = std::fs::File::open(device) else { return };
    // What cannot be written is reported to the program that wrote it.
    let _ = file.sync_all();
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
}

/// Attaches the requested block device, unless it is attached already.
///
/// # Errors
/// The object is in use; this machine has no way to attach it; the daemon's error.
pub async fn provide(client: &Client, request: &DeviceRequest<'_>) -> Result<MountDevice, ErrorDetail> {
    let exports: ExportList = client.get("/v1/exports").await?;
    refuse_others(&exports, request)?;
    let known = exports.exports.into_iter().find(|export| is_ours(export, request.of));
    let (export, export_is_new) = match known {
        // An export that could not be restored, as after a restart of the machine, is created again.
        Some(export) if export.state == ExportState::Failed => {
            remove(client, &export).await?;
            (add(client, request).await?, true)
        }
        Some(export) => (with_requested_sectors(usable(export, request)?, request)?, false),
        None => (add(client, request).await?, true),
    };
    let made = match Address::parse(&export.nbd)? {
        Address::Fuse(file) => attach(request, &export, &file),
        Address::Unix(_) => connect(client, request, &export).await,
        _ => device_of(&export).map(|device| (device, false)).ok_or_else(|| {
            ErrorDetail::new(Kind::NotFound, format!("{} is not visible here", export.uri)).remedy(
                "if the daemon runs in a container with its own devices, use --via fuse, or mount in the container",
            )
        }),
    };
    match made {
        Ok((device, is_attached)) => Ok(MountDevice { export, device, export_is_new, is_attached }),
        Err(error) => {
            if export_is_new {
                let _ = remove(client, &export).await;
            }
            Err(error)
        }
    }
}

/// Refuses an object with another user: the file system and the other user would corrupt each other.
fn refuse_others(exports: &ExportList, request: &DeviceRequest<'_>) -> Result<(), ErrorDetail> {
    let others =
        exports.exports.iter().filter(|export| export.array_uuid == request.of.uuid && !is_ours(export, request.of));
    for export in others {
        let device = device_of(export).filter(|device| is_held(device));
        if export.connections > 0 || device.is_some() {
            let message = format!(
                "{} is used through export {}, and a file system cannot share its device",
                request.of.name, export.name
            );
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("export", &export.name)
                .remedy(format!("end that use first (see: braid export show {}), or mount a snapshot", export.name)));
        }
    }
    Ok(())
}

/// Whether a device is open exclusively, as by a mount.
fn is_held(device: &Path) -> bool {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::EXCL | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(device, flags, rustix::fs::Mode::empty()).is_err_and(|error| error == rustix::io::Errno::BUSY)
}

/// Validates an export that an earlier call has created.
fn usable(export: Export, request: &DeviceRequest<'_>) -> Result<Export, ErrorDetail> {
    if export.state != ExportState::Listening {
        let why = export.reason.as_deref().unwrap_or("the exported object is not served");
        return Err(ErrorDetail::new(Kind::Inactive, format!("export {} does not serve: {why}", export.name))
            .with("export", &export.name)
            .remedy("see: braid status"));
    }
    if export.read_only && !request.read_only {
        return Err(ErrorDetail::new(Kind::InUse, format!("{} is mounted read-only elsewhere", request.of.name))
            .with("export", &export.name)
            .remedy("unmount it there first, or add --read-only"));
    }
    Ok(export)
}

/// Validates that the device of an existing export, if attached, has the requested sector size.
fn with_requested_sectors(export: Export, request: &DeviceRequest<'_>) -> Result<Export, ErrorDetail> {
    let (Some(wanted), Some(device)) = (request.sector_bytes, device_of(&export)) else { return Ok(export) };
    let has = sector_bytes(&device)?;
    if has == wanted {
        return Ok(export);
    }
    let message = format!(
        "{} has a device already, {}, and its sectors have {has} bytes and not {wanted}",
        request.of.name,
        device.display()
    );
    Err(ErrorDetail::new(Kind::InUse, message)
        .with("export", &export.name)
        .with("device", device.display())
        .remedy(format!("unmount it everywhere, or run: braid export remove '{}'", export.name)))
}

async fn add(client: &Client, request: &DeviceRequest<'_>) -> Result<Export, ErrorDetail> {
    let name = format!("{}{NAME_SUFFIX}", request.of.name);
    let export = |nbd: String| AddExport {
        array: request.of.name.clone(),
        nbd,
        name: Some(name.clone()),
        read_only: request.read_only,
        insecure: false,
        force: false,
        tls: None,
        allow: Vec::new(),
        connections_max: None,
        iops_max: None,
        bandwidth_bytes_max: None,
    };
    // Why earlier ways of attachment failed, if none was requested.
    let mut failures = Vec::new();
    if request.via.is_none_or(|via| via == Attachment::Ublk) {
        match client.post::<Export>("/v1/exports", &export("ublk:".to_owned())).await {
            Err(error) if request.via.is_none() && matches!(error.kind, Kind::Unsupported | Kind::PermissionDenied) => {
                failures.push(error);
            }
            added => return added,
        }
    }
    if request.via.is_none_or(|via| via == Attachment::Nbd) {
        match kernel_nbd::check_available() {
            Err(error) if request.via.is_none() => failures.push(no_client(&error)),
            Err(error) => return Err(no_client(&error)),
            Ok(()) => {
                let mut socket = file_path(client, &name).await?.into_os_string();
                socket.push(".sock");
                let socket = Address::Unix(PathBuf::from(socket));
                return client.post("/v1/exports", &export(socket.to_string())).await;
            }
        }
    }
    let file = file_path(client, &name).await?;
    let added = client.post::<Export>("/v1/exports", &export(format!("fuse:{}", file.display()))).await;
    let export = added.map_err(|error| {
        let all = || failures.iter().chain([&error]);
        let join = |text: fn(&ErrorDetail) -> &str| all().map(text).collect::<Vec<_>>().join("; or ");
        ErrorDetail::new(error.kind, join(|error| &error.message)).remedy(join(|error| &error.remedy))
    })?;
    // A daemon in a mount namespace of its own has mounted the file where other processes cannot see it.
    let visible_bytes = std::fs::metadata(&file).map_or(0, |found| found.len());
    if export.size_bytes.is_some_and(|size_bytes| size_bytes != visible_bytes) {
        let _ = remove(client, &export).await;
        let message = format!("the daemon's files are not visible here: {} is empty", file.display());
        return Err(ErrorDetail::new(Kind::Unsupported, message)
            .remedy("the daemon has a mount namespace of its own: packaging/fuse.conf is the drop-in of its unit that shares its mounts"));
    }
    Ok(export)
}

/// Returns the path of the file or socket of an export: in a folder next to that of the daemon's socket, which is created.
async fn file_path(client: &Client, export: &str) -> Result<PathBuf, ErrorDetail> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let status: Status = client.get("/v1/status").await?;
    let mut folder = Path::new(&status.socket).parent().unwrap_or(Path::new("/run/braid")).as_os_str().to_owned();
    // Not in the folder of the socket: service managers empty it when the daemon ends.
    folder.push(NAME_SUFFIX.replace('.', "-"));
    let folder = PathBuf::from(folder);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(|error| {
        ErrorDetail::new(Kind::PermissionDenied, format!("cannot create the folder {}: {error}", folder.display()))
    })?;
    // A link, or a folder that another user has created, could lead anywhere.
    let found = std::fs::symlink_metadata(&folder).ok();
    if !found.is_some_and(|found| found.is_dir() && found.uid() == 0 && found.mode() & 0o022 == 0) {
        return Err(ErrorDetail::new(
            Kind::PermissionDenied,
            format!("{} is not a folder that only root can write", folder.display()),
        )
        .with("path", folder.display())
        .remedy("move it away, and try again"));
    }
    Ok(folder.join(escaped(export)))
}

/// Creates a loop device on the file of an export, unless there is one. Returns the device, and whether it was created.
fn attach(request: &DeviceRequest<'_>, export: &Export, file: &Path) -> Result<(PathBuf, bool), ErrorDetail> {
    if let Some(device) = loops::on(file) {
        return Ok((device, false));
    }
    // The same blocks as the ublk device: a file system created on one can be mounted from the other.
    let sector_bytes = request.sector_bytes.unwrap_or(request.of.block_bytes);
    let blocks = format!("--sector-size={sector_bytes}");
    let mut arguments = vec!["--find", "--show", "--direct-io=on", &blocks];
    if export.read_only {
        arguments.push("--read-only");
    }
    let out = run("losetup", &arguments, &[file.as_os_str()])?;
    if !out.status.success() {
        let message = format!("cannot create a loop device for {}: {}", file.display(), error_output(&out));
        return Err(ErrorDetail::new(Kind::Unsupported, message)
            .remedy("list the loop devices with: losetup --list; if the kernel has none: modprobe loop"));
    }
    let path = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    Ok((PathBuf::from(path), true))
}

/// Connects the kernel's NBD client to the socket of an export, unless it is connected. Returns the device, and whether it was connected now.
async fn connect(
    client: &Client,
    request: &DeviceRequest<'_>,
    export: &Export,
) -> Result<(PathBuf, bool), ErrorDetail> {
    let uuid = export
        .uuid
        .parse()
        .map_err(|_| ErrorDetail::new(Kind::Internal, "the daemon reported an export without a UUID"))?;
    if let Some(device) = kernel_nbd::device_of_export(uuid) {
        return Ok((device.path(), false));
    }
    let status: Status = client.get("/v1/status").await?;
    let connections = (status.shards.len() as u16).clamp(1, CONNECTIONS_MAX);
    let (uri, block_bytes) = (export.uri.clone(), request.of.block_bytes);
    let connected =
        tokio::task::spawn_blocking(move || kernel_nbd::connect(&uri, uuid, block_bytes, connections.into()));
    let connected = connected.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    connected.map(|device| (device.path(), true)).map_err(|error| no_client(&error))
}

/// Returns the error for a kernel NBD client that cannot be used.
fn no_client(error: &std::io::Error) -> ErrorDetail {
    let kind = match error.kind() {
        std::io::ErrorKind::PermissionDenied => Kind::PermissionDenied,
        _ => Kind::Unsupported,
    };
    let why = match error.kind() {
        std::io::ErrorKind::NotFound => "it is not loaded".to_owned(),
        _ => error.to_string(),
    };
    ErrorDetail::new(kind, format!("the kernel's NBD client cannot be used: {why}"))
        .remedy("load it: modprobe nbd (the module is in the package linux-modules-extra on some distributions)")
}

fn detach(export: &Export, device: &Path) -> Result<(), ErrorDetail> {
    // Errors are ignored: while the device is attached, removing the export fails with an error that names it.
    if device.as_os_str().as_bytes().starts_with(b"/dev/loop") {
        let _ = run("losetup", &["--detach"], &[device.as_os_str()]);
    } else if let Some(attached) = export.uuid.parse().ok().and_then(kernel_nbd::device_of_export) {
        // The kernel's NBD client disconnects a device even while it is in use: check before.
        if is_held(device) {
            let message = format!("{} of export {} is in use elsewhere", device.display(), export.name);
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("export", &export.name)
                .with("path", device.display())
                .remedy("end its other users, which may be in another mount namespace (lsblk, findmnt -A, /proc/*/mountinfo), then: braid export remove"));
        }
        let _ = attached.disconnect();
    }
    Ok(())
}

/// Removes the device and the export of an object that is no longer mounted.
///
/// # Errors
/// The device is in use; the daemon's error.
pub async fn remove_device(client: &Client, export: &Export, device: &Path) -> Result<(), ErrorDetail> {
    detach(export, device)?;
    remove(client, export).await
}

/// Removes an export. Other processes (udev) may hold a device for a moment after it was released.
async fn remove(client: &Client, export: &Export) -> Result<(), ErrorDetail> {
    let path = format!("/v1/exports/{}", segment(&export.name));
    let mut attempts = 0;
    loop {
        attempts += 1;
        match client.delete::<Export>(&path).await {
            Err(error) if error.kind == Kind::InUse && attempts < REMOVE_ATTEMPTS => {
                tokio::time::sleep(REMOVE_PAUSE).await
            }
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    if let Ok(Address::Fuse(file) | Address::Unix(file)) = Address::parse(&export.nbd) {
        // The empty file below the mount, or the socket, and the folder if it is empty.
        let _ = std::fs::remove_file(&file);
        let _ = file.parent().map(std::fs::remove_dir);
    }
    Ok(())
}
