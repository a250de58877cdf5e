//! The monitor of disks: looks at them periodically, and reports faults in the status, the events and the log.

use crate::ArrayManager;
use braid_api::{DiskState, Severity};
use braid_engine::DeviceId;
use braid_inventory::{OpenDisk, counted};
use braid_ring::LeafStats;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Interval between two calls of [`ArrayManager::watch_disks`].
pub const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Looks without a completed I/O after which a disk counts as hanging: five seconds.
const LOOKS_UNTIL_HANGING: u32 = 5;

/// The fault of a file that has no name any more.
const DELETED: &str =
    "its file was deleted, or another one took its name; it works until the daemon closes it, and is lost then";

/// An open disk: the kind of its owner, the owner's name, the disk, and, for a persistent array, the device and the
/// disk's slot.
type Watched = (&'static str, String, Arc<OpenDisk>, Option<(DeviceId, u16)>);

impl ArrayManager {
    /// Looks once at all open disks of arrays and pools. Called every [`LOOK_INTERVAL`]: the number of looks without
    /// progress decides whether a disk hangs.
    pub fn watch_disks(&self) {
        let disks: Vec<Watched> = {
            let tables = self.inventory.read();
            let of_arrays = tables.open_disks().map(|(entry, role, disk)| {
                let kept = entry.active().filter(|active| active.is_kept()).map(|active| (active.device, role));
                ("array", entry.name.clone(), Arc::clone(disk), kept)
            });
            let of_pools =
                tables.pool_disks_open().map(|(pool, _, disk)| ("pool", pool.name.clone(), Arc::clone(disk), None));
            of_arrays.chain(of_pools).collect()
        };
        for (what, array, disk, kept) in disks {
            let Some(stats) = self.ring.leaf_stats(disk.leaf) else { continue };
            disk.disk.check_size();
            if let Some((state, sentence)) = update_state(&disk, &stats) {
                if let Some((device, role)) = kept.filter(|_| disk.disk.is_short()) {
                    // So that an array without I/O drops the disk, too, instead of relying on it.
                    self.ring.report_lost(device, role, disk.leaf);
                }
                let (severity, kind) = match state {
                    DiskState::Ok => (Severity::Info, "disk_recovered"),
                    DiskState::Gone => (Severity::Error, "disk_gone"),
                    DiskState::Hanging => (Severity::Error, "disk_hangs"),
                    _ => (Severity::Error, "disk_errors"),
                };
                let message = format!("disk {} of {what} {array}: {sentence}", disk.name);
                self.inventory.events().add(severity, kind, message, &[("disk", &disk.name), (what, &array)]);
            }
        }
    }
}

/// Compares a disk with its state at the last look. Returns the new state, with a sentence about it, if it has changed.
fn update_state(disk: &OpenDisk, stats: &LeafStats) -> Option<(DiskState, String)> {
    let mut watch = disk.watch.lock().unwrap_or_else(PoisonError::into_inner);
    let accepted = stats.reads + stats.writes + stats.write_zeroes + stats.discards + stats.flushes;
    let done = accepted.saturating_sub(stats.in_flight);
    let still = stats.in_flight > 0 && done == watch.done_seen;
    watch.looks_without_progress = if still { watch.looks_without_progress.saturating_add(1) } else { 0 };
    watch.done_seen = done;
    let new_errors = stats.errors.saturating_sub(watch.errors_seen);
    watch.errors_seen = stats.errors;
    let written = stats.writes + stats.write_zeroes;
    let has_written = written > watch.written_seen;
    watch.written_seen = written;
    // A full file system below is no fault of the disk, and the disk is healthy once there is space again and a write
    // has succeeded.
    watch.is_full = stats.no_space > 0 && stats.no_space == stats.errors;
    let has_room = watch.is_full && new_errors == 0 && has_written && stats.in_flight == 0 && has_space(disk);

    let gone = new_errors > 0 && disk.disk.spec().path().is_some_and(is_gone);
    let (state, sentence) = if let Some(why) = disk.disk.loss_reason() {
        (DiskState::Gone, format!("{why}; it is not used until it is opened again"))
    } else if gone || (watch.state == DiskState::Gone && still_gone(disk)) {
        (DiskState::Gone, "it is not there any more".to_owned())
    } else if watch.looks_without_progress >= LOOKS_UNTIL_HANGING {
        let seconds = LOOK_INTERVAL.as_secs() * u64::from(LOOKS_UNTIL_HANGING);
        (DiskState::Hanging, format!("it has not answered for {seconds} s, with {} I/Os waiting", stats.in_flight))
    } else if disk.disk.is_deleted() {
        (DiskState::Failing, DELETED.to_owned())
    } else if has_room && watch.state == DiskState::Failing {
        (DiskState::Ok, "there is space again on the file system that its file is on".to_owned())
    } else if new_errors > 0 || watch.state == DiskState::Failing {
        (DiskState::Failing, failures(stats))
    } else if watch.state == DiskState::Hanging && stats.errors > 0 && !has_room {
        (DiskState::Failing, format!("it answers again; {}", failures(stats)))
    } else {
        (DiskState::Ok, "it answers again".to_owned())
    };
    let changed = state != watch.state;
    watch.fault = (state != DiskState::Ok).then(|| sentence.clone());
    watch.state = state;
    changed.then_some((state, sentence))
}

/// Describes the errors of a disk. I/Os that timed out are among the failed ones.
fn failures(stats: &LeafStats) -> String {
    let LeafStats { errors, late, no_space, .. } = *stats;
    if errors > 0 && no_space == errors {
        let writes = counted(errors as usize, "write", "writes");
        return format!("{writes} found no space on the file system that its file is on");
    }
    let mut text = counted(errors as usize, "I/O failed", "I/Os failed");
    if late > 0 {
        text.push_str(&format!(", {late} of them for want of an answer within the time limit"));
    }
    if no_space > 0 {
        text.push_str(&format!(", {no_space} of them for want of space on the file system that its file is on"));
    }
    text
}

/// Returns whether the file system of a disk's file has space: a write to blocks that are allocated already succeeds
/// without any. Returns true where that is unknown, and for disks that are no files: then a successful write alone
/// decides.
fn has_space(disk: &OpenDisk) -> bool {
    let file = disk.disk.spec().path().filter(|path| path.is_file());
    file.and_then(|file| rustix::fs::statvfs(file).ok()).is_none_or(|stat| stat.f_bavail > 0)
}

fn is_gone(path: &Path) -> bool {
    matches!(std::fs::metadata(path), Err(error) if error.kind() == std::io::ErrorKind::NotFound)
}

fn still_gone(disk: &OpenDisk) -> bool {
    disk.disk.spec().path().is_some_and(is_gone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_engine::LeafId;
    use braid_ring::{Disk, DiskSpec, OpenOptions};

    fn disk() -> OpenDisk {
        let spec = DiskSpec::parse("mem:1M").expect("a right name");
        let disk = Disk::open(&spec, OpenOptions::default()).expect("there is memory");
        OpenDisk {
            name: spec.to_string(),
            disk: Arc::new(disk),
            identity: None,
            entry: None,
            volume: None,
            leaf: LeafId(0),
            watch: Default::default(),
            local_replica: None,
        }
    }

    fn stats(reads: u64, in_flight: u64, errors: u64, late: u64) -> LeafStats {
        LeafStats { reads, in_flight, errors, late, ..LeafStats::default() }
    }

    #[track_caller]
    fn expect(disk: &OpenDisk, seen: &LeafStats, state: Option<DiskState>) {
        assert_eq!(update_state(disk, seen).map(|(state, _)| state), state);
    }

    #[test]
    fn a_healthy_disk_is_not_reported() {
        let disk = disk();
        for reads in 0..20 {
            expect(&disk, &stats(reads * 100, 1, 0, 0), None);
        }
        // An idle disk is not mentioned, however long it is idle.
        for _ in 0..20 {
            expect(&disk, &stats(1900, 0, 0, 0), None);
        }
    }

    #[test]
    fn errors_are_reported_once_and_persist() {
        let disk = disk();
        expect(&disk, &stats(10, 0, 1, 0), Some(DiskState::Failing));
        expect(&disk, &stats(20, 0, 5, 0), None);
        expect(&disk, &stats(30, 0, 5, 0), None);
        let watch = disk.watch.lock().expect("no thread panicked");
        assert!(watch.fault.as_deref().is_some_and(|fault| fault.contains("5 I/Os failed")), "{watch:?}");
    }

    #[test]
    fn a_full_file_system_below_is_no_broken_disk_and_ends_with_the_first_write_that_finds_space() {
        let disk = disk();
        let full = |writes, errors, no_space| LeafStats { writes, errors, no_space, ..LeafStats::default() };
        let fault = || disk.watch.lock().expect("no thread panicked").fault.clone().unwrap_or_default();
        expect(&disk, &full(10, 0, 0), None);
        expect(&disk, &full(12, 2, 2), Some(DiskState::Failing));
        assert_eq!(fault(), "2 writes found no space on the file system that its file is on");
        assert!(disk.watch.lock().expect("no thread panicked").is_full);
        // Without a write the state is unknown.
        expect(&disk, &full(12, 2, 2), None);
        expect(&disk, &full(13, 3, 3), None);
        expect(&disk, &full(14, 3, 3), Some(DiskState::Ok));
        assert_eq!(fault(), "");
        // With an error of another kind among them, the disk is at fault.
        expect(&disk, &full(20, 5, 4), Some(DiskState::Failing));
        assert!(!disk.watch.lock().expect("no thread panicked").is_full && fault().starts_with("5 I/Os failed, 4 of"));
        expect(&disk, &full(30, 5, 4), None);
    }

    #[test]
    fn a_hanging_disk_is_reported_and_recovers_if_it_answers_without_error() {
        let disk = disk();
        expect(&disk, &stats(10, 3, 0, 0), None);
        for _ in 1..LOOKS_UNTIL_HANGING {
            expect(&disk, &stats(10, 3, 0, 0), None);
        }
        expect(&disk, &stats(10, 3, 0, 0), Some(DiskState::Hanging));
        expect(&disk, &stats(11, 4, 0, 0), None);
        expect(&disk, &stats(12, 0, 0, 0), Some(DiskState::Ok));
        assert!(disk.watch.lock().expect("no thread panicked").fault.is_none());
    }
}
