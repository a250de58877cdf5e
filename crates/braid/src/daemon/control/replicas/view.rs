//! Replicas and witnesses, as they are shown; and who else asks for them.

use super::{ReplicaEntry, show_register};
use crate::daemon::control::Control;
use crate::daemon::control::tables::Tables;
use braid_advice::{self as advice, Case, Names, ReplicaCase};
use braid_api::{Attention, ErrorDetail, Kind, Replica, ReplicaList, ReplicaState, replica_export};
use braid_engine::replica::{Register, VoterId};
use std::time::Duration;
use uuid::Uuid;

impl Tables {
    /// A replica or witness, by its volume's identity or by its name.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; several have the name.
    pub fn replica(&self, text: &str) -> Result<&ReplicaEntry, ErrorDetail> {
        if let Ok(uuid) = Uuid::try_parse(text)
            && let Some(entry) = self.replicas.get(&uuid)
        {
            return Ok(entry);
        }
        let mut named = self.replicas.values().filter(|entry| entry.saved.name == text);
        match (named.next(), named.next()) {
            (Some(entry), None) => Ok(entry),
            (Some(_), Some(_)) => Err(ErrorDetail::new(
                Kind::InvalidArgument,
                format!("several replicas and witnesses here are called {text}"),
            )
            .with("replica", text)
            .remedy("name its volume by the UUID: braid replica list --json")),
            (None, _) => Err(ErrorDetail::new(Kind::NotFound, format!("there is no replica or witness {text} here"))
                .with("replica", text)
                .remedy("`braid replica list` shows those there are on this node")),
        }
    }

    /// Of which replica a volume is the data or the companion.
    pub fn replica_with(&self, volume: Uuid) -> Option<&ReplicaEntry> {
        self.replicas.values().find(|entry| entry.has(volume))
    }

    /// A replica in this pool.
    pub fn replica_in(&self, pool: Uuid) -> Option<&ReplicaEntry> {
        self.replicas.values().find(|entry| entry.saved.pool == Some(pool))
    }
}

/// What a voter of this node knows of its controller.
pub struct Hears {
    /// What it remembers.
    pub register: Register,
    /// How long ago it has answered its controller; none: it has none, or that one has let go.
    pub ago: Option<Duration>,
}

impl ReplicaEntry {
    /// What it knows of its controller; none where it does not vote, or has never had one.
    pub fn hears(&self) -> Option<Hears> {
        let ready = self.ready().filter(|_| self.trouble().is_none())?;
        let register = ready.door.register();
        let is_used = register.epoch > 0 && !is_outside(self, &register);
        is_used.then(|| Hears { register, ago: ready.heard.ago() })
    }
}

fn show(tables: &Tables, entry: &ReplicaEntry) -> Replica {
    let saved = &entry.saved;
    let pool = saved.pool.map(|uuid| tables.pools.get(&uuid).map_or(&saved.pool_name, |pool| &pool.name));
    let (state, reason) = match entry.trouble() {
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
        places: saved.places.clone(),
        version: saved.version,
        volume_bytes: saved.volume_bytes,
        block_bytes: saved.block_bytes,
        boot: ready.map(|ready| ready.door.boot().to_string()).unwrap_or_default(),
        export: saved.data.map(|_| replica_export(&saved.volume.to_string())),
        connections: ready.map_or(0, |ready| ready.door.connections()),
        // What could not be written may be durable, or not.
        register: ready.filter(|_| is_ready).map(|ready| show_register(&ready.door.register())),
        heard_ms: ready.and_then(|ready| Some(ready.heard.ago()?.as_millis() as u64)),
    }
}

/// Whether it does not vote any more, by the vote that it has.
fn is_outside(entry: &ReplicaEntry, register: &Register) -> bool {
    let seating = &register.vote.seating;
    register.vote.epoch > 0 && seating.version > entry.saved.since && !seating.all().has(VoterId(entry.saved.voter))
}

fn said(name: &str, case: ReplicaCase, message: String) -> Attention {
    advice::of(Case::Replica(case), Names::of(name)).attention(format!("replica {name}"), message)
}

/// What of replicas and witnesses needs attention. Of a pool that does not serve it is said there.
pub fn attention(tables: &Tables) -> Vec<Attention> {
    let of = |entry: &ReplicaEntry| {
        if entry.trouble().is_none() && entry.ready().is_some_and(|ready| is_outside(entry, &ready.door.register())) {
            let message = "it votes no more: its volume was opened by force without it".to_owned();
            return Some(said(&entry.saved.name, ReplicaCase::LeftOut, message));
        }
        let (state @ (ReplicaState::Lost | ReplicaState::Failed), why) = entry.trouble()? else { return None };
        let case = match state {
            ReplicaState::Lost => ReplicaCase::Lost,
            _ if entry.ready().is_some() => ReplicaCase::FailedForNow,
            _ => ReplicaCase::Failed,
        };
        Some(said(&entry.saved.name, case, format!("it does not vote: {why}")))
    };
    tables.replicas.values().filter_map(of).collect()
}

impl Control {
    /// Every replica and witness of this node, by name.
    pub fn replicas(&self) -> ReplicaList {
        let tables = self.read();
        let mut replicas: Vec<Replica> = tables.replicas.values().map(|entry| show(&tables, entry)).collect();
        replicas.sort_by(|a, b| (&a.name, &a.volume).cmp(&(&b.name, &b.volume)));
        ReplicaList { replicas, incomplete: self.why_incomplete() }
    }

    /// One of them, by its volume's identity or by its name.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn replica(&self, text: &str) -> Result<Replica, ErrorDetail> {
        let tables = self.read();
        Ok(show(&tables, tables.replica(text)?))
    }
}
