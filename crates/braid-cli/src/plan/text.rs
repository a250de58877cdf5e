//! Formats the table for people: one line for each level, then the zones and losses of each level. Fits 80 columns.

use super::level::{LevelReport, LevelResult, Report};
use super::{Disk, PlanRequest};
use braid_format::{DATA_START_BYTES, DATA_START_SMALL_BYTES, SMALL_DEVICE_BYTES};
use braid_geometry::BLOCK_BYTES;
use braid_geometry::units::format_size;
use std::fmt::Write;

/// Maximum number of zones shown for each level; `--json` has all.
const ZONES_SHOWN: usize = 8;

pub fn table(request: &PlanRequest, report: &Report) -> String {
    let mut text = head(request);
    text.push_str("\nLEVEL         USABLE          LOST  TOLERATES    READS   WRITES   ZONES\n");
    for level in &report.levels {
        line(&mut text, level);
    }
    text.push_str(
        "TOLERATES: failures of any N disks. READS, WRITES: maximum speed in multiples of\n\
         one disk, if all are equally fast; here of the whole array, below of each zone.\n",
    );
    if report.levels.iter().any(|level| level.possible && matches!(level.level, "raid5" | "raid6")) {
        text.push_str("raid5, raid6: full-stripe writes; smaller writes take a read-modify-write.\n");
    }
    for level in &report.levels {
        if let Some(result) = &level.result {
            details(&mut text, level, result);
        }
    }
    text
}

/// Appends to a text, which cannot fail.
macro_rules! put {
    ($text:expr, $($arg:tt)*) => { let _ = writeln!($text, $($arg)*); };
}

/// Returns the summary of the disks, and the space that Braid's metadata takes.
pub fn head(request: &PlanRequest) -> String {
    let mut text = String::new();
    let what = if request.data_sizes { "data area" } else { "disk" };
    let total: u64 = request.disks.iter().map(|disk| disk.size_bytes).sum();
    let count = request.disks.len();
    let plural = if count == 1 { "" } else { "s" };
    put!(text, "{count} {what}{plural}: {}; together {}.", sizes(&request.disks), format_size(total));
    if request.data_sizes {
        text.push_str("The sizes are those of the data areas (--data-sizes).\n");
    } else {
        let (start, small) = (format_size(DATA_START_BYTES), format_size(DATA_START_SMALL_BYTES));
        put!(text, "Metadata takes {start} at the start of each disk ({small} on disks under");
        put!(text, "{}) and {} at its end.", format_size(SMALL_DEVICE_BYTES), format_size(BLOCK_BYTES));
    }
    put!(text, "Chunk {}, zones {}.", format_size(request.chunk_bytes), request.zones);
    if let Some(journal) = &request.journal {
        let (used, size) = (format_size(journal.journal_bytes), format_size(journal.disk_size_bytes));
        put!(text, "Journal of raid5 and raid6: {used} on a dedicated disk of {size}.");
    }
    text
}

/// Formats the sizes: counts runs of equal sizes; many different sizes are only bounded.
fn sizes(disks: &[Disk]) -> String {
    let mut groups: Vec<(u64, usize)> = Vec::new();
    for disk in disks {
        match groups.last_mut() {
            Some((size, count)) if *size == disk.size_bytes => *count += 1,
            _ => groups.push((disk.size_bytes, 1)),
        }
    }
    if groups.len() > 3 {
        let smallest = disks.iter().map(|disk| disk.size_bytes).min().unwrap_or(0);
        let largest = disks.iter().map(|disk| disk.size_bytes).max().unwrap_or(0);
        return format!("{} to {}", format_size(smallest), format_size(largest));
    }
    let words: Vec<String> = groups
        .into_iter()
        .map(|(size, count)| if count == 1 { format_size(size) } else { format!("{count} x {}", format_size(size)) })
        .collect();
    words.join(", ")
}

fn line(text: &mut String, level: &LevelReport) {
    match (&level.result, &level.reason) {
        (Some(result), _) => {
            put!(
                text,
                "{:<7} {:>12}  {:>12}   {:>8}   {:>6.2}   {:>6.2}   {:>5}",
                level.level,
                format_size(result.array_size_bytes),
                format_size(result.lost_bytes),
                result.disks_may_fail,
                result.speedup_reads,
                result.speedup_writes,
                result.zones.len()
            );
        }
        (None, reason) => {
            let reason = reason.as_deref().unwrap_or("");
            let reason = reason.strip_prefix(level.level).unwrap_or(reason).trim_start();
            put!(text, "{:<7} not possible: {reason}", level.level);
        }
    }
}

fn details(text: &mut String, level: &LevelReport, result: &LevelResult) {
    let copies = level.copies.map_or(String::new(), |copies| format!(", {copies} copies"));
    put!(text, "\n{} ({}{copies})", level.level, level.layout);
    // A single zone beyond the limit is shown instead of a line that replaces it.
    let shown = if result.zones.len() <= ZONES_SHOWN + 1 { result.zones.len() } else { ZONES_SHOWN };
    for (number, zone) in result.zones[..shown].iter().enumerate() {
        put!(
            text,
            "  zone {number:<2} {:>12} on {}: reads {:.2}, writes {:.2}, tolerates {}",
            format_size(zone.array_size_bytes),
            disks(&zone.members),
            zone.speedup_reads,
            zone.speedup_writes,
            zone.disks_may_fail
        );
    }
    if shown < result.zones.len() {
        put!(text, "  and {} more zones (all of them with --json)", result.zones.len() - shown);
    }
    for loss in &result.lost {
        put!(text, "  lost    {:>12} to {}", format_size(loss.bytes), loss.why);
    }
}

/// `disk 2`, `disks 0-2`, `disks 0, 3-4`; only their number where that gets long.
pub fn disks(members: &[u16]) -> String {
    let mut spans: Vec<(u16, u16)> = Vec::new();
    for &member in members {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == member => *last = member,
            _ => spans.push((member, member)),
        }
    }
    let spans: Vec<String> = spans
        .into_iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    let list = format!("disk{} {}", if members.len() == 1 { "" } else { "s" }, spans.join(", "));
    if list.len() <= 15 { list } else { format!("{} disks", members.len()) }
}
