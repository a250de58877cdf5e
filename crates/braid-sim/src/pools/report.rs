//! What came of runs, in numbers.

use std::collections::BTreeMap;
use std::fmt;

/// What happened, in numbers: by group and kind.
#[derive(Clone, Default, Debug)]
pub struct Counters(pub BTreeMap<(&'static str, &'static str), u64>);

impl Counters {
    /// So many more of these.
    pub fn add(&mut self, group: &'static str, what: &'static str, count: u64) {
        *self.0.entry((group, what)).or_default() += count;
    }

    /// Adds another run's.
    pub fn merge(&mut self, other: &Counters) {
        other.0.iter().for_each(|((group, what), count)| self.add(group, what, *count));
    }

    /// Which of these never happened, "group: kind" each.
    pub fn lack(&self, required: &[(&'static str, &'static str)]) -> Vec<String> {
        let lacks = required.iter().filter(|kind| self.0.get(kind).is_none_or(|count| *count == 0));
        lacks.map(|(group, what)| format!("{group}: {what}")).collect()
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = None;
        for ((group, what), count) in &self.0 {
            match last {
                Some(before) if before == *group => f.write_str(", ")?,
                None if group.is_empty() => {}
                _ => write!(f, "\n{group}: ")?,
            }
            last = Some(*group);
            write!(f, "{what} {count}")?;
        }
        Ok(())
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What happened.
    pub counters: Counters,
    /// Of everything that happened: the same for the same seed.
    pub hash: u64,
    /// What must not be.
    pub violation: Option<String>,
}
