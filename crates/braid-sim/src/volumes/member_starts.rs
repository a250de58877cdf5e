//! How the members of the pool are started as devices when a life begins, and stopped when it ends.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use braid_array_admin::lifecycle::{self, StartOptions};
use braid_array_admin::reconciler::{Order, Reconciler, ReconcilerOptions, StoppedArray};
use braid_engine::io::{DeviceId, LeafId, MetaIo, ShardId};
use braid_engine::pool::{EXTENT_BYTES, PoolDevice};
use braid_engine::{DeviceLayout, EngineIo, Node, PoolMemberLocation, PoolMembers};

use super::admin::Admin;
use super::oracle::BLOCK;
use super::parameters::Kind;
use super::shared_state::SharedState;
use crate::labelled;

impl Admin {
    /// Starts every member as a device. Returns `false` if one does not start.
    pub async fn start_members(&mut self) -> bool {
        let count = self.shared.borrow().members.len();
        for k in 0..count {
            let kind = self.shared.borrow().members[k].kind;
            match kind {
                Kind::Bare => self.publish_bare(k).await,
                _ if self.start_array(k).await => {}
                _ => return false,
            }
        }
        true
    }

    async fn publish_bare(&self, k: usize) {
        let disk = self.shared.borrow().members[k].disks[0];
        let leaf = self.leaves[&disk];
        let node = Node::Leaf { leaf, start: 0, len: self.port.size_bytes(leaf) };
        let layout = DeviceLayout::new(self.port.new_version(), BLOCK as u32, &node);
        self.port.publish(DeviceId(k as u32), Some(Arc::new(layout))).await;
    }

    async fn start_array(&mut self, k: usize) -> bool {
        self.phase("starting an array");
        let leaves: Vec<LeafId> = self.leaves.values().copied().collect();
        let scan = lifecycle::scan(&self.port, &leaves).await;
        let (uuid, exists) = {
            let shared = self.shared.borrow();
            (shared.members[k].uuid, shared.members[k].exists)
        };
        let found = scan.arrays.into_iter().find(|array| Some(array.uuid) == uuid);
        let found = found.filter(|found| exists || found.status.starts_by_itself());
        let (array, clean) = match found {
            Some(found) => {
                let clean = found.newest.as_ref().is_some_and(|newest| newest.clean);
                // It is known that the array was not run without the members that are present.
                let options = StartOptions { degraded: true, ..StartOptions::new(self.rng.bits(), self.rng.bits()) };
                match lifecycle::start(&self.port, &found, options).await {
                    Ok(array) => (array, clean),
                    Err(error) => {
                        return self.report_violation(format!("array {k} does not start ({}): {error}", found.status));
                    }
                }
            }
            None if exists => return self.report_violation(format!("array {k} is not found")),
            None => {
                let request = {
                    let mut shared = self.shared.borrow_mut();
                    shared.names += 1;
                    let serial = shared.names;
                    let member = &mut shared.members[k];
                    let leaves = member.disks.iter().map(|disk| self.leaves[disk]).collect();
                    let request = labelled::request(serial, member.spec, leaves, true, &mut self.rng);
                    member.uuid = Some(request.uuid);
                    request
                };
                match lifecycle::create(&self.port, &request).await {
                    Ok(array) => (array, true),
                    Err(error) => return self.report_violation(format!("array {k} cannot be made: {error}")),
                }
            }
        };
        self.shared.borrow_mut().members[k].exists = true;
        let size = array.geometry().size_bytes();
        let of_pool = self.shared.borrow().members[k].of_pool;
        let needed = of_pool.layout.data + u64::from(of_pool.extents) * EXTENT_BYTES;
        assert!(size >= needed, "array {k} has {size} bytes, and the pool needs {needed}");
        let out = array.members().filter(|member| member.state != braid_format::MemberState::InSync).count();
        if out > 0 {
            self.count("arrays", "started degraded");
        }
        let options = ReconcilerOptions {
            device: DeviceId(k as u32),
            block_bytes: BLOCK as u32,
            home: ShardId(self.rng.below(u64::from(self.shards)) as u16),
            clean,
            force: false,
            clear_after_ns: *self.rng.pick(&[100_000, 3_000_000, 200_000_000]),
            lease: None,
            in_sectors: false,
            nearest: None,
        };
        let reconciler = match Reconciler::start(&self.port, array, options).await {
            Ok(reconciler) => reconciler,
            Err(error) => return self.report_violation(format!("array {k} is not served: {error}")),
        };
        let stopped = Rc::new(RefCell::new(None));
        let (result, port) = (Rc::clone(&stopped), self.port.clone());
        let mut shared = self.shared.borrow_mut();
        shared.spawned.push(Box::pin(async move {
            let stopped = reconciler.run(&port).await;
            *result.borrow_mut() = Some(stopped);
        }));
        shared.members[k].stopped_array = Some(stopped);
        true
    }

    /// Stops all arrays, and may record in their labels that they were stopped in order.
    pub async fn stop_members(&mut self) {
        let count = self.shared.borrow().members.len();
        for k in 0..count {
            let device = DeviceId(k as u32);
            let stopped_array = self.shared.borrow_mut().members[k].stopped_array.take();
            let Some(stopped_array) = stopped_array else {
                self.port.publish(device, None).await;
                continue;
            };
            // The array may refuse requests that it still receives.
            drop(self.port.give_order(device, Order::Stop).await);
            self.port.forget(device);
            let stopped = std::future::poll_fn(|_| match stopped_array.borrow_mut().take() {
                Some(stopped) => std::task::Poll::Ready(stopped),
                None => std::task::Poll::Pending,
            });
            let StoppedArray { mut array, is_clean: equal } = stopped.await;
            if equal && self.rng.below(4) > 0 && array.stop(&self.port).await.is_ok() {
                self.count("arrays", "noted as stopped");
            }
        }
    }

    /// Pulls a disk of an array, fails it by command, or returns it.
    pub async fn act_on_arrays(&mut self) {
        let arrays: Vec<(usize, usize)> = {
            let shared = self.shared.borrow();
            let faulty_disks =
                shared.members.iter().enumerate().filter_map(|(k, member)| Some((k, member.faulty_disk?)));
            faulty_disks.filter(|(k, _)| shared.members[*k].stopped_array.is_some()).collect()
        };
        if arrays.is_empty() {
            return;
        }
        let (k, faulty_disk) = *self.rng.pick(&arrays);
        let device = DeviceId(k as u32);
        let role = self.shared.borrow().members[k].disks.iter().position(|disk| *disk == faulty_disk);
        let role = role.expect("the victim is one of them") as u16;
        let Some(leaf) = self.leaves.get(&faulty_disk).copied() else { return };
        match self.rng.below(4) {
            0 => {
                self.phase("pulling a disk");
                self.count("arrays", "disk pulled");
                self.shared.borrow_mut().pull.push(faulty_disk);
            }
            1 => {
                self.phase("failing a disk");
                if self.port.give_order(device, Order::Fail(vec![role])).await.is_ok() {
                    self.count("arrays", "disk failed");
                }
            }
            _ => {
                self.phase("returning a disk");
                if self.port.give_order(device, Order::Return { leaf, kept_writes: false }).await.is_ok() {
                    return self.count("arrays", "disk returned");
                }
                // A disk is reopened only when it is no member.
                if self.port.give_order(device, Order::Fail(vec![role])).await.is_ok() {
                    self.port.reopen(leaf).await;
                    if self.port.give_order(device, Order::Return { leaf, kept_writes: false }).await.is_ok() {
                        self.count("arrays", "disk returned");
                    }
                }
            }
        }
    }

    /// Reports a violation. Returns `false`.
    pub(super) fn report_violation(&self, why: String) -> bool {
        self.shared.borrow_mut().set_violation(|| why);
        false
    }
}

impl SharedState {
    /// Returns where the data of each member begin.
    pub fn pool_members(&self) -> Arc<PoolMembers> {
        let place = |of: &PoolDevice| (of.number, PoolMemberLocation { device: of.device, data: of.layout.data });
        Arc::new(PoolMembers::new(self.members.iter().map(|member| place(&member.of_pool))))
    }
}
