//! Threads of this process that the kernel holds: in a system call that no signal ends, as long as a disk or a file system does not answer.
//!
//! Until they are let go of the process is there, with what it has open: it cannot end, and cannot become another program. Nothing in it
//! can change that, so it is said, with the thread and with where the kernel holds it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Between two looks.
const BETWEEN: Duration = Duration::from_millis(20);
/// The threads of this process.
const TASKS: &str = "/proc/self/task";

/// A thread that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    name: String,
    /// The kernel's function that it is in, where the kernel says so.
    place: Option<String>,
}

impl fmt::Display for Held {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "thread {}", self.name)?;
        match &self.place {
            Some(place) => write!(out, " ({place})"),
            None => Ok(()),
        }
    }
}

/// The threads that are held all the while, for this long. Where there are none it returns as soon as that is clear.
pub fn threads(limit: Duration) -> Vec<Held> {
    let until = Instant::now() + limit;
    let mut held = now();
    while !held.is_empty() && Instant::now() < until {
        std::thread::sleep(BETWEEN);
        let again = now();
        // One that has run in between is slow, and not held.
        held.retain(|task, state| again.get(task) == Some(state));
    }
    held.into_iter().map(|(task, state)| Held { name: state.name, place: place(&task) }).collect()
}

/// Where the kernel holds a thread.
fn place(task: &Path) -> Option<String> {
    let place = std::fs::read_to_string(task.join("wchan")).ok()?;
    // Without the right to see it there is a zero.
    Some(place).filter(|place| !place.is_empty() && place != "0")
}

/// A thread in an uninterruptible wait.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Waiting {
    name: String,
    /// How often it has given up the processor by itself.
    switches: u64,
}

/// Those that are in one at this moment, by their folders.
fn now() -> BTreeMap<PathBuf, Waiting> {
    let tasks = std::fs::read_dir(TASKS).into_iter().flatten().flatten().map(|entry| entry.path());
    let look = |task: PathBuf| {
        // It may have ended by now.
        let status = std::fs::read_to_string(task.join("status")).ok()?;
        Some((task, waiting(&status)?))
    };
    tasks.filter_map(look).collect()
}

fn waiting(status: &str) -> Option<Waiting> {
    let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim);
    if !value("State")?.starts_with('D') {
        return None;
    }
    Some(Waiting { name: value("Name")?.to_owned(), switches: value("voluntary_ctxt_switches")?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_in_an_uninterruptible_wait_is_known_by_its_status() {
        let status = |state: &str| {
            format!(
                "Name:\tdisk-io-3\nUmask:\t0022\nState:\t{state}\nTgid:\t12\nVmLck:\t0 kB\n\
                 voluntary_ctxt_switches:\t17\nnonvoluntary_ctxt_switches:\t4\n"
            )
        };
        let held = Waiting { name: "disk-io-3".to_owned(), switches: 17 };
        assert_eq!(waiting(&status("D (disk sleep)")), Some(held));
        assert_eq!(waiting(&status("S (sleeping)")), None);
        assert_eq!(waiting(&status("R (running)")), None);
        assert_eq!(waiting(""), None);
        let of = |place: Option<&str>| Held { name: "backing".to_owned(), place: place.map(str::to_owned) }.to_string();
        assert_eq!(of(None), "thread backing");
        assert_eq!(of(Some("request_wait_answer")), "thread backing (request_wait_answer)");
    }

    #[test]
    fn threads_that_only_sleep_are_not_held() {
        let sleeping = std::thread::spawn(|| std::thread::sleep(Duration::from_millis(200)));
        let start = Instant::now();
        // Others of this process may read or write files just now, for moments.
        assert!(threads(Duration::from_secs(60)).is_empty());
        assert!(start.elapsed() < Duration::from_secs(60));
        sleeping.join().expect("it only sleeps");
    }
}
