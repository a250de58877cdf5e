//! The reconciler's interface to the control plane.

use std::sync::Arc;

use braid_engine::{DeviceId, EngineIo, RegionMap};

use super::{Order, OrderResult, ReconcilerEvent};
use crate::lifecycle::Array;

/// What the reconciler needs of the control plane.
#[allow(async_fn_in_trait)]
pub trait ReconcilerIo: EngineIo {
    /// Returns a version for a layout of this device: higher than every earlier one.
    fn next_version(&self, device: DeviceId) -> u32;

    /// Waits for the next order to this device's reconciler; returns it with its number, for
    /// [`ReconcilerIo::report_result`]. Must be cancel-safe: the reconciler drops the future when a fault arrives or a
    /// step of work ends, and a future that was dropped must have taken no order.
    async fn order(&self, device: DeviceId) -> (u64, Order);

    /// Reports the result of an order.
    fn report_result(&self, id: u64, result: OrderResult);

    /// Reports an event.
    fn report(&self, device: DeviceId, note: ReconcilerEvent);

    /// Reports that the array has grown: these are its regions from now on.
    fn grown(&self, device: DeviceId, regions: &Arc<RegionMap>) {
        let _ = (device, regions);
    }

    /// Reports the array whenever its labels may have changed. If the layout has changed too, it is on its way to the
    /// shards by then.
    fn labels_recorded(&self, device: DeviceId, array: &Array) {
        let _ = (device, array);
    }
}
