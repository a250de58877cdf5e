//! The document as an HTML page with charts: self-contained, without scripts or external resources, light and dark.

mod bars;
mod lines;
mod scale;

use std::fmt::Write as _;

use braid_geometry::units::format_size;

use super::figures::{count, rate, short_size, time};
use super::model::{Document, Measured};
use bars::Bar;
use lines::{Axis, Dot, Series};
use scale::{Kind, Scale};

/// The number of colours. Further targets reuse them.
const COLOURS: usize = 8;
/// Maximum number of targets of a load whose result is shown in large type.
const LEADS_MAX: usize = 4;
const STYLE: &str = include_str!("style.css");

/// Escapes text for an element or an attribute.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Formats the page.
pub fn page(document: &Document) -> String {
    let title = match &document.profile {
        Some(profile) => format!("{}: {}", profile.name, profile.title),
        None if document.targets.len() == 1 => format!("How fast is {}", document.targets[0].label),
        None => format!("{} targets compared", document.targets.len()),
    };
    let mut body = String::new();
    head(&mut body, document, &title);
    for group in document.groups() {
        section(&mut body, document, &group);
    }
    table(&mut body, document);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{}</title>\n<style>\n{STYLE}</style></head>\n<body><main>\n{body}</main></body></html>\n",
        escape(&title)
    )
}

fn head(body: &mut String, document: &Document, title: &str) {
    let when = braid_terminal::output::utc_time(document.begun_unix_ms);
    // Writing to a String never fails.
    let _ = writeln!(body, "<h1>{}</h1>", escape(title));
    if document.interrupted {
        body.push_str("<p class=\"wrong\">Interrupted: these results were measured until then.</p>\n");
    }
    leads(body, document);
    let _ = writeln!(
        body,
        "<p class=\"soft\">Measured by <code>braid bench</code> {} on {}, {when} UTC. Targets take turns in {} slice(s) a point; \
         bands and whiskers hold 95 of 100 resamplings of the slices' median.</p>",
        escape(&document.braid),
        escape(&document.machine),
        document.slices
    );
    if let Some(profile) = &document.profile {
        let _ = writeln!(body, "<p>Published figures: {}.</p><ul class=\"notes\">", escape(&profile.source));
        for note in &profile.notes {
            let _ = writeln!(body, "<li>{}</li>", escape(note));
        }
        let disks = if profile.stand_ins {
            "Measured on the profile's stand-ins."
        } else {
            "Measured on disks that were named."
        };
        let _ = writeln!(body, "<li>{disks}</li></ul>");
    }
    // The list of many targets is collapsed, so that the charts stay on the first screen.
    let collapsed = document.targets.len() > 4;
    if collapsed {
        let _ = write!(body, "<details><summary>What the {} targets are</summary>", document.targets.len());
    }
    body.push_str("<ul class=\"targets\">\n");
    for target in &document.targets {
        let through = target.uri.as_ref().map_or(String::new(), |uri| format!(" through its export {}", escape(uri)));
        let name =
            if target.label == target.target { String::new() } else { format!("<b>{}</b>: ", escape(&target.label)) };
        let _ = writeln!(
            body,
            "<li>{name}<code>{}</code>{through}, {}, {}</li>",
            escape(&target.target),
            format_size(target.size_bytes),
            escape(&target.driver)
        );
    }
    body.push_str(if collapsed { "</ul></details>\n" } else { "</ul>\n" });
}

/// Appends the result: the few figures of each load and target that matter, in large type.
fn leads(body: &mut String, document: &Document) {
    for group in document.groups() {
        let best = |target: usize| {
            let results = group.iter().filter_map(|&point| document.result(target, point));
            results.max_by(|a, b| a.bytes_per_second.total_cmp(&b.bytes_per_second))
        };
        let mut shown: Vec<&Measured> = (0..document.targets.len()).filter_map(best).collect();
        let count = shown.len();
        // The first target, to which the others are compared, and the fastest others, in the order of the targets.
        if count > LEADS_MAX {
            shown[1..].sort_by(|a, b| b.bytes_per_second.total_cmp(&a.bytes_per_second));
            shown.truncate(LEADS_MAX);
            shown[1..].sort_by_key(|result| result.target);
        }
        if shown.is_empty() {
            continue;
        }
        let first = &document.points[group[0]];
        let title = if group.len() > 1 { format!("{}, at its fastest", first.load()) } else { first.name.clone() };
        let _ = writeln!(body, "<section class=\"result\"><p class=\"load\">{}</p>", escape(&capital(&title)));
        for result in shown {
            lead(body, document, result, group.len() > 1);
        }
        if count > LEADS_MAX {
            let _ =
                writeln!(body, "<p class=\"soft\">The first and the fastest of {count} targets; all are below.</p>");
        }
        body.push_str("</section>\n");
    }
}

/// Appends the large figures of one result.
fn lead(body: &mut String, document: &Document, result: &Measured, is_sweep: bool) {
    let of_target = &document.targets[result.target].label;
    let at = if is_sweep {
        format!(" <small>{}</small>", escape(&document.points[result.point].name))
    } else {
        String::new()
    };
    let _ = write!(
        body,
        "<div class=\"lead\" style=\"border-left-color:var(--s{})\"><h3>{}{at}{}</h3><dl>",
        result.target % COLOURS,
        escape(of_target),
        problems(result)
    );
    let mut figure = |label: &str, value: String| {
        let _ = write!(body, "<div><dt>{label}</dt><dd>{}</dd></div>", escape(&value));
    };
    figure("IOPS", count(result.iops));
    figure("throughput", rate(result.bytes_per_second));
    figure("latency, p50", time(result.latency.p50_ns as f64));
    figure("latency, p99", time(result.latency.p99_ns as f64));
    if result.cpu_ns_per_io > 0.0 {
        figure("CPU per I/O", time(result.cpu_ns_per_io));
    }
    let ratio = document.comparison(result.target, result.point).and_then(|one| one.iops);
    if let Some(ratio) = ratio {
        figure("times the first", format!("{:.3}", ratio.value));
    }
    body.push_str("</dl></div>\n");
}

/// Appends the charts of one load.
fn section(body: &mut String, document: &Document, group: &[usize]) {
    let first = &document.points[group[0]];
    let title = if group.len() > 1 { first.load() } else { first.name.clone() };
    let _ = writeln!(body, "<h2>{}</h2>\n<div class=\"grid\">", escape(&capital(&title)));
    let mut sizes: Vec<u64> = group.iter().map(|&point| document.points[point].block_bytes).collect();
    sizes.dedup();
    let mut depths: Vec<u32> = group.iter().map(|&point| document.points[point].depth).collect();
    depths.sort_unstable();
    depths.dedup();
    if group.len() == 1 {
        single(body, document, group[0]);
    }
    if depths.len() > 1 {
        for &size in &sizes {
            let points: Vec<usize> =
                group.iter().copied().filter(|&point| document.points[point].block_bytes == size).collect();
            over_depth(body, document, &points, size);
        }
    }
    if sizes.len() > 1 {
        for &depth in &depths {
            let points: Vec<usize> =
                group.iter().copied().filter(|&point| document.points[point].depth == depth).collect();
            over_size(body, document, &points, depth);
        }
    }
    // Percentiles of the first and the last point of a sweep.
    let mut shown = vec![group[0], group[group.len() - 1]];
    shown.dedup();
    for point in shown {
        percentiles(body, document, point);
    }
    body.push_str("</div>\n");
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// Formats the tooltip of a result.
fn tip(document: &Document, result: &Measured) -> String {
    let ratio = document.comparison(result.target, result.point).and_then(|one| one.iops);
    let ratio =
        ratio.map_or(String::new(), |ratio| format!("; {:.3} times {}", ratio.value, document.targets[0].label));
    format!(
        "{}: {} IOPS ({} to {}), {}, mean {}, p99 {}{ratio}",
        document.points[result.point].name,
        count(result.iops),
        count(result.iops_low),
        count(result.iops_high),
        rate(result.bytes_per_second),
        time(result.latency.mean_ns),
        time(result.latency.p99_ns as f64)
    )
}

/// Appends the bar charts of one point.
fn single(body: &mut String, document: &Document, point: usize) {
    let results: Vec<&Measured> =
        (0..document.targets.len()).filter_map(|target| document.result(target, point)).collect();
    let block = document.points[point].block_bytes as f64;
    let bar = |result: &Measured, value: f64, interval: (f64, f64), published: Option<f64>| Bar {
        label: document.targets[result.target].label.clone(),
        colour: result.target % COLOURS,
        value,
        interval,
        published,
        tip: tip(document, result),
    };
    // Throughput of large blocks is shown in bytes, that of small blocks in I/Os.
    let large = block >= 65_536.0;
    let throughput: Vec<Bar> = results
        .iter()
        .map(|result| {
            let published = result.published.as_ref();
            if large {
                let published = published.and_then(|one| one.bytes_per_second.or(one.iops.map(|iops| iops * block)));
                bar(result, result.bytes_per_second, (result.iops_low * block, result.iops_high * block), published)
            } else {
                let first = results.iter().find(|other| other.target == 0).map(|other| other.iops);
                let by_ratio = published.and_then(|one| one.iops_ratio).zip(first).map(|(ratio, first)| ratio * first);
                let published =
                    published.and_then(|one| one.iops.or(one.bytes_per_second.map(|bytes| bytes / block))).or(by_ratio);
                bar(result, result.iops, (result.iops_low, result.iops_high), published)
            }
        })
        .collect();
    let name = &document.points[point].name;
    if large {
        body.push_str(&bars::figure("Throughput", name, "bytes a second", &throughput, short_rate));
    } else {
        body.push_str(&bars::figure("I/Os a second", name, "IOPS", &throughput, short_count));
    }
    let latency: Vec<Bar> = results
        .iter()
        .map(|result| {
            let means: Vec<f64> = result.slices.iter().map(|slice| slice.latency_ns_mean).collect();
            let interval = super::statistics::interval_of_median(&means);
            let published = result.published.as_ref().and_then(|one| one.latency_ns);
            bar(result, result.latency.mean_ns, interval, published)
        })
        .collect();
    body.push_str(&bars::figure("Mean latency", name, "time", &latency, short_time));
}

/// Returns a curve for each target over `points`, and one for each published series.
fn curves(
    document: &Document,
    points: &[usize],
    x: impl Fn(usize) -> f64,
    y: impl Fn(&Measured) -> (f64, Option<(f64, f64)>),
    published: impl Fn(&super::published::Published) -> Option<f64>,
) -> Vec<Series> {
    let mut all = Vec::new();
    for (target, info) in document.targets.iter().enumerate() {
        let results = || points.iter().filter_map(|&point| document.result(target, point));
        let dots = results().map(|result| {
            let (y, interval) = y(result);
            Dot { x: x(result.point), y, interval, tip: tip(document, result) }
        });
        let colour = target % COLOURS;
        all.push(Series { label: info.label.clone(), colour, published: false, dots: dots.collect() });
        let theirs: Vec<(f64, f64, String)> = results()
            .filter_map(|result| {
                let one = result.published.as_ref()?;
                Some((x(result.point), published(one)?, one.label.clone()))
            })
            .collect();
        if let Some((_, _, label)) = theirs.first() {
            let label = format!("{label}, published");
            let dots =
                theirs.iter().map(|&(x, y, _)| Dot { x, y, interval: None, tip: "as published".to_owned() }).collect();
            all.push(Series { label, colour, published: true, dots });
        }
    }
    all
}

fn values(series: &[Series]) -> impl Iterator<Item = f64> {
    series.iter().flat_map(|one| one.dots.iter()).flat_map(|dot| {
        let (low, high) = dot.interval.unwrap_or((dot.y, dot.y));
        [dot.y, low, high]
    })
}

fn axis(title: &str, scale: Scale, text: fn(f64) -> String) -> Axis {
    let ticks = scale.ticks();
    Axis { title: title.to_owned(), scale, ticks, text }
}

/// Returns an axis whose ticks are the measured values.
fn steps(title: &str, values: &[f64], text: fn(f64) -> String) -> Axis {
    Axis {
        title: title.to_owned(),
        scale: Scale::over(Kind::Log, values.iter().copied()).roomy(),
        ticks: values.to_vec(),
        text,
    }
}

fn over_depth(body: &mut String, document: &Document, points: &[usize], size: u64) {
    let depth = |point: usize| f64::from(document.points[point].depth);
    let depths: Vec<f64> = points.iter().map(|&point| depth(point)).collect();
    let under = format!("blocks of {}", short_size(size));
    let x = || steps("I/Os in flight of each job", &depths, |depth| format!("{depth:.0}"));
    let iops = curves(document, points, depth, |r| (r.iops, Some((r.iops_low, r.iops_high))), |one| one.iops);
    let y = axis("IOPS", Scale::over(Kind::Linear, values(&iops)), short_count);
    body.push_str(&lines::figure("Throughput over depth", &under, &x(), &y, &iops));
    latency_curves(body, document, points, depth, &x, "over depth", &under);
}

fn over_size(body: &mut String, document: &Document, points: &[usize], depth: u32) {
    let size = |point: usize| document.points[point].block_bytes as f64;
    let sizes: Vec<f64> = points.iter().map(|&point| size(point)).collect();
    let under = format!("depth {depth}");
    let x = || steps("block size", &sizes, |size| short_size(size as u64));
    let block = |r: &Measured| document.points[r.point].block_bytes as f64;
    let bytes = curves(
        document,
        points,
        size,
        |r| (r.bytes_per_second, Some((r.iops_low * block(r), r.iops_high * block(r)))),
        |one| one.bytes_per_second,
    );
    let y = axis("bytes a second", Scale::over(Kind::Linear, values(&bytes)), short_rate);
    body.push_str(&lines::figure("Throughput over block size", &under, &x(), &y, &bytes));
    let iops = curves(document, points, size, |r| (r.iops, Some((r.iops_low, r.iops_high))), |one| one.iops);
    let y = axis("IOPS", Scale::over(Kind::Log, values(&iops)).roomy(), short_count);
    body.push_str(&lines::figure("I/Os a second over block size", &under, &x(), &y, &iops));
    latency_curves(body, document, points, size, &x, "over block size", &under);
}

/// Appends charts of the mean and of the 99th percentile.
fn latency_curves(
    body: &mut String,
    document: &Document,
    points: &[usize],
    at: impl Fn(usize) -> f64,
    x: &dyn Fn() -> Axis,
    over: &str,
    under: &str,
) {
    let mean = curves(document, points, &at, |r| (r.latency.mean_ns, None), |one| one.latency_ns);
    let tail = curves(document, points, &at, |r| (r.latency.p99_ns as f64, None), |_| None);
    for (title, series) in [("Mean latency", mean), ("99th percentile of latency", tail)] {
        let y = axis("latency", Scale::over(Kind::Log, values(&series)).roomy(), short_time);
        body.push_str(&lines::figure(&format!("{title} {over}"), under, &x(), &y, &series));
    }
}

fn percentiles(body: &mut String, document: &Document, point: usize) {
    let mut series = Vec::new();
    for (target, info) in document.targets.iter().enumerate() {
        let Some(result) = document.result(target, point) else { continue };
        let curve = result.latency.percentiles.iter().filter(|one| one.percentile < 100.0);
        let dots = curve.map(|one| Dot {
            x: one.percentile,
            y: one.latency_ns as f64,
            interval: None,
            tip: format!("{} % took no longer than {}", one.percentile, time(one.latency_ns as f64)),
        });
        series.push(Series {
            label: info.label.clone(),
            colour: target % COLOURS,
            published: false,
            dots: dots.collect(),
        });
    }
    let x = axis(
        "percentile",
        Scale::over(Kind::Nines, series.iter().flat_map(|one| one.dots.iter()).map(|dot| dot.x)),
        |percentile| format!("{percentile}%"),
    );
    let y = axis("latency", Scale::over(Kind::Log, values(&series)).roomy(), short_time);
    body.push_str(&lines::figure("Percentiles of latency", &document.points[point].name, &x, &y, &series));
}

/// Appends the table of all figures. On a narrow screen each line of it becomes a list, with the labels of the columns.
fn table(body: &mut String, document: &Document) {
    let is_compared = document.targets.len() > 1;
    let is_published = document.results.iter().any(|result| result.published.is_some());
    let mut columns = vec!["load and target", "IOPS", "interval", "rate"];
    if is_compared {
        columns.push("ratio");
    }
    columns.extend(["mean", "p50", "p90", "p99", "p99.9", "longest", "CPU/IO"]);
    if is_published {
        columns.push("published");
    }
    body.push_str("<h2>All figures</h2>\n<div class=\"wide\"><table><thead><tr>");
    let class = |column: &str| if column == "published" { " class=\"published\"" } else { "" };
    for column in &columns {
        let _ = write!(body, "<th{}>{column}</th>", class(column));
    }
    body.push_str("</tr></thead><tbody>\n");
    for result in &document.results {
        let (target, point) = (&document.targets[result.target], &document.points[result.point]);
        let at = |ns: u64| time(ns as f64);
        let latency = &result.latency;
        let mut cells = vec![
            format!("{}, <b>{}</b>{}", escape(&point.name), escape(&target.label), problems(result)),
            count(result.iops),
            format!("{}\u{a0}– {}", count(result.iops_low), count(result.iops_high)),
            rate(result.bytes_per_second),
        ];
        if is_compared {
            let ratio = document.comparison(result.target, result.point).and_then(|one| one.iops);
            let none = if result.target == 0 { "1" } else { "–" };
            cells.push(
                ratio.map_or(none.to_owned(), |r| format!("{:.3} ({:.3}\u{a0}–\u{a0}{:.3})", r.value, r.low, r.high)),
            );
        }
        cells.extend([
            time(latency.mean_ns),
            at(latency.p50_ns),
            at(latency.p90_ns),
            at(latency.p99_ns),
            at(latency.p999_ns),
            at(latency.max_ns),
            time(result.cpu_ns_per_io),
        ]);
        if is_published {
            let text = result.published.as_ref().map(|one| format!("{}: {}", one.label, one.text()));
            cells.push(escape(&text.unwrap_or_default()));
        }
        body.push_str("<tr>");
        for (column, cell) in columns.iter().zip(&cells) {
            let _ = write!(body, "<td{} data-label=\"{column}\">{cell}</td>", class(column));
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</tbody></table></div>\n");
}

/// Formats errors, mismatches and delays of a result.
fn problems(result: &Measured) -> String {
    let mut text = String::new();
    if result.mismatch_count > 0 {
        let _ = write!(text, " <span class=\"wrong\">{} wrong blocks</span>", result.mismatch_count);
    }
    if result.errors > 0 {
        let _ = write!(text, " <span class=\"wrong\">{} errors</span>", result.errors);
    }
    if result.behind_ios > 0 {
        let _ = write!(text, " <span class=\"wrong\">{} I/Os behind the rate</span>", result.behind_ios);
    }
    if result.verified_bytes > 0 && result.mismatch_count == 0 {
        let _ = write!(text, " <span class=\"soft\">{} verified</span>", format_size(result.verified_bytes));
    }
    text
}

/// Formats a number with three digits and a unit of a power of 1000, for ticks.
fn short(n: f64, units: &[(f64, &str)]) -> String {
    let (size, unit) = units.iter().copied().find(|(size, _)| n.abs() >= *size).unwrap_or(units[units.len() - 1]);
    let value = n / size;
    let text = match value.abs() {
        v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

fn short_count(n: f64) -> String {
    short(n, &[(1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")])
}

fn short_rate(bytes: f64) -> String {
    short(bytes, &[(1e9, " GB/s"), (1e6, " MB/s"), (1e3, " kB/s"), (1.0, " B/s")])
}

fn short_time(ns: f64) -> String {
    short(ns, &[(1e9, " s"), (1e6, " ms"), (1e3, " µs"), (1.0, " ns")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_short() {
        assert_eq!(
            (short_count(0.0), short_count(250_000.0), short_count(1_250_000.0)),
            ("0".into(), "250k".into(), "1.25M".into())
        );
        assert_eq!((short_time(640_000.0), short_rate(125e6)), ("640 µs".into(), "125 MB/s".into()));
    }

    #[test]
    fn text_of_users_is_escaped() {
        assert_eq!(escape("<script>\"a\" & 'b'"), "&lt;script&gt;&quot;a&quot; &amp; &#39;b&#39;");
    }

    /// Returns a document of one load on these targets; the second target is twice as fast as the first, and so on.
    fn document(labels: &[&str], depths: &[u32]) -> Document {
        let targets = labels.iter().map(|label| {
            serde_json::json!({
                "label": label, "target": "mem:1G", "kind": "local", "driver": "io_uring", "uri": null, "size_bytes": 1 << 30
            })
        });
        let points = depths.iter().map(|depth| {
            serde_json::json!({
                "name": format!("random read, 4K, depth {depth}"), "pattern": "random", "theta": null, "op": "read",
                "reads_percent": 100, "block_bytes": 4096, "depth": depth, "jobs": 1, "rate_iops": null
            })
        });
        let latency = serde_json::json!({
            "count": 1000, "min_ns": 1000, "mean_ns": 3000.0, "p50_ns": 2500, "p90_ns": 5000, "p99_ns": 9000, "p999_ns": 12000,
            "max_ns": 20000, "percentiles": [{"percentile": 50.0, "latency_ns": 2500}, {"percentile": 99.0, "latency_ns": 9000}]
        });
        let all = (0..depths.len()).flat_map(|point| (0..labels.len()).map(move |target| (target, point)));
        let results = all.map(|(target, point)| {
            let iops = 123_456.0 * (target + 1) as f64 * f64::from(depths[point]);
            serde_json::json!({
                "target": target, "point": point, "elapsed_ns": 1_000_000_000, "ios": 123_456, "errors": 0, "first_error": null,
                "behind_ios": 0, "iops": iops, "iops_low": iops, "iops_high": iops, "bytes_per_second": iops * 4096.0,
                "cpu_ns_per_io": 1500.0, "latency": latency, "read_latency": null, "write_latency": null, "slices": [],
                "verified_bytes": 0, "mismatches": [], "mismatch_count": 0, "published": null
            })
        });
        serde_json::from_value(serde_json::json!({
            "format": "braid-bench", "version": 1, "braid": "0", "begun_unix_ms": 0, "machine": "a machine", "profile": null,
            "targets": targets.collect::<Vec<_>>(), "points": points.collect::<Vec<_>>(), "slices": 3,
            "results": results.collect::<Vec<_>>(), "comparisons": []
        }))
        .expect("it is a document")
    }

    #[test]
    fn the_page_leads_with_its_result() {
        let page = page(&document(&["mem:1G"], &[1]));
        let (head, rest) = page.split_once("</section>").expect("it has a result");
        for figure in [
            "<dt>IOPS</dt><dd>123,456</dd>",
            "<dt>throughput</dt><dd>505.68 MB/s</dd>",
            "<dt>latency, p50</dt><dd>2.50 µs</dd>",
            "<dt>latency, p99</dt><dd>9.00 µs</dd>",
            "<dt>CPU per I/O</dt><dd>1.50 µs</dd>",
        ] {
            assert!(head.contains(figure), "{figure}: {head}");
        }
        assert!(
            !head.contains("<svg") && !head.contains("<ul") && rest.contains("<svg"),
            "nothing comes before the result"
        );
    }

    #[test]
    fn a_sweep_leads_with_its_fastest_point_and_many_targets_with_the_fastest() {
        let head = |labels: &[&str], depths: &[u32]| {
            let page = page(&document(labels, depths));
            page.split_once("</section>").expect("it has a result").0.to_owned()
        };
        let sweep = head(&["mem:1G"], &[1, 4, 2]);
        assert!(sweep.contains("<small>random read, 4K, depth 4</small>") && sweep.contains("493,824"), "{sweep}");
        let many = head(&["first", "second", "third", "fourth", "fifth", "sixth"], &[1]);
        let shown: Vec<&str> =
            many.split("<h3>").skip(1).map(|rest| rest.split('<').next().unwrap_or_default()).collect();
        assert_eq!(shown, ["first", "fourth", "fifth", "sixth"]);
        assert!(many.contains("of 6 targets"), "{many}");
    }

    #[test]
    fn nothing_is_cut_and_every_cell_has_its_label() {
        let long = "throttled(raid0(/dev/disk/by-id/nvme-eui.0025385971b0a9f1,/dev/disk/by-id/nvme-eui.0025385971b0a9f2),iops=3000)";
        let page = page(&document(&[long, "other"], &[1]));
        assert!(!page.contains('…'));
        // A label in a chart is several lines, whose texts are those of the label.
        let (_, name) = page.split_once("<text class=\"name\" text-anchor=\"end\">").expect("a bar has a name");
        let (name, _) = name.split_once("<title>").expect("it has a tooltip");
        let text: String =
            name.split("<tspan").skip(1).filter_map(|line| Some(line.split_once('>')?.1.split_once('<')?.0)).collect();
        assert_eq!(text, long);
        let body = page.split_once("<tbody>").expect("it has a table").1;
        assert_eq!(body.matches("<td").count(), body.matches(" data-label=\"").count());
        for rule in ["@media (max-width: 720px)", "content: attr(data-label)", "width=device-width", "viewBox"] {
            assert!(page.contains(rule), "{rule}");
        }
    }
}
