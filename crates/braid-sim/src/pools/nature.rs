//! What a run is like: how often what happens is drawn for each seed.

use crate::rng::Rng;

/// What a crash may aim at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Moment {
    Committed,
    Flushed,
    Discarded,
    Table,
    Batch,
    Start,
    Folded,
    Copied,
    /// The pool is told that a write of its own found no space. Drawn apart.
    Starved,
}

impl Moment {
    /// Those that any run may aim at.
    pub const ALL: [Moment; 8] = [
        Moment::Committed,
        Moment::Flushed,
        Moment::Discarded,
        Moment::Table,
        Moment::Batch,
        Moment::Start,
        Moment::Folded,
        Moment::Copied,
    ];
}

/// What a run is about most: what needs several things at one time, which chance alone would hardly bring together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Focus {
    /// Members that are lost in crashes, and come back.
    Losses,
    /// Deletions under writes, with commits that take long.
    Folds,
    /// Rings nearly full, whose starts are written under commits.
    Starts,
    /// Extents that are given back while many look at them, with reads that take long.
    Reuse,
    /// Blocks that move under writes, deletions and snapshots.
    Moves,
    /// Clones that become independent, under writes and all else.
    Flattening,
    /// Pools that are nearly full, with volumes that have a right to what is free.
    Space,
    /// File systems below that are full for a while.
    Full,
}

/// Chances, per million.
#[derive(Clone, Debug)]
pub(super) struct Nature {
    /// What was not flushed survives a power cut.
    pub survives: u32,
    /// A write of a user fails.
    pub io_fails: u32,
    /// I/Os stay out for long while everything else goes on: users' writes, flushes, what is written to tables and to rings.
    pub slow_data: u32,
    pub slow_flushes: u32,
    pub slow_tables: u32,
    pub slow_rings: u32,
    /// Nobody looks whether a commit is due.
    pub forgets_commits: u32,
    /// Somebody asks for a checkpoint.
    pub checkpoints: u32,
    /// A member fails from now on, at each step.
    pub falls_ill: u32,
    /// Something that moves blocks is done, at each step.
    pub moves: u32,
    /// A member is lost in a crash; it comes back at a start.
    pub loses: u32,
    pub returns: u32,
    /// Of 100 requests these are flushes.
    pub flushes: u64,
    /// The pool has little space.
    pub is_small: bool,
    /// Volumes of some extents only.
    pub few_blocks: bool,
    /// Discards look for extents that a job holds.
    pub discards_held: bool,
    /// What is being flattened is deleted, or rolled back.
    pub ends_flattened: u32,
    /// Of 100 volumes these are thick.
    pub thick: u64,
    /// Of the rings.
    pub ring_blocks: Option<u64>,
    /// At what crashes aim.
    pub aim: Option<Moment>,
}

impl Nature {
    pub fn draw(rng: &mut Rng, focus: Option<Focus>) -> Nature {
        let focuses = [Focus::Folds, Focus::Starts, Focus::Reuse, Focus::Moves, Focus::Losses];
        let focus = focus.or_else(|| rng.chance(300_000).then(|| *rng.pick(&focuses)));
        let any = Nature::any(rng);
        match focus {
            None => any,
            Some(Focus::Losses) => Nature {
                survives: 500_000,
                loses: 800_000,
                returns: 700_000,
                slow_flushes: *rng.pick(&[0, 300_000]),
                slow_rings: *rng.pick(&[300_000, 800_000]),
                flushes: 20,
                falls_ill: 0,
                // What is moved is said on two members at once.
                moves: *rng.pick(&[0, 300_000]),
                few_blocks: true,
                aim: Some(*rng.pick(&[Moment::Batch, Moment::Committed, Moment::Folded])),
                ..any
            },
            Some(Focus::Folds) => Nature {
                loses: 0,
                survives: 900_000,
                slow_flushes: 800_000,
                flushes: 3,
                few_blocks: true,
                aim: Some(Moment::Folded),
                ..any
            },
            Some(Focus::Starts) => Nature {
                loses: 0,
                survives: 500_000,
                io_fails: 0,
                falls_ill: 0,
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
            Some(Focus::Moves) => Nature {
                loses: 0,
                slow_data: *rng.pick(&[30_000, 300_000, 800_000]),
                moves: 300_000,
                falls_ill: 0,
                is_small: false,
                few_blocks: true,
                discards_held: true,
                aim: Some(*rng.pick(&[Moment::Copied, Moment::Committed, Moment::Discarded])),
                ..any
            },
            Some(Focus::Flattening) => Nature {
                loses: 0,
                slow_data: *rng.pick(&[30_000, 300_000, 800_000]),
                moves: *rng.pick(&[0, 20_000, 200_000]),
                falls_ill: 0,
                is_small: false,
                few_blocks: true,
                slow_flushes: *rng.pick(&[0, 0, any.slow_flushes]),
                slow_rings: *rng.pick(&[0, 0, any.slow_rings]),
                ends_flattened: *rng.pick(&[0, 300_000, 1_000_000]),
                aim: Some(*rng.pick(&[Moment::Copied, Moment::Committed, Moment::Folded])),
                ..any
            },
            Some(Focus::Space) => Nature {
                loses: 0,
                falls_ill: 0,
                moves: *rng.pick(&[0, 20_000]),
                is_small: true,
                few_blocks: rng.coin(),
                thick: 50,
                ..any
            },
            Some(Focus::Full) => Nature {
                loses: 0,
                falls_ill: 0,
                survives: 500_000,
                slow_rings: *rng.pick(&[0, 300_000, 800_000]),
                flushes: 20,
                ring_blocks: *rng.pick(&[None, Some(38), Some(80)]),
                aim: Some(*rng.pick(&[Moment::Starved, Moment::Starved, Moment::Batch])),
                ..any
            },
            Some(Focus::Reuse) => Nature {
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

    fn any(rng: &mut Rng) -> Nature {
        let slow = |rng: &mut Rng| *rng.pick(&[0, 0, 30_000, 300_000, 800_000]);
        Nature {
            survives: *rng.pick(&[0, 100_000, 500_000, 900_000]),
            io_fails: if rng.chance(200_000) { 20_000 } else { 0 },
            slow_data: slow(rng),
            slow_flushes: slow(rng),
            slow_tables: slow(rng),
            slow_rings: slow(rng),
            forgets_commits: *rng.pick(&[0, 0, 900_000]),
            checkpoints: *rng.pick(&[0, 200_000, 200_000, 800_000]),
            falls_ill: if rng.chance(80_000) { 1_500 } else { 0 },
            moves: *rng.pick(&[0, 20_000, 200_000]),
            loses: if rng.chance(120_000) { 500_000 } else { 0 },
            returns: *rng.pick(&[0, 300_000, 700_000]),
            flushes: *rng.pick(&[1, 6, 6, 20]),
            is_small: rng.chance(300_000),
            few_blocks: rng.chance(300_000),
            discards_held: false,
            ends_flattened: 0,
            thick: 0,
            ring_blocks: None,
            aim: None,
        }
    }
}
