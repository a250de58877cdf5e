//! What each block of a volume may read as: which writes changed it, when, and which of them are certain to last.

/// One write of one block, or its discard, which writes zeros.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Change {
    /// The word that a read finds.
    pub word: u64,
    /// When the request began.
    pub start: u64,
    /// When the request was acknowledged; `None`: not yet.
    pub end: Option<u64>,
    /// The change survives a power cut.
    pub durable: bool,
}

/// The condition under which a change certainly hides those before it.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    /// The change was acknowledged before the read that began at this time.
    Read(u64),
    /// The process was killed: the change was acknowledged.
    Kill,
    /// The power was cut: the change is durable.
    Power,
}

/// The history of one block, as far as it still matters.
#[derive(Clone, PartialEq, Debug)]
pub struct Block(pub Vec<Change>);

impl Default for Block {
    fn default() -> Block {
        Block::of(0)
    }
}

impl Block {
    /// Creates a block that has read as this word since before the run.
    pub fn of(word: u64) -> Block {
        Block(vec![Change { word, start: 0, end: Some(0), durable: true }])
    }

    /// Returns the words that the block may read as, given the changes that began before `until`.
    pub fn admissible(&self, until: u64, rule: Rule) -> Vec<u64> {
        let began = || self.0.iter().filter(|change| change.start < until);
        let certain = |change: &Change| match rule {
            Rule::Read(start) => change.end.is_some_and(|end| end < start),
            Rule::Kill => change.end.is_some(),
            Rule::Power => change.durable,
        };
        let hidden =
            |change: &Change| change.end.is_some_and(|end| began().any(|later| later.start > end && certain(later)));
        began().filter(|change| !hidden(change)).map(|change| change.word).collect()
    }

    /// Forgets changes that no read can see any more: every read in flight began after `oldest`.
    pub fn prune(&mut self, oldest: u64) {
        if self.0.len() < 6 {
            return;
        }
        let all = self.0.clone();
        self.0.retain(|change| {
            let hides = |later: &&Change| later.durable && later.end.is_some_and(|end| end < oldest);
            let hidden = change.end.is_some_and(|end| all.iter().filter(hides).any(|later| later.start > end));
            !hidden
        });
    }
}
