//! The connections of a shard to an export. Each is a session, with or without TLS between it and the socket.

use std::sync::Arc;

use braid_ring::{Carrier, RemoteCx};

use super::secure::Secure;
use super::session::Session;
use super::shared::Shared;
use super::wire::Wire;

/// One connection to an export.
pub(super) struct RemoteConnection {
    pub(super) session: Session,
    secure: Option<Box<Secure>>,
}

impl RemoteConnection {
    pub(super) fn new(shared: &Arc<Shared>, connection: u32) -> RemoteConnection {
        let secure = shared.tls_peer.clone().map(|tls_peer| Box::new(Secure::new(tls_peer)));
        RemoteConnection { session: Session::new(Arc::clone(shared), connection), secure }
    }

    pub(super) fn work(&mut self, wire: &mut impl Wire) {
        match &mut self.secure {
            None => self.session.work(wire),
            Some(secure) => secure.drive(&mut self.session, wire, |session, wire| session.work(wire)),
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
            Some(secure) => secure.drive(&mut self.session, wire, |session, wire| session.timer(wire)),
        }
    }

    pub(super) fn disconnect(&mut self, wire: &mut impl Wire) {
        match &mut self.secure {
            None => self.session.disconnect(wire),
            Some(secure) => secure.drive(&mut self.session, wire, |session, wire| session.disconnect(wire)),
        }
    }
}

/// The connections of one shard to an export. They take work from a common queue.
pub(super) struct ShardConnections {
    connections: Box<[RemoteConnection]>,
    /// The connections in ascending order of load: the least loaded takes first.
    order: Vec<usize>,
}

impl ShardConnections {
    pub(super) fn new(shared: &Arc<Shared>, shard: u32) -> ShardConnections {
        let count = shared.connections;
        let connections: Box<[RemoteConnection]> =
            (0..count).map(|connection| RemoteConnection::new(shared, shard * count + connection)).collect();
        ShardConnections { order: (0..connections.len()).collect(), connections }
    }

    fn work_all<W: Wire>(&mut self, wire: &mut W, choose: impl Fn(&mut W, usize)) {
        let connections = &mut self.connections;
        self.order.sort_unstable_by_key(|connection| connections[*connection].session.load());
        let connected = connections.iter().filter(|connection| connection.session.is_connected()).count();
        for &at in &self.order {
            choose(wire, at);
            let session = &mut connections[at].session;
            session.other_connected = connected > usize::from(session.is_connected());
            connections[at].work(wire);
        }
    }
}

impl Carrier for ShardConnections {
    fn work(&mut self, cx: &mut RemoteCx<'_>) {
        self.work_all(cx, |cx, connection| cx.select_connection(connection));
    }
    fn received(&mut self, cx: &mut RemoteCx<'_>, connection: usize, result: i32) {
        self.connections[connection].received(cx, result);
    }
    fn sent(&mut self, cx: &mut RemoteCx<'_>, connection: usize, result: i32) {
        self.connections[connection].sent(cx, result);
    }
    fn timer(&mut self, cx: &mut RemoteCx<'_>, connection: usize) {
        self.connections[connection].timer(cx);
    }
    fn close(&mut self, cx: &mut RemoteCx<'_>) {
        for (at, connection) in self.connections.iter_mut().enumerate() {
            cx.select_connection(at);
            connection.disconnect(cx);
        }
    }
}
