//! Orders an upgrade of the daemon, and ends it in the daemon that follows.

use crate::Daemon;
use crate::stuck_threads;
use crate::upgrade;
use braid_api::{ErrorDetail, Kind, Upgrade, Upgrading};
use braid_tasks as tasks;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Maximum time to wait for changes in progress, and for the start, before the upgrade is refused.
const CHANGES_MAX: Duration = Duration::from_secs(10);
/// A thread that the kernel has held for this long may be held for ever.
const STUCK_MAX: Duration = Duration::from_secs(3);
/// Inherited sockets that nothing has claimed are closed after this time: replicated volumes are served some seconds
/// after a start.
const UNCLAIMED_MAX: Duration = Duration::from_secs(30);

impl Daemon {
    /// Checks the program that the daemon is to become, and orders the upgrade.
    ///
    /// # Errors
    /// The program would not start here; another upgrade is in progress; a change does not end. Nothing has stopped
    /// then.
    pub async fn upgrade(&self, request: &Upgrade) -> Result<Upgrading, ErrorDetail> {
        if self.upgrades.is_busy() {
            return Err(in_progress());
        }
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let preparation = self.upgrades.prepare().ok_or_else(in_progress)?;
        let candidate = Arc::new(upgrade::check(Path::new(&request.binary)).await?);
        refuse_stuck().await?;
        self.wait_for_changes(CHANGES_MAX).await?;
        let (number, to) = (self.upgrades.number(), candidate.version.clone());
        tracing::info!("the daemon hands over to {} ({to})", candidate.path.display());
        preparation.order(candidate);
        Ok(Upgrading { pid: std::process::id(), number, from: env!("CARGO_PKG_VERSION").to_owned(), to })
    }

    /// Ends an upgrade when everything that can be started is started: reports it, and later closes unclaimed sockets.
    pub fn end_upgrade(self: &Arc<Self>) {
        let Some((previous, pause_ms)) = self.upgrades.end() else { return };
        let version = env!("CARGO_PKG_VERSION");
        match &previous.failed {
            None => {
                let message = format!("braid {version} replaced {} after a pause of {pause_ms} ms", previous.from);
                self.inventory.events().info("upgraded", message, &[]);
            }
            Some(why) => {
                let message = format!(
                    "the daemon was not upgraded and continued as {version} after a pause of {pause_ms} ms: {why}"
                );
                self.inventory.events().error("upgrade_failed", message, &[]);
            }
        }
        let daemon = Arc::downgrade(self);
        tasks::spawn(async move {
            tokio::time::sleep(UNCLAIMED_MAX).await;
            if let Some(daemon) = daemon.upgrade() {
                daemon.upgrades.sockets().close_unclaimed();
            }
        });
    }
}

/// Refuses if the kernel holds a thread: `execve` waits for all threads to end, and everything would have stopped by
/// then.
async fn refuse_stuck() -> Result<(), ErrorDetail> {
    let stuck = tasks::blocking(|| stuck_threads::find(STUCK_MAX)).await.unwrap_or_default();
    let Some(stuck) = stuck.first() else { return Ok(()) };
    let seconds = STUCK_MAX.as_secs();
    let message = format!(
        "the kernel has held {stuck} of the daemon for {seconds} s, and the process cannot become another program before it lets go: nothing \
         has stopped"
    );
    Err(ErrorDetail::new(Kind::InUse, message).remedy(
        "look for a disk or a file system that does not answer (braid status, dmesg), and try again when it does",
    ))
}

fn in_progress() -> ErrorDetail {
    ErrorDetail::new(Kind::InUse, "the daemon is being upgraded already")
        .remedy("wait until that is done (braid status)")
}
