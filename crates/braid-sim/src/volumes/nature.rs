//! What a run is like: drawn for each seed.

use crate::rng::Rng;

/// What a run is about most: what needs several things at one time, which chance alone would hardly bring together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Focus {
    /// Snapshots under writes that take long, read and compared at once.
    Snapshots,
    /// What is acknowledged as durable, and the power cut soon after it.
    Durable,
    /// Starts, cut off again and again.
    Starts,
    /// Redundant arrays as members, whose disks fail, leave and are filled.
    Arrays,
    /// Little space that is given back and used again at once.
    Reuse,
    /// Writes that time out, and land when their places may be somebody else's.
    Late,
    /// Extents that stand in a row are written in one, while some of them go elsewhere.
    Moves,
    /// Requests that are not of whole blocks, to a few blocks that many ask for.
    Sectors,
    /// What a pool writes of its own finds no space below for a while.
    Full,
}

impl Focus {
    /// All of them, by the names that the command line knows.
    pub const ALL: [(&'static str, Focus); 9] = [
        ("snapshots", Focus::Snapshots),
        ("durable", Focus::Durable),
        ("starts", Focus::Starts),
        ("arrays", Focus::Arrays),
        ("reuse", Focus::Reuse),
        ("late", Focus::Late),
        ("moves", Focus::Moves),
        ("sectors", Focus::Sectors),
        ("full", Focus::Full),
    ];

    /// Those that a seed may draw for itself; the others are asked for.
    const DRAWN: usize = 7;
}

/// What a member of the pool is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Bare,
    Mirror,
    Parity,
}

/// See the module's page. Chances are per million.
#[derive(Clone, Debug)]
pub(super) struct Nature {
    /// Kinds of members to choose from.
    pub kinds: &'static [Kind],
    /// One disk of each redundant array makes errors, hangs and is pulled.
    pub faults: bool,
    /// Bare disks fail to read and write what volumes have there, and hang with it.
    pub data_faults: bool,
    /// They do so with this chance at most.
    pub hang: u32,
    /// Bare disks fail to write, whatever it is: a pool that could not write its own goes on without making anything durable.
    pub own_faults: bool,
    /// They find no space for it, for a while.
    pub starves: bool,
    /// Disks take up to a hundred times as long with this chance.
    pub slow: Option<u32>,
    /// The pool has little space.
    pub is_small: bool,
    /// Blocks of a new volume at most.
    pub volume_blocks: u64,
    /// Those who ask at a time.
    pub clients: u64,
    /// What all of them together ask for at most before an administrator does something.
    pub requests: u64,
    /// Most requests are to several extents.
    pub long: bool,
    /// Longest pause between two requests of one of them.
    pub think_ns: u64,
    /// Of 100 requests these are flushes, and these take blocks away or zero them.
    pub flushes: u64,
    pub zeroes: u64,
    /// A write is to be durable when it is answered.
    pub fua: u32,
    /// A request is to a few blocks that many ask for.
    pub crowd: u32,
    /// Administrators at a time, what each does in a life, and the longest pause between.
    pub admins: u64,
    pub actions: u64,
    pub pause_ns: u64,
    /// Of those things this one is done more often.
    pub snapshots: u64,
    pub moves: u64,
    /// Not everything is read as soon as it is served.
    pub reads_late: u32,
    /// A snapshot is read at once when it is there.
    pub reads_snapshots: u32,
    /// Lives at most.
    pub lives: u64,
    /// A crash comes within a start; another as soon as something lasts.
    pub cut_starts: u32,
    pub cut_answers: u32,
    /// Of the crashes these are losses of power.
    pub power: u32,
}

const BARE: &[Kind] = &[Kind::Bare];
const ANY: &[Kind] = &[Kind::Bare, Kind::Bare, Kind::Mirror, Kind::Parity];
const REDUNDANT: &[Kind] = &[Kind::Mirror, Kind::Parity];

impl Nature {
    pub fn draw(rng: &mut Rng, focus: Option<Focus>) -> Nature {
        let drawn = rng.chance(500_000).then(|| rng.pick(&Focus::ALL[..Focus::DRAWN]).1);
        let focus = focus.or(drawn);
        let any = Nature::any(rng);
        match focus {
            None => any,
            Some(Focus::Snapshots) => Nature {
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
            Some(Focus::Durable) => Nature {
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
                Nature { lives: 14, cut_starts: 600_000, power: 300_000, actions: rng.between(1, 8), ..any }
            }
            Some(Focus::Arrays) => Nature {
                kinds: REDUNDANT,
                faults: rng.below(3) > 0,
                // What a crash leaves unequal is read again and again.
                crowd: 700_000,
                volume_blocks: *rng.pick(&[20, 90]),
                clients: rng.between(3, 8),
                cut_answers: 400_000,
                fua: *rng.pick(&[0, 50_000]),
                flushes: *rng.pick(&[1, 5]),
                ..any
            },
            Some(Focus::Reuse) => Nature {
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
            Some(Focus::Moves) => Nature {
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
            Some(Focus::Sectors) => Nature {
                slow: Some(300_000),
                volume_blocks: *rng.pick(&[20, 90]),
                crowd: 700_000,
                clients: rng.between(3, 8),
                think_ns: 100_000,
                ..any
            },
            Some(Focus::Full) => Nature {
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
            Some(Focus::Late) => Nature {
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

    fn any(rng: &mut Rng) -> Nature {
        Nature {
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
