//! The inventory itself: the lock of the tables, claims, faults of the daemon, and when the state file is written.

use crate::clock::unix_ms;
use crate::events::Events;
use crate::pools::{DELETED, REOPENED};
use crate::state::StateFolder;
use crate::tables::Tables;
use braid_advice::{self as advice, Case, ObjectNames, VolumeCase};
use braid_api::{Attention, AttentionCode, ErrorDetail, Kind};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;
use tokio::sync::watch as signal;
use uuid::Uuid;

/// The key of the fault that the state file could not be written.
const STATE_FAULT: &str = "state";

/// What one daemon knows: its objects in the [`Tables`], its events and faults, and whether it accepts changes.
pub struct Inventory {
    tables: RwLock<Tables>,
    state: StateFolder,
    /// Serializes writers of the state file, so that the newest state is written last.
    saving: Mutex<()>,
    events: Arc<Events>,
    /// Becomes true when the daemon begins to stop.
    stopping: signal::Sender<bool>,
    /// The number of changes in progress.
    changes: signal::Sender<usize>,
    /// Changes are refused, as the daemon is being upgraded.
    closed: Arc<AtomicBool>,
    /// Notified whenever a claim of an array or a pool has ended.
    unclaimed: tokio::sync::Notify,
    /// Whether the scan of the start still waits for disks, late ones included.
    pub(crate) starting: AtomicBool,
    started: Instant,
    started_unix_ms: u64,
    /// How long the start took, once it is over, in milliseconds.
    start_ms: OnceLock<u64>,
    /// Faults of the daemon itself, by key.
    faults: Mutex<BTreeMap<String, Attention>>,
}

impl Inventory {
    /// Creates the inventory of a daemon that has just started, with what its state folder holds.
    ///
    /// # Errors
    /// The state cannot be read.
    pub fn open(state: StateFolder, started: Instant) -> Result<Inventory, ErrorDetail> {
        Ok(Inventory {
            tables: RwLock::new(Tables::from_state(&state.load()?)),
            state,
            saving: Mutex::new(()),
            events: Arc::default(),
            stopping: signal::Sender::new(false),
            changes: signal::Sender::new(0),
            closed: Arc::default(),
            unclaimed: tokio::sync::Notify::new(),
            starting: AtomicBool::new(true),
            started,
            started_unix_ms: unix_ms().saturating_sub(started.elapsed().as_millis() as u64),
            start_ms: OnceLock::new(),
            faults: Mutex::default(),
        })
    }

    /// Locks the tables for reading. Never held across an await.
    ///
    /// A thread that holds the lock must not lock the tables again, for reading either: the lock lets no reader pass a
    /// waiting writer, so that a writer between the two locks would deadlock with the thread.
    /// `crates/braid/tests/lock_nesting.rs` checks that in the source.
    pub fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the tables for writing. Never held across an await, and never while this thread has them locked: see
    /// [`Inventory::read`].
    pub fn write(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the daemon started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Returns when the daemon started, in milliseconds of Unix time.
    pub fn started_unix_ms(&self) -> u64 {
        self.started_unix_ms
    }

    /// Returns how long the start took, in milliseconds: empty until the start is over, and set then.
    pub fn start_ms(&self) -> &OnceLock<u64> {
        &self.start_ms
    }

    /// Returns the state folder.
    pub fn state(&self) -> &StateFolder {
        &self.state
    }

    /// Returns the events.
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// Writes the state file.
    ///
    /// # Errors
    /// The operating system's; the old file is then still in place.
    pub fn save(&self) -> Result<(), ErrorDetail> {
        let _one_at_a_time = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.read().to_state();
        let saved = tokio::task::block_in_place(|| self.state.save(&state));
        self.note_saving(&saved);
        saved
    }

    /// Writes the state file after a change that cannot be undone any more.
    pub fn save_or_warn(&self) {
        if let Err(error) = self.save() {
            self.events.error("state_not_saved", error.message, &[]);
        }
    }

    /// Records the result of the last write of the state file.
    fn note_saving(&self, saved: &Result<(), ErrorDetail>) {
        let fault = saved.as_ref().err().map(|error| Attention {
            code: AttentionCode::StateNotSaved,
            subject: "daemon".to_owned(),
            message: format!("{}: what was changed since is forgotten at the next start", error.message),
            impact: "The running daemon goes on with what it knows.".to_owned(),
            remedy: format!("{}; the next change tries again", error.remedy),
            commands: vec![format!("df -h {}", self.state.path().display())],
        });
        self.set_fault(STATE_FAULT, fault);
    }

    /// Returns whether the state file holds the newest state.
    pub fn is_state_saved(&self) -> bool {
        !self.faults.lock().unwrap_or_else(PoisonError::into_inner).contains_key(STATE_FAULT)
    }

    /// Reports a fault of the daemon itself under the key `what`; `None`: clears it.
    pub fn set_fault(&self, what: &str, fault: Option<Attention>) {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        match fault {
            Some(fault) => faults.insert(what.to_owned(), fault),
            None => faults.remove(what),
        };
    }

    /// Returns the faults of the daemon itself.
    pub fn faults(&self) -> Vec<Attention> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Returns a receiver that becomes true when the daemon begins to stop.
    pub fn stopping(&self) -> signal::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Refuses changes from now on, and ends event streams.
    pub fn begin_stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Returns the flag that refuses changes during an upgrade of the daemon, to be set and cleared by the upgrade.
    pub fn closed(&self) -> &Arc<AtomicBool> {
        &self.closed
    }

    /// Returns the number of changes in progress, to be counted and waited for.
    pub fn changes(&self) -> &signal::Sender<usize> {
        &self.changes
    }

    /// Refuses changes once the daemon stops or is being upgraded.
    ///
    /// # Errors
    /// [`Kind::Stopping`].
    pub fn refuse_while_stopping_or_upgrading(&self) -> Result<(), ErrorDetail> {
        if *self.stopping.borrow() {
            return Err(ErrorDetail::new(Kind::Stopping, "the daemon is stopping").remedy("try again when it is back"));
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(
                ErrorDetail::new(Kind::Stopping, "the daemon is being upgraded").remedy("try again in a moment")
            );
        }
        Ok(())
    }

    /// Refuses to begin using a volume of a pool that is being closed.
    ///
    /// # Errors
    /// [`Kind::InUse`].
    pub fn refuse_closing_pool(&self, pool: Uuid) -> Result<(), ErrorDetail> {
        let tables = self.read();
        let Some(doing) = tables.busy.get(&pool).filter(|doing| matches!(**doing, DELETED | REOPENED)) else {
            return Ok(());
        };
        let name = tables.pools.get(&pool).map(|entry| entry.name.clone()).unwrap_or_default();
        Err(ErrorDetail::new(Kind::InUse, format!("pool {name} is being {doing}")).with("pool", name))
    }

    /// Marks an array, by name or UUID, as being changed until the claim is dropped. `doing` completes "is being".
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::InUse`] if it is being changed already, or is a replicated volume;
    /// [`Kind::Unsupported`] for most changes of an imported array; [`Kind::Stopping`].
    pub fn claim(&self, name: &str, doing: &'static str) -> Result<Claim<'_>, ErrorDetail> {
        self.refuse_while_stopping_or_upgrading()?;
        let mut tables = self.write();
        let (uuid, name) = tables.array(name).map(|entry| (entry.uuid, entry.name.clone()))?;
        if tables.replicated.contains_key(&uuid) {
            let message =
                format!("{name} is a replicated volume; the array above its replicas cannot be {doing} directly");
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("volume", &name)
                .remedy(advice::remedy(Case::ReplicatedVolume(VolumeCase::Served), ObjectNames::of(&name))));
        }
        refuse_change(&tables, uuid, doing)?;
        if let Some(doing) = tables.busy.get(&uuid) {
            return Err(ErrorDetail::new(Kind::InUse, format!("array {name} is being {doing}"))
                .with("array", name)
                .remedy("wait until that is done, and try again"));
        }
        tables.busy.insert(uuid, doing);
        Ok(Claim { inventory: self, uuid })
    }

    /// Claims the array above the replicas of a replicated volume, for a pool on it.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::InUse`] if it is being changed already.
    pub fn claim_array_under_pool(&self, name: &str) -> Result<Claim<'_>, ErrorDetail> {
        let uuid = self.read().array(name)?.uuid;
        self.claim_uuid(uuid, "made a member of a pool").ok_or_else(|| {
            ErrorDetail::new(Kind::InUse, format!("{name} is being changed"))
                .with("volume", name)
                .remedy("wait until that is done, and try again")
        })
    }

    /// Claims an array or a pool that was found and need not be listed yet; `None` if it is being changed already.
    pub fn claim_uuid(&self, uuid: Uuid, doing: &'static str) -> Option<Claim<'_>> {
        let mut tables = self.write();
        if tables.busy.contains_key(&uuid) {
            return None;
        }
        tables.busy.insert(uuid, doing);
        Some(Claim { inventory: self, uuid })
    }

    /// Completes when a claim has ended after the future was first polled or enabled.
    pub fn unclaimed(&self) -> tokio::sync::futures::Notified<'_> {
        self.unclaimed.notified()
    }
}

/// Refuses operations that an imported array does not support. `doing` is the operation, as in [`Tables::busy`].
///
/// # Errors
/// [`Kind::Unsupported`].
fn refuse_change(tables: &Tables, uuid: Uuid, doing: &str) -> Result<(), ErrorDetail> {
    let Some(saved) = tables.imported.get(&uuid) else { return Ok(()) };
    if matches!(doing, "renamed" | "stopped" | "deleted") {
        return Ok(());
    }
    let name = &saved.name;
    let message = format!("array {name} is one of Linux md, which is only read, and so it cannot be {doing}");
    Err(ErrorDetail::new(Kind::Unsupported, message).with("array", name).remedy(
        "copy what it holds to an array of Braid's own; braid array delete forgets it and leaves its disks as they are",
    ))
}

/// Exclusive right to change an array or a pool, until this is dropped.
pub struct Claim<'a> {
    inventory: &'a Inventory,
    /// The object's identity.
    pub uuid: Uuid,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.inventory.write().busy.remove(&self.uuid);
        self.inventory.unclaimed.notify_waiters();
    }
}
