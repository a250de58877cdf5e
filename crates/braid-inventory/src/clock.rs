//! The wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the current time, in milliseconds of Unix time; 0 if the clock is before 1970.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
