//! The outcome of runs, in numbers.

use std::collections::BTreeMap;

/// Event counts, by group and kind.
#[derive(Clone, Default, Debug)]
pub struct Counters(pub BTreeMap<(&'static str, &'static str), u64>);

impl Counters {
    /// Adds to a count.
    pub fn add(&mut self, group: &'static str, what: &'static str, count: u64) {
        *self.0.entry((group, what)).or_default() += count;
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Counters) {
        other.0.iter().for_each(|((group, what), count)| self.add(group, what, *count));
    }
}

/// The group of counts that have none.
const UNGROUPED: &str = "events";

impl From<Counters> for crate::counters::Counters {
    fn from(counts: Counters) -> crate::counters::Counters {
        let mut counters = crate::counters::Counters::default();
        for ((group, what), count) in counts.0 {
            counters.add_many(if group.is_empty() { UNGROUPED } else { group }, what, count);
        }
        counters
    }
}

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What happened.
    pub counters: Counters,
    /// Hash of everything that happened: the same for the same seed.
    pub hash: u64,
    /// The violated invariant, if any.
    pub violation: Option<String>,
}
