//! BLOCK_STATUS: the extents of `base:allocation` and of the differences.

use braid_engine::{Flags, Op};
use braid_export::{Allocation, DifferenceState};

use super::config::{EXTENTS_MAX, HEAD_BYTES};
use super::connection::Connection;
use super::host::Host;
use super::input::PumpStep;
use super::request::{Failure, RequestKind, Slot};
use super::shared::Shared;
use super::state::WaitReason;
use crate::codec::{
    BASE_ALLOCATION_ID, CHUNK_BYTES, ChunkStyle, DIFFERENCE_ID, DecodedRequest, EXTENDED_BYTES, EXTENT_BYTES,
    EXTENT_EXT_BYTES, encode_block_status, encode_extent, encode_extent_ext,
};
use crate::errno::Errno;

/// Maximum length of an extent with compact headers: a multiple of every block size.
const EXTENT_BYTES_MAX: u64 = u32::MAX as u64 & !0xffff;

/// Interval between checks whether a difference has been computed, in nanoseconds (2 ms).
const PENDING_NS: u64 = 2_000_000;

/// Returns the bytes before a context's extents.
const fn chunk_front_bytes(extended: bool) -> usize {
    if extended { EXTENDED_BYTES + 8 } else { CHUNK_BYTES + 4 }
}

const fn extent_bytes(extended: bool) -> usize {
    if extended { EXTENT_EXT_BYTES } else { EXTENT_BYTES }
}

/// Encodes extents into a reply. Merges equal neighbours.
struct ExtentEncoder<'a> {
    out: &'a mut [u8],
    used: usize,
    /// Maximum number of extents.
    limit: usize,
    /// Lengths and states have 64 bits each.
    extended: bool,
    /// The last extent, which may still grow.
    open: Option<(u64, u32)>,
}

impl ExtentEncoder<'_> {
    /// Adds an extent. Returns false if no further extent is wanted.
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

/// Encodes up to `limit` extents of a range into `out` and returns their bytes. With a limit of one, the extent is not
/// longer than the range. `size_bytes` is the export's size as negotiated.
fn describe(
    allocation: Option<&dyn Allocation>,
    size_bytes: u64,
    (offset, len): (u64, u64),
    limit: usize,
    extended: bool,
    out: &mut [u8],
) -> usize {
    let one = limit == 1;
    let mut encoder = ExtentEncoder { out, used: 0, limit, extended, open: None };
    match allocation {
        Some(map) => {
            let mut left = len;
            map.extents(offset, len, &mut |extent, state| {
                let extent = extent.min(left);
                left -= extent;
                extent > 0 && encoder.add(extent, state) && left > 0
            });
        }
        // The allocation is unknown: one extent covers as much of the rest as its length can express.
        None => {
            let reach = match (one, extended) {
                (true, _) => len,
                (false, true) => size_bytes - offset,
                (false, false) => (size_bytes - offset).min(EXTENT_BYTES_MAX),
            };
            encoder.add(reach, 0);
        }
    }
    encoder.close();
    encoder.used
}

impl<S: Copy> Connection<S> {
    pub(super) fn block_status<H: Host<Socket = S>>(
        &mut self,
        host: &mut H,
        shared: &mut Shared,
        header: &DecodedRequest,
        one: bool,
    ) -> PumpStep {
        let session = self.session.as_ref().expect("there are no requests before transmission");
        let extended = session.terms.extended;
        if session.contexts.differences.iter().any(|difference| matches!(difference.state(), DifferenceState::Pending))
        {
            // The computation sends no notification when it finishes: check again later.
            shared.throttle(host.now_ns() + PENDING_NS, self.index);
            return PumpStep::Wait(WaitReason::Limits);
        }
        let room = EXTENTS_MAX * extent_bytes(extended);
        let Some(buf) = self.alloc(host, shared, room as u32, true) else {
            if shared.expired_waiter != Some(self.index) {
                return PumpStep::Wait(WaitReason::Memory);
            }
            let slot = self.open(host, Slot::new(header, RequestKind::Other, Op::Read, Flags::NONE));
            let failure = Failure { errno: Errno::NoMemory, text: "no memory for the answer", offset: None };
            self.requests.slot(slot).failure = Some(failure);
            self.finish_part(host, slot);
            return PumpStep::Continue;
        };
        let session = self.session.as_ref().expect("there are no requests before transmission");
        let (allocation, size_bytes) = (session.export.allocation(), session.terms.size_bytes);
        let contexts = &session.contexts;
        let count = usize::from(contexts.allocation) + contexts.differences.len();
        // The first chunk's header is in the send's header buffer. Each further chunk's header is in `buf`, before its
        // extents.
        let limit =
            if one { 1 } else { (room / count - if count > 1 { HEAD_BYTES } else { 0 }) / extent_bytes(extended) };
        let out = host.memory(buf, room);
        let style = if extended { ChunkStyle::Extended(header.offset) } else { ChunkStyle::Structured };
        let range = (header.offset, header.len);
        let (mut used, mut first, mut described, mut failed) = (0, (0, 0, true), 0, false);
        let base = contexts.allocation.then_some((BASE_ALLOCATION_ID, Some(allocation)));
        let found = contexts.differences.iter().map(|difference| match difference.state() {
            DifferenceState::Known(map) => Some(Some(map)),
            DifferenceState::Pending | DifferenceState::Failed => None,
        });
        for (id, map) in base.into_iter().chain((DIFFERENCE_ID..).zip(found)) {
            let Some(map) = map else {
                failed = true;
                break;
            };
            described += 1;
            let front = if described == 1 { 0 } else { chunk_front_bytes(extended) };
            let bytes = describe(map, size_bytes, range, limit, extended, &mut out[used + front..]);
            failed |= bytes == 0;
            if described == 1 {
                first = (id, bytes as u32, count == 1);
            } else {
                encode_block_status(&mut out[used..], style, header.cookie, id, bytes as u32, described == count);
            }
            used += front + bytes;
        }
        let slot = self.open(host, Slot::new(header, RequestKind::Status, Op::Read, Flags::NONE));
        if failed {
            // A map without extents is a bug: the client gets an error instead of a malformed reply.
            let failure = Failure { errno: Errno::Io, text: "the map failed", offset: None };
            self.requests.slot(slot).failure = Some(failure);
        }
        self.requests.push_segment(slot, buf, 0, room as u32);
        self.requests.slot(slot).data = used as u32;
        self.requests.slot(slot).first_context = first;
        self.finish_part(host, slot);
        PumpStep::Continue
    }
}
