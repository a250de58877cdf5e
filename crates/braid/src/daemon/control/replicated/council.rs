//! The voters of a volume that is kept on several nodes, as its controller talks to them: one task each asks what is to be asked.
//!
//! What follows from their answers is the engine's ([`braid_engine::replica`]); here is only who asks whom and when, and who
//! waits for what. The array above asks [`Council::agree`] who is in sync; the shards hold its answers back when its
//! [`Council::lease`] has run out.

mod turn;

use braid_engine::DeviceLease;
use braid_engine::replica::{
    Answer, Ask, Lease, Membership, Next, Opening, Refused, Seating, VOTERS_MAX, Vote, VoterId, Voters, Wanted,
};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use uuid::Uuid;

/// Between two questions whether the epoch still is the one.
const BEAT: Duration = Duration::from_secs(1);
/// After a voter that did not answer.
const AGAIN: Duration = Duration::from_millis(250);
/// Longest that an answer is waited for: one that comes later says nothing about the lease any more.
pub const ANSWER_MAX: Duration = Duration::from_secs(4);
/// So many higher epochs are gone above while it is being opened: then others are faster.
const REFUSALS_MAX: u32 = 4;
/// Longest that a newcomer may take to hear that it is in sync.
const TOLD_MAX: Duration = Duration::from_secs(5);

/// Why a voter did not answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unanswered {
    /// It answers another controller.
    Refused(Refused),
    /// It cannot be reached, or cannot promise anything; why.
    Away(String),
}

/// How voters are asked.
pub trait Ballot: Send + Sync + 'static {
    /// Asks a voter something. Given up, it may have been asked or not.
    fn ask(&self, voter: VoterId, ask: Ask) -> impl Future<Output = Result<Answer, Unanswered>> + Send;

    /// Now, by the clock that the shards go by.
    fn now_ns(&self) -> u64;

    /// Answers may be given under this lease until then: tells the shards that keep some.
    fn renew(&self, lease: &DeviceLease, until_ns: u64);
}

/// Somebody else has opened the volume, or it cannot be served any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overruled;

enum Phase {
    Opening(Box<Opening>),
    Serving(Box<Membership>),
}

struct State {
    epoch: u64,
    raised: Voters,
    lease: Lease,
    phase: Phase,
    /// Under which boot each voter answered last, by number.
    boots: [Uuid; VOTERS_MAX],
    /// Why each voter did not answer the last time, by number.
    away: [Option<String>; VOTERS_MAX],
    /// Whom somebody asks.
    seated: Voters,
    /// Counts the changes of voters.
    changes: u16,
    /// How often each voter was found to be somewhere else, by number: what was asked of it before says nothing of it.
    moves: [u32; VOTERS_MAX],
    /// Another controller has a higher epoch, or this one has let go.
    over: bool,
    let_go: bool,
    released: Voters,
    /// Who answers another controller, while it is served.
    refused: Voters,
    /// Who was raised to this epoch, whether he answers or not.
    promised: Voters,
    /// Who of them has a register from before, while it is served: he is to be told the vote again; and if he has a replica, that is not what
    /// it was.
    untold: Voters,
    forgot: Voters,
    /// It is opened only if nobody else has come since the epoch that it began above.
    bounded: bool,
    /// How often a higher epoch was met while it was being opened.
    refusals: u32,
}

/// What can be seen of the voters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The epoch that was asked for.
    pub epoch: u64,
    /// Who answers it.
    pub raised: Voters,
    /// Who is in sync by the votes; nobody while it is being opened.
    pub in_sync: Voters,
    /// Replicas that hold everything and are missing, while it cannot be opened without them.
    pub missing: Voters,
    /// Who answers another controller, while it is served.
    pub refused: Voters,
    /// Replicas that are to be left out and filled from nothing, as their nodes have forgotten this epoch.
    pub forgot: Voters,
    /// Why a voter did not answer, by number.
    pub away: [Option<String>; VOTERS_MAX],
    /// It is over.
    pub over: bool,
}

/// The voters of one volume, and one controller's standing with them.
pub struct Council<B> {
    ballot: B,
    controller: Uuid,
    lineage: u64,
    state: Mutex<State>,
    /// Counted up with each answer.
    changed: watch::Sender<u64>,
    lease: Arc<DeviceLease>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl<B> Drop for Council<B> {
    fn drop(&mut self) {
        self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner).iter().for_each(AbortHandle::abort);
    }
}

impl<B: Ballot> Council<B> {
    /// Begins to ask all voters, in an epoch above `above`; where that is 0, above whatever they answer, else only if nobody else raises
    /// a higher one meanwhile. `controller` and `lineage` are random. `known`: who votes, as far as is known; the voters may know better.
    pub fn begin(ballot: B, known: Seating, controller: Uuid, lineage: u64, above: u64) -> Arc<Council<B>> {
        let opening = Opening::new(known, controller, lineage).above(above);
        Council::begin_by(ballot, opening, known.all(), (controller, lineage), above > 0)
    }

    /// Begins to ask these by an opening that is given, of this controller and lineage. `bounded`: only as long as nobody raises a higher epoch.
    pub fn begin_by(
        ballot: B,
        opening: Opening,
        asked: Voters,
        (controller, lineage): (Uuid, u64),
        bounded: bool,
    ) -> Arc<Council<B>> {
        let council = Arc::new(Council {
            ballot,
            controller,
            lineage,
            state: Mutex::new(State {
                epoch: opening.epoch(),
                raised: Voters::NONE,
                lease: Lease::default(),
                phase: Phase::Opening(Box::new(opening)),
                boots: [Uuid::nil(); VOTERS_MAX],
                away: Default::default(),
                seated: Voters::NONE,
                changes: 0,
                moves: [0; VOTERS_MAX],
                over: false,
                let_go: false,
                released: Voters::NONE,
                refused: Voters::NONE,
                promised: Voters::NONE,
                untold: Voters::NONE,
                forgot: Voters::NONE,
                bounded,
                refusals: 0,
            }),
            changed: watch::Sender::new(0),
            lease: Arc::new(DeviceLease::new(0)),
            tasks: Mutex::default(),
        });
        council.seat(asked);
        council
    }

    /// Begins to ask these voters, too.
    pub fn seat(self: &Arc<Self>, voters: Voters) {
        let new = {
            let mut state = self.state();
            let new = voters.without(state.seated);
            state.seated = state.seated.or(new);
            new
        };
        for voter in new.iter() {
            let (weak, changed) = (Arc::downgrade(self), self.changed.subscribe());
            let task = tokio::spawn(async move {
                let mut changed = changed;
                // It ends with the council.
                while let Some(council) = weak.upgrade() {
                    // What changes from here on is looked at in the next turn.
                    changed.mark_unchanged();
                    let wait = council.turn(voter).await;
                    council.seat_all();
                    drop(council);
                    if let Some(wait) = wait {
                        let _ = tokio::time::timeout(wait, changed.changed()).await;
                    }
                }
            });
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            tasks.push(task.abort_handle());
        }
    }

    /// Asks whoever is to be asked by now.
    fn seat_all(self: &Arc<Self>) {
        let all = match &self.state().phase {
            Phase::Opening(opening) => opening.unraised(),
            Phase::Serving(membership) => membership.seating().all(),
        };
        self.seat(all);
    }

    /// These are somewhere else than was thought: whoever has answered was somebody else, and so is whoever answers a question of before.
    pub fn moved(&self, voters: Voters) {
        if voters.is_empty() {
            return;
        }
        let now = self.ballot.now_ns();
        let mut state = self.state();
        voters.iter().for_each(|voter| state.moves[usize::from(voter.0)] += 1);
        if let Phase::Opening(opening) = &mut state.phase {
            voters.iter().for_each(|voter| opening.moved(voter, now));
            state.raised = state.raised.without(voters);
        }
        turn::begun_anew(&mut state);
        drop(state);
        self.tell();
    }

    /// Who votes, as far as the votes say.
    pub fn seating(&self) -> Seating {
        match &self.state().phase {
            Phase::Opening(opening) => opening.seating(),
            Phase::Serving(membership) => membership.settled().seating,
        }
    }

    /// The vote that counts. None: it is not served.
    pub fn settled(&self) -> Option<Vote> {
        match &self.state().phase {
            Phase::Opening(_) => None,
            Phase::Serving(membership) => Some(*membership.settled()),
        }
    }

    /// The version for the next change of who votes.
    ///
    /// # Errors
    /// It is not served, or there were too many changes.
    pub fn next_version(&self) -> Result<u64, Overruled> {
        let mut state = self.state();
        state.changes = state.changes.checked_add(1).ok_or(Overruled)?;
        Seating::version_of(state.epoch, state.changes).ok_or(Overruled)
    }

    /// Begins a change of who votes: `next` is a beginning of one of what [`Council::seating`] says. It goes on by itself then. False: it
    /// has not begun, as something else is voted for, or a replica in sync would lose its vote.
    ///
    /// # Errors
    /// Another controller is answered now; nothing has begun.
    pub fn change(self: &Arc<Self>, next: &Seating) -> Result<bool, Overruled> {
        {
            let mut state = self.state();
            if state.over {
                return Err(Overruled);
            }
            let Phase::Serving(membership) = &mut state.phase else { return Err(Overruled) };
            if !membership.change(*next) {
                return Ok(false);
            }
            // Who comes is not the one that was there under its number.
            let new = next.voters.without(next.before);
            new.iter().for_each(|voter| state.moves[usize::from(voter.0)] += 1);
            state.raised = state.raised.without(new);
            state.refused = state.refused.without(new);
            state.promised = state.promised.without(new);
            state.untold = state.untold.without(new);
            state.forgot = state.forgot.without(new);
        }
        self.seat(next.all());
        self.tell();
        Ok(true)
    }

    /// Waits until a change that has begun counts, and those of before do not any more.
    ///
    /// # Errors
    /// Another controller is answered now.
    pub async fn changed_to(&self, next: &Seating) -> Result<(), Overruled> {
        let mut changed = self.changed.subscribe();
        loop {
            {
                let state = self.state();
                if state.over {
                    return Err(Overruled);
                }
                let Phase::Serving(membership) = &state.phase else { return Err(Overruled) };
                if membership.settled().seating == next.settled() {
                    return Ok(());
                }
            }
            let _ = changed.changed().await;
        }
    }

    /// Under which answers are given.
    pub fn lease(&self) -> &Arc<DeviceLease> {
        &self.lease
    }

    /// Which controller of which epoch asks, and under which boot a voter was met: what a session with its replica bears.
    pub fn session_of(&self, voter: VoterId) -> (u64, Uuid, Uuid) {
        let state = self.state();
        (state.epoch, self.controller, state.boots[usize::from(voter.0)])
    }

    /// Whether a voter answers this controller's epoch.
    pub fn is_raised(&self, voter: VoterId) -> bool {
        self.state().raised.has(voter)
    }

    /// What can be seen.
    pub fn seen(&self) -> Seen {
        let state = self.state();
        let (in_sync, missing) = match &state.phase {
            Phase::Serving(membership) => (membership.settled().in_sync, Voters::NONE),
            Phase::Opening(opening) => match opening.next(self.ballot.now_ns()) {
                Next::Missing(_, _, missing) => (Voters::NONE, missing),
                _ => (Voters::NONE, Voters::NONE),
            },
        };
        let State { epoch, raised, refused, forgot, over, .. } = *state;
        Seen { epoch, raised, in_sync, missing, refused, forgot, away: state.away.clone(), over }
    }

    /// Waits until it is over: another controller was met that has a higher epoch.
    pub async fn over(&self) {
        let mut changed = self.changed.subscribe();
        while !self.state().over {
            let _ = changed.changed().await;
        }
    }

    /// Opens: gives the replicas that are to be made equal, and of which it is then told by [`Council::agree`] who is. Waits as long as
    /// too few voters answer, or none of those that hold everything; and, once enough do, so long for the others: whoever is left out
    /// has to be brought up to date afterwards.
    ///
    /// # Errors
    /// Others open it all the time.
    pub async fn open(&self, patience: Duration) -> Result<Voters, Overruled> {
        let mut changed = self.changed.subscribe();
        let mut waits_until = None;
        loop {
            let until = {
                let mut state = self.state();
                if state.over {
                    return Err(Overruled);
                }
                let now = self.ballot.now_ns();
                let Phase::Opening(opening) = &mut state.phase else { return Err(Overruled) };
                let raised = opening.unraised();
                match opening.next(now) {
                    Next::MakeEqual(chosen) => {
                        let until = *waits_until.get_or_insert(now.saturating_add(patience.as_nanos() as u64));
                        if raised.is_empty() || now >= until {
                            opening.choose(chosen);
                            return Ok(chosen);
                        }
                        until - now
                    }
                    Next::Wait(_, _, until) => {
                        // Enough are raised: the others are asked while the lease of whoever was cut off runs out, not after that.
                        waits_until.get_or_insert(now.saturating_add(patience.as_nanos() as u64));
                        until.saturating_sub(now).max(1)
                    }
                    _ => {
                        waits_until = None;
                        u64::MAX
                    }
                }
            };
            let _ = tokio::time::timeout(Duration::from_nanos(until), changed.changed()).await;
        }
    }

    /// Has it remembered by enough voters that these are in sync; flushed they are already. Gives those of them that did not take the
    /// word that they are, and do not count.
    ///
    /// # Errors
    /// Another controller is answered now.
    pub async fn agree(&self, in_sync: Voters) -> Result<Voters, Overruled> {
        let newcomers = self.propose(in_sync)?;
        let mut untold = Voters::NONE;
        let mut changed = self.changed.subscribe();
        let told_until = tokio::time::Instant::now() + TOLD_MAX;
        loop {
            match self.is_settled()? {
                true => return Ok(untold),
                false if newcomers.is_empty() || !untold.is_empty() => drop(changed.changed().await),
                false => {
                    if tokio::time::timeout_at(told_until, changed.changed()).await.is_err() {
                        untold = self.leave_untold(newcomers)?;
                    }
                }
            }
        }
    }

    /// Asks a voter anew under which boot its node is, for a replica that is not in sync and is to be filled. False: it does not answer.
    pub async fn meet(&self, voter: VoterId) -> bool {
        let mut changed = self.changed.subscribe();
        {
            let mut state = self.state();
            let Phase::Serving(membership) = &state.phase else { return false };
            if state.over || membership.in_sync().has(voter) {
                return false;
            }
            state.raised.remove(voter);
        }
        self.tell();
        let answers = async {
            while !self.is_raised(voter) {
                let _ = changed.changed().await;
            }
        };
        if tokio::time::timeout(ANSWER_MAX, answers).await.is_err() {
            return false;
        }
        let mut state = self.state();
        let boot = state.boots[usize::from(voter.0)];
        let Phase::Serving(membership) = &mut state.phase else { return false };
        let is_out = !membership.in_sync().has(voter);
        if is_out {
            membership.met(voter, boot);
        }
        is_out
    }

    /// A replica that has forgotten this epoch has nothing any more that counts: it may be filled.
    pub fn begins_from_nothing(&self, voter: VoterId) {
        self.state().forgot.remove(voter);
        self.tell();
    }

    /// Nobody waits for voters any more: whoever does is told that it is over.
    pub fn give_up(&self) {
        self.state().over = true;
        self.tell();
    }

    /// Says to the voters that this controller has stopped: nothing is in flight any more, and it answers nothing. Waits for them, but
    /// not for long.
    pub async fn let_go(&self, limit: Duration) {
        {
            let mut state = self.state();
            (state.let_go, state.released) = (true, Voters::NONE);
        }
        self.tell();
        let mut changed = self.changed.subscribe();
        let all = async {
            loop {
                {
                    let state = self.state();
                    if state.over || state.raised.without(state.released).is_empty() {
                        return;
                    }
                }
                let _ = changed.changed().await;
            }
        };
        let _ = tokio::time::timeout(limit, all).await;
        self.state().over = true;
        self.tell();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// Proposes to the voters who is in sync, and gives who is so newly.
    fn propose(&self, in_sync: Voters) -> Result<Voters, Overruled> {
        let mut state = self.state();
        if state.over {
            return Err(Overruled);
        }
        let newcomers = match &mut state.phase {
            Phase::Opening(opening) => {
                let before = opening.epoch();
                opening.equal(in_sync);
                if opening.epoch() != before {
                    // Somebody raised a higher epoch meanwhile: it begins anew, with new sessions.
                    return Err(Overruled);
                }
                in_sync
            }
            Phase::Serving(membership) => {
                let before = membership.in_sync();
                before.without(in_sync).iter().for_each(|voter| membership.fail(voter));
                if membership.wanted() == Wanted::Frozen {
                    return Err(Overruled);
                }
                Self::flushed(membership);
                let newcomers = in_sync.without(before);
                for voter in newcomers.iter() {
                    if !membership.promote(voter) {
                        return Err(Overruled);
                    }
                }
                newcomers
            }
        };
        drop(state);
        self.tell();
        Ok(newcomers)
    }

    /// Whoever asks has flushed them.
    fn flushed(membership: &mut Membership) {
        if let Wanted::Flush(voters) = membership.wanted() {
            voters.iter().for_each(|voter| membership.flushed(voter));
        }
    }

    /// Whether what was proposed counts. An opening that has all votes serves from then on.
    fn is_settled(&self) -> Result<bool, Overruled> {
        let mut state = self.state();
        if state.over {
            return Err(Overruled);
        }
        let opened = match &mut state.phase {
            Phase::Serving(membership) => return Ok(membership.wanted() == Wanted::Nothing),
            Phase::Opening(opening) => match opening.next(self.ballot.now_ns()) {
                Next::Open => opening.opened(),
                Next::Cast(..) => None,
                // It began anew.
                _ => return Err(Overruled),
            },
        };
        let Some(opened) = opened else { return Ok(false) };
        state.phase = Phase::Serving(Box::new(Membership::new(&opened, self.lineage.rotate_left(23))));
        let until = lease_until(&state);
        drop(state);
        if let Some(until) = until {
            self.ballot.renew(&self.lease, until);
        }
        Ok(true)
    }

    /// Newcomers that did not take the vote in time have failed. An opening begins anew.
    fn leave_untold(&self, newcomers: Voters) -> Result<Voters, Overruled> {
        let mut state = self.state();
        match &mut state.phase {
            Phase::Opening(_) => Err(Overruled),
            Phase::Serving(membership) => {
                newcomers.iter().for_each(|voter| membership.fail(voter));
                if membership.wanted() == Wanted::Frozen {
                    return Err(Overruled);
                }
                Self::flushed(membership);
                drop(state);
                self.tell();
                Ok(newcomers)
            }
        }
    }
}

/// Until when answers may be given; none: not at all, or nobody knows yet whom that takes.
fn lease_until(state: &State) -> Option<u64> {
    match &state.phase {
        Phase::Opening(_) => None,
        Phase::Serving(membership) => state.lease.until_ns(membership.lease_sets()),
    }
}
