//! Metadata I/O: labels read and written by the control plane, from any thread and any executor.

use braid_engine::{
    Buf, Cookie, ErrorKind, Flags, LeafError, LeafId, LeafIo, LeafResult, MetaIo, Op, REQUEST_BYTES_MAX,
};

use crate::link::{Control, MetaRequest};
use crate::map::Map;
use crate::pending::pending;
use crate::ring::RingHandle;

/// [`MetaIo`] over a ring: each I/O goes through a shard and its driver, as all others do.
#[derive(Clone)]
pub struct RingMeta {
    handle: RingHandle,
}

impl RingHandle {
    /// The door for code that reads and writes labels.
    pub fn meta(&self) -> RingMeta {
        RingMeta { handle: self.clone() }
    }

    /// One I/O on a disk: for reads `len` bytes are returned, for writes `data` is written (and `len` is its length).
    /// Offsets and lengths are multiples of the disk's logical block; at most 32 MiB are moved.
    ///
    /// # Errors
    /// As the disk answers; `Gone` when the shards have stopped, `Invalid` when it is too long.
    pub async fn leaf_io(
        &self,
        leaf: LeafId,
        op: Op,
        flags: Flags,
        offset: u64,
        len: u64,
        data: &[u8],
    ) -> Result<Vec<u8>, LeafError> {
        let moves = matches!(op, Op::Read | Op::Write);
        if moves && len > REQUEST_BYTES_MAX || op == Op::Write && len != data.len() as u64 {
            return Err(LeafError::of(ErrorKind::Invalid));
        }
        let memory = if moves && len > 0 { Some(memory_with(data, len as usize)?) } else { None };
        let (request, answer) = request(leaf, op, flags, offset, len, memory);
        let link = &self.inner.links[leaf.0 as usize % self.inner.links.len()];
        link.send(Control::Meta(self.tier_of_leaf(leaf), Box::new(request)));
        let (result, memory) = answer.await.map_err(|_| LeafError::of(ErrorKind::Gone))?;
        result?;
        match memory {
            Some(memory) if op == Op::Read => Ok(bytes(&memory, len as usize)),
            _ => Ok(Vec::new()),
        }
    }
}

type Answer = crate::pending::Pending<(LeafResult, Option<Map>)>;

fn request(leaf: LeafId, op: Op, flags: Flags, offset: u64, len: u64, memory: Option<Map>) -> (MetaRequest, Answer) {
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
    let (promise, answer) = pending();
    (MetaRequest { memory, io, answer: Some(promise) }, answer)
}

/// From this on, a mapping begins where a huge page may.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory of its own for one I/O, page-aligned, beginning with `data`.
#[allow(unsafe_code)]
pub(crate) fn memory_with(data: &[u8], len: usize) -> Result<Map, LeafError> {
    let map = Map::new(len).map_err(|_| LeafError { kind: ErrorKind::Busy, errno: libc::ENOMEM })?;
    if len >= HUGE_PAGE_BYTES {
        // Used once, from end to end: a fault for each small page costs more than what is read.
        map.advise(libc::MADV_HUGEPAGE);
    }
    // SAFETY: the mapping is new, at least `len` long, and known to nobody else.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), map.ptr(), data.len().min(len)) };
    Ok(map)
}

#[allow(unsafe_code)]
pub(crate) fn bytes(map: &Map, len: usize) -> Vec<u8> {
    // SAFETY: the shard has given the mapping back, so that nobody writes to it; it is at least `len` long.
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
