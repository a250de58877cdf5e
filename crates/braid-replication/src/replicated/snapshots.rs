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
//! is settled before clients are served (`settle`). A replica that rejoins first removes the snapshots that the others
//! do not have.

use crate::ReplicationManager;
use crate::attached::ServedVolume;
use crate::replicated::outcome::{SnapshotLists, SnapshotOutcome, SnapshotState};
use crate::replicated::settle::settle_again_later;
use braid_api::{ErrorDetail, Kind, ReplicaChange, Snapshot, SnapshotConsistency, SnapshotList, SnapshotReplica};
use braid_array_admin::reconciler::Order;
use braid_inventory::{SavedReplicated, random};
use braid_pools::check_controller_snapshot_name;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum time for which requests are held for a snapshot.
const HOLD_MAX: Duration = Duration::from_secs(4);

/// Maximum time for a replica to take it.
const TAKE_MAX: Duration = Duration::from_millis(2500);

/// Maximum time for which taking a snapshot waits for a resync of the replicas after a crash.
const EQUAL_MAX: Duration = Duration::from_secs(20);

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
            let left = self.arrays.with_reconciler(volume.uuid, |reconciler| reconciler.regions().unequal.count());
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

/// Splits the name of a snapshot into those of volume and snapshot.
pub(crate) fn split_name(text: &str) -> Result<(&str, &str), ErrorDetail> {
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
