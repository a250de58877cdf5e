//! Limits the events about clients that were disconnected because of errors. Per export and minute, the first few are
//! events of their own, and one event summarizes the others: a flood of them does not evict other events from the
//! bounded history.

use braid_inventory::counted;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Maximum number of disconnections of one export within [`WINDOW`] that each get an event.
const REPORTED_MAX: u32 = 16;

/// Time after which the counts of an export begin anew.
const WINDOW: Duration = Duration::from_secs(60);

/// The current window of each export with disconnections. Clients that had not selected an export count under the empty
/// name.
#[derive(Default)]
pub(crate) struct ClientErrors(BTreeMap<String, Window>);

/// The disconnections of one export since `started`.
struct Window {
    started: Instant,
    reported: u32,
    counted_only: u64,
    /// Describes the last disconnection that was counted without an event.
    last: String,
}

impl ClientErrors {
    /// Counts a client of `export` (empty: none was selected) that was disconnected; `sentence` describes it. Returns
    /// whether to report it as an event of its own.
    pub(crate) fn should_report(&mut self, export: &str, sentence: &str, now: Instant) -> bool {
        let window = self.0.entry(export.to_owned()).or_insert_with(|| Window {
            started: now,
            reported: 0,
            counted_only: 0,
            last: String::new(),
        });
        if window.reported < REPORTED_MAX {
            window.reported += 1;
            return true;
        }
        window.counted_only += 1;
        sentence.clone_into(&mut window.last);
        false
    }

    /// Ends the windows that are older than [`WINDOW`], or all windows if `all` is set. Returns a summary of each ended
    /// window that counted disconnections without an event: the export, their number, and the message.
    pub(crate) fn summaries(&mut self, now: Instant, all: bool) -> Vec<(String, u64, String)> {
        let mut due = Vec::new();
        self.0.retain(|export, window| {
            let over = all || now.saturating_duration_since(window.started) >= WINDOW;
            if over && window.counted_only > 0 {
                let of = if export.is_empty() { String::new() } else { format!(" of export {export}") };
                let clients = counted(window.counted_only as usize, "more client", "more clients");
                let were = if window.counted_only == 1 { "was" } else { "were" };
                let message =
                    format!("{clients}{of} {were} disconnected within a minute; the last one: {}", window.last);
                due.push((export.clone(), window.counted_only, message));
            }
            // The window of an export without further errors, or of a removed one, is dropped.
            !over
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_reported_as_a_few_events_and_a_count() {
        let (mut client_errors, started) = (ClientErrors::default(), Instant::now());
        let reported = (0..1000).filter(|n| client_errors.should_report("", &format!("client {n}"), started)).count();
        assert_eq!(reported, REPORTED_MAX as usize);
        // Another export's events are not suppressed by the first one's.
        assert!(client_errors.should_report("fast", "client x of export fast", started));
        assert!(client_errors.summaries(started + WINDOW / 2, false).is_empty());
        let summaries = client_errors.summaries(started + WINDOW, false);
        let message = "984 more clients were disconnected within a minute; the last one: client 999";
        assert_eq!(summaries, [(String::new(), 984, message.to_owned())]);
        // After the window the events begin anew.
        assert!(client_errors.should_report("", "client y", started + WINDOW) && client_errors.0.len() == 1);
        let reported =
            (0..REPORTED_MAX).filter(|_| client_errors.should_report("", "client z", started + WINDOW)).count();
        assert_eq!((reported as u32, client_errors.summaries(started + WINDOW, true).len()), (REPORTED_MAX - 1, 1));
    }
}
