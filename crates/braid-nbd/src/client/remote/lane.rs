//! The connections of a shard: each is a session and what lies between it and the socket, nothing or TLS.

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

/// The connections of one shard to an export, which take from one line of what waits.
pub(super) struct Lanes {
    lanes: Box<[Lane]>,
    /// By how much each has to do: who has least takes first.
    order: Vec<usize>,
}

impl Lanes {
    pub(super) fn new(shared: &Arc<Shared>, shard: u32) -> Lanes {
        let count = shared.connections;
        let lanes: Box<[Lane]> = (0..count).map(|lane| Lane::new(shared, shard * count + lane)).collect();
        Lanes { order: (0..lanes.len()).collect(), lanes }
    }

    fn work_all<W: Wire>(&mut self, wire: &mut W, choose: impl Fn(&mut W, usize)) {
        let lanes = &mut self.lanes;
        self.order.sort_unstable_by_key(|lane| lanes[*lane].session.load());
        let standing = lanes.iter().filter(|lane| lane.session.stands()).count();
        for &at in &self.order {
            choose(wire, at);
            let session = &mut lanes[at].session;
            session.others_stand = standing > usize::from(session.stands());
            lanes[at].work(wire);
        }
    }
}

impl Carrier for Lanes {
    fn work(&mut self, cx: &mut RemoteCx<'_>) {
        self.work_all(cx, |cx, lane| cx.select_connection(lane));
    }
    fn received(&mut self, cx: &mut RemoteCx<'_>, connection: usize, result: i32) {
        self.lanes[connection].received(cx, result);
    }
    fn sent(&mut self, cx: &mut RemoteCx<'_>, connection: usize, result: i32) {
        self.lanes[connection].sent(cx, result);
    }
    fn timer(&mut self, cx: &mut RemoteCx<'_>, connection: usize) {
        self.lanes[connection].timer(cx);
    }
    fn close(&mut self, cx: &mut RemoteCx<'_>) {
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            cx.select_connection(at);
            lane.leave(cx);
        }
    }
}
