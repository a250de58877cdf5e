//! The behaviour of a disk, drawn for every disk of every seed.

use crate::rng::Rng;

/// Timing and fault chances of one disk. Chances are per million I/Os.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// The unit that survives a power cut whole: 512 or 4096 bytes.
    pub torn_bytes: usize,
    /// Completed writes may be lost until a flush.
    pub volatile: bool,
    /// A disk in memory: small reads and writes complete within the call. It is never volatile and never fails.
    pub instant: bool,
    /// Minimum time of an I/O, in nanoseconds.
    pub latency_ns_min: u64,
    /// Maximum time of an I/O that is not slow, in nanoseconds.
    pub latency_ns_max: u64,
    /// Factor by which a flush takes longer.
    pub flush_factor: u64,
    /// Chance to take up to a hundred times as long, so that other I/Os overtake it.
    pub slow: u32,
    /// Chance that a read fails, once.
    pub read_error: u32,
    /// Chance that a read finds a sector that stays unreadable until it is written.
    pub latent_error: u32,
    /// Chance that a write fails, having landed as a whole, in part or not at all.
    pub write_error: u32,
    /// Chance that a flush fails.
    pub flush_error: u32,
    /// Chance that an I/O exceeds its time limit.
    pub hang: u32,
}

impl Profile {
    /// Draws a disk without faults.
    pub fn healthy(rng: &mut Rng) -> Profile {
        let latency_ns_min = rng.between(1_000, 50_000);
        let volatile = rng.below(8) != 0;
        Profile {
            torn_bytes: if rng.coin() { 512 } else { 4096 },
            volatile,
            instant: !volatile && rng.coin(),
            latency_ns_min,
            latency_ns_max: latency_ns_min + rng.between(0, 300_000),
            flush_factor: *rng.pick(&[1, 1, 4, 16]),
            slow: rng.probability(200_000),
            read_error: 0,
            latent_error: 0,
            write_error: 0,
            flush_error: 0,
            hang: 0,
        }
    }

    /// Draws a disk with faults.
    pub fn faulty(rng: &mut Rng) -> Profile {
        let hangs = if rng.below(8) == 0 { 100_000 } else { 10_000 };
        let mut profile = Profile {
            read_error: rng.probability(20_000),
            latent_error: rng.probability(5_000),
            write_error: rng.probability(20_000),
            flush_error: rng.probability(50_000),
            hang: rng.probability(hangs),
            instant: false,
            ..Profile::healthy(rng)
        };
        // One kind of fault is frequent, so that a range of seeds sees them all.
        let (often, most) = match rng.below(7) {
            0 => (&mut profile.read_error, 40_000),
            1 => (&mut profile.latent_error, 40_000),
            2 => (&mut profile.write_error, 30_000),
            3 => (&mut profile.flush_error, 50_000),
            _ => (&mut profile.hang, 30_000),
        };
        *often = rng.between(most / 4, most) as u32;
        profile
    }

    /// Returns the same profile without faults.
    pub fn repaired(self) -> Profile {
        Profile { read_error: 0, latent_error: 0, write_error: 0, flush_error: 0, hang: 0, ..self }
    }

    /// Draws the duration of the next I/O, in nanoseconds.
    pub fn latency_ns(&self, rng: &mut Rng) -> u64 {
        let usual = rng.between(self.latency_ns_min, self.latency_ns_max);
        if rng.chance(self.slow) { usual * rng.between(2, 100) } else { usual }
    }
}
