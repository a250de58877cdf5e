//! The page `docs/benchmarks.md`.

use std::fmt::Write as _;

use super::{Row, Target};
use crate::machine;

/// One part of the table.
pub struct Section {
    /// Its title.
    pub title: &'static str,
    /// Its rows.
    pub rows: Vec<Row>,
    /// Why it could not be measured to its end.
    pub failure: Option<String>,
}

const HEAD: &str = "\
Written by `make bench`; do not edit. `FULL=1 make bench` measures longer.

Everything is measured in pairs: A and B alternate in slices within one run, each slice a process of its own, pinned to
one core (servers to one, clients to the other). A figure is the ratio of the medians; in brackets stands the interval that
holds 95 of 100 resamplings of the pairs (for figures without a rival: the range that was seen). A target is missed
(**MISS**) when the whole interval lies on its wrong side. CPU is processor time of the process with all its threads,
kernel workers of its ring included. Braid runs with its counters and histograms on. How to read and repeat
the rows is in [testing.md](testing.md).
";

/// The whole page.
pub fn page(sections: &[Section], full: bool) -> String {
    let mut page = String::from("# Benchmarks\n\n");
    page.push_str(HEAD);
    // Writing to a String cannot fail.
    let length = if full { "long" } else { "short" };
    let _ = writeln!(page, "\n{}, a {length} run on {}.", machine::today(), machine::describe());
    for section in sections {
        let _ = writeln!(page, "\n## {}\n", section.title);
        if !section.rows.is_empty() {
            page.push_str("| measure | figure | interval | target | | medians |\n|---|---|---|---|---|---|\n");
        }
        for row in &section.rows {
            let ratio = row.ratio;
            let digits = if ratio.value.abs() < 0.1 { 4 } else { 3 };
            let target = match row.target {
                Target::AtMost(bound) => format!("≤ {bound}"),
                Target::AtLeast(bound) => format!("≥ {bound}"),
                Target::Shown => String::new(),
            };
            let verdict = if row.missed() { "**MISS**" } else { "" };
            let _ = writeln!(
                page,
                "| {} | {:.digits$} | {:.digits$} to {:.digits$} | {target} | {verdict} | {} |",
                row.measure, ratio.value, ratio.low, ratio.high, row.detail
            );
        }
        if let Some(failure) = &section.failure {
            let _ = writeln!(page, "\nNot measured: {failure}");
        }
    }
    page
}
