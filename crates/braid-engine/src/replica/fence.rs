//! The node's side of one replica, or of a witness: who may use it, and what it has promised.

use std::collections::VecDeque;

use braid_format::Uuid;

use super::planted::{Planted, planted};
use super::register::{Register, Vote};

/// Most questions that wait.
const ASKS_MAX: usize = 64;

/// Most connections at a time.
const CONNECTIONS_MAX: usize = 256;

/// Most operations at a time.
const OPERATIONS_MAX: usize = 64;

/// Most lanes of one session.
pub const LANES_MAX: u16 = 256;

/// A connection, as the caller numbers them; no number is used twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionId(pub u64);

/// What a controller asks of a voter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// To be answered alone from now on.
    Raise {
        /// Higher than any before.
        epoch: u64,
        /// Who asks.
        controller: Uuid,
    },
    /// To remember who is in sync.
    Cast {
        /// The asking controller's; the vote's, too.
        epoch: u64,
        /// Who asks.
        controller: Uuid,
        /// What is to be remembered.
        vote: Vote,
        /// Under which boot of the voter's node the asking one believes its replica; nil: it has none, or is not believed. Where the
        /// node has rebooted since, the register goes on to say so.
        boot: Uuid,
    },
    /// Whether this epoch still is the one.
    Beat {
        /// The asking controller's.
        epoch: u64,
        /// Who asks.
        controller: Uuid,
    },
    /// The controller has stopped, and answers nothing any more.
    Release {
        /// The asking controller's.
        epoch: u64,
        /// Who asks.
        controller: Uuid,
    },
}

/// What a voter answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The epoch is durable, and nothing of older ones is under way any more.
    Raised {
        /// What was remembered before.
        before: Register,
        /// The boot of the node now.
        boot: Uuid,
    },
    /// The vote is durable, or a later one of the same controller is.
    Cast,
    /// This epoch still is the one.
    Alive,
    /// It is remembered that the controller has stopped.
    Released,
}

/// Another controller is answered, or nobody: then the epoch is the asking one's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The epoch that is answered.
    pub epoch: u64,
}

/// Whose a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// The controller's epoch.
    pub epoch: u64,
    /// The controller.
    pub controller: Uuid,
    /// Connections of one session stand beside each other. A later session has a higher number, and ends those before.
    pub session: u64,
    /// Which of the connections of its session, below [`LANES_MAX`].
    pub lane: u16,
    /// Counted up with each connection of its lane: a later one ends those before, of this lane alone.
    pub attempt: u64,
}

/// What becomes of a connection that says whose it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hello {
    /// Its I/O may begin.
    Admitted,
    /// I/O of what it comes after is under way: [`FenceAction::Admit`] follows when it has ended.
    Waits,
    /// It is to be closed.
    Refused(Refused),
}

/// What is to be done for a fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FenceAction {
    /// To make this durable, then call [`Fence::written`].
    Write(Register),
    /// To close a connection: nothing that it still brings is begun.
    Cut(ConnectionId),
    /// The I/O of a connection that was told to wait may begin.
    Admit(ConnectionId),
    /// To answer whoever asked under this number.
    Answer(u64, Result<Answer, Refused>),
}

struct Connection {
    id: ConnectionId,
    session: u64,
    lane: u16,
    attempt: u64,
    /// I/O that the kernel has.
    in_flight: u32,
    open: bool,
    admitted: bool,
}

impl Connection {
    /// Whether nothing of it may be under way once this one is let in.
    fn comes_before(&self, session: u64, lane: u16, attempt: u64) -> bool {
        self.session < session || (self.session == session && self.lane == lane && self.attempt < attempt)
    }
}

/// One voter.
///
/// Every I/O of a connection is reported ([`Fence::begin`], [`Fence::end`]); one that is not begun must not reach a disk. What is to be
/// done comes from [`Fence::pop`].
pub struct Fence {
    register: Register,
    boot: Uuid,
    connections: Vec<Connection>,
    /// The sessions of the operations that are under way.
    operations: Vec<u64>,
    /// The highest session that was let in under this epoch: none before it may come late.
    session: u64,
    /// The highest attempt of each of its lanes.
    attempts: Vec<(u16, u64)>,
    asks: VecDeque<(u64, Ask)>,
    /// What is being made durable, for the first of those who ask.
    writing: Option<Register>,
    /// Nothing can be made durable any more: nobody is answered.
    failed: bool,
    actions: VecDeque<FenceAction>,
}

impl Fence {
    /// With what was remembered, under this boot of the node: durably so, and I/O of an earlier process of it has ended.
    pub fn new(register: Register, boot: Uuid) -> Fence {
        Fence {
            register,
            boot,
            connections: Vec::with_capacity(CONNECTIONS_MAX),
            operations: Vec::with_capacity(OPERATIONS_MAX),
            session: 0,
            attempts: Vec::with_capacity(usize::from(LANES_MAX)),
            asks: VecDeque::with_capacity(ASKS_MAX),
            writing: None,
            failed: false,
            actions: VecDeque::new(),
        }
    }

    /// The boot of the node now.
    pub fn boot(&self) -> Uuid {
        self.boot
    }

    /// What is durable.
    pub fn register(&self) -> &Register {
        &self.register
    }

    /// Asks something under a number; [`FenceAction::Answer`] follows. False: too many wait, or nothing can be promised any more; no answer
    /// follows, as if the network had lost it.
    pub fn ask(&mut self, number: u64, ask: Ask) -> bool {
        if self.failed || self.asks.len() == ASKS_MAX {
            return false;
        }
        self.asks.push_back((number, ask));
        self.go_on();
        true
    }

    /// Whether a later session, or a later attempt of this lane, has come.
    pub fn is_late(&self, caller: &Caller) -> bool {
        let is_again = |(lane, last): &(u16, u64)| *lane == caller.lane && *last >= caller.attempt;
        caller.session < self.session || (caller.session == self.session && self.attempts.iter().any(is_again))
    }

    /// A connection says whose it is.
    pub fn hello(&mut self, id: ConnectionId, caller: &Caller) -> Hello {
        let Caller { epoch, controller, session, lane, attempt } = *caller;
        let refused = Hello::Refused(Refused { epoch: self.register.epoch });
        // Before the first controller has come there is no epoch that anybody could have.
        let other = epoch == 0 || (epoch, controller) != (self.register.epoch, self.register.controller);
        let full = self.connections.len() == CONNECTIONS_MAX || lane >= LANES_MAX;
        if other || self.is_raising() || self.is_late(caller) || full || self.failed {
            return refused;
        }
        if session > self.session {
            self.session = session;
            self.attempts.clear();
        }
        self.attempts.retain(|(of, _)| *of != lane);
        self.attempts.push((lane, attempt));
        self.cut(|connection| connection.comes_before(session, lane, attempt));
        let admitted = self.is_drained(session, lane, attempt);
        self.connections.push(Connection { id, session, lane, attempt, in_flight: 0, open: true, admitted });
        if admitted { Hello::Admitted } else { Hello::Waits }
    }

    /// An I/O of a connection is about to be given to a disk. False: it must not be.
    #[must_use]
    pub fn begin(&mut self, id: ConnectionId) -> bool {
        let found = self.connections.iter_mut().find(|c| c.id == id && c.open && c.admitted);
        found.map(|connection| connection.in_flight += 1).is_some()
    }

    /// The kernel has nothing of an I/O any more.
    pub fn end(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.iter_mut().find(|c| c.id == id) {
            connection.in_flight -= 1;
        }
        self.drained();
    }

    /// Cuts these connections off, whosever they are: who may come again does.
    pub fn sever(&mut self, which: impl Fn(ConnectionId) -> bool) {
        self.cut(|connection| which(connection.id));
        self.drained();
    }

    /// A connection is closed; some of its I/O may be under way.
    pub fn closed(&mut self, id: ConnectionId) {
        self.connections.iter_mut().filter(|c| c.id == id).for_each(|c| c.open = false);
        self.drained();
    }

    /// The controller wants something done with what the replica has, other than by a connection: a snapshot taken, say. It counts like
    /// I/O of that session: whoever comes afterwards waits for its end. It belongs to the session that was let in last, 0 before the
    /// first, so that one which was asked for earlier, and comes late, does nothing. False: it must not begin.
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

    /// An operation of this session has ended: nothing of it is under way any more.
    pub fn end_operation(&mut self, session: u64) {
        if let Some(at) = self.operations.iter().position(|of| *of == session) {
            self.operations.swap_remove(at);
        }
        self.drained();
    }

    /// What was to be made durable is, or could not be.
    pub fn written(&mut self, succeeded: bool) {
        let Some(register) = self.writing.take() else { return };
        if !succeeded {
            // Which of the two is on the disk nobody knows: as if the node were away.
            self.failed = true;
            self.asks.clear();
            return self.cut(|_| true);
        }
        let before = std::mem::replace(&mut self.register, register);
        if before.epoch < register.epoch {
            self.session = 0;
            self.attempts.clear();
        }
        let Some((number, ask)) = self.asks.pop_front() else { return };
        if !planted(Planted::RaisedBeforeDurable) || !matches!(ask, Ask::Raise { .. }) {
            self.actions.push_back(FenceAction::Answer(number, Ok(self.answer(&ask, before))));
        }
        self.go_on();
    }

    /// Nobody who was let in has anything under way.
    pub fn is_idle(&self) -> bool {
        self.connections.is_empty() && self.operations.is_empty()
    }

    /// After a write that failed: this was read back, and is what all places hold now. Only while [`Fence::is_idle`]. It begins anew, as
    /// at a start, but sessions that have passed do not come back.
    pub fn recovered(&mut self, register: Register) {
        debug_assert!(self.failed && self.is_idle());
        if (register.epoch, register.controller) != (self.register.epoch, self.register.controller) {
            self.session = 0;
            self.attempts.clear();
        }
        self.register = register;
        self.failed = false;
    }

    /// Whoever asked this does not wait any more: it is not begun. What is being made durable already goes on.
    pub fn withdraw(&mut self, number: u64) {
        let begun = usize::from(self.writing.is_some());
        let Some(at) = self.asks.iter().skip(begun).position(|(of, _)| *of == number) else { return };
        self.asks.remove(begun + at);
        self.go_on();
    }

    /// What is to be done next.
    pub fn pop(&mut self) -> Option<FenceAction> {
        self.actions.pop_front()
    }

    fn answer(&self, ask: &Ask, before: Register) -> Answer {
        match ask {
            Ask::Raise { .. } => Answer::Raised { before, boot: self.boot },
            Ask::Cast { .. } => Answer::Cast,
            Ask::Beat { .. } => Answer::Alive,
            Ask::Release { .. } => Answer::Released,
        }
    }

    fn is_raising(&self) -> bool {
        let raises = |ask: &Ask| matches!(ask, Ask::Raise { epoch, .. } if *epoch > self.register.epoch);
        self.asks.front().is_some_and(|(_, ask)| raises(ask))
    }

    /// Whether nothing of what comes before this one is under way.
    fn is_drained(&self, session: u64, lane: u16, attempt: u64) -> bool {
        let counts = |before: &Connection| {
            !planted(if before.session < session { Planted::OldSessionUndrained } else { Planted::OldAttemptUndrained })
        };
        let of_others = self.operations.iter().any(|of| *of < session);
        !of_others
            && !self.connections.iter().any(|before| before.comes_before(session, lane, attempt) && counts(before))
    }

    fn cut(&mut self, which: impl Fn(&Connection) -> bool) {
        for connection in self.connections.iter_mut().filter(|c| c.open && which(c)) {
            connection.open = false;
            self.actions.push_back(FenceAction::Cut(connection.id));
        }
        self.connections.retain(|c| c.open || c.in_flight > 0);
    }

    fn drained(&mut self) {
        self.connections.retain(|c| c.open || c.in_flight > 0);
        for k in 0..self.connections.len() {
            let Connection { id, session, lane, attempt, open, admitted, .. } = self.connections[k];
            if open && !admitted && self.is_drained(session, lane, attempt) {
                self.connections[k].admitted = true;
                self.actions.push_back(FenceAction::Admit(id));
            }
        }
        self.go_on();
    }

    /// Takes those who ask one after the other.
    fn go_on(&mut self) {
        while self.writing.is_none()
            && let Some((number, ask)) = self.asks.front().copied()
        {
            let now = self.register;
            // Before the first raise nobody's epoch is 0.
            let is_of = |epoch, controller| epoch > 0 && (epoch, controller) == (now.epoch, now.controller);
            let (next, is_its) = match ask {
                Ask::Raise { epoch, controller } => {
                    let raised = is_of(epoch, controller);
                    let next = Register { epoch, controller, released: false, ..now };
                    (if raised { now } else { next }, raised || epoch > now.epoch)
                }
                Ask::Cast { epoch, controller, vote, boot } => {
                    let newer = vote.order() > now.vote.order();
                    let boot = if planted(Planted::CastBelievesBoot) { self.boot } else { boot };
                    let next = Register { vote, boot, ..now };
                    (if newer { next } else { now }, is_of(epoch, controller))
                }
                Ask::Beat { epoch, controller } => (now, is_of(epoch, controller)),
                Ask::Release { epoch, controller } => (Register { released: true, ..now }, is_of(epoch, controller)),
            };
            if !is_its {
                self.asks.pop_front();
                self.actions.push_back(FenceAction::Answer(number, Err(Refused { epoch: now.epoch })));
                continue;
            }
            if next == now {
                self.asks.pop_front();
                self.actions.push_back(FenceAction::Answer(number, Ok(self.answer(&ask, now))));
                continue;
            }
            if next.epoch > now.epoch {
                // No connection is of the epoch that comes: nobody was let in under it.
                self.cut(|_| true);
                let is_drained = self.connections.is_empty() && self.operations.is_empty();
                if !is_drained && !planted(Planted::RaisedBeforeDrained) {
                    return;
                }
            }
            let next = if planted(Planted::RaiseForgetsBoot) { Register { boot: self.boot, ..next } } else { next };
            self.writing = Some(next);
            if planted(Planted::RaisedBeforeDurable) && next.epoch > now.epoch {
                self.actions.push_back(FenceAction::Answer(number, Ok(self.answer(&ask, now))));
            }
            self.actions.push_back(FenceAction::Write(next));
        }
    }
}
