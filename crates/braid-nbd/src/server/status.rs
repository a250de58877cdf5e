//! BLOCK_STATUS: the extents of `base:allocation`.

use braid_engine::{Flags, Op};

use super::config::EXTENTS_MAX;
use super::connection::Connection;
use super::host::Host;
use super::input::{Turn, Wait};
use super::request::{Failure, Kind, Slot};
use super::shared::Shared;
use crate::codec::{RequestHeader, encode_extent};
use crate::errno::Errno;
use crate::export::ExportInfo;

/// Longest extent that its field can hold and that is a multiple of every block size.
const EXTENT_BYTES_MAX: u64 = u32::MAX as u64 & !0xffff;

/// Extents on their way into an answer. Equal neighbours become one.
struct Gather<'a> {
    out: &'a mut [u8],
    used: usize,
    /// Most extents.
    limit: usize,
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
                if self.used / 8 >= self.limit {
                    return false;
                }
                self.open = Some((len, state));
            }
        }
        true
    }

    fn close(&mut self) {
        if let Some((len, state)) = self.open.take() {
            self.out[self.used..self.used + 8].copy_from_slice(&encode_extent(len as u32, state));
            self.used += 8;
        }
    }
}

/// Puts extents for a range into `out`; returns how many bytes they take. `one`: no more than one, not
/// longer than asked.
fn describe(info: &ExportInfo, offset: u64, len: u64, one: bool, out: &mut [u8]) -> usize {
    let limit = if one { 1 } else { out.len() / 8 };
    let mut gather = Gather { out, used: 0, limit, open: None };
    match &info.allocation {
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
            let reach = if one { len } else { (info.size_bytes - offset).min(EXTENT_BYTES_MAX) };
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
        header: &RequestHeader,
        one: bool,
    ) -> Turn {
        let Some(buf) = self.alloc(host, shared, (8 * EXTENTS_MAX) as u32) else {
            if shared.giving_up != Some(self.index) {
                return Turn::Wait(Wait::Memory);
            }
            let slot = self.open(Slot::new(header, Kind::Other, Op::Read, Flags::NONE));
            let failure = Failure { errno: Errno::NoMemory, text: "no memory for the answer", offset: None };
            self.requests.slot(slot).failure = Some(failure);
            self.finish_part(host, slot);
            return Turn::Again;
        };
        let info = self.session.as_ref().expect("there are no requests before transmission").export.info();
        let out = host.memory(buf, 8 * EXTENTS_MAX);
        let used = describe(info, header.offset.get(), u64::from(header.len.get()), one, out);
        let slot = self.open(Slot::new(header, Kind::Status, Op::Read, Flags::NONE));
        if used == 0 {
            // A map that says nothing is wrong; the client gets an error, not a broken stream.
            let failure = Failure { errno: Errno::Io, text: "the map of holes failed", offset: None };
            self.requests.slot(slot).failure = Some(failure);
        }
        self.requests.push_segment(slot, buf, 0, (8 * EXTENTS_MAX) as u32);
        self.requests.slot(slot).data = used as u32;
        self.finish_part(host, slot);
        Turn::Again
    }
}
