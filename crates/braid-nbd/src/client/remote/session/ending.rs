//! Ends connections, and requeues or fails their requests.

use super::super::shared::REPLY_TIMEOUT_NS;
use super::{
    EndReason, GREETING_NS, RETRY_NS, Reading, SLOTS, Session, SessionPhase, SlotState, TICK_NS, Wire, libc_errno,
};

impl Session {
    /// Closes the connection. [`Session::finish_close`] follows when no operation is in flight on it.
    pub(super) fn end_connection(&mut self, wire: &mut impl Wire, reason: EndReason) {
        let reason = match self.phase {
            SessionPhase::Greeting(_) => EndReason::Refused,
            SessionPhase::Up if self.shared.fenced.is_some() => EndReason::Ended,
            SessionPhase::Up => reason,
            _ => return,
        };
        self.phase = SessionPhase::Ending(reason);
        wire.close();
        self.finish_close(wire, reason);
    }

    /// Finishes closing once no operation is in flight on the connection: requeues or fails its requests.
    pub(super) fn finish_close(&mut self, wire: &mut impl Wire, reason: EndReason) {
        if self.sending || self.receiving {
            return;
        }
        self.phase = SessionPhase::Down;
        (self.start, self.end, self.reading) = (0, 0, Reading::Header);
        while let Some(index) = self.in_send.pop() {
            self.slots[index].in_send = false;
            if let Some(answer) = self.slots[index].answer {
                self.finish(wire, index, answer);
            }
        }
        // A restarted server may have lost the data of a write whose flush (in place of FUA) was outstanding. The write
        // is sent again, then the flush.
        for index in 0..SLOTS as u16 {
            self.slots[index].flushing = false;
        }
        let sent: Vec<u16> = self.slots.in_state(SlotState::Sent).collect();
        let writes = sent.iter().any(|index| self.slots[*index].changes());
        if reason != EndReason::Refused {
            self.shared.connection_ended(reason == EndReason::Abandoned, writes);
        }
        for index in sent {
            if self.slots[index].abandoned {
                self.slots.give(index);
            } else if reason == EndReason::Abandoned {
                let part = self.slots[index].part;
                self.slots.give(index);
                wire.done(&part, Err(libc_errno::TIMEDOUT));
            } else {
                self.slots.set(index, SlotState::Unsent);
                self.slots.unsent.push_back(index);
            }
        }
        self.retry_ns = self.retry_ns.max(RETRY_NS.0);
        self.retry_at_ns = self.retry_at_ns.max(wire.now_ns() + self.retry_ns);
    }

    pub(super) fn check_timeouts(&mut self, wire: &mut impl Wire) {
        let now = wire.now_ns();
        self.next_timeout_check_ns = now + TICK_NS;
        let timeout = self.shared.reply_timeout_ns();
        let oldest = self.slots.in_state(SlotState::Sent).map(|index| self.slots[index].sent_ns).min();
        if self.shared.fenced.is_some() {
            self.check_progress(wire, oldest);
        }
        match self.phase {
            SessionPhase::Up if self.slots.sent > 0 => {
                let silent = now.saturating_sub(self.last_received_ns) >= timeout;
                if silent || oldest.is_some_and(|sent| now.saturating_sub(sent) >= REPLY_TIMEOUT_NS) {
                    self.end_connection(wire, EndReason::Abandoned);
                }
            }
            SessionPhase::Greeting(_) if now.saturating_sub(self.dialled_ns) >= GREETING_NS => {
                self.end_connection(wire, EndReason::Refused)
            }
            _ => {}
        }
        if !matches!(self.phase, SessionPhase::Up) && self.shared.fenced.is_none() {
            self.fail_unsent(wire, libc_errno::TIMEDOUT, now.saturating_sub(timeout));
        }
    }

    /// Marks a fenced disk as lost if its server makes no progress. Its I/O does not time out by itself: it waits for a
    /// reply or until the disk is lost.
    fn check_progress(&mut self, wire: &mut impl Wire, oldest_sent_ns: Option<u64>) {
        let held = [SlotState::Unsent, SlotState::Sent].into_iter().flat_map(|state| self.slots.in_state(state));
        let held = held
            .map(|index| self.slots[index].part.start_ns)
            .chain(wire.waiting_since_ns().filter(|_| !self.other_connected))
            .chain(self.abandoned_since_ns.filter(|_| !self.other_connected))
            .min();
        if let Some(since) = held {
            // Replies on other connections do not extend the wait of a request or connection that never gets one.
            let own = oldest_sent_ns.into_iter().chain([since.max(self.last_reply_ns)]).min().unwrap_or(since);
            self.shared.mark_lost_if_stuck(wire.now_ns(), since, own);
        }
        if self.shared.is_lost() {
            self.end_connection(wire, EndReason::Ended);
            self.fail_unsent(wire, libc_errno::NODEV, u64::MAX);
        }
    }

    /// Fails I/O that was submitted at or before `until_ns` and is not sent: this session's, and the shard's common
    /// queue unless another connection serves it.
    pub(super) fn fail_unsent(&mut self, wire: &mut impl Wire, errno: i32, until_ns: u64) {
        self.abandoned_since_ns = self.abandoned_since_ns.filter(|since| *since > until_ns);
        for _ in 0..self.slots.unsent.len() {
            let Some(index) = self.slots.unsent.pop_front() else { break };
            let part = self.slots[index].part;
            if part.start_ns > until_ns {
                self.slots.unsent.push_back(index);
                continue;
            }
            self.slots.give(index);
            wire.done(&part, Err(errno));
        }
        if self.other_connected && !self.shared.is_lost() {
            return;
        }
        while wire.waiting_since_ns().is_some_and(|since| since <= until_ns) {
            wire.fail_waiting(errno);
        }
    }
}
