//! What an ordinary run of many seeds must have exercised, or it has shown too little.

use crate::counters::Counters;

/// So many seeds are enough for every kind, by far.
pub const SEEDS_MIN: u64 = 100;

/// Every kind that must have happened at least once: as counted, group and kind.
pub const REQUIRED: &[&str] = &[
    "requests.read",
    "requests.write",
    "requests.write zeroes",
    "requests.discard",
    "requests.flush",
    "requests.fua",
    "refused.busy",
    "refused.late write there",
    "refused.no device",
    "at once.read",
    "at once.write",
    "messages.between shards",
    "ends.clean",
    "crashes.kill while serving",
    "crashes.kill while starting",
    "crashes.kill while stopping",
    "crashes.kill while creating",
    "crashes.kill while deleting",
    "crashes.kill while renaming",
    "crashes.kill while assembling",
    "crashes.kill while changing a layout",
    "crashes.kill while replacing",
    "crashes.power while serving",
    "crashes.power while starting",
    "crashes.power while stopping",
    "crashes.power while creating",
    "crashes.power while deleting",
    "crashes.power while renaming",
    "crashes.power while assembling",
    "crashes.power while changing a layout",
    "crashes.power while replacing",
    "fault.read error",
    "fault.latent error",
    "fault.write error",
    "fault.flush error",
    "fault.hang",
    "fault.pull",
    "fault.label rot",
    "fault.label spoiled",
    "failed.Io",
    "failed.TimedOut",
    "actions.start",
    "actions.stop",
    "actions.change layout",
    "actions.replace",
    "actions.pull",
    "actions.create",
    "actions.create refused",
    "actions.create interrupted",
    "actions.clear up",
    "actions.rename",
    "actions.grow",
    "actions.delete",
    "actions.deletion finished",
    "actions.assemble",
    "actions.assemble one",
    "actions.create a mirror",
    "actions.start a mirror",
    "actions.stop a mirror",
    "actions.note a stop",
    "actions.pull a member",
    "actions.fail a member",
    "actions.return a member",
    "actions.fill a member anew",
    "actions.order refused",
    "copies.compared",
    "crashes.kill while starting a mirror",
    "crashes.power while starting a mirror",
    "crashes.power while returning a member",
    "ends.clean, then power off",
    "jobs.part",
    "jobs.part failed",
    "keepers.clearing",
    "keepers.dropped",
    "keepers.filling",
    "keepers.in sync",
    "keepers.resynced",
    "troubles.fatal",
];

/// So many are enough for what is rare.
pub const SEEDS_MANY: u64 = 1000;

/// What must have happened at least once in so many: kinds of which a hundred seeds may show none.
pub const RARE: &[&str] = &[
    "actions.check a mirror",
    "actions.repair a mirror",
    "failed.as no copy can be read",
    "fault.a copy rots",
    "fault.no copy can be read",
    "actions.a mirror waits",
    "actions.add a spare",
    "actions.fill a new member",
    "actions.pull all members",
    "actions.start half a mirror",
    "actions.stop half a mirror",
    "actions.start refused",
    "actions.replace a member",
    "keepers.replaced",
    "actions.grow a mirror",
    "actions.grow by disks",
    "actions.a member lacks what cannot be read",
    "actions.cancel a job",
    "actions.limit a job",
    "actions.pause a job",
    "actions.resume a job",
    "crashes.kill while creating a mirror",
    "crashes.kill while failing a member",
    "crashes.kill while growing",
    "crashes.kill while pulling a member",
    "crashes.kill while returning a member",
    "crashes.kill while stopping a mirror",
    "crashes.power while creating a mirror",
    "crashes.power while failing a member",
    "crashes.power while growing",
    "crashes.power while pulling a member",
    "crashes.power while stopping a mirror",
    "drills.a promotion that is cut",
    "drills.an early return",
    "drills.an old copy",
    "drills.bits half cleared",
    "drills.checking",
    "drills.clearing",
    "drills.dropping",
    "drills.filling under load",
    "drills.growing",
    "drills.halves apart",
    "drills.merging bits",
    "drills.refilling",
    "drills.replacing",
    "drills.settling",
    "drills.succession",
    "drills.taking over",
    "drills.unreadable blocks",
    "failed.Failed",
    "fault.all but one lost",
    "fault.label rot of a grown disk",
    "fault.old copy",
    "keepers.resynced but for what cannot be read",
    "keepers.failed",
    "keepers.grown",
    "keepers.repaired",
    "troubles.to be mended",
];

/// What these counts lack, as a sentence; `None` where nothing is missing, or where it may be.
pub fn lacks(counters: &Counters, seeds: u64) -> Option<String> {
    let mut missing = counters.missing(REQUIRED);
    if seeds >= SEEDS_MANY {
        missing.extend(counters.missing(RARE));
    }
    (seeds >= SEEDS_MIN && !missing.is_empty()).then(|| format!("never exercised: {}", missing.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_happened_is_named() {
        let mut counters = Counters::default();
        for kind in &REQUIRED[1..] {
            let (group, kind) = kind.split_once('.').unwrap();
            counters.add(group, kind);
        }
        assert_eq!(lacks(&counters, 100).as_deref(), Some("never exercised: requests.read"));
        assert_eq!(lacks(&counters, 99), None, "too few seeds to tell");
        counters.add("requests", "read");
        assert_eq!(lacks(&counters, 100), None);
        assert!(lacks(&counters, SEEDS_MANY).is_some_and(|lacks| lacks.contains(RARE[0])));
    }
}
