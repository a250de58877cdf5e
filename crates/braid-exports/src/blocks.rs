//! Exports as block devices of the ublk driver: creates or recovers the device, quiesces it while the exported object
//! does not serve, and removes it.
//!
//! A device belongs to the kernel and outlives this process. The kernel keeps a 64-bit mark for each device, derived
//! from the export's UUID, by which the next daemon finds the device of an export. Calls to the driver block, so they
//! run on blocking threads.

use crate::ExportManager;
use crate::block_table::{Block, Blocks};
use crate::provider::ListeningGuard;
use braid_api::address::{Address, BLOCK_FOLDER};
use braid_api::{ErrorDetail, Kind};
use braid_engine::ShardId;
use braid_export::{Export, ExportInfo, ExportTable};
use braid_inventory::state::SavedExport;
use braid_inventory::{ExportCondition, ExportEntry, UBLK_FRONTEND};
use braid_ring::RingHandle;
use braid_tasks as tasks;
use braid_ublk::{Asked, Control as Driver, Device, DeviceSetup, Message, Opening, Shape, UblkError, UblkErrorKind};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uuid::Uuid;

// The limits of the API are those of the driver's crate.
const _: () = assert!(braid_api::limits::BLOCK_QUEUES_MAX == braid_ublk::abi::QUEUES_MAX);

const _: () = assert!(braid_api::limits::BLOCK_QUEUE_DEPTH_MAX == braid_ublk::abi::QUEUE_DEPTH_MAX);

/// The upper 24 bits of the mark of each of Braid's devices: "BRD".
const MARK: u64 = 0x42_52_44 << MARK_BITS;

/// Number of low bits of a mark that identify the export: the low bits of its UUID.
pub(crate) const MARK_BITS: u32 = 40;

impl ExportManager {
    /// Completes the address of a block device: its path, derived from the export's name by default, and its queues.
    /// Other addresses are returned as they are.
    ///
    /// # Errors
    /// Another export has the path, or there are fewer shards than queues.
    pub(crate) fn complete_block_address(&self, address: Address, export: &str) -> Result<Address, ErrorDetail> {
        let Address::Ublk { path, queues, depth } = address else { return Ok(address) };
        let path = if path.as_os_str().is_empty() { Path::new(BLOCK_FOLDER).join(export) } else { path };
        let taken = |saved: &SavedExport| matches!(Address::parse(&saved.nbd), Ok(Address::Ublk { path: other, .. }) if other == path);
        if let Some(other) = self.inventory.read().exports.values().find(|entry| taken(&entry.saved)) {
            let message = format!("{} is export {} already", path.display(), other.saved.name);
            return Err(ErrorDetail::new(Kind::Exists, message).with("export", &other.saved.name));
        }
        let shards = self.ring.shards();
        if queues > shards {
            let message = format!(
                "{queues} queues, and the daemon has {}",
                braid_inventory::counted(usize::from(shards), "shard", "shards")
            );
            return Err(ErrorDetail::new(Kind::LimitReached, message)
                .remedy("each queue needs a shard of its own: ask for fewer, or start the daemon with more --shards"));
        }
        Ok(Address::Ublk { path, queues: if queues == 0 { shards } else { queues }, depth })
    }

    /// Serves an export as the block device at this address. A device that outlived an earlier daemon is recovered.
    ///
    /// # Errors
    /// The driver is missing or refuses, the path is in use, or the shards have no room for the queues.
    pub(crate) async fn serve_block(
        self: &Arc<Self>,
        saved: &SavedExport,
        address: Address,
        info: ExportInfo,
    ) -> Result<ExportCondition, ErrorDetail> {
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
            post_to_shards(&self.ring, || Message::Serve { id: block.device.id, export: Some(Arc::clone(&export)) });
            self.update_block_size(saved, &block.device, export.size_bytes()).await;
            return Ok(ExportCondition::Listening(export));
        }
        let (manager, offered, link) = (Arc::clone(self), Arc::clone(&export), path);
        let uuid = saved.uuid;
        let opened = tasks::blocking(move || {
            let mut interrupted = manager.blocks.interrupted().remove(&uuid);
            let opened = begin(&manager.ring, &manager.blocks, &setup, &offered, link, &mut interrupted);
            if let Some(interrupted) = interrupted {
                manager.blocks.interrupted().insert(uuid, interrupted);
            }
            opened
        })
        .await;
        let block = task_result(opened).map_err(|error| error.with("export", &saved.name))?;
        if block.device.is_recovered {
            let message = format!(
                "export {} continues as {}: its users were not disconnected",
                saved.name,
                block.device.path().display()
            );
            self.inventory.events().info("export_recovered", message, &[("export", &saved.name)]);
        }
        self.update_block_size(saved, &block.device, export.size_bytes()).await;
        self.blocks.all().insert(saved.uuid, Arc::new(block));
        Ok(ExportCondition::Listening(export))
    }

    /// Sets the size of a device to that of its export. If the driver cannot change it, the device keeps the size that
    /// it was created with.
    async fn update_block_size(&self, saved: &SavedExport, device: &Device, size_bytes: u64) {
        let Some(kept_bytes) = device.size_bytes().filter(|kept| *kept != size_bytes) else { return };
        let id = device.id;
        let updated = tasks::blocking(move || Driver::open()?.update_size(id, size_bytes)).await;
        let why = match updated {
            Ok(Ok(true)) => {
                let message = format!("the block device of export {} is of {size_bytes} bytes now", saved.name);
                return self.inventory.events().info("export_resized", message, &[("export", &saved.name)]);
            }
            Ok(Ok(false)) => "drivers can change that from Linux 6.16 on".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        let message = format!(
            "export {} is of {size_bytes} bytes, and its block device stays at {kept_bytes} until the export is removed and added \
             again: {why}",
            saved.name
        );
        self.inventory.events().warning("export_size", message, &[("export", &saved.name)]);
    }

    /// Sets the size of the block devices of an array's or volume's exports after its size has changed; `of` is its
    /// UUID. Returns before the driver has replied: an event reports each device that was resized, or keeps its size
    /// because the driver cannot change it.
    pub fn resize_blocks_of(&self, of: Uuid) {
        let exports: Vec<(SavedExport, u64)> = {
            let tables = self.inventory.read();
            let listening = |entry: &ExportEntry| match &entry.serving {
                ExportCondition::Listening(export) => Some((entry.saved.clone(), export.size_bytes())),
                _ => None,
            };
            tables.exports.values().filter(|entry| entry.saved.array == of).filter_map(listening).collect()
        };
        for (saved, size_bytes) in exports {
            let (Some(block), Some(manager)) = (self.blocks.of(saved.uuid), self.weak_self.upgrade()) else { continue };
            tasks::spawn(async move { manager.update_block_size(&saved, &block.device, size_bytes).await });
        }
    }

    /// Quiesces the block device of an export whose object does not serve any more: I/O of the device's users waits
    /// until [`ExportManager::resume_block`]. Does nothing if the export has no device.
    pub fn quiesce_block(&self, saved: &SavedExport) {
        if let Some(block) = self.blocks.of(saved.uuid) {
            post_to_shards(&self.ring, || Message::Serve { id: block.device.id, export: None });
        }
    }

    /// Resumes a quiesced block device: its I/O goes to `export` from now on. Does nothing if the saved export has no
    /// device.
    pub fn resume_block(&self, saved: &SavedExport, export: &Arc<Export>) {
        if let Some(block) = self.blocks.of(saved.uuid) {
            post_to_shards(&self.ring, || Message::Serve { id: block.device.id, export: Some(Arc::clone(export)) });
        }
    }

    /// Removes the block devices of these exports.
    ///
    /// # Errors
    /// A device is in use, and then none is removed. The driver refuses a removal, and then earlier devices of the list
    /// may be removed already.
    pub(crate) async fn remove_blocks(
        &self,
        _listening: &ListeningGuard<'_>,
        which: impl Fn(&SavedExport) -> bool,
    ) -> Result<(), ErrorDetail> {
        let mut removals = Vec::new();
        for saved in self.inventory.read().saved_blocks(which) {
            if let Address::Ublk { path: link, .. } = Address::parse(&saved.nbd)? {
                let known = self.blocks.of(saved.uuid).map(|block| block.device.id);
                removals.push(DeviceRemoval { uuid: saved.uuid, name: saved.name, known, link });
            }
        }
        if removals.is_empty() {
            return Ok(());
        }
        let stopping = || ErrorDetail::new(Kind::Stopping, "the daemon is stopping");
        let manager = self.weak_self.upgrade().ok_or_else(stopping)?;
        task_result(tasks::blocking(move || manager.remove_all(removals)).await)
    }

    /// Opens all devices exclusively before it removes the first: if one of them is in use, none is removed.
    fn remove_all(&self, removals: Vec<DeviceRemoval>) -> Result<(), ErrorDetail> {
        let driver = match Driver::open() {
            Err(error) if error.kind == UblkErrorKind::NoDriver => None,
            opened => Some(opened.map_err(of_ublk)?),
        };
        let mut claimed = Vec::new();
        for removal in removals {
            let found = match &driver {
                Some(driver) => removal.claim(driver),
                None => removal.check_without_driver(Path::new(SYSFS_BLOCK)).map(|()| None),
            };
            claimed.push((found.map_err(|error| error.with("export", &removal.name))?, removal));
        }
        for (found, removal) in claimed {
            drop(self.blocks.interrupted().remove(&removal.uuid));
            if let (Some((device, claim)), Some(driver)) = (found, &driver) {
                let fail = || post_to_shards(&self.ring, || Message::Fail { id: device.id });
                let ended = device.end_claimed(driver, claim, fail);
                ended.map_err(|error| of_ublk(error).with("export", &removal.name))?;
            }
            unlink(&removal.link);
            self.blocks.all().remove(&removal.uuid);
        }
        Ok(())
    }

    /// Removes the device of an export that ceases to exist even if the device is in use: its users get errors from now
    /// on. Returns before the driver has deleted the device.
    pub(crate) fn abandon_block(&self, saved: &SavedExport) {
        drop(self.blocks.interrupted().remove(&saved.uuid));
        let Some(block) = self.blocks.all().remove(&saved.uuid) else { return };
        let ring = self.ring.clone();
        tasks::blocking(move || {
            let id = block.device.id;
            post_to_shards(&ring, || Message::Fail { id });
            unlink(&block.link);
            if let Ok(driver) = Driver::open()
                && let Err(error) = driver.stop(id).and_then(|()| driver.delete(id))
            {
                tracing::warn!("/dev/ublkb{id} could not be removed: {error}");
            }
        });
    }
}

/// Returns the mark by which the kernel's device of an export is found.
pub(crate) fn mark_of(export: Uuid) -> u64 {
    MARK | (export.as_u128() as u64 & ((1 << MARK_BITS) - 1))
}

/// Returns whether a mark is one of Braid's.
pub(crate) fn is_mark(mark: u64) -> bool {
    mark >> MARK_BITS == MARK >> MARK_BITS
}

/// Creates the device of an export, or recovers the one that an earlier daemon has left. A recovery that fails half-way
/// is put into `interrupted`: the device's users wait until the next attempt continues it. A new device whose creation
/// fails is deleted.
fn begin(
    ring: &RingHandle,
    blocks: &Blocks,
    setup: &DeviceSetup,
    export: &Arc<Export>,
    link: PathBuf,
    interrupted: &mut Option<Opening>,
) -> Result<Block, ErrorDetail> {
    let driver = Driver::open().map_err(of_ublk)?;
    blocks.note_features(&driver);
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
    // Checked before the device is touched: a device whose path cannot be linked is not created, and an existing one is
    // left as it is.
    check_link(&link)?;
    let mut opening = match interrupted.take() {
        Some(opening) => opening,
        None => {
            check_shard_capacity(ring, setup.shape.queues)?;
            Opening::of(Device::find_or_make(&driver, setup).map_err(of_ublk)?)
        }
    };
    let id = opening.device.id;
    let offer = |export: Option<&Arc<Export>>| {
        post_to_shards(ring, || Message::Serve { id, export: export.map(Arc::clone) });
    };
    // A shard may still have queues of this device from an earlier attempt: they continue on this export.
    offer(Some(export));
    let opened = opening.shares(&driver).and_then(|shares| {
        for share in shares {
            let shard = ShardId(share.queue % ring.shards());
            ring.post(shard, UBLK_FRONTEND, Box::new(Message::Queue { id, share, export: Arc::clone(export) }));
        }
        opening.begin(&driver)
    });
    let linked = opened.map_err(of_ublk).and_then(|()| make_link(&link, &opening.device.path()));
    match linked {
        Ok(()) => {
            opening.device.leave_order_to_disks();
            Ok(Block { device: opening.into_device(), link })
        }
        Err(error) if opening.device.is_recovered => {
            // The device stays, quiesced: its users wait for the next attempt.
            offer(None);
            *interrupted = Some(opening);
            Err(error)
        }
        Err(error) => {
            post_to_shards(ring, || Message::Fail { id });
            // The driver deletes a device only after its file was closed.
            drop(opening);
            let _ = driver.stop(id).and_then(|()| driver.delete(id));
            Err(error)
        }
    }
}

/// Checks that the shards have room for a device's queues. Checked before a recovery begins, because the driver cannot
/// undo one. `queues` is the number in the export's address, with which an existing device was created, too.
fn check_shard_capacity(ring: &RingHandle, queues: u16) -> Result<(), ErrorDetail> {
    let queues_each = usize::from(queues.div_ceil(ring.shards()));
    let send = |shard: u16| {
        let query = Asked::default();
        ring.post(ShardId(shard), UBLK_FRONTEND, Box::new(Message::Room { queues: queues_each, asked: query.clone() }));
        query
    };
    Asked::wait_for_room(&(0..ring.shards()).map(send).collect::<Vec<_>>()).map_err(of_ublk)
}

/// An export whose device is to be removed.
struct DeviceRemoval {
    uuid: Uuid,
    name: String,
    /// The device's number, if this daemon serves it.
    known: Option<u32>,
    link: PathBuf,
}

impl DeviceRemoval {
    /// Opens the export's device exclusively. Returns `None` if the export has no device.
    fn claim(&self, driver: &Driver) -> Result<Option<(Device, Option<File>)>, ErrorDetail> {
        let mark = mark_of(self.uuid);
        let found = match self.known {
            Some(id) => driver.info(id).map_err(of_ublk)?.filter(|info| info.ublksrv_flags == mark),
            None => Device::find(driver, mark).map_err(of_ublk)?,
        };
        let Some(info) = found else { return Ok(None) };
        let device = Device { id: info.dev_id, info, is_recovered: false, is_torn: false };
        let claim = device.claim().map_err(|error| not_removed(error, &device, &self.link))?;
        Ok(Some((device, claim)))
    }

    /// Checks that the export has no device, where `/dev/ublk-control` cannot be opened. If the driver is not loaded
    /// there are no devices, and the export may be removed. If only the control node is missing, devices may exist: the
    /// removal is then refused, since the device would outlive its export. `sysfs` lists the kernel's block devices.
    fn check_without_driver(&self, sysfs: &Path) -> Result<(), ErrorDetail> {
        let is_ours = |name: &str| name.strip_prefix("ublkb").is_some_and(is_number);
        let entries = std::fs::read_dir(sysfs).into_iter().flatten().flatten();
        let found = entries.filter_map(|entry| entry.file_name().into_string().ok()).find(|name| is_ours(name));
        let shown = match (self.known, found) {
            (None, None) => return Ok(()),
            (Some(id), _) => format!("its block device /dev/ublkb{id} is there"),
            // Only the driver knows which export a device belongs to.
            (None, Some(name)) => format!("block devices of the ublk driver are there (/dev/{name})"),
        };
        let message = format!("export {} is not removed: {shown}, but /dev/ublk-control is not", self.name);
        Err(ErrorDetail::new(Kind::Unsupported, message).remedy(
            "bring it back, and try again: by `modprobe ublk_drv`; with the module loaded, by a devtmpfs at /dev, or by `mknod \
             /dev/ublk-control c 10 N` with the N that /proc/misc has for ublk-control; a container has to be given that node",
        ))
    }
}

/// The folder in which the kernel lists its block devices.
const SYSFS_BLOCK: &str = "/sys/block";

/// Removes a device that no daemon serves.
///
/// # Errors
/// The device is in use; the driver refuses.
pub(crate) fn remove_device(driver: &Driver, device: &Device) -> Result<(), ErrorDetail> {
    device.end(driver, || ()).map_err(|error| not_removed(error, device, &device.path()))
}

/// Returns the error for a device that is not removed; it names the device's holder if that is known.
fn not_removed(error: UblkError, device: &Device, link: &Path) -> ErrorDetail {
    let holder = braid_ring::disk::holder_of(&device.path());
    match (error.kind, holder) {
        (UblkErrorKind::Busy, Some(holder)) => {
            let path = device.path();
            let shown = if path == link { String::new() } else { format!(" ({})", path.display()) };
            ErrorDetail::new(Kind::InUse, format!("{}{shown} is in use by {holder}", link.display()))
                .remedy(error.remedy)
        }
        _ => of_ublk(error),
    }
}

fn post_to_shards(ring: &RingHandle, message: impl Fn() -> Message) {
    for shard in 0..ring.shards() {
        ring.post(ShardId(shard), UBLK_FRONTEND, Box::new(message()));
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns whether the path is a link to a device of the ublk driver, which may be gone. Only such links are replaced
/// or removed: anything else at a path belongs to others.
fn is_our_link(path: &Path) -> bool {
    let number = |target: &Path| target.to_str()?.strip_prefix("/dev/ublkb").map(is_number);
    std::fs::read_link(path).is_ok_and(|target| number(&target) == Some(true))
}

/// Checks that a stable path is free or a link to a ublk device, and creates its folder.
fn check_link(link: &Path) -> Result<(), ErrorDetail> {
    match std::fs::symlink_metadata(link) {
        Ok(found) if !is_our_link(link) => {
            let what = if found.is_symlink() { "a link to something else than a device of ublk" } else { "no link" };
            Err(ErrorDetail::new(Kind::Exists, format!("{} exists already, and is {what}", link.display()))
                .remedy("move it away, or give the export another name with --name"))
        }
        _ => link.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(|error| not_linked(link, &error)),
    }
}

fn not_linked(link: &Path, error: &io::Error) -> ErrorDetail {
    ErrorDetail::new(Kind::DiskError, format!("the link {} cannot be made: {error}", link.display()))
}

fn make_link(link: &Path, device: &Path) -> Result<(), ErrorDetail> {
    // Another program may have created something at the path since the first check.
    check_link(link)?;
    let made = || -> io::Result<()> {
        // The link is replaced atomically: a process that opens the path gets the old device or the new one.
        let mut new = link.as_os_str().to_owned();
        new.push(".new-link");
        let new = PathBuf::from(new);
        if is_our_link(&new) {
            std::fs::remove_file(&new)?;
        }
        std::os::unix::fs::symlink(device, &new)?;
        std::fs::rename(&new, link)
    };
    made().map_err(|error| not_linked(link, &error))
}

/// Removes a stable path if it is a link to a ublk device, and folders below [`BLOCK_FOLDER`] that become empty.
fn unlink(link: &Path) {
    if is_our_link(link) {
        // A link that is gone already is no error.
        let _ = std::fs::remove_file(link);
    }
    let mut folder = link.parent();
    while let Some(path) = folder.filter(|path| path.starts_with(BLOCK_FOLDER)) {
        if std::fs::remove_dir(path).is_err() {
            return;
        }
        folder = path.parent();
    }
}

/// Returns the result of a blocking task.
fn task_result<T>(ended: Result<Result<T, ErrorDetail>, tokio::task::JoinError>) -> Result<T, ErrorDetail> {
    ended.map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))?
}

/// Returns the error of the driver as the API reports it.
pub(crate) fn of_ublk(error: UblkError) -> ErrorDetail {
    let kind = match error.kind {
        UblkErrorKind::NoDriver | UblkErrorKind::Unsupported => Kind::Unsupported,
        UblkErrorKind::Permission => Kind::PermissionDenied,
        UblkErrorKind::Limit => Kind::LimitReached,
        UblkErrorKind::Busy => Kind::InUse,
        _ => Kind::DiskError,
    };
    ErrorDetail::new(kind, error.context.clone()).remedy(error.remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("braid-blocks-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder can be made");
        path
    }

    fn link(to: &str, at: &Path) {
        std::os::unix::fs::symlink(to, at).expect("a link can be made");
    }

    #[test]
    fn only_links_to_ublk_devices_are_replaced_and_removed() {
        let folder = folder("links");
        let (ours, others, file) = (folder.join("ours"), folder.join("others"), folder.join("file"));
        let (first, second) = (Path::new("/dev/ublkb7"), Path::new("/dev/ublkb8"));
        // The path is free, and then has the link of an earlier device, which is gone.
        for device in [first, second] {
            check_link(&ours).and_then(|()| make_link(&ours, device)).expect("it is ours");
            assert_eq!(std::fs::read_link(&ours).expect("it was made"), device);
        }
        std::fs::write(&file, "precious").expect("a file can be written");
        let precious = file.to_str().expect("it is text").to_owned();
        for to in [
            precious.as_str(),
            "/dev/ublkb",
            "/dev/ublkb7p1",
            "/dev/ublkc7",
            "ublkb7",
            "/dev/ublkb7/../sda",
            "/nowhere",
        ] {
            link(to, &others);
            for refused in [check_link(&others), make_link(&others, first)] {
                let error = refused.expect_err("it is another program's");
                assert!(error.kind == Kind::Exists && error.message.contains("link to something else"), "{error:?}");
            }
            unlink(&others);
            assert_eq!(std::fs::read_link(&others).expect("it is left alone"), Path::new(to));
            std::fs::remove_file(&others).expect("it is there");
        }
        assert!(check_link(&file).expect_err("it is no link").message.contains("no link"));
        unlink(&file);
        assert!(file.exists());
        // A file at the temporary path is not removed either.
        std::fs::write(folder.join("ours.new-link"), "precious").expect("a file can be written");
        assert!(make_link(&ours, first).is_err() && folder.join("ours.new-link").exists());
        unlink(&ours);
        assert!(std::fs::symlink_metadata(&ours).is_err());
        // A path that cannot be created is refused before there is a device.
        assert_eq!(check_link(&file.join("below")).expect_err("its folder is a file").kind, Kind::DiskError);
        let _ = std::fs::remove_dir_all(&folder);
    }

    #[test]
    fn a_missing_control_device_does_not_drop_an_export() {
        let sysfs = folder("sysfs");
        let removals =
            |known| DeviceRemoval { uuid: Uuid::nil(), name: "db".into(), known, link: "/dev/braid/db".into() };
        std::fs::create_dir(sysfs.join("vda")).expect("a folder can be made");
        removals(None).check_without_driver(&sysfs).expect("there is none");
        removals(None).check_without_driver(&sysfs.join("none")).expect("without sysfs nothing is known");
        let error = removals(Some(3)).check_without_driver(&sysfs).expect_err("it is served");
        assert!(error.message.contains("/dev/ublkb3 is there"), "{error:?}");
        std::fs::create_dir(sysfs.join("ublkb5")).expect("a folder can be made");
        let error = removals(None).check_without_driver(&sysfs).expect_err("it may be this one");
        assert!(error.message.contains("/dev/ublkb5") && error.remedy.contains("modprobe"));
        let _ = std::fs::remove_dir_all(&sysfs);
    }
}
