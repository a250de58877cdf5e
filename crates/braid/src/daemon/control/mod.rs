//! The control plane: everything that changes which arrays and exports there are.
//!
//! One value, shared by the API's handlers. What it knows is in [`tables`], behind a lock that is never held
//! across a wait; an array that is being changed is marked busy there, so that changes of one array come one
//! after the other and changes of different arrays do not wait for each other. A disk that hangs harms the
//! array that it belongs to.

mod assemble;
mod blocks;
mod blocks_around;
mod change;
mod complaints;
mod create;
mod dead_files;
mod disks;
mod exports;
mod files;
mod further_disks;
mod grow;
mod guard;
mod idle;
mod imported;
pub mod keeping;
mod kernel_clients;
mod orphans;
pub mod pools;
pub mod replicas;
pub mod replicated;
mod search;
mod shutdown;
mod standby;
mod starting;
pub mod tables;
pub mod view;
mod watch;

use super::api::listen::Refusals;
use super::events::Events;
use super::nodes::Nodes;
use super::state::StateFolder;
use super::upgrade::{Before, Upgrades};
use crate::daemon::encryption::Encryption;
use braid_advice::{self as advice, Case, Names, VolumeCase};
use braid_api::{
    Activity, Array, ArrayActivity, ArrayList, ArrayState, Attention, DiskActivity, DiskList, DiskState, ErrorDetail,
    Export, ExportActivity, ExportList, Kind, Limits, ShardStatus, Status, Tally,
};
use braid_engine::{LeafId, ShardId};
use braid_nbd::{EventQueue, ExportTable};
use braid_ring::kept::InheritedFds;
use braid_ring::{RingHandle, RingMeta};
use complaints::Complaints;
use guard::ReadTables;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockWriteGuard, Weak};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tables::{Serving, Tables};
use tokio::sync::watch as signal;
use uuid::Uuid;

/// The trouble of a state file that could not be written.
const STATE_TROUBLE: &str = "state";

/// The control plane of one daemon.
pub struct Control {
    /// Itself, for what goes on after a call has ended.
    me: Weak<Control>,
    ring: RingHandle,
    meta: RingMeta,
    tables: RwLock<Tables>,
    state: StateFolder,
    /// One writer of the state file at a time, so that the newest state is the one that stays.
    saving: Mutex<()>,
    /// One search for members at a time: two would find each other's locks.
    assembling: tokio::sync::Mutex<()>,
    /// Pools that are being changed, after which it is looked for members on their volumes again.
    awaited: Mutex<std::collections::BTreeSet<Uuid>>,
    /// The daemon becomes another build.
    upgrades: Upgrades,
    /// Exports that are files.
    files: files::Files,
    /// Block devices of exports, by the export's identity.
    blocks: blocks::Blocks,
    /// One change of what is listened on at a time.
    listening: tokio::sync::Mutex<()>,
    events: Arc<Events>,
    /// Daemons of other machines, and this one among them.
    nodes: Arc<Nodes>,
    /// What happened to clients, from the shards.
    clients: Arc<EventQueue>,
    /// What controllers of volumes that are kept on several nodes use.
    replica_exports: Arc<ExportTable>,
    /// Snapshots of replicas' data that are offered there, by their identities.
    offered: Mutex<BTreeMap<Uuid, replicas::offered::Offered>>,
    /// Whoever accepts them.
    replicas_listen: Mutex<Option<tokio::task::AbortHandle>>,
    /// Which of them were told of.
    complaints: Mutex<Complaints>,
    /// How exports use TLS.
    encryption: Encryption,
    stopping: signal::Sender<bool>,
    /// How many changes are under way.
    changes: signal::Sender<usize>,
    /// Notified whenever a claim of an array or a pool has ended.
    unclaimed: tokio::sync::Notify,
    /// Volumes of several nodes that are served here.
    replicated: replicated::Replicated,
    /// Disks that are being let go of, and have I/O that has not ended: their names, by number.
    leaving: Arc<Mutex<BTreeMap<LeafId, String>>>,
    /// Those of them that hang as devices of their own: whoever waits for that closes them.
    draining: Arc<Mutex<BTreeSet<LeafId>>>,
    /// Servers of disks that are away, and when they are asked again.
    questions: Mutex<keeping::Questions>,
    started: Instant,
    started_unix_ms: u64,
    start_ms: OnceLock<u64>,
    /// Whether disks are still being looked for after the start, those that are late included.
    starting: AtomicBool,
    socket: PathBuf,
    /// The folder of what outlives the process and no boot.
    shared_memory: PathBuf,
    /// Where the API is on the network, and whom it did not let in.
    network: OnceLock<(SocketAddr, Arc<Refusals>)>,
    /// When the certificate of the API on the network expires, in Unix time; 0 where that is not known.
    certificate_expiry_unix_s: AtomicI64,
    /// The same of the certificate that exports show.
    nbd_certificate_expiry_unix_s: AtomicI64,
    /// What is wrong with the daemon itself, by what it is about.
    troubles: Mutex<BTreeMap<String, Attention>>,
}

impl Control {
    /// A control plane that has found nothing yet.
    ///
    /// # Errors
    /// The state cannot be read.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        ring: RingHandle,
        state: StateFolder,
        socket: PathBuf,
        shared_memory: PathBuf,
        clients: Arc<EventQueue>,
        started: Instant,
        encryption: Encryption,
        kept: InheritedFds,
        before: Option<Before>,
    ) -> Result<Arc<Control>, ErrorDetail> {
        let tables = Tables::from_state(&state.load()?);
        let nodes = Nodes::open(state.path())?;
        let (files, sockets) = files::apart(kept);
        Ok(Arc::new_cyclic(|me| Control {
            me: Weak::clone(me),
            meta: ring.meta(),
            ring,
            tables: RwLock::new(tables),
            state,
            saving: Mutex::new(()),
            assembling: tokio::sync::Mutex::new(()),
            awaited: Mutex::default(),
            upgrades: Upgrades::new(before, sockets),
            files: files::Files::new(files),
            blocks: blocks::Blocks::default(),
            listening: tokio::sync::Mutex::new(()),
            events: Arc::default(),
            nodes,
            clients,
            replica_exports: Arc::default(),
            offered: Mutex::default(),
            replicas_listen: Mutex::default(),
            complaints: Mutex::default(),
            encryption,
            stopping: signal::Sender::new(false),
            changes: signal::Sender::new(0),
            unclaimed: tokio::sync::Notify::new(),
            replicated: replicated::Replicated::default(),
            leaving: Arc::default(),
            draining: Arc::default(),
            questions: Mutex::default(),
            started,
            started_unix_ms: unix_ms().saturating_sub(started.elapsed().as_millis() as u64),
            start_ms: OnceLock::new(),
            starting: AtomicBool::new(true),
            socket,
            shared_memory,
            network: OnceLock::new(),
            certificate_expiry_unix_s: AtomicI64::new(0),
            nbd_certificate_expiry_unix_s: AtomicI64::new(0),
            troubles: Mutex::default(),
        }))
    }

    /// The API is on the network, too.
    pub fn on_network(&self, address: SocketAddr, refusals: Arc<Refusals>) {
        // Said once, at the start.
        let _ = self.network.set((address, refusals));
    }

    /// Whom the API on the network did not let in; none where it is not there.
    pub fn network_refusals(&self) -> Option<u64> {
        self.network.get().map(|(_, refusals)| refusals.count())
    }

    /// When the certificate of the API on the network expires, in Unix time.
    pub fn certificate_expiry_unix_s(&self) -> Option<i64> {
        Some(self.certificate_expiry_unix_s.load(Ordering::Relaxed)).filter(|expiry| *expiry != 0)
    }

    /// Says when that is.
    pub fn set_certificate_expiry(&self, unix_s: i64) {
        self.certificate_expiry_unix_s.store(unix_s, Ordering::Relaxed);
    }

    /// When the certificate of exports expires, in Unix time.
    pub fn nbd_certificate_expiry_unix_s(&self) -> Option<i64> {
        Some(self.nbd_certificate_expiry_unix_s.load(Ordering::Relaxed)).filter(|expiry| *expiry != 0)
    }

    /// Says when that is.
    pub fn set_nbd_certificate_expiry(&self, unix_s: i64) {
        self.nbd_certificate_expiry_unix_s.store(unix_s, Ordering::Relaxed);
    }

    /// When the daemon started, in milliseconds of Unix time.
    pub fn started_unix_ms(&self) -> u64 {
        self.started_unix_ms
    }

    /// Says that something is wrong with the daemon itself, or no longer.
    pub fn set_trouble(&self, what: &str, trouble: Option<Attention>) {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        match trouble {
            Some(trouble) => troubles.insert(what.to_owned(), trouble),
            None => troubles.remove(what),
        };
    }

    /// What is wrong with the daemon itself.
    fn troubles(&self) -> Vec<Attention> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// What happened.
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// Daemons of other machines, and this one among them.
    pub fn nodes(&self) -> &Arc<Nodes> {
        &self.nodes
    }

    /// Becomes true when the daemon begins to stop.
    pub fn stopping(&self) -> signal::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// The shards.
    pub fn ring(&self) -> &RingHandle {
        &self.ring
    }

    /// How the daemon does.
    pub fn status(&self) -> Status {
        let tables = self.read();
        let arrays = Tally {
            total: tables.arrays.len() as u64,
            serving: tables.arrays.values().filter(|entry| entry.active().is_some()).count() as u64,
        };
        let listening = |serving: &Serving| match serving {
            Serving::Listening(export) => Some(u64::from(export.connections())),
            _ => None,
        };
        let connections: Vec<u64> = tables.exports.values().filter_map(|e| listening(&e.serving)).collect();
        let pools = Tally {
            total: tables.pools.len() as u64,
            serving: tables.pools.values().filter(|entry| entry.served().is_some()).count() as u64,
        };
        let open = tables.open_disks().map(|(_, _, disk)| disk);
        let open = open.chain(tables.pool_disks_open().map(|(_, _, disk)| disk));
        let disks: Vec<bool> = open.map(|disk| view::disk_state(disk).0 == DiskState::Ok).collect();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_ms: self.started.elapsed().as_millis() as u64,
            start_ms: self.start_ms.get().copied(),
            starting: self.is_starting(),
            socket: self.socket.display().to_string(),
            network: self.network.get().map(|(address, _)| format!("https://{address}")),
            node: self.nodes.own(),
            state_directory: self.state.path().display().to_string(),
            shards: self.shards(),
            arrays,
            pools,
            exports: Tally { total: tables.exports.len() as u64, serving: connections.len() as u64 },
            disks: Tally { total: disks.len() as u64, serving: disks.iter().filter(|ok| **ok).count() as u64 },
            connections: connections.iter().sum(),
            ublk: self.blocks.features(),
            upgrade: self.upgrades.last(),
            attention: [
                self.troubles(),
                view::attention(&tables),
                pools::attention(&tables),
                replicas::attention(&tables),
                self.attention_of_volumes(&tables),
            ]
            .concat(),
            limits: Limits::current(),
        }
    }

    fn shards(&self) -> Vec<ShardStatus> {
        let shard = |shard: u16| {
            let driver = self.ring.driver(ShardId(shard));
            let passed_over = driver.skipped.iter().map(|(kind, why)| format!("{kind} is not used: {why}"));
            let unregistered = driver.unregistered_reason.iter().map(|why| format!("buffers: {why}"));
            let notes: Vec<String> = passed_over.chain(unregistered).collect();
            ShardStatus {
                shard,
                driver: driver.kind.to_string(),
                registered_buffers: driver.registered_buffer_bytes > 0,
                registered_files: driver.registered_files > 0,
                note: (!notes.is_empty()).then(|| notes.join("; ")),
            }
        };
        (0..self.ring.shards()).map(shard).collect()
    }

    /// The disks that are open.
    pub fn disks(&self) -> DiskList {
        let tables = self.read();
        let mut disks: Vec<_> =
            tables.open_disks().map(|(entry, role, disk)| self.show_disk(&entry.name, role, disk)).collect();
        disks.extend(
            tables.pool_disks_open().map(|(pool, number, disk)| self.show_disk(&pool.name, number.into(), disk)),
        );
        disks.sort_by(|a, b| (&a.array, a.role).cmp(&(&b.array, b.role)));
        DiskList { disks }
    }

    /// Every array, by name.
    pub fn arrays(&self) -> ArrayList {
        let tables = self.read();
        let mut arrays: Vec<Array> = tables.arrays.values().map(|entry| self.show_array(&tables, entry)).collect();
        arrays.sort_by(|a, b| (&a.name, &a.uuid).cmp(&(&b.name, &b.uuid)));
        ArrayList { arrays, incomplete: self.why_incomplete() }
    }

    /// One array, by name or UUID.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn array(&self, name: &str) -> Result<Array, ErrorDetail> {
        let tables = self.read();
        Ok(self.show_array(&tables, tables.array(name)?))
    }

    /// Every export, by name.
    pub fn exports(&self) -> ExportList {
        let tables = self.read();
        ExportList { exports: tables.exports.values().map(|entry| view::show_export(&tables, entry)).collect() }
    }

    /// One export, by name or UUID.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn export(&self, name: &str) -> Result<Export, ErrorDetail> {
        let tables = self.read();
        Ok(view::show_export(&tables, tables.export(name)?))
    }

    /// What disks and exports have done up to now.
    pub fn activity(&self) -> Activity {
        let tables = self.read();
        let mut disks: Vec<DiskActivity> =
            tables.open_disks().map(|(entry, role, disk)| self.disk_activity(entry, role, disk)).collect();
        let of_pools = tables.pool_disks_open();
        disks.extend(of_pools.map(|(pool, number, disk)| self.activity_of(&pool.name, number.into(), disk)));
        disks.sort_by(|a, b| (&a.array, a.role).cmp(&(&b.array, b.role)));
        let exports = tables.exports.values().map(|entry| {
            let Export { name, array, state, connections, stats, .. } = view::show_export(&tables, entry);
            ExportActivity { name, array, state, connections, stats, latency: view::export_latency(entry) }
        });
        let mut arrays: Vec<ArrayActivity> = tables
            .arrays
            .values()
            .filter_map(|entry| Some((entry, entry.active()?)))
            .map(|(entry, active)| ArrayActivity {
                name: entry.name.clone(),
                health: keeping::health::of(active),
                progress: active.keeping().and_then(|keeping| keeping.least_done()),
            })
            .collect();
        arrays.sort_by(|a, b| a.name.cmp(&b.name));
        Activity { at_ns: self.started.elapsed().as_nanos() as u64, disks, exports: exports.collect(), arrays }
    }

    /// The tables, to look at. Never held across a wait.
    pub fn read(&self) -> ReadTables<'_> {
        guard::asked_once();
        ReadTables::new(self.tables.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The tables, to change. Never held across a wait.
    fn write(&self) -> RwLockWriteGuard<'_, Tables> {
        guard::asked_once();
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the state file.
    ///
    /// # Errors
    /// The operating system's; the old file is then still there.
    fn save(&self) -> Result<(), ErrorDetail> {
        let _one_at_a_time = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.read().to_state();
        let saved = tokio::task::block_in_place(|| self.state.save(&state));
        self.note_saving(&saved);
        saved
    }

    /// Writes the state file where the change itself cannot be taken back any more.
    fn save_or_warn(&self) {
        if let Err(error) = self.save() {
            self.events.error("state_not_saved", error.message, &[]);
        }
    }

    /// Remembers how the last writing of the state file went.
    fn note_saving(&self, saved: &Result<(), ErrorDetail>) {
        let trouble = saved.as_ref().err().map(|error| Attention {
            subject: "daemon".to_owned(),
            message: format!("{}: what was changed since is forgotten at the next start", error.message),
            meaning: "The running daemon goes on with what it knows.".to_owned(),
            remedy: format!("{}; the next change tries again", error.remedy),
            commands: vec![format!("df -h {}", self.state.path().display())],
        });
        self.set_trouble(STATE_TROUBLE, trouble);
    }

    /// Whether the state file holds the newest state.
    pub fn is_state_saved(&self) -> bool {
        !self.troubles.lock().unwrap_or_else(PoisonError::into_inner).contains_key(STATE_TROUBLE)
    }

    /// Refuses changes once the daemon stops.
    fn is_open(&self) -> Result<(), ErrorDetail> {
        if *self.stopping.borrow() {
            return Err(ErrorDetail::new(Kind::Stopping, "the daemon is stopping").remedy("try again when it is back"));
        }
        if self.upgrades.is_closed() {
            return Err(
                ErrorDetail::new(Kind::Stopping, "the daemon is being upgraded").remedy("try again in a moment")
            );
        }
        Ok(())
    }

    /// The daemon becomes another build.
    pub fn upgrades(&self) -> &Upgrades {
        &self.upgrades
    }

    /// Marks an array as being changed until the claim is dropped.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::InUse`] while it is being changed already.
    fn claim(&self, name: &str, doing: &'static str) -> Result<Claim<'_>, ErrorDetail> {
        self.is_open()?;
        let mut tables = self.write();
        let (uuid, name) = tables.array(name).map(|entry| (entry.uuid, entry.name.clone()))?;
        if tables.replicated.contains_key(&uuid) {
            let message = format!(
                "{name} is a volume of several nodes, and the array above its replicas cannot be {doing} by itself"
            );
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("volume", &name)
                .remedy(advice::remedy(Case::ReplicatedVolume(VolumeCase::Served), Names::of(&name))));
        }
        imported::refuse_change(&tables, uuid, doing)?;
        if let Some(doing) = tables.busy.get(&uuid) {
            return Err(ErrorDetail::new(Kind::InUse, format!("array {name} is being {doing}"))
                .with("array", name)
                .remedy("wait until that is done, and try again"));
        }
        tables.busy.insert(uuid, doing);
        Ok(Claim { control: self, uuid })
    }

    /// The same of the array above the replicas of a volume of several nodes, for a pool on it.
    fn claim_carrier(&self, name: &str) -> Result<Claim<'_>, ErrorDetail> {
        let uuid = self.read().array(name)?.uuid;
        self.claim_found(uuid, "made a member of a pool").ok_or_else(|| {
            ErrorDetail::new(Kind::InUse, format!("{name} is being changed"))
                .with("volume", name)
                .remedy("wait until that is done, and try again")
        })
    }

    /// The same of an array that was found and need not be listed yet; none while it is being changed already.
    fn claim_found(&self, uuid: Uuid, doing: &'static str) -> Option<Claim<'_>> {
        let mut tables = self.write();
        if tables.busy.contains_key(&uuid) {
            return None;
        }
        tables.busy.insert(uuid, doing);
        Some(Claim { control: self, uuid })
    }
}

/// Now, in milliseconds of Unix time.
fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// So many of something.
fn counted(count: usize, one: &str, more: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {more}") }
}

/// An array that is being changed, by whoever holds this.
struct Claim<'a> {
    control: &'a Control,
    uuid: Uuid,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.control.write().busy.remove(&self.uuid);
        self.control.unclaimed.notify_waiters();
    }
}

/// A random number.
///
/// # Errors
/// The operating system has none.
fn random() -> Result<u64, ErrorDetail> {
    getrandom::u64().map_err(|error| {
        ErrorDetail::new(Kind::Internal, format!("the operating system gives no random numbers: {error}"))
    })
}

/// A random UUID.
///
/// # Errors
/// As [`random`].
fn random_uuid() -> Result<Uuid, ErrorDetail> {
    let (high, low) = (random()?, random()?);
    Ok(uuid::Builder::from_random_bytes((u128::from(high) << 64 | u128::from(low)).to_be_bytes()).into_uuid())
}

/// Whether an array waits for a person: it does not serve, and no command stopped it.
fn waits(state: ArrayState) -> bool {
    matches!(state, ArrayState::Incomplete | ArrayState::Failed)
}
