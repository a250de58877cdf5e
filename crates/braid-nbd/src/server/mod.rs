//! The server on one shard: a bounded table of connections, driven by the shard's events.
//!
//! [`Server`] is generic over [`Host`], so that tests and fuzzers drive it without sockets. `frontend.rs` binds it to
//! the ring. Each call handles one event of one connection and marks the connection; the end of a batch sends all
//! replies that are ready and receives more.

mod config;
mod connection;
mod encrypted;
mod frontend;
mod hang_up;
mod host;
mod input;
mod output;
mod request;
mod secure;
mod share;
mod shared;
mod state;
mod status;

use std::sync::Arc;

use braid_engine::Completion;
use braid_export::Export;
use braid_export::admission::AdmissionState;

pub use config::{
    BYTES_MAX, BYTES_MAX_CONTESTED, EXTENTS_MAX, PREFETCH_REQUESTS_MAX, REQUESTS_MAX, SEGMENT_BYTES, ServerConfig,
};
pub use frontend::{Arrival, CountUnanswered, ExportsChanged, NbdFrontend, NewConnection};
pub use host::{Host, Loan, SEND_PIECES_MAX, SendPiece};

use crate::event::{Cause, EventQueue, NbdEvent};
use config::{PASSING_MAX, STALL_SHARE, TLS_TURNS};
use connection::{Connection, TOKEN_RECV, TOKEN_SEND};
use shared::Shared;
use state::{ConnectionStage, WaitReason};

/// The lowest bits of a token say which operation of the connection it is.
const KIND_BITS: u32 = 4;
const INDEX_BITS: u32 = 12;
const GENERATION_BITS: u32 = 48 - KIND_BITS - INDEX_BITS;

/// Timer tokens.
const TIMER_TICK: u64 = 0;
const TIMER_LIMITS: u64 = 1;
const TIMER_TLS: u64 = 2;

/// The connections of one shard.
pub struct Server<S> {
    connections: Vec<Option<Box<Connection<S>>>>,
    free: Vec<u16>,
    generation: u64,
    /// Connections to be processed at the end of the batch.
    dirty: Vec<u16>,
    tick_armed: bool,
    /// When the timer for throttled requests fires; `None` if it is not armed.
    limits_armed_ns: Option<u64>,
    shared: Shared,
}

impl<S: Copy> Server<S> {
    /// Returns a server without connections. Allocates its tables.
    pub fn new(config: ServerConfig, events: Arc<EventQueue>) -> Server<S> {
        let connections_max = config.connections_max.min(1 << INDEX_BITS);
        Server {
            connections: (0..connections_max).map(|_| None).collect(),
            free: (0..connections_max).rev().collect(),
            generation: 0,
            dirty: Vec::with_capacity(usize::from(connections_max)),
            tick_armed: false,
            limits_armed_ns: None,
            shared: Shared::new(ServerConfig { connections_max, ..config }, events),
        }
    }

    /// Returns the number of connections, whatever their stage.
    pub fn connections(&self) -> usize {
        self.connections.len() - self.free.len()
    }

    /// Adds a connection.
    pub fn connect<H: Host<Socket = S>>(&mut self, host: &mut H, socket: S, arrival: Arrival) {
        let peer = arrival.peer.clone();
        let refuse = |shared: &Shared, peer, cause| {
            shared.events.push(NbdEvent::Disconnected { peer, export: None, cause });
        };
        if self.connections() >= usize::from(self.shared.config.handshakes_max) {
            self.displace(host);
        }
        if self.shared.stopping || self.free.is_empty() {
            host.close(socket);
            let cause = if self.shared.stopping { Cause::Stopping } else { Cause::ShardFull };
            return refuse(&self.shared, peer, cause);
        }
        let index = self.free.pop().expect("just seen not to be empty");
        self.generation = (self.generation + 1) & ((1 << GENERATION_BITS) - 1);
        let token = self.generation << (KIND_BITS + INDEX_BITS) | u64::from(index) << KIND_BITS;
        let deadline_ns = host.now_ns() + self.shared.config.handshake_ns;
        match Connection::new(host, (index, token), socket, arrival, deadline_ns) {
            Some(connection) => {
                self.connections[usize::from(index)] = Some(connection);
                self.mark(index);
            }
            None => {
                self.free.push(index);
                host.close(socket);
                refuse(&self.shared, peer, Cause::ShardFull);
            }
        }
    }

    /// Ends the oldest handshake if too many are in progress.
    #[cold]
    fn displace<H: Host<Socket = S>>(&mut self, host: &mut H) {
        let handshakes =
            || self.connections.iter().flatten().filter_map(|it| Some((it.handshake_until_ns()?, it.token, it.index)));
        if handshakes().count() < usize::from(self.shared.config.handshakes_max) {
            return;
        }
        let Some((_, _, oldest)) = handshakes().min() else { return };
        if let Some(connection) = &mut self.connections[usize::from(oldest)] {
            connection.fail(host, Cause::HandshakeDisplaced);
            self.mark(oldest);
        }
    }

    /// Marks a connection for processing at the end of the batch.
    #[inline]
    fn mark(&mut self, index: u16) {
        if let Some(connection) = &mut self.connections[usize::from(index)]
            && !std::mem::replace(&mut connection.dirty, true)
        {
            self.dirty.push(index);
        }
    }

    /// Handles a completion of the engine.
    #[inline]
    pub fn io_done<H: Host<Socket = S>>(&mut self, host: &mut H, completion: &Completion) {
        let (index, segment) = Shared::split_tag(completion.tag);
        let Some(Some(connection)) = self.connections.get_mut(usize::from(index)) else {
            debug_assert!(false, "a connection outlives what it gave the engine");
            return;
        };
        connection.io_done(host, &mut self.shared, segment, completion);
        self.mark(index);
    }

    /// Frees the buffer of a late I/O that has ended.
    pub fn released<H: Host<Socket = S>>(&mut self, host: &mut H, tag: u64) {
        if let Some((buf, len)) = self.shared.released(tag)
            && buf != braid_engine::Buf::NONE
        {
            host.free(buf, len as usize);
        }
    }

    /// Handles the completion of a receive or send: a byte count, or a negative error number.
    #[inline]
    pub fn net_done<H: Host<Socket = S>>(&mut self, host: &mut H, token: u64, result: i32) {
        let index = (token >> KIND_BITS & ((1 << INDEX_BITS) - 1)) as u16;
        let Some(Some(connection)) = self.connections.get_mut(usize::from(index)) else { return };
        let kind = token & ((1 << KIND_BITS) - 1);
        if connection.token != token - kind {
            debug_assert!(false, "a connection outlives what it gave the socket");
            return;
        }
        match kind {
            TOKEN_RECV => connection.received(host, &mut self.shared, result),
            TOKEN_SEND => connection.sent(host, &mut self.shared, result),
            _ => debug_assert!(false, "there is no such kind of token"),
        }
        self.mark(index);
    }

    /// Handles a timer. The tick checks all running time limits. The other timers only wake the shard: the end of the
    /// batch serves the waiting connections.
    pub fn timer<H: Host<Socket = S>>(&mut self, host: &mut H, token: u64) {
        match token {
            TIMER_LIMITS => return self.limits_armed_ns = None,
            TIMER_TLS => return,
            _ => {}
        }
        self.tick_armed = false;
        for index in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[index] else { continue };
            if connection.is_timed() {
                connection.check_time(host, &self.shared);
                self.mark(index as u16);
            }
        }
        let Some((first, since_ns)) = self.first_waiter() else { return };
        let waited = host.now_ns().saturating_sub(since_ns);
        if waited >= self.shared.config.replies_ns / STALL_SHARE {
            self.disconnect_stalled(host);
        }
        if waited >= self.shared.config.memory_ns {
            self.shared.expired_waiter = Some(first);
            self.serve_waiters(host);
            self.shared.expired_waiter = None;
        }
    }

    /// Returns the first waiter for memory, and from when its time limits run: from when it became the first or, if
    /// that is later, from when another first one was served. `None` if the first one has not been retried as such.
    ///
    /// A connection whose export is over its share may be passed by the one behind it, which has waited less. So each
    /// has a time of its own. It outlasts being passed: where all exports are over their shares, the connections pass
    /// each other in every turn, and still reach their time limits.
    fn first_waiter(&self) -> Option<(u16, u64)> {
        let first = *self.shared.waiters.front()?;
        let since_ns = self.connections[usize::from(first)].as_ref()?.first_since_ns?;
        Some((first, since_ns.max(self.shared.first_served_ns)))
    }

    /// Disconnects one client to free memory that others wait for: of the clients that take nothing of their replies,
    /// the one that holds the most memory. The next tick checks whether that was enough.
    #[cold]
    fn disconnect_stalled<H: Host<Socket = S>>(&mut self, host: &mut H) {
        let (now, limit) = (host.now_ns(), self.shared.config.replies_ns / STALL_SHARE);
        let stalled = |it: &&mut Box<Connection<S>>| {
            it.send_out && now.saturating_sub(it.send_since_ns) >= limit && it.requests.held() > 0
        };
        let most = self.connections.iter_mut().flatten().filter(stalled).max_by_key(|it| it.requests.held());
        if let Some(connection) = most {
            let index = connection.index;
            connection.fail(host, Cause::ReplyTimeout);
            self.mark(index);
        }
    }

    /// Applies changes of exports, limits and admission. Connections of removed exports and of addresses that are no
    /// longer allowed are drained. Connections whose admission was revoked are closed at once. Waiting handshakes and
    /// throttled requests are retried.
    pub fn exports_changed<H: Host<Socket = S>>(&mut self, host: &mut H) {
        for index in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[index] else { continue };
            let Some(session) = &connection.session else {
                connection.pump(host, &mut self.shared);
                self.mark(index as u16);
                continue;
            };
            if session.pass.as_ref().is_some_and(|pass| pass.state() == AdmissionState::Cut) {
                connection.fail(host, Cause::AdmissionRevoked);
            } else if session.export.is_removed() {
                connection.drain(host, Cause::ExportRemoved);
            } else if !session.export.admits(connection.address) {
                connection.drain(host, Cause::NotAllowed);
            } else if connection.due_ns.take().is_some() {
                // The request is throttled anew, by the new limits.
                self.shared.forget_throttled(index as u16);
                connection.pump(host, &mut self.shared);
            }
            self.mark(index as u16);
        }
    }

    /// Returns the number of unanswered requests of an export on this shard.
    pub fn unanswered(&self, export: &Arc<Export>) -> u32 {
        let of = |connection: &Connection<S>| {
            connection.session.as_ref().is_some_and(|session| session.export.is_of(export))
        };
        let connections = self.connections.iter().flatten();
        connections.filter(|connection| of(connection)).map(|connection| connection.requests.in_flight()).sum()
    }

    /// Stops accepting connections and requests. Requests in flight are answered.
    pub fn stop<H: Host<Socket = S>>(&mut self, host: &mut H) {
        self.shared.stopping = true;
        for index in 0..self.connections.len() {
            if let Some(connection) = &mut self.connections[index] {
                connection.drain(host, Cause::Stopping);
                self.mark(index as u16);
            }
        }
    }

    /// Ends a batch: called once per turn of the shard's loop, after everything else.
    #[inline]
    pub fn end_of_batch<H: Host<Socket = S>>(&mut self, host: &mut H) {
        if !self.shared.waiters.is_empty() {
            // Update the exports' shares first, so that memory freed in this turn no longer counts.
            for &index in &self.dirty {
                if let Some(connection) = &mut self.connections[usize::from(index)] {
                    connection.report_memory(&mut self.shared);
                }
            }
            self.serve_waiters(host);
        }
        self.serve_limited(host);
        self.serve_tls(host);
        let mut timed = !self.shared.waiters.is_empty();
        for k in 0..self.dirty.len() {
            let index = self.dirty[k];
            let Some(connection) = &mut self.connections[usize::from(index)] else { continue };
            connection.dirty = false;
            if connection.settle(host, &mut self.shared) {
                self.connections[usize::from(index)] = None;
                self.free.push(index);
                self.shared.waiters.retain(|&waiter| waiter != index);
                self.shared.tls_waiters.retain(|&waiter| waiter != index);
            } else {
                timed |= connection.is_timed();
            }
        }
        self.dirty.clear();
        if timed && !self.tick_armed {
            self.tick_armed = host.timer_at(host.now_ns() + self.shared.config.tick_ns, TIMER_TICK);
        }
        if let Some(due) = self.shared.throttled_until_ns()
            && self.limits_armed_ns.is_none_or(|armed| due < armed)
        {
            self.limits_armed_ns = host.timer_at(due, TIMER_LIMITS).then_some(due);
        }
        if !self.shared.tls_waiters.is_empty() {
            host.timer_at(host.now_ns(), TIMER_TLS);
        }
    }

    /// Serves connections whose requests the limits now allow.
    #[inline]
    fn serve_limited<H: Host<Socket = S>>(&mut self, host: &mut H) {
        while let Some(index) = self.shared.pop_throttled(host.now_ns()) {
            if let Some(connection) = &mut self.connections[usize::from(index)]
                && connection.wait == WaitReason::Limits
            {
                connection.pump(host, &mut self.shared);
                self.mark(index);
            }
        }
    }

    /// Continues TLS handshakes that wait for their turn.
    #[inline]
    fn serve_tls<H: Host<Socket = S>>(&mut self, host: &mut H) {
        while self.shared.tls_turns > 0
            && let Some(index) = self.shared.tls_waiters.pop_front()
        {
            if let Some(connection) = &mut self.connections[usize::from(index)] {
                connection.pump(host, &mut self.shared);
                self.mark(index);
            }
        }
        self.shared.tls_turns = TLS_TURNS;
    }

    /// Retries the connections that wait for memory, in queue order, until one still gets none: it stays the first. A
    /// connection that has made progress and needs more memory moves to the end of the queue. So does one whose export
    /// is over its share, after it has freed what it had gathered. Then up to [`PASSING_MAX`] connections behind the
    /// first one are retried, which get memory only within their shares.
    fn serve_waiters<H: Host<Socket = S>>(&mut self, host: &mut H) {
        let mut held_back = 0;
        while held_back < self.shared.waiters.len()
            && let Some(&first) = self.shared.waiters.front()
        {
            let Some(connection) = &mut self.connections[usize::from(first)] else {
                self.shared.waiters.pop_front();
                continue;
            };
            let before = connection.progress;
            if connection.wait == WaitReason::Memory && connection.stage == ConnectionStage::Open {
                connection.pump(host, &mut self.shared);
                if connection.wait == WaitReason::Memory && connection.progress == before {
                    if !connection.export_over_share {
                        break;
                    }
                    connection.release_gathered(host);
                    self.shared.waiters.rotate_left(1);
                    held_back += 1;
                    continue;
                }
            }
            let waits_again = connection.wait == WaitReason::Memory;
            connection.first_since_ns = None;
            self.shared.waiters.pop_front();
            self.shared.first_served_ns = host.now_ns();
            if waits_again {
                self.shared.waiters.push_back(first);
            }
            self.mark(first);
        }
        self.serve_behind_first(host);
    }

    /// Retries a limited number of connections behind the first waiter, and moves each to the end of the queue, so that
    /// the others are retried in later turns.
    fn serve_behind_first<H: Host<Socket = S>>(&mut self, host: &mut H) {
        let behind = self.shared.waiters.len().saturating_sub(1);
        for _ in 0..behind.min(PASSING_MAX) {
            let Some(index) = self.shared.waiters.remove(1) else { return };
            self.shared.waiters.push_back(index);
            let Some(connection) = &mut self.connections[usize::from(index)] else { continue };
            if connection.wait != WaitReason::Memory || connection.stage != ConnectionStage::Open {
                continue;
            }
            let before = connection.progress;
            connection.pump(host, &mut self.shared);
            if connection.progress != before || connection.wait != WaitReason::Memory {
                connection.first_since_ns = None;
                if connection.wait != WaitReason::Memory {
                    self.shared.waiters.retain(|&waiter| waiter != index);
                }
                self.mark(index);
            }
        }
    }
}
