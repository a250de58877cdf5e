//! The expected text of what the JSON reports: replicated volumes, their replicas and snapshots, and nodes.

use serde_json::Value;

use crate::every_state::{Outcome, flat, without_numbers};

/// The size of the volumes in these tests, as text.
pub const SIZE: &str = "64.00 MiB";
const SIZE_IN_FULL: &str = "64.00 MiB (67,108,864 bytes)";

/// A refused command: the exit status, what the message names, and the command line.
pub type Refusal = (i32, &'static str, &'static str);

/// Checks that an error has this exit status, names this object, and has a remedy.
#[track_caller]
pub fn is_refused(outcome: &Outcome, status: i32, object: &str) {
    let Outcome { context, document, .. } = outcome;
    let error = outcome.error().unwrap_or_else(|| panic!("{context} is not refused: {document}"));
    assert_eq!(outcome.status, status, "{context}: {error}");
    assert!(text(error, "message").contains(object), "{context}: {object:?} is not named: {error}");
    assert!(!text(error, "remedy").is_empty(), "{context}: no remedy: {error}");
}

/// Checks that an error about a replicated volume does not call it an array, and gives no advice for arrays.
#[track_caller]
pub fn is_about_a_volume(outcome: &Outcome) {
    let error = outcome.document.to_string();
    for words in ["braid array", "array db", "DISK", "attach NAME", "is no name of"] {
        assert!(!error.contains(words), "{}: {words:?} is said: {error}", outcome.context);
    }
}

#[track_caller]
pub fn text<'a>(of: &'a Value, key: &str) -> &'a str {
    of[key].as_str().unwrap_or_else(|| panic!("{key} is no text: {of}"))
}

#[track_caller]
pub fn items<'a>(of: &'a Value, key: &str) -> &'a [Value] {
    of[key].as_array().unwrap_or_else(|| panic!("{key} is no list: {of}"))
}

/// Returns the state of each voter.
pub fn states(volume: &Value) -> Vec<&str> {
    items(volume, "voters").iter().map(|voter| text(voter, "state")).collect()
}

/// Returns the text form of a word of the JSON.
fn state_text(state: &str) -> String {
    state.replace('_', " ")
}

fn location(voter: &Value) -> String {
    match voter["pool"].as_str() {
        Some(pool) => format!("{}/{pool}", text(voter, "node")),
        None => text(voter, "node").to_owned(),
    }
}

/// Returns the lines of a text, without their columns.
pub fn lines(text: &str) -> Vec<String> {
    text.lines().map(flat).filter(|line| !line.is_empty()).collect()
}

/// Checks that a text has exactly these lines. A wanted line that ends with `…` is a prefix.
#[track_caller]
pub fn has_lines(context: &str, text: &str, wanted: &[String]) {
    let fits = |line: &str, wanted: &str| match wanted.strip_suffix('…') {
        Some(begin) => line.starts_with(begin),
        // Progress changes between two commands.
        None if wanted.contains('%') => without_numbers(line) == without_numbers(wanted),
        None => line == flat(wanted),
    };
    let found = lines(text);
    let all = found.len() == wanted.len() && found.iter().zip(wanted).all(|(line, wanted)| fits(line, wanted));
    assert!(all, "{context}: {found:#?} are not the lines {wanted:#?}");
}

/// Returns the lines of `braid volume show` for a replicated volume.
pub fn lines_of_volume(volume: &Value) -> Vec<String> {
    let mut lines = vec![
        format!("volume {}", text(volume, "name")),
        format!("uuid {}", text(volume, "uuid")),
        format!("size {SIZE_IN_FULL}"),
    ];
    lines.extend(volume["block_bytes"].as_u64().map(|bytes| format!("blocks of {bytes} bytes")));
    lines.push(format!("level {}", text(volume, "level")));
    lines.push(format!("state {}", text(volume, "state")));
    for voter in items(volume, "voters") {
        let why = voter["reason"].as_str().map(|why| format!("; {why}")).unwrap_or_default();
        lines.push(match voter["pool"].is_null() {
            true => format!("witness {}{why}", location(voter)),
            false => format!("replica {} {}{why}", location(voter), state_text(text(voter, "state"))),
        });
    }
    let exports: Vec<&str> = items(volume, "exports").iter().filter_map(Value::as_str).collect();
    lines.push(format!("exports {}", if exports.is_empty() { "none".to_owned() } else { exports.join(", ") }));
    lines.extend(volume["snapshots"].as_u64().map(|count| format!("snapshots {count}")));
    let attention = items(volume, "attention").iter().filter_map(Value::as_str);
    lines.extend(attention.map(|sentence| format!("attention {sentence}")));
    lines
}

/// Checks that a table names each voter, and has as many words for each state as voters in that state, wherever its
/// cells are wrapped.
#[track_caller]
pub fn has_words_of_voters(context: &str, shown: &str, volume: &Value) {
    let words: Vec<&str> = shown.split_whitespace().map(|word| word.trim_matches(['(', ')', ','])).collect();
    for voter in items(volume, "voters") {
        assert!(words.contains(&location(voter).as_str()), "{context}: {voter} is missing in the text: {shown}");
    }
    for state in ["in_sync", "rebuilding", "failed", "unknown"] {
        let last = state.trim_start_matches("in_");
        let count = words.iter().filter(|word| **word == last).count();
        let are_so = states(volume).into_iter().filter(|of| *of == state).count();
        assert_eq!(count, are_so, "{context}: voters that are {state}: {shown}");
    }
}

/// Returns what `braid volume list --all` says about a volume and about nodes that do not answer, one string each.
pub fn words_of_cluster(list: &Value, volume: &Value) -> Vec<String> {
    let name = text(volume, "name");
    let server = volume["served_by"].as_str().map_or_else(|| format!("({})", text(volume, "service")), str::to_owned);
    let voters = items(volume, "voters");
    let mut words = vec![format!("{name} {SIZE} {server} {}", location(&voters[0]))];
    for voter in voters {
        let why = voter["reason"].as_str().filter(|_| voter["state"] == "in_sync");
        let why = why.map(|why| format!("; {why}")).unwrap_or_default();
        words.push(format!("{} ({}{why})", location(voter), state_text(text(voter, "state"))));
    }
    let service = if volume["service"] == "unserved" { "no node serves it: " } else { "" };
    words.extend(volume["reason"].as_str().map(|why| format!("volume {name}: {service}{why}")));
    words.extend(volume["remedy"].as_str().map(str::to_owned));
    words.extend(items(volume, "commands").iter().filter_map(Value::as_str).map(str::to_owned));
    let incomplete = items(list, "incomplete").iter().filter_map(Value::as_str);
    words.extend(incomplete.map(|why| format!("this list may be incomplete: {why}")));
    words.iter().map(|words| flat(words)).collect()
}

/// Returns the lines of `braid replica show`.
pub fn lines_of_replica(replica: &Value) -> Vec<String> {
    let register = &replica["register"];
    let vote = &register["vote"];
    let bits = vote["in_sync"].as_u64().expect("bits");
    let in_sync: Vec<String> =
        (0..16u64).filter(|voter| bits >> voter & 1 == 1).map(|voter| voter.to_string()).collect();
    let let_go = if register["released"] == true { ", which has released it" } else { "" };
    let believed = register["boot"].as_str().map_or_else(|| "no boot".to_owned(), |boot| format!("boot {boot}"));
    vec![
        format!("replica {}", text(replica, "name")),
        format!("of volume {}", text(replica, "volume")),
        format!("voter {} of {}", replica["voter"], replica["voters"]),
        format!("state {}", text(replica, "state")),
        format!("data {}", text(replica, "data")),
        format!("size {SIZE_IN_FULL}"),
        "around it …".to_owned(),
        format!("connections {}", replica["connections"]),
        format!("boot {}", text(replica, "boot")),
        format!("epoch {} of controller {}{let_go}", register["epoch"], text(register, "controller")),
        format!(
            "in sync {} (vote {} of epoch {}, lineage {})",
            in_sync.join(", "),
            vote["sequence"],
            vote["epoch"],
            vote["lineage"]
        ),
        format!("trusted in {believed}"),
    ]
}

/// Returns the lines of `braid snapshot show` for a snapshot of a replicated volume.
pub fn lines_of_snapshot(snapshot: &Value) -> Vec<String> {
    let mut lines = vec![
        format!("snapshot {}", text(snapshot, "name")),
        format!("uuid {}", text(snapshot, "uuid")),
        format!("volume {}", text(snapshot, "volume")),
        format!("size {SIZE_IN_FULL}"),
        format!("blocks of {} bytes", snapshot["block_bytes"]),
        "allocated …".to_owned(),
        "taken …".to_owned(),
        format!("consistency {}: …", text(snapshot, "consistency")),
    ];
    for replica in items(snapshot, "replicas") {
        let has = if replica["has_snapshot"] == true { "has it" } else { "does not have it, or is not in sync" };
        lines.push(format!("replica {} {has}", location(replica)));
    }
    lines.push("exports none".to_owned());
    lines
}

/// Returns the lines of `braid node show`.
pub fn lines_of_node(node: &Value) -> Vec<String> {
    let own = if node["local"] == true { " (this one)" } else { "" };
    let over = if node["tls_data"] == true { "over TLS" } else { "without TLS" };
    let state = text(node, "state");
    let since = if state == "unreachable" { " since …" } else { "" };
    let mut lines = vec![
        format!("node {}{own}", text(node, "name")),
        format!("uuid {}", text(node, "uuid")),
        format!("address {}", text(node, "api")),
        format!("data {}, {over}", text(node, "data")),
        format!("state {state}{since}"),
    ];
    lines.extend(node["reason"].as_str().map(|reason| format!("reason {reason}")));
    lines.push("certificate ends …".to_owned());
    lines.push(format!("key {} (SHA-256)", text(node, "key_sha256")));
    lines
}

/// Returns how many failures a mirror of three tolerates now, as text.
pub fn failures(now: u64) -> &'static str {
    match now {
        0 => "no failure of a member now; failures of any 2 members once all are in sync",
        1 => "the failure of any 1 member now; failures of any 2 members once all are in sync",
        _ => "failures of any 2 members",
    }
}
