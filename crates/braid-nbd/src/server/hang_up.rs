//! Clients that disconnect before all of their requests have begun: such a client may have resent the requests on
//! another connection, followed by newer writes. A client that has sent `DISC` is served to the end.

use super::connection::Connection;
use super::host::Host;
use super::input::{header_bytes, payload_bytes};
use super::state::{ConnectionStage, InputState};
use crate::event::Cause;
use crate::transmission::{Command, RequestDecision, validate};

impl<S: Copy> Connection<S> {
    /// Begins the entered requests if the client is still connected: by now each has its place in the order of writes
    /// ([`braid_engine::Shard::enter`]). Otherwise cancels them and ends the connection.
    #[inline]
    pub(super) fn begin_entered<H: Host<Socket = S>>(&mut self, host: &mut H) {
        self.has_entered = false;
        let device = self.session.as_ref().expect("there are no requests before transmission").export.info().device;
        let has_hung_up = self.has_hung_up(host);
        host.begin_or_cancel_entered(device, !has_hung_up);
        if has_hung_up {
            self.drain(host, Cause::ConnectionClosed { in_flight: self.requests.in_flight() });
        }
    }

    /// Ends the connection, and drops its waiting requests, if its client has disconnected. This only saves work.
    #[cold]
    pub(super) fn end_if_disconnected<H: Host<Socket = S>>(&mut self, host: &mut H) -> bool {
        let unstarted = self.start < self.end || self.input != InputState::Header;
        let ends = unstarted && self.stage == ConnectionStage::Open && self.has_hung_up(host);
        if ends {
            self.drain(host, Cause::ConnectionClosed { in_flight: self.requests.in_flight() });
        }
        ends
    }

    /// Returns whether the client has disconnected without `DISC` and may reach the device by another path.
    fn has_hung_up<H: Host<Socket = S>>(&mut self, host: &mut H) -> bool {
        if matches!(self.cause, Some(Cause::Disconnected)) {
            return false;
        }
        // A sole client can harm no other, and may shut down its side while it waits for replies.
        let others = self.session.as_ref().is_some_and(|session| session.export.may_have_other_paths());
        // With TLS, the end may have been read after the requests.
        let has_ended = matches!(self.cause, Some(Cause::ConnectionClosed { .. }));
        others && (has_ended || host.is_hung_up(self.socket)) && !self.has_buffered_disc(host)
    }

    /// Returns whether the stream buffer holds a `DISC` of the client.
    #[cold]
    fn has_buffered_disc<H: Host<Socket = S>>(&mut self, host: &mut H) -> bool {
        let Some(session) = &self.session else { return false };
        let terms = session.terms;
        let payload = match self.input {
            InputState::Header | InputState::Gather { .. } => 0,
            InputState::Submit { left, .. } | InputState::Discard { left, .. } => left,
            InputState::Payload { left, filled, .. } => left - filled,
        };
        let mut at = u64::from(self.start) + u64::from(payload);
        while at < u64::from(self.end)
            && let Some(header) = self.header_at(host, &terms, at as u32)
        {
            match validate(&header, &terms) {
                RequestDecision::Serve(Command::Disconnect) => return true,
                RequestDecision::Close(_) => return false,
                decision => at += header_bytes(&terms) as u64 + payload_bytes(&header, decision),
            }
        }
        false
    }
}
