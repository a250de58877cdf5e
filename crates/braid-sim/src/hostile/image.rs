//! Disks in memory that execute an engine's I/O at once.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use braid_engine::{DeviceId, DeviceIo, ErrorKind, IoError, LeafError, LeafId, MetaIo};

/// Disks that keep only their first bytes: reads beyond return zeros, writes beyond are lost.
pub struct Disks {
    pub kept: RefCell<Vec<Vec<u8>>>,
    size_bytes: u64,
    /// Number of I/Os left. A procedure that needs more is taken to loop for ever, which is a failure.
    left: Cell<u64>,
}

impl Disks {
    pub fn new(kept: Vec<Vec<u8>>, size_bytes: u64) -> Disks {
        Disks { kept: RefCell::new(kept), size_bytes, left: Cell::new(200_000) }
    }

    /// Checks an I/O: beyond the end of the disk it is an error, as in a kernel.
    fn check(&self, device: DeviceId, offset: u64, len: u64) -> Result<usize, IoError> {
        let left = self.left.get();
        assert!(left > 0, "it goes on for ever");
        self.left.set(left - 1);
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.size_bytes);
        let device = device.0 as usize;
        if inside && device < self.kept.borrow().len() { Ok(device) } else { Err(IoError::of(ErrorKind::Io)) }
    }

    pub fn read_now(&self, device: DeviceId, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
        let device = self.check(device, offset, len as u64)?;
        let kept = &self.kept.borrow()[device];
        let from = (offset as usize).min(kept.len());
        let mut bytes = kept[from..kept.len().min(from + len)].to_vec();
        bytes.resize(len, 0);
        Ok(bytes)
    }

    pub fn write_now(&self, device: DeviceId, offset: u64, data: &[u8]) -> Result<(), IoError> {
        let device = self.check(device, offset, data.len() as u64)?;
        let kept = &mut self.kept.borrow_mut()[device];
        let from = (offset as usize).min(kept.len());
        let to = kept.len().min(from + data.len());
        kept[from..to].copy_from_slice(&data[..to - from]);
        Ok(())
    }
}

impl DeviceIo for Disks {
    fn size_bytes(&self, _: DeviceId) -> u64 {
        self.size_bytes
    }

    fn block_bytes(&self, _: DeviceId) -> u32 {
        4096
    }

    async fn read(&self, device: DeviceId, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
        self.read_now(device, offset, len)
    }

    async fn write(&self, device: DeviceId, offset: u64, data: Vec<u8>, _fua: bool) -> Result<(), IoError> {
        self.write_now(device, offset, &data)
    }

    async fn flush(&self, device: DeviceId) -> Result<(), IoError> {
        self.check(device, 0, 0).map(drop)
    }

    async fn discard(&self, device: DeviceId, offset: u64, len: u64) -> Result<(), IoError> {
        self.check(device, offset, len).map(drop)
    }
}

/// Runs a future that waits for nothing but these disks.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("everything answers at once"),
    }
}

pub fn crc32c(pieces: &[&[u8]]) -> u32 {
    pieces.iter().fold(0, |crc, piece| braid_format::journal::payload_crc(crc, piece))
}

impl MetaIo for Disks {
    fn size_bytes(&self, _: LeafId) -> u64 {
        self.size_bytes
    }

    async fn read(&self, leaf: LeafId, offset: u64, len: usize) -> Result<Vec<u8>, LeafError> {
        self.read_now(DeviceId(leaf.0), offset, len).map_err(|error| LeafError::of(error.kind))
    }

    async fn write(&self, leaf: LeafId, offset: u64, data: Vec<u8>, _fua: bool) -> Result<(), LeafError> {
        self.write_now(DeviceId(leaf.0), offset, &data).map_err(|error| LeafError::of(error.kind))
    }

    async fn flush(&self, leaf: LeafId) -> Result<(), LeafError> {
        self.check(DeviceId(leaf.0), 0, 0).map(drop).map_err(|error| LeafError::of(error.kind))
    }
}
