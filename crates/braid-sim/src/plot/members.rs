//! What the administrator does to redundant arrays that serve: members are pulled, failed by hand, returned and filled,
//! their jobs paused and limited.

use braid_engine::io::{DeviceId, LeafId};
use braid_engine::keeper::{EngineIo, Order};
use braid_engine::lifecycle::{LifecycleError, RebuildKind, RebuildTarget};
use braid_format::MemberId;

use super::{Admin, Habits};

impl Admin {
    /// One thing that an administrator, or a fault, does to a redundant array.
    pub async fn act_on_mirrors(&mut self, habits: Habits) {
        let serving: Vec<usize> = self.kept.keys().copied().collect();
        if serving.is_empty() {
            return self.start_mirrors(Some(habits)).await;
        }
        let index = *self.rng.pick(&serving);
        let id = self.kept[&index].id;
        let (victims, others) = {
            let stage = self.stage.borrow();
            let mirror = &stage.mirrors[index];
            (mirror.victims.clone(), mirror.others.clone())
        };
        let any = self.rng.below(20);
        let like = match habits.aim {
            Some("pulling a member") => 0,
            Some("returning a member") => 3,
            Some("failing a member") => 6,
            Some("adding a spare") => 8,
            Some("filling a new member") => 9,
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
                self.stage.borrow_mut().pull.push(disk);
                if self.stage.borrow().mirrors[index].well.is_none() && self.rng.below(3) == 0 {
                    // Their bus has failed.
                    self.count("pull all members");
                    let all = self.stage.borrow().mirrors[index].disks.clone();
                    self.stage.borrow_mut().pull.extend(all.into_iter().filter(|other| *other != disk));
                }
                self.port.sleep(self.rng.below(2_000_000)).await;
            }
            3..=5 => self.return_members(index).await,
            6 | 7 => {
                let disk = *self.rng.pick(&victims);
                let role = self.stage.borrow().mirrors[index].disks.iter().position(|d| *d == disk);
                let Some(role) = role else { return };
                self.phase("failing a member");
                match self.port.give_order(id, Order::Fail(vec![role as u16])).await {
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
                let roles = self.stage.borrow().mirrors[index].disks.len() as u64;
                let role = self.rng.below(roles) as u16;
                self.phase("filling a new member");
                let newcomer = RebuildTarget::New { leaf, id: MemberId::from_random(self.rng.bits()), force: true };
                match self
                    .port
                    .give_order(id, Order::Rebuild { slot: role, target: newcomer, kind: RebuildKind::Full })
                    .await
                {
                    Ok(()) => {
                        self.count("fill a new member");
                        self.liken(index, id, role, leaf).await;
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
                let number = self.stage.borrow().mirrors[index].number.expect("a served array has a number");
                self.connect_to(number, id, Some(habits));
            }
            _ => {
                let number = self.stage.borrow().mirrors[index].number.expect("a served array has a number");
                self.connect_to(number, id, Some(habits));
            }
        }
    }

    /// Lets one of the array's jobs wait, go on, be slower or end; or one that there is not.
    async fn order_jobs(&mut self, id: DeviceId) {
        self.phase("ordering a job");
        let jobs = self.stage.borrow().jobs.of(id);
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

    /// An order may be refused; that it makes the array fail must not be.
    pub(super) fn expect_refusal(&self, error: &LifecycleError) {
        self.stage.borrow_mut().notes.push(format!("refused: {error}"));
        self.count("order refused");
    }

    /// Lets a disk return, saying whether it may have lost something since it was let in last.
    async fn welcome(&mut self, id: DeviceId, disk: usize, leaf: LeafId) -> Result<(), LifecycleError> {
        let lost = self.stage.borrow_mut().lossy.remove(&disk);
        let welcome = self.port.give_order(id, Order::Return { leaf, kept_writes: !lost }).await;
        match (&welcome, lost) {
            (Err(_), true) => drop(self.stage.borrow_mut().lossy.insert(disk)),
            (Ok(()), false) => self.count("return a member that has lost nothing"),
            _ => {}
        }
        welcome
    }

    /// Lets every disk return that is here, or was pulled, and is out.
    pub(super) async fn return_members(&mut self, index: usize) {
        let Some(kept) = self.kept.get(&index) else { return };
        let (id, away) = (kept.id, kept.away.clone());
        self.phase("returning a member");
        for disk in away {
            let Some(leaf) = self.leaves.get(&disk).copied() else { continue };
            if let Err(error) = self.welcome(id, disk, leaf).await {
                self.expect_refusal(&error);
                if self.rng.coin() {
                    continue;
                }
                // A disk is opened anew only when it is no member: one that serves is the open file that it is.
                let roles = self.stage.borrow().mirrors[index].victims.clone();
                let role = self.stage.borrow().mirrors[index].disks.iter().position(|d| *d == disk);
                let Some(role) = role.filter(|_| roles.contains(&disk)) else { continue };
                if self.port.give_order(id, Order::Fail(vec![role as u16])).await.is_err() {
                    continue;
                }
                self.port.reopen(leaf).await;
                if self.rng.below(3) == 0 {
                    // As if it were a new one.
                    let newcomer = RebuildTarget::New { leaf, id: MemberId::from_random(self.rng.bits()), force: true };
                    let order = Order::Rebuild { slot: role as u16, target: newcomer, kind: RebuildKind::Full };
                    match self.port.give_order(id, order).await {
                        Ok(()) => {
                            self.count("fill a member anew");
                            {
                                let mirror = &mut self.stage.borrow_mut().mirrors[index];
                                mirror.apart.remove(&disk);
                                mirror.old.remove(&disk);
                            }
                            self.liken(index, id, role as u16, leaf).await;
                        }
                        Err(error) => self.expect_refusal(&error),
                    }
                    continue;
                }
                match self.welcome(id, disk, leaf).await {
                    Ok(()) => self.count("return a member"),
                    Err(error) => self.expect_refusal(&error),
                }
                continue;
            }
            self.count("return a member");
        }
    }
}
