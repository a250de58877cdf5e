//! The parameters of a run: the probabilities of all events, drawn for each seed.

use crate::rng::Rng;

/// A moment at which a crash may aim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Moment {
    Committed,
    Flushed,
    Discarded,
    Table,
    Batch,
    Start,
    Merged,
    Copied,
    /// The pool learns that one of its own writes found no space. Drawn from a stream of its own.
    Starved,
}

impl Moment {
    /// The moments at which any run may aim.
    pub const ALL: [Moment; 8] = [
        Moment::Committed,
        Moment::Flushed,
        Moment::Discarded,
        Moment::Table,
        Moment::Batch,
        Moment::Start,
        Moment::Merged,
        Moment::Copied,
    ];
}

/// The focus of a run: it favours what needs several coincidences, which chance alone would hardly bring about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Focus {
    /// Members that are lost in crashes and return.
    Losses,
    /// Deletions under writes, with slow commits.
    Merges,
    /// Rings that are nearly full, whose checkpoints are written under commits.
    Checkpoints,
    /// Extents that are freed while slow reads are in flight to them.
    Reuse,
    /// Blocks that move under writes, deletions and snapshots.
    Moves,
    /// Clones that become independent, under writes and everything else.
    Flattening,
    /// Pools that are nearly full, with thick volumes that have a claim on the free space.
    Space,
    /// File systems below members that are full for a while.
    Full,
}

impl Focus {
    /// All of them, with their names on the command line.
    pub const ALL: [(&'static str, Focus); 8] = [
        ("folds", Focus::Merges),
        ("starts", Focus::Checkpoints),
        ("reuse", Focus::Reuse),
        ("moves", Focus::Moves),
        ("losses", Focus::Losses),
        ("flattening", Focus::Flattening),
        ("space", Focus::Space),
        ("full", Focus::Full),
    ];
}

/// The parameters of a run. Chances are per million.
#[derive(Clone, Debug)]
pub(super) struct Parameters {
    /// A sector that was not flushed survives a power cut.
    pub survives: u32,
    /// A client's write fails.
    pub io_fails: u32,
    /// Writes of clients' data, and copies, take long while everything else continues. Reads do with half of the
    /// chance.
    pub slow_data: u32,
    /// Flushes take long.
    pub slow_flushes: u32,
    /// The pool's writes to its tables take long.
    pub slow_tables: u32,
    /// The pool's writes to its rings take long.
    pub slow_rings: u32,
    /// The check whether a commit is due is skipped.
    pub forgets_commits: u32,
    /// A checkpoint is requested.
    pub checkpoints: u32,
    /// A member fails for good; drawn at each step.
    pub member_fails: u32,
    /// An operation that moves blocks is performed; drawn at each step.
    pub moves: u32,
    /// A member is lost in a crash.
    pub loses: u32,
    /// A missing member returns at a start.
    pub returns: u32,
    /// How many of 100 requests are flushes.
    pub flushes: u64,
    /// The pool has little space.
    pub is_small: bool,
    /// Volumes have a few extents only.
    pub few_blocks: bool,
    /// Discards aim at extents that a job holds.
    pub discards_held: bool,
    /// The volume that is being flattened is deleted or rolled back.
    pub interrupts_flattening: u32,
    /// How many of 100 volumes are thick.
    pub thick: u64,
    /// The size of the rings in blocks; `None`: it is drawn.
    pub ring_blocks: Option<u64>,
    /// The moment at which crashes aim.
    pub aim: Option<Moment>,
}

impl Parameters {
    pub fn draw(rng: &mut Rng, focus: Option<Focus>) -> Parameters {
        let focuses = [Focus::Merges, Focus::Checkpoints, Focus::Reuse, Focus::Moves, Focus::Losses];
        let focus = focus.or_else(|| rng.chance(300_000).then(|| *rng.pick(&focuses)));
        let any = Parameters::any(rng);
        match focus {
            None => any,
            Some(Focus::Losses) => Parameters {
                survives: 500_000,
                loses: 800_000,
                returns: 700_000,
                slow_flushes: *rng.pick(&[0, 300_000]),
                slow_rings: *rng.pick(&[300_000, 800_000]),
                flushes: 20,
                member_fails: 0,
                // A moved block is recorded on two members at once.
                moves: *rng.pick(&[0, 300_000]),
                few_blocks: true,
                aim: Some(*rng.pick(&[Moment::Batch, Moment::Committed, Moment::Merged])),
                ..any
            },
            Some(Focus::Merges) => Parameters {
                loses: 0,
                survives: 900_000,
                slow_flushes: 800_000,
                flushes: 3,
                few_blocks: true,
                aim: Some(Moment::Merged),
                ..any
            },
            Some(Focus::Checkpoints) => Parameters {
                loses: 0,
                survives: 500_000,
                io_fails: 0,
                member_fails: 0,
                forgets_commits: 0,
                slow_tables: *rng.pick(&[0, 800_000]),
                slow_flushes: 100_000,
                flushes: *rng.pick(&[3, 20]),
                checkpoints: 0,
                is_small: false,
                ring_blocks: Some(rng.between(38, 42)),
                aim: Some(Moment::Start),
                ..any
            },
            Some(Focus::Moves) => Parameters {
                loses: 0,
                slow_data: *rng.pick(&[30_000, 300_000, 800_000]),
                moves: 300_000,
                member_fails: 0,
                is_small: false,
                few_blocks: true,
                discards_held: true,
                aim: Some(*rng.pick(&[Moment::Copied, Moment::Committed, Moment::Discarded])),
                ..any
            },
            Some(Focus::Flattening) => Parameters {
                loses: 0,
                slow_data: *rng.pick(&[30_000, 300_000, 800_000]),
                moves: *rng.pick(&[0, 20_000, 200_000]),
                member_fails: 0,
                is_small: false,
                few_blocks: true,
                slow_flushes: *rng.pick(&[0, 0, any.slow_flushes]),
                slow_rings: *rng.pick(&[0, 0, any.slow_rings]),
                interrupts_flattening: *rng.pick(&[0, 300_000, 1_000_000]),
                aim: Some(*rng.pick(&[Moment::Copied, Moment::Committed, Moment::Merged])),
                ..any
            },
            Some(Focus::Space) => Parameters {
                loses: 0,
                member_fails: 0,
                moves: *rng.pick(&[0, 20_000]),
                is_small: true,
                few_blocks: rng.coin(),
                thick: 50,
                ..any
            },
            Some(Focus::Full) => Parameters {
                loses: 0,
                member_fails: 0,
                survives: 500_000,
                slow_rings: *rng.pick(&[0, 300_000, 800_000]),
                flushes: 20,
                ring_blocks: *rng.pick(&[None, Some(38), Some(80)]),
                aim: Some(*rng.pick(&[Moment::Starved, Moment::Starved, Moment::Batch])),
                ..any
            },
            Some(Focus::Reuse) => Parameters {
                loses: 0,
                slow_data: 800_000,
                slow_flushes: 0,
                flushes: 20,
                is_small: true,
                few_blocks: true,
                ..any
            },
        }
    }

    fn any(rng: &mut Rng) -> Parameters {
        let slow = |rng: &mut Rng| *rng.pick(&[0, 0, 30_000, 300_000, 800_000]);
        Parameters {
            survives: *rng.pick(&[0, 100_000, 500_000, 900_000]),
            io_fails: if rng.chance(200_000) { 20_000 } else { 0 },
            slow_data: slow(rng),
            slow_flushes: slow(rng),
            slow_tables: slow(rng),
            slow_rings: slow(rng),
            forgets_commits: *rng.pick(&[0, 0, 900_000]),
            checkpoints: *rng.pick(&[0, 200_000, 200_000, 800_000]),
            member_fails: if rng.chance(80_000) { 1_500 } else { 0 },
            moves: *rng.pick(&[0, 20_000, 200_000]),
            loses: if rng.chance(120_000) { 500_000 } else { 0 },
            returns: *rng.pick(&[0, 300_000, 700_000]),
            flushes: *rng.pick(&[1, 6, 6, 20]),
            is_small: rng.chance(300_000),
            few_blocks: rng.chance(300_000),
            discards_held: false,
            interrupts_flattening: 0,
            thick: 0,
            ring_blocks: None,
            aim: None,
        }
    }
}
