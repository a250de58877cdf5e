//! Operations on the daemon as a whole.

use super::metrics;
use crate::Daemon;
use braid_api::{Activity, Attention, DiskList, ErrorDetail, EventList, Severity, Status, Upgrade, Upgrading};
use braid_inventory::events::Events;
use braid_server::{ApiReports, ChangeGuard, DaemonService, EventLog, Lifecycle, MetricsSnapshot, Reply};
use std::sync::Arc;
use tokio::sync::watch;

impl Lifecycle for Daemon {
    fn stopping(&self) -> watch::Receiver<bool> {
        self.inventory.stopping()
    }

    fn is_starting(&self) -> bool {
        self.inventory.is_starting()
    }

    fn unknown_yet(&self, missing: ErrorDetail) -> Option<ErrorDetail> {
        self.inventory.unknown_yet(missing)
    }

    fn begin_change(self: Arc<Self>) -> ChangeGuard {
        Box::new(Daemon::begin_change(&self))
    }
}

impl DaemonService for Daemon {
    fn status(&self) -> Status {
        Daemon::status(self)
    }

    fn disks(&self) -> DiskList {
        self.arrays.disks()
    }

    fn activity(&self) -> Activity {
        Daemon::activity(self)
    }

    fn upgrade(self: Arc<Self>, request: Upgrade) -> Reply<Upgrading> {
        Box::pin(async move { Daemon::upgrade(&self, &request).await })
    }

    fn events(&self) -> Arc<dyn EventLog> {
        Arc::new(ServedEvents(Arc::clone(self.inventory.events())))
    }

    fn metrics(&self) -> MetricsSnapshot {
        metrics::snapshot(self)
    }
}

/// The events, as the API serves them.
struct ServedEvents(Arc<Events>);

impl EventLog for ServedEvents {
    fn after(&self, after: u64) -> EventList {
        self.0.after(after)
    }

    fn follow(&self) -> Result<watch::Receiver<u64>, ErrorDetail> {
        self.0.follow()
    }

    fn next_sequence(&self) -> u64 {
        self.0.next_sequence()
    }

    fn count_lost(&self, lost: u64) {
        self.0.count_lost(lost);
    }
}

impl ApiReports for Daemon {
    fn report(&self, severity: Severity, kind: &str, message: String, path: &str) {
        self.inventory.events().add(severity, kind, message, &[("path", path)]);
    }

    fn set_fault(&self, key: &str, fault: Option<Attention>) {
        self.inventory.set_fault(key, fault);
    }

    fn set_certificate_expiry(&self, unix_s: Option<i64>) {
        Daemon::set_certificate_expiry(self, unix_s.unwrap_or(0));
    }
}
