//! A file that is served, as all shards share it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use braid_engine::ShardId;
use braid_nbd::Export;
use braid_nbd::export::OpenExport;
use braid_ring::RingHandle;

use crate::order::Order;
use crate::server::Woken;
use crate::wire::{Attr, ROOT};

/// What the file looks like, besides its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Permissions.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// All of its times, in seconds since 1970.
    pub time_s: u64,
}

/// A file that is served. It lives as long as its export serves: the connection may outlive it, and get another one.
pub struct FuseFile {
    export: Arc<Export>,
    look: Look,
    ring: RingHandle,
    frontend: usize,
    pub(crate) order: Order,
    /// Shards that have it.
    attached: AtomicU32,
    /// Shards that were given it, whether they took it or not.
    seen: AtomicU32,
    gone: AtomicBool,
    resends: AtomicBool,
    opens: Mutex<BTreeMap<u64, OpenExport>>,
    next_fh: AtomicU64,
}

impl FuseFile {
    /// A file of an export, served by the `frontend` of these shards. `instance`: no earlier one of the same connection had it.
    pub fn new(export: Arc<Export>, look: Look, ring: RingHandle, frontend: usize, instance: u64) -> FuseFile {
        FuseFile {
            export,
            look,
            ring,
            frontend,
            order: Order::default(),
            attached: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            // Whoever takes a connection over is not told; it is only kept where this is so.
            resends: AtomicBool::new(true),
            opens: Mutex::default(),
            next_fh: AtomicU64::new(instance),
        }
    }

    /// The export.
    pub fn export(&self) -> &Arc<Export> {
        &self.export
    }

    /// The kernel has ended the connection: the file was unmounted by somebody else.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Shards that have not let go of it.
    pub fn attached(&self) -> u32 {
        self.attached.load(Ordering::Acquire)
    }

    /// Whether the kernel gives again what was not answered.
    pub fn resends(&self) -> bool {
        self.resends.load(Ordering::Acquire)
    }

    /// One more shard is about to get it.
    pub fn attach(&self) {
        self.attached.fetch_add(1, Ordering::AcqRel);
    }

    /// Shards that have been given it, and either took it or had no room.
    pub fn seen(&self) -> u32 {
        self.seen.load(Ordering::Acquire)
    }

    pub(crate) fn note_seen(&self) {
        self.seen.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn detached(&self) {
        self.attached.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    pub(crate) fn set_resends(&self, resends: bool) {
        self.resends.store(resends, Ordering::Release);
    }

    /// Has all shards look again at what waits for [`FuseFile::order`].
    pub(crate) fn wake(&self) {
        for shard in 0..self.ring.shards() {
            self.ring.post(ShardId(shard), self.frontend, Box::new(Woken));
        }
    }

    /// One more opener; none when the export has no place left.
    pub(crate) fn open(&self) -> Option<u64> {
        let open = self.export.open()?;
        let fh = self.next_fh.fetch_add(1, Ordering::Relaxed);
        self.opens().insert(fh, open);
        Some(fh)
    }

    /// One less. One that had it open before this daemon was there is not known.
    pub(crate) fn close(&self, fh: u64) {
        self.opens().remove(&fh);
    }

    fn opens(&self) -> MutexGuard<'_, BTreeMap<u64, OpenExport>> {
        self.opens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its attributes as they are now.
    pub(crate) fn attr(&self) -> Attr {
        let (size, look) = (self.export.size_bytes(), &self.look);
        // Where there may be holes, one fewer than is full: by that cp and others know to look for them. Never none, by which tar
        // knows not to look for data.
        let blocks = size.div_ceil(512);
        let blocks = if self.export.allocation().is_some() { blocks.saturating_sub(1).max(1) } else { blocks };
        Attr {
            ino: ROOT,
            size,
            blocks,
            atime: look.time_s,
            mtime: look.time_s,
            ctime: look.time_s,
            mode: libc::S_IFREG | (look.mode & 0o777),
            nlink: 1,
            uid: look.uid,
            gid: look.gid,
            blksize: 4096,
            ..Attr::default()
        }
    }
}
