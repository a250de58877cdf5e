//! Voters that come and go, while the volume is served.
//!
//! | a voter comes | after the end of its controller |
//! |---|---|
//! | it is made on its node, with a register that says since when it votes | nobody asks it; it is removed by whoever wants to come there again |
//! | the list with it is noted here, then voted for by enough of those of before and of those that come | whoever opens the volume goes by what the voters say, and ends the change |
//! | enough of the new ones know that those of before alone count no more | it votes |
//! | a replica is filled, like any other that is out | it is filled |
//!
//! | a voter goes | |
//! |---|---|
//! | a replica is left out, by votes, and off the table of members | it comes back |
//! | the list without it is voted for in the same two steps | whoever opens the volume ends the change |
//! | it is removed on its node; where that does not answer, this is tried again as long as the volume is served here | it stays there |

use super::super::Control;
use super::bringing::Waits;
use super::outside::outside_on;
use super::saved::{SavedLeft, SavedReplicated, SavedVoter};
use super::snapshots::{CHANGING_MAX, Serving};
use braid_api::limits::REPLICAS_MAX;
use braid_api::{AddVoter, ErrorDetail, Kind, PoolState, Replica, ReplicaChange, ReplicatedVolume};
use braid_engine::keeper::Order;
use braid_engine::replica::{Quorums, Seating, VOTERS_MAX, VoterId};
use braid_format::MemberState;
use hyper::Method;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Longest that whoever asks waits for the votes of a change: then it goes on by itself.
const VOTES_MAX: Duration = Duration::from_secs(20);
/// Longest that a change waits for other votes, and for replicas that are just coming back.
const TURN_MAX: Duration = Duration::from_secs(30);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(100);
/// Longest that a node may take to remove a replica.
const REMOVING_MAX: Duration = Duration::from_secs(20);

impl Control {
    /// Takes a replica or a witness in. It votes when this returns; a replica is filled from then on.
    ///
    /// # Errors
    /// This node does not serve the volume; the node is not known, has one already, or cannot make it; too few voters agree. Only with the
    /// last of these is anything left: then the change goes on.
    pub async fn add_voter(self: &Arc<Self>, name: &str, ask: &AddVoter) -> Result<ReplicatedVolume, ErrorDetail> {
        let serving = self.serving(name)?;
        let attached = Arc::clone(&serving.attached);
        let _one_at_a_time = attached.seats.lock().await;
        let voter = SavedVoter::of(ask.node.clone(), ask.pool.clone());
        self.seat_voter(name, voter).await?;
        self.replicated_volume(name)
    }

    /// Leaves a replica or a witness out for good, and removes it on its node.
    ///
    /// # Errors
    /// This node does not serve the volume, has no such voter, or cannot do without it; too few voters agree. Where its node does not answer, or
    /// keeps it as somebody reads it there, it is out all the same, and this is said.
    pub async fn remove_voter(self: &Arc<Self>, name: &str, node: &str) -> Result<ReplicatedVolume, ErrorDetail> {
        let serving = self.serving(name)?;
        let attached = Arc::clone(&serving.attached);
        let _one_at_a_time = attached.seats.lock().await;
        if let Some(number) = outside_on(&serving.volume, node) {
            let removed = self.remove_outside(&serving.volume, number).await;
            attached.set_outside(Vec::new());
            removed?;
            return self.replicated_volume(name);
        }
        let (_, removed) = self.unseat_voter(name, node).await?;
        removed?;
        self.replicated_volume(name)
    }

    /// Makes a replica anew from nothing, where it was, or in another pool of its node: whatever it had is gone.
    ///
    /// # Errors
    /// As [`Control::remove_voter`] and [`Control::add_voter`].
    pub async fn rebuild_voter(
        self: &Arc<Self>,
        name: &str,
        node: &str,
        pool: Option<&str>,
    ) -> Result<ReplicatedVolume, ErrorDetail> {
        let serving = self.serving(name)?;
        let attached = Arc::clone(&serving.attached);
        let _one_at_a_time = attached.seats.lock().await;
        let outside = outside_on(&serving.volume, node);
        let number = outside.map_or_else(|| voter_on(&serving.volume, node), Ok)?;
        if serving.volume.voters.get(&number).is_some_and(|voter| voter.pool.is_none()) {
            return Err(ErrorDetail::new(Kind::InvalidArgument, format!("{node} is a witness of volume {name}"))
                .with("volume", name)
                .remedy(format!("braid replica remove {name} {node}; braid replica add {name} --witness {node}")));
        }
        // Where it is made anew has to be there: otherwise the volume would only have lost it.
        let there = serving.volume.voters.get(&number).cloned().ok_or_else(|| over(name))?;
        let there = SavedVoter { pool: pool.map(str::to_owned).or(there.pool), ..there };
        self.pool_is_there(&there).await?;
        match outside {
            Some(number) => {
                let removed = self.remove_outside(&serving.volume, number).await;
                attached.set_outside(Vec::new());
                removed?;
            }
            None => self.unseat_voter(name, node).await?.1?,
        }
        let place = format!("{}/{}", there.node, there.pool.clone().unwrap_or_default());
        self.seat_voter(name, there).await.map_err(|error| ErrorDetail {
            message: format!("{}; what was there is removed, and out of volume {name}", error.message),
            remedy: format!("{}; then braid replica add {name} {place}", error.remedy),
            ..error
        })?;
        self.replicated_volume(name)
    }

    /// Notes that something is to be removed on a node.
    pub(super) fn note_left(&self, uuid: Uuid, node: &str, since: u64) {
        let left = SavedLeft { node: node.to_owned(), since };
        if let Some(volume) = self.write().replicated.get_mut(&uuid)
            && !volume.left.contains(&left)
        {
            volume.left.push(left);
        }
        self.save_or_warn();
    }

    /// Tries once to remove what is left on nodes that vote no more.
    pub(super) async fn remove_left(&self, volume: &SavedReplicated) {
        for left in volume.left.iter().filter(|left| volume.seated().all(|(_, voter)| voter.node != left.node)) {
            if let Err(error) = self.remove_there(volume, &left.node, Some(left.since)).await {
                tracing::debug!("what volume {} left on node {}: {}", volume.name, left.node, error.message);
                continue;
            }
            let message = format!("what volume {} had left on node {} is removed", volume.name, left.node);
            self.events().info("voter_cleared", message, &[("volume", &volume.name)]);
            if let Some(volume) = self.write().replicated.get_mut(&volume.uuid) {
                volume.left.retain(|other| other != left);
            }
            self.save_or_warn();
        }
    }

    async fn pool_is_there(&self, voter: &SavedVoter) -> Result<(), ErrorDetail> {
        let answer = self.nodes().call(&voter.node, Method::GET, "/v1/pools", None).await?;
        let list: braid_api::PoolList =
            serde_json::from_value(answer).map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))?;
        let pool = voter.pool.as_deref().unwrap_or_default();
        match list.pools.iter().find(|there| there.name == pool).map(|there| there.state) {
            Some(PoolState::Active) => Ok(()),
            Some(_) => {
                Err(ErrorDetail::new(Kind::Inactive, format!("pool {pool} of node {} does not serve", voter.node))
                    .with("pool", pool)
                    .remedy(format!("braid pool show {pool} there; or another pool: --pool")))
            }
            None => Err(ErrorDetail::new(Kind::NotFound, format!("node {} has no pool {pool}", voter.node))
                .with("pool", pool)
                .remedy("braid pool list there; --pool names another one")),
        }
    }

    /// Enough of those who are to vote have to answer: a change that too few hear of cannot be taken back, and holds the volume up.
    fn enough_answer(&self, serving: &Serving, next: &Seating, new: Option<u8>) -> Result<(), ErrorDetail> {
        let Serving { volume, voters, .. } = serving;
        let seen = voters.seen();
        let answers = |voter: &VoterId| {
            Some(voter.0) == new || seen.raised.has(*voter) && seen.away[usize::from(voter.0)].is_none()
        };
        let silent: Vec<String> =
            next.voters.iter().filter(|voter| !answers(voter)).map(|voter| volume.voter_name(voter.0)).collect();
        let needed = Quorums::of(next.voters.count()).open;
        if next.voters.count() - silent.len() >= needed {
            return Ok(());
        }
        let (name, silent) = (&volume.name, silent.join(", "));
        let message = format!(
            "of the voters that volume {name} would have {needed} are needed, and these do not answer: {silent}"
        );
        Err(ErrorDetail::new(Kind::Incomplete, message).with("volume", name).remedy(format!(
            "bring them back; or, if they are gone for ever, remove them first: braid replica remove {name} NODE"
        )))
    }

    async fn seat_voter(self: &Arc<Self>, name: &str, voter: SavedVoter) -> Result<(), ErrorDetail> {
        let serving = self.settled_serving(name).await?;
        let seated = self.seat_one(&serving, voter).await;
        if seated.is_err() {
            // The mirror may have got a role for it.
            self.narrow(&serving.volume).await;
        }
        seated
    }

    async fn seat_one(self: &Arc<Self>, serving: &Serving, voter: SavedVoter) -> Result<(), ErrorDetail> {
        let Serving { volume, voters, .. } = serving;
        let name = &volume.name;
        let (seating, node) = (voters.seating(), voter.node.clone());
        self.may_come(volume, &voter)?;
        self.clear_outside(volume).await;
        let number = self.free_number(volume, &seating, voter.pool.is_some())?;
        if voter.pool.is_some() {
            self.widen(volume, u16::from(number)).await?;
        }
        let version = voters.next_version().map_err(|_| over(name))?;
        let full = || ErrorDetail::new(Kind::LimitReached, format!("volume {name} has no seat for another voter"));
        let next = seating.with(VoterId(number), voter.pool.is_some(), version).ok_or_else(full)?;
        self.enough_answer(serving, &next, Some(number))?;
        let mut places = listed(volume);
        // Whoever was there by force of another opening is not waited for any more.
        places.retain(|_, other| other.node != node);
        places.insert(number, SavedVoter { since: version, outside: false, ..voter });
        let listed =
            SavedReplicated { voters: places, seating: super::super::replicas::show_seating(&next), ..volume.clone() };
        let in_sync = voters.seen().in_sync.bits();
        if let Err(error) = self.make_one(&listed, number, in_sync).await {
            // What a change left that never came to votes.
            if error.kind == Kind::Exists && outside_on(volume, &node).is_some() {
                return Err(error.remedy(format!(
                    "that is what it had when the volume was opened by force: braid replica rebuild {name} {node}, which loses it"
                )));
            }
            if error.kind != Kind::Exists || !self.remove_leftover(serving, &node).await {
                if matches!(error.kind, Kind::TimedOut | Kind::Unreachable) {
                    // It may be made all the same.
                    self.note_left(volume.uuid, &node, version);
                }
                return Err(error);
            }
            self.make_one(&listed, number, in_sync).await?;
        }
        let changed = self.change_seating(serving, &listed, next).await;
        if let Err((error, begun)) = changed {
            if !begun {
                let _ = self.remove_there(volume, &node, Some(version)).await;
            }
            return Err(error);
        }
        let message = format!("{} is a voter of volume {name}", listed.voter_name(number));
        self.events().info("voter_added", message, &[("volume", name)]);
        serving.attached.has_come.notify_one();
        Ok(())
    }

    /// Gives who it was, and what came of its removal there.
    async fn unseat_voter(
        self: &Arc<Self>,
        name: &str,
        node: &str,
    ) -> Result<(SavedVoter, Result<(), ErrorDetail>), ErrorDetail> {
        let serving = self.settled_serving(name).await?;
        let Serving { volume, attached, voters } = &serving;
        let number = voter_on(volume, node)?;
        let shown = volume.voter_name(number);
        let role = u16::from(number);
        let voter = volume.voters.get(&number).cloned().ok_or_else(|| over(name))?;
        self.may_go(volume, number)?;
        if let Some(next) = voters.seating().without(VoterId(number), u64::MAX) {
            self.enough_answer(&serving, &next, None)?;
        }
        let since = voter.since;
        attached.set_leaving(Some(role));
        let left = self.leave_replica_out(&serving, role).await;
        let mut begun = false;
        let result = match left {
            Ok(()) => {
                let version = voters.next_version().map_err(|_| over(name));
                let next = version.map(|version| voters.seating().without(VoterId(number), version));
                match next {
                    Ok(Some(next)) => {
                        let listed = SavedReplicated {
                            voters: listed(volume),
                            seating: super::super::replicas::show_seating(&next),
                            ..volume.clone()
                        };
                        self.change_seating(&serving, &listed, next).await.map_err(|(error, has_begun)| {
                            begun = has_begun;
                            error
                        })
                    }
                    Ok(None) => {
                        Err(ErrorDetail::new(Kind::InUse, format!("the voters of volume {name} are just changing"))
                            .with("volume", name)
                            .remedy("try again in a moment"))
                    }
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        // What has begun ends by itself: until then it is not brought back.
        if !begun {
            attached.set_leaving(None);
        }
        if begun && result.is_err() {
            self.note_left(volume.uuid, &voter.node, since);
        }
        result?;
        attached.forget_replica(role);
        self.narrow(volume).await;
        self.events().info(
            "voter_removed",
            format!("{shown} is no voter of volume {name} any more"),
            &[("volume", name)],
        );
        let removed = self.remove_there(volume, &voter.node, Some(since)).await.map_err(|error| {
            self.note_left(volume.uuid, &voter.node, since);
            let message =
                format!("{shown} is out of volume {name} for good, but not removed there: {}", error.message);
            ErrorDetail::new(error.kind, message).with("volume", name).remedy(format!(
                "nobody asks it any more; if node {} is back one day it is removed there, or by hand: braid replica delete {name} --yes --force on it",
                voter.node
            ))
        });
        Ok((voter, removed))
    }

    /// The volume as it is served now, with nothing under way among its voters.
    async fn settled_serving(&self, name: &str) -> Result<Serving, ErrorDetail> {
        let until = tokio::time::Instant::now() + TURN_MAX;
        loop {
            let serving = self.serving(name)?;
            let seating = serving.voters.seating();
            if !seating.is_joint() {
                let volume = self.note_seating(serving.volume.uuid, &seating).ok_or_else(|| over(name))?;
                return Ok(Serving { volume, ..serving });
            }
            if tokio::time::Instant::now() >= until {
                let message = format!("the last change of the voters of volume {name} still waits for some of them");
                return Err(ErrorDetail::new(Kind::TimedOut, message)
                    .with("volume", name)
                    .remedy("braid volume show says who does not answer"));
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn may_come(&self, volume: &SavedReplicated, voter: &SavedVoter) -> Result<(), ErrorDetail> {
        let (name, node) = (&volume.name, &voter.node);
        if self.nodes().members().iter().all(|member| member.name != *node) {
            return Err(ErrorDetail::new(Kind::NotFound, format!("there is no node {node}"))
                .with("node", node)
                .remedy("braid node list shows them"));
        }
        if volume.seated().any(|(_, other)| other.node == *node) {
            return Err(ErrorDetail::new(Kind::Exists, format!("node {node} has a voter of volume {name} already"))
                .with("volume", name)
                .remedy("a node votes once: choose another one"));
        }
        if volume.seated().count() >= REPLICAS_MAX {
            let message = format!("volume {name} has {REPLICAS_MAX} replicas and witnesses already");
            return Err(ErrorDetail::new(Kind::LimitReached, message).with("volume", name).remedy("remove one first"));
        }
        Ok(())
    }

    /// One that holds everything has to be left, and a voter.
    fn may_go(&self, volume: &SavedReplicated, number: u8) -> Result<(), ErrorDetail> {
        let (name, shown) = (&volume.name, volume.voter_name(number));
        if volume.seated().count() == 1 {
            return Err(ErrorDetail::new(Kind::InUse, format!("{shown} is the last voter of volume {name}"))
                .with("volume", name)
                .remedy(format!("braid volume delete {name} removes the volume")));
        }
        let states = self.states(volume);
        let in_sync = |role: u16| states.get(usize::from(role)) == Some(&MemberState::InSync);
        let others = volume.replicas().into_iter().filter(|role| *role != u16::from(number) && in_sync(*role)).count();
        if volume.replicas().contains(&u16::from(number)) && others < volume.least() {
            let message = match volume.least() {
                1 => format!("no other replica of volume {name} holds everything: without {shown} its data are lost"),
                least => format!(
                    "of the other replicas of volume {name} {others} are in sync, and it takes {least} to have everything: without {shown} its data are lost"
                ),
            };
            return Err(ErrorDetail::new(Kind::Incomplete, message)
                .with("volume", name)
                .remedy("wait until another one is in sync: braid volume show"));
        }
        Ok(())
    }

    pub(super) fn states(&self, volume: &SavedReplicated) -> Vec<MemberState> {
        let tables = self.read();
        let active = tables.arrays.get(&volume.uuid).and_then(|entry| entry.active());
        active.map(|active| active.label.members.iter().map(|member| member.state).collect()).unwrap_or_default()
    }

    /// A number that nobody has: of replicas the lowest that is nobody's role, of witnesses the highest.
    fn free_number(&self, volume: &SavedReplicated, seating: &Seating, is_replica: bool) -> Result<u8, ErrorDetail> {
        let states = self.states(volume);
        let is_free = |number: &u8| {
            let role = states.get(usize::from(*number));
            // With parity the number of members is fixed: one takes the place of another.
            let fits = !is_replica || volume.is_of_copies() || role.is_some();
            // Whoever was left out by force is told so under its number, as long as others are free.
            let waits = volume.is_of_copies() && volume.outside().any(|(other, _)| other == *number);
            fits && !waits
                && !seating.all().has(VoterId(*number))
                && (!is_replica || role.is_none_or(|state| *state == MemberState::Empty))
        };
        let mut all = 0..VOTERS_MAX as u8;
        let number = if is_replica { all.find(is_free) } else { all.rev().find(is_free) };
        number.ok_or_else(|| {
            ErrorDetail::new(Kind::LimitReached, format!("volume {} has no seat for another voter", volume.name))
                .with("volume", &volume.name)
                .remedy("remove one first")
        })
    }

    /// Gives the mirror roles up to this one.
    async fn widen(&self, volume: &SavedReplicated, role: u16) -> Result<(), ErrorDetail> {
        while self.states(volume).len() <= usize::from(role) {
            self.give_order(volume.uuid, Order::Widen).await?;
        }
        Ok(())
    }

    /// Gives each replica a role that has none.
    pub(super) async fn give_roles(&self, volume: &SavedReplicated) {
        let Some(last) = volume.replicas().last().copied() else { return };
        if self.states(volume).len() <= usize::from(last)
            && let Err(error) = self.widen(volume, last).await
        {
            tracing::info!("volume {}: {}", volume.name, error.message);
        }
    }

    /// Takes the last roles off the mirror which nobody has, and no voter is to have.
    async fn narrow(&self, volume: &SavedReplicated) {
        let Some(volume) = &self.read().replicated.get(&volume.uuid).cloned() else { return };
        if !volume.is_of_copies() {
            return;
        }
        let last_is_empty = |states: &[MemberState]| {
            let last = states.len() as u16 - 1;
            last > 0 && states.last() == Some(&MemberState::Empty) && volume.replicas().iter().all(|role| *role < last)
        };
        while last_is_empty(&self.states(volume)) {
            let last = (self.states(volume).len() - 1) as u16;
            if let Err(error) = self.give_order(volume.uuid, Order::Narrow(last)).await {
                tracing::info!("volume {}: {}", volume.name, error.message);
                return;
            }
        }
    }

    /// Leaves a replica out, by votes, and off the table of members; then its snapshots are removed, if it answers. Nothing of a witness.
    async fn leave_replica_out(&self, serving: &Serving, role: u16) -> Result<(), ErrorDetail> {
        let Serving { volume, attached, .. } = serving;
        let state = |role: u16| self.states(volume).get(usize::from(role)).copied();
        if !volume.replicas().contains(&role) {
            return Ok(());
        }
        // Neither is it just brought back, nor is a snapshot just taken of it.
        let busy = |what: &str| {
            ErrorDetail::new(Kind::TimedOut, format!("volume {}: {what}", volume.name))
                .with("volume", &volume.name)
                .remedy("try again when that is over")
        };
        let waits = Waits::for_what_is_brought(attached);
        let returning = tokio::time::timeout(TURN_MAX, attached.returning.write()).await;
        let _nobody_returns = returning.map_err(|_| busy("a replica is just coming back"))?;
        let snapshots = tokio::time::timeout(TURN_MAX, attached.snapshots.lock()).await;
        let _one_at_a_time = snapshots.map_err(|_| busy("its snapshots are just being changed"))?;
        drop(waits);
        if matches!(state(role), Some(MemberState::InSync | MemberState::Rebuilding)) {
            let failed = tokio::time::timeout(TURN_MAX, self.give_order(volume.uuid, Order::Fail(vec![role])));
            failed.await.map_err(|_| busy("too few voters have agreed to leave the replica out"))??;
        }
        if state(role) == Some(MemberState::Failed) {
            self.give_order(volume.uuid, Order::Remove(role)).await?;
        }
        if matches!(state(role), Some(MemberState::InSync | MemberState::Rebuilding | MemberState::Failed)) {
            return Err(busy("the replica could not be left out"));
        }
        for one in self.list_one(volume, role).await.unwrap_or_default() {
            let snapshot = one.uuid;
            let hidden = match one.name {
                Some(_) => {
                    let hide = ReplicaChange::Hide { snapshot: snapshot.clone() };
                    self.change_one(serving, role, &hide, CHANGING_MAX).await
                }
                None => Ok(()),
            };
            // Who reads one there keeps it, and with it what is left of the replica.
            if hidden.is_ok() {
                let _ = self.change_one(serving, role, &ReplicaChange::Remove { snapshot }, CHANGING_MAX).await;
            }
        }
        Ok(())
    }

    /// Notes a list here, and has it voted for. With an error: whether it has begun, so that it goes on.
    async fn change_seating(
        self: &Arc<Self>,
        serving: &Serving,
        listed: &SavedReplicated,
        next: Seating,
    ) -> Result<(), (ErrorDetail, bool)> {
        let Serving { volume, voters, .. } = serving;
        let (uuid, name) = (volume.uuid, &volume.name);
        let note = |listed: &SavedReplicated| {
            if let Some(saved) = self.write().replicated.get_mut(&uuid) {
                (saved.voters, saved.seating) = (listed.voters.clone(), listed.seating);
            }
            self.save()
        };
        note(listed).map_err(|error| (error, false))?;
        let until = tokio::time::Instant::now() + VOTES_MAX;
        loop {
            let not_begun = match voters.change(&next) {
                Ok(true) => break,
                // Something else is being voted for.
                Ok(false) if tokio::time::Instant::now() < until => {
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
                Ok(false) => {
                    let message = format!("the voters of volume {name} are busy with another vote");
                    let error = ErrorDetail::new(Kind::TimedOut, message).with("volume", name);
                    error.remedy(format!("try again when all of them answer: braid volume show {name}"))
                }
                Err(_) => over(name),
            };
            // What was noted names everybody who votes: it does no harm should this fail.
            let _ = note(volume);
            return Err((not_begun, false));
        }
        match tokio::time::timeout_at(until, voters.changed_to(&next)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err((over(name), true)),
            Err(_) => {
                let message = format!(
                    "too few voters of volume {name} have agreed within {} s; the change goes on by itself when they answer",
                    VOTES_MAX.as_secs()
                );
                let error = ErrorDetail::new(Kind::TimedOut, message).with("volume", name);
                let remedy = format!(
                    "braid volume show {name} says who does not answer; what a node has that votes no more then is removed there: braid replica delete {name} --force"
                );
                return Err((error.remedy(remedy), true));
            }
        }
        self.note_seating(uuid, &next.settled());
        self.save_or_warn();
        Ok(())
    }

    /// Removes what a change that never came to votes left on a node, or one that has ended. False: what is there is none of that.
    async fn remove_leftover(&self, serving: &Serving, node: &str) -> bool {
        let Serving { volume, voters, .. } = serving;
        let path = format!("/v1/replicas/{}", volume.uuid);
        let answer = self.nodes().call(node, Method::GET, &path, None).await;
        let Some(there) = answer.ok().and_then(|answer| serde_json::from_value::<Replica>(answer).ok()) else {
            return false;
        };
        match there.register {
            // One that was raised by this controller, as it was on its list, and votes nowhere.
            Some(register)
                if register.since > 0
                    && (register.epoch == 0
                        || register.controller == Some(voters.session_of(VoterId(there.voter)).1.to_string()))
                    && volume.seated().all(|(_, voter)| voter.node != node) =>
            {
                self.remove_there(volume, node, Some(register.since)).await.is_ok()
            }
            _ => false,
        }
    }

    /// Removes a voter on its node; `since`: only the one that came with that list.
    pub(super) async fn remove_there(
        &self,
        volume: &SavedReplicated,
        node: &str,
        since: Option<u64>,
    ) -> Result<(), ErrorDetail> {
        let only = since.map(|since| format!("&since={since}")).unwrap_or_default();
        let path = format!("/v1/replicas/{}?force=true{only}", volume.uuid);
        match self.nodes().call_within(REMOVING_MAX, node, Method::DELETE, &path, None).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind == Kind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Where those are that vote, and those that were left out by force and may not know it.
fn listed(volume: &SavedReplicated) -> BTreeMap<u8, SavedVoter> {
    volume.seated().chain(volume.outside()).map(|(number, voter)| (number, voter.clone())).collect()
}

fn voter_on(volume: &SavedReplicated, node: &str) -> Result<u8, ErrorDetail> {
    let (node, pool) = node.split_once('/').map_or((node, None), |(node, pool)| (node, Some(pool)));
    let is_it = |voter: &SavedVoter| voter.node == node && pool.is_none_or(|pool| voter.pool.as_deref() == Some(pool));
    let found = volume.seated().find(|(_, voter)| is_it(voter));
    found.map(|(number, _)| number).ok_or_else(|| {
        ErrorDetail::new(Kind::NotFound, format!("volume {} has no replica and no witness on {node}", volume.name))
            .with("volume", &volume.name)
            .remedy(format!("braid volume show {} lists them", volume.name))
    })
}

fn over(name: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::Inactive, format!("volume {name} is not served by this node any more"))
        .with("volume", name)
        .remedy(format!("do it on the node that serves it, or braid volume attach {name} here first"))
}
