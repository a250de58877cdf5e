//! What the world knows of the node of one voter.

use std::collections::BTreeMap;

use braid_engine::replica::{ConnectionId, Fence, Register, RegisterId, Vote};
use braid_format::register::StoredRegister;

use super::bugs::{Bug, is_active};
use super::messages::Io;
use super::process::Process;
use super::store::{RegisterCopy, Store, boot_id};

/// An I/O that a disk has in flight.
pub struct InFlightIo {
    pub id: ConnectionId,
    pub number: u64,
    pub io: Io,
    /// The writes that a flush covers.
    pub cached: BTreeMap<u16, (u64, u64)>,
}

/// A write of a register in progress.
pub struct Writing {
    pub register: StoredRegister,
    /// Copies that are still to be written, the next one last: two on the disk, and two in the file beside it.
    pub left: Vec<usize>,
}

/// The node of one voter.
pub struct Node {
    pub of: RegisterId,
    /// The node hosts a voter. Otherwise it refuses every connection.
    pub exists: bool,
    /// The node has power, and its process runs.
    pub up: bool,
    /// Incremented by each loss of power, and by each loss that the node's process has noted.
    pub boot: u64,
    /// Copies of the register: two on the disk, and two in the file beside it.
    pub register_copies: [RegisterCopy; 4],
    pub generation: u64,
    /// The register write in progress.
    pub writing: Option<Writing>,
    /// The node's process, and what happens to its disk.
    pub process: Process,
    /// `None` while the node starts or has no power.
    pub fence: Option<Fence>,
    /// The replica; unused on a witness.
    pub store: Store,
    /// The controller of each connection.
    pub connections: BTreeMap<u64, usize>,
    pub in_flight: BTreeMap<u64, InFlightIo>,
    /// Until when the disk is slow.
    pub slow_until_ns: u64,
    /// Maximum time of an I/O on the slow disk, in milliseconds.
    pub slow_most_ms: u64,
    /// The controller of each request without a reply.
    pub requested_by: BTreeMap<u64, usize>,
}

impl Node {
    /// Creates a node with the register with which the volume was created.
    pub fn new(of: RegisterId, register: &Register, blocks: u16) -> Node {
        let bytes = Box::new(register.stored(&of, 1).encode());
        let boot = boot_id(usize::from(of.voter.0), 0);
        Node {
            of,
            exists: true,
            up: true,
            boot: 0,
            register_copies: [(); 4].map(|()| bytes.clone()),
            generation: 1,
            writing: None,
            process: Process::of(register.vote.config.replicas.has(of.voter)),
            fence: Some(Fence::new(*register, boot)),
            store: Store { durable: vec![(0, 0); usize::from(blocks)], ..Store::default() },
            connections: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            slow_until_ns: 0,
            slow_most_ms: 9000,
            requested_by: BTreeMap::new(),
        }
    }
}

impl Node {
    /// Returns the vote that the node remembers, while it replies.
    pub fn vote(&self) -> Option<Vote> {
        self.fence.as_ref().map(|fence| fence.register().vote)
    }

    /// Returns the version of the member list with which the voter was created, while the node replies.
    pub fn since(&self) -> Option<u64> {
        self.fence.as_ref().map(|fence| fence.register().added_in_version)
    }

    /// Returns the register on the disk, whether the node replies or not.
    pub fn stored_register(&self) -> Option<Register> {
        Register::of_stored(&self.newest()?, &self.of)
    }

    /// Returns the register in effect among the copies on the disk and beside it.
    pub fn newest(&self) -> Option<StoredRegister> {
        let [first, second, noted, other] = &self.register_copies;
        let found = StoredRegister::newest([first, second]).ok()?;
        let noted = StoredRegister::newest([noted, other]).ok().filter(|noted| noted.generation >= found.generation);
        let is_believed = self.process.keeps_records && !is_active(Bug::PromiseForgotten);
        Some(noted.filter(|_| is_believed).unwrap_or(found))
    }

    /// Removes the voter from the node.
    pub fn remove(&mut self) {
        self.exists = false;
        self.connections.clear();
        self.in_flight.clear();
        self.requested_by.clear();
        self.process.forget_copies();
    }

    /// Creates a new voter on the node, with this register and nothing else. An earlier voter is removed. The node has
    /// power.
    pub fn replace_voter(&mut self, register: &Register, blocks: u16) {
        self.remove();
        let boot = boot_id(usize::from(self.of.voter.0), self.boot);
        let bytes = Box::new(register.stored(&self.of, 1).encode());
        let register_copies = [(); 4].map(|()| bytes.clone());
        (self.exists, self.register_copies, self.generation, self.writing) = (true, register_copies, 1, None);
        self.process.is_replica = register.vote.config.replicas.has(self.of.voter);
        self.fence = Some(Fence::new(*register, boot));
        self.store =
            Store { durable: vec![(0, 0); usize::from(blocks)], dirty: (0..blocks).collect(), ..Store::default() };
    }
}
