//! What happens when a member of a redundant array fails: reads go to another one, everything else waits.
//!
//! From the first failure on nothing of the device is answered or begun on this shard: it is *frozen*. The control plane
//! freezes the others, lets the survivors flush, records who is left out, and publishes a layout without the member; with
//! that layout everything goes on. So nobody is told that a write is done which a crash could give back to the lost member.

use super::Shard;
use super::slots::{NONE, State};
use super::waiting::hold_key;
use crate::io::{DeviceId, ErrorKind, IoError, LeafError, LeafId, LeafSink, Op};
use crate::layout::DeviceLayout;
use crate::mirror::Roles;
use crate::planted::{self, Planted, planted};
use crate::trouble::Trouble;

/// Troubles with reads that wait to be taken; more are forgotten, as the next read of the place tells again.
const READ_TROUBLES_MAX: usize = 64;

impl Shard {
    /// The next failure of a member.
    pub fn pop_trouble(&mut self) -> Option<Trouble> {
        self.troubles.pop_front()
    }

    /// Whether nothing of the device can be begun now, however much room there is: it is frozen, has failed, or is no
    /// redundant array.
    pub fn is_held_up(&self, device: DeviceId) -> bool {
        self.devices.get(device).is_none_or(|of| {
            let mirror = of.current.as_deref().and_then(DeviceLayout::mirror);
            of.frozen || mirror.is_none_or(|mirror| mirror.failed)
        })
    }

    /// Answers nothing of the device and begins nothing, until the next layout is published. To be called on every shard
    /// before it is recorded who is left out.
    pub fn freeze(&mut self, device: DeviceId, sink: &mut impl LeafSink) {
        let Some(of) = self.devices.get_mut(device) else { return };
        if of.current.is_none() || std::mem::replace(&mut of.frozen, true) {
            return;
        }
        // Jobs are not kept waiting: those who do them are also those who end the freeze.
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if slot.state == State::Waiting && slot.device == device.0 && slot.sync != NONE {
                self.waiting.unpark(&mut self.slots, index);
                self.advance(index, sink);
            }
        }
        self.work_off(sink);
    }

    /// One leaf I/O of a slot failed.
    #[cold]
    pub(super) fn leaf_failed(&mut self, index: u32, leaf: LeafId, error: LeafError) {
        let reads_rows = self.reads_rows(&self.slots[index]);
        let is_late = self.is_step_late(index);
        let slot = &mut self.slots[index];
        if planted::swallowed(slot.op) {
            return;
        }
        let cause = IoError { kind: error.kind, leaf: Some(leaf), errno: error.errno, offset: slot.start };
        let device = self.devices.at_mut(slot.device);
        let layout = device.layout(slot.version);
        let mirror = layout.mirror();
        let ring_disk = mirror.and_then(|mirror| mirror.ring_disk(leaf));
        if let Some(role) = ring_disk.filter(|_| error.kind != ErrorKind::Unsupported) {
            return self.ring_disk_failed(index, leaf, role, error);
        }
        let role = mirror.and_then(|mirror| mirror.role_of(leaf));
        // Where others have carried it out, whoever cannot would differ; and the copies of a replicated device must not, even when it is told
        // that it failed.
        let differs = layout.lease.is_some() && mirror.is_some();
        let Some(role) = role.filter(|_| error.kind != ErrorKind::Unsupported || differs) else {
            slot.error.get_or_insert(cause);
            return;
        };
        if error.kind == ErrorKind::Slow {
            // Another one is asked. Nothing is wrong, and nobody is told.
            slot.avoid = slot.avoid.with(role);
            slot.set_slow(slot.slow().with(role));
            // A step may have several I/Os.
            slot.tries += u8::from(!slot.again);
            slot.again = true;
            return;
        }
        slot.cause.get_or_insert(cause);
        // The number that the member has in the layout of now.
        let now = match device.current.as_ref().and_then(|current| current.mirror()) {
            Some(mirror) if mirror.failed => {
                slot.error.get_or_insert(cause);
                return;
            }
            Some(mirror) => mirror.role_of(leaf),
            None => Some(role),
        };
        // It was left out meanwhile: nobody is told twice.
        let excused = now.is_none();
        let op = match slot.sync {
            NONE if reads_rows => Op::Read,
            NONE => slot.op,
            sync => self.syncs.op_out(sync),
        };
        let trouble = Trouble {
            device: DeviceId(slot.device),
            version: slot.version,
            role: now.unwrap_or(role) as u16,
            leaf,
            op,
            kind: error.kind,
            errno: error.errno,
            offset: slot.start,
            len: slot.end.saturating_sub(slot.start),
        };
        if slot.sync != NONE {
            slot.error.get_or_insert(cause);
        } else if op == Op::Read {
            slot.avoid = slot.avoid.with(role);
            slot.again = true;
            if is_late && !reads_rows {
                // The kernel may still fill the buffer: nobody else may. What comes over a network is given up before that is told.
                slot.error.get_or_insert(cause);
            }
        } else if !excused && !planted(Planted::HeldAnsweredAtOnce) {
            slot.failed = slot.failed.with(role);
        }
        if excused {
            // Before the layout ends that this goes by, whoever was left out has it to get.
            if let Some(current) = device.current.as_deref().filter(|_| op != Op::Read) {
                current.missed.iter().for_each(|missed| missed.note(slot.start, slot.end));
            }
            return;
        }
        if op == Op::Read {
            // Who copies learns it from the result, and looks for another source: it is not to be interrupted by this.
            let copies = slot.sync != NONE && self.syncs.copies(slot.sync) && !trouble.is_fatal();
            if !copies && self.troubles.len() < READ_TROUBLES_MAX {
                self.troubles.push_back(trouble);
            }
            return;
        }
        // A device that is being stopped answers no more anyway; who failed at last is told nevertheless.
        device.frozen = device.current.is_some() && !planted(Planted::HeldAnsweredAtOnce);
        // Without a current layout a role is a number of the slot's own one, and another member's in the next slot: each is told.
        if device.current.is_none() || !device.told.has(usize::from(trouble.role)) {
            device.told = device.told.with(usize::from(trouble.role));
            self.troubles.push_back(trouble);
        }
    }

    /// The disk of a journal failed an I/O: that waits for a layout in which the ring is elsewhere.
    #[cold]
    fn ring_disk_failed(&mut self, index: u32, leaf: LeafId, role: u16, error: LeafError) {
        let slot = &mut self.slots[index];
        // The journal does it again then.
        slot.error.get_or_insert(IoError { kind: error.kind, leaf: Some(leaf), errno: error.errno, offset: 0 });
        let device = self.devices.at_mut(slot.device);
        let current = device.current.as_ref().and_then(|current| current.mirror());
        if current.is_none_or(|mirror| mirror.failed || mirror.ring_disk(leaf).is_none()) {
            return;
        }
        let (id, version, kind, errno) = (DeviceId(slot.device), slot.version, error.kind, error.errno);
        device.frozen = true;
        if !device.told.has(usize::from(role)) {
            device.told = device.told.with(usize::from(role));
            self.troubles.push_back(Trouble {
                device: id,
                version,
                role,
                leaf,
                op: Op::Write,
                kind,
                errno,
                offset: 0,
                len: 0,
            });
        }
    }

    /// Whether a slot with no I/O out must wait for the end of a freeze, or for a layout that is not held. A job is ended instead.
    #[inline]
    pub(super) fn is_held(&mut self, index: u32) -> bool {
        let slot = &self.slots[index];
        let device = self.devices.at(slot.device);
        if !device.frozen && !device.held && slot.failed.is_empty() {
            return false;
        }
        self.hold(index)
    }

    #[cold]
    fn hold(&mut self, index: u32) -> bool {
        let slot = &mut self.slots[index];
        if slot.sync != NONE {
            slot.error.get_or_insert(IoError::of(ErrorKind::Busy));
            return false;
        }
        if !self.devices.at(slot.device).frozen {
            // The layout without the member came while others of its I/Os were out.
            self.move_to_current(index);
            self.forgive(index);
        }
        let slot = &mut self.slots[index];
        let device = self.devices.at(slot.device);
        let (ended, id) = (slot.error.is_some() || !device.frozen && !device.held, DeviceId(slot.device));
        if !ended {
            self.waiting.park(&mut self.slots, index, hold_key(id));
        }
        self.look_still(id);
        !ended
    }

    /// A layout was published: everybody who waits looks again.
    #[cold]
    pub(super) fn wake_all(&mut self, device: DeviceId, sink: &mut impl LeafSink) {
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if slot.state == State::Waiting && slot.device == device.0 {
                self.move_to_current(index);
                if self.is_gathered(index) {
                    continue;
                }
                self.waiting.unpark(&mut self.slots, index);
                self.forgive(index);
                self.advance(index, sink);
            }
        }
        self.work_off(sink);
    }

    /// A slot whose failed members are left out by the layout of now has succeeded on all others. One that is not
    /// excused tells again who failed, and waits for the next layout.
    pub(super) fn forgive(&mut self, index: u32) {
        let slot = &mut self.slots[index];
        let failed = slot.failed;
        if slot.error.is_some() {
            return;
        }
        let device = self.devices.at_mut(slot.device);
        let Some(mirror) = device.layout(slot.version).mirror() else { return };
        if mirror.failed {
            slot.error = Some(slot.cause.unwrap_or(IoError::of(ErrorKind::Failed)));
            return;
        }
        if slot.flushing {
            // Members may have come that were not asked.
            slot.cursor = 0;
        }
        if failed.is_empty() {
            return;
        }
        let cause = slot.cause.unwrap_or(IoError::of(ErrorKind::Failed));
        let still =
            mirror.members.iter().enumerate().filter(|(role, m)| failed.has(*role) && m.role != crate::Role::Out);
        let (version, op, start, end) = (slot.version, slot.op, slot.start, slot.end);
        let troubles: Vec<Trouble> = still
            .map(|(role, m)| Trouble {
                device: DeviceId(slot.device),
                version,
                role: role as u16,
                leaf: m.leaf,
                op,
                kind: cause.kind,
                errno: cause.errno,
                offset: start,
                len: end.saturating_sub(start),
            })
            .collect();
        if troubles.is_empty() {
            slot.failed = Roles::NONE;
            return;
        }
        device.frozen = true;
        for trouble in troubles {
            if !device.told.has(usize::from(trouble.role)) {
                device.told = device.told.with(usize::from(trouble.role));
                self.troubles.push_back(trouble);
            }
        }
    }
}
