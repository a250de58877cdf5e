//! What a process wrote to a tail is there after its death, nobody else has it before that, and a file system without room
//! says so at once.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

use braid_engine::Uuid;
use braid_engine::pool::TailMemory;
use braid_ring::{RingErrorKind, TailFolder};
use common::Folder;

const POOL: Uuid = Uuid::from_u128(0xfeed);
const BYTES: usize = 1 << 20;
/// Tells a process that it is the child of a test: the folder that it works in.
const CHILD: &str = "BRAID_TEST_TAIL_FOLDER";

/// This program, to run one test of it as a child.
fn this_program() -> String {
    std::env::current_exe().unwrap().to_str().unwrap().to_owned()
}

fn folder_of_child() -> Option<TailFolder> {
    let path = std::env::var_os(CHILD)?;
    Some(TailFolder::open(Path::new(&path)).unwrap())
}

/// A process that does not outlive the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes for ever: each round one word after the other, each after the one before it.
fn write_until_killed(folder: &TailFolder) -> ! {
    let tail = folder.create(POOL, 7, BYTES).unwrap();
    for round in 1.. {
        for (k, word) in tail.words().iter().enumerate() {
            word.store(round << 20 | k as u64, Ordering::Release);
        }
        if round == 3 {
            println!("\nwritten");
        }
    }
    unreachable!("the test kills it")
}

#[test]
fn what_was_stored_outlives_the_process() {
    if let Some(folder) = folder_of_child() {
        write_until_killed(&folder);
    }
    let place = Folder::new("kill");
    let path = place.0.join("tails");
    let folder = TailFolder::open(&path).unwrap();
    for _ in 0..5 {
        let child = Command::new(this_program())
            .args(["--exact", "what_was_stored_outlives_the_process", "--nocapture"])
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
        let tail = folder.attach(POOL, 7).unwrap().expect("it is still there");
        assert_eq!(tail.words().len(), BYTES / 8);
        // Up to some word the last round, behind it the one before.
        let rounds: Vec<u64> = tail.words().iter().map(|word| word.load(Ordering::Acquire) >> 20).collect();
        assert!(rounds[0] >= 3 && rounds.windows(2).all(|pair| pair[0] >= pair[1]), "in order");
        assert!(rounds[0] - rounds[rounds.len() - 1] <= 1, "nothing is missing");
        let at = |k: usize| tail.words()[k].load(Ordering::Acquire) & 0xf_ffff;
        assert!((0..rounds.len()).all(|k| at(k) == k as u64));
        folder.remove_own(tail).unwrap();
        assert!(folder.list(POOL).unwrap().is_empty());
    }
}

/// Takes more and more, where there is room for one tail and not for three.
fn fill_what_there_is(folder: &TailFolder) {
    let first = folder.create(POOL, 1, BYTES).expect("there is room for one");
    let error = folder.create(POOL, 2, 3 * BYTES).unwrap_err();
    assert_eq!(error.kind, RingErrorKind::NoSpace);
    let text = error.to_string();
    assert!(text.contains("3145728 bytes") && text.contains("free space in"), "{text}");
    assert!(folder.attach(POOL, 2).unwrap().is_none(), "nothing is left of it");
    assert_eq!(folder.list(POOL).unwrap(), [folder.name(POOL, 1)]);
    // Every byte of the first one is there, whatever else is full.
    let rest = folder.path().join("rest");
    let _ = std::fs::write(&rest, vec![1; 3 * BYTES]);
    first.words().iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    assert!(first.is_there());
    println!("\nfilled");
}

#[test]
fn a_full_file_system_is_an_error_and_no_signal() {
    if let Some(folder) = folder_of_child() {
        return fill_what_there_is(&folder);
    }
    let place = Folder::new("full");
    let path: PathBuf = place.0.join("tails");
    let run = "exec \"$1\" --exact a_full_file_system_is_an_error_and_no_signal --nocapture";
    // A small tmpfs, where a name space for its mount can be had; else a limit to the size of files.
    let small = format!(
        "mount -t tmpfs -o size=2m tmpfs \"$0\" && echo mounted && mkdir \"$0/tails\" && chmod 700 \"$0/tails\" && {run}"
    );
    let limited = format!("trap '' XFSZ; ulimit -f 2048; mkdir -m 700 \"$0/tails\"; {run}");
    let attempts: [(&str, &[&str]); 3] =
        [(&small, &["unshare", "--mount"]), (&small, &["unshare", "--map-root-user", "--mount"]), (&limited, &["env"])];
    for (script, wrapper) in attempts {
        let output = Command::new(wrapper[0])
            .args(&wrapper[1..])
            .args(["sh", "-c", script, place.0.to_str().unwrap(), &this_program()])
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
