//! The I/Os of journals: which members they go to, and what happens to them and their memory when they complete.

use crate::io::{Buf, DeviceId, Flags, LeafIo, LeafSink, Op};
use crate::layout::DeviceLayout;
use crate::mirror::MemberRole;
use crate::parity::RingState;
use crate::shard::Shard;
use crate::shard::journal_state::{BLOCK, JournalIoKind};
use crate::shard::slots::{self, SlotState};

impl Shard {
    /// Submits the leaf I/Os of a journal's I/O, with this layout.
    pub(super) fn journal_submit(&mut self, at: usize, layout: &DeviceLayout, sink: &mut impl LeafSink) {
        let going = self.journals.ios[at].as_mut().expect("an I/O that is begun");
        going.held = false;
        let (device, what) = (going.device, going.what);
        let mirror = layout.mirror().expect("a journal is of a redundant array");
        let index = self.slots.take_journal(at as u32);
        let generation = self.slots[index].generation;
        let slot = &mut self.slots[index];
        let late = slot.late;
        slot.prepare(Op::Write, Flags::NONE, 0, 0, Buf::NONE, 0);
        (slot.late, slot.device, slot.version) = (late, device.0, layout.version());
        self.devices.at_mut(device.0).users += 1;
        let mut out = 0;
        match what {
            JournalIoKind::Flush => {
                let leaves = layout.leaves();
                out = leaves.len() as u32;
                self.slots[index].out = out;
                for leaf in leaves {
                    let cookie = slots::cookie(index, generation, *leaf);
                    sink.submit(&LeafIo::simple(*leaf, Op::Flush, Flags::NONE, 0, 0, Buf::NONE, cookie));
                }
            }
            JournalIoKind::Head => {
                let memory = self.journals.ios[at].as_ref().and_then(|going| going.memory).expect("a head has memory");
                let buf = self.journal_scratch.as_ref().expect("memory was taken from it").page(memory.first);
                let journal = self.journals.of(device).expect("a head has a journal");
                let before = journal.heads.before_ring();
                for (role, member) in mirror.members.iter().enumerate().filter(|(_, m)| m.role != MemberRole::Failed) {
                    let cookie = slots::cookie(index, generation, member.leaf);
                    let (at, len) = (journal.node.rings[role] - before, u64::from(memory.pages) * BLOCK);
                    sink.submit(&LeafIo::simple(member.leaf, Op::Write, Flags::FUA, at, len, buf, cookie));
                    out += 1;
                }
                if let Some(disk) = journal.node.ring_disk() {
                    let cookie = slots::cookie(index, generation, disk.leaf);
                    let (at, len) = (disk.ring - before, u64::from(memory.pages) * BLOCK);
                    sink.submit(&LeafIo::simple(disk.leaf, Op::Write, Flags::FUA, at, len, buf, cookie));
                    out += 1;
                }
                self.slots[index].out = out;
            }
            JournalIoKind::Batch(sequence) => {
                let memory = self.journals.ios[at].as_ref().and_then(|going| going.memory);
                let journal = self.journals.of(device).expect("a batch has a journal");
                let ring = journal.ring();
                let tolerance = journal.tolerance;
                let disk = journal.node.ring_disk().copied();
                let batch = journal.batch(sequence).expect("a batch in flight is kept");
                let (offset, memory) = (batch.begin % ring * BLOCK, memory.expect("a batch has memory"));
                let buf = self.journal_scratch.as_ref().expect("memory was taken from it").page(memory.first);
                if let Some(disk) = disk {
                    let cookie = slots::cookie(index, generation, disk.leaf);
                    let (at, len) = (disk.ring + offset, u64::from(memory.pages) * BLOCK);
                    self.slots[index].out = 1;
                    return sink.submit(&LeafIo::simple(disk.leaf, Op::Write, Flags::FUA, at, len, buf, cookie));
                }
                let holders = mirror.batch_holders(sequence, tolerance + 1);
                for (role, member) in mirror.members.iter().enumerate().filter(|(_, m)| m.role != MemberRole::Failed) {
                    let chosen = match member.role {
                        MemberRole::InSync => holders.has(role),
                        _ => true,
                    };
                    if chosen {
                        let cookie = slots::cookie(index, generation, member.leaf);
                        let ring_start = self.journals.of(device).expect("a batch has a journal").node.rings[role];
                        let (at, len) = (ring_start + offset, u64::from(memory.pages) * BLOCK);
                        sink.submit(&LeafIo::simple(member.leaf, Op::Write, Flags::FUA, at, len, buf, cookie));
                        out += 1;
                    }
                }
                self.slots[index].out = out;
            }
        }
        debug_assert!(out > 0, "an array that serves has members");
    }

    /// Processes a journal's I/O whose leaf I/Os have all completed.
    pub(in crate::shard) fn journal_answered(&mut self, at: u32, index: u32, sink: &mut impl LeafSink) {
        let slot = &mut self.slots[index];
        let failed = !std::mem::take(&mut slot.failed).is_empty() || slot.error.take().is_some();
        let (device, version) = (slot.device, slot.version);
        self.devices.leave(device, version);
        let device = DeviceId(device);
        let frozen = self.devices.at(device.0).frozen;
        let going = self.journals.ios[at as usize].as_mut().expect("an I/O in flight");
        let (what, run) = (going.what, going.run);
        let pages = going.memory.map_or(0, |memory| memory.pages);
        let flushed = !failed && !frozen && what == JournalIoKind::Flush;
        if flushed && going.memory.is_some() {
            // Stripes have left the list: a head without them is written before the tail passes the entries that
            // rewrote them.
            going.what = JournalIoKind::Head;
        }
        let head_follows = going.what != what;
        let journal = self.journals.list.iter().find(|j| j.device == device && j.node.run == run);
        let alive = journal.is_some();
        // Slots are not notified of entries in a ring that is about to move: these are logged again at the ring's new
        // location.
        let moving = journal.is_some_and(|journal| journal.node.ring_location == RingState::Moving);
        let too_late = moving && matches!(what, JournalIoKind::Batch(_));
        if alive && (failed || frozen || head_follows || too_late) {
            // An I/O that is complete on some members only is repeated, on those that remain.
            self.journals.ios[at as usize].as_mut().expect("it is in flight").held = true;
            if self.slots[index].late == 0 {
                self.slots.give(index);
            }
            if !frozen {
                self.journal_published(device, sink);
            }
            return;
        }
        if alive {
            self.journal_done(device, what, pages);
        }
        self.journal_release_io(at, index);
        if alive {
            self.acknowledge_batches(device);
        }
        self.journals_advance(sink);
    }

    /// Frees the entry of an I/O for another one, once the kernel has none of it any more.
    pub(in crate::shard) fn journal_release_io(&mut self, at: u32, index: u32) {
        if self.slots[index].late > 0 {
            self.slots[index].state = SlotState::Late;
            let going = self.journals.ios[at as usize].as_mut();
            if let Some((going, scratch)) = going.filter(|going| !going.lent).zip(self.journal_scratch.as_mut())
                && let Some(memory) = going.memory
            {
                going.lent = true;
                scratch.lend(memory);
            }
            return;
        }
        if let Some(going) = self.journals.ios[at as usize].take()
            && let (Some(memory), Some(scratch)) = (going.memory, self.journal_scratch.as_mut())
        {
            if going.lent { scratch.regain(memory) } else { scratch.give(memory) }
        }
        if self.slots[index].state != SlotState::Free {
            self.slots.give(index);
        }
    }
}
