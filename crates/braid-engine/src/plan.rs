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
use crate::mirror::{Loads, Mirrored, Role, Roles};
use crate::planted::{Planted, planted};

/// Something that must be true before the request may be planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precondition {
    /// This region must be readable, or, for what changes it, writable: its home shard sees to that.
    Region(u32),
}

/// What one planning step came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The I/Os in the plan cover the request up to this device offset.
    Planned(u64),
    /// Nothing may be submitted before this holds.
    Needs(Precondition),
    /// Up to this device offset nothing was ever written: a read finds zeros, and zeroing has nothing to do.
    Zeros(u64),
    /// What comes next cannot be read where it is: it is to be computed from the rest of its row.
    Recover,
    /// What comes next cannot be read until it is written again.
    Unreadable,
    /// No member is left that could take it.
    Lost,
}

/// One place of a byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub leaf: LeafId,
    pub offset: u64,
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
    /// Members of a redundant array from which not to read.
    pub avoid: Roles,
}

/// What can be said of the bytes from one on.
enum Resolved {
    /// They are at these first so many places, and for so many bytes that holds.
    Places(usize, u64),
    /// For so many bytes they are zeros, as nothing was ever written there.
    Zeros(u64),
    /// Something must be true first.
    Needs(Precondition),
    /// They are to be computed from the rest of their row.
    Recover,
    /// They cannot be read until they are written again.
    Unreadable,
    /// Every copy of them is lost.
    Lost,
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
    pub(crate) fn step(&mut self, layout: &DeviceLayout, span: &Span, loads: &mut Loads) -> Step {
        self.count = 0;
        let mut at = span.start;
        let mut looked = 0;
        while at < span.end && looked < STEP_PIECES_MAX {
            let (copies, len) = match resolve(layout, span, at, &mut self.places[..], loads) {
                Resolved::Places(copies, len) => (copies, len),
                // What was planned so far goes ahead; the rest asks again when it is back.
                _ if self.count > 0 => break,
                Resolved::Needs(needs) => return Step::Needs(needs),
                Resolved::Zeros(len) => return Step::Zeros(span.end.min(at + len)),
                Resolved::Recover => return Step::Recover,
                Resolved::Unreadable => return Step::Unreadable,
                Resolved::Lost => return Step::Lost,
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

/// Every place of the byte at `at` that the span's operation must go to.
#[inline]
fn resolve(layout: &DeviceLayout, span: &Span, at: u64, places: &mut [Place], loads: &mut Loads) -> Resolved {
    match layout.mirror() {
        None => {
            let (count, len) = locate(layout, at, places);
            Resolved::Places(count, len)
        }
        Some(mirror) if mirror.parity.is_some() => in_row(mirror, span, at, places),
        Some(mirror) => on_mirror(mirror, span, at, places, loads),
    }
}

/// The place from which a byte of an array with parity is read.
fn in_row(mirror: &Mirrored, span: &Span, at: u64, places: &mut [Place]) -> Resolved {
    debug_assert_eq!(span.op, Op::Read, "what changes rows is planned by rows");
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
    if let Some(parity) = mirror.parity.as_deref().filter(|parity| !parity.node.lost.is_empty()) {
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
    places[0] = Place { leaf: member.leaf, offset: member.start + piece.member_offset };
    Resolved::Places(1, piece.len)
}

/// The one place of a byte of a device without redundancy.
#[inline]
pub(crate) fn locate(layout: &DeviceLayout, mut at: u64, places: &mut [Place]) -> (usize, u64) {
    let mut node = layout.root;
    let mut len = u64::MAX;
    loop {
        match &layout.nodes[node as usize] {
            FlatNode::Leaf { leaf, start, len: size } => {
                places[0] = Place { leaf: *leaf, offset: start + at };
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

/// The places of a byte of a redundant array: one to read from, or all to write to.
#[inline]
fn on_mirror(mirror: &Mirrored, span: &Span, at: u64, places: &mut [Place], loads: &mut Loads) -> Resolved {
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
    let open = regions.writable.has(region) || planted(Planted::BitAfterData) && regions.readable.has(region);
    if !open {
        return match span.op == Op::WriteZeroes && !regions.written.has(region) {
            true => Resolved::Zeros(len),
            false => Resolved::Needs(Precondition::Region(region)),
        };
    }
    let mut count = 0;
    mirror.copies(at, &mut |piece| {
        let member = &mirror.members[usize::from(piece.member)];
        len = len.min(piece.len);
        let misses = planted(Planted::FillingMissesWrites) && member.role == Role::Filling;
        if member.role != Role::Out && !misses {
            places[count] = Place { leaf: member.leaf, offset: member.start + piece.member_offset };
            count += 1;
        }
    });
    if count == 0 { Resolved::Lost } else { Resolved::Places(count, len) }
}

/// The copy that will answer first.
#[inline]
fn to_read(
    mirror: &Mirrored,
    avoid: Roles,
    at: u64,
    mut len: u64,
    places: &mut [Place],
    loads: &mut Loads,
) -> Resolved {
    let mut best: Option<(Place, bool)> = None;
    mirror.copies(at, &mut |piece| {
        let member = &mirror.members[usize::from(piece.member)];
        len = len.min(piece.len);
        let filling = planted(Planted::FillingRead) && member.role == Role::Filling;
        if member.role != Role::InSync && !filling || avoid.has(usize::from(piece.member)) {
            return;
        }
        let place = Place { leaf: member.leaf, offset: member.start + piece.member_offset };
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
