//! `braid.toml`: its settings apply, flags and variables override them, and errors in it are reported.

use std::fs;
use std::process::{Command, Output};

use crate::support::*;

/// Runs `braid serve` with this configuration. The daemon has to exit by itself with `status`, and change nothing.
#[track_caller]
fn refused(text: &[u8], status: i32) -> String {
    let folder = Folder::new();
    fs::write(folder.join("braid.toml"), text).expect("a file can be written");
    let out = ended(&mut serve(&folder, &[]));
    assert_eq!(out.status.code(), Some(status), "{}", said(&out));
    assert!(fs::metadata(folder.join("state")).is_err(), "a daemon with an invalid configuration changes nothing");
    assert!(said(&out).contains(&folder.join("braid.toml")), "{}", said(&out));
    said(&out)
}

/// Runs a command that has to exit by itself.
fn ended(command: &mut Command) -> Output {
    let mut limited = Command::new("timeout");
    limited.args(["--signal=KILL", "60"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited.stdin(std::process::Stdio::null()).output().expect("timeout runs")
}

#[test]
fn the_configuration_applies_and_a_flag_overrides_it() {
    let folder = Folder::new();
    fs::write(
        folder.join("braid.toml"),
        "# Two small shards.\nshards = 2\ndriver = \"threads\"\nbuffers = \"2M\"\nlog_format = \"json\"\n",
    )
    .expect("a file can be written");
    let mut daemon = Daemon::start_in(folder, &[]);
    let status = daemon.json(&["status"]);
    assert_eq!(status["shards"].as_array().map(Vec::len), Some(2), "{status}");
    assert_eq!(status["shards"][0]["driver"], "threads", "{status}");
    let log = daemon.running.log();
    let lines = log.lines().map(serde_json::from_str::<serde_json::Value>);
    assert!(lines.clone().count() > 0 && lines.clone().all(|line| line.is_ok()), "{log}");
    daemon.stop();

    let daemon = Daemon::start_in(daemon.folder, &["--shards", "1", "--log-format", "text"]);
    let status = daemon.json(&["status"]);
    assert_eq!(status["shards"].as_array().map(Vec::len), Some(1), "{status}");
    assert_eq!(status["shards"][0]["driver"], "threads", "the rest is still the file's: {status}");
}

#[test]
fn paths_come_from_the_flag_then_the_environment_then_the_file() {
    let folder = Folder::new();
    let (socket, state) = (folder.join("from-file.sock"), folder.join("from-file"));
    fs::write(folder.join("other.toml"), format!("socket = \"{socket}\"\nstate = \"{state}\"\n"))
        .expect("a file can be written");
    let other = folder.join("other.toml");
    let mut first = serve(&folder, &["--config".to_owned(), other.clone()]);
    first.env_remove("BRAID_SOCKET").env_remove("BRAID_STATE");
    let mut running = Running::start(&folder, "first", &mut first);
    // A command finds the daemon by the same configuration file.
    let status = |variable: Option<&str>| {
        let mut command = command(BRAID);
        command.args(["status", "--json"]).env("BRAID_CONFIG", &other).env_remove("BRAID_SOCKET");
        if let Some(socket) = variable {
            command.env("BRAID_SOCKET", socket);
        }
        let out = command.output().expect("braid can be started");
        serde_json::from_slice::<serde_json::Value>(&out.stdout).ok().filter(|_| out.status.success())
    };
    let found = wait_for("the daemon to answer", || status(None));
    assert_eq!((found["socket"].as_str(), found["state_directory"].as_str()), (Some(&*socket), Some(&*state)));
    running.terminate();
    assert!(running.wait().success(), "{}", running.log());

    // The environment overrides the file, and the flag overrides both.
    let flag = folder.join("from-flag");
    let mut second = serve(&folder, &["--config".to_owned(), other.clone(), "--state".to_owned(), flag.clone()]);
    second.env("BRAID_STATE", folder.join("from-variable"));
    let mut running = Running::start(&folder, "second", &mut second);
    let variable = folder.join("api.sock");
    let found = wait_for("the daemon to answer", || status(Some(&variable)));
    assert_eq!((found["socket"].as_str(), found["state_directory"].as_str()), (Some(&*variable), Some(&*flag)));
    running.terminate();
    assert!(running.wait().success(), "{}", running.log());
}

#[test]
fn an_invalid_configuration_is_refused_with_line_key_reason_and_a_valid_example() {
    let cases: &[(&[u8], &[&str])] = &[
        (b"\nlog-level = \"info\"\n", &["line 2", "log-level", "no such key", "log_level = \"info\""]),
        (b"shards = \"four\"\n", &["line 1", "shards", "whole number from 1 to 256", "shards = 4"]),
        (b"shards = 4\nsocket = \"here\n", &["line 2", "socket", "TOML", "socket = \"/run/braid/braid.sock\""]),
        (b"state = \"folder\"\n", &["line 1", "state", "absolute", "state = \"/var/lib/braid\""]),
        (b"\xff\xfe\n", &["line 1", "UTF-8"]),
    ];
    for (text, words) in cases {
        let message = refused(text, 2);
        for word in *words {
            assert!(message.contains(word), "{word:?} is not in: {message}");
        }
        assert!(!message.contains("panicked"), "{message}");
    }
    refused(&vec![b'#'; 3 * MIB as usize], 2);
}

#[test]
fn a_named_configuration_has_to_exist() {
    let folder = Folder::new();
    let missing = folder.join("absent.toml");
    let by_flag = ended(&mut serve(&folder, &["--config".to_owned(), missing.clone()]));
    let mut command = serve(&folder, &[]);
    let by_variable = ended(command.env("BRAID_CONFIG", &missing));
    for (out, option) in [(by_flag, "--config"), (by_variable, "BRAID_CONFIG")] {
        assert_eq!(out.status.code(), Some(3), "{}", said(&out));
        assert!(said(&out).contains(&missing) && said(&out).contains(option), "{}", said(&out));
    }
    // A folder is not a configuration file.
    let out = ended(&mut serve(&folder, &["--config".to_owned(), folder.join(".")]));
    assert_eq!(out.status.code(), Some(1), "{}", said(&out));
    assert!(said(&out).contains("cannot be read"), "{}", said(&out));
}

#[test]
fn the_default_configuration_file_is_optional() {
    need_root();
    let folder = Folder::new();
    // As another user, whose default configuration path is below a folder of this test.
    let program = folder.join("braid");
    fs::copy(BRAID, &program).expect("it can be copied");
    run("chmod", &["0777", folder.path().to_str().expect("UTF-8")]);
    run("chmod", &["0755", &program]);
    let serve = || {
        let mut command = command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--pdeathsig", "KILL", &program, "serve"]);
        places(&mut command, &folder);
        command.env_remove("BRAID_CONFIG").env("XDG_CONFIG_HOME", folder.join("config"));
        command
    };
    let mut running = Running::start(&folder, "without", &mut serve());
    wait_for("the daemon to answer", || std::os::unix::net::UnixStream::connect(folder.join("api.sock")).ok());
    running.terminate();
    assert!(running.wait().success(), "{}", running.log());

    fs::create_dir_all(folder.join("config/braid")).expect("a folder can be made");
    fs::write(folder.join("config/braid/braid.toml"), "drivers = 1\n").expect("a file can be written");
    let out = ended(&mut serve());
    assert_eq!(out.status.code(), Some(2), "{}", said(&out));
    assert!(said(&out).contains("config/braid/braid.toml, line 1: drivers"), "{}", said(&out));
}
