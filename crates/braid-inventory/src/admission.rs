//! Admission of controllers to a replica or witness. [`ReplicaAdmission`] connects the fence, which decides, with the
//! shards, which request admission for connections; with the API, which passes on requests of controllers; and with the
//! register, which makes the decisions durable.
//!
//! For the fence, an admitted connection is one I/O in flight: from its admission until the kernel has nothing of the
//! connection in flight any more. So the data path takes no lock per request.

use crate::frontends::NBD_FRONTEND;
use crate::register::{RegisterContent, RegisterStore};
use crate::terms::Terms;
use braid_api::ReplicaState;
use braid_engine::ShardId;
use braid_engine::replica::{
    AdmissionResult, ConnectionId, Fence, FenceAction, Register, SESSION_CONNECTIONS_MAX, VoterRefusal, VoterReply,
    VoterRequest, is_of_older_copy,
};
use braid_export::admission::{Admission, AdmissionDenied, AdmissionPass};
use braid_nbd::server::ExportsChanged;
use braid_ring::RingHandle;
use braid_tasks as tasks;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use uuid::Uuid;

#[cfg(test)]
mod tests;

/// Minimum delay between two attempts to write a register again after a failed write.
const RETRY_MIN: Duration = Duration::from_millis(500);

/// Maximum of that delay, which doubles with each attempt.
const RETRY_MAX: Duration = Duration::from_secs(15);

/// A request stays queued this much longer than its sender waits for the reply. So the request of a sender that tries
/// again has kept its position in the queue.
const RETAIN_MAX: Duration = Duration::from_secs(2);

/// Outcome of a request: the voter's reply or refusal.
type RequestOutcome = Result<VoterReply, VoterRefusal>;

/// A connection or local session.
struct ReplicaConnection {
    pass: Weak<AdmissionPass>,
    /// The fence counts it as an I/O in flight.
    begun: bool,
    /// It is this node's own session, without a connection.
    is_local: bool,
}

/// The state of an admission, behind its lock.
struct AdmissionState {
    fence: Fence,
    /// Connections and local sessions, by number.
    connections: BTreeMap<u64, ReplicaConnection>,
    /// Requests without a reply, by number.
    pending: BTreeMap<u64, oneshot::Sender<RequestOutcome>>,
    /// The last number that a connection or request was given.
    next: u64,
    /// Registers to be made durable, one at a time; `None`: closed, so that nothing is admitted and no request is
    /// answered any more.
    writes: Option<mpsc::UnboundedSender<Register>>,
    /// Why no request is answered: the register cannot be written, or is lost.
    fault: Option<RegisterFault>,
}

/// Why a voter answers no request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RegisterFault {
    /// Its register could not be written; the write is retried.
    Unwritten(String),
    /// Its register is lost.
    Lost(String),
}

impl RegisterFault {
    /// Returns the state and the reason to show for a voter with this fault.
    pub fn state_and_reason(&self) -> (ReplicaState, String) {
        match self {
            RegisterFault::Lost(why) => (ReplicaState::Lost, why.clone()),
            RegisterFault::Unwritten(why) => {
                (ReplicaState::Failed, format!("its register cannot be written, and the write is retried: {why}"))
            }
        }
    }
}

/// A change of a voter's state that is reported.
#[derive(Clone, Copy)]
pub enum RegisterEvent<'a> {
    /// No request is answered any more.
    Failed(&'a RegisterFault),
    /// Requests are answered again.
    Recovered,
    /// A vote says that the replica is in sync, under the boot id that marks it as an older copy of itself: it was
    /// rebuilt completely, and its data is trusted again.
    InSync,
}

/// Is called with each change of a voter's state that is reported.
pub type RegisterListener = Box<dyn Fn(RegisterEvent<'_>) + Send + Sync>;

/// Work that is deferred until the lock is released.
#[derive(Default)]
struct DeferredWork {
    /// To be dropped after the lock is released: dropping the last reference to a pass takes the lock.
    passes: Vec<Arc<AdmissionPass>>,
    notify: bool,
}

/// Admission of controllers to one replica or witness of this node.
pub struct ReplicaAdmission {
    me: Weak<ReplicaAdmission>,
    inner: Mutex<AdmissionState>,
    /// Notifies the shards that the fence has decided about connections.
    notify: Box<dyn Fn() + Send + Sync>,
    /// Notifies all other tasks that wait for such a decision.
    changes: watch::Sender<()>,
}

impl ReplicaAdmission {
    /// Opens the admission with the durable register. Also returns the task that writes the register; it ends some time
    /// after the admission is closed. `listener` is called when no request is answered any more, when that is over, and
    /// when an older copy is in sync again.
    pub fn open(
        register: Register,
        boot: Uuid,
        store: RegisterStore,
        ring: RingHandle,
        listener: RegisterListener,
    ) -> (Arc<ReplicaAdmission>, JoinHandle<()>) {
        let notify = move || {
            for shard in 0..ring.shards() {
                ring.post(ShardId(shard), NBD_FRONTEND, Box::new(ExportsChanged));
            }
        };
        let (admission, writes) = ReplicaAdmission::new(register, boot, notify);
        let writer = tasks::spawn(write_registers(Arc::downgrade(&admission), store, writes, listener));
        (admission, writer)
    }

    /// Creates the admission, and the channel of the registers that are to be made durable.
    fn new(
        register: Register,
        boot: Uuid,
        notify: impl Fn() + Send + Sync + 'static,
    ) -> (Arc<ReplicaAdmission>, mpsc::UnboundedReceiver<Register>) {
        let (writes, written) = mpsc::unbounded_channel();
        let inner = AdmissionState {
            fence: Fence::new(register, boot),
            connections: BTreeMap::new(),
            pending: BTreeMap::new(),
            next: 0,
            writes: Some(writes),
            fault: None,
        };
        let admission = |me: &Weak<ReplicaAdmission>| ReplicaAdmission {
            me: Weak::clone(me),
            inner: Mutex::new(inner),
            notify: Box::new(notify),
            changes: watch::Sender::new(()),
        };
        (Arc::new_cyclic(admission), written)
    }

    fn lock(&self) -> MutexGuard<'_, AdmissionState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `change`, and then the actions of the fence.
    fn with<R>(&self, change: impl FnOnce(&mut AdmissionState) -> R) -> R {
        let mut inner = self.lock();
        let result = change(&mut inner);
        let after = self.act(&mut inner);
        drop(inner);
        if after.notify {
            self.notify();
        }
        drop(after.passes);
        result
    }

    /// Notifies the shards, and all that waits for changes.
    fn notify(&self) {
        (self.notify)();
        self.changes.send_replace(());
    }

    /// Returns a channel that is notified of each decision about connections, and of each register that is durable.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Carries out the actions of the fence, as far as that is possible under the lock.
    fn act(&self, inner: &mut AdmissionState) -> DeferredWork {
        let mut after = DeferredWork::default();
        while let Some(action) = inner.fence.pop() {
            match action {
                FenceAction::Write(register) => {
                    if let Some(writes) = &inner.writes {
                        // This fails only if the task that writes has ended.
                        let _ = writes.send(register);
                    }
                }
                FenceAction::Reply(number, reply) => {
                    if let Some(reply_sender) = inner.pending.remove(&number) {
                        // The sender may be gone.
                        let _ = reply_sender.send(reply);
                    }
                }
                FenceAction::Cut(id) => {
                    let connection = inner.connections.get(&id.0);
                    if let Some(pass) = connection.and_then(|connection| connection.pass.upgrade()) {
                        pass.revoke();
                        after.notify = true;
                        after.passes.push(pass);
                    }
                }
                FenceAction::Admit(id) => {
                    let Some(connection) = inner.connections.get_mut(&id.0) else { continue };
                    let Some(pass) = connection.pass.upgrade() else { continue };
                    connection.begun = inner.fence.begin(id);
                    if connection.begun {
                        pass.admit()
                    } else {
                        pass.revoke()
                    }
                    after.notify = true;
                    after.passes.push(pass);
                }
            }
        }
        after
    }

    /// Sends a controller's request to the fence, and waits for the reply for at most `limit`. `None`: the voter cannot
    /// reply any more, or not in time, or there are too many requests. If nothing waits for the reply any more, also
    /// because this future was dropped, a request that has not begun is withdrawn 2 s after the end of `limit`.
    pub async fn request(self: &Arc<Self>, ask: VoterRequest, limit: Duration) -> Option<RequestOutcome> {
        let (reply_sender, reply) = oneshot::channel();
        let queued = self.with(|inner| {
            let number = inner.number();
            inner.pending.insert(number, reply_sender);
            let queued = inner.writes.is_some() && inner.fence.request(number, ask);
            if !queued {
                inner.pending.remove(&number);
            }
            queued.then_some(number)
        })?;
        let until = Instant::now() + limit;
        let _pending = PendingRequest { admission: Weak::clone(&self.me), number: queued, until: until + RETAIN_MAX };
        tokio::time::timeout_at(until, reply).await.ok()?.ok()
    }

    /// Removes a request from the queue.
    fn withdraw(&self, number: u64) {
        self.with(|inner| {
            inner.pending.remove(&number);
            inner.fence.withdraw(number);
        });
    }

    /// Returns whether a request has no reply yet.
    fn is_pending(&self, number: u64) -> bool {
        self.lock().pending.contains_key(&number)
    }

    /// Returns why no request is answered.
    pub fn fault(&self) -> Option<RegisterFault> {
        self.lock().fault.clone()
    }

    fn is_idle(&self) -> bool {
        self.lock().fence.is_idle()
    }

    /// Continues after a fault: the register was read back, and is in all of its slots.
    fn recovered(&self, register: Register) {
        self.with(|inner| {
            inner.fault = None;
            inner.fence.recovered(register);
        });
        self.changes.send_replace(());
    }

    fn set_fault(&self, fault: &RegisterFault) {
        self.lock().fault = Some(fault.clone());
    }

    /// Begins an operation of a controller on the data, other than by a connection. It is in flight, and a raise of the
    /// epoch waits for it, until the returned guard is dropped. `None`: the replica replies to another controller or
    /// session now.
    pub fn begin(self: &Arc<Self>, epoch: u64, controller: Uuid, session: u64) -> Option<Operation> {
        let begun =
            self.with(|inner| inner.writes.is_some() && inner.fence.begin_operation(epoch, controller, session));
        begun.then(|| Operation { admission: Arc::clone(self), session })
    }

    /// Returns the durable register.
    pub fn register(&self) -> Register {
        *self.lock().fence.register()
    }

    /// Returns whether the replica replies to this controller, by the durable register.
    pub fn replies_to(&self, epoch: u64, controller: Uuid) -> bool {
        let inner = self.lock();
        let register = inner.fence.register();
        inner.writes.is_some() && !register.released && (epoch, controller) == (register.epoch, register.controller)
    }

    /// Returns the boot id of this voter. It changes when the node reboots, when the replica has lost data that was not
    /// flushed, and when its data is found to be an older copy.
    pub fn boot(&self) -> Uuid {
        self.lock().fence.boot()
    }

    /// Returns the number of connections of which something is in flight or held.
    pub fn connections(&self) -> u32 {
        self.lock().connections.len() as u32
    }

    /// Closes the admission: cuts off all connections, admits none, and answers no request any more.
    pub fn close(&self) {
        let mut after = DeferredWork { notify: true, ..DeferredWork::default() };
        {
            let mut inner = self.lock();
            inner.writes = None;
            // Pending requests get no reply.
            inner.pending.clear();
            after.passes.extend(inner.connections.values().filter_map(|connection| connection.pass.upgrade()));
        }
        after.passes.iter().for_each(|pass| pass.revoke());
        self.notify();
    }

    /// Cuts off all connections, but no local session. A client that is still admitted reconnects with a later attempt.
    pub fn sever(&self) {
        self.with(|inner| {
            let AdmissionState { fence, connections, .. } = inner;
            fence.cut(|id| connections.get(&id.0).is_some_and(|connection| !connection.is_local));
        });
    }

    /// Reports the end of a write of the register. After a failed write, pending requests get no reply, as if the node
    /// were unreachable.
    fn written(&self, succeeded: bool) {
        self.with(|inner| {
            inner.fence.written(succeeded);
            if !succeeded {
                inner.pending.clear();
            }
        });
        self.changes.send_replace(());
    }

    /// Ends a connection: nothing of it is in flight.
    fn ended(&self, number: u64) {
        self.with(|inner| {
            let Some(connection) = inner.connections.remove(&number) else { return };
            inner.fence.closed(ConnectionId(number));
            if connection.begun {
                inner.fence.end(ConnectionId(number));
            }
        });
    }
}

/// A request that its sender waits for until this is dropped. If it has no reply then, it is withdrawn at `until`.
struct PendingRequest {
    admission: Weak<ReplicaAdmission>,
    number: u64,
    until: Instant,
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let Some(admission) = self.admission.upgrade().filter(|admission| admission.is_pending(self.number)) else {
            return;
        };
        let (admission, number, until) = (Arc::downgrade(&admission), self.number, self.until);
        // Outside of the daemon's runtime, nothing waits.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            tokio::time::sleep_until(until).await;
            if let Some(admission) = admission.upgrade() {
                admission.withdraw(number);
            }
        });
    }
}

/// An operation of a controller that is in flight.
pub struct Operation {
    admission: Arc<ReplicaAdmission>,
    session: u64,
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.admission.with(|inner| inner.fence.end_operation(self.session));
    }
}

impl AdmissionState {
    /// Returns a number for a connection or request that none has had before.
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns why a connection is not admitted.
    fn why_refused(&self, terms: &Terms) -> AdmissionDenied {
        let register = self.fence.register();
        let caller = &terms.caller;
        if (caller.epoch, caller.controller) != (register.epoch, register.controller) {
            let Register { epoch, .. } = register;
            let why = format!(
                "fenced: epoch {epoch} is answered now, not epoch {} of controller {}",
                caller.epoch, caller.controller
            );
            return AdmissionDenied::Permanently(why);
        }
        if self.fence.is_late(caller) || caller.connection >= SESSION_CONNECTIONS_MAX {
            let why =
                "fenced: a later session or attempt of the same controller has come, or there is no such connection";
            return AdmissionDenied::Permanently(why.to_owned());
        }
        AdmissionDenied::Temporarily(
            "another controller is coming, there are too many connections, or the register cannot be written"
                .to_owned(),
        )
    }
}

impl Admission for ReplicaAdmission {
    fn request(&self, terms: &str) -> Result<Arc<AdmissionPass>, AdmissionDenied> {
        self.admit(terms, false)
    }
}

impl ReplicaAdmission {
    /// Requests admission on these terms. `is_local`: the session is in this process, without a connection.
    ///
    /// The pass may still wait for the fence to admit it. When it is dropped, nothing of the connection may be in
    /// flight any more.
    ///
    /// # Errors
    /// The terms are not those of the present controller, or the replica admits nothing for now.
    pub fn admit(&self, terms: &str, is_local: bool) -> Result<Arc<AdmissionPass>, AdmissionDenied> {
        let terms: Terms = terms.parse().map_err(AdmissionDenied::Permanently)?;
        let me = Weak::clone(&self.me);
        self.with(|inner| {
            if inner.writes.is_none() {
                return Err(AdmissionDenied::Temporarily("the replica is being closed".to_owned()));
            }
            let boot = inner.fence.boot();
            if terms.boot != boot {
                let why = format!("rebooted: the replica is of boot {boot} now, not of {}", terms.boot);
                return Err(AdmissionDenied::Permanently(why));
            }
            let number = inner.number();
            let id = ConnectionId(number);
            let hello = inner.fence.hello(id, &terms.caller);
            if let AdmissionResult::Refused(_) = hello {
                return Err(inner.why_refused(&terms));
            }
            let pass = Arc::new(AdmissionPass::new(move || {
                if let Some(admission) = me.upgrade() {
                    admission.ended(number);
                }
            }));
            let begun = hello == AdmissionResult::Admitted && inner.fence.begin(id);
            if begun {
                pass.admit();
            }
            inner.connections.insert(number, ReplicaConnection { pass: Arc::downgrade(&pass), begun, is_local });
            Ok(pass)
        })
    }
}

/// Makes the fence's registers durable, for as long as the admission exists.
async fn write_registers(
    admission: Weak<ReplicaAdmission>,
    mut store: RegisterStore,
    mut writes: mpsc::UnboundedReceiver<Register>,
    listener: RegisterListener,
) {
    while let Some(register) = writes.recv().await {
        let written = store.write(&register).await;
        let Some(open) = admission.upgrade() else { return };
        let Err(why) = written else {
            let is_in_sync = register.vote.in_sync.has(store.voter()) && register.boot == open.boot();
            open.written(true);
            if is_in_sync && is_of_older_copy(register.boot) {
                listener(RegisterEvent::InSync);
            }
            continue;
        };
        let fault = RegisterFault::Unwritten(why);
        open.set_fault(&fault);
        open.written(false);
        drop(open);
        listener(RegisterEvent::Failed(&fault));
        if !recover(&admission, &mut store, &mut writes, &listener).await {
            return;
        }
    }
}

/// Recovers from a failed write of the register: waits until nothing is in flight, reads the register back, and writes
/// it to both slots. Tries again, at growing intervals, until that succeeds. Returns false if the admission is closed,
/// or if the register is lost.
async fn recover(
    admission: &Weak<ReplicaAdmission>,
    store: &mut RegisterStore,
    writes: &mut mpsc::UnboundedReceiver<Register>,
    listener: &RegisterListener,
) -> bool {
    let mut delay = RETRY_MIN;
    loop {
        // The fence writes nothing in the meantime: a message can only be the end of the channel.
        let closed = tokio::time::timeout(delay, writes.recv()).await;
        let (Err(_), Some(admission)) = (closed, admission.upgrade()) else { return false };
        delay = (2 * delay).min(RETRY_MAX);
        if !admission.is_idle() {
            continue;
        }
        match store.reload().await {
            Ok(RegisterContent::Register(register)) => {
                admission.recovered(register);
                listener(RegisterEvent::Recovered);
                return true;
            }
            Ok(RegisterContent::Lost(why)) => {
                let fault = RegisterFault::Lost(why);
                admission.set_fault(&fault);
                listener(RegisterEvent::Failed(&fault));
                return false;
            }
            Err(why) => admission.set_fault(&RegisterFault::Unwritten(why)),
        }
    }
}
