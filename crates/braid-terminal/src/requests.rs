//! Descriptions of API requests, in the words of the command line.

use percent_encoding::percent_decode_str;
use serde_json::Value;

/// The collections of the API, with the noun of one of their objects.
const NOUNS: [(&str, &str); 10] = [
    ("arrays", "array"),
    ("pools", "pool"),
    ("volumes", "volume"),
    ("snapshots", "snapshot"),
    ("exports", "export"),
    ("nodes", "node"),
    ("replicas", "replica"),
    ("replicated", "volume"),
    ("jobs", "job"),
    ("disks", "disk"),
];

/// What a request at the path of an object does, by the last part of the path. The name of the object follows.
const ACTIONS: [(&str, &str); 24] = [
    ("add", "adding a disk to"),
    ("attach", "attaching"),
    ("check", "checking"),
    ("clone", "cloning"),
    ("compact", "compacting"),
    ("detach", "detaching"),
    ("disks", "adding a disk to"),
    ("fail", "failing a member of"),
    ("flatten", "flattening"),
    ("grow", "growing"),
    ("journal", "moving the journal of"),
    ("limits", "limiting"),
    ("members", "adding members to"),
    ("move", "moving"),
    ("policy", "changing the snapshot policy of"),
    ("rebuild", "rebuilding a replica of"),
    ("remove", "removing a member of"),
    ("rename", "renaming"),
    ("renew", "renewing the certificate of"),
    ("replace", "replacing a member of"),
    ("resize", "resizing"),
    ("rollback", "rolling back"),
    ("start", "starting"),
    ("stop", "stopping"),
];

/// Requests at paths without an object.
const WHOLE: [(&str, &str); 10] = [
    ("activity", "reading its activity"),
    ("assemble", "assembling arrays"),
    ("cluster/init", "creating the cluster"),
    ("cluster/invite", "inviting a node"),
    ("cluster/join", "joining the cluster"),
    ("cluster/volumes", "listing the volumes of the cluster"),
    ("events", "reading its events"),
    ("import-md", "examining arrays of Linux md"),
    ("status", "reading its status"),
    ("upgrade", "upgrading it"),
];

/// Returns what the daemon does on a request.
pub(crate) fn describe(method: &str, path: &str, body: &[u8]) -> String {
    let path = path.split('?').next().unwrap_or_default();
    let path = path.strip_prefix("/v1/").unwrap_or(path);
    if let Some((_, what)) = WHOLE.iter().find(|(whole, _)| *whole == path) {
        return (*what).to_owned();
    }
    let parts: Vec<String> = path.split('/').map(unescaped).collect();
    let found = NOUNS.iter().find(|(collection, _)| *collection == parts[0]);
    let Some((collection, noun)) = found else { return format!("{method} {path}") };
    let last = parts[parts.len() - 1].as_str();
    let action = ACTIONS.iter().find(|(part, _)| *part == last && parts.len() > 2).map(|(_, action)| *action);
    match (method, parts.get(1)) {
        ("GET", None) => format!("listing {collection}"),
        ("GET", Some(name)) => format!("reading {noun} {name}"),
        (_, None) => format!("creating {noun}{}", name_in(body)),
        ("POST", Some(name)) if last == "voters" => format!("adding a replica to {noun} {name}"),
        ("DELETE", Some(name)) if parts.len() > 2 => format!("removing a replica of {noun} {name}"),
        ("DELETE", Some(name)) => match *collection {
            "jobs" => format!("cancelling {noun} {name}"),
            "exports" | "nodes" => format!("removing {noun} {name}"),
            _ => format!("deleting {noun} {name}"),
        },
        (_, Some(name)) => format!("{} {noun} {name}", action.unwrap_or("changing")),
    }
}

/// Returns the name of the object that a request creates, after a space; empty if the body has none.
fn name_in(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let names = ["name", "snapshots", "array"].into_iter().find_map(|field| match &body[field] {
        Value::String(name) => Some(name.clone()),
        Value::Array(names) => Some(names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")),
        _ => None,
    });
    names.map(|names| format!(" {names}")).unwrap_or_default()
}

/// Returns a part of a path without percent escapes. Invalid escapes stay as they are.
fn unescaped(part: &str) -> String {
    percent_decode_str(part).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_described_in_the_words_of_the_command_line() {
        let check = |method: &str, path: &str, body: &str, expected: &str| {
            assert_eq!(describe(method, path, body.as_bytes()), expected, "{method} {path}");
        };
        check("POST", "/v1/pools", r#"{"name": "tank"}"#, "creating pool tank");
        check("POST", "/v1/arrays", "{}", "creating array");
        check("POST", "/v1/exports", r#"{"array": "tank/db", "name": null}"#, "creating export tank/db");
        check("POST", "/v1/snapshots", r#"{"snapshots": ["t/a@x", "t/b@x"]}"#, "creating snapshot t/a@x, t/b@x");
        check("POST", "/v1/arrays/data/grow", "{}", "growing array data");
        check("POST", "/v1/volumes/tank%2Fdb/rollback", "{}", "rolling back volume tank/db");
        check("POST", "/v1/pools/tank/check", "", "checking pool tank");
        check("POST", "/v1/replicated/db/voters", "{}", "adding a replica to volume db");
        check("DELETE", "/v1/replicated/db/voters/2?force=true", "", "removing a replica of volume db");
        check("DELETE", "/v1/pools/tank?force=false", "", "deleting pool tank");
        check("DELETE", "/v1/jobs/data:3", "", "cancelling job data:3");
        check("PATCH", "/v1/exports/fast", "{}", "changing export fast");
        check("GET", "/v1/pools", "", "listing pools");
        check("GET", "/v1/arrays/data", "", "reading array data");
        check("POST", "/v1/assemble", "{}", "assembling arrays");
        check("GET", "/v1/events?follow=true&after=3", "", "reading its events");
        check("GET", "/v1/something/else", "", "GET something/else");
    }

    #[test]
    fn invalid_escapes_are_left() {
        for (escaped, expected) in [
            ("", ""),
            ("%", "%"),
            ("a%", "a%"),
            ("a%2", "a%2"),
            ("%zz%40", "%zz@"),
            ("%%40", "%@"),
            ("%+f", "%+f"),
            ("%2ü", "%2ü"),
            ("ü%C3%BC", "üü"),
            ("%2f%2F", "//"),
            ("a%ffb%C3", "a\u{fffd}b\u{fffd}"),
        ] {
            assert_eq!(unescaped(escaped), expected, "{escaped}");
        }
    }
}
