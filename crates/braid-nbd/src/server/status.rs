//! BLOCK_STATUS: the extents of `base:allocation`.

use braid_engine::{Flags, Op};

use super::config::EXTENTS_MAX;
use super::connection::Connection;
use super::host::Host;
use super::input::{Turn, Wait};
use super::request::{Failure, Kind, Slot};
use super::shared::Shared;
use crate::codec::{Asked, EXTENT_BYTES, EXTENT_EXT_BYTES, encode_extent, encode_extent_ext};
use crate::errno::Errno;
use crate::export::Allocation;

/// Longest extent that its field can hold and that is a multiple of every block size.
const EXTENT_BYTES_MAX: u64 = u32::MAX as u64 & !0xffff;

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

/// Puts extents for a range into `out`; returns how many bytes they take. `one`: no more than one, not
/// longer than asked. Of `size_bytes` in all, as the client knows it.
fn describe(
    allocation: Option<&dyn Allocation>,
    size_bytes: u64,
    (offset, len): (u64, u64),
    one: bool,
    extended: bool,
    out: &mut [u8],
) -> usize {
    let limit = if one { 1 } else { EXTENTS_MAX };
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
        let room = EXTENTS_MAX * extent_bytes(extended);
        let Some(buf) = self.alloc(host, shared, room as u32) else {
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
        let out = host.memory(buf, room);
        let used = describe(allocation.as_deref(), size_bytes, (header.offset, header.len), one, extended, out);
        let slot = self.open(host, Slot::new(header, Kind::Status, Op::Read, Flags::NONE));
        if used == 0 {
            // A map that says nothing is wrong; the client gets an error, not a broken stream.
            let failure = Failure { errno: Errno::Io, text: "the map of holes failed", offset: None };
            self.requests.slot(slot).failure = Some(failure);
        }
        self.requests.push_segment(slot, buf, 0, room as u32);
        self.requests.slot(slot).data = used as u32;
        self.finish_part(host, slot);
        Turn::Again
    }
}
