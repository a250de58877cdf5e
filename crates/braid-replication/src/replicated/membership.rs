//! Membership changes of a served volume: adds and removes voters.
//!
//! | adding a voter | outcome if its controller ends then |
//! |---|---|
//! | it is created on its node, with a register that says since when it votes | it gets no request; the next addition on that node removes it |
//! | the membership with it is saved on this node, then voted for by enough voters of the old and of the new set | the next opening uses the membership of the voters, and completes the change |
//! | enough voters of the new set know that the old set alone does not decide any more | it votes |
//! | a replica is resynced, like any other missing one | it is resynced |
//!
//! | removing a voter | |
//! |---|---|
//! | a replica is dropped, by votes, and removed from the array | it rejoins |
//! | the membership without it is voted for in the same two steps | the next opening completes the change |
//! | it is removed on its node; while that does not reply, this is retried as long as the volume is served here | it stays there |

use crate::ReplicationManager;
use crate::attached::ServedVolume;
use crate::replicated::copy::CopyInterrupt;
use crate::replicated::excluded::excluded_on;
use crate::replicated::replica_requests::CHANGE_MAX;
use braid_api::limits::REPLICAS_MAX;
use braid_api::{AddVoter, ErrorDetail, Kind, PoolState, Replica, ReplicaChange, ReplicatedVolume};
use braid_array_admin::reconciler::Order;
use braid_engine::replica::{Quorums, VOTERS_MAX, VoterConfig, VoterId};
use braid_format::MemberState;
use braid_inventory::{SavedLeftover, SavedReplicated, SavedVoter};
use hyper::Method;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Maximum time for which a command waits for the votes of a change, which then goes on by itself.
const VOTES_MAX: Duration = Duration::from_secs(20);

/// Maximum time for which a change waits for other votes, and for replicas that are rejoining.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Delay between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Maximum time for a node to remove a replica.
const REMOVE_MAX: Duration = Duration::from_secs(20);

impl ReplicationManager {
    /// Adds a replica or a witness. It votes when this returns; a replica is resynced from then on.
    ///
    /// # Errors
    /// This node does not serve the volume; the node is unknown, has a voter already, or cannot create one; too few
    /// voters agree. Only in the last case something is left: the change goes on.
    pub async fn add_voter(self: &Arc<Self>, name: &str, ask: &AddVoter) -> Result<ReplicatedVolume, ErrorDetail> {
        let serving = self.serving(name)?;
        let attached = Arc::clone(&serving.attached);
        let _one_at_a_time = attached.membership_lock.lock().await;
        let voter = SavedVoter::of(ask.node.clone(), ask.pool.clone());
        self.admit_voter(name, voter).await?;
        self.replicated_volume(name)
    }

    /// Removes a replica or a witness for good, also on its node.
    ///
    /// # Errors
    /// This node does not serve the volume; the volume has no such voter, or cannot do without it; too few voters
    /// agree. If its node does not reply, or keeps the replica because it is in use there, the voter is removed from
    /// the volume all the same, and the error says so.
    pub async fn remove_voter(self: &Arc<Self>, name: &str, node: &str) -> Result<ReplicatedVolume, ErrorDetail> {
        let serving = self.serving(name)?;
        let attached = Arc::clone(&serving.attached);
        let _one_at_a_time = attached.membership_lock.lock().await;
        if let Some(number) = excluded_on(&serving.volume, node) {
            let removed = self.remove_excluded(&serving.volume, number).await;
            attached.set_excluded(Vec::new());
            removed?;
            return self.replicated_volume(name);
        }
        let (_, removed) = self.remove_from_membership(name, node).await?;
        removed?;
        self.replicated_volume(name)
    }

    /// Rebuilds a replica from nothing, in its pool or in another one of its node. What it had is lost.
    ///
    /// # Errors
    /// As [`ReplicationManager::remove_voter`] and [`ReplicationManager::add_voter`].
    pub async fn rebuild_voter(
        self: &Arc<Self>,
        name: &str,
        node: &str,
        pool: Option<&str>,
    ) -> Result<ReplicatedVolume, ErrorDetail> {
        let serving = self.serving(name)?;
        let attached = Arc::clone(&serving.attached);
        let _one_at_a_time = attached.membership_lock.lock().await;
        let excluded = excluded_on(&serving.volume, node);
        let number = excluded.map_or_else(|| voter_on(&serving.volume, node), Ok)?;
        if serving.volume.voters.get(&number).is_some_and(|voter| voter.pool.is_none()) {
            return Err(ErrorDetail::new(Kind::InvalidArgument, format!("{node} is a witness of volume {name}"))
                .with("volume", name)
                .remedy(format!("braid replica remove {name} {node}; braid replica add {name} --witness {node}")));
        }
        // Its pool must be available: otherwise the volume would only lose the replica.
        let there = serving.volume.voters.get(&number).cloned().ok_or_else(|| no_longer_served(name))?;
        let there = SavedVoter { pool: pool.map(str::to_owned).or(there.pool), ..there };
        self.check_voter_pool(&there).await?;
        match excluded {
            Some(number) => {
                let removed = self.remove_excluded(&serving.volume, number).await;
                attached.set_excluded(Vec::new());
                removed?;
            }
            None => self.remove_from_membership(name, node).await?.1?,
        }
        let place = format!("{}/{}", there.node, there.pool.clone().unwrap_or_default());
        self.admit_voter(name, there).await.map_err(|error| ErrorDetail {
            message: format!("{}; the old replica is already removed from volume {name}", error.message),
            remedy: format!("{}; then braid replica add {name} {place}", error.remedy),
            ..error
        })?;
        self.replicated_volume(name)
    }

    /// Records that something is to be removed on a node.
    pub(crate) fn record_leftover(&self, uuid: Uuid, node: &str, since: u64) {
        let left = SavedLeftover { node: node.to_owned(), since };
        if let Some(volume) = self.inventory.write().replicated.get_mut(&uuid)
            && !volume.left.contains(&left)
        {
            volume.left.push(left);
        }
        self.inventory.save_or_warn();
    }

    /// Tries once to remove what is left on nodes of removed voters.
    pub(crate) async fn clear_leftovers(&self, volume: &SavedReplicated) {
        for left in volume.left.iter().filter(|left| volume.voting().all(|(_, voter)| voter.node != left.node)) {
            if let Err(error) = self.remove_on_node(volume, &left.node, Some(left.since)).await {
                tracing::debug!("what volume {} left on node {}: {}", volume.name, left.node, error.message);
                continue;
            }
            let message = format!("what volume {} had left on node {} is removed", volume.name, left.node);
            self.inventory.events().info("voter_data_removed", message, &[("volume", &volume.name)]);
            if let Some(volume) = self.inventory.write().replicated.get_mut(&volume.uuid) {
                volume.left.retain(|other| other != left);
            }
            self.inventory.save_or_warn();
        }
    }

    async fn check_voter_pool(&self, voter: &SavedVoter) -> Result<(), ErrorDetail> {
        let reply = self.nodes.call(&voter.node, Method::GET, "/v1/pools", None).await?;
        let list: braid_api::PoolList =
            serde_json::from_value(reply).map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))?;
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

    /// Checks that enough voters of the next membership reply: a change that too few of them receive cannot be undone,
    /// and blocks the volume.
    fn check_quorum(&self, serving: &ServedVolume, next: &VoterConfig, new: Option<u8>) -> Result<(), ErrorDetail> {
        let ServedVolume { volume, voters, .. } = serving;
        let status = voters.status();
        let answers = |voter: &VoterId| {
            Some(voter.0) == new || status.raised.has(*voter) && status.failures[usize::from(voter.0)].is_none()
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

    async fn admit_voter(self: &Arc<Self>, name: &str, voter: SavedVoter) -> Result<(), ErrorDetail> {
        let serving = self.settled_serving(name).await?;
        let admitted = self.admit_one(&serving, voter).await;
        if admitted.is_err() {
            // The mirror may have got a slot for it.
            self.narrow(&serving.volume).await;
        }
        admitted
    }

    async fn admit_one(self: &Arc<Self>, serving: &ServedVolume, voter: SavedVoter) -> Result<(), ErrorDetail> {
        let ServedVolume { volume, voters, .. } = serving;
        let name = &volume.name;
        let (membership, node) = (voters.membership(), voter.node.clone());
        self.check_addition(volume, &voter)?;
        self.free_excluded_slots(volume).await;
        let number = self.free_number(volume, &membership, voter.pool.is_some())?;
        if voter.pool.is_some() {
            self.widen(volume, u16::from(number)).await?;
        }
        let version = voters.next_version().map_err(|_| no_longer_served(name))?;
        let full = || ErrorDetail::new(Kind::LimitReached, format!("volume {name} has no free slot for another voter"));
        let next = membership.with(VoterId(number), voter.pool.is_some(), version).ok_or_else(full)?;
        self.check_quorum(serving, &next, Some(number))?;
        let mut locations = locations_of(volume);
        // A voter on that node that was excluded by a forced attach is given up.
        locations.retain(|_, other| other.node != node);
        locations.insert(number, SavedVoter { since: version, excluded: false, ..voter });
        let next_volume = SavedReplicated {
            voters: locations,
            membership: braid_inventory::show_membership(&next),
            ..volume.clone()
        };
        let in_sync = voters.status().in_sync.bits();
        if let Err(error) = self.create_voter(&next_volume, number, in_sync).await {
            // Left by a change that was never voted for.
            if error.kind == Kind::Exists && excluded_on(volume, &node).is_some() {
                return Err(error.remedy(format!(
                    "that is what it had when the volume was opened by force: braid replica rebuild {name} {node}, which loses it"
                )));
            }
            if error.kind != Kind::Exists || !self.remove_leftover(serving, &node).await {
                if matches!(error.kind, Kind::TimedOut | Kind::Unreachable) {
                    // It may have been created all the same.
                    self.record_leftover(volume.uuid, &node, version);
                }
                return Err(error);
            }
            self.create_voter(&next_volume, number, in_sync).await?;
        }
        let changed = self.change_membership(serving, &next_volume, next).await;
        if let Err((error, begun)) = changed {
            if !begun {
                let _ = self.remove_on_node(volume, &node, Some(version)).await;
            }
            return Err(error);
        }
        let message = format!("{} is a voter of volume {name}", next_volume.voter_name(number));
        self.inventory.events().info("voter_added", message, &[("volume", name)]);
        serving.attached.voter_added.notify_one();
        Ok(())
    }

    /// Returns the removed voter, and the outcome of its removal on its node.
    async fn remove_from_membership(
        self: &Arc<Self>,
        name: &str,
        node: &str,
    ) -> Result<(SavedVoter, Result<(), ErrorDetail>), ErrorDetail> {
        let serving = self.settled_serving(name).await?;
        let ServedVolume { volume, attached, voters } = &serving;
        let number = voter_on(volume, node)?;
        let shown = volume.voter_name(number);
        let slot = u16::from(number);
        let voter = volume.voters.get(&number).cloned().ok_or_else(|| no_longer_served(name))?;
        self.check_removal(volume, number)?;
        if let Some(next) = voters.membership().without(VoterId(number), u64::MAX) {
            self.check_quorum(&serving, &next, None)?;
        }
        let since = voter.since;
        attached.set_removing(Some(slot));
        let left = self.drop_replica(&serving, slot).await;
        let mut begun = false;
        let result = match left {
            Ok(()) => {
                let version = voters.next_version().map_err(|_| no_longer_served(name));
                let next = version.map(|version| voters.membership().without(VoterId(number), version));
                match next {
                    Ok(Some(next)) => {
                        let next_volume = SavedReplicated {
                            voters: locations_of(volume),
                            membership: braid_inventory::show_membership(&next),
                            ..volume.clone()
                        };
                        self.change_membership(&serving, &next_volume, next).await.map_err(|(error, has_begun)| {
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
        // A change that has begun completes by itself: until then the replica is not taken back.
        if !begun {
            attached.set_removing(None);
        }
        if begun && result.is_err() {
            self.record_leftover(volume.uuid, &voter.node, since);
        }
        result?;
        attached.forget_replica(slot);
        self.narrow(volume).await;
        self.inventory.events().info(
            "voter_removed",
            format!("{shown} is no voter of volume {name} any more"),
            &[("volume", name)],
        );
        let removed = self.remove_on_node(volume, &voter.node, Some(since)).await.map_err(|error| {
            self.record_leftover(volume.uuid, &voter.node, since);
            let message =
                format!("{shown} is removed from volume {name}, but not from its node: {}", error.message);
            ErrorDetail::new(error.kind, message).with("volume", name).remedy(format!(
                "it has no vote any more; it is removed there when node {} is back, or by hand: braid replica delete {name} --yes --force on it",
                voter.node
            ))
        });
        Ok((voter, removed))
    }

    /// Returns the served volume once no membership change is in progress.
    async fn settled_serving(&self, name: &str) -> Result<ServedVolume, ErrorDetail> {
        let until = tokio::time::Instant::now() + WAIT_MAX;
        loop {
            let serving = self.serving(name)?;
            let membership = serving.voters.membership();
            if !membership.is_joint() {
                let volume =
                    self.save_membership(serving.volume.uuid, &membership).ok_or_else(|| no_longer_served(name))?;
                return Ok(ServedVolume { volume, ..serving });
            }
            if tokio::time::Instant::now() >= until {
                let message = format!("the last change of the voters of volume {name} still waits for some of them");
                return Err(ErrorDetail::new(Kind::TimedOut, message)
                    .with("volume", name)
                    .remedy("braid volume show says who does not answer"));
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    fn check_addition(&self, volume: &SavedReplicated, voter: &SavedVoter) -> Result<(), ErrorDetail> {
        let (name, node) = (&volume.name, &voter.node);
        if self.nodes.members().iter().all(|member| member.name != *node) {
            return Err(ErrorDetail::new(Kind::NotFound, format!("there is no node {node}"))
                .with("node", node)
                .remedy("braid node list shows them"));
        }
        if volume.voting().any(|(_, other)| other.node == *node) {
            return Err(ErrorDetail::new(Kind::Exists, format!("node {node} has a voter of volume {name} already"))
                .with("volume", name)
                .remedy("a node votes once: choose another one"));
        }
        if volume.voting().count() >= REPLICAS_MAX {
            let message = format!("volume {name} has {REPLICAS_MAX} replicas and witnesses already");
            return Err(ErrorDetail::new(Kind::LimitReached, message).with("volume", name).remedy("remove one first"));
        }
        Ok(())
    }

    /// Checks that the voter is not the last one, and that the other replicas in sync have all data.
    fn check_removal(&self, volume: &SavedReplicated, number: u8) -> Result<(), ErrorDetail> {
        let (name, shown) = (&volume.name, volume.voter_name(number));
        if volume.voting().count() == 1 {
            return Err(ErrorDetail::new(Kind::InUse, format!("{shown} is the last voter of volume {name}"))
                .with("volume", name)
                .remedy(format!("braid volume delete {name} removes the volume")));
        }
        let states = self.states(volume);
        let in_sync = |slot: u16| states.get(usize::from(slot)) == Some(&MemberState::InSync);
        let others = volume.replicas().into_iter().filter(|slot| *slot != u16::from(number) && in_sync(*slot)).count();
        if volume.replicas().contains(&u16::from(number)) && others < volume.replicas_min() {
            let message = match volume.replicas_min() {
                1 => format!("no other replica of volume {name} holds everything: without {shown} its data are lost"),
                replicas_min => format!(
                    "of the other replicas of volume {name} {others} are in sync, and it takes {replicas_min} to have everything: without {shown} its data are lost"
                ),
            };
            return Err(ErrorDetail::new(Kind::Incomplete, message)
                .with("volume", name)
                .remedy("wait until another one is in sync: braid volume show"));
        }
        Ok(())
    }

    pub(crate) fn states(&self, volume: &SavedReplicated) -> Vec<MemberState> {
        let tables = self.inventory.read();
        let active = tables.arrays.get(&volume.uuid).and_then(|entry| entry.active());
        active.map(|active| active.label.members.iter().map(|member| member.state).collect()).unwrap_or_default()
    }

    /// Returns a free number: for a replica the lowest one whose slot is free, for a witness the highest.
    fn free_number(
        &self,
        volume: &SavedReplicated,
        membership: &VoterConfig,
        is_replica: bool,
    ) -> Result<u8, ErrorDetail> {
        let states = self.states(volume);
        let is_free = |number: &u8| {
            let slot = states.get(usize::from(*number));
            // With parity the number of members is fixed: a new replica takes the slot of an old one.
            let fits = !is_replica || volume.is_mirrored() || slot.is_some();
            // An excluded voter is notified under its number, so that number stays reserved as long as others are free.
            let waits = volume.is_mirrored() && volume.excluded().any(|(other, _)| other == *number);
            fits && !waits
                && !membership.all().has(VoterId(*number))
                && (!is_replica || slot.is_none_or(|state| *state == MemberState::Empty))
        };
        let mut all = 0..VOTERS_MAX as u8;
        let number = if is_replica { all.find(is_free) } else { all.rev().find(is_free) };
        number.ok_or_else(|| {
            ErrorDetail::new(Kind::LimitReached, format!("volume {} has no free slot for another voter", volume.name))
                .with("volume", &volume.name)
                .remedy("remove one first")
        })
    }

    /// Widens the mirror to this slot.
    async fn widen(&self, volume: &SavedReplicated, slot: u16) -> Result<(), ErrorDetail> {
        while self.states(volume).len() <= usize::from(slot) {
            self.arrays.give_order(volume.uuid, Order::Widen).await?;
        }
        Ok(())
    }

    /// Widens the mirror so that each replica has a slot.
    pub(crate) async fn give_slots(&self, volume: &SavedReplicated) {
        let Some(last) = volume.replicas().last().copied() else { return };
        if self.states(volume).len() <= usize::from(last)
            && let Err(error) = self.widen(volume, last).await
        {
            tracing::info!("volume {}: {}", volume.name, error.message);
        }
    }

    /// Narrows the mirror by its last slots while they are empty and no voter needs them.
    async fn narrow(&self, volume: &SavedReplicated) {
        let Some(volume) = &self.inventory.read().replicated.get(&volume.uuid).cloned() else { return };
        if !volume.is_mirrored() {
            return;
        }
        let last_is_empty = |states: &[MemberState]| {
            let last = states.len() as u16 - 1;
            last > 0 && states.last() == Some(&MemberState::Empty) && volume.replicas().iter().all(|slot| *slot < last)
        };
        while last_is_empty(&self.states(volume)) {
            let last = (self.states(volume).len() - 1) as u16;
            if let Err(error) = self.arrays.give_order(volume.uuid, Order::Narrow(last)).await {
                tracing::info!("volume {}: {}", volume.name, error.message);
                return;
            }
        }
    }

    /// Drops a replica by votes and removes it from the array; then removes its snapshots if it replies. Does nothing
    /// for a witness.
    async fn drop_replica(&self, serving: &ServedVolume, slot: u16) -> Result<(), ErrorDetail> {
        let ServedVolume { volume, attached, .. } = serving;
        let state = |slot: u16| self.states(volume).get(usize::from(slot)).copied();
        if !volume.replicas().contains(&slot) {
            return Ok(());
        }
        // No replica may be rejoining, and no snapshot may be in progress.
        let busy = |what: &str| {
            ErrorDetail::new(Kind::TimedOut, format!("volume {}: {what}", volume.name))
                .with("volume", &volume.name)
                .remedy("try again when that is over")
        };
        let interrupt = CopyInterrupt::begin(attached);
        let rejoining = tokio::time::timeout(WAIT_MAX, attached.rejoin_lock.write()).await;
        let _rejoin_guard = rejoining.map_err(|_| busy("a replica is just coming back"))?;
        let snapshots = tokio::time::timeout(WAIT_MAX, attached.snapshot_lock.lock()).await;
        let _one_at_a_time = snapshots.map_err(|_| busy("its snapshots are just being changed"))?;
        drop(interrupt);
        if matches!(state(slot), Some(MemberState::InSync | MemberState::Rebuilding)) {
            let failed = tokio::time::timeout(WAIT_MAX, self.arrays.give_order(volume.uuid, Order::Fail(vec![slot])));
            failed.await.map_err(|_| busy("too few voters have agreed to drop the replica"))??;
        }
        if state(slot) == Some(MemberState::Failed) {
            self.arrays.give_order(volume.uuid, Order::Remove(slot)).await?;
        }
        if matches!(state(slot), Some(MemberState::InSync | MemberState::Rebuilding | MemberState::Failed)) {
            return Err(busy("the replica could not be dropped"));
        }
        for one in self.list_one(volume, slot).await.unwrap_or_default() {
            let snapshot = one.uuid;
            let hidden = match one.name {
                Some(_) => {
                    let hide = ReplicaChange::Hide { snapshot: snapshot.clone() };
                    self.change_one(serving, slot, &hide, CHANGE_MAX).await
                }
                None => Ok(()),
            };
            // A reader keeps a snapshot there, and with it what is left of the replica.
            if hidden.is_ok() {
                let _ = self.change_one(serving, slot, &ReplicaChange::Remove { snapshot }, CHANGE_MAX).await;
            }
        }
        Ok(())
    }

    /// Saves a membership on this node, and has it voted for. The error says whether the change has begun, and
    /// therefore goes on.
    async fn change_membership(
        self: &Arc<Self>,
        serving: &ServedVolume,
        next_volume: &SavedReplicated,
        next: VoterConfig,
    ) -> Result<(), (ErrorDetail, bool)> {
        let ServedVolume { volume, voters, .. } = serving;
        let (uuid, name) = (volume.uuid, &volume.name);
        let note = |next_volume: &SavedReplicated| {
            if let Some(saved) = self.inventory.write().replicated.get_mut(&uuid) {
                (saved.voters, saved.membership) = (next_volume.voters.clone(), next_volume.membership);
            }
            self.inventory.save()
        };
        note(next_volume).map_err(|error| (error, false))?;
        let until = tokio::time::Instant::now() + VOTES_MAX;
        loop {
            let not_begun = match voters.change(&next) {
                Ok(true) => break,
                // Another vote is in progress.
                Ok(false) if tokio::time::Instant::now() < until => {
                    tokio::time::sleep(RETRY_DELAY).await;
                    continue;
                }
                Ok(false) => {
                    let message = format!("the voters of volume {name} are busy with another vote");
                    let error = ErrorDetail::new(Kind::TimedOut, message).with("volume", name);
                    error.remedy(format!("try again when all of them answer: braid volume show {name}"))
                }
                Err(_) => no_longer_served(name),
            };
            // The saved membership names every voter: a failure here does no harm.
            let _ = note(volume);
            return Err((not_begun, false));
        }
        match tokio::time::timeout_at(until, voters.changed_to(&next)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err((no_longer_served(name), true)),
            Err(_) => {
                let message = format!(
                    "too few voters of volume {name} have agreed within {} s; the change goes on by itself when they answer",
                    VOTES_MAX.as_secs()
                );
                let error = ErrorDetail::new(Kind::TimedOut, message).with("volume", name);
                let remedy = format!(
                    "braid volume show {name} says who does not answer; remove the data of a former voter on its node: braid replica delete {name} --force"
                );
                return Err((error.remedy(remedy), true));
            }
        }
        self.save_membership(uuid, &next.final_config());
        self.inventory.save_or_warn();
        Ok(())
    }

    /// Removes what a change that was never voted for, or one that has ended, left on a node. Returns false if the
    /// voter there is no such leftover.
    async fn remove_leftover(&self, serving: &ServedVolume, node: &str) -> bool {
        let ServedVolume { volume, voters, .. } = serving;
        let path = format!("/v1/replicas/{}", volume.uuid);
        let reply = self.nodes.call(node, Method::GET, &path, None).await;
        let Some(there) = reply.ok().and_then(|reply| serde_json::from_value::<Replica>(reply).ok()) else {
            return false;
        };
        match there.register {
            // It was created for a membership change, and no other controller has raised it.
            Some(register)
                if register.since > 0
                    && (register.epoch == 0
                        || register.controller == Some(voters.session_of(VoterId(there.voter)).1.to_string()))
                    && volume.voting().all(|(_, voter)| voter.node != node) =>
            {
                self.remove_on_node(volume, node, Some(register.since)).await.is_ok()
            }
            _ => false,
        }
    }

    /// Removes a voter on its node. `since`: only the one that came with this version of the membership.
    pub(crate) async fn remove_on_node(
        &self,
        volume: &SavedReplicated,
        node: &str,
        since: Option<u64>,
    ) -> Result<(), ErrorDetail> {
        let only = since.map(|since| format!("&since={since}")).unwrap_or_default();
        let path = format!("/v1/replicas/{}?force=true{only}", volume.uuid);
        match self.nodes.call_within(REMOVE_MAX, node, Method::DELETE, &path, None).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind == Kind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Returns the locations of the voters, and of the excluded ones, which may not know that yet.
fn locations_of(volume: &SavedReplicated) -> BTreeMap<u8, SavedVoter> {
    volume.voting().chain(volume.excluded()).map(|(number, voter)| (number, voter.clone())).collect()
}

fn voter_on(volume: &SavedReplicated, node: &str) -> Result<u8, ErrorDetail> {
    let (node, pool) = node.split_once('/').map_or((node, None), |(node, pool)| (node, Some(pool)));
    let is_it = |voter: &SavedVoter| voter.node == node && pool.is_none_or(|pool| voter.pool.as_deref() == Some(pool));
    let found = volume.voting().find(|(_, voter)| is_it(voter));
    found.map(|(number, _)| number).ok_or_else(|| {
        ErrorDetail::new(Kind::NotFound, format!("volume {} has no replica and no witness on {node}", volume.name))
            .with("volume", &volume.name)
            .remedy(format!("braid volume show {} lists them", volume.name))
    })
}

fn no_longer_served(name: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::Inactive, format!("volume {name} is not served by this node any more"))
        .with("volume", name)
        .remedy(format!("do it on the node that serves it, or braid volume attach {name} here first"))
}
