//! The queues of all devices that one shard serves, as a frontend of the ring.

#![allow(unsafe_code)]

use std::any::Any;
use std::sync::Arc;

use braid_engine::{Buf, Completion, DeviceId, IoError, Request};
use braid_nbd::Export;
use braid_ring::{Cx, Frontend};
use zerocopy::IntoBytes;

use crate::abi::{IoCommand, IoDescriptor};
use crate::device::{Asked, QueueShare};
use crate::queue::{Host, Lane, QUEUE_TAG_LIMIT, Queue};

/// Queues on one shard, at most.
const PLACES_MAX: usize = 1 << 12;
/// Bits of a request in a command's token, below its queue's place.
const TAG_BITS: u32 = 16;
const PLACE_SHIFT: u32 = QUEUE_TAG_LIMIT.trailing_zeros();

/// Between two looks whether the driver has the commands of a new queue.
const RECEIPT_PAUSE_NS: u64 = 500_000;

/// What the control plane tells this frontend on a shard.
pub enum Message {
    /// Whether there is room for so many queues more: asked before anything is begun with a device that it could not come back from.
    Room {
        /// How many.
        queues: usize,
        /// Who is to know.
        asked: Asked,
    },
    /// Serve this queue from now on.
    Queue {
        /// The device's number.
        id: u32,
        /// The queue.
        share: QueueShare,
        /// What its requests are for.
        export: Arc<Export>,
    },
    /// The queues of this device serve this export from now on; none: their requests wait.
    Serve {
        /// The device's number.
        id: u32,
        /// What they are for.
        export: Option<Arc<Export>>,
    },
    /// The device is being removed: what waits fails.
    Fail {
        /// The device's number.
        id: u32,
    },
}

struct Place {
    id: u32,
    queue: Queue<QueueShare>,
}

/// Serves queues of ublk devices on one shard.
#[derive(Default)]
pub struct UblkFrontend {
    places: Vec<Option<Place>>,
    /// Queues whose commands the kernel has yet to look at, with how many calls it has looked at then.
    begun: Vec<(u64, Asked)>,
    stopping: bool,
    is_flusher: bool,
}

impl UblkFrontend {
    /// One without queues.
    pub fn new() -> UblkFrontend {
        UblkFrontend::default()
    }

    fn add(&mut self, cx: &mut Cx<'_>, id: u32, share: QueueShare, export: Arc<Export>) {
        let taken = share.receipt();
        if self.try_add(cx, id, share, export) {
            // Not before the driver has its commands: what is done to the device next is safe only then.
            self.begun.push((cx.commands().0, taken));
        } else {
            taken.answer(false);
        }
    }

    /// Says of new queues that they are served, once that is so.
    fn tell_begun(&mut self, cx: &mut Cx<'_>) {
        if self.begun.is_empty() {
            return;
        }
        let seen = cx.commands().1;
        self.begun.retain(|(pushed, taken)| {
            let is_seen = *pushed <= seen;
            if is_seen {
                taken.answer(true);
            }
            !is_seen
        });
        if !self.begun.is_empty() && !cx.timer_at(cx.now_ns() + RECEIPT_PAUSE_NS, 0) {
            // Without a timer nobody would look again; the kernel is told at the end of this turn.
            self.begun.drain(..).for_each(|(_, taken)| taken.answer(true));
        }
    }

    fn has_room(&self, queues: usize) -> bool {
        let used = self.places.iter().filter(|place| place.is_some()).count();
        !self.stopping && used + queues <= PLACES_MAX
    }

    /// Says whether it has it.
    fn try_add(&mut self, cx: &mut Cx<'_>, id: u32, share: QueueShare, export: Arc<Export>) -> bool {
        let free = self.places.iter().position(Option::is_none).unwrap_or(self.places.len());
        if self.stopping || free >= PLACES_MAX {
            // The device does not start, and whoever waits for that is told so.
            return false;
        }
        if !std::mem::replace(&mut self.is_flusher, true) {
            become_flusher();
        }
        if free == self.places.len() {
            self.places.push(None);
        }
        let mut host = At { cx, place: free };
        // Without commands the same holds.
        self.places[free] = Queue::begin(&mut host, share, export).map(|queue| Place { id, queue });
        self.places[free].is_some()
    }

    fn each(&mut self, cx: &mut Cx<'_>, mut call: impl FnMut(&mut Place, &mut At<'_, '_>)) {
        for (index, place) in self.places.iter_mut().enumerate() {
            if let Some(place) = place {
                call(place, &mut At { cx, place: index });
            }
        }
    }
}

/// `PR_SET_IO_FLUSHER`, Linux 5.6.
const SET_IO_FLUSHER: i32 = 57;

/// Tells the kernel that this thread writes for others: memory that it asks for must not wait for writes to a device that it serves
/// itself. Without the capability (CAP_SYS_RESOURCE) nothing changes.
fn become_flusher() {
    // SAFETY: sets a flag of this thread; no memory is named.
    unsafe { libc::prctl(SET_IO_FLUSHER, 1, 0, 0, 0) };
}

impl Frontend for UblkFrontend {
    fn io_done(&mut self, cx: &mut Cx<'_>, completion: &Completion) {
        let index = (completion.tag >> PLACE_SHIFT) as usize;
        let Some(Some(place)) = self.places.get_mut(index) else {
            debug_assert!(false, "a queue outlives what it gave the engine");
            return;
        };
        let done = Completion { tag: completion.tag & (QUEUE_TAG_LIMIT - 1), ..*completion };
        place.queue.io_done(&mut At { cx, place: index }, &done);
    }

    fn released(&mut self, cx: &mut Cx<'_>, tag: u64) {
        let index = (tag >> PLACE_SHIFT) as usize;
        if let Some(Some(place)) = self.places.get_mut(index) {
            place.queue.released(&mut At { cx, place: index }, tag & (QUEUE_TAG_LIMIT - 1));
        }
    }

    fn command_done(&mut self, cx: &mut Cx<'_>, token: u64, result: i32) {
        let index = (token >> TAG_BITS) as usize;
        if let Some(Some(place)) = self.places.get_mut(index) {
            place.queue.command_done(&mut At { cx, place: index }, token as u16, result);
        }
    }

    fn message(&mut self, cx: &mut Cx<'_>, message: Box<dyn Any + Send>) {
        let Ok(message) = message.downcast::<Message>() else {
            debug_assert!(false, "a message that is none of ours");
            return;
        };
        match *message {
            Message::Room { queues, asked } => asked.answer(self.has_room(queues)),
            Message::Queue { id, share, export } => self.add(cx, id, share, export),
            Message::Serve { id, export } => {
                self.each(cx, |place, at| {
                    if place.id == id {
                        place.queue.serve(at, export.clone());
                    }
                });
            }
            Message::Fail { id } => {
                self.each(cx, |place, at| {
                    if place.id == id {
                        place.queue.fail_all(at);
                    }
                });
            }
        }
    }

    fn end_of_batch(&mut self, cx: &mut Cx<'_>) {
        if self.places.is_empty() {
            return;
        }
        self.tell_begun(cx);
        self.each(cx, |place, at| place.queue.end_of_batch(at));
        for place in &mut self.places {
            if place.as_ref().is_some_and(|place| place.queue.is_over()) {
                // The device's file is closed with the last of its queues: only then can it be removed.
                *place = None;
            }
        }
    }

    fn stop(&mut self, _cx: &mut Cx<'_>) {
        self.stopping = true;
        self.places.iter_mut().flatten().for_each(|place| place.queue.stop());
    }

    fn is_quiet(&mut self, _cx: &mut Cx<'_>) -> bool {
        self.places.iter().flatten().all(|place| place.queue.is_quiet())
    }
}

impl Lane for QueueShare {
    fn descriptor(&self, tag: u16) -> IoDescriptor {
        QueueShare::descriptor(self, tag)
    }

    fn shape(&self) -> (u16, u16, bool) {
        (self.queue, self.depth, self.encoded)
    }
}

/// A shard, as the queue of one place sees it.
struct At<'a, 'b> {
    cx: &'a mut Cx<'b>,
    place: usize,
}

impl Host<QueueShare> for At<'_, '_> {
    fn now_ns(&self) -> u64 {
        self.cx.now_ns()
    }

    fn submit(&mut self, request: &Request) -> Result<(), IoError> {
        self.cx.submit(&Request { tag: request.tag | (self.place as u64) << PLACE_SHIFT, ..*request })
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

    fn command(&mut self, lane: &QueueShare, code: u32, command: IoCommand, tag: u16) -> bool {
        let mut bytes = [0; braid_ring::SHORT_COMMAND_BYTES];
        bytes.copy_from_slice(command.as_bytes());
        // SAFETY: the file is the queue's, which stays until the driver has taken all of its commands back. An address in the
        // command is that of a buffer of this shard's arena, which the queue keeps until the driver has copied (`commands`
        // says so), as long as the request is; or one that the driver does not use, as there is nothing to copy.
        unsafe { self.cx.command(lane.fd(), code, bytes, (self.place as u64) << TAG_BITS | u64::from(tag)) }
    }

    fn commands(&mut self) -> (u64, u64) {
        self.cx.commands()
    }
}

const _: () = assert!(PLACES_MAX as u64 * QUEUE_TAG_LIMIT <= braid_ring::TAG_LIMIT);
