//! The schedule of attempts to reach the servers of remote disks that are missing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time between two attempts: initially, and at most.
const RETRY_INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// A server that needed no attempt for this long counts as healthy: its interval starts at the initial one again.
const FORGET_AFTER: Duration = Duration::from_secs(300);

/// The schedule of attempts, by the disks' names.
#[derive(Default)]
pub(crate) struct ServerProbes(BTreeMap<String, ServerProbe>);

/// The attempts for one disk.
struct ServerProbe {
    /// An attempt is running.
    running: bool,
    /// The time after which the next attempt follows.
    wait: Duration,
    next: Instant,
}

impl ServerProbes {
    /// Returns true if an attempt for this disk is due; then it is marked as running.
    pub(crate) fn is_due(&mut self, disk: &str, now: Instant) -> bool {
        self.0.retain(|_, probe| probe.running || now < probe.next + FORGET_AFTER);
        let new = || ServerProbe { running: false, wait: RETRY_INTERVAL.0, next: now };
        let probe = self.0.entry(disk.to_owned()).or_insert_with(new);
        let due = !probe.running && now >= probe.next;
        probe.running |= due;
        due
    }

    /// Ends an attempt, whether the server responded or not. The interval grows also for a server that comes and goes.
    pub(crate) fn ended(&mut self, disk: &str, now: Instant) {
        if let Some(probe) = self.0.get_mut(disk) {
            (probe.running, probe.next) = (false, now + probe.wait);
            probe.wait = (2 * probe.wait).min(RETRY_INTERVAL.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_tried_at_growing_intervals() {
        let mut probes = ServerProbes::default();
        let start = Instant::now();
        let (mut tried, mut last) = (Vec::new(), 0);
        for second in 0..120 {
            let now = start + Duration::from_secs(second);
            if probes.is_due("disk", now) {
                assert!(!probes.is_due("disk", now), "one attempt at a time");
                tried.push(second - last);
                last = second;
                probes.ended("disk", now);
            }
        }
        assert_eq!(tried, [0, 1, 2, 4, 8, 16, 30, 30]);
        // A server that was well for long is tried at once.
        let later = start + Duration::from_secs(1000);
        assert!(probes.is_due("disk", later));
        probes.ended("disk", later);
        assert!(probes.is_due("disk", later + Duration::from_secs(1)));
    }
}
