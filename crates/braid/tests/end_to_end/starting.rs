//! While a starting daemon still searches for disks, objects on unfound disks are reported as unknown, not as missing.

use crate::support::*;
use std::os::unix::net::UnixListener;

#[test]
fn objects_that_may_be_on_an_unresponsive_disk_are_not_reported_missing() {
    let mut far = Daemon::start();
    let disk = far.folder.sparse("disk", 64 * MIB);
    far.array("lun", "concat", &[&disk]);
    let uri = far.uri("lun");
    let socket = far.nbd_socket("lun");

    let mut near = Daemon::start();
    let local = near.folder.sparse("local", 64 * MIB);
    near.braid(&["pool", "create", "here", &local]);
    near.braid(&["volume", "create", "here/a", "8M"]);
    near.braid(&["pool", "create", "tank", &uri]);
    near.braid(&["volume", "create", "tank/db", "8M"]);
    // Every disk has responded: an object that is not listed does not exist. A hanging device of another test may delay the end of the search.
    wait_for("the search to end", || {
        (!near.json(&["status"])["starting"].as_bool().expect("it is said")).then_some(())
    });
    assert_eq!(near.json(&["volume", "list"])["incomplete"], serde_json::json!([]));
    near.refused(3, &["pool", "show", "nothing"]);
    near.stop();
    far.stop();

    // The server of the pool's disk accepts connections, and sends nothing.
    let silent = UnixListener::bind(&socket).expect("the server has removed its socket");
    near.start_again();
    let status = near.json(&["status"]);
    assert!(status["starting"].as_bool().expect("it is said"), "{status}");
    assert!(status["attention"].to_string().contains("not answered"), "{status}");
    assert_eq!(near.any(&["status", "--check"]).status.code(), Some(5));
    for (noun, name) in [
        ("array", "nothing"),
        ("pool", "nothing"),
        ("volume", "tank/db"),
        ("volume", "gone/db"),
        ("snapshot", "gone/db@x"),
    ] {
        let out = near.any(&[noun, "show", name]);
        assert_ne!(out.status.code(), Some(3), "{noun} {name}: {}", said(&out));
    }
    let text = near.refused(6, &["pool", "show", "nothing"]);
    assert!(text.contains("still looking for disks"), "{text}");
    let error: serde_json::Value = serde_json::from_slice(&near.any(&["pool", "show", "nothing", "--json"]).stdout)
        .expect("an error is JSON, too");
    assert_eq!(error["error"]["kind"], "starting");
    let list = near.json(&["pool", "list"]);
    assert!(list["incomplete"].to_string().contains("looking for disks"), "{list}");
    let list = near.any(&["snapshot", "list"]);
    assert!(said(&list).contains("no snapshots are known yet"), "{}", said(&list));
    assert!(said(&list).contains("may be incomplete"), "{}", said(&list));
    // Objects that were found are served, and objects that do not depend on disks are known.
    near.braid(&["volume", "show", "here/a"]);
    near.refused(3, &["export", "show", "nothing"]);

    let api = near.folder.join("api.sock");
    let head = run("curl", &["-s", "-i", "--unix-socket", &api, "http://braid/v1/pools/nothing"]);
    assert!(head.starts_with("HTTP/1.1 503") && head.to_lowercase().contains("retry-after: 1"), "{head}");
    let head = run("curl", &["-s", "-i", "--unix-socket", &api, "http://braid/v1/no-such-path"]);
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");

    // The server stops: its connections end, and the search gives the disk up. Then all objects are known again.
    drop(silent);
    std::fs::remove_file(&socket).expect("it is there");
    wait_within(PATIENCE * 2, "the end of the search", || {
        (!near.json(&["status"])["starting"].as_bool().expect("it is said")).then_some(())
    });
    near.refused(3, &["pool", "show", "nothing"]);
}
