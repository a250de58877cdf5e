//! Printing and formatting: JSON for programs, text and tables for people.

use crate::{color, progress};
use braid_geometry::units::format_size;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use std::io::{ErrorKind, Write};

pub use crate::width::{cell, columns, columns_of, terminal_columns, truncate, wrap};

/// Prints `value` as one JSON document.
pub fn json<T: Serialize>(value: &T) {
    let mut text = serde_json::to_string_pretty(value).expect("the API's types have string keys and no failing fields");
    text.push('\n');
    let _held = progress::hold();
    write_text(&mut std::io::stdout().lock(), &text);
}

/// Prints `value` as one line of JSON.
pub fn json_line<T: Serialize>(value: &T) {
    let mut text = serde_json::to_string(value).expect("the API's types have string keys and no failing fields");
    text.push('\n');
    let _held = progress::hold();
    write_text(&mut std::io::stdout().lock(), &text);
}

/// Prints text to standard output.
pub fn text(text: &str) {
    let _held = progress::hold();
    write_text(&mut anstream::stdout().lock(), text);
}

/// Prints text to standard error.
pub fn error_text(text: &str) {
    let _held = progress::hold();
    write_text(&mut anstream::stderr().lock(), text);
}

/// Prints `value` as JSON, or as the text that `people` returns.
pub fn show<T: Serialize>(as_json: bool, value: &T, people: impl FnOnce(&T) -> String) {
    if as_json {
        json(value);
    } else {
        text(&people(value));
    }
}

/// Returns the text that replaces an empty list: how to create the first object, or, if the list may be incomplete, that none is known
/// yet.
pub fn empty_list(what: &str, incomplete: &[String], make: &str) -> String {
    if incomplete.is_empty() {
        format!("no {what}; create one with: {make}\n")
    } else {
        format!("no {what} are known yet\n")
    }
}

fn write_text(stream: &mut impl Write, text: &str) {
    let written = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
    if let Err(error) = written {
        // A closed pipe (`braid … | head`) is not a failure of the command. Any other error is, and it cannot be reported.
        let status = if error.kind() == ErrorKind::BrokenPipe { 0 } else { 1 };
        std::process::exit(status);
    }
}

/// Returns an empty table with this header that is wrapped to the width of the terminal, or not wrapped without a terminal.
pub fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = bare_table();
    table.set_header(header);
    table
}

/// Returns the same as [`table`] without a header.
pub fn bare_table() -> Table {
    table_of(terminal_columns())
}

/// Returns an empty table that is wrapped to a number of columns, or not wrapped.
fn table_of(columns: Option<usize>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    // Styles are always written, and removed when the text is printed without color.
    table.enforce_styling().style_text_only();
    match columns {
        Some(columns) => {
            table.set_content_arrangement(ContentArrangement::Dynamic);
            table.set_width(u16::try_from(columns).unwrap_or(u16::MAX));
        }
        None => {
            table.set_content_arrangement(ContentArrangement::Disabled);
        }
    }
    table
}

/// Right-aligns columns of a table.
pub fn align_right<const N: usize>(table: &mut Table, columns: [usize; N]) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// Colors the states in these columns of a table. Called after the last line was added.
pub fn states<const N: usize>(table: &mut Table, columns: [usize; N]) {
    for line in table.row_iter_mut() {
        let cells = line.cell_iter().enumerate().map(|(number, cell)| match columns.contains(&number) {
            true => color::state_cell(&cell.content()),
            false => cell.clone(),
        });
        *line = cells.collect::<Vec<Cell>>().into();
    }
}

/// Returns a table as text, without trailing spaces.
pub fn render(table: &Table) -> String {
    let mut text = table.trim_fmt();
    text.push('\n');
    text
}

/// Formats a size, or returns a dash if it is unknown.
pub fn size_or_dash(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), format_size)
}

/// Passes the lines about the space of a volume or snapshot to `line`.
pub fn space(space: Option<&braid_api::Space>, line: &mut impl FnMut(&str, String)) {
    let Some(space) = space else { return };
    let bytes = |bytes: u64| format!("{} ({} bytes)", format_size(bytes), thousands(bytes));
    line("data", bytes(space.data_bytes));
    line("exclusive", format!("{}: not shared", bytes(space.exclusive_bytes)));
    line("shared", format!("{} with other volumes and snapshots", bytes(space.shared_bytes)));
    if space.in_doubt_bytes > 0 {
        line("doubtful", format!("{}, at most, reads as errors", bytes(space.in_doubt_bytes)));
    }
}

/// Formats a number with commas between thousands.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a time in nanoseconds: `850 ns`, `12.3 µs`, `4.0 ms`, `1.5 s`.
pub fn nanoseconds(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

/// Formats a duration in milliseconds: `5s`, `3m 20s`, `2h 5m`, `4d 1h`.
pub fn duration(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m {}s", s / 60, s % 60),
        3600..86_400 => format!("{}h {}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d {}h", s / 86_400, s % 86_400 / 3600),
    }
}

/// Formats a Unix time in milliseconds as `2026-11-21 14:03:59` in UTC.
pub fn utc_time(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (year, month, day) = braid_api::names::civil(seconds / 86_400);
    let (h, m, s) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {h:02}:{m:02}:{s:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_in_utc() {
        assert_eq!(utc_time(0), "1970-01-01 00:00:00");
        assert_eq!(utc_time(951_782_400_000), "2000-02-29 00:00:00");
        assert_eq!(utc_time(1_795_226_639_999), "2026-11-21 02:03:59");
        assert_eq!(utc_time(4_107_542_400_000), "2100-03-01 00:00:00");
    }

    #[test]
    fn numbers_and_durations_are_formatted() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(268_435_456_000), "268,435,456,000");
        assert_eq!(nanoseconds(850), "850 ns");
        assert_eq!(nanoseconds(12_345), "12.3 µs");
        assert_eq!(duration(200_000), "3m 20s");
    }

    /// Returns the output of a table with one row, which has a long name and a long text.
    fn output_of(columns: Option<usize>) -> String {
        let mut table = table_of(columns);
        table.set_header(["NAME", "WHAT"]);
        table.add_row(["x".repeat(63), "words and words ".repeat(20)]);
        render(&table)
    }

    #[test]
    fn tables_fit_the_terminal() {
        for columns in [80, 120, 200] {
            let text = output_of(Some(columns));
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}: {text}");
        }
        assert!(output_of(Some(80)).lines().count() > output_of(Some(200)).lines().count());
    }

    #[test]
    fn tables_are_not_wrapped_without_a_terminal() {
        let text = output_of(None);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains(&"x".repeat(63)) && text.contains("words and words ".repeat(20).trim_end()), "{text}");
    }
}
