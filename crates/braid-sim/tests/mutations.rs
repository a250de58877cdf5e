//! The patches in `mutations` are all mutations that must be found, and each is demanded somewhere. Whether they apply to the
//! engine is checked by `scripts/mutations.sh check`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the names in a text that follow `Planted::`.
fn named(text: &str) -> BTreeSet<String> {
    let name = |rest: &str| rest.chars().take_while(char::is_ascii_alphanumeric).collect();
    text.split("Planted::").skip(1).map(name).collect()
}

/// Returns the variants of the lists that the mutated engine gets.
fn listed() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for list in ["engine/planted.rs", "array-admin/lifecycle/planted.rs", "engine/replica/planted.rs"] {
        let text = text(&format!("mutations/{list}"));
        let variants = text.split("pub enum Planted {").nth(1).and_then(|rest| rest.split("\n}").next());
        let lines = variants.expect("the enum").lines().map(str::trim);
        for name in lines.filter_map(|line| line.strip_suffix(',')).filter(|line| !line.starts_with('/')) {
            assert!(all.insert(name.to_owned()), "{name} is listed twice");
        }
    }
    all
}

/// Returns the patch of each mutation.
fn patches() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(path("mutations")).expect("the folder is there") {
        let file = entry.expect("it is listed").file_name().into_string().expect("a name");
        let Some(names) = file.strip_suffix(".patch").filter(|names| *names != "base") else { continue };
        for name in names.split('+') {
            let other = all.insert(name.to_owned(), file.clone());
            assert!(other.is_none(), "{name} is in {file} and in {other:?}");
        }
    }
    all
}

/// Mutations of what the simulator plays stand in the simulator.
fn played() -> BTreeSet<String> {
    ["src/pools/bugs.rs", "src/replicas/bugs.rs", "src/volumes/admin.rs"]
        .iter()
        .flat_map(|file| named(&text(file)))
        .collect()
}

#[test]
fn the_patches_are_the_listed_mutations() {
    let (listed, patches, played) = (listed(), patches(), played());
    let known: BTreeSet<String> = patches.keys().chain(&played).cloned().collect();
    let lacking: Vec<_> = listed.difference(&known).collect();
    assert!(lacking.is_empty(), "listed, and neither a patch nor played by the simulator: {lacking:?}");
    let unlisted: Vec<_> = known.difference(&listed).collect();
    assert!(unlisted.is_empty(), "in no list of crates/braid-sim/mutations: {unlisted:?}");
    assert!(listed.len() > 250, "{} mutations", listed.len());
    for (name, file) in patches {
        let others: Vec<_> = named(&text(&format!("mutations/{file}"))).into_iter().collect();
        let is_named = |name: &str| file.trim_end_matches(".patch").split('+').any(|one| one == name);
        assert!(
            others.iter().all(|other| is_named(other)),
            "{file} has a bug that its name lacks ({name}): {others:?}"
        );
    }
}

/// Nothing looks for these yet: to be made fewer.
const UNSOUGHT: [&str; 1] = ["DroppedWhenFull"];

#[test]
fn each_mutation_is_demanded_or_argued() {
    let tables = ["mutations/arrays.rs", "pools/mutations.rs", "volumes/mutations.rs", "replicas/mutations.rs"];
    let tables: String = tables.iter().map(|file| text(&format!("src/{file}"))).collect();
    // Imported as `Planted as …`, too: what follows `::` is a name.
    let of_tables: BTreeSet<&str> =
        tables.split("::").map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or("")).collect();
    let of_tests = named(&text("mutations/base.patch"));
    let lacking: Vec<String> =
        listed().into_iter().filter(|name| !of_tables.contains(&**name) && !of_tests.contains(name)).collect();
    assert_eq!(lacking, UNSOUGHT, "neither the simulator nor a test of the engine looks for them");
}
