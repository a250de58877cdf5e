//! Serving a volume that is kept on several nodes: opening it, keeping it, bringing replicas back, and letting go.
//!
//! | step | what may happen | what follows |
//! |---|---|---|
//! | the voters are asked | too few answer, or nobody who holds everything | it waits, and says who is missing |
//! | the replicas are opened, the array above them is started | something fails | it is begun anew, in a higher epoch |
//! | it is served | a replica fails | the array drops it, once the voters agree |
//! | | a replica is back | it is filled, and counts once the voters agree |
//! | | the last replica fails | clients are cut off, and it is opened anew |
//! | | another node opens it | clients are cut off; this node serves it no more |
//!
//! Clients never get an error for any of that: what is not answered is cut off with its connection, and asked again by whoever
//! comes back.

use super::super::change::{Deactivated, Ended};
use super::super::keeping::Keep;
use super::super::tables::{Condition, OpenDisk};
use super::super::{Control, random};
use super::ballot::Ballots;
use super::council::Council;
use super::forced::Forced;
use super::probe::{Read, Standing, standing};
use super::rollback::Rollback;
use super::saved::SavedReplicated;
use super::{Voters, meta::VotedMeta};
use braid_api::{ErrorDetail, Kind};
use braid_engine::replica::{self, VoterId};
use braid_format::MemberState;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use uuid::Uuid;

/// Between two looks at a volume that is served.
const EVERY: Duration = Duration::from_secs(1);
/// Longest that voters are waited for when they are told that nobody serves any more.
const LETTING_GO_MAX: Duration = Duration::from_secs(2);
/// Longest that voters are waited for which are not needed; and at a volume's making, where all are.
const OTHERS_MAX: Duration = Duration::from_secs(2);
const ALL_MAX: Duration = Duration::from_secs(12);
/// Longest that an end waits for voters that are away.
const ENDING_MAX: Duration = Duration::from_secs(8);
/// Longest that the pool on a volume is waited for once everything that it asks for fails.
const CARRIED_MAX: Duration = Duration::from_secs(40);
/// So long a voter may answer another controller, which does not serve.
const REFUSED_MAX: Duration = Duration::from_secs(30);
/// Between two tries to remove what is left on nodes that vote no more.
const CLEARING: Duration = Duration::from_secs(10);
/// Between two openings: at first, and at most.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(15);
/// Between two tries to bring a replica back: at first, and at most.
const BACK: Duration = Duration::from_secs(1);
const BACK_MAX: Duration = Duration::from_secs(60);

/// What runs for one volume on the node that serves it.
pub(super) struct Attached {
    voters: Mutex<Option<Arc<Voters>>>,
    /// It is to end.
    end: watch::Sender<bool>,
    /// It has ended.
    ended: watch::Sender<bool>,
    /// The pool on it was opened, or there is none, or it cannot be.
    carried: watch::Sender<bool>,
    /// The session that was begun last.
    session: AtomicU64,
    /// The boots under which replicas were let in last, by number.
    boots: Mutex<BTreeMap<u8, Uuid>>,
    /// Why it is not served, in one sentence.
    trouble: Mutex<Option<String>>,
    /// The session in which each replica was opened last, by its number.
    sessions: Mutex<BTreeMap<u16, u64>>,
    /// Whoever does something with its snapshots holds this.
    pub(super) snapshots: tokio::sync::Mutex<()>,
    /// Held for reading by those who bring a replica back; for writing by who rolls the volume back.
    pub(super) returning: tokio::sync::RwLock<()>,
    /// What is to be done at the next opening, before anybody is connected to a replica.
    pub(super) rollback: Mutex<Option<Rollback>>,
    pub(super) rolls_back: tokio::sync::Notify,
    /// By whom it is opened the first time, and nobody else is asked.
    forced: Mutex<Option<Forced>>,
    /// What is to be said of voters that were left out by force, one sentence each.
    outside: Mutex<Vec<String>>,
    /// A voter has come, whose replica need not wait to be looked for.
    pub(super) has_come: tokio::sync::Notify,
    /// Some of them may be on some replicas only, and nobody is about to decide that.
    unsettled: AtomicBool,
    /// Whoever changes who votes holds this.
    pub(super) seats: tokio::sync::Mutex<()>,
    /// The replica that is to go.
    leaving: Mutex<Option<u16>>,
    /// So many wait for snapshots that are being brought to a replica.
    pub(super) waiting: AtomicU32,
    /// How many there are, as far as that is known.
    snapshot_count: Mutex<Option<u64>>,
}

/// How one time of serving ended.
enum Over {
    /// Somebody wanted that.
    Ended,
    /// Another node has it.
    Overruled,
    /// It is to be opened anew, to be rolled back.
    RolledBack,
    /// It is to be opened anew.
    Again(String),
}

impl Attached {
    pub(super) fn voters(&self) -> Option<Arc<Voters>> {
        self.voters.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_voters(&self, voters: Option<Arc<Voters>>) {
        *self.voters.lock().unwrap_or_else(PoisonError::into_inner) = voters;
    }

    /// The replica that is to go: it is not brought back.
    pub(super) fn leaving(&self) -> Option<u16> {
        *self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_leaving(&self, leaving: Option<u16>) {
        *self.leaving.lock().unwrap_or_else(PoisonError::into_inner) = leaving;
    }

    /// Why it is not served.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is to be said of voters that were left out by force.
    pub(super) fn outside(&self) -> Vec<String> {
        self.outside.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_outside(&self, said: Vec<String>) {
        *self.outside.lock().unwrap_or_else(PoisonError::into_inner) = said;
    }

    /// Whether nobody serves it any more.
    pub(super) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// In which session a replica was opened last; 0: in none.
    pub(super) fn session_of(&self, role: u16) -> u64 {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).get(&role).copied().unwrap_or(0)
    }

    /// None was opened in this epoch yet.
    pub(super) fn forget_sessions(&self) {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(super) fn set_session(&self, role: u16, session: u64) {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).insert(role, session);
    }

    /// Whether something may be left to decide about snapshots.
    pub(super) fn is_unsettled(&self) -> bool {
        self.unsettled.load(Ordering::Relaxed)
    }

    pub(super) fn set_unsettled(&self, unsettled: bool) {
        self.unsettled.store(unsettled, Ordering::Relaxed);
    }

    /// How many snapshots the volume has, if that is known.
    pub(super) fn snapshot_count(&self) -> Option<u64> {
        *self.snapshot_count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_snapshots(&self, count: u64) {
        *self.snapshot_count.lock().unwrap_or_else(PoisonError::into_inner) = Some(count);
    }

    pub(super) fn next_session(&self) -> u64 {
        self.session.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A replica is none any more: whoever has its number next has nothing of what it had.
    pub(super) fn forget_replica(&self, role: u16) {
        self.boots().remove(&(role as u8));
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(&role);
    }

    pub(super) fn boots(&self) -> MutexGuard<'_, BTreeMap<u8, Uuid>> {
        self.boots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the pool on it was opened, if there is one; not beyond this moment.
    pub(super) async fn carries(&self, until: Instant) {
        let mut carried = self.carried.subscribe();
        let _ = tokio::time::timeout_at(until, carried.wait_for(|carried| *carried)).await;
    }

    async fn wants_to_end(&self) {
        // Never closed as long as this lives.
        let _ = self.end.subscribe().wait_for(|end| *end).await;
    }
}

impl Control {
    /// Begins to serve a volume, where that has not begun yet; `new`: its replicas bear nothing yet. Goes on until [`Control::end_replicated`].
    pub(super) fn begin_replicated(self: &Arc<Self>, uuid: Uuid, new: bool) -> Arc<Attached> {
        self.begin_opening(uuid, new, None)
    }

    /// The same; `forced`: opened the first time by these voters alone.
    pub(super) fn begin_opening(self: &Arc<Self>, uuid: Uuid, new: bool, forced: Option<Forced>) -> Arc<Attached> {
        let attached = Arc::new(Attached {
            voters: Mutex::default(),
            end: watch::Sender::new(false),
            ended: watch::Sender::new(false),
            carried: watch::Sender::new(false),
            session: AtomicU64::new(0),
            boots: Mutex::default(),
            trouble: Mutex::default(),
            sessions: Mutex::default(),
            snapshots: tokio::sync::Mutex::default(),
            returning: tokio::sync::RwLock::default(),
            rollback: Mutex::default(),
            rolls_back: tokio::sync::Notify::new(),
            forced: Mutex::new(forced),
            outside: Mutex::default(),
            has_come: tokio::sync::Notify::new(),
            unsettled: AtomicBool::new(false),
            seats: tokio::sync::Mutex::default(),
            waiting: AtomicU32::new(0),
            leaving: Mutex::default(),
            snapshot_count: Mutex::default(),
        });
        match self.replicated.all().entry(uuid) {
            // Somebody else was faster.
            Entry::Occupied(there) => return Arc::clone(there.get()),
            Entry::Vacant(free) => drop(free.insert(Arc::clone(&attached))),
        }
        let (control, run) = (Arc::clone(self), Arc::clone(&attached));
        tokio::spawn(async move {
            control.run_replicated(uuid, &run, new).await;
            control.replicated.all().remove(&uuid);
            run.ended.send_replace(true);
        });
        attached
    }

    /// Serves what this node served when it ended last.
    pub fn begin_all_replicated(self: &Arc<Self>) {
        // An attachment that had not come to serving when the daemon ended is none.
        let is_served = |volume: &&SavedReplicated| volume.attached && !volume.making && volume.epoch > 0;
        let attached: Vec<Uuid> = self.read().replicated.values().filter(is_served).map(|volume| volume.uuid).collect();
        for uuid in attached {
            self.begin_replicated(uuid, false);
        }
    }

    /// Ends serving a volume: nothing is in flight on it, and its voters know, as far as they could be reached.
    pub(super) async fn end_replicated(&self, uuid: Uuid) {
        let Some(attached) = self.replicated.all().get(&uuid).cloned() else { return };
        let mut ended = attached.ended.subscribe();
        attached.end.send_replace(true);
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Ends serving all of them, all at once.
    pub async fn end_all_replicated(&self) {
        let all: Vec<Uuid> = self.replicated.all().keys().copied().collect();
        // Those that are told to end do so side by side.
        all.iter().for_each(|uuid| {
            if let Some(attached) = self.replicated.all().get(uuid) {
                attached.end.send_replace(true);
            }
        });
        for uuid in all {
            self.end_replicated(uuid).await;
        }
    }

    async fn run_replicated(self: &Arc<Self>, uuid: Uuid, attached: &Arc<Attached>, mut new: bool) {
        let mut again = AGAIN;
        let name = self.read().replicated.get(&uuid).map(|volume| volume.name.clone()).unwrap_or_default();
        loop {
            let begun = Instant::now();
            let over = self.serve_once(uuid, attached, new).await;
            attached.set_voters(None);
            match over {
                Over::Ended => return,
                Over::Overruled => {
                    let message = format!(
                        "enough voters of volume {name} answer another node, which has opened it or was about to; this one has stopped serving it"
                    );
                    self.events().warning("volume_taken", message, &[("volume", &name)]);
                    self.note_attached(uuid, false);
                    return;
                }
                Over::RolledBack => {
                    new = false;
                    continue;
                }
                Over::Again(why) => {
                    // What is still being made is removed by whoever makes it.
                    let is_made = self.read().replicated.get(&uuid).is_some_and(|volume| !volume.making);
                    if new && !is_made {
                        attached.set_trouble(Some(why));
                        return;
                    }
                    self.events().warning("volume_interrupted", format!("volume {name}: {why}"), &[("volume", &name)]);
                    attached.set_trouble(Some(why));
                }
            }
            new = false;
            again = if begun.elapsed() > AGAIN_MAX { AGAIN } else { (2 * again).min(AGAIN_MAX) };
            tokio::select! {
                () = tokio::time::sleep(again) => {}
                () = attached.wants_to_end() => return,
            }
        }
    }

    /// One epoch: from the first question to the voters until nothing is in flight any more.
    async fn serve_once(self: &Arc<Self>, uuid: Uuid, attached: &Arc<Attached>, new: bool) -> Over {
        let lineage = match random() {
            Ok(lineage) => lineage,
            Err(error) => return Over::Again(error.message),
        };
        let ballots = Ballots { control: Arc::downgrade(self), volume: uuid };
        // Once: what comes afterwards goes by the votes again.
        let forced = attached.forced.lock().unwrap_or_else(PoisonError::into_inner).take();
        let above = match forced {
            Some(_) => 0,
            None => match self.may_open(uuid, attached, &ballots).await {
                Ok(above) => above,
                Err(over) => return over,
            },
        };
        let Some(volume) = self.read().replicated.get(&uuid).cloned() else { return Over::Ended };
        let voters = match &forced {
            None => Council::begin(ballots, volume.seating(), volume.controller, lineage, above),
            Some(forced) => match forced.begin(ballots, volume.controller, lineage) {
                Some(voters) => voters,
                None => return Over::Again("its voters' epochs are used up".to_owned()),
            },
        };
        attached.set_voters(Some(Arc::clone(&voters)));
        let chosen = tokio::select! {
            chosen = voters.open(if new { ALL_MAX } else { OTHERS_MAX }) => chosen,
            () = attached.wants_to_end() => {
                voters.let_go(LETTING_GO_MAX).await;
                return Over::Ended;
            }
            () = self.look_for_voters(uuid, &voters), if forced.is_none() => unreachable!("it looks for ever"),
        };
        // Those who vote may be others than was known.
        let Some(volume) = self.note_seating(uuid, &voters.seating()) else { return Over::Ended };
        let Ok(chosen) = chosen else { return Over::Again("others open it at the same time".to_owned()) };
        // From here on whoever finds a higher one knows that somebody else has come. No session of this epoch was begun before.
        if let Err(error) = self.note_epoch(uuid, voters.seen().epoch) {
            voters.let_go(LETTING_GO_MAX).await;
            return Over::Again(error.message);
        }
        self.roll_back_at_opening(&volume, attached, &voters, chosen).await;
        let started = {
            // Whoever wants an end does not wait for voters that are away.
            let ends = Arc::clone(attached);
            let given_up = Arc::clone(&voters);
            let watch = tokio::spawn(async move {
                ends.wants_to_end().await;
                given_up.give_up();
            });
            let started = self.start_replicated(&volume, attached, &voters, chosen, new).await;
            watch.abort();
            started
        };
        if let Err(error) = started {
            // Nothing was answered: nobody need wait.
            voters.let_go(LETTING_GO_MAX).await;
            return Over::Again(error.message);
        }
        attached.set_trouble(None);
        let (control, opening) = (Arc::clone(self), Arc::clone(attached));
        opening.carried.send_replace(false);
        // Not waited for: it needs the lease, and that may go at any time.
        tokio::spawn(async move {
            control.open_carried(uuid).await;
            opening.carried.send_replace(true);
        });
        self.events().info("volume_attached", format!("volume {} is served", volume.name), &[("volume", &volume.name)]);
        let over = self.tend_replicated(&volume, attached, &voters).await;
        self.stop_replicated(&volume, attached, &voters, matches!(over, Over::Ended | Over::RolledBack)).await;
        if !matches!(over, Over::RolledBack) {
            // Who brings snapshots to a replica sees that this is over, and lets go of the one that it reads.
            drop(tokio::time::timeout(LETTING_GO_MAX, attached.snapshots.lock()).await);
        }
        over
    }

    /// Waits until it is known that nobody else has opened the volume since this node did; gives the epoch to go above.
    async fn may_open(&self, uuid: Uuid, attached: &Arc<Attached>, ballots: &Ballots) -> Result<u64, Over> {
        let mut read = Read::default();
        loop {
            let Some(volume) = self.read().replicated.get(&uuid).cloned() else { return Err(Over::Ended) };
            let Some(epoch) = volume.after() else { return Ok(0) };
            let asked = standing(ballots, volume.seating(), &read, epoch, volume.controller);
            let said = tokio::select! {
                said = asked => said,
                () = attached.wants_to_end() => return Err(Over::Ended),
            };
            match said {
                Standing::Ours(above) if above > epoch && self.opened_since(&volume, epoch).await => {
                    return Err(Over::Overruled);
                }
                Standing::Ours(above) => return Ok(above),
                Standing::Others => return Err(Over::Overruled),
                Standing::Unknown => {
                    attached.set_trouble(Some(format!(
                        "too few of its voters answer to say whether another node serves it; if none does, braid volume attach {} goes above whoever did",
                        volume.name
                    )));
                    read = self.go_by_votes(uuid).await;
                }
            }
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                () = attached.wants_to_end() => return Err(Over::Ended),
            }
        }
    }

    /// Opens replicas and serves the array above them.
    async fn start_replicated(
        self: &Arc<Self>,
        volume: &SavedReplicated,
        attached: &Arc<Attached>,
        voters: &Arc<Voters>,
        chosen: replica::Voters,
        new: bool,
    ) -> Result<(), ErrorDetail> {
        let session = attached.next_session();
        let (mut disks, mut last) = (Vec::new(), None);
        for voter in chosen.iter() {
            match self.reach_replica(volume, voters, voter, session).await {
                Ok(disk) => {
                    attached.set_session(u16::from(voter.0), session);
                    attached.boots().insert(voter.0, voters.session_of(voter).2);
                    disks.push(disk);
                }
                Err(error) => {
                    tracing::warn!("volume {}: {}", volume.name, error.message);
                    last = Some(error);
                }
            }
        }
        let all = disks.len() == volume.replicas().len();
        if disks.is_empty() || new && !all {
            self.close_disks(disks).await;
            return Err(last.unwrap_or_else(|| ErrorDetail::new(Kind::Incomplete, "no replica could be opened")));
        }
        let meta = VotedMeta { meta: self.meta.clone(), voters: Some(Arc::clone(voters)) };
        let started = match new {
            true => self.create_above(volume, &meta, &disks).await.map(|array| (array, true)),
            false => self.start_above(volume, &meta, &disks).await,
        };
        match &started {
            Ok(_) if new => attached.set_snapshots(0),
            Ok((array, _)) if volume.is_of_copies() => {
                let in_sync = array.members().filter(|member| member.state == MemberState::InSync);
                let roles: Vec<u16> = in_sync.map(|member| member.number).collect();
                self.settle_at_opening(volume, attached, voters, &roles).await;
            }
            _ => {}
        }
        let kept = match started {
            Ok((array, clean)) => self.keep(array, &disks, Keep { clean, force: false }).await,
            Err(error) => Err(error),
        };
        if kept.is_err() {
            self.close_disks(disks).await;
            return kept;
        }
        // Disks that were opened and are no members now: what they hold is found again when they are brought back.
        let unused: Vec<_> = {
            let tables = self.read();
            let active = tables.arrays.get(&volume.uuid).and_then(|entry| entry.active());
            let seated = |disk: &Arc<OpenDisk>| {
                active.is_some_and(|active| active.disks.iter().any(|seat| seat.disk.leaf == disk.leaf))
            };
            disks.into_iter().filter(|disk| !seated(disk)).collect()
        };
        if let Some(Condition::Active(active)) =
            self.write().arrays.get_mut(&volume.uuid).map(|entry| &mut entry.condition)
        {
            active.guests.retain(|guest| unused.iter().all(|disk| disk.leaf != guest.leaf));
        }
        self.close_disks(unused).await;
        Ok(())
    }

    /// Until it is to end, another node has it, or no replica is left.
    async fn tend_replicated(
        self: &Arc<Self>,
        volume: &SavedReplicated,
        attached: &Arc<Attached>,
        voters: &Arc<Voters>,
    ) -> Over {
        let mut tries: BTreeMap<u16, (Instant, Duration)> = BTreeMap::new();
        let mut returning: BTreeMap<u16, JoinHandle<()>> = BTreeMap::new();
        let mut refused_since: Option<Instant> = None;
        let mut settling: Option<JoinHandle<()>> = None;
        let (mut clearing, mut cleared): (Option<JoinHandle<()>>, _) = (None, Instant::now());
        loop {
            tokio::select! {
                () = attached.wants_to_end() => return Over::Ended,
                () = voters.over() => return Over::Overruled,
                () = attached.rolls_back.notified() => return Over::RolledBack,
                () = attached.has_come.notified() => {}
                () = tokio::time::sleep(EVERY) => {}
            }
            // A change that has ended by itself is noted, too.
            let seating = voters.seating();
            let before = self.read().replicated.get(&volume.uuid).map(SavedReplicated::seating);
            let Some(volume) = self.note_seating(volume.uuid, &seating) else { return Over::Ended };
            if before != Some(volume.seating()) {
                self.save_or_warn();
            }
            if attached.leaving().is_some_and(|role| !seating.all().has(VoterId(role as u8))) {
                attached.set_leaving(None);
            }
            self.give_roles(&volume).await;
            let is_idle = clearing.as_ref().is_none_or(|task| task.is_finished());
            let is_left = !volume.left.is_empty() || volume.outside().next().is_some();
            if is_left && is_idle && cleared.elapsed() > CLEARING {
                cleared = Instant::now();
                let (control, volume) = (Arc::clone(self), volume.clone());
                let (attached, voters) = (Arc::clone(attached), Arc::clone(voters));
                clearing = Some(tokio::spawn(async move {
                    control.remove_left(&volume).await;
                    control.look_outside(&volume, &attached, &voters).await;
                }));
            } else if !is_left {
                attached.set_outside(Vec::new());
            }
            let out: Vec<u16> = {
                let tables = self.read();
                let Some(active) = tables.arrays.get(&volume.uuid).and_then(|entry| entry.active()) else {
                    return Over::Again("its array has stopped".to_owned());
                };
                if active.has_failed() {
                    return Over::Again("its last replica has failed; it is opened anew".to_owned());
                }
                let is_out = |state: MemberState| matches!(state, MemberState::Failed | MemberState::Empty);
                let (replicas, leaving) = (volume.replicas(), attached.leaving());
                let members = active.label.members.iter().zip(0..);
                let stays = |role: u16| seating.voters.has(VoterId(role as u8)) && leaving != Some(role);
                let members = members.filter(|(_, role)| replicas.contains(role) && stays(*role));
                members.filter(|(member, _)| is_out(member.state)).map(|(_, role)| role).collect()
            };
            // One that another node has raised, and left: it answers this one again in an epoch above that.
            match voters.seen().refused.is_empty() {
                true => refused_since = None,
                false if refused_since.get_or_insert_with(Instant::now).elapsed() > REFUSED_MAX => {
                    return Over::Again("a voter was raised by another node, which then gave up".to_owned());
                }
                false => {}
            }
            if !voters.seen().forgot.is_empty() {
                let left = tokio::select! {
                    left = self.leave_forgetful_out(&volume, attached, voters) => left,
                    () = attached.wants_to_end() => return Over::Ended,
                    () = voters.over() => return Over::Overruled,
                };
                if let Err(error) = left {
                    return Over::Again(format!("a replica is not what it was, and without it: {}", error.message));
                }
            }
            if attached.is_unsettled() && settling.as_ref().is_none_or(|task| task.is_finished()) {
                let (control, volume) = (Arc::clone(self), volume.clone());
                let (attached, voters) = (Arc::clone(attached), Arc::clone(voters));
                settling = Some(tokio::spawn(async move { control.settle_later(&volume, &attached, &voters).await }));
            }
            tries.retain(|role, _| out.contains(role));
            returning.retain(|_, task| !task.is_finished());
            for role in out.into_iter().filter(|role| !returning.contains_key(role)).collect::<Vec<_>>() {
                let (at, wait) = tries.get(&role).copied().unwrap_or((Instant::now(), BACK));
                if at > Instant::now() {
                    continue;
                }
                tries.insert(role, (Instant::now() + wait, (2 * wait).min(BACK_MAX)));
                // In a task of its own: it may wait, and goes to its end whatever comes.
                let (control, volume) = (Arc::clone(self), volume.clone());
                let (attached, voters) = (Arc::clone(attached), Arc::clone(voters));
                let task = tokio::spawn(async move {
                    if let Err(error) = control.bring_back(&volume, &attached, &voters, role).await {
                        tracing::info!("volume {}: {}", volume.name, error.message);
                    }
                });
                returning.insert(role, task);
            }
        }
    }

    /// Ends the service of the array, then lets go. `clean`: it ends because somebody wants it to.
    async fn stop_replicated(
        self: &Arc<Self>,
        volume: &SavedReplicated,
        attached: &Arc<Attached>,
        voters: &Arc<Voters>,
        clean: bool,
    ) {
        // Before anything fails: clients hear nothing of it, and come back.
        self.silence_exports(volume.uuid).await;
        self.silence_carried(volume.uuid).await;
        let (control, opening, uuid) = (Arc::clone(self), Arc::clone(attached), volume.uuid);
        let mut carried = tokio::spawn(async move {
            // Never closed as long as it lives.
            let _ = opening.carried.subscribe().wait_for(|carried| *carried).await;
            control.close_carried(uuid).await;
        });
        if clean && tokio::time::timeout(ENDING_MAX, &mut carried).await.is_err() {
            tracing::warn!(
                "volume {}: the pool on it was not closed in time; the next opening does the rest",
                volume.name
            );
        }
        let given_up = Arc::clone(voters);
        let watch = tokio::spawn(async move {
            tokio::time::sleep(ENDING_MAX).await;
            given_up.give_up();
        });
        if let Some(Deactivated { entry, disks, array, device }) = self.take_down(volume.uuid, false).await {
            // Whatever the pool waited for has failed by now, or a disk hangs: then nobody gets that device before the daemon ends.
            let closing = async {
                if !carried.is_finished() {
                    let _ = carried.await;
                }
                // Whoever was just making one has met that.
                self.close_carried(volume.uuid).await;
            };
            let closed = tokio::time::timeout(CARRIED_MAX, closing).await.is_ok();
            if let Some(device) = device.filter(|_| closed) {
                self.write().give_device(device);
            }
            if let Some(mut ended @ Ended::Kept(_)) = array
                && clean
            {
                self.mark_clean(&volume.name, &disks, &mut ended).await;
            }
            drop(entry);
            self.close_disks(disks).await;
        }
        watch.abort();
        self.write().arrays.remove(&volume.uuid);
        voters.let_go(LETTING_GO_MAX).await;
    }

    /// Remembers whether this node is to serve a volume.
    pub(super) fn note_attached(&self, uuid: Uuid, attached: bool) {
        if let Some(volume) = self.write().replicated.get_mut(&uuid) {
            volume.attached = attached;
        }
        self.save_or_warn();
    }

    fn note_epoch(&self, uuid: Uuid, epoch: u64) -> Result<(), ErrorDetail> {
        if let Some(volume) = self.write().replicated.get_mut(&uuid) {
            volume.epoch = epoch;
        }
        self.save()
    }
}
