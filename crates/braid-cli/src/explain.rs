//! `braid explain [CODE]`: the runbook of an event or of a line of `braid status`.
//!
//! The runbooks are the files of `docs/operating/runbooks`, compiled into the program: the command needs no daemon. A page lists the codes that it
//! explains in the paragraph that begins with `Codes: `. A code is the kind of an event, or an [`braid_api::AttentionCode`].

use super::color::{STRONG, paint};
use super::output;
use braid_api::{ErrorDetail, Kind};
use clap::Args;
use serde::Serialize;
use std::process::ExitCode;
use utoipa::ToSchema;

/// Codes that the error about an unknown code names.
const NEAREST_MAX: usize = 3;

macro_rules! pages {
    ($($name:literal)+) => {
        &[$(Page { name: $name, text: include_str!(concat!("../../../docs/operating/runbooks/", $name, ".md")) },)+]
    };
}

/// Every page, by kind of object.
const PAGES: &[Page] = pages! {
    "array-incomplete"
    "array-inactive"
    "array-failed"
    "array-degraded"
    "array-rebuilding"
    "array-rebuild-unreadable"
    "array-unreadable"
    "array-journal-lost"
    "array-damaged"
    "array-parity-unverified"
    "array-check"
    "array-resyncing"
    "array-imported"
    "array-changed"
    "array-maintenance-failed"
    "read-repaired"
    "labels"
    "delete-failed"
    "disk-errors"
    "disk-hangs"
    "disk-gone"
    "disk-short"
    "disk-deleted"
    "disk-lacks-space"
    "disks-late"
    "export-failed"
    "export-changed"
    "orphan-removed"
    "client-disconnected"
    "nbd-certificate-invalid"
    "api-files-invalid"
    "certificate-expires"
    "daemon-started"
    "upgrade-failed"
    "state-not-saved"
    "state-folder-deleted"
    "events-lost"
    "pool-inactive"
    "pool-write-failed"
    "pool-log-missing"
    "pool-damaged"
    "pool-nearly-full"
    "pool-lacks-space"
    "pool-member-missing"
    "pool-member-returned"
    "pool-member-given-up"
    "pool-member-short"
    "pool-member-removing"
    "pool-changed"
    "pool-compaction-stopped"
    "volume-changed"
    "snapshot-changed"
    "snapshot-policy-failed"
    "volume-attached"
    "volume-taken"
    "volume-unserved"
    "volume-waits-for-quorum"
    "volume-waits-for-data"
    "volume-opening"
    "volume-failed"
    "volume-forced"
    "volume-deleted-elsewhere"
    "replica-unreachable"
    "replica-returning"
    "replica-rebuilding"
    "replica-failing"
    "replica-removed"
    "replica-left-out"
    "replica-lost"
    "replica-failed"
    "replica-older"
    "replica-changed"
    "node-unreachable"
    "node-changed"
    "node-removed"
    "node-clock-differs"
    "node-certificate-not-renewed"
    "node-address-unavailable"
};

/// One runbook.
#[derive(Debug)]
pub struct Page {
    name: &'static str,
    text: &'static str,
}

impl Page {
    /// Returns the name of its file, without `.md`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the page, in Markdown.
    #[must_use]
    pub fn text(&self) -> &'static str {
        self.text
    }

    /// Returns its first line: what it is about.
    #[must_use]
    pub fn title(&self) -> &'static str {
        self.text.lines().next().unwrap_or_default().trim_start_matches("# ")
    }

    /// Returns the codes that it explains.
    #[must_use]
    pub fn codes(&self) -> Vec<&'static str> {
        let codes = self.text.split("\n\n").find_map(|paragraph| paragraph.strip_prefix("Codes: "));
        codes.unwrap_or_default().split('`').skip(1).step_by(2).collect()
    }

    fn runbook(&self) -> Runbook {
        Runbook {
            page: self.name.to_owned(),
            title: self.title().to_owned(),
            codes: self.codes().into_iter().map(str::to_owned).collect(),
            text: self.text.to_owned(),
        }
    }
}

/// Arguments of `braid explain`.
#[derive(Args)]
pub struct ExplainArgs {
    /// The code that `braid status` shows, or the kind of an event; without it all codes are listed
    #[arg(value_name = "CODE")]
    code: Option<String>,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// One runbook, as `braid explain --json` prints it.
#[derive(Debug, Serialize, ToSchema)]
pub struct Runbook {
    /// The name of its file in `docs/operating/runbooks`, without `.md`.
    pub page: String,
    /// What it is about, in one sentence.
    pub title: String,
    /// The kinds of events and the codes of `braid status` that it explains.
    pub codes: Vec<String>,
    /// The page, in Markdown.
    pub text: String,
}

/// The runbook of a code, or all runbooks: `braid explain --json`.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunbookList {
    /// The runbooks; exactly one where a code was given.
    pub runbooks: Vec<Runbook>,
}

/// Returns every page, by kind of object.
#[must_use]
pub fn pages() -> &'static [Page] {
    PAGES
}

/// Returns the page that explains a code. Case does not count, and `-` and `_` are the same.
#[must_use]
pub fn find(code: &str) -> Option<&'static Page> {
    let wanted = normal(code);
    PAGES.iter().find(|page| page.codes().into_iter().any(|known| normal(known) == wanted))
}

/// Runs the command.
///
/// # Errors
/// No page explains the code.
pub fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let Some(code) = &args.code else {
        let all = RunbookList { runbooks: PAGES.iter().map(Page::runbook).collect() };
        output::show(args.json, &all, |_| list());
        return Ok(ExitCode::SUCCESS);
    };
    let Some(page) = find(code) else {
        return Err(ErrorDetail::new(Kind::NotFound, format!("there is no code {code}"))
            .remedy(format!("the nearest codes are {}; `braid explain` lists all of them", nearest(code).join(", ")))
            .into());
    };
    output::show(args.json, &RunbookList { runbooks: vec![page.runbook()] }, |_| people(page));
    Ok(ExitCode::SUCCESS)
}

/// A code in the form in which codes are compared.
fn normal(code: &str) -> String {
    code.trim().to_ascii_lowercase().replace('_', "-")
}

/// Every code with what it is about, in alphabetical order.
fn list() -> String {
    let mut codes: Vec<(&str, &str)> =
        PAGES.iter().flat_map(|page| page.codes().into_iter().map(|code| (code, page.title()))).collect();
    codes.sort_unstable();
    let width = codes.iter().map(|(code, _)| code.len()).max().unwrap_or_default();
    codes.into_iter().map(|(code, about)| format!("{code:<width$}  {about}\n")).collect()
}

/// A page for a terminal: headings and commands stand out, and the marks of Markdown for them are left out.
fn people(page: &Page) -> String {
    let mut text = String::new();
    let mut in_code = false;
    for line in page.text.lines() {
        if line.starts_with("```") {
            in_code = !in_code;
        } else if in_code {
            text.push_str(&format!("  {}\n", paint(STRONG, line)));
        } else if line.starts_with('#') {
            text.push_str(&format!("{}\n", paint(STRONG, line.trim_start_matches(['#', ' ']))));
        } else {
            text.push_str(&format!("{line}\n"));
        }
    }
    text
}

/// The codes that are most like a wrong one: first those that contain it, then those with the fewest letters to change.
fn nearest(code: &str) -> Vec<&'static str> {
    let wanted = normal(code);
    let mut codes: Vec<&str> = PAGES.iter().flat_map(Page::codes).collect();
    codes.sort_by_cached_key(|known| {
        let known = normal(known);
        (!known.contains(&wanted), strsim::levenshtein(&wanted, &known))
    });
    codes.truncate(NEAREST_MAX);
    codes
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_api::AttentionCode;
    use std::collections::BTreeSet;

    const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating/runbooks");
    const HEADINGS: [&str; 4] = ["What happened", "Is data at risk", "What to do", "How to see that it is over"];

    // The events are checked where they are emitted: `the_reference_lists_every_event` in the daemon.
    #[test]
    fn every_code_of_the_status_has_a_page() {
        for code in AttentionCode::ALL {
            let page = find(code.word()).unwrap_or_else(|| panic!("no runbook is about {code}"));
            assert!(page.codes().contains(&code.word()), "{} does not name {code}", page.name);
        }
    }

    #[test]
    fn every_page_is_reachable() {
        let files = std::fs::read_dir(FOLDER).expect("the folder is there");
        let files = files.map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned());
        let files: BTreeSet<String> = files.filter(|name| name != "README.md").collect();
        let known: BTreeSet<String> = PAGES.iter().map(|page| format!("{}.md", page.name)).collect();
        assert_eq!(files, known, "the pages of the folder, and those of the program");
        let mut seen = BTreeSet::new();
        for page in PAGES {
            assert!(!page.codes().is_empty(), "{} names no codes", page.name);
            for code in page.codes() {
                assert!(seen.insert(code), "two pages are about {code}");
                assert_eq!(find(code).map(Page::name), Some(page.name), "{code}");
            }
        }
    }

    #[test]
    fn the_index_has_every_code() {
        let index = std::fs::read_to_string(format!("{FOLDER}/README.md")).expect("the index is there");
        for page in PAGES {
            for code in page.codes() {
                let entry = format!("| `{code}` | [{}]({}.md) |", page.title(), page.name);
                assert!(index.contains(&entry), "the index lacks {entry}");
            }
        }
    }

    #[test]
    fn every_page_has_the_four_headings() {
        for page in PAGES {
            let headings: Vec<&str> = page.text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
            assert_eq!(headings, HEADINGS, "{}", page.name);
            assert!(page.text.starts_with("# ") && page.title().len() > 5, "{}", page.name);
        }
    }

    #[test]
    fn a_code_is_found_however_it_is_written() {
        assert_eq!(find("POOL_NEARLY_FULL").map(Page::name), find("pool-nearly-full").map(Page::name));
        assert!(find("pool-nearly-full").is_some() && find("pool").is_none());
    }

    #[test]
    fn an_unknown_code_names_the_nearest() {
        assert_eq!(nearest("array-degradd").first(), Some(&"array-degraded"));
        assert!(nearest("journal").iter().all(|code| code.contains("journal")));
        assert_eq!(nearest("x").len(), NEAREST_MAX);
        assert_eq!((nearest("").len(), nearest("é\u{1f980}").len()), (NEAREST_MAX, NEAREST_MAX));
    }

    #[test]
    fn a_page_for_people_has_no_marks_of_markdown() {
        let text = people(find("array-degraded").expect("a page"));
        assert!(!text.contains("```") && !text.lines().any(|line| line.starts_with('#')), "{text}");
    }
}
