//! Replicas and witnesses as the API shows them.

use crate::ReplicationManager;
use crate::replicas::show_register;
use braid_advice::{self as advice, Case, ObjectNames, ReplicaCase};
use braid_api::{Attention, ErrorDetail, Replica, ReplicaList, ReplicaState, replica_export};
use braid_inventory::{ReplicaEntry, Tables, is_excluded};

fn show(tables: &Tables, entry: &ReplicaEntry) -> Replica {
    let saved = &entry.saved;
    let pool = saved.pool.map(|uuid| tables.pools.get(&uuid).map_or(&saved.pool_name, |pool| &pool.name));
    let (state, reason) = match entry.fault() {
        None => (ReplicaState::Ready, None),
        Some((state, why)) => (state, Some(why)),
    };
    let (ready, is_ready) = (entry.ready(), state == ReplicaState::Ready);
    Replica {
        volume: saved.volume.to_string(),
        name: saved.name.clone(),
        voter: saved.voter,
        voters: saved.voters,
        witness: saved.data.is_none(),
        state,
        reason,
        pool: pool.cloned(),
        data: pool.map(|pool| format!("{pool}/{}", saved.name)),
        size_bytes: saved.size_bytes,
        head_bytes: saved.head_bytes,
        tail_bytes: saved.tail_bytes,
        locations: saved.locations.clone(),
        version: saved.version,
        volume_bytes: saved.volume_bytes,
        block_bytes: saved.block_bytes,
        boot: ready.map(|ready| ready.admission.boot().to_string()).unwrap_or_default(),
        export: saved.data.map(|_| replica_export(&saved.volume.to_string())),
        connections: ready.map_or(0, |ready| ready.admission.connections()),
        // A register that could not be written may be durable, or not.
        register: ready.filter(|_| is_ready).map(|ready| show_register(&ready.admission.register())),
        since_reply_ms: ready.and_then(|ready| Some(ready.contact.silent_for()?.as_millis() as u64)),
    }
}

fn attention_of(name: &str, case: ReplicaCase, message: String) -> Attention {
    advice::of(Case::Replica(case), ObjectNames::of(name)).attention(format!("replica {name}"), message)
}

/// Returns the replicas and witnesses that need attention. Those of a pool that does not serve are left out: the pool
/// itself needs attention.
pub fn attention(tables: &Tables) -> Vec<Attention> {
    let of = |entry: &ReplicaEntry| {
        if entry.fault().is_none() && entry.ready().is_some_and(|ready| is_excluded(entry, &ready.admission.register()))
        {
            let message = "it has lost its vote: its volume was attached by force without it".to_owned();
            return Some(attention_of(&entry.saved.name, ReplicaCase::Excluded, message));
        }
        let (state @ (ReplicaState::Lost | ReplicaState::Failed), why) = entry.fault()? else { return None };
        let case = match state {
            ReplicaState::Lost => ReplicaCase::Lost,
            _ if entry.ready().is_some() => ReplicaCase::Retrying,
            _ => ReplicaCase::Failed,
        };
        Some(attention_of(&entry.saved.name, case, format!("it does not vote: {why}")))
    };
    tables.replicas.values().filter_map(of).collect()
}

impl ReplicationManager {
    /// Returns every replica and witness of this node, sorted by name.
    pub fn replicas(&self) -> ReplicaList {
        let tables = self.inventory.read();
        let mut replicas: Vec<Replica> = tables.replicas.values().map(|entry| show(&tables, entry)).collect();
        replicas.sort_by(|a, b| (&a.name, &a.volume).cmp(&(&b.name, &b.volume)));
        ReplicaList { replicas, incomplete: self.inventory.why_incomplete() }
    }

    /// Returns a replica or witness, by its volume's UUID or by its name.
    ///
    /// # Errors
    /// [`braid_api::Kind::NotFound`].
    pub fn replica(&self, text: &str) -> Result<Replica, ErrorDetail> {
        let tables = self.inventory.read();
        Ok(show(&tables, tables.replica(text)?))
    }
}
