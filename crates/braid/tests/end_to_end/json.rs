//! The JSON output of commands, checked against the schemas that `braid schema` prints.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::contract::tool;
use crate::nbd::Client;
use crate::support::*;

/// Validates each `N.document` against `N.schema`. A field that a schema does not name is an error, except in
/// definitions that are parts of others.
const CHECK: &str = r##"
import json, pathlib, sys
from jsonschema import Draft202012Validator as Validator

def parts(node, found):
    if isinstance(node, dict):
        for part in node.get("allOf", []):
            for option in [part, *part.get("oneOf", []), *part.get("anyOf", [])]:
                if "$ref" in option: found.add(option["$ref"].rsplit("/", 1)[1])
        for value in node.values(): parts(value, found)
    elif isinstance(node, list):
        for value in node: parts(value, found)
    return found

failed = 0
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.schema")):
    schema = json.loads(path.read_text())
    Validator.check_schema(schema)
    shared = parts(schema, set())
    for name, definition in schema["$defs"].items():
        if "properties" in definition and name not in shared:
            definition["additionalProperties"] = False
    document = json.loads(path.with_suffix(".document").read_text())
    for error in Validator(schema).iter_errors(document):
        failed += 1
        print(path.with_suffix(".command").read_text(), error.json_path, error.message[:500])
sys.exit(1 if failed else 0)
"##;

#[test]
fn every_command_prints_json_that_matches_its_schema() {
    need_root();
    let mut daemon = Daemon::start();
    let folder = daemon.folder.join("pairs");
    fs::create_dir(&folder).expect("a folder can be made");
    let mut count = 0;
    let mut keep = |daemon: &Daemon, schema: &str, command: &str, document: &str| {
        count += 1;
        let schema: Vec<&str> = std::iter::once("schema").chain(schema.split(' ')).collect();
        fs::write(format!("{folder}/{count}.schema"), daemon.braid(&schema)).expect("a file can be written");
        fs::write(format!("{folder}/{count}.document"), document).expect("a file can be written");
        fs::write(format!("{folder}/{count}.command"), command).expect("a file can be written");
    };
    let (one, two) = (daemon.folder.sparse("one", 32 * MIB), daemon.folder.sparse("two", 16 * MIB));
    let three = daemon.folder.sparse("three", 16 * MIB);
    let four = daemon.folder.sparse("four", 32 * MIB);
    let md = crate::imported::unpack(&daemon.folder, "raid10_n2_3", 2);
    let slow = format!("throttled({two},bw=1M)");
    let nbd = format!("unix:{}", daemon.nbd_socket("data"));
    let mounted = daemon.folder.join("mounted");
    fs::create_dir(&mounted).expect("a folder can be made");
    // The command that the schema describes, and its command line.
    let steps: &[(&str, &[&str])] = &[
        ("plan", &["plan", "50G", "100G"]),
        ("plan", &["plan", "50G", "100G", "100G"]),
        ("plan --map", &["plan", "--map", "--level", "raid10", "50G", "100G", "100G"]),
        ("serve --upgrade", &["serve", "--upgrade"]),
        ("status", &["status"]),
        ("status --check", &["status", "--check"]),
        ("status --limits", &["status", "--limits"]),
        ("doctor", &["doctor"]),
        ("explain", &["explain"]),
        ("array create", &["array", "create", "data", "--level", "raid0", &one, &two]),
        ("array list", &["array", "list"]),
        ("array show", &["array", "show", "data"]),
        ("array rename", &["array", "rename", "data", "renamed"]),
        ("export add", &["export", "add", "renamed", "--nbd", &nbd, "--name", "data"]),
        ("export list", &["export", "list"]),
        ("export set", &["export", "set", "data", "--max-connections", "8"]),
        ("export show", &["export", "show", "data"]),
        ("export rename", &["export", "rename", "data", "other"]),
        ("status", &["status"]),
        ("top", &["top", "--interval", "100ms"]),
        ("export remove", &["export", "remove", "other"]),
        ("export repair", &["export", "repair", "--dry-run"]),
        ("disk list", &["disk", "list"]),
        ("array stop", &["array", "stop", "renamed"]),
        ("disk examine", &["disk", "examine", &one]),
        ("array list", &["array", "list"]),
        ("array assemble", &["array", "assemble", "renamed"]),
        ("array grow", &["array", "grow", "renamed", &three]),
        ("node init", &["node", "init", "one", "--listen", "127.0.0.1:0"]),
        ("node invite", &["node", "invite"]),
        ("node list", &["node", "list"]),
        ("node show", &["node", "show", "one"]),
        ("node renew", &["node", "renew"]),
        ("status", &["status"]),
        ("node remove", &["node", "remove", "one", "--yes"]),
        ("node list", &["node", "list"]),
        ("array delete", &["array", "delete", "renamed", "--yes"]),
        ("array import-md", &["array", "import-md", "--name", "old", &md[0], &md[1]]),
        ("array show", &["array", "show", "old"]),
        ("array delete", &["array", "delete", "old"]),
        ("array create", &["array", "create", "safe", "--level", "raid1", "--spare", &three, &one, &two]),
        ("array show", &["array", "show", "safe"]),
        ("array spare", &["array", "spare", "safe", &three, "--remove"]),
        ("array check", &["array", "check", "safe", "--wait"]),
        ("array repair", &["array", "repair", "safe", "--wait"]),
        ("job watch", &["job", "watch", "safe:2"]),
        ("array fail", &["array", "fail", "safe", "1"]),
        ("array remove", &["array", "remove", "safe", "1"]),
        ("array add", &["array", "add", "safe", &slow, "--force"]),
        ("job list", &["job", "list"]),
        ("job pause", &["job", "pause", "safe:3"]),
        ("array show", &["array", "show", "safe"]),
        ("job limit", &["job", "limit", "safe:3", "1M"]),
        ("job resume", &["job", "resume", "safe:3"]),
        ("job cancel", &["job", "cancel", "safe:3"]),
        ("array replace", &["array", "replace", "safe", "0", &four, "--no-wait"]),
        ("array show", &["array", "show", "safe"]),
        ("array delete", &["array", "delete", "safe", "--yes", "--force"]),
        (
            "array create",
            &["array", "create", "logged", "--level", "raid5", "--journal", &three, &one, &two, "--force"],
        ),
        ("array show", &["array", "show", "logged"]),
        ("array journal", &["array", "journal", "logged", "--members"]),
        ("array delete", &["array", "delete", "logged", "--yes"]),
        ("array create", &["array", "create", "ground", "--level", "raid1", &one, &two, "--force"]),
        ("pool create", &["pool", "create", "tank", "ground", &three, "--force"]),
        ("disk list", &["disk", "list"]),
        ("pool list", &["pool", "list"]),
        ("volume create", &["volume", "create", "tank/fs", "64M"]),
        ("mount", &["mount", "tank/fs", &mounted, "--mkfs"]),
        ("umount", &["umount", &mounted]),
        ("volume delete", &["volume", "delete", "tank/fs", "--yes"]),
        ("volume create", &["volume", "create", "tank/db", "1G"]),
        ("snapshot create", &["snapshot", "create", "tank/db@one"]),
        ("snapshot list", &["snapshot", "list", "tank/db"]),
        ("snapshot show", &["snapshot", "show", "tank/db@one"]),
        ("snapshot diff", &["snapshot", "diff", "tank/db@one"]),
        ("volume clone", &["volume", "clone", "tank/db@one", "tank/trial"]),
        ("export add", &["export", "add", "tank/trial", "--nbd", &nbd]),
        ("export list", &["export", "list"]),
        ("volume list", &["volume", "list"]),
        ("volume show", &["volume", "show", "tank/trial"]),
        ("volume resize", &["volume", "resize", "tank/trial", "2G"]),
        ("volume flatten", &["volume", "flatten", "tank/trial"]),
        ("status", &["status"]),
        ("top", &["top", "--interval", "100ms"]),
        ("volume delete", &["volume", "delete", "tank/trial", "--force", "--yes"]),
        ("volume rollback", &["volume", "rollback", "tank/db", "@one", "--yes"]),
        ("snapshot rename", &["snapshot", "rename", "tank/db@one", "two"]),
        ("snapshot delete", &["snapshot", "delete", "tank/db@two", "--yes"]),
        ("volume set", &["volume", "set", "tank/db", "--limit", "iops=3000"]),
        ("snapshot policy", &["snapshot", "policy", "tank/db", "--every", "1h", "--keep", "24"]),
        ("pool add", &["pool", "add", "tank", &four, "--force"]),
        ("volume move", &["volume", "move", "tank/db", "--place", "on=1"]),
        ("volume compact", &["volume", "compact", "tank/db"]),
        ("pool check", &["pool", "check", "tank"]),
        ("pool dump", &["pool", "dump", &four, "--records"]),
        ("pool remove", &["pool", "remove", "tank", "2"]),
        ("volume rename", &["volume", "rename", "tank/db", "sales"]),
        ("pool rename", &["pool", "rename", "tank", "deep"]),
        ("pool show", &["pool", "show", "deep"]),
        ("pool start", &["pool", "start", "deep", "--force"]),
        ("pool delete", &["pool", "delete", "deep", "--yes"]),
        ("array delete", &["array", "delete", "ground", "--yes"]),
        ("disk wipe", &["disk", "wipe", &three, "--yes"]),
        ("events", &["events"]),
        ("bench", &["bench", "--count", "1000", "null:1G"]),
        ("demo", &["demo"]),
    ];
    for (command, typed) in steps {
        if *command == "array fail" {
            // A copy job that runs for a while.
            daemon.export("safe");
            let mut client = Client::open(&daemon.nbd_socket("safe"), "safe").expect("it is served");
            client.write(0, &noise(8 * MIB, 1)).expect("it writes");
        }
        let away = daemon.folder.join("away");
        if *command == "pool start" {
            // The array is degraded.
            daemon.stop();
            std::fs::rename(&three, &away).expect("it is a file");
            daemon.start_again();
        }
        let typed: Vec<&str> = typed.iter().copied().chain(["--json"]).collect();
        keep(&daemon, command, &typed.join(" "), &daemon.braid(&typed));
        if *command == "pool start" {
            std::fs::rename(&away, &three).expect("it is a file");
        }
    }
    let first = daemon.command(&["events", "--follow", "--json"]);
    let mut first = first;
    let mut child = first.stdout(std::process::Stdio::piped()).spawn().expect("braid can be started");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().expect("it is piped")), &mut line)
        .expect("an event comes");
    let _ = child.kill();
    let _ = child.wait();
    keep(&daemon, "events --follow", "events --follow --json", &line);
    let out = daemon.any(&["array", "show", "absent", "--json"]);
    keep(&daemon, "error", "array show absent --json", &String::from_utf8_lossy(&out.stdout));

    let other = crate::nodes::first("first");
    let token = other.braid(&["node", "invite"]);
    let join = ["node", "join", token.trim(), "--name", "second", "--listen", "127.0.0.1:0", "--json"];
    keep(&daemon, "node join", "node join", &daemon.braid(&join));
    for (node, pool) in [(&daemon, "near"), (&other, "far")] {
        let disk = node.folder.sparse("replicas.img", 512 * MIB);
        node.braid(&["pool", "create", pool, &disk]);
    }
    let of_nodes: &[(&str, &[&str])] = &[
        ("volume create --replicas", &["volume", "create", "db", "16M", "--replicas", "second/near,first/far"]),
        ("volume list", &["volume", "list"]),
        ("volume list --all", &["volume", "list", "--all"]),
        ("replica list", &["replica", "list"]),
        ("replica show", &["replica", "show", "db"]),
        ("replica remove", &["replica", "remove", "db", "first", "--yes"]),
        ("replica add", &["replica", "add", "db", "first/far"]),
        ("replica rebuild", &["replica", "rebuild", "db", "first", "--yes"]),
        ("volume detach", &["volume", "detach", "db"]),
        ("volume attach", &["volume", "attach", "db"]),
    ];
    for (command, typed) in of_nodes {
        let typed: Vec<&str> = typed.iter().copied().chain(["--json"]).collect();
        keep(&daemon, command, &typed.join(" "), &daemon.braid(&typed));
    }
    daemon.braid(&["volume", "delete", "db", "--yes"]);
    let witness = serde_json::json!({"volume": "aaaaaaaa-0000-4000-8000-000000000001", "name": "alone", "voter": 2, "membership": {"voters": 7, "replicas": 3}, "in_sync": 3});
    let (status, reply) = crate::api::ask(&daemon, "POST", "/v1/replicas", &witness.to_string());
    assert_eq!(status, 200, "{reply}");
    let delete = ["replica", "delete", "alone", "--yes", "--json"];
    keep(&daemon, "replica delete", "replica delete", &daemon.braid(&delete));

    let all: Value = serde_json::from_str(&daemon.braid(&["schema"])).expect("it is JSON");
    let all: BTreeSet<&str> = all["commands"].as_object().expect("commands").keys().map(String::as_str).collect();
    let seen: BTreeSet<&str> = steps
        .iter()
        .chain(of_nodes)
        .map(|(command, _)| *command)
        .chain(["events --follow", "node join", "replica delete"])
        .collect();
    assert_eq!(all, seen, "a command has no document here, or no schema");
    let out = run_any(&tool("venv/bin/python"), &["-c", CHECK, &folder]);
    assert!(out.status.success(), "{}", said(&out));
}
