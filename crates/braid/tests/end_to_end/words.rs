//! Texts of commands about facts of the API: equal to the JSON, about the right member, and no more than is true.

use serde_json::Value;

use crate::mirrors::{create, files, show, wait_for_health, write};
use crate::support::*;

/// Returns a line of `braid array show data`, by its label.
#[track_caller]
fn line(daemon: &Daemon, label: &str) -> String {
    let text = daemon.braid(&["array", "show", "data"]);
    let found = text.lines().find_map(|line| line.strip_prefix(label).filter(|rest| rest.starts_with(' ')));
    found.unwrap_or_else(|| panic!("there is no {label} in {text}")).trim().to_owned()
}

/// Returns the line of the array in `braid array list`.
#[track_caller]
fn list_line(daemon: &Daemon) -> Vec<String> {
    let text = daemon.braid(&["array", "list"]);
    let found = text.lines().find(|line| line.split_whitespace().next() == Some("data"));
    found.unwrap_or_else(|| panic!("data is not in {text}")).split_whitespace().map(str::to_owned).collect()
}

/// Checks that `show` and the list report the current state, health and tolerance of the JSON.
#[track_caller]
fn reports(daemon: &Daemon, health: &str, tolerates_now: u64) {
    let shown = show(daemon);
    let redundancy = &shown["redundancy"];
    let said = (&shown["state"], &redundancy["health"], &redundancy["tolerates"], &redundancy["tolerates_now"]);
    assert_eq!(said, (&"active".into(), &health.into(), &1.into(), &tolerates_now.into()), "{shown}");
    assert_eq!((line(daemon, "state"), line(daemon, "health")), ("active".to_owned(), health.to_owned()));
    let listed = list_line(daemon);
    let has = |word: &str| listed.iter().any(|found| found.trim_end_matches('!') == word);
    assert!(has("active") && has(health), "{listed:?}");
    let tolerates = match tolerates_now {
        0 => "no failure of a member now; the failure of any 1 member once all are in sync",
        _ => "the failure of any 1 member",
    };
    assert_eq!(line(daemon, "tolerates"), tolerates);
}

#[test]
fn a_mirror_reports_its_health_and_its_current_tolerance() {
    let daemon = Daemon::start();
    let [a, b, c] = &files(&daemon, &["a", "b", "c"])[..] else { panic!("three files") };
    let mut client = create(&daemon, "raid1", &[a, b], &[]);
    write(&mut client, 0..100, 1);
    reports(&daemon, "whole", 1);
    daemon.braid(&["array", "fail", "data", "1"]);
    reports(&daemon, "degraded", 0);
    daemon.braid(&["array", "remove", "data", "1"]);
    reports(&daemon, "degraded", 0);
    let text = daemon.braid(&["array", "show", "data"]);
    assert!(text.contains("(none)") && !text.contains("(member )"), "{text}");
    // During its rebuild the array tolerates no more failures than before.
    daemon.braid(&["array", "add", "data", &format!("throttled({c},bw=512K)")]);
    let jobs = daemon.json(&["job", "list"]);
    let rebuild = jobs["jobs"].as_array().and_then(|jobs| jobs.iter().find(|job| job["kind"] == "rebuild"));
    let job = rebuild.and_then(|job| job["name"].as_str()).unwrap_or_else(|| panic!("{jobs}"));
    daemon.braid(&["job", "pause", job]);
    reports(&daemon, "rebuilding", 0);
    daemon.braid(&["job", "resume", job]);
    wait_for_health(&daemon, "whole");
    reports(&daemon, "whole", 1);
}

#[test]
fn a_replacement_is_named_by_the_member_that_it_replaces() {
    let daemon = Daemon::start();
    let disks = files(&daemon, &["a", "b", "c", "d", "e"]);
    let members: Vec<&str> = disks[..4].iter().map(String::as_str).collect();
    let mut client = create(&daemon, "raid6", &members, &[]);
    write(&mut client, 0..100, 1);
    daemon.braid(&["array", "replace", "data", "1", &format!("throttled({},bw=4M)", disks[4])]);
    let listed = daemon.json(&["job", "list"]);
    let jobs = listed["jobs"].as_array().expect("a list");
    let job: &Value = jobs.iter().find(|job| job["kind"] == "replace").unwrap_or_else(|| panic!("{listed}"));
    assert_eq!(job["replaces"], 1, "{job}");
    let name = job["name"].as_str().expect("a name");
    let text = daemon.braid(&["job", "list"]);
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
    let words: Vec<&str> = line.unwrap_or_else(|| panic!("{name} is not in {text}")).split_whitespace().collect();
    assert_eq!(words[1..3], ["replace", "1"], "{text}");
    let watched = daemon.any(&["job", "watch", name]);
    assert!(said(&watched).contains("replace of member 1 "), "{}", said(&watched));
}

#[test]
fn a_rollback_reports_a_changed_size() {
    let daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 96 * MIB);
    daemon.braid(&["pool", "create", "tank", &disk]);
    daemon.braid(&["volume", "create", "tank/db", "16M"]);
    daemon.braid(&["snapshot", "create", "tank/db@one"]);
    let text = daemon.braid(&["volume", "rollback", "tank/db", "@one", "--yes"]);
    assert!(text.contains("rolled back") && !text.contains("its size"), "{text}");
    daemon.braid(&["volume", "resize", "tank/db", "32M"]);
    let text = daemon.braid(&["volume", "rollback", "tank/db", "@one", "--yes"]);
    assert!(text.contains("; its size is 16") && text.contains("was 32"), "{text}");
    assert_eq!(daemon.json(&["volume", "show", "tank/db"])["size_bytes"], 16 * MIB);
}

#[test]
fn a_path_that_is_no_socket_is_not_reported_as_left_behind_by_a_daemon() {
    let daemon = Daemon::start();
    let file = daemon.folder.noise("file", 10, 1);
    let out = daemon.command(&["status"]).env("BRAID_SOCKET", &file).output().expect("braid can be started");
    assert_eq!(out.status.code(), Some(6), "{}", said(&out));
    let text = said(&out).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(&format!("{file} is not a socket")) && !text.contains("left behind"), "{text}");
}

#[test]
fn bench_accepts_the_names_that_its_messages_use() {
    let daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 96 * MIB);
    daemon.braid(&["pool", "create", "tank", &disk]);
    daemon.braid(&["volume", "create", "tank/db", "16M"]);
    daemon.braid(&["snapshot", "create", "tank/db@one"]);
    for (what, name) in [("volume", "tank/db"), ("snapshot", "tank/db@one")] {
        let refused = daemon.refused(3, &["bench", name, "--count", "10"]);
        let flat = refused.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(&format!("{what} {name} is served by no export")), "{flat}");
        // The message names this command.
        assert!(flat.contains(&format!("braid export add {name} --nbd unix:PATH")), "{flat}");
        crate::pools::export(&daemon, name);
        let found = daemon.json(&["bench", name, "--count", "10"]);
        assert_eq!(found["results"][0]["ios"], 10, "{found}");
    }
}

/// Exports and settings are in the state folder: its deletion under the daemon loses none of them for the next start.
#[test]
fn a_deleted_state_folder_is_recreated() {
    let mut daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 64 * MIB);
    daemon.array("data", "concat", &[&disk]);
    std::fs::remove_dir_all(daemon.folder.join("state")).expect("it is there");
    wait_for("the daemon to say so", || daemon.events().contains("state_restored").then_some(()));
    daemon.restart(true);
    let mut client = crate::mirrors::client(&daemon);
    client.write(0, &noise(4096, 1)).expect("it is served again");
}
