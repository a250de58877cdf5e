//! Checks the dependency rules of `docs/internals/architecture.md`: which crate may depend on which, which may reach the system,
//! and what no file of this repository may name.
//!
//! Reads what cargo itself resolved (`cargo metadata`), not the text of the manifests, so that a renamed or optional
//! dependency cannot slip through.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The crates of this workspace that each crate may depend on, in any kind of dependency. A crate missing here is an
/// error.
const MAY_USE: &[(&str, &[&str])] = &[
    ("braid-geometry", &[]),
    ("braid-parity", &[]),
    ("braid-format", &["braid-geometry"]),
    ("braid-engine", &["braid-geometry", "braid-parity", "braid-format"]),
    ("braid-array-admin", &["braid-engine", "braid-format", "braid-geometry", "braid-parity"]),
    ("braid-ring", &["braid-engine", "braid-geometry"]),
    ("braid-sim", &["braid-array-admin", "braid-engine", "braid-geometry", "braid-parity", "braid-format"]),
    // The frontends share exports, their limits and their counters. No frontend depends on another.
    ("braid-export", &["braid-engine", "braid-ring"]),
    ("braid-nbd", &["braid-engine", "braid-ring", "braid-export"]),
    ("braid-fuse", &["braid-engine", "braid-ring", "braid-export"]),
    ("braid-ublk", &["braid-engine", "braid-ring", "braid-export"]),
    ("braid-api", &["braid-geometry"]),
    // Crates that every program of Braid shares: certificates, the configuration, advice, the terminal, a client of the
    // API, disks of this machine.
    ("braid-tls", &["braid-api", "braid-nbd"]),
    ("braid-config", &["braid-api", "braid-geometry", "braid-ring"]),
    ("braid-advice", &["braid-api", "braid-array-admin", "braid-engine", "braid-geometry", "braid-ring"]),
    ("braid-terminal", &["braid-api", "braid-geometry"]),
    ("braid-client", &["braid-api", "braid-tls"]),
    ("braid-tasks", &[]),
    // The nodes of a cluster reach the daemon only through traits that it implements.
    (
        "braid-cluster",
        &["braid-advice", "braid-api", "braid-client", "braid-config", "braid-format", "braid-tasks", "braid-tls"],
    ),
    // The API reaches the daemon only through traits that it implements.
    ("braid-server", &["braid-api", "braid-config", "braid-ring", "braid-tasks", "braid-tls"]),
    (
        "braid-host",
        &["braid-advice", "braid-api", "braid-engine", "braid-format", "braid-nbd", "braid-ring", "braid-tls"],
    ),
    // The managers of the daemon, over one inventory. A lower manager reaches those above it only through a trait of its
    // own.
    (
        "braid-inventory",
        &[
            "braid-advice",
            "braid-api",
            "braid-array-admin",
            "braid-config",
            "braid-engine",
            "braid-export",
            "braid-format",
            "braid-geometry",
            "braid-host",
            "braid-nbd",
            "braid-ring",
            "braid-tasks",
        ],
    ),
    (
        "braid-exports",
        &[
            "braid-advice",
            "braid-api",
            "braid-array-admin",
            "braid-config",
            "braid-engine",
            "braid-export",
            "braid-format",
            "braid-fuse",
            "braid-geometry",
            "braid-host",
            "braid-inventory",
            "braid-nbd",
            "braid-ring",
            "braid-tasks",
            "braid-tls",
            "braid-ublk",
        ],
    ),
    (
        "braid-arrays",
        &[
            "braid-advice",
            "braid-api",
            "braid-array-admin",
            "braid-config",
            "braid-engine",
            "braid-export",
            "braid-exports",
            "braid-format",
            "braid-geometry",
            "braid-host",
            "braid-inventory",
            "braid-nbd",
            "braid-ring",
            "braid-tasks",
        ],
    ),
    (
        "braid-pools",
        &[
            "braid-advice",
            "braid-api",
            "braid-array-admin",
            "braid-arrays",
            "braid-config",
            "braid-engine",
            "braid-export",
            "braid-exports",
            "braid-format",
            "braid-geometry",
            "braid-host",
            "braid-inventory",
            "braid-nbd",
            "braid-ring",
            "braid-tasks",
        ],
    ),
    (
        "braid-replication",
        &[
            "braid-advice",
            "braid-api",
            "braid-array-admin",
            "braid-arrays",
            "braid-cluster",
            "braid-config",
            "braid-engine",
            "braid-export",
            "braid-exports",
            "braid-format",
            "braid-geometry",
            "braid-host",
            "braid-inventory",
            "braid-nbd",
            "braid-pools",
            "braid-ring",
            "braid-tasks",
            "braid-tls",
        ],
    ),
    // The command line reaches the daemon only through its API.
    (
        "braid-cli",
        &[
            "braid-advice",
            "braid-api",
            "braid-array-admin",
            "braid-client",
            "braid-config",
            "braid-engine",
            "braid-export",
            "braid-format",
            "braid-fuse",
            "braid-geometry",
            "braid-host",
            "braid-ring",
            "braid-terminal",
            "braid-tls",
            "braid-ublk",
        ],
    ),
    (
        "braid-bench",
        &[
            "braid-api",
            "braid-client",
            "braid-config",
            "braid-engine",
            "braid-format",
            "braid-geometry",
            "braid-host",
            "braid-nbd",
            "braid-ring",
            "braid-terminal",
            "braid-tls",
        ],
    ),
    // The harness of `make bench`. No crate may depend on it.
    (
        "xtask",
        &[
            "braid-bench",
            "braid-engine",
            "braid-format",
            "braid-geometry",
            "braid-parity",
            "braid-ring",
            "braid-terminal",
        ],
    ),
    // The control plane of one daemon: the managers wired, and the API over them.
    (
        "braid-daemon",
        &[
            "braid-api",
            "braid-arrays",
            "braid-cluster",
            "braid-engine",
            "braid-export",
            "braid-exports",
            "braid-format",
            "braid-inventory",
            "braid-nbd",
            "braid-pools",
            "braid-replication",
            "braid-ring",
            "braid-server",
            "braid-tasks",
            "braid-tls",
        ],
    ),
    (
        "braid",
        &[
            "braid-geometry",
            "braid-parity",
            "braid-format",
            "braid-engine",
            "braid-array-admin",
            "braid-ring",
            "braid-export",
            "braid-nbd",
            "braid-fuse",
            "braid-ublk",
            "braid-api",
            "braid-sim",
            "braid-advice",
            "braid-arrays",
            "braid-bench",
            "braid-cli",
            "braid-client",
            "braid-cluster",
            "braid-config",
            "braid-daemon",
            "braid-exports",
            "braid-host",
            "braid-inventory",
            "braid-pools",
            "braid-replication",
            "braid-server",
            "braid-tasks",
            "braid-terminal",
            "braid-tls",
        ],
    ),
];

/// External crates that only the named crates may depend on directly.
const ONLY: &[(&str, &[&str])] = &[
    ("io-uring", &["braid-ring"]),
    (
        "tokio",
        &[
            "braid",
            "braid-arrays",
            "braid-bench",
            "braid-cli",
            "braid-client",
            "braid-cluster",
            "braid-daemon",
            "braid-exports",
            "braid-host",
            "braid-inventory",
            "braid-pools",
            "braid-replication",
            "braid-server",
            "braid-tasks",
            "xtask",
        ],
    ),
    ("axum", &["braid-server"]),
    ("prometheus-client", &["braid-server"]),
    ("reqwest", &["braid"]),
    ("hyper", &["braid", "braid-cli", "braid-client", "braid-cluster", "braid-replication", "braid-server"]),
    (
        "clap",
        &[
            "braid",
            "braid-bench",
            "braid-cli",
            "braid-config",
            "braid-exports",
            "braid-server",
            "braid-terminal",
            "xtask",
        ],
    ),
    ("tracing-subscriber", &["braid", "braid-config"]),
];

/// Crates whose ordinary dependencies, direct or not, must not reach the system.
const PURE: &[&str] =
    &["braid-geometry", "braid-parity", "braid-format", "braid-engine", "braid-array-admin", "braid-sim"];

/// Crates that reach the system.
const IMPURE: &[&str] =
    &["io-uring", "tokio", "axum", "reqwest", "hyper", "mio", "rustix", "getrandom", "rand", "socket2"];

/// Accepted licences of dependencies, as SPDX names. A dependency needs one of its alternatives to be listed.
const LICENCES: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "BSL-1.0",
    "Unicode-3.0",
    "CC0-1.0",
    "Unlicense",
    "0BSD",
    "MIT-0",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/braid stands two below the root").to_owned()
}

fn metadata() -> Value {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(out.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("cargo metadata prints JSON")
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Returns the packages of the workspace, by name, with their direct dependencies of any kind.
fn ours(metadata: &Value) -> BTreeMap<String, Vec<String>> {
    let members: BTreeSet<&str> =
        metadata["workspace_members"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    let packages = metadata["packages"].as_array().expect("a list");
    packages
        .iter()
        .filter(|p| members.contains(text(p, "id")))
        .map(|p| {
            let dependencies = p["dependencies"].as_array().expect("a list");
            (text(p, "name").to_owned(), dependencies.iter().map(|d| text(d, "name").to_owned()).collect())
        })
        .collect()
}

#[test]
fn a_crate_below_never_knows_one_above() {
    let ours = ours(&metadata());
    let table: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    for (name, dependencies) in &ours {
        let allowed =
            table.get(name.as_str()).unwrap_or_else(|| panic!("{name} is not in the table of arrows: add it"));
        for dependency in dependencies.iter().filter(|d| ours.contains_key(*d)) {
            assert!(allowed.contains(&dependency.as_str()), "{name} may not depend on {dependency}");
        }
    }
}

#[test]
fn only_the_control_plane_knows_http_and_only_the_ring_knows_io_uring() {
    for (name, dependencies) in &ours(&metadata()) {
        for (external, owners) in ONLY {
            assert!(
                owners.contains(&name.as_str()) || !dependencies.iter().any(|d| d == external),
                "{name} depends on {external}: only {owners:?} may"
            );
        }
    }
}

#[test]
fn the_pure_crates_reach_no_system_through_what_they_use() {
    for (name, _) in ours(&metadata()).iter().filter(|(name, _)| PURE.contains(&name.as_str())) {
        // With the features that this crate alone enables: features that others enable do not count.
        let out = Command::new(env!("CARGO"))
            .args(["tree", "--locked", "--package", name, "--edges", "normal", "--prefix", "none", "--format", "{p}"])
            .current_dir(root())
            .output()
            .expect("cargo runs");
        assert!(out.status.success(), "cargo tree: {}", String::from_utf8_lossy(&out.stderr));
        let tree = String::from_utf8(out.stdout).expect("names are UTF-8");
        assert!(tree.starts_with(name.as_str()), "{tree}");
        for reached in tree.lines().filter_map(|line| line.split(' ').next()) {
            assert!(!IMPURE.contains(&reached), "{name} reaches {reached} through its dependencies");
        }
    }
}

#[test]
fn every_dependency_has_a_licence_that_we_accept() {
    for package in metadata()["packages"].as_array().expect("a list") {
        let licence = text(package, "license").replace('/', " OR ");
        // "A OR B" needs one of them, "A AND B" all; parentheses only group, so dropping them is the strict reading.
        let fits = licence.replace(['(', ')'], " ").split(" OR ").any(|alternative| {
            alternative.split(" AND ").all(|one| {
                let one = one.trim().split(" WITH ").next().unwrap_or_default().trim().to_owned();
                LICENCES.contains(&one.as_str())
            })
        });
        assert!(fits, "{} {}: licence {licence:?}", text(package, "name"), text(package, "version"));
    }
}

/// Returns the files that git tracks, as text; binary files are left out.
fn tracked_texts() -> Vec<(String, String)> {
    let out = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output();
    let listed = match out {
        Ok(out) if out.status.success() => out.stdout,
        _ => panic!("this test reads the list of files from git: run it in a checkout, with git installed"),
    };
    let listed = String::from_utf8(listed).expect("paths are UTF-8");
    let files = listed.split('\0').filter(|path| !path.is_empty());
    files.filter_map(|path| Some((path.to_owned(), std::fs::read_to_string(root().join(path)).ok()?))).collect()
}

#[test]
fn no_file_names_the_host_of_a_package_registry() {
    // In pieces, because this file is checked, too. Cargo writes the registry's host into Cargo.lock.
    let hosts = [
        ["crates.", "io"],
        ["index.crates.", "io"],
        ["deb.debian.", "org"],
        ["archive.ubuntu.", "com"],
        ["pypi.", "org"],
        ["registry.npmjs.", "org"],
        ["proxy.golang.", "org"],
        ["repo.maven.", "apache.org"],
    ];
    for (path, text) in tracked_texts().iter().filter(|(path, _)| !path.ends_with("Cargo.lock")) {
        for host in hosts.map(|parts| parts.concat()) {
            assert!(!text.contains(&host), "{path} names {host}");
        }
    }
}

/// Returns the lines of code that contain `word` as a whole word, in files under `crates/` for which `keep` returns
/// true.
fn mentions(word: &str, keep: impl Fn(&str) -> bool) -> Vec<String> {
    let whole = |line: &str| {
        line.match_indices(word).any(|(at, _)| {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            !line[..at].ends_with(is_word) && !line[at + word.len()..].starts_with(is_word)
        })
    };
    let mut found = Vec::new();
    for (path, text) in tracked_texts() {
        if path.starts_with("crates/") && path.ends_with(".rs") && keep(&path) {
            let code = text.lines().map(|line| line.split("//").next().unwrap_or_default()).enumerate();
            found.extend(
                code.filter(|(_, line)| whole(line)).map(|(n, line)| format!("{path}:{}: {}", n + 1, line.trim())),
            );
        }
    }
    found
}

#[test]
fn only_the_crates_at_the_kernel_have_unsafe_code() {
    // The tests of the binary have a counting allocator, which Rust only offers as an unsafe trait; examples measure what is
    // not shipped, such as TLS in the kernel.
    let elsewhere = |path: &str| {
        !path.starts_with("crates/braid-ring/")
            && !path.starts_with("crates/braid-parity/")
            && !path.starts_with("crates/braid-fuse/")
            && !path.starts_with("crates/braid-ublk/")
            && !path.contains("/tests/")
            && !path.contains("/examples/")
    };
    let found = mentions("unsafe", elsewhere);
    assert!(
        found.is_empty(),
        "unsafe code where no kernel and no vector instruction is spoken to:\n{}",
        found.join("\n")
    );
}

#[test]
fn no_test_is_switched_off_and_nothing_is_left_to_do() {
    for word in ["todo!", "unimplemented!", "#[ignore", "dbg!"] {
        let found = mentions(word, |path| !path.ends_with("tests/arrows.rs"));
        assert!(found.is_empty(), "{word}:\n{}", found.join("\n"));
    }
}

/// Every test, scenario and mutation in the table of guarantees in docs/internals/evidence.md exists.
#[test]
fn what_the_table_of_guarantees_names_exists() {
    let document = std::fs::read_to_string(root().join("docs/internals/evidence.md")).expect("it is there");
    let table = document.split("## Guarantees, and where each is proved").nth(1).expect("its section");
    let table = table.split("\n## ").next().expect("a part");
    let lines: Vec<&str> = table.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    let tracked = tracked_texts();
    let is_file =
        |name: &str| tracked.iter().any(|(path, _)| path.contains("/tests/") && path.ends_with(&format!("/{name}")));
    let is_scenario = |name: &str| root().join("tests/vm").join(name).is_dir();
    let mutation_sources: Vec<&str> =
        tracked.iter().filter(|(path, _)| path.ends_with("/planted.rs")).map(|(_, text)| text.as_str()).collect();
    let is_mutation =
        |name: &str| mutation_sources.iter().any(|text| text.lines().any(|line| line.trim() == format!("{name},")));
    let mut mutations = 0;
    for line in &lines {
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        assert_eq!(cells.len(), 6, "{line}");
        assert!(cells[1..5].iter().any(|cell| !cell.trim().is_empty()), "nothing proves it: {line}");
        for word in line.split('`').skip(1).step_by(2) {
            let is_camel =
                word.starts_with(|c: char| c.is_ascii_uppercase()) && word.bytes().all(|b| b.is_ascii_alphanumeric());
            if word.ends_with(".rs") {
                assert!(is_file(word), "docs/internals/evidence.md names {word}, and no test has that name");
            } else if is_camel && word.chars().any(|c| c.is_ascii_lowercase()) {
                mutations += 1;
                assert!(is_mutation(word), "docs/internals/evidence.md names {word}, and no planted.rs has it");
            }
        }
        for word in cells[4].split('`').skip(1).step_by(2) {
            assert!(is_scenario(word), "docs/internals/evidence.md names the scenario {word}, and tests/vm has none");
        }
    }
    assert!(lines.len() > 12 && mutations > 30, "{} guarantees, {mutations} mutations", lines.len());
}
