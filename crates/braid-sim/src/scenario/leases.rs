//! Redundant arrays that answer under a lease, as arrays with members on several nodes do. The lease is mostly renewed
//! in time, and at times too late.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use braid_engine::io::DeviceId;
use braid_engine::{DeviceLease, EngineIo};

use super::Admin;

/// Renews the lease of an array.
pub(super) struct Renewal {
    lease: Arc<DeviceLease>,
    over: Rc<Cell<bool>>,
}

impl Renewal {
    /// Returns the lease, for the array's reconciler.
    pub fn lease(&self) -> Arc<DeviceLease> {
        Arc::clone(&self.lease)
    }

    /// Returns the flag that ends the renewal: set when the reconciler has ended.
    pub fn over(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.over)
    }
}

impl Admin {
    /// Begins to renew the lease of an array, if it has one.
    pub(super) fn begin_lease(&mut self, index: usize, id: DeviceId) -> Option<Renewal> {
        let mut chance = {
            let mut state = self.state.borrow_mut();
            state.mirrors[index].leases.as_mut()?.fork()
        };
        let renewal = Renewal { lease: Arc::new(DeviceLease::new(0)), over: Rc::new(Cell::new(false)) };
        let (lease, over, port) = (renewal.lease(), renewal.over(), self.port.clone());
        let state = Rc::clone(&self.state);
        self.state.borrow_mut().spawned.push(Box::pin(async move {
            while !over.get() {
                let most_ns = *chance.pick(&[100_000, 400_000, 3_000_000, 500_000_000]);
                let lasts_ns = chance.between(1, most_ns);
                if lease.renew(port.now_ns() + lasts_ns) {
                    state.borrow_mut().counters.add("leases", "renewed with replies held");
                    port.renewed(id);
                }
                // The lease is renewed no more often than necessary, and at times too late.
                let late = chance.below(3) == 0;
                port.sleep(if late { lasts_ns + chance.below(5_000_000) } else { lasts_ns / 2 + 20_000 }).await;
            }
        }));
        Some(renewal)
    }
}
