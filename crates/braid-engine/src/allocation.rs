//! What of a device is known to read as zeros: the one answer to this question, for all that asks it.
//!
//! The engine knows where bytes live, what was ever written to a redundant array and what a volume's map holds. What a disk
//! without redundancy holds only the disk can say (a file by its holes), so that the caller brings that answer. NBD's
//! `base:allocation`, FUSE's `SEEK_HOLE`, copies of snapshots and whatever else passes over holes use [`extents`] alone: a second
//! reader of the same state errs as soon as the first one changes.
//!
//! The rule: what a read does not give as zeros is never told to be a hole. Whatever is not known is data: a member that is
//! lost or being filled, an array that has failed, a place that a disk says nothing of, a device that is not served. A question
//! that is asked after a write was acknowledged finds the write.
//!
//! A hole is an answer like that to a read. A device that answers under a lease tells of none without it: another controller
//! may have written there. Nor does a volume on such a device while what says so is not committed.

use crate::io::LeafId;
use crate::layout::{COPIES_MAX, DeviceLayout};
use crate::mirror::{Mirrored, Role};
use crate::plan::{Place, locate};
use crate::planted::{Planted, planted};
use crate::pool::{BLOCK_BYTES, BlockLocation, EXTENT_BLOCKS};
use crate::volume::VolumeNode;

/// A run of a device's bytes that are alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// It reads as zeros, and nothing need be stored there.
    pub hole: bool,
}

/// What a leaf says of one place: whether it is a hole, and up to which byte that holds.
#[derive(Clone, Copy, Debug)]
struct Known {
    leaf: LeafId,
    from: u64,
    to: u64,
    hole: bool,
}

/// Leaves whose last answer is remembered while one question is worked on.
const KNOWN_MAX: usize = 16;

/// Places that are looked at for one question: what comes after them is left to the next one. A millisecond or so.
const PLACES_MAX: u32 = 1 << 16;

/// The same for what the leaves themselves are asked.
const PROBES_MAX: u32 = 1 << 10;

/// Gives the runs of `[offset, offset + len)` in order to `each`, until that returns false.
///
/// `probe(leaf, offset, len)` says of the leaf's bytes from `offset` whether they are a hole, and for
/// how many bytes, at least 1, that holds; more than `len` is welcome, it saves questions later.
/// `lease_ns` is the clock of [`crate::LeafSink::lease_ns`]. What changes meanwhile may be told as it was or as it is. Where the
/// answer takes too much looking, it ends early, after one run at least. Runs are whole blocks of the device: a block of which a
/// part is stored is. What lies beyond the device's end is data.
pub fn extents(
    layout: &DeviceLayout,
    offset: u64,
    len: u64,
    lease_ns: impl Fn() -> u64,
    probe: &mut impl FnMut(LeafId, u64, u64) -> Extent,
    each: &mut impl FnMut(Extent) -> bool,
) {
    let end = offset.saturating_add(len);
    let inside = end.min(layout.size_bytes());
    let mut asked = Asked { layout, probe, known: Vec::with_capacity(KNOWN_MAX), probes: 0 };
    // A hole counts by what holds when all of it was looked at.
    let mut tell = |run: Extent| each(Extent { hole: run.hole && may_tell(layout, &lease_ns), ..run });
    let mut run = Extent { len: 0, hole: false };
    let (mut at, mut places) = (offset, 0);
    while at < inside && places < PLACES_MAX && asked.probes < PROBES_MAX {
        places += 1;
        let here = asked.at(at, inside);
        if !push(&mut run, here, &mut tell) {
            return;
        }
        at += here.len;
    }
    if at >= inside && inside < end && !push(&mut run, Extent { len: end - at.max(inside), hole: false }, &mut tell) {
        return;
    }
    if run.len > 0 {
        tell(run);
    }
}

/// Whether a hole may be told of now that it was seen.
fn may_tell(layout: &DeviceLayout, lease_ns: &impl Fn() -> u64) -> bool {
    let Some(lease) = &layout.lease else { return true };
    // As for a read: what says that there is nothing is not committed, and who serves the pool next would find what was before.
    let uncommitted = layout.volume().is_some_and(|volume| volume.pool.is_hot());
    !uncommitted && lease.holds(lease_ns())
}

/// One question that is being worked on.
struct Asked<'a, P> {
    layout: &'a DeviceLayout,
    probe: &'a mut P,
    /// What leaves have said.
    known: Vec<Known>,
    probes: u32,
}

impl<P: FnMut(LeafId, u64, u64) -> Extent> Asked<'_, P> {
    /// What is known of the bytes from `at` on, below `end`.
    fn at(&mut self, at: u64, end: u64) -> Extent {
        let layout = self.layout;
        let here = match (layout.mirror(), layout.volume()) {
            (Some(mirror), _) => self.in_redundant(mirror, at, end),
            (None, Some(volume)) => in_volume(volume, at),
            (None, None) => {
                let mut place = [Place { leaf: LeafId(0), offset: 0 }];
                let (_, len) = locate(layout, at, &mut place);
                self.on_leaf(place[0], len.min(end - at))
            }
        };
        Extent { len: here.len.min(end - at), ..here }
    }

    /// The same of a redundant array: what was never written is zeros, whatever its members hold. What was written is data; only
    /// of an array that nobody writes, and of which nobody keeps the regions, the members' own holes are looked at.
    fn in_redundant(&mut self, mirror: &Mirrored, at: u64, end: u64) -> Extent {
        if mirror.failed {
            // Reads of it are errors.
            return Extent { len: end - at, hole: false };
        }
        let (is_written, to) = match planted(Planted::HolesByOffset) {
            true => (mirror.regions.written.has(mirror.regions.region_of(at)), mirror.regions.region_end(at)),
            false => mirror.regions.run_at(&mirror.geometry, at),
        };
        let run = Extent { len: to.min(end) - at, hole: !is_written };
        if is_written && self.layout.read_only { self.on_copies(mirror, at, run.len) } else { run }
    }

    /// Bytes that are holes on every member from which they may be read: which of them answers is not known, and where they were not
    /// brought together they may differ.
    fn on_copies(&mut self, mirror: &Mirrored, at: u64, mut len: u64) -> Extent {
        let mut places = [Place { leaf: LeafId(0), offset: 0 }; COPIES_MAX];
        let mut count = 0;
        mirror.copies(at, &mut |piece| {
            len = len.min(piece.len);
            let member = &mirror.members[usize::from(piece.member)];
            if member.role == Role::InSync && count < COPIES_MAX {
                places[count] = Place { leaf: member.leaf, offset: member.start + piece.member_offset };
                count += 1;
            }
        });
        let mut run = Extent { len, hole: count > 0 };
        for place in &places[..count] {
            let said = self.on_leaf(*place, run.len);
            run = Extent { len: said.len, hole: said.hole };
            if !said.hole {
                break;
            }
        }
        run
    }

    /// What a leaf says of a place of its own, for at most so many bytes.
    fn on_leaf(&mut self, Place { leaf, offset }: Place, len: u64) -> Extent {
        let block = u64::from(self.layout.block_bytes());
        let known = self.known.iter().find(|k| k.leaf == leaf && (k.from..k.to).contains(&offset)).copied();
        let known = known.unwrap_or_else(|| {
            self.probes += 1;
            let said = (self.probe)(leaf, offset, len);
            let to = offset.saturating_add(said.len.max(1));
            let whole = to - to % block;
            let fresh = match said.hole && whole > offset {
                true => Known { leaf, from: offset, to: whole, hole: true },
                false => Known { leaf, from: offset, to: to.div_ceil(block).saturating_mul(block), hole: false },
            };
            match self.known.iter().position(|k| k.leaf == leaf) {
                Some(old) => self.known[old] = fresh,
                None if self.known.len() < KNOWN_MAX => self.known.push(fresh),
                None => self.known[(leaf.0 as usize) % KNOWN_MAX] = fresh,
            }
            fresh
        });
        Extent { len: len.min(known.to - offset), hole: known.hole }
    }
}

/// What a volume's map says of the byte at `at`: what it has is stored, whatever the member makes of it; all else reads as zeros.
fn in_volume(volume: &VolumeNode, at: u64) -> Extent {
    let map = &volume.volume.map;
    let block = at / BLOCK_BYTES;
    let skipped = at % BLOCK_BYTES;
    match map.find(&volume.pool.records, block, EXTENT_BLOCKS) {
        BlockLocation::At { blocks, .. } => Extent { len: u64::from(blocks) * BLOCK_BYTES - skipped, hole: false },
        BlockLocation::Nothing { blocks } => {
            let next = block + u64::from(blocks);
            // Whole extents of which nothing is mapped are passed over at once.
            let to = match next.is_multiple_of(u64::from(EXTENT_BLOCKS)) {
                true => match map.next_mapped((next / u64::from(EXTENT_BLOCKS)) as u32) {
                    Some(logical) => u64::from(logical) * u64::from(EXTENT_BLOCKS) * BLOCK_BYTES,
                    None => volume.size_bytes,
                },
                false => next * BLOCK_BYTES,
            };
            Extent { len: to.max(next * BLOCK_BYTES) - at, hole: true }
        }
    }
}

/// Makes the run longer, or gives it to `tell` and begins another. False: that was enough.
fn push(run: &mut Extent, next: Extent, tell: &mut impl FnMut(Extent) -> bool) -> bool {
    if run.len > 0 && run.hole != next.hole {
        if !tell(*run) {
            return false;
        }
        run.len = 0;
    }
    *run = Extent { len: run.len + next.len, hole: next.hole };
    true
}
