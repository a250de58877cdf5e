//! The time of day.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the current Unix time in seconds.
pub(crate) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}
