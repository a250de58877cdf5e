//! The progress of a job, in percent and in words.

use super::output;
use braid_api::Progress;
use braid_geometry::units::format_size;

/// Returns the progress of a job, in percent.
pub fn percent(progress: &Progress) -> u64 {
    (100 * u128::from(progress.done_bytes) / u128::from(progress.total_bytes.max(1))) as u64
}

/// Returns the progress of a job, in percent, with its sign.
pub fn share(progress: &Progress) -> String {
    format!("{} %", percent(progress))
}

/// Returns the progress of a job, in words.
pub fn progress(progress: &Progress) -> String {
    let left =
        progress.remaining_s.map_or(String::new(), |seconds| format!(", {} left", output::duration(seconds * 1000)));
    format!(
        "{} of {} ({}), {}/s{left}",
        format_size(progress.done_bytes),
        format_size(progress.total_bytes),
        share(progress),
        format_size(progress.rate_bytes_per_s)
    )
}
