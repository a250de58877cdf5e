//! Snapshots of a replicated volume: of one moment, under one name, on all of its replicas.
//!
//! | step | state of the replicas | outcome if its controller ends then |
//! |---|---|---|
//! | requests are held, those in flight end | nothing | nothing |
//! | each replica takes a snapshot, all concurrently; then requests go on | pending, on some or all | it is removed |
//! | each replica gives it its name | named on some, pending on the others | it is named on all |
//! | deletion: each replica makes it pending | the same | it is named on all: it was not deleted |
//! | each replica removes it | pending, on some or all | it is removed |
//!
//! So the outcome follows from the state of the replicas in sync (`outcome`), whichever controller opens the volume: it
//! is settled before clients are served. A replica that rejoins first removes the snapshots that the others do not
//! have.

use crate::ReplicationManager;
use crate::attached::{AttachedVolume, ServedVolume};
use crate::replicated::outcome::{SnapshotLists, SnapshotOutcome, SnapshotState, change_for};
use crate::voters::VolumeVoters;
use braid_api::{
    ChangeReplica, CreateReplicated, ErrorDetail, Kind, ReplicaChange, ReplicaSnapshot, ReplicaSnapshotList,
    ReplicatedVolume, Snapshot, SnapshotConsistency, SnapshotList, SnapshotReplica,
};
use braid_array_admin::reconciler::Order;
use braid_arrays::check_name;
use braid_engine::DeviceIo;
use braid_engine::replica::VoterId;
use braid_format::MemberState;
use braid_inventory::{SavedReplicated, SavedVoter, random, random_uuid};
use braid_pools::check_controller_snapshot_name;
use braid_tasks as tasks;
use futures_util::future::join_all;
use hyper::Method;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Maximum time for which requests are held for a snapshot.
const HOLD_MAX: Duration = Duration::from_secs(4);

/// Maximum time for a replica to take it.
const TAKE_MAX: Duration = Duration::from_millis(2500);

/// Maximum time for a change of a replica that no client request waits for.
pub(crate) const CHANGE_MAX: Duration = Duration::from_secs(10);

/// Maximum wait for a replica that may be about to be dropped.
const FLUSH_MAX: Duration = Duration::from_secs(12);

/// Maximum time for which taking a snapshot waits for a resync of the replicas after a crash.
const EQUAL_MAX: Duration = Duration::from_secs(20);

/// After this time, a change that a replica did not acknowledge in time was made or never will be: the snapshots are
/// settled once more.
const LATE_MAX: Duration = Duration::from_secs(30);

/// Attempts to have a replica in sync make a change, and the delay between two of them.
const TRIES: u32 = 5;

const RETRY_DELAY: Duration = Duration::from_secs(1);

impl ReplicationManager {
    /// Takes a snapshot of a replicated volume: of one moment on all replicas.
    ///
    /// # Errors
    /// This node does not serve the volume; the name is taken; a replica did not take its snapshot in time. Nothing is
    /// left then, or it is removed later.
    pub async fn create_replicated_snapshots(&self, names: &[String]) -> Result<SnapshotList, ErrorDetail> {
        let [text] = names else {
            let message = "several volumes are named, and one of them is replicated";
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .remedy("take snapshots of such volumes one command after the other"));
        };
        let (volume, own) = split_name(text)?;
        let own = check_controller_snapshot_name(own)?.to_string();
        let serving = self.serving(volume)?;
        self.refuse_parity(&serving.volume)?;
        let _one_at_a_time = serving.attached.snapshot_lock.lock().await;
        let listed = self.settled_snapshots_retrying(&serving).await?;
        if listed.named(&own).is_some() {
            return Err(snapshot_exists(&serving.volume.name, &own));
        }
        let snapshot = identity()?;
        serving.attached.set_unsettled(true);
        let taken = self.take_on_all(&serving, &snapshot, &own).await;
        let named = match taken {
            Ok(slots) => {
                let name = ReplicaChange::Name { snapshot: snapshot.clone(), name: own.clone() };
                self.change_all(&serving, &slots, &name).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = named {
            settle_again_later(&serving.attached);
            // As far as replicas reply; the rest is settled later.
            let left = self.settle_snapshots(&serving).await;
            if let Ok(listed) = &left
                && listed.named(&snapshot).is_some()
            {
                return self.show_replicated_snapshots(&serving.volume, listed, Some(&snapshot));
            }
            return Err(ErrorDetail {
                message: format!("snapshot {text} could not be taken: {}", error.message),
                remedy: "try again; braid volume show says how its replicas do".to_owned(),
                ..error
            });
        }
        let listed = self.settle_snapshots(&serving).await?;
        self.inventory.events().info("snapshots_taken", format!("snapshot {text} taken"), &[("snapshot", text)]);
        self.show_replicated_snapshots(&serving.volume, &listed, Some(&snapshot))
    }

    /// Returns the snapshots of a replicated volume, as the replicas that reply have them.
    ///
    /// # Errors
    /// There is no such volume, or no replica replies.
    pub async fn replicated_snapshots(&self, volume: &str) -> Result<SnapshotList, ErrorDetail> {
        let volume = self.inventory.find_replicated(volume)?;
        let listed = self.readable_snapshots(&volume).await?;
        self.show_replicated_snapshots(&volume, &listed, None)
    }

    /// Returns a snapshot of a replicated volume.
    ///
    /// # Errors
    /// As [`ReplicationManager::replicated_snapshots`]; there is no snapshot with that name.
    pub async fn replicated_snapshot(&self, text: &str) -> Result<Snapshot, ErrorDetail> {
        let (volume, own) = split_name(text)?;
        let volume = self.inventory.find_replicated(volume)?;
        let listed = self.readable_snapshots(&volume).await?;
        self.one_of(&volume, &listed, own)
    }

    /// Renames a snapshot, on all replicas.
    ///
    /// # Errors
    /// This node does not serve the volume; the name is taken, perhaps on one of the nodes only.
    pub async fn rename_replicated_snapshot(&self, text: &str, new: &str) -> Result<Snapshot, ErrorDetail> {
        let (volume, own) = split_name(text)?;
        let new = match new.split_once('@') {
            Some((of, new)) if of == volume => new,
            _ => new,
        };
        let new = check_controller_snapshot_name(new)?.to_string();
        let serving = self.serving(volume)?;
        let _one_at_a_time = serving.attached.snapshot_lock.lock().await;
        let listed = self.settled_snapshots_retrying(&serving).await?;
        let before = self.one_of(&serving.volume, &listed, own)?;
        if listed.named(&new).is_some() {
            return Err(snapshot_exists(&serving.volume.name, &new));
        }
        let snapshot = before.uuid.clone();
        serving.attached.set_unsettled(true);
        let name = |name: String| ReplicaChange::Name { snapshot: snapshot.clone(), name };
        let slots = self.slots_with(&serving, &listed, &snapshot);
        if let Err(error) = self.change_all(&serving, &slots, &name(new.clone())).await {
            settle_again_later(&serving.attached);
            let old = before.name.rsplit_once('@').map_or("", |(_, own)| own).to_owned();
            let _ = self.change_all(&serving, &slots, &name(old)).await;
            let _ = self.settle_snapshots(&serving).await;
            return Err(error);
        }
        let listed = self.settle_snapshots(&serving).await?;
        let message = format!("snapshot {text} is now called {}@{new}", serving.volume.name);
        self.inventory.events().info("snapshot_renamed", message, &[("snapshot", &new), ("old_name", &before.name)]);
        self.one_of(&serving.volume, &listed, &snapshot)
    }

    /// Records on all replicas that the volume's file system was frozen while a snapshot was taken.
    ///
    /// # Errors
    /// This node does not serve the volume; a replica cannot record it. Then it is recorded on some replicas, which is
    /// enough, or on none.
    pub async fn change_replicated_snapshot(
        &self,
        text: &str,
        consistency: SnapshotConsistency,
    ) -> Result<Snapshot, ErrorDetail> {
        let (volume, own) = split_name(text)?;
        let serving = self.serving(volume)?;
        let _one_at_a_time = serving.attached.snapshot_lock.lock().await;
        let listed = self.settled_snapshots_retrying(&serving).await?;
        let before = self.one_of(&serving.volume, &listed, own)?;
        if before.consistency == consistency {
            return Ok(before);
        }
        if consistency == SnapshotConsistency::Crash {
            let message = format!("snapshot {text} was taken of a frozen file system: that cannot be changed");
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .with("snapshot", text)
                .remedy("take another one (braid snapshot create --no-freeze)"));
        }
        let slots = self.slots_with(&serving, &listed, &before.uuid);
        self.change_all(&serving, &slots, &ReplicaChange::Frozen { snapshot: before.uuid.clone() }).await?;
        let listed = self.settled_snapshots(&serving).await?;
        self.one_of(&serving.volume, &listed, &before.uuid)
    }

    /// Deletes a snapshot, on all replicas.
    ///
    /// # Errors
    /// This node does not serve the volume; the snapshot is exported on a node.
    pub async fn delete_replicated_snapshot(&self, text: &str) -> Result<Snapshot, ErrorDetail> {
        let (volume, own) = split_name(text)?;
        let serving = self.serving(volume)?;
        let _one_at_a_time = serving.attached.snapshot_lock.lock().await;
        let listed = self.settled_snapshots_retrying(&serving).await?;
        let before = self.one_of(&serving.volume, &listed, own)?;
        let snapshot = before.uuid.clone();
        serving.attached.set_unsettled(true);
        let slots = self.slots_with(&serving, &listed, &snapshot);
        let hidden = self.change_all(&serving, &slots, &ReplicaChange::Hide { snapshot: snapshot.clone() }).await;
        if hidden.is_err() {
            settle_again_later(&serving.attached);
        }
        // Pending everywhere: it is removed. Named on a replica: it stays.
        let left = self.settle_snapshots(&serving).await;
        match (hidden, left) {
            (Err(error), Ok(listed)) if listed.named(&snapshot).is_some() => return Err(error),
            (Err(error), Err(_)) => return Err(error),
            _ => {}
        }
        let message = format!("snapshot {} was deleted", before.name);
        self.inventory.events().info("snapshot_deleted", message, &[("snapshot", &before.name)]);
        Ok(before)
    }

    /// Creates a volume from a snapshot: on the nodes that have the snapshot, with as many replicas.
    ///
    /// # Errors
    /// This node does not serve the snapshot's volume; the errors of creating a volume.
    pub(crate) async fn clone_replicated(
        self: &Arc<Self>,
        text: &str,
        ask: &CreateReplicated,
    ) -> Result<ReplicatedVolume, ErrorDetail> {
        let named = !ask.replicas.is_empty() || !ask.witnesses.is_empty() || ask.level.is_some();
        if (ask.size_bytes, ask.count, ask.block_bytes) != (0, 0, None) || named {
            let message = "a clone has the size, block, level, replicas and witnesses of its snapshot";
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .with("volume", &ask.name)
                .remedy("leave out size_bytes, block_bytes, level, replicas, count and witnesses"));
        }
        let (source, own) = split_name(text)?;
        check_name(&ask.name)?;
        let _name = self.arrays.claim_name(&ask.name)?;
        self.check_name_free(&ask.name)?;
        let serving = self.serving(source)?;
        self.refuse_parity(&serving.volume)?;
        self.refuse_pool_on(&serving.volume, "cloned")?;
        // Held until the new volume exists, so that the snapshot stays until then.
        let _one_at_a_time = serving.attached.snapshot_lock.lock().await;
        let listed = self.settled_snapshots_retrying(&serving).await?;
        let from = self.one_of(&serving.volume, &listed, own)?;
        let has = |slot: u8| matches!(listed.state_on(u16::from(slot), &from.uuid), SnapshotState::Named(_));
        // Replicas first, as in any new volume.
        let mut all: Vec<(u8, &SavedVoter)> = serving.volume.voting().collect();
        all.sort_by_key(|(slot, voter)| (voter.pool.is_none(), *slot));
        let replicas = all.iter().filter(|(slot, voter)| voter.pool.is_some() && has(*slot)).count();
        // One replica opens the volume alone; a witness would only be one more voter that must reply.
        let votes = |(slot, voter): &(u8, &SavedVoter)| match voter.pool {
            Some(_) => has(*slot),
            None => replicas > 1,
        };
        let (voters, membership) =
            SavedReplicated::numbered(all.into_iter().filter(votes).map(|(_, voter)| voter.clone()).collect());
        let volume = SavedReplicated {
            uuid: random_uuid()?,
            name: ask.name.clone(),
            size_bytes: from.size_bytes,
            block_bytes: serving.volume.block_bytes,
            voters,
            membership,
            attached: true,
            controller: random_uuid()?,
            epoch: 0,
            creating: true,
            from: from.uuid.parse().ok(),
            left: Vec::new(),
        };
        self.create_prepared(volume).await
    }

    /// Refuses an operation that needs full copies on every replica.
    pub(crate) fn refuse_parity(&self, volume: &SavedReplicated) -> Result<(), ErrorDetail> {
        if volume.is_mirrored() {
            return Ok(());
        }
        let name = &volume.name;
        let message = format!("volume {name} keeps parity, and no replica has all of it: it has no snapshots itself");
        Err(ErrorDetail::new(Kind::InvalidArgument, message)
            .with("volume", name)
            .remedy(format!("make a pool on it (braid pool create POOL {name}): its volumes have")))
    }

    /// Returns a volume for an operation that only its serving node can do.
    pub(crate) fn serving(&self, name: &str) -> Result<ServedVolume, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let volume = self.inventory.find_replicated(name)?;
        let attached = self.replicated.all().get(&volume.uuid).cloned();
        let serves = self.inventory.read().arrays.get(&volume.uuid).is_some_and(|entry| entry.active().is_some());
        let voters = attached.as_ref().and_then(|attached| attached.voters());
        match (attached, voters) {
            (Some(attached), Some(voters)) if serves => Ok(ServedVolume { volume, attached, voters }),
            _ => Err(ErrorDetail::new(Kind::Inactive, format!("volume {name} is not served by this node"))
                .with("volume", name)
                .remedy(format!("do it on the node that serves it, or braid volume attach {name} here first"))),
        }
    }

    /// Returns the replicas in sync, by the current labels.
    fn slots_in_sync(&self, volume: &SavedReplicated) -> Vec<u16> {
        let tables = self.inventory.read();
        let Some(active) = tables.arrays.get(&volume.uuid).and_then(|entry| entry.active()) else { return Vec::new() };
        let members = active.label.members.iter().zip(0u16..);
        members.filter(|(member, _)| member.state == MemberState::InSync).map(|(_, slot)| slot).collect()
    }

    /// Returns the replicas in sync that have a snapshot.
    pub(crate) fn slots_with(&self, serving: &ServedVolume, listed: &SnapshotLists, snapshot: &str) -> Vec<u16> {
        let has = |slot: &u16| listed.state_on(*slot, snapshot) != SnapshotState::Absent;
        self.slots_in_sync(&serving.volume).into_iter().filter(has).collect()
    }

    /// Takes a snapshot on all replicas in sync while requests are held. Returns these replicas.
    async fn take_on_all(&self, serving: &ServedVolume, snapshot: &str, name: &str) -> Result<Vec<u16>, ErrorDetail> {
        let volume = &serving.volume;
        self.await_equal(volume).await?;
        // Before requests are held, a replica whose daemon has restarted is reconnected, and a dead one is dropped: an
        // idle volume sends its replicas no other request.
        self.flush_replicas(volume).await;
        self.arrays.give_order(volume.uuid, Order::Hold { limit_ns: HOLD_MAX.as_nanos() as u64 }).await?;
        // The set of replicas in sync does not change while requests are held.
        let slots = self.slots_in_sync(volume);
        let take = ReplicaChange::Take { snapshot: snapshot.to_owned(), name: name.to_owned() };
        let taken = join_all(slots.iter().map(|slot| self.change_one(serving, *slot, &take, TAKE_MAX))).await;
        // If the hold exceeded its limit, it was released before.
        let held = self.arrays.give_order(volume.uuid, Order::Release).await;
        taken.into_iter().collect::<Result<(), ErrorDetail>>()?;
        held?;
        Ok(slots)
    }

    /// Waits until regions that a crash has left unequal are resynced: otherwise the snapshots would differ.
    async fn await_equal(&self, volume: &SavedReplicated) -> Result<(), ErrorDetail> {
        let until = tokio::time::Instant::now() + EQUAL_MAX;
        loop {
            let left = self.arrays.with_keeping(volume.uuid, |keeping| keeping.regions().unequal.count());
            if left.is_none_or(|left| left == 0) {
                return Ok(());
            }
            if tokio::time::Instant::now() >= until {
                let message = "the replicas are still being resynced after a crash";
                return Err(ErrorDetail::new(Kind::TimedOut, message).with("volume", &volume.name));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Requests the same change from several replicas concurrently, and retries while they are in sync and fail.
    async fn change_all(
        &self,
        serving: &ServedVolume,
        slots: &[u16],
        change: &ReplicaChange,
    ) -> Result<(), ErrorDetail> {
        let mut slots = slots.to_vec();
        for turn in 1.. {
            let ask = |slot: u16| async move { (slot, self.change_one(serving, slot, change, CHANGE_MAX).await) };
            let mut failed = None;
            let mut again = Vec::new();
            for (slot, done) in join_all(slots.iter().copied().map(ask)).await {
                if let Err(error) = done {
                    again.push(slot);
                    failed = Some(error);
                }
            }
            // A replica that was dropped does not count any more, and undoes the change when it rejoins.
            let in_sync = self.slots_in_sync(&serving.volume);
            again.retain(|slot| in_sync.contains(slot));
            let Some(error) = failed.filter(|_| !again.is_empty()) else { break };
            let is_final = !matches!(error.kind, Kind::Unreachable | Kind::TimedOut | Kind::Inactive | Kind::Fenced);
            if is_final || turn == TRIES || serving.attached.has_ended() {
                return Err(error);
            }
            self.flush_replicas(&serving.volume).await;
            tokio::time::sleep(RETRY_DELAY).await;
            slots = again;
        }
        Ok(())
    }

    /// Sends a flush to all replicas in sync, so that one without progress is detected.
    async fn flush_replicas(&self, volume: &SavedReplicated) {
        let device = self.inventory.read().arrays.get(&volume.uuid).and_then(|entry| Some(entry.active()?.device));
        if let Some(device) = device {
            // The labels show the outcome.
            let _ = tokio::time::timeout(FLUSH_MAX, self.ring.devices().flush(device)).await;
        }
    }

    /// Requests a change from a replica.
    pub(crate) async fn change_one(
        &self,
        serving: &ServedVolume,
        slot: u16,
        change: &ReplicaChange,
        limit: Duration,
    ) -> Result<(), ErrorDetail> {
        let ServedVolume { volume, attached, voters } = serving;
        let (epoch, controller, _) = voters.session_of(VoterId(slot as u8));
        let body = ChangeReplica {
            epoch,
            controller: controller.to_string(),
            session: attached.session_of(slot),
            change: change.clone(),
        };
        let internal = |error: serde_json::Error| ErrorDetail::new(Kind::Internal, error.to_string());
        let body = serde_json::to_value(&body).map_err(internal)?;
        let path = format!("/v1/replicas/{}/snapshots", volume.uuid);
        let node = volume.node_of(slot)?;
        let done = self.nodes.call_within(limit, node, Method::POST, &path, Some(body)).await;
        done.map(drop).map_err(|error| {
            let message = format!("replica {}: {}", volume.voter_name(slot as u8), error.message);
            ErrorDetail { message, ..error }
        })
    }

    pub(crate) async fn list_one(
        &self,
        volume: &SavedReplicated,
        slot: u16,
    ) -> Result<Vec<ReplicaSnapshot>, ErrorDetail> {
        let path = format!("/v1/replicas/{}/snapshots", volume.uuid);
        let node = volume.node_of(slot)?;
        let reply = self.nodes.call(node, Method::GET, &path, None).await?;
        let list: ReplicaSnapshotList =
            serde_json::from_value(reply).map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))?;
        Ok(list.snapshots)
    }

    /// Returns the snapshots of these replicas.
    async fn list_all(&self, volume: &SavedReplicated, slots: &[u16]) -> Result<SnapshotLists, ErrorDetail> {
        let lists = join_all(slots.iter().map(|slot| self.list_one(volume, *slot))).await;
        let lists: Result<Vec<_>, ErrorDetail> = lists.into_iter().collect();
        Ok(SnapshotLists(slots.iter().copied().zip(lists?).collect()))
    }

    /// Returns the snapshots for a reader: of the replicas in sync if this node serves the volume, else of all that
    /// reply.
    async fn readable_snapshots(&self, volume: &SavedReplicated) -> Result<SnapshotLists, ErrorDetail> {
        let in_sync = self.slots_in_sync(volume);
        if !in_sync.is_empty() {
            return self.list_all(volume, &in_sync).await;
        }
        let all: Vec<u16> = volume.replicas();
        let lists = join_all(all.iter().map(|slot| self.list_one(volume, *slot))).await;
        let silent = lists.iter().all(Result::is_err);
        let (mut listed, mut last) = (BTreeMap::new(), None);
        for (slot, list) in all.into_iter().zip(lists) {
            match list {
                Ok(list) => drop(listed.insert(slot, list)),
                Err(error) => last = Some(error),
            }
        }
        match last.filter(|_| silent) {
            Some(error) => Err(error),
            None => Ok(SnapshotLists(listed)),
        }
    }

    /// Returns the snapshots, with all of them settled.
    async fn settled_snapshots(&self, serving: &ServedVolume) -> Result<SnapshotLists, ErrorDetail> {
        if serving.attached.is_unsettled() {
            return self.settle_snapshots(serving).await;
        }
        self.list_all(&serving.volume, &self.slots_in_sync(&serving.volume)).await
    }

    /// As [`ReplicationManager::settled_snapshots`], with one retry: a replica that does not reply is soon dropped, or replies
    /// again.
    pub(crate) async fn settled_snapshots_retrying(
        &self,
        serving: &ServedVolume,
    ) -> Result<SnapshotLists, ErrorDetail> {
        match self.settled_snapshots(serving).await {
            Err(error) if matches!(error.kind, Kind::Unreachable | Kind::TimedOut | Kind::Fenced) => {
                self.flush_replicas(&serving.volume).await;
                self.settled_snapshots(serving).await
            }
            listed => listed,
        }
    }

    /// Settles every snapshot that exists on some replicas only. The caller holds the lock of the snapshots.
    async fn settle_snapshots(&self, serving: &ServedVolume) -> Result<SnapshotLists, ErrorDetail> {
        let slots = self.slots_in_sync(&serving.volume);
        let settled = self.settle_on(serving, &slots).await;
        if settled.is_err() {
            // A replica whose daemon has restarted is reconnected only at the next request, and accepts no change
            // before.
            self.flush_replicas(&serving.volume).await;
        }
        settled
    }

    /// Settles the snapshots on these replicas.
    async fn settle_on(&self, serving: &ServedVolume, slots: &[u16]) -> Result<SnapshotLists, ErrorDetail> {
        let listed = self.list_all(&serving.volume, slots).await?;
        let mut changed = false;
        for snapshot in listed.snapshots() {
            let outcome = listed.outcome(snapshot);
            for slot in slots {
                if let Some(change) = change_for(&outcome, &listed.state_on(*slot, snapshot), snapshot) {
                    self.change_one(serving, *slot, &change, CHANGE_MAX).await?;
                    changed = true;
                }
            }
        }
        let listed = if changed { self.list_all(&serving.volume, slots).await? } else { listed };
        serving.attached.set_unsettled(false);
        serving.attached.set_snapshots(listed.count());
        Ok(listed)
    }

    /// Settles the snapshots at an opening, on the replicas in sync, before clients are served. What fails then is
    /// retried later.
    pub(crate) async fn settle_at_opening(
        &self,
        volume: &SavedReplicated,
        attached: &Arc<AttachedVolume>,
        voters: &Arc<VolumeVoters>,
        slots: &[u16],
    ) {
        attached.set_unsettled(true);
        let serving =
            ServedVolume { volume: volume.clone(), attached: Arc::clone(attached), voters: Arc::clone(voters) };
        // The previous epoch's task may still hold the lock.
        let settled = tokio::time::timeout(CHANGE_MAX, async {
            let _one_at_a_time = attached.snapshot_lock.lock().await;
            self.settle_on(&serving, slots).await
        });
        let why = match settled.await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error.message,
            Err(_) => format!("that took more than {} s", CHANGE_MAX.as_secs()),
        };
        tracing::warn!("volume {}: its snapshots are looked at again later: {why}", volume.name);
    }

    /// Settles what was left undecided, while the volume is served.
    pub(crate) async fn settle_later(
        &self,
        volume: &SavedReplicated,
        attached: &Arc<AttachedVolume>,
        voters: &Arc<VolumeVoters>,
    ) {
        let serving =
            ServedVolume { volume: volume.clone(), attached: Arc::clone(attached), voters: Arc::clone(voters) };
        let _one_at_a_time = attached.snapshot_lock.lock().await;
        if attached.is_unsettled()
            && let Err(error) = self.settle_snapshots(&serving).await
        {
            tracing::info!("volume {}: {}", volume.name, error.message);
        }
    }

    /// Removes from a replica that rejoins, and takes no writes yet, the snapshots that those in sync do not have. The
    /// caller holds the lock of the snapshots.
    pub(crate) async fn remove_extra_snapshots(&self, serving: &ServedVolume, slot: u16) -> Result<(), ErrorDetail> {
        let listed = self.settled_snapshots_retrying(serving).await?;
        for own in self.list_one(&serving.volume, slot).await? {
            let stays = own.name.is_some() && listed.named(&own.uuid).is_some();
            if stays {
                continue;
            }
            let snapshot = own.uuid.clone();
            if own.name.is_some() {
                let hide = ReplicaChange::Hide { snapshot: snapshot.clone() };
                self.change_one(serving, slot, &hide, CHANGE_MAX).await?;
            }
            self.change_one(serving, slot, &ReplicaChange::Remove { snapshot }, CHANGE_MAX).await?;
        }
        Ok(())
    }

    /// Refuses to delete a volume that has snapshots.
    pub(crate) async fn refuse_snapshots(&self, volume: &SavedReplicated, slot: u16) -> Result<(), ErrorDetail> {
        let list = self.list_one(volume, slot).await.unwrap_or_default();
        let Some(name) = list.into_iter().find_map(|one| one.name) else { return Ok(()) };
        let volume = &volume.name;
        Err(ErrorDetail::new(Kind::InUse, format!("volume {volume} has snapshots"))
            .with("volume", volume)
            .with("snapshot", format!("{volume}@{name}"))
            .remedy(format!("delete them first (braid snapshot list {volume}); --force does not override this")))
    }

    pub(crate) fn one_of(
        &self,
        volume: &SavedReplicated,
        listed: &SnapshotLists,
        own: &str,
    ) -> Result<Snapshot, ErrorDetail> {
        let found = listed.named(own).map(|uuid| self.show_replicated_snapshots(volume, listed, Some(uuid)));
        let shown = found.transpose()?.and_then(|list| list.snapshots.into_iter().next());
        shown.ok_or_else(|| {
            ErrorDetail::new(Kind::NotFound, format!("there is no snapshot {}@{own}", volume.name))
                .with("snapshot", own)
                .remedy(format!("`braid snapshot list {}` shows those there are", volume.name))
        })
    }

    /// Returns the snapshots as the API shows them: all, or one.
    fn show_replicated_snapshots(
        &self,
        volume: &SavedReplicated,
        listed: &SnapshotLists,
        only: Option<&str>,
    ) -> Result<SnapshotList, ErrorDetail> {
        let places = || volume.voting().filter(|(_, voter)| voter.pool.is_some());
        let show = |uuid: &str| {
            let SnapshotOutcome::Complete(name) = listed.outcome(uuid) else { return None };
            let first = listed.0.keys().find_map(|slot| listed.entry(*slot, uuid))?;
            let replicas = places().map(|(slot, voter)| SnapshotReplica {
                node: voter.node.clone(),
                pool: voter.pool.clone().unwrap_or_default(),
                has_snapshot: matches!(listed.state_on(u16::from(slot), uuid), SnapshotState::Named(_)),
            });
            Some(Snapshot {
                name: format!("{}@{name}", volume.name),
                uuid: uuid.to_owned(),
                pool: String::new(),
                volume: Some(volume.name.clone()),
                size_bytes: first.size_bytes,
                block_bytes: volume.block_bytes,
                allocated_bytes: first.allocated_bytes,
                created_unix_s: first.created_unix_s,
                consistency: if listed.is_frozen(uuid) {
                    SnapshotConsistency::Frozen
                } else {
                    SnapshotConsistency::Crash
                },
                exports: Vec::new(),
                space: None,
                replicas: replicas.collect(),
            })
        };
        let wanted = listed.snapshots().into_iter().filter(|uuid| only.is_none_or(|only| only == *uuid));
        Ok(SnapshotList { snapshots: wanted.filter_map(show).collect(), incomplete: Vec::new() })
    }
}

/// Settles the snapshots once more later: a replica that did not reply in time may still make the change.
fn settle_again_later(attached: &Arc<AttachedVolume>) {
    let attached = Arc::downgrade(attached);
    tasks::spawn(async move {
        tokio::time::sleep(LATE_MAX).await;
        if let Some(attached) = attached.upgrade() {
            attached.set_unsettled(true);
        }
    });
}

/// Splits the name of a snapshot into those of volume and snapshot.
fn split_name(text: &str) -> Result<(&str, &str), ErrorDetail> {
    text.split_once('@').filter(|(volume, own)| !volume.is_empty() && !own.is_empty()).ok_or_else(|| {
        ErrorDetail::new(Kind::InvalidArgument, format!("{text:?} is no name of a snapshot"))
            .with("snapshot", text)
            .remedy("write POOL/VOLUME@SNAPSHOT; of a replicated volume VOLUME@SNAPSHOT")
    })
}

fn snapshot_exists(volume: &str, own: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::Exists, format!("there is a snapshot {volume}@{own} already"))
        .with("snapshot", format!("{volume}@{own}"))
        .remedy("choose another name, or rename that one first")
}

/// Returns the identity of a new snapshot, of the UUID version reserved for controllers.
fn identity() -> Result<String, ErrorDetail> {
    let bytes = u128::from(random()?) << 64 | u128::from(random()?);
    Ok(uuid::Builder::from_custom_bytes(bytes.to_be_bytes()).into_uuid().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_identities_are_those_of_controllers() {
        let one = identity().expect("there is chance");
        assert!(braid_pools::is_controller_snapshot(one.parse().expect("it is one")));
        assert_ne!(one, identity().expect("there is chance"));
    }
}
