//! The command line: meaningful exit statuses, messages for wrong arguments, `--json` that parses.

use crate::support::*;

/// Runs `braid ARGUMENTS` without a daemon.
fn alone(arguments: &[&str]) -> std::process::Output {
    let folder = Folder::new();
    let mut command = command(BRAID);
    command.args(arguments);
    places(&mut command, &folder);
    command.output().expect("braid can be started")
}

#[test]
fn without_a_daemon_the_exit_status_is_6_and_the_remedy_is_named() {
    for arguments in [&["status"][..], &["array", "list"], &["export", "list"], &["events"], &["array", "show", "x"]] {
        let out = alone(arguments);
        assert_eq!(out.status.code(), Some(6), "{arguments:?}: {}", said(&out));
        assert!(said(&out).contains("braid serve"), "{arguments:?}: {}", said(&out));
    }
}

#[test]
fn wrong_arguments_are_named_with_a_valid_example() {
    // (arguments, what the message has to contain)
    let cases: &[(&[&str], &[&str])] = &[
        (&["plan", "50Q", "100G"], &["50Q"]),
        (&["plan"], &["50G"]),
        (&["plan", "--level", "raid7", "1G", "1G"], &["raid7", "raid0"]),
        (&["plan", "--level", "raid0", "--chunk", "5000", "1G", "1G"], &["5000", "64K"]),
        (&["array", "create", "a/b", "--level", "raid0", "mem:1G"], &["a/b", "backup-2"]),
        (&["array", "create", "a", "--level", "raid0", "throttled(mem:1G,iops=x)"], &["iops=x", "throttled("]),
        (&["array", "create", "a", "--level", "raid0", "mem:banana"], &["banana", "mem:1G"]),
        (&["frobnicate"], &["frobnicate"]),
        (&["bench", "null:1T", "--block", "5000"], &["5000", "4K"]),
    ];
    for (arguments, expected) in cases {
        let out = alone(arguments);
        let text = said(&out);
        assert_eq!(out.status.code(), Some(2), "{arguments:?}: {text}");
        for word in *expected {
            assert!(text.contains(word), "{arguments:?} does not mention {word}: {text}");
        }
        assert!(!text.contains("panicked"), "{text}");
    }
}

#[test]
fn plan_shows_every_level_with_exact_layouts() {
    let out = alone(&["plan", "50G", "100G", "100G"]);
    assert_eq!(out.status.code(), Some(0), "{}", said(&out));
    // The capacities are exactly those of the specification, without the disks' own metadata.
    let out = alone(&["plan", "--data-sizes", "50G", "100G", "100G"]);
    let text = said(&out);
    assert_eq!(out.status.code(), Some(0), "{text}");
    for word in ["concat", "raid0", "raid1", "raid10", "raid5", "raid6", "250.00 GiB", "150.00 GiB", "50.00 GiB"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let out = alone(&[
        "plan",
        "50G",
        "100G",
        "100G",
        "--level",
        "raid0",
        "--chunk",
        "64K",
        "--map",
        "--data-sizes",
        "--json",
    ]);
    assert_eq!(out.status.code(), Some(0), "{}", said(&out));
    let map: serde_json::Value = serde_json::from_slice(&out.stdout).expect("it is JSON");
    assert!(map.get("runs").is_some() || map.get("runs_strided").is_some(), "{map}");
}

#[test]
fn each_exit_status_names_its_kind_of_error() {
    let daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 16 * MIB);
    daemon.braid(&["array", "create", "data", "--level", "concat", &disk]);
    daemon.refused(3, &["array", "show", "absent"]);
    daemon.refused(3, &["export", "show", "absent"]);
    daemon.refused(3, &["export", "add", "absent", "--nbd", "unix:/tmp/none"]);
    daemon.refused(3, &["array", "create", "more", "--level", "concat", &daemon.folder.join("absent")]);
    // A name that is taken.
    let other = daemon.folder.sparse("other", 16 * MIB);
    let refusal = daemon.refused(4, &["array", "create", "data", "--level", "concat", &other]);
    assert!(refusal.contains("data"), "{refusal}");
    // The same disk twice.
    let out = daemon.any(&["array", "create", "twice", "--level", "concat", &other, &other]);
    assert!(matches!(out.status.code(), Some(2 | 4)), "{}", said(&out));
    // A name too long, unsupported levels, an invalid address.
    daemon.refused(2, &["array", "create", &"x".repeat(64), "--level", "concat", &other]);
    let out = daemon.any(&["array", "create", "r5", "--level", "raid5", &other]);
    assert!(!out.status.success() && said(&out).contains("raid5"), "{}", said(&out));
    daemon.refused(2, &["export", "add", "data", "--nbd", "carrier-pigeon:coop"]);
    assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(0));
}

#[test]
fn a_uuid_is_accepted_in_place_of_a_name() {
    let daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 16 * MIB);
    daemon.array("data", "concat", &[&disk]);
    let array = daemon.json(&["array", "show", "data"]);
    let uuid = array["uuid"].as_str().expect("a UUID");
    assert_eq!(daemon.json(&["array", "show", uuid])["name"], "data");
    daemon.braid(&["array", "rename", uuid, "renamed"]);
    assert_eq!(daemon.json(&["array", "show", "renamed"])["uuid"], array["uuid"]);
    let export = daemon.json(&["export", "list"])["exports"][0].clone();
    let uuid = export["uuid"].as_str().expect("a UUID");
    assert_eq!(daemon.json(&["export", "show", uuid])["name"], export["name"]);
}

#[test]
fn json_has_integers_with_their_units_in_the_name() {
    let daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 16 * MIB);
    daemon.array("data", "concat", &[&disk]);
    let array = daemon.json(&["array", "show", "data"]);
    for field in ["size_bytes", "chunk_bytes"] {
        assert!(array[field].is_u64(), "{field}: {array}");
    }
    assert!(array["members"][0]["data_bytes"].is_u64() && array["zones"][0]["array_bytes"].is_u64(), "{array}");
    let status = daemon.json(&["status"]);
    assert!(status["shards"][0]["driver"].is_string() && status["pid"].is_u64(), "{status}");
    assert_eq!(daemon.json(&["array", "list"])["arrays"][0]["name"], "data");
    assert!(daemon.json(&["disk", "list"])["disks"].is_array());
    assert!(daemon.json(&["events"])["events"].is_array());
    // An error is JSON too, in the format of the API.
    let out = daemon.any(&["array", "show", "absent", "--json"]);
    assert_eq!(out.status.code(), Some(3));
    let error: serde_json::Value =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(&out)));
    assert_eq!(error["error"]["kind"], "not_found", "{error}");
}
