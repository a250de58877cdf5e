//! Shrinks the run of a seed that fails: finds the smallest limits, on top of what the seed draws, with which it still
//! fails.

pub use crate::bounds::Bounds;
use crate::runs::{self, Options};

/// The result of shrinking.
pub struct Shrunk {
    /// The smallest limits found with which the seed fails.
    pub bounds: Bounds,
    /// The violation with these limits.
    pub why: String,
    /// Events in the trace, without limits and with these.
    pub events: (u64, u64),
    /// Number of runs that were tried.
    pub tried: u32,
}

/// Looks for the smallest limits with which a seed still fails. `fails` runs the seed and returns the violation and
/// the number of events; `None` if it does not fail. Any failure counts: a smaller run often shows the same bug in
/// another way.
pub fn shrink(options: &Options, mut fails: impl FnMut(&Options) -> Option<(String, u64)>) -> Option<Shrunk> {
    let (mut why, events) = fails(options)?;
    let (mut bounds, mut fewest, mut tried) = (options.bounds, events, 1);
    loop {
        let before = bounds;
        for which in 0..Bounds::NAMES.len() {
            let now = (*bounds.at(which)).min(Bounds::MOST[which] + 1);
            // Small values are tried first: a run of one life is much faster.
            for value in Bounds::LEAST[which]..now {
                if value > 8 && value % 8 != 0 {
                    continue;
                }
                let mut smaller = bounds;
                *smaller.at(which) = value;
                tried += 1;
                if let Some((said, events)) = fails(&Options { bounds: smaller, ..options.clone() })
                    && events <= fewest
                {
                    (bounds, why, fewest) = (smaller, said, events);
                    break;
                }
            }
        }
        if bounds == before {
            return Some(Shrunk { bounds, why, events: (events, fewest), tried });
        }
    }
}

/// Returns the violation of a seed and the number of its events.
pub fn failure(seed: u64, options: &Options) -> Option<(String, u64)> {
    let outcome = runs::once(seed, options);
    outcome.violation.map(|why| (why.0, outcome.events))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_failing_run_is_found() {
        // The failure needs two lives and five requests.
        let fails = |options: &Options| {
            let Bounds { lives, requests, .. } = options.bounds;
            let events = u64::from(lives.min(12)) * 100 + u64::from(requests.min(120));
            (lives >= 2 && requests >= 5).then(|| ("lost".to_owned(), events))
        };
        let found = shrink(&Options::default(), fails).expect("it fails");
        assert_eq!((found.bounds.lives, found.bounds.requests), (2, 5));
        assert_eq!((found.bounds.actions, found.bounds.clients), (0, 1), "what does not matter is least");
        assert!(shrink(&Options::default(), |_| None).is_none());
    }
}
