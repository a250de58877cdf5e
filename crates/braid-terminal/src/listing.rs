//! Output of lists: as a table, as names or as JSON, with the same options for every `list` command.

use crate::output;
use clap::{Args, ValueEnum};
use comfy_table::Table;
use serde::Serialize;
use std::ffi::OsString;

/// The values of `-o`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The table with further columns, where the list has any
    Wide,
    /// The same as --json
    Json,
    /// Only the names, one per line; an empty list prints nothing
    Name,
}

/// How a list is printed: the options of every `list`.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct ListStyle {
    /// Print the list in another format; --json overrides this
    #[arg(long, short, value_name = "FORMAT", value_enum)]
    output: Option<Format>,
    /// Print only the rows of tables, without headings; an empty list prints nothing
    #[arg(long)]
    no_headers: bool,
}

impl ListStyle {
    /// Returns the style with JSON output if `json` is set, else the style itself.
    #[must_use]
    pub fn or_json(self, json: bool) -> ListStyle {
        if json { ListStyle { output: Some(Format::Json), ..self } } else { self }
    }

    /// Returns an empty table with these columns, and with further columns that only `-o wide` shows.
    #[must_use]
    pub fn table<const N: usize, const M: usize>(self, columns: [&str; N], further: [&str; M]) -> ListTable<N, M> {
        let mut table = output::bare_table();
        let is_wide = self.output == Some(Format::Wide);
        if !self.no_headers {
            table.set_header(select_columns(columns, further, is_wide));
        }
        ListTable { table, is_wide }
    }

    /// Returns the separator between two tables of one list.
    #[must_use]
    pub fn table_separator(self) -> &'static str {
        if self.no_headers { "" } else { "\n" }
    }

    /// Prints a list, and prints to standard error the reasons why objects may be missing from it.
    ///
    /// `names` is the output of `-o name`. `people` returns the tables, or the text that replaces them if the list is empty.
    pub fn print<'a, T: Serialize>(
        self,
        list: &T,
        names: impl Iterator<Item = &'a str>,
        incomplete: &[String],
        people: impl FnOnce(ListStyle) -> String,
    ) {
        if self.output == Some(Format::Json) {
            output::json(list);
            return;
        }
        output::text(&self.text(names, people));
        incomplete.iter().for_each(|why| output::error_text(&format!("this list may be incomplete: {why}\n")));
    }

    /// Returns the output of a list in a form other than JSON.
    fn text<'a>(self, names: impl Iterator<Item = &'a str>, people: impl FnOnce(ListStyle) -> String) -> String {
        let names: Vec<&str> = names.collect();
        match self.output {
            Some(Format::Name) => names.iter().map(|name| format!("{name}\n")).collect(),
            // The hint that replaces an empty table is not a line of it.
            _ if self.no_headers && names.is_empty() => String::new(),
            _ => people(self),
        }
    }
}

/// The table of a list, with `N` columns and `M` further columns.
pub struct ListTable<const N: usize, const M: usize> {
    table: Table,
    is_wide: bool,
}

impl<const N: usize, const M: usize> ListTable<N, M> {
    /// Adds a line.
    pub fn row(&mut self, cells: [String; N], further: [String; M]) {
        self.table.add_row(select_columns(cells, further, self.is_wide));
    }

    /// Right-aligns columns. The indices of the further columns follow those of the others.
    pub fn align_right<const K: usize>(&mut self, columns: [usize; K]) {
        output::align_right(&mut self.table, columns);
    }

    /// Colors the states in these columns. Called after the last line was added.
    pub fn states<const K: usize>(&mut self, columns: [usize; K]) {
        output::states(&mut self.table, columns);
    }

    /// Returns the table as text.
    #[must_use]
    pub fn render(&self) -> String {
        output::render(&self.table)
    }
}

fn select_columns<T, const N: usize, const M: usize>(cells: [T; N], further: [T; M], is_wide: bool) -> Vec<T> {
    cells.into_iter().chain(further.into_iter().filter(|_| is_wide)).collect()
}

/// Returns whether a command line requests JSON output. It need not be valid, so that a usage error can be reported as JSON as well.
pub fn requests_json(arguments: impl Iterator<Item = OsString>) -> bool {
    let words: Vec<String> = arguments
        .take_while(|argument| argument != "--")
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let has = |options: &[&str]| words.iter().any(|word| options.contains(&word.as_str()));
    let is_pair = |pair: &[String]| matches!(pair[0].as_str(), "-o" | "--output") && pair[1] == "json";
    let is_output_json = || words.windows(2).any(is_pair) || has(&["-ojson", "-o=json", "--output=json"]);
    // The -o option of `mount` has another meaning.
    has(&["--json"]) || has(&["list", "ls"]) && is_output_json()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style(output: Option<Format>, no_headers: bool) -> ListStyle {
        ListStyle { output, no_headers }
    }

    /// Returns the output of a list of objects with a name and a UUID.
    fn output_of(style: ListStyle, names: &[&str]) -> String {
        style.text(names.iter().copied(), |style| {
            if names.is_empty() {
                return "no arrays\n".to_owned();
            }
            let mut table = style.table(["NAME"], ["UUID"]);
            names.iter().for_each(|name| table.row([(*name).to_owned()], [format!("uuid-of-{name}")]));
            table.align_right([1]);
            table.render()
        })
    }

    fn words(text: &str) -> Vec<&str> {
        text.split_whitespace().collect()
    }

    #[test]
    fn wide_adds_columns_and_no_headers_omits_the_header() {
        let names = ["a", "b"];
        let check = |output, no_headers, expected: &[&str]| {
            assert_eq!(words(&output_of(style(output, no_headers), &names)), expected, "{output:?}, {no_headers}");
        };
        check(None, false, &["NAME", "a", "b"]);
        check(None, true, &["a", "b"]);
        check(Some(Format::Wide), false, &["NAME", "UUID", "a", "uuid-of-a", "b", "uuid-of-b"]);
        check(Some(Format::Wide), true, &["a", "uuid-of-a", "b", "uuid-of-b"]);
    }

    #[test]
    fn name_format_prints_one_name_per_line() {
        for no_headers in [false, true] {
            assert_eq!(
                output_of(style(Some(Format::Name), no_headers), &["tank/db", "tank/log"]),
                "tank/db\ntank/log\n"
            );
            assert_eq!(output_of(style(Some(Format::Name), no_headers), &[]), "");
        }
    }

    #[test]
    fn empty_list_prints_a_hint_unless_headers_are_omitted() {
        for output in [None, Some(Format::Wide)] {
            assert_eq!(output_of(style(output, false), &[]), "no arrays\n");
            assert_eq!(output_of(style(output, true), &[]), "");
        }
    }

    #[test]
    fn json_overrides_other_formats() {
        for output in [None, Some(Format::Wide), Some(Format::Name), Some(Format::Json)] {
            assert_eq!(style(output, false).or_json(true).output, Some(Format::Json));
            assert_eq!(style(output, false).or_json(false).output, output);
        }
    }

    #[test]
    fn json_request_is_recognized_on_any_command_line() {
        let check = |line: &str, expected: bool| {
            assert_eq!(requests_json(line.split(' ').map(OsString::from)), expected, "{line}");
        };
        for line in [
            "status --json",
            "array list -o json",
            "array ls -ojson",
            "pool list --output json --nonsense",
            "--color always volume ls --output=json",
            "job list -o=json",
        ] {
            check(line, true);
        }
        for line in ["array list", "array list -o name", "mount tank/db /srv -o json", "array show -- --json"] {
            check(line, false);
        }
    }
}
