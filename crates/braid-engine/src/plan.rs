//! Planning: where the bytes of a request are, through the whole stack in one pass.
//!
//! A pure function over an immutable layout. It returns leaf I/Os, or the precondition that must be established first.
//! It submits nothing and waits for nothing.
//!
//! Each iteration resolves one byte through the stack: its locations, and for how many bytes these continue
//! ([`resolve`]). Ranges that are adjacent on one leaf become one leaf I/O, even if their memory is not adjacent, as
//! long as it is regular, which striping is.

use crate::io::{Buf, Cookie, Flags, LEAF_BYTES_MAX, LeafId, LeafIo, Op, PIECES_MAX};
use crate::layout::{COPIES_MAX, DeviceLayout, FlatNode};
use crate::limits::{STEP_IOS_MAX, STEP_PIECES_MAX};
use crate::mirror::{Loads, MemberRole, MemberSet, Mirrored};

/// A condition that must hold before the request may be planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precondition {
    /// This region must be readable, or, for a change, writable: its home shard prepares it.
    Region(u32),
}

/// The result of a planning step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlanStep {
    /// The I/Os in the plan cover the request up to this device offset.
    Planned(u64),
    /// Nothing may be submitted before this condition holds.
    Needs(Precondition),
    /// Up to this device offset nothing was ever written: a read returns zeros, and zeroing has nothing to do.
    Zeros(u64),
    /// The next bytes cannot be read: they must be computed from the rest of their stripe.
    Recover,
    /// The next bytes cannot be read until they are rewritten.
    Unreadable,
    /// No member is left that could serve the next bytes.
    Lost,
}

/// A location of a byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafLocation {
    pub leaf: LeafId,
    pub offset: u64,
}

/// The range of a device that is planned.
#[derive(Clone, Copy, Debug)]
pub struct PlanSpan {
    /// The operation; not [`Op::Flush`], which has no location.
    pub op: Op,
    /// Modifiers, passed to every leaf I/O.
    pub flags: Flags,
    /// First byte on the device.
    pub start: u64,
    /// First byte after the span.
    pub end: u64,
    /// Memory of the first byte, or [`Buf::NONE`].
    pub buf: Buf,
    /// Members of a redundant array that must not be read.
    pub avoid: MemberSet,
}

/// Where the bytes from a given byte on are, or what must happen before they can be accessed.
enum Resolved {
    /// They are at this many locations, for this many bytes.
    Places(usize, u64),
    /// This many bytes are zeros, because they were never written.
    Zeros(u64),
    /// A condition must hold first.
    Needs(Precondition),
    /// They must be computed from the rest of their stripe.
    Recover,
    /// They cannot be read until they are rewritten.
    Unreadable,
    /// Every copy of them is lost.
    Lost,
}

/// The leaf I/Os of one step: memory that is reused, one per shard.
pub struct Plan {
    ios: Box<[LeafIo; STEP_IOS_MAX]>,
    count: usize,
    places: Box<[LeafLocation; COPIES_MAX]>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan::new()
    }
}

impl Plan {
    /// Creates an empty plan, with all the memory that it will ever need.
    pub fn new() -> Plan {
        let io = LeafIo::simple(LeafId(0), Op::Read, Flags::NONE, 0, 0, Buf::NONE, Cookie(0));
        Plan {
            ios: Box::new([io; STEP_IOS_MAX]),
            count: 0,
            places: Box::new([LeafLocation { leaf: LeafId(0), offset: 0 }; COPIES_MAX]),
        }
    }

    /// Returns the I/Os of the last step; their cookies are still to be filled in.
    #[inline]
    pub fn ios_mut(&mut self) -> &mut [LeafIo] {
        &mut self.ios[..self.count]
    }

    /// Plans as much of the span as one step may hold. Replaces the previous plan.
    #[inline]
    pub(crate) fn step(&mut self, layout: &DeviceLayout, span: &PlanSpan, loads: &mut Loads) -> PlanStep {
        self.count = 0;
        let mut at = span.start;
        let mut looked = 0;
        while at < span.end && looked < STEP_PIECES_MAX {
            let (copies, len) = match resolve(layout, span, at, &mut self.places[..], loads) {
                Resolved::Places(copies, len) => (copies, len),
                // What was planned so far is submitted; the rest is planned when it has completed.
                _ if self.count > 0 => break,
                Resolved::Needs(needs) => return PlanStep::Needs(needs),
                Resolved::Zeros(len) => return PlanStep::Zeros(span.end.min(at + len)),
                Resolved::Recover => return PlanStep::Recover,
                Resolved::Unreadable => return PlanStep::Unreadable,
                Resolved::Lost => return PlanStep::Lost,
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
        PlanStep::Planned(at)
    }

    /// Adds a piece: to the last I/O of its leaf if it continues that one, else as a new I/O.
    #[inline]
    fn append(&mut self, span: &PlanSpan, place: LeafLocation, buf: Buf, len: u64, copies: usize) {
        // In a step the pieces of a leaf come in ascending order, so only its last I/O can be continued. A single copy
        // whose leaf was the last one used is found at once.
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

/// Returns whether the operation moves the request's data.
#[inline]
pub(crate) fn carries_data(op: Op) -> bool {
    matches!(op, Op::Read | Op::Write)
}

/// Extends `io` by a piece that follows it on the leaf, if the memory allows. Returns whether it did.
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
        if gap == io.len {
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

/// Resolves every location of the byte at `at` that the span's operation must go to.
#[inline]
fn resolve(
    layout: &DeviceLayout,
    span: &PlanSpan,
    at: u64,
    places: &mut [LeafLocation],
    loads: &mut Loads,
) -> Resolved {
    match layout.mirror() {
        None => {
            let (count, len) = locate(layout, at, places);
            Resolved::Places(count, len)
        }
        Some(mirror) if mirror.parity.is_some() => in_stripe(mirror, span, at, places),
        Some(mirror) => on_mirror(mirror, span, at, places, loads),
    }
}

/// Resolves the location from which a byte of an array with parity is read.
fn in_stripe(mirror: &Mirrored, span: &PlanSpan, at: u64, places: &mut [LeafLocation]) -> Resolved {
    debug_assert_eq!(span.op, Op::Read, "changes are planned stripe by stripe");
    let regions = &mirror.regions;
    let stripe = mirror.geometry.stripe_of(at).expect("inside the array");
    let region = regions.region_of_stripe(&stripe);
    if !regions.readable.has(region) {
        return match regions.written.has(region) {
            true => Resolved::Needs(Precondition::Region(region)),
            false => {
                let end = stripe.array_start + stripe.data_chunks() as u64 * stripe.chunk_bytes;
                Resolved::Zeros(end - at)
            }
        };
    }
    let mut piece = mirror.geometry.locate(at);
    if let Some(parity) = mirror.parity.as_deref().filter(|parity| !parity.node.lost_stripes.is_empty()) {
        let within = at - stripe.array_start;
        let (cell, column) = ((within / stripe.chunk_bytes) as usize, within % stripe.chunk_bytes);
        let (lost, until) = parity.lost_at(&stripe, cell, column);
        if lost {
            return Resolved::Unreadable;
        }
        piece.len = piece.len.min(until - column);
    }
    let Some(reader) = mirror.reader(usize::from(piece.member), span.avoid) else { return Resolved::Recover };
    let member = &mirror.members[reader];
    places[0] = LeafLocation { leaf: member.leaf, offset: member.start + piece.member_offset };
    Resolved::Places(1, piece.len)
}

/// Returns the single location of a byte of a device without redundancy.
#[inline]
pub(crate) fn locate(layout: &DeviceLayout, mut at: u64, places: &mut [LeafLocation]) -> (usize, u64) {
    let mut node = layout.root;
    let mut len = u64::MAX;
    loop {
        match &layout.nodes[node as usize] {
            FlatNode::Leaf { leaf, start, len: size } => {
                places[0] = LeafLocation { leaf: *leaf, offset: start + at };
                return (1, len.min(size - at));
            }
            FlatNode::Striped { geometry, members } => {
                let piece = geometry.locate(at);
                node = members[piece.member as usize];
                at = piece.member_offset;
                len = len.min(piece.len);
            }
            FlatNode::Mirrored(_) | FlatNode::Volume(_) => unreachable!("it is the root of its device"),
        }
    }
}

/// Resolves the locations of a byte of a redundant array: one to read from, or all to write to.
#[inline]
fn on_mirror(mirror: &Mirrored, span: &PlanSpan, at: u64, places: &mut [LeafLocation], loads: &mut Loads) -> Resolved {
    let regions = &mirror.regions;
    let region = regions.region_of(at);
    let mut len = regions.region_end(at) - at;
    if span.op == Op::Read {
        if !regions.readable.has(region) {
            return match regions.written.has(region) {
                true => Resolved::Needs(Precondition::Region(region)),
                false => Resolved::Zeros(len),
            };
        }
        return to_read(mirror, span.avoid, at, len, places, loads);
    }
    if !regions.writable.has(region) {
        return match span.op == Op::WriteZeroes && !regions.written.has(region) {
            true => Resolved::Zeros(len),
            false => Resolved::Needs(Precondition::Region(region)),
        };
    }
    let mut count = 0;
    mirror.copies(at, &mut |piece| {
        let member = &mirror.members[usize::from(piece.member)];
        len = len.min(piece.len);
        if member.role != MemberRole::Failed {
            places[count] = LeafLocation { leaf: member.leaf, offset: member.start + piece.member_offset };
            count += 1;
        }
    });
    if count == 0 { Resolved::Lost } else { Resolved::Places(count, len) }
}

/// Resolves the copy that is expected to respond first.
#[inline]
fn to_read(
    mirror: &Mirrored,
    avoid: MemberSet,
    at: u64,
    mut len: u64,
    places: &mut [LeafLocation],
    loads: &mut Loads,
) -> Resolved {
    let mut best: Option<(LeafLocation, bool)> = None;
    mirror.copies(at, &mut |piece| {
        let member = &mirror.members[usize::from(piece.member)];
        len = len.min(piece.len);
        if member.role != MemberRole::InSync || avoid.has(usize::from(piece.member)) {
            return;
        }
        let place = LeafLocation { leaf: member.leaf, offset: member.start + piece.member_offset };
        if mirror.steady && best.is_some() {
            return;
        }
        best = match best {
            None => Some((place, member.write_mostly)),
            Some((other, last_resort)) => {
                let better = match (member.write_mostly, last_resort) {
                    (false, true) => true,
                    (true, false) => false,
                    _ => loads.better((place.leaf, place.offset), (other.leaf, other.offset)),
                };
                let (chosen, passed) = if better { (place, other) } else { (other, place) };
                loads.pass_over(passed.leaf);
                Some((chosen, if better { member.write_mostly } else { last_resort }))
            }
        };
    });
    match best {
        Some((place, _)) => {
            places[0] = place;
            Resolved::Places(1, len)
        }
        None => Resolved::Lost,
    }
}
