//! Counters of scenarios.

/// What a scenario has done, to see that runs are worth their time.
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
    /// Clients through files, and those of them through loop devices.
    pub by_file: u64,
    pub by_loop: u64,
    /// Files that were unmounted by force.
    pub unmounts: u64,
    /// Requests that failed because their file was removed.
    pub cut_off: u64,
    /// Writes through files that waited for the next daemon.
    pub waited: u64,
    /// Volumes that another node took over.
    pub moves: u64,
    /// Writes that failed for lack of space.
    pub full: u64,
    /// Requests that an orderly stop answered with an error.
    pub aborted: u64,
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
        self.aborted += other.aborted;
        self.full += other.full;
    }
}
