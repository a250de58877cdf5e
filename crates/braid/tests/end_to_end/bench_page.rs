//! The page of `braid bench --html` in a real browser: a screenshot, in which the curves are looked for as pixels.

use std::collections::BTreeSet;
use std::fs::File;

use crate::support::*;

const WIDTH: u32 = 1240;
const HEIGHT: u32 = 2600;

/// Colours of the first two targets in the light style.
const COLOURS: [[u8; 3]; 2] = [[0x25, 0x63, 0xeb], [0xdc, 0x26, 0x26]];

/// A browser that keeps to itself: nothing is sent anywhere, everything it keeps is in the folder.
fn chromium(folder: &Folder, profile: &str, arguments: &[&str]) -> std::process::Output {
    let keeps = format!("--user-data-dir={}", folder.join(profile));
    let window = format!("--window-size={WIDTH},{HEIGHT}");
    let quiet = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-extensions",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--force-device-scale-factor=1",
        "--force-color-profile=srgb",
        &keeps,
        &window,
    ];
    run_any("chromium", &[&quiet[..], arguments].concat())
}

/// A picture: width, and red, green, blue of each pixel.
struct Picture {
    width: usize,
    pixels: Vec<[u8; 3]>,
}

impl Picture {
    fn read(path: &str) -> Picture {
        let file = std::io::BufReader::new(File::open(path).expect("the browser wrote a screenshot"));
        let mut decoder = png::Decoder::new(file);
        decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
        let mut reader = decoder.read_info().expect("it is a PNG");
        let mut data = vec![0; reader.output_buffer_size().expect("it fits memory")];
        let info = reader.next_frame(&mut data).expect("it is whole");
        let samples = info.color_type.samples();
        assert!(samples >= 3, "{:?}", info.color_type);
        let pixels = data[..info.buffer_size()].chunks_exact(samples).map(|p| [p[0], p[1], p[2]]).collect();
        Picture { width: info.width as usize, pixels }
    }

    /// Columns of a box in which a pixel is of nearly that colour.
    fn columns(&self, place: [f64; 4], colour: [u8; 3]) -> BTreeSet<usize> {
        let [left, top, right, bottom] = place.map(|edge| edge.round() as usize);
        let near = |pixel: [u8; 3]| pixel.iter().zip(colour).all(|(&a, b)| a.abs_diff(b) <= 24);
        let mut found = BTreeSet::new();
        for y in top..bottom {
            found.extend((left..right).filter(|x| near(self.pixels[y * self.width + x])));
        }
        found
    }
}

/// Where each plot lies in the window: class of its figure, and its edges. A copy of the page tells, in which a script
/// writes it down; the page itself has none.
fn plots(folder: &Folder, page: &str) -> Vec<(String, [f64; 4])> {
    const SCRIPT: &str =
        "<script>document.body.innerHTML = '<pre>' + [...document.querySelectorAll('.plot')].map(p => {
        const b = p.getBoundingClientRect();
        return ['BOX', p.closest('figure').className, b.left, b.top, b.right, b.bottom].join(' ');
    }).join('\\n') + '</pre>';</script>";
    let copy = folder.join("copy.html");
    std::fs::write(&copy, page.replace("</body>", &format!("{SCRIPT}</body>"))).expect("a file can be written");
    let out = chromium(folder, "one", &["--dump-dom", &format!("file://{copy}")]);
    let text = said(&out);
    let lines = text.lines().filter_map(|line| line.split_once("BOX ").map(|(_, rest)| rest));
    let plots: Vec<_> = lines
        .map(|line| {
            let words: Vec<&str> = line.split('<').next().unwrap_or_default().split_whitespace().collect();
            let edge = |at: usize| words[at].parse().unwrap_or_else(|_| panic!("{line}"));
            (words[0].to_owned(), [edge(1), edge(2), edge(3), edge(4)])
        })
        .collect();
    assert!(!plots.is_empty(), "{text}");
    plots
}

/// Returns the width of the page's content in a window of that width, and the elements that do not fit. An inner frame is the window: a
/// browser's own is never narrower than 500 pixels.
fn content_width(folder: &Folder, page: &str, width: u32) -> (u32, String) {
    let inner = page.replace('&', "&amp;").replace('"', "&quot;");
    let script = "<script>document.getElementById('inner').onload = event => {
        const root = event.target.contentDocument.documentElement;
        const wide = [...root.querySelectorAll('main *')].filter(element =>
            element.getBoundingClientRect().right > root.clientWidth + 1 && !element.closest('.wide'));
        document.getElementById('found').textContent =
            ['BOX', root.scrollWidth, ...wide.map(element => element.tagName + '.' + element.className)].join(' ');
    }</script>";
    let outer = format!(
        "<!doctype html><body><iframe id=\"inner\" style=\"border:0;width:{width}px;height:900px\" srcdoc=\"{inner}\"></iframe>\
         <pre id=\"found\"></pre>{script}</body>"
    );
    let file = folder.join("outer.html");
    std::fs::write(&file, outer).expect("a file can be written");
    let text = said(&chromium(folder, "three", &["--dump-dom", &format!("file://{file}")]));
    let found = text.split_once("id=\"found\">BOX ").unwrap_or_else(|| panic!("the frame was not loaded: {text}")).1;
    let found = found.split('<').next().unwrap_or_default();
    let (content, wide) = found.split_once(' ').unwrap_or((found, ""));
    (content.trim().parse().unwrap_or_else(|_| panic!("{found}")), wide.to_owned())
}

/// The page of a run, its plots, and what they look like.
fn looked_at(folder: &Folder, arguments: &[&str]) -> (String, Vec<(String, [f64; 4])>, Picture) {
    let file = folder.join("page.html");
    run(BRAID, &[&["bench", "--html", &file], arguments].concat());
    let page = std::fs::read_to_string(&file).expect("the page was written");
    let plots = plots(folder, &page);
    let shot = folder.join("shot.png");
    let out = chromium(folder, "two", &[&format!("--screenshot={shot}"), &format!("file://{file}")]);
    assert!(std::path::Path::new(&shot).exists(), "{}", said(&out));
    (page, plots, Picture::read(&shot))
}

#[test]
fn a_sweep_of_two_targets_shows_its_curves() {
    let folder = Folder::new();
    let slow = "throttled(mem:8M,iops=20000)";
    let load =
        ["--depth", "1..16", "--time", "100ms", "--slices", "2", "--label", "fast", "--label", "<slow> & \"odd\""];
    let (page, plots, picture) = looked_at(&folder, &[&["mem:8M", slow], &load[..]].concat());
    // Self-contained: nothing is fetched, nothing runs, and a label is no tag.
    for word in ["http:", "https:", "<script", "<link", "<img", "url(", "@import", "<slow>"] {
        assert!(!page.contains(word), "{word}");
    }
    assert!(page.contains("&lt;slow&gt; &amp; &quot;odd&quot;"));
    // Throughput, mean latency, 99th percentile; percentile curves of both ends.
    let curves: Vec<_> = plots.iter().filter(|(class, _)| class == "lines").collect();
    assert_eq!((plots.len(), curves.len()), (5, 5), "{plots:?}");
    for (number, (_, place)) in curves.iter().enumerate() {
        let width = (place[2] - place[0]) as usize;
        assert!(width > 300 && place[3] <= f64::from(HEIGHT), "{place:?}");
        for (target, &colour) in COLOURS.iter().enumerate() {
            let columns = picture.columns(*place, colour);
            // A curve goes over its plot; what covers it is the other one, where both are the same.
            let enough = if number < 3 { width / 2 } else { width / 5 };
            assert!(
                columns.len() > enough,
                "curve of target {target} in plot {number}: {} of {width} columns",
                columns.len()
            );
        }
    }
    // The test can tell: a colour that no target has is nowhere.
    let nowhere = picture.columns(curves[0].1, [0x16, 0xa3, 0x4a]);
    assert!(nowhere.is_empty(), "{} columns", nowhere.len());
}

#[test]
fn a_comparison_at_one_point_shows_bars_as_long_as_their_values() {
    let folder = Folder::new();
    // 1:2 by what the disks allow, not by how fast the machine is.
    let disks = ["throttled(mem:8M,iops=500)", "throttled(mem:8M,iops=1000)"];
    let (page, plots, picture) = looked_at(&folder, &[&disks[..], &["--time", "800ms", "--slices", "2"]].concat());
    let classes: Vec<&str> = plots.iter().map(|(class, _)| class.as_str()).collect();
    assert_eq!(classes, ["bars", "bars", "lines"]);
    let length = |target: usize| {
        let columns = picture.columns(plots[0].1, COLOURS[target]);
        columns.last().copied().unwrap_or(0) as f64 - plots[0].1[0]
    };
    let ratio = length(1) / length(0);
    assert!((1.6..2.5).contains(&ratio), "{} and {} pixels", length(0), length(1));
    // It leads with the result: the figures of both targets are above the first chart.
    let (head, _) = page.split_once("<svg").expect("it has a chart");
    for label in ["IOPS", "throughput", "latency, p50", "latency, p99", "CPU per I/O"] {
        assert_eq!(head.matches(&format!("<dt>{label}</dt>")).count(), 2, "{label}");
    }
    assert!(!page.contains('…'), "nothing is cut");
}

#[test]
fn the_page_fits_wide_and_narrow_windows() {
    let folder = Folder::new();
    let file = folder.join("page.html");
    let label = "a-label-".repeat(12);
    let load = ["--depth", "1..4", "--time", "100ms", "--slices", "2", "--label", "short", "--label", &label];
    run(BRAID, &[&["bench", "--html", &file, "mem:8M", "throttled(mem:8M,iops=20000)"], &load[..]].concat());
    let page = std::fs::read_to_string(&file).expect("the page was written");
    for width in [1280, 390] {
        let (content, wide) = content_width(&folder, &page, width);
        assert!(content <= width && wide.is_empty(), "{content} pixels in {width}: {wide}");
    }
}
