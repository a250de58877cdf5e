//! The queues that one shard serves, of all devices, as a frontend of the ring.

#![allow(unsafe_code)]

use std::any::Any;
use std::sync::Arc;

use braid_engine::{Buf, Completion, DeviceId, IoError, Request};
use braid_export::Export;
use braid_ring::{Cx, Frontend};
use zerocopy::IntoBytes;

use crate::abi::{IoCommand, IoDescriptor};
use crate::device::{Asked, QueueShare};
use crate::queue::{DriverQueue, Host, QUEUE_TAG_LIMIT, Queue};

/// Most queues on one shard.
const SHARD_QUEUES_MAX: usize = 1 << 12;
/// Bits of a request's number in a command's token, below the index of its queue.
const TAG_BITS: u32 = 16;
const QUEUE_SHIFT: u32 = QUEUE_TAG_LIMIT.trailing_zeros();

/// Pause between two checks whether the driver has the commands of a new queue.
const RECEIPT_PAUSE_NS: u64 = 500_000;

/// A message from the control plane to this frontend on a shard.
pub enum Message {
    /// Check whether the shard has room for more queues. Sent before a step of a device's life cycle that cannot be
    /// undone. Reserves nothing.
    Room {
        /// How many more.
        queues: usize,
        /// The reply.
        asked: Asked,
    },
    /// Serve this queue from now on.
    Queue {
        /// The device's number.
        id: u32,
        /// The queue.
        share: QueueShare,
        /// The export that it serves.
        export: Arc<Export>,
    },
    /// The queues of this device serve this export from now on; `None`: their requests wait.
    Serve {
        /// The device's number.
        id: u32,
        /// The export.
        export: Option<Arc<Export>>,
    },
    /// The device is being removed: requests that wait fail.
    Fail {
        /// The device's number.
        id: u32,
    },
}

struct QueueEntry {
    id: u32,
    queue: Queue<QueueShare>,
}

/// Serves queues of ublk devices on one shard.
#[derive(Default)]
pub struct UblkFrontend {
    queues: Vec<Option<QueueEntry>>,
    /// New queues whose commands the driver may not have yet: the number of the shard's commands ([`Cx::commands`])
    /// that the kernel must have taken, and the reply that is then due.
    begun: Vec<(u64, Asked)>,
    stopping: bool,
    is_flusher: bool,
}

impl UblkFrontend {
    /// Creates a frontend without queues.
    pub fn new() -> UblkFrontend {
        UblkFrontend::default()
    }

    fn add(&mut self, cx: &mut Cx<'_>, id: u32, share: QueueShare, export: Arc<Export>) {
        let receipt = share.receipt();
        if self.try_add(cx, id, share, export) {
            // Accepted only once the driver has its commands: the next step of the device's life is safe only then.
            self.begun.push((cx.commands().0, receipt));
        } else {
            receipt.reply(false);
        }
    }

    /// Replies for the new queues whose commands the driver has.
    fn report_begun(&mut self, cx: &mut Cx<'_>) {
        if self.begun.is_empty() {
            return;
        }
        let seen = cx.commands().1;
        self.begun.retain(|(pushed, receipt)| {
            let is_seen = *pushed <= seen;
            if is_seen {
                receipt.reply(true);
            }
            !is_seen
        });
        if !self.begun.is_empty() && !cx.timer_at(cx.now_ns() + RECEIPT_PAUSE_NS, 0) {
            // Without a timer there would be no further check; the kernel gets the commands at the end of this turn.
            self.begun.drain(..).for_each(|(_, receipt)| receipt.reply(true));
        }
    }

    fn has_room(&self, queues: usize) -> bool {
        let used = self.queues.iter().filter(|entry| entry.is_some()).count();
        !self.stopping && used + queues <= SHARD_QUEUES_MAX
    }

    /// Adds a queue; false: it was refused.
    fn try_add(&mut self, cx: &mut Cx<'_>, id: u32, share: QueueShare, export: Arc<Export>) -> bool {
        let free = self.queues.iter().position(Option::is_none).unwrap_or(self.queues.len());
        if self.stopping || free >= SHARD_QUEUES_MAX {
            return false;
        }
        if !std::mem::replace(&mut self.is_flusher, true) {
            become_flusher();
        }
        if free == self.queues.len() {
            self.queues.push(None);
        }
        let mut host = QueueHost { cx, index: free };
        // Refused as well if the shard's driver has no commands.
        self.queues[free] = Queue::begin(&mut host, share, export).map(|queue| QueueEntry { id, queue });
        self.queues[free].is_some()
    }

    fn each(&mut self, cx: &mut Cx<'_>, mut call: impl FnMut(&mut QueueEntry, &mut QueueHost<'_, '_>)) {
        for (index, entry) in self.queues.iter_mut().enumerate() {
            if let Some(entry) = entry {
                call(entry, &mut QueueHost { cx, index });
            }
        }
    }
}

/// `PR_SET_IO_FLUSHER`, Linux 5.6.
const SET_IO_FLUSHER: i32 = 57;

/// Marks this thread as an I/O flusher: its memory allocations must not wait for writes to a device that it serves itself. Without
/// CAP_SYS_RESOURCE nothing changes.
fn become_flusher() {
    // SAFETY: sets a flag of this thread; no memory is named.
    unsafe { libc::prctl(SET_IO_FLUSHER, 1, 0, 0, 0) };
}

impl Frontend for UblkFrontend {
    fn io_done(&mut self, cx: &mut Cx<'_>, completion: &Completion) {
        let index = (completion.tag >> QUEUE_SHIFT) as usize;
        let Some(Some(entry)) = self.queues.get_mut(index) else {
            debug_assert!(false, "a queue outlives its requests in the engine");
            return;
        };
        let done = Completion { tag: completion.tag & (QUEUE_TAG_LIMIT - 1), ..*completion };
        entry.queue.io_done(&mut QueueHost { cx, index }, &done);
    }

    fn released(&mut self, cx: &mut Cx<'_>, tag: u64) {
        let index = (tag >> QUEUE_SHIFT) as usize;
        if let Some(Some(entry)) = self.queues.get_mut(index) {
            entry.queue.released(&mut QueueHost { cx, index }, tag & (QUEUE_TAG_LIMIT - 1));
        }
    }

    fn command_done(&mut self, cx: &mut Cx<'_>, token: u64, result: i32) {
        let index = (token >> TAG_BITS) as usize;
        if let Some(Some(entry)) = self.queues.get_mut(index) {
            entry.queue.command_done(&mut QueueHost { cx, index }, token as u16, result);
        }
    }

    fn message(&mut self, cx: &mut Cx<'_>, message: Box<dyn Any + Send>) {
        let Ok(message) = message.downcast::<Message>() else {
            debug_assert!(false, "a message of an unknown type");
            return;
        };
        match *message {
            Message::Room { queues, asked } => asked.reply(self.has_room(queues)),
            Message::Queue { id, share, export } => self.add(cx, id, share, export),
            Message::Serve { id, export } => {
                self.each(cx, |entry, host| {
                    if entry.id == id {
                        entry.queue.serve(host, export.clone());
                    }
                });
            }
            Message::Fail { id } => {
                self.each(cx, |entry, host| {
                    if entry.id == id {
                        entry.queue.fail_all(host);
                    }
                });
            }
        }
    }

    fn end_of_batch(&mut self, cx: &mut Cx<'_>) {
        if self.queues.is_empty() {
            return;
        }
        self.report_begun(cx);
        self.each(cx, |entry, host| entry.queue.end_of_batch(host));
        for entry in &mut self.queues {
            if entry.as_ref().is_some_and(|entry| entry.queue.is_over()) {
                // The device's file is closed with the last of its queues: only then can the device be removed.
                *entry = None;
            }
        }
    }

    fn stop(&mut self, _cx: &mut Cx<'_>) {
        self.stopping = true;
        self.queues.iter_mut().flatten().for_each(|entry| entry.queue.stop());
    }

    fn is_quiet(&mut self, _cx: &mut Cx<'_>) -> bool {
        self.queues.iter().flatten().all(|entry| entry.queue.is_quiet())
    }
}

impl DriverQueue for QueueShare {
    fn descriptor(&self, tag: u16) -> IoDescriptor {
        QueueShare::descriptor(self, tag)
    }

    fn shape(&self) -> (u16, u16, bool) {
        (self.queue, self.depth, self.encoded)
    }
}

/// The shard as the host of the queue with this index.
struct QueueHost<'a, 'b> {
    cx: &'a mut Cx<'b>,
    index: usize,
}

impl Host<QueueShare> for QueueHost<'_, '_> {
    fn now_ns(&self) -> u64 {
        self.cx.now_ns()
    }

    fn submit(&mut self, request: &Request) -> Result<(), IoError> {
        self.cx.submit(&Request { tag: request.tag | (self.index as u64) << QUEUE_SHIFT, ..*request })
    }

    fn alloc(&mut self, len: usize) -> Option<Buf> {
        self.cx.alloc(len)
    }

    fn free(&mut self, buf: Buf, len: usize) {
        self.cx.free(buf, len);
    }

    fn is_redundant(&self, device: DeviceId) -> bool {
        self.cx.is_redundant(device)
    }

    fn timer_at(&mut self, at_ns: u64) -> bool {
        self.cx.timer_at(at_ns, 0)
    }

    fn command(&mut self, queue: &QueueShare, code: u32, command: IoCommand, tag: u16) -> bool {
        let mut bytes = [0; braid_ring::SHORT_COMMAND_BYTES];
        bytes.copy_from_slice(command.as_bytes());
        // SAFETY: the queue holds the file, and stays until the driver has completed all of its commands. An address in the
        // command is that of a buffer of this shard's arena, at least as long as the request, which the queue keeps until the
        // driver has copied (by `commands`); or one that the driver does not use, as there is nothing to copy.
        unsafe { self.cx.command(queue.fd(), code, bytes, (self.index as u64) << TAG_BITS | u64::from(tag)) }
    }

    fn commands(&mut self) -> (u64, u64) {
        self.cx.commands()
    }
}

const _: () = assert!(SHARD_QUEUES_MAX as u64 * QUEUE_TAG_LIMIT <= braid_ring::TAG_LIMIT);
