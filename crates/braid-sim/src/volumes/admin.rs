//! An administrator: brings the pool up, does things to its volumes at random, and ends its service.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use braid_engine::io::{DeviceIo, LeafId};
use braid_engine::keeper::EngineIo;
use braid_engine::pool::on_disk::Checkpoint;
use braid_engine::pool::{LogMemory, MergeStep, OpenPool, Pool, open};
use braid_engine::{PoolNext, Uuid};

use super::judge;
use super::scene::{BLOCK, Scene, Wish};
use crate::meta::Port;
use crate::pools::Shm;
use crate::rng::Rng;

/// What each of them has.
pub(super) struct Admin {
    pub port: Port,
    pub scene: Rc<RefCell<Scene>>,
    pub leaves: BTreeMap<usize, LeafId>,
    pub shards: u16,
    pub rng: Rng,
    /// The last life: nothing fails, and everything is looked at.
    pub last: bool,
}

impl Admin {
    /// One life, from the first disk to the last.
    pub async fn live(mut self) {
        self.phase("starting");
        if !self.start_members().await || !self.open().await {
            return;
        }
        let reads = self.serve_all().await;
        if !self.last {
            self.work().await;
        }
        for reading in reads {
            self.until(|scene| scene.readings[&reading] == 0).await;
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
        let mut scene = self.scene.borrow_mut();
        scene.phase = phase;
        scene.moments.push(phase);
        scene.notes.push(phase.to_owned());
    }

    pub fn count(&self, group: &str, kind: &str) {
        self.scene.borrow_mut().count(group, kind);
    }

    pub async fn until(&self, mut holds: impl FnMut(&Scene) -> bool) {
        std::future::poll_fn(|_| if holds(&self.scene.borrow()) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Makes a call at the pool's home. `then` sees its result before anything else happens. Returns that, and whether the call has ended
    /// well.
    pub async fn call<R: Clone + Send + 'static>(
        &self,
        mut call: impl FnMut(&mut Pool) -> (PoolNext, R) + Send + 'static,
        then: impl FnOnce(&mut Scene, &R) + 'static,
    ) -> (R, bool) {
        let result: Arc<Mutex<Option<R>>> = Arc::default();
        let (into, of) = (Arc::clone(&result), Arc::clone(&result));
        let call = Box::new(move |pool: &mut Pool| {
            let (next, result) = call(pool);
            *into.lock().expect("one thread") = Some(result);
            next
        });
        let then = Box::new(move |scene: &mut Scene| {
            let result = of.lock().expect("one thread").clone();
            then(scene, &result.expect("a call is made at once"));
        });
        let number = {
            let mut scene = self.scene.borrow_mut();
            let number = scene.new_number();
            scene.wishes.push(Wish::Call(number, call, then));
            number
        };
        let called = std::future::poll_fn(|_| match self.scene.borrow_mut().called.remove(&number) {
            Some(good) => Poll::Ready(good),
            None => Poll::Pending,
        });
        let good = called.await;
        if !good && self.scene.borrow().nature.starves && !self.last {
            self.count("lives", "calls without space");
        } else if !good {
            self.pool_fails("a call of the pool has failed");
        }
        let result = result.lock().expect("one thread").clone();
        (result.expect("a call is made at once"), good)
    }

    /// A disk that has no twin could not write what is the pool's.
    fn pool_fails(&self, why: &str) {
        if !self.scene.borrow().nature.own_faults || self.last {
            self.odd(why.to_owned());
        }
        let before = std::mem::replace(&mut self.scene.borrow_mut().failed, true);
        if !before {
            self.count("lives", "pool failed");
        }
    }

    /// The same, where nobody waits for what it changes.
    pub async fn look<R: Clone + Send + 'static>(&self, mut look: impl FnMut(&mut Pool) -> R + Send + 'static) -> R {
        self.call(move |pool| (PoolNext::Done, look(pool)), |_, _| {}).await.0
    }

    /// Opens the pool, which is made where there is none. False: it does not open.
    async fn open(&mut self) -> bool {
        let io = self.port.devices();
        let (members, made, uuid, owner_slots) = {
            let scene = self.scene.borrow();
            (scene.pool_devices(), scene.made, scene.uuid, scene.owner_slots)
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
                    return self.odd(format!("a member cannot be made ready: {error}"));
                }
            }
            self.scene.borrow_mut().made = true;
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
            let mut scene = self.scene.borrow_mut();
            let memory = scene.shm.get(&session).map(|memory| Arc::clone(memory) as Arc<dyn LogMemory>);
            if drops_tails_early() {
                scene.shm.clear();
            }
            memory
        };
        let begin = |session: u64, bytes: u64| {
            let memory = Shm::new(bytes);
            self.scene.borrow_mut().shm.insert(session, Arc::clone(&memory));
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
            let mut scene = self.scene.borrow_mut();
            // Only now the older ones may go.
            let newest = scene.shm.keys().last().copied();
            scene.shm.retain(|session, _| Some(*session) == newest);
            scene.home = self.rng.below(u64::from(self.shards)) as u16;
            let places = scene.pool_places();
            scene.wishes.push(Wish::Serve(Box::new(pool), places));
        }
        self.phase("looking at the pool");
        let (owners, verified) = self.look(|pool| (judge::owners(pool), judge::verify(pool))).await;
        if let Err(why) = verified {
            return self.odd(format!("after its start: {why}"));
        }
        let mut scene = self.scene.borrow_mut();
        scene.opened();
        scene.judge_owners(&owners);
        scene.violation.is_none()
    }

    /// Serves volumes, and has read what is to be read. By which numbers the readings are known.
    async fn serve_all(&mut self) -> Vec<u64> {
        let mut readings = Vec::new();
        let all: Vec<Uuid> = self.scene.borrow().known.keys().copied().collect();
        for uuid in all {
            let late = self.scene.borrow().nature.reads_late;
            let is_snapshot = self.scene.borrow().known[&uuid].of.is_some();
            let reads = self.last || !self.rng.chance(late);
            if !reads && (is_snapshot || self.rng.below(3) == 0) {
                continue;
            }
            self.serve(uuid).await;
            if reads {
                self.phase("reading everything");
                let number = self.scene.borrow_mut().read_all(uuid);
                let waits = self.rng.coin();
                if waits {
                    self.until(|scene| scene.readings[&number] == 0).await;
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

    /// Clients ask, and administrators do things.
    async fn work(&mut self) {
        self.phase("serving");
        let (clients, admins) = {
            let mut scene = self.scene.borrow_mut();
            let clients = scene.nature.clients;
            scene.sleeping.extend(0..clients);
            scene.refill();
            scene.helping = scene.nature.admins;
            (clients, scene.nature.admins)
        };
        self.count("lives", if clients > 1 { "of several clients" } else { "of one client" });
        for _ in 0..admins {
            let mut other = self.another();
            self.scene.borrow_mut().spawned.push(Box::pin(async move {
                let (actions, pause_ns) = {
                    let scene = other.scene.borrow();
                    (scene.nature.actions, scene.nature.pause_ns)
                };
                for _ in 0..actions {
                    let pause = 1 + other.rng.below(pause_ns);
                    other.port.sleep(pause).await;
                    other.act().await;
                }
                other.scene.borrow_mut().helping -= 1;
            }));
        }
        let least = self.rng.between(1, 30_000_000);
        self.port.sleep(least).await;
        self.until(|scene| scene.helping == 0).await;
        self.scene.borrow_mut().quit = true;
        self.until(|scene| scene.asked.values().all(|asked| matches!(asked.by, super::clients::By::Reader(_)))).await;
    }

    fn another(&mut self) -> Admin {
        Admin {
            port: self.port.clone(),
            scene: Rc::clone(&self.scene),
            leaves: self.leaves.clone(),
            shards: self.shards,
            rng: self.rng.fork(),
            last: self.last,
        }
    }

    /// Some members have no space for a while for what the pool writes of its own.
    fn starve(&mut self) {
        let (ns, chance) = (*self.rng.pick(&[100_000, 1_000_000, 10_000_000]), *self.rng.pick(&[300_000, 1_000_000]));
        let mut scene = self.scene.borrow_mut();
        let all: Vec<(usize, u64)> =
            scene.members.iter().map(|member| (member.disks[0], member.of_pool.layout.data)).collect();
        let some = all.into_iter().filter(|_| self.rng.coin());
        scene.starve.extend(some.map(|(disk, before)| (disk, before, ns, chance)));
    }

    /// One thing that somebody might do.
    async fn act(&mut self) {
        self.scene.borrow_mut().refill();
        if self.scene.borrow().nature.starves && self.rng.coin() {
            self.starve();
        }
        let (snapshots_often, moves_often) = {
            let scene = self.scene.borrow();
            (scene.nature.snapshots, scene.nature.moves)
        };
        let (volumes, snapshots) = {
            let scene = self.scene.borrow();
            (scene.ready(false), scene.ready(true))
        };
        let count = self.scene.borrow().known.len();
        // Only here: others stay as they were.
        let flattens = self.scene.borrow().flattens && self.rng.below(4) == 0;
        if flattens && !snapshots.is_empty() && volumes.len() < 4 {
            let of = *self.rng.pick(&snapshots);
            return self.create(Some(of)).await;
        }
        if flattens && !volumes.is_empty() {
            let which = *self.rng.pick(&volumes);
            return self.flatten(which).await;
        }
        match self.rng.below(80 + snapshots_often + moves_often) {
            draw if draw >= 80 + snapshots_often => self.move_about().await,
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
                    let scene = self.scene.borrow();
                    scene.shrinks && scene.names.is_multiple_of(2)
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
                self.fold(records).await;
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
                let verified = self.look(|pool| pool.recount()).await;
                if let Err(why) = verified {
                    self.odd(format!("while it serves: {why}"));
                }
            }
            _ => {}
        }
    }

    /// Whether the pool makes nothing durable any more.
    async fn has_failed(&self) -> bool {
        let failed = self.look(|pool| pool.has_failed()).await;
        if failed {
            self.pool_fails("the pool has failed");
        }
        failed
    }

    pub async fn fold(&self, records: u32) -> MergeStep {
        let fold = move |pool: &mut Pool| {
            let folded = pool.merge_step(records);
            if folded == MergeStep::LogFull {
                pool.request_commit();
            }
            folded
        };
        let folded = self.look(fold).await;
        if folded == MergeStep::Some {
            self.count("admin", "folds");
        }
        folded
    }

    /// Waits until nothing is left to be done, and looks whether all of it fits together.
    async fn settle(&mut self) {
        self.phase("settling");
        for _ in 0..20_000 {
            let folded = self.fold(500).await;
            if self.scene.borrow().flattens {
                self.flatten_on(500).await;
            }
            if folded == MergeStep::Nothing {
                self.call(|_| (PoolNext::DrainAndCommit, ()), |_, ()| {}).await;
                if self.look(|pool| pool.is_settled()).await {
                    let verified = self.look(judge::verify_settled).await;
                    if let Err(why) = verified {
                        self.odd(format!("at rest: {why}"));
                    }
                    return self.count("lives", "settled");
                }
            }
            self.port.sleep(200_000).await;
            if self.scene.borrow().violation.is_some() || self.has_failed().await {
                return;
            }
        }
        self.odd("the pool does not come to rest".into());
    }

    /// Nothing fails any more, and nothing is left to be done: everything is read once more.
    async fn end(&mut self) {
        let all: Vec<Uuid> = self.scene.borrow().known.keys().copied().collect();
        for uuid in all {
            self.serve(uuid).await;
            let number = self.scene.borrow_mut().read_all(uuid);
            self.until(|scene| scene.readings[&number] == 0).await;
        }
    }

    /// Withdraws everything, writes everything where it belongs, and takes the pool away.
    async fn close(&mut self) {
        let all: Vec<Uuid> = self.scene.borrow().known.keys().copied().collect();
        for uuid in all {
            self.withdraw(uuid).await;
        }
        let written = self.rng.below(4) > 0;
        // What was acknowledged is committed before it is closed: there is space again soon.
        let starves = self.scene.borrow().nature.starves;
        while !self.call(|_| (PoolNext::Commit, ()), |_, ()| {}).await.1 && starves {
            self.port.sleep(100_000).await;
        }
        if written {
            let number = self.look(|pool| pool.request_checkpoint()).await;
            let is_done = move |pool: &mut Pool| {
                pool.retry_writes();
                pool.is_checkpointed(number)
            };
            while !self.look(is_done).await {
                self.port.sleep(100_000).await;
                if self.scene.borrow().violation.is_some() || self.has_failed().await {
                    break;
                }
            }
        }
        let failed = self.has_failed().await;
        self.scene.borrow_mut().wishes.push(Wish::Leave);
        self.until(|scene| scene.left.is_some()).await;
        let mut scene = self.scene.borrow_mut();
        (scene.left, scene.closed) = (None, !failed);
        if written && !failed {
            scene.shm.clear();
        }
    }
}

/// A bug of whoever opens pools: the old tail is gone before what it says is committed.
#[cfg(feature = "planted")]
fn drops_tails_early() -> bool {
    braid_engine::is_planted(braid_engine::Planted::TailDroppedEarly)
}

/// It is not compiled in.
#[cfg(not(feature = "planted"))]
const fn drops_tails_early() -> bool {
    false
}

/// Of a volume with so many bytes.
pub(super) fn blocks_of(bytes: u64) -> u64 {
    bytes / BLOCK
}
