//! The parameters of a run, drawn for each seed.

use crate::rng::Rng;

/// The focus of a run: it favours what needs several coincidences, which chance alone would hardly bring about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Focus {
    /// Snapshots under slow writes, read and compared at once.
    Snapshots,
    /// Requests acknowledged as durable, and the power cut soon after them.
    Durable,
    /// Starts that are interrupted again and again.
    Starts,
    /// Redundant arrays as members, whose disks fail, are removed and are rebuilt.
    Arrays,
    /// Little space, which is freed and reused at once.
    Reuse,
    /// Writes that time out and land when their extents may belong to another volume.
    LateWrites,
    /// Writes to consecutive extents as one, while some of the extents move.
    Moves,
    /// Partial-block requests to a few contended blocks.
    PartialBlocks,
    /// A pool whose own writes find no space for a while.
    FullFileSystems,
}

impl Focus {
    /// All of them, with their names on the command line.
    pub const ALL: [(&'static str, Focus); 9] = [
        ("snapshots", Focus::Snapshots),
        ("durable", Focus::Durable),
        ("starts", Focus::Starts),
        ("arrays", Focus::Arrays),
        ("reuse", Focus::Reuse),
        ("late", Focus::LateWrites),
        ("moves", Focus::Moves),
        ("sectors", Focus::PartialBlocks),
        ("full", Focus::FullFileSystems),
    ];

    /// Number of kinds of focus that a seed may draw, from the first on. The others run only if the command names them.
    const DRAWN: usize = 7;
}

/// The kind of a member of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Bare,
    Mirror,
    Parity,
}

/// The parameters of a run. Chances are per million.
#[derive(Clone, Debug)]
pub(super) struct Parameters {
    /// The kinds of members to choose from.
    pub kinds: &'static [Kind],
    /// One disk of each redundant array makes errors, hangs and is pulled.
    pub faults: bool,
    /// Bare disks fail to read and write volume data, and hang.
    pub data_faults: bool,
    /// Maximum chance that an I/O of a bare disk hangs.
    pub hang: u32,
    /// Bare disks fail to write anything: a pool whose own write failed continues without making anything durable.
    pub own_faults: bool,
    /// The pool's own writes to bare disks fail for lack of space for a while.
    pub starves: bool,
    /// Chance that a disk takes up to a hundred times as long.
    pub slow: Option<u32>,
    /// The pool has little space.
    pub is_small: bool,
    /// Maximum number of blocks of a new volume.
    pub volume_blocks: u64,
    /// Number of clients.
    pub clients: u64,
    /// Maximum number of requests of all clients together between two administrative operations.
    pub requests: u64,
    /// Most requests cover several extents.
    pub long: bool,
    /// Maximum pause of a client between two requests, in nanoseconds.
    pub think_ns: u64,
    /// How many of 100 requests are flushes.
    pub flushes: u64,
    /// How many of 100 requests discard or zero blocks.
    pub zeroes: u64,
    /// A write has FUA.
    pub fua: u32,
    /// A request goes to a few contended blocks.
    pub crowd: u32,
    /// Number of administrators.
    pub admins: u64,
    /// Number of operations of each administrator in a life.
    pub actions: u64,
    /// Maximum pause of an administrator between two operations, in nanoseconds.
    pub pause_ns: u64,
    /// Additional weight of snapshots among these operations.
    pub snapshots: u64,
    /// Additional weight of moves among these operations.
    pub moves: u64,
    /// A volume is not read as soon as it is served.
    pub reads_late: u32,
    /// A snapshot is read as soon as it exists.
    pub reads_snapshots: u32,
    /// Maximum number of lives.
    pub lives: u64,
    /// A crash comes during a start.
    pub cut_starts: u32,
    /// A crash comes soon after a request for durable data was acknowledged.
    pub cut_answers: u32,
    /// A crash is a power cut.
    pub power: u32,
}

const BARE: &[Kind] = &[Kind::Bare];
const ANY: &[Kind] = &[Kind::Bare, Kind::Bare, Kind::Mirror, Kind::Parity];
const REDUNDANT: &[Kind] = &[Kind::Mirror, Kind::Parity];

impl Parameters {
    pub fn draw(rng: &mut Rng, focus: Option<Focus>) -> Parameters {
        let drawn = rng.chance(500_000).then(|| rng.pick(&Focus::ALL[..Focus::DRAWN]).1);
        let focus = focus.or(drawn);
        let any = Parameters::any(rng);
        match focus {
            None => any,
            Some(Focus::Snapshots) => Parameters {
                kinds: BARE,
                slow: Some(400_000),
                volume_blocks: 90,
                crowd: 700_000,
                think_ns: 100_000,
                clients: rng.between(3, 8),
                snapshots: 60,
                reads_snapshots: 900_000,
                actions: rng.between(6, 16),
                pause_ns: 2_000_000,
                ..any
            },
            Some(Focus::Durable) => Parameters {
                kinds: if rng.coin() { BARE } else { ANY },
                flushes: rng.between(2, 12),
                fua: *rng.pick(&[300_000, 700_000]),
                volume_blocks: 90,
                crowd: 500_000,
                power: 900_000,
                cut_answers: 700_000,
                actions: rng.below(4),
                ..any
            },
            Some(Focus::Starts) => {
                Parameters { lives: 14, cut_starts: 600_000, power: 300_000, actions: rng.between(1, 8), ..any }
            }
            Some(Focus::Arrays) => Parameters {
                kinds: REDUNDANT,
                faults: rng.below(3) > 0,
                // Blocks that a crash left unequal are read again and again.
                crowd: 700_000,
                volume_blocks: *rng.pick(&[20, 90]),
                clients: rng.between(3, 8),
                cut_answers: 400_000,
                fua: *rng.pick(&[0, 50_000]),
                flushes: *rng.pick(&[1, 5]),
                ..any
            },
            Some(Focus::Reuse) => Parameters {
                kinds: BARE,
                slow: Some(300_000),
                data_faults: rng.coin(),
                is_small: true,
                volume_blocks: 200,
                zeroes: 30,
                clients: rng.between(3, 8),
                snapshots: 10,
                ..any
            },
            Some(Focus::Moves) => Parameters {
                kinds: if rng.coin() { BARE } else { ANY },
                slow: Some(300_000),
                is_small: false,
                volume_blocks: 300,
                long: true,
                flushes: 1,
                zeroes: 25,
                snapshots: 50,
                crowd: 0,
                clients: rng.between(3, 8),
                requests: 400,
                think_ns: 100_000,
                moves: 60,
                actions: rng.between(6, 14),
                ..any
            },
            Some(Focus::PartialBlocks) => Parameters {
                slow: Some(300_000),
                volume_blocks: *rng.pick(&[20, 90]),
                crowd: 700_000,
                clients: rng.between(3, 8),
                think_ns: 100_000,
                ..any
            },
            Some(Focus::FullFileSystems) => Parameters {
                kinds: BARE,
                faults: false,
                data_faults: false,
                own_faults: false,
                starves: true,
                volume_blocks: *rng.pick(&[90, 300]),
                flushes: rng.between(2, 12),
                fua: *rng.pick(&[50_000, 300_000]),
                zeroes: 15,
                actions: rng.between(6, 14),
                moves: *rng.pick(&[2, 15]),
                ..any
            },
            Some(Focus::LateWrites) => Parameters {
                kinds: BARE,
                data_faults: true,
                hang: 40_000,
                is_small: true,
                volume_blocks: 64,
                zeroes: 30,
                requests: 60,
                pause_ns: 8_000_000_000,
                actions: rng.between(6, 14),
                ..any
            },
        }
    }

    fn any(rng: &mut Rng) -> Parameters {
        Parameters {
            kinds: if rng.below(3) == 0 { BARE } else { ANY },
            faults: rng.below(3) == 0,
            data_faults: rng.below(5) == 0,
            hang: 10_000,
            own_faults: rng.below(8) == 0,
            starves: false,
            slow: if rng.below(3) == 0 { Some(*rng.pick(&[30_000, 300_000])) } else { None },
            is_small: rng.chance(250_000),
            volume_blocks: *rng.pick(&[70, 300, 700]),
            clients: rng.between(1, 8),
            requests: *rng.pick(&[30, 150, 400]),
            long: rng.below(8) == 0,
            think_ns: *rng.pick(&[1_000, 100_000, 1_000_000]),
            flushes: *rng.pick(&[1, 5, 15]),
            zeroes: *rng.pick(&[4, 12]),
            fua: *rng.pick(&[0, 50_000, 300_000]),
            crowd: *rng.pick(&[0, 300_000, 700_000]),
            admins: rng.between(1, 3),
            actions: rng.between(0, 10),
            pause_ns: *rng.pick(&[300_000, 3_000_000, 20_000_000]),
            snapshots: *rng.pick(&[3, 10, 30]),
            moves: *rng.pick(&[2, 2, 15]),
            reads_late: *rng.pick(&[0, 0, 600_000]),
            reads_snapshots: 300_000,
            lives: 6,
            cut_starts: *rng.pick(&[100_000, 300_000]),
            cut_answers: 100_000,
            power: 500_000,
        }
    }
}
