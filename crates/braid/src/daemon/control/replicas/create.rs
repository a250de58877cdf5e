//! Replicas and witnesses, made and deleted.
//!
//! The state file says first that one is being made, and then, when its register is durable, that it is there; a deletion goes the same way
//! back. What is half done the next start undoes.

use super::register::{PLACES_BYTES, Place};
use super::{Condition, REPLICAS_MAX, ReplicaEntry, check_places, invalid, seating_of, uuid_of};
use crate::daemon::control::pools::{NewVolume, check_block, is_controllers};
use crate::daemon::control::{Control, random_uuid};
use crate::daemon::state::SavedReplica;
use braid_api::limits::VOLUME_BLOCK_BYTES;
use braid_api::{CreateReplica, ErrorDetail, Kind, Replica, ReplicaState};
use braid_engine::replica::{Register, RegisterOf, Vote, VoterId, Voters};
use std::sync::Arc;
use uuid::Uuid;

/// The head is a multiple of this.
const HEAD_UNIT_BYTES: u64 = 1 << 20;
/// The tail is a multiple of this.
const TAIL_UNIT_BYTES: u64 = 4096;
/// Head or tail are no longer than this.
const EDGE_BYTES_MAX: u64 = 1 << 34;

impl Control {
    /// Makes a replica or a witness. Its register is durable when this returns.
    ///
    /// # Errors
    /// There is one of this volume, its name is taken, there is no room. Nothing is left then.
    pub async fn create_replica(self: &Arc<Self>, ask: CreateReplica) -> Result<Replica, ErrorDetail> {
        self.is_open()?;
        let (mut saved, register) = self.understand_replica(&ask)?;
        let from = ask.snapshot.as_ref().map(|text| uuid_of(&ask.name, "the snapshot", text)).transpose()?;
        if from.is_some_and(|snapshot| saved.pool.is_none() || !is_controllers(snapshot)) {
            return Err(invalid(&ask.name, "only a replica begins as a snapshot is, and only as one of a controller"));
        }
        {
            let mut tables = self.write();
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
            let entry = ReplicaEntry { saved: saved.clone(), condition: Condition::Not(ReplicaState::Waiting, why) };
            tables.replicas.insert(saved.volume, entry);
        }
        if let Err(error) = self.save() {
            self.write().replicas.remove(&saved.volume);
            return Err(error);
        }
        match self.form_replica(&mut saved, register, from).await {
            Ok(()) => {}
            Err(error) => {
                self.close_replica(saved.volume, "it could not be made").await;
                if let Err(left) = self.remove_half(&saved).await {
                    tracing::warn!("what was made of replica {} is removed at the next start: {left}", saved.name);
                }
                return Err(error);
            }
        }
        let what = if saved.data.is_some() { "replica" } else { "witness" };
        let message = format!("{what} {} was made, voter {} of {} voters", saved.name, saved.voter, saved.voters);
        self.events().info("replica_created", message, &[("replica", &saved.name)]);
        self.replica(&ask.volume)
    }

    async fn form_replica(
        self: &Arc<Self>,
        saved: &mut SavedReplica,
        register: Register,
        from: Option<Uuid>,
    ) -> Result<(), ErrorDetail> {
        match (saved.pool, saved.data, saved.companion) {
            (Some(pool), Some(data), Some(companion)) => {
                let data = NewVolume { uuid: data, size_bytes: saved.size_bytes, block_bytes: saved.block_bytes };
                let edges = saved.head_bytes + saved.tail_bytes;
                let companion = NewVolume {
                    uuid: companion,
                    size_bytes: edges + PLACES_BYTES,
                    block_bytes: braid_api::block_bytes_usual(),
                };
                self.make_replica_volumes(pool, &saved.name, &data, &companion, from).await?;
            }
            _ => {
                let file = self.register_file(saved.volume);
                Place::make_file(&file).await.map_err(|why| {
                    let message = format!("the register of witness {} cannot be made: {why}", saved.name);
                    ErrorDetail::new(Kind::DiskError, message).with("path", file.display())
                })?;
            }
        }
        let condition = self.open_replica(saved, Some(register)).await?;
        self.note_condition(saved, condition);
        if let Some(entry) = self.write().replicas.get_mut(&saved.volume) {
            entry.saved.formed = true;
        }
        // Only what was saved is there: otherwise the next start would remove what others believe in.
        self.save()
    }

    fn understand_replica(&self, ask: &CreateReplica) -> Result<(SavedReplica, Register), ErrorDetail> {
        let name = ask.name.as_str();
        braid_api::names::check_name(name).map_err(|error| invalid(name, error.to_string()))?;
        if check_block(name, ask.block_bytes)? && ask.seating.further > 0 {
            return Err(invalid(name, format!("with parity a volume has blocks of {VOLUME_BLOCK_BYTES} bytes")));
        }
        let volume = uuid_of(name, "the volume", &ask.volume)?;
        let vote = Vote { lineage: ask.lineage, in_sync: Voters::from_bits(ask.in_sync), ..Vote::default() };
        let seating = seating_of(&ask.seating);
        // Who comes later says nothing of the time before.
        let register = Register { vote: Vote { seating, ..vote }, since: seating.version, ..Register::default() };
        let of = RegisterOf { volume, voter: VoterId(ask.voter) };
        if !register.stored(&of, 1).is_sound() || !seating.voters.has(of.voter) {
            return Err(invalid(name, "voter, seating and in_sync do not fit together"));
        }
        let mut saved = SavedReplica {
            volume,
            name: name.to_owned(),
            voter: ask.voter,
            voters: seating.voters.count() as u8,
            pool: None,
            pool_name: String::new(),
            data: None,
            companion: None,
            size_bytes: ask.size_bytes,
            head_bytes: ask.head_bytes,
            tail_bytes: ask.tail_bytes,
            places: ask.places.clone(),
            since: seating.version,
            version: seating.version,
            volume_bytes: ask.volume_bytes,
            block_bytes: ask.block_bytes,
            losses: Uuid::nil(),
            older: false,
            formed: false,
        };
        let sizes = [ask.size_bytes, ask.head_bytes, ask.tail_bytes];
        let Some(pool) = &ask.pool else {
            if sizes != [0; 3] || ask.in_sync >> ask.voter & 1 == 1 {
                return Err(invalid(name, "a witness has no sizes, and holds nothing: it is in sync with nobody"));
            }
            return Ok((saved, register));
        };
        for (edge, unit) in [(ask.head_bytes, HEAD_UNIT_BYTES), (ask.tail_bytes, TAIL_UNIT_BYTES)] {
            if edge == 0 || edge > EDGE_BYTES_MAX || !edge.is_multiple_of(unit) {
                let why = format!("{edge} bytes in front of or behind the data are no multiple of {unit} up to 16 GiB");
                return Err(invalid(name, why));
            }
        }
        check_places(name, &ask.places)?;
        let (pool, pool_name) = self.pool_for_replica(pool)?;
        (saved.pool, saved.pool_name) = (Some(pool), pool_name);
        (saved.data, saved.companion) = (Some(random_uuid()?), Some(random_uuid()?));
        Ok((saved, register))
    }

    /// Deletes a replica with its data, or a witness. `since`: only the one that came with this list of places.
    ///
    /// # Errors
    /// A controller uses it, or it has promised something, and `force` is not set; its data have snapshots; its pool does not serve.
    pub async fn delete_replica(
        self: &Arc<Self>,
        volume: &str,
        force: bool,
        since: Option<u64>,
    ) -> Result<Replica, ErrorDetail> {
        self.is_open()?;
        let shown = self.replica(volume)?;
        let saved = self.read().replica(volume)?.saved.clone();
        if since.is_some_and(|since| since != saved.since) {
            let message = format!("replica {} is not the one that was meant: it has come at another time", shown.name);
            return Err(ErrorDetail::new(Kind::NotFound, message).with("replica", &shown.name));
        }
        if shown.connections > 0 && !force {
            let message = format!("replica {} is used by a controller", shown.name);
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("replica", &shown.name)
                .remedy("take it out of its volume first, or add --force"));
        }
        if let (Some(pool), Some(data)) = (saved.pool, saved.data) {
            if shown.state == ReplicaState::Waiting && self.reach(&pool.to_string()).is_err() {
                return self.forget_replica(&saved, shown, force);
            }
            if self.has_snapshots_in(pool, data, !force).await? {
                let name = shown.data.clone().unwrap_or_default();
                let message = format!("the data of replica {} have snapshots", shown.name);
                return Err(ErrorDetail::new(Kind::InUse, message).with("replica", &shown.name).remedy(format!(
                    "delete them first (braid snapshot list {name}); --force does not override this"
                )));
            }
            self.refuse_exports_of_replica(data, &shown.name)?;
            if force {
                // Nobody could delete them any more once it votes no more.
                self.remove_controllers_snapshots(pool, data).await?;
            }
        }
        if !force && saved.formed {
            refuse_promised(&shown)?;
        }
        self.set_formed(saved.volume, false)?;
        self.close_replica(saved.volume, "it is being deleted").await;
        self.remove_half(&saved).await?;
        let message = format!("replica {} was deleted", shown.name);
        self.events().info("replica_deleted", message, &[("replica", &shown.name)]);
        Ok(shown)
    }

    /// Forgets a replica whose pool is not there. Should the pool come back, what it has of the replica is removed.
    fn forget_replica(&self, saved: &SavedReplica, shown: Replica, force: bool) -> Result<Replica, ErrorDetail> {
        if !force {
            let message = format!("pool {} of replica {} does not serve", saved.pool_name, saved.name);
            return Err(ErrorDetail::new(Kind::Inactive, message).with("replica", &saved.name).remedy(format!(
                "braid pool show {}; --force forgets the replica, and removes it should that pool ever be back",
                saved.pool_name
            )));
        }
        {
            let mut tables = self.write();
            tables.forgotten.push(saved.clone());
            tables.replicas.remove(&saved.volume);
        }
        if let Err(error) = self.save() {
            let mut tables = self.write();
            tables.forgotten.pop();
            tables.replicas.insert(saved.volume, ReplicaEntry::of_saved(saved));
            return Err(error);
        }
        // One that is made later would overwrite it.
        let _ = std::fs::remove_file(self.register_file(saved.volume));
        let message = format!("replica {} was deleted, without what pool {} has of it", saved.name, saved.pool_name);
        self.events().info("replica_deleted", message, &[("replica", &saved.name)]);
        Ok(shown)
    }

    /// A pool is back: what it has of replicas that were deleted meanwhile is removed.
    pub(super) async fn clear_forgotten(self: &Arc<Self>, pool: Uuid) {
        let forgotten: Vec<SavedReplica> =
            self.read().forgotten.iter().filter(|saved| saved.pool == Some(pool)).cloned().collect();
        for saved in forgotten {
            let (Some(data), Some(companion)) = (saved.data, saved.companion) else { continue };
            // Nobody names those of its controllers any more.
            let removed = match self.remove_controllers_snapshots(pool, data).await {
                Ok(()) => self.remove_replica_volumes(pool, [data, companion]).await,
                Err(error) => Err(error),
            };
            match removed {
                Ok(()) => {
                    self.write().forgotten.retain(|other| *other != saved);
                    self.save_or_warn();
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
            if let Some(entry) = self.write().replicas.get_mut(&volume) {
                entry.saved.formed = formed;
            }
        };
        set(formed);
        self.save().inspect_err(|_| set(!formed))
    }

    /// Exports of the data, which only look at them.
    fn refuse_exports_of_replica(&self, data: Uuid, name: &str) -> Result<(), ErrorDetail> {
        let exports = self.read().exports_of(data);
        let Some(first) = exports.first() else { return Ok(()) };
        let message = format!("the data of replica {name} are exported as {}", exports.join(", "));
        Err(ErrorDetail::new(Kind::InUse, message)
            .with("replica", name)
            .with("export", first)
            .remedy(format!("braid export remove {first} first")))
    }

    /// Removes what there is of a replica that is not whole, and forgets it.
    pub(super) async fn remove_half(self: &Arc<Self>, saved: &SavedReplica) -> Result<(), ErrorDetail> {
        if let (Some(pool), Some(data), Some(companion)) = (saved.pool, saved.data, saved.companion) {
            // The companion last: as long as it is there somebody asks whose it is.
            self.remove_replica_volumes(pool, [data, companion]).await?;
        }
        let file = self.register_file(saved.volume);
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(braid_advice::errors::os_error(&error, "the register cannot be removed", &file));
            }
            _ => {}
        }
        self.write().replicas.remove(&saved.volume);
        self.save_or_warn();
        Ok(())
    }
}

/// Others count on what a voter has answered, its volume as long as there is one: whoever deletes that has to say so.
fn refuse_promised(replica: &Replica) -> Result<(), ErrorDetail> {
    let promised = match (&replica.register, replica.state) {
        (Some(register), _) if register.epoch == 0 => return Ok(()),
        (Some(register), _) => format!("has answered epoch {}", register.epoch),
        // What is not known may be anything.
        (None, ReplicaState::Failed) => "may have answered a controller, which cannot be looked up now".to_owned(),
        (None, _) => return Ok(()),
    };
    let what = if replica.witness { "witness" } else { "replica" };
    let with = if replica.witness { "" } else { ", and its copy of the data" };
    let message = format!(
        "{what} {} is voter {} of {} of its volume and {promised}: with its vote{with} the volume may be lost, and one made in its place knows nothing of what was promised",
        replica.name, replica.voter, replica.voters
    );
    Err(ErrorDetail::new(Kind::NeedsConfirmation, message).with("replica", &replica.name).remedy(format!(
        "braid volume delete {} deletes the volume with all that nodes keep of it; --force deletes this alone",
        replica.name
    )))
}
