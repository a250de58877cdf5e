//! Names known from other tools: aliases of verbs and levels, relative sizes, the short form of a rollback; and lists for programs.

use serde_json::Value;

use crate::every_state::flat;
use crate::mirrors::{client, files, show, write};
use crate::pools::{self, names, pool};
use crate::support::*;

const LISTS: [&str; 8] = ["array", "pool", "volume", "snapshot", "export", "node", "replica", "job"];

#[test]
fn aliases_do_what_their_commands_do() {
    let daemon = Daemon::start();
    let disks = files(&daemon, &["a", "b", "c"]);
    daemon.array("data", "mirror", &[&disks[0], &disks[1]]);
    assert_eq!(show(&daemon)["level"], "raid1");
    let mut data = client(&daemon);
    write(&mut data, 0..20, 1);
    data.flush().expect("it flushes");
    drop(data);
    daemon.braid(&["pool", "create", "tank", &disks[2]]);
    for volume in ["tank/db", "tank/log"] {
        daemon.braid(&["volume", "create", volume, "16M"]);
    }
    for snapshot in ["tank/db@one", "tank/db@two"] {
        daemon.braid(&["snapshot", "create", snapshot]);
    }
    for noun in ["pool", "volume", "snapshot"] {
        assert_eq!(daemon.braid(&[noun, "ls"]), daemon.braid(&[noun, "list"]), "{noun}");
    }
    for noun in LISTS {
        daemon.braid(&[noun, "ls"]);
    }
    daemon.braid(&["disk", "ls"]);

    let job = daemon.json(&["array", "scrub", "data", "--wait"]);
    assert_eq!((&job["kind"], &job["state"]), (&"check".into(), &"done".into()), "{job}");
    assert_eq!(daemon.json(&["pool", "scrub", "tank"])["pool"], "tank");

    // If a noun has no `remove`, `rm` is `delete`, and needs the same confirmation.
    assert!(daemon.refused(4, &["snapshot", "rm", "tank/db@one"]).contains("--yes"));
    daemon.braid(&["snapshot", "rm", "tank/db@one", "--yes"]);
    daemon.braid(&["snapshot", "destroy", "tank/db@two", "--yes"]);
    assert_eq!(names(&daemon.json(&["snapshot", "ls"]), "snapshots"), [""; 0]);
    daemon.braid(&["volume", "rm", "tank/log", "--yes"]);
    daemon.braid(&["volume", "destroy", "tank/db", "--yes"]);
    assert_eq!(names(&daemon.json(&["volume", "ls"]), "volumes"), [""; 0]);
    daemon.braid(&["pool", "destroy", "tank", "--yes"]);
    assert_eq!(names(&daemon.json(&["pool", "ls"]), "pools"), [""; 0]);
    // Otherwise `rm` is `remove`: of an array it removes a member, and never the array.
    daemon.refused(2, &["array", "rm", "data", "--yes"]);
    daemon.braid(&["array", "fail", "data", "1"]);
    daemon.braid(&["array", "rm", "data", "1"]);
    assert!(show(&daemon)["members"][1]["disk"].is_null(), "{}", show(&daemon));
    daemon.braid(&["export", "rm", "data"]);
    daemon.braid(&["array", "destroy", "data", "--yes"]);
    assert_eq!(names(&daemon.json(&["array", "ls"]), "arrays"), [""; 0]);
}

#[test]
fn aliases_of_levels_are_accepted_and_levels_are_shown_by_their_names() {
    let daemon = Daemon::start();
    let levels = [
        ("5", "raid5"),
        ("RAID-5", "raid5"),
        ("stripe", "raid0"),
        ("1", "raid1"),
        ("linear", "concat"),
        ("6", "raid6"),
    ];
    for (number, (typed, level)) in levels.into_iter().enumerate() {
        let name = format!("a{number}");
        let disk = |disk: u32| daemon.folder.sparse(&format!("{name}-{disk}"), 32 * MIB);
        let (one, two, three) = (disk(1), disk(2), disk(3));
        daemon.braid(&["array", "create", &name, "--level", typed, &one, &two, &three]);
        assert_eq!(daemon.json(&["array", "show", &name])["level"], level, "{typed}");
    }
    let plan = |level: &str| daemon.braid(&["plan", "--level", level, "50G", "100G", "100G"]);
    assert_eq!(plan("raid-5"), plan("raid5"));
    assert_eq!(plan("Mirror"), plan("raid1"));
    let bench = daemon.json(&["bench", "--level", "0", "--count", "10", "mem:16M", "mem:16M"]);
    assert_eq!(bench["results"][0]["ios"], 10, "{bench}");
    let refused = daemon.refused(2, &["array", "create", "x", "--level", "raid7", "mem:16M"]);
    assert!(refused.contains("raid7") && flat(&refused).contains("concat, raid0, raid1"), "{refused}");
}

#[test]
fn a_size_with_a_sign_changes_the_current_size() {
    let daemon = Daemon::start();
    let mut db = pool(&daemon);
    pools::write(&mut db, 0..100, 1);
    let size = || daemon.json(&["volume", "show", "tank/db"])["size_bytes"].as_u64().expect("a size");
    let resize = |more: &[&str]| daemon.any(&[&["volume", "resize", "tank/db"], more].concat());
    let resized = |more: &[&str], bytes: u64| {
        let out = resize(more);
        assert!(out.status.success(), "{more:?}: {}", said(&out));
        assert_eq!(size(), bytes, "{more:?}");
    };
    assert_eq!(size(), 1024 * MIB);
    resized(&["+512M"], 1536 * MIB);
    resized(&["-1G"], 512 * MIB);
    // Shrinking needs `--force` and `--yes`: here the volume has data beyond the new end.
    for (more, words) in [(&["-508M"][..], "--force"), (&["-508M", "--force"][..], "--yes")] {
        let out = resize(more);
        assert_eq!(out.status.code(), Some(4), "{more:?}: {}", said(&out));
        assert!(said(&out).contains(words), "{more:?}: {}", said(&out));
    }
    resized(&["--force", "-508M", "--yes"], 4 * MIB);
    // The volume is smaller than that.
    for (more, words) in [("-4M", "would leave nothing"), ("-1G", "would leave nothing"), ("+x", "+10G, -10G")] {
        let out = resize(&[more]);
        assert_eq!(out.status.code(), Some(2), "{more}: {}", said(&out));
        assert!(flat(&said(&out)).contains(words), "{more}: {}", said(&out));
    }
    let out = resize(&["--forse"]);
    assert!(out.status.code() == Some(2) && flat(&said(&out)).contains("no such option"), "{}", said(&out));
    let out = resize(&["-1G", "--json"]);
    let error: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(&out)));
    assert_eq!(error["error"]["kind"], "invalid_argument", "{error}");
    assert_eq!(size(), 4 * MIB);
}

#[test]
fn a_rollback_takes_its_snapshot_in_one_word() {
    let daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 96 * MIB);
    daemon.braid(&["pool", "create", "tank", &disk]);
    daemon.braid(&["volume", "create", "tank/db", "16M"]);
    daemon.braid(&["snapshot", "create", "tank/db@one"]);
    let uuid = daemon.json(&["snapshot", "show", "tank/db@one"])["uuid"].as_str().expect("it has one").to_owned();
    for snapshot in ["tank/db@one", &uuid] {
        daemon.braid(&["volume", "resize", "tank/db", "+16M"]);
        let text = daemon.braid(&["volume", "rollback", snapshot, "--yes"]);
        assert!(text.starts_with(&format!("rolled back volume tank/db to {snapshot}; its size is 16")), "{text}");
        assert_eq!(daemon.json(&["volume", "show", "tank/db"])["size_bytes"], 16 * MIB);
    }
    let refused = |status: i32, words: &str, more: &[&str]| {
        let text = daemon.refused(status, &[&["volume", "rollback"], more].concat());
        assert!(flat(&text).contains(words), "{more:?}: {text}");
    };
    refused(4, "Data written to tank/db since tank/db@one", &["tank/db@one"]);
    refused(2, "no snapshot of volume tank/db is named", &["tank/db", "--yes"]);
    refused(2, "two snapshots are named", &["tank/db@one", "@one", "--yes"]);
    refused(3, "tank/db@none", &["tank/db@none", "--yes"]);
}

#[test]
fn an_empty_list_has_no_lines_and_no_names() {
    let daemon = Daemon::start();
    for noun in LISTS {
        for more in [&["-o", "name"][..], &["--no-headers"], &["-o", "wide", "--no-headers"]] {
            assert_eq!(daemon.braid(&[&[noun, "ls"], more].concat()), "", "{noun} {more:?}");
        }
        assert!(!daemon.braid(&[noun, "ls"]).is_empty(), "{noun}: a hint");
    }
}

#[test]
fn lists_are_printed_as_names_lines_or_json() {
    let daemon = Daemon::start();
    // The client stays connected, so that the list of exports does not change.
    let _db = pool(&daemon);
    daemon.braid(&["snapshot", "create", "tank/db@one"]);
    let disks = files(&daemon, &["one", "two"]);
    daemon.braid(&["array", "create", "twice", "--level", "1", &disks[0], &disks[1]]);
    let with = |list: &[&str], more: &[&str]| daemon.braid(&[list, more].concat());
    let lists: [(&[&str], &str, &str); 6] = [
        (&["array", "list"], "arrays", "twice"),
        (&["pool", "list"], "pools", "tank"),
        (&["volume", "list"], "volumes", "tank/db"),
        (&["volume", "list", "tank"], "volumes", "tank/db"),
        (&["snapshot", "list"], "snapshots", "tank/db@one"),
        (&["export", "list"], "exports", "tank/db"),
    ];
    for (list, key, name) in lists {
        assert_eq!(with(list, &["-o", "name"]), format!("{name}\n"), "{list:?}");
        assert_eq!(with(list, &["--output=name", "--no-headers"]), format!("{name}\n"), "{list:?}");
        let table = with(list, &[]);
        let (headings, lines) = table.split_once('\n').expect("a line");
        assert!(flat(headings).starts_with("NAME ") && lines.lines().count() == 1, "{table}");
        // Columns are as wide as their content: without headings they may be narrower.
        assert_eq!(flat(&with(list, &["--no-headers"])), flat(lines), "{list:?}");
        let json: Value = serde_json::from_str(&with(list, &["-o", "json"])).expect("it is JSON");
        assert_eq!(names(&json, key), [name], "{list:?}");
        let both: Value = serde_json::from_str(&with(list, &["-o", "json", "--json"])).expect("it is JSON");
        assert_eq!(names(&both, key), [name], "{list:?}");
        let wide = with(list, &["-o", "wide"]);
        let further = json[key][0][if key == "exports" { "uri" } else { "uuid" }].as_str().expect("a text");
        assert!(flat(&wide).starts_with(&flat(headings)) && wide.lines().count() == 2, "{wide}");
        assert!(wide.contains(further) && !table.contains(further), "{wide}");
    }
    for line in with(&["disk", "list"], &["-o", "name"]).lines() {
        assert!(line.starts_with("/dev/") && !line.contains(' '), "{line}");
    }
    let refused = daemon.refused(2, &["array", "list", "-o", "yaml"]);
    assert!(refused.contains("wide, json, name"), "{refused}");
    // An error is printed as JSON where a list would be.
    let out = daemon.any(&["volume", "ls", "nowhere", "-o", "json"]);
    let error: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(&out)));
    assert_eq!((out.status.code(), &error["error"]["kind"]), (Some(3), &"not_found".into()), "{error}");
    let out = daemon.any(&["volume", "ls", "nowhere", "-o", "name"]);
    assert!(out.status.code() == Some(3) && out.stdout.is_empty(), "{}", said(&out));
}
