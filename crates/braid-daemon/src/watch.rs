//! The monitor of the daemon: looks periodically at disks, pools, exports and the state folder, and restores what can be
//! restored.

use crate::Daemon;
use braid_api::{Attention, AttentionCode};
use braid_arrays::LOOK_INTERVAL;
use braid_pools::{OpenRetries, ReappearanceWatch};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The key of the fault that the state folder was deleted and cannot be created again.
const STATE_FOLDER_FAULT: &str = "state-folder";

/// Looks between two attempts to restore failed exports: five seconds.
const LOOKS_UNTIL_RETRY: u32 = 5;

impl Daemon {
    /// Runs the monitor until the daemon stops.
    pub async fn watch(self: Arc<Self>) {
        let mut stopping = self.inventory.stopping();
        let (mut looks, mut absent, mut appeared) = (0u32, BTreeSet::new(), ReappearanceWatch::new());
        let mut starved = OpenRetries::new();
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
                _ = stopping.wait_for(|stopping| *stopping) => break,
            }
            looks = looks.wrapping_add(1);
            self.arrays.watch_disks();
            self.arrays.watch_missing().await;
            self.arrays.watch_waiting(&mut absent).await;
            self.pools.watch_returning(&mut appeared).await;
            self.pools.retry_full_pools(&mut starved);
            self.arrays.watch_unreadable();
            self.arrays.watch_parity_checks();
            self.exports.watch_files().await;
            self.exports.watch_kernel_clients().await;
            self.exports.report_client_events();
            if looks.is_multiple_of(LOOKS_UNTIL_RETRY) {
                self.arrays.save_checks();
                self.watch_state();
                self.exports.retry_exports().await;
            }
        }
    }

    /// Creates the state folder again if it was deleted or replaced under the daemon, and writes the current state.
    fn watch_state(&self) {
        let path = self.inventory.state().path().display();
        match tokio::task::block_in_place(|| self.inventory.state().restore()) {
            Ok(false) => self.inventory.set_fault(STATE_FOLDER_FAULT, None),
            Ok(true) => {
                let message = format!("the state folder {path} was deleted while the daemon served; it was made anew");
                // Before the event is added, the state is on disk, or `state_not_saved` was reported.
                self.inventory.save_or_warn();
                self.inventory.events().warning("state_restored", message, &[]);
            }
            Err(error) => {
                let fault = Attention {
                    code: AttentionCode::StateFolderDeleted,
                    subject: "daemon".to_owned(),
                    message: format!("the state folder {path} was deleted while the daemon served: {}", error.message),
                    impact: "Exports and settings are forgotten at the next start. The running daemon goes on with what it knows."
                        .to_owned(),
                    remedy: error.remedy,
                    commands: vec!["braid export list".to_owned()],
                };
                self.inventory.set_fault(STATE_FOLDER_FAULT, Some(fault));
            }
        }
    }
}
