//! The end of the daemon: no new work, everything in flight done, labels marked clean, sockets gone.

use super::Control;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use uuid::Uuid;

/// Longest that the end waits for arrays: beyond the time limit of an I/O, so that a hanging disk has failed.
const STOPPING_MAX: Duration = Duration::from_secs(40);

impl Control {
    /// Refuses changes from now on, and ends streams of events.
    pub fn begin_stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Silences all exports, then stops all arrays, all at once.
    pub async fn stop(self: &Arc<Self>) {
        {
            let _one_at_a_time = self.listening.lock().await;
            let names: Vec<String> = self.read().exports.keys().cloned().collect();
            for name in names {
                self.silence(&name);
            }
        }
        let uuids: Vec<Uuid> = self.read().arrays.keys().copied().collect();
        let mut work = JoinSet::new();
        for uuid in uuids {
            let control = Arc::clone(self);
            work.spawn(async move {
                if let Some((entry, disks)) = control.deactivate(uuid, true).await {
                    drop(entry);
                    control.close_disks(disks).await;
                }
            });
        }
        let all = async { while work.join_next().await.is_some() {} };
        if tokio::time::timeout(STOPPING_MAX, all).await.is_err() {
            tracing::error!(
                "some arrays did not stop within {} s; their labels are not marked clean",
                STOPPING_MAX.as_secs()
            );
        }
        self.tell_of_clients();
    }
}
