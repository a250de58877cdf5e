//! What a run exercised: operations, crashes by kind and by what was going on, faults by kind.

use std::collections::BTreeMap;
use std::fmt;

/// Named counts. Names have one dot: what is counted, and of which kind.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    counts: BTreeMap<String, u64>,
}

impl Counters {
    /// Counts one.
    pub fn add(&mut self, group: &str, kind: &str) {
        self.add_many(group, kind, 1);
    }

    /// Counts several at once.
    pub fn add_many(&mut self, group: &str, kind: &str, n: u64) {
        let key = format!("{group}.{kind}");
        *self.counts.entry(key).or_insert(0) += n;
    }

    /// Adds another run's counts.
    pub fn merge(&mut self, other: &Counters) {
        for (key, n) in &other.counts {
            *self.counts.entry(key.clone()).or_insert(0) += n;
        }
    }

    /// The same counts, with this before the name of each group.
    pub fn prefixed(self, prefix: &str) -> Counters {
        Counters { counts: self.counts.into_iter().map(|(key, n)| (format!("{prefix}{key}"), n)).collect() }
    }

    /// How often `group.kind` happened.
    pub fn get(&self, key: &str) -> u64 {
        self.counts.get(key).copied().unwrap_or(0)
    }

    /// Everything of one group together.
    pub fn sum(&self, group: &str) -> u64 {
        let prefix = format!("{group}.");
        self.counts.iter().filter(|(k, _)| k.starts_with(&prefix)).map(|(_, n)| n).sum()
    }

    /// Which of `required` never happened.
    pub fn missing<'a>(&self, required: &[&'a str]) -> Vec<&'a str> {
        required.iter().copied().filter(|k| self.get(k) == 0).collect()
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
