//! Events: a bounded list in memory, lines in the log, and streams to followers.

use crate::clock::unix_ms;
use braid_api::limits::{EVENT_FOLLOWERS_MAX, EVENTS_MAX};
use braid_api::{ErrorDetail, Event, EventList, Kind, Severity};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The events of this daemon: the newest [`EVENTS_MAX`] of them, with sequence numbers from 1.
pub struct Events {
    list: Mutex<List>,
    /// The sequence number of the next event: followers wait for it to change.
    next: watch::Sender<u64>,
    /// Events that were evicted before a reader took them.
    lost: AtomicU64,
    /// Number of events by severity: information, warnings, errors.
    counts: [AtomicU64; 3],
}

/// The events in memory.
struct List {
    events: VecDeque<Event>,
    next_sequence: u64,
}

impl Default for Events {
    fn default() -> Events {
        let list = List { events: VecDeque::with_capacity(EVENTS_MAX), next_sequence: 1 };
        Events {
            list: Mutex::new(list),
            next: watch::Sender::new(1),
            lost: AtomicU64::new(0),
            counts: Default::default(),
        }
    }
}

impl Events {
    /// Records an event and logs it. `kind` is one word for programs, and `context` names the objects that it is about.
    pub fn add(&self, severity: Severity, kind: &str, message: impl Into<String>, context: &[(&str, &str)]) {
        let message = message.into();
        self.counts[class(severity)].fetch_add(1, Ordering::Relaxed);
        match severity {
            Severity::Info => tracing::info!(event = kind, "{message}"),
            Severity::Warning => tracing::warn!(event = kind, "{message}"),
            _ => tracing::error!(event = kind, "{message}"),
        }
        let time_unix_ms = unix_ms();
        let mut list = self.list();
        let sequence = list.next_sequence;
        list.next_sequence += 1;
        if list.events.len() == EVENTS_MAX {
            list.events.pop_front();
        }
        list.events.push_back(Event {
            sequence,
            time_unix_ms,
            severity,
            kind: kind.to_owned(),
            message,
            context: context.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        });
        let next = list.next_sequence;
        drop(list);
        self.next.send_replace(next);
    }

    /// Adds an event for the record.
    pub fn info(&self, kind: &str, message: impl Into<String>, context: &[(&str, &str)]) {
        self.add(Severity::Info, kind, message, context);
    }

    /// Adds an event that an operator should look at.
    pub fn warning(&self, kind: &str, message: impl Into<String>, context: &[(&str, &str)]) {
        self.add(Severity::Warning, kind, message, context);
    }

    /// Adds an event about something that does not work.
    pub fn error(&self, kind: &str, message: impl Into<String>, context: &[(&str, &str)]) {
        self.add(Severity::Error, kind, message, context);
    }

    /// Returns the events in memory with sequence numbers above `after`.
    pub fn after(&self, after: u64) -> EventList {
        let list = self.list();
        EventList {
            events: list.events.iter().filter(|event| event.sequence > after).cloned().collect(),
            next_sequence: list.next_sequence,
        }
    }

    /// Returns a receiver that changes with every new event.
    ///
    /// # Errors
    /// [`Kind::LimitReached`] if too many readers follow already.
    pub fn follow(&self) -> Result<watch::Receiver<u64>, ErrorDetail> {
        if self.next.receiver_count() >= EVENT_FOLLOWERS_MAX {
            return Err(ErrorDetail::new(
                Kind::LimitReached,
                format!("{EVENT_FOLLOWERS_MAX} readers follow the events already, which is the maximum"),
            )
            .remedy("end one of them"));
        }
        Ok(self.next.subscribe())
    }

    /// Returns the sequence number of the next event.
    pub fn next_sequence(&self) -> u64 {
        self.list().next_sequence
    }

    /// Counts events that were evicted before a reader took them.
    pub fn count_lost(&self, lost: u64) {
        self.lost.fetch_add(lost, Ordering::Relaxed);
    }

    /// Returns the number of events that were evicted before a reader took them.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns the number of events of a severity since the daemon started.
    pub fn count(&self, severity: Severity) -> u64 {
        self.counts[class(severity)].load(Ordering::Relaxed)
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the index of a severity among the counts.
fn class(severity: Severity) -> usize {
    match severity {
        Severity::Info => 0,
        Severity::Warning => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_events_are_evicted_and_numbers_continue() {
        let events = Events::default();
        for n in 0..EVENTS_MAX + 10 {
            events.info("test", format!("event {n}"), &[("n", "1")]);
        }
        let list = events.after(0);
        assert_eq!(list.events.len(), EVENTS_MAX);
        assert_eq!(list.events[0].sequence, 11);
        assert_eq!(list.next_sequence, EVENTS_MAX as u64 + 11);
        assert_eq!(events.after(list.next_sequence - 2).events.len(), 1);
    }

    #[test]
    fn followers_are_woken_and_bounded() {
        let events = Events::default();
        let mut followers: Vec<_> = (0..EVENT_FOLLOWERS_MAX).map(|_| events.follow().expect("there is room")).collect();
        assert_eq!(events.follow().err().map(|e| e.kind), Some(Kind::LimitReached));
        events.warning("test", "now", &[]);
        assert!(followers.iter_mut().all(|f| f.has_changed().expect("the sender lives")));
        followers.pop();
        events.follow().expect("one left");
    }
}
