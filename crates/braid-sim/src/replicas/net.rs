//! The network between controllers and nodes: messages that are delayed or lost, and connections, whose messages keep
//! their order.

use braid_engine::replica::VoterId;

use super::events::{Event, Link};
use super::messages::{ToController, ToNode};
use super::world::World;

impl World {
    fn delay(&mut self) -> u64 {
        let most = self.parameters.delay_ns;
        // Most messages are fast; some take the maximum delay or longer.
        let most = if self.rng.chance(50_000) { most * 4 } else { most };
        self.rng.between(most / 10, most)
    }

    /// Sends a message to a node.
    pub fn send(&mut self, controller: usize, node: usize, what: ToNode) {
        let unordered = matches!(what, ToNode::Ask(..));
        let event = Event::ToNode { controller, node, what };
        self.carry(controller, node, event, unordered, true);
    }

    /// Sends a message to a controller.
    pub fn reply(&mut self, controller: usize, node: usize, what: ToController) {
        let unordered = matches!(what, ToController::Answer(..));
        let event = Event::ToController { controller, voter: VoterId(node as u8), what };
        self.carry(controller, node, event, unordered, false);
    }

    fn carry(&mut self, controller: usize, node: usize, event: Event, unordered: bool, forward: bool) {
        let (delay, lost) = (self.delay(), unordered && self.rng.chance(self.parameters.loss));
        let now = self.now_ns;
        let link = self.link(controller, node);
        let up = if forward { link.forward } else { link.backward };
        if unordered {
            if up && !lost {
                self.queue.push(now + delay, event);
            }
            return;
        }
        if !up {
            link.held.push(event);
            return;
        }
        let last = if forward { &mut link.last_forward } else { &mut link.last_backward };
        *last = (*last + 1).max(now + delay);
        let at = *last;
        self.queue.push(at, event);
    }

    /// Returns the link between the controller and the node.
    pub fn link(&mut self, controller: usize, node: usize) -> &mut Link {
        let nodes = self.nodes.len();
        &mut self.links[controller * nodes + node]
    }

    /// Sets whether a link works in each direction. The held messages of connections arrive, unless the link is still
    /// down. Ends that have given a connection up ignore its messages.
    pub fn set_link(&mut self, controller: usize, node: usize, forward: bool, backward: bool) {
        let link = self.link(controller, node);
        (link.forward, link.backward) = (forward, backward);
        for event in std::mem::take(&mut link.held) {
            let to_node = matches!(event, Event::ToNode { .. });
            self.carry(controller, node, event, false, to_node);
        }
    }
}
