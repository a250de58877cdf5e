//! Checks the arrows between the modules of each crate, as `arrows.rs` checks those between crates.
//!
//! Two rules hold at each level of a module tree:
//!
//! - **No cycle between sibling modules**: the modules that one module holds, files and folders alike.
//! - **No arrow upwards from a folder that its parent names.** A folder is a module with modules in files of their own.
//!   It may name items that its parent's file defines (`super::X`: shared types and constants) only while that file
//!   does not name the folder's items in turn. In the list, such a pair stands as `super` and the folder.
//!
//! A file without modules of its own and its parent's file may name each other: a private type of the parent has its
//! `impl` blocks in such files, and all of them are one unit.
//!
//! A path counts for the module that defines the item: imports and re-exports are followed. A `pub use` is thus no
//! arrow by itself, only where the same file also uses the name. Code under `#[cfg(test)]`, modules named `tests` and
//! `src/bin` are left out. Arrows that no path shows (methods, generated code) are not seen.
//!
//! `tests/folder_arrows.txt` records the cycles that remain: the parent module, and the modules of the cycle (of the
//! strongly connected component). The test fails for a cycle that is not part of a recorded one, and for a recorded one
//! that has shrunk or gone: then `BRAID_WRITE_ARROWS=1 cargo test -p braid --test folder_arrows` rewrites the file, and
//! never adds to it. After a module was renamed, the file is edited by hand. Without the file, the command writes all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

#[path = "folder_arrows/source.rs"]
mod source;

use source::{ModulePath, Tree};

/// The arrows between the modules within one module: from, to, and the line of the first. `super` is the outer module.
type Graph = BTreeMap<String, BTreeMap<String, String>>;

impl Tree {
    fn graphs(&self) -> BTreeMap<ModulePath, Graph> {
        let mut graphs: BTreeMap<ModulePath, Graph> = BTreeMap::new();
        for (at, module) in self.modules.iter().filter(|(at, _)| !self.is_test(at)) {
            let mut arrow = |names: &[String], line: usize, within: &[String]| {
                let Some(to) = self.resolve(within, names, 0).filter(|to| to != at && !self.is_test(to)) else {
                    return;
                };
                let level = at.iter().zip(&to).take_while(|(a, b)| a == b).count();
                let node = |path: &[String]| path.get(level).map_or("super", String::as_str).to_owned();
                let arrows = graphs.entry(at[..level].to_vec()).or_default().entry(node(at)).or_default();
                arrows.entry(node(&to)).or_insert_with(|| format!("{}:{line}", module.file));
            };
            module.paths.iter().for_each(|(path, line)| arrow(path, *line, at));
            for name in &module.exports {
                module.words.get(name).into_iter().for_each(|line| arrow(std::slice::from_ref(name), *line, at));
            }
            for glob in module.globs.iter().filter_map(|glob| self.resolve(at, glob, 0)) {
                let is_own = |word: &str| module.items.contains(word) || module.imports.contains_key(word);
                let words = module.words.iter().filter(|(word, _)| !is_own(word));
                words.for_each(|(word, line)| arrow(std::slice::from_ref(word), *line, &glob));
            }
        }
        graphs
    }

    /// Returns the cycles of each module's graph by the name of the module, in the crate `name`.
    fn cycles(&self, name: &str) -> BTreeMap<Cycle, Graph> {
        let mut found = BTreeMap::new();
        for (level, mut graph) in self.graphs() {
            let label = [&[name.to_owned()], &level[..]].concat().join("::");
            for (folder, place) in graph.remove("super").unwrap_or_default() {
                let Some(back) = graph.get(&folder).and_then(|arrows| arrows.get("super")) else { continue };
                if self.is_folder(&[&level[..], std::slice::from_ref(&folder)].concat()) {
                    let one = |from: &str, to: &str, place: &String| {
                        (from.to_owned(), [(to.to_owned(), place.clone())].into())
                    };
                    let pair = [one("super", &folder, &place), one(&folder, "super", back)].into();
                    found.insert((label.clone(), ["super".to_owned(), folder].into()), pair);
                }
            }
            graph.values_mut().for_each(|arrows| drop(arrows.remove("super")));
            for node in graph.keys() {
                let both = |other: &&String| path(&graph, node, other).is_some() && path(&graph, other, node).is_some();
                let component: BTreeSet<String> = graph.keys().filter(both).cloned().collect();
                if !component.is_empty() {
                    found.insert((label.clone(), component), graph.clone());
                }
            }
        }
        found
    }
}

/// A module, and the modules within it that form a strongly connected component.
type Cycle = (String, BTreeSet<String>);

/// Returns the modules on a shortest way of at least one arrow, without the first.
fn path(graph: &Graph, from: &str, to: &str) -> Option<Vec<String>> {
    let mut queue = VecDeque::from([vec![from.to_owned()]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = queue.pop_front() {
        for next in graph.get(&way[way.len() - 1]).into_iter().flat_map(BTreeMap::keys) {
            if seen.insert(next.clone()) {
                let way = [&way[..], std::slice::from_ref(next)].concat();
                if next == to {
                    return Some(way[1..].to_vec());
                }
                queue.push_back(way);
            }
        }
    }
    None
}

/// Describes the shortest cycle of a component that is in no recorded one, with the lines that make it.
fn describe((label, component): &Cycle, graph: &Graph, recorded: &BTreeSet<Cycle>) -> String {
    let mut ways = Vec::new();
    for from in component {
        for to in graph[from].keys().filter(|to| component.contains(*to)) {
            let way = [vec![from.clone(), to.clone()], path(graph, to, from).expect("a cycle")].concat();
            let is_old = is_within(&(label.clone(), way.iter().cloned().collect()), recorded);
            ways.push((is_old, way.len(), way));
        }
    }
    let (.., way) = ways.into_iter().min().expect("a component has arrows");
    let lines = way.windows(2).map(|pair| format!("  {}: {} names {}\n", graph[&pair[0]][&pair[1]], pair[0], pair[1]));
    format!("{}\n{}", text(&(label.clone(), component.clone())), lines.collect::<String>())
}

fn is_within((label, modules): &Cycle, recorded: &BTreeSet<Cycle>) -> bool {
    recorded.iter().any(|(other, larger)| other == label && modules.is_subset(larger))
}

fn text((label, modules): &Cycle) -> String {
    format!("{label}: {}", modules.iter().cloned().collect::<Vec<_>>().join(" "))
}

fn parse(line: &str) -> Cycle {
    let (label, modules) = line.split_once(": ").expect("module: modules");
    (label.to_owned(), modules.split(' ').map(str::to_owned).collect())
}

/// Reads the modules of the folder `path` into the tree.
fn read(tree: &mut Tree, root: &Path, folder: &Path, path: &[String]) {
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        let name = entry.file_stem().expect("a name").to_string_lossy().into_owned();
        let child = [path, std::slice::from_ref(&name)].concat();
        let is_program = path.is_empty() && (name == "bin" || name == "main" && folder.join("lib.rs").exists());
        if is_program {
            // A program beside a library names nothing but the library.
        } else if entry.is_dir() {
            read(tree, root, &entry, &child);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            let is_own = name == "mod" || path.is_empty() && (name == "lib" || name == "main");
            let text = std::fs::read_to_string(&entry).expect("a source file");
            let file = entry.strip_prefix(root).expect("below the root").display().to_string();
            tree.add(if is_own { path } else { &child }, &file, &text);
        }
    }
}

#[test]
fn modules_of_a_crate_form_no_cycle_but_the_recorded_ones() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two below the root");
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/folder_arrows.txt");
    let mut found = BTreeMap::new();
    for folder in std::fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path()) {
        let mut tree = Tree::default();
        read(&mut tree, root, &folder.join("src"), &[]);
        found.append(&mut tree.cycles(&folder.file_name().unwrap().to_string_lossy()));
    }
    let recorded = std::fs::read_to_string(&list);
    let is_first = recorded.is_err();
    let recorded = recorded.unwrap_or_default();
    let recorded: BTreeSet<Cycle> = recorded.lines().filter(|line| !line.starts_with('#')).map(parse).collect();
    let (old, new): (Vec<_>, Vec<_>) = found.iter().partition(|(cycle, _)| is_within(cycle, &recorded));
    if std::env::var_os("BRAID_WRITE_ARROWS").is_some() {
        let lines = old.iter().chain(new.iter().filter(|_| is_first)).map(|(cycle, _)| text(cycle));
        let lines: BTreeSet<String> = lines.collect();
        let head = "# a module, and the modules within it that form a cycle: see folder_arrows.rs\n".to_owned();
        std::fs::write(list, lines.iter().fold(head, |all, line| all + line + "\n")).unwrap();
        return;
    }
    let new: Vec<String> = new.iter().map(|(cycle, graph)| describe(cycle, graph, &recorded)).collect();
    assert!(new.is_empty(), "cycles between modules: move an item to the lower module\n{}", new.join("\n"));
    let gone: Vec<String> = recorded.iter().filter(|cycle| !found.contains_key(*cycle)).map(text).collect();
    assert!(
        gone.is_empty(),
        "cycles that have shrunk or gone: BRAID_WRITE_ARROWS=1 cargo test -p braid --test folder_arrows\n{}",
        gone.join("\n")
    );
}

/// Returns the cycles between modules with these texts, as the list has them.
fn cycles(modules: &[(&str, &str)]) -> Vec<String> {
    let mut tree = Tree::default();
    for (path, text) in modules {
        let path: Vec<String> = path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
        tree.add(&path, &path.join("/"), text);
    }
    tree.cycles("x").keys().map(text).collect()
}

#[test]
fn cycles_are_found_through_imports_exports_globs_and_paths() {
    let b = ("b", "fn g() { super::a::f(); }");
    for a in [
        "use crate::b::{self, X as Y};",
        "fn f() { let x: crate::b::X = 1; }",
        "fn f() { use super::{c::{d, e}, b::g}; }",
        "use super::*; fn f() { b::g() }",
        "mod inner { use super::super::b; }",
        "use crate::g;",
    ] {
        let root = "mod a; mod b; pub use b::g;";
        assert_eq!(cycles(&[("", root), ("a", &format!("pub fn h() {{}} {a}")), b]), ["x: a b"], "{a}");
    }
    for a in [
        "// crate::b::X\n/* super::b */ const A: &str = \"super::b::X\"; const B: &str = r#\"\" super::b::X\"#;",
        "#[cfg(test)] mod tests { use super::super::b; } #[cfg(test)]\n#[allow(x)] use super::b::{g};",
        "pub(in crate::b) fn f() -> char { b'\"'; '\\'' }",
        "use other::b::g; fn f() { x.b::<u8>(); std::b::g(); }",
        "use super::Vec; mod b {} fn f() { b::g(); self::b::g() }",
    ] {
        assert_eq!(cycles(&[("", "use std::vec::Vec;"), ("a", a), b]), [""; 0], "{a}");
    }
    let two =
        [("a", "use super::b::X;"), ("b", "use super::c::X;"), ("c", "use super::{a, b}; use super::d;"), ("d", "")];
    assert_eq!(cycles(&[&[("", "")], &two[..]].concat()), ["x: a b c"]);
}

#[test]
fn an_arrow_upwards_from_a_folder_counts_if_its_parent_names_the_folder() {
    let below = [("a", "use super::X;"), ("a::b", "use crate::Y;"), ("c", "use super::X;")];
    let with = |root: &'static str| cycles(&[&[("", root)], &below[..]].concat());
    assert_eq!(with("pub use a::Z; struct X; struct Y; mod c; use c::f;"), [""; 0]);
    assert_eq!(with("pub use a::Z; struct X; struct Y; fn f(z: Z) {}"), ["x: a super"]);
    assert_eq!(with("use a::b::Z; struct X; struct Y;"), ["x: a super"]);
}

#[test]
fn a_message_names_the_lines_of_a_cycle_that_is_not_recorded() {
    let mut tree = Tree::default();
    for (name, text) in [("a", "\nuse super::b;"), ("b", "use super::{a,\n c};"), ("c", "use super::b;")] {
        tree.add(&[name.to_owned()], &format!("{name}.rs"), text);
    }
    tree.add(&[], "lib.rs", "");
    let found = tree.cycles("x");
    let (cycle, graph) = found.first_key_value().unwrap();
    let recorded = BTreeSet::from([parse("x: a b")]);
    assert!(!is_within(cycle, &recorded) && is_within(&parse("x: b"), &recorded));
    assert_eq!(describe(cycle, graph, &recorded), "x: a b c\n  b.rs:2: b names c\n  c.rs:1: c names b\n");
}
