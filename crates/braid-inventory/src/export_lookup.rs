//! Finds exports in the tables: block devices, and exports on standby.

use crate::state::SavedExport;
use crate::tables::Tables;
use uuid::Uuid;

impl Tables {
    /// Returns the saved settings of those exports that are block devices of this machine and that `which` selects.
    pub fn saved_blocks(&self, which: impl Fn(&SavedExport) -> bool) -> Vec<SavedExport> {
        let all = self.exports.values().map(|entry| &entry.saved).filter(|saved| which(saved));
        all.filter(|saved| saved.nbd.starts_with("ublk:")).cloned().collect()
    }

    /// Returns the replicated volume below an export (the exported object itself, or the volume that the pool of the
    /// exported object stands on), if this node does not serve it now: its name, and whether this node is about to
    /// serve it. `None`: there is no such volume, or this node serves it.
    pub fn unserved_volume(&self, saved: &SavedExport) -> Option<(String, bool)> {
        let carrier = |pool: Uuid| self.pool_arrays.iter().find(|seen| seen.pool == pool).map(|seen| seen.array);
        let volume = saved.pool.map_or(Some(saved.array), carrier)?;
        let known = self.replicated.get(&volume);
        let is_active = self.arrays.get(&volume).is_some_and(|entry| entry.active().is_some());
        if is_active || (known.is_none() && !(saved.replicated && saved.pool.is_none())) {
            return None;
        }
        let name = known.map_or_else(|| saved.array_name.clone(), |volume| volume.name.clone());
        Some((name, known.is_some_and(|volume| volume.attached)))
    }

    /// Returns whether an export is on standby: this node neither serves the replicated volume below it nor is about
    /// to.
    pub fn is_standby(&self, saved: &SavedExport) -> bool {
        self.unserved_volume(saved).is_some_and(|(_, opens)| !opens)
    }
}
