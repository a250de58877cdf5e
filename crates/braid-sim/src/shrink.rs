//! Making the story of a seed that fails smaller: limits on top of what the seed draws, as few as still fail.

use std::fmt;

use crate::runs::{self, Options};

/// At most so much of everything, whatever a seed draws.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Lives that end by a crash, or by themselves, before the last one.
    pub lives: u32,
    /// Things that the administrator does in a life.
    pub actions: u32,
    /// Clients that are connected at a time.
    pub clients: u32,
    /// Requests of a client.
    pub requests: u32,
}

impl Bounds {
    /// None.
    pub const NONE: Bounds = Bounds { lives: u32::MAX, actions: u32::MAX, clients: u32::MAX, requests: u32::MAX };

    const NAMES: [&str; 4] = ["lives", "actions", "clients", "requests"];
    /// The least of each that makes a story.
    const LEAST: [u32; 4] = [0, 0, 1, 1];
    /// The most that is worth trying: no seed draws more.
    const MOST: [u32; 4] = [12, 16, 5, 120];

    fn at(&mut self, which: usize) -> &mut u32 {
        match which {
            0 => &mut self.lives,
            1 => &mut self.actions,
            2 => &mut self.clients,
            _ => &mut self.requests,
        }
    }

    /// Those that a text names, as they are written on the command line: `lives=2,requests=5`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Bounds, String> {
        let mut bounds = Bounds::NONE;
        for part in text.split(',') {
            let wrong =
                || format!("--bounds knows no {part:?}, for example --bounds lives=2,actions=3,clients=1,requests=5");
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            let which = Bounds::NAMES.iter().position(|known| *known == name).ok_or_else(wrong)?;
            *bounds.at(which) = value.parse().ok().filter(|v| *v >= Bounds::LEAST[which]).ok_or_else(wrong)?;
        }
        Ok(bounds)
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = *self;
        let mut comma = "";
        for (which, name) in Bounds::NAMES.into_iter().enumerate() {
            let value = *all.at(which);
            if value != u32::MAX {
                write!(f, "{comma}{name}={value}")?;
                comma = ",";
            }
        }
        Ok(())
    }
}

/// What came of it.
pub struct Shrunk {
    /// The smallest bounds found with which the seed fails.
    pub bounds: Bounds,
    /// How it fails with them.
    pub why: String,
    /// Events in the trace, without bounds and with these.
    pub events: (u64, u64),
    /// Stories that were tried.
    pub tried: u32,
}

/// Looks for the smallest bounds with which a seed still fails. `fails` runs it and says how; `None` where it does not.
/// Fails in any way: what is smaller is often another way to the same mistake.
pub fn shrink(options: &Options, mut fails: impl FnMut(&Options) -> Option<(String, u64)>) -> Option<Shrunk> {
    let (mut why, events) = fails(options)?;
    let (mut bounds, mut fewest, mut tried) = (options.bounds, events, 1);
    loop {
        let before = bounds;
        for which in 0..Bounds::NAMES.len() {
            let now = (*bounds.at(which)).min(Bounds::MOST[which] + 1);
            // What is small is tried first: a story of one life is told much faster.
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

/// How a seed fails, and in how many events.
pub fn failure(seed: u64, options: &Options) -> Option<(String, u64)> {
    let outcome = runs::once(seed, options);
    outcome.violation.map(|why| (why.0, outcome.events))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_read_as_they_are_written() {
        let bounds = Bounds { lives: 2, requests: 7, ..Bounds::NONE };
        assert_eq!(bounds.to_string(), "lives=2,requests=7");
        assert_eq!(Bounds::parse("lives=2,requests=7"), Ok(bounds));
        assert!(Bounds::parse("lives=2,books=7").unwrap_err().contains("books"));
        assert!(Bounds::parse("requests=0").is_err());
    }

    #[test]
    fn the_smallest_story_that_fails_is_found() {
        // It takes two lives and five requests.
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
