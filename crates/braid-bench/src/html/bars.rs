//! Bars: one value for each target, with its interval, and what was published for it.

use std::fmt::Write as _;

use super::escape;
use super::scale::{Kind, Scale};

/// One bar.
pub struct Bar {
    /// What it is called.
    pub label: String,
    /// Its colour.
    pub colour: usize,
    /// Its length.
    pub value: f64,
    /// The interval around it.
    pub interval: (f64, f64),
    /// What was published for it.
    pub published: Option<f64>,
    /// What to say of it.
    pub tip: String,
}

const WIDTH: f64 = 560.0;
const LEFT: f64 = 148.0;
const RIGHT: f64 = 84.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 44.0;
const EACH: f64 = 34.0;
/// Letters of a name that fit left of its bar.
const NAME: usize = 20;

/// The figure. `text` says a value, `unit` what the axis is of.
pub fn figure(title: &str, under: &str, unit: &str, bars: &[Bar], text: fn(f64) -> String) -> String {
    let all = bars.iter().flat_map(|bar| [bar.value, bar.interval.1, bar.published.unwrap_or(0.0)]);
    let scale = Scale::over(Kind::Linear, all);
    let (width, height) = (WIDTH - LEFT - RIGHT, EACH * bars.len() as f64);
    let at = |v: f64| LEFT + scale.place(v).unwrap_or(0.0) * width;
    let mut svg = String::new();
    // Writing to a String cannot fail.
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
    for (row, bar) in bars.iter().enumerate() {
        let top = TOP + EACH * row as f64 + 7.0;
        let (middle, end) = (top + (EACH - 14.0) / 2.0, at(bar.value));
        let _ = write!(
            svg,
            r#"<text class="name" x="{:.1}" y="{:.1}" text-anchor="end">{}<title>{}</title></text><rect class="bar" style="fill:var(--s{})" x="{LEFT}" y="{top:.1}" width="{:.1}" height="{:.1}"><title>{}</title></rect>"#,
            LEFT - 8.0,
            middle + 4.0,
            escape(&braid_terminal::output::cut(&bar.label, NAME)),
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
