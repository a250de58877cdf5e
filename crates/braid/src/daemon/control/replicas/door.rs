//! Who uses a replica: its fence, between the shards, which ask for connections, the API, which asks for controllers, and the register.
//!
//! A connection counts as one I/O of the fence, from the moment in which it is let in until the kernel has nothing of it any more: there is
//! no lock on the path of data.

use super::register::{Found, Keeper};
use super::terms::Terms;
use braid_engine::ShardId;
use braid_engine::replica::{
    Answer, Ask, ConnectionId, Fence, FenceAction, Hello, LANES_MAX, Refused, Register, is_of_older_copy,
};
use braid_nbd::gate::{Denied, Gate, Pass};
use braid_nbd::server::ExportsChanged;
use braid_ring::RingHandle;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use uuid::Uuid;

use crate::daemon::listen::NBD_FRONTEND;

/// Between two tries to write a register again that could not be written: at first, and at most.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(15);
/// A question stands so much longer than whoever asks waits: asked again meanwhile, it has not lost its place.
const ASKED_AGAIN_MAX: Duration = Duration::from_secs(2);

/// What a question ends with; nothing where the voter cannot answer any more.
type Answered = Result<Answer, Refused>;

/// One connection.
struct Visitor {
    pass: Weak<Pass>,
    /// The fence knows of I/O of it.
    begun: bool,
    /// It is this node's own session, and no connection.
    near: bool,
}

struct Inner {
    fence: Fence,
    visitors: BTreeMap<u64, Visitor>,
    waiting: BTreeMap<u64, oneshot::Sender<Answered>>,
    next: u64,
    /// What is to be made durable, one at a time; none: nobody is let in any more, and nothing is promised.
    writes: Option<mpsc::UnboundedSender<Register>>,
    /// Why nobody is answered, as the register cannot be written or is lost.
    trouble: Option<Trouble>,
}

/// Why a voter answers nobody.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// Its register could not be written; it is tried again.
    Unwritten(String),
    /// Its register is gone.
    Lost(String),
}

/// What is told of a voter's register to whoever shows it.
#[derive(Clone, Copy)]
pub enum Told<'a> {
    /// Nobody is answered any more.
    Trouble(&'a Trouble),
    /// That is over.
    Votes,
    /// A vote says that the replica is in sync, under the boot in which it was found to be an older copy of itself.
    Believed,
}

/// Who is told of it.
pub type Tell = Box<dyn Fn(Told<'_>) + Send + Sync>;

/// What whoever has changed something does once nothing is locked.
#[derive(Default)]
struct After {
    /// Dropped then: the end of a pass comes back here.
    passes: Vec<Arc<Pass>>,
    tell: bool,
}

/// One replica or witness, to whoever uses it.
pub struct Door {
    me: Weak<Door>,
    inner: Mutex<Inner>,
    /// Tells the shards that it has been decided about connections.
    tell: Box<dyn Fn() + Send + Sync>,
    /// And whoever else waits for that.
    changes: watch::Sender<()>,
}

impl Door {
    /// With what is durable; and who makes durable what is to be, which ends some time after the door was shut.
    /// `told` hears when nobody is answered any more, and when that is over; and when an older copy is believed again.
    pub fn open(
        register: Register,
        boot: Uuid,
        keeper: Keeper,
        ring: RingHandle,
        told: Tell,
    ) -> (Arc<Door>, JoinHandle<()>) {
        let tell = move || {
            for shard in 0..ring.shards() {
                ring.post(ShardId(shard), NBD_FRONTEND, Box::new(ExportsChanged));
            }
        };
        let (door, writes) = Door::new(register, boot, tell);
        let keeps = tokio::spawn(keep(Arc::downgrade(&door), keeper, writes, told));
        (door, keeps)
    }

    fn new(
        register: Register,
        boot: Uuid,
        tell: impl Fn() + Send + Sync + 'static,
    ) -> (Arc<Door>, mpsc::UnboundedReceiver<Register>) {
        let (writes, written) = mpsc::unbounded_channel();
        let inner = Inner {
            fence: Fence::new(register, boot),
            visitors: BTreeMap::new(),
            waiting: BTreeMap::new(),
            next: 0,
            writes: Some(writes),
            trouble: None,
        };
        let door = |me: &Weak<Door>| Door {
            me: Weak::clone(me),
            inner: Mutex::new(inner),
            tell: Box::new(tell),
            changes: watch::Sender::new(()),
        };
        (Arc::new_cyclic(door), written)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something, and does what the fence wants then.
    fn with<R>(&self, change: impl FnOnce(&mut Inner) -> R) -> R {
        let mut inner = self.lock();
        let result = change(&mut inner);
        let after = self.act(&mut inner);
        drop(inner);
        if after.tell {
            self.tell();
        }
        drop(after.passes);
        result
    }

    fn tell(&self) {
        (self.tell)();
        self.changes.send_replace(());
    }

    /// Hears of each decision about connections, and of each register that is durable.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    fn act(&self, inner: &mut Inner) -> After {
        let mut after = After::default();
        while let Some(action) = inner.fence.pop() {
            match action {
                FenceAction::Write(register) => {
                    if let Some(writes) = &inner.writes {
                        // Whoever writes ends with the last of them.
                        let _ = writes.send(register);
                    }
                }
                FenceAction::Answer(number, answer) => {
                    if let Some(asker) = inner.waiting.remove(&number) {
                        // Whoever asked may have gone.
                        let _ = asker.send(answer);
                    }
                }
                FenceAction::Cut(id) => {
                    let visitor = inner.visitors.get(&id.0);
                    if let Some(pass) = visitor.and_then(|visitor| visitor.pass.upgrade()) {
                        pass.cut();
                        after.tell = true;
                        after.passes.push(pass);
                    }
                }
                FenceAction::Admit(id) => {
                    let Some(visitor) = inner.visitors.get_mut(&id.0) else { continue };
                    let Some(pass) = visitor.pass.upgrade() else { continue };
                    visitor.begun = inner.fence.begin(id);
                    if visitor.begun {
                        pass.admit()
                    } else {
                        pass.cut()
                    }
                    after.tell = true;
                    after.passes.push(pass);
                }
            }
        }
        after
    }

    /// Asks what a controller asks, which waits so long. Nothing: the voter cannot answer any more, or not in time, or too many ask. What nobody
    /// waits for any more is not begun, also where this is dropped.
    pub async fn ask(self: &Arc<Self>, ask: Ask, limit: Duration) -> Option<Answered> {
        let (asker, answer) = oneshot::channel();
        let asked = self.with(|inner| {
            let number = inner.number();
            inner.waiting.insert(number, asker);
            let asked = inner.writes.is_some() && inner.fence.ask(number, ask);
            if !asked {
                inner.waiting.remove(&number);
            }
            asked.then_some(number)
        })?;
        let until = Instant::now() + limit;
        let _asked = Asked { door: Weak::clone(&self.me), number: asked, until: until + ASKED_AGAIN_MAX };
        tokio::time::timeout_at(until, answer).await.ok()?.ok()
    }

    /// A question is not begun any more.
    fn withdraw(&self, number: u64) {
        self.with(|inner| {
            inner.waiting.remove(&number);
            inner.fence.withdraw(number);
        });
    }

    /// Whether a question has not been answered yet.
    fn is_asked(&self, number: u64) -> bool {
        self.lock().waiting.contains_key(&number)
    }

    /// Why nobody is answered.
    pub fn trouble(&self) -> Option<Trouble> {
        self.lock().trouble.clone()
    }

    fn is_idle(&self) -> bool {
        self.lock().fence.is_idle()
    }

    /// The register is read back and stands in all of its places: it goes on.
    fn recovered(&self, register: Register) {
        self.with(|inner| {
            inner.trouble = None;
            inner.fence.recovered(register);
        });
        self.changes.send_replace(());
    }

    fn set_trouble(&self, trouble: &Trouble) {
        self.lock().trouble = Some(trouble.clone());
    }

    /// Begins something that a controller wants done with the data, other than by a connection. It is under way, and keeps whoever
    /// raises waiting, until what is given is dropped. Nothing: another controller, or another session, is answered now.
    pub fn begin(self: &Arc<Self>, epoch: u64, controller: Uuid, session: u64) -> Option<Operation> {
        let begun =
            self.with(|inner| inner.writes.is_some() && inner.fence.begin_operation(epoch, controller, session));
        begun.then(|| Operation { door: Arc::clone(self), session })
    }

    /// What is durable.
    pub fn register(&self) -> Register {
        *self.lock().fence.register()
    }

    /// Whether this controller is the one that is answered, as far as is durable.
    pub fn answers(&self, epoch: u64, controller: Uuid) -> bool {
        let inner = self.lock();
        let register = inner.fence.register();
        inner.writes.is_some() && !register.released && (epoch, controller) == (register.epoch, register.controller)
    }

    /// The boot of the node, as far as this voter is concerned.
    pub fn boot(&self) -> Uuid {
        self.lock().fence.boot()
    }

    /// Connections of which something is left.
    pub fn connections(&self) -> u32 {
        self.lock().visitors.len() as u32
    }

    /// Lets nobody in any more, cuts off whoever is, and promises nothing more.
    pub fn shut(&self) {
        let mut after = After { tell: true, ..After::default() };
        {
            let mut inner = self.lock();
            inner.writes = None;
            // Who asks is not answered.
            inner.waiting.clear();
            after.passes.extend(inner.visitors.values().filter_map(|visitor| visitor.pass.upgrade()));
        }
        after.passes.iter().for_each(|pass| pass.cut());
        self.tell();
    }

    /// Cuts off all who have come over a connection: whoever may come again does, with a later attempt.
    pub fn sever(&self) {
        self.with(|inner| {
            let Inner { fence, visitors, .. } = inner;
            fence.sever(|id| visitors.get(&id.0).is_some_and(|visitor| !visitor.near));
        });
    }

    /// What was to be made durable is, or could not be: then whoever asks is not answered, as if the node were away.
    fn written(&self, succeeded: bool) {
        self.with(|inner| {
            inner.fence.written(succeeded);
            if !succeeded {
                inner.waiting.clear();
            }
        });
        self.changes.send_replace(());
    }

    /// Nothing is left of a connection.
    fn ended(&self, number: u64) {
        self.with(|inner| {
            let Some(visitor) = inner.visitors.remove(&number) else { return };
            inner.fence.closed(ConnectionId(number));
            if visitor.begun {
                inner.fence.end(ConnectionId(number));
            }
        });
    }
}

/// A question that somebody waits for; or does not, from when this is dropped.
struct Asked {
    door: Weak<Door>,
    number: u64,
    until: Instant,
}

impl Drop for Asked {
    fn drop(&mut self) {
        let Some(door) = self.door.upgrade().filter(|door| door.is_asked(self.number)) else { return };
        let (door, number, until) = (Arc::downgrade(&door), self.number, self.until);
        // Outside of the daemon's tasks nothing waits.
        let Ok(tasks) = tokio::runtime::Handle::try_current() else { return };
        tasks.spawn(async move {
            tokio::time::sleep_until(until).await;
            if let Some(door) = door.upgrade() {
                door.withdraw(number);
            }
        });
    }
}

/// Something that a controller has begun.
pub struct Operation {
    door: Arc<Door>,
    session: u64,
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.door.with(|inner| inner.fence.end_operation(self.session));
    }
}

impl Inner {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Why somebody is not let in.
    fn why_refused(&self, terms: &Terms) -> Denied {
        let register = self.fence.register();
        let caller = &terms.caller;
        if (caller.epoch, caller.controller) != (register.epoch, register.controller) {
            let Register { epoch, .. } = register;
            let why = format!(
                "fenced: epoch {epoch} is answered now, not epoch {} of controller {}",
                caller.epoch, caller.controller
            );
            return Denied::Never(why);
        }
        if self.fence.is_late(caller) || caller.lane >= LANES_MAX {
            let why = "fenced: a later session or attempt of the same controller has come, or there is no such lane";
            return Denied::Never(why.to_owned());
        }
        Denied::Now(
            "another controller is coming, there are too many connections, or the register cannot be written"
                .to_owned(),
        )
    }
}

impl Gate for Door {
    fn ask(&self, terms: &str) -> Result<Arc<Pass>, Denied> {
        self.come(terms, false)
    }
}

impl Door {
    /// Somebody asks to be let in. `near`: without any connection, from this very process.
    pub fn come(&self, terms: &str, near: bool) -> Result<Arc<Pass>, Denied> {
        let terms: Terms = terms.parse().map_err(Denied::Never)?;
        let me = Weak::clone(&self.me);
        self.with(|inner| {
            if inner.writes.is_none() {
                return Err(Denied::Now("the replica is being closed".to_owned()));
            }
            let boot = inner.fence.boot();
            if terms.boot != boot {
                let why = format!("rebooted: the replica is of boot {boot} now, not of {}", terms.boot);
                return Err(Denied::Never(why));
            }
            let number = inner.number();
            let id = ConnectionId(number);
            let hello = inner.fence.hello(id, &terms.caller);
            if let Hello::Refused(_) = hello {
                return Err(inner.why_refused(&terms));
            }
            let pass = Arc::new(Pass::new(move || {
                if let Some(door) = me.upgrade() {
                    door.ended(number);
                }
            }));
            let begun = hello == Hello::Admitted && inner.fence.begin(id);
            if begun {
                pass.admit();
            }
            inner.visitors.insert(number, Visitor { pass: Arc::downgrade(&pass), begun, near });
            Ok(pass)
        })
    }
}

/// Makes durable what a fence wants to be, for as long as there is a door.
async fn keep(door: Weak<Door>, mut keeper: Keeper, mut writes: mpsc::UnboundedReceiver<Register>, told: Tell) {
    while let Some(register) = writes.recv().await {
        let written = keeper.write(&register).await;
        let Some(open) = door.upgrade() else { return };
        let Err(why) = written else {
            let is_in_sync = register.vote.in_sync.has(keeper.voter()) && register.boot == open.boot();
            open.written(true);
            if is_in_sync && is_of_older_copy(register.boot) {
                told(Told::Believed);
            }
            continue;
        };
        let trouble = Trouble::Unwritten(why);
        open.set_trouble(&trouble);
        open.written(false);
        drop(open);
        told(Told::Trouble(&trouble));
        if !recover(&door, &mut keeper, &mut writes, &told).await {
            return;
        }
    }
}

/// Tries to have a register in both of its places again, once nobody has anything under way. False: the door is shut, or it is lost.
async fn recover(
    door: &Weak<Door>,
    keeper: &mut Keeper,
    writes: &mut mpsc::UnboundedReceiver<Register>,
    told: &Tell,
) -> bool {
    let mut again = AGAIN;
    loop {
        // Nothing is to be written meanwhile: what comes is the end.
        let shut = tokio::time::timeout(again, writes.recv()).await;
        let (Err(_), Some(door)) = (shut, door.upgrade()) else { return false };
        again = (2 * again).min(AGAIN_MAX);
        if !door.is_idle() {
            continue;
        }
        match keeper.find_again().await {
            Ok(Found::Register(register)) => {
                door.recovered(register);
                told(Told::Votes);
                return true;
            }
            Ok(Found::Lost(why)) => {
                let trouble = Trouble::Lost(why);
                door.set_trouble(&trouble);
                told(Told::Trouble(&trouble));
                return false;
            }
            Err(why) => door.set_trouble(&Trouble::Unwritten(why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_nbd::gate::Standing;
    use std::sync::atomic::{AtomicU32, Ordering};

    const BOOT: Uuid = Uuid::from_u128(100);
    const FIRST: Uuid = Uuid::from_u128(1);
    const SECOND: Uuid = Uuid::from_u128(2);
    const LIMIT: Duration = Duration::from_secs(10);

    type Writes = mpsc::UnboundedReceiver<Register>;

    /// A door, what it wants to have written, and how often it has told the shards.
    fn door() -> (Arc<Door>, Writes, Arc<AtomicU32>) {
        let told = Arc::new(AtomicU32::new(0));
        let tells = Arc::clone(&told);
        let tell = move || {
            tells.fetch_add(1, Ordering::Relaxed);
        };
        let (door, writes) = Door::new(Register::default(), BOOT, tell);
        (door, writes, told)
    }

    /// Asks, and makes durable what is to be.
    async fn ask(door: &Arc<Door>, writes: &mut Writes, ask: Ask) -> Option<Answered> {
        let asked = tokio::spawn({
            let door = Arc::clone(door);
            async move { door.ask(ask, LIMIT).await }
        });
        while !asked.is_finished() {
            tokio::task::yield_now().await;
            if writes.try_recv().is_ok() {
                door.written(true);
            }
        }
        asked.await.expect("it is not cut off")
    }

    fn come(door: &Door, epoch: u64, controller: Uuid, session: u64, attempt: u64) -> Result<Arc<Pass>, Denied> {
        door.ask_for(&format!(
            "epoch={epoch}&controller={controller}&boot={BOOT}&session={session}&lane=0&attempt={attempt}"
        ))
    }

    impl Door {
        fn ask_for(&self, terms: &str) -> Result<Arc<Pass>, Denied> {
            Gate::ask(self, terms)
        }
    }

    #[tokio::test]
    async fn a_raise_is_answered_when_nothing_is_left_of_older_connections() {
        let (door, mut writes, told) = door();
        assert!(come(&door, 1, FIRST, 1, 1).is_err(), "nobody's epoch");
        let raised = ask(&door, &mut writes, Ask::Raise { epoch: 1, controller: FIRST }).await;
        assert!(matches!(raised, Some(Ok(Answer::Raised { .. }))), "{raised:?}");
        let pass = come(&door, 1, FIRST, 1, 1).expect("it is its turn");
        assert_eq!((pass.standing(), door.connections()), (Standing::Admitted, 1));
        let late = Arc::clone(&pass);

        let raising = tokio::spawn({
            let door = Arc::clone(&door);
            async move { door.ask(Ask::Raise { epoch: 2, controller: SECOND }, LIMIT).await }
        });
        while pass.standing() != Standing::Cut {
            tokio::task::yield_now().await;
        }
        assert_eq!(told.load(Ordering::Relaxed), 1);
        // The connection has gone; the kernel has an I/O of it still.
        drop(pass);
        tokio::task::yield_now().await;
        assert!(writes.try_recv().is_err(), "something of the older epoch is under way");
        drop(late);
        let written = writes.recv().await.expect("it is to be written");
        assert_eq!((written.epoch, raising.is_finished(), door.connections()), (2, false, 0));
        door.written(true);
        assert!(matches!(raising.await.expect("it ends"), Some(Ok(Answer::Raised { .. }))));
    }

    #[tokio::test]
    async fn a_raise_waits_for_what_a_controller_has_begun() {
        let (door, mut writes, _) = door();
        ask(&door, &mut writes, Ask::Raise { epoch: 1, controller: FIRST }).await;
        assert!(door.begin(1, FIRST, 1).is_none(), "no session was let in yet");
        let pass = come(&door, 1, FIRST, 2, 1).expect("it is its turn");
        for (epoch, controller, session) in [(1, SECOND, 2), (2, FIRST, 2), (1, FIRST, 1), (1, FIRST, 3)] {
            assert!(door.begin(epoch, controller, session).is_none(), "{epoch} {session}");
        }
        let operation = door.begin(1, FIRST, 2).expect("it is this session's");
        // A later session is not let in before its end either.
        let later = come(&door, 1, FIRST, 3, 1).expect("it may wait");
        drop(pass);
        assert_eq!(later.standing(), Standing::Waits);
        let raising = tokio::spawn({
            let door = Arc::clone(&door);
            async move { door.ask(Ask::Raise { epoch: 2, controller: SECOND }, LIMIT).await }
        });
        while later.standing() != Standing::Cut {
            tokio::task::yield_now().await;
        }
        drop(later);
        tokio::task::yield_now().await;
        assert!(writes.try_recv().is_err(), "it goes on still");
        assert!(door.begin(1, FIRST, 3).is_none(), "nothing begins while another one comes");
        drop(operation);
        assert_eq!(writes.recv().await.map(|register| register.epoch), Some(2));
        door.written(true);
        assert!(matches!(raising.await.expect("it ends"), Some(Ok(Answer::Raised { .. }))));
        door.shut();
        assert!(door.begin(2, SECOND, 1).is_none());
    }

    #[tokio::test]
    async fn a_later_attempt_waits_and_is_let_in_at_the_end_of_the_earlier_one() {
        let (door, mut writes, told) = door();
        ask(&door, &mut writes, Ask::Raise { epoch: 1, controller: FIRST }).await;
        let first = come(&door, 1, FIRST, 1, 1).expect("the first one");
        let second = come(&door, 1, FIRST, 1, 2).expect("it may wait");
        assert_eq!((first.standing(), second.standing()), (Standing::Cut, Standing::Waits));
        assert!(matches!(come(&door, 1, FIRST, 1, 2), Err(Denied::Never(_))));
        // One that is given up while it waits is in nobody's way.
        let third = come(&door, 1, FIRST, 1, 3).expect("it may wait");
        assert_eq!(second.standing(), Standing::Cut);
        drop(second);
        let before = told.load(Ordering::Relaxed);
        drop(first);
        assert_eq!((third.standing(), told.load(Ordering::Relaxed)), (Standing::Admitted, before + 1));
        drop(third);
        assert_eq!(door.connections(), 0);
    }

    #[tokio::test]
    async fn who_cannot_write_or_is_shut_answers_nobody() {
        let (door, mut writes, _) = door();
        ask(&door, &mut writes, Ask::Raise { epoch: 1, controller: FIRST }).await;
        let pass = come(&door, 1, FIRST, 1, 1).expect("the first one");
        let asked = tokio::spawn({
            let door = Arc::clone(&door);
            async move { door.ask(Ask::Release { epoch: 1, controller: FIRST }, LIMIT).await }
        });
        writes.recv().await.expect("it is to be written");
        door.written(false);
        assert_eq!(asked.await.expect("it ends"), None);
        assert_eq!(pass.standing(), Standing::Cut);
        assert_eq!(door.ask(Ask::Beat { epoch: 1, controller: FIRST }, LIMIT).await, None);
        assert!(come(&door, 1, FIRST, 2, 1).is_err());

        let (door, mut writes, told) = self::door();
        ask(&door, &mut writes, Ask::Raise { epoch: 1, controller: FIRST }).await;
        let pass = come(&door, 1, FIRST, 1, 1).expect("the first one");
        door.shut();
        assert_eq!((pass.standing(), told.load(Ordering::Relaxed)), (Standing::Cut, 1));
        assert!(matches!(come(&door, 1, FIRST, 2, 1), Err(Denied::Now(_))), "it may be opened again");
        assert!(writes.recv().await.is_none(), "whoever writes ends");
        assert_eq!(door.ask(Ask::Beat { epoch: 1, controller: FIRST }, LIMIT).await, None);
        drop(pass);
        assert_eq!(door.connections(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_nobody_waits_for_is_not_begun() {
        let (door, mut writes, _) = door();
        ask(&door, &mut writes, Ask::Raise { epoch: 1, controller: FIRST }).await;
        let pass = come(&door, 1, FIRST, 1, 1).expect("the first one");
        // Its connection is cut; nobody waits for the end of its I/O for longer than this.
        assert_eq!(door.ask(Ask::Raise { epoch: 2, controller: SECOND }, LIMIT).await, None);
        assert!(come(&door, 1, FIRST, 1, 2).is_err(), "it may be asked again at once");
        tokio::time::sleep(ASKED_AGAIN_MAX + Duration::from_millis(1)).await;
        drop(pass);
        tokio::task::yield_now().await;
        assert!(writes.try_recv().is_err(), "nobody has raised it");
        come(&door, 1, FIRST, 1, 2).expect("it goes on");
        // Whoever asks goes away.
        let pass = come(&door, 1, FIRST, 1, 3).expect("a later attempt");
        let asked = tokio::spawn({
            let door = Arc::clone(&door);
            async move { door.ask(Ask::Raise { epoch: 3, controller: SECOND }, LIMIT).await }
        });
        while pass.standing() != Standing::Cut {
            tokio::task::yield_now().await;
        }
        asked.abort();
        tokio::time::sleep(LIMIT + ASKED_AGAIN_MAX + Duration::from_millis(1)).await;
        drop(pass);
        tokio::task::yield_now().await;
        assert!(writes.try_recv().is_err(), "nobody has raised it");
        let raised = ask(&door, &mut writes, Ask::Raise { epoch: 4, controller: SECOND }).await;
        assert!(matches!(raised, Some(Ok(Answer::Raised { .. }))), "{raised:?}");
    }
}
