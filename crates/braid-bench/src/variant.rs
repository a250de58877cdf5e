//! What the harness of `make bench` varies on targets of disks, beyond what `braid bench` offers.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use braid_engine::{DeviceId, DeviceLayout};
use braid_ring::{Frontend, RingHandle};

use super::frontend::PhaseDone;

/// Creates the load generator of one job. It sends the result of each phase to the channel.
pub type MakeFrontend = fn(SyncSender<PhaseDone>) -> Box<dyn Frontend>;

/// Creates a device on top of a target's device, given its number, its size in bytes, and whether its disks keep data. Returns the layout of
/// the device that is measured, and its size in bytes.
pub type MakeDevice = fn(&RingHandle, DeviceId, u64, bool) -> anyhow::Result<(Arc<DeviceLayout>, u64)>;

/// Variations of a plan. The default varies nothing.
#[derive(Clone, Debug, Default)]
pub struct Variant {
    /// Bytes of memory that the I/Os of one job use in turn, if they are more than the bytes in flight: then no data is in a cache.
    pub memory_bytes: u64,
    /// The slot of redundant targets whose member is missing.
    pub missing: Option<u16>,
    /// Whether the last disk of targets with parity holds their journal and no data.
    pub journal_last: bool,
    /// The load generator, if it is not that of `braid bench`.
    pub frontend: Option<MakeFrontend>,
    /// Puts a device on the target's device, and measures it instead.
    pub device: Option<MakeDevice>,
}
