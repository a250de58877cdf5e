//! The memory into which messages are received. The kernel requires room for the longest WRITE ([`DATA_BYTES_MAX`]) at
//! every read of a message, but most messages fill little of it. So a session receives one message behind another into
//! the same buffer, as long as its rest has room for the longest, and frees the buffer when the last message in it is
//! done.

use braid_engine::Buf;
use braid_ring::Cx;

use crate::wire::DATA_BYTES_MAX;

/// Bytes of a receive buffer.
const RECEIVE_BUFFER_BYTES: usize = 2 * DATA_BYTES_MAX as usize;
/// The data of every message begin at a multiple of this, an alignment that every disk accepts.
const ALIGN_BYTES: u32 = 4096;

struct ReceiveBuffer {
    buf: Buf,
    /// Messages whose data are in it, and the cursor that receives into it.
    users: u32,
}

/// The receive buffers of a shard.
#[derive(Default)]
pub(super) struct ReceiveBuffers(Vec<Option<ReceiveBuffer>>);

impl ReceiveBuffers {
    fn allocate(&mut self, cx: &mut Cx<'_>) -> Option<u16> {
        let buf = cx.alloc(RECEIVE_BUFFER_BYTES)?;
        let at = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if at == self.0.len() {
            self.0.push(None);
        }
        self.0[at] = Some(ReceiveBuffer { buf, users: 1 });
        Some(at as u16)
    }

    fn share(&mut self, index: u16) {
        self.get(index).users += 1;
    }

    fn get(&mut self, index: u16) -> &mut ReceiveBuffer {
        self.0[usize::from(index)].as_mut().expect("a receive buffer with users exists")
    }

    /// Drops one user; the last one frees the buffer.
    pub(super) fn release(&mut self, cx: &mut Cx<'_>, index: u16) {
        let it = self.get(index);
        it.users -= 1;
        if it.users == 0 {
            cx.free(it.buf, RECEIVE_BUFFER_BYTES);
            self.0[usize::from(index)] = None;
        }
    }
}

/// Where a session receives its next message.
#[derive(Default)]
pub(super) struct ReceiveCursor {
    buffer: Option<u16>,
    /// Bytes at the start of the buffer that messages hold.
    used: u32,
}

impl ReceiveCursor {
    /// Returns room for the data of the next message; `None` while the shard has no memory.
    pub(super) fn room(&mut self, cx: &mut Cx<'_>, buffers: &mut ReceiveBuffers) -> Option<Buf> {
        if let Some(buffer) = self.buffer {
            if buffers.get(buffer).users == 1 {
                self.used = 0;
            } else if self.used > RECEIVE_BUFFER_BYTES as u32 - DATA_BYTES_MAX {
                self.release(cx, buffers);
            }
        }
        let buffer = match self.buffer {
            Some(buffer) => buffer,
            None => {
                let allocated = buffers.allocate(cx)?;
                self.used = 0;
                *self.buffer.insert(allocated)
            }
        };
        Some(buffers.get(buffer).buf.add(u64::from(self.used)))
    }

    /// Keeps the `bytes` of data that a message brought into the room, and returns their buffer.
    pub(super) fn keep(&mut self, buffers: &mut ReceiveBuffers, bytes: u32) -> u16 {
        let buffer = self.buffer.expect("the message was received into a buffer");
        buffers.share(buffer);
        self.used += bytes.next_multiple_of(ALIGN_BYTES);
        buffer
    }

    /// Releases the buffer while no message is expected.
    pub(super) fn release(&mut self, cx: &mut Cx<'_>, buffers: &mut ReceiveBuffers) {
        if let Some(buffer) = self.buffer.take() {
            buffers.release(cx, buffer);
        }
    }
}
