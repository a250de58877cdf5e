//! A node: the register of a voter in two disk blocks, its fence, and the replica behind it. The node's process, and
//! its disk while the process is down, are in `older_copies`.

use std::collections::BTreeMap;

use braid_engine::replica::{AdmissionResult, ConnectionId, Fence, FenceAction, Register, is_of_older_copy};
use braid_format::register::{StoredRegister, register_slot};

use super::events::Event;
use super::messages::{Io, ToController, ToNode};
use super::node_state::{InFlightIo, Writing};
use super::parameters::MS;
use super::store::boot_id;
use super::world::World;

impl World {
    /// Handles a message to a node.
    pub fn handle_at_node(&mut self, controller: usize, node: usize, what: ToNode) {
        let host = &mut self.nodes[node];
        if !host.exists {
            if let (true, ToNode::Hello { id, .. } | ToNode::Io(id, ..)) = (host.up, what) {
                self.reply(controller, node, ToController::Closed(id));
            }
            return;
        }
        let Some(fence) = &mut host.fence else {
            if let (true, ToNode::Hello { id, .. } | ToNode::Io(id, ..)) = (host.up, what) {
                self.reply(controller, node, ToController::Closed(id));
            }
            return;
        };
        match what {
            ToNode::Ask(number, ask) => {
                host.requested_by.insert(number, controller);
                fence.request(number, ask);
            }
            ToNode::Hello { id, caller } => match fence.hello(id, &caller) {
                AdmissionResult::Refused(_) => self.reply(controller, node, ToController::Closed(id)),
                hello => {
                    host.connections.insert(id.0, controller);
                    if hello == AdmissionResult::Admitted {
                        let boot = fence.boot();
                        self.reply(controller, node, ToController::Admitted(id, boot));
                    } else {
                        self.counters.add("node", "sessions that wait", 1);
                    }
                }
            },
            ToNode::Io(id, number, io) => return self.begin_io(controller, node, id, number, io),
            ToNode::Close(id) => {
                host.connections.remove(&id.0);
                fence.closed(id);
            }
        }
        self.do_actions(node);
    }

    fn begin_io(&mut self, controller: usize, node: usize, id: ConnectionId, number: u64, io: Io) {
        let host = &mut self.nodes[node];
        let begun = host.connections.contains_key(&id.0) && host.fence.as_mut().is_some_and(|fence| fence.begin(id));
        if !begun {
            return self.reply(controller, node, ToController::Closed(id));
        }
        let (slow, slowest) = (host.slow_until_ns > self.now_ns, host.slow_most_ms);
        match &io {
            Io::Write(block, _) => host.store.dirty.extend([*block]),
            Io::Clean(blocks) => host.store.dirty.retain(|block| !blocks.contains(block)),
            _ => {}
        }
        let cached = if io == Io::Flush { host.store.cached.clone() } else { BTreeMap::new() };
        let latency = match io {
            Io::Clean(_) | Io::Dirty => 0,
            _ if slow => self.rng.between(100, slowest) * MS,
            _ => self.rng.between(self.parameters.disk_ns / 10, self.parameters.disk_ns),
        };
        let key = self.number();
        self.nodes[node].in_flight.insert(key, InFlightIo { id, number, io, cached });
        let boot = self.nodes[node].boot;
        self.queue.push(self.now_ns + latency, Event::IoDone { node, boot, key });
    }

    /// Completes an I/O of a disk.
    pub fn io_done(&mut self, node: usize, boot: u64, key: u64) {
        let host = &mut self.nodes[node];
        let Some(in_flight) = host.in_flight.remove(&key).filter(|_| host.boot == boot) else { return };
        let (mut value, mut dirty, mut listed) = (0, Vec::new(), Vec::new());
        match in_flight.io {
            Io::Read(block) => value = host.store.read(block),
            Io::Write(block, value) => {
                host.store.write(block, value);
                if self.parameters.config.extra_replicas > 0 {
                    // With parity, a write is durable in a journal before it is answered.
                    host.store.flush();
                }
            }
            Io::Dirty => dirty = host.store.dirty.iter().copied().collect(),
            Io::Clean(_) => {}
            Io::Snapshot(what) => (value, listed) = host.store.snapshot(what),
            Io::Flush => host.store.flushed(in_flight.cached),
        }
        if let Some(controller) = host.connections.get(&in_flight.id.0).copied() {
            let done = ToController::Done { id: in_flight.id, io: in_flight.number, value, dirty, listed, boot };
            self.reply(controller, node, done);
        } else {
            self.counters.add("node", "I/O that ended without its connection", 1);
        }
        if let Some(fence) = &mut self.nodes[node].fence {
            fence.end(in_flight.id);
        }
        self.do_actions(node);
    }

    /// Performs the actions of a fence.
    pub fn do_actions(&mut self, node: usize) {
        while let Some(action) = self.nodes[node].fence.as_mut().and_then(Fence::pop) {
            let host = &mut self.nodes[node];
            match action {
                FenceAction::Write(register) => {
                    let stored = register.stored(&host.of, host.generation + 1);
                    let slot = register_slot(stored.generation);
                    self.write_copies(node, stored, vec![slot, 1 - slot]);
                }
                FenceAction::Cut(id) => {
                    if let Some(controller) = host.connections.remove(&id.0) {
                        self.counters.add("node", "connections cut", 1);
                        self.reply(controller, node, ToController::Closed(id));
                    }
                }
                FenceAction::Admit(id) => {
                    let boot = host.fence.as_ref().map(Fence::boot).unwrap_or_default();
                    if let Some(controller) = host.connections.get(&id.0).copied() {
                        self.reply(controller, node, ToController::Admitted(id, boot));
                    }
                }
                FenceAction::Reply(number, answer) => {
                    if let Some(controller) = host.requested_by.remove(&number) {
                        self.reply(controller, node, ToController::Answer(number, answer));
                    }
                }
            }
        }
    }

    /// Writes a register to these copies in this order, and then to the file beside the disk.
    fn write_copies(&mut self, node: usize, register: StoredRegister, order: Vec<usize>) {
        let process = &self.nodes[node].process;
        let beside = if process.keeps_records && process.is_replica { vec![2, 3] } else { Vec::new() };
        let left = order.into_iter().chain(beside).rev().collect();
        self.nodes[node].writing = Some(Writing { register, left });
        self.write_copy(node);
    }

    fn write_copy(&mut self, node: usize) {
        let at = self.now_ns + self.rng.between(self.parameters.disk_ns / 5, 2 * self.parameters.disk_ns);
        let life = self.nodes[node].process.life;
        self.queue.push(at, Event::CopyWritten { node, life });
    }

    /// Completes the write and flush of one copy of a register.
    pub fn copy_written(&mut self, node: usize, life: u64) {
        let host = &mut self.nodes[node];
        let Some(writing) = host.writing.as_mut().filter(|_| host.process.life == life) else { return };
        if let Some(copy) = writing.left.pop() {
            *host.register_copies[copy] = writing.register.encode();
        }
        if !writing.left.is_empty() {
            return self.write_copy(node);
        }
        let register = writing.register;
        (host.writing, host.generation) = (None, register.generation);
        let read = Register::of_stored(&register, &host.of).expect("it is of this voter");
        match &mut host.fence {
            Some(fence) => {
                fence.written(true);
                if read.vote.in_sync.has(host.of.voter) && read.boot == fence.boot() && is_of_older_copy(read.boot) {
                    host.process.note_voted();
                }
            }
            None => {
                // The register was repaired at the start.
                let boot = host.process.boot_of(boot_id(node, host.boot), &read);
                host.fence = Some(Fence::new(read, boot));
            }
        }
        self.do_actions(node);
    }

    /// Cuts a node's power: some of what was not flushed survives.
    pub fn cut_power(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        if !host.up && !host.process.is_down {
            return;
        }
        self.trace.event(self.now_ns, format_args!("node {node} loses power"));
        self.history.cuts[node].push(host.process.lose_power(self.now_ns));
        (host.up, host.fence) = (false, None);
        host.connections.clear();
        let in_flight: Vec<InFlightIo> = std::mem::take(&mut host.in_flight).into_values().collect();
        for one in &in_flight {
            if let Io::Snapshot(what) = one.io
                && self.rng.coin()
            {
                host.store.snapshot(what);
            }
        }
        let in_flight = in_flight.into_iter();
        let writes = in_flight.filter_map(|in_flight| match in_flight.io {
            Io::Write(block, value) => Some((block, value)),
            _ => None,
        });
        host.store.lose_cached(writes, &mut self.rng);
        if let Some(Writing { register, left }) = host.writing.take() {
            let copy = &mut host.register_copies[left.last().copied().unwrap_or_default()];
            // Each sector is written entirely or not at all; the block may be torn.
            for (old, new) in copy.chunks_mut(512).zip(register.encode().chunks(512)) {
                if self.rng.coin() {
                    old.copy_from_slice(new);
                }
            }
            // All fields are in one sector: damage within it must be detected, too.
            if self.rng.coin() {
                copy[100] ^= 0x55;
                self.counters.add("node", "torn registers", 1);
            }
        }
        host.boot += 1;
    }

    /// Restores a node's power. Its register is read, and repaired if the two copies differ.
    pub fn start_node(&mut self, node: usize) {
        if self.is_lost(node) {
            return;
        }
        let host = &mut self.nodes[node];
        if host.up {
            return;
        }
        if self.parameters.older && !self.open_pool(node) {
            return;
        }
        let host = &mut self.nodes[node];
        host.up = true;
        self.trace.event(self.now_ns, format_args!("node {node} has power"));
        let Some(register) = host.newest() else {
            self.violation.get_or_insert(format!("node {node} has forgotten its register"));
            return;
        };
        // The copy that is not in effect comes first.
        let counts = register.encode();
        let first = usize::from(*host.register_copies[1] != counts);
        let first = if *host.register_copies[0] != counts { 0 } else { first };
        host.generation = register.generation;
        // As in a change whose first copy is correct already, that copy is written last.
        let slot = register_slot(register.generation);
        let order = if slot == first { vec![slot, 1 - slot] } else { vec![first] };
        self.write_copies(node, register, order);
    }

    /// Rots one of the two disk copies of a register while its node has no power.
    pub fn rot_register(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        let [first, second, ..] = &host.register_copies;
        let whole = StoredRegister::decode(first).is_ok() && StoredRegister::decode(second).is_ok();
        if !host.up && host.exists && whole {
            host.register_copies[self.rng.index(2)][self.rng.index(512)] ^= 1;
            self.counters.add("node", "registers rotted", 1);
        }
    }
}
