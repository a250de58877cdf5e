//! Redundant arrays that serve: one reconciler task for each, which executes orders.
//!
//! The reconciler itself is in `braid-array-admin`. This module has its I/O interface in the daemon, turns its events
//! into the daemon's events and tables, and gives it the orders of commands.

pub(crate) mod events;
mod findings;
pub mod health;
mod jobs;
mod journal;
pub(crate) mod members;
mod missing;
mod reconciler_io;
pub(crate) mod replace;
mod servers;
mod unreadable;

use crate::ArrayManager;
use crate::reconcilers::reconciler_io::DaemonReconcilerIo;
use braid_advice::errors::lifecycle_error;
use braid_advice::{self as advice, ArrayCase, Case, ObjectNames};
use braid_api::{ArrayState, ErrorDetail, Kind};
use braid_array_admin::lifecycle;
use braid_array_admin::reconciler::{Order, Reconciler, ReconcilerOptions, StoppedArray};
use braid_engine::{DeviceId, LeafId, ShardId};
use braid_format::JobKind;
use braid_geometry::units::format_size;
use braid_inventory::{
    ActiveArray, ArrayCondition, ArrayEntry, ArrayHandle, ArraySlot, IdleArray, MissingMember, OpenDisk,
    ReconcilerHandle,
};
use braid_tasks as tasks;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

/// Dirty bits that were not needed for this long are cleared, in nanoseconds.
const CLEAR_AFTER_NS: u64 = 5_000_000_000;

/// The logical block of arrays with parity, and of arrays on volumes, in bytes.
const PARITY_BLOCK_BYTES: u32 = 4096;

/// Maximum number of orders that wait for a reconciler; further senders wait.
const ORDERS_MAX: usize = 16;

/// How a redundant array is started.
#[derive(Clone, Copy, Default)]
pub struct ReconcilerStart {
    /// The array was stopped cleanly, or is new.
    pub clean: bool,
    /// Start although the journal cannot be used, or sectors of the bitmap are damaged on every member: see
    /// [`ReconcilerOptions::force`].
    pub force: bool,
}

impl ArrayManager {
    /// Serves a started redundant array, and starts its reconciler. Those of `disks` that are not members become
    /// guests: candidates for membership.
    ///
    /// # Errors
    /// Its regions cannot be read, or no device number is free.
    pub async fn serve_redundant(
        self: &Arc<Self>,
        array: lifecycle::Array,
        disks: &[Arc<OpenDisk>],
        start: ReconcilerStart,
    ) -> Result<(), ErrorDetail> {
        let (uuid, name, label) = (array.uuid(), array.name().to_string(), array.label().clone());
        let array_slots = array_slots_of(&array, disks);
        let has_slot = |leaf: LeafId| array_slots.iter().any(|array_slot| array_slot.disk.leaf == leaf);
        let guests: Vec<_> = disks.iter().filter(|disk| !has_slot(disk.leaf)).cloned().collect();
        let missing = array.failed().into_iter().map(|slot| (slot, self.last_seen(uuid, slot))).collect();
        // Parity covers whole blocks of 4 KiB, and volumes have blocks of 4 KiB. A missing volume may return.
        let parities = label.spec.level.parity();
        let stack_level = self.stack_level_of_array(uuid, disks)?;
        let least = if parities > 0 || stack_level > 0 { PARITY_BLOCK_BYTES } else { 512 };
        let block_bytes = array_slots
            .iter()
            .map(|array_slot| array_slot.disk.disk.logical_block_bytes())
            .max()
            .unwrap_or(least)
            .max(least);
        let size_bytes = array.geometry().size_bytes();
        let journal = array.journal_number();
        let device = self.inventory.write().allocate_device(stack_level)?;
        let home = ShardId((device.0 % u32::from(self.ring.shards())) as u16);
        let request_bytes = self.request_bytes_of(uuid).filter(|_| parities == 0).unwrap_or(block_bytes);
        let options = ReconcilerOptions {
            device,
            block_bytes,
            home,
            clean: start.clean,
            force: start.force,
            clear_after_ns: CLEAR_AFTER_NS,
            lease: self.votes_of(uuid).map(|voters| Arc::clone(voters.lease())),
            in_sectors: request_bytes < block_bytes,
            nearest: self.users().local_replica(uuid).filter(|_| parities == 0),
        };
        if start.force && parities > 0 {
            // The journal's contents may be missing from the parity.
            self.mark_parity_in_doubt(uuid);
        }
        let (orders, pending) = mpsc::channel(ORDERS_MAX);
        let io = DaemonReconcilerIo::new(self, uuid, pending);
        let reconciler = match Reconciler::start(&io, array, options).await {
            Ok(reconciler) => reconciler,
            Err(error) => {
                self.inventory.write().release_device(device);
                return Err(lifecycle_error(&error, &name, &ArrayManager::name_in(disks)));
            }
        };
        // Events that the reconciler reports now are discarded, as the array is not listed yet.
        let lost_journal = journal.filter(|_| reconciler.array().journal_number().is_none());
        let lost_journal = lost_journal.map(|slot| self.last_journal(uuid, slot));
        let (array_slots, failed): (Vec<ArraySlot>, Vec<ArraySlot>) =
            array_slots.into_iter().partition(|array_slot| lost_journal.is_none() || Some(array_slot.role) != journal);
        let label = reconciler.array().label().clone();
        let (leave, ended) = oneshot::channel();
        let known_loss = self.inventory.read().lost_journals.get(&uuid).cloned();
        let handle = Arc::new(ReconcilerHandle::new(&reconciler, orders, ended, known_loss));
        self.report_unreadable(&name, &handle, &label);
        if let Some(resync) = handle.progress(JobKind::Resync, None) {
            let message =
                format!("array {name} was not stopped cleanly: resyncing {}", format_size(resync.total_bytes));
            self.inventory.events().info("resyncing", message, &[("array", &name)]);
        }
        let active = ActiveArray {
            handle: ArrayHandle::Kept(handle),
            label,
            device,
            size_bytes,
            block_bytes,
            request_bytes,
            disks: array_slots,
            guests,
            missing,
            last_journal: None,
            left_out: BTreeSet::new(),
        };
        let entry = ArrayEntry { uuid, name: name.clone(), condition: ArrayCondition::Active(active) };
        self.inventory.write().arrays.insert(uuid, entry);
        if let Some(disk) = lost_journal {
            self.report_lost_journal(uuid, &name, &disk);
            self.close_disks(failed.into_iter().map(|array_slot| array_slot.disk).collect()).await;
        }
        self.run_reconciler((uuid, device), reconciler, io, leave);
        self.resume_check(uuid, parities).await;
        self.begin_parity_check(uuid, &name).await;
        self.exports.restore_exports(uuid).await;
        Ok(())
    }

    /// Returns the alignment of requests to a replicated volume, in bytes; `None`: the array is no replicated volume.
    fn request_bytes_of(&self, array: Uuid) -> Option<u32> {
        self.inventory.read().replicated.get(&array).map(|volume| volume.block_bytes)
    }

    /// Runs a reconciler in a task of its own. If it panics, no component maintains the array any more: the array is
    /// stopped at once, and shown as failed.
    fn run_reconciler(
        self: &Arc<Self>,
        (uuid, device): (Uuid, DeviceId),
        reconciler: Reconciler,
        io: DaemonReconcilerIo,
        leave: oneshot::Sender<StoppedArray>,
    ) {
        let manager = Arc::clone(self);
        let running = tasks::spawn(async move { reconciler.run(&io).await });
        tasks::spawn(async move {
            match running.await {
                // When the daemon ends, nothing waits for it.
                Ok(kept) => drop(leave.send(kept)),
                Err(error) => {
                    drop(leave);
                    manager.on_reconciler_lost((uuid, device), &error.to_string()).await;
                }
            }
        });
    }

    /// Stops an array whose reconciler has panicked, and lists it as failed.
    async fn on_reconciler_lost(self: &Arc<Self>, (uuid, device): (Uuid, DeviceId), why: &str) {
        let keeps = |active: &ActiveArray| active.device == device;
        if !self.inventory.read().arrays.get(&uuid).and_then(ArrayEntry::active).is_some_and(keeps) {
            // The reconciler outlived its array's end.
            return;
        }
        let Some((entry, taken)) = self.take_active(uuid) else { return };
        let name = entry.name.clone();
        let message = format!("array {name} is stopped: its reconciler ended unexpectedly ({why})");
        self.inventory.events().error("array_failed", &message, &[("array", &name)]);
        let remedy = match self.failed_under_pool(uuid, &name) {
            Some(idle) => idle.remedy,
            None => advice::remedy(Case::Array(ArrayCase::Ready), ObjectNames::of(&name)),
        };
        if let Some(ArrayCondition::Idle(idle)) =
            self.inventory.write().arrays.get_mut(&uuid).map(|entry| &mut entry.condition)
        {
            *idle = IdleArray {
                state: ArrayState::Failed,
                attention: vec![message],
                remedy: format!("{remedy}; this is a bug in Braid, please report it"),
                label: idle.label.take(),
                members: std::mem::take(&mut idle.members),
            };
        }
        self.exports.stop_exports_of(uuid).await;
        let _ = self.ring.publish_and_drain(taken.device, None).await;
        {
            // A pool that stands on the array, or that is being opened or created on it, still writes to that device
            // number.
            let mut tables = self.inventory.write();
            if tables.serving_pool_on(uuid).is_none() && !tables.busy.contains_key(&uuid) {
                tables.release_device(taken.device);
            }
        }
        drop(entry);
        self.close_disks(taken.disks).await;
    }

    /// Returns where a member was last seen.
    fn last_seen(&self, uuid: Uuid, slot: u16) -> MissingMember {
        let tables = self.inventory.read();
        let seen = tables.disks.values().find(|saved| saved.array == uuid && saved.slot == slot);
        MissingMember {
            disk: seen.map(|seen| seen.disk.clone()).unwrap_or_default(),
            why: "it was missing at the start".to_owned(),
            gone: true,
            entry: None,
        }
    }

    /// Describes where the disk of the journal was last seen.
    fn last_journal(&self, uuid: Uuid, slot: u16) -> String {
        let disk = self.last_seen(uuid, slot).disk;
        if disk.is_empty() { format!("member {slot}") } else { disk }
    }

    /// Returns the reconciler of an array that serves.
    ///
    /// # Errors
    /// [`Kind::NotFound`], [`Kind::Inactive`], or [`Kind::InvalidArgument`] if the array has no redundancy.
    pub(crate) fn reconciler_of(&self, name: &str) -> Result<Arc<ReconcilerHandle>, ErrorDetail> {
        let tables = self.inventory.read();
        let entry = tables.array(name)?;
        let name = &entry.name;
        let active = entry.active().ok_or_else(|| {
            ErrorDetail::new(Kind::Inactive, format!("array {name} is not active"))
                .with("array", name)
                .remedy(advice::remedy(Case::Array(ArrayCase::Ready), ObjectNames::of(name)))
        })?;
        let level = active.label.spec.level;
        active.reconciler().cloned().ok_or_else(|| {
            ErrorDetail::new(Kind::InvalidArgument, format!("array {name} is {level}, which has no redundancy"))
                .with("array", name)
                .remedy("only arrays with redundancy (raid1, raid10, raid5, raid6) can be checked, and only their members can be failed, replaced and rebuilt")
        })
    }

    /// Gives an order to the reconciler of an array, and waits until the reconciler has carried it out: for a job,
    /// until the job has begun.
    ///
    /// # Errors
    /// The error of the reconciler; the array is not active, has no redundancy, or was stopped meanwhile.
    pub async fn give_order(&self, uuid: Uuid, order: Order) -> Result<(), ErrorDetail> {
        let handle = self.reconciler_of(&uuid.to_string())?;
        let (name, disks) = {
            let tables = self.inventory.read();
            let entry = tables.array(&uuid.to_string())?;
            (entry.name.clone(), entry.active().map(ActiveArray::open_disks).unwrap_or_default())
        };
        match handle.order(order).await {
            Some(result) => result.map_err(|error| lifecycle_error(&error, &name, &ArrayManager::name_in(&disks))),
            None => Err(ErrorDetail::new(Kind::Inactive, format!("array {name} was stopped meanwhile"))
                .with("array", &name)
                .remedy(format!("braid array show {name}"))),
        }
    }
}

/// Returns the array's slots with their disks, by slot number: members, spares and the journal's disk.
pub(crate) fn array_slots_of(array: &lifecycle::Array, disks: &[Arc<OpenDisk>]) -> Vec<ArraySlot> {
    let array_slot = |member: lifecycle::ArrayMember<'_>| {
        let disk = disks.iter().find(|disk| disk.leaf == member.leaf)?;
        let data_offset_bytes = member.part.layout.data.start;
        Some(ArraySlot { role: member.number, disk: Arc::clone(disk), data_offset_bytes })
    };
    let mut array_slots: Vec<ArraySlot> =
        array.members().chain(array.spares()).chain(array.journal_disk()).filter_map(array_slot).collect();
    array_slots.sort_by_key(|array_slot| array_slot.role);
    array_slots
}
