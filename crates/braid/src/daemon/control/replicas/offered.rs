//! Snapshots of a replica's data that are offered to its controller: where that has no replica of its own which has them.
//!
//! Each is an export beside the replica's, read-only, for as long as that controller is the one that is answered. Nobody writes to it, and
//! what it has never changes: so it has no session, and whoever raises does not wait for those that read it. It ends when its controller says so, when another one
//! is answered or this one has stopped, when the replica is closed, and when nobody has been connected for a while, as then its controller has gone.

use super::door::Door;
use super::terms;
use crate::daemon::control::Control;
use crate::daemon::control::pools::{DataOf, Source};
use braid_api::{ErrorDetail, Kind, snapshot_export};
use braid_nbd::ExportInfo;
use braid_nbd::gate::{Denied, Gate, Pass};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

/// So long it is offered while nobody is connected.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Who reads a snapshot.
pub struct Readers {
    me: Weak<Readers>,
    /// That of the replica, which says who is answered.
    door: Arc<Door>,
    epoch: u64,
    controller: Uuid,
    inner: Mutex<Inner>,
    /// How many there are.
    count: watch::Sender<usize>,
}

#[derive(Default)]
struct Inner {
    is_over: bool,
    next: u64,
    passes: BTreeMap<u64, Weak<Pass>>,
}

impl Readers {
    /// Nobody yet, of this controller.
    pub fn new(door: Arc<Door>, epoch: u64, controller: Uuid) -> Arc<Readers> {
        let (inner, count) = (Mutex::default(), watch::Sender::new(0));
        Arc::new_cyclic(|me| Readers { me: Weak::clone(me), door, epoch, controller, inner, count })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn are_answered(&self) -> bool {
        self.door.answers(self.epoch, self.controller)
    }

    fn ended(&self, number: u64) {
        let mut inner = self.lock();
        inner.passes.remove(&number);
        self.count.send_replace(inner.passes.len());
    }

    /// Cuts all of them off; the shards look at that with the next message. `is_over`: nobody comes again.
    fn cut(&self, is_over: bool) {
        let mut inner = self.lock();
        inner.is_over |= is_over;
        let passes: Vec<Arc<Pass>> = inner.passes.values().filter_map(Weak::upgrade).collect();
        // The last hold on one may be ours: its end comes back here.
        drop(inner);
        passes.iter().for_each(|pass| pass.cut());
    }

    /// Until nobody has been here for so long.
    async fn idle(&self, limit: Duration) {
        let mut counts = self.count.subscribe();
        loop {
            let is_empty = *counts.borrow_and_update() == 0;
            let changed = counts.changed();
            if !is_empty {
                let _ = changed.await;
            } else if tokio::time::timeout(limit, changed).await.is_err() {
                return;
            }
        }
    }
}

impl Gate for Readers {
    fn ask(&self, terms: &str) -> Result<Arc<Pass>, Denied> {
        let [epoch, controller] = terms::values(terms, &["epoch", "controller"]).map_err(Denied::Never)?;
        let is_its = epoch.parse() == Ok(self.epoch) && Uuid::try_parse(controller) == Ok(self.controller);
        if !is_its || !self.are_answered() {
            let why = format!(
                "fenced: the snapshot is offered to the controller of epoch {}, and epoch {} is answered now",
                self.epoch,
                self.door.register().epoch
            );
            return Err(Denied::Never(why));
        }
        let mut inner = self.lock();
        if inner.is_over {
            return Err(Denied::Never("the snapshot is offered no more".to_owned()));
        }
        inner.next += 1;
        let (number, me) = (inner.next, Weak::clone(&self.me));
        let pass = Arc::new(Pass::new(move || {
            if let Some(readers) = me.upgrade() {
                readers.ended(number);
            }
        }));
        pass.admit();
        inner.passes.insert(number, Arc::downgrade(&pass));
        self.count.send_replace(inner.passes.len());
        Ok(pass)
    }
}

/// A snapshot that is offered, as the daemon knows it.
pub struct Offered {
    replica: Uuid,
    readers: Arc<Readers>,
    stop: Arc<Notify>,
    /// Closed when nothing is left of it.
    ended: watch::Receiver<()>,
}

/// The same as whoever sees to its end has it. Dropped when nothing is left.
struct Offer {
    control: Arc<Control>,
    export: String,
    snapshot: Uuid,
    readers: Arc<Readers>,
    stop: Arc<Notify>,
    _ended: watch::Sender<()>,
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.control.offered_snapshots().remove(&self.snapshot);
    }
}

impl Offer {
    /// Ends it when it is time.
    async fn watch(self) {
        let mut changes = self.readers.door.changes();
        let mut idle = Box::pin(self.readers.idle(IDLE_MAX));
        while self.readers.are_answered() {
            tokio::select! {
                () = self.stop.notified() => break,
                () = &mut idle => break,
                changed = changes.changed() => {
                    if changed.is_err() {
                        break;
                    }
                }
            }
        }
        drop(idle);
        self.readers.cut(true);
        self.control.replica_exports.remove(&self.export);
        self.control.tell_exports_changed();
        self.control.close_volume(self.snapshot).await;
    }
}

impl Control {
    fn offered_snapshots(&self) -> MutexGuard<'_, BTreeMap<Uuid, Offered>> {
        self.offered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers a snapshot of a replica's data to these readers alone, instead of whomever it was offered to before.
    ///
    /// # Errors
    /// It is none of the replica's; it is just being offered, or closed; there is no room for another device.
    pub(super) async fn offer_snapshot(
        self: &Arc<Self>,
        (replica, data): (Uuid, DataOf),
        snapshot: Uuid,
        readers: Arc<Readers>,
    ) -> Result<(), ErrorDetail> {
        self.check_is_of_data(data, snapshot).await?;
        self.withdraw_snapshot(snapshot).await;
        let export = snapshot_export(&replica.to_string(), &snapshot.to_string());
        let offer = self.begin_offer(replica, export.clone(), snapshot, Arc::clone(&readers))?;
        let source = self.hold_snapshot(data, snapshot).await?;
        let info = ExportInfo {
            read_only: true,
            block_bytes_min: source.block_bytes,
            description: format!("snapshot {snapshot} of replica {replica}"),
            allocation: source.allocation,
            tls: braid_nbd::ExportTls::Optional,
            uuid: Some(*snapshot.as_bytes()),
            gate: Some(readers),
            ..ExportInfo::new(export, source.device, source.size_bytes)
        };
        if let Err(error) = self.replica_exports.add(info) {
            self.close_volume(snapshot).await;
            return Err(ErrorDetail::new(Kind::Internal, error.to_string()).with("snapshot", snapshot));
        }
        tokio::spawn(offer.watch());
        Ok(())
    }

    fn begin_offer(
        self: &Arc<Self>,
        replica: Uuid,
        export: String,
        snapshot: Uuid,
        readers: Arc<Readers>,
    ) -> Result<Offer, ErrorDetail> {
        let mut all = self.offered_snapshots();
        if all.contains_key(&snapshot) {
            return Err(ErrorDetail::new(Kind::InUse, "the snapshot is just being offered")
                .with("snapshot", snapshot)
                .remedy("try again"));
        }
        let (stop, (sender, ended)) = (Arc::new(Notify::new()), watch::channel(()));
        all.insert(snapshot, Offered { replica, readers: Arc::clone(&readers), stop: Arc::clone(&stop), ended });
        Ok(Offer { control: Arc::clone(self), export, snapshot, readers, stop, _ended: sender })
    }

    /// Offers a snapshot no more: nobody has anything under way on it when this returns.
    pub(in super::super) async fn withdraw_snapshot(&self, snapshot: Uuid) {
        let Some(mut ended) = self.offered_snapshots().get(&snapshot).map(Offered::stop) else { return };
        while ended.changed().await.is_ok() {}
    }

    /// The same of all of a replica.
    pub(super) async fn withdraw_snapshots_of(&self, replica: Uuid) {
        let all: Vec<_> = {
            let offered = self.offered_snapshots();
            offered.values().filter(|one| one.replica == replica).map(Offered::stop).collect()
        };
        for mut ended in all {
            while ended.changed().await.is_ok() {}
        }
    }

    /// Cuts off whoever reads one; who may come again does.
    pub(super) fn sever_offered(&self) {
        let readers: Vec<_> = self.offered_snapshots().values().map(|one| Arc::clone(&one.readers)).collect();
        readers.iter().for_each(|readers| readers.cut(false));
        self.tell_exports_changed();
    }

    /// Serves a snapshot as a device, until it is closed as a volume is.
    ///
    /// # Errors
    /// It is not there, its pool does not serve, or there is no room for another device.
    pub(in super::super) async fn hold_snapshot(
        self: &Arc<Self>,
        data: DataOf,
        snapshot: Uuid,
    ) -> Result<Source, ErrorDetail> {
        let listening = self.listening.lock().await;
        self.write().held_volumes.insert(snapshot, data.pool);
        let served = self.serve_volume(data.pool, snapshot).await;
        drop(listening);
        match served {
            Ok(Some(source)) => return Ok(source),
            Ok(None) => self.close_volume(snapshot).await,
            Err(error) => {
                self.close_volume(snapshot).await;
                return Err(error);
            }
        }
        Err(ErrorDetail::new(Kind::Inactive, "the pool of the replica does not serve"))
    }
}

impl Offered {
    fn stop(&self) -> watch::Receiver<()> {
        self.stop.notify_one();
        self.ended.clone()
    }
}
