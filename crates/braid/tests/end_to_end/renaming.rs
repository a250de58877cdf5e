//! Exports are renamed: which names are valid, which clients are disconnected, and what persists after a kill.

use crate::nbd::Client;
use crate::support::*;

fn two_exports() -> Daemon {
    let daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 32 * MIB);
    daemon.braid(&["array", "create", "data", "--level", "concat", &disk]);
    // Both exports have one address: only their names distinguish them.
    let address = format!("unix:{}", daemon.nbd_socket("all"));
    daemon.braid(&["export", "add", "data", "--nbd", &address, "--name", "one"]);
    daemon.braid(&["export", "add", "data", "--nbd", &address, "--name", "two", "--read-only"]);
    daemon
}

/// Returns the names that clients are offered.
#[track_caller]
fn offered(daemon: &Daemon) -> Vec<String> {
    let list = run("nbdinfo", &["--list", "--json", &format!("nbd+unix:///?socket={}", daemon.nbd_socket("all"))]);
    let list: serde_json::Value = serde_json::from_str(&list).expect("nbdinfo prints JSON");
    let exports = list["exports"].as_array().expect("a list");
    exports.iter().map(|export| export["export-name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn a_renamed_export_keeps_its_name_over_a_kill() {
    let mut daemon = two_exports();
    let before = daemon.json(&["export", "show", "one"]);
    let said = daemon.braid(&["export", "rename", "one", "uno"]);
    assert!(said.contains("uno"), "{said}");
    assert_eq!(offered(&daemon), ["two", "uno"]);
    let after = daemon.json(&["export", "show", "uno"]);
    for field in ["uuid", "array", "nbd", "read_only", "state", "size_bytes"] {
        assert_eq!(after[field], before[field], "{field}");
    }
    daemon.refused(3, &["export", "show", "one"]);
    assert!(Client::open(&daemon.nbd_socket("all"), "one").is_err(), "the old name is free");
    // An export can be named by its UUID, and renamed to the name that it has.
    daemon.braid(&["export", "rename", after["uuid"].as_str().expect("a UUID"), "eins"]);
    daemon.braid(&["export", "rename", "eins", "eins"]);
    assert!(daemon.events().contains("export uno is now called eins"), "{}", daemon.events());
    for kill in [true, false] {
        daemon.restart(kill);
        assert_eq!(offered(&daemon), ["eins", "two"]);
        let mut client = Client::open(&daemon.nbd_socket("all"), "eins").expect("it is served");
        client.write(0, &[1; 4096]).expect("it writes");
    }
    // The old name is free again.
    let address = format!("unix:{}", daemon.nbd_socket("all"));
    daemon.braid(&["export", "add", "data", "--nbd", &address, "--name", "one"]);
}

#[test]
fn invalid_and_taken_names_are_refused_and_change_nothing() {
    let daemon = two_exports();
    let taken = daemon.refused(4, &["export", "rename", "one", "two"]);
    assert!(taken.contains("two") && taken.contains("already"), "{taken}");
    // Names of volumes have one slash.
    let wrong = daemon.refused(2, &["export", "rename", "one", "a/b/c"]);
    assert!(wrong.contains("a/b/c") && wrong.contains("backup-2"), "{wrong}");
    daemon.refused(3, &["export", "rename", "absent", "three"]);
    assert_eq!(offered(&daemon), ["one", "two"]);
}

#[test]
fn an_export_in_use_is_renamed_only_by_force_and_other_exports_go_on() {
    let daemon = two_exports();
    let mut user = Client::open(&daemon.nbd_socket("all"), "one").expect("it is served");
    let mut neighbour = Client::open(&daemon.nbd_socket("all"), "two").expect("it is served");
    user.write(0, &noise(4096, 1)).expect("it writes");
    let refusal = daemon.refused(4, &["export", "rename", "one", "uno"]);
    assert!(refusal.contains("one") && refusal.contains("1 client") && refusal.contains("--force"), "{refusal}");
    user.write(4096, &noise(4096, 2)).expect("a refusal disconnects no client");
    assert_eq!(offered(&daemon), ["one", "two"]);

    daemon.braid(&["export", "rename", "one", "uno", "--force"]);
    assert_eq!(offered(&daemon), ["two", "uno"]);
    assert!(user.read(0, 4096).is_err(), "who had it open under the old name is disconnected");
    assert_eq!(neighbour.read(0, 4096).expect("the other export goes on"), noise(4096, 1));
    let mut user = Client::open(&daemon.nbd_socket("all"), "uno").expect("it is served");
    assert_eq!(user.read(4096, 4096).expect("it reads"), noise(4096, 2));
}

#[test]
fn a_waiting_export_can_be_renamed() {
    let daemon = two_exports();
    daemon.braid(&["array", "stop", "data", "--force"]);
    daemon.braid(&["export", "rename", "two", "deux"]);
    assert_eq!(daemon.json(&["export", "show", "deux"])["state"], "waiting");
    daemon.braid(&["array", "assemble", "data"]);
    assert_eq!(offered(&daemon), ["deux", "one"]);
    assert_eq!(daemon.json(&["export", "show", "deux"])["read_only"], true);
}

#[test]
fn of_concurrent_renames_to_one_name_one_succeeds() {
    let daemon = two_exports();
    // Both exports are renamed to the same name: one command succeeds.
    let racers: Vec<_> = (0..8)
        .map(|i| {
            let old = if i % 2 == 0 { "one" } else { "two" };
            let mut command = daemon.command(&["export", "rename", old, "only"]);
            let quiet = || std::process::Stdio::null();
            command.stdout(quiet()).stderr(quiet()).spawn().expect("braid can be started")
        })
        .collect();
    let ends = racers.into_iter().map(|mut racer| racer.wait().expect("it is our child").success());
    let won = ends.filter(|won| *won).count();
    assert_eq!(won, 1, "one of them renames; the others find the name taken, or the export gone");
    let names = offered(&daemon);
    assert!(names.len() == 2 && names.contains(&"only".to_owned()), "{names:?}");
}
