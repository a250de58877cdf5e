//! Write coalescing: contiguous writes to an array with parity that arrive together are carried out as one, a *gather*.
//! A full-stripe write reads nothing, and logs only a mark in the journal.
//!
//! Such a write waits until its driver has submitted everything that it has ([`Shard::end_turn`]). Writes that meet
//! within a stripe are then copied into memory of the shard, and a slot of their own carries them out as one write.
//! When the gather has ended, its writes are answered; if it has failed, each of them is carried out alone. Writes that
//! meet at the edge of a stripe are not coalesced: nothing would be gained, and the copy is saved.
//!
//! A stream may submit its writes one by one. If a write begins where a write in flight ends, and does not reach the
//! edge of its stripe, the shard holds it back until more writes have arrived, or until the write in flight has ended.
//! It does so only while so many requests are in flight that more are likely to arrive: a stream that waits for the end
//! of every few writes would lose by it.
//!
//! Every wait is bounded. A write that does not get the lines that it needs looks for neighbours once more; after that
//! it takes its turn among the writes that wait for these lines. A write is held back behind at most [`CHANGES_MAX`]
//! successive writes.

use super::Shard;
use super::scratch::PageRun;
use super::slots::SlotState;
use crate::io::{Buf, DeviceId, Flags, LeafSink, Op};
use crate::limits::GATHERS_MAX;

/// The longest write that is copied, and the longest gather, in bytes.
const WRITE_BYTES_MAX: u64 = 256 << 10;
const GATHER_BYTES_MAX: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;
/// Writes are held back only while more requests of the device than these are in flight on the shard: with fewer, no
/// more are expected soon.
const USERS_MIN: u32 = 4;
/// Maximum number of writes held back at a time: each turn looks at all of them.
const HELD_MAX: usize = 256;
/// Maximum number of successive writes that a write is held back behind: if others write to the same range again and
/// again, there is always one.
const CHANGES_MAX: u8 = 3;

/// Values of [`super::slots::Slot::gather`] besides the number of the gather that a write is in.
pub(super) mod of {
    /// Neighbours were not looked for.
    pub const UNSEEN: u32 = u32::MAX;
    /// There were no neighbours.
    pub const ALONE: u32 = u32::MAX - 1;
    /// There were no neighbours, and the write has waited for lines of others since: it looks once more.
    pub const AGAIN: u32 = u32::MAX - 2;
    /// It is not coalesced with others any more.
    pub const APART: u32 = u32::MAX - 3;

    /// Returns whether neighbours are looked for.
    pub fn looks(gather: u32) -> bool {
        matches!(gather, UNSEEN | AGAIN)
    }
}

/// Returns the wait key of the end of the driver's turn.
fn turn_key() -> u64 {
    3 << 62 | 1 << 42
}

/// Returns the wait key of a gather.
fn gather_key(number: u32) -> u64 {
    3 << 62 | 1 << 43 | u64::from(number)
}

/// All gathers of a shard.
pub(crate) struct Gathers {
    list: Vec<Option<Gather>>,
    /// A write waits for the end of the turn.
    open: bool,
    /// The writes that waited for it, while they are processed.
    turn: Vec<u32>,
    /// Number of writes held back behind writes in flight.
    held: usize,
    /// The ends of writes in flight.
    ends: [End; ENDS],
    /// Writes that were coalesced with others, since start.
    pub(super) writes: u64,
}

/// The end of a write that is, or was, in flight.
#[derive(Clone, Copy)]
struct End {
    device: u32,
    at: u64,
    slot: u32,
    generation: u32,
}

/// Number of streams that are distinguished at a time. If two share an entry, one of them may be carried out in smaller
/// pieces.
const ENDS: usize = 64;

fn end_place(device: u32, at: u64) -> usize {
    let key = (at / PAGE_BYTES) ^ u64::from(device) << 48;
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize
}

struct Gather {
    memory: PageRun,
    /// The kernel still has the memory, so it was lent: as many pages of the reserve are available to others.
    lent: bool,
}

impl Gathers {
    pub fn new(slots: u32) -> Gathers {
        let list = (0..GATHERS_MAX).map(|_| None).collect();
        let no_end = End { device: u32::MAX, at: 0, slot: 0, generation: 0 };
        let turn = Vec::with_capacity(slots as usize);
        Gathers { list, open: false, turn, held: 0, ends: [no_end; ENDS], writes: 0 }
    }
}

impl Shard {
    /// Returns whether [`Shard::end_turn`] must be called before the driver sleeps.
    #[inline]
    pub fn is_turn_open(&self) -> bool {
        self.gathers.open || self.pools.goes_on()
    }

    /// Reports that the driver has submitted everything that it has: writes that waited for neighbours continue.
    #[inline]
    pub fn end_turn(&mut self, sink: &mut impl LeafSink) {
        if self.gathers.open {
            self.gather_turn(sink);
        }
        if self.pools.goes_on() {
            self.pools_go_on(sink);
        }
    }

    /// Returns the number of writes that were coalesced with others, since start.
    pub fn writes_gathered(&self) -> u64 {
        self.gathers.writes
    }

    /// Returns whether a write waits for the end of the turn, because neighbours may arrive.
    pub(super) fn awaits_neighbours(&mut self, index: u32) -> bool {
        let slot = &self.slots[index];
        let fits = slot.op == Op::Write && slot.flags == Flags::NONE && slot.end - slot.start <= WRITE_BYTES_MAX;
        if !of::looks(slot.gather) || slot.cursor != slot.start || !fits || self.slots.gather(index).is_some() {
            return false;
        }
        self.waiting.park(&mut self.slots, index, turn_key());
        self.gathers.open = true;
        true
    }

    /// Lets a write that had no neighbours look for them again, as it waits for another one: neighbours may arrive
    /// until that has ended.
    pub(super) fn retry_gather(&mut self, index: u32) {
        let slot = &mut self.slots[index];
        if slot.gather == of::ALONE {
            slot.gather = of::AGAIN;
        }
    }

    fn gather_turn(&mut self, sink: &mut impl LeafSink) {
        while std::mem::take(&mut self.gathers.open) {
            self.gathers.held = 0;
            let mut turn = std::mem::take(&mut self.gathers.turn);
            turn.extend(std::iter::from_fn(|| self.waiting.wake_one(&mut self.slots, turn_key())));
            let place = |index: &u32| {
                let slot = &self.slots[*index];
                (slot.device, slot.start)
            };
            turn.sort_unstable_by_key(place);
            let mut rest = &turn[..];
            while !rest.is_empty() {
                let count = self.neighbours(rest);
                let (these, others) = rest.split_at(count);
                rest = others;
                if self.holds_back(these) {
                    continue;
                }
                if count > 1 && self.gather(these, sink) {
                    continue;
                }
                for index in these {
                    let slot = &mut self.slots[*index];
                    slot.gather = if slot.gather == of::UNSEEN { of::ALONE } else { of::APART };
                    self.note_end(*index);
                    self.advance(*index, sink);
                }
            }
            turn.clear();
            self.gathers.turn = turn;
            if self.has_woken() {
                self.process_woken(sink);
            }
        }
    }

    /// Returns how many of these writes, sorted by range, may be carried out as one, from the first on.
    fn neighbours(&self, slots: &[u32]) -> usize {
        let first = &self.slots[slots[0]];
        let Some(layout) = self.devices.at(first.device).current.as_deref() else { return 1 };
        let Some(mirror) = layout.mirror() else { return 1 };
        let mut end = first.end;
        let meets = |index: &&u32| {
            let slot = &self.slots[**index];
            let next_to = slot.device == first.device && slot.start == end && of::looks(slot.gather);
            let fits = next_to && slot.error.is_none() && slot.end - first.start <= GATHER_BYTES_MAX;
            // At the edge of a stripe nothing is gained.
            let gains = || mirror.geometry.stripe_of(end).is_some_and(|stripe| stripe.array_start != end);
            let meets = fits && gains();
            end = slot.end;
            meets
        };
        let alone = !of::looks(first.gather) || first.error.is_some();
        if alone { 1 } else { 1 + slots[1..].iter().take_while(meets).count() }
    }

    /// Holds these neighbours back until more has arrived, or until the write that they continue has ended. Returns
    /// false if they do not continue a write in flight, or reach the edge of their stripe.
    fn holds_back(&mut self, these: &[u32]) -> bool {
        let (first, last) = (&self.slots[these[0]], &self.slots[these[these.len() - 1]]);
        let (id, start, end) = (first.device, first.start, last.end);
        let device = self.devices.at(id);
        let Some(mirror) = device.current.as_deref().and_then(|layout| layout.mirror()) else { return false };
        let waits = of::looks(first.gather) && first.error.is_none() && last.error.is_none();
        let room = end - start <= GATHER_BYTES_MAX / 2 && self.gathers.held + these.len() <= HELD_MAX;
        if !waits || device.users <= USERS_MIN || !room || device.frozen || mirror.failed {
            return false;
        }
        let (behind, changes) = (first.behind, first.changes);
        let before = self.gathers.ends[end_place(id, start)];
        if (before.device, before.at) != (id, start) {
            return false;
        }
        let slot = &mut self.slots[before.slot];
        let goes_on = slot.generation == before.generation
            && (slot.state == SlotState::Active || slot.state == SlotState::Waiting)
            && (slot.device, slot.end) == (id, start)
            && slot.gather >= GATHERS_MAX;
        let reaches_edge = || mirror.geometry.stripe_of(end).is_none_or(|stripe| stripe.array_start == end);
        let name = (before.slot, before.generation);
        let changes = changes + u8::from(behind != name);
        if !goes_on || reaches_edge() || changes > CHANGES_MAX {
            return false;
        }
        slot.followed = true;
        (self.slots[these[0]].behind, self.slots[these[0]].changes) = (name, changes);
        self.gathers.held += these.len();
        for index in these {
            self.waiting.park(&mut self.slots, *index, turn_key());
        }
        true
    }

    /// Records the end of a write that begins: other writes may continue there.
    fn note_end(&mut self, index: u32) {
        let slot = &self.slots[index];
        let end = End { device: slot.device, at: slot.end, slot: index, generation: slot.generation };
        self.gathers.ends[end_place(end.device, end.at)] = end;
    }

    /// Wakes writes that may have been held back behind a write that has ended.
    #[cold]
    pub(super) fn wake_followers(&mut self) {
        self.gathers.open |= self.gathers.held > 0;
    }

    /// Carries these writes out as one. Returns false if that is not possible now.
    fn gather(&mut self, these: &[u32], sink: &mut impl LeafSink) -> bool {
        let (first, last) = (self.slots[these[0]], self.slots[these[these.len() - 1]]);
        let device = self.devices.at(first.device);
        let serves = device.current.as_deref().and_then(|layout| layout.mirror()).is_some_and(|mirror| !mirror.failed);
        let number = self.gathers.list.iter().position(Option::is_none);
        let (Some(number), true) = (number, serves && !device.frozen) else { return false };
        let len = last.end - first.start;
        let Some(scratch) = self.gather_scratch.as_mut() else { return false };
        let Some(memory) = scratch.take((len / PAGE_BYTES) as u32) else { return false };
        let to = scratch.page(memory.first);
        let number = number as u32;
        self.gathers.list[number as usize] = Some(Gather { memory, lent: false });
        self.gathers.writes += these.len() as u64;
        for member in these {
            let slot = &mut self.slots[*member];
            slot.gather = number;
            let (from, at, len) = (slot.buf, to.add(slot.start - first.start), slot.end - slot.start);
            sink.compute(&[from], &[at], len, &mut |from, to| to[0].copy_from_slice(from[0]));
            self.waiting.park(&mut self.slots, *member, gather_key(number));
        }
        self.begin_gather(number, DeviceId(first.device), (first.start, len), to, sink);
        true
    }

    fn begin_gather(
        &mut self,
        number: u32,
        id: DeviceId,
        (start, len): (u64, u64),
        buf: Buf,
        sink: &mut impl LeafSink,
    ) {
        let index = self.slots.take_gather(number);
        let device = self.devices.at_mut(id.0);
        device.users += 1;
        self.in_flight += 1;
        let slot = &mut self.slots[index];
        slot.prepare(Op::Write, Flags::NONE, start, len, buf, 0);
        (slot.device, slot.version) = (id.0, device.version);
        self.note_end(index);
        self.advance(index, sink);
    }

    /// Returns whether a slot waits for the gather that carries it out. The layout may change meanwhile.
    pub(super) fn is_gathered(&self, index: u32) -> bool {
        let slot = &self.slots[index];
        slot.gather < GATHERS_MAX && slot.error.is_none()
    }

    /// Ends a gather: its writes are answered, or each is carried out alone.
    #[cold]
    pub(super) fn gathered(&mut self, index: u32, number: u32) {
        let done = self.slots[index].error.is_none();
        self.wake_followers();
        while let Some(member) = self.waiting.wake_one(&mut self.slots, gather_key(number)) {
            let slot = &mut self.slots[member];
            if done {
                slot.cursor = slot.end;
                self.finish(member);
            } else {
                slot.gather = of::APART;
                self.waiting.park(&mut self.slots, member, turn_key());
                self.gathers.open = true;
            }
        }
        if self.slots[index].late == 0 {
            return self.release_slot(index);
        }
        let gather = self.gathers.list[number as usize].as_mut().expect("a gather that ends");
        gather.lent = true;
        if let Some(scratch) = self.gather_scratch.as_mut() {
            scratch.lend(gather.memory);
        }
        self.wake_for_partial_memory();
        self.become_late(index);
    }

    /// Releases the memory of a gather that no write and no I/O uses any more.
    pub(super) fn forget_gather(&mut self, number: u32) {
        let gather = self.gathers.list[number as usize].take().expect("a gather that has ended");
        if let Some(scratch) = self.gather_scratch.as_mut() {
            if gather.lent { scratch.regain(gather.memory) } else { scratch.give(gather.memory) }
        }
        self.wake_for_partial_memory();
    }
}
