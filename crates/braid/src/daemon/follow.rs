//! One reader that follows the events, as server-sent events.
//!
//! What it promises: each event that is still remembered, once and in order. Where some were forgotten before this
//! reader took them, one event `events_lost` says how many. What waits for a slow reader is bounded by what is remembered.

use super::events::Events;
use axum::response::sse::Event as SseEvent;
use braid_api::{ErrorDetail, Event, Severity};
use futures_util::Stream;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::watch;

/// A reader.
pub struct Follow {
    events: Arc<Events>,
    next: watch::Receiver<u64>,
    stopping: watch::Receiver<bool>,
    /// The number of the last event that it got.
    after: u64,
    /// Whether every event after `after` is owed to it; else those that are remembered.
    owed: bool,
    pending: VecDeque<Event>,
}

impl Follow {
    /// A reader that wants the events with numbers above `after`; 0 means those that are remembered. A number that
    /// this daemon has not given yet is of one before it: all of this one's events are new then.
    ///
    /// # Errors
    /// [`braid_api::Kind::LimitReached`] when too many follow already.
    pub fn new(events: Arc<Events>, stopping: watch::Receiver<bool>, after: u64) -> Result<Follow, ErrorDetail> {
        let next = events.follow()?;
        let after = if after >= events.next_sequence() { 0 } else { after };
        Ok(Follow { events, next, stopping, after, owed: after > 0, pending: VecDeque::new() })
    }

    /// The events as they are sent.
    pub fn into_stream(self) -> impl Stream<Item = Result<SseEvent, Infallible>> {
        futures_util::stream::unfold(self, |mut follow| async move {
            let event = follow.next().await?;
            let data = serde_json::to_string(&event).expect("events have string keys and no failing fields");
            let sse = SseEvent::default().id(event.sequence.to_string()).event(event.kind.clone()).data(data);
            Some((Ok(sse), follow))
        })
    }

    /// The next event, or none when the daemon stops.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                self.after = event.sequence;
                return Some(event);
            }
            // Seen before the list is read: what comes in between wakes at once.
            self.next.mark_unchanged();
            self.pending = self.events.after(self.after).events.into();
            self.note_what_is_lost();
            self.owed = true;
            if self.pending.is_empty() {
                tokio::select! {
                    changed = self.next.changed() => changed.ok()?,
                    _ = self.stopping.wait_for(|stopping| *stopping) => return None,
                }
            }
        }
    }

    /// Puts a note in place of events that were forgotten before this reader came to them.
    fn note_what_is_lost(&mut self) {
        let Some(first) = self.pending.front() else { return };
        let lost = first.sequence - self.after - 1;
        if !self.owed || lost == 0 {
            return;
        }
        self.events.count_lost(lost);
        let note = Event {
            sequence: first.sequence - 1,
            time_unix_ms: first.time_unix_ms,
            severity: Severity::Warning,
            kind: "events_lost".to_owned(),
            message: format!("{lost} events were forgotten before this reader took them; the daemon's log has them"),
            context: BTreeMap::from([("count".to_owned(), lost.to_string())]),
        };
        self.pending.push_front(note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_api::limits::EVENTS_MAX;

    struct Daemon {
        events: Arc<Events>,
        stopping: watch::Sender<bool>,
    }

    impl Daemon {
        fn with(events: usize) -> Daemon {
            let daemon = Daemon { events: Arc::default(), stopping: watch::Sender::new(false) };
            daemon.add(events);
            daemon
        }

        fn add(&self, events: usize) {
            (0..events).for_each(|_| self.events.info("test", "something", &[]));
        }

        fn follow(&self, after: u64) -> Follow {
            Follow::new(Arc::clone(&self.events), self.stopping.subscribe(), after).expect("there is room")
        }
    }

    async fn sequences(follow: &mut Follow, count: usize) -> Vec<(u64, bool)> {
        let mut seen = Vec::new();
        for _ in 0..count {
            let event = follow.next().await.expect("the daemon goes on");
            seen.push((event.sequence, event.kind == "events_lost"));
        }
        seen
    }

    #[tokio::test]
    async fn a_reader_gets_what_is_remembered_and_goes_on() {
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
    async fn a_slow_reader_is_told_what_it_has_lost() {
        let daemon = Daemon::with(1);
        let mut follow = daemon.follow(0);
        assert_eq!(sequences(&mut follow, 1).await, [(1, false)]);
        daemon.add(EVENTS_MAX + 7);
        // Event 9 is the first that is remembered: 2 to 8 are lost, and the note takes the number of the last of them.
        assert_eq!(sequences(&mut follow, 3).await, [(8, true), (9, false), (10, false)]);
        assert_eq!(daemon.events.lost(), 7);
        // So does one that comes back late; one that asks for all there is has lost nothing.
        assert_eq!(sequences(&mut daemon.follow(3), 2).await, [(8, true), (9, false)]);
        assert_eq!(sequences(&mut daemon.follow(0), 1).await, [(9, false)]);
        assert_eq!(sequences(&mut daemon.follow(8), 1).await, [(9, false)]);
    }

    #[tokio::test]
    async fn a_reader_of_a_daemon_before_this_one_gets_everything() {
        let daemon = Daemon::with(2);
        assert_eq!(sequences(&mut daemon.follow(500), 2).await, [(1, false), (2, false)]);
        assert_eq!(sequences(&mut daemon.follow(3), 1).await, [(1, false)]);
    }
}
