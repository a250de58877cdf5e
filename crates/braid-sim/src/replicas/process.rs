//! A node's process: its record of the pool's sessions, and a copy of its disk.

use braid_engine::replica::{Register, boot_of_older_copy, boot_of_original};
use braid_format::Uuid;

use super::store::{RegisterCopy, Store};

/// The label of a pool.
#[derive(Clone, Copy, Default)]
pub struct Label {
    pub session: u64,
    pub clean: bool,
}

/// The node's record of the label.
#[derive(Clone, Copy, Default)]
pub struct SessionRecord {
    pub session: u64,
    /// A session that is about to begin: the label may show it already.
    pub next: Option<u64>,
    pub closed: bool,
}

impl SessionRecord {
    pub fn fits(&self, found: Label) -> bool {
        let of_session = found.session == self.session && (found.clean || !self.closed);
        of_session || self.next == Some(found.session)
    }
}

/// A copy of a disk.
pub struct DiskCopy {
    pub register_copies: [RegisterCopy; 2],
    pub store: Store,
    pub label: Label,
    /// The serving of the pool (by number, see [`Process::servings`]) during which the copy was made, or after which.
    pub serving: u64,
    /// The copy was made after that serving had ended in order.
    pub of_end: bool,
}

/// A node's process, with its record of sessions and the label of its disk.
#[derive(Default)]
pub struct Process {
    /// The node keeps records beside its disk.
    pub keeps_records: bool,
    /// The node keeps data.
    pub is_replica: bool,
    /// Incremented by each end of a process.
    pub life: u64,
    /// The node has power but no process.
    pub is_down: bool,
    pub since_ns: u64,
    pub label: Label,
    pub record: SessionRecord,
    /// The last session number that was used.
    pub sessions: u64,
    /// The shared memory of the pool's last session is lost.
    pub memory_lost: bool,
    /// The node has recorded that its disk is an older copy.
    pub older: bool,
    pub copy: Option<DiskCopy>,
    /// How many times the pool has begun to serve.
    pub servings: u64,
    /// The last serving has ended in order.
    pub ended_in_order: bool,
    /// The simulator's own knowledge: the disk is an older copy, and was neither synced nor voted in sync since.
    pub replaced_by_copy: bool,
}

impl Process {
    /// Creates the process of a replica or of a witness.
    pub fn of(is_replica: bool) -> Process {
        Process { is_replica, ..Process::default() }
    }

    /// Returns the boot that the replica shows; `number`: the boot of the node.
    pub fn boot_of(&self, number: Uuid, register: &Register) -> Uuid {
        let older = boot_of_older_copy(number);
        if self.older || register.boot == older { older } else { boot_of_original(number) }
    }

    /// Notes that a vote names the replica in sync under the boot that it shows.
    pub fn note_voted(&mut self) {
        (self.older, self.replaced_by_copy) = (false, false);
    }

    /// Notes that the node's voter has been removed or replaced.
    pub fn forget_copies(&mut self) {
        (self.older, self.replaced_by_copy, self.copy) = (false, false, None);
    }

    /// Ends the process with the node's power. Returns when the node lost what it had acknowledged.
    pub fn lose_power(&mut self, now_ns: u64) -> u64 {
        let lost_ns = if self.memory_lost { self.since_ns } else { now_ns };
        (self.memory_lost, self.is_down, self.since_ns) = (false, false, now_ns);
        self.life += 1;
        lost_ns
    }
}
