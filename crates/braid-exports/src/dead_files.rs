//! Mounts of files that no export claims and no daemon serves: left by a daemon that was killed, and whose state is
//! gone or belongs to another daemon.

use crate::ExportManager;
use crate::file_table::source_of;
use braid_advice::errors::os_error;
use braid_api::{ErrorDetail, Orphan};
use braid_fuse::mount;
use braid_host::probe_process::{self, ProbeResult};
use braid_tasks as tasks;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Maximum time for the server of a mounted file to reply; a server that does not reply is taken to be alive.
const REPLY_MAX: Duration = Duration::from_secs(3);

/// Maximum time for one file: two such checks and the unmount.
const REMOVAL_MAX: Duration = Duration::from_secs(8);

impl ExportManager {
    /// Unmounts files that no daemon serves any more, or lists them. The caller holds the lock under which exports are
    /// added and removed.
    ///
    /// # Errors
    /// The table of mounts cannot be read.
    pub(crate) async fn remove_dead_files(&self, dry_run: bool) -> Result<Vec<Orphan>, ErrorDetail> {
        let claimed: BTreeSet<String> =
            self.inventory.read().exports.values().map(|entry| source_of(entry.saved.uuid)).collect();
        let all = mount::all().map_err(|error| os_error(&error, "the mounts cannot be listed", Path::new("/proc")))?;
        let mut orphans = Vec::new();
        for (path, source) in all.into_iter().filter(|(_, source)| !claimed.contains(source)) {
            let mut orphan =
                Orphan { device: path.display().to_string(), size_bytes: None, removed: false, reason: None };
            // A service manager may keep the channels of a mount for a daemon that does not run now. Requests to such a
            // mount wait, so the check times out, and the mount is kept.
            let outcome = tasks::blocking(move || remove_if_dead(&path, &source, dry_run));
            match tokio::time::timeout(REMOVAL_MAX, outcome).await {
                Ok(Ok(outcome)) => (orphan.removed, orphan.reason) = outcome,
                Ok(Err(error)) => orphan.reason = Some(error.to_string()),
                Err(_) => {
                    let seconds = REMOVAL_MAX.as_secs();
                    orphan.reason = Some(format!("the file system that it is on has not answered within {seconds} s"));
                }
            }
            orphans.push(orphan);
        }
        Ok(orphans)
    }
}

/// Unmounts the file at `path` if no server replies for it, and `source` is its topmost mount. Returns whether it was
/// unmounted, and otherwise the reason; a dry run gives no reason for a dead mount.
fn remove_if_dead(path: &Path, source: &str, dry_run: bool) -> (bool, Option<String>) {
    if let Some(why) = why_alive(path) {
        return (false, Some(why));
    }
    if dry_run {
        return (false, None);
    }
    // `path` would unmount a file system that was mounted over the dead one.
    match mount::mounted(path) {
        Ok(Some(topmost)) if topmost == source => {}
        Ok(_) => return (false, Some("something else is mounted over it".to_owned())),
        Err(error) => return (false, Some(error.to_string())),
    }
    // Its daemon may have returned meanwhile.
    if let Some(why) = why_alive(path) {
        return (false, Some(why));
    }
    // Processes that have the file open get only errors from it.
    match mount::unmount_from(path, true) {
        Ok(()) => (true, None),
        Err(error) => (false, Some(error.to_string())),
    }
}

/// Returns the reason to keep a mount. `None`: its FUSE connection has ended, so no server can ever reply.
fn why_alive(path: &Path) -> Option<String> {
    // ECONNABORTED: the connection ended during the call. ENOTCONN: it had ended before.
    let is_dead = |errno: i32| [Errno::NOTCONN, Errno::CONNABORTED].iter().any(|dead| dead.raw_os_error() == errno);
    // Checked by another process: a thread that waits for a hanging daemon would keep this process from ending.
    match probe_process::identity(path, REPLY_MAX) {
        Some(ProbeResult::Failed(errno)) if is_dead(errno) => None,
        Some(ProbeResult::Failed(errno)) => Some(std::io::Error::from_raw_os_error(errno).to_string()),
        Some(_) => Some("another daemon serves it".to_owned()),
        None => {
            let seconds = REPLY_MAX.as_secs();
            Some(format!(
                "its daemon has not answered within {seconds} s, and still runs, or its channels are kept for a restart"
            ))
        }
    }
}
