//! The daemon is killed while fio writes and verifies a volume, and while snapshots of it are created and deleted.

use crate::patient::PatientFio;
use crate::pools::{export, names, socket};
use crate::support::*;

#[test]
fn fio_finds_what_it_wrote_through_kills_while_snapshots_come_and_go() {
    let mut daemon = Daemon::start();
    let disks = ["a.img", "b.img"].map(|name| daemon.folder.sparse(name, 100 * MIB));
    daemon.braid(&["pool", "create", "tank", &disks[0], &disks[1]]);
    daemon.braid(&["volume", "create", "tank/db", "16M"]);
    export(&daemon, "tank/db");
    let uri = format!("nbd+unix:///tank%2Fdb?socket={}", socket(&daemon));
    let mut writer = PatientFio::start(&daemon, &uri);
    let fio = &mut writer.fio;
    let written =
        |daemon: &Daemon| daemon.json(&["export", "show", "tank/db"])["stats"]["writes"].as_u64().expect("a count");
    let (mut kills, mut taken) = (0, 0);
    while fio.ended().is_none() && kills < 5 {
        let before = written(&daemon);
        wait_for("writes", || (written(&daemon) > before + 40 || fio.ended().is_some()).then_some(()));
        daemon.braid(&["snapshot", "create", &format!("tank/db@s{taken}")]);
        taken += 1;
        if taken % 3 == 0 {
            // Deletes the oldest snapshot, and at times one between the others.
            let there = names(&daemon.json(&["snapshot", "list", "tank/db"]), "snapshots");
            daemon.braid(&["snapshot", "delete", &there[(taken / 3) % 2], "--yes"]);
        }
        if taken % 4 == 0 && fio.ended().is_none() {
            // A snapshot is being created when the daemon is killed: it exists afterwards, or it does not.
            let pending = ["snapshot", "create", &format!("tank/db@dying{kills}")];
            let mut pending = Running::start(&daemon.folder, "pending", &mut daemon.command(&pending));
            std::thread::sleep(std::time::Duration::from_millis(kills * 3));
            daemon.kill();
            pending.wait();
            kills += 1;
            daemon.start_again();
        }
    }
    assert!(kills >= 3, "it was over after {kills} kills: it is too fast for this test");
    writer.succeeds();
    for name in names(&daemon.json(&["snapshot", "list", "tank/db"]), "snapshots") {
        daemon.braid(&["snapshot", "delete", &name, "--yes"]);
    }
    daemon.braid(&["export", "remove", "tank/db"]);
    daemon.braid(&["volume", "delete", "tank/db", "--yes"]);
    let allocated = || daemon.json(&["pool", "show", "tank"])["allocated_bytes"] == 0;
    wait_for("all space to be free again", || allocated().then_some(()));
}
