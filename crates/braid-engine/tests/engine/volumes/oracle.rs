//! The oracle: what each block of a volume may read as, by the requests that changed it, and when.

/// One write of one block; an unmap writes zeros.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Change {
    /// The value that a read returns.
    pub word: u64,
    /// When it was requested.
    pub start: u64,
    /// When it was answered; never if it failed, because it is unknown what of it was done, or still will be.
    pub end: Option<u64>,
    /// It survives loss of power.
    pub durable: bool,
    /// A hint, which may be ignored.
    pub hint: bool,
}

/// Whether reads that begin after this change was complete do not see earlier ones.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    /// A read of the block from this time on.
    Read(u64),
    /// A read after loss of power.
    Power,
}

/// The relevant history of one block.
#[derive(Clone, PartialEq, Debug)]
pub struct Block(Vec<Change>);

impl Block {
    /// Creates a block that has had this content from the beginning.
    pub fn of(word: u64) -> Block {
        Block(vec![Change { word, start: 0, end: Some(0), durable: true, hint: false }])
    }

    pub fn begin(&mut self, word: u64, start: u64, hint: bool) {
        self.0.push(Change { word, start, end: None, durable: false, hint });
    }

    /// Records the end of the change that began then.
    pub fn end(&mut self, start: u64, end: u64, durable: bool) {
        for change in self.0.iter_mut().filter(|change| change.start == start) {
            (change.end, change.durable) = (Some(end), durable);
        }
    }

    /// Records that everything answered before this is durable.
    pub fn flushed(&mut self, before: u64) {
        for change in &mut self.0 {
            change.durable |= change.end.is_some_and(|end| end < before);
        }
    }

    /// Returns what it may read as, by changes that began before `until`.
    pub fn admissible(&self, until: u64, rule: Rule) -> Vec<u64> {
        let began = || self.0.iter().filter(|change| change.start < until);
        let certain = |change: &Change| match rule {
            _ if change.hint => false,
            Rule::Read(start) => change.end.is_some_and(|end| end < start),
            Rule::Power => change.durable,
        };
        // Overlapping writes execute in arrival order, even if the older one is still in flight.
        let hidden = |change: &Change| began().any(|later| later.start > change.start && certain(later));
        began().filter(|change| !hidden(change)).map(|change| change.word).collect()
    }

    /// Forgets what no read can see any more, because all reads begin after `oldest`.
    pub fn prune(&mut self, oldest: u64) {
        if self.0.len() < 8 {
            return;
        }
        let all = self.0.clone();
        self.0.retain(|change| {
            let hides = |later: &&Change| !later.hint && later.durable && later.end.is_some_and(|end| end < oldest);
            !change.end.is_some_and(|end| all.iter().filter(hides).any(|later| later.start > end))
        });
    }
}
