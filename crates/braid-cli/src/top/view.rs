//! Formats rates as lines of text that fit a width.

use super::rates::{ArrayRates, DiskRates, ExportRates, Flow, Rates};
use crate::color::{BAD, STRONG, paint};
use braid_api::{DiskState, ExportState, Health, MemberState};
use braid_terminal::output;

/// The minimum width that lines are laid out for, in columns; on a narrower screen they are cut.
const COLUMNS_MIN: usize = 60;

/// The width of a table that is not shown at a terminal, in columns, unless a name is longer.
const COLUMNS_USUAL: usize = 80;

/// Returns the number of columns with which no name is cut.
pub fn columns_wanted(rates: &Rates) -> usize {
    let length = |name: &str, note: &str| name.chars().count() + note.chars().count();
    let exports = rates.exports.iter().map(|export| length(&export.name, &note(export)));
    let arrays = rates.arrays.iter().map(|array| length(&array.name, &array_note(array)));
    let disks = rates.disks.iter().map(|disk| {
        let (name, note) = name(disk);
        length(name, &note)
    });
    let longest = exports.chain(arrays).chain(disks).max().unwrap_or(0);
    COLUMNS_USUAL.max(longest + WIDTHS.iter().sum::<usize>())
}

/// Returns the lines of all sections: exports, arrays, disks.
pub fn lines(rates: &Rates, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    section(&mut lines, columns, "EXPORT", ["READ/S", "WRITE/S", "READ", "WRITTEN", "P50", "P99", "CONN"]);
    for export in &rates.exports {
        let bad = export.state == ExportState::Failed || export.flow.errors > 0;
        let clients = u64::from(export.connections);
        let cells = timed(&export.flow, export.latency_ns_p50, export.latency_ns_p99, clients);
        lines.push(line(columns, (&export.name, &note(export)), cells, bad));
    }
    lines.push(String::new());
    section(&mut lines, columns, "ARRAY", ["READ/S", "WRITE/S", "READ", "WRITTEN", "P50", "P99", "BUSY"]);
    for array in &rates.arrays {
        let cells = timed(&array.flow, array.latency_ns_p50, array.latency_ns_p99, array.in_flight);
        let bad = array.bad_disks > 0 || array.flow.errors > 0 || lacks_redundancy(array);
        lines.push(line(columns, (&array.name, &array_note(array)), cells, bad));
    }
    lines.push(String::new());
    section(&mut lines, columns, "DISK", ["READ/S", "WRITE/S", "READ", "WRITTEN", "P50", "P99", "BUSY"]);
    for disk in &rates.disks {
        let cells = timed(&disk.flow, disk.latency_ns_p50, disk.latency_ns_p99, disk.in_flight);
        let (name, note) = name(disk);
        lines.push(line(columns, (name, &note), cells, disk.state != DiskState::Ok || disk.flow.errors > 0));
    }
    lines
}

/// Whether the array has less redundancy than it should have.
fn lacks_redundancy(array: &ArrayRates) -> bool {
    matches!(array.health, Some(Health::Rebuilding | Health::Degraded | Health::Failed))
}

/// Returns the note on an array.
fn array_note(array: &ArrayRates) -> String {
    let percent = array.done_percent.map(|percent| format!("{percent} %"));
    match (array.health.filter(|health| *health != Health::Whole), percent) {
        (None, None) => String::new(),
        (None, Some(percent)) => format!(" ({percent})"),
        (Some(health), None) => format!(" ({})", health.word()),
        (Some(health), Some(percent)) => format!(" ({} {percent})", health.word()),
    }
}

/// Returns the note on an export.
fn note(export: &ExportRates) -> String {
    match (export.state, export.flow.errors) {
        (ExportState::Listening, 0) => String::new(),
        (ExportState::Listening, errors) => errors_note(errors),
        (state, _) => format!(" ({})", state.word()),
    }
}

fn errors_note(errors: u64) -> String {
    format!(" ({} {})", number(errors as f64), if errors == 1 { "error" } else { "errors" })
}

/// Returns the name of a disk, and the note on it.
fn name(disk: &DiskRates) -> (&str, String) {
    // Disks differ in the ends of their paths, not in the beginnings.
    let name = disk.name.rsplit('/').next().filter(|_| !disk.name.contains('(')).unwrap_or(&disk.name);
    match (disk.state, disk.flow.errors) {
        (DiskState::Ok, 0) => match disk.member {
            Some(member @ (MemberState::Rebuilding | MemberState::Spare | MemberState::Journal)) => {
                (name, format!(" ({})", member.word()))
            }
            _ => (name, String::new()),
        },
        (DiskState::Ok, errors) => (name, errors_note(errors)),
        (state, _) => (name, format!(" ({})", state.word())),
    }
}

/// Widths of the columns after the name, including the space before each.
const WIDTHS: [usize; 7] = [8, 8, 9, 9, 8, 8, 5];

fn section(lines: &mut Vec<String>, columns: usize, name: &str, cells: [&str; 7]) {
    lines.push(paint(STRONG, &plain(columns, (name, ""), &cells.map(str::to_owned))));
}

fn line(columns: usize, name: (&str, &str), cells: [String; 7], bad: bool) -> String {
    let text = plain(columns, name, &cells);
    if bad { paint(BAD, &text) } else { text }
}

fn plain(columns: usize, (name, note): (&str, &str), cells: &[String; 7]) -> String {
    let room = columns.max(COLUMNS_MIN) - WIDTHS.iter().sum::<usize>();
    // The note is never cut in favour of the name.
    let named = output::truncate(name, room.saturating_sub(note.chars().count())) + note;
    let mut text = output::truncate(&named, room);
    text.push_str(&" ".repeat(room.saturating_sub(text.chars().count())));
    for (cell, width) in cells.iter().zip(WIDTHS) {
        text.push_str(&format!("{cell:>width$}"));
    }
    output::truncate(text.trim_end(), columns)
}

fn timed(flow: &Flow, p50: u64, p99: u64, last: u64) -> [String; 7] {
    let time = |ns: u64| if ns == 0 { "-".to_owned() } else { short_time(ns) };
    [
        number(flow.reads_per_second),
        number(flow.writes_per_second),
        bytes(flow.read_bytes_per_second),
        bytes(flow.written_bytes_per_second),
        time(p50),
        time(p99),
        number(last as f64),
    ]
}

/// Formats a number in at most five characters: `0`, `950`, `12.3k`, `4.0M`.
fn number(value: f64) -> String {
    scaled(value, 1000.0, ["", "k", "M", "G", "T"])
}

/// Formats bytes per second in at most seven characters: `0`, `512B`, `12.3M`.
fn bytes(value: f64) -> String {
    scaled(value, 1024.0, ["B", "K", "M", "G", "T"])
}

fn scaled(value: f64, step: f64, units: [&str; 5]) -> String {
    if value < 0.5 {
        return "0".to_owned();
    }
    let (mut value, mut unit) = (value, 0);
    // A value that would round up to 1 of the next unit is written in that unit.
    while value >= step - 0.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    if unit == 0 || value >= 99.95 {
        format!("{value:.0}{}", units[unit])
    } else {
        format!("{value:.1}{}", units[unit])
    }
}

/// Formats a latency in at most six characters: `850ns`, `12.3µs`, `4.0ms`, `1.5s`.
fn short_time(ns: u64) -> String {
    let ns = ns as f64;
    let (unit, size) = match ns {
        ..999.5 => return format!("{ns:.0}ns"),
        ..999_500.0 => ("µs", 1e3),
        ..999_500_000.0 => ("ms", 1e6),
        _ => ("s", 1e9),
    };
    let value = ns / size;
    if value >= 99.95 { format!("{value:.0}{unit}") } else { format!("{value:.1}{unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::rates::ExportRates;

    #[test]
    fn numbers_are_short() {
        let check = |value: f64, text: &str| assert_eq!(number(value), text);
        check(0.0, "0");
        check(0.7, "1");
        check(999.0, "999");
        check(999.7, "1.0k");
        check(12_345.0, "12.3k");
        check(999_960.0, "1.0M");
        check(123_456_789.0, "123M");
        assert_eq!(bytes(512.0), "512B");
        assert_eq!(bytes(1536.0), "1.5K");
        assert_eq!(bytes(1e10), "9.3G");
        for power in 0..50 {
            assert!(number(1.99 * 10f64.powi(power)).len() <= 5 || power > 14);
        }
    }

    #[test]
    fn no_line_is_longer_than_the_screen() {
        let long = "x".repeat(63);
        let big = Flow {
            reads_per_second: 9_999_999.0,
            writes_per_second: 123_456.0,
            read_bytes_per_second: 1.2e11,
            written_bytes_per_second: 9.9e11,
            errors: 123_456,
        };
        let (state, array, name) = (ExportState::Listening, long.clone(), long.clone());
        let rates = Rates {
            interval_ns: 1_000_000_000,
            exports: vec![ExportRates {
                name: name.clone(),
                array: array.clone(),
                state,
                connections: 64,
                flow: big,
                latency_ns_p50: 99_949_999,
                latency_ns_p99: 1_000_000_000_000,
            }],
            arrays: vec![ArrayRates {
                name: name.clone(),
                bad_disks: 1,
                health: Some(Health::Rebuilding),
                done_percent: Some(100),
                flow: big,
                in_flight: 99_999,
                latency_ns_p50: 999_999,
                latency_ns_p99: 999_999_999,
            }],
            disks: vec![DiskRates {
                name: format!("/dev/disk/by-id/{name}"),
                array,
                slot: 127,
                state: DiskState::Hanging,
                member: Some(MemberState::Rebuilding),
                flow: big,
                in_flight: 99_999,
                latency_ns_p50: 999,
                latency_ns_p99: 30_000_000_000,
            }],
        };
        for columns in [1, 20, 60, 80, 120, 250] {
            for line in lines(&rates, columns) {
                let plain = anstream::adapter::strip_str(&line).to_string();
                assert!(plain.chars().count() <= columns, "{columns}: {plain}");
            }
        }
        // With enough columns, nothing is cut.
        let whole = lines(&rates, columns_wanted(&rates)).join("\n");
        assert!(!whole.contains('…') && whole.contains(&long), "{whole}");
        // Neighbouring columns are separated.
        let lines = lines(&rates, 80);
        let cells = |line: &String| anstream::adapter::strip_str(line).to_string().split_whitespace().count();
        assert_eq!(lines.iter().map(cells).collect::<Vec<_>>(), [8, 10, 0, 8, 11, 0, 8, 9], "{lines:?}");
    }

    #[test]
    fn latencies_are_short() {
        let check = |ns: u64, text: &str| assert_eq!(short_time(ns), text);
        check(1, "1ns");
        check(999, "999ns");
        check(1999, "2.0µs");
        check(99_999, "100µs");
        check(999_499, "999µs");
        check(999_999, "1.0ms");
        check(30_000_000_000, "30.0s");
        check(999_999_999, "1.0s");
    }
}
