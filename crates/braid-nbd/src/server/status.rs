//! BLOCK_STATUS: the extents of `base:allocation`, and of what differs.

use braid_engine::{Flags, Op};

use super::config::{EXTENTS_MAX, HEAD_BYTES};
use super::connection::Connection;
use super::host::Host;
use super::input::{Turn, Wait};
use super::request::{Failure, Kind, Slot};
use super::shared::Shared;
use crate::codec::{
    Asked, BASE_ALLOCATION_ID, CHUNK_BYTES, ChunkStyle, DIFFERENCE_ID, EXTENDED_BYTES, EXTENT_BYTES, EXTENT_EXT_BYTES,
    encode_block_status, encode_extent, encode_extent_ext,
};
use crate::errno::Errno;
use crate::export::{Allocation, Found};

/// Longest extent that its field can hold and that is a multiple of every block size.
const EXTENT_BYTES_MAX: u64 = u32::MAX as u64 & !0xffff;

/// Until it is asked again whether a difference is known, in nanoseconds.
const PENDING_NS: u64 = 2_000_000;

/// What stands before the extents of a context.
const fn chunk_front_bytes(extended: bool) -> usize {
    if extended { EXTENDED_BYTES + 8 } else { CHUNK_BYTES + 4 }
}

const fn extent_bytes(extended: bool) -> usize {
    if extended { EXTENT_EXT_BYTES } else { EXTENT_BYTES }
}

/// Extents on their way into an answer. Equal neighbours become one.
struct Gather<'a> {
    out: &'a mut [u8],
    used: usize,
    /// Most extents.
    limit: usize,
    /// Each has 64 bits for its length and its state.
    extended: bool,
    /// The last one, which may still grow.
    open: Option<(u64, u32)>,
}

impl Gather<'_> {
    /// Takes one more; false: no further one is wanted.
    fn add(&mut self, len: u64, state: u32) -> bool {
        match &mut self.open {
            Some((so_far, same)) if *same == state => *so_far += len,
            _ => {
                self.close();
                if self.used / extent_bytes(self.extended) >= self.limit {
                    return false;
                }
                self.open = Some((len, state));
            }
        }
        true
    }

    fn close(&mut self) {
        if let Some((len, state)) = self.open.take() {
            let end = self.used + extent_bytes(self.extended);
            let out = &mut self.out[self.used..end];
            if self.extended {
                out.copy_from_slice(&encode_extent_ext(len, state));
            } else {
                out.copy_from_slice(&encode_extent(len as u32, state));
            }
            self.used = end;
        }
    }
}

/// Puts extents for a range into `out`, up to so many; returns how many bytes they take. If one is wanted, it is not
/// longer than asked. Of `size_bytes` in all, as the client knows it.
fn describe(
    allocation: Option<&dyn Allocation>,
    size_bytes: u64,
    (offset, len): (u64, u64),
    limit: usize,
    extended: bool,
    out: &mut [u8],
) -> usize {
    let one = limit == 1;
    let mut gather = Gather { out, used: 0, limit, extended, open: None };
    match allocation {
        Some(map) => {
            let mut left = len;
            map.extents(offset, len, &mut |extent, state| {
                let extent = extent.min(left);
                left -= extent;
                extent > 0 && gather.add(extent, state) && left > 0
            });
        }
        // Nothing is known of it, and it costs nothing to say so of all that follows.
        None => {
            let reach = match (one, extended) {
                (true, _) => len,
                (false, true) => size_bytes - offset,
                (false, false) => (size_bytes - offset).min(EXTENT_BYTES_MAX),
            };
            gather.add(reach, 0);
        }
    }
    gather.close();
    gather.used
}

impl<S: Copy> Connection<S> {
    pub(super) fn block_status<H: Host<Socket = S>>(
        &mut self,
        host: &mut H,
        shared: &mut Shared,
        header: &Asked,
        one: bool,
    ) -> Turn {
        let session = self.session.as_ref().expect("there are no requests before transmission");
        let extended = session.terms.extended;
        if session.contexts.differences.iter().any(|difference| matches!(difference.found(), Found::Pending)) {
            // Whoever finds it out tells nobody.
            shared.throttle(host.now_ns() + PENDING_NS, self.index);
            return Turn::Wait(Wait::Limits);
        }
        let room = EXTENTS_MAX * extent_bytes(extended);
        let Some(buf) = self.alloc(host, shared, room as u32, true) else {
            if shared.giving_up != Some(self.index) {
                return Turn::Wait(Wait::Memory);
            }
            let slot = self.open(host, Slot::new(header, Kind::Other, Op::Read, Flags::NONE));
            let failure = Failure { errno: Errno::NoMemory, text: "no memory for the answer", offset: None };
            self.requests.slot(slot).failure = Some(failure);
            self.finish_part(host, slot);
            return Turn::Again;
        };
        let session = self.session.as_ref().expect("there are no requests before transmission");
        let (allocation, size_bytes) = (session.export.allocation(), session.terms.size_bytes);
        let contexts = &session.contexts;
        let count = usize::from(contexts.allocation) + contexts.differences.len();
        // The front of the first stands with the other headers, those of the others between the extents.
        let limit =
            if one { 1 } else { (room / count - if count > 1 { HEAD_BYTES } else { 0 }) / extent_bytes(extended) };
        let out = host.memory(buf, room);
        let style = if extended { ChunkStyle::Extended(header.offset) } else { ChunkStyle::Structured };
        let range = (header.offset, header.len);
        let (mut used, mut first, mut told, mut failed) = (0, (0, 0, true), 0, false);
        let base = contexts.allocation.then_some((BASE_ALLOCATION_ID, Some(allocation)));
        let found = contexts.differences.iter().map(|difference| match difference.found() {
            Found::Map(map) => Some(Some(map)),
            Found::Pending | Found::Failed => None,
        });
        for (id, map) in base.into_iter().chain((DIFFERENCE_ID..).zip(found)) {
            let Some(map) = map else {
                failed = true;
                break;
            };
            told += 1;
            let front = if told == 1 { 0 } else { chunk_front_bytes(extended) };
            let bytes = describe(map, size_bytes, range, limit, extended, &mut out[used + front..]);
            failed |= bytes == 0;
            if told == 1 {
                first = (id, bytes as u32, count == 1);
            } else {
                encode_block_status(&mut out[used..], style, header.cookie, id, bytes as u32, told == count);
            }
            used += front + bytes;
        }
        let slot = self.open(host, Slot::new(header, Kind::Status, Op::Read, Flags::NONE));
        if failed {
            // A map that says nothing is wrong; the client gets an error, not a broken stream.
            let failure = Failure { errno: Errno::Io, text: "the map failed", offset: None };
            self.requests.slot(slot).failure = Some(failure);
        }
        self.requests.push_segment(slot, buf, 0, room as u32);
        self.requests.slot(slot).data = used as u32;
        self.requests.slot(slot).first_context = first;
        self.finish_part(host, slot);
        Turn::Again
    }
}
