//! The API against independent tools: a validator and a request generator check its description, and Prometheus' own
//! checker checks its metrics and alert rules.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::network::{Authority, TOKEN, secret};
use crate::support::*;

/// Returns the folder into which `scripts/install-tools.sh` puts the tools that are not packages.
fn tools() -> PathBuf {
    let named = std::env::var_os("BRAID_TOOLS").map(PathBuf::from);
    let cache = || std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache");
    named.unwrap_or_else(|| cache().unwrap_or_else(home).join("braid-tools"))
}

/// Returns the path of one of its programs.
#[track_caller]
pub fn tool(name: &str) -> String {
    let path = tools().join(name);
    assert!(path.exists(), "{} is not there; `make tools` installs what the tests need", path.display());
    path.to_str().expect("a path in UTF-8").to_owned()
}

fn promtool() -> String {
    if run_any("which", &["promtool"]).status.success() { "promtool".to_owned() } else { tool("bin/promtool") }
}

fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name)
}

/// Reads a path of the API over the socket.
fn get(daemon: &Daemon, path: &str) -> String {
    let socket = daemon.folder.join("api.sock");
    run("curl", &["-sSf", "--unix-socket", &socket, &format!("http://braid{path}")])
}

#[test]
fn the_openapi_document_is_valid_and_the_daemon_conforms_to_it() {
    // The requests are generated, so the daemon must be unable to harm anything: it runs as user `nobody`, with disks
    // in memory alone.
    need_root();
    let folder = Folder::new();
    let authority = Authority::new(&folder, "ca");
    let (cert, key) = authority.sign(&folder, "server", &["127.0.0.1"]);
    let tokens = secret(&folder, "tokens", TOKEN);
    for path in [&folder.join("."), &cert, &key, &tokens] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).expect("root may");
    }
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("root may");
    let mut command = command("setpriv");
    // The daemon has to end with this test although it belongs to another user.
    command.args([
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "--pdeathsig",
        "KILL",
        "--",
        BRAID,
        "serve",
    ]);
    command.args(["--api-listen", "127.0.0.1:0", "--api-cert", &cert, "--api-key", &key, "--api-token-file", &tokens]);
    places(&mut command, &folder);
    let mut daemon = Daemon::start_with(folder, &mut command);
    daemon.array("fast", "raid0", &["mem:16M", "mem:16M"]);
    let url = daemon.json(&["status"])["network"].as_str().expect("it is on the network").to_owned();

    let document = daemon.folder.join("openapi.json");
    fs::write(&document, get(&daemon, "/v1/openapi.json")).expect("a file can be written");
    run(&tool("venv/bin/python"), &["-m", "openapi_spec_validator", &document]);

    // The stream of events never ends and is left out. What a schema cannot express (that a name is free, that a disk
    // exists) makes requests that fit it fail, so that is no fault.
    let header = format!("Authorization: Bearer {TOKEN}");
    // The tool stores its notes in its working directory.
    let out = run_any(
        "env",
        &[
            "-C",
            daemon.folder.path().to_str().expect("a path in UTF-8"),
            &tool("venv/bin/schemathesis"),
            "run",
            &document,
            "--url",
            &url,
            "--tls-verify",
            &authority.file,
            "-H",
            &header,
            "--seed",
            "1",
            "--max-examples",
            "60",
            "--request-timeout",
            "30",
            "--exclude-path",
            "/v1/events",
            "--exclude-checks",
            "positive_data_acceptance",
            "--generation-database",
            "none",
            "--no-color",
        ],
    );
    let text = said(&out);
    assert!(out.status.success(), "{text}");
    let passed = text.lines().find_map(|line| line.split(" generated, ").nth(1)?.split(" passed").next()?.parse().ok());
    // All operations except the endless one.
    let count = |word: &str| text.split(word).nth(1).and_then(|rest| rest.split(['/', '\n', ' ']).next()?.parse().ok());
    let (selected, tested): (Option<u32>, Option<u32>) = (count("Selected: "), count("Tested: "));
    let of = tested.map_or_else(String::new, |tested| format!("Selected: {tested}/{}", tested + 1));
    assert!(selected.is_some_and(|n| n >= 26) && selected == tested && text.contains(&of), "{text}");
    assert!(passed.is_some_and(|passed: u32| passed > 500), "{text}");
    assert!(daemon.running.ended().is_none());
    let log = daemon.running.log();
    assert!(!log.contains("panicked") && !log.contains(TOKEN), "{log}");
}

/// Returns the names of metrics in an expression of PromQL.
fn names(expression: &str) -> BTreeSet<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    expression.split(|c| !is_word(c)).filter(|word| word.starts_with("braid_")).map(str::to_owned).collect()
}

/// Collects every value under this key of a document.
fn under<'a>(value: &'a Value, key: &str, into: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                match value.as_str() {
                    Some(text) if name == key => into.push(text),
                    _ => under(value, key, into),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| under(value, key, into)),
        _ => {}
    }
}

#[test]
fn dashboard_and_alerts_use_existing_metrics() {
    let folder = Folder::new();
    let authority = Authority::new(&folder, "ca");
    let (cert, key) = authority.sign(&folder, "server", &["127.0.0.1"]);
    let tokens = secret(&folder, "tokens", TOKEN);
    let mut arguments = vec!["--api-listen", "127.0.0.1:0", "--api-cert", &cert, "--api-key", &key];
    arguments.extend(["--api-token-file", &tokens, "--nbd-cert", &cert, "--nbd-key", &key]);
    let daemon = Daemon::start_in(folder, &arguments);
    let uri = daemon.array("fast", "raid0", &["mem:16M", "mem:16M"]);
    daemon.braid(&["array", "create", "safe", "--level", "raid1", "mem:16M", "mem:16M"]);
    run("qemu-io", &["-f", "raw", "-c", "write 0 1M", "-c", "read 0 1M", &uri]);
    daemon.braid(&["pool", "create", "tank", "mem:64M", "mem:64M"]);
    daemon.braid(&["volume", "create", "tank/db", "1G"]);
    daemon.braid(&["node", "init", "one", "--listen", "127.0.0.1:0"]);
    daemon.braid(&["volume", "create", "kept", "16M", "--replicas", "one/tank"]);
    wait_for("certificates and volumes to be looked at", || {
        let metrics = get(&daemon, "/metrics");
        if !metrics.contains("braid_volume_size_bytes{pool=\"tank\",volume=\"tank/db\"} 1073741824") {
            return None;
        }
        ["api", "nbd"].iter().all(|of| metrics.contains(&format!("{of}_certificate_expiry"))).then_some(())
    });
    let metrics = get(&daemon, "/metrics");

    // Prometheus' own checker accepts the metrics without a warning.
    let file = daemon.folder.join("metrics");
    fs::write(&file, &metrics).expect("a file can be written");
    let out = run_any("sh", &["-c", &format!("{} check metrics < {file} 2>&1", promtool())]);
    assert!(out.status.success() && out.stdout.is_empty(), "{}", said(&out));
    // The checker looks at names and help; this test checks that every histogram is complete.
    let series = |name: &str| metrics.lines().filter(|line| line.starts_with(name)).count();
    let histograms: Vec<&str> =
        metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" histogram")).collect();
    assert!(histograms.len() >= 3, "{metrics}");
    for name in histograms {
        let ends = metrics.lines().filter(|l| l.starts_with(name) && l.contains("le=\"+Inf\"")).count();
        assert!(
            ends > 0 && ends == series(&format!("{name}_count")) && ends == series(&format!("{name}_sum")),
            "{name}"
        );
    }

    let rules = packaging("prometheus/braid-alerts.yaml");
    let rules = rules.to_str().expect("a path in UTF-8");
    run(&promtool(), &["check", "rules", rules]);
    let tests = packaging("prometheus/braid-alerts-test.yaml");
    run(&promtool(), &["test", "rules", tests.to_str().expect("a path in UTF-8")]);

    // Every metric that the dashboard and the rules name exists; every query of the dashboard parses.
    let there: BTreeSet<&str> = metrics
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    let text = fs::read_to_string(packaging("grafana/braid.json")).expect("the dashboard is there");
    let dashboard: Value = serde_json::from_str(&text).expect("it is JSON");
    let mut queries = Vec::new();
    under(&dashboard, "expr", &mut queries);
    under(&dashboard, "definition", &mut queries);
    assert!(queries.len() >= 30, "{queries:?}");
    let rules = fs::read_to_string(rules).expect("the rules are there");
    let expressions: String = rules.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    for name in queries.iter().flat_map(|query| names(query)).chain(names(&expressions)) {
        assert!(there.contains(name.as_str()), "there is no metric {name} in:\n{metrics}");
    }
    let mut as_rules = String::from("groups: [{name: queries, rules: [");
    for (number, query) in queries.iter().enumerate().filter(|(_, query)| !query.starts_with("label_values")) {
        let query = query.replace("$__rate_interval", "1m");
        as_rules.push_str(&format!("{{record: q{number}, expr: {}}},", Value::from(query)));
    }
    as_rules.push_str("]}]");
    let file = daemon.folder.join("queries.yaml");
    fs::write(&file, as_rules).expect("a file can be written");
    run(&promtool(), &["check", "rules", &file]);
    // Grafana identifies panels by these ids.
    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len());
}
