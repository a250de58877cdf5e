//! What lives have done.

/// What a life has done, to see that runs are worth something.
#[derive(Default, Clone, Debug)]
pub struct Counts {
    pub requests: u64,
    pub breaks: u64,
    pub repeats: u64,
    pub kills: u64,
    pub stops: u64,
    pub upgrades: u64,
    pub commands: u64,
    pub remedies: u64,
    pub faults: u64,
    pub maps: u64,
    pub zeros: u64,
    /// Writes that found no space.
    pub full: u64,
    /// Requests that an orderly end answered with an error.
    pub given_up: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.requests += other.requests;
        self.breaks += other.breaks;
        self.repeats += other.repeats;
        self.kills += other.kills;
        self.stops += other.stops;
        self.upgrades += other.upgrades;
        self.commands += other.commands;
        self.remedies += other.remedies;
        self.faults += other.faults;
        self.maps += other.maps;
        self.zeros += other.zeros;
        self.given_up += other.given_up;
        self.full += other.full;
    }
}
