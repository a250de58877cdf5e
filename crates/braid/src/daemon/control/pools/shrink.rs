//! A volume becomes smaller, while it is used.
//!
//! Order: its device is published with the new size, and what had begun before ends, so that nobody writes beyond the new end any more; what
//! is there is discarded, if that was asked for; then the size changes, durably, and only if nothing is there. Cut off before that, the
//! volume has its old size at the next start, and less beyond the new one. Whatever fails before it gives clients the old size back.

use super::super::Control;
use super::exported::AtHome;
use super::volumes::{Located, Told, told};
use super::{Reach, ServedVolume};
use braid_api::{ErrorDetail, Kind};
use braid_engine::PoolNext;
use braid_engine::pool::{AdminError, BLOCK_BYTES, DiscardOutcome, Pool, VolumeId};
use braid_geometry::units::format_size;
use std::time::{Duration, Instant};

/// Discards of one slice: others wait for it.
const SLICE: u32 = 16;
/// Between two tries where a job copies what is to be discarded, and the longest wait for it.
const HELD: Duration = Duration::from_millis(10);
const HELD_MAX: Duration = Duration::from_secs(30);

/// How far discarding is.
enum Swept {
    All,
    /// A job holds what comes next.
    Held,
    /// No record is free that could say that what comes next reads as zeros.
    Full,
}

/// Why it stays as large as it is.
enum Stays {
    /// Nothing has changed at its home.
    AsItWas(ErrorDetail),
    /// That is not known: it may be smaller already.
    Unknown(ErrorDetail),
}

impl Control {
    /// Makes a volume smaller. The caller has the pool's lock.
    ///
    /// # Errors
    /// It has data beyond its new end, and `force` is not set; a disk hangs.
    pub(super) async fn shrink_volume(&self, what: &Located, size_bytes: u64, force: bool) -> Result<(), ErrorDetail> {
        let pool = &what.pool;
        self.refuse_releasing(pool, what.uuid)?;
        let known = |entry: &super::PoolEntry| entry.served()?.volumes.get(&what.uuid).cloned();
        let known: Option<ServedVolume> = self.read().pools.get(&pool.uuid).and_then(known);
        let at_home = self.served_at_home(pool, what.uuid).await?;
        let done = self.shrink_at_home(what, &at_home, known.as_ref(), size_bytes, force).await;
        if known.is_none() {
            self.leave_volume(pool, at_home.id).await;
        }
        done
    }

    async fn shrink_at_home(
        &self,
        what: &Located,
        at_home: &AtHome,
        known: Option<&ServedVolume>,
        size_bytes: u64,
        force: bool,
    ) -> Result<(), ErrorDetail> {
        let (pool, id) = (&what.pool, at_home.id);
        if !force {
            // Seen before clients are disturbed.
            let has = move |pool: &mut Pool| (PoolNext::Done, pool.has_blocks_from(id, size_bytes / BLOCK_BYTES));
            if self.call(pool, has).await? {
                return Err(has_data(what, size_bytes));
            }
        }
        let Some(known) = known else {
            return self.shrink_quiet(what, id, size_bytes, force).await.map_err(Stays::into_detail);
        };
        let smaller = at_home.with_size(size_bytes);
        let done = match self.publish_size(pool, known.device, &smaller).await? {
            (layout, true) => self.shrink_quiet(what, id, size_bytes, force).await.map(|()| layout),
            (_, false) => Err(Stays::AsItWas(
                ErrorDetail::new(Kind::TimedOut, format!("a disk of pool {} hangs with requests to it", pool.name))
                    .with("volume", &what.name)
                    .remedy("try again when the disk answers; look at the kernel's log (dmesg)"),
            )),
        };
        match done {
            Ok(layout) => {
                self.tell_size(pool, what.uuid, known.clone(), layout);
                Ok(())
            }
            Err(Stays::AsItWas(error)) => {
                let (layout, _) = self.publish_size(pool, known.device, at_home).await?;
                self.tell_size(pool, what.uuid, known.clone(), layout);
                Err(error)
            }
            // Beyond the new end there may be no map any more: nobody is to ask for that.
            Err(Stays::Unknown(error)) => Err(error),
        }
    }

    /// Nobody has anything under way beyond the new end, nor begins it.
    async fn shrink_quiet(&self, what: &Located, id: VolumeId, size_bytes: u64, force: bool) -> Result<(), Stays> {
        let pool = &what.pool;
        if force {
            self.discard_beyond(what, id, size_bytes / BLOCK_BYTES).await.map_err(Stays::AsItWas)?;
        }
        let done = self.call(pool, move |pool| told(pool.shrink(id, size_bytes).map_err(Told::Admin))).await;
        match done.map_err(Stays::Unknown)? {
            Ok(()) => Ok(()),
            Err(Told::Admin(AdminError::DataBeyond)) => Err(Stays::AsItWas(has_data(what, size_bytes))),
            Err(told) => Err(Stays::AsItWas(told.into_detail(pool, &what.name))),
        }
    }

    async fn discard_beyond(&self, what: &Located, id: VolumeId, block: u64) -> Result<(), ErrorDetail> {
        let (mut at, mut held_since) = (block, None);
        loop {
            let slice = move |pool: &mut Pool| sweep(pool, id, &mut at);
            let (swept, reached) =
                self.call(&what.pool, slice).await?.map_err(|error| of(error, &what.pool, &what.name))?;
            if reached != at {
                held_since = None;
            }
            at = reached;
            match swept {
                Swept::All => return Ok(()),
                Swept::Full => {
                    let message = format!(
                        "pool {} has no record left that could say that the end of volume {} reads as zeros; some of it was discarded, its size stays",
                        what.pool.name, what.name
                    );
                    return Err(ErrorDetail::new(Kind::NoSpace, message)
                        .with("volume", &what.name)
                        .remedy("delete snapshots of it that nobody needs, or let it stay as large as it is"));
                }
                Swept::Held => {
                    let since: Instant = *held_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > HELD_MAX {
                        let message = format!(
                            "the end of volume {} is being moved to other members, and a disk hangs; some of it may be discarded, its size stays",
                            what.name
                        );
                        return Err(ErrorDetail::new(Kind::TimedOut, message)
                            .with("volume", &what.name)
                            .remedy("try again when the disk answers; look at the kernel's log (dmesg)"));
                    }
                    tokio::time::sleep(HELD).await;
                }
            }
        }
    }
}

/// Discards some of what lies from `at` on, and says how far it is.
fn sweep(pool: &mut Pool, id: VolumeId, at: &mut u64) -> (PoolNext, Result<(Swept, u64), AdminError>) {
    for _ in 0..SLICE {
        match pool.discard_from(id, *at) {
            Err(error) => return (PoolNext::Done, Err(error)),
            Ok(None) => return (PoolNext::Done, Ok((Swept::All, *at))),
            Ok(Some((from, DiscardOutcome::Done(blocks)))) => *at = from + blocks,
            Ok(Some((_, DiscardOutcome::Full(_)))) => return (PoolNext::Done, Ok((Swept::Full, *at))),
            Ok(Some((_, DiscardOutcome::LogFull))) => return (PoolNext::Again, Err(AdminError::LogFull)),
            Ok(Some((_, DiscardOutcome::Held))) => return (PoolNext::Done, Ok((Swept::Held, *at))),
        }
    }
    (PoolNext::GoOn, Err(AdminError::LogFull))
}

fn of(error: AdminError, pool: &Reach, what: &str) -> ErrorDetail {
    Told::Admin(error).into_detail(pool, what)
}

impl Stays {
    fn into_detail(self) -> ErrorDetail {
        match self {
            Stays::AsItWas(error) | Stays::Unknown(error) => error,
        }
    }
}

fn has_data(what: &Located, size_bytes: u64) -> ErrorDetail {
    let message = format!("volume {} has data beyond {}", what.name, format_size(size_bytes));
    ErrorDetail::new(Kind::WouldDestroy, message).with("volume", &what.name).remedy(
        "make what is in it smaller first (its file system, for example), or add --force: what lies beyond is lost; its snapshots keep what they have",
    )
}
