//! The administrator's actions on served redundant arrays: members are pulled, failed by hand, returned and rebuilt,
//! and their jobs paused and limited.

use braid_array_admin::lifecycle::{LifecycleError, RebuildKind, RebuildTarget};
use braid_array_admin::reconciler::Order;
use braid_engine::EngineIo;
use braid_engine::io::{DeviceId, LeafId};
use braid_format::MemberId;

use super::{Admin, AdminHabits};

impl Admin {
    /// Performs one action of the administrator, or one fault, on a redundant array.
    pub async fn act_on_mirrors(&mut self, habits: AdminHabits) {
        let serving: Vec<usize> = self.mirrors.keys().copied().collect();
        if serving.is_empty() {
            return self.start_mirrors(Some(habits)).await;
        }
        let index = *self.rng.pick(&serving);
        let id = self.mirrors[&index].id;
        let (victims, others) = {
            let state = self.state.borrow();
            let mirror = &state.mirrors[index];
            (mirror.victims.clone(), mirror.others.clone())
        };
        let any = self.rng.below(20);
        let like = match habits.aim {
            Some("pulling a member") => 0,
            Some("returning a member") => 3,
            Some("failing a member") => 6,
            Some("adding a spare") => 8,
            Some("rebuilding a new member") => 9,
            Some("replacing a member") => 16,
            Some("starting a mirror" | "stopping a mirror") => 12,
            Some("checking a mirror") => 13,
            _ => any,
        };
        match if self.rng.coin() { like } else { any } {
            0..=2 => {
                let disk = *self.rng.pick(&victims);
                self.phase("pulling a member");
                self.count("pull a member");
                self.state.borrow_mut().pull.push(disk);
                if self.state.borrow().mirrors[index].healthy.is_none() && self.rng.below(3) == 0 {
                    // The bus of the disks has failed.
                    self.count("pull all members");
                    let all = self.state.borrow().mirrors[index].disks.clone();
                    self.state.borrow_mut().pull.extend(all.into_iter().filter(|other| *other != disk));
                }
                self.port.sleep(self.rng.below(2_000_000)).await;
            }
            3..=5 => self.return_members(index).await,
            6 | 7 => {
                let disk = *self.rng.pick(&victims);
                let slot = self.state.borrow().mirrors[index].disks.iter().position(|d| *d == disk);
                let Some(slot) = slot else { return };
                self.phase("failing a member");
                match self.port.give_order(id, Order::Fail(vec![slot as u16])).await {
                    Ok(()) => self.count("fail a member"),
                    Err(error) => self.expect_refusal(&error),
                }
            }
            8 if !others.is_empty() => {
                let disk = *self.rng.pick(&others);
                let leaf = self.leaves.get(&disk).copied();
                let Some(leaf) = leaf else { return };
                self.phase("adding a spare");
                let order = Order::AddSpare { leaf, id: MemberId::from_random(self.rng.bits()), force: true };
                match self.port.give_order(id, order).await {
                    Ok(()) => self.count("add a spare"),
                    Err(error) => self.expect_refusal(&error),
                }
            }
            9 if !others.is_empty() => {
                let disk = *self.rng.pick(&others);
                let Some(leaf) = self.leaves.get(&disk).copied() else { return };
                let slots = self.state.borrow().mirrors[index].disks.len() as u64;
                let slot = self.rng.below(slots) as u16;
                self.phase("rebuilding a new member");
                let new_member = RebuildTarget::New { leaf, id: MemberId::from_random(self.rng.bits()), force: true };
                match self
                    .port
                    .give_order(id, Order::Rebuild { slot, target: new_member, kind: RebuildKind::Full })
                    .await
                {
                    Ok(()) => {
                        self.count("rebuild a new member");
                        self.fill_by_delta(index, id, slot, leaf).await;
                    }
                    Err(error) => self.expect_refusal(&error),
                }
            }
            10 | 11 => self.order_jobs(id).await,
            12 => {
                self.stop_mirror(index).await;
                self.start_mirror(index, Some(habits)).await;
            }
            16..=19 if !others.is_empty() => self.replace_member(index, id, &others).await,
            13 | 14 => {
                self.check_mirror(index).await;
                let number = self.state.borrow().mirrors[index].number.expect("a served array has a number");
                self.connect_to(number, id, Some(habits));
            }
            _ => {
                let number = self.state.borrow().mirrors[index].number.expect("a served array has a number");
                self.connect_to(number, id, Some(habits));
            }
        }
    }

    /// Pauses, resumes, limits or cancels a job of the array, or one that does not exist.
    async fn order_jobs(&mut self, id: DeviceId) {
        self.phase("ordering a job");
        let jobs = self.state.borrow().jobs.of(id);
        let job = if jobs.is_empty() { self.rng.below(3) } else { self.rng.pick(&jobs).number };
        let (kind, order) = match self.rng.below(6) {
            0 => ("pause", Order::Pause(job)),
            1 | 2 => ("resume", Order::Resume(job)),
            3 => ("cancel", Order::Cancel(job)),
            _ => {
                let rate_bytes_per_s = if self.rng.coin() { 0 } else { self.rng.between(1 << 16, 64 << 20) };
                ("limit", Order::Limit { job, rate_bytes_per_s })
            }
        };
        match self.port.give_order(id, order).await {
            Ok(()) => self.count(&format!("{kind} a job")),
            Err(error) => self.expect_refusal(&error),
        }
    }

    /// Records the refusal of an order. An order may be refused, but must not make the array fail.
    pub(super) fn expect_refusal(&self, error: &LifecycleError) {
        self.state.borrow_mut().notes.push(format!("refused: {error}"));
        self.count("order refused");
    }

    /// Returns a disk to the array, and says whether it may have lost writes since it last joined.
    async fn return_disk(&mut self, id: DeviceId, disk: usize, leaf: LeafId) -> Result<(), LifecycleError> {
        let lost = self.state.borrow_mut().lossy.remove(&disk);
        let reply = self.port.give_order(id, Order::Return { leaf, kept_writes: !lost }).await;
        match (&reply, lost) {
            (Err(_), true) => drop(self.state.borrow_mut().lossy.insert(disk)),
            (Ok(()), false) => self.count("return a member that has lost nothing"),
            _ => {}
        }
        reply
    }

    /// Returns every present disk that is out of the array or was pulled.
    pub(super) async fn return_members(&mut self, index: usize) {
        let Some(served) = self.mirrors.get(&index) else { return };
        let (id, missing) = (served.id, served.missing.clone());
        self.phase("returning a member");
        for disk in missing {
            let Some(leaf) = self.leaves.get(&disk).copied() else { continue };
            if let Err(error) = self.return_disk(id, disk, leaf).await {
                self.expect_refusal(&error);
                if self.rng.coin() {
                    continue;
                }
                // A disk is reopened only while it is not a member: a served member keeps its open file.
                let victims = self.state.borrow().mirrors[index].victims.clone();
                let slot = self.state.borrow().mirrors[index].disks.iter().position(|d| *d == disk);
                let Some(slot) = slot.filter(|_| victims.contains(&disk)) else { continue };
                if self.port.give_order(id, Order::Fail(vec![slot as u16])).await.is_err() {
                    continue;
                }
                self.port.reopen(leaf).await;
                if self.rng.below(3) == 0 {
                    // The disk becomes a new member.
                    let new_member =
                        RebuildTarget::New { leaf, id: MemberId::from_random(self.rng.bits()), force: true };
                    let order = Order::Rebuild { slot: slot as u16, target: new_member, kind: RebuildKind::Full };
                    match self.port.give_order(id, order).await {
                        Ok(()) => {
                            self.count("rebuild a member as new");
                            {
                                let mirror = &mut self.state.borrow_mut().mirrors[index];
                                mirror.diverged.remove(&disk);
                                mirror.old.remove(&disk);
                            }
                            self.fill_by_delta(index, id, slot as u16, leaf).await;
                        }
                        Err(error) => self.expect_refusal(&error),
                    }
                    continue;
                }
                match self.return_disk(id, disk, leaf).await {
                    Ok(()) => self.count("return a member"),
                    Err(error) => self.expect_refusal(&error),
                }
                continue;
            }
            self.count("return a member");
        }
    }
}
