//! Access of the control plane to devices, from any thread and any executor.

use std::sync::atomic::Ordering;

use braid_engine::{Buf, DeviceId, DeviceIo, ErrorKind, Flags, IoError, LeafError, Op, REQUEST_BYTES_MAX, Request};

use crate::link::Control;
use crate::map::Map;
use crate::meta::{bytes, memory_with};
use crate::pending::pending;
use crate::requests::{DeviceRequest, RequestOutcome};
use crate::ring::RingHandle;

/// [`DeviceIo`] over a ring. Requests go to the shards in turn, and through the engine like all others.
///
/// Each request has memory of its own for its data until it ends, so a caller must bound the number of requests. From 2
/// MiB on the memory is huge pages, if available, at a third of the cost per byte. When the ring has stopped, all
/// requests end with `NoDevice`.
#[derive(Clone)]
pub struct RingDevices {
    handle: RingHandle,
}

impl RingHandle {
    /// Returns the interface to devices.
    pub fn devices(&self) -> RingDevices {
        RingDevices { handle: self.clone() }
    }
}

impl RingDevices {
    /// Makes one request. `offset` and `len` are bytes, and multiples of the device's logical block. A read returns
    /// `len` bytes; a write writes `data`, whose length is `len`; all other operations return no bytes. A read that a
    /// disk does not serve in time is retried once if another disk may have the data.
    ///
    /// # Errors
    /// The device's error; `NoDevice` when the shards have stopped, `Invalid` when the request is too long, `Busy` with
    /// the operating system's error number when no memory is available.
    pub async fn request(
        &self,
        device: DeviceId,
        op: Op,
        flags: Flags,
        offset: u64,
        len: u64,
        data: &[u8],
    ) -> Result<Vec<u8>, IoError> {
        let carries_data = matches!(op, Op::Read | Op::Write);
        if carries_data && len > REQUEST_BYTES_MAX || op == Op::Write && len != data.len() as u64 {
            return Err(IoError::of(ErrorKind::Invalid));
        }
        let request = Request { device, op, flags, offset, len, buf: Buf::NONE, tag: 0 };
        let inner = &self.handle.inner;
        let shard = inner.next_shard.fetch_add(1, Ordering::Relaxed) % inner.links.len();
        let mut ended = self.send_request(shard, &request, data).await?;
        if ended.retry {
            // On the same shard, which knows the disk that has not responded.
            ended = self.send_request(shard, &request, data).await?;
        }
        ended.result?;
        match ended.memory {
            Some(memory) if op == Op::Read => Ok(bytes(&memory, len as usize)),
            // The read succeeded, but the kernel may still write to the memory.
            None if op == Op::Read && len > 0 => Err(IoError::of(ErrorKind::TimedOut)),
            _ => Ok(Vec::new()),
        }
    }

    async fn send_request(&self, shard: usize, request: &Request, data: &[u8]) -> Result<RequestOutcome, IoError> {
        let space = if matches!(request.op, Op::Read | Op::Write) { request.len as usize } else { 0 };
        let no_memory = |e: LeafError| IoError { errno: e.errno, ..IoError::of(e.kind) };
        let memory = if space > 0 { Some(memory_with(data, space).map_err(no_memory)?) } else { None };
        let buf = Buf { addr: memory.as_ref().map_or(0, Map::addr), region: Buf::UNREGISTERED };
        let (reply, ended) = pending();
        let request = DeviceRequest { memory, request: Request { buf, ..*request }, reply: Some(reply) };
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
        // Checked before memory is allocated for a range outside the device.
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
