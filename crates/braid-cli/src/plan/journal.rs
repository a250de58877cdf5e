//! A dedicated disk for the journal of raid5 and raid6: validates its size, and computes how much of it is used.

use super::{Disk, usage};
use braid_format::journal::{DISK_RING_BLOCKS_MAX, RING_OFFSET_BYTES, ring_blocks, ring_blocks_min};
use braid_format::{BLOCK_BYTES, DiskLayout};
use braid_geometry::Level;
use serde::Serialize;
use utoipa::ToSchema;

/// The dedicated disk of the journal, at the levels with a journal.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(as = PlanJournal)]
pub struct Journal {
    pub disk_size_bytes: u64,
    /// The maximum size of the journal on it.
    pub journal_bytes: u64,
}

/// Validates a disk for the journal of an array of these disks. The journal on it holds at least as much as one on the members.
pub fn check(size_bytes: u64, disks: &[Disk], are_data_areas: bool, level: Option<Level>) -> anyhow::Result<Journal> {
    let example = "--level raid5 --journal 1G 50G 100G 100G";
    if let Some(level) = level.filter(|level| level.parity() == 0) {
        return Err(usage("--journal", format!("{level} has no journal that a disk could hold"), example));
    }
    let refused = |reason: String| usage("--journal", reason, example);
    let places = DiskLayout::for_journal(size_bytes).map_err(|error| refused(error.to_string()))?;
    let of_disk = |disk: &Disk| DiskLayout::for_device(disk.size_bytes).map_or(0, |p| ring_blocks(p.journal.bytes));
    let common = if are_data_areas { None } else { disks.iter().map(of_disk).min() };
    // The journal disk counts as a member, too.
    let least = common.unwrap_or(0).max(ring_blocks_min(disks.len() as u64 + 1));
    let needed_bytes = RING_OFFSET_BYTES + least * BLOCK_BYTES;
    if places.journal.bytes < needed_bytes {
        let larger = size_bytes + (needed_bytes - places.journal.bytes);
        return Err(refused(format!("the journal of these disks needs one of {larger} bytes or more")));
    }
    let blocks = ring_blocks(places.journal.bytes).min(DISK_RING_BLOCKS_MAX);
    Ok(Journal { disk_size_bytes: size_bytes, journal_bytes: RING_OFFSET_BYTES + blocks * BLOCK_BYTES })
}
