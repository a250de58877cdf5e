//! Creates and deletes replicas and witnesses.
//!
//! The state file first says that one is being created, and, when its register is durable, that it is formed; a
//! deletion reverses these steps. The next start removes one that was created or deleted only in part.

use crate::ReplicationManager;
use crate::replicas::{REPLICAS_MAX, check_locations, invalid, uuid_of};
use braid_api::limits::VOLUME_BLOCK_BYTES;
use braid_api::{CreateReplica, ErrorDetail, Kind, Replica, ReplicaState};
use braid_engine::replica::{Register, RegisterId, Vote, VoterId, Voters};
use braid_inventory::register::{RegisterLocation, SLOTS_BYTES};
use braid_inventory::state::SavedReplica;
use braid_inventory::{ReplicaCondition, ReplicaEntry, membership_of, random_uuid};
use braid_pools::{NewReplicaVolume, check_block, is_controller_snapshot};
use std::sync::Arc;
use uuid::Uuid;

/// The head is a multiple of this.
const HEAD_UNIT_BYTES: u64 = 1 << 20;

/// The tail is a multiple of this.
const TAIL_UNIT_BYTES: u64 = 4096;

/// Maximum length of head or tail, in bytes.
const EDGE_BYTES_MAX: u64 = 1 << 34;

impl ReplicationManager {
    /// Creates a replica or a witness. Its register is durable when this returns.
    ///
    /// # Errors
    /// The node has one of this volume already; the name is taken; the pool has no room. Nothing is left then.
    pub async fn create_replica(self: &Arc<Self>, ask: CreateReplica) -> Result<Replica, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let (mut saved, register) = self.parse_replica(&ask)?;
        let from = ask.snapshot.as_ref().map(|text| uuid_of(&ask.name, "the snapshot", text)).transpose()?;
        if from.is_some_and(|snapshot| saved.pool.is_none() || !is_controller_snapshot(snapshot)) {
            return Err(invalid(&ask.name, "only a replica begins as a snapshot is, and only as one of a controller"));
        }
        {
            let mut tables = self.inventory.write();
            if let Some(entry) = tables.replicas.get(&saved.volume) {
                let message = format!("there is a replica of volume {} already, {}", ask.volume, entry.saved.name);
                return Err(ErrorDetail::new(Kind::Exists, message)
                    .with("replica", &entry.saved.name)
                    .remedy("a node keeps one of a volume: use that one, or delete it first"));
            }
            if tables.replicas.len() >= REPLICAS_MAX {
                let message = format!("there are {REPLICAS_MAX} replicas and witnesses already");
                return Err(ErrorDetail::new(Kind::LimitReached, message).remedy("delete one first"));
            }
            let why = "it is being made".to_owned();
            let entry = ReplicaEntry {
                saved: saved.clone(),
                condition: ReplicaCondition::NotVoting(ReplicaState::Waiting, why),
            };
            tables.replicas.insert(saved.volume, entry);
        }
        if let Err(error) = self.inventory.save() {
            self.inventory.write().replicas.remove(&saved.volume);
            return Err(error);
        }
        match self.form_replica(&mut saved, register, from).await {
            Ok(()) => {}
            Err(error) => {
                self.close_replica(saved.volume, "it could not be made").await;
                if let Err(left) = self.remove_incomplete_replica(&saved).await {
                    tracing::warn!("what was made of replica {} is removed at the next start: {left}", saved.name);
                }
                return Err(error);
            }
        }
        let what = if saved.data.is_some() { "replica" } else { "witness" };
        let message = format!("created {what} {}, voter {} of {} voters", saved.name, saved.voter, saved.voters);
        self.inventory.events().info("replica_created", message, &[("replica", &saved.name)]);
        self.replica(&ask.volume)
    }

    async fn form_replica(
        self: &Arc<Self>,
        saved: &mut SavedReplica,
        register: Register,
        from: Option<Uuid>,
    ) -> Result<(), ErrorDetail> {
        match (saved.pool, saved.data, saved.metadata) {
            (Some(pool), Some(data), Some(metadata)) => {
                let data =
                    NewReplicaVolume { uuid: data, size_bytes: saved.size_bytes, block_bytes: saved.block_bytes };
                let edges = saved.head_bytes + saved.tail_bytes;
                let metadata = NewReplicaVolume {
                    uuid: metadata,
                    size_bytes: edges + SLOTS_BYTES,
                    block_bytes: braid_api::block_bytes_usual(),
                };
                self.pools.make_replica_volumes(pool, &saved.name, &data, &metadata, from).await?;
            }
            _ => {
                let file = self.register_file(saved.volume);
                RegisterLocation::create_file(&file).await.map_err(|why| {
                    let message = format!("the register of witness {} cannot be made: {why}", saved.name);
                    ErrorDetail::new(Kind::DiskError, message).with("path", file.display())
                })?;
            }
        }
        let condition = self.open_replica(saved, Some(register)).await?;
        self.set_condition(saved, condition);
        if let Some(entry) = self.inventory.write().replicas.get_mut(&saved.volume) {
            entry.saved.formed = true;
        }
        // It exists only once it is saved: otherwise the next start would remove a replica that other nodes rely on.
        self.inventory.save()
    }

    fn parse_replica(&self, ask: &CreateReplica) -> Result<(SavedReplica, Register), ErrorDetail> {
        let name = ask.name.as_str();
        braid_api::names::check_name(name).map_err(|error| invalid(name, error.to_string()))?;
        if check_block(name, ask.block_bytes)? && ask.membership.extra_replicas > 0 {
            return Err(invalid(name, format!("with parity a volume has blocks of {VOLUME_BLOCK_BYTES} bytes")));
        }
        let volume = uuid_of(name, "the volume", &ask.volume)?;
        let vote = Vote { lineage: ask.lineage, in_sync: Voters::from_bits(ask.in_sync), ..Vote::default() };
        let membership = membership_of(&ask.membership);
        // A voter that joins later replies nothing about the time before.
        let register = Register {
            vote: Vote { config: membership, ..vote },
            added_in_version: membership.version,
            ..Register::default()
        };
        let of = RegisterId { volume, voter: VoterId(ask.voter) };
        if !register.stored(&of, 1).is_sound() || !membership.voters.has(of.voter) {
            return Err(invalid(name, "voter, membership and in_sync do not fit together"));
        }
        let mut saved = SavedReplica {
            volume,
            name: name.to_owned(),
            voter: ask.voter,
            voters: membership.voters.count() as u8,
            pool: None,
            pool_name: String::new(),
            data: None,
            metadata: None,
            size_bytes: ask.size_bytes,
            head_bytes: ask.head_bytes,
            tail_bytes: ask.tail_bytes,
            locations: ask.locations.clone(),
            since: membership.version,
            version: membership.version,
            volume_bytes: ask.volume_bytes,
            block_bytes: ask.block_bytes,
            losses: Uuid::nil(),
            older: false,
            formed: false,
        };
        let sizes = [ask.size_bytes, ask.head_bytes, ask.tail_bytes];
        let Some(pool) = &ask.pool else {
            if sizes != [0; 3] || ask.in_sync >> ask.voter & 1 == 1 {
                return Err(invalid(name, "a witness has no sizes, and holds nothing: it is never in sync"));
            }
            return Ok((saved, register));
        };
        for (edge, unit) in [(ask.head_bytes, HEAD_UNIT_BYTES), (ask.tail_bytes, TAIL_UNIT_BYTES)] {
            if edge == 0 || edge > EDGE_BYTES_MAX || !edge.is_multiple_of(unit) {
                let why = format!("{edge} bytes in front of or behind the data are no multiple of {unit} up to 16 GiB");
                return Err(invalid(name, why));
            }
        }
        check_locations(name, &ask.locations)?;
        let (pool, pool_name) = self.pools.pool_for_replica(pool)?;
        (saved.pool, saved.pool_name) = (Some(pool), pool_name);
        (saved.data, saved.metadata) = (Some(random_uuid()?), Some(random_uuid()?));
        Ok((saved, register))
    }

    /// Deletes a replica with its data, or a witness. With `since`, only the one that was created with this version of
    /// the membership.
    ///
    /// # Errors
    /// A controller uses it, or it has voted, and `force` is not set; its data has snapshots; its pool does not serve.
    pub async fn delete_replica(
        self: &Arc<Self>,
        volume: &str,
        force: bool,
        since: Option<u64>,
    ) -> Result<Replica, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let shown = self.replica(volume)?;
        let saved = self.inventory.read().replica(volume)?.saved.clone();
        if since.is_some_and(|since| since != saved.since) {
            let message =
                format!("replica {} is not the requested one: it was created with another membership", shown.name);
            return Err(ErrorDetail::new(Kind::NotFound, message).with("replica", &shown.name));
        }
        if shown.connections > 0 && !force {
            let message = format!("replica {} is used by a controller", shown.name);
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("replica", &shown.name)
                .remedy("remove it from its volume first (braid replica remove), or add --force"));
        }
        if let (Some(pool), Some(data)) = (saved.pool, saved.data) {
            if shown.state == ReplicaState::Waiting && self.pools.serving_pool(&pool.to_string()).is_err() {
                return self.forget_replica(&saved, shown, force);
            }
            if self.pools.has_snapshots_in(pool, data, !force).await? {
                let name = shown.data.clone().unwrap_or_default();
                let message = format!("the data of replica {} have snapshots", shown.name);
                return Err(ErrorDetail::new(Kind::InUse, message).with("replica", &shown.name).remedy(format!(
                    "delete them first (braid snapshot list {name}); --force does not override this"
                )));
            }
            self.refuse_exports_of_replica(data, &shown.name)?;
            if force {
                // Once it does not vote any more, nothing else could delete them.
                self.pools.remove_controller_snapshots(pool, data).await?;
            }
        }
        if !force && saved.formed {
            refuse_voted(&shown)?;
        }
        self.set_formed(saved.volume, false)?;
        self.close_replica(saved.volume, "it is being deleted").await;
        self.remove_incomplete_replica(&saved).await?;
        let message = format!("replica {} was deleted", shown.name);
        self.inventory.events().info("replica_deleted", message, &[("replica", &shown.name)]);
        Ok(shown)
    }

    /// Forgets a replica whose pool is missing. If the pool returns, its volumes of the replica are removed.
    fn forget_replica(&self, saved: &SavedReplica, shown: Replica, force: bool) -> Result<Replica, ErrorDetail> {
        if !force {
            let message = format!("pool {} of replica {} does not serve", saved.pool_name, saved.name);
            return Err(ErrorDetail::new(Kind::Inactive, message).with("replica", &saved.name).remedy(format!(
                "braid pool show {}; --force forgets the replica, and removes it should that pool ever be back",
                saved.pool_name
            )));
        }
        {
            let mut tables = self.inventory.write();
            tables.deleted_replicas.push(saved.clone());
            tables.replicas.remove(&saved.volume);
        }
        if let Err(error) = self.inventory.save() {
            let mut tables = self.inventory.write();
            tables.deleted_replicas.pop();
            tables.replicas.insert(saved.volume, ReplicaEntry::of_saved(saved));
            return Err(error);
        }
        // A replica created later would overwrite it.
        let _ = std::fs::remove_file(self.register_file(saved.volume));
        let message = format!("replica {} was deleted, without what pool {} has of it", saved.name, saved.pool_name);
        self.inventory.events().info("replica_deleted", message, &[("replica", &saved.name)]);
        Ok(shown)
    }

    /// Removes what a pool that has returned still holds of replicas that were deleted in the meantime.
    pub(crate) async fn clear_forgotten(self: &Arc<Self>, pool: Uuid) {
        let forgotten: Vec<SavedReplica> =
            self.inventory.read().deleted_replicas.iter().filter(|saved| saved.pool == Some(pool)).cloned().collect();
        for saved in forgotten {
            let (Some(data), Some(metadata)) = (saved.data, saved.metadata) else { continue };
            // No controller names its snapshots any more.
            let removed = match self.pools.remove_controller_snapshots(pool, data).await {
                Ok(()) => self.pools.remove_replica_volumes(pool, [data, metadata]).await,
                Err(error) => Err(error),
            };
            match removed {
                Ok(()) => {
                    self.inventory.write().deleted_replicas.retain(|other| *other != saved);
                    self.inventory.save_or_warn();
                }
                Err(error) => {
                    tracing::warn!(
                        "what pool {} has of replica {} stays: {}",
                        saved.pool_name,
                        saved.name,
                        error.message
                    );
                }
            }
        }
    }

    fn set_formed(&self, volume: Uuid, formed: bool) -> Result<(), ErrorDetail> {
        let set = |formed| {
            if let Some(entry) = self.inventory.write().replicas.get_mut(&volume) {
                entry.saved.formed = formed;
            }
        };
        set(formed);
        self.inventory.save().inspect_err(|_| set(!formed))
    }

    /// Refuses if the data is exported. Such exports are read-only.
    fn refuse_exports_of_replica(&self, data: Uuid, name: &str) -> Result<(), ErrorDetail> {
        let exports = self.inventory.read().exports_of(data);
        let Some(first) = exports.first() else { return Ok(()) };
        let message = format!("the data of replica {name} are exported as {}", exports.join(", "));
        Err(ErrorDetail::new(Kind::InUse, message)
            .with("replica", name)
            .with("export", first)
            .remedy(format!("braid export remove {first} first")))
    }

    /// Removes what exists of a replica that is not complete, and forgets it.
    pub(crate) async fn remove_incomplete_replica(self: &Arc<Self>, saved: &SavedReplica) -> Result<(), ErrorDetail> {
        if let (Some(pool), Some(data), Some(metadata)) = (saved.pool, saved.data, saved.metadata) {
            // The replica metadata is removed last: as long as it exists, its owner can be found.
            self.pools.remove_replica_volumes(pool, [data, metadata]).await?;
        }
        let file = self.register_file(saved.volume);
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(braid_advice::errors::os_error(&error, "the register cannot be removed", &file));
            }
            _ => {}
        }
        self.inventory.write().replicas.remove(&saved.volume);
        self.inventory.save_or_warn();
        Ok(())
    }
}

/// Refuses to delete a voter that has replied to a controller, since the other voters rely on its votes as long as the
/// volume exists. Deletion then needs `force`.
fn refuse_voted(replica: &Replica) -> Result<(), ErrorDetail> {
    let voted = match (&replica.register, replica.state) {
        (Some(register), _) if register.epoch == 0 => return Ok(()),
        (Some(register), _) => format!("has answered epoch {}", register.epoch),
        // An unknown register may hold anything.
        (None, ReplicaState::Failed) => "may have voted for a controller, which cannot be checked now".to_owned(),
        (None, _) => return Ok(()),
    };
    let what = if replica.witness { "witness" } else { "replica" };
    let with = if replica.witness { "" } else { ", and its copy of the data" };
    let message = format!(
        "{what} {} is voter {} of {} of its volume and {voted}: with its vote{with} the volume may be lost, and a new one in its place does not know the votes",
        replica.name, replica.voter, replica.voters
    );
    Err(ErrorDetail::new(Kind::NeedsConfirmation, message).with("replica", &replica.name).remedy(format!(
        "braid volume delete {} deletes the volume with all that nodes keep of it; --force deletes this alone",
        replica.name
    )))
}
