//! Looks up replicated volumes in the tables: by name, and below a pool.

use crate::inventory::Inventory;
use crate::pools::{IdlePool, MemberPart};
use crate::replicated::SavedReplicated;
use crate::tables::Tables;
use braid_advice::{self as advice, Case, ObjectNames, PoolCase, VolumeCase};
use braid_api::{ErrorDetail, Kind, PoolState};
use std::collections::BTreeMap;
use uuid::Uuid;

impl Tables {
    /// Returns the replicated volume that a pool stands on; `None`: the pool does not serve, or stands on none.
    pub fn replicated_volume_of(&self, pool: Uuid) -> Option<Uuid> {
        self.replicated_member(self.pools.get(&pool)?.served()?.parts.iter())
    }

    /// Returns the replicated volume among these members of a pool. Such a pool has one array as a member.
    pub fn replicated_member<'a>(&self, mut parts: impl Iterator<Item = &'a MemberPart>) -> Option<Uuid> {
        parts.find_map(MemberPart::array).filter(|array| self.replicated.contains_key(array))
    }

    /// Returns the pool that stands, or was last seen, on a replicated volume: its identity and name.
    pub fn pool_on_replicated(&self, volume: Uuid) -> Option<(Uuid, String)> {
        let seen = || self.pool_arrays.iter().find(|saved| saved.array == volume);
        let pool = self.pool_on(volume).map(|(entry, _)| (entry.uuid, entry.name.clone()));
        pool.or_else(|| seen().map(|saved| (saved.pool, saved.pool_name.clone())))
    }

    /// Returns the name of the replicated volume that a pool stands on, or stood on when it was last seen.
    pub fn replicated_member_name(&self, pool: Uuid) -> Option<String> {
        let seen = || self.pool_arrays.iter().find(|saved| saved.pool == pool).map(|saved| saved.array);
        let volume = self.replicated_volume_of(pool).or_else(seen)?;
        Some(self.replicated.get(&volume)?.name.clone())
    }

    /// Refuses an operation that is not possible with a pool on a replicated volume.
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`], with this reason and remedy.
    pub fn refuse_on_replicated(&self, pool: Uuid, why: &str, remedy: &str) -> Result<(), ErrorDetail> {
        let Some(volume) = self.replicated_volume_of(pool).and_then(|volume| self.replicated.get(&volume)) else {
            return Ok(());
        };
        let name = self.pools.get(&pool).map(|entry| entry.name.clone()).unwrap_or_default();
        let message = format!("pool {name} stands on {}, a replicated volume: {why}", volume.name);
        Err(ErrorDetail::new(Kind::InvalidArgument, message)
            .with("pool", &name)
            .with("volume", &volume.name)
            .remedy(remedy))
    }

    /// Returns the data of a pool whose replicated volume this node does not serve.
    pub fn waits_for(&self, volume: Uuid) -> IdlePool {
        let name = self.replicated.get(&volume).map(|volume| volume.name.clone()).unwrap_or_default();
        IdlePool {
            state: PoolState::Incomplete,
            attention: vec![format!("it stands on {name}, a replicated volume that this node does not serve now")],
            remedy: advice::remedy(Case::PoolOnReplicatedVolume(PoolCase::Idle), ObjectNames::with("", &name)),
            present: BTreeMap::new(),
            arrays: BTreeMap::new(),
            lacks_space: false,
        }
    }

    /// Returns the name of the replicated volume that a text names by name or UUID: this node knows it, or has a
    /// replica or witness of it.
    pub(crate) fn replicated_volume_name(&self, text: &str) -> Option<&str> {
        // A node with a replica of it may never have served it.
        let known = self.replicated.values().map(|volume| (volume.uuid, &volume.name));
        let kept = self.replicas.values().map(|entry| (entry.saved.volume, &entry.saved.name));
        let mut volumes = known.chain(kept);
        let (_, name) = volumes.find(|(uuid, own)| *own == text || uuid.to_string() == text)?;
        Some(name)
    }

    /// Returns the error for a replicated volume that this node does not know.
    fn unknown_volume(&self, text: &str) -> ErrorDetail {
        let mut kept = self.replicas.values().map(|entry| &entry.saved);
        match kept.find(|kept| kept.name == text || kept.volume.to_string() == text) {
            Some(kept) => {
                let what = if kept.data.is_some() { "replica" } else { "witness" };
                not_served_here(Kind::NotFound, &kept.name, &format!(", which keeps a {what} of it"))
            }
            None => ErrorDetail::new(Kind::NotFound, format!("this node knows no replicated volume {text}"))
                .with("volume", text)
                .remedy(format!("braid volume list --all; braid volume attach {text} searches the other nodes")),
        }
    }

    /// Refuses the name of a replicated volume that this node serves or makes.
    ///
    /// # Errors
    /// [`Kind::Exists`].
    pub(crate) fn check_volume_name_free(&self, name: &str) -> Result<(), ErrorDetail> {
        let is_here = |volume: &SavedReplicated| volume.creating || self.arrays.contains_key(&volume.uuid);
        match self.replicated.values().any(|volume| volume.name == name && is_here(volume)) {
            true => Err(volume_exists(name)),
            false => Ok(()),
        }
    }
}

impl Inventory {
    /// Returns a copy of what this node knows of a replicated volume, by its name or UUID.
    ///
    /// # Errors
    /// [`Kind::NotFound`]: the error says so if this node has a replica or witness of it all the same.
    pub fn find_replicated(&self, name: &str) -> Result<SavedReplicated, ErrorDetail> {
        let tables = self.read();
        let found = tables.replicated.values().find(|volume| volume.name == name || volume.uuid.to_string() == name);
        found.cloned().ok_or_else(|| tables.unknown_volume(name))
    }

    /// Returns whether a text names a replicated volume, as far as this node knows.
    pub fn is_replicated_volume(&self, text: &str) -> bool {
        self.read().replicated_volume_name(text).is_some()
    }

    /// Refuses to delete or change the data that an inactive array has on a volume, without confirmation: at its next
    /// start the array would assume that the volume is unchanged. `volume` is its name with its pool.
    ///
    /// # Errors
    /// [`Kind::WouldDestroy`].
    pub fn refuse_last_member_on(&self, volume: &str) -> Result<(), ErrorDetail> {
        let tables = self.read();
        let Some((_, array)) = tables.volume_last_of(|name| name == volume) else { return Ok(()) };
        let message = format!("volume {volume} was seen last as a member of array {array}");
        Err(ErrorDetail::new(Kind::WouldDestroy, message)
            .with("volume", volume)
            .with("array", array)
            .remedy("add --force if that array is not needed any more, or can do without it"))
    }
}

/// Returns the error for a volume name that is taken.
pub fn volume_exists(name: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::Exists, format!("there is a volume {name} already"))
        .with("volume", name)
        .remedy("choose another name")
}

/// Returns the error of this kind for an operation that only the node that serves a volume can do. `more` follows "by
/// this node".
pub fn not_served_here(kind: Kind, volume: &str, more: &str) -> ErrorDetail {
    ErrorDetail::new(kind, format!("volume {volume} is not served by this node{more}"))
        .with("volume", volume)
        .remedy(advice::remedy(Case::ReplicatedVolume(VolumeCase::NotServedHere), ObjectNames::of(volume)))
}

/// Returns whether a name is that of a replicated volume or of its snapshot: it names no pool.
pub fn is_replicated_name(text: &str) -> bool {
    !text.contains('/') && !braid_api::names::is_uuid(text)
}
