//! The members of the pool: bare disks, and redundant arrays with their labels and keepers, one disk of which may fail.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use braid_engine::io::{DeviceId, LeafId, MetaIo, ShardId};
use braid_engine::keeper::{EngineIo, Order, Reconciler, ReconcilerOptions, StoppedArray};
use braid_engine::lifecycle::{self, StartOptions};
use braid_engine::pool::{EXTENT_BYTES, MemberLayout, PoolDevice};
use braid_engine::{DeviceLayout, Node, PoolMembers, PoolPlace, Uuid};
use braid_format::DiskLayout;
use braid_geometry::{Level, Spec};

use super::admin::Admin;
use super::nature::{Kind, Nature};
use super::scene::{BLOCK, Scene};
use crate::disk::{Profile, SimDisk};
use crate::labelled;
use crate::rng::Rng;
use crate::world::World;

/// Devices from this number on are volumes.
pub(super) const MEMBERS_MAX: u32 = 8;
/// Where data begin on a small disk with labels, and what stands behind them.
const LABELS_BYTES: u64 = (1 << 20) + 8192;

/// One member, over all lives.
pub(super) struct Member {
    pub kind: Kind,
    pub disks: Vec<usize>,
    /// The disk that may fail; of a bare one perhaps only what lies in extents.
    pub victim: Option<usize>,
    /// How it behaves once the pool has been made.
    faulty: Profile,
    spec: Spec,
    uuid: Option<Uuid>,
    exists: bool,
    pub of_pool: PoolDevice,
    /// The keeper of the array that serves leaves here what it kept.
    pub serves: Option<Rc<RefCell<Option<StoppedArray>>>>,
}

impl Member {
    /// A member of this number, with its disks.
    pub fn draw(number: u32, owner_slots: u32, nature: &Nature, world: &mut World, rng: &mut Rng) -> Member {
        let kind = *rng.pick(nature.kinds);
        let extents = if nature.is_small { rng.between(5, 12) } else { rng.between(12, 40) } as u32;
        let ring_blocks = *rng.pick(&[38u64, 48, 80, 160]);
        let starts = BLOCK;
        let ring = starts + 2 * BLOCK;
        let owners = ring + ring_blocks * BLOCK;
        let table = owners + u64::from(owner_slots) * 256;
        let records = (extents + *rng.pick(&[1u32, 16, 100])).next_multiple_of(128);
        let addresses = table + u64::from(records) * 32;
        let data = (addresses + u64::from(extents) * 512).next_multiple_of(EXTENT_BYTES);
        let of_pool = PoolDevice {
            number: number as u8,
            device: DeviceId(number),
            layout: MemberLayout { starts, owners, table, addresses, data },
            ring: (ring, ring_blocks),
            extents,
            zero_slots: records - extents,
        };
        let bytes = data + u64::from(extents) * EXTENT_BYTES;
        let (level, count, with_data) = match kind {
            Kind::Bare => (Level::Concat, 1, 1),
            Kind::Mirror => {
                let count = rng.between(2, 3);
                (Level::Raid1, count, 1)
            }
            Kind::Parity => {
                let count = rng.between(3, 4);
                (Level::Raid5, count, count - 1)
            }
        };
        let spec = labelled::draw_spec(&[level], rng);
        let each = match kind {
            Kind::Bare => bytes,
            // Whole stripes.
            _ => LABELS_BYTES + (bytes.div_ceil(with_data) + 2 * spec.chunk_bytes).next_multiple_of(BLOCK),
        };
        let disks: Vec<usize> = (0..count)
            .map(|_| {
                let disk = world.disks.len();
                let mut profile = Profile::healthy(rng);
                profile.slow = nature.slow.unwrap_or(profile.slow);
                let junk = kind == Kind::Bare || rng.coin();
                world.disks.push(SimDisk::new(disk as u64, each, junk, profile));
                disk
            })
            .collect();
        for disk in disks.iter().filter(|_| kind != Kind::Bare) {
            let places = DiskLayout::for_device(each).expect("a disk that has room for labels");
            world.bitmaps.insert(*disk, (places.bitmap.start, places.bitmap.start + places.bitmap.bytes));
            if kind == Kind::Parity {
                world.journals.insert(*disk, (places.journal.start, places.journal.start + places.journal.bytes));
            }
        }
        let victim = (kind != Kind::Bare && nature.faults).then(|| *rng.pick(&disks));
        let mut faulty = Profile::faulty(rng);
        let victim = if kind == Kind::Bare && nature.own_faults {
            faulty = Profile {
                write_error: rng.between(500, 20_000) as u32,
                instant: false,
                ..world.disks[disks[0]].profile
            };
            Some(disks[0])
        } else if kind == Kind::Bare && nature.data_faults {
            // What the pool writes of its own has no second place.
            world.spared.insert(disks[0], data);
            faulty.slow = nature.slow.unwrap_or(faulty.slow);
            faulty.write_error = rng.between(2_000, 40_000) as u32;
            faulty.hang = rng.probability(nature.hang).max(nature.hang / 4);
            Some(disks[0])
        } else {
            victim
        };
        Member { kind, disks, victim, faulty, spec, uuid: None, exists: false, of_pool, serves: None }
    }

    /// From now on its victim may fail; or nothing fails any more.
    pub fn behave(&self, faults: bool, world: &mut World) {
        for disk in &self.disks {
            let of = &mut world.disks[*disk];
            if !faults {
                (of.profile, of.gone) = (of.profile.repaired(), false);
                of.heal();
            } else if self.victim == Some(*disk) {
                of.profile = self.faulty;
            }
        }
    }
}

impl Admin {
    /// Brings up every member as a device. False: one does not come up.
    pub async fn start_members(&mut self) -> bool {
        let count = self.scene.borrow().members.len();
        for k in 0..count {
            let kind = self.scene.borrow().members[k].kind;
            match kind {
                Kind::Bare => self.publish_bare(k).await,
                _ if self.start_array(k).await => {}
                _ => return false,
            }
        }
        true
    }

    async fn publish_bare(&self, k: usize) {
        let disk = self.scene.borrow().members[k].disks[0];
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
            let scene = self.scene.borrow();
            (scene.members[k].uuid, scene.members[k].exists)
        };
        let found = scan.arrays.into_iter().find(|array| Some(array.uuid) == uuid);
        let found = found.filter(|found| exists || found.status.starts_by_itself());
        let (array, clean) = match found {
            Some(found) => {
                let clean = found.newest.as_ref().is_some_and(|newest| newest.clean);
                // It is known that nobody has gone on without those that are here.
                let options = StartOptions { degraded: true, ..StartOptions::new(self.rng.bits(), self.rng.bits()) };
                match lifecycle::start(&self.port, &found, options).await {
                    Ok(array) => (array, clean),
                    Err(error) => return self.odd(format!("array {k} does not start ({}): {error}", found.status)),
                }
            }
            None if exists => return self.odd(format!("array {k} is not found")),
            None => {
                let request = {
                    let mut scene = self.scene.borrow_mut();
                    scene.names += 1;
                    let serial = scene.names;
                    let member = &mut scene.members[k];
                    let leaves = member.disks.iter().map(|disk| self.leaves[disk]).collect();
                    let request = labelled::request(serial, member.spec, leaves, true, &mut self.rng);
                    member.uuid = Some(request.uuid);
                    request
                };
                match lifecycle::create(&self.port, &request).await {
                    Ok(array) => (array, true),
                    Err(error) => return self.odd(format!("array {k} cannot be made: {error}")),
                }
            }
        };
        self.scene.borrow_mut().members[k].exists = true;
        let size = array.geometry().size_bytes();
        let of_pool = self.scene.borrow().members[k].of_pool;
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
        let keeper = match Reconciler::start(&self.port, array, options).await {
            Ok(keeper) => keeper,
            Err(error) => return self.odd(format!("array {k} is not served: {error}")),
        };
        let kept = Rc::new(RefCell::new(None));
        let (result, port) = (Rc::clone(&kept), self.port.clone());
        let mut scene = self.scene.borrow_mut();
        scene.spawned.push(Box::pin(async move {
            let kept = keeper.run(&port).await;
            *result.borrow_mut() = Some(kept);
        }));
        scene.members[k].serves = Some(kept);
        true
    }

    /// Ends the service of all arrays; and may note in their labels that they were stopped in order.
    pub async fn stop_members(&mut self) {
        let count = self.scene.borrow().members.len();
        for k in 0..count {
            let device = DeviceId(k as u32);
            let serves = self.scene.borrow_mut().members[k].serves.take();
            let Some(serves) = serves else {
                self.port.publish(device, None).await;
                continue;
            };
            // What it is still asked to do it may refuse.
            drop(self.port.give_order(device, Order::Stop).await);
            self.port.forget(device);
            let kept = std::future::poll_fn(|_| match serves.borrow_mut().take() {
                Some(kept) => std::task::Poll::Ready(kept),
                None => std::task::Poll::Pending,
            });
            let StoppedArray { mut array, is_clean: equal } = kept.await;
            if equal && self.rng.below(4) > 0 && array.stop(&self.port).await.is_ok() {
                self.count("arrays", "noted as stopped");
            }
        }
    }

    /// A disk of an array is pulled, or failed by hand, or returns.
    pub async fn act_on_arrays(&mut self) {
        let arrays: Vec<(usize, usize)> = {
            let scene = self.scene.borrow();
            let victims = scene.members.iter().enumerate().filter_map(|(k, member)| Some((k, member.victim?)));
            victims.filter(|(k, _)| scene.members[*k].serves.is_some()).collect()
        };
        if arrays.is_empty() {
            return;
        }
        let (k, victim) = *self.rng.pick(&arrays);
        let device = DeviceId(k as u32);
        let role = self.scene.borrow().members[k].disks.iter().position(|disk| *disk == victim);
        let role = role.expect("the victim is one of them") as u16;
        let Some(leaf) = self.leaves.get(&victim).copied() else { return };
        match self.rng.below(4) {
            0 => {
                self.phase("pulling a disk");
                self.count("arrays", "disk pulled");
                self.scene.borrow_mut().pull.push(victim);
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
                // It is opened anew only when it is no member.
                if self.port.give_order(device, Order::Fail(vec![role])).await.is_ok() {
                    self.port.reopen(leaf).await;
                    if self.port.give_order(device, Order::Return { leaf, kept_writes: false }).await.is_ok() {
                        self.count("arrays", "disk returned");
                    }
                }
            }
        }
    }

    /// What must not be.
    pub(super) fn odd(&self, why: String) -> bool {
        self.scene.borrow_mut().wrong(|| why);
        false
    }
}

impl Scene {
    /// Where the data of each member begin.
    pub fn pool_places(&self) -> Arc<PoolMembers> {
        let place = |of: &PoolDevice| (of.number, PoolPlace { device: of.device, data: of.layout.data });
        Arc::new(PoolMembers::new(self.members.iter().map(|member| place(&member.of_pool))))
    }
}
