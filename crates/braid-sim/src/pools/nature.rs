//! What a run is like: how often what happens is drawn for each seed.

use crate::rng::Rng;

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
    /// Of 100 requests these are flushes.
    pub flushes: u64,
    /// The pool has little space.
    pub is_small: bool,
    /// Volumes of some extents only.
    pub few_blocks: bool,
}

impl Nature {
    pub fn draw(rng: &mut Rng) -> Nature {
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
            flushes: *rng.pick(&[1, 6, 6, 20]),
            is_small: rng.chance(300_000),
            few_blocks: rng.chance(300_000),
        }
    }
}
