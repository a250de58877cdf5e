//! Exports as block devices: made or found again, put aside while what they are of is away, and removed.
//!
//! A device is the kernel's, and outlives this process: what is exported is found again by a mark that the kernel keeps. What
//! talks to the driver blocks, and does so on threads for that.

use super::exports::Listens;
use super::tables::{Serving, Tables};
use super::{Control, ErrorDetail, Kind};
use crate::daemon::address::{Address, BLOCK_FOLDER};
use crate::daemon::listen::UBLK_FRONTEND;
use crate::daemon::state::SavedExport;
use braid_engine::ShardId;
use braid_nbd::{Export, ExportInfo, ExportTable};
use braid_ring::RingHandle;
use braid_ublk::{Control as Driver, Device, DeviceSetup, Message, Shape, UblkError, UblkErrorKind};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uuid::Uuid;

/// What begins every mark of Braid's devices, in its upper three bytes: "BRD".
const MARK: u64 = 0x42_52_44 << 40;

/// The block devices that this daemon serves.
#[derive(Default)]
pub struct Blocks(Mutex<BTreeMap<Uuid, Arc<Block>>>);

/// One of them.
struct Block {
    device: Device,
    /// Its stable path.
    link: PathBuf,
}

impl Blocks {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Uuid, Arc<Block>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, export: Uuid) -> Option<Arc<Block>> {
        self.all().get(&export).cloned()
    }
}

impl Control {
    /// The whole address of a block device: its path by the export's name, and its queues.
    pub(super) fn whole_block_address(&self, address: Address, export: &str) -> Result<Address, ErrorDetail> {
        let Address::Ublk { path, queues, depth } = address else { return Ok(address) };
        let path = if path.as_os_str().is_empty() { Path::new(BLOCK_FOLDER).join(export) } else { path };
        let taken = |saved: &SavedExport| matches!(Address::parse(&saved.nbd), Ok(Address::Ublk { path: other, .. }) if other == path);
        if let Some(other) = self.read().exports.values().find(|entry| taken(&entry.saved)) {
            let message = format!("{} is export {} already", path.display(), other.saved.name);
            return Err(ErrorDetail::new(Kind::Exists, message).with("export", &other.saved.name));
        }
        let shards = self.ring.shards();
        if queues > shards {
            let message = format!(
                "{queues} queues, and the daemon has {}",
                super::counted(usize::from(shards), "shard", "shards")
            );
            return Err(ErrorDetail::new(Kind::LimitReached, message)
                .remedy("each queue needs a shard of its own: ask for fewer, or start the daemon with more --shards"));
        }
        Ok(Address::Ublk { path, queues: if queues == 0 { shards } else { queues }, depth })
    }

    /// Serves an export as the block device of this address. One that outlived an earlier daemon goes on.
    pub(super) async fn serve_block(
        self: &Arc<Self>,
        saved: &SavedExport,
        address: Address,
        info: ExportInfo,
    ) -> Result<Serving, ErrorDetail> {
        let Address::Ublk { path, queues, depth } = address else {
            return Err(ErrorDetail::new(Kind::Internal, format!("{address} is no block device")));
        };
        let setup = DeviceSetup {
            mark: mark_of(saved.uuid),
            shape: Shape { queues, depth },
            size_bytes: info.size_bytes,
            block_bytes: info.block_bytes_min,
            read_only: info.read_only,
        };
        let export = ExportTable::new()
            .add(info)
            .map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()).with("export", &saved.name))?;
        if let Some(block) = self.blocks.of(saved.uuid) {
            tell_all(&self.ring, || Message::Serve { id: block.device.id, export: Some(Arc::clone(&export)) });
            self.warn_of_size(saved, &block.device, export.size_bytes());
            return Ok(Serving::Listening(export));
        }
        let (ring, offered, link) = (self.ring.clone(), Arc::clone(&export), path);
        let begun = tokio::task::spawn_blocking(move || begin(&ring, &setup, &offered, link)).await;
        let block = flat(begun).map_err(|error| error.with("export", &saved.name))?;
        if block.device.is_recovered {
            let message = format!(
                "export {} goes on as {}: its users did not lose it",
                saved.name,
                block.device.path().display()
            );
            self.events().info("export_recovered", message, &[("export", &saved.name)]);
        }
        self.warn_of_size(saved, &block.device, export.size_bytes());
        self.blocks.all().insert(saved.uuid, Arc::new(block));
        Ok(Serving::Listening(export))
    }

    /// A device keeps the size that it began with.
    fn warn_of_size(&self, saved: &SavedExport, device: &Device, size_bytes: u64) {
        let Some(kept_bytes) = device.size_bytes().filter(|kept| *kept != size_bytes) else { return };
        let message = format!(
            "export {} is of {size_bytes} bytes, and its block device stays at {kept_bytes}: remove the export and add it again",
            saved.name
        );
        self.events().warning("export_size", message, &[("export", &saved.name)]);
    }

    /// What an export is of is away: who uses its device waits.
    pub(super) fn put_block_aside(&self, saved: &SavedExport) {
        if let Some(block) = self.blocks.of(saved.uuid) {
            tell_all(&self.ring, || Message::Serve { id: block.device.id, export: None });
        }
    }

    /// Takes the block devices of these exports away.
    ///
    /// # Errors
    /// One is in use, and nothing has happened to it; or the driver refuses.
    pub(super) async fn end_blocks(
        &self,
        _listening: &Listens<'_>,
        which: impl Fn(&SavedExport) -> bool,
    ) -> Result<(), ErrorDetail> {
        let ending = self.read().saved_blocks(which);
        for saved in ending {
            let ring = self.ring.clone();
            let (known, mark) = (self.blocks.of(saved.uuid), mark_of(saved.uuid));
            let link = match Address::parse(&saved.nbd)? {
                Address::Ublk { path, .. } => path,
                _ => continue,
            };
            let ended = tokio::task::spawn_blocking(move || end(&ring, known, mark, &link)).await;
            flat(ended).map_err(|error| error.with("export", &saved.name))?;
            self.blocks.all().remove(&saved.uuid);
        }
        Ok(())
    }

    /// An export is gone whatever becomes of its device: its users get errors from now on.
    pub(super) fn abandon_block(&self, saved: &SavedExport) {
        let Some(block) = self.blocks.all().remove(&saved.uuid) else { return };
        let ring = self.ring.clone();
        tokio::task::spawn_blocking(move || {
            let id = block.device.id;
            tell_all(&ring, || Message::Fail { id });
            unlink(&block.link);
            if let Ok(driver) = Driver::open()
                && let Err(error) = driver.stop(id).and_then(|()| driver.delete(id))
            {
                tracing::warn!("/dev/ublkb{id} is left behind: {error}");
            }
        });
    }
}

impl Tables {
    /// The exports of these that are block devices.
    fn saved_blocks(&self, which: impl Fn(&SavedExport) -> bool) -> Vec<SavedExport> {
        let all = self.exports.values().map(|entry| &entry.saved).filter(|saved| which(saved));
        all.filter(|saved| saved.nbd.starts_with("ublk:")).cloned().collect()
    }
}

/// By which the kernel's device of an export is known.
fn mark_of(export: Uuid) -> u64 {
    MARK | (export.as_u128() as u64 & ((1 << 40) - 1))
}

fn begin(ring: &RingHandle, setup: &DeviceSetup, export: &Arc<Export>, link: PathBuf) -> Result<Block, ErrorDetail> {
    let driver = Driver::open().map_err(of_ublk)?;
    for shard in 0..ring.shards() {
        let kind = ring.driver(ShardId(shard)).kind;
        if kind != braid_ring::DriverKind::Uring {
            return Err(ErrorDetail::new(
                Kind::Unsupported,
                format!("shard {shard} does without io_uring ({kind}), which ublk is made of"),
            )
            .remedy("permit io_uring (kernel.io_uring_disabled=0, no seccomp filter), or use --nbd"));
        }
    }
    // Before there is a device: what cannot have its path is not made.
    check_link(&link)?;
    let device = Device::find_or_make(&driver, setup).map_err(of_ublk)?;
    let id = device.id;
    let begun = device.shares(&driver).and_then(|shares| {
        for share in shares {
            let shard = ShardId(share.queue % ring.shards());
            ring.post(shard, UBLK_FRONTEND, Box::new(Message::Queue { id, share, export: Arc::clone(export) }));
        }
        device.begin(&driver)
    });
    let linked = begun.map_err(of_ublk).and_then(|()| make_link(&link, &device.path()));
    if let Err(error) = linked {
        // One whose users wait is kept for the next try; one that is new has none.
        if !device.is_recovered {
            tell_all(ring, || Message::Fail { id });
            let _ = driver.stop(id).and_then(|()| driver.delete(id));
        }
        return Err(error);
    }
    Ok(Block { device, link })
}

fn end(ring: &RingHandle, known: Option<Arc<Block>>, mark: u64, link: &Path) -> Result<(), ErrorDetail> {
    let driver = match Driver::open() {
        // Without the driver there is no device either.
        Err(error) if error.kind == UblkErrorKind::NoDriver => {
            unlink(link);
            return Ok(());
        }
        opened => opened.map_err(of_ublk)?,
    };
    let found = match &known {
        Some(block) => driver.info(block.device.id).map_err(of_ublk)?.filter(|info| info.ublksrv_flags == mark),
        None => Device::find(&driver, mark).map_err(of_ublk)?,
    };
    if let Some(info) = found {
        let device = Device { id: info.dev_id, info, is_recovered: false };
        let fail = || tell_all(ring, || Message::Fail { id: device.id });
        device.end(&driver, fail).map_err(|error| {
            let holder = braid_ring::disk::holder_of(&device.path());
            match (error.kind, holder) {
                (UblkErrorKind::Busy, Some(holder)) => {
                    let remedy = error.remedy.clone();
                    ErrorDetail::new(
                        Kind::InUse,
                        format!("{} ({}) is in use by {holder}", link.display(), device.path().display()),
                    )
                    .remedy(remedy)
                }
                _ => of_ublk(error),
            }
        })?;
    }
    unlink(link);
    Ok(())
}

fn tell_all(ring: &RingHandle, message: impl Fn() -> Message) {
    for shard in 0..ring.shards() {
        ring.post(ShardId(shard), UBLK_FRONTEND, Box::new(message()));
    }
}

/// What is at a stable path has to be a link of ours, or nothing.
fn check_link(link: &Path) -> Result<(), ErrorDetail> {
    match std::fs::symlink_metadata(link) {
        Ok(found) if !found.is_symlink() => {
            Err(ErrorDetail::new(Kind::Exists, format!("{} is there already, and no link", link.display()))
                .remedy("move it away, or give the export another name with --name"))
        }
        _ => Ok(()),
    }
}

fn make_link(link: &Path, device: &Path) -> Result<(), ErrorDetail> {
    let made = || -> io::Result<()> {
        if let Some(folder) = link.parent() {
            std::fs::create_dir_all(folder)?;
        }
        // Never without one: who opens the path just now gets the old device or the new one.
        let new = link.with_extension("new-link");
        let _ = std::fs::remove_file(&new);
        std::os::unix::fs::symlink(device, &new)?;
        std::fs::rename(&new, link)
    };
    made().map_err(|error| {
        ErrorDetail::new(Kind::DiskError, format!("the link {} cannot be made: {error}", link.display()))
    })
}

/// Removes a link and the folders that it leaves empty.
fn unlink(link: &Path) {
    // What is gone already is no error.
    let _ = std::fs::remove_file(link);
    let mut folder = link.parent();
    while let Some(path) = folder.filter(|path| path.starts_with(BLOCK_FOLDER)) {
        if std::fs::remove_dir(path).is_err() {
            return;
        }
        folder = path.parent();
    }
}

/// What a thread returned.
fn flat<T>(ended: Result<Result<T, ErrorDetail>, tokio::task::JoinError>) -> Result<T, ErrorDetail> {
    ended.map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))?
}

fn of_ublk(error: UblkError) -> ErrorDetail {
    let kind = match error.kind {
        UblkErrorKind::NoDriver | UblkErrorKind::Unsupported => Kind::Unsupported,
        UblkErrorKind::Permission => Kind::PermissionDenied,
        UblkErrorKind::Limit => Kind::LimitReached,
        UblkErrorKind::Busy => Kind::InUse,
        _ => Kind::DiskError,
    };
    ErrorDetail::new(kind, error.context.clone()).remedy(error.remedy)
}
