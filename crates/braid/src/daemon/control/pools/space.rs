//! How much space what has: counted again for whoever asks.
//!
//! All records of the pool are looked at for that, in steps between which its home serves others; what is known of them is put together
//! here, a range of logical extents after the other, so that memory for it stays bounded however large the pool is.

use super::super::Control;
use super::Reach;
use super::view::Listed;
use braid_api::ErrorDetail;
use braid_engine::PoolNext;
use braid_engine::pool::{Accounts, EXTENT_BYTES, Pool, Walk};
use braid_format::pool::Owner;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Looks of one step at memory, and about how long that takes.
const STEP_LOADS: u32 = 5_000;
const STEP: Duration = Duration::from_micros(50);
/// Statements that are kept at a time: 48 MB.
const STATEMENTS_MAX: usize = 2 << 20;
/// An answer is given again for so many times as long as the home was busy with it: counting never takes more than a tenth of its time.
const AGAIN: u32 = 10;

/// What was counted last.
pub struct Counted {
    at: Instant,
    took: Duration,
    accounts: Arc<Accounts>,
}

impl Control {
    /// What the home says of all volumes and snapshots, and how much space each of them has.
    pub(super) async fn list_counted(&self, pool: &Reach) -> Result<Listed, ErrorDetail> {
        let accounts = self.accounts(pool).await?;
        let mut listed = self.list_pool(pool).await?;
        listed.accounts = Some(accounts);
        Ok(listed)
    }

    async fn accounts(&self, pool: &Reach) -> Result<Arc<Accounts>, ErrorDetail> {
        let mut last = pool.counted.lock().await;
        if let Some(last) = last.as_ref().filter(|last| last.at.elapsed() < last.took * AGAIN) {
            return Ok(Arc::clone(&last.accounts));
        }
        let mut steps = 0;
        let accounts = Arc::new(self.count(pool, &mut steps).await?);
        *last = Some(Counted { at: Instant::now(), took: STEP * steps, accounts: Arc::clone(&accounts) });
        Ok(accounts)
    }

    async fn count(&self, pool: &Reach, steps: &mut u32) -> Result<Accounts, ErrorDetail> {
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

    /// Goes a whole way through a pool's records. `None`: there is more in the window than can be kept, and it may be smaller.
    pub(super) async fn walk(
        &self,
        pool: &Reach,
        mut walk: Walk,
        narrows: bool,
        steps: &mut u32,
    ) -> Result<Option<Walk>, ErrorDetail> {
        let mut all = Vec::new();
        loop {
            *steps += 1;
            let ended;
            (walk, ended) = self.walk_step(pool, walk).await?;
            // Here, as memory for more of them takes time.
            all.append(&mut walk.definitions);
            if narrows && all.len() > STATEMENTS_MAX {
                return Ok(None);
            }
            if ended {
                walk.definitions = all;
                return Ok(Some(walk));
            }
        }
    }

    /// One step of it at the pool's home. True: it has ended.
    async fn walk_step(&self, pool: &Reach, walk: Walk) -> Result<(Walk, bool), ErrorDetail> {
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
