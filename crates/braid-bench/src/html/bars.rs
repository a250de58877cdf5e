//! Bar charts: one value for each target, with its interval and its published value.

use std::fmt::Write as _;

use super::escape;
use super::scale::{Kind, Scale};

/// One bar.
pub struct Bar {
    /// The label.
    pub label: String,
    /// The number of the colour.
    pub colour: usize,
    /// The value: the length of the bar.
    pub value: f64,
    /// The interval of the value.
    pub interval: (f64, f64),
    /// The published value.
    pub published: Option<f64>,
    /// The text of the tooltip.
    pub tip: String,
}

const WIDTH: f64 = 460.0;
const LEFT: f64 = 140.0;
const RIGHT: f64 = 84.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 44.0;
/// Height of a bar with its margins; more if its label has more lines.
const EACH: f64 = 34.0;
/// Height of a line of a label.
const LINE: f64 = 15.0;
/// Characters of a label that fit in a line to the left of its bar.
const NAME: usize = 15;

/// Returns the figure. `text` formats a value, and `unit` is the title of the axis.
pub fn figure(title: &str, under: &str, unit: &str, bars: &[Bar], text: fn(f64) -> String) -> String {
    let all = bars.iter().flat_map(|bar| [bar.value, bar.interval.1, bar.published.unwrap_or(0.0)]);
    let scale = Scale::over(Kind::Linear, all);
    let names: Vec<Vec<String>> = bars.iter().map(|bar| wrapped(&bar.label, NAME)).collect();
    let each = |number: usize| EACH.max(names[number].len() as f64 * LINE + 10.0);
    let (width, height) = (WIDTH - LEFT - RIGHT, (0..bars.len()).map(each).sum::<f64>());
    let at = |v: f64| LEFT + scale.position(v).unwrap_or(0.0) * width;
    let mut svg = String::new();
    // Writing to a String never fails.
    let _ = write!(svg, r#"<rect class="plot" x="{LEFT}" y="{TOP}" width="{width}" height="{height}"/>"#);
    for tick in scale.ticks() {
        let place = at(tick);
        let _ = write!(
            svg,
            r#"<line class="gridline" x1="{place:.1}" x2="{place:.1}" y1="{TOP}" y2="{:.1}"/><text x="{place:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            TOP + height,
            TOP + height + 16.0,
            escape(&text(tick))
        );
    }
    let mut above = TOP;
    for (number, bar) in bars.iter().enumerate() {
        let (middle, end) = (above + each(number) / 2.0, at(bar.value));
        let top = middle - (EACH - 14.0) / 2.0;
        above += each(number);
        let first = middle + 4.0 - (names[number].len() - 1) as f64 * LINE / 2.0;
        let mut name = String::new();
        for (line, text) in names[number].iter().enumerate() {
            let y = first + line as f64 * LINE;
            let _ = write!(name, r#"<tspan x="{:.1}" y="{y:.1}">{}</tspan>"#, LEFT - 8.0, escape(text));
        }
        let _ = write!(
            svg,
            r#"<text class="name" text-anchor="end">{name}<title>{}</title></text><rect class="bar" style="fill:var(--s{})" x="{LEFT}" y="{top:.1}" width="{:.1}" height="{:.1}"><title>{}</title></rect>"#,
            escape(&bar.label),
            bar.colour,
            (end - LEFT).max(1.0),
            EACH - 14.0,
            escape(&format!("{}: {}", bar.label, bar.tip))
        );
        let (low, high) = (at(bar.interval.0), at(bar.interval.1));
        if high - low >= 1.0 {
            let _ = write!(
                svg,
                r#"<path class="whisker" d="M{low:.1} {middle:.1}H{high:.1}M{low:.1} {:.1}v8M{high:.1} {:.1}v8"/>"#,
                middle - 4.0,
                middle - 4.0
            );
        }
        let mut beyond = end.max(high);
        if let Some(published) = bar.published {
            let place = at(published);
            beyond = beyond.max(place + 6.0);
            let _ = write!(
                svg,
                r#"<path class="published" d="M{place:.1} {:.1}l6 6l-6 6l-6 -6z"><title>{}</title></path>"#,
                middle - 6.0,
                escape(&format!("published: {}", text(published)))
            );
        }
        let _ = write!(
            svg,
            r#"<text class="value" x="{:.1}" y="{:.1}">{}</text>"#,
            beyond + 7.0,
            middle + 4.0,
            escape(&text(bar.value))
        );
    }
    let total = TOP + height + BOTTOM;
    let _ = write!(
        svg,
        r#"<line class="axis" x1="{LEFT}" x2="{LEFT}" y1="{TOP}" y2="{:.1}"/><text x="{:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
        TOP + height,
        LEFT + width / 2.0,
        total - 8.0,
        escape(unit)
    );
    let mut legend = String::new();
    if bars.iter().any(|bar| bar.published.is_some()) {
        legend.push_str(r#"<div class="legend"><span><i class="diamond"></i>published</span></div>"#);
    }
    format!(
        r#"<figure class="bars"><figcaption>{}<small>{}</small></figcaption><svg viewBox="0 0 {WIDTH} {total}" role="img" aria-label="{}">{svg}</svg>{legend}</figure>"#,
        escape(title),
        escape(under),
        escape(title)
    )
}

/// Splits a label into lines of at most `max` characters, after separators if possible. Nothing is left out.
fn wrapped(label: &str, max: usize) -> Vec<String> {
    let mut rest: Vec<char> = label.chars().collect();
    let mut lines = Vec::new();
    while rest.len() > max {
        let separates = |letter: &char| !letter.is_alphanumeric() && !matches!(letter, '(' | '\'' | '"');
        // A line before a separator must not be too short.
        let end = rest[max / 2..max].iter().rposition(separates).map_or(max, |at| max / 2 + at + 1);
        lines.push(rest.drain(..end).collect());
    }
    lines.push(rest.into_iter().collect());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_labels_are_wrapped_and_not_cut() {
        let check = |label: &str, lines: &[&str]| assert_eq!(wrapped(label, 15), lines, "{label}");
        check("", &[""]);
        check("null:1T", &["null:1T"]);
        check("fifteen letters", &["fifteen letters"]);
        check("raid0(mem:1G,mem:1G)", &["raid0(mem:1G,", "mem:1G)"]);
        check(&"x".repeat(40), &[&"x".repeat(15), &"x".repeat(15), &"x".repeat(10)]);
        for label in ["throttled(mem:8M,iops=20000)", "nbd+unix:///export?socket=/run/braid/a.sock", "größe: 10 µs, ä"]
        {
            let lines = wrapped(label, 15);
            assert_eq!(lines.concat(), label);
            assert!(lines.iter().all(|line| line.chars().count() <= 15), "{lines:?}");
        }
    }

    #[test]
    fn a_chart_is_as_high_as_its_labels() {
        let bar = |label: &str| Bar {
            label: label.to_owned(),
            colour: 0,
            value: 1.0,
            interval: (1.0, 1.0),
            published: None,
            tip: String::new(),
        };
        let height = |label: &str| {
            let figure = figure("title", "under", "IOPS", &[bar(label)], |value| value.to_string());
            let (_, rest) = figure.split_once("viewBox=\"0 0 460 ").expect("it has a viewBox");
            let (height, _) = rest.split_once('"').expect("it ends");
            assert!(!figure.contains('…'), "{figure}");
            height.parse::<f64>().expect("a number")
        };
        assert!(height(&"long ".repeat(30)) > height("short") + 50.0);
    }
}
