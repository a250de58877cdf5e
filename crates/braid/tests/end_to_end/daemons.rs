//! The daemon's messages when it cannot start, or cannot store its state.

use std::fs;
use std::os::unix::net::UnixListener;
use std::process::Output;

use crate::support::*;

/// Runs `braid serve` in the folder of another daemon. It has to exit by itself with an error.
fn serve_and_fail(folder: &Folder, change: impl FnOnce(&mut std::process::Command)) -> Output {
    let mut command = serve(folder, &[]);
    change(&mut command);
    let mut limited = std::process::Command::new("timeout");
    limited.args(["--signal=KILL", "60"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            limited.env(name, value);
        }
    }
    let out = limited.stdin(std::process::Stdio::null()).output().expect("timeout runs");
    assert!(!out.status.success(), "{}", said(&out));
    assert!(out.status.code().is_some(), "it did not end by itself: {}", said(&out));
    assert!(!said(&out).contains("panicked"), "{}", said(&out));
    out
}

#[test]
fn a_second_daemon_on_the_same_state_is_refused_and_harms_nothing() {
    let mut daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 16 * MIB);
    daemon.array("data", "concat", &[&disk]);
    let out = serve_and_fail(&daemon.folder, |_| {});
    assert!(
        said(&out).contains(&daemon.folder.join("state")) || said(&out).contains(&daemon.folder.join("api.sock")),
        "{}",
        said(&out)
    );
    // Also with a socket of its own.
    let other = daemon.folder.join("other.sock");
    let out = serve_and_fail(&daemon.folder, |command| {
        command.env("BRAID_SOCKET", &other);
    });
    assert!(said(&out).contains(&daemon.folder.join("state")), "{}", said(&out));
    assert!(daemon.running.ended().is_none());
    assert_eq!(daemon.json(&["array", "show", "data"])["state"], "active");
}

#[test]
fn a_disk_that_another_daemon_has_open_is_refused() {
    let first = Daemon::start();
    let disk = first.folder.sparse("disk", 16 * MIB);
    first.array("data", "concat", &[&disk]);
    let second = Daemon::start();
    let refusal = second.refused(4, &["array", "create", "more", "--level", "concat", &disk, "--force"]);
    assert!(refusal.contains(&disk), "{refusal}");
}

#[test]
fn a_socket_with_a_listener_is_not_taken() {
    let folder = Folder::new();
    let socket = folder.join("api.sock");
    let listener = UnixListener::bind(&socket).expect("it can be bound");
    let out = serve_and_fail(&folder, |_| {});
    assert!(said(&out).contains(&socket), "{}", said(&out));
    drop(listener);
    // The socket of a dead daemon is no obstacle.
    assert!(fs::metadata(&socket).is_ok());
    let daemon = Daemon::start_in(folder, &[]);
    daemon.braid(&["status"]);
}

#[test]
fn an_export_on_a_taken_address_reports_so() {
    let daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 16 * MIB);
    daemon.braid(&["array", "create", "data", "--level", "concat", &disk]);
    let socket = daemon.nbd_socket("data");
    let _listener = UnixListener::bind(&socket).expect("it can be bound");
    let refusal = daemon.refused(4, &["export", "add", "data", "--nbd", &format!("unix:{socket}")]);
    assert!(refusal.contains(&socket), "{refusal}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback is there");
    let port = taken.local_addr().expect("it is bound").port();
    let refusal = daemon.refused(4, &["export", "add", "data", "--nbd", &format!("tcp:127.0.0.1:{port}")]);
    assert!(refusal.contains(&port.to_string()), "{refusal}");
    // The daemon does not remove a file that is no socket.
    let file = daemon.folder.noise("precious", 10, 1);
    daemon.any(&["export", "add", "data", "--nbd", &format!("unix:{file}")]);
    assert_eq!(fs::read(&file).expect("it is there"), noise(10, 1));
}

#[test]
fn a_state_folder_that_cannot_be_written_is_named() {
    need_root();
    let folder = Folder::new();
    // Root may write anywhere except on a read-only file system.
    let state = folder.join("state");
    fs::create_dir(&state).expect("a folder can be made");
    run("mount", &["-t", "tmpfs", "-o", "ro", "none", &state]);
    let out = serve_and_fail(&folder, |_| {});
    run("umount", &[&state]);
    assert!(said(&out).contains(&state), "{}", said(&out));
}

#[test]
fn a_user_without_rights_reads_which_are_missing() {
    need_root();
    let folder = Folder::new();
    let state = folder.join("state");
    fs::create_dir(&state).expect("a folder can be made");
    // The program lies where the user may read it; the folders belong to root.
    let program = folder.join("braid");
    fs::copy(BRAID, &program).expect("it can be copied");
    run("chmod", &["0755", folder.path().to_str().expect("UTF-8"), &program]);
    run("chmod", &["0700", &state]);
    let mut command = std::process::Command::new("timeout");
    command.args([
        "--signal=KILL",
        "60",
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        &program,
        "serve",
    ]);
    places(&mut command, &folder);
    let out = command.stdin(std::process::Stdio::null()).output().expect("timeout runs");
    assert!(out.status.code().is_some_and(|code| code != 0 && code != 137), "{}", said(&out));
    assert!(said(&out).contains(&state) && said(&out).to_lowercase().contains("permission"), "{}", said(&out));
}

#[test]
fn a_full_disk_loses_no_state() {
    need_root();
    let folder = Folder::new();
    let state = folder.join("state");
    fs::create_dir(&state).expect("a folder can be made");
    run("mount", &["-t", "tmpfs", "-o", "size=256k", "none", &state]);
    struct Unmount(String);
    impl Drop for Unmount {
        fn drop(&mut self) {
            let _ = command("umount").args(["-l", &self.0]).output();
        }
    }
    let unmount = Unmount(state.clone());
    let mut daemon = Daemon::start_in(folder, &[]);
    let disk = daemon.folder.sparse("disk", 16 * MIB);
    daemon.array("data", "concat", &[&disk]);
    let disk = daemon.folder.sparse("disk2", 16 * MIB);
    daemon.braid(&["array", "create", "more", "--level", "concat", &disk]);
    // Fills the remaining space.
    let filler = format!("{state}/filler");
    let _ = fs::write(&filler, vec![1; MIB as usize]);
    let out = daemon.any(&["export", "add", "more", "--nbd", &format!("unix:{}", daemon.nbd_socket("more"))]);
    assert!(!out.status.success(), "a change that cannot be stored is not acknowledged: {}", said(&out));
    assert!(said(&out).to_lowercase().contains("space"), "{}", said(&out));
    let disk = daemon.folder.sparse("disk3", 16 * MIB);
    let out = daemon.any(&["array", "create", "third", "--level", "concat", &disk]);
    assert!(out.status.success() || said(&out).to_lowercase().contains("space"), "{}", said(&out));
    // The existing state is still there, also after a restart with the disk still full.
    daemon.kill();
    daemon.start_again();
    assert_eq!(daemon.json(&["export", "show", "data"])["state"], "listening");
    drop(daemon);
    drop(unmount);
}

#[test]
fn a_damaged_state_file_is_reported_and_kept() {
    let mut daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 16 * MIB);
    daemon.array("data", "concat", &[&disk]);
    daemon.stop();
    let files: Vec<_> = fs::read_dir(daemon.folder.join("state"))
        .expect("the state is a folder")
        .filter_map(|entry| Some(entry.ok()?.path()).filter(|path| path.extension().is_some_and(|e| e == "json")))
        .collect();
    assert!(!files.is_empty(), "the state is JSON in a file");
    for file in &files {
        fs::write(file, b"{\"half a stat").expect("it can be written");
    }
    let out = serve_and_fail(&daemon.folder, |_| {});
    assert!(files.iter().any(|file| said(&out).contains(file.to_str().expect("UTF-8"))), "{}", said(&out));
    for file in &files {
        assert_eq!(fs::read(file).expect("it is there"), b"{\"half a stat", "what is damaged is not overwritten");
    }
}

#[test]
fn many_arrays_start_together() {
    let mut daemon = Daemon::start();
    let socket = format!("unix:{}", daemon.folder.join("all.nbd"));
    for i in 0..20 {
        let disk = daemon.folder.sparse(&format!("disk{i}"), 16 * MIB);
        daemon.braid(&["array", "create", &format!("a{i}"), "--level", "concat", &disk]);
        daemon.braid(&["export", "add", &format!("a{i}"), "--nbd", &socket]);
    }
    daemon.kill();
    daemon.start_again();
    let status = daemon.json(&["status"]);
    assert_eq!(status["arrays"]["serving"], 20, "{status}");
    assert_eq!(status["exports"]["serving"], 20, "{status}");
}
