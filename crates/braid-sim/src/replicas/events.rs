//! The events of a run in virtual time, and the links, which hold some of them back.

use braid_engine::replica::VoterId;

use super::messages::{ToController, ToNode};

/// An event in virtual time.
#[derive(Clone, Debug)]
pub enum Event {
    /// A message arrives at a node.
    ToNode { controller: usize, node: usize, what: ToNode },
    /// A message arrives at a controller.
    ToController { controller: usize, voter: VoterId, what: ToController },
    /// A disk completes an I/O.
    IoDone { node: usize, boot: u64, key: u64 },
    /// One copy of a register is written.
    CopyWritten { node: usize, life: u64 },
    /// A controller performs its periodic work.
    Tick { controller: usize, life: u64 },
    /// A client makes a request.
    Client(usize),
    /// A fault is injected.
    Fault,
    /// A fault ends.
    FaultEnd(FaultEnd),
}

/// The end of a fault, or a fault that was scheduled.
#[derive(Clone, Debug)]
pub enum FaultEnd {
    /// The link works again.
    Link(usize, usize),
    /// All links work again.
    Links,
    /// The node has power again.
    Power(usize),
    /// The controller runs again.
    Restart(usize),
    /// The controller is ordered to open the volume.
    OpenOrder(usize),
    /// The controller dies.
    Death(usize),
    /// The node loses power.
    PowerLoss(usize),
    /// The controller is cut off.
    CutOff(usize),
    /// A fault follows a critical moment of this controller.
    Aimed(usize),
    /// Voters are lost permanently.
    PermanentLoss,
    /// The process of a node ends, or its disk is copied.
    ProcessEnd,
    /// A write of an earlier process reaches the disk late: only a mutation does that.
    LateWrite(usize, u16, u64),
}

/// The link between one controller and one node.
#[derive(Default)]
pub struct Link {
    /// Messages to the node arrive.
    pub forward: bool,
    /// Messages from the node arrive.
    pub backward: bool,
    /// Messages of connections that wait until the link works.
    pub held: Vec<Event>,
    /// When the last message of connections arrives: no message overtakes another.
    pub last_forward: u64,
    pub last_backward: u64,
}

impl Link {
    /// Creates a working link.
    pub fn new() -> Link {
        Link { forward: true, backward: true, ..Link::default() }
    }
}
