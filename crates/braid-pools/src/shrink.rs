//! Shrinks a volume while it is used.
//!
//! Order: the volume's device is published with the new size, and requests that began before complete, so that nothing
//! is written beyond the new end any more. The data there are discarded, if that was requested. Then the size changes,
//! durably, and only if there are no data beyond the new end. If this is interrupted, the volume has its old size at
//! the next start, and fewer data beyond the new end. On a failure before the size changes, clients get the old size
//! back. If it is not known whether the size has changed, they keep the new one: the map beyond it may be gone.

use crate::PoolManager;
use crate::errors::{VolumeError, reply_when_durable};
use crate::exported::HomeVolume;
use crate::locate::Located;
use braid_api::{ErrorDetail, Kind};
use braid_engine::PoolNext;
use braid_engine::pool::{AdminError, BLOCK_BYTES, DiscardOutcome, Pool, VolumeId};
use braid_geometry::units::format_size;
use braid_inventory::{PoolHandle, ServedVolume};
use std::time::{Duration, Instant};

/// Discards in one slice: other requests wait for it.
const SLICE_DISCARDS: u32 = 16;

/// Interval between attempts while a job copies blocks that are to be discarded, and the maximum time to wait for the
/// job.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

const JOB_WAIT_MAX: Duration = Duration::from_secs(30);

/// The progress of discarding.
enum DiscardProgress {
    All,
    /// A job holds the next blocks.
    Held,
    /// No record is free to say that the next blocks read as zeros.
    Full,
}

/// Why the size did not change.
enum ShrinkError {
    /// Nothing has changed at the pool's home.
    Unchanged(ErrorDetail),
    /// Not known: the volume may be smaller already.
    Unknown(ErrorDetail),
}

impl PoolManager {
    /// Shrinks a volume. The caller has the pool's lock.
    ///
    /// # Errors
    /// It has data beyond its new end, and `force` is not set; a disk hangs.
    pub(crate) async fn shrink_volume(&self, what: &Located, size_bytes: u64, force: bool) -> Result<(), ErrorDetail> {
        let pool = &what.pool;
        self.refuse_releasing(pool, what.uuid)?;
        let known = |entry: &braid_inventory::PoolEntry| entry.served()?.volumes.get(&what.uuid).cloned();
        let known: Option<ServedVolume> = self.inventory.read().pools.get(&pool.uuid).and_then(known);
        let at_home = self.served_at_home(pool, what.uuid).await?;
        let done = self.shrink_at_home(what, &at_home, known.as_ref(), size_bytes, force).await;
        if known.is_none() {
            self.stop_serving_at_home(pool, at_home.id).await;
        }
        done
    }

    async fn shrink_at_home(
        &self,
        what: &Located,
        at_home: &HomeVolume,
        known: Option<&ServedVolume>,
        size_bytes: u64,
        force: bool,
    ) -> Result<(), ErrorDetail> {
        let (pool, id) = (&what.pool, at_home.id);
        if !force {
            // Checked before clients are disturbed.
            let has = move |pool: &mut Pool| (PoolNext::Done, pool.has_blocks_from(id, size_bytes / BLOCK_BYTES));
            if self.call(pool, has).await? {
                return Err(has_data(what, size_bytes));
            }
        }
        let Some(known) = known else {
            return self.shrink_drained(what, id, size_bytes, force).await.map_err(ShrinkError::into_detail);
        };
        let smaller = at_home.with_size(size_bytes);
        let done = match self.publish_size(pool, known.device, &smaller).await? {
            (layout, true) => self.shrink_drained(what, id, size_bytes, force).await.map(|()| layout),
            (_, false) => Err(ShrinkError::Unchanged(
                ErrorDetail::new(Kind::TimedOut, format!("a disk of pool {} hangs with requests to it", pool.name))
                    .with("volume", &what.name)
                    .remedy("try again when the disk answers; look at the kernel's log (dmesg)"),
            )),
        };
        match done {
            Ok(layout) => {
                self.record_size(pool, what.uuid, known.clone(), layout);
                Ok(())
            }
            Err(ShrinkError::Unchanged(error)) => {
                let (layout, _) = self.publish_size(pool, known.device, at_home).await?;
                self.record_size(pool, what.uuid, known.clone(), layout);
                Err(error)
            }
            // The map beyond the new end may be gone: no request may access it.
            Err(ShrinkError::Unknown(error)) => Err(error),
        }
    }

    /// Shrinks a volume at its home. No request is in flight beyond the new end, and none can begin.
    async fn shrink_drained(
        &self,
        what: &Located,
        id: VolumeId,
        size_bytes: u64,
        force: bool,
    ) -> Result<(), ShrinkError> {
        let pool = &what.pool;
        if force {
            self.discard_beyond(what, id, size_bytes / BLOCK_BYTES).await.map_err(ShrinkError::Unchanged)?;
        }
        let done = self
            .call(pool, move |pool| reply_when_durable(pool.shrink(id, size_bytes).map_err(VolumeError::Admin)))
            .await;
        match done.map_err(ShrinkError::Unknown)? {
            Ok(()) => Ok(()),
            Err(VolumeError::Admin(AdminError::DataBeyond)) => Err(ShrinkError::Unchanged(has_data(what, size_bytes))),
            Err(error) => Err(ShrinkError::Unchanged(error.into_detail(pool, &what.name))),
        }
    }

    async fn discard_beyond(&self, what: &Located, id: VolumeId, block: u64) -> Result<(), ErrorDetail> {
        let (mut at, mut held_since) = (block, None);
        loop {
            let slice = move |pool: &mut Pool| discard_some(pool, id, &mut at);
            let (progress, reached) =
                self.call(&what.pool, slice).await?.map_err(|error| of(error, &what.pool, &what.name))?;
            if reached != at {
                held_since = None;
            }
            at = reached;
            match progress {
                DiscardProgress::All => return Ok(()),
                DiscardProgress::Full => {
                    let message = format!(
                        "pool {} has no record left that could say that the end of volume {} reads as zeros; some of it was discarded, its size stays",
                        what.pool.name, what.name
                    );
                    return Err(ErrorDetail::new(Kind::NoSpace, message)
                        .with("volume", &what.name)
                        .remedy("delete snapshots of it that nobody needs, or let it stay as large as it is"));
                }
                DiscardProgress::Held => {
                    let since: Instant = *held_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > JOB_WAIT_MAX {
                        let message = format!(
                            "the end of volume {} is being moved to other members, and a disk hangs; some of it may be discarded, its size stays",
                            what.name
                        );
                        return Err(ErrorDetail::new(Kind::TimedOut, message)
                            .with("volume", &what.name)
                            .remedy("try again when the disk answers; look at the kernel's log (dmesg)"));
                    }
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
            }
        }
    }
}

/// Discards some of the blocks from `at` on; returns how far it got.
fn discard_some(pool: &mut Pool, id: VolumeId, at: &mut u64) -> (PoolNext, Result<(DiscardProgress, u64), AdminError>) {
    for _ in 0..SLICE_DISCARDS {
        match pool.discard_from(id, *at) {
            Err(error) => return (PoolNext::Done, Err(error)),
            Ok(None) => return (PoolNext::Done, Ok((DiscardProgress::All, *at))),
            Ok(Some((from, DiscardOutcome::Done(blocks)))) => *at = from + blocks,
            Ok(Some((_, DiscardOutcome::Full(_)))) => return (PoolNext::Done, Ok((DiscardProgress::Full, *at))),
            Ok(Some((_, DiscardOutcome::LogFull))) => return (PoolNext::AfterCommit, Err(AdminError::LogFull)),
            Ok(Some((_, DiscardOutcome::Held))) => return (PoolNext::Done, Ok((DiscardProgress::Held, *at))),
        }
    }
    (PoolNext::NextTurn, Err(AdminError::LogFull))
}

fn of(error: AdminError, pool: &PoolHandle, what: &str) -> ErrorDetail {
    VolumeError::Admin(error).into_detail(pool, what)
}

impl ShrinkError {
    fn into_detail(self) -> ErrorDetail {
        match self {
            ShrinkError::Unchanged(error) | ShrinkError::Unknown(error) => error,
        }
    }
}

fn has_data(what: &Located, size_bytes: u64) -> ErrorDetail {
    let message = format!("volume {} has data beyond {}", what.name, format_size(size_bytes));
    ErrorDetail::new(Kind::WouldDestroy, message).with("volume", &what.name).remedy(
        "make what is in it smaller first (its file system, for example), or add --force: what lies beyond is lost; its snapshots keep what they have",
    )
}
