//! One reader that follows the events, as server-sent events.
//!
//! Guarantees: each event that is still in memory is delivered once and in order. If events were evicted before this
//! reader took them, one event `events_lost` reports how many. The backlog of a slow reader is bounded by the events in
//! memory.

use axum::response::sse::Event as SseEvent;
use braid_api::{ErrorDetail, Event, EventList, Severity};
use futures_util::Stream;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::watch;

/// The events in memory: a bounded list of the latest, numbered from 1 without gaps.
pub trait EventLog: Send + Sync {
    /// Returns the events in memory with sequence numbers above `after`.
    fn after(&self, after: u64) -> EventList;

    /// Returns a receiver that changes with every new event.
    ///
    /// # Errors
    /// [`braid_api::Kind::LimitReached`] if too many readers follow already.
    fn follow(&self) -> Result<watch::Receiver<u64>, ErrorDetail>;

    /// Returns the sequence number of the next event.
    fn next_sequence(&self) -> u64;

    /// Counts events that were evicted before a reader took them.
    fn count_lost(&self, lost: u64);
}

/// A reader.
pub struct EventFollower {
    events: Arc<dyn EventLog>,
    next: watch::Receiver<u64>,
    stopping: watch::Receiver<bool>,
    /// The sequence number of the last event that the reader got.
    after: u64,
    /// Whether the reader is due every event after `after`; otherwise only those in memory.
    wants_all: bool,
    pending: VecDeque<Event>,
}

impl EventFollower {
    /// Creates a reader for the events with numbers above `after`; 0 means all in memory. A number that this daemon has
    /// not assigned yet comes from an earlier daemon: then all events of this one are new.
    ///
    /// # Errors
    /// [`braid_api::Kind::LimitReached`] if too many readers follow already.
    pub fn new(
        events: Arc<dyn EventLog>,
        stopping: watch::Receiver<bool>,
        after: u64,
    ) -> Result<EventFollower, ErrorDetail> {
        let next = events.follow()?;
        let after = if after >= events.next_sequence() { 0 } else { after };
        Ok(EventFollower { events, next, stopping, after, wants_all: after > 0, pending: VecDeque::new() })
    }

    /// Returns the events as a stream of server-sent events.
    pub fn into_stream(self) -> impl Stream<Item = Result<SseEvent, Infallible>> {
        futures_util::stream::unfold(self, |mut follow| async move {
            let event = follow.next().await?;
            let data = serde_json::to_string(&event).expect("events have string keys and no failing fields");
            let sse = SseEvent::default().id(event.sequence.to_string()).event(event.kind.clone()).data(data);
            Some((Ok(sse), follow))
        })
    }

    /// Returns the next event, or none when the daemon stops.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                self.after = event.sequence;
                return Some(event);
            }
            // Marked before the list is read: an event that comes in between wakes the reader at once.
            self.next.mark_unchanged();
            self.pending = self.events.after(self.after).events.into();
            self.insert_lost_note();
            self.wants_all = true;
            if self.pending.is_empty() {
                tokio::select! {
                    changed = self.next.changed() => changed.ok()?,
                    _ = self.stopping.wait_for(|stopping| *stopping) => return None,
                }
            }
        }
    }

    /// Inserts a note in place of events that were evicted before this reader took them.
    fn insert_lost_note(&mut self) {
        let Some(first) = self.pending.front() else { return };
        let lost = first.sequence - self.after - 1;
        if !self.wants_all || lost == 0 {
            return;
        }
        self.events.count_lost(lost);
        let note = Event {
            sequence: first.sequence - 1,
            time_unix_ms: first.time_unix_ms,
            severity: Severity::Warning,
            kind: "events_lost".to_owned(),
            message: format!("{lost} events were dropped before this reader took them; the daemon's log has them"),
            context: BTreeMap::from([("count".to_owned(), lost.to_string())]),
        };
        self.pending.push_front(note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Maximum events in memory.
    const EVENTS_MAX: usize = 100;

    /// A log in memory that keeps the sequence numbers of its latest events.
    struct Log {
        sequences: Mutex<VecDeque<u64>>,
        next: watch::Sender<u64>,
        lost: AtomicU64,
    }

    impl Log {
        fn add(&self) {
            let mut sequences = self.sequences.lock().expect("no test panics with it");
            if sequences.len() == EVENTS_MAX {
                sequences.pop_front();
            }
            sequences.push_back(*self.next.borrow());
            drop(sequences);
            self.next.send_modify(|next| *next += 1);
        }
    }

    impl EventLog for Log {
        fn after(&self, after: u64) -> EventList {
            let event = |sequence: u64| Event {
                sequence,
                time_unix_ms: 0,
                severity: Severity::Info,
                kind: "test".to_owned(),
                message: "something".to_owned(),
                context: BTreeMap::new(),
            };
            let sequences = self.sequences.lock().expect("no test panics with it");
            let events = sequences.iter().copied().filter(|sequence| *sequence > after).map(event).collect();
            EventList { events, next_sequence: *self.next.borrow() }
        }

        fn follow(&self) -> Result<watch::Receiver<u64>, ErrorDetail> {
            Ok(self.next.subscribe())
        }

        fn next_sequence(&self) -> u64 {
            *self.next.borrow()
        }

        fn count_lost(&self, lost: u64) {
            self.lost.fetch_add(lost, Ordering::Relaxed);
        }
    }

    struct Daemon {
        events: Arc<Log>,
        stopping: watch::Sender<bool>,
    }

    impl Daemon {
        fn with(count: usize) -> Daemon {
            let events =
                Arc::new(Log { sequences: Mutex::default(), next: watch::Sender::new(1), lost: AtomicU64::new(0) });
            let daemon = Daemon { events, stopping: watch::Sender::new(false) };
            daemon.add(count);
            daemon
        }

        fn add(&self, count: usize) {
            (0..count).for_each(|_| self.events.add());
        }

        fn follow(&self, after: u64) -> EventFollower {
            EventFollower::new(Arc::clone(&self.events) as _, self.stopping.subscribe(), after).expect("there is room")
        }
    }

    async fn sequences(follow: &mut EventFollower, count: usize) -> Vec<(u64, bool)> {
        let mut seen = Vec::new();
        for _ in 0..count {
            let event = follow.next().await.expect("the daemon goes on");
            seen.push((event.sequence, event.kind == "events_lost"));
        }
        seen
    }

    #[tokio::test]
    async fn a_reader_gets_the_events_in_memory_and_then_new_ones() {
        let daemon = Daemon::with(2);
        let mut follow = daemon.follow(0);
        assert_eq!(sequences(&mut follow, 2).await, [(1, false), (2, false)]);
        daemon.add(1);
        assert_eq!(sequences(&mut follow, 1).await, [(3, false)]);
        let mut second = daemon.follow(2);
        assert_eq!(sequences(&mut second, 1).await, [(3, false)]);
        daemon.stopping.send_replace(true);
        assert!(follow.next().await.is_none());
    }

    #[tokio::test]
    async fn a_slow_reader_gets_a_note_about_lost_events() {
        let daemon = Daemon::with(1);
        let mut follow = daemon.follow(0);
        assert_eq!(sequences(&mut follow, 1).await, [(1, false)]);
        daemon.add(EVENTS_MAX + 7);
        // Event 9 is the first in memory: 2 to 8 are lost, and the note has the number of the last of them.
        assert_eq!(sequences(&mut follow, 3).await, [(8, true), (9, false), (10, false)]);
        assert_eq!(daemon.events.lost.load(Ordering::Relaxed), 7);
        // A reader that resumes late gets the note, too; one that wants all events in memory has lost nothing.
        assert_eq!(sequences(&mut daemon.follow(3), 2).await, [(8, true), (9, false)]);
        assert_eq!(sequences(&mut daemon.follow(0), 1).await, [(9, false)]);
        assert_eq!(sequences(&mut daemon.follow(8), 1).await, [(9, false)]);
    }

    #[tokio::test]
    async fn a_reader_of_an_earlier_daemon_gets_all_events() {
        let daemon = Daemon::with(2);
        assert_eq!(sequences(&mut daemon.follow(500), 2).await, [(1, false), (2, false)]);
        assert_eq!(sequences(&mut daemon.follow(3), 1).await, [(1, false)]);
    }
}
