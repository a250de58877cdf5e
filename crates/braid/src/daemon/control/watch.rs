//! Looks at disks and clients from time to time: what does badly is named in status, events and log.

use super::pools::{Appearances, Retries};
use super::tables::OpenDisk;
use super::{Control, counted};
use braid_api::{Attention, DiskState, Severity};
use braid_engine::DeviceId;
use braid_nbd::NbdEvent;
use braid_ring::LeafStats;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// After so many looks without one of its I/Os done, a disk hangs: five seconds.
const LOOKS_UNTIL_HANGING: u32 = 5;
/// The trouble of a state folder that was deleted and cannot be made anew.
const STATE_FOLDER_TROUBLE: &str = "state-folder";
/// Exports that failed are tried again after so many looks: five seconds.
const LOOKS_UNTIL_RETRY: u32 = 5;

/// What is said of a file that has no name any more.
const DELETED: &str =
    "its file was deleted, or another one took its name; it works until the daemon closes it, and is lost then";

/// An open disk: what it is part of, the name of that, the disk, and of an array that is kept: the device and the disk's role.
type Watched = (&'static str, String, Arc<OpenDisk>, Option<(DeviceId, u16)>);

impl Control {
    /// Watches until the daemon stops.
    pub async fn watch(self: Arc<Self>) {
        let mut stopping = self.stopping();
        let (mut looks, mut absent, mut appeared) = (0u32, BTreeSet::new(), Appearances::new());
        let mut starved = Retries::new();
        loop {
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                _ = stopping.wait_for(|stopping| *stopping) => break,
            }
            looks = looks.wrapping_add(1);
            self.watch_disks();
            self.watch_away().await;
            self.watch_waiting(&mut absent).await;
            self.watch_returning(&mut appeared).await;
            self.retry_starved(&mut starved);
            self.watch_unreadable();
            self.watch_doubted();
            self.watch_files().await;
            self.watch_kernel_clients().await;
            self.tell_of_clients();
            if looks.is_multiple_of(LOOKS_UNTIL_RETRY) {
                self.save_checks();
                self.watch_state();
                self.retry_exports().await;
            }
        }
    }

    /// Makes the state folder anew where it was deleted or replaced under the daemon, and writes what the daemon knows.
    fn watch_state(&self) {
        let path = self.state.path().display();
        match tokio::task::block_in_place(|| self.state.restore()) {
            Ok(false) => self.set_trouble(STATE_FOLDER_TROUBLE, None),
            Ok(true) => {
                let message = format!("the state folder {path} was deleted while the daemon served; it was made anew");
                // By the event, what the daemon knows is on disk, or `state_not_saved` was told before it.
                self.save_or_warn();
                self.events().warning("state_restored", message, &[]);
            }
            Err(error) => {
                let trouble = Attention {
                    subject: "daemon".to_owned(),
                    message: format!("the state folder {path} was deleted while the daemon served: {}", error.message),
                    meaning: "Exports and settings are forgotten at the next start. The running daemon goes on with what it knows."
                        .to_owned(),
                    remedy: error.remedy,
                    commands: vec!["braid export list".to_owned()],
                };
                self.set_trouble(STATE_FOLDER_TROUBLE, Some(trouble));
            }
        }
    }

    fn watch_disks(&self) {
        let disks: Vec<Watched> = {
            let tables = self.read();
            let of_arrays = tables.open_disks().map(|(entry, role, disk)| {
                let kept = entry.active().filter(|active| active.is_kept()).map(|active| (active.device, role));
                ("array", entry.name.clone(), Arc::clone(disk), kept)
            });
            let of_pools =
                tables.pool_disks_open().map(|(pool, _, disk)| ("pool", pool.name.clone(), Arc::clone(disk), None));
            of_arrays.chain(of_pools).collect()
        };
        for (what, array, disk, kept) in disks {
            let Some(stats) = self.ring().leaf_stats(disk.leaf) else { continue };
            disk.disk.check_size();
            if let Some((state, sentence)) = judge(&disk, &stats) {
                if let Some((device, role)) = kept.filter(|_| disk.disk.is_short()) {
                    // An array that nobody uses leaves it out, too, instead of counting on it.
                    self.ring().report_lost(device, role, disk.leaf);
                }
                let (severity, kind) = match state {
                    DiskState::Ok => (Severity::Info, "disk_recovered"),
                    DiskState::Gone => (Severity::Error, "disk_gone"),
                    DiskState::Hanging => (Severity::Error, "disk_hangs"),
                    _ => (Severity::Error, "disk_errors"),
                };
                let message = format!("disk {} of {what} {array}: {sentence}", disk.name);
                self.events().add(severity, kind, message, &[("disk", &disk.name), (what, &array)]);
            }
        }
    }

    /// Logs what happened to clients. Coming and going is for the log only; breaking the protocol is an event, as long as not
    /// too many do.
    pub(super) fn tell_of_clients(&self) {
        let mut complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(event) = self.clients.pop() {
            match event {
                NbdEvent::Connected { peer, export } => tracing::info!("client {peer} uses export {export}"),
                NbdEvent::Disconnected { peer, export, cause } if cause.is_ordinary() => {
                    tracing::info!("client {peer} left export {}: {cause}", export.as_deref().unwrap_or("(none)"));
                }
                NbdEvent::Disconnected { peer, export, cause } => {
                    let export = export.unwrap_or_default();
                    let of = if export.is_empty() { String::new() } else { format!(" of export {export}") };
                    let message = format!("client {peer}{of} was disconnected: {cause}");
                    if complaints.is_to_be_told(&export, &message, Instant::now()) {
                        let context = [("client", peer.as_str()), ("export", export.as_str())];
                        self.events().warning("client_disconnected", message, &context);
                    } else {
                        tracing::debug!("{message}");
                    }
                }
            }
        }
        for (export, count, message) in complaints.summaries(Instant::now(), self.is_open().is_err()) {
            let count = count.to_string();
            let context = [("export", export.as_str()), ("count", count.as_str())];
            self.events().warning("clients_disconnected", message, &context);
        }
        let lost = self.clients.take_lost();
        if lost > 0 {
            self.events().count_lost(lost);
            tracing::warn!("{lost} messages about clients came too fast and were lost");
        }
    }
}

/// Compares a disk with how it did at the last look; says what has changed, if anything.
fn judge(disk: &OpenDisk, stats: &LeafStats) -> Option<(DiskState, String)> {
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
    // A full file system below is no fault of the disk, and the disk is well once there is space again and a write has succeeded.
    watch.is_full = stats.no_space > 0 && stats.no_space == stats.errors;
    let has_room = watch.is_full && new_errors == 0 && has_written && stats.in_flight == 0 && has_space(disk);

    let gone = new_errors > 0 && disk.disk.spec().path().is_some_and(is_gone);
    let (state, sentence) = if let Some(why) = disk.disk.loss_reason() {
        (DiskState::Gone, format!("{why}; it is not used until it is opened again"))
    } else if gone || (watch.state == DiskState::Gone && still_gone(disk)) {
        (DiskState::Gone, "it is not there any more".to_owned())
    } else if watch.looks_without_progress >= LOOKS_UNTIL_HANGING {
        let seconds = EVERY.as_secs() * u64::from(LOOKS_UNTIL_HANGING);
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
    watch.trouble = (state != DiskState::Ok).then(|| sentence.clone());
    watch.state = state;
    changed.then_some((state, sentence))
}

/// Errors in words. What did not end in time is among the failed.
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

/// Whether the file system that a disk's file is on has space: a write of what has its place there succeeds without any. Where that cannot be
/// told, and of what is no file, writes alone say it.
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
            here: None,
        }
    }

    fn stats(reads: u64, in_flight: u64, errors: u64, late: u64) -> LeafStats {
        LeafStats { reads, in_flight, errors, late, ..LeafStats::default() }
    }

    #[track_caller]
    fn expect(disk: &OpenDisk, seen: &LeafStats, state: Option<DiskState>) {
        assert_eq!(judge(disk, seen).map(|(state, _)| state), state);
    }

    #[test]
    fn a_disk_that_works_is_not_mentioned() {
        let disk = disk();
        for reads in 0..20 {
            expect(&disk, &stats(reads * 100, 1, 0, 0), None);
        }
        // Idle, however long.
        for _ in 0..20 {
            expect(&disk, &stats(1900, 0, 0, 0), None);
        }
    }

    #[test]
    fn errors_are_told_once_and_stick() {
        let disk = disk();
        expect(&disk, &stats(10, 0, 1, 0), Some(DiskState::Failing));
        expect(&disk, &stats(20, 0, 5, 0), None);
        expect(&disk, &stats(30, 0, 5, 0), None);
        let watch = disk.watch.lock().expect("nobody panicked");
        assert!(watch.trouble.as_deref().is_some_and(|trouble| trouble.contains("5 I/Os failed")), "{watch:?}");
    }

    #[test]
    fn a_full_file_system_below_is_no_broken_disk_and_ends_with_the_first_write_that_finds_space() {
        let disk = disk();
        let full = |writes, errors, no_space| LeafStats { writes, errors, no_space, ..LeafStats::default() };
        let trouble = || disk.watch.lock().expect("nobody panicked").trouble.clone().unwrap_or_default();
        expect(&disk, &full(10, 0, 0), None);
        expect(&disk, &full(12, 2, 2), Some(DiskState::Failing));
        assert_eq!(trouble(), "2 writes found no space on the file system that its file is on");
        assert!(disk.watch.lock().expect("nobody panicked").is_full);
        // Nobody has written: nobody knows.
        expect(&disk, &full(12, 2, 2), None);
        expect(&disk, &full(13, 3, 3), None);
        expect(&disk, &full(14, 3, 3), Some(DiskState::Ok));
        assert_eq!(trouble(), "");
        // With another error among them it is the disk.
        expect(&disk, &full(20, 5, 4), Some(DiskState::Failing));
        assert!(!disk.watch.lock().expect("nobody panicked").is_full && trouble().starts_with("5 I/Os failed, 4 of"));
        expect(&disk, &full(30, 5, 4), None);
    }

    #[test]
    fn a_disk_that_hangs_is_told_and_forgiven_if_it_answers_without_error() {
        let disk = disk();
        expect(&disk, &stats(10, 3, 0, 0), None);
        for _ in 1..LOOKS_UNTIL_HANGING {
            expect(&disk, &stats(10, 3, 0, 0), None);
        }
        expect(&disk, &stats(10, 3, 0, 0), Some(DiskState::Hanging));
        expect(&disk, &stats(11, 4, 0, 0), None);
        expect(&disk, &stats(12, 0, 0, 0), Some(DiskState::Ok));
        assert!(disk.watch.lock().expect("nobody panicked").trouble.is_none());
    }
}
