//! How lists are printed: as a table, as names or as JSON, by options that are the same of every `list`.

use crate::output;
use clap::{Args, ValueEnum};
use comfy_table::Table;
use serde::Serialize;
use std::ffi::OsString;

/// What `-o` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The table with further columns, where the list has any
    Wide,
    /// The same as --json
    Json,
    /// The names alone, one a line; an empty list prints nothing
    Name,
}

/// How a list is printed: the options of every `list`.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct ListStyle {
    /// Print the list in another form; --json wins over it
    #[arg(long, short, value_name = "FORMAT", value_enum)]
    output: Option<Format>,
    /// Print the rows of tables alone, without headings; an empty list prints nothing
    #[arg(long)]
    no_headers: bool,
}

impl ListStyle {
    /// Returns the same style with `--json`, if that was given.
    #[must_use]
    pub fn or_json(self, json: bool) -> ListStyle {
        if json { ListStyle { output: Some(Format::Json), ..self } } else { self }
    }

    /// Begins a table of these columns, and of further ones that only `-o wide` shows.
    #[must_use]
    pub fn table<const N: usize, const M: usize>(self, columns: [&str; N], further: [&str; M]) -> ListTable<N, M> {
        let mut table = output::bare_table();
        let is_wide = self.output == Some(Format::Wide);
        if !self.no_headers {
            table.set_header(joined(columns, further, is_wide));
        }
        ListTable { table, is_wide }
    }

    /// What stands between two tables of one list.
    #[must_use]
    pub fn between_tables(self) -> &'static str {
        if self.no_headers { "" } else { "\n" }
    }

    /// Prints a list, and on standard error why objects may be missing from it.
    ///
    /// `names` are what `-o name` prints. `people` makes the tables, or what stands in their place where the list is empty.
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
        incomplete.iter().for_each(|why| output::complain(&format!("this list may not be complete: {why}\n")));
    }

    /// What is printed of a list unless it is JSON.
    fn text<'a>(self, names: impl Iterator<Item = &'a str>, people: impl FnOnce(ListStyle) -> String) -> String {
        let names: Vec<&str> = names.collect();
        match self.output {
            Some(Format::Name) => names.iter().map(|name| format!("{name}\n")).collect(),
            // A hint in place of a table is no row.
            _ if self.no_headers && names.is_empty() => String::new(),
            _ => people(self),
        }
    }
}

/// The table of a list, with `N` columns and `M` further ones.
pub struct ListTable<const N: usize, const M: usize> {
    table: Table,
    is_wide: bool,
}

impl<const N: usize, const M: usize> ListTable<N, M> {
    /// Adds a row.
    pub fn row(&mut self, cells: [String; N], further: [String; M]) {
        self.table.add_row(joined(cells, further, self.is_wide));
    }

    /// Aligns these columns of numbers to the right; the further ones count on.
    pub fn right<const K: usize>(&mut self, columns: [usize; K]) {
        output::right(&mut self.table, columns);
    }

    /// The table as text.
    #[must_use]
    pub fn render(&self) -> String {
        output::render(&self.table)
    }
}

fn joined<T, const N: usize, const M: usize>(cells: [T; N], further: [T; M], is_wide: bool) -> Vec<T> {
    cells.into_iter().chain(further.into_iter().filter(|_| is_wide)).collect()
}

/// Whether a command line asks for JSON, also one that was not understood: then its error is JSON, too.
pub fn is_json_wanted(arguments: impl Iterator<Item = OsString>) -> bool {
    let words: Vec<String> = arguments
        .take_while(|argument| argument != "--")
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let has = |wanted: &[&str]| words.iter().any(|word| wanted.contains(&word.as_str()));
    let is_pair = |pair: &[String]| matches!(pair[0].as_str(), "-o" | "--output") && pair[1] == "json";
    let is_output_json = || words.windows(2).any(is_pair) || has(&["-ojson", "-o=json", "--output=json"]);
    // `mount` has another -o.
    has(&["--json"]) || has(&["list", "ls"]) && is_output_json()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style(output: Option<Format>, no_headers: bool) -> ListStyle {
        ListStyle { output, no_headers }
    }

    /// What is printed of a list of objects with a name and a UUID.
    fn printed(style: ListStyle, names: &[&str]) -> String {
        style.text(names.iter().copied(), |style| {
            if names.is_empty() {
                return "no arrays\n".to_owned();
            }
            let mut table = style.table(["NAME"], ["UUID"]);
            names.iter().for_each(|name| table.row([(*name).to_owned()], [format!("uuid-of-{name}")]));
            table.right([1]);
            table.render()
        })
    }

    fn words(text: &str) -> Vec<&str> {
        text.split_whitespace().collect()
    }

    #[test]
    fn wide_has_further_columns_and_no_headers_the_rows_alone() {
        let names = ["a", "b"];
        let check = |output, no_headers, wanted: &[&str]| {
            assert_eq!(words(&printed(style(output, no_headers), &names)), wanted, "{output:?}, {no_headers}");
        };
        check(None, false, &["NAME", "a", "b"]);
        check(None, true, &["a", "b"]);
        check(Some(Format::Wide), false, &["NAME", "UUID", "a", "uuid-of-a", "b", "uuid-of-b"]);
        check(Some(Format::Wide), true, &["a", "uuid-of-a", "b", "uuid-of-b"]);
    }

    #[test]
    fn names_are_printed_one_a_line_and_nothing_else() {
        for no_headers in [false, true] {
            assert_eq!(printed(style(Some(Format::Name), no_headers), &["tank/db", "tank/log"]), "tank/db\ntank/log\n");
            assert_eq!(printed(style(Some(Format::Name), no_headers), &[]), "");
        }
    }

    #[test]
    fn an_empty_list_gives_a_hint_unless_rows_alone_are_wanted() {
        for output in [None, Some(Format::Wide)] {
            assert_eq!(printed(style(output, false), &[]), "no arrays\n");
            assert_eq!(printed(style(output, true), &[]), "");
        }
    }

    #[test]
    fn json_wins() {
        for output in [None, Some(Format::Wide), Some(Format::Name), Some(Format::Json)] {
            assert_eq!(style(output, false).or_json(true).output, Some(Format::Json));
            assert_eq!(style(output, false).or_json(false).output, output);
        }
    }

    #[test]
    fn json_is_recognised_on_any_command_line() {
        let check = |line: &str, wanted: bool| {
            assert_eq!(is_json_wanted(line.split(' ').map(OsString::from)), wanted, "{line}");
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
