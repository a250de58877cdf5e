//! Counts what a run exercises: operations, crashes by kind and phase, faults by kind.

use std::collections::BTreeMap;
use std::fmt;

/// Lists of kinds, as `group.kind`. A range of at least that many seeds must exercise each kind of the list.
pub type Required = &'static [(u64, &'static [&'static str])];

/// Named counts. A name is `group.kind`, with one dot.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    counts: BTreeMap<String, u64>,
}

impl Counters {
    /// Adds one to `group.kind`.
    pub fn add(&mut self, group: &str, kind: &str) {
        self.add_many(group, kind, 1);
    }

    /// Adds `n` to `group.kind`.
    pub fn add_many(&mut self, group: &str, kind: &str, n: u64) {
        let key = format!("{group}.{kind}");
        *self.counts.entry(key).or_insert(0) += n;
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Counters) {
        for (key, n) in &other.counts {
            *self.counts.entry(key.clone()).or_insert(0) += n;
        }
    }

    /// Returns the same counts, with `prefix` before the name of each group.
    pub fn prefixed(self, prefix: &str) -> Counters {
        Counters { counts: self.counts.into_iter().map(|(key, n)| (format!("{prefix}{key}"), n)).collect() }
    }

    /// Returns the count of `group.kind`.
    pub fn get(&self, key: &str) -> u64 {
        self.counts.get(key).copied().unwrap_or(0)
    }

    /// Returns the sum of all counts of a group.
    pub fn sum(&self, group: &str) -> u64 {
        let prefix = format!("{group}.");
        self.counts.iter().filter(|(k, _)| k.starts_with(&prefix)).map(|(_, n)| n).sum()
    }

    /// Returns those of `required` whose count is 0.
    pub fn missing<'a>(&self, required: &[&'a str]) -> Vec<&'a str> {
        required.iter().copied().filter(|k| self.get(k) == 0).collect()
    }

    /// Returns a sentence that lists the kinds that this many seeds must have exercised and have not; `None` if none is
    /// missing, or if there are too few seeds to tell.
    pub fn lacks(&self, required: Required, seeds: u64) -> Option<String> {
        let demanded = required.iter().filter(|(least, _)| seeds >= *least);
        let missing: Vec<&str> = demanded.flat_map(|(_, kinds)| self.missing(kinds)).collect();
        (!missing.is_empty()).then(|| format!("never exercised: {}", missing.join(", ")))
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut group = "";
        for (key, n) in &self.counts {
            let (of, kind) = key.split_once('.').unwrap_or(("", key));
            if of != group {
                write!(f, "{}{of}:", if group.is_empty() { "" } else { "\n" })?;
                group = of;
            }
            write!(f, " {kind} {n},")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_and_gaps_show() {
        let mut a = Counters::default();
        a.add("ops", "read");
        a.add_many("ops", "write", 2);
        let mut b = a.clone();
        b.merge(&a);
        assert_eq!((b.get("ops.write"), b.sum("ops"), b.sum("op")), (4, 6, 0));
        assert_eq!(b.missing(&["ops.read", "crash.kill"]), ["crash.kill"]);
        assert_eq!(b.to_string(), "ops: read 2, write 4,");
    }
}
