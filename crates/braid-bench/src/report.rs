//! The report of a run as text: a block of lines for one result, a table for several.

use std::fmt::Write as _;

use braid_geometry::units::format_size;
use comfy_table::{Table, presets};

use super::figures::{count, rate, short_size, time};
use super::model::{Document, Measured};
use super::published::Published;

/// Formats the whole document.
pub fn text(document: &Document) -> String {
    let mut text = String::new();
    if let Some(profile) = &document.profile {
        // Writing to a String never fails.
        let _ = writeln!(text, "{}: {}\npublished in: {}", profile.name, profile.title, profile.source);
        for note in &profile.notes {
            let _ = writeln!(text, "  {note}");
        }
        text.push('\n');
    }
    if let [result] = &document.results[..]
        && document.profile.is_none()
    {
        one(&mut text, document, result);
    } else {
        several(&mut text, document);
    }
    for result in &document.results {
        problems(&mut text, document, result);
    }
    if document.interrupted {
        let what = if document.results.is_empty() {
            "before anything was measured"
        } else {
            "these results were measured until then"
        };
        let _ = writeln!(text, "INTERRUPTED {what}");
    }
    text
}

fn one(text: &mut String, document: &Document, result: &Measured) {
    let (target, point) = (&document.targets[result.target], &document.points[result.point]);
    let mut line = |label: &str, value: String| {
        let _ = writeln!(text, "{label:<12}{value}");
    };
    line("target", target.label.clone());
    if let Some(uri) = &target.uri {
        line("through", format!("its export {uri}"));
    }
    line("load", point.name.clone());
    line("driver", target.driver.clone());
    line("time", format!("{:.2} s, {} I/Os", result.elapsed_ns as f64 / 1e9, result.ios));
    let interval = if result.slices.len() < 2 {
        String::new()
    } else {
        format!(" ({} to {})", count(result.iops_low), count(result.iops_high))
    };
    line("rate", format!("{} IOPS{interval}, {}", count(result.iops), rate(result.bytes_per_second)));
    line("cpu", format!("{} an I/O", time(result.cpu_ns_per_io)));
    let sides = [
        ("latency", Some(&result.latency)),
        ("  reads", result.read_latency.as_ref()),
        ("  writes", result.write_latency.as_ref()),
    ];
    let both = result.read_latency.is_some() && result.write_latency.is_some();
    for (label, latency) in sides.into_iter().take(if both { 3 } else { 1 }) {
        let Some(latency) = latency else { continue };
        let at = |ns: u64| time(ns as f64);
        line(
            label,
            format!(
                "mean {}, half {}, 90% {}, 99% {}, 99.9% {}, longest {}",
                time(latency.mean_ns),
                at(latency.p50_ns),
                at(latency.p90_ns),
                at(latency.p99_ns),
                at(latency.p999_ns),
                at(latency.max_ns)
            ),
        );
    }
}

/// Appends errors, mismatches and delays of a result.
fn problems(text: &mut String, document: &Document, result: &Measured) {
    let (target, point) = (&document.targets[result.target].label, &document.points[result.point].name);
    let prefix = if document.results.len() == 1 { String::new() } else { format!("{target}, {point}: ") };
    let mut line = |label: &str, value: String| {
        let _ = writeln!(text, "{label:<12}{prefix}{value}");
    };
    if result.behind_ios > 0 {
        line("behind", format!("{} I/Os did not begin when they were due by the rate", result.behind_ios));
    }
    if result.errors > 0 {
        let first = result.first_error.as_deref().unwrap_or("unknown");
        line("errors", format!("{}; the first: {first}", result.errors));
    }
    if result.verified_bytes > 0 || result.mismatch_count > 0 {
        line("verified", format_size(result.verified_bytes));
    }
    for mismatch in &result.mismatches {
        line("WRONG", mismatch.clone());
    }
    if result.mismatch_count > result.mismatches.len() as u64 {
        line("WRONG", format!("{} blocks in all", result.mismatch_count));
    }
}

fn several(text: &mut String, document: &Document) {
    let published = document.results.iter().any(|result| result.published.is_some());
    let compared = document.targets.len() > 1;
    // One table per load: the points of a sweep are lines of it.
    for points in document.groups() {
        let point = &document.points[points[0]];
        let sweep = points.len() > 1;
        let _ = writeln!(text, "{}", if sweep { point.load() } else { point.name.clone() });
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let mut header = vec!["TARGET"];
        if sweep {
            header.extend(["BLOCK", "DEPTH"]);
        }
        header.extend(["IOPS", "INTERVAL", "RATE"]);
        if compared {
            header.push("RATIO");
        }
        header.extend(["MEAN", "P50", "P99", "P99.9", "CPU/IO"]);
        if published {
            header.push("PUBLISHED");
        }
        table.set_header(header.clone());
        for &number in &points {
            for target in 0..document.targets.len() {
                if let Some(result) = document.result(target, number) {
                    table.add_row(cells(document, result, sweep, compared, published));
                }
            }
        }
        for column in 1..header.len() - usize::from(published) {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(comfy_table::CellAlignment::Right);
            }
        }
        text.push_str(&braid_terminal::output::render(&table));
        text.push('\n');
    }
    for target in document.targets.iter().filter(|target| target.uri.is_some()) {
        let _ = writeln!(
            text,
            "{} was measured through its export {}",
            target.label,
            target.uri.as_deref().unwrap_or_default()
        );
    }
}

fn cells(document: &Document, result: &Measured, sweep: bool, compared: bool, published: bool) -> Vec<String> {
    let point = &document.points[result.point];
    let at = |ns: u64| time(ns as f64);
    let mut cells = vec![document.targets[result.target].label.clone()];
    if sweep {
        cells.extend([short_size(point.block_bytes), point.depth.to_string()]);
    }
    cells.extend([
        count(result.iops),
        format!("{}-{}", count(result.iops_low), count(result.iops_high)),
        rate(result.bytes_per_second),
    ]);
    if compared {
        let ratio = document.comparison(result.target, result.point).and_then(|one| one.iops);
        // There is no ratio if the first target has no result.
        let none = if result.target == 0 { "1" } else { "-" };
        cells.push(ratio.map_or(none.to_owned(), |ratio| format!("{:.3}", ratio.value)));
    }
    let latency = &result.latency;
    cells.extend([
        time(latency.mean_ns),
        at(latency.p50_ns),
        at(latency.p99_ns),
        at(latency.p999_ns),
        time(result.cpu_ns_per_io),
    ]);
    if published {
        cells.push(result.published.as_ref().map(Published::text).unwrap_or_default());
    }
    cells
}
