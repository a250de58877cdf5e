//! What a seed's world is like: who votes, how fast things are, and what befalls them.

use braid_engine::replica::Seating;

use crate::rng::Rng;

/// One millisecond, in nanoseconds.
pub const MS: u64 = 1_000_000;
/// One second.
pub const SECOND: u64 = 1000 * MS;

/// How often each kind of fault comes, as shares.
#[derive(Clone, Debug)]
pub struct Shares(pub [u32; Fault::ALL.len()]);

/// What befalls the world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A link carries nothing for a while, both ways or one.
    LinkCut,
    /// Nodes and controllers fall into two groups.
    Partition,
    /// A node loses power.
    PowerCut,
    /// All nodes do.
    Blackout,
    /// A controller dies, and comes back.
    Death,
    /// A controller stands still.
    Pause,
    /// A connection is reset.
    Reset,
    /// What a node's disk is asked from now on takes long.
    SlowDisk,
    /// Whoever serves stops in order, and the other one opens.
    Handover,
    /// The other controller is told to open, whatever the first one does.
    Rival,
    /// A controller and the node beside it are cut off from all others, or from some, and the other controller opens.
    CutOff,
    /// A node's disk keeps what it is asked for long; the controller dies, and the other one opens.
    LateDisk,
    /// Whoever serves is told to take a voter in, or to leave one out.
    Change,
}

impl Fault {
    /// Each of them.
    pub const ALL: [Fault; 13] = [
        Fault::LinkCut,
        Fault::Partition,
        Fault::PowerCut,
        Fault::Blackout,
        Fault::Death,
        Fault::Pause,
        Fault::Reset,
        Fault::SlowDisk,
        Fault::Handover,
        Fault::Rival,
        Fault::CutOff,
        Fault::LateDisk,
        Fault::Change,
    ];
}

/// What is drawn once for a run.
#[derive(Clone, Debug)]
pub struct Nature {
    /// Who votes when the volume is made: the first ones, and of these the first ones have data.
    pub seating: Seating,
    /// Nodes on which others may come to vote.
    pub spares: usize,
    /// Blocks of the volume.
    pub blocks: u16,
    /// Clients; each is of the controller of its number modulo two.
    pub clients: usize,
    /// Longest pause of a client between two requests.
    pub think_ns: u64,
    /// Of a million requests of each client so many are writes, and flushes.
    pub writes: [u32; 4],
    /// See `writes`.
    pub flushes: u32,
    /// The node beside the controller is read from first.
    pub local: bool,
    /// Longest way of a message.
    pub delay_ns: u64,
    /// Of a million messages that are not of a connection so many are lost.
    pub loss: u32,
    /// Longest I/O of a disk that is not slow.
    pub disk_ns: u64,
    /// Of a million moments that matter (a drop is voted for, a volume is opened) so many are followed by a fault at once.
    pub aim: u32,
    /// Mean time between faults.
    pub calm_ns: u64,
    /// How long faults go on.
    pub faults_ns: u64,
    /// Which ones.
    pub shares: Shares,
    /// Snapshots are taken and deleted.
    pub snapshots: bool,
    /// Voters are lost for ever.
    pub losses: bool,
    /// Processes end without their nodes, and disks are exchanged for older copies of themselves.
    pub older: bool,
}

impl Nature {
    /// Of this seed.
    pub fn draw(rng: &mut Rng) -> Nature {
        let voters = *rng.pick(&[2, 3, 3, 3, 3, 4, 5]);
        let replicas = match voters {
            2 => 2,
            3 => rng.between(2, 3),
            _ => rng.between(2, voters as u64),
        };
        let mut shares = Fault::ALL.map(|_| if rng.coin() { 0 } else { rng.between(1, 6) as u32 });
        if shares.iter().all(|share| *share == 0) {
            shares[rng.index(Fault::ALL.len())] = 1;
        }
        Nature {
            seating: Seating::of(voters, replicas as usize),
            spares: rng.between(0, 2) as usize,
            blocks: rng.between(2, 10) as u16,
            clients: rng.between(2, 4) as usize,
            think_ns: rng.between(10, 200) * MS,
            writes: [0; 4].map(|_| *rng.pick(&[0, 100_000, 500_000, 900_000])),
            flushes: *rng.pick(&[0, 20_000, 200_000]),
            local: rng.coin(),
            delay_ns: *rng.pick(&[MS / 10, 2 * MS, 30 * MS, 300 * MS]),
            loss: rng.probability(100_000),
            disk_ns: *rng.pick(&[MS / 10, 5 * MS, 50 * MS]),
            aim: *rng.pick(&[0, 100_000, 500_000]),
            calm_ns: rng.between(1, 8) * SECOND,
            faults_ns: rng.between(30, 120) * SECOND,
            shares: Shares(shares),
            snapshots: false,
            losses: false,
            older: false,
        }
    }
}
