//! Clients that hang up before all that they have sent was begun: they may have repeated it on another connection, and sent newer writes after
//! that. A client that has sent `DISC` is served to the end.

use super::connection::{Connection, Ending};
use super::host::Host;
use super::input::{Input, header_bytes, payload_bytes};
use crate::event::Cause;
use crate::transmission::{Command, Verdict, judge};

impl<S: Copy> Connection<S> {
    /// Begins the requests that have entered the engine, if the client is still there: each has its place in the order of writes by now
    /// ([`braid_engine::Shard::enter`]). Otherwise ends them and the connection.
    #[inline]
    pub(super) fn begin_entered<H: Host<Socket = S>>(&mut self, host: &mut H) {
        self.has_entered = false;
        let device = self.session.as_ref().expect("there are no requests before transmission").export.info().device;
        let has_hung_up = self.has_hung_up(host);
        host.settle_entered(device, !has_hung_up);
        if has_hung_up {
            self.drain(host, Cause::Gone { in_flight: self.requests.in_flight() });
        }
    }

    /// Ends the connection if its client has hung up while requests waited: they are dropped. This only saves work.
    #[cold]
    pub(super) fn leaves_unbegun<H: Host<Socket = S>>(&mut self, host: &mut H) -> bool {
        let unbegun = self.start < self.end || self.input != Input::Header;
        let leaves = unbegun && self.ending == Ending::Not && self.has_hung_up(host);
        if leaves {
            self.drain(host, Cause::Gone { in_flight: self.requests.in_flight() });
        }
        leaves
    }

    /// Returns whether the client has hung up and has not taken its leave, while it has other ways to the device.
    fn has_hung_up<H: Host<Socket = S>>(&mut self, host: &mut H) -> bool {
        if matches!(self.cause, Some(Cause::Left)) {
            return false;
        }
        // Alone it can harm no other client, and may end its side while it waits for replies.
        let others = self.session.as_ref().is_some_and(|session| session.export.has_others());
        // Over TLS the end may have been read behind the requests.
        let has_ended = matches!(self.cause, Some(Cause::Gone { .. }));
        others && (has_ended || host.is_hung_up(self.socket)) && !self.says_goodbye(host)
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
