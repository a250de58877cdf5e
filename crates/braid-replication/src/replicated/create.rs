//! Creates, detaches and deletes replicated volumes.

use crate::ReplicationManager;
use crate::attached::AttachedVolume;
use crate::replicated::incomplete::RemovalOutcome;
use braid_advice::{self as advice, Case, ObjectNames, VolumeCase};
use braid_api::limits::{REPLICAS_MAX, VOLUME_BLOCK_BYTES, VOLUME_SECTOR_BYTES};
use braid_api::{
    CreateReplica, CreateReplicated, ErrorDetail, Kind, PoolState, Replica, ReplicaList, ReplicaMembership,
    ReplicatedVolume, Volume,
};
use braid_arrays::check_name;
use braid_engine::replica::VoterId;
use braid_format::{BLOCK_BYTES, DiskLayout};
use braid_geometry::{CHUNK_BYTES_DEFAULT, Level};
use braid_inventory::{SavedReplicated, SavedVoter, membership_of, not_served_here, random_uuid};
use braid_pools::check_block;
use hyper::Method;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Maximum time for which an attachment waits for the volume to be served.
const SERVE_MAX: Duration = Duration::from_secs(20);

/// Maximum time for a node to create or remove a replica.
const CREATE_MAX: Duration = Duration::from_secs(20);

impl ReplicationManager {
    /// Creates a replicated volume, and serves it.
    ///
    /// Order: the volume is saved on this node as being created; then the replicas are created; then the array on them;
    /// then the volume is saved as complete. The next start removes one whose creation was interrupted.
    ///
    /// # Errors
    /// The reason. Nothing is left, or the error names what is.
    pub async fn create_replicated(self: &Arc<Self>, ask: CreateReplicated) -> Result<ReplicatedVolume, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        if let Some(snapshot) = &ask.snapshot {
            return self.clone_replicated(snapshot, &ask).await;
        }
        check_name(&ask.name)?;
        let _name = self.arrays.claim_name(&ask.name)?;
        self.check_name_free(&ask.name)?;
        let level = level_of(&ask)?;
        let block_bytes = block_of(&ask, level)?;
        let voters = self.requested_voters(&ask).await?;
        let replicas_min = replicas_min_of(&ask, level, voters.iter().filter(|voter| voter.pool.is_some()).count())?;
        let size_bytes = whole_size(&ask, replicas_min)?;
        let (voters, mut membership) = SavedReplicated::numbered(voters);
        membership.extra_replicas = replicas_min as u8 - 1;
        let volume = SavedReplicated {
            uuid: random_uuid()?,
            name: ask.name.clone(),
            size_bytes,
            block_bytes,
            voters,
            membership,
            attached: true,
            controller: random_uuid()?,
            epoch: 0,
            creating: true,
            from: None,
            left: Vec::new(),
        };
        self.create_prepared(volume).await
    }

    /// Creates all parts of a volume. The caller has claimed its name.
    pub(crate) async fn create_prepared(
        self: &Arc<Self>,
        volume: SavedReplicated,
    ) -> Result<ReplicatedVolume, ErrorDetail> {
        let (uuid, name) = (volume.uuid, volume.name.clone());
        self.inventory.write().replicated.insert(uuid, volume.clone());
        if let Err(error) = self.inventory.save() {
            self.inventory.write().replicated.remove(&uuid);
            return Err(error);
        }
        let made = match self.create_replicas(&volume).await {
            Ok(()) => self.serve_new(uuid).await.and_then(|()| self.mark_complete(uuid)),
            Err(error) => Err(error),
        };
        if let Err(error) = made {
            self.end_replicated(uuid).await;
            return Err(match self.remove_incomplete(&volume).await {
                RemovalOutcome::Removed => error,
                RemovalOutcome::Taken => ErrorDetail {
                    message: format!("{}; and another node has opened the volume since", error.message),
                    remedy: format!("braid volume attach {}, or delete it where it is served", name),
                    ..error
                },
                RemovalOutcome::Left(left) => ErrorDetail {
                    message: format!("{}; replicas on {} could not be removed again", error.message, left.join(", ")),
                    remedy: format!("{}; then braid volume delete {} --force", error.remedy, name),
                    ..error
                },
            });
        }
        let message = format!("volume {} was created, with replicas on {}", name, replicas_of(&volume));
        self.inventory.events().info("volume_created", message, &[("volume", &name)]);
        self.replicated_volume(&name)
    }

    /// Ends serving a volume on this node: the next attachment need not wait for a lease.
    ///
    /// # Errors
    /// The volume is exported and `force` is not set, or this node does not serve it.
    pub async fn detach_replicated(self: &Arc<Self>, name: &str, force: bool) -> Result<ReplicatedVolume, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let _one_at_a_time = self.replicated.change_lock.lock().await;
        let volume = self.inventory.find_replicated(name)?;
        self.refuse_in_creation(&volume)?;
        // An export that is only prepared here has no clients.
        if !self.replicated.all().contains_key(&volume.uuid) && !volume.attached {
            return Err(not_served_here(Kind::Inactive, &volume.name, ""));
        }
        self.refuse_replicated_exported(&volume, force, "their clients are cut off, and they wait")?;
        self.refuse_exported_pool(&volume, force)?;
        self.end_replicated(volume.uuid).await;
        self.save_attached(volume.uuid, false);
        self.inventory.events().info(
            "volume_detached",
            format!("volume {name} is not served by this node any more"),
            &[("volume", name)],
        );
        self.replicated_volume(&volume.uuid.to_string())
    }

    /// Deletes a volume with all of its replicas: its data is lost.
    ///
    /// # Errors
    /// It is exported, or a node does not reply, and `force` is not set.
    pub async fn delete_replicated(self: &Arc<Self>, name: &str, force: bool) -> Result<ReplicatedVolume, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let _one_at_a_time = self.replicated.change_lock.lock().await;
        let volume = self.inventory.find_replicated(name)?;
        self.refuse_in_creation(&volume)?;
        self.refuse_replicated_exported(&volume, force, "they are removed")?;
        if !force {
            self.refuse_pool_on(&volume, "deleted")?;
        }
        let shown = self.replicated_volume(&volume.uuid.to_string())?;
        self.refuse_used(&volume, force).await?;
        {
            let listening = self.exports.listening_lock.lock().await;
            self.exports.end_devices(&listening, |saved| saved.array == volume.uuid).await?;
        }
        self.end_replicated(volume.uuid).await;
        let left = self.remove_replicas(&volume).await;
        if !left.is_empty() && !force {
            self.save_attached(volume.uuid, false);
            let message = format!("volume {}: replicas on {} could not be removed", volume.name, left.join(", "));
            return Err(ErrorDetail::new(Kind::Unreachable, message).with("volume", &volume.name).remedy(
                "try again when those nodes answer; --force forgets the volume here, and they keep what they have",
            ));
        }
        self.exports.remove_exports_of(volume.uuid).await;
        self.pools.forget_pools_on_replicated(volume.uuid, None).await;
        self.inventory.write().replicated.remove(&volume.uuid);
        self.inventory.save_or_warn();
        self.inventory.events().info(
            "volume_deleted",
            format!("volume {} was deleted", volume.name),
            &[("volume", &volume.name)],
        );
        Ok(shown)
    }

    /// Saves that the volume is complete: before that, a start would remove it.
    fn mark_complete(&self, uuid: Uuid) -> Result<(), ErrorDetail> {
        if let Some(volume) = self.inventory.write().replicated.get_mut(&uuid) {
            volume.creating = false;
        }
        self.inventory.save().inspect_err(|_| {
            if let Some(volume) = self.inventory.write().replicated.get_mut(&uuid) {
                volume.creating = true;
            }
        })
    }

    /// Refuses to delete a volume that another node serves, that has snapshots or readers on its nodes, or, without
    /// force, that cannot be checked completely. This is checked before anything is removed: a volume without most of
    /// its voters is lost.
    async fn refuse_used(&self, volume: &SavedReplicated, force: bool) -> Result<(), ErrorDetail> {
        let in_use = |why: String, remedy: &str| {
            Err(ErrorDetail::new(Kind::InUse, why).with("volume", &volume.name).remedy(remedy))
        };
        let own = volume.controller.to_string();
        for (number, voter) in volume.voting() {
            let name = volume.voter_name(number);
            let replica = match self.replica_of(volume, number).await {
                Ok(replica) => replica,
                Err(error) if error.kind == Kind::NotFound || force => continue,
                Err(error) => {
                    return Err(error.remedy(
                        "delete it when all of its nodes answer; --force leaves what they have, and forgets the volume here",
                    ));
                }
            };
            let controller = replica.register.and_then(|register| register.controller);
            if replica.connections > 0 && controller.is_some_and(|controller| controller != own) {
                let why = format!("volume {} is served by another node, which uses replica {name}", volume.name);
                let remedy = format!("delete it there; or attach it here first: braid volume attach {}", volume.name);
                return in_use(why, &remedy);
            }
            let Some(data) = replica.data else { continue };
            self.refuse_snapshots(volume, u16::from(number)).await?;
            let path = format!("/v1/volumes/{}", data.replace('/', "%2F"));
            let reply = self.nodes.call(&voter.node, Method::GET, &path, None).await;
            let Some(data) = reply.ok().and_then(|reply| serde_json::from_value::<Volume>(reply).ok()) else {
                continue;
            };
            if data.snapshots > 0 || !data.exports.is_empty() {
                let why = format!("replica {name} has snapshots, or is exported, on its node");
                return in_use(why, "remove these there first: braid snapshot list, braid export list");
            }
        }
        Ok(())
    }

    /// Returns the requested voters: each on a known node, at most one on each node.
    async fn requested_voters(&self, ask: &CreateReplicated) -> Result<Vec<SavedVoter>, ErrorDetail> {
        let invalid = |what: String| ErrorDetail::new(Kind::InvalidArgument, what).with("volume", &ask.name);
        if ask.replicas.is_empty() == (ask.count == 0) {
            return Err(invalid("either the replicas are named, or how many there are to be".to_owned())
                .remedy("for example --replicas node1/tank,node2/tank, or --replicas 2"));
        }
        let mut voters = Vec::new();
        for replica in &ask.replicas {
            let Some((node, pool)) = replica.split_once('/') else {
                return Err(invalid(format!("replica {replica:?} is not written NODE/POOL")));
            };
            voters.push(SavedVoter::of(node.to_owned(), Some(pool.to_owned())));
        }
        let members = self.nodes.members();
        if ask.count > 0 {
            voters = self.choose_locations(ask).await?;
        }
        voters.extend(ask.witnesses.iter().map(|node| SavedVoter::of(node.clone(), None)));
        let replicas = voters.iter().filter(|voter| voter.pool.is_some()).count();
        if replicas == 0 || voters.len() > REPLICAS_MAX {
            return Err(invalid(format!(
                "a volume has 1 to {REPLICAS_MAX} replicas and witnesses, one replica at least; these are {replicas} and {}",
                voters.len() - replicas
            ))
            .remedy("name fewer"));
        }
        if replicas == 1 && voters.len() > 1 {
            return Err(invalid(
                "a witness is of no use to one replica: nothing could be opened without it".to_owned(),
            )
            .remedy("leave --witness out, or have two replicas"));
        }
        let mut seen = BTreeSet::new();
        for voter in &voters {
            if members.iter().all(|member| member.name != voter.node) {
                return Err(ErrorDetail::new(Kind::NotFound, format!("there is no node {}", voter.node))
                    .with("node", &voter.node)
                    .remedy("braid node list shows them"));
            }
            if !seen.insert(&voter.node) {
                return Err(invalid(format!(
                    "node {} is named twice: it would have two votes, and its failure would lose both",
                    voter.node
                ))
                .remedy("name each node once"));
            }
        }
        Ok(voters)
    }

    /// Returns the nodes and pools with the most free space, one pool for each node.
    async fn choose_locations(&self, ask: &CreateReplicated) -> Result<Vec<SavedVoter>, ErrorDetail> {
        let mut places: Vec<(u64, SavedVoter)> = Vec::new();
        for member in self.nodes.members() {
            if ask.witnesses.contains(&member.name) {
                continue;
            }
            let Ok(reply) = self.nodes.call(&member.name, Method::GET, "/v1/pools", None).await else { continue };
            let Ok(list) = serde_json::from_value::<braid_api::PoolList>(reply) else { continue };
            let best =
                list.pools.iter().filter(|pool| pool.state == PoolState::Active).max_by_key(|pool| pool.free_bytes);
            if let Some(pool) = best {
                places.push((pool.free_bytes, SavedVoter::of(member.name, Some(pool.name.clone()))));
            }
        }
        let there = places.len();
        places.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.node.cmp(&b.1.node)));
        places.truncate(usize::from(ask.count));
        if places.len() < usize::from(ask.count) {
            let message = format!("{} replicas are wanted, and {there} nodes that answer have a pool", ask.count);
            return Err(ErrorDetail::new(Kind::Incomplete, message)
                .with("volume", &ask.name)
                .remedy("braid node list shows the nodes, braid pool create makes pools"));
        }
        Ok(places.into_iter().map(|(_, voter)| voter).collect())
    }

    async fn create_replicas(&self, volume: &SavedReplicated) -> Result<(), ErrorDetail> {
        for number in volume.voters.keys() {
            self.create_voter(volume, *number, volume.membership.replicas).await?;
        }
        Ok(())
    }

    /// Creates a replica or witness at its location. `in_sync`: by the vote with which its register begins.
    pub(crate) async fn create_voter(
        &self,
        volume: &SavedReplicated,
        number: u8,
        in_sync: u16,
    ) -> Result<(), ErrorDetail> {
        let (head_bytes, tail_bytes) = head_and_tail_bytes(volume.replica_bytes());
        let Some(voter) = volume.voters.get(&number) else { return Ok(()) };
        let is_replica = voter.pool.is_some();
        let only = |bytes: u64| if is_replica { bytes } else { 0 };
        let body = CreateReplica {
            volume: volume.uuid.to_string(),
            name: volume.name.clone(),
            voter: number,
            membership: volume.membership,
            in_sync,
            lineage: 0,
            pool: voter.pool.clone(),
            size_bytes: only(volume.replica_bytes()),
            head_bytes: only(head_bytes),
            tail_bytes: only(tail_bytes),
            locations: volume.locations(),
            volume_bytes: volume.size_bytes,
            block_bytes: volume.block_bytes,
            snapshot: volume.from.filter(|_| is_replica && volume.creating).map(|from| from.to_string()),
        };
        let body = serde_json::to_value(&body).map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))?;
        let name = volume.voter_name(number);
        let made = self.nodes.call_within(CREATE_MAX, &voter.node, Method::POST, "/v1/replicas", Some(body)).await;
        made.map(drop).map_err(|error| ErrorDetail { message: format!("replica {name}: {}", error.message), ..error })
    }

    /// Removes the replicas of a volume. Returns the nodes where that failed.
    pub(crate) async fn remove_replicas(&self, volume: &SavedReplicated) -> Vec<String> {
        let mut left = Vec::new();
        let path = format!("/v1/replicas/{}?force=true", volume.uuid);
        let membership = volume.membership().all();
        // An excluded voter may hold data that no other one has, and may be served: it is deleted on its own node only.
        let excluded: Vec<u8> = volume.excluded().map(|(number, _)| number).collect();
        for (number, voter) in volume.voters.iter().filter(|(number, _)| !excluded.contains(number)) {
            match self.nodes.call_within(CREATE_MAX, &voter.node, Method::DELETE, &path, None).await {
                Ok(_) => {}
                Err(error) if error.kind == Kind::NotFound => {}
                // A removed voter prevents nothing.
                Err(error) if !membership.has(VoterId(*number)) => {
                    tracing::warn!("volume {}, which {} was a voter of: {}", volume.name, voter.node, error.message);
                }
                Err(error) => {
                    tracing::warn!("volume {}: {}", volume.name, error.message);
                    left.push(voter.node.clone());
                }
            }
        }
        left
    }

    async fn serve_new(self: &Arc<Self>, uuid: Uuid) -> Result<(), ErrorDetail> {
        let attached = self.begin_replicated(uuid, true);
        self.wait_served(uuid, &attached).await.map(drop)
    }

    /// Waits until a volume is served.
    pub(crate) async fn wait_served(
        self: &Arc<Self>,
        uuid: Uuid,
        attached: &AttachedVolume,
    ) -> Result<ReplicatedVolume, ErrorDetail> {
        let until = tokio::time::Instant::now() + SERVE_MAX;
        loop {
            let serves = self.inventory.read().arrays.get(&uuid).is_some_and(|entry| entry.active().is_some());
            if serves && !attached.has_ended() {
                let _ = tokio::time::timeout_at(until, attached.pool_settled()).await;
                return self.replicated_volume(&uuid.to_string());
            }
            let over = tokio::time::Instant::now() >= until;
            if attached.has_ended() || over {
                let volume = self.replicated_volume(&uuid.to_string())?;
                let mut message = format!("volume {} is not served", volume.name);
                if over {
                    message.push_str(&format!(" after {} s", SERVE_MAX.as_secs()));
                }
                if let Some(why) = attached.fault().as_ref().or(volume.attention.first()) {
                    message.push_str(&format!(": {why}"));
                }
                return Err(ErrorDetail::new(Kind::Incomplete, message).with("volume", &volume.name).remedy(
                    advice::remedy(Case::ReplicatedVolume(VolumeCase::NotAttached), ObjectNames::of(&volume.name)),
                ));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns a volume that this node does not know, by the replicas of other nodes.
    pub(crate) async fn find_elsewhere(&self, name: &str) -> Result<SavedReplicated, ErrorDetail> {
        let (mut silent, mut found) = (Vec::new(), None::<Replica>);
        for member in self.nodes.members() {
            let reply = match self.nodes.call(&member.name, Method::GET, "/v1/replicas", None).await {
                Ok(reply) => reply,
                Err(_) => {
                    silent.push(member.name);
                    continue;
                }
            };
            let Ok(list) = serde_json::from_value::<ReplicaList>(reply) else { continue };
            let named = list.replicas.into_iter().filter(|replica| replica.name == name || replica.volume == name);
            // The replica with the newest locations.
            found = found.into_iter().chain(named).max_by_key(|replica| replica.version);
        }
        if let Some(replica) = found {
            return volume_of_replica(&replica);
        }
        let unknown =
            ErrorDetail::new(Kind::NotFound, format!("no node that answers has a replica of a volume {name}"));
        let unknown = unknown.with("volume", name);
        Err(match silent.is_empty() {
            true => unknown.remedy("braid replica list shows what there is"),
            false => unknown.remedy(format!("these nodes did not answer: {}", silent.join(", "))),
        })
    }

    /// Refuses an operation on a volume whose creation is in progress: its name is claimed then.
    pub(crate) fn refuse_in_creation(&self, volume: &SavedReplicated) -> Result<(), ErrorDetail> {
        if !self.inventory.read().claimed_names.contains(&volume.name) {
            return Ok(());
        }
        Err(ErrorDetail::new(Kind::InUse, format!("volume {} is being made", volume.name))
            .with("volume", &volume.name)
            .remedy("wait until that is done"))
    }

    fn refuse_exported_pool(&self, volume: &SavedReplicated, force: bool) -> Result<(), ErrorDetail> {
        if force { Ok(()) } else { self.pools.refuse_exported_on_replicated(volume.uuid, &volume.name) }
    }

    /// Refuses an operation that would destroy the pool on the volume, or that the pool would not notice.
    pub(crate) fn refuse_pool_on(&self, volume: &SavedReplicated, done: &str) -> Result<(), ErrorDetail> {
        let Some((_, pool)) = self.inventory.read().pool_on_replicated(volume.uuid) else { return Ok(()) };
        Err(ErrorDetail::new(
            Kind::InUse,
            format!("pool {pool} stands on volume {}, which so cannot be {done}", volume.name),
        )
        .with("volume", &volume.name)
        .with("pool", &pool)
        .remedy(format!("braid pool delete {pool} where the volume is served, if nothing of it is needed any more")))
    }

    fn refuse_replicated_exported(
        &self,
        volume: &SavedReplicated,
        force: bool,
        forced: &str,
    ) -> Result<(), ErrorDetail> {
        let exports = self.inventory.read().exports_of(volume.uuid);
        if exports.is_empty() || force {
            return Ok(());
        }
        Err(ErrorDetail::new(Kind::InUse, format!("volume {} is exported as {}", volume.name, exports.join(", ")))
            .with("volume", &volume.name)
            .with("export", &exports[0])
            .remedy(format!("braid export remove {} first, or add --force ({forced})", exports[0])))
    }
}

/// Returns the volume that a replica belongs to.
pub(crate) fn volume_of_replica(replica: &Replica) -> Result<SavedReplicated, ErrorDetail> {
    let unknown = || {
        ErrorDetail::new(
            Kind::Damaged,
            format!("the metadata of volume {} does not contain the locations of its replicas", replica.name),
        )
    };
    let voters = SavedVoter::from_locations(&replica.locations);
    let vote = replica.register.as_ref().map(|register| register.vote.membership);
    // A membership that was never voted for: every voter that it names is asked.
    let membership =
        vote.filter(|membership| membership.version == replica.version).unwrap_or_else(|| ReplicaMembership {
            version: replica.version,
            voters: voters.keys().fold(0, |bits, number| bits | 1 << number),
            previous_voters: 0,
            replicas: voters
                .iter()
                .filter(|(_, voter)| voter.pool.is_some())
                .fold(0, |bits, (number, _)| bits | 1 << number),
            extra_replicas: vote.map_or(0, |vote| vote.extra_replicas),
        });
    if voters.is_empty() || membership_of(&membership).all().iter().any(|voter| !voters.contains_key(&voter.0)) {
        return Err(unknown());
    }
    Ok(SavedReplicated {
        uuid: replica.volume.parse().map_err(|_| unknown())?,
        name: replica.name.clone(),
        size_bytes: replica.volume_bytes,
        block_bytes: replica.block_bytes,
        voters,
        membership,
        attached: false,
        controller: Uuid::nil(),
        epoch: 0,
        creating: false,
        from: None,
        left: Vec::new(),
    })
}

fn replicas_of(volume: &SavedReplicated) -> String {
    let names: Vec<String> = volume.voters.keys().map(|number| volume.voter_name(*number)).collect();
    names.join(", ")
}

/// Returns the requested level.
fn level_of(ask: &CreateReplicated) -> Result<Level, ErrorDetail> {
    let Some(text) = &ask.level else { return Ok(Level::Raid1) };
    match text.parse() {
        Ok(level @ (Level::Raid1 | Level::Raid5 | Level::Raid6)) => Ok(level),
        _ => Err(ErrorDetail::new(Kind::InvalidArgument, format!("replicated volumes cannot have level {text:?}"))
            .with("volume", &ask.name)
            .remedy("use raid1 (copies), raid5 or raid6")),
    }
}

/// Returns the logical block, in bytes.
fn block_of(ask: &CreateReplicated, level: Level) -> Result<u32, ErrorDetail> {
    let block_bytes = ask.block_bytes.unwrap_or(braid_api::block_bytes_usual());
    if check_block(&ask.name, block_bytes)? && level.parity() > 0 {
        let message = format!("volume {}: {level} keeps parity of blocks of {VOLUME_BLOCK_BYTES} bytes", ask.name);
        return Err(ErrorDetail::new(Kind::InvalidArgument, message).with("volume", &ask.name).remedy(format!(
            "keep copies (--level raid1), or make a pool on it: its volumes may have blocks of {VOLUME_SECTOR_BYTES} bytes"
        )));
    }
    Ok(block_bytes)
}

/// Returns the minimum number of replicas in sync that together have all data.
fn replicas_min_of(ask: &CreateReplicated, level: Level, replicas: usize) -> Result<usize, ErrorDetail> {
    let parities = usize::from(level.parity());
    if parities == 0 {
        return Ok(1);
    }
    // With two replicas a parity would be a copy.
    match replicas.checked_sub(parities).filter(|replicas_min| *replicas_min > 1) {
        Some(replicas_min) => Ok(replicas_min),
        None => Err(ErrorDetail::new(
            Kind::InvalidArgument,
            format!("{level} takes {} replicas at least, and these are {replicas}", parities + 2),
        )
        .with("volume", &ask.name)
        .remedy("name more, or keep copies: --level raid1")),
    }
}

/// Returns the size of the volume, with parity rounded up so that each replica has whole chunks.
fn whole_size(ask: &CreateReplicated, replicas_min: usize) -> Result<u64, ErrorDetail> {
    let unit = if replicas_min == 1 { 1 } else { replicas_min as u64 * CHUNK_BYTES_DEFAULT };
    let size = ask.size_bytes.checked_next_multiple_of(unit).unwrap_or(u64::MAX);
    let each = size / replicas_min as u64;
    let (head, tail) = head_and_tail_bytes(each);
    let whole = each.checked_add(head + tail);
    let fits = whole.and_then(|whole| DiskLayout::for_device(whole).ok());
    let fits = fits.is_some_and(|places| places.data.bytes == each);
    if ask.size_bytes > 0 && ask.size_bytes.is_multiple_of(BLOCK_BYTES) && fits {
        return Ok(size);
    }
    let message = format!("volume {}: {} bytes are no size of a volume", ask.name, ask.size_bytes);
    Err(ErrorDetail::new(Kind::InvalidArgument, message)
        .with("volume", &ask.name)
        .remedy("sizes are multiples of 4096 bytes, at least 4096"))
}

/// Returns what the array needs in front of and behind a replica's data, for its labels and its bitmap, in bytes.
pub(crate) fn head_and_tail_bytes(size_bytes: u64) -> (u64, u64) {
    let tail = BLOCK_BYTES;
    // Small members have a shorter head; the total size decides.
    let small = size_bytes.saturating_add(braid_format::DATA_START_SMALL_BYTES + tail);
    let head = DiskLayout::for_device(small).map_or(braid_format::DATA_START_BYTES, |places| places.data.start);
    (head, tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_area_of_a_replica_is_exactly_its_volume() {
        for size in [4096, 1 << 20, 16 << 20, (63 << 20) + 4096, 64 << 20, 1 << 30, 1 << 40]
            .into_iter()
            .flat_map(|at: u64| (0..40).map(move |step: u64| at + (step << 18)))
        {
            let (head, tail) = head_and_tail_bytes(size);
            let places = DiskLayout::for_device(head + size + tail).expect("it fits");
            assert_eq!((places.data.start, places.data.bytes, places.copy_start), (head, size, head + size), "{size}");
        }
    }
}
