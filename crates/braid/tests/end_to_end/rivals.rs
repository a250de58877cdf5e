//! Concurrent API clients that request what only one can have, and unresponsive processes on the same machine.

use std::process::Child;

use crate::nbd::Client;
use crate::support::*;

fn spawn(daemon: &Daemon, arguments: &[&str]) -> Child {
    daemon
        .command(arguments)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("braid")
}

fn succeeds(mut child: Child) -> bool {
    child.wait().expect("it is our child").success()
}

#[test]
fn of_concurrent_creates_on_one_file_one_succeeds_and_keeps_it() {
    let mut daemon = Daemon::start();
    let mut won = Vec::new();
    for round in 0..8 {
        let file = daemon.folder.join(&format!("disk{round}"));
        let disk = format!("file:{file},size=16M");
        let names: Vec<String> = (0..3).map(|i| format!("a{round}-{i}")).collect();
        let racers: Vec<Child> =
            names.iter().map(|name| spawn(&daemon, &["array", "create", name, "--level", "concat", &disk])).collect();
        let ends: Vec<bool> = racers.into_iter().map(succeeds).collect();
        assert_eq!(ends.iter().filter(|won| **won).count(), 1, "round {round}: {ends:?}");
        assert!(std::fs::metadata(&file).is_ok(), "round {round}: the loser removed the winner's file");
        won.extend(names.into_iter().zip(ends).filter(|(_, won)| *won).map(|(name, _)| name));
    }
    daemon.kill();
    daemon.start_again();
    for name in won {
        assert_eq!(daemon.json(&["array", "show", &name])["state"], "active", "{name}");
    }
}

#[test]
fn an_export_never_outlives_its_array() {
    let daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 16 * MIB);
    daemon.braid(&["array", "create", "data", "--level", "concat", &disk]);
    for round in 0..12 {
        let name = format!("e{round}");
        let address = format!("unix:{}", daemon.nbd_socket(&name));
        let stop = spawn(&daemon, &["array", "stop", "data", "--force"]);
        let add = spawn(&daemon, &["export", "add", "data", "--nbd", &address, "--name", &name]);
        assert!(succeeds(stop), "round {round}: a forced stop succeeds");
        let added = succeeds(add);
        for export in daemon.json(&["export", "list"])["exports"].as_array().expect("a list") {
            assert_eq!(export["state"], "waiting", "round {round}: {export}");
        }
        if added {
            assert!(Client::open(&daemon.nbd_socket(&name), &name).is_err(), "round {round}: nothing is behind it");
            daemon.braid(&["export", "remove", &name]);
        }
        daemon.braid(&["array", "assemble", "data"]);
    }
}

#[test]
fn a_socket_whose_owner_accepts_no_connection_does_not_block_the_daemon() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
    let daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 16 * MIB);
    daemon.braid(&["array", "create", "data", "--level", "concat", &disk]);
    let path = daemon.folder.join("deaf.sock");
    let address = SocketAddrUnix::new(&path).expect("it is short");
    let socket = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("sockets can be made")
    };
    let deaf = socket();
    bind(&deaf, &address).and_then(|()| listen(&deaf, 0)).expect("it can be bound");
    let mut queued = Vec::new();
    loop {
        let client = socket();
        match connect(&client, &address) {
            Ok(()) => queued.push(client),
            Err(rustix::io::Errno::AGAIN) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let refusal = daemon.refused(4, &["export", "add", "data", "--nbd", &format!("unix:{path}")]);
    assert!(refusal.contains(&path) && refusal.contains("another process listens"), "{refusal}");
    daemon.export("data");
}
