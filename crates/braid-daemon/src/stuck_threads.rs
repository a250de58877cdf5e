//! Threads of this process that are stuck in the kernel: in a system call that no signal interrupts, while a disk or a
//! file system does not answer.
//!
//! Until such a thread returns, the process stays with its open files: it cannot end, and cannot become another
//! program. Nothing in the process can change that, so it is reported, with the thread and the kernel function.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// The threads of this process.
const TASKS: &str = "/proc/self/task";

/// A thread that is stuck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckThread {
    name: String,
    /// The kernel function that it is in, if the kernel shows it.
    kernel_function: Option<String>,
}

impl fmt::Display for StuckThread {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "thread {}", self.name)?;
        match &self.kernel_function {
            Some(kernel_function) => write!(out, " ({kernel_function})"),
            None => Ok(()),
        }
    }
}

/// Returns the threads that are stuck for all of this time. Returns early once no thread can be.
pub fn find(limit: Duration) -> Vec<StuckThread> {
    let until = Instant::now() + limit;
    let mut stuck = now();
    while !stuck.is_empty() && Instant::now() < until {
        std::thread::sleep(LOOK_INTERVAL);
        let again = now();
        // A thread that has run in between is slow, and not stuck.
        stuck.retain(|task, state| again.get(task) == Some(state));
    }
    stuck
        .into_iter()
        .map(|(task, state)| StuckThread { name: state.name, kernel_function: kernel_function(&task) })
        .collect()
}

/// Returns the kernel function that a thread waits in.
fn kernel_function(task: &Path) -> Option<String> {
    let kernel_function = std::fs::read_to_string(task.join("wchan")).ok()?;
    // Without the right to see it the file holds a zero.
    Some(kernel_function).filter(|kernel_function| !kernel_function.is_empty() && kernel_function != "0")
}

/// A thread in an uninterruptible wait.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ThreadWait {
    name: String,
    /// Its count of voluntary context switches.
    switches: u64,
}

/// Returns the threads that are in an uninterruptible wait now, by their folders.
fn now() -> BTreeMap<PathBuf, ThreadWait> {
    let tasks = std::fs::read_dir(TASKS).into_iter().flatten().flatten().map(|entry| entry.path());
    let read_wait = |task: PathBuf| {
        // The thread may have ended by now.
        let status = std::fs::read_to_string(task.join("status")).ok()?;
        Some((task, uninterruptible_wait(&status)?))
    };
    tasks.filter_map(read_wait).collect()
}

fn uninterruptible_wait(status: &str) -> Option<ThreadWait> {
    let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim);
    if !value("State")?.starts_with('D') {
        return None;
    }
    Some(ThreadWait { name: value("Name")?.to_owned(), switches: value("voluntary_ctxt_switches")?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uninterruptible_wait_is_detected_in_the_status() {
        let status = |state: &str| {
            format!(
                "Name:\tdisk-io-3\nUmask:\t0022\nState:\t{state}\nTgid:\t12\nVmLck:\t0 kB\n\
                 voluntary_ctxt_switches:\t17\nnonvoluntary_ctxt_switches:\t4\n"
            )
        };
        let stuck = ThreadWait { name: "disk-io-3".to_owned(), switches: 17 };
        assert_eq!(uninterruptible_wait(&status("D (disk sleep)")), Some(stuck));
        assert_eq!(uninterruptible_wait(&status("S (sleeping)")), None);
        assert_eq!(uninterruptible_wait(&status("R (running)")), None);
        assert_eq!(uninterruptible_wait(""), None);
        let of = |kernel_function: Option<&str>| {
            StuckThread { name: "backing".to_owned(), kernel_function: kernel_function.map(str::to_owned) }.to_string()
        };
        assert_eq!(of(None), "thread backing");
        assert_eq!(of(Some("request_wait_answer")), "thread backing (request_wait_answer)");
    }

    #[test]
    fn sleeping_threads_are_not_stuck() {
        let sleeping = std::thread::spawn(|| std::thread::sleep(Duration::from_millis(200)));
        let start = Instant::now();
        // Other threads of this process may read or write files just now, for moments.
        assert!(find(Duration::from_secs(60)).is_empty());
        assert!(start.elapsed() < Duration::from_secs(60));
        sleeping.join().expect("it only sleeps");
    }
}
