//! A volume of a pool on what a target's disks become, for one run: what of it is measured is the way through the pool.

use std::sync::Arc;

use braid_engine::{DeviceId, DeviceLayout, PoolKey};
use braid_ring::RingHandle;

use super::pool::BenchPool;

/// What a volume has when it is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Volume {
    /// Nothing: every block is written for the first time.
    Thin,
    /// All of its blocks.
    Full,
}

/// Makes a pool of this device, and in it one volume of nearly all its space. Returns the volume's layout and its bytes.
///
/// # Errors
/// The device is too small, or fails.
pub async fn make(
    handle: &RingHandle,
    device: DeviceId,
    size_bytes: u64,
    keeps_data: bool,
    volume: Volume,
) -> anyhow::Result<(Arc<DeviceLayout>, u64)> {
    let pool = BenchPool::make(handle, PoolKey(0), &[(device, size_bytes)], keeps_data).await?;
    // A little is left, so that nothing is full.
    let made = pool.volume("bench", pool.extents - pool.extents / 64 - 1, None).await?;
    if volume == Volume::Full {
        pool.fill(&made).await?;
    }
    Ok((made.layout, made.bytes))
}
