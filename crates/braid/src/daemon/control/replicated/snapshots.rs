//! Snapshots of a volume that is kept on several nodes: of one moment, under one name, on all of its replicas.
//!
//! | step | what is on the replicas | after the end of its controller |
//! |---|---|---|
//! | requests wait, what is under way ends | nothing | nothing |
//! | each takes one, all side by side; then requests go on | pending, on some or all | it is removed |
//! | each gives it its name | named on some, pending on the others | it is named on all |
//! | it is deleted: each makes it pending | the same | it is named on all: it was not deleted |
//! | each removes it | pending, on some or all | it is removed |
//!
//! So what becomes of one follows from what the replicas in sync have (`decided`), whoever opens the volume: it is looked at before
//! clients are served. A replica that comes back gives up what the others do not have, before it takes part.

use super::super::create::check_name;
use super::super::pools::name_for_all;
use super::super::{Control, random, random_uuid};
use super::Voters;
use super::decided::{Has, Listed, Verdict, change_for};
use super::saved::{SavedReplicated, SavedVoter};
use super::serve::Attached;
use braid_api::{
    ChangeReplica, CreateReplicated, ErrorDetail, Kind, ReplicaChange, ReplicaSnapshot, ReplicaSnapshotList,
    ReplicatedVolume, Snapshot, SnapshotConsistency, SnapshotList, SnapshotReplica,
};
use braid_engine::DeviceIo;
use braid_engine::keeper::Order;
use braid_engine::replica::VoterId;
use braid_format::MemberState;
use futures_util::future::join_all;
use hyper::Method;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Longest that requests wait for a snapshot.
const HELD_MAX: Duration = Duration::from_secs(4);
/// Longest that a replica may take for it.
const TAKING_MAX: Duration = Duration::from_millis(2500);
/// Longest that a replica may take for what nobody waits for.
pub(super) const CHANGING_MAX: Duration = Duration::from_secs(10);
/// Longest that a replica is waited for which may be about to be left out.
const URGED_MAX: Duration = Duration::from_secs(12);
/// Longest that whoever takes a snapshot waits for replicas to be brought together after a crash.
const EQUAL_MAX: Duration = Duration::from_secs(20);
/// After so long what a replica was asked for and did not do in time has been done, or is never done: it is looked at once more.
const LATE_MAX: Duration = Duration::from_secs(30);
/// So often what a replica that is in sync did not do is asked for anew, and after so long.
const TRIES: u32 = 5;
const AGAIN: Duration = Duration::from_secs(1);

/// A volume that this node serves.
pub(super) struct Serving {
    pub(super) volume: SavedReplicated,
    pub(super) attached: Arc<Attached>,
    pub(super) voters: Arc<Voters>,
}

impl Serving {
    pub(super) fn new(volume: &SavedReplicated, attached: &Arc<Attached>, voters: &Arc<Voters>) -> Serving {
        Serving { volume: volume.clone(), attached: Arc::clone(attached), voters: Arc::clone(voters) }
    }
}

impl Control {
    /// Takes snapshots of volumes of several nodes: each of one moment.
    ///
    /// # Errors
    /// This node does not serve the volume; a name is taken; a replica did not take its own in time. Nothing is left then, or what is goes
    /// by itself.
    pub(in super::super) async fn create_replicated_snapshots(
        &self,
        names: &[String],
    ) -> Result<SnapshotList, ErrorDetail> {
        let [text] = names else {
            let message = "several volumes are named, one of them of several nodes";
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .remedy("take snapshots of such volumes one command after the other"));
        };
        let (volume, own) = split(text)?;
        let own = name_for_all(own)?.to_string();
        let serving = self.serving(volume)?;
        self.refuse_no_copies(&serving.volume)?;
        let _one_at_a_time = serving.attached.snapshots.lock().await;
        let listed = self.listed_surely(&serving).await?;
        if listed.named(&own).is_some() {
            return Err(exists(&serving.volume.name, &own));
        }
        let snapshot = identity()?;
        serving.attached.set_unsettled(true);
        let taken = self.take_on_all(&serving, &snapshot, &own).await;
        let named = match taken {
            Ok(roles) => {
                let name = ReplicaChange::Name { snapshot: snapshot.clone(), name: own.clone() };
                self.change_all(&serving, &roles, &name).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = named {
            look_again(&serving.attached);
            // As far as replicas answer; the rest later.
            let left = self.settle_snapshots(&serving).await;
            if let Ok(listed) = &left
                && listed.named(&snapshot).is_some()
            {
                return self.shown_of(&serving.volume, listed, Some(&snapshot));
            }
            return Err(ErrorDetail {
                message: format!("snapshot {text} could not be taken: {}", error.message),
                remedy: "try again; braid volume show says how its replicas do".to_owned(),
                ..error
            });
        }
        let listed = self.settle_snapshots(&serving).await?;
        self.events().info("snapshots_taken", format!("snapshot {text} taken"), &[("snapshot", text)]);
        self.shown_of(&serving.volume, &listed, Some(&snapshot))
    }

    /// The snapshots of a volume of several nodes: those on which the replicas agree that answer.
    ///
    /// # Errors
    /// There is no such volume, or no replica answers.
    pub(in super::super) async fn replicated_snapshots(&self, volume: &str) -> Result<SnapshotList, ErrorDetail> {
        let volume = self.find_replicated(volume)?;
        let listed = self.seen_snapshots(&volume).await?;
        self.shown_of(&volume, &listed, None)
    }

    /// One of them.
    ///
    /// # Errors
    /// The same; there is none of that name.
    pub(in super::super) async fn replicated_snapshot(&self, text: &str) -> Result<Snapshot, ErrorDetail> {
        let (volume, own) = split(text)?;
        let volume = self.find_replicated(volume)?;
        let listed = self.seen_snapshots(&volume).await?;
        self.one_of(&volume, &listed, own)
    }

    /// Gives one another name, on all replicas.
    ///
    /// # Errors
    /// This node does not serve the volume; the name is taken, on one of the nodes perhaps.
    pub(in super::super) async fn rename_replicated_snapshot(
        &self,
        text: &str,
        new: &str,
    ) -> Result<Snapshot, ErrorDetail> {
        let (volume, own) = split(text)?;
        let new = match new.split_once('@') {
            Some((of, new)) if of == volume => new,
            _ => new,
        };
        let new = name_for_all(new)?.to_string();
        let serving = self.serving(volume)?;
        let _one_at_a_time = serving.attached.snapshots.lock().await;
        let listed = self.listed_surely(&serving).await?;
        let before = self.one_of(&serving.volume, &listed, own)?;
        if listed.named(&new).is_some() {
            return Err(exists(&serving.volume.name, &new));
        }
        let snapshot = before.uuid.clone();
        serving.attached.set_unsettled(true);
        let name = |name: String| ReplicaChange::Name { snapshot: snapshot.clone(), name };
        let roles = self.having(&serving, &listed, &snapshot);
        if let Err(error) = self.change_all(&serving, &roles, &name(new.clone())).await {
            look_again(&serving.attached);
            let old = before.name.rsplit_once('@').map_or("", |(_, own)| own).to_owned();
            let _ = self.change_all(&serving, &roles, &name(old)).await;
            let _ = self.settle_snapshots(&serving).await;
            return Err(error);
        }
        let listed = self.settle_snapshots(&serving).await?;
        let message = format!("snapshot {text} is now called {}@{new}", serving.volume.name);
        self.events().info("snapshot_renamed", message, &[("snapshot", &new), ("old_name", &before.name)]);
        self.one_of(&serving.volume, &listed, &snapshot)
    }

    /// Notes on all replicas that the file system of the volume was frozen while one was taken.
    ///
    /// # Errors
    /// This node does not serve the volume; a replica cannot note it. It is noted on some replicas then, which is enough; or on none.
    pub(in super::super) async fn change_replicated_snapshot(
        &self,
        text: &str,
        consistency: SnapshotConsistency,
    ) -> Result<Snapshot, ErrorDetail> {
        let (volume, own) = split(text)?;
        let serving = self.serving(volume)?;
        let _one_at_a_time = serving.attached.snapshots.lock().await;
        let listed = self.listed_surely(&serving).await?;
        let before = self.one_of(&serving.volume, &listed, own)?;
        if before.consistency == consistency {
            return Ok(before);
        }
        if consistency == SnapshotConsistency::Crash {
            let message = format!("snapshot {text} was taken of a frozen file system, which stays so");
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .with("snapshot", text)
                .remedy("take another one (braid snapshot create --no-freeze)"));
        }
        let roles = self.having(&serving, &listed, &before.uuid);
        self.change_all(&serving, &roles, &ReplicaChange::Frozen { snapshot: before.uuid.clone() }).await?;
        let listed = self.settled_snapshots(&serving).await?;
        self.one_of(&serving.volume, &listed, &before.uuid)
    }

    /// Deletes one, on all replicas.
    ///
    /// # Errors
    /// This node does not serve the volume; it is exported on a node.
    pub(in super::super) async fn delete_replicated_snapshot(&self, text: &str) -> Result<Snapshot, ErrorDetail> {
        let (volume, own) = split(text)?;
        let serving = self.serving(volume)?;
        let _one_at_a_time = serving.attached.snapshots.lock().await;
        let listed = self.listed_surely(&serving).await?;
        let before = self.one_of(&serving.volume, &listed, own)?;
        let snapshot = before.uuid.clone();
        serving.attached.set_unsettled(true);
        let roles = self.having(&serving, &listed, &snapshot);
        let hidden = self.change_all(&serving, &roles, &ReplicaChange::Hide { snapshot: snapshot.clone() }).await;
        if hidden.is_err() {
            look_again(&serving.attached);
        }
        // Pending everywhere: it goes. Named somewhere: it stays.
        let left = self.settle_snapshots(&serving).await;
        match (hidden, left) {
            (Err(error), Ok(listed)) if listed.named(&snapshot).is_some() => return Err(error),
            (Err(error), Err(_)) => return Err(error),
            _ => {}
        }
        let message = format!("snapshot {} was deleted", before.name);
        self.events().info("snapshot_deleted", message, &[("snapshot", &before.name)]);
        Ok(before)
    }

    /// Makes a volume that begins as a snapshot is: on the nodes that have it, with as many replicas.
    ///
    /// # Errors
    /// This node does not serve the snapshot's volume; what making a volume meets.
    pub(super) async fn clone_replicated(
        self: &Arc<Self>,
        text: &str,
        ask: &CreateReplicated,
    ) -> Result<ReplicatedVolume, ErrorDetail> {
        let named = !ask.replicas.is_empty() || !ask.witnesses.is_empty() || ask.level.is_some();
        if (ask.size_bytes, ask.count, ask.block_bytes) != (0, 0, None) || named {
            let message = "what begins as a snapshot has that one's size, block, level, replicas and witnesses";
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .with("volume", &ask.name)
                .remedy("leave out size_bytes, block_bytes, level, replicas, count and witnesses"));
        }
        let (source, own) = split(text)?;
        check_name(&ask.name)?;
        let _name = self.claim_name(&ask.name)?;
        self.name_of_no_replicated(&ask.name)?;
        let serving = self.serving(source)?;
        self.refuse_no_copies(&serving.volume)?;
        self.refuse_pool_above(&serving.volume, "cloned")?;
        // Until it is there the snapshot stays.
        let _one_at_a_time = serving.attached.snapshots.lock().await;
        let listed = self.listed_surely(&serving).await?;
        let from = self.one_of(&serving.volume, &listed, own)?;
        let has = |role: u8| matches!(listed.has(u16::from(role), &from.uuid), Has::Named(_));
        // Replicas first, as in any new volume.
        let mut all: Vec<(u8, &SavedVoter)> = serving.volume.seated().collect();
        all.sort_by_key(|(role, voter)| (voter.pool.is_none(), *role));
        let replicas = all.iter().filter(|(role, voter)| voter.pool.is_some() && has(*role)).count();
        // One alone opens the volume by itself; a witness would only be one more to ask.
        let votes = |(role, voter): &(u8, &SavedVoter)| match voter.pool {
            Some(_) => has(*role),
            None => replicas > 1,
        };
        let (voters, seating) =
            SavedReplicated::numbered(all.into_iter().filter(votes).map(|(_, voter)| voter.clone()).collect());
        let volume = SavedReplicated {
            uuid: random_uuid()?,
            name: ask.name.clone(),
            size_bytes: from.size_bytes,
            block_bytes: serving.volume.block_bytes,
            voters,
            seating,
            attached: true,
            controller: random_uuid()?,
            epoch: 0,
            making: true,
            from: from.uuid.parse().ok(),
            left: Vec::new(),
        };
        self.make_replicated(volume).await
    }

    /// Refuses what there is of copies alone.
    pub(super) fn refuse_no_copies(&self, volume: &SavedReplicated) -> Result<(), ErrorDetail> {
        if volume.is_of_copies() {
            return Ok(());
        }
        let name = &volume.name;
        let message = format!("volume {name} keeps parity, and no replica has all of it: it has no snapshots itself");
        Err(ErrorDetail::new(Kind::InvalidArgument, message)
            .with("volume", name)
            .remedy(format!("make a pool on it (braid pool create POOL {name}): its volumes have")))
    }

    /// What only the node can do that serves a volume.
    pub(super) fn serving(&self, name: &str) -> Result<Serving, ErrorDetail> {
        self.is_open()?;
        let volume = self.find_replicated(name)?;
        let attached = self.replicated.all().get(&volume.uuid).cloned();
        let serves = self.read().arrays.get(&volume.uuid).is_some_and(|entry| entry.active().is_some());
        let voters = attached.as_ref().and_then(|attached| attached.voters());
        match (attached, voters) {
            (Some(attached), Some(voters)) if serves => Ok(Serving { volume, attached, voters }),
            _ => Err(ErrorDetail::new(Kind::Inactive, format!("volume {name} is not served by this node"))
                .with("volume", name)
                .remedy(format!("do it on the node that serves it, or braid volume attach {name} here first"))),
        }
    }

    /// The replicas in sync, by the labels of now.
    fn roles_in_sync(&self, volume: &SavedReplicated) -> Vec<u16> {
        let tables = self.read();
        let Some(active) = tables.arrays.get(&volume.uuid).and_then(|entry| entry.active()) else { return Vec::new() };
        let members = active.label.members.iter().zip(0u16..);
        members.filter(|(member, _)| member.state == MemberState::InSync).map(|(_, role)| role).collect()
    }

    /// Those of them that have a snapshot.
    pub(super) fn having(&self, serving: &Serving, listed: &Listed, snapshot: &str) -> Vec<u16> {
        let has = |role: &u16| listed.has(*role, snapshot) != Has::Nothing;
        self.roles_in_sync(&serving.volume).into_iter().filter(has).collect()
    }

    /// Takes one on all replicas in sync, while requests wait. Gives the replicas.
    async fn take_on_all(&self, serving: &Serving, snapshot: &str, name: &str) -> Result<Vec<u16>, ErrorDetail> {
        let volume = &serving.volume;
        self.await_equal(volume).await?;
        // One that has begun anew is connected to, and one that is dead left out, before requests wait: of a volume that nobody uses nothing
        // else asks them anything.
        self.urge(volume).await;
        self.give_order(volume.uuid, Order::Hold { limit_ns: HELD_MAX.as_nanos() as u64 }).await?;
        // Nobody becomes one of them meanwhile.
        let roles = self.roles_in_sync(volume);
        let take = ReplicaChange::Take { snapshot: snapshot.to_owned(), name: name.to_owned() };
        let taken = join_all(roles.iter().map(|role| self.change_one(serving, *role, &take, TAKING_MAX))).await;
        // Whoever waited too long has been let go.
        let held = self.give_order(volume.uuid, Order::Release).await;
        taken.into_iter().collect::<Result<(), ErrorDetail>>()?;
        held?;
        Ok(roles)
    }

    /// Waits until what a crash has left unequal on the replicas is equal: a snapshot of each would show it.
    async fn await_equal(&self, volume: &SavedReplicated) -> Result<(), ErrorDetail> {
        let until = tokio::time::Instant::now() + EQUAL_MAX;
        loop {
            let left = self.with_keeping(volume.uuid, |keeping| keeping.regions().unsettled.count());
            if left.is_none_or(|left| left == 0) {
                return Ok(());
            }
            if tokio::time::Instant::now() >= until {
                let message = "what a crash has left unequal on the replicas is still being brought together";
                return Err(ErrorDetail::new(Kind::TimedOut, message).with("volume", &volume.name));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Asks some replicas for the same, side by side, and again while they are in sync and do not do it.
    async fn change_all(&self, serving: &Serving, roles: &[u16], change: &ReplicaChange) -> Result<(), ErrorDetail> {
        let mut roles = roles.to_vec();
        for turn in 1.. {
            let ask = |role: u16| async move { (role, self.change_one(serving, role, change, CHANGING_MAX).await) };
            let mut failed = None;
            let mut again = Vec::new();
            for (role, done) in join_all(roles.iter().copied().map(ask)).await {
                if let Err(error) = done {
                    again.push(role);
                    failed = Some(error);
                }
            }
            // One that is out has nothing to say any more, and gives up what it has when it is back.
            let in_sync = self.roles_in_sync(&serving.volume);
            again.retain(|role| in_sync.contains(role));
            let Some(error) = failed.filter(|_| !again.is_empty()) else { break };
            let is_final = !matches!(error.kind, Kind::Unreachable | Kind::TimedOut | Kind::Inactive | Kind::Fenced);
            if is_final || turn == TRIES || serving.attached.has_ended() {
                return Err(error);
            }
            self.urge(&serving.volume).await;
            tokio::time::sleep(AGAIN).await;
            roles = again;
        }
        Ok(())
    }

    /// Asks something of all replicas in sync, so that one which makes no progress is found out.
    async fn urge(&self, volume: &SavedReplicated) {
        let device = self.read().arrays.get(&volume.uuid).and_then(|entry| Some(entry.active()?.device));
        if let Some(device) = device {
            // Whatever comes of it, the labels say.
            let _ = tokio::time::timeout(URGED_MAX, self.ring.devices().flush(device)).await;
        }
    }

    /// Asks one replica.
    pub(super) async fn change_one(
        &self,
        serving: &Serving,
        role: u16,
        change: &ReplicaChange,
        limit: Duration,
    ) -> Result<(), ErrorDetail> {
        let Serving { volume, attached, voters } = serving;
        let (epoch, controller, _) = voters.session_of(VoterId(role as u8));
        let body = ChangeReplica {
            epoch,
            controller: controller.to_string(),
            session: attached.session_of(role),
            change: change.clone(),
        };
        let internal = |error: serde_json::Error| ErrorDetail::new(Kind::Internal, error.to_string());
        let body = serde_json::to_value(&body).map_err(internal)?;
        let path = format!("/v1/replicas/{}/snapshots", volume.uuid);
        let node = volume.node_of(role)?;
        let done = self.nodes().call_within(limit, node, Method::POST, &path, Some(body)).await;
        done.map(drop).map_err(|error| {
            let message = format!("replica {}: {}", volume.voter_name(role as u8), error.message);
            ErrorDetail { message, ..error }
        })
    }

    pub(super) async fn list_one(
        &self,
        volume: &SavedReplicated,
        role: u16,
    ) -> Result<Vec<ReplicaSnapshot>, ErrorDetail> {
        let path = format!("/v1/replicas/{}/snapshots", volume.uuid);
        let node = volume.node_of(role)?;
        let answer = self.nodes().call(node, Method::GET, &path, None).await?;
        let list: ReplicaSnapshotList =
            serde_json::from_value(answer).map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))?;
        Ok(list.snapshots)
    }

    /// What these replicas have.
    async fn list_all(&self, volume: &SavedReplicated, roles: &[u16]) -> Result<Listed, ErrorDetail> {
        let lists = join_all(roles.iter().map(|role| self.list_one(volume, *role))).await;
        let lists: Result<Vec<_>, ErrorDetail> = lists.into_iter().collect();
        Ok(Listed(roles.iter().copied().zip(lists?).collect()))
    }

    /// What there is, for those who only look: of the replicas in sync where this node serves the volume, else of all that answer.
    async fn seen_snapshots(&self, volume: &SavedReplicated) -> Result<Listed, ErrorDetail> {
        let in_sync = self.roles_in_sync(volume);
        if !in_sync.is_empty() {
            return self.list_all(volume, &in_sync).await;
        }
        let all: Vec<u16> = volume.replicas();
        let lists = join_all(all.iter().map(|role| self.list_one(volume, *role))).await;
        let silent = lists.iter().all(Result::is_err);
        let (mut listed, mut last) = (BTreeMap::new(), None);
        for (role, list) in all.into_iter().zip(lists) {
            match list {
                Ok(list) => drop(listed.insert(role, list)),
                Err(error) => last = Some(error),
            }
        }
        match last.filter(|_| silent) {
            Some(error) => Err(error),
            None => Ok(Listed(listed)),
        }
    }

    /// What there is, with everything decided.
    pub(super) async fn settled_snapshots(&self, serving: &Serving) -> Result<Listed, ErrorDetail> {
        if serving.attached.is_unsettled() {
            return self.settle_snapshots(serving).await;
        }
        self.list_all(&serving.volume, &self.roles_in_sync(&serving.volume)).await
    }

    /// The same: a replica that does not answer is out soon, or answers again.
    pub(super) async fn listed_surely(&self, serving: &Serving) -> Result<Listed, ErrorDetail> {
        match self.settled_snapshots(serving).await {
            Err(error) if matches!(error.kind, Kind::Unreachable | Kind::TimedOut | Kind::Fenced) => {
                self.urge(&serving.volume).await;
                self.settled_snapshots(serving).await
            }
            listed => listed,
        }
    }

    /// Decides about every snapshot that is on some replicas only. The caller sees to it that nobody else does anything with them.
    async fn settle_snapshots(&self, serving: &Serving) -> Result<Listed, ErrorDetail> {
        let roles = self.roles_in_sync(&serving.volume);
        let settled = self.settle_on(serving, &roles).await;
        if settled.is_err() {
            // One whose daemon has begun anew is connected to only when something is asked of it, and lets nobody change anything before.
            self.urge(&serving.volume).await;
        }
        settled
    }

    /// The same on these replicas.
    async fn settle_on(&self, serving: &Serving, roles: &[u16]) -> Result<Listed, ErrorDetail> {
        let listed = self.list_all(&serving.volume, roles).await?;
        let mut changed = false;
        for snapshot in listed.snapshots() {
            let verdict = listed.verdict(snapshot);
            for role in roles {
                if let Some(change) = change_for(&verdict, &listed.has(*role, snapshot), snapshot) {
                    self.change_one(serving, *role, &change, CHANGING_MAX).await?;
                    changed = true;
                }
            }
        }
        let listed = if changed { self.list_all(&serving.volume, roles).await? } else { listed };
        serving.attached.set_unsettled(false);
        serving.attached.set_snapshots(listed.count());
        Ok(listed)
    }

    /// At an opening, on the replicas that are in sync: before clients are served. What cannot be done then is tried again later.
    pub(super) async fn settle_at_opening(
        &self,
        volume: &SavedReplicated,
        attached: &Arc<Attached>,
        voters: &Arc<Voters>,
        roles: &[u16],
    ) {
        attached.set_unsettled(true);
        let serving = Serving { volume: volume.clone(), attached: Arc::clone(attached), voters: Arc::clone(voters) };
        // Who had them before this opening may not have let go of them yet.
        let settled = tokio::time::timeout(CHANGING_MAX, async {
            let _one_at_a_time = attached.snapshots.lock().await;
            self.settle_on(&serving, roles).await
        });
        let why = match settled.await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error.message,
            Err(_) => format!("that took more than {} s", CHANGING_MAX.as_secs()),
        };
        tracing::warn!("volume {}: its snapshots are looked at again later: {why}", volume.name);
    }

    /// Decides what was left undecided, while the volume is served.
    pub(super) async fn settle_later(&self, volume: &SavedReplicated, attached: &Arc<Attached>, voters: &Arc<Voters>) {
        let serving = Serving { volume: volume.clone(), attached: Arc::clone(attached), voters: Arc::clone(voters) };
        let _one_at_a_time = attached.snapshots.lock().await;
        if attached.is_unsettled()
            && let Err(error) = self.settle_snapshots(&serving).await
        {
            tracing::info!("volume {}: {}", volume.name, error.message);
        }
    }

    /// A replica that comes back, and takes no writes yet: what it has and those in sync have not is removed from it.
    /// The caller sees to it that nobody else does anything with them.
    pub(super) async fn give_up_snapshots(&self, serving: &Serving, role: u16) -> Result<(), ErrorDetail> {
        let listed = self.listed_surely(serving).await?;
        for own in self.list_one(&serving.volume, role).await? {
            let stays = own.name.is_some() && listed.named(&own.uuid).is_some();
            if stays {
                continue;
            }
            let snapshot = own.uuid.clone();
            if own.name.is_some() {
                let hide = ReplicaChange::Hide { snapshot: snapshot.clone() };
                self.change_one(serving, role, &hide, CHANGING_MAX).await?;
            }
            self.change_one(serving, role, &ReplicaChange::Remove { snapshot }, CHANGING_MAX).await?;
        }
        Ok(())
    }

    /// Refuses to delete a volume that has snapshots.
    pub(super) async fn refuse_snapshots(&self, volume: &SavedReplicated, role: u16) -> Result<(), ErrorDetail> {
        let list = self.list_one(volume, role).await.unwrap_or_default();
        let Some(name) = list.into_iter().find_map(|one| one.name) else { return Ok(()) };
        let volume = &volume.name;
        Err(ErrorDetail::new(Kind::InUse, format!("volume {volume} has snapshots"))
            .with("volume", volume)
            .with("snapshot", format!("{volume}@{name}"))
            .remedy(format!("delete them first (braid snapshot list {volume}); --force does not override this")))
    }

    pub(super) fn one_of(&self, volume: &SavedReplicated, listed: &Listed, own: &str) -> Result<Snapshot, ErrorDetail> {
        let found = listed.named(own).map(|uuid| self.shown_of(volume, listed, Some(uuid)));
        let shown = found.transpose()?.and_then(|list| list.snapshots.into_iter().next());
        shown.ok_or_else(|| {
            ErrorDetail::new(Kind::NotFound, format!("there is no snapshot {}@{own}", volume.name))
                .with("snapshot", own)
                .remedy(format!("`braid snapshot list {}` shows those there are", volume.name))
        })
    }

    /// As users see them: all, or one.
    fn shown_of(
        &self,
        volume: &SavedReplicated,
        listed: &Listed,
        only: Option<&str>,
    ) -> Result<SnapshotList, ErrorDetail> {
        let places = || volume.seated().filter(|(_, voter)| voter.pool.is_some());
        let show = |uuid: &str| {
            let Verdict::Complete(name) = listed.verdict(uuid) else { return None };
            let first = listed.0.keys().find_map(|role| listed.one(*role, uuid))?;
            let replicas = places().map(|(role, voter)| SnapshotReplica {
                node: voter.node.clone(),
                pool: voter.pool.clone().unwrap_or_default(),
                has: matches!(listed.has(u16::from(role), uuid), Has::Named(_)),
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

/// A replica that did not answer in time may do what it was asked for later.
fn look_again(attached: &Arc<Attached>) {
    let attached = Arc::downgrade(attached);
    tokio::spawn(async move {
        tokio::time::sleep(LATE_MAX).await;
        if let Some(attached) = attached.upgrade() {
            attached.set_unsettled(true);
        }
    });
}

/// Whether a name is one of a volume of several nodes, or of its snapshot: it has no pool.
pub(in super::super) fn is_replicated_name(text: &str) -> bool {
    !text.contains('/') && !braid_api::names::is_uuid(text)
}

/// The names of volume and snapshot.
fn split(text: &str) -> Result<(&str, &str), ErrorDetail> {
    text.split_once('@').filter(|(volume, own)| !volume.is_empty() && !own.is_empty()).ok_or_else(|| {
        ErrorDetail::new(Kind::InvalidArgument, format!("{text:?} is no name of a snapshot"))
            .with("snapshot", text)
            .remedy("write POOL/VOLUME@SNAPSHOT; of a volume of several nodes VOLUME@SNAPSHOT")
    })
}

fn exists(volume: &str, own: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::Exists, format!("there is a snapshot {volume}@{own} already"))
        .with("snapshot", format!("{volume}@{own}"))
        .remedy("choose another name, or rename that one first")
}

/// A new snapshot's identity: of the version that tells it from what others make.
fn identity() -> Result<String, ErrorDetail> {
    let bytes = u128::from(random()?) << 64 | u128::from(random()?);
    Ok(uuid::Builder::from_custom_bytes(bytes.to_be_bytes()).into_uuid().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_of_controllers() {
        let one = identity().expect("there is chance");
        assert!(super::super::super::pools::is_controllers(one.parse().expect("it is one")));
        assert_ne!(one, identity().expect("there is chance"));
    }
}
