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
    /// Clients by files, and of them those by loop devices.
    pub by_file: u64,
    pub by_loop: u64,
    /// Files that were unmounted by force.
    pub unmounts: u64,
    /// Requests that failed as their file went.
    pub cut_off: u64,
    /// Writes by files that waited for the next daemon.
    pub waited: u64,
    /// Volumes that another node took over.
    pub moves: u64,
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
        self.by_file += other.by_file;
        self.by_loop += other.by_loop;
        self.unmounts += other.unmounts;
        self.cut_off += other.cut_off;
        self.waited += other.waited;
        self.moves += other.moves;
        self.given_up += other.given_up;
        self.full += other.full;
    }
}
