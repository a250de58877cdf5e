//! The document as one page with plots: self-contained, no script, nothing loaded from elsewhere, light and dark.

mod bars;
mod lines;
mod scale;

use std::fmt::Write as _;

use braid_geometry::units::format_size;

use super::model::{Document, Measured};
use super::plan::short_size;
use super::report::{count, rate, time};
use bars::Bar;
use lines::{Axis, Dot, Series};
use scale::{Kind, Scale};

/// Colours of targets; more targets use them again.
const COLOURS: usize = 8;
const STYLE: &str = include_str!("style.css");

/// Text between tags, or in an attribute.
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

/// The page.
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
    let when = braid_terminal::output::moment(document.begun_unix_ms);
    // Writing to a String cannot fail.
    let _ = writeln!(body, "<h1>{}</h1>", escape(title));
    let _ = writeln!(
        body,
        "<p class=\"soft\">Measured by <code>braid bench</code> {} on {}, {when} UTC. Targets take turns in {} slice(s) a point; \
         bands and whiskers hold 95 of 100 resamplings of the slices' median.</p>",
        escape(&document.braid),
        escape(&document.machine),
        document.slices
    );
    if document.interrupted {
        body.push_str("<p class=\"wrong\">Interrupted: what stands here was measured until then.</p>\n");
    }
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
    // Many targets with long names would push the plots off the first screen.
    let fold = document.targets.len() > 4;
    if fold {
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
    body.push_str(if fold { "</ul></details>\n" } else { "</ul>\n" });
}

/// Everything of one load.
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
    // Of a sweep, the ends say the most.
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

/// A value's words for whoever points at it.
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

/// One point: bars.
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
    // Large blocks are told in bytes, small ones in I/Os.
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

/// A curve for each target over `points`, and one for each published series.
fn curves(
    document: &Document,
    points: &[usize],
    x: impl Fn(usize) -> f64,
    y: impl Fn(&Measured) -> (f64, Option<(f64, f64)>),
    published: impl Fn(&super::profile::Published) -> Option<f64>,
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

/// An axis whose ticks are the values that were measured.
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

/// Mean and 99th percentile, each in a figure of its own.
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

/// All figures once more.
fn table(body: &mut String, document: &Document) {
    let published = document.results.iter().any(|result| result.published.is_some());
    body.push_str("<h2>All figures</h2>\n<div class=\"wide\"><table><thead><tr><th>load and target</th><th>IOPS</th><th>interval</th><th>rate</th>");
    if document.targets.len() > 1 {
        body.push_str("<th>ratio</th>");
    }
    body.push_str("<th>mean</th><th>p50</th><th>p90</th><th>p99</th><th>p99.9</th><th>longest</th><th>CPU/IO</th>");
    if published {
        body.push_str("<th>published</th>");
    }
    body.push_str("</tr></thead><tbody>\n");
    for result in &document.results {
        let (target, point) = (&document.targets[result.target], &document.points[result.point]);
        let at = |ns: u64| time(ns as f64);
        let latency = &result.latency;
        let _ = write!(
            body,
            "<tr><td>{}, <b>{}</b>{}</td><td>{}</td><td>{} – {}</td><td>{}</td>",
            escape(&point.name),
            escape(&target.label),
            problems(result),
            count(result.iops),
            count(result.iops_low),
            count(result.iops_high),
            rate(result.bytes_per_second)
        );
        if document.targets.len() > 1 {
            let ratio = document.comparison(result.target, result.point).and_then(|one| one.iops);
            let none = if result.target == 0 { "1" } else { "–" };
            let text = ratio.map_or(none.to_owned(), |r| format!("{:.3} ({:.3} – {:.3})", r.value, r.low, r.high));
            let _ = write!(body, "<td>{text}</td>");
        }
        let _ = write!(
            body,
            "<td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
            time(latency.mean_ns),
            at(latency.p50_ns),
            at(latency.p90_ns),
            at(latency.p99_ns),
            at(latency.p999_ns),
            at(latency.max_ns),
            time(result.cpu_ns_per_io)
        );
        if published {
            let text =
                result.published.as_ref().map(|one| format!("{}: {}", one.label, one.text())).unwrap_or_default();
            let _ = write!(body, "<td class=\"published\">{}</td>", escape(&text));
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</tbody></table></div>\n");
}

/// What nobody must miss.
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

/// A number with its power of 1000, three digits: for ticks.
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
    fn text_of_users_stays_text() {
        assert_eq!(escape("<script>\"a\" & 'b'"), "&lt;script&gt;&quot;a&quot; &amp; &#39;b&#39;");
    }
}
