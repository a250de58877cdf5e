//! Which parts of a device hold data, and which are known to read as zeros.
//!
//! The engine knows where bytes live; whether a disk holds anything there, only the disk can say
//! (a file by its holes). So the caller brings the answer for one leaf, and this module puts the
//! answers of all leaves together in the order of the device. Used for NBD's `base:allocation`.

use crate::io::LeafId;
use crate::layout::DeviceLayout;
use crate::plan::{Readable, place_read};

/// A run of a device's bytes that are alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// Nothing is stored there, and it reads as zeros.
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
/// The range must lie inside the device. What changes meanwhile may be told as it was or as it is. Where the answer takes
/// too much looking, it ends early, after one run at least. Runs are whole blocks of the device: a block of which a part
/// is stored is.
pub fn extents(
    layout: &DeviceLayout,
    offset: u64,
    len: u64,
    probe: &mut impl FnMut(LeafId, u64, u64) -> Extent,
    each: &mut impl FnMut(Extent) -> bool,
) {
    debug_assert!(offset.checked_add(len).is_some_and(|end| end <= layout.size_bytes()), "a range inside the device");
    let end = offset + len;
    let mut known: Vec<Known> = Vec::with_capacity(KNOWN_MAX);
    let mut run = Extent { len: 0, hole: false };
    let mut at = offset;
    let block = u64::from(layout.block_bytes());
    let (mut places, mut probes) = (0, 0);
    while at < end && places < PLACES_MAX && probes < PROBES_MAX {
        places += 1;
        let (place, holds) = place_read(layout, at);
        let Readable::At(leaf, place) = place else {
            // A member that was lost, or is being filled, may have a hole where the array has data.
            let here = Extent { len: holds.min(end - at), hole: place == Readable::Zero };
            if !push(&mut run, here, each) {
                return;
            }
            at += here.len;
            continue;
        };
        let answer = match known.iter().find(|k| k.leaf == leaf && (k.from..k.to).contains(&place)) {
            Some(known) => *known,
            None => {
                probes += 1;
                let said = probe(leaf, place, end - at);
                let to = place.saturating_add(said.len.max(1));
                let whole = to - to % block;
                let fresh = match said.hole && whole > place {
                    true => Known { leaf, from: place, to: whole, hole: true },
                    false => Known { leaf, from: place, to: to.div_ceil(block).saturating_mul(block), hole: false },
                };
                match known.iter().position(|k| k.leaf == leaf) {
                    Some(old) => known[old] = fresh,
                    None if known.len() < KNOWN_MAX => known.push(fresh),
                    None => known[(leaf.0 as usize) % KNOWN_MAX] = fresh,
                }
                fresh
            }
        };
        let here = holds.min(answer.to - place).min(end - at);
        if !push(&mut run, Extent { len: here, hole: answer.hole }, each) {
            return;
        }
        at += here;
    }
    if run.len > 0 {
        each(run);
    }
}

/// Makes the run longer, or gives it to `each` and begins another. False: that was enough.
fn push(run: &mut Extent, next: Extent, each: &mut impl FnMut(Extent) -> bool) -> bool {
    if run.len > 0 && run.hole != next.hole {
        if !each(*run) {
            return false;
        }
        run.len = 0;
    }
    *run = Extent { len: run.len + next.len, hole: next.hole };
    true
}
