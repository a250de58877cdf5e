//! Checks that no thread locks the tables of the control plane twice, and that no lock of them is held across an await.
//!
//! The lock lets no reader pass a waiting writer. So a thread that reads the tables and locks them once more would
//! deadlock with a writer that comes in between, and block all other threads; but only then. No test would find it. This
//! is where the rule stands: it is checked in the source, so that it cannot be broken in code that no test runs.
//!
//! What it does: it reads the source of `braid-inventory`, which has the lock, and of all crates that use it, and finds
//!
//! 1. **the functions that may lock**: those that call `read` or `write` on an `RwLock` of the tables, and those that call
//!    one of them. A method is found by the type of its receiver; if the type is not known, all methods with its name and
//!    number of arguments count. What is given to a function that spawns does not count: it runs elsewhere.
//! 2. **where a lock is held**: a variable holds it until it is dropped, handed over, or its block ends; a temporary until
//!    its statement ends, with the rules of edition 2024: the head of `match` and `for` holds it for the whole statement,
//!    that of `if let` until the `else`, the condition of `if` and `while` only while it is evaluated.
//! 3. **what happens there**: a lock, a call of a function that may lock, an await. Each is reported.
//!
//! What it does not see: a call through a pointer or a stored closure, or from another crate that calls
//! back; a `drop` that locks, unless it is written out, or the value is bound to a variable under the lock; what a macro of
//! the daemon's own expands to. [`Tables`](TABLES) is a name: with another one for the type, the constant is to follow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

#[path = "lock_nesting/body.rs"]
mod body;
#[path = "lock_nesting/examples.rs"]
mod examples;
#[path = "lock_nesting/index.rs"]
mod index;
#[path = "lock_nesting/shapes.rs"]
mod shapes;
#[path = "lock_nesting/types.rs"]
mod types;

use body::{Action, Event, Walk};
use index::{Index, Source};

/// The type that is behind the lock.
const TABLES: &str = "Tables";

/// Reports that are false, as the function that is reported, the function that it calls, and why.
const ALLOWED: [(&str, &str, &str); 0] = [];

/// What is wrong at one place.
struct Report {
    function: String,
    calls: String,
    text: String,
}

/// Returns for each function that may lock the next step to a lock: the line, and the function that is called, if any.
fn steps(index: &Index, events: &[Vec<Event>]) -> BTreeMap<usize, (usize, Option<usize>)> {
    let mut callers: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    let (mut steps, mut queue) = (BTreeMap::new(), VecDeque::new());
    for (id, events) in events.iter().enumerate().take(index.functions.len()) {
        for event in events.iter().filter(|event| !event.is_detached) {
            match &event.action {
                Action::Lock => {
                    if steps.insert(id, (event.line, None)).is_none() {
                        queue.push_back(id);
                    }
                }
                Action::Call(called) => {
                    called.iter().for_each(|called| callers.entry(*called).or_default().push((id, event.line)));
                }
                Action::Await => {}
            }
        }
    }
    while let Some(called) = queue.pop_front() {
        for (caller, line) in callers.get(&called).into_iter().flatten() {
            if !steps.contains_key(caller) {
                steps.insert(*caller, (*line, Some(called)));
                queue.push_back(*caller);
            }
        }
    }
    steps
}

/// Returns the calls from a function to a lock.
fn chain(index: &Index, steps: &BTreeMap<usize, (usize, Option<usize>)>, from: usize) -> String {
    let (mut text, mut at) = (String::new(), Some(from));
    while let Some(id) = at {
        let function = &index.functions[id];
        let (line, next) = steps[&id];
        text += &format!("\n    {} at {}:{line} ", function.name, index.sources[function.file].path);
        text += if next.is_some() { "calls" } else { "locks the tables" };
        at = next;
    }
    text
}

/// Returns what is wrong in the sources.
fn reports(sources: &[Source]) -> (Vec<Report>, usize) {
    let index = Index::new(sources);
    let events: Vec<Vec<Event>> = index.functions.iter().map(|function| Walk::events(&index, function)).collect();
    let steps = steps(&index, &events);
    let mut reports = Vec::new();
    let mut seen = BTreeSet::new();
    for (function, events) in index.functions.iter().zip(&events) {
        for event in events {
            let Some((held_line, held)) = event.held.last() else { continue };
            let is_async = |id: &usize| index.functions[*id].signature.asyncness.is_some();
            let (calls, what, remedy) = match &event.action {
                Action::Lock => (
                    "lock".to_owned(),
                    "locks the tables again".to_owned(),
                    "use the lock that is held, or end it before: a block of its own, or `drop`",
                ),
                Action::Await => (
                    "await".to_owned(),
                    "awaits".to_owned(),
                    "take what is needed out of the tables, and end the lock before the await",
                ),
                // A call of an async function runs nothing before it is awaited, and that is reported by itself.
                Action::Call(called) => match called.iter().find(|id| steps.contains_key(id) && !is_async(id)) {
                    None => continue,
                    Some(called) => (
                        index.functions[*called].name.clone(),
                        format!(
                            "calls {}, which locks the tables:{}",
                            index.functions[*called].name,
                            chain(&index, &steps, *called)
                        ),
                        "give the function the tables (`&Tables`) instead, or end the lock before the call",
                    ),
                },
            };
            let path = &index.sources[function.file].path;
            let held = if held.is_empty() { "a temporary".to_owned() } else { format!("`{held}`") };
            let text = format!(
                "{path}:{}: {} holds the tables since line {held_line} ({held}) and {what}\n    {remedy}",
                event.line, function.name
            );
            if seen.insert(text.clone()) {
                reports.push(Report { function: function.name.clone(), calls, text });
            }
        }
    }
    (reports, steps.len())
}

/// Reads the source files below a folder.
fn read(root: &Path, folder: &Path, sources: &mut Vec<Source>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.map(|entry| entry.expect("an entry").path()) {
        let name = entry.file_stem().expect("a name").to_string_lossy().into_owned();
        if entry.is_dir() {
            read(root, &entry, sources);
        } else if entry.extension().is_some_and(|extension| extension == "rs") && !name.ends_with("tests") {
            let path = entry.strip_prefix(root).expect("below the root").display().to_string();
            let text = std::fs::read_to_string(&entry).expect("a source file");
            let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
            sources.push(Source { path, syntax });
        }
    }
}

#[test]
fn no_thread_locks_the_tables_twice_or_awaits_under_their_lock() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two below the root");
    let mut sources = Vec::new();
    let crates = std::fs::read_dir(root.join("crates")).expect("a folder").map(|entry| entry.expect("an entry").path());
    let with_lock = crates.filter(|folder| {
        std::fs::read_to_string(folder.join("Cargo.toml")).is_ok_and(|manifest| manifest.contains("braid-inventory"))
    });
    let with_lock: Vec<_> = with_lock.collect();
    assert!(with_lock.len() >= 7, "only {with_lock:?} use the lock");
    with_lock.iter().for_each(|folder| read(root, &folder.join("src"), &mut sources));
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    let (reports, locking) = reports(&sources);
    assert!(locking > 100, "only {locking} functions lock {TABLES}: has the type another name now, or the folder?");
    let is_allowed = |report: &&Report| {
        ALLOWED.iter().any(|(function, calls, _)| report.function == *function && report.calls == *calls)
    };
    let (allowed, wrong): (Vec<&Report>, Vec<&Report>) = reports.iter().partition(is_allowed);
    let texts: Vec<&str> = wrong.iter().map(|report| report.text.as_str()).collect();
    assert!(wrong.is_empty(), "{} places would deadlock with a writer:\n{}", wrong.len(), texts.join("\n"));
    for (function, calls, _) in ALLOWED {
        let is_used = allowed.iter().any(|report| report.function == function && report.calls == calls);
        assert!(is_used, "{function} does not call {calls} under the lock any more: remove it from the list");
    }
}
