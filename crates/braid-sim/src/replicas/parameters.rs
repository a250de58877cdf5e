//! The parameters of a seed's world: the voters, the speeds, and the faults.

use braid_engine::replica::VoterConfig;

use crate::rng::Rng;

/// One millisecond, in nanoseconds.
pub const MS: u64 = 1_000_000;
/// One second, in nanoseconds.
pub const SECOND: u64 = 1000 * MS;

/// The share of each kind of fault.
#[derive(Clone, Debug)]
pub struct Shares(pub [u32; Fault::ALL.len()]);

/// A fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A link carries nothing for a while, in one direction or both.
    LinkCut,
    /// Nodes and controllers are partitioned into two groups.
    Partition,
    /// A node loses power.
    PowerCut,
    /// All nodes lose power.
    Blackout,
    /// A controller dies and restarts.
    Death,
    /// A controller is paused.
    Pause,
    /// A connection is reset.
    Reset,
    /// A node's disk takes long for new I/O.
    SlowDisk,
    /// The serving controller stops in order, and the other one opens the volume.
    Handover,
    /// The other controller is ordered to open the volume, whatever the first one does.
    Rival,
    /// A controller and the node beside it are cut off from all or some other nodes, and the other controller opens the
    /// volume.
    CutOff,
    /// A node's disk holds new I/O for long; the controller dies, and the other one opens the volume.
    LateDisk,
    /// The serving controller is ordered to add or to remove a voter.
    Change,
}

impl Fault {
    /// All kinds of faults.
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

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// The initial voters: nodes from number 0 on, first those with a replica, then the witnesses.
    pub config: VoterConfig,
    /// Nodes that may become voters later.
    pub spares: usize,
    /// Blocks of the volume.
    pub blocks: u16,
    /// Number of clients. Client `n` sends its requests to controller `n % 2`.
    pub clients: usize,
    /// Maximum pause of a client between two requests, in nanoseconds.
    pub think_ns: u64,
    /// Per client, how many of a million requests are writes.
    pub writes: [u32; 4],
    /// How many of a million requests are flushes.
    pub flushes: u32,
    /// Reads go to the node beside the controller first.
    pub local: bool,
    /// Maximum delay of a message, in nanoseconds.
    pub delay_ns: u64,
    /// How many of a million messages outside connections are lost.
    pub loss: u32,
    /// Maximum time of an I/O on a disk that is not slow, in nanoseconds.
    pub disk_ns: u64,
    /// How many of a million critical moments (a drop is voted for, a volume is opened) are followed by a fault at
    /// once.
    pub aim: u32,
    /// Mean time between faults, in nanoseconds.
    pub calm_ns: u64,
    /// For how many nanoseconds faults are injected.
    pub faults_ns: u64,
    /// The shares of the kinds of faults.
    pub shares: Shares,
    /// Snapshots are taken and deleted.
    pub snapshots: bool,
    /// Voters are lost permanently.
    pub losses: bool,
    /// Processes end without their nodes, and disks are replaced by older copies of themselves.
    pub older: bool,
}

impl Parameters {
    /// Draws the parameters of this seed.
    pub fn draw(rng: &mut Rng) -> Parameters {
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
        Parameters {
            config: VoterConfig::of(voters, replicas as usize),
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
