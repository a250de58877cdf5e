//! What commands print: JSON for programs, tables for people.

use braid_geometry::units::format_size;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use std::io::{ErrorKind, IsTerminal, Write};

/// Columns of a terminal of which the width is not known.
const WIDTH: u16 = 80;

/// Prints `value` as one JSON document.
pub fn json<T: Serialize>(value: &T) {
    let mut text = serde_json::to_string_pretty(value).expect("the API's types have string keys and no failing fields");
    text.push('\n');
    text_to(&mut std::io::stdout().lock(), &text);
}

/// Prints `value` as one line of JSON.
pub fn json_line<T: Serialize>(value: &T) {
    let mut text = serde_json::to_string(value).expect("the API's types have string keys and no failing fields");
    text.push('\n');
    text_to(&mut std::io::stdout().lock(), &text);
}

/// Prints text for people on standard output.
pub fn text(text: &str) {
    text_to(&mut anstream::stdout().lock(), text);
}

/// Prints text for people on standard error.
pub fn complain(text: &str) {
    text_to(&mut anstream::stderr().lock(), text);
}

/// Prints `value` as JSON, or what `people` makes of it.
pub fn show<T: Serialize>(as_json: bool, value: &T, people: impl FnOnce(&T) -> String) {
    if as_json {
        json(value);
    } else {
        text(&people(value));
    }
}

/// What stands in place of a list without rows: how to make the first object, or that none is known yet.
pub fn none(what: &str, incomplete: &[String], make: &str) -> String {
    if incomplete.is_empty() {
        format!("no {what}; make one with: {make}\n")
    } else {
        format!("no {what} are known yet\n")
    }
}

fn text_to(stream: &mut impl Write, text: &str) {
    let written = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
    if let Err(error) = written {
        // `braid … | head` is no failure of ours; anything else that prevents output is, and there is no
        // place left to say so.
        let status = if error.kind() == ErrorKind::BrokenPipe { 0 } else { 1 };
        std::process::exit(status);
    }
}

/// Columns of the terminal, or 80.
pub fn columns() -> usize {
    terminal_columns().unwrap_or(usize::from(WIDTH))
}

/// Columns of the terminal that standard output is, by the variable COLUMNS where that is set; none where it is no terminal.
pub fn terminal_columns() -> Option<usize> {
    let stdout = std::io::stdout();
    let chosen = || columns_chosen(std::env::var("COLUMNS").ok().as_deref());
    stdout.is_terminal().then(|| chosen().unwrap_or_else(|| columns_of(&stdout)))
}

/// What the variable COLUMNS says, if it is a number of columns.
fn columns_chosen(variable: Option<&str>) -> Option<usize> {
    variable?.parse::<usize>().ok().filter(|columns| *columns > 0)
}

/// Columns of the terminal that this is, or 80.
pub fn columns_of(stream: &(impl IsTerminal + std::os::fd::AsFd)) -> usize {
    let size = if stream.is_terminal() { rustix::termios::tcgetwinsize(stream).ok() } else { None };
    usize::from(size.map(|size| size.ws_col).filter(|columns| *columns > 0).unwrap_or(WIDTH))
}

/// Text in lines that fit the terminal, or 80 columns, each behind `indent`. Words that are longer stay whole.
pub fn wrap(text: &str, indent: &str) -> String {
    let room = columns().saturating_sub(indent.chars().count()).max(20);
    let mut lines = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if length > 0 && length + 1 + width > room {
            lines.push('\n');
            length = 0;
        }
        if length == 0 {
            lines.push_str(indent);
        } else {
            lines.push(' ');
            length += 1;
        }
        lines.push_str(word);
        length += width;
    }
    lines.push('\n');
    lines
}

/// A table with this header that fits the terminal. Where there is no terminal its rows are as long as they are.
pub fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = bare_table();
    table.set_header(header);
    table
}

/// The same without a header.
pub fn bare_table() -> Table {
    table_of(terminal_columns())
}

/// A table that fits so many columns, or has no limit.
fn table_of(columns: Option<usize>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
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

/// Aligns these columns of numbers to the right.
pub fn right<const N: usize>(table: &mut Table, columns: [usize; N]) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// The table as text, without spaces at the ends of lines.
pub fn render(table: &Table) -> String {
    let mut text = table.trim_fmt();
    text.push('\n');
    text
}

/// Cuts text for a cell to at most `max` characters.
pub fn cut(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    text.chars().take(max.saturating_sub(1)).chain(['…']).collect()
}

/// Text for a cell of a table: cut at a terminal to at most `max` characters, or to more on one that is wider than 80 columns; whole elsewhere.
pub fn cell(text: &str, max: usize) -> String {
    terminal_columns().map_or_else(|| text.to_owned(), |columns| cut(text, room(max, columns)))
}

/// Characters for a cell that has `max` of 80 columns.
fn room(max: usize, columns: usize) -> usize {
    max.max(max.saturating_mul(columns) / usize::from(WIDTH))
}

/// Bytes, or a dash where they were not counted.
pub fn counted(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), format_size)
}

/// What a volume or snapshot shows and shares, a line each.
pub fn space(space: Option<&braid_api::Space>, line: &mut impl FnMut(&str, String)) {
    let Some(space) = space else { return };
    let bytes = |bytes: u64| format!("{} ({} bytes)", format_size(bytes), thousands(bytes));
    line("data", bytes(space.data_bytes));
    line("exclusive", format!("{}: nobody else has it", bytes(space.exclusive_bytes)));
    line("shared", format!("{} with other volumes and snapshots", bytes(space.shared_bytes)));
    if space.in_doubt_bytes > 0 {
        line("doubtful", format!("{}, at most, reads as errors", bytes(space.in_doubt_bytes)));
    }
}

/// A number with commas between thousands.
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

/// A time span for people: `850 ns`, `12.3 µs`, `4.0 ms`, `1.5 s`.
pub fn nanoseconds(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

/// A length of time for people: `5s`, `3m 20s`, `2h 5m`, `4d 1h`.
pub fn duration(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m {}s", s / 60, s % 60),
        3600..86_400 => format!("{}h {}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d {}h", s / 86_400, s % 86_400 / 3600),
    }
}

/// A moment as `2026-11-21 14:03:59` in UTC.
pub fn moment(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (year, month, day) = braid_api::names::civil(seconds / 86_400);
    let (h, m, s) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {h:02}:{m:02}:{s:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_utc() {
        assert_eq!(moment(0), "1970-01-01 00:00:00");
        assert_eq!(moment(951_782_400_000), "2000-02-29 00:00:00");
        assert_eq!(moment(1_795_226_639_999), "2026-11-21 02:03:59");
        assert_eq!(moment(4_107_542_400_000), "2100-03-01 00:00:00");
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(268_435_456_000), "268,435,456,000");
        assert_eq!(nanoseconds(850), "850 ns");
        assert_eq!(nanoseconds(12_345), "12.3 µs");
        assert_eq!(duration(200_000), "3m 20s");
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("abcd", 4), "abcd");
    }

    #[test]
    fn text_is_wrapped_at_words() {
        let text = wrap(&"some words and more of them ".repeat(12), "    ");
        assert!(text.lines().count() > 3);
        assert!(
            text.lines().all(|line| line.starts_with("    some") || line.starts_with("    ") && line.len() <= 80),
            "{text}"
        );
        assert_eq!(text.split_whitespace().count(), 72);
        assert_eq!(wrap("", "  "), "\n");
    }

    /// A table of one row with a long name and a long text, as it is printed.
    fn printed(columns: Option<usize>) -> String {
        let mut table = table_of(columns);
        table.set_header(["NAME", "WHAT"]);
        table.add_row(["x".repeat(63), "words and words ".repeat(20)]);
        render(&table)
    }

    #[test]
    fn tables_fit_the_terminal() {
        for columns in [80, 120, 200] {
            let text = printed(Some(columns));
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}: {text}");
        }
        assert!(printed(Some(80)).lines().count() > printed(Some(200)).lines().count());
    }

    #[test]
    fn tables_are_not_wrapped_where_there_is_no_terminal() {
        let text = printed(None);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains(&"x".repeat(63)) && text.contains("words and words ".repeat(20).trim_end()), "{text}");
    }

    #[test]
    fn cells_have_more_room_on_a_wider_terminal() {
        assert_eq!((room(24, 80), room(24, 160), room(24, 40)), (24, 48, 24));
    }

    #[test]
    fn columns_are_read_from_the_variable() {
        assert_eq!(columns_chosen(Some("132")), Some(132));
        for wrong in [None, Some(""), Some("0"), Some("wide"), Some("-1")] {
            assert_eq!(columns_chosen(wrong), None, "{wrong:?}");
        }
    }
}
