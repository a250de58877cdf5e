//! The world: time, nodes, links, controllers and clients; and a run of it.

use std::collections::BTreeMap;
use std::fmt;

use braid_engine::replica::{ConnectionId, Register, RegisterId, Vote, VoterId, Voters};
use braid_format::Uuid;

use super::controller_state::{Controller, Phase};
use super::events::{Event, FaultEnd, Link};
use super::history::History;
use super::messages::{ToController, ToNode};
use super::node_state::Node;
use super::parameters::{Parameters, SECOND};
use super::{Counters, Outcome};
use crate::queue::EventQueue;
use crate::rng::Rng;
use crate::trace::Trace;

/// How long the system may take to become clean once the faults have ended.
const PATIENCE_NS: u64 = 300 * SECOND;
/// Maximum number of traced events of a run, far above what any run needs. Exceeding it is a violation: the run does
/// not end.
const EVENTS_MAX: u64 = 20_000_000;

/// Options of a run.
#[derive(Clone, Default, Debug)]
pub struct Options {
    /// Prints every step.
    pub trace: bool,
}

/// The state of a run.
pub struct World {
    pub now_ns: u64,
    pub queue: EventQueue<Event>,
    pub rng: Rng,
    /// The random stream of snapshots.
    pub snapshot_rng: Rng,
    /// The random stream of permanent losses and forced attaches.
    pub force_rng: Rng,
    /// The voters that are lost permanently.
    pub lost: Voters,
    /// The lost voters return when the faults end.
    pub lost_may_return: bool,
    /// The random stream of processes and of older copies of disks.
    pub process_rng: Rng,
    /// Disks may be replaced by older copies even if no complete set of replicas remains.
    pub may_lose: bool,
    /// The highest vote that has been in effect for a controller.
    pub effective_vote: Vote,
    pub trace: Trace,
    pub counters: Counters,
    pub parameters: Parameters,
    pub nodes: Vec<Node>,
    pub controllers: Vec<Controller>,
    pub links: Vec<Link>,
    pub history: History,
    /// By client, the request that it waits for.
    pub clients: Vec<Option<usize>>,
    /// Blocks to read at the end, the last one first; `None`: a flush.
    pub final_reads: Vec<Option<u16>>,
    pub violation: Option<String>,
    /// Member lists by version: for each voter, the version with which it was created. The first list has all initial
    /// voters with version 0.
    pub lists: BTreeMap<u64, BTreeMap<u8, u64>>,
    numbers: u64,
}

/// Runs a seed.
pub fn run(seed: u64, options: &Options) -> Outcome {
    let mut world = World::new(seed, options);
    world.run_faults();
    world.finish();
    let violation = world.violation.take().or_else(|| world.history.violation(world.parameters.blocks));
    let doubts = world.history.doubts(world.parameters.blocks);
    world.counters.add("client", "writes in doubt", doubts);
    Outcome { counters: world.counters, hash: world.trace.hash(), violation }
}

impl World {
    fn new(seed: u64, options: &Options) -> World {
        let mut rng = Rng::new(seed);
        // A random stream of its own: seeds without snapshots stay unchanged.
        let mut snapshots = Rng::new(seed ^ 0x636f_7069_6573);
        let mut parameters = Parameters { snapshots: snapshots.below(3) == 1, ..Parameters::draw(&mut rng) };
        // Also a stream of its own. This many replicas together hold everything, as in an array with parity.
        let mut levels = Rng::new(seed ^ 0x6c65_7665_6c73);
        let replicas = parameters.config.replicas.count() as u64;
        if replicas > 2 && levels.below(4) == 1 {
            parameters.config = parameters.config.with_replicas_needed(levels.between(2, replicas - 1) as usize);
        }
        // Also a stream of its own.
        let mut force = Rng::new(seed ^ 0x666f_7263_6564);
        parameters.losses = force.below(5) == 1;
        // Also a stream of its own. A forced attach does not check for older copies, so the two exclude each other.
        let mut older = Rng::new(seed ^ 0x6f_6c64_6572);
        parameters.older = older.below(4) == 1 && !parameters.losses;
        let may_lose = older.coin();
        let config = parameters.config;
        let voters = config.voters.count() + parameters.spares;
        let vote = Vote { lineage: 1, in_sync: config.replicas, config, ..Vote::default() };
        let register = Register { vote, ..Register::default() };
        let nodes = (0..voters).map(|node| {
            let voter = VoterId(node as u8);
            let of = RegisterId { volume: Uuid::from_u64_pair(7, seed | 1), voter };
            // The volume is created in this boot of its nodes: nothing could have been lost yet.
            let register = Register { boot: super::store::boot_id(node, 0), ..register };
            let mut node = Node::new(of, &register, parameters.blocks);
            node.exists = config.voters.has(voter);
            node.process.keeps_records = parameters.older;
            node
        });
        let nodes: Vec<Node> = nodes.collect();
        let controllers: Vec<Controller> = (0..2)
            .map(|c| Controller {
                up: true,
                life: 0,
                paused_until_ns: 0,
                rate: rng.between(0, 20_000) as i64 - 10_000,
                offset_ns: rng.between(0, 36_000) * SECOND,
                run: None,
                retry_ns: if c == 0 { 0 } else { u64::MAX },
                must_open: false,
                may_open: true,
                known_voters: config,
                list_version: 0,
                rolls_back: None,
            })
            .collect();
        let history = History { cuts: vec![Vec::new(); voters], logs: config.extra_replicas > 0, ..History::default() };
        let clients = vec![None; parameters.clients];
        let links = (0..2 * voters).map(|_| Link::new()).collect();
        World {
            now_ns: 0,
            queue: EventQueue::default(),
            rng,
            snapshot_rng: snapshots,
            force_rng: force,
            lost: Voters::NONE,
            lost_may_return: false,
            process_rng: older,
            may_lose,
            effective_vote: vote,
            trace: Trace::new(options.trace),
            counters: Counters::default(),
            parameters,
            nodes,
            controllers,
            links,
            history,
            clients,
            final_reads: Vec::new(),
            violation: None,
            lists: [(0, config.voters.iter().map(|voter| (voter.0, 0)).collect())].into(),
            numbers: 0,
        }
    }

    /// Returns a number that was not used before.
    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Traces an event.
    pub fn event(&mut self, what: fmt::Arguments<'_>) {
        self.trace.event(self.now_ns, what);
    }

    /// Resets a connection.
    pub fn reset(&mut self, node: usize, id: u64) {
        if let Some(controller) = self.nodes[node].connections.get(&id).copied() {
            self.send(controller, node, ToNode::Close(ConnectionId(id)));
            self.reply(controller, node, ToController::Closed(ConnectionId(id)));
        }
    }

    fn run_faults(&mut self) {
        let parameters = format!("{:?}", self.parameters);
        self.event(format_args!("{parameters}"));
        (0..2).for_each(|controller| self.queue.push(0, Event::Tick { controller, life: 0 }));
        (0..self.clients.len()).for_each(|client| self.queue.push(1, Event::Client(client)));
        self.queue.push(self.rng.between(1, self.parameters.calm_ns), Event::Fault);
        let end = self.parameters.faults_ns;
        if self.parameters.losses {
            let at = self.force_rng.between(end / 4, 3 * end / 4);
            self.queue.push(at, Event::FaultEnd(FaultEnd::PermanentLoss));
        }
        if self.parameters.older {
            let at = self.process_rng.between(SECOND, end / 8);
            self.queue.push(at, Event::FaultEnd(FaultEnd::ProcessEnd));
        }
        self.run_until(end, &mut |_| false);
    }

    /// Runs until a moment, or until `done`. Returns `false` if the moment has come or a violation was found.
    fn run_until(&mut self, until_ns: u64, done: &mut dyn FnMut(&mut World) -> bool) -> bool {
        while let Some(at) = self.queue.next_at() {
            if at > until_ns || self.violation.is_some() {
                return false;
            }
            let Some((at, event)) = self.queue.pop() else { return false };
            self.now_ns = at;
            self.step(event);
            if self.trace.events() > EVENTS_MAX {
                self.violation.get_or_insert("it goes on for ever".to_owned());
            }
            if done(self) {
                return true;
            }
        }
        false
    }

    fn step(&mut self, event: Event) {
        // A paused controller handles everything when it resumes.
        if let Event::ToController { controller, .. } | Event::Tick { controller, .. } = &event {
            let until = self.controllers[*controller].paused_until_ns;
            if until > self.now_ns {
                self.queue.push(until, event);
                return;
            }
        }
        match event {
            Event::ToNode { controller, node, what } => self.handle_at_node(controller, node, what),
            Event::ToController { controller, voter, what } => self.handle_at_controller(controller, voter, what),
            Event::IoDone { node, boot, key } => self.io_done(node, boot, key),
            Event::CopyWritten { node, life } => self.copy_written(node, life),
            Event::Tick { controller, life } => {
                if self.controllers[controller].up && self.controllers[controller].life == life {
                    self.tick(controller);
                }
            }
            Event::Client(client) => self.client(client),
            Event::Fault => self.fault(),
            Event::FaultEnd(end) => self.end_fault(end),
        }
    }

    /// Checks that the system becomes clean without faults: the volume opens, every replica is in sync, and all
    /// replicas hold the same.
    fn finish(&mut self) {
        if self.violation.is_some() {
            return;
        }
        self.event(format_args!("the faults end"));
        self.restore_links();
        self.return_lost();
        (0..self.nodes.len()).for_each(|node| self.start_node(node));
        self.nodes.iter_mut().for_each(|node| node.slow_until_ns = 0);
        self.parameters.loss = 0;
        self.parameters.think_ns = self.parameters.think_ns.min(SECOND / 5);
        // One controller is to serve; the other one may be in the middle of its work.
        let serves = self.rng.index(2);
        self.controllers[1 - serves].may_open = false;
        self.controllers[1 - serves].must_open = false;
        if self.controllers[1 - serves].up {
            self.stop(1 - serves, "it died");
        }
        self.end_fault(FaultEnd::Restart(serves));
        (self.controllers[serves].paused_until_ns, self.controllers[serves].retry_ns) = (0, 0);
        (self.parameters.writes, self.parameters.flushes) = ([0; 4], 0);
        for _ in 0..9 {
            if !self.becomes_whole(serves) || !self.read_all(serves) {
                return;
            }
            // A replica may have rebooted earlier without having received a request since.
            let whole = self.controllers[serves].serving().is_some_and(|serving| serving.is_whole());
            if whole {
                return self.compare(serves);
            }
        }
        self.violation.get_or_insert("it does not stay whole".to_owned());
    }

    fn becomes_whole(&mut self, serves: usize) -> bool {
        // A controller that was ordered to stop does so, and then opens the volume again.
        let whole = self.run_until(self.now_ns + PATIENCE_NS, &mut |world| {
            let serving = world.controllers[serves].serving();
            serving.is_some_and(|serving| serving.is_whole() && !serving.stopping)
        });
        if !whole && !self.is_given_up(serves) {
            let what = match self.controllers[serves].run.as_ref().map(|run| &run.phase) {
                None => "nobody opens it".to_owned(),
                Some(Phase::Opening(opening, _)) => {
                    format!("it does not open: {:?}", opening.next(self.clock(serves)))
                }
                Some(Phase::Serving(serving)) => {
                    format!(
                        "not all are in sync: {:?}, {:?}",
                        serving.membership.settled(),
                        serving.membership.next_action()
                    )
                }
            };
            self.violation.get_or_insert(format!("without faults it does not become whole: {what}"));
        }
        whole
    }

    /// Reads every block, and flushes, which involves all in-sync replicas.
    fn read_all(&mut self, serves: usize) -> bool {
        self.final_reads = (0..self.parameters.blocks).map(Some).chain([None]).rev().collect();
        let clients: Vec<usize> = (0..self.clients.len()).filter(|client| client % 2 == serves).collect();
        let read = self.run_until(self.now_ns + PATIENCE_NS, &mut |world| {
            world.final_reads.is_empty() && clients.iter().all(|client| world.clients[*client].is_none())
        });
        if !read {
            self.violation.get_or_insert("what is whole cannot be read".to_owned());
        }
        read
    }

    fn compare(&mut self, serves: usize) {
        let Some(serving) = self.controllers[serves].serving() else { return };
        let in_sync = serving.membership.settled().in_sync;
        for block in 0..self.parameters.blocks {
            let values: Vec<u64> =
                in_sync.iter().map(|voter| self.nodes[usize::from(voter.0)].store.read(block)).collect();
            if values.iter().any(|value| *value != values[0]) {
                self.violation.get_or_insert(format!("block {block} is not the same on all replicas: {values:?}"));
            }
        }
        self.compare_snapshots(in_sync);
    }
}
