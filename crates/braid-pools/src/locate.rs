//! Finds the volume or snapshot that a user names.

use crate::PoolManager;
use crate::errors::{invalid_name, not_found, unsupported_on_replicated};
use crate::names::{
    checked, find, find_named, is_pending, is_replica_metadata, name_in_pool, refuse_replica_metadata_name,
};
use braid_api::names::{VolumeName, is_uuid};
use braid_api::{ErrorDetail, Kind};
use braid_engine::PoolNext;
use braid_format::pool::{OwnerKind, OwnerName};
use braid_inventory::PoolHandle;
use uuid::Uuid;

/// A volume or snapshot that was found by its name.
pub(crate) struct Located {
    /// Its pool.
    pub(crate) pool: PoolHandle,
    /// Its identity.
    pub(crate) uuid: Uuid,
    /// Its current name: `tank/db`, `tank/db@monday`.
    pub(crate) name: String,
}

impl PoolManager {
    /// Returns the volume or snapshot that a text names (`tank/db`, `tank/db@monday` or a UUID): the pool, the identity
    /// and the name.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; the text names something of another kind.
    pub async fn find_owner(&self, text: &str, kind: OwnerKind) -> Result<(Uuid, Uuid, String), ErrorDetail> {
        self.locate(text, kind).await.map(|found| (found.pool.uuid, found.uuid, found.name))
    }

    /// Returns the volume or snapshot that a text names, with a handle of its pool: see [`PoolManager::find_owner`].
    ///
    /// # Errors
    /// [`Kind::NotFound`]; the text names something of another kind; [`Kind::Unsupported`] if the volume is replicated.
    pub(crate) async fn locate(&self, text: &str, kind: OwnerKind) -> Result<Located, ErrorDetail> {
        if is_uuid(text) {
            let uuid = Uuid::try_parse(text).map_err(|_| not_found(text, kind))?;
            for pool in self.reach_all() {
                let name = self.call(&pool, move |pool| {
                    let found = find(pool.state(), uuid, kind)
                        .filter(|owner| !is_replica_metadata(owner.name.as_str()) && !is_pending(owner))
                        .map(|owner| name_in_pool(pool.state(), owner));
                    (PoolNext::Done, found)
                });
                let name = match name.await {
                    Err(error) if error.kind == Kind::Inactive => continue,
                    name => name?,
                };
                if let Some(name) = name {
                    let name = format!("{}/{name}", pool.name);
                    return Ok(Located { pool, uuid, name });
                }
            }
            return Err(match self.inventory.is_replicated_volume(text) {
                true => unsupported_on_replicated(text),
                false => not_found(text, kind),
            });
        }
        let parsed = VolumeName::parse(text).filter(|name| name.snapshot.is_some() == (kind == OwnerKind::Snapshot));
        let Some(name) = parsed else {
            let volume = text.split('@').next().unwrap_or_default();
            return Err(match kind != OwnerKind::Snapshot && self.inventory.is_replicated_volume(volume) {
                true => unsupported_on_replicated(volume),
                false => invalid_name(text, kind),
            });
        };
        let pool = self.serving_pool(name.pool)?;
        let (volume, snapshot) = (name.volume.to_owned(), name.snapshot.map(str::to_owned));
        let found = self.call(&pool, move |pool| {
            let found = find_named(pool.state(), &volume, snapshot.as_deref());
            (PoolNext::Done, found.map(|owner| (owner.uuid, name_in_pool(pool.state(), owner))))
        });
        let (uuid, name) = found.await?.ok_or_else(|| not_found(text, kind))?;
        let name = format!("{}/{name}", pool.name);
        Ok(Located { pool, uuid, name })
    }

    /// Returns the own name of a volume or snapshot from a user's text, with or without the pool's name.
    pub(crate) fn own_name(&self, text: &str, pool: &PoolHandle) -> Result<OwnerName, ErrorDetail> {
        let own = match VolumeName::parse(text) {
            Some(name) if name.snapshot.is_none() && (name.pool == pool.name || name.pool == pool.uuid.to_string()) => {
                name.volume
            }
            Some(_) => {
                let message = format!("{text} is not in pool {}", pool.name);
                return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                    .with("name", text)
                    .remedy("give the new name alone: things stay in their pool"));
            }
            None => text,
        };
        refuse_replica_metadata_name(own)?;
        checked(own)
    }
}
