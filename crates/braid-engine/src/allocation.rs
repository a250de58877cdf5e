//! Which ranges of a device are known to read as zeros: the single answer to this question.
//!
//! The engine knows where bytes are stored, which regions of a redundant array were ever written, and what a volume's
//! map holds. What a disk without redundancy holds only the disk knows (a file knows its holes): the caller passes a
//! probe of the disks. NBD's `base:allocation`, FUSE's `SEEK_HOLE`, copies of snapshots and every other component that
//! skips holes use [`extents`] only: a second reader of the same state becomes wrong as soon as the first one changes.
//!
//! The rule: a range that does not read as zeros is never reported as a hole. Whatever is not known is data: a member
//! that is lost or being rebuilt, an array that has failed, a range that a disk does not know, a device that is not
//! served. A query that begins after a write was acknowledged finds the write.
//!
//! To report a hole is to answer a read with zeros, under the same conditions. A device with a lease reports no hole
//! while the lease does not hold, because another controller may have written there. A volume on such a device reports
//! none while its pool has changes that are not committed.

use crate::io::LeafId;
use crate::layout::{COPIES_MAX, DeviceLayout};
use crate::mirror::{MemberRole, Mirrored};
use crate::plan::{LeafLocation, locate};
use crate::pool::{BLOCK_BYTES, BlockLocation, EXTENT_BLOCKS};
use crate::volume::VolumeNode;

/// A run of a device's bytes with the same state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocationRun {
    /// Length in bytes.
    pub len: u64,
    /// It reads as zeros, and need not be stored.
    pub hole: bool,
}

/// A leaf's answer for one range: whether it is a hole.
#[derive(Clone, Copy, Debug)]
struct LeafAnswer {
    leaf: LeafId,
    from: u64,
    to: u64,
    hole: bool,
}

/// Number of leaves whose last answer is remembered during one query.
const KNOWN_MAX: usize = 16;

/// Maximum number of locations that one query looks up: the rest is left to the next query. About a millisecond.
const PLACES_MAX: u32 = 1 << 16;

/// Maximum number of probes of leaves in one query.
const PROBES_MAX: u32 = 1 << 10;

/// Calls `each` with the runs of `[offset, offset + len)` in order, until it returns false.
///
/// `probe(leaf, offset, len)` returns whether the leaf's bytes from `offset` on are a hole, and for how many bytes, at
/// least 1, that is so; more than `len` saves later probes. `lease_ns` is the clock of [`crate::LeafSink::lease_ns`]. A
/// concurrent change may be reported as before or as after it. If the query takes too many lookups it ends early, after
/// one run at least. Runs are whole blocks of the device: a block that is stored in part is data. What lies beyond the
/// device's end is data.
pub fn extents(
    layout: &DeviceLayout,
    offset: u64,
    len: u64,
    lease_ns: impl Fn() -> u64,
    probe: &mut impl FnMut(LeafId, u64, u64) -> AllocationRun,
    each: &mut impl FnMut(AllocationRun) -> bool,
) {
    let end = offset.saturating_add(len);
    let inside = end.min(layout.size_bytes());
    let mut query = Query { layout, probe, known: Vec::with_capacity(KNOWN_MAX), probes: 0 };
    // The conditions are checked after the whole run was looked up, so that they hold for all of it.
    let mut tell = |run: AllocationRun| each(AllocationRun { hole: run.hole && may_tell(layout, &lease_ns), ..run });
    let mut run = AllocationRun { len: 0, hole: false };
    let (mut at, mut places) = (offset, 0);
    while at < inside && places < PLACES_MAX && query.probes < PROBES_MAX {
        places += 1;
        let found = query.at(at, inside);
        if !push(&mut run, found, &mut tell) {
            return;
        }
        at += found.len;
    }
    if at >= inside
        && inside < end
        && !push(&mut run, AllocationRun { len: end - at.max(inside), hole: false }, &mut tell)
    {
        return;
    }
    if run.len > 0 {
        tell(run);
    }
}

/// Returns whether a hole may be reported now that it was found.
fn may_tell(layout: &DeviceLayout, lease_ns: &impl Fn() -> u64) -> bool {
    let Some(lease) = &layout.lease else { return true };
    // As for a read: if the record of the hole is not committed, the next controller that serves the pool would find
    // the earlier content.
    let uncommitted = layout.volume().is_some_and(|volume| volume.pool.is_hot());
    !uncommitted && lease.holds(lease_ns())
}

/// A query in progress.
struct Query<'a, P> {
    layout: &'a DeviceLayout,
    probe: &'a mut P,
    /// The leaves' answers.
    known: Vec<LeafAnswer>,
    probes: u32,
}

impl<P: FnMut(LeafId, u64, u64) -> AllocationRun> Query<'_, P> {
    /// Returns what is known of the bytes from `at` on, below `end`.
    fn at(&mut self, at: u64, end: u64) -> AllocationRun {
        let layout = self.layout;
        let found = match (layout.mirror(), layout.volume()) {
            (Some(mirror), _) => self.in_redundant(mirror, at, end),
            (None, Some(volume)) => in_volume(volume, at),
            (None, None) => {
                let mut place = [LeafLocation { leaf: LeafId(0), offset: 0 }];
                let (_, len) = locate(layout, at, &mut place);
                self.on_leaf(place[0], len.min(end - at))
            }
        };
        AllocationRun { len: found.len.min(end - at), ..found }
    }

    /// Returns what is known of a redundant array's bytes. Regions that were never written are zeros, whatever its
    /// members hold. Written regions are data; the members' own holes count only for a read-only array, whose regions
    /// no component maintains.
    fn in_redundant(&mut self, mirror: &Mirrored, at: u64, end: u64) -> AllocationRun {
        if mirror.failed {
            // Reads fail.
            return AllocationRun { len: end - at, hole: false };
        }
        let (is_written, to) = mirror.regions.run_at(&mirror.geometry, at);
        let run = AllocationRun { len: to.min(end) - at, hole: !is_written };
        if is_written && self.layout.read_only { self.on_copies(mirror, at, run.len) } else { run }
    }

    /// Returns bytes that are holes on every member from which they may be read: it is not known which one a read would
    /// use, and members that were not resynced may differ.
    fn on_copies(&mut self, mirror: &Mirrored, at: u64, mut len: u64) -> AllocationRun {
        let mut places = [LeafLocation { leaf: LeafId(0), offset: 0 }; COPIES_MAX];
        let mut count = 0;
        mirror.copies(at, &mut |piece| {
            len = len.min(piece.len);
            let member = &mirror.members[usize::from(piece.member)];
            if member.role == MemberRole::InSync && count < COPIES_MAX {
                places[count] = LeafLocation { leaf: member.leaf, offset: member.start + piece.member_offset };
                count += 1;
            }
        });
        let mut run = AllocationRun { len, hole: count > 0 };
        for place in &places[..count] {
            let said = self.on_leaf(*place, run.len);
            run = AllocationRun { len: said.len, hole: said.hole };
            if !said.hole {
                break;
            }
        }
        run
    }

    /// Returns a leaf's answer for one of its ranges, for at most so many bytes.
    fn on_leaf(&mut self, LeafLocation { leaf, offset }: LeafLocation, len: u64) -> AllocationRun {
        let block = u64::from(self.layout.block_bytes());
        let known = self.known.iter().find(|k| k.leaf == leaf && (k.from..k.to).contains(&offset)).copied();
        let known = known.unwrap_or_else(|| {
            self.probes += 1;
            let said = (self.probe)(leaf, offset, len);
            let to = offset.saturating_add(said.len.max(1));
            let whole = to - to % block;
            let fresh = match said.hole && whole > offset {
                true => LeafAnswer { leaf, from: offset, to: whole, hole: true },
                false => LeafAnswer { leaf, from: offset, to: to.div_ceil(block).saturating_mul(block), hole: false },
            };
            match self.known.iter().position(|k| k.leaf == leaf) {
                Some(old) => self.known[old] = fresh,
                None if self.known.len() < KNOWN_MAX => self.known.push(fresh),
                None => self.known[(leaf.0 as usize) % KNOWN_MAX] = fresh,
            }
            fresh
        });
        AllocationRun { len: len.min(known.to - offset), hole: known.hole }
    }
}

/// Returns what a volume's map says of the byte at `at`: mapped blocks are stored, whatever the member makes of them;
/// everything else reads as zeros.
fn in_volume(volume: &VolumeNode, at: u64) -> AllocationRun {
    let map = &volume.volume.map;
    let block = at / BLOCK_BYTES;
    let skipped = at % BLOCK_BYTES;
    match map.find(&volume.pool.records, block, EXTENT_BLOCKS) {
        BlockLocation::At { blocks, .. } => {
            AllocationRun { len: u64::from(blocks) * BLOCK_BYTES - skipped, hole: false }
        }
        BlockLocation::Nothing { blocks } => {
            let next = block + u64::from(blocks);
            // Whole unmapped extents are skipped at once.
            let to = match next.is_multiple_of(u64::from(EXTENT_BLOCKS)) {
                true => match map.next_mapped((next / u64::from(EXTENT_BLOCKS)) as u32) {
                    Some(logical) => u64::from(logical) * u64::from(EXTENT_BLOCKS) * BLOCK_BYTES,
                    None => volume.size_bytes,
                },
                false => next * BLOCK_BYTES,
            };
            AllocationRun { len: to.max(next * BLOCK_BYTES) - at, hole: true }
        }
    }
}

/// Extends the run, or passes it to `tell` and begins another. Returns false if no more runs are wanted.
fn push(run: &mut AllocationRun, next: AllocationRun, tell: &mut impl FnMut(AllocationRun) -> bool) -> bool {
    if run.len > 0 && run.hole != next.hole {
        if !tell(*run) {
            return false;
        }
        run.len = 0;
    }
    *run = AllocationRun { len: run.len + next.len, hole: next.hole };
    true
}
