//! In which session pools are that keep replicas, as this node remembers it: so it knows disks that are older copies of themselves.
//!
//! Each opening writes another random number to the labels before anything else. Labels that bear another one than was noted are those of
//! a copy that was made before, or of disks that another daemon has used meanwhile: what replicas have there may lack anything.
//!
//! | step | labels | noted |
//! |---|---|---|
//! | the pool serves | S | S |
//! | it is closed in order | S, clean | S; then also that it is closed |
//! | it is to be opened | S | S, closed where its labels say so, or the next one, N |
//! | before its tables are changed | N | N |
//!
//! Each line of the notes is durable before the next step is made; who is killed in between finds what was noted last, or what comes next.

use super::super::{Control, random_uuid};
use braid_api::ErrorDetail;
use braid_format::pool::PoolLabel;
use uuid::Uuid;

use crate::daemon::state::SavedSession;

impl Control {
    /// Notes that a pool is about to be opened whose labels say this, and that they say `next` then. Replicas of which it has older copies
    /// say so from now on.
    ///
    /// # Errors
    /// That cannot be kept, and the pool has replicas: it must not be opened.
    pub(super) fn note_opening(&self, pool: Uuid, found: &PoolLabel, next: u64) -> Result<(), ErrorDetail> {
        let losses = random_uuid()?;
        let (before, older) = {
            let mut tables = self.write();
            // What has ended in order has until the labels say otherwise: whoever is killed here still knows a copy that was made before that end.
            let opens = SavedSession { session: found.session, next: Some(next), closed: found.clean };
            let before = tables.pool_sessions.insert(pool, opens);
            if tables.replica_in(pool).is_none() {
                return Ok(());
            }
            // Nothing was noted by earlier versions, nor where the state was lost: then what is there is believed.
            let fits = before.is_none_or(|noted| noted.fits(found.session, found.clean));
            let of_pool = tables.replicas.values_mut().filter(|entry| entry.saved.pool == Some(pool) && !fits);
            let older = of_pool.map(|entry| {
                (entry.saved.losses, entry.saved.older) = (losses, true);
                entry.saved.name.clone()
            });
            (before, older.collect::<Vec<String>>())
        };
        self.save().map_err(|error| {
            let mut tables = self.write();
            match before {
                Some(before) => tables.pool_sessions.insert(pool, before),
                None => tables.pool_sessions.remove(&pool),
            };
            not_noted(found.name.as_ref(), error)
        })?;
        for replica in older {
            let message = format!(
                "what pool {} has of replica {replica} is an older copy of itself, or was used by another daemon: it is filled anew before it counts",
                found.name
            );
            self.events().error("replica_older", message, &[("replica", &replica), ("pool", found.name.as_ref())]);
        }
        Ok(())
    }

    /// Notes, before the tables of a pool are changed, which session its labels bear now, and under which boot it is opened. `lost`: what was
    /// acknowledged and not flushed may be gone, which to the controllers of its replicas is as a restart of the machine.
    ///
    /// # Errors
    /// That cannot be kept, and the pool has replicas: the tables must not be changed, as nobody could tell the next time.
    pub(super) fn note_session(
        &self,
        pool: Uuid,
        label: &PoolLabel,
        boot: Uuid,
        lost: bool,
    ) -> Result<(), ErrorDetail> {
        let losses = random_uuid()?;
        let before = {
            let mut tables = self.write();
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
        self.save().map_err(|error| {
            let mut tables = self.write();
            let (session, boot) = before;
            // What it is to be compared with the next time.
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

    /// Notes that a pool was closed in order, and its labels say so.
    pub(super) fn note_closed(&self, pool: Uuid) {
        {
            let mut tables = self.write();
            tables.pool_boots.remove(&pool);
            if let Some(session) = tables.pool_sessions.get_mut(&pool) {
                session.closed = true;
            }
        }
        // Where that fails it is as if the daemon had died just now.
        self.save_or_warn();
    }
}

fn not_noted(pool: &str, error: ErrorDetail) -> ErrorDetail {
    let remedy = format!("{}; then: braid array assemble", error.remedy);
    let message = format!(
        "pool {pool} keeps replicas, and is opened only when that can be noted, so that an older copy of it is known: {}",
        error.message
    );
    ErrorDetail { message, ..error }.with("pool", pool).remedy(remedy)
}
