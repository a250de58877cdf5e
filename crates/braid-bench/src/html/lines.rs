//! Line charts: one curve for each series.

use std::fmt::Write as _;

use super::escape;
use super::scale::Scale;

/// One point of a series.
pub struct Dot {
    /// The position on the horizontal axis.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// The interval of the value, drawn as a band.
    pub interval: Option<(f64, f64)>,
    /// The text of the tooltip.
    pub tip: String,
}

/// One curve.
pub struct Series {
    /// The label.
    pub label: String,
    /// The number of the colour.
    pub colour: usize,
    /// Whether these are published figures.
    pub published: bool,
    /// The points.
    pub dots: Vec<Dot>,
}

/// An axis.
pub struct Axis {
    /// The title, with the unit.
    pub title: String,
    /// The scale.
    pub scale: Scale,
    /// The values of the ticks.
    pub ticks: Vec<f64>,
    /// Formats the value of a tick.
    pub text: fn(f64) -> String,
}

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 290.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 46.0;

/// Returns the figure.
pub fn figure(title: &str, under: &str, x: &Axis, y: &Axis, series: &[Series]) -> String {
    let mut svg = String::new();
    let (width, height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    let at_x = |v: f64| x.scale.position(v).map(|place| LEFT + place * width);
    let at_y = |v: f64| y.scale.position(v).map(|place| TOP + (1.0 - place) * height);
    // Writing to a String never fails.
    let _ = write!(svg, r#"<rect class="plot" x="{LEFT}" y="{TOP}" width="{width}" height="{height}"/>"#);
    for &tick in &y.ticks {
        let Some(place) = at_y(tick) else { continue };
        let _ = write!(
            svg,
            r#"<line class="gridline" x1="{LEFT}" x2="{:.1}" y1="{place:.1}" y2="{place:.1}"/><text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
            LEFT + width,
            LEFT - 8.0,
            place + 4.0,
            escape(&(y.text)(tick))
        );
    }
    let mut last = f64::NEG_INFINITY;
    for &tick in &x.ticks {
        let Some(place) = at_x(tick) else { continue };
        let _ = write!(
            svg,
            r#"<line class="gridline" x1="{place:.1}" x2="{place:.1}" y1="{TOP}" y2="{:.1}"/>"#,
            TOP + height
        );
        // Labels that would overlap are left out.
        let text = (x.text)(tick);
        let room = 7.5 * text.chars().count() as f64 + 6.0;
        // The last label stays inside the figure.
        let place = place.min(WIDTH - room / 2.0);
        if place - last >= room {
            let _ = write!(
                svg,
                r#"<text x="{place:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
                TOP + height + 17.0,
                escape(&text)
            );
            last = place;
        }
    }
    let _ = write!(
        svg,
        r#"<line class="axis" x1="{LEFT}" x2="{:.1}" y1="{:.1}" y2="{:.1}"/><text x="{:.1}" y="{:.1}" text-anchor="middle">{}</text><text transform="translate(13 {:.1}) rotate(-90)" text-anchor="middle">{}</text>"#,
        LEFT + width,
        TOP + height,
        TOP + height,
        LEFT + width / 2.0,
        HEIGHT - 8.0,
        escape(&x.title),
        TOP + height / 2.0,
        escape(&y.title)
    );
    for one in series {
        band(&mut svg, one, &at_x, &at_y);
    }
    for one in series {
        line(&mut svg, one, &at_x, &at_y);
    }
    let mut legend = String::new();
    for one in series {
        let (class, of) = if one.published { (" class=\"dash\"", "border-color") } else { ("", "background") };
        let _ = write!(
            legend,
            r#"<span><i{class} style="{of}:var(--s{})"></i><b>{}</b></span>"#,
            one.colour,
            escape(&one.label)
        );
    }
    format!(
        r#"<figure class="lines"><figcaption>{}<small>{}</small></figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{}">{svg}</svg><div class="legend">{legend}</div></figure>"#,
        escape(title),
        escape(under),
        escape(title)
    )
}

/// Maps a value to a coordinate, or to none if it cannot be drawn.
type Projection<'a> = &'a dyn Fn(f64) -> Option<f64>;

fn band(svg: &mut String, series: &Series, at_x: Projection<'_>, at_y: Projection<'_>) {
    let edge = |upper: bool| {
        series.dots.iter().filter_map(move |dot| {
            let (low, high) = dot.interval?;
            Some((at_x(dot.x)?, at_y(if upper { high } else { low })?))
        })
    };
    let upper: Vec<_> = edge(true).collect();
    if upper.len() < 2 {
        return;
    }
    let lower: Vec<_> = edge(false).collect();
    let points: Vec<String> = upper.iter().chain(lower.iter().rev()).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ =
        write!(svg, r#"<polygon class="band" style="fill:var(--s{})" points="{}"/>"#, series.colour, points.join(" "));
}

fn line(svg: &mut String, series: &Series, at_x: Projection<'_>, at_y: Projection<'_>) {
    let places: Vec<(f64, f64, &Dot)> =
        series.dots.iter().filter_map(|dot| Some((at_x(dot.x)?, at_y(dot.y)?, dot))).collect();
    let points: Vec<String> = places.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
    let class = if series.published { "line dashed" } else { "line" };
    if points.len() > 1 {
        let _ = write!(
            svg,
            r#"<polyline class="{class}" style="stroke:var(--s{})" points="{}"/>"#,
            series.colour,
            points.join(" ")
        );
    }
    for (x, y, dot) in places {
        let tip = escape(&format!("{}: {}", series.label, dot.tip));
        if series.published {
            let _ = write!(
                svg,
                r#"<path class="published" style="stroke:var(--s{})" d="M{x:.1} {:.1}l5 5l-5 5l-5 -5z"/>"#,
                series.colour,
                y - 5.0
            );
        } else {
            let _ = write!(
                svg,
                r#"<circle class="dot" style="fill:var(--s{})" cx="{x:.1}" cy="{y:.1}" r="3.6"/>"#,
                series.colour
            );
        }
        // A larger, invisible circle is easier to point at.
        let _ = write!(svg, r#"<circle class="hit" cx="{x:.1}" cy="{y:.1}" r="9"><title>{tip}</title></circle>"#);
    }
}
