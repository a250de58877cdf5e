//! Arrays that the daemon knows, whether they serve or not.

use crate::disks::OpenDisk;
use crate::imported::Imported;
use crate::reconciler::ReconcilerHandle;
use crate::state::{SavedCheck, SavedDamage};
use braid_api::ArrayState;
use braid_array_admin::lifecycle;
use braid_engine::DeviceId;
use braid_format::{ArrayPart, MemberState};
use braid_host::host::FileSystemEntry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// One slot of an array that does not serve.
#[derive(Clone, Debug)]
pub struct IdleMember {
    /// The slot's number.
    pub role: u16,
    /// Its member's identity.
    pub id: String,
    /// Size of its data area, in bytes.
    pub data_bytes: u64,
    /// The disk that it was found on, which is closed again; `None`: it was not found.
    pub disk: Option<String>,
    /// Its state in the labels.
    pub state: MemberState,
    /// Whether it was found.
    pub present: bool,
}

/// The component that changes the labels of a serving array.
#[derive(Clone)]
pub enum ArrayHandle {
    /// Of an array without redundancy: the holder of this lock.
    Plain(Arc<tokio::sync::Mutex<lifecycle::Array>>),
    /// Of a redundant array: its reconciler, which takes orders.
    Kept(Arc<ReconcilerHandle>),
    /// None: an array of Linux md, which is read-only.
    Imported(Arc<Imported>),
}

/// An open disk of a serving array.
#[derive(Clone)]
pub struct ArraySlot {
    /// Its slot in the array.
    pub role: u16,
    /// The disk.
    pub disk: Arc<OpenDisk>,
    /// Start of its data area, in bytes.
    pub data_offset_bytes: u64,
}

/// A serving array.
pub struct ActiveArray {
    /// The component that changes its labels.
    pub handle: ArrayHandle,
    /// The content of its labels.
    pub label: ArrayPart,
    /// The device that requests address.
    pub device: DeviceId,
    /// Its usable size, in bytes.
    pub size_bytes: u64,
    /// The block of its disks, in bytes.
    pub block_bytes: u32,
    /// Its logical block, in bytes, of which requests are multiples: that of its disks, or less
    /// ([`braid_engine::DeviceLayout::in_sectors`]).
    pub request_bytes: u32,
    /// Its present disks, by slot.
    pub disks: Vec<ArraySlot>,
    /// Open disks that its reconciler may be about to take in.
    pub guests: Vec<Arc<OpenDisk>>,
    /// Members without a disk, by slot.
    pub missing: BTreeMap<u16, MissingMember>,
    /// The disk that held the journal until just now; `None`: the journal was not lost.
    pub last_journal: Option<String>,
    /// Members that a command is dropping, until the command has ended: they do not return by themselves.
    pub left_out: BTreeSet<u16>,
}

/// What is known of a member whose disk was released.
#[derive(Clone, Debug)]
pub struct MissingMember {
    /// The disk's name.
    pub disk: String,
    /// The fault of the disk, in one sentence.
    pub why: String,
    /// The member returns automatically when its disk is found. Of a local disk: the last look found nothing at its
    /// path. Of a remote disk: its server is tried again until then.
    pub gone: bool,
    /// The directory entry that the disk's path led to when it was last seen; `None`: not known. If a look finds
    /// another entry there, a disk has appeared since, however short the absence was.
    pub entry: Option<FileSystemEntry>,
}

impl ActiveArray {
    /// Returns whether it can be found again after the daemon ends.
    pub fn is_kept(&self) -> bool {
        self.disks.iter().all(|slot| !slot.disk.disk.spec().is_volatile())
    }

    /// Returns all of its open disks, in slots or about to be taken in.
    pub fn open_disks(&self) -> Vec<Arc<OpenDisk>> {
        self.disks.iter().map(|slot| Arc::clone(&slot.disk)).chain(self.guests.iter().cloned()).collect()
    }

    /// Returns its reconciler; `None`: the array has none, as it has no redundancy or is imported.
    pub fn reconciler(&self) -> Option<&Arc<ReconcilerHandle>> {
        match &self.handle {
            ArrayHandle::Kept(reconciler) => Some(reconciler),
            ArrayHandle::Plain(_) | ArrayHandle::Imported(_) => None,
        }
    }

    /// Returns what is known of an imported array; `None`: it is no array of Linux md.
    pub fn imported(&self) -> Option<&Imported> {
        match &self.handle {
            ArrayHandle::Imported(imported) => Some(imported),
            ArrayHandle::Plain(_) | ArrayHandle::Kept(_) => None,
        }
    }

    /// Returns whether more members have failed than it tolerates: every request fails.
    pub fn has_failed(&self) -> bool {
        self.reconciler().is_some_and(|reconciler| reconciler.has_failed())
    }
}

/// An array that does not serve.
pub struct IdleArray {
    /// Why: incomplete, stopped or failed.
    pub state: ArrayState,
    /// What needs attention, one sentence each.
    pub attention: Vec<String>,
    /// What to do about it, as a command where there is one.
    pub remedy: String,
    /// The newest label; `None`: no complete one was found.
    pub label: Option<ArrayPart>,
    /// Its slots.
    pub members: Vec<IdleMember>,
}

/// Whether an array serves, with the data of that state.
pub enum ArrayCondition {
    /// The array serves.
    Active(ActiveArray),
    /// The array does not serve.
    Idle(IdleArray),
}

/// An array that the daemon knows.
pub struct ArrayEntry {
    /// Its identity.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// Whether it serves.
    pub condition: ArrayCondition,
}

impl ArrayEntry {
    /// Returns the data of a serving array; `None` if it does not serve.
    pub fn active(&self) -> Option<&ActiveArray> {
        match &self.condition {
            ArrayCondition::Active(active) => Some(active),
            ArrayCondition::Idle(_) => None,
        }
    }
}

/// Returns the running check of an array that outlives the daemon, to be saved; `None`: no check runs.
pub fn check_of(entry: &ArrayEntry) -> Option<SavedCheck> {
    let active = entry.active().filter(|active| active.is_kept())?;
    active.reconciler()?.check_to_save(entry.uuid)
}

/// Returns the damage that a check of an array has found, to be saved; `None`: there is none.
pub fn damage_of(entry: &ArrayEntry) -> Option<SavedDamage> {
    let active = entry.active().filter(|active| active.is_kept())?;
    active.reconciler()?.damage_to_save(entry.uuid)
}

/// Returns whether an array waits for an operator: it does not serve, and no command stopped it.
pub fn needs_operator(state: ArrayState) -> bool {
    matches!(state, ArrayState::Incomplete | ArrayState::Failed)
}
