//! Reports the events of clients that the shards have queued: to the log, and errors as events of the daemon.

use crate::ExportManager;
use braid_nbd::NbdEvent;
use std::sync::PoisonError;
use std::time::Instant;

impl ExportManager {
    /// Logs the events of clients. Connections and ordinary disconnections go to the log only; protocol errors are
    /// events, up to a limit.
    pub fn report_client_events(&self) {
        let mut client_errors = self.client_errors.lock().unwrap_or_else(PoisonError::into_inner);
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
                    if client_errors.should_report(&export, &message, Instant::now()) {
                        let context = [("client", peer.as_str()), ("export", export.as_str())];
                        self.inventory.events().warning("client_disconnected", message, &context);
                    } else {
                        tracing::debug!("{message}");
                    }
                }
            }
        }
        for (export, count, message) in
            client_errors.summaries(Instant::now(), self.inventory.refuse_while_stopping_or_upgrading().is_err())
        {
            let count = count.to_string();
            let context = [("export", export.as_str()), ("count", count.as_str())];
            self.inventory.events().warning("clients_disconnected", message, &context);
        }
        let lost = self.clients.take_lost();
        if lost > 0 {
            self.inventory.events().count_lost(lost);
            tracing::warn!("{lost} messages about clients were lost, because there were too many at once");
        }
    }
}
