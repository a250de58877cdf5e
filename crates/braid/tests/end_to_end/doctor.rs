//! `braid doctor` with and without a daemon, and the routes that orchestrators probe.

use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::Output;

use serde_json::Value;

use crate::api::ask;
use crate::support::*;

/// Runs `braid doctor` in a folder without a daemon.
fn alone(folder: &Folder, arguments: &[&str]) -> Output {
    let mut command = command(BRAID);
    command.arg("doctor").args(arguments);
    places(&mut command, folder);
    command.output().expect("braid can be started")
}

/// Reads a report, and checks what holds for each of them.
#[track_caller]
fn report(out: &Output) -> Value {
    let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|error| panic!("{error}: {}", said(out)));
    let problems = report["problems"].as_u64().expect("a number");
    assert_eq!(out.status.code(), Some(if problems == 0 { 0 } else { 5 }), "{}", said(out));
    let checks = report["checks"].as_array().expect("checks");
    let count = |state: &str| checks.iter().filter(|check| check["state"] == state).count() as u64;
    assert_eq!((count("problem"), count("warning")), (problems, report["warnings"].as_u64().expect("a number")));
    for check in checks {
        let is_faulty = check["state"] == "problem" || check["state"] == "warning";
        let has_cost = check["impact"].as_str().is_some_and(|cost| cost.ends_with('.'));
        let has_command = check["commands"].as_array().is_some_and(|commands| !commands.is_empty());
        assert_eq!((has_cost, has_command), (is_faulty, is_faulty), "{check}");
        assert!(check["found"].as_str().is_some_and(|found| !found.is_empty()), "{check}");
    }
    report
}

#[track_caller]
fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().expect("checks");
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("there is no {name} in {report}"))
}

#[test]
fn without_a_daemon_the_machine_is_checked() {
    let folder = Folder::new();
    let found = report(&alone(&folder, &["--json"]));
    for group in ["kernel", "modules", "limits", "clocks", "permissions", "daemon", "disks", "certificates", "ports"] {
        let checks = found["checks"].as_array().expect("checks");
        assert!(checks.iter().any(|check| check["group"] == group), "{group}: {found}");
    }
    let socket = check(&found, "socket");
    assert_eq!(socket["state"], "warning", "{socket}");
    assert!(socket["commands"].to_string().contains("braid serve"), "{socket}");
    assert_eq!(check(&found, "configuration")["state"], "ok");
    assert_eq!(check(&found, "driver of the daemon")["state"], "skipped");
    assert_ne!(check(&found, "driver")["state"], "problem");
    let text = String::from_utf8_lossy(&alone(&folder, &[]).stdout).into_owned();
    assert!(text.contains("\nkernel\n") && !text.contains('\u{1b}'), "{text}");
}

#[test]
fn with_a_daemon_its_own_limits_and_driver_are_checked() {
    let daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 16 * MIB);
    daemon.array("data", "concat", &[&disk]);
    let found = report(&daemon.any(&["doctor", "--json"]));
    let socket = check(&found, "socket");
    assert_eq!(socket["state"], "ok", "{socket}");
    assert!(socket["found"].as_str().is_some_and(|text| text.contains("answers, process ")), "{socket}");
    assert_ne!(check(&found, "driver of the daemon")["state"], "skipped");
    assert_ne!(check(&found, "open files of the daemon")["state"], "skipped");
    assert_eq!(check(&found, "clocks of other nodes")["state"], "skipped");
    let port = daemon.export_tcp("data", "net");
    let found = report(&daemon.any(&["doctor", "--json"]));
    let own = check(&found, "port of export net");
    assert_eq!(own["state"], "ok", "{own}");
    assert!(own["found"].to_string().contains(&port.to_string()), "{own}");
}

#[test]
fn a_wrong_configuration_and_a_port_that_is_taken_are_problems() {
    let folder = Folder::new();
    fs::write(folder.join("braid.toml"), "shards = 0\n").expect("a file can be written");
    let found = report(&alone(&folder, &["--json"]));
    let wrong = check(&found, "configuration");
    assert_eq!(wrong["state"], "problem", "{wrong}");
    assert!(wrong["found"].as_str().is_some_and(|text| text.contains("line 1")), "{wrong}");

    let taken = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = taken.local_addr().expect("it is bound");
    fs::write(folder.join("braid.toml"), format!("api.listen = \"{address}\"\n")).expect("a file can be written");
    let found = report(&alone(&folder, &["--json"]));
    let port = check(&found, "port of the API");
    assert_eq!(port["state"], "problem", "{port}");
    drop(taken);
    let found = report(&alone(&folder, &["--json"]));
    assert_eq!(check(&found, "port of the API")["state"], "ok");
}

#[test]
fn orchestrators_learn_whether_the_daemon_lives_and_is_ready() {
    let mut far = Daemon::start();
    let disk = far.folder.sparse("disk", 64 * MIB);
    far.array("lun", "concat", &[&disk]);
    let (uri, socket) = (far.uri("lun"), far.nbd_socket("lun"));
    let mut near = Daemon::start();
    assert_eq!(ask(&near, "GET", "/healthz", ""), (200, "ok\n".to_owned()));
    wait_for("the daemon to be ready", || (ask(&near, "GET", "/readyz", "").0 == 200).then_some(()));
    assert_eq!(ask(&near, "GET", "/readyz", "").1, "ok\n");

    // After a restart the server of a disk accepts a connection and sends nothing: the scan of disks goes on.
    near.braid(&["pool", "create", "tank", &uri]);
    near.stop();
    far.stop();
    let _silent = UnixListener::bind(&socket).expect("the server has removed its socket");
    near.start_again();
    assert_eq!(ask(&near, "GET", "/healthz", ""), (200, "ok\n".to_owned()));
    let (status, body) = ask(&near, "GET", "/readyz", "");
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("starts"), "{body}");
    // The reports of a daemon that starts are incomplete, and no reason to fail.
    let found = report(&near.any(&["doctor", "--json"]));
    assert_eq!(check(&found, "socket")["state"], "ok");
}
