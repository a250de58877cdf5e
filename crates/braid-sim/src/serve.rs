//! One life while it lasts: what tasks want is done, and what happens is passed on.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use braid_engine::RegionCall;
use braid_engine::io::{ErrorKind, LeafError};
use braid_engine::keeper::ReconcilerEvent;

use crate::disk::SimDisk;
use crate::host::{Host, Told};
use crate::meta::{Port, Wanted};
use crate::oracle::Violation;
use crate::plot::mirrors::Mirror;
use crate::plot::script::make_unreadable;
use crate::stage::Stage;
use crate::world::{Happening, World};

/// One life, while it lasts.
pub(crate) struct Run<'a> {
    pub host: Host,
    pub port: Port,
    /// Which task's wish each publish is, by its number.
    pub publishing: Vec<u64>,
    /// Calls that wait until a ring may move.
    pub quiescing: Vec<u64>,
    pub world: &'a mut World,
    pub stage: &'a Rc<RefCell<Stage>>,
}

impl Run<'_> {
    /// Starts what the tasks want.
    pub fn serve_tasks(&mut self) {
        for (id, wanted) in self.port.take_wanted() {
            match self.world.submit_meta(id, wanted) {
                None => self.world.counters.add("labels", "i/o"),
                Some(Wanted::Sleep(ns)) => self.world.after(ns, Happening::MetaDone(id, Ok(Vec::new()))),
                Some(Wanted::Publish(device, layout)) => {
                    let layout: Option<Arc<_>> = layout;
                    self.publishing.push(id);
                    self.host.publish(self.world, id, device, layout.as_ref());
                }
                Some(Wanted::IsIdle(leaf)) => {
                    let busy = self.world.is_busy(leaf);
                    let answer = if busy { Err(LeafError::of(ErrorKind::Busy)) } else { Ok(Vec::new()) };
                    self.port.answer(id, answer);
                }
                Some(Wanted::Reopen(leaf)) => self.stage.borrow_mut().reopening.push((id, leaf)),
                Some(Wanted::Requests(device)) => {
                    self.port.answer(id, Ok(self.host.requests(device).to_le_bytes().to_vec()));
                }
                Some(Wanted::Renewed(device)) => self.host.renewed(self.world, device),
                Some(Wanted::Freeze(device)) => {
                    self.world.moments.push("freezing");
                    for (disk, spoil) in std::mem::take(&mut self.stage.borrow_mut().at_freeze) {
                        spoil.apply(self.world, disk);
                    }
                    self.host.freeze(self.world, id, device);
                }
                Some(Wanted::Request(asked)) => self.host.request(self.world, id, asked),
                Some(Wanted::Sync(part)) => {
                    self.world.moments.push("copying");
                    self.host.sync(self.world, id, part);
                }
                Some(Wanted::Call(device, home, call)) => {
                    match call {
                        RegionCall::Settle(_) => self.world.moments.push("settling"),
                        RegionCall::Clear(_) => {
                            self.world.moments.push("clearing");
                            self.world.counters.add("keepers", "clearing");
                        }
                        RegionCall::Quiesce => {
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
        for (device, note) in self.port.take_notes() {
            let kind = crate::plot::mirrors::kind_of(&note);
            self.world.counters.add("keepers", kind);
            self.world.moments.push(kind);
            self.world.note(format_args!("keeper of device {}: {note:?}", device.0));
            match &note {
                ReconcilerEvent::Dropped(roles) => {
                    let mut stage = self.stage.borrow_mut();
                    stage.lost.insert(device);
                    stage.rows_lose(device, roles, !self.world.has_hung());
                    stage.promoted.retain(|role| !roles.contains(role));
                }
                ReconcilerEvent::Grown(_, after) => {
                    let Stage { mirrors, oracle, .. } = &mut *self.stage.borrow_mut();
                    for mirror in mirrors.iter_mut().filter(|mirror| mirror.serves_as == Some(device)) {
                        if let Some(well) = mirror.well {
                            mirror.has_grown(*after, self.world.disks[well].size_bytes(), oracle);
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
                    let mut stage = self.stage.borrow_mut();
                    let of = stage.mirrors.iter_mut().find(|m| m.serves_as == Some(device));
                    of.into_iter().for_each(|mirror| mirror.journal.done_without |= *lost);
                    // Who has failed may not have said so in its labels.
                    let of = stage.mirrors.iter().position(|m| m.serves_as == Some(device) && m.well.is_some());
                    if let Some(index) = of {
                        stage.ring_is_on(index, disk);
                    }
                }
                ReconcilerEvent::Replaced(role, leaf) => {
                    let successor = self.world.leaves[leaf.0 as usize];
                    let mut stage = self.stage.borrow_mut();
                    // Where its copies are is not what was seen when it was whole.
                    stage.lost.insert(device);
                    for mirror in stage.mirrors.iter_mut().filter(|mirror| mirror.serves_as == Some(device)) {
                        if mirror.well.is_some() && mirror.well == mirror.disks.get(usize::from(*role)).copied() {
                            mirror.well = Some(successor);
                        }
                    }
                }
                ReconcilerEvent::InSync(role) => {
                    let mut stage = self.stage.borrow_mut();
                    stage.promoted.insert(*role);
                    stage.rows_promote(device);
                }
                ReconcilerEvent::Resynced
                    if self.stage.borrow().mirrors.iter().any(|m| m.has_lost(&self.stage.borrow().oracle)) =>
                {
                    self.world.counters.add("keepers", "resynced but for what cannot be read");
                }
                _ => {}
            }
            if let ReconcilerEvent::Job(info) = &note
                && let Err(why) = self.stage.borrow_mut().jobs.told(device, info)
            {
                self.stage.borrow_mut().violation.get_or_insert(why);
            }
            let of_device = |m: &&Mirror| m.serves_as == Some(device);
            let careless = self.stage.borrow().mirrors.iter().filter(of_device).any(|m| m.well.is_none());
            let half = self.stage.borrow().half == Some(device);
            let excused = (careless || half) && self.world.had_faults();
            if matches!(note, ReconcilerEvent::ArrayFailed) && !excused {
                let why = Violation(format!("device {} has failed, and one member of it is well", device.0));
                self.stage.borrow_mut().violation.get_or_insert(why);
            }
        }
        let mut stage = self.stage.borrow_mut();
        for note in stage.notes.drain(..) {
            self.world.note(format_args!("admin: {note}"));
        }
        {
            let Stage { rot, oracle, violation, .. } = &mut *stage;
            if let Err(why) = rot.serve(self.world, oracle) {
                violation.get_or_insert(why);
            }
        }
        for refused in std::mem::take(&mut stage.refused) {
            if let Err(why) = refused.judge(self.world, &stage.mirrors) {
                stage.violation.get_or_insert(why);
            }
        }
        if let Some(alike) = stage.alike.take() {
            stage.unlike = Some(alike.differing(self.world));
        }
        for copies in std::mem::take(&mut stage.compare) {
            self.world.counters.add("copies", "compared");
            if let Err(why) = copies.judge(self.world, &mut stage.oracle) {
                stage.violation.get_or_insert(why);
            }
        }
        let world = &mut *self.world;
        let broken = |(_, disk): &(usize, &SimDisk)| disk.gone || disk.flush_failed;
        stage.lossy.extend(world.disks.iter().enumerate().filter(broken).map(|(disk, _)| disk));
        let port = &self.port;
        stage.reopening.retain(|(id, leaf)| {
            let done = world.reopen(*leaf);
            if done {
                port.answer(*id, Ok(Vec::new()));
            }
            !done
        });
        let host = &self.host;
        stage.spreading.retain(|(device, size_bytes)| !host.offers(*device, *size_bytes));
        for (leaf, size_bytes) in std::mem::take(&mut stage.enlarge) {
            let disk = self.world.leaves[leaf.0 as usize];
            self.world.note(format_args!("disk {disk} has {size_bytes} bytes now"));
            self.world.disks[disk].enlarge(size_bytes);
            self.port.set_size(leaf, size_bytes);
            stage.enlarged.insert(disk);
        }
        for disk in std::mem::take(&mut stage.fill_up) {
            self.world.disks[disk].full = true;
        }
        for disk in std::mem::take(&mut stage.pull) {
            self.world.pull(disk);
        }
        for (disk, spoil) in std::mem::take(&mut stage.spoil) {
            spoil.apply(self.world, disk);
        }
        for wish in std::mem::take(&mut stage.unreadable) {
            make_unreadable(&wish, self.world, &mut stage.oracle);
        }
        stage.workload.arm(self.world);
    }

    pub fn happens(&mut self, happening: Happening) -> Result<(), Violation> {
        let (world, host) = (&mut *self.world, &mut self.host);
        match happening {
            Happening::LeafDone(shard, cookie, result) => host.leaf_done(world, shard, cookie, result),
            Happening::LeafLate(shard, cookie) => host.leaf_late(world, shard, cookie),
            Happening::LeafReturned(shard, cookie) => host.leaf_returned(world, shard, cookie),
            Happening::MetaDone(id, answer) => self.port.answer(id, answer),
            Happening::Deliver(from, to) => host.deliver(world, from, to),
            Happening::Publish(shard) => host.take_mail(world, shard),
            Happening::EndTurn(shard) => host.end_turn(world, shard),
            Happening::Wake(client) => {
                let mut stage = self.stage.borrow_mut();
                let Stage { workload, oracle, .. } = &mut *stage;
                workload.wake(client as usize, world, host, oracle);
            }
            Happening::CrashPoint => {}
        }
        self.listen()
    }

    /// Passes on what the shards have to tell.
    fn listen(&mut self) -> Result<(), Violation> {
        while let Some(told) = self.host.told.pop_front() {
            let mut stage = self.stage.borrow_mut();
            let Stage { workload, oracle, .. } = &mut *stage;
            match told {
                Told::Done(completion) => workload.done(&completion, self.world, oracle)?,
                Told::Released(tag) => workload.release(tag, self.world),
                Told::Drained(number) | Told::Frozen(number) => self.port.answer(number, Ok(Vec::new())),
                Told::Called(number) => {
                    self.world.moments.push("regions called");
                    if self.quiescing.contains(&number) {
                        self.world.moments.push("ring quiet");
                    }
                    self.port.answer(number, Ok(Vec::new()));
                }
                Told::Given(number, given) => self.port.give(number, given),
                Told::Synced(number, result) => self.port.answer_sync(number, result),
                Told::PoolCalled(number, _) => unreachable!("no pool is served here, and call {number} has ended"),
                Told::Trouble(trouble) => {
                    self.world.moments.push("trouble of a member");
                    self.port.tell_trouble(trouble);
                }
            }
        }
        Ok(())
    }
}
