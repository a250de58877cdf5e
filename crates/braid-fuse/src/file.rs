//! A served file: the state that all shards share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use braid_engine::ShardId;
use braid_export::{Export, OpenExport};
use braid_ring::RingHandle;

use crate::order::Order;
use crate::wire::{Attr, ROOT};

/// The attributes of the file besides its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Permissions.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its access, change and modification time, in seconds since 1970.
    pub time_s: u64,
}

/// Message of a file to all shards that serve it: retry the writes that wait for others.
pub(crate) struct RetryWrites;

/// A served file, from the start of its export until the export stops or the daemon ends. The kernel's connection may
/// outlive it, and is then served by another `FuseFile`.
pub struct FuseFile {
    export: Arc<Export>,
    look: Look,
    ring: RingHandle,
    frontend: usize,
    pub(crate) order: Order,
    /// Shards that serve the file, or have still to receive it.
    attached: AtomicU32,
    /// Shards that have received the file, whether they serve or refused it.
    seen: AtomicU32,
    /// Whether the kernel has ended the connection.
    gone: AtomicBool,
    /// Whether the kernel resubmits requests without a reply to the next server of the connection.
    resends: AtomicBool,
    opens: Mutex<BTreeMap<u64, OpenExport>>,
    next_fh: AtomicU64,
}

impl FuseFile {
    /// Creates a file of an export, served by frontend number `frontend` of each shard. Its file handles are numbered from
    /// `instance` on, which must be above all handles of earlier files on the same connection.
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
            // The kernel sends INIT once per connection, so a connection taken over gets none. It was kept for this
            // daemon only because its kernel resubmits. On a new connection, INIT sets the value.
            resends: AtomicBool::new(true),
            opens: Mutex::default(),
            next_fh: AtomicU64::new(instance),
        }
    }

    /// Returns the export.
    pub fn export(&self) -> &Arc<Export> {
        &self.export
    }

    /// Whether the kernel has ended the connection: another process has unmounted the file.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Returns the number of shards that have not detached the file.
    pub fn attached(&self) -> u32 {
        self.attached.load(Ordering::Acquire)
    }

    /// Whether the kernel resubmits requests without a reply to the next server of the connection (Linux 6.9).
    pub fn resends(&self) -> bool {
        self.resends.load(Ordering::Acquire)
    }

    /// Counts one more shard, before [`crate::Attach`] is sent to it.
    pub fn attach(&self) {
        self.attached.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the number of shards that have received the file, and either serve it or had no room for it.
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

    /// Has all shards retry the writes that wait for [`FuseFile::order`].
    pub(crate) fn wake(&self) {
        for shard in 0..self.ring.shards() {
            self.ring.post(ShardId(shard), self.frontend, Box::new(RetryWrites));
        }
    }

    /// Opens the file and returns a file handle; `None` if the export is at its limit of connections.
    pub(crate) fn open(&self) -> Option<u64> {
        let open = self.export.open()?;
        let fh = self.next_fh.fetch_add(1, Ordering::Relaxed);
        self.opens().insert(fh, open);
        Some(fh)
    }

    /// Closes a file handle. Handles that an earlier daemon opened are not known, and ignored.
    pub(crate) fn close(&self, fh: u64) {
        self.opens().remove(&fh);
    }

    fn opens(&self) -> MutexGuard<'_, BTreeMap<u64, OpenExport>> {
        self.opens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current attributes.
    pub(crate) fn attr(&self) -> Attr {
        let (size, look) = (self.export.size_bytes(), &self.look);
        // If the export reports holes, the file shows one 512-byte block less than its size: cp and others search for
        // holes only in a file with fewer blocks than its size has. Never 0, because tar takes a file without blocks
        // for empty.
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
