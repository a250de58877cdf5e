//! The width of the terminal, and text that is fitted to it.

use std::io::IsTerminal;

/// Number of columns of a terminal of unknown width.
const WIDTH: u16 = 80;

/// Returns the number of columns of the terminal, or 80.
pub fn columns() -> usize {
    terminal_columns().unwrap_or(usize::from(WIDTH))
}

/// Returns the number of columns if standard output is a terminal: the variable COLUMNS if it is valid, else the terminal's width. `None`
/// if standard output is not a terminal.
pub fn terminal_columns() -> Option<usize> {
    let stdout = std::io::stdout();
    let from_variable = || parse_columns(std::env::var("COLUMNS").ok().as_deref());
    stdout.is_terminal().then(|| from_variable().unwrap_or_else(|| columns_of(&stdout)))
}

/// Parses the variable COLUMNS; `None` if it is not a positive number.
fn parse_columns(variable: Option<&str>) -> Option<usize> {
    variable?.parse::<usize>().ok().filter(|columns| *columns > 0)
}

/// Returns the number of columns of a stream that is a terminal, else 80.
pub fn columns_of(stream: &(impl IsTerminal + std::os::fd::AsFd)) -> usize {
    let size = if stream.is_terminal() { rustix::termios::tcgetwinsize(stream).ok() } else { None };
    usize::from(size.map(|size| size.ws_col).filter(|columns| *columns > 0).unwrap_or(WIDTH))
}

/// Wraps text to the width of the terminal, or to 80 columns, and starts each line with `indent`. Longer words are not split.
pub fn wrap(text: &str, indent: &str) -> String {
    let line_width = columns().saturating_sub(indent.chars().count()).max(20);
    let mut lines = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if length > 0 && length + 1 + width > line_width {
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

/// Truncates text to at most `max` characters.
pub fn truncate(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    text.chars().take(max.saturating_sub(1)).chain(['…']).collect()
}

/// Returns text for a table cell. On a terminal the text is truncated to `max` characters, or proportionally more on a terminal wider than
/// 80 columns. Without a terminal it is not truncated.
pub fn cell(text: &str, max: usize) -> String {
    terminal_columns().map_or_else(|| text.to_owned(), |columns| truncate(text, cell_width(max, columns)))
}

/// Returns the width in characters of a cell that has `max` of 80 columns.
fn cell_width(max: usize, columns: usize) -> usize {
    max.max(max.saturating_mul(columns) / usize::from(WIDTH))
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn long_text_is_truncated() {
        assert_eq!(truncate("abcdef", 4), "abc…");
        assert_eq!(truncate("abcd", 4), "abcd");
    }

    #[test]
    fn cells_are_wider_on_a_wider_terminal() {
        assert_eq!((cell_width(24, 80), cell_width(24, 160), cell_width(24, 40)), (24, 48, 24));
    }

    #[test]
    fn columns_variable_is_parsed() {
        assert_eq!(parse_columns(Some("132")), Some(132));
        for wrong in [None, Some(""), Some("0"), Some("wide"), Some("-1")] {
            assert_eq!(parse_columns(wrong), None, "{wrong:?}");
        }
    }
}
