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
    "requests.called off",
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
    "fault.silence",
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
    "leases.renewed with answers kept",
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
    "fault.old copy where all are needed",
    "actions.old copy refused",
    "actions.check a mirror",
    "actions.repair a mirror",
    "failed.as no copy can be read",
    "fault.a copy rots",
    "fault.no copy can be read",
    "actions.a mirror waits",
    "actions.add a spare",
    "actions.fill a new member",
    "actions.pull all members",
    "actions.return a member that has lost nothing",
    "actions.start half a mirror",
    "actions.stop half a mirror",
    "actions.start refused",
    "actions.replace a member",
    "keepers.replaced",
    "actions.grow a mirror",
    "actions.grow a mirror by disks",
    "actions.grow by disks",
    "actions.widen a mirror",
    "actions.narrow a mirror",
    "actions.take a new role",
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
    "keepers.failed",
    "keepers.grown",
    "troubles.to be mended",
];

/// So many are enough for what a thousand may not show.
pub const SEEDS_MOST: u64 = 4000;

/// What must have happened at least once in so many.
pub const RAREST: &[&str] =
    &["actions.a member lacks what cannot be read", "keepers.repaired", "keepers.resynced but for what cannot be read"];

/// So many are enough for all that must happen to arrays with parity, which are a fifth of them.
pub const SEEDS_OF_ROWS: u64 = 2000;

/// What must have happened to those at least once in so many.
pub const OF_ROWS: &[&str] = &[
    "parity: requests.read",
    "parity: requests.write",
    "parity: requests.write zeroes",
    "parity: requests.discard",
    "parity: requests.flush",
    "parity: requests.fua",
    "parity: refused.busy",
    "parity: messages.between shards",
    "parity: ends.clean",
    "parity: ends.clean, then power off",
    "parity: lives.of one shard",
    "parity: lives.of several shards",
    "parity: actions.create a mirror",
    "parity: actions.start a mirror",
    "parity: actions.start refused",
    "parity: actions.stop a mirror",
    "parity: actions.note a stop",
    "parity: actions.a mirror waits",
    "parity: actions.add a spare",
    "parity: actions.fail a member",
    "parity: actions.fill a member anew",
    "parity: actions.return a member",
    "parity: actions.replace a member",
    "parity: actions.pull a member",
    "parity: actions.pull more members than may be lost",
    "parity: actions.fill the file system of an array",
    "parity: actions.grow a mirror",
    "parity: actions.grow a mirror by disks",
    "parity: actions.half a mirror does not start",
    "parity: actions.a journal disk too small is refused",
    "parity: actions.a mirror waits for its journal",
    "parity: actions.create a mirror with a journal disk",
    "parity: actions.pull the journal",
    "parity: actions.put the journal on a disk",
    "parity: actions.put the journal on the members",
    "parity: actions.order refused",
    "parity: actions.several arrays at one home",
    "parity: actions.check a mirror",
    "parity: actions.repair a mirror",
    "parity: actions.write parts of unreadable rows",
    "parity: actions.write unreadable rows",
    "parity: copies.compared",
    "parity: crashes.kill while checking a mirror",
    "parity: crashes.kill while creating a mirror",
    "parity: crashes.kill while growing",
    "parity: crashes.kill while moving the journal",
    "parity: crashes.kill while returning a member",
    "parity: crashes.kill while serving",
    "parity: crashes.kill while starting a mirror",
    "parity: crashes.power while checking a mirror",
    "parity: crashes.power while creating a mirror",
    "parity: crashes.power while failing a member",
    "parity: crashes.power while growing",
    "parity: crashes.power while moving the journal",
    "parity: crashes.power while returning a member",
    "parity: crashes.power while serving",
    "parity: crashes.power while starting a mirror",
    "parity: crashes aimed at.dropped",
    "parity: crashes aimed at.growing",
    "parity: crashes aimed at.journal moved",
    "parity: crashes aimed at.logging",
    "parity: crashes aimed at.moving the journal",
    "parity: crashes aimed at.placing",
    "parity: crashes aimed at.recovering",
    "parity: crashes aimed at.ring nowhere",
    "parity: crashes aimed at.ring quiet",
    "parity: crashes aimed at.starting a mirror",
    "parity: crashes aimed at.trouble of a member",
    "parity: crashes aimed at.writing a head",
    "parity: crashes aimed at.writing a label",
    "parity: crashes aimed at.writing bits",
    "parity: drills.journal fails",
    "parity: drills.journal lost",
    "parity: drills.journal moves",
    "parity: drills.journal old",
    "parity: drills.rows beyond tolerance",
    "parity: drills.rows degraded",
    "parity: drills.rows in turn",
    "parity: drills.rows mended",
    "parity: drills.rows of newcomers",
    "parity: drills.rows read on",
    "parity: drills.rows torn",
    "parity: drills.rows torn twice",
    "parity: drills.rows widened",
    "parity: drills.an old copy",
    "parity: drills.checking",
    "parity: failed.Failed",
    "parity: failed.as a row is unreadable",
    "parity: failed.rows found unreadable",
    "parity: fault.a journal disk is not there",
    "parity: fault.a parity rots",
    "parity: fault.data rot",
    "parity: fault.flush error",
    "parity: fault.hang",
    "parity: fault.latent error",
    "parity: fault.lost with a crash",
    "parity: fault.more lost with a crash than may be",
    "parity: fault.no space",
    "parity: fault.old copy",
    "parity: fault.old copy of a journal disk",
    "parity: fault.pull",
    "parity: fault.read error",
    "parity: fault.the journal is lost with a crash",
    "parity: fault.write error",
    "parity: jobs.part",
    "parity: jobs.part failed",
    "parity: journal.begins at the start of its ring again",
    "parity: journal.goes on without its disk",
    "parity: journal.is on a disk",
    "parity: journal.is on the members",
    "parity: journal.logged again",
    "parity: journal.logged on a disk of its own",
    "parity: journal.replayed",
    "parity: keepers.clearing",
    "parity: keepers.dropped",
    "parity: keepers.failed",
    "parity: keepers.filling",
    "parity: keepers.grown",
    "parity: keepers.in sync",
    "parity: keepers.repaired",
    "parity: keepers.replaced",
    "parity: rows.writes gathered",
    "parity: troubles.fatal",
    "parity: troubles.to be mended",
];

/// What these counts lack, as a sentence; `None` where nothing is missing, or where it may be.
pub fn lacks(counters: &Counters, seeds: u64) -> Option<String> {
    let mut missing = counters.missing(REQUIRED);
    if seeds >= SEEDS_MANY {
        missing.extend(counters.missing(RARE));
    }
    if seeds >= SEEDS_OF_ROWS {
        missing.extend(counters.missing(OF_ROWS));
    }
    if seeds >= SEEDS_MOST {
        missing.extend(counters.missing(RAREST));
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
        RARE.iter().map(|kind| kind.split_once('.').unwrap()).for_each(|(group, kind)| counters.add(group, kind));
        assert_eq!(lacks(&counters, SEEDS_MANY), None);
        let of_rows = OF_ROWS.join(", ");
        assert_eq!(lacks(&counters, SEEDS_OF_ROWS), Some(format!("never exercised: {of_rows}")));
    }
}
