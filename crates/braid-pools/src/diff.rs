//! Differences between volumes and snapshots: for the API, and for NBD clients (`braid:diff:SNAPSHOT`).

use crate::PoolManager;
use crate::errors::{not_found, of_admin};
use crate::locate::Located;
use crate::names::name_in_pool;
use braid_api::names::{VolumeName, is_uuid};
use braid_api::{ChangedRange, ErrorDetail, Kind, SnapshotDiff};
use braid_engine::PoolNext;
use braid_engine::pool::{AdminError, BLOCK_BYTES, Changed, ChangedRun, Difference, EXTENT_BYTES, Pool, Walk};
use braid_export::extents::difference;
use braid_export::{Allocation, DifferenceState};
use braid_format::pool::OwnerKind;
use braid_inventory::{KnownSnapshot, PoolHandle};
use braid_ring::KnownZeros;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use uuid::Uuid;

/// Maximum number of changed ranges in one reply.
const RANGES_MAX: usize = 65_536;

/// Maximum number of differences that clients hold at a time, in the whole daemon: each takes 24 bytes for each extent
/// that differs.
const DIFFERENCES_MAX: usize = 64;

/// Maximum number of attempts at a walk during which more blocks moved than can be recorded.
const TRIES: u32 = 3;

/// Differs from the snapshot, and reads as zeros now.
const ZEROED: u32 = difference::CHANGED | difference::ZERO;

/// Number of differences that clients hold.
static DIFFERENCES: AtomicUsize = AtomicUsize::new(0);

/// A difference, with the size and the names of what was compared.
struct DifferenceReply {
    changed: Changed,
    size_bytes: u64,
    names: [String; 2],
}

impl PoolManager {
    /// Returns the differences of a volume or snapshot from a snapshot, from an offset on. Without `to`, of the
    /// snapshot's volume as it is now.
    ///
    /// # Errors
    /// One of them does not exist; they are in different pools, or have no common ancestor.
    pub async fn diff(&self, from: &str, to: Option<&str>, offset_bytes: u64) -> Result<SnapshotDiff, ErrorDetail> {
        let from = self.locate(from, OwnerKind::Snapshot).await?;
        let to = match to {
            Some(text) => self.locate_any(text, &from).await?,
            None => {
                let volume = from.name.rsplit_once('@').map_or("", |(volume, _)| volume);
                self.locate(volume, OwnerKind::Volume).await?
            }
        };
        if to.pool.uuid != from.pool.uuid {
            let message = format!("{} and {} are in different pools, and have nothing in common", from.name, to.name);
            return Err(ErrorDetail::new(Kind::InvalidArgument, message).remedy("name two of one pool"));
        }
        let first = offset_bytes / BLOCK_BYTES;
        let reply = self.difference(&from.pool, from.uuid, to.uuid, first, RANGES_MAX).await?;
        let (mut ranges, mut next, mut bytes) = (Vec::new(), None, 0);
        reply.changed.runs(first, &mut |run: ChangedRun| {
            let offset = run.block * BLOCK_BYTES;
            let end = ((run.block + run.blocks) * BLOCK_BYTES).min(reply.size_bytes);
            if offset >= end {
                return false;
            }
            if ranges.len() == RANGES_MAX {
                next = Some(offset);
                return false;
            }
            bytes += end - offset;
            ranges.push(ChangedRange { offset_bytes: offset, length_bytes: end - offset, zeros: run.zeros });
            true
        });
        let [from, to] = reply.names.map(|name| format!("{}/{name}", from.pool.name));
        Ok(SnapshotDiff {
            from,
            to,
            size_bytes: reply.size_bytes,
            changed_bytes: bytes,
            ranges,
            next_offset_bytes: next,
        })
    }

    /// Returns a volume or snapshot named `tank/db`, `tank/db@monday`, `@monday` or by a UUID.
    async fn locate_any(&self, text: &str, beside: &Located) -> Result<Located, ErrorDetail> {
        if let Some(own) = text.strip_prefix('@') {
            let volume = beside.name.rsplit_once('@').map_or("", |(volume, _)| volume);
            return self.locate(&format!("{volume}@{own}"), OwnerKind::Snapshot).await;
        }
        let is_snapshot = VolumeName::parse(text).is_some_and(|name| name.snapshot.is_some());
        let kind = if is_snapshot { OwnerKind::Snapshot } else { OwnerKind::Volume };
        match self.locate(text, kind).await {
            Err(error) if error.kind == Kind::NotFound && is_uuid(text) => self.locate(text, OwnerKind::Snapshot).await,
            located => located,
        }
    }

    /// Returns the differences from a block on; may stop after `enough` ranges. Meanwhile no snapshots are taken or
    /// deleted, and nothing is merged.
    async fn difference(
        &self,
        pool: &PoolHandle,
        from: Uuid,
        to: Uuid,
        first_block: u64,
        enough: usize,
    ) -> Result<DifferenceReply, ErrorDetail> {
        let _one_at_a_time = pool.work.lock().await;
        let maintenance =
            self.inventory.read().pools.get(&pool.uuid).and_then(|entry| Some(entry.served()?.maintenance.clone()));
        let _merge_hold = maintenance.as_ref().map(braid_inventory::Maintenance::hold);
        let begin = move |pool: &mut Pool| (PoolNext::Done, begin(pool, from, to));
        let (between, names, size_bytes) = self.call(pool, begin).await?.map_err(|missing| match missing {
            DifferenceError::Doubt(error, name) => of_admin(error, pool, &name),
            DifferenceError::Owner(uuid) => not_found(&uuid.to_string(), OwnerKind::Snapshot),
            DifferenceError::Ancestor([from, to]) => ErrorDetail::new(
                Kind::InvalidArgument,
                format!("{from} and {to} have nothing in common: neither goes back to what the other one was"),
            )
            .with("pool", &pool.name)
            .remedy("name two snapshots of one volume, or of a volume and its clone"),
        })?;
        let (mut changed, owners) = (Changed::default(), between.owners());
        let end = size_bytes.div_ceil(EXTENT_BYTES);
        let mut windows = Windows::new((first_block * BLOCK_BYTES / EXTENT_BYTES).min(end), end);
        while let Some(window) = windows.next().filter(|_| !owners.is_empty()) {
            let of = owners.clone();
            self.call(pool, move |pool| (PoolNext::Done, pool.watch(of.clone()))).await?;
            let walked = self.walk(pool, Walk::new(window, owners.clone()), windows.can_narrow(), &mut 0).await;
            let watch = self.call(pool, |pool| (PoolNext::Done, pool.end_watch())).await?;
            let Some(mut walk) = walked? else {
                windows.narrow();
                continue;
            };
            if !watch.is_some_and(|watch| watch.add_to(&mut walk)) {
                if windows.may_retry() {
                    continue;
                }
                let message = format!("pool {} changes faster than it can be looked at", pool.name);
                return Err(ErrorDetail::new(Kind::InUse, message).remedy("try again later"));
            }
            tokio::task::block_in_place(|| {
                walk.sort();
                changed.append(between.changed(&walk));
            });
            windows.complete();
            let mut runs = 0;
            changed.runs(first_block, &mut |_| {
                runs += 1;
                runs <= enough
            });
            if runs > enough {
                break;
            }
        }
        Ok(DifferenceReply { changed, size_bytes, names })
    }
}

/// The windows of extents that a difference is computed in, one walk after the other.
struct Windows {
    start: u64,
    end: u64,
    len: u64,
    /// Failed attempts at this window.
    tries: u32,
}

impl Windows {
    /// Returns one window from `start` to `end`.
    fn new(start: u64, end: u64) -> Windows {
        Windows { start, end, len: (end - start).max(1), tries: 0 }
    }

    /// Returns the window to be walked; [`None`] after the last one.
    fn next(&self) -> Option<Range<u64>> {
        (self.start < self.end).then(|| self.start..(self.start + self.len).min(self.end))
    }

    /// Returns whether the window has more than one extent.
    fn can_narrow(&self) -> bool {
        self.len > 1
    }

    /// Halves the window: it has more definitions than one walk may return.
    fn narrow(&mut self) {
        self.len = (self.len / 2).max(1);
    }

    /// Counts an attempt during which more blocks moved than can be recorded. Returns whether the window may be walked
    /// again.
    fn may_retry(&mut self) -> bool {
        self.tries += 1;
        self.tries < TRIES
    }

    /// Goes on to the next window, with all its attempts.
    fn complete(&mut self) {
        (self.start, self.tries) = (self.start + self.len, 0);
    }
}

enum DifferenceError {
    Owner(Uuid),
    /// Records of one of them, or of an ancestor, may be missing.
    Doubt(AdminError, String),
    Ancestor([String; 2]),
}

fn begin(pool: &mut Pool, from: Uuid, to: Uuid) -> Result<(Difference, [String; 2], u64), DifferenceError> {
    let state = pool.state();
    let named = |uuid: Uuid| {
        let found = state.owners.iter().find(|owner| owner.uuid == uuid && !owner.name.is_empty());
        found.ok_or(DifferenceError::Owner(uuid))
    };
    let (one, other) = (named(from)?, named(to)?);
    let names = [name_in_pool(state, one), name_in_pool(state, other)];
    for (owner, name) in [one, other].into_iter().zip(&names) {
        pool.check_records_known(owner.id).map_err(|error| DifferenceError::Doubt(error, name.clone()))?;
    }
    match Difference::between(&state.owners, one.id, other.id) {
        Ok(between) => Ok((between, names, other.size_bytes)),
        Err(_) => Err(DifferenceError::Ancestor(names)),
    }
}

/// The snapshots that an exported volume or snapshot can be compared with.
pub(crate) struct VolumeDifferences {
    /// Computes the differences.
    pub(crate) manager: Weak<PoolManager>,
    /// The runtime of that computation.
    pub(crate) runtime: tokio::runtime::Handle,
    /// The pool.
    pub(crate) pool: Uuid,
    /// The volume or snapshot.
    pub(crate) of: Uuid,
    /// The volume itself, or the snapshot's volume.
    pub(crate) volume: Uuid,
    /// It is a snapshot: its differences are constant, and connections may share one reply.
    pub(crate) is_snapshot: bool,
    /// The ranges that read as zeros now.
    pub(crate) zeros: KnownZeros,
    /// Differences that clients hold.
    pub(crate) known: Mutex<Vec<(Uuid, Weak<DifferenceRequest>)>>,
}

/// A difference that a client has requested.
pub(crate) struct DifferenceRequest {
    found: OnceLock<Option<Changed>>,
    /// Of a volume, which may be written: the ranges that read as zeros at the time of a client's query.
    now: Option<KnownZeros>,
}

impl DifferenceRequest {
    /// Returns a new request; [`None`] if there are too many.
    fn new(now: Option<KnownZeros>) -> Option<DifferenceRequest> {
        let more = |count: usize| (count < DIFFERENCES_MAX).then_some(count + 1);
        DIFFERENCES.try_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(DifferenceRequest { found: OnceLock::new(), now })
    }
}

impl Drop for DifferenceRequest {
    fn drop(&mut self) {
        DIFFERENCES.fetch_sub(1, Ordering::Relaxed);
    }
}

impl VolumeDifferences {
    fn snapshots(&self) -> Vec<KnownSnapshot> {
        let Some(manager) = self.manager.upgrade() else { return Vec::new() };
        let tables = manager.inventory.read();
        let known = tables
            .pools
            .get(&self.pool)
            .and_then(braid_inventory::PoolEntry::served)
            .map(|served| served.snapshots.clone());
        known.unwrap_or_default()
    }
}

impl braid_export::Differences for VolumeDifferences {
    fn names(&self) -> Vec<String> {
        let own = |known: &KnownSnapshot| known.volume.0 == self.volume && known.uuid != self.of;
        self.snapshots().into_iter().filter(own).map(|known| known.name).collect()
    }

    fn begin(&self, name: &str) -> Option<Arc<dyn braid_export::Difference>> {
        // A snapshot of this volume, or of another one: VOLUME@SNAPSHOT.
        let is = |known: &KnownSnapshot| match name.split_once('@') {
            Some((volume, own)) => known.volume.1 == volume && known.name == own,
            None => known.volume.0 == self.volume && known.name == name,
        };
        let from = self.snapshots().into_iter().find(is)?.uuid;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, request)| request.strong_count() > 0);
        if let Some(request) =
            known.iter().find(|(of, _)| *of == from && self.is_snapshot).and_then(|(_, a)| a.upgrade())
        {
            return Some(request);
        }
        let now = (!self.is_snapshot).then(|| self.zeros.clone());
        let request = Arc::new(DifferenceRequest::new(now)?);
        known.push((from, Arc::downgrade(&request)));
        let (manager, pool, of, into) = (Weak::clone(&self.manager), self.pool, self.of, Arc::clone(&request));
        self.runtime.spawn(async move {
            let found = match manager.upgrade() {
                Some(manager) => match manager.serving_pool(&pool.to_string()) {
                    Ok(pool) => manager.difference(&pool, from, of, 0, usize::MAX).await,
                    Err(error) => Err(error),
                },
                None => Err(ErrorDetail::new(Kind::Internal, "the daemon ends")),
            };
            let found = found.inspect_err(|error| tracing::warn!("a difference cannot be told: {}", error.message));
            let _ = into.found.set(found.ok().map(|reply| reply.changed));
        });
        Some(request)
    }
}

impl braid_export::Difference for DifferenceRequest {
    fn state(&self) -> DifferenceState<'_> {
        match self.found.get() {
            None => DifferenceState::Pending,
            Some(None) => DifferenceState::Failed,
            Some(Some(_)) => DifferenceState::Known(self),
        }
    }
}

impl Allocation for DifferenceRequest {
    fn extents(&self, offset: u64, len: u64, extent: &mut dyn FnMut(u64, u32) -> bool) {
        let Some(Some(changed)) = self.found.get() else { return };
        let (mut at, end) = (offset, offset + len);
        let mut wanted = true;
        changed.runs(offset / BLOCK_BYTES, &mut |run| {
            let (start, until) = (run.block * BLOCK_BYTES, (run.block + run.blocks) * BLOCK_BYTES);
            if start >= end {
                return false;
            }
            if start > at {
                wanted = extent(start - at, 0);
                at = start;
            }
            let (state, until) = (|zeros| if zeros { ZEROED } else { difference::CHANGED }, until.min(end));
            if let Some(now) = self.now.as_ref().filter(|_| run.zeros && wanted && until > at) {
                // What read as zeros when the difference was computed may have been written since.
                now.extents(at, until - at, &mut |len, is_zero| {
                    let len = len.min(until - at);
                    wanted = extent(len, state(is_zero));
                    at += len;
                    wanted && at < until
                });
            }
            if wanted && until > at {
                wanted = extent(until - at, state(run.zeros && self.now.is_none()));
                at = until;
            }
            wanted && at < end
        });
        if wanted && at < end {
            extent(end - at, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_window_has_all_its_attempts() {
        let (mut windows, mut walked) = (Windows::new(3, 100), Vec::new());
        assert!(windows.can_narrow());
        windows.narrow();
        windows.narrow();
        while let Some(window) = windows.next() {
            // A busy pool: each window succeeds at the last attempt only.
            for _ in 1..TRIES {
                assert!(windows.may_retry(), "{window:?} after {walked:?}");
                assert_eq!(windows.next(), Some(window.clone()));
            }
            windows.complete();
            walked.push(window);
        }
        assert_eq!(walked, [3..27, 27..51, 51..75, 75..99, 99..100]);
    }

    #[test]
    fn a_window_has_no_more_attempts_than_that() {
        let mut windows = Windows::new(0, 2);
        windows.narrow();
        assert_eq!((windows.next(), windows.can_narrow()), (Some(0..1), false));
        let retried = (0..10).take_while(|_| windows.may_retry()).count();
        assert_eq!(retried + 1, TRIES as usize);
        assert_eq!(Windows::new(2, 2).next(), None);
    }
}
