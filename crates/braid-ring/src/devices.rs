//! Devices read and written by the control plane, from any thread and any executor.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use braid_engine::{
    Buf, DeviceId, DeviceIo, DeviceLayout, ErrorKind, Flags, IoError, LeafError, Op, REQUEST_BYTES_MAX, Request,
};

use crate::link::Control;
use crate::map::Map;
use crate::meta::{bytes, memory_with};
use crate::pending::pending;
use crate::requests::{DeviceRequest, Ended};
use crate::ring::RingHandle;

/// [`DeviceIo`] over a ring: each request goes to one of the shards in turn, and through its engine as all others do.
///
/// Each has memory of its own, as long as its data, from its call to its end: whoever makes many at a time bounds them. From
/// 2 MiB on that is huge pages, where there are any, and a byte costs a third of what it does below.
/// When the ring has stopped, all end with `NoDevice`.
#[derive(Clone)]
pub struct RingDevices {
    handle: RingHandle,
}

impl RingHandle {
    /// The door for code that keeps something on devices.
    pub fn devices(&self) -> RingDevices {
        RingDevices { handle: self.clone() }
    }
}

impl RingDevices {
    /// One request: for reads `len` bytes are returned, for writes `data` is written (and `len` is its length). What a disk does
    /// not give in time is asked for once more where another one may have it.
    ///
    /// # Errors
    /// As the device answers; `NoDevice` when the shards have stopped, `Invalid` when it is too long, `Busy` with the number
    /// of the operating system's error when there is no memory.
    pub async fn request(
        &self,
        device: DeviceId,
        op: Op,
        flags: Flags,
        offset: u64,
        len: u64,
        data: &[u8],
    ) -> Result<Vec<u8>, IoError> {
        let moves = matches!(op, Op::Read | Op::Write);
        if moves && len > REQUEST_BYTES_MAX || op == Op::Write && len != data.len() as u64 {
            return Err(IoError::of(ErrorKind::Invalid));
        }
        let request = Request { device, op, flags, offset, len, buf: Buf::NONE, tag: 0 };
        let inner = &self.handle.inner;
        let shard = inner.next_shard.fetch_add(1, Ordering::Relaxed) % inner.links.len();
        let mut ended = self.ask(shard, &request, data).await?;
        if ended.again {
            // The same shard: it knows which disk has not answered yet.
            ended = self.ask(shard, &request, data).await?;
        }
        ended.result?;
        match ended.memory {
            Some(memory) if op == Op::Read => Ok(bytes(&memory, len as usize)),
            // It was read, but something may yet be written over it.
            None if op == Op::Read && len > 0 => Err(IoError::of(ErrorKind::TimedOut)),
            _ => Ok(Vec::new()),
        }
    }

    async fn ask(&self, shard: usize, request: &Request, data: &[u8]) -> Result<Ended, IoError> {
        let space = if matches!(request.op, Op::Read | Op::Write) { request.len as usize } else { 0 };
        let no_memory = |e: LeafError| IoError { errno: e.errno, ..IoError::of(e.kind) };
        let memory = if space > 0 { Some(memory_with(data, space).map_err(no_memory)?) } else { None };
        let buf = Buf { addr: memory.as_ref().map_or(0, Map::addr), region: Buf::UNREGISTERED };
        let (answer, ended) = pending();
        let request = DeviceRequest { memory, request: Request { buf, ..*request }, answer: Some(answer) };
        self.handle.inner.links[shard].send(Control::Request(Box::new(request)));
        ended.await.map_err(|_| IoError::of(ErrorKind::NoDevice))
    }
}

impl DeviceIo for RingDevices {
    fn size_bytes(&self, device: DeviceId) -> u64 {
        self.handle.inner.layouts.of(device).map_or(0, |layout| layout.size_bytes())
    }

    fn block_bytes(&self, device: DeviceId) -> u32 {
        self.handle.inner.layouts.of(device).map_or(0, |layout| layout.block_bytes())
    }

    async fn read(&self, device: DeviceId, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
        let mut at = offset;
        let end = offset.checked_add(len as u64).ok_or(IoError::of(ErrorKind::Invalid))?;
        if len as u64 <= REQUEST_BYTES_MAX {
            return self.request(device, Op::Read, Flags::NONE, offset, len as u64, &[]).await;
        }
        // Before memory is taken for what cannot be there.
        if end > self.size_bytes(device) {
            return Err(IoError::of(if self.size_bytes(device) == 0 {
                ErrorKind::NoDevice
            } else {
                ErrorKind::Invalid
            }));
        }
        let mut all = Vec::with_capacity(len);
        while at < end {
            let part = REQUEST_BYTES_MAX.min(end - at);
            all.extend(self.request(device, Op::Read, Flags::NONE, at, part, &[]).await?);
            at += part;
        }
        Ok(all)
    }

    async fn write(&self, device: DeviceId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), IoError> {
        let flags = if fua { Flags::FUA } else { Flags::NONE };
        self.request(device, Op::Write, flags, offset, data.len() as u64, &data).await.map(drop)
    }

    async fn flush(&self, device: DeviceId) -> Result<(), IoError> {
        self.request(device, Op::Flush, Flags::NONE, 0, 0, &[]).await.map(drop)
    }

    async fn discard(&self, device: DeviceId, offset: u64, len: u64) -> Result<(), IoError> {
        self.request(device, Op::Discard, Flags::NONE, offset, len, &[]).await.map(drop)
    }
}

/// The last layout of every device that was published: no shard has a later one.
#[derive(Default)]
pub(crate) struct Layouts(Mutex<BTreeMap<u32, Arc<DeviceLayout>>>);

impl Layouts {
    fn with<R>(&self, work: impl FnOnce(&mut BTreeMap<u32, Arc<DeviceLayout>>) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn of(&self, device: DeviceId) -> Option<Arc<DeviceLayout>> {
        self.with(|layouts| layouts.get(&device.0).cloned())
    }

    pub(crate) fn set(&self, device: DeviceId, layout: Option<&Arc<DeviceLayout>>) {
        // What is dropped is dropped outside of the lock.
        let _before = self.with(|layouts| match layout {
            Some(layout) => layouts.insert(device.0, Arc::clone(layout)),
            None => layouts.remove(&device.0),
        });
    }

    pub(crate) fn clear(&self) {
        self.with(BTreeMap::clear);
    }
}
