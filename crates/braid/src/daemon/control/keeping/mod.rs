//! Redundant arrays that serve: one task keeps each, and takes orders.
//!
//! The keeper itself is the engine's. Here is its door to this daemon, what its notes become, and what is asked of it.

mod away;
mod board;
mod door;
mod findings;
pub mod health;
mod jobs;
mod journal;
mod members;
mod notes;
mod replace;
mod servers;
mod unreadable;

pub(super) use servers::Questions;

use super::Control;
use super::tables::{Active, ArrayEntry, Condition, Handle, Idle, OpenDisk, Seat};
use board::Board;
use braid_advice::errors::of_lifecycle;
use braid_advice::{self as advice, ArrayCase, Case, Names};
use braid_api::{ArrayState, ErrorDetail, Kind};
use braid_engine::keeper::{Order, OrderResult, Reconciler, ReconcilerOptions, StoppedArray, UnreadableBlocks};
use braid_engine::{DeviceId, LeafId, RegionMap, ShardId, lifecycle};
use braid_format::JobKind;
use door::{Asked, Door};
pub use jobs::name_of;
pub(super) use members::{check_fit, stopped_meanwhile};
pub(super) use notes::note_seats;
pub(super) use replace::replaced_by;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, oneshot};

use uuid::Uuid;

/// Dirty bits that nobody has needed for so long are taken away.
const CLEAR_AFTER_NS: u64 = 5_000_000_000;
/// The logical block of arrays with parity, in bytes.
const ROW_LINE_BYTES: u32 = 4096;
/// Orders that wait for a keeper; whoever gives more waits.
const ORDERS_MAX: usize = 16;

/// The keeper of one array, as seen by the control plane.
pub struct Keeping {
    orders: mpsc::Sender<Asked>,
    /// What the keeper leaves when it has ended; none if it panicked.
    ended: Mutex<Option<oneshot::Receiver<StoppedArray>>>,
    /// Another map once the array has grown.
    regions: Mutex<Arc<RegionMap>>,
    region_bytes: u64,
    failed: AtomicBool,
    jobs: Mutex<Board>,
    /// With parity: what cannot be read until it is written again.
    unreadable: Option<UnreadableBlocks>,
    /// That there is something of it was told.
    unreadable_told: AtomicBool,
    /// The disk that the journal was on last, as long as nobody has said what is to be now that it is lost.
    lost_journal: Mutex<Option<String>>,
}

impl Keeping {
    /// Gives an order, and waits for what comes of it.
    ///
    /// # Errors
    /// The keeper's; [`None`] where it has ended.
    pub async fn order(&self, order: Order) -> Option<OrderResult> {
        let (answer, answered) = oneshot::channel();
        self.orders.send(Asked { order, answer: Some(answer) }).await.ok()?;
        answered.await.ok()
    }

    /// Ends the keeper: when this returns nothing is in flight on the array. None if the keeper is not there any more.
    pub async fn stop(&self) -> Option<StoppedArray> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        // Where it has ended already, what it left is there.
        let _ = self.orders.send(Asked { order: Order::Stop, answer: None }).await;
        ended.await.ok()
    }

    /// Whether more members are lost than the array tolerates.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// The array's regions.
    pub fn regions(&self) -> Arc<RegionMap> {
        Arc::clone(&self.regions.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The array has grown: these are its regions from now on.
    fn set_regions(&self, regions: &Arc<RegionMap>) {
        *self.regions.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(regions);
    }

    /// Bytes of each region.
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }
}

/// How a redundant array is to be served.
#[derive(Clone, Copy, Default)]
pub(super) struct Keep {
    /// It was stopped in order, or is new.
    pub clean: bool,
    /// Go on where bits are damaged on every member.
    pub force: bool,
}

impl Control {
    /// Serves a started redundant array, and lets its keeper keep it. Of `disks` those that are no members are guests.
    ///
    /// # Errors
    /// Its regions cannot be read, or there is no room for another device.
    pub(super) async fn keep(
        self: &Arc<Self>,
        array: lifecycle::Array,
        disks: &[Arc<OpenDisk>],
        keep: Keep,
    ) -> Result<(), ErrorDetail> {
        let (uuid, name, label) = (array.uuid(), array.name().to_string(), array.label().clone());
        let seats = seats_of(&array, disks);
        let seated = |leaf: LeafId| seats.iter().any(|seat| seat.disk.leaf == leaf);
        let guests: Vec<_> = disks.iter().filter(|disk| !seated(disk.leaf)).cloned().collect();
        let away = array.failed().into_iter().map(|role| (role, self.last_seen(uuid, role))).collect();
        // Parity is kept of whole blocks of 4 KiB, and volumes have such. One that is away comes back.
        let parities = label.spec.level.parity();
        let tier = self.tier_of_array(uuid, disks)?;
        let least = if parities > 0 || tier > 0 { ROW_LINE_BYTES } else { 512 };
        let block_bytes =
            seats.iter().map(|seat| seat.disk.disk.logical_block_bytes()).max().unwrap_or(least).max(least);
        let size_bytes = array.geometry().size_bytes();
        let journal = array.journal_number();
        let device = self.write().take_device(tier)?;
        let home = ShardId((device.0 % u32::from(self.ring.shards())) as u16);
        let request_bytes = self.request_bytes_of(uuid).filter(|_| parities == 0).unwrap_or(block_bytes);
        let options = ReconcilerOptions {
            device,
            block_bytes,
            home,
            clean: keep.clean,
            force: keep.force,
            clear_after_ns: CLEAR_AFTER_NS,
            lease: self.voters_of(uuid).map(|voters| Arc::clone(voters.lease())),
            in_sectors: request_bytes < block_bytes,
            nearest: self.near_replica(uuid).filter(|_| parities == 0),
        };
        if keep.force && parities > 0 {
            // Perhaps without what its journal held.
            self.doubt_parity(uuid);
        }
        let (orders, asked) = mpsc::channel(ORDERS_MAX);
        let door = Door::new(self, uuid, asked);
        let keeper = match Reconciler::start(&door, array, options).await {
            Ok(keeper) => keeper,
            Err(error) => {
                self.write().give_device(device);
                return Err(of_lifecycle(&error, &name, &Control::name_in(disks)));
            }
        };
        // Its notes of now reach nobody, as the array is not listed yet.
        let lost_journal = journal.filter(|_| keeper.array().journal_number().is_none());
        let lost_journal = lost_journal.map(|role| self.last_journal(uuid, role));
        let (seats, failed): (Vec<Seat>, Vec<Seat>) =
            seats.into_iter().partition(|seat| lost_journal.is_none() || Some(seat.role) != journal);
        let label = keeper.array().label().clone();
        let (leave, ended) = oneshot::channel();
        let regions = Arc::clone(keeper.regions());
        let keeping = Arc::new(Keeping {
            orders,
            ended: Mutex::new(Some(ended)),
            regions: Mutex::new(regions),
            region_bytes: u64::from(label.region_bytes),
            failed: AtomicBool::new(false),
            // Those that begin later are told to the door.
            jobs: Mutex::new(keeper.jobs().cloned().collect()),
            unreadable: keeper.unreadable_blocks(),
            unreadable_told: AtomicBool::new(false),
            lost_journal: Mutex::new(self.read().lost_journals.get(&uuid).cloned()),
        });
        self.tell_unreadable(&name, &keeping, &label);
        if let Some(resync) = keeping.progress(JobKind::Resync, None) {
            let message = format!(
                "array {name} was not stopped in order: {} of it are brought together",
                braid_geometry::units::format_size(resync.total_bytes)
            );
            self.events().info("resyncing", message, &[("array", &name)]);
        }
        let active = Active {
            handle: Handle::Kept(keeping),
            label,
            device,
            size_bytes,
            block_bytes,
            request_bytes,
            disks: seats,
            guests,
            away,
            last_journal: None,
            left_out: std::collections::BTreeSet::new(),
        };
        let entry = ArrayEntry { uuid, name: name.clone(), condition: Condition::Active(active) };
        self.write().arrays.insert(uuid, entry);
        if let Some(disk) = lost_journal {
            self.tell_lost_journal(uuid, &name, &disk);
            self.close_disks(failed.into_iter().map(|seat| seat.disk).collect()).await;
        }
        self.run_keeper((uuid, device), keeper, door, leave);
        self.resume_check(uuid, parities).await;
        self.begin_doubted(uuid, &name).await;
        self.restore_exports(uuid).await;
        Ok(())
    }

    /// Runs a keeper in a task of its own. One that panics has left the array without anybody who looks after it: it is
    /// stopped at once, and shown as failed.
    fn run_keeper(
        self: &Arc<Self>,
        (uuid, device): (Uuid, DeviceId),
        keeper: Reconciler,
        door: Door,
        leave: oneshot::Sender<StoppedArray>,
    ) {
        let control = Arc::clone(self);
        let running = tokio::spawn(async move { keeper.run(&door).await });
        tokio::spawn(async move {
            match running.await {
                // Nobody waits for it where the daemon ends.
                Ok(kept) => drop(leave.send(kept)),
                Err(error) => {
                    drop(leave);
                    control.on_keeper_lost((uuid, device), &error.to_string()).await;
                }
            }
        });
    }

    async fn on_keeper_lost(self: &Arc<Self>, (uuid, device): (Uuid, DeviceId), why: &str) {
        let keeps = |active: &Active| active.device == device;
        if !self.read().arrays.get(&uuid).and_then(ArrayEntry::active).is_some_and(keeps) {
            // It had outlived its array's end.
            return;
        }
        let Some((entry, taken)) = self.take_active(uuid) else { return };
        let name = entry.name.clone();
        let message = format!("array {name} is stopped: its keeper has ended unexpectedly ({why})");
        self.events().error("array_failed", &message, &[("array", &name)]);
        if let Some(Condition::Idle(idle)) = self.write().arrays.get_mut(&uuid).map(|entry| &mut entry.condition) {
            *idle = Idle {
                state: ArrayState::Failed,
                attention: vec![message],
                remedy: format!(
                    "{}; this is a mistake in Braid, please report it",
                    advice::remedy(Case::Array(ArrayCase::Ready), Names::of(&name))
                ),
                label: idle.label.take(),
                members: std::mem::take(&mut idle.members),
            };
        }
        self.silence_exports(uuid).await;
        let _ = self.ring.publish_and_drain(taken.device, None).await;
        {
            // A pool that stands on it, or that is being opened or made on it, writes to that number still.
            let mut tables = self.write();
            if tables.served_on(uuid).is_none() && !tables.busy.contains_key(&uuid) {
                tables.give_device(taken.device);
            }
        }
        drop(entry);
        self.close_disks(taken.disks).await;
    }

    /// Where a member was seen last.
    fn last_seen(&self, uuid: Uuid, role: u16) -> super::tables::Away {
        let tables = self.read();
        let seen = tables.disks.values().find(|saved| saved.array == uuid && saved.role == role);
        super::tables::Away {
            disk: seen.map(|seen| seen.disk.clone()).unwrap_or_default(),
            why: "it was not here at the start".to_owned(),
            gone: true,
            entry: None,
        }
    }

    /// Where the disk of the journal was seen last, in words.
    fn last_journal(&self, uuid: Uuid, role: u16) -> String {
        let disk = self.last_seen(uuid, role).disk;
        if disk.is_empty() { format!("member {role}") } else { disk }
    }

    /// The keeper of an array that serves.
    ///
    /// # Errors
    /// [`Kind::NotFound`], [`Kind::Inactive`], or [`Kind::InvalidArgument`] where the array has no redundancy.
    pub(super) fn keeping(&self, name: &str) -> Result<Arc<Keeping>, ErrorDetail> {
        let tables = self.read();
        let entry = tables.array(name)?;
        let name = &entry.name;
        let active = entry.active().ok_or_else(|| {
            ErrorDetail::new(Kind::Inactive, format!("array {name} is not active"))
                .with("array", name)
                .remedy(advice::remedy(Case::Array(ArrayCase::Ready), Names::of(name)))
        })?;
        let level = active.label.spec.level;
        active.keeping().cloned().ok_or_else(|| {
            ErrorDetail::new(Kind::InvalidArgument, format!("array {name} is {level}, which has no redundancy"))
                .with("array", name)
                .remedy("only arrays with redundancy (raid1, raid10, raid5, raid6) are checked, and only their members left out, replaced and filled")
        })
    }

    /// Gives an order to the keeper of an array.
    ///
    /// # Errors
    /// The keeper's, in words.
    pub(super) async fn give_order(&self, uuid: Uuid, order: Order) -> Result<(), ErrorDetail> {
        let keeping = self.keeping(&uuid.to_string())?;
        let (name, disks) = {
            let tables = self.read();
            let entry = tables.array(&uuid.to_string())?;
            (entry.name.clone(), entry.active().map(Active::open_disks).unwrap_or_default())
        };
        match keeping.order(order).await {
            Some(result) => result.map_err(|error| of_lifecycle(&error, &name, &Control::name_in(&disks))),
            None => Err(ErrorDetail::new(Kind::Inactive, format!("array {name} was stopped meanwhile"))
                .with("array", &name)
                .remedy(format!("braid array show {name}"))),
        }
    }
}

/// The disks that hold something of the array, by number.
pub(super) fn seats_of(array: &lifecycle::Array, disks: &[Arc<OpenDisk>]) -> Vec<Seat> {
    let seat = |member: lifecycle::ArrayMember<'_>| {
        let disk = disks.iter().find(|disk| disk.leaf == member.leaf)?;
        let data_offset_bytes = member.part.layout.data.start;
        Some(Seat { role: member.number, disk: Arc::clone(disk), data_offset_bytes })
    };
    let mut seats: Vec<Seat> =
        array.members().chain(array.spares()).chain(array.journal_disk()).filter_map(seat).collect();
    seats.sort_by_key(|seat| seat.role);
    seats
}
