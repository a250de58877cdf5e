//! The sessions of pools with replicas, as this node records them: they reveal disks that are older copies of
//! themselves.
//!
//! Each opening first writes a new random number to the labels. Labels with another number than the recorded one are
//! from a copy that was made earlier, or from disks that another daemon has used meanwhile: the replicas there may lack
//! any write.
//!
//! | step | labels | noted |
//! |---|---|---|
//! | the pool serves | S | S |
//! | it is closed cleanly | S, clean | S; then also that it is closed |
//! | it is about to be opened | S | S, closed if its labels say so, or the next one, N |
//! | before its tables are changed | N | N |
//!
//! Each row's record is durable before the next step is made. A daemon that is killed in between finds either the last
//! record or the one that follows.

use crate::PoolManager;
use braid_api::ErrorDetail;
use braid_format::pool::PoolLabel;
use braid_inventory::random_uuid;
use braid_inventory::state::SavedSession;
use uuid::Uuid;

impl PoolManager {
    /// Records that a pool is about to be opened: its labels are as `found`, and their session becomes `next`. Replicas
    /// in an older copy of the pool are marked as older.
    ///
    /// # Errors
    /// The record cannot be saved, and the pool has replicas: it must not be opened.
    pub(crate) fn note_opening(&self, pool: Uuid, found: &PoolLabel, next: u64) -> Result<(), ErrorDetail> {
        let losses = random_uuid()?;
        let (before, older) = {
            let mut tables = self.inventory.write();
            // `closed` stays set until the labels have the new session. If the daemon is killed before that, the next
            // start still recognises a copy of the labels from before the clean end.
            let opens = SavedSession { session: found.session, next: Some(next), closed: found.clean };
            let before = tables.pool_sessions.insert(pool, opens);
            if tables.replica_in(pool).is_none() {
                return Ok(());
            }
            // Earlier versions recorded nothing, and the state may have been lost: then the labels are accepted.
            let fits = before.is_none_or(|noted| noted.fits(found.session, found.clean));
            let of_pool = tables.replicas.values_mut().filter(|entry| entry.saved.pool == Some(pool) && !fits);
            let older = of_pool.map(|entry| {
                (entry.saved.losses, entry.saved.older) = (losses, true);
                entry.saved.name.clone()
            });
            (before, older.collect::<Vec<String>>())
        };
        self.inventory.save().map_err(|error| {
            let mut tables = self.inventory.write();
            match before {
                Some(before) => tables.pool_sessions.insert(pool, before),
                None => tables.pool_sessions.remove(&pool),
            };
            not_noted(found.name.as_ref(), error)
        })?;
        for replica in older {
            let message = format!(
                "what pool {} has of replica {replica} is an older copy, or was used by another daemon: it is rebuilt before it counts",
                found.name
            );
            self.inventory.events().error(
                "replica_stale",
                message,
                &[("replica", &replica), ("pool", found.name.as_ref())],
            );
        }
        Ok(())
    }

    /// Records, before the tables of a pool are changed, the session that its labels have now, and the boot of the
    /// machine. `lost`: acknowledged writes that were not flushed may be lost; to the controllers of the pool's
    /// replicas that is like a restart of the machine.
    ///
    /// # Errors
    /// The record cannot be saved, and the pool has replicas: the tables must not be changed, as the next start could
    /// not tell these labels from older copies.
    pub(crate) fn note_session(
        &self,
        pool: Uuid,
        label: &PoolLabel,
        boot: Uuid,
        lost: bool,
    ) -> Result<(), ErrorDetail> {
        let losses = random_uuid()?;
        let before = {
            let mut tables = self.inventory.write();
            let serves = SavedSession { session: label.session, next: None, closed: false };
            let before = (tables.pool_sessions.insert(pool, serves), tables.pool_boots.insert(pool, boot));
            if tables.replica_in(pool).is_none() {
                return Ok(());
            }
            for entry in tables.replicas.values_mut().filter(|entry| lost && entry.saved.pool == Some(pool)) {
                entry.saved.losses = losses;
            }
            before
        };
        self.inventory.save().map_err(|error| {
            let mut tables = self.inventory.write();
            let (session, boot) = before;
            // The labels may still have the session of this record: the next opening compares them with it.
            if let Some(session) = session {
                tables.pool_sessions.insert(pool, session);
            }
            match boot {
                Some(boot) => tables.pool_boots.insert(pool, boot),
                None => tables.pool_boots.remove(&pool),
            };
            not_noted(label.name.as_ref(), error)
        })
    }

    /// Records that a pool was closed cleanly, as its labels say.
    pub(crate) fn note_closed(&self, pool: Uuid) {
        {
            let mut tables = self.inventory.write();
            tables.pool_boots.remove(&pool);
            if let Some(session) = tables.pool_sessions.get_mut(&pool) {
                session.closed = true;
            }
        }
        // If this fails, it is as if the daemon had been killed here.
        self.inventory.save_or_warn();
    }
}

fn not_noted(pool: &str, error: ErrorDetail) -> ErrorDetail {
    let remedy = format!("{}; then: braid array assemble", error.remedy);
    let message = format!(
        "pool {pool} has replicas, and is opened only if its session can be recorded, so that an older copy is recognised: {}",
        error.message
    );
    ErrorDetail { message, ..error }.with("pool", pool).remedy(remedy)
}
