//! Exports as block devices: made or found again, put aside while what they are of is away, and removed.
//!
//! A device is the kernel's, and outlives this process: what is exported is found again by a mark that the kernel keeps. What
//! talks to the driver blocks, and does so on threads for that.

use super::exports::Listens;
use super::tables::{ExportEntry, Serving, Tables};
use super::{Control, ErrorDetail, Kind};
use crate::daemon::listen::UBLK_FRONTEND;
use crate::daemon::state::SavedExport;
use braid_api::address::{Address, BLOCK_FOLDER};
use braid_engine::ShardId;
use braid_nbd::{Export, ExportInfo, ExportTable};
use braid_ring::RingHandle;
use braid_ublk::{Asked, Control as Driver, Device, DeviceSetup, Message, Opening, Shape, UblkError, UblkErrorKind};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uuid::Uuid;

// What the API takes is what the driver's crate can serve.
const _: () = assert!(braid_api::limits::BLOCK_QUEUES_MAX == braid_ublk::abi::QUEUES_MAX);
const _: () = assert!(braid_api::limits::BLOCK_QUEUE_DEPTH_MAX == braid_ublk::abi::QUEUE_DEPTH_MAX);

/// What begins every mark of Braid's devices, in its upper three bytes: "BRD".
const MARK: u64 = 0x42_52_44 << MARK_BITS;
/// Bits of a mark below that, which are its export's.
pub(super) const MARK_BITS: u32 = 40;

/// The block devices that this daemon serves.
#[derive(Default)]
pub struct Blocks {
    all: Mutex<BTreeMap<Uuid, Arc<Block>>>,
    /// Those whose users wait, as a takeover failed half-way: the next try goes on from there.
    half: Mutex<BTreeMap<Uuid, Opening>>,
    /// What the kernel's driver can do, once it was asked.
    features: Mutex<Option<Vec<String>>>,
}

/// One of them.
struct Block {
    device: Device,
    /// Its stable path.
    link: PathBuf,
}

impl Blocks {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Uuid, Arc<Block>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn half(&self) -> MutexGuard<'_, BTreeMap<Uuid, Opening>> {
        self.half.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the kernel's driver can do; none: it was not asked, or is not there.
    pub fn features(&self) -> Option<Vec<String>> {
        self.features.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Those that are served.
    pub fn devices(&self) -> Vec<PathBuf> {
        self.all().values().map(|block| block.device.path()).collect()
    }

    /// Remembers what the driver can do.
    pub fn note_features(&self, driver: &Driver) {
        let words = driver.features().words().into_iter().map(str::to_owned).collect();
        *self.features.lock().unwrap_or_else(PoisonError::into_inner) = Some(words);
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
            self.tell_block_size(saved, &block.device, export.size_bytes()).await;
            return Ok(Serving::Listening(export));
        }
        let (control, offered, link) = (Arc::clone(self), Arc::clone(&export), path);
        let uuid = saved.uuid;
        let begun = tokio::task::spawn_blocking(move || {
            let mut half = control.blocks.half().remove(&uuid);
            let begun = begin(&control.ring, &control.blocks, &setup, &offered, link, &mut half);
            if let Some(half) = half {
                control.blocks.half().insert(uuid, half);
            }
            begun
        })
        .await;
        let block = flat(begun).map_err(|error| error.with("export", &saved.name))?;
        if block.device.is_recovered {
            let message = format!(
                "export {} goes on as {}: its users did not lose it",
                saved.name,
                block.device.path().display()
            );
            self.events().info("export_recovered", message, &[("export", &saved.name)]);
        }
        self.tell_block_size(saved, &block.device, export.size_bytes()).await;
        self.blocks.all().insert(saved.uuid, Arc::new(block));
        Ok(Serving::Listening(export))
    }

    /// A device has the size of what it is of, where the driver can change it; else it keeps the one that it began with.
    async fn tell_block_size(&self, saved: &SavedExport, device: &Device, size_bytes: u64) {
        let Some(kept_bytes) = device.size_bytes().filter(|kept| *kept != size_bytes) else { return };
        let id = device.id;
        let told = tokio::task::spawn_blocking(move || Driver::open()?.update_size(id, size_bytes)).await;
        let why = match told {
            Ok(Ok(true)) => {
                let message = format!("the block device of export {} is of {size_bytes} bytes now", saved.name);
                return self.events().info("export_resized", message, &[("export", &saved.name)]);
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
        self.events().warning("export_size", message, &[("export", &saved.name)]);
    }

    /// What these exports are of has another size: their devices, too, where that can be.
    pub(super) fn resize_blocks_of(&self, of: Uuid) {
        let exports: Vec<(SavedExport, u64)> = {
            let tables = self.read();
            let listening = |entry: &ExportEntry| match &entry.serving {
                Serving::Listening(export) => Some((entry.saved.clone(), export.size_bytes())),
                _ => None,
            };
            tables.exports.values().filter(|entry| entry.saved.array == of).filter_map(listening).collect()
        };
        for (saved, size_bytes) in exports {
            let (Some(block), Some(control)) = (self.blocks.of(saved.uuid), self.me.upgrade()) else { continue };
            tokio::spawn(async move { control.tell_block_size(&saved, &block.device, size_bytes).await });
        }
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
    /// One is in use, and nothing has happened to any of them; or the driver refuses.
    pub(super) async fn end_blocks(
        &self,
        _listening: &Listens<'_>,
        which: impl Fn(&SavedExport) -> bool,
    ) -> Result<(), ErrorDetail> {
        let mut ending = Vec::new();
        for saved in self.read().saved_blocks(which) {
            if let Address::Ublk { path: link, .. } = Address::parse(&saved.nbd)? {
                let known = self.blocks.of(saved.uuid).map(|block| block.device.id);
                ending.push(Ending { uuid: saved.uuid, name: saved.name, known, link });
            }
        }
        if ending.is_empty() {
            return Ok(());
        }
        let stopping = || ErrorDetail::new(Kind::Stopping, "the daemon is stopping");
        let control = self.me.upgrade().ok_or_else(stopping)?;
        flat(tokio::task::spawn_blocking(move || control.end_all(ending)).await)
    }

    /// All are ours alone before the first one ends: a later one that is in use must not cost an earlier one.
    fn end_all(&self, ending: Vec<Ending>) -> Result<(), ErrorDetail> {
        let driver = match Driver::open() {
            Err(error) if error.kind == UblkErrorKind::NoDriver => None,
            opened => Some(opened.map_err(of_ublk)?),
        };
        let mut claimed = Vec::new();
        for one in ending {
            let found = match &driver {
                Some(driver) => one.claim(driver),
                None => one.without_driver(Path::new(SYSFS_BLOCK)).map(|()| None),
            };
            claimed.push((found.map_err(|error| error.with("export", &one.name))?, one));
        }
        for (found, one) in claimed {
            drop(self.blocks.half().remove(&one.uuid));
            if let (Some((device, claim)), Some(driver)) = (found, &driver) {
                let fail = || tell_all(&self.ring, || Message::Fail { id: device.id });
                let ended = device.end_claimed(driver, claim, fail);
                ended.map_err(|error| of_ublk(error).with("export", &one.name))?;
            }
            unlink(&one.link);
            self.blocks.all().remove(&one.uuid);
        }
        Ok(())
    }

    /// An export is gone whatever becomes of its device: its users get errors from now on.
    pub(super) fn abandon_block(&self, saved: &SavedExport) {
        drop(self.blocks.half().remove(&saved.uuid));
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
pub(super) fn mark_of(export: Uuid) -> u64 {
    MARK | (export.as_u128() as u64 & ((1 << MARK_BITS) - 1))
}

/// Whether a device is one of Braid's.
pub(super) fn is_mark(mark: u64) -> bool {
    mark >> MARK_BITS == MARK >> MARK_BITS
}

/// Makes a device or takes it over. What failed half-way, and has users that wait, is left in `half` for the next try.
fn begin(
    ring: &RingHandle,
    blocks: &Blocks,
    setup: &DeviceSetup,
    export: &Arc<Export>,
    link: PathBuf,
    half: &mut Option<Opening>,
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
    // Before anything is begun with a device: what cannot have its path is not made, and one that is there is left as it is.
    check_link(&link)?;
    let mut opening = match half.take() {
        Some(opening) => opening,
        None => {
            ask_for_room(ring, setup.shape.queues)?;
            Opening::of(Device::find_or_make(&driver, setup).map_err(of_ublk)?)
        }
    };
    let id = opening.device.id;
    let offer = |export: Option<&Arc<Export>>| {
        tell_all(ring, || Message::Serve { id, export: export.map(Arc::clone) });
    };
    // Queues that a shard has since an earlier try.
    offer(Some(export));
    let begun = opening.shares(&driver).and_then(|shares| {
        for share in shares {
            let shard = ShardId(share.queue % ring.shards());
            ring.post(shard, UBLK_FRONTEND, Box::new(Message::Queue { id, share, export: Arc::clone(export) }));
        }
        opening.begin(&driver)
    });
    let linked = begun.map_err(of_ublk).and_then(|()| make_link(&link, &opening.device.path()));
    match linked {
        Ok(()) => {
            opening.device.leave_order_to_disks();
            Ok(Block { device: opening.into_device(), link })
        }
        Err(error) if opening.device.is_recovered => {
            // Its users wait on, for the next try.
            offer(None);
            *half = Some(opening);
            Err(error)
        }
        Err(error) => {
            tell_all(ring, || Message::Fail { id });
            // Its file has to be closed before it can go.
            drop(opening);
            let _ = driver.stop(id).and_then(|()| driver.delete(id));
            Err(error)
        }
    }
}

/// Makes sure that the shards can take a device's queues, as a takeover that was begun cannot be taken back. Queues of one that is there are as many
/// as it was made with, which is what its export's address has.
fn ask_for_room(ring: &RingHandle, queues: u16) -> Result<(), ErrorDetail> {
    let queues_each = usize::from(queues.div_ceil(ring.shards()));
    let ask = |shard: u16| {
        let asked = Asked::default();
        ring.post(ShardId(shard), UBLK_FRONTEND, Box::new(Message::Room { queues: queues_each, asked: asked.clone() }));
        asked
    };
    Asked::wait_for_room(&(0..ring.shards()).map(ask).collect::<Vec<_>>()).map_err(of_ublk)
}

/// An export whose device is to end.
struct Ending {
    uuid: Uuid,
    name: String,
    /// Its device's number, where this daemon serves it.
    known: Option<u32>,
    link: PathBuf,
}

impl Ending {
    /// Its device, for us alone; none: there is none.
    fn claim(&self, driver: &Driver) -> Result<Option<(Device, Option<File>)>, ErrorDetail> {
        let mark = mark_of(self.uuid);
        let found = match self.known {
            Some(id) => driver.info(id).map_err(of_ublk)?.filter(|info| info.ublksrv_flags == mark),
            None => Device::find(driver, mark).map_err(of_ublk)?,
        };
        let Some(info) = found else { return Ok(None) };
        let device = Device { id: info.dev_id, info, is_recovered: false, is_torn: false };
        let claim = device.claim().map_err(|error| not_ended(error, &device, &self.link))?;
        Ok(Some((device, claim)))
    }

    /// Without the driver there is no device either. With its control device's node away there may be: that is no reason to forget one.
    fn without_driver(&self, sysfs: &Path) -> Result<(), ErrorDetail> {
        let is_ours = |name: &str| name.strip_prefix("ublkb").is_some_and(is_number);
        let entries = std::fs::read_dir(sysfs).into_iter().flatten().flatten();
        let there = entries.filter_map(|entry| entry.file_name().into_string().ok()).find(|name| is_ours(name));
        let shown = match (self.known, there) {
            (None, None) => return Ok(()),
            (Some(id), _) => format!("its block device /dev/ublkb{id} is there"),
            // Whose it is only the driver knows.
            (None, Some(name)) => format!("block devices of the ublk driver are there (/dev/{name})"),
        };
        let message = format!("export {} is not removed: {shown}, but /dev/ublk-control is not", self.name);
        Err(ErrorDetail::new(Kind::Unsupported, message).remedy(
            "bring it back, and try again: by `modprobe ublk_drv`; with the module loaded, by a devtmpfs at /dev, or by `mknod \
             /dev/ublk-control c 10 N` with the N that /proc/misc has for ublk-control; a container has to be given that node",
        ))
    }
}

/// Where the kernel lists its block devices.
const SYSFS_BLOCK: &str = "/sys/block";

/// Removes a device that nobody serves.
///
/// # Errors
/// It is in use; the driver refuses.
pub(super) fn end_of(driver: &Driver, device: &Device) -> Result<(), ErrorDetail> {
    device.end(driver, || ()).map_err(|error| not_ended(error, device, &device.path()))
}

/// Why a device is not removed, with who has it.
fn not_ended(error: UblkError, device: &Device, link: &Path) -> ErrorDetail {
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

fn tell_all(ring: &RingHandle, message: impl Fn() -> Message) {
    for shard in 0..ring.shards() {
        ring.post(ShardId(shard), UBLK_FRONTEND, Box::new(message()));
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether this is a link to a device of the ublk driver, which may be gone: only such a one is made anew or removed. Anything else is somebody
/// else's, whoever asked for an export there.
fn is_our_link(path: &Path) -> bool {
    let number = |target: &Path| target.to_str()?.strip_prefix("/dev/ublkb").map(is_number);
    std::fs::read_link(path).is_ok_and(|target| number(&target) == Some(true))
}

/// What is at a stable path has to be a link of ours, or nothing; and there has to be a folder for it.
fn check_link(link: &Path) -> Result<(), ErrorDetail> {
    match std::fs::symlink_metadata(link) {
        Ok(found) if !is_our_link(link) => {
            let what = if found.is_symlink() { "a link to something else than a device of ublk" } else { "no link" };
            Err(ErrorDetail::new(Kind::Exists, format!("{} is there already, and {what}", link.display()))
                .remedy("move it away, or give the export another name with --name"))
        }
        _ => link.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(|error| not_linked(link, &error)),
    }
}

fn not_linked(link: &Path, error: &io::Error) -> ErrorDetail {
    ErrorDetail::new(Kind::DiskError, format!("the link {} cannot be made: {error}", link.display()))
}

fn make_link(link: &Path, device: &Path) -> Result<(), ErrorDetail> {
    // It may have come since a device was begun.
    check_link(link)?;
    let made = || -> io::Result<()> {
        // Never without one: who opens the path just now gets the old device or the new one.
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

/// Removes a link of ours and the folders that it leaves empty.
fn unlink(link: &Path) {
    if is_our_link(link) {
        // What is gone already is no error.
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

/// What a thread returned.
fn flat<T>(ended: Result<Result<T, ErrorDetail>, tokio::task::JoinError>) -> Result<T, ErrorDetail> {
    ended.map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))?
}

pub(super) fn of_ublk(error: UblkError) -> ErrorDetail {
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
    fn only_links_to_devices_of_ublk_are_made_anew_and_removed() {
        let folder = folder("links");
        let (ours, others, file) = (folder.join("ours"), folder.join("others"), folder.join("file"));
        let (first, second) = (Path::new("/dev/ublkb7"), Path::new("/dev/ublkb8"));
        // Nothing there, and one of an earlier device, which is gone.
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
                let error = refused.expect_err("it is somebody else's");
                assert!(error.kind == Kind::Exists && error.message.contains("link to something else"), "{error:?}");
            }
            unlink(&others);
            assert_eq!(std::fs::read_link(&others).expect("it is left alone"), Path::new(to));
            std::fs::remove_file(&others).expect("it is there");
        }
        assert!(check_link(&file).expect_err("it is no link").message.contains("no link"));
        unlink(&file);
        assert!(file.exists());
        // What is in the way of the new link is not removed either.
        std::fs::write(folder.join("ours.new-link"), "precious").expect("a file can be written");
        assert!(make_link(&ours, first).is_err() && folder.join("ours.new-link").exists());
        unlink(&ours);
        assert!(std::fs::symlink_metadata(&ours).is_err());
        // A path that cannot be made is refused before there is a device.
        assert_eq!(check_link(&file.join("below")).expect_err("its folder is a file").kind, Kind::DiskError);
        let _ = std::fs::remove_dir_all(&folder);
    }

    #[test]
    fn a_control_device_that_is_away_is_no_reason_to_forget_a_device() {
        let sysfs = folder("sysfs");
        let ending = |known| Ending { uuid: Uuid::nil(), name: "db".into(), known, link: "/dev/braid/db".into() };
        std::fs::create_dir(sysfs.join("vda")).expect("a folder can be made");
        ending(None).without_driver(&sysfs).expect("there is none");
        ending(None).without_driver(&sysfs.join("none")).expect("without sysfs nothing is known");
        let error = ending(Some(3)).without_driver(&sysfs).expect_err("it is served");
        assert!(error.message.contains("/dev/ublkb3 is there"), "{error:?}");
        std::fs::create_dir(sysfs.join("ublkb5")).expect("a folder can be made");
        let error = ending(None).without_driver(&sysfs).expect_err("it may be this one");
        assert!(error.message.contains("/dev/ublkb5") && error.remedy.contains("modprobe"));
        let _ = std::fs::remove_dir_all(&sysfs);
    }
}
