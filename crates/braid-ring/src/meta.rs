//! Metadata I/O of the control plane, mainly labels, from any thread and any executor.

use braid_engine::{
    Buf, Cookie, ErrorKind, Flags, LeafError, LeafId, LeafIo, LeafResult, MetaIo, Op, REQUEST_BYTES_MAX,
};

use crate::link::Control;
use crate::map::Map;
use crate::meta_requests::MetaRequest;
use crate::pending::pending;
use crate::ring::RingHandle;

/// [`MetaIo`] over a ring. Each I/O goes through a shard and its driver like all others.
#[derive(Clone)]
pub struct RingMeta {
    handle: RingHandle,
}

impl RingHandle {
    /// Returns the interface for metadata I/O.
    pub fn meta(&self) -> RingMeta {
        RingMeta { handle: self.clone() }
    }

    /// Makes one I/O on a disk. A read returns `len` bytes; a write writes `data`, whose length is `len`. Offsets and
    /// lengths are multiples of the disk's logical block; reads and writes are at most 32 MiB.
    ///
    /// # Errors
    /// The disk's error; `TimedOut` when it exceeded its time limit: a write may then still happen, and writes that
    /// overlap it are refused until the kernel has returned it; `Gone` when the shards have stopped, `Invalid` when the
    /// I/O is too long, `Busy` when no memory is available.
    pub async fn leaf_io(
        &self,
        leaf: LeafId,
        op: Op,
        flags: Flags,
        offset: u64,
        len: u64,
        data: &[u8],
    ) -> Result<Vec<u8>, LeafError> {
        let carries_data = matches!(op, Op::Read | Op::Write);
        if carries_data && len > REQUEST_BYTES_MAX || op == Op::Write && len != data.len() as u64 {
            return Err(LeafError::of(ErrorKind::Invalid));
        }
        let memory = if carries_data && len > 0 { Some(memory_with(data, len as usize)?) } else { None };
        let (request, reply) = request(leaf, op, flags, offset, len, memory);
        let link = &self.inner.links[leaf.0 as usize % self.inner.links.len()];
        link.send(Control::Meta(self.level_of_leaf(leaf), Box::new(request)));
        let (result, memory) = reply.await.map_err(|_| LeafError::of(ErrorKind::Gone))?;
        result?;
        match memory {
            Some(memory) if op == Op::Read => Ok(bytes(&memory, len as usize)),
            _ => Ok(Vec::new()),
        }
    }
}

type PendingReply = crate::pending::Pending<(LeafResult, Option<Map>)>;

fn request(
    leaf: LeafId,
    op: Op,
    flags: Flags,
    offset: u64,
    len: u64,
    memory: Option<Map>,
) -> (MetaRequest, PendingReply) {
    let addr = memory.as_ref().map_or(0, Map::addr);
    let io = LeafIo {
        leaf,
        op,
        flags,
        offset,
        len,
        buf: Buf { addr, region: Buf::UNREGISTERED },
        first_len: u32::try_from(len).unwrap_or(u32::MAX),
        piece_len: 0,
        first_gap: 0,
        stride: 0,
        cookie: Cookie(0),
    };
    let (sender, reply) = pending();
    (MetaRequest { memory, io, reply: Some(sender) }, reply)
}

/// From this size in bytes on, the memory of an I/O is huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Allocates page-aligned memory for one I/O, which begins with `data`.
#[allow(unsafe_code)]
pub(crate) fn memory_with(data: &[u8], len: usize) -> Result<Map, LeafError> {
    let map = Map::new(len).map_err(|_| LeafError { kind: ErrorKind::Busy, errno: libc::ENOMEM })?;
    if len >= HUGE_PAGE_BYTES {
        // Used once, from end to end: a page fault for each small page costs more than the I/O.
        map.advise(libc::MADV_HUGEPAGE);
    }
    // SAFETY: the mapping is new, at least `len` bytes long, and has no other users.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), map.ptr(), data.len().min(len)) };
    Ok(map)
}

#[allow(unsafe_code)]
pub(crate) fn bytes(map: &Map, len: usize) -> Vec<u8> {
    // SAFETY: the shard has returned the mapping, so nothing writes to it; `len` is at most its length.
    unsafe { std::slice::from_raw_parts(map.ptr(), len.min(map.len())) }.to_vec()
}

impl MetaIo for RingMeta {
    fn size_bytes(&self, leaf: LeafId) -> u64 {
        self.handle.disk(leaf).map_or(0, |disk| disk.size_bytes())
    }

    async fn read(&self, leaf: LeafId, offset: u64, len: usize) -> Result<Vec<u8>, LeafError> {
        self.handle.leaf_io(leaf, Op::Read, Flags::NONE, offset, len as u64, &[]).await
    }

    async fn write(&self, leaf: LeafId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), LeafError> {
        let flags = if fua { Flags::FUA } else { Flags::NONE };
        self.handle.leaf_io(leaf, Op::Write, flags, offset, data.len() as u64, &data).await.map(drop)
    }

    async fn flush(&self, leaf: LeafId) -> Result<(), LeafError> {
        self.handle.leaf_io(leaf, Op::Flush, Flags::NONE, 0, 0, &[]).await.map(drop)
    }
}
