//! Planning: where the bytes of a request live, through the whole stack in one pass.
//!
//! A pure function over an immutable layout. It yields leaf I/Os, or the precondition that must be
//! established first. It submits nothing and waits for nothing.
//!
//! Each step of the pass asks one question of the stack: *where does this byte live, and for how
//! many bytes does that hold?* ([`resolve`]). Places adjacent on one leaf become one leaf I/O, also
//! when their memory is not adjacent, as long as it is regular, which striping is.

use crate::io::{Buf, Cookie, Flags, LEAF_BYTES_MAX, LeafId, LeafIo, Op, PIECES_MAX};
use crate::layout::{COPIES_MAX, DeviceLayout, FlatNode};
use crate::limits::{STEP_IOS_MAX, STEP_PIECES_MAX};
use crate::planted::{Planted, planted};

/// Something that must be true before the request may be planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precondition {
    /// The bit of this region must be durable on every copy.
    RegionTouched {
        /// The node of the layout that asks.
        node: u32,
        /// The region.
        region: u32,
    },
}

/// What one planning step came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The I/Os in the plan cover the request up to this device offset.
    Planned(u64),
    /// Nothing may be submitted before this holds.
    Needs(Precondition),
}

/// One place of a byte.
#[derive(Clone, Copy, Debug)]
struct Place {
    leaf: LeafId,
    offset: u64,
}

/// What is being planned: a span of one device.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The operation; not [`Op::Flush`], which has no place.
    pub op: Op,
    /// Modifiers, handed on to every leaf I/O.
    pub flags: Flags,
    /// First byte on the device.
    pub start: u64,
    /// First byte after the span.
    pub end: u64,
    /// Memory of the first byte, or [`Buf::NONE`].
    pub buf: Buf,
}

/// Leaf I/Os of one step: memory that is used again and again, one per shard.
pub struct Plan {
    ios: Box<[LeafIo; STEP_IOS_MAX]>,
    count: usize,
    places: Box<[Place; COPIES_MAX]>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan::new()
    }
}

impl Plan {
    /// An empty plan, with all the memory that it will ever need.
    pub fn new() -> Plan {
        let io = LeafIo::simple(LeafId(0), Op::Read, Flags::NONE, 0, 0, Buf::NONE, Cookie(0));
        Plan {
            ios: Box::new([io; STEP_IOS_MAX]),
            count: 0,
            places: Box::new([Place { leaf: LeafId(0), offset: 0 }; COPIES_MAX]),
        }
    }

    /// The I/Os of the last step; their cookies are still to be filled in.
    #[inline]
    pub fn ios_mut(&mut self) -> &mut [LeafIo] {
        &mut self.ios[..self.count]
    }

    /// Plans as much of the span as one step may hold. The plan replaces the one before.
    #[inline]
    pub fn step(&mut self, layout: &DeviceLayout, span: &Span) -> Step {
        self.count = 0;
        let mut at = span.start;
        let mut looked = 0;
        while at < span.end && looked < STEP_PIECES_MAX {
            let (copies, len) = match resolve(layout, layout.root, span.op, at, &mut self.places[..]) {
                Ok(found) => found,
                // What was planned so far goes ahead; the rest asks again when it is back.
                Err(_) if self.count > 0 => break,
                Err(needs) => return Step::Needs(needs),
            };
            let mut len = len.min(span.end - at);
            if carries_data(span.op) {
                len = len.min(LEAF_BYTES_MAX);
            }
            if self.count + copies > STEP_IOS_MAX {
                break;
            }
            let buf = span.buf.add(at - span.start);
            for copy in 0..copies {
                let place = self.places[copy];
                self.append(span, place, buf, len, copies);
            }
            at += len;
            looked += 1;
        }
        Step::Planned(at)
    }

    /// Adds a piece: to the last I/O of its leaf where it continues it, else as one of its own.
    #[inline]
    fn append(&mut self, span: &Span, place: Place, buf: Buf, len: u64, copies: usize) {
        // In a step the pieces of a leaf come in rising order, so only its last I/O can be continued.
        // A single copy whose leaf was the last one touched is found at once.
        if self.count > 0 {
            let last = self.ios[..self.count].iter_mut().rev().find(|io| io.leaf == place.leaf);
            if let Some(io) = last
                && extend(io, place.offset, buf, len)
            {
                return;
            }
        }
        debug_assert!(copies <= COPIES_MAX);
        let buf = if carries_data(span.op) { buf } else { Buf::NONE };
        self.ios[self.count] = LeafIo::simple(place.leaf, span.op, span.flags, place.offset, len, buf, Cookie(0));
        self.count += 1;
    }
}

/// Whether the operation moves the request's data.
#[inline]
pub(crate) fn carries_data(op: Op) -> bool {
    matches!(op, Op::Read | Op::Write)
}

/// Makes `io` longer by a piece that follows it on the leaf, if the memory allows.
#[inline]
fn extend(io: &mut LeafIo, offset: u64, buf: Buf, len: u64) -> bool {
    if io.offset + io.len != offset {
        return false;
    }
    if !carries_data(io.op) {
        io.len += len;
        return true;
    }
    if io.len + len > LEAF_BYTES_MAX || buf.region != io.buf.region {
        return false;
    }
    let gap = buf.addr - io.buf.addr;
    if io.piece_len == 0 {
        if gap == io.len || planted(Planted::GapForgotten) {
            io.first_len += len as u32;
        } else {
            io.first_gap = gap as u32;
            io.piece_len = len as u32;
        }
        io.len += len;
        return true;
    }
    let further = io.len - u64::from(io.first_len);
    let piece_len = u64::from(io.piece_len);
    let pieces = further.div_ceil(piece_len);
    if !further.is_multiple_of(piece_len) || len > piece_len || pieces + 1 >= u64::from(PIECES_MAX) {
        return false;
    }
    if pieces == 1 {
        io.stride = (gap - u64::from(io.first_gap)) as u32;
    } else if gap != u64::from(io.first_gap) + pieces * u64::from(io.stride) {
        return false;
    }
    io.len += len;
    true
}

/// The place from which the byte at `at` is read, and for how many bytes from there on it holds.
pub(crate) fn place_read(layout: &DeviceLayout, at: u64) -> Option<(LeafId, u64, u64)> {
    // A read has one place: no room for the copies of a write is needed, nor the time to clear it.
    let mut place = [Place { leaf: LeafId(0), offset: 0 }];
    let (_, len) = resolve(layout, layout.root, Op::Read, at, &mut place).ok()?;
    Some((place[0].leaf, place[0].offset, len))
}

/// Every place of the byte at `at` that `op` must go to, and for how many bytes from there on that holds.
///
/// Reads go to one place; which copy of a mirror is read is the first, until reads are balanced.
#[inline]
fn resolve(
    layout: &DeviceLayout,
    mut node: u32,
    op: Op,
    mut at: u64,
    places: &mut [Place],
) -> Result<(usize, u64), Precondition> {
    let mut len = u64::MAX;
    loop {
        match &layout.nodes[node as usize] {
            FlatNode::Leaf { leaf, start, len: size } => {
                places[0] = Place { leaf: *leaf, offset: start + at };
                return Ok((1, len.min(size - at)));
            }
            FlatNode::Striped { geometry, members } => {
                let piece = geometry.locate(at);
                node = members[piece.member as usize];
                at = piece.member_offset;
                len = len.min(piece.len);
            }
            FlatNode::Touched { child, map } => {
                if !matches!(op, Op::Read) {
                    let region = map.region_of(at);
                    if !map.is_durable(region) && !planted(Planted::BitAfterData) {
                        return Err(Precondition::RegionTouched { node, region });
                    }
                    len = len.min(map.region_end(at) - at);
                }
                node = *child;
            }
            FlatNode::Mirror { members } => {
                if matches!(op, Op::Read) {
                    node = members[0];
                    continue;
                }
                return fan_out(layout, members, op, at, len, places);
            }
        }
    }
}

/// The places of a byte on every copy of a mirror.
fn fan_out(
    layout: &DeviceLayout,
    members: &[u32],
    op: Op,
    at: u64,
    mut len: u64,
    places: &mut [Place],
) -> Result<(usize, u64), Precondition> {
    let mut count = 0;
    for member in members {
        let (copies, holds) = resolve(layout, *member, op, at, &mut places[count..])?;
        count += copies;
        len = len.min(holds);
    }
    Ok((count, len))
}
