//! What is not known yet: disks are still being looked for after the daemon's start.
//!
//! From its first moment on the API answers, before arrays and pools are found. Until all disks have answered, or have been
//! given up, an object that is not listed may be on one that has not answered: "there is no such object" would be a guess. Such
//! a refusal becomes [`Kind::Starting`], and lists say that they are not complete.

use super::Control;
use braid_api::{Attention, ErrorDetail, Kind};
use std::sync::atomic::Ordering;

/// The trouble of disks that have not answered.
const LATE_TROUBLE: &str = "late-disks";
/// What a refusal about one of these is about is known without any disk of an array or a pool: paths of the API, disks that
/// were named, nodes of the table, and exports, which the state file holds.
const KNOWN_WITHOUT_DISKS: [&str; 4] = ["path", "disk", "node", "export"];

impl Control {
    /// Whether disks are still being looked for after the start.
    pub fn is_starting(&self) -> bool {
        self.starting.load(Ordering::Acquire)
    }

    /// Every disk has answered, or was given up.
    pub(super) fn end_starting(&self) {
        self.set_trouble(LATE_TROUBLE, None);
        self.starting.store(false, Ordering::Release);
    }

    /// Notes which disks hold up the end of the start.
    pub(super) fn note_late<'a>(&self, late: impl Iterator<Item = &'a String>) {
        let names: Vec<&str> = late.map(String::as_str).collect();
        let message = match names.as_slice() {
            [] => "some block devices have not answered yet".to_owned(),
            [one] => format!("disk {one} has not answered yet"),
            several => format!("disks have not answered yet: {}", several.join(", ")),
        };
        let trouble = Attention {
            subject: "daemon".to_owned(),
            message,
            meaning: "Arrays, pools and volumes on them are not known yet; lists are not complete.".to_owned(),
            remedy: "Wait: the daemon looks again as soon as they answer, or gives them up after their time limit."
                .to_owned(),
            commands: Vec::new(),
        };
        self.set_trouble(LATE_TROUBLE, Some(trouble));
    }

    /// What to say instead of "there is no such object" while that is not known; none where it is.
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

    /// Why a list of volumes or snapshots may lack some: empty where it does not.
    pub(super) fn why_volumes_incomplete(&self) -> Vec<String> {
        let mut why = self.why_incomplete();
        let tables = self.read();
        let closed = tables.pools.values().filter(|entry| entry.served().is_none());
        why.extend(closed.map(|entry| format!("pool {} is not active: what is in it is not known", entry.name)));
        why
    }

    /// Why a list of objects may lack some: empty where it does not.
    pub(super) fn why_incomplete(&self) -> Vec<String> {
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
