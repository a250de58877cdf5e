//! What of a pool's tables is damaged.

/// That so many records are.
pub(super) fn in_words(pool: &str, damaged: u32) -> String {
    let records = super::super::counted(damaged as usize, "record", "records");
    format!(
        "{records} of the tables of pool {pool} cannot be believed: volumes and snapshots that may have had something there are read-only, and what of them is not on record elsewhere cannot be read"
    )
}
