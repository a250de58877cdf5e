//! Redundant arrays that answer under a lease, as those do whose members are on several nodes: renewed in time as a rule, and now and
//! then too late.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use braid_engine::DeviceLease;
use braid_engine::io::DeviceId;
use braid_engine::keeper::EngineIo;

use super::Admin;

/// What keeps an array's lease from running out for good.
pub(super) struct Renewal {
    lease: Arc<DeviceLease>,
    over: Rc<Cell<bool>>,
}

impl Renewal {
    /// The lease, for the array's keeper.
    pub fn lease(&self) -> Arc<DeviceLease> {
        Arc::clone(&self.lease)
    }

    /// Nobody answers any more: to be set when the keeper has ended.
    pub fn over(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.over)
    }
}

impl Admin {
    /// Begins to renew the lease of an array, where it is one that has a lease.
    pub(super) fn begin_lease(&mut self, index: usize, id: DeviceId) -> Option<Renewal> {
        let mut chance = {
            let mut stage = self.stage.borrow_mut();
            stage.mirrors[index].leases.as_mut()?.fork()
        };
        let renewal = Renewal { lease: Arc::new(DeviceLease::new(0)), over: Rc::new(Cell::new(false)) };
        let (lease, over, port) = (renewal.lease(), renewal.over(), self.port.clone());
        let stage = Rc::clone(&self.stage);
        self.stage.borrow_mut().spawned.push(Box::pin(async move {
            while !over.get() {
                let most_ns = *chance.pick(&[100_000, 400_000, 3_000_000, 500_000_000]);
                let lasts_ns = chance.between(1, most_ns);
                if lease.renew(port.now_ns() + lasts_ns) {
                    stage.borrow_mut().counters.add("leases", "renewed with answers kept");
                    port.renewed(id);
                }
                // Nobody renews more often than he must.
                let late = chance.below(3) == 0;
                port.sleep(if late { lasts_ns + chance.below(5_000_000) } else { lasts_ns / 2 + 20_000 }).await;
            }
        }));
        Some(renewal)
    }
}
