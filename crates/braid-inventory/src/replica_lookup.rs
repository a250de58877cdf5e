//! Finds replicas in the tables, by name, volume or pool.

use crate::replicas::ReplicaEntry;
use crate::tables::Tables;
use braid_api::{ErrorDetail, Kind};
use uuid::Uuid;

impl Tables {
    /// Returns a replica or witness, by its volume's UUID or by its name.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::InvalidArgument`] if several replicas have the name.
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

    /// Returns the replica that a volume is the data or the replica metadata of.
    pub fn replica_with(&self, volume: Uuid) -> Option<&ReplicaEntry> {
        self.replicas.values().find(|entry| entry.has(volume))
    }

    /// Returns a replica whose data is in this pool, if there is one.
    pub fn replica_in(&self, pool: Uuid) -> Option<&ReplicaEntry> {
        self.replicas.values().find(|entry| entry.saved.pool == Some(pool))
    }
}
