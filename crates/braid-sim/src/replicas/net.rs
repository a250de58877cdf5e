//! What lies between controllers and nodes: messages that come late or never, and connections, whose messages keep their order.

use braid_engine::replica::{Answer, Ask, Caller, ConnectionId, Refused, VoterId};
use braid_format::Uuid;

use super::world::{Event, World};

/// What a controller asks of a replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Io {
    /// One block.
    Read(u16),
    /// One block, its dirty bit before it.
    Write(u16, u64),
    /// All that was written before.
    Flush,
    /// Which blocks are dirty.
    Dirty,
    /// These are the same everywhere, and flushed.
    Clean(Vec<u16>),
    /// To do with snapshots.
    Snapshot(OfSnapshot),
}

/// What is done to a snapshot, by its number, on one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfSnapshot {
    /// It is taken; it has no name so far.
    Take(u64),
    /// It gets its name.
    Name(u64),
    /// It loses its name.
    Hide(u64),
    /// It is no more.
    Remove(u64),
    /// Which there are.
    List,
    /// One block of it.
    Read(u64, u16),
    /// The replica is as it is again, by the rollback of this number. The answer is 1, where there is that snapshot.
    Rollback(u64, u64),
}

/// To a node.
#[derive(Clone, Debug)]
pub enum ToNode {
    /// On no connection: it may overtake others, and be lost.
    Ask(u64, Ask),
    /// A connection is opened.
    Hello { id: ConnectionId, caller: Caller },
    /// On a connection, under a number.
    Io(ConnectionId, u64, Io),
    /// A connection is closed.
    Close(ConnectionId),
}

/// To a controller.
#[derive(Clone, Debug)]
pub enum ToController {
    /// To a question of this number.
    Answer(u64, Result<Answer, Refused>),
    /// A connection may be used.
    Met(ConnectionId, Uuid),
    /// What a read found, or which blocks are dirty; `boot` as the world counts them.
    Done { id: ConnectionId, io: u64, value: u64, dirty: Vec<u16>, listed: Vec<(u64, bool)>, boot: u64 },
    /// A connection is no more.
    Closed(ConnectionId),
}

/// Between one controller and one node.
#[derive(Default)]
pub struct Link {
    /// What goes to the node arrives.
    pub there: bool,
    /// What comes from it does.
    pub back: bool,
    /// What connections carry, until the link does.
    pub held: Vec<Event>,
    /// When the last message of connections arrives: none overtakes another.
    last_there: u64,
    last_back: u64,
}

impl Link {
    /// One that works.
    pub fn new() -> Link {
        Link { there: true, back: true, ..Link::default() }
    }
}

impl World {
    fn delay(&mut self) -> u64 {
        let most = self.nature.delay_ns;
        // Most messages are fast, some take as long as may be.
        let most = if self.rng.chance(50_000) { most * 4 } else { most };
        self.rng.between(most / 10, most)
    }

    /// To a node.
    pub fn send(&mut self, controller: usize, node: usize, what: ToNode) {
        let free = matches!(what, ToNode::Ask(..));
        let event = Event::ToNode { controller, node, what };
        self.carry(controller, node, event, free, true);
    }

    /// To a controller, in the life in which it asked.
    pub fn reply(&mut self, controller: usize, node: usize, what: ToController) {
        let free = matches!(what, ToController::Answer(..));
        let event = Event::ToController { controller, voter: VoterId(node as u8), what };
        self.carry(controller, node, event, free, false);
    }

    fn carry(&mut self, controller: usize, node: usize, event: Event, free: bool, there: bool) {
        let (delay, lost) = (self.delay(), free && self.rng.chance(self.nature.loss));
        let now = self.now_ns;
        let link = self.link(controller, node);
        let up = if there { link.there } else { link.back };
        if free {
            if up && !lost {
                self.queue.push(now + delay, event);
            }
            return;
        }
        if !up {
            link.held.push(event);
            return;
        }
        let last = if there { &mut link.last_there } else { &mut link.last_back };
        *last = (*last + 1).max(now + delay);
        let at = *last;
        self.queue.push(at, event);
    }

    /// The link of these two.
    pub fn link(&mut self, controller: usize, node: usize) -> &mut Link {
        let nodes = self.nodes.len();
        &mut self.links[controller * nodes + node]
    }

    /// A link works from now on, or not, in each direction. What connections held arrives; where both ends had given up on them it finds
    /// nobody.
    pub fn set_link(&mut self, controller: usize, node: usize, there: bool, back: bool) {
        let link = self.link(controller, node);
        (link.there, link.back) = (there, back);
        for event in std::mem::take(&mut link.held) {
            let to_node = matches!(event, Event::ToNode { .. });
            self.carry(controller, node, event, false, to_node);
        }
    }
}
