//! Cancels the requests of clients that have disconnected before the requests have begun.
//!
//! A client whose connection breaks may resend its requests on another connection, and write to the same ranges
//! afterwards. If this server then began the requests of the broken connection, they would overwrite the newer data. A
//! client that has sent `DISC` does not resend: its requests are served to the end.

use super::connection::Connection;
use super::host::Host;
use super::input::{header_bytes, payload_bytes};
use super::state::{ConnectionStage, InputState};
use crate::event::Cause;
use crate::transmission::{Command, RequestDecision, validate};

impl<S: Copy> Connection<S> {
    /// Begins the entered requests if the client is still connected. Each has claimed its range
    /// ([`braid_engine::Shard::enter`]) before this check, so a request that the client sends on another connection
    /// after this one has broken is ordered after it. Otherwise cancels the requests and drains the connection.
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

    /// Drains the connection and drops its waiting requests if its client has disconnected; returns whether it did.
    /// This only saves work: `begin_entered` would cancel the requests.
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
        // A client without another path to the device cannot have resent anything. It may shut down its sending side
        // and still wait for replies.
        let others = self.session.as_ref().is_some_and(|session| session.export.may_have_other_paths());
        // With TLS, the pump may have read the client's close_notify after the requests, in the same turn.
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
