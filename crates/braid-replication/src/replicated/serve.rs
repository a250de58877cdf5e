//! Serves a replicated volume: opens it, has it reconciled while it is served (`reconcile`), and releases it.
//!
//! | step | what may happen | what follows |
//! |---|---|---|
//! | the voters are asked | too few reply, or too few replicas in sync | it waits, and reports which are missing |
//! | the replicas are opened, the array on them is started | something fails | it begins anew, in a higher epoch |
//! | it is served | a replica fails | the array drops it, once the voters agree |
//! | | a replica is back | it is resynced, and in sync once the voters agree |
//! | | the last replica fails | clients are cut off, and the volume is opened anew |
//! | | another node opens it | clients are cut off; this node does not serve it any more |
//!
//! Clients never get an error for any of that: a request without a reply ends with its connection, and the client sends
//! it again when it reconnects.

use crate::ReplicationManager;
use crate::attached::AttachedVolume;
use crate::voters::forced::ForcedAttach;
use crate::voters::probe::{ProbeOutcome, RegistersRead, probe};
use crate::voters::transport::NodeTransport;
use crate::voters::{VolumeVoters, VoterGroup};
use braid_api::{ErrorDetail, Kind};
use braid_arrays::{DeactivatedArray, EndedArray, ReconcilerStart, VotedMeta};
use braid_engine::replica;
use braid_format::MemberState;
use braid_inventory::{ArrayCondition, OpenDisk, SavedReplicated, random};
use braid_tasks as tasks;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// Interval between two probes whether another controller has opened the volume.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum wait for the voters when they are notified that the volume is released.
const RELEASE_MAX: Duration = Duration::from_secs(2);

/// Maximum wait for voters that are not needed; and, when a volume is created, for all.
const OPTIONAL_VOTERS_MAX: Duration = Duration::from_secs(2);

const ALL_VOTERS_MAX: Duration = Duration::from_secs(12);

/// Maximum wait for unreachable voters when serving ends.
const STOP_MAX: Duration = Duration::from_secs(8);

/// Maximum wait for the close of the pool on a volume once all its requests fail.
const POOL_CLOSE_MAX: Duration = Duration::from_secs(40);

/// Delay between two openings: minimum and maximum.
const REOPEN_DELAY_MIN: Duration = Duration::from_secs(1);

const REOPEN_DELAY_MAX: Duration = Duration::from_secs(15);

/// How one epoch of serving ended.
pub(crate) enum EpochEnd {
    /// The user ended it.
    Stopped,
    /// Another node has opened the volume.
    Fenced,
    /// The volume is to be opened anew, to be rolled back.
    RolledBack,
    /// The volume is to be opened anew.
    Reopen(String),
}

impl ReplicationManager {
    /// Begins to serve a volume, unless that has begun. `new`: its replicas have no label yet. Goes on until
    /// [`ReplicationManager::end_replicated`].
    pub(crate) fn begin_replicated(self: &Arc<Self>, uuid: Uuid, new: bool) -> Arc<AttachedVolume> {
        self.begin_opening(uuid, new, None)
    }

    /// As [`ReplicationManager::begin_replicated`]. `forced`: the first opening uses these voters alone.
    pub(crate) fn begin_opening(
        self: &Arc<Self>,
        uuid: Uuid,
        new: bool,
        forced: Option<ForcedAttach>,
    ) -> Arc<AttachedVolume> {
        let attached = Arc::new(AttachedVolume::new(forced));
        match self.replicated.all().entry(uuid) {
            // Another task was faster.
            Entry::Occupied(there) => return Arc::clone(there.get()),
            Entry::Vacant(free) => drop(free.insert(Arc::clone(&attached))),
        }
        let (manager, run) = (Arc::clone(self), Arc::clone(&attached));
        tasks::spawn(async move {
            manager.run_replicated(uuid, &run, new).await;
            manager.replicated.all().remove(&uuid);
            run.set_ended();
        });
        attached
    }

    /// Serves the volumes that this node served when its daemon ended.
    pub fn begin_all_replicated(self: &Arc<Self>) {
        // An attachment that the end of the daemon interrupted before the volume was served (epoch 0) is given up.
        let is_served = |volume: &&SavedReplicated| volume.attached && !volume.creating && volume.epoch > 0;
        let attached: Vec<Uuid> =
            self.inventory.read().replicated.values().filter(is_served).map(|volume| volume.uuid).collect();
        for uuid in attached {
            self.begin_replicated(uuid, false);
        }
    }

    /// Ends serving a volume: nothing is in flight on it, and its voters are notified, as far as they can be reached.
    pub(crate) async fn end_replicated(&self, uuid: Uuid) {
        let Some(attached) = self.replicated.all().get(&uuid).cloned() else { return };
        attached.request_end();
        attached.wait_ended().await;
    }

    /// Ends serving all volumes.
    pub async fn end_all_replicated(&self) {
        let all: Vec<Uuid> = self.replicated.all().keys().copied().collect();
        // They end concurrently.
        all.iter().for_each(|uuid| {
            if let Some(attached) = self.replicated.all().get(uuid) {
                attached.request_end();
            }
        });
        for uuid in all {
            self.end_replicated(uuid).await;
        }
    }

    async fn run_replicated(self: &Arc<Self>, uuid: Uuid, attached: &Arc<AttachedVolume>, mut new: bool) {
        let mut delay = REOPEN_DELAY_MIN;
        let name = self.inventory.read().replicated.get(&uuid).map(|volume| volume.name.clone()).unwrap_or_default();
        loop {
            let begun = Instant::now();
            let outcome = self.serve_once(uuid, attached, new).await;
            attached.set_voters(None);
            match outcome {
                EpochEnd::Stopped => return,
                EpochEnd::Fenced => {
                    let message = format!(
                        "a quorum of the voters of volume {name} replies to another node, which has opened it or was about to; this node has stopped serving it"
                    );
                    self.inventory.events().warning("volume_taken_over", message, &[("volume", &name)]);
                    self.save_attached(uuid, false);
                    return;
                }
                EpochEnd::RolledBack => {
                    new = false;
                    continue;
                }
                EpochEnd::Reopen(why) => {
                    // A volume that is still being created is removed by the task that creates it.
                    let is_made = self.inventory.read().replicated.get(&uuid).is_some_and(|volume| !volume.creating);
                    if new && !is_made {
                        attached.set_fault(Some(why));
                        return;
                    }
                    self.inventory.events().warning(
                        "volume_interrupted",
                        format!("volume {name}: {why}"),
                        &[("volume", &name)],
                    );
                    attached.set_fault(Some(why));
                }
            }
            new = false;
            delay =
                if begun.elapsed() > REOPEN_DELAY_MAX { REOPEN_DELAY_MIN } else { (2 * delay).min(REOPEN_DELAY_MAX) };
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = attached.end_requested() => return,
            }
        }
    }

    /// Serves one epoch: from the first request to the voters until nothing is in flight any more.
    async fn serve_once(self: &Arc<Self>, uuid: Uuid, attached: &Arc<AttachedVolume>, new: bool) -> EpochEnd {
        let lineage = match random() {
            Ok(lineage) => lineage,
            Err(error) => return EpochEnd::Reopen(error.message),
        };
        let transport = self.transport_to(uuid);
        // Once: later openings go by the votes again.
        let forced = attached.take_forced();
        let above = match forced {
            Some(_) => 0,
            None => match self.may_open(uuid, attached, &transport).await {
                Ok(above) => above,
                Err(outcome) => return outcome,
            },
        };
        let Some(volume) = self.inventory.read().replicated.get(&uuid).cloned() else { return EpochEnd::Stopped };
        let voters = match &forced {
            None => VoterGroup::begin(transport, volume.membership(), volume.controller, lineage, above),
            Some(forced) => match forced.begin(transport, volume.controller, lineage) {
                Some(voters) => voters,
                None => return EpochEnd::Reopen("its voters' epochs are used up".to_owned()),
            },
        };
        attached.set_voters(Some(Arc::clone(&voters)));
        let chosen = tokio::select! {
            chosen = voters.open(if new { ALL_VOTERS_MAX } else { OPTIONAL_VOTERS_MAX }) => chosen,
            () = attached.end_requested() => {
                voters.release(RELEASE_MAX).await;
                return EpochEnd::Stopped;
            }
            () = self.look_for_voters(uuid, &voters), if forced.is_none() => unreachable!("it looks for ever"),
        };
        // The membership may be newer than the one that was known.
        let Some(volume) = self.save_membership(uuid, &voters.membership()) else { return EpochEnd::Stopped };
        let Ok(chosen) = chosen else { return EpochEnd::Reopen("other nodes open it at the same time".to_owned()) };
        // The epoch is durable before its first session begins: no pair of epoch and session is used twice. From here
        // on a higher epoch belongs to another controller.
        if let Err(error) = self.save_epoch(uuid, voters.status().epoch) {
            voters.release(RELEASE_MAX).await;
            return EpochEnd::Reopen(error.message);
        }
        self.roll_back_at_opening(&volume, attached, &voters, chosen).await;
        let started = {
            // An end does not wait for unreachable voters.
            let ends = Arc::clone(attached);
            let given_up = Arc::clone(&voters);
            let watch = tasks::spawn(async move {
                ends.end_requested().await;
                given_up.give_up();
            });
            let started = self.start_replicated(&volume, attached, &voters, chosen, new).await;
            watch.abort();
            started
        };
        if let Err(error) = started {
            // Nothing was served: no voter need wait for a lease.
            voters.release(RELEASE_MAX).await;
            return EpochEnd::Reopen(error.message);
        }
        attached.set_fault(None);
        let (manager, opening) = (Arc::clone(self), Arc::clone(attached));
        opening.set_pool_settled(false);
        // Not waited for: it needs the lease, which may expire at any time.
        tasks::spawn(async move {
            manager.pools.open_pool_on_replicated(uuid).await;
            opening.set_pool_settled(true);
        });
        self.inventory.events().info(
            "volume_attached",
            format!("volume {} is served", volume.name),
            &[("volume", &volume.name)],
        );
        let outcome = self.reconcile_replicated(&volume, attached, &voters).await;
        self.stop_replicated(&volume, attached, &voters, matches!(outcome, EpochEnd::Stopped | EpochEnd::RolledBack))
            .await;
        if !matches!(outcome, EpochEnd::RolledBack) {
            // The task that copies snapshots to a replica notices the end, and releases the snapshot that it reads.
            drop(tokio::time::timeout(RELEASE_MAX, attached.snapshot_lock.lock()).await);
        }
        outcome
    }

    /// Waits until it is known that no other controller has opened the volume since this node did. Returns the epoch
    /// above which to open it.
    async fn may_open(
        &self,
        uuid: Uuid,
        attached: &Arc<AttachedVolume>,
        transport: &NodeTransport,
    ) -> Result<u64, EpochEnd> {
        let mut read = RegistersRead::default();
        loop {
            let Some(volume) = self.inventory.read().replicated.get(&uuid).cloned() else {
                return Err(EpochEnd::Stopped);
            };
            let Some(epoch) = volume.after() else { return Ok(0) };
            let probing = probe(transport, volume.membership(), &read, epoch, volume.controller);
            let probed = tokio::select! {
                probed = probing => probed,
                () = attached.end_requested() => return Err(EpochEnd::Stopped),
            };
            match probed {
                ProbeOutcome::Ours(above) if above > epoch && self.opened_since(&volume, epoch).await => {
                    return Err(EpochEnd::Fenced);
                }
                ProbeOutcome::Ours(above) => return Ok(above),
                ProbeOutcome::Other => return Err(EpochEnd::Fenced),
                ProbeOutcome::Unknown => {
                    attached.set_fault(Some(format!(
                        "too few of its voters answer to say whether another node serves it; if none does, braid volume attach {} takes it over from any other node",
                        volume.name
                    )));
                    read = self.adopt_newest_vote(uuid).await;
                }
            }
            tokio::select! {
                () = tokio::time::sleep(PROBE_INTERVAL) => {}
                () = attached.end_requested() => return Err(EpochEnd::Stopped),
            }
        }
    }

    /// Opens the replicas, and serves the array on them.
    async fn start_replicated(
        self: &Arc<Self>,
        volume: &SavedReplicated,
        attached: &Arc<AttachedVolume>,
        voters: &Arc<VolumeVoters>,
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
            self.arrays.close_disks(disks).await;
            return Err(last.unwrap_or_else(|| ErrorDetail::new(Kind::Incomplete, "no replica could be opened")));
        }
        let meta = VotedMeta { meta: self.meta.clone(), votes: Some(Arc::clone(voters) as _) };
        let started = match new {
            true => self.create_replicated_array(volume, &meta, &disks).await.map(|array| (array, true)),
            false => self.start_replicated_array(volume, &meta, &disks).await,
        };
        match &started {
            Ok(_) if new => attached.set_snapshots(0),
            Ok((array, _)) if volume.is_mirrored() => {
                let in_sync = array.members().filter(|member| member.state == MemberState::InSync);
                let slots: Vec<u16> = in_sync.map(|member| member.number).collect();
                self.settle_at_opening(volume, attached, voters, &slots).await;
            }
            _ => {}
        }
        let kept = match started {
            Ok((array, clean)) => {
                self.arrays.serve_redundant(array, &disks, ReconcilerStart { clean, force: false }).await
            }
            Err(error) => Err(error),
        };
        if kept.is_err() {
            self.arrays.close_disks(disks).await;
            return kept;
        }
        // Disks that were opened but are no members: they are opened again when the replica is taken back.
        let unused: Vec<_> = {
            let tables = self.inventory.read();
            let active = tables.arrays.get(&volume.uuid).and_then(|entry| entry.active());
            let is_member = |disk: &Arc<OpenDisk>| {
                active.is_some_and(|active| active.disks.iter().any(|member| member.disk.leaf == disk.leaf))
            };
            disks.into_iter().filter(|disk| !is_member(disk)).collect()
        };
        if let Some(ArrayCondition::Active(active)) =
            self.inventory.write().arrays.get_mut(&volume.uuid).map(|entry| &mut entry.condition)
        {
            active.guests.retain(|guest| unused.iter().all(|disk| disk.leaf != guest.leaf));
        }
        self.arrays.close_disks(unused).await;
        Ok(())
    }

    /// Stops the array, then releases the volume. `clean`: the end was requested, so the pool on the volume is closed
    /// first, and the array is marked as clean.
    async fn stop_replicated(
        self: &Arc<Self>,
        volume: &SavedReplicated,
        attached: &Arc<AttachedVolume>,
        voters: &Arc<VolumeVoters>,
        clean: bool,
    ) {
        // Connections are closed before any request fails: clients get no error, and reconnect.
        self.exports.stop_exports_of(volume.uuid).await;
        self.pools.silence_pool_on_replicated(volume.uuid).await;
        let (manager, opening, uuid) = (Arc::clone(self), Arc::clone(attached), volume.uuid);
        let mut closing_pool = tasks::spawn(async move {
            opening.pool_settled().await;
            manager.pools.close_pool_on_replicated(uuid).await;
        });
        if clean && tokio::time::timeout(STOP_MAX, &mut closing_pool).await.is_err() {
            tracing::warn!(
                "volume {}: the pool on it was not closed in time; the next opening does the rest",
                volume.name
            );
        }
        let given_up = Arc::clone(voters);
        let watch = tasks::spawn(async move {
            tokio::time::sleep(STOP_MAX).await;
            given_up.give_up();
        });
        if let Some(DeactivatedArray { entry, disks, array, device }) =
            self.arrays.withdraw_array(volume.uuid, false).await
        {
            // All requests of the pool have failed by now, or a disk hangs: then the device stays reserved until the
            // daemon ends.
            let closing = async {
                if !closing_pool.is_finished() {
                    let _ = closing_pool.await;
                }
                // Another task may have been opening a pool: that opening has failed by now, or the pool is closed
                // here.
                self.pools.close_pool_on_replicated(volume.uuid).await;
            };
            let closed = tokio::time::timeout(POOL_CLOSE_MAX, closing).await.is_ok();
            if let Some(device) = device.filter(|_| closed) {
                self.inventory.write().release_device(device);
            }
            if let Some(mut ended @ EndedArray::Kept(_)) = array
                && clean
            {
                self.arrays.mark_clean(&volume.name, &disks, &mut ended).await;
            }
            drop(entry);
            self.arrays.close_disks(disks).await;
        }
        watch.abort();
        self.inventory.write().arrays.remove(&volume.uuid);
        voters.release(RELEASE_MAX).await;
    }

    /// Saves whether this node is to serve a volume.
    pub(crate) fn save_attached(&self, uuid: Uuid, attached: bool) {
        if let Some(volume) = self.inventory.write().replicated.get_mut(&uuid) {
            volume.attached = attached;
        }
        self.inventory.save_or_warn();
    }

    fn save_epoch(&self, uuid: Uuid, epoch: u64) -> Result<(), ErrorDetail> {
        if let Some(volume) = self.inventory.write().replicated.get_mut(&uuid) {
            volume.epoch = epoch;
        }
        self.inventory.save()
    }
}
