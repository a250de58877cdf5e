//! Mounts in every state: the text, the JSON and the exit status of `braid mount` and `braid umount` agree with those
//! of exports, volumes and snapshots, by the checker of `every_state.rs`.

use std::fs;

use serde_json::{Value, json};

use crate::every_state::{CommandChecker, Outcome};
use crate::every_state_words::*;
use crate::support::*;

/// While nothing is mounted, and the volume is empty. `{at}` and `{beside}` are folders.
const UNMOUNTED: &[Refusal] = &[
    (3, "tank/db holds no file system", "mount tank/db {at}"),
    (3, "tank/none", "mount tank/none {at}"),
    (3, "/not/there", "mount tank/db /not/there"),
    (3, "/not/there", "umount /not/there"),
    (2, "another sector size", "mount tank/db {at} --via ublk --sector-size 512"),
];

/// While the volume and its snapshot are mounted.
const MOUNTED: &[Refusal] = &[
    (4, "tank/db is mounted at", "mount tank/other {at}"),
    (4, "tank/db@one is mounted at", "mount tank/db {beside}"),
    (4, "tank/db.mount", "export remove tank/db.mount"),
    (4, "tank/db@one.mount", "export remove tank/db@one.mount"),
    (4, "tank/db", "volume delete tank/db --yes"),
    (4, "tank/db", "volume rollback tank/db @one --yes"),
    (4, "tank/db@one", "snapshot delete tank/db@one --yes"),
];

/// While a file of the mount is open.
const BUSY: &[Refusal] = &[(4, "cannot be unmounted", "umount {at}")];

/// While another program's file system is mounted.
const FOREIGN: &[Refusal] = &[(2, "no export of this daemon", "umount {at}"), (4, "tmpfs", "mount tank/db {at}")];

/// Returns the command lines of this file, for the list of all commands.
pub fn templates() -> Vec<&'static str> {
    [UNMOUNTED, MOUNTED, BUSY, FOREIGN].into_iter().flatten().map(|(.., typed)| *typed).collect()
}

/// A daemon with a checker, and two mount points. Dropping it unmounts what is left.
struct Rig {
    daemon: Daemon,
    checker: CommandChecker,
    at: String,
    beside: String,
    state: &'static str,
}

impl Rig {
    fn new() -> Rig {
        need_root();
        let daemon = Daemon::start();
        let disk = daemon.folder.sparse("a.img", 2 << 30);
        daemon.braid(&["pool", "create", "tank", &disk]);
        for volume in ["tank/db", "tank/other"] {
            daemon.braid(&["volume", "create", volume, "64M"]);
        }
        let [at, beside] = ["at", "beside"].map(|name| daemon.folder.join(name));
        fs::create_dir(&at).and_then(|()| fs::create_dir(&beside)).expect("folders can be made");
        let checker = CommandChecker::of(&daemon);
        Rig { daemon, checker, at, beside, state: "made" }
    }

    fn run(&mut self, template: &str) -> Outcome {
        let typed = template.replace("{at}", &self.at).replace("{beside}", &self.beside);
        self.checker.check(&self.daemon, self.state, &typed)
    }

    #[track_caller]
    fn query(&mut self, template: &str) -> Outcome {
        let outcome = self.run(template);
        assert!(!outcome.changed && outcome.error().is_none(), "{}: {}", outcome.context, outcome.document);
        outcome
    }

    #[track_caller]
    fn changed(&mut self, template: &str) -> Value {
        let outcome = self.run(template);
        assert!(outcome.changed, "{}: {}", outcome.context, outcome.document);
        outcome.document
    }

    fn refused(&mut self, refusals: &[Refusal]) {
        for (status, object, template) in refusals {
            is_refused(&self.run(template), *status, object);
        }
    }

    /// Checks a mount: mounting again changes nothing, in JSON and as text, and its export reports the same.
    fn mounted(&mut self, name: &str, made: &Value) {
        let (folder, device, fs) = (text(made, "folder"), text(made, "device"), text(made, "fs"));
        let (export, via) = (text(made, "export"), text(made, "via"));
        assert_eq!((text(made, "name"), export), (name, format!("{name}.mount").as_str()), "{made}");
        let again = self.changed(&format!("mount {name} {folder}"));
        let mut expected = made.clone();
        for (key, value) in [("was_mounted", json!(true)), ("made_fs", json!(false)), ("options", Value::Null)] {
            expected[key] = value;
        }
        assert_eq!(again, expected);
        let words = self.daemon.braid(&["mount", name, folder]);
        assert_eq!(words, format!("{name} is mounted at {folder} already ({fs}; {device})\n"));
        let mounts = fs::read_to_string("/proc/mounts").expect("mounts can be read");
        assert!(mounts.contains(&format!("{device} {folder} {fs} ")), "{made}: {mounts}");

        let shown = self.query(&format!("export show {export}"));
        let read_only = name.contains('@');
        let reported = (text(&shown.document, "array"), text(&shown.document, "state"), &shown.document["read_only"]);
        assert_eq!(reported, (name, "listening", &json!(read_only)), "{}", shown.context);
        let address = text(&shown.document, "nbd");
        let begins = if via == "nbd" { "unix:".to_owned() } else { format!("{via}:") };
        assert!(address.starts_with(&begins), "{made}: {address}");
        let mode = if read_only { "mode read-only" } else { "mode read-write" };
        let of = format!("of {name} ({})", text(&shown.document, "array_uuid"));
        let printed_lines = lines(&shown.text);
        for line in [of, mode.to_owned(), "state listening".to_owned(), format!("address {address}")] {
            assert!(printed_lines.contains(&line), "{}: no line {line:?} in {}", shown.context, shown.text);
        }
        let of = if read_only { "snapshot" } else { "volume" };
        let shown = self.query(&format!("{of} show {name}"));
        assert_eq!(shown.document["exports"], json!([export]), "{}", shown.context);
        assert!(lines(&shown.text).contains(&format!("exports {export}")), "{}: {}", shown.context, shown.text);
    }

    /// Checks that nothing is mounted at a folder, in JSON and as text.
    fn unmounted(&mut self, folder: &str) {
        let again = self.changed(&format!("umount {folder}"));
        assert_eq!(again, json!({"folder": folder, "name": null, "removed_export": null}));
        let words = self.daemon.braid(&["umount", folder]);
        assert_eq!(words, format!("nothing is mounted at {folder}\n"));
    }

    /// Checks the number of exports, and that nothing needs attention.
    fn well(&mut self, exports: usize) {
        let list = self.query("export list");
        assert_eq!(items(&list.document, "exports").len(), exports, "{}: {}", list.context, list.document);
        let status = self.query("status --check");
        assert_eq!((status.status, &status.document), (0, &json!([])), "{}", status.context);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for at in [&self.at, &self.beside] {
            if fs::read_to_string("/proc/mounts").is_ok_and(|mounts| mounts.contains(at)) {
                // Removes the device and the export with it, where the daemon still can.
                if !self.daemon.any(&["umount", at]).status.success() {
                    let _ = command("umount").args(["-l", at]).output();
                }
            }
        }
    }
}

#[test]
fn every_command_agrees_about_mounts_in_every_state() {
    let mut rig = Rig::new();
    rig.state = "not mounted";
    rig.refused(UNMOUNTED);
    let folder = fs::canonicalize(&rig.at).expect("it is there").to_str().expect("a path in UTF-8").to_owned();
    rig.unmounted(&folder);
    rig.well(0);

    rig.state = "mounted";
    let made = rig.changed("mount tank/db {at} --mkfs");
    let facts = [&made["made_fs"], &made["was_mounted"], &made["fs"], &made["sector_bytes"]];
    assert_eq!(facts, [&json!(true), &json!(false), &json!("ext4"), &json!(4096)], "{made}");
    assert_eq!(text(&made, "folder"), folder, "{made}");
    rig.mounted("tank/db", &made);
    rig.well(1);

    rig.state = "mounted, and so is its snapshot";
    let file = format!("{}/precious", rig.at);
    fs::write(&file, "written").expect("it can be written");
    let taken = rig.changed("snapshot create tank/db@one");
    assert_eq!((&taken["frozen"], &taken["not_frozen"]), (&json!([folder]), &json!([])), "{taken}");
    let shown = rig.query("snapshot show tank/db@one");
    assert_eq!(text(&shown.document, "consistency"), "frozen", "{}", shown.context);
    let line = "consistency frozen: its file system was frozen while it was taken".to_owned();
    assert!(lines(&shown.text).contains(&line), "{}: {}", shown.context, shown.text);
    let made = rig.changed("mount tank/db@one {beside}");
    assert!(text(&made, "options").split(',').any(|option| option == "ro"), "{made}");
    rig.mounted("tank/db@one", &made);
    rig.well(2);
    rig.refused(MOUNTED);
    let open = fs::File::open(&file).expect("it can be opened");
    rig.refused(BUSY);
    drop(open);

    rig.state = "unmounted";
    let beside = text(&made, "folder").to_owned();
    let gone = rig.changed("umount {beside}");
    assert_eq!(gone, json!({"folder": beside, "name": "tank/db@one", "removed_export": "tank/db@one.mount"}));
    let words = rig.daemon.braid(&["umount", &folder]);
    assert_eq!(words, format!("unmounted tank/db from {folder}\n"));
    for folder in [&folder, &beside] {
        rig.unmounted(folder);
    }
    rig.well(0);
    for (of, name) in [("volume", "tank/db"), ("snapshot", "tank/db@one")] {
        let shown = rig.query(&format!("{of} show {name}"));
        assert_eq!(shown.document["exports"], json!([]), "{}", shown.context);
        assert!(lines(&shown.text).contains(&"exports none".to_owned()), "{}: {}", shown.context, shown.text);
        is_refused(&rig.run(&format!("export show {name}.mount")), 3, name);
    }

    rig.state = "mounted over by something else";
    run("mount", &["-t", "tmpfs", "none", &rig.at]);
    rig.refused(FOREIGN);
    run("umount", &[&rig.at]);
}
