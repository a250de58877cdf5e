//! What a process wrote to an in-memory log is readable after its death, no other process can attach the log before,
//! and a full file system is an error at once.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

use crate::common::{Folder, starting_children};
use braid_engine::Uuid;
use braid_engine::pool::LogMemory;
use braid_ring::{RingErrorKind, SharedLogFolder};

const POOL: Uuid = Uuid::from_u128(0xfeed);
const BYTES: usize = 1 << 20;
/// Tells a process that it is the child of a test, and names its folder.
const CHILD: &str = "BRAID_TEST_LOG_FOLDER";

/// Returns the path of this program, to run one of its tests as a child.
fn this_program() -> String {
    std::env::current_exe().unwrap().to_str().unwrap().to_owned()
}

fn folder_of_child() -> Option<SharedLogFolder> {
    let path = std::env::var_os(CHILD)?;
    Some(SharedLogFolder::open(Path::new(&path)).unwrap())
}

/// A process that is killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes forever: in each round, one word after the other.
fn write_until_killed(folder: &SharedLogFolder) -> ! {
    let log = folder.create(POOL, 7, BYTES).unwrap();
    for round in 1.. {
        for (k, word) in log.words().iter().enumerate() {
            word.store(round << 20 | k as u64, Ordering::Release);
        }
        if round == 3 {
            println!("\nwritten");
        }
    }
    unreachable!("the test kills it")
}

#[test]
fn stored_words_survive_the_process() {
    if let Some(folder) = folder_of_child() {
        write_until_killed(&folder);
    }
    let _children = starting_children();
    let temp = Folder::new("kill");
    let path = temp.0.join("logs");
    let folder = SharedLogFolder::open(&path).unwrap();
    for _ in 0..5 {
        let child = Command::new(this_program())
            .args(["--exact", "shared_log_survives_kill::stored_words_survive_the_process", "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .spawn();
        let mut child = Killed(child.unwrap());
        let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "written"), "the child has begun");
        let refused = folder.attach(POOL, 7).unwrap_err();
        assert_eq!(refused.kind, RingErrorKind::InUse);
        assert!(refused.to_string().contains(&format!("process {}", child.0.id())), "{refused}");
        assert_eq!(folder.remove(&folder.name(POOL, 7)).unwrap_err().kind, RingErrorKind::InUse);
        drop(child);
        let log = folder.attach(POOL, 7).unwrap().expect("it is still there");
        assert_eq!(log.words().len(), BYTES / 8);
        // Words of the last round up to some word, and of the previous round behind it.
        let rounds: Vec<u64> = log.words().iter().map(|word| word.load(Ordering::Acquire) >> 20).collect();
        assert!(rounds[0] >= 3 && rounds.windows(2).all(|pair| pair[0] >= pair[1]), "in order");
        assert!(rounds[0] - rounds[rounds.len() - 1] <= 1, "nothing is missing");
        let at = |k: usize| log.words()[k].load(Ordering::Acquire) & 0xf_ffff;
        assert!((0..rounds.len()).all(|k| at(k) == k as u64));
        folder.remove_attached(log).unwrap();
        assert!(folder.list(POOL).unwrap().is_empty());
    }
}

/// Allocates logs on a file system with room for one log, but not for three.
fn fill_the_file_system(folder: &SharedLogFolder) {
    let first = folder.create(POOL, 1, BYTES).expect("there is room for one");
    let error = folder.create(POOL, 2, 3 * BYTES).unwrap_err();
    assert_eq!(error.kind, RingErrorKind::NoSpace);
    let text = error.to_string();
    assert!(text.contains("3145728 bytes") && text.contains("free space in"), "{text}");
    assert!(folder.attach(POOL, 2).unwrap().is_none(), "nothing is left of it");
    assert_eq!(folder.list(POOL).unwrap(), [folder.name(POOL, 1)]);
    // Every byte of the first log has its memory, even if the file system is full.
    let rest = folder.path().join("rest");
    let _ = std::fs::write(&rest, vec![1; 3 * BYTES]);
    first.words().iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    assert!(first.is_intact());
    println!("\nfilled");
}

#[test]
fn a_full_file_system_is_an_error_not_a_signal() {
    if let Some(folder) = folder_of_child() {
        return fill_the_file_system(&folder);
    }
    let _children = starting_children();
    let temp = Folder::new("full");
    let path: PathBuf = temp.0.join("logs");
    let run = "exec \"$1\" --exact shared_log_survives_kill::a_full_file_system_is_an_error_not_a_signal --nocapture";
    // A small tmpfs if a mount namespace is available; otherwise a limit on file sizes.
    let small = format!(
        "mount -t tmpfs -o size=2m tmpfs \"$0\" && echo mounted && mkdir \"$0/logs\" && chmod 700 \"$0/logs\" && {run}"
    );
    let limited = format!("trap '' XFSZ; ulimit -f 2048; mkdir -m 700 \"$0/logs\"; {run}");
    let attempts: [(&str, &[&str]); 3] =
        [(&small, &["unshare", "--mount"]), (&small, &["unshare", "--map-root-user", "--mount"]), (&limited, &["env"])];
    for (script, wrapper) in attempts {
        let output = Command::new(wrapper[0])
            .args(&wrapper[1..])
            .args(["sh", "-c", script, temp.0.to_str().unwrap(), &this_program()])
            .env(CHILD, &path)
            .output();
        let Ok(output) = output else { continue };
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if script == limited || text.contains("mounted") {
            assert!(output.status.success() && text.contains("filled"), "{text}\n{errors}");
            return;
        }
    }
    panic!("not even a shell could be started");
}
