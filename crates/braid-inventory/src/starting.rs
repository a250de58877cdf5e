//! Objects that are not known yet while the start still scans disks.
//!
//! The API answers from the beginning, before arrays and pools are found. Until all disks have answered, or were given
//! up, an object that is not listed may be on one that has not answered: "there is no such object" would be a guess.
//! Such a refusal becomes [`Kind::Starting`], and lists report that they are incomplete.

use crate::inventory::Inventory;
use braid_api::{Attention, AttentionCode, ErrorDetail, Kind};
use std::sync::atomic::Ordering;

/// The key of the fault that disks have not answered.
const LATE_FAULT: &str = "late-disks";

/// Context keys of refusals that do not depend on the disks of arrays or pools: paths of the API, named disks, nodes of
/// the cluster, and exports, which the state file holds.
const KNOWN_WITHOUT_DISKS: [&str; 4] = ["path", "disk", "node", "export"];

impl Inventory {
    /// Returns whether the scan of the start still waits for disks.
    pub fn is_starting(&self) -> bool {
        self.starting.load(Ordering::Acquire)
    }

    /// Ends the start: every disk has answered, or was given up.
    pub fn end_starting(&self) {
        self.set_fault(LATE_FAULT, None);
        self.starting.store(false, Ordering::Release);
    }

    /// Reports which disks hold up the end of the start.
    pub fn report_late_disks<'a>(&self, late: impl Iterator<Item = &'a String>) {
        let names: Vec<&str> = late.map(String::as_str).collect();
        let message = match names.as_slice() {
            [] => "some block devices have not answered yet".to_owned(),
            [one] => format!("disk {one} has not answered yet"),
            several => format!("disks have not answered yet: {}", several.join(", ")),
        };
        let fault = Attention {
            code: AttentionCode::DisksLate,
            subject: "daemon".to_owned(),
            message,
            impact: "Arrays, pools and volumes on them are not known yet; lists are not complete.".to_owned(),
            remedy: "Wait: the daemon looks again as soon as they answer, or gives them up after their time limit."
                .to_owned(),
            commands: Vec::new(),
        };
        self.set_fault(LATE_FAULT, Some(fault));
    }

    /// Returns the error that replaces "there is no such object" while disks are still scanned; `None`: the refusal is
    /// final.
    ///
    /// `missing` is a refusal of kind [`Kind::NotFound`].
    pub fn unknown_yet(&self, missing: ErrorDetail) -> Option<ErrorDetail> {
        let is_known = KNOWN_WITHOUT_DISKS.iter().any(|word| missing.context.contains_key(*word));
        if is_known || !self.is_starting() {
            return None;
        }
        let message = format!("{}, as far as is known: the daemon is still looking for disks", missing.message);
        Some(ErrorDetail {
            kind: Kind::Starting,
            message,
            context: missing.context,
            remedy: "try again in a moment; `braid status` says when all disks have answered".to_owned(),
        })
    }

    /// Returns why a list of volumes or snapshots may be incomplete: empty if it is complete.
    pub fn why_volumes_incomplete(&self) -> Vec<String> {
        let mut why = self.why_incomplete();
        let tables = self.read();
        let closed = tables.pools.values().filter(|entry| entry.served().is_none());
        why.extend(closed.map(|entry| format!("pool {} is not active: what is in it is not known", entry.name)));
        why
    }

    /// Returns why a list of objects may be incomplete: empty if it is complete.
    pub fn why_incomplete(&self) -> Vec<String> {
        let starting = self.is_starting();
        starting.then(|| "the daemon is still looking for disks".to_owned()).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_disks_decide_is_not_among_what_is_known_without_them() {
        for word in ["array", "pool", "volume", "snapshot", "replica", "job", "member"] {
            assert!(!KNOWN_WITHOUT_DISKS.contains(&word), "{word}");
        }
    }
}
