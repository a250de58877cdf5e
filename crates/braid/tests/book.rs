//! Checks the documents: every page is in `docs/SUMMARY.md`, every relative link and anchor resolves, no page and no table cell is too long,
//! generated pages say so, and every `braid` command in a shell block exists.
//!
//! The pages of `docs/reference/cli`, which a test of the program generates, say which commands exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// Largest size of a page, in bytes.
const PAGE_BYTES_MAX: usize = 30 << 10;
/// Longest cell of a table, in characters.
const CELL_CHARACTERS_MAX: usize = 200;
/// Folders whose pages are generated. Each page says so in its first lines.
const GENERATED: [&str; 2] = ["docs/reference/cli/", "docs/internals/benchmarks/"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("crates/braid is two levels below the root")
        .to_owned()
}

/// Returns every Markdown file that git knows, by its path from the root. Files that are deleted and not yet committed are left out.
fn pages() -> BTreeMap<String, String> {
    let out = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(out.status.success(), "this test reads the list of files from git: run it in a checkout");
    let listed = String::from_utf8(out.stdout).expect("paths are UTF-8");
    let read = |path: &str| Some((path.to_owned(), std::fs::read_to_string(root().join(path)).ok()?));
    listed.split('\0').filter(|path| !path.is_empty()).filter_map(read).collect()
}

/// Returns the lines of a page outside fenced blocks, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut is_fenced = false;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced {
            lines.push((number, line));
        }
    }
    lines
}

/// Returns the lines of fenced blocks of one language, with their numbers.
fn fenced<'a>(text: &'a str, language: &str) -> Vec<(usize, &'a str)> {
    let mut block: Option<&str> = None;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(after) = line.trim_start().strip_prefix("```") {
            block = if block.is_some() { None } else { Some(after.trim()) };
        } else if block == Some(language) {
            lines.push((number, line));
        }
    }
    lines
}

/// Returns a line without what stands in backquotes.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// Returns the targets of all links of a line.
fn links(line: &str) -> Vec<String> {
    let line = without_code(line);
    let mut targets = Vec::new();
    for after in line.split("](").skip(1) {
        if let Some((target, _)) = after.split_once(')') {
            targets.push(target.to_owned());
        }
    }
    targets
}

/// Returns the anchor that forges and mdBook give to a heading.
fn anchor(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading.trim();
    // Of a link in a heading the text counts alone.
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    text.push_str(rest);
    let kept = text.chars().flat_map(char::to_lowercase).filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns every anchor of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (_, line) in prose(text) {
        let level = line.bytes().take_while(|byte| *byte == b'#').count();
        let Some(heading) = line[level..].strip_prefix(' ').filter(|_| (1..=6).contains(&level)) else { continue };
        let first = anchor(heading);
        let mut name = first.clone();
        for number in 1.. {
            if all.insert(name) {
                break;
            }
            name = format!("{first}-{number}");
        }
    }
    all
}

/// Returns a path from the root, without `.` and `..`.
fn resolved(page: &str, target: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    for part in folder.join(target).components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
            _ => {}
        }
    }
    parts.join("/")
}

/// Returns the cells of a line of a table.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim().trim_start_matches('|').replace("\\|", " ");
    line.split('|').map(|cell| cell.trim().to_owned()).collect()
}

fn assert_none(what: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
}

#[test]
fn every_page_is_in_the_summary_and_exists() {
    let pages = pages();
    let summary = pages.get("docs/SUMMARY.md").expect("docs/SUMMARY.md");
    let listed: Vec<String> =
        prose(summary).iter().flat_map(|(_, line)| links(line)).map(|target| format!("docs/{target}")).collect();
    let mut wrong: Vec<String> =
        listed.iter().filter(|path| !pages.contains_key(*path)).map(|path| format!("{path} does not exist")).collect();
    for path in pages.keys().filter(|path| path.starts_with("docs/") && *path != "docs/SUMMARY.md") {
        match listed.iter().filter(|other| *other == path).count() {
            0 => wrong.push(format!("{path} is not in the summary")),
            1 => {}
            more => wrong.push(format!("{path} is in the summary {more} times")),
        }
    }
    assert_none("docs/SUMMARY.md", &wrong);
}

#[test]
fn every_relative_link_and_anchor_resolves() {
    let pages = pages();
    let anchors: BTreeMap<&String, BTreeSet<String>> = pages.iter().map(|(path, text)| (path, anchors(text))).collect();
    let mut wrong = Vec::new();
    for (page, text) in &pages {
        for (number, line) in prose(text) {
            for target in links(line) {
                if target.contains(':') {
                    continue;
                }
                let (file, fragment) = target.split_once('#').unwrap_or((&target, ""));
                let path = if file.is_empty() { page.clone() } else { resolved(page, file) };
                if !root().join(&path).exists() {
                    wrong.push(format!("{page}:{number}: {target} does not exist"));
                } else if !fragment.is_empty() && anchors.get(&path).is_some_and(|all| !all.contains(fragment)) {
                    wrong.push(format!("{page}:{number}: {path} has no heading for #{fragment}"));
                }
            }
        }
    }
    assert_none("links", &wrong);
}

#[test]
fn no_page_and_no_cell_is_too_long() {
    let mut wrong = Vec::new();
    for (page, text) in &pages() {
        if text.len() > PAGE_BYTES_MAX {
            wrong.push(format!("{page}: {} bytes, {PAGE_BYTES_MAX} at most", text.len()));
        }
        for (number, line) in prose(text).into_iter().filter(|(_, line)| line.starts_with('|')) {
            for cell in cells(line).iter().filter(|cell| cell.chars().count() > CELL_CHARACTERS_MAX) {
                let length = cell.chars().count();
                wrong.push(format!("{page}:{number}: a cell of {length} characters, {CELL_CHARACTERS_MAX} at most"));
            }
        }
    }
    assert_none("too long", &wrong);
}

#[test]
fn generated_pages_say_so() {
    let mut wrong = Vec::new();
    for folder in GENERATED {
        let pages = pages();
        let of_folder: Vec<_> = pages.iter().filter(|(path, _)| path.starts_with(folder)).collect();
        assert!(of_folder.len() > 1, "{folder} has no pages");
        for (path, text) in of_folder {
            if !text.lines().take(5).any(|line| line.starts_with("Generated ") && line.contains("do not edit")) {
                wrong.push(format!("{path} does not say that it is generated"));
            }
        }
    }
    assert_none("generated pages", &wrong);
}

/// Returns every command of the generated reference and its aliases, without `braid`.
fn commands(pages: &BTreeMap<String, String>) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (_, text) in pages.iter().filter(|(path, _)| path.starts_with("docs/reference/cli/")) {
        for (_, line) in prose(text) {
            if let Some(command) = line.strip_prefix("## braid ") {
                all.insert(command.to_owned());
            } else if line.starts_with("Also `braid ") {
                let quoted = line.split('`').skip(1).step_by(2);
                all.extend(quoted.filter_map(|alias| alias.strip_prefix("braid ")).map(str::to_owned));
            }
        }
    }
    all
}

#[test]
fn every_command_in_a_shell_block_exists() {
    let pages = pages();
    let commands = commands(&pages);
    assert!(commands.len() > 80, "{} commands", commands.len());
    let mut wrong = Vec::new();
    let mut read = 0;
    for (page, text) in &pages {
        for (number, line) in fenced(text, "sh") {
            let line = line.trim_start();
            let line = line.strip_prefix("sudo ").unwrap_or(line);
            let Some(rest) = line.strip_prefix("braid ") else { continue };
            read += 1;
            let mut words = rest.split_whitespace();
            let first = words.next().unwrap_or_default();
            let both = format!("{first} {}", words.next().unwrap_or_default());
            if !first.starts_with('-') && !commands.contains(first) && !commands.contains(&both) {
                wrong.push(format!("{page}:{number}: there is no command braid {both}"));
            }
        }
    }
    assert!(read > 50, "only {read} commands were read");
    assert_none("commands", &wrong);
}

#[test]
fn anchors_and_cells_are_read_as_forges_read_them() {
    assert_eq!(anchor("Parity: raid5 and raid6"), "parity-raid5-and-raid6");
    assert_eq!(anchor("The kernel's `nbd` client, [here](x.md)"), "the-kernels-nbd-client-here");
    assert_eq!(anchors("# A\n## A\n```\n# no\n```\n"), BTreeSet::from(["a".to_owned(), "a-1".to_owned()]));
    assert_eq!(resolved("docs/guide/a.md", "../../README.md"), "README.md");
    assert_eq!(links("[a](b.md) `[c](d.md)` [e](f#g)"), ["b.md", "f#g"]);
    assert_eq!(cells("| a | b \\| c |"), ["a", "b   c", ""]);
}
