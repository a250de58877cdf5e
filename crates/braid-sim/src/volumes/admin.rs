//! An administrator: opens the pool, performs random operations on its volumes, and closes it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use braid_engine::io::{DeviceIo, LeafId};
use braid_engine::pool::on_disk::Checkpoint;
use braid_engine::pool::{LogMemory, MergeStep, OpenPool, Pool, open};
use braid_engine::{EngineIo, PoolNext, Uuid};

use super::oracle::BLOCK;
use super::pool_check;
use super::shared_state::{ShardRequest, SharedState};
use crate::meta::Port;
use crate::pools::Shm;
use crate::rng::Rng;

/// The state of one administrator.
pub(super) struct Admin {
    pub port: Port,
    pub shared: Rc<RefCell<SharedState>>,
    pub leaves: BTreeMap<usize, LeafId>,
    pub shards: u16,
    pub rng: Rng,
    /// The last life: nothing fails, and everything is read and checked.
    pub last: bool,
}

impl Admin {
    /// Runs one life, from the start of the first member to the stop of the last.
    pub async fn run_life(mut self) {
        self.phase("starting");
        if !self.start_members().await || !self.open().await {
            return;
        }
        let reads = self.serve_all().await;
        if !self.last {
            self.work().await;
        }
        for reading in reads {
            self.until(|shared| shared.readings[&reading] == 0).await;
        }
        if (self.last || self.rng.below(3) == 0) && !self.has_failed().await {
            self.settle().await;
        }
        if self.last {
            self.end().await;
        }
        self.phase("stopping");
        self.close().await;
        self.stop_members().await;
    }

    pub fn phase(&self, phase: &'static str) {
        let mut shared = self.shared.borrow_mut();
        shared.phase = phase;
        shared.moments.push(phase);
        shared.notes.push(phase.to_owned());
    }

    pub fn count(&self, group: &str, kind: &str) {
        self.shared.borrow_mut().count(group, kind);
    }

    pub async fn until(&self, mut holds: impl FnMut(&SharedState) -> bool) {
        std::future::poll_fn(|_| if holds(&self.shared.borrow()) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Makes a call at the pool's home. `then` sees its result before anything else happens. Returns the result, and
    /// whether the call has ended without an error.
    pub async fn call<R: Clone + Send + 'static>(
        &self,
        mut call: impl FnMut(&mut Pool) -> (PoolNext, R) + Send + 'static,
        then: impl FnOnce(&mut SharedState, &R) + 'static,
    ) -> (R, bool) {
        let result: Arc<Mutex<Option<R>>> = Arc::default();
        let (into, of) = (Arc::clone(&result), Arc::clone(&result));
        let call = Box::new(move |pool: &mut Pool| {
            let (next, result) = call(pool);
            *into.lock().expect("one thread") = Some(result);
            next
        });
        let then = Box::new(move |shared: &mut SharedState| {
            let result = of.lock().expect("one thread").clone();
            then(shared, &result.expect("a call is made at once"));
        });
        let number = {
            let mut shared = self.shared.borrow_mut();
            let number = shared.new_number();
            shared.shard_requests.push(ShardRequest::Call(number, call, then));
            number
        };
        let ended = std::future::poll_fn(|_| match self.shared.borrow_mut().ended_calls.remove(&number) {
            Some(good) => Poll::Ready(good),
            None => Poll::Pending,
        });
        let good = ended.await;
        if !good && self.shared.borrow().parameters.starves && !self.last {
            self.count("lives", "calls without space");
        } else if !good {
            self.pool_fails("a call of the pool has failed");
        }
        let result = result.lock().expect("one thread").clone();
        (result.expect("a call is made at once"), good)
    }

    /// Handles a pool failure: the pool could not write its own data to a disk without redundancy.
    fn pool_fails(&self, why: &str) {
        if !self.shared.borrow().parameters.own_faults || self.last {
            self.report_violation(why.to_owned());
        }
        let before = std::mem::replace(&mut self.shared.borrow_mut().failed, true);
        if !before {
            self.count("lives", "pool failed");
        }
    }

    /// Makes a call that changes nothing that must be committed.
    pub async fn inspect_pool<R: Clone + Send + 'static>(
        &self,
        mut look: impl FnMut(&mut Pool) -> R + Send + 'static,
    ) -> R {
        self.call(move |pool| (PoolNext::Done, look(pool)), |_, _| {}).await.0
    }

    /// Opens the pool, and creates it if it does not exist. Returns `false` if it does not open.
    async fn open(&mut self) -> bool {
        let io = self.port.devices();
        let (members, made, uuid, owner_slots) = {
            let shared = self.shared.borrow();
            (shared.pool_devices(), shared.made, shared.uuid, shared.owner_slots)
        };
        if !made {
            self.phase("making the pool");
            for member in &members {
                let start = Checkpoint::first(&uuid, 1);
                let zeros = vec![0; member.layout.data as usize];
                let written = async {
                    io.write(member.device, 0, zeros, false).await?;
                    io.write(member.device, member.layout.starts, start.encode().to_vec(), false).await?;
                    io.flush(member.device).await
                };
                if let Err(error) = written.await {
                    return self.report_violation(format!("a member cannot be made ready: {error}"));
                }
            }
            self.shared.borrow_mut().made = true;
        }
        self.phase("opening the pool");
        let what = OpenPool {
            uuid,
            members: &members,
            owner_slots,
            missing: 0,
            overwrites_unreadable: false,
            run: self.rng.bits() | 1,
        };
        let old = |session: u64| {
            let mut shared = self.shared.borrow_mut();
            let memory = shared.shm.get(&session).map(|memory| Arc::clone(memory) as Arc<dyn LogMemory>);
            if drops_tails_early() {
                shared.shm.clear();
            }
            memory
        };
        let begin = |session: u64, bytes: u64| {
            let memory = Shm::new(bytes);
            self.shared.borrow_mut().shm.insert(session, Arc::clone(&memory));
            Ok(memory as Arc<dyn LogMemory>)
        };
        let pool = match open(&io, &what, old, begin).await {
            Ok(pool) => pool,
            Err(error) => {
                self.pool_fails(&format!("the pool does not open: {error}"));
                return false;
            }
        };
        self.count("lives", "pool opened");
        {
            let mut shared = self.shared.borrow_mut();
            // The pool is open, and the content of the older in-memory logs is committed: only now may these be freed.
            let newest = shared.shm.keys().last().copied();
            shared.shm.retain(|session, _| Some(*session) == newest);
            shared.home = self.rng.below(u64::from(self.shards)) as u16;
            let members = shared.pool_members();
            shared.shard_requests.push(ShardRequest::Serve(Box::new(pool), members));
        }
        self.phase("looking at the pool");
        let (owners, verified) = self.inspect_pool(|pool| (pool_check::owners(pool), pool_check::verify(pool))).await;
        if let Err(why) = verified {
            return self.report_violation(format!("after its start: {why}"));
        }
        let mut shared = self.shared.borrow_mut();
        shared.opened();
        shared.check_owners(&owners);
        shared.violation.is_none()
    }

    /// Serves volumes, and starts the reads of everything that is to be read. Returns the numbers of these reads.
    async fn serve_all(&mut self) -> Vec<u64> {
        let mut readings = Vec::new();
        let all: Vec<Uuid> = self.shared.borrow().models.keys().copied().collect();
        for uuid in all {
            let late = self.shared.borrow().parameters.reads_late;
            let is_snapshot = self.shared.borrow().models[&uuid].snapshot_of.is_some();
            let reads = self.last || !self.rng.chance(late);
            if !reads && (is_snapshot || self.rng.below(3) == 0) {
                continue;
            }
            self.serve(uuid).await;
            if reads {
                self.phase("reading everything");
                let number = self.shared.borrow_mut().read_all(uuid);
                let waits = self.rng.coin();
                if waits {
                    self.until(|shared| shared.readings[&number] == 0).await;
                } else {
                    readings.push(number);
                }
                if is_snapshot && waits && self.rng.coin() {
                    self.withdraw(uuid).await;
                }
            }
        }
        readings
    }

    /// Lets clients make requests and administrators perform operations.
    async fn work(&mut self) {
        self.phase("serving");
        let (clients, admins) = {
            let mut shared = self.shared.borrow_mut();
            let clients = shared.parameters.clients;
            shared.sleeping.extend(0..clients);
            shared.refill_budget();
            shared.active_admins = shared.parameters.admins;
            (clients, shared.parameters.admins)
        };
        self.count("lives", if clients > 1 { "of several clients" } else { "of one client" });
        for _ in 0..admins {
            let mut other = self.another();
            self.shared.borrow_mut().spawned.push(Box::pin(async move {
                let (actions, pause_ns) = {
                    let shared = other.shared.borrow();
                    (shared.parameters.actions, shared.parameters.pause_ns)
                };
                for _ in 0..actions {
                    let pause = 1 + other.rng.below(pause_ns);
                    other.port.sleep(pause).await;
                    other.random_operation().await;
                }
                other.shared.borrow_mut().active_admins -= 1;
            }));
        }
        let least = self.rng.between(1, 30_000_000);
        self.port.sleep(least).await;
        self.until(|shared| shared.active_admins == 0).await;
        self.shared.borrow_mut().quit = true;
        self.until(|shared| {
            shared.pending.values().all(|pending| matches!(pending.by, super::request::Issuer::Reader(_)))
        })
        .await;
    }

    fn another(&mut self) -> Admin {
        Admin {
            port: self.port.clone(),
            shared: Rc::clone(&self.shared),
            leaves: self.leaves.clone(),
            shards: self.shards,
            rng: self.rng.fork(),
            last: self.last,
        }
    }

    /// Leaves some members without space for the pool's own writes for a while.
    fn starve(&mut self) {
        let (ns, chance) = (*self.rng.pick(&[100_000, 1_000_000, 10_000_000]), *self.rng.pick(&[300_000, 1_000_000]));
        let mut shared = self.shared.borrow_mut();
        let all: Vec<(usize, u64)> =
            shared.members.iter().map(|member| (member.disks[0], member.of_pool.layout.data)).collect();
        let some = all.into_iter().filter(|_| self.rng.coin());
        shared.starve.extend(some.map(|(disk, before)| (disk, before, ns, chance)));
    }

    /// Performs one random administrative operation.
    async fn random_operation(&mut self) {
        self.shared.borrow_mut().refill_budget();
        if self.shared.borrow().parameters.starves && self.rng.coin() {
            self.starve();
        }
        let (snapshots_often, moves_often) = {
            let shared = self.shared.borrow();
            (shared.parameters.snapshots, shared.parameters.moves)
        };
        let (volumes, snapshots) = {
            let shared = self.shared.borrow();
            (shared.ready(false), shared.ready(true))
        };
        let count = self.shared.borrow().models.len();
        // Nothing is drawn unless volumes are flattened: the other runs stay unchanged.
        let flattens = self.shared.borrow().flattens && self.rng.below(4) == 0;
        if flattens && !snapshots.is_empty() && volumes.len() < 4 {
            let of = *self.rng.pick(&snapshots);
            return self.create(Some(of)).await;
        }
        if flattens && !volumes.is_empty() {
            let which = *self.rng.pick(&volumes);
            return self.flatten(which).await;
        }
        match self.rng.below(80 + snapshots_often + moves_often) {
            draw if draw >= 80 + snapshots_often => self.random_move().await,
            80.. if !volumes.is_empty() && count < 14 => self.snapshot(volumes).await,
            0..12 if volumes.len() < 4 => self.create(None).await,
            12..18 if !snapshots.is_empty() && volumes.len() < 5 => {
                let of = *self.rng.pick(&snapshots);
                self.create(Some(of)).await;
            }
            18..26 if !snapshots.is_empty() => {
                let which = *self.rng.pick(&snapshots);
                self.delete(which).await;
            }
            26..28 if volumes.len() > 1 => {
                let which = *self.rng.pick(&volumes);
                self.delete(which).await;
            }
            28..34 if !volumes.is_empty() && !snapshots.is_empty() => {
                let (which, to) = (*self.rng.pick(&volumes), *self.rng.pick(&snapshots));
                self.roll_back(which, to).await;
            }
            34..38 if !volumes.is_empty() => {
                let which = *self.rng.pick(&volumes);
                let shrinks = {
                    let shared = self.shared.borrow();
                    shared.shrinks && shared.names.is_multiple_of(2)
                };
                if shrinks { self.shrink(which).await } else { self.grow(which).await }
            }
            38..41 if count > 0 => {
                let all: Vec<Uuid> = volumes.into_iter().chain(snapshots).collect();
                if !all.is_empty() {
                    let which = *self.rng.pick(&all);
                    self.rename(which).await;
                }
            }
            41..55 => {
                let all: Vec<Uuid> = volumes.into_iter().chain(snapshots).collect();
                if !all.is_empty() {
                    let which = *self.rng.pick(&all);
                    self.serve_or_withdraw(which).await;
                }
            }
            55..63 => {
                self.phase("folding");
                let records = 1 + self.rng.below(60) as u32;
                self.merge(records).await;
            }
            63..66 => {
                self.phase("writing the tables");
                let checkpoint = |pool: &mut Pool| {
                    pool.request_checkpoint();
                    (PoolNext::Commit, ())
                };
                self.call(checkpoint, |_, ()| {}).await;
            }
            66..68 => {
                self.phase("draining");
                self.call(|_| (PoolNext::DrainAndCommit, ()), |_, ()| {}).await;
            }
            68..76 => self.act_on_arrays().await,
            76..78 => {
                let verified = self.inspect_pool(|pool| pool.recount()).await;
                if let Err(why) = verified {
                    self.report_violation(format!("while it serves: {why}"));
                }
            }
            _ => {}
        }
    }

    /// Returns whether the pool makes nothing durable any more.
    async fn has_failed(&self) -> bool {
        let failed = self.inspect_pool(|pool| pool.has_failed()).await;
        if failed {
            self.pool_fails("the pool has failed");
        }
        failed
    }

    pub async fn merge(&self, records: u32) -> MergeStep {
        let merge = move |pool: &mut Pool| {
            let merged = pool.merge_step(records);
            if merged == MergeStep::LogFull {
                pool.request_commit();
            }
            merged
        };
        let merged = self.inspect_pool(merge).await;
        if merged == MergeStep::Some {
            self.count("admin", "folds");
        }
        merged
    }

    /// Waits until nothing is left to be done, and verifies the pool at rest.
    async fn settle(&mut self) {
        self.phase("settling");
        for _ in 0..20_000 {
            let merged = self.merge(500).await;
            if self.shared.borrow().flattens {
                self.flatten_step(500).await;
            }
            if merged == MergeStep::Nothing {
                self.call(|_| (PoolNext::DrainAndCommit, ()), |_, ()| {}).await;
                if self.inspect_pool(|pool| pool.is_settled()).await {
                    let verified = self.inspect_pool(pool_check::verify_settled).await;
                    if let Err(why) = verified {
                        self.report_violation(format!("at rest: {why}"));
                    }
                    return self.count("lives", "settled");
                }
            }
            self.port.sleep(200_000).await;
            if self.shared.borrow().violation.is_some() || self.has_failed().await {
                return;
            }
        }
        self.report_violation("the pool does not come to rest".into());
    }

    /// Reads everything once more: nothing fails any more, and nothing is left to be done.
    async fn end(&mut self) {
        let all: Vec<Uuid> = self.shared.borrow().models.keys().copied().collect();
        for uuid in all {
            self.serve(uuid).await;
            let number = self.shared.borrow_mut().read_all(uuid);
            self.until(|shared| shared.readings[&number] == 0).await;
        }
    }

    /// Withdraws everything, writes the tables, and takes the pool away.
    async fn close(&mut self) {
        let all: Vec<Uuid> = self.shared.borrow().models.keys().copied().collect();
        for uuid in all {
            self.withdraw(uuid).await;
        }
        let written = self.rng.below(4) > 0;
        // Everything that was acknowledged is committed before the pool is closed: there is space again soon.
        let starves = self.shared.borrow().parameters.starves;
        while !self.call(|_| (PoolNext::Commit, ()), |_, ()| {}).await.1 && starves {
            self.port.sleep(100_000).await;
        }
        if written {
            let number = self.inspect_pool(|pool| pool.request_checkpoint()).await;
            let is_done = move |pool: &mut Pool| {
                pool.retry_writes();
                pool.is_checkpointed(number)
            };
            while !self.inspect_pool(is_done).await {
                self.port.sleep(100_000).await;
                if self.shared.borrow().violation.is_some() || self.has_failed().await {
                    break;
                }
            }
        }
        let failed = self.has_failed().await;
        self.shared.borrow_mut().shard_requests.push(ShardRequest::Leave);
        self.until(|shared| shared.taken_pool.is_some()).await;
        let mut shared = self.shared.borrow_mut();
        (shared.taken_pool, shared.closed) = (None, !failed);
        if written && !failed {
            shared.shm.clear();
        }
    }
}

/// Returns whether a mutation of the component that opens pools is on: the old in-memory log is dropped before its
/// content is committed.
#[cfg(feature = "mutations")]
fn drops_tails_early() -> bool {
    braid_engine::is_planted(braid_engine::Planted::LogDroppedEarly)
}

/// Returns `false`: mutations are not compiled in.
#[cfg(not(feature = "mutations"))]
const fn drops_tails_early() -> bool {
    false
}

/// Returns the number of blocks of a volume with this many bytes.
pub(super) fn blocks_of(bytes: u64) -> u64 {
    bytes / BLOCK
}
