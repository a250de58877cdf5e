//! Space accounting for volumes and snapshots, computed on request.
//!
//! A walk over all records of the pool runs in steps, between which the pool's home serves other requests. The results
//! are combined here, for one range of logical extents after the other, so that memory stays bounded however large the
//! pool is.

use crate::PoolManager;
use crate::listing::PoolListing;
use braid_api::ErrorDetail;
use braid_engine::PoolNext;
use braid_engine::pool::{Accounts, EXTENT_BYTES, Pool, Walk};
use braid_format::pool::Owner;
use braid_inventory::{Counted, PoolHandle};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory loads in one step, and the approximate duration of a step.
const STEP_LOADS: u32 = 5_000;

const STEP: Duration = Duration::from_micros(50);

/// Maximum number of definitions that are kept at a time: 48 MB.
const DEFINITIONS_MAX: usize = 2 << 20;

/// A result is reused for this many times the time that it kept the home busy: so accounting takes at most a tenth of
/// the home's time.
const REUSE_TIMES: u32 = 10;

impl PoolManager {
    /// Returns all volumes and snapshots with the space that each of them takes.
    pub(crate) async fn list_counted(&self, pool: &PoolHandle) -> Result<PoolListing, ErrorDetail> {
        let accounts = self.accounts(pool).await?;
        let mut listed = self.list_pool(pool).await?;
        listed.accounts = Some(accounts);
        Ok(listed)
    }

    async fn accounts(&self, pool: &PoolHandle) -> Result<Arc<Accounts>, ErrorDetail> {
        let mut last = pool.counted.lock().await;
        if let Some(last) = last.as_ref().filter(|last| last.at.elapsed() < last.took * REUSE_TIMES) {
            return Ok(Arc::clone(&last.accounts));
        }
        let mut steps = 0;
        let accounts = Arc::new(self.count(pool, &mut steps).await?);
        *last = Some(Counted { at: Instant::now(), took: STEP * steps, accounts: Arc::clone(&accounts) });
        Ok(accounts)
    }

    async fn count(&self, pool: &PoolHandle, steps: &mut u32) -> Result<Accounts, ErrorDetail> {
        let owners = |pool: &mut Pool| (PoolNext::Done, pool.state().owners.iter().cloned().collect::<Vec<Owner>>());
        let owners = self.call(pool, owners).await?;
        let end = owners.iter().map(|owner| owner.size_bytes.div_ceil(EXTENT_BYTES)).max().unwrap_or(0).max(1);
        let mut accounts = Accounts::new(&owners);
        let (mut start, mut len) = (0, end);
        while start < end {
            let walk = Walk::new(start..(start + len).min(end), Vec::new());
            let Some(mut walk) = self.walk(pool, walk, len > 1, steps).await? else {
                len = (len / 2).max(1);
                continue;
            };
            start += len;
            tokio::task::block_in_place(|| {
                walk.sort();
                accounts.add(&walk);
            });
        }
        Ok(accounts)
    }

    /// Walks over all of a pool's records. [`None`]: the window contains more than can be kept, and may be made
    /// smaller.
    pub(crate) async fn walk(
        &self,
        pool: &PoolHandle,
        mut walk: Walk,
        narrows: bool,
        steps: &mut u32,
    ) -> Result<Option<Walk>, ErrorDetail> {
        let mut all = Vec::new();
        loop {
            *steps += 1;
            let ended;
            (walk, ended) = self.walk_step(pool, walk).await?;
            // Here and not at the home, as allocating memory for them takes time.
            all.append(&mut walk.definitions);
            if narrows && all.len() > DEFINITIONS_MAX {
                return Ok(None);
            }
            if ended {
                walk.definitions = all;
                return Ok(Some(walk));
            }
        }
    }

    /// Runs one step of a walk at the pool's home. Returns true when the walk has ended.
    async fn walk_step(&self, pool: &PoolHandle, walk: Walk) -> Result<(Walk, bool), ErrorDetail> {
        let mut walk = Some(walk);
        let step = move |pool: &mut Pool| {
            let taken = walk.take().map(|mut walk| {
                let ended = walk.step(pool.state(), STEP_LOADS);
                (walk, ended)
            });
            (PoolNext::Done, taken)
        };
        let stepped = self.call(pool, step).await?;
        Ok(stepped.expect("a call that does not ask for more is made once"))
    }
}
