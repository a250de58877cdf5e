//! Clients that hang up before all that they have sent was begun.

use super::connection::{Connection, Ending};
use super::host::Host;
use super::input::{Input, header_bytes, payload_bytes};
use crate::event::Cause;
use crate::transmission::{Command, Verdict, judge};

impl<S: Copy> Connection<S> {
    /// Ends the connection if its client has hung up and the export has served other connections: requests that were not begun are dropped.
    /// The client may have repeated them on another connection, and sent newer writes after them. A client that has sent `DISC` is
    /// served to the end.
    #[inline]
    pub(super) fn leaves_unbegun<H: Host<Socket = S>>(&mut self, host: &mut H) -> bool {
        let unbegun = self.start < self.end || self.input != Input::Header;
        let others = self.session.as_ref().is_some_and(|session| session.export.has_others());
        if !unbegun || !others || self.ending != Ending::Not || !host.is_hung_up(self.socket) || self.says_goodbye(host)
        {
            return false;
        }
        self.drain(host, Cause::Gone { in_flight: self.requests.in_flight() });
        true
    }

    /// Returns whether the stream buffer holds the client's `DISC`.
    #[cold]
    fn says_goodbye<H: Host<Socket = S>>(&mut self, host: &mut H) -> bool {
        let Some(session) = &self.session else { return false };
        let terms = session.terms;
        let payload = match self.input {
            Input::Header | Input::Gather { .. } => 0,
            Input::Submit { left, .. } | Input::Discard { left, .. } => left,
            Input::Payload { left, filled, .. } => left - filled,
        };
        let mut at = u64::from(self.start) + u64::from(payload);
        while at < u64::from(self.end)
            && let Some(header) = self.header_at(host, &terms, at as u32)
        {
            match judge(&header, &terms) {
                Verdict::Serve(Command::Disconnect) => return true,
                Verdict::Close(_) => return false,
                verdict => at += header_bytes(&terms) as u64 + payload_bytes(&header, verdict),
            }
        }
        false
    }
}
