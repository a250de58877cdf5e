//! The node's side of a replica or a witness: which controller may use it, and its register.

use std::collections::VecDeque;

use braid_format::Uuid;

use super::register::{Register, Vote};

/// Maximum number of pending requests.
const REQUESTS_MAX: usize = 64;

/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 256;

/// Maximum number of concurrent operations.
const OPERATIONS_MAX: usize = 64;

/// Maximum number of connections of one session.
pub const SESSION_CONNECTIONS_MAX: u16 = 256;

/// A connection's id, assigned by the caller; no id is used twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionId(pub u64);

/// A controller's request to a voter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VoterRequest {
    /// Raise the epoch: only this controller is answered from now on.
    Raise {
        /// Higher than any before.
        epoch: u64,
        /// The requesting controller.
        controller: Uuid,
    },
    /// Record a vote.
    Cast {
        /// The requesting controller's epoch, which is also the vote's.
        epoch: u64,
        /// The requesting controller.
        controller: Uuid,
        /// The vote.
        vote: Vote,
        /// The boot of the voter's node under which the controller trusts its replica; nil: it has none, or is not
        /// trusted. If the node has rebooted since, the register continues to show that.
        boot: Uuid,
    },
    /// Check that this epoch is still the current one.
    Heartbeat {
        /// The requesting controller's epoch.
        epoch: u64,
        /// The requesting controller.
        controller: Uuid,
    },
    /// Record that the controller has stopped, and answers nothing any more.
    Release {
        /// The requesting controller's epoch.
        epoch: u64,
        /// The requesting controller.
        controller: Uuid,
    },
}

/// A voter's reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VoterReply {
    /// The epoch is durable, and no I/O of older epochs is in flight any more.
    Raised {
        /// The previous register.
        before: Register,
        /// The current boot of the node.
        boot: Uuid,
    },
    /// The vote is durable, or a later one of the same controller is.
    Cast,
    /// This epoch is still the current one.
    Alive,
    /// The register says that the controller has stopped.
    Released,
}

/// A refusal: the voter answers another controller. A connection whose own epoch is current is refused if it is late,
/// if a higher epoch is being raised, if there are too many connections, or if the register cannot be made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VoterRefusal {
    /// The current epoch.
    pub epoch: u64,
}

/// The origin of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionOrigin {
    /// The controller's epoch.
    pub epoch: u64,
    /// The controller.
    pub controller: Uuid,
    /// The connections of one session are used side by side. A later session has a higher number, and ends earlier
    /// ones.
    pub session: u64,
    /// The number of the connection within its session, below [`SESSION_CONNECTIONS_MAX`].
    pub connection: u16,
    /// The number of the attempt to open this connection. A later attempt has a higher number, and ends earlier
    /// attempts of the same connection only.
    pub attempt: u64,
}

/// The reply to a connection that introduces itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdmissionResult {
    /// Its I/O may begin.
    Admitted,
    /// I/O of earlier connections is in flight: [`FenceAction::Admit`] follows when it has ended.
    Waits,
    /// The connection is to be closed.
    Refused(VoterRefusal),
}

/// An action to be done for a fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FenceAction {
    /// Make this register durable, then call [`Fence::written`].
    Write(Register),
    /// Close a connection: I/O that still arrives on it is not begun.
    Cut(ConnectionId),
    /// Let the I/O of a waiting connection begin.
    Admit(ConnectionId),
    /// Reply to the request with this number.
    Reply(u64, Result<VoterReply, VoterRefusal>),
}

struct Connection {
    id: ConnectionId,
    session: u64,
    number: u16,
    attempt: u64,
    /// I/Os in the kernel.
    in_flight: u32,
    open: bool,
    admitted: bool,
}

impl Connection {
    /// Returns whether I/O of this connection must have ended before the given one is admitted.
    fn comes_before(&self, session: u64, number: u16, attempt: u64) -> bool {
        self.session < session || (self.session == session && self.number == number && self.attempt < attempt)
    }
}

/// The fence of a voter.
///
/// The caller reports every I/O of a connection ([`Fence::begin`], [`Fence::end`]); an I/O that was refused must not
/// reach a disk. [`Fence::pop`] returns the actions to be done.
pub struct Fence {
    register: Register,
    boot: Uuid,
    connections: Vec<Connection>,
    /// The sessions of the operations in progress.
    operations: Vec<u64>,
    /// The highest session that was accepted under this epoch, even if it still waits: no earlier one is accepted any
    /// more.
    session: u64,
    /// The highest accepted attempt of each connection of that session, by the connection's number.
    attempts: Vec<(u16, u64)>,
    requests: VecDeque<(u64, VoterRequest)>,
    /// The register being made durable, for the first pending request.
    writing: Option<Register>,
    /// Nothing can be made durable any more: no request is answered.
    failed: bool,
    actions: VecDeque<FenceAction>,
}

impl Fence {
    /// Creates a fence from a durable register, under this boot of the node. I/O of an earlier process must have ended.
    pub fn new(register: Register, boot: Uuid) -> Fence {
        Fence {
            register,
            boot,
            connections: Vec::with_capacity(CONNECTIONS_MAX),
            operations: Vec::with_capacity(OPERATIONS_MAX),
            session: 0,
            attempts: Vec::with_capacity(usize::from(SESSION_CONNECTIONS_MAX)),
            requests: VecDeque::with_capacity(REQUESTS_MAX),
            writing: None,
            failed: false,
            actions: VecDeque::new(),
        }
    }

    /// Returns the current boot of the node.
    pub fn boot(&self) -> Uuid {
        self.boot
    }

    /// Returns the durable register.
    pub fn register(&self) -> &Register {
        &self.register
    }

    /// Submits a request under a number; [`FenceAction::Reply`] follows. Returns false if too many requests are
    /// pending, or nothing can be made durable any more; no reply follows then, as if the network had lost it.
    pub fn request(&mut self, number: u64, ask: VoterRequest) -> bool {
        if self.failed || self.requests.len() == REQUESTS_MAX {
            return false;
        }
        self.requests.push_back((number, ask));
        self.go_on();
        true
    }

    /// Returns whether a later session, or the same or a later attempt of this connection, was accepted before.
    pub fn is_late(&self, caller: &ConnectionOrigin) -> bool {
        let is_again = |(number, last): &(u16, u64)| *number == caller.connection && *last >= caller.attempt;
        caller.session < self.session || (caller.session == self.session && self.attempts.iter().any(is_again))
    }

    /// Introduces a connection. Unless it is refused, it cuts the connections of earlier sessions, and earlier attempts
    /// of the same connection; it waits until their I/O, and the operations of earlier sessions, have ended.
    pub fn hello(&mut self, id: ConnectionId, caller: &ConnectionOrigin) -> AdmissionResult {
        let ConnectionOrigin { epoch, controller, session, connection: number, attempt } = *caller;
        let refused = AdmissionResult::Refused(VoterRefusal { epoch: self.register.epoch });
        // Before the first raise there is no epoch that a controller could have.
        let other = epoch == 0 || (epoch, controller) != (self.register.epoch, self.register.controller);
        let full = self.connections.len() == CONNECTIONS_MAX || number >= SESSION_CONNECTIONS_MAX;
        if other || self.is_raising() || self.is_late(caller) || full || self.failed {
            return refused;
        }
        if session > self.session {
            self.session = session;
            self.attempts.clear();
        }
        self.attempts.retain(|(of, _)| *of != number);
        self.attempts.push((number, attempt));
        self.cut_where(|connection| connection.comes_before(session, number, attempt));
        let admitted = self.is_drained(session, number, attempt);
        self.connections.push(Connection { id, session, number, attempt, in_flight: 0, open: true, admitted });
        if admitted { AdmissionResult::Admitted } else { AdmissionResult::Waits }
    }

    /// Reports that an I/O of a connection is about to be submitted to a disk. Returns false if it must not be.
    #[must_use]
    pub fn begin(&mut self, id: ConnectionId) -> bool {
        let found = self.connections.iter_mut().find(|c| c.id == id && c.open && c.admitted);
        found.map(|connection| connection.in_flight += 1).is_some()
    }

    /// Reports that the kernel has completed an I/O.
    pub fn end(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.iter_mut().find(|c| c.id == id) {
            connection.in_flight -= 1;
        }
        self.drained();
    }

    /// Cuts these connections, whichever controller they belong to; a controller may reconnect.
    pub fn cut(&mut self, which: impl Fn(ConnectionId) -> bool) {
        self.cut_where(|connection| which(connection.id));
        self.drained();
    }

    /// Reports that a connection is closed; I/O of it may be in flight.
    pub fn closed(&mut self, id: ConnectionId) {
        self.connections.iter_mut().filter(|c| c.id == id).for_each(|c| c.open = false);
        self.drained();
    }

    /// Reports that the controller begins an operation on the replica's content other than by a connection, such as
    /// taking a snapshot. The operation counts like I/O of the session: later sessions wait for its end. Returns false
    /// if it must not begin: the session must be the one that was accepted last (0 before the first), so that an
    /// operation that was requested earlier, and arrives late, does nothing; and the controller must not have released
    /// the volume.
    #[must_use]
    pub fn begin_operation(&mut self, epoch: u64, controller: Uuid, session: u64) -> bool {
        let is_its = epoch > 0 && (epoch, controller) == (self.register.epoch, self.register.controller);
        let is_last = session == self.session;
        let begins = is_its
            && is_last
            && !self.register.released
            && !self.is_raising()
            && !self.failed
            && self.writing.is_none_or(|next| next.epoch == epoch)
            && self.operations.len() < OPERATIONS_MAX;
        if begins {
            self.operations.push(session);
        }
        begins
    }

    /// Reports that an operation of this session has ended, with no I/O in flight.
    pub fn end_operation(&mut self, session: u64) {
        if let Some(at) = self.operations.iter().position(|of| *of == session) {
            self.operations.swap_remove(at);
        }
        self.drained();
    }

    /// Reports that the register was made durable, or that this failed.
    pub fn written(&mut self, succeeded: bool) {
        let Some(register) = self.writing.take() else { return };
        if !succeeded {
            // It is unknown which of the two registers is on the disk: the voter behaves as if its node were
            // unreachable.
            self.failed = true;
            self.requests.clear();
            return self.cut_where(|_| true);
        }
        let before = std::mem::replace(&mut self.register, register);
        if before.epoch < register.epoch {
            self.session = 0;
            self.attempts.clear();
        }
        let Some((number, ask)) = self.requests.pop_front() else { return };
        self.actions.push_back(FenceAction::Reply(number, Ok(self.answer(&ask, before))));
        self.go_on();
    }

    /// Returns whether no connection is open, no I/O is in flight, and no operation is in progress.
    pub fn is_idle(&self) -> bool {
        self.connections.is_empty() && self.operations.is_empty()
    }

    /// Recovers from a failed write with the register that was read back, and that all copies hold now. Only while
    /// [`Fence::is_idle`]. The fence starts again as after a restart, but earlier sessions stay refused.
    pub fn recovered(&mut self, register: Register) {
        debug_assert!(self.failed && self.is_idle());
        if (register.epoch, register.controller) != (self.register.epoch, self.register.controller) {
            self.session = 0;
            self.attempts.clear();
        }
        self.register = register;
        self.failed = false;
    }

    /// Withdraws a request that its sender no longer waits for: it is not begun. A register that is being made durable
    /// already continues.
    pub fn withdraw(&mut self, number: u64) {
        let begun = usize::from(self.writing.is_some());
        let Some(at) = self.requests.iter().skip(begun).position(|(of, _)| *of == number) else { return };
        self.requests.remove(begun + at);
        self.go_on();
    }

    /// Returns the next action.
    pub fn pop(&mut self) -> Option<FenceAction> {
        self.actions.pop_front()
    }

    fn answer(&self, ask: &VoterRequest, before: Register) -> VoterReply {
        match ask {
            VoterRequest::Raise { .. } => VoterReply::Raised { before, boot: self.boot },
            VoterRequest::Cast { .. } => VoterReply::Cast,
            VoterRequest::Heartbeat { .. } => VoterReply::Alive,
            VoterRequest::Release { .. } => VoterReply::Released,
        }
    }

    fn is_raising(&self) -> bool {
        let raises =
            |ask: &VoterRequest| matches!(ask, VoterRequest::Raise { epoch, .. } if *epoch > self.register.epoch);
        self.requests.front().is_some_and(|(_, ask)| raises(ask))
    }

    /// Returns whether no I/O of earlier connections, as seen from this one, is in flight.
    fn is_drained(&self, session: u64, number: u16, attempt: u64) -> bool {
        let of_others = self.operations.iter().any(|of| *of < session);
        !of_others && !self.connections.iter().any(|before| before.comes_before(session, number, attempt))
    }

    fn cut_where(&mut self, which: impl Fn(&Connection) -> bool) {
        for connection in self.connections.iter_mut().filter(|c| c.open && which(c)) {
            connection.open = false;
            self.actions.push_back(FenceAction::Cut(connection.id));
        }
        self.connections.retain(|c| c.open || c.in_flight > 0);
    }

    fn drained(&mut self) {
        self.connections.retain(|c| c.open || c.in_flight > 0);
        for k in 0..self.connections.len() {
            let Connection { id, session, number, attempt, open, admitted, .. } = self.connections[k];
            if open && !admitted && self.is_drained(session, number, attempt) {
                self.connections[k].admitted = true;
                self.actions.push_back(FenceAction::Admit(id));
            }
        }
        self.go_on();
    }

    /// Processes pending requests in order.
    fn go_on(&mut self) {
        while self.writing.is_none()
            && let Some((number, ask)) = self.requests.front().copied()
        {
            let now = self.register;
            // Before the first raise no controller has epoch 0.
            let is_of = |epoch, controller| epoch > 0 && (epoch, controller) == (now.epoch, now.controller);
            let (next, is_its) = match ask {
                VoterRequest::Raise { epoch, controller } => {
                    let raised = is_of(epoch, controller);
                    let next = Register { epoch, controller, released: false, ..now };
                    (if raised { now } else { next }, raised || epoch > now.epoch)
                }
                VoterRequest::Cast { epoch, controller, vote, boot } => {
                    let newer = vote.order() > now.vote.order();
                    let next = Register { vote, boot, ..now };
                    (if newer { next } else { now }, is_of(epoch, controller))
                }
                VoterRequest::Heartbeat { epoch, controller } => (now, is_of(epoch, controller)),
                VoterRequest::Release { epoch, controller } => {
                    (Register { released: true, ..now }, is_of(epoch, controller))
                }
            };
            if !is_its {
                self.requests.pop_front();
                self.actions.push_back(FenceAction::Reply(number, Err(VoterRefusal { epoch: now.epoch })));
                continue;
            }
            if next == now {
                self.requests.pop_front();
                self.actions.push_back(FenceAction::Reply(number, Ok(self.answer(&ask, now))));
                continue;
            }
            if next.epoch > now.epoch {
                // No connection belongs to the new epoch: none was admitted under it.
                self.cut_where(|_| true);
                let is_drained = self.connections.is_empty() && self.operations.is_empty();
                if !is_drained {
                    return;
                }
            }
            self.writing = Some(next);
            self.actions.push_back(FenceAction::Write(next));
        }
    }
}
