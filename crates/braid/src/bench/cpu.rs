//! How much processor time a process has used, ours and another's.

use std::fs;
use std::time::Duration;

use anyhow::Context as _;
use rustix::time::{ClockId, clock_gettime};

/// Processor time of this process, all threads, kernel workers of its rings included.
pub fn own() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Processor time of all present threads of process `pid`, in the scheduler's nanoseconds. The workers that the
/// kernel starts for a process' rings are among its threads.
///
/// # Errors
/// When there is no such process, or the kernel was built without scheduler statistics.
pub fn of_process(pid: u32) -> anyhow::Result<Duration> {
    let folder = format!("/proc/{pid}/task");
    let mut total_ns = 0;
    for thread in fs::read_dir(&folder).with_context(|| folder.clone())? {
        // A thread that ends between the listing and the reading takes its time with it.
        let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        let ns = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        total_ns += ns.with_context(|| format!("{folder}: schedstat holds {text:?}"))?;
    }
    Ok(Duration::from_nanos(total_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_see_the_work_of_this_process() {
        let (before, before_listed) = (own(), of_process(std::process::id()).expect("it is this process"));
        let mut random = super::super::pattern::Random::new(1);
        while own() - before < Duration::from_millis(60) {
            std::hint::black_box(random.next());
        }
        let listed = of_process(std::process::id()).expect("it is this process") - before_listed;
        // The scheduler accounts a running thread at its ticks only, so this is coarse.
        assert!(listed >= Duration::from_millis(20), "{listed:?}");
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!(of_process(u32::MAX).is_err());
    }
}
