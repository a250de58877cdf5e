//! The command line at a terminal: a pseudo-terminal whose screen the test reads.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::support::*;

/// A process at a terminal of its own.
struct Terminal {
    master: File,
    slave: OwnedFd,
    child: Child,
    before: Termios,
    /// The screen, and everything that was printed.
    seen: Arc<Mutex<(vt100::Parser, Vec<u8>)>>,
}

impl Terminal {
    #[track_caller]
    fn start(
        daemon: &Daemon,
        (columns, rows): (u16, u16),
        program: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a pseudo-terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("it is ours");
        let name = ptsname(&master, Vec::new()).expect("it has a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(&name, flags, Mode::empty()).expect("it can be opened");
        tcsetwinsize(&master, size(columns, rows)).expect("it has a size");
        let before = tcgetattr(&slave).expect("it is a terminal");
        // A session of its own, so that the process gets a signal when the size changes.
        let mut command: Command = command("setsid");
        command.arg("--ctty").arg(program).args(arguments).env("TERM", "xterm-256color");
        command.env_remove("NO_COLOR").env_remove("COLUMNS");
        places(&mut command, &daemon.folder);
        command.envs(environment.iter().copied());
        let end = || slave.try_clone().expect("a descriptor can be copied");
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("it can be started");
        let seen = Arc::new(Mutex::new((vt100::Parser::new(rows, columns, 0), Vec::new())));
        let master = File::from(master);
        let (mut reader, into) = (master.try_clone().expect("a descriptor can be copied"), Arc::clone(&seen));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                let mut seen = into.lock().unwrap_or_else(PoisonError::into_inner);
                seen.0.process(&buffer[..n]);
                seen.1.extend_from_slice(&buffer[..n]);
            }
        });
        Terminal { master, slave, child, before, seen }
    }

    fn screen<T>(&self, look: impl FnOnce(&vt100::Screen) -> T) -> T {
        look(self.seen.lock().unwrap_or_else(PoisonError::into_inner).0.screen())
    }

    fn text(&self) -> String {
        self.screen(vt100::Screen::contents)
    }

    /// Returns everything that was printed, as bytes of a terminal.
    fn printed(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap_or_else(PoisonError::into_inner).1).into_owned()
    }

    #[track_caller]
    fn wait_for_text(&self, what: &str) {
        let found = || self.text().contains(what).then_some(());
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wait_for(what, found))).is_err() {
            panic!("{what:?} did not come:\n{}", self.text());
        }
    }

    fn type_in(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("it takes keys");
    }

    fn resize(&self, columns: u16, rows: u16) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).0.screen_mut().set_size(rows, columns);
        tcsetwinsize(&self.master, size(columns, rows)).expect("it takes a size");
    }

    #[track_caller]
    fn wait(&mut self) -> ExitStatus {
        wait_for("the program to end", || self.child.try_wait().expect("it is our child"))
    }

    /// Checks that the terminal has its original settings.
    #[track_caller]
    fn is_given_back(&self) {
        let now = tcgetattr(&self.slave).expect("it is still a terminal");
        assert_eq!(now.local_modes, self.before.local_modes);
        assert_eq!(now.input_modes, self.before.input_modes);
        assert_eq!(now.output_modes, self.before.output_modes);
        wait_for("the screen to be given back", || {
            self.screen(|screen| (!screen.alternate_screen() && !screen.hide_cursor()).then_some(()))
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Runs `braid ARGUMENTS` to its end at a terminal of 80 columns. Returns its status and what it printed.
#[track_caller]
fn at_terminal(daemon: &Daemon, arguments: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut terminal = Terminal::start(daemon, (80, 200), BRAID, arguments, environment);
    let status = terminal.wait();
    // The last output may still be on its way.
    let mut before = None;
    let printed = wait_for("the end of the output", || {
        thread::sleep(std::time::Duration::from_millis(50));
        let now = terminal.printed();
        (before.replace(now.len()) == Some(now.len())).then_some(now)
    });
    (status.code(), printed)
}

/// Removes the escape sequences of colours.
fn plain(printed: &str) -> String {
    let mut text = String::new();
    let mut parts = printed.split("\x1b[");
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        text.push_str(part.split_once('m').map_or(part, |(_, rest)| rest));
    }
    text.replace('\r', "")
}

#[test]
fn status_shows_at_a_glance_the_health_and_the_remedy() {
    let mut daemon = Daemon::start();
    assert!(daemon.braid(&["status"]).starts_with("All is well."));
    let (one, two) = (daemon.folder.sparse("one", 32 * MIB), daemon.folder.sparse("two", 32 * MIB));
    daemon.array("data", "raid0", &[&one, &two]);
    let text = daemon.braid(&["status"]);
    assert!(text.starts_with("All is well.\n") && text.contains("1 of 1 active"), "{text}");
    assert_eq!(daemon.braid(&["status", "--check"]), "All is well.\n");
    daemon.stop();
    std::fs::create_dir(daemon.folder.join("elsewhere")).expect("a folder can be made");
    let moved = daemon.folder.join("elsewhere/two");
    std::fs::rename(&two, &moved).expect("it is ours");
    daemon.start_again();
    let text = daemon.braid(&["status"]);
    assert!(text.starts_with("1 thing needs attention.\n\n1. array data: "), "{text}");
    assert!(text.contains("1 export of it waits") && text.contains(&two), "{text}");
    let command = "braid array assemble data --disk DISK";
    assert!(text.lines().any(|line| line.trim() == command), "{text}");
    let out = daemon.any(&["status", "--check"]);
    assert_eq!(out.status.code(), Some(5), "{}", said(&out));
    // The command that the status names works.
    let typed: Vec<&str> = command.split(' ').skip(1).map(|word| if word == "DISK" { &moved } else { word }).collect();
    daemon.braid(&typed);
    assert!(daemon.braid(&["status"]).starts_with("All is well.\n"));
}

#[test]
fn tables_fit_the_terminal_and_are_uncut_elsewhere() {
    let daemon = Daemon::start();
    let name = "n".repeat(63);
    let disks: Vec<String> =
        (0..3).map(|i| daemon.folder.sparse(&format!("{i}{}", "d".repeat(90)), 16 * MIB)).collect();
    let mut arguments = vec!["array", "create", &name, "--level", "raid0"];
    arguments.extend(disks.iter().map(String::as_str));
    daemon.braid(&arguments);
    let (export, address) = ("e".repeat(63), format!("unix:{}", daemon.nbd_socket("x")));
    daemon.braid(&["export", "add", &name, "--nbd", &address, "--name", &export]);
    let commands: [&[&str]; 9] = [
        &["array", "list"],
        &["array", "show", &name],
        &["export", "list"],
        &["disk", "list"],
        &["status"],
        &["status", "--limits"],
        &["top", "--once", "--interval", "100ms"],
        &["plan", "50G", "100G", "100G"],
        &["--help"],
    ];
    for command in commands {
        let (status, printed) = at_terminal(&daemon, command, &[]);
        let text = plain(&printed);
        assert_eq!(status, Some(0), "{command:?}: {text}");
        let long = text.lines().find(|line| line.chars().count() > 80);
        assert_eq!(long, None, "braid {}:\n{text}", command.join(" "));
    }
    // COLUMNS overrides the width: a wider table has space for the name.
    let (_, printed) = at_terminal(&daemon, &["array", "list"], &[("COLUMNS", "240")]);
    let text = plain(&printed);
    assert!(text.contains(&name) && text.lines().all(|line| line.chars().count() <= 240), "{text}");
    // Without a terminal nothing is wrapped or cut.
    let whole: [(&[&str], &str); 5] = [
        (&["array", "list"], &name),
        (&["array", "show", &name], &disks[0]),
        (&["export", "list"], &export),
        (&["status"], &disks[0]),
        (&["top", "--once", "--interval", "100ms"], &export),
    ];
    for (command, word) in whole {
        let out = daemon.command(command).env("COLUMNS", "40").output().expect("braid can be started");
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(text.contains(word) && !text.contains('…'), "braid {}:\n{text}", command.join(" "));
    }
    for list in ["array", "export"] {
        assert_eq!(daemon.braid(&[list, "list"]).lines().count(), 2, "a heading and a line");
    }
}

#[test]
fn colour_is_used_only_at_a_terminal_unless_configured_otherwise() {
    let daemon = Daemon::start();
    daemon.braid(&["array", "create", "data", "--level", "raid0", "mem:64M", "mem:64M"]);
    let colour = "\x1b[";
    let commands =
        [&["status"][..], &["--help"], &["array", "nonsense"], &["array", "list"], &["array", "show", "data"]];
    for command in commands {
        let with = |further: &[&'static str]| [command, further].concat();
        let at = |arguments: &[&str], environment: &[(&str, &str)]| {
            at_terminal(&daemon, arguments, environment).1.contains(colour)
        };
        assert!(at(&with(&[]), &[]), "{command:?}");
        assert!(!at(&with(&[]), &[("NO_COLOR", "1")]), "{command:?}");
        assert!(!at(&with(&["--color", "never"]), &[]), "{command:?}");
        assert!(at(&with(&["--color=always"]), &[("NO_COLOR", "1")]), "{command:?}");
        let piped = |arguments: &[&str]| said(&daemon.any(arguments)).contains(colour);
        assert!(!piped(&with(&[])) && !piped(&with(&["--color", "auto"])), "{command:?}");
        assert!(piped(&with(&["--color", "always"])), "{command:?}");
    }
}

#[test]
fn top_shows_activity_and_restores_the_terminal() {
    let mut daemon = Daemon::start();
    let uri = daemon.array("data", "raid0", &["mem:64M", "mem:64M"]);
    let mut top = Terminal::start(&daemon, (100, 30), BRAID, &["top", "--interval", "200ms"], &[]);
    top.wait_for_text("All is well.");
    top.wait_for_text("data");
    assert!(top.screen(vt100::Screen::alternate_screen));
    // While a client reads, its export, its array and its disks show the activity.
    let bench = ["bench", "--op", "read", "--time", "60s", &uri];
    let busy = Running::start(&daemon.folder, "bench", &mut daemon.command(&bench));
    let reads = |screen: &vt100::Screen| {
        let lines: Vec<String> = screen.contents().lines().map(str::to_owned).collect();
        let busy = |line: &&String| line.split_whitespace().nth(1).is_some_and(|reads| reads.ends_with(['k', 'M']));
        lines.iter().filter(busy).count()
    };
    wait_for("reads of one export, one array and two disks", || (top.screen(reads) >= 4).then_some(()));
    drop(busy);
    // On a smaller screen nothing is shown beside it; the heading is where it was.
    top.resize(64, 12);
    top.wait_for_text("q quits");
    wait_for("the small screen", || {
        let text = top.text();
        (text.lines().count() <= 12
            && text.lines().nth(2).is_some_and(|l| l.starts_with("EXPORT") && l.trim_end().ends_with("CONN")))
        .then_some(())
    });
    // A stopped daemon is reported, and waited for.
    daemon.stop();
    top.wait_for_text("no daemon is running");
    daemon.start_again();
    top.wait_for_text("All is well.");
    top.type_in("x");
    top.type_in("q");
    assert!(top.wait().success());
    top.is_given_back();

    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::HUP, rustix::process::Signal::INT] {
        let mut top = Terminal::start(&daemon, (80, 24), BRAID, &["top"], &[]);
        top.wait_for_text("All is well.");
        let pid = rustix::process::Pid::from_raw(top.child.id() as i32).expect("a process has an id");
        rustix::process::kill_process(pid, signal).expect("it is ours");
        assert!(top.wait().success());
        top.is_given_back();
    }
    let mut top = Terminal::start(&daemon, (80, 24), BRAID, &["top"], &[]);
    top.wait_for_text("All is well.");
    top.type_in("\x03");
    assert!(top.wait().success());
    top.is_given_back();
    let refusal = daemon.refused(2, &["top"]);
    assert!(refusal.contains("--once"), "{refusal}");
}

#[test]
fn long_work_shows_a_progress_line_and_continues_without_it() {
    let daemon = Daemon::start();
    let disks: Vec<String> =
        ["a", "b"].iter().map(|name| format!("throttled({},bw=8M)", daemon.folder.sparse(name, 80 * MIB))).collect();
    daemon.array("data", "raid1", &[&disks[0], &disks[1]]);
    let mut client = wait_for("the export", || crate::nbd::Client::open(&daemon.nbd_socket("data"), "data").ok());
    client.write(0, &noise(16 * MIB, 1)).expect("it writes");
    let mut check = Terminal::start(&daemon, (80, 24), BRAID, &["array", "check", "data"], &[]);
    check.wait_for_text("data:1 check:");
    check.wait_for_text("/s");
    check.type_in("\x03");
    assert_eq!(check.wait().code(), Some(1));
    check.wait_for_text("the job continues: braid job watch data:1");
    check.is_given_back();
    assert_eq!(daemon.json(&["job", "list"])["jobs"][0]["state"], "running");
    // Watched to its end, the job prints its outcome.
    daemon.braid(&["job", "limit", "data:1", "512M"]);
    let mut watch = Terminal::start(&daemon, (80, 24), BRAID, &["job", "watch"], &[]);
    watch.wait_for_text("check (job data:1) is done");
    watch.wait_for_text("nothing differs");
    assert_eq!(watch.wait().code(), Some(0));
    let begun = Terminal::start(&daemon, (80, 24), BRAID, &["array", "check", "data", "--no-wait"], &[]);
    begun.wait_for_text("braid job watch data:2");
}

#[test]
fn a_wait_of_over_a_second_shows_what_it_is_for_and_is_erased() {
    let daemon = Daemon::start();
    // Accepts connections, and does not reply.
    let socket = daemon.folder.join("silent.sock");
    let silent = std::os::unix::net::UnixListener::bind(&socket).expect("a socket can be made");
    let mut status = Terminal::start(&daemon, (80, 24), BRAID, &["status", "--socket", &socket], &[]);
    status.wait_for_text("waiting for the daemon: reading its status … ");
    drop(silent.accept().expect("the command has connected"));
    assert_eq!(status.wait().code(), Some(6));
    status.wait_for_text("cannot be reached");
    assert!(!status.text().contains("waiting for"), "{}", status.text());
}

#[test]
fn shells_complete_commands_options_and_names() {
    let daemon = Daemon::start();
    let script = |shell: &str| {
        let path = daemon.folder.join(&format!("_braid-{shell}"));
        std::fs::write(&path, daemon.braid(&["completions", shell])).expect("a file can be written");
        path
    };
    let bash = format!(
        "source {}; for words in 'braid arr' 'braid array cre' 'braid status --che' 'braid array create --level '; do \
         COMP_WORDS=(${{words}}); [[ $words == *' ' ]] && COMP_WORDS+=(''); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
         _braid braid \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; echo \"${{COMPREPLY[*]}}\"; done",
        script("bash")
    );
    let out = run("bash", &["--norc", "-c", &bash]);
    assert_eq!(
        out.lines().collect::<Vec<_>>(),
        ["array", "create", "--check", "concat raid0 raid1 raid10 raid5 raid6"]
    );
    let fish = format!(
        "source {}; complete -C 'braid arr'; complete -C 'braid array cre'; complete -C 'braid status --che'",
        script("fish")
    );
    let home = daemon.folder.join("home");
    let out = run("env", &[&format!("HOME={home}"), "fish", "--no-config", "-c", &fish]);
    let words: Vec<&str> = out.lines().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!(words, ["array", "create", "--check"]);
    // The daemon completes names of arrays and exports; without a daemon there are none, and no error message.
    daemon.array("quartz", "concat", &["mem:64M"]);
    daemon.braid(&["export", "rename", "quartz", "quiet"]);
    let program = std::path::Path::new(BRAID).parent().expect("it lies in a folder").display().to_string();
    let path = format!("{program}:{}", std::env::var("PATH").unwrap_or_default());
    let ask = |shell: &[&str], text: &str| {
        let mut command = command(shell[0]);
        command.args(&shell[1..]).arg(text).env("PATH", &path).env("HOME", &home);
        places(&mut command, &daemon.folder);
        let out = command.output().expect("the shell can be started");
        assert!(out.status.success() && out.stderr.is_empty(), "{}", said(&out));
        String::from_utf8_lossy(&out.stdout).split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let in_bash = format!(
        "source {}; for words in 'braid array show q' 'braid export add ' 'braid export set q' 'braid array create q'; do \
         COMP_WORDS=(${{words}}); [[ $words == *' ' ]] && COMP_WORDS+=(''); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
         _braid_with_names braid \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
         echo \"${{COMPREPLY[*]}}\"; done",
        script("bash")
    );
    let in_fish = format!(
        "source {}; complete -C 'braid array show q'; complete -C 'braid export add q'; complete -C 'braid export set q'",
        script("fish")
    );
    let names = ["quartz", "quartz", "quiet"];
    assert_eq!(ask(&["bash", "--norc", "-c"], &in_bash), names);
    assert_eq!(ask(&["fish", "--no-config", "-c"], &in_fish), names);
    // zsh completes only at a terminal.
    let zsh = script("zsh");
    let mut shell = Terminal::start(
        &daemon,
        (100, 30),
        "zsh",
        &["-f", "-i"],
        &[("PS1", "ready> "), ("HOME", &daemon.folder.join(".")), ("PATH", &path)],
    );
    shell.wait_for_text("ready>");
    shell.type_in(&format!("autoload -U compinit; compinit -u -D; source {zsh}; clear; echo lo''aded\n"));
    shell.wait_for_text("loaded");
    for (typed, whole) in
        [("braid arr\t", "braid array"), ("cre\t", "braid array create"), ("--lev\t", "create --level")]
    {
        shell.type_in(typed);
        shell.wait_for_text(whole);
    }
    shell.type_in("\x15braid array show q\t");
    shell.wait_for_text("array show quartz");
    shell.type_in("\x15braid export set q\t");
    shell.wait_for_text("export set quiet");
    daemon.running.terminate();
    let socket = daemon.folder.join("api.sock");
    wait_for("the daemon to end", || (!std::path::Path::new(&socket).exists()).then_some(()));
    assert_eq!(ask(&["bash", "--norc", "-c"], &in_bash).iter().filter(|word| word.starts_with('q')).count(), 0);
    assert_eq!(ask(&["bash", "-c"], &format!("{BRAID} completions arrays")), Vec::<String>::new());
}

#[test]
fn every_command_has_a_manual_page_without_warnings() {
    let folder = Folder::new();
    let pages = folder.join("man");
    run(BRAID, &["man", "--dir", &pages]);
    let mut names: Vec<String> = std::fs::read_dir(&pages)
        .expect("the folder is there")
        .map(|entry| entry.expect("it can be read").path().to_str().expect("a path in UTF-8").to_owned())
        .collect();
    names.sort();
    assert!(names.len() >= 25 && names.iter().any(|name| name.ends_with("/braid-array-create.1")), "{names:?}");
    for page in &names {
        let out = run_any("mandoc", &["-T", "lint", "-W", "warning", page]);
        assert!(out.status.success() && said(&out).is_empty(), "{}", said(&out));
        let out = run_any("groff", &["-ww", "-man", "-Tutf8", page]);
        assert!(out.status.success() && out.stderr.is_empty(), "{page}: {}", String::from_utf8_lossy(&out.stderr));
    }
    let shown = run("mandoc", &["-T", "utf8", &format!("{pages}/braid-array-create.1")]);
    let shown: String = {
        // Bold is written as a letter, a backspace and the letter again.
        let mut text = String::new();
        for c in shown.chars() {
            if c == '\u{8}' {
                text.pop();
            } else {
                text.push(c);
            }
        }
        text
    };
    for words in ["SYNOPSIS", "EXAMPLES", "braid array create fast --level raid0 /dev/sdb", "EXIT STATUS", "--chunk"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
}
