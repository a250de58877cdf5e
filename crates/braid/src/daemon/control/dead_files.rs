//! Mounts of files that no export claims and nobody answers for: those of a daemon that was killed, whose state is gone or is not this one's.

use super::Control;
use super::files::source_of;
use braid_api::{ErrorDetail, Orphan};
use braid_fuse::mount;
use braid_host::aside::{self, Answer};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use braid_advice::errors::os_error;

/// Longest that somebody has to answer for a file.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// The same, asked twice, with what is done in between.
const HANDLING_MAX: Duration = Duration::from_secs(8);

impl Control {
    /// Unmounts files that nobody answers for any more, or lists them. No export is added or removed meanwhile.
    ///
    /// # Errors
    /// The table of mounts cannot be read.
    pub(super) async fn remove_dead_files(&self, dry_run: bool) -> Result<Vec<Orphan>, ErrorDetail> {
        let claimed: BTreeSet<String> = self.read().exports.values().map(|entry| source_of(entry.saved.uuid)).collect();
        let all = mount::all().map_err(|error| os_error(&error, "the mounts cannot be listed", Path::new("/proc")))?;
        let mut orphans = Vec::new();
        for (path, source) in all.into_iter().filter(|(_, source)| !claimed.contains(source)) {
            let mut orphan =
                Orphan { device: path.display().to_string(), size_bytes: None, removed: false, reason: None };
            // Where its channels are kept for a daemon that is not there now, it may be answered for later.
            let handled = tokio::task::spawn_blocking(move || handle(&path, &source, dry_run));
            match tokio::time::timeout(HANDLING_MAX, handled).await {
                Ok(Ok(handled)) => (orphan.removed, orphan.reason) = handled,
                Ok(Err(error)) => orphan.reason = Some(error.to_string()),
                Err(_) => {
                    let seconds = HANDLING_MAX.as_secs();
                    orphan.reason = Some(format!("the file system that it is on has not answered within {seconds} s"));
                }
            }
            orphans.push(orphan);
        }
        Ok(orphans)
    }
}

/// Whether it was removed, and why not.
fn handle(path: &Path, source: &str, dry_run: bool) -> (bool, Option<String>) {
    if let Some(why) = why_alive(path) {
        return (false, Some(why));
    }
    if dry_run {
        return (false, None);
    }
    // Something else may have been mounted over it.
    match mount::mounted(path) {
        Ok(Some(topmost)) if topmost == source => {}
        Ok(_) => return (false, Some("something else is mounted over it".to_owned())),
        Err(error) => return (false, Some(error.to_string())),
    }
    // Its daemon may have come back meanwhile.
    if let Some(why) = why_alive(path) {
        return (false, Some(why));
    }
    // Whoever has it open gets nothing but errors from it.
    match mount::unmount_from(path, true) {
        Ok(()) => (true, None),
        Err(error) => (false, Some(error.to_string())),
    }
}

/// Why a mount is not dead; none: nobody answers for it.
fn why_alive(path: &Path) -> Option<String> {
    // A call while the connection ends fails with another error than later calls.
    let is_dead = |errno: i32| [Errno::NOTCONN, Errno::CONNABORTED].iter().any(|dead| dead.raw_os_error() == errno);
    // By another process: a thread that waits for a daemon that hangs would keep this one from ending.
    match aside::identity(path, ANSWER_MAX) {
        Some(Answer::Failed(errno)) if is_dead(errno) => None,
        Some(Answer::Failed(errno)) => Some(std::io::Error::from_raw_os_error(errno).to_string()),
        Some(_) => Some("another daemon serves it".to_owned()),
        None => {
            let seconds = ANSWER_MAX.as_secs();
            Some(format!("its daemon has not answered within {seconds} s, and is still there, or is kept for"))
        }
    }
}
