//! A session and what lies between it and the socket: nothing, or TLS.

use std::sync::Arc;

use braid_ring::{Carrier, RemoteCx};

use super::secure::Secure;
use super::session::Session;
use super::shared::Shared;
use super::wire::Wire;

/// One connection to an export.
pub(super) struct Lane {
    pub(super) session: Session,
    secure: Option<Box<Secure>>,
}

impl Lane {
    pub(super) fn new(shared: &Arc<Shared>, lane: u32) -> Lane {
        let secure = shared.trust.clone().map(|trust| Box::new(Secure::new(trust)));
        Lane { session: Session::new(Arc::clone(shared), lane), secure }
    }

    pub(super) fn work(&mut self, wire: &mut impl Wire) {
        match &mut self.secure {
            None => self.session.work(wire),
            Some(secure) => secure.on(&mut self.session, wire, |session, wire| session.work(wire)),
        }
    }

    pub(super) fn received(&mut self, wire: &mut impl Wire, result: i32) {
        match &mut self.secure {
            None => self.session.received(wire, result),
            Some(secure) => secure.received(&mut self.session, wire, result),
        }
    }

    pub(super) fn sent(&mut self, wire: &mut impl Wire, result: i32) {
        match &mut self.secure {
            None => self.session.sent(wire, result),
            Some(secure) => secure.sent(&mut self.session, wire, result),
        }
    }

    pub(super) fn timer(&mut self, wire: &mut impl Wire) {
        match &mut self.secure {
            None => self.session.timer(wire),
            Some(secure) => secure.on(&mut self.session, wire, |session, wire| session.timer(wire)),
        }
    }

    pub(super) fn leave(&mut self, wire: &mut impl Wire) {
        match &mut self.secure {
            None => self.session.leave(wire),
            Some(secure) => secure.on(&mut self.session, wire, |session, wire| session.leave(wire)),
        }
    }
}

impl Carrier for Lane {
    fn work(&mut self, cx: &mut RemoteCx<'_>) {
        Lane::work(self, cx);
    }
    fn received(&mut self, cx: &mut RemoteCx<'_>, result: i32) {
        Lane::received(self, cx, result);
    }
    fn sent(&mut self, cx: &mut RemoteCx<'_>, result: i32) {
        Lane::sent(self, cx, result);
    }
    fn timer(&mut self, cx: &mut RemoteCx<'_>) {
        Lane::timer(self, cx);
    }
    fn leave(&mut self, cx: &mut RemoteCx<'_>) {
        Lane::leave(self, cx);
    }
}
