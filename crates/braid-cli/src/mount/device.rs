//! From a name to a block device of this machine and back: an export of ublk's, one of NBD's with the kernel's client on it, or a file with a
//! loop device on it. What was made for `braid mount` bears its mark, and goes with the last mount.

use super::content::sector_bytes;
use super::{run, said};
use crate::segment;
use braid_api::address::{Address, escaped};
use braid_api::{AddExport, Array, ErrorDetail, Export, ExportList, ExportState, Kind, Snapshot, Status, Volume};
use braid_client::Client;
use braid_host::kernel_nbd;
use clap::ValueEnum;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the name of an export that was made for this ends with.
const MARK: &str = ".mount";
/// How often, and with what between, it is tried to remove an export whose device has just been let go of.
const TRIES: u32 = 50;
const BETWEEN: Duration = Duration::from_millis(100);
/// Connections of the kernel's NBD client, at most: so many shards are worked for it at a time.
const CONNECTIONS_MAX: u16 = 4;

/// What makes a block device of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// The kernel's ublk driver
    Ublk,
    /// The kernel's NBD client
    Nbd,
    /// A file, and a loop device on it
    Fuse,
}

/// What somebody wants.
pub struct Asked<'a> {
    /// An array, a volume or a snapshot.
    pub of: &'a Named,
    /// Nothing is to be written.
    pub read_only: bool,
    /// How, if that was said.
    pub via: Option<Way>,
    /// With sectors of so many bytes, which takes a file and a loop device; none: with those that it has.
    pub sector_bytes: Option<u32>,
}

/// An array, a volume or a snapshot, however it was spelt: by names, or by UUIDs in place of some of them.
pub struct Named {
    /// Its name, as the daemon writes it.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// Its logical block, in bytes.
    pub block_bytes: u32,
}

impl Named {
    /// What the daemon knows under this name.
    ///
    /// # Errors
    /// There is no such thing; the daemon's.
    pub async fn find(client: &Client, name: &str) -> Result<Named, ErrorDetail> {
        let path = segment(name);
        if name.contains('@') {
            let Snapshot { name, uuid, block_bytes, .. } = client.get(&format!("/v1/snapshots/{path}")).await?;
            return Ok(Named { name, uuid, block_bytes });
        }
        if name.contains('/') {
            let Volume { name, uuid, block_bytes, .. } = client.get(&format!("/v1/volumes/{path}")).await?;
            return Ok(Named { name, uuid, block_bytes });
        }
        let Array { name, uuid, logical_block_bytes, .. } = client.get(&format!("/v1/arrays/{path}")).await?;
        Ok(Named { name, uuid, block_bytes: logical_block_bytes.max(512) })
    }
}

/// A device that is there, and what of it was made for that.
pub struct Made {
    /// The export.
    pub export: Export,
    /// The block device.
    pub device: PathBuf,
    export_is_new: bool,
    /// It stands on the export's file or socket, and was put there now.
    is_attached: bool,
}

impl Made {
    /// Takes away what was made.
    pub async fn undo(&self, client: &Client) {
        if self.is_attached {
            let _ = detach(&self.export, &self.device);
        }
        if self.export_is_new {
            // The error that led here is the one to tell of.
            let _ = remove(client, &self.export).await;
        }
    }
}

/// Whether an export was made for mounting, whatever it was called then.
pub fn is_made(export: &Export) -> bool {
    export.name.ends_with(MARK)
}

/// Whether it was made for mounting this.
pub fn is_ours(export: &Export, of: &Named) -> bool {
    export.array_uuid == of.uuid && is_made(export)
}

/// Whether a block device is of an export.
pub fn is_of(export: &Export, device: &Path) -> bool {
    device_of(export).is_some_and(|own| own == device)
}

/// What makes an export a block device.
pub fn way_of(export: &Export) -> &'static str {
    match Address::parse(&export.nbd) {
        Ok(Address::Ublk { .. }) => "ublk",
        Ok(Address::Fuse(_)) => "fuse",
        _ => "nbd",
    }
}

/// The block device that an export is, or that stands on its file or socket.
pub fn device_of(export: &Export) -> Option<PathBuf> {
    match Address::parse(&export.nbd).ok()? {
        Address::Ublk { path, .. } => std::fs::canonicalize(path).ok(),
        Address::Fuse(path) => loop_on(&path),
        Address::Unix(_) => Some(kernel_nbd::of(export.uuid.parse().ok()?)?.path()),
        Address::Tcp { .. } => None,
    }
}

/// The loop device on a file.
fn loop_on(file: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir("/sys/block").ok()?.flatten();
    let mut on = entries.filter(|entry| {
        let backing = std::fs::read(entry.path().join("loop/backing_file")).unwrap_or_default();
        Path::new(OsStr::from_bytes(backing.trim_ascii_end())) == file
    });
    Some(Path::new("/dev").join(on.next()?.file_name()))
}

/// Makes the block device of what is asked for, unless it is there.
///
/// # Errors
/// It is in use by others; nothing makes it a block device here; the daemon's.
pub async fn provide(client: &Client, asked: &Asked<'_>) -> Result<Made, ErrorDetail> {
    let exports: ExportList = client.get("/v1/exports").await?;
    refuse_others(&exports, asked)?;
    let known = exports.exports.into_iter().find(|export| is_ours(export, asked.of));
    let (export, export_is_new) = match known {
        // What could not be made again, as after a restart of the machine: it is made anew.
        Some(export) if export.state == ExportState::Failed => {
            remove(client, &export).await?;
            (add(client, asked).await?, true)
        }
        Some(export) => (with_sectors(checked(export, asked)?, asked)?, false),
        None => (add(client, asked).await?, true),
    };
    let made = match Address::parse(&export.nbd)? {
        Address::Fuse(file) => attach(asked, &export, &file),
        Address::Unix(_) => connect(client, asked, &export).await,
        _ => device_of(&export).map(|device| (device, false)).ok_or_else(|| {
            ErrorDetail::new(Kind::NotFound, format!("{} is not to be seen here", export.uri))
                .remedy("is the daemon in a container, with devices of its own? then use --via fuse, or mount there")
        }),
    };
    match made {
        Ok((device, is_attached)) => Ok(Made { export, device, export_is_new, is_attached }),
        Err(error) => {
            if export_is_new {
                let _ = remove(client, &export).await;
            }
            Err(error)
        }
    }
}

/// A file system and somebody else on the same blocks would damage each other.
fn refuse_others(exports: &ExportList, asked: &Asked<'_>) -> Result<(), ErrorDetail> {
    let others =
        exports.exports.iter().filter(|export| export.array_uuid == asked.of.uuid && !is_ours(export, asked.of));
    for export in others {
        let device = device_of(export).filter(|device| is_held(device));
        if export.connections > 0 || device.is_some() {
            let message = format!(
                "{} is used through export {}, and a file system suffers no other user",
                asked.of.name, export.name
            );
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("export", &export.name)
                .remedy(format!("end that first (braid export show {}), or mount a snapshot", export.name)));
        }
    }
    Ok(())
}

/// Whether somebody has a device for itself alone: mounted it, say.
fn is_held(device: &Path) -> bool {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::EXCL | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(device, flags, rustix::fs::Mode::empty()).is_err_and(|error| error == rustix::io::Errno::BUSY)
}

/// One that an earlier call has made.
fn checked(export: Export, asked: &Asked<'_>) -> Result<Export, ErrorDetail> {
    if export.state != ExportState::Listening {
        let why = export.reason.as_deref().unwrap_or("what it is of does not serve");
        return Err(ErrorDetail::new(Kind::Inactive, format!("export {} does not serve: {why}", export.name))
            .with("export", &export.name)
            .remedy("braid status says what to do"));
    }
    if export.read_only && !asked.read_only {
        return Err(ErrorDetail::new(Kind::InUse, format!("{} is mounted read-only elsewhere", asked.of.name))
            .with("export", &export.name)
            .remedy("unmount it there first, or add --read-only"));
    }
    Ok(export)
}

/// An earlier call's has the sectors that are asked for, or none yet.
fn with_sectors(export: Export, asked: &Asked<'_>) -> Result<Export, ErrorDetail> {
    let (Some(wanted), Some(device)) = (asked.sector_bytes, device_of(&export)) else { return Ok(export) };
    let has = sector_bytes(&device)?;
    if has == wanted {
        return Ok(export);
    }
    let message = format!(
        "{} has a device already, {}, and its sectors have {has} bytes and not {wanted}",
        asked.of.name,
        device.display()
    );
    Err(ErrorDetail::new(Kind::InUse, message)
        .with("export", &export.name)
        .with("device", device.display())
        .remedy(format!("unmount what is mounted of it, or braid export remove '{}'", export.name)))
}

async fn add(client: &Client, asked: &Asked<'_>) -> Result<Export, ErrorDetail> {
    let name = format!("{}{MARK}", asked.of.name);
    let export = |nbd: String| AddExport {
        array: asked.of.name.clone(),
        nbd,
        name: Some(name.clone()),
        read_only: asked.read_only,
        insecure: false,
        force: false,
        tls: None,
        allow: Vec::new(),
        connections_max: None,
        iops_max: None,
        bandwidth_bytes_max: None,
    };
    // Why the ways before the last one are not taken, where nobody asked for one of them.
    let mut passed_over = Vec::new();
    if asked.via.is_none_or(|via| via == Way::Ublk) {
        match client.post::<Export>("/v1/exports", &export("ublk:".to_owned())).await {
            Err(error) if asked.via.is_none() && matches!(error.kind, Kind::Unsupported | Kind::PermissionDenied) => {
                passed_over.push(error);
            }
            added => return added,
        }
    }
    if asked.via.is_none_or(|via| via == Way::Nbd) {
        match kernel_nbd::look() {
            Err(error) if asked.via.is_none() => passed_over.push(no_client(&error)),
            Err(error) => return Err(no_client(&error)),
            Ok(()) => {
                let mut socket = place(client, &name).await?.into_os_string();
                socket.push(".sock");
                let socket = Address::Unix(PathBuf::from(socket));
                return client.post("/v1/exports", &export(socket.to_string())).await;
            }
        }
    }
    let file = place(client, &name).await?;
    let added = client.post::<Export>("/v1/exports", &export(format!("fuse:{}", file.display()))).await;
    let export = added.map_err(|error| {
        let all = || passed_over.iter().chain([&error]);
        let join = |text: fn(&ErrorDetail) -> &str| all().map(text).collect::<Vec<_>>().join("; or ");
        ErrorDetail::new(error.kind, join(|error| &error.message)).remedy(join(|error| &error.remedy))
    })?;
    // A daemon with mounts of its own has mounted it where nobody else sees it.
    let seen_bytes = std::fs::metadata(&file).map_or(0, |found| found.len());
    if export.size_bytes.is_some_and(|size_bytes| size_bytes != seen_bytes) {
        let _ = remove(client, &export).await;
        let message = format!("the daemon's files are not to be seen here: {} is empty", file.display());
        return Err(ErrorDetail::new(Kind::Unsupported, message)
            .remedy("the daemon has mounts of its own: packaging/fuse.conf is the drop-in of its unit that lets others see them"));
    }
    Ok(export)
}

/// Where the file of an export is made: beside the daemon's socket.
async fn place(client: &Client, export: &str) -> Result<PathBuf, ErrorDetail> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let status: Status = client.get("/v1/status").await?;
    let mut folder = Path::new(&status.socket).parent().unwrap_or(Path::new("/run/braid")).as_os_str().to_owned();
    // Not in that folder: service managers empty it when the daemon ends.
    folder.push(MARK.replace('.', "-"));
    let folder = PathBuf::from(folder);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(|error| {
        ErrorDetail::new(Kind::PermissionDenied, format!("the folder {} cannot be made: {error}", folder.display()))
    })?;
    // One that somebody else has put there could lead anywhere.
    let found = std::fs::symlink_metadata(&folder).ok();
    if !found.is_some_and(|found| found.is_dir() && found.uid() == 0 && found.mode() & 0o022 == 0) {
        return Err(ErrorDetail::new(Kind::PermissionDenied, format!("{} is not root's own folder", folder.display()))
            .with("path", folder.display())
            .remedy("move it away, and try again"));
    }
    Ok(folder.join(escaped(export)))
}

/// Makes a loop device on the file of an export, unless there is one. Says whether it was made.
fn attach(asked: &Asked<'_>, export: &Export, file: &Path) -> Result<(PathBuf, bool), ErrorDetail> {
    if let Some(device) = loop_on(file) {
        return Ok((device, false));
    }
    // The same blocks as ublk's device has: a file system that was made on one can be mounted on the other.
    let sector_bytes = asked.sector_bytes.unwrap_or(asked.of.block_bytes);
    let blocks = format!("--sector-size={sector_bytes}");
    let mut arguments = vec!["--find", "--show", "--direct-io=on", &blocks];
    if export.read_only {
        arguments.push("--read-only");
    }
    let out = run("losetup", &arguments, &[file.as_os_str()])?;
    if !out.status.success() {
        let message = format!("there is no loop device for {}: {}", file.display(), said(&out));
        return Err(ErrorDetail::new(Kind::Unsupported, message)
            .remedy("losetup --list shows those there are; modprobe loop, where the kernel has none"));
    }
    let path = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    Ok((PathBuf::from(path), true))
}

/// Has the kernel's NBD client connect to the socket of an export, unless it has. Says whether it did.
async fn connect(client: &Client, asked: &Asked<'_>, export: &Export) -> Result<(PathBuf, bool), ErrorDetail> {
    let uuid = export.uuid.parse().map_err(|_| ErrorDetail::new(Kind::Internal, "an export without a UUID"))?;
    if let Some(device) = kernel_nbd::of(uuid) {
        return Ok((device.path(), false));
    }
    let status: Status = client.get("/v1/status").await?;
    let connections = (status.shards.len() as u16).clamp(1, CONNECTIONS_MAX);
    let (uri, block_bytes) = (export.uri.clone(), asked.of.block_bytes);
    let made = tokio::task::spawn_blocking(move || kernel_nbd::connect(&uri, uuid, block_bytes, connections.into()));
    let made = made.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    made.map(|device| (device.path(), true)).map_err(|error| no_client(&error))
}

/// The kernel's NBD client is not to be had.
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
        .remedy("modprobe nbd, where the kernel has it (package linux-modules-extra, or as your distribution calls it)")
}

fn detach(export: &Export, device: &Path) -> Result<(), ErrorDetail> {
    // What stays attached keeps the export from being removed, which says so.
    if device.as_os_str().as_bytes().starts_with(b"/dev/loop") {
        let _ = run("losetup", &["--detach"], &[device.as_os_str()]);
    } else if let Some(attached) = export.uuid.parse().ok().and_then(kernel_nbd::of) {
        // The kernel would cut it off from whoever uses it.
        if is_held(device) {
            let message = format!("{} of export {} is in use elsewhere", device.display(), export.name);
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("export", &export.name)
                .with("path", device.display())
                .remedy("end its other users, for example in another mount namespace (lsblk, findmnt -A, /proc/*/mountinfo); then `braid export remove`"));
        }
        let _ = attached.disconnect();
    }
    Ok(())
}

/// Removes the device and the export of what is mounted nowhere any more.
///
/// # Errors
/// Somebody else uses it; the daemon's.
pub async fn take_away(client: &Client, export: &Export, device: &Path) -> Result<(), ErrorDetail> {
    detach(export, device)?;
    remove(client, export).await
}

/// Removes an export. A device that was just let go of may be looked at by others (udev) for a moment.
async fn remove(client: &Client, export: &Export) -> Result<(), ErrorDetail> {
    let path = format!("/v1/exports/{}", segment(&export.name));
    let mut tries = 0;
    loop {
        tries += 1;
        match client.delete::<Export>(&path).await {
            Err(error) if error.kind == Kind::InUse && tries < TRIES => tokio::time::sleep(BETWEEN).await,
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    if let Ok(Address::Fuse(file) | Address::Unix(file)) = Address::parse(&export.nbd) {
        // The empty file that it was mounted over, or its socket, and its folder if there are no others.
        let _ = std::fs::remove_file(&file);
        let _ = file.parent().map(std::fs::remove_dir);
    }
    Ok(())
}
