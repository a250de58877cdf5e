//! A volume of a pool on a target's device: the load measures the path through the pool.

use std::sync::Arc;

use braid_bench::MakeDevice;
use braid_engine::{DeviceId, DeviceLayout, PoolKey};
use braid_ring::RingHandle;

use crate::pool::BenchPool;

/// Which blocks of the volume are allocated before it is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Volume {
    /// None: every block is written for the first time.
    Thin,
    /// All.
    Full,
}

impl Volume {
    /// Returns the function that creates such a volume on a device.
    pub fn maker(self) -> MakeDevice {
        match self {
            Volume::Thin => thin,
            Volume::Full => full,
        }
    }
}

fn thin(handle: &RingHandle, device: DeviceId, bytes: u64, keeps: bool) -> anyhow::Result<(Arc<DeviceLayout>, u64)> {
    create(handle, device, bytes, keeps, Volume::Thin)
}

fn full(handle: &RingHandle, device: DeviceId, bytes: u64, keeps: bool) -> anyhow::Result<(Arc<DeviceLayout>, u64)> {
    create(handle, device, bytes, keeps, Volume::Full)
}

/// Creates a pool on this device, and in it one volume that takes nearly all of its space. Returns the volume's layout and its size in bytes.
fn create(
    handle: &RingHandle,
    device: DeviceId,
    size_bytes: u64,
    keeps_data: bool,
    volume: Volume,
) -> anyhow::Result<(Arc<DeviceLayout>, u64)> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let pool = BenchPool::make(handle, PoolKey(0), &[(device, size_bytes)], keeps_data).await?;
        // A little stays free, so that the pool is never full.
        let made = pool.volume("bench", pool.extents - pool.extents / 64 - 1, None).await?;
        if volume == Volume::Full {
            pool.fill(&made).await?;
        }
        Ok((made.layout, made.bytes))
    })
}
