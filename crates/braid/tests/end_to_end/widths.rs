//! Mirrors gain and lose a copy while they serve.

use serde_json::Value;

use crate::mirrors::*;
use crate::patient::PatientFio;
use crate::support::*;

fn states(shown: &Value) -> Vec<String> {
    let members = shown["members"].as_array().cloned().unwrap_or_default();
    members.iter().map(|member| member["state"].as_str().unwrap_or("none").to_owned()).collect()
}

/// Checks that each copy by itself has the written data.
fn check_each(daemon: &Daemon, disks: &[&str], blocks: std::ops::Range<u64>) {
    let mut client = client(daemon);
    for role in 0..disks.len() {
        let others: Vec<usize> = (0..disks.len()).filter(|other| *other != role).collect();
        for other in &others {
            daemon.braid(&["array", "fail", "data", &other.to_string()]);
        }
        check(&mut client, blocks.clone(), 1);
        for other in others {
            wait_for("the disk to be taken", || {
                daemon.any(&["array", "add", "data", disks[other]]).status.success().then_some(())
            });
        }
        wait_for_health(daemon, "whole");
    }
}

#[test]
fn a_mirror_of_two_becomes_one_of_three_and_of_two_again() {
    let mut daemon = Daemon::start();
    let [a, b, c, d] = &files(&daemon, &["a", "b", "c", "d"])[..] else { panic!("four files") };
    let mut client = create(&daemon, "raid1", &[a, b], &["--spare", d]);
    write(&mut client, 0..100, 1);
    let size = show(&daemon)["size_bytes"].clone();
    daemon.braid(&["array", "add", "data", c, "--copy"]);
    write(&mut client, 100..200, 1);
    wait_for_health(&daemon, "whole");
    let shown = show(&daemon);
    assert_eq!(states(&shown), ["in_sync", "in_sync", "in_sync", "spare"], "{shown}");
    assert_eq!((&shown["size_bytes"], shown["redundancy"]["tolerates"].as_u64()), (&size, Some(2)), "{shown}");
    daemon.braid(&["array", "spare", "data", d, "--remove"]);
    check_each(&daemon, &[a, b, c], 0..200);

    // A middle copy is removed, and the members behind it move up.
    assert!(daemon.refused(4, &["array", "remove", "data", "1", "--copy"]).contains("is in service"));
    daemon.braid(&["array", "fail", "data", "1"]);
    daemon.braid(&["array", "remove", "data", b, "--copy"]);
    let shown = show(&daemon);
    assert_eq!((states(&shown), health(&daemon)), (vec!["in_sync".to_owned(); 2], "whole".to_owned()), "{shown}");
    assert_eq!(shown["members"][1]["disk"].as_str(), Some(&**c), "{shown}");
    write(&mut self::client(&daemon), 200..250, 1);
    daemon.kill();
    daemon.start_again();
    wait_for_health(&daemon, "whole");
    check_each(&daemon, &[a, c], 0..250);

    // A vacant slot is removed by its number, or filled.
    daemon.braid(&["array", "fail", "data", "0"]);
    daemon.braid(&["array", "remove", "data", "0"]);
    assert_eq!((states(&show(&daemon)), health(&daemon)), (vec!["vacant".into(), "in_sync".into()], "degraded".into()));
    assert!(daemon.refused(2, &["array", "remove", "data", "0"]).contains("slot 0 of array data has no member"));
    daemon.braid(&["array", "remove", "data", "0", "--copy"]);
    assert_eq!((states(&show(&daemon)), health(&daemon)), (vec!["in_sync".into()], "whole".into()));
    check(&mut self::client(&daemon), 0..250, 1);
    daemon.braid(&["array", "add", "data", d, "--copy", "--force", "--yes"]);
    wait_for_health(&daemon, "whole");
    check_each(&daemon, &[c, d], 0..250);
}

#[test]
fn only_raid1_gains_copies() {
    let daemon = Daemon::start();
    let [a, b, c, d] = &files(&daemon, &["a", "b", "c", "d"])[..] else { panic!("four files") };
    drop(create(&daemon, "raid10", &[a, b], &[]));
    assert!(daemon.refused(2, &["array", "add", "data", c, "--copy"]).contains("only raid1"));
    let small = daemon.folder.sparse("small", 40 * MIB);
    daemon.braid(&["array", "create", "other", "--level", "raid1", c, d]);
    assert!(daemon.refused(2, &["array", "add", "other", &small, "--copy"]).contains("a copy of the array needs"));
    let shown = daemon.json(&["array", "show", "other"]);
    assert_eq!((states(&shown), &shown["redundancy"]["health"]), (vec!["in_sync".into(); 2], &"whole".into()));
}

/// fio goes on through kills while a copy is filled, and while another one is removed.
#[test]
fn fio_finds_what_it_wrote_while_copies_come_and_go_through_kills() {
    let mut daemon = Daemon::start();
    let [a, b, c] = &files(&daemon, &["a", "b", "c"])[..] else { panic!("three files") };
    let mut client = create(&daemon, "raid1", &[a, b], &[]);
    // Data to be copied, slowly enough to interrupt the copy in the middle.
    write(&mut client, 400..600, 1);
    drop(client);
    let written = |daemon: &Daemon| show(daemon)["members"][0]["stats"]["writes"].as_u64().unwrap_or(0);
    let before = written(&daemon);
    let mut writer = PatientFio::start(&daemon, &daemon.uri("data"));
    wait_for("writes", || (written(&daemon) > before + 150).then_some(()));
    let slow = format!("throttled({c},bw=60M)");
    daemon.braid(&["array", "add", "data", &slow, "--copy", "--no-wait"]);
    assert_eq!(states(&show(&daemon)), ["in_sync", "in_sync", "rebuilding"]);
    daemon.kill();
    daemon.start_again();
    assert_eq!(states(&show(&daemon)).len(), 3);
    // A disk whose labels were cut off by the crash is added once more.
    wait_for("the third copy", || {
        if !states(&show(&daemon)).iter().all(|state| state == "in_sync" || state == "rebuilding") {
            drop(daemon.any(&["array", "add", "data", c]));
        }
        (health(&daemon) == "whole").then_some(())
    });
    daemon.braid(&["array", "fail", "data", "0"]);
    daemon.braid(&["array", "remove", "data", "0", "--copy"]);
    daemon.kill();
    daemon.start_again();
    assert_eq!(states(&show(&daemon)), ["in_sync", "in_sync"]);
    assert!(writer.fio.ended().is_none(), "it was over before the last kill: it is too fast for this test");
    writer.succeeds();
    let checked = daemon.any(&["array", "check", "data", "--wait"]);
    assert_eq!(checked.status.code(), Some(0), "{}", said(&checked));
    check(&mut self::client(&daemon), 400..600, 1);
    daemon.braid(&["array", "fail", "data", "0"]);
    check(&mut self::client(&daemon), 400..600, 1);
}
