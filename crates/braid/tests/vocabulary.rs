//! Enforces the glossary: words that it replaces enter no file anew, and their number in each part of the project only
//! falls.
//!
//! `tests/vocabulary.txt` beside this file records how often each word remains in each part. The test fails for a part
//! with more than that, and for one with less: then `BRAID_WRITE_VOCABULARY=1 cargo test -p braid --test vocabulary`
//! rewrites the file, and never raises a number.
//!
//! Words are counted as readers see them: `JudgedRing`, `judged_ring` and "it judged the ring" contain the word
//! "judged" once each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Words that the glossary replaces, and their replacements. Forms of one word are grouped.
const WORDS: &[(&[&str], &str)] = &[
    (&["whoever", "somebody", "nobody", "anybody", "everybody"], "the name of the component"),
    (&["seat", "seats", "seated", "seating", "seatings"], "slot; for votes: voter, membership"),
    (&["row", "rows"], "stripe; for tables and pages: line"),
    (&["fold", "folds", "folded", "folding"], "merge"),
    (&["liken", "likened", "likening", "likeness"], "resync"),
    (&["placing", "placings"], "allocation, layout"),
    (&["newcomer", "newcomers", "leaver", "leavers"], "new member, leaving member; joint configuration"),
    (&["companion", "companions"], "replica metadata"),
    (&["council", "councils"], "quorum, voters"),
    (&["heard", "told", "asked"], "notified, reported, replied, requested"),
    (&["promise", "promises", "promised"], "guarantee; overcommit; vote"),
    (&["door", "doors", "visitor", "visitors", "lane", "lanes", "gate", "gates"], "controller, session, connection"),
    (&["keeper", "keepers", "keeping", "keepings"], "reconciler, monitor"),
    (&["tend", "tends", "tended", "board", "boards"], "maintenance task, work queue"),
    (&["judge", "judges", "judged", "judging", "verdict", "verdicts"], "validate, outcome, decision"),
    (&["trouble", "troubles", "complaint", "complaints"], "fault, client error"),
    (&["tier", "tiers"], "stack level"),
    (&["plot", "plots", "drill", "drills", "aftermath", "bury", "buried"], "fault plan, scenario, test"),
    (&["planted", "plant", "plants"], "mutation, seeded bug"),
];

/// Returns the part of the project that a file is counted in.
fn part(path: &str) -> String {
    let mut names = path.split('/');
    match (names.next(), names.next(), names.next()) {
        (Some("crates"), Some(_), Some("mutations")) => "mutations".to_owned(),
        (Some("crates"), Some(name), Some(_)) => name.to_owned(),
        (Some(folder), Some(_), _) => folder.to_owned(),
        (file, ..) => file.unwrap_or_default().to_owned(),
    }
}

/// Calls `each` with the words of a text in lower case; parts of identifiers are words.
fn words(text: &str, mut each: impl FnMut(&str)) {
    let mut word = String::new();
    let mut before_is_lower = false;
    for letter in text.chars() {
        let begins = letter.is_ascii_uppercase() && before_is_lower;
        if (begins || !letter.is_ascii_alphabetic()) && !word.is_empty() {
            each(&word);
            word.clear();
        }
        before_is_lower = letter.is_ascii_lowercase();
        if letter.is_ascii_alphabetic() {
            word.push(letter.to_ascii_lowercase());
        }
    }
    if !word.is_empty() {
        each(&word);
    }
}

/// How often each word occurs in each part, by the word's first form and the part.
type Counts = BTreeMap<(String, String), usize>;

fn count() -> Counts {
    let forms: BTreeMap<&str, &str> =
        WORDS.iter().flat_map(|(forms, _)| forms.iter().map(|form| (*form, forms[0]))).collect();
    let root = root();
    let out = Command::new("git").args(["ls-files", "-z"]).current_dir(&root).output().expect("git runs");
    assert!(out.status.success(), "this test reads the list of files from git: run it in a checkout");
    let listed = String::from_utf8(out.stdout).expect("paths are UTF-8");
    let mut counts = Counts::new();
    // This file lists them all; a history is not rewritten; seeds and golden files are data; a patch has the words of what
    // it changes.
    let is_left_out = |path: &str| {
        let is_data = path == "Cargo.lock" || path.contains("golden/") || path.ends_with(".patch");
        path.contains("tests/vocabulary") || path == "CHANGELOG.md" || is_data
    };
    for path in listed.split('\0').filter(|path| !path.is_empty() && !is_left_out(path)) {
        let Ok(text) = std::fs::read_to_string(root.join(path)) else { continue };
        let part = part(path);
        let mut add = |word: &str| {
            if let Some(first) = forms.get(word) {
                *counts.entry(((*first).to_owned(), part.clone())).or_default() += 1;
            }
        };
        words(&text, &mut add);
        words(path, &mut add);
    }
    counts
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/braid stands two below the root").to_owned()
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vocabulary.txt")
}

fn allowed() -> Counts {
    let text = std::fs::read_to_string(file()).unwrap_or_default();
    let line = |line: &str| {
        let [word, part, number] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
        ((word.to_owned(), part.to_owned()), number.parse().expect("a number"))
    };
    text.lines().filter(|line| !line.starts_with('#')).map(line).collect()
}

#[test]
fn words_that_the_glossary_replaces_become_fewer() {
    let (counts, allowed) = (count(), allowed());
    let most = |key: &(String, String)| allowed.get(key).copied().unwrap_or(0);
    if std::env::var_os("BRAID_WRITE_VOCABULARY").is_some() {
        let first = allowed.is_empty();
        let mut text = String::from("# word, part of the project, how often: see vocabulary.rs\n");
        for (key, number) in &counts {
            let number = if first { *number } else { (*number).min(most(key)) };
            if number > 0 {
                text.push_str(&format!("{} {} {number}\n", key.0, key.1));
            }
        }
        std::fs::write(file(), text).expect("the file can be written");
        return;
    }
    let instead = |word: &str| WORDS.iter().find(|(forms, _)| forms[0] == word).map_or("", |(_, instead)| instead);
    let mut wrong: Vec<String> = Vec::new();
    for (key @ (word, part), number) in &counts {
        if *number > most(key) {
            wrong.push(format!("{part}: {word} {number} times, {} at most: instead: {}", most(key), instead(word)));
        }
    }
    assert!(wrong.is_empty(), "words that the glossary replaces:\n{}", wrong.join("\n"));
    let fewer = allowed.iter().filter(|(key, number)| counts.get(*key).copied().unwrap_or(0) < **number).count();
    assert!(
        fewer == 0,
        "{fewer} numbers of tests/vocabulary.txt can be lowered: BRAID_WRITE_VOCABULARY=1 cargo test -p braid --test vocabulary"
    );
}

#[test]
fn words_are_found_in_identifiers_and_in_text() {
    let found = |text: &str| {
        let mut all = Vec::new();
        words(text, |word| all.push(word.to_owned()));
        all
    };
    assert_eq!(
        found("JudgedRing::judged_ring(\"it judged NBD\")"),
        ["judged", "ring", "judged", "ring", "it", "judged", "nbd"]
    );
    assert_eq!(part("crates/braid-export/src/gate.rs"), "braid-export");
    assert_eq!((part("docs/reference/nbd.md"), part("README.md")), ("docs".to_owned(), "README.md".to_owned()));
}
