//! CPU time of this process and of others.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use anyhow::Context as _;
use rustix::time::{ClockId, clock_gettime};

/// Returns the CPU time of this process: of all threads, with the kernel workers of its rings.
pub fn own() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the CPU time of the calling thread.
pub fn own_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the CPU time of process `pid`, with that of threads that have ended, in units of the kernel's ticks (10 ms). The workers that the
/// kernel starts for a process' rings are threads of the process.
///
/// # Errors
/// There is no such process.
pub fn of_process(pid: u32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    // The second field is the name in parentheses, which may contain any character. User and system time are fields 14 and 15.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index - 3).and_then(|field| field.parse::<u64>().ok());
    let ticks = ticks(14).zip(ticks(15)).with_context(|| format!("{path} holds {text:?}"))?;
    Ok(Duration::from_secs_f64((ticks.0 + ticks.1) as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Returns the CPU time of each thread of process `pid` to the nanosecond: for a process that uses less than a tick.
///
/// # Errors
/// There is no such process, or the kernel was built without scheduler statistics.
pub fn of_threads(pid: u32) -> anyhow::Result<ThreadTimes> {
    let folder = format!("/proc/{pid}/task");
    let mut times = BTreeMap::new();
    for thread in fs::read_dir(&folder).with_context(|| folder.clone())? {
        let thread = thread?;
        let Ok(text) = fs::read_to_string(thread.path().join("schedstat")) else { continue };
        let ns = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        times.insert(thread.file_name(), ns.with_context(|| format!("{folder}: schedstat holds {text:?}"))?);
    }
    Ok(ThreadTimes(times))
}

/// The CPU time of threads at one moment, by thread id.
pub struct ThreadTimes(BTreeMap<OsString, u64>);

impl ThreadTimes {
    /// Returns the CPU time that the current threads have used since `before`. The time of threads that ended in between is not counted.
    pub fn since(&self, before: &ThreadTimes) -> Duration {
        let of = |(thread, ns): (&OsString, &u64)| ns.saturating_sub(before.0.get(thread).copied().unwrap_or(0));
        Duration::from_nanos(self.0.iter().map(of).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_counts_the_work_of_this_process() {
        let pid = std::process::id();
        let now = || [Ok(own()), of_process(pid)].map(|time| time.expect("it is this process"));
        let (before, threads) = (now(), of_threads(pid).expect("it is this process"));
        let mut random = super::super::pattern::Random::new(1);
        // CPU time instead of wall time: the amount of work does not depend on how busy the machine is.
        while own() - before[0] < Duration::from_millis(200) {
            std::hint::black_box(random.next_u64());
        }
        for (after, before) in now().iter().zip(before) {
            // The margin is wide: the kernel accounts in ticks, and other tests of this process may run at the same time.
            assert!(*after - before >= Duration::from_millis(100), "{:?}", *after - before);
        }
        let used = of_threads(pid).expect("it is this process").since(&threads);
        assert!(used >= Duration::from_millis(100), "{used:?}");
    }

    #[test]
    fn a_missing_process_is_an_error() {
        assert!(of_process(u32::MAX).is_err() && of_threads(u32::MAX).is_err());
    }
}
