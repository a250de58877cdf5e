//! How connections end, and what becomes of what they had.

use super::{
    GREETING_NS, PATIENCE_NS, Phase, RETRY_NS, Reading, SLOTS, Session, State, TICK_NS, Why, Wire, libc_errno,
};

impl Session {
    /// Ends the connection; what it leads to follows when nothing is in flight on it.
    pub(super) fn lose(&mut self, wire: &mut impl Wire, why: Why) {
        let why = match self.phase {
            Phase::Greeting(_) => Why::Refused,
            Phase::Up if self.shared.fenced.is_some() => Why::Ended,
            Phase::Up => why,
            _ => return,
        };
        self.phase = Phase::Ending(why);
        wire.close();
        self.ended(wire, why);
    }

    /// The connection is gone, if nothing is in flight on it any more.
    pub(super) fn ended(&mut self, wire: &mut impl Wire, why: Why) {
        if self.sending || self.receiving {
            return;
        }
        self.phase = Phase::Down;
        (self.start, self.end, self.reading) = (0, 0, Reading::Header);
        while let Some(index) = self.in_send.pop() {
            self.slots[index].in_send = false;
            if let Some(answer) = self.slots[index].answer {
                self.finish(wire, index, answer);
            }
        }
        // A server that is started anew may have forgotten what only its flush would have made durable: it is written again.
        for index in 0..SLOTS as u16 {
            self.slots[index].flushing = false;
        }
        let sent: Vec<u16> = self.slots.in_state(State::Sent).collect();
        let writes = sent.iter().any(|index| self.slots[*index].changes());
        if why != Why::Refused {
            self.shared.connection_ended(why == Why::GivenUp, writes);
        }
        for index in sent {
            if self.slots[index].left {
                self.slots.give(index);
            } else if why == Why::GivenUp {
                let part = self.slots[index].part;
                self.slots.give(index);
                wire.done(&part, Err(libc_errno::TIMEDOUT));
            } else {
                self.slots.set(index, State::Unsent);
                self.slots.unsent.push_back(index);
            }
        }
        self.retry_ns = self.retry_ns.max(RETRY_NS.0);
        self.retry_at_ns = self.retry_at_ns.max(wire.now_ns() + self.retry_ns);
    }

    pub(super) fn look_at_the_clock(&mut self, wire: &mut impl Wire) {
        let now = wire.now_ns();
        self.next_look_ns = now + TICK_NS;
        let patience = self.shared.patience_ns();
        let oldest = self.slots.in_state(State::Sent).map(|index| self.slots[index].sent_ns).min();
        if self.shared.fenced.is_some() {
            self.look_for_progress(wire, oldest);
        }
        match self.phase {
            Phase::Up if self.slots.sent > 0 => {
                let silent = now.saturating_sub(self.heard_ns) >= patience;
                if silent || oldest.is_some_and(|sent| now.saturating_sub(sent) >= PATIENCE_NS) {
                    self.lose(wire, Why::GivenUp);
                }
            }
            Phase::Greeting(_) if now.saturating_sub(self.dialled_ns) >= GREETING_NS => self.lose(wire, Why::Refused),
            _ => {}
        }
        if !matches!(self.phase, Phase::Up) && self.shared.fenced.is_none() {
            self.fail_held(wire, libc_errno::TIMEDOUT, now.saturating_sub(patience));
        }
    }

    /// Of a fenced disk, whose I/O waits until it is answered, or the disk is lost.
    fn look_for_progress(&mut self, wire: &mut impl Wire, oldest_sent_ns: Option<u64>) {
        let held = [State::Unsent, State::Sent].into_iter().flat_map(|state| self.slots.in_state(state));
        let held = held
            .map(|index| self.slots[index].part.start_ns)
            .chain(wire.waiting_since_ns().filter(|_| !self.others_stand))
            .chain(self.left_since_ns.filter(|_| !self.others_stand))
            .min();
        if let Some(since) = held {
            // Neither a request nor a lane that never has an answer is waited for without end because others have theirs.
            let own = oldest_sent_ns.into_iter().chain([since.max(self.answered_ns)]).min().unwrap_or(since);
            self.shared.lose_if_stuck(wire.now_ns(), since, own);
        }
        if self.shared.is_lost() {
            self.lose(wire, Why::Ended);
            self.fail_held(wire, libc_errno::NODEV, u64::MAX);
        }
    }

    /// Fails what is not with the server and was asked for at this time or before.
    pub(super) fn fail_held(&mut self, wire: &mut impl Wire, errno: i32, until_ns: u64) {
        self.left_since_ns = self.left_since_ns.filter(|since| *since > until_ns);
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
        if self.others_stand && !self.shared.is_lost() {
            return;
        }
        while wire.waiting_since_ns().is_some_and(|since| since <= until_ns) {
            wire.fail_waiting(errno);
        }
    }
}
