//! One life of the process while it lasts: serves the requests of tasks and dispatches events.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use braid_array_admin::reconciler::ReconcilerEvent;
use braid_engine::RegionCall;
use braid_engine::io::{ErrorKind, LeafError};

use crate::disk::SimDisk;
use crate::host::{Host, HostEvent};
use crate::meta::{Port, TaskRequest};
use crate::mirrors::Mirror;
use crate::oracle::Violation;
use crate::run_state::RunState;
use crate::scenario::script::make_unreadable;
use crate::world::{World, WorldEvent};

/// One life of the process, while it lasts.
pub(crate) struct Run<'a> {
    pub host: Host,
    pub port: Port,
    /// Numbers of the task requests of this life that started a publish.
    pub publishing: Vec<u64>,
    /// Numbers of the calls of this life that wait until the ring of a journal is quiet and may move.
    pub quiescing: Vec<u64>,
    pub world: &'a mut World,
    pub state: &'a Rc<RefCell<RunState>>,
}

impl Run<'_> {
    /// Serves the requests of tasks.
    pub fn serve_tasks(&mut self) {
        for (id, wanted) in self.port.take_requests() {
            match self.world.submit_meta(id, wanted) {
                None => self.world.counters.add("labels", "i/o"),
                Some(TaskRequest::Sleep(ns)) => self.world.after(ns, WorldEvent::MetaDone(id, Ok(Vec::new()))),
                Some(TaskRequest::Publish(device, layout)) => {
                    let layout: Option<Arc<_>> = layout;
                    self.publishing.push(id);
                    self.host.publish(self.world, id, device, layout.as_ref());
                }
                Some(TaskRequest::IsIdle(leaf)) => {
                    let busy = self.world.is_busy(leaf);
                    let answer = if busy { Err(LeafError::of(ErrorKind::Busy)) } else { Ok(Vec::new()) };
                    self.port.answer(id, answer);
                }
                Some(TaskRequest::Reopen(leaf)) => self.state.borrow_mut().reopening.push((id, leaf)),
                Some(TaskRequest::Requests(device)) => {
                    self.port.answer(id, Ok(self.host.requests(device).to_le_bytes().to_vec()));
                }
                Some(TaskRequest::Renewed(device)) => self.host.renewed(self.world, device),
                Some(TaskRequest::Freeze(device)) => {
                    self.world.moments.push("freezing");
                    for (disk, fault) in std::mem::take(&mut self.state.borrow_mut().at_freeze) {
                        fault.apply(self.world, disk);
                    }
                    self.host.freeze(self.world, id, device);
                }
                Some(TaskRequest::Request(task_request)) => self.host.request(self.world, id, task_request),
                Some(TaskRequest::Sync(part)) => {
                    self.world.moments.push("copying");
                    self.host.sync(self.world, id, part);
                }
                Some(TaskRequest::Call(device, home, call)) => {
                    match call {
                        RegionCall::MarkEqual(_) => self.world.moments.push("settling"),
                        RegionCall::Clear(_) => {
                            self.world.moments.push("clearing");
                            self.world.counters.add("reconcilers", "clearing");
                        }
                        RegionCall::PrepareRingMove => {
                            self.world.moments.push("ring nowhere");
                            self.quiescing.push(id);
                        }
                        RegionCall::Close(_) | RegionCall::Rewrite | RegionCall::Retire => {}
                        RegionCall::RetireMarks { .. } => self.world.moments.push("retiring marks"),
                    }
                    self.host.call(self.world, id, device, home.0, call);
                }
                Some(other) => unreachable!("not served: {other:?}"),
            }
        }
        for (device, note) in self.port.take_events() {
            let kind = crate::mirrors::event_name(&note);
            self.world.counters.add("reconcilers", kind);
            self.world.moments.push(kind);
            self.world.note(format_args!("reconciler of device {}: {note:?}", device.0));
            match &note {
                ReconcilerEvent::Dropped(slots) => {
                    let mut state = self.state.borrow_mut();
                    state.lost.insert(device);
                    state.record_dropped_members(device, slots, !self.world.has_hung());
                    state.promoted.retain(|slot| !slots.contains(slot));
                }
                ReconcilerEvent::Grown(_, after) => {
                    let RunState { mirrors, oracle, .. } = &mut *self.state.borrow_mut();
                    for mirror in mirrors.iter_mut().filter(|mirror| mirror.serves_as == Some(device)) {
                        if let Some(healthy) = mirror.healthy {
                            mirror.record_size(*after, self.world.disks[healthy].size_bytes(), oracle);
                        }
                    }
                }
                ReconcilerEvent::RingMoved { to, lost } => {
                    let disk = to.map(|leaf| self.world.leaves[leaf.0 as usize]);
                    let what = match (disk, lost) {
                        (None, true) => "goes on without its disk",
                        (Some(_), true) => "is on another disk",
                        (None, false) => "is on the members",
                        (Some(_), false) => "is on a disk",
                    };
                    self.world.counters.add("journal", what);
                    let mut state = self.state.borrow_mut();
                    let of = state.mirrors.iter_mut().find(|m| m.serves_as == Some(device));
                    of.into_iter().for_each(|mirror| mirror.journal.lost_at_start |= *lost);
                    // Without a healthy member, the labels of the remaining members may not record the move.
                    let of = state.mirrors.iter().position(|m| m.serves_as == Some(device) && m.healthy.is_some());
                    if let Some(index) = of {
                        state.record_ring(index, disk);
                    }
                }
                ReconcilerEvent::Replaced(slot, leaf) => {
                    let successor = self.world.leaves[leaf.0 as usize];
                    let mut state = self.state.borrow_mut();
                    // The locations of its copies are no longer those seen when it was whole.
                    state.lost.insert(device);
                    for mirror in state.mirrors.iter_mut().filter(|mirror| mirror.serves_as == Some(device)) {
                        if mirror.healthy.is_some() && mirror.healthy == mirror.disks.get(usize::from(*slot)).copied() {
                            mirror.healthy = Some(successor);
                        }
                    }
                }
                ReconcilerEvent::InSync(slot) => {
                    let mut state = self.state.borrow_mut();
                    state.promoted.insert(*slot);
                    state.record_promotion(device);
                }
                ReconcilerEvent::Resynced
                    if self.state.borrow().mirrors.iter().any(|m| m.has_lost(&self.state.borrow().oracle)) =>
                {
                    self.world.counters.add("reconcilers", "resynced but for what cannot be read");
                }
                _ => {}
            }
            if let ReconcilerEvent::Job(info) = &note
                && let Err(why) = self.state.borrow_mut().jobs.report(device, info)
            {
                self.state.borrow_mut().violation.get_or_insert(why);
            }
            let of_device = |m: &&Mirror| m.serves_as == Some(device);
            let careless = self.state.borrow().mirrors.iter().filter(of_device).any(|m| m.healthy.is_none());
            let half = self.state.borrow().half == Some(device);
            let excused = (careless || half) && self.world.had_faults();
            if matches!(note, ReconcilerEvent::ArrayFailed) && !excused {
                let why = Violation(format!("device {} has failed, although one member of it is healthy", device.0));
                self.state.borrow_mut().violation.get_or_insert(why);
            }
        }
        let mut state = self.state.borrow_mut();
        for note in state.notes.drain(..) {
            self.world.note(format_args!("admin: {note}"));
        }
        {
            let RunState { rot, oracle, violation, .. } = &mut *state;
            if let Err(why) = rot.serve(self.world, oracle) {
                violation.get_or_insert(why);
            }
        }
        for refusal in std::mem::take(&mut state.journal_refusals) {
            if let Err(why) = refusal.check(self.world, &state.mirrors) {
                state.violation.get_or_insert(why);
            }
        }
        if let Some(disk_pair) = state.disk_pair.take() {
            state.differing_ranges = Some(disk_pair.differing(self.world));
        }
        for copies in std::mem::take(&mut state.compare) {
            self.world.counters.add("copies", "compared");
            if let Err(why) = copies.verify(self.world, &mut state.oracle) {
                state.violation.get_or_insert(why);
            }
        }
        let world = &mut *self.world;
        let broken = |(_, disk): &(usize, &SimDisk)| disk.gone || disk.flush_failed;
        state.lossy.extend(world.disks.iter().enumerate().filter(broken).map(|(disk, _)| disk));
        let port = &self.port;
        state.reopening.retain(|(id, leaf)| {
            let done = world.reopen(*leaf);
            if done {
                port.answer(*id, Ok(Vec::new()));
            }
            !done
        });
        let host = &self.host;
        state.spreading.retain(|(device, size_bytes)| !host.offers(*device, *size_bytes));
        for (leaf, size_bytes) in std::mem::take(&mut state.enlarge) {
            let disk = self.world.leaves[leaf.0 as usize];
            self.world.note(format_args!("disk {disk} has {size_bytes} bytes now"));
            self.world.disks[disk].enlarge(size_bytes);
            self.port.set_size(leaf, size_bytes);
            state.enlarged.insert(disk);
        }
        for disk in std::mem::take(&mut state.fill_up) {
            self.world.disks[disk].full = true;
        }
        for disk in std::mem::take(&mut state.pull) {
            self.world.pull(disk);
        }
        for (disk, fault) in std::mem::take(&mut state.disk_faults) {
            fault.apply(self.world, disk);
        }
        for request in std::mem::take(&mut state.unreadable) {
            make_unreadable(&request, self.world, &mut state.oracle);
        }
        state.workload.arm(self.world);
    }

    pub fn handle_event(&mut self, happening: WorldEvent) -> Result<(), Violation> {
        let (world, host) = (&mut *self.world, &mut self.host);
        match happening {
            WorldEvent::LeafDone(shard, cookie, result) => host.leaf_done(world, shard, cookie, result),
            WorldEvent::LeafLate(shard, cookie) => host.leaf_late(world, shard, cookie),
            WorldEvent::LeafReturned(shard, cookie) => host.leaf_returned(world, shard, cookie),
            WorldEvent::MetaDone(id, answer) => self.port.answer(id, answer),
            WorldEvent::Deliver(from, to) => host.deliver(world, from, to),
            WorldEvent::Publish(shard) => host.take_mail(world, shard),
            WorldEvent::EndTurn(shard) => host.end_turn(world, shard),
            WorldEvent::Wake(client) => {
                let mut state = self.state.borrow_mut();
                let RunState { workload, oracle, .. } = &mut *state;
                workload.wake(client as usize, world, host, oracle);
            }
            WorldEvent::CrashPoint => {}
        }
        self.dispatch_host_events()
    }

    /// Dispatches the events that the shards report.
    fn dispatch_host_events(&mut self) -> Result<(), Violation> {
        while let Some(event) = self.host.events.pop_front() {
            let mut state = self.state.borrow_mut();
            let RunState { workload, oracle, .. } = &mut *state;
            match event {
                HostEvent::Done(completion) => workload.done(&completion, self.world, oracle)?,
                HostEvent::Released(tag) => workload.release(tag, self.world),
                HostEvent::Drained(number) | HostEvent::Frozen(number) => self.port.answer(number, Ok(Vec::new())),
                HostEvent::RegionCallDone(number) => {
                    self.world.moments.push("regions called");
                    if self.quiescing.contains(&number) {
                        self.world.moments.push("ring quiet");
                    }
                    self.port.answer(number, Ok(Vec::new()));
                }
                HostEvent::TaskReply(number, reply) => self.port.deliver_device_reply(number, reply),
                HostEvent::Synced(number, result) => self.port.answer_sync(number, result),
                HostEvent::PoolCallDone(number, _) => {
                    unreachable!("no pool is served here, and call {number} has ended")
                }
                HostEvent::Fault(fault) => {
                    self.world.moments.push("fault of a member");
                    self.port.report_fault(fault);
                }
            }
        }
        Ok(())
    }
}
