//! What a run found, for people: a block of lines for one figure, a table for several.

use std::fmt::Write as _;

use braid_geometry::units::format_size;
use comfy_table::{Table, presets};

use super::model::{Document, Measured};

/// A time for people.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.2} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

/// A rate of bytes for people, in powers of 1000, as disks are sold by.
pub fn rate(bytes_per_second: f64) -> String {
    match bytes_per_second {
        b if b < 1e6 => format!("{:.2} kB/s", b / 1e3),
        b if b < 1e9 => format!("{:.2} MB/s", b / 1e6),
        b => format!("{:.2} GB/s", b / 1e9),
    }
}

/// A count for people.
pub fn count(n: f64) -> String {
    match n {
        n if n < 100.0 => format!("{n:.1}"),
        n => braid_terminal::output::thousands(n.round() as u64),
    }
}

/// The whole document.
pub fn text(document: &Document) -> String {
    let mut text = String::new();
    if let Some(profile) = &document.profile {
        // Writing to a String cannot fail.
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
            "what stands here was measured until then"
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

/// What a reader must not miss, below a table too.
fn problems(text: &mut String, document: &Document, result: &Measured) {
    let (target, point) = (&document.targets[result.target].label, &document.points[result.point].name);
    let place = if document.results.len() == 1 { String::new() } else { format!("{target}, {point}: ") };
    let mut line = |label: &str, value: String| {
        let _ = writeln!(text, "{label:<12}{place}{value}");
    };
    if result.behind_ios > 0 {
        line("behind", format!("{} I/Os that the rate asked for could not begin in time", result.behind_ios));
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
    // One table a load: a sweep's points are rows of it.
    for rows in document.groups() {
        let point = &document.points[rows[0]];
        let sweep = rows.len() > 1;
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
        for &row in &rows {
            for target in 0..document.targets.len() {
                if let Some(result) = document.result(target, row) {
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
        cells.extend([super::plan::short_size(point.block_bytes), point.depth.to_string()]);
    }
    cells.extend([
        count(result.iops),
        format!("{}-{}", count(result.iops_low), count(result.iops_high)),
        rate(result.bytes_per_second),
    ]);
    if compared {
        let ratio = document.comparison(result.target, result.point).and_then(|one| one.iops);
        // Against one of which nothing is known there is no ratio.
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
        cells.push(result.published.as_ref().map(super::profile::Published::text).unwrap_or_default());
    }
    cells
}
