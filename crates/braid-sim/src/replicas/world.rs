//! The world: time, nodes, links, controllers and clients; and a run of it.

use std::collections::BTreeMap;
use std::fmt;

use braid_engine::replica::{ConnectionId, Register, RegisterOf, Vote, VoterId, Voters};
use braid_format::Uuid;

use super::controller::{Controller, Phase};
use super::faults::End;
use super::history::History;
use super::nature::{Nature, SECOND};
use super::net::{Link, ToController, ToNode};
use super::node::Node;
use super::{Counters, Outcome};
use crate::queue::EventQueue;
use crate::rng::Rng;
use crate::trace::Trace;

/// How long all may take to become clean once nothing befalls it any more.
const PATIENCE_NS: u64 = 300 * SECOND;
/// More events than any run has.
const EVENTS_MAX: u64 = 20_000_000;

/// How a run is run.
#[derive(Clone, Default, Debug)]
pub struct Options {
    /// Prints every step.
    pub trace: bool,
}

/// What happens at a moment.
#[derive(Clone, Debug)]
pub enum Event {
    /// A message arrives.
    ToNode { controller: usize, node: usize, what: ToNode },
    /// The same.
    ToController { controller: usize, voter: VoterId, what: ToController },
    /// A disk is done.
    IoDone { node: usize, boot: u64, key: u64 },
    /// One place of a register is written.
    PlaceWritten { node: usize, life: u64 },
    /// A controller looks around.
    Tick { controller: usize, life: u64 },
    /// A client wants something.
    Client(usize),
    /// Something befalls the world.
    Fault,
    /// And ends.
    End(End),
}

/// All of it.
pub struct World {
    pub now_ns: u64,
    pub queue: EventQueue<Event>,
    pub rng: Rng,
    /// What chance there is in snapshots.
    pub of_snapshots: Rng,
    /// What chance there is in voters that are lost for ever.
    pub of_force: Rng,
    /// Those.
    pub lost: Voters,
    /// They are back when the faults end.
    pub lost_may_return: bool,
    /// What chance there is in processes, and in older copies of disks.
    pub of_older: Rng,
    /// Disks may be exchanged also where nobody has everything then.
    pub may_lose: bool,
    /// The highest vote that has counted for somebody.
    pub counted: Vote,
    pub trace: Trace,
    pub counters: Counters,
    pub nature: Nature,
    pub nodes: Vec<Node>,
    pub controllers: Vec<Controller>,
    pub links: Vec<Link>,
    pub history: History,
    /// What each client waits for.
    pub clients: Vec<Option<usize>>,
    /// Blocks that are to be read at the end, the last one first; none: a flush.
    pub last_wishes: Vec<Option<u16>>,
    pub violation: Option<String>,
    /// Lists of places by version: with which of them each voter came. The first one has everybody since ever.
    pub lists: BTreeMap<u64, BTreeMap<u8, u64>>,
    numbers: u64,
}

/// Runs a seed.
pub fn run(seed: u64, options: &Options) -> Outcome {
    let mut world = World::new(seed, options);
    world.live();
    world.finish();
    let violation = world.violation.take().or_else(|| world.history.violation(world.nature.blocks));
    let doubts = world.history.doubts(world.nature.blocks);
    world.counters.add("client", "writes in doubt", doubts);
    Outcome { counters: world.counters, hash: world.trace.hash(), violation }
}

impl World {
    fn new(seed: u64, options: &Options) -> World {
        let mut rng = Rng::new(seed);
        // Of a stream of its own: seeds without snapshots stay what they are.
        let mut snapshots = Rng::new(seed ^ 0x636f_7069_6573);
        let mut nature = Nature { snapshots: snapshots.below(3) == 1, ..Nature::draw(&mut rng) };
        // The same: so many of them have everything together, as in an array with parity.
        let mut levels = Rng::new(seed ^ 0x6c65_7665_6c73);
        let replicas = nature.seating.replicas.count() as u64;
        if replicas > 2 && levels.below(4) == 1 {
            nature.seating = nature.seating.taking(levels.between(2, replicas - 1) as usize);
        }
        // And the same.
        let mut force = Rng::new(seed ^ 0x666f_7263_6564);
        nature.losses = force.below(5) == 1;
        // And once more. Whoever forces an opening does not look for older copies.
        let mut older = Rng::new(seed ^ 0x6f_6c64_6572);
        nature.older = older.below(4) == 1 && !nature.losses;
        let may_lose = older.coin();
        let seating = nature.seating;
        let voters = seating.voters.count() + nature.spares;
        let vote = Vote { lineage: 1, in_sync: seating.replicas, seating, ..Vote::default() };
        let register = Register { vote, ..Register::default() };
        let nodes = (0..voters).map(|node| {
            let voter = VoterId(node as u8);
            let of = RegisterOf { volume: Uuid::from_u64_pair(7, seed | 1), voter };
            // The volume is made in this boot of its nodes: there is nothing yet that could have been lost.
            let register = Register { boot: super::node::boot_id(node, 0), ..register };
            let mut node = Node::new(of, &register, nature.blocks);
            node.exists = seating.voters.has(voter);
            node.process.notes = nature.older;
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
                told: false,
                wanted: true,
                known: seating,
                list: 0,
                rolls_back: None,
            })
            .collect();
        let history = History { cuts: vec![Vec::new(); voters], logs: seating.further > 0, ..History::default() };
        let clients = vec![None; nature.clients];
        let links = (0..2 * voters).map(|_| Link::new()).collect();
        World {
            now_ns: 0,
            queue: EventQueue::default(),
            rng,
            of_snapshots: snapshots,
            of_force: force,
            lost: Voters::NONE,
            lost_may_return: false,
            of_older: older,
            may_lose,
            counted: vote,
            trace: Trace::new(options.trace),
            counters: Counters::default(),
            nature,
            nodes,
            controllers,
            links,
            history,
            clients,
            last_wishes: Vec::new(),
            violation: None,
            lists: [(0, seating.voters.iter().map(|voter| (voter.0, 0)).collect())].into(),
            numbers: 0,
        }
    }

    /// A number that was not used before.
    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Notes what happened.
    pub fn event(&mut self, what: fmt::Arguments<'_>) {
        self.trace.event(self.now_ns, what);
    }

    /// A connection breaks in the middle.
    pub fn reset(&mut self, node: usize, id: u64) {
        if let Some(controller) = self.nodes[node].connections.get(&id).copied() {
            self.send(controller, node, ToNode::Close(ConnectionId(id)));
            self.reply(controller, node, ToController::Closed(ConnectionId(id)));
        }
    }

    fn live(&mut self) {
        let nature = format!("{:?}", self.nature);
        self.event(format_args!("{nature}"));
        (0..2).for_each(|controller| self.queue.push(0, Event::Tick { controller, life: 0 }));
        (0..self.clients.len()).for_each(|client| self.queue.push(1, Event::Client(client)));
        self.queue.push(self.rng.between(1, self.nature.calm_ns), Event::Fault);
        let end = self.nature.faults_ns;
        if self.nature.losses {
            let at = self.of_force.between(end / 4, 3 * end / 4);
            self.queue.push(at, Event::End(End::Lost));
        }
        if self.nature.older {
            let at = self.of_older.between(SECOND, end / 8);
            self.queue.push(at, Event::End(End::OfProcess));
        }
        self.go_on(end, &mut |_| false);
    }

    /// Until a moment, or until `done`. False: the moment has come.
    fn go_on(&mut self, until_ns: u64, done: &mut dyn FnMut(&mut World) -> bool) -> bool {
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
        // Who stands still finds it all when it goes on.
        if let Event::ToController { controller, .. } | Event::Tick { controller, .. } = &event {
            let until = self.controllers[*controller].paused_until_ns;
            if until > self.now_ns {
                self.queue.push(until, event);
                return;
            }
        }
        match event {
            Event::ToNode { controller, node, what } => self.at_node(controller, node, what),
            Event::ToController { controller, voter, what } => self.at_controller(controller, voter, what),
            Event::IoDone { node, boot, key } => self.io_done(node, boot, key),
            Event::PlaceWritten { node, life } => self.place_written(node, life),
            Event::Tick { controller, life } => {
                if self.controllers[controller].up && self.controllers[controller].life == life {
                    self.tick(controller);
                }
            }
            Event::Client(client) => self.client(client),
            Event::Fault => self.fault(),
            Event::End(end) => self.end(end),
        }
    }

    /// Without faults all must become clean: the volume opens, every replica is in sync, and all hold the same.
    fn finish(&mut self) {
        if self.violation.is_some() {
            return;
        }
        self.event(format_args!("the faults end"));
        self.mend_links();
        self.find_lost();
        (0..self.nodes.len()).for_each(|node| self.start_node(node));
        self.nodes.iter_mut().for_each(|node| node.slow_until_ns = 0);
        self.nature.loss = 0;
        self.nature.think_ns = self.nature.think_ns.min(SECOND / 5);
        // One of the two is to serve; the other one may be in the middle of something.
        let serves = self.rng.index(2);
        self.controllers[1 - serves].wanted = false;
        self.controllers[1 - serves].told = false;
        if self.controllers[1 - serves].up {
            self.stop(1 - serves, "it died");
        }
        self.end(End::Death(serves));
        (self.controllers[serves].paused_until_ns, self.controllers[serves].retry_ns) = (0, 0);
        (self.nature.writes, self.nature.flushes) = ([0; 4], 0);
        for _ in 0..9 {
            if !self.becomes_whole(serves) || !self.is_read(serves) {
                return;
            }
            // Somebody may have rebooted before, and was not asked anything until now.
            let whole = self.controllers[serves].serving().is_some_and(|serving| serving.is_whole());
            if whole {
                return self.compare(serves);
            }
        }
        self.violation.get_or_insert("it does not stay whole".to_owned());
    }

    fn becomes_whole(&mut self, serves: usize) -> bool {
        // Whoever was told to stop does; then it opens again.
        let whole = self.go_on(self.now_ns + PATIENCE_NS, &mut |world| {
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
                        serving.membership.wanted()
                    )
                }
            };
            self.violation.get_or_insert(format!("without faults it does not become whole: {what}"));
        }
        whole
    }

    /// Every block, and a flush, which asks all that are in sync.
    fn is_read(&mut self, serves: usize) -> bool {
        self.last_wishes = (0..self.nature.blocks).map(Some).chain([None]).rev().collect();
        let clients: Vec<usize> = (0..self.clients.len()).filter(|client| client % 2 == serves).collect();
        let read = self.go_on(self.now_ns + PATIENCE_NS, &mut |world| {
            world.last_wishes.is_empty() && clients.iter().all(|client| world.clients[*client].is_none())
        });
        if !read {
            self.violation.get_or_insert("what is whole cannot be read".to_owned());
        }
        read
    }

    fn compare(&mut self, serves: usize) {
        let Some(serving) = self.controllers[serves].serving() else { return };
        let in_sync = serving.membership.settled().in_sync;
        for block in 0..self.nature.blocks {
            let values: Vec<u64> =
                in_sync.iter().map(|voter| self.nodes[usize::from(voter.0)].store.read(block)).collect();
            if values.iter().any(|value| *value != values[0]) {
                self.violation.get_or_insert(format!("block {block} is not the same on all replicas: {values:?}"));
            }
        }
        self.compare_snapshots(in_sync);
    }
}
