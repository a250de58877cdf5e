//! Failures of members of a redundant array: reads go to another member, everything else waits.
//!
//! From the first failure on, the shard answers and begins no request of the device: it is *frozen*. The control plane
//! freezes the other shards, flushes the survivors, records which member is dropped, and publishes a layout without the
//! member; with that layout all requests continue. So no write is acknowledged that the dropped member could undo if it
//! returned after a crash. If too few members are left, the next layout is a failed one, and all requests get errors; a
//! replicated device stays frozen.

use super::Shard;
use super::slots::{NONE, SlotState};
use super::waiting::hold_key;
use crate::fault::Fault;
use crate::io::{DeviceId, ErrorKind, IoError, LeafError, LeafId, LeafSink, Op};
use crate::layout::DeviceLayout;
use crate::mirror::MemberSet;

/// Maximum number of pending read faults. Further ones are dropped: the next read of the range reports the fault again.
const READ_FAULTS_MAX: usize = 64;

impl Shard {
    /// Returns the next fault of a member.
    pub fn pop_fault(&mut self) -> Option<Fault> {
        self.faults.pop_front()
    }

    /// Returns whether no request of the device can begin now, whatever resources are free: it is frozen, has failed,
    /// or is no redundant array.
    pub fn is_stalled(&self, device: DeviceId) -> bool {
        self.devices.get(device).is_none_or(|of| {
            let mirror = of.current.as_deref().and_then(DeviceLayout::mirror);
            of.frozen || mirror.is_none_or(|mirror| mirror.failed)
        })
    }

    /// Freezes the device: no request is answered or begun until the next layout is published. Must be called on every
    /// shard before the label records which member is dropped.
    pub fn freeze(&mut self, device: DeviceId, sink: &mut impl LeafSink) {
        let Some(of) = self.devices.get_mut(device) else { return };
        if of.current.is_none() || std::mem::replace(&mut of.frozen, true) {
            return;
        }
        // Jobs do not wait: their reconciler is also the component that ends the freeze.
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if slot.state == SlotState::Waiting && slot.device == device.0 && slot.sync != NONE {
                self.waiting.unpark(&mut self.slots, index);
                self.advance(index, sink);
            }
        }
        self.process_woken(sink);
    }

    /// Processes the failure of a leaf I/O of a slot.
    #[cold]
    pub(super) fn leaf_failed(&mut self, index: u32, leaf: LeafId, error: LeafError) {
        let reads_stripes = self.reads_stripes(&self.slots[index]);
        let is_late = self.is_step_late(index);
        let slot = &mut self.slots[index];
        let cause = IoError { kind: error.kind, leaf: Some(leaf), errno: error.errno, offset: slot.start };
        let device = self.devices.at_mut(slot.device);
        let layout = device.layout(slot.version);
        let mirror = layout.mirror();
        let ring_disk = mirror.and_then(|mirror| mirror.ring_disk(leaf));
        if let Some(role) = ring_disk.filter(|_| error.kind != ErrorKind::Unsupported) {
            return self.ring_disk_failed(index, leaf, role, error);
        }
        let role = mirror.and_then(|mirror| mirror.role_of(leaf));
        // Other members may have carried out an operation that this one does not support. On a replicated device that
        // counts as a failure of the member, because its copies must not differ, even if the operation is reported as
        // failed. On other devices only the request fails.
        let differs = layout.lease.is_some() && mirror.is_some();
        let Some(role) = role.filter(|_| error.kind != ErrorKind::Unsupported || differs) else {
            slot.error.get_or_insert(cause);
            return;
        };
        if error.kind == ErrorKind::Slow {
            // Another member is read. Nothing has failed, and nothing is reported.
            slot.avoid = slot.avoid.with(role);
            slot.set_slow(slot.slow().with(role));
            // A step may have several I/Os.
            slot.tries += u8::from(!slot.again);
            slot.again = true;
            return;
        }
        slot.cause.get_or_insert(cause);
        // The member's index in the current layout.
        let now = match device.current.as_ref().and_then(|current| current.mirror()) {
            Some(mirror) if mirror.failed => {
                slot.error.get_or_insert(cause);
                return;
            }
            Some(mirror) => mirror.role_of(leaf),
            None => Some(role),
        };
        // The member was dropped meanwhile: its failure is not reported again.
        let was_dropped = now.is_none();
        let op = match slot.sync {
            NONE if reads_stripes => Op::Read,
            NONE => slot.op,
            sync => self.syncs.op_out(sync),
        };
        let fault = Fault {
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
            if is_late && !reads_stripes {
                // The kernel may still write to the buffer: no other I/O may use it. An I/O over a network is cancelled
                // before its failure is reported.
                slot.error.get_or_insert(cause);
            }
        } else if !was_dropped {
            slot.failed = slot.failed.with(role);
        }
        if was_dropped {
            // The write is recorded as missed by every dropped member, before the layout that it was planned with
            // drains.
            if let Some(current) = device.current.as_deref().filter(|_| op != Op::Read) {
                current.missed.iter().for_each(|missed| missed.record(slot.start, slot.end));
            }
            return;
        }
        if op == Op::Read {
            // A copying job learns of the failure from its result, and looks for another source: a fault report would
            // interrupt it.
            let copies = slot.sync != NONE && self.syncs.copies(slot.sync) && !fault.is_fatal();
            if !copies && self.faults.len() < READ_FAULTS_MAX {
                self.faults.push_back(fault);
            }
            return;
        }
        // A device that is being stopped answers no request anyway; the last failures are reported nevertheless.
        device.frozen = device.current.is_some();
        // Without a current layout, the index is that of the slot's own layout, and may name another member in the
        // layout of the next slot that fails: each failure is reported.
        if device.current.is_none() || !device.reported.has(usize::from(fault.role)) {
            device.reported = device.reported.with(usize::from(fault.role));
            self.faults.push_back(fault);
        }
    }

    /// Processes a failed I/O of a journal's disk: the I/O waits for a layout in which the ring is elsewhere.
    #[cold]
    fn ring_disk_failed(&mut self, index: u32, leaf: LeafId, role: u16, error: LeafError) {
        let slot = &mut self.slots[index];
        // The journal repeats the I/O with that layout.
        slot.error.get_or_insert(IoError { kind: error.kind, leaf: Some(leaf), errno: error.errno, offset: 0 });
        let device = self.devices.at_mut(slot.device);
        let current = device.current.as_ref().and_then(|current| current.mirror());
        if current.is_none_or(|mirror| mirror.failed || mirror.ring_disk(leaf).is_none()) {
            return;
        }
        let (id, version, kind, errno) = (DeviceId(slot.device), slot.version, error.kind, error.errno);
        device.frozen = true;
        if !device.reported.has(usize::from(role)) {
            device.reported = device.reported.with(usize::from(role));
            self.faults.push_back(Fault {
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

    /// Returns whether a slot with no I/O in flight must wait for the end of a freeze, or for a layout that is not
    /// held. A part of a job is ended instead.
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
            // The layout without the member was published while other I/Os of the slot were in flight.
            self.move_to_current(index);
            self.clear_failures(index);
        }
        let slot = &mut self.slots[index];
        let device = self.devices.at(slot.device);
        let (ended, id) = (slot.error.is_some() || !device.frozen && !device.held, DeviceId(slot.device));
        if !ended {
            self.waiting.park(&mut self.slots, index, hold_key(id));
        }
        self.check_marked_drained(id);
        !ended
    }

    /// Advances all waiting slots of a device whose layout was published.
    #[cold]
    pub(super) fn wake_all(&mut self, device: DeviceId, sink: &mut impl LeafSink) {
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if slot.state == SlotState::Waiting && slot.device == device.0 {
                self.move_to_current(index);
                if self.is_gathered(index) {
                    continue;
                }
                self.waiting.unpark(&mut self.slots, index);
                self.clear_failures(index);
                self.advance(index, sink);
            }
        }
        self.process_woken(sink);
    }

    /// Clears the failures of a slot whose failed members are dropped by the current layout: it has succeeded on all
    /// others. If one of them is still in the layout, its failure is reported again, and the slot waits for the next
    /// layout.
    pub(super) fn clear_failures(&mut self, index: u32) {
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
            // Members may have been added that were not flushed.
            slot.cursor = 0;
        }
        if failed.is_empty() {
            return;
        }
        let cause = slot.cause.unwrap_or(IoError::of(ErrorKind::Failed));
        let still = mirror
            .members
            .iter()
            .enumerate()
            .filter(|(role, m)| failed.has(*role) && m.role != crate::MemberRole::Failed);
        let (version, op, start, end) = (slot.version, slot.op, slot.start, slot.end);
        let faults: Vec<Fault> = still
            .map(|(role, m)| Fault {
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
        if faults.is_empty() {
            slot.failed = MemberSet::NONE;
            return;
        }
        device.frozen = true;
        for fault in faults {
            if !device.reported.has(usize::from(fault.role)) {
                device.reported = device.reported.with(usize::from(fault.role));
                self.faults.push_back(fault);
            }
        }
    }
}
